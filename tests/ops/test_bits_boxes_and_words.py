"""Quantization, boxes, embeddings, instance norms by parts and other ops that networks from elsewhere bring."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from opcalls import (
    FEW,
    SOME,
    Array,
    arrays_of,
    call_of,
    close,
    i32,
    outputs_of,
    refused,
    results_of,
    seeds,
    values,
    whole,
)
from tensorflow_oracle import TensorFlow

from precision_tool.lib.ops.base import Input, NotComputedError, OutputSpec

Shape = tuple[int, ...]


# --- PyTorch's descent ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(("decay", "dampening"), [(0.0, 0.0), (0.01, 0.0), (0.0, 0.3), (0.1, 0.2)])
def test_descent_with_momentum(nesterov: bool, decay: float, dampening: float) -> None:
    """Element by element, half of them at their first step."""
    var, grad, accum = (values((3, 4), seed) for seed in range(3))
    stat = whole((3, 4), 7, 0, 2).astype(np.float64)
    wanted = np.empty(var.shape)
    for place in np.ndindex(*var.shape):
        g = grad[place] + decay * var[place]
        a = 0.9 * accum[place] + g
        if not stat[place]:
            a -= dampening * g
        wanted[place] = var[place] - 0.1 * (g + 0.9 * a if nesterov else a)
    attrs: dict[str, Any] = {"nesterov": nesterov, "weight_decay": decay, "dampening": dampening}
    (found,) = arrays_of("SGD", var, grad, 0.1, accum, 0.9, stat, **attrs)
    close(found, wanted)


# --- embeddings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_frequency", [False, True])
@FEW
@given(seed=seeds)
def test_gradients_of_words(by_frequency: bool, seed: int) -> None:
    grad, words = values((3, 4, 5), seed), whole((3, 4), seed + 1, 0, 6)
    wanted = np.zeros((7, 5))
    for place in np.ndindex(3, 4):
        word = words[place]
        if word != 2:
            wanted[word] += grad[place] / ((words == word).sum() if by_frequency else 1)
    attrs: dict[str, Any] = {"num_weights": 7, "padding_idx": 2, "scale_grad_by_freq": by_frequency}
    (found,) = outputs_of("EmbeddingDenseGrad", grad, words, **attrs)
    close(found.array, wanted)
    counts = np.bincount(words.reshape(-1), minlength=7)
    assert (np.asarray(found.summed)[counts == 0] == 0).all()
    assert (np.asarray(found.summed)[(counts > 1) & (np.arange(7) != 2)] > 0).all()


# --- activations ------------------------------------------------------------------------------------------------------


@SOME
@given(seed=seeds)
def test_relu_gradient_of_a_mask(seed: int) -> None:
    """The mask in any form is the same as the features."""
    gradients, features = values((3, 16), seed), values((3, 16), seed + 1)
    (wanted,) = arrays_of("ReluGrad", gradients, features)
    bits = (features > 0).astype(np.uint8)
    for mask in (bits, bits.astype(np.bool_), np.packbits(bits, axis=-1, bitorder="little")):
        (found,) = arrays_of("ReluGradV2", gradients, mask)
        np.testing.assert_array_equal(found, wanted)
    with pytest.raises(NotComputedError):
        arrays_of("ReluGradV2", gradients, np.zeros((3, 1, 1, 1, 2), np.uint8))


@FEW
@given(seed=seeds)
def test_softmax_gradient_with_a_factor(tensorflow: TensorFlow, seed: int) -> None:
    logits, grad = values((3, 4, 5), seed), values((3, 4, 5), seed + 1)
    (softmax,) = tensorflow.run("nn.softmax", {"logits": logits}, axis=1)
    (wanted,) = tensorflow.run("nn.softmax", {"logits": logits}, gradient=(["logits"], grad), axis=1)
    (found,) = arrays_of("SoftmaxGradExt", grad, softmax, np.array(0.125), axes=1)
    close(found, wanted * 0.125, rtol=1e-7, atol=1e-9)
    with pytest.raises(NotComputedError):
        arrays_of("SoftmaxGradExt", grad, softmax, np.ones((2, 3, 4, 5)))


def test_a_softmax_gradient_in_float16_may_round_more() -> None:
    grad, softmax = values((4, 8), 1), values((4, 8), 2, "positive") / 8
    (wide,) = outputs_of("SoftmaxGradExt", grad, softmax, 0.5, axes=-1)
    narrow = [Input(array=array, dtype="float16") for array in (grad, softmax)]
    (found,) = outputs_of("SoftmaxGradExt", *narrow, 0.5, axes=-1)
    np.testing.assert_array_equal(found.array, wide.array)
    assert (np.asarray(found.summed) > 100 * np.asarray(wide.summed)).all()


# --- instance norms ---------------------------------------------------------------------------------------------------


def normed(x: Array, mean: Array, variance: Array, gamma: Array, beta: Array) -> Array:
    """Of NCHW, written out."""
    y = np.empty(x.shape)
    for n, c in np.ndindex(*x.shape[:2]):
        y[n, c] = (x[n, c] - mean[n, c]) / np.sqrt(variance[n, c] + 1e-5) * gamma[c] + beta[c]
    return y


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@FEW
@given(seed=seeds)
def test_instance_norm_by_parts(layout: str, seed: int) -> None:
    x = values((2, 3, 4, 5), seed)
    gamma, beta = values((3,), seed + 1), values((3,), seed + 2)
    mean, variance = x.mean(axis=(2, 3)), x.var(axis=(2, 3))
    wanted = normed(x, mean, variance, gamma, beta)
    order = (0, 1, 2, 3) if layout == "NCHW" else (0, 2, 3, 1)

    def placed(array: Array) -> Array:
        return array.reshape(2, 3, 1, 1).transpose(order) if array.shape == (2, 3) else array.transpose(order)

    found = arrays_of("INInferV2", placed(x), gamma, beta, placed(mean), placed(variance), layout=layout)
    close(found[0], placed(wanted), rtol=1e-8, atol=1e-8)
    np.testing.assert_array_equal(found[1], placed(mean))
    np.testing.assert_array_equal(found[2], placed(variance))
    sums = arrays_of("INTrainingReduceV2", placed(x), layout=layout)
    close(sums[0], placed(x.sum(axis=(2, 3))))
    close(sums[1], placed((x * x).sum(axis=(2, 3))))
    y, *moments = results_of(call_of("INTrainingUpdateV2", placed(x), *sums, gamma, beta, layout=layout))
    assert y is not None
    assert moments == [None, None]
    close(y.array, placed(wanted), rtol=1e-6, atol=1e-6)


def test_instance_norm_without_moments_is_refused() -> None:
    x = values((2, 3, 4, 5), 1)
    with pytest.raises(NotComputedError):
        arrays_of("INInferV2", x, np.ones(3), np.ones(3), None, None, layout="NCHW")
    with pytest.raises(NotComputedError):
        arrays_of("INInferV2", x, np.ones(3), np.ones(3), np.ones(4), np.ones(4), layout="NCHW")


# --- few bits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("root", [False, True])
@pytest.mark.parametrize(("mode", "rounded"), [("Round", np.rint), ("Floor", np.floor), ("Ceil", np.ceil)])
def test_quantized(mode: str, rounded: Any, root: bool) -> None:
    x = values((4, 50), 3) * 40
    exact = x * (0.25 if root else 0.5) + 3
    (found,) = outputs_of("AscendQuant", x, scale=0.5, offset=3.0, sqrt_mode=root, round_mode=mode)
    np.testing.assert_array_equal(found.array, np.clip(rounded(exact), -128, 127))
    doubtful = found.doubtful
    assert doubtful is not None
    # What a kernel in float16 makes of it is either the same or doubtful.
    half = x.astype(np.float16)
    for factor in [0.5] * (2 if root else 1):
        half = half * np.float16(factor)
    narrow = np.clip(rounded(half.astype(np.float16) + np.float16(3)), -128, 127)
    exact16 = x.astype(np.float16).astype(np.float64)
    (of_half,) = outputs_of(
        "AscendQuant", Input(array=exact16, dtype="float16"), scale=0.5, offset=3.0, sqrt_mode=root, round_mode=mode
    )
    assert of_half.doubtful is not None
    np.testing.assert_array_equal(narrow[~of_half.doubtful], of_half.array[~of_half.doubtful])
    assert doubtful.mean() < 0.5


def test_quantized_by_channel() -> None:
    x, scales, zeros = values((2, 3, 4), 1), np.array([0.5, 0.25, 2.0]), i32([1, -2, 3])
    wanted = np.rint(x / scales.reshape(3, 1) + zeros.reshape(3, 1))
    (found,) = arrays_of("Quantize", x, scales, zeros, axis=1)
    np.testing.assert_array_equal(found, np.clip(wanted, -128, 127))
    (found,) = arrays_of("Quantize", x, scales[:1], zeros[:1], wanted=(OutputSpec(dtype="uint8"),))
    np.testing.assert_array_equal(found, np.clip(np.rint(x / 0.5 + 1), 0, 255))
    with pytest.raises(NotComputedError):
        arrays_of("Quantize", x, scales, zeros, axis=2)
    with pytest.raises(NotComputedError):
        arrays_of("AscendQuant", x, scale=1.0, offset=0.0, wanted=(OutputSpec(dtype="float8_e5m2"),))


def test_from_few_bits() -> None:
    x = whole((2, 3, 4), 5, -128, 128, "int8")
    for root, factor in ((False, 0.3), (True, 0.09)):
        (found,) = arrays_of("AscendAntiQuant", x, scale=0.3, offset=2.0, sqrt_mode=root)
        close(found, (x.astype(float) + 2) * factor)
    sums, scale = whole((2, 3, 4), 6, -5000, 5000), np.array([0.5, 0.1, 3.0, 1e-3], np.float32)
    packed = scale.view(np.uint32).astype(np.uint64) | np.uint64(1 << 40)
    for given_scale in (scale, packed):
        for relu in (False, True):
            (found,) = arrays_of("AscendDequant", sums, given_scale, relu_flag=relu)
            wanted = sums * scale.astype(np.float64)
            close(found, np.maximum(wanted, 0) if relu else wanted)
    with pytest.raises(NotComputedError):
        arrays_of("AscendDequant", sums, np.ones(5))
    images = whole((2, 4, 3, 4), 7, -5000, 5000)
    (found,) = arrays_of("AscendDequant", images, scale, layout="NCHW")
    close(found, images * scale.astype(np.float64)[:, None, None])
    (found,) = arrays_of("AscendDequant", images, scale, layout="NHWC")
    close(found, images * scale.astype(np.float64))


# --- boxes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lowest", [-1.0, 0.4])
@SOME
@given(seed=seeds)
def test_boxes_that_stay(tensorflow: TensorFlow, lowest: float, seed: int) -> None:
    """Corners in any order, empty boxes among them."""
    random = np.random.default_rng(seed)
    boxes = random.random((30, 4)).astype(np.float32)
    boxes[::7, 2] = boxes[::7, 0]
    scores = (random.permutation(30) / 30).astype(np.float32)
    limits: list[Any] = [i32(8), np.float32(0.3), np.float32(lowest)]
    names = ("max_output_size", "iou_threshold", "score_threshold")
    given_inputs = {"boxes": boxes, "scores": scores, **dict(zip(names, limits, strict=True))}
    (wanted,) = tensorflow.run("NonMaxSuppressionV3", given_inputs)
    (found,) = arrays_of("NonMaxSuppressionV3", boxes, scores, *limits)
    np.testing.assert_array_equal(found, wanted)


def test_the_threshold_of_boxes_as_an_attribute() -> None:
    """An overlap of 0.6; a box farther away comes third."""
    boxes, scores = np.array([[0, 0, 1, 1], [0, 0, 1, 0.6], [2, 2, 3, 3]]), np.array([0.9, 0.8, 0.7])
    for threshold, wanted in ((0.7, [0, 1]), (0.5, [0, 2])):
        (found,) = arrays_of("NonMaxSuppression", boxes, scores, i32(2), iou_threshold=threshold)
        assert found.tolist() == wanted
    assert arrays_of("NonMaxSuppression", boxes, scores, i32(2))[0].tolist() == [0, 2]
    with refused("offset"):
        arrays_of("NonMaxSuppressionV3", boxes, scores, i32(2), 0.5, 0.0, offset=1)


def test_boxes_that_hang_on_rounding_are_refused() -> None:
    boxes = np.array([[0, 0, 1, 1], [0, 0, 1, 0.5], [2, 2, 3, 3]])
    with refused("at the threshold"):
        arrays_of("NonMaxSuppressionV3", boxes, np.array([0.9, 0.8, 0.7]), i32(3), 0.5, 0.0)
    with refused("two scores"):
        arrays_of("NonMaxSuppressionV3", boxes, np.array([0.9, 0.9, 0.7]), i32(3), 0.4, 0.0)
    fixed = (OutputSpec(shape=(3,), dtype="int32"),)
    with refused("by the graph"):
        arrays_of("NonMaxSuppressionV3", boxes, np.array([0.9, 0.8, 0.7]), i32(3), 0.4, 0.0, wanted=fixed)
