"""What to do about an overflow: the advice that fits what was found, likeliest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from operator import or_

from precision_tool.lib.checks.headroom import LossScale
from precision_tool.lib.checks.overflow import LeafOverflow, Origin, OverflowOp, OverflowReport
from precision_tool.lib.collect.mixlist import keep_dtype_text
from precision_tool.lib.engine.run_values import KEPT_TYPES
from precision_tool.lib.formats.opdebug import CORE_BITS
from precision_tool.lib.graph.neighbourhood import Node, Wiring
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.wording import counted

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One thing to do. `op_types` go on the black list of a mixed-precision list, `lines` are code to copy."""

    kind: AdviceKind
    text: str
    op_types: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()


def advise(report: OverflowReport) -> tuple[Advice, ...]:
    """The advice that fits the first op that overflowed; () where nothing did."""
    op = report.first
    if op is None:
        return ()
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
        words = "; ".join(meaning for bit, meaning in CORE_BITS.items() if bits & bit)
        return [
            Advice(
                kind=AdviceKind.VALUES,
                text=f"look at the integers that {op.name} is fed ({words}): another floating-point type does not help",
            )
        ]
    if not _is_small(op):
        return [
            Advice(
                kind=AdviceKind.VALUES,
                text=f"the range of its type does not explain it: look for a division by 0, or a log or root of what "
                f"is not positive, in {op.name}",
            )
        ]
    advice = []
    scale = leaf.scale if leaf is not None else None
    if op.is_gradient and scale is not None and scale.exponent is not None:
        advice.append(Advice(kind=AdviceKind.LOSS_SCALE, text=f"{scale_words(scale)}: {scale.reason}"))
    if not advice:
        advice += _spender(op, leaf)
    advice += _wider(op, leaf)
    bad = [one.extremes for one in op.bad_outputs if one.extremes is not None]
    if bad and not any(one.saturated or one.inf_count for one in bad):
        text = f"or look for 0 / 0, or a log or root of what is not positive, in {op.name}: it has NaN, and no Inf"
        advice.append(Advice(kind=AdviceKind.VALUES, text=text))
    return advice


def _spender(op: OverflowOp, leaf: LeafOverflow | None) -> list[Advice]:
    """To look at the op on the way that used more of the range than the one that overflowed; [] if none did."""
    trail = leaf.trail if leaf is not None and leaf.first is not None and leaf.first.name == op.name else ()
    used = [step for step in trail if step.growth is not None]
    most = max(used, key=lambda step: step.growth or 0.0, default=None)
    if most is None or most is trail[-1] or not most.growth or most.growth <= 0:
        return []
    kind = f" ({most.op_type})" if most.op_type else ""
    return [
        Advice(
            kind=AdviceKind.UPSTREAM,
            text=f"look at {most.op_name}{kind}: its values of up to {most.extremes.largest:g} use {most.growth:.1f} "
            f"bits of the range, more than {op.name} itself",
        )
    ]


def _is_small(op: OverflowOp) -> bool:
    """True if a tensor of the op has a type of small range; also if its tensors are not known."""
    bad = [one.tensor.dtype for one in op.bad_outputs if one.tensor is not None]
    types = bad or [one.tensor.dtype for one in op.slots if one.tensor is not None]
    return not types or any(name in _SMALL_RANGE for name in types)


def _wider(op: OverflowOp, leaf: LeafOverflow | None) -> list[Advice]:
    """Computing the op in float32: by type with a list, by place with a scope."""
    types: tuple[str, ...] = (op.op_type,)
    names, who = op.original_names or (op.name,), op.name
    readers = _readers(op, leaf) if op.op_type == "Cast" else []
    if op.op_type == "Cast":  # casts follow from what reads them
        types = tuple(dict.fromkeys(reader.type for reader in readers))
        names = tuple(name for reader in readers for name in reader.original_names or (reader.name,))
        who = f"what reads {op.name}" + (f" ({', '.join(reader.name for reader in readers)})" if readers else "")
    advice = []
    if types:
        advice.append(
            Advice(
                kind=AdviceKind.MIXLIST,
                text=f"compute {who} in float32: put {', '.join(types)} on the black list (`overflow --mixlist` writes "
                "the file for modify_mixlist); it holds for all ops of a type",
                op_types=types,
            )
        )
    if names:
        advice.append(
            Advice(
                kind=AdviceKind.KEEP_DTYPE,
                text=f"or keep the type of {counted(len(names), 'op')} of the script only",
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
    producers = [one.producer for one in bad]
    if op.origin is Origin.RECEIVED:
        if bad and bad[0].producer_type in KEPT_TYPES:
            text = f"{producers[0]} held it before this step: look at the step that wrote it, or at what was loaded"
            return Advice(kind=AdviceKind.UPSTREAM, text=text)
        where = f"look upstream: at {producers[0]}, or at what feeds it" if producers else "look upstream"
        return Advice(kind=AdviceKind.UPSTREAM, text=f"{where}. {op.name} only received it")
    if op.origin is Origin.SOURCE:
        return Advice(kind=AdviceKind.VALUES, text=f"check the data: {op.name} is fed by no op")
    return Advice(
        kind=AdviceKind.UPSTREAM, text=f"dump inputs too (dump_mode all), to see whether {op.name} overflowed itself"
    )


def _ignoring(report: OverflowReport, leaf: LeafOverflow | None) -> list[Advice]:
    """A step that loss scaling skips is meant to overflow now and then."""
    graph = leaf.graph if leaf is not None else None
    skips = [op for op in graph.file.ops if _SKIPS_STEPS in op.type] if graph is not None else []
    if not skips or leaf is None:
        return []
    steps = {one.leaf.step for one in report.leaves if one.leaf.device == leaf.leaf.device}
    bad = {one.leaf.step for one in report.leaves if one.leaf.device == leaf.leaf.device and one.first}
    seen = f"{len(bad)} of {counted(len(steps), 'dumped step')} overflowed" if len(steps) > 1 else "one step was dumped"
    return [
        Advice(
            kind=AdviceKind.IGNORE,
            text=f"or ignore it: {skips[0].name} ({skips[0].type}) lets loss scaling skip a step that overflows, and "
            f"lower the scale; single steps do no harm, several in a row do ({seen})",
        )
    ]


def scale_words(scale: LossScale) -> str:
    """What to do with the loss scale."""
    assert scale.exponent is not None
    most = "at most " if scale.is_bound else ""
    if scale.fitting is not None:
        return f"set the loss scale to {most}{scale.fitting:g} (it is {scale.current:g}, {scale.source})"
    if scale.exponent == 0:
        return "keep the loss scale"
    if scale.exponent > 0:
        return f"{2**scale.exponent} times the present loss scale (1 where there is none) fits"
    least = "at least " if scale.is_bound else ""
    return f"divide the loss scale by {least}{2**-scale.exponent}"


def black_list(advice: Sequence[Advice]) -> tuple[str, ...]:
    """The op types for a mixed-precision list."""
    return tuple(dict.fromkeys(name for one in advice for name in one.op_types))
