"""Constants and masks: filled tensors, ranges, one-hot vectors, diagonals and bands.

Sources: the prototypes of GE's pad_ops.h, selection_ops.h and matrix_calculation_ops.h; tf, tf.linalg.
"""

from __future__ import annotations

from math import prod

import numpy as np

from precision_tool.lib.ops.arguments import (
    Array,
    attribute,
    axis_of,
    integer,
    real,
    required_numbers,
    scalar,
    single_number,
    typed,
    whole_numbers,
)
from precision_tool.lib.ops.base import Call, Kind, NotComputedError, Output, Outputs, check_size, needed, op
from precision_tool.lib.ops.movement import one, wanted_shape


@op("Fill", "FillD", "FillV2D", kind=Kind.EXACT, inputs=("dims", "value"))
def fill(call: Call) -> Outputs:
    """One value everywhere."""
    dims = whole_numbers(call, "dims")
    shape = required_numbers(call, "dims", slot=0)
    check_size(shape)
    if dims is None or attribute(call, "value") is None:
        return one(np.full(shape, _one_value(call, 1 if dims is None else 0)))
    return one(np.full(shape, real(call, "value")))


@op("ZerosLike", kind=Kind.EXACT, inputs=("x",))
def zeros_like(call: Call) -> Outputs:
    """0 everywhere."""
    return one(np.zeros_like(needed(call, 0).array))


@op("OnesLike", kind=Kind.EXACT, inputs=("x",))
def ones_like(call: Call) -> Outputs:
    """1 everywhere."""
    return one(np.ones_like(needed(call, 0).array))


@op("Range", "RangeD", kind=Kind.ROUNDED, inputs=("start", "limit", "delta"))
def number_range(call: Call) -> Outputs:
    """start, start + delta and so on, up to the limit."""
    if attribute(call, "start") is not None:
        ends = [np.float64(real(call, name)) for name in ("start", "limit", "delta")]
        whole = False
    else:
        inputs = [typed(call, slot) for slot in range(3)]
        for name, array in zip(("start", "limit", "delta"), inputs, strict=True):
            if array.size != 1:
                raise NotComputedError("shape", name=name, shape=array.shape)
        ends = [np.float64(array.reshape(())) for array in inputs]
        whole = all(array.dtype.kind in "iu" for array in inputs)
    start, limit, delta = ends
    if delta == 0 or not np.isfinite(ends).all():
        raise NotComputedError("not_allowed", name="start, limit, delta", value=f"{start}, {limit}, {delta}")
    count = max(0, int(np.ceil(abs((limit - start) / delta)))) if (limit - start) / delta > 0 else 0
    check_size([count])
    y = start + delta * np.arange(count)
    return one(y.astype(np.int64)) if whole else [Output(array=y, summed=np.abs(y) + np.abs(start))]


def _one_value(call: Call, slot: int) -> Array:
    value = typed(call, slot, "iufb")
    if value.size != 1:
        raise NotComputedError("shape", name="value", shape=value.shape)
    return value.reshape(())


@op("OneHot", "OneHotD", kind=Kind.EXACT, inputs=("x", "depth", "on_value", "off_value"))
def one_hot(call: Call) -> Outputs:
    """on_value at the places that the indices name along a new axis, off_value elsewhere.

    Which inputs are there is told by their number: OneHotD has the depth as an attribute. Both values are inputs; a
    graph that lacks them has them folded away, and they may have been any.
    """
    indices = needed(call, 0).array
    if indices.dtype.kind not in "iu":
        raise NotComputedError("data_type", name="indices", dtype=indices.dtype.name)
    rest = [slot for slot in range(1, len(call.inputs)) if call.inputs[slot] is not None]
    axis = integer(call, "axis", default=-1)
    axis = indices.ndim if axis == -1 else axis_of(call, axis, indices.ndim + 1)
    wanted = wanted_shape(call)
    if attribute(call, "depth") is not None:
        depth = single_number(call, "depth")
    elif call.op_type == "OneHot" and rest:
        depth = single_number(call, "depth", slot=rest.pop(0))
    elif wanted is not None and len(wanted) == indices.ndim + 1:
        depth = wanted[axis]
    else:
        raise NotComputedError("not_given", name="depth")
    if len(rest) < 2:
        raise NotComputedError("no_attribute", name="on_value, off_value")
    on, off = (_one_value(call, slot) for slot in rest[:2])
    check_size([*indices.shape, depth])
    hot = np.expand_dims(indices, axis) == np.arange(depth).reshape([-1] + [1] * (indices.ndim - axis))
    return one(np.where(hot, on, off))


