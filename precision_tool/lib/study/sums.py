"""All-reduces that were dumped whole: whether what comes out is the sum of what the ranks put in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from precision_tool.lib.study.outcome import Vote

#: A mean that comes out of an all-reduce may be off the sum by this share of the norms: float32 and printed digits.
SUM_SHARE = 1e-3


def is_all_reduce(op_type: str, reduction: object) -> bool:
    """Whether an op adds up over the ranks, as far as its type and attribute tell."""
    return "allreduce" in op_type.casefold() and str(reduction or "sum").casefold() == "sum"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongSum:
    """An all-reduce that gave `ranks` something else than the sum of what all put in; `right` have that sum.

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


def sums_of_step(step: int, asked: Iterable[Mapping[int, Vote]]) -> StepSums:
    """The all-reduces of a step that are none.

    Where most are not, ranks were left out of the dump, or inputs were written over: that tells nothing by itself.
    """
    checked = [(by_rank, found) for by_rank in asked if (found := _off(by_rank)) is not None]
    off = [(by_rank, found) for by_rank, found in checked if any(found.values())]
    right = {
        (next(iter(votes.values())).op, tuple(sorted(found))) for votes, found in checked if not any(found.values())
    }
    are_few = 2 * len(off) < len(checked)
    wrong = []
    for by_rank, found in off:
        ranks = tuple(sorted(rank for rank, is_off in found.items() if is_off))
        one = by_rank[ranks[0]]
        if are_few or not _is_something_else(by_rank):
            wrong.append(
                WrongSum(
                    step=step, op=one.op, type=one.type, number=one.number, epoch=one.epoch, ranks=ranks,
                    right=tuple(sorted(set(found) - set(ranks))), is_sure=are_few,
                )
            )  # fmt: skip
    return StepSums(wrong=tuple(wrong) if are_few else (), open=() if are_few else tuple(wrong), right=frozenset(right))


def settled(steps: Sequence[StepSums]) -> list[WrongSum]:
    """All-reduces of all steps that are none, in order.

    An open one is, where the same ranks got the sum from the same op in another step: none of them was left out then.
    Else only one that is alone in its step, on ranks that are numbered from 0 up, is kept, and is not sure.
    """
    complete = frozenset[tuple[str, tuple[int, ...]]]().union(*(one.right for one in steps))
    found: list[WrongSum] = []
    for of_step in steps:
        found += of_step.wrong
        for one in of_step.open:
            ranks = tuple(sorted((*one.ranks, *one.right)))
            if (one.op, ranks) in complete:
                found.append(replace(one, is_sure=True))
            elif len(of_step.open) == 1 and not of_step.right and ranks == tuple(range(len(ranks))):
                found.append(one)
    return found


def _is_something_else(by_rank: Mapping[int, Vote]) -> bool:
    """Whether what ranks put in was written over by what came out, the mean of all came out, or sums of groups did."""
    votes = list(by_rank.values())
    groups: dict[object, dict[int, Vote]] = {}
    for rank, vote in by_rank.items():  # ranks that got the same may be a group of their own, which no graph names
        groups.setdefault(vote.came, {})[rank] = vote
    if 1 < len(groups) < len(votes) and not any(any((_off(some) or {0: True}).values()) for some in groups.values()):
        return True
    if all(vote.fed == vote.came == votes[0].came for vote in votes):
        return True
    shares = [
        tuple(replace(each, means=tuple(mean * len(votes) for mean in each.means)) for each in vote.came)
        for vote in votes
    ]
    means = {rank: replace(vote, came=came) for (rank, vote), came in zip(by_rank.items(), shares, strict=True)}
    return not any((_off(means) or {0: True}).values())


def _off(by_rank: Mapping[int, Vote]) -> dict[int, bool] | None:
    """By rank whether it got another sum; None where that cannot be told, as with NaN or Inf."""
    if len(by_rank) < 2 or not all(vote.fed and len(vote.fed) == len(vote.came) for vote in by_rank.values()):
        return None
    found = dict.fromkeys(by_rank, False)
    for slot in range(min(len(vote.fed) for vote in by_rank.values())):
        fed = [vote.fed[slot] for vote in by_rank.values()]
        came = [vote.came[slot] for vote in by_rank.values()]
        if len({len(one.means) for one in (*fed, *came)}) != 1:
            return None
        parts, sizes = (_rows(one.means for one in fed), _rows(one.sizes for one in fed))
        got = _rows(one.means for one in came)
        if not (np.isfinite(parts).all() and np.isfinite(sizes).all()):
            return None
        rounding = max(one.rounding for one in (*fed, *came))
        limit = (SUM_SHARE + len(by_rank) * rounding) * sizes.sum(axis=0)
        with np.errstate(invalid="ignore"):
            off = ~(np.abs(got - parts.sum(axis=0)) <= limit)
        for rank, is_off in zip(by_rank, off.any(axis=1).tolist(), strict=True):
            found[rank] |= bool(is_off)
    return found


def _rows(values: Iterable[tuple[float, ...]]) -> npt.NDArray[np.float64]:
    return np.array(list(values), np.float64)
