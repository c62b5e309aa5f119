"""What nothing computes: data, variables and random numbers that differ from the benchmark's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from math import isfinite, log2

from precision_tool.lib.model.graph import Op
from precision_tool.lib.verdict.copies import Departure
from precision_tool.lib.verdict.model import Cause, Fact, Proof, Suspect, number_of
from precision_tool.lib.verdict.scales import is_scale
from precision_tool.lib.verdict.trace import Flow, distance
from precision_tool.lib.verdict.values import DATA_TYPES, Root, RunValues

#: Ops that are random by design.
_RANDOM = re.compile(
    r"Random|DropOutGenMask|TruncatedNormal|Multinomial|Bernoulli|^Stateful(?:StandardNormal|Uniform)|^Rng"
)
#: How near the tensors that a loss scale scales must be to each other.
_SCALED = 0.2
#: How sure it is that what differs is to blame, and of a variable at a later step, before which the sides trained it.
_LOADED, _TRAINED = 0.9, 0.5
#: Other random numbers differ in nearly every element.
_OTHER_NUMBERS = 0.5


def is_random(op: Op) -> bool:
    """Whether an op draws random numbers."""
    return bool(_RANDOM.search(op.type))


def find_sources(
    values: RunValues, flow: Flow, departures: Sequence[Departure], is_later: bool = False
) -> tuple[list[Suspect], Suspect | None]:
    """Data, variables and random numbers that differ from the benchmark's; a loss scale is told apart.

    Where an earlier step was judged too (`is_later`), variables are what both sides have trained since: that they
    differ accuses nobody.
    """
    found = []
    scale = None
    for one in departures:
        op = one.root.op
        cause = Cause.RANDOM if is_random(op) else Cause.INPUT if op.type in DATA_TYPES else Cause.WEIGHTS
        if cause is Cause.RANDOM and one.different < _OTHER_NUMBERS * one.size:
            cause = Cause.KERNEL  # the same numbers, and some of them spoilt
        facts = (
            Fact(name="distance", value=number_of(one.distance)), Fact(name="cosine", value=number_of(one.cosine)),
            Fact(name="different_elements", value=one.different), Fact(name="elements", value=one.size),
            Fact(name="factor", value=one.factor), Fact(name="reordered", value=one.reordered),
            Fact(name="output", value=one.root.index), Fact(name="seen_in", value=one.seen_in),
        )  # fmt: skip
        suspect = Suspect(
            culprit=op.name, cause=cause, proof=Proof.SOURCE, confidence=_LOADED,
            number=values.order[id(op)], op_type=op.type, facts=facts,
        )  # fmt: skip
        if cause is Cause.WEIGHTS and _is_loss_scale(values, flow, one):
            scale = replace(suspect, cause=Cause.LOSS_SCALE)
            continue
        if cause is Cause.WEIGHTS and is_later:
            continue
        if cause is Cause.WEIGHTS and (step := _step(values)):
            suspect = replace(suspect, confidence=_TRAINED, facts=(*facts, Fact(name="step", value=step)))
        found.append(suspect)
    together: dict[str, Suspect] = {}
    for suspect in found:
        known = together.get(suspect.culprit)
        if known is None or suspect.fact("distance") > known.fact("distance"):
            together[suspect.culprit] = suspect
    return list(together.values()), scale


def _step(values: RunValues) -> int:
    """The step of the dump; 0 where its folder does not tell, too."""
    step = values.leaf.step
    return int(step) if step.isascii() and step.isdigit() else 0


def _is_loss_scale(values: RunValues, flow: Flow, one: Departure) -> bool:
    """Whether a number that is a power of two times the benchmark's scales gradients, and them back."""
    if not one.is_scalar or one.factor is None or one.factor <= 0:
        return False
    power = log2(one.factor)
    if not is_scale(one.factor):
        return False
    followers = flow.behind([one.root.op])
    scaled = back = 0
    for op in followers.values():
        off = distance(values, Root(op, 0))
        if off is None or not isfinite(off.factor) or off.factor <= 0 or off.residual > _SCALED:
            continue
        if abs(abs(log2(off.factor)) - abs(power)) < 0.1:
            scaled += 1
        elif abs(log2(off.factor)) < 0.1:
            back += 1
    return scaled > 0 and back > 0
