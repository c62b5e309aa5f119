"""Votes of replicas: what one rank has of a tensor that all must have alike, and on what they do not agree."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from math import prod
from sys import intern

import numpy as np
import numpy.typing as npt

from precision_tool.lib.compare.scheduler import map_tasks
from precision_tool.lib.compare.tensor_figures import open_reader
from precision_tool.lib.compare.tensor_reader import TensorReader
from precision_tool.lib.data.dump_names import flatten
from precision_tool.lib.data.dumped_ops import DumpedOp, DumpIndex, Found
from precision_tool.lib.data.msprobe_ops import VARIABLE
from precision_tool.lib.diagnose.error_shape import UNIT
from precision_tool.lib.diagnose.recorded_collectives import PREFIX, SAME_FOR_ALL, Collective, Exchanged, exchanged_by
from precision_tool.lib.diagnose.update_inputs import fed_by, numbers_of, summed_by
from precision_tool.lib.io import data_types, layouts
from precision_tool.lib.io.files import open_file
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.model.graph import GraphFile, Op
from precision_tool.lib.model.tensor import Access, Tensor, TensorStatistics


class Role(StrEnum):
    """Why replicas must agree on a tensor."""

    #: It was put out by a communication op that gives every rank the same.
    COLLECTIVE = "collective"
    #: It is a variable that an optimizer has updated, or what it was updated by.
    UPDATE = "update"
    #: It was put out by a communication op that gives each rank something else: they need not agree.
    EXCHANGE = "exchange"
    #: It is a variable as the step found it (`replica_feeds` says whether it must be the same).
    VARIABLE = "variable"
    #: It is data that the network was given, which differ between data-parallel ranks.
    DATA = "data"


#: What the graphs of GE say no more of.
ALL_REDUCE = Collective()


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMeans:
    """Means, and roots of the mean squares, of consecutive parts of a tensor; `rounding` is that of its type.

    Of one that a collective takes the maxima or minima of, these stand in the place of the means.
    """

    means: tuple[float, ...]
    sizes: tuple[float, ...]
    rounding: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """Hashes of the tensors, by slot, that one rank has of an op whose results must be the same on all replicas.

    `number` is the op's place in the order of execution, `epoch` how many communication ops ran before it. `group` is
    the communication group, "" where the graph does not tell. `input_means` and `output_means` are, by slot, what a
    `collective` was given and what came out. `turn` is what a communication op is on all ranks of its group, whatever
    it is called there. Of an update `fed_by` says, by slot, what each input is and what put it out; numbers among the
    arguments are behind the tensors, in `inputs` as they were. `summed_by` is the communication op that its gradient
    came out of.
    """

    op: str
    type: str
    role: Role
    number: int
    epoch: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    group: str = ""
    input_means: tuple[BlockMeans, ...] = ()
    output_means: tuple[BlockMeans, ...] = ()
    collective: Collective = ALL_REDUCE
    turn: str = ""
    fed_by: tuple[str, ...] = ()
    summed_by: str = ""

    def __post_init__(self) -> None:
        """Keep each name once: all ranks of a network have the same."""
        object.__setattr__(self, "fed_by", tuple(map(intern, self.fed_by)))


# --- digests of tensors ---


#: A tensor is held in so many parts: a part that is wrong is not lost in the mean of the whole.
_BLOCKS = 64
_PIECE = 1 << 21  # elements
_BYTES = 8 << 20
_DIGITS = 32


@dataclass(frozen=True, slots=True)
class Digest:
    """The hash of a tensor as it is stored, "" if there is none; of one with statistics only, of these.

    `means` are those of the pieces that it is cut into, () without numbers.
    """

    value: str
    means: tuple[BlockMeans, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Which means are taken: of a tensor cut into `pieces`, the `figure` (mean, max, min) of so many blocks each."""

    pieces: int = 1
    blocks: int = _BLOCKS
    figure: str = "mean"


#: The means of the blocks of a whole tensor.
OF_WHOLE = Means()


