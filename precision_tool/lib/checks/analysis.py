"""A result with everything the checks say about it: what commands show and programs read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from precision_tool.lib.checks import casts, fusion, similarity
from precision_tool.lib.checks.agreement import OpAgreement, Overview, ops_of, overview
from precision_tool.lib.checks.first_fault import find_first_fault, find_unreadable
from precision_tool.lib.compare.folders import LeafResult
from precision_tool.lib.compare.known import KnownValues
from precision_tool.lib.compare.result_source import ResultSource, source_of
from precision_tool.lib.engine.scheduler import WorkStoppedError
from precision_tool.lib.errors import PrecisionToolError
from precision_tool.lib.extensions import Registry
from precision_tool.lib.graph.catalog import MissingGraph, RunGraph
from precision_tool.lib.messages import Message
from precision_tool.lib.model.finding import CheckResult, Fact, Finding, FindingKind
from precision_tool.lib.model.table import ColumnChoice, Row, Table

#: Findings that say which op is to blame, or that none is.
_VERDICTS = (FindingKind.FIRST_FAULTY_OP, FindingKind.BELOW_THRESHOLD, FindingKind.ALL_AGREE)


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """A result, its rows judged at a threshold, and what the checks found.

    `leaf` is None for a file read back, of which `source` may be known, and `part` says what is missing, empty if
    nothing is. `path` is empty for a leaf that gave no rows and thus no file.
    """

    path: str
    threshold: float
    rows: Sequence[Row] = field(repr=False)
    ops: Sequence[OpAgreement] = field(repr=False)
    overview: Overview
    findings: Sequence[Finding] = field(repr=False)
    choice: ColumnChoice = field(default_factory=ColumnChoice)
    leaf: LeafResult | None = None
    source: ResultSource | None = None
    part: str = ""

    @property
    def tensors(self) -> int:
        """How many rows stand for a tensor; the others stand for an op without a dump."""
        return sum(bool(row.slot) for row in self.rows)

    @property
    def dumped_ops(self) -> int:
        """How many ops have a tensor."""
        return sum(bool(op.inputs or op.outputs) for op in self.ops)

    @property
    def statistics(self) -> tuple[int, int]:
        """How many tensors were compared by their statistics only, and of how many these differ."""
        told = [row.statistics_agree for row in self.rows if row.statistics_agree is not None]
        return len(told), told.count(False)

    @property
    def is_two_runs(self) -> bool:
        """True if the other side is an NPU run as well: the result then has the address of its tensors too."""
        return self.leaf.golden_is_dump if self.leaf is not None else self.choice.golden_address

    @property
    def has_graph(self) -> bool:
        """False of PyTorch's dumps, which have ops and tensors of their own names."""
        return not self.choice.h5


def analyse(
    path: str,
    rows: Table,
    threshold: float,
    leaf: LeafResult | None = None,
    *,
    source: ResultSource | None = None,
    part: str = "",
) -> Analysis:
    """Runs the checks over the rows of one result, compared now (`leaf`) or read back."""
    ops = ops_of(rows, threshold)
    faults = find_first_fault(ops, threshold, leaf.unread_graph if leaf else "")
    if part:
        caveat = Fact(Message("finding.label.caveat"), part)
        faults = [replace(fault, facts=(caveat, *fault.facts)) for fault in faults]
    return Analysis(
        path=path,
        threshold=threshold,
        rows=rows,
        ops=ops,
        overview=overview(rows, ops, threshold),
        findings=[*find_unreadable(rows), *faults],
        choice=rows.choice,
        leaf=leaf,
        source=source_of(leaf) if leaf is not None else source,
        part=part,
    )


def tell_overflow(analysis: Analysis, overflow: Finding) -> Analysis:
    """The same with a word in the verdict where an op overflows before the one that it names, or where it names none.

    A few saturated values hardly change a cosine, but are where the error of everything after them comes from.
    """
    order = {op.op_name: op.index for op in analysis.ops}
    place = order.get(overflow.op_name)

    def told(finding: Finding) -> Finding:
        if place is None or finding.kind not in _VERDICTS or place >= order.get(finding.op_name, inf):
            return finding
        text = Message("finding.fact.overflows", op_name=overflow.op_name, is_before=bool(finding.op_name))
        return replace(finding, facts=(*finding.facts, Fact(Message("finding.label.overflow"), text)))

    return replace(analysis, findings=[told(finding) for finding in analysis.findings])


# --- checks of a run --------------------------------------------------------------------------------------------------


#: A check of the graphs and dumps of the NPU runs.
RunCheck = Callable[[Sequence[RunGraph], Sequence[MissingGraph], Mapping[str, KnownValues]], CheckResult]


def _accept_check(name: str, check: Any) -> RunCheck:
    """A third party's check, whatever it raises the reason why it was not made."""
    if not callable(check):
        raise TypeError("a function of (runs, missing, known) that returns a CheckResult is needed")

    def guarded(
        runs: Sequence[RunGraph], missing: Sequence[MissingGraph], known: Mapping[str, KnownValues]
    ) -> CheckResult:
        try:
            result: CheckResult = check(runs, missing, known)
            return replace(result, name=name)
        except (PrecisionToolError, WorkStoppedError):
            raise
        except Exception as error:  # a third party's code
            return CheckResult(name=name, skipped=Message("text", text=f"{type(error).__name__}: {error}"))

    return guarded


#: What `ac` checks beside the comparison, in the order in which it is shown. A new check is a line here.
RUN_CHECKS: Registry[RunCheck] = Registry(
    "checks", {casts.NAME: casts.check_casts, similarity.NAME: similarity.check_similarity}, _accept_check
)


def check_runs(
    runs: Sequence[RunGraph], missing: Sequence[MissingGraph] = (), known: Mapping[str, KnownValues] | None = None
) -> list[CheckResult]:
    """Makes every check. What one of them cannot read is its result, and no obstacle to the others.

    `missing` are dumped models without a graph: a check says that it did not look at them. `known` is what a
    comparison found out, by the folder of the leaf.
    """
    results = []
    for name, check in RUN_CHECKS.all().items():
        try:
            results.append(check(runs, missing, known or {}))
        except WorkStoppedError:  # Ctrl+C means all of it
            raise
        except PrecisionToolError as error:
            results.append(CheckResult(name=name, skipped=Message("text", text=error.advice)))
    return results


def skip_checks(reason: Message) -> list[CheckResult]:
    """Return the result of every check of graphs where none can be made."""
    return [CheckResult(name=name, skipped=reason) for name in (fusion.NAME, *RUN_CHECKS.all())]
