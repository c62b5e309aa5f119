"""What is added up over the elements of a pair: sums of one side, of both, and of the second pass.

Those of the parts of a tensor add up, so one tensor can be split over workers. `SecondTask` is what the second pass has
to know of the sums of the first: ranges, scales and floors of both sides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from math import frexp, inf, isfinite, log, log1p, nan, sqrt

import numpy as np

from precision_tool.lib.model.comparison import Metrics, Summary

#: Largest magnitudes of a tensor between which sums of squares are in float64's range, however large the tensor.
SMALLEST_DOUBLE, LARGEST_DOUBLE = 1e-140, 1e140
#: Brings sums of relative errors, of however many elements, into float64's range.
RELATIVE_SCALE = 2.0**-100


def _is_extreme(size: float) -> bool:
    return size != 0 and not SMALLEST_DOUBLE < size < LARGEST_DOUBLE


def _scale(size: float) -> float:
    """Return the power of two that brings `size` to about 1 if it is extreme, else 1: multiplication by it is exact."""
    if not _is_extreme(size):
        return 1.0
    exponent = frexp(min(size, float(np.finfo(np.float64).max)))[1]
    return float(2.0 ** max(-1022, min(1022, -exponent)))


@dataclass(slots=True)
class SideSums:
    """Running sums of one side over its finite values; `deviation_squares` is Σ (value - mean)².

    Of 64-bit integers total, minimum and maximum are Python's own, which are exact.
    """

    count: int = 0
    total: float = 0
    deviation_squares: float = 0.0
    minimum: float = inf
    maximum: float = -inf
    nan_count: int = 0
    positive_inf_count: int = 0
    negative_inf_count: int = 0
    zero_count: int = 0

    def add(self, other: SideSums) -> None:
        """Add the sums of another part of the tensor."""
        self.add_values(
            other.count, other.total, other.deviation_squares, other.minimum, other.maximum, other.zero_count
        )
        for name in ("nan_count", "positive_inf_count", "negative_inf_count"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def add_values(
        self, count: int, total: float, deviation_squares: float, low: float, high: float, zeros: int
    ) -> None:
        """Add finite values by their sums; both sets' deviations are brought to the common mean (Chan et al. 1979)."""
        if self.count and count:
            apart = (self.total * count - total * self.count) / (self.count * count)
            self.deviation_squares += apart * apart * (self.count * count / (self.count + count))
        self.deviation_squares += deviation_squares
        self.count += count
        self.total += total
        self.minimum = min(self.minimum, low)
        self.maximum = max(self.maximum, high)
        self.zero_count += zeros

    @property
    def mean(self) -> float:
        """Mean of the finite values, nan if there are none."""
        return self.total / self.count if self.count else nan

    @property
    def variance(self) -> float:
        """Population variance of the finite values, nan if there are none."""
        return self.deviation_squares / self.count if self.count else nan

    @property
    def is_extreme(self) -> bool:
        """Whether the squares, or the sum, leave float64's range: the second pass sums them up anew, scaled."""
        return _is_extreme(max(-self.minimum, self.maximum, 0.0))

    @property
    def scale(self) -> float:
        """The factor of the values where their squares, or their sum, leave float64's range."""
        return _scale(max(-self.minimum, self.maximum, 0.0))

    @property
    def centre(self) -> float:
        """The middle, from which deviations of extreme values are taken."""
        return self.minimum / 2 + self.maximum / 2


