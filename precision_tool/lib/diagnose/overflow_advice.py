"""What to do about an overflow: the advice that fits what was found, likeliest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from operator import or_

from precision_tool.lib.compare.data_folder import DataFolder
from precision_tool.lib.compare.run_values import KEPT_TYPES, KnownValues
from precision_tool.lib.data.neighbourhood import Node, Wiring
from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.diagnose.headroom import scale_message
from precision_tool.lib.diagnose.overflow import (
    LeafOverflow,
    Origin,
    OverflowOp,
    OverflowReport,
    bad_values,
    find_overflow,
)
from precision_tool.lib.diagnose.plan import in_float32
from precision_tool.lib.io.fusion_passes import is_switchable
from precision_tool.lib.io.opdebug import UnitStatus, core_overflows
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.model.finding import CheckResult, Fact, Finding, FindingKind, Grade
from precision_tool.lib.model.graph import GraphFile, Op
from precision_tool.lib.model.wording import shape_text
from precision_tool.lib.training.mixlist import keep_dtype_text

#: Types whose range is small, so that computing in float32 helps.
_SMALL_RANGE = ("float16", "complex32")
#: Status bits of overflows that no floating-point type helps against.
_INTEGER_BITS = 0x8 | 0x10 | 0x80
#: Ops of this in their type are how loss scaling finds an overflow, to skip the step.
_SKIPS_STEPS = "FloatStatus"


class AdviceKind(StrEnum):
    """Kind of advice."""

    LOSS_SCALE = "loss_scale"
    MIXLIST = "mixlist"
    KEEP_DTYPE = "keep_dtype"
    UPSTREAM = "upstream"
    VALUES = "values"
    IGNORE = "ignore"
    MEND = "mend"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One thing to do. `op_types` go on the black list of a mixed-precision list, `lines` are code to copy."""

    kind: AdviceKind
    message: Message
    op_types: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()


def advise(report: OverflowReport) -> tuple[Advice, ...]:
    """Return the advice that fits the first op that overflowed; () where nothing did."""
    op = report.first
    if op is None:
        return ()
    if op.computes_wrong:
        switchable = next(filter(is_switchable, op.pass_names), "")
        return (
            Advice(kind=AdviceKind.MEND, message=Message("check.advice.kernel", op_name=op.name, pass_name=switchable)),
        )
    leaf = next(
        (candidate for candidate in report.leaves if any(other.name == op.name for other in candidate.ops)),
        report.first_leaf,
    )
    advice = list(_about_range(report, op, leaf)) if op.origin in (Origin.OWN, Origin.HIDDEN) else [_look_back(op)]
    if op.origin is Origin.UNKNOWN and _is_small(op):
        advice += _wider(op, leaf)
    return (*advice, *_ignoring(report, leaf))


def _about_range(report: OverflowReport, op: OverflowOp, leaf: LeafOverflow | None) -> list[Advice]:
    bits = 0
    for status in report.statuses:
        if status.op is not None and status.op.name == op.name:
            for unit in status.units:
                bits = reduce(or_, unit.status, bits)
    if op.origin is Origin.HIDDEN and bits & _INTEGER_BITS and not bits & ~_INTEGER_BITS:
        return [
            Advice(
                kind=AdviceKind.VALUES,
                message=Message("check.advice.integers", op_name=op.name, overflows=core_overflows(bits)),
            )
        ]
    if not _is_small(op):
        return [Advice(kind=AdviceKind.VALUES, message=Message("check.advice.undefined", op_name=op.name))]
    advice = []
    scale = leaf.scale if leaf is not None else None
    if op.is_gradient and scale is not None and scale.exponent is not None:
        advice.append(Advice(kind=AdviceKind.LOSS_SCALE, message=scale_message(scale)))
    has_scale = bool(advice)
    advice += _wider(op, leaf)
    if not has_scale:
        advice += _spender(op, leaf)
    bad = [slot.extremes for slot in op.bad_outputs if slot.extremes is not None]
    if bad and not any(slot.saturated or slot.inf_count for slot in bad):
        advice.append(Advice(kind=AdviceKind.VALUES, message=Message("check.advice.nan", op_name=op.name)))
    return advice


def _spender(op: OverflowOp, leaf: LeafOverflow | None) -> list[Advice]:
    """Advise to inspect the op that used more of the range than the one that overflowed; [] if none did."""
    trail = leaf.trail if leaf is not None and leaf.first is not None and leaf.first.name == op.name else ()
    used = [step for step in trail if step.growth is not None]
    most = max(used, key=lambda step: step.growth or 0.0, default=None)
    if most is None or most is trail[-1] or not most.growth or most.growth <= 0:
        return []
    spender = Message(
        "check.advice.spender",
        op_name=most.op_name,
        op_type=most.op_type,
        largest=most.extremes.largest,
        overflowed=op.name,
    )
    return [Advice(kind=AdviceKind.UPSTREAM, message=spender)]


def _is_small(op: OverflowOp) -> bool:
    """Return True if a tensor of the op has a type of small range; also if its tensors are not known."""
    bad = [slot.tensor.dtype for slot in op.bad_outputs if slot.tensor is not None]
    types = bad or [slot.tensor.dtype for slot in op.slots if slot.tensor is not None]
    return not types or any(name in _SMALL_RANGE for name in types)


