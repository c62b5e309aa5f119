"""Material of a report: results with their verdicts, their graphs, and the values of the ops that matter."""

from __future__ import annotations

import gc
import posixpath
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from precision_tool.lib.compare.data_folder import DataFolder
from precision_tool.lib.data.graph_catalog import FoundOp, RunGraph, names_in
from precision_tool.lib.data.workspace import lies_in, shown_path
from precision_tool.lib.diagnose.passports import PassportPair, find_passports
from precision_tool.lib.diagnose.pipeline import Diagnosis
from precision_tool.lib.diagnose.run_checks import Analysis
from precision_tool.lib.diagnose.stored_verdict import StoredVerdict
from precision_tool.lib.io.files import folder_exists, real_path
from precision_tool.lib.io.writing import why_no_file
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import OutputError, PrecisionToolError, UsageError
from precision_tool.lib.model.comparison import Pair
from precision_tool.lib.model.finding import CheckResult, Finding
from precision_tool.lib.model.graph import GraphFile
from precision_tool.lib.version import __version__
from precision_tool.lib.view.compare_screen import leaf_title
from precision_tool.lib.view.findings import pair_json
from precision_tool.lib.view.model_explorer import write_model_explorer
from precision_tool.lib.view.report_document import Material, document_of
from precision_tool.lib.view.report_page import write_page
from precision_tool.lib.view.tensor_values import Budget, tensor_details

#: Ops whose values are looked at closely, and tensors of each.
MAX_OPS, _MAX_TENSORS = 24, 12

PairsOf = Callable[[str], Sequence[Pair]]


def gather(
    data: DataFolder,
    diagnoses: Sequence[Diagnosis],
    graph: str | None = None,
    checks: Sequence[Finding] = (),
) -> list[Material]:
    """Return the material of each result; of verdicts without a result, as there was no benchmark, theirs alone.

    `graph` is used where it was asked for. What cannot be read any more is left out, and a note says so.
    """
    materials = []
    for diagnosis in diagnoses:
        if diagnosis.analysis is not None:
            materials.append(_of_result(data, diagnosis.analysis, diagnosis.stored, graph, checks))
        elif diagnosis.stored is not None:
            materials.append(_of_verdict(data, diagnosis.stored, graph, checks))
    return materials


def _of_result(
    data: DataFolder, analysis: Analysis, verdict: StoredVerdict | None, graph: str | None, checks: Sequence[Finding]
) -> Material:
    notes: list[Message | str] = []
    npu = analysis.source.npu if analysis.source is not None else ""
    file = _file_of(data, analysis, verdict, graph, notes)
    golden = analysis.source.golden if analysis.source is not None else ""
    passports = find_passports(data.workspace, npu, golden) if npu and golden else None
    run = verdict.run_of(npu) if verdict is not None and npu else None
    names = list(dict.fromkeys(map(names_in(file), _ops_with_details(analysis, verdict))))[:MAX_OPS]
    pairs_of = _pairs_at_hand(analysis, file, names) or _pairs_in_data(data, npu, file)
    if verdict is not None and run is not verdict.runs[0]:
        pairs_of = _pairs_of_blamed_run(data, analysis, verdict, pairs_of, notes)
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
        passport=_passport_document(passports) if passports is not None else None,
        run=run,
    )


def _passport_document(pair: PassportPair) -> dict[str, Any]:
    """Return the passports as JSON has them, with the differences as messages."""
    document = pair_json(pair)
    for written, difference in zip(document["differences"], pair.differences, strict=True):
        written["text"] = difference.message
    return document


def _pairs_of_blamed_run(
    data: DataFolder, analysis: Analysis, verdict: StoredVerdict, pairs_of: PairsOf, notes: list[Message | str]
) -> PairsOf:
    """Return the values where the verdict is on another run than the result: of blamed ops those of that run."""
    blamed = verdict.runs[0]
    name = f"debug_{blamed.number}" if blamed.number is not None else shown_path(blamed.npu)
    notes.append(Message("page.note.other_run", run=name))
    if analysis.is_two_runs:  # it has the values of that run as the other side's
        return pairs_of
    of_blamed = _pairs_in_data(data, blamed.npu, _load(data, blamed.graph, notes))
    return lambda op: (of_blamed(op) if op in verdict.blamed else ()) or pairs_of(op)


