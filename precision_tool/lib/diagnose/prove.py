"""A verdict proven by counterfactual replay: each fault mended by itself, then all of them together (`whatif`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from precision_tool.lib.data.dumped_ops import BenchmarkSide, GoldenFiles, NoBenchmark
from precision_tool.lib.diagnose.pipeline import Diagnosis, Leaf
from precision_tool.lib.diagnose.stored_verdict import StoredVerdict
from precision_tool.lib.diagnose.verdict_model import Action, Cause, Fact, Suspect, Verdict, number_of
from precision_tool.lib.diagnose.whatif import SECONDS, Effect, Replay, WhatIf, conclusion
from precision_tool.lib.io.files import real_path
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.model.graph import Op

#: Suspects that are mended at most.
_MAX_SUSPECTS = 8
#: The share of the deviation that a fault accounts for at least.
_SOMETHING = 0.01
#: Causes of which all culprits are mended together: the ops of a pass, all random ops, all data or variables.
_TOGETHER = (Cause.FUSION, Cause.RANDOM, Cause.INPUT, Cause.WEIGHTS)
#: The facts that a proof adds.
_FACTS = frozenset({"mended", "mending", "mended_share", "mended_together", "mended_together_share", "explain_nothing"})


def proven(diagnosis: Diagnosis, leaf: Leaf, progress: Callable[[int, int], None] | None = None) -> Diagnosis:
    """Return a diagnosis whose verdict says what mending its culprits does.

    A further fault that explains nothing, by itself and beside the others, is dropped: the first suspect's fact
    `explain_nothing` names it. A verdict that names nobody, or of a run that cannot be replayed, stays as it is.

    Parameters
    ----------
    diagnosis : Diagnosis
        A diagnosis with a stored verdict.
    leaf : Leaf
        What it is of.
    progress : callable, optional
        Called with the ops that were computed of one replay, and how many there are.
    """
    stored = diagnosis.stored
    if stored is None or stored.verdict.culprit is None:
        return diagnosis
    try:
        replay = _replay(stored, diagnosis, leaf)
    except PrecisionToolError:
        return diagnosis
    if replay is None:
        return diagnosis
    verdict = _Proof(replay, stored.verdict, progress).verdict()
    judged = diagnosis.judged
    return replace(
        diagnosis, stored=replace(stored, verdict=verdict),
        judged=None if judged is None else replace(judged, verdict=verdict),
    )  # fmt: skip


def _replay(stored: StoredVerdict, diagnosis: Diagnosis, leaf: Leaf) -> Replay | None:
    """Return the run that the verdict is on; None where its dump or graph is gone."""
    result = None if diagnosis.analysis is None else diagnosis.analysis.leaf
    dump, file, run = leaf.dump, leaf.file, stored.runs[0]
    if result is not None and result.graph is not None:
        file = result.graph.file
    if dump is not None and real_path(dump.path) != real_path(run.npu):
        other = next(
            (each for each in leaf.runs if each.leaf and real_path(each.leaf.path) == real_path(run.npu)), None
        )
        dump, file = (None, None) if other is None else (other.leaf, other.file)
    if dump is None or file is None:
        return None
    golden = leaf.golden if result is None else result.golden
    benchmark: BenchmarkSide = golden if isinstance(golden, GoldenFiles) else NoBenchmark()
    unfused = next((each.file for each in leaf.runs if each.leaf is not None and each.file.path != file.path), None)
    wrong = [op.name for op in run.ops if op.state == "wrong"]
    return Replay(dump, file, benchmark, unfused, wrong=wrong)


class _Proof:
    """The suspects of a verdict, mended."""

    def __init__(self, replay: Replay, verdict: Verdict, progress: Callable[[int, int], None] | None) -> None:
        self._replay, self._verdict, self._progress = replay, verdict, progress
        self._by_name = {op.name: op for op in replay.values.ops}
        self._deadline = time.monotonic() + SECONDS

    def verdict(self) -> Verdict:
        """Return the verdict with what mending does, and without the faults that explain nothing."""
        suspects = [_without_proof(suspect) for suspect in self._verdict.suspects]
        ops = [self._ops_of(suspect) for suspect in suspects[:_MAX_SUSPECTS]]
        alone = [self._mended(each) for each in ops]
        whole = self._mended(_united(ops)) if len(ops) > 1 else None
        idle = [
            number for number in range(1, len(ops))
            if whole is not None and self._explains_nothing(alone[number], ops, number, whole)
        ]  # fmt: skip
        kept = [
            suspect if number >= len(alone) else _with_proof(suspect, alone[number])
            for number, suspect in enumerate(suspects) if number not in idle
        ]  # fmt: skip
        more = _facts(whole, "mended_together") if whole is not None and len(kept) > 1 else []
        if idle:
            names = tuple((suspects[number].culprit, str(suspects[number].cause)) for number in idle)
            more.append(Fact(name="explain_nothing", value=names))
        kept[0] = replace(kept[0], facts=(*kept[0].facts, *more))
        dropped = {name for number in idle for name in (suspects[number].culprit, *suspects[number].also)}
        dropped -= {name for suspect in kept for name in (suspect.culprit, *suspect.also)}
        steps = self._verdict.next
        if alone[0] is not None:  # it is proven
            steps = tuple(step for step in steps if getattr(step, "do", None) is not Action.WHAT_IF)
        return replace(
            self._verdict, suspects=tuple(kept), facts=kept[0].facts, next=steps,
            ranking=tuple(name for name in self._verdict.ranking if name not in dropped),
        )  # fmt: skip

    def _ops_of(self, suspect: Suspect) -> list[Op]:
        names = (suspect.culprit, *(suspect.also if suspect.cause in _TOGETHER else ()))
        return [self._by_name[name] for name in dict.fromkeys(names) if name in self._by_name]

    def _mended(self, ops: Sequence[Op]) -> WhatIf | None:
        """Return what mending ops does; None where nothing tells their right values, or there is no time left."""
        try:
            return self._replay.without(ops, deadline=self._deadline, progress=self._progress) if ops else None
        except PrecisionToolError:
            return None

    def _explains_nothing(self, alone: WhatIf | None, ops: Sequence[list[Op]], number: int, whole: WhatIf) -> bool:
        """Return whether a fault changes nothing by itself, nor where all others are mended."""
        if alone is None or not explains_nothing(alone):
            return False
        others = self._mended(_united([each for place, each in enumerate(ops) if place != number]))
        return others is not None and _is_same(others, whole)


def explains_nothing(result: WhatIf) -> bool:
    """Return whether mending changes nothing, as far as it is known, and takes none of the deviation away.

    A small fault may change no more than rounding does, and yet account for some of the deviation.
    """
    if result.effect is not Effect.NOTHING or result.stopped:
        return False
    return result.explained is None or result.explained < _SOMETHING


def _united(ops: Sequence[Sequence[Op]]) -> list[Op]:
    return list({id(op): op for each in ops for op in each}.values())


def _is_same(one: WhatIf, other: WhatIf) -> bool:
    pairs = zip((one.loss, *one.outputs), (other.loss, *other.outputs), strict=True)
    changes = [abs(x.change - y.change) for x, y in pairs if x is not None and y is not None]
    shares = one.explained, other.explained
    is_alike = None in shares or abs((shares[0] or 0.0) - (shares[1] or 0.0)) < _SOMETHING
    return is_alike and max(changes, default=0.0) < _SOMETHING


def _without_proof(suspect: Suspect) -> Suspect:
    return replace(suspect, facts=tuple(fact for fact in suspect.facts if fact.name not in _FACTS))


def _with_proof(suspect: Suspect, result: WhatIf | None) -> Suspect:
    if result is None:
        return suspect
    more = [Fact(name="mending", value=str(result.effect)), *_facts(result, "mended")]
    return replace(suspect, facts=(*suspect.facts, *more))


def _facts(result: WhatIf, name: str) -> list[Fact]:
    facts = [Fact(name=name, value=conclusion(result))]
    if result.explained is not None:
        facts.append(Fact(name=f"{name}_share", value=number_of(result.explained)))
    return facts
