"""Material of a report: results with their verdicts, their graphs, and the values of the ops that matter."""

from __future__ import annotations

import gc
import posixpath
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from math import isfinite, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.compare.data_folder import DataFolder
from precision_tool.lib.compare.element_errors import compare_elements, elements_of
from precision_tool.lib.compare.scheduler import THIS_THREAD
from precision_tool.lib.compare.tensor_figures import figures_of
from precision_tool.lib.data.graph_catalog import FoundOp, RunGraph, names_in
from precision_tool.lib.data.settings import PROGRAM, start_of_line
from precision_tool.lib.data.workspace import lies_in, shown_path
from precision_tool.lib.diagnose.device_profile import DeviceProfile
from precision_tool.lib.diagnose.pipeline import Diagnosis
from precision_tool.lib.diagnose.recorded_sides import find_differences
from precision_tool.lib.diagnose.run_checks import Analysis
from precision_tool.lib.diagnose.stored_profile import beside_verdict, profile_path, read_profile
from precision_tool.lib.diagnose.stored_verdict import StoredRun, StoredVerdict
from precision_tool.lib.io import data_types
from precision_tool.lib.io.files import exists, folder_exists, real_path
from precision_tool.lib.io.writing import why_no_file
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import OutputError, PrecisionToolError, UsageError
from precision_tool.lib.model.comparison import Pair, Status, Summary
from precision_tool.lib.model.elements import Detail
from precision_tool.lib.model.finding import CheckResult
from precision_tool.lib.model.graph import GraphFile
from precision_tool.lib.model.tensor import AnyTensor, Tensor
from precision_tool.lib.version import __version__
from precision_tool.lib.view.compare_screen import leaf_title
from precision_tool.lib.view.findings import pair_json
from precision_tool.lib.view.packed_columns import Number, both, number, sound, whole
from precision_tool.lib.view.report_document import Material, document_of
from precision_tool.lib.view.report_page import plain_verdict, write_page

#: Ops whose values are looked at closely, and tensors of each.
MAX_OPS, _MAX_TENSORS = 24, 12
#: Bins of a histogram, and pieces that an axis is cut into.
BINS, PIECES = 32, 64
#: Largest errors that are listed.
_WORST = 8
#: Elements of a tensor, and of all together, that are read at most.
_MAX_ELEMENTS, _MAX_TOGETHER = 1 << 20, 1 << 23

PairsOf = Callable[[str], Sequence[Pair]]
Counts = npt.NDArray[np.int64]


def gather(
    data: DataFolder,
    diagnoses: Sequence[Diagnosis],
    graph: str | None = None,
    checks: Sequence[CheckResult] = (),
) -> list[Material]:
    """Return the material of each result; of verdicts without a result, as there was no benchmark, theirs alone.

    `graph` is used where it was asked for. What cannot be read any more is left out, and a note says so.
    """
    return [
        replace(_material(data, diagnosis.analysis, diagnosis.stored, graph, checks), profile=_profile_of(diagnosis))
        for diagnosis in diagnoses
        if diagnosis.analysis is not None or diagnosis.stored is not None
    ]


def _profile_of(diagnosis: Diagnosis) -> DeviceProfile | None:
    """Return the profile of the device, as it was judged now, or as it is kept beside the verdict."""
    profile = None if diagnosis.judged is None else diagnosis.judged.profile
    path = ""
    if diagnosis.analysis is not None and diagnosis.analysis.path:
        path = profile_path(diagnosis.analysis.path)
    elif diagnosis.stored is not None and diagnosis.stored.path:
        path = beside_verdict(diagnosis.stored.path)
    if profile is None and path and exists(path):
        with suppress(PrecisionToolError):  # a damaged file, of which `profile` says so
            profile = read_profile(path)
    return profile if profile is not None and profile.types else None


