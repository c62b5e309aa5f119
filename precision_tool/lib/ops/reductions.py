"""Reductions along axes: sums, means, extremes, norms, and the bias gradient.

Sources: the prototypes of GE's reduce_ops.h and math_ops.h; tf.math. The forms with D have `axes` as an attribute, the
others as the last input; TensorFlow's names go for both. No axes named at all mean all axes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from math import inf, prod

import numpy as np

from precision_tool.lib.ops.base import Call, Doubles, Kind, NotComputedError, Output, Outputs, needed, op, summed_of
from precision_tool.lib.ops.op_arguments import (
    ROUNDOFF,
    Array,
    attribute,
    axes_of,
    axis_of,
    flag,
    floats,
    near,
    numbers,
    real,
    same_shape,
    single_number,
    text,
    typed,
    whole_numbers,
)
from precision_tool.lib.ops.sum_orders import chained_over

Axes = tuple[int, ...]
#: Elements that are widened to float64 at one time: they stay in the cache.
_WIDENED = 1 << 16


def summation(parts: Doubles, axes: Axes, keep: bool = False, divisor: float = 1.0) -> Output:
    """The sum of what is rounded on the way over these axes, divided at the end; in float64, of float32 too."""
    count = prod(parts.shape[axis] for axis in axes)
    total, squares = _totals(parts, axes, keep)
    if count <= 1:
        return Output(array=total / divisor, terms=np.sqrt(squares) / divisor)
    summed = summed_of(total, squares - total**2 / count, count)
    return Output(
        array=total / divisor,
        summed=summed / divisor,
        terms=np.sqrt(squares) / divisor,
        length=count,
        chained=cache(partial(chained_over, parts, axes)),
    )


def _totals(parts: Doubles, axes: Axes, keep: bool) -> tuple[Doubles, Doubles]:
    """The sums over these axes, and those of the squares, in float64.

    Over the first axes in blocks of rows that are widened in the cache, and added up as a product with ones: numpy's
    own sum of many short rows takes three times as long.
    """
    wide = np.result_type(parts, np.float64)
    rows, rest = parts.shape[: len(axes)], parts.shape[len(axes) :]
    if not axes or sorted(axes) != list(range(len(axes))) or not parts.size:
        total = np.asarray(np.sum(parts, axis=axes, keepdims=keep, dtype=wide))
        return total, np.asarray(np.sum(np.square(parts), axis=axes, keepdims=keep, dtype=wide))
    matrix = parts.reshape(-1, prod(rest))
    total, squares = np.zeros((2, matrix.shape[1]), wide)
    at_once = max(1, _WIDENED // matrix.shape[1])
    for start in range(0, len(matrix), at_once):
        block = matrix[start : start + at_once].astype(wide)
        ones = np.ones(len(block), wide)
        total += ones @ block
        np.square(block, out=block)
        squares += ones @ block
    shape = (*([1] * len(rows)), *rest) if keep else rest
    return total.reshape(shape), squares.reshape(shape)


def _axes(call: Call, rank: int, slot: int | None = 1) -> Axes:
    axes = whole_numbers(call, "axes", "axis", "reduction_indices", slot=slot)
    if axes is None:
        raise NotComputedError("not_given", name="axes")
    if slot is None and not axes:
        return tuple(range(rank))
    return axes_of(call, axes, rank)


def _named_axes(call: Call, rank: int) -> Axes:
    """Axes from an attribute, all where it is missing or empty."""
    axes = whole_numbers(call, "axes", "axis")
    return axes_of(call, axes, rank) if axes else tuple(range(rank))


def _keep(call: Call) -> bool:
    return flag(call, "keep_dims", "keepdims", "keepdim")


@op("ReduceSum", "ReduceSumD", "Sum", kind=Kind.SUM, inputs=("x", "axes"))
def reduce_sum(call: Call) -> Outputs:
    """Sums; whole numbers in their own type."""
    x = typed(call, 0)
    axes = _axes(call, x.ndim)
    if x.dtype.kind != "f":
        return [Output(array=np.asarray(np.sum(x, axis=axes, keepdims=_keep(call), dtype=x.dtype)))]
    return [summation(x, axes, _keep(call))]


@op("ReduceMean", "ReduceMeanD", "Mean", kind=Kind.SUM, inputs=("x", "axes"))
def reduce_mean(call: Call) -> Outputs:
    """Means; NaN of nothing."""
    (x,) = numbers(call, 0)
    axes = _axes(call, x.ndim)
    count = prod(x.shape[axis] for axis in axes)
    if needed(call, 0).array.dtype.kind in "iu":
        raise NotComputedError("data_type", name="x", dtype=needed(call, 0).dtype)
    return [summation(x, axes, _keep(call), count if count else np.nan)]


def _extremes() -> None:
    types: list[tuple[tuple[str, ...], Callable[..., Array], str]] = [
        (("ReduceMax", "ReduceMaxD", "Max"), np.max, "iuf"),
        (("ReduceMin", "ReduceMinD", "Min"), np.min, "iuf"),
        (("ReduceAll", "ReduceAllD", "All"), np.all, "b"),
        (("ReduceAny", "ReduceAnyD", "Any"), np.any, "b"),
    ]
    for names, reduce, kinds in types:

        def compute(call: Call, reduce: Callable[..., Array] = reduce, kinds: str = kinds) -> Outputs:
            x = needed(call, 0).array
            if kinds == "b":
                x = x.astype(np.bool_)
            if x.dtype.kind not in kinds:
                raise NotComputedError("data_type", name="x", dtype=x.dtype.name)
            axes = _axes(call, x.ndim)
            if kinds != "b" and any(x.shape[axis] == 0 for axis in axes):
                raise NotComputedError("empty")
            return [Output(array=np.asarray(reduce(x, axis=axes, keepdims=_keep(call))))]

        op(*names, kind=Kind.EXACT, inputs=("x", "axes"))(compute)


_extremes()


@op("ReduceProd", "ReduceProdD", "Prod", kind=Kind.SUM, inputs=("x", "axes"))
def reduce_product(call: Call) -> Outputs:
    """Products; every factor adds one rounding."""
    x = typed(call, 0)
    axes = _axes(call, x.ndim)
    y = np.asarray(np.prod(x, axis=axes, keepdims=_keep(call), dtype=x.dtype))
    if y.dtype.kind != "f":
        return [Output(array=y)]
    return [Output(array=y, summed=np.abs(y) * np.sqrt(prod(x.shape[axis] for axis in axes)))]


@op("EuclideanNorm", "EuclideanNormD", kind=Kind.SUM, inputs=("x", "axes"))
def euclidean_norm(call: Call) -> Outputs:
    """The root of the sum of squares."""
    (x,) = numbers(call, 0)
    return [_rooted(summation(x * x, _axes(call, x.ndim), _keep(call)))]


def _rooted(squares: Output) -> Output:
    """The root of a sum: half its relative error remains."""
    y = np.sqrt(squares.array)
    half = np.where(y > 0, 0.5 / np.where(y > 0, y, 1.0), 0.0)
    return Output(array=y, summed=squares.summed * half + y, terms=squares.terms * half)


@op("LpNorm", "LpNormV2", kind=Kind.COMPOSITE, inputs=("x",))
def lp_norm(call: Call) -> Outputs:
    """(Σ |x|^p)^(1/p), at least epsilon; p may be infinite."""
    (x,) = numbers(call, 0)
    axes, keep = _named_axes(call, x.ndim), _keep(call)
    p_attribute = attribute(call, "p")
    named = isinstance(p_attribute, str)
    power = {"inf": inf, "-inf": -inf}.get(p_attribute) if named else real(call, "p", default=2.0)
    if power is None or np.isnan(power) or -inf < power < 0:
        raise NotComputedError("no_variant", name="p", value=repr(p_attribute))
    size = np.abs(x)
    if abs(power) == inf:
        reduce = np.max if power > 0 else np.min
        if any(x.shape[axis] == 0 for axis in axes):
            raise NotComputedError("empty")
        return [Output(array=np.asarray(reduce(size, axis=axes, keepdims=keep)))]
    if power == 0:
        return [Output(array=np.asarray(np.sum(size != 0, axis=axes, keepdims=keep) * 1.0))]
    total = summation(np.power(size, power), axes, keep)
    y = np.power(total.array, 1 / power)
    relative = np.where(total.array > 0, total.summed / np.where(total.array > 0, total.array, 1), 0.0)
    y = np.maximum(y, real(call, "epsilon", default=1e-12))
    return [Output(array=y, summed=y * (relative / power + 2 * power))]


@op("ReduceLogSumExp", "ReduceLogSumExpD", "LogSumExp", kind=Kind.COMPOSITE, inputs=("x", "axes"))
def log_sum_exp(call: Call) -> Outputs:
    """log Σ exp(x), computed from the largest."""
    (x,) = numbers(call, 0)
    axes, keep = _axes(call, x.ndim), _keep(call)
    if any(x.shape[axis] == 0 for axis in axes):
        return [Output(array=np.asarray(np.sum(x, axis=axes, keepdims=keep) - inf))]
    top = np.max(x, axis=axes, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    y = np.log(np.sum(np.exp(x - top), axis=axes, keepdims=True)) + top
    summed = np.abs(y) + np.abs(top) + 1
    shape = y.shape if keep else tuple(size for axis, size in enumerate(y.shape) if axis not in axes)
    return [Output(array=y.reshape(shape), summed=summed.reshape(shape))]


@op("CumulativeLogsumexp", "CumulativeLogsumexpD", kind=Kind.COMPOSITE, inputs=("x", "axis"))
def cumulative_log_sum_exp(call: Call) -> Outputs:
    """Running log Σ exp along an axis."""
    (x,) = numbers(call, 0)
    axis = axis_of(call, single_number(call, "axis", slot=1), x.ndim)
    x = np.moveaxis(x, axis, 0)
    if flag(call, "reverse"):
        x = x[::-1]
    if flag(call, "exclusive"):
        x = np.concatenate([np.full_like(x[:1], -inf), x[:-1]])
    y = np.logaddexp.accumulate(x, 0) if len(x) else x
    y = np.moveaxis(y[::-1] if flag(call, "reverse") else y, 0, axis)
    length = x.shape[0]
    return [Output(array=y, summed=np.sqrt(length) * (np.where(np.isfinite(y), np.abs(y), 0.0) + 1))]


# --- sums of squares --------------------------------------------------------------------------------------------------


@op("L2Loss", kind=Kind.SUM, inputs=("x",))
def half_square_sum(call: Call) -> Outputs:
    """Half the sum of all squares."""
    (x,) = numbers(call, 0)
    return [summation(x * x, tuple(range(x.ndim)), divisor=2.0)]


@op("SquareSumV1", kind=Kind.SUM, inputs=("x",))
def square_sum(call: Call) -> Outputs:
    """Sums of squares over the op's axes."""
    (x,) = numbers(call, 0)
    return [summation(x * x, _axes(call, x.ndim, None), _keep(call))]


