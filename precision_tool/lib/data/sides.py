"""What a comparison is of: the NPU run below one folder, and benchmark tensors or another run below the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from precision_tool.lib.data.dump_names import placed
from precision_tool.lib.data.dump_tree import Stamps, newest_golden
from precision_tool.lib.data.dumped_ops import GoldenFiles
from precision_tool.lib.data.kinds import (
    MSPROBE,
    NPY,
    PYTORCH,
    DataKind,
    benchmark_kind,
    device_kind,
    has_tensors,
    kind_at,
)
from precision_tool.lib.data.msprobe_tree import DUMP_FILE, has_msprobe_folders
from precision_tool.lib.data.workspace import Workspace, check_data, shown_path
from precision_tool.lib.io import tfdbg_files as tfdbg
from precision_tool.lib.io.files import folder_exists, is_folder, list_folder, real_path, stat_of
from precision_tool.lib.io.stores import Kind
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, NoBenchmarkError, UsageError
from precision_tool.lib.model.run import Benchmark, DumpLeaf, Run


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The data that a comparison reads, located but not opened."""

    run: Run
    golden: GoldenFiles | Run
    notes: tuple[Message, ...] = ()
    #: Whether the benchmark stands for every step and rank.
    is_shared: bool = True


def find_inputs(
    npu: str,
    golden: str,
    *,
    run_at: Callable[[str], Run] | None = None,
    golden_at: Callable[[str], GoldenFiles | Run] | None = None,
) -> Inputs:
    """Return the NPU run below one folder and the benchmark tensors, or another NPU run, below the other.

    Parameters
    ----------
    npu, golden : str
        The two folders.
    run_at, golden_at : callable, optional
        Return the data below a folder; callers with a cache pass its lookup.

    Raises
    ------
    DataNotFoundError
        A side holds no data, or the sides are swapped.
    """
    try:
        run = (run_at or find_run)(npu)
    except DataNotFoundError as error:
        if has_msprobe_folders(npu) and not has_tensors(npu):
            raise DataNotFoundError.of(npu, "data.msprobe.no_dump_json", file=DUMP_FILE) from error
        if folder_exists(npu) and benchmark_kind(npu) is not None:
            raise DataNotFoundError.of(npu, "data.sides_swapped") from error
        raise
    side = (golden_at or find_golden)(golden)
    return Inputs(run=run, golden=side, notes=(*run.notes, *side.notes))


def find_run(path: str, stamps: Stamps | None = None) -> Run:
    """Return what was dumped below a path, of whichever kind that has graphs; `stamps` notes the folders."""
    return device_kind(path).find(path, stamps)


def find_golden(path: str, stamps: Stamps | None = None) -> GoldenFiles | Run:
    """The benchmark tensors, or another NPU run, below `path`; `stamps` notes the folders."""
    kind = benchmark_kind(path)
    if kind is not None:
        return GoldenFiles(kind.find(path, stamps), kind)
    try:
        return find_run(path, stamps)
    except DataNotFoundError:
        # Neither: say so in the words of what is most often meant.
        NPY.find(path)
        raise


def own_benchmark(golden: GoldenFiles, leaf: DumpLeaf, count: int) -> GoldenFiles:
    """The benchmark of the leaf's step and rank, where folders of the benchmark are called by these; else all of it.

    It is empty where there is nothing of them: another step's or rank's tensors are never taken in their place, unless
    the run has one leaf (`count`), and the benchmark one place, only.
    """
    if not golden.places or golden.places == count == 1:
        return golden.fitted(leaf)
    step, rank = placed(leaf.path)
    step = int(leaf.step) if leaf.step else step
    rank = int(leaf.device) if rank is None and leaf.device else rank
    own = golden.of_place(step, rank)
    return GoldenFiles(Benchmark(root=golden.root, files={})) if own is None else own.fitted(leaf)


def golden_leaf(other: Run, leaf: DumpLeaf, position: int, count: int) -> DumpLeaf:
    """As `_fitting_leaf`. UsageError for the leaf itself: a dump agrees with itself, whatever is in it."""
    found = _fitting_leaf(other, leaf, position, count)
    if real_path(found.path) == real_path(leaf.path):
        raise UsageError.of(found.path, "data.same_dump")
    return found


def _fitting_leaf(other: Run, leaf: DumpLeaf, position: int, count: int) -> DumpLeaf:
    """The leaf of the other run that stands for the same device, model id and step, or for the same place.

    Different steps are never taken for each other, unless each side is the one folder that was named.
    """
    if len(other.leaves) == 1 and count == 1:
        return other.leaves[0]
    for parts in (("device", "model_id", "step"), ("device", "step"), ("step",)):
        fitting = [
            candidate
            for candidate in other.leaves
            if all(getattr(candidate, part) == getattr(leaf, part) for part in parts)
        ]
        if len(fitting) == 1:
            return fitting[0]
    if len(other.leaves) == count and other.leaves[position].step == leaf.step:
        return other.leaves[position]
    raise DataNotFoundError.of(other.root, "data.no_such_leaf", device=leaf.device, model=leaf.model_id, step=leaf.step)


# --- What is compared by default: where a data folder has the NPU's dump, and what it is compared with ---


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
        npu = str(space.root / "npu")
        if has_msprobe_folders(npu):
            raise DataNotFoundError.of(npu, "data.msprobe.no_dump_json", file=DUMP_FILE)
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
        if MSPROBE.lies_at(npu):
            raise NoBenchmarkError("data.no_msprobe_benchmark", npu=npu, folder=space.root / "gpu")
        raise NoBenchmarkError("data.no_benchmark", npu=npu, folder=space.tf_dump_dir, other=other)
    return str(benchmark or other)


def benchmark_folder(space: Workspace, stamps: Stamps | None = None) -> Path | None:
    """Where the benchmark's tensors are: tf/dump, or tf/tf_debug, or a dump of msprobe; `stamps` notes folders."""
    if has_tensors(str(space.tf_dump_dir), stamps):
        return space.tf_dump_dir
    visit = None if stamps is None else stamps.note
    if tfdbg.find_runs(str(space.tf_debug_dir), visit):
        return space.tf_debug_dir
    return space.msprobe_benchmark_dir


def newer_run(space: Workspace) -> Message | None:
    """The note on a run of tfdbg that is newer than the tensors in tf/dump, which are compared."""
    runs = tfdbg.find_runs(str(space.tf_debug_dir))
    newest = newest_golden(str(space.tf_dump_dir)) if runs else None
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
