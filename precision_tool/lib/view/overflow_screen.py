"""Screens of `overflow`, and its JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from math import inf, isnan
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.text import Text

from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.diagnose.headroom import TrailStep, scale_message
from precision_tool.lib.diagnose.overflow import (
    LeafOverflow,
    Origin,
    OverflowOp,
    OverflowReport,
    SlotValues,
    StatusReport,
    bad_values,
    share_text,
)
from precision_tool.lib.diagnose.overflow_advice import Advice, conclusion, origin_name, unit_message
from precision_tool.lib.io.opdebug import UnitStatus
from precision_tool.lib.messages import Message, render, text
from precision_tool.lib.model.comparison import Summary
from precision_tool.lib.model.run import DumpLeaf
from precision_tool.lib.model.wording import shape_text
from precision_tool.lib.view.tables import NUMBERS, Box, Heading, NameTable, Prose, figure_table
from precision_tool.lib.view.text import (
    LabelledLines,
    Line,
    json_text,
    label,
    labelled,
    op_heading,
    origin_lines,
    plain,
    safe,
    shown,
    shown_reason,
    unreadable_lines,
    whole_path,
)
from precision_tool.lib.view.verdict_screen import judged_json, judged_words

_ORIGIN_STYLES = {
    Origin.OWN: "bold red",
    Origin.RECEIVED: "yellow",
    Origin.SOURCE: "bold red",
    Origin.HIDDEN: "bold red",
    Origin.UNKNOWN: "yellow",
    Origin.MEANT: "green",
}
_COLUMN = "screen.view.overflow.column"
#: Units of the chip that have a name in the catalogue.
UNITS = ("AIC", "AIV", "AICPU", "SDMA")
#: Steps of a trail that are shown; JSON has all.
_SHOWN_STEPS = 12
#: Of more devices and steps than these, those without overflow have one line each.
_SHOWN_LEAVES = 2


# --- one op -----------------------------------------------------------------------------------------------------------


def op_title(op: OverflowOp | None, name: str = "") -> Text:
    """`[17] name (type)`; only the name of what no op was found for."""
    if op is None:
        return Text(safe(name), "bold")
    return op_heading(op.number, op.name, op.op_type)


def slot_table(slots: Sequence[SlotValues]) -> NameTable:
    """The tensors of an op: figures, and the shares of saturated, Inf and NaN values."""
    table = figure_table()
    table.add_columns(_COLUMN, "tensor")  # one column, which wraps well where there is no room
    table.add_columns(_COLUMN, "max", "min", "mean", "saturated", "inf", "nan", **NUMBERS)
    for values in slots:
        slot = (safe(values.slot), "bold")
        if values.tensor is None:
            table.add_row(Text.assemble(slot, shown(Message("screen.view.overflow.not_dumped"), "dim")))
            continue
        figures = ["-"] * 3
        summary, extremes = values.summary, values.extremes
        if summary is not None:
            figures = [f"{value:.5g}" for value in (summary.maximum, summary.minimum, summary.mean)]
        shares = [Text("-", style="dim")] * 3
        if extremes is not None:
            counts = (extremes.saturated, extremes.inf_count, extremes.nan_count)
            is_least = extremes.statistics_only
            shares = [_share(part, extremes.count, is_least and not at) for at, part in enumerate(counts)]
        table.add_row(
            Text.assemble(slot, plain(f" {values.tensor.dtype} {shape_text(values.tensor.shape)}")),
            *map(Text, figures),
            *shares,
        )
    return table


def _share(part: int, whole: int, is_least: bool) -> Text:
    if not part:
        return Text("0", style="dim")
    return Text("≥ 1" if is_least else share_text(part, whole), style="bold red")


def _origin_line(op: OverflowOp) -> Text:
    name = Message("check.origin.name.computes_wrong") if op.computes_wrong else origin_name(op.origin)
    origin = Message("screen.view.overflow.origin", origin=name, why=op.why)
    return shown(origin, fields={"origin": _ORIGIN_STYLES[op.origin]})


def status_block(status: StatusReport) -> RenderableType:
    """One status file: its op, the status in words, own or received, and the op's tensors."""
    op = status.op
    title = op_title(op, status.file.name.op_name if op is None else "")
    lines: list[Line] = []
    for unit in status.units:
        name = text(f"screen.view.overflow.unit.{unit.unit.lower()}") if unit.unit in UNITS else unit.unit
        lines.append((label("accelerator"), plain(name)))
        lines.append((label("status"), shown(unit_message(unit), "red" if unit.is_set else "dim")))
        lines.append((label("task"), shown(_task(unit, status))))
    if op is not None:
        lines.append((label("origin"), _origin_line(op)))
        lines += _recomputed_lines(op)
        lines += origin_lines(op)
    notes = map(render, (*status.notes, *status.doubts))
    lines += [(label("note"), plain(shown_reason(note), "yellow")) for note in notes]
    lines.append((label("file"), whole_path(status.file.path)))
    lines += labelled(label("dump"), map(whole_path, op.paths if op is not None else ()))
    parts: list[RenderableType] = [Heading(title), LabelledLines(lines)]
    if op is not None:
        parts.append(slot_table(op.slots))
    return Group(*parts)