@op("SquareSumV2", kind=Kind.SUM, inputs=("x",))
def square_sum_and_squares(call: Call) -> Outputs:
    """Sums of squares over the op's axes, and the squares."""
    (x,) = numbers(call, 0)
    return [*square_sum(call), Output(array=x * x, summed=x * x)]


@op("SquareSumAll", kind=Kind.SUM, inputs=("x1", "x2"))
def square_sums(call: Call) -> Outputs:
    """The sums of all squares of each of two inputs."""
    return [summation(x * x, tuple(range(x.ndim))) for x in numbers(call, 0, 1)]


@op("ConfusionMulGrad", kind=Kind.SUM, inputs=("input0", "input1", "input2"))
def product_and_sum_of_products(call: Call) -> Outputs:
    """The gradients of a product: of one factor, and of the other, which was broadcast.

    In float16 the kernel keeps the products that it sums in it too.
    """
    slope, other, factor = numbers(call, 0, 1, 2)
    product, parts = slope * other, other * factor
    total = summation(parts, _axes(call, parts.ndim, None), _keep(call))
    narrow = max(ROUNDOFF.get(needed(call, slot).dtype, 0.0) for slot in (1, 2)) / ROUNDOFF["float32"]
    if narrow > 1:
        total = replace(total, summed=np.hypot(total.summed, narrow * np.asarray(total.terms)))
    return [Output(array=product, summed=np.abs(product)), total]