def digest_of(tensor: Found, wanted: Means | None = None) -> Digest:
    """Return the digest of a tensor, and on request means of its parts, read once."""
    if isinstance(tensor, TensorStatistics):
        value = "s" + hashlib.sha256(repr(astuple(tensor)[1:]).encode()).hexdigest()[: _DIGITS - 1]
        return Digest(value, () if wanted is None else _recorded_means(tensor, wanted))
    if not isinstance(tensor, Tensor) or tensor.parts or tensor.access is not Access.BYTES:
        return Digest("")
    digest = hashlib.sha256()
    means: tuple[BlockMeans, ...] = ()
    if wanted is not None and _is_numbers(tensor) and not tensor.size % wanted.pieces:
        as_it_lies = layouts.plain_plan((tensor.size,))
        with open_reader(tensor, as_it_lies, np.dtype(np.float64)) as reader:
            reader.watch = lambda _, read: digest.update(read.data)
            means = _means_of(reader, tensor, wanted)
    else:
        with open_file(tensor.path) as file:
            for at in range(0, tensor.nbytes, _BYTES):
                digest.update(file.read_at(tensor.offset + at, min(_BYTES, tensor.nbytes - at)))
    return Digest(digest.hexdigest()[:_DIGITS], means)


def _is_numbers(tensor: Tensor) -> bool:
    """Return whether a tensor is floating numbers and nothing behind them."""
    if tensor.dtype not in UNIT or not tensor.size:
        return False
    return tensor.nbytes == data_types.BY_NAME[tensor.dtype].byte_size(tensor.size)


