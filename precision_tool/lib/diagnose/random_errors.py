"""Two runs of one script: which op computes differently, which only follow, and whose memory was overwritten.

The first op in execution order whose inputs are the same bit by bit and whose outputs are not is the random one. Ops
that are made to be random (dropout masks, random numbers) are told from it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from enum import StrEnum

from precision_tool.lib.compare.data_folder import DataFolder
from precision_tool.lib.compare.pairwise import compare_pairs
from precision_tool.lib.compare.run_values import SOURCE_TYPES, OpInput, RunOp, RunValues, slot_of
from precision_tool.lib.compare.scheduler import ALL_CORES, Progress, Resources, counting
from precision_tool.lib.compare.tensor_reader import is_alike, same_range
from precision_tool.lib.data.axis_alignment import align
from precision_tool.lib.data.dump_names import flatten
from precision_tool.lib.data.graph_catalog import RunGraph
from precision_tool.lib.data.kinds import check_command
from precision_tool.lib.data.matching import Counterpart, same_name
from precision_tool.lib.data.origins import counterparts
from precision_tool.lib.data.sides import default_npu, golden_leaf
from precision_tool.lib.data.workspace import lies_in
from precision_tool.lib.diagnose.memory_reuse import Stomp, check_memory
from precision_tool.lib.diagnose.overflow import Graphs
from precision_tool.lib.io import data_types
from precision_tool.lib.io.files import is_folder
from precision_tool.lib.io.layouts import LayoutError
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, PrecisionToolError
from precision_tool.lib.model.comparison import Metrics, Pair, Status
from precision_tool.lib.model.op_verdict import OpVerdict
from precision_tool.lib.model.run import DumpLeaf
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.tensor import AnyTensor, OpDump, Tensor, TensorStatistics

#: Types of ops that are random by design: TensorFlow's, PyTorch's and GE's names.
_RANDOM = re.compile(
    r"Random|Randperm|DropOutGenMask|Dropout|TruncatedNormal|Multinomial|Bernoulli|CandidateSampler|GenBitMask"
    r"|^Stateful(?:StandardNormal|Uniform)|NonDeterministicInts|^Rng|SeedGenerator|SampleDistortedBoundingBox"
    r"|^Fractional(?:Max|Avg)Pool|^ShuffleDataset|SimThreadExponential"
    r"|^(?:Inplace)?(?:Normal|Uniform|Exponential|Geometric|Cauchy|LogNormal)$"
)
#: These use random numbers that they are fed, so that the same inputs give the same outputs.
_FED = re.compile(r"Grad|Do(?:Byte)?Mask")
#: How far two sums of the same numbers in another order may be apart, in roundings of their type.
_ROUNDINGS = 16
_EPSILON = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


class State(StrEnum):
    """State of a tensor of one run against that of the other."""

    EQUAL = "equal"
    #: The bits differ in padding or in the sign of zero only.
    SAME_VALUES = "same values"
    DIFFERENT = "different"
    UNKNOWN = "unknown"


class Kind(StrEnum):
    """Kind of an op."""

    EQUAL = "equal"
    RANDOM = "random"
    EXPECTED = "expected"
    FOLLOWER = "follower"
    #: Nothing feeds it: the runs were fed different data.
    DATA = "data"
    #: Its outputs differ, and what it was fed is not known.
    UNSURE = "unsure"
    #: No output differs, but not every one could be compared.
    NOT_COMPARED = "not_compared"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPair:
    """One tensor in both runs. `in_place` tells of an input that is only known after the op wrote over it."""

    slot: str
    state: State
    left: AnyTensor | None = None
    right: AnyTensor | None = None
    metrics: Metrics | None = None
    reason: Message | None = None
    producer: str = ""
    in_place: bool = False


@dataclass(frozen=True, kw_only=True)
class RandomOp:
    """One op that ran in both runs, and from what its kind is known; None of an op that is the same in both."""

    name: str
    op_type: str
    kind: Kind
    slots: tuple[SlotPair, ...]
    why: Message | None = None
    number: int = 0
    pass_names: tuple[str, ...] = ()
    original_names: tuple[str, ...] = ()
    #: What recomputing says of it in the first run and in the other, where that was asked for.
    judged: tuple[OpVerdict, ...] = ()

    @property
    def outputs(self) -> tuple[SlotPair, ...]:
        """Its outputs."""
        return tuple(slot for slot in self.slots if slot.slot.startswith("output"))


@dataclass(frozen=True, kw_only=True)
class RandomReport:
    """Comparison of two leaves: every op in execution order, and the memory that was overwritten."""

    left: str
    right: str
    graph: str
    ops: tuple[RandomOp, ...]
    stomps: tuple[Stomp, ...]
    #: Ops that only one run has, in its dump or its graph.
    left_only: tuple[str, ...] = ()
    right_only: tuple[str, ...] = ()
    #: Ops of one name and two types.
    other_types: tuple[str, ...] = ()
    unreadable: tuple[Message, ...] = ()
    #: Inputs whose producer's output was there to be compared.
    memory_checked: int = 0

    def of(self, *kinds: Kind) -> tuple[RandomOp, ...]:
        """Return the ops of some kinds, in execution order."""
        return tuple(op for op in self.ops if op.kind in kinds)

    @property
    def first(self) -> RandomOp | None:
        """The first op that computes differently and should not."""
        return next(iter(self.of(Kind.RANDOM)), None)

    @property
    def is_pair(self) -> bool:
        """True for two runs of one script, compiled alike: only what these differ by is noise."""
        return bool(self.right) and not (self.left_only or self.right_only or self.other_types)

    @property
    def is_clean(self) -> bool:
        """True if nothing differs but what is made to be random and what follows from it, and memory was kept.

        Nothing can be said so of two runs that are no pair.
        """
        if self.right and not self.is_pair:
            return False
        return not self.stomps and not self.of(Kind.RANDOM, Kind.DATA, Kind.UNSURE)


def is_random_type(op_type: str) -> bool:
    """Return True for types of ops that are random by design."""
    return _RANDOM.search(op_type) is not None and _FED.search(op_type) is None


# --- two runs ---------------------------------------------------------------------------------------------------------


def compare_runs(
    left: RunValues,
    right: RunValues,
    *,
    workers: int = 0,
    executor: Executor | None = None,
    progress: Progress | None = None,
    counterpart: Counterpart = same_name,
) -> RandomReport:
    """Compare every op of both leaves bit by bit, and with metrics where bits differ; `progress` counts both in turn.

    `counterpart` tells what the ops are called in the other run that the compiler put in.
    """
    pairs: list[tuple[RunOp, list[SlotPair]]] = []
    left_only: list[str] = []
    matched = {counterpart(op.flat) for op in left.ops}
    right_only = [op.name for op in right.ops if op.flat not in matched]
    other_types: list[str] = []
    count_op = counting(progress, "ops")
    for number, op in enumerate(left.ops):
        if count_op is not None:
            count_op(number, len(left.ops))
        flat = counterpart(op.flat)
        other = None if flat is None else right.find(flat)
        if other is None:
            left_only.append(op.name)
            continue
        if other.op_type != op.op_type:
            other_types.append(op.name)
        pairs.append((op, list(_slots(left, op, right, other))))
    measured = _measured(pairs, workers, executor, progress)
    ops = tuple(_judged(op, slots) for (op, _), slots in zip(pairs, measured, strict=True))
    unreadable = tuple(dict.fromkeys((*left.unreadable.values(), *right.unreadable.values())))
    return RandomReport(
        left=left.leaf.path,
        right=right.leaf.path,
        graph="",
        ops=ops,
        stomps=(),
        left_only=tuple(left_only),
        right_only=tuple(right_only),
        other_types=tuple(other_types),
        unreadable=unreadable,
    )


def _slots(left: RunValues, op: RunOp, right: RunValues, other: RunOp) -> Iterator[SlotPair]:
    """Return the tensors of an op that the left run has, bit by bit."""
    outputs = dict(left.outputs(op))
    slices = (left.slices(op), right.slices(other))
    others = {op_input.slot: op_input for op_input in right.inputs(other)}
    for op_input in left.inputs(op):
        pair = _slot_pair(f"input:{op_input.slot}", op_input, others.get(op_input.slot), slices)
        yield replace(pair, producer=op_input.producer, in_place=op_input.in_place)
    other_outputs = dict(right.outputs(other))
    for slot, tensor in outputs.items():
        ours, counterpart = OpInput(slot=slot, tensor=tensor), OpInput(slot=slot, tensor=other_outputs.get(slot))
        yield _slot_pair(f"output:{slot}", ours, counterpart, slices)


def _slot_pair(
    slot: str, ours: OpInput, other: OpInput | None, slices: tuple[dict[int, OpDump], dict[int, OpDump]]
) -> SlotPair:
    """Return both runs' tensors; of an op in slices those of the first thread whose slices differ."""
    left, right = slices
    if not any(dump.path == getattr(ours.tensor, "path", "") for dump in left.values()):
        return _compared(slot, ours, other)
    pairs = []
    for thread in sorted({*left, *right}):
        parts = [slot_of(run[thread], slot) if thread in run else None for run in (left, right)]
        pair = _compared(slot, OpInput(slot=ours.slot, tensor=parts[0]), OpInput(slot=ours.slot, tensor=parts[1]))
        pairs.append(replace(pair, reason=pair.reason or Message("check.random.thread", thread=thread)))
    order = (State.DIFFERENT, State.UNKNOWN, State.EQUAL)
    return min(pairs, key=lambda pair: order.index(pair.state))


