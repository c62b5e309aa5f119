"""The arithmetic of two streams of blocks in numpy, in one pass and a second for KL divergence.

It is the reference of the compiled kernel, and does the work where there is none. Blocks are float32 (float64 for types
float32 cannot hold, integers where both sides are of 64 bits). Sums are taken in float32 over short rows and in float64
over rows and blocks, so that the result does not depend on the tensor's size.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isfinite
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from precision_tool.lib.compare.pair_sums import (
    RELATIVE_SCALE,
    Extent,
    KlSums,
    Ranges,
    SecondTask,
    SideSums,
    Sums,
    second_task,
)
from precision_tool.lib.io.decode import Floats, Numbers, as_float64
from precision_tool.lib.io.native.library import ErrorsAsked, ErrorsFound
from precision_tool.lib.model.comparison import ZERO_BELOW

Doubles = npt.NDArray[np.float64]

#: Items of one row: float32 sums over this many lose nothing that six printed digits show. Where registers have four
#: numbers, equal ones lose a digit more, so there rows are shorter, as those of native/lanes.h are.
_ROW = 256 if platform.machine() in ("aarch64", "arm64") else 1024
#: Sums of what is mostly one small value beside a few large ones are of shorter rows: in a long one every small value
#: that is added to a large one is rounded to the same side, which some processors' dot products do 16 times a row.
_SHORT_ROW = 128
#: Items of a piece of a block that is worked on with new arrays: small ones are of memory that was used before.
_PIECE = 1 << 13
#: A block's variance below this share of its squared mean is computed around the mean: sums of squares lose its digits.
_CANCELLED = 0.25
#: Largest magnitudes of a block between which a row's sum of squares, errors' too, is right in float32.
SMALLEST, LARGEST = 1e-12, 1e17
#: Larger errors leave float64's range when they are divided by ZERO_BELOW.
_LARGEST_ERROR = 1e290


class _Buffers:
    """Temporaries for blocks of one type, made for the largest block seen."""

    def __init__(self, capacity: int, dtype: np.dtype[Any]) -> None:
        self.capacity = capacity
        self.first: Floats = np.empty(capacity, dtype)
        self.second: Floats = np.empty(capacity, dtype)
        self.flags = np.empty(capacity, np.bool_)
        #: Results of up to eight sums, one line each, one item a row.
        self.sums: Floats = np.empty((8, capacity // _SHORT_ROW + 1, 1, 1), dtype)


@dataclass(frozen=True, slots=True)
class ErrorsCounted:
    """The error counts of a block, and the places of those elements that may be among the worst.

    No places where there are too many.
    """

    errors: ErrorsFound
    worst: npt.NDArray[np.int32] | None
    worst_relative: npt.NDArray[np.int32] | None


@dataclass(slots=True)
class _Finite:
    """A block of elements that are finite on both sides."""

    x: Floats
    y: Floats
    #: The place of its first element in the tensor.
    offset: int
    #: The least and the largest of x, and of y.
    ranges: tuple[float, float, float, float]
    #: The places of its elements, counted from `offset`, where they do not follow each other.
    positions: npt.NDArray[np.integer[Any]] | None = None
    #: x - y where these were rounded.
    exact_error: Floats | None = None


class Kernel:
    """Adds blocks to sums. One kernel per worker: it owns the temporaries, so blocks cost no allocation.

    The order and number of numpy calls is what makes it fast: a block and its temporaries stay in the cache.
    """

    def __init__(self) -> None:
        self._buffers: dict[np.dtype[Any], _Buffers] = {}
        self._ones = {kind: np.ones((_ROW, 1), kind) for kind in (np.dtype(np.float32), np.dtype(np.float64))}
        self._task: SecondTask | None = None

    def _temporaries(self, like: Floats) -> _Buffers:
        buffers = self._buffers.get(like.dtype)
        if buffers is None or buffers.capacity < like.size:
            buffers = self._buffers[like.dtype] = _Buffers(like.size, like.dtype)
        return buffers

    def _sums(self, buffers: _Buffers, *factors: tuple[Floats, Floats | None], row: int = _ROW) -> list[float]:
        """Return the dot product of each pair, or the sum where the second is None: exact to float64 over rows.

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

    def add_block(self, sums: Sums, x: Numbers, y: Numbers, offset: int) -> Extent | None:
        """Add a block of the NPU side `x` and the benchmark `y`; `offset` is the index of its first element.

        The least and the largest value of `x`, where all are finite and these were found on the way.
        """
        if not (_are_floats(x) and _are_floats(y)):
            return self._add_integers(sums, x, y, offset)
        whole = x.size // _ROW * _ROW
        with np.errstate(all="ignore"):
            if whole:
                self._add_rows(sums, x[:whole], y[:whole], offset)
            if whole < x.size:  # less than a row: in float64, so that its one sum loses nothing
                self._add_rows(sums, x[whole:].astype(np.float64), y[whole:].astype(np.float64), offset + whole)
        return None

    def _add_integers(self, sums: Sums, x: Numbers, y: Numbers, offset: int) -> Extent | None:
        """Add a block of 64-bit integers: in float64, but with the differences of the integers themselves."""
        whole = x.size // _ROW * _ROW
        for start, stop in pairwise((*range(0, whole, _PIECE), whole, x.size)):
            if start < stop:
                self._add_piece_of_integers(sums, x[start:stop], y[start:stop], offset + start)
        return None

    def _add_piece_of_integers(self, sums: Sums, x: Numbers, y: Numbers, offset: int) -> None:
        a, b = x.astype(np.float64), y.astype(np.float64)
        sums.size += x.size
        add_integers(sums.npu, x)
        add_integers(sums.golden, y)
        ranges = (int(x.min()), int(x.max()), int(y.min()), int(y.max()))
        self._add_finite(sums, _Finite(a, b, offset, ranges, exact_error=integer_errors(x, y)), both=False)

    def _add_rows(self, sums: Sums, x: Floats, y: Floats, offset: int) -> None:
        ranges = _ranges(x, y)
        sums.size += x.size
        if not all(map(isfinite, ranges)):
            for start in range(0, x.size, _PIECE):
                self._add_non_finite(sums, x[start : start + _PIECE], y[start : start + _PIECE], offset + start)
        elif x.dtype == np.float32 and not _squares_fit(ranges):
            self._add_finite(sums, _Finite(x.astype(np.float64), y.astype(np.float64), offset, ranges), both=True)
        else:
            self._add_finite(sums, _Finite(x, y, offset, ranges), both=True)

    def _add_finite(self, sums: Sums, block: _Finite, *, both: bool) -> None:
        """Add elements that are finite on both sides; `both` adds them to the two sides' own sums as well."""
        x, y = block.x, block.y
        buffers = self._temporaries(x)
        error, flags = buffers.first[: x.size], buffers.flags[: x.size]
        x_low, x_high, y_low, y_high = block.ranges
        if block.exact_error is None:
            np.subtract(x, y, out=error)
        else:
            np.copyto(error, block.exact_error)
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
            sums.max_error_at = block.offset + (at if block.positions is None else int(block.positions[at]))
            sums.npu_at_max, sums.golden_at_max = float(x[at]), float(y[at])
        if 0 < biggest < SMALLEST:  # sides so much alike that the squares of the errors vanish in float32
            squares = float(np.square(error, dtype=np.float64).sum())
        total = self._sums(buffers, (error, None))[0]
        sums.error_squares += squares
        sums.error_total += total
        self._divide_errors(buffers, error, y, biggest)
        self._add_relative(sums, buffers, error)
        worst = int(error.argmax())
        relative = float(error[worst])
        if x.dtype == np.float32 and 0 < relative < inf:  # once more without float32's rounding
            relative = abs(float(x[worst]) - float(y[worst])) / abs(float(y[worst]))
        sums.max_relative = max(sums.max_relative, relative)

    def _divide_errors(self, buffers: _Buffers, error: Floats, y: Floats, biggest: float) -> None:
        """Divides absolute errors, of which `biggest` is the largest, by the sizes of the benchmark's elements.

        In place; those of elements that are as good as zero become 0.
        """
        size, flags = buffers.second[: y.size], buffers.flags[: y.size]
        np.abs(y, out=size)
        np.greater(size, ZERO_BELOW, out=flags)
        if not flags.all():
            # By multiplication: where= and putmask mispredict on half-zero tensors and cost seven times as much.
            if biggest > _LARGEST_ERROR:  # the quotient would be inf, and that times zero NaN
                np.copyto(error, 0, where=~flags)
            np.maximum(size, size.dtype.type(ZERO_BELOW), out=size)
            np.divide(error, size, out=error)
            np.copyto(size, flags)
            np.multiply(error, size, out=error)
        else:
            np.divide(error, size, out=error)

    def _deviation(self, buffers: _Buffers, a: Floats, total: float, squares: float) -> tuple[float, float]:
        """Σ a and Σ (a - mean)² of a block, given Σ a and Σ a²; both around the mean where that is far from zero."""
        mean = total / a.size
        deviation = squares - total * mean
        if not deviation < _CANCELLED * total * mean:
            return total, deviation
        centre = a.dtype.type(mean)
        centred = np.subtract(a, centre, out=buffers.second[: a.size])
        offset, around = self._sums(buffers, (centred, None), (centred, centred))
        return a.size * float(centre) + offset, max(around - offset * offset / a.size, 0.0)

    def _add_relative(self, sums: Sums, buffers: _Buffers, relative: Floats) -> None:
        total = self._sums(buffers, (relative, None))[0]
        if total == inf:
            sums.relative_total = inf
            sums.scaled_relative_total += float(np.sum(relative * RELATIVE_SCALE, dtype=np.float64))
        else:
            sums.add_relative(total)

    def _add_non_finite(self, sums: Sums, x: Floats, y: Floats, offset: int) -> None:
        """Return a piece of a block with NaN or Inf: rare, so plain arrays in float64."""
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
        """Add pairs of a block at `places` that are finite on both sides, however large, without the sides' own."""
        with np.errstate(all="ignore"):
            self._add_finite(sums, _Finite(x, y, offset, _ranges(x, y), positions=places), both=False)

    # -- second pass ------------------------------------------------------------------------------------------------

    def add_second(self, sums: KlSums, first: Sums, x: Numbers, y: Numbers) -> None:
        """Add a block to the second pass, given the complete sums of the first."""
        if _are_floats(x) and _are_floats(y):
            self._add_second(sums, self._task_of(first, True), x, y)
            return
        # Differences from the least integer hold what rounding the integers themselves would lose.
        (x_low, _), (y_low, _) = first.pair_npu_range, first.pair_golden_range
        self._add_second(sums, self._task_of(first, False), *self._offsets(x, y, int(x_low), int(y_low)))

    def _offsets(self, x: Numbers, y: Numbers, x_low: int, y_low: int) -> tuple[Floats, Floats]:
        """Return how far the integers of both sides are above their least ones."""
        return integer_offsets(x, x_low), integer_offsets(y, y_low)

    def _task_of(self, first: Sums, are_floats: bool) -> SecondTask:
        task = self._task
        if task is None or task.first is not first or task.are_floats is not are_floats:
            task = self._task = second_task(first, are_floats)
        return task

    def _add_second(self, sums: KlSums, task: SecondTask, x: Floats, y: Floats) -> None:
        if not task.is_plain:
            with np.errstate(all="ignore"):
                x, y = self._prepared(sums, task, x, y)
        if x.size:
            self._add_scaled(sums, task.ranges, task.floors, x, y)

    def _prepared(self, sums: KlSums, task: SecondTask, x: Floats, y: Floats) -> tuple[Floats, Floats]:
        """Return the elements finite on both sides, scaled or in float64 if needed; add the sums of scaled values."""
        first = task.first
        for side, a, name in ((first.npu, x, "npu"), (first.golden, y, "golden")):
            if side.is_extreme:
                self._add_deviations(sums, side, a[np.isfinite(a)], name)
        if first.count < first.size:
            x, y = self._finite_pairs(x, y)
        if x.size and first.is_extreme:
            x, y = self._add_extreme(sums, first, x.astype(np.float64), y.astype(np.float64))
        return (x.astype(np.float64), y.astype(np.float64)) if task.is_wide else (x, y)

    def _finite_pairs(self, x: Floats, y: Floats) -> tuple[Floats, Floats]:
        """Return the items that are finite on both sides."""
        finite = np.isfinite(x) & np.isfinite(y)
        return x[finite], y[finite]

    def _add_extreme(self, sums: KlSums, first: Sums, x: Floats, y: Floats) -> tuple[Floats, Floats]:
        """Add products and errors of scaled values; both sides, scaled. Rare, so plain arrays."""
        error = np.abs(x * first.error_scale - y * first.error_scale)
        x, y = x * first.npu.scale, y * first.golden.scale
        sums.dot += float(np.dot(x, y))
        sums.npu_squares += float(np.dot(x, x))
        sums.golden_squares += float(np.dot(y, y))
        sums.error_squares += float(np.dot(error, error))
        sums.error_total += float(error.sum())
        return x, y

    def _add_scaled(self, sums: KlSums, ranges: Ranges, floors: tuple[float, float], x: Floats, y: Floats) -> None:
        """Add p, q, q - p and p log2(p/q), not scaled to [0, 1]: normalising them to sum 1 takes any scale out again.

        In float64: of sides that are nearly the same almost all of p log2(p/q) and q - p cancels.
        """
        with np.errstate(all="ignore"):
            for start in range(0, x.size, _PIECE):
                p, q = (
                    np.maximum(np.subtract(a[start : start + _PIECE], low, dtype=np.float64), floor)
                    for a, (low, _), floor in zip((x, y), ranges, floors, strict=True)
                )
                sums.p += float(p.sum())
                sums.q += float(q.sum())
                sums.apart += float((q - p).sum())
                np.divide(p, q, out=q)
                np.log2(q, out=q)  # faster than log
                sums.p_log_ratio += float(np.dot(p, q))

    def _add_deviations(self, sums: KlSums, side: SideSums, a: Floats, name: str) -> None:
        for field_name, value in zip(("deviation", "deviation_squares"), deviations(side, a), strict=True):
            setattr(sums, f"{name}_{field_name}", getattr(sums, f"{name}_{field_name}") + value)

    # -- one side ---------------------------------------------------------------------------------------------------

    def finite_range(self, a: Numbers) -> Extent:
        """Return the least and the largest finite value; inf and -inf where there is none."""
        low, high = float(np.minimum.reduce(a)), float(np.maximum.reduce(a))
        if isfinite(low) and isfinite(high):  # NaN is both
            return low, high
        side = SideSums()
        self.add_side(side, a)
        return side.minimum, side.maximum

    def add_side(self, side: SideSums, a: Numbers) -> None:
        """Add values to the sums of one side, in float64; NaN and Inf are only counted."""
        with np.errstate(all="ignore"):  # sums that leave float64's range are taken anew, scaled
            for start in range(0, a.size, _PIECE):
                piece = a[start : start + _PIECE]
                if _are_floats(piece):
                    _add_floats(side, piece)
                else:
                    add_integers(side, piece)

    def add_bins(self, counts: npt.NDArray[np.int64], a: Numbers, low: float, high: float) -> None:
        """Add values, of which the least and the largest finite one of all are told, to counts of equal bins.

        The last bin is closed; a constant is all in the first.
        """
        for start in range(0, a.size, _PIECE):
            counts += _bins(a[start : start + _PIECE], low, high, counts.size)

    def count_errors(self, x: Numbers, y: Numbers, weights: Numbers, limits: ErrorsAsked) -> ErrorsCounted | None:
        """Count the errors of a block without NaN and Inf, whose squares, of the largest one's, become the
        `weights`. None where numpy has to find it step by step."""
        return None


