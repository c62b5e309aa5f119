"""The one verdict of a study: the earliest step, then rank, then op that computes wrong, and how far it reaches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from precision_tool.lib.diagnose.replica_count import Departure, StepVotes, When, WrongSum, settled, when
from precision_tool.lib.diagnose.replica_feeds import FeedDeparture, SameBatch, Shift, StepFeeds, of_all_steps
from precision_tool.lib.diagnose.replica_votes import Role, is_communication
from precision_tool.lib.diagnose.study_journal import BY_BENCHMARK, Accused, FirstOp, LeafState
from precision_tool.lib.diagnose.study_leaves import StudyLeaf
from precision_tool.lib.diagnose.update_inputs import Feed
from precision_tool.lib.model.documents import to_document


class Reach(StrEnum):
    """On which of the ranks that run the same network an op computes wrong."""

    #: On every one of several: what they share, the kernel or the compiler, is to blame.
    ALL_RANKS = "all_ranks"
    #: On one, and right on the others: its device.
    ONE_RANK = "one_rank"
    SOME_RANKS = "some_ranks"
    #: No other rank with this network was dumped, or judged.
    NOT_TOLD = "not_told"


class Ground(StrEnum):
    """Ground on which a culprit is named."""

    #: The verdict on the dump of its step and rank.
    VERDICT = "verdict"
    #: Replicas that have something else.
    REPLICAS = "replicas"
    #: An all-reduce that is not the sum of what the ranks put in.
    SUM = "sum"
    #: The comparison with the benchmark alone.
    COMPARED = "compared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """The earliest op that computes wrong, or what makes a rank another one than its replicas.

    `ranks` are those on which it does in that step, `right` those with the same network on which it does not, `unknown`
    those where that could not be told. `steps` are all in which it is wrong, as far as they were judged or compared.
    `cause` is that of the verdict; "device", "communication", "shifted" and those of `Feed` are what replicas tell.
    """

    step: int
    rank: int
    op: str
    type: str
    cause: str
    ground: Ground
    reach: Reach
    confidence: float
    number: int
    ranks: tuple[int, ...]
    right: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    pass_name: str = ""
    #: N of npu/debug_N, where it is another run than the one under test that computes wrong.
    run: int | None = None
    model: str = ""
    path: str = ""
    #: What replicas say of the op, or else of the first one after it that they do not agree on.
    departure: Departure | None = None
    #: Tensors of the step that replicas agree on to the bit, those of the culprit's rank included.
    replicas_agree_on: int = 0
    #: What feeds the ranks otherwise than their replicas; then `op` is no op that computes wrong, but its name.
    feed: FeedDeparture | None = None
    #: Where it is no op at all, but the number that ranks have of their steps.
    shift: Shift | None = None

    @property
    def is_fed_alike(self) -> bool:
        """True if replicas show that the op had the same inputs as on the other ranks: then its data do not differ."""
        return self.departure is not None and self.departure.op == self.op and bool(self.departure.fed_alike)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        document: dict[str, Any] = to_document(self)
        return document


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """Conclusion of a study. `culprit` is None where nothing computes wrong; `further` are other faults, in order."""

    culprit: Culprit | None
    further: tuple[Culprit, ...] = ()
    departures: tuple[Departure, ...] = ()
    #: Where NaN or Inf was seen first: step, rank and tensor.
    not_finite: tuple[int, int, str] | None = None
    #: Collectives of which it cannot be told whether they gave the sum: nothing shows that all ranks were dumped.
    untold: tuple[WrongSum, ...] = ()
    #: Ranks that read the same batch in every step.
    same_batch: tuple[SameBatch, ...] = ()


#: Of other faults so many are kept.
_MAX_FURTHER = 20


@dataclass(frozen=True, slots=True)
class _Charge:
    state: LeafState
    accused: Accused
    #: Its place among those that the verdict on its leaf accuses.
    place: int

    @property
    def order(self) -> Order:
        """When it was, behind what the verdicts on the leaves of its step name first."""
        leaf, accused = self.state.leaf, self.accused
        return leaf.step, self.place > 0, when(leaf.step, accused.epoch, accused.type, leaf.rank, accused.number)


#: The order of what is accused: the step, whether its verdict names others before it, and when it ran.
Order = tuple[int, bool, When]
_Named = tuple[Order, "Culprit"]


#: Of which of some ops a leaf tells whether they compute right: how well it does, 0 (not at all) to 2.
Telling = Callable[[LeafState, Collection[str]], Mapping[str, int]]


def conclude(
    states: Sequence[LeafState],
    votes: Iterable[StepVotes],
    telling: Telling | None = None,
    feeds: Sequence[StepFeeds] = (),
) -> Conclusion:
    """Draw the conclusion from every analysed leaf, and the votes and feeds of every step.

    With `telling` a rank counts as one on which an op is right only if its dump tells that as well as the culprit's
    does; by default all that have a verdict do.
    """
    by_step = {item.step: item for item in votes}
    departures = [item for step in sorted(by_step) for item in by_step[step].departures]
    culprits = _culprits(states, by_step)
    leaves = {(state.leaf.step, state.leaf.rank): state.leaf for state in states}
    sums = settled(by_step[step].sums for step in sorted(by_step))
    voted = [*_of_sums(sums.wrong, leaves), *_of_votes(departures, leaves)]
    # What replicas tell after an op that computes wrong follows from that.
    first = min((order for order, _ in culprits), default=None)
    early = [item for item in voted if first is None or item[0] < first]
    fed_otherwise, same_batch = of_all_steps(feeds)
    fed = _fed_otherwise(fed_otherwise, [item for _, item in (*voted, *culprits)], leaves)
    ordered = _with_feeds(list(_once(sorted([*culprits, *early], key=lambda item: item[0]))), fed)
    if not ordered:
        ordered = _compared(states)
    ordered = ordered[: 1 + _MAX_FURTHER]
    if telling is not None:
        ordered = _with_silent_ranks(ordered, states, telling)
    return Conclusion(
        culprit=ordered[0] if ordered else None, further=tuple(ordered[1:]),
        departures=tuple(departures[:_MAX_FURTHER]), not_finite=_not_finite(states, ordered), untold=sums.untold,
        same_batch=tuple(same_batch),
    )  # fmt: skip


def _once(named: Iterable[_Named]) -> Iterator[Culprit]:
    """Yield culprits, an op of a step once: what verdicts say of it counts, then a majority, then a sum."""
    by_op: dict[tuple[int, str], Culprit] = {}
    for _, item in named:
        key = item.step, item.op
        by_op[key] = item if key not in by_op or _weight(item) > _weight(by_op[key]) else by_op[key]
    yield from by_op.values()


def _weight(culprit: Culprit) -> int:
    decided = culprit.reach is not Reach.NOT_TOLD
    return {Ground.VERDICT: 3, Ground.REPLICAS: 2 * decided, Ground.SUM: 1}.get(culprit.ground, 0)


def _with_silent_ranks(culprits: Sequence[Culprit], states: Sequence[LeafState], telling: Telling) -> list[Culprit]:
    """Count ranks whose dump lacks an op, as it is cut short or damaged there, as unknown, not as correct."""
    revised = list(culprits)
    for step in {culprit.step for culprit in culprits}:
        recomputed = [
            (at, culprit)
            for at, culprit in enumerate(culprits)
            if culprit.step == step and culprit.ground is Ground.VERDICT
        ]
        ranks = {rank for _, culprit in recomputed for rank in (culprit.rank, *culprit.right)}
        levels: dict[int, dict[str, int]] = {}
        for state in states:
            if state.leaf.step == step and state.leaf.rank in ranks:
                of_rank = levels.setdefault(state.leaf.rank, {})
                for op, level in telling(state, {culprit.op for _, culprit in recomputed}).items():
                    of_rank[op] = max(level, of_rank.get(op, 0))
        for at, culprit in recomputed:
            least = levels.get(culprit.rank, {}).get(culprit.op, 0)
            silent = {rank for rank in culprit.right if levels.get(rank, {}).get(culprit.op, 0) < least}
            if silent:
                right = set(culprit.right) - silent
                revised[at] = replace(
                    culprit, right=tuple(sorted(right)), unknown=tuple(sorted({*culprit.unknown, *silent})),
                    reach=_reach(set(culprit.ranks), right),
                )  # fmt: skip
    return revised


def _culprits(states: Sequence[LeafState], votes: Mapping[int, StepVotes]) -> list[_Named]:
    """Return a culprit for each op that verdicts accuse, at its first step; the earliest first."""
    charges = sorted(
        (
            _Charge(state, suspect, place)
            for state in states
            for place, suspect in enumerate(state.accused)
            if not _is_the_sum(state, suspect.op, votes)
        ),
        key=lambda charge: charge.order,
    )
    return list(_first_of_each(charges, states, votes))


def _is_the_sum(state: LeafState, op: str, votes: Mapping[int, StepVotes]) -> bool:
    """Return whether an op gave its ranks the sum of what they put in, or that cannot be told.

    The verdict on one of them sees what that rank put in only: what another put in wrong looks like the op's error.
    """
    step, rank = votes.get(state.leaf.step), state.leaf.rank
    if step is None:
        return False
    untold = ((item.wrong.op, item.wrong.ranks) for item in step.sums.open)
    return any(name == op and rank in ranks for name, ranks in (*step.sums.right, *untold))


def _first_of_each(
    charges: Sequence[_Charge], states: Sequence[LeafState], votes: Mapping[int, StepVotes]
) -> Iterator[_Named]:
    by_step: dict[int, list[LeafState]] = {}
    for state in states:
        by_step.setdefault(state.leaf.step, []).append(state)
    steps: dict[tuple[str, str], set[int]] = {}
    for charge in charges:
        steps.setdefault((charge.state.network, charge.accused.op), set()).add(charge.state.leaf.step)
    keys: set[tuple[str, str]] = set()
    for charge in charges:
        key = charge.state.network, charge.accused.op
        if key in keys:
            continue
        keys.add(key)
        later = {
            state.leaf.step
            for state in states
            if state.first is not None and state.first.op == charge.accused.op and state.network == charge.state.network
        }
        wrong_in = {step for step in steps[key] | later if step >= charge.state.leaf.step}
        yield charge.order, _culprit(charge, by_step[charge.state.leaf.step], tuple(sorted(wrong_in)), votes)


def _culprit(
    charge: _Charge, of_step: Sequence[LeafState], steps: tuple[int, ...], votes: Mapping[int, StepVotes]
) -> Culprit:
    state, accused = charge.state, charge.accused
    peers = [
        item
        for item in of_step
        if item.network == state.network or (item.failure and item.leaf.program == state.leaf.program)
    ]
    wrong: set[int] = set()
    right: set[int] = set()
    unknown: set[int] = set()
    for peer in peers:
        rank = peer.leaf.rank
        if any(item.op == accused.op for item in peer.accused):
            wrong.add(rank)
        else:
            (right if peer.has_verdict else unknown).add(rank)
    right, unknown = right - wrong, unknown - wrong - right
    counted = votes.get(state.leaf.step, StepVotes(step=state.leaf.step))
    own = [item for item in counted.departures if wrong & set(item.ranks)]
    departure = next((item for item in own if item.op == accused.op), next(iter(own), None))
    return _culprit_at(
        state.leaf, accused, wrong, right, cause=str(accused.cause), ground=Ground.VERDICT,
        confidence=accused.confidence, unknown=tuple(sorted(unknown)), steps=steps, pass_name=accused.pass_name,
        run=accused.run, departure=departure, replicas_agree_on=counted.agreed,
    )  # fmt: skip


def _culprit_at(
    leaf: StudyLeaf,
    op: Accused | Departure | FirstOp | WrongSum,
    wrong: Collection[int],
    right: Collection[int],
    **fields: Any,
) -> Culprit:
    """Return the culprit that an op of a leaf is, which computes wrong on some ranks and right on others."""
    reach = fields.pop("reach", None) or _reach(set(wrong), set(right))
    return Culprit(
        step=leaf.step, rank=leaf.rank, model=leaf.model, path=leaf.path, op=op.op, type=op.type, number=op.number,
        ranks=tuple(sorted(wrong)), right=tuple(sorted(right)), reach=reach, **fields,
    )  # fmt: skip


def _reach(wrong: set[int], right: set[int]) -> Reach:
    if len(wrong) + len(right) < 2:
        return Reach.NOT_TOLD
    if not right:
        return Reach.ALL_RANKS
    return Reach.ONE_RANK if len(wrong) == 1 else Reach.SOME_RANKS


#: How sure a vote is: more where what went into the op is known to be the same, or all ranks are known to be there.
_FED_ALIKE, _VOTED, UNDECIDED = 0.97, 0.9, 0.5


def _of_votes(departures: Sequence[Departure], leaves: Mapping[tuple[int, int], StudyLeaf]) -> Iterator[_Named]:
    """Yield the culprits that departures tell of; not what follows from others."""
    for item in departures:
        if item.role is Role.UPDATE and item.fed_alike is False:
            continue  # its inputs differ already
        sure = UNDECIDED if item.undecided else _FED_ALIKE if item.fed_alike else _VOTED
        yield _order_of(item), _culprit_at(
            leaves[item.step, item.ranks[0]], item, item.ranks, item.agreeing, ground=Ground.REPLICAS,
            confidence=sure, cause="communication" if item.role is Role.COLLECTIVE else "device",
            reach=Reach.NOT_TOLD if item.undecided else None, steps=(item.step,), departure=item,
        )  # fmt: skip


def _order_of(item: Departure | WrongSum) -> Order:
    return item.step, False, when(item.step, item.epoch, item.type, item.ranks[0], item.number)


#: What of a rank's feeds is from outside, and follows from nothing that went before.
_FROM_OUTSIDE = (Feed.LEARNING_RATE, Feed.SETTING, Feed.DATA)


def _fed_otherwise(
    feeds: Sequence[FeedDeparture], culprits: Sequence[Culprit], leaves: Mapping[tuple[int, int], StudyLeaf]
) -> list[Culprit]:
    """Return what feeds some replicas otherwise, by steps, without what follows from something earlier."""
    kept: list[Culprit] = []
    for feed in sorted(feeds, key=lambda item: item.step):
        # A gradient is there at the end of its step.
        before = feed.step + (feed.feed is Feed.GRADIENT)
        earlier = (item for item in (*culprits, *kept) if item.step < before)
        if feed.feed in _FROM_OUTSIDE or all(set(feed.ranks).isdisjoint(item.ranks) for item in earlier):
            kept.append(_by_feed(feed, leaves[feed.step, feed.ranks[0]]))
    return kept


def _with_feeds(culprits: Sequence[Culprit], fed: Sequence[Culprit]) -> list[Culprit]:
    """Merge what feeds some replicas otherwise with the ops that compute wrong.

    What differs before a step begins comes first in it; gradients that differ come last.
    """
    # The verdict on a leaf sees a variable that differs from the benchmark's too.
    seen = {(item.step, item.cause, rank) for item in fed for rank in item.ranks}
    others = [item for item in culprits if (item.step, item.cause, item.rank) not in seen]
    return sorted([*others, *fed], key=_order_of_step)


def _order_of_step(culprit: Culprit) -> tuple[int, int]:
    if culprit.feed is None:
        return culprit.step, 1
    return culprit.step, 2 if culprit.feed.feed is Feed.GRADIENT else 0


def _by_feed(feed: FeedDeparture, leaf: StudyLeaf) -> Culprit:
    named = FirstOp(op=feed.name, type=feed.type, kind="", number=feed.number, epoch=feed.epoch)
    is_certain = feed.feed in _FROM_OUTSIDE and (feed.feed is not Feed.DATA or feed.value is None)
    sure = UNDECIDED if feed.undecided else _FED_ALIKE if is_certain else _VOTED
    return _culprit_at(
        leaf, named, feed.ranks, feed.agreeing, ground=Ground.REPLICAS, confidence=sure, cause=str(feed.feed),
        reach=Reach.NOT_TOLD if feed.undecided else None, steps=feed.steps, feed=feed,
    )  # fmt: skip


def _of_sums(sums: Sequence[WrongSum], leaves: Mapping[tuple[int, int], StudyLeaf]) -> Iterator[_Named]:
    """Yield the collectives that gave something else than the sum; an op once, at its first step."""
    steps: dict[str, list[int]] = {}
    for item in sums:
        steps.setdefault(item.op, []).append(item.step)
    for item in sums:
        if item.step == min(steps[item.op]):
            yield _order_of(item), _culprit_at(
                leaves[item.step, item.ranks[0]], item, item.ranks, item.right, cause="communication",
                ground=Ground.SUM, confidence=_FED_ALIKE, steps=tuple(sorted(set(steps[item.op]))),
            )  # fmt: skip


def _compared(states: Sequence[LeafState]) -> list[Culprit]:
    """Return the op that the comparison alone names first, where no verdict could be made."""
    named = [(state, state.first) for state in states if state.first is not None and not state.has_verdict]
    if not named:
        return []
    state, first = min(named, key=_when_first)
    peers = [peer for peer in states if peer.leaf.step == state.leaf.step and peer.network == state.network]
    wrong = {peer.leaf.rank for peer in peers if peer.first is not None and peer.first.op == first.op}
    right = {peer.leaf.rank for peer in peers if peer.compared and not peer.below}
    steps = {peer.leaf.step for peer, its_first in named if its_first.op == first.op}
    return [
        _culprit_at(
            state.leaf, first, wrong, right - wrong, cause=first.kind, ground=Ground.COMPARED, confidence=UNDECIDED,
            steps=tuple(sorted(steps)),
        )
    ]  # fmt: skip


def _when_first(item: tuple[LeafState, FirstOp]) -> When:
    leaf, first = item[0].leaf, item[1]
    return when(leaf.step, first.epoch, first.type, leaf.rank, first.number)


def _not_finite(states: Sequence[LeafState], culprits: Sequence[Culprit]) -> tuple[int, int, str] | None:
    """Return the first step with NaN or Inf; in it the rank where a culprit itself puts it out, else the first rank.

    A rank that got it by communication comes after those that made it.
    """

    def order(state: LeafState) -> tuple[int, bool, bool, int, str, str]:
        step, rank, model, path = state.leaf.key
        by_itself = any(
            (culprit.step, culprit.rank) == (step, rank) and state.first_bad.startswith(f"{culprit.op}:output")
            for culprit in culprits
        )
        return step, not by_itself, is_from_others(state.first_bad), rank, model, path

    bad = min((state for state in states if state.bad), key=order, default=None)
    return None if bad is None else (bad.leaf.step, bad.leaf.rank, bad.first_bad)


def is_from_others(tensor: str) -> bool:
    """Return whether a tensor (`op:output:0`) is what a communication op puts out, by the op's name."""
    op, _, slot = tensor.partition(":")
    return slot.startswith("output") and is_communication(op.rpartition("/")[2])


