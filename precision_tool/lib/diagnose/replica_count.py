"""The votes of a step's ranks counted: groups of communication, then whose sums are wrong, then who departs from whom.

Groups come first. Ranks are of one group where their graphs say so, where they know its size and are so many, or where
what some of them got is the sum of what just these ranks put in. Sums are judged over complete groups only; all else
cannot be told. A majority is counted within a group.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from precision_tool.lib.diagnose.recorded_collectives import SAME_FOR_ALL, Collective, Exchange
from precision_tool.lib.diagnose.replica_votes import BlockMeans, Floats, Role, Vote, is_communication

Doubles = npt.NDArray[np.float64]


class When(NamedTuple):
    """When an op ran, on any rank: what is earlier is less. The only order of a study.

    `epoch` counts the communication ops before it; a communication op itself ends its epoch, so that what feeds it on
    another rank is earlier. What ran between the same two on several ranks is in the order of ranks.
    """

    step: int
    epoch: int
    is_communication: bool
    rank: int
    number: int


def when(step: int, epoch: int, op_type: str, rank: int, number: int) -> When:
    """Return when an op ran."""
    return When(step, epoch, is_communication(op_type), rank, number)


# --- what is counted ---


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


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongSum:
    """A collective that gave `ranks` something else than the sum of what all put in; `right` have that sum.

    Of a broadcast, and others that add nothing up, what was put in is meant where this says sum.
    """

    step: int
    op: str
    type: str
    number: int
    epoch: int
    ranks: tuple[int, ...]
    right: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSums:
    """What the collectives of a step gave.

    `right` are names and ranks of complete groups that all got the sum, `wrong` those of which some did not. `open` are
    ranks of which the group is not known yet, `groups` those that sums have shown, by name.
    """

    right: frozenset[tuple[str, tuple[int, ...]]] = frozenset()
    wrong: tuple[WrongSum, ...] = ()
    open: tuple[OpenSum, ...] = field(default=(), repr=False)
    groups: frozenset[tuple[str, frozenset[int]]] = frozenset()
    #: How many collectives gave each group its sum.
    counts: Counter[tuple[str, frozenset[int]]] = field(default_factory=Counter)


@dataclass(frozen=True, kw_only=True)
class StepVotes:
    """The votes of a step: how many tensors replicas agree on, and on what they do not, in the order of execution."""

    step: int
    agreed: int = 0
    departures: tuple[Departure, ...] = ()
    #: Which collectives gave what the ranks put in.
    sums: StepSums = field(default_factory=StepSums)


# --- sums ---


#: A mean that comes out of an all-reduce may be off the sum by this share of the norms: float32 and printed digits.
SUM_SHARE = 1e-3
#: A sum shows a group if each rank put in so many times what it may be off: without any of them it would be wrong.
_SHOWS = 2.0
#: Of one op so many different results stay in memory until all steps are counted.
_MAX_OPEN = 64
_ADDED_UP = (Exchange.ALL_REDUCE, Exchange.REDUCE)


#: What GE calls the group of all ranks.
WORLD = "hccl_world_group"
#: Names that end with the ranks of their group: `tp_0_1`, `group-4-5-6-7`; of others the numbers are no ranks.
_LISTED_NAME = re.compile(r"\d+(?:[-_,]\d+)+$")


@dataclass(slots=True, eq=False, kw_only=True)
class _Alike:
    """Ranks that got the same of a collective, and what they put in, added up; `came` is None for those that get none.

    `parts` has shape (3, blocks): what they put in, combined, the sum of its sizes, and the least that any put in; None
    where that does not fit together.
    """

    ranks: list[int]
    came: Floats | None
    parts: Doubles | None = None
    rounding: float
    #: Whether one put in what it got: its input may be written over.
    kept: bool = False
    #: What each of a few ranks put in.
    each: dict[int, Floats] = field(default_factory=dict)

    def among(self, ranks: frozenset[int]) -> _Alike | None:
        """Return those of some ranks; None where it is not known what these put in."""
        if ranks.issuperset(self.ranks):
            return self
        few = {rank: self.each[rank] for rank in self.ranks if rank in ranks and rank in self.each}
        if not few or not few.keys() >= ranks.intersection(self.ranks):
            return None
        figures = np.array([*few.values()], np.float64)
        parts = np.stack((figures[:, 0].sum(axis=0), figures[:, 1].sum(axis=0), np.abs(figures[:, 0]).min(axis=0)))
        return replace(self, ranks=[*few], parts=parts, each=few)

    def add(self, rank: int, vote: Vote, collective: Collective) -> None:
        """Add a rank that got the same."""
        self.ranks.append(rank)
        for each in vote.input_means:
            self.rounding = max(self.rounding, each.rounding)
        self.kept |= _has_kept(vote)
        figures = _joined(vote.input_means)
        if self.parts is None or self.parts.shape[1] != figures.shape[1] or vote.collective != collective:
            self.parts = None
            return
        if len(self.ranks) <= _MAX_OPEN:
            self.each[rank] = figures
        figures_of_all, sizes, least = self.parts
        _COMBINE.get(collective.reduction, np.add)(figures_of_all, figures[0], out=figures_of_all)
        sizes += figures[1]
        np.minimum(least, np.abs(figures[0]), out=least)


#: How collectives combine numbers that they do not add.
_COMBINE = {"max": np.maximum, "min": np.minimum}


def _combined(parts: Doubles | None, others: Doubles | None, reduction: str) -> Doubles | None:
    if parts is None or others is None or parts.shape != others.shape:
        return None
    combine = _COMBINE.get(reduction, np.add)
    return np.stack((combine(parts[0], others[0]), parts[1] + others[1], np.minimum(parts[2], others[2])))


def _alike_of(rank: int, vote: Vote, came: Floats | None, collective: Collective) -> _Alike:
    """Return one rank's part in a collective that adds up, which got `came`; none in another one."""
    return _Alike(
        ranks=[rank], came=came, parts=_put_in(vote.input_means) if vote.collective == collective else None,
        rounding=max(each.rounding for each in (*vote.input_means, *vote.output_means)), kept=_has_kept(vote),
        each={rank: _joined(vote.input_means)},
    )  # fmt: skip