def _compared(slot: str, ours: OpInput, other: OpInput | None) -> SlotPair:
    left, right = ours.tensor, None if other is None else other.tensor
    if left is None or right is None:
        why = ours.reason or (None if other is None else other.reason) or Message("check.random.one_run_only")
        return SlotPair(slot=slot, state=State.UNKNOWN, left=left, right=right, reason=why)
    base = SlotPair(slot=slot, state=State.DIFFERENT, left=left, right=right)
    if isinstance(left, TensorStatistics) or isinstance(right, TensorStatistics):
        if not isinstance(left, TensorStatistics) or not isinstance(right, TensorStatistics):
            return replace(base, state=State.UNKNOWN, reason=Message("check.random.values_in_one_run"))
        same = replace(left, path="") == replace(right, path="") or _same_statistics(left, right)
        return replace(
            base, state=State.EQUAL if same else State.DIFFERENT, reason=Message("check.random.by_statistics")
        )
    if not is_alike(left, right):
        return replace(base, reason=_other_form(left, right))
    try:
        return replace(base, state=State.EQUAL if same_range(left, 0, right, 0, left.nbytes) else State.DIFFERENT)
    except PrecisionToolError as error:
        return replace(base, state=State.UNKNOWN, reason=error.advice_message)


def _other_form(left: AnyTensor, right: AnyTensor) -> Message:
    return Message(
        "check.random.other_form",
        left_dtype=left.dtype,
        left_shape=str(list(left.shape)),
        right_dtype=right.dtype,
        right_shape=str(list(right.shape)),
    )


