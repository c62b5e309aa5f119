"""A table of rich that is quick for a hundred thousand rows, where nobody sees colours: in files and pipes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import rich.box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.panel import Panel
from rich.rule import Rule
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from precision_tool.lib.messages import Message, render
from precision_tool.lib.view.text import wrapped

#: Tables of fewer rows are drawn by rich itself.
_MANY = 200


class LongTable(Table):
    """A borderless table of texts. It looks as rich draws it, and takes a tenth of the time where it is long.

    Rich measures and renders each cell as if it could be anything. Here cells are `Text` or plain `str`, and where no
    styles are written a line of the table is one string.
    """

    def is_quick(self, console: Console) -> bool:
        """Return whether it is drawn here, not by rich."""
        return len(self.rows) >= _MANY and console.color_system is None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self.is_quick(console):
            yield from super().__rich_console__(console, options)
            return
        cells = [list(map(_plain, column.cells)) for column in self.columns]
        headers = [_plain(column.header) for column in self.columns]
        width = options.max_width if self.width is None else self.width
        widths = self._widths(console, options.update_width(width), headers, cells)
        rows: Iterator[Sequence[str]] = zip(*cells, strict=True)
        lines = self._lines(console, headers, widths, is_header=True) if self.show_header else []
        for row in rows:
            lines += self._lines(console, row, widths)
        yield Segment("\n".join(lines))  # rich handles one long text in the time of one short one
        yield Segment.line()

    def _widths(
        self, console: Console, options: ConsoleOptions, headers: Sequence[str], cells: Sequence[Sequence[str]]
    ) -> list[int]:
        """The width of each column with its padding, as rich finds it: of a table with just the widest cells."""
        sample = Table(box=None, pad_edge=self.pad_edge, padding=self.padding, expand=self.expand, width=self.width)
        for column, header in zip(self.columns, headers, strict=True):
            sample.add_column(
                Text(header) if self.show_header else "",
                width=column.width,
                min_width=column.min_width,
                max_width=column.max_width,
                ratio=column.ratio,
                no_wrap=column.no_wrap,
                overflow=column.overflow,
            )
        sample.add_row(*(Text(max(column, key=_width_of, default="")) for column in cells))
        return sample._calculate_column_widths(console, options)

    def _lines(self, console: Console, row: Sequence[str], widths: Sequence[int], is_header: bool = False) -> list[str]:
        """The lines of a row; those of a header stand at its bottom."""
        _, right, _, left = self.padding
        last = len(widths) - 1
        columns: list[list[str]] = []
        for number, (text, width, column) in enumerate(zip(row, widths, self.columns, strict=True)):
            before = left if number or self.pad_edge else 0
            after = right if number < last or self.pad_edge else 0
            room = max(width - before - after, 0)
            lines = text.split("\n") if "\n" in text else [text]
            if any(cell_width(line) > room for line in lines):
                wrapped = Text(text).wrap(console, room, overflow=column.overflow, no_wrap=column.no_wrap)
                lines = [line.plain.rstrip() for line in wrapped]
            columns.append([" " * before + _justified(line, room, column.justify) + " " * after for line in lines])
        height = max(map(len, columns))
        if height == 1:
            return ["".join([lines[0] for lines in columns])]
        blanks = [" " * width for width in widths]
        for lines, blank in zip(columns, blanks, strict=True):
            missing = [blank] * (height - len(lines))
            lines[:] = [*missing, *lines] if is_header else [*lines, *missing]
        return ["".join([lines[at] for lines in columns]) for at in range(height)]


def _plain(cell: RenderableType) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)


def cell_width(text: str) -> int:
    """Columns of the terminal that a line takes."""
    return len(text) if text.isascii() else cell_len(text)


def _width_of(text: str) -> int:
    return max(map(cell_width, text.split("\n"))) if "\n" in text else cell_width(text)


def _justified(line: str, width: int, justify: str) -> str:
    blank = " " * (width - cell_width(line))
    return blank + line if justify == "right" else line + blank


# --- Tables, boxes and headings that never break a name: what does not fit stands out, and the terminal wraps it ---


#: Wider than anything that is shown.
_ENDLESS = 1 << 20
#: Columns of a box's first line that are no title: corners, lines and spaces.
_TITLE_EDGES = 6
#: A column of numbers.
NUMBERS: Mapping[str, Any] = {"justify": "right", "no_wrap": True}


class Prose:
    """Text that wraps between words; a word that is longer than a line stands out over its end, to be copied."""

    def __init__(self, text: Text) -> None:
        self.text = text

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self.text)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self.text.copy()
        # Given as an option instead, rich would not wrap at all.
        text.overflow = "ignore"
        lines = wrapped(
            text,
            console,
            options.max_width,
            justify=text.justify or options.justify or "default",
            tab_size=text.tab_size or console.tab_size,
            no_wrap=text.no_wrap if text.no_wrap is not None else options.no_wrap,
        )
        for line in lines:
            line.rstrip()
        yield from Text("\n", end="").join(lines).render(console, end=text.end)


class NameTable(LongTable):
    """A table whose columns are at least as wide as their longest word.

    Where that does not fit, lines end beyond the width: print it with `crop=False`, and let names stand in the last
    column.
    """

    def add_columns(self, section: str, *names: str, **options: Any) -> None:
        """Add columns whose headings are texts of a section of the catalogue, all with the same options."""
        for name in names:
            self.add_column(render(Message(f"{section}.{name}")), **options)

    def _widen(self, console: Console) -> Measurement:
        """Sets the least width of each column; the least and the largest width of the table."""
        low = high = self._extra_width
        for column in self.columns:
            cells = [*column.cells, *([column.header] if self.show_header else [])]
            sizes = [_size_of(console, cell) for cell in cells] or [Measurement(0, 0)]
            longest, widest = max(size.minimum for size in sizes), max(size.maximum for size in sizes)
            column.overflow = "fold"  # only what is wider than its column, and nothing is
            # What cannot wrap does not give way where there is too little room.
            column.no_wrap = column.no_wrap or longest == widest
            column.min_width = max(column.min_width or 0, widest if column.no_wrap else longest)
            padding = self._get_padding_width(column._index)
            low += column.min_width + padding
            high += max(widest, column.min_width) + padding
        return Measurement(low, high)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return self._widen(console)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Less room than that would take whole columns away.
        room = options.update(max_width=max(options.max_width, self._widen(console).minimum))
        if self.is_quick(console):
            yield from super().__rich_console__(console, room)
            return
        for line in Segment.split_lines(super().__rich_console__(console, room)):  # type: ignore[arg-type]
            yield from _without_end(line)
            yield Segment.line()

    def _lines(self, console: Console, row: Sequence[str], widths: Sequence[int], is_header: bool = False) -> list[str]:
        return [line.rstrip(" ") for line in super()._lines(console, row, widths, is_header)]


def _size_of(console: Console, cell: RenderableType) -> Measurement:
    """The longest word and the longest line of a cell."""
    if not isinstance(cell, (str, Text)):
        return Measurement.get(console, console.options.update(max_width=_ENDLESS), cell)
    text = cell if isinstance(cell, str) else cell.plain
    widest = _width_of(text)
    words = text.split()
    if words == [text] or (isinstance(cell, Text) and cell.no_wrap):
        return Measurement(widest, widest)
    return Measurement(max(map(cell_width, words), default=0), widest)


def _without_end(line: list[Segment]) -> list[Segment]:
    """A line without the spaces at its end, which the terminal would wrap behind a long name."""
    while line and not line[-1].text.rstrip(" ") and not line[-1].control:
        line = line[:-1]
    if line and line[-1].text != line[-1].text.rstrip(" "):
        text, style, control = line[-1]
        line = [*line[:-1], Segment(text.rstrip(" "), style, control)]
    return line


def figure_table() -> NameTable:
    """Return a table of tensors and their figures."""
    return NameTable(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)


def list_table() -> NameTable:
    """Return a table of `ls`."""
    return NameTable(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)


class Box:
    """A box with a title; without its sides where a name in it would not fit between them."""

    def __init__(
        self, content: RenderableType, *, title: Text, style: str, box: rich.box.Box = rich.box.ROUNDED
    ) -> None:
        self._content = content
        self._title = title
        self._style = style
        self._box = box

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        needed = Measurement.get(console, options.update(max_width=_ENDLESS), self._content).minimum
        room = options.max_width - _TITLE_EDGES
        if needed <= options.max_width - 4 and self._title.cell_len <= room:
            yield Panel(self._content, title=self._title, title_align="left", border_style=self._style, box=self._box)
        else:
            yield from Heading(self._title, style=self._style).__rich_console__(console, options)
            yield Group(self._content)
            yield Rule(style=self._style)


class Heading:
    """A title in a line; a title that is longer than that stands alone."""

    def __init__(self, title: Text, style: str = "dim") -> None:
        self._title = title
        self._style = style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if cell_len(self._title.plain) + _TITLE_EDGES <= options.max_width:
            yield Rule(self._title, align="left", style=self._style)
            return
        title = self._title.copy()
        title.stylize_before(Style.parse("bold"))
        yield Rule(style=self._style)
        yield Prose(title)
