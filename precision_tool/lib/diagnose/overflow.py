"""Overflow: what the status files say, and what the dumped values show by themselves.

An op overflowed itself if it gives saturated, Inf or NaN values and is fed none; one that is fed some received them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import PurePath

from precision_tool.lib.compare.data_folder import DataFolder
from precision_tool.lib.compare.named_tensors import read_named, view_of
from precision_tool.lib.compare.run_values import NOTHING, SOURCE_TYPES, KnownValues, OpInput, RunOp, RunValues
from precision_tool.lib.compare.scheduler import THIS_THREAD, Resources
from precision_tool.lib.compare.tensor_figures import extremes_of, limit_of
from precision_tool.lib.data.dump_names import flatten, parse_leaf_path
from precision_tool.lib.data.dump_tree import (
    DECODED_FOLDER,
    StatusFile,
    files_of_task,
    find_status_files,
    leaves_below,
    nothing_below,
)
from precision_tool.lib.data.graph_catalog import FoundOp, RunGraph
from precision_tool.lib.data.kinds import NPY, check_command
from precision_tool.lib.data.neighbourhood import described_inputs
from precision_tool.lib.data.workspace import check_data
from precision_tool.lib.diagnose.headroom import Golden, LossScale, TrailStep, fitting_scale, is_gradient, trail_to
from precision_tool.lib.io.files import check_folder, is_folder, real_path, size_of
from precision_tool.lib.io.opdebug import UnitStatus, read_opdebug
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, PrecisionToolError
from precision_tool.lib.model.comparison import Extremes, Summary
from precision_tool.lib.model.graph import TensorDesc
from precision_tool.lib.model.op_verdict import OpVerdict
from precision_tool.lib.model.run import DumpFile, DumpLeaf
from precision_tool.lib.model.tensor import AnyTensor

#: Called with the bytes of outputs that were looked at since the call before.
Advance = Callable[[int], object]


class Origin(StrEnum):
    """Where the overflow of an op comes from."""

    OWN = "own"
    RECEIVED = "received"
    SOURCE = "source"
    #: The status says so, no value shows it.
    HIDDEN = "hidden"
    #: The benchmark has the same: Inf that a mask is made of, say.
    MEANT = "meant"
    UNKNOWN = "unknown"


class Mode(StrEnum):
    """Overflow mode of the chip."""

    SATURATION = "saturation"
    INF_NAN = "Inf/NaN"
    BOTH = "saturation and Inf/NaN"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotValues:
    """One input or output of an op. `summary` is only there where it was asked for; `reason` says why nothing is."""

    slot: str
    tensor: AnyTensor | None = None
    extremes: Extremes | None = None
    summary: Summary | None = None
    producer: str = ""
    producer_type: str = ""
    reason: Message | None = None
    #: These are the values after the op wrote its output there.
    in_place: bool = False

    @property
    def is_bad(self) -> bool:
        """True if a value is saturated, Inf or NaN."""
        return self.extremes is not None and not self.extremes.is_clean

    @property
    def is_seen(self) -> bool:
        """True if its values were looked at, or are of a type that has no limit."""
        return self.tensor is not None and (self.extremes is not None or limit_of(self.tensor.dtype) is None)


@dataclass(frozen=True, kw_only=True)
class OverflowOp:
    """An op that overflowed, or received an overflow, with what this is known from."""

    name: str
    op_type: str
    origin: Origin
    #: What tells its origin.
    why: Message
    slots: tuple[SlotValues, ...]
    number: int = 0
    timestamp: int = 0
    pass_names: tuple[str, ...] = ()
    original_names: tuple[str, ...] = ()
    is_gradient: bool = False
    paths: tuple[str, ...] = ()
    #: What recomputing says of it, where that was asked for.
    judged: OpVerdict | None = None

    @property
    def computes_wrong(self) -> bool:
        """True if recomputing showed that its correct output has no such values: it is not an overflow."""
        return self.judged is not None and self.judged.is_wrong and not self.judged.overflowed

    @property
    def bad_outputs(self) -> tuple[SlotValues, ...]:
        """The outputs with saturated, Inf or NaN values."""
        return tuple(slot for slot in self.slots if slot.is_bad and slot.slot.startswith("output"))


@dataclass(frozen=True, kw_only=True)
class StatusReport:
    """One status file: its units, and the op it tells of. `op` is None if it was not found; `doubts` say more."""

    file: StatusFile
    output: int
    units: tuple[UnitStatus, ...]
    device: str = ""
    step: str = ""
    op: OverflowOp | None = None
    doubts: tuple[Message, ...] = ()
    notes: tuple[Message, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LeafOverflow:
    """Overflows in the values of one leaf (device, model, step): the bad ops in execution order."""

    leaf: DumpLeaf
    graph: RunGraph | None
    ops: tuple[OverflowOp, ...]
    mode: Mode
    scanned_ops: int
    scanned_bytes: int
    unreadable: Mapping[str, Message] = field(default_factory=dict)
    trail: tuple[TrailStep, ...] = ()
    scale: LossScale | None = None
    #: Ops that were not looked at, because as many bytes as allowed had been read.
    left_out: int = 0

    @property
    def first(self) -> OverflowOp | None:
        """The first op that overflowed itself; without one the first that holds what nothing dumped explains.

        What the benchmark has too is no overflow, nor what follows from it.
        """
        own = next((op for op in self.ops if op.origin is Origin.OWN), None)
        if own is not None:
            return own
        is_meant = any(op.origin is Origin.MEANT for op in self.ops)
        passed = (Origin.MEANT, Origin.RECEIVED) if is_meant else ()
        return next((op for op in self.ops if op.origin not in passed), None)


@dataclass(frozen=True, kw_only=True)
class OverflowReport:
    """Everything that was found. `unreadable` are status files with the reason."""

    statuses: tuple[StatusReport, ...]
    leaves: tuple[LeafOverflow, ...]
    unreadable: tuple[tuple[str, Message], ...] = ()

    @property
    def first(self) -> OverflowOp | None:
        """The first op of all: as the status files say, else the earliest step that the values show."""
        flagged = [
            status.op for status in self.statuses if status.op is not None and any(unit.is_set for unit in status.units)
        ]
        own = [op for op in flagged if op.origin is not Origin.RECEIVED]
        if own or flagged:
            return (own or flagged)[0]
        leaf = self.first_leaf
        return None if leaf is None else leaf.first

    @property
    def first_leaf(self) -> LeafOverflow | None:
        """The leaf of the earliest step, and in it of the earliest time, that shows an overflow."""

        def place(leaf: LeafOverflow) -> tuple[int, int]:
            step = leaf.leaf.step
            return int(step) if step.isdecimal() else 0, leaf.first.timestamp if leaf.first is not None else 0

        return min((leaf for leaf in self.leaves if leaf.first is not None), key=place, default=None)

    @property
    def is_clean(self) -> bool:
        """True if nothing overflowed, as far as could be seen."""
        is_flagged = any(unit.is_set for status in self.statuses for unit in status.units)
        return not is_flagged and self.first_leaf is None


# --- values -----------------------------------------------------------------------------------------------------------


def judge(values: RunValues, op: RunOp, is_flagged: bool = False) -> OverflowOp | None:
    """Return the op with the origin of its overflow; None if its outputs are clean and no status file names it."""
    outputs = []
    for slot, tensor in values.outputs(op):
        name = f"output:{slot}"
        outputs.append(SlotValues(slot=name, tensor=tensor, extremes=values.slot_extremes(op, name, tensor)))
    bad = [slot_values for slot_values in outputs if slot_values.is_bad]
    if not bad and not is_flagged:
        return None
    inputs = [_slot(values, op, op_input) for op_input in values.inputs(op)]
    dump = values.dump(op)
    outputs_seen = (
        dump is not None
        and len(outputs) == len(dump.outputs) > 0
        and all(slot_values.is_seen for slot_values in outputs)
    )
    origin, why = _origin(op, inputs, bad, outputs_seen)
    graph_op = op.op
    return OverflowOp(
        name=op.name,
        op_type=op.op_type,
        origin=origin,
        why=why,
        slots=(*inputs, *outputs),
        number=op.index,
        timestamp=op.timestamp,
        pass_names=() if graph_op is None else graph_op.pass_names,
        original_names=() if graph_op is None else graph_op.original_names or (),
        is_gradient=is_gradient(op),
        paths=() if dump is None else dump.paths,
    )


def _slot(values: RunValues, op: RunOp, op_input: OpInput) -> SlotValues:
    name = f"input:{op_input.slot}"
    return SlotValues(
        slot=name,
        tensor=op_input.tensor,
        extremes=None if op_input.tensor is None else values.slot_extremes(op, name, op_input.tensor),
        producer=op_input.producer,
        producer_type=op_input.producer_type,
        reason=op_input.reason,
        in_place=op_input.in_place,
    )


def _origin(
    op: RunOp, inputs: Sequence[SlotValues], bad: Sequence[SlotValues], outputs_seen: bool
) -> tuple[Origin, Message]:
    """Return where an overflow comes from, and what tells so."""
    received = [slot for slot in inputs if slot.is_bad and not slot.in_place]
    if received:
        worst = max(received, key=lambda slot: slot.extremes.bad if slot.extremes is not None else 0)
        values = bad_values(worst.extremes)
        return Origin.RECEIVED, Message(
            "check.origin.bad_input", slot=worst.slot, values=values, producer=worst.producer
        )
    made = tuple(Message("check.origin.slot", slot=slot.slot, values=bad_values(slot.extremes)) for slot in bad)
    unseen = tuple(slot.slot for slot in inputs if not slot.is_seen)
    in_place = tuple(slot.slot for slot in inputs if slot.is_bad)
    if bad and op.op_type in SOURCE_TYPES:
        return Origin.SOURCE, Message("check.origin.brings_data", made=made)
    if bad and not inputs and op.op is None:
        return Origin.UNKNOWN, Message("check.origin.no_graph", made=made)
    if bad and not inputs:
        return Origin.SOURCE, Message("check.origin.no_input", made=made)
    if inputs and len(unseen) == len(inputs):
        return Origin.UNKNOWN, Message("check.origin.inputs_unseen", made=made)
    if bad:
        return Origin.OWN, Message("check.origin.clean_inputs", made=made, unseen=unseen, in_place=in_place)
    if not inputs:
        return Origin.UNKNOWN, Message("check.origin.nothing_shown")
    if not outputs_seen:
        return Origin.UNKNOWN, Message("check.origin.outputs_unseen", unseen=unseen, in_place=in_place)
    return Origin.HIDDEN, Message("check.origin.inside", unseen=unseen, in_place=in_place)


def bad_values(extremes: Extremes | None) -> Message:
    """Return how many values are saturated, Inf or NaN: `2,624 values of ±65504, 3 NaN (21.4 %)`."""
    if extremes is None:
        return Message("check.values.none")
    is_least = extremes.statistics_only and bool(extremes.saturated)
    return Message(
        "check.values.bad",
        kinds=tuple(_kinds_of_values(extremes)),
        share="" if is_least else share_text(extremes.bad, extremes.count),
    )


def _kinds_of_values(extremes: Extremes) -> Iterator[Message]:
    if extremes.saturated and extremes.statistics_only:
        yield Message("check.values.some_saturated", limit=extremes.limit)
    elif extremes.saturated:
        yield Message("check.values.saturated", count=extremes.saturated, limit=extremes.limit)
    if extremes.inf_count:
        yield Message("check.values.inf", count=extremes.inf_count)
    if extremes.nan_count:
        yield Message("check.values.nan", count=extremes.nan_count)


def share_text(part: int, whole: int) -> str:
    """Return a share in percent, which is never shown as 0 or 100 unless it is."""
    if not whole:
        return "-"
    share = part / whole
    if part and share < 0.0005:
        return "< 0.1 %"
    if part < whole and share >= 0.9995:
        return "> 99.9 %"
    return f"{share:.1%}".replace("%", " %")


def with_summaries(op: OverflowOp, values: RunValues) -> OverflowOp:
    """Return the op with maximum, minimum and mean of its tensors, read as the network sees them."""
    run_op = values.find(op.name)
    graph_op = None if run_op is None else run_op.op

    def summed(slot: SlotValues) -> SlotValues:
        if slot.tensor is None:
            return slot
        summary = values.known_summary(slot.tensor)
        if summary is not None:
            return replace(slot, summary=summary)
        side, _, number = slot.slot.partition(":")
        descs: Mapping[int, TensorDesc] = {}
        if graph_op is not None:
            descs = described_inputs(graph_op) if side == "input" else dict(enumerate(graph_op.output_descs))
        desc = descs.get(int(number))
        layout, shape = (None, None) if desc is None else (desc.origin_layout, desc.origin_shape)
        view = view_of(read_named(slot.tensor, layout, shape), bins=0, first=0)
        summary = None if view.figures is None else view.figures.summary
        return replace(slot, summary=summary, reason=slot.reason or view.reason)

    return replace(op, slots=tuple(map(summed, op.slots)))


def scan_leaf(
    values: RunValues,
    graph: RunGraph | None,
    *,
    limit: int = 3,
    golden: Golden | None = None,
    max_bytes: int | None = None,
    progress: Advance = lambda nbytes: None,
) -> LeafOverflow:
    """Scan the values of a leaf; the first `limit` ops, and the first that overflowed itself, have figures.

    Parameters
    ----------
    values : RunValues
        The tensors of the leaf; what is known of them is not read again.
    graph : RunGraph or None
        The graph of the leaf.
    limit : int
        Number of ops with maximum, minimum and mean of their tensors.
    golden : callable, optional
        Returns the extremes of the benchmark's output, by op and slot.
    max_bytes : int, optional
        End the scan when so many bytes were read.
    progress : callable
        Hears of the bytes of outputs of each op.
    """
    overflowed: list[OverflowOp] = []
    scanned_bytes = read = scanned_ops = 0
    for op in values.ops:
        if max_bytes is not None and read > max_bytes:
            break
        outputs = [tensor for _, tensor in values.outputs(op)]
        nbytes = sum(tensor.nbytes for tensor in outputs)
        read += sum(tensor.nbytes for tensor in outputs if not values.knows(tensor))
        judged = judge(values, op)
        if judged is not None:
            overflowed.append(_compared(judged, op, golden))
        scanned_ops += 1
        scanned_bytes += nbytes
        progress(nbytes)
    result = LeafOverflow(
        leaf=values.leaf,
        graph=graph,
        ops=tuple(overflowed),
        mode=_mode(overflowed),
        scanned_ops=scanned_ops,
        scanned_bytes=scanned_bytes,
        left_out=len(values.ops) - scanned_ops,
    )
    first = result.first
    start = None if first is None else values.find(first.name)
    trail: tuple[TrailStep, ...] = ()
    if start is not None and first is not None and first.bad_outputs:
        trail = trail_to(values, start, int(first.bad_outputs[0].slot.partition(":")[2]), golden)
    shown = {op.name for op in (*overflowed[:limit], first) if op is not None}
    return replace(
        result,
        ops=tuple(with_summaries(op, values) if op.name in shown else op for op in overflowed),
        trail=trail,
        scale=None if result.left_out else fitting_scale(values, start, golden),
        unreadable=values.unreadable,
    )


def _compared(overflowed: OverflowOp, op: RunOp, golden: Golden | None) -> OverflowOp:
    """Return the op, MEANT if the benchmark has as many NaN, Inf and values at the limit."""
    if golden is None or overflowed.origin in (Origin.RECEIVED, Origin.HIDDEN) or not overflowed.bad_outputs:
        return overflowed
    for slot in overflowed.bad_outputs:
        own, other = slot.extremes, golden(op, int(slot.slot.partition(":")[2]))
        if own is None or other is None:
            return overflowed
        same = (own.nan_count, own.inf_count) == (other.nan_count, other.inf_count)
        if not same or (own.saturated and other.largest != own.limit):
            return overflowed
    return replace(overflowed, origin=Origin.MEANT, why=Message("check.origin.in_benchmark", why=overflowed.why))


def _mode(ops: Iterable[OverflowOp]) -> Mode:
    bad = [slot.extremes for op in ops for slot in op.bad_outputs if slot.extremes is not None]
    saturated = any(slot.saturated for slot in bad)
    beyond = any(slot.inf_count or slot.nan_count for slot in bad)
    if saturated and beyond:
        return Mode.BOTH
    return Mode.SATURATION if saturated else Mode.INF_NAN if beyond else Mode.NONE


# --- status files ---


#: The graph of a leaf; None if there is none.
GraphOf = Callable[[DumpLeaf], RunGraph | None]


class StatusReader:
    """Reads status files and finds the ops they tell of."""

    def __init__(
        self,
        root: str,
        other_leaves: Sequence[DumpLeaf],
        graph_of: GraphOf,
        leaves_at: Callable[[str], tuple[DumpLeaf, ...]] = leaves_below,
    ) -> None:
        """`other_leaves` are data dumps, for ops that the overflow detection did not dump; `leaves_at` finds dumps."""
        self._leaves_at = leaves_at
        self._leaves = leaves_at(root)
        self._others = other_leaves
        self._graph_of = graph_of
        self._values: dict[str, RunValues] = {}
        self._leaf_by_folder: dict[str, DumpLeaf | None] = {}
        self._by_task: dict[str, dict[int, list[DumpFile]]] = {}

    def read(self, file: StatusFile, *, detailed: bool = True) -> list[StatusReport]:
        """Return the statuses in a file, one for each task in it; PrecisionToolError if it cannot be read."""
        reports = []
        leaf = self._leaf_of(file.folder)
        for status in read_opdebug(file.path):
            report = StatusReport(
                file=file,
                output=status.output,
                units=status.units,
                device=leaf.device if leaf is not None else "",
                step=leaf.step if leaf is not None else "",
                notes=status.notes,
            )
            tasks: dict[Hashable, list[UnitStatus]] = {}
            for unit in status.units:
                if unit.is_set:
                    task = (unit.model_id, unit.stream_id, unit.task_id, unit.context_id, unit.thread_id)
                    tasks.setdefault(task, []).append(unit)
            reports += [
                self._with_op(replace(report, units=tuple(units)), leaf, units[0], detailed) for units in tasks.values()
            ] or [report]
        return reports

    def _leaf_of(self, folder: str) -> DumpLeaf | None:
        if folder not in self._leaf_by_folder:
            leaves = {real_path(leaf.path): leaf for leaf in (*self._leaves_at(folder), *self._leaves)}
            self._leaf_by_folder[folder] = leaves.get(real_path(folder))
        return self._leaf_by_folder[folder]

    def _with_op(self, report: StatusReport, leaf: DumpLeaf | None, unit: UnitStatus, detailed: bool) -> StatusReport:
        of_model = [
            candidate
            for candidate in self._leaves
            if candidate is not leaf and candidate.model_id == str(unit.model_id)
        ]
        own = [*([leaf] if leaf is not None else []), *of_model]
        for place in (*own, *self._others):
            files = files_of_task(self._of_task(place, unit.task_id), unit.stream_id, unit.context_id, unit.thread_id)
            if not files:
                continue
            # Of several runs of the op the one just before its status was written.
            before = [candidate for candidate in files if candidate.name.timestamp <= report.file.name.timestamp]
            dumped = self._op(place, (before or list(files))[-1], detailed)
            different = len({candidate.name.op_name for candidate in files})
            doubts: list[Message] = []
            if not any(place is candidate for candidate in own):
                doubts.append(Message("check.task.in_data_dump", path=place.path))
            if different > 1:
                doubts.append(Message("check.task.shared", ops=different))
            return replace(report, op=dumped, doubts=tuple(doubts))
        nowhere = Message(
            "check.task.no_dump",
            task=unit.task_id,
            stream=unit.stream_id,
            context=unit.context_id,
            thread=unit.thread_id,
        )
        return replace(report, doubts=(nowhere,))

    def _of_task(self, leaf: DumpLeaf, task: int) -> Sequence[DumpFile]:
        """Return the files of a task number, found once for all statuses: either may be thousands."""
        if leaf.path not in self._by_task:
            by_task = self._by_task[leaf.path] = {}
            for file in leaf.files:
                by_task.setdefault(file.name.task_id, []).append(file)
        return self._by_task[leaf.path].get(task, ())

    def _op(self, leaf: DumpLeaf, file: DumpFile, detailed: bool) -> OverflowOp | None:
        values = self._values.get(leaf.path)
        if values is None:
            graph = self._graph_of(leaf)
            values = self._values[leaf.path] = RunValues(leaf, None if graph is None else graph.file)
        op = values.find(file.name.op_name)
        if op is None:
            return None
        judged = judge(values, op, is_flagged=True)
        return with_summaries(judged, values) if judged is not None and detailed else judged


def read_statuses(
    files: Sequence[StatusFile],
    reader: StatusReader,
    limit: int,
) -> tuple[tuple[StatusReport, ...], tuple[tuple[str, Message], ...]]:
    """Read all status files in time order, the first `limit` with their ops' figures; and list the unreadable ones."""
    reports: list[StatusReport] = []
    unreadable: list[tuple[str, Message]] = []
    for file in files:
        try:
            reports += reader.read(file, detailed=len(reports) < limit)
        except PrecisionToolError as error:
            unreadable.append((file.path, error.advice_message))
    return tuple(reports), tuple(unreadable)


