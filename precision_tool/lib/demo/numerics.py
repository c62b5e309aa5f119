"""The arithmetic of the demo's ops: NHWC images, HWCN filters, stride 1, 2×2 pools.

Both sides use it: the benchmark on float32 values, the device on what it stored in float16. What is summed up or
approximated is computed in float64 and rounded once, to the type that comes in: float32 sums depend on the machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def matmul(a: Array, b: Array) -> Array:
    """Matrix product."""
    product: Array = (a.astype(np.float64) @ b.astype(np.float64)).astype(a.dtype)
    return product


def _padded(images: Array, pad: int) -> Array:
    return np.pad(images, ((0, 0), (pad, pad), (pad, pad), (0, 0))) if pad else images


def _columns(images: Array, height: int, width: int, pad: int) -> Array:
    """One row per output pixel with the patch below the filter, in the filter's (h, w, c) order."""
    if height == width == 1:
        return images.reshape(-1, images.shape[3])
    views = np.lib.stride_tricks.sliding_window_view(_padded(images, pad), (height, width), axis=(1, 2))
    return views.transpose(0, 1, 2, 4, 5, 3).reshape(-1, height * width * images.shape[3])


def conv2d(images: Array, filters: Array, pad: int = 0) -> Array:
    """Convolution (correlation, as networks have it) with `pad` zero pixels on each side."""
    height, width, _, count = filters.shape
    batch, rows, cols, _ = images.shape
    out = matmul(_columns(images, height, width, pad), filters.reshape(-1, count))
    return out.reshape(batch, rows + 2 * pad - height + 1, cols + 2 * pad - width + 1, count)


def conv2d_backprop_input(filters: Array, grad: Array, shape: tuple[int, ...], pad: int = 0) -> Array:
    """Gradient of `conv2d` with respect to its images of the given shape."""
    height, width, channels, count = filters.shape
    batch, rows, cols, _ = shape
    out_rows, out_cols = grad.shape[1:3]
    gradients, weights = grad.reshape(-1, count).astype(np.float64), filters.reshape(-1, count).astype(np.float64)
    patches = (gradients @ weights.T).reshape(batch, out_rows, out_cols, height, width, channels)
    images = np.zeros((batch, rows + 2 * pad, cols + 2 * pad, channels))
    for i in range(height):
        for j in range(width):
            images[:, i : i + out_rows, j : j + out_cols] += patches[:, :, :, i, j]
    return images[:, pad : pad + rows, pad : pad + cols].astype(grad.dtype)


def conv2d_backprop_filter(images: Array, grad: Array, shape: tuple[int, ...], pad: int = 0) -> Array:
    """Gradient of `conv2d` with respect to its filters of the given shape."""
    columns = _columns(images, shape[0], shape[1], pad)
    return matmul(columns.T, grad.reshape(-1, shape[3])).reshape(shape)


def bias_add(values: Array, bias: Array) -> Array:
    """Add one number per channel."""
    return values + bias


def bias_add_grad(grad: Array) -> Array:
    """Gradient of `bias_add` with respect to the bias."""
    sums: Array = grad.reshape(-1, grad.shape[-1]).sum(axis=0, dtype=np.float64).astype(grad.dtype)
    return sums


def relu(values: Array) -> Array:
    """Negative values become 0; NaN stays."""
    return np.maximum(values, 0)


def relu_grad(grad: Array, features: Array) -> Array:
    """The gradient where the features are positive."""
    return np.where(features > 0, grad, np.zeros_like(grad))


def _windows(images: Array) -> Array:
    batch, rows, cols, channels = images.shape
    windows = images.reshape(batch, rows // 2, 2, cols // 2, 2, channels).transpose(0, 1, 3, 2, 4, 5)
    return windows.reshape(batch, rows // 2, cols // 2, 4, channels)


def max_pool(images: Array) -> Array:
    """2×2 maxima, stride 2."""
    maxima: Array = _windows(images).max(axis=3)
    return maxima


def max_pool_grad(images: Array, grad: Array) -> Array:
    """The gradient, at the first maximum of each window."""
    batch, rows, cols, channels = images.shape
    first = _windows(images).argmax(axis=3)[:, :, :, None, :]
    windows = np.zeros((batch, rows // 2, cols // 2, 4, channels), grad.dtype)
    np.put_along_axis(windows, first, grad[:, :, :, None, :], axis=3)
    spread = windows.reshape(batch, rows // 2, cols // 2, 2, 2, channels).transpose(0, 1, 3, 2, 4, 5)
    return spread.reshape(images.shape)


def softmax_cross_entropy(logits: Array, labels: Array) -> tuple[Array, Array]:
    """Loss per row, and its gradient with respect to the logits (softmax − one-hot)."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    sums = exponentials.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = np.log(sums[:, 0]) - shifted[rows, labels]
    grad = exponentials / sums
    grad[rows, labels] -= 1
    return loss.astype(logits.dtype), grad.astype(logits.dtype)


def apply_gradient_descent(variable: Array, rate: Array, grad: Array) -> Array:
    """The variable after one step."""
    after: Array = variable - rate * grad
    return after
