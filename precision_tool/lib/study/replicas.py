"""Data-parallel replicas vote on what must be the same on all of them: which rank is alone with what it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from precision_tool.lib.study.outcome import Role, Vote
from precision_tool.lib.study.sums import StepSums, sums_of_step

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
    """Counts the votes of all ranks of a step. Ranks of other networks, or communication groups, are no replicas."""
    asked: dict[tuple[str, int, str, str], dict[int, Vote]] = {}
    given: Counter[tuple[int, str]] = Counter()
    for rank, network, votes in ballots:
        # A rank may run one network as several models: each is a replica of its like on the other ranks.
        place = given[rank, network]
        given[rank, network] += 1
        for vote in votes:
            asked.setdefault((network, place, vote.group, vote.op), {})[rank] = vote
    agreed, found = 0, []
    for by_rank in asked.values():
        if len(by_rank) < 2:
            continue
        departure = _departure(step, by_rank)
        if departure is None:
            agreed += 1
        elif not departure.undecided or departure.fed_alike or len(by_rank) == 2:
            found.append(departure)
        # Else no majority has it: they are groups that work on parts of the model, whatever the groups are called.
    found.sort(key=lambda one: (one.epoch, one.number, one.op))
    # Where ranks agree on nothing at all they are no replicas: each has a part of the model.
    if not agreed and all(one.undecided for one in found):
        found = [one for one in found if one.fed_alike]
    return StepVotes(step=step, agreed=agreed, departures=tuple(found), sums=sums_of_step(step, asked.values()))


def _departure(step: int, by_rank: Mapping[int, Vote]) -> Departure | None:
    """What one op's votes show; None where all agree."""
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
