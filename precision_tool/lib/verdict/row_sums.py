"""A look at every element of a large product: whether the sums of its rows, over all columns, are what they should be.

A wrong element, column or row is seen in the sums of its rows unless it is small beside the rounding of a whole row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.ops.arguments import distinct
from precision_tool.lib.ops.base import Doubles, Input, Kind, Places, summed_of
from precision_tool.lib.verdict.formulas import Formula
from precision_tool.lib.verdict.rounding import ACCUMULATED, MEAN_SQUARE, SLACK, SMALLEST, UNIT

#: Elements that are held as doubles at once.
_AT_ONCE = 1 << 20
#: Elements at most of the rows that are farthest off, and as many of those without a sum, which are then recomputed.
_SHOWN = 1 << 12


@dataclass(frozen=True, slots=True)
class OddRows:
    """The flat places of output 0 in rows whose sums are not what they should be, and how many such rows are left."""

    places: Places
    left: int


def odd_rows(formula: Formula, inputs: Mapping[int, Input], got: Mapping[int, Input], u_in: float) -> OddRows | None:
    """The rows of output 0 whose sums are off by more than rounding, the farthest off, and some that have no sum.

    A row with an element that is not finite has none: its other elements may be right, so that it tells less than one
    that is off. None where nothing was summed. `u_in` is what the matrix unit may round the inputs to.
    """
    one = got.get(0)
    sums = formula.row_sums(inputs) if one is not None else None
    if one is None or sums is None or one.dtype not in UNIT:
        return None
    rows = sums.as_rows(np.asarray(one.array))
    if rows.shape != (len(sums.sums), len(sums.signs)):
        return None
    with np.errstate(all="ignore"):
        total, energy = _summed(rows, sums.signs)
        # Of all elements of a row together, as `summed_of` has it of each.
        summed = summed_of(np.sqrt(energy), sums.squares - energy / max(sums.length, 1), sums.length)
        variance = UNIT[one.dtype] ** 2 * energy + (ACCUMULATED * summed) ** 2 + u_in**2 * sums.squares
        sigma = np.sqrt(MEAN_SQUARE * variance + rows.shape[1] * SMALLEST[one.dtype] ** 2 / 3)
        off = np.abs(total - sums.sums)
        ratio = np.divide(off, sigma, out=np.zeros_like(off), where=off != 0)
    is_told = np.isfinite(off) & ~np.isnan(ratio)
    off_rows = np.flatnonzero(is_told & (ratio > SLACK[Kind.MATRIX]))
    untold = np.flatnonzero(~is_told)
    few = max(1, _SHOWN // rows.shape[1])
    farthest = off_rows[np.argsort(-ratio[off_rows], kind="stable")[:few]]
    some = untold[:: max(1, -(-len(untold) // few))]
    left = len(off_rows) - len(farthest) + len(untold) - len(some)
    return OddRows(sums.places(distinct(np.append(farthest, some))), left)


def _summed(rows: npt.NDArray[Any], signs: Doubles) -> tuple[Doubles, Doubles]:
    """Of each row the sum of its elements with their signs, and that of their squares."""
    total, energy = np.empty(len(rows)), np.empty(len(rows))
    step = max(1, _AT_ONCE // rows.shape[1])
    for start in range(0, len(rows), step):
        some = slice(start, start + step)
        wide = np.asarray(rows[some], np.float64)
        total[some], energy[some] = wide @ signs, np.einsum("rc,rc->r", wide, wide)
    return total, energy
