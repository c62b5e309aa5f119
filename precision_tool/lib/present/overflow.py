"""What `overflow` shows, and the JSON of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from math import inf, isnan
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.text import Text

from precision_tool.lib.checks.headroom import TrailStep, scale_message
from precision_tool.lib.checks.overflow import (
    LeafOverflow,
    Mode,
    Origin,
    OverflowOp,
    OverflowReport,
    SlotValues,
    StatusReport,
    bad_values,
    share_text,
)
from precision_tool.lib.checks.overflow_advice import Advice
from precision_tool.lib.checks.overflow_check import conclusion, origin_name, unit_message
from precision_tool.lib.formats.opdebug import UnitStatus
from precision_tool.lib.messages import render, text
from precision_tool.lib.model.comparison import Summary
from precision_tool.lib.model.run import DumpLeaf
from precision_tool.lib.model.wording import shape_text
from precision_tool.lib.present.judged import judged_json, judged_words
from precision_tool.lib.present.text import (
    LabelledLines,
    byte_size,
    counted,
    json_text,
    op_heading,
    plain,
    safe,
    shown_reason,
    unreadable_lines,
    whole_path,
)
from precision_tool.lib.present.whole import Box, Heading, NameTable, Prose
from precision_tool.lib.workspace import shown_path

#: The origins in the user's words, and their colours.
_ORIGIN_STYLES = {
    Origin.OWN: "bold red",
    Origin.RECEIVED: "yellow",
    Origin.SOURCE: "bold red",
    Origin.HIDDEN: "bold red",
    Origin.UNKNOWN: "yellow",
    Origin.MEANT: "green",
}
MODE_WORDS = {
    Mode.SATURATION: "saturation: what overflows ends at the type's largest number (±65504 in float16)",
    Mode.INF_NAN: "Inf/NaN: what overflows becomes Inf, and NaN behind it",
    Mode.BOTH: "both saturated values and Inf or NaN",
    Mode.NONE: "none seen",
}
#: What the units of the chip are.
ACCELERATORS = {
    "AIC": "AIC (AI Core, matrix unit)",
    "AIV": "AIV (AI Core, vector unit)",
    "AICPU": "AICPU (AI CPU)",
    "SDMA": "SDMA (copies memory)",
}
#: The same behind a number of ops.
_COUNT_WORDS = {
    Origin.OWN: "by themselves",
    Origin.RECEIVED: "received",
    Origin.SOURCE: "from the data",
    Origin.HIDDEN: "inside",
    Origin.UNKNOWN: "unknown",
    Origin.MEANT: "as in the benchmark",
}
#: Steps of a way that are shown; JSON has all.
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
    table = NameTable(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("tensor")  # one column, which wraps well where there is no room
    for name in ("max", "min", "mean", "satur.", "Inf", "NaN"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in slots:
        if one.tensor is None:
            table.add_row(Text.assemble((safe(one.slot), "bold"), (" not dumped", "dim")))
            continue
        figures = ["-"] * 3
        if one.summary is not None:
            figures = [f"{v:.5g}" for v in (one.summary.maximum, one.summary.minimum, one.summary.mean)]
        found = one.extremes
        shares = [Text("-", style="dim")] * 3
        if found is not None:
            counts = (found.saturated, found.inf_count, found.nan_count)
            shares = [_share(part, found.count, found.statistics_only and not at) for at, part in enumerate(counts)]
        table.add_row(
            Text.assemble((safe(one.slot), "bold"), plain(f" {one.tensor.dtype} {shape_text(one.tensor.shape)}")),
            *map(Text, figures),
            *shares,
        )
    return table


def _share(part: int, whole: int, is_least: bool) -> Text:
    if not part:
        return Text("0", style="dim")
    return Text("≥ 1" if is_least else share_text(part, whole), style="bold red")


def _origin_line(op: OverflowOp) -> Text:
    words = text("check.origin.name.computes_wrong") if op.computes_wrong else render(origin_name(op.origin))
    return Text.assemble((words, _ORIGIN_STYLES[op.origin]), plain(f": {render(op.why)}"))


def status_block(one: StatusReport) -> RenderableType:
    """One status file: its op, the status in words, own or received, and the op's tensors."""
    title = op_title(one.op, one.file.name.op_name if one.op is None else "")
    lines: list[tuple[str, Text]] = []
    for unit in one.units:
        lines.append(("accelerator", plain(ACCELERATORS.get(unit.unit, unit.unit))))
        lines.append(("status", plain(render(unit_message(unit)), "red" if unit.is_set else "dim")))
        lines.append(("task", plain(_task_words(unit, one))))
    if one.op is not None:
        lines.append(("origin", _origin_line(one.op)))
        lines += _judged_lines(one.op)
        lines += _op_lines(one.op)
    lines += [("note", plain(shown_reason(note), "yellow")) for note in (*one.notes, *map(render, one.doubts)) if note]
    lines.append(("file", whole_path(one.file.path)))
    lines += [("dump" if not at else "", whole_path(path)) for at, path in enumerate(one.op.paths if one.op else ())]
    parts: list[RenderableType] = [Heading(title), LabelledLines(lines)]
    if one.op is not None:
        parts.append(slot_table(one.op.slots))
    return Group(*parts)


