"""Which op and tensor of a PyTorch dump belongs to which of the other device's, by op and order (FORMATS.md §3).

The names of ops and parameters that differ between devices are those of the vendor's comparison; what goes beyond
them is said where it stands.
"""

from __future__ import annotations

import difflib
import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from precision_tool.lib.data.axis_alignment import Alignment, SizeMismatchError, size_of, status_of
from precision_tool.lib.data.dump_names import is_number, op_number, pattern
from precision_tool.lib.data.kinds import PYTORCH
from precision_tool.lib.io import data_types, layouts
from precision_tool.lib.io.files import exists, real_path
from precision_tool.lib.io.hdf5 import in_logical_order, read_h5
from precision_tool.lib.io.layouts import LayoutError
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, PrecisionToolError, UsageError
from precision_tool.lib.model.comparison import NO_OPS, Pair, Status
from precision_tool.lib.model.finding import joined
from precision_tool.lib.model.pytorch import ALIKE_TYPES, INPUT, OUTPUT, SCALAR_TYPES, H5Dump, H5Op, H5Value
from precision_tool.lib.model.tensor import Tensor

#: What the name of one and the same op begins with on different devices. Mkldnn, PyTorch's own convolution on a CPU,
#: is in no document.
_DEVICE_PREFIX = re.compile(r"(?:Npu|Cudnn|Thnn|Native|Mkldnn)(?=[A-Z])")
#: Ops whose names differ in more than that.
_SAME_OP = {"ConvDepthwise2DBackward": "ConvolutionBackward"}
#: Parameters that are called otherwise by an op's counterpart.
_OTHER_NAME = {"self": "input", "input": "self", "eps": "epsilon", "epsilon": "eps"}


def family(op_type: str) -> str:
    """Return the op's name on any device: `CudnnConvolutionBackward` and `NpuConvolutionBackward` are one family."""
    name = _DEVICE_PREFIX.sub("", op_type, count=1)
    return _SAME_OP.get(name, name)


@dataclass(frozen=True, slots=True)
class OpMatch:
    """An op and its counterpart; one of them may be missing."""

    npu: H5Op | None
    golden: H5Op | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """All ops of two dumps, those of the NPU in the order they ran, then what only the other has."""

    ops: tuple[OpMatch, ...]
    notes: tuple[Message, ...] = ()

    def counterpart(self, op: H5Op) -> H5Op | None:
        """The benchmark's op that stands for an NPU op."""
        return next((match.golden for match in self.ops if match.npu is op), None)


def match_ops(npu: H5Dump, golden: H5Dump) -> Matched:
    """Pairs ops: the k-th of a name, or of a family of names, with the k-th.

    A name that ran as often on both sides stands for itself. Of an NPU dump without inputs, which was made by loading
    the benchmark's dump, the sequence numbers are the benchmark's.
    """
    partner: dict[int, H5Op] = {}
    taken: set[int] = set()
    notes: list[Message] = []

    def groups(key: Callable[[H5Op], object]) -> dict[object, tuple[list[H5Op], list[H5Op]]]:
        """The ops of both sides that have no counterpart yet, by a key."""
        of_key: dict[object, tuple[list[H5Op], list[H5Op]]] = defaultdict(lambda: ([], []))
        for op in npu.ops:
            if id(op) not in partner:
                of_key[key(op)][0].append(op)
        for op in golden.ops:
            if id(op) not in taken:
                of_key[key(op)][1].append(op)
        return of_key

    def pair(left: Sequence[H5Op], right: Sequence[H5Op]) -> None:
        for op, other in zip(left, right, strict=False):
            partner[id(op)] = other
            taken.add(id(other))

    if not npu.has_inputs and golden.has_inputs:
        for left, right in groups(lambda op: (family(op.type), op.seq)).values():
            pair(left, right)
        notes.append(Message("note.data.h5_by_number"))
    for left, right in groups(lambda op: op.type).values():
        if len(left) == len(right):
            pair(left, right)
    by_family = groups(lambda op: family(op.type))
    for left, right in by_family.values():
        pair(left, right)
    differing = [name for name, (left, right) in by_family.items() if left and right and len(left) != len(right)]
    if differing:
        name = differing[0]
        npu_count, golden_count = map(len, by_family[name])
        notes.append(
            Message("note.data.h5_counts", count=len(differing), name=name, npu=npu_count, golden=golden_count)
        )
    of_npu = [OpMatch(op, partner.get(id(op))) for op in npu.ops]
    alone = [OpMatch(None, op) for op in golden.ops if id(op) not in taken]
    return Matched(ops=(*of_npu, *alone), notes=tuple(notes))