def _has_kept(vote: Vote) -> bool:
    return vote.inputs == vote.outputs and any(vote.inputs)


def _put_in(blocks: Sequence[BlockMeans]) -> Doubles:
    figures = _joined(blocks)
    return np.stack((figures[0], figures[1], np.abs(figures[0])), dtype=np.float64)


def _joined(blocks: Sequence[BlockMeans]) -> Floats:
    """Return figures and sizes of all blocks; shape (2, blocks)."""
    return blocks[0].figures if len(blocks) == 1 else np.concatenate([each.figures for each in blocks], axis=1)


class _Group:
    """Ranks that are taken for the group of a collective, by what they got: which of them have the sum.

    `places` are the inputs that make up the result where that is not all that the ranks put in.
    """

    def __init__(
        self, members: Sequence[_Alike], collective: Collective, places: Sequence[BlockMeans] | None = None
    ) -> None:
        self._members = members
        self.ranks = frozenset(rank for each in members for rank in each.ranks)
        put_in = [each.parts for each in members] if places is None else [_put_in([each]) for each in places]
        count = len(self.ranks) if places is None else len(places)
        rounding = max([each.rounding for each in members] + [each.rounding for each in places or ()])
        total = reduce(partial(_combined, reduction=collective.reduction), put_in)
        self._expected: Doubles | None = None
        if total is not None and np.isfinite(total).all():
            share = count if collective.reduction == "avg" else 1
            self._expected = total[0] / share
            self._limit: Doubles = total[1] / share * (rounding if collective.is_copy else SUM_SHARE + count * rounding)
            self._least: Doubles | None = None if collective.is_copy else total[2] / share
        self._is_right = [self._gives(each, 1) for each in members]

    def _gives(self, member: _Alike, share: int) -> bool | None:
        """Return whether ranks got what all put in, divided by `share`; None where that cannot be told."""
        if self._expected is None or member.came is None or member.came.shape != self._expected.shape:
            return None
        with np.errstate(invalid="ignore"):
            return bool((np.abs(member.came * share - self._expected) <= self._limit).all())

    def _with(self, flag: bool) -> list[int]:
        pairs = zip(self._is_right, self._members, strict=True)
        return [rank for is_right, each in pairs if is_right is flag for rank in each.ranks]

    @property
    def is_told(self) -> bool:
        """True if it is known of all ranks that get anything whether it is the sum."""
        pairs = zip(self._is_right, self._members, strict=True)
        told = [is_right is not None for is_right, each in pairs if each.came is not None]
        return bool(told) and all(told)

    @property
    def is_right(self) -> bool:
        """True if all ranks got the sum."""
        return self.is_told and not self.wrong

    @property
    def wrong(self) -> list[int]:
        """Ranks that got something else."""
        return self._with(False)

    @property
    def right(self) -> list[int]:
        """Ranks that got the sum."""
        return self._with(True)

    @property
    def shows_itself(self) -> bool:
        """True if some got the sum of just these ranks, and would not have without any of them."""
        if len(self.ranks) < 2 or not any(self._is_right) or self._least is None:  # of maxima, one rank may tell all
            return False
        return bool((self._least > _SHOWS * self._limit).any())

    @property
    def tells_nothing(self) -> bool:
        """True if inputs may be written over: some put in what they, and others, got."""
        return any(each.kept and each.came is not None and len(each.ranks) > 1 for each in self._members)

    @property
    def is_mean(self) -> bool:
        """True if all got the mean in the place of the sum, as of some libraries."""
        return all(self._gives(each, len(self.ranks)) for each in self._members)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSum:
    """Ranks of a collective of which their step alone does not show whether they are a complete group.

    `group` is what it is called, by which other collectives may show it. `members` are empty where that is in vain.
    """

    wrong: WrongSum
    group: str
    collective: Collective
    members: tuple[_Alike, ...] = field(repr=False)

    def within(self, ranks: frozenset[int]) -> _Group | None:
        """Return these ranks as the group; None where it is not known what just these put in."""
        members = [each.among(ranks) for each in self.members if not ranks.isdisjoint(each.ranks)]
        known = [each for each in members if each is not None]
        if self.collective.reduction not in ("sum", "avg") and known != list(self.members):
            return None
        group = _Group(known, self.collective) if known else None
        return group if group is not None and group.ranks == ranks else None


