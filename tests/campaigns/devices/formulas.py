"""What each op computes, written once in the arithmetic that it is given: the benchmark's, or a device's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from devices.numerics import Arithmetic, Array

Attrs = Mapping[str, Any]
Formula = Callable[[Arithmetic, Attrs, Sequence[Array]], Sequence[Array]]

_GELU_SLOPE = float(np.sqrt(2 / np.pi))
_GELU_CUBE = 0.044715


def compute(arithmetic: Arithmetic, op_type: str, attrs: Attrs, inputs: Sequence[Array]) -> list[Array]:
    """Return the outputs of an op, not yet rounded to the types that they are stored in."""
    with np.errstate(all="ignore"):
        return list(FORMULAS[op_type](arithmetic, attrs, [arithmetic.number(array) for array in inputs]))


# --- elements ---------------------------------------------------------------------------------------------------------


def _plain(function: Callable[..., Array]) -> Formula:
    return lambda m, attrs, x: [np.asarray(function(*x))]


def _of_function(name: str) -> Formula:
    return lambda m, attrs, x: [m.function(name, x[0])]


def _gelu(m: Arithmetic, attrs: Attrs, inputs: Sequence[Array]) -> Sequence[Array]:
    (x,) = inputs
    return [x * m.function("sigmoid", x * (2 * _GELU_SLOPE) * (1 + _GELU_CUBE * x * x))]


def _gelu_grad(m: Arithmetic, attrs: Attrs, inputs: Sequence[Array]) -> Sequence[Array]:
    dy, x = inputs[:2]
    inner = m.function("tanh", _GELU_SLOPE * (x + _GELU_CUBE * x * x * x))
    slope = _GELU_SLOPE * (1 + 3 * _GELU_CUBE * x * x)
    return [dy * (0.5 * (1 + inner) + 0.5 * x * (1 - inner * inner) * slope)]


def _softplus(m: Arithmetic, attrs: Attrs, inputs: Sequence[Array]) -> Sequence[Array]:
    (x,) = inputs
    return [np.maximum(x, 0) + m.function("log1p", m.function("exp", -np.abs(x)))]


def _elu(m: Arithmetic, attrs: Attrs, inputs: Sequence[Array]) -> Sequence[Array]:
    (x,) = inputs
    return [np.where(x > 0, x, m.function("exp", np.minimum(x, 0)) - 1)]


def _fused_mul_add(m: Arithmetic, attrs: Attrs, x: Sequence[Array]) -> Sequence[Array]:
    return [x[0] * x[1] + x[2]]


def _cast(m: Arithmetic, attrs: Attrs, x: Sequence[Array]) -> Sequence[Array]:
    (array,) = x
    return [np.trunc(array) if attrs["dst_type"] == 3 else array.astype(m.dtype)]


# --- moves ------------------------------------------------------------------------------------------------------------


def _split(m: Arithmetic, attrs: Attrs, x: Sequence[Array]) -> Sequence[Array]:
    return np.split(x[0], attrs["num_split"], axis=attrs["split_dim"])


def _slice(m: Arithmetic, attrs: Attrs, x: Sequence[Array]) -> Sequence[Array]:
    cut = tuple(slice(start, start + size) for start, size in zip(attrs["offsets"], attrs["size"], strict=True))
    return [x[0][cut]]


def _segment_sum(m: Arithmetic, attrs: Attrs, inputs: Sequence[Array]) -> Sequence[Array]:
    rows, ids = inputs
    result = np.zeros((attrs["num_segments"], *rows.shape[1:]), rows.dtype)
    for segment in np.unique(ids):
        result[segment] = m.sum(rows[ids == segment], (0,))
    return [result]


# --- sums and products ------------------------------------------------------------------------------------------------


def _reduce(m: Arithmetic, attrs: Attrs, x: Sequence[Array]) -> Sequence[Array]:
    return [m.sum(x[0], tuple(attrs["axes"]), attrs["keep_dims"])]


def _mean(m: Arithmetic, attrs: Attrs, x: Sequence[Array]) -> Sequence[Array]:
    count = np.prod([x[0].shape[axis] for axis in attrs["axes"]])
    return [m.sum(x[0], tuple(attrs["axes"]), attrs["keep_dims"]) * m.dtype(1 / count)]


def _bias_grad(m: Arithmetic, attrs: Attrs, x: Sequence[Array]) -> Sequence[Array]:
    return [m.sum(x[0], tuple(range(x[0].ndim - 1)))]


def _add_all(m: Arithmetic, attrs: Attrs, x: Sequence[Array]) -> Sequence[Array]:
    total = x[0]
    for array in x[1:]:
        total = total + array
    return [total]


def _matmul(m: Arithmetic, attrs: Attrs, x: Sequence[Array]) -> Sequence[Array]:
    a = np.swapaxes(x[0], -1, -2) if attrs.get("transpose_x1") or attrs.get("adj_x1") else x[0]
    b = np.swapaxes(x[1], -1, -2) if attrs.get("transpose_x2") or attrs.get("adj_x2") else x[1]
    return [m.matmul(np.ascontiguousarray(a), np.ascontiguousarray(b))]


# --- images -----------------------------------------------------------------------------------------------------------


def _borders(size: int, window: int, stride: int, padding: str) -> tuple[int, int, int]:
    """Number of windows along an axis, and the elements of padding before and after."""
    if padding == "VALID":
        return (size - window) // stride + 1, 0, 0
    count = -(-size // stride)
    missing = max((count - 1) * stride + window - size, 0)
    return count, missing // 2, missing - missing // 2


def _windows(x: Array, window: tuple[int, int], attrs: Attrs, fill: float = 0.0) -> Array:
    """Every window of an image in NHWC, as (n, rows, columns, height, width, channels)."""
    _, sy, sx, _ = attrs["strides"]
    rows, top, bottom = _borders(x.shape[1], window[0], sy, attrs["padding"])
    columns, left, right = _borders(x.shape[2], window[1], sx, attrs["padding"])
    padded = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=fill)
    cut = np.empty((x.shape[0], rows, columns, *window, x.shape[3]), x.dtype)
    for i in range(window[0]):
        for j in range(window[1]):
            cut[:, :, :, i, j] = padded[:, i : i + sy * rows : sy, j : j + sx * columns : sx][:, :rows, :columns]
    return cut


def _scattered(parts: Array, size: Sequence[int], attrs: Attrs) -> Array:
    """The sum of windows at their places: the transpose of `_windows`."""
    _, sy, sx, _ = attrs["strides"]
    _, rows, columns, height, width, _ = parts.shape
    _, top, bottom = _borders(size[1], height, sy, attrs["padding"])
    _, left, right = _borders(size[2], width, sx, attrs["padding"])
    canvas = np.zeros((size[0], size[1] + top + bottom, size[2] + left + right, size[3]), parts.dtype)
    for i in range(height):
        for j in range(width):
            canvas[:, i : i + sy * rows : sy, j : j + sx * columns : sx] += parts[:, :, :, i, j]
    return canvas[:, top : top + size[1], left : left + size[2]]


def _conv(m: Arithmetic, attrs: Attrs, x: Sequence[Array]) -> Sequence[Array]:
    image, kernel = x
    cut = _windows(image, kernel.shape[:2], attrs)
    columns = cut.reshape(-1, int(np.prod(kernel.shape[:3])))
    return [m.matmul(columns, kernel.reshape(-1, kernel.shape[3])).reshape(*cut.shape[:3], -1)]


def _conv_input(m: Arithmetic, attrs: Attrs, x: Sequence[Array]) -> Sequence[Array]:
    """Stride 1: the convolution of the padded gradient with the kernel turned round, as one product."""
    kernel, gradient = x
    size = attrs["input_size"]
    height, width = kernel.shape[:2]
    _, sy, sx, _ = attrs["strides"]
    _, top, _ = _borders(size[1], height, sy, attrs["padding"])
    _, left, _ = _borders(size[2], width, sx, attrs["padding"])
    spread = np.zeros((size[0], size[1] + 2 * height, size[2] + 2 * width, gradient.shape[3]), gradient.dtype)
    oy, ox = height - 1 - top, width - 1 - left
    spread[:, oy : oy + sy * gradient.shape[1] : sy, ox : ox + sx * gradient.shape[2] : sx] = gradient
    spread = spread[:, : size[1] + height - 1, : size[2] + width - 1]
    turned = np.ascontiguousarray(kernel[::-1, ::-1].transpose(0, 1, 3, 2))
    cut = _windows(spread, (height, width), {"strides": [1, 1, 1, 1], "padding": "VALID"})
    columns = cut.reshape(-1, int(np.prod(turned.shape[:3])))
    return [m.matmul(columns, turned.reshape(-1, turned.shape[3])).reshape(size)]


def _conv_filter(m: Arithmetic, attrs: Attrs, x: Sequence[Array]) -> Sequence[Array]:
    image, gradient = x
    size = attrs["filter_size"]
    cut = _windows(image, (size[0], size[1]), attrs)
    columns = cut.reshape(-1, int(np.prod(size[:3])))
    return [m.matmul(np.ascontiguousarray(columns.T), gradient.reshape(-1, size[3])).reshape(size)]


def _max_pool(m: Arithmetic, attrs: Attrs, x: Sequence[Array]) -> Sequence[Array]:
    return [_windows(x[0], tuple(attrs["ksize"][1:3]), attrs, -np.inf).max(axis=(3, 4))]


def _max_pool_grad(m: Arithmetic, attrs: Attrs, inputs: Sequence[Array]) -> Sequence[Array]:
    """The gradient goes to the first of the largest in each window."""
    x, _, gradient = inputs
    window = tuple(attrs["ksize"][1:3])
    cut = _windows(x, window, attrs, -np.inf)
    flat = cut.reshape(*cut.shape[:3], -1, cut.shape[-1])
    first = np.arange(flat.shape[3])[:, None] == flat.argmax(axis=3)[:, :, :, None]
    parts = (first * gradient[:, :, :, None]).astype(gradient.dtype).reshape(cut.shape)
    return [_scattered(parts, x.shape, attrs)]


def _average_pool(m: Arithmetic, attrs: Attrs, x: Sequence[Array]) -> Sequence[Array]:
    window = tuple(attrs["ksize"][1:3])
    return [m.sum(_windows(x[0], window, attrs), (3, 4)) * m.dtype(1 / np.prod(window))]


def _average_pool_grad(m: Arithmetic, attrs: Attrs, x: Sequence[Array]) -> Sequence[Array]:
    window = tuple(attrs["ksize"][1:3])
    share = (x[0] * m.dtype(1 / np.prod(window)))[:, :, :, None, None]
    return [_scattered(np.broadcast_to(share, (*x[0].shape[:3], *window, x[0].shape[3])), attrs["orig_input_shape"],
                       attrs)]  # fmt: skip


# --- norms ------------------------------------------------------------------------------------------------------------


def _channels(x: Array) -> tuple[int, ...]:
    return tuple(range(x.ndim - 1))


def _bn_sums(m: Arithmetic, attrs: Attrs, x: Sequence[Array]) -> Sequence[Array]:
    return [m.sum(x[0], _channels(x[0])), m.sum(x[0] * x[0], _channels(x[0]))]


def _bn_update(m: Arithmetic, attrs: Attrs, inputs: Sequence[Array]) -> Sequence[Array]:
    x, total, squares, gamma, beta = inputs
    count = x.size // x.shape[-1]
    mean = total * m.dtype(1 / count)
    variance = np.maximum(squares * m.dtype(1 / count) - mean * mean, 0)
    factor = gamma * m.function("rsqrt", variance + m.dtype(attrs["epsilon"]))
    unbiased = variance * m.dtype(count / max(count - 1, 1))
    return [x * factor + (beta - mean * factor), mean, unbiased, mean, variance]


def _batch_norm(m: Arithmetic, attrs: Attrs, inputs: Sequence[Array]) -> Sequence[Array]:
    x, gamma, beta = inputs
    return _bn_update(m, attrs, [x, *_bn_sums(m, attrs, [x]), gamma, beta])


def _bn_update_grad(m: Arithmetic, attrs: Attrs, inputs: Sequence[Array]) -> Sequence[Array]:
    dy, x, mean, variance = inputs
    along = (x - mean) * m.function("rsqrt", variance + m.dtype(attrs["epsilon"]))
    return [m.sum(dy * along, _channels(x)), m.sum(dy, _channels(x))]


def _bn_reduce_grad(m: Arithmetic, attrs: Attrs, inputs: Sequence[Array]) -> Sequence[Array]:
    dy, x, d_gamma, d_beta, gamma, mean, variance = inputs
    share = m.dtype(1 / (x.size // x.shape[-1]))
    inverse = m.function("rsqrt", variance + m.dtype(attrs["epsilon"]))
    along = (x - mean) * inverse
    return [(dy - d_beta * share - along * (d_gamma * share)) * (gamma * inverse)]


def _batch_norm_grad(m: Arithmetic, attrs: Attrs, inputs: Sequence[Array]) -> Sequence[Array]:
    dy, x, gamma, mean, variance = inputs
    d_gamma, d_beta = _bn_update_grad(m, attrs, [dy, x, mean, variance])
    return [*_bn_reduce_grad(m, attrs, [dy, x, d_gamma, d_beta, gamma, mean, variance]), d_gamma, d_beta]


def _layer_norm(m: Arithmetic, attrs: Attrs, inputs: Sequence[Array]) -> Sequence[Array]:
    x, gamma, beta = inputs
    share = m.dtype(1 / x.shape[-1])
    mean = m.sum(x, (-1,), keep=True) * share
    centred = x - mean
    variance = m.sum(centred * centred, (-1,), keep=True) * share
    return [centred * m.function("rsqrt", variance + m.dtype(attrs["epsilon"])) * gamma + beta, mean, variance]


#: TensorFlow has no such attribute on the gradient: GE's kernel takes this one.
_LAYER_NORM_EPSILON = 1e-12


def _layer_norm_x(m: Arithmetic, attrs: Attrs, inputs: Sequence[Array]) -> Sequence[Array]:
    dy, x, variance, mean, gamma = inputs
    share = m.dtype(1 / x.shape[-1])
    inverse = m.function("rsqrt", variance + m.dtype(attrs.get("epsilon", _LAYER_NORM_EPSILON)))
    along = (x - mean) * inverse
    g = dy * gamma
    first = m.sum(g, (-1,), keep=True) * share
    second = m.sum(g * along, (-1,), keep=True) * share
    return [(g - first - along * second) * inverse]


def _layer_norm_parameters(m: Arithmetic, attrs: Attrs, inputs: Sequence[Array]) -> Sequence[Array]:
    dy, x, variance, mean = inputs
    along = (x - mean) * m.function("rsqrt", variance + m.dtype(attrs.get("epsilon", _LAYER_NORM_EPSILON)))
    axes = tuple(range(x.ndim - 1))
    return [m.sum(dy * along, axes), m.sum(dy, axes)]


# --- losses -----------------------------------------------------------------------------------------------------------


def _softmax(m: Arithmetic, attrs: Attrs, inputs: Sequence[Array]) -> Sequence[Array]:
    (x,) = inputs
    powers = m.function("exp", x - x.max(axis=-1, keepdims=True))
    return [m.divide(powers, m.sum(powers, (-1,), keep=True))]


def _softmax_grad(m: Arithmetic, attrs: Attrs, inputs: Sequence[Array]) -> Sequence[Array]:
    y, g = inputs
    return [(g - m.sum(g * y, (-1,), keep=True)) * y]


def _cross_entropy(m: Arithmetic, attrs: Attrs, inputs: Sequence[Array]) -> Sequence[Array]:
    x, labels = inputs
    shifted = x - x.max(axis=-1, keepdims=True)
    powers = m.function("exp", shifted)
    total = m.sum(powers, (-1,), keep=True)
    logarithm = shifted - m.function("log", total)
    return [-m.sum(logarithm * labels, (-1,)), m.divide(powers, total) - labels]


def _sparse_cross_entropy(m: Arithmetic, attrs: Attrs, inputs: Sequence[Array]) -> Sequence[Array]:
    x, labels = inputs
    return _cross_entropy(m, attrs, [x, np.eye(x.shape[1], dtype=m.dtype)[labels]])


def _sigmoid_cross_entropy(m: Arithmetic, attrs: Attrs, inputs: Sequence[Array]) -> Sequence[Array]:
    x, target = inputs
    return [np.maximum(x, 0) - x * target + m.function("log1p", m.function("exp", -np.abs(x)))]


def _sigmoid_cross_entropy_grad(m: Arithmetic, attrs: Attrs, inputs: Sequence[Array]) -> Sequence[Array]:
    x, target, dout = inputs
    return [(m.function("sigmoid", x) - target) * dout]


# --- optimizers -------------------------------------------------------------------------------------------------------


def _descent(m: Arithmetic, attrs: Attrs, inputs: Sequence[Array]) -> Sequence[Array]:
    variable, rate, gradient = inputs
    return [variable - rate * gradient]


def _momentum(m: Arithmetic, attrs: Attrs, inputs: Sequence[Array]) -> Sequence[Array]:
    variable, accumulator, rate, gradient, momentum = inputs
    return [variable - (accumulator * momentum + gradient) * rate]


def _adam(m: Arithmetic, attrs: Attrs, inputs: Sequence[Array]) -> Sequence[Array]:
    variable, first, second, power1, power2, rate, beta1, beta2, epsilon, gradient = inputs
    first = first + (gradient - first) * (1 - beta1)
    second = second + (gradient * gradient - second) * (1 - beta2)
    step = m.divide(rate * m.function("sqrt", np.asarray(1 - power2)), np.asarray(1 - power1))
    return [variable - m.divide(first * step, m.function("sqrt", second) + epsilon)]


def _rms(m: Arithmetic, attrs: Attrs, inputs: Sequence[Array]) -> Sequence[Array]:
    variable, square, velocity, rate, decay, momentum, epsilon, gradient = inputs
    square = square + (gradient * gradient - square) * (1 - decay)
    return [variable - (velocity * momentum + gradient * rate * m.function("rsqrt", square + epsilon))]


def _adagrad(m: Arithmetic, attrs: Attrs, inputs: Sequence[Array]) -> Sequence[Array]:
    variable, accumulator, rate, gradient = inputs
    return [variable - gradient * rate * m.function("rsqrt", accumulator + gradient * gradient)]


def _half_square(m: Arithmetic, attrs: Attrs, inputs: Sequence[Array]) -> Sequence[Array]:
    (x,) = inputs
    return [m.sum(x * x, tuple(range(x.ndim))) * m.dtype(0.5)]


FORMULAS: dict[str, Formula] = {
    "Add": _plain(np.add), "Sub": _plain(np.subtract), "Mul": _plain(np.multiply), "Neg": _plain(np.negative),
    "Square": _plain(np.square), "Abs": _plain(np.abs), "Sign": _plain(np.sign),
    "Maximum": _plain(np.maximum), "Minimum": _plain(np.minimum),
    "SquaredDifference": _plain(lambda a, b: (a - b) * (a - b)),
    "Greater": _plain(np.greater), "GreaterEqual": _plain(np.greater_equal), "LessEqual": _plain(np.less_equal),
    "Select": _plain(np.where), "AddN": _add_all, "FusedMulAdd": _fused_mul_add, "BiasAdd": _plain(np.add),
    "Relu": _plain(lambda x: np.maximum(x, 0)), "ReluGrad": _plain(lambda dy, y: np.where(y > 0, dy, 0)),
    "LeakyRelu": lambda m, attrs, x: [np.where(x[0] > 0, x[0], x[0] * m.dtype(attrs["negative_slope"]))],
    "LeakyReluGrad": lambda m, attrs, x: [np.where(x[1] > 0, x[0], x[0] * m.dtype(attrs["negative_slope"]))],
    "RealDiv": lambda m, attrs, x: [m.divide(x[0], x[1])], "Reciprocal": _of_function("recip"),
    "Exp": _of_function("exp"), "Log": _of_function("log"), "Log1p": _of_function("log1p"),
    "Tanh": _of_function("tanh"), "Sigmoid": _of_function("sigmoid"), "Sqrt": _of_function("sqrt"),
    "Rsqrt": _of_function("rsqrt"), "Softplus": _softplus, "Elu": _elu, "Gelu": _gelu, "GeluGrad": _gelu_grad,
    "SigmoidGrad": _plain(lambda y, dy: dy * y * (1 - y)), "TanhGrad": _plain(lambda y, dy: dy * (1 - y * y)),
    "EluGrad": _plain(lambda dy, y: np.where(y < 0, dy * (y + 1), dy)),
    "SoftplusGrad": lambda m, attrs, x: [x[0] * m.function("sigmoid", x[1])],
    "SqrtGrad": lambda m, attrs, x: [m.divide(x[1] * m.dtype(0.5), x[0])],
    "RsqrtGrad": _plain(lambda y, dy: dy * (y * y * y) * np.float32(-0.5)),
    "Cast": _cast, "TransData": _plain(np.asarray),
    "Reshape": lambda m, attrs, x: [x[0].reshape(attrs["shape"])],
    "ExpandDims": lambda m, attrs, x: [x[0].reshape(attrs["shape"])],
    "TransposeD": lambda m, attrs, x: [np.ascontiguousarray(x[0].transpose(attrs["perm"]))],
    "TileD": lambda m, attrs, x: [np.tile(x[0], attrs["multiples"])],
    "ConcatV2D": lambda m, attrs, x: [np.concatenate(x, axis=attrs["concat_dim"])],
    "SplitD": _split, "SliceD": _slice, "UnsortedSegmentSumD": _segment_sum,
    "GatherV2D": lambda m, attrs, x: [x[0][x[1]]],
    "PadD": lambda m, attrs, x: [np.pad(x[0], attrs["paddings"])],
    "ReduceSumD": _reduce, "ReduceMeanD": _mean, "BiasAddGrad": _bias_grad, "L2Loss": _half_square,
    "MatMulV2": _matmul, "BatchMatMul": _matmul,
    "Conv2D": _conv, "Conv2DBackpropInput": _conv_input, "Conv2DBackpropFilter": _conv_filter,
    "MaxPool": _max_pool, "MaxPoolGrad": _max_pool_grad, "AvgPool": _average_pool, "AvgPoolGradD": _average_pool_grad,
    "FusedBatchNormV3": _batch_norm, "FusedBatchNormGradV3": _batch_norm_grad,
    "BNTrainingReduce": _bn_sums, "BNTrainingUpdateV3": _bn_update,
    "BNTrainingUpdateGrad": _bn_update_grad, "BNTrainingReduceGrad": _bn_reduce_grad,
    "LayerNorm": _layer_norm, "LayerNormXBackprop": _layer_norm_x,
    "LayerNormBetaGammaBackprop": _layer_norm_parameters,
    "SoftmaxV2": _softmax, "SoftmaxGrad": _softmax_grad,
    "SoftmaxCrossEntropyWithLogits": _cross_entropy, "SparseSoftmaxCrossEntropyWithLogits": _sparse_cross_entropy,
    "SigmoidCrossEntropyWithLogits": _sigmoid_cross_entropy,
    "SigmoidCrossEntropyWithLogitsGrad": _sigmoid_cross_entropy_grad,
    "ApplyGradientDescent": _descent, "ApplyMomentum": _momentum, "ApplyAdamD": _adam, "ApplyRMSPropD": _rms,
    "ApplyAdagradD": _adagrad,
}  # fmt: skip
