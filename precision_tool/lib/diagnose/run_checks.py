"""A result with everything the checks say about it: what commands show and programs read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from precision_tool.lib.compare.data_folder import DataFolder
from precision_tool.lib.compare.folders import LeafResult
from precision_tool.lib.compare.result_files import ResultSource, cosines_of, source_of
from precision_tool.lib.compare.run_values import KnownValues, known_values
from precision_tool.lib.compare.scheduler import WorkStoppedError
from precision_tool.lib.data.dumped_ops import GoldenFiles
from precision_tool.lib.data.graph_catalog import MissingGraph, RunGraph
from precision_tool.lib.data.kinds import MSPROBE, is_benchmark_file
from precision_tool.lib.diagnose import casts
from precision_tool.lib.diagnose import fusion_effect as fusion
from precision_tool.lib.diagnose import graph_diff as similarity
from precision_tool.lib.diagnose.agreement import (
    OpAgreement,
    Overview,
    find_first_fault,
    find_unreadable,
    ops_of,
    overview,
)
from precision_tool.lib.diagnose.overflow_advice import check_overflow
from precision_tool.lib.extensions import Registry
from precision_tool.lib.io.files import is_folder, list_folder, real_path
from precision_tool.lib.io.fusion_passes import Switches
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import NoBenchmarkError, PrecisionToolError
from precision_tool.lib.model.comparison import Status
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
    part: Message | None = None

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
        agreement = [row.statistics_agree for row in self.rows if row.statistics_agree is not None]
        return len(agreement), agreement.count(False)

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
    part: Message | None = None,
) -> Analysis:
    """Run the checks over the rows of one result, compared now (`leaf`) or read back."""
    ops = ops_of(rows, threshold)
    faults = find_first_fault(ops, threshold, leaf.unread_graph if leaf else None)
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


def explain_overflow(analysis: Analysis, overflow: Finding) -> Analysis:
    """Return the analysis with a finding where an op overflows before the one that the verdict names, or it names none.

    A few saturated values hardly change a cosine, but are where the error of everything after them comes from.
    """
    order = {op.op_name: op.index for op in analysis.ops}
    place = order.get(overflow.op_name)

    def explained(finding: Finding) -> Finding:
        if place is None or finding.kind not in _VERDICTS or place >= order.get(finding.op_name, inf):
            return finding
        text = Message("finding.fact.overflows", op_name=overflow.op_name, is_before=bool(finding.op_name))
        return replace(finding, facts=(*finding.facts, Fact(Message("finding.label.overflow"), text)))

    return replace(analysis, findings=[explained(finding) for finding in analysis.findings])


# --- checks of a run --------------------------------------------------------------------------------------------------


#: A check of the graphs and dumps of the NPU runs.
RunCheck = Callable[[Sequence[RunGraph], Sequence[MissingGraph], Mapping[str, KnownValues]], CheckResult]


def _accept_check(name: str, check: Any) -> RunCheck:
    """Wrap a third party's check: whatever it raises is the reason why it was not made."""
    if not callable(check):
        raise TypeError("a function of (runs, missing, cached) that returns a CheckResult is needed")

    def guarded(
        runs: Sequence[RunGraph], missing: Sequence[MissingGraph], cached: Mapping[str, KnownValues]
    ) -> CheckResult:
        try:
            result: CheckResult = check(runs, missing, cached)
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
    runs: Sequence[RunGraph], missing: Sequence[MissingGraph] = (), cached: Mapping[str, KnownValues] | None = None
) -> list[CheckResult]:
    """Run every check. What one of them cannot read is its result, and no obstacle to the others.

    `missing` are dumped models without a graph: a check says that it did not look at them. `cached` is what a
    comparison found out, by the folder of the leaf.
    """
    results = []
    is_recorded = bool(runs) and all(run.file.framework for run in runs)
    for name, check in RUN_CHECKS.all().items():
        if is_recorded and name in _OF_COMPILED:
            continue
        try:
            results.append(check(runs, missing, cached or {}))
        except WorkStoppedError:  # Ctrl+C means all of it
            raise
        except PrecisionToolError as error:
            results.append(CheckResult(name=name, skipped=error.advice_message))
    return results


#: Checks of what a compiler made of a network, which recorded calls have nothing of.
_OF_COMPILED = (casts.NAME, similarity.NAME)


def skip_checks(reason: Message) -> list[CheckResult]:
    """Return the result of every check of graphs where none can be made."""
    return [CheckResult(name=name, skipped=reason) for name in (fusion.NAME, *RUN_CHECKS.all())]


# --- all checks of `ac` ---


def all_checks(
    data: DataFolder,
    analyses: Sequence[Analysis],
    threshold: float,
    *,
    npu: str | None = None,
    graph: str | None = None,
    limit: int = 0,
) -> list[CheckResult]:
    """Return the checks of the NPU runs of a data folder, or of one that was compared.

    Of PyTorch dumps there is none but of the overflow status files that the data folder has.

    Parameters
    ----------
    data : DataFolder
        The runs, their graphs and fusion reports.
    analyses : sequence of Analysis
        The comparisons made: what they read is not read again.
    threshold : float
        Cosine below which an output counts as wrong.
    npu : str, optional
        The run that was compared; by default all of the data folder are checked.
    graph : str, optional
        The graph that was named for it.
    limit : int
        Ops and status files that the check for overflow lists at most, 0: all.
    """
    has_graph = all(analysis.has_graph for analysis in analyses)
    if not has_graph and npu is not None:
        return []
    leaves = [analysis.leaf for analysis in analyses if analysis.leaf is not None]
    cached = known_values(leaves)
    overflow = check_overflow(data, npu, graph, limit, cached)
    if not has_graph:
        return [] if overflow.skipped else [overflow]
    if npu is not None and not leaves and MSPROBE.lies_at(npu):
        return [overflow]
    cosines = cosines_of(analysis.rows for analysis in analyses) if analyses else None
    if npu is None:
        return [*_checks_of_runs(data, threshold, graph, cosines, cached), overflow]
    return [*_checks_of_leaves(data, threshold, leaves, cosines or {}, cached), overflow]


