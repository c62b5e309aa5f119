"""What `summed` and `terms` predict, against float32 arithmetic in random orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from opcalls import arrays_of, outputs_of
from opvalues import Array

from precision_tool.lib.ops.base import Output
from precision_tool.lib.ops.tracked import Tracked

U32, U16 = 2.0**-24, 2.0**-11
#: Rounding to nearest has an rms of 0.425 u.
RMS = 0.425
ORDERS = 40

#: n terms an element: of one sign, of both, of very different sizes, and such as cancel to nothing.
TERMS: dict[str, Callable[[np.random.Generator, tuple[int, int]], Array]] = {
    "positive": lambda random, shape: random.random(shape),
    "normal": lambda random, shape: random.normal(size=shape),
    "wide": lambda random, shape: np.exp(random.normal(size=shape) * 3) * random.choice([-1, 1], shape),
    "cancelling": lambda random, shape: _doubled(random.normal(size=(shape[0], shape[1] // 2))),
}


def _doubled(half: Array) -> Array:
    return np.concatenate([half, -half], axis=1)


def in_float32(terms: Array, random: np.random.Generator) -> Array:
    """Sums one after the other in float32, each row in an order of its own."""
    shuffled = random.permuted(terms.astype(np.float32), axis=1)
    return np.array(np.cumsum(shuffled, axis=1, dtype=np.float32)[:, -1], np.float64)


def predicted(output: Output) -> Array:
    """The rms error of each element with float32 inside and outside."""
    rms: Array = RMS * U32 * np.sqrt(output.array**2 + np.asarray(output.summed) ** 2)
    return rms


@pytest.mark.parametrize("kind", TERMS)
@pytest.mark.parametrize("count", [2, 16, 256, 1024])
@pytest.mark.parametrize("op_type", ["ReduceSumD", "BiasAddGrad", "UnsortedSegmentSumD", "AddN"])
def test_sums_err_as_predicted(op_type: str, count: int, kind: str) -> None:
    random = np.random.default_rng(count)
    terms = TERMS[kind](random, (64, count)).astype(np.float32).astype(np.float64)
    calls: dict[str, Callable[[], list[Output]]] = {
        "ReduceSumD": lambda: outputs_of("ReduceSumD", terms, axes=[1]),
        "BiasAddGrad": lambda: outputs_of("BiasAddGrad", terms.T),
        "UnsortedSegmentSumD": lambda: outputs_of(
            "UnsortedSegmentSumD", terms.T, np.zeros(count, np.int32), num_segments=1
        ),
        "AddN": lambda: outputs_of("AddN", *terms.T),
    }
    (output,) = calls[op_type]()
    errors = np.array([in_float32(terms, random) - output.array.ravel() for _ in range(ORDERS)])
    measured = np.sqrt(np.mean(errors**2))
    expected = np.sqrt(np.mean(predicted(output) ** 2))
    assert measured < 1.5 * expected
    if kind != "wide" and count > 2:  # and not so wide that nothing could ever be wrong
        assert measured > expected / 6


@pytest.mark.parametrize("kind", TERMS)
def test_narrowed_inputs_err_as_the_terms_say(kind: str) -> None:
    random = np.random.default_rng(7)
    terms = TERMS[kind](random, (64, 512))
    (output,) = outputs_of("ReduceSumD", terms, axes=[1])
    digits, exponents = np.frexp(terms)
    narrow = np.ldexp(np.rint(digits * 2**11) / 2**11, exponents)
    if kind == "cancelling":  # rounding takes both halves alike; here only one
        narrow[:, 256:] = terms[:, 256:]
    error = np.sqrt(np.mean((narrow.sum(1) - terms.sum(1)) ** 2))
    assert error < 1.5 * RMS * U16 * np.sqrt(np.mean(np.asarray(output.terms) ** 2))


def test_a_sum_that_cancels_may_be_far_off() -> None:
    x = np.array([[1e4, -1e4, 1e-3], [1.0, 2.0, 3.0]])
    (output,) = outputs_of("ReduceSumD", x, axes=[1])
    summed = np.asarray(output.summed)
    assert summed[0] > 1e3
    assert summed[1] < 20


def test_a_running_sum_carries_its_errors_on() -> None:
    random = np.random.default_rng(3)
    x = random.normal(size=(200, 128)).astype(np.float32)
    (output,) = outputs_of("Cumsum", x, axis=1)
    errors = np.cumsum(x, axis=1, dtype=np.float32) - output.array
    for place in (1, 20, 127):
        measured = np.sqrt(np.mean(errors[:, place] ** 2))
        assert measured < 1.5 * np.sqrt(np.mean(predicted(output)[:, place] ** 2))


FUNCTIONS = (
    "Exp", "Log", "Log1p", "Expm1", "Sqrt", "Rsqrt", "Reciprocal", "Sigmoid", "Tanh", "Softplus", "Gelu", "Swish",
    "Elu", "Sin", "Cos", "Erf", "Square",
)  # fmt: skip


@pytest.mark.parametrize("op_type", FUNCTIONS)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 10.0])
def test_functions_of_float32_err_as_predicted(op_type: str, scale: float) -> None:
    """A float32 kernel rounds the argument of an exponential too: as if the input moved by half a unit."""
    x = np.abs(np.random.default_rng(1).normal(size=4000) * scale).astype(np.float32)
    (output,) = outputs_of(op_type, x)
    moved = np.nextafter(x, np.float32(np.inf))
    steps = np.abs(arrays_of(op_type, moved)[0] - output.array) / 2
    if op_type in ("Exp", "Sigmoid", "Sin", "Cos", "Swish"):
        assert (steps <= 2.1 * U32 * np.asarray(output.summed)).all()
    with np.errstate(all="ignore"):
        direct: dict[str, Any] = {"Exp": np.exp, "Log": np.log, "Log1p": np.log1p, "Sqrt": np.sqrt, "Tanh": np.tanh}
        if op_type in direct:
            error = direct[op_type](x).astype(np.float64) - output.array
            assert np.sqrt(np.mean(error**2)) < 2 * np.sqrt(np.mean(predicted(output) ** 2))


def test_optimizers_in_float32_err_as_predicted() -> None:
    random = np.random.default_rng(5)
    var, m, grad = (random.normal(size=5000).astype(np.float32) for _ in range(3))
    v = (random.random(5000) + 0.01).astype(np.float32)
    rates = [np.float32(one) for one in (0.81, 0.998, 0.1, 0.9, 0.999, 1e-6)]
    outputs = outputs_of("ApplyAdamD", var, m, v, *rates, grad)
    power1, power2, lr, beta1, beta2, epsilon = rates
    one = np.float32(1)
    new_m = m + (grad - m) * (one - beta1)
    new_v = v + (grad * grad - v) * (one - beta2)
    rate = lr * np.sqrt(one - power2) / (one - power1)
    new_var = var - new_m * rate / (np.sqrt(new_v) + epsilon)
    for result, output in zip((new_var, new_m, new_v), outputs, strict=True):
        assert result.dtype == np.float32
        measured = np.sqrt(np.mean((result - output.array) ** 2))
        expected = np.sqrt(np.mean(predicted(output) ** 2))
        assert expected / 4 < measured < 2 * expected


def test_tracked_numbers_know_what_cancels() -> None:
    a, b = Tracked(np.array([3.0])), Tracked(np.array([1.0]))
    kept_sum = a * b + b
    assert 4 <= kept_sum.summed[0] <= 6
    gone = (a * a + b) - 10.0
    assert gone.value[0] == 0
    assert gone.summed[0] > 10
    assert (1.0 - b / a).value[0] == 1 - 1 / 3
    assert (np.float64(6) / a).value[0] == 2
    assert (np.array([2.0]) * a).value[0] == 6