@op("FusedMulAddNL2loss", kind=Kind.SUM, inputs=("x1", "x2", "x3"))
def scaled_sum_and_loss(call: Call) -> Outputs:
    """x1 x3 + x2, and half the sum of the squares of x1: a weight's decay with its loss."""
    a, b, scale = numbers(call, 0, 1, 2)
    same_shape(call, a, b)
    if scale.size != 1:
        raise NotComputedError("shape", name="input 2", shape=scale.shape)
    product = a * scale.reshape(())
    y = product + b
    return [Output(array=y, summed=np.abs(product) + np.abs(y)), summation(a * a, tuple(range(a.ndim)), divisor=2.0)]


@op("ClipByNormNoDivSum", kind=Kind.APPROXIMATE, inputs=("x", "greater_zeros", "select_ones", "maximum_ones"))
def norm_to_clip_by(call: Call) -> Outputs:
    """The root of a sum of squares where it is above zero, and at least `maximum_ones`."""
    x, zeros, ones, least = numbers(call, 0, 1, 2, 3)
    try:
        root = np.where(x > zeros, np.sqrt(np.where(x > zeros, x, ones)), x)
        y = np.maximum(root, least)
    except ValueError:
        raise NotComputedError("no_broadcast", shapes=(x.shape, zeros.shape, ones.shape, least.shape)) from None
    return [Output(array=np.asarray(y), summed=np.abs(y))]