def graph_for(leaf: DumpLeaf, runs: Sequence[RunGraph]) -> RunGraph | None:
    """Return the graph of a leaf among those of the runs: of its model, else the one that names most of its ops."""
    for run in runs:
        if leaf.model_name and any(other.path == leaf.path for other in run.leaves):
            return run
    flat = {flatten(file.name.op_name) for file in leaf.files}

    def named(run: RunGraph) -> int:
        return len(flat & {flatten(op.name) for op in run.file.ops})

    by_name = [run for run in runs if leaf.model_name and leaf.model_name == flatten(run.file.graphs[0].name)]
    best = max(by_name or runs, key=named, default=None)
    return best if best is not None and 2 * named(best) > len(flat) else None


# --- overflow in a data folder ---


def graph_finder(data: DataFolder, graph: str | None) -> GraphOf:
    """Return a function that gives the graph of a leaf; what is wrong with `graph`, which the user named, is raised."""
    runs: tuple[RunGraph, ...] = ()
    try:
        runs = data.run_graphs(graph)
    except PrecisionToolError:
        if graph is not None:
            raise
    is_only = graph is not None and len(runs) == 1

    def graph_of(leaf: DumpLeaf) -> RunGraph | None:
        run = runs[0] if is_only else graph_for(leaf, runs)
        if not leaf.graph or (run is not None and run.file.path == leaf.graph):
            return run
        number = None if run is None else run.number  # each step and rank of msprobe says itself what ran
        return RunGraph(number=number, leaf=leaf, file=data.store.load(leaf.graph), reason=None, leaves=(leaf,))

    return graph_of


