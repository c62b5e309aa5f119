"""Normalisation and its gradients: layer, instance and group norm, LRN, L2, batch norm and the parts GE splits it into.

Sources: GE's prototypes in nn_norm_ops.h, nn_norm.h, nn_batch_norm_ops.h and reduce_ops.h, TensorFlow's LRN, LRNGrad
and FusedBatchNormV3. Sums for the variance of a batch norm are one-pass (Σ x² / n − mean²), as GE's BNTrainingReduce
and BNTrainingUpdate have them: their rounding is that of this form, which loses digits where the mean is large against
the deviation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod

import numpy as np

from precision_tool.lib.ops.base import (
    Call,
    Chained,
    Doubles,
    Input,
    Kind,
    NotComputedError,
    Output,
    Outputs,
    Places,
    needed,
    op,
    optional,
    summed_of,
)
from precision_tool.lib.ops.matrix import limited
from precision_tool.lib.ops.op_arguments import (
    HALF,
    ROUNDOFF,
    axes_of,
    axis_of,
    flag,
    floats,
    integer,
    numbers,
    real,
    required_numbers,
    same_shape,
    text,
)
from precision_tool.lib.ops.sum_orders import chained, sums_tried
from precision_tool.lib.ops.tracked import Tracked
from precision_tool.lib.ops.windows import BLOCK, expected, has_channels_first

#: Rounding to a short type is open within so many roundings of what is rounded.
_TIE = 16.0
#: Partial sums of a block that are looked at.
_PARTIAL_SUMS = 64
#: What GE's kernels of the layer norm's gradient add to the variance; the ops have no attribute for it.
_GRADIENT_EPSILON = 1e-12


@dataclass(frozen=True, slots=True)
class _Rows:
    """Tensors as rows, each normalised alone: (rows, length); parameters are one row, or one for each."""

    arrays: tuple[Doubles, ...]
    parameters: tuple[Doubles, ...]
    formula: Callable[..., Tracked]

    def whole(self, shape: Sequence[int]) -> Output:
        limited(0, prod(shape))
        result = self.formula(*self.arrays, *self.parameters)
        return result.reshape(*shape).output()

    def at(self, places: Places) -> Output:
        rows, columns = np.divmod(places, max(1, self.arrays[0].shape[1]))
        some, row_of = np.unique(rows, return_inverse=True)
        arrays = [array[some] for array in self.arrays]
        parameters = [parameter if parameter.shape[0] == 1 else parameter[some] for parameter in self.parameters]
        return self.formula(*arrays, *parameters)[row_of, columns].output()


@dataclass(frozen=True, slots=True)
class _Plan:
    """The first output of an op, as large as its first input, and the others, which are small."""

    first: _Rows | _ByChannel
    others: Callable[[], Sequence[Output | None]] = list


def _rows_of(array: Doubles, length: int) -> Doubles:
    return array.reshape(-1, max(1, length))


def _parameter(call: Call, array: Doubles, shape: tuple[int, ...], length: int) -> Doubles:
    """gamma or beta as one row, or where it differs from row to row as one for each."""
    if array.size == length and array.shape == shape[len(shape) - array.ndim :]:
        return array.reshape(1, -1)
    try:
        return _rows_of(np.broadcast_to(array, shape), length)
    except ValueError:
        raise NotComputedError(
            "shape_misfit", name="parameter", shape=array.shape, other="x", other_shape=tuple(shape)
        ) from None


def _moments(x: Doubles) -> tuple[Tracked, Tracked]:
    if not x.size:
        raise NotComputedError("empty")
    mean = Tracked(x).total(1) * (1 / x.shape[1])
    centred = x - mean
    return mean, (centred * centred).total(1) * (1 / x.shape[1])


def _register(names: Sequence[str], inputs: Sequence[str], plan: Callable[[Call], _Plan]) -> None:
    """Register an op by what makes its outputs."""

    def function(call: Call) -> Outputs:
        shape = needed(call, 0).array.shape
        expected(call, 0, shape)
        task = plan(call)
        return [task.first.whole(shape), *task.others()]

    def sampled(call: Call, places: Places) -> Output:
        return plan(call).first.at(places)

    def work(call: Call) -> float:
        return 8.0 * needed(call, 0).array.size

    op(*names, kind=Kind.COMPOSITE, inputs=inputs, sampled=sampled, work=work)(function)


def _shaped(call: Call, slot: int, result: Tracked, otherwise: Sequence[int]) -> Output:
    """An output in the shape that the graph gives it."""
    shape = call.outputs[slot].shape if slot < len(call.outputs) else None
    if shape is not None and prod(shape) != result.value.size:
        raise NotComputedError("other_than_graph", slot=slot, shape=(result.value.size,), other_shape=shape)
    return result.reshape(*(otherwise if shape is None else shape)).output()


# --- layer norm -------------------------------------------------------------------------------------------------------


def _layer_norm(call: Call) -> _Plan:
    """x, gamma, beta; outputs y, mean, and the variance or in V3 its inverse root."""
    if len([tensor for tensor in call.inputs if tensor is not None]) != 3:
        raise NotComputedError("input_count", number=len(call.inputs))
    x, gamma, beta = numbers(call, 0, 1, 2)
    is_v3 = call.op_type == "LayerNormV3"
    begin = axis_of(call, integer(call, "begin_norm_axis", default=0), x.ndim)
    epsilon = real(call, "epsilon", default=1e-5 if is_v3 else 1e-7)
    length = prod(x.shape[begin:])
    start = axis_of(call, integer(call, "begin_params_axis", default=0), x.ndim)
    if gamma.size != prod(x.shape[start:]) and gamma.size != length:
        raise NotComputedError("shape_misfit", name="gamma", shape=gamma.shape, other="x", other_shape=x.shape[start:])
    rows = _rows_of(x, length)
    parameters = tuple(_parameter(call, tensor, x.shape, length) for tensor in (gamma, beta))

    def formula(x: Doubles, gamma: Doubles, beta: Doubles) -> Tracked:
        mean, variance = _moments(x)
        return (x - mean) / (variance + epsilon).sqrt() * gamma + beta

    def others() -> Outputs:
        mean, variance = _moments(rows)
        last = 1.0 / (variance + epsilon).sqrt() if is_v3 else variance
        shape = (*x.shape[:begin], *[1] * (x.ndim - begin))
        return [_shaped(call, 1, mean, shape), _shaped(call, 2, last, shape)]

    return _Plan(_Rows((rows,), parameters, formula), others)


_register(["LayerNorm", "LayerNormV3"], ["x", "gamma", "beta"], _layer_norm)


@dataclass(frozen=True, slots=True)
class _LayerGradient:
    """The inputs of a layer norm's gradient as rows, statistics as one number for each."""

    shape: tuple[int, ...]
    dy: Doubles
    x: Doubles
    mean: Doubles
    root: Tracked

    @property
    def normalised(self) -> Tracked:
        return _normalised(self.x, self.mean, self.root)

    def gamma_and_beta(self, call: Call, slots: tuple[int, int], shape: Sequence[int]) -> list[Output]:
        return _gamma_and_beta(call, slots, self.dy, self.normalised, self.shape, shape)