@op("BiasAddGrad", kind=Kind.SUM, inputs=("x",))
def bias_gradient(call: Call) -> Outputs:
    """Sum over all axes but the channels."""
    (x,) = numbers(call, 0)
    if x.ndim < 2:
        raise NotComputedError("shape", name="x", shape=x.shape)
    form = text(call, "data_format", default="NHWC")
    channel = 1 if form.startswith("NC") and x.ndim > 2 else x.ndim - 1
    return [summation(x, tuple(axis for axis in range(x.ndim) if axis != channel))]


# --- places of extremes -----------------------------------------------------------------------------------------------


def _arg_types() -> None:
    names = {np.argmax: ("ArgMax", "ArgMaxD", "ArgMaxV2"), np.argmin: ("ArgMin", "ArgMinD", "ArgMinV2")}
    for search, types in names.items():

        def compute(call: Call, search: Callable[..., Array] = search) -> Outputs:
            x = needed(call, 0)
            typed(call, 0)
            axis = axis_of(call, single_number(call, "dimension", "axis", slot=1), x.array.ndim)
            if x.array.shape[axis] == 0:
                raise NotComputedError("empty")
            places = np.asarray(search(x.array, axis=axis))
            best = np.take_along_axis(x.array, np.expand_dims(places, axis), axis)
            rivals = np.sum(near(x.array, best, x.dtype), axis=axis) > 1
            return [Output(array=places.astype(np.int64), doubtful=np.asarray(rivals))]

        op(*types, kind=Kind.EXACT, inputs=("x", "dimension"))(compute)


