"""The shape of an error: where in a tensor it stands, and which simple mistake would have made it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice, permutations
from math import inf, isfinite, nan, prod, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.io.data_types import FLOATS
from precision_tool.lib.ops.base import Chained, Kind, Output

Doubles = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

#: Orders of the axes that are tried at most (all of five axes).
_MAX_ORDERS = 120
#: Steps along an axis that are tried at most.
_MAX_STEPS = 32
#: Share of the elements that a mistake must explain.
_EXPLAINED = 0.99
#: Share of a run of elements that is wrong, where all that made it was overwritten: zeros and masks hide some.
_DENSE = 0.5
#: Elements that are looked at for a mistake at most; of larger tensors a part.
_LOOKED_AT = 1 << 22
#: Bits in the mantissas of narrow types, and their unit roundoff: bfloat16, float16.
_NARROW = ((8, 2.0**-8), (11, 2.0**-11))
#: Different values that a type must hold at least: one in eight of float16 has the mantissa of bfloat16.
_MIN_ELEMENTS = 8
#: Relative closeness of two values that are the same but for rounding, in units of the last place.
_UNITS = 16.0
#: Values that have moved differ by so many times that, as a rule.
_MOVED = 4.0
#: Fewer wrong elements do not tell a constant that was added to them.
_MIN_ADDED_TO = 4


class Mistake(StrEnum):
    """Known causes of an error by its shape; `UNKNOWN` if none of them fits."""

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
    #: The right values, always rounded toward zero.
    TRUNCATED = "truncated"
    #: The right values, often rounded to the wrong one of the two neighbours.
    MISROUNDED = "misrounded"
    #: All, or the wrong ones, are the right ones plus one constant.
    OFFSET = "offset"
    #: Numbers that are not finite.
    NOT_FINITE = "not_finite"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Location of wrong elements. Offsets are in elements in the order of the script.

    `axis` and `index` name the one slice that holds every wrong element, if there is one. `factor` is the scale of
    the wrong elements, `offset` what was added to them, `order` the order of axes, `steps` how far it is shifted
    along `axis`.
    """

    mistake: Mistake
    wrong: int
    size: int
    first: int
    last: int
    axis: int | None = None
    index: int | None = None
    factor: float | None = None
    offset: float | None = None
    order: tuple[int, ...] = ()
    steps: int = 0

    @property
    def is_run(self) -> bool:
        """Return whether the wrong elements are one run, which another tensor may have overwritten."""
        length = self.last - self.first + 1
        inside = self.last < self.size - 1 and length < self.size
        return self.mistake is Mistake.UNKNOWN and inside and self.wrong >= _DENSE * length

    @property
    def is_moved(self) -> bool:
        """True if the values are right and stand in the wrong places for a wrong order of the axes."""
        return self.mistake in (Mistake.AXES, Mistake.PERMUTED)


def places_of(got: npt.NDArray[Any], true: npt.NDArray[Any], bad: Flags, unit: float) -> Places:
    """Return the shape of an error: `got`, `true` have one shape, `bad` is flat, `unit` is the roundoff."""
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
    """Return whether two tensors are the same but for rounding, in all but a few elements.

    `wrong` is how many are off without the mistake that is tried: it must explain nearly all of these. In a tensor
    of few different values any order of them is nearly right.
    """
    size = float(np.sqrt(np.mean(np.square(f, where=np.isfinite(f), out=np.zeros_like(f)))))
    near = np.abs(y - f) <= _UNITS * unit * (np.abs(f) + size)
    near |= y == f
    return bool(near.size - np.count_nonzero(near) <= (1 - _EXPLAINED) * (near.size if wrong is None else wrong))


def _is_near(x: Doubles, t: Doubles, unit: float) -> bool:
    """Return whether most values are off by little more than what counts as equal, as no other values would be."""
    size = sqrt(float(np.mean(np.square(t))))
    off = np.abs(x - t) / (np.abs(t) + size) if size else np.zeros(1)
    return float(np.median(off)) <= _MOVED * _UNITS * unit


