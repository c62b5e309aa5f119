"""What float32 makes of sums that are added up one term after the other, as long chains of additions do it.

The random model of rounding (VERDICT.md §2) takes roundings for independent. They are not where neighbouring terms
are alike, so that partial sums in memory order wander off, nor where terms are equal: as long as a partial sum keeps
its exponent, equal terms are rounded by the same amount, which adds up linearly. How far that goes depends on the
numbers, so it is tried with them: some of the sums are added up in float32, in a few orders (N. J. Higham, "The
accuracy of floating point summation", SIAM J. Sci. Comput. 14, 1993: |error| ≤ u Σ |s_k| over the partial sums s_k).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.ops.base import Chained, summed_of

#: Terms that are added up in each order at most, so that trying takes some thousandths of a second.
TRIED_TERMS = 1 << 19
#: The rms of rounding to nearest in units of the unit roundoff (VERDICT.md §2), and that of float32.
_RMS, _UNIT = sqrt(0.18), 2.0**-24
#: Sums that are added up at least, however long.
_MIN_SUMS = 4
#: The largest of some thousand Gaussian errors is so many times their rms.
_LARGEST = 4.0


def chained(terms: npt.NDArray[Any], *, in_memory_order: bool = False) -> Chained:
    """Add up the terms of some sums, of shape (sums, terms), in float32.

    `in_memory_order`: `Output.summed` is that of the order of memory already where that is more.
    """
    count = terms.shape[1]
    if count < 2 or not terms.size:
        return Chained(1.0, sqrt(max(count, 1)))
    wide = np.asarray(terms, np.float64)
    total, squares = wide.sum(1), np.einsum("ij,ij->i", wide, wide)
    summed = summed_of(total, squares - total**2 / count, count)
    told = np.isfinite(summed) & (summed > 0)
    if not told.any():
        return Chained(1.0, sqrt(count))
    narrow, total, summed = wide[told].astype(np.float32), total[told], summed[told]
    factor, worst = 1.0, sqrt(count)
    for ordered in _orders(narrow):
        partial = np.add.accumulate(ordered, axis=1)
        if in_memory_order and ordered is narrow:
            summed = np.maximum(summed, np.linalg.norm(partial.astype(np.float64), axis=1))
        off = np.abs(partial[:, -1] - total) / (_RMS * _UNIT * np.hypot(summed, total))
        if not np.isfinite(off).all():
            continue
        factor = max(factor, sqrt(float(np.mean(off**2))), float(off.max()) / _LARGEST)
        worst = max(worst, float((np.abs(partial, out=partial).sum(1, dtype=np.float64) / summed).max()))
    return Chained(factor, worst)


def _orders(terms: npt.NDArray[np.float32]) -> Iterator[npt.NDArray[np.float32]]:
    """Yield the terms in the order of memory, in the opposite one, and by columns of about as many rows."""
    yield terms
    yield terms[:, ::-1]
    columns = int(sqrt(terms.shape[1]))
    yield np.concatenate([terms[:, start::columns] for start in range(columns)], axis=1)


def sums_tried(count: int) -> int:
    """Return how many sums of `count` terms are added up at most."""
    return max(_MIN_SUMS, TRIED_TERMS // max(1, count))


def chained_over(parts: npt.NDArray[Any], axes: tuple[int, ...]) -> Chained:
    """Add up some of the sums of an array over these axes in float32, in the order of memory first."""
    axes = tuple(sorted(axes))
    kept = [axis for axis in range(parts.ndim) if axis not in axes]
    count = prod(parts.shape[axis] for axis in axes)
    for axis in sorted(kept, key=lambda axis: -parts.shape[axis]):
        sums = parts.size // max(1, count)
        step = min(parts.shape[axis], -(-sums // sums_tried(count)))
        if step > 1:
            parts = parts[tuple(slice(None, None, step if at == axis else 1) for at in range(parts.ndim))]
    return chained(parts.transpose(*kept, *axes).reshape(-1, max(1, count)))
