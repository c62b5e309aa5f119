"""The demo's network: its layers, forward and backward, stacks of blocks for benchmarks, and the training step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from precision_tool.lib.demo import numerics
from precision_tool.lib.demo.device import (
    FILTER_GRAD,
    FLAT16,
    FLAT32,
    IMAGE,
    MATRIX,
    UPDATE_STREAM,
    Form,
    Machine,
    Stage,
    Streamed,
    Value,
    _overlap,
    _overwritten,
)
from precision_tool.lib.demo.dump_writer import Array

CONV_PASS = "TbeConvDequantVaddReluQuantFusionPass"
MATMUL_BIAS_PASS = "MatMulBiasAddFusionPass"
MATMUL_ELEMWISE_PASS = "TbeMatmulElemwiseFusionPass"


# ---- layers ------------------------------------------------------------------------------------------------


def _he(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Weights that keep the size of activations (He et al. 2015), centred per output channel."""
    weights = rng.standard_normal(shape, dtype=np.float32)
    weights -= weights.mean(axis=tuple(range(len(shape) - 1)), keepdims=True)
    return weights * np.float32(math.sqrt(2 / math.prod(shape[:-1])))


def _bias(rng: np.random.Generator, count: int) -> Array:
    return (rng.standard_normal(count) * 0.05).astype(np.float32)


@dataclass(frozen=True, eq=False, kw_only=True)
class Layer:
    """Parameters of a layer and what its backward pass needs again."""

    name: str
    kernel: Value
    bias: Value
    device_kernel: Value
    features: Value
    out: Value


def conv_layer(machine: Machine, name: str, features: Value, kernel_shape: tuple[int, ...], pad: int = 0) -> Layer:
    """Conv2D + BiasAdd + Relu, fused. `features` are images in NC1HWC0."""
    kernel = machine.variable(f"{name}/kernel", machine.scaled(name, _he(machine.rng, kernel_shape)), "HWCN")
    bias = machine.variable(f"{name}/bias", _bias(machine.rng, kernel_shape[-1]))
    device_kernel = machine.trans_data(machine.cast(kernel, "float16"), "FRACTAL_Z")
    stages = [
        Stage(name=f"{name}/Conv2D", compute=partial(numerics.conv2d, pad=pad), takes=2),
        Stage(name=f"{name}/BiasAdd", compute=numerics.bias_add),
        Stage(name=f"{name}/Relu", compute=numerics.relu, takes=0),
    ]
    inputs = [features, device_kernel, machine.cast(bias, "float16")]
    out = machine.compute(
        "Conv2D", stages, inputs, [IMAGE], passes=(CONV_PASS,), attrs=conv_attrs(pad) | {"fusion_scope": 100}
    )[0]
    return Layer(name=name, kernel=kernel, bias=bias, device_kernel=device_kernel, features=features, out=out)


def conv_attrs(pad: int) -> dict[str, Any]:
    """Attributes of the convolutions."""
    ones = (int, (1, 1, 1, 1))
    return {
        "data_format": "NHWC",
        "strides": ones,
        "dilations": ones,
        "pads": (int, (pad,) * 4),
        "padding": "SAME" if pad else "VALID",
    }


def conv_updates(machine: Machine, layer: Layer, grad: Value, rate: Value, pad: int = 0) -> None:
    """Gradients of a convolution's parameters, and their updates."""
    prefix = f"gradients/{layer.name}"
    bias_grad = machine.single(
        "BiasAddGrad", f"{prefix}/BiasAdd_grad/BiasAddGrad", numerics.bias_add_grad, [grad], FLAT16
    )
    machine.update(layer.bias, rate, machine.cast(bias_grad, "float32", UPDATE_STREAM))
    kernel_grad = machine.single(
        "Conv2DBackpropFilter",
        f"{prefix}/Conv2D_grad/Conv2DBackpropFilter",
        partial(numerics.conv2d_backprop_filter, shape=layer.kernel.array.shape, pad=pad),
        [layer.features, grad],
        FILTER_GRAD,
        attrs=conv_attrs(pad),
    )
    machine.update(layer.kernel, rate, machine.trans_data(kernel_grad, "HWCN", UPDATE_STREAM))