def find_overflow(
    data: DataFolder,
    folder: str | None = None,
    graph: str | None = None,
    limit: int = 3,
    resources: Resources = THIS_THREAD,
    *,
    max_bytes: int | None = None,
    cached: Mapping[str, KnownValues] | None = None,
) -> tuple[OverflowReport, str]:
    """Return all about overflow in a folder, or in the data folder, and where status files were looked for.

    Parameters
    ----------
    data : DataFolder
        The data folder; its overflow dump, or else its data dump, is scanned.
    folder : str, optional
        Another folder of dumps.
    graph : str, optional
        The graph of all leaves, in the place of those that lie with the dumps.
    limit : int
        Number of ops with maximum, minimum and mean of their tensors.
    resources : Resources
        Who reads the outputs; progress is counted in bytes.
    max_bytes : int, optional
        Bytes to read of each leaf at most; of leaves that this thread reads alone.
    cached : mapping, optional
        What a comparison knows of the tensors, by the folder of the leaf; they are not read again.

    Raises
    ------
    DataNotFoundError
        There is neither a status file nor a dump.
    """
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
    if folder is None and data.is_part:
        files = tuple(file for file in files if _is_of(file, leaves))
    if not files and not leaves:
        raise _nothing_there(data, folder, root)
    graph_of = graph_finder(data, graph)
    reader = StatusReader(status_root, leaves if folder is None else (), graph_of, data.leaves_at)
    statuses, unreadable = read_statuses(files, reader, limit)
    progress = resources.progress
    total = sum(map(_size, leaves)) if progress is not None else 0
    done = 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress is not None:
            progress(min(done, total), total)

    scanned = []
    with resources.open() as pool:
        for leaf in leaves:
            run, cached_values = graph_of(leaf), (cached or {}).get(leaf.path, NOTHING)
            golden = None if run is None else _golden(data, run, leaf, cached_values)
            values = RunValues(leaf, None if run is None else run.file, cached_values)
            if pool is None:
                scanned.append(
                    scan_leaf(values, run, limit=limit, golden=golden, max_bytes=max_bytes, progress=advance)
                )
            else:
                values.learn((tensor for op in values.ops for _, tensor in values.outputs(op)), pool, advance)
                scanned.append(scan_leaf(values, run, limit=limit, golden=golden))
    return OverflowReport(statuses=statuses, leaves=tuple(scanned), unreadable=unreadable), root


