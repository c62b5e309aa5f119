"""Which dumps are compared to find random errors, and the graphs that belong to them."""

from __future__ import annotations

import posixpath
from dataclasses import replace

from precision_tool.lib.checks.memory import check_memory
from precision_tool.lib.checks.overflow_search import Graphs
from precision_tool.lib.checks.random_errors import RandomReport, compare_runs
from precision_tool.lib.data.folder import DataFolder
from precision_tool.lib.data.sides import default_npu
from precision_tool.lib.engine.run_values import RunValues
from precision_tool.lib.engine.scheduler import ALL_CORES, Resources
from precision_tool.lib.errors import DataNotFoundError
from precision_tool.lib.graph.catalog import RunGraph
from precision_tool.lib.io.files import is_folder
from precision_tool.lib.model.run import DumpLeaf, Run
from precision_tool.lib.pairing.inserted import counterparts
from precision_tool.lib.pairing.match_names import same_name
from precision_tool.lib.sources.inputs import golden_leaf
from precision_tool.lib.sources.kinds import check_command
from precision_tool.lib.sources.names import flatten
from precision_tool.lib.workspace import lies_in


def find_random(
    data: DataFolder,
    left: str | None = None,
    right: str | None = None,
    graph: str | None = None,
    resources: Resources = ALL_CORES,
) -> list[RandomReport]:
    """Compare two runs of the same script (npu/debug_0 and debug_1).

    One report for each device, model and step that both runs have; of the first run alone without a second.

    DataNotFoundError where there is no dump at all.
    """
    if left is None:
        left = default_npu(data.workspace)
    check_command("random", left, right)
    one = data.run_at(left)
    if right is None:
        # The other of the two runs, whichever was named.
        space, place = data.workspace, posixpath.abspath(left)
        others = [number for number in (1, 0) if not lies_in(place, posixpath.abspath(space.debug_dir(number)))]
        right = next((str(space.dump_dir(number)) for number in others if is_folder(space.dump_dir(number))), None)
    other = None if right is None else data.run_at(right)
    graphs = Graphs(data, graph)
    if other is None:
        data.workspace.notes.append(
            f"there is no second run ({data.workspace.dump_dir(1)}): only the memory of this one is checked; "
            "name the dump of another run of the same script with -rt"
        )
    reports = [
        _compare_leaf(data, leaf, position, one, other, graphs, resources) for position, leaf in enumerate(one.leaves)
    ]
    found = [each for each in reports if each is not None]
    if not found:
        raise DataNotFoundError(
            f"{left} and {right} have no device, model and step in common",
            "collect the same steps in both runs, or name the two folders of files themselves",
        )
    return found


def _compare_leaf(
    data: DataFolder,
    leaf: DumpLeaf,
    position: int,
    one: Run,
    other: Run | None,
    graphs: Graphs,
    resources: Resources,
) -> RandomReport | None:
    run = graphs.of(leaf)
    file = None if run is None else run.file
    left = RunValues(leaf, file)
    name = _name(leaf, run)
    if other is None:
        stomps, checked = check_memory(left, name)
        base = RandomReport(left=leaf.path, right="", graph="", ops=(), stomps=stomps, memory_checked=checked)
        return replace(base, graph=file.path if file is not None else "", unreadable=tuple(left.unreadable.values()))
    try:
        counterpart = golden_leaf(other, leaf, position, len(one.leaves))
    except DataNotFoundError as error:
        data.workspace.notes.append(f"not compared: {error.message}")
        return None
    if counterpart.path == leaf.path:
        raise DataNotFoundError.of(leaf.path, "both runs are the same folder", "name the dump of another run with -rt")
    # The other run's own graph, as the compiler may have numbered its ops in another way.
    beside = graphs.of(counterpart)
    right = RunValues(counterpart, beside.file if beside is not None else file)
    counterpart_of = same_name
    if run is not None and beside is not None and beside.file is not file:
        counterpart_of = counterparts(run.file, beside.file).of
    found = compare_runs(
        left, right, workers=resources.workers, executor=resources.executor, progress=resources.progress,
        counterpart=counterpart_of,
    )  # fmt: skip
    stomps, checked = check_memory(left, name)
    others, others_checked = check_memory(right, _name(counterpart, beside))
    if run is not None and beside is not None and beside.file is not file:
        mine, theirs = ({flatten(op.name): op.name for op in one.file.ops} for one in (run, beside))
        matched = {flat: counterpart_of(flat) for flat in mine}
        known = set(matched.values())
        alone = [mine[flat] for flat, there in matched.items() if there not in theirs]
        others_alone = [theirs[flat] for flat in theirs if flat not in known]
        found = replace(
            found,
            left_only=tuple(dict.fromkeys((*found.left_only, *alone))),
            right_only=tuple(dict.fromkeys((*found.right_only, *others_alone))),
        )
    return replace(
        found,
        graph=file.path if file is not None else "",
        stomps=(*stomps, *others),
        memory_checked=checked + others_checked,
    )


def _name(leaf: DumpLeaf, run: RunGraph | None) -> str:
    """What to call a run: debug_N where it is one, else its folder."""
    is_own = run is not None and run.number is not None and any(one.path == leaf.path for one in run.leaves)
    return f"debug_{run.number}" if is_own and run is not None else leaf.path