@dataclass(slots=True)
class _Op:
    """The votes on one op: what each rank had of it, and of a collective what was put in."""

    first: Vote
    inputs: dict[int, tuple[str, ...]] = field(default_factory=dict)
    outputs: dict[int, tuple[str, ...]] = field(default_factory=dict)
    #: What came out on any rank, each once.
    results: dict[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)
    alike: dict[tuple[str, ...], _Alike] = field(default_factory=dict)
    #: Votes on an exchange that adds nothing up over whole tensors.
    exchanged: dict[int, Vote] = field(default_factory=dict)
    #: What came of it, where all get the same.
    came: dict[tuple[str, ...], tuple[BlockMeans, ...]] = field(default_factory=dict)
    sizes: set[int] = field(default_factory=set)
    places: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add(self, rank: int, vote: Vote) -> None:
        """Count the vote of a rank; of what all got alike one copy stays."""
        collective = vote.collective
        self.inputs[rank] = vote.inputs
        outputs = self.outputs[rank] = self.results.setdefault(vote.outputs, vote.outputs)
        self.places[rank] = vote.epoch, vote.number
        self.sizes |= {vote.size} - {0}
        if collective.exchange not in _ADDED_UP:
            if collective.exchange in SAME_FOR_ALL:  # each rank has the pieces of all: those are there once
                came = self.came.setdefault(outputs, vote.output_means)
                vote = replace(vote, output_means=came)
            self.exchanged[rank] = vote
        elif vote.input_means:
            own = self.first.collective
            gets = own.exchange is not Exchange.REDUCE or own.root == rank
            key = outputs if gets else ()
            if key in self.alike:
                self.alike[key].add(rank, vote, own)
            else:
                self.alike[key] = _alike_of(rank, vote, _joined(vote.output_means)[0] if gets else None, own)

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks that voted."""
        return frozenset(self.outputs)

    def differ(self, ranks: Iterable[int]) -> bool:
        """Return whether some ranks have not the same results."""
        return len({self.outputs[rank] for rank in ranks}) > 1

    @property
    def is_of_all(self) -> bool:
        """True if it is said to be of all ranks that were trained together."""
        vote = self.first
        is_default = bool(vote.turn) and not vote.collective.ranks
        return vote.group == WORLD or is_default or vote.type.casefold().startswith("horovod")

    @property
    def group(self) -> str:
        """What its group is called; an op of which no graph tells the group is alone."""
        return self.first.group or (WORLD if self.is_of_all else f"op {self.first.op}")

    def _listed(self) -> frozenset[int]:
        """Return the ranks that the group's name lists."""
        name = _LISTED_NAME.search(self.first.group)
        ranks = frozenset(map(int, re.findall(r"\d+", name[0]))) if name else frozenset[int]()
        return ranks if ranks.issuperset(self.outputs) else frozenset()

    @property
    def is_one_group(self) -> bool:
        """True if all that voted are said to be of one group; of a name alone there may be several."""
        return bool(self.is_of_all or self.first.collective.ranks or self._listed())

    def size(self, world_size: int) -> int:
        """Return how many ranks its group has; 0 where nothing tells."""
        if self.first.collective.ranks:
            return len(self.first.collective.ranks)
        if listed := self._listed():
            return len(listed)
        if world_size and self.is_of_all:
            return world_size
        return next(iter(self.sizes)) if len(self.sizes) == 1 else 0

    def wrong(self, step: int, ranks: Iterable[int], right: Iterable[int] = ()) -> WrongSum:
        """Return that some ranks got something else."""
        wrong = tuple(sorted(ranks))
        epoch, number = self.places[wrong[0]]
        return WrongSum(
            step=step, op=self.first.op, type=self.first.type, number=number, epoch=epoch, ranks=wrong,
            right=tuple(sorted(right)),
        )  # fmt: skip

    def left_open(self, step: int, ranks: frozenset[int]) -> Iterator[OpenSum]:
        """Yield that of these ranks nothing shows the group, if there are any."""
        if ranks:
            members = tuple(part for each in self.alike.values() if (part := each.among(ranks)) is not None)
            yield OpenSum(
                wrong=self.wrong(step, ranks), group=self.group, collective=self.first.collective,
                members=members if len(members) <= _MAX_OPEN else (),
            )  # fmt: skip

    def groups(self, size: int) -> list[_Group]:
        """Return the complete groups that this op alone shows. `size` is that of its group, 0 where nothing tells."""
        collective, every = self.first.collective, list(self.alike.values())
        if not every or len(self.outputs) < max(size, 2) or (collective.ranks and size != len(self.outputs)):
            return []  # a rank lacks it
        whole = _Group(every, collective)
        if len(whole.ranks) < len(self.outputs):
            return []
        # Of a name alone, so many ranks may be parts of several groups, even where they got the same.
        if len(whole.ranks) == size and self.is_one_group:
            return [whole]
        if size in (0, len(whole.ranks)) and (whole.is_right or whole.shows_itself):
            return [whole]
        alone = [_Group([each], collective) for each in every if size in (0, len(each.ranks)) and len(each.ranks) > 1]
        groups = [each for each in alone if each.is_right]
        in_groups = frozenset[int]().union(*(group.ranks for group in groups))
        rest = [each for each in every if in_groups.isdisjoint(each.ranks)]
        if rest and groups:
            last = _Group(rest, collective)
            if {len(group.ranks) for group in groups} == {len(last.ranks)} and last.shows_itself:
                groups.append(last)
        return groups


