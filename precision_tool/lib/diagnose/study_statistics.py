"""Leaves that were dumped as statistics: what there is of each tensor, and what that tells against ops."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import lru_cache, reduce
from itertools import groupby
from math import exp, hypot, inf, isfinite, lgamma, log, nan, pi, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.data.dump_names import flatten
from precision_tool.lib.data.dumped_ops import DumpedOp, DumpIndex, Found
from precision_tool.lib.diagnose.replica_count import SUM_SHARE, StepVotes, When, WrongSum, settled, when
from precision_tool.lib.diagnose.replica_votes import is_all_reduce, is_communication
from precision_tool.lib.diagnose.study_journal import LeafState
from precision_tool.lib.diagnose.study_table import Columns, coded, pack, unpack
from precision_tool.lib.io import data_types
from precision_tool.lib.messages import Message, render
from precision_tool.lib.messages.errors import FormatError, PrecisionToolError
from precision_tool.lib.model.run import DumpLeaf
from precision_tool.lib.model.tensor import TensorStatistics

# --- statistics of a leaf ---


Doubles = npt.NDArray[np.float64]
Wholes = npt.NDArray[np.int64]
#: What there is of each leaf takes 25 bytes a tensor: a study may hold 30 million.
Floats = npt.NDArray[np.float32]
Digests = npt.NDArray[np.uint32]

#: Tensors with fewer elements tell nothing of norms, and little of what they are.
ELEMENTS = 32
#: The digest of a tensor that a leaf lacks.
UNKNOWN = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNames:
    """The tensors of a network in the order of execution: the same for every leaf in which the same was dumped.

    `op_of`, `is_output`, `slots`, `counts` (elements), `limits` (the largest number of a floating-point type, inf for
    others) and `nbytes` (of the tensor, were it dumped) are by tensor; `ops` and `types` by op, `names` as files spell.
    """

    ops: tuple[str, ...]
    types: tuple[str, ...]
    op_of: Wholes
    is_output: npt.NDArray[np.bool_]
    slots: Wholes
    counts: Wholes
    limits: Doubles
    nbytes: Wholes

    def tensor(self, number: int) -> str:
        """Return a tensor's name, `op:output:0`."""
        side = "output" if self.is_output[number] else "input"
        return f"{self.ops[self.op_of[number]]}:{side}:{self.slots[number]}"

    def of(self, op: str, *, is_output: bool) -> list[int]:
        """Return the inputs or outputs of an op, as any file or graph spells its name."""
        if flatten(op) not in self.ops:
            return []
        of_op = self.op_of == self.ops.index(flatten(op))
        numbers: list[int] = np.flatnonzero(of_op & (self.is_output == is_output)).tolist()
        return numbers


@lru_cache(maxsize=16)
def _epochs(types: tuple[str, ...]) -> Wholes:
    """Return how many communication ops ran before each op of these types."""
    communicates = np.array([is_communication(op_type) for op_type in types], np.int64)
    before: Wholes = np.cumsum(communicates) - communicates
    return before


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafStatistics:
    """The statistics of one step of a rank, by tensor of `names`.

    `sizes` are norms (‖x‖, NaN where unknown), where the dump tells none bounds of them by the largest element;
    `means` and `largest` (absolute) are NaN where unknown. `nans` and `infs` count; `digests` are of all numbers that
    the dump has of a tensor.
    """

    step: int
    rank: int
    names: TensorNames
    sizes: Floats
    means: Floats
    largest: Floats
    nans: Floats
    infs: Floats
    digests: Digests
    is_constant: npt.NDArray[np.bool_]
    #: Files that cannot be read, with the reason.
    unread: tuple[Message, ...] = ()


#: The arrays of a leaf, with what stands for a tensor that it lacks, and those of its names.
_OF_LEAF = {
    "sizes": nan, "means": nan, "largest": nan, "nans": 0, "infs": 0, "digests": UNKNOWN, "is_constant": False,
}  # fmt: skip
_OF_NAMES = ("op_of", "is_output", "slots", "counts", "limits", "nbytes")


def aligned(leaf: LeafStatistics, names: TensorNames, *, of_one_size: bool = True) -> LeafStatistics:
    """Return the statistics in the order of `names`; NaN for tensors that it lacks.

    So are, with `of_one_size`, tensors with another number of elements; a benchmark's have no padding.
    """
    if leaf.names is names:
        return leaf
    if _is_alike(leaf.names, names):
        return replace(leaf, names=names)
    places = {key: number for number, key in enumerate(_keys(leaf.names))}
    positions = np.array([places.get(key, -1) for key in _keys(names)], np.int64)
    is_there = positions >= 0
    if of_one_size:
        is_there[is_there] = leaf.names.counts[positions[is_there]] == names.counts[is_there]
    at = positions[is_there]

    def spread(values: Any, fill: Any) -> Any:
        result = np.full(len(positions), fill, values.dtype)
        result[is_there] = values[at]
        return result

    return replace(leaf, names=names, **{name: spread(getattr(leaf, name), fill) for name, fill in _OF_LEAF.items()})


