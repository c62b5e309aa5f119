"""Shapes and values of tensors for the tests of ops, drawn by hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
from hypothesis import HealthCheck, settings
from hypothesis.extra.numpy import array_shapes, mutually_broadcastable_shapes

Array = npt.NDArray[Any]

#: A few examples of every op: the oracle is asked for each.
FEW = settings(
    max_examples=6, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
SOME = settings(FEW, max_examples=20)

seeds = st.integers(0, 2**32 - 1)
shapes = array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=5)


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


def close(found: Array, wanted: Array, rtol: float = 1e-10, atol: float = 1e-12) -> None:
    """Alike, in shape too."""
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol)


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
