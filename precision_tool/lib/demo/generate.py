"""The generator of a demo: dump, graphs, golden tensors and the truth, in a folder that the demo owns.

The folder is moved into its place whole, and an earlier demo is replaced only if it is unchanged."""

from __future__ import annotations

import errno
import json
import math
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from precision_tool.lib.demo import device as faults
from precision_tool.lib.demo import device as machine
from precision_tool.lib.demo import network
from precision_tool.lib.demo import network as tower
from precision_tool.lib.demo.device import Machine, Step, Streamed, Value
from precision_tool.lib.demo.dump_writer import (
    Array,
    OutTensor,
    dump_file_name,
    golden_file_name,
    status_payload,
    write_dump,
    write_golden,
)
from precision_tool.lib.demo.graph_writer import GRAPH_ID, graph_path, model_name, write_graphs
from precision_tool.lib.io.files import read_text
from precision_tool.lib.messages.errors import OutputError, PrecisionToolError, UsageError
from precision_tool.lib.model.graph import Op

MARKER = ".precision_tool_demo.json"
TRUTH = "truth.json"
WORK = ".precision_tool_demo.tmp"
#: What a demo owns below its folder. The truth comes last: where it is, the demo is complete.
_PARTS = (
    "npu/debug_0", "npu/debug_1", "tf/dump", "overflow/dump", "fusion/fusion_result.json",
    "npu/step0", "gpu/step0", "train.py", TRUTH,
)  # fmt: skip


def check_folder(root: Path) -> None:
    """Raise UsageError unless `root` is new, empty or just what an earlier demo wrote."""
    if not root.exists():
        return
    if not root.is_dir():
        raise UsageError.of(root, "demo.not_a_folder")
    if {entry.name for entry in root.iterdir()} <= {WORK}:
        return
    marker = root / MARKER
    if not marker.is_file():
        raise UsageError.of(root, "demo.folder_in_use")
    try:
        recorded = json.loads(read_text(str(marker)))["files"]
    except (PrecisionToolError, ValueError, KeyError, TypeError, RecursionError):
        recorded = None
    counts = dict.fromkeys(_PARTS, 0) | recorded if isinstance(recorded, dict) else None
    if counts != _file_counts(root):
        raise UsageError.of(root, "demo.changed_since")


def _file_counts(root: Path) -> dict[str, int]:
    """Number of files in each part of a demo."""
    counts = {}
    for part in _PARTS:
        path = root / part
        counts[part] = sum(file.is_file() for file in path.rglob("*")) if path.is_dir() else int(path.exists())
    return counts


def move_in(work: Path, root: Path) -> None:
    """Put the finished parts in their places; what an earlier demo had there goes away with the work folder."""
    (work / MARKER).write_text(json.dumps({"files": _file_counts(work)}) + "\n", encoding="utf-8")
    (root / TRUTH).unlink(missing_ok=True)
    old = work / "old"
    for number, part in enumerate((MARKER, *_PARTS)):
        target = root / part
        if target.exists():
            old.mkdir(exist_ok=True)
            target.rename(old / str(number))
        if (work / part).exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            (work / part).rename(target)


def check_space(root: Path, needed: int) -> None:
    free = shutil.disk_usage(root).free
    if needed > free:
        raise OutputError.of(root, "demo.too_large", needed=needed, free=free)


@contextmanager
def write_errors(root: Path) -> Iterator[None]:
    """Turn what the system says about the folder into the user's error."""
    try:
        yield
    except PrecisionToolError:
        raise
    except OSError as error:
        where = error.filename or root
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutputError.of(root, "demo.no_space") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise OutputError.of(where, "demo.no_permission") from error
        raise OutputError.of(where, "demo.not_written", detail=error.strerror or str(error)) from error


# --- writing the demo -------------------------------------------------------------------------------------------------


#: The overflow detection writes so many status files and stops.
_STATUSES = 3

