"""Overflow as one of the checks of `ac`: which op overflowed first, and what tells so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from precision_tool.lib.checks.overflow import Origin, OverflowOp, OverflowReport, bad_words
from precision_tool.lib.checks.overflow_advice import Advice, advise
from precision_tool.lib.checks.overflow_search import find_overflow
from precision_tool.lib.compare.known import KnownValues
from precision_tool.lib.data.folder import DataFolder
from precision_tool.lib.errors import PrecisionToolError
from precision_tool.lib.formats.opdebug import UnitStatus
from precision_tool.lib.model.finding import CheckResult, Finding, FindingKind, Grade
from precision_tool.lib.model.wording import counted, shape_text
from precision_tool.lib.workspace import shown_path

NAME, TITLE = "overflow", "Overflow"
#: `ac` stays quick: it reads so many bytes of outputs at most.
_MAX_BYTES = 4 << 30
#: More ops than any network has.
_ALL = 1 << 31
ORIGIN_WORDS = {
    Origin.OWN: "overflowed itself",
    Origin.RECEIVED: "received it",
    Origin.SOURCE: "came in with the data",
    Origin.HIDDEN: "overflowed inside",
    Origin.UNKNOWN: "own or received: unknown",
    Origin.MEANT: "no overflow",
}


def unit_words(unit: UnitStatus) -> str:
    """`AIC 0x20: floating-point overflow`."""
    codes = ", ".join(f"{word:#x}" for word in unit.status)
    return f"{unit.unit} {codes}: {'; '.join(unit.words) or 'no bit is set'}"


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
        return CheckResult(name=NAME, title=TITLE, skipped=error.advice)
    ops = sum(leaf.scanned_ops for leaf in found.leaves)
    looked_at = f"{counted(len(found.statuses), 'overflow status', 'overflow statuses')} in {shown_path(root)}, "
    looked_at += f"the values of {counted(ops, 'dumped op')}"
    left_out = sum(leaf.left_out for leaf in found.leaves)
    if left_out:
        looked_at += f"; not those of {left_out} more: `overflow` reads all"
    first = found.first
    is_unread = bool(found.unreadable)
    if first is not None:
        told = {Origin.OWN: "overflows first", Origin.HIDDEN: "overflows first, inside the op"}
        message = f"{first.name} {told.get(first.origin, 'is the first with an overflow')}: {first.why}"
    elif found.is_clean:
        message = "nothing overflowed: no value is saturated, Inf or NaN"
    else:
        message = f"{counted(len(found.statuses), 'overflow status', 'overflow statuses')}, of ops that were not found"
    advice = advise(found)
    return CheckResult(
        name=NAME,
        title=TITLE,
        looked_at=looked_at,
        finding=Finding(
            kind=FindingKind.OVERFLOW,
            grade=Grade.INFO if found.is_clean and not is_unread else Grade.WARNING,
            message=message,
            op_name="" if first is None else first.name,
            op_type="" if first is None else first.op_type,
            pass_names=() if first is None else first.pass_names,
            original_ops=() if first is None else first.original_names,
            facts=_facts(found, advice, limit),
        ),
    )


def _facts(found: OverflowReport, advice: Sequence[Advice], limit: int) -> tuple[tuple[str, str], ...]:
    facts: list[tuple[str, str]] = [("unreadable", why) for _, why in found.unreadable[:limit]]
    for one in found.statuses[:limit]:
        name = one.file.path if one.op is None else f"{one.op.name} ({one.op.op_type})"
        if one is found.statuses[0] or one.op is None:
            facts.append(("op", name))
            facts += [("status", unit_words(unit)) for unit in one.units]
            facts += [] if one.op is None else _op_facts(one.op)
            facts += [("note", one.doubt)] if one.doubt else []
        else:  # the panel stays short: `overflow` shows their tensors
            facts.append(("then", f"{name}: {ORIGIN_WORDS[one.op.origin]}"))
    if len(found.statuses) > limit:
        facts.append(("more", f"{len(found.statuses) - limit} statuses; `overflow -l N` shows them"))
    leaf = found.first_leaf
    if leaf is not None and leaf.first is not None:
        facts.append(("by values", f"{counted(len(leaf.ops), 'op')}, the first {leaf.first.name}"))
        if not found.statuses:
            facts += _tensor_facts(leaf.first)
    facts += [("advice", one.text) for one in advice[:1]]
    return tuple(facts)


def _op_facts(op: OverflowOp) -> list[tuple[str, str]]:
    return [("origin", ORIGIN_WORDS[op.origin]), *_tensor_facts(op)]


def _tensor_facts(op: OverflowOp) -> list[tuple[str, str]]:
    facts = []
    for one in op.slots:
        if one.tensor is None:
            facts.append((one.slot, one.reason or "not dumped"))
            continue
        text = f"{one.tensor.dtype} {shape_text(one.tensor.shape)}"
        if one.summary is not None:
            figures = (("max", one.summary.maximum), ("min", one.summary.minimum), ("mean", one.summary.mean))
            text += "".join(f", {name} {value:.5g}" for name, value in figures)
        if one.is_bad:
            text += f", {bad_words(one.extremes)}"
        facts.append((one.slot, text))
    return facts
