"""Softmax, losses and their gradients, and dropout with its mask.

Sources: GE's prototypes in nn_norm_ops.h and nn_ops.h, TensorFlow's softmax and cross entropies, PyTorch's losses, with
which GE says its own are compatible.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from precision_tool.lib.ops.base import (
    Call,
    Doubles,
    Kind,
    NotComputedError,
    Output,
    Outputs,
    Places,
    needed,
    op,
    optional,
    typed_misfit,
)
from precision_tool.lib.ops.matrix import limited
from precision_tool.lib.ops.op_arguments import (
    ROUNDOFF,
    Mask,
    attribute,
    axes_of,
    common_shape,
    floats,
    integer,
    numbers,
    real,
    same_shape,
    scalar,
    text,
    whole_numbers,
)
from precision_tool.lib.ops.tracked import Tracked, maximum, where
from precision_tool.lib.ops.windows import expected

Axes = tuple[int, ...]


def _axes(call: Call, rank: int) -> Axes:
    if not rank:
        raise NotComputedError("shape", name="x", shape=())
    return axes_of(call, whole_numbers(call, "axes", "axis") or [-1], rank)


def _inputs(call: Call, *slots: int) -> list[Doubles]:
    """Inputs that are not too large."""
    arrays = numbers(call, *slots)
    limited(0, max(array.size for array in arrays))
    return arrays


# --- softmax ----------------------------------------------------------------------------------------------------------


def _shifted(x: Doubles, axes: Axes) -> Tracked:
    """x without the largest, which is how kernels keep the exponential from overflowing."""
    largest = np.max(x, axis=axes, keepdims=True, initial=-np.inf)
    return Tracked(x) - np.where(np.isfinite(largest), largest, 0.0)


def _softmax(x: Doubles, axes: Axes) -> tuple[Tracked, Tracked]:
    """The softmax, and its logarithm."""
    shifted = _shifted(x, axes)
    # What is masked by −∞ is 0 whatever the others are: nothing is rounded there.
    is_out = np.isneginf(shifted.value)
    powers = shifted.exp()
    powers = Tracked(powers.value, np.where(is_out, 0.0, powers.noise))
    total = powers.total(axes)
    return powers / total, shifted - total.log()


@op("SoftmaxV2", "Softmax", kind=Kind.COMPOSITE, inputs=("x",))
def _softmax_of(call: Call) -> Outputs:
    (x,) = _inputs(call, 0)
    return [_softmax(x, _axes(call, x.ndim))[0].output()]


@op("LogSoftmaxV2", "LogSoftmax", kind=Kind.COMPOSITE, inputs=("logits",))
def _log_softmax(call: Call) -> Outputs:
    (x,) = _inputs(call, 0)
    return [_softmax(x, _axes(call, x.ndim))[1].output()]


@op("SoftmaxGrad", kind=Kind.COMPOSITE, inputs=("softmax", "grad_softmax"))
def _softmax_grad(call: Call) -> Outputs:
    """(g − Σ g y) y."""
    y, g = _inputs(call, 0, 1)
    same_shape(call, y, g)
    return [((g - (Tracked(g) * y).total(_axes(call, y.ndim))) * y).output()]


@op("ConfusionSoftmaxGrad", kind=Kind.COMPOSITE, inputs=("grad", "x"))
def _softmax_grad_part(call: Call) -> Outputs:
    """g − Σ g x along the last axis; in float16 the kernel keeps the products and the sum in it too."""
    g, x = _inputs(call, 0, 1)
    same_shape(call, g, x)
    if not x.ndim:
        raise NotComputedError("shape", name="x", shape=())
    narrow = max(ROUNDOFF.get(needed(call, slot).dtype, 0.0) for slot in (0, 1)) / ROUNDOFF["float32"]
    products = g * x
    total = Tracked(products, (products * narrow) ** 2).total(-1)
    stored = Tracked(total.value, total.variance + (total.value * narrow) ** 2)
    return [(g - stored).output()]


@op("SoftmaxGradExt", kind=Kind.COMPOSITE, inputs=("grad", "x1", "x2"))
def _scaled_softmax_grad(call: Call) -> Outputs:
    """(g − Σ g x₁) x₁ x₂; in float16 the kernel may keep each step in it."""
    g, x1, x2 = _inputs(call, 0, 1, 2)
    same_shape(call, g, x1)
    if common_shape(call, g, x2) != g.shape:
        raise NotComputedError("shape_misfit", name="x2", shape=x2.shape, other="gradients", other_shape=g.shape)
    narrow = max(ROUNDOFF.get(needed(call, slot).dtype, 0.0) for slot in (0, 1)) / ROUNDOFF["float32"]

    def stored(exact: Tracked) -> Tracked:
        return Tracked(exact.value, exact.variance + (exact.value * narrow) ** 2)

    axes = axes_of(call, whole_numbers(call, "axes", "axis") or [1], g.ndim)
    total = stored(stored(Tracked(g) * x1).total(axes))
    return [(stored(stored(g - total) * x1) * x2).output()]


@op("LogSoftmaxGrad", kind=Kind.COMPOSITE, inputs=("grad", "x"))
def _log_softmax_grad(call: Call) -> Outputs:
    """g − exp(y) Σ g, of the logarithm y."""
    g, y = _inputs(call, 0, 1)
    same_shape(call, y, g)
    return [(g - Tracked(y).exp() * Tracked(g).total(_axes(call, y.ndim))).output()]


def _cross_entropy(features: Doubles, labels: Doubles) -> tuple[Tracked, Tracked]:
    """The loss of each row and the gradient, softmax − labels, of matrices."""
    softmax, logarithm = _softmax(features, (1,))
    products = where(labels == 0, 0.0, logarithm * labels)
    return -products.total(1, keep=False), softmax - labels


@op("SoftmaxCrossEntropyWithLogits", kind=Kind.COMPOSITE, inputs=("features", "labels"))
def _softmax_cross_entropy(call: Call) -> Outputs:
    features, labels = _inputs(call, 0, 1)
    shape = common_shape(call, features, labels)
    if len(shape) != 2:
        raise NotComputedError("axis_count", name="features", number=len(shape), limit=2)
    loss, gradient = _cross_entropy(np.broadcast_to(features, shape), np.broadcast_to(labels, shape))
    expected(call, 0, shape[:1])
    return [loss.output(), gradient.output()]


@op("SparseSoftmaxCrossEntropyWithLogits", kind=Kind.COMPOSITE, inputs=("features", "labels"))
def _sparse_cross_entropy(call: Call) -> Outputs:
    """Labels are numbers of classes; NaN for those that are none, as TensorFlow has it."""
    (features,) = _inputs(call, 0)
    indices = needed(call, 1).array
    if features.ndim != 2 or indices.dtype.kind not in "iu" or indices.size != features.shape[0]:
        raise typed_misfit("labels", indices.dtype.name, indices.shape, "features", features.shape)
    labels = indices.reshape(-1)
    rows = np.arange(len(labels))
    valid: Mask = (labels >= 0) & (labels < features.shape[1])
    places = np.where(valid, labels, 0).astype(np.intp)
    softmax, logarithm = _softmax(features, (1,))
    target = np.zeros(features.shape)
    if features.size:
        target[rows, places] = 1.0
    nothing = np.where(valid, 0.0, np.nan)
    loss, gradient = -logarithm[rows, places], softmax - target
    return [
        Output(array=loss.value + nothing, summed=loss.summed),
        Output(array=gradient.value + nothing[:, None], summed=gradient.summed),
    ]


# --- losses of elements -----------------------------------------------------------------------------------------------


def reduced_loss(call: Call, each: Tracked, default: str = "mean") -> Outputs:
    """The losses of the elements, their sum or their mean."""
    reduction = text(call, "reduction", default=default)
    if reduction == "none":
        return [each.output()]
    if reduction not in ("mean", "sum", "batchmean"):
        raise NotComputedError("no_variant", name="reduction", value=reduction)
    total = each.total(tuple(range(each.value.ndim)), keep=False)
    if reduction != "sum":
        total = total * (1 / max(1, _divisor(reduction, each.value.shape)))
    shape = call.outputs[0].shape if call.outputs else None
    if shape is not None and prod(shape) == 1:
        total = total.reshape(*shape)
    return [total.output()]


def _divisor(reduction: str, shape: tuple[int, ...]) -> int:
    return shape[0] if reduction == "batchmean" and shape else prod(shape)


def _share(call: Call, shape: tuple[int, ...], default: str = "mean") -> float:
    """Return the factor of a reduced loss's gradient: 1 / the number of averaged terms, or 1."""
    reduction = text(call, "reduction", default=default)
    if reduction not in ("none", "mean", "sum", "batchmean"):
        raise NotComputedError("no_variant", name="reduction", value=reduction)
    return 1 / max(1, _divisor(reduction, shape)) if reduction in ("mean", "batchmean") else 1.0


