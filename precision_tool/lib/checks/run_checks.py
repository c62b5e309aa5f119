"""All that `ac` checks beside the comparison: fusion passes, casts, the graphs of two runs, overflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from precision_tool.lib.checks import fusion, similarity
from precision_tool.lib.checks.analysis import Analysis, check_runs, skip_checks
from precision_tool.lib.checks.overflow_check import check_overflow
from precision_tool.lib.compare.cosines import cosines_of
from precision_tool.lib.compare.folders import LeafResult
from precision_tool.lib.compare.known import KnownValues, known_values
from precision_tool.lib.data.folder import DataFolder
from precision_tool.lib.errors import PrecisionToolError
from precision_tool.lib.formats.fusion_switch import Switches
from precision_tool.lib.graph.catalog import RunGraph
from precision_tool.lib.io.files import real_path
from precision_tool.lib.messages import Message
from precision_tool.lib.model.finding import CheckResult


def all_checks(
    data: DataFolder,
    analyses: Sequence[Analysis],
    threshold: float,
    *,
    npu: str | None = None,
    graph: str | None = None,
    limit: int = 0,
) -> list[CheckResult]:
    """The checks of the NPU runs of a data folder, or of the run below `npu`, which was compared.

    Of PyTorch dumps there is none but of the overflow status files that the data folder has. `limit` ops and statuses
    are told of at most, 0: all.
    """
    has_graph = all(analysis.has_graph for analysis in analyses)
    if not has_graph and npu is not None:
        return []
    leaves = [analysis.leaf for analysis in analyses if analysis.leaf is not None]
    known = known_values(leaves)
    overflow = check_overflow(data, npu, graph, limit, known)
    if not has_graph:
        return [] if overflow.skipped else [overflow]
    cosines = cosines_of(analysis.rows for analysis in analyses) if analyses else None
    if npu is None:
        return [*_checks_of_runs(data, threshold, graph, cosines, known), overflow]
    return [*_checks_of_leaves(data, threshold, leaves, cosines or {}, known), overflow]


def _checks_of_runs(
    data: DataFolder,
    threshold: float,
    graph: str | None,
    cosines: Mapping[str, float] | None,
    known: Mapping[str, KnownValues],
) -> list[CheckResult]:
    """Those that need a graph, of the runs of a data folder."""
    try:
        missing = data.missing_graphs(graph)
        passes = fusion.check_fusion(fusion_graphs(data, graph, cosines=cosines), threshold, missing)
        return [passes, *check_runs(data.run_graphs(graph), missing, known)]
    except PrecisionToolError as error:
        return skip_checks(Message("text", text=error.advice))


def _checks_of_leaves(
    data: DataFolder,
    threshold: float,
    leaves: Sequence[LeafResult],
    cosines: Mapping[str, float],
    known: Mapping[str, KnownValues],
) -> list[CheckResult]:
    """Those that need a graph, of what was compared."""
    runs = tuple(
        RunGraph(number=None, leaf=leaf.leaf, file=leaf.graph.file, reason=leaf.graph.reason)
        for leaf in leaves
        if leaf.graph is not None
    )
    if not runs:
        return skip_checks(Message("check.no_graph_named"))
    in_effect = fusion.passes_in_effect(runs, data.fusion_reports(), cosines)
    checks = [fusion.check_fusion(in_effect, threshold), *check_runs(runs, known=known)]
    return [_similarity(data, runs) if check.name == similarity.NAME else check for check in checks]


def _similarity(data: DataFolder, named: Sequence[RunGraph]) -> CheckResult:
    """The graphs of the data folder's two runs, where what was named is one of these."""
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
    """The fusion passes of every graph; without a graph those that the reports alone tell of.

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