def _checks_of_runs(
    data: DataFolder,
    threshold: float,
    graph: str | None,
    cosines: Mapping[str, float] | None,
    cached: Mapping[str, KnownValues],
) -> list[CheckResult]:
    """Run the checks that need a graph on the runs of a data folder."""
    try:
        missing = data.missing_graphs(graph)
        runs = data.run_graphs(graph)
        if runs and all(run.file.framework for run in runs):
            return check_runs(runs, missing, cached)
        passes = fusion.check_fusion(fusion_graphs(data, graph, cosines=cosines), threshold, missing)
        return [passes, *check_runs(runs, missing, cached)]
    except PrecisionToolError as error:
        return skip_checks(error.advice_message)


def _checks_of_leaves(
    data: DataFolder,
    threshold: float,
    leaves: Sequence[LeafResult],
    cosines: Mapping[str, float],
    cached: Mapping[str, KnownValues],
) -> list[CheckResult]:
    """Run the checks that need a graph on what was compared."""
    runs = tuple(
        RunGraph(number=None, leaf=leaf.leaf, file=leaf.graph.file, reason=leaf.graph.reason)
        for leaf in leaves
        if leaf.graph is not None
    )
    if not runs:
        return skip_checks(Message("check.no_graph_named"))
    if all(run.file.framework for run in runs):
        return check_runs(runs, cached=cached)
    in_effect = fusion.passes_in_effect(runs, data.fusion_reports(), cosines)
    checks = [fusion.check_fusion(in_effect, threshold), *check_runs(runs, cached=cached)]
    return [_similarity(data, runs) if check.name == similarity.NAME else check for check in checks]


def _similarity(data: DataFolder, named: Sequence[RunGraph]) -> CheckResult:
    """Return the graphs of the data folder's two runs, where what was named is one of these."""
    with suppress(PrecisionToolError):
        runs = data.run_graphs()
        places = {real_path(leaf.path) for run in runs for leaf in run.leaves}
        if any(run.leaf is not None and real_path(run.leaf.path) in places for run in named):
            return similarity.check_similarity(runs, data.missing_graphs())
    return CheckResult(name=similarity.NAME, skipped=Message("check.graph_similarity.other_dump"))


def fusion_graphs(
    data: DataFolder,
    graph: str | None = None,
    switches: Switches | None = None,
    cosines: Mapping[str, float] | None = None,
) -> tuple[fusion.GraphFusion, ...]:
    """Return the fusion passes of every graph; without a graph those that the reports alone tell of.

    `cosines` are those of the ops' outputs where a result is at hand: else the newest is read. Raises what
    `run_graphs` does where there is neither a graph nor a report.
    """
    reports = data.fusion_reports()
    runs: tuple[RunGraph, ...] = ()
    try:
        runs = data.run_graphs(graph)
    except PrecisionToolError:
        if not reports or graph is not None:
            raise
    return fusion.passes_in_effect(runs, reports, data.cosines() if cosines is None else cosines, switches)


# --- is the benchmark of the same network? ----------------------------------------------------------------------------

#: Two dumps of one network match in more than one tensor of so many, on one side at least.
_FEW = 4
#: What a tensor that has a counterpart in the benchmark is called, whether or not values could be compared.
_MATCHED = (Status.COMPARED, Status.STATISTICS_ONLY, Status.NOT_NUMERIC, Status.LAYOUT)
_UNMATCHED = (Status.NO_BENCHMARK, Status.SIZE_MISMATCH)


def check_benchmark_fits(analyses: Sequence[Analysis]) -> None:
    """Raise NoBenchmarkError where what was compared hardly matches the benchmark, and the benchmark hardly it.

    A benchmark of few ops of the same network is matched by most of its own tensors. Where graphs or calls were
    aligned, that has told whether both are of one network.
    """
    matches = [_match_of(analysis) for analysis in analyses if analysis.rows]
    if matches and all(match is not None for match in matches):
        raise NoBenchmarkError("diagnose.other_network", **next(match for match in matches if match is not None))


def _match_of(analysis: Analysis) -> dict[str, Any] | None:
    """How many tensors match, as fields of a message; None for a benchmark that belongs to the run."""
    root, files = _benchmark_of(analysis)
    rows = [row for row in analysis.rows if row.pair.slot and row.status in (*_MATCHED, *_UNMATCHED)]
    matched = [row for row in rows if row.status in _MATCHED]
    used = len({row.pair.golden_tensor for row in matched})
    if len(matched) * _FEW >= len(rows) or used * _FEW >= files:
        return None
    return {"matched": len(matched), "tensors": len(rows), "golden": root, "used": used, "files": files}


def _benchmark_of(analysis: Analysis) -> tuple[str, int]:
    """The benchmark's folder and how many tensors it has; 0 where it is a dump, or no longer there."""
    if analysis.leaf is not None:
        golden = analysis.leaf.golden
        return (golden.root, len(golden.files)) if isinstance(golden, GoldenFiles) else ("", 0)
    root = analysis.source.golden if analysis.source is not None else ""
    with suppress(PrecisionToolError):
        if root and is_folder(root):
            return root, sum(map(is_benchmark_file, list_folder(root)))
    return root, 0