def optional_numbers(call: Call, slot: int, otherwise: float) -> Doubles:
    tensor = optional(call, slot)
    return np.asarray(otherwise) if tensor is None else floats(tensor)


def _logits_loss(x: Doubles, target: Doubles, factor: Doubles) -> Tracked:
    """(1 − t) x + (1 + (factor − 1) t) log(1 + exp(−x)), in the form that does not overflow."""
    tail = (Tracked(-np.abs(x)).exp() + 1.0).log()
    weight = 1 + (factor - 1) * target
    return (1 - Tracked(target)) * x + (tail + np.maximum(-x, 0)) * weight


@op("SigmoidCrossEntropyWithLogits", kind=Kind.COMPOSITE, inputs=("predict", "target"))
def _sigmoid_cross_entropy(call: Call) -> Outputs:
    x, target = _inputs(call, 0, 1)
    same_shape(call, x, target)
    return [_logits_loss(x, target, np.asarray(1.0)).output()]


@op("SigmoidCrossEntropyWithLogitsV2", kind=Kind.COMPOSITE, inputs=("predict", "target", "weight", "pos_weight"))
def _sigmoid_cross_entropy_v2(call: Call) -> Outputs:
    x, target = _inputs(call, 0, 1)
    weight, factor = optional_numbers(call, 2, 1.0), optional_numbers(call, 3, 1.0)
    common_shape(call, x, target, weight, factor)
    return reduced_loss(call, _logits_loss(x, target, factor) * weight)


