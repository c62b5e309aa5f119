"""A data-parallel training of several ranks over several steps, as the NPUs' dumps and the benchmark's tensors.

Every rank trains the same network on its own data. After the backward pass the gradients are summed up over all ranks
(`HcomAllReduce`) and divided by their number, so all ranks go on with the same variables, bit for bit, unless a device
is at fault. A server has eight devices under one data folder:

    server_S/precision_data/npu/debug_0/dump/{time}/{device}/{model}/1/{step}/    the folders that GE makes
    server_S/precision_data/npu/debug_0/graph/pid_{pid}_deviceid_{device}/
    server_S/precision_data/tf/dump/rank_{rank}/step_{step}/                      the benchmark's tensors

Rank r is device r % 8 of server r // 8; without a second server there is no folder for it.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np

from precision_tool.lib.demo import device as faults
from precision_tool.lib.demo import device as machine
from precision_tool.lib.demo import network
from precision_tool.lib.demo.device import FAULTS, Fault, Machine, Step, Value
from precision_tool.lib.demo.dump_writer import (
    Array,
    dump_file_name,
    golden_file_name,
    write_dump,
    write_golden,
    write_statistics,
)
from precision_tool.lib.demo.generate import TRUTH, WORK, check_folder, microseconds, move_in, out_tensor, write_errors
from precision_tool.lib.demo.graph_writer import graph_path, model_name, write_graphs
from precision_tool.lib.messages.errors import UsageError
from precision_tool.lib.model.graph import Op

#: Devices of a server, which share a data folder.
DEVICES = 8
#: More ranks or steps than this are no demo.
MAX_RANKS, MAX_STEPS = 64, 100
BENCHMARKS = ("one", "all", "none")

_START = datetime(2026, 3, 2, 9, 30, 0, tzinfo=UTC)
#: Images of a rank's step: small, as there are many.
_IMAGES = (4, 8, 8, 3)
_RATE = 0.01
_SECOND = 1_000_000
_OPTIMIZER = "NPUDistributedOptimizer"
_HCCL = "ops_kernel_info_hccl"

#: Device's and benchmark's values.
Sides = tuple[Array, Array]


def _some_of_the_last(result: Array, rng: np.random.Generator) -> Array:
    """The last rows of a variable are written as zeros."""
    wrong = result.copy()
    wrong[-(len(result) // 4) :] = 0
    return wrong


#: What can go wrong on ranks: faults of the single network that strike one op in one run, and two of their own.
RANK_FAULTS: dict[str, Fault] = {name: FAULTS[name] for name in ("none", "fused", "nan", "stomp")} | {
    fault.name: fault
    for fault in (
        Fault(
            name="update",
            summary="the update of a variable does not write its last rows",
            target="update",
            apply=_some_of_the_last,
        ),
        Fault(
            name="allreduce",
            summary="the last part of a gradient is not summed up over the ranks",
            target="allreduce",
            did="sums",
        ),
    )
}

_TARGETS = faults.TARGETS | {
    "update": "GradientDescent/update_fc1/kernel/ApplyGradientDescent",
    "allreduce": f"{_OPTIMIZER}/allreduce_conv2/kernel/HcomAllReduce",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafTruth:
    """Folders of a step of a rank, below the folder of the demo; no `golden_dir` without a benchmark."""

    rank: int
    step: int
    dump_dir: str
    golden_dir: str | None


@dataclass(frozen=True, kw_only=True)
class RanksTruth:
    """Contents of a demo of ranks and the fault in it.

    The fault strikes the op `culprit` at step `fault_step`: on all ranks, then and in each step after it (a kernel),
    or on `fault_rank` alone and once (a device). `all_reduces` are the ops behind which all ranks are alike.
    """

    seed: int
    fault: str
    ranks: int
    steps: int
    fault_step: int | None
    fault_rank: int | None
    culprit: str | None
    culprit_type: str
    did: str
    model_name: str
    #: Folders of data, one a server, below the folder of the demo.
    data: tuple[str, ...]
    all_reduces: tuple[str, ...]
    variables: tuple[str, ...]
    is_statistics: bool
    dump_files: int
    golden_files: int
    nbytes: int
    leaves: tuple[LeafTruth, ...] = field(repr=False)


def generate_ranks(
    root: Path,
    *,
    ranks: int,
    steps: int,
    seed: int = 1,
    fault: str = "fused",
    fault_step: int | None = None,
    fault_rank: int | None = None,
    benchmark: str = "one",
    statistics: bool = False,
) -> RanksTruth:
    """Write the demo below `root` and return its truth, which also lies in each data folder.

    Up to eight ranks have one data folder, `root/precision_data`; more have `root/server_N/precision_data` each.

    Parameters
    ----------
    root : Path
        Folder of the demo; its data folders are new, empty or hold an unchanged demo.
    ranks, steps : int
        At most `MAX_RANKS` and `MAX_STEPS`.
    seed : int
        Seed of all random numbers.
    fault : str
        Name of one of `RANK_FAULTS`.
    fault_step : int, optional
        Step of the fault, by default halfway.
    fault_rank : int, optional
        The only rank with the fault; by default all ranks have it.
    benchmark : {"one", "all", "none"}
        Whether rank 0, all ranks or none have a benchmark.
    statistics : bool
        Dump minimum, maximum, mean and so on in place of the tensors.

    Raises
    ------
    UsageError
        If options make no sense or a data folder holds something else.
    OutputError
        If writing fails.
    """
    training = Training(
        ranks=ranks,
        steps=steps,
        seed=seed,
        fault=fault_of_ranks(fault),
        fault_step=steps // 2 if fault_step is None else fault_step,
        fault_rank=fault_rank,
    )
    _check(training, benchmark)
    folders = data_folders(ranks)
    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(write_errors(root / folder))
            check_folder(root / folder)
        try:
            for folder in folders:
                shutil.rmtree(root / folder / WORK, ignore_errors=True)
                (root / folder / WORK).mkdir(parents=True)
            truth = _Writer(root, training, benchmark, statistics).write()
            text = json.dumps(asdict(truth), indent=1) + "\n"
            for folder in folders:
                (root / folder / WORK / TRUTH).write_text(text, encoding="utf-8")
            for folder in folders:
                move_in(root / folder / WORK, root / folder)
        finally:
            for folder in folders:
                shutil.rmtree(root / folder / WORK, ignore_errors=True)
    return truth


def data_folders(ranks: int) -> tuple[str, ...]:
    """Return the data folders of so many ranks, below the folder of the demo."""
    servers = -(-ranks // DEVICES)
    return tuple(f"server_{n}/precision_data" for n in range(servers)) if servers > 1 else ("precision_data",)


def fault_of_ranks(name: str) -> Fault:
    """Return the fault of this name; UsageError for one that does not go with several ranks."""
    if name not in RANK_FAULTS:
        raise UsageError("demo.no_fault_of_ranks", name=name, choices=tuple(RANK_FAULTS))
    return RANK_FAULTS[name]


def _check(training: Training, benchmark: str) -> None:
    for option, value, limit in (("ranks", training.ranks, MAX_RANKS), ("steps", training.steps, MAX_STEPS)):
        if not 1 <= value <= limit:
            raise UsageError("demo.out_of_range", option=option, value=value, limit=limit)
    if not 0 <= training.fault_step < training.steps:
        raise UsageError("demo.no_such_step", step=training.fault_step, last=training.steps - 1)
    if training.fault_rank is not None and not 0 <= training.fault_rank < training.ranks:
        raise UsageError("demo.no_such_rank", rank=training.fault_rank, last=training.ranks - 1)
    if benchmark not in BENCHMARKS:
        raise UsageError("demo.no_such_benchmark", name=benchmark, choices=tuple(BENCHMARKS))


# ---- the training ------------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class _Rank(Machine):
    """The machine of one rank in one step. Without `sums` it only finds the gradients."""

    #: Variable → its values at the beginning of the step; those drawn by `rng` where it has none.
    variables: Mapping[str, Sides] = field(default_factory=dict)
    #: Variable → its gradient, summed up over all ranks.
    sums: Mapping[str, Sides] = field(default_factory=dict)
    ranks: int = 1
    started: dict[str, Sides] = field(default_factory=dict)
    gradients: dict[str, Sides] = field(default_factory=dict)
    updated: dict[str, Sides] = field(default_factory=dict)

    def variable(self, name: str, array: Array, origin_layout: str = "ND", *, reference: Array | None = None) -> Value:
        """A trained parameter with the values it has at this step."""
        sides = self.variables.get(name, (array, array if reference is None else reference))
        self.started[name] = sides
        return super().variable(name, sides[0], origin_layout, reference=sides[1])

    def update(self, variable: Value, rate: Value, grad: Value) -> Value:
        """The update, by the gradient of all ranks."""
        self.gradients[variable.op] = _sides(grad)
        if self.sums:
            grad = self._average(variable, self._all_reduce(variable, grad))
        result = super().update(variable, rate, grad)
        self.updated[variable.op] = _sides(result)
        return result

    def _all_reduce(self, variable: Value, grad: Value) -> Value:
        device, reference = self.sums[variable.op]
        name = f"{_OPTIMIZER}/allreduce_{variable.op}/HcomAllReduce"
        if name == self.target:  # one of the parts that go round the ring was not sent
            device = device.copy()
            part = -(-device.size // max(2, self.ranks))
            device.reshape(-1)[-part:] = _sides(grad)[0].reshape(-1)[-part:]
        return self.run(
            "HcomAllReduce", name, [grad], [(device, reference, (name, 0))], [grad.form],
            originals=(name,), goldens=[(name, 0, reference)], library=_HCCL,
            attrs={"reduction": "sum", "group": "hccl_world_group", "fusion": 1, "fusion_id": -1},
            stream=machine.UPDATE_STREAM,
        )[0]  # fmt: skip

    def _average(self, variable: Value, total: Value) -> Value:
        count = self.constant(float(self.ranks))
        name = f"{_OPTIMIZER}/truediv_{variable.op}/RealDiv"
        return self.single("RealDiv", name, np.divide, [total, count], total.form, stream=machine.UPDATE_STREAM)


def _sides(value: Value) -> Sides:
    assert isinstance(value.array, np.ndarray)
    assert isinstance(value.reference, np.ndarray)
    return value.array, value.reference


@dataclass(frozen=True, kw_only=True)
class Training:
    """Computes one step of all ranks after the other. `images` is the shape of a rank's data (NHWC)."""

    ranks: int
    steps: int
    seed: int
    fault: Fault
    fault_step: int
    fault_rank: int | None
    images: tuple[int, int, int, int] = _IMAGES

    def strikes(self, rank: int, step: int) -> bool:
        """Return True if the fault is active."""
        if self.fault.target is None:
            return False
        if self.fault_rank is None:
            return step >= self.fault_step
        return (rank, step) == (self.fault_rank, self.fault_step)

    def run(self, take: Callable[[int, int, Step], None]) -> Iterator[tuple[int, list[_Rank]]]:
        """Each step's number and the machines of all ranks behind it; `take` gets rank, step and each op as it is run.

        A step is run twice: alone, for the gradients, and with their sums over all ranks.
        """
        variables = [self._machine(0, 0, FAULTS["none"]).started] * self.ranks
        for step in range(self.steps):
            alone = [self._machine(rank, step, variables=variables[rank]).gradients for rank in range(self.ranks)]
            sums = {name: _summed([of_rank[name] for of_rank in alone]) for name in alone[0]}
            machines = []
            for rank in range(self.ranks):
                emit = partial(take, rank, step)
                machines.append(self._machine(rank, step, variables=variables[rank], sums=sums, emit=emit))
            yield step, machines
            variables = [machine.updated for machine in machines]

    def _machine(
        self,
        rank: int,
        step: int,
        fault: Fault | None = None,
        *,
        variables: Mapping[str, Sides] | None = None,
        sums: Mapping[str, Sides] | None = None,
        emit: Callable[[Step], None] = lambda _: None,
    ) -> _Rank:
        """The machine of a rank that has run a step."""
        fault = fault or (self.fault if self.strikes(rank, step) else FAULTS["none"])
        machine = _Rank(
            emit=emit,
            rng=np.random.default_rng(self.seed),
            fault=fault,
            target=_TARGETS[fault.target] if fault.target else None,
            variables=variables or {},
            sums=sums or {},
            ranks=self.ranks,
        )
        data = np.random.default_rng([self.seed, 3, rank, step])
        images, labels = network.data_source(machine, shape=self.images, rng=data)
        rate = machine.constant(_RATE, "GradientDescent/learning_rate")
        loss = network.train_step(machine, images, labels, rate)
        machine.run("NetOutput", "NetOutput", [loss], (), (), originals=None, dumped=False, kernel=False)
        return machine