def _same_statistics(left: TensorStatistics, right: TensorStatistics) -> bool:
    """Return whether statistics are equal, where NaN equals NaN."""
    return repr(replace(left, path="")) == repr(replace(right, path=""))


def _measured(
    pairs: Sequence[tuple[RunOp, list[SlotPair]]], workers: int, executor: Executor | None, progress: Progress | None
) -> list[list[SlotPair]]:
    """Return the slots with the metrics of those that differ."""
    result = [list(slots) for _, slots in pairs]
    places: list[tuple[int, int]] = []
    work: list[Pair] = []
    for at, (op, slots) in enumerate(pairs):
        for number, slot in enumerate(slots):
            if slot.state is not State.DIFFERENT:
                continue
            pair = _pair(op, slot)
            if isinstance(pair, Message):
                result[at][number] = replace(slot, reason=slot.reason or pair)
            else:
                places.append((at, number))
                work.append(pair)
    rows = compare_pairs(work, Resources(workers, executor, progress))
    for (at, number), row in zip(places, rows, strict=True):
        result[at][number] = _with_metrics(result[at][number], row)
    return result


def _pair(op: RunOp, slot: SlotPair) -> Pair | Message:
    left, right = slot.left, slot.right
    if not isinstance(left, Tensor) or not isinstance(right, Tensor):
        return Message("check.random.only_statistics")
    if not all(data_types.BY_NAME[tensor.dtype].is_numeric for tensor in (left, right)):
        return Message("reason.no_numbers", dtype=left.dtype)
    try:
        alignment = align(left, right)
    except LayoutError as error:
        return error.reason
    return Pair(
        index=op.index,
        op_name=op.name,
        op_type=op.op_type,
        npu_ops=(op.name,),
        golden_ops=(op.name,),
        slot=slot.slot,
        npu=left,
        golden=right,
        npu_plan=alignment.npu_plan,
        golden_plan=alignment.golden_plan,
        shape=alignment.shape,
        error_shape=alignment.npu_plan.logical_shape,
    )