def _normalised(x: Doubles, mean: Doubles, root: Tracked | Doubles) -> Tracked:
    normalised: Tracked = (Tracked(x) - mean) / root
    return normalised


def _gamma_and_beta(
    call: Call, slots: tuple[int, int], dy: Doubles, normalised: Tracked, of: tuple[int, ...], shape: Sequence[int]
) -> list[Output]:
    """Gradients of gamma and beta: sums over the axes that the parameters have not."""
    if len(shape) > len(of) or any(own not in (1, other) for own, other in zip(shape[::-1], of[::-1], strict=False)):
        raise NotComputedError("shape_misfit", name="gamma", shape=tuple(shape), other="x", other_shape=of)
    extra = len(of) - len(shape)
    axes = (*range(extra), *(extra + axis for axis, size in enumerate(shape) if size == 1 != of[extra + axis]))
    parameters = []
    for slot, part in zip(slots, (normalised * dy, Tracked(dy)), strict=True):
        total = part.reshape(*of).total(axes) if axes else part.reshape(*of)
        parameters.append(_shaped(call, slot, total, shape))
    return parameters


def _layer_gradient(call: Call, gives_root: bool) -> _LayerGradient:
    """dy, x, variance (or its inverse root), mean."""
    dy, x, variance, mean = numbers(call, 0, 1, 2, 3)
    same_shape(call, dy, x)
    rows = mean.size
    if variance.size != rows or not rows or x.size % rows:
        raise NotComputedError("shapes_misfit", name="mean, variance, x", shapes=(mean.shape, variance.shape, x.shape))
    length = x.size // rows
    if gives_root:
        root = 1.0 / Tracked(variance.reshape(-1, 1))
    else:
        root = (Tracked(variance.reshape(-1, 1)) + real(call, "epsilon", default=_GRADIENT_EPSILON)).sqrt()
    return _LayerGradient(x.shape, _rows_of(dy, length), _rows_of(x, length), mean.reshape(-1, 1), root)


def _gradient_of_rows(dy: Doubles, x: Doubles, mean: Doubles, root: Doubles, noise: Doubles, gamma: Doubles) -> Tracked:
    """The gradient of x: what is left of dy γ without its mean and without its part along x̂, by the deviation."""
    count = x.shape[1]
    deviation = Tracked(root, noise)
    along = _normalised(x, mean, deviation)
    g = Tracked(dy) * gamma
    first = g.total(1) * (1 / count)
    second = (g * along).total(1) * (1 / count)
    result: Tracked = (g - first - along * second) / deviation
    return result


def _x_backprop(call: Call) -> _Plan:
    """dy, x, variance, mean, gamma; outputs for x, and of LayerNormGrad for gamma and beta."""
    is_v3 = call.op_type.endswith("GradV3")
    result = _layer_gradient(call, is_v3)
    gamma = floats(needed(call, 4))
    row = _parameter(call, gamma, result.shape, result.x.shape[1])
    rows = _Rows((result.dy, result.x, result.mean, result.root.value, result.root.noise), (row,), _gradient_of_rows)

    def others() -> Outputs:
        if call.op_type == "LayerNormXBackprop":
            return []
        if call.op_type == "LayerNormXBackpropV2":
            return [_shaped(call, 1, result.normalised, result.shape)]
        return result.gamma_and_beta(call, (1, 2), gamma.shape)

    return _Plan(rows, others)


_register(
    ["LayerNormGrad", "LayerNormGradV3", "LayerNormXBackprop", "LayerNormXBackpropV2"],
    ["dy", "x", "variance", "mean", "gamma"],
    _x_backprop,
)


@op("LayerNormBetaGammaBackprop", kind=Kind.SUM, inputs=("dy", "x", "variance", "mean"))
def _beta_gamma(call: Call) -> Outputs:
    return _layer_gradient(call, False).gamma_and_beta(call, (0, 1), required_numbers(call, "shape_gamma"))


@op("LayerNormBetaGammaBackpropV2", kind=Kind.SUM, inputs=("dy", "res_for_gamma"))
def _beta_gamma_v2(call: Call) -> Outputs:
    dy, normalised = numbers(call, 0, 1)
    same_shape(call, dy, normalised)
    return _gamma_and_beta(call, (0, 1), dy, Tracked(normalised), dy.shape, required_numbers(call, "shape_gamma"))


# --- layer norm as PyTorch has it, and the norm by the root of the mean square ----------------------------------------