def match_dumps(npu: H5Dump, golden: H5Dump) -> tuple[list[Pair], tuple[Message, ...]]:
    """Every tensor of the NPU dump with its benchmark tensor, and what to say of the matching.

    An op without counterpart is one row. `Pair.index` is the sequence number in the NPU dump, of what it does not have
    the next after the last.
    """
    matched = match_ops(npu, golden)
    end = max((op.seq for op in npu.ops), default=-1) + 1
    pairs = [pair for match in matched.ops for pair in pairs_of(match, end, compare_inputs=npu.has_inputs)]
    parameters = sum(not value.is_tensor for op in npu.ops for value in op.values)
    notes = list(matched.notes)
    if parameters:
        notes.append(Message("note.data.h5_parameters", count=parameters))
    return pairs, tuple(notes)


def pairs_of(match: OpMatch, end: int, *, compare_inputs: bool = True) -> Iterator[Pair]:
    """The rows of one op; `end` is the index of what the NPU dump does not have."""
    npu, golden = match.npu, match.golden
    if npu is None or golden is None:
        yield from _only_side(npu, golden, end)
        return
    matched = _counterparts(npu, golden)
    paired = {id(value) for value in matched.values()}
    for direction in (INPUT, OUTPUT):
        for value in npu.tensors:
            if value.direction == direction:
                yield _pair(npu, golden, value, matched.get(id(value)))
        if direction == INPUT and not compare_inputs:
            continue
        for value in golden.tensors:
            if value.direction == direction and id(value) not in paired:
                yield replace(
                    _row(npu, golden, slot=value.slot),
                    golden=value.tensor,
                    golden_tensor=value.path,
                    status=Status.NO_NPU_DUMP,
                    reason=Message("row.data.h5_no_npu_tensor", name=value.path),
                )


def _counterparts(npu: H5Op, golden: H5Op) -> dict[int, H5Value]:
    """The benchmark's tensors by those (their ids) of the NPU's op: of one name, else of one that devices differ in."""
    free = {(value.direction, value.name): value for value in golden.tensors}
    matched: dict[int, H5Value] = {}
    for value in npu.tensors:
        if (value.direction, value.name) in free:
            matched[id(value)] = free.pop((value.direction, value.name))
    for value in npu.tensors if npu.type != golden.type else ():
        above, _, last = value.name.rpartition("/")
        renamed = "/".join(filter(None, (above, _OTHER_NAME.get(last, last))))
        if id(value) not in matched and (value.direction, renamed) in free:
            matched[id(value)] = free.pop((value.direction, renamed))
    return matched


def unpaired(op: H5Op, reason: Message, *, is_golden: bool = False) -> Iterator[Pair]:
    """A row for each tensor of an op for which the other side has nothing; `is_golden` for an op of the benchmark."""
    missing = Status.NO_NPU_DUMP if is_golden else Status.NO_BENCHMARK
    for value in op.tensors:
        yield replace(
            _row(None, op, slot=value.slot) if is_golden else _row(op, None, slot=value.slot),
            npu=None if is_golden else value.tensor,
            golden=value.tensor if is_golden else None,
            golden_tensor=value.path if is_golden else "",
            shape=None if value.tensor is None else value.tensor.shape,
            status=missing if value.tensor is not None else Status.UNREADABLE,
            reason=value.reason or reason,
        )


