"""Which op and tensor of a PyTorch dump belongs to which of the other device's, by op and order (FORMATS.md §3).

The names of ops and parameters that differ between devices are those of the vendor's comparison; what goes beyond
them is said where it stands.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from precision_tool.lib.formats.h5 import in_logical_order
from precision_tool.lib.model.comparison import NO_OPS, Pair, Status
from precision_tool.lib.model.pytorch import ALIKE_TYPES, INPUT, OUTPUT, SCALAR_TYPES, H5Dump, H5Op, H5Value
from precision_tool.lib.model.tensor import Plan, Tensor
from precision_tool.lib.model.wording import counted
from precision_tool.lib.numbers import data_types, layouts

#: What the name of one and the same op begins with on different devices. Mkldnn, PyTorch's own convolution on a CPU,
#: is in no document.
_DEVICE_PREFIX = re.compile(r"(?:Npu|Cudnn|Thnn|Native|Mkldnn)(?=[A-Z])")
#: Ops whose names differ in more than that.
_SAME_OP = {"ConvDepthwise2DBackward": "ConvolutionBackward"}
#: Parameters that are called otherwise by an op's counterpart.
_OTHER_NAME = {"self": "input", "input": "self", "eps": "epsilon", "epsilon": "eps"}

#: What stands for the side that has nothing.


def family(op_type: str) -> str:
    """What an op is called whatever the device: `CudnnConvolutionBackward` and `NpuConvolutionBackward` are one."""
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
    notes: tuple[str, ...] = ()

    def counterpart(self, op: H5Op) -> H5Op | None:
        """The benchmark's op that stands for an NPU op."""
        return next((one.golden for one in self.ops if one.npu is op), None)


def match_ops(npu: H5Dump, golden: H5Dump) -> Matched:
    """Pairs ops: the k-th of a name, or of a family of names, with the k-th.

    A name that ran as often on both sides stands for itself. Of an NPU dump without inputs, which was made by loading
    the benchmark's dump, the sequence numbers are the benchmark's.
    """
    partner: dict[int, H5Op] = {}
    taken: set[int] = set()
    notes: list[str] = []

    def pair(left: Sequence[H5Op], right: Sequence[H5Op]) -> None:
        for one, other in zip(left, right, strict=False):
            partner[id(one)] = other
            taken.add(id(other))

    if not npu.has_inputs and golden.has_inputs:
        by_seq = {(family(op.type), op.seq): op for op in golden.ops}
        same = [(op, by_seq[key]) for op in npu.ops if (key := (family(op.type), op.seq)) in by_seq]
        pair([op for op, _ in same], [op for _, op in same])
        notes.append("the NPU dump has no inputs, so it was made by loading the other: matched by sequence number")
    names = Counter(op.type for op in npu.ops if id(op) not in partner)
    others = Counter(op.type for op in golden.ops if id(op) not in taken)
    for name in names:
        if names[name] == others[name]:
            pair(
                [op for op in npu.ops if op.type == name and id(op) not in partner],
                [op for op in golden.ops if op.type == name and id(op) not in taken],
            )
    left, right = defaultdict(list), defaultdict(list)
    for op in npu.ops:
        if id(op) not in partner:
            left[family(op.type)].append(op)
    for op in golden.ops:
        if id(op) not in taken:
            right[family(op.type)].append(op)
    for name in left:
        pair(left[name], right[name])
    differing = [name for name in left if right[name] and len(left[name]) != len(right[name])]
    if differing:
        name = differing[0]
        told = f"{name} {len(left[name])} times on the NPU, {len(right[name])} times in the benchmark"
        notes.append(
            f"{counted(len(differing), 'op')} did not run as often on both sides, so that their order may not tell "
            f"which belongs to which: {told}"
        )
    found = [OpMatch(op, partner.get(id(op))) for op in npu.ops]
    alone = [OpMatch(None, op) for op in golden.ops if id(op) not in taken]
    return Matched(ops=(*found, *alone), notes=tuple(notes))