def dense_layer(machine: Machine, name: str, features: Value, width: int, relu: bool, gain: float = 1.0) -> Layer:
    """MatMul + BiasAdd (+ Relu), fused. `features` are rows in FRACTAL_NZ."""
    weights = _he(machine.rng, (features.array.shape[1], width)) * np.float32(gain)
    kernel = machine.variable(f"{name}/kernel", weights)
    bias = machine.variable(f"{name}/bias", _bias(machine.rng, width))
    at = features.address + _overlap(features) if machine.overwrites(name) else 0
    device_kernel = machine.trans_data(machine.cast(kernel, "float16"), "FRACTAL_NZ", at=at)
    if at:
        features = _overwritten(features, device_kernel)
        machine.overwriter = device_kernel.op
    stages = [
        Stage(name=f"{name}/MatMul", compute=numerics.matmul, takes=2),
        Stage(name=f"{name}/BiasAdd", compute=numerics.bias_add),
    ]
    if relu:
        stages.append(Stage(name=f"{name}/Relu", compute=numerics.relu, takes=0))
    inputs = [features, device_kernel, machine.cast(bias, "float16")]
    out = machine.compute(
        "MatMulV2", stages, inputs, [MATRIX], passes=(MATMUL_BIAS_PASS,), attrs=matmul_attrs() | {"fusion_scope": 101}
    )[0]
    return Layer(name=name, kernel=kernel, bias=bias, device_kernel=device_kernel, features=features, out=out)


def matmul_attrs(x1: bool = False, x2: bool = False) -> dict[str, Any]:
    """Attributes of the matrix products."""
    return {"transpose_x1": x1, "transpose_x2": x2}


def _product_first_transposed(x: Array, grad: Array) -> Array:
    return numerics.matmul(x.T, grad)


def product_second_transposed(grad: Array, weights: Array) -> Array:
    return numerics.matmul(grad, weights.T)


def dense_updates(machine: Machine, layer: Layer, grad: Value, bias_grad: Value, rate: Value) -> None:
    """Gradient of a dense layer's weights, and the updates. `grad` is in FRACTAL_NZ."""
    machine.update(layer.bias, rate, bias_grad)
    kernel_grad = machine.single(
        "MatMulV2",
        f"gradients/{layer.name}/MatMul_grad/MatMul_1",
        _product_first_transposed,
        [layer.features, grad],
        MATRIX,
        attrs=matmul_attrs(x1=True),
    )
    wide = machine.cast(kernel_grad, "float32", UPDATE_STREAM)
    machine.update(layer.kernel, rate, machine.trans_data(wide, "ND", UPDATE_STREAM))


# --- stacks of blocks for benchmarks ----------------------------------------------------------------------------------


CHANNELS = 32
#: Pairs of blocks in a tower, at most.
HEIGHT = 8
#: Activations of the smallest tower.
SMALLEST = 16 * CHANNELS
_GIANT_COLUMNS = 4096
_GIANT_BLOCK_ROWS = 1024


def features_shape(size: int) -> tuple[int, ...]:
    """Shape (N, H, W, C) of activations with about `size` elements."""
    pixels = max(SMALLEST, size) // CHANNELS
    side = min(56, math.isqrt(pixels))
    return max(1, round(pixels / side**2)), side, side, CHANNELS


def _heights(pairs: int) -> list[int]:
    """Heights of the towers that have `pairs` pairs of blocks together."""
    return [min(HEIGHT, pairs - start) for start in range(0, pairs, HEIGHT)]


def targets(pairs: int) -> dict[str, str]:
    """The ops that faults strike, by kind: half way up the tower in the middle."""
    heights = _heights(pairs)
    number = (len(heights) - 1) // 2
    conv, dense = (f"tower{number}/{kind}{heights[number] // 2}" for kind in ("conv", "dense"))
    return {"conv": f"{conv}/Conv2D{conv}/BiasAdd{conv}/Relu", "matmul": f"{dense}/MatMul{dense}/BiasAdd{dense}/Relu"}


def build_towers(machine: Machine, features: Value, rate: Value, pairs: int) -> list[Value]:
    """Run towers of `pairs` pairs of blocks together; returns their last activations."""
    base = machine.trans_data(machine.cast(features, "float16"), "NC1HWC0")
    tops = []
    for number, height in enumerate(_heights(pairs)):
        x = base
        for floor in range(height):
            x = _conv_block(machine, f"tower{number}/conv{floor}", x, rate)
            x = _dense_block(machine, f"tower{number}/dense{floor}", x, rate)
        tops.append(machine.single("ReduceMeanD", f"tower{number}/Mean", _channel_means, [x], FLAT16))
    return tops