def _sums_of_step(step: int, ops: Sequence[tuple[_Op, Sequence[_Group], int]]) -> StepSums:
    """Return what the collectives of a step gave, with the groups that each op shows, and their size."""
    right: set[tuple[str, tuple[int, ...]]] = set()
    shown: set[tuple[str, frozenset[int]]] = set()
    counts: Counter[tuple[str, frozenset[int]]] = Counter()
    wrong: list[WrongSum] = []
    unsettled: list[OpenSum] = []
    for op, groups, size in ops:
        left = op.ranks if op.alike else frozenset()
        for group in groups:
            left -= group.ranks
            if group.shows_itself or (len(group.ranks) == size and op.is_one_group):
                shown.add((op.group, group.ranks))
            if group.is_right:
                right.add((op.first.op, tuple(sorted(group.ranks))))
                counts[op.group, group.ranks] += 1
            elif group.right or not group.is_mean:
                if group.is_told and (group.right or not group.tells_nothing):
                    wrong.append(op.wrong(step, group.wrong, group.right))
            else:
                left |= group.ranks
        unsettled += op.left_open(step, left)
    for op, _, size in ops:
        left = frozenset(rank for rank, vote in op.exchanged.items() if vote.input_means)
        for off in _exchanges(op, size, shown):
            left -= off.keys()
            others = [rank for rank, is_off in off.items() if not is_off]
            if len(others) < len(off):
                wrong.append(op.wrong(step, set(off) - set(others), others))
            else:
                right.add((op.first.op, tuple(sorted(off))))
                counts[op.group, frozenset(off)] += 1
        unsettled += op.left_open(step, left)
    return StepSums(
        right=frozenset(right), wrong=tuple(wrong), open=tuple(unsettled), groups=frozenset(shown), counts=counts
    )


@dataclass(frozen=True, kw_only=True)
class Settled:
    """The collectives of all steps that gave something else, and those of which that cannot be told."""

    wrong: tuple[WrongSum, ...] = ()
    untold: tuple[WrongSum, ...] = ()


