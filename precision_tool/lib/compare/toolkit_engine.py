"""The vendor's msaccucmp as the engine of a comparison: the same folders and options, its result files."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from precision_tool.lib.compare.columns import METRIC_COLUMNS
from precision_tool.lib.compare.folders import (
    CompareOptions,
    Finders,
    no_other_graph,
)
from precision_tool.lib.compare.result_files import leaf_prefix, prefix_of
from precision_tool.lib.compare.toolkit import Produced, Tools
from precision_tool.lib.data.dumped_ops import GoldenFiles
from precision_tool.lib.data.graph_choice import GraphChooser
from precision_tool.lib.data.kinds import NPY, kind_of_both, pair_h5_files
from precision_tool.lib.data.pair_selection import OpIds, OpNames, OpRange
from precision_tool.lib.data.sides import Inputs, golden_leaf
from precision_tool.lib.io.files import atomic_text, exists, folder_exists, is_file, open_binary
from precision_tool.lib.io.ge_graph import is_json, read_graph_bytes
from precision_tool.lib.io.ge_graph_export import export_graph
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, PrecisionToolError, UsageError
from precision_tool.lib.model.run import DumpLeaf, Run
from precision_tool.lib.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolkitResult:
    """The files that msaccucmp wrote for one leaf: `path` is its table, `others` the others."""

    leaf: DumpLeaf
    path: str
    others: tuple[str, ...] = ()
    notes: tuple[Message, ...] = ()


def compare_by_toolkit(
    npu: str,
    golden: str,
    folder: str,
    tools: Tools,
    options: CompareOptions,
    finders: Finders | None = None,
) -> list[ToolkitResult]:
    """Run msaccucmp on every leaf below `npu`, and names its files as ours would be named, in `folder`.

    A leaf that cannot be compared is left out with a note in the others; the error of the last is raised if all are.
    """
    if not kind_of_both(npu, golden, {"-g": options.graph, "-cf": options.other_graph}).has_graph:
        return _compare_h5(npu, golden, folder, tools, options)
    flags, prefix, graph, finders = msaccucmp_options(options), prefix_of(options), options.graph, finders or Finders()
    inputs, graphs = finders.inputs(npu, golden), finders.graphs
    leaves = inputs.run.leaves
    results: list[ToolkitResult] = []
    failed: list[PrecisionToolError] = []
    for position, leaf in enumerate(leaves):
        try:
            side, other = _golden_folder(inputs, leaf, position)
            json_path: str | None = None
            unfused: str | None = None
            notes: tuple[Message, ...] = ()
            # Two NPU runs are matched by op name unless a graph is asked for.
            by_graph = graph is not None or options.other_graph is not None
            if other is None and options.other_graph is not None:
                raise no_other_graph(side)
            if other is None or by_graph:
                json_path, notes = graph_json(leaf, graph, graphs, tools)
            if other is not None and by_graph:
                unfused, _ = graph_json(other, options.other_graph or None, graphs, tools, prefers_chosen=False)
            made = tools.compare(leaf.path, side, folder, graph=json_path, unfused=unfused, options=flags)
        except PrecisionToolError as error:
            failed.append(error)
            continue
        results.append(_result(leaf, made, folder, prefix + leaf_prefix(leaf, len(leaves)), notes))
    return _all_results(results, failed, inputs.notes)


def _compare_h5(npu: str, golden: str, folder: str, tools: Tools, options: CompareOptions) -> list[ToolkitResult]:
    """PyTorch dumps, which msaccucmp compares file by file, whole and without a graph."""
    flags, prefix = msaccucmp_options(options), prefix_of(options)
    common = CompareOptions(
        graph=options.graph, threshold=options.threshold, noise=options.noise, metrics=options.metrics,
        compat=options.compat, extremes=options.extremes, extra_pairs=options.extra_pairs, prefix=options.prefix,
    )  # fmt: skip
    if options != common:
        raise UsageError("compare.toolkit_h5_options")
    files, notes = pair_h5_files(npu, golden)
    results: list[ToolkitResult] = []
    failed: list[PrecisionToolError] = []
    for file in files:
        name = posixpath.splitext(posixpath.basename(file.npu))[0] if len(files) > 1 else ""
        leaf = DumpLeaf(path=posixpath.abspath(file.npu), files=(), model_name=name)
        try:
            made = tools.compare(file.npu, file.golden, folder, options=flags)
        except PrecisionToolError as error:
            failed.append(error)
            continue
        results.append(_result(leaf, made, folder, f"{prefix}{name}_" if name else prefix))
    return _all_results(results, failed, notes)


def _result(leaf: DumpLeaf, made: Produced, folder: str, prefix: str, notes: tuple[Message, ...] = ()) -> ToolkitResult:
    named = [_rename(path, folder, prefix) for path in made.paths]
    table = next(path for path in named if path.endswith(".csv"))
    others = tuple(path for path in named if path != table)
    return ToolkitResult(leaf=leaf, path=table, others=others, notes=(*notes, *made.notes))


def _all_results(
    results: list[ToolkitResult], failed: Sequence[PrecisionToolError], notes: Sequence[Message]
) -> list[ToolkitResult]:
    """Return the results with notes on all of them; the last error if there is none."""
    if not results:
        raise failed[-1]
    lost = tuple(Message("note.compare.not_by_toolkit", reason=error.full_message) for error in failed)
    results[0] = replace(results[0], notes=(*notes, *results[0].notes, *lost))
    return results


def _rename(path: str, folder: str, prefix: str) -> str:
    """`result_{its time}.csv` with the time of the folder, as ours are named; other files keep the rest of theirs."""
    name, end = posixpath.splitext(posixpath.basename(path))
    kind = name.partition("_")[0]
    end = f"{kind}_{posixpath.basename(folder)}{end}" if kind in ("result", "mapping") else f"{name}{end}"
    new = posixpath.join(folder, f"{prefix}{end}")
    number = 1
    while new != path and exists(new):  # the same model under two ids
        number += 1
        new = posixpath.join(folder, f"{prefix}{number}_{end}")
    Path(path).replace(new)
    return new


def _golden_folder(inputs: Inputs, leaf: DumpLeaf, position: int) -> tuple[str, DumpLeaf | None]:
    """Return the benchmark's folder as msaccucmp takes it, and the leaf of the other run that it is, if it is one."""
    if isinstance(inputs.golden, Run):
        other = golden_leaf(inputs.golden, leaf, position, len(inputs.run.leaves))
        return other.path, other
    assert isinstance(inputs.golden, GoldenFiles)
    if not all(NPY.has_suffix(file.path) for file in inputs.golden.files):
        raise DataNotFoundError("compare.toolkit_tfdbg", folder=inputs.golden.root)
    folders = {posixpath.dirname(file.path) for file in inputs.golden.files}
    if len(folders) > 1:
        raise DataNotFoundError("compare.toolkit_folders", folder=inputs.golden.root, count=len(folders))
    return folders.pop(), None