def _channel_means(images: Array) -> Array:
    means: Array = images.mean(axis=(1, 2))
    return means


def _normalised(machine: Machine, name: str, value: Value) -> Value:
    """The value times a constant that brings its root mean square near 1; a tall tower would overflow float16."""
    assert isinstance(value.reference, np.ndarray)
    sample = value.reference.ravel()[:65536].astype(np.float64)
    factor = 2.0 ** -round(math.log2(max(1e-3, math.sqrt(float(sample @ sample) / sample.size))))
    return machine.single("Mul", f"{name}/scale", np.multiply, [value, machine.constant(factor)], value.form)


def _block_grad(machine: Machine, name: str, out: Value, layer: Layer) -> Value:
    """Gradient of the block's own loss (a multiple of its squared output) before the layer's Relu."""
    share = machine.constant(2.0**-12)
    grad = machine.single("Mul", f"gradients/{name}/loss_grad/mul", np.multiply, [out, share], out.form)
    return machine.single(
        "ReluGrad", f"gradients/{name}/Relu_grad/ReluGrad", numerics.relu_grad, [grad, layer.out], layer.out.form
    )


def _conv_block(machine: Machine, name: str, x: Value, rate: Value) -> Value:
    layer = conv_layer(machine, name, x, (1, 1, CHANNELS, CHANNELS))
    total = machine.single("Add", f"{name}/add", np.add, [x, layer.out], IMAGE)
    out = _normalised(machine, name, total)
    conv_updates(machine, layer, _block_grad(machine, name, out, layer), rate)
    return out


def _dense_block(machine: Machine, name: str, x: Value, rate: Value) -> Value:
    shape = x.array.shape
    plain = machine.trans_data(x, "NHWC")
    rows = machine.reshape(plain, f"{name}/rows", (math.prod(shape[:-1]), CHANNELS), "ND")
    layer = dense_layer(machine, name, machine.trans_data(rows, "FRACTAL_NZ"), CHANNELS, relu=True)
    total = machine.single("Sub", f"{name}/sub", np.subtract, [rows, machine.trans_data(layer.out, "ND")], FLAT16)
    out = _normalised(machine, name, total)
    grad = _block_grad(machine, name, machine.trans_data(out, "FRACTAL_NZ"), layer)
    bias_grad = machine.single(
        "BiasAddGrad", f"gradients/{name}/BiasAdd_grad/BiasAddGrad", numerics.bias_add_grad, [grad], FLAT32
    )
    dense_updates(machine, layer, grad, bias_grad, rate)
    return machine.trans_data(machine.reshape(out, f"{name}/image", shape, "NHWC"), "NC1HWC0")


def build_giant(machine: Machine, nbytes: int) -> Value:
    """One float32 tensor in ND of about `nbytes`, an outer product, made and written in blocks."""
    name = "giant/Mul"
    rows = max(1, nbytes // (4 * _GIANT_COLUMNS))
    factors = []
    for part, shape in (("rows", (rows, 1)), ("columns", (1, _GIANT_COLUMNS))):
        parameter = machine.variable(f"giant/{part}", machine.rng.standard_normal(shape, dtype=np.float32))
        factors.append(machine.cast(machine.cast(parameter, "float16"), "float32"))

    def product(left: Array, right: Array) -> Streamed:
        def blocks() -> Iterator[Array]:
            for start in range(0, rows, _GIANT_BLOCK_ROWS):
                yield left[start : start + _GIANT_BLOCK_ROWS] * right

        return Streamed(shape=(rows, _GIANT_COLUMNS), dtype=np.dtype(np.float32), blocks=blocks)

    return machine.single("Mul", name, product, factors, FLAT32)


# --- the training step ------------------------------------------------------------------------------------------------


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
    """Results of the forward pass that the backward pass reads; `backprop` is the gradient of each image's loss."""

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
    shape, keep_probability = machine.constant(np.array([rows, columns])), machine.constant(_KEPT)
    mask = machine.run(
        "DropOutGenMask", name, [shape, keep_probability], [(np.packbits(bits.reshape(-1)),) * 2 + (None,)],
        [Form(dtype="uint8")], originals=(),
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
