"""The arithmetic of integers of 64 bits, which float64 cannot hold, in numpy.

Integers are taken apart into two halves of 32 bits. Each half is exact in float64, and so are differences of halves and
their products with 2**32: what is put together of both is rounded once, however large and however near the integers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from precision_tool.lib.engine.pair_sums import SideSums
from precision_tool.lib.numbers.decode import Numbers

_BITS = 32
_HALF = 2.0**_BITS


Doubles = npt.NDArray[np.float64]


def _halves(a: Numbers) -> tuple[Doubles, Doubles]:
    """The upper 32 bits of integers, with their sign, and the lower ones."""
    kind = a.dtype.type
    upper, lower = a >> kind(_BITS), a & kind(2**_BITS - 1)  # type: ignore[operator]  # never floats
    return upper.astype(np.float64), lower.astype(np.float64)


def _together(upper: Doubles, lower: Doubles) -> Doubles:
    upper *= _HALF
    upper += lower
    return upper


def errors(x: Numbers, y: Numbers) -> Doubles:
    """x - y of 64-bit integers, signed or not, each rounded once."""
    (x_upper, x_lower), (y_upper, y_lower) = _halves(x), _halves(y)
    return _together(x_upper - y_upper, x_lower - y_lower)


def offsets(a: Numbers, base: int) -> Doubles:
    """How far 64-bit integers are from `base`, each rounded once."""
    upper, lower = _halves(a)
    return _together(upper - float(base >> _BITS), lower - float(base % 2**_BITS))


def mean_of(total: int, count: int) -> tuple[int, float]:
    """The integer next to the mean, and what the mean is above it: at most a half, so that nothing cancels where
    squares of deviations from that integer become those from the mean."""
    nearest = (2 * total + count) // (2 * count)
    return nearest, (total - nearest * count) / count


def add_side(side: SideSums, a: Numbers) -> None:
    """Adds integers, at most 2**21 whose halves float64 adds up exactly, to the sums of one side."""
    upper, lower = _halves(a)
    total = (int(upper.sum()) << _BITS) + int(lower.sum())
    nearest, rest = mean_of(total, a.size)
    upper -= float(nearest >> _BITS)
    lower -= float(nearest % 2**_BITS)
    apart = _together(upper, lower)
    squares = max(float(np.dot(apart, apart)) - a.size * rest * rest, 0.0)
    side.add_values(a.size, total, squares, int(a.min()), int(a.max()), a.size - int(np.count_nonzero(a)))