@dataclass(slots=True)
class Sums:
    """Everything the first pass adds up. Pair sums run over the elements that are finite on both sides."""

    npu: SideSums = field(default_factory=SideSums)
    golden: SideSums = field(default_factory=SideSums)
    size: int = 0
    count: int = 0
    dot: float = 0.0
    npu_squares: float = 0.0
    golden_squares: float = 0.0
    error_squares: float = 0.0
    error_total: float = 0.0
    relative_total: float = 0.0
    #: The same times RELATIVE_SCALE, for a mean in range of a sum that is not.
    scaled_relative_total: float = 0.0
    max_error: float = -1.0
    max_error_at: int = -1
    npu_at_max: float = nan
    golden_at_max: float = nan
    max_relative: float = 0.0
    mismatches: int = 0
    nan_mismatches: int = 0
    first_mismatch: int = -1
    first_mismatch_values: tuple[float, float] = (nan, nan)
    pair_npu_range: tuple[float, float] = (inf, -inf)
    pair_golden_range: tuple[float, float] = (inf, -inf)

    @property
    def error_scale(self) -> float:
        """The factor of the errors where their squares leave float64's range."""
        return _scale(max(self.max_error, 0.0))

    @property
    def is_extreme(self) -> bool:
        """Whether products or squares leave float64's range; the second pass sums them up anew, scaled."""
        return self.npu.is_extreme or self.golden.is_extreme or _is_extreme(max(self.max_error, 0.0))

    def add_ranges(self, x_low: float, x_high: float, y_low: float, y_high: float) -> None:
        """Widens the ranges of the pairs' values."""
        self.pair_npu_range = (min(self.pair_npu_range[0], x_low), max(self.pair_npu_range[1], x_high))
        self.pair_golden_range = (min(self.pair_golden_range[0], y_low), max(self.pair_golden_range[1], y_high))

    def add_relative(self, total: float) -> None:
        """Add a finite sum of relative errors."""
        self.relative_total += total
        self.scaled_relative_total += total * RELATIVE_SCALE

    def add(self, other: Sums) -> None:
        """Add the sums of another part of the tensor; `other` must lie behind this part."""
        self.npu.add(other.npu)
        self.golden.add(other.golden)
        if other.max_error > self.max_error:
            self.max_error, self.max_error_at = other.max_error, other.max_error_at
            self.npu_at_max, self.golden_at_max = other.npu_at_max, other.golden_at_max
        if self.first_mismatch < 0:
            self.first_mismatch, self.first_mismatch_values = other.first_mismatch, other.first_mismatch_values
        self.max_relative = max(self.max_relative, other.max_relative)
        for name in ("pair_npu_range", "pair_golden_range"):
            (low, high), (other_low, other_high) = getattr(self, name), getattr(other, name)
            setattr(self, name, (min(low, other_low), max(high, other_high)))
        for name in _ADDED:
            setattr(self, name, getattr(self, name) + getattr(other, name))


_ADDED = (
    "size", "count", "dot", "npu_squares", "golden_squares", "error_squares", "error_total", "relative_total",
    "scaled_relative_total", "mismatches", "nan_mismatches",
)  # fmt: skip


@dataclass(slots=True)
class KlSums:
    """The second pass: scaled and clamped values p and q, and what the first pass could not add up.

    These are, where squares leave float64's range, deviations, products and errors of values times `SideSums.scale`
    and `Sums.error_scale`.
    """

    p: float = 0.0
    q: float = 0.0
    #: Σ q - p: of sides that are nearly the same it keeps the digits that Σ q and Σ p lose.
    apart: float = 0.0
    p_log_ratio: float = 0.0
    npu_deviation: float = 0.0
    npu_deviation_squares: float = 0.0
    golden_deviation: float = 0.0
    golden_deviation_squares: float = 0.0
    dot: float = 0.0
    npu_squares: float = 0.0
    golden_squares: float = 0.0
    error_squares: float = 0.0
    error_total: float = 0.0

    def add(self, other: KlSums) -> None:
        """Add the sums of another part of the tensor."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))


# --- parameters of the second pass ---------------------------------------------------------------------------------


#: Lower clamp of the scaled values in the KL divergence: float32's epsilon.
KL_FLOOR = float(np.finfo(np.float32).eps)
#: Spans of both sides between which their quotients, down to the floor, are in float32's range.
_SMALLEST_SPAN, _LARGEST_SPAN = 1e-15, 1e15

#: The least and the largest of some values.
Extent = tuple[float, float]
#: Those of the NPU side and of the benchmark.
Ranges = tuple[Extent, Extent]


@dataclass(frozen=True, slots=True)
class SecondTask:
    """The parameters of the second pass from the first one's sums, the same for all blocks.

    The blocks are taken as they are where it `is_plain`, in float64 where the spans are wide or small (`is_wide`).
    """

    first: Sums
    are_floats: bool
    ranges: Ranges
    floors: tuple[float, float]
    is_plain: bool
    is_wide: bool


def second_task(first: Sums, are_floats: bool) -> SecondTask:
    ranges = first.pair_npu_range, first.pair_golden_range
    if not are_floats:
        (x_low, x_high), (y_low, y_high) = ranges
        ranges = (0.0, float(x_high - x_low)), (0.0, float(y_high - y_low))
    is_extreme = first.is_extreme
    if is_extreme:
        ranges = _scaled_ranges(first)
    spans = [high - low for low, high in ranges if high > low]
    is_wide = bool(spans) and not _SMALLEST_SPAN < min(spans) <= max(spans) < _LARGEST_SPAN
    return SecondTask(
        first=first,
        are_floats=are_floats,
        ranges=ranges,
        floors=_floors(first, ranges),
        is_plain=not is_extreme and not is_wide and first.count == first.size,
        is_wide=is_wide,
    )


def _scaled_ranges(first: Sums) -> Ranges:
    """Return the ranges of the pairs' values, scaled as the second pass sees them."""
    npu, golden = first.npu.scale, first.golden.scale
    (x_low, x_high), (y_low, y_high) = first.pair_npu_range, first.pair_golden_range
    return (x_low * npu, x_high * npu), (y_low * golden, y_high * golden)


