"""One NPU tensor and its benchmark tensor as a row, with the reason where they cannot be compared."""

from __future__ import annotations

from precision_tool.lib.model.changed import changed
from precision_tool.lib.model.comparison import Pair, Status
from precision_tool.lib.model.graph import TensorDesc
from precision_tool.lib.model.tensor import AnyTensor, Tensor, TensorStatistics
from precision_tool.lib.numbers import data_types
from precision_tool.lib.numbers.layouts import LayoutError
from precision_tool.lib.pairing.align import SizeMismatchError, align
from precision_tool.lib.pairing.origins import NoOrigin, Origin
from precision_tool.lib.sources.dumps import BenchmarkSide, Missing


def without(pair: Pair, status: Status, reason: str) -> Pair:
    """The row without a comparison, and why."""
    return changed(pair, status=status, reason=reason)


def pair_with_origin(
    row: Pair,
    tensor: AnyTensor | Missing,
    origin: Origin | NoOrigin,
    desc: TensorDesc | None,
    benchmark: BenchmarkSide,
    orders: dict[str, str] | None = None,
) -> Pair:
    """The row of one tensor whose origin is known, or why there is nothing to compare it with.

    `orders` has, and gets, the layouts that benchmark tensors were found to be in.
    """
    if isinstance(origin, NoOrigin):
        return without(_with_npu(row, tensor), origin.status, origin.reason)
    find = benchmark.output_of if origin.is_real else benchmark.output
    golden = find(origin.op_name, origin.index)
    layout, shape = origin.layout, origin.shape
    if desc is not None and desc.origin_layout:
        # The tensor's own description tells how this copy of it is laid out.
        layout, shape = desc.origin_layout, shape if desc.origin_shape is None else desc.origin_shape
    name = f"{origin.op_name}:{origin.index}"
    return pair_up(row, tensor, golden, layout, shape, {} if orders is None else orders, name)


def _with_npu(row: Pair, tensor: AnyTensor | Missing) -> Pair:
    if isinstance(tensor, Missing):
        return row
    return changed(row, npu=tensor, shape=tensor.shape)


def pair_up(
    row: Pair,
    tensor: AnyTensor | Missing,
    golden: AnyTensor | Missing,
    origin_layout: str | None,
    origin_shape: tuple[int, ...] | None,
    orders: dict[str, str],
    golden_tensor: str = "",
) -> Pair:
    """The row of a tensor and its benchmark tensor: how both are read to lie alike, or why they cannot be compared."""
    if isinstance(tensor, Missing):
        row = changed(row, golden_tensor=golden_tensor, declared=tensor.declared)
        return without(row, Status.UNREADABLE, tensor.reason)
    found = None if isinstance(golden, Missing) else golden
    row = changed(row, golden_tensor=golden_tensor, npu=tensor, shape=tensor.shape, golden=found)
    if isinstance(golden, Missing):
        return without(row, Status.UNREADABLE if golden.damaged else Status.NO_BENCHMARK, golden.reason)
    for side, what in ((tensor, "NPU dump"), (golden, "benchmark")):
        if isinstance(side, TensorStatistics):
            return without(row, Status.STATISTICS_ONLY, f"the {what} holds only statistics of this tensor")
        if not data_types.BY_NAME[side.dtype].is_numeric:
            return without(row, Status.NOT_NUMERIC, f"the {what} tensor is of type {side.dtype}, which has no numbers")
    assert isinstance(tensor, Tensor)
    assert isinstance(golden, Tensor)
    try:
        alignment = align(tensor, golden, origin_layout, origin_shape, orders.get(row.golden_tensor, ""))
    except SizeMismatchError as error:
        return without(row, Status.SIZE_MISMATCH, str(error))
    except LayoutError as error:
        return without(row, Status.LAYOUT, str(error))
    if alignment.golden_layout:
        orders.setdefault(row.golden_tensor, alignment.golden_layout)
    return changed(
        row,
        npu_plan=alignment.npu_plan,
        golden_plan=alignment.golden_plan,
        shape=alignment.shape,
        error_shape=alignment.error_shape(golden),
        reason=alignment.note,
    )
