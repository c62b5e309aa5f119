"""What a comparison is of: the NPU run below one folder, and benchmark tensors or another run below the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from precision_tool.lib.data.dump_names import placed
from precision_tool.lib.data.dump_tree import Stamps
from precision_tool.lib.data.dumped_ops import GoldenFiles
from precision_tool.lib.data.kinds import GE, NPY, benchmark_kind
from precision_tool.lib.io.files import folder_exists
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError
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
    run_at: Callable[[str], Run] = GE.find,
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
        run = run_at(npu)
    except DataNotFoundError as error:
        if folder_exists(npu) and benchmark_kind(npu) is not None:
            raise DataNotFoundError.of(npu, "data.sides_swapped") from error
        raise
    side = (golden_at or find_golden)(golden)
    return Inputs(run=run, golden=side, notes=(*run.notes, *side.notes))


def find_golden(path: str, stamps: Stamps | None = None) -> GoldenFiles | Run:
    """The benchmark tensors, or another NPU run, below `path`; `stamps` notes the folders."""
    kind = benchmark_kind(path)
    if kind is not None:
        return GoldenFiles(kind.find(path, stamps))
    try:
        return GE.find(path, stamps)
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
        return golden
    step, rank = placed(leaf.path)
    step = int(leaf.step) if leaf.step else step
    rank = int(leaf.device) if rank is None and leaf.device else rank
    return golden.of_place(step, rank) or GoldenFiles(Benchmark(root=golden.root, files={}))


def golden_leaf(other: Run, leaf: DumpLeaf, position: int, count: int) -> DumpLeaf:
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
