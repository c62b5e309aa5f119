"""Layers of the demo's network, forward and backward: convolution and matrix product with their updates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from precision_tool.lib.demo import numerics
from precision_tool.lib.demo.dump_writer import Array
from precision_tool.lib.demo.machine import (
    FILTER_GRAD,
    FLAT16,
    IMAGE,
    MATRIX,
    UPDATE_STREAM,
    Machine,
    Stage,
    Value,
    _overlap,
    _overwritten,
)

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