def _means_of(reader: TensorReader, tensor: Tensor, wanted: Means) -> tuple[BlockMeans, ...]:
    """Return the figures, and roots of the mean squares, of consecutive parts of each piece, read from end to end."""
    length = tensor.size // wanted.pieces
    ends = [length * number // wanted.blocks for number in range(wanted.blocks + 1)]
    pieces = []
    for first in range(0, tensor.size, length):
        parts = [
            _figures(reader, first + start, first + end, wanted.figure) for start, end in pairwise(ends) if start < end
        ]
        pieces.append(
            BlockMeans(
                means=tuple(figure for figure, _ in parts),
                sizes=tuple(size for _, size in parts),
                rounding=2 * UNIT[tensor.dtype],
            )
        )
    return tuple(pieces)


def _figures(reader: TensorReader, start: int, end: int, figure: str) -> tuple[float, float]:
    """Return the mean, or what else is asked for, and the root of the mean square of some elements."""
    total = squares = 0.0
    extremes: list[float] = []
    for at in range(start, end, _PIECE):
        values = np.empty(min(_PIECE, end - at), np.float64)
        reader.read_flat(at, at + values.size, values)
        with np.errstate(invalid="ignore", over="ignore"):
            total += float(values.sum())
            squares += float(np.square(values).sum())
        if figure != "mean":
            extremes.append(float(values.max() if figure == "max" else values.min()))
    size = (squares / (end - start)) ** 0.5
    if figure == "mean":
        return total / (end - start), size
    return float(np.max(extremes) if figure == "max" else np.min(extremes)), size


def _recorded_means(tensor: TensorStatistics, wanted: Means) -> tuple[BlockMeans, ...]:
    """Return what was recorded of a tensor as that of one block; () for one that is cut, and without the figures."""
    by_name = {"mean": tensor.mean, "max": tensor.maximum, "min": tensor.minimum}
    figure, norm = by_name[wanted.figure], tensor.l2_norm
    size = prod(tensor.shape or ())
    if wanted.pieces != 1 or figure is None or norm is None or not size or tensor.dtype not in UNIT:
        return ()
    return (BlockMeans(means=(figure,), sizes=(norm / size**0.5,), rounding=2 * UNIT[tensor.dtype]),)


# --- what collectives gave ---


#: A mean that comes out of an all-reduce may be off the sum by this share of the norms: float32 and printed digits.
SUM_SHARE = 1e-3


def is_all_reduce(op_type: str, reduction: object) -> bool:
    """Return whether an op adds up over the ranks, as far as its type and attribute tell."""
    return "allreduce" in op_type.casefold() and str(reduction or "sum").casefold() == "sum"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongSum:
    """A collective that gave `ranks` something else than the sum of what all put in; `right` have that sum.

    Of a broadcast, and others that add nothing up, what was put in is meant where this says sum.

    Not `is_sure`: nothing shows that all ranks of the group were dumped, of which a sum of fewer would be another.
    """

    step: int
    op: str
    type: str
    number: int
    epoch: int
    ranks: tuple[int, ...]
    right: tuple[int, ...]
    is_sure: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSums:
    """The all-reduces of a step that are no sums: `wrong` if most are, and `open` ones, of which that may not be said.

    `right` are names and ranks of those that gave all ranks the sum.
    """

    wrong: tuple[WrongSum, ...] = ()
    open: tuple[WrongSum, ...] = ()
    right: frozenset[tuple[str, tuple[int, ...]]] = frozenset()


def sums_of_step(step: int, votes_by_op: Iterable[Mapping[int, Vote]]) -> StepSums:
    """Return the all-reduces of a step that are none.

    Where most are not, ranks were left out of the dump, or inputs were written over: that tells nothing by itself.
    """
    checked = [(by_rank, off_by_rank) for by_rank in votes_by_op if (off_by_rank := _off(by_rank))]
    off = [(by_rank, off_by_rank) for by_rank, off_by_rank in checked if any(off_by_rank.values())]
    right = {
        (next(iter(votes.values())).op, tuple(sorted(off_by_rank)))
        for votes, off_by_rank in checked
        if not any(off_by_rank.values())
    }
    are_few = 2 * len(off) < len(checked)
    wrong = []
    for by_rank, off_by_rank in off:
        ranks = tuple(sorted(rank for rank, is_off in off_by_rank.items() if is_off))
        vote = by_rank[ranks[0]]
        is_sure = are_few or bool(vote.collective.ranks)
        if is_sure or not _is_something_else(by_rank):
            wrong.append(
                WrongSum(
                    step=step, op=vote.op, type=vote.type, number=vote.number, epoch=vote.epoch, ranks=ranks,
                    right=tuple(sorted(set(off_by_rank) - set(ranks))), is_sure=is_sure,
                )
            )  # fmt: skip
    return StepSums(
        wrong=tuple(item for item in wrong if item.is_sure),
        open=tuple(item for item in wrong if not item.is_sure),
        right=frozenset(right),
    )


def settled(steps: Sequence[StepSums]) -> list[WrongSum]:
    """Return all-reduces of all steps that are none, in order.

    An open one is, where the same ranks got the sum from the same op in another step: none of them was left out then.
    Else only one that is alone in its step, on ranks that are numbered from 0 up, is kept, and is not sure.
    """
    complete = frozenset[tuple[str, tuple[int, ...]]]().union(*(wrong.right for wrong in steps))
    sums: list[WrongSum] = []
    for of_step in steps:
        sums += of_step.wrong
        for wrong in of_step.open:
            ranks = tuple(sorted((*wrong.ranks, *wrong.right)))
            if (wrong.op, ranks) in complete:
                sums.append(replace(wrong, is_sure=True))
            elif len(of_step.open) == 1 and not of_step.right and ranks == tuple(range(len(ranks))):
                sums.append(wrong)
    return sums


def _is_something_else(by_rank: Mapping[int, Vote]) -> bool:
    """Return whether inputs were overwritten by outputs, or the outputs are the mean of all, or sums of groups."""
    votes = list(by_rank.values())
    if votes[0].collective != ALL_REDUCE:
        return False
    groups: dict[object, dict[int, Vote]] = {}
    for rank, vote in by_rank.items():  # ranks that got the same may be a group of their own, which no graph names
        groups.setdefault(vote.output_means, {})[rank] = vote
    if 1 < len(groups) < len(votes) and not any(any((_off(some) or {0: True}).values()) for some in groups.values()):
        return True
    if all(vote.input_means == vote.output_means == votes[0].output_means for vote in votes):
        return True
    shares = [
        tuple(replace(each, means=tuple(mean * len(votes) for mean in each.means)) for each in vote.output_means)
        for vote in votes
    ]
    means = {rank: replace(vote, output_means=came) for (rank, vote), came in zip(by_rank.items(), shares, strict=True)}
    return not any((_off(means) or {0: True}).values())


def _off(by_rank: Mapping[int, Vote]) -> dict[int, bool]:
    """Return by rank whether it got something else than what all put in; without ranks of which that cannot be told.

    There are none with NaN or Inf, and where ranks of the group were not dumped.
    """
    group = next(iter(by_rank.values())).collective.ranks or tuple(sorted(by_rank))
    if len(group) < 2 or set(group) != set(by_rank):
        return {}
    is_off_by_rank: dict[int, bool] = {}
    for rank in group:
        is_off = [_is_off(by_rank, group, rank, slot) for slot in range(len(by_rank[rank].output_means))]
        if is_off and None not in is_off:
            is_off_by_rank[rank] = any(is_off)
    return is_off_by_rank


def _is_off(by_rank: Mapping[int, Vote], group: tuple[int, ...], rank: int, slot: int) -> bool | None:
    """Return whether a rank got another tensor in a slot than all ranks together put in; None: cannot be told."""
    collective = by_rank[rank].collective
    places = collective.parts_of(rank, slot, group)
    if not places or any(by_rank[other].collective != collective for other in group):
        return None
    if not all(at < len(by_rank[other].input_means) for other, at in places):
        return None
    inputs = [by_rank[other].input_means[at] for other, at in places]
    came = by_rank[rank].output_means[slot]
    if len({len(block.means) for block in (*inputs, came)}) != 1:
        return None
    parts, sizes = (_rows(block.means for block in inputs), _rows(block.sizes for block in inputs))
    if not (np.isfinite(parts).all() and np.isfinite(sizes).all()):
        return None
    rounding = max(block.rounding for block in (*inputs, came))
    share = rounding if collective.is_copy else SUM_SHARE + len(inputs) * rounding
    expected, scale = parts.sum(axis=0), sizes.sum(axis=0)
    if collective.reduction == "avg":
        expected, scale = expected / len(inputs), scale / len(inputs)
    elif collective.reduction in ("max", "min"):
        expected = parts.max(axis=0) if collective.reduction == "max" else parts.min(axis=0)
    with np.errstate(invalid="ignore"):
        return bool((~(np.abs(np.array(came.means) - expected) <= share * scale)).any())


def _rows(values: Iterable[tuple[float, ...]]) -> npt.NDArray[np.float64]:
    return np.array(list(values), np.float64)


# --- the votes of a leaf ---


#: How the types of communication ops begin, without regard to case.
_COMMUNICATION = ("hcom", "horovod", PREFIX.casefold())
#: What those of them are called that give every rank of a group the same.
_SAME_FOR_ALL = ("allreduce", "allgather", "broadcast")
#: Ops that update a variable by a gradient: ApplyMomentum, ResourceApplyAdamD, FusedMulApplyMomentum, …
_UPDATE = "apply"


def is_communication(op_type: str) -> bool:
    """Return whether an op talks to other ranks."""
    return op_type.casefold().startswith(_COMMUNICATION)


def role_of(op_type: str) -> Role | None:
    """Return why replicas must agree on what an op puts out; None if they need not."""
    folded = op_type.casefold().replace("_", "")
    if is_communication(op_type):
        return Role.COLLECTIVE if any(word in folded for word in _SAME_FOR_ALL) else None
    return Role.UPDATE if _UPDATE in folded else None


class Epochs:
    """How many communication ops ran before an op: what orders the ops of several ranks.

    `ops` are names, types and numbers in the order of execution.
    """

    def __init__(self, ops: Sequence[tuple[str, str, int]]) -> None:
        self._before: dict[str, int] = {}
        self._number: dict[str, int] = {}
        count = 0
        counted: set[str] = set()
        for name, op_type, number in ops:
            flat = flatten(name)
            self._before.setdefault(flat, count)
            self._number.setdefault(flat, number)
            if is_communication(op_type) and flat not in counted:
                counted.add(flat)
                count += 1

    def of(self, name: str) -> int:
        """Return how many ran before the op of this name; 0 for one that is not known."""
        return self._before.get(flatten(name), 0)

    def number(self, name: str) -> int:
        """Return its place in the order of execution; 0 for one that is not known."""
        return self._number.get(flatten(name), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Voting:
    """An op that votes: its tensors by slot, and of which the means are compared (None: of none)."""

    name: str
    role: Role
    inputs: Mapping[int, Found]
    outputs: Mapping[int, Found]
    means_of: frozenset[int] = frozenset()
    means_in: Means | None = None
    means_out: Means | None = None
    exchanged: Exchanged | None = None


def votes_of(dumps: DumpIndex, file: GraphFile | None, epochs: Epochs, executor: Executor | None = None) -> list[Vote]:
    """Return the votes of a leaf in the order of execution, hashed here or by an `executor`.

    An op whose files cannot be read has none.
    """
    types = {dump.name.op_name: dump.name.op_type for dump in dumps.leaf.files}
    by_name: Mapping[str, Op] = {flatten(op.name): op for op in file.ops} if file is not None else {}
    updates = updates_in_place(file.ops if file is not None else ())
    voting: list[_Voting] = []
    calls: list[tuple[Found, Means | None]] = []
    for name in dumps.names_by_time():
        op = by_name.get(name)
        exchanged = None if op is None else exchanged_by(op)
        role = _role_of(types.get(name, ""), exchanged, name in updates)
        if role is not None:
            with suppress(PrecisionToolError):  # its row says why
                item = _voting(name, role, dumps.op(name), op, types[name], exchanged)
                for slots, means in ((item.inputs, item.means_in), (item.outputs, item.means_out)):
                    calls += [(tensor, means if slot in item.means_of else None) for slot, tensor in slots.items()]
                voting.append(item)
    digests = iter(map_tasks(_readable_digest, calls, executor))
    votes = []
    turns: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for item in voting:
        results = [[(slot, next(digests)) for slot in slots] for slots in (item.inputs, item.outputs)]
        into, out_of = ({slot: digest for slot, digest in side if digest is not None} for side in results)
        name, op, exchanged = item.name, by_name.get(item.name), item.exchanged
        group, turn = "" if op is None else str(op.attrs.get("group", "")), ""
        if exchanged is not None:
            of_group = types[name], exchanged.collective.ranks
            group, turn = ",".join(map(str, of_group[1])), f"{of_group[0]}:{turns[of_group]}"
            turns[of_group] += 1
        outputs = _hashes(out_of)
        if exchanged is not None and exchanged.is_async and _hashes(into) == outputs:
            continue  # it was recorded before it had come
        if len(into) == len(item.inputs) and len(out_of) == len(item.outputs) and any(outputs):
            added, came = _means(into, out_of, exchanged is None)
            inputs, summed = _hashes(into), ""
            fed: tuple[str, ...] = ()
            if item.role is Role.UPDATE:
                numbers = numbers_of(op)
                fed = (*fed_by(types[name], op, len(inputs), updates.get(name, "")), *numbers)
                inputs = (*inputs, *numbers.values())
                summed = summed_by(op, by_name, is_communication)
            votes.append(
                Vote(
                    op=op.name if op is not None else name, type=types[name], role=item.role,
                    number=epochs.number(name), epoch=epochs.of(name), inputs=inputs, outputs=outputs,
                    input_means=added, output_means=came, group=group, turn=turn,
                    collective=ALL_REDUCE if exchanged is None else exchanged.collective,
                    fed_by=fed, summed_by=summed,
                )
            )  # fmt: skip
    return sorted(votes, key=lambda vote: (vote.number, vote.op))


def updates_in_place(ops: Iterable[Op]) -> dict[str, str]:
    """Return the variables that recorded calls write to, as optimizers do, by the flattened names of the calls.

    PyTorch's names of such calls end with an underscore.
    """
    updates: dict[str, str] = {}
    variables: dict[str, str] = {}
    for op in ops:
        if op.type == VARIABLE:
            variables[op.name] = op.name
        elif op.inputs and op.type.endswith("_") and not op.type.endswith("__") and op.is_recorded:
            first = op.inputs[0]
            if first is not None and first.producer in variables and not first.index:
                updates[flatten(op.name)] = variables[op.name] = variables[first.producer]
    return updates


def _role_of(op_type: str, exchanged: Exchanged | None, is_update: bool) -> Role | None:
    """Return why an op votes; None if it does not."""
    if exchanged is not None:
        return Role.COLLECTIVE if exchanged.collective.exchange in SAME_FOR_ALL else Role.EXCHANGE
    if op_type.startswith(PREFIX):
        return None  # what its arguments do is not followed
    return Role.UPDATE if is_update else role_of(op_type)


def _voting(
    name: str, role: Role, dumped: DumpedOp, op: Op | None, op_type: str, exchanged: Exchanged | None
) -> _Voting:
    if exchanged is None:
        adds = is_all_reduce(op_type, None if op is None else op.attrs.get("reduction"))
        added_up = frozenset(_alike(dumped.inputs, dumped.outputs)) if adds else frozenset[int]()
        return _Voting(
            name=name, role=role, inputs=dumped.inputs, outputs=dumped.outputs, means_of=added_up,
            means_in=OF_WHOLE, means_out=OF_WHOLE,
        )  # fmt: skip
    inputs = {at: dumped.inputs[slot] for at, slot in enumerate(exchanged.inputs) if slot in dumped.inputs}
    outputs = {at: dumped.outputs[slot] for at, slot in enumerate(exchanged.outputs) if slot in dumped.outputs}
    reduction = exchanged.collective.reduction
    wanted = Means(
        blocks=max(1, _BLOCKS // max(exchanged.cut_input, exchanged.cut_output)),
        figure=reduction if reduction in ("max", "min") else "mean",
    )
    return _Voting(
        name=name, role=role, inputs=inputs, outputs=outputs, means_of=frozenset({*inputs, *outputs}),
        means_in=replace(wanted, pieces=exchanged.cut_input), means_out=replace(wanted, pieces=exchanged.cut_output),
        exchanged=exchanged,
    )  # fmt: skip


#: Digests of an op's tensors by slot.
_Digests = Mapping[int, Digest]


def _alike(inputs: Mapping[int, Found], outputs: Mapping[int, Found]) -> Iterator[int]:
    """Return the slots whose input and output are of one type and order of elements."""
    for slot, tensor in inputs.items():
        other = outputs.get(slot)
        if isinstance(tensor, Tensor) and isinstance(other, Tensor):
            same = (getattr(tensor, name) == getattr(other, name) for name in ("dtype", "shape", "layout"))
            if all(same):
                yield slot


def _means(into: _Digests, out_of: _Digests, are_paired: bool) -> tuple[tuple[BlockMeans, ...], tuple[BlockMeans, ...]]:
    """Return the means of what goes into an op and of what comes out: slot by slot where both are there, or all."""
    if are_paired:
        slots = [slot for slot in into if slot in out_of and into[slot].means and out_of[slot].means]
        into, out_of = ({slot: side[slot] for slot in slots} for side in (into, out_of))
    if not all(digest.means for digest in (*into.values(), *out_of.values())):
        return (), ()
    before, after = (tuple(means for slot in sorted(side) for means in side[slot].means) for side in (into, out_of))
    return before, after


def _readable_digest(tensor: Found, wanted: Means | None) -> Digest | None:
    """`digest_of` as a task; None of a tensor that cannot be read, which costs its op alone the vote."""
    try:
        return digest_of(tensor, wanted)
    except PrecisionToolError:
        return None


def _hashes(slots: _Digests) -> tuple[str, ...]:
    return tuple(slots[slot].value if slot in slots else "" for slot in range(max(slots, default=-1) + 1))


# --- counting votes ---


#: Votes of one rank, by the network that it runs.
Ballot = tuple[int, str, Sequence[Vote]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """An op whose result is not the same on all replicas of a step, though it must be.

    `ranks` have something else than the `agreeing` others; with `undecided` no majority tells which are right.
    `fed_alike`: what went into the op is the same on all of them, so that the op itself, or its device, made the
    difference; None where that is not known.
    """

    step: int
    op: str
    type: str
    role: Role
    number: int
    epoch: int
    ranks: tuple[int, ...]
    agreeing: tuple[int, ...]
    undecided: bool = False
    fed_alike: bool | None = None


@dataclass(frozen=True, kw_only=True)
class StepVotes:
    """The votes of a step: how many tensors replicas agree on, and on what they do not, in the order of execution."""

    step: int
    agreed: int = 0
    departures: tuple[Departure, ...] = ()
    #: Which all-reduces are the sum of what the ranks put in.
    sums: StepSums = field(default_factory=StepSums)


def count_votes(step: int, ballots: Iterable[Ballot]) -> StepVotes:
    """Count the votes of all ranks of a step. Ranks of other networks or communication groups are no replicas."""
    by_op: dict[tuple[str, int, str, str], dict[int, Vote]] = {}
    places: Counter[tuple[int, str]] = Counter()
    for rank, network, votes in ballots:
        # A rank may run one network as several models: each is a replica of its like on the other ranks.
        place = places[rank, network]
        places[rank, network] += 1
        for vote in votes:
            # Communication ops follow one another alike on all ranks of a group, whatever else these run.
            key = ("", place, vote.group, vote.turn) if vote.turn else (network, place, vote.group, vote.op)
            by_op.setdefault(key, {})[rank] = vote
    agreed, departures = 0, []
    for by_rank in by_op.values():
        if len(by_rank) < 2 or next(iter(by_rank.values())).role not in (Role.COLLECTIVE, Role.UPDATE):
            continue
        departure = _departure(step, by_rank)
        if departure is None:
            agreed += 1
        elif not departure.undecided or departure.fed_alike or len(by_rank) == 2:
            departures.append(departure)
        # Else no majority has it: they are groups that work on parts of the model, whatever the groups are called.
    departures.sort(key=lambda each: (each.epoch, each.number, each.op))
    # Where ranks agree on nothing at all they are no replicas: each has a part of the model.
    if not agreed and all(each.undecided for each in departures):
        departures = [each for each in departures if each.fed_alike]
    return StepVotes(step=step, agreed=agreed, departures=tuple(departures), sums=sums_of_step(step, by_op.values()))


def _departure(step: int, by_rank: Mapping[int, Vote]) -> Departure | None:
    """Return what one op's votes show; None where all agree."""
    outputs = Counter(vote.outputs for vote in by_rank.values())
    if len(outputs) == 1:
        return None
    first = next(iter(by_rank.values()))
    most, count = outputs.most_common(1)[0]
    undecided = 2 * count <= len(by_rank)
    agreeing = tuple(sorted(rank for rank, vote in by_rank.items() if vote.outputs == most and not undecided))
    others = tuple(sorted(set(by_rank) - set(agreeing)))
    fed_alike: bool | None = None
    if first.role is Role.UPDATE and all(any(vote.inputs) for vote in by_rank.values()):
        fed_alike = len({vote.inputs for vote in by_rank.values()}) == 1
    return Departure(
        step=step, op=first.op, type=first.type, role=first.role, number=first.number, epoch=first.epoch,
        ranks=others, agreeing=agreeing, undecided=undecided, fed_alike=fed_alike,
    )  # fmt: skip