def _task(unit: UnitStatus, status: StatusReport) -> Message:
    return Message(
        "screen.view.overflow.task", task=unit.task_id, stream=unit.stream_id, context=unit.context_id,
        thread=unit.thread_id, model=unit.model_id, device=status.device, step=status.step,
    )  # fmt: skip


def _recomputed_lines(op: OverflowOp) -> list[Line]:
    return [] if op.judged is None else [(label("recomputed"), plain(shown_reason(judged_words(op.judged))))]


# --- a leaf -----------------------------------------------------------------------------------------------------------


def _leaf_name(leaf: DumpLeaf) -> str:
    device = text("screen.view.compare.device", device=leaf.device) if leaf.device else ""
    step = text("screen.view.compare.step", step=leaf.step) if leaf.step else ""
    return " ".join(filter(None, (device, step))) or shown_path(leaf.path)


def _clean_line(leaf: LeafOverflow) -> Text:
    scale = None if leaf.scale is None else scale_message(leaf.scale)
    message = Message(
        "screen.view.overflow.clean_leaf", leaf=safe(_leaf_name(leaf.leaf)), ops=leaf.scanned_ops, scale=scale
    )  # fmt: skip
    return shown(message, "green")


def leaf_block(
    leaf: LeafOverflow, limit: int, listed: Collection[str] = (), advised: Collection[str] = ()
) -> RenderableType:
    """Return what the values of one leaf show: the first op, the others in short, and what uses up the range.

    Parameters
    ----------
    leaf : LeafOverflow
        The values of one step and device.
    limit : int
        How many ops are listed.
    listed : collection of str
        Names of ops whose tensors are on the screen already.
    advised : collection of str
        Texts of the advice below, which are not repeated here.
    """
    heading = Heading(shown(Message("screen.view.overflow.leaf_title", leaf=safe(_leaf_name(leaf.leaf)))))
    scanned = Message("screen.view.overflow.scanned", ops=leaf.scanned_ops, bytes=leaf.scanned_bytes)
    lines = [(label("checked"), shown(scanned, "dim")), ("", whole_path(leaf.leaf.path))]
    if leaf.left_out:
        lines.append((label("not_read"), shown(Message("screen.view.overflow.left_out", ops=leaf.left_out))))
    unreadable = list(leaf.unreadable.values())
    parts: list[RenderableType] = [heading, LabelledLines(lines)]
    parts += unreadable_lines(unreadable)
    first = leaf.first
    if first is None:
        clean = Message("screen.view.overflow.clean", benchmark=bool(leaf.ops), unreadable=bool(unreadable))
        parts.append(shown(clean, "yellow" if unreadable else "green"))
    else:
        parts += _bad_parts(leaf, first, limit, listed)
    if leaf.scale is not None and render(scale_message(leaf.scale)) not in advised:
        parts.append(LabelledLines([(label("loss_scale"), shown(scale_message(leaf.scale)))]))
    return Group(*parts)


def _bad_parts(leaf: LeafOverflow, first: OverflowOp, limit: int, listed: Collection[str]) -> Iterator[RenderableType]:
    ops = Counter(op.origin for op in leaf.ops)
    counts = [
        Message(f"screen.view.overflow.count.{origin.name.lower()}", count=ops[origin])
        for origin in _ORIGIN_STYLES
        if ops[origin]
    ]
    is_listed = first.name in listed
    yield LabelledLines(
        [
            (label("mode"), shown(Message(f"screen.view.overflow.mode.{leaf.mode.name.lower()}"))),
            (label("found"), shown(Message("screen.view.overflow.found", ops=len(leaf.ops), counts=counts))),
            (label("first"), plain(f"[{first.number}] {first.name} ({first.op_type})", "bold red")),
            ("", _origin_line(first)),
            *([] if is_listed else _recomputed_lines(first)),
            *([] if is_listed else origin_lines(first)),
        ]
    )
    if not is_listed:
        yield slot_table(first.slots)
    others = sorted((op for op in leaf.ops if op is not first), key=lambda op: op.origin is Origin.RECEIVED)
    named = "" if leaf.scale is None else leaf.scale.tightest  # the line of the loss scale names it
    some = [op for at, op in enumerate(others) if at < limit - 1 or op.name == named]
    if some:
        yield LabelledLines([*map(_other_op, some)])
    if len(some) < len(others):
        yield shown(Message("screen.view.overflow.some_ops", shown=len(some) + 1, total=len(leaf.ops)), "dim")
    if leaf.trail:
        yield trail_table(leaf.trail)