def _summed(parts: Sequence[Sides]) -> Sides:
    """The sum over the ranks, in float32 one after the other as it goes round the ring."""
    with np.errstate(invalid="ignore"):
        device, reference = (sum(side[1:], side[0]) for side in zip(*parts, strict=True))
    return device, reference


# ---- writing -----------------------------------------------------------------------------------------------


class _Writer:
    """A writer of the files of all ranks as the training goes on."""

    def __init__(self, root: Path, training: Training, benchmark: str, statistics: bool) -> None:
        self.root = root
        self.training = training
        self.statistics = statistics
        self.with_benchmark = {"one": (0,), "all": range(training.ranks), "none": ()}[benchmark]
        self.folders = data_folders(training.ranks)
        self.stamp = f"{_START:%Y%m%d%H%M%S}"
        self.ops: list[Op] = []
        self.offsets: dict[tuple[str, int], int] = {}
        self.tasks: Counter[tuple[int, int]] = Counter()
        self.counts: Counter[str] = Counter()
        self.jitter = np.random.default_rng([training.seed, 1])

    def write(self) -> RanksTruth:
        """Run the training and write everything but the truth, which is returned."""
        training = self.training
        leaves = []
        for rank in range(training.ranks):
            for step in range(training.steps):
                folders = self.dump_dir(rank, step), self.golden_dir(rank, step)
                for folder in folders:
                    if folder is not None:
                        self.written(folder).mkdir(parents=True)
                leaves.append(LeafTruth(rank=rank, step=step, dump_dir=str(folders[0]), golden_dir=_text(folders[1])))
        culprit: Op | None = None
        for _, machines in training.run(self.take):
            culprit = culprit or next((machine.culprit for machine in machines if machine.culprit), None)
        self.write_graphs()
        return RanksTruth(
            seed=training.seed,
            fault=training.fault.name,
            ranks=training.ranks,
            steps=training.steps,
            fault_step=training.fault_step if culprit else None,
            fault_rank=training.fault_rank if culprit else None,
            culprit=culprit.name if culprit else None,
            culprit_type=culprit.type if culprit else "",
            did=training.fault.did if culprit else "",
            model_name=model_name(self.stamp),
            data=self.folders,
            all_reduces=tuple(op.name for op in self.ops if op.type == "HcomAllReduce"),
            variables=tuple(op.name for op in self.ops if op.type == "Variable"),
            is_statistics=self.statistics,
            dump_files=self.counts["dump files"],
            golden_files=self.counts["golden files"],
            nbytes=self.counts["bytes"],
            leaves=tuple(leaves),
        )

    def dump_dir(self, rank: int, step: int) -> Path:
        """Return the folder of a step's dump files, below the root."""
        server, device = divmod(rank, DEVICES)
        leaf = Path(self.stamp, str(device), model_name(self.stamp), "1", str(step))
        return Path(self.folders[server], "npu/debug_0/dump", leaf)

    def golden_dir(self, rank: int, step: int) -> Path | None:
        """Return the folder of the benchmark's tensors of a step; None for a rank without."""
        if rank not in self.with_benchmark:
            return None
        return Path(self.folders[rank // DEVICES], f"tf/dump/rank_{rank}/step_{step}")

    def written(self, folder: Path) -> Path:
        """The place a folder below a data folder has until it is moved in."""
        data = next(Path(data) for data in self.folders if folder.is_relative_to(data))
        return self.root / data / WORK / folder.relative_to(data)

    def take(self, rank: int, step: int, done: Step) -> None:
        """Write the files of one op."""
        if rank == step == 0:
            self.ops.append(done.op)
            for value in done.outputs:
                self.offsets[value.op, value.index] = value.address - machine.MEMORY_START
        self.tasks[rank, step] += 1
        task = self.tasks[rank, step]
        # A step takes a second, and the clocks of devices differ by some milliseconds.
        clock = microseconds(_START) + (step + 2) * _SECOND + rank * 1700 + task * 400 + int(self.jitter.integers(300))
        golden_dir = self.golden_dir(rank, step)
        if golden_dir is not None:
            for name, index, array in done.goldens:
                assert isinstance(array, np.ndarray)
                path = self.written(golden_dir) / golden_file_name(name, index, clock - 3600 * _SECOND)
                self.counts["bytes"] += write_golden(path, array)
                self.counts["golden files"] += 1
        if done.dumped:
            name = dump_file_name(done.op.type, done.op.name, task, clock, stream_id=done.op.stream_id or 0)
            self.write_dump(self.written(self.dump_dir(rank, step)) / name, done, clock)

    def write_dump(self, path: Path, done: Step, clock: int) -> None:
        """The dump file of an op, or its statistics."""
        inputs, outputs = [*map(out_tensor, done.inputs)], [*map(out_tensor, done.outputs)]
        if self.statistics:
            path = path.with_name(f"{path.name}.csv")
            write_statistics(path, inputs, outputs)
            self.counts["bytes"] += path.stat().st_size
        else:
            self.counts["bytes"] += write_dump(path, done.op.name, inputs, outputs, dump_time=clock)
        self.counts["dump files"] += 1

    def write_graphs(self) -> None:
        """The graphs of every device: files of one content, so they are links to the first's where that is possible."""
        first: Path | None = None
        for rank in range(self.training.ranks):
            server, device = divmod(rank, DEVICES)
            name = Path(self.folders[server], f"npu/debug_0/graph/pid_{4200 + rank}_deviceid_{device}")
            folder = self.written(name)
            if first is None:
                folder.mkdir(parents=True)
                write_graphs(folder, self.stamp, self.ops, self.offsets, self.training.seed)
                self.counts["bytes"] += graph_path(folder).stat().st_size
                first = folder
            else:
                shutil.copytree(first, folder, copy_function=_link)


def _link(source: str, target: str) -> None:
    try:
        Path(target).hardlink_to(source)
    except OSError:  # a file system without links
        shutil.copyfile(source, target)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