@op("Diag", "DiagD", kind=Kind.EXACT, inputs=("x",))
def diagonal(call: Call) -> Outputs:
    """The elements on the diagonal of a tensor with twice the axes."""
    x = needed(call, 0).array
    check_size([x.size, x.size])
    return one(np.diag(x.ravel()).reshape(x.shape + x.shape))


@op("DiagPart", "DiagPartD", kind=Kind.EXACT, inputs=("x",))
def diagonal_part(call: Call) -> Outputs:
    """The diagonal of a tensor whose two halves of axes are alike."""
    x = needed(call, 0).array
    half = x.shape[: x.ndim // 2]
    if half + half != x.shape:
        raise NotComputedError("shape", name="x", shape=x.shape)
    return one(np.diagonal(x.reshape(prod(half), prod(half))).reshape(half))


@op("MatrixDiag", "MatrixDiagD", kind=Kind.EXACT, inputs=("x",))
def matrices_of_diagonals(call: Call) -> Outputs:
    """The last axis on the diagonals of matrices."""
    x = needed(call, 0).array
    if not x.ndim:
        raise NotComputedError("shape", name="x", shape=x.shape)
    size = x.shape[-1]
    check_size([*x.shape, size])
    y = np.zeros((*x.shape, size), x.dtype)
    y[..., np.arange(size), np.arange(size)] = x
    return one(y)


@op("MatrixDiagPart", "MatrixDiagPartD", kind=Kind.EXACT, inputs=("x",))
def diagonals_of_matrices(call: Call) -> Outputs:
    """The diagonals of the matrices in the last two axes."""
    x = needed(call, 0).array
    if x.ndim < 2:
        raise NotComputedError("shape", name="x", shape=x.shape)
    return one(np.diagonal(x, axis1=-2, axis2=-1).copy())


@op("MatrixSetDiag", "MatrixSetDiagD", kind=Kind.EXACT, inputs=("x", "diagonal"))
def matrices_with_diagonals(call: Call) -> Outputs:
    """Matrices with other diagonals."""
    x, given = needed(call, 0).array, needed(call, 1).array
    size = min(x.shape[-2:]) if x.ndim > 1 else -1
    if given.shape != (*x.shape[:-2], size):
        raise NotComputedError("shape_misfit", name="diagonal", shape=given.shape, other="x", other_shape=x.shape)
    y = x.copy()
    y[..., np.arange(size), np.arange(size)] = given
    return one(y)


@op("LinSpace", "LinSpaceD", kind=Kind.ROUNDED, inputs=("start", "stop", "num"))
def between_two_ends(call: Call) -> Outputs:
    """Numbers at equal distances, both ends among them."""
    start, stop = scalar(call, 0), scalar(call, 1)
    count = single_number(call, "num", slot=2)
    if count < 1:
        raise NotComputedError("not_allowed", name="num", value=str(count))
    check_size([count])
    way = np.arange(count) * ((stop - start) / max(1, count - 1))
    return [Output(array=start + way, summed=np.abs(start + way) + 2 * np.abs(way))]


@op("MatrixBandPart", kind=Kind.EXACT, inputs=("x", "num_lower", "num_upper"))
def band(call: Call) -> Outputs:
    """The diagonals near the main one; a negative number keeps all of that side."""
    x = needed(call, 0).array
    if x.ndim < 2:
        raise NotComputedError("shape", name="x", shape=x.shape)
    lower, upper = (single_number(call, name, slot=slot) for slot, name in ((1, "num_lower"), (2, "num_upper")))
    rows, columns = np.ogrid[: x.shape[-2], : x.shape[-1]]
    kept = ((lower < 0) | (rows - columns <= lower)) & ((upper < 0) | (columns - rows <= upper))
    return one(np.where(kept, x, np.zeros((), x.dtype)))