def settled(steps: Iterable[StepSums]) -> Settled:
    """Judge what was left open by the groups that other collectives, of any step, have shown.

    Where no rank got the sum, it is wrong only if the op gave these ranks their sum in another step, or most of their
    collectives in this step did: else the group may be another one, or inputs were written over.
    """
    steps = list(steps)
    right = frozenset[tuple[str, tuple[int, ...]]]().union(*(step.right for step in steps))
    shown: dict[str, set[frozenset[int]]] = {}
    for step in steps:
        for name, ranks in step.groups:
            shown.setdefault(name, set()).add(ranks)
    wrong: list[WrongSum] = []
    untold: list[WrongSum] = []
    for step in steps:
        wrong += step.wrong
        doubtful: list[tuple[OpenSum, _Group]] = []
        for item in step.open:
            left = set(item.wrong.ranks)
            for ranks in shown.get(item.group, ()):
                group = item.within(ranks) if left.issuperset(ranks) else None
                if group is None or not group.is_told:
                    continue
                left -= ranks
                if group.wrong and group.right:
                    some, others = tuple(sorted(group.wrong)), tuple(sorted(group.right))
                    wrong.append(replace(item.wrong, ranks=some, right=others))
                elif group.wrong and not group.tells_nothing:
                    doubtful.append((item, group))
            if left:
                untold.append(replace(item.wrong, ranks=tuple(sorted(left))))
        of_group = Counter((item.group, group.ranks) for item, group in doubtful)
        for item, group in doubtful:
            every, key = tuple(sorted(group.ranks)), (item.group, group.ranks)
            is_sure = (item.wrong.op, every) in right or step.counts[key] > of_group[key]
            (wrong if is_sure else untold).append(replace(item.wrong, ranks=every))
    return Settled(wrong=tuple(wrong), untold=tuple(untold))


def _exchanges(op: _Op, size: int, shown: Iterable[tuple[str, frozenset[int]]]) -> Iterator[dict[int, bool]]:
    """Yield what `_off` says of each complete group of an exchange; a broadcast is told by its root.

    Ranks of a group of some are taken to be in order: where several seem wrong, it may have another order.
    """
    collective, ranks = op.first.collective, frozenset(op.exchanged)
    if collective.ranks or len(ranks) == (size or (len(ranks) if collective.exchange is Exchange.BROADCAST else 0)):
        groups = [collective.ranks or tuple(sorted(ranks))]
    else:
        groups = [tuple(sorted(group)) for name, group in shown if name == op.group and len(group) == size]
    for group in groups:
        if len(group) > 1 and ranks.issuperset(group):
            off = _off(op.exchanged, group)
            if off and (op.is_one_group or sum(off.values()) < 2):
                yield off


def _off(by_rank: Mapping[int, Vote], group: tuple[int, ...]) -> dict[int, bool]:
    """Return by rank whether an exchange gave it something else than what was put in; without ranks that do not tell.

    There are none with NaN or Inf. What all must get alike is looked at once, as there are many pieces of many ranks.
    """
    if len({by_rank[rank].collective for rank in group}) > 1:
        return {}
    is_same_for_all = by_rank[group[0]].collective.exchange in SAME_FOR_ALL
    is_off_by_rank: dict[int, bool] = {}
    seen: dict[tuple[str, ...], bool | None] = {}
    for rank in group:
        outputs = by_rank[rank].outputs
        if not is_same_for_all or outputs not in seen:
            is_off = [_is_off(by_rank, group, rank, slot) for slot in range(len(by_rank[rank].output_means))]
            seen[outputs] = any(is_off) if is_off and None not in is_off else None
        if (found := seen[outputs]) is not None:
            is_off_by_rank[rank] = found
    return is_off_by_rank


def _is_off(by_rank: Mapping[int, Vote], group: tuple[int, ...], rank: int, slot: int) -> bool | None:
    """Return whether a rank got another tensor in a slot than all ranks together put in; None: cannot be told."""
    collective = by_rank[rank].collective
    places = collective.parts_of(rank, slot, group)
    if not places:
        return None
    if not all(at < len(by_rank[other].input_means) for other, at in places):
        return None
    came = by_rank[rank].output_means[slot]
    member = _Alike(ranks=[rank], came=_joined([came])[0], rounding=came.rounding)
    group_of = _Group([member], collective, [by_rank[other].input_means[at] for other, at in places])
    return not group_of.is_right if group_of.is_told else None


