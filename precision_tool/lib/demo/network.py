"""A training step computed for real on two sides at once.

The benchmark side runs in float32. The device side runs the ops of a compiled graph: fused ops, `Cast` and
`TransData`, float16 storage with float32 sums. Every device op is computed from the very values it finds stored,
so errors travel as on a device, and recomputing an op tells its own error from one it inherited.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from precision_tool.lib.demo import numerics
from precision_tool.lib.demo.dump_writer import Array
from precision_tool.lib.demo.layers import (
    MATMUL_ELEMWISE_PASS,
    Layer,
    conv_attrs,
    conv_layer,
    conv_updates,
    dense_layer,
    dense_updates,
    matmul_attrs,
    product_second_transposed,
)
from precision_tool.lib.demo.machine import FLAT16, FLAT32, IMAGE, MATRIX, UPDATE_STREAM, Form, Machine, Stage, Value

MEAN_PASS = "AReduceMeanFusionPass"
#: The share of values that dropout keeps.
_KEPT = 0.75
CLASSES = 10
#: Images of a step: their number, height, width and channels.
IMAGES = (8, 20, 20, 3)


def data_source(
    machine: Machine,
    features_shape: tuple[int, ...] | None = None,
    *,
    shape: tuple[int, int, int, int] = IMAGES,
    rng: np.random.Generator | None = None,
) -> tuple[Value, ...]:
    """The iterator: images, labels and, for a scaled network, the tower's features; drawn by the machine's `rng` or one
    of their own."""
    rng = rng or machine.rng
    iterator = machine.run(
        "IteratorV2", "IteratorV2", (), [(np.zeros((), np.int64),) * 2 + (None,)], [Form(dtype="int64")],
        originals=None, dumped=False, kernel=False, attrs={"container": "", "shared_name": "_1_IteratorV2"},
    )  # fmt: skip
    images = rng.random(shape, dtype=np.float32)
    arrays: list[Array] = [images, rng.integers(0, CLASSES, len(images), dtype=np.int32)]
    forms = [Form(dtype="float32", layout="NHWC", origin_layout="NHWC"), Form(dtype="int32")]
    if features_shape is not None:
        arrays.append(rng.standard_normal(features_shape, dtype=np.float32))
        forms.append(forms[0])
    name = "IteratorGetNext"
    return machine.run(
        "GetNext", name, iterator, [(array, array, (name, i)) for i, array in enumerate(arrays)], forms,
        originals=(name,), goldens=[(name, i, array) for i, array in enumerate(arrays)], kernel=False,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forward:
    """What the backward pass needs of the forward pass; `backprop` is the gradient of each image's loss."""

    conv1: Layer
    pool1: Value
    conv2: Layer
    pool2: Value
    fc1: Layer
    fc2: Layer
    backprop: Value
    batch: int


_LOSS = "loss/SparseSoftmaxCrossEntropyWithLogits"


def train_step(machine: Machine, images: Value, labels: Value, rate: Value) -> Value:
    """Forward pass, loss, backward pass and updates of a small convolutional network; returns the loss."""
    done, loss = _forward(machine, images, labels)
    mean = _mean(machine, loss, done.batch)
    if machine.fault.runs > 1:
        _dropout(machine, done.fc1.out)
    _backward(machine, done, rate)
    return mean