def _row(npu: H5Op | None, golden: H5Op | None, *, index: int | None = None, slot: str = "") -> Pair:
    """A row with names only; of an op that the NPU dump does not have, those of the benchmark's."""
    op = npu or golden
    assert op is not None
    return Pair(
        index=op.seq if index is None else index,
        op_name=op.name,
        op_type=op.type,
        npu_ops=NO_OPS if npu is None else (npu.name,),
        golden_ops=NO_OPS if golden is None else (golden.name,),
        slot=slot,
    )


def _only_side(npu: H5Op | None, golden: H5Op | None, end: int) -> Iterator[Pair]:
    """The row of an op that only one side has, if it has a tensor."""
    if npu is not None and npu.tensors:
        reason = Message("row.data.h5_no_benchmark_op", op=npu.name)
        yield replace(_row(npu, None), status=Status.NO_BENCHMARK, reason=reason)
    elif golden is not None and golden.tensors:
        reason = Message("row.data.h5_no_npu_op", op=golden.name)
        row = _row(None, golden, index=end)
        yield replace(row, golden_tensor=golden.name, status=Status.NO_NPU_DUMP, reason=reason)


def _pair(npu: H5Op, golden: H5Op, value: H5Value, other: H5Value | None) -> Pair:
    row = replace(
        _row(npu, golden, slot=value.slot),
        npu=value.tensor,
        shape=None if value.tensor is None else value.tensor.shape,
    )
    if other is None:
        reason = Message("row.data.h5_no_slot", op=golden.name, slot=value.slot)
        return replace(row, status=Status.NO_BENCHMARK, reason=reason)
    row = replace(row, golden=other.tensor, golden_tensor=other.path)
    if value.tensor is None or other.tensor is None:
        return replace(row, status=Status.UNREADABLE, reason=value.reason or other.reason)
    try:
        npu_tensor, golden_tensor, alignment = align_h5(value.tensor, other.tensor)
    except LayoutError as error:
        return replace(row, status=status_of(error), reason=error.reason)
    notes = (value.note, other.note, _types_note(value, other), alignment.note)
    return replace(
        row,
        npu=npu_tensor,
        golden=golden_tensor,
        npu_plan=alignment.npu_plan,
        golden_plan=alignment.golden_plan,
        error_shape=other.tensor.shape,
        reason=joined(tuple(note for note in notes if note is not None)),
    )


def _types_note(value: H5Value, other: H5Value) -> Message | None:
    """Return a note on types that the vendor does not compare, as their values can hardly be equal."""
    npu_type, golden_type = (
        SCALAR_TYPES.get(side.scalar_type, str(side.scalar_type)) if side.scalar_type is not None else ""
        for side in (value, other)
    )
    types = {npu_type, golden_type}
    if "" in types or len(types) == 1 or any(types <= alike for alike in ALIKE_TYPES):
        return None
    return Message("row.data.types_differ", npu=npu_type, golden=golden_type)


