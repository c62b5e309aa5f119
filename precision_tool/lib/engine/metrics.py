"""The ten metrics of FORMATS.md §5, from two streams of blocks, in one pass and a second for KL divergence.

Blocks are float32 (float64 for types float32 cannot hold, integers where both sides are of 64 bits). Sums are
taken in float32 over short rows and in float64 over rows and blocks, so that the result does not depend on the
tensor's size. `Sums` and `KlSums` of parts of a tensor add up, so one tensor can be split over workers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import frexp, inf, isfinite, log, log1p, nan, sqrt
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from precision_tool.lib.model.comparison import ZERO_BELOW, Metrics, Summary
from precision_tool.lib.native.library import ErrorsAsked, ErrorsFound
from precision_tool.lib.numbers.decode import Floats, Numbers, as_float64

#: Lower clamp of the scaled values in the KL divergence: float32's epsilon.
KL_FLOOR = float(np.finfo(np.float32).eps)
#: Items of one row: float32 sums over this many lose nothing that six printed digits show.
_ROW = 1024
#: Sums of what is mostly one small value beside a few large ones are of shorter rows: in a long one every small value
#: that is added to a large one is rounded to the same side, which some processors' dot products do 16 times a row.
_SHORT_ROW = 128
#: A block's variance below this share of its squared mean is computed around the mean: sums of squares lose its digits.
_CANCELLED = 0.25
#: Largest magnitudes of a block between which a row's sum of squares, errors' too, is right in float32.
SMALLEST, LARGEST = 1e-12, 1e17
#: Spans of both sides between which their quotients, down to the floor, are in float32's range.
_SMALLEST_SPAN, _LARGEST_SPAN = 1e-15, 1e15
#: Largest magnitudes of a tensor between which sums of squares are in float64's range, however large the tensor.
SMALLEST_DOUBLE, LARGEST_DOUBLE = 1e-140, 1e140
#: Larger errors leave float64's range when they are divided by ZERO_BELOW.
_LARGEST_ERROR = 1e290
#: Brings sums of relative errors, of however many elements, into float64's range.
_RELATIVE_SCALE = 2.0**-100
#: Squares of errors, of the product of the sides' lengths, up to which these tell the cosine best.
_NEAR = 2.0**-10


def _is_extreme(size: float) -> bool:
    return size != 0 and not SMALLEST_DOUBLE < size < LARGEST_DOUBLE


def _scale(size: float) -> float:
    """The power of two that brings `size` to about 1 if it is extreme, else 1: multiplication by it is exact."""
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
        """Adds the sums of another part of the tensor."""
        self.add_values(
            other.count, other.total, other.deviation_squares, other.minimum, other.maximum, other.zero_count
        )
        for name in ("nan_count", "positive_inf_count", "negative_inf_count"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def add_values(
        self, count: int, total: float, deviation_squares: float, low: float, high: float, zeros: int
    ) -> None:
        """Adds finite values by their sums; both sets' deviations are brought to the common mean (Chan et al. 1979)."""
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
        """True if the squares, or the sum, leave float64's range: the second pass sums them up anew, scaled."""
        return self.scale != 1

    @property
    def scale(self) -> float:
        """What the values are multiplied by where their squares, or their sum, leave float64's range."""
        return _scale(max(-self.minimum, self.maximum, 0.0))

    @property
    def centre(self) -> float:
        """What deviations of extreme values are taken from: the middle."""
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
    #: The same times _RELATIVE_SCALE, for a mean in range of a sum that is not.
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
        """What the errors are multiplied by where their squares leave float64's range."""
        return _scale(max(self.max_error, 0.0))

    @property
    def is_extreme(self) -> bool:
        """True if products or squares leave float64's range; the second pass sums them up anew, scaled."""
        return self.npu.is_extreme or self.golden.is_extreme or self.error_scale != 1

    def add_ranges(self, x_low: float, x_high: float, y_low: float, y_high: float) -> None:
        """Widens the ranges of the pairs' values."""
        self.pair_npu_range = (min(self.pair_npu_range[0], x_low), max(self.pair_npu_range[1], x_high))
        self.pair_golden_range = (min(self.pair_golden_range[0], y_low), max(self.pair_golden_range[1], y_high))

    def add_relative(self, total: float) -> None:
        """Adds a finite sum of relative errors."""
        self.relative_total += total
        self.scaled_relative_total += total * _RELATIVE_SCALE

    def add(self, other: Sums) -> None:
        """Adds the sums of another part of the tensor; `other` must lie behind this part."""
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
        """Adds the sums of another part of the tensor."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))


class _Buffers:
    """Temporaries for blocks of one type, made for the largest block seen."""

    def __init__(self, capacity: int, dtype: np.dtype[Any]) -> None:
        self.capacity = capacity
        self.one: Floats = np.empty(capacity, dtype)
        self.two: Floats = np.empty(capacity, dtype)
        self.flags = np.empty(capacity, np.bool_)
        # As arrays: numpy's maximum with a scalar takes three times as long as with an array.
        self.zero_floor: Floats = np.full(capacity, ZERO_BELOW, dtype)
        self._floors: list[tuple[float, Floats]] = [(nan, np.empty(capacity, dtype)) for _ in range(2)]
        #: Results of up to eight sums, one line each, one item a row.
        self.sums: Floats = np.empty((8, capacity // _SHORT_ROW + 1, 1, 1), dtype)

    def floor(self, side: int, value: float) -> Floats:
        """An array of `value`, which stays the same over the blocks of one tensor."""
        known, array = self._floors[side]
        if known != value:
            array.fill(value)
            self._floors[side] = (value, array)
        return array


@dataclass(frozen=True, slots=True)
class ErrorsCounted:
    """What was found of the errors of a block, and the places of those that may be among the worst.

    No places where there are too many.
    """

    found: ErrorsFound
    worst: npt.NDArray[np.int32] | None
    worst_relative: npt.NDArray[np.int32] | None


class Kernel:
    """Adds blocks to sums. One kernel per worker: it owns the temporaries, so blocks cost no allocation.

    The order and number of numpy calls is what makes it fast: a block and its temporaries stay in the cache.
    """

    def __init__(self) -> None:
        self._buffers: dict[np.dtype[Any], _Buffers] = {}
        self._ones = {kind: np.ones((_ROW, 1), kind) for kind in (np.dtype(np.float32), np.dtype(np.float64))}

    def _temporaries(self, like: Floats) -> _Buffers:
        buffers = self._buffers.get(like.dtype)
        if buffers is None or buffers.capacity < like.size:
            buffers = self._buffers[like.dtype] = _Buffers(like.size, like.dtype)
        return buffers

    def _sums(self, buffers: _Buffers, *factors: tuple[Floats, Floats | None], row: int = _ROW) -> list[float]:
        """The dot product of each pair, or the sum where the second is None: exact to float64 over rows.

        Dot products of short rows are what BLAS neither splits over threads nor sums naively.
        """
        size = factors[0][0].size
        width = row if size % row == 0 else size
        rows = size // width
        ones = self._ones[factors[0][0].dtype][:width] if width <= _ROW else np.ones((width, 1), factors[0][0].dtype)
        out = buffers.sums[: len(factors), :rows]
        for line, (a, b) in enumerate(factors):
            np.matmul(a.reshape(rows, 1, width), ones if b is None else b.reshape(rows, width, 1), out=out[line])
        total: list[float] = np.add.reduce(out, axis=(1, 2, 3), dtype=np.float64).tolist()
        return total

    # -- first pass -------------------------------------------------------------------------------------------------

    def add_block(self, sums: Sums, x: Numbers, y: Numbers, offset: int) -> None:
        """Adds a block of the NPU side `x` and the benchmark `y`; `offset` is the index of its first element."""
        whole = x.size // _ROW * _ROW
        if not (_are_floats(x) and _are_floats(y)):
            for start, stop in ((0, whole), (whole, x.size)):
                if start < stop:
                    self._add_integers(sums, x[start:stop], y[start:stop], offset + start)
            return
        with np.errstate(all="ignore"):
            if whole:
                self._add_rows(sums, x[:whole], y[:whole], offset)
            if whole < x.size:  # less than a row: in float64, so that its one sum loses nothing
                self._add_rows(sums, x[whole:].astype(np.float64), y[whole:].astype(np.float64), offset + whole)

    def _add_integers(self, sums: Sums, x: Numbers, y: Numbers, offset: int) -> None:
        """Adds a block of 64-bit integers: in float64, but with the differences of the integers themselves."""
        a, b = x.astype(np.float64), y.astype(np.float64)
        sums.size += x.size
        _add_integers(sums.npu, x)
        _add_integers(sums.golden, y)
        ranges = (int(x.min()), int(x.max()), int(y.min()), int(y.max()))
        self._add_finite(sums, a, b, offset, ranges, both=False, exact_error=integer_errors(x, y))

    def _add_rows(self, sums: Sums, x: Floats, y: Floats, offset: int) -> None:
        ranges = _ranges(x, y)
        sums.size += x.size
        if not all(map(isfinite, ranges)):
            self._add_non_finite(sums, x, y, offset)
        elif x.dtype == np.float32 and not _squares_fit(ranges):
            self._add_finite(sums, x.astype(np.float64), y.astype(np.float64), offset, ranges, both=True)
        else:
            self._add_finite(sums, x, y, offset, ranges, both=True)

    def _add_finite(
        self,
        sums: Sums,
        x: Floats,
        y: Floats,
        offset: int,
        ranges: tuple[float, float, float, float],
        both: bool,
        positions: npt.NDArray[np.integer[Any]] | None = None,
        exact_error: Floats | None = None,
    ) -> None:
        """Adds elements that are finite on both sides; `both` adds them to the two sides' own sums as well.

        `exact_error` is x - y where these were rounded.
        """
        buffers = self._temporaries(x)
        error, size, flags = buffers.one[: x.size], buffers.two[: x.size], buffers.flags[: x.size]
        x_low, x_high, y_low, y_high = ranges
        if exact_error is None:
            np.subtract(x, y, out=error)
        else:
            np.copyto(error, exact_error)
        dot, xx, yy, squares, x_total, y_total = self._sums(
            buffers, (x, y), (x, x), (y, y), (error, error), (x, None), (y, None)
        )
        if both:
            for side, a, rough, own, low, high in (
                (sums.npu, x, x_total, xx, x_low, x_high),
                (sums.golden, y, y_total, yy, y_low, y_high),
            ):
                np.equal(a, 0, out=flags)
                total, deviation = self._deviation(buffers, a, rough, own)
                side.add_values(a.size, total, deviation, low, high, int(np.count_nonzero(flags)))
        sums.count += x.size
        sums.dot += dot
        sums.npu_squares += xx
        sums.golden_squares += yy
        sums.add_ranges(x_low, x_high, y_low, y_high)

        np.abs(error, out=error)
        at = int(error.argmax())
        biggest = float(error[at])
        if biggest > sums.max_error:
            sums.max_error = biggest
            sums.max_error_at = offset + (at if positions is None else int(positions[at]))
            sums.npu_at_max, sums.golden_at_max = float(x[at]), float(y[at])
        if 0 < biggest < SMALLEST:  # sides so much alike that the squares of the errors vanish in float32
            squares = float(np.square(error, dtype=np.float64).sum())
        total = self._sums(buffers, (error, None))[0]
        np.abs(y, out=size)
        np.greater(size, ZERO_BELOW, out=flags)
        if not flags.all():
            # By multiplication: where= and putmask mispredict on half-zero tensors and cost seven times as much.
            if biggest > _LARGEST_ERROR:  # the quotient would be inf, and that times zero NaN
                np.copyto(error, 0, where=~flags)
            np.maximum(size, buffers.zero_floor[: x.size], out=size)
            np.divide(error, size, out=error)
            np.copyto(size, flags)
            np.multiply(error, size, out=error)
        else:
            np.divide(error, size, out=error)
        sums.error_squares += squares
        sums.error_total += total
        self._add_relative(sums, buffers, error)
        worst = int(error.argmax())
        relative = float(error[worst])
        if x.dtype == np.float32 and 0 < relative < inf:  # once more without float32's rounding
            relative = abs(float(x[worst]) - float(y[worst])) / abs(float(y[worst]))
        sums.max_relative = max(sums.max_relative, relative)

    def _deviation(self, buffers: _Buffers, a: Floats, total: float, squares: float) -> tuple[float, float]:
        """Σ a and Σ (a - mean)² of a block, given Σ a and Σ a²; both around the mean where that is far from zero."""
        mean = total / a.size
        deviation = squares - total * mean
        if not deviation < _CANCELLED * total * mean:
            return total, deviation
        centre = a.dtype.type(mean)
        centred = np.subtract(a, centre, out=buffers.two[: a.size])
        offset, around = self._sums(buffers, (centred, None), (centred, centred))
        return a.size * float(centre) + offset, max(around - offset * offset / a.size, 0.0)

    def _add_relative(self, sums: Sums, buffers: _Buffers, relative: Floats) -> None:
        total = self._sums(buffers, (relative, None))[0]
        if total == inf:
            sums.relative_total = inf
            sums.scaled_relative_total += float(np.sum(relative * _RELATIVE_SCALE, dtype=np.float64))
        else:
            sums.add_relative(total)

    def _add_non_finite(self, sums: Sums, x: Floats, y: Floats, offset: int) -> None:
        """A block with NaN or Inf: rare, so plain arrays in float64."""
        x, y = x.astype(np.float64), y.astype(np.float64)
        Kernel.add_side(self, sums.npu, x)
        Kernel.add_side(self, sums.golden, y)
        x_finite = np.isfinite(x)
        both = x_finite & np.isfinite(y)
        agree = (np.isnan(x) & np.isnan(y)) | ((x == y) & ~x_finite)
        wrong = np.flatnonzero(~(both | agree))
        if wrong.size:
            sums.mismatches += int(wrong.size)
            sums.nan_mismatches += int((np.isnan(x[wrong]) | np.isnan(y[wrong])).sum())
            if sums.first_mismatch < 0:
                sums.first_mismatch = offset + int(wrong[0])
                sums.first_mismatch_values = (float(x[wrong[0]]), float(y[wrong[0]]))
        positions = np.flatnonzero(both)
        if positions.size:
            self._add_extreme_pairs(sums, x[both], y[both], offset, positions)

    def _add_extreme_pairs(
        self, sums: Sums, x: Floats, y: Floats, offset: int, places: npt.NDArray[np.integer[Any]]
    ) -> None:
        """Adds pairs of a block at `places` that are finite on both sides, however large, without the sides' own."""
        with np.errstate(all="ignore"):
            self._add_finite(sums, x, y, offset, _ranges(x, y), both=False, positions=places)

    # -- second pass ------------------------------------------------------------------------------------------------

    def add_second(self, sums: KlSums, first: Sums, x: Numbers, y: Numbers) -> None:
        """Adds a block to the second pass, given the complete sums of the first."""
        ranges = first.pair_npu_range, first.pair_golden_range
        if _are_floats(x) and _are_floats(y):
            self._add_second(sums, first, x, y, ranges)
            return
        # Differences from the least integer hold what rounding the integers themselves would lose.
        (x_low, x_high), (y_low, y_high) = ranges
        from_zero = (0.0, float(x_high - x_low)), (0.0, float(y_high - y_low))
        self._add_second(sums, first, offsets(x, int(x_low)), offsets(y, int(y_low)), from_zero)

    def _add_second(self, sums: KlSums, first: Sums, x: Floats, y: Floats, ranges: Ranges) -> None:
        with np.errstate(all="ignore"):
            for side, a, name in ((first.npu, x, "npu"), (first.golden, y, "golden")):
                if side.is_extreme:
                    self._add_deviations(sums, side, a[np.isfinite(a)], name)
            if first.count < first.size:
                x, y = self._finite_pairs(x, y)
                if not x.size:
                    return
            if first.is_extreme:
                x, y = self._add_extreme(sums, first, x.astype(np.float64), y.astype(np.float64))
                ranges = _scaled_ranges(first)
            floors = _floors(first, ranges)
            spans = [high - low for low, high in ranges if high > low]
            if spans and not _SMALLEST_SPAN < min(spans) <= max(spans) < _LARGEST_SPAN:
                x, y = x.astype(np.float64), y.astype(np.float64)
            self._add_scaled(sums, ranges, floors, x, y)

    def _finite_pairs(self, x: Floats, y: Floats) -> tuple[Floats, Floats]:
        """The items that are finite on both sides."""
        finite = np.isfinite(x) & np.isfinite(y)
        return x[finite], y[finite]

    def _add_extreme(self, sums: KlSums, first: Sums, x: Floats, y: Floats) -> tuple[Floats, Floats]:
        """Adds products and errors of scaled values; both sides, scaled. Rare, so plain arrays."""
        error = np.abs(x * first.error_scale - y * first.error_scale)
        x, y = x * first.npu.scale, y * first.golden.scale
        sums.dot += float(np.dot(x, y))
        sums.npu_squares += float(np.dot(x, x))
        sums.golden_squares += float(np.dot(y, y))
        sums.error_squares += float(np.dot(error, error))
        sums.error_total += float(error.sum())
        return x, y

    def _add_scaled(self, sums: KlSums, ranges: Ranges, floors: tuple[float, float], x: Floats, y: Floats) -> None:
        """Adds p, q and p log2(p/q), not scaled to [0, 1]: normalising them to sum 1 takes any scale out again."""
        whole = x.size // _ROW * _ROW
        if whole:
            self._add_scaled_rows(sums, ranges, floors, x[:whole], y[:whole])
        if whole < x.size:
            self._add_scaled_rows(sums, ranges, floors, x[whole:].astype(np.float64), y[whole:].astype(np.float64))

    def _add_scaled_rows(self, sums: KlSums, ranges: Ranges, floors: tuple[float, float], x: Floats, y: Floats) -> None:
        buffers = self._temporaries(x)
        p, q = buffers.one[: x.size], buffers.two[: x.size]
        for side, (a, limits, out) in enumerate(((x, ranges[0], p), (y, ranges[1], q))):
            np.subtract(a, a.dtype.type(limits[0]), out=out)
            np.maximum(out, buffers.floor(side, floors[side])[: x.size], out=out)
        p_total, q_total = self._sums(buffers, (p, None), (q, None), row=_SHORT_ROW)
        sums.p += p_total
        sums.q += q_total
        sums.apart += q_total - p_total
        np.divide(p, q, out=q)
        np.log2(q, out=q)  # faster than log
        sums.p_log_ratio += self._sums(buffers, (p, q), row=_SHORT_ROW)[0]

    def _add_deviations(self, sums: KlSums, side: SideSums, a: Floats, name: str) -> None:
        for field_name, value in zip(("deviation", "deviation_squares"), deviations(side, a), strict=True):
            setattr(sums, f"{name}_{field_name}", getattr(sums, f"{name}_{field_name}") + value)

    # -- one side ---------------------------------------------------------------------------------------------------

    def add_side(self, side: SideSums, a: Numbers) -> None:
        """Adds values to the sums of one side, in float64; NaN and Inf are only counted."""
        if not _are_floats(a):
            _add_integers(side, a)
            return
        with np.errstate(all="ignore"):  # sums that leave float64's range are taken anew, scaled
            if not (isfinite(np.minimum.reduce(a)) and isfinite(np.maximum.reduce(a))):
                side.nan_count += int(np.isnan(a).sum())
                side.positive_inf_count += int(np.isposinf(a).sum())
                side.negative_inf_count += int(np.isneginf(a).sum())
                a = a[np.isfinite(a)]
            if a.size:
                low, high = float(np.minimum.reduce(a)), float(np.maximum.reduce(a))
                total = float(np.add.reduce(a, dtype=np.float64))
                centred = np.subtract(a, total / a.size, dtype=np.float64)
                zeros = a.size - int(np.count_nonzero(a))
                side.add_values(a.size, total, float(np.dot(centred, centred)), low, high, zeros)

    def add_bins(self, counts: npt.NDArray[np.int64], a: Numbers, low: float, high: float) -> None:
        """Adds values, of which the least and the largest finite one of all are told, to counts of equal bins.

        The last bin is closed; a constant is all in the first.
        """
        if _are_floats(a):
            a = as_float64(a)
            a = a[np.isfinite(a)]
        if high == low:
            counts[0] += a.size
            return
        if not _are_floats(a):
            a, low, high = offsets(a, int(low)), 0.0, float(high - low)
        if high - low == inf:  # halves of both are in range
            a, low, high = a / 2, low / 2, high / 2
        places = ((a - low) / (high - low) * counts.size).astype(np.intp)
        counts += np.bincount(np.minimum(places, counts.size - 1), minlength=counts.size)

    def count_errors(self, x: Numbers, y: Numbers, weights: Numbers, asked: ErrorsAsked) -> ErrorsCounted | None:
        """What is asked of the errors of a block without NaN and Inf, whose squares, of the largest one's, become the
        `weights`. None where numpy has to find it step by step."""
        return None