@op("SigmoidCrossEntropyWithLogitsGrad", kind=Kind.COMPOSITE, inputs=("predict", "target", "dout"))
def _sigmoid_cross_entropy_grad(call: Call) -> Outputs:
    x, target, dout = _inputs(call, 0, 1, 2)
    common_shape(call, x, target, dout)
    return [((Tracked(x).sigmoid() - target) * dout).output()]


@op(
    "SigmoidCrossEntropyWithLogitsGradV2",
    kind=Kind.COMPOSITE,
    inputs=("predict", "target", "dout", "weight", "pos_weight"),
)
def _sigmoid_cross_entropy_grad_v2(call: Call) -> Outputs:
    x, target, dout = _inputs(call, 0, 1, 2)
    weight, factor = optional_numbers(call, 3, 1.0), optional_numbers(call, 4, 1.0)
    common_shape(call, x, target, dout, weight, factor)
    log_weight = target * factor
    slope = Tracked(x).sigmoid() * (log_weight + 1 - target) - log_weight
    return [(slope * weight * dout * _share(call, x.shape)).output()]


def _smooth(call: Call, difference: Tracked, names: tuple[str, ...]) -> tuple[Tracked, Mask, float]:
    turn = real(call, *names, default=1.0)
    return difference, np.abs(difference.value) < turn, turn


def _smooth_loss(call: Call) -> Tracked:
    x, label = _inputs(call, 0, 1)
    same_shape(call, x, label)
    difference, inside, turn = _smooth(call, Tracked(x) - label, ("sigma", "beta"))
    if turn <= 0:
        return difference.abs()
    return where(inside, difference * difference * (0.5 / turn), difference.abs() - 0.5 * turn)


@op("SmoothL1Loss", kind=Kind.COMPOSITE, inputs=("predict", "label"))
def _smooth_l1(call: Call) -> Outputs:
    return [_smooth_loss(call).output()]


@op("SmoothL1LossV2", kind=Kind.COMPOSITE, inputs=("predict", "label"))
def _smooth_l1_v2(call: Call) -> Outputs:
    return reduced_loss(call, _smooth_loss(call))


def _smooth_slope(call: Call) -> Tracked:
    x, label, dout = _inputs(call, 0, 1, 2)
    same_shape(call, x, label)
    common_shape(call, x, dout)
    difference, inside, turn = _smooth(call, Tracked(x) - label, ("sigma", "beta"))
    return where(inside, difference * (1 / (turn or 1.0)), np.sign(difference.value)) * dout


@op("SmoothL1LossGrad", kind=Kind.COMPOSITE, inputs=("predict", "label", "dout"))
def _smooth_l1_grad(call: Call) -> Outputs:
    return [_smooth_slope(call).output()]