def _task_words(unit: UnitStatus, one: StatusReport) -> str:
    parts = [f"{unit.task_id} on stream {unit.stream_id}"]
    parts += [f"{what} {value}" for what, value in (("context", unit.context_id), ("thread", unit.thread_id))
              if value is not None]  # fmt: skip
    parts.append(f"model {unit.model_id}")
    parts += [f"{what} {value}" for what, value in (("device", one.device), ("step", one.step)) if value]
    return ", ".join(parts)


def _judged_lines(op: OverflowOp) -> list[tuple[str, Text]]:
    return [] if op.judged is None else [("recomputed", plain(shown_reason(judged_words(op.judged))))]


def _op_lines(op: OverflowOp) -> Iterator[tuple[str, Text]]:
    if op.pass_names:
        yield "pass", plain(", ".join(op.pass_names))
    if op.original_names and op.original_names != (op.name,):
        yield "original", plain(", ".join(op.original_names))


# --- a leaf -----------------------------------------------------------------------------------------------------------


def _leaf_name(leaf: DumpLeaf) -> str:
    parts = ((what, value) for what, value in (("device", leaf.device), ("step", leaf.step)) if value)
    return " ".join(f"{what} {value}" for what, value in parts) or shown_path(leaf.path)


def _clean_line(one: LeafOverflow) -> Text:
    scale = f"; {render(scale_message(one.scale))}" if one.scale is not None else ""
    return plain(f"{_leaf_name(one.leaf)}: {counted(one.scanned_ops, 'op')} without such values{scale}", "green")


def leaf_block(
    one: LeafOverflow, limit: int, shown: Collection[str] = (), advised: Collection[str] = ()
) -> RenderableType:
    """What the values of one leaf show: the first op, the others in short, and what spent the range.

    `shown` are the names of ops whose tensors were shown before, `advised` what the advice will say.
    """
    title = f"dumped values, {_leaf_name(one.leaf)}"
    scanned = f"{counted(one.scanned_ops, 'op')}, {byte_size(one.scanned_bytes)} of outputs"
    lines = [("looked at", plain(scanned, "dim")), ("", whole_path(one.leaf.path))]
    if one.left_out:
        lines.append(("not read", plain(f"the {counted(one.left_out, 'op')} behind them; `overflow` reads all")))
    unread = list(one.unreadable.values())
    parts: list[RenderableType] = [Heading(plain(title)), LabelledLines(lines)]
    parts += unreadable_lines(unread)
    first = one.first
    if first is None:
        words = "no value is saturated, Inf or NaN" + (" but those the benchmark has too" if one.ops else "")
        words += " (in what could be read)" if unread else ""
        parts.append(Text(words, style="green" if not unread else "yellow"))
    else:
        parts += _bad_parts(one, first, limit, shown)
    if one.scale is not None and render(scale_message(one.scale)) not in advised:
        parts.append(LabelledLines([("loss scale", plain(render(scale_message(one.scale))))]))
    return Group(*parts)


