"""Two sides compared, of whatever kind they are. Prints and writes nothing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor

from precision_tool.lib.compare.folders import DEFAULT_OPTIONS, CompareOptions, LeafResult, compare_folders
from precision_tool.lib.engine.scheduler import Progress
from precision_tool.lib.graph.choice import GraphChooser
from precision_tool.lib.sources.inputs import Inputs, find_inputs
from precision_tool.lib.sources.kinds import kind_of_both


def compare_sides(
    npu: str,
    golden: str,
    *,
    graph: str | None = None,
    graphs: GraphChooser | None = None,
    find: Callable[[str, str], Inputs] = find_inputs,
    workers: int = 0,
    executor: Executor | None = None,
    progress: Progress | None = None,
    options: CompareOptions = DEFAULT_OPTIONS,
) -> list[LeafResult]:
    """One result for each folder of dump files, as `compare_folders` gives them, or for each pair of `.h5` files.

    UsageError for sides that are of different kinds; else what the two raise.
    """
    kind = kind_of_both(npu, golden, {"-g": graph, "-cf": options.other_graph})
    if not kind.has_graph:
        from precision_tool.lib.compare.pytorch import compare_h5  # takes long to load, for few

        return compare_h5(npu, golden, workers=workers, executor=executor, progress=progress, options=options)
    return compare_folders(
        npu, golden, graph=graph, graphs=graphs, find=find, workers=workers, executor=executor, progress=progress,
        options=options,
    )  # fmt: skip