@op("SmoothL1LossGradV2", kind=Kind.COMPOSITE, inputs=("predict", "label", "dout"))
def _smooth_l1_grad_v2(call: Call) -> Outputs:
    return [(_smooth_slope(call) * _share(call, needed(call, 0).array.shape)).output()]


#: What BinaryCrossEntropy keeps a logarithm's argument and a denominator from falling under.
_LEAST = 1e-12


@op("BinaryCrossEntropy", kind=Kind.COMPOSITE, inputs=("x", "y", "weight"))
def _binary_cross_entropy(call: Call) -> Outputs:
    x, y = _inputs(call, 0, 1)
    weight = optional_numbers(call, 2, 1.0)
    same_shape(call, x, y)
    common_shape(call, x, weight)
    ones = maximum(Tracked(x), _LEAST).log() * y
    others = maximum(1 - Tracked(x), _LEAST).log() * (1 - y)
    return reduced_loss(call, -(ones + others) * weight)


@op("BinaryCrossEntropyGrad", kind=Kind.COMPOSITE, inputs=("x", "y", "grad_output", "weight"))
def _binary_cross_entropy_grad(call: Call) -> Outputs:
    x, y, g = _inputs(call, 0, 1, 2)
    weight = optional_numbers(call, 3, 1.0)
    same_shape(call, x, y)
    common_shape(call, x, g, weight)
    slope = (Tracked(x) - y) / maximum((1 - Tracked(x)) * x, _LEAST)
    return [(slope * weight * g * _share(call, x.shape)).output()]


def _difference(call: Call) -> Tracked:
    x, label = _inputs(call, 0, 1)
    same_shape(call, x, label)
    return Tracked(x) - label


@op("MseLoss", kind=Kind.COMPOSITE, inputs=("predict", "label"))
def _mse(call: Call) -> Outputs:
    difference = _difference(call)
    return reduced_loss(call, difference * difference)


@op("MseLossGrad", kind=Kind.COMPOSITE, inputs=("predict", "label", "dout"))
def _mse_grad(call: Call) -> Outputs:
    difference = _difference(call)
    (dout,) = _inputs(call, 2)
    common_shape(call, difference.value, dout)
    return [(difference * (2 * _share(call, difference.value.shape)) * dout).output()]


@op("LpLoss", kind=Kind.COMPOSITE, inputs=("predict", "label"))
def _lp(call: Call) -> Outputs:
    if integer(call, "p", default=1) != 1:
        raise NotComputedError("no_variant", name="p", value=str(integer(call, "p")))
    return reduced_loss(call, _difference(call).abs())


@op("L1LossGrad", kind=Kind.COMPOSITE, inputs=("grads", "predict", "label"))
def _l1_grad(call: Call) -> Outputs:
    g, x, label = _inputs(call, 0, 1, 2)
    same_shape(call, x, label)
    common_shape(call, g, x)
    return [(Tracked(np.sign(x - label)) * g * _share(call, x.shape)).output()]


@op("KLDiv", kind=Kind.COMPOSITE, inputs=("x", "target"))
def _kl_div(call: Call) -> Outputs:
    """target (log target − x), 0 where the target is; with `log_target` the target is a logarithm."""
    x, target = _inputs(call, 0, 1)
    same_shape(call, x, target)
    if attribute(call, "log_target"):
        return reduced_loss(call, Tracked(target).exp() * (Tracked(target) - x))
    positive = target > 0
    logarithm = Tracked(np.where(positive, target, 1.0)).log()
    return reduced_loss(call, where(positive, (logarithm - x) * target, 0.0))


def _class_weights(call: Call, slot: int) -> tuple[Places, Doubles]:
    """Of NLLLoss: the label's place in each row, and its weight, 0 where it does not count."""
    x = floats(needed(call, 0))
    labels, weights = needed(call, slot).array.reshape(-1), optional_numbers(call, slot + 1, 1.0)
    if x.ndim != 2 or labels.dtype.kind not in "iu" or len(labels) != x.shape[0]:
        raise typed_misfit("target", labels.dtype.name, labels.shape, "x", x.shape)
    if weights.size not in (1, x.shape[1]):
        raise NotComputedError("count_misfit", name="weight", number=weights.size, other="classes", limit=x.shape[1])
    counts: Mask = (labels >= 0) & (labels < x.shape[1]) & (labels != integer(call, "ignore_index", default=-100))
    places = np.where(counts, labels, 0).astype(np.intp)
    of_each = np.broadcast_to(weights.reshape(-1), x.shape[1:])[places] if x.shape[1] else np.zeros(len(labels))
    return places, np.where(counts, of_each, 0.0)


