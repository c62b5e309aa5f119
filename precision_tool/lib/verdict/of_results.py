"""The verdict on each result of a data folder, or on an NPU run that there is nothing to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from precision_tool.lib.checks.agreement import find_first_fault, ops_of
from precision_tool.lib.checks.analysis import Analysis
from precision_tool.lib.compare.folders import LeafResult
from precision_tool.lib.data.folder import DataFolder
from precision_tool.lib.engine.workers import Progress
from precision_tool.lib.errors import PrecisionToolError
from precision_tool.lib.graph.catalog import RunGraph
from precision_tool.lib.model.finding import FindingKind
from precision_tool.lib.verdict.decide import Judged
from precision_tool.lib.verdict.model import Verdict
from precision_tool.lib.verdict.runs import Asked, judge


def judge_results(
    data: DataFolder,
    analyses: Sequence[Analysis],
    graph: str | None = None,
    progress: Progress | None = None,
    workers: int = 0,
) -> list[Judged | None]:
    """Who is to blame in each result; None for one that cannot be judged (no graph, PyTorch, its dump is gone)."""
    runs = _runs_to_judge(data, graph)
    found: list[Judged | None] = []
    for analysis in analyses:
        leaf, source = analysis.leaf, analysis.source
        asked: Asked | None = None
        if analysis.is_pytorch or analysis.part:
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
        asked = replace(asked, rows=analysis.rows, compared=compared, threshold=analysis.threshold)
        found.append(judge(asked, runs, workers=workers, progress=progress))
    return found


def with_own_errors(analysis: Analysis, judged: Judged) -> Analysis:
    """The result with the own error of each output that was recomputed; as it was if its run was not judged."""
    npu = analysis.leaf.leaf.path if analysis.leaf is not None else ""
    mine = next((one for one in (judged, *judged.beside) if one.npu == npu), None)
    if mine is None or analysis.choice.compat:
        return analysis
    own = {(op.name, f"output:{slot.slot}"): slot.own for op in mine.ops for slot in op.slots}
    rows = tuple(replace(row, own_error=own.get((row.op_name, row.slot))) for row in analysis.rows)
    return replace(analysis, rows=rows, choice=replace(analysis.choice, own_error=True))


def verdict_on(result: LeafResult, threshold: float = 0.98) -> Verdict | None:
    """The verdict on one comparison; None without a graph, and of PyTorch dumps."""
    if result.graph is None or result.choice.h5:
        return None
    faults = find_first_fault(ops_of(result.table, threshold), threshold, result.unread_graph)
    asked = Asked(
        leaf=result.leaf, file=result.graph.file, golden=result.golden, dumps=result.dumps, rows=result.rows,
        compared=[one.op_name for one in faults if one.kind == FindingKind.FIRST_FAULTY_OP], threshold=threshold,
    )  # fmt: skip
    return judge(asked, ()).verdict


def judge_alone(
    data: DataFolder,
    npu: str | None = None,
    graph: str | None = None,
    progress: Progress | None = None,
    workers: int = 0,
) -> list[Judged]:
    """Who is to blame in an NPU run without a benchmark, one verdict a model."""
    runs = _runs_to_judge(data, graph)
    if npu is not None:
        leaf = data.run_at(npu).leaves[0]
        file = data.graph_chooser(graph).of(leaf, graph).file
        return [judge(Asked(leaf=leaf, file=file), runs, workers=workers, progress=progress)]
    mine = [run for run in runs if run.leaf is not None]
    number = min((run.number or 0 for run in mine), default=0)
    return [
        judge(Asked(leaf=run.leaf, file=run.file), runs, workers=workers, progress=progress)
        for run in mine
        if run.leaf is not None and (run.number or 0) == number
    ]


def _runs_to_judge(data: DataFolder, graph: str | None) -> tuple[RunGraph, ...]:
    try:
        return data.run_graphs(graph)
    except PrecisionToolError:
        return ()