def _add_integers(side: SideSums, a: Numbers) -> None:
    """Adds 64-bit integers to the sums of one side, exactly where float64 would round them."""
    low, high = int(a.min()), int(a.max())
    above = a.view(np.uint64) - np.uint64(low % 2**64)
    # In halves, whose sums no block makes too large for 64 bits.
    total = (int((above >> np.uint64(32)).sum()) << 32) + int((above & np.uint64(0xFFFFFFFF)).sum())
    centred = above.astype(np.float64) - total / a.size
    deviation_squares = float(np.dot(centred, centred))
    side.add_values(a.size, low * a.size + total, deviation_squares, low, high, a.size - int(np.count_nonzero(a)))


def integer_errors(x: Numbers, y: Numbers) -> npt.NDArray[np.float64]:
    """x - y of 64-bit integers, from the integers themselves where the difference is small beside their rounding."""
    error = x.astype(np.float64) - y.astype(np.float64)
    # Integers are subtracted modulo 2**64, also signed from unsigned ones: right for all differences that fit.
    # For the others, rounding of the sides is nothing beside the difference.
    exact = (x.view(np.int64) - y.view(np.int64)).astype(np.float64)
    np.copyto(error, exact, where=np.abs(error) < 2.0**62)
    return error


def offsets(integers: Numbers, base: int) -> npt.NDArray[np.float64]:
    """How far 64-bit integers are above `base`, which none of them is below: exact to float64's rounding."""
    # Modulo 2**64, which is right for signed integers too: no two of them are further apart.
    return (integers.view(np.uint64) - np.uint64(base % 2**64)).astype(np.float64)


