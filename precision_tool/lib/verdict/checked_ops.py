"""The ops that `overflow` and `random` name, recomputed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from precision_tool.lib.checks.overflow import LeafOverflow, OverflowOp, OverflowReport, StatusReport
from precision_tool.lib.checks.overflow_check import OverflowResult, overflow_result
from precision_tool.lib.checks.random_errors import RandomReport
from precision_tool.lib.data.folder import DataFolder
from precision_tool.lib.errors import PrecisionToolError
from precision_tool.lib.graph.catalog import RunGraph
from precision_tool.lib.model.finding import CheckResult
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.judged import JudgedOp
from precision_tool.lib.verdict.examine import examine_in

#: Judges one op of a run; None for one that computes nothing, or was not dumped.
Examine = Callable[[RunGraph, Op], JudgedOp | None]


#: Of so many status files at most the ops are judged; there may be one for every op of a network.
_MOST = 8


def recompute_overflow(data: DataFolder, report: OverflowReport) -> OverflowReport:
    """Return the report with the ops that overflow first recomputed."""
    return with_judged_overflow(report, _examiner(data))


def recompute_random(data: DataFolder, reports: Sequence[RandomReport], graph: str | None = None) -> list[RandomReport]:
    """Return the reports with the ops that compute differently first recomputed, in both runs."""
    runs: dict[str, RunGraph] = {}
    with suppress(PrecisionToolError):  # without a graph nothing is recomputed
        runs = {leaf.path: replace(run, leaf=leaf) for run in data.run_graphs(graph) for leaf in run.leaves}
    return [_random(report, runs, _examiner(data)) for report in reports]


def _examiner(data: DataFolder) -> Examine:
    def examined(run: RunGraph, op: Op) -> JudgedOp | None:
        examination = examine_in(data, run, op)
        return None if examination is None else examination.judged

    return examined


def with_judged_overflow(report: OverflowReport, examine: Examine) -> OverflowReport:
    """The report with a judgement of the op that each leaf names first, and of those of the first status files."""
    graphs = [one.graph for one in report.leaves if one.graph is not None]

    def judged(op: OverflowOp, run: RunGraph | None) -> OverflowOp:
        found = None if run is None else next((one for one in run.file.ops if one.name == op.name), None)
        return op if found is None or run is None else replace(op, judged=examine(run, found))

    def in_leaf(one: LeafOverflow) -> LeafOverflow:
        first = one.first
        if first is None or one.graph is None:
            return one
        new = judged(first, replace(one.graph, leaf=one.leaf))
        return replace(one, ops=tuple(new if op is first else op for op in one.ops))

    leaves = tuple(map(in_leaf, report.leaves))
    known = {one.first.name: one.first.judged for one in leaves if one.first is not None}
    statuses: list[StatusReport] = []
    for one in report.statuses:
        op = one.op
        if op is not None and len(statuses) < _MOST:
            op = replace(op, judged=known[op.name]) if op.name in known else judged(op, next(iter(graphs), None))
        statuses.append(replace(one, op=op))
    return replace(report, leaves=leaves, statuses=tuple(statuses))


def with_verdicts(check: CheckResult, ops: Mapping[str, JudgedOp]) -> CheckResult:
    """The check for overflow with what the verdicts, by name of the op, say of the op that it names first."""
    if not isinstance(check, OverflowResult):
        return check
    report = with_judged_overflow(check.report, lambda _, op: ops.get(op.name))
    return overflow_result(report, check.root, check.limit)


def _random(report: RandomReport, runs: Mapping[str, RunGraph], examine: Examine) -> RandomReport:
    first = report.first
    if first is None:
        return report
    found = []
    for path in (report.left, report.right):
        run = runs.get(path)
        op = None if run is None else next((one for one in run.file.ops if one.name == first.name), None)
        judged = None if run is None or op is None else examine(run, op)
        if judged is None:
            return report
        found.append(judged)
    new = replace(first, judged=tuple(found))
    return replace(report, ops=tuple(new if op is first else op for op in report.ops))
