"""Formulas of gradients as PyTorch computes them, where GE has no type for them; `torch_gradients` chooses them.

Sources: PyTorch's tools/autograd/derivatives.yaml and torch/csrc/autograd/FunctionsManual.cpp. The first input is the
gradient of the function's result. A gradient of several kernels rounds each of its steps to the type of the tensors,
which a half type shows; one kernel computes in float32 and rounds its result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import log, pi, prod, sqrt

import numpy as np

from precision_tool.lib.ops.activations import normal_share, sigmoid
from precision_tool.lib.ops.attention import turned
from precision_tool.lib.ops.base import (
    Call,
    Doubles,
    Kind,
    NotComputedError,
    OpSpec,
    Output,
    Outputs,
    Places,
    check_size,
    needed,
    op,
    optional,
    registered,
    summed_of,
)
from precision_tool.lib.ops.losses import optional_numbers
from precision_tool.lib.ops.op_arguments import (
    ROUNDOFF,
    Mask,
    axes_of,
    common_shape,
    flag,
    floats,
    integer,
    near,
    numbers,
    real,
    required_numbers,
    same_shape,
    text,
    unbroadcast,
    whole_numbers,
)
from precision_tool.lib.ops.tracked import Tracked, where


def _narrow(call: Call, slot: int = 0) -> float:
    """The unit roundoff of the type of an input by that of float32, at least 1."""
    return max(1.0, ROUNDOFF.get(needed(call, slot).dtype, 0.0) / ROUNDOFF["float32"])


def _stored(x: Tracked, narrow: float) -> Tracked:
    """Numbers that were rounded to a type between two kernels."""
    return x if narrow == 1 else Tracked(x.value, x.noise + (narrow * x.value) ** 2)


# --- slopes -----------------------------------------------------------------------------------------------------------

#: The gradient, of the call, that of the result and the other inputs.
Slope = Callable[..., Tracked]


#: Those any part of whose result can be computed from the same part of their inputs.
BY_ELEMENT = {"torch.between_grad", "torch.larger_grad", "torch.dropout_grad", "torch.kl_div_grad"}


def _tracked_op(name: str, inputs: str, compute: Slope, fused: bool = False, kind: Kind = Kind.APPROXIMATE) -> None:
    """Register a gradient element by element; `fused` says that one kernel computes it."""
    names = tuple(inputs.split())

    def function(call: Call) -> Outputs:
        arrays = numbers(call, *range(len(names)))
        common_shape(call, *arrays)
        result = compute(call, *arrays)
        return [Output(array=result.value, summed=result.summed * (1.0 if fused else _narrow(call)))]

    op(f"torch.{name}", kind=kind, inputs=names)(function)
    BY_ELEMENT.add(f"torch.{name}")


def _known(y: Doubles, own: Doubles | float) -> Tracked:
    """A value that a kernel computes with an error of this size."""
    return Tracked(y, np.square(own) * np.ones_like(y))


def _power_slope(call: Call, g: Doubles, x: Doubles, exponent: Doubles) -> Tracked:
    """g n x^(n − 1), which is 0 for a power of 0."""
    power = np.power(x, np.where(exponent == 0, 1.0, exponent) - 1)
    size = np.abs(np.log(np.abs(np.where(x == 0, 1.0, x))) * (exponent - 1))
    # Squares and cubes are products, other powers come of a logarithm.
    plain = (exponent == 2) | (exponent == 3) | (exponent == 1)
    slope = Tracked(power, np.square(power * np.where(plain, 1.0, 1 + size)))
    return where(exponent == 0, 0.0, slope * exponent * g)


def _exponent_slope(call: Call, g: Doubles, x: Doubles, y: Doubles) -> Tracked:
    """g y log x, and 0 where x is 0."""
    return where(x == 0, 0.0, Tracked(np.where(x == 0, 1.0, x)).log() * y * g)


def _gelu_slope(call: Call, g: Doubles, x: Doubles) -> Tracked:
    """The share of the normal distribution below x and x times its density."""
    share, density = normal_share(x), np.exp(-x * x / 2) / sqrt(2 * pi)
    slope = share + x * density
    return _known(g * slope, np.abs(g) * (1 + np.abs(slope) + np.abs(x) * density * (1 + x * x)))


def _softplus_slope(call: Call, g: Doubles, x: Doubles) -> Tracked:
    beta, threshold = real(call, "beta", default=1.0), real(call, "threshold", default=20.0)
    slope = np.where(x * beta > threshold, 1.0, sigmoid(x * beta))
    return _known(g * slope, np.abs(g) * slope * (2 + np.abs(x * beta)))


def _elu_slope(call: Call, g: Doubles, x: Doubles) -> Tracked:
    """Below 0 the slope of scale alpha (exp(input_scale x) − 1), else scale."""
    alpha, scale = real(call, "alpha", default=1.0), real(call, "scale", default=1.0)
    inner = real(call, "input_scale", default=1.0)
    power = np.exp(np.minimum(x, 0) * inner)
    slope = np.where(x > 0, scale, scale * alpha * inner * power)
    return _known(
        g * slope, np.abs(g) * np.where(x > 0, abs(scale), np.abs(slope) * (2 + np.abs(x * inner)) + abs(alpha))
    )


def _first_of_division(call: Call, g: Doubles, other: Doubles) -> Tracked:
    return Tracked(g) / other


def _second_of_division(call: Call, g: Doubles, x: Doubles, other: Doubles) -> Tracked:
    """−g (x / other) / other."""
    return -(Tracked(x) / other / other * g)


def _softsign_slope(call: Call, g: Doubles, x: Doubles) -> Tracked:
    """The gradient of the quotient's first part, and of its second through |x|."""
    divisor = Tracked(np.abs(x)) + 1.0
    return Tracked(g) / divisor - Tracked(x) / divisor / divisor * g * np.sign(x)


