"""What feeds the updates of each rank, compared slot by slot; ranks that read one batch, and ranks of another step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import isfinite, nan, prod
from statistics import median
from typing import TypeVar
from zlib import crc32

import numpy as np

from precision_tool.lib.compare.scheduler import map_tasks
from precision_tool.lib.data.dump_names import flatten
from precision_tool.lib.data.dumped_ops import DumpedOp, DumpIndex, Found, Missing
from precision_tool.lib.diagnose.op_values import DATA_TYPES, VARIABLE_TYPES
from precision_tool.lib.diagnose.recorded_collectives import Exchange
from precision_tool.lib.diagnose.replica_count import Ballot
from precision_tool.lib.diagnose.replica_votes import (
    BlockMeans,
    Digest,
    Means,
    Role,
    Vote,
    digest_of,
    is_all_reduce,
    updates_in_place,
)
from precision_tool.lib.diagnose.update_inputs import Feed, feed_of
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.model.graph import GraphFile, Op
from precision_tool.lib.model.wording import spans
from precision_tool.lib.ops.optimizers import updated_inputs

# --- what a worker reads: variables and data as the step found them ---


def source_votes(dumps: DumpIndex, file: GraphFile | None, executor: Executor | None = None) -> list[Vote]:
    """Return the variables and data of a leaf as votes, hashed here or by an `executor`.

    They are read where an op was given them first, as most were not dumped themselves; not where an op updates them,
    whose input may have been dumped before or after.
    """
    if file is None:
        return []
    sources = {op.name: role for op in file.ops if (role := _role_of(op)) is not None}
    by_name = {flatten(op.name): op for op in file.ops}
    in_place = updates_in_place(file.ops)
    places: dict[tuple[str, int], Found] = {}
    for name in dumps.names_by_time():
        op = by_name.get(name)
        if op is None:
            continue
        is_update = name in in_place or bool(updated_inputs(op.type))
        with suppress(PrecisionToolError):  # its row says why
            for place, tensor in _given(op, dumps, sources, is_update, places):
                places[place] = tensor
    calls = [(tensor, sources[name] is Role.DATA) for (name, _), tensor in places.items()]
    found: dict[str, dict[int, Digest]] = {}
    for (name, index), digest in zip(places, map_tasks(_digest, calls, executor), strict=True):
        if digest.value:
            found.setdefault(name, {})[index] = digest
    numbers = {op.name: number for number, op in enumerate(file.ops)}
    types = {op.name: op.type for op in file.ops}
    return [
        Vote(
            op=name, type=types[name], role=sources[name], number=numbers[name], epoch=0, inputs=(),
            outputs=tuple(digest.value for digest in _by_slot(by_index)),
            output_means=tuple(next(iter(digest.means), _NO_MEANS) for digest in _by_slot(by_index)),
        )
        for name, by_index in sorted(found.items(), key=lambda item: numbers[item[0]])
    ]  # fmt: skip


def _role_of(op: Op) -> Role | None:
    if op.type in VARIABLE_TYPES:
        return Role.VARIABLE
    # That of a subgraph stands for what the graph around it gives.
    return Role.DATA if op.type in DATA_TYPES and op.parent_index is None else None


def _given(
    op: Op,
    dumps: DumpIndex,
    sources: Mapping[str, Role],
    is_update: bool,
    read: Mapping[tuple[str, int], Found],
) -> Iterator[tuple[tuple[str, int], Found]]:
    """Yield the tensors of sources that an op puts out or is given, which were not read before."""
    wanted = [
        (slot, (edge.producer, edge.index))
        for slot, edge in enumerate(op.inputs)
        if edge is not None
        and (edge.producer, edge.index) not in read
        and (sources.get(edge.producer) is Role.DATA or (edge.producer in sources and not is_update))
    ]
    if not wanted and op.name not in sources:
        return
    dumped: DumpedOp = dumps.op(flatten(op.name))
    if op.name in sources:
        yield from (((op.name, index), tensor) for index, tensor in dumped.outputs.items())
    yield from ((place, dumped.inputs[slot]) for slot, place in wanted if slot in dumped.inputs)


#: The size of fewer elements tells nothing.
_FEWEST_ELEMENTS = 64
_NO_DIGEST = Digest("")
_NO_MEANS = BlockMeans(figures=np.empty((2, 0), np.float32), rounding=0)


def _digest(tensor: Found, is_data: bool) -> Digest:
    """Return the digest of a tensor, of data with their size."""
    is_large = not isinstance(tensor, Missing) and prod(tensor.shape or ()) >= _FEWEST_ELEMENTS
    try:
        return digest_of(tensor, Means(blocks=1) if is_data and is_large else None)
    except PrecisionToolError:
        return _NO_DIGEST


def _by_slot(digests: Mapping[int, Digest]) -> list[Digest]:
    return [digests.get(slot, _NO_DIGEST) for slot in range(max(digests) + 1)]


# --- a step ---


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedDeparture:
    """A variable, a learning rate, a gradient or the like that some replicas have otherwise.

    `ranks` have something else than the `agreeing` others; with `undecided` no majority tells which are right. `name`
    is that of the tensor's producer, or of the argument; `update` the op that is given it, "" where that is not known.
    `count` is how many of the step differ in this way.
    """

    step: int
    feed: Feed
    name: str
    type: str
    update: str
    ranks: tuple[int, ...]
    agreeing: tuple[int, ...]
    undecided: bool
    number: int
    epoch: int
    count: int = 1
    #: Steps in which it differs.
    steps: tuple[int, ...] = ()
    #: Whether it is of the first step that was dumped: nothing before it can have made the difference.
    is_first: bool = False
    #: A number among the arguments, or the root mean square of data of another size, and what the others have.
    value: float | None = None
    usual: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SameBatch:
    """Ranks that were given the same data. `is_all`: all of the step.

    Not `is_sure`: nothing shows that they put the same gradients in, so they may be parts of one model.
    """

    ranks: tuple[int, ...]
    is_all: bool
    is_sure: bool


@dataclass(frozen=True, kw_only=True)
class StepFeeds:
    """What differs between replicas in what feeds them in a step, and which of them read the same batch.

    `reading` has all ranks of which that can be told.
    """

    step: int
    departures: tuple[FeedDeparture, ...] = ()
    same_batch: tuple[SameBatch, ...] = ()
    reading: frozenset[int] = frozenset()


_ByRank = dict[int, Vote]
#: What some ranks have of one thing.
_Values = Mapping[int, str | tuple[str, ...]]


@dataclass
class _Network:
    """The votes of the ranks of one network, by op."""

    updates: dict[str, _ByRank] = field(default_factory=dict)
    variables: dict[str, _ByRank] = field(default_factory=dict)
    data: dict[str, _ByRank] = field(default_factory=dict)
    #: Collectives, by name, group and turn.
    collectives: dict[tuple[str, str, str], _ByRank] = field(default_factory=dict)

    def take(self, rank: int, vote: Vote) -> None:
        key = (vote.op, vote.group, vote.turn)
        if vote.role is Role.UPDATE:
            self.updates.setdefault(vote.op, {})[rank] = vote
        elif vote.role is Role.VARIABLE:
            self.variables.setdefault(vote.op, {})[rank] = vote
        elif vote.role is Role.DATA:
            self.data.setdefault(vote.op, {})[rank] = vote
        else:
            self.collectives.setdefault(key, {})[rank] = vote


def feeds_of_step(step: int, ballots: Iterable[Ballot]) -> StepFeeds:
    """Compare what feeds the ranks of each network in a step."""
    networks: dict[tuple[str, int], _Network] = {}
    places: Counter[tuple[int, str]] = Counter()
    every: set[int] = set()
    for rank, name, votes in ballots:
        every.add(rank)
        network = networks.setdefault((name, places[rank, name]), _Network())
        places[rank, name] += 1
        for vote in votes:
            network.take(rank, vote)
    departures: list[FeedDeparture] = []
    same_batch: list[SameBatch] = []
    reading: set[int] = set()
    for network in networks.values():
        departures += _Feeds(step, network).departures()
        batches, ranks = _batches(network, every)
        same_batch += batches
        reading |= ranks
    return StepFeeds(step=step, departures=tuple(departures), same_batch=tuple(same_batch), reading=frozenset(reading))


@dataclass(frozen=True, slots=True)
class _Slot:
    """An input of an update on all ranks."""

    feed: Feed
    name: str
    producer: str
    values: _Values
    is_tensor: bool


#: Data of other ranks are of one size where they are within this factor, and one rank's are not beyond the other.
_NEAR, _FAR = 1.5, 8.0
_FEWEST_RANKS = 3


class _Feeds:
    """Compares the slots of the updates of one network."""

    def __init__(self, step: int, network: _Network) -> None:
        self._step = step
        self._network = network
        #: The slots of updates that not all ranks are given the same: these are few.
        self._slots = {
            op: list(_slots(votes))
            for op, votes in network.updates.items()
            if len({vote.inputs for vote in votes.values()}) > 1
        }
        #: The updates of each variable in the step, in order.
        self._updates_of: dict[str, list[str]] = {}
        for op in sorted(network.updates, key=lambda name: _first(network.updates[name]).number):
            variable = _variable_of(_first(network.updates[op]))
            if variable:
                self._updates_of.setdefault(variable, []).append(op)
        self._are_summed = any(vote.summed_by for votes in network.updates.values() for vote in votes.values())

    def departures(self) -> list[FeedDeparture]:
        """Return what differs, the first of each kind and ranks for all."""
        rates = _merged(self._settings())
        values = _merged(self._values())
        states = [each for each in values if each.feed is Feed.STATE]
        # Another rate made variables differ in earlier steps. Momenta are of the gradients, which all have alike.
        at_odds = {rank for each in rates for rank in each.ranks} - {rank for each in states for rank in each.ranks}
        values = [each for each in values if not at_odds.issuperset(each.ranks)]
        hit = {rank for each in (*rates, *values) for rank in each.ranks}
        gradients = [each for each in _merged(self._gradients()) if not hit.intersection(each.ranks)]
        of_states = {each.ranks: each.count for each in values if each.feed is Feed.STATE}
        variables = [replace(each, count=each.count + of_states.pop(each.ranks, 0)) for each in values
                     if each.feed is Feed.VARIABLE]  # fmt: skip
        states = [each for each in values if each.feed is Feed.STATE and each.ranks in of_states]
        return [*rates, *variables, *states, *_merged(self._data()), *gradients]

    def _settings(self) -> Iterator[FeedDeparture]:
        """Yield learning rates and other numbers, which no two ranks have otherwise."""
        for op, slots in self._slots.items():
            for slot in slots:
                if slot.feed in (Feed.LEARNING_RATE, Feed.SETTING):
                    for found in self._departure(slot.feed, slot.producer or op, op, slot.values, True):
                        yield found if slot.is_tensor else _with_numbers(found, slot.values)

    def _values(self) -> Iterator[FeedDeparture]:
        """Yield variables, and what optimizers remember, that replicas have otherwise."""
        for name, votes in self._network.variables.items():
            values = _outputs(votes)
            if len(set(values.values())) > 1:
                yield from self._value(Feed.VARIABLE, name, self._updates_of.get(name, ()), values, _first(votes))
        for variable, updates in self._updates_of.items():
            for slot in self._slots.get(updates[0], ()):
                is_read_before = slot.producer in self._network.variables
                if slot.feed in (Feed.VARIABLE, Feed.STATE) and not is_read_before:
                    name = slot.producer or f"{variable} ({slot.name})"
                    yield from self._value(slot.feed, name, updates, slot.values)

    def _value(
        self, feed: Feed, name: str, updates: Sequence[str], values: _Values, vote: Vote | None = None
    ) -> Iterator[FeedDeparture]:
        """Yield what replicas have otherwise of a variable.

        They are given the same gradient: parts of a variable have gradients of their own. Without the gradient a
        majority tells.
        """
        update = next(iter(updates), "")
        slots = (slot for op in updates for slot in _slots(self._network.updates[op]))
        gradients = [slot.values for slot in slots if slot.feed is Feed.GRADIENT]
        if not any(any(by_rank.values()) for by_rank in gradients):
            yield from self._departure(feed, name, update, values, False, vote)
            return
        votes = [vote for op in updates for vote in self._network.updates[op].values()]
        is_summed = any(vote.summed_by for vote in votes)
        groups: dict[Hashable, dict[int, str | tuple[str, ...]]] = defaultdict(dict)
        for rank, value in values.items():
            groups[tuple(by_rank.get(rank, "") for by_rank in gradients)][rank] = value
        if not is_summed and (self._are_summed or len(groups) > 1):
            return  # of experts, and other parts, those with nothing to do have one gradient too: zero
        for group in groups.values():
            yield from self._departure(feed, name, update, group, True, vote)

    def _gradients(self) -> Iterator[FeedDeparture]:
        """Yield gradients that differ behind a sum that came out the same.

        Ranks that each update a part of a variable take other parts of one sum.
        """
        for op, slots in self._slots.items():
            votes = self._network.updates[op]
            sums = {vote.summed_by for vote in votes.values()}
            if "" in sums or len(sums) != 1:
                continue
            came = self._sums(sums.pop())
            parts = [slot.values for slot in slots if slot.feed in (Feed.VARIABLE, Feed.STATE)]
            parts.append(_outputs(self._network.variables.get(_variable_of(_first(votes)), {})))
            groups: dict[Hashable, list[int]] = defaultdict(list)
            for rank in votes:
                if rank in came:
                    groups[came[rank], tuple(by_rank.get(rank, "") for by_rank in parts)].append(rank)
            for slot in slots:
                if slot.feed is Feed.GRADIENT:
                    for ranks in groups.values():
                        values = {rank: slot.values[rank] for rank in ranks if rank in slot.values}
                        yield from self._departure(slot.feed, slot.producer or op, op, values, True)

    def _sums(self, name: str) -> dict[int, tuple[str, ...]]:
        """Return what a collective gave each rank."""
        return {
            rank: vote.outputs
            for (op, _, _), votes in self._network.collectives.items()
            if op == name
            for rank, vote in votes.items()
            if vote.role is Role.COLLECTIVE
        }

    def _data(self) -> Iterator[FeedDeparture]:
        """Yield data that a rank has otherwise than the other parts of one model, which must be given the same.

        And data of quite another size than those of all other ranks, as if they had not been scaled.
        """
        for name, votes in self._network.data.items():
            for slot in range(min(len(vote.output_means) for vote in votes.values())):
                yield from self._scale(name, slot, votes)
        is_split = any(_majority(_outputs(votes)) is None for votes in self._network.variables.values())
        if is_split and _majority(_of_all(self._network.data)) is not None:
            for name, votes in self._network.data.items():
                yield from self._departure(Feed.DATA, name, "", _outputs(votes), False, _first(votes))

    def _scale(self, name: str, slot: int, votes: _ByRank) -> Iterator[FeedDeparture]:
        sizes = {
            rank: float(vote.output_means[slot].figures[1, 0])
            for rank, vote in votes.items()
            if vote.output_means[slot].figures.size
        }
        usual = median(sizes.values()) if len(sizes) >= _FEWEST_RANKS else nan
        far = {rank: size for rank, size in sizes.items() if not usual / _FAR <= size <= usual * _FAR}
        near = [size for rank, size in sizes.items() if rank not in far]
        if not (isfinite(usual) and usual and len(far) == 1 and max(near) <= _NEAR * min(near)):
            return
        ((rank, size),) = far.items()
        if isfinite(size):
            vote = votes[rank]
            yield FeedDeparture(
                step=self._step, feed=Feed.DATA, name=name, type=vote.type, update="", ranks=(rank,),
                agreeing=tuple(sorted(set(sizes) - {rank})), undecided=False, number=vote.number, epoch=vote.epoch,
                steps=(self._step,), value=size, usual=usual,
            )  # fmt: skip

    def _departure(
        self, feed: Feed, name: str, update: str, values: _Values, may_be_open: bool, vote: Vote | None = None
    ) -> Iterator[FeedDeparture]:
        """Yield what ranks have something else of; where no majority tells which of them, only if it `may_be_open`."""
        present = {rank: value for rank, value in values.items() if value}
        if len(set(present.values())) < 2:
            return
        most = _majority(present)
        if most is None and not may_be_open:
            return
        at = vote or _first(self._network.updates[update])
        agreeing = tuple(sorted(rank for rank, value in present.items() if value == most))
        yield FeedDeparture(
            step=self._step, feed=feed, name=name, type=at.type if name == at.op else "", update=update,
            number=at.number, epoch=at.epoch,
            ranks=tuple(sorted(set(present) - set(agreeing))), agreeing=agreeing, undecided=most is None,
            steps=(self._step,),
        )  # fmt: skip


def _with_numbers(found: FeedDeparture, values: _Values) -> FeedDeparture:
    """Return a departure of a number among the arguments with the number, and with another that ranks have."""
    own = values[found.ranks[0]]
    other = next(value for rank, value in values.items() if value != own)
    return replace(found, value=_number(own), usual=_number(other))


def _number(value: object) -> float:
    """Return a number from what `numbers_of` made of it."""
    return float(value == "True") if value in ("True", "False") else float(str(value))


def _first(votes: _ByRank) -> Vote:
    return next(iter(votes.values()))


def _variable_of(vote: Vote) -> str:
    """Return the variable that an update is of, "" where that is not known."""
    for place, fed in enumerate(vote.fed_by):
        name, is_tensor, producer = fed.partition("\t")
        if feed_of(vote.type, place, name, bool(is_tensor)) is Feed.VARIABLE:
            return producer
    return ""


def _slots(votes: _ByRank) -> Iterator[_Slot]:
    """Yield the inputs of an update. One that was dumped after the update tells nothing of what was before it."""
    for place, fed in enumerate(_first(votes).fed_by):
        name, is_tensor, producer = fed.partition("\t")
        values = {
            rank: vote.inputs[place] for rank, vote in votes.items() if place < len(vote.inputs) and vote.inputs[place]
        }
        feed = feed_of(_first(votes).type, place, name, bool(is_tensor))
        if feed in (Feed.VARIABLE, Feed.STATE):
            values = {rank: value for rank, value in values.items() if value not in votes[rank].outputs}
        yield _Slot(feed, name, producer, values, bool(is_tensor))


def _outputs(votes: _ByRank) -> dict[int, tuple[str, ...]]:
    return {rank: vote.outputs for rank, vote in votes.items()}


def _of_all(by_op: Mapping[str, _ByRank]) -> dict[int, tuple[tuple[str, ...], ...]]:
    """Return what each rank has of all of some ops; only of ranks that have them all."""
    ranks = set[int].intersection(*map(set, by_op.values())) if by_op else set[int]()
    return {rank: tuple(by_op[op][rank].outputs for op in sorted(by_op)) for rank in ranks}


_Value = TypeVar("_Value", bound=Hashable)


def _majority(values: Mapping[int, _Value]) -> _Value | None:
    """Return what more than half of the ranks have; None where they have nothing so."""
    most, count = next(iter(Counter(values.values()).most_common(1)), (None, 0))
    return most if 2 * count > len(values) else None


def _merged(departures: Iterable[FeedDeparture]) -> list[FeedDeparture]:
    """Return the first of the departures of each kind and ranks, with their number."""
    found: dict[tuple[Feed, tuple[int, ...]], FeedDeparture] = {}
    for each in sorted(departures, key=lambda item: (item.epoch, item.number)):
        key = each.feed, each.ranks
        found[key] = replace(found[key], count=found[key].count + 1) if key in found else each
    return list(found.values())


# --- the same batch on several ranks ---


def _batches(network: _Network, every: Set[int]) -> tuple[list[SameBatch], set[int]]:
    """Return ranks that read the same batch, and all of which that can be told; `every` has all ranks of the step.

    Equal data alone do not tell: those of a mask, or of a step's number, are equal on all ranks. But ranks that sum
    gradients up, and each put the same in, computed the same thing. Parts of one model have other variables.
    """
    data = _of_all(network.data)
    variables = _of_all(network.variables)
    ranks = {*data} & {*variables} if variables else {*data}
    found = []
    for group in _alike(data, ranks):
        for part in [group] if _is_in_parts(network, group) else _alike(variables, group):
            put_in = _put_in(network, part) if len(part) > 1 else []
            told = [alike for _, alike in put_in if alike is not None]
            if put_in and all(told):
                found.append(SameBatch(ranks=tuple(sorted(part)), is_all=part == every, is_sure=bool(told)))
    return found, ranks


def _alike(values: Mapping[int, Hashable], ranks: Iterable[int]) -> list[set[int]]:
    """Return the ranks that have the same, together."""
    groups: dict[Hashable, set[int]] = defaultdict(set)
    for rank in ranks:
        groups[values.get(rank)].add(rank)
    return list(groups.values())


def _is_in_parts(network: _Network, group: set[int]) -> bool:
    """Return whether ranks that have some variables otherwise hold parts of them, and compute the same gradients.

    They do where the gradient of each of these came out of a sum that all of them put the same in.
    """
    differing = {name for name, votes in network.variables.items() if len({votes[rank].outputs for rank in group}) > 1}
    if not differing:
        return True
    firsts = [_first(votes) for votes in network.updates.values()]
    sums = {name: {vote.summed_by for vote in firsts if _variable_of(vote) == name} for name in differing}
    alike = {op for op, is_alike in _put_in(network, group) if is_alike}
    return all(of_name and of_name <= alike for of_name in sums.values())


def _put_in(network: _Network, group: set[int]) -> list[tuple[str, bool | None]]:
    """Return sums over some ranks, and whether all put in the same; None of one dumped when it was written over."""
    alike: list[tuple[str, bool | None]] = []
    for (op, _, _), votes in network.collectives.items():
        first = _first(votes)
        if not group <= votes.keys() or first.collective.reduction not in ("sum", "avg"):
            continue
        is_sum = is_all_reduce(first.type.replace("_", ""), None)
        is_sum |= first.collective.exchange is Exchange.REDUCE_SCATTER
        if is_sum and any(first.inputs):
            is_over = any(votes[rank].inputs == votes[rank].outputs for rank in group)
            alike.append((op, None if is_over else len({votes[rank].inputs for rank in group}) == 1))
    return alike


# --- all steps ---


def of_all_steps(steps: Sequence[StepFeeds]) -> tuple[list[FeedDeparture], list[SameBatch]]:
    """Return what differs in any step, once, in its first; and ranks that read the same batch in every step."""
    found: dict[tuple[Feed, str, tuple[int, ...]], FeedDeparture] = {}
    for of_step in steps:
        for each in of_step.departures:
            key = each.feed, each.name, each.ranks
            if key in found:
                found[key] = replace(found[key], steps=(*found[key].steps, each.step))
            else:
                found[key] = replace(each, is_first=of_step is steps[0])
    telling = [of_step for of_step in steps if of_step.reading]
    kept: dict[tuple[int, ...], SameBatch] = {}
    for batch in (each for of_step in telling for each in of_step.same_batch):
        kept[batch.ranks] = replace(batch, is_sure=batch.is_sure and kept.get(batch.ranks, batch).is_sure)
    always = [
        batch
        for ranks, batch in kept.items()
        if all(ranks in {each.ranks for each in of_step.same_batch} for of_step in telling)
    ]
    return list(found.values()), always


# --- ranks whose steps are others' ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """Ranks whose step k + `offset` is the others' step k to the bit: behind these by so many, or ahead.

    `steps` are those of their own that are not the others' of that number; `own` is one of them, `theirs` its like.
    """

    ranks: tuple[int, ...]
    offset: int
    steps: tuple[int, ...]
    own: int
    theirs: int


#: Ops of a step that are held against those of other steps.
_MOST_MARKS = 64
#: What a rank has of some ops, hashed.
_Marks = dict[str, int]


def shifts_of(steps: Iterable[tuple[int, Iterable[Ballot]]]) -> tuple[Shift, ...]:
    """Return the ranks that have what the others have, but in other steps.

    Of two ranks the first counts as the others: which of them is of the wrong step nothing tells.
    """
    networks: dict[str, dict[int, dict[int, _Marks]]] = {}
    for step, ballots in steps:
        for rank, network, votes in ballots:
            by_rank = networks.setdefault(network, {}).setdefault(step, {})
            by_rank.setdefault(rank, _marks(votes))
    found: dict[tuple[int, tuple[int, ...], int, int], list[int]] = {}
    for by_step in networks.values():
        ranks = sorted({rank for by_rank in by_step.values() for rank in by_rank})
        common = _common(by_step, ranks)
        values: dict[str, set[int]] = {}
        for marks in common.values():
            for key, value in marks.items():
                values.setdefault(key, set()).add(value)
        changing = {key for key, of_key in values.items() if len(of_key) > 1}
        for rank in ranks[1:] if len(ranks) == 2 else ranks:
            own = {step: by_rank[rank] for step, by_rank in by_step.items() if rank in by_rank}
            shift = _shift(own, common, changing)
            if shift is not None:
                found.setdefault(shift, []).append(rank)
    return tuple(
        Shift(ranks=tuple(ranks), offset=offset, steps=of_steps, own=own_step, theirs=theirs)
        for (offset, of_steps, own_step, theirs), ranks in found.items()
    )


def _marks(votes: Sequence[Vote]) -> _Marks:
    """Return what a rank has of what all may have alike: what collectives gave, variables and their updates."""
    kept = (vote for vote in votes if vote.role in (Role.COLLECTIVE, Role.UPDATE, Role.VARIABLE))
    by_key = {f"{vote.role} {vote.group} {vote.turn or vote.op}": vote for vote in kept}
    chosen = sorted(by_key, key=lambda key: (crc32(key.encode("utf-8", "surrogateescape")), key))[:_MOST_MARKS]
    return {key: hash(by_key[key].outputs) for key in chosen}


def _common(by_step: Mapping[int, Mapping[int, _Marks]], ranks: Sequence[int]) -> dict[int, _Marks]:
    """Return by step what most ranks have; of two ranks what the first has, if the second has it in any step."""
    if len(ranks) == 2:
        first, second = (
            {step: by_rank[rank] for step, by_rank in by_step.items() if rank in by_rank} for rank in ranks
        )
        of_second = {item for marks in second.values() for item in marks.items()}
        shared = {key for marks in first.values() for key, value in marks.items() if (key, value) in of_second}
        return {step: {key: marks[key] for key in shared & marks.keys()} for step, marks in first.items()}
    common = {}
    for step, by_rank in by_step.items():
        if len(by_rank) < 2:
            continue  # what a rank has alone is not the others'
        keys = {key for marks in by_rank.values() for key in marks}
        most = {key: _majority({rank: marks[key] for rank, marks in by_rank.items() if key in marks}) for key in keys}
        common[step] = {key: value for key, value in most.items() if value is not None}
    return common


def _shift(
    own: Mapping[int, _Marks], common: Mapping[int, _Marks], changing: Set[str]
) -> tuple[int, tuple[int, ...], int, int] | None:
    """Return offset and steps of a rank that are the others', with one of each; None where they are not.

    A step is known by something that is `changing`: frozen variables are those of any step.
    """
    others = tuple(sorted(step for step, marks in own.items() if not _is_like(marks, common.get(step, {}))))
    for first in others:
        telling = changing & own[first].keys()
        likes = sorted(
            (abs(first - step), step)
            for step in common
            if telling & common[step].keys() and _is_like(own[first], common[step])
        )
        for _, theirs in likes:
            offset = first - theirs
            if all(step - offset not in common or _is_like(own[step], common[step - offset]) for step in others):
                return offset, others, first, theirs
    return None


def _is_like(marks: _Marks, others: _Marks) -> bool:
    shared = marks.keys() & others.keys()
    return bool(shared) and all(marks[key] == others[key] for key in shared)


def same_batch_note(batch: SameBatch) -> Message:
    """Return what to say of ranks that read the same batch."""
    return Message("study.same_batch", all=batch.is_all, ranks=spans(batch.ranks), sure=batch.is_sure)