def _bad_parts(one: LeafOverflow, first: OverflowOp, limit: int, shown: Collection[str]) -> Iterator[RenderableType]:
    counts = Counter(op.origin for op in one.ops)
    told = ", ".join(f"{counts[origin]} {words}" for origin, words in _COUNT_WORDS.items() if counts[origin])
    yield LabelledLines(
        [
            ("mode", plain(MODE_WORDS[one.mode])),
            ("found", plain(f"{counted(len(one.ops), 'op')} with such values: {told}")),
            ("first", plain(f"[{first.number}] {first.name} ({first.op_type})", "bold red")),
            ("", _origin_line(first)),
            *([] if first.name in shown else _judged_lines(first)),
            *([] if first.name in shown else _op_lines(first)),
        ]
    )
    if first.name not in shown:
        yield slot_table(first.slots)
    others = sorted((op for op in one.ops if op is not first), key=lambda op: op.origin is Origin.RECEIVED)
    named = "" if one.scale is None else one.scale.tightest  # the line of the loss scale tells of it
    some = [op for at, op in enumerate(others) if at < limit - 1 or op.name == named]
    if some:
        yield LabelledLines([*map(_behind, some)])
    if len(some) < len(others):
        words = f"{len(some) + 1} of {len(one.ops)} ops shown, those that only received it last; -l N shows more"
        yield Text(words, style="dim")
    if one.trail:
        yield trail_table(one.trail)


def _behind(op: OverflowOp) -> tuple[str, Text]:
    words, style = render(origin_name(op.origin)), _ORIGIN_STYLES[op.origin]
    bad = ", ".join(f"{one.slot} {render(bad_values(one.extremes))}" for one in op.bad_outputs)
    return f"[{op.number}]", Text.assemble((safe(op.name), "bold"), " ", (words, style), plain(f": {bad}"))