def _slopes() -> None:
    two_by_root_pi = 2 / sqrt(pi)
    composite: list[tuple[str, str, Slope]] = [
        ("exp_grad", "g y", lambda call, g, y: Tracked(g) * y),
        ("log_grad", "g x", lambda call, g, x: Tracked(g) / (Tracked(x) * log(real(call, "base", default=np.e)))),
        ("log1p_grad", "g x", lambda call, g, x: Tracked(g) / (Tracked(x) + 1.0)),
        ("expm1_grad", "g y", lambda call, g, y: (Tracked(y) + 1.0) * g),
        ("sqrt_grad", "g y", lambda call, g, y: Tracked(g) / (2 * y)),
        ("rsqrt_grad", "g y", lambda call, g, y: Tracked(y) * y * y * g * -0.5),
        ("reciprocal_grad", "g y", lambda call, g, y: -(Tracked(y) * y * g)),
        ("sin_grad", "g x", lambda call, g, x: _known(np.cos(x), 1 + np.abs(x)) * g),
        ("cos_grad", "g x", lambda call, g, x: -(_known(np.sin(x), 1 + np.abs(x)) * g)),
        ("tan_grad", "g y", lambda call, g, y: (Tracked(y) * y + 1.0) * g),
        ("asin_grad", "g x", lambda call, g, x: 1.0 / (1.0 - Tracked(x) * x).sqrt() * g),
        ("acos_grad", "g x", lambda call, g, x: -(1.0 / (1.0 - Tracked(x) * x).sqrt() * g)),
        ("atan_grad", "g x", lambda call, g, x: Tracked(g) / (Tracked(x) * x + 1.0)),
        ("sinh_grad", "g x", lambda call, g, x: _known(np.cosh(x), np.cosh(x) * (1 + np.abs(x))) * g),
        ("cosh_grad", "g x", lambda call, g, x: _known(np.sinh(x), np.cosh(x) * (1 + np.abs(x))) * g),
        ("asinh_grad", "g x", lambda call, g, x: 1.0 / (Tracked(x) * x + 1.0).sqrt() * g),
        ("acosh_grad", "g x", lambda call, g, x: 1.0 / (Tracked(x) * x - 1.0).sqrt() * g),
        ("atanh_grad", "g x", lambda call, g, x: Tracked(g) / (1.0 - Tracked(x) * x)),
        ("erf_grad", "g x", lambda call, g, x: (-(Tracked(x) * x)).exp() * two_by_root_pi * g),
        ("erfc_grad", "g x", lambda call, g, x: (-(Tracked(x) * x)).exp() * -two_by_root_pi * g),
        ("pow_grad", "g x exponent", _power_slope),
        ("exponent_grad", "g x y", _exponent_slope),
        ("div_grad", "g other", _first_of_division),
        ("divisor_grad", "g x other", _second_of_division),
        ("softsign_grad", "g x", _softsign_slope),
        ("norm_grad", "g x y", lambda call, g, x, y: _over_norm(x, y) * g),
        ("logsumexp_grad", "g x y", lambda call, g, x, y: _apart(x, y).exp() * g),
        ("prod_grad", "g x y", lambda call, g, x, y: Tracked(g) * y / x),
        ("addcdiv_first_grad", "g other", lambda call, g, b: Tracked(g) * real(call, "value") / b),
        (
            "addcdiv_second_grad",
            "g x other",
            lambda call, g, a, b: -(Tracked(g) * (Tracked(a) * real(call, "value") / (Tracked(b) * b))),
        ),
        ("addcmul_grad", "g other", lambda call, g, other: Tracked(other) * real(call, "value") * g),
        ("lerp_first_grad", "g weight", lambda call, g, weight: (1 - Tracked(weight)) * g),
        ("lerp_weight_grad", "g x end", lambda call, g, x, end: (Tracked(end) - x) * g),
        ("atan2_first_grad", "g x other", lambda call, g, a, b: Tracked(g) / (Tracked(a) * a + Tracked(b) * b) * b),
        ("atan2_second_grad", "g x other", lambda call, g, a, b: Tracked(g) / (Tracked(a) * a + Tracked(b) * b) * -a),
        ("xlogy_first_grad", "g x other", lambda call, g, a, b: where((a == 0) & (b <= 0), 0.0, Tracked(b).log() * g)),
        ("times", "g x", lambda call, g, x: Tracked(g) * x),
    ]
    for name, inputs, compute in composite:
        _tracked_op(name, inputs, compute)
    fused: list[tuple[str, str, Slope]] = [
        ("prelu_grad", "g x slopes", lambda call, g, x, w: where(x > 0, g, Tracked(g) * w)),
        ("prelu_weight_grad", "g x", lambda call, g, x: where(x > 0, 0.0, Tracked(g) * x)),
        ("gelu_grad", "g x", _gelu_slope),
        ("softplus_grad", "g x", _softplus_slope),
        ("elu_grad", "g x", _elu_slope),
    ]
    for name, inputs, compute in fused:
        _tracked_op(name, inputs, compute, fused=True)