def _forward(machine: Machine, images: Value, labels: Value) -> tuple[_Forward, Value]:
    """The layers, and the loss of each image."""
    assert isinstance(images.array, np.ndarray)
    batch = len(images.array)
    x = machine.trans_data(machine.cast(images, "float16"), "NC1HWC0")
    conv1 = conv_layer(machine, "conv1", x, (3, 3, 3, 16), pad=1)
    pool1 = machine.single("MaxPool", "pool1/MaxPool", numerics.max_pool, [conv1.out], IMAGE, attrs=_pool_attrs())
    conv2 = conv_layer(machine, "conv2", pool1, (3, 3, 16, 28))
    pool2 = machine.single("MaxPool", "pool2/MaxPool", numerics.max_pool, [conv2.out], IMAGE, attrs=_pool_attrs())
    plain = machine.trans_data(pool2, "NHWC")
    flat = machine.reshape(plain, "flatten/Reshape", (batch, math.prod(pool2.array.shape[1:])), "ND")
    fc1 = dense_layer(machine, "fc1", machine.trans_data(flat, "FRACTAL_NZ"), 100, relu=True)
    fc2 = dense_layer(machine, "fc2", fc1.out, CLASSES, relu=False, gain=2.0)
    logits = machine.cast(machine.trans_data(fc2.out, "ND"), "float32")
    loss, backprop = machine.compute(
        "SparseSoftmaxCrossEntropyWithLogits",
        [Stage(name=_LOSS, compute=numerics.softmax_cross_entropy, takes=2)],
        [logits, labels],
        [FLAT32, FLAT32],
    )
    done = _Forward(
        conv1=conv1, pool1=pool1, conv2=conv2, pool2=pool2, fc1=fc1, fc2=fc2, backprop=backprop, batch=batch
    )
    return done, loss


def _backward(machine: Machine, done: _Forward, rate: Value) -> None:
    """Gradients of all layers, last to first, and the updates of their variables."""
    fc1, fc2, pool1, pool2 = done.fc1, done.fc2, done.pool1, done.pool2
    grad32 = _loss_gradient(machine, done)
    bias_grad = machine.single(
        "BiasAddGrad", "gradients/fc2/BiasAdd_grad/BiasAddGrad", numerics.bias_add_grad, [grad32], FLAT32
    )
    grad = machine.trans_data(machine.cast(grad32, "float16"), "FRACTAL_NZ")
    dense_updates(machine, fc2, grad, bias_grad, rate)
    grad = machine.compute(
        "MatMulV2",
        [
            Stage(name="gradients/fc2/MatMul_grad/MatMul", compute=product_second_transposed, takes=2),
            Stage(name="gradients/fc1/Relu_grad/ReluGrad", compute=numerics.relu_grad),
        ],
        [grad, fc2.device_kernel, fc1.out],
        [MATRIX],
        passes=(MATMUL_ELEMWISE_PASS,),
        attrs=matmul_attrs(x2=True) | {"fusion_scope": 102},
    )[0]
    bias_grad = machine.single(
        "BiasAddGrad", "gradients/fc1/BiasAdd_grad/BiasAddGrad", numerics.bias_add_grad, [grad], FLAT16
    )
    dense_updates(machine, fc1, grad, machine.cast(bias_grad, "float32", UPDATE_STREAM), rate)
    grad = machine.single(
        "MatMulV2", "gradients/fc1/MatMul_grad/MatMul", product_second_transposed, [grad, fc1.device_kernel], MATRIX,
        attrs=matmul_attrs(x2=True),
    )  # fmt: skip
    grad = machine.reshape(
        machine.trans_data(grad, "ND"), "gradients/flatten/Reshape_grad/Reshape", pool2.array.shape, "NHWC"
    )
    grad = _pool_and_relu_grad(machine, "pool2", "conv2", done.conv2.out, pool2, machine.trans_data(grad, "NC1HWC0"))
    conv_updates(machine, done.conv2, grad, rate)
    grad = machine.single(
        "Conv2DBackpropInput",
        "gradients/conv2/Conv2D_grad/Conv2DBackpropInput",
        partial(numerics.conv2d_backprop_input, shape=pool1.array.shape),
        [done.conv2.device_kernel, grad],
        IMAGE,
        attrs=conv_attrs(0),
    )
    grad = _pool_and_relu_grad(machine, "pool1", "conv1", done.conv1.out, pool1, grad)
    conv_updates(machine, done.conv1, grad, rate, pad=1)