def deviations(side: SideSums, a: Numbers) -> tuple[float, float]:
    """Sum, and sum of squares, of what extreme values differ from the centre of their side, scaled as `summarize`
    takes them."""
    centred = a.astype(np.float64) * side.scale - side.centre * side.scale
    return float(centred.sum()), float(np.dot(centred, centred))


def _ranges(x: Floats, y: Floats) -> tuple[float, float, float, float]:
    """(min x, max x, min y, max y); nan where there is one."""
    low, high = np.minimum.reduce, np.maximum.reduce
    return float(low(x)), float(high(x)), float(low(y)), float(high(y))


def _squares_fit(ranges: tuple[float, float, float, float]) -> bool:
    """True if both sides are all zero or of a size whose squares float32 can add up."""
    x_low, x_high, y_low, y_high = ranges
    sizes = (max(-x_low, x_high), max(-y_low, y_high))
    return all(size == 0 or SMALLEST <= size <= LARGEST for size in sizes)


def _are_floats(a: Numbers) -> TypeGuard[Floats]:
    return a.dtype.kind == "f"


#: (min, max) of the NPU side and of the benchmark
Ranges = tuple[tuple[float, float], tuple[float, float]]


def _scaled_ranges(first: Sums) -> Ranges:
    """The ranges of the pairs' values, scaled as the second pass sees them."""
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


# --- from sums to metrics -------------------------------------------------------------------------------------------


def cosine(sums: Sums | KlSums) -> float:
    """Cosine of the angle between the sides: 1 if both are all zero, nan if only one is; never above 1."""
    if sums.npu_squares == 0 and sums.golden_squares == 0:
        return 1.0
    if sums.npu_squares == 0 or sums.golden_squares == 0:
        return nan
    return max(-1.0, min(1.0, sums.dot / (sqrt(sums.npu_squares) * sqrt(sums.golden_squares))))


def _near_cosine(first: Sums) -> float | None:
    """The cosine of sides that are nearly the same; None for others.

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
    """The summary of one side of `size` elements."""
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
    return first.scaled_relative_total / count / _RELATIVE_SCALE


def unravel(position: int, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The index of the flat `position` in `shape`, None for no position."""
    if position < 0:
        return None
    index = []
    for extent in reversed(shape):
        index.append(position % extent if extent else 0)
        position //= extent or 1
    return tuple(reversed(index))