def _wider(op: OverflowOp, leaf: LeafOverflow | None) -> list[Advice]:
    """Advise to compute the op in float32: by type with a list, by place with a scope."""
    graph = leaf.graph if leaf is not None else None
    if graph is not None and graph.file.framework:
        return _wider_call(op, graph.file)
    types: tuple[str, ...] = (op.op_type,)
    names = op.original_names or (op.name,)
    readers = _readers(op, leaf) if op.op_type == "Cast" else []
    if op.op_type == "Cast":  # casts follow from what reads them
        types = tuple(dict.fromkeys(reader.type for reader in readers))
        names = tuple(name for reader in readers for name in reader.original_names or (reader.name,))
    advice = []
    if types:
        wider = Message(
            "check.advice.wider",
            op_name=op.name,
            readers=tuple(reader.name for reader in readers),
            op_types=types,
        )
        advice.append(Advice(kind=AdviceKind.MIXLIST, message=wider, op_types=types))
    if names:
        advice.append(
            Advice(
                kind=AdviceKind.KEEP_DTYPE,
                message=Message("check.advice.keep_type", ops=len(names)),
                lines=tuple(keep_dtype_text(names).splitlines()),
            )
        )
    return advice


def _wider_call(op: OverflowOp, file: GraphFile) -> list[Advice]:
    """Advise to compute a recorded call in float32: lines of the script, or of an optimizer its own precision."""
    call = file.op(op.name)
    if call is None:
        return []
    steps = in_float32(call, file.framework)
    if not steps:
        return [Advice(kind=AdviceKind.VALUES, message=Message("check.advice.master_weights", op_name=op.name))]
    message = Message("check.advice.in_float32", op_name=op.name, module=call.module, source=call.source)
    return [Advice(kind=AdviceKind.KEEP_DTYPE, message=message, lines=tuple(steps[0].code.splitlines()))]


def _readers(op: OverflowOp, leaf: LeafOverflow | None) -> list[Op]:
    graph = leaf.graph if leaf is not None else None
    if graph is None:
        return []
    wiring = graph.file.once(Wiring)
    for part in graph.file.graphs:
        if op.name in part.by_name:
            node = Node(graph=part.name, name=op.name, op=part.by_name[op.name])
            ends = [step.end.op for step in wiring.readers(node, 0, passing=True)]
            return [end for end in ends if end is not None]
    return []


def _look_back(op: OverflowOp) -> Advice:
    bad = [slot for slot in op.slots if slot.slot.startswith("input") and slot.is_bad and slot.producer]
    if op.origin is Origin.RECEIVED:
        if bad and bad[0].producer_type in KEPT_TYPES:
            return Advice(
                kind=AdviceKind.UPSTREAM, message=Message("check.advice.held_before", producer=bad[0].producer)
            )
        upstream = Message("check.advice.upstream", op_name=op.name, producer=bad[0].producer if bad else "")
        return Advice(kind=AdviceKind.UPSTREAM, message=upstream)
    if op.origin is Origin.SOURCE:
        return Advice(kind=AdviceKind.VALUES, message=Message("check.advice.data", op_name=op.name))
    return Advice(kind=AdviceKind.UPSTREAM, message=Message("check.advice.dump_inputs", op_name=op.name))


def _ignoring(report: OverflowReport, leaf: LeafOverflow | None) -> list[Advice]:
    """Advise to ignore a step that loss scaling skips: it is meant to overflow now and then."""
    graph = leaf.graph if leaf is not None else None
    skips = [op for op in graph.file.ops if _SKIPS_STEPS in op.type] if graph is not None else []
    if not skips or leaf is None:
        return []
    steps = {other.leaf.step for other in report.leaves if other.leaf.device == leaf.leaf.device}
    bad = {other.leaf.step for other in report.leaves if other.leaf.device == leaf.leaf.device and other.first}
    may_ignore = Message(
        "check.advice.ignore", op_name=skips[0].name, op_type=skips[0].type, overflowed=len(bad), steps=len(steps)
    )
    return [Advice(kind=AdviceKind.IGNORE, message=may_ignore)]


def black_list(advice: Sequence[Advice]) -> tuple[str, ...]:
    """Return the op types for a mixed-precision list."""
    return tuple(dict.fromkeys(name for step in advice for name in step.op_types))


# --- the check of `ac` ---


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
    data: DataFolder, folder: str | None, graph: str | None, limit: int, cached: Mapping[str, KnownValues] | None
) -> CheckResult:
    """Check for overflow as `ac` shows it; in `folder` if another dump was named. `limit` 0 shows all ops.

    `cached` is what a comparison found out, by the folder of the leaf.
    """
    try:
        limit = limit or _ALL
        report, root = find_overflow(data, folder, graph, limit, max_bytes=_MAX_BYTES, cached=cached)
    except PrecisionToolError as error:
        return CheckResult(name=NAME, skipped=error.advice_message)
    return overflow_result(report, root, limit)


def planned(report: OverflowReport) -> Message | None:
    """Return that the next steps of a verdict deal with an overflow, and why as they do; None without any advice."""
    advice = next(iter(advise(report)), None)
    if advice is None:
        return None
    reason = advice.message.fields.get("reason") if advice.kind is AdviceKind.LOSS_SCALE else None
    return Message("check.advice.planned", reason=reason, op_types=advice.op_types or None)


def overflow_result(report: OverflowReport, root: str, limit: int, settled: Message | None = None) -> OverflowResult:
    """Return the check of a report on what lies below `root`; `settled` stands in place of the advice."""
    first = report.first
    finding = Finding(
        kind=FindingKind.OVERFLOW,
        grade=Grade.INFO if report.is_clean and not report.unreadable else Grade.WARNING,
        message=conclusion(report),
        facts=tuple(_facts(report, limit, settled)),
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


def _facts(report: OverflowReport, limit: int, settled: Message | None) -> Iterator[Fact]:
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
    advice = [settled] if settled is not None else [each.message for each in advise(report)[:1]]
    yield from (Fact(Message("finding.label.advice"), message) for message in advice)


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
