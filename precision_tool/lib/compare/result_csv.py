"""The cells of many rows: what `Column.cell` writes, with what is the same for all of them found out once."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, fields, replace
from functools import lru_cache
from itertools import groupby, zip_longest
from math import isnan, nan
from operator import attrgetter
from typing import Any, NamedTuple

from precision_tool.lib.compare.columns import (
    ALL_NAMES,
    COSINE,
    METRIC_COLUMNS,
    NAMES,
    NO_RESULT,
    PARTS,
    READABLE,
    SCALAR_NOTE,
    Column,
    columns_of,
    field_of,
    headers,
    mapping_columns,
    read_custom,
    read_number,
    read_text,
)
from precision_tool.lib.io.files import atomic_text, open_text
from precision_tool.lib.io.local import user_error
from precision_tool.lib.messages.errors import FormatError, PrecisionToolError
from precision_tool.lib.model.comparison import Metrics, Pair, Status, Summary
from precision_tool.lib.model.table import MAX_NAMES, ColumnChoice, Row, Table, joined

#: The cells of a row, or of some columns of it.
Cells = Callable[[Row], list[str]]


def cells_of(columns: Sequence[Column], choice: ColumnChoice) -> Cells:
    """Return a function for the cells of a row: as `Column.cell`, but neighbouring numbers are written at once."""
    parts: list[Cells] = []
    for key, group in groupby(columns, _side_by_side):
        together = list(group)
        parts.append(_numbers(together, choice) if key else _singles(together, choice))

    def cells(row: Row) -> list[str]:
        return [text for part in parts for text in part(row)]

    if choice.h5:  # the paths of its tensors are made of their names
        return cells
    of_ops = [(at, _single(column, choice)) for at, column in enumerate(columns) if column.field in _OF_OPS]
    nothing = cells(_NOTHING)

    def cells_of_any(row: Row) -> list[str]:
        if _tensors_of(row) != _NO_TENSORS:
            return cells(row)
        texts = nothing.copy()
        for at, write in of_ops:
            texts[at] = write(row)
        return texts

    return cells_of_any


#: Of rows without a tensor, which are most of a large graph, only these columns are not all the same.
_OF_OPS = frozenset((
    "pair.index", "pair.sequence", "pair.op_type", "pair.npu_ops", "pair.golden_ops", "pair.status", "pair.pass_names",
    "pair.original_names", "reason",
))  # fmt: skip
_NOTHING = Row(pair=Pair(index=0, op_name="", op_type="", npu_ops=(), golden_ops=()))
#: All else that a row may have, and what it is in a row without a tensor.
_tensors_of = attrgetter(
    *{*(f"pair.{field.name}" for field in fields(Pair)), *(field.name for field in fields(Row))}
    - {*_OF_OPS, "pair.op_name", "pair.reason", "pair", "unlisted"}
)
_NO_TENSORS = _tensors_of(_NOTHING)


def _side_by_side(column: Column) -> tuple[object, ...]:
    """Columns with one key are numbers of one part of a row, hidden together; () of others."""
    part, _, field = column.field.partition(".")
    return (part, column.hides) if field and column.form.style and column.value is None else ()


def _singles(columns: Sequence[Column], choice: ColumnChoice) -> Cells:
    writers = [_single(column, choice) for column in columns]
    return lambda row: [write(row) for write in writers]


def _single(column: Column, choice: ColumnChoice) -> Callable[[Row], str]:
    """Return the function that writes the cells of a column; of a field of each row or pair a quick one."""
    part, _, _ = column.field.partition(".")
    if column.hides is not None or column.value is not None or ("." in column.field and part != "pair"):
        return lambda row: column.cell(row, choice)
    field, get = column.field, attrgetter(column.field)
    none, write = column.form.none, column.form.write

    def cell(row: Row) -> str:
        value = None if row.absent and field in row.absent else get(row)
        return none if value is None else write(value)

    return cell


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


# --- reading rows ---


_UNLISTED = re.compile(r"… \(\+(\d+) more\)")
_DEVIATION = re.compile(r"\((.*);(.*)\),\((.*);(.*)\)")
_STATUSES = {str(status): status for status in Status}
#: Cells that very many rows have.
_USUAL_CELLS = ("", NO_RESULT, "0", "0.000000", "1.000000")
_PARTS = tuple(PARTS)
#: What of a row is known without any number of the data, and what may be None.
_NO_NUMBERS = frozenset(
    ("max_error_index", "first_mismatch_index", "non_finite_mismatches", "is_scalar", "both_zero", "count")
)
_OPTIONAL = frozenset(("max_error_index", "first_mismatch_index"))
#: Of Metrics and Summary the fields, and what those stand at that have no default and are not in a file.
_FIELDS = {kind: frozenset(field.name for field in fields(kind)) for kind in (Metrics, Summary)}
_REQUIRED = {kind: {field.name: nan for field in fields(kind) if field.default is MISSING} for kind in _FIELDS}

Values = dict[str, Any]


class _Cell(NamedTuple):
    """The reader of a column's cells, and the part and field of a row that they fill."""

    column: str
    part: int
    field: str
    read: Callable[[str], Any]
    usual: Mapping[str, Any]
    strict: bool


