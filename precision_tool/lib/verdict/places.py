"""The shape of an error: where in a tensor it stands, and which simple mistake would have made it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice, permutations
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

#: Orders of the axes that are tried at most (all of five axes).
_MOST_ORDERS = 120
#: Steps along an axis that are tried at most.
_MOST_STEPS = 32
#: Share of the elements that a mistake must explain.
_EXPLAINED = 0.99
#: Share of a run of elements that is wrong, where all that made it was overwritten: zeros and masks hide some.
_DENSE = 0.5
#: Elements that are looked at for a mistake at most; of larger tensors a part.
_LOOKED_AT = 1 << 22
#: Bits in the mantissas of narrow types, and their unit roundoff: bfloat16, float16.
_NARROW = ((8, 2.0**-8), (11, 2.0**-11))
#: Different values that a type must hold at least: one in eight of float16 has the mantissa of bfloat16.
_FEW = 8
#: Relative closeness of two values that are the same but for rounding, in units of the last place.
_UNITS = 16.0


class Mistake(StrEnum):
    """What would have made an error. `UNKNOWN` if none of them."""

    #: Every value is there, in the order of other axes.
    AXES = "axes"
    #: Every value is there, some steps further along an axis.
    SHIFTED = "shifted"
    #: Every value is there, in an order that is none of these.
    PERMUTED = "permuted"
    #: Nothing was written.
    ZERO = "zero"
    #: All, or the wrong ones, are one factor times the right ones.
    SCALED = "scaled"
    #: The end of the tensor, or of each row, and nothing else.
    TAIL = "tail"
    #: The right values, rounded to a narrower type on the way: to integers, bfloat16 or float16.
    NARROWED = "narrowed"
    #: Numbers that are not finite.
    NOT_FINITE = "not_finite"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where an output is wrong. Offsets are in elements in the order of the script.

    `axis` and `index` name the one slice that holds every wrong element, if there is one. `factor` is the scale of
    the wrong elements, `order` the order of axes, `steps` how far it is shifted along `axis`.
    """

    mistake: Mistake
    wrong: int
    size: int
    first: int
    last: int
    axis: int | None = None
    index: int | None = None
    factor: float | None = None
    order: tuple[int, ...] = ()
    steps: int = 0

    @property
    def is_run(self) -> bool:
        """Whether the wrong elements are one run inside the tensor that no simple mistake of a kernel explains."""
        length = self.last - self.first + 1
        inside = self.last < self.size - 1 and length < self.size
        return self.mistake is Mistake.UNKNOWN and inside and self.wrong >= _DENSE * length

    @property
    def is_moved(self) -> bool:
        """Whether the values are right and stand in the wrong places for a wrong order of the axes."""
        return self.mistake in (Mistake.AXES, Mistake.PERMUTED)


def places_of(got: npt.NDArray[Any], true: npt.NDArray[Any], bad: Flags, unit: float) -> Places:
    """The shape of an error. `got` and `true` have one shape, `bad` is flat; `unit` is the type's unit roundoff."""
    where = np.flatnonzero(bad)
    base: dict[str, Any] = {
        "wrong": int(where.size),
        "size": int(bad.size),
        "first": int(where[0]),
        "last": int(where[-1]),
    }
    y, f = np.asarray(got, np.float64), np.asarray(true, np.float64)
    with np.errstate(all="ignore"):
        if not np.isfinite(y.reshape(-1)[where]).all():
            return Places(mistake=Mistake.NOT_FINITE, **base)
        moved = _moved(y, f, unit, where) if y.size <= _LOOKED_AT else None
        if moved is not None:
            return Places(**{**base, **moved})
        return Places(**{**base, **_shape(y, f, bad, where, unit)})


def _close(y: Doubles, f: Doubles, unit: float, wrong: int | None = None) -> bool:
    """Whether two tensors are the same but for rounding, in all but a few elements.

    `wrong` is how many are off without the mistake that is tried: it must explain nearly all of these. In a tensor
    of few different values any order of them is nearly right.
    """
    size = float(np.sqrt(np.mean(np.square(f, where=np.isfinite(f), out=np.zeros_like(f)))))
    near = np.abs(y - f) <= _UNITS * unit * (np.abs(f) + size)
    near |= y == f
    return bool(near.size - np.count_nonzero(near) <= (1 - _EXPLAINED) * (near.size if wrong is None else wrong))


