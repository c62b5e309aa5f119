"""Batch normalisation: TensorFlow's ops, and the parts that GE splits them into, with the gradients.

Sources: GE's prototypes in reduce_ops.h and nn_batch_norm_ops.h, TensorFlow's FusedBatchNormV3 and its gradient. Sums
for the variance are one-pass (Σ x² / n − mean²), as GE's BNTrainingReduce and BNTrainingUpdate have them: their
rounding is that of this form, which loses digits where the mean is large against the deviation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from precision_tool.lib.ops.base import (
    Call,
    Doubles,
    Input,
    Kind,
    NotComputedError,
    Output,
    Outputs,
    Places,
    needed,
    op,
    summed_of,
)
from precision_tool.lib.ops.matrix import limited
from precision_tool.lib.ops.op_arguments import flag, floats, numbers, real, same_shape
from precision_tool.lib.ops.tracked import Tracked
from precision_tool.lib.ops.windows import BLOCK, expected, has_channels_first

Formula = Callable[..., Tracked]


@dataclass(frozen=True, slots=True)
class _ByChannel:
    """A formula of tensors of one shape, element by element, and of vectors along the channels."""

    arrays: tuple[Doubles, ...]
    axis: int
    vectors: tuple[Tracked, ...]
    formula: Formula

    def whole(self) -> Output:
        shape = self.arrays[0].shape
        limited(0, prod(shape))
        along_channels = [-1 if axis == self.axis else 1 for axis in range(len(shape))]
        return self.formula(*self.arrays, *(vector.reshape(*along_channels) for vector in self.vectors)).output()

    def at(self, places: Places) -> Output:
        where = np.unravel_index(places, self.arrays[0].shape)
        channels = where[self.axis]
        return self.formula(
            *(array[where] for array in self.arrays), *(vector[channels] for vector in self.vectors)
        ).output()


@dataclass(frozen=True, slots=True)
class _Plan:
    """The big output of an op, if it has one, and the others, which are small."""

    first: _ByChannel | None
    others: Callable[[], Sequence[Output | None]]


# --- reading a call ---------------------------------------------------------------------------------------------------


def _axis(call: Call, tensor: Input) -> int:
    if tensor.array.ndim < 2:
        raise NotComputedError("shape", name="x", shape=tensor.array.shape)
    return 1 if tensor.array.ndim > 2 and has_channels_first(call, tensor) else tensor.array.ndim - 1


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
    shape = call.outputs[slot].shape if slot < len(call.outputs) else None
    if shape is not None and prod(shape) != vector.value.size:
        raise NotComputedError("other_than_graph", slot=slot, shape=(vector.value.size,), other_shape=shape)
    return (vector if shape is None else vector.reshape(*shape)).output()


def _blocks(axis: int, *arrays: Doubles) -> Iterator[list[Doubles]]:
    """Blocks of the tensors, as (elements, channels)."""
    shape = arrays[0].shape
    if not prod(shape):
        raise NotComputedError("empty")
    at_once = max(1, BLOCK // prod(shape[1:]))
    for start in range(0, shape[0], at_once):
        yield [np.moveaxis(array[start : start + at_once], axis, -1).reshape(-1, shape[axis]) for array in arrays]


def _totals(parts: Iterator[list[Tracked]]) -> list[Tracked]:
    """The sums, channel by channel, of what comes block by block."""
    count, sums = 0, np.zeros((0, 3, 1))
    for block in parts:
        block_sums = np.stack(
            [np.stack([part.value.sum(0), np.square(part.value).sum(0), _came(part).sum(0)]) for part in block]
        )
        sums = block_sums if not count else sums + block_sums
        count += len(block[0].value)
    return [
        Tracked(total, came + (summed_of(total, squares - total**2 / count, count) ** 2 if count > 1 else 0.0))
        for total, squares, came in sums
    ]


def _came(part: Tracked) -> Doubles:
    return np.broadcast_to(np.asarray(part.variance, np.float64), part.value.shape)


def _moments(x: Doubles, axis: int) -> tuple[Tracked, Tracked]:
    """Sums of the elements of each channel and of their squares."""
    total, squares = _totals([Tracked(part), Tracked(part) * part] for (part,) in _blocks(axis, x))
    return total, squares


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


def _register(names: Sequence[str], inputs: Sequence[str], plan: Callable[[Call], _Plan]) -> None:
    """An op whose first output is as large as its first input."""

    def function(call: Call) -> Outputs:
        task = plan(call)
        expected(call, 0, needed(call, 0).array.shape)
        assert task.first is not None
        return [task.first.whole(), *task.others()]

    def sampled(call: Call, places: Places) -> Output:
        first = plan(call).first
        assert first is not None
        return first.at(places)

    def work(call: Call) -> float:
        return 8.0 * needed(call, 0).array.size

    op(*names, kind=Kind.COMPOSITE, inputs=inputs, sampled=sampled, work=work)(function)


# --- the parts that GE splits it into ---------------------------------------------------------------------------------


@op("BNTrainingReduce", "BN3DTrainingReduce", kind=Kind.SUM, inputs=("x",))
def _reduce(call: Call) -> Outputs:
    """Sum and sum of squares of each channel."""
    x = floats(needed(call, 0))
    sums = _moments(x, _axis(call, needed(call, 0)))
    return [_small(call, slot, vector) for slot, vector in enumerate(sums)]


def _update(call: Call) -> _Plan:
    """x, sum, square_sum, scale, offset and, in the first version, the running mean and variance."""
    x = floats(needed(call, 0))
    axis = _axis(call, needed(call, 0))
    channels = x.shape[axis]
    count = x.size // max(1, channels)
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
        return [_small(call, slot, vector) for slot, vector in enumerate(statistics, 1)]

    return _Plan(_ByChannel((x,), axis, (mean, variance, scale, offset), _normalising(epsilon)), others)


_register(
    ["BNTrainingUpdate", "BNTrainingUpdateV2", "BNTrainingUpdateV3", "BN3DTrainingUpdate"],
    ["x", "sum", "square_sum", "scale", "offset", "mean", "variance"],
    _update,
)


def _scale_and_offset(g: Doubles, x: Doubles, axis: int, mean: Tracked, root: Tracked) -> list[Tracked]:
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
    gradients = _scale_and_offset(g, x, axis, mean, (variance + real(call, "epsilon", default=1e-4)).sqrt())
    return [_small(call, slot, vector) for slot, vector in enumerate(gradients)]


def _gradient_of_x(count: int) -> Formula:
    """GE's order: (g + x · factor + addend) · scale / root, of the factor and the addend of each channel."""

    def formula(
        g: Doubles, x: Doubles, d_scale: Tracked, d_offset: Tracked, scale: Tracked, mean: Tracked, root: Tracked
    ) -> Tracked:
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
    count = x.size // max(1, channels)

    return _Plan(_ByChannel((g, x), axis, (d_scale, d_offset, scale, mean, root), _gradient_of_x(count)), list)


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

    return _Plan(_ByChannel((x,), axis, (mean, variance, scale, offset), _normalising(epsilon)), list)