def _arg_with_value() -> None:
    names = {"ArgMaxWithValue": np.argmax, "ArgMinWithValue": np.argmin}
    for name, search in names.items():

        def compute(call: Call, search: Callable[..., Array] = search) -> Outputs:
            x = needed(call, 0)
            typed(call, 0)
            axis = axis_of(call, single_number(call, "dimension"), x.array.ndim)
            if x.array.shape[axis] == 0:
                raise NotComputedError("empty")
            places = np.expand_dims(np.asarray(search(x.array, axis=axis)), axis)
            best = np.take_along_axis(x.array, places, axis)
            rivals = np.sum(near(x.array, best, x.dtype), axis=axis, keepdims=True) > 1
            if not _keep(call):
                places, best, rivals = (np.squeeze(array, axis) for array in (places, best, rivals))
            return [Output(array=places.astype(np.int32), doubtful=rivals), Output(array=best)]

        op(name, kind=Kind.EXACT, inputs=("x",))(compute)


_arg_types()
_arg_with_value()


@op("TopK", "TopKV2", "TopKD", "TopKV2D", kind=Kind.EXACT, inputs=("x", "k"))
def top_k(call: Call) -> Outputs:
    """The k largest along an axis, largest first, and their places; of equals the first comes first."""
    x = needed(call, 0)
    typed(call, 0)
    attribute_k = whole_numbers(call, "k")
    if attribute_k is None and len(call.inputs) > 1 and needed(call, 1).array.size == 1:
        attribute_k = whole_numbers(call, slot=1) if needed(call, 1).array.dtype.kind in "iu" else None
    if attribute_k is None or len(attribute_k) != 1:
        raise NotComputedError("not_given", name="k")
    dim = whole_numbers(call, "dim") or [-1]
    axis, k = axis_of(call, dim[0], x.array.ndim), attribute_k[0]
    if not 0 <= k <= x.array.shape[axis]:
        raise NotComputedError("out_of_range", name="k", value=str(k), limit=x.array.shape[axis])
    if not flag(call, "sorted", default=True):
        raise NotComputedError("unordered")
    values = np.moveaxis(x.array, axis, -1)
    if values.dtype.kind == "u":
        values = values.astype(np.float64)
    largest = flag(call, "largest", default=True)
    order = np.argsort(-values if largest else values, axis=-1, kind="stable")
    ranked = np.take_along_axis(np.moveaxis(x.array, axis, -1), order, -1)
    close = near(ranked[..., 1:], ranked[..., :-1], x.dtype)
    if x.dtype not in ROUNDOFF:
        close = ranked[..., 1:] == ranked[..., :-1]
    edge = np.zeros((*ranked.shape[:-1], 1), np.bool_)
    doubtful = (np.concatenate([close, edge], -1) | np.concatenate([edge, close], -1))[..., :k]
    chosen, places = (np.moveaxis(array[..., :k], -1, axis) for array in (ranked, order))
    return [Output(array=chosen), Output(array=places.astype(np.int32), doubtful=np.moveaxis(doubtful, -1, axis))]


@op("InTopK", "InTopKD", "InTopKV2", kind=Kind.EXACT, inputs=("x1", "x2", "k"))
def in_top_k(call: Call) -> Outputs:
    """True where a row's target is among its k largest; False where it is not finite or out of range."""
    predictions, targets = needed(call, 0), typed(call, 1, "iu").astype(np.int64)
    x = floats(predictions)
    k = single_number(call, "k", slot=2)
    if x.ndim != 2 or targets.shape != x.shape[:1]:
        raise NotComputedError(
            "shape_misfit", name="targets", shape=targets.shape, other="predictions", other_shape=x.shape
        )
    inside = (targets >= 0) & (targets < x.shape[1])
    chosen = np.take_along_axis(x, np.where(inside, targets, 0)[:, None], 1)
    larger = np.sum(x > chosen, axis=1)
    valid = inside & np.isfinite(chosen[:, 0]) & np.isfinite(x).all(axis=1)
    close = near(x, chosen, predictions.dtype)
    np.put_along_axis(close, np.where(inside, targets, 0)[:, None], False, 1)
    sure_larger = np.sum((x > chosen) & ~close, axis=1)
    doubtful = (sure_larger < k) & (sure_larger + np.sum(close, axis=1) >= k)
    return [Output(array=valid & (larger < k), doubtful=doubtful & valid)]
