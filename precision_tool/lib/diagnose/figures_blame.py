"""The verdict on a run of which figures and checksums alone were recorded: its ops cannot be recomputed.

What they speak against (`recorded_figures`) becomes the suspects, with less confidence than recomputed ops have, and
the first step collects the tensors that decide.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from precision_tool.lib.data.dumped_ops import GoldenFiles
from precision_tool.lib.data.msprobe_tree import find_msprobe
from precision_tool.lib.diagnose.decide import RunVerdict
from precision_tool.lib.diagnose.divergence import reached_from
from precision_tool.lib.diagnose.plan import again
from precision_tool.lib.diagnose.recorded_figures import FigureSuspect, FiguresVerdict, Ground, Origin, judge_figures
from precision_tool.lib.diagnose.verdict_model import FIGURES, Action, Cause, Fact, OpResult, Proof, Step, Suspect
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.model.finding import joined
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.run import DumpLeaf

_CAUSES = {Origin.DATA: Cause.INPUT, Origin.VARIABLE: Cause.WEIGHTS}
#: Reasons of one suspect that are told.
_MAX_REASONS = 2


def with_figures(judged: RunVerdict, leaf: DumpLeaf, golden: object) -> RunVerdict:
    """Return the verdict by figures, where no op of a dump of msprobe could be recomputed; any other as it is."""
    tally = judged.verdict.tally
    if not leaf.graph or tally.right or tally.wrong or judged.verdict.culprit is not None:
        return judged
    files = golden.files if isinstance(golden, GoldenFiles) else ()
    try:
        own = find_msprobe(leaf.path).leaves[0]
        is_recorded = bool(files) and files[0].recorded is not None
        figures = judge_figures(own, find_msprobe(_folder(files[0].path)).leaves[0] if is_recorded else None)
    except PrecisionToolError:
        return judged  # the comparison says what is wrong with the dump
    return _with_suspects(judged, figures)


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _with_suspects(judged: RunVerdict, figures: FiguresVerdict) -> RunVerdict:
    by_name = {result.name: result for result in judged.ops}
    readers: dict[str, list[Op]] = {}
    for result in judged.ops:
        for edge in result.op.inputs:
            if edge is not None:
                readers.setdefault(edge.producer, []).append(result.op)
    suspects = tuple(
        _suspect(each, by_name[each.name], readers)
        for each in figures.suspects if each.is_accused and each.name in by_name
    )  # fmt: skip
    verdict = judged.verdict
    config = figures.config()
    collect = () if config is None else (_collect(config),)
    if not suspects:
        facts = (Fact(name=FIGURES, value=figures.conclusion),) if figures.judged or figures.compared else ()
        return replace(judged, verdict=replace(verdict, facts=facts, next=(*collect, *verdict.next)))
    first = suspects[0]
    verdict = replace(
        verdict, culprit=first.culprit, cause=first.cause, confidence=first.confidence, suspects=suspects,
        ranking=tuple(suspect.culprit for suspect in suspects), facts=first.facts, next=(*collect, *again()),
    )  # fmt: skip
    return replace(judged, verdict=verdict)


def _collect(config: dict[str, object]) -> Step:
    """The step that collects the tensors which decide."""
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in config.items())
    return Step(do=Action.COLLECT_TENSORS, code=f"{{\n{lines}\n}}", where="msprobe_config")


def _suspect(each: FigureSuspect, result: OpResult, readers: Mapping[str, Sequence[Op]]) -> Suspect:
    cause = Cause.RANDOM if each.ground is Ground.RANDOM else Cause.KERNEL
    culprit, recorded = each.name, result.op.recorded
    facts = [Fact(name=FIGURES, value=joined(each.reasons[:_MAX_REASONS]))]
    if each.origin in _CAUSES and recorded is not None and each.slot in recorded.input_slots:
        edge = result.op.inputs[recorded.input_slots.index(each.slot)]
        cause = _CAUSES[each.origin]
        culprit = each.name if edge is None else edge.producer
        facts.append(Fact(name="seen_in", value=f"{each.name}.{each.slot}"))
    return Suspect(
        culprit=culprit, cause=cause, proof=Proof.FIGURES, confidence=each.confidence, number=result.number,
        op_type=result.op.type, facts=tuple(facts), module=result.op.module, source=result.op.source,
        followers=len(reached_from([result.op], lambda op: readers.get(op.name, ()))), result=result,
    )  # fmt: skip
