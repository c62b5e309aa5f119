"""Two runs of one script: which op computes differently, which only follow, and whose memory was overwritten.

The first op in execution order whose inputs are the same bit by bit and whose outputs are not is the random one. Ops
that are made to be random (dropout masks, random numbers) are told from it. Memory that an op wrote over while it was
still to be read is told by the addresses in one run's dump.
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
from precision_tool.lib.compare.run_values import KEPT_TYPES, SOURCE_TYPES, OpInput, RunOp, RunValues, slot_of
from precision_tool.lib.compare.scheduler import ALL_CORES, Progress, Resources, counting
from precision_tool.lib.compare.tensor_reader import Difference, difference, is_alike, same_range
from precision_tool.lib.data.axis_alignment import align
from precision_tool.lib.data.dump_names import flatten
from precision_tool.lib.data.graph_catalog import RunGraph
from precision_tool.lib.data.kinds import MSPROBE, check_command
from precision_tool.lib.data.matching import Counterpart, same_name
from precision_tool.lib.data.origins import counterparts
from precision_tool.lib.data.sides import golden_leaf
from precision_tool.lib.data.workspace import lies_in
from precision_tool.lib.diagnose.error_shape import UNIT
from precision_tool.lib.diagnose.overflow import GraphOf, graph_finder
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

#: Ops between two others that are named.
_MAX_BETWEEN = 50
#: Ops that are named to be given memory of their own.
_MAX_NAMED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """An op that ran between two others. `writes` tells that its output lies where memory was overwritten.

    `holds` tells that the memory then had the very bytes of that output.
    """

    name: str
    op_type: str
    writes: bool = False
    holds: bool = False


@dataclass(frozen=True, kw_only=True)
class Stomp:
    """An input that is not what its producer put out. Addresses are those of the bytes that differ."""

    run: str
    consumer: str
    consumer_type: str
    slot: int
    producer: str
    producer_type: str
    index: int
    difference: Difference
    nbytes: int
    address: int
    between: tuple[Between, ...]
    ran_between: int

    @property
    def suspects(self) -> tuple[Between, ...]:
        """The ops that wrote there, those whose bytes were found first."""
        return tuple(sorted((op for op in self.between if op.writes), key=lambda op: not op.holds))


def check_memory(values: RunValues, run: str) -> tuple[tuple[Stomp, ...], int]:
    """Compare inputs with the outputs of their producers: the changed ones in execution order, and the number compared.

    Needs a graph. Inputs that the op itself, or one before it that was fed them too, writes in place are no fault.
    """
    stomps = []
    checked = 0
    for op in values.ops:
        dump = values.dump(op)
        if dump is None or dump.threads > 1:  # slices are not what the ops before put out
            continue
        for slot, tensor in sorted(dump.inputs.items()):
            made = values.made_by(op, slot, same_memory=True)
            if made is None or not isinstance(tensor, Tensor):
                continue
            maker, index = made
            put_out = dict(values.outputs(maker)).get(index)
            if not isinstance(put_out, Tensor) or maker.timestamp > op.timestamp:
                continue
            if (put_out.dtype, put_out.nbytes) != (tensor.dtype, tensor.nbytes):
                continue
            try:
                change = difference(put_out, tensor)
            except PrecisionToolError:
                continue  # `unreadable` has it as soon as it is compared
            checked += 1
            if change is not None:
                base = tensor.address or put_out.address
                between = _ops_between(values, op, tensor, made, (base, base + change.first, base + change.last + 1))
                if between is None:
                    continue
                stomps.append(
                    Stomp(
                        run=run,
                        consumer=op.name,
                        consumer_type=op.op_type,
                        slot=slot,
                        producer=maker.name,
                        producer_type=maker.op_type,
                        index=index,
                        difference=change,
                        nbytes=tensor.nbytes,
                        address=base,
                        between=tuple(between[:_MAX_BETWEEN]),
                        ran_between=len(between),
                    )
                )
    return tuple(stomps), checked


def _ops_between(
    values: RunValues, op: RunOp, tensor: Tensor, made: tuple[RunOp, int], memory: tuple[int, int, int]
) -> list[Between] | None:
    """Return the ops that ran between producer and consumer of a changed tensor, those that wrote to it first.

    `memory` is the tensor's address (0: unknown), and the first and last address of the changed bytes. None where the
    change is meant: the consumer or an op before it writes there in place.
    """
    maker, index = made
    base, start, stop = memory
    if base and any(_covers(written, start, stop) for _, written in values.outputs(op)):
        return None  # the op writes its result there; its dump was made afterwards
    between = []
    ran = [candidate for candidate in values.ops if maker.timestamp < candidate.timestamp < op.timestamp]
    for other in sorted(ran, key=lambda candidate: candidate.timestamp):
        writers = [written for _, written in values.outputs(other) if base and _covers(written, start, stop)]
        if writers and (_reads(values, other, maker, index) or _updates_kept(values, other, start, stop)):
            return None  # an update in place, which those that read it later are meant to see
        holds = any(_holds(written, tensor, base, start, stop) for written in writers)
        between.append(Between(name=other.name, op_type=other.op_type, writes=bool(writers), holds=holds))
    return sorted(between, key=lambda other: not other.writes)


def memory_advice(stomps: Sequence[Stomp]) -> Message | None:
    """Return what to do about memory that was overwritten; None where none was."""
    if not stomps:
        return None
    names = [name for stomp in stomps for name in (stomp.producer, *(each.name for each in stomp.suspects[:1]))]
    ops = ",".join(list(dict.fromkeys(names))[:_MAX_NAMED])
    if any(stomp.suspects for stomp in stomps):
        return Message("check.memory.reused", ops=ops)
    return Message("check.memory.no_writer", ops=ops)


def _covers(tensor: AnyTensor, start: int, stop: int) -> bool:
    """Return whether a tensor's memory holds any byte of a range."""
    if not isinstance(tensor, Tensor) or not tensor.address or tensor.parts:  # parts lie apart
        return False
    return tensor.address < stop and start < tensor.address + tensor.nbytes