class RowReader:
    """Makes rows of the lines below one header; `custom` are the columns of the user's own metrics."""

    def __init__(self, header: Sequence[str], custom: Sequence[str] = ()) -> None:
        self._header = header
        self._custom = tuple(custom)
        self._cells = [_cell_of(name) for name in header]
        self._places = {name: place for place, name in enumerate(header)}
        self._cosine = [self._places[name] for name in (COSINE.name, *COSINE.others) if name in self._places]

    def row(self, cells: Sequence[str], line: int) -> Row:
        """Return the row of a line. ValueError for one that says too little, or has no number where it must."""
        if not any(place < len(cells) for place in self._cosine):
            raise ValueError(f"it ends before the {COSINE.name} column")
        damaged: list[tuple[str, str]] = []
        own, pair, metrics, npu, golden = self._values(cells, damaged)
        if "index" not in pair:
            raise ValueError("it ends before the Index column")
        if self._text(cells, "NPUDumpPath") is not None:
            pair |= self._h5_names(cells)
        else:
            pair |= _named_tensor(pair.pop("tensor_index", ""), pair.get("npu_ops", ()))
        unlisted = (
            _take_unlisted(pair, "npu_ops"), _take_unlisted(pair, "golden_ops"), _take_unlisted(pair, "original_names")
        )  # fmt: skip
        status = pair.get("status", "")
        pair["status"] = _STATUSES.get(status, status)
        _add_deviation(own.get("deviation", ""), npu, golden, damaged)
        is_scalar = SCALAR_NOTE in (self._text(cells, _REASON) or "")
        self._add_marks(metrics, npu, golden, is_scalar, self._first_cosine(cells))
        parts = [
            _part(Metrics, "metrics", metrics), _part(Summary, "npu", npu), _part(Summary, "golden", golden),
        ]  # fmt: skip
        return Row(
            pair=Pair(**{"op_type": "", "npu_ops": (), "golden_ops": (), **pair}),
            metrics=parts[0][0],
            npu=parts[1][0],
            golden=parts[2][0],
            reason=own.get("reason"),
            overflow=own.get("overflow"),
            own_error=own.get("own_error"),
            custom={name: read_custom(self._text(cells, name) or "") for name in self._custom},
            npu_dtype=own.get("npu_dtype", ""),
            golden_dtype=own.get("golden_dtype", ""),
            line=line,
            absent=_union(*(absent for _, absent in parts)),
            unlisted=unlisted,
            damaged=tuple(damaged),
        )

    def _values(self, cells: Sequence[str], damaged: list[tuple[str, str]]) -> list[Values]:
        """Return the values of a line's cells, by part and field. Add the cells that cannot be read to `damaged`."""
        values: list[Values] = [{} for _ in _PARTS]
        for cell, text in zip(self._cells, cells, strict=False):
            if cell is None:
                continue
            column, part, field, read, usual, strict = cell
            if text in usual:
                values[part][field] = usual[text]
                continue
            try:
                values[part][field] = read(text)
            except ValueError:
                if strict:
                    raise
                damaged.append((column, text))
        return values

    def _text(self, cells: Sequence[str], column: str) -> str | None:
        """Return the cell of a column; None where the line has none."""
        place = self._places.get(column, len(cells))
        return cells[place] if place < len(cells) else None

    def _first_cosine(self, cells: Sequence[str]) -> str:
        return next(cells[place] for place in self._cosine if place < len(cells))

    @staticmethod
    def _add_marks(metrics: Values, npu: Values, golden: Values, is_scalar: bool, cosine: str) -> None:
        """Add the marks of a pair that the file has by other means than a column."""
        mismatches = metrics.get("non_finite_mismatches") or 0
        metrics["first_mismatch_index"] = metrics.get("max_error_index") if mismatches else None
        metrics["is_scalar"] = is_scalar
        metrics["both_zero"] = cosine == "1.0" or (
            is_scalar and all(side.get(name) == 0 for side in (npu, golden) for name in ("minimum", "maximum"))
        )

    def _h5_names(self, cells: Sequence[str]) -> Values:
        """Return the ops and the tensor of a line about PyTorch dumps."""
        npu, golden, op_type = (
            read_text(self._text(cells, name) or "") for name in ("NPUDumpPath", "GroundTruthPath", "NPUDump")
        )
        npu_parts, golden_parts = npu.split("/", 4), golden.split("/", 4)
        golden_op = "*" if golden == NO_RESULT else "/".join(golden_parts[:3])
        if op_type == NO_RESULT:
            kind, npu_op, parts = golden_op.split("/")[1] if golden_op.count("/") > 1 else "", "*", []
        else:
            # The vendor's index is the op's number in the dump, also where the path is NaN.
            index = self._text(cells, "Index")
            kind, npu_op = op_type, f"/{op_type}/{index}" if npu == NO_RESULT else "/".join(npu_parts[:3])
            parts = golden_parts if npu == NO_RESULT else npu_parts
        tensor = f"{npu_op}:{parts[3]}:{parts[4].replace(':', '_')}" if len(parts) == 5 else ""
        return {
            "op_type": kind, "npu_ops": (npu_op,), "golden_ops": (golden_op,), **_named_tensor(tensor, (npu_op,)),
        }  # fmt: skip