def graph_json(
    leaf: DumpLeaf, graph: str | None, graphs: GraphChooser, tools: Tools, *, prefers_chosen: bool = True
) -> tuple[str, tuple[Message, ...]]:
    """Return the graph of a leaf as JSON: as it is, by atc, or, where there is no atc, by us."""
    path = graph
    if graph is None or folder_exists(graph):
        path = graphs.of(leaf, graph, prefers_chosen=prefers_chosen).file.path
    assert path is not None
    if not exists(path):
        raise DataNotFoundError.of(path, "compare.no_graph", option="-g")
    if tools.toolkit.atc is not None:
        with open_binary(path) as file:
            if not is_json(file.read(64)):
                made = tools.graph_json(path)
                return made.paths[0], made.notes
        return path, ()
    if is_json(read_graph_bytes(path)):
        return path, ()
    out = tools.cached_json(path, "graph2json", __version__)
    no_atc = Message("note.compare.no_atc")
    if is_file(out):
        return out, (no_atc,)
    pieces, notes = export_graph(path)
    with atomic_text(out) as text:
        text.writelines(pieces)
    return out, (no_atc, *notes())


def msaccucmp_options(options: CompareOptions) -> list[str]:
    """Return our options in msaccucmp's words; UsageError for what it cannot do."""
    if options.custom is not None:
        raise UsageError("compare.toolkit_custom")
    words: list[str] = []
    selection = options.selection
    if isinstance(selection, OpRange):
        words += ["-r", f"{selection.start},{selection.end},{selection.step}"]
    elif isinstance(selection, OpIds):
        words += ["-s", ",".join(map(str, selection.ids))]
    elif isinstance(selection, OpNames):
        raise UsageError("compare.toolkit_ops")
    if options.metrics is not None and options.metrics != METRIC_COLUMNS:
        words += ["-alg", ",".join(options.metrics)]
    if options.limit:
        words += ["-max", str(options.limit)]
    if options.overflow:
        words.append("-overflow_detection")
    if options.pairs_only:
        words.append("-map")
    return words
