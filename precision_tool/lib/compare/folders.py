"""Compares two folders: finds what was dumped, the graph, the pairs, and runs the engine. Prints nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from precision_tool.lib.compare.dumps import BenchmarkSide, DumpIndex, GoldenDumps, GoldenFiles
from precision_tool.lib.compare.engine import Progress, WorkStoppedError, compare_pairs
from precision_tool.lib.compare.match import match_by_graph, match_by_name
from precision_tool.lib.discover import graphs, walk
from precision_tool.lib.discover.graphs import GraphChoice
from precision_tool.lib.errors import DataNotFoundError, PrecisionToolError
from precision_tool.lib.model.comparison import Comparison, Pair
from precision_tool.lib.model.run import DumpLeaf, Run


@dataclass(frozen=True, kw_only=True)
class LeafResult:
    """The comparison of one leaf of the NPU side. `graph` is None when ops were matched by name alone."""

    leaf: DumpLeaf
    golden_root: str
    golden_is_dump: bool
    rows: Sequence[Comparison]
    graph: GraphChoice | None = None
    notes: tuple[str, ...] = ()


class ComparisonStoppedError(PrecisionToolError):
    """The comparison ended early; `results` hold what is done, rows that were not reached say so."""

    def __init__(self, message: str, hint: str, results: Sequence[LeafResult], exit_code: int = 130) -> None:
        super().__init__(message, hint)
        self.results = list(results)
        self.exit_code = exit_code


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a comparison will read, found but not opened."""

    run: Run
    golden: GoldenFiles | Run
    notes: tuple[str, ...] = ()


def find_inputs(npu: str, golden: str) -> Inputs:
    """The NPU run below `npu` and the benchmark tensors, or another NPU run, below `golden`."""
    try:
        run = walk.find_run(npu)
    except DataNotFoundError as error:
        if os.path.isdir(npu) and walk.has_benchmark_files(npu):
            hint = "these are benchmark tensors: are -lt (NPU) and -rt (benchmark) swapped?"
            raise DataNotFoundError(error.message, hint) from error
        raise
    if walk.has_benchmark_files(golden):
        benchmark = walk.find_benchmark(golden)
        return Inputs(run=run, golden=GoldenFiles(benchmark), notes=(*run.notes, *benchmark.notes))
    try:
        other = walk.find_run(golden)
    except DataNotFoundError:
        # Neither: say so in the words of what is most often meant.
        walk.find_benchmark(golden)
        raise
    return Inputs(run=run, golden=other, notes=(*run.notes, *other.notes))


def _golden_leaf(other: Run, leaf: DumpLeaf, position: int, count: int) -> DumpLeaf:
    """The leaf of the other run that stands for the same device, model id and step, or for the same place.

    Different steps are never taken for each other, unless each side is the one folder that was named.
    """
    if len(other.leaves) == 1 and count == 1:
        return other.leaves[0]
    for parts in (("device", "model_id", "step"), ("device", "step"), ("step",)):
        fitting = [one for one in other.leaves if all(getattr(one, part) == getattr(leaf, part) for part in parts)]
        if len(fitting) == 1:
            return fitting[0]
    if len(other.leaves) == count and other.leaves[position].step == leaf.step:
        return other.leaves[position]
    raise DataNotFoundError(
        f"{other.root}: no dump of device {leaf.device}, model {leaf.model_id}, step {leaf.step}",
        "collect the same steps in both runs, or name the two folders of files themselves",
    )


def find_graph(leaf: DumpLeaf, graph: str | None, extra_folders: Sequence[str] = ()) -> GraphChoice:
    """The graph of a leaf: the one asked for (a file, or a folder to choose from), or the one that fits."""
    if graph is not None and not os.path.isdir(graph):
        return graphs.load_choice(graph, leaf, "it was named with -g")
    folders = [graph] if graph is not None else graphs.graph_folders(leaf.path)
    # GE leaves graphs in the folder training was started in: only there, not below, lie this run's.
    paths = graphs.find_graph_files(folders, () if graph is not None or folders else extra_folders)
    if not paths:
        where = f"in {', '.join(folders)}" if folders else f"beside {leaf.path}"
        raise DataNotFoundError(
            f"no graph: no ge_proto_*_Build.txt {where}",
            "copy the graph files of the run to npu/debug_0/graph, or name one with -g",
        )
    return graphs.choose_graph(paths, leaf)