def _cell_of(name: str) -> _Cell | None:
    """Return the reader of a column's cells; None for a column that says nothing of a row."""
    column = READABLE.get(name)
    if column is None:
        return None
    usual = {}
    for cell in _USUAL_CELLS:
        try:
            usual[cell] = column.form.read(cell)
        except ValueError:  # said where a line has it
            continue
    part, _, field = column.field.rpartition(".")
    return _Cell(name, _PARTS.index(part), field, column.form.read, usual, column.strict)


def _part(kind: type[Metrics] | type[Summary], part: str, values: Values) -> tuple[Any, frozenset[str]]:
    """Return the metrics, or one side, of a row, and what of it is not there; None if the file has no number of it."""
    present = {name: value for name, value in values.items() if value is not None}
    if present.keys() <= _NO_NUMBERS:
        return None, frozenset()
    missing = _FIELDS[kind].difference(present, _OPTIONAL)
    if not missing:
        return kind(**present), frozenset()
    return kind(**(_REQUIRED[kind] | present)), _paths(part, missing)


@lru_cache(maxsize=256)  # the rows of a file lack the same
def _paths(part: str, names: frozenset[str]) -> frozenset[str]:
    return frozenset(f"{part}.{name}" for name in names)


@lru_cache(maxsize=256)
def _union(*sets: frozenset[str]) -> frozenset[str]:
    return frozenset().union(*sets)


def _take_unlisted(values: Values, name: str) -> int:
    """Return how many names a list left out, and remove the words that say so."""
    names = values.get(name, ())
    more = _UNLISTED.fullmatch(names[-1]) if names else None
    if more is None:
        return 0
    values[name] = names[:-1]
    return int(more[1])


def _named_tensor(tensor_index: str, npu_ops: Sequence[str]) -> Values:
    """Op and slot by the TensorIndex cell."""
    if tensor_index.count(":") < 2:
        return {"op_name": joined(npu_ops), "slot": ""}
    op_name, side, number = tensor_index.rsplit(":", 2)
    return {"op_name": op_name, "slot": f"{side}:{number}"}


def _add_deviation(cell: str, npu: Values, golden: Values, damaged: list[tuple[str, str]]) -> None:
    """Mean and deviation from the vendor's cell, which is all that its files tell of the two sides."""
    means = _DEVIATION.fullmatch(cell)
    if means is None:
        return
    places = ((npu, "mean"), (npu, "std"), (golden, "mean"), (golden, "std"))
    for (side, name), text in zip(places, means.groups(), strict=True):
        if side.get(name) is None:
            try:
                side[name] = read_number(text)
            except ValueError:
                damaged.append(("StandardDeviation", text))