def _reads(values: RunValues, op: RunOp, maker: RunOp, index: int) -> bool:
    """Return whether an op reads this output."""
    inputs = values.inputs(op)
    return any(values.made_by(op, op_input.slot, same_memory=True) == (maker, index) for op_input in inputs)


def _updates_kept(values: RunValues, op: RunOp, start: int, stop: int) -> bool:
    """Return whether an op updates a variable at that address: the output of an earlier Assign is that variable too."""
    return any(
        op_input.in_place
        and op_input.producer_type in KEPT_TYPES
        and op_input.tensor is not None
        and _covers(op_input.tensor, start, stop)
        for op_input in values.inputs(op)
    )


def _holds(writer: AnyTensor, read: Tensor, base: int, start: int, stop: int) -> bool:
    """Return whether the bytes read are those of the writer, in the part of the range that it covers."""
    assert isinstance(writer, Tensor)
    begin, end = max(start, writer.address), min(stop, writer.address + writer.nbytes)
    try:
        return same_range(read, begin - base, writer, begin - writer.address, end - begin)
    except PrecisionToolError:
        return False


# --- ops that compute differently ---


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
    #: Whether the ops are calls that msprobe recorded, whose memory tells nothing.
    is_recorded: bool = False

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
        figures, other_figures = replace(left, path=""), replace(right, path="")
        same = figures == other_figures or repr(figures) == repr(other_figures)  # where NaN equals NaN
        state = State.EQUAL if same else State.DIFFERENT
        return replace(base, state=state, reason=Message("check.random.by_statistics"))
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
    """Return the kind of an op, and from what it is known."""
    outputs = [slot for slot in slots if slot.slot.startswith("output")]
    differing = [slot for slot in outputs if slot.state is State.DIFFERENT]
    if differing:
        return _kind_of_differing(op, [slot for slot in slots if slot.slot.startswith("input")], differing)
    if not outputs:
        return Kind.NOT_COMPARED, Message("check.random.no_output")
    unread = next((slot for slot in outputs if slot.state is State.UNKNOWN), None)
    if unread is None:
        return Kind.EQUAL, None
    reason = unread.reason or ""
    return Kind.NOT_COMPARED, Message("check.random.output_not_compared", slot=unread.slot, reason=reason)


def _kind_of_differing(
    op: RunOp, inputs: Sequence[SlotPair], outputs: Sequence[SlotPair]
) -> tuple[Kind, Message | None]:
    """Return the kind of an op of which these outputs differ."""
    before = [slot for slot in inputs if not slot.in_place]
    unknown = tuple(slot.slot for slot in before if slot.state is State.UNKNOWN)
    names = tuple(slot.slot for slot in outputs)
    other_input = next((slot for slot in before if slot.state is State.DIFFERENT), None)
    if other_input is not None:
        message = Message("check.random.input_differs", slot=other_input.slot, producer=other_input.producer)
        return Kind.FOLLOWER, message
    if is_random_type(op.op_type):
        return Kind.EXPECTED, Message("check.random.by_design", op_type=op.op_type)
    if op.op_type in SOURCE_TYPES:
        return Kind.DATA, Message("check.random.other_data", outputs=names)
    if not before and op.op is not None and not any(edge is not None for edge in op.op.inputs):
        return Kind.DATA, Message("check.random.no_producer", outputs=names)
    if not inputs:
        return Kind.UNSURE, Message("check.random.inputs_not_dumped", outputs=names)
    if not before:
        return Kind.UNSURE, Message("check.random.written_over", outputs=names)
    if len(unknown) == len(before):
        return Kind.UNSURE, Message("check.random.inputs_not_compared", outputs=names)
    return Kind.RANDOM, Message("check.random.own", outputs=names, cause=_extent(outputs), unknown=unknown)


