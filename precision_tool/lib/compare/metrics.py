"""The ten metrics of formats.md §5, from two streams of blocks, in one pass and a second for KL divergence.

Blocks are float32 (float64 for types float32 cannot hold). Sums are taken in float32 over short rows and in
float64 over rows and blocks, so that the result does not depend on the tensor's size. `Sums` and `KlSums` of
parts of a tensor add up, so one tensor can be split over workers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import inf, isfinite, nan, sqrt

import numpy as np

from precision_tool.lib.formats.blocks import Scratch
from precision_tool.lib.formats.decode import Floats
from precision_tool.lib.model.comparison import Metrics, Summary

#: Benchmark values up to this size count as zero for relative errors (the vendor's rule).
ZERO_BELOW = 2.2e-16
#: Lower clamp of the scaled values in the KL divergence: float32's epsilon.
KL_FLOOR = float(np.finfo(np.float32).eps)
#: Items of one row: float32 sums over this many lose nothing that six printed digits show.
_ROW = 1024
#: A variance below this share of the squared mean is computed anew around the mean.
_CANCELLED = 1e-3


@dataclass(slots=True)
class SideSums:
    """Running sums of one side over its finite values."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    minimum: float = inf
    maximum: float = -inf
    nan_count: int = 0
    positive_inf_count: int = 0
    negative_inf_count: int = 0
    zero_count: int = 0

    def add(self, other: SideSums) -> None:
        """Adds the sums of another part of the tensor."""
        self.minimum = min(self.minimum, other.minimum)
        self.maximum = max(self.maximum, other.maximum)
        for name in (
            "count",
            "total",
            "squares",
            "nan_count",
            "positive_inf_count",
            "negative_inf_count",
            "zero_count",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def mean(self) -> float:
        """Mean of the finite values, nan if there are none."""
        return self.total / self.count if self.count else nan

    @property
    def variance(self) -> float:
        """Population variance from the sums."""
        return max(self.squares / self.count - self.mean**2, 0.0) if self.count else nan

    @property
    def is_cancelled(self) -> bool:
        """True if the variance is too small beside the mean for the sums to give it."""
        return self.count > 0 and self.variance < _CANCELLED * self.mean**2


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
    "mismatches", "nan_mismatches",
)  # fmt: skip