def _over_norm(x: Doubles, y: Doubles) -> Tracked:
    """x / y, and 0 where y is."""
    return where(y == 0, 0.0, Tracked(x) / np.where(y == 0, 1.0, y))


def _apart(x: Doubles, y: Doubles) -> Tracked:
    """x − y where both are finite."""
    return where(np.isneginf(x), -np.inf, Tracked(np.where(np.isneginf(x), 0.0, x)) - y)


_slopes()


@op("torch.between_grad", kind=Kind.EXACT, inputs=("gradient", "input", "low", "high"))
def between_bounds(call: Call) -> Outputs:
    """The gradient where the input is within bounds, at the bound itself only with `closed`."""
    g, x = numbers(call, 0, 1)
    limits = [(optional(call, 2), np.greater, np.greater_equal), (optional(call, 3), np.less, np.less_equal)]
    inside: Mask = np.ones(x.shape, np.bool_)
    doubtful: Mask = np.zeros(x.shape, np.bool_)
    for tensor, inner, closed in limits:
        if tensor is None:
            continue
        limit = floats(tensor)
        common_shape(call, x, limit)
        inside = inside & (closed if flag(call, "closed") else inner)(x, limit)
        doubtful = doubtful | (near(x, limit, needed(call, 1).dtype) & (x != limit)) | np.isnan(x)
    common_shape(call, g, inside)
    y = np.where(inside, g, 0.0)
    return [Output(array=y, doubtful=np.broadcast_to(doubtful, y.shape))]


@op("torch.larger_grad", kind=Kind.ROUNDED, inputs=("gradient", "input", "other"))
def larger_gradient(call: Call) -> Outputs:
    """The gradient where the input is the larger (with `smaller` the smaller), and half of it where both are equal."""
    g, a, b = numbers(call, 0, 1, 2)
    common_shape(call, g, a, b)
    other = a > b if flag(call, "smaller") else a < b
    share = np.where(a == b, 0.5, np.where(other, 0.0, 1.0))
    doubtful = near(a, b, *(needed(call, slot).dtype for slot in (1, 2))) & (a != b)
    y = g * share
    return [Output(array=y, doubtful=np.broadcast_to(doubtful, y.shape))]


@op("torch.dropout_grad", kind=Kind.APPROXIMATE, inputs=("gradient", "input", "output"))
def dropout_gradient(call: Call) -> Outputs:
    """The gradient by the share that is kept, where the output is not 0; where the input is 0 nothing tells."""
    g, x, y = numbers(call, 0, 1, 2)
    same_shape(call, g, x, y)
    keep = 1 - real(call, "p")
    if not 0 < keep <= 1:
        raise NotComputedError("not_allowed", name="p", value=str(1 - keep))
    scaled = np.where(y != 0, g / keep, 0.0)
    return [Output(array=scaled, summed=2 * np.abs(scaled) * _narrow(call), doubtful=x == 0)]


@op("torch.glu_grad", kind=Kind.COMPOSITE, inputs=("gradient", "input"))
def gated_gradient(call: Call) -> Outputs:
    """Of a sigmoid(b), or with `swish` of a sigmoid(a) b, of the halves a and b of the input along an axis."""
    g, x = numbers(call, 0, 1)
    axis = axes_of(call, [integer(call, "dim", default=-1)], x.ndim)[0]
    if x.shape[axis] % 2:
        raise NotComputedError("no_multiple", name="elements", number=x.shape[axis], limit=2)
    a, b = np.split(x, 2, axis)
    same_shape(call, g, a)
    if flag(call, "swish"):
        gate = Tracked(a).sigmoid()
        slope = gate * (1.0 + (1.0 - gate) * a)
        parts = [slope * b * g, gate * a * g]
    else:
        gate = Tracked(b).sigmoid()
        parts = [gate * g, gate * (1.0 - gate) * a * g]
    value = np.concatenate([part.value for part in parts], axis)
    return [Output(array=value, summed=np.concatenate([part.summed for part in parts], axis) * _narrow(call))]


