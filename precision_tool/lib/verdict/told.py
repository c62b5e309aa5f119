"""What the verdict's judgement says of the ops that `overflow` and `random` name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from precision_tool.lib.checks.overflow import LeafOverflow, OverflowOp, OverflowReport, StatusReport
from precision_tool.lib.checks.overflow_check import OverflowResult, overflow_result
from precision_tool.lib.checks.random_errors import RandomReport
from precision_tool.lib.graph.catalog import RunGraph
from precision_tool.lib.model.finding import CheckResult
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.judged import JudgedOp

#: Judges one op of a run; None for one that computes nothing, or was not dumped.
Examine = Callable[[RunGraph, Op], JudgedOp | None]


#: Of so many status files at most the ops are judged; there may be one for every op of a network.
_MOST = 8


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


def with_judged_random(
    reports: Sequence[RandomReport], runs: Mapping[str, RunGraph], examine: Examine
) -> list[RandomReport]:
    """The reports with judgements, in both runs, of the op that computes differently first; `runs` by dump folder."""
    return [_random(one, runs, examine) for one in reports]


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