def _is_alike(names: TensorNames, other: TensorNames) -> bool:
    """Return whether two networks have the same tensors in the same order."""
    fields = ("op_of", "is_output", "slots", "counts")
    return names.ops == other.ops and all(np.array_equal(getattr(names, each), getattr(other, each)) for each in fields)


def _keys(names: TensorNames) -> list[tuple[str, bool, int]]:
    return [
        (names.ops[op], bool(is_output), int(slot))
        for op, is_output, slot in zip(names.op_of, names.is_output, names.slots, strict=True)
    ]


def read_leaf(leaf: DumpLeaf, step: int, rank: int) -> LeafStatistics:
    """Return the statistics of a leaf; files that cannot be read, and tensors that were dumped whole, are left out."""
    dumps = DumpIndex(leaf)
    ops: list[DumpedOp] = []
    unread: list[Message] = []
    for name in dumps.names_by_time():
        try:
            dumped = dumps.op(name)
        except PrecisionToolError as error:
            unread.append(error.full_message)
            continue
        unread += [error.reason for error in dumped.errors]
        ops.append(dumped)
    return of_ops(ops, step, rank, tuple(unread))


def of_ops(ops: Sequence[DumpedOp], step: int, rank: int, unread: tuple[Message, ...] = ()) -> LeafStatistics:
    """Return the statistics of ops in the order of their execution; what is no statistics is left out."""
    tensors: list[tuple[int, bool, int, TensorStatistics]] = []
    for number, op in enumerate(ops):
        for is_output, side in ((False, op.inputs), (True, op.outputs)):
            tensors += [(number, is_output, slot, tensor) for slot, tensor in _statistics_of(side)]
    return LeafStatistics(
        step=step,
        rank=rank,
        names=TensorNames(
            ops=tuple(op.name for op in ops),
            types=tuple(op.op_type for op in ops),
            op_of=np.array([op for op, *_ in tensors], np.int64),
            is_output=np.array([is_output for _, is_output, *_ in tensors], bool),
            slots=np.array([slot for *_, slot, _ in tensors], np.int64),
            counts=np.array([_count(tensor) for *_, tensor in tensors], np.int64),
            limits=np.array([_limit(tensor) for *_, tensor in tensors], np.float64),
            nbytes=np.array([tensor.nbytes or _nbytes(tensor) for *_, tensor in tensors], np.int64),
        ),
        sizes=_numbers(_size(tensor) for *_, tensor in tensors),
        means=_numbers(tensor.mean for *_, tensor in tensors),
        largest=_numbers(_largest(tensor) for *_, tensor in tensors),
        nans=np.array([_nans(tensor) for *_, tensor in tensors], np.float32),
        infs=np.array([_infs(tensor) for *_, tensor in tensors], np.float32),
        digests=np.array([_digest(tensor) for *_, tensor in tensors], np.uint32),
        is_constant=np.array([tensor.minimum == tensor.maximum for *_, tensor in tensors], bool),
        unread=unread,
    )


def pack_statistics(leaf: LeafStatistics) -> bytes:
    """Return the statistics as bytes that a worker hands back and a journal keeps."""
    unread = coded([json.dumps(reason.to_dict()) for reason in leaf.unread])
    columns: Columns = {"ops": coded(leaf.names.ops), "types": coded(leaf.names.types), "unread": unread}
    columns |= {name: getattr(leaf.names, name) for name in _OF_NAMES}
    return pack(columns | {name: getattr(leaf, name) for name in _OF_LEAF})


def unpack_statistics(path: str, data: bytes, step: int, rank: int) -> LeafStatistics:
    """Return the statistics of a leaf again. FormatError for bytes, of the file `path`, not of `pack_statistics`."""
    columns: dict[str, Any] = {**unpack(path, data)}
    try:
        unread = tuple(Message.from_dict(json.loads(reason)) for reason in columns.get("unread", ()))
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError.of(path, "diagnose.statistics_damaged") from error
    if set(columns) != {"ops", "types", "unread", *_OF_NAMES, *_OF_LEAF}:
        raise FormatError.of(path, "diagnose.statistics_damaged")
    names = TensorNames(
        ops=tuple(columns["ops"]), types=tuple(columns["types"]), **{name: columns[name] for name in _OF_NAMES}
    )
    return LeafStatistics(
        step=step, rank=rank, names=names, unread=unread,
        **{name: columns[name] for name in _OF_LEAF},
    )  # fmt: skip