@dataclass(slots=True)
class KlSums:
    """The second pass: scaled and clamped values p and q, and variances around the mean where needed."""

    p: float = 0.0
    q: float = 0.0
    p_log_ratio: float = 0.0
    npu_deviation: float = 0.0
    npu_deviation_squares: float = 0.0
    golden_deviation: float = 0.0
    golden_deviation_squares: float = 0.0

    def add(self, other: KlSums) -> None:
        """Adds the sums of another part of the tensor."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))


class Kernel:
    """Adds blocks to sums. One kernel per worker: it owns the temporaries, so blocks cost no allocation."""

    def __init__(self) -> None:
        self._scratch = Scratch()
        self._ones = {kind: np.ones((_ROW, 1), kind) for kind in (np.dtype(np.float32), np.dtype(np.float64))}
        self._floors: dict[tuple[float, np.dtype], Floats] = {}

    def _floor(self, value: float, like: Floats) -> Floats:
        """An array of `value`: numpy's maximum with a scalar takes three times as long as with an array."""
        floor = self._floors.get((value, like.dtype))
        if floor is None or floor.size < like.size:
            floor = self._floors[value, like.dtype] = np.full(like.size, value, like.dtype)
        return floor[: like.size]

    # -- sums over a block, exact to float64 over rows ------------------------------------------------------------

    def _sum(self, a: Floats) -> float:
        # As dot products of short rows, which BLAS neither splits over threads nor sums naively.
        whole = a.size // _ROW * _ROW
        total = 0.0
        if whole:
            total = float(np.matmul(a[:whole].reshape(-1, 1, _ROW), self._ones[a.dtype]).sum(dtype=np.float64))
        return total + float(a[whole:].sum(dtype=np.float64))

    def _dot(self, a: Floats, b: Floats) -> float:
        whole = a.size // _ROW * _ROW
        total = 0.0
        if whole:
            rows = np.matmul(a[:whole].reshape(-1, 1, _ROW), b[:whole].reshape(-1, _ROW, 1))
            total = float(rows.sum(dtype=np.float64))
        return total + float(np.dot(a[whole:].astype(np.float64), b[whole:].astype(np.float64)))

    # -- first pass -------------------------------------------------------------------------------------------------

    def add_block(self, sums: Sums, x: Floats, y: Floats, offset: int) -> None:
        """Adds a block of the NPU side `x` and the benchmark `y`; `offset` is the index of its first element."""
        if not x.size:
            return
        with np.errstate(all="ignore"):
            ranges = (float(x.min()), float(x.max()), float(y.min()), float(y.max()))
            biggest = max(abs(value) for value in ranges)
            sums.size += x.size
            if not all(map(isfinite, ranges)):
                self._add_non_finite(sums, x, y, offset)
            elif biggest > 1e18 and x.dtype == np.float32:  # squares would leave float32's range
                self._add_finite(sums, x.astype(np.float64), y.astype(np.float64), offset, ranges, both=True)
            else:
                self._add_finite(sums, x, y, offset, ranges, both=True)

    def _add_side(self, side: SideSums, a: Floats, low: float, high: float, total: float, squares: float) -> None:
        side.count += a.size
        side.total += total
        side.squares += squares
        side.minimum = min(side.minimum, low)
        side.maximum = max(side.maximum, high)
        flags = self._scratch.bytes("flags", a.size).view(np.bool_)
        np.equal(a, 0, out=flags)
        side.zero_count += int(np.count_nonzero(flags))

    def _add_finite(
        self,
        sums: Sums,
        x: Floats,
        y: Floats,
        offset: int,
        ranges: tuple[float, float, float, float],
        both: bool,
        positions: np.ndarray | None = None,
    ) -> None:
        """Adds elements that are finite on both sides; `both` adds them to the two sides' own sums as well."""
        x_low, x_high, y_low, y_high = ranges
        xx, yy = self._dot(x, x), self._dot(y, y)
        if both:
            self._add_side(sums.npu, x, x_low, x_high, self._sum(x), xx)
            self._add_side(sums.golden, y, y_low, y_high, self._sum(y), yy)
        sums.count += x.size
        sums.dot += self._dot(x, y)
        sums.npu_squares += xx
        sums.golden_squares += yy
        low, high = sums.pair_npu_range
        sums.pair_npu_range = (min(low, x_low), max(high, x_high))
        low, high = sums.pair_golden_range
        sums.pair_golden_range = (min(low, y_low), max(high, y_high))

        error = self._scratch.floats("error", x.size, x.dtype)
        np.subtract(x, y, out=error)
        sums.error_squares += self._dot(error, error)
        np.abs(error, out=error)
        sums.error_total += self._sum(error)
        at = int(error.argmax())
        if float(error[at]) > sums.max_error:
            sums.max_error = float(error[at])
            sums.max_error_at = offset + (at if positions is None else int(positions[at]))
            sums.npu_at_max, sums.golden_at_max = float(x[at]), float(y[at])

        size = self._scratch.floats("size", x.size, x.dtype)
        np.abs(y, out=size)
        flags = self._scratch.bytes("flags", x.size).view(np.bool_)
        np.greater(size, ZERO_BELOW, out=flags)
        if not flags.all():
            # By multiplication: where= and putmask mispredict on half-zero tensors and cost seven times as much.
            keep = self._scratch.floats("keep", x.size, x.dtype)
            np.copyto(keep, flags)
            np.multiply(error, keep, out=error)
            np.maximum(size, self._floor(ZERO_BELOW, size), out=size)
        np.divide(error, size, out=error)
        sums.relative_total += self._sum(error)
        sums.max_relative = max(sums.max_relative, float(error.max()))

    def _add_non_finite(self, sums: Sums, x: Floats, y: Floats, offset: int) -> None:
        """A block with NaN or Inf: rare, so plain arrays in float64."""
        x, y = x.astype(np.float64), y.astype(np.float64)
        x_finite, y_finite = np.isfinite(x), np.isfinite(y)
        for side, a, finite in ((sums.npu, x, x_finite), (sums.golden, y, y_finite)):
            side.nan_count += int(np.isnan(a).sum())
            side.positive_inf_count += int(np.isposinf(a).sum())
            side.negative_inf_count += int(np.isneginf(a).sum())
            values = a[finite]
            if values.size:
                self._add_side(
                    side, values, float(values.min()), float(values.max()), self._sum(values), self._dot(values, values)
                )
        both = x_finite & y_finite
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
            x, y = x[both], y[both]
            ranges = (float(x.min()), float(x.max()), float(y.min()), float(y.max()))
            self._add_finite(sums, x, y, offset, ranges, both=False, positions=positions)

    # -- second pass ------------------------------------------------------------------------------------------------

    def add_second(self, sums: KlSums, first: Sums, x: Floats, y: Floats) -> None:
        """Adds a block to the second pass, given the complete sums of the first."""
        if not x.size or not first.count:
            return
        with np.errstate(all="ignore"):
            if first.count < first.size:
                finite = np.isfinite(x) & np.isfinite(y)
                for side, a, name in ((first.npu, x, "npu"), (first.golden, y, "golden")):
                    self._add_deviations(sums, side, a[np.isfinite(a)], name)
                x, y = x[finite], y[finite]
            else:
                self._add_deviations(sums, first.npu, x, "npu")
                self._add_deviations(sums, first.golden, y, "golden")
            p = self._scaled("p", x, first.pair_npu_range)
            q = self._scaled("q", y, first.pair_golden_range)
            sums.p += self._sum(p)
            sums.q += self._sum(q)
            np.divide(p, q, out=q)
            np.log(q, out=q)
            sums.p_log_ratio += self._dot(p, q)

    def _add_deviations(self, sums: KlSums, side: SideSums, a: Floats, name: str) -> None:
        if not side.is_cancelled or not a.size:
            return
        centred = a.astype(np.float64) - side.mean
        for field_name, value in (("deviation", centred.sum()), ("deviation_squares", np.dot(centred, centred))):
            setattr(sums, f"{name}_{field_name}", getattr(sums, f"{name}_{field_name}") + float(value))

    def _scaled(self, name: str, a: Floats, limits: tuple[float, float]) -> Floats:
        """`a` scaled to [0, 1] over the tensor and clamped below; a constant tensor is all floor."""
        low, high = limits
        out = self._scratch.floats(name, a.size, a.dtype)
        floor = self._floor(KL_FLOOR, a)
        if high <= low:
            np.copyto(out, floor)
            return out
        span = high - low
        if not isfinite(span) or span > 1e38 or span < 1e-37:  # outside what float32 can divide by
            np.copyto(out, (a.astype(np.float64) / 2 - low / 2) / (high / 2 - low / 2))
        else:
            np.subtract(a, a.dtype.type(low), out=out)
            np.multiply(out, a.dtype.type(1.0 / span), out=out)
        np.maximum(out, floor, out=out)
        return out


