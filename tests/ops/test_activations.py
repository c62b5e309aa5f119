"""Activations and their gradients against TensorFlow, those of GE alone against their definition."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from opcalls import arrays_of, doubtful_of, outputs_of, refused
from opvalues import FEW, SOME, Shape, close, same, seeds, shapes, values
from tensorflow_oracle import TensorFlow

from precision_tool.lib.ops.base import NotComputedError

#: By GE's type: TensorFlow's op, and its further arguments.
PLAIN: dict[str, tuple[str, dict[str, Any]]] = {
    "Relu": ("Relu", {}), "Relu6": ("Relu6", {}), "Elu": ("Elu", {}), "Selu": ("Selu", {}),
    "Softplus": ("Softplus", {}), "Softsign": ("Softsign", {}), "Gelu": ("nn.gelu", {"approximate": True}),
    "Swish": ("nn.silu", {}),
}  # fmt: skip


LOOSE: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-8}


@pytest.mark.parametrize("op_type", PLAIN)
@FEW
@given(shape=shapes, seed=seeds)
def test_activations(tensorflow: TensorFlow, op_type: str, shape: Shape, seed: int) -> None:
    x = values(shape, seed)
    name, attrs = PLAIN[op_type]
    # TensorFlow's Gelu has its constants in float32.
    close(arrays_of(op_type, x)[0], tensorflow.run(name, {"features": x}, **attrs)[0], **LOOSE)


@pytest.mark.parametrize("op_type", ["Sigmoid", "Tanh"])
@FEW
@given(shape=shapes, seed=seeds)
def test_saturating_functions_and_their_gradients(
    tensorflow: TensorFlow, op_type: str, shape: Shape, seed: int
) -> None:
    x, dy = values(shape, seed), values(shape, seed + 1)
    (y,) = tensorflow.run(op_type, {"x": x})
    close(arrays_of(op_type, x)[0], y)
    close(arrays_of(f"{op_type}Grad", y, dy)[0], tensorflow.run(f"{op_type}Grad", {"y": y, "dy": dy})[0])


def _named(name: str, value: float) -> dict[str, Any]:
    return {name: value}


@pytest.mark.parametrize("name", ["negative_slope", "alpha"])
@FEW
@given(shape=shapes, seed=seeds)
def test_leaky_relu(tensorflow: TensorFlow, name: str, shape: Shape, seed: int) -> None:
    x, dy = values(shape, seed), values(shape, seed + 1)
    expected = tensorflow.run("LeakyRelu", {"features": x}, alpha=0.25)[0]
    close(arrays_of("LeakyRelu", x, **_named(name, 0.25))[0], expected)
    expected = tensorflow.run("LeakyReluGrad", {"gradients": dy, "features": x}, alpha=0.25)[0]
    close(arrays_of("LeakyReluGrad", dy, x, **_named(name, 0.25))[0], expected)


GRADIENTS = {
    "ReluGrad": "features", "Relu6Grad": "features", "EluGrad": "outputs", "SeluGrad": "outputs",
    "SoftplusGrad": "features", "SoftsignGrad": "features",
}  # fmt: skip


@pytest.mark.parametrize("op_type", GRADIENTS)
@FEW
@given(shape=shapes, seed=seeds)
def test_gradients(tensorflow: TensorFlow, op_type: str, shape: Shape, seed: int) -> None:
    x, dy = values(shape, seed), values(shape, seed + 1)
    if op_type in ("EluGrad", "SeluGrad"):
        x = arrays_of(op_type[:-4], x)[0]
    expected = tensorflow.run(op_type, {"gradients": dy, GRADIENTS[op_type]: x})[0]
    close(arrays_of(op_type, dy, x)[0], expected)


@FEW
@given(shape=shapes, seed=seeds)
def test_gradients_by_tape(tensorflow: TensorFlow, shape: Shape, seed: int) -> None:
    x, dy = values(shape, seed), values(shape, seed + 1)
    tapes: dict[str, tuple[str, dict[str, Any]]] = {k: PLAIN[k[:-4]] for k in ("GeluGrad", "SwishGrad")}
    for op_type, (name, attrs) in tapes.items():
        expected = tensorflow.run(name, {"features": x}, gradient=(["features"], dy), **attrs)[0]
        close(arrays_of(op_type, dy, x, np.zeros(shape))[0], expected, **LOOSE)


# --- of GE alone ------------------------------------------------------------------------------------------------------


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


DEFINITIONS: dict[str, tuple[dict[str, Any], Callable[[float], float]]] = {
    "FastGelu": ({}, lambda x: x * sigmoid(1.702 * x)),
    "Mish": ({}, lambda x: x * math.tanh(math.log(1 + math.exp(x)))),
    "HardSwish": ({}, lambda x: x * min(max(x + 3, 0), 6) / 6),
    "LogSigmoid": ({}, lambda x: math.log(sigmoid(x))),
    "HardSigmoid": ({"alpha": 0.2, "beta": 0.5}, lambda x: min(max(0.2 * x + 0.5, 0), 1)),
    "Swish": ({"scale": 2.0}, lambda x: x * sigmoid(2 * x)),
    "SoftplusV2": ({"beta": 2.0, "threshold": 4.0}, lambda x: x if 2 * x > 4 else math.log(1 + math.exp(2 * x)) / 2),
    "Celu": ({"alpha1": 2.0, "alpha2": 2.0}, lambda x: max(0.0, x) + min(0.0, 2 * (math.exp(x / 2) - 1))),
    "Relu6D": ({"scale": 0.5}, lambda x: min(max(x, 0), 3)),
    "Elu": ({"alpha": 0.5, "scale": 2.0}, lambda x: 2 * x if x > 0 else math.exp(x) - 1),
}


@pytest.mark.parametrize("op_type", DEFINITIONS)
@FEW
@given(shape=shapes, seed=seeds)
def test_definitions(op_type: str, shape: Shape, seed: int) -> None:
    x = values(shape, seed)
    attrs, formula = DEFINITIONS[op_type]
    close(arrays_of(op_type, x, **attrs)[0], np.reshape([formula(float(one)) for one in x.flat], shape))


SLOPES: dict[str, tuple[str, dict[str, Any]]] = {
    "FastGeluGrad": ("FastGelu", {}), "MishGrad": ("Mish", {}), "HardSwishGrad": ("HardSwish", {}),
    "LogSigmoidGrad": ("LogSigmoid", {}), "HardSigmoidGrad": ("HardSigmoid", {"alpha": 0.2, "beta": 0.45}),
    "SwishGrad": ("Swish", {"scale": 1.5}),
}  # fmt: skip


@pytest.mark.parametrize("op_type", SLOPES)
@FEW
@given(shape=shapes, seed=seeds)
def test_slopes_of_ge_are_those_of_the_functions(op_type: str, shape: Shape, seed: int) -> None:
    x, dy = values(shape, seed), values(shape, seed + 1)
    x = np.where(np.abs(np.abs(x) - 3) < 1e-3, 1.0, x)
    forward, attrs = SLOPES[op_type]
    step = 1e-5
    above, below = (arrays_of(forward, x + sign * step, **attrs)[0] for sign in (1, -1))
    close(arrays_of(op_type, dy, x, **attrs)[0], dy * (above - below) / (2 * step), rtol=1e-5, atol=1e-7)


def test_elu_gradient_with_alpha() -> None:
    y = np.array([2.0, -0.5])
    np.testing.assert_allclose(arrays_of("EluGradV2", np.array([3.0, 3.0]), y, alpha=0.75)[0], [3.0, 0.75])


@pytest.mark.parametrize(("layout", "axis"), [("NHWC", 3), ("NCHW", 1)])
def test_prelu_has_a_slope_a_channel(layout: str, axis: int) -> None:
    x, grads = values((2, 3, 4, 3), 1), values((2, 3, 4, 3), 2)
    weights = np.array([0.1, 0.2, 0.3])
    y = arrays_of("PRelu", x, weights, layout=layout)[0]
    da, dx = np.zeros(3), np.zeros(x.shape)
    for place in np.ndindex(x.shape):
        slope = weights[place[axis]]
        assert y[place] == (x[place] if x[place] > 0 else slope * x[place])
        dx[place] = grads[place] * (1 if x[place] > 0 else slope)
        da[place[axis]] += 0 if x[place] > 0 else grads[place] * x[place]
    result = arrays_of("PReluGrad", grads, x, weights, layout="NCHW" if axis == 1 else "NHWC")
    np.testing.assert_allclose(result[1], da)
    np.testing.assert_allclose(result[0], dx)


def test_far_out_nothing_overflows() -> None:
    x = np.array([-1e5, -800.0, 800.0, 1e5, np.inf, -np.inf])
    for op_type in ("Sigmoid", "Softplus", "Gelu", "Swish", "FastGelu", "Mish", "Elu", "Selu"):
        assert np.isfinite(arrays_of(op_type, x)[0][:4]).all(), op_type
    same(arrays_of("Sigmoid", x)[0], [0, 0, 1, 1, 1, 0])


def test_the_switch_of_relu_is_doubtful_near_it_only() -> None:
    """What a Relu cut off is exactly 0, in many places: gradients that pass there are wrong, and no rounding."""
    features = np.array([0.0, 1e-7, 1e-3, -1.0, 6.0, 5.99], np.float16)
    (grad,) = outputs_of("Relu6Grad", np.ones(6), features)
    assert doubtful_of(grad).tolist() == [False, True, False, False, False, True]
    (grad,) = outputs_of("ReluGrad", np.ones(3), np.array([1e-30, 1e-40, 0.0], np.float32))
    assert doubtful_of(grad).tolist() == [False, True, False]


def test_refusals() -> None:
    with refused("LeakyRelu has no attribute negative_slope"):
        arrays_of("LeakyRelu", np.ones(3))
    with refused("do not broadcast"):
        arrays_of("ReluGrad", np.ones(3), np.ones(4))
    with refused("weight has 5 elements for 3 channels"):
        arrays_of("PRelu", np.ones((2, 3)), np.ones(5))


@SOME
@given(seed=seeds)
def test_relu_gradient_of_a_mask(seed: int) -> None:
    """The mask in any form is the same as the features."""
    gradients, features = values((3, 16), seed), values((3, 16), seed + 1)
    (expected,) = arrays_of("ReluGrad", gradients, features)
    bits = (features > 0).astype(np.uint8)
    for mask in (bits, bits.astype(np.bool_), np.packbits(bits, axis=-1, bitorder="little")):
        (result,) = arrays_of("ReluGradV2", gradients, mask)
        same(result, expected)
    with pytest.raises(NotComputedError):
        arrays_of("ReluGradV2", gradients, np.zeros((3, 1, 1, 1, 2), np.uint8))