def align_h5(npu: Tensor, golden: Tensor) -> tuple[Tensor, Tensor, Alignment]:
    """Return the plans to read two tensors element by element, in C order where their shapes differ.

    Parameters
    ----------
    npu, golden : Tensor
        Plain tensors, of which one at least is of a `.h5` file.

    Returns
    -------
    tuple of Tensor, Tensor, Alignment
        Both tensors as they have to be accessed for the plans.

    Raises
    ------
    LayoutError
        There is no common order; SizeMismatchError where the numbers of elements differ.
    """
    npu_is_complex, golden_is_complex = (data_types.BY_NAME[tensor.dtype].is_complex for tensor in (npu, golden))
    if npu_is_complex != golden_is_complex:
        raise LayoutError("layout.one_complex", npu=npu.dtype, golden=golden.dtype)
    if prod(npu.shape) != prod(golden.shape):
        raise SizeMismatchError("layout.different_sizes", npu=size_of(npu.shape), golden=size_of(golden.shape))
    flat = layouts.flat_plan(npu.size)
    if npu.shape == golden.shape:
        plans = [layouts.own_plan(tensor) for tensor in (npu, golden)]
        if all(plan.is_flat for plan in plans):
            plans = [flat, flat]
        return npu, golden, Alignment(plans[0], plans[1], npu.shape)
    npu_gathered, golden_gathered = (
        None if tensor.fortran_order else in_logical_order(tensor) for tensor in (npu, golden)
    )
    if npu_gathered is None or golden_gathered is None:
        raise LayoutError("layout.no_common_order", npu=npu.shape, golden=golden.shape)
    note = None
    if layouts.squeezed(npu.shape) != layouts.squeezed(golden.shape):
        note = Message("row.data.in_element_order", npu=npu.shape, golden=golden.shape)
    return npu_gathered, golden_gathered, Alignment(flat, flat, npu.shape, note)


# --- looking up by name ---