def match_leaf(
    leaf: DumpLeaf, inputs: Inputs, position: int, graph: str | None, extra_folders: Sequence[str]
) -> tuple[list[Pair], LeafResult]:
    """The pairs of one leaf and the result they will be part of, its rows still empty."""
    dumps = DumpIndex(leaf)
    other: DumpIndex | None = None
    side: BenchmarkSide
    if isinstance(inputs.golden, Run):
        golden_leaf = _golden_leaf(inputs.golden, leaf, position, len(inputs.run.leaves))
        golden_dumps = GoldenDumps(golden_leaf)
        other, side, root = golden_dumps.index, golden_dumps, golden_dumps.root
        notes = [
            f"{what} {getattr(leaf, what)} is compared with {what} {getattr(golden_leaf, what)}"
            for what in ("device", "step")
            if getattr(leaf, what) != getattr(golden_leaf, what)
        ]
    else:
        side, root = inputs.golden, inputs.golden.root
        steps = {one.step for one in inputs.run.leaves}
        notes = ["the benchmark has one set of tensors, which stands for every step"] if len(steps) > 1 else []
    choice: GraphChoice | None = None
    # Two NPU runs are matched by op name unless a graph is asked for: that keeps TransData and Cast apart.
    if other is None or graph is not None:
        try:
            choice = find_graph(leaf, graph, extra_folders)
        except DataNotFoundError as error:
            if graph is not None:
                raise
            notes.append(f"{error.message}; ops are matched by name, fused ops stay unmatched")
    if choice is not None:
        pairs = list(match_by_graph(dumps, choice.file, side))
        notes += [f"{os.path.basename(choice.file.path)}: {note}" for note in choice.file.notes]
        if choice.matched < choice.total:
            notes.append(f"the graph names {choice.matched} of {choice.total} dumped ops")
    else:
        pairs = list(match_by_name(dumps, side, other))
    result = LeafResult(
        leaf=leaf,
        golden_root=root,
        golden_is_dump=other is not None,
        rows=(),
        graph=choice,
        notes=(
            *notes,
            *(f"{len(leaf.ignored)} files are no dump files: {name}: {why}" for name, why in leaf.ignored[:1]),
        ),
    )
    return pairs, result


def compare_folders(
    npu: str,
    golden: str,
    *,
    graph: str | None = None,
    graph_folders: Sequence[str] = (),
    workers: int = 0,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> list[LeafResult]:
    """Compares the NPU dumps below `npu` with the benchmark below `golden`; one result per leaf folder.

    Folders may be of any level of the trees. `graph` is a graph file or a folder of them, by default the one
    found beside the dump (or in `graph_folders`) that fits. Rows that could not be compared carry the reason.
    Raises DataNotFoundError, FormatError for a graph that was asked for, and WorkStoppedError when interrupted.
    """
    if graph is not None and not os.path.exists(graph):
        raise DataNotFoundError(f"{graph}: no such graph", "name a ge_proto_*_Build.txt or its JSON, or leave -g out")
    inputs = find_inputs(npu, golden)
    results: list[LeafResult] = []
    for position, leaf in enumerate(inputs.run.leaves):
        try:
            pairs, result = match_leaf(leaf, inputs, position, graph, graph_folders)
        except PrecisionToolError as error:
            if len(inputs.run.leaves) == 1:
                raise
            results.append(
                LeafResult(
                    leaf=leaf,
                    golden_root=golden,
                    golden_is_dump=False,
                    rows=(),
                    notes=(f"not compared: {error.message}",),
                )
            )
            continue
        try:
            rows = compare_pairs(pairs, workers=workers, executor=executor, progress=progress)
        except WorkStoppedError as stop:
            results.append(replace(result, rows=stop.rows))
            raise ComparisonStoppedError(stop.message, stop.hint, results, stop.exit_code) from stop
        results.append(replace(result, rows=rows))
    if results:
        results[0] = replace(results[0], notes=(*inputs.notes, *results[0].notes))
    return results