def _is_of(file: StatusFile, leaves: Iterable[DumpLeaf]) -> bool:
    """Return whether a status file is of the device and step of one of these leaves, or tells neither."""
    where = parse_leaf_path(PurePath(file.folder).parts)
    return not where.step or any((where.device, where.step) == (leaf.device, leaf.step) for leaf in leaves)


def _nothing_there(data: DataFolder, folder: str | None, root: str) -> PrecisionToolError:
    """Return the error for a folder, or the data folder, with neither status files nor dumps."""
    check_command("overflow", folder or str(data.workspace.pt_npu_dir))
    if folder is not None:
        data.run_at(folder)  # says what is wrong with it
    default = str(data.workspace.dump_dir(0))
    return nothing_below(DataNotFoundError("diagnose.overflow_no_data", folder=root, dumps=default), root, default)


def op_statuses(data: DataFolder, graph: str | None = None) -> tuple[StatusReport, ...]:
    """Return the ops that the status files of the data folder name; () where there is none."""
    files, root = find_statuses(data, None)
    if not files:
        return ()
    reader = StatusReader(root, _data_leaves(data), graph_finder(data, graph), data.leaves_at)
    return read_statuses(files, reader, limit=0)[0]


def statuses_asked_for(data: DataFolder, folder: str | None) -> tuple[tuple[StatusFile, ...], str]:
    """Find status files as `find_statuses`; DataNotFoundError where there is no such folder, or no data folder."""
    if folder is None:
        check_data(data.workspace.root)
    else:
        check_folder(folder, "dumps")
    return find_statuses(data, folder)


