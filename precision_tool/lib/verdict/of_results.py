"""The verdict on each result of a data folder, or on an NPU run that there is nothing to compare with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace

from precision_tool.lib.checks.agreement import ops_of
from precision_tool.lib.checks.analysis import Analysis
from precision_tool.lib.checks.first_fault import find_first_fault
from precision_tool.lib.checks.overflow import Origin, StatusReport
from precision_tool.lib.checks.overflow_search import told_statuses
from precision_tool.lib.checks.passports import PassportPair
from precision_tool.lib.compare.folders import LeafResult
from precision_tool.lib.data.folder import DataFolder
from precision_tool.lib.engine.workers import Progress
from precision_tool.lib.errors import PrecisionToolError
from precision_tool.lib.graph.catalog import RunGraph
from precision_tool.lib.graph.named import named_by
from precision_tool.lib.messages import render
from precision_tool.lib.model.changed import changed
from precision_tool.lib.model.finding import Finding, FindingKind
from precision_tool.lib.model.run import DumpLeaf
from precision_tool.lib.model.table import Table
from precision_tool.lib.verdict.decide import SECONDS, Judged
from precision_tool.lib.verdict.model import Cause, Fact, Flag, Suspect, Verdict
from precision_tool.lib.verdict.plan import with_passports_known
from precision_tool.lib.verdict.runs import Asked, judge

#: How sure it is that data or variables differ whose hashes differ.
_HASHED = 0.98


def _is_later(leaf: DumpLeaf, analyses: Sequence[Analysis]) -> bool:
    """Whether an earlier step of the same device and run is among these."""
    others = [one.leaf.leaf for one in analyses if one.leaf is not None]
    return any(
        (one.device, one.model_name, one.model_id, one.time) == (leaf.device, leaf.model_name, leaf.model_id, leaf.time)
        and one.step.isdecimal() and leaf.step.isdecimal() and int(one.step) < int(leaf.step)
        for one in others
    )  # fmt: skip


def judge_results(
    data: DataFolder,
    analyses: Sequence[Analysis],
    graph: str | None = None,
    progress: Progress | None = None,
    workers: int = 0,
    executor: Executor | None = None,
) -> list[Judged | None]:
    """Who is to blame in each result; None for one that cannot be judged (no graph, PyTorch, its dump is gone)."""
    runs = _runs_to_judge(data, graph)
    found: list[Judged | None] = []
    for analysis in analyses:
        leaf, source = analysis.leaf, analysis.source
        asked: Asked | None = None
        if not analysis.has_graph:
            pass
        elif leaf is not None:
            mine = next((run for run in runs if any(one.path == leaf.leaf.path for one in run.leaves)), None)
            file = leaf.graph.file if leaf.graph is not None else mine.file if mine is not None else None
            if file is not None:
                asked = Asked(leaf=leaf.leaf, file=file, golden=leaf.golden, dumps=leaf.dumps)
        elif source is not None and source.graph:
            with suppress(PrecisionToolError):
                at = data.run_at(source.npu).leaves[0]
                asked = Asked(leaf=at, file=data.store.load(source.graph))
            if asked is not None:
                with suppress(PrecisionToolError):  # its benchmark may be gone
                    asked = replace(asked, golden=data.golden_at(source.golden))
        if asked is None:
            found.append(None)
            continue
        compared = [one.op_name for one in analysis.findings if one.kind == FindingKind.FIRST_FAULTY_OP]
        asked = replace(
            asked,
            is_later=_is_later(asked.leaf, analyses),
            rows=analysis.rows,
            compared=compared,
            threshold=analysis.threshold,
            flagged=_flags(data, graph),
        )
        found.append(judge(asked, runs, workers=workers, executor=executor, progress=progress))
    return found


def with_own_errors(analysis: Analysis, judged: Judged) -> Analysis:
    """The result with the own error of each output that was recomputed; as it was if its run was not judged."""
    npu = analysis.leaf.leaf.path if analysis.leaf is not None else ""
    mine = next((one for one in (judged, *judged.beside) if one.npu == npu), None)
    if mine is None or analysis.choice.compat:
        return analysis
    own = own_errors(mine)
    name_of = named_by(op.name for op in mine.ops)
    rows = tuple(changed(row, own_error=own.get((name_of(row.op_name), row.slot))) for row in analysis.rows)
    ops = ops_of(Table(rows, analysis.choice), analysis.threshold)
    return replace(analysis, rows=rows, ops=ops, choice=replace(analysis.choice, own_error=True))


def own_errors(judged: Judged) -> dict[tuple[str, str], float]:
    """The own error of each output that was recomputed, by op name and slot (`output:0`)."""
    return {(op.name, f"output:{slot.slot}"): slot.own for op in judged.ops for slot in op.slots}


def verdict_on(result: LeafResult, threshold: float = 0.98) -> Verdict | None:
    """The verdict on one comparison; None without a graph, and of PyTorch dumps."""
    judged = judged_on(result, threshold)
    return None if judged is None else judged.verdict


def judged_on(
    result: LeafResult,
    threshold: float = 0.98,
    faults: Sequence[Finding] | None = None,
    *,
    runs: Sequence[RunGraph] = (),
    flagged: Mapping[str, Flag] | None = None,
    seconds: float = SECONDS,
    workers: int = 0,
    executor: Executor | None = None,
) -> Judged | None:
    """The same with every op's judgement; `seconds` limit recomputing, `workers` processes or an `executor` share it.

    `runs` are this run and others of the data folder, `flagged` what overflow status files say. `faults` are what
    `find_first_fault` says of the comparison, where that is known.
    """
    if result.graph is None:
        return None
    if faults is None:
        faults = find_first_fault(ops_of(result.table, threshold), threshold, result.unread_graph)
    asked = Asked(
        leaf=result.leaf, file=result.graph.file, golden=result.golden, dumps=result.dumps, rows=result.rows,
        compared=[one.op_name for one in faults if one.kind == FindingKind.FIRST_FAULTY_OP], threshold=threshold,
        flagged=flagged or {},
    )  # fmt: skip
    return judge(asked, runs, seconds=seconds, workers=workers, executor=executor)


def judge_alone(
    data: DataFolder,
    npu: str | None = None,
    graph: str | None = None,
    progress: Progress | None = None,
    workers: int = 0,
    executor: Executor | None = None,
) -> list[Judged]:
    """Who is to blame in an NPU run without a benchmark, one verdict a model."""
    runs = _runs_to_judge(data, graph)
    if npu is not None:
        leaf = data.run_at(npu).leaves[0]
        file = data.graph_chooser(graph).of(leaf, graph).file
        return [judge(Asked(leaf=leaf, file=file), runs, workers=workers, executor=executor, progress=progress)]
    flagged = _flags(data, graph)
    mine = [run for run in runs if run.leaf is not None]
    number = min((run.number or 0 for run in mine), default=0)
    return [
        judge(
            Asked(leaf=run.leaf, file=run.file, flagged=flagged),
            runs,
            workers=workers,
            executor=executor,
            progress=progress,
        )
        for run in mine
        if run.leaf is not None and (run.number or 0) == number
    ]


def _flags(data: DataFolder, graph: str | None) -> dict[str, Flag]:
    """What the overflow status files of the data folder say of ops; not of those that only received an overflow."""
    with suppress(PrecisionToolError):  # `overflow` says what is wrong with them
        return flags_of(told_statuses(data, graph))
    return {}


def flags_of(statuses: Iterable[StatusReport]) -> dict[str, Flag]:
    """What status files say, by name of the op; not of ops that only received an overflow."""
    found: dict[str, Flag] = {}
    for one in statuses:
        if one.op is None or one.op.origin in (Origin.RECEIVED, Origin.MEANT):
            continue
        words = [
            f"{unit.unit}: {', '.join(render(bit, 'en') for bit in unit.bits) or 'set'}"
            for unit in one.units
            if unit.is_set
        ]
        if words:
            found.setdefault(
                one.op.name, Flag(path=one.file.path, words="; ".join(words), is_doubtful=bool(one.doubts))
            )
    return found


def with_passports(judged: Judged | None, pair: PassportPair) -> Judged | None:
    """A verdict that says so where the hashes of the two runs' passports prove that data or variables differ."""
    if judged is None:
        return judged
    verdict = judged.verdict
    if verdict.first is None:
        verdict = replace(verdict, next=with_passports_known(verdict.next, differ=bool(pair.differences)))
    suspects = tuple(_proven(one, pair) for one in verdict.suspects)
    changed = replace(verdict, suspects=suspects)
    if changed.first is not None:
        changed = replace(changed, facts=changed.first.facts, confidence=changed.first.confidence)
    return replace(judged, verdict=changed)


def _proven(one: Suspect, pair: PassportPair) -> Suspect:
    if one.cause not in (Cause.INPUT, Cause.WEIGHTS):
        return one
    differs = pair.hash_differs(one.culprit)
    if differs is None and one.cause is Cause.INPUT:  # what feeds a network is called otherwise in the graph
        differs = any(difference.topic == "batch" for difference in pair.differences) or None
    if not differs:
        return one
    facts = (*one.facts, Fact(name="passport", value="differs"))
    return replace(one, confidence=max(one.confidence, _HASHED), facts=facts)


def _runs_to_judge(data: DataFolder, graph: str | None) -> tuple[RunGraph, ...]:
    try:
        return data.run_graphs(graph)
    except PrecisionToolError:
        return ()