# --- result files ---


_MAX_CELL = 1 << 20
_REASON = "CompareFailReason"


def write_result(path: str, rows: Sequence[Row], choice: ColumnChoice | None = None) -> None:
    """Write a result file (FORMATS.md §5b; CRLF, as the vendor's).

    Parameters
    ----------
    path : str
        It appears when it is complete.
    rows : sequence of Row
        A line each, in this order.
    choice : ColumnChoice, optional
        The columns that depend on what was compared, and on options.

    Raises
    ------
    OutputError
        When it cannot be written.
    """
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

    Only these cells are made, and put behind the lines. A file that is not as it was written is made anew.
    """
    try:
        _append_own_errors(path, rows, choice)
    except (_OtherLinesError, UnicodeError, OSError, PrecisionToolError):  # somebody changed it meanwhile
        write_result(path, rows, choice)


class _OtherLinesError(Exception):
    """The lines of a result file are not those of its rows."""


def _append_own_errors(path: str, rows: Sequence[Row], choice: ColumnChoice) -> None:
    """Write the file again, a cell longer in each line. _OtherLinesError for a file with other lines."""
    columns = columns_of(choice)
    own, tensor = columns[-1], next((column for column in columns if column.name == "TensorIndex"), columns[0])
    # A line feed may stand in a quoted cell. A cell with the end of a line in it would make one line more.
    with open_text(path, encoding="utf-8", errors="strict", newline="\r\n") as file, atomic_text(path) as new:
        if file.readline() != ",".join(headers(columns[:-1])) + "\r\n":
            raise _OtherLinesError
        new.write(",".join(headers(columns)) + "\r\n")
        for row, line in zip_longest(rows, file):
            if row is None or line is None or not line.endswith("\r\n"):
                raise _OtherLinesError
            name = tensor.cell(row, choice).replace('"', '""')
            if not line.startswith(f"{row.index},") or name not in line:
                raise _OtherLinesError
            new.write(f"{line[:-2]},{own.cell(row, choice)}\r\n")


#: Lists of a column of a group by their first names and their length, of those alike the first.
_Lists = dict[tuple[int, str, tuple[str, ...], int], tuple[str, ...]]


def _key_of(row: Row, field: str, names: tuple[str, ...], left: int = 0) -> tuple[int, str, tuple[str, ...], int]:
    return row.index, field, names[: MAX_NAMES - 1], len(names) + left


def _whole_names(row: Row, column: Column, written: _Lists) -> str:
    """Return the cell with all names of a long list, in the first row of a group; the others have a part."""
    names = field_of(row, column.field)
    if not names or len(names) <= MAX_NAMES:
        return ""
    cell = ALL_NAMES.write(names)
    if len(cell) >= _MAX_CELL:
        return ""
    earlier = written.get(_key_of(row, column.field, names))
    if earlier is None:
        written[_key_of(row, column.field, names)] = names
    return "" if earlier == names else cell


def _with_whole_names(row: Row, lists: _Lists) -> Row:
    """Return the row with the lists that it gives a part of as an earlier row of its group has them."""
    left = list(row.unlisted)
    whole_lists: dict[str, Any] = {}
    for number, field in enumerate(("npu_ops", "golden_ops", "original_names")):
        names = getattr(row.pair, field) or ()
        if left[number]:
            whole = lists.get(_key_of(row, field, names, left[number]))
            if whole is not None:
                whole_lists[field], left[number] = whole, 0
        elif len(names) > MAX_NAMES:
            lists.setdefault(_key_of(row, field, names), names)
    if not whole_lists:
        return row
    npu, golden, original = left
    return replace(row, pair=replace(row.pair, **whole_lists), unlisted=(npu, golden, original))


def write_mapping(path: str, pairs: Sequence[Pair], *, sequence: bool = False) -> None:
    """Write the vendor's mapping table. OutputError when it cannot be written."""
    columns = mapping_columns(sequence=sequence)
    with atomic_text(path) as file:
        writer = csv.writer(file, lineterminator="\r\n")
        writer.writerow(headers(columns))
        for pair in pairs:
            writer.writerow([column.cell(Row(pair=pair), ColumnChoice()) for column in columns])


