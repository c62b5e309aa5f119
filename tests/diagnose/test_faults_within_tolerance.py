"""Faults whose size the tolerance for an imprecise device covers, and that no imprecision makes all the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import Array
from diagnosing import verdict_of
from tiny_network import Change, Network, Part, binary, cast, gradient_descent, matmul, numbers, source, unary

from precision_tool.lib.diagnose.error_shape import Mistake, places_of
from precision_tool.lib.diagnose.verdict_model import Cause

F = np.float32


def element(place: int, value: float) -> Change:
    def change(array: Array) -> Array:
        changed = array.copy()
        changed.reshape(-1)[place] = value
        return changed

    return change


def activations(change: Change) -> Network:
    parts: list[Part] = [source("x", numbers(64, 64))]
    for number in range(4):
        parts.append(unary(f"tanh_{number}", "Tanh", parts[-1].name, "float32"))
    return Network(parts=tuple(parts)).with_part("tanh_2", wrong=change)


# --- values that are not finite ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("place", [7, slice(None)])
def test_what_is_not_finite_is_beyond_every_tolerance(tmp_path: Path, place: int | slice, value: float) -> None:
    verdict = verdict_of(activations(element(place, value)).write(tmp_path))  # type: ignore[arg-type]
    assert (verdict.culprit, verdict.suspects[0].fact("mistake")) == ("tanh_2", "not_finite")


@pytest.mark.parametrize("op", ["add", "product"])
def test_infinity_in_a_sum_is_wrong(tmp_path: Path, op: str) -> None:
    x, w = source("x", numbers(16, 16)), source("w", numbers(16, 16, seed=1))
    made = binary("add", "Add", "x", "w", "float32") if op == "add" else matmul("product", "x", "w", "float32")
    network = Network(parts=(x, w, replace(made, wrong=element(7, np.inf))))
    assert verdict_of(network.write(tmp_path)).culprit == op


# --- structure --------------------------------------------------------------------------------------------------------


def cancelling(change: Change | None) -> Network:
    """Sums of 4096 terms that are small beside their terms, as gradients of biases are."""
    terms = numbers(4096, 16).astype(np.float64)
    terms += 1e-4 * np.arange(1, 17) - terms.mean(0)
    grad = Part(
        name="grad", type="BiasAddGrad", inputs=("g",), compute=lambda g: g.sum(0), originals=("grad",),
        attrs={"data_format": "NHWC"}, wrong=change,
    )  # fmt: skip
    return Network(parts=(source("g", terms.astype(F)), grad))


@pytest.mark.parametrize(
    ("change", "mistake"),
    [(lambda y: y * 0, "zero"), (lambda y: np.roll(y, 1), "shifted"), (lambda y: y * F(1.2), "scaled")],
    ids=["zero", "shifted", "scaled"],
)
def test_small_sums_of_large_terms_are_not_anything(tmp_path: Path, change: Change, mistake: str) -> None:
    verdict = verdict_of(cancelling(change).write(tmp_path))
    assert (verdict.culprit, verdict.suspects[0].fact("mistake")) == ("grad", mistake)


def test_small_sums_of_large_terms_may_be_imprecise(tmp_path: Path) -> None:
    def coarse(array: Array) -> Array:
        return array + F(0.5) * numbers(*array.shape, seed=5)

    verdict = verdict_of(cancelling(coarse).write(tmp_path))
    assert (verdict.culprit, verdict.tally.imprecise) == (None, 1)


def off(amount: float) -> Change:
    """Off by up to so much of the value, at random."""

    def change(array: Array) -> Array:
        return (array * (1 + np.random.default_rng(1).uniform(-amount, amount, array.shape))).astype(array.dtype)

    return change


@pytest.mark.parametrize("amount", [0.004, 0.006, 0.008, 0.011])
def test_what_is_off_at_random_is_neither_moved_nor_scaled(tmp_path: Path, amount: float) -> None:
    """In order of size the values are nearly the right ones, and 1.0001 times them nearly these."""
    verdict = verdict_of(activations(off(amount)).write(tmp_path))
    assert (verdict.culprit, verdict.cause) == ("tanh_2", Cause.KERNEL)
    assert verdict.suspects[0].fact("mistake") == "unknown"


def test_values_in_another_order_are_moved_where_the_unit_is_wide() -> None:
    right = numbers(32, 32).astype(np.float64)
    got = np.random.default_rng(2).permutation(right.reshape(-1)).reshape(right.shape)
    assert places_of(got, right, np.ones(right.size, np.bool_), 2.0**-11).mistake is Mistake.PERMUTED


# --- kinds of ops -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0.0, -1.0, 2.0])
def test_a_step_of_an_optimizer_is_not_small_beside_its_variable(tmp_path: Path, step: float) -> None:
    """Scales of norms are about 1, and a step a thousandth of that."""
    ones, gradient = np.ones(256, F), np.tanh(numbers(256))
    parts = (
        source("scale", ones, op_type="Variable"), source("rate", np.array(1e-3, F), op_type="Const"),
        source("x", numbers(256)), unary("g", "Tanh", "x", "float32"),
        gradient_descent("update", "scale", "rate", "g"),
    )  # fmt: skip
    network = Network(parts=parts).with_part("update", wrong=lambda _: ones - F(1e-3 * step) * gradient)
    assert verdict_of(network.write(tmp_path)).culprit == "update"


def test_an_imprecise_step_of_an_optimizer_is_right(tmp_path: Path) -> None:
    ones, gradient = np.ones(256, F), np.tanh(numbers(256))
    parts = (
        source("scale", ones, op_type="Variable"), source("rate", np.array(1e-1, F), op_type="Const"),
        source("x", numbers(256)), unary("g", "Tanh", "x", "float32"),
        gradient_descent("update", "scale", "rate", "g"),
    )  # fmt: skip
    network = Network(parts=parts).with_part("update", wrong=lambda _: ones - F(1e-1) * off(2.0**-10)(gradient))
    verdict = verdict_of(network.write(tmp_path))
    assert (verdict.culprit, verdict.tally.imprecise) == (None, 1)


def test_an_op_that_moves_numbers_changes_none(tmp_path: Path) -> None:
    """However little comes of it in the end."""

    def flipped(array: Array) -> Array:
        changed = array.copy()
        changed.reshape(-1)[100] *= F(1.005)
        return changed

    parts = (
        source("x", numbers(64, 64)), source("order", np.array([1, 0], np.int32), op_type="Const"),
        Part(
            name="moved", type="Transpose", inputs=("x", "order"), compute=lambda x, _: x.T, originals=("moved",),
            wrong=flipped,
        ),
        unary("tanh", "Tanh", "moved", "float32"),
    )  # fmt: skip
    assert verdict_of(Network(parts=parts).write(tmp_path)).culprit == "moved"


def test_float32_products_of_few_bits_do_not_excuse_half_precision(tmp_path: Path) -> None:
    x, w = numbers(32, 256), numbers(256, 32, seed=1)

    def narrow(_: Array) -> Array:
        fraction, exponent = np.frexp(x.astype(np.float64))
        made: Array = (np.ldexp(np.trunc(np.ldexp(fraction, 8)), exponent - 8) @ w).astype(F)
        return made

    def summed_in_half(_: Array) -> Array:
        total = np.zeros((32, 32), np.float16)
        for left, right in zip(x.T.astype(np.float16), w.astype(np.float16), strict=True):
            total = total + np.outer(left, right).astype(np.float16)
        return total

    parts = [source("x", x), source("w", w), cast("x16", "x"), cast("w16", "w")]
    parts += [replace(matmul(f"wide_{number}", "x", "w", "float32"), wrong=narrow) for number in range(4)]
    parts.append(replace(matmul("half", "x16", "w16"), wrong=summed_in_half))
    assert verdict_of(Network(parts=tuple(parts)).write(tmp_path)).culprit == "half"


# --- what an error explains -------------------------------------------------------------------------------------------


def test_what_is_behind_an_op_that_cannot_be_computed_is_no_lack_of_effect(tmp_path: Path) -> None:
    """A loop reads the wrong values: what it makes of them is not known, and the other reader makes next to nothing."""

    def one_off(array: Array) -> Array:
        changed = array.copy()
        changed.reshape(-1)[7] *= F(1.007)
        return changed

    loop = Part(name="loop", type="While", inputs=("tanh_2",), compute=lambda x: x * 3, originals=("loop",))
    network = activations(one_off)
    network = replace(network, parts=(*network.parts, loop, unary("loss", "Square", "loop", "float32")))
    assert verdict_of(network.write(tmp_path)).culprit == "tanh_2"


def test_a_few_elements_that_share_a_factor_are_imprecise(tmp_path: Path) -> None:
    """Beside a zero of a function they are off by the most."""

    def some(array: Array) -> Array:
        changed = array.copy()
        changed[:8, 0] *= F(1.0021)
        return changed

    verdict = verdict_of(activations(some).write(tmp_path))
    assert (verdict.culprit, verdict.tally.imprecise) == (None, 1)


def test_up_to_four_times_the_tolerance_is_doubtful_beside_a_fault_that_explains_more(tmp_path: Path) -> None:
    """A least tolerance is no sharp border: what is little beyond it is not called wrong for its size alone."""
    network = activations(off(0.005)).with_part("tanh_3", wrong=lambda array: array * F(1.5))
    verdict = verdict_of(network.write(tmp_path))
    assert verdict.ranking == ("tanh_3",)
    assert verdict.tally.doubtful == 1
