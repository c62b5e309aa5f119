"""All-reduces that were dumped whole: whether what comes out is the sum of what the ranks put in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

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
    """An all-reduce that gave `ranks` something else than the sum of what all put in; `right` have that sum."""

    step: int
    op: str
    type: str
    number: int
    epoch: int
    ranks: tuple[int, ...]
    right: tuple[int, ...]


def wrong_sums(step: int, asked: Iterable[Mapping[int, Vote]]) -> Iterator[WrongSum]:
    """The all-reduces of a step that are none, if most of its are.

    Where most are not, ranks were left out of the dump, or inputs were written over: that tells nothing.
    """
    checked = [(by_rank, found) for by_rank in asked if (found := _off(by_rank)) is not None]
    if 2 * sum(any(found.values()) for _, found in checked) >= len(checked):
        return
    for by_rank, found in checked:
        ranks = tuple(sorted(rank for rank, is_off in found.items() if is_off))
        if ranks:
            one = by_rank[ranks[0]]
            yield WrongSum(
                step=step, op=one.op, type=one.type, number=one.number, epoch=one.epoch, ranks=ranks,
                right=tuple(sorted(set(found) - set(ranks))),
            )  # fmt: skip


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
