"""Tensors that the user names: by a file, a slot of a dump file, or an op, each with the order it is read in."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from precision_tool.lib.compare.convert import slots_of
from precision_tool.lib.compare.pairwise import compare_pairs
from precision_tool.lib.compare.scheduler import THIS_THREAD, Progress, Resources, map_tasks
from precision_tool.lib.compare.tensor_figures import TensorFigures, figures_of
from precision_tool.lib.data.axis_alignment import Declared, SizeMismatchError, align
from precision_tool.lib.data.kinds import PYTORCH
from precision_tool.lib.data.neighbourhood import described_inputs
from precision_tool.lib.data.pytorch_pairing import align_h5
from precision_tool.lib.io import data_types, layouts
from precision_tool.lib.io.files import exists
from precision_tool.lib.io.layouts import LayoutError, Reading, reading_of
from precision_tool.lib.io.readers import has_one_tensor, open_op_dump
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, PrecisionToolError
from precision_tool.lib.model.comparison import Pair, Summary
from precision_tool.lib.model.finding import joined
from precision_tool.lib.model.graph import Op, TensorDesc
from precision_tool.lib.model.pytorch import H5Op, H5Value
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.tensor import AnyTensor, Plan, Tensor

#: Stands where the name of a layout does, of values in the order of the benchmark's axes.
BENCHMARK_ORDER = "in the benchmark's order"
_SLOT = re.compile(r"(?P<name>.+):(?P<slot>(?:input|output):\d{1,5})", re.ASCII | re.DOTALL)

NPU, BENCHMARK = "NPU", "benchmark"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTensor:
    """A tensor and where it is from. Without a tensor, or without a reading of one, `reason` says why.

    `slot` is empty for a file that is one tensor, `side` for a file that was named itself. `origin_layout` and
    `origin_shape` are what the graph tells.
    """

    path: str
    slot: str = ""
    side: str = ""
    op_name: str = ""
    run: str = ""
    tensor: AnyTensor | None = None
    reading: Reading | None = None
    reason: Message | None = None
    origin_layout: str | None = None
    origin_shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A named tensor and its figures; None where `reason` says why there are none."""

    named: NamedTensor
    figures: TensorFigures | None = None
    reason: Message | None = None


def split_slot(text: str) -> tuple[str, str]:
    """`FILE:output:0` as name and slot; the slot is empty without one, or where there is a file of the whole name."""
    match = None if exists(text) else _SLOT.fullmatch(text)
    if match is None:
        return text, ""
    side, _, number = match["slot"].partition(":")
    return match["name"], f"{side}:{int(number)}"


def tensors_of_file(path: str, slot: str = "") -> list[NamedTensor]:
    """Return the tensors of a file, or the one in `slot`; FormatError for a file that cannot be read at all."""
    dump = open_op_dump(path)
    tensors = []
    is_single = has_one_tensor(path)
    for name, tensor in slots_of(dump):
        if slot not in ("", name):
            continue
        source = NamedTensor(path=path, slot="" if is_single else name, op_name=dump.op_name)
        tensors.append(replace(source, reason=tensor) if isinstance(tensor, Message) else _read(source, tensor))
    if not tensors:
        raise DataNotFoundError.of(path, "compare.no_slot", slot=slot, slots=[name for name, _ in slots_of(dump)])
    return tensors


def tensors_of_pair(
    pair: Pair, run: str, origin_layout: str | None = None, origin_shape: tuple[int, ...] | None = None
) -> tuple[NamedTensor, NamedTensor | None]:
    """Return both sides of a row; the second is None where there is no benchmark tensor.

    `origin_layout` and `origin_shape` are what the graph tells of the NPU's tensor.
    """
    source = NamedTensor(
        path="" if pair.npu is None else pair.npu.path,
        slot=pair.slot,
        side=NPU,
        op_name=pair.op_name,
        run=run,
        origin_layout=origin_layout,
        origin_shape=origin_shape,
    )
    npu = replace(source, reason=pair.reason) if pair.npu is None else _read(source, pair.npu)
    if isinstance(pair.npu, Tensor) and pair.npu_plan is not None and not layouts.is_plain(pair.npu.layout):
        shape = pair.error_shape if pair.npu_plan.is_flat else pair.npu_plan.logical_shape
        if prod(shape) == prod(pair.npu_plan.logical_shape):
            npu = replace(npu, reading=Reading(pair.npu_plan, shape, BENCHMARK_ORDER, pair.reason))
    if pair.golden is None:
        return replace(npu, reason=npu.reason or pair.reason), None
    golden = NamedTensor(path=pair.golden.path, slot=pair.golden_tensor, side=BENCHMARK, run=run)
    return npu, _read(golden, pair.golden)


