"""One pair of tensors element by element: where the errors are, how large, and which values are the worst."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan

from precision_tool.lib.model.comparison import ZERO_BELOW
from precision_tool.lib.model.table import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """One element of both tensors. Of complex numbers the last index tells the real from the imaginary part.

    `relative` is nan where the benchmark counts as zero.
    """

    index: tuple[int, ...]
    npu: float
    golden: float

    @property
    def error(self) -> float:
        """|NPU - benchmark|; 0 for the same NaN or Inf."""
        if self.npu == self.golden or (isnan(self.npu) and isnan(self.golden)):
            return 0.0
        return abs(self.npu - self.golden)

    @property
    def relative(self) -> float:
        """The error relative to the benchmark's size, nan where that counts as zero."""
        size = abs(self.golden)
        return self.error / size if size > ZERO_BELOW else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBin:
    """How many elements have an error of at least `low` and below `high`."""

    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisShares:
    """The indices of one axis that hold most of the error, with their share of it (0 to 1)."""

    axis: int
    extent: int
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """A pair compared element by element. `shape` is that of the indices.

    `outside` counts elements with |NPU - benchmark| > atol + rtol * |benchmark|; the same NaN or Inf on both sides
    agrees. `histogram` counts the finite errors above zero, `equal` the elements without error. The shares are of the
    sum of squared errors, or, where elements are NaN or Inf on one side only (`shares_of_mismatches`), of these.
    """

    comparison: Row
    shape: tuple[int, ...]
    atol: float
    rtol: float
    count: int = 0
    outside: int = 0
    equal: int = 0
    first: tuple[Element, ...] = ()
    worst_absolute: tuple[Element, ...] = ()
    worst_relative: tuple[Element, ...] = ()
    histogram: tuple[ErrorBin, ...] = ()
    axes: tuple[AxisShares, ...] = ()
    shares_of_mismatches: bool = False

    @property
    def all_close(self) -> bool:
        """True if no element is outside the tolerance."""
        return self.outside == 0

    @property
    def outside_share(self) -> float:
        """The share of elements outside the tolerance, 0 to 1."""
        return self.outside / self.count if self.count else 0.0
