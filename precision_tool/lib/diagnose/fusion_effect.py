"""The fusion passes in effect: how often each matched and took effect, which ops it made, how they came out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan

from precision_tool.lib.data.fusion_pair import Fusion
from precision_tool.lib.data.graph_catalog import MissingGraph, RunGraph
from precision_tool.lib.diagnose.agreement import no_graph
from precision_tool.lib.io.fusion_passes import GraphPasses, Switches, is_switchable
from precision_tool.lib.messages import Message
from precision_tool.lib.model.finding import CheckResult, Fact, Finding, FindingKind, Grade, joined

NAME = "fusion_passes"
#: Passes of a graph that the panel of `ac` names.
_MAX_LISTED = 8
_SESSION_GRAPH_ID = "_session_graph_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRow:
    """A pass in a graph. Counts are None where no `fusion_result.json` tells; `ops` are those it made in the graph.

    `section` is None where no report of GE names the pass. `cosine` is the worst of their outputs in the newest result,
    None where none was compared. `switch` is what the switch file says: True on, False off, None without a file
    or where that depends on the section.
    """

    name: str
    section: str | None
    ops: tuple[str, ...] = ()
    matched: int | None = None
    effective: int | None = None
    cosine: float | None = None
    compared: int = 0
    worst_op: str = ""
    is_switchable: bool = True
    switch: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFusion:
    """The passes of one graph, most ops first. `run` is None and `path` empty for one that only a report names."""

    run: int | None
    path: str
    graph_id: str
    rows: tuple[PassRow, ...]
    source: str = ""
    nameless: int = 0
    fused: int = 0


def passes_in_effect(
    runs: Sequence[RunGraph],
    records: Sequence[GraphPasses],
    cosines: Mapping[str, float],
    switches: Switches | None = None,
) -> tuple[GraphFusion, ...]:
    """Return the passes of every graph, from the graphs and from what GE reported of them (`fusion_result.json`).

    A report belongs to the graph with its id and, of several runs that have it, to the one that most of its passes
    made ops in. Reports without a graph follow.
    """
    fusions = [Fusion(run.file) for run in runs]
    ids = [_graph_id(run) for run in runs]
    own: dict[int, GraphPasses] = {}
    others: list[GraphPasses] = []
    for record in records:
        best = _run_of(record, fusions, ids)
        if best is None:
            others.append(record)
        elif best not in own:
            own[best] = record
        elif own[best].path == record.path:  # several reports of one graph in one file add up
            own[best] = replace(own[best], passes=own[best].passes + record.passes)
    compared = _compared_run(runs, cosines)
    sections = {count.name: count.section for record in records for count in record.passes}
    passes = [
        GraphFusion(
            run=run.number,
            path=run.file.path,
            graph_id=ids[number],
            rows=_rows(own.get(number), fusion, cosines if number == compared else {}, switches, sections),
            source=own[number].path if number in own else "",
            nameless=len(fusion.nameless),
            fused=sum(bool(op.pass_names) for op in run.file.ops) + len(fusion.nameless),
        )
        for number, (run, fusion) in enumerate(zip(runs, fusions, strict=True))
    ]
    passes += [
        GraphFusion(
            run=None,
            path="",
            graph_id=record.graph,
            rows=_rows(record, None, {}, switches, sections),
            source=record.path,
        )
        for record in others
        if any(count.matched or count.effective for count in record.passes)
    ]
    return tuple(passes)


def _graph_id(run: RunGraph) -> str:
    attrs = run.file.graphs[0].attrs if run.file.graphs else {}
    return str(attrs.get(_SESSION_GRAPH_ID) or "")


def _run_of(record: GraphPasses, fusions: Sequence[Fusion], ids: Sequence[str]) -> int | None:
    """Return the graph a report is of; None if there is none."""

    def fits(graph_id: str) -> bool:
        if not record.graph or not graph_id:
            return True
        if "_" in record.graph:
            return record.graph == graph_id
        return record.graph == graph_id.rsplit("_", 1)[-1]

    names = {count.name for count in record.passes if count.effective}
    shares = [
        (len(names & set(fusion.passes)), -number)
        for number, fusion in enumerate(fusions)
        if fits(ids[number]) and (names & set(fusion.passes) or (not fusion.passes and not names))
    ]
    return -max(shares)[1] if shares else None


def _compared_run(runs: Sequence[RunGraph], cosines: Mapping[str, float]) -> int:
    """Return the graph that the newest result is of: the one with most of its ops, fused ones above all."""
    counts = [sum(op.name in cosines for op in run.file.ops) for run in runs]
    return counts.index(max(counts)) if counts else 0


def _rows(
    record: GraphPasses | None,
    fusion: Fusion | None,
    cosines: Mapping[str, float],
    switches: Switches | None,
    sections: Mapping[str, str],
) -> tuple[PassRow, ...]:
    counts: dict[str, list[int]] = {}
    for count in record.passes if record is not None else ():
        totals = counts.setdefault(count.name, [0, 0])
        totals[0] += count.matched
        totals[1] += count.effective
    ops: dict[str, list[str]] = {}
    for op in fusion.file.ops if fusion is not None else ():
        for name in op.pass_names:
            ops.setdefault(name, []).append(op.name)
    rows = []
    for name in dict.fromkeys((*counts, *ops)):
        made = tuple(ops.get(name, ()))
        compared = {op: cosines[op] for op in made if op in cosines}
        worst = min(compared, key=lambda op: -2.0 if isnan(compared[op]) else compared[op], default="")
        section = sections.get(name)
        rows.append(
            PassRow(
                name=name,
                section=section,
                ops=made,
                matched=counts[name][0] if name in counts else None,
                effective=counts[name][1] if name in counts else None,
                cosine=compared.get(worst),
                compared=len(compared),
                worst_op=worst,
                is_switchable=is_switchable(name),
                switch=None if switches is None else switches.state_of(name, section),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-len(row.ops), -(row.effective or 0), row.name)))


def check_fusion(graphs: Sequence[GraphFusion], threshold: float, missing: Sequence[MissingGraph] = ()) -> CheckResult:
    """Return the fusion passes of every graph; a cosine below the threshold is worth a look."""
    with_passes = tuple(graph for graph in graphs if graph.rows)
    if not with_passes:
        nameless = sum(graph.nameless for graph in graphs) or None
        reasons = joined(tuple(map(no_graph, missing)))
        return CheckResult(
            name=NAME, skipped=Message("check.fusion_passes.no_passes", nameless=nameless, missing=reasons)
        )
    made = Counter({graph.run: len({op for row in graph.rows for op in row.ops}) for graph in with_passes})
    names = {row.name for graph in with_passes for row in graph.rows}
    finding = Finding(
        kind=FindingKind.FUSION_PASSES,
        grade=Grade.INFO,
        message=Message("finding.fusion_passes", passes=len(names), ops=made.total()),
        facts=tuple(fact for graph in with_passes for fact in _facts(graph, threshold)),
    )
    sources = tuple(dict.fromkeys(graph.source for graph in with_passes if graph.source))
    looked_at = Message("check.fusion_passes.looked_at", sources=sources)
    return CheckResult(name=NAME, finding=finding, looked_at=looked_at, details=with_passes)


def _facts(graph: GraphFusion, threshold: float) -> Iterator[Fact]:
    label = f"debug_{graph.run}" if graph.run is not None else f"graph {graph.graph_id or '?'}"
    rows = sorted(graph.rows, key=lambda row: 2.0 if row.cosine is None else -2.0 if isnan(row.cosine) else row.cosine)
    for row in rows[:_MAX_LISTED]:
        is_below = row.cosine is not None and (isnan(row.cosine) or row.cosine < threshold)
        shown = Message(
            "finding.fact.pass",
            pass_name=row.name,
            ops=len(row.ops),
            matched=row.matched,
            effective=row.effective,
            cosine=row.cosine,
            worst_op=row.worst_op if is_below else "",
            is_fixed=not row.is_switchable,
        )
        yield Fact(label, shown)
    if len(rows) > _MAX_LISTED:
        yield Fact(label, Message("finding.fact.more_passes", count=len(rows) - _MAX_LISTED))
