"""The cells of many rows: what `Column.cell` writes, with what is the same for all of them found out once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter

from precision_tool.lib.model.table import ColumnChoice, Row
from precision_tool.lib.results.columns import Column

#: The cells of a row, or of some columns of it.
Cells = Callable[[Row], list[str]]


def cells_of(columns: Sequence[Column], choice: ColumnChoice) -> Cells:
    """What makes the cells of a row: as `Column.cell` does, but numbers that stand side by side all at once."""
    parts: list[Cells] = []
    for key, group in groupby(columns, _side_by_side):
        together = list(group)
        parts.append(_numbers(together, choice) if key else _singles(together, choice))

    def cells(row: Row) -> list[str]:
        found: list[str] = []
        for part in parts:
            found += part(row)
        return found

    return cells


def _side_by_side(column: Column) -> tuple[object, ...]:
    """Columns with one key are numbers of one part of a row, hidden together; () of others."""
    part, _, field = column.field.partition(".")
    return (part, column.hides) if field and column.form.style and column.value is None else ()


def _singles(columns: Sequence[Column], choice: ColumnChoice) -> Cells:
    makers = [_maker(column, choice) for column in columns]
    return lambda row: [make(row) for make in makers]


def _maker(column: Column, choice: ColumnChoice) -> Callable[[Row], str]:
    """`Column.cell` of one column, with what is the same for all rows found out before."""
    write, none, value = column.form.write, column.form.none, column.value
    if column.hides is not None or (value is None and not column.field.startswith("pair.")):
        return lambda row: column.cell(row, choice)
    if value is not None:
        said = value

        def from_row(row: Row) -> str:
            held = said(row, choice)
            return none if held is None else write(held)

        return from_row
    found = attrgetter(column.field)

    def from_pair(row: Row) -> str:
        if row.absent:
            return column.cell(row, choice)
        held = found(row)
        return none if held is None else write(held)

    return from_pair


def _numbers(columns: Sequence[Column], choice: ColumnChoice) -> Cells:
    part, hides = columns[0].field.partition(".")[0], columns[0].hides
    fields = [column.field.partition(".")[2] for column in columns]
    style = " ".join(column.form.style for column in columns)
    nothing = [column.form.none for column in columns]

    def cells(row: Row) -> list[str]:
        holder = getattr(row, part)
        if holder is None or (hides is not None and hides(row)):
            return nothing
        values = tuple([getattr(holder, field) for field in fields])
        if row.absent or None in values:
            return [column.cell(row, choice) for column in columns]
        return (style % values).split(" ")

    return cells