def _moved(y: Doubles, f: Doubles, unit: float, where: npt.NDArray[np.intp]) -> dict[str, Any] | None:
    """Return the order in which every right value is there; the elements at `where` are off where they stand.

    These have the same values among them: among all of them a few others would be near some value too.
    """
    flat, wrong = y.reshape(-1), where.size
    if y.size < 2 or _close(flat, f.reshape(-1), unit):
        return None  # too near to have moved
    if not _close(np.sort(flat[where]), np.sort(f.reshape(-1)[where]), unit):
        return None
    if _is_near(flat[where], f.reshape(-1)[where], unit):
        return None  # in order of size also what is off by a little everywhere is the same
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
    yield from islice((order for order in permutations(range(count)) if order != tuple(range(count))), _MAX_ORDERS)


def _steps(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Return axes and steps, the short ones first."""
    for axis, extent in enumerate(shape):
        for steps in range(1, min(extent // 2, _MAX_STEPS) + 1):
            yield axis, steps
            yield axis, -steps


def _shape(y: Doubles, f: Doubles, bad: Flags, where: npt.NDArray[np.intp], unit: float) -> dict[str, Any]:
    flat, right = y.reshape(-1), f.reshape(-1)
    shape_fields: dict[str, Any] = {"mistake": Mistake.UNKNOWN}
    place = _slice(bad.reshape(f.shape), where)
    if place is not None:
        shape_fields |= {"axis": place[0], "index": place[1]}
    if not flat.any():
        return shape_fields | {"mistake": Mistake.ZERO}
    x, t = flat[where], right[where]
    if _is_next(x, t, unit):
        is_lower = bool((np.abs(x) < np.abs(t)).all())
        return shape_fields | {"mistake": Mistake.TRUNCATED if is_lower else Mistake.MISROUNDED}
    if _is_narrowed(x, t, unit):
        return shape_fields | {"mistake": Mistake.NARROWED}
    squares = float(t @ t)
    if squares and (where.size > 1 or flat.size == 1):
        factor = float(x @ t) / squares
        # Where the bounds are wide, also what is off by anything is close: the factor has to take the error away.
        if factor and _close(x, factor * t, unit) and 2 * norm(x - factor * t) <= norm(x - t):
            return shape_fields | {"mistake": Mistake.SCALED, "factor": factor}
    added = _added(x, t, unit)
    if added is not None:
        return shape_fields | {"mistake": Mistake.OFFSET, "offset": added}
    if _is_tail(bad.reshape(f.shape), where):
        return shape_fields | {"mistake": Mistake.TAIL}
    return shape_fields


def _is_next(x: Doubles, t: Doubles, unit: float) -> bool:
    """Return whether values are the other one of the two neighbours that the right ones lie between.

    Nothing else makes so small errors wrong (`_misrounded`).
    """
    return bool(0 < unit < 1 and x.size >= MIN_MISROUNDED and (np.abs(x - t) < _spacing(t, unit)).all())


def _added(x: Doubles, t: Doubles, unit: float) -> float | None:
    """Return the constant that was added to all values; None if they differ by more than one.

    Where all should be the same, or are, another number was written: nothing tells that it was added.
    """
    if x.size < _MIN_ADDED_TO or float(np.ptp(t)) <= _UNITS * unit * float(np.abs(t).max()) or not np.ptp(x):
        return None
    added = float(np.median(x - t))
    # What is stored was rounded after the sum, and the right value perhaps before it.
    slack = _UNITS * unit * (np.abs(t) + abs(added))
    is_one = np.count_nonzero(np.abs(x - t - added) <= slack) >= _EXPLAINED * x.size
    return float(f"{added:.3g}") if added and is_one and bool((np.abs(x - t) > slack).any()) else None


def _is_narrowed(x: Doubles, t: Doubles, unit: float) -> bool:
    """Return whether a narrower type than theirs holds the values, all next to the right ones, and not by chance."""
    if not x.any() or np.unique(x).size < _MIN_ELEMENTS:
        return False
    held = [(x == np.rint(x)) & (np.abs(x - t) <= 1)] if (t != np.rint(t)).any() else []
    for bits, other in _NARROW:
        if other > unit > 0:
            mantissa = np.ldexp(np.frexp(x)[0], bits)
            held.append((mantissa == np.rint(mantissa)) & (np.abs(x - t) <= (other + 2 * unit) * np.abs(t)))
    return any(np.count_nonzero(mask) >= _EXPLAINED * x.size for mask in held)


def _slice(bad: Flags, where: npt.NDArray[np.intp]) -> tuple[int, int] | None:
    """Return axis and index of the one slice that holds every wrong element."""
    if where.size == bad.size or bad.ndim < 1:
        return None
    for axis, at in enumerate(np.unravel_index(where, bad.shape)):
        if bad.shape[axis] > 1 and (at == at[0]).all():
            return axis, int(at[0])
    return None


def _is_tail(bad: Flags, where: npt.NDArray[np.intp]) -> bool:
    """Return whether only the end of the tensor, or of its rows, is wrong."""
    if not bad.ndim or where.size == bad.size:
        return False
    if where[0] >= bad.size // 2 and where[-1] == bad.size - 1:
        return True
    width = bad.shape[-1]
    columns = where % width
    rows = prod(bad.shape[:-1])
    return bool(rows > 1 and columns.min() > 0 and columns.max() == width - 1 and columns.min() >= width // 2)


#: Mistakes of the last place, each within what rounding explains: it is all of them that prove it.
OF_ROUNDING = (Mistake.TRUNCATED, Mistake.MISROUNDED)


# --- misfit -----------------------------------------------------------------------------------------------------------


#: Unit roundoff, largest number and half the distance of neighbours near 0, by type.
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
LIMIT = {name: FLOATS[name].largest for name in ("float16", "bfloat16", "float32")} | {"float64": inf}
#: Types of whole numbers, whose results are right or wrong; what else has no unit is not judged.
_WHOLE = ("int", "uint", "bool", "qint", "quint", "dual_sub")
#: Kernels flush float32's subnormal numbers, so that half its smallest normal one is nothing.
SMALLEST = {"float16": 2.0**-25, "bfloat16": 2.0**-127, "float32": 2.0**-127, "float64": 0.0}
#: The smallest normal numbers: devices may flush what is smaller to zero.
SMALLEST_NORMAL = {"float16": 2.0**-14, "bfloat16": 2.0**-126, "float32": 2.0**-126}
#: Of so many elements one may be farther off than the others, as the acceptance rules of kernels allow it.
#: By so many times at most: a single element that is plainly wrong is a fault.
_OUTLIERS, _OUTLIER_TIMES = 1e-4, 8.0
#: The mean square of rounding to nearest, in units of the unit roundoff (VERDICT.md §2).
MEAN_SQUARE = 0.18
#: What a kernel accumulates in.
ACCUMULATED = 2.0**-24
#: Kernels of exp, tanh, division and what is made of them approximate float32 to about so much of a result.
APPROXIMATED = {Kind.APPROXIMATE: 2.0**-20, Kind.COMPOSITE: 2.0**-20}
#: An element's error is doubtful up to so many times the slack; more, or many inexactly rounded ones, is proof.
DOUBT = 4.0
#: Below this share of correctly rounded elements, rounding happened elsewhere than at the end.
INEXACT = 0.6
MIN_ROUNDED_ELEMENTS = 64
#: A difference of so many times its rms is still rounding, by kind. Rounding to nearest alone reaches 2.4, one unit in
#: the last place 4.7; a Gaussian sum 6.9 in one of ten million elements. Approximated functions are several units off.
SLACK = {
    Kind.EXACT: 5.0, Kind.ROUNDED: 6.0, Kind.SUM: 8.0, Kind.MATRIX: 8.0, Kind.APPROXIMATE: 16.0, Kind.COMPOSITE: 16.0,
}  # fmt: skip


#: Kinds of which nothing but rounding to the type of the output is left, or little.
_ROUNDED_ONCE = (Kind.EXACT, Kind.ROUNDED)
#: So many numbers that a type does not hold tell how they are rounded to it: that all of them are rounded toward zero
#: by chance is as likely as 2^-64. A few others may be there, where a result was rounded twice.
_MIN_INEXACT, ONE_WAY = 64, 0.99
#: Share of them that are rounded to the farther neighbour, of those that nothing was computed with, and how many
#: elements that are at least (half of them, where all are rounded toward zero).
_MISROUNDED, MIN_MISROUNDED = 0.1, 16
#: An error above so many times its rms is that of no number that was rounded to nearest.
NEAREST = 1 / sqrt(MEAN_SQUARE) * 1.0001


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """Differences of an output from the true result. Arrays are flat and as long as the output.

    `ratio` is |y − f| over what rounding makes of it (rms), 0 where the two cannot or need not be compared; `bad` is
    True where that is more than the kind's slack, and than the device's imprecision explains. `over` is True where
    the true result is beyond the type's range. `size` is what an imprecision is relative to: the result, and all that
    was added up or approximated on the way to it.
    """

    got: Doubles
    true: Doubles
    sigma: Doubles
    ratio: Doubles
    bad: Flags
    over: Flags
    compared: Flags
    slack: float
    size: Doubles
    #: Share of what was compared that is the true result, correctly rounded.
    exact_share: float = 1.0
    #: The smallest normal number of the type.
    smallest: float = 0.0
    #: The largest error that the device's imprecision does not explain, over what rounding allows.
    excess: float = 0.0

    @property
    def flushed(self) -> Flags:
        """Where a subnormal result was put out as zero."""
        result: Flags = self.bad & (self.got == 0) & (np.abs(self.true) < self.smallest)
        return result

    @property
    def subnormal(self) -> int:
        """How many subnormal numbers were put out."""
        return int(np.count_nonzero((self.got != 0) & (np.abs(self.got) < self.smallest))) if self.smallest else 0

    def imprecision(self, kind: Kind) -> float:
        """Return the error beyond rounding over `size`, the largest but for elements that were flushed.

        Of approximated functions one element in ten thousand may be farther off.
        """
        where = np.flatnonzero(self.bad & ~self.flushed)
        with np.errstate(all="ignore"):
            beyond = np.abs(self.got[where] - self.true[where]) - self.slack * self.sigma[where]
            relative = np.sort(np.where(beyond <= 0, 0.0, beyond / self.size[where]))  # NaN is the largest
        if not relative.size:
            return 0.0
        if np.isnan(relative[-1]):
            return inf
        place = relative.size - 1 - (int(_OUTLIERS * self.got.size) if kind in APPROXIMATED else 0)
        return max(float(relative[place]) if place >= 0 else 0.0, float(relative[-1]) / _OUTLIER_TIMES)

    #: Of an output that is long sums, whether they are off by more than any chain of additions in float32.
    is_beyond_chains: bool | None = None

    @property
    def _where(self) -> Flags | slice:
        return slice(None) if self.compared.all() else self.compared

    @property
    def own(self) -> float:
        """‖y − f‖ / ‖f‖ over what was compared; inf if numbers are missing that should be there."""
        where = self._where
        distance = norm(self.got[where] - self.true[where])
        if not isfinite(distance):
            return inf
        size = norm(self.true[where])
        return distance / size if size else (0.0 if not distance else inf)

    @property
    def cosine(self) -> float:
        """The cosine of both over what was compared; NaN if numbers are missing that should be there."""
        where = self._where
        x, y = self.got[where], self.true[where]
        sizes = norm(x), norm(y)
        if not all(map(isfinite, sizes)):
            return nan
        if 0.0 in sizes:
            return float(sizes[0] == sizes[1])
        return float(np.einsum("i,i->", x / sizes[0], y / sizes[1]))

    @property
    def rounding(self) -> float:
        """‖σ‖ / ‖f‖: the relative distance that rounding explains."""
        where = self._where
        size = norm(self.true[where])
        noise = norm(self.sigma[where])
        return noise / size if size else (0.0 if not noise else inf)

    @property
    def worst(self) -> float:
        """The largest of the ratios, of what is bad if anything is; inf for what is not finite and should be."""
        return float((self.ratio[self.bad] if self.bad.any() else self.ratio).max(initial=0.0))


def flat_doubles(array: npt.ArrayLike) -> Doubles:
    """Return all numbers of an array in float64, in one axis."""
    return np.asarray(array, np.float64).reshape(-1)


def norm(array: npt.NDArray[Any]) -> float:
    """Return the Euclidean norm, also of numbers whose squares leave float64's range."""
    flat = array.reshape(-1)
    if not flat.size:
        return 0.0
    with np.errstate(all="ignore"):
        # Not BLAS, whose threads wait for each other where the cores are busy.
        direct = sqrt(float(np.einsum("i,i->", flat, flat)))
        if direct not in (0.0, inf) and direct == direct:
            return direct
        largest = float(np.abs(flat).max())
        return largest * float(np.linalg.norm(flat / largest)) if largest not in (0.0, inf) else largest


def has_rounding(dtype: str) -> bool:
    """Return whether it is known how a type is rounded: not of complex numbers, nor of floats of 8 bits and fewer."""
    return dtype in UNIT or dtype.startswith(_WHOLE)


def sigma_of(true: Doubles, out: Output, dtype: str, u_in: float) -> Doubles:
    """Return the rms of rounding per element (flat)."""
    unit = UNIT.get(dtype, 0.0)
    parts = (unit * np.abs(true)) ** 2
    for size, rounded in ((out.summed, ACCUMULATED), (out.terms, u_in)):
        if rounded:
            wide = np.broadcast_to(np.asarray(size, np.float64), out.array.shape).reshape(-1)
            parts = parts + (rounded * wide) ** 2
    result: Doubles = np.sqrt(MEAN_SQUARE * parts + SMALLEST.get(dtype, 0.0) ** 2 / 3)
    return result


def misfit(
    got: npt.NDArray[Any],
    out: Output,
    dtype: str,
    kind: Kind,
    *,
    u_in: float = 0.0,
    noise: Doubles | None = None,
    inner: Doubles | None = None,
    tolerance: float = 0.0,
    flushes: bool = False,
    is_update: bool = False,
) -> Misfit:
    """Compare an output with the true one.

    `noise` is the inner rounding of an element apart from `out`'s, `inner` its size inside a chain, `tolerance` the
    imprecision of the device, over that; it may flush subnormal numbers to zero if it `flushes`. Of an output that
    `is_update` the last addition is exact, and the imprecision that of the step. All may be of any shape of as many
    elements. Where the true result is not finite nothing is compared; beyond the range of the type
    neither (`over`).
    """
    fit = _misfit(
        got, out, dtype, kind, u_in=u_in, noise=noise, inner=inner, tolerance=tolerance, flushes=flushes,
        is_update=is_update,
    )  # fmt: skip
    if out.length < 2 or noise is not None or not fit.slack or not fit.bad.any():
        return fit
    with np.errstate(all="ignore"):
        if _is_beyond_any_order(fit, out):
            return replace(fit, is_beyond_chains=True)
        sigma, chain = _in_any_order(fit, out)
        wide = _misfit(got, out, dtype, kind, u_in=u_in, tolerance=tolerance, flushes=flushes, sigma=sigma)
        off = np.abs(fit.got - fit.true)
        imprecise = DOUBT * tolerance * fit.size
        is_beyond = bool((wide.bad & ~(off <= chain + DOUBT * fit.slack * fit.sigma + imprecise)).any())
        if not is_beyond and not tolerance and wide.bad.any() and off.size >= MIN_ROUNDED_ELEMENTS:
            near = np.count_nonzero(off <= chain + fit.sigma / sqrt(MEAN_SQUARE))
            is_beyond = bool(near < INEXACT * off.size)
    return replace(wide, is_beyond_chains=is_beyond)


def _is_beyond_any_order(fit: Misfit, out: Output) -> bool:
    """Return whether most wrong elements of long sums are off by more than any order explains, whatever the numbers.

    No partial sum is larger than Σ |p|, which is at most sqrt(n Σ p²); so there is nothing to try.
    """
    if not isinstance(out.terms, np.ndarray):
        return False
    bad = np.flatnonzero(fit.bad)
    terms = np.broadcast_to(out.terms, out.array.shape).reshape(-1)[bad]
    limit = ACCUMULATED * out.length**1.5 * terms + DOUBT * fit.slack * fit.sigma[bad]
    off = np.abs(fit.got[bad] - fit.true[bad])
    return bool(2 * np.count_nonzero(off > limit) > bad.size)


def _in_any_order(fit: Misfit, out: Output) -> tuple[Doubles, Doubles]:
    """Return the rms of rounding of long sums as some of them show it, and the most that a chain can be off.

    Partial sums in the order of memory and equal terms take them further than independent roundings do. No chain is
    off by more than u Σ |s_k|, so no element is allowed more; an output that is zero on paper is allowed all of it.
    """
    summed = np.broadcast_to(np.asarray(out.summed, np.float64), out.array.shape).reshape(-1)
    tried = out.chained() if out.chained is not None else Chained(1.0, 0.0)
    chain: Doubles = ACCUMULATED * max(tried.worst, sqrt(out.length)) * summed
    most = chain / fit.slack
    sigma = np.hypot(fit.sigma, np.minimum(sqrt(MEAN_SQUARE) * ACCUMULATED * tried.factor * summed, most))
    if norm(fit.true) <= fit.slack * norm(sigma):
        sigma = np.hypot(fit.sigma, most)
    return sigma, chain


def _misfit(
    got: npt.NDArray[Any],
    out: Output,
    dtype: str,
    kind: Kind,
    *,
    u_in: float = 0.0,
    noise: Doubles | None = None,
    inner: Doubles | None = None,
    tolerance: float = 0.0,
    flushes: bool = False,
    sigma: Doubles | None = None,
    is_update: bool = False,
) -> Misfit:
    """Compare as `misfit` does, with another rms of rounding than `sigma_of` if it is given."""
    with np.errstate(all="ignore"):
        y = np.asarray(got, np.float64).reshape(-1)
        true = np.asarray(out.array, np.float64).reshape(-1)
        same = _same(y, true, out, dtype, kind) if noise is None else None
        if same is not None:
            return same
        sigma = sigma_of(true, out, dtype, u_in) if sigma is None else sigma
        if noise is not None:
            sigma = np.sqrt(sigma**2 + noise**2)
        if dtype == "float32" and kind in APPROXIMATED:
            sigma = np.maximum(sigma, APPROXIMATED[kind] * np.abs(true))
        limit = LIMIT.get(dtype, inf)
        size = np.abs(true)
        largest = float(size.max(initial=0.0))
        off = np.abs(y - true)
        ratio = np.divide(off, sigma, out=np.zeros_like(off), where=off != 0)
        if largest < limit / 2:  # nor NaN: as a rule all of it fits
            over = np.zeros(true.shape, np.bool_)
            compared = ~over
        else:
            finite = np.isfinite(true)
            over = finite & (size > limit * (1 + UNIT.get(dtype, 0.0)))
            compared = finite & ~over
            # At the very edge of the range, rounding decides whether it overflows.
            near = finite & (size > limit - 8 * np.where(np.isfinite(sigma), sigma, 0.0))
            ratio = np.where(compared & ~(near & ~np.isfinite(y)), ratio, 0.0)
        if np.isnan(ratio.max(initial=0.0)):
            ratio = np.where(np.isnan(ratio), inf, ratio)
        if out.doubtful is not None:
            ratio = np.where(np.broadcast_to(out.doubtful, out.array.shape).reshape(-1), 0.0, ratio)
        slack = SLACK[kind]
        if dtype not in UNIT:  # integers and bools are right or wrong
            slack = 0.0
            ratio = np.where(ratio > 0, inf, 0.0)
        total = _step_of(out) if is_update else size_of(out)
        if inner is not None:
            total = np.maximum(total, inner)
        exact_share = _exact_share(ratio, compared)
        misrounded = np.zeros(true.shape, np.bool_)
        is_rounded_once = noise is None and kind in _ROUNDED_ONCE and dtype in SMALLEST_NORMAL
        if is_rounded_once and float(ratio.max(initial=0.0)) > NEAREST:
            misrounded = _misrounded(y, true, dtype, kind, compared & ((ratio > 0) | (y == true)))
        allowed, is_doubtful = ratio, False
        if tolerance and dtype in UNIT:
            allowed = _beyond(off, ratio, tolerance * total)
            is_doubtful = not _beyond(off, ratio, DOUBT * tolerance * total)[ratio > DOUBT * slack].any()
        smallest = SMALLEST_NORMAL.get(dtype, 0.0)
        if flushes:
            allowed = np.where((y == 0) & (size < smallest), 0.0, allowed)
        excess = float(allowed.max(initial=0.0))
        if is_doubtful:
            excess = min(excess, DOUBT * slack)
    return Misfit(
        got=y, true=true, sigma=sigma, ratio=ratio, bad=(allowed > slack) | misrounded, over=over, compared=compared,
        slack=slack, size=total, smallest=smallest, exact_share=exact_share,
        excess=excess / slack if slack else excess,
    )  # fmt: skip


def _beyond(off: Doubles, ratio: Doubles, allowed: Doubles) -> Doubles:
    """Return how many times its rounding each error is beyond what is allowed for the device.

    Infinity less anything is all of it, and inf / inf is NaN, which no bound finds wrong.
    """
    beyond = off - allowed
    return np.where(beyond <= 0, 0.0, np.where(np.isfinite(beyond), ratio * (beyond / off), ratio))


def _exact_share(ratio: Doubles, compared: Flags) -> float:
    count = int(np.count_nonzero(compared))
    if not count:
        return 1.0
    return float(np.count_nonzero(ratio[compared] <= NEAREST)) / count


def size_of(out: Output) -> Doubles:
    """Return, for each element (flat), the size of the result and of all that rounding on the way is relative to."""
    squares = np.square(np.asarray(out.array, np.float64))
    # Of a long sum about Σ |p|: its partial sums are many times as large together, each rounded for itself.
    for part in (out.summed, out.terms) if out.length < 2 else (sqrt(out.length) * np.asarray(out.terms),):
        if isinstance(part, np.ndarray) or part:
            squares = squares + np.square(np.asarray(part, np.float64))
    result: Doubles = np.sqrt(squares).reshape(-1)
    return result


def _step_of(out: Output) -> Doubles:
    """Return the same for what is added last, which is rounded as any sum of two numbers is.

    Of var − step the size has the square of the result twice: for itself, and as what was rounded last (`Tracked`).
    """
    squares: Doubles = np.square(size_of(out)) - 2 * np.square(np.asarray(out.array, np.float64)).reshape(-1)
    return np.sqrt(np.maximum(squares, 0.0))


def _spacing(values: Doubles, unit: float) -> Doubles:
    """Return how far the two neighbours are apart between which a type holds nothing; `unit` is its roundoff."""
    result: Doubles = np.ldexp(unit, np.frexp(values)[1])
    return result


def _inexact(true: Doubles, dtype: str) -> Flags:
    """Return which numbers a type does not hold, of those that are neither too small nor too large for it."""
    size = np.abs(true)
    result: Flags = (size >= SMALLEST_NORMAL[dtype]) & (size < LIMIT[dtype]) & (rounded_to(true, dtype) != true)
    return result


def tells_rounding(true: Doubles, dtype: str) -> bool:
    """Return whether the results for these numbers tell how they are rounded to a type."""
    return dtype in SMALLEST_NORMAL and int(np.count_nonzero(_inexact(true, dtype))) >= _MIN_INEXACT


def _misrounded(y: Doubles, true: Doubles, dtype: str, kind: Kind, told: Flags) -> Flags:
    """Return which elements at `told` were rounded to the farther neighbour, if that is how the op rounds.

    Each of them is off by less than one unit in the last place, which rounding on the way explains as well; not so if
    every number that the type does not hold was rounded toward zero, or if nothing was computed on the way.
    """
    size, inexact = np.abs(true), told & _inexact(true, dtype)
    count = int(np.count_nonzero(inexact))
    if count < _MIN_INEXACT:
        return np.zeros(true.shape, np.bool_)
    spacing, off = _spacing(true, UNIT[dtype]), np.abs(y - true)
    next_to = inexact & (off < spacing)
    farther = next_to & (off > spacing / 2 * (1 + 2.0**-20))
    is_one_way = int(np.count_nonzero(next_to & (np.abs(y) < size))) >= ONE_WAY * count
    often = int(np.count_nonzero(farther))
    is_proven = is_one_way or (kind is Kind.EXACT and often >= _MISROUNDED * count)
    return farther if is_proven and often >= MIN_MISROUNDED else np.zeros(true.shape, np.bool_)


def _same(y: Doubles, true: Doubles, out: Output, dtype: str, kind: Kind) -> Misfit | None:
    """Return the misfit of an op that only moves numbers, and moved them right; None for others."""
    if kind is not Kind.EXACT or isinstance(out.summed, np.ndarray) or isinstance(out.terms, np.ndarray):
        return None
    if out.summed or out.terms or not np.array_equal(y, true):
        return None
    size = np.abs(true)
    if not float(size.max(initial=0.0)) < LIMIT.get(dtype, inf) / 2:
        return None
    nowhere = np.zeros(true.shape, np.bool_)
    slack = SLACK[kind] if dtype in UNIT else 0.0
    return Misfit(
        got=y, true=true, sigma=size * (sqrt(MEAN_SQUARE) * UNIT.get(dtype, 0.0)), ratio=np.zeros(true.shape),
        bad=nowhere, over=nowhere, compared=~nowhere, slack=slack, size=size,
    )  # fmt: skip


def rounded_to(array: Doubles, dtype: str) -> Doubles:
    """Return the array as a type stores it: to nearest; what is beyond its range becomes infinite."""
    if dtype == "float16":
        with np.errstate(all="ignore"):
            return array.astype(np.float16).astype(np.float64)
    if dtype == "float32":
        with np.errstate(all="ignore"):
            return array.astype(np.float32).astype(np.float64)
    if dtype == "bfloat16":
        fraction, exponent = np.frexp(array)
        result: Doubles = np.ldexp(np.rint(np.ldexp(fraction, 8)), exponent - 8)
        return np.where(np.abs(result) > LIMIT["bfloat16"], np.copysign(inf, result), result)
    return array
