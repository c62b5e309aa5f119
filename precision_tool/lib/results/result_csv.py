"""The result file: written by the table of columns, and read by it."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import isnan
from typing import Any, NamedTuple

from precision_tool.lib.errors import FormatError, PrecisionToolError
from precision_tool.lib.io.files import atomic_text, open_text
from precision_tool.lib.io.local import user_error
from precision_tool.lib.model.comparison import Pair
from precision_tool.lib.model.table import MAX_NAMES, ColumnChoice, Row, Table
from precision_tool.lib.results.cells import cells_of
from precision_tool.lib.results.columns import (
    COSINE,
    METRIC_COLUMNS,
    SCALAR_NOTE,
    Column,
    columns_of,
    field_of,
    headers,
    mapping_columns,
)
from precision_tool.lib.results.forms import ALL_NAMES, NAMES, read_number, read_text
from precision_tool.lib.results.rows import RowReader

_MAX_CELL = 1 << 20
_REASON = "CompareFailReason"
_NO_RESULT_HINT = "name a result_*.csv that vc, ac -c or msaccucmp wrote"


def write_result(path: str, rows: Sequence[Row], choice: ColumnChoice | None = None) -> None:
    """Writes the result file (CRLF, as the vendor's). OutputError when it cannot be written."""
    choice = choice or ColumnChoice()
    columns = columns_of(choice)
    with atomic_text(path) as file:
        writer = csv.writer(file, lineterminator="\r\n")
        writer.writerow(headers(columns))
        written: _Lists = {}
        cells_of_row = cells_of(columns, choice)
        lists = [(at, column) for at, column in enumerate(columns) if column.form is NAMES]
        for row in rows:
            cells = cells_of_row(row)
            for at, column in lists:
                cells[at] = _whole_names(row, column, written) or cells[at]
            writer.writerow(cells)


def write_own_errors(path: str, rows: Sequence[Row], choice: ColumnChoice) -> None:
    """`write_result` of rows that were written there without their own errors, which are the last column.

    Only these cells are made, for a third of the time. A file that is not as it was written is made anew.
    """
    columns = columns_of(choice)
    lines = _lines_as_written(path)
    told = [(at, one) for at, one in enumerate(columns) if one.name in ("Index", "TensorIndex")]
    if (
        len(lines) != len(rows) + 1
        or lines[0] != headers(columns)[:-1]
        or any(
            len(line) != len(lines[0]) or any(line[at] != one.cell(row, choice) for at, one in told)
            for line, row in zip(lines[1:], rows, strict=True)
        )
    ):  # shorter, or sorted by somebody meanwhile
        write_result(path, rows, choice)
        return
    own = columns[-1]
    with atomic_text(path) as file:
        writer = csv.writer(file, lineterminator="\r\n")
        writer.writerow([*lines[0], *headers([own])])
        writer.writerows([*line, own.cell(row, choice)] for line, row in zip(lines[1:], rows, strict=True))


def _lines_as_written(path: str) -> list[list[str]]:
    """The cells of a file of ours; none of one that cannot be read."""
    usual_limit = csv.field_size_limit(_MAX_CELL)
    try:
        with open_text(path, encoding="utf-8", errors="strict", newline="") as file:
            return list(csv.reader(file))
    except (OSError, csv.Error, UnicodeError, PrecisionToolError):
        return []
    finally:
        csv.field_size_limit(usual_limit)


#: Lists of a column of a group by their first names and their length, of those alike the first.
_Lists = dict[tuple[int, str, tuple[str, ...], int], tuple[str, ...]]


def _key_of(row: Row, field: str, names: tuple[str, ...], left: int = 0) -> tuple[int, str, tuple[str, ...], int]:
    return row.index, field, names[: MAX_NAMES - 1], len(names) + left


def _whole_names(row: Row, column: Column, written: _Lists) -> str:
    """The cell with all names of a long list, in the first row of a group that has it: the others give a part."""
    names = field_of(row, column.field)
    if not names or len(names) <= MAX_NAMES:
        return ""
    cell = ALL_NAMES.write(names)
    if len(cell) >= _MAX_CELL:
        return ""
    known = written.get(_key_of(row, column.field, names))
    if known is None:
        written[_key_of(row, column.field, names)] = names
    return "" if known == names else cell


def _with_whole_names(row: Row, known: _Lists) -> Row:
    """The row with the lists that it gives a part of as an earlier row of its group has them."""
    left = list(row.unlisted)
    found: dict[str, Any] = {}
    for number, field in enumerate(("npu_ops", "golden_ops", "original_names")):
        names = getattr(row.pair, field) or ()
        if left[number]:
            whole = known.get(_key_of(row, field, names, left[number]))
            if whole is not None:
                found[field], left[number] = whole, 0
        elif len(names) > MAX_NAMES:
            known.setdefault(_key_of(row, field, names), names)
    if not found:
        return row
    npu, golden, original = left
    return replace(row, pair=replace(row.pair, **found), unlisted=(npu, golden, original))


def write_mapping(path: str, pairs: Sequence[Pair], *, sequence: bool = False) -> None:
    """Writes the vendor's mapping table. OutputError when it cannot be written."""
    columns = mapping_columns(sequence=sequence)
    with atomic_text(path) as file:
        writer = csv.writer(file, lineterminator="\r\n")
        writer.writerow(headers(columns))
        for pair in pairs:
            writer.writerow([column.cell(Row(pair=pair), ColumnChoice()) for column in columns])


def read_result(path: str) -> Table:
    """The table of a result CSV, columns found by header name (current, `NPUDump`, and oldest, `LeftOp`).

    FormatError names the file and line of what is no result file.
    """
    rows: list[Row] = []
    known: _Lists = {}
    with _csv_lines(path) as (header, lines):
        custom = _custom_columns(header)
        reader = RowReader(header, custom)
        for line, values in lines:
            try:
                row = reader.row(values, line)
            except ValueError as error:
                raise FormatError.of(path, f"line {line} cannot be read: {error}", _NO_RESULT_HINT) from error
            rows.append(_with_whole_names(row, known))
    choice = ColumnChoice(
        h5="NPUDumpPath" in header,
        sequence="OpSequence" in header,
        overflow="OverFlow" in header,
        custom=tuple(custom),
        golden_address="GroundTruthAddress" in header,
        own_error="OwnError" in header,
    )
    return Table(tuple(rows), choice)


class OutputFigures(NamedTuple):
    """Op name → the lowest cosine of its outputs, NaN lowest of all; of ops whose outputs are single numbers only,
    the values of both sides, as far as the file has them.
    """

    cosines: dict[str, float]
    scalars: dict[str, tuple[float, float]]


def read_output_figures(path: str) -> OutputFigures:
    """What a result file says of the outputs of ops; quicker than all rows."""
    lowest: dict[str, float] = {}
    scalars: dict[str, tuple[float, float]] = {}
    tensors: set[str] = set()
    with _csv_lines(path) as (header, lines):
        cosine_at = header.index(next(name for name in (COSINE.name, *COSINE.others) if name in header))
        is_h5 = "NPUDumpPath" in header
        column = "NPUDumpPath" if is_h5 else "TensorIndex"
        name_at = header.index(column) if column in header else len(header)
        sides = [header.index(one) if one in header else len(header) for one in ("NPUMax", "GroundTruthMax")]
        reason_at = header.index(_REASON) if _REASON in header else len(header)
        for line, values in lines:
            if max(cosine_at, name_at) >= len(values):
                continue
            where = read_text(values[name_at])
            name, is_output, _ = where.partition("/output/") if is_h5 else where.rpartition(":output:")
            try:
                cosine = read_number(values[cosine_at]) if is_output else None
            except ValueError as error:
                raise FormatError.of(path, f"line {line} cannot be read: {error}", _NO_RESULT_HINT) from error
            if cosine is not None:
                known = lowest.get(name, cosine)
                lowest[name] = known if isnan(known) or known <= cosine else cosine
                values_of = [values[at] for at in (*sides, reason_at) if at < len(values)]
                if len(values_of) == len(sides) + 1 and SCALAR_NOTE in values_of[-1]:
                    with suppress(ValueError):
                        scalars[name] = (float(values_of[0]), float(values_of[1]))
                else:
                    tensors.add(name)
    return OutputFigures(lowest, {name: pair for name, pair in scalars.items() if name not in tensors})


@contextmanager
def _csv_lines(path: str) -> Iterator[tuple[list[str], Iterator[tuple[int, list[str]]]]]:
    """The header of a result file, its columns under names of their own, and its lines with their numbers."""
    usual_limit = csv.field_size_limit(_MAX_CELL)  # of the whole process, so it is put back
    try:
        with open_text(path, encoding="utf-8-sig", errors="backslashreplace", newline="") as file:
            reader = csv.reader(file)
            header = _unique(next(reader, []))
            column = _absent_column(header)
            if column:
                raise FormatError.of(
                    path, f"no comparison result: the first line has no {column} column", _NO_RESULT_HINT
                )
            yield header, ((reader.line_num, values) for values in reader if values)
    except PrecisionToolError:  # some are OSErrors too
        raise
    except OSError as error:
        raise user_error(path, error) from error
    except csv.Error as error:
        raise FormatError.of(path, f"no valid CSV: {error}", _NO_RESULT_HINT) from error
    finally:
        csv.field_size_limit(usual_limit)


def _absent_column(header: Sequence[str]) -> str:
    """The column without which a file is no result, empty if none is missing."""
    for names in ((COSINE.name, *COSINE.others), ("Index",), ("NPUDump", "LeftOp")):
        if not set(names) & set(header):
            return names[0]
    return ""


def _custom_columns(names: Sequence[str]) -> list[str]:
    """The columns of the user's own metrics: those behind the shape that are not known."""
    start = names.index("Shape") + 1 if "Shape" in names else len(names)
    stop = names.index("CompareFailReason") if "CompareFailReason" in names else len(names)
    return [name for name in names[start:stop] if name not in METRIC_COLUMNS and name != "OverFlow"]


def _unique(header: Sequence[str]) -> list[str]:
    """The columns under names of their own: of two DataType, or Address, the second is the benchmark's."""
    first = {name: position for position, name in reversed(list(enumerate(header)))}
    return [name if first[name] == position else f"GroundTruth{name}" for position, name in enumerate(header)]