def _moved(y: Doubles, f: Doubles, unit: float, where: npt.NDArray[np.intp]) -> dict[str, Any] | None:
    """The order in which every right value is there; the elements at `where` are off where they stand.

    These have the same values among them: among all of them a few others would be near some value too.
    """
    flat, wrong = y.reshape(-1), where.size
    if y.size < 2 or _close(flat, f.reshape(-1), unit):
        return None  # too near to have moved
    if not _close(np.sort(flat[where]), np.sort(f.reshape(-1)[where]), unit):
        return None
    for axis, steps in _steps(f.shape):
        if _close(flat, np.roll(f, steps, axis).reshape(-1), unit, wrong):
            return {"mistake": Mistake.SHIFTED, "axis": axis, "steps": steps}
    for order in _orders(f.ndim):
        if _close(flat, f.transpose(order).reshape(-1), unit, wrong):
            return {"mistake": Mistake.AXES, "order": order}
        shape = tuple(f.shape[axis] for axis in order)
        if _close(flat, f.reshape(shape).transpose(np.argsort(order)).reshape(-1), unit, wrong):
            return {"mistake": Mistake.AXES, "order": order}
    return {"mistake": Mistake.PERMUTED}


def _orders(count: int) -> Iterator[tuple[int, ...]]:
    yield from islice((order for order in permutations(range(count)) if order != tuple(range(count))), _MOST_ORDERS)


def _steps(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Axes and steps, the short ones first."""
    for axis, extent in enumerate(shape):
        for steps in range(1, min(extent // 2, _MOST_STEPS) + 1):
            yield axis, steps
            yield axis, -steps


def _shape(y: Doubles, f: Doubles, bad: Flags, where: npt.NDArray[np.intp], unit: float) -> dict[str, Any]:
    flat, right = y.reshape(-1), f.reshape(-1)
    found: dict[str, Any] = {"mistake": Mistake.UNKNOWN}
    place = _slice(bad.reshape(f.shape), where)
    if place is not None:
        found |= {"axis": place[0], "index": place[1]}
    if not flat.any():
        return found | {"mistake": Mistake.ZERO}
    x, t = flat[where], right[where]
    if _is_narrowed(x, t, unit):
        return found | {"mistake": Mistake.NARROWED}
    squares = float(t @ t)
    if squares and (where.size > 1 or flat.size == 1):
        factor = float(x @ t) / squares
        if factor and _close(x, factor * t, unit):
            return found | {"mistake": Mistake.SCALED, "factor": factor}
    if _is_tail(bad.reshape(f.shape), where):
        return found | {"mistake": Mistake.TAIL}
    return found


def _is_narrowed(x: Doubles, t: Doubles, unit: float) -> bool:
    """Whether a narrower type than theirs holds the values, all next to the right ones, and not by chance."""
    if not x.any() or np.unique(x).size < _FEW:
        return False
    held = [(x == np.rint(x)) & (np.abs(x - t) <= 1)] if (t != np.rint(t)).any() else []
    for bits, other in _NARROW:
        if other > unit > 0:
            mantissa = np.ldexp(np.frexp(x)[0], bits)
            held.append((mantissa == np.rint(mantissa)) & (np.abs(x - t) <= (other + 2 * unit) * np.abs(t)))
    return any(np.count_nonzero(one) >= _EXPLAINED * x.size for one in held)


def _slice(bad: Flags, where: npt.NDArray[np.intp]) -> tuple[int, int] | None:
    """Axis and index of the one slice that holds every wrong element."""
    if where.size == bad.size or bad.ndim < 1:
        return None
    for axis, at in enumerate(np.unravel_index(where, bad.shape)):
        if bad.shape[axis] > 1 and (at == at[0]).all():
            return axis, int(at[0])
    return None


def _is_tail(bad: Flags, where: npt.NDArray[np.intp]) -> bool:
    """Whether only the end of the tensor, or of its rows, is wrong."""
    if not bad.ndim or where.size == bad.size:
        return False
    if where[0] >= bad.size // 2 and where[-1] == bad.size - 1:
        return True
    width = bad.shape[-1]
    columns = where % width
    rows = prod(bad.shape[:-1])
    return bool(rows > 1 and columns.min() > 0 and columns.max() == width - 1 and columns.min() >= width // 2)
