"""What is compared by default: where a data folder has the NPU's dump, and what it is compared with."""

from __future__ import annotations

from pathlib import Path

from precision_tool.lib.data import dump_tree as walk
from precision_tool.lib.data.dump_tree import Stamps
from precision_tool.lib.data.kinds import PYTORCH, DataKind, device_kind, kind_at
from precision_tool.lib.data.workspace import Workspace, check_data, shown_path
from precision_tool.lib.io import tfdbg_runs as tfdbg
from precision_tool.lib.io.files import is_folder, list_folder, stat_of
from precision_tool.lib.io.stores import Kind
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, NoBenchmarkError


def pytorch_files(space: Workspace) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The `.h5` files of the NPU and of the benchmark, by name only."""
    npu, golden = (tuple(PYTORCH.files(str(folder))) for folder in (space.pt_npu_dir, space.pt_gpu_dir))
    return npu, golden


def kind_of(space: Workspace) -> DataKind:
    """Return the kind of the NPU's data: PyTorch's dumps only where there is no run of another kind."""
    is_pytorch = not space.debug_numbers() and any(pytorch_files(space))
    return PYTORCH if is_pytorch else device_kind(str(space.dump_dir(0)))


def default_npu(space: Workspace) -> str:
    """The dump of the NPU run under test."""
    check_data(space.root)
    folder = space.dump_dir(0)
    if not is_folder(folder) and PYTORCH.files(str(space.pt_npu_dir)):
        return str(space.pt_npu_dir)
    if not kind_of(space).has_graph:
        raise DataNotFoundError("data.no_h5_of_npu", folder=space.pt_npu_dir)
    if not is_folder(folder):
        _check_no_file(folder)
        raise DataNotFoundError.of(folder, "data.no_npu_dump")
    return str(folder)


def default_golden(space: Workspace, npu: str) -> str:
    """Return the folder that `npu` is compared with.

    Of PyTorch's dumps pt/gpu; of others tf/dump, else the runs in tf/tf_debug, else the second NPU run's dump.
    """
    if not kind_at(npu).has_graph:
        if PYTORCH.files(str(space.pt_gpu_dir)):
            return str(space.pt_gpu_dir)
        raise NoBenchmarkError("data.no_h5_benchmark", npu=npu, folder=space.pt_gpu_dir)
    benchmark, other = benchmark_folder(space), space.dump_dir(1)
    if benchmark is None and not _has_entries(other):
        if _has_entries(space.tf_dump_dir):
            return str(space.tf_dump_dir)  # reading it raises what is wrong with it
        _check_no_file(space.tf_dump_dir)
        raise NoBenchmarkError("data.no_benchmark", npu=npu, folder=space.tf_dump_dir, other=other)
    return str(benchmark or other)


def benchmark_folder(space: Workspace, stamps: Stamps | None = None) -> Path | None:
    """Where the benchmark's tensors are: tf/dump, or tf/tf_debug if only that has some; `stamps` notes folders."""
    if walk.has_tensors(str(space.tf_dump_dir), stamps):
        return space.tf_dump_dir
    visit = None if stamps is None else stamps.note
    return space.tf_debug_dir if tfdbg.find_runs(str(space.tf_debug_dir), visit) else None


def newer_run(space: Workspace) -> Message | None:
    """The note on a run of tfdbg that is newer than the tensors in tf/dump, which are compared."""
    runs = tfdbg.find_runs(str(space.tf_debug_dir))
    newest = walk.newest_golden(str(space.tf_dump_dir)) if runs else None
    if newest is None or runs[-1].time <= newest:
        return None
    return Message("note.data.newer_tfdbg_run", path=shown_path(runs[-1].path), folder=str(space.tf_dump_dir))


def has_dump_alone(space: Workspace) -> bool:
    """Return whether there is an NPU dump, but no benchmark and no earlier result."""
    if space.compare_dirs() or not is_folder(space.dump_dir(0)):
        return False
    return benchmark_folder(space) is None and not _has_entries(space.dump_dir(1))


def _has_entries(folder: Path) -> bool:
    return is_folder(folder) and bool(list_folder(str(folder)))


def _check_no_file(folder: Path) -> None:
    entry = stat_of(str(folder))
    if entry is not None and entry.kind is not Kind.FOLDER:
        raise DataNotFoundError.of(folder, "data.file_for_folder")
