"""What to do about an overflow: the advice that fits what was found, likeliest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from operator import or_

from precision_tool.lib.checks.headroom import scale_message
from precision_tool.lib.checks.overflow import LeafOverflow, Origin, OverflowOp, OverflowReport
from precision_tool.lib.collect.mixlist import keep_dtype_text
from precision_tool.lib.engine.run_values import KEPT_TYPES
from precision_tool.lib.formats.fusion_passes import is_switchable
from precision_tool.lib.formats.opdebug import core_overflows
from precision_tool.lib.graph.neighbourhood import Node, Wiring
from precision_tool.lib.messages import Message
from precision_tool.lib.model.graph import Op

#: Types whose range is small, so that computing in float32 helps.
_SMALL_RANGE = ("float16", "complex32")
#: Status bits of overflows that no floating-point type helps against.
_INTEGER_BITS = 0x8 | 0x10 | 0x80
#: Ops of this in their type are how loss scaling finds an overflow, to skip the step.
_SKIPS_STEPS = "FloatStatus"


class AdviceKind(StrEnum):
    """What to do."""

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
    """The advice that fits the first op that overflowed; () where nothing did."""
    op = report.first
    if op is None:
        return ()
    if op.computes_wrong:
        switchable = next(filter(is_switchable, op.pass_names), "")
        return (
            Advice(kind=AdviceKind.MEND, message=Message("check.advice.kernel", op_name=op.name, pass_name=switchable)),
        )
    leaf = next((one for one in report.leaves if any(other.name == op.name for other in one.ops)), report.first_leaf)
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
    bad = [one.extremes for one in op.bad_outputs if one.extremes is not None]
    if bad and not any(one.saturated or one.inf_count for one in bad):
        advice.append(Advice(kind=AdviceKind.VALUES, message=Message("check.advice.nan", op_name=op.name)))
    return advice


def _spender(op: OverflowOp, leaf: LeafOverflow | None) -> list[Advice]:
    """To look at the op on the way that used more of the range than the one that overflowed; [] if none did."""
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
    """True if a tensor of the op has a type of small range; also if its tensors are not known."""
    bad = [one.tensor.dtype for one in op.bad_outputs if one.tensor is not None]
    types = bad or [one.tensor.dtype for one in op.slots if one.tensor is not None]
    return not types or any(name in _SMALL_RANGE for name in types)


def _wider(op: OverflowOp, leaf: LeafOverflow | None) -> list[Advice]:
    """Computing the op in float32: by type with a list, by place with a scope."""
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


def _readers(op: OverflowOp, leaf: LeafOverflow | None) -> list[Op]:
    graph = leaf.graph if leaf is not None else None
    if graph is None:
        return []
    wiring = Wiring(graph.file)
    for one in graph.file.graphs:
        if op.name in one.by_name:
            node = Node(graph=one.name, name=op.name, op=one.by_name[op.name])
            ends = [step.end.op for step in wiring.readers(node, 0, passing=True)]
            return [end for end in ends if end is not None]
    return []


def _look_back(op: OverflowOp) -> Advice:
    bad = [one for one in op.slots if one.slot.startswith("input") and one.is_bad and one.producer]
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
    """A step that loss scaling skips is meant to overflow now and then."""
    graph = leaf.graph if leaf is not None else None
    skips = [op for op in graph.file.ops if _SKIPS_STEPS in op.type] if graph is not None else []
    if not skips or leaf is None:
        return []
    steps = {one.leaf.step for one in report.leaves if one.leaf.device == leaf.leaf.device}
    bad = {one.leaf.step for one in report.leaves if one.leaf.device == leaf.leaf.device and one.first}
    may_ignore = Message(
        "check.advice.ignore", op_name=skips[0].name, op_type=skips[0].type, overflowed=len(bad), steps=len(steps)
    )
    return [Advice(kind=AdviceKind.IGNORE, message=may_ignore)]


def black_list(advice: Sequence[Advice]) -> tuple[str, ...]:
    """The op types for a mixed-precision list."""
    return tuple(dict.fromkeys(name for one in advice for name in one.op_types))
