"""Normalisations and their gradients: against TensorFlow, or their definition where only GE has the op."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from opcalls import (
    arrays_of,
    as_input,
    call_of,
    check_sampled,
    output_of,
    outputs_of,
    refused,
    results_of,
    rounding_ratio,
)
from opvalues import FEW, Array, close, close_all, same, seeds, tensor, tries, values
from tensorflow_oracle import TensorFlow

from precision_tool.lib.ops.base import NotComputedError, Output, OutputSpec

_IMAGES = st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 5), st.integers(1, 4)).filter(
    lambda shape: shape[0] * shape[1] * shape[2] > 1
)


def _vectors(channels: int) -> tuple[Array, Array, Array, Array]:
    scale, offset, mean, variance = (tensor(seed, (channels,)) for seed in range(5, 9))
    return 1 + 0.3 * scale, offset, mean, 0.1 + variance**2


# --- batch norm -------------------------------------------------------------------------------------------------------


@given(shape=_IMAGES, training=st.booleans(), first=st.booleans(), shift=st.sampled_from([0.0, 3.0]))
@tries(20)
def test_batch_norm(shape: tuple[int, ...], training: bool, first: bool, shift: float, tensorflow: TensorFlow) -> None:
    x = (tensor(1, shape) + shift).astype(np.float32)
    scale, offset, mean, variance = (one.astype(np.float32) for one in _vectors(shape[-1]))
    if training:
        mean, variance = mean[:0], variance[:0]
    attrs: dict[str, Any] = {"epsilon": 0.01, "is_training": training}
    inputs = {"x": x, "scale": scale, "offset": offset, "mean": mean, "variance": variance}
    true = tensorflow.run("FusedBatchNormV3", inputs, **attrs)
    image = as_input(np.moveaxis(x, -1, 1), "NCHW") if first else as_input(x, "NHWC")
    got = arrays_of("FusedBatchNormV3", image, scale, offset, mean, variance, **attrs)
    close(np.moveaxis(got[0], 1, -1) if first else got[0], true[0], 3e-5)
    assert len(got) == 5
    filled = 5 if training else 3  # of inference, TensorFlow leaves the last two as the memory was
    close_all(got[1:filled], true[1:filled], 3e-5)
    check_sampled("FusedBatchNormV3", image, scale, offset, mean, variance, **attrs)
    g = tensor(2, shape).astype(np.float32)
    # As TensorFlow's own gradient does: of training, what the op kept; of inference, the running statistics.
    first_space, second_space = (true[3], true[4]) if training else (mean, variance)
    gradient_inputs = {
        "y_backprop": g, "x": x, "scale": scale,
        "reserve_space_1": first_space, "reserve_space_2": second_space, "reserve_space_3": np.zeros(0, np.float32),
    }  # fmt: skip
    true_gradient = tensorflow.run("FusedBatchNormGradV3", gradient_inputs, **attrs)
    grads = as_input(np.moveaxis(g, -1, 1), "NCHW") if first else as_input(g, "NHWC")
    got = arrays_of("FusedBatchNormGradV3", grads, image, scale, first_space, second_space, **attrs)
    close(np.moveaxis(got[0], 1, -1) if first else got[0], true_gradient[0], 1e-4)
    close(got[1], true_gradient[1], 3e-4)
    close(got[2], true_gradient[2], 3e-5)
    check_sampled("FusedBatchNormGradV3", grads, image, scale, first_space, second_space, **attrs)


@given(shape=_IMAGES, version=st.sampled_from(["", "V2", "V3"]), factor=st.sampled_from([0.0, 0.1, 1.0]))
@tries(20)
def test_the_parts_of_batch_norm_make_the_whole(shape: tuple[int, ...], version: str, factor: float) -> None:
    x = tensor(1, shape)
    scale, offset, running_mean, running_variance = _vectors(shape[-1])
    sums = arrays_of("BNTrainingReduce", x)
    close(sums[0], x.sum(axis=(0, 1, 2)))
    close(sums[1], (x**2).sum(axis=(0, 1, 2)))
    y, mean, unbiased, _, variance = arrays_of("FusedBatchNormV3", x, scale, offset, running_mean, running_variance,
                                             epsilon=0.001)  # fmt: skip
    running = (running_mean, running_variance) if not version else ()
    attrs: dict[str, Any] = {"epsilon": 0.001, "factor": factor}
    got = arrays_of(f"BNTrainingUpdate{version}", x, *sums, scale, offset, *running, **attrs)
    close(got[0], y)
    check_sampled(f"BNTrainingUpdate{version}", x, *sums, scale, offset, *running, **attrs)
    if version == "V2":
        expected = [mean, variance]
    elif version == "V3":
        expected = [mean, unbiased, mean, variance]
    else:
        expected = [factor * mean + (1 - factor) * running_mean, factor * unbiased + (1 - factor) * running_variance]
        expected += [mean, variance]
    close_all(got[1:], expected)
    g = tensor(3, shape)
    whole = arrays_of("FusedBatchNormGradV3", g, x, scale, mean, variance, epsilon=0.001)
    parts = arrays_of("BNTrainingUpdateGrad", g, x, mean, variance, epsilon=0.001)
    close(parts[0], whole[1])
    close(parts[1], whole[2])
    inputs = (g, x, *parts, scale, mean, variance)
    close(arrays_of("BNTrainingReduceGrad", *inputs, epsilon=0.001)[0], whole[0])
    check_sampled("BNTrainingReduceGrad", *inputs, epsilon=0.001)


def test_batch_norm_of_inference_and_vectors_with_more_axes() -> None:
    x = tensor(1, (2, 3, 4, 5))
    vectors = _vectors(3)
    scale, offset, mean, variance = (one.reshape(1, 3, 1, 1) for one in vectors)
    (y,) = arrays_of("BNInfer", as_input(x, "NCHW"), *vectors, epsilon=0.01)
    close(y, (x - mean) / np.sqrt(variance + 0.01) * scale + offset)
    (dx,) = arrays_of("BNInferGrad", as_input(x, "NCHW"), vectors[0], vectors[3], epsilon=0.01)
    close(dx, x * scale / np.sqrt(variance + 0.01))
    expected = (OutputSpec(shape=(1, 3, 1, 1)),) * 2
    sums = arrays_of("BNTrainingReduce", as_input(x, "NCHW"), specs=expected)
    close(sums[0], x.sum(axis=(0, 2, 3), keepdims=True))


# --- layer norm -------------------------------------------------------------------------------------------------------

_ROWS = st.lists(st.integers(1, 5), min_size=2, max_size=4)


@given(shape=_ROWS, data=st.data(), epsilon=st.sampled_from([1e-12, 1e-3]))
@tries(20)
def test_layer_norm_and_its_gradients(
    shape: list[int], data: st.DataObject, epsilon: float, tensorflow: TensorFlow
) -> None:
    """The forward against Keras's formula; the parts of the gradient against TensorFlow's gradient of it."""
    axis = data.draw(st.integers(1, len(shape) - 1))
    x = tensor(1, shape) * 2 + 1
    length = int(np.prod(shape[axis:]))
    if length == 1:
        x = x + 0.5  # everything is 0
    gamma, beta, g = 1 + tensor(2, shape[axis:]), tensor(3, shape[axis:]), tensor(4, shape)
    axes = tuple(range(axis, len(shape)))
    mean, variance = x.mean(axis=axes, keepdims=True), x.var(axis=axes, keepdims=True)
    attrs: dict[str, Any] = {"begin_norm_axis": axis, "begin_params_axis": axis, "epsilon": epsilon}
    got = arrays_of("LayerNorm", x, gamma, beta, **attrs)
    close_all(got, ((x - mean) / np.sqrt(variance + epsilon) * gamma + beta, mean, variance))
    check_sampled("LayerNorm", x, gamma, beta, **attrs)
    v3 = arrays_of("LayerNormV3", x, gamma, beta, **attrs)
    close(v3[2], 1 / np.sqrt(variance + epsilon))
    if length == 1:
        return
    assume(variance.min() > 1e-3)  # what GE adds to it, and TensorFlow does not, is then nothing
    # y = ((x − mean) / deviation) γ + β as TensorFlow's batch normalisation with moments that depend on x
    flat = {"x": x.reshape(-1, length), "gamma": gamma.reshape(-1)}
    true_x = _layer_norm_gradient(tensorflow, flat["x"], flat["gamma"], g.reshape(-1, length))
    inputs = (g, x, variance, mean, gamma)
    for name in ("LayerNormXBackprop", "LayerNormXBackpropV2", "LayerNormGrad"):
        close(arrays_of(name, *inputs)[0], true_x.reshape(x.shape), 1e-6)
        check_sampled(name, *inputs)
    normalised = (x - mean) / np.sqrt(variance + 1e-12)
    close(arrays_of("LayerNormXBackpropV2", *inputs)[1], normalised)
    before = tuple(range(axis))
    expected = [(g * normalised).sum(axis=before), g.sum(axis=before)]
    sizes = list(gamma.shape)
    for result in (
        arrays_of("LayerNormGrad", *inputs)[1:],
        arrays_of("LayerNormGradV3", g, x, 1 / np.sqrt(variance + 1e-12), mean, gamma)[1:],
        arrays_of("LayerNormBetaGammaBackprop", g, x, variance, mean, shape_gamma=sizes),
        arrays_of("LayerNormBetaGammaBackpropV2", g, normalised, shape_gamma=sizes),
    ):
        close_all(result, expected)


def _layer_norm_gradient(tensorflow: TensorFlow, x: Array, gamma: Array, g: Array) -> Array:
    """TensorFlow's gradient of x̂ γ, put together from the gradients of its own ops.

    x̂ does not change when x is moved or scaled, and TensorFlow knows L2 normalisation: x̂ = √n (x − mean) / ‖x − mean‖.
    """
    centred = x - x.mean(axis=1, keepdims=True)
    upstream = g * gamma * np.sqrt(x.shape[1])
    (gradient,) = tensorflow.run("math.l2_normalize", {"x": centred}, axis=1, epsilon=0.0, gradient=(["x"], upstream))
    return np.asarray(gradient - gradient.mean(axis=1, keepdims=True))


def test_gamma_that_differs_along_the_rows() -> None:
    x = tensor(1, (2, 3, 4))
    gamma, beta = tensor(2, (3, 4)), tensor(3, (3, 4))
    attrs: dict[str, Any] = {"begin_norm_axis": 2, "begin_params_axis": 1, "epsilon": 1e-3}
    (y, *_) = arrays_of("LayerNorm", x, gamma, beta, **attrs)
    mean, variance = x.mean(axis=2, keepdims=True), x.var(axis=2, keepdims=True)
    close(y, (x - mean) / np.sqrt(variance + 1e-3) * gamma + beta)
    check_sampled("LayerNorm", x, gamma, beta, **attrs)


# --- the others -------------------------------------------------------------------------------------------------------


@given(shape=_IMAGES, first=st.booleans(), groups=st.integers(1, 3))
@tries(20)
def test_instance_and_group_norm(shape: tuple[int, ...], first: bool, groups: int) -> None:
    shape = (*shape[:-1], shape[-1] * groups)
    x = tensor(1, shape)
    gamma, beta, *_ = _vectors(shape[-1])
    image = as_input(np.moveaxis(x, -1, 1), "NCHW") if first else as_input(x, "NHWC")

    def turned(array: Array) -> Array:
        return np.moveaxis(array, 1, -1) if first else array

    mean, variance = x.mean(axis=(1, 2), keepdims=True), x.var(axis=(1, 2), keepdims=True)
    got = arrays_of("InstanceNorm", image, gamma, beta, epsilon=0.01)
    close(turned(got[0]), (x - mean) / np.sqrt(variance + 0.01) * gamma + beta)
    close(got[1], mean[:, 0, 0])
    close(got[2], variance[:, 0, 0])
    grouped = x.reshape(*shape[:3], groups, -1)
    mean, variance = (f(axis=(1, 2, 4), keepdims=True) for f in (grouped.mean, grouped.var))
    y, _, ambiguous = results_of(call_of("GroupNorm", image, gamma, beta, num_groups=groups, eps=0.01))
    assert ambiguous is None
    assert y is not None
    close(turned(y.array), ((grouped - mean) / np.sqrt(variance + 0.01)).reshape(shape) * gamma + beta)


@given(shape=_IMAGES, radius=st.integers(0, 3), beta=st.sampled_from([0.5, 0.75]))
@tries(20)
def test_local_response(shape: tuple[int, ...], radius: int, beta: float, tensorflow: TensorFlow) -> None:
    x, g = (tensor(seed, shape).astype(np.float32) for seed in (1, 2))
    attrs: dict[str, Any] = {"depth_radius": radius, "bias": 1.5, "alpha": 0.3, "beta": beta}
    (true,) = tensorflow.run("LRN", {"input": x}, **attrs)
    (y,) = arrays_of("LRN", x, **attrs)
    close(y, true, 1e-5)
    close(arrays_of("LRN", as_input(np.moveaxis(x, -1, 1), "NCHW"), **attrs)[0], np.moveaxis(y, -1, 1))
    (true,) = tensorflow.run("LRNGrad", {"input_grads": g, "input_image": x, "output_image": true}, **attrs)
    close(arrays_of("LRNGrad", g, x, y, **attrs)[0], true, 1e-5)


@given(shape=_ROWS, data=st.data())
@tries(20)
def test_l2(shape: list[int], data: st.DataObject, tensorflow: TensorFlow) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    x, g = tensor(1, shape), tensor(2, shape)
    (true,) = tensorflow.run("math.l2_normalize", {"x": x}, axis=axis, epsilon=1e-6)
    (y,) = arrays_of("L2Normalize", x, axis=[axis], eps=1e-6)
    close(y, true)
    (true,) = tensorflow.run("math.l2_normalize", {"x": x}, axis=axis, epsilon=1e-12, gradient=(["x"], g))
    close(arrays_of("L2NormalizeGrad", x, y, g, dim=[axis], eps=1e-6)[0], true, 1e-5)


# --- rounding ---------------------------------------------------------------------------------------------------------


def _ratio(error: Array, output: Output) -> float:
    return rounding_ratio(error, np.hypot(output.summed, output.array))


@pytest.mark.parametrize("shift", [0.0, 30.0])
def test_rounding_of_batch_norm_is_predicted(shift: float) -> None:
    """In float32, in GE's order; a mean that is large against the deviation costs digits, and is told."""
    x = (tensor(1, (8, 12, 12, 16)) + shift).astype(np.float32)
    scale, offset, _, _ = (one.astype(np.float32) for one in _vectors(16))
    flat = x.reshape(-1, 16)
    total, squares = np.zeros(16, np.float32), np.zeros(16, np.float32)
    for row in flat:
        total += row
        squares += row * row
    for got, output in zip((total, squares), outputs_of("BNTrainingReduce", x), strict=True):
        assert 0.2 < _ratio(got - output.array, output) < 3
    n = np.float32(1 / len(flat))
    mean = total * n
    variance = squares * n - mean * mean
    factor = scale / np.sqrt(variance + np.float32(0.001))
    y = flat * factor + (offset - factor * mean)
    whole = output_of(call_of("FusedBatchNormV3", x, scale, offset, epsilon=0.001))
    assert 0.2 < _ratio(y.reshape(x.shape) - whole.array, whole) < 3