def find_statuses(data: DataFolder, folder: str | None) -> tuple[tuple[StatusFile, ...], str]:
    """Return the status files below a folder, or of the data folder, and where they were found or at least sought."""
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
    """Return the leaves of the run under test."""
    runs = [folder.run for folder in data.run_folders() if folder.run is not None]
    return runs[0].leaves if runs else ()


def _size(leaf: DumpLeaf) -> int:
    """Return bytes of the dump files of a leaf, as far as they can be looked at."""
    return sum(size_of(file.path) for file in leaf.files)


def _golden(data: DataFolder, run: RunGraph, leaf: DumpLeaf, cached: KnownValues) -> Golden:
    """Return the extremes of the benchmark's tensors, which have no limit at 65504; those of a comparison, if any."""
    if cached.rows:
        return lambda op, slot: cached.golden_extremes(op.name, f"output:{slot}")
    own = replace(run, leaf=leaf, leaves=(leaf,))
    graph_of = {id(op): graph for graph in run.file.graphs for op in graph.ops}
    is_first = True

    def extremes(op: RunOp, slot: int) -> Extremes | None:
        nonlocal is_first
        if op.op is None or id(op.op) not in graph_of:
            return None
        try:
            graph_op = FoundOp(run=own, op=op.op, graph=graph_of[id(op.op)])
            pairs = data.pairs_of(graph_op, looks_again=is_first)
            is_first = False
            golden = next((pair.golden for pair in pairs if pair.slot == f"output:{slot}"), None)
            if golden is None or not NPY.has_suffix(golden.path):
                return None
            return extremes_of(golden)
        except PrecisionToolError:
            return None

    return extremes
