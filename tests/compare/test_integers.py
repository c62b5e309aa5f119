"""Integers of 64 bits through both passes against Python's own, by every kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from compiled_kernel import KINDS_OF_KERNEL, LESSER_PROCESSORS, compiled_library, kernel_of
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_tool.lib.compare.compiled import CompiledKernel
from precision_tool.lib.compare.kernel import Kernel, integer_errors
from precision_tool.lib.compare.pair_sums import KlSums, SideSums, Sums

Array = npt.NDArray[Any]

LEAST, MOST = {"i8": -(2**63), "u8": 0}, {"i8": 2**63 - 1, "u8": 2**64 - 1}
#: What a side's integers lie around, how far apart they are, and what is strewn among them.
MIDDLES = (0, 7, 2**31, 2**32 - 1, 2**53, 2**60, 2**63 - 1, 2**64 - 1, -1, -(2**32), -(2**53) - 1, -(2**63))
SPREADS = (0, 1, 100, 2**20, 2**33, 2**54, 2**62, 2**64)
STREWN = (0, 1, -1, 2**53 + 1, 2**62, 2**63 - 1, -(2**63), 2**63, 2**64 - 1)
#: On both sides of the borders of rows and of pieces of blocks.
SIZES = (1, 2, 3, 8, 100, 255, 256, 257, 513, 1024, 1500, 8193)

_kind = [KINDS_OF_KERNEL[0]]


@pytest.fixture(
    params=[
        pytest.param(kind, marks=[pytest.mark.slow] if kind in LESSER_PROCESSORS else []) for kind in KINDS_OF_KERNEL
    ],
    scope="module",
    autouse=True,
)
def each_kernel(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test, with every kernel."""
    _kind[0] = request.param
    kernel_of(request.param)  # skipped where it was not built
    yield
    kernel_of(KINDS_OF_KERNEL[0])