def _with_metrics(slot: SlotPair, row: Row) -> SlotPair:
    if row.metrics is None:
        unread = row.pair.status is Status.UNREADABLE
        return replace(
            slot,
            state=State.UNKNOWN if unread else slot.state,
            reason=slot.reason or row.reason,
        )
    equal = not row.metrics.max_absolute_error and not row.metrics.non_finite_mismatches
    same = (
        equal and isinstance(slot.left, Tensor) and isinstance(slot.right, Tensor) and is_alike(slot.left, slot.right)
    )
    return replace(slot, metrics=row.metrics, state=State.SAME_VALUES if same else State.DIFFERENT)


def _judged(op: RunOp, slots: Sequence[SlotPair]) -> RandomOp:
    kind, why = _kind(op, slots)
    return RandomOp(
        name=op.name,
        op_type=op.op_type,
        kind=kind,
        slots=tuple(slots),
        why=why,
        number=op.index,
        pass_names=() if op.op is None else op.op.pass_names,
        original_names=() if op.op is None else op.op.original_names or (),
    )


def _kind(op: RunOp, slots: Sequence[SlotPair]) -> tuple[Kind, Message | None]:
    put_out = [slot for slot in slots if slot.slot.startswith("output")]
    outputs = [slot for slot in put_out if slot.state is State.DIFFERENT]
    if not outputs:
        unread = next((slot for slot in put_out if slot.state is State.UNKNOWN), None)
        if unread is not None:
            return Kind.NOT_COMPARED, Message(
                "check.random.output_not_compared", slot=unread.slot, reason=unread.reason or ""
            )
        return (Kind.EQUAL, None) if put_out else (Kind.NOT_COMPARED, Message("check.random.no_output"))
    all_inputs = [slot for slot in slots if slot.slot.startswith("input")]
    inputs = [slot for slot in all_inputs if not slot.in_place]
    differing = [slot for slot in inputs if slot.state is State.DIFFERENT]
    unknown = tuple(slot.slot for slot in inputs if slot.state is State.UNKNOWN)
    names = tuple(slot.slot for slot in outputs)
    if differing:
        return Kind.FOLLOWER, Message(
            "check.random.input_differs", slot=differing[0].slot, producer=differing[0].producer
        )
    if is_random_type(op.op_type):
        return Kind.EXPECTED, Message("check.random.by_design", op_type=op.op_type)
    if op.op_type in SOURCE_TYPES:
        return Kind.DATA, Message("check.random.other_data", outputs=names)
    if not inputs:
        if op.op is not None and not any(edge is not None for edge in op.op.inputs):
            return Kind.DATA, Message("check.random.no_producer", outputs=names)
        if all_inputs:
            return Kind.UNSURE, Message("check.random.written_over", outputs=names)
        return Kind.UNSURE, Message("check.random.inputs_not_dumped", outputs=names)
    if len(unknown) == len(inputs):
        return Kind.UNSURE, Message("check.random.inputs_not_compared", outputs=names)
    for slot in outputs:
        left, right = slot.left, slot.right
        if left is not None and right is not None and (left.dtype, left.shape) != (right.dtype, right.shape):
            form = Message("check.random.output_form", slot=slot.slot, form=_other_form(left, right))
            return Kind.RANDOM, Message("check.random.own", outputs=names, cause=form, unknown=unknown)
    return Kind.RANDOM, Message("check.random.own", outputs=names, cause=_size(outputs), unknown=unknown)


def _size(outputs: Sequence[SlotPair]) -> Message:
    """Return what the size of the difference says."""
    if all(slot.metrics is None for slot in outputs):
        return Message("check.random.size_unknown")
    small = []
    for slot in outputs:
        epsilon = _EPSILON.get(slot.left.dtype if slot.left is not None else "")
        if slot.metrics is None or epsilon is None or slot.metrics.non_finite_mismatches:
            small.append(False)
        else:
            small.append(slot.metrics.relative_euclidean_distance <= _ROUNDINGS * epsilon)
    return Message("check.random.rounding") if all(small) else Message("check.random.more_than_rounding")


