"""Softmax and losses against TensorFlow, and against their definition where only GE has the op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from opcalls import arrays_of, call_of, output_of, outputs_of, rounding_ratio
from opvalues import FEW, Array, Shape, close, close_all, ranked, same, seeds, tensor, tries, values
from tensorflow_oracle import TensorFlow

from precision_tool.lib.ops.base import Input, NotComputedError

_SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4)
_MATRICES = st.tuples(st.integers(1, 6), st.integers(1, 7))
_SCALES = st.sampled_from([0.01, 1.0, 100.0])


@given(shape=_SHAPES, scale=_SCALES)
@tries(20)
def test_softmax_and_its_logarithm(shape: list[int], scale: float, tensorflow: TensorFlow) -> None:
    x, g = scale * tensor(1, shape), tensor(2, shape)
    for name, ours in (("Softmax", "SoftmaxV2"), ("LogSoftmax", "LogSoftmaxV2")):
        (true,) = tensorflow.run(name, {"logits": x})
        (y,) = arrays_of(ours, x)
        close(y, true)
        close(arrays_of(ours, np.moveaxis(x, -1, 0), axes=[0])[0], np.moveaxis(true, -1, 0))
        (slope,) = tensorflow.run(name, {"logits": x}, gradient=(["logits"], g))
        inputs = (y, g) if name == "Softmax" else (g, y)
        close(arrays_of(f"{name}Grad", *inputs)[0], slope)
        close(y, arrays_of(ours, x + 16.0)[0], 1e-9)  # the shift does not count


@pytest.mark.parametrize("axes", [[1, 2], [-1]])
def test_softmax_over_several_axes(axes: list[int]) -> None:
    x = tensor(1, (3, 4, 5))
    powers = np.exp(x)
    close(arrays_of("SoftmaxV2", x, axes=axes)[0], powers / powers.sum(axis=tuple(axes), keepdims=True))


@given(shape=_MATRICES, scale=_SCALES)
@tries(20)
def test_cross_entropies(shape: tuple[int, int], scale: float, tensorflow: TensorFlow) -> None:
    x = scale * tensor(1, shape)
    rng = np.random.default_rng(3)
    classes = rng.integers(0, shape[1], shape[0])
    soft = rng.dirichlet(np.ones(shape[1]), shape[0])
    for labels in (soft, np.eye(shape[1])[classes]):
        inputs = {"features": x, "labels": labels}
        true = tensorflow.run("SoftmaxCrossEntropyWithLogits", inputs)
        close_all(arrays_of("SoftmaxCrossEntropyWithLogits", x, labels), true)
    true = tensorflow.run("SparseSoftmaxCrossEntropyWithLogits", {"features": x, "labels": classes})
    close_all(arrays_of("SparseSoftmaxCrossEntropyWithLogits", x, classes), true)


def test_a_label_that_is_no_class_makes_nan() -> None:
    loss, gradient = arrays_of("SparseSoftmaxCrossEntropyWithLogits", np.zeros((2, 3)), np.array([7, 1]))
    assert np.isnan(loss).tolist() == [True, False]
    assert np.isnan(gradient).all(axis=1).tolist() == [True, False]


@given(shape=_SHAPES, scale=_SCALES)
@tries(20)
def test_sigmoid_cross_entropy(shape: list[int], scale: float, tensorflow: TensorFlow) -> None:
    x, g = scale * tensor(1, shape), tensor(2, shape)
    target = np.random.default_rng(1).random(shape)
    inputs = {"labels": target, "logits": x}
    (true,) = tensorflow.run("nn.sigmoid_cross_entropy_with_logits", inputs)
    close(arrays_of("SigmoidCrossEntropyWithLogits", x, target)[0], true)
    (slope,) = tensorflow.run("nn.sigmoid_cross_entropy_with_logits", inputs, gradient=(["logits"], g))
    close(arrays_of("SigmoidCrossEntropyWithLogitsGrad", x, target, g)[0], slope)
    inputs = {"labels": target, "logits": x, "pos_weight": np.array(2.5)}
    (true,) = tensorflow.run("nn.weighted_cross_entropy_with_logits", inputs)
    ours = (x, target, np.array(0.5), np.array(2.5))
    close(arrays_of("SigmoidCrossEntropyWithLogitsV2", *ours, reduction="none")[0], 0.5 * true)
    close(arrays_of("SigmoidCrossEntropyWithLogitsV2", *ours)[0], np.asarray(np.mean(0.5 * true)))
    (slope,) = tensorflow.run("nn.weighted_cross_entropy_with_logits", inputs, gradient=(["logits"], g))
    back = (x, target, g, np.array(0.5), np.array(2.5))
    close(arrays_of("SigmoidCrossEntropyWithLogitsGradV2", *back, reduction="sum")[0], 0.5 * slope)
    close(arrays_of("SigmoidCrossEntropyWithLogitsGradV2", *back)[0], 0.5 * slope / x.size)


def _slope(loss: Callable[[Array], Any], x: Array) -> Array:
    """The gradient of a number by central differences."""
    slope = np.empty_like(x)
    for place in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[place] = 1e-6
        slope[place] = (loss(x + step) - loss(x - step)) / 2e-6
    return slope


_PAIRS: dict[str, tuple[Callable[[Array, Array], Array], str, tuple[int, ...]]] = {
    # loss of each element, op of the gradient, order of (x, label, gradient of the loss) among its inputs
    "SmoothL1LossV2": (
        lambda x, t: np.where(abs(x - t) < 0.7, (x - t) ** 2 / 1.4, abs(x - t) - 0.35), "SmoothL1LossGradV2", (0, 1, 2),
    ),
    "MseLoss": (lambda x, t: (x - t) ** 2, "MseLossGrad", (0, 1, 2)),
    "LpLoss": (lambda x, t: abs(x - t), "L1LossGrad", (2, 0, 1)),
    "BinaryCrossEntropy": (lambda x, t: -t * np.log(x) - (1 - t) * np.log(1 - x), "BinaryCrossEntropyGrad", (0, 1, 2)),
}  # fmt: skip


@pytest.mark.parametrize("op_type", list(_PAIRS))
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_losses_of_pytorch_and_their_slopes(op_type: str, reduction: str) -> None:
    each, gradient_type, order = _PAIRS[op_type]
    rng = np.random.default_rng(4)
    x, target, g = (0.05 + 0.9 * rng.random((3, 4)) for _ in range(3))
    if op_type != "BinaryCrossEntropy":
        x, target = 3 * x, 3 * target
    reductions: dict[str, Callable[[Array], Any]] = {"none": np.asarray, "mean": np.mean, "sum": np.sum}
    reduce = reductions[reduction]
    attrs: dict[str, Any] = {"reduction": reduction}
    if op_type == "LpLoss":
        attrs["p"] = 1
    if op_type.startswith("Smooth"):
        attrs["sigma"] = 0.7
    close(arrays_of(op_type, x, target, **attrs)[0], np.asarray(reduce(each(x, target))))
    inputs = [(x, target, g)[at] for at in order]
    upstream = g if reduction == "none" else np.asarray(1.0)
    if reduction != "none":
        inputs[order.index(2)] = upstream
    slope = _slope(lambda value: np.sum(reduce(each(value, target)) * upstream), x)
    close(arrays_of(gradient_type, *inputs, **attrs)[0], slope, 1e-7)


def test_smooth_l1_of_each_element() -> None:
    x, label, g = tensor(1, (4, 5)), tensor(2, (4, 5)), tensor(3, (4, 5))
    difference = x - label
    inside = abs(difference) < 0.5
    close(arrays_of("SmoothL1Loss", x, label, sigma=0.5)[0],
           np.where(inside, difference**2, abs(difference) - 0.25))  # fmt: skip
    (slope,) = arrays_of("SmoothL1LossGrad", x, label, g, sigma=0.5)
    close(slope, np.where(inside, 2 * difference, np.sign(difference)) * g)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_likelihood_of_classes(reduction: str) -> None:
    x, weight = tensor(1, (5, 3)), np.array([0.5, 2.0, 1.0])
    labels = np.array([2, 0, 1, 1, -100], np.int32)
    counted = [0, 1, 2, 3]
    weights = np.array([weight[label] for label in labels[counted]])
    each = np.array([-weight[labels[row]] * x[row, labels[row]] for row in counted] + [0.0])
    loss, total = arrays_of("NLLLoss", x, labels, weight, reduction=reduction)
    expected = {"none": each, "sum": each.sum(), "mean": each.sum() / weights.sum()}[reduction]
    close(loss, np.asarray(expected))
    close(total, np.asarray(weights.sum()))
    g = np.array([3.0]) if reduction != "none" else tensor(2, (5,))
    (slope,) = arrays_of("NLLLossGrad", x, g, labels, weight, total.reshape(1), reduction=reduction)
    true = np.zeros_like(x)
    for row in counted:
        upstream = g[0] if reduction != "none" else g[row]
        true[row, labels[row]] = -weight[labels[row]] * upstream / (weights.sum() if reduction == "mean" else 1)
    close(slope, true)


def test_divergence() -> None:
    x, target = tensor(1, (3, 4)), np.random.default_rng(2).random((3, 4))
    target[0, 0] = 0
    safe = np.where(target > 0, target, 1)
    each = np.where(target > 0, target * (np.log(safe) - x), 0)
    close(arrays_of("KLDiv", x, target, reduction="sum")[0], np.asarray(each.sum()))
    close(arrays_of("KLDiv", x, target, reduction="batchmean")[0], np.asarray(each.sum() / 3))
    log_target = np.log(safe)
    close(arrays_of("KLDiv", x, log_target, reduction="none", log_target=True)[0], safe * (log_target - x))


@given(size=st.integers(1, 300), keep=st.floats(0.1, 1))
@tries(20)
def test_dropout_with_its_mask(size: int, keep: float) -> None:
    """A mask of bits is as long as whole blocks of 128 elements; one of bytes has one for each."""
    x = tensor(1, (size,))
    kept_sum = np.random.default_rng(2).random(size) < keep
    expected = [x[place] / keep if kept_sum[place] else 0.0 for place in range(size)]
    packed = np.zeros(-(-size // 128) * 16, np.uint8)
    for place in np.flatnonzero(kept_sum):
        packed[place // 8] |= 1 << (place % 8)
    ratio = np.array([keep])
    close(arrays_of("DropOutDoMask", x, packed, ratio)[0], np.array(expected))
    close(arrays_of("DropOutDoMask", x, Input(array=kept_sum, dtype="bool"), ratio)[0], np.array(expected))
    padded = np.zeros(-(-size // 128) * 128, np.uint8)
    padded[:size] = kept_sum
    close(arrays_of("DropOutDoMaskV3", x, padded, ratio)[0], np.array(expected))


@pytest.mark.parametrize("op_type", ["SoftmaxV2", "LogSoftmaxV2"])
@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_rounding_of_softmax_is_predicted(op_type: str, scale: float) -> None:
    x = (scale * tensor(1, (200, 64))).astype(np.float32)
    output = output_of(call_of(op_type, x))
    shifted = x - x.max(axis=1, keepdims=True)
    powers = np.exp(shifted)
    total = np.zeros((200, 1), np.float32)
    for column in range(64):
        total[:, 0] += powers[:, column]
    got = powers / total if op_type == "SoftmaxV2" else shifted - np.log(total)
    assert 0.1 < rounding_ratio(got - output.array, np.hypot(output.summed, output.array)) < 2


def test_rounding_of_a_loss_gradient_that_vanishes_is_predicted() -> None:
    """softmax − labels of a network that is sure: what is left is smaller than the rounding of the softmax."""
    labels = np.arange(50) % 8
    x = (tensor(1, (50, 8)) + 18 * np.eye(8)[labels]).astype(np.float32)
    gradient = output_of(call_of("SparseSoftmaxCrossEntropyWithLogits", x, labels), 1)
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    got = powers / powers.sum(axis=1, keepdims=True, dtype=np.float32) - np.eye(8, dtype=np.float32)[labels]
    at = np.arange(50), labels
    assert np.abs(gradient.array[at]).max() < 1e-5
    assert 0.05 < rounding_ratio((got - gradient.array)[at], np.asarray(gradient.summed)[at]) < 2


@FEW
@given(seed=seeds)
def test_softmax_gradient_with_a_factor(tensorflow: TensorFlow, seed: int) -> None:
    logits, grad = values((3, 4, 5), seed), values((3, 4, 5), seed + 1)
    (softmax,) = tensorflow.run("nn.softmax", {"logits": logits}, axis=1)
    (expected,) = tensorflow.run("nn.softmax", {"logits": logits}, gradient=(["logits"], grad), axis=1)
    (result,) = arrays_of("SoftmaxGradExt", grad, softmax, np.array(0.125), axes=1)
    close(result, expected * 0.125, rtol=1e-7, atol=1e-9)
    with pytest.raises(NotComputedError):
        arrays_of("SoftmaxGradExt", grad, softmax, np.ones((2, 3, 4, 5)))


def test_a_softmax_gradient_in_float16_may_round_more() -> None:
    grad, softmax = values((4, 8), 1), values((4, 8), 2, "positive") / 8
    (wide,) = outputs_of("SoftmaxGradExt", grad, softmax, 0.5, axes=-1)
    narrow = [Input(array=array, dtype="float16") for array in (grad, softmax)]
    (result,) = outputs_of("SoftmaxGradExt", *narrow, 0.5, axes=-1)
    same(result.array, wide.array)
    assert (np.asarray(result.summed) > 100 * np.asarray(wide.summed)).all()


@FEW
@given(shape=ranked, seed=seeds)
def test_softmax_gradient_without_its_last_factor(tensorflow: TensorFlow, shape: Shape, seed: int) -> None:
    logits, slope = values(shape, seed), values(shape, seed + 1)
    (softmax,) = tensorflow.run("Softmax", {"logits": logits})
    (expected,) = tensorflow.run("Softmax", {"logits": logits}, gradient=(["logits"], slope))
    (result,) = arrays_of("ConfusionSoftmaxGrad", slope, softmax)
    close(result * softmax, expected, atol=1e-11)


def test_products_in_float16_may_round_more() -> None:
    random = np.random.default_rng(4)
    slope, softmax = random.normal(size=(40, 64)), random.dirichlet(np.ones(64), 40)
    half, other = slope.astype(np.float16), softmax.astype(np.float16)
    (result,) = outputs_of("ConfusionSoftmaxGrad", half, other)
    sums = (half * other).astype(np.float32).sum(-1, keepdims=True).astype(np.float16)
    kernel = (half - sums).astype(np.float64)
    size = np.sqrt((2.0**-24 * result.summed) ** 2 + (2.0**-11 * result.array) ** 2)
    error = np.abs(kernel - result.array)
    assert (error <= 3 * size).all()
    assert np.sqrt(np.mean((error / size) ** 2)) > 0.05  # and not so loosely that anything passes
    (single,) = outputs_of("ConfusionSoftmaxGrad", slope.astype(np.float32), softmax.astype(np.float32))
    assert (np.asarray(single.summed) < np.asarray(result.summed) / 100).all()