def _other_op(op: OverflowOp) -> tuple[str, Text]:
    values = [
        Message("screen.view.overflow.slot_values", slot=slot.slot, values=bad_values(slot.extremes))
        for slot in op.bad_outputs
    ]
    origin = shown(origin_name(op.origin), _ORIGIN_STYLES[op.origin])
    outputs = shown(Message("screen.view.overflow.op_values", values=values))
    return f"[{op.number}]", Text.assemble((safe(op.name), "bold"), " ", origin, outputs)


def trail_table(trail: Sequence[TrailStep]) -> RenderableType:
    """The path to the first op: what was left of the range at each op, and what it took."""
    table = figure_table()
    table.add_columns(_COLUMN, "dtype", no_wrap=True)
    table.add_columns(_COLUMN, "largest", "bits_left", "bits_used", **NUMBERS)
    table.add_columns(_COLUMN, "op")
    largest = max((step.growth for step in trail if step.growth is not None), default=inf)
    hidden = len(trail) - _SHOWN_STEPS
    if hidden > 0:
        table.add_row("", "", "", "", shown(Message("screen.view.overflow.hidden_steps", ops=hidden), "dim"))
    for step in trail[max(hidden, 0) :]:
        growth = "-" if step.growth is None else f"{step.growth:+.1f}"
        style = "bold red" if step.growth is not None and step.growth == largest and largest > 0 else ""
        op = Text.assemble(
            (safe(step.op_name), "bold" if step.dumped else "dim"), f" ({safe(step.op_type)})" * bool(step.op_type)
        )
        extremes = step.extremes
        largest_size = "Inf" if extremes.inf_count else "NaN" if extremes.nan_count else f"{extremes.largest:.5g}"
        if step.true_largest is not None:
            largest_size += f" ({step.true_largest:.5g})"
        table.add_row(
            plain(extremes.dtype),
            Text(largest_size),
            Text("-" if largest_size.startswith("NaN") else _bits(extremes.headroom)),
            Text(growth, style=style),
            op,
        )
    has_benchmark = any(step.true_largest is not None for step in trail)
    return Group(table, shown(Message("screen.view.overflow.bits_note", benchmark=has_benchmark), "dim"))


def _bits(value: float) -> str:
    return "-" if isnan(value) else text("screen.view.overflow.all_bits") if value == inf else f"{value:.1f}"


# --- the report -------------------------------------------------------------------------------------------------------


def overflow_lines(report: OverflowReport, advice: Sequence[Advice], limit: int, folder: str) -> list[RenderableType]:
    parts: list[RenderableType] = []
    number = len(report.statuses)
    place = safe(shown_path(folder))
    statuses = Message("screen.view.overflow.statuses", count=number, folder=place)
    parts.append(shown(statuses if number else Message("screen.view.overflow.no_status", folder=place), "bold"))
    parts += unreadable_lines([why for _, why in report.unreadable])
    parts += [status_block(status) for status in report.statuses[:limit]]
    if number > limit:
        parts.append(shown(Message("screen.view.overflow.some_statuses", shown=limit, total=number), "dim"))
    listed = {status.op.name for status in report.statuses[:limit] if status.op is not None}
    advised = {render(item.message) for item in advice}
    is_many = len(report.leaves) > _SHOWN_LEAVES
    for leaf in report.leaves:
        is_short = is_many and not leaf.ops and not leaf.unreadable
        parts.append(_clean_line(leaf) if is_short else leaf_block(leaf, limit, listed, advised))
    if advice:
        parts.append(Heading(shown(Message("screen.view.overflow.advice"))))
        for item in advice:
            parts.append(plain(f"- {render(item.message)}"))
            parts += [plain(f"    {line}", "cyan") for line in item.lines]
    return parts


