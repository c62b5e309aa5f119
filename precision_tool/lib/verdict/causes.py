"""What was found, put down to causes: each independent fault once, its followers left out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite, log2

import numpy as np

from precision_tool.lib.model.graph import Op
from precision_tool.lib.verdict.copies import Departure, Overwritten
from precision_tool.lib.verdict.judgement import OpJudgement, State
from precision_tool.lib.verdict.model import Cause, Fact, Proof, Suspect
from precision_tool.lib.verdict.rounding import LIMIT, UNIT
from precision_tool.lib.verdict.trace import Flow, distance
from precision_tool.lib.verdict.values import DATA_TYPES, PARAMETER_TYPES, NoValueError, Root, RunValues

#: Ops that are random by design.
_RANDOM = re.compile(
    r"Random|DropOutGenMask|TruncatedNormal|Multinomial|Bernoulli|^Stateful(?:StandardNormal|Uniform)|^Rng"
)
#: An op that cannot be recomputed is suspected if its output is so many times as far off as its inputs, and so far.
_JUMP, _FAR = 30.0, 0.05
#: How near a factor must be to a power of two to be a loss scale, and the tensors it scales to each other.
_POWER = 1e-3
_SCALED = 0.2


def is_random(op: Op) -> bool:
    """Whether an op draws random numbers."""
    return bool(_RANDOM.search(op.type))


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What the steps before found of one run."""

    judged: Sequence[OpJudgement]
    overwritten: Sequence[Overwritten]
    departures: Sequence[Departure]


