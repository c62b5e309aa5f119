"""The ten metrics and both summaries against the formulas of FORMATS.md §5 over whole arrays in float64."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pytest
from compiled_kernel import KINDS_OF_KERNEL, LESSER_PROCESSORS, kernel_of
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_tool.lib.compare.compiled import CompiledKernel
from precision_tool.lib.compare.kernel import Kernel
from precision_tool.lib.compare.pair_sums import KlSums, Sums, finish, ravel, unravel
from precision_tool.lib.io.native.library import address
from precision_tool.lib.model.comparison import Metrics, Summary

Array = npt.NDArray[Any]

#: On both sides of the borders of rows (1,024 items), blocks (65,536 here) and several blocks.
SIZES = (1, 2, 7, 1023, 1024, 1025, 2048, 5000, 65535, 65536, 65537, 131072, 200_003)
BLOCK = 1 << 16


# ---- the references


def zero_rule(error: Array, y: Array) -> Array:
    """|x/y - 1| as |x - y| / |y|, and 0 where |y| is at most 2.2e-16."""
    size = np.abs(y)
    keep = size > 2.2e-16
    relative: Array = np.where(keep, np.abs(error) / np.where(keep, size, 1.0), 0.0)
    return relative


def scaled(a: Array) -> Array:
    """Min-max scaled to [0, 1], clamped below at float32's epsilon, normalised to sum 1; constant: all the same."""
    low, high = a.min(), a.max()
    span = high / 2 - low / 2  # halved, so that it does not leave float64's range either
    unit: Array = np.full(a.shape, 1.0) if span == 0 else np.maximum((a / 2 - low / 2) / span, 2.0**-23)
    normalised: Array = unit / unit.sum()
    return normalised


@dataclass(frozen=True)
class Truth:
    cosine: float
    largest: float
    accumulated_relative: float
    relative_distance: float
    kl: float
    mean_absolute: float
    root_mean_square: float
    largest_relative: float
    mean_relative: float


Reference = TypeVar("Reference")
_REFERENCES: dict[tuple[object, ...], Any] = {}


def once(compute: Callable[..., Reference], *arrays: Array) -> Reference:
    """What `compute` makes of these arrays, computed once for all kernels: it takes longer than what is tested."""
    key = compute, *((array.dtype, array.shape, hashlib.sha256(array.tobytes()).digest()) for array in arrays)
    if key not in _REFERENCES:
        _REFERENCES[key] = compute(*arrays)
    known: Reference = _REFERENCES[key]
    return known


def mean_and_deviation(finite: Array) -> tuple[float, float]:
    mean = math.fsum(finite) / finite.size
    return mean, math.sqrt(math.fsum((finite - mean) ** 2) / finite.size)


def truth(x: Array, y: Array) -> Truth:
    """The formulas, over the elements that are finite on both sides."""
    is_scalar = x.size == 1
    both = np.isfinite(x) & np.isfinite(y)
    x, y = x[both].astype(np.float64), y[both].astype(np.float64)
    error = x - y
    relative = zero_rule(error, y)
    x_norm, y_norm = math.sqrt(math.fsum(x * x)), math.sqrt(math.fsum(y * y))
    if is_scalar or x_norm == y_norm == 0:
        cosine = 1.0
    elif x_norm == 0 or y_norm == 0:
        cosine = math.nan
    else:
        cosine = math.fsum((x / x_norm) * (y / y_norm))
    p, q = scaled(x), scaled(y)
    distance = math.sqrt(math.fsum(error * error))
    return Truth(
        cosine=cosine,
        largest=float(np.abs(error).max()),
        accumulated_relative=math.fsum(relative),
        relative_distance=distance / y_norm if y_norm else 0.0,
        kl=math.fsum(p * np.log(p / q)),
        mean_absolute=math.fsum(np.abs(error)) / x.size,
        root_mean_square=distance / math.sqrt(x.size),
        largest_relative=float(relative.max()),
        mean_relative=math.fsum(relative) / x.size,
    )


# ---- the code under test

#: The kind of kernel that the tests use now.
_kind = [KINDS_OF_KERNEL[0]]


#: As on lesser processors once: what they do does not depend on the versions of numpy.
_PARAMS = [
    pytest.param(kind, marks=[pytest.mark.slow] if kind in LESSER_PROCESSORS else []) for kind in KINDS_OF_KERNEL
]


