"""What tfdbg wrote: run folders and the tensor files in them, by name alone; and tensor files, opened.

    tf_debug/run_{microseconds}_{counter}/
      _tfdbg_device_,job_localhost,replica_0,task_0,device_CPU_0/{op as folders}_{slot}_DebugIdentity_{microseconds}
      _tfdbg_core_metadata_*, _tfdbg_fetches_info_, _tfdbg_feed_keys_info_, and per device _tfdbg_graph_*

Source: the docstrings of TensorFlow's `debug_data.py` and `dumping_wrapper.py`. This module runs on Python 3.7.
"""

import errno
import os
import re
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
)

from precision_tool.lib.io.files import entries, open_binary, real_path, store_of
from precision_tool.lib.io.local import LOCAL, open_descriptor
from precision_tool.lib.io.stores import Kind
from precision_tool.lib.io.wire import FIXED32, FIXED64, LENGTH, VARINT, WireReader
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import (
    DataNotFoundError,
    FormatError,
    OutputError,
    PrecisionToolError,
    UsageError,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


#: What chooses all runs, with all that they dumped.
ALL_RUNS = "all"

_DEVICE_PREFIX = "_tfdbg_device_"
_METADATA_PREFIX = "_tfdbg_"
_RUN_FOLDER = re.compile(r"run_(?P<time>[0-9]+)_(?P<number>[0-9]+)\Z")
_TENSOR_FILE = re.compile(
    r"(?P<name>.+)_(?P<slot>[0-9]{1,6})_(?P<watch>Debug[A-Za-z0-9]+)_(?P<time>[0-9]{1,20})(?:-(?P<again>[0-9]{1,9}))?\Z",
    re.DOTALL,
)
#: The debug op that passes a tensor on as it is; the others dump a summary of it (DebugNanCount).
_IDENTITY = re.compile(r"DebugIdentity(?:V[0-9]+)?\Z")
#: Control characters, which a terminal would obey, as well.
_FLATTEN = dict.fromkeys((*range(32), *map(ord, "./\\ "), 127), "_")
_NPY_NAME = re.compile(r".+\.[0-9]{1,6}\.[0-9]{1,20}\.npy\Z", re.DOTALL)
#: How deep below the folder that was named run folders are looked for.
_RUN_DEPTH = 3

#: Told of each folder before it is listed.
Visit = Callable[[str], None]


@dataclass(frozen=True)
class RunFolder:
    """A run folder. `time` (microseconds) and `number` are 0 and None where its name does not tell them."""

    path: str
    time: int = 0
    number: Optional[int] = None

    @property
    def name(self) -> str:
        """The name of the folder."""
        return os.path.basename(self.path)


@dataclass(frozen=True)
class DumpedTensor:
    """A file of a tensor: output `slot` of `op`, dumped at `time` (microseconds) on `device`.

    `again` counts the dumps of one tensor within one microsecond from 0 up.
    """

    path: str
    op: str
    slot: int
    time: int
    again: int
    device: str
    size: int

    @property
    def tensor(self) -> str:
        """The tensor as TensorFlow calls it, `conv1/Relu:0`."""
        return f"{self.op}:{self.slot}"

    @property
    def flat_op(self) -> str:
        """The op as file names spell it."""
        return self.op.translate(_FLATTEN)

    @property
    def npy_name(self) -> str:
        """The name of the benchmark tensor: `{op}.{slot}.{microseconds}.npy`."""
        return f"{self.flat_op}.{self.slot}.{self.time}.npy"


@dataclass(frozen=True)
class RunFiles:
    """The tensors of a run, oldest first, and what else lies there as (path or tensor, reason)."""

    run: RunFolder
    tensors: Tuple[DumpedTensor, ...]
    skipped: Tuple[Tuple[str, Message], ...] = ()
    unreadable: Tuple[Tuple[str, Message], ...] = ()


def is_tensor_name(name: str) -> bool:
    """Whether a file is named as tfdbg names those of whole tensors."""
    match = _TENSOR_FILE.match(name)
    return match is not None and _IDENTITY.match(match.group("watch")) is not None


def is_npy_name(name: str) -> bool:
    """Whether a file is named as `tf_dump` names its tensors."""
    return _NPY_NAME.match(name) is not None


def find_runs(folder: str, visit: Optional[Visit] = None) -> List[RunFolder]:
    """The run folders below `folder`, or `folder` itself, oldest first; [] if there is none.

    One that is named as such and cannot be listed counts: what reads it says why. FormatError where `folder` itself
    cannot, or a server does not tell what a folder holds.
    """
    run_folders: List[RunFolder] = []
    pending = [(os.path.abspath(folder), 0)]
    while pending:
        path, depth = pending.pop()
        if visit is not None:
            visit(path)
        try:
            below = [os.path.join(path, entry.name) for entry in entries(path) if entry.kind is Kind.FOLDER]
        except DataNotFoundError:
            continue
        except PrecisionToolError as error:
            if _RUN_FOLDER.match(os.path.basename(path)):
                run_folders.append(_run_at(path))
            elif store_of(path) is not LOCAL:
                raise
            elif depth == 0:
                raise FormatError.of(path, "io.tfdbg.unlisted", reason=_reason(error)) from error
            continue
        if any(os.path.basename(path_below).startswith(_DEVICE_PREFIX) for path_below in below):
            run_folders.append(_run_at(path))
        elif depth < _RUN_DEPTH:
            pending += [(path_below, depth + 1) for path_below in below]
    return sorted(run_folders, key=lambda run: (run.time, -1 if run.number is None else run.number, run.path))


def _run_at(path: str) -> RunFolder:
    match = _RUN_FOLDER.match(os.path.basename(path))
    return RunFolder(path, int(match.group("time")), int(match.group("number"))) if match else RunFolder(path)


def _reason(error: PrecisionToolError) -> str:
    """What the system says, or the server."""
    cause = error.__cause__
    return cause.strerror or str(cause) if isinstance(cause, OSError) else error.message


def _size(path: str) -> int:
    """The bytes of a file; FormatError for one that cannot be looked at, DataNotFoundError if it is gone."""
    stat = store_of(path).stat(path)
    if stat is None:
        error = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        raise DataNotFoundError.of(path, "io.no_file") from error
    return stat.size


def is_number(choice: str) -> bool:
    """Whether `--run` names a run by its number."""
    return choice.isdigit() and choice.isascii()


def choose_runs(runs: Sequence[RunFolder], choice: str) -> List[RunFolder]:
    """The runs that `--run` names: `all`, a folder's name, or the number at its end."""
    if choice == ALL_RUNS:
        return list(runs)
    named = [run for run in runs if run.name == choice]
    if not named and is_number(choice):
        named = [run for run in runs if str(run.number) == (choice.lstrip("0") or "0")]
    if len(named) == 1:
        return named
    names = [run.name for run in (named or runs)]
    shown = ", ".join(names[:8]) + (f", ... ({len(names)} in all)" if len(names) > 8 else "")
    if named:
        raise UsageError("io.tfdbg.ambiguous_run", choice=choice, runs=shown)
    raise DataNotFoundError("io.tfdbg.no_run", choice=choice, runs=shown)


def files_of_run(run: RunFolder, visit: Optional[Visit] = None) -> RunFiles:
    """Every tensor file of a run."""
    tensors: List[DumpedTensor] = []
    skipped: List[Tuple[str, Message]] = []
    unreadable: List[Tuple[str, Message]] = []
    visited: Set[str] = set()
    # (folder, its device, the op name that its path spells)
    pending: List[Tuple[str, str, str]] = [(run.path, "", "")]
    while pending:
        folder, device, scope = pending.pop()
        if visit is not None:
            visit(folder)
        real = real_path(folder)
        if real in visited:  # a link to a folder above
            continue
        visited.add(real)
        try:
            listed = entries(folder)
        except PrecisionToolError as error:
            unreadable.append((folder, Message("note.io.tfdbg.unlisted", reason=_reason(error))))
            continue
        for name, kind in listed:
            path = os.path.join(folder, name)
            try:
                if kind is None:  # a link to itself, or to what may not be looked at
                    store_of(path).stat(path)
            except PrecisionToolError as error:
                unreadable.append((path, Message("note.io.tfdbg.unread", reason=_reason(error))))
                continue
            if kind is Kind.FOLDER:
                if device:
                    pending.append((path, device, scope + name + "/"))
                elif name.startswith(_DEVICE_PREFIX):
                    pending.append((path, name[len(_DEVICE_PREFIX) :].lstrip(","), ""))
                else:
                    skipped.append((path, Message("note.io.tfdbg.other_folder")))
                continue
            if name.startswith(_METADATA_PREFIX):
                continue
            match = _TENSOR_FILE.match(name) if device else None
            if match is None:
                skipped.append((path, Message("note.io.tfdbg.other_name")))
                continue
            op, slot = scope + match.group("name"), int(match.group("slot"))
            if _IDENTITY.match(match.group("watch")) is None:
                skipped.append((f"{op}:{slot}", Message("note.io.tfdbg.watch", name=match.group("watch"))))
                continue
            try:
                size = _size(path)
            except PrecisionToolError as error:
                unreadable.append((path, Message("note.io.tfdbg.unread", reason=_reason(error))))
                continue
            time, again = int(match.group("time")), int(match.group("again") or 0)
            tensors.append(DumpedTensor(path, op, slot, time, again, device, size))
    tensors.sort(key=lambda tensor: (tensor.time, tensor.again, tensor.path))
    return RunFiles(run, tuple(tensors), tuple(skipped), tuple(unreadable))


def last_of_each(runs: Iterable[RunFiles]) -> List[DumpedTensor]:
    """Of every tensor what the last run that holds it has of it; `runs` are in their order, oldest first.

    A loop dumps a tensor more than once in a run: all of that are kept, each with its own time.
    """
    newest: Dict[Tuple[str, int], List[DumpedTensor]] = {}
    for run in runs:
        of_run: Dict[Tuple[str, int], List[DumpedTensor]] = {}
        for tensor in run.tensors:
            of_run.setdefault((tensor.op, tensor.slot), []).append(tensor)
        newest.update(of_run)
    return [tensor for tensors in newest.values() for tensor in tensors]


# --- One tensor file of tfdbg: a serialized `Event` whose summary holds a `TensorProto`. Only its head is read ---


# Field numbers.
_EVENT_SUMMARY = 5
_SUMMARY_VALUE = 1
_VALUE_TENSOR = 8
_TENSOR_DTYPE, _TENSOR_SHAPE, _TENSOR_CONTENT = 1, 2, 4
_SHAPE_DIM, _SHAPE_UNKNOWN_RANK = 2, 3
_DIM_SIZE = 1

_WINDOW = 4096
#: Runs of values and dimensions that are kept in memory, at most.
_MAX_SPANS = 1 << 12
#: Axes that the analysis can read: numpy's arrays have 32, and the two parts of complex numbers are one there.
_MAX_RANK = 31
_MAX_ELEMENTS = 1 << 62
#: Bytes of a tensor of which the file only gives the first values, the last of them standing for the rest.
_MAX_FILLED = 1 << 28
_REFERENCE = 100  # DT_FLOAT_REF is DT_FLOAT + 100


class TensorType(NamedTuple):
    """A type of TensorFlow: `descr` is how `.npy` names it, `field` the field of TensorProto that its values are in.

    `kind` is the wire type of a value; a complex number is two values.
    """

    name: str
    descr: str
    item_size: int
    field: int
    kind: int


#: By the number TensorFlow gives them. bfloat16 is what numpy makes of TensorFlow's own: two bytes without a meaning.
#: Quantized types are the integers they consist of.
TYPES: Dict[int, TensorType] = {
    1: TensorType("float32", "<f4", 4, 5, FIXED32),
    2: TensorType("float64", "<f8", 8, 6, FIXED64),
    3: TensorType("int32", "<i4", 4, 7, VARINT),
    4: TensorType("uint8", "|u1", 1, 7, VARINT),
    5: TensorType("int16", "<i2", 2, 7, VARINT),
    6: TensorType("int8", "|i1", 1, 7, VARINT),
    8: TensorType("complex64", "<c8", 8, 9, FIXED32),
    9: TensorType("int64", "<i8", 8, 10, VARINT),
    10: TensorType("bool", "|b1", 1, 11, VARINT),
    11: TensorType("qint8", "|i1", 1, 7, VARINT),
    12: TensorType("quint8", "|u1", 1, 7, VARINT),
    13: TensorType("qint32", "<i4", 4, 7, VARINT),
    14: TensorType("bfloat16", "<V2", 2, 13, VARINT),
    15: TensorType("qint16", "<i2", 2, 7, VARINT),
    16: TensorType("quint16", "<u2", 2, 7, VARINT),
    17: TensorType("uint16", "<u2", 2, 7, VARINT),
    18: TensorType("complex128", "<c16", 16, 12, FIXED64),
    19: TensorType("float16", "<f2", 2, 13, VARINT),
    22: TensorType("uint32", "<u4", 4, 16, VARINT),
    23: TensorType("uint64", "<u8", 8, 17, VARINT),
}
_WITHOUT_NUMBERS = {7: "string", 20: "resource", 21: "variant"}
_VALUE_KINDS = {row.field: row.kind for row in TYPES.values()}


class Span(NamedTuple):
    """Bytes of the file: a packed run of values, or values each behind its tag of `tag_size` bytes (0: packed)."""

    start: int
    stop: int
    tag_size: int = 0


@dataclass(frozen=True)
class TensorEvent:
    """What the head of a tensor file says. `skip` is why it has no numbers, "" if it has; with `is_unknown` it may
    have some, of a type that only TensorFlow knows.

    The values are the bytes of `content`, little endian in C order, or else those in `spans`, as they are encoded.
    """

    path: str
    type: TensorType
    shape: Tuple[int, ...]
    count: int
    content: Optional[Span] = None
    spans: Tuple[Span, ...] = ()
    skip: Optional[Message] = None
    is_unknown: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in memory and in a `.npy` file."""
        return self.count * self.type.item_size

    @property
    def is_mostly_claimed(self) -> bool:
        """Whether the file holds too few values for its size: the last one stands for most of them."""
        # A number takes a byte in the file at least, and eight as an element at most.
        return self.content is None and self.nbytes > 8 * sum(span.stop - span.start for span in self.spans)

    @property
    def plain(self) -> Optional[Span]:
        """Where the values lie as they are, little endian in C order; None where they have to be decoded."""
        if self.content is not None or not self.count:
            return self.content or Span(0, 0)
        if len(self.spans) != 1 or self.type.kind == VARINT:
            return None
        (span,) = self.spans
        return span if not span.tag_size and span.stop - span.start == self.nbytes else None


def read_event(path: str) -> TensorEvent:
    """The head of a tensor file. Raises FormatError, with the byte, for what is damaged or holds no tensor."""
    fd = open_for_reading(path)
    try:
        return read_event_at(path, os.fstat(fd).st_size, lambda offset, count: os.pread(fd, count, offset))
    except OSError as error:
        raise unreadable(path, error) from error
    finally:
        os.close(fd)


def read_event_at(path: str, size: int, read_at: Callable[[int, int], bytes]) -> TensorEvent:
    """Like `read_event`, of a file of `size` bytes that is open: `read_at` gives so many bytes from an offset."""
    return _read(WireReader(path, size, read_at, max_fields=size, window=_WINDOW))


def open_for_reading(path: str) -> int:
    """A descriptor of a regular file; FormatError for all else, also for a link to nothing, which was listed."""
    try:
        return open_descriptor(path)
    except DataNotFoundError as error:
        raise FormatError.of(path, error.kind, **error.fields) from error


def unreadable(path: str, error: OSError) -> FormatError:
    """The user's error for a file that cannot be opened or read."""
    return FormatError.of(path, "io.tfdbg.unreadable", reason=error.strerror)


def _read(reader: WireReader) -> TensorEvent:
    if reader.size == 0:
        raise FormatError.of(reader.path, "io.tfdbg.empty", offset=0)
    place: Optional[Tuple[int, int]] = (0, reader.size)
    for field in (_EVENT_SUMMARY, _SUMMARY_VALUE, _VALUE_TENSOR):
        if place is not None:
            place = reader.message(place[0], place[1], field)
    if place is None:
        raise FormatError.of(reader.path, "io.tfdbg.no_tensor", offset=0)
    return _read_tensor(reader, *place)


def _read_tensor(reader: WireReader, start: int, end: int) -> TensorEvent:
    code = 0
    shape: Optional[Tuple[int, ...]] = ()
    content: Optional[Span] = None
    spans: Dict[int, List[Span]] = {}
    for number, kind, value, stop, tag_at in reader.fields(start, end):
        if number == _TENSOR_DTYPE and kind == VARINT:
            code = value
        elif number == _TENSOR_SHAPE and kind == LENGTH:
            shape = _read_shape(reader, value, stop)
        elif number == _TENSOR_CONTENT and kind == LENGTH:
            content = Span(value, stop) if stop > value else None
        elif number in _VALUE_KINDS and kind in (LENGTH, _VALUE_KINDS[number]) and (stop > value or kind != LENGTH):
            _add_span(reader, spans.setdefault(number, []), kind, value, stop, tag_at)
    code -= _REFERENCE if code > _REFERENCE else 0
    if code in TYPES:
        if shape is None:
            raise FormatError.of(reader.path, "io.tfdbg.unknown_shape", offset=start)
        return _with_values(reader, start, TYPES[code], shape, content, tuple(spans.get(TYPES[code].field, ())))
    if code == 0:
        raise FormatError.of(reader.path, "io.tfdbg.no_type", offset=start)
    unknown = code not in _WITHOUT_NUMBERS
    name = _WITHOUT_NUMBERS.get(code)
    reason = Message(f"row.io.tfdbg.{name}") if name else Message("row.io.tfdbg.unknown_type", code=code)
    return TensorEvent(reader.path, TensorType("", "", 0, 0, 0), shape or (), 0, skip=reason, is_unknown=unknown)


def _with_values(
    reader: WireReader,
    start: int,
    stored_type: TensorType,
    shape: Tuple[int, ...],
    content: Optional[Span],
    pieces: Tuple[Span, ...],
) -> TensorEvent:
    """The tensor of this type and shape, if its values fit them."""
    count = _count(reader, start, shape)
    event = TensorEvent(reader.path, stored_type, shape, count, content, () if content else pieces)
    if content is not None:
        held = content.stop - content.start
        if held != event.nbytes:
            raise FormatError.of(
                reader.path, "io.tfdbg.short", offset=content.start,
                shape=shape, dtype=stored_type.name, needed=event.nbytes, size=held,
            )  # fmt: skip
    elif count and not pieces:
        return TensorEvent(reader.path, stored_type, shape, count, skip=Message("row.io.tfdbg.not_initialized"))
    elif event.nbytes > max(_MAX_FILLED, 8 * reader.size):
        raise FormatError.of(reader.path, "io.tfdbg.shape_of_file", offset=start, shape=shape, size=reader.size)
    return event


def _read_shape(reader: WireReader, start: int, end: int) -> Optional[Tuple[int, ...]]:
    """The dimensions; None if even their number is unknown. A dimension of 0 is an empty message."""
    shape: List[int] = []
    for number, kind, value, stop, tag_at in reader.fields(start, end):
        if number == _SHAPE_UNKNOWN_RANK and kind == VARINT and value:
            return None
        if number == _SHAPE_DIM and kind == LENGTH:
            size = 0
            for inner, inner_kind, inner_value, _, _ in reader.fields(value, stop):
                if inner == _DIM_SIZE and inner_kind == VARINT:
                    size = inner_value
            if size >= 1 << 63:
                raise FormatError.of(reader.path, "io.tfdbg.unknown_dimension", offset=tag_at)
            shape.append(size)
            if len(shape) > _MAX_RANK:
                raise FormatError.of(reader.path, "io.tfdbg.rank", offset=tag_at, limit=_MAX_RANK)
    return tuple(shape)


def _count(reader: WireReader, start: int, shape: Tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    if count > _MAX_ELEMENTS:
        raise FormatError.of(reader.path, "io.tfdbg.impossible_shape", offset=start, shape=str(list(shape)))
    return count


def _add_span(reader: WireReader, spans: List[Span], kind: int, value: int, stop: int, tag_at: int) -> None:
    """Adds the values of one field to those before; values without packing become one span as long as they touch."""
    if kind == LENGTH:
        span = Span(value, stop)
    else:
        tag_size = _varint_size(reader, tag_at)
        span = Span(tag_at, stop, tag_size)
        if spans and spans[-1].stop == tag_at and spans[-1].tag_size == tag_size:
            spans[-1] = Span(spans[-1].start, stop, tag_size)
            return
    if len(spans) >= _MAX_SPANS:
        raise FormatError.of(reader.path, "io.tfdbg.pieces", offset=tag_at, limit=_MAX_SPANS)
    spans.append(span)


def _varint_size(reader: WireReader, position: int) -> int:
    start = position
    while reader.byte(position) >= 0x80:
        position += 1
    return position + 1 - start


# --- the values of a tensor file as the pieces of a `.npy` file: bytes of the source to copy, or decoded bytes ---


_BLOCK = 1 << 18
_ALIGNMENT = 64

Piece = Union[bytes, Span]


def npy_header(descr: str, shape: Tuple[int, ...]) -> bytes:
    """The head of a `.npy` file of version 1.0 (NEP 1), spelled as numpy does."""
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode("ascii")
    start = 10
    padding = _ALIGNMENT - (start + len(text) + 1) % _ALIGNMENT
    text += b" " * padding + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def npy_size(event: TensorEvent) -> int:
    """Bytes of the `.npy` file."""
    return len(npy_header(event.type.descr, event.shape)) + event.nbytes


def npy_pieces(event: TensorEvent, fd: int) -> Iterator[Piece]:
    """The `.npy` file of a tensor: spans are bytes of the source `fd` as they are."""
    yield npy_header(event.type.descr, event.shape)
    if event.plain is not None:
        yield event.plain
    else:
        yield from _decoded(event, fd)


def _decoded(event: TensorEvent, fd: int) -> Iterator[Piece]:
    kind = event.type.kind
    done, last, item_size = 0, b"", event.type.item_size
    for span in event.spans:
        for block in _varints(event, fd, span) if kind == VARINT else _fixed(event, fd, span):
            done += len(block)
            if done > event.nbytes:
                raise FormatError.of(event.path, "io.tfdbg.values", offset=span.start, count=event.count)
            last = (last + block[-item_size:])[-item_size:]
            yield block
    missing, rest = divmod(event.nbytes - done, item_size)
    if rest or len(last) < item_size:
        raise FormatError.of(event.path, "io.tfdbg.partial_value", offset=event.spans[0].start)
    repeated = last * min(missing, max(1, _BLOCK // item_size))
    for start in range(0, missing * item_size, max(1, len(repeated))):
        yield repeated[: missing * item_size - start]


def _fixed(event: TensorEvent, fd: int, span: Span) -> Iterator[bytes]:
    """The values of a span of 4 or 8 bytes each, without the tags between them."""
    value_size = 4 if event.type.kind == FIXED32 else 8
    size = span.tag_size + value_size
    if (span.stop - span.start) % size:
        raise FormatError.of(event.path, "io.tfdbg.partial_value", offset=span.start)
    for start in range(span.start, span.stop, _BLOCK // size * size):
        raw = read_at(event.path, fd, start, min(_BLOCK // size * size, span.stop - start))
        if not span.tag_size:
            yield raw
            continue
        import numpy as np

        yield np.frombuffer(raw, np.uint8).reshape(-1, size)[:, span.tag_size :].tobytes()


def _varints(event: TensorEvent, fd: int, span: Span) -> Iterator[bytes]:
    """The values of a span of numbers of any length, as items of the tensor's type."""
    import numpy as np

    unsigned = np.dtype(f"<u{event.type.item_size}")
    rest = b""
    count = 0
    for start in range(span.start, span.stop, _BLOCK):
        raw = rest + read_at(event.path, fd, start, min(_BLOCK, span.stop - start))
        codes: npt.NDArray[np.uint8] = np.frombuffer(raw, np.uint8)
        (ends,) = np.nonzero(codes < 0x80)
        used = int(ends[-1]) + 1 if ends.size else 0
        rest = raw[used:]
        if len(rest) > 9:
            raise FormatError.of(event.path, "io.wire.long_number", offset=start)
        values = _decode_varints(event, start, codes[:used], ends)
        if span.tag_size:  # each behind its tag, which is a number too
            first = (count + 1) % 2
            count += len(values)
            values = values[first::2]
        yield (values != 0).tobytes() if event.type.name == "bool" else values.astype(unsigned).tobytes()
    if rest:
        raise FormatError.of(event.path, "io.wire.open_number", offset=span.stop)


def _decode_varints(event: TensorEvent, start: int, codes: "npt.NDArray[np.uint8]", ends: Any) -> Any:
    import numpy as np

    starts = np.empty_like(ends)
    starts[:1] = 0
    starts[1:] = ends[:-1] + 1
    lengths = ends - starts + 1
    longest = int(lengths.max()) if lengths.size else 0
    if longest > 10:
        raise FormatError.of(event.path, "io.wire.long_number", offset=start)
    values = np.zeros(len(ends), np.uint64)
    for place in range(longest):
        longer = np.nonzero(lengths > place)[0]
        digits = (codes[starts[longer] + place] & 0x7F).astype(np.uint64)
        values[longer] |= digits << np.uint64(7 * place)
    return values


def read_at(path: str, fd: int, start: int, count: int) -> bytes:
    """Exactly `count` bytes of a source file."""
    parts = []
    while count:
        try:
            part = os.pread(fd, count, start)
        except OSError as error:
            raise unreadable(path, error) from error
        if not part:
            raise FormatError.of(path, "io.tfdbg.shrunk", offset=start)
        parts.append(part)
        start, count = start + len(part), count - len(part)
    return b"".join(parts)


# --- One tensor file of tfdbg → one `.npy` file, copied inside the operating system where that works ---


#: Bytes copied before the caller is told: Ctrl+C is heard and progress shown this often.
_PIECE = 16 << 20
_COMPARED = 1 << 20
#: What writing fails with for want of space.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

#: Called with bytes that are done; raises to stop.
Advance = Callable[[int], None]


def write_npy(event: TensorEvent, path: str, advance: Advance) -> None:
    """Writes the tensor to the new file `path`. FormatError for the source, OutputError for what is written."""
    source = open_for_reading(event.path)
    try:
        try:
            target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise unwritable(path, error) from error
        try:
            for piece in npy_pieces(event, source):
                if isinstance(piece, Span):
                    _copy(event.path, source, piece, path, target, advance)
                else:
                    _write(path, target, piece)
                    advance(len(piece))
        finally:
            os.close(target)
    except FormatError:
        os.unlink(path)
        raise
    finally:
        os.close(source)


def is_same_npy(event: TensorEvent, path: str, advance: Advance) -> bool:
    """Whether the file `path` is just what `write_npy` would write."""
    source = open_for_reading(event.path)
    try:
        with open_binary(path) as file:
            for piece in npy_pieces(event, source):
                if not isinstance(piece, Span):
                    if file.read(len(piece)) != piece:
                        return False
                    advance(len(piece))
                    continue
                for start in range(piece.start, piece.stop, _COMPARED):
                    part = read_at(event.path, source, start, min(_COMPARED, piece.stop - start))
                    if file.read(len(part)) != part:
                        return False
                    advance(len(part))
            return not file.read(1)
    except (OSError, PrecisionToolError):
        return False
    finally:
        os.close(source)


def unwritable(path: str, error: OSError) -> OutputError:
    """The user's error for a file or folder that cannot be written."""
    return OutputError.of(path, "io.tfdbg.not_writable", reason=error.strerror or str(error))


def _copy(source_path: str, source: int, span: Span, path: str, target: int, advance: Advance) -> None:
    start, left = span.start, span.stop - span.start
    in_kernel = True
    while left:
        count = min(_PIECE, left)
        if in_kernel:
            try:
                done = os.sendfile(target, source, start, count)
            except OSError as error:
                if error.errno in _NO_ROOM:
                    raise unwritable(path, error) from error
                in_kernel = False  # not on this file system
                continue
            if not done:
                raise FormatError.of(source_path, "io.tfdbg.shrunk", offset=start)
        else:
            part = read_at(source_path, source, start, min(count, _COMPARED))
            _write(path, target, part)
            done = len(part)
        start, left = start + done, left - done
        advance(done)


def _write(path: str, target: int, data: bytes) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(target, view) :]
    except OSError as error:
        raise unwritable(path, error) from error
