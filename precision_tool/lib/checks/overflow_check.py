"""Overflow as one of the checks of `ac`: which op overflowed first, and what tells so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from precision_tool.lib.checks.overflow import Origin, OverflowOp, OverflowReport, bad_values
from precision_tool.lib.checks.overflow_advice import advise
from precision_tool.lib.checks.overflow_search import find_overflow
from precision_tool.lib.compare.known import KnownValues
from precision_tool.lib.data.folder import DataFolder
from precision_tool.lib.errors import PrecisionToolError
from precision_tool.lib.formats.opdebug import UnitStatus
from precision_tool.lib.messages import Message
from precision_tool.lib.model.finding import CheckResult, Fact, Finding, FindingKind, Grade
from precision_tool.lib.model.wording import shape_text
from precision_tool.lib.workspace import shown_path

NAME = "overflow"
#: `ac` stays quick: it reads so many bytes of outputs at most.
_MAX_BYTES = 4 << 30
#: More ops than any network has.
_ALL = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class OverflowResult(CheckResult):
    """The check with the report that it was made from; at most `limit` statuses of it are shown."""

    report: OverflowReport
    root: str
    limit: int


def check_overflow(
    data: DataFolder,
    folder: str | None = None,
    graph: str | None = None,
    limit: int = 0,
    known: Mapping[str, KnownValues] | None = None,
) -> CheckResult:
    """What `ac` shows of it; of `folder` if another dump than the data folder's was named. `limit` 0 shows all.

    `known` is what a comparison found out, by the folder of the leaf.
    """
    try:
        limit = limit or _ALL
        found, root = find_overflow(data, folder, graph, limit, max_bytes=_MAX_BYTES, known=known)
    except PrecisionToolError as error:
        return CheckResult(name=NAME, skipped=Message("text", text=error.advice))
    return overflow_result(found, root, limit)


def overflow_result(report: OverflowReport, root: str, limit: int) -> OverflowResult:
    """Return the check of a report on what lies below `root`."""
    first = report.first
    finding = Finding(
        kind=FindingKind.OVERFLOW,
        grade=Grade.INFO if report.is_clean and not report.unreadable else Grade.WARNING,
        message=conclusion(report),
        facts=tuple(_facts(report, limit)),
        op_name="" if first is None else first.name,
        op_type="" if first is None else first.op_type,
        pass_names=() if first is None else first.pass_names,
        original_ops=() if first is None else first.original_names,
    )
    looked_at = Message(
        "check.overflow.looked_at",
        statuses=len(report.statuses),
        folder=shown_path(root),
        ops=sum(leaf.scanned_ops for leaf in report.leaves),
        left_out=sum(leaf.left_out for leaf in report.leaves) or None,
    )
    return OverflowResult(name=NAME, finding=finding, looked_at=looked_at, report=report, root=root, limit=limit)


def conclusion(report: OverflowReport) -> Message:
    """Return which op overflows first, or that none does."""
    first = report.first
    if first is None:
        if report.is_clean:
            return Message("finding.overflow.none")
        return Message("finding.overflow.ops_unknown", statuses=len(report.statuses))
    if first.computes_wrong:
        return Message("finding.overflow.computes_wrong", op_name=first.name, why=first.why)
    if first.origin is Origin.OWN:
        return Message("finding.overflow.own", op_name=first.name, why=first.why)
    if first.origin is Origin.HIDDEN:
        return Message("finding.overflow.hidden", op_name=first.name, why=first.why)
    return Message("finding.overflow.first", op_name=first.name, why=first.why)


def _facts(report: OverflowReport, limit: int) -> Iterator[Fact]:
    statuses = report.statuses
    for _, why in report.unreadable[:limit]:
        yield Fact(Message("finding.label.unreadable"), why)
    for status in statuses[:limit]:
        op = status.op
        if op is None or status is statuses[0]:
            name = status.file.path if op is None else Message("finding.fact.op", name=op.name, type=op.op_type)
            yield Fact(Message("finding.label.op"), name)
            for unit in status.units:
                yield Fact(Message("finding.label.status"), unit_message(unit))
            if op is not None:
                yield Fact(Message("finding.label.origin"), origin_name(op.origin))
                yield from _tensors(op)
            if status.doubts:
                yield Fact(Message("finding.label.note"), Message("reason.several", reasons=status.doubts))
        else:  # the panel stays short: `overflow` shows their tensors
            then = Message("finding.fact.then", op_name=op.name, op_type=op.op_type, origin=origin_name(op.origin))
            yield Fact(Message("finding.label.then"), then)
    if len(statuses) > limit:
        yield Fact(Message("finding.label.more"), Message("finding.fact.more_statuses", count=len(statuses) - limit))
    leaf = report.first_leaf
    if leaf is not None and leaf.first is not None:
        by_values = Message("finding.fact.by_values", ops=len(leaf.ops), first=leaf.first.name)
        yield Fact(Message("finding.label.by_values"), by_values)
        if not statuses:
            yield from _tensors(leaf.first)
    for advice in advise(report)[:1]:
        yield Fact(Message("finding.label.advice"), advice.message)


def _tensors(op: OverflowOp) -> Iterator[Fact]:
    for slot in op.slots:
        if slot.tensor is None:
            yield Fact(slot.slot, slot.reason or Message("check.cast.not_dumped"))
            continue
        summary = slot.summary
        yield Fact(
            slot.slot,
            Message(
                "finding.fact.tensor",
                dtype=slot.tensor.dtype,
                shape=shape_text(slot.tensor.shape),
                maximum=None if summary is None else summary.maximum,
                minimum=None if summary is None else summary.minimum,
                mean=None if summary is None else summary.mean,
                bad=bad_values(slot.extremes) if slot.is_bad else None,
            ),
        )


def origin_name(origin: Origin) -> Message:
    """Return where an overflow comes from, in a few words."""
    return Message("check.origin.name." + str(origin))


def unit_message(unit: UnitStatus) -> Message:
    """Return what a unit of the chip recorded: `AIC 0x20: floating-point overflow`."""
    codes = tuple(f"{word:#x}" for word in unit.status)
    return Message("check.status.unit", unit=unit.unit, codes=codes, bits=unit.bits)