def _material(
    data: DataFolder,
    analysis: Analysis | None,
    verdict: StoredVerdict | None,
    graph: str | None,
    checks: Sequence[CheckResult],
) -> Material:
    notes: list[Message | str] = []
    blamed = verdict.runs[0] if verdict is not None else None
    if analysis is None:
        run, npu, golden = blamed, blamed.npu if blamed is not None else "", ""
        title = posixpath.basename(npu.rstrip("/")) or "run"
    else:
        npu, golden = (analysis.source.npu, analysis.source.golden) if analysis.source is not None else ("", "")
        run = verdict.run_of(npu) if verdict is not None and npu else None
        title = leaf_title(analysis)
        notes += analysis.leaf.notes if analysis.leaf is not None else ()
    file = _file_of(data, analysis, run or blamed, graph, notes)
    passports = find_differences(data.workspace, npu, golden) if npu and golden else None
    names = list(dict.fromkeys(map(names_in(file), _ops_with_details(analysis, verdict))))[:MAX_OPS]
    pairs_of = _pairs_at_hand(analysis, file, names) or _pairs_in_data(data, npu, file)
    if analysis is not None and verdict is not None and run is not blamed:
        pairs_of = _pairs_of_blamed_run(data, analysis, verdict, pairs_of, notes)
    return Material(
        title=title,
        npu=npu,
        golden=golden,
        analysis=analysis,
        verdict=verdict,
        file=file,
        details=_details(names, pairs_of, notes),
        checks=checks,
        notes=notes,
        passport=pair_json(passports) if passports is not None else None,
        run=run,
        command=start_of_line(PROGRAM, [data.workspace.root], data.workspace.work),
    )


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


# --- graphs -----------------------------------------------------------------------------------------------------------


def _file_of(
    data: DataFolder, analysis: Analysis | None, run: StoredRun | None, graph: str | None, notes: list[Message | str]
) -> GraphFile | None:
    path = graph or ""
    if analysis is not None:
        if not analysis.has_graph:
            return None
        if graph is None and analysis.leaf is not None and analysis.leaf.graph is not None:
            return analysis.leaf.graph.file
        path = path or (analysis.source.graph if analysis.source is not None else "")
    return _load(data, path or (run.graph if run is not None else ""), notes)


def _load(data: DataFolder, path: str, notes: list[Message | str]) -> GraphFile | None:
    if not path:
        return None
    try:
        return data.store.load(path)
    except PrecisionToolError as error:
        notes.append(Message("page.note.no_map", error=error.full_message))
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


def _pairs_at_hand(analysis: Analysis | None, file: GraphFile | None, names: Collection[str]) -> PairsOf | None:
    """Return the pairs of these ops of a fresh comparison; None for a result read from a file."""
    if analysis is None or analysis.leaf is None:
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
        path, runs = real_path(npu), data.run_graphs()
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
            notes.append(Message("page.note.unreadable_values", op=name, error=error.full_message))
            continue
        # Outputs first, as they tell most.
        pairs.sort(key=lambda pair: pair.is_input)
        if pairs:
            details[name] = [tensor_details(pair, budget) for pair in pairs[:_MAX_TENSORS]]
    return details


# --- the values of a few tensors: histograms of both sides, largest errors, where the error sits ----------------------


class Budget:
    """The number of elements that may still be read."""

    def __init__(self, elements: int = _MAX_TOGETHER) -> None:
        self.left = elements

    def takes(self, elements: int) -> bool:
        if elements > min(_MAX_ELEMENTS, self.left):
            return False
        self.left -= elements
        return True


def tensor_details(pair: Pair, budget: Budget) -> dict[str, Any]:
    """Return the values of both tensors of a pair, or of the only one; `note` says why something is missing.

    Histograms count finite values in bins of equal width, the same for both sides. `axes` are the shares of each piece
    of each axis in the sum of squared errors.
    """
    document: dict[str, Any] = {"slot": pair.slot, "npu": _tensor(pair.npu), "golden": _tensor(pair.golden)}
    try:
        document |= _figures(pair, budget)
    except PrecisionToolError as error:
        document["note"] = both(error.advice_message)
    return document