def _extent(outputs: Sequence[SlotPair]) -> Message:
    """Return what the form, or else the size, of the difference says."""
    for slot in outputs:
        left, right = slot.left, slot.right
        if left is not None and right is not None and (left.dtype, left.shape) != (right.dtype, right.shape):
            return Message("check.random.output_form", slot=slot.slot, form=_other_form(left, right))
    if all(slot.metrics is None for slot in outputs):
        return Message("check.random.size_unknown")
    is_rounding = all(map(_is_rounding, outputs))
    return Message("check.random.rounding") if is_rounding else Message("check.random.more_than_rounding")


def _is_rounding(slot: SlotPair) -> bool:
    unit = UNIT.get(slot.left.dtype if slot.left is not None else "")
    if slot.metrics is None or unit is None or slot.metrics.non_finite_mismatches:
        return False
    return slot.metrics.relative_euclidean_distance <= _ROUNDINGS * unit


# --- dumps and graphs of the two runs ---


def find_random(
    data: DataFolder,
    left: str | None = None,
    right: str | None = None,
    graph: str | None = None,
    resources: Resources = ALL_CORES,
) -> list[RandomReport]:
    """Compare two runs of the same script.

    Parameters
    ----------
    data : DataFolder
        The data folder, whose npu/debug_0 and npu/debug_1 are compared.
    left, right : str, optional
        Dump folders in their place.
    graph : str, optional
        The graph of all leaves, in the place of those that lie with the dumps.
    resources : Resources
        Who measures what differs; progress counts ops, then tensors.

    Returns
    -------
    list of RandomReport
        One for each device, model and step that both runs have; of the first run alone without a second.

    Raises
    ------
    DataNotFoundError
        There is no dump at all, or none that both runs have.
    """
    if left is None:
        left = data.default_npu()
    check_command("random", left, right)
    run = data.run_at(left)
    if right is None:
        # The other of the two runs, whichever was named.
        space, place = data.workspace, posixpath.abspath(left)
        # A dump of msprobe lies in no folder of a run.
        own = {number: posixpath.abspath(str(space.debug_dir(number))) for number in (1, 0)}
        others = [number for number, folder in own.items() if not lies_in(place, folder)]
        others = [number for number in others if posixpath.abspath(str(space.dump_dir(number))) != place]
        right = next((str(space.dump_dir(number)) for number in others if is_folder(space.dump_dir(number))), None)
    if right is None and MSPROBE.lies_at(left):
        raise DataNotFoundError.of(left, "diagnose.no_second_msprobe")
    other = None if right is None else data.run_at(right)
    graph_of = graph_finder(data, graph)
    if other is None:
        data.workspace.notes.append(Message("note.diagnose.no_second_run", folder=str(data.workspace.dump_dir(1))))
        return [_check_leaf(leaf, graph_of(leaf)) for leaf in run.leaves]
    reports = []
    for position, leaf in enumerate(run.leaves):
        try:
            counterpart = golden_leaf(other, leaf, position, len(run.leaves))
        except DataNotFoundError as error:
            data.workspace.notes.append(Message("note.diagnose.not_compared", reason=error.full_message))
            continue
        reports.append(_compare_leaf(leaf, counterpart, graph_of, resources))
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


def _compare_leaf(leaf: DumpLeaf, counterpart: DumpLeaf, graph_of: GraphOf, resources: Resources) -> RandomReport:
    run, other_run = graph_of(leaf), graph_of(counterpart)
    file = None if run is None else run.file
    # The other run's own graph, as the compiler may have numbered its ops in another way.
    other_file = file if other_run is None else other_run.file
    left, right = RunValues(leaf, file), RunValues(counterpart, other_file)
    counterpart_of: Counterpart = same_name
    left_only, right_only = [], []
    if file is not None and other_file is not None and other_file is not file:
        counterpart_of = counterparts(file, other_file)
        names, other_names = ({flatten(op.name): op.name for op in graph.ops} for graph in (file, other_file))
        matched = {flat: counterpart_of(flat) for flat in names}
        in_both = {*matched.values()}
        left_only = [names[flat] for flat, other in matched.items() if other not in other_names]
        right_only = [name for flat, name in other_names.items() if flat not in in_both]
    report = compare_runs(
        left, right, workers=resources.workers, executor=resources.executor, progress=resources.progress,
        counterpart=counterpart_of,
    )  # fmt: skip
    if file is not None and file.framework:  # that calls are connected is known from equal tensors alone
        return replace(report, graph=file.path, is_recorded=True)
    stomps, checked = check_memory(left, _name(leaf, run))
    other_stomps, other_checked = check_memory(right, _name(counterpart, other_run))
    return replace(
        report,
        left_only=tuple(dict.fromkeys((*report.left_only, *left_only))),
        right_only=tuple(dict.fromkeys((*report.right_only, *right_only))),
        graph=file.path if file is not None else "",
        stomps=(*stomps, *other_stomps),
        memory_checked=checked + other_checked,
    )


def _name(leaf: DumpLeaf, run: RunGraph | None) -> str:
    """Return the name of a run: debug_N where it is one, else its folder."""
    is_own = run is not None and run.number is not None and any(other.path == leaf.path for other in run.leaves)
    return f"debug_{run.number}" if is_own and run is not None else leaf.path
