"""One tensor file of tfdbg: a serialized `Event` whose summary holds a `TensorProto`. Only its head is read.

Lengths are checked against the message around them and the file before anything is read, so that a claimed size
costs no memory. Sources: event.proto, summary.proto, tensor.proto, tensor_shape.proto and types.proto of TensorFlow,
encoding documentation of protobuf. This module runs on Python 3.7.
"""

import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

from precision_tool.lib.io.files import open_binary
from precision_tool.lib.io.local import open_descriptor
from precision_tool.lib.io.wire import FIXED32, FIXED64, LENGTH, VARINT, WireReader
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, OutputError, PrecisionToolError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


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
_VALUE_KINDS = {each.field: each.kind for each in TYPES.values()}


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
    if code > _REFERENCE:
        code -= _REFERENCE
    stored_type = TYPES.get(code)
    if stored_type is None:
        if code == 0:
            raise FormatError.of(reader.path, "io.tfdbg.no_type", offset=start)
        unknown = code not in _WITHOUT_NUMBERS
        name = _WITHOUT_NUMBERS.get(code)
        reason = Message(f"row.io.tfdbg.{name}") if name else Message("row.io.tfdbg.unknown_type", code=code)
        return TensorEvent(reader.path, TensorType("", "", 0, 0, 0), shape or (), 0, skip=reason, is_unknown=unknown)
    if shape is None:
        raise FormatError.of(reader.path, "io.tfdbg.unknown_shape", offset=start)
    count = _count(reader, start, shape)
    pieces = tuple(spans.get(stored_type.field, ()))
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


# --- The values of a tensor file as the pieces of a `.npy` file: bytes of the source to copy, or decoded bytes ---


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