def test_rounding_of_a_layer_norms_gradient_is_predicted_where_it_is_zero_on_paper() -> None:
    """A gradient along 1 and x̂: nothing is left of it but noise, and the noise is foretold."""
    x = tensor(1, (64, 256)).astype(np.float32)
    gamma = np.ones(256, np.float32)
    mean, variance = x.mean(axis=1, keepdims=True), x.var(axis=1, keepdims=True)
    along = (x - mean) / np.sqrt(variance)
    g = (2 * tensor(2, (64, 1)) + 3 * tensor(3, (64, 1)) * along).astype(np.float32)
    output = output_of(call_of("LayerNormXBackprop", g, x, variance, mean, gamma))
    deviation = np.sqrt(variance + np.float32(1e-12))
    along = (x - mean) / deviation
    first, second = np.zeros((64, 1), np.float32), np.zeros((64, 1), np.float32)
    for column in range(256):
        first[:, 0] += g[:, column]
        second[:, 0] += g[:, column] * along[:, column]
    dx = (g - first / 256 - along * (second / 256)) / deviation
    assert np.abs(output.array).max() < 1e-5 * np.abs(g).max()
    assert 0.1 < _ratio(dx - output.array, output) < 3


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
    expected = normed(x, mean, variance, gamma, beta)
    order = (0, 1, 2, 3) if layout == "NCHW" else (0, 2, 3, 1)

    def placed(array: Array) -> Array:
        return array.reshape(2, 3, 1, 1).transpose(order) if array.shape == (2, 3) else array.transpose(order)

    result = arrays_of("INInferV2", placed(x), gamma, beta, placed(mean), placed(variance), layout=layout)
    close(result[0], placed(expected), rtol=1e-8, atol=1e-8)
    same(result[1], placed(mean))
    same(result[2], placed(variance))
    sums = arrays_of("INTrainingReduceV2", placed(x), layout=layout)
    close(sums[0], placed(x.sum(axis=(2, 3))))
    close(sums[1], placed((x * x).sum(axis=(2, 3))))
    y, *moments = results_of(call_of("INTrainingUpdateV2", placed(x), *sums, gamma, beta, layout=layout))
    assert y is not None
    assert moments == [None, None]
    close(y.array, placed(expected), rtol=1e-6, atol=1e-6)