@op("NLLLoss", kind=Kind.COMPOSITE, inputs=("x", "target", "weight"))
def _nll(call: Call) -> Outputs:
    """−w x of each row's label; the mean is by the sum of the weights, the second output."""
    (x,) = _inputs(call, 0)
    places, weights = _class_weights(call, 1)
    each = -(Tracked(x[np.arange(len(places)), places]) * weights)
    total_weight = Tracked(weights).total(0, keep=False)
    reduction = text(call, "reduction", default="mean")
    if reduction == "none":
        return [each.output(), total_weight.output()]
    if reduction not in ("sum", "mean"):
        raise NotComputedError("no_variant", name="reduction", value=reduction)
    total = each.total(0, keep=False)
    return [(total / total_weight if reduction == "mean" else total).output(), total_weight.output()]


@op("NLLLossGrad", kind=Kind.COMPOSITE, inputs=("x", "y_grad", "target", "weight", "total_weight"))
def _nll_grad(call: Call) -> Outputs:
    x, g = _inputs(call, 0, 1)
    places, weights = _class_weights(call, 2)
    if g.size not in (1, len(places)):
        raise NotComputedError("shape_misfit", name="y_grad", shape=g.shape, other="x", other_shape=x.shape)
    each = -(Tracked(weights) * g.reshape(-1))
    if text(call, "reduction", default="mean") == "mean":
        each = each / scalar(call, 4)
    result, summed = np.zeros(x.shape), np.zeros(x.shape)
    at = np.arange(len(places)), places
    result[at], summed[at] = each.value, each.summed
    return [Output(array=result, summed=summed)]


# --- cross entropy of classes -----------------------------------------------------------------------------------------


def _by_class(array: Doubles) -> Doubles:
    """Classes as the last axis: they are the second, or the only one."""
    return np.moveaxis(array, 1, -1) if array.ndim > 1 else array


def _class_losses(
    call: Call, logarithm: Tracked, labels: Places, weight: Doubles, smoothing: float
) -> tuple[Tracked, Doubles]:
    """The loss of every label and its weight, 0 for one that is ignored; the classes are the last axis."""
    classes = logarithm.value.shape[-1]
    if labels.shape != logarithm.value.shape[:-1] or labels.dtype.kind not in "iu":
        raise typed_misfit("target", labels.dtype.name, labels.shape, "x", logarithm.value.shape)
    if weight.size not in (1, classes):
        raise NotComputedError("count_misfit", name="weight", number=weight.size, other="classes", limit=classes)
    counts: Mask = labels != integer(call, "ignore_index", default=-100)
    if np.any(counts & ((labels < 0) | (labels >= classes))):
        raise NotComputedError("out_of_range", name="target", value=str(int(labels[counts].max())), limit=classes)
    places = np.where(counts, labels, 0).astype(np.intp)
    by_class = np.broadcast_to(weight.reshape(-1), (classes,))
    weights = np.where(counts, by_class[places], 0.0)
    at = places[..., None]
    chosen = Tracked(
        np.take_along_axis(logarithm.value, at, -1)[..., 0], np.take_along_axis(logarithm.noise, at, -1)[..., 0]
    )
    each = -(chosen if weight.size == 1 and weight.item() == 1 else chosen * weights)
    if smoothing:
        spread = -(logarithm * by_class).total(-1, keep=False)
        each = each * (1 - smoothing) + spread * (smoothing / classes)
    return where(counts, each, 0.0), weights


def _reduced_by_weight(call: Call, each: Tracked, weights: Doubles) -> Tracked:
    """The losses, their sum, or their mean by the sum of the weights."""
    reduction = text(call, "reduction", default="mean")
    if reduction == "none":
        return each
    if reduction not in ("sum", "mean"):
        raise NotComputedError("no_variant", name="reduction", value=reduction)
    axes = tuple(range(each.value.ndim))
    total = each.total(axes, keep=False) if axes else each
    if reduction == "mean":
        total = total / Tracked(weights).total(axes or (), keep=False)
    shape = call.outputs[0].shape if call.outputs else None
    return total.reshape(*shape) if shape is not None and prod(shape) == 1 else total


