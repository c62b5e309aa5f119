"""Max, Min, Mean and Norm of a recorded tensor, and how far from the truth they may be.

msprobe takes them in the type of the tensor: Max and Min are elements; Mean and Norm were summed up in float32 and
rounded to the type. A sum of n numbers in float32 is off by λ √n u of their size, but for a probability of
2 exp(-λ²/2) (Higham and Mary, 2019); of a tensor without axes all four are its value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf, isfinite, prod, sqrt

from precision_tool.lib.io.data_types import FLOATS
from precision_tool.lib.io.msprobe_dump import data_type_of
from precision_tool.lib.model.msprobe import Number, RecordedTensor

#: λ: of 10⁷ figures one is farther off.
_SPREAD = 6.0
_FLOAT32 = 2.0**-24
#: The smallest normal number of float32, whose square root is the smallest that has a square.
_SMALLEST = 2.0**-126
#: From so many numbers on, float32 sums of 16 numbers at a time stand still (2²⁴ terms each): they say nothing.
_MOST_SUMMED = 16 << 24
#: No memory has so many numbers.
_MOST_COUNTED = 1 << 62
#: The names of the figures, as messages have them.
MAX, MIN, MEAN, NORM = "Max", "Min", "Mean", "Norm"


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers between which a true one lies."""

    low: float
    high: float

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.high + other.high)

    def times(self, factor: float) -> Range:
        """Return the range of so many times the number."""
        low, high = self.low * factor, self.high * factor
        return Range(min(low, high), max(low, high))

    def wider(self, amount: float) -> Range:
        """Return a range that is wider on both sides."""
        return Range(self.low - amount, self.high + amount)

    def meets(self, other: Range) -> bool:
        """Return whether a number can lie in both."""
        return self.low <= other.high and other.low <= self.high

    @property
    def size(self) -> float:
        """The largest absolute value."""
        return max(abs(self.low), abs(self.high))


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """The figures of a tensor that has numbers.

    `mean` and `norm` are None where they were not recorded or overflowed in the tensor's type. `unit` is the unit
    roundoff of the type, 0 of whole numbers, `tiny` what its smallest numbers are rounded by.
    """

    shape: tuple[int, ...]
    dtype: str
    unit: float
    tiny: float
    maximum: float
    minimum: float
    mean: Range | None = None
    norm: Range | None = None

    @property
    def count(self) -> int:
        """How many numbers the tensor has."""
        return prod(self.shape)

    @property
    def largest(self) -> float:
        """The largest absolute value."""
        return max(abs(self.maximum), abs(self.minimum))

    @property
    def rms(self) -> float:
        """The root mean square at most: the largest absolute value where the norm does not tell."""
        return self.largest if self.norm is None else min(self.largest, self.norm.high / sqrt(self.count))

    @property
    def norm_high(self) -> float:
        """The norm at most."""
        return self.rms * sqrt(self.count)

    @property
    def mean_range(self) -> Range:
        """The mean; between the smallest and the largest value where it was not recorded."""
        return Range(self.minimum, self.maximum) if self.mean is None else self.mean

    @property
    def is_finite(self) -> bool:
        """Whether it has neither NaN nor Inf."""
        return isfinite(self.maximum) and isfinite(self.minimum)

    @property
    def is_constant(self) -> bool:
        """Whether all its numbers are the same."""
        return self.maximum == self.minimum

    def range_of(self, figure: str) -> Range | None:
        """Return a figure by its name."""
        if figure in (MAX, MIN):
            value = self.maximum if figure == MAX else self.minimum
            return Range(value, value)
        return self.mean if figure == MEAN else self.norm

    def is_like(self, other: Statistics) -> bool:
        """Return whether this may be the same numbers, in whatever shape and type."""
        if self.count != other.count:
            return False
        unit = max(self.unit, other.unit) if self.dtype != other.dtype else 0.0
        slack = unit * max(self.largest, other.largest)
        if abs(self.maximum - other.maximum) > slack or abs(self.minimum - other.minimum) > slack:
            return False
        pairs = ((self.mean, other.mean, slack), (self.norm, other.norm, slack * sqrt(self.count)))
        return all(a is None or b is None or a.wider(amount).meets(b) for a, b, amount in pairs)


def statistics_of(tensor: RecordedTensor) -> Statistics | None:
    """Return the figures of a recorded tensor; None where it has none, is not whole, or has NaN or Inf."""
    # Of a tensor that several devices hold, or that is made of others, the figures are those of a part.
    if not tensor.type.endswith((".Tensor", ".Parameter")) or tensor.more:
        return None
    dtype = data_type_of(tensor.dtype)
    maximum, minimum = _number(tensor.maximum), _number(tensor.minimum)
    count = prod(tensor.shape)
    if not dtype or dtype.startswith("complex") or maximum is None or minimum is None or not 0 < count < _MOST_COUNTED:
        return None
    limits = FLOATS.get(dtype)
    unit = 2.0 ** -(limits.digits + 1) if limits else 0.0
    tiny = 2.0**-24 if dtype == "float16" else _SMALLEST if limits else 0.0
    mean, norm = _number(tensor.mean), _number(tensor.norm)
    if not tensor.shape:
        mean, norm, summed = maximum, abs(maximum), 0.0
    else:
        summed = unit + _SPREAD * _FLOAT32 * sqrt(count)
    if not limits or count >= _MOST_SUMMED:
        mean = norm = None
    size = max(abs(maximum), abs(minimum))
    rms = size if norm is None else min(size, norm / sqrt(count))
    return Statistics(
        shape=tensor.shape, dtype=dtype, unit=unit, tiny=tiny, maximum=maximum, minimum=minimum,
        mean=None if mean is None else Range(mean, mean).wider(
            unit * abs(mean) + (summed - unit if summed else 0.0) * rms + tiny
        ),
        # The squares of the smallest numbers are none in float32.
        norm=None if norm is None else Range(max(norm * (1 - summed) - tiny, 0.0), norm * (1 + summed) + tiny).wider(
            sqrt(_SMALLEST * count) if summed else 0.0
        ),
    )  # fmt: skip


def statistics_of_any(tensor: RecordedTensor) -> Statistics | None:
    """Return the same of a tensor that may have NaN or Inf as its Max or Min; it has then no other figures."""
    limits = [value for value in (tensor.maximum, tensor.minimum) if isinstance(value, float)]
    if len(limits) == 2 and not all(map(isfinite, limits)):
        others = statistics_of(replace(tensor, maximum=0.0, minimum=0.0, mean=None, norm=None))
        return others and replace(others, maximum=limits[0], minimum=limits[1])
    return statistics_of(tensor)


def coarsest(tensors: Iterable[Statistics]) -> float:
    """Return the unit roundoff of the coarsest type of some tensors."""
    return max((tensor.unit for tensor in tensors), default=0.0)


def largest_of(dtype: str) -> float:
    """Return the largest number of a type."""
    limits = FLOATS.get(dtype)
    return limits.largest if limits else inf


def _number(value: Number | None) -> float | None:
    try:
        return float(value) if value is not None and isfinite(value) else None
    except OverflowError:  # a whole number of many digits
        return None