def trail_table(trail: Sequence[TrailStep]) -> RenderableType:
    """The way to the first op: what was left of the range at each op, and what it took."""
    table = NameTable(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("dtype", no_wrap=True)
    for name in ("max |x|", "bits left", "bits used"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("range on the way there")
    largest = max((step.growth for step in trail if step.growth is not None), default=inf)
    hidden = len(trail) - _SHOWN_STEPS
    if hidden > 0:
        table.add_row("", "", "", "", plain(f"… {counted(hidden, 'op')} before", "dim"))
    for step in trail[max(hidden, 0) :]:
        growth = "-" if step.growth is None else f"{step.growth:+.1f}"
        style = "bold red" if step.growth is not None and step.growth == largest and largest > 0 else ""
        label = Text.assemble(
            (safe(step.op_name), "bold" if step.dumped else "dim"), f" ({safe(step.op_type)})" * bool(step.op_type)
        )
        found = step.extremes
        largest_size = "Inf" if found.inf_count else "NaN" if found.nan_count else f"{found.largest:.5g}"
        if step.true_largest is not None:
            largest_size += f" ({step.true_largest:.5g})"
        table.add_row(
            plain(found.dtype),
            Text(largest_size),
            Text("-" if largest_size.startswith("NaN") else _bits(found.headroom)),
            Text(growth, style=style),
            label,
        )
    note = "bits used: how much larger than the largest input; of the first op, than 1"
    if any(step.true_largest is not None for step in trail):
        note += "; in brackets: the benchmark's largest value"
    return Group(table, Text(note, style="dim"))


def _bits(value: float) -> str:
    return "-" if isnan(value) else "all" if value == inf else f"{value:.1f}"


# --- everything -------------------------------------------------------------------------------------------------------


def overflow_lines(
    report: OverflowReport, advice: Sequence[Advice], limit: int, looked_in: str
) -> list[RenderableType]:
    """All that `overflow` shows."""
    parts: list[RenderableType] = []
    number = len(report.statuses)
    told = f"{counted(number, 'overflow status', 'overflow statuses')} in {shown_path(looked_in)}"
    parts.append(plain(told if number else f"no overflow status file in {shown_path(looked_in)}", "bold"))
    parts += unreadable_lines([why for _, why in report.unreadable])
    parts += [status_block(one) for one in report.statuses[:limit]]
    if number > limit:
        parts.append(Text(f"{limit} of {number} statuses shown, earliest first; -l N shows more", style="dim"))
    shown = {one.op.name for one in report.statuses[:limit] if one.op is not None}
    advised = {render(item.message) for item in advice}
    is_many = len(report.leaves) > _SHOWN_LEAVES
    for leaf in report.leaves:
        is_short = is_many and not leaf.ops and not leaf.unreadable
        parts.append(_clean_line(leaf) if is_short else leaf_block(leaf, limit, shown, advised))
    if advice:
        parts.append(Heading(Text("advice")))
        for item in advice:
            parts.append(plain(f"- {render(item.message)}"))
            parts += [plain(f"    {line}", "cyan") for line in item.lines]
    return parts


def conclusion_box(report: OverflowReport) -> RenderableType:
    """What it comes to, the heaviest on the screen and the last: which op overflows first, or that nothing does."""
    unread = len(report.unreadable) + sum(len(leaf.unreadable) for leaf in report.leaves)
    words = render(conclusion(report))
    if unread:
        words += f"; {counted(unread, 'file')} could not be read"
    style = "bold red" if not report.is_clean else "bold yellow" if unread else "green"
    return Box(Prose(plain(words, style)), title=Text("Overflow"), style=style, box=box.HEAVY)


# --- JSON -------------------------------------------------------------------------------------------------------------


def to_json(report: OverflowReport, advice: Sequence[Advice], mixlist: str = "") -> str:
    """The same as one JSON document, all ops and statuses."""
    first = report.first
    return json_text(
        {
            "first": None if first is None else first.name,
            "statuses": [_status_json(one) for one in report.statuses],
            "unreadable": [{"file": path, "reason": why} for path, why in report.unreadable],
            "leaves": [_leaf_json(one) for one in report.leaves],
            "advice": [
                {
                    "kind": one.kind,
                    "text": render(one.message),
                    "op_types": list(one.op_types),
                    "lines": list(one.lines),
                }
                for one in advice
            ],
            "mixlist": mixlist or None,
        }
    )


def _status_json(one: StatusReport) -> dict[str, Any]:
    return {
        "file": one.file.path,
        "output": one.output,
        "decoded": one.file.decoded,
        "timestamp": one.file.name.timestamp,
        "device": one.device or None,
        "step": one.step or None,
        "units": [
            {
                "unit": unit.unit,
                "model_id": unit.model_id,
                "stream_id": unit.stream_id,
                "task_id": unit.task_id,
                "task_type": unit.task_type,
                "context_id": unit.context_id,
                "thread_id": unit.thread_id,
                "status": list(unit.status),
                "words": [render(bit) for bit in unit.bits],
            }
            for unit in one.units
        ],
        "op": None if one.op is None else _op_json(one.op),
        "doubt": "; ".join(map(render, one.doubts)),
        "notes": list(one.notes),
    }


def _op_json(op: OverflowOp) -> dict[str, Any]:
    return {
        "name": op.name,
        "type": op.op_type,
        "origin": op.origin,
        "why": render(op.why),
        "judged": None if op.judged is None else judged_json(op.judged),
        "pass": list(op.pass_names),
        "original_ops": list(op.original_names),
        "gradient": op.is_gradient,
        "files": list(op.paths),
        "tensors": [_slot_json(one) for one in op.slots],
    }


def _slot_json(one: SlotValues) -> dict[str, Any]:
    found, tensor = one.extremes, one.tensor
    return {
        "slot": one.slot,
        "dtype": None if tensor is None else tensor.dtype,
        "layout": None if tensor is None else tensor.layout,
        "shape": None if tensor is None else list(tensor.shape),
        "producer": one.producer or None,
        "reason": one.reason,
        "count": None if found is None else found.count,
        "largest": None if found is None else found.largest,
        "headroom": None if found is None else found.headroom,
        "saturated": None if found is None else found.saturated,
        "nan": None if found is None else found.nan_count,
        "positive_inf": None if found is None else found.positive_inf_count,
        "negative_inf": None if found is None else found.negative_inf_count,
        "statistics_only": found is not None and found.statistics_only,
        "summary": _summary_json(one.summary),
    }


def _summary_json(summary: Summary | None) -> dict[str, Any] | None:
    if summary is None:
        return None
    return {"max": summary.maximum, "min": summary.minimum, "mean": summary.mean, "std": summary.std}


def _leaf_json(one: LeafOverflow) -> dict[str, Any]:
    scale = one.scale
    return {
        "path": one.leaf.path,
        "device": one.leaf.device or None,
        "step": one.leaf.step or None,
        "graph": None if one.graph is None else one.graph.file.path,
        "mode": one.mode,
        "scanned_ops": one.scanned_ops,
        "scanned_bytes": one.scanned_bytes,
        "not_scanned_ops": one.left_out,
        "unreadable": [{"file": path, "reason": why} for path, why in one.unreadable.items()],
        "first": None if one.first is None else one.first.name,
        "ops": [_op_json(op) for op in one.ops],
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
            for step in one.trail
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
            "reason": render(scale.reason),
        },
    }