# --- sums of what was moved or broadcast ------------------------------------------------------------------------------


def _summed_by(count: Doubles, total: Doubles, squares: Doubles) -> Doubles:
    spread = np.maximum(squares - total**2 / np.maximum(count, 1), 0)
    result: Doubles = np.where(count > 1, np.sqrt(count * total**2 / 3 + count * spread / 6), 0.0)
    return result


@op("torch.sum_by_place", kind=Kind.SUM, inputs=("gradient", "places"))
def sum_by_place(call: Call) -> Outputs:
    """For each element of the attribute `shape` the sum of the gradients of its copies.

    `places` has the flat place of the element that each gradient belongs to, or −1 for none. With `narrow` the kernel
    adds them up in their stored type.
    """
    (g,) = numbers(call, 0)
    places = needed(call, 1).array.reshape(-1)
    shape = required_numbers(call, "shape")
    check_size(shape)
    size, values = prod(shape), g.reshape(-1)
    is_used = (places >= 0) & (places < size)
    values, places = values[is_used], places[is_used]
    total: Doubles = np.bincount(places, values, size).astype(np.float64)
    squares: Doubles = np.bincount(places, values**2, size).astype(np.float64)
    count = np.bincount(places, minlength=size).astype(np.float64)
    summed = _summed_by(count, total, squares) * (_narrow(call) if flag(call, "narrow") else 1.0)
    return [
        Output(array=total.reshape(shape), summed=summed.reshape(shape), terms=np.sqrt(squares).reshape(shape))
    ]  # fmt: skip