def conclusion_box(report: OverflowReport) -> RenderableType:
    """Return the conclusion, last and heaviest on the screen: the op that overflows first, or that none does."""
    unread = len(report.unreadable) + sum(len(leaf.unreadable) for leaf in report.leaves)
    message = Message("screen.view.overflow.conclusion", conclusion=conclusion(report), unreadable=unread or None)
    style = "bold red" if not report.is_clean else "bold yellow" if unread else "green"
    title = shown(Message("screen.view.overflow.title"))
    return Box(Prose(shown(message, style)), title=title, style=style, box=box.HEAVY)


# --- JSON -------------------------------------------------------------------------------------------------------------


def to_json(report: OverflowReport, advice: Sequence[Advice], mixlist: str = "") -> str:
    """Return the report as one JSON document, with all ops and statuses."""
    first = report.first
    return json_text(
        {
            "first": None if first is None else first.name,
            "statuses": [_status_json(status) for status in report.statuses],
            "unreadable": [{"file": path, "reason": why} for path, why in report.unreadable],
            "leaves": [_leaf_json(leaf) for leaf in report.leaves],
            "advice": [
                {
                    "kind": item.kind,
                    "text": item.message,
                    "op_types": list(item.op_types),
                    "lines": list(item.lines),
                }
                for item in advice
            ],
            "mixlist": mixlist or None,
        }
    )


def _status_json(status: StatusReport) -> dict[str, Any]:
    return {
        "file": status.file.path,
        "output": status.output,
        "decoded": status.file.decoded,
        "timestamp": status.file.name.timestamp,
        "device": status.device or None,
        "step": status.step or None,
        "units": [{**asdict(unit), "words": unit.bits} for unit in status.units],
        "op": None if status.op is None else _op_json(status.op),
        "doubt": "; ".join(map(render, status.doubts)),
        "notes": list(status.notes),
    }


def _op_json(op: OverflowOp) -> dict[str, Any]:
    return {
        "name": op.name,
        "type": op.op_type,
        "origin": op.origin,
        "why": op.why,
        "judged": None if op.judged is None else judged_json(op.judged),
        "pass": list(op.pass_names),
        "original_ops": list(op.original_names),
        "gradient": op.is_gradient,
        "files": list(op.paths),
        "tensors": [_slot_json(slot) for slot in op.slots],
    }


def _slot_json(slot: SlotValues) -> dict[str, Any]:
    extremes, tensor = slot.extremes, slot.tensor
    return {
        "slot": slot.slot,
        "dtype": None if tensor is None else tensor.dtype,
        "layout": None if tensor is None else tensor.layout,
        "shape": None if tensor is None else list(tensor.shape),
        "producer": slot.producer or None,
        "reason": slot.reason or "",
        "count": None if extremes is None else extremes.count,
        "largest": None if extremes is None else extremes.largest,
        "headroom": None if extremes is None else extremes.headroom,
        "saturated": None if extremes is None else extremes.saturated,
        "nan": None if extremes is None else extremes.nan_count,
        "positive_inf": None if extremes is None else extremes.positive_inf_count,
        "negative_inf": None if extremes is None else extremes.negative_inf_count,
        "statistics_only": extremes is not None and extremes.statistics_only,
        "summary": _summary_json(slot.summary),
    }


def _summary_json(summary: Summary | None) -> dict[str, Any] | None:
    if summary is None:
        return None
    return {"max": summary.maximum, "min": summary.minimum, "mean": summary.mean, "std": summary.std}


def _leaf_json(leaf: LeafOverflow) -> dict[str, Any]:
    scale = leaf.scale
    return {
        "path": leaf.leaf.path,
        "device": leaf.leaf.device or None,
        "step": leaf.leaf.step or None,
        "graph": None if leaf.graph is None else leaf.graph.file.path,
        "mode": leaf.mode,
        "scanned_ops": leaf.scanned_ops,
        "scanned_bytes": leaf.scanned_bytes,
        "not_scanned_ops": leaf.left_out,
        "unreadable": [{"file": path, "reason": why} for path, why in leaf.unreadable.items()],
        "first": None if leaf.first is None else leaf.first.name,
        "ops": [_op_json(op) for op in leaf.ops],
        "trail": [
            {
                "op": step.op_name,
                "type": step.op_type,
                "slot": step.slot,
                "dtype": step.extremes.dtype,
                "largest": step.extremes.largest,
                "benchmark_largest": step.true_largest,
                "headroom": step.extremes.headroom,
                "growth": step.growth,
                "dumped": step.dumped,
            }
            for step in leaf.trail
        ],
        "loss_scale": None
        if scale is None
        else {
            "current": scale.current,
            "source": scale.source or None,
            "exponent": scale.exponent,
            "is_bound": scale.is_bound,
            "fitting": scale.fitting,
            "tightest": scale.tightest or None,
            "reason": scale.reason,
        },
    }