def _layer_norm_v4(call: Call) -> _Plan:
    """x, the shape that is normalised, and gamma and beta, which may be missing; outputs y, mean, inverse root."""
    (x,) = numbers(call, 0)
    last = tuple(required_numbers(call, "normalized_shape", slot=1))
    begin = x.ndim - len(last)
    if begin < 0 or not last or x.shape[begin:] != last:
        raise NotComputedError("shape_misfit", name="normalized_shape", shape=last, other="x", other_shape=x.shape)
    epsilon = real(call, "epsilon", default=1e-5)
    length = prod(last)
    rows = _rows_of(x, length)
    tensors = [optional(call, slot) for slot in (2, 3)]
    parameters = [_parameter(call, floats(tensor), x.shape, length) for tensor in tensors if tensor is not None]

    def formula(x: Doubles, *parameters: Doubles) -> Tracked:
        mean, variance = _moments(x)
        y = (x - mean) / (variance + epsilon).sqrt()
        rest = iter(parameters)
        if tensors[0] is not None:
            y = y * next(rest)
        return y if tensors[1] is None else y + next(rest)

    def others() -> Outputs:
        mean, variance = _moments(rows)
        shape = (*x.shape[:begin], *[1] * (x.ndim - begin))
        return [_shaped(call, 1, mean, shape), _shaped(call, 2, 1.0 / (variance + epsilon).sqrt(), shape)]

    return _Plan(_Rows((rows,), tuple(parameters), formula), others)


_register(["LayerNormV4"], ["x", "normalized_shape", "gamma", "beta"], _layer_norm_v4)


def _inverse_root(x: Tracked, epsilon: float) -> Tracked:
    """1 / sqrt(Σ x² / n + epsilon) of each row."""
    if not x.value.size:
        raise NotComputedError("empty")
    root = ((x * x).total(1) * (1 / x.value.shape[1]) + epsilon).sqrt()
    result: Tracked = 1.0 / root
    return result


def _rms_norm(call: Call) -> _Plan:
    """x (of AddRmsNorm two, which are added) and gamma; outputs y, the inverse root, and of AddRmsNorm the sum.

    The kernels of AddRmsNorm may hold the sum in its stored type.
    """
    count = 2 if call.op_type == "AddRmsNorm" else 1
    tensors = numbers(call, *range(count))
    same_shape(call, *tensors)
    x = tensors[0]
    gamma = optional(call, count)
    last = x.shape[-1:] if gamma is None else gamma.array.shape
    begin = x.ndim - len(last)
    if not last or begin < 0 or x.shape[begin:] != last:
        raise NotComputedError("shape_misfit", name="gamma", shape=last, other="x", other_shape=x.shape)
    epsilon = real(call, "epsilon", default=1e-6)
    length = prod(last)
    rows = tuple(_rows_of(tensor, length) for tensor in tensors)
    parameters = () if gamma is None else (floats(gamma).reshape(1, -1),)
    unit = ROUNDOFF.get(needed(call, 0).dtype, 0.0) / ROUNDOFF["float32"]

    def added(*parts: Doubles) -> Tracked:
        if len(parts) == 1:
            return Tracked(parts[0])
        total = parts[0] + parts[1]
        return Tracked(total, (max(1.0, unit) * total) ** 2)

    def formula(*arrays: Doubles) -> Tracked:
        x = added(*arrays[:count])
        y = x * _inverse_root(x, epsilon)
        return y * arrays[count] if parameters else y

    def others() -> Outputs:
        total = added(*rows)
        shape = (*x.shape[:begin], *[1] * (x.ndim - begin))
        result = [_shaped(call, 1, _inverse_root(total, epsilon), shape)]
        return [*result, total.reshape(*x.shape).output()] if count > 1 else result

    return _Plan(_Rows(rows, parameters, formula), others)


_register(["RmsNorm"], ["x", "gamma"], _rms_norm)
_register(["AddRmsNorm"], ["x1", "x2", "gamma"], _rms_norm)


# --- instance and group norm ------------------------------------------------------------------------------------------


def _groups_of(call: Call, x: Doubles, first: bool, groups: int) -> Doubles:
    """(batch · groups, elements): the channels first within each group."""
    moved = x if first else np.moveaxis(x, -1, 1)
    if x.ndim < 2 or groups < 1 or moved.shape[1] % groups:
        raise NotComputedError("value_misfit", name="num_groups", value=str(groups), shapes=(x.shape,))
    return moved.reshape(x.shape[0] * groups, -1)


def _scaled_rows(call: Call, y: Tracked, x: Doubles, slots: tuple[int, int], first: bool) -> Output:
    """The rows of each channel (or group) with a factor and an offset for each channel, in the shape of x.

    They are the inputs at `slots`, which may be missing.
    """
    channels = x.shape[1] if first else x.shape[-1]
    y = y.reshape(*(x.shape if first else (x.shape[0], channels, *x.shape[1:-1])))
    for slot, is_factor in zip(slots, (True, False), strict=True):
        tensor = optional(call, slot)
        if tensor is None:
            continue
        vector = floats(tensor)
        if vector.size not in (channels, channels * x.shape[0]):
            raise NotComputedError(
                "count_misfit", name=f"input {slot}", number=vector.size, other="channels", limit=channels
            )
        broadcast = vector.reshape(-1, channels, *[1] * (x.ndim - 2))
        y = y * broadcast if is_factor else y + broadcast
    expected(call, 0, x.shape)
    output = y.output()
    if first:
        return output
    return Output(array=np.moveaxis(output.array, 1, -1), summed=np.moveaxis(np.asarray(output.summed), 1, -1))