def _floors(first: Sums, ranges: Ranges) -> tuple[float, float]:
    """Lower clamps of both sides' values, less their minimum, in the KL divergence.

    A constant tensor is all floor. Any floor will do for it; the mean of the other side keeps the logarithms of the
    quotients small, which then lose nothing.
    """
    spans = [high - low for low, high in ranges]
    floors = [KL_FLOOR * span for span in spans]
    for side, other in ((0, 1), (1, 0)):
        if not spans[side] > 0:
            values = (first.npu, first.golden)[other]
            # Of extreme values inf or nan: then the span or the floor will do.
            mean = (values.mean - values.minimum) * values.scale
            floors[side] = min(max(floors[other], mean), spans[other]) if spans[other] > 0 else 1.0
    return floors[0], floors[1]


# --- metrics (FORMATS.md §5) and summaries ---


#: Squares of errors, of the product of the sides' lengths, up to which these tell the cosine best.
_NEAR = 2.0**-10


def cosine(sums: Sums | KlSums) -> float:
    """Cosine of the angle between the sides: 1 if both are all zero, nan if only one is; never above 1."""
    if sums.npu_squares == 0 and sums.golden_squares == 0:
        return 1.0
    if sums.npu_squares == 0 or sums.golden_squares == 0:
        return nan
    return max(-1.0, min(1.0, sums.dot / (sqrt(sums.npu_squares) * sqrt(sums.golden_squares))))


def _near_cosine(first: Sums) -> float | None:
    """Return the cosine of sides that are nearly the same; None for others.

    By the law of cosines: the small squares of the errors keep the digits that float32's sums of products lose.
    """
    product = sqrt(first.npu_squares) * sqrt(first.golden_squares)
    if first.is_extreme or not 0 < product < inf or first.error_squares > _NEAR * product:
        return None
    lengths = sqrt(first.npu_squares) - sqrt(first.golden_squares)
    return 1 - max(0.0, first.error_squares - lengths * lengths) / (2 * product)


def kl_divergence(second: KlSums) -> float:
    """Σ p ln(p/q) of p and q normalised to sum 1, from the sums before normalising."""
    if second.p <= 0 or second.q <= 0:
        return nan
    is_near = abs(second.apart) < second.p / 2
    of_sums = log1p(second.apart / second.p) if is_near else log(second.q / second.p)
    # Of nearly equal sides rounding may take it below zero, which it never is.
    return max(second.p_log_ratio * log(2) / second.p + of_sums, 0.0)