def read_named(
    tensor: AnyTensor, origin_layout: str | None = None, origin_shape: tuple[int, ...] | None = None
) -> NamedTensor:
    """Return a tensor of a dump with the order it is read in; the layout and shape are those that the graph tells."""
    source = NamedTensor(path=tensor.path, side=NPU, origin_layout=origin_layout, origin_shape=origin_shape)
    return _read(source, tensor)


def _read(source: NamedTensor, tensor: AnyTensor) -> NamedTensor:
    if not isinstance(tensor, Tensor):
        return replace(source, tensor=tensor)
    if not data_types.BY_NAME[tensor.dtype].is_numeric:
        reason = Message("row.compare.decoded.no_numbers", dtype=tensor.dtype)
        return replace(source, tensor=tensor, reason=reason)
    reading = reading_of(tensor, source.origin_layout, source.origin_shape)
    return replace(source, tensor=tensor, reading=reading)


def named_value(path: str, op: H5Op, value: H5Value, side: str = "") -> NamedTensor:
    """Return a data set of a PyTorch dump."""
    source = NamedTensor(path=path, slot=value.slot, side=side, op_name=op.name, reason=value.reason)
    if value.tensor is None:
        return source
    named = _read(source, value.tensor)
    return replace(named, reading=replace(named.reading, note=value.note)) if named.reading and value.note else named


def view_of(named: NamedTensor, *, bins: int, first: int) -> View:
    """Return the figures of a tensor. One that cannot be read is a view with the reason."""
    if named.tensor is None or (isinstance(named.tensor, Tensor) and named.reading is None):
        return View(named=named, reason=named.reason)
    plan: Plan | None = None if named.reading is None else named.reading.plan
    try:
        return View(named=named, figures=figures_of(named.tensor, plan, bins=bins, first=first))
    except PrecisionToolError as error:
        return View(named=named, reason=error.advice_message)
    except MemoryError:
        return View(named=named, reason=Message("row.compare.no_memory"))


def views_of(named: Sequence[NamedTensor], *, bins: int, first: int, resources: Resources = THIS_THREAD) -> list[View]:
    """As `view_of` of each, shared out among processes or by any executor."""
    with resources.open() as pool:
        return map_tasks(partial(view_of, bins=bins, first=first), [(each,) for each in named], pool)


def pair_up(npu: NamedTensor, golden: NamedTensor) -> Pair:
    """Two tensors as a pair to compare; FormatError says why they cannot be."""
    for named in (npu, golden):
        if named.tensor is None:
            raise FormatError.of(named.path, "compare.no_tensor", what=_name(named), reason=named.reason)
        if not isinstance(named.tensor, Tensor):
            raise FormatError.of(named.path, "compare.statistics_only", what=_name(named))
        if not data_types.BY_NAME[named.tensor.dtype].is_numeric:
            raise FormatError.of(named.path, "compare.no_tensor", what=_name(named), reason=named.reason)
    npu_tensor, golden_tensor = npu.tensor, golden.tensor
    assert isinstance(npu_tensor, Tensor)
    assert isinstance(golden_tensor, Tensor)
    if PYTORCH.owns(npu_tensor.path) or PYTORCH.owns(golden_tensor.path):
        return _pair_h5(npu, golden, npu_tensor, golden_tensor)
    source = npu if npu.origin_layout else golden
    try:
        alignment = align(npu_tensor, golden_tensor, Declared(source.origin_layout, source.origin_shape))
    except SizeMismatchError as error:
        kind, what = "compare.different_sizes", _not_compared(npu, golden)
        raise FormatError.of(npu.path, kind, what=what, reason=error.reason) from error
    except LayoutError as error:
        kind, what = "compare.different_layouts", _not_compared(npu, golden)
        raise FormatError.of(npu.path, kind, what=what, reason=error.reason) from error
    return replace(
        _unread_pair(npu, golden),
        npu=npu_tensor,
        golden=golden_tensor,
        npu_plan=alignment.npu_plan,
        golden_plan=alignment.golden_plan,
        shape=alignment.shape,
        error_shape=alignment.error_shape(golden_tensor),
        reason=alignment.note,
    )


