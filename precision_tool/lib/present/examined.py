"""An op that was judged by itself: its own error, or how what nothing computes stands to the benchmark; elements."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from precision_tool.lib.model.judged import Element, JudgedOp, Source
from precision_tool.lib.model.wording import shape_text
from precision_tool.lib.present.judged import allowed_words
from precision_tool.lib.present.reasons import reason_words
from precision_tool.lib.present.text import LabelledLines, counted, off_by, percent, plain, shown_reason
from precision_tool.lib.present.whole import Heading, NameTable


def source_lines(title: str, source: Source, elements: Sequence[Element]) -> RenderableType:
    """Whether what nothing computes is the same on both sides."""
    words, style = ("differs from", "bold red") if source.different else ("agrees with", "green")
    rows = [("state", plain(f"nothing in the graph computes it; it {words} the benchmark's", style))]
    if source.different:
        of_them = f"{source.different:,} of {counted(source.size, 'element')}"
        rows.append(("differs", plain(f"by {percent(source.distance)}, in {of_them}")))
    if source.seen_in:
        rows.append(("seen", plain(f"in the dump of {source.seen_in}")))
    parts: list[RenderableType] = [Heading(plain(f"verdict on the op, {title}")), LabelledLines(rows)]
    if elements:
        parts.append(_element_table(elements, 0))
    return Group(*parts)


def verdict_lines(title: str, judged: JudgedOp, elements: Sequence[Element]) -> RenderableType:
    """Whether the op computes right by itself, and what of its error is not its own."""
    words = {"right": "computes right", "wrong": "computes wrong by itself", "doubtful": "in doubt"}
    style = {"right": "green", "wrong": "bold red"}.get(judged.state, "yellow")
    rows = [("state", plain(words.get(judged.state, "not recomputed"), style))]
    if judged.overflowed:
        if judged.state == "right":
            rows = [("state", plain("its true result is beyond the range of its type", "bold red"))]
        rows.append(("beyond", plain(_beyond(judged))))
    if judged.reason:
        rows.append(("reason", plain(shown_reason(reason_words(judged.reason)))))
    if judged.own_error is not None:
        source = "what fed it put out" if judged.is_fed_by_others else "its own inputs"
        how = f"recomputed ({', '.join(judged.how)}) from {source}: output {judged.slot} is "
        rows.append(("own error", plain(f"{how}{off_by(judged.own_error)}")))
        rows.append(("rounding", plain(f"explains {percent(judged.rounding)}{allowed_words(judged)}")))
    if judged.looked_at is not None and judged.size is not None:
        seen = f"{judged.looked_at:,} of {counted(judged.size, 'element')} were recomputed"
        seen += ", and the sums of all rows held to what they should be" if judged.is_summed else ", the others not"
        rows.append(("looked at", plain(seen)))
    if judged.fed is not None:
        rows.append(("fed", plain(f"the errors of its inputs make {percent(judged.fed)}")))
    if judged.benchmark_own is not None:
        rows.append(("benchmark", plain(f"is {off_by(judged.benchmark_own)} what its own inputs say")))
    parts: list[RenderableType] = [Heading(plain(f"verdict on the op, {title}")), LabelledLines(rows)]
    if elements:
        parts.append(_element_table(elements, judged.slot or 0))
    return Group(*parts)


def _beyond(judged: JudgedOp) -> str:
    """How much of the true result its type cannot hold, and how the rest is."""
    words = f"{counted(judged.overflowed, 'element')} of the true result, up to {judged.largest:.6g}"
    return words if judged.state != "right" else f"{words}; the others, of which is the own error, are right"


def _element_table(elements: Sequence[Element], slot: int) -> NameTable:
    """Elements of an output as the NPU has them, as the benchmark has them, and as the op's inputs say."""
    table = NameTable(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    table.add_column(f"output {slot}", no_wrap=True)
    table.add_column("place", no_wrap=True)
    columns = ["NPU", "benchmark", "recomputed"]
    if all(one.recomputed is None for one in elements):
        columns.pop()
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    shown = ""
    for one in elements:
        label = "worst" if one.is_worst else "first"
        table.add_row(
            "" if label == shown else label, plain(shape_text(one.place)),
            *(Text("-", style="dim") if value is None else plain(_element(value))
              for value in (one.npu, one.benchmark, one.recomputed)[: len(columns)]),
        )  # fmt: skip
        shown = label
    return table


def _element(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"
