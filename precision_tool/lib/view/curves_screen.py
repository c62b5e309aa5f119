"""The screen of `curves`: what leaves a band and when, small charts over the steps, and the JSON document."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from precision_tool.lib.diagnose.curves import BENCHMARK, FIGURES, Curve, Curves, Leaving
from precision_tool.lib.diagnose.roles import Role
from precision_tool.lib.messages import Message, render
from precision_tool.lib.model.wording import spans
from precision_tool.lib.view.tables import NUMBERS, Box, NameTable, Prose
from precision_tool.lib.view.text import LabelledLines, Line, json_text, plain, safe, shown

Doubles = npt.NDArray[np.float64]

#: Heights of a sparkline, also without signs beyond ASCII, and of what is NaN or Inf.
_BLOCKS, _ASCII, _BAD = "▁▂▃▄▅▆▇█", "_.-~=+*#", "x"
#: Charts; what else leaves a band has its mark in its line.
_CHARTS = 4
#: Rows of a chart, signs of its width at most, and those of a sparkline.
_HEIGHT, _WIDTH, _SPARK = 4, 60, 24
#: Ranks that are less apart are alike: their means and norms are rounded themselves.
_ROUNDING = 1e-8
#: The dots of a sign of braille, by row and column, and the first of these signs.
_DOTS, _FIRST = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80)), 0x2800
#: What a cell of a chart shows; what is later covers what is before.
_BAND, _GOLDEN, _LEFT = 1, 2, 3
_STYLES = {_BAND: "cyan", _GOLDEN: "green", _LEFT: "bold red"}
_SIGNS = {_BAND: ":", _GOLDEN: "-", _LEFT: "*"}


def shown_figure(curve: Curve) -> str:
    """Return the figure that is drawn of a curve: of the loss its value, else the norm, or what leaves a band."""
    figures = [leaving.figure for leaving in curve.leaves if leaving.against == "ranks" and leaving.figure in FIGURES]
    if figures and figures[0] != "not_finite":
        return figures[0]
    return "mean" if curve.role == Role.LOSS else "norm"


def curves_screen(curves: Curves, limit: int) -> list[RenderableType]:
    """Return the first that leaves a band, charts of those that do, a line for each other curve, and the conclusion."""
    ordered = curves.sorted[: limit or None]
    charted = [curve for curve in ordered if curve.leaves][:_CHARTS]
    parts: list[RenderableType] = []
    if curves.first is not None:
        parts += [Prose(shown(first_words(curves), "bold")), Text()]
    for curve in charted:
        parts += [_Chart(curve, curves), Text()]
    rest = [curve for curve in ordered if curve not in charted]
    if rest:
        parts.append(_table(rest, curves))
    more = len(curves.curves) - len(ordered)
    if more > 0:
        parts.append(shown(Message("screen.view.curves.more", count=more), "dim"))
    return [*parts, _conclusion(curves)]


def next_command(curves: Curves) -> str:
    """Return what to look at next: the op of the tensor that leaves a band first; "" where none does."""
    if curves.first is None:
        return ""
    curve, leaving = curves.first
    op = curve.tensor.rsplit(":", 2)[0]
    return f"ni {shlex.quote(op)} --step {leaving.step} --rank {leaving.ranks[0]}"


def role_name(curve: Curve) -> Message:
    """Return the role of a curve in words."""
    return Message(f"screen.view.curves.role.{curve.role}")


def first_words(curves: Curves) -> Message:
    """Return what leaves a band first, or that nothing does."""
    if curves.first is None:
        has_band = len(curves.ranks) > 2 or any(np.isfinite(curve.benchmark).any() for curve in curves.curves)
        return Message("screen.view.curves.none" if has_band else "screen.view.curves.no_band")
    curve, leaving = curves.first
    return Message("screen.view.curves.first", leaving=leaving_words(leaving), curve=role_name(curve), name=curve.name)


def leaving_words(leaving: Leaving) -> Message:
    """Return at which step which ranks leave which band, with the value and the band."""
    kind = leaving.against
    if kind == "ranks":
        kind = "not_finite" if leaving.figure == "not_finite" else "ranks"
    return Message(
        f"screen.view.curves.leaves.{kind}", step=leaving.step, ranks=spans(leaving.ranks),
        more=max(0, leaving.count - len(leaving.ranks)) or None, count=leaving.count,
        figure=Message(f"screen.view.curves.figure.{leaving.figure}"), value=leaving.value, low=leaving.low,
        high=leaving.high,
    )  # fmt: skip


def _conclusion(curves: Curves) -> RenderableType:
    rows: list[Line] = []
    for against in ("ranks", "all", "benchmark"):
        count = sum(any(leaving.against == against for leaving in curve.leaves) for curve in curves.curves)
        if count:
            label, words = (
                Message(f"screen.view.curves.label.{against}"),
                Message("screen.view.curves.count", count=count),
            )
            rows.append((label, shown(words)))
    looked = Message(
        "screen.view.curves.looked_at", count=len(curves.curves), steps=spans(curves.steps), ranks=spans(curves.ranks)
    )
    rows.append((Message("screen.view.curves.label.looked_at"), shown(looked)))
    if curves.left_out:
        rows.append(("", shown(Message("screen.view.curves.left_out", count=curves.left_out))))
    style = "green" if curves.first is None else "bold yellow"
    head = shown(first_words(curves), style)
    title = shown(Message("screen.view.curves.title"))
    return Box(Group(Prose(head), LabelledLines(rows)), title=title, style=style, box=box.HEAVY)


# --- sparklines and charts ---


def ranks_off(curve: Curve) -> set[int]:
    """Return the ranks that leave the band of the others."""
    return {rank for leaving in curve.leaves if leaving.against != "benchmark" for rank in leaving.ranks}


def band_of_others(curve: Curve, curves: Curves, figure: int) -> tuple[Doubles, Doubles]:
    """Return the smallest and the largest value of the ranks that stay in it; of very many ranks the median as both."""
    off = ranks_off(curve)
    if not off:
        return curve.bands[figure, :, 0], curve.bands[figure, :, 2]
    others = [line.figures[figure] for line in curve.lines if line.rank not in off]
    if not others or len(curve.lines) < len(curves.ranks):
        return curve.bands[figure, :, 1], curve.bands[figure, :, 1]
    stacked = np.sort(np.stack(others), axis=0)  # NaN last
    last = np.maximum(np.count_nonzero(~np.isnan(stacked), axis=0) - 1, 0)
    return stacked[0], np.take_along_axis(stacked, last[None], 0)[0]


def _table(curves: Sequence[Curve], of: Curves) -> RenderableType:
    table = NameTable(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    section = "screen.view.curves.column"
    table.add_columns(section, "role", "figure", "steps", "leaves")
    table.add_columns(section, "first", "last", "apart", **NUMBERS)
    table.add_columns(section, "name")
    for curve in curves:
        figure = shown_figure(curve)
        low, median, high = curve.bands[FIGURES.index(figure)].T
        known = median[~np.isnan(median)]
        with np.errstate(divide="ignore", invalid="ignore"):
            apart = np.abs((high - low) / median)
        widest = float(np.nanmax(apart)) if np.isfinite(apart).any() and len(of.ranks) > 1 else float("nan")
        table.add_row(
            render(role_name(curve)), render(Message(f"screen.view.curves.figure.{figure}")),
            _Spark(curve, figure, of.steps),
            plain(",".join(str(leaving.step) for leaving in curve.leaves), "red"),
            *(f"{value:.4g}" for value in (known[[0, -1]] if len(known) else ())),
            *([] if len(known) else ["", ""]),
            "" if not isfinite(widest) else f"{100 * widest:.2g} %" if widest > _ROUNDING else "0", plain(curve.name),
        )  # fmt: skip
    return table


class _Spark:
    """The medians of a curve as a line of signs; steps at which it leaves a band are marked, or has NaN or Inf."""

    def __init__(self, curve: Curve, figure: str, steps: Sequence[int]) -> None:
        self._medians = curve.bands[FIGURES.index(figure), :, 1]
        self._bad = curve.bands[FIGURES.index("not_finite"), :, 2] > 0
        self._left = np.isin(steps, [leaving.step for leaving in curve.leaves])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        signs = _ASCII if options.ascii_only else _BLOCKS
        yield Text("").join(self._signs(signs))

    def _signs(self, signs: str) -> Iterator[Text]:
        finite = self._medians[np.isfinite(self._medians)]
        low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
        for steps in np.array_split(np.arange(len(self._medians)), min(_SPARK, len(self._medians))):
            values = self._medians[steps]
            known = values[np.isfinite(values)]
            if self._bad[steps].any():
                yield Text(_BAD, "bold red")
            elif not len(known):
                yield Text(" ")
            else:
                share = (float(known.mean()) - low) / (high - low) if high > low else 0.5
                style = "bold red" if self._left[steps].any() else ""
                yield Text(signs[min(len(signs) - 1, int(share * len(signs)))], style)


class _Chart:
    """A curve as a chart of dots: the ranks as a band, those that leave it, and the benchmark, with the step marked."""

    def __init__(self, curve: Curve, curves: Curves) -> None:
        self._curve, self._curves = curve, curves
        self._figure = FIGURES.index(shown_figure(curve))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        curve, steps = self._curve, self._curves.steps
        title = Text.assemble(
            (render(role_name(curve)), "dim"), " ", plain(curve.name, "bold"), " ",
            (render(Message(f"screen.view.curves.figure.{FIGURES[self._figure]}")), "dim"),
        )  # fmt: skip
        yield title
        rows = list(self._lines())
        values = np.concatenate([values for values, _ in rows])
        values = values[np.isfinite(values)]
        if len(values):
            low, high = float(values.min()), float(values.max())
            ends = [f"{high:.4g}", f"{low:.4g}"]
            margin = max(map(len, ends)) + 1
            width = max(1, min(_WIDTH, options.max_width - margin - 1, 4 * len(steps)))
            cells = _drawn(rows, low, high, width)
            for number in range(_HEIGHT):
                end = ends[0] if not number else ends[1] if number == _HEIGHT - 1 else ""
                line = Text(f"{end:>{margin - 1}} ", "dim", no_wrap=True)
                for dots, kind in cells[number]:
                    sign = " " if not dots else _SIGNS[kind] if options.ascii_only else chr(_FIRST + dots)
                    line.append(sign, _STYLES.get(kind, ""))
                yield line
            yield self._axis(margin, width, options.ascii_only)
        for leaving in curve.leaves:
            yield shown(leaving_words(leaving), "red" if leaving.against != "benchmark" else "yellow")

    def _lines(self) -> Iterator[tuple[Doubles, int]]:
        """Yield what is drawn: ends of the band, the benchmark, and the ranks that leave."""
        curve, figure = self._curve, self._figure
        yield from ((end, _BAND) for end in band_of_others(curve, self._curves, figure))
        name = FIGURES[figure]
        if name in BENCHMARK:
            yield curve.benchmark[BENCHMARK.index(name)], _GOLDEN
        for line in curve.lines:
            if line.rank in ranks_off(curve):
                yield line.figures[figure], _LEFT

    def _axis(self, margin: int, width: int, is_ascii: bool) -> Text:
        """Return the line below: the first step, the one that leaves, marked, and the last."""
        steps = self._curves.steps
        marked = {leaving.step for leaving in self._curve.leaves}
        signs = [" "] * (width + 24)
        end = 0
        for place, step in enumerate(steps):
            at = _columns(place, len(steps), width)[0] // 2
            if (place in (0, len(steps) - 1) or step in marked) and at >= end:
                words = f"{('^' if is_ascii else '▲') if step in marked else ''}{step}"
                signs[at : at + len(words)] = words
                end = at + len(words) + 1
        return Text(" " * margin + "".join(signs).rstrip(), "dim", no_wrap=True)


def _columns(place: int, steps: int, width: int) -> tuple[int, int]:
    """Return from which dot to which a step is drawn."""
    start = place * 2 * width // steps
    return start, max(start + 1, (place + 1) * 2 * width // steps)


def _drawn(rows: Sequence[tuple[Doubles, int]], low: float, high: float, width: int) -> list[list[tuple[int, int]]]:
    """Return dots and kind of each cell, by row."""
    cells = [[(0, 0)] * width for _ in range(_HEIGHT)]
    tall = 4 * _HEIGHT

    def dot(value: float) -> int:
        share = (value - low) / (high - low) if high > low else 0.5
        return tall - 1 - min(tall - 1, int(share * tall))

    def draw(column: int, top: int, bottom: int, kind: int) -> None:
        for row in range(top, bottom + 1):
            dots, before = cells[row // 4][column // 2]
            cells[row // 4][column // 2] = dots | _DOTS[row % 4][column % 2], max(before, kind)

    band = [values for values, kind in rows if kind == _BAND]
    for place in range(len(band[0])):
        ends = [values[place] for values in band if isfinite(values[place])]
        for column in range(*_columns(place, len(band[0]), width)):
            if ends:
                draw(column, dot(max(ends)), dot(min(ends)), _BAND)
            for values, kind in rows:
                if kind != _BAND and isfinite(values[place]):
                    draw(column, dot(values[place]), dot(values[place]), kind)
    return cells


# --- JSON ---


def curves_json(curves: Curves, notes: Sequence[Message | str], files: Sequence[str] = ()) -> str:
    """Return the JSON document of `curves`."""
    return json_text(curves_document(curves, notes, files))


def curves_document(curves: Curves, notes: Sequence[Message | str], files: Sequence[str] = ()) -> dict[str, Any]:
    """Return it as plain values; where there is no number, None stands for it."""
    first = curves.first
    return {
        "steps": list(curves.steps), "ranks": list(curves.ranks),
        "first": None if first is None else {"tensor": first[0].tensor, **_leaving(first[1])},
        "curves": [_curve(curve) for curve in curves.sorted], "left_out": curves.left_out,
        "tensorboard": list(files), "conclusion": render(first_words(curves)), "notes": list(map(render, notes)),
    }  # fmt: skip


def _curve(curve: Curve) -> dict[str, Any]:
    bands = {
        figure: {end: _numbers(curve.bands[place, :, number]) for number, end in enumerate(("low", "median", "high"))}
        for place, figure in enumerate(FIGURES)
    }
    lines = [
        {"rank": line.rank} | {figure: _numbers(line.figures[place]) for place, figure in enumerate(FIGURES)}
        for line in curve.lines
    ]
    return {
        "role": curve.role, "name": safe(curve.name), "tensor": safe(curve.tensor), "type": curve.dtype,
        "figures": bands, "lines": lines, "leaves": [_leaving(leaving) for leaving in curve.leaves],
        "benchmark": {figure: _numbers(curve.benchmark[place]) for place, figure in enumerate(BENCHMARK)},
    }  # fmt: skip


def _leaving(leaving: Leaving) -> dict[str, Any]:
    return {
        "against": leaving.against, "figure": leaving.figure, "step": leaving.step, "ranks": list(leaving.ranks),
        "count": leaving.count, "value": leaving.value, "low": leaving.low, "high": leaving.high,
    }  # fmt: skip


def _numbers(values: Doubles) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]
