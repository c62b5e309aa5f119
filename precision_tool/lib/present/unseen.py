"""Words for what a verdict did not see."""

from __future__ import annotations

from precision_tool.lib.model.wording import counted
from precision_tool.lib.verdict.model import Lack, Unseen


def gap_words(gap: Unseen | str) -> str:
    """A gap of a verdict in words; one of an older release as it is."""
    return gap if isinstance(gap, str) else WORDS[gap.lack](gap)


def _unread(gap: Unseen) -> str:
    whose = gap.op if gap.count == 1 else f"{gap.op} and {counted(gap.count - 1, 'more op')}"
    return f"not all that was dumped of {whose} could be read: dump it again to be sure"


def _not_dumped(gap: Unseen) -> str:
    line = f"{_part(gap)} were not dumped"
    if gap.unknown < gap.count:
        line += f"; {gap.count - gap.unknown:,} of them judged by what their readers have"
    return f"{line}, {gap.unknown:,} not judged" if gap.unknown else line


def _late(gap: Unseen) -> str:
    return f"{_part(gap)} were not recomputed, as the time for that was over: `ni OP` recomputes one"


def _unsettled(gap: Unseen) -> str:
    line = f"which readers have the true copy of {counted(gap.count, 'tensor')} was not settled by recomputing"
    return f"{line}, as the time for that was over"


def _sampled(gap: Unseen) -> str:
    words = "is so large that only some of its" if gap.count == 1 else "are so large that only some of their"
    line = f"{_part(gap)} {words} elements were recomputed"
    if gap.lack is Lack.SAMPLED_FARTHEST:
        return f"{line}, those farthest from the benchmark among them"
    if gap.lack is Lack.SAMPLED_SUMS:
        return f"{line}, and the sums of all rows: a fault that is small beside a row's rounding does not show"
    return f"{line}: a fault in a few others does not show without a benchmark"


def _part(gap: Unseen) -> str:
    return f"{gap.count:,} of {counted(gap.ops, 'op')}"


WORDS = {
    Lack.NOT_READ: _unread,
    Lack.NOT_DUMPED: _not_dumped,
    Lack.OUT_OF_TIME: _late,
    Lack.UNSETTLED: _unsettled,
    Lack.SAMPLED: _sampled,
    Lack.SAMPLED_SUMS: _sampled,
    Lack.SAMPLED_FARTHEST: _sampled,
}
