"""Gathers, scatters, segment sums and assignments: elements by their indices.

Sources: the prototypes of GE's selection_ops.h, matrix_calculation_ops.h, math_ops.h and state_ops.h; tf.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.ops.base import (
    Call,
    Doubles,
    Function,
    Input,
    Kind,
    NotComputedError,
    Output,
    Outputs,
    check_size,
    needed,
    op,
)
from precision_tool.lib.ops.movement import exact_output
from precision_tool.lib.ops.op_arguments import (
    Array,
    axis_of,
    common_shape,
    flag,
    floats,
    integer,
    required_numbers,
    single_number,
    typed,
    whole_numbers,
)

Indices = npt.NDArray[np.int64]


def indices_of(tensor: Input, limit: int | None = None) -> Indices:
    """An input of whole numbers, each at least 0 and below the limit."""
    if tensor.array.dtype.kind not in "iu":
        raise NotComputedError("data_type", name="indices", dtype=tensor.array.dtype.name)
    indices = tensor.array.astype(np.int64)
    if limit is not None and indices.size and not (indices.min() >= 0 and indices.max() < limit):
        raise NotComputedError("out_of_range", name="indices", value=f"{indices.min()} to {indices.max()}", limit=limit)
    return indices


# --- gathers ----------------------------------------------------------------------------------------------------------


@op("Gather", "GatherV2", "GatherV2D", "ResourceGather", kind=Kind.EXACT, inputs=("x", "indices", "axis"))
def gather(call: Call) -> Outputs:
    """Slices of x along an axis, in the order of the indices; leading batch axes are taken one by one."""
    x = needed(call, 0).array
    axes = whole_numbers(call, "axis", slot=2) or [0]
    axis = axis_of(call, axes[0], x.ndim)
    indices = indices_of(needed(call, 1), x.shape[axis])
    batch = integer(call, "batch_dims", default=0)
    batch += indices.ndim if batch < 0 else 0
    if not 0 <= batch <= min(axis, indices.ndim) or x.shape[:batch] != indices.shape[:batch]:
        raise NotComputedError("value_misfit", name="batch_dims", value=str(batch), shapes=(x.shape, indices.shape))
    check_size([*x.shape[:axis], *indices.shape[batch:], *x.shape[axis + 1 :]])
    if not batch:
        return exact_output(np.take(x, indices, axis))
    count = prod(x.shape[:batch])
    rows = x.reshape(count, *x.shape[batch:])
    rows_by_batch = indices.reshape(count, *indices.shape[batch:])
    taken = [np.take(row, places, axis - batch) for row, places in zip(rows, rows_by_batch, strict=True)]
    shape = (*x.shape[:axis], *indices.shape[batch:], *x.shape[axis + 1 :])
    return exact_output(np.stack(taken).reshape(shape) if count else np.zeros(shape, x.dtype))


@op("GatherNd", kind=Kind.EXACT, inputs=("x", "indices"))
def gather_nd(call: Call) -> Outputs:
    """Elements or slices of x that the last axis of the indices points to."""
    x = needed(call, 0).array
    places = _places(needed(call, 1), x.shape)
    check_size([*needed(call, 1).array.shape[:-1], *x.shape[len(places) :]])
    return exact_output(x[places] if places else np.broadcast_to(x, (*needed(call, 1).array.shape[:-1], *x.shape)))


@op("GatherElements", kind=Kind.EXACT, inputs=("x", "index"))
def gather_elements(call: Call) -> Outputs:
    """One element of x along an axis for each index."""
    x = needed(call, 0).array
    axis = axis_of(call, integer(call, "dim", default=0), x.ndim)
    index = indices_of(needed(call, 1), x.shape[axis])
    if index.ndim != x.ndim or any(size > x.shape[other] for other, size in enumerate(index.shape) if other != axis):
        raise NotComputedError("shape_misfit", name="indices", shape=index.shape, other="x", other_shape=x.shape)
    box = tuple(slice(None) if other == axis else slice(size) for other, size in enumerate(index.shape))
    return exact_output(np.take_along_axis(x[box], index, axis))


def _places(tensor: Input, shape: tuple[int, ...]) -> tuple[Indices, ...]:
    """The indices of each axis that the last axis of an input points into."""
    indices = indices_of(tensor)
    if indices.ndim < 1 or indices.shape[-1] > len(shape):
        raise NotComputedError("shape_misfit", name="indices", shape=indices.shape, other="x", other_shape=shape)
    places = tuple(indices[..., axis] for axis in range(indices.shape[-1]))
    for each, size in zip(places, shape, strict=False):
        if each.size and not (each.min() >= 0 and each.max() < size):
            raise NotComputedError("out_of_range", name="indices", value=f"{each.min()} to {each.max()}", limit=size)
    return places


# --- scatters ---------------------------------------------------------------------------------------------------------

_UPDATES: dict[str, Callable[[Array, tuple[Indices, ...], Array], None]] = {
    "Add": np.add.at,
    "Sub": np.subtract.at,
    "Mul": np.multiply.at,
    "Div": np.divide.at,
    "Max": np.maximum.at,
    "Min": np.minimum.at,
}


def _scattered(var: Array, places: tuple[Indices, ...], updates: Array, how: str) -> Output:
    """`var` with the updates worked in; for a sum with what is rounded on the way."""
    rest = var.shape[len(places) :]
    count = places[0].shape if places else ()
    try:
        updates = np.broadcast_to(updates, (*count, *rest))
    except ValueError:
        raise NotComputedError(
            "shape_expected", name="updates", shape=updates.shape, other_shape=(*count, *rest)
        ) from None
    result = var.copy()
    if how == "Update":
        return _overwritten(result, places, updates)
    _UPDATES[how](result, places, updates)
    if result.dtype.kind != "f" or how in ("Max", "Min"):
        return Output(array=result)
    if how in ("Mul", "Div"):
        return Output(array=result, summed=2 * np.abs(result))
    squares, counts = np.square(var), np.ones(var.shape)
    np.add.at(squares, places, np.square(updates))
    np.add.at(counts, places, 1.0)
    summed = np.where(counts > 1, _spread(result, squares, counts), 0.0)
    return Output(array=result, summed=summed, terms=np.sqrt(squares))


def _overwritten(result: Array, places: tuple[Indices, ...], updates: Array) -> Output:
    """Of two updates at one place either may win."""
    counts = np.zeros(result.shape[: len(places)], np.int64)
    np.add.at(counts, places, 1)
    result[places] = updates
    twice = (counts > 1).reshape(counts.shape + (1,) * (result.ndim - counts.ndim))
    return Output(array=result, doubtful=np.broadcast_to(twice, result.shape) if twice.any() else None)


def _spread(total: Doubles, squares: Doubles, counts: Doubles) -> Doubles:
    """`summed_of` where every element has its own number of terms."""
    spread = squares - total**2 / np.maximum(counts, 1)
    result: Doubles = np.sqrt(counts * total**2 / 3 + counts * np.maximum(spread, 0) / 6)
    return result


def _like(var: Array, value: Array) -> tuple[Array, Array]:
    """Both, where both are whole numbers or both are floating."""
    if (var.dtype.kind == "f") != (value.dtype.kind == "f"):
        raise NotComputedError("types_differ", name="value", dtype=value.dtype.name, value=var.dtype.name)
    return var, value.astype(var.dtype)


def _row_scatter(how: str) -> Function:
    def compute(call: Call) -> Outputs:
        var, updates = _like(typed(call, 0), typed(call, 2))
        if var.ndim < 1:
            raise NotComputedError("shape", name="var", shape=var.shape)
        return [_scattered(var, (indices_of(needed(call, 1), var.shape[0]),), updates, how)]

    return compute


def _nd_scatter(how: str) -> Function:
    def compute(call: Call) -> Outputs:
        var, updates = _like(typed(call, 0), typed(call, 2))
        return [_scattered(var, _places(needed(call, 1), var.shape), updates, how)]

    return compute


for _how in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Update"):
    _kind = Kind.SUM if _how in ("Add", "Sub") else Kind.ROUNDED if _how in ("Mul", "Div") else Kind.EXACT
    _names = ("var", "indices", "updates")
    op(f"Scatter{_how}", f"ResourceScatter{_how}", kind=_kind, inputs=_names)(_row_scatter(_how))
    _tensor = (f"TensorScatter{_how}",) if _how not in ("Mul", "Div") else ()
    op(f"ScatterNd{_how}", *_tensor, kind=_kind, inputs=_names)(_nd_scatter(_how))


@op("ScatterNd", "ScatterNdD", kind=Kind.SUM, inputs=("indices", "x", "shape"))
def scatter_nd(call: Call) -> Outputs:
    """Updates summed into zeros at the places that the last axis of the indices points to."""
    shape = required_numbers(call, "shape", slot=2)
    check_size(shape)
    updates = typed(call, 1)
    zeros = np.zeros(shape, updates.dtype)
    return [_scattered(zeros, _places(needed(call, 0), zeros.shape), updates, "Add")]


# --- segments ---------------------------------------------------------------------------------------------------------


def _segments(call: Call) -> tuple[Array, Indices, int]:
    """Rows, the segment of each and the number of segments; rows of negative segments are dropped."""
    x, segment_ids = typed(call, 0), needed(call, 1)
    ids = indices_of(segment_ids)
    if ids.shape != x.shape[: ids.ndim] or not ids.ndim:
        raise NotComputedError("shape_misfit", name="segment_ids", shape=ids.shape, other="x", other_shape=x.shape)
    if call.op_type.startswith("Unsorted"):
        count = single_number(call, "num_segments", slot=2)
    else:
        if (np.diff(ids) < 0).any():
            raise NotComputedError("unsorted", name="segment_ids")
        count = int(ids.max()) + 1 if ids.size else 0
    rows = x.reshape(ids.size, *x.shape[ids.ndim :])
    flat = ids.ravel()
    check_size([count, *rows.shape[1:]])
    if flat.size and flat.max() >= count:
        raise NotComputedError("out_of_range", name="segment_ids", value=str(flat.max()), limit=count)
    in_range = flat >= 0
    return rows[in_range], flat[in_range], count


@op(
    "UnsortedSegmentSum", "UnsortedSegmentSumD", "SegmentSum", "SegmentSumD", "SegmentMean", "SegmentMeanD",
    kind=Kind.SUM, inputs=("x", "segment_ids", "num_segments"),
)  # fmt: skip
def segment_sum(call: Call) -> Outputs:
    """Sums, or means, of the rows of each segment; 0 for one without rows."""
    return _segment_sums(call)


@op(
    "SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN",
    kind=Kind.SUM, inputs=("x", "indices", "segment_ids"),
)  # fmt: skip
def sparse_segment_sum(call: Call) -> Outputs:
    """Sums or means of the indexed rows of each segment, or sums over the square roots of the numbers of rows."""
    x, ids = needed(call, 0), needed(call, 2)
    if not x.array.ndim:
        raise NotComputedError("shape", name="x", shape=x.array.shape)
    rows = indices_of(needed(call, 1), x.array.shape[0])
    if rows.ndim != 1 or rows.shape != ids.array.shape:
        raise NotComputedError(
            "shape_misfit", name="segment_ids", shape=ids.array.shape, other="indices", other_shape=rows.shape
        )
    check_size([rows.size, *x.array.shape[1:]])
    return _segment_sums(replace(call, inputs=(replace(x, array=x.array[rows]), ids)))


def _segment_sums(call: Call) -> Outputs:
    rows, ids, count = _segments(call)
    total = np.zeros((count, *rows.shape[1:]), rows.dtype)
    np.add.at(total, ids, rows)
    divided = "Mean" in call.op_type or "SqrtN" in call.op_type
    if total.dtype.kind != "f":
        if divided:
            raise NotComputedError("data_type", name="x", dtype=total.dtype.name)
        return [Output(array=total)]
    squares = np.zeros(total.shape)
    np.add.at(squares, ids, np.square(rows))
    counts = np.bincount(ids, minlength=count).astype(np.float64)
    counts = counts.reshape([-1] + [1] * (total.ndim - 1))
    divisor = np.maximum(counts, 1) if divided else np.ones(counts.shape)
    if "SqrtN" in call.op_type:
        divisor = np.sqrt(divisor)
    summed = np.where(counts > 1, _spread(total, squares, counts), 0.0) / divisor
    return [Output(array=total / divisor, summed=summed, terms=np.sqrt(squares) / divisor)]


@op("EmbeddingDenseGrad", kind=Kind.SUM, inputs=("grad", "indices"))
def embedding_gradient(call: Call) -> Outputs:
    """Sums of the gradients of each word, or means where they are scaled by frequency; 0 for the word that pads."""
    grad, ids = floats(needed(call, 0)), needed(call, 1)
    count = integer(call, "num_weights")
    if ids.array.shape != grad.shape[:-1] or not grad.ndim:
        raise NotComputedError(
            "shape_misfit", name="gradients", shape=grad.shape, other="indices", other_shape=ids.array.shape
        )
    check_size([count, grad.shape[-1]])
    padding = integer(call, "padding_idx", default=-1)
    words = indices_of(replace(ids, array=np.where(ids.array == padding, 0, ids.array)), count).reshape(-1)
    rows = np.where((ids.array == padding).reshape(-1, 1), 0.0, grad.reshape(words.size, -1))
    total, squares = np.zeros((count, grad.shape[-1])), np.zeros((count, grad.shape[-1]))
    np.add.at(total, words, rows)
    np.add.at(squares, words, np.square(rows))
    counts = np.bincount(ids.array[ids.array != padding].reshape(-1), minlength=count).reshape(-1, 1).astype(float)
    divisor = np.maximum(counts, 1) if flag(call, "scale_grad_by_freq") else np.ones(counts.shape)
    summed = np.where(counts > 1, _spread(total, squares, counts), 0.0) / divisor
    # The kernel may scale each gradient before it adds them up.
    scaled = np.sqrt(squares) / divisor * (divisor > 1)
    return [Output(array=total / divisor, summed=np.hypot(summed, scaled), terms=np.sqrt(squares) / divisor)]


def _lowest(call: Call, kind: np.dtype[Any], sign: int) -> float:
    """Return the maximum (sign −1) or minimum of no rows."""
    if not call.op_type.startswith("Unsorted"):
        return 0
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        return int(limits.min if sign < 0 else limits.max)
    largest = {"float16": 65504.0, "bfloat16": 2.0**128 - 2.0**120}
    return sign * largest.get(needed(call, 0).dtype, 2.0**128 - 2.0**104)


def _segment_extreme(work: Callable[[Array, Indices, Array], None], sign: int) -> Function:
    def compute(call: Call) -> Outputs:
        rows, ids, count = _segments(call)
        start = -np.inf * -sign if rows.dtype.kind == "f" else _lowest(call, rows.dtype, sign)
        if rows.dtype.kind in "iu" and not call.op_type.startswith("Unsorted"):
            limits = np.iinfo(rows.dtype)
            start = limits.min if sign < 0 else limits.max
        result = np.full((count, *rows.shape[1:]), start, rows.dtype)
        work(result, ids, rows)
        result[np.bincount(ids, minlength=count) == 0] = _lowest(call, rows.dtype, sign)
        return exact_output(result)

    return compute


op("UnsortedSegmentMax", "UnsortedSegmentMaxD", "SegmentMax", "SegmentMaxD", kind=Kind.EXACT)(
    _segment_extreme(np.maximum.at, -1)
)
op("UnsortedSegmentMin", "UnsortedSegmentMinD", "SegmentMin", "SegmentMinD", kind=Kind.EXACT)(
    _segment_extreme(np.minimum.at, 1)
)


@op("UnsortedSegmentProd", "UnsortedSegmentProdD", "SegmentProd", "SegmentProdD", kind=Kind.SUM)
def segment_product(call: Call) -> Outputs:
    """Products of the rows of each segment; 1 for one without rows."""
    rows, ids, count = _segments(call)
    result = np.ones((count, *rows.shape[1:]), rows.dtype)
    np.multiply.at(result, ids, rows)
    if result.dtype.kind != "f":
        return exact_output(result)
    counts = np.bincount(ids, minlength=count).reshape([-1] + [1] * (result.ndim - 1))
    return [Output(array=result, summed=np.abs(result) * np.sqrt(counts))]


# --- assignments ------------------------------------------------------------------------------------------------------


@op("Assign", "AssignVariableOp", kind=Kind.EXACT, inputs=("ref", "value"))
def assign(call: Call) -> Outputs:
    """The value, in the variable's place."""
    return exact_output(needed(call, 1).array)


@op("AssignAdd", "AssignAddVariableOp", kind=Kind.ROUNDED, inputs=("ref", "value"))
def assign_add(call: Call) -> Outputs:
    """The variable plus the value."""
    return _assigned(call, np.add)


@op("AssignSub", "AssignSubVariableOp", kind=Kind.ROUNDED, inputs=("ref", "value"))
def assign_sub(call: Call) -> Outputs:
    """The variable minus the value."""
    return _assigned(call, np.subtract)


def _assigned(call: Call, formula: Callable[[Array, Array], Array]) -> Outputs:
    var, value = _like(typed(call, 0), typed(call, 1))
    if common_shape(call, var, value) != var.shape:
        raise NotComputedError("shape_misfit", name="value", shape=value.shape, other="var", other_shape=var.shape)
    y = np.asarray(formula(var, value))
    return [Output(array=y, summed=np.abs(y) if y.dtype.kind == "f" else 0.0)]
