"""Numbers that a type cannot hold: overflows, and what a cast to integers loses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from precision_tool.lib.model.graph import Op
from precision_tool.lib.verdict.judgement import OpJudgement, State
from precision_tool.lib.verdict.model import Cause, Fact, Flag, Proof, Suspect, number_of
from precision_tool.lib.verdict.rounding import LIMIT, UNIT
from precision_tool.lib.verdict.trace import Flow, distance
from precision_tool.lib.verdict.values import Root, RunValues

#: Readers of a cast that are looked at.
_MOST_READERS = 16


class OutOfRange:
    """Finds the ops of one run whose results their types cannot hold; `flagged` is what status files say by op."""

    def __init__(
        self, values: RunValues, flow: Flow, judged: Sequence[OpJudgement], flagged: Mapping[str, Flag]
    ) -> None:
        self._values, self._flow = values, flow
        self._judged, self._flagged = judged, flagged

    def overflows(self, faulty: Iterable[Op]) -> Iterator[Suspect]:
        """Ops whose true result their type cannot hold; not those fed by another such op."""
        over = [one for one in self._judged if one.overflow is not None]
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
            flag = self._flagged.get(one.name)
            facts = [
                Fact(name="largest", value=number_of(slot.largest)), Fact(name="limit", value=LIMIT.get(slot.dtype)),
                Fact(name="overflowed_elements", value=slot.overflowed), Fact(name="elements", value=slot.size),
                Fact(name="at_limit", value=slot.at_limit),
                Fact(name="type", value=slot.dtype), Fact(name="benchmark_overflows", value=beyond_too),
                Fact(name="script_ops", value=self._script_ops(one.op)), *(flag.facts if flag is not None else ()),
            ]  # fmt: skip
            sure = 0.98 if flag is not None and not flag.is_doubtful else 0.95 if beyond_too else 0.9
            yield Suspect(
                culprit=one.name, cause=Cause.CAST if is_cast else Cause.OVERFLOW, proof=Proof.RECOMPUTED,
                confidence=sure, number=one.number, op_type=one.op.type, facts=tuple(facts),
                judgement=one, pass_name=one.op.pass_names[0] if one.op.pass_names else "",
            )  # fmt: skip

    def told_by_status(self, found: Sequence[Suspect]) -> Iterator[Suspect]:
        """Ops of which only a status file tells, as they cannot be recomputed; not those that another fault feeds."""
        named = {one.culprit for one in found} | {name for one in found for name in one.also}
        spoiled = self._flow.behind(op for op in self._values.ops if op.name in named)
        for one in sorted(self._judged, key=lambda one: one.number):
            flag = self._flagged.get(one.name)
            if flag is None or flag.is_doubtful or one.state is not State.NOT_RECOMPUTED:
                continue
            if one.name in named or id(one.op) in spoiled:
                continue
            spoiled |= self._flow.behind([one.op])
            facts = (*flag.facts, Fact(name="not_recomputed", value=one.reason),
                     Fact(name="script_ops", value=self._script_ops(one.op)))  # fmt: skip
            yield Suspect(
                culprit=one.name, cause=Cause.CAST if one.op.type == "Cast" else Cause.OVERFLOW,
                proof=Proof.STATUS, confidence=0.8, number=one.number,
                op_type=one.op.type, facts=facts, judgement=one,
                pass_name=one.op.pass_names[0] if one.op.pass_names else "",
            )  # fmt: skip

    def lost_in_integers(self) -> Iterator[Suspect]:
        """Casts that the compiler put in, through an integer type, of numbers that are no integers."""
        for one in self._judged:
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
                Fact(name="from", value=source), Fact(name="to", value=target),
                Fact(name="lost", value=number_of(lost)), Fact(name="script_ops", value=self._script_ops(op)),
            ]  # fmt: skip
            yield Suspect(
                culprit=op.name, cause=Cause.CAST, proof=Proof.RECOMPUTED, confidence=0.95 if back else 0.85,
                number=one.number, op_type=op.type, also=tuple(back), facts=tuple(facts), judgement=one,
            )  # fmt: skip

    def _script_ops(self, op: Op) -> list[str]:
        """The ops of the script that an op does the work of; of a cast those that read it."""
        found: dict[str, None] = {}
        waiting, seen = [op], 0
        while waiting and seen < _MOST_READERS:
            one = waiting.pop(0)
            seen += 1
            if one.type in ("Cast", "TransData") and not one.original_names:
                waiting += [slot.op for slot in self._values.readers.get((id(one), 0), ())]
            else:
                found |= dict.fromkeys(one.original_names or (one.name,))
        return list(found)

    def _lost(self, op: Op) -> float | None:
        """The relative distance that a cast to integers takes its input; None if that is nothing."""
        for slot in self._values.input_slots(op):
            root = self._values.fed_by.get((id(op), slot.graph_index))
            loaded = self._values.load_root(root) if root is not None else None
            if loaded is None and root is not None:
                loaded = self._values.load_benchmark(root)
            if loaded is None:
                return None
            x = np.asarray(loaded.input.array, np.float64).reshape(-1)
            x = x[np.isfinite(x)]
            size = float(np.linalg.norm(x))
            lost = float(np.linalg.norm(x - np.trunc(x)))
            return lost / size if size and lost > 1e-6 * size else None
        return None