_START = datetime(2026, 3, 2, 9, 30, 0, tzinfo=UTC)
_GRAPH_BYTES_PER_OP = 6500
_DEFAULT_BYTES_OPS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorTruth:
    """A device tensor: its benchmark tensor as `op:output index` (None if there is none) and the float64 cosine.

    The cosine is NaN where the device has NaN or just one side is zero; None without a benchmark tensor.
    """

    golden: str | None
    cosine: float | None


@dataclass(frozen=True, kw_only=True)
class DemoTruth:
    """Contents of a demo and the fault in it. `culprit` and its details are empty where nothing is."""

    seed: int
    fault: str
    culprit: str | None
    culprit_type: str = ""
    culprit_passes: tuple[str, ...] = ()
    culprit_originals: tuple[str, ...] = ()
    model_name: str
    graph_path: Path
    dump_dir: Path
    golden_dir: Path
    fusion_path: Path
    ops: int
    dump_files: int
    golden_files: int
    nbytes: int
    #: Ops whose outputs reached the limit of float16, in execution order.
    overflowed: tuple[str, ...] = ()
    #: The op that wrote over memory that was still to be read.
    overwriter: str = ""
    #: `op:input|output:i` → truth, in execution order.
    tensors: Mapping[str, TensorTruth] = field(repr=False)


# ---- the public function -----------------------------------------------------------------------------------


def generate_demo(
    root: Path,
    *,
    seed: int = 1,
    ops: int | None = None,
    size: int | None = None,
    fault: str = "fused",
    bytes_total: int | None = None,
    giant_bytes: int | None = None,
) -> DemoTruth:
    """Write a demo below `root`, which becomes a `precision_data` folder, and return its truth.

    With `ops`, `size` or `bytes_total` a tower of blocks is added to the small network, and the fault moves into its
    middle. The smallest tower has one pair of blocks and 512 elements an activation. An earlier demo is replaced.

    Parameters
    ----------
    root : Path
        A new or empty folder, or one that holds an unchanged demo.
    seed : int
        Seed of all random numbers.
    ops : int, optional
        Number of device ops, approximately.
    size : int, optional
        Elements of a hidden activation.
    fault : str
        Name of one of `device.FAULTS`.
    bytes_total : int, optional
        Bytes of the tensors; alone it makes a graph of about 300 ops. Excludes `size`.
    giant_bytes : int, optional
        Bytes of one more float32 tensor on both sides, which `bytes_total` does not count.

    Raises
    ------
    UsageError
        If `root` holds something else or an option makes no sense.
    OutputError
        If writing fails.
    """
    _check_options(ops, size, bytes_total, giant_bytes)
    chosen = faults.fault_by_name(fault)
    root = Path(root)
    with write_errors(root):
        check_folder(root)
        plan = _plan(ops, size, bytes_total)
        work = root / WORK
        if work.exists():
            shutil.rmtree(work)
        work.mkdir(parents=True)
        try:
            runs = 2 if chosen.with_unfused else chosen.runs
            check_space(root, runs * ((bytes_total or 0) + 2 * (giant_bytes or 0)))
            if chosen.with_unfused:  # as documented, that is debug_0, and debug_1 the other
                _Writer(work, seed, plan, is_unfused=True).write(faults.FAULTS["none"], giant_bytes)
                truth = _Writer(work, seed, plan, folder_number=1).write(chosen, giant_bytes)
            else:
                for number in reversed(range(1, chosen.runs)):
                    _Writer(work, seed, plan, number).write(chosen, giant_bytes)
                truth = _Writer(work, seed, plan).write(chosen, giant_bytes)
            _write_truth(work / TRUTH, truth)
            move_in(work, root)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    paths = {name: root / getattr(truth, name) for name in ("graph_path", "dump_dir", "golden_dir", "fusion_path")}
    return replace(truth, **paths)


