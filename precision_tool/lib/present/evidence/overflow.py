"""Words for which op overflowed first, and what tells so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from precision_tool.lib.checks.overflow import (
    BadSlot,
    Origin,
    OriginSeen,
    OriginSign,
    OverflowOp,
    OverflowReport,
    StatusReport,
)
from precision_tool.lib.checks.overflow_check import OverflowFound
from precision_tool.lib.checks.overflow_status import InDataDump, NoDumpOfTask, SharedTask
from precision_tool.lib.formats.opdebug import UnitStatus
from precision_tool.lib.model.comparison import Extremes
from precision_tool.lib.model.finding import Evidence
from precision_tool.lib.model.wording import counted, shape_text
from precision_tool.lib.present.evidence.overflow_advice import advice_words
from precision_tool.lib.workspace import shown_path

ORIGIN_WORDS = {
    Origin.OWN: "overflowed itself",
    Origin.RECEIVED: "received it",
    Origin.SOURCE: "came in with the data",
    Origin.HIDDEN: "overflowed inside",
    Origin.UNKNOWN: "own or received: unknown",
    Origin.MEANT: "no overflow",
}
_FIRST = {Origin.OWN: "overflows first", Origin.HIDDEN: "overflows first, inside the op"}
#: What the values say of an op's origin, behind what its outputs have, where these have such values.
_SIGNS = {
    OriginSign.BRINGS_DATA: "it brings in the data",
    OriginSign.NO_GRAPH: "its inputs were not dumped, and no graph tells what feeds it",
    OriginSign.NOT_FED: "nothing feeds it: the data holds them",
    OriginSign.INPUTS_UNSEEN: "its inputs were not dumped, or cannot be read",
    OriginSign.NOTHING_SHOWN: "its inputs were not dumped, and its outputs show nothing",
}
_INSIDE = {
    OriginSign.OUTPUTS_UNSEEN: "its inputs are clean, its outputs were not dumped, or cannot be read",
    OriginSign.INSIDE: "its inputs and outputs are clean: it overflowed inside the op",
}


def bad_words(extremes: Extremes | None) -> str:
    """`2,624 values of ±65504 (21.4 %), 3 NaN`."""
    if extremes is None:
        return "nothing"
    some = "one or more values" if extremes.statistics_only else counted(extremes.saturated, "value")
    parts = [
        f"{some} of ±{extremes.limit:g}" * bool(extremes.saturated),
        f"{extremes.inf_count:,} Inf" * bool(extremes.inf_count),
        f"{extremes.nan_count:,} NaN" * bool(extremes.nan_count),
    ]
    words = ", ".join(filter(None, parts))
    if extremes.statistics_only and extremes.saturated:
        return words
    return f"{words} ({share_text(extremes.bad, extremes.count)})"


def share_text(part: int, whole: int) -> str:
    """A share in percent, which is never shown as 0 or 100 unless it is."""
    if not whole:
        return "-"
    share = part / whole
    if part and share < 0.0005:
        return "< 0.1 %"
    if part < whole and share >= 0.9995:
        return "> 99.9 %"
    return f"{share:.1%}".replace("%", " %")


def origin_words(one: OriginSeen) -> str:
    """From what the origin of an overflow is known."""
    words = _origin(one)
    return f"the benchmark has the same: {words}" if one.in_benchmark else words


def _origin(one: OriginSeen) -> str:
    if one.sign is OriginSign.BAD_INPUT:
        source = f", from {one.producer}" if one.producer else ""
        return "".join(f"{bad.slot} already has {bad_words(bad.extremes)}{source}" for bad in one.bad)
    made = _made(one.bad)
    if one.sign in _SIGNS:
        return "; ".join(filter(None, (made, _SIGNS[one.sign])))
    but = f"; {', '.join(one.unseen)} was not dumped, or cannot be read" if one.unseen else ""
    if one.in_place:
        but += f"; {', '.join(one.in_place)} is updated in place, and was dumped afterwards"
    if one.sign is OriginSign.CLEAN_INPUTS:
        return f"its {'other ' * bool(one.in_place)}inputs are clean, {made}{but}"
    return f"{_INSIDE[one.sign]}{but}"


def _made(slots: Sequence[BadSlot]) -> str:
    return "; ".join(f"{one.slot} has {bad_words(one.extremes)}" for one in slots)


def doubt_words(status: StatusReport) -> str:
    """What is doubtful about the op of a status; "" if nothing is."""
    return "; ".join(SENTENCES[type(one)](one) for one in status.doubts)


def _no_dump_of_task(one: NoDumpOfTask) -> str:
    wanted = f"task {one.task} on stream {one.stream}"
    if one.context is not None:
        wanted += f", context {one.context}"
    if one.thread is not None:
        wanted += f", thread {one.thread}"
    return f"no dump file is of {wanted}: which op it was cannot be told"


def unit_words(unit: UnitStatus) -> str:
    """`AIC 0x20: floating-point overflow`."""
    codes = ", ".join(f"{word:#x}" for word in unit.status)
    return f"{unit.unit} {codes}: {'; '.join(unit.words) or 'no bit is set'}"


def statuses_words(number: int) -> str:
    """`1 overflow status`."""
    return counted(number, "overflow status", "overflow statuses")


def found_words(report: OverflowReport) -> str:
    """The conclusion: which op overflows first, or that none does."""
    first = report.first
    if first is not None and first.computes_wrong:
        return f"{first.name} computes wrong, and does not overflow: {origin_words(first.evidence)}"
    if first is not None:
        return (
            f"{first.name} {_FIRST.get(first.origin, 'is the first with an overflow')}: {origin_words(first.evidence)}"
        )
    if report.is_clean:
        return "nothing overflowed: no value is saturated, Inf or NaN"
    return f"{statuses_words(len(report.statuses))}, of ops that were not found"


def _looked_at(one: OverflowFound) -> str:
    ops = sum(leaf.scanned_ops for leaf in one.report.leaves)
    text = f"{statuses_words(len(one.report.statuses))} in {shown_path(one.root)}, the values of "
    text += counted(ops, "dumped op")
    left_out = sum(leaf.left_out for leaf in one.report.leaves)
    return f"{text}; not those of {left_out} more: `overflow` reads all" if left_out else text


def _facts(one: OverflowFound) -> Iterator[tuple[str, str]]:
    report, statuses = one.report, one.report.statuses
    for _, why in report.unreadable[: one.limit]:
        yield "unreadable", why
    for status in statuses[: one.limit]:
        name = status.file.path if status.op is None else f"{status.op.name} ({status.op.op_type})"
        if status is statuses[0] or status.op is None:
            yield "op", name
            for unit in status.units:
                yield "status", unit_words(unit)
            if status.op is not None:
                yield "origin", ORIGIN_WORDS[status.op.origin]
                yield from _tensors(status.op)
            if status.doubts:
                yield "note", doubt_words(status)
        else:  # the panel stays short: `overflow` shows their tensors
            yield "then", f"{name}: {ORIGIN_WORDS[status.op.origin]}"
    if len(statuses) > one.limit:
        yield "more", f"{statuses_words(len(statuses) - one.limit)}; `overflow -l N` shows them"
    leaf = report.first_leaf
    if leaf is not None and leaf.first is not None:
        yield "by values", f"{counted(len(leaf.ops), 'op')}, the first {leaf.first.name}"
        if not statuses:
            yield from _tensors(leaf.first)
    for advice in one.advice[:1]:
        yield "advice", advice_words(advice)


def _tensors(op: OverflowOp) -> Iterator[tuple[str, str]]:
    for one in op.slots:
        if one.tensor is None:
            yield one.slot, one.reason or "not dumped"
            continue
        text = f"{one.tensor.dtype} {shape_text(one.tensor.shape)}"
        if one.summary is not None:
            figures = (("max", one.summary.maximum), ("min", one.summary.minimum), ("mean", one.summary.mean))
            text += "".join(f", {name} {value:.5g}" for name, value in figures)
        if one.is_bad:
            text += f", {bad_words(one.extremes)}"
        yield one.slot, text


SENTENCES: dict[type[Evidence], Callable[[Any], str]] = {
    InDataDump: lambda one: f"found in the data dump {one.path}, where tasks may have other numbers",
    NoDumpOfTask: _no_dump_of_task,
    OriginSeen: origin_words,
    OverflowFound: lambda one: found_words(one.report),
    SharedTask: lambda one: f"{counted(one.ops, 'op')} ran as this task, this one last",
}
FACTS: dict[type[Evidence], Callable[[Any], Iterable[tuple[str, str]]]] = {OverflowFound: _facts}
LOOKED_AT: dict[type[Evidence], Callable[[Any], str]] = {OverflowFound: _looked_at}
