"""The sums of `metrics` by the compiled kernel, and which of the two kernels does the work."""

from __future__ import annotations

import ctypes
from typing import Final

import numpy as np

from precision_tool.lib.engine import metrics
from precision_tool.lib.engine.metrics import Kernel, KlSums, Ranges, Sums
from precision_tool.lib.native.library import FirstSums, Library, SecondSums, library
from precision_tool.lib.numbers.decode import Floats, Numbers

#: Between which a side's largest value lies for the compiled first pass: in float32, in float64.
_LIMITS: Final = np.array(
    [metrics.SMALLEST, metrics.LARGEST, metrics.SMALLEST_DOUBLE, metrics.LARGEST_DOUBLE], np.float64
)


def make_kernel() -> Kernel:
    """The compiled kernel where there is one, else numpy's."""
    compiled = library()
    return Kernel() if compiled is None else CompiledKernel(compiled)


class CompiledKernel(Kernel):
    """Blocks of floats whose values are all finite and of ordinary size; the rest is numpy's, as in `Kernel`."""

    def __init__(self, compiled: Library) -> None:
        super().__init__()
        self._functions = {
            np.dtype(np.float32): compiled.functions.pt_first_float32,
            np.dtype(np.float64): compiled.functions.pt_first_float64,
        }
        self._second_pass = compiled.functions.pt_second_float32
        self._first = FirstSums()
        self._second = SecondSums()
        self._ranges = np.zeros(4)

    def add_block(self, sums: Sums, x: Numbers, y: Numbers, offset: int) -> None:
        first = self._functions.get(x.dtype) if _fit(x, y) else None
        found = self._first
        if first is None or first(
            x.ctypes.data, y.ctypes.data, x.size, _LIMITS.ctypes.data, ctypes.byref(found)
        ):  # a block that needs care
            super().add_block(sums, x, y, offset)
            return
        count = x.size
        sums.size += count
        sums.count += count
        for side, total, squares, low, high, zeros in (
            (sums.npu, found.npu_total, found.npu_deviations, found.npu_low, found.npu_high, found.npu_zeros),
            (
                sums.golden, found.golden_total, found.golden_deviations, found.golden_low, found.golden_high,
                found.golden_zeros,
            ),
        ):  # fmt: skip
            side.add_values(count, total, squares, low, high, zeros)
        sums.dot += found.dot
        sums.npu_squares += found.npu_squares
        sums.golden_squares += found.golden_squares
        sums.error_squares += found.error_squares
        sums.error_total += found.error_total
        sums.add_relative(found.relative_total)
        sums.add_ranges(found.npu_low, found.npu_high, found.golden_low, found.golden_high)
        if found.max_error > sums.max_error:
            at = found.max_error_at
            sums.max_error, sums.max_error_at = found.max_error, offset + at
            sums.npu_at_max, sums.golden_at_max = float(x[at]), float(y[at])
        sums.max_relative = max(sums.max_relative, found.max_relative)

    def _add_scaled(self, sums: KlSums, ranges: Ranges, floors: tuple[float, float], x: Floats, y: Floats) -> None:
        if x.dtype != np.float32 or not _fit(x, y):
            super()._add_scaled(sums, ranges, floors, x, y)
            return
        limits, found = self._ranges, self._second
        limits[:] = ranges[0][0], ranges[1][0], *floors
        self._second_pass(x.ctypes.data, y.ctypes.data, x.size, limits.ctypes.data, ctypes.byref(found))
        sums.p += found.p
        sums.q += found.q
        sums.apart += found.apart
        sums.p_log_ratio += found.p_log_ratio


def _fit(x: Numbers, y: Numbers) -> bool:
    """Whether both sides are as the compiled functions take them."""
    return x.dtype == y.dtype and x.size == y.size > 0 and x.flags.c_contiguous and y.flags.c_contiguous