_register(["BNInfer"], ["x", "scale", "offset", "mean", "variance"], _infer)


def _infer_grad(call: Call) -> _Plan:
    g = floats(needed(call, 0))
    axis = _axis(call, needed(call, 0))
    scale, variance = _exact(call, (1, 2), g.shape[axis])
    factor = scale / (variance + real(call, "epsilon", default=1e-4)).sqrt()
    return _Plan(_ByChannel((g,), axis, (factor,), lambda g, factor: factor * g), list)


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
        mean, variance = _mean_and_variance(*_moments(x, axis), count)
        statistics = [mean, _unbiased(variance, count)]
        factor = real(call, "exponential_avg_factor", default=1.0)
        if factor != 1:
            running = _exact(call, (3, 4), channels)
            statistics = [new * factor + old * (1 - factor) for new, old in zip(statistics, running, strict=True)]
    else:
        mean, variance = statistics = _exact(call, (3, 4), channels)

    def others() -> list[Output | None]:
        outputs: list[Output | None] = [
            _small(call, slot, vector) for slot, vector in enumerate([*statistics, mean, variance], 1)
        ]
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
    d_scale, d_offset = _scale_and_offset(g, x, axis, mean, root)
    count = x.size // max(1, channels)

    def others() -> list[Output | None]:
        outputs = [_small(call, slot, vector) for slot, vector in enumerate((d_scale, d_offset), 1)]
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