def _add_floats(side: SideSums, a: Floats) -> None:
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


def _bins(a: Numbers, low: float, high: float, number: int) -> npt.NDArray[np.intp]:
    if _are_floats(a):
        a = as_float64(a)
        a = a[np.isfinite(a)]
    if high == low:
        return np.bincount(np.zeros(a.size, np.intp), minlength=number)
    if not _are_floats(a):
        a, low, high = integer_offsets(a, int(low)), 0.0, float(high - low)
    if high - low == inf:  # halves of both are in range
        a, low, high = a / 2, low / 2, high / 2
    places = ((a - low) / (high - low) * number).astype(np.intp)
    return np.bincount(np.minimum(places, number - 1), minlength=number)


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
    """Return whether both sides are all zero or of a size whose squares float32 can add up."""
    x_low, x_high, y_low, y_high = ranges
    sizes = (max(-x_low, x_high), max(-y_low, y_high))
    return all(size == 0 or SMALLEST <= size <= LARGEST for size in sizes)


def _are_floats(a: Numbers) -> TypeGuard[Floats]:
    return a.dtype.kind == "f"


# --- 64-bit integers ---


_HALF_BITS = 32


def _halves(a: Numbers) -> tuple[Doubles, Doubles]:
    """Return the upper 32 bits of integers, with their sign, and the lower ones."""
    kind = a.dtype.type
    upper, lower = a >> kind(_HALF_BITS), a & kind(2**_HALF_BITS - 1)  # type: ignore[operator]  # never floats
    return upper.astype(np.float64), lower.astype(np.float64)


