"""Overview of a data folder by the names in it; nothing is opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath

from precision_tool.lib.data import dump_names as names
from precision_tool.lib.data.dump_tree import is_status_file, list_folders
from precision_tool.lib.data.kinds import DEVICE_KINDS, PYTORCH, is_benchmark_file
from precision_tool.lib.data.workspace import Workspace
from precision_tool.lib.io import tfdbg_files as tfdbg
from precision_tool.lib.io.files import folder_exists, list_folder
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
    #: The newest result file, empty if there is none.
    newest_result: str = ""

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to work with."""
        return (
            not any(run.dumps or run.graph_files for run in self.runs)
            and not (self.graphs_here or self.benchmark_tensors or self.overflow_files or self.newest_result)
            and not any(self.pytorch_files)
        )


def overview(space: Workspace, newest_result: str = "") -> DataOverview:
    """Counts what lies in the data folder. Nothing is opened; what cannot be listed counts as nothing."""
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
        ),
        graphs_here=sum(map(names.is_build_graph, _names_here())),
        benchmark_tensors=tensors or len({(dump.op, dump.slot) for run in runs for dump in run.tensors}),
        benchmark_runs=len(runs),
        overflow_files=sum(map(is_status_file, _names_below(str(space.overflow_dump_dir)))),
        pytorch_files=(len(PYTORCH.files(str(space.pt_npu_dir))), len(PYTORCH.files(str(space.pt_gpu_dir)))),
        newest_result=newest_result,
    )


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
