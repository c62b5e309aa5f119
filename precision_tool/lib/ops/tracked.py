"""Numbers that carry how far rounding may have taken them: for formulas of several steps in one kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from precision_tool.lib.ops.base import Doubles, Output, summed_of


@dataclass(frozen=True, slots=True, eq=False)
class Tracked:
    """An array and the variance that the roundings of its steps make of it, in units of u_acc².

    Every operation rounds its result once; errors of the operands come through to first order and are independent.
    Operands that are no `Tracked` are exact. So `summed` is `Output.summed` of a formula, cancellation included.
    """

    value: Doubles
    variance: Doubles | float = 0.0

    #: numpy leaves array + Tracked to this class.
    __array_ufunc__: ClassVar[None] = None

    def __add__(self, other: Tracked | npt.ArrayLike) -> Tracked:
        b = _tracked(other)
        y = self.value + b.value
        variance = y * y
        for operand in (self, b):
            if not _is_exact(operand):
                variance += operand.variance
        return Tracked(y, variance)

    def __neg__(self) -> Tracked:
        return Tracked(-self.value, self.variance)

    def __sub__(self, other: Tracked | npt.ArrayLike) -> Tracked:
        return self + -_tracked(other)

    def __mul__(self, other: Tracked | npt.ArrayLike) -> Tracked:
        b = _tracked(other)
        y = self.value * b.value
        variance = y * y
        if not _is_exact(self):
            variance += self.variance * b.value**2
        if not _is_exact(b):
            variance += b.variance * self.value**2
        return Tracked(y, variance)

    def __truediv__(self, other: Tracked | npt.ArrayLike) -> Tracked:
        b = _tracked(other)
        y = self.value / b.value
        variance = y * y
        if not _is_exact(self):
            variance += self.variance / b.value**2
        if not _is_exact(b):
            variance += b.variance * (y / b.value) ** 2
        return Tracked(y, variance)

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: npt.ArrayLike) -> Tracked:
        return -self + other

    def __rtruediv__(self, other: npt.ArrayLike) -> Tracked:
        return _tracked(other) / self

    def sqrt(self) -> Tracked:
        """The square root."""
        y = np.sqrt(self.value)
        safe = np.where(self.value > 0, self.value, 1.0)
        return Tracked(y, self.variance / (4 * safe) + y * y)

    def power(self, exponent: float) -> Tracked:
        """A fixed power, which kernels compute through a logarithm."""
        y = np.power(self.value, exponent)
        safe = np.where(self.value == 0, 1.0, self.value)
        own = y * (1 + np.abs(exponent * np.log(np.abs(safe))))
        return Tracked(y, self.variance * (exponent * y / safe) ** 2 + own * own)

    def exp(self) -> Tracked:
        """The exponential."""
        y = np.exp(self.value)
        own = y * (1 + np.abs(self.value))
        return Tracked(y, self.variance * y * y + own * own)

    def log(self) -> Tracked:
        """The natural logarithm, which kernels compute to an error of about |log x| + 1."""
        y = np.log(self.value)
        own = 1 + np.abs(y)
        return Tracked(y, self.variance / np.where(self.value == 0, 1.0, self.value) ** 2 + own * own)

    def total(self, axes: int | tuple[int, ...], keep: bool = True) -> Tracked:
        """The sum over axes, in an order that is not known."""
        y = np.sum(self.value, axis=axes, keepdims=keep)
        count = self.value.size // max(1, y.size)
        if count <= 1:
            own: Doubles = np.zeros_like(y)
        else:
            own = summed_of(y, np.sum(self.value**2, axis=axes, keepdims=keep) - y**2 / count, count) ** 2
        return Tracked(y, np.sum(self.noise, axis=axes, keepdims=keep) + own)

    def matmul(self, other: Doubles) -> Tracked:
        """Return the matrix product with exact numbers, summed in an order that is not known."""
        y = self.value @ other
        squares = self.value**2 @ other**2
        count = max(1, self.value.shape[-1])
        return Tracked(y, self.noise @ other**2 + summed_of(y, squares - y**2 / count, count) ** 2)

    def __getitem__(self, index: Any) -> Tracked:
        """Return a selection of the numbers."""
        return Tracked(self.value[index], self.noise[index])

    def reshape(self, *shape: int) -> Tracked:
        """Return the numbers in another shape."""
        return Tracked(self.value.reshape(shape), self.noise.reshape(shape))

    def tanh(self) -> Tracked:
        """The hyperbolic tangent, which kernels make of exponentials: near 0 to an error of 1."""
        y = np.tanh(self.value)
        return Tracked(y, self.variance * (1 - y * y) ** 2 + 1.0)

    def sigmoid(self) -> Tracked:
        """1 / (1 + exp(−x)), without overflow."""
        small = np.exp(-np.abs(self.value))
        y = np.where(self.value >= 0, 1.0, small) / (1 + small)
        own = y * (1 + np.abs(self.value) * (1 - y))
        return Tracked(y, self.variance * (y * (1 - y)) ** 2 + own * own)

    def abs(self) -> Tracked:
        """The absolute value."""
        return Tracked(np.abs(self.value), self.variance)

    @property
    def noise(self) -> Doubles:
        """The variance of each number."""
        return np.broadcast_to(self.variance, self.value.shape)

    @property
    def summed(self) -> Doubles:
        """`Output.summed`."""
        result: Doubles = np.sqrt(np.asarray(self.noise, np.float64))
        return result

    def output(self) -> Output:
        """Return the numbers as an op's output."""
        return Output(array=np.asarray(self.value), summed=self.summed)


def _is_exact(operand: Tracked) -> bool:
    """Return whether a number was not rounded; adding nothing for each element takes as long as adding something."""
    return not isinstance(operand.variance, np.ndarray) and not operand.variance


def _tracked(value: Tracked | npt.ArrayLike) -> Tracked:
    return value if isinstance(value, Tracked) else Tracked(np.asarray(value, np.float64))


#: The rms of rounding to nearest by the unit roundoff of float32, in which a variance of 1 is an error.
_UNIT_ERROR = 0.18**0.5 * 2.0**-24


def held(value: float, reciprocal: bool = False) -> Tracked:
    """A number as kernels may hold it: in float32, or the reciprocal of that in float32.

    One rounding is then in every element that the number takes part in; how large it is, is known.
    """
    exact = 1 / value if reciprocal else value
    narrow = float(np.float32(1 / np.float32(value)) if reciprocal else np.float32(value))
    off = abs(narrow - exact) if np.isfinite(narrow) else 0.0
    return Tracked(np.asarray(exact), (off / _UNIT_ERROR) ** 2)


def where(condition: npt.NDArray[np.bool_], first: Tracked | npt.ArrayLike, other: Tracked | npt.ArrayLike) -> Tracked:
    """One where the condition holds, else the other."""
    a, b = _tracked(first), _tracked(other)
    return Tracked(np.where(condition, a.value, b.value), np.where(condition, a.variance, b.variance))


def maximum(first: Tracked | npt.ArrayLike, other: Tracked | npt.ArrayLike) -> Tracked:
    """The larger of two."""
    a, b = _tracked(first), _tracked(other)
    return where(np.asarray(a.value >= b.value) | np.isnan(a.value), a, b)