def _by_groups(call: Call, groups: int | None, epsilon: float) -> list[Output]:
    """y and the mean of each group; None for `groups` means one for each channel."""
    x = floats(needed(call, 0))
    if x.ndim < 2:
        raise NotComputedError("shape", name="x", shape=x.shape)
    limited(0, x.size)
    first = has_channels_first(call, needed(call, 0))
    channels = x.shape[1] if first else x.shape[-1]
    number = channels if groups is None else groups
    rows = _groups_of(call, x, first, number)
    mean, variance = _moments(rows)
    y = (rows - mean) / (variance + epsilon).sqrt()
    output = _scaled_rows(call, y, x, (1, 2), first)
    stats = (x.shape[0], number)
    return [output, _shaped(call, 1, mean, stats), _shaped(call, 2, variance, stats)]


@op("InstanceNorm", kind=Kind.COMPOSITE, inputs=("x", "gamma", "beta"))
def _instance_norm(call: Call) -> Outputs:
    return _by_groups(call, None, real(call, "epsilon", default=1e-6))


def _channels(call: Call) -> tuple[Doubles, Doubles, bool]:
    """x, its rows of one channel of one image each, and whether its channels come first."""
    x = floats(needed(call, 0))
    if x.ndim < 2:
        raise NotComputedError("shape", name="x", shape=x.shape)
    limited(0, x.size)
    first = has_channels_first(call, needed(call, 0))
    return x, _groups_of(call, x, first, x.shape[1] if first else x.shape[-1]), first


