"""Votes of replicas: what one rank has of a tensor that all must have alike, and on what they do not agree."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from enum import StrEnum
from itertools import islice, pairwise
from math import prod
from sys import intern
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.compare.scheduler import map_tasks
from precision_tool.lib.compare.tensor_figures import open_reader
from precision_tool.lib.compare.tensor_reader import TensorReader
from precision_tool.lib.data.dump_names import flatten
from precision_tool.lib.data.dumped_ops import DumpedOp, DumpIndex, Found
from precision_tool.lib.data.msprobe_ops import VARIABLE
from precision_tool.lib.diagnose.error_shape import UNIT
from precision_tool.lib.diagnose.recorded_collectives import (
    PREFIX,
    SAME_FOR_ALL,
    Collective,
    Exchanged,
    compiled_exchange,
    exchanged_by,
)
from precision_tool.lib.diagnose.study_table import Columns, coded, pack, unpack
from precision_tool.lib.diagnose.update_inputs import fed_by, numbers_of, summed_by
from precision_tool.lib.io import data_types, layouts
from precision_tool.lib.io.files import open_file
from precision_tool.lib.messages.errors import FormatError, PrecisionToolError, shown_name
from precision_tool.lib.model.documents import from_document, to_document
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


Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockMeans:
    """Means, and roots of the mean squares, of consecutive parts of a tensor; `rounding` is that of its type.

    `figures` has shape (2, blocks): means, and sizes. Of a tensor that a collective takes the maxima or minima of,
    these stand in the place of the means.
    """

    figures: Floats
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
    #: How many ranks its group has, 0 where the graph does not tell.
    size: int = 0
    fed_by: tuple[str, ...] = ()
    summed_by: str = ""


# --- votes as bytes ---


_TEXTS = ("op", "type", "role", "group", "turn", "summed_by")
_NUMBERS = ("number", "epoch", "size")
_SIDES = ("inputs", "outputs", "fed_by", "input_means", "output_means")


def pack_votes(votes: Sequence[Vote]) -> bytes:
    """Return votes as bytes that a worker hands back and a journal keeps."""
    texts: list[str] = []
    numbers: list[int] = []
    blocks: list[BlockMeans] = []
    for vote in votes:
        texts += (str(getattr(vote, name)) for name in _TEXTS)
        texts += (json.dumps(to_document(vote.collective)), *vote.inputs, *vote.outputs, *vote.fed_by)
        numbers += (getattr(vote, name) for name in _NUMBERS)
        numbers += (len(getattr(vote, side)) for side in _SIDES)
        blocks += (*vote.input_means, *vote.output_means)
    columns: Columns = {
        "texts": coded(texts),
        "numbers": np.array(numbers, np.int64),
        "lengths": np.array([each.figures.size for each in blocks], np.int64),
        "roundings": np.array([each.rounding for each in blocks], np.float64),
        "figures": np.concatenate([*(each.figures.reshape(-1) for each in blocks), np.empty(0, np.float32)]),
    }
    return pack(columns) if votes else b""


def unpack_votes(path: str, data: bytes) -> list[Vote]:
    """Return the votes again. FormatError for bytes, of the file `path`, not of `pack_votes`."""
    if not data:
        return []
    columns: dict[str, Any] = {**unpack(path, data)}
    collectives: dict[str, Collective] = {}
    votes = []
    try:
        # Each name and hash is kept once, as most are those of all ranks.
        texts = iter(replace(columns["texts"], texts=tuple(map(intern, columns["texts"].texts))))
        figures, ends = columns["figures"], np.cumsum(columns["lengths"]).tolist()
        blocks = (
            BlockMeans(figures=figures[start:end].reshape(2, -1), rounding=rounding)
            for (start, end), rounding in zip(pairwise([0, *ends]), columns["roundings"].tolist(), strict=True)
        )
        for row in columns["numbers"].reshape(-1, len(_NUMBERS) + len(_SIDES)).tolist():
            op, op_type, role, group, turn, summed_by, collective = islice(texts, len(_TEXTS) + 1)
            number, epoch, size, inputs, outputs, fed, means_in, means_out = row
            before, after = (tuple(islice(blocks, count)) for count in (means_in, means_out))
            if len(before) < means_in or len(after) < bool(before):
                raise ValueError("means that are not there")
            if collective not in collectives:
                collectives[collective] = from_document(Collective, json.loads(collective))
            votes.append(
                Vote(
                    op=op, type=op_type, role=Role(role), group=group, turn=turn, summed_by=summed_by,
                    number=number, epoch=epoch, size=size, collective=collectives[collective],
                    inputs=tuple(islice(texts, inputs)), outputs=tuple(islice(texts, outputs)),
                    fed_by=tuple(islice(texts, fed)),
                    input_means=before, output_means=after,
                )
            )  # fmt: skip
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise FormatError.of(path, "diagnose.rows_damaged", reason=shown_name(str(error))) from error
    return votes


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
    if wanted is not None and _is_numbers(tensor) and _is_cut(tensor, wanted.pieces):
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


def _is_cut(tensor: Tensor, pieces: int) -> bool:
    """Return whether a tensor consists of so many pieces, one after the other."""
    return pieces == 1 or (not tensor.size % pieces and layouts.is_plain(tensor.layout))


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
                figures=_floats([figure for figure, _ in parts], [size for _, size in parts]),
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
    figure, count = by_name[wanted.figure], prod(tensor.shape or ())
    largest = [abs(value) for value in (tensor.minimum, tensor.maximum) if value is not None]
    size = max(largest, default=None) if tensor.l2_norm is None else tensor.l2_norm / max(count, 1) ** 0.5
    if wanted.pieces != 1 or figure is None or size is None or not count or tensor.dtype not in UNIT:
        return ()
    return (BlockMeans(figures=_floats([figure], [size]), rounding=2 * UNIT[tensor.dtype]),)


def _floats(means: Sequence[float], sizes: Sequence[float]) -> Floats:
    with np.errstate(over="ignore"):  # what float32 cannot hold cannot be told, as if it were infinite
        return np.array([means, sizes], np.float64).astype(np.float32)


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


def is_all_reduce(op_type: str, reduction: object) -> bool:
    """Return whether an op adds up over the ranks, as far as its type and attribute tell."""
    return "allreduce" in op_type.casefold() and str(reduction or "sum").casefold() == "sum"


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
    groups = _Groups(file.ops if file is not None else ())
    voting: list[_Voting] = []
    calls: list[tuple[Found, Means | None]] = []
    for name in dumps.names_by_time():
        exchanged = groups.exchanged.get(name)
        role = _role_of(types.get(name, ""), exchanged, name in updates)
        if role is not None:
            with suppress(PrecisionToolError):  # its row says why
                item = _voting(name, role, dumps.op(name), by_name.get(name), types[name], exchanged)
                for slots, means in ((item.inputs, item.means_in), (item.outputs, item.means_out)):
                    calls += [(tensor, means if slot in item.means_of else None) for slot, tensor in slots.items()]
                voting.append(item)
    digests = iter(map_tasks(_readable_digest, calls, executor))
    votes = []
    for item in voting:
        results = [[(slot, next(digests)) for slot in slots] for slots in (item.inputs, item.outputs)]
        into, out_of = ({slot: digest for slot, digest in side if digest is not None} for side in results)
        name, op, exchanged = item.name, by_name.get(item.name), item.exchanged
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
                    input_means=added, output_means=came, group=groups.name(op), turn=groups.turn(name),
                    collective=groups.collective(op), size=groups.size(op), fed_by=fed, summed_by=summed,
                )
            )  # fmt: skip
    return sorted(votes, key=lambda vote: (vote.number, vote.op))


#: Attributes of GE's communication ops: how many ranks their group has, and which.
_RANK_SIZE, _RANK_LISTS = "rank_size", ("rank_list", "group_ranks", "ranks")
#: Names that MindSpore gives to groups: how many ranks they have, and a hash.
_SIZED_NAME = re.compile(r"(\d{1,6})-\d{8,}")


class _Groups:
    """The groups of a graph's communication ops: what they are called, their ranks and their sizes."""

    def __init__(self, ops: Iterable[Op]) -> None:
        #: Collectives that are followed slot by slot, by flattened name.
        self.exchanged: dict[str, Exchanged] = {}
        self._turns: dict[str, tuple[str, int]] = {}
        self._sizes: dict[str, int] = {}
        self._totals: Counter[str] = Counter()
        compiled: list[Op] = []
        for op in ops:
            exchanged = exchanged_by(op)
            if exchanged is not None:
                self.exchanged[flatten(op.name)] = exchanged
                key = f"{op.type}:{exchanged.collective.ranks}"
                self._turns[flatten(op.name)] = key, self._totals[key]
                self._totals[key] += 1
            elif is_communication(op.type) and not op.is_recorded:
                compiled.append(op)
            if exchanged is not None or is_communication(op.type):
                size = _whole(op.attrs.get(_RANK_SIZE)) if exchanged is None else exchanged.size
                self._sizes[self._key(op)] = self._sizes.get(self._key(op), 0) or size
        for op in compiled:
            reduction, ranks = str(op.attrs.get("reduction") or "sum").casefold(), self.collective(op).ranks
            exchanged = compiled_exchange(op.type, self.size(op), reduction, ranks)
            if exchanged is not None:
                self.exchanged[flatten(op.name)] = exchanged

    def _key(self, op: Op) -> str:
        """Return what ops of one group have in common; of those whose group has no name nothing is known."""
        is_named = self.name(op) or flatten(op.name) in self._turns
        return self.name(op) if is_named else f"op {op.name}"

    def name(self, op: Op | None) -> str:
        """Return what the group of an op is called; "" where nothing says."""
        if op is None:
            return ""
        ranks = self.collective(op).ranks
        if ranks or flatten(op.name) in self._turns:
            return ",".join(map(str, ranks))
        return str(op.attrs.get("group", "")) if is_communication(op.type) else ""

    def turn(self, name: str) -> str:
        """Return what a recorded collective is on all ranks of its group.

        That is which of so many of its kind it is: a rank that lacks some is matched with no other.
        """
        if name not in self._turns:
            return ""
        key, number = self._turns[name]
        return f"{key.partition(':')[0]}:{number}/{self._totals[key]}"

    def size(self, op: Op | None) -> int:
        """Return how many ranks the group of an op has; 0 where nothing says."""
        if op is None:
            return 0
        sized = _SIZED_NAME.fullmatch(self.name(op))
        return len(self.collective(op).ranks) or self._sizes.get(self._key(op), 0) or (int(sized[1]) if sized else 0)

    def collective(self, op: Op | None) -> Collective:
        """Return what an op does, and with which ranks."""
        if op is None:
            return ALL_REDUCE
        if (exchanged := self.exchanged.get(flatten(op.name))) is not None:
            return exchanged.collective
        lists = (op.attrs.get(name) for name in _RANK_LISTS) if is_communication(op.type) else ()
        for ranks in lists:
            if isinstance(ranks, (list, tuple)) and len(ranks) > 1 and all(isinstance(rank, int) for rank in ranks):
                return replace(ALL_REDUCE, ranks=tuple(ranks))
        return ALL_REDUCE


def _whole(value: object) -> int:
    """Return a number of an attribute; 0 for none."""
    return value if isinstance(value, int) and value > 1 else 0


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
        if isinstance(tensor, (Tensor, TensorStatistics)) and type(tensor) is type(other):
            names = ("dtype", "shape", "layout") if isinstance(tensor, Tensor) else ("dtype", "shape")
            if all(getattr(tensor, name) == getattr(other, name) for name in names):
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