class Explainer:
    """Names the causes of one run's findings."""

    def __init__(self, values: RunValues, findings: Findings) -> None:
        self._values = values
        self._findings = findings
        self._flow = Flow(values)
        self._by_id = {id(one.op): one for one in findings.judged}

    @property
    def flow(self) -> Flow:
        return self._flow

    def suspects(self) -> list[Suspect]:
        """Every independent fault, best first."""
        stomps = list(self._stomps())
        wrong = list(self._wrong())
        lost = list(self._lost_in_integers())
        sources, scale = self._sources()
        proven = [*stomps, *wrong, *lost]
        ops = [one.op for one in self._findings.judged if one.state is State.WRONG]
        ops += [one.consumer for one in self._findings.overwritten]
        over = list(self._overflows([*ops, *self._ops_of(sources)]))
        proven += over
        found = sorted(proven, key=_rank) + sorted(sources, key=_rank)
        if scale is not None:
            found.append(scale)
        if not found:
            found += self._jumps()
        return found

    # --- memory ---

    def _stomps(self) -> Iterator[Suspect]:
        for one in self._findings.overwritten:
            producer = self._by_id.get(id(one.producer))
            right = producer is not None and producer.state is State.RIGHT
            facts = [
                Fact(name="tensor", value=one.root.name), Fact(name="reader", value=one.reader.name),
                Fact(name="first_byte", value=one.first), Fact(name="last_byte", value=one.last),
                Fact(name="different_elements", value=one.different), Fact(name="elements", value=one.size),
                Fact(name="bytes", value=one.nbytes), Fact(name="producer_is_right", value=right),
            ]  # fmt: skip
            yield Suspect(
                culprit=one.consumer.name, cause=Cause.STOMP, proof=Proof.COPIES,
                confidence=0.98 if right else 0.93, number=self._values.order[id(one.consumer)],
                op_type=one.consumer.type, also=(one.producer.name,), facts=tuple(facts),
            )  # fmt: skip

    # --- what recomputing says ---

    def _wrong(self) -> Iterator[Suspect]:
        """Ops with an error of their own; those of one pass are one suspect."""
        by_pass: dict[str, list[Suspect]] = {}
        for one in self._findings.judged:
            if one.state is not State.WRONG:
                continue
            suspect = self._own_error(one)
            if suspect.cause is Cause.FUSION:
                by_pass.setdefault(suspect.pass_name, []).append(suspect)
            else:
                yield suspect
        for together in by_pass.values():
            first = min(together, key=lambda one: one.number)
            yield replace(first, also=tuple(one.culprit for one in together if one is not first))

    def _own_error(self, one: OpJudgement) -> Suspect:
        slot = one.worst_slot
        assert slot is not None
        wrong = [other for other in one.slots if other.beyond]
        moved = all(other.places is not None and other.places.is_moved for other in wrong)
        cause = Cause.LAYOUT if moved else Cause.FUSION if one.op.pass_names else Cause.KERNEL
        facts = [
            Fact(name="own_error", value=_number(slot.own)), Fact(name="rounding", value=_number(slot.rounding)),
            Fact(name="worst_over_rounding", value=_number(slot.worst)), Fact(name="wrong_elements", value=slot.beyond),
            Fact(name="elements", value=slot.size), Fact(name="exactly_rounded", value=_number(slot.exact_share)),
            Fact(name="recomputed_as", value=list(one.how)), Fact(name="output", value=slot.slot),
        ]  # fmt: skip
        if slot.places is not None:
            facts.append(Fact(name="mistake", value=str(slot.places.mistake)))
            for name in ("axis", "index", "factor", "steps"):
                value = getattr(slot.places, name)
                if value is not None and (name != "steps" or value):
                    facts.append(Fact(name=name, value=value))
            if slot.places.order:
                facts.append(Fact(name="order", value=list(slot.places.order)))
        for name in ("fed", "benchmark_own", "amplification"):
            value = getattr(slot, name)
            if value is not None:
                facts.append(Fact(name=name, value=_number(value)))
        if one.is_confirmed is not None:
            facts.append(Fact(name="benchmark_obeys", value=one.is_confirmed))
        sure = 0.97 if one.is_confirmed else 0.9
        return Suspect(
            culprit=one.name, cause=cause, proof=Proof.RECOMPUTED, confidence=sure if one.is_dumped else sure - 0.1,
            number=one.number, op_type=one.op.type, facts=tuple(facts), judgement=one,
            pass_name=one.op.pass_names[0] if one.op.pass_names else "",
        )  # fmt: skip

    def _overflows(self, faulty: Iterable[Op]) -> Iterator[Suspect]:
        """Ops whose true result their type cannot hold; not those fed by another such op."""
        over = [one for one in self._findings.judged if one.overflow is not None]
        spoiled = self._flow.behind(one.op for one in over)
        after_faults = self._flow.behind(faulty)
        for one in over:
            slot = one.overflow
            assert slot is not None
            if id(one.op) in spoiled or not one.finite_inputs:
                continue
            golden = distance(self._values, Root(one.op, slot.slot))
            beyond_too = golden is not None and golden.largest > LIMIT.get(slot.dtype, np.inf)
            if id(one.op) in after_faults and not beyond_too:
                continue
            is_cast = one.op.type == "Cast"
            facts = [
                Fact(name="largest", value=_number(slot.largest)), Fact(name="limit", value=LIMIT.get(slot.dtype)),
                Fact(name="overflowed_elements", value=slot.overflowed), Fact(name="elements", value=slot.size),
                Fact(name="type", value=slot.dtype), Fact(name="benchmark_overflows", value=beyond_too),
            ]  # fmt: skip
            yield Suspect(
                culprit=one.name, cause=Cause.CAST if is_cast else Cause.OVERFLOW, proof=Proof.RECOMPUTED,
                confidence=0.95 if beyond_too else 0.9, number=one.number, op_type=one.op.type, facts=tuple(facts),
                judgement=one, pass_name=one.op.pass_names[0] if one.op.pass_names else "",
            )  # fmt: skip

    def _lost_in_integers(self) -> Iterator[Suspect]:
        """Casts that the compiler put in, through an integer type, of numbers that are no integers."""
        for one in self._findings.judged:
            op = one.op
            if op.type != "Cast" or op.original_names or one.state is State.WRONG:
                continue
            if not op.input_descs or not op.output_descs:
                continue
            source, target = op.input_descs[0].dtype, op.output_descs[0].dtype
            if source not in UNIT or target in UNIT or not target.startswith(("int", "uint")):
                continue
            lost = self._lost(op)
            if lost is None:
                continue
            back = [
                slot.op.name
                for slot in self._values.readers.get((id(op), 0), ())
                if slot.op.type == "Cast" and slot.op.output_descs and slot.op.output_descs[0].dtype in UNIT
            ]
            facts = [
                Fact(name="from", value=source), Fact(name="to", value=target), Fact(name="lost", value=_number(lost)),
            ]  # fmt: skip
            yield Suspect(
                culprit=op.name, cause=Cause.CAST, proof=Proof.RECOMPUTED, confidence=0.95 if back else 0.85,
                number=one.number, op_type=op.type, also=tuple(back), facts=tuple(facts), judgement=one,
            )  # fmt: skip

    def _lost(self, op: Op) -> float | None:
        """The relative distance that a cast to integers takes its input; None if that is nothing."""
        for slot in self._values.input_slots(op):
            root = self._values.fed_by.get((id(op), slot.graph_index))
            loaded = self._values.load_root(root) if root is not None else None
            if loaded is None:
                return None
            x = np.asarray(loaded.input.array, np.float64).reshape(-1)
            x = x[np.isfinite(x)]
            size = float(np.linalg.norm(x))
            lost = float(np.linalg.norm(x - np.trunc(x)))
            return lost / size if size and lost > 1e-6 * size else None
        return None

    # --- what nothing computes ---

    def _sources(self) -> tuple[list[Suspect], Suspect | None]:
        """Data, variables and random numbers that differ from the benchmark's; a loss scale is told apart."""
        found = []
        scale = None
        for one in self._findings.departures:
            op = one.root.op
            cause = Cause.RANDOM if is_random(op) else Cause.INPUT if op.type in DATA_TYPES else Cause.WEIGHTS
            facts = (
                Fact(name="distance", value=_number(one.distance)), Fact(name="cosine", value=_number(one.cosine)),
                Fact(name="different_elements", value=one.different), Fact(name="elements", value=one.size),
                Fact(name="factor", value=one.factor), Fact(name="reordered", value=one.reordered),
                Fact(name="output", value=one.root.index), Fact(name="seen_in", value=one.seen_in),
            )  # fmt: skip
            suspect = Suspect(
                culprit=op.name, cause=cause, proof=Proof.SOURCE, confidence=0.9,
                number=self._values.order[id(op)], op_type=op.type, facts=facts,
            )  # fmt: skip
            if cause is Cause.WEIGHTS and self._is_loss_scale(one):
                scale = replace(suspect, cause=Cause.LOSS_SCALE)
                continue
            found.append(suspect)
        together: dict[str, Suspect] = {}
        for suspect in found:
            known = together.get(suspect.culprit)
            if known is None or suspect.fact("distance") > known.fact("distance"):
                together[suspect.culprit] = suspect
        return list(together.values()), scale

    def _is_loss_scale(self, one: Departure) -> bool:
        """Whether a number that is a power of two times the benchmark's scales gradients, and them back."""
        if not one.is_scalar or one.factor is None or one.factor <= 0:
            return False
        power = log2(one.factor)
        if abs(power - round(power)) > _POWER or not round(power):
            return False
        followers = self._flow.behind([one.root.op])
        scaled = back = 0
        for op in followers.values():
            off = distance(self._values, Root(op, 0))
            if off is None or not isfinite(off.factor) or off.factor <= 0 or off.residual > _SCALED:
                continue
            if abs(log2(off.factor) - power) < 0.1:
                scaled += 1
            elif abs(log2(off.factor)) < 0.1:
                back += 1
        return scaled > 0 and back > 0

    def _ops_of(self, suspects: Iterable[Suspect]) -> list[Op]:
        names = {one.culprit for one in suspects}
        return [op for op in self._values.ops if op.name in names]

    # --- by comparison alone ---

    def _jumps(self) -> Iterator[Suspect]:
        """Ops that cannot be recomputed and are much farther off than what they are fed."""
        best: Suspect | None = None
        for one in self._findings.judged:
            if one.state is not State.NOT_RECOMPUTED or one.op.type in PARAMETER_TYPES or is_random(one.op):
                continue
            out = distance(self._values, Root(one.op, 0))
            if out is None or not out.relative > _FAR:
                continue
            fed = [distance(self._values, root) for root in self._values.producers(one.op)]
            if any(found is None for found in fed):
                continue
            largest = max((found.relative for found in fed if found is not None), default=0.0)
            jump = out.relative / max(largest, 2.0**-11)
            if jump > _JUMP and best is None:
                facts = (
                    Fact(name="distance", value=_number(out.relative)), Fact(name="fed", value=_number(largest)),
                    Fact(name="not_recomputed", value=one.reason),
                )  # fmt: skip
                cause = Cause.FUSION if one.op.pass_names else Cause.KERNEL
                best = Suspect(
                    culprit=one.name, cause=cause, proof=Proof.COMPARED, confidence=0.4, number=one.number,
                    op_type=one.op.type, facts=facts, judgement=one,
                    pass_name=one.op.pass_names[0] if one.op.pass_names else "",
                )  # fmt: skip
        if best is not None:
            yield best


#: Of several sources that differ, the data come first: they explain all the others cannot.
_SOURCES = (Cause.INPUT, Cause.WEIGHTS, Cause.RANDOM)


def _rank(one: Suspect) -> tuple[int, int]:
    tier = _SOURCES.index(one.cause) if one.cause in _SOURCES else 0
    return tier, one.number


def _number(value: float) -> float | str:
    return float(f"{value:.6g}") if isfinite(value) else str(value)


__all__ = ["Explainer", "Findings", "NoValueError", "is_random"]
