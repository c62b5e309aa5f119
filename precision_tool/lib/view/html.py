"""Screens as HTML for notebooks: what the terminal shows, with a notebook's tables, text and colours.

A screen is made of rich's renderables; here each becomes an element. All text is escaped: names come from other
machines. Colours follow the theme of JupyterLab, VS Code, Colab and Jupyter Book, light or dark; without style sheets,
as on a code host, what remains is plain tables.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from html import escape
from itertools import zip_longest

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.rule import Rule
from rich.segment import Segment
from rich.style import Style, StyleType
from rich.table import Table
from rich.text import Text

from precision_tool.lib.messages import Message, render
from precision_tool.lib.view.console import ReportConsole
from precision_tool.lib.view.tables import Prose
from precision_tool.lib.view.text import LabelledLines, safe
from precision_tool.lib.view.verdict_screen import NextSteps

#: Wider than anything: where lines end is the browser's business.
_ENDLESS = 1 << 20
#: Columns of the same as text.
_TEXT_WIDTH = 100

#: Colours of rich that screens name, for light and dark backgrounds: contrast is 4.5 and more on white, and on #202020.
_COLOURS = {
    "red": ("#b3261e", "#ff9d94"), "green": ("#1b6e2f", "#7fd18c"), "yellow": ("#7a5200", "#e6c35c"),
    "cyan": ("#0b5c80", "#7cc7ea"), "dim": ("#5c5c5c", "#b0b0b0"),
}  # fmt: skip
#: What says that the background is dark: JupyterLab and nbconvert, VS Code, Colab, Jupyter Book, MkDocs.
_DARK = (
    '[data-jp-theme-light="false"]', "body.vscode-dark", 'html[theme="dark"]', '[data-theme="dark"]',
    '[data-md-color-scheme="slate"]',
)  # fmt: skip


def _style_sheet() -> str:
    def colours(number: int) -> str:
        return "".join(f"--pt-{name}:{both[number]};" for name, both in _COLOURS.items())

    dark = ",".join(f"{place} .precision-tool" for place in _DARK)
    names = "".join(f".precision-tool .pt-{name}{{color:var(--pt-{name})}}" for name in _COLOURS)
    edges = "".join(
        f".precision-tool .pt-edge-{name}{{border-left-color:var(--pt-{name})}}"
        f".precision-tool .pt-edge-{name}>.pt-title{{color:var(--pt-{name})}}"
        for name in _COLOURS
    )
    line = "1px solid rgba(128,128,128,.35)"
    table = ".precision-tool" * 3 + " table"  # the class thrice: notebooks style cells with rules of some weight
    return (
        f".precision-tool{{{colours(0)}max-width:72em;line-height:1.45}}{dark}{{{colours(1)}}}{names}"
        f"{table}{{border-collapse:collapse;margin:.4em 0;font-size:inherit;table-layout:auto}}"
        f"{table} tr{{background:none}}"
        f"{table} :is(td,th){{text-align:left;vertical-align:top;padding:.1em 1.2em .1em 0;border:0;"
        "white-space:normal;max-width:none;overflow-wrap:anywhere}"
        f"{table}.pt-figures{{display:block;overflow-x:auto}}"
        f"{table}.pt-figures :is(td,th){{overflow-wrap:normal;border-bottom:{line}}}"
        f"{table}.pt-figures .pt-number{{text-align:right;white-space:nowrap}}"
        f"{table}.pt-figures :is(td,th):last-child:not(.pt-number){{overflow-wrap:anywhere;min-width:10em}}"
        f"{table}.pt-rows th{{white-space:nowrap}}"
        f".precision-tool section{{border:{line};border-left:4px solid currentColor;border-radius:3px;"
        f"padding:.4em .9em;margin:.4em 0}}{edges}"
        ".precision-tool .pt-title{font-weight:bold}.precision-tool p{margin:.2em 0;white-space:pre-wrap}"
        ".precision-tool pre{margin:.2em 0 .6em;padding:.3em .6em;white-space:pre-wrap;overflow-wrap:anywhere;"
        "background:rgba(128,128,128,.14)!important;color:inherit;"
        "font-family:var(--jp-code-font-family,monospace);font-size:.93em}"
        ".precision-tool ol{margin:.3em 0;padding-left:1.6em}"
    )


def html_of(*renderables: RenderableType) -> str:
    """Return what a notebook shows: one element, with its style sheet.

    Parameters
    ----------
    *renderables : rich renderable
        What the terminal would print.
    """
    console = ReportConsole(file=io.StringIO(), width=_ENDLESS)
    body = "".join(part for each in renderables for part in _Html(console).parts(each))
    return f'<style>{_style_sheet()}</style><div class="precision-tool">{body}</div>'


def text_of(*renderables: RenderableType) -> str:
    """Return what the terminal would print, without colours."""
    console = ReportConsole(file=io.StringIO(), width=_TEXT_WIDTH)
    segments = (segment for each in renderables for segment in console.render(each))
    return "".join(segment.text for segment in segments if not segment.control).rstrip("\n")


class _Html:
    """Writes renderables as elements."""

    def __init__(self, console: ReportConsole) -> None:
        self._console = console

    def parts(self, renderable: object) -> Iterator[str]:
        """Yield the elements of a renderable; one of no known kind is taken apart as the console does it."""
        if isinstance(renderable, str):
            renderable = Text(safe(renderable))
        if isinstance(renderable, Text):
            if renderable.plain.strip():
                yield f"<p>{self._inline(renderable)}</p>"
            return
        kinds: dict[type, Callable[..., Iterable[str]]] = {
            Prose: self._prose, LabelledLines: self._rows, NextSteps: self._steps, Table: self._table,
            Panel: self._panel, Rule: self._rule, Group: self._group,
        }  # fmt: skip
        for kind, write in kinds.items():
            if isinstance(renderable, kind):
                yield from write(renderable)
                return
        options = self._console.options
        segments: list[Segment] = []
        for part in renderable.__rich_console__(self._console, options):  # type: ignore[attr-defined]
            if isinstance(part, Segment):
                segments.append(part)
            else:
                yield from self.parts(part)
        if segments:
            yield f"<p>{self._of_segments(segments)}</p>"

    def _prose(self, prose: Prose) -> Iterator[str]:
        yield from self.parts(prose.text)

    def _group(self, group: Group) -> Iterator[str]:
        for part in group.renderables:
            yield from self.parts(part)

    def _rows(self, lines: LabelledLines) -> Iterator[str]:
        if not lines.rows:
            return
        yield '<table class="pt-rows"><tbody>'
        for label, value in lines.rows:
            yield f"<tr><th>{escape(safe(label.strip()))}</th><td>{self._inline(value)}</td></tr>"
        yield "</tbody></table>"

    def _steps(self, steps: NextSteps) -> Iterator[str]:
        yield f'<p class="pt-title">{escape(render(Message("verdict.label.next")))}</p><ol>'
        for text, line in steps.lines():
            yield f"<li>{self._inline(text)}"
            if line:
                yield f"<pre>{escape(safe_lines(line))}</pre>"
            yield "</li>"
        yield "</ol>"

    def _panel(self, panel: Panel) -> Iterator[str]:
        edge = _colour_of(self._console.get_style(panel.border_style))
        title = self._cell(panel.title or "")
        yield f'<section class="pt-edge-{edge}">' if edge else "<section>"
        yield f'<div class="pt-title">{title}</div>'
        yield from self.parts(panel.renderable)
        yield "</section>"

    def _rule(self, rule: Rule) -> Iterator[str]:
        if rule.title:
            yield f'<p class="pt-title">{self._cell(rule.title)}</p>'

    def _table(self, table: Table) -> Iterator[str]:
        yield '<table class="pt-figures">' if table.show_header else '<table class="pt-rows">'
        aligned = [' class="pt-number"' if column.justify == "right" else "" for column in table.columns]
        if table.show_header:
            heads = (
                f"<th{number}>{self._cell(column.header)}</th>"
                for column, number in zip(table.columns, aligned, strict=True)
            )
            yield f"<thead><tr>{''.join(heads)}</tr></thead>"
        yield "<tbody>"
        for row in zip_longest(*(column.cells for column in table.columns), fillvalue=""):
            cells = (
                f"<td{number}>{self._cell(cell, column.style)}</td>"
                for cell, column, number in zip(row, table.columns, aligned, strict=True)
            )
            yield f"<tr>{''.join(cells)}</tr>"
        yield "</tbody></table>"

    def _cell(self, cell: object, style: StyleType = "") -> str:
        """Return what stands in a line of its own, without a paragraph around it."""
        if isinstance(cell, str):
            cell = Text(safe(cell))
        if not isinstance(cell, Text):
            return "".join(self.parts(cell))
        text = cell.copy()
        text.stylize_before(style)
        return self._inline(text)

    def _inline(self, text: Text) -> str:
        text = text.copy()
        text.stylize_before(text.style)
        return self._of_segments(text.render(self._console))

    def _of_segments(self, segments: Iterable[Segment]) -> str:
        return "".join(_styled(escape(part.text), part.style) for part in segments if not part.control)


def safe_lines(text: str) -> str:
    """Return lines of code without control characters."""
    return "\n".join(map(safe, text.split("\n")))


def _styled(text: str, style: Style | None) -> str:
    if style is None or not text.strip():
        return text
    colour = _colour_of(style)
    text = f'<span class="pt-{colour}">{text}</span>' if colour else text
    return f"<b>{text}</b>" if style.bold else text


def _colour_of(style: Style) -> str:
    """Return the name of a style's colour, as classes have it; "" for none."""
    name = "dim" if style.dim else style.color.name if style.color is not None else ""
    return name if name in _COLOURS else ""