# --- dumps and graphs of the two runs ---


def find_random(
    data: DataFolder,
    left: str | None = None,
    right: str | None = None,
    graph: str | None = None,
    resources: Resources = ALL_CORES,
) -> list[RandomReport]:
    """Compare two runs of the same script (npu/debug_0 and debug_1).

    One report for each device, model and step that both runs have; of the first run alone without a second.

    DataNotFoundError where there is no dump at all.
    """
    if left is None:
        left = default_npu(data.workspace)
    check_command("random", left, right)
    run = data.run_at(left)
    if right is None:
        # The other of the two runs, whichever was named.
        space, place = data.workspace, posixpath.abspath(left)
        others = [number for number in (1, 0) if not lies_in(place, posixpath.abspath(space.debug_dir(number)))]
        right = next((str(space.dump_dir(number)) for number in others if is_folder(space.dump_dir(number))), None)
    other = None if right is None else data.run_at(right)
    graphs = Graphs(data, graph)
    if other is None:
        data.workspace.notes.append(Message("note.diagnose.no_second_run", folder=str(data.workspace.dump_dir(1))))
        return [_check_leaf(leaf, graphs.of(leaf)) for leaf in run.leaves]
    reports = []
    for position, leaf in enumerate(run.leaves):
        try:
            counterpart = golden_leaf(other, leaf, position, len(run.leaves))
        except DataNotFoundError as error:
            data.workspace.notes.append(Message("note.diagnose.not_compared", reason=error.full_message))
            continue
        if counterpart.path == leaf.path:
            raise DataNotFoundError.of(leaf.path, "diagnose.same_folder")
        reports.append(_compare_leaf(leaf, counterpart, graphs, resources))
    if not reports:
        raise DataNotFoundError("diagnose.nothing_in_common", left=left, right=right)
    return reports


def _check_leaf(leaf: DumpLeaf, run: RunGraph | None) -> RandomReport:
    """Check the memory of a leaf that has no counterpart in another run."""
    values = RunValues(leaf, None if run is None else run.file)
    stomps, checked = check_memory(values, _name(leaf, run))
    return RandomReport(
        left=leaf.path,
        right="",
        graph="" if run is None else run.file.path,
        ops=(),
        stomps=stomps,
        memory_checked=checked,
        unreadable=tuple(values.unreadable.values()),
    )


def _compare_leaf(leaf: DumpLeaf, counterpart: DumpLeaf, graphs: Graphs, resources: Resources) -> RandomReport:
    run = graphs.of(leaf)
    file = None if run is None else run.file
    left = RunValues(leaf, file)
    # The other run's own graph, as the compiler may have numbered its ops in another way.
    other_graph = graphs.of(counterpart)
    right = RunValues(counterpart, other_graph.file if other_graph is not None else file)
    counterpart_of: Counterpart = same_name
    if run is not None and other_graph is not None and other_graph.file is not file:
        counterpart_of = counterparts(run.file, other_graph.file)
    ops = compare_runs(
        left, right, workers=resources.workers, executor=resources.executor, progress=resources.progress,
        counterpart=counterpart_of,
    )  # fmt: skip
    stomps, checked = check_memory(left, _name(leaf, run))
    others, others_checked = check_memory(right, _name(counterpart, other_graph))
    if run is not None and other_graph is not None and other_graph.file is not file:
        names, other_names = ({flatten(op.name): op.name for op in graph.file.ops} for graph in (run, other_graph))
        matched = {flat: counterpart_of(flat) for flat in names}
        in_both = set(matched.values())
        alone = [names[flat] for flat, there in matched.items() if there not in other_names]
        others_alone = [other_names[flat] for flat in other_names if flat not in in_both]
        ops = replace(
            ops,
            left_only=tuple(dict.fromkeys((*ops.left_only, *alone))),
            right_only=tuple(dict.fromkeys((*ops.right_only, *others_alone))),
        )
    return replace(
        ops,
        graph=file.path if file is not None else "",
        stomps=(*stomps, *others),
        memory_checked=checked + others_checked,
    )


def _name(leaf: DumpLeaf, run: RunGraph | None) -> str:
    """Return the name of a run: debug_N where it is one, else its folder."""
    is_own = run is not None and run.number is not None and any(other.path == leaf.path for other in run.leaves)
    return f"debug_{run.number}" if is_own and run is not None else leaf.path