def _check_options(ops: int | None, size: int | None, bytes_total: int | None, giant_bytes: int | None) -> None:
    for name, value in (("ops", ops), ("size", size), ("bytes", bytes_total), ("giant bytes", giant_bytes)):
        if value is not None and value < 1:
            raise UsageError("demo.below_1", option=name, value=value)
    if size is not None and bytes_total is not None:
        raise UsageError("demo.size_and_bytes")


# ---- sizes -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Number of pairs of tower blocks, and elements of an activation; no pairs, no tower."""

    pairs: int = 0
    size: int = 0


def _plan(ops: int | None, size: int | None, bytes_total: int | None) -> _Plan:
    if ops is None and size is None and bytes_total is None:
        return _Plan()
    one_ops, one_bytes = _measure(_Plan(pairs=1, size=tower.SMALLEST))
    two_ops, two_bytes = _measure(_Plan(pairs=2, size=tower.SMALLEST))
    pair_ops, pair_bytes = two_ops - one_ops, two_bytes - one_bytes
    pairs = max(1, 1 + round(((ops or _DEFAULT_BYTES_OPS) - one_ops) / pair_ops))
    if bytes_total is None:
        return _Plan(pairs=pairs, size=size or tower.SMALLEST)
    # Bytes grow linearly with the pairs and with the elements of each: a second size gives the slopes.
    larger = 16 * tower.SMALLEST
    one_slope = (_measure(_Plan(pairs=1, size=larger))[1] - one_bytes) / (larger - tower.SMALLEST)
    two_slope = (_measure(_Plan(pairs=2, size=larger))[1] - two_bytes) / (larger - tower.SMALLEST)
    graph_bytes = (one_ops + (pairs - 1) * pair_ops) * _GRAPH_BYTES_PER_OP
    smallest = one_bytes + (pairs - 1) * pair_bytes + graph_bytes
    slope = one_slope + (pairs - 1) * (two_slope - one_slope)
    return _Plan(pairs=pairs, size=tower.SMALLEST + max(0, round((bytes_total - smallest) / slope)))


def _measure(plan: _Plan) -> tuple[int, int]:
    """Device ops, and bytes of tensors, that a plan comes to."""
    counts = [0, 0]

    def emit(step: Step) -> None:
        counts[0] += 1
        counts[1] += sum(array.nbytes for _, _, array in step.goldens if isinstance(array, np.ndarray))
        if step.dumped:
            counts[1] += sum(out_tensor(value).nbytes for value in (*step.inputs, *step.outputs))

    _run(Machine(emit=emit, rng=np.random.default_rng(0)), plan, None)
    return counts[0], counts[1]


def _run(machine: Machine, plan: _Plan, giant_bytes: int | None) -> None:
    """The whole step: data, tower, network, giant tensor, `NetOutput`."""
    shape = tower.features_shape(plan.size) if plan.pairs else None
    images, labels, *features = network.data_source(machine, shape)
    rate = machine.constant(0.01, "GradientDescent/learning_rate")
    results = []
    if features:
        results += tower.build_towers(machine, features[0], rate, plan.pairs)
        del features
    results.append(network.train_step(machine, images, labels, rate))
    if giant_bytes is not None:
        results.append(tower.build_giant(machine, giant_bytes))
    machine.run("NetOutput", "NetOutput", results, (), (), originals=None, dumped=False, kernel=False)


# ---- writing -----------------------------------------------------------------------------------------------


def out_tensor(value: Value) -> OutTensor:
    stored = value.stored
    return OutTensor(
        data=stored.blocks if isinstance(stored, Streamed) else stored,
        dtype=stored.dtype.name,
        shape=stored.shape,
        layout=value.layout,
        origin_shape=value.array.shape,
        origin_layout=value.origin_layout,
        address=value.address,
        original_op=value.golden if value.named else None,
    )