def _of_verdict(data: DataFolder, verdict: StoredVerdict, graph: str | None, checks: Sequence[Finding]) -> Material:
    notes: list[Message | str] = []
    run = verdict.runs[0]
    npu = run.npu
    file = _load(data, graph or run.graph, notes)
    return Material(
        title=posixpath.basename(npu.rstrip("/")) or "run",
        npu=shown_path(npu) if npu else "",
        threshold=verdict.threshold,
        verdict=verdict,
        run=run,
        file=file,
        details=_details(_ops_with_details(None, verdict)[:MAX_OPS], _pairs_in_data(data, npu, file), notes),
        checks=checks,
        notes=notes,
    )


# --- graphs -----------------------------------------------------------------------------------------------------------


def _file_of(
    data: DataFolder, analysis: Analysis, verdict: StoredVerdict | None, graph: str | None, notes: list[Message | str]
) -> GraphFile | None:
    if not analysis.has_graph:
        return None
    if graph is None and analysis.leaf is not None and analysis.leaf.graph is not None:
        return analysis.leaf.graph.file
    path = graph or (analysis.source.graph if analysis.source is not None else "")
    if not path and verdict is not None:
        run = verdict.run_of(analysis.source.npu) if analysis.source is not None else None
        path = (run or verdict.runs[0]).graph
    return _load(data, path, notes)


def _load(data: DataFolder, path: str, notes: list[Message | str]) -> GraphFile | None:
    if not path:
        return None
    try:
        return data.store.load(path)
    except PrecisionToolError as error:
        notes.append(Message("page.note.no_map", error=error.message))
        return None


# --- values -----------------------------------------------------------------------------------------------------------