def _statistics_of(side: Mapping[int, Found]) -> list[tuple[int, TensorStatistics]]:
    return [(slot, tensor) for slot, tensor in sorted(side.items()) if isinstance(tensor, TensorStatistics)]


def _numbers(values: Any) -> Floats:
    finite = [nan if value is None or not isfinite(value) else value for value in values]
    with np.errstate(over="ignore"):  # of float64, what float32 cannot hold is as good as infinite
        return np.array(finite, np.float64).astype(np.float32)


def _count(tensor: TensorStatistics) -> int:
    return min(tensor.size if tensor.count is None else tensor.count, 2**62)


def _nbytes(tensor: TensorStatistics) -> int:
    dtype = data_types.BY_NAME.get(tensor.dtype)
    return 0 if dtype is None else min(dtype.byte_size(tensor.size), 2**62)


def _limit(tensor: TensorStatistics) -> float:
    dtype = data_types.FLOATS.get(tensor.dtype)
    return float("inf") if dtype is None else dtype.largest


def _largest(tensor: TensorStatistics) -> float | None:
    if tensor.minimum is None or tensor.maximum is None:
        return None
    return max(abs(tensor.minimum), abs(tensor.maximum))


def _size(tensor: TensorStatistics) -> float | None:
    """Return the norm; of a dump without, the largest element stands for it."""
    if tensor.l2_norm is not None:
        return tensor.l2_norm
    largest = _largest(tensor)
    return None if largest is None else largest * sqrt(max(_count(tensor), 1))


def _nans(tensor: TensorStatistics) -> int:
    """Return the count of NaN; some releases put NaN into the minimum and maximum in place of counting it."""
    numbers = [value for value in (tensor.minimum, tensor.maximum, tensor.mean) if value is not None]
    return tensor.nan_count or int(any(value != value for value in numbers))


def _infs(tensor: TensorStatistics) -> int:
    numbers = [value for value in (tensor.minimum, tensor.maximum) if value is not None]
    counted = (tensor.positive_inf_count or 0) + (tensor.negative_inf_count or 0)
    return counted or sum(abs(value) == float("inf") for value in numbers)