def in_their_steps(states: Sequence[LeafState], shifts: Sequence[Shift]) -> list[LeafState]:
    """Return the states of shifted ranks as those of the steps that they are of; without steps that nobody else has.

    What differs from the benchmark of another step accuses nobody.
    """
    steps = {state.leaf.step for state in states}
    offsets = {(rank, step): shift.offset for shift in shifts for rank in shift.ranks for step in shift.steps}
    moved = []
    for state in states:
        offset = offsets.get((state.leaf.rank, state.leaf.step))
        if offset is None:
            moved.append(state)
        elif state.leaf.step - offset in steps:
            leaf = replace(state.leaf, step=state.leaf.step - offset)
            accused = tuple(item for item in state.accused if item.proof not in BY_BENCHMARK)
            moved.append(replace(state, leaf=leaf, is_own=False, first=None, accused=accused))
    return sorted(moved, key=lambda state: state.leaf.key)


def in_own_steps(conclusion: Conclusion, states: Sequence[LeafState], shifts: Sequence[Shift]) -> Conclusion:
    """Return a conclusion on states `in_their_steps` with the steps that the dumps have, and with the shifts."""
    steps = {state.leaf.path: state.leaf.step for state in states}
    culprits = (item for item in (conclusion.culprit, *conclusion.further) if item is not None)
    own = [replace(item, step=steps[item.path]) for item in culprits]
    first, *further = sorted([*(_by_shift(shift, states) for shift in shifts), *own], key=lambda item: item.step)
    return replace(
        conclusion, culprit=first, further=tuple(further[:_MAX_FURTHER]), not_finite=_not_finite(states, own)
    )


def _by_shift(shift: Shift, states: Sequence[LeafState]) -> Culprit:
    """Return the culprit that names a shift in its first step."""
    of_step = {state.leaf.rank: state for state in states if state.leaf.step == shift.steps[0]}
    own = of_step[shift.ranks[0]]
    right = [rank for rank, state in of_step.items() if state.network == own.network and rank not in shift.ranks]
    return _culprit_at(
        own.leaf, FirstOp(op="", type="", kind="", number=0, epoch=0), shift.ranks, right, cause="shifted",
        ground=Ground.REPLICAS, confidence=_FED_ALIKE, steps=shift.steps, shift=shift,
    )  # fmt: skip


def without_later_verdicts(states: Sequence[LeafState]) -> list[LeafState]:
    """Return the states as if nothing after the first step with a culprit had been recomputed.

    Whether it was depends on how quick the workers are; what a study comes to must not.
    """
    first = min((state.leaf.step for state in states if state.accused), default=None)
    return [
        state
        if first is None or state.leaf.step <= first
        else replace(state, judged=False, has_verdict=False, right=0, accused=(), excused=())
        for state in states
    ]
