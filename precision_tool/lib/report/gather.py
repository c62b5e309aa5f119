"""What a report is made of: results with their verdicts, their graphs, and the values of the ops that matter."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from precision_tool.lib.checks.analysis import Analysis
from precision_tool.lib.diagnose.pipeline import Diagnosis
from precision_tool.lib.errors import PrecisionToolError
from precision_tool.lib.graph.catalog import RunGraph
from precision_tool.lib.graph.lookup import FoundOp
from precision_tool.lib.graph.named import names_in
from precision_tool.lib.io.files import real_path
from precision_tool.lib.model.comparison import Pair
from precision_tool.lib.model.finding import Finding
from precision_tool.lib.model.graph import GraphFile
from precision_tool.lib.present.compare import leaf_title
from precision_tool.lib.present.evidence.passports import pair_json
from precision_tool.lib.report.details import Budget, tensor_details
from precision_tool.lib.report.document import Material
from precision_tool.lib.session import Session
from precision_tool.lib.verdict.stored import StoredVerdict
from precision_tool.lib.workspace import shown_path

#: Ops whose values are looked at closely, and tensors of each.
MOST_OPS, _MOST_TENSORS = 24, 12

PairsOf = Callable[[str], Sequence[Pair]]


def gather(
    session: Session,
    diagnoses: Sequence[Diagnosis],
    graph: str | None = None,
    checks: Sequence[Finding] = (),
) -> list[Material]:
    """Return the material of each result; of verdicts without one, as there was nothing to compare with, theirs alone.

    `graph` is used where it was asked for. What cannot be read any more is left out, and a note says so.
    """
    materials = []
    for diagnosis in diagnoses:
        if diagnosis.analysis is not None:
            materials.append(_of_result(session, diagnosis.analysis, diagnosis.kept, graph, checks))
        elif diagnosis.kept is not None:
            materials.append(_alone(session, diagnosis.kept, graph, checks))
    return materials


def _of_result(
    session: Session, analysis: Analysis, verdict: StoredVerdict | None, graph: str | None, checks: Sequence[Finding]
) -> Material:
    notes: list[str] = []
    npu = analysis.source.npu if analysis.source is not None else ""
    file = _file_of(session, analysis, verdict, graph, notes)
    golden = analysis.source.golden if analysis.source is not None else ""
    passports = session.passports(npu, golden) if npu and golden else None
    run = verdict.run_of(npu) if verdict is not None and npu else None
    names = list(dict.fromkeys(map(names_in(file), _close_ops(analysis, verdict))))[:MOST_OPS]
    pairs_of = _pairs_at_hand(analysis, file, names) or _pairs_in_data(session, npu, file)
    if verdict is not None and verdict.runs and run is not verdict.runs[0]:
        pairs_of = _beside(session, analysis, verdict, pairs_of, notes)
    return Material(
        title=leaf_title(analysis),
        path=shown_path(analysis.path) if analysis.path else "",
        npu=shown_path(npu) if npu else "",
        golden=shown_path(golden) if golden else "",
        threshold=analysis.threshold,
        analysis=analysis,
        verdict=verdict,
        file=file,
        details=_details(names, pairs_of, notes),
        checks=checks,
        notes=[*(analysis.leaf.notes if analysis.leaf is not None else ()), *notes],
        passport=pair_json(passports) if passports is not None else None,
        run=run,
    )


def _beside(
    session: Session, analysis: Analysis, verdict: StoredVerdict, pairs_of: PairsOf, notes: list[str]
) -> PairsOf:
    """The values where the verdict is on another run than the result: of what it blames those of that run."""
    blamed = verdict.runs[0]
    name = f"debug_{blamed.number}" if blamed.number is not None else shown_path(blamed.npu)
    notes.append(
        f"the verdict is on {name}, so the own errors of what it blames are of that run; the cosines, and the other "
        "ops, are of what this result compares"
    )
    if analysis.is_two_runs:  # it has the values of that run as the other side's
        return pairs_of
    of_blamed = _pairs_in_data(session, blamed.npu, _load(session, blamed.graph, notes))
    return lambda op: (of_blamed(op) if op in verdict.blamed else ()) or pairs_of(op)


def _alone(session: Session, verdict: StoredVerdict, graph: str | None, checks: Sequence[Finding]) -> Material:
    notes: list[str] = []
    run = verdict.runs[0] if verdict.runs else None
    path = graph or (run.graph if run is not None else "")
    npu = run.npu if run is not None else ""
    file = _load(session, path, notes)
    return Material(
        title=posixpath.basename(npu.rstrip("/")) or "run",
        npu=shown_path(npu) if npu else "",
        threshold=verdict.threshold,
        verdict=verdict,
        run=run,
        file=file,
        details=_details(_close_ops(None, verdict)[:MOST_OPS], _pairs_in_data(session, npu, file), notes),
        checks=checks,
        notes=notes,
    )


# --- graphs -----------------------------------------------------------------------------------------------------------


def _file_of(
    session: Session, analysis: Analysis, verdict: StoredVerdict | None, graph: str | None, notes: list[str]
) -> GraphFile | None:
    if not analysis.has_graph:
        return None
    if graph is None and analysis.leaf is not None and analysis.leaf.graph is not None:
        return analysis.leaf.graph.file
    path = graph or (analysis.source.graph if analysis.source is not None else "")
    if not path and verdict is not None and verdict.runs:
        mine = verdict.run_of(analysis.source.npu) if analysis.source is not None else None
        path = (mine or verdict.runs[0]).graph
    return _load(session, path, notes)


def _load(session: Session, path: str, notes: list[str]) -> GraphFile | None:
    if not path:
        return None
    try:
        return session.data.store.load(path)
    except PrecisionToolError as error:
        notes.append(f"no map: {error.message}")
        return None


# --- values -----------------------------------------------------------------------------------------------------------


def _close_ops(analysis: Analysis | None, verdict: StoredVerdict | None) -> list[str]:
    """The ops that are looked at closely: the suspects, what the comparison names, then the worst ones."""
    names: dict[str, None] = {}
    names |= dict.fromkeys(verdict.blamed if verdict is not None else ())
    if verdict is not None and verdict.runs:
        names |= dict.fromkeys(op.name for op in verdict.runs[0].ops if op.is_wrong)
    if analysis is not None:
        names |= dict.fromkeys(finding.op_name for finding in analysis.findings if finding.op_name)
        below = [op for op in analysis.ops if op.outputs_agree is False]
        names |= dict.fromkeys(op.op_name for op in below[: MOST_OPS // 2])
        worst = sorted(below, key=lambda op: min((row.cosine or -1.0 for row in op.outputs), default=0.0))
        names |= dict.fromkeys(op.op_name for op in worst)
    return list(names)


def _pairs_at_hand(analysis: Analysis, file: GraphFile | None, names: Collection[str]) -> PairsOf | None:
    """The pairs of these ops of a fresh comparison; None for a result that was read."""
    if analysis.leaf is None:
        return None
    name_of = names_in(file)
    by_op: dict[str, list[Pair]] = {}
    for op in analysis.ops:
        if (name := name_of(op.op_name)) in names:
            by_op.setdefault(name, []).extend(row.pair for row in op.rows if row.slot)
    return lambda name: by_op.get(name, ())


def _pairs_in_data(session: Session, npu: str, file: GraphFile | None) -> PairsOf:
    """The pairs of the dump that a result is of, where it lies in the data folder."""
    run = _run_of(session, npu, file)
    if run is None:
        return lambda name: ()
    graphs = {op.name: (graph, op) for graph in reversed(run.file.graphs) for op in graph.ops}

    def pairs_of(name: str) -> Sequence[Pair]:
        if name not in graphs:
            return ()
        graph, op = graphs[name]
        return session.data.pairs_of(FoundOp(run=run, op=op, graph=graph), looks_again=False)

    return pairs_of


def _run_of(session: Session, npu: str, file: GraphFile | None) -> RunGraph | None:
    if not npu or file is None:
        return None
    try:
        runs: Iterator[RunGraph] = iter(session.run_graphs())
        wanted = real_path(npu)
        return next((run for run in runs if run.leaf is not None and real_path(run.leaf.path) == wanted), None)
    except PrecisionToolError:
        return None


def _details(names: Sequence[str], pairs_of: PairsOf, notes: list[str]) -> Mapping[str, list[dict[str, Any]]]:
    budget = Budget()
    found: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        try:
            pairs = [pair for pair in pairs_of(name) if pair.slot]
        except PrecisionToolError as error:
            notes.append(f"{name}: its values cannot be read: {error.message}")
            continue
        # Outputs first, as they tell most.
        pairs.sort(key=lambda pair: pair.is_input)
        if pairs:
            found[name] = [tensor_details(pair, budget) for pair in pairs[:_MOST_TENSORS]]
    return found