def _by_row(call: Call, slot: int, rows: Doubles) -> Tracked:
    """An input of one number for each row, or for each channel."""
    values = floats(needed(call, slot)).reshape(-1, 1)
    if not values.size or rows.shape[0] % values.size:
        raise NotComputedError(
            "count_misfit", name=f"input {slot}", number=values.size, other="channels", limit=rows.shape[0]
        )
    return Tracked(np.tile(values, (rows.shape[0] // values.size, 1)))


@op("INInferV2", kind=Kind.COMPOSITE, inputs=("x", "gamma", "beta", "mean", "variance"))
def _instance_norm_with_moments(call: Call) -> Outputs:
    """The norm by the given moments, and these."""
    x, rows, first = _channels(call)
    mean, variance = _by_row(call, 3, rows), _by_row(call, 4, rows)
    y = (rows - mean) / (variance + real(call, "epsilon", default=1e-5)).sqrt()
    moments = [floats(needed(call, slot)) for slot in (3, 4)]
    return [
        _scaled_rows(call, y, x, (1, 2), first),
        *(_shaped(call, slot, Tracked(array), array.shape) for slot, array in enumerate(moments, 1)),
    ]


@op("INTrainingReduceV2", kind=Kind.SUM, inputs=("x",))
def _instance_sums(call: Call) -> Outputs:
    """Sums, and sums of squares, of each channel of each image."""
    x, rows, first = _channels(call)
    shape = (*x.shape[:2], *[1] * (x.ndim - 2)) if first else (x.shape[0], *[1] * (x.ndim - 2), x.shape[-1])
    sums = (Tracked(rows).total(1), (Tracked(rows) * rows).total(1))
    return [_shaped(call, slot, total, shape) for slot, total in enumerate(sums)]


@op(
    "INTrainingUpdateV2", kind=Kind.COMPOSITE,
    inputs=("x", "sum", "square_sum", "gamma", "beta", "mean", "variance"),
)  # fmt: skip
def _instance_norm_of_sums(call: Call) -> Outputs:
    """The norm by the moments that the sums give; how it moves the averages is not documented."""
    x, rows, first = _channels(call)
    mean, squares = (_by_row(call, slot, rows) * (1 / max(1, rows.shape[1])) for slot in (1, 2))
    variance = squares - mean * mean
    y = (rows - mean) / (variance + real(call, "epsilon", default=1e-5)).sqrt()
    return [_scaled_rows(call, y, x, (3, 4), first), None, None]


@op("GroupNorm", kind=Kind.COMPOSITE, inputs=("x", "gamma", "beta"))
def _group_norm(call: Call) -> Outputs:
    outputs = _by_groups(call, integer(call, "num_groups"), real(call, "eps", "epsilon", default=1e-4))
    return [*outputs[:2], None]  # by version the variance or its inverse root


# --- local response, L2 -----------------------------------------------------------------------------------------------


def _neighbours(values: Tracked, radius: int) -> Tracked:
    """Sum over the channels (the last axis) within `radius`."""
    count = values.value.shape[-1]
    shape = values.value.shape
    if radius < 0:
        raise NotComputedError("not_allowed", name="depth_radius", value=str(radius))
    total, noise = np.zeros(shape), np.zeros(shape)
    for shift in range(-min(radius, count - 1), min(radius, count - 1) + 1):
        to = slice(max(0, -shift), count - max(0, shift))
        at = slice(max(0, shift), count - max(0, -shift))
        total[..., to] += values.value[..., at]
        noise[..., to] += values.noise[..., at] + total[..., to] ** 2
    return Tracked(total, noise)


def _response(call: Call) -> tuple[int, int, float, float, float]:
    if text(call, "norm_region", default="ACROSS_CHANNELS") != "ACROSS_CHANNELS":
        raise NotComputedError(
            "no_variant", name="norm_region", value=text(call, "norm_region", default="ACROSS_CHANNELS")
        )
    tensor = needed(call, 0)
    if not tensor.array.ndim:
        raise NotComputedError("shape", name="x", shape=())
    axis = 1 if tensor.array.ndim > 2 and has_channels_first(call, tensor) else tensor.array.ndim - 1
    limited(0, tensor.array.size)
    return (
        axis,
        integer(call, "depth_radius", default=5),
        real(call, "bias", default=1.0),
        real(call, "alpha", default=1.0),
        real(call, "beta", default=0.5),
    )


def _as_script(result: Tracked, axis: int) -> Output:
    return Output(array=np.moveaxis(result.value, -1, axis), summed=np.moveaxis(result.summed, -1, axis))


@op("LRN", kind=Kind.COMPOSITE, inputs=("x",))
def _lrn(call: Call) -> Outputs:
    """x / (bias + alpha Σ x²)^beta, the sum over the channels within a radius."""
    axis, radius, bias, alpha, beta = _response(call)
    x = np.moveaxis(floats(needed(call, 0)), axis, -1)
    base = _neighbours(Tracked(x) * x, radius) * alpha + bias
    return [_as_script(base.power(-beta) * x, axis)]


@op("LRNGrad", kind=Kind.COMPOSITE, inputs=("grads", "x", "y"))
def _lrn_grad(call: Call) -> Outputs:
    axis, radius, bias, alpha, beta = _response(call)
    arrays = numbers(call, 0, 1, 2)
    same_shape(call, *arrays)
    g, x, y = (np.moveaxis(array, axis, -1) for array in arrays)
    base = _neighbours(Tracked(x) * x, radius) * alpha + bias
    around = _neighbours(Tracked(g) * y / base, radius)
    return [_as_script(base.power(-beta) * g - around * x * (2 * alpha * beta), axis)]


@op("L2Normalize", kind=Kind.COMPOSITE, inputs=("x",))
def _l2_normalize(call: Call) -> Outputs:
    """x / sqrt(max(Σ x², eps))."""
    (x,) = numbers(call, 0)
    axes = axes_of(call, required_numbers(call, "axis"), x.ndim)
    squares = (Tracked(x) * x).total(axes)
    floor = real(call, "eps", default=1e-4)
    noise = np.where(squares.value > floor, squares.variance, 0.0)
    return [(x / Tracked(np.maximum(squares.value, floor), noise).sqrt()).output()]


@op("L2NormalizeGrad", kind=Kind.COMPOSITE, inputs=("x", "y", "dy"))
def _l2_normalize_grad(call: Call) -> Outputs:
    """(dy − y Σ y dy) / max(‖x‖, eps)."""
    x, y, dy = numbers(call, 0, 1, 2)
    same_shape(call, x, y, dy)
    axes = axes_of(call, required_numbers(call, "dim"), x.ndim)
    size = (Tracked(x) * x).total(axes).sqrt()
    floor = real(call, "eps", default=1e-4)
    norm = Tracked(np.maximum(size.value, floor), np.where(size.value > floor, size.variance, 0.0))
    return [((dy - (Tracked(y) * dy).total(axes) * y) / norm).output()]


# --- batch norm -------------------------------------------------------------------------------------------------------


Formula = Callable[..., Tracked]


@dataclass(frozen=True, slots=True)
class _ByChannel:
    """A formula of tensors of one shape, element by element, and of vectors along the channels."""

    arrays: tuple[Doubles, ...]
    axis: int
    vectors: tuple[Tracked, ...]
    formula: Formula

    def whole(self, shape: Sequence[int]) -> Output:
        limited(0, prod(shape))
        along_channels = [-1 if axis == self.axis else 1 for axis in range(len(shape))]
        return self.formula(*self.arrays, *(vector.reshape(*along_channels) for vector in self.vectors)).output()

    def at(self, places: Places) -> Output:
        where = np.unravel_index(places, self.arrays[0].shape)
        channels = where[self.axis]
        return self.formula(
            *(array[where] for array in self.arrays), *(vector[channels] for vector in self.vectors)
        ).output()


# --- reading a call ---------------------------------------------------------------------------------------------------


def _axis(call: Call, tensor: Input) -> int:
    if tensor.array.ndim < 2:
        raise NotComputedError("shape", name="x", shape=tensor.array.shape)
    return 1 if tensor.array.ndim > 2 and has_channels_first(call, tensor) else tensor.array.ndim - 1


def _elements(call: Call, x: Doubles, channels: int) -> int:
    """Elements of each channel in all, also where `x` is a part of them."""
    return x.size // max(1, channels) * max(call.rows, 1) // (x.shape[0] if call.rows and x.shape[0] else 1)


def _vector(call: Call, slot: int, channels: int) -> Doubles:
    """An input of one number for each channel, whatever other axes of length 1 it has."""
    values = floats(needed(call, slot)).reshape(-1)
    if values.size != channels:
        raise NotComputedError(
            "count_misfit", name=f"input {slot}", number=values.size, other="channels", limit=channels
        )
    return values


def _exact(call: Call, slots: Sequence[int], channels: int) -> list[Tracked]:
    return [Tracked(_vector(call, slot, channels)) for slot in slots]


def _small(call: Call, slot: int, vector: Tracked) -> Output:
    """A vector as an output, with the axes that the graph gives it."""
    return _shaped(call, slot, vector, vector.value.shape)


def _as_sum(
    output: Output | None, total: _Total, axis: int, terms: Callable[..., Doubles], *arrays: Doubles
) -> Output | None:
    """An output as sums over all axes but the channels; `terms` makes what is summed of tensors and vectors."""
    if output is None:
        return None
    count = arrays[0].size // max(1, total.squares.size)

    def chained_channels() -> Chained:
        channels = arrays[0].shape[axis]
        some = slice(None, None, -(-channels // min(channels, sums_tried(count))))
        parts = [(np.moveaxis(array, axis, -1) if array.ndim > 1 else array)[..., some] for array in arrays]
        made = terms(*parts)
        return chained(made.reshape(-1, made.shape[-1]).T, in_memory_order=True)

    sizes = np.sqrt(total.squares).reshape(output.array.shape)
    return replace(output, terms=sizes, length=count, chained=cache(chained_channels))


def _each_small(call: Call, vectors: Iterable[Tracked], first: int = 0) -> list[Output | None]:
    """Vectors as outputs from a slot on, judged singly: None for one that the graph describes otherwise.

    That is an error only if there is no other output, nor one before `first`.
    """
    outputs: list[Output | None] = []
    errors: list[NotComputedError] = []
    for slot, vector in enumerate(vectors, first):
        try:
            outputs.append(_small(call, slot, vector))
        except NotComputedError as error:
            outputs.append(None)
            errors.append(error)
    if not first and errors and len(errors) == len(outputs):
        raise errors[0]
    return outputs


def _blocks(axis: int, *arrays: Doubles) -> Iterator[list[Doubles]]:
    """Blocks of the tensors, as (elements, channels)."""
    shape = arrays[0].shape
    if not prod(shape):
        raise NotComputedError("empty")
    at_once = max(1, BLOCK // prod(shape[1:]))
    for start in range(0, shape[0], at_once):
        parts = [np.asarray(array[start : start + at_once], np.float64) for array in arrays]
        yield [np.moveaxis(part, axis, -1).reshape(-1, shape[axis]) for part in parts]


@dataclass(frozen=True, slots=True)
class _Total:
    """Sums by channel, and those of the squares of what was added up."""

    of: Tracked
    squares: Doubles


def _totals(parts: Iterator[list[Tracked]]) -> list[_Total]:
    """The sums, channel by channel, of what comes block by block."""
    count, sums = 0, np.zeros((0, 4, 1))
    for block in parts:
        before = [np.zeros(1)] * len(block) if not count else list(sums[:, 0])
        block_sums = np.stack([_in_memory_order(part, start) for part, start in zip(block, before, strict=True)])
        sums = block_sums if not count else sums + block_sums
        count += len(block[0].value)
    totals = []
    for total, squares, came, walked in sums:
        spread = squares - total**2 / count
        # As `summed_of` has it in any order, or as the partial sums in the order of memory are where that is more.
        own = np.maximum(summed_of(total, spread, count) ** 2, walked) if count > 1 else 0.0
        totals.append(_Total(Tracked(total, came + own), squares))
    return totals


def _in_memory_order(part: Tracked, start: Doubles) -> Doubles:
    """Σ p, Σ p², the variance that came with them, and Σ s_k² over the partial sums, which begin at `start`.

    Partial sums are taken every some terms, and between them as on a straight line.
    """
    values = part.value
    length = max(1, -(-len(values) // _PARTIAL_SUMS))
    edges = np.arange(0, len(values), length)
    whole = len(values) // length
    pieces = values[: whole * length].reshape(whole, length, -1).sum(1)
    if whole < len(edges):
        pieces = np.concatenate([pieces, values[whole * length :].sum(0, keepdims=True)])
    partial = start + np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(pieces, axis=0)])
    lengths = np.diff(np.append(edges, len(values)))
    ends = partial[:-1] ** 2 + partial[:-1] * partial[1:] + partial[1:] ** 2
    squares = np.einsum("kc,kc->c", values, values)
    came = part.noise.sum(0) if isinstance(part.variance, np.ndarray) else part.noise[0] * len(values)
    return np.stack([pieces.sum(0), squares, came, lengths @ ends / 3])


def _sums_of_channels(x: Doubles, axis: int) -> list[_Total]:
    """Sums of the elements of each channel and of their squares."""
    return _totals([Tracked(part), Tracked(part) * part] for (part,) in _blocks(axis, x))


def _mean_and_variance(total: Tracked, squares: Tracked, count: int) -> tuple[Tracked, Tracked]:
    mean = total * (1 / count)
    return mean, squares * (1 / count) - mean * mean


def _unbiased(variance: Tracked, count: int) -> Tracked:
    """The variance of a sample: by n − 1, but not below 1 (GE has 0 for one element, where it is 0 anyway)."""
    return variance * (count / max(count - 1, 1))


def _with(result: Tracked, factor: Tracked, of: Doubles) -> Tracked:
    """Add the variance of a factor that occurs twice in a formula; `of` is what remains of both occurrences."""
    return Tracked(result.value, result.variance + factor.variance * of**2)


def _normalising(epsilon: float) -> Formula:
    """GE's order: a factor and an addend for each channel, then x · factor + addend."""

    def formula(x: Doubles, mean: Tracked, variance: Tracked, scale: Tracked, offset: Tracked) -> Tracked:
        factor = scale / (variance + epsilon).sqrt()
        once = Tracked(factor.value)
        return _with(once * x + (offset - once * mean), factor, x - mean.value)

    return formula


# --- the parts that GE splits it into ---------------------------------------------------------------------------------


@op("BNTrainingReduce", "BN3DTrainingReduce", kind=Kind.SUM, inputs=("x",))
def _reduce(call: Call) -> Outputs:
    """Sum and sum of squares of each channel."""
    x = floats(needed(call, 0))
    axis = _axis(call, needed(call, 0))
    totals = _sums_of_channels(x, axis)
    sums, squares = _each_small(call, [total.of for total in totals])
    return [
        _as_sum(sums, totals[0], axis, lambda x: x, x),
        _as_sum(squares, totals[1], axis, lambda x: x * x, x),
    ]


def _update(call: Call) -> _Plan:
    """x, sum, square_sum, scale, offset and, in the first version, the running mean and variance."""
    x = floats(needed(call, 0))
    axis = _axis(call, needed(call, 0))
    channels = x.shape[axis]
    count = _elements(call, x, channels)
    total, squares, scale, offset = _exact(call, (1, 2, 3, 4), channels)
    mean, variance = _mean_and_variance(total, squares, max(1, count))
    epsilon = real(call, "epsilon")

    def others() -> list[Output | None]:
        if call.op_type.endswith("V2"):
            statistics = [mean, variance]
        elif call.op_type.endswith("V3"):
            statistics = [mean, _unbiased(variance, count), mean, variance]
        else:
            factor = real(call, "factor")
            running = _exact(call, (5, 6), channels)
            now = mean, _unbiased(variance, count)
            statistics = [new * factor + old * (1 - factor) for new, old in zip(now, running, strict=True)]
            statistics += [mean, variance]
        return _each_small(call, statistics, 1)

    return _Plan(_ByChannel((x,), axis, (mean, variance, scale, offset), _normalising(epsilon)), others)


_register(
    ["BNTrainingUpdate", "BNTrainingUpdateV2", "BNTrainingUpdateV3", "BN3DTrainingUpdate"],
    ["x", "sum", "square_sum", "scale", "offset", "mean", "variance"],
    _update,
)


def _scale_and_offset(g: Doubles, x: Doubles, axis: int, mean: Tracked, root: Tracked) -> list[_Total]:
    """Gradients of scale and offset; `root` is sqrt(variance + epsilon)."""

    def parts() -> Iterator[list[Tracked]]:
        for some_g, some_x in _blocks(axis, g, x):
            yield [(some_x - mean) / root * some_g, Tracked(some_g)]

    return _totals(parts())


def _gradient_inputs(call: Call) -> tuple[Doubles, Doubles, int]:
    g, x = numbers(call, 0, 1)
    same_shape(call, g, x)
    return g, x, _axis(call, needed(call, 1))


@op(
    "BNTrainingUpdateGrad", "BN3DTrainingUpdateGrad",
    kind=Kind.SUM, inputs=("grads", "x", "batch_mean", "batch_variance"),
)  # fmt: skip
def _update_grad(call: Call) -> Outputs:
    """Gradients of scale and offset."""
    g, x, axis = _gradient_inputs(call)
    mean, variance = _exact(call, (2, 3), x.shape[axis])
    root = (variance + real(call, "epsilon", default=1e-4)).sqrt()
    totals = _scale_and_offset(g, x, axis, mean, root)
    d_scale, d_offset = _each_small(call, [total.of for total in totals])
    # What scales the whole sum of a channel is left out: it does not matter how far rounding takes the rest.
    return [
        _as_sum(d_scale, totals[0], axis, lambda g, x, mean: (x - mean) * g, g, x, mean.value),
        _as_sum(d_offset, totals[1], axis, lambda g: g, g),
    ]


def _gradient_of_x(count: int) -> Formula:
    """GE's order: (g + x · factor + addend) · scale / root, of the factor and the addend of each channel."""

    def formula(g: Doubles, x: Doubles, *vectors: Tracked) -> Tracked:
        d_scale, d_offset, scale, mean, root = vectors
        factor = d_scale * (1 / count) / root
        once = Tracked(factor.value)
        addend = once * mean + d_offset * (-1 / count)
        return _with(once * -x + g + addend, factor, x - mean.value) * (scale / root)

    return formula


def _reduce_grad(call: Call) -> _Plan:
    g, x, axis = _gradient_inputs(call)
    channels = x.shape[axis]
    d_scale, d_offset, scale, mean, variance = _exact(call, (2, 3, 4, 5, 6), channels)
    root = (variance + real(call, "epsilon", default=1e-4)).sqrt()
    formula = _gradient_of_x(_elements(call, x, channels))

    return _Plan(_ByChannel((g, x), axis, (d_scale, d_offset, scale, mean, root), formula), list)


_register(
    ["BNTrainingReduceGrad", "BN3DTrainingReduceGrad"],
    ["grads", "x", "diff_scale", "diff_offset", "scale", "batch_mean", "batch_variance"],
    _reduce_grad,
)


def _infer(call: Call) -> _Plan:
    x = floats(needed(call, 0))
    axis = _axis(call, needed(call, 0))
    scale, offset, mean, variance = _exact(call, (1, 2, 3, 4), x.shape[axis])
    epsilon = real(call, "epsilon", default=1e-4)

    return _Plan(_ByChannel((x,), axis, (mean, variance, scale, offset), _normalising(epsilon)))


_register(["BNInfer"], ["x", "scale", "offset", "mean", "variance"], _infer)


def _infer_grad(call: Call) -> _Plan:
    g = floats(needed(call, 0))
    axis = _axis(call, needed(call, 0))
    scale, variance = _exact(call, (1, 2), g.shape[axis])
    factor = scale / (variance + real(call, "epsilon", default=1e-4)).sqrt()
    return _Plan(_ByChannel((g,), axis, (factor,), lambda g, factor: factor * g))


_register(["BNInferGrad"], ["grads", "scale", "batch_variance"], _infer_grad)


# --- the ops of TensorFlow --------------------------------------------------------------------------------------------


def _batch_norm(call: Call) -> _Plan:
    """Outputs: y, batch mean, batch variance (of a sample), and what the gradient takes: mean, variance."""
    x = floats(needed(call, 0))
    axis = _axis(call, needed(call, 0))
    channels = x.shape[axis]
    count = x.size // max(1, channels)
    scale, offset = _exact(call, (1, 2), channels)
    epsilon = real(call, "epsilon", default=1e-4)
    if flag(call, "is_training", default=True):
        total, squares = _sums_of_channels(x, axis)
        mean, variance = _mean_and_variance(total.of, squares.of, count)
        statistics = [mean, _unbiased(variance, count)]
        factor = real(call, "exponential_avg_factor", default=1.0)
        if factor != 1:
            running = _exact(call, (3, 4), channels)
            statistics = [new * factor + old * (1 - factor) for new, old in zip(statistics, running, strict=True)]
    else:
        mean, variance = statistics = _exact(call, (3, 4), channels)

    def others() -> list[Output | None]:
        outputs = _each_small(call, [*statistics, mean, variance], 1)
        return [*outputs, *[None] * (max(len(call.outputs), 5) - 5)]

    return _Plan(_ByChannel((x,), axis, (mean, variance, scale, offset), _normalising(epsilon)), others)


_register(
    ["BatchNorm", "BatchNormExt2", "BatchNorm3D", "FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"],
    ["x", "scale", "offset", "mean", "variance"],
    _batch_norm,
)


def _batch_norm_grad(call: Call) -> _Plan:
    """y_backprop, x, scale, mean and variance as the forward op reserved them; outputs for x, scale and offset."""
    g, x, axis = _gradient_inputs(call)
    channels = x.shape[axis]
    scale, mean, variance = _exact(call, (2, 3, 4), channels)
    root = (variance + real(call, "epsilon", default=1e-4)).sqrt()
    d_scale, d_offset = (total.of for total in _scale_and_offset(g, x, axis, mean, root))
    count = x.size // max(1, channels)

    def others() -> list[Output | None]:
        outputs = _each_small(call, (d_scale, d_offset), 1)
        return [*outputs, *[None] * (max(len(call.outputs), 3) - 3)]

    if not flag(call, "is_training", default=True):
        factor = scale / root
        return _Plan(_ByChannel((g,), axis, (factor,), lambda g, factor: factor * g), others)

    return _Plan(_ByChannel((g, x), axis, (d_scale, d_offset, scale, mean, root), _gradient_of_x(count)), others)


_register(
    [
        "BatchNormGrad",
        "BatchNormGradExt2",
        "BatchNorm3DGrad",
        "FusedBatchNormGrad",
        "FusedBatchNormGradV2",
        "FusedBatchNormGradV3",
    ],
    ["y_backprop", "x", "scale", "reserve_space_1", "reserve_space_2"],
    _batch_norm_grad,
)


# --- the op of PyTorch ------------------------------------------------------------------------------------------------


def _batch_norm_v3(call: Call) -> _Plan:
    """Outputs: y, the running mean and variance, and what the gradient takes: the mean and the inverse root.

    The variance is that of the differences from the mean, as PyTorch and the kernel compute it. `held` is the short
    type in which the mean and the inverse root are held: PyTorch's kernel for processors has that of its parameters.
    """
    held = text(call, "held", default="")
    if held and held not in HALF:
        raise NotComputedError("no_variant", name="held", value=held)
    x = floats(needed(call, 0))
    axis = _axis(call, needed(call, 0))
    channels = x.shape[axis]
    count = x.size // max(1, channels)
    epsilon = real(call, "epsilon", default=1e-5)
    scale, offset = (
        Tracked(np.full(channels, otherwise)) if optional(call, slot) is None else _exact(call, [slot], channels)[0]
        for slot, otherwise in ((1, 1.0), (2, 0.0))
    )
    has_running = optional(call, 3) is not None and optional(call, 4) is not None
    training = flag(call, "is_training", default=True)
    if training:
        mean = _totals([Tracked(part)] for (part,) in _blocks(axis, x))[0].of * (1 / count)
        centred = ([(part - mean) * (part - mean)] for (part,) in _blocks(axis, x))
        squares = _totals(centred)[0].of
        variance = squares * (1 / count)
        if held:
            mean = _held_in(mean, held)
    else:
        mean, variance = _exact(call, (3, 4), channels)
    inverse = 1.0 / (variance + epsilon).sqrt()
    if held and training:
        # Kernels hold the sum of squares in the short type as well, or not.
        other = 1.0 / (_held_in(squares, held) * (1 / count) + epsilon).sqrt()
        inverse = _one_of(_held_in(inverse, held), _held_in(other, held))

    def others() -> list[Output | None]:
        statistics: list[Tracked] = []
        if has_running:
            statistics = _exact(call, (3, 4), channels)
        if training and has_running:
            factor = real(call, "momentum", default=0.1)
            now = mean, _unbiased(variance, count)
            statistics = [old * (1 - factor) + new * factor for new, old in zip(now, statistics, strict=True)]
        running = _each_small(call, statistics, 1) if statistics else [None, None]
        return [*running, *_each_small(call, (mean, inverse), 3)]

    if held and training:
        formula: Formula = lambda x, mean, inverse, scale, offset: (x - mean) * inverse * scale + offset  # noqa: E731
        return _Plan(_ByChannel((x,), axis, (mean, inverse, scale, offset), formula), others)
    return _Plan(_ByChannel((x,), axis, (mean, variance, scale, offset), _centred_first(epsilon)), others)


def _held_in(statistic: Tracked, dtype: str) -> Tracked:
    """A statistic of each channel as a kernel holds it in a short type.

    Where rounding on the way decides between two of its numbers, the other one is as likely.
    """
    unit = ROUNDOFF[dtype]
    fraction, exponent = np.frexp(statistic.value)
    nearest = np.ldexp(np.rint(fraction / unit) * unit, exponent)
    spacing = np.ldexp(unit, exponent)
    off = _TIE * 2.0**-24 * np.sqrt(statistic.noise)
    is_open = np.abs(np.abs(statistic.value - nearest) - spacing / 2) <= off
    return Tracked(nearest, np.where(is_open, _within(spacing), 0.0))


def _one_of(first: Tracked, other: Tracked) -> Tracked:
    """The first of two numbers, each of which is as likely."""
    return Tracked(first.value, first.noise + other.noise + _within(first.value - other.value))


def _within(distance: Doubles) -> Doubles:
    """The variance of a number that may be off by so much, as far as the tolerance of a composite op goes."""
    result: Doubles = (distance * 2.0**24 / 4) ** 2
    return result


def _centred_first(epsilon: float) -> Formula:
    """(x − mean) / sqrt(variance + epsilon), then scale and offset."""

    def formula(x: Doubles, mean: Tracked, variance: Tracked, scale: Tracked, offset: Tracked) -> Tracked:
        return (x - mean) / (variance + epsilon).sqrt() * scale + offset

    return formula


_register(["BatchNormV3"], ["x", "weight", "bias", "running_mean", "running_var"], _batch_norm_v3)
