"""An op that was judged by itself: its own error, or how what nothing computes stands to the benchmark; elements."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from precision_tool.lib.messages import Message, text
from precision_tool.lib.model.judged import Element, JudgedOp, Source
from precision_tool.lib.model.wording import shape_text
from precision_tool.lib.present.judged import allowed_error
from precision_tool.lib.present.reasons import reason_words
from precision_tool.lib.present.text import LabelledLines, Line, plain, shown, shown_reason
from precision_tool.lib.present.whole import Heading, NameTable


def source_lines(title: str, source: Source, elements: Sequence[Element]) -> RenderableType:
    """Whether what nothing computes is the same on both sides."""
    is_different = bool(source.different)
    state = Message("verdict.op.source", different=is_different)
    rows = [_row("state", state, "bold red" if is_different else "green")]
    if is_different:
        rows.append(
            _row(
                "differs",
                Message("verdict.op.differs", distance=source.distance, count=source.different, elements=source.size),
            )
        )
    if source.seen_in:
        rows.append(_row("seen_in", Message("verdict.op.seen_in", op=source.seen_in)))
    return _block(title, rows, elements, 0)


def verdict_lines(title: str, judged: JudgedOp, elements: Sequence[Element]) -> RenderableType:
    """Whether the op computes right by itself, and what of its error is not its own."""
    state = judged.state if judged.state in ("right", "wrong", "doubtful") else "not_recomputed"
    style = {"right": "green", "wrong": "bold red"}.get(state, "yellow")
    message = Message(f"verdict.op.{state}", figures=None, reason=None)
    if judged.overflowed and state == "right":
        message, style = Message("verdict.op.overflow", wrong=False, count=None, largest=None, figures=None), "bold red"
    rows = [_row("state", message, style)]
    if judged.overflowed:
        beyond = Message("verdict.op.beyond", count=judged.overflowed, largest=judged.largest, right=state == "right")
        rows.append(_row("beyond", beyond))
    if judged.reason:
        rows.append((Message("verdict.op.label.reason"), plain(shown_reason(reason_words(judged.reason)))))
    if judged.own_error is not None:
        own = Message(
            "verdict.op.own_error", error=judged.own_error, output=judged.slot or 0, formula=tuple(judged.how),
            producers=judged.is_fed_by_others,
        )  # fmt: skip
        rows.append(_row("own_error", own))
        rounding = Message("verdict.op.rounding", rounding=judged.rounding, allowed=allowed_error(judged))
        rows.append(_row("rounding", rounding))
    if judged.looked_at is not None and judged.size is not None:
        sample = Message("verdict.op.sample", count=judged.looked_at, elements=judged.size, sums=judged.is_summed)
        rows.append(_row("sample", sample))
    if judged.fed is not None:
        rows.append(_row("inherited", Message("verdict.op.inherited", error=judged.fed)))
    if judged.benchmark_own is not None:
        rows.append(_row("benchmark", Message("verdict.op.benchmark", error=judged.benchmark_own)))
    return _block(title, rows, elements, judged.slot or 0)


def _row(label: str, message: Message, style: str = "") -> Line:
    return Message(f"verdict.op.label.{label}"), shown(message, style)


def _block(title: str, rows: Sequence[Line], elements: Sequence[Element], slot: int) -> RenderableType:
    heading = Heading(shown(Message("verdict.op.title", place=title)))
    parts: list[RenderableType] = [heading, LabelledLines(rows)]
    if elements:
        parts.append(_element_table(elements, slot))
    return Group(*parts)


def _element_table(elements: Sequence[Element], slot: int) -> NameTable:
    """Elements of an output as the NPU has them, as the benchmark has them, and as the op's inputs say."""
    table = NameTable(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    table.add_column(text("verdict.op.elements.output", slot=slot), no_wrap=True)
    table.add_column(text("verdict.op.elements.place"), no_wrap=True)
    columns = ["npu", "golden", "recomputed"]
    if all(one.recomputed is None for one in elements):
        columns.pop()
    for name in columns:
        table.add_column(text(f"verdict.op.elements.{name}"), justify="right", no_wrap=True)
    before = ""
    for one in elements:
        label = text("verdict.op.elements.worst" if one.is_worst else "verdict.op.elements.first")
        table.add_row(
            "" if label == before else label, plain(shape_text(one.place)),
            *(Text("-", style="dim") if value is None else plain(_element(value))
              for value in (one.npu, one.benchmark, one.recomputed)[: len(columns)]),
        )  # fmt: skip
        before = label
    return table


def _element(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"