def _tensor(tensor: AnyTensor | None) -> dict[str, Any] | None:
    if tensor is None:
        return None
    layout = tensor.layout if isinstance(tensor, Tensor) else ""
    return {
        "dtype": tensor.dtype,
        "layout": layout,
        "shape": list(tensor.shape),
        "path": sound(shown_path(tensor.path)),
    }


def _figures(pair: Pair, budget: Budget) -> dict[str, Any]:
    note = both(pair.reason or "")
    sides = [side for side in (pair.npu, pair.golden) if isinstance(side, Tensor)]
    if not sides or not all(data_types.BY_NAME[side.dtype].is_numeric for side in sides):
        return {"note": note}
    if not all(budget.takes(prod(side.shape)) for side in sides):
        return {"note": note, "too_large": True}
    is_comparable = pair.status == Status.COMPARED and len(sides) == 2 and pair.npu_plan is not None
    if not is_comparable or any(data_types.BY_NAME[side.dtype].is_complex for side in sides):
        return {"note": note, **_single_sides(pair)}
    detail = compare_elements(pair, THIS_THREAD, atol=0.0, rtol=0.0, shown=_WORST)
    return {"note": note, **_compared(pair, detail)}


def _single_sides(pair: Pair) -> dict[str, Any]:
    """Return the figures of one side, or of both where they do not fit together."""
    document: dict[str, Any] = {}
    for name, side, plan in (("npu", pair.npu, pair.npu_plan), ("golden", pair.golden, pair.golden_plan)):
        if isinstance(side, Tensor):
            figures = figures_of(side, plan, bins=BINS)
            document[f"{name}_summary"] = summary = _summary(figures.summary, side)
            document[f"{name}_histogram"] = {
                "low": summary["min"], "high": summary["max"],
                "counts": [int(count) for count in figures.histogram],
            }  # fmt: skip
    return document