NPU, BENCHMARK = "NPU", "benchmark"
#: A name as it is in the file.
_OWN_NAME = re.compile(r"/?[A-Za-z_]\w*/\d+(/.*)?", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class H5Side:
    """A dump of the data folder, and what stands for it on the other side where there is something."""

    dump: H5Dump
    side: str
    other: H5Dump | None = None
    matched: Matched | None = None

    def pairs_of(self, op: H5Op) -> tuple[Pair, ...]:
        """A row for each tensor of an op, as `vc` has them."""
        golden = self.counterpart(op)
        if golden is None:
            why = (
                Message("row.data.h5_no_other_dump")
                if self.other is None
                else Message("row.data.h5_no_counterpart", op=op.name)
            )
            is_golden = self.side == BENCHMARK or (not self.side and self.dump.device in ("GPU", "CPU"))
            return tuple(unpaired(op, why, is_golden=is_golden))
        return tuple(pairs_of(OpMatch(op, golden), op.seq, compare_inputs=self.dump.has_inputs))

    def counterpart(self, op: H5Op) -> H5Op | None:
        """The benchmark's op that stands for this one."""
        return None if self.matched is None else self.matched.counterpart(op)


@dataclass(frozen=True, slots=True, kw_only=True)
class H5Data:
    """All dumps of a data folder, the NPU's first, and the files that could not be read."""

    sides: tuple[H5Side, ...]
    problems: tuple[Message, ...] = ()


def load_h5_data(npu: Sequence[str], golden: Sequence[str], pairs: Sequence[tuple[str, str]]) -> H5Data:
    """Reads the dumps of both sides; `pairs` are the files that are compared with each other.

    A file that cannot be read is one of `problems`, unless nothing can be: then its error is raised.
    """
    read: dict[str, H5Dump] = {}
    errors: list[PrecisionToolError] = []
    for path in dict.fromkeys((*npu, *golden)):
        try:
            read[path] = read_h5(path)
        except PrecisionToolError as error:
            errors.append(error)
    if errors and not read:
        raise errors[0]
    partner = dict(pairs)
    sides = []
    for path in npu:
        if path in read:
            other = read.get(partner.get(path, ""))
            matched = None if other is None else match_ops(read[path], other)
            sides.append(H5Side(dump=read[path], side=NPU, other=other, matched=matched))
    sides += [H5Side(dump=read[path], side=BENCHMARK) for path in golden if path in read]
    return H5Data(sides=tuple(sides), problems=tuple(error.advice_message for error in errors))


@dataclass(frozen=True, slots=True, kw_only=True)
class H5Name:
    """A parsed name: the file, if it names one, and the path in it, as `/Addmm/4/output`."""

    file: str = ""
    inside: str = ""


def is_own_name(name: str) -> bool:
    """Return whether an op or a data set is named as it is in the file."""
    return _OWN_NAME.fullmatch(name) is not None


def parse_h5_name(text: str) -> H5Name | None:
    """`FILE.h5`, `FILE.h5:/Addmm/4/output/result` or `/Addmm/4`; None for what can be no name in a `.h5` file."""
    if PYTORCH.owns(text):
        return H5Name(file=text)
    for position, char in enumerate(text):
        if char == ":" and PYTORCH.owns(text[:position]):
            return H5Name(file=text[:position], inside=text[position + 1 :])
    return H5Name(inside=text) if "\0" not in text else None


@dataclass(frozen=True, slots=True, kw_only=True)
class H5Hit:
    """An op that was found; `values` are those of it that were asked for, all where none was named."""

    side: H5Side
    op: H5Op
    values: tuple[H5Value, ...]
    #: Whether less than the whole op was asked for.
    is_part: bool


def find_by_name(
    name: str, files: Sequence[str], load: Callable[[], H5Data | None], *, many: bool = False
) -> tuple[H5Hit, ...]:
    """The ops and data sets of a name: in a file that it names, else in the dumps of the data folder.

    `files` are those of the data folder, `load` reads them. Those of the NPU are found, each with its counterpart; of
    the benchmark only if the NPU has none of the name.
    """
    request = parse_h5_name(name)
    if request is not None and request.file:
        sides = _sides_of_file(request.file, files, load)
        return find_h5(sides, request.inside, many=many) if request.inside else _all_of(sides)
    data = load()
    if data is None:
        raise DataNotFoundError("data.no_pytorch_dump", name=name)
    npu = [side for side in data.sides if side.other is not None] or list(data.sides)
    try:
        return find_h5(npu, name, many=many)
    except DataNotFoundError:
        return find_h5(data.sides, name, many=many)


def _sides_of_file(path: str, files: Sequence[str], load: Callable[[], H5Data | None]) -> tuple[H5Side, ...]:
    """The dump of a file, which may be called as one of the data folder, with its counterpart where it has one."""
    is_known = real_path(path) in map(real_path, files)
    data = load() if is_known or not exists(path) else None
    sides = () if data is None else data.sides
    matching = tuple(side for side in sides if _is_path(side.dump.path, path))
    return matching or (H5Side(dump=read_h5(path), side=""),)


def _is_path(listed: str, path: str) -> bool:
    """Return whether a path, or merely a file name, is that of a listed file."""
    return posixpath.basename(listed) == path or real_path(listed) == real_path(path)


def find_h5(sides: Iterable[H5Side], name: str, *, many: bool = False) -> tuple[H5Hit, ...]:
    """The ops, or data sets, of this name in each dump: `/Addmm/4/output/result`, `Addmm/4`, or a part of one.

    UsageError if a part fits several ops of one dump, unless `many` may be; DataNotFoundError if nothing fits, with
    the closest names.
    """
    sides = tuple(sides)
    hits = [hit for side in sides for hit in _find_in(side, name)]
    if not hits:
        raise _not_found(sides, name)
    for side in sides:
        ops = [hit.op.name for hit in hits if hit.side is side]
        if len(ops) > 1 and not many:
            raise UsageError("data.several_h5_ops", name=name, count=len(ops), ops=ops)
    return tuple(hits)


def _all_of(sides: Iterable[H5Side]) -> tuple[H5Hit, ...]:
    """Every op of some dumps."""
    return tuple(H5Hit(side=side, op=op, values=op.values, is_part=False) for side in sides for op in side.dump.ops)


def _exact_ops(side: H5Side, parts: Sequence[str]) -> list[H5Op]:
    """The op that the parts of a name begin with, as `Addmm`, `4`."""
    if len(parts) < 2 or not is_number(parts[1]):
        return []
    return [op for op in side.dump.ops if op.seq == int(parts[1]) and op.type == parts[0]]


def _values_named(op: H5Op, place: Sequence[str]) -> tuple[H5Value, ...]:
    """The data sets of an op that a path in it leads to.

    `ac` calls them without `input` and `output`, which may be left out where only one of the two has such a path.
    """

    def at(*place: str) -> tuple[H5Value, ...]:
        inside = "/".join((op.name, *place))
        return tuple(value for value in op.values if value.path == inside or value.path.startswith(f"{inside}/"))

    short = [values for direction in (INPUT, OUTPUT) if (values := at(direction, *place))]
    return at(*place) or (short[0] if len(short) == 1 else ())


def _not_found(sides: Sequence[H5Side], name: str) -> DataNotFoundError:
    """Return the error that lists the data sets of the op if the name begins with one, else the closest ops."""
    parts = [part for part in name.split("/") if part]
    values = list(dict.fromkeys(value.path for side in sides for op in _exact_ops(side, parts) for value in op.values))
    candidates = values or list(dict.fromkeys(op.name for side in sides for op in side.dump.ops))
    close = difflib.get_close_matches(name, candidates, n=5, cutoff=0.4) or candidates[:5]
    dumps = [Message("note.data.ops_of", ops=len(side.dump.ops), path=side.dump.path) for side in sides]
    return DataNotFoundError("data.no_h5_name", name=name, dumps=dumps, closest=close)


def _find_in(side: H5Side, name: str) -> list[H5Hit]:
    """The exact op, or what is inside it; else every op that a part of a name fits."""
    parts = [part for part in name.split("/") if part]
    exact = _exact_ops(side, parts)
    for op in exact:
        values = _values_named(op, parts[2:])
        if values:
            return [H5Hit(side=side, op=op, values=values, is_part=len(parts) > 2)]
    if exact:
        return []
    if not parts:
        return []
    number, fits = op_number(name), pattern(name)
    by_type = [op for op in side.dump.ops if op.type == name.strip("/")]
    ops = by_type or [op for op in side.dump.ops if (fits(op.name) if number is None else op.seq == number)]
    return [H5Hit(side=side, op=op, values=op.values, is_part=False) for op in ops]


# --- lists ---


@dataclass(frozen=True, slots=True, kw_only=True)
class H5Row:
    """An op that fits, and of its values those that do."""

    op: H5Op
    values: tuple[H5Value, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class H5Listing:
    """The ops of one dump that fit, in the order they ran."""

    side: H5Side
    rows: tuple[H5Row, ...]

    @property
    def values(self) -> int:
        """Number of data sets that fit."""
        return sum(len(row.values) for row in self.rows)


def list_h5(
    sides: Sequence[H5Side], name: str | None, op_type: str | None, *, of_ops: bool = False
) -> tuple[H5Listing, ...]:
    """The ops and data sets of each dump that fit both patterns, which may be None. DataNotFoundError if none does.

    With `of_ops` the name is that of an op, not of a data set in it.
    """
    fits_name, fits_type = pattern(name or ""), pattern(op_type or "")
    number = None if name is None else op_number(name)

    def fitting(op: H5Op) -> tuple[H5Value, ...]:
        if not fits_type(op.type) or number not in (None, op.seq):
            return ()
        if number is not None or fits_name(op.name):
            return op.values
        return () if of_ops else tuple(value for value in op.values if fits_name(value.path))

    listings = []
    for side in sides:
        rows = tuple(H5Row(op=op, values=values) for op in side.dump.ops if (values := fitting(op)))
        listings.append(H5Listing(side=side, rows=rows))
    if not any(listing.rows for listing in listings):
        patterns = " ".join(f"{option} {text}" for option, text in (("-n", name), ("-t", op_type)) if text is not None)
        op_types = list(dict.fromkeys(op.type for side in sides for op in side.dump.ops))
        close = difflib.get_close_matches(op_type or name or "", op_types, n=5, cutoff=0.4)
        raise DataNotFoundError(
            "data.no_h5_fit",
            of_ops=of_ops,
            dumps=len(sides),
            patterns=patterns,
            closest=close,
            command="ls" if of_ops else "ls dump",
        )
    return tuple(listings)