@op("CrossEntropyLoss", kind=Kind.COMPOSITE, inputs=("input", "target", "weight"))
def _cross_entropy_loss(call: Call) -> Outputs:
    """The loss and the logarithm of the softmax along the classes.

    The targets are classes, or probabilities of them in a tensor of the input's shape. What `return_zloss` adds to
    the outputs is left out.
    """
    (x,) = _inputs(call, 0)
    if not x.ndim:
        raise NotComputedError("shape", name="input", shape=())
    logits = _by_class(x)
    logarithm = _softmax(logits, (logits.ndim - 1,))[1]
    smoothing, weight = real(call, "label_smoothing", default=0.0), optional_numbers(call, 2, 1.0)
    target = needed(call, 1)
    if target.array.dtype.kind == "f":
        same_shape(call, x, target.array)
        shares = _by_class(floats(target)) * (1 - smoothing) + smoothing / max(1, logits.shape[-1])
        each = -(logarithm * (shares * weight.reshape(-1))).total(-1, keep=False)
        loss = _reduced_by_weight(call, each, np.ones(each.value.shape))
    else:
        loss = _reduced_by_weight(call, *_class_losses(call, logarithm, target.array, weight, smoothing))
    log_prob = logarithm.output()
    if x.ndim < 3:
        return [loss.output(), log_prob]
    moved = (np.moveaxis(array, -1, 1) for array in (log_prob.array, np.asarray(log_prob.summed)))
    return [loss.output(), Output(array=next(moved), summed=next(moved))]


@op("torch.nll_loss", kind=Kind.COMPOSITE, inputs=("input", "target", "weight"))
def _torch_nll(call: Call) -> Outputs:
    """−w x of each label, with the classes along the second axis."""
    (x,) = _inputs(call, 0)
    losses = _class_losses(call, Tracked(_by_class(x)), needed(call, 1).array, optional_numbers(call, 2, 1.0), 0.0)
    return [_reduced_by_weight(call, *losses).output()]


# --- dropout ----------------------------------------------------------------------------------------------------------


def _dropped(call: Call, unpacked: Callable[[int], Mask]) -> Outputs:
    x = floats(needed(call, 0))
    limited(0, x.size)
    mask = optional(call, 2)
    keep = real(call, "keep_prob") if mask is None else scalar(call, 2)
    if not 0 < keep <= 1:
        raise NotComputedError("not_allowed", name="keep_prob", value=str(keep))
    mask_bits = unpacked(x.size)
    if mask_bits.size != x.size:
        raise NotComputedError("count_misfit", name="mask", number=mask_bits.size, other="elements", limit=x.size)
    mask_bits = mask_bits.reshape(x.shape)
    scaled = x * (1 / keep)
    return [Output(array=np.where(mask_bits, scaled, 0.0), summed=np.where(mask_bits, np.abs(scaled), 0.0))]


@op("DropOutDoMask", "DropoutDoMask", kind=Kind.ROUNDED, inputs=("x", "mask", "keep_prob"))
def _dropout(call: Call) -> Outputs:
    """x / keep_prob where the mask's bit is set: eight elements a byte, the lowest bit first."""
    mask = needed(call, 1)

    def unpacked(count: int) -> Mask:
        if mask.dtype == "bool" or mask.array.size == count != -(-count // 128) * 16:
            return np.asarray(mask.array.reshape(-1) != 0)
        if mask.array.dtype != np.uint8 or mask.array.size * 8 < count:
            raise typed_misfit("mask", mask.dtype, mask.array.shape, "x", (count,))
        return np.unpackbits(mask.array.reshape(-1), count=count, bitorder="little").astype(np.bool_)

    return _dropped(call, unpacked)


@op("DropOutDoMaskV3", "DropOutDoMaskV3D", kind=Kind.ROUNDED, inputs=("x", "mask", "keep_prob"))
def _dropout_v3(call: Call) -> Outputs:
    """x / keep_prob where the mask's byte is set: one byte an element."""
    mask = needed(call, 1).array.reshape(-1)

    def unpacked(count: int) -> Mask:
        if mask.size < count:
            raise NotComputedError("count_misfit", name="mask", number=mask.size, other="elements", limit=count)
        return np.asarray(mask[:count] != 0)

    return _dropped(call, unpacked)