def test_instance_norm_without_moments_is_refused() -> None:
    x = values((2, 3, 4, 5), 1)
    with pytest.raises(NotComputedError):
        arrays_of("INInferV2", x, np.ones(3), np.ones(3), None, None, layout="NCHW")
    with pytest.raises(NotComputedError):
        arrays_of("INInferV2", x, np.ones(3), np.ones(3), np.ones(4), np.ones(4), layout="NCHW")


def test_an_output_that_the_graph_describes_otherwise_says_nothing_of_the_others() -> None:
    """Padded statistics, say: y is computed all the same, and so is every other output."""
    x, three = tensor(1, (2, 2, 2, 3)), OutputSpec(shape=(3,))
    specs = (OutputSpec(shape=(2, 2, 2, 3)), three, OutputSpec(shape=(16,)), three, three)
    vectors = [np.ones(3), np.zeros(3), np.zeros(3), np.ones(3)]
    y, mean, padded, *others = results_of(call_of("FusedBatchNormV3", x, *vectors, specs=specs, epsilon=0.001))
    assert padded is None
    assert all(output is not None for output in (y, mean, *others[:2]))
    (first, second) = results_of(call_of("BNTrainingReduce", x, specs=(three, OutputSpec(shape=(16,)))))
    assert (first is not None, second) == (True, None)
    with refused("by the graph"):
        results_of(call_of("BNTrainingReduce", x, specs=(OutputSpec(shape=(16,)),) * 2))