# --- counting ---


#: What each rank was given: `replica_feeds` says whether that must be the same.
_OF_FEEDS = (Role.VARIABLE, Role.DATA)


def count_votes(step: int, ballots: Iterable[Ballot], world_size: int = 0) -> StepVotes:
    """Count the votes of all ranks of a step, one rank after the other.

    Ranks of other networks or communication groups are no replicas. `world_size` is how many ranks were trained
    together, 0 where that is not known.
    """
    by_op: dict[tuple[str, int, str, str], _Op] = {}
    places: Counter[tuple[int, str]] = Counter()
    for rank, network, votes in ballots:
        # A rank may run one network as several models: each is a replica of its like on the other ranks.
        place = places[rank, network]
        places[rank, network] += 1
        for vote in votes:
            if vote.role in _OF_FEEDS:
                continue
            # Communication ops follow one another alike on all ranks of a group, whatever else these run.
            key = ("", place, vote.group, vote.turn) if vote.turn else (network, place, vote.group, vote.op)
            if key not in by_op:
                by_op[key] = _Op(vote)
            by_op[key].add(rank, vote)
    if len({rank for rank, _ in places}) < 2:
        return StepVotes(step=step)
    ops = [(op, op.groups(size), size) for op in by_op.values() for size in (op.size(world_size),)]
    sums = _sums_of_step(step, ops)
    agreed, departures = 0, []
    for op, groups, _ in ops:
        for ranks, right in _electorates(op, groups, sums.groups):
            departure = _departure(step, op, ranks, right)
            if departure is None:
                agreed += 1
            elif not departure.undecided or departure.fed_alike or len(ranks) == 2:
                departures.append(departure)
            # Else no majority has it: they are groups that work on parts of the model, whatever the groups are called.
    departures.sort(key=lambda each: (when(step, each.epoch, each.type, each.ranks[0], each.number), each.op))
    # Where ranks agree on nothing at all they are no replicas: each has a part of the model.
    if not agreed and all(each.undecided for each in departures):
        departures = [each for each in departures if each.fed_alike]
    return StepVotes(step=step, agreed=agreed, departures=tuple(departures), sums=sums)


def _electorates(
    op: _Op, groups: Sequence[_Group], shown: Iterable[tuple[str, frozenset[int]]]
) -> Iterator[tuple[frozenset[int], frozenset[int]]]:
    """Yield the ranks that must have an op's results alike, and those of them that sums show to be right."""
    if op.first.role is Role.UPDATE and len(op.ranks) > 1:
        fed: dict[tuple[str, ...], set[int]] = {}
        for rank, inputs in op.inputs.items():
            fed.setdefault(inputs, set()).add(rank)
        wrong = [frozenset(ranks) for inputs, ranks in fed.items() if any(inputs) and op.differ(ranks)]
        yield from ((ranks, frozenset()) for ranks in wrong or [op.ranks])
    if op.first.role is not Role.COLLECTIVE:
        return
    rest = op.ranks
    for group in groups:
        rest -= group.ranks
        if group.is_right or not group.is_told:
            yield group.ranks, frozenset()
        elif group.right:
            yield group.ranks, frozenset(group.right)
    if not op.differ(rest) or (op.is_one_group and not groups):
        some = [rest]
    else:
        some = [rest & ranks for name, ranks in shown if name == op.group]
    yield from ((ranks, frozenset()) for ranks in some if len(ranks) > 1)


def _departure(step: int, op: _Op, ranks: frozenset[int], right: frozenset[int]) -> Departure | None:
    """Return what the votes of these ranks show; None where all agree. `right` are those that no majority outvotes."""
    first = op.first
    outputs = Counter(op.outputs[rank] for rank in sorted(ranks))
    if len(outputs) == 1:
        return None
    most, count = outputs.most_common(1)[0]
    undecided = not right and 2 * count <= len(ranks)
    agreeing = right or {rank for rank in ranks if op.outputs[rank] == most and not undecided}
    others = tuple(sorted(ranks - agreeing))
    fed_alike: bool | None = None
    fed = {op.inputs[rank] for rank in ranks}
    if first.role is Role.UPDATE and all(any(inputs) for inputs in fed):
        fed_alike = len(fed) == 1
    epoch, number = op.places[others[0]]
    return Departure(
        step=step, op=first.op, type=first.type, role=first.role, number=number, epoch=epoch, ranks=others,
        agreeing=tuple(sorted(agreeing)), undecided=undecided, fed_alike=fed_alike,
    )  # fmt: skip
