"""One recorded step of the benchmark, opened for emulation: of msprobe, or of TensorFlow with its graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from precision_tool.lib.data.benchmark_step import BenchmarkStep, benchmark_step
from precision_tool.lib.data.dump_names import StepAndRank, placed
from precision_tool.lib.data.dumped_ops import GoldenFiles, NoBenchmark
from precision_tool.lib.data.kinds import MSPROBE
from precision_tool.lib.data.msprobe_ops import read_msprobe_graph
from precision_tool.lib.data.sides import benchmark_folder, find_golden, find_run
from precision_tool.lib.data.workspace import Workspace, open_workspace
from precision_tool.lib.diagnose.emulation import StepEmulator
from precision_tool.lib.diagnose.op_values import RunValues
from precision_tool.lib.diagnose.preflight_model import Preflight
from precision_tool.lib.diagnose.recomputer import Recomputer
from precision_tool.lib.io.msprobe_dump import read_dump_header
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, NoBenchmarkError, UsageError
from precision_tool.lib.model.graph import GraphFile, Op
from precision_tool.lib.model.msprobe import Direction
from precision_tool.lib.model.run import Run
from precision_tool.lib.model.wording import spans

#: Frameworks by the names that graphs of recorded calls have for them.
_FRAMEWORKS = {"": "TensorFlow", "pytorch": "PyTorch", "mindspore": "MindSpore"}
_HALF = ("float16", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class OpenedStep:
    """A step that can be emulated.

    Attributes
    ----------
    emulator : StepEmulator
        Computes it.
    source : str
        The folder of its tensors.
    file : GraphFile
        Its graph.
    framework : str
        "TensorFlow", "PyTorch" or "MindSpore".
    notes : tuple of Message
        What is to be known of it.
    """

    emulator: StepEmulator = field(repr=False)
    source: str
    file: GraphFile = field(repr=False)
    framework: str
    notes: tuple[Message, ...] = ()


def open_step(
    space: Workspace,
    folder: str | None = None,
    graph: str | None = None,
    *,
    step: int | None = None,
    rank: int | None = None,
) -> OpenedStep:
    """Open one step of the benchmark.

    Parameters
    ----------
    space : Workspace
        The data folder, whose benchmark is meant if no folder is named.
    folder : str, optional
        A data folder, a dump of msprobe at any level, or a folder of `.npy` files.
    graph : str, optional
        TensorFlow's graph, or a folder of graphs; by default the one saved with the tensors.
    step, rank : int, optional
        Which, where several were dumped.

    Raises
    ------
    DataNotFoundError
        There is no benchmark, no graph of it, or none of that step and rank.
    UsageError
        There are several steps or ranks, statistics only, or no float32 benchmark.
    FormatError
        The graph is damaged.
    """
    golden = _tensors_of(space, folder)
    opened = _of_msprobe(golden, step, rank) if MSPROBE.lies_at(golden) else _of_files(space, golden, graph, step, rank)
    emulator = StepEmulator(Recomputer(RunValues(opened.leaf, opened.file, opened.side)), is_right=True)
    _check_float32(emulator, golden)
    return OpenedStep(
        emulator=emulator, source=opened.leaf.path, file=opened.file, framework=_FRAMEWORKS[opened.file.framework],
        notes=opened.notes,
    )  # fmt: skip


def described(result: Preflight, opened: OpenedStep) -> Preflight:
    """Return what was told of a step with where it is, and with the modules of which all calls are to be kept.

    Out of autocast a module takes all that is below it along: the calls of others are left to the script.
    """
    forward = [op for op in opened.file.ops if _is_forward(op)]
    types = []
    for forecast in result.types:
        kept, computed = set(forecast.kept), {op.name for op in forecast.ranges}
        others = {module_path(op.module) for op in forward if op.name in computed - kept}
        modules = [
            module for module in forecast.kept_modules
            if not any(f"{path}.".startswith(f"{module_path(module)}.") for path in others)
        ]  # fmt: skip
        types.append(replace(forecast, kept_modules=tuple(modules)))
    return replace(result, source=opened.source, graph=opened.file.path, framework=opened.framework, types=tuple(types))


def module_path(module: str) -> str:
    """Return the path of a module in its model: `blocks.1.act` of `blocks.1.act (GELU)`."""
    return module.partition(" (")[0]


def _is_forward(op: Op) -> bool:
    call = None if op.recorded is None else op.recorded.call.call
    return call is not None and call.direction is Direction.FORWARD


def _tensors_of(space: Workspace, folder: str | None) -> str:
    """Return the folder of the benchmark's tensors: of a data folder its benchmark, else the folder itself."""
    if folder is not None:
        below = benchmark_folder(open_workspace(folder))
        return str(below) if below is not None else folder
    below = benchmark_folder(space)
    if below is None and not space.is_dump:
        raise NoBenchmarkError("data.no_benchmark_step", folder=space.tf_dump_dir)
    return str(below or space.root)


def _of_msprobe(folder: str, step: int | None, rank: int | None) -> BenchmarkStep:
    run = find_run(folder)
    places = {placed(leaf.path): leaf for leaf in run.leaves}
    leaf = places[_chosen(folder, places, step, rank)]
    if read_dump_header(leaf.graph).get("task") in ("statistics", "structure"):
        raise UsageError.of(leaf.path, "diagnose.preflight.statistics")
    file = read_msprobe_graph(leaf.graph)
    return BenchmarkStep(file=file, leaf=leaf, side=NoBenchmark(), notes=(*run.notes, *file.notes))


def _of_files(space: Workspace, folder: str, graph: str | None, step: int | None, rank: int | None) -> BenchmarkStep:
    return benchmark_step(space, folder, graph, golden_at=_placed_files(step, rank))


def _placed_files(step: int | None, rank: int | None) -> Callable[[str], GoldenFiles | Run]:
    """Return what finds tensors below a folder: those of one step and rank, where folders are called by these."""

    def find(folder: str) -> GoldenFiles | Run:
        side = find_golden(folder)
        if not isinstance(side, GoldenFiles) or side.places == 0:
            return side
        return side.of_place(*_chosen(folder, side.steps_and_ranks, step, rank)) or side

    return find


def _chosen(folder: str, places: Iterable[StepAndRank], step: int | None, rank: int | None) -> StepAndRank:
    """Return the only step and rank that fit. DataNotFoundError for none, UsageError for several."""
    everything = list(places)
    fitting = [place for place in everything if step in (None, place[0]) and rank in (None, place[1])]
    if len(fitting) == 1:
        return fitting[0]
    named = fitting or everything
    steps = spans(sorted({place[0] for place in named if place[0] is not None}))
    ranks = spans(sorted({place[1] for place in named if place[1] is not None}))
    if not fitting:
        raise DataNotFoundError.of(
            folder, "diagnose.preflight.no_place", step=step, rank=rank, steps=steps, ranks=ranks
        )
    raise UsageError.of(folder, "diagnose.preflight.several", steps=steps, ranks=ranks)


def _check_float32(emulator: StepEmulator, folder: str) -> None:
    """Raise UsageError for a step that was not computed in float32: it cannot tell what 16 bits change."""
    types = Counter(emulator.dtype_of(root) for root in emulator.roots)
    narrow = sum(types[name] for name in _HALF)
    if not types:
        raise UsageError.of(folder, "diagnose.preflight.no_floats")
    if 2 * narrow > types.total():
        name = max(_HALF, key=lambda one: types[one])
        raise UsageError.of(folder, "diagnose.preflight.half", dtype=name, narrow=narrow, count=types.total())
