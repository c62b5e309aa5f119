"""The arithmetic of `kernel` by the compiled kernel, and which of the two kernels does the work."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from precision_tool.lib.compare.kernel import LARGEST, SMALLEST, Doubles, ErrorsCounted, Kernel
from precision_tool.lib.compare.pair_sums import LARGEST_DOUBLE, SMALLEST_DOUBLE, Extent, KlSums, Ranges, SideSums, Sums
from precision_tool.lib.io.decode import Floats, Numbers
from precision_tool.lib.io.native import library as native
from precision_tool.lib.io.native.library import Library, address, library

#: Between which a side's largest value lies for the compiled first pass: in float32, in float64.
_LIMITS: Final = np.array([SMALLEST, LARGEST, SMALLEST_DOUBLE, LARGEST_DOUBLE], np.float64)
#: What the first pass returns: done, there is NaN or Inf, a side's largest value is beyond the limits.
_DONE, _NOT_FINITE, _BEYOND = range(3)
_LONG: Final = (np.dtype(np.int64), np.dtype(np.uint64))
#: Places of items are told in 32 bits.
_MAX_ITEMS = 2**31 - 1

_local = threading.local()


def kernel_of_thread() -> Kernel:
    """Return the kernel of this thread, whose temporaries no other uses: the compiled one, or else numpy's."""
    kernel: Kernel | None = getattr(_local, "kernel", None)
    if kernel is None:
        compiled = library()
        kernel = _local.kernel = Kernel() if compiled is None else CompiledKernel(compiled)
    return kernel


def _are_long(a: Numbers) -> bool:
    """True for integers of 64 bits that the compiled functions take."""
    return a.dtype in _LONG and 0 < a.size <= _MAX_ITEMS and a.flags.c_contiguous


def _is_unsigned(a: Numbers) -> bool:
    return a.dtype.kind == "u"