def _ops_with_details(analysis: Analysis | None, verdict: StoredVerdict | None) -> list[str]:
    """Return the ops that get details: the suspects, those that findings name, then the worst ones."""
    names: dict[str, None] = {}
    names |= dict.fromkeys(verdict.blamed if verdict is not None else ())
    if verdict is not None:
        names |= dict.fromkeys(op.name for op in verdict.runs[0].ops if op.is_wrong)
    if analysis is not None:
        names |= dict.fromkeys(finding.op_name for finding in analysis.findings if finding.op_name)
        below = [op for op in analysis.ops if op.outputs_agree is False]
        names |= dict.fromkeys(op.op_name for op in below[: MAX_OPS // 2])
        worst = sorted(below, key=lambda op: min((row.cosine or -1.0 for row in op.outputs), default=0.0))
        names |= dict.fromkeys(op.op_name for op in worst)
    return list(names)


def _pairs_at_hand(analysis: Analysis, file: GraphFile | None, names: Collection[str]) -> PairsOf | None:
    """Return the pairs of these ops of a fresh comparison; None for a result read from a file."""
    if analysis.leaf is None:
        return None
    name_of = names_in(file)
    by_op: dict[str, list[Pair]] = {}
    for op in analysis.ops:
        if (name := name_of(op.op_name)) in names:
            by_op.setdefault(name, []).extend(row.pair for row in op.rows if row.slot)
    return lambda name: by_op.get(name, ())


def _pairs_in_data(data: DataFolder, npu: str, file: GraphFile | None) -> PairsOf:
    """Return the pairs of the dump that a result is of, if it lies in the data folder."""
    run = _run_of(data, npu, file)
    if run is None:
        return lambda name: ()
    graphs = {op.name: (graph, op) for graph in reversed(run.file.graphs) for op in graph.ops}

    def pairs_of(name: str) -> Sequence[Pair]:
        if name not in graphs:
            return ()
        graph, op = graphs[name]
        return data.pairs_of(FoundOp(run=run, op=op, graph=graph), looks_again=False)

    return pairs_of


def _run_of(data: DataFolder, npu: str, file: GraphFile | None) -> RunGraph | None:
    if not npu or file is None:
        return None
    try:
        runs: Iterator[RunGraph] = iter(data.run_graphs())
        path = real_path(npu)
        return next((run for run in runs if run.leaf is not None and real_path(run.leaf.path) == path), None)
    except PrecisionToolError:
        return None


def _details(names: Sequence[str], pairs_of: PairsOf, notes: list[Message | str]) -> Mapping[str, list[dict[str, Any]]]:
    budget = Budget()
    details: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        try:
            pairs = [pair for pair in pairs_of(name) if pair.slot]
        except PrecisionToolError as error:
            notes.append(Message("page.note.unreadable_values", op=name, error=error.message))
            continue
        # Outputs first, as they tell most.
        pairs.sort(key=lambda pair: pair.is_input)
        if pairs:
            details[name] = [tensor_details(pair, budget) for pair in pairs[:_MAX_TENSORS]]
    return details


# --- the report -------------------------------------------------------------------------------------------------------


def make_report(
    data: DataFolder,
    diagnoses: Sequence[Diagnosis],
    path: str = "",
    *,
    graph: str | None = None,
    checks: Sequence[CheckResult] = (),
) -> str:
    """Write the report on results and their verdicts; return its path, by default next to the first result.

    UsageError for a place among the dumps, OutputError where it cannot be written: then nothing of it is left.
    """
    path = place_of(data, path) if path else _default_path(data, diagnoses)
    findings = [check.finding for check in checks if check.finding is not None]
    with _garbage_collection_off():
        materials = gather(data, diagnoses, graph, findings)
        time = f"{datetime.now():%Y-%m-%d %H:%M:%S}"
        document = document_of(materials, tool=f"precision_tool {__version__}", time=time)
        write_page(path, document, materials)
    return path


def export_graphs(
    data: DataFolder,
    diagnoses: Sequence[Diagnosis],
    path: str,
    *,
    graph: str | None = None,
) -> list[str]:
    """Write the graphs and their figures for model-explorer; return the paths.

    UsageError where no result has a graph, and for a place among the dumps; OutputError where they cannot be written.
    """
    path = place_of(data, path)
    with _garbage_collection_off():
        materials = gather(data, diagnoses, graph)
        if all(material.file is None for material in materials):
            raise UsageError("view.explorer_no_graph")
        return write_model_explorer(path, document_of(materials, tool=f"precision_tool {__version__}", time=""))


def place_of(data: DataFolder, path: str, *dumps: str) -> str:
    """Return where a requested file goes, `~` being the home.

    UsageError for a folder, and for a place among the dumps of the data folder or `dumps`; OutputError where nothing
    can be written.
    """
    path = posixpath.expanduser(path)
    if folder_exists(path):
        raise UsageError("view.report_folder", path=path)
    folder = posixpath.dirname(posixpath.abspath(path))
    data.workspace.check_outside_dumps(folder, *dumps)
    if why := why_no_file(path):
        raise OutputError.of(path, "view.report_not_written", why=why)
    return path


@contextmanager
def _garbage_collection_off() -> Iterator[None]:
    """No search for garbage: each goes through all rows of a result, and a document has no cycles to be found.

    Nor is there one right behind, as all that is left counts as old then.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.freeze()
            gc.unfreeze()
            gc.enable()


def _default_path(data: DataFolder, diagnoses: Sequence[Diagnosis]) -> str:
    """Beside the result if it lies in our folder of results, else in that folder."""
    time = f"{datetime.now():%Y%m%d%H%M%S}"
    analysis = diagnoses[0].analysis if diagnoses else None
    if analysis is not None and analysis.path:
        stem = posixpath.splitext(posixpath.basename(analysis.path))[0]
        folder = posixpath.dirname(posixpath.abspath(analysis.path))
        place = real_path(folder)
        if any(lies_in(place, real_path(base)) for base in data.workspace.result_dirs()):
            return posixpath.join(folder, f"report_{stem}.html")
        return str(data.workspace.output_dir("report") / f"report_{stem}.html")
    return str(data.workspace.output_dir("report") / f"report_{time}.html")
