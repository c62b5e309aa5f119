"""A table that is quick for a hundred thousand rows, where nobody sees colours: in files and pipes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from precision_tool.lib.present.whole import NameTable

#: Tables of fewer rows are drawn by rich itself.
_MANY = 200


class LongTable(NameTable):
    """A borderless table of texts. It looks as a NameTable, and takes a tenth of the time where it is long.

    Rich measures and renders each cell as if it could be anything. Here cells are `Text` or plain `str`, and where no
    styles are written a line of the table is one string.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if len(self.rows) < _MANY or console.color_system is not None:
            yield from super().__rich_console__(console, options)
            return
        cells = [list(map(_plain, column.cells)) for column in self.columns]
        headers = [_plain(column.header) for column in self.columns]
        width = options.max_width if self.width is None else self.width
        sample = self._sample(headers, cells)
        widths = sample.column_widths(console, options.update_width(width))
        for column, measured in zip(self.columns, sample.columns, strict=True):
            column.no_wrap, column.overflow = measured.no_wrap, measured.overflow
        rows: Iterator[Sequence[str]] = zip(*cells, strict=True)
        if self.show_header:
            yield from self._lines(console, headers, widths, is_header=True)
        for row in rows:
            yield from self._lines(console, row, widths)

    def _sample(self, headers: Sequence[str], cells: Sequence[Sequence[str]]) -> NameTable:
        """A table with just the widest cell of each column and the one with its longest word: it is as wide."""
        sample = NameTable(box=None, pad_edge=self.pad_edge, padding=self.padding, expand=self.expand, width=self.width)
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
        for width_of in (_width_of, _longest_word):
            sample.add_row(*(Text(max(column, key=width_of, default="")) for column in cells))
        return sample

    def _lines(
        self, console: Console, row: Sequence[str], widths: Sequence[int], is_header: bool = False
    ) -> Iterator[Segment]:
        """The lines of a row, each one string; those of a header stand at its bottom."""
        _, right, _, left = self.padding
        last = len(widths) - 1
        columns: list[list[str]] = []
        for number, (text, width, column) in enumerate(zip(row, widths, self.columns, strict=True)):
            before = left if number or self.pad_edge else 0
            after = right if number < last or self.pad_edge else 0
            room = max(width - before - after, 0)
            lines = text.split("\n") if "\n" in text else [text]
            if any(_cells(line) > room for line in lines):
                wrapped = Text(text).wrap(console, room, overflow=column.overflow, no_wrap=column.no_wrap)
                lines = [line.plain.rstrip() for line in wrapped]
            columns.append([" " * before + _justified(line, room, column.justify) + " " * after for line in lines])
        height = max(map(len, columns))
        if height == 1:
            yield Segment("".join(lines[0] for lines in columns).rstrip(" "))
            yield Segment.line()
            return
        blanks = [" " * width for width in widths]
        for lines, blank in zip(columns, blanks, strict=True):
            missing = [blank] * (height - len(lines))
            lines[:] = [*missing, *lines] if is_header else [*lines, *missing]
        for at in range(height):
            yield Segment("".join(lines[at] for lines in columns).rstrip(" "))
            yield Segment.line()


def _plain(cell: RenderableType) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)


def _cells(text: str) -> int:
    """Columns of the terminal that a line takes."""
    return len(text) if text.isascii() else cell_len(text)


def _width_of(text: str) -> int:
    return max(map(_cells, text.split("\n"))) if "\n" in text else _cells(text)


def _longest_word(text: str) -> int:
    return max(map(_cells, text.split()), default=0)


def _justified(line: str, width: int, justify: str) -> str:
    blank = " " * (width - _cells(line))
    return blank + line if justify == "right" else line + blank
