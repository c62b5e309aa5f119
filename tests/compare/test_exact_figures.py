"""Figures where rounding takes all digits, against plain formulas in exact fractions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from builders import written_pair

from precision_tool.lib.compare import tensor_figures
from precision_tool.lib.compare.element_errors import compare_elements
from precision_tool.lib.compare.pairwise import compare_pairs
from precision_tool.lib.compare.scheduler import THIS_THREAD
from precision_tool.lib.compare.tensor_figures import figures_of
from precision_tool.lib.compare.tensor_reader import Budget
from precision_tool.lib.model.comparison import Pair
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.tensor import Tensor

Array = npt.NDArray[Any]


def exact_moments(a: Array) -> tuple[float, float]:
    """Mean and population standard deviation, rounded once at the end."""
    values = [Fraction(value) for value in a.reshape(-1).tolist()]
    mean = sum(values, Fraction()) / len(values)
    variance = sum(((value - mean) ** 2 for value in values), Fraction()) / len(values)
    return float(mean), math.sqrt(variance)


def exact_divergence(x: Array, y: Array) -> float:
    """Σ p ln(p/q), both sides brought to [0, 1], clamped below at float32's epsilon and to sum 1; no side constant."""
    sides = []
    for a in (x, y):
        values = [Fraction(value) for value in a.reshape(-1).tolist()]
        low, span = min(values), max(values) - min(values)
        unit = [max((value - low) / span, Fraction(1, 2**23)) for value in values]
        total = sum(unit, Fraction())
        sides.append([value / total for value in unit])
    return math.fsum(float(p) * math.log(p / q) for p, q in zip(*sides, strict=True))


def rows_of(pair: Pair) -> Iterator[Row]:
    """The row as `vc` computes it, in one part and in many, and as `cp` does."""
    yield from compare_pairs([pair], THIS_THREAD)
    yield from compare_pairs([pair], THIS_THREAD, budget=Budget(block=1 << 8, box=1 << 9, kept_items=1 << 10))
    yield compare_elements(pair, THIS_THREAD, atol=0, rtol=0, shown=3).comparison


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that some hundred elements are read in many blocks, twice."""
    monkeypatch.setattr(tensor_figures, "_BLOCK", 64)
    monkeypatch.setattr(tensor_figures, "_KEEP", 100)


RATIOS = (0.0, 0.5, 1.0, 2.0, 5.0, 31.0, 31.6, 31.7, 100.0)


@pytest.mark.parametrize(
    ("dtype", "ratio"),
    [*(("float16", ratio) for ratio in RATIOS), *((name, ratio) for name in ("float32", "float64")
                                                  for ratio in (*RATIOS, 3e3, 1e5))],
)  # fmt: skip
def test_std_has_its_digits_whatever_the_mean(tmp_path: Path, ratio: float, dtype: str) -> None:
    """A variance of 1e-3 of the squared mean is a ratio of 31.6."""
    random = np.random.default_rng(17)
    x = ((ratio + random.normal(size=3000)) * 3).astype(np.float32)
    if dtype != "float16":
        x = (x * 324).astype(dtype)
    x = x.astype(dtype)
    pair = written_pair(tmp_path, x, -x)
    mean, std = exact_moments(x)
    size = float(np.abs(x).max())
    for row in rows_of(pair):
        assert row.npu is not None
        assert row.golden is not None
        for found, sign in ((row.npu, 1), (row.golden, -1)):
            assert found.std == pytest.approx(std, rel=5e-7)
            assert found.mean == pytest.approx(sign * mean, rel=2e-7, abs=1e-7 * size)
    assert isinstance(pair.npu, Tensor)
    assert figures_of(pair.npu).summary.std == pytest.approx(std, rel=1e-11)


LONG = {
    "beyond 2**53": (np.arange(4) % 4 + 2**60, np.array([3, 0, 1, 1]) + 2**60),
    "many": (np.arange(3000) % 7 + 2**62, (np.arange(3000) * 3) % 5 + 2**62),
    "negative": (np.arange(1500) % 9 - 2**62, np.arange(1500) % 4 - 2**62),
    "both ends": (np.array([-(2**63), 2**63 - 1, 0, 5]), np.array([2**63 - 1, -(2**63), 7, 5])),
    "blocks far apart": (np.arange(2048) + np.arange(2048) // 512 * 2**58, np.arange(2048) % 3),
}


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("unsigned", [False, True])
@pytest.mark.usefixtures("tiny")
def test_64_bit_integers_beyond_2_to_the_53(tmp_path: Path, name: str, unsigned: bool) -> None:
    x, y = LONG[name]
    if unsigned:
        x, y = (a.view(np.uint64) ^ np.uint64(2**63) for a in (x, y))
    pair = written_pair(tmp_path, x, y)
    exact = [abs(int(a) - int(b)) for a, b in zip(x, y, strict=True)]
    for row in rows_of(pair):
        assert row.metrics is not None
        assert row.metrics.kullback_leibler_divergence == pytest.approx(exact_divergence(x, y), rel=1e-9, abs=1e-12)
        assert row.metrics.max_absolute_error == pytest.approx(max(exact), rel=1e-15)
        for side, a in ((row.npu, x), (row.golden, y)):
            assert side is not None
            mean, std = exact_moments(a)
            assert side.mean == pytest.approx(mean, rel=1e-15)
            assert side.std == pytest.approx(std, rel=1e-12)
            assert (side.minimum, side.maximum) == (int(a.min()), int(a.max()))
    assert isinstance(pair.npu, Tensor)
    figures = figures_of(pair.npu, bins=4)
    assert figures.summary.std == pytest.approx(exact_moments(x)[1], rel=1e-12)
    low, span = int(x.min()), int(x.max()) - int(x.min())
    places = [min((int(value) - low) * 4 // span, 3) for value in x]
    assert figures.histogram == tuple(places.count(place) for place in range(4))


def test_a_mean_of_relative_errors_whose_sum_leaves_the_range(tmp_path: Path) -> None:
    for size in (4, 3000):
        x, y = np.full(size, 1e299), np.full(size, 1e-8)
        x[: size // 2] = 2e299
        exact = (
            sum((abs(Fraction(a) - Fraction(b)) / Fraction(b) for a, b in zip(x, y, strict=True)), Fraction()) / size
        )
        for row in rows_of(written_pair(tmp_path, x, y)):
            assert row.metrics is not None
            assert row.metrics.mean_relative_error == pytest.approx(float(exact), rel=1e-12)
            assert row.metrics.accumulated_relative_error == (
                math.inf if size > 4 else pytest.approx(float(exact * size))
            )


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize(("x", "y", "part"), [(1 + 2j, 4 + 2j, 0), (1 + 2j, 1 + 5j, 1)])
def test_the_place_in_a_complex_scalar(
    tmp_path: Path, shape: tuple[int, ...], x: complex, y: complex, part: int
) -> None:
    """As in a shape of one element, which is what the result prints; the last index tells real from imaginary."""
    pair = written_pair(tmp_path, np.full(shape, x, np.complex64), np.full(shape, y, np.complex64))
    for row in rows_of(pair):
        assert row.metrics is not None
        assert row.metrics.max_error_index == (*(0 for _ in shape or (1,)), part)