class CompiledKernel(Kernel):
    """By the compiled functions; what leaves float64's range as in `Kernel`."""

    def __init__(self, compiled: Library) -> None:
        super().__init__()
        self._compiled = compiled.functions
        self._functions: dict[tuple[str, np.dtype], Callable[..., int]] = {
            (name, np.dtype(kind)): getattr(compiled.functions, f"pt_{name}_{kind}")
            for name in ("first", "second", "side", "together", "bins", "errors")
            for kind in ("float32", "float64")
        }
        self._first = native.FirstSums()
        self._second = native.SecondSums()
        self._side = native.SideSums()
        self._together = native.Together()
        self._errors = native.ErrorsFound()
        self._integer_sides = native.IntegerSums(), native.IntegerSums()
        self._integer_pairs = native.IntegerPairs()
        self._ranges = np.zeros(4)
        self._room = np.empty((2, 0), np.float64), np.empty(0, np.int32)

    def _function(self, name: str, *arrays: Numbers) -> Callable[..., int] | None:
        """Return the compiled function of the arrays' type, if they are as it takes them."""
        dtype, size = arrays[0].dtype, arrays[0].size
        if not 0 < size <= _MAX_ITEMS:
            return None
        for a in arrays:
            if a.dtype != dtype or a.size != size or not a.flags.c_contiguous:
                return None
        return self._functions.get((name, dtype))

    def _space(self, count: int) -> tuple[Doubles, Doubles, npt.NDArray[np.int32]]:
        """Room for `count` items of both sides in float64, and for their places."""
        if self._room[1].size < count:
            self._room = np.empty((2, count), np.float64), np.empty(count, np.int32)
        (first, second), places = self._room
        return first[:count], second[:count], places[:count]

    # -- first pass -------------------------------------------------------------------------------------------------

    def add_block(self, sums: Sums, x: Numbers, y: Numbers, offset: int) -> Extent | None:
        code = self._first_pass(x, y)
        if code == _DONE:
            sums.size += x.size
            self._take_sides(sums, x.size)
            self._take_pairs(sums, x, y, offset)
            return self._first.npu_low, self._first.npu_high
        if code == _NOT_FINITE:
            self._add_together(sums, x, y, offset)
            return None
        if code == _BEYOND and x.dtype == np.float32:
            # In memory of their own: finite pairs are brought together in that of `_space`.
            return self.add_block(sums, x.astype(np.float64), y.astype(np.float64), offset)
        return super().add_block(sums, x, y, offset)

    def _first_pass(self, x: Numbers, y: Numbers) -> int | None:
        """Return the result of the compiled first pass; None if it does not take these arrays."""
        first = self._function("first", x, y)
        if first is None:
            return None
        return first(address(x), address(y), x.size, address(_LIMITS), ctypes.byref(self._first))

    def _add_integers(self, sums: Sums, x: Numbers, y: Numbers, offset: int) -> Extent | None:
        if not (_are_long(x) and _are_long(y)):
            return super()._add_integers(sums, x, y, offset)
        npu, golden = self._integer_sides
        x_low, x_high = self._add_integer_side(sums.npu, x, npu)
        y_low, y_high = self._add_integer_side(sums.golden, y, golden)
        block = self._integer_pairs
        self._compiled.pt_first_integers(
            address(x), _is_unsigned(x), address(y), _is_unsigned(y), x.size, ctypes.byref(block)
        )
        sums.size += x.size
        self._take_sums(sums, x, y, offset, block)
        sums.add_ranges(x_low, x_high, y_low, y_high)
        return x_low, x_high

    def _add_integer_side(self, side: SideSums, a: Numbers, block: native.IntegerSums) -> tuple[int, int]:
        """Add integers to the sums of one side; the least and the largest one."""
        unsigned = _is_unsigned(a)
        self._compiled.pt_side_integers(address(a), a.size, unsigned, ctypes.byref(block))
        total = (block.high_total << 32) + block.low_total - (0 if unsigned else a.size << 63)
        low, high = (value % 2**64 if unsigned else value for value in (block.low, block.high))
        side.add_values(a.size, total, block.deviations, low, high, block.zeros)
        return low, high

    def _take_sides(self, sums: Sums, count: int) -> None:
        block = self._first
        for side, total, squares, low, high, zeros in (
            (sums.npu, block.npu_total, block.npu_deviations, block.npu_low, block.npu_high, block.npu_zeros),
            (
                sums.golden, block.golden_total, block.golden_deviations, block.golden_low, block.golden_high,
                block.golden_zeros,
            ),
        ):  # fmt: skip
            side.add_values(count, total, squares, low, high, zeros)

    def _take_pairs(
        self, sums: Sums, x: Numbers, y: Numbers, offset: int, places: npt.NDArray[np.int32] | None = None
    ) -> None:
        """Take over what was found of items that are finite on both sides; `places` are theirs in the block."""
        block = self._first
        self._take_sums(sums, x, y, offset, block, places)
        sums.add_ranges(block.npu_low, block.npu_high, block.golden_low, block.golden_high)

    def _take_sums(
        self,
        sums: Sums,
        x: Numbers,
        y: Numbers,
        offset: int,
        block: native.FirstSums | native.IntegerPairs,
        places: npt.NDArray[np.int32] | None = None,
    ) -> None:
        sums.count += x.size
        sums.dot += block.dot
        sums.npu_squares += block.npu_squares
        sums.golden_squares += block.golden_squares
        sums.error_squares += block.error_squares
        sums.error_total += block.error_total
        sums.add_relative(block.relative_total)
        if block.max_error > sums.max_error:
            at = block.max_error_at
            sums.max_error, sums.max_error_at = block.max_error, offset + (at if places is None else int(places[at]))
            sums.npu_at_max, sums.golden_at_max = float(x[at]), float(y[at])
        sums.max_relative = max(sums.max_relative, block.max_relative)

    def _add_together(self, sums: Sums, x: Numbers, y: Numbers, offset: int) -> None:
        """Return a block with NaN or Inf: what is finite on both sides is brought together."""
        a, b, places = self._brought_together(x, y)
        block = self._together
        sums.size += x.size
        self.add_side(sums.npu, x)
        self.add_side(sums.golden, y)
        if block.mismatches:
            sums.mismatches += block.mismatches
            sums.nan_mismatches += block.nan_mismatches
            if sums.first_mismatch < 0:
                at = block.first_mismatch
                sums.first_mismatch, sums.first_mismatch_values = offset + at, (float(x[at]), float(y[at]))
        if not a.size:
            return
        if self._first_pass(a, b) == _DONE:
            self._take_pairs(sums, a, b, offset, places)
        else:
            self._add_extreme_pairs(sums, a, b, offset, places)

    def _brought_together(self, x: Numbers, y: Numbers) -> tuple[Doubles, Doubles, npt.NDArray[np.int32]]:
        """Return the elements that are finite on both sides, in float64, and their places in the block."""
        a, b, places = self._space(x.size)
        together = self._functions["together", x.dtype]
        together(
            address(x), address(y), x.size, address(a), address(b), address(places),
            ctypes.byref(self._together),
        )  # fmt: skip
        count = self._together.count
        return a[:count], b[:count], places[:count]

    # -- second pass ------------------------------------------------------------------------------------------------

    def _finite_pairs(self, x: Floats, y: Floats) -> tuple[Floats, Floats]:
        if self._function("together", x, y) is None:
            return super()._finite_pairs(x, y)
        return self._brought_together(x, y)[:2]

    def _offsets(self, x: Numbers, y: Numbers, x_low: int, y_low: int) -> tuple[Floats, Floats]:
        if not (_are_long(x) and _are_long(y)):
            return super()._offsets(x, y, x_low, y_low)
        first, second, _ = self._space(x.size)
        return self._above(x, x_low, first), self._above(y, y_low, second)

    def _above(self, a: Numbers, base: int, out: Doubles) -> Doubles:
        self._compiled.pt_offsets(address(a), a.size, _is_unsigned(a), base % 2**64, address(out))
        return out

    def _add_scaled(self, sums: KlSums, ranges: Ranges, floors: tuple[float, float], x: Floats, y: Floats) -> None:
        second = self._function("second", x, y)
        if second is None:
            super()._add_scaled(sums, ranges, floors, x, y)
            return
        limits, block = self._ranges, self._second
        limits[:] = ranges[0][0], ranges[1][0], *floors
        second(address(x), address(y), x.size, address(limits), ctypes.byref(block))
        sums.p += block.p
        sums.q += block.q
        sums.apart += block.apart
        sums.p_log_ratio += block.p_log_ratio

    # -- one side ---------------------------------------------------------------------------------------------------

    def add_side(self, side: SideSums, a: Numbers) -> None:
        if _are_long(a):
            self._add_integer_side(side, a, self._integer_sides[0])
            return
        function = self._function("side", a)
        if function is None:
            super().add_side(side, a)
            return
        block = self._side
        function(address(a), a.size, ctypes.byref(block))
        side.nan_count += block.nans
        side.positive_inf_count += block.positive_infinities
        side.negative_inf_count += block.negative_infinities
        if block.count:
            side.add_values(block.count, block.total, block.deviations, block.low, block.high, block.zeros)

    def add_bins(self, counts: npt.NDArray[np.int64], a: Numbers, low: float, high: float) -> None:
        if high > low and _are_long(a):
            a, low, high = self._above(a, int(low), self._space(a.size)[0]), 0.0, float(high - low)
        function = self._function("bins", a)
        if function is None or not 0 < high - low < np.inf:
            super().add_bins(counts, a, low, high)
            return
        function(address(a), a.size, low, high - low, counts.size, address(counts))

    # -- errors one by one ------------------------------------------------------------------------------------------

    def count_errors(
        self, x: Numbers, y: Numbers, weights: Numbers, limits: native.ErrorsAsked
    ) -> ErrorsCounted | None:
        function = self._function("errors", x, y, weights)
        if function is None:
            return None
        errors, places = self._errors, np.empty((2, limits.room), np.int32)
        function(
            address(x), address(y), x.size, ctypes.byref(limits), address(weights),
            address(places[0]), address(places[1]), ctypes.byref(errors),
        )  # fmt: skip
        worst, relative = (
            places[kind, :count] if count <= limits.room else None
            for kind, count in enumerate((errors.worst, errors.worst_relative))
        )
        return ErrorsCounted(errors, worst, relative)