def _loss_gradient(machine: Machine, done: _Forward) -> Value:
    """The gradient of the mean loss by the logits, in float32."""
    ones = machine.constant(np.ones(1), "gradients/loss/Mean_grad/Reshape")
    if machine.fault.loss_scale != 1:
        scale = machine.constant(machine.fault.loss_scale, "loss_scale")
        machine.inverse_scale = machine.constant(1 / machine.fault.loss_scale, "LossScaleOptimizer/truediv")
        ones = machine.single("Mul", "gradients/LossScaleOptimizer/mul_grad/Mul", np.multiply, [ones, scale], FLAT32)
    tile = machine.single(
        "TileD", "gradients/loss/Mean_grad/Tile", partial(np.repeat, repeats=done.batch), [ones], FLAT32,
        attrs={"multiples": (int, (done.batch,))},
    )  # fmt: skip
    share = machine.single(
        "RealDiv", "gradients/loss/Mean_grad/truediv", np.divide, [tile, machine.constant(float(done.batch))], FLAT32
    )
    column = machine.reshape(share, f"gradients/{_LOSS}_grad/ExpandDims", (done.batch, 1), "ND", "ExpandDims")
    return machine.single("Mul", f"gradients/{_LOSS}_grad/mul", np.multiply, [column, done.backprop], FLAT32)


def _dropout(machine: Machine, features: Value) -> None:
    """A branch with dropout, whose mask is another in each run."""
    rows, columns = features.array.shape
    bits = machine.noise.random((rows, columns)) < _KEPT
    name = "dropout/random_mask"
    shape, kept = machine.constant(np.array([rows, columns])), machine.constant(_KEPT)
    mask = machine.run(
        "DropOutGenMask", name, [shape, kept], [(np.packbits(bits.reshape(-1)),) * 2 + (None,)], [Form(dtype="uint8")],
        originals=(),
    )[0]  # fmt: skip

    def masked(values: Array, packed: Array) -> Array:
        chosen = np.unpackbits(packed)[: values.size].reshape(values.shape)
        result: Array = values * chosen.astype(np.float32) / np.float32(_KEPT)
        return result

    machine.single("DropOutDoMask", "dropout/mul", masked, [machine.trans_data(features, "ND"), mask], FLAT16)


def _pool_attrs() -> dict[str, Any]:
    window = (int, (1, 2, 2, 1))
    return {"data_format": "NHWC", "ksize": window, "strides": window, "padding": "VALID"}


def _mean(machine: Machine, loss: Value, batch: int) -> Value:
    """`loss/Mean`, which the compiler cuts into a sum and a factor: two device ops for one of the script."""
    name = "loss/Mean"
    options: dict[str, Any] = {"passes": (MEAN_PASS,), "multi": True}
    total = machine.single(
        "ReduceSumD", name, _sum_all, [loss], FLAT32, name=f"{name}_ReduceSumD", in_script=False, **options
    )
    factor = np.float32(1 / batch)
    attrs = {"value": float(factor)}
    return machine.single("Muls", name, partial(np.multiply, factor), [total], FLAT32, attrs=attrs, **options)


def _sum_all(values: Array) -> Array:
    return np.asarray(values.sum(dtype=np.float64), np.float32)


def _pool_grad(images: Array, pooled: Array, grad: Array) -> Array:
    return numerics.max_pool_grad(images, grad)


def _pool_and_relu_grad(machine: Machine, pool: str, conv: str, out: Value, pooled: Value, grad: Value) -> Value:
    grad = machine.single(
        "MaxPoolGrad", f"gradients/{pool}/MaxPool_grad/MaxPoolGrad", _pool_grad, [out, pooled, grad], IMAGE,
        attrs=_pool_attrs(),
    )  # fmt: skip
    return machine.single("ReluGrad", f"gradients/{conv}/Relu_grad/ReluGrad", numerics.relu_grad, [grad, out], IMAGE)