def match_dumps(npu: H5Dump, golden: H5Dump) -> tuple[list[Pair], tuple[str, ...]]:
    """Every tensor of the NPU dump with its benchmark tensor, and what to say of the matching.

    An op without counterpart is one row. `Pair.index` is the sequence number in the NPU dump, of what it does not have
    the next after the last.
    """
    matched = match_ops(npu, golden)
    end = max((op.seq for op in npu.ops), default=-1) + 1
    pairs = [pair for one in matched.ops for pair in pairs_of(one, end, compare_inputs=npu.has_inputs)]
    parameters = sum(not value.is_tensor for op in npu.ops for value in op.values)
    notes = list(matched.notes)
    if parameters:
        notes.append(f"{counted(parameters, 'parameter')} of ops (flags, sizes, scalars) are not compared")
    return pairs, tuple(notes)


def pairs_of(match: OpMatch, end: int, *, compare_inputs: bool = True) -> Iterator[Pair]:
    """The rows of one op; `end` is the index of what the NPU dump does not have."""
    npu, golden = match.npu, match.golden
    if npu is None:
        assert golden is not None
        if golden.tensors:
            yield _alone(golden, end, Status.NO_NPU_DUMP, f"no op of the NPU dump belongs to {golden.name}")
        return
    if golden is None:
        if npu.tensors:
            yield _alone(npu, npu.seq, Status.NO_BENCHMARK, f"no op of the benchmark belongs to {npu.name}")
        return
    left = {(value.direction, value.name): value for value in npu.tensors}
    right = {(value.direction, value.name): value for value in golden.tensors}
    matched: dict[tuple[str, str], H5Value] = {}
    for direction, name in left:
        other = right.pop((direction, name), None)
        if other is not None:
            matched[direction, name] = other
    for direction, name in left:
        above, _, last = name.rpartition("/")
        renamed = "/".join(filter(None, (above, _OTHER_NAME.get(last, last))))
        if (direction, name) not in matched and npu.type != golden.type and (direction, renamed) in right:
            matched[direction, name] = right.pop((direction, renamed))
    for direction in (INPUT, OUTPUT):
        for value in (value for value in npu.tensors if value.direction == direction):
            yield _pair(npu, golden, value, matched.get((direction, value.name)))
        if direction == INPUT and not compare_inputs:
            continue
        for value in (value for (of, _), value in right.items() if of == direction):
            yield _missing(npu, golden, value)


def unpaired(op: H5Op, reason: str, *, is_golden: bool = False) -> Iterator[Pair]:
    """A row for each tensor of an op for which the other side has nothing; `is_golden` for an op of the benchmark."""
    missing = Status.NO_NPU_DUMP if is_golden else Status.NO_BENCHMARK
    for value in op.tensors:
        yield Pair(
            index=op.seq,
            op_name=op.name,
            op_type=op.type,
            npu_ops=NO_OPS if is_golden else (op.name,),
            golden_ops=(op.name,) if is_golden else NO_OPS,
            slot=value.slot,
            npu=None if is_golden else value.tensor,
            golden=value.tensor if is_golden else None,
            golden_tensor=value.path if is_golden else "",
            shape=None if value.tensor is None else value.tensor.shape,
            status=missing if value.tensor is not None else Status.UNREADABLE,
            reason=value.reason or reason,
        )


def _alone(op: H5Op, index: int, status: Status, reason: str) -> Pair:
    """The row of an op that only one side has."""
    is_npu = status is Status.NO_BENCHMARK
    return Pair(
        index=index,
        op_name=op.name,
        op_type=op.type,
        npu_ops=(op.name,) if is_npu else NO_OPS,
        golden_ops=NO_OPS if is_npu else (op.name,),
        golden_tensor="" if is_npu else op.name,
        status=status,
        reason=reason,
    )


def _unread_pair(npu: H5Op, golden: H5Op, value: H5Value) -> Pair:
    """What the names alone tell of a pair."""
    return Pair(
        index=npu.seq,
        op_name=npu.name,
        op_type=npu.type,
        npu_ops=(npu.name,),
        golden_ops=(golden.name,),
        slot=value.slot,
    )