@pytest.fixture(params=_PARAMS, scope="module", autouse=True)
def each_kernel(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test, with every kernel."""
    _kind[0] = request.param
    kernel_of(request.param)  # skipped where it was not built
    yield
    kernel_of(KINDS_OF_KERNEL[0])


def new_kernel() -> Kernel:
    return kernel_of(_kind[0])


def first_pass(x: Array, y: Array, block: int = BLOCK, start: int = 0, kernel: Kernel | None = None) -> Sums:
    kernel, sums = kernel or new_kernel(), Sums()
    for begin in range(0, x.size, block):
        kernel.add_block(sums, x[begin : begin + block], y[begin : begin + block], start + begin)
    return sums


def second_pass(first: Sums, x: Array, y: Array, block: int = BLOCK, kernel: Kernel | None = None) -> KlSums:
    kernel, sums = kernel or new_kernel(), KlSums()
    for begin in range(0, x.size, block):
        kernel.add_second(sums, first, x[begin : begin + block], y[begin : begin + block])
    return sums


def compare(x: Array, y: Array, block: int = BLOCK) -> tuple[Metrics, Summary, Summary]:
    kernel = new_kernel()
    kept = x.tobytes(), y.tobytes()
    first = first_pass(x, y, block, kernel=kernel)
    metrics, npu, golden = finish(first, second_pass(first, x, y, block, kernel=kernel), x.shape)
    assert metrics is not None
    assert (x.tobytes(), y.tobytes()) == kept  # the blocks are the caller's
    return metrics, npu, golden


# Tolerances. The products of a row of 1,024 float32 items are summed in float32, in several running sums, which
# costs a few units in the last place (6e-8): REL leaves room for 30. Everything after that is float64.
# The KL divergence of float32 adds a logarithm of up to 24 binary places for each element: its error is absolute.
REL = {np.dtype(np.float32): 2e-6, np.dtype(np.float64): 1e-10}
KL_ABS = {np.dtype(np.float32): 2e-6, np.dtype(np.float64): 1e-10}
#: Printed with six places, so a cosine must be right to 1e-6 whatever the type; 1 - 1e-6 must not become 1.
COSINE_ABS = {np.dtype(np.float32): 5e-7, np.dtype(np.float64): 1e-12}


def check_metrics(found: Metrics, x: Array, y: Array) -> None:
    want = once(truth, x, y)
    rel = REL[x.dtype]

    def close(value: float, expected: float, name: str, absolute: float = 0.0) -> None:
        assert value == pytest.approx(expected, rel=rel, abs=absolute, nan_ok=True), name

    close(found.max_absolute_error, want.largest, "max absolute")
    close(found.accumulated_relative_error, want.accumulated_relative, "accumulated relative")
    close(found.relative_euclidean_distance, want.relative_distance, "relative distance")
    close(found.mean_absolute_error, want.mean_absolute, "mean absolute")
    close(found.root_mean_square_error, want.root_mean_square, "rms")
    close(found.max_relative_error, want.largest_relative, "max relative")
    close(found.mean_relative_error, want.mean_relative, "mean relative")
    assert found.kullback_leibler_divergence == pytest.approx(want.kl, rel=10 * rel, abs=KL_ABS[x.dtype])
    assert found.cosine == pytest.approx(want.cosine, rel=0, abs=COSINE_ABS[x.dtype], nan_ok=True)
    assert not abs(found.cosine) > 1
    assert found.non_finite_mismatches == 0
    assert found.first_mismatch_index is None
    assert found.is_scalar == (x.size == 1)
    both = np.isfinite(x) & np.isfinite(y)
    assert found.both_zero == (not x[both].any() and not y[both].any())
    check_place(found, x, y, both)


def check_place(found: Metrics, x: Array, y: Array, both: npt.NDArray[np.bool_]) -> None:
    """The first of the largest errors, as the type computes them, and both values there."""
    with np.errstate(all="ignore"):
        error = np.where(both, np.abs(x.astype(np.float64) - y.astype(np.float64)), -1.0)
    if error.max() == 0:
        assert found.max_error_index is None
        return
    assert found.max_error_index is not None
    at = found.max_error_index
    assert len(at) == x.ndim
    assert (found.npu_at_max_error, found.golden_at_max_error) == (float(x[at]), float(y[at]))
    assert error[at] == pytest.approx(error.max(), rel=2e-7)  # two errors may be equal in float32 only
    assert abs(found.npu_at_max_error - found.golden_at_max_error) == pytest.approx(found.max_absolute_error, rel=2e-7)


def check_summary(found: Summary, a: Array) -> None:
    finite = a[np.isfinite(a)].astype(np.float64)
    assert found.count == a.size
    assert found.nan_count == int(np.isnan(a).sum())
    assert found.positive_inf_count == int(np.isposinf(a).sum())
    assert found.negative_inf_count == int(np.isneginf(a).sum())
    assert found.zero_count == int((a == 0).sum())
    if not finite.size:
        assert all(math.isnan(value) for value in (found.minimum, found.maximum, found.mean, found.std))
        return
    assert (found.minimum, found.maximum) == (finite.min(), finite.max())
    mean, std = once(mean_and_deviation, finite)
    # Relative to the size of the values: where they cancel out, the mean of their rounding errors is left.
    assert found.mean == pytest.approx(mean, rel=0, abs=REL[a.dtype] * float(np.abs(finite).mean()))
    # Next to nothing for a constant: of float64 as far as the mean is off, 128 numbers in each of 8 lanes.
    nothing = 1e-9 * abs(mean) if a.dtype == np.float32 else 128 * 2**-53 * abs(mean)
    assert found.std == pytest.approx(std, rel=1e-4 if a.dtype == np.float32 else 1e-8, abs=nothing)


def check(x: Array, y: Array, block: int = BLOCK) -> None:
    metrics, npu, golden = compare(x, y, block)
    check_metrics(metrics, x, y)
    check_summary(npu, x)
    check_summary(golden, y)


# ---- values of every kind

Random = np.random.Generator
KINDS: dict[str, Callable[[Random, int], Array]] = {
    "normal": lambda rng, n: rng.normal(size=n),
    "positive": lambda rng, n: rng.random(n) + 0.1,
    "zeros": lambda rng, n: np.zeros(n),
    "constant": lambda rng, n: np.full(n, rng.normal()),
    "relu": lambda rng, n: np.maximum(rng.normal(size=n), 0),
    "one element": lambda rng, n: np.where(np.arange(n) == n // 2, 3.0, 0.0),
    "integers": lambda rng, n: rng.integers(-5, 6, n).astype(np.float64),
    "tiny": lambda rng, n: rng.normal(size=n) * 1e-30,
    "squares vanish": lambda rng, n: rng.normal(size=n) * 1e-21,
    "subnormal": lambda rng, n: rng.normal(size=n) * 1e-40,
    "huge": lambda rng, n: rng.normal(size=n) * 1e30,
    "squares overflow": lambda rng, n: (rng.random(n) + 0.5) * 6e17,
    "largest": lambda rng, n: (rng.random(n) * 2 - 1) * 3e38,
    "far from zero": lambda rng, n: 1e4 + rng.normal(size=n),
    "rather far from zero": lambda rng, n: -35 + rng.normal(size=n),
    "any size": lambda rng, n: np.exp(rng.normal(size=n) * 8) * rng.choice([-1, 1], n),
    "one outlier": lambda rng, n: np.where(np.arange(n) == 0, 1e6, rng.normal(size=n)),
}
RELATIONS: dict[str, Callable[[Random, Array], Array]] = {
    "equal": lambda rng, y: y.copy(),
    "rounded": lambda rng, y: y * (1 + rng.normal(size=y.size) * 1e-3),
    "nearly": lambda rng, y: y * (1 + rng.normal(size=y.size) * 1e-6),
    "one wrong": lambda rng, y: np.where(np.arange(y.size) == y.size - 1, y * 0.5 + 1e-3, y),
    "scaled": lambda rng, y: y * 0.01,
    "opposite": lambda rng, y: -y,
    "shifted": lambda rng, y: np.roll(y, 1),
    "independent": lambda rng, y: rng.normal(size=y.size) * max(float(np.abs(y).mean()), 1e-44),
    "zeros": lambda rng, y: np.zeros(y.size),
    "constant": lambda rng, y: np.full(y.size, 0.75),
}


def make(kind: str, relation: str, size: int, dtype: np.dtype, seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    y = KINDS[kind](rng, size)
    x = RELATIONS[relation](rng, y)
    largest = float(np.finfo(np.float32).max)
    return np.clip(x, -largest, largest).astype(dtype), np.clip(y, -largest, largest).astype(dtype)


DTYPES = pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(np.float64)], ids=str)


@DTYPES
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_values_of_every_kind(kind: str, relation: str, dtype: np.dtype) -> None:
    for size in (1, 2, 1500, 4096):
        check(*make(kind, relation, size, dtype, size))


@DTYPES
@pytest.mark.parametrize("size", SIZES)
def test_sizes_around_every_border(size: int, dtype: np.dtype) -> None:
    for kind in ("normal", "relu", "far from zero", "constant"):
        check(*make(kind, "rounded", size, dtype, size))
        check(*make(kind, "independent", size, dtype, size))


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from([*KINDS]),
    relation=st.sampled_from([*RELATIONS]),
    size=st.one_of(st.sampled_from(SIZES[:-1]), st.integers(1, 5000)),
    block=st.sampled_from([1024, 2048, BLOCK, 2 * BLOCK]),
    double=st.booleans(),
    seed=st.integers(0, 1 << 31),
)
def test_any_values_in_any_blocks(kind: str, relation: str, size: int, block: int, double: bool, seed: int) -> None:
    check(*make(kind, relation, size, np.dtype(np.float64 if double else np.float32), seed), block=block)


@settings(max_examples=200, deadline=None)
@given(
    pairs=st.lists(
        st.tuples(st.floats(width=32, allow_infinity=False, allow_nan=False, allow_subnormal=True),
                  st.floats(width=32, allow_infinity=False, allow_nan=False, allow_subnormal=True))
        .filter(lambda pair: all(not 1e-16 < abs(value) < 3e-16 for value in pair)),  # at the zero rule's border
        min_size=2, max_size=30,
    )
)  # fmt: skip
def test_a_few_floats_of_any_size(pairs: list[tuple[float, float]]) -> None:
    """Less than a row is computed in float64 throughout, so only the truth's own rounding is left."""
    x, y = (np.array(side, np.float32) for side in zip(*pairs, strict=True))
    metrics, npu, golden = compare(x, y)
    want = once(truth, x, y)
    assert metrics.cosine == pytest.approx(want.cosine, rel=0, abs=1e-12, nan_ok=True)
    assert metrics.max_absolute_error == pytest.approx(want.largest, rel=1e-12)
    assert metrics.relative_euclidean_distance == pytest.approx(want.relative_distance, rel=1e-9)
    assert metrics.accumulated_relative_error == pytest.approx(want.accumulated_relative, rel=1e-9)
    assert metrics.root_mean_square_error == pytest.approx(want.root_mean_square, rel=1e-9)
    assert metrics.kullback_leibler_divergence == pytest.approx(want.kl, rel=1e-6, abs=1e-9)
    check_summary(npu, x)
    check_summary(golden, y)


@DTYPES
def test_a_scale_that_differs_between_the_sides(dtype: np.dtype) -> None:
    """The quotient of both sides, which the divergence takes the logarithm of, may leave float32's range."""
    rng = np.random.default_rng(5)
    for x_scale, y_scale in ((1e25, 1e-25), (1e-25, 1e25), (1e14, 1e-14), (1e-28, 1.0), (1.0, 3e37), (1e-38, 1e37)):
        x, y = ((rng.random(4096) * scale).astype(dtype) for scale in (x_scale, y_scale))
        metrics, _, _ = compare(x, y)
        want = once(truth, x, y)
        # A logarithm of up to 150 binary places: its last place in float32 is 1e-5.
        assert metrics.kullback_leibler_divergence == pytest.approx(want.kl, rel=1e-5, abs=2e-5)
        assert metrics.cosine == pytest.approx(want.cosine, abs=5e-7)


@DTYPES
@pytest.mark.parametrize("ratio", [0.0, 10.0, 28.0, 31.0, 32.0, 100.0, 1e3, 1e4, 1e5])
def test_std_however_far_the_mean_is(ratio: float, dtype: np.dtype) -> None:
    rng = np.random.default_rng(11)
    for size in (1500, 70_000):
        a = (ratio + rng.normal(size=size)).astype(dtype)
        _, npu, golden = compare(a, -a)
        exact = float(np.std(a.astype(np.float64)))
        assert npu.std == pytest.approx(exact, rel=1e-4)
        assert golden.std == pytest.approx(exact, rel=1e-4)


def test_a_cosine_of_many_elements_stays_right() -> None:
    """Where the vendor's float32 sums went wrong (1.0001 over 32 million elements)."""
    rng = np.random.default_rng(3)
    y = (rng.random(3_000_000) + 1).astype(np.float32)
    x = (y + rng.normal(size=y.size) * 1e-3).astype(np.float32)
    metrics, _, _ = compare(x, y)
    assert metrics.cosine == pytest.approx(once(truth, x, y).cosine, abs=1e-8)
    assert metrics.cosine < 1


# ---- NaN and Inf


def test_a_cosine_near_1_keeps_its_digits() -> None:
    """Sums of float32 products alone are off by 1e-8, more than what is left to 1 here."""
    rng = np.random.default_rng(5)
    y = rng.normal(size=50_000).astype(np.float32)
    x = (y + rng.normal(size=y.size) * 1e-5).astype(np.float32)
    one, two = x.astype(np.longdouble), y.astype(np.longdouble)
    left = 1 - np.dot(one, two) / np.sqrt(np.dot(one, one) * np.dot(two, two))
    assert 1 - compare(x, y)[0].cosine == pytest.approx(float(left), rel=1e-3)


def test_nan_and_inf_that_agree_are_left_out() -> None:
    rng = np.random.default_rng(1)
    for size in (5, 1500, 70_000):
        y = rng.normal(size=size).astype(np.float32)
        x = (y + 0.01).astype(np.float32)
        for position, value in ((0, math.nan), (2, math.inf), (size - 1, -math.inf)):
            x[position] = y[position] = value
        check(x, y)


@pytest.mark.parametrize("size", [1, 3, 1024, 70_000])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nothing_but_the_same_nan_or_inf(value: float, size: int) -> None:
    x = np.full(size, value, np.float32)
    metrics, npu, golden = compare(x, x.copy())
    assert (metrics.cosine, metrics.max_absolute_error, metrics.kullback_leibler_divergence) == (1.0, 0.0, 0.0)
    assert (metrics.relative_euclidean_distance, metrics.mean_relative_error) == (0.0, 0.0)
    assert metrics.non_finite_mismatches == 0
    assert metrics.max_error_index is None
    check_summary(npu, x)
    check_summary(golden, x)


@pytest.mark.parametrize("noise", [1e-6, 1e-4, 1e-2, 1e-1])
@pytest.mark.parametrize("size", [3000, 200_000])
def test_the_divergence_of_nearly_equal_sides_keeps_its_digits(size: int, noise: float) -> None:
    """Almost all of its terms cancels: what is left has six right digits or nine places, in numpy more."""
    generator = np.random.default_rng(0)
    y = np.maximum(generator.standard_normal(size), 0).astype(np.float32)
    x = (y * (1 + noise * generator.standard_normal(size))).astype(np.float32)
    wide, golden = x.astype(np.float64), y.astype(np.float64)
    p, q = (scaled(a) for a in (wide, golden))
    want = math.fsum(p * (((q - p) / p) - np.log1p((q - p) / p)))  # as Σ q - p is 0, and nothing cancels
    metrics, _, _ = compare(x, y)
    assert metrics.kullback_leibler_divergence == pytest.approx(want, rel=1e-6, abs=1e-9)
    if not isinstance(new_kernel(), CompiledKernel):
        assert metrics.kullback_leibler_divergence == pytest.approx(want, rel=1e-4, abs=1e-15)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_divergence_is_never_below_zero(dtype: npt.DTypeLike) -> None:
    """Of nearly equal sides roundings may be, which `-0.000000` would show."""
    generator = np.random.default_rng(1)
    for size in (3, 100, 5000):
        for _ in range(40):
            x: Array = generator.standard_normal(size).astype(dtype)
            y: Array = (x * (1 + 1e-7 * generator.standard_normal(size))).astype(dtype)
            metrics, _, _ = compare(x, y)
            assert math.copysign(1, metrics.kullback_leibler_divergence) == 1


@settings(max_examples=150, deadline=None)
@given(
    size=st.sampled_from([1, 5, 1023, 1024, 1500, 66_000]),
    specials=st.lists(
        st.tuples(
            st.integers(0, 1 << 20), st.sampled_from(["nan", "inf", "-inf", "1.5"]),
            st.sampled_from(["nan", "inf", "-inf", "1.5"]),
        ),
        max_size=6,
    ),
    block=st.sampled_from([1024, BLOCK]),
    double=st.booleans(),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_nan_and_inf_anywhere(
    size: int, specials: list[tuple[int, str, str]], block: int, double: bool, seed: int
) -> None:
    x, y = make("normal", "rounded", size, np.dtype(np.float64 if double else np.float32), seed)
    for position, x_value, y_value in specials:
        x[position % size], y[position % size] = float(x_value), float(y_value)
    metrics, npu, golden = compare(x, y, block)
    check_summary(npu, x)
    check_summary(golden, y)
    agree = (np.isfinite(x) & np.isfinite(y)) | (np.isnan(x) & np.isnan(y)) | (x == y)
    wrong = np.flatnonzero(~agree)
    assert metrics.non_finite_mismatches == wrong.size
    if not wrong.size:
        if (np.isfinite(x) & np.isfinite(y)).any() and size > 1:
            check_metrics(metrics, x, y)
        return
    first = int(wrong[0])
    assert metrics.first_mismatch_index == (first,)
    assert metrics.max_error_index == (first,)
    assert np.array_equal([metrics.npu_at_max_error, metrics.golden_at_max_error], [x[first], y[first]], equal_nan=True)
    nan_involved = bool((np.isnan(x[wrong]) | np.isnan(y[wrong])).any())
    for value in (
        metrics.max_absolute_error, metrics.accumulated_relative_error, metrics.relative_euclidean_distance,
        metrics.mean_absolute_error, metrics.root_mean_square_error, metrics.max_relative_error,
        metrics.mean_relative_error,
    ):  # fmt: skip
        assert math.isnan(value) if nan_involved else value == math.inf
    assert math.isnan(metrics.cosine)
    assert math.isnan(metrics.kullback_leibler_divergence)


@pytest.mark.parametrize("at", [0, 1030, 1125, 1499])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_what_float32_has_no_squares_of_keeps_its_nan_and_inf(at: int, value: float, scale: float) -> None:
    """Wherever they lie: rows before them are done in float64 already when they are met."""
    x = (np.random.default_rng(3).normal(size=1500) * scale).astype(np.float32)
    y = x.copy()
    x[at] = value
    metrics, npu, golden = compare(x, y)
    check_summary(npu, x)
    check_summary(golden, y)
    assert (metrics.non_finite_mismatches, metrics.first_mismatch_index) == (1, (at,))
    assert np.array_equal([metrics.npu_at_max_error, metrics.golden_at_max_error], [value, y[at]], equal_nan=True)


@settings(max_examples=30, deadline=None)
@given(
    size=st.sampled_from([10, 3000, 66_000]),
    value=st.sampled_from([math.nan, math.inf, -math.inf]),
    share=st.sampled_from([0.1, 0.5, 0.999]),
    scale=st.sampled_from([1.0, 1e-25, 1e25]),
    double=st.booleans(),
    seed=st.integers(0, 99),
)
def test_masks_that_both_sides_have(
    size: int, value: float, share: float, scale: float, double: bool, seed: int
) -> None:
    """Half a tensor may be NaN or -Inf on both sides; the metrics are of the rest, whatever its size."""
    x, y = make("normal", "rounded", size, np.dtype(np.float64 if double else np.float32), seed)
    x, y = x * x.dtype.type(scale), y * y.dtype.type(scale)
    mask = np.random.default_rng(seed).random(size) < share
    mask[:2] = False
    x[mask] = y[mask] = value
    check(x, y)


@pytest.mark.parametrize("other", [math.nan, math.inf])
def test_summary_of_a_side_whose_other_side_has_no_number(other: float) -> None:
    """No pair is finite on both sides, yet each side has a mean and a deviation of its own."""
    for size in (100, 3000):
        x = (1000 + np.random.default_rng(2).normal(size=size)).astype(np.float32)
        y = np.full(size, other, np.float32)
        _, npu, golden = compare(x, y)
        check_summary(npu, x)
        check_summary(golden, y)
        _, npu, golden = compare(y, x)
        check_summary(npu, y)
        check_summary(golden, x)


# ---- parts


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from([*KINDS]),
    relation=st.sampled_from([*RELATIONS]),
    size=st.sampled_from([3, 1500, 5000, 66_000]),
    cuts=st.lists(st.floats(0, 1), max_size=4),
    specials=st.lists(st.tuples(st.floats(0, 1), st.sampled_from(["nan", "inf", "-inf"]), st.booleans()), max_size=3),
    double=st.booleans(),
    seed=st.integers(0, 999),
)
def test_parts_add_up_to_the_whole(
    kind: str,
    relation: str,
    size: int,
    cuts: list[float],
    specials: list[tuple[float, str, bool]],
    double: bool,
    seed: int,
) -> None:
    """Each part by a worker with sums of its own; parts may be empty."""
    x, y = make(kind, relation, size, np.dtype(np.float64 if double else np.float32), seed)
    for share, value, on_both in specials:
        at = min(int(share * size), size - 1)
        x[at] = float(value)
        if on_both:
            y[at] = float(value)
    borders = [0, *sorted(int(share * size) for share in cuts), size]
    first = Sums()
    for start, stop in pairwise(borders):
        first.add(first_pass(x[start:stop], y[start:stop], start=start))
    second = KlSums()
    for start, stop in pairwise(borders):
        second.add(second_pass(first, x[start:stop], y[start:stop]))
    metrics, npu, golden = finish(first, second, (size,))
    whole, whole_npu, whole_golden = compare(x, y)
    assert metrics is not None
    # (Errors that are equal but for float32's rounding may change places: less than a row is done in float64.)
    assert metrics.first_mismatch_index == whole.first_mismatch_index
    assert metrics.non_finite_mismatches == whole.non_finite_mismatches
    check_summary(npu, x)
    check_summary(golden, y)
    assert npu.zero_count == whole_npu.zero_count
    assert golden.nan_count == whole_golden.nan_count
    if not metrics.non_finite_mismatches and (np.isfinite(x) & np.isfinite(y)).any():
        check_metrics(metrics, x, y)


# ---- by hand


def test_by_hand() -> None:
    x = np.array([[1.0, 2.0], [3.0, 8.0]], np.float32)
    y = np.array([[1.0, 2.5], [0.0, 4.0]], np.float32)
    kernel, first, second = new_kernel(), Sums(), KlSums()
    kernel.add_block(first, x.reshape(-1), y.reshape(-1), 0)
    kernel.add_second(second, first, x.reshape(-1), y.reshape(-1))
    metrics, npu, golden = finish(first, second, (2, 2))
    assert metrics is not None
    # errors: 0, -0.5, 3, 4; relative: 0, 0.2, (y is 0) 0, 1
    assert metrics.max_absolute_error == 4
    assert metrics.max_error_index == (1, 1)
    assert (metrics.npu_at_max_error, metrics.golden_at_max_error) == (8, 4)
    assert metrics.accumulated_relative_error == pytest.approx(1.2)
    assert metrics.max_relative_error == 1
    assert metrics.mean_relative_error == pytest.approx(0.3)
    assert metrics.mean_absolute_error == pytest.approx(7.5 / 4)
    assert metrics.root_mean_square_error == pytest.approx(math.sqrt(25.25 / 4))
    assert metrics.relative_euclidean_distance == pytest.approx(math.sqrt(25.25 / 23.25))
    assert metrics.cosine == pytest.approx(38 / math.sqrt(78 * 23.25))
    assert (npu.minimum, npu.maximum, npu.mean) == (1, 8, 3.5)
    assert npu.std == pytest.approx(math.sqrt((6.25 + 2.25 + 0.25 + 20.25) / 4))
    assert golden.zero_count == 1


@pytest.mark.parametrize(
    ("x", "y", "cosine", "distance"),
    [
        ([0.0, 0.0], [0.0, 0.0], 1.0, 0.0),
        ([0.0, 0.0], [1.0, 0.0], math.nan, 1.0),
        ([1.0, 0.0], [0.0, 0.0], math.nan, 0.0),
        ([1.0, 0.0], [0.0, 1.0], 0.0, math.sqrt(2)),
        ([1.0, 1.0], [-1.0, -1.0], -1.0, 2.0),
        ([1e-30, 2e-30], [1e-30, 2e-30], 1.0, 0.0),
        ([1e-30, 0.0], [0.0, 1e-30], 0.0, math.sqrt(2)),
        ([5.0], [-3.0], 1.0, 8 / 3),  # a scalar
        ([0.0], [2.0], 1.0, 1.0),
    ],
)
def test_cosine_and_distance_where_they_are_special(
    x: list[float], y: list[float], cosine: float, distance: float
) -> None:
    for times in (1, 1024):
        if len(x) == 1 and times > 1:
            continue
        one, two = (np.tile(np.array(side, np.float32), times) for side in (x, y))
        metrics, _, _ = compare(one, two)
        assert metrics.cosine == pytest.approx(cosine, abs=1e-7, nan_ok=True)
        assert metrics.relative_euclidean_distance == pytest.approx(distance, rel=1e-6)


@pytest.mark.parametrize(("value", "counts"), [(2.1e-16, False), (-2.1e-16, False), (2.3e-16, True), (-2.3e-16, True)])
def test_the_zero_rule_of_relative_errors(value: float, counts: bool) -> None:
    for size in (2, 1024):
        x, y = np.ones(size, np.float32), np.ones(size, np.float32)
        x[0], y[0] = 1.0, value
        metrics, _, _ = compare(x, y)
        expected = abs(1 - float(y[0])) / abs(float(y[0])) if counts else 0.0
        assert metrics.max_relative_error == pytest.approx(expected, rel=1e-6)
        assert metrics.accumulated_relative_error == pytest.approx(expected, rel=1e-6)


def test_of_equal_errors_the_first_is_named() -> None:
    for size in (10, 5000, 140_000):
        x, y = np.zeros(size, np.float32), np.zeros(size, np.float32)
        x[size // 3], x[size // 2], x[-1] = 2.0, -2.0, 2.0
        metrics, _, _ = compare(x, y)
        assert metrics.max_error_index == (size // 3,)
        assert (metrics.npu_at_max_error, metrics.golden_at_max_error) == (2.0, 0.0)


def test_an_empty_tensor_has_no_metrics() -> None:
    empty = np.empty(0, np.float32)
    first = first_pass(empty, empty)
    new_kernel().add_block(first, empty, empty, 0)
    metrics, npu, golden = finish(first, second_pass(first, empty, empty), (0, 3))
    assert metrics is None
    assert (npu.count, golden.count) == (0, 0)
    assert math.isnan(npu.mean)


def test_one_kernel_for_many_tensors() -> None:
    """Temporaries of one tensor must not show in the next, whatever their sizes and types."""
    kernel = new_kernel()
    tensors = [
        (5000, "normal", 0), (3, "relu", 1), (70_000, "far from zero", 1), (1024, "tiny", 0), (2048, "constant", 0),
        (2048, "integers", 1), (1500, "zeros", 0), (4096, "relu", 0),
    ]  # fmt: skip
    for size, kind, double in tensors:
        x, y = make(kind, "rounded", size, np.dtype(np.float64 if double else np.float32), size)
        first = first_pass(x, y, kernel=kernel)
        metrics, npu, golden = finish(first, second_pass(first, x, y, kernel=kernel), (size,))
        assert metrics is not None
        check_metrics(metrics, x, y)
        check_summary(npu, x)
        check_summary(golden, y)


@settings(deadline=None)
@given(shape=st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple), data=st.data())
def test_unravel(shape: tuple[int, ...], data: st.DataObject) -> None:
    position = data.draw(st.integers(0, math.prod(shape) - 1))
    index = unravel(position, shape)
    assert index == tuple(int(i) for i in np.unravel_index(position, shape))
    assert ravel(index, shape) == position
    assert unravel(-1, shape) is None


# ---- float64 whose squares leave its range


def check_scaled(x: Array, y: Array, x_power: int, y_power: int) -> None:
    """Metrics of both sides times powers of two against those of the sides themselves, which are of ordinary size."""
    a, b = x * 2.0**x_power, y * 2.0**y_power
    metrics, npu, golden = compare(a, b)
    plain, plain_npu, plain_golden = compare(x, y)
    assert metrics.cosine == pytest.approx(plain.cosine, abs=1e-12)
    assert metrics.kullback_leibler_divergence == pytest.approx(plain.kullback_leibler_divergence, rel=1e-9)
    for found, expected, power in ((npu, plain_npu, x_power), (golden, plain_golden, y_power)):
        assert found.mean == pytest.approx(expected.mean * 2.0**power, rel=1e-9)
        assert found.std == pytest.approx(expected.std * 2.0**power, rel=1e-9)
        assert (found.minimum, found.zero_count) == (expected.minimum * 2.0**power, expected.zero_count)
    if x_power == y_power:
        scale = 2.0**x_power
        assert metrics.max_absolute_error == plain.max_absolute_error * scale
        assert metrics.max_error_index == plain.max_error_index
        assert metrics.mean_absolute_error == pytest.approx(plain.mean_absolute_error * scale, rel=1e-9)
        assert metrics.root_mean_square_error == pytest.approx(plain.root_mean_square_error * scale, rel=1e-9)
        assert metrics.relative_euclidean_distance == pytest.approx(plain.relative_euclidean_distance, rel=1e-9)
    if x_power == y_power > 0:
        assert metrics.mean_relative_error == pytest.approx(plain.mean_relative_error, rel=1e-9)


@pytest.mark.parametrize("size", [2, 1500, 70_000])
@pytest.mark.parametrize("powers", [(1000, 1000), (-1000, -1000), (1000, 0), (0, 1000), (-1000, 0), (0, -1000)])
def test_values_whose_squares_leave_the_range(size: int, powers: tuple[int, int]) -> None:
    rng = np.random.default_rng(size)
    y = rng.normal(size=size)
    for x in (y + rng.normal(size=size) * 0.01, -y):
        check_scaled(x, y, *powers)
    check_scaled(5 + y, 1000 + y, *powers)


@pytest.mark.parametrize("size", [1, 2, 1024, 3000])
def test_a_huge_value_against_zero(size: int) -> None:
    x, y = np.full(size, 1e300), np.zeros(size)
    metrics, npu, _ = compare(x, y)
    assert (metrics.max_absolute_error, metrics.max_relative_error, metrics.accumulated_relative_error) == (1e300, 0, 0)
    assert metrics.mean_absolute_error == pytest.approx(1e300)
    assert metrics.root_mean_square_error == pytest.approx(1e300)
    assert metrics.relative_euclidean_distance == 0
    assert not metrics.both_zero
    assert npu.mean == pytest.approx(1e300)
    assert npu.std == pytest.approx(0, abs=1e285)


def test_the_largest_floats_of_opposite_signs() -> None:
    """Their difference is no float64 any more, which inf says; nothing is NaN and nothing fails."""
    largest = float(np.finfo(np.float64).max)
    for size in (2, 2048):
        x, y = np.full(size, largest), np.full(size, -largest)
        x[1], y[1] = 0.0, 0.0
        metrics, npu, golden = compare(x, y)
        assert metrics.max_absolute_error == math.inf
        assert metrics.max_error_index == (0,)
        assert metrics.cosine == pytest.approx(-1)
        assert metrics.relative_euclidean_distance == pytest.approx(2)
        assert not math.isnan(metrics.kullback_leibler_divergence)
        assert npu.mean == pytest.approx(largest * ((size - 1) / size))
        assert golden.mean == pytest.approx(-npu.mean)
        assert math.isfinite(npu.std)


def test_a_small_error_of_huge_values_is_not_lost() -> None:
    x = np.array([1e300, 1.0, 2.0])
    y = np.array([1e300, 1.5, 2.0])
    metrics, _, _ = compare(x, y)
    assert metrics.max_absolute_error == 0.5
    assert metrics.mean_absolute_error == pytest.approx(0.5 / 3)
    assert metrics.root_mean_square_error == pytest.approx(0.5 / math.sqrt(3))
    assert metrics.relative_euclidean_distance == pytest.approx(5e-301)


def test_parts_of_a_tensor_of_huge_values_add_up() -> None:
    rng = np.random.default_rng(4)
    y = rng.normal(size=5000)
    y[3000:] *= 1e300
    x = y * (1 + rng.normal(size=y.size) * 1e-3)
    first, second = Sums(), KlSums()
    borders = [0, 1000, 2500, 5000]
    for start, stop in pairwise(borders):
        first.add(first_pass(x[start:stop], y[start:stop], start=start))
    for start, stop in pairwise(borders):
        second.add(second_pass(first, x[start:stop], y[start:stop]))
    metrics, npu, _ = finish(first, second, y.shape)
    whole, whole_npu, _ = compare(x, y)
    assert metrics is not None
    assert metrics.cosine == pytest.approx(whole.cosine)
    assert metrics.root_mean_square_error == pytest.approx(whole.root_mean_square_error)
    assert npu.std == pytest.approx(whole_npu.std)
    assert npu.std == pytest.approx(float((x / 1e300).std()) * 1e300)


# ---- 64-bit integers, which float64 cannot hold


@pytest.mark.parametrize("size", [5, 1024, 70_000])
@pytest.mark.parametrize("kinds", [("i8", "i8"), ("u8", "u8"), ("i8", "u8"), ("u8", "i8")])
def test_errors_of_large_integers_are_exact(kinds: tuple[str, str], size: int) -> None:
    y = (np.arange(size) + (1 << 60)).astype(kinds[1])
    x = y.astype(kinds[0])
    x[size // 2] += np.array(3).astype(kinds[0])
    x[-1] -= np.array(1).astype(kinds[0])
    metrics, npu, golden = compare(x, y)
    assert metrics.max_absolute_error == 3
    assert metrics.max_error_index == (size // 2,)
    assert metrics.mean_absolute_error == pytest.approx(4 / size)
    assert metrics.relative_euclidean_distance > 0
    assert (npu.count, golden.zero_count) == (size, 0)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.array([1 << 63, 0], np.uint64), np.array([-(1 << 63), 5], np.int64)),
        (np.array([(1 << 64) - 1, 0], np.uint64), np.array([0, 1], np.uint64)),
        (np.array([(1 << 63) - 1, 7], np.int64), np.array([-(1 << 63), 7], np.int64)),
        (np.array([-1, 7], np.int64), np.array([(1 << 64) - 1, 7], np.uint64)),
    ],
)
def test_differences_of_integers_that_no_integer_type_holds(x: Array, y: Array) -> None:
    exact = [abs(int(a) - int(b)) for a, b in zip(x, y, strict=True)]
    metrics, _, _ = compare(x, y)
    assert metrics.max_absolute_error == pytest.approx(max(exact), rel=1e-15)
    assert metrics.mean_absolute_error == pytest.approx(sum(exact) / 2, rel=1e-15)


def test_small_integers_give_the_metrics_of_floats() -> None:
    rng = np.random.default_rng(6)
    x, y = rng.integers(-99, 99, (2, 5000))
    x, y = x.astype(np.int64), y.astype(np.int64)
    found, expected = compare(x, y), compare(x.astype(np.float64), y.astype(np.float64))
    for part, wanted in ((found[0], expected[0]), (found[1], expected[1]), (found[2], expected[2])):
        for one, other in zip(astuple(part), astuple(wanted), strict=True):
            assert one == (pytest.approx(other, rel=1e-13) if isinstance(other, float) else other)


def test_the_range_of_a_block_is_that_of_its_finite_values() -> None:
    kernel = new_kernel()
    x = np.array([3.5, -2.25, 0.0], np.float32)
    broken = np.array([np.nan, 7.0, -np.inf], np.float32)
    nothing = np.full(3, np.nan, np.float32)
    for block, wanted in ((x, (-2.25, 3.5)), (broken, (7.0, 7.0)), (nothing, (np.inf, -np.inf)), (x, (-2.25, 3.5))):
        assert kernel.finite_range(block) == wanted
        assert kernel.add_block(Sums(), block, x, 0) in (None, wanted)
        assert kernel.finite_range(block) == wanted
        kernel.add_block(Sums(), x, block, 0)
        assert kernel.finite_range(block) == wanted


def test_a_block_that_is_filled_anew_is_not_taken_for_the_old_one() -> None:
    """As buffers are, by the next block."""
    kernel = new_kernel()
    block = np.array([3.5, -2.25, 0.0], np.float32)
    assert kernel.add_block(Sums(), block, block, 0) in (None, (-2.25, 3.5))
    block[:] = 1.0, 2.0, 9.0
    assert kernel.finite_range(block) == (1.0, 9.0)


def test_tensors_do_not_share_what_a_kernel_knows_of_the_first_pass() -> None:
    kernel = new_kernel()
    pairs = [
        (np.linspace(low, low + span, 50), np.linspace(low, low + span * 1.1, 50)) for low, span in ((0, 1), (5, 90))
    ]
    firsts = [first_pass(x, y) for x, y in pairs]
    alone = [second_pass(first, x, y) for first, (x, y) in zip(firsts, pairs, strict=True)]
    for _ in range(2):
        for first, (x, y), wanted in zip(firsts, pairs, alone, strict=True):
            assert second_pass(first, x, y, kernel=kernel) == wanted


def test_addresses_are_those_of_numpy() -> None:
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    frozen = whole.copy()
    frozen.flags.writeable = False
    arrays: list[Array] = [whole, whole[1:], whole[:, 1], whole.T, whole[:0], frozen, np.array(1.0)]
    for array in arrays:
        assert address(array) == array.ctypes.data
