"""What of a data folder is looked at for overflow: status files, dumps, their graphs and the benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace

from precision_tool.lib.checks.headroom import Golden
from precision_tool.lib.checks.overflow import LeafOverflow, OverflowReport, StatusReport, scan_leaf
from precision_tool.lib.checks.overflow_status import StatusReader, graph_for, read_statuses
from precision_tool.lib.compare.known import NOTHING, KnownValues
from precision_tool.lib.data.folder import DataFolder
from precision_tool.lib.engine.run_values import RunOp
from precision_tool.lib.engine.scheduler import THIS_THREAD, Resources
from precision_tool.lib.engine.tensor_figures import extremes_of
from precision_tool.lib.errors import DataNotFoundError, FormatError, PrecisionToolError
from precision_tool.lib.graph.catalog import RunGraph
from precision_tool.lib.graph.lookup import FoundOp
from precision_tool.lib.io.files import check_folder, is_folder, size_of
from precision_tool.lib.model.comparison import Extremes
from precision_tool.lib.model.run import DumpLeaf
from precision_tool.lib.sources.kinds import NPY, check_command
from precision_tool.lib.sources.overflow_files import DECODED_FOLDER, StatusFile, find_status_files
from precision_tool.lib.sources.walk import nothing_below
from precision_tool.lib.workspace import check_data

#: Called with (bytes done, bytes in all).
Progress = Callable[[int, int], None]


class Graphs:
    """The graph of each leaf, as far as there is one."""

    def __init__(self, data: DataFolder, graph: str | None) -> None:
        """`graph` is one that was asked for: what is wrong with it is raised, then."""
        self.runs: tuple[RunGraph, ...] = ()
        try:
            self.runs = data.run_graphs(graph)
        except PrecisionToolError:
            if graph is not None:
                raise
        self.is_named = graph is not None

    def of(self, leaf: DumpLeaf) -> RunGraph | None:
        """The graph of a leaf; one that was named is taken as it is."""
        return self.runs[0] if self.is_named and len(self.runs) == 1 else graph_for(leaf, self.runs)


def find_overflow(
    data: DataFolder,
    folder: str | None = None,
    graph: str | None = None,
    limit: int = 3,
    resources: Resources = THIS_THREAD,
    *,
    max_bytes: int | None = None,
    known: Mapping[str, KnownValues] | None = None,
) -> tuple[OverflowReport, str]:
    """Return all about overflow in a folder, or in the data folder, and where status files were looked for.

    The first `limit` ops have figures. `max_bytes` of values are read at most, and none that a comparison has (`known`,
    by the folder of the leaf). DataNotFoundError where there is neither a status file nor a dump.
    """
    known, progress = known or {}, resources.progress
    if folder is None:
        check_data(data.workspace.root)
        status_root = str(data.workspace.overflow_dump_dir)
        leaves = _data_leaves(data) or data.leaves_at(status_root)
    else:
        if not is_folder(folder):
            check_command("overflow", folder)
            check_folder(folder, "dumps")
        status_root = folder
        leaves = data.leaves_at(folder)
    files, root = find_statuses(data, folder)
    if not files and not leaves:
        raise _nothing_there(data, folder, root)
    graphs = Graphs(data, graph)
    others = leaves if folder is None else ()
    reader = StatusReader(status_root, others, graphs.of, data.leaves_at)
    statuses, unreadable = read_statuses(files, reader, limit)
    total = sum(map(_size, leaves)) if progress is not None else 0
    done = 0

    def tell(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress is not None:
            progress(min(done, total), total)

    def scanned(leaf: DumpLeaf, pool: Executor | None) -> LeafOverflow:
        run, values = graphs.of(leaf), known.get(leaf.path, NOTHING)
        golden = None if run is None else _known_golden(values) if values.rows else _golden(data, run, leaf)
        return scan_leaf(leaf, run, limit=limit, golden=golden, tell=tell, max_bytes=max_bytes, known=values, pool=pool)

    with resources.open() as pool:
        found = tuple(scanned(leaf, pool) for leaf in leaves)
    return OverflowReport(statuses=statuses, leaves=found, unreadable=unreadable), root


def _nothing_there(data: DataFolder, folder: str | None, root: str) -> PrecisionToolError:
    """The error for a folder, or the data folder, with neither status files nor dumps."""
    check_command("overflow", folder or str(data.workspace.pt_npu_dir))
    if folder is not None:
        data.run_at(folder)  # says what is wrong with it
    default = str(data.workspace.dump_dir(0))
    nothing = DataNotFoundError(
        f"no overflow status file in {root}, and no dump in {default}",
        "run the training with npu_overflow, or with npu_dump, first; or name a folder with dumps",
    )
    return nothing_below(nothing, root, default)


def told_statuses(data: DataFolder, graph: str | None = None) -> tuple[StatusReport, ...]:
    """What the status files of the data folder tell of ops; () where there is none."""
    files, root = find_statuses(data, None)
    if not files:
        return ()
    reader = StatusReader(root, _data_leaves(data), Graphs(data, graph).of, data.leaves_at)
    return read_statuses(files, reader, limit=0)[0]


def statuses_asked_for(data: DataFolder, folder: str | None) -> tuple[tuple[StatusFile, ...], str]:
    """As `find_statuses`; DataNotFoundError where there is no such folder, or no data folder."""
    if folder is None:
        check_data(data.workspace.root)
    else:
        check_folder(folder, "dumps")
    return find_statuses(data, folder)


def find_statuses(data: DataFolder, folder: str | None) -> tuple[tuple[StatusFile, ...], str]:
    """The status files below a folder, or of the data folder, and where they were found or at least sought."""
    if folder is not None:
        return find_status_files(folder), folder
    space = data.workspace
    root = str(space.overflow_dump_dir)
    # Or among a data dump; or only as the JSON that they were decoded to.
    for place in (root, str(space.dump_dir(0))):
        files = find_status_files(place)
        if files:
            return files, place
    for base in space.result_dirs():
        place = str(base.joinpath(*DECODED_FOLDER))
        with suppress(FormatError):  # results that may not be read are none
            files = find_status_files(place)
            if files:
                return files, place
    return (), root


def _data_leaves(data: DataFolder) -> tuple[DumpLeaf, ...]:
    """The leaves of the run under test."""
    runs = [folder.run for folder in data.run_folders() if folder.run is not None]
    return runs[0].leaves if runs else ()


def _size(leaf: DumpLeaf) -> int:
    """Bytes of the dump files of a leaf, as far as they can be looked at."""
    return sum(size_of(file.path) for file in leaf.files)


def _known_golden(known: KnownValues) -> Golden:
    """The extremes of the benchmark's tensors as a comparison found them."""
    return lambda op, slot: known.golden_extremes(op.name, f"output:{slot}")


def _golden(data: DataFolder, run: RunGraph, leaf: DumpLeaf) -> Golden:
    """The extremes of the benchmark's tensors, which have no limit at 65504."""
    mine = replace(run, leaf=leaf, leaves=(leaf,))
    graph_of = {id(op): graph for graph in run.file.graphs for op in graph.ops}
    is_first = True

    def extremes(op: RunOp, slot: int) -> Extremes | None:
        nonlocal is_first
        if op.op is None or id(op.op) not in graph_of:
            return None
        try:
            found = FoundOp(run=mine, op=op.op, graph=graph_of[id(op.op)])
            pairs = data.pairs_of(found, looks_again=is_first)
            is_first = False
            golden = next((pair.golden for pair in pairs if pair.slot == f"output:{slot}"), None)
            if golden is None or not NPY.has_suffix(golden.path):
                return None
            return extremes_of(golden)
        except PrecisionToolError:
            return None

    return extremes