def summarize(side: SideSums, size: int, deviation: float, deviation_squares: float) -> Summary:
    """Return the summary of one side of `size` elements."""
    mean, std = side.mean, nan
    if side.count:
        variance = side.variance
        if side.is_extreme:
            offset = deviation / side.count
            variance = max(deviation_squares / side.count - offset * offset, 0.0)
            mean = side.centre + offset / side.scale
        std = sqrt(variance) / side.scale
    return Summary(
        count=size,
        minimum=side.minimum if side.count else nan,
        maximum=side.maximum if side.count else nan,
        mean=mean,
        std=std,
        nan_count=side.nan_count,
        positive_inf_count=side.positive_inf_count,
        negative_inf_count=side.negative_inf_count,
        zero_count=side.zero_count,
    )


def finish(first: Sums, second: KlSums, shape: tuple[int, ...]) -> tuple[Metrics | None, Summary, Summary]:
    """Metrics and both summaries. `shape` turns flat positions into indices; empty tensors have no metrics."""
    npu = summarize(first.npu, first.size, second.npu_deviation, second.npu_deviation_squares)
    golden = summarize(first.golden, first.size, second.golden_deviation, second.golden_deviation_squares)
    if not first.size:
        return None, npu, golden
    if first.mismatches:
        return _mismatch_metrics(first, shape), npu, golden
    return _metrics(first, second, shape), npu, golden


def _mismatch_metrics(first: Sums, shape: tuple[int, ...]) -> Metrics:
    """Metrics of a tensor with elements that are finite on one side only.

    All are nan, or inf where no NaN is involved; the summaries and the count of mismatches tell the rest.
    """
    error = nan if first.nan_mismatches else inf
    index = unravel(first.first_mismatch, shape)
    return Metrics(
        cosine=nan,
        max_absolute_error=error,
        accumulated_relative_error=error,
        relative_euclidean_distance=error,
        kullback_leibler_divergence=nan,
        mean_absolute_error=error,
        root_mean_square_error=error,
        max_relative_error=error,
        mean_relative_error=error,
        max_error_index=index,
        npu_at_max_error=first.first_mismatch_values[0],
        golden_at_max_error=first.first_mismatch_values[1],
        non_finite_mismatches=first.mismatches,
        first_mismatch_index=index,
        is_scalar=first.size == 1,
    )


def _metrics(first: Sums, second: KlSums, shape: tuple[int, ...]) -> Metrics:
    """Metrics over the finite elements; if there are none, every element is the same NaN or Inf on both sides."""
    count = first.count
    sums: Sums | KlSums = first
    error_scale = golden_scale = 1.0
    if first.is_extreme:
        sums, error_scale, golden_scale = second, first.error_scale, first.golden.scale
    distance, golden_norm = sqrt(sums.error_squares), sqrt(sums.golden_squares)
    near = _near_cosine(first)
    return Metrics(
        cosine=1.0 if first.size == 1 or not count else cosine(sums) if near is None else near,
        max_absolute_error=max(first.max_error, 0.0),
        accumulated_relative_error=first.relative_total,
        relative_euclidean_distance=distance / golden_norm * (golden_scale / error_scale) if golden_norm else 0.0,
        kullback_leibler_divergence=kl_divergence(second) if count else 0.0,
        mean_absolute_error=sums.error_total / max(count, 1) / error_scale,
        root_mean_square_error=distance / sqrt(max(count, 1)) / error_scale,
        max_relative_error=first.max_relative,
        mean_relative_error=_mean_relative(first),
        max_error_index=unravel(first.max_error_at, shape) if first.max_error > 0 else None,
        npu_at_max_error=first.npu_at_max,
        golden_at_max_error=first.golden_at_max,
        is_scalar=first.size == 1,
        both_zero=count > 0 and sums.npu_squares == 0 and sums.golden_squares == 0,
    )


def _mean_relative(first: Sums) -> float:
    count = max(first.count, 1)
    if isfinite(first.relative_total):
        return first.relative_total / count
    return first.scaled_relative_total / count / RELATIVE_SCALE


def ravel(index: Iterable[int], shape: tuple[int, ...]) -> int:
    """Return the flat position of an index in `shape`."""
    position = 0
    for extent, at in zip(shape, index, strict=True):
        position = position * extent + at
    return position


def unravel(position: int, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the index of the flat `position` in `shape`, None for no position."""
    if position < 0:
        return None
    index = []
    for extent in reversed(shape):
        index.append(position % extent if extent else 0)
        position //= extent or 1
    return tuple(reversed(index))