def _sum_to(call: Call) -> Outputs:
    """The result of another op summed to the shape that broadcasting it began with.

    Between both it is rounded to the type of the tensors.
    """
    inner, spec = _inner(call)
    first = spec.function(inner)[0]
    assert first is not None
    shape = tuple(required_numbers(call, "shape"))
    part = first.array
    if np.broadcast_shapes(shape, part.shape) != part.shape:
        raise NotComputedError("shape_misfit", name="gradient", shape=part.shape, other="input", other_shape=shape)
    between = 0.0 if spec.kind is Kind.EXACT else _narrow(call)
    noise = np.broadcast_to(np.square(first.summed) + (between * part) ** 2, part.shape)
    total, squares = unbroadcast(part, shape), unbroadcast(part**2, shape)
    count = max(1, part.size // max(1, total.size))
    own = summed_of(total, squares - total**2 / count, count) if count > 1 else np.zeros(shape)
    terms = np.broadcast_to(np.square(first.terms), part.shape)
    doubtful = None
    if first.doubtful is not None:
        doubtful = unbroadcast(first.doubtful.astype(np.float64), shape) > 0
    summed = np.sqrt(own**2 + unbroadcast(noise, shape))
    return [Output(array=total, summed=summed, terms=np.sqrt(unbroadcast(terms, shape)), doubtful=doubtful)]


op("torch.sum_to", kind=Kind.SUM)(_sum_to)
op("torch.sum_to.composite", kind=Kind.COMPOSITE)(_sum_to)


@op("torch.along_axes", kind=Kind.COMPOSITE, inputs=("gradient", "matrices"))
def along_axes(call: Call) -> Outputs:
    """The input times a matrix (to, from) along each of its last axes, one after the other.

    `off` is how far, in units of each product, the matrices of the kernel are off.
    """
    (x,) = numbers(call, 0)
    matrices = [floats(tensor) for tensor in call.inputs[1:] if tensor is not None]
    y, absolute, squares = x, np.abs(x), x * x
    for axis, matrix in enumerate(matrices, x.ndim - len(matrices)):
        check_size([*y.shape[:axis], matrix.shape[0], *y.shape[axis + 1 :]])

        def along(array: Doubles, by: Doubles, axis: int = axis) -> Doubles:
            return np.moveaxis(np.tensordot(array, by, (axis, 1)), -1, axis)

        y, absolute, squares = along(y, matrix), along(absolute, np.abs(matrix)), along(squares, matrix**2)
    off = real(call, "off", default=1.0) * (_narrow(call) if flag(call, "narrow") else 1.0)
    return [Output(array=y, summed=absolute * off, terms=np.sqrt(np.maximum(squares, 0)))]


def _inner(call: Call) -> tuple[Call, OpSpec]:
    """The call of another op, the attributes `of` and `attrs`, of the same inputs."""
    inner = replace(
        call, op_type=text(call, "of", default=""), attrs=call.attrs.get("attrs", {}),
        outputs=tuple(replace(spec, shape=None) for spec in call.outputs),
    )  # fmt: skip
    spec = registered().get(inner.op_type)
    if spec is None:
        raise NotComputedError("no_formula", op_type=inner.op_type)
    return inner, spec


def _result(call: Call) -> Outputs:
    """The output of another op at the attribute `slot`, in the shape `shape` where it is told.

    With `narrow` the kernel adds up in the stored type of the first input, with `parts` so many parts of each sum.
    """
    inner, spec = _inner(call)
    output = spec.function(inner)[integer(call, "slot", default=0)]
    if output is None:
        raise NotComputedError("no_formula", op_type=inner.op_type)
    output = _narrowed(call, output)
    shape = whole_numbers(call, "shape")
    if shape is None:
        return [output]
    summed, terms = (np.broadcast_to(size, output.array.shape).reshape(shape) for size in (output.summed, output.terms))
    doubtful = None if output.doubtful is None else output.doubtful.reshape(shape)
    return [replace(output, array=output.array.reshape(shape), summed=summed, terms=terms, doubtful=doubtful)]


def _narrowed(call: Call, output: Output) -> Output:
    """An output of sums that are added up in a stored type. The parts of a sum are as independent as its terms."""
    parts = integer(call, "parts", default=0)
    if parts > 1:
        spread = np.square(output.terms) - output.array**2 / parts
        own = summed_of(output.array, np.asarray(spread), parts) * _narrow(call)
        return replace(output, summed=np.hypot(output.summed, own), chained=None)
    return replace(output, summed=output.summed * _narrow(call), chained=None) if flag(call, "narrow") else output


def _result_at(call: Call, places: Places) -> Output:
    """Some places of a result; of an op that cannot compute them alone, of all."""
    inner, spec = _inner(call)
    if spec.sampled is not None and not integer(call, "slot", default=0):
        return _narrowed(call, spec.sampled(inner, places))
    whole = _result(call)[0]
    assert whole is not None
    summed, terms = (
        np.broadcast_to(size, whole.array.shape).reshape(-1)[places] for size in (whole.summed, whole.terms)
    )
    return replace(whole, array=whole.array.reshape(-1)[places], summed=summed, terms=terms, chained=None)


def _result_work(call: Call) -> float:
    inner, spec = _inner(call)
    return spec.work(inner) if spec.work is not None else 0.0


for _kind in Kind:
    is_sampled = _kind is Kind.MATRIX
    op(
        f"torch.result.{_kind.value}", kind=_kind, sampled=_result_at if is_sampled else None,
        work=_result_work if is_sampled else None,
    )(_result)  # fmt: skip


# --- reductions -------------------------------------------------------------------------------------------------------


@op("torch.var_grad", kind=Kind.COMPOSITE, inputs=("gradient", "input"))
def variance_gradient(call: Call) -> Outputs:
    """2 g (x − mean) / (n − correction); with `root` of the deviation, of which y is the third input."""
    g, x = numbers(call, 0, 1)
    axes = axes_of(call, required_numbers(call, "dim"), x.ndim)
    count = prod(x.shape[axis] for axis in axes)
    divisor = count - real(call, "correction", default=1.0)
    if divisor <= 0 or not x.size:
        raise NotComputedError("empty")
    narrow = _narrow(call)
    mean = _stored(Tracked(x).total(axes) * (1 / count), narrow)
    factor = Tracked(g)
    if optional(call, 2) is not None:
        (y,) = numbers(call, 2)
        factor = where(y == 0, 0.0, factor / np.where(y == 0, 1.0, 2 * y))
    result = (Tracked(x) - mean) * (factor * (2 / divisor))
    return [Output(array=result.value, summed=result.summed * narrow)]


@op("torch.ties_grad", kind=Kind.APPROXIMATE, inputs=("gradient", "input", "output"))
def ties_gradient(call: Call) -> Outputs:
    """The gradient of a maximum, evenly to all elements that equal it, along the axes that are reduced."""
    g, x, y = numbers(call, 0, 1, 2)
    axes = axes_of(call, required_numbers(call, "dim"), x.ndim)
    is_chosen = x == y
    count = np.maximum(np.sum(is_chosen, axis=axes, keepdims=True), 1)
    result = np.where(is_chosen, g / count, 0.0)
    unsure = (near(x, y, needed(call, 1).dtype) | np.isnan(y)) & ~is_chosen
    doubtful = np.any(unsure, axis=axes, keepdims=True) & (unsure | is_chosen)
    return [Output(array=result, summed=np.where(count > 1, np.abs(result), 0.0), doubtful=doubtful)]


# --- norms ------------------------------------------------------------------------------------------------------------


def _summed_in(x: Tracked, axes: tuple[int, ...], narrow: float) -> Tracked:
    """The sum over axes, added up in a type of so many times float32's roundoff."""
    total = x.total(axes)
    before = np.sum(x.noise, axis=axes, keepdims=True)
    return Tracked(total.value, before + np.maximum(total.noise - before, 0) * narrow**2)


def _moments(
    x: Doubles, axes: tuple[int, ...], epsilon: float, centred: bool, narrow: float
) -> tuple[Tracked, Tracked]:
    """x without its mean (if `centred`), and the inverse root of its mean square, along some axes.

    Kernels may keep both statistics in the type of the tensors.
    """
    count = max(1, prod(x.shape[axis] for axis in axes))
    mean = Tracked(x).total(axes) * (1 / count)
    rest = Tracked(x) - mean if centred else Tracked(x)
    variance = (rest * rest).total(axes) * (1 / count)
    kept = Tracked(x) - _stored(mean, narrow) if centred else rest
    return kept, _stored(1.0 / (variance + epsilon).sqrt(), narrow)


@op("torch.normalised_grad", kind=Kind.COMPOSITE, inputs=("gradient", "input", "weight", "mean", "variance", "added"))
def normalised_gradient(call: Call) -> Outputs:
    """The gradient of a layer, group, instance, batch or root mean square norm for its input or a parameter.

    `shape` is the shape in which the `axes` of the input are normalised, without mean unless `centred`; `of` says for
    which of "input", "weight" and "bias"; "quotient" is that of the last division alone. The parameters have the shape
    of `weight_shape` then. With mean and variance given (a batch norm that does not train) they are constants. With
    `narrow` the sums for a parameter are added up in the stored type; with `apart` those of each image are stored.
    What is `added` comes to the gradient of the input.
    """
    g, x = numbers(call, 0, 1)
    same_shape(call, g, x)
    shape = required_numbers(call, "shape")
    axes = axes_of(call, required_numbers(call, "axes"), len(shape))
    own, of = whole_numbers(call, "weight_shape"), text(call, "of", default="input")
    if not x.size:
        raise NotComputedError("empty")
    result_shape, narrow = x.shape, _narrow(call)
    g, x = g.reshape(shape), x.reshape(shape)
    weight = optional(call, 2)
    factor = None if weight is None else floats(weight).reshape(own or ())
    if optional(call, 3) is None:
        centred, root = _moments(x, axes, real(call, "epsilon"), flag(call, "centred"), narrow)
    else:
        mean, variance = (array.reshape(own or ()) for array in numbers(call, 3, 4))
        centred = Tracked(x) - mean
        root = 1.0 / (Tracked(variance) + real(call, "epsilon")).sqrt()
    if of in ("weight", "bias"):
        if own is None:
            raise NotComputedError("no_attribute", name="weight_shape")
        products = centred * root * g if of == "weight" else Tracked(g)
        if flag(call, "apart"):
            products = _stored(products.total(tuple(range(2, len(own)))), narrow)
        others = tuple(axis for axis, size in enumerate(own) if size == 1)
        total = _summed_in(products, others, narrow if flag(call, "narrow") else 1.0)
        return [total.reshape(*required_numbers(call, "parameter_shape")).output()]
    scaled = Tracked(g) if factor is None else Tracked(g) * factor
    if optional(call, 3) is not None or of == "quotient":
        return [(scaled * root).reshape(*result_shape).output()]
    count = prod(shape[axis] for axis in axes)
    normal = centred * root
    inner = scaled - _stored(normal * ((scaled * normal).total(axes) * (1 / count)), narrow)
    if flag(call, "centred"):
        inner = inner - scaled.total(axes) * (1 / count)
    result = (inner * root).reshape(*result_shape)
    added = optional(call, 5)
    return [(result if added is None else result + floats(added)).output()]


@op("torch.normalize_grad", kind=Kind.COMPOSITE, inputs=("gradient", "input"))
def unit_gradient(call: Call) -> Outputs:
    """Of x / max(|x|, eps) along an axis: with `of` "quotient" or "norm" that of the last division alone."""
    g, x = numbers(call, 0, 1)
    same_shape(call, g, x)
    axes = axes_of(call, required_numbers(call, "dim"), x.ndim)
    eps, of = real(call, "eps", default=1e-12), text(call, "of", default="input")
    squares = (Tracked(x) * x).total(axes)
    norm = _stored(squares.sqrt(), _narrow(call))
    is_small = norm.value < eps
    bound = where(is_small, eps, norm)
    if of == "norm":
        result = -(Tracked(x) / bound / bound * g)
    else:
        result = Tracked(g) / bound
        if of == "input":
            along = (Tracked(g) * x).total(axes) / (bound * bound * bound)
            result = result - where(is_small, 0.0, along) * x
    return [Output(array=result.value, summed=result.summed * _narrow(call))]


@op("torch.cosine_grad", kind=Kind.COMPOSITE, inputs=("gradient", "x1", "x2"))
def cosine_gradient(call: Call) -> Outputs:
    """The gradient of cosine_similarity for x1: g (b / (|a| |b|) − y a / |a|²), with norms of at least eps."""
    g, a, b = numbers(call, 0, 1, 2)
    same_shape(call, a, b)
    axes = axes_of(call, required_numbers(call, "dim"), a.ndim)
    eps = real(call, "eps", default=1e-8)
    of_a, of_b = (_bounded_norm(x, axes, eps) for x in (a, b))
    unit = Tracked(b) / of_b
    along = (Tracked(a) / of_a * unit).total(axes)
    is_small = of_a.value <= eps
    result = (unit - where(is_small, 0.0, along * a / of_a)) / of_a * g
    return [Output(array=result.value, summed=result.summed * _narrow(call))]


def _bounded_norm(x: Doubles, axes: tuple[int, ...], least: float) -> Tracked:
    norm = (Tracked(x) * x).total(axes).sqrt()
    return where(norm.value < least, least, norm)


@op("torch.distance_grad", kind=Kind.COMPOSITE, inputs=("gradient", "x1", "x2", "output"))
def distance_gradient(call: Call) -> Outputs:
    """The gradient of pairwise_distance for x1, or with a `sign` of −1 for x2: g d / |d| of the difference d + eps."""
    g, a, b, y = numbers(call, 0, 1, 2, 3)
    common_shape(call, g, a, b, y)
    difference = Tracked(a) - b + real(call, "eps", default=1e-6)
    if real(call, "p", default=2.0) == 2:
        result = where(y == 0, 0.0, difference / np.where(y == 0, 1.0, y)) * g
    elif real(call, "p") == 1:
        result = Tracked(np.sign(difference.value)) * g
    else:
        raise NotComputedError("no_variant", name="p", value=str(real(call, "p")))
    result = result * real(call, "sign", default=1.0)
    return [Output(array=result.value, summed=result.summed * _narrow(call))]


# --- losses -----------------------------------------------------------------------------------------------------------


def _share(call: Call, x: Doubles) -> float:
    """The factor of the gradient of a mean, or 1."""
    return 1 / max(1, x.size) if text(call, "reduction", default="mean") == "mean" else 1.0


def _classes_last(array: Doubles) -> Doubles:
    return np.moveaxis(array, 1, -1) if array.ndim > 1 else array


def _classes_second(array: Doubles) -> Doubles:
    return np.moveaxis(array, -1, 1) if array.ndim > 1 else array


#: What logarithms are taken of, at least.
_LEAST = 1e-300


@op("torch.class_loss_grad", kind=Kind.COMPOSITE, inputs=("gradient", "input", "target", "weight"))
def class_loss_gradient(call: Call) -> Outputs:
    """The gradient of cross_entropy for its logits, or with `of` "logarithms" of its nll_loss, by classes.

    Targets are classes or probabilities; the classes are the second axis, or the only one.
    """
    g, x = numbers(call, 0, 1)
    if not x.ndim:
        raise NotComputedError("shape", name="input", shape=())
    logits = _classes_last(x)
    classes = logits.shape[-1]
    target, smoothing = needed(call, 2), real(call, "label_smoothing", default=0.0)
    weight = np.broadcast_to(optional_numbers(call, 3, 1.0).reshape(-1), (classes,))
    reduction = text(call, "reduction", default="mean")
    if reduction not in ("none", "mean", "sum"):
        raise NotComputedError("no_variant", name="reduction", value=reduction)
    if target.array.dtype.kind == "f":
        same_shape(call, x, target.array)
        shares = (_classes_last(floats(target)) * (1 - smoothing) + smoothing / classes) * weight
        divisor = float(prod(logits.shape[:-1]))
    else:
        labels = target.array
        counts: Mask = labels != integer(call, "ignore_index", default=-100)
        if labels.shape != logits.shape[:-1] or np.any(counts & ((labels < 0) | (labels >= classes))):
            raise NotComputedError("shape", name="target", shape=labels.shape)
        shares = (np.where(counts, labels, 0)[..., None] == np.arange(classes)) * (1 - smoothing) * weight
        shares = np.where(counts[..., None], shares + smoothing / classes * weight, 0.0)
        divisor = float(np.sum(np.where(counts, weight[np.where(counts, labels, 0)], 0.0)))
    each = Tracked(g)[..., None] if reduction == "none" else Tracked(g)
    if reduction == "mean":
        each = each / (divisor or np.nan)
    narrow = _narrow(call)
    if text(call, "of", default="logits") == "logarithms":
        result = -(each * shares)
    else:
        largest = np.max(logits, axis=-1, keepdims=True)
        powers = (Tracked(logits) - np.where(np.isfinite(largest), largest, 0.0)).exp()
        softmax = powers / powers.total(-1)
        # The nodes of the loss and of the logarithm of the softmax store what they pass on, as a logarithm.
        off = narrow * np.abs(np.log(np.maximum(softmax.value, _LEAST))) if narrow > 1 else 0.0
        stored = Tracked(softmax.value, softmax.noise + (off * softmax.value) ** 2)
        passed = _stored(each * shares, narrow)
        result = stored * passed.total(-1) - passed
    return [Output(array=_classes_second(result.value), summed=_classes_second(result.summed))]


@op("torch.kl_div_grad", kind=Kind.APPROXIMATE, inputs=("gradient", "target"))
def divergence_gradient(call: Call) -> Outputs:
    """−g target, or −g exp(target) of the logarithm of a target; for the target itself with the input in slot 2."""
    g, target = numbers(call, 0, 1)
    common_shape(call, g, target)
    each = Tracked(g) * (1 / max(1, integer(call, "count", default=1)))
    x = None if optional(call, 2) is None else floats(needed(call, 2))
    if flag(call, "log_target"):
        power = Tracked(target).exp()
        result = -(power * each) if x is None else power * (Tracked(target) - x + 1.0) * each
    elif x is None:
        result = -(each * target)
    else:
        result = (Tracked(target).log() + 1.0 - x) * each
    return [Output(array=result.value, summed=result.summed * _narrow(call))]


@op("torch.binary_target_grad", kind=Kind.COMPOSITE, inputs=("gradient", "input", "weight"))
def binary_target_gradient(call: Call) -> Outputs:
    """g w (log(1 − x) − log x)."""
    g, x = numbers(call, 0, 1)
    weight = optional_numbers(call, 2, 1.0)
    common_shape(call, g, x, weight)
    share = _share(call, x)
    result = ((1 - Tracked(x)).log() - Tracked(x).log()) * weight * g * share
    return [Output(array=result.value, summed=result.summed * _narrow(call))]


@op("torch.logits_grad", kind=Kind.COMPOSITE, inputs=("input", "target", "gradient", "weight", "pos_weight"))
def logits_gradient(call: Call) -> Outputs:
    """g w ((factor t + 1 − t) sigmoid(x) − factor t)."""
    x, target, g = numbers(call, 0, 1, 2)
    weight, factor = optional_numbers(call, 3, 1.0), optional_numbers(call, 4, 1.0)
    common_shape(call, x, target, g, weight, factor)
    share = Tracked(target) * factor if optional(call, 4) is not None else Tracked(target)
    both = share + 1.0 - target if optional(call, 4) is not None else Tracked(np.ones(()))
    result = (Tracked(x).sigmoid() * both - share) * weight * g * _share(call, x)
    return [Output(array=result.value, summed=result.summed * _narrow(call))]


@op("torch.logits_target_grad", kind=Kind.COMPOSITE, inputs=("gradient", "input", "weight", "pos_weight"))
def logits_target_gradient(call: Call) -> Outputs:
    """g w ((factor − 1) log(1 + exp(−x)) − x)."""
    g, x = numbers(call, 0, 1)
    weight, factor = optional_numbers(call, 2, 1.0), optional_numbers(call, 3, 1.0)
    common_shape(call, g, x, weight, factor)
    tail = (Tracked(-np.abs(x)).exp() + 1.0).log() + np.maximum(-x, 0)
    share = _share(call, x)
    result = (tail * (factor - 1) - x) * weight * g * share
    return [Output(array=result.value, summed=result.summed * _narrow(call))]


@op("torch.huber_loss_grad", kind=Kind.APPROXIMATE, inputs=("gradient", "input", "target"))
def huber_gradient(call: Call) -> Outputs:
    """The difference within delta, else delta with its sign, times the gradient."""
    g, x, target = numbers(call, 0, 1, 2)
    delta = real(call, "delta", default=1.0)
    difference = Tracked(x) - target
    share = _share(call, x)
    inside = np.abs(difference.value) < delta
    return [(where(inside, difference, delta * np.sign(difference.value)) * share * g).output()]


# --- torch_npu --------------------------------------------------------------------------------------------------------


@op("torch.rotary_grad", kind=Kind.ROUNDED, inputs=("gradient", "r1", "r2"))
def rotary_gradient(call: Call) -> Outputs:
    """g r1 − turned(g r2): the gradient of RotaryMul for what it turns."""
    g, cosines, sines = numbers(call, 0, 1, 2)
    common_shape(call, g, cosines, sines)
    if not g.ndim or g.shape[-1] % 2:
        raise NotComputedError("shape", name="gradient", shape=g.shape)
    return [(Tracked(g) * cosines - Tracked(turned(g * sines, flag(call, "interleaved")))).output()]