def read_result(path: str) -> Table:
    """Read a result file of ours or of the vendor's.

    Parameters
    ----------
    path : str
        Its columns are found by their names in the header (current, `NPUDump`, and oldest, `LeftOp`).

    Returns
    -------
    Table
        The rows, without tensors in their pairs, and the columns that the file has.

    Raises
    ------
    FormatError
        With file and line of what is no result file.
    """
    rows: list[Row] = []
    lists: _Lists = {}
    with _csv_lines(path) as (header, lines):
        custom = _custom_columns(header)
        reader = RowReader(header, custom)
        for line, values in lines:
            try:
                row = reader.row(values, line)
            except ValueError as error:
                raise FormatError.of(path, "compare.bad_line", number=line, reason=str(error)) from error
            rows.append(_with_whole_names(row, lists))
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
    """Return the figures of the outputs of ops in a result file; quicker than reading all rows."""
    lowest: dict[str, float] = {}
    scalars: dict[str, tuple[float, float]] = {}
    tensors: set[str] = set()
    with _csv_lines(path) as (header, lines):
        cosine_at = header.index(next(name for name in (COSINE.name, *COSINE.others) if name in header))
        is_h5 = "NPUDumpPath" in header
        column = "NPUDumpPath" if is_h5 else "TensorIndex"
        name_at = header.index(column) if column in header else len(header)
        sides = [header.index(side) if side in header else len(header) for side in ("NPUMax", "GroundTruthMax")]
        reason_at = header.index(_REASON) if _REASON in header else len(header)
        for line, values in lines:
            if max(cosine_at, name_at) >= len(values):
                continue
            where = read_text(values[name_at])
            name, is_output, _ = where.partition("/output/") if is_h5 else where.rpartition(":output:")
            try:
                cosine = read_number(values[cosine_at]) if is_output else None
            except ValueError as error:
                raise FormatError.of(path, "compare.bad_line", number=line, reason=str(error)) from error
            if cosine is not None:
                previous = lowest.get(name, cosine)
                lowest[name] = previous if isnan(previous) or previous <= cosine else cosine
                values_of = [values[at] for at in (*sides, reason_at) if at < len(values)]
                if len(values_of) == len(sides) + 1 and SCALAR_NOTE in values_of[-1]:
                    with suppress(ValueError):
                        scalars[name] = (float(values_of[0]), float(values_of[1]))
                else:
                    tensors.add(name)
    return OutputFigures(lowest, {name: pair for name, pair in scalars.items() if name not in tensors})


@contextmanager
def _csv_lines(path: str) -> Iterator[tuple[list[str], Iterator[tuple[int, list[str]]]]]:
    """Return the header of a result file, its columns under names of their own, and its lines with their numbers."""
    usual_limit = csv.field_size_limit(_MAX_CELL)  # of the whole process, so it is put back
    try:
        with open_text(path, encoding="utf-8-sig", errors="backslashreplace", newline="") as file:
            reader = csv.reader(file)
            header = _unique(next(reader, []))
            column = _absent_column(header)
            if column:
                raise FormatError.of(path, "compare.no_result", column=column)
            yield header, ((reader.line_num, values) for values in reader if values)
    except PrecisionToolError:  # some are OSErrors too
        raise
    except OSError as error:
        raise user_error(path, error) from error
    except csv.Error as error:
        raise FormatError.of(path, "compare.bad_csv", reason=str(error)) from error
    finally:
        csv.field_size_limit(usual_limit)


def _absent_column(header: Sequence[str]) -> str:
    """Return the column without which a file is no result, empty if none is missing."""
    for names in ((COSINE.name, *COSINE.others), ("Index",), ("NPUDump", "LeftOp")):
        if not set(names) & set(header):
            return names[0]
    return ""


def _custom_columns(names: Sequence[str]) -> list[str]:
    """Return the columns of the user's own metrics: those behind the shape that are not known."""
    start = names.index("Shape") + 1 if "Shape" in names else len(names)
    stop = names.index("CompareFailReason") if "CompareFailReason" in names else len(names)
    return [name for name in names[start:stop] if name not in METRIC_COLUMNS and name != "OverFlow"]


def _unique(header: Sequence[str]) -> list[str]:
    """Return the columns under names of their own: of two DataType, or Address, the second is the benchmark's."""
    first = {name: position for position, name in reversed(list(enumerate(header)))}
    return [name if first[name] == position else f"GroundTruth{name}" for position, name in enumerate(header)]
