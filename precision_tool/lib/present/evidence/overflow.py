"""Words for which op overflowed first, and what tells so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from precision_tool.lib.checks.overflow import Origin, OverflowOp, bad_words
from precision_tool.lib.checks.overflow_check import OverflowFound
from precision_tool.lib.formats.opdebug import UnitStatus
from precision_tool.lib.model.finding import Evidence
from precision_tool.lib.model.wording import counted, shape_text
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


def unit_words(unit: UnitStatus) -> str:
    """`AIC 0x20: floating-point overflow`."""
    codes = ", ".join(f"{word:#x}" for word in unit.status)
    return f"{unit.unit} {codes}: {'; '.join(unit.words) or 'no bit is set'}"


def statuses_words(number: int) -> str:
    """`1 overflow status`."""
    return counted(number, "overflow status", "overflow statuses")


def _found(one: OverflowFound) -> str:
    first = one.report.first
    if first is not None:
        return f"{first.name} {_FIRST.get(first.origin, 'is the first with an overflow')}: {first.why}"
    if one.report.is_clean:
        return "nothing overflowed: no value is saturated, Inf or NaN"
    return f"{statuses_words(len(one.report.statuses))}, of ops that were not found"


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
            if status.doubt:
                yield "note", status.doubt
        else:  # the panel stays short: `overflow` shows their tensors
            yield "then", f"{name}: {ORIGIN_WORDS[status.op.origin]}"
    if len(statuses) > one.limit:
        yield "more", f"{len(statuses) - one.limit} statuses; `overflow -l N` shows them"
    leaf = report.first_leaf
    if leaf is not None and leaf.first is not None:
        yield "by values", f"{counted(len(leaf.ops), 'op')}, the first {leaf.first.name}"
        if not statuses:
            yield from _tensors(leaf.first)
    for advice in one.advice[:1]:
        yield "advice", advice.text


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


SENTENCES: dict[type[Evidence], Callable[[Any], str]] = {OverflowFound: _found}
FACTS: dict[type[Evidence], Callable[[Any], Iterable[tuple[str, str]]]] = {OverflowFound: _facts}
LOOKED_AT: dict[type[Evidence], Callable[[Any], str]] = {OverflowFound: _looked_at}
