"""What the elements of an op's outputs say of it."""

from __future__ import annotations

import numpy as np

from precision_tool.lib.ops.base import Input, Kind, Output
from precision_tool.lib.verdict.judgement import OpJudgement, SlotJudgement, State
from precision_tool.lib.verdict.places import Mistake, places_of
from precision_tool.lib.verdict.rounding import LIMIT, UNIT, Misfit

#: Elements that stay in the processor's cache.
_IN_CACHE = 1 << 16
#: An element's error is doubtful up to so many times the slack; more, or many inexactly rounded ones, is proof.
DOUBT = 4.0
#: Below this share of correctly rounded elements, rounding happened elsewhere than at the end.
_INEXACT = 0.6
_FEW = 64
#: Another variable moves nearly every element of what is made of it.
_ALL_OVER = 0.9
#: Mistakes that some rows tell as well as all, unless they are along the rows.
_TOLD = (Mistake.AXES, Mistake.SHIFTED, Mistake.ZERO, Mistake.SCALED, Mistake.TAIL, Mistake.NOT_FINITE)


def is_told_by_rows(slot: SlotJudgement) -> bool:
    """Whether some rows tell what is wrong with all: not where the mistake is along the rows, or none is known."""
    places = slot.places
    if places is None or places.mistake not in _TOLD or places.axis == 0:
        return False
    return not places.order or places.order[0] == 0


def slot_of(slot: int, have: Input, out: Output, fit: Misfit, kind: Kind) -> SlotJudgement:
    """One output whose elements were held against the true ones."""
    bad = fit.bad
    count = int(np.count_nonzero(bad))
    places = None
    true = np.asarray(out.array)
    if count and true.dtype.kind in "fbiu":
        places = places_of(np.asarray(have.array).reshape(true.shape), true, bad, UNIT.get(have.dtype, 0.0))
    over = int(np.count_nonzero(fit.over))
    return SlotJudgement(
        slot=slot,
        dtype=have.dtype,
        size=int(fit.got.size),
        kind=kind,
        own=fit.own,
        rounding=fit.rounding,
        worst=fit.worst,
        slack=fit.slack,
        beyond=count,
        exact_share=fit.exact_share,
        cosine=fit.cosine if count else None,
        overflowed=over,
        largest=float(np.abs(fit.true[fit.over]).max()) if over else 0.0,
        at_limit=int(np.count_nonzero(~(np.abs(fit.got) < LIMIT[have.dtype]))) if over else 0,
        not_finite=int(np.count_nonzero(bad & ~np.isfinite(fit.got))),
        places=places,
    )


def state_of(base: OpJudgement, slots: list[SlotJudgement]) -> State:
    """What an op's outputs say of it."""
    wrong = [slot for slot in slots if slot.beyond]
    if not wrong:
        return State.RIGHT
    for slot in wrong:
        proof = slot.worst > DOUBT * slot.slack or (slot.exact_share < _INEXACT and slot.size >= _FEW)
        if proof and base.finite_inputs:
            return State.WRONG
    return State.DOUBTFUL


def is_off_all_over(one: OpJudgement) -> bool:
    """Whether nearly all of an op's output is off by more than a narrower type makes it, as by another parameter.

    A kernel that computes wrong moves values, or spoils some of them.
    """
    slot = one.worst_slot
    if slot is None or slot.places is None or slot.places.mistake not in (Mistake.UNKNOWN, Mistake.SCALED):
        return False
    return slot.own > UNIT["bfloat16"] and slot.beyond >= _ALL_OVER * slot.looked_at


def largest_of(one: Input) -> float:
    """The largest absolute value of floating numbers, NaN if any of them is; 0 for others."""
    flat = one.array.reshape(-1)
    if flat.dtype.kind not in "fc" or not flat.size:
        return 0.0
    if flat.dtype.kind == "c":
        return float(np.abs(flat).max())
    found = [0.0]
    for start in range(0, flat.size, _IN_CACHE):
        part = flat[start : start + _IN_CACHE]
        found += [float(part.max()), -float(part.min())]
    return float(np.max(found))
