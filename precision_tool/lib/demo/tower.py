"""Stacks of blocks for benchmarks: as many ops and bytes as one asks for, at little arithmetic and memory.

Pairs of a convolution block (1×1, NC1HWC0) and a dense block (FRACTAL_NZ and ND). Each block has a loss of its own
and is updated right after its forward pass, so that nothing has to be kept for a backward pass through the stack.
All towers stand on the same features. They are low, as float16 alone would spoil the top of a tall one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from precision_tool.lib.demo import numerics
from precision_tool.lib.demo.dump_writer import Array
from precision_tool.lib.demo.layers import Layer, conv_layer, conv_updates, dense_layer, dense_updates
from precision_tool.lib.demo.machine import FLAT16, FLAT32, IMAGE, Machine, Streamed, Value

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
    return {
        "conv": f"{conv}/Conv2D{conv}/BiasAdd{conv}/Relu",
        "matmul": f"{dense}/MatMul{dense}/BiasAdd{dense}/Relu",
    }


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