def _not_compared(npu: NamedTensor, golden: NamedTensor) -> Message:
    return Message("note.compare.cannot_compare", npu=_name(npu), golden=_name(golden))


def _unread_pair(npu: NamedTensor, golden: NamedTensor) -> Pair:
    """Return a pair as far as the names alone describe it."""
    return Pair(
        index=0,
        op_name=npu.op_name or posixpath.basename(npu.path),
        op_type="",
        npu_ops=(_name(npu),),
        golden_ops=(_name(golden),),
        slot=npu.slot,
    )


def _pair_h5(npu: NamedTensor, golden: NamedTensor, npu_tensor: Tensor, golden_tensor: Tensor) -> Pair:
    """Two tensors of which one at least is of a PyTorch dump."""
    what = _not_compared(npu, golden)
    for tensor in (npu_tensor, golden_tensor):
        if not layouts.is_plain(tensor.layout):
            kind = "compare.blocked_layout"
            raise FormatError.of(tensor.path, kind, what=what, file=tensor.path, layout=tensor.layout)
    try:
        npu_tensor, golden_tensor, alignment = align_h5(npu_tensor, golden_tensor)
    except LayoutError as error:
        kind = "compare.different_sizes"
        raise FormatError.of(npu_tensor.path, kind, what=what, reason=error.reason) from error
    return replace(
        _unread_pair(npu, golden),
        npu=npu_tensor,
        golden=golden_tensor,
        npu_plan=alignment.npu_plan,
        golden_plan=alignment.golden_plan,
        shape=npu_tensor.shape,
        error_shape=golden_tensor.shape,
        reason=alignment.note,
    )


def _name(named: NamedTensor) -> str:
    if isinstance(named.tensor, Tensor) and named.tensor.dataset:
        return f"{named.path}:{named.tensor.dataset}"
    return f"{named.path}:{named.slot}" if named.slot and named.side != BENCHMARK else named.path


# --- tensors of one op ---


def compare_op(op: Op, pairs: Sequence[Pair], workers: int = 0, progress: Progress | None = None) -> list[Row]:
    """One row a pair, in order. Tensors without a partner, or one that fits, have their own figures all the same.

    What cannot be read, or only with its padding, is said in the row's reason.
    """
    return [_completed(op, row) for row in compare_pairs(pairs, Resources(workers, progress=progress))]


def _completed(op: Op, row: Row) -> Row:
    notes = [] if row.reason is None else [row.reason]
    npu, golden = row.npu, row.golden
    if npu is None and row.pair.npu is not None:
        npu = _summary(row.pair.npu, _desc(op, row.pair.slot), notes)
    if golden is None and row.pair.golden is not None:
        golden = _summary(row.pair.golden, None, notes)
    return replace(row, npu=npu, golden=golden, reason=joined(tuple(notes)))


def _desc(op: Op, slot: str) -> TensorDesc | None:
    """Return the graph's description of the input or output that a slot names."""
    kind, _, number = slot.partition(":")
    descs = dict(enumerate(op.output_descs)) if kind == "output" else described_inputs(op)
    return descs.get(int(number)) if number.isdecimal() else None


def _summary(tensor: AnyTensor, desc: TensorDesc | None, notes: list[Message]) -> Summary | None:
    plan = None
    try:
        if isinstance(tensor, Tensor):
            if not data_types.BY_NAME[tensor.dtype].is_numeric:
                return None
            layout, shape = (None, None) if desc is None else (desc.origin_layout, desc.origin_shape)
            reading = reading_of(tensor, layout, shape)
            plan = reading.plan
            if reading.note:
                notes.append(Message("row.compare.figures", note=reading.note))
        return figures_of(tensor, plan).summary
    except PrecisionToolError as error:
        if error.advice_message not in notes:
            notes.append(error.advice_message)
        return None