def microseconds(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000_000


class _Writer:
    """A writer that takes steps as they come, so that memory holds only what later steps read."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        plan: _Plan,
        number: int = 0,
        *,
        folder_number: int | None = None,
        is_unfused: bool = False,
    ) -> None:
        """`number` is that of the repeat; of those behind the first only dump and graph are written.

        The run without fusion, `is_unfused`, has no benchmark of its own. `folder_number` is N of npu/debug_N.
        """
        self.folder = folder
        self.plan = plan
        self.seed = seed
        self.number = number
        self.is_unfused = is_unfused
        start = _START + (timedelta(minutes=15) if is_unfused else timedelta(hours=number))
        self.stamp = f"{start:%Y%m%d%H%M%S}"
        self.model_name = model_name(self.stamp)
        leaf = Path("dump", self.stamp, "0", self.model_name, "1/0")
        debug = Path(f"npu/debug_{number if folder_number is None else folder_number}")
        self.dump_dir = debug / leaf
        self.status_dir = Path("overflow", leaf)
        self.graph_dir = debug / "graph"
        self.golden_dir = Path("tf/dump")
        self.fusion_path = Path("fusion/fusion_result.json")
        self.clock = microseconds(start) + 2_000_000
        # The benchmark ran an hour earlier.
        self.golden_clock = microseconds(_START) - 3_600_000_000
        self.jitter = np.random.default_rng([seed, 1, number] if number else [seed, 1])
        self.ops: list[Op] = []
        self.offsets: dict[tuple[str, int], int] = {}
        self.tensors: dict[str, TensorTruth] = {}
        self.counts: Counter[str] = Counter()

    def write(self, fault: faults.Fault, giant_bytes: int | None) -> DemoTruth:
        """Run the network and write everything but the marker; paths of the truth are relative."""
        parts = [self.dump_dir, self.graph_dir]
        parts += [self.golden_dir, Path("fusion")] if not self.number else []
        for part in (*parts, *([self.status_dir] if fault.with_status else [])):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        targets = tower.targets(self.plan.pairs) if self.plan.pairs else faults.TARGETS
        machine = Machine(
            emit=self.take,
            rng=np.random.default_rng(self.seed),
            fault=fault,
            target=targets[fault.target] if fault.target else None,
            is_unfused=self.is_unfused,
            noise=np.random.default_rng([self.seed, 2, self.number]),
        )
        self.machine = machine
        _run(machine, self.plan, giant_bytes)
        graph_path = self.write_graphs()
        fusion_path = self.fusion_path if self.is_unfused or self.number else self.write_fusion()
        culprit = machine.culprit
        return DemoTruth(
            seed=self.seed,
            fault=fault.name,
            culprit=culprit.name if culprit else None,
            culprit_type=culprit.type if culprit else "",
            culprit_passes=culprit.pass_names if culprit else (),
            culprit_originals=(culprit.original_names or ()) if culprit else (),
            model_name=self.model_name,
            graph_path=graph_path,
            dump_dir=self.dump_dir,
            golden_dir=self.golden_dir,
            fusion_path=fusion_path,
            ops=len(self.ops),
            dump_files=self.counts["dump files"],
            golden_files=self.counts["golden files"],
            nbytes=self.counts["bytes"],
            overflowed=tuple(machine.overflowed),
            overwriter=machine.overwriter,
            tensors=self.tensors,
        )

    def take(self, step: Step) -> None:
        """Write one step's files and note its truth."""
        self.ops.append(step.op)
        for value in step.outputs:
            self.offsets[value.op, value.index] = value.address - machine.MEMORY_START
        for name, index, array in step.goldens if not self.number else ():
            self.write_golden(name, index, array)
        if step.dumped:
            self.write_dump(step)

    def write_dump(self, step: Step) -> None:
        """The dump file of a step, and the truth of its tensors."""
        op = step.op
        self.clock += int(self.jitter.integers(20, 600))
        task, stream = self.counts["dump files"], op.stream_id or 0
        name = dump_file_name(op.type, op.name, task, self.clock, stream_id=stream)
        inputs, outputs = map(out_tensor, step.inputs), map(out_tensor, step.outputs)
        path = self.folder / self.dump_dir / name
        self.counts["bytes"] += write_dump(path, op.name, [*inputs], [*outputs], dump_time=self.clock)
        self.counts["dump files"] += 1
        if self.machine.fault.with_status and op.name in self.machine.overflowed[:_STATUSES]:
            self.write_status(path, task, stream)
        for side, values in (("input", step.inputs), ("output", step.outputs)):
            for slot, value in enumerate(values):
                golden = f"{value.golden[0]}:{value.golden[1]}" if value.golden else None
                cosine = value.cosine if value.golden else None
                self.tensors[f"{op.name}:{side}:{slot}"] = TensorTruth(golden=golden, cosine=cosine)

    def write_status(self, path: Path, task: int, stream: int) -> None:
        """Write the files of overflow detection for an op: its dump, and a status file a moment later."""
        folder = self.folder / self.status_dir
        shutil.copyfile(path, folder / path.name)
        # The status file has a task and a stream of its own.
        name = dump_file_name("Opdebug", "Node_OpDebug", task + 1000, self.clock + 3, stream_id=stream + 1)
        payload = status_payload(task, stream)
        status = OutTensor(data=payload, dtype="uint8", shape=(len(payload),))
        self.counts["bytes"] += path.stat().st_size
        self.counts["bytes"] += write_dump(folder / name, "Node_OpDebug", [], [status], dump_time=self.clock + 3)

    def write_golden(self, name: str, index: int, array: Array | Streamed) -> None:
        """A benchmark tensor; of one the tensor of an earlier step is left behind, too, with an older time."""
        if self.is_unfused:
            return  # the other run writes the same
        self.golden_clock += int(self.jitter.integers(20, 600))
        folder = self.folder / self.golden_dir
        path = folder / golden_file_name(name, index, self.golden_clock)
        if isinstance(array, Streamed):
            self.counts["bytes"] += write_golden(path, array.blocks, array.shape, array.dtype.name)
        else:
            self.counts["bytes"] += write_golden(path, array)
            if name == "fc1/Relu":
                older = folder / golden_file_name(name, index, self.golden_clock - 4_000_000)
                self.counts["bytes"] += write_golden(older, array[::-1] * np.float32(0.875))
                self.counts["golden files"] += 1
        self.counts["golden files"] += 1

    def write_graphs(self) -> Path:
        """The computational graph and the files GE leaves around it; returns the former's path."""
        self.counts["bytes"] += write_graphs(
            self.folder / self.graph_dir, self.stamp, self.ops, self.offsets, self.seed
        )
        return graph_path(self.graph_dir)

    def write_fusion(self) -> Path:
        """`fusion_result.json` in its newest form."""
        # A pass that made two ops of one counts once.
        effects = Counter(name for name, _ in {(p, op.original_names) for op in self.ops for p in op.pass_names})
        by_kind: dict[str, dict[str, Any]] = {"graph_fusion": {}, "ub_fusion": {}}
        for name, times in sorted(effects.items()):
            kind = "ub_fusion" if name.startswith("Tbe") else "graph_fusion"
            by_kind[kind][name] = {"effect_times": str(times), "match_times": str(times)}
        path = self.fusion_path
        text = json.dumps({f"session_and_graph_id_0_{GRAPH_ID}": by_kind}, indent=4)
        (self.folder / path).write_text(text + "\n", encoding="utf-8")
        return path


def _write_truth(path: Path, truth: DemoTruth) -> None:
    """The truth as JSON, with relative paths; a NaN cosine becomes null."""
    values: dict[str, Any] = {item.name: getattr(truth, item.name) for item in fields(truth) if item.name != "tensors"}
    values["tensors"] = {
        name: {"golden": t.golden, "cosine": None if t.cosine is None or math.isnan(t.cosine) else t.cosine}
        for name, t in truth.tensors.items()
    }
    path.write_text(json.dumps(values, indent=1, default=str) + "\n", encoding="utf-8")