def _joined(upper: Doubles, lower: Doubles) -> Doubles:
    upper *= 2.0**_HALF_BITS
    upper += lower
    return upper


def integer_errors(x: Numbers, y: Numbers) -> Doubles:
    """Return x - y of 64-bit integers, signed or not, each rounded once."""
    (x_upper, x_lower), (y_upper, y_lower) = _halves(x), _halves(y)
    return _joined(x_upper - y_upper, x_lower - y_lower)


def integer_offsets(a: Numbers, base: int) -> Doubles:
    """Return how far 64-bit integers are from `base`, each rounded once."""
    upper, lower = _halves(a)
    return _joined(upper - float(base >> _HALF_BITS), lower - float(base % 2**_HALF_BITS))


def add_integers(side: SideSums, a: Numbers) -> None:
    """Add integers, at most 2**21 whose halves float64 adds up exactly, to the sums of one side."""
    upper, lower = _halves(a)
    total = (int(upper.sum()) << _HALF_BITS) + int(lower.sum())
    # The integer next to the mean, at most a half below it: nothing cancels where squares of deviations from it
    # become those from the mean.
    nearest = (2 * total + a.size) // (2 * a.size)
    rest = (total - nearest * a.size) / a.size
    upper -= float(nearest >> _HALF_BITS)
    lower -= float(nearest % 2**_HALF_BITS)
    centred = _joined(upper, lower)
    squares = max(float(np.dot(centred, centred)) - a.size * rest * rest, 0.0)
    side.add_values(a.size, total, squares, int(a.min()), int(a.max()), a.size - int(np.count_nonzero(a)))