def _compared(pair: Pair, detail: Detail) -> dict[str, Any]:
    row = detail.comparison
    assert row.npu is not None
    assert row.golden is not None
    ends = [row.npu.minimum, row.npu.maximum, row.golden.minimum, row.golden.maximum]
    finite = [end for end in ends if isfinite(end)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    npu, golden, shares = _pass(pair, detail.shape, low, high)
    are_integers = _has_integers(pair.npu) and _has_integers(pair.golden)
    end = whole if are_integers else number
    between = {"low": end(low), "high": end(high)}

    def value(element: float, tensor: AnyTensor | None) -> Number:
        return whole(element) if _has_integers(tensor) else number(float(element), 9)

    return {
        "shape": list(detail.shape),
        "elements": detail.count,
        "equal": detail.equal,
        "npu_summary": _summary(row.npu, pair.npu),
        "golden_summary": _summary(row.golden, pair.golden),
        "npu_histogram": {**between, "counts": npu.tolist()},
        "golden_histogram": {**between, "counts": golden.tolist()},
        "errors": [
            {"from": number(step.low), "to": number(step.high), "count": step.count} for step in detail.histogram
        ],
        "worst": [
            {
                "index": list(element.index),
                "npu": value(element.npu, pair.npu),
                "golden": value(element.golden, pair.golden),
                "error": whole(element.error) if are_integers else number(float(element.error)),
                "relative": number(element.relative),
            }
            for element in detail.worst_absolute
        ],
        "axes": shares,
    }  # fmt: skip


def _has_integers(tensor: AnyTensor | None) -> bool:
    return tensor is not None and data_types.BY_NAME[tensor.dtype].is_integer


def _summary(summary: Summary, tensor: AnyTensor | None) -> dict[str, Any]:
    end = whole if _has_integers(tensor) else number
    return {
        "count": summary.count, "min": end(summary.minimum), "max": end(summary.maximum), "mean": number(summary.mean),
        "std": number(summary.std), "nan": summary.nan_count, "inf": summary.inf_count,
        "zeros": summary.zero_count,
    }  # fmt: skip


def _pass(pair: Pair, shape: Sequence[int], low: float, high: float) -> tuple[Counts, Counts, list[dict[str, Any]]]:
    """Return histograms of both sides between `low` and `high`, and the share of each axis piece in the error."""
    counts = [np.zeros(BINS, np.int64), np.zeros(BINS, np.int64)]
    axes = [np.zeros(extent if prod(shape) else 0) for extent in shape]  # whatever size an empty tensor claims
    for span, x, y, _ in elements_of(pair):
        sides = (np.asarray(x, np.float64), np.asarray(y, np.float64))
        for side, values in enumerate(sides):
            counts[side] += _histogram(values, low, high)
        with np.errstate(all="ignore"):
            squares = (sides[0] - sides[1]) ** 2
        squares[~np.isfinite(squares)] = 0.0
        if not squares.any() or not axes or len(span.extents) != len(axes):  # a scalar has no axes
            continue
        places = np.unravel_index(np.arange(span.start, span.start + squares.size), span.extents)
        for axis, (place, lowest) in enumerate(zip(places, span.lows, strict=True)):
            axes[axis] += np.bincount(place + lowest, squares, axes[axis].size)
    return counts[0], counts[1], [_axis(axis, sums) for axis, sums in enumerate(axes) if sums.size > 1 and sums.any()]


def _histogram(values: npt.NDArray[np.float64], low: float, high: float) -> Counts:
    finite = values[np.isfinite(values)]
    if not finite.size or low == high:
        counts = np.zeros(BINS, np.int64)
        counts[0] = finite.size
        return counts
    # Halved, as the width of all float64 numbers is none.
    place = (finite / 2 - low / 2) / (high / 2 - low / 2) * BINS
    return np.bincount(np.clip(place, 0, BINS - 1).astype(np.int64), minlength=BINS)


def _axis(axis: int, sums: npt.NDArray[np.float64]) -> dict[str, Any]:
    """Return the shares of an axis, in at most PIECES pieces."""
    extent = sums.size
    starts = np.unique(np.linspace(0, extent, min(PIECES, extent), endpoint=False).astype(np.int64))
    with np.errstate(all="ignore"):
        shares = np.add.reduceat(sums / sums.max(), starts)
    return {"axis": axis, "extent": extent, "shares": [number(float(share), 3) for share in shares / shares.sum()]}


# --- the report -------------------------------------------------------------------------------------------------------


def make_report(
    data: DataFolder,
    diagnoses: Sequence[Diagnosis],
    path: str = "",
    *,
    graph: str | None = None,
    checks: Sequence[CheckResult] = (),
) -> str:
    """Write the report on results and their verdicts.

    Parameters
    ----------
    data : DataFolder
        The data folder, for graphs and the values of the ops that matter.
    diagnoses : sequence of Diagnosis
        The results, each with its verdict.
    path : str
        The HTML file; by default next to the first result.
    graph : str, optional
        A graph file for the map, where a result does not know its own.
    checks : sequence of CheckResult
        What was checked beside the comparison.

    Returns
    -------
    str
        The path that was written.

    Raises
    ------
    UsageError
        The place is a folder, or lies among the dumps.
    OutputError
        It cannot be written; then nothing of it is left.
    """
    path = place_of(data, path) if path else _default_path(data, diagnoses)
    with garbage_collection_off():
        materials = gather(data, diagnoses, graph, checks)
        time = f"{datetime.now():%Y-%m-%d %H:%M:%S}"
        document = document_of(materials, tool=f"precision_tool {__version__}", time=time)
        write_page(path, document, map(plain_verdict, materials))
    return path


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
def garbage_collection_off() -> Iterator[None]:
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
