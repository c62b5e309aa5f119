"""Shapes and values of tensors, and how near two of them are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
from hypothesis import HealthCheck, settings
from hypothesis.extra.numpy import array_shapes, mutually_broadcastable_shapes

Array = npt.NDArray[Any]
Shape = tuple[int, ...]


def tries(count: int) -> settings:
    """So many examples, the same ones each time."""
    checks = [HealthCheck.function_scoped_fixture]
    return settings(max_examples=count, deadline=None, derandomize=True, suppress_health_check=checks)


#: A few examples of every op: the oracle is asked for each.
FEW, SOME = tries(6), tries(20)

seeds = st.integers(0, 2**32 - 1)
shapes = array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=5)
ranked = shapes.filter(len)


def pairs(count: int = 2) -> st.SearchStrategy[tuple[tuple[int, ...], ...]]:
    """Shapes that broadcast."""
    return mutually_broadcastable_shapes(num_shapes=count, max_dims=3, max_side=4).map(lambda found: found.input_shapes)


def values(shape: tuple[int, ...], seed: int, domain: str = "real") -> Array:
    """Values of a domain: "real" (with 0, ±1, halves and ties among them), "positive", "unit" (−1 to 1), "above1"."""
    random = np.random.default_rng(seed)
    x = random.normal(scale=3, size=shape)
    x = np.where(random.random(shape) < 0.3, np.round(2 * x) / 2, x)
    if domain == "positive":
        return np.asarray(np.abs(x) + 0.05)
    if domain == "unit":
        return np.asarray(np.tanh(x) * 0.99)
    if domain == "above1":
        return np.asarray(1 + np.abs(x))
    if domain == "nonzero":
        return np.asarray(np.where(np.abs(x) < 0.1, 0.5, x))
    return np.asarray(x)


def whole(shape: tuple[int, ...], seed: int, low: int = -9, high: int = 10, dtype: str = "int32") -> Array:
    """Whole numbers from `low` up to but not `high`."""
    return np.asarray(np.random.default_rng(seed).integers(low, high, shape), np.dtype(dtype))


def close(result: Array, expected: Array, rtol: float = 1e-12, atol: float | None = None) -> None:
    """Alike, in shape too; the absolute tolerance is the relative one unless it is told."""
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, rtol=rtol, atol=rtol if atol is None else atol)


def close_all(
    result: Sequence[Array], expected: Sequence[Array], rtol: float = 1e-12, atol: float | None = None
) -> None:
    """All of them alike."""
    for one, other in zip(result, expected, strict=True):
        close(one, other, rtol, atol)


def same(result: npt.ArrayLike, expected: npt.ArrayLike) -> None:
    """Alike to the last bit."""
    np.testing.assert_array_equal(result, expected)


def same_all(result: Sequence[npt.ArrayLike], expected: Sequence[npt.ArrayLike]) -> None:
    """All of them alike to the last bit."""
    for one, other in zip(result, expected, strict=True):
        same(one, other)


def i32(numbers: object) -> Array:
    """Whole numbers of 32 bits."""
    return np.array(numbers, np.int32)


def i64(numbers: object) -> Array:
    """Whole numbers of 64 bits."""
    return np.array(numbers, np.int64)


def tensor(seed: int, shape: Sequence[int], kind: str = "normal") -> Array:
    """Random numbers: "normal", "positive" (after a Relu, half of them 0), "wide" (of very different sizes)."""
    random = np.random.default_rng(seed)
    x = random.standard_normal(tuple(shape))
    if kind == "positive":
        return np.maximum(x, 0)
    if kind == "wide":
        return x * np.exp2(random.integers(-8, 8, tuple(shape)))
    return x