# --- from sums to metrics -------------------------------------------------------------------------------------------


def cosine(first: Sums) -> float:
    """Cosine of the angle between the sides: 1 if both are all zero, nan if only one is; never above 1."""
    if first.npu_squares == 0 and first.golden_squares == 0:
        return 1.0
    if first.npu_squares == 0 or first.golden_squares == 0:
        return nan
    return max(-1.0, min(1.0, first.dot / (sqrt(first.npu_squares) * sqrt(first.golden_squares))))


def kl_divergence(second: KlSums) -> float:
    """Σ p ln(p/q) of the normalised p and q, from the sums of the values before normalising."""
    if second.p <= 0 or second.q <= 0:
        return nan
    return second.p_log_ratio / second.p + float(np.log(second.q / second.p))


def summarize(side: SideSums, size: int, deviation: float, deviation_squares: float) -> Summary:
    """The summary of one side of `size` elements."""
    std = nan
    if side.count:
        variance = side.variance
        if side.is_cancelled:
            variance = max(deviation_squares / side.count - (deviation / side.count) ** 2, 0.0)
        std = sqrt(variance)
    return Summary(
        count=size,
        minimum=side.minimum if side.count else nan,
        maximum=side.maximum if side.count else nan,
        mean=side.mean,
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
    distance, golden_norm = sqrt(first.error_squares), sqrt(first.golden_squares)
    return Metrics(
        cosine=1.0 if first.size == 1 or not count else cosine(first),
        max_absolute_error=max(first.max_error, 0.0),
        accumulated_relative_error=first.relative_total,
        relative_euclidean_distance=distance / golden_norm if golden_norm else 0.0,
        kullback_leibler_divergence=kl_divergence(second) if count else 0.0,
        mean_absolute_error=first.error_total / max(count, 1),
        root_mean_square_error=distance / sqrt(max(count, 1)),
        max_relative_error=first.max_relative,
        mean_relative_error=first.relative_total / max(count, 1),
        max_error_index=unravel(first.max_error_at, shape) if first.max_error > 0 else None,
        npu_at_max_error=first.npu_at_max,
        golden_at_max_error=first.golden_at_max,
        is_scalar=first.size == 1,
        both_zero=count > 0 and first.npu_squares == 0 and first.golden_squares == 0,
    )


def unravel(position: int, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The index of the flat `position` in `shape`, None for no position."""
    if position < 0:
        return None
    index = []
    for extent in reversed(shape):
        index.append(position % extent if extent else 0)
        position //= extent or 1
    return tuple(reversed(index))
