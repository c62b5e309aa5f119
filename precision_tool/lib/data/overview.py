"""Overview of a data folder by the names in it; of dumps of msprobe their first index is read."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath

from precision_tool.lib.data import dump_names as names
from precision_tool.lib.data.dump_tree import is_status_file, list_folders
from precision_tool.lib.data.kinds import DEVICE_KINDS, MSPROBE, PYTORCH, is_benchmark_file
from precision_tool.lib.data.msprobe_tree import TENSOR_FOLDER, find_msprobe
from precision_tool.lib.data.workspace import Workspace
from precision_tool.lib.io import tfdbg_files as tfdbg
from precision_tool.lib.io.files import folder_exists, list_folder, size_of
from precision_tool.lib.io.msprobe_dump import read_dump_header, read_dump_index
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError, PrecisionToolError


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpOverview:
    """One dump of one run: all devices, models and steps of one time (empty where the tree is hand-made)."""

    time: str
    devices: tuple[str, ...]
    models: tuple[str, ...]
    steps: tuple[str, ...]
    #: Number of dump files.
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOverview:
    """One NPU run: its dumps, newest first, and how many Build graphs it has."""

    number: int
    dumps: tuple[DumpOverview, ...]
    graph_files: int

    @property
    def dump_files(self) -> int:
        """Number of dump files of all times."""
        return sum(dump.files for dump in self.dumps)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedOverview:
    """One side's dump of msprobe: what it recorded of which steps and ranks.

    Processes stand for ranks where training was not distributed. `entries` and `tensors`, the files of these, are
    those of the first step and rank; None where its index is so large that reading it takes seconds.
    """

    root: str
    framework: str
    level: str
    task: str
    steps: tuple[int, ...]
    ranks: tuple[int, ...]
    processes: int
    entries: int | None
    tensors: int
    #: Why the first index cannot be read.
    problem: Message | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOverview:
    """The contents of a data folder, by the names in it."""

    root: str
    #: False for a folder that is not there.
    exists: bool
    runs: tuple[RunOverview, ...] = ()
    #: Build graphs that lie in the working folder, where GE leaves them.
    graphs_here: int = 0
    benchmark_tensors: int = 0
    #: The runs of tfdbg that hold these tensors, if there are no files of them.
    benchmark_runs: int = 0
    #: Overflow status files (Opdebug) below overflow/dump.
    overflow_files: int = 0
    #: PyTorch dumps of the NPU, and of the benchmark.
    pytorch_files: tuple[int, int] = (0, 0)
    #: Dumps of msprobe: of the NPU, and of the benchmark.
    recorded: tuple[RecordedOverview | None, RecordedOverview | None] = (None, None)
    #: The newest result file, empty if there is none.
    newest_result: str = ""

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to work with."""
        return (
            not any(run.dumps or run.graph_files for run in self.runs)
            and not (self.graphs_here or self.benchmark_tensors or self.overflow_files or self.newest_result)
            and not any(self.pytorch_files)
            and not any(self.recorded)
        )


def overview(space: Workspace, newest_result: str = "") -> DataOverview:
    """Counts what lies in the data folder. What cannot be listed counts as nothing."""
    recorded = _recorded(space.dump_dir(0)), _recorded(space.msprobe_benchmark_dir)
    golden = _names_below(str(space.tf_dump_dir))
    tensors = sum(map(is_benchmark_file, golden))
    runs = []
    if not tensors:
        with suppress(PrecisionToolError):
            runs = [tfdbg.files_of_run(run) for run in tfdbg.find_runs(str(space.tf_debug_dir))]
    return DataOverview(
        root=str(space.root),
        exists=folder_exists(space.root),
        runs=tuple(
            RunOverview(
                number=number,
                dumps=_dumps_below(str(space.dump_dir(number))),
                graph_files=sum(
                    any(kind.is_graph(folder, name) for kind in DEVICE_KINDS)
                    for folder, file_names in _folders_below(str(space.graph_dir(number)))
                    for name in file_names
                ),
            )
            for number in _numbers(space)
            if number or recorded[0] is None
        ),
        graphs_here=sum(map(names.is_build_graph, _names_here())),
        benchmark_tensors=tensors or len({(dump.op, dump.slot) for run in runs for dump in run.tensors}),
        benchmark_runs=len(runs),
        overflow_files=sum(map(is_status_file, _names_below(str(space.overflow_dump_dir)))),
        pytorch_files=(len(PYTORCH.files(str(space.pt_npu_dir))), len(PYTORCH.files(str(space.pt_gpu_dir)))),
        recorded=recorded,
        newest_result=newest_result,
    )


#: Bytes of an index that is read at once.
_QUICK_INDEX = 64 << 20


def _recorded(folder: Path | None) -> RecordedOverview | None:
    """Return what msprobe recorded in a folder; None where it did not."""
    if folder is None or not MSPROBE.lies_at(str(folder)):
        return None
    try:
        run = find_msprobe(str(folder))
    except PrecisionToolError:
        return None
    first = run.leaves[0]
    header: dict[str, str] = {}
    entries = problem = None
    try:
        if size_of(first.dump) <= _QUICK_INDEX:
            index = read_dump_index(first.dump)
            entries = len(index.names)
            header = {"framework": index.framework, "level": index.level, "task": index.task}
        else:
            header = read_dump_header(first.dump)
    except PrecisionToolError as error:
        problem = error.full_message
    tensors = list_folder(posixpath.join(first.path, TENSOR_FOLDER)) if first.has_tensors else []
    return RecordedOverview(
        root=str(folder), framework=header.get("framework", ""), level=header.get("level", ""),
        task=header.get("task", ""), steps=run.steps, ranks=run.ranks,
        processes=len({leaf.process for leaf in run.leaves} - {None}), entries=entries, tensors=len(tensors),
        problem=problem,
    )  # fmt: skip


def _numbers(space: Workspace) -> list[int]:
    with suppress(FormatError):
        return space.debug_numbers()
    return []


def _names_here() -> list[str]:
    try:
        return list_folder(".")
    except PrecisionToolError:  # the working folder is gone
        return []


def _folders_below(root: str) -> Iterator[tuple[str, list[str]]]:
    try:
        yield from list_folders(root)
    except PrecisionToolError:
        return  # missing, or not to be read


def _names_below(root: str) -> Iterator[str]:
    return (name for _, file_names in _folders_below(root) for name in file_names)


def _dumps_below(root: str) -> tuple[DumpOverview, ...]:
    leaves: dict[str, list[tuple[names.LeafName, int]]] = {}
    for folder, file_names in _folders_below(root):
        count = sum(_looks_dumped(name) for name in file_names)
        if count:
            where = names.parse_leaf_path(PurePath(folder).parts)
            leaves.setdefault(where.time, []).append((where, count))

    def parts(dumped: list[tuple[names.LeafName, int]], part: str) -> tuple[str, ...]:
        values = {getattr(where, part) for where, _ in dumped} - {""}
        return tuple(sorted(values, key=lambda text: (len(text), text) if names.is_number(text) else (0, text)))

    return tuple(
        DumpOverview(
            time=time,
            devices=parts(leaf_counts, "device"),
            models=parts(leaf_counts, "model_name"),
            steps=parts(leaf_counts, "step"),
            files=sum(count for _, count in leaf_counts),
        )
        for time, leaf_counts in sorted(leaves.items(), reverse=True)
    )


def _looks_dumped(name: str) -> bool:
    """True for a dump file, also one whose real name only mapping.csv tells."""
    if names.is_number(name.removesuffix(".csv")):
        return True
    return not is_status_file(name) and names.is_dump_file(name)