def side(kind: str, size: int, seed: int, middle: int, spread: int, strewn: int) -> Array:
    rng = np.random.default_rng(seed)
    values = [middle + int(share * spread) - spread // 2 for share in rng.random(size).tolist()]
    for at in rng.integers(0, size, strewn).tolist():
        values[at] = STREWN[int(rng.integers(len(STREWN)))]
    return np.array([min(max(value, LEAST[kind]), MOST[kind]) for value in values], np.dtype(kind))


_SIDE = st.tuples(
    st.sampled_from(("i8", "u8")),
    st.integers(0, 2**32 - 1),
    st.sampled_from(MIDDLES),
    st.sampled_from(SPREADS),
    st.sampled_from((0, 0, 1, 40)),
)
_SIZE = st.sampled_from(SIZES)


def sides_of(size: int, shift: int, npu: tuple[Any, ...], golden: tuple[Any, ...], near: bool) -> tuple[Array, Array]:
    """Both sides, `shift` items behind the beginning of their memory; `near`: with few and small errors."""
    x, y = (side(kind, size + shift, *rest)[shift:] for kind, *rest in (npu, golden))
    if near:
        kind, seed = golden[0], npu[1]
        moved = (int(value) + (at + seed) % 7 // 5 * (seed % 9 - 4) for at, value in enumerate(x.tolist()))
        y = np.array([min(max(value, LEAST[kind]), MOST[kind]) for value in moved], np.dtype(kind))
    return x, y


def check_side(found: SideSums, a: Array) -> None:
    """All exact but the squares, which are to 1e-12."""
    values: list[int] = a.tolist()
    assert (found.count, found.zero_count, found.total) == (len(values), values.count(0), sum(values))
    assert (found.minimum, found.maximum) == (min(values), max(values))
    squares = Fraction(len(values) * sum(value * value for value in values) - sum(values) ** 2, len(values))
    assert found.deviation_squares == pytest.approx(float(squares), rel=1e-12)


def check_pairs(found: Sums, x: Array, y: Array) -> None:
    one, two = x.tolist(), y.tolist()
    pairs = list(zip(one, two, strict=True))
    errors = [abs(a - b) for a, b in pairs]
    assert found.size == found.count == len(errors)
    products = [a * b for a, b in pairs]
    assert found.dot == pytest.approx(sum(products), rel=0, abs=1e-12 * sum(map(abs, products)))
    assert found.npu_squares == pytest.approx(sum(a * a for a in one), rel=1e-12)
    assert found.golden_squares == pytest.approx(sum(b * b for b in two), rel=1e-12)
    assert found.error_squares == pytest.approx(sum(error * error for error in errors), rel=1e-12)
    assert found.error_total == pytest.approx(sum(errors), rel=1e-12)
    relative = [error / abs(b) if b else 0.0 for error, b in zip(errors, two, strict=True)]
    assert found.relative_total == pytest.approx(math.fsum(relative), rel=1e-12)
    assert found.max_relative == pytest.approx(max(relative), rel=1e-15)
    assert found.max_error == pytest.approx(max(errors), rel=3e-16)
    at = found.max_error_at
    if max(errors) < 2**53:
        assert at == errors.index(max(errors))
    else:  # others may be rounded to the same
        assert errors[at] == pytest.approx(max(errors), rel=3e-16)
    assert (found.npu_at_max, found.golden_at_max) == (float(one[at]), float(two[at]))
    assert (found.pair_npu_range, found.pair_golden_range) == ((min(one), max(one)), (min(two), max(two)))


def check_divergence(found: KlSums, x: Array, y: Array) -> None:
    """The sums of values above the least, at least float32's epsilon of the span."""
    p, q = (
        [max(float(value - int(a.min())), 2.0**-23 * (int(a.max()) - int(a.min()))) for value in a.tolist()]
        for a in (x, y)
    )
    assert found.p == pytest.approx(math.fsum(p), rel=1e-12)
    assert found.q == pytest.approx(math.fsum(q), rel=1e-12)
    pairs = list(zip(p, q, strict=True))
    assert found.apart == pytest.approx(math.fsum(b - a for a, b in pairs), rel=0, abs=1e-12 * (found.p + found.q))
    ratios = [a * math.log2(a / b) for a, b in pairs]
    assert found.p_log_ratio == pytest.approx(math.fsum(ratios), rel=0, abs=1e-12 * (found.p + found.q))


@settings(max_examples=40, deadline=None)
@given(size=_SIZE, shift=st.integers(0, 3), npu=_SIDE, golden=_SIDE, near=st.booleans())
def test_both_passes(size: int, shift: int, npu: tuple[Any, ...], golden: tuple[Any, ...], near: bool) -> None:
    x, y = sides_of(size, shift, npu, golden, near)
    kernel, sums, second = kernel_of(_kind[0]), Sums(), KlSums()
    kernel.add_block(sums, x, y, 0)
    check_side(sums.npu, x)
    check_side(sums.golden, y)
    check_pairs(sums, x, y)
    kernel.add_second(second, sums, x, y)
    if x.min() < x.max() and y.min() < y.max():  # else any floor will do
        check_divergence(second, x, y)


@settings(max_examples=30, deadline=None)
@given(size=_SIZE, shift=st.integers(0, 3), of=_SIDE, bins=st.sampled_from((1, 7, 40)))
def test_one_side(size: int, shift: int, of: tuple[Any, ...], bins: int) -> None:
    a = side(of[0], size + shift, *of[1:])[shift:]
    kernel, sums, counts = kernel_of(_kind[0]), SideSums(), np.zeros(bins, np.int64)
    kernel.add_side(sums, a)
    check_side(sums, a)
    low, high = int(a.min()), int(a.max())
    assert kernel.finite_range(a) == (float(low), float(high))
    kernel.add_bins(counts, a, low, high)
    offsets = [value - low for value in a.tolist()]
    places = [
        min(math.floor(float(offset) / float(high - low) * bins), bins - 1) if offset else 0 for offset in offsets
    ]
    assert counts.tolist() == [places.count(place) for place in range(bins)]


@settings(max_examples=10, deadline=None)
@given(size=st.sampled_from((3000, 9000)), npu=_SIDE, golden=_SIDE, near=st.booleans())
def test_whoever_adds_the_parts(size: int, npu: tuple[Any, ...], golden: tuple[Any, ...], near: bool) -> None:
    """Parts of a tensor by kernels of their own, merged, are what one kernel finds that takes them in turn."""
    x, y = sides_of(size, 0, npu, golden, near)
    cuts = [(start, min(start + 1024, size)) for start in range(0, size, 1024)]
    alone = kernel_of(_kind[0])
    found: list[Sums] = []
    for reused in (True, False):
        whole = Sums()
        for start, stop in cuts:
            part = Sums()
            (alone if reused else kernel_of(_kind[0])).add_block(part, x[start:stop], y[start:stop], start)
            whole.add(part)
        found.append(whole)
    assert repr(found[0]) == repr(found[1])
    check_side(found[0].npu, x)
    check_pairs(found[0], x, y)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.array([2**63 - 1], "i8"), np.array([-(2**63)], "i8")),
        (np.array([2**64 - 1], "u8"), np.array([-(2**63)], "i8")),
        (np.array([-(2**63)], "i8"), np.array([2**64 - 1], "u8")),
        (np.array([2**53 + 1, 2**60 + 3], "i8"), np.array([2**53, 2**60], "u8")),
        (np.array([2**64 - 1, 2**63], "u8"), np.array([2**64 - 2, 2**63 + 1], "u8")),
    ],
)
def test_differences_are_rounded_once(x: Array, y: Array) -> None:
    exact = [a - b for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    assert integer_errors(x, y).tolist() == [float(error) for error in exact]
    sums = Sums()
    kernel_of(_kind[0]).add_block(sums, x, y, 0)
    assert sums.max_error == max(abs(float(error)) for error in exact)


def test_the_compiled_kernel_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without numpy's arithmetic, which it would otherwise go on with unseen."""
    if _kind[0] == "numpy":
        return
    kernel = CompiledKernel(compiled_library())
    for name in ("add_integers", "integer_offsets", "integer_errors"):
        monkeypatch.delattr(f"precision_tool.lib.compare.kernel.{name}")
    monkeypatch.delattr(Kernel, "add_side")
    x = np.arange(-500, 1500)
    sums, counts = Sums(), np.zeros(4, np.int64)
    assert kernel.add_block(sums, x, x[::-1].copy(), 0) == (-500, 1499)
    kernel.add_second(KlSums(), sums, x, x[::-1].copy())
    kernel.add_bins(counts, x, -500, 1499)
    kernel.add_side(SideSums(), x)
    assert counts.sum() == 2000