def _digest(tensor: TensorStatistics) -> int:
    numbers = (tensor.maximum, tensor.minimum, tensor.mean, tensor.count, tensor.l2_norm)
    text = repr((*numbers, tensor.nan_count, tensor.negative_inf_count, tensor.positive_inf_count)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little") or 1


# --- evidence against an op ---


class EvidenceKind(StrEnum):
    """Kind of evidence against an op."""

    NAN = "nan"
    INF = "inf"
    AT_LIMIT = "at_limit"
    BENCHMARK = "benchmark"
    REPLICAS = "replicas"
    SUM = "sum"
    CHANGED = "changed"
    JUMP = "jump"
    OUTLIER = "outlier"


#: Evidence that holds by itself; norms, and Inf that may be meant, make an op suspect only.
CERTAIN = frozenset({EvidenceKind.NAN, EvidenceKind.REPLICAS, EvidenceKind.SUM, EvidenceKind.CHANGED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Evidence against an op at a step of a rank.

    `value` and `expected` are counts, norms or means; `off` is what the inputs do not explain, as a logarithm of norms,
    and `bound` what it had to exceed; both NaN where there is no such thing. `number` is the op's place in the order of
    execution.
    """

    kind: EvidenceKind
    step: int
    rank: int
    op: str
    type: str
    tensor: str
    number: int
    value: float
    expected: float
    off: float = float("nan")
    bound: float = float("nan")
    #: How many communication ops ran before it.
    epoch: int = 0

    @property
    def when(self) -> When:
        """When its op ran."""
        return when(self.step, self.epoch, self.type, self.rank, self.number)


def evidence_of(
    kind: EvidenceKind, leaf: LeafStatistics, number: int, value: float, expected: float, *of: float
) -> Evidence:
    """Return evidence of tensor `number` of a leaf; `of` are `off` and `bound`."""
    op = int(leaf.names.op_of[number])
    off, bound = of or (float("nan"), float("nan"))
    return Evidence(
        kind=kind, step=leaf.step, rank=leaf.rank, op=leaf.names.ops[op], type=leaf.names.types[op],
        tensor=leaf.names.tensor(number), number=op, value=value, expected=expected, off=off, bound=bound,
        epoch=int(_epochs(leaf.names.types)[op]),
    )  # fmt: skip


# --- exact rules: what ranks vote, and equal digests ---


Flags = npt.NDArray[np.bool_]


def voted(leaves: Iterable[LeafStatistics], votes: StepVotes, wrong: Iterable[WrongSum]) -> Iterator[Evidence]:
    """Yield what the votes of a step tell: ranks that have something else than most, and sums that are `wrong`.

    Of an op whose inputs are not alike either only collectives are told of: an update that is fed another variable, or
    gradient, cannot put out the same.
    """
    by_rank = {leaf.rank: leaf for leaf in leaves}
    for departure in votes.departures:
        others = [by_rank[rank] for rank in departure.agreeing if rank in by_rank]
        if others and (departure.fed_alike or is_communication(departure.type)):
            for leaf in (by_rank[rank] for rank in departure.ranks if rank in by_rank):
                other = aligned(others[0], leaf.names)
                for number in leaf.names.of(departure.op, is_output=True):
                    if leaf.digests[number] != other.digests[number] != UNKNOWN:
                        means = float(leaf.means[number]), float(other.means[number])
                        yield evidence_of(EvidenceKind.REPLICAS, leaf, number, *means)
    for item in wrong:
        group = [by_rank[rank] for rank in (*item.ranks, *item.right) if rank in by_rank]
        if not is_all_reduce(item.type, None) or len(group) < len(item.ranks) + len(item.right):
            continue
        group = [aligned(leaf, group[0].names) for leaf in group]
        names = group[0].names
        for number in names.of(item.op, is_output=True):
            for fed in names.of(item.op, is_output=False):
                if names.slots[fed] == names.slots[number]:
                    total = sum(float(leaf.means[fed]) for leaf in group)
                    sizes = sum(float(leaf.sizes[fed]) for leaf in group)
                    limit = SUM_SHARE * sizes / max(float(names.counts[number]), 1.0) ** 0.5
                    for leaf in group[: len(item.ranks)]:
                        came = float(leaf.means[number])
                        yield evidence_of(EvidenceKind.SUM, leaf, number, came, total, abs(came - total), limit)


def edges(group: Sequence[LeafStatistics]) -> tuple[Wholes, Wholes]:
    """Return inputs that have the same numbers as an output before them, and that output; not those of constants."""
    leaf = group[0]
    names = leaf.names
    by_digest: dict[int, int] = {}
    pairs: list[tuple[int, int]] = []
    for number, digest in enumerate(leaf.digests.tolist()):
        if names.counts[number] < ELEMENTS or digest == UNKNOWN or leaf.is_constant[number]:
            continue
        if names.is_output[number]:
            by_digest[digest] = number
        elif digest in by_digest:
            pairs.append((number, by_digest[digest]))
    inputs, outputs = (np.array([pair[side] for pair in pairs], np.int64) for side in (0, 1))
    return inputs, outputs


def held(edges: tuple[Wholes, Wholes], group: Sequence[LeafStatistics]) -> tuple[Wholes, Wholes]:
    """Return the pairs that hold on most leaves."""
    inputs, outputs = edges
    holds = np.array([leaf.digests[inputs] == leaf.digests[outputs] for leaf in group]).mean(axis=0) > 0.5
    return inputs[holds], outputs[holds]


def changed(leaf: LeafStatistics, edges: tuple[Wholes, Wholes]) -> Iterator[Evidence]:
    """Return inputs that are no longer what was put out."""
    inputs, outputs = edges
    before, after = leaf.digests[inputs], leaf.digests[outputs]
    for place in np.flatnonzero((before != after) & (before != UNKNOWN) & (after != UNKNOWN)).tolist():
        number = int(inputs[place])
        yield evidence_of(
            EvidenceKind.CHANGED, leaf, number, float(leaf.sizes[number]), float(leaf.sizes[outputs[place]])
        )


# --- rules over ranks and steps ---


#: What feeds what is learned in so many steps: in the first alone, two variables may have begun alike.
_LEARNING = 2
#: What is unexplained of the logarithm of a norm is evidence from here on: 10 %.
_FLOOR = 0.1
_CHANCE = 1e-9
#: Populations with fewer members tell nothing of norms.
_MEMBERS = 6
#: Degrees of freedom behind which the bound of the tail no longer falls.
_FREEDOM = 24
#: So many steps before a step are its population, as a training changes slowly; more where ranks have all alike.
_STEPS, _SHARED_STEPS = 4, 16
#: Logarithms of norms that are nearer than this are the same.
_SAME = 1e-9
#: What stands for the logarithm of a norm of zero.
_ZERO = -80.0
#: Leaves that have so many ops in common run the same network.
_SAME_NETWORK = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """All evidence against an op at a step: `ranks` it is of, `right` those that run the op too and have none.

    `unknown` run it too, and nothing tells of them: all that speaks against it is a benchmark, which they have not.
    """

    step: int
    op: str
    type: str
    number: int
    kinds: tuple[EvidenceKind, ...]
    ranks: tuple[int, ...]
    right: tuple[int, ...]
    unknown: tuple[int, ...] = ()
    evidence: tuple[Evidence, ...] = field(repr=False)

    @property
    def is_certain(self) -> bool:
        """True if any of it holds by itself."""
        return any(kind in CERTAIN for kind in self.kinds)


@dataclass(frozen=True, slots=True)
class LookedAt:
    """A rank of a step: the ops that it runs, and whether it has a benchmark."""

    rank: int
    ops: frozenset[str]
    has_benchmark: bool = False


#: Of norms and of gains, of many leaves: count, sum and sum of squares of their logarithms; shape (2, 3, tensors).
_Moments = npt.NDArray[np.float64]


def _moments(logs: Doubles, names: TensorNames, but: Flags) -> _Moments:
    """Return the moments of one leaf, but for some tensors; NaN is left out."""
    values = np.array([logs, _gains(logs, names)])
    is_counted = np.isfinite(values) & ~but
    clean = np.where(is_counted, values, 0.0)
    return np.stack([is_counted.astype(np.float64), clean, np.square(clean)], axis=1)


def _mean_and_bound(moments: Doubles) -> tuple[Doubles, Doubles]:
    """Return the mean, and how far from it one more value may be; NaN and inf of populations that are too small."""
    count, total, squares = moments
    enough = count >= _MEMBERS
    count = np.where(enough, count, 2.0)
    mean = total / count
    variance = np.maximum(squares / count - np.square(mean), 0.0) * count / (count - 1)
    bound = _STUDENT[np.minimum(count - 1, _FREEDOM).astype(np.intp)] * np.sqrt(variance * (1 + 1 / count))
    return np.where(enough, mean, np.nan), np.where(enough, np.maximum(bound, _FLOOR), inf)


def _student_of(nu: float) -> float:
    constant = lgamma((nu + 1) / 2) - lgamma(nu / 2) - 0.5 * log(nu * pi)
    return exp((constant + (nu + 1) / 2 * log(nu) - log(nu) - log(_CHANCE / 2)) / nu)


#: By degrees of freedom: t that is exceeded, up or down, with a probability below `_CHANCE`, by the bound of the tail.
_STUDENT = np.array([inf, *(_student_of(nu) for nu in range(1, _FREEDOM + 1))])


@dataclass(slots=True)
class _Reference:
    """Logarithms of norms as expected; of a population its gains too, and how far from them is no chance."""

    norms: Doubles
    gains: Doubles | None = None
    bound: Doubles | None = None

    @classmethod
    def of(cls, moments: _Moments) -> _Reference:
        """Return the reference that a population is for one more leaf."""
        norms, gains = moments
        return cls(_mean_and_bound(norms)[0], *_mean_and_bound(gains))


@dataclass(slots=True)
class _Network:
    """Leaves that run the same network, of one step after the other."""

    names: TensorNames
    populations: list[_Moments] = field(default_factory=list)
    #: Of what all ranks of a step have alike, once a step.
    shared: list[_Moments] = field(default_factory=list)
    #: Tensors that were at the limit of their type, or infinite, at an earlier step.
    limited: Flags | None = None
    #: Inputs, and the outputs that they are; None before the first step.
    edges: tuple[Wholes, Wholes] | None = None
    steps: int = 0

    def past(self) -> _Reference | None:
        """Return the reference of the last steps; None before the first."""
        populations = [*self.populations, *self.shared]
        return _Reference.of(reduce(np.add, populations)) if populations else None

    def add(self, now: _Moments, shared: _Moments) -> None:
        """Add a step."""
        self.populations = [*self.populations[1 - _STEPS :], now]
        self.shared = [*self.shared[1 - _SHARED_STEPS :], shared]


class StatisticsJudge:
    """Takes the leaves of a run step by step and gives the evidence in each.

    Memory is that of the leaves of a step; of earlier ones it keeps a few numbers a tensor.
    """

    def __init__(self) -> None:
        self._networks: list[_Network] = []

    def step(
        self, leaves: Sequence[LeafStatistics], benchmark: Mapping[int, LeafStatistics] | None = None
    ) -> list[Evidence]:
        """Return the evidence in all ranks of a step later than those of earlier calls, in the order of execution.

        `benchmark` has by rank what the benchmark has of the same tensors, as if it had been dumped as statistics.
        """
        groups: dict[int, list[LeafStatistics]] = {}
        for leaf in leaves:
            network = self._network_of(leaf)
            groups.setdefault(network, []).append(aligned(leaf, self._networks[network].names))
        evidence: list[Evidence] = []
        for number, group in groups.items():
            evidence += self._judge(self._networks[number], group, benchmark or {})
        return evidence

    def admitted(self, leaf: LeafStatistics) -> LeafStatistics:
        """Return the leaf with the names of its network: what many leaves have in common is in memory once."""
        return aligned(leaf, self._networks[self._network_of(leaf)].names)

    def _network_of(self, leaf: LeafStatistics) -> int:
        ops = set(leaf.names.ops)
        for number, network in enumerate(self._networks):
            if leaf.names is network.names or leaf.names.ops == network.names.ops:
                return number
            if len(ops & set(network.names.ops)) >= _SAME_NETWORK * max(len(ops), len(network.names.ops)):
                return number
        self._networks.append(_Network(leaf.names))
        return len(self._networks) - 1

    def _judge(
        self, network: _Network, group: Sequence[LeafStatistics], benchmark: Mapping[int, LeafStatistics]
    ) -> Iterator[Evidence]:
        names = network.names
        if not len(names.op_of):
            return
        if network.steps < _LEARNING:
            network.edges = held(edges(group) if network.edges is None else network.edges, group)
        if network.edges is not None and network.steps:
            for leaf in group:
                yield from changed(leaf, network.edges)
        limited = np.array([_limited(leaf) for leaf in group])
        yield from self._not_finite(network, group, limited)
        shared = _shared_of(group)
        now = reduce(np.add, (_moments(_logs(leaf), names, shared) for leaf in group))
        past = network.past()
        for leaf in group:  # one after the other: all logarithms together would take much memory
            logs = _logs(leaf)
            if past is not None:
                yield from _off(EvidenceKind.JUMP, leaf, logs, past)
            if len(group) > _MEMBERS:
                others = now - _moments(logs, names, shared)
                yield from _off(EvidenceKind.OUTLIER, leaf, logs, _Reference.of(others))
            golden = benchmark.get(leaf.rank)
            if golden is not None:
                expected = _logs(aligned(golden, names, of_one_size=False))
                yield from _off(EvidenceKind.BENCHMARK, leaf, logs, _Reference(expected))
        network.add(now, _moments(_logs(group[0]), names, ~shared))
        at_limit = np.asarray(limited.any(axis=0))
        network.limited = at_limit if network.limited is None else network.limited | at_limit
        network.steps += 1

    def _not_finite(self, network: _Network, group: Sequence[LeafStatistics], limited: Flags) -> Iterator[Evidence]:
        """Yield NaN that an op made; Inf and values at the limit that neither an earlier step nor all ranks have."""
        names = network.names
        usual = np.asarray(limited.all(axis=0) if network.limited is None else network.limited)
        fed_of = [_any_input(names, (leaf.nans > 0) | limit) for leaf, limit in zip(group, limited, strict=True)]
        # What any rank feeds into communication may come out on all of them.
        communicates = np.array([is_communication(op_type) for op_type in names.types], bool)
        fed_of_any = np.array(fed_of).any(axis=0) & communicates
        for leaf, at_limit, bad_inputs in zip(
            group, limited, (of_leaf | fed_of_any for of_leaf in fed_of), strict=True
        ):
            own = names.is_output & ~bad_inputs[names.op_of]
            for number in np.flatnonzero(own & (leaf.nans > 0)).tolist():
                yield evidence_of(EvidenceKind.NAN, leaf, number, float(leaf.nans[number]), 0.0)
            for number in np.flatnonzero(own & at_limit & ~usual & (leaf.nans == 0)).tolist():
                if leaf.infs[number]:
                    yield evidence_of(EvidenceKind.INF, leaf, number, float(leaf.infs[number]), 0.0)
                else:
                    limit = float(names.limits[number])
                    yield evidence_of(EvidenceKind.AT_LIMIT, leaf, number, float(leaf.largest[number]), limit)


def _limited(leaf: LeafStatistics) -> Flags:
    with np.errstate(invalid="ignore"):
        flags: Flags = (leaf.infs > 0) | (leaf.largest >= leaf.names.limits)
    return flags


def _logs(leaf: LeafStatistics) -> Doubles:
    """Return logarithms of the norms; NaN of tensors that tell nothing: small ones, and those with NaN or Inf."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.maximum(np.log(leaf.sizes), _ZERO)
    dumb = (leaf.names.counts < ELEMENTS) | (leaf.nans > 0) | (leaf.infs > 0)
    return np.where(dumb, np.nan, logs)


def _shared_of(group: Sequence[LeafStatistics]) -> Flags:
    """Return tensors of which all ranks have the same: so many ranks are one observation, which is no population.

    Of one rank alone that cannot be seen; there it is what communication puts out.
    """
    names = group[0].names
    shared: Flags = (
        names.is_output & np.array([is_communication(op_type) for op_type in names.types], bool)[names.op_of]
    )
    if len(group) > 1:
        low = high = _logs(group[0])
        for leaf in group[1:]:
            logs = _logs(leaf)
            low, high = np.fmin(low, logs), np.fmax(high, logs)
        with np.errstate(invalid="ignore"):
            shared |= ~(high - low >= _SAME)
    return shared


def _any_input(names: TensorNames, flags: Flags) -> Flags:
    """Return whether any input of each op has its flag set."""
    result = np.zeros(len(names.ops), bool)
    result[names.op_of[flags & ~names.is_output]] = True
    return result


def _gains(logs: Doubles, names: TensorNames) -> Doubles:
    """Return what each output has over all inputs of its op together; NaN for inputs."""
    gains: Doubles = np.where(names.is_output, logs - _of_inputs(logs, names), np.nan)
    return gains


def _of_inputs(values: Doubles, names: TensorNames) -> Doubles:
    """Return the sum of what is known of the inputs of each tensor's op."""
    inputs = ~names.is_output
    weights = np.nan_to_num(values[inputs], nan=0.0)
    by_op: Doubles = np.bincount(names.op_of[inputs], weights=weights, minlength=len(names.ops)).astype(np.float64)
    return by_op[names.op_of]


def _off(kind: EvidenceKind, leaf: LeafStatistics, logs: Doubles, reference: _Reference) -> Iterator[Evidence]:
    """Return outputs that are farther off than what their op was fed, and the bound, explain."""
    names = leaf.names
    expected = reference.norms
    bound = np.full(len(logs), _FLOOR) if reference.bound is None else reference.bound
    off = np.abs(logs - expected)
    own = off - _of_inputs(off, names)
    spoiled = _any_input(names, leaf.nans + leaf.infs > 0)
    with np.errstate(invalid="ignore"):
        wrong = names.is_output & (own > _FLOOR) & ~spoiled[names.op_of]
        if reference.gains is not None:
            wrong &= np.abs(_gains(logs, names) - reference.gains) > bound
    for number in np.flatnonzero(wrong).tolist():
        yield evidence_of(
            kind, leaf, number, exp(logs[number]), exp(expected[number]), float(own[number]), float(bound[number])
        )


def suspicions(evidence: Iterable[Evidence], looked_at: Mapping[int, Sequence[LookedAt]]) -> list[Suspicion]:
    """Return the evidence by step and op, the earliest first. `looked_at` are the ranks that have each step."""
    groups: dict[tuple[int, int, str], list[Evidence]] = {}
    for item in sorted(evidence, key=lambda item: (item.when, item.kind)):
        groups.setdefault((item.step, item.number, item.op), []).append(item)
    results = []
    for (step, number, op), of_op in groups.items():
        wrong = {item.rank for item in of_op}
        kinds = {item.kind for item in of_op}
        others = [item for item in looked_at.get(step, ()) if item.rank not in wrong and op in item.ops]
        right = {item.rank for item in others if item.has_benchmark or kinds != {EvidenceKind.BENCHMARK}}
        results.append(
            Suspicion(
                step=step,
                op=op,
                type=of_op[0].type,
                number=number,
                kinds=tuple(sorted(kinds)),
                ranks=tuple(sorted(wrong)),
                right=tuple(sorted(right)),
                unknown=tuple(sorted({item.rank for item in others} - right)),
                evidence=tuple(of_op),
            )
        )
    return results


# --- the statistics of a study ---


#: What of a leaf's rows tells of its benchmark.
_BENCHMARK_COLUMNS = ("op", "slot", "benchmark_count", "benchmark_mean", "benchmark_std")
#: Of a study so many suspicions are kept; the first is what counts.
_MAX_SUSPICIONS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class OpBytes:
    """An op of the network: its place in the order of execution, the bytes of a whole dump of it, and what feeds it."""

    number: int
    name: str
    type: str
    nbytes: int
    producers: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StatisticsFound:
    """Result of the statistics of a study: the suspicions, the earliest first, and the ops that could be dumped whole.

    `ops` are by flattened name. `leaves` and `tensors` count what was looked at, `unread` are files that could not be.
    """

    suspicions: tuple[Suspicion, ...]
    leaves: int
    tensors: int
    ranks: tuple[int, ...]
    ops: Mapping[str, OpBytes] = field(repr=False)
    unread: tuple[Message | str, ...] = field(default=(), repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        rows = [
            {
                "step": suspicion.step, "op": suspicion.op, "type": suspicion.type,
                "ranks": list(suspicion.ranks), "right": list(suspicion.right),
                "unknown": list(suspicion.unknown),
                "certain": suspicion.is_certain, "kinds": [str(kind) for kind in suspicion.kinds],
                "evidence": [{**_plain(asdict(each)), "kind": str(each.kind)} for each in suspicion.evidence],
            }
            for suspicion in self.suspicions
        ]  # fmt: skip
        return {
            "suspicions": rows,
            "leaves": self.leaves,
            "tensors": self.tensors,
            "unread": list(map(render, self.unread)),
        }


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values for JSON: NaN, and other numbers that it has not, are null."""
    return {
        name: None if isinstance(value, float) and not np.isfinite(value) else value for name, value in values.items()
    }


def judge_statistics(
    states: Sequence[LeafState],
    columns: Callable[[LeafState, Sequence[str]], Columns | None],
    statistics: Callable[[LeafState], LeafStatistics | None],
    votes: Sequence[StepVotes] = (),
) -> StatisticsFound | None:
    """Judge all leaves that were dumped as statistics, in order, with their votes; None if none was.

    `columns` gives a leaf's rows, which tell its benchmark's tensors; only one of its own step and rank counts.
    `statistics` gives what workers read of a leaf; None for one that failed.
    """
    dumped = [state for state in states if state.leaf.statistics]
    if not dumped:
        return None
    dumped.sort(key=lambda state: (state.leaf.step, state.leaf.program, state.leaf.rank))
    judges: dict[str, StatisticsJudge] = {}
    by_step = {item.step: item for item in votes}
    wrong = settled(item.sums for item in votes).wrong
    evidence: list[Evidence] = []
    looked_at: dict[int, list[LookedAt]] = {}
    runs: dict[int, frozenset[str]] = {}  # of the names that ranks with one network share
    ops: dict[str, OpBytes] = {}
    unread: list[Message | str] = []
    tensors = 0
    for (step, program), of_step in groupby(dumped, key=lambda state: (state.leaf.step, state.leaf.program)):
        leaves, golden = [], {}
        judge = judges.setdefault(program, StatisticsJudge())
        for state in of_step:
            leaf_statistics = statistics(state)
            if leaf_statistics is None:
                unread.append(state.failure or "")
                continue
            leaf = judge.admitted(leaf_statistics)
            leaves.append(leaf)
            tensors += len(leaf.names.op_of)
            unread += leaf.unread
            rows = columns(state, _BENCHMARK_COLUMNS) if state.is_own else None
            if rows is not None:
                benchmark = benchmark_of(rows, step, leaf.rank)
                if benchmark.names.ops:
                    golden[leaf.rank] = benchmark
        for leaf in leaves:
            of_names = runs.setdefault(id(leaf.names), frozenset(leaf.names.ops))
            looked_at.setdefault(step, []).append(LookedAt(leaf.rank, of_names, leaf.rank in golden))
            if not set(leaf.names.ops) <= ops.keys():
                ops |= op_bytes(leaf)
        evidence += judge.step(leaves, golden)
        counted = by_step.get(step, StepVotes(step=step))
        evidence += voted(leaves, counted, (item for item in wrong if item.step == step))
    return StatisticsFound(
        suspicions=tuple(suspicions(evidence, looked_at)[:_MAX_SUSPICIONS]), leaves=len(dumped), tensors=tensors,
        ops=ops, ranks=tuple(sorted({leaf.rank for of_step in looked_at.values() for leaf in of_step})),
        unread=tuple(unread),
    )  # fmt: skip


def benchmark_of(rows: Columns, step: int, rank: int) -> LeafStatistics:
    """Return the benchmark's tensors of a leaf's rows, as if they had been dumped as statistics."""
    by_op: dict[str, dict[str, dict[int, TensorStatistics]]] = {}
    means, deviations = (np.asarray(rows[f"benchmark_{name}"], np.float64).tolist() for name in ("mean", "std"))
    counts = np.asarray(rows["benchmark_count"], np.int64).tolist()
    for op, slot, count, mean, std in zip(rows["op"], rows["slot"], counts, means, deviations, strict=True):
        side, _, number = str(slot).partition(":")
        if number.isdigit() and np.isfinite(mean) and np.isfinite(std):
            by_op.setdefault(flatten(str(op)), {}).setdefault(side, {})[int(number)] = TensorStatistics(
                path="", dtype="float32", shape=(count,), count=count, mean=mean, l2_norm=sqrt(count) * hypot(mean, std)
            )
    ops = [
        DumpedOp(name, "", timestamp=0, inputs={**sides.get("input", {})}, outputs={**sides.get("output", {})})
        for name, sides in by_op.items()
    ]
    return of_ops(ops, step, rank)


def op_bytes(leaf: LeafStatistics) -> dict[str, OpBytes]:
    """Return the ops of a leaf, each with the bytes of its inputs and outputs and the producers of its inputs."""
    names = leaf.names
    totals = np.zeros(len(names.ops), np.int64)
    np.add.at(totals, names.op_of, names.nbytes)
    producers: dict[int, list[str]] = {}
    for input_number, put_out in zip(*edges([leaf]), strict=True):
        producers.setdefault(int(names.op_of[input_number]), []).append(names.ops[names.op_of[put_out]])
    return {
        name: OpBytes(
            number=number, name=name, type=names.types[number], nbytes=int(totals[number]),
            producers=tuple(dict.fromkeys(producers.get(number, ()))),
        )
        for number, name in enumerate(names.ops)
    }  # fmt: skip