def _missing(npu: H5Op, golden: H5Op, value: H5Value) -> Pair:
    """The row of a tensor that only the benchmark's op has."""
    return replace(
        _unread_pair(npu, golden, value),
        golden=value.tensor,
        golden_tensor=value.path,
        status=Status.NO_NPU_DUMP,
        reason=f"the NPU dump has no tensor for {value.path}",
    )


def _pair(npu: H5Op, golden: H5Op, value: H5Value, other: H5Value | None) -> Pair:
    pair = replace(
        _unread_pair(npu, golden, value),
        npu=value.tensor,
        golden=None if other is None else other.tensor,
        golden_tensor="" if other is None else other.path,
        shape=None if value.tensor is None else value.tensor.shape,
    )
    if other is None:
        return replace(pair, status=Status.NO_BENCHMARK, reason=f"{golden.name} of the benchmark has no {value.slot}")
    if value.tensor is None or other.tensor is None:
        return replace(pair, status=Status.UNREADABLE, reason=value.reason or other.reason)
    notes = [note for note in (value.note, other.note, _types_note(value, other)) if note]
    aligned = align_h5(value.tensor, other.tensor)
    if isinstance(aligned, Refused):
        return replace(pair, status=aligned.status, reason=aligned.reason)
    if aligned.note:
        notes.append(aligned.note)
    return replace(
        pair,
        npu=aligned.npu,
        golden=aligned.golden,
        npu_plan=aligned.npu_plan,
        golden_plan=aligned.golden_plan,
        error_shape=other.tensor.shape,
        reason="; ".join(notes),
    )


def _types_note(value: H5Value, other: H5Value) -> str:
    """That the two sides are of types whose values are hardly meant to be equal. The vendor does not compare them."""
    one, two = (
        SCALAR_TYPES.get(side.scalar_type, str(side.scalar_type)) if side.scalar_type is not None else ""
        for side in (value, other)
    )
    if not one or not two or one == two or any({one, two} <= alike for alike in ALIKE_TYPES):
        return ""
    return f"types differ: NPU {one}, benchmark {two}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Aligned:
    """Two tensors with the plans that bring them to one order."""

    npu: Tensor
    golden: Tensor
    npu_plan: Plan
    golden_plan: Plan
    note: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why two tensors are not compared."""

    status: Status
    reason: str


def align_h5(npu: Tensor, golden: Tensor) -> Aligned | Refused:
    """How two tensors are read element by element, in C order where their shapes differ."""
    one, two = (data_types.BY_NAME[tensor.dtype].is_complex for tensor in (npu, golden))
    shapes = f"NPU {list(npu.shape)}, benchmark {list(golden.shape)}"
    if one != two:
        return Refused(Status.LAYOUT, f"one side is complex: NPU {npu.dtype}, benchmark {golden.dtype}")
    if prod(npu.shape) != prod(golden.shape):
        return Refused(Status.SIZE_MISMATCH, f"different sizes: {shapes}")
    if npu.shape == golden.shape:
        plans = [tensor.plan or layouts.plain_plan(tensor.shape, tensor.fortran_order) for tensor in (npu, golden)]
        if all(plan.is_flat for plan in plans):
            plans = [layouts.flat_plan(npu.size)] * 2
        return Aligned(npu=npu, golden=golden, npu_plan=plans[0], golden_plan=plans[1])
    flat = [None if tensor.fortran_order else in_logical_order(tensor) for tensor in (npu, golden)]
    if flat[0] is None or flat[1] is None:
        return Refused(
            Status.LAYOUT, f"shapes differ, and chunks, strides or Fortran order leave no common order: {shapes}"
        )
    plan = layouts.flat_plan(npu.size)
    note = ""
    if [extent for extent in npu.shape if extent != 1] != [extent for extent in golden.shape if extent != 1]:
        note = f"shapes differ, compared in order of the elements: {shapes}"
    return Aligned(npu=flat[0], golden=flat[1], npu_plan=plan, golden_plan=plan, note=note)
