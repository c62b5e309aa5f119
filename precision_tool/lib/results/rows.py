"""Rows of a result file from the cells of its lines, columns found by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import lru_cache
from math import nan
from typing import Any, NamedTuple

from precision_tool.lib.model.comparison import Metrics, Pair, Status, Summary
from precision_tool.lib.model.table import Row, joined
from precision_tool.lib.results.columns import COSINE, PARTS, READABLE, SCALAR_NOTE
from precision_tool.lib.results.forms import NO_RESULT, read_custom, read_number, read_text

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
    """How the cell of a column is read, and the part and field of a row that it is."""

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
        """The row of a line. ValueError for one that says too little, or has no number where it must."""
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
        reason = own.get("reason", "")
        self._add_marks(metrics, npu, golden, reason, self._first_cosine(cells))
        parts = [
            _part(Metrics, "metrics", metrics), _part(Summary, "npu", npu), _part(Summary, "golden", golden),
        ]  # fmt: skip
        return Row(
            pair=Pair(**{"op_type": "", "npu_ops": (), "golden_ops": (), **pair}),
            metrics=parts[0][0],
            npu=parts[1][0],
            golden=parts[2][0],
            reason=reason,
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
        """What the cells of a line say, by part and field. Adds the cells that cannot be read to `damaged`."""
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
        """The cell of a column; None where the line has none."""
        place = self._places.get(column, len(cells))
        return cells[place] if place < len(cells) else None

    def _first_cosine(self, cells: Sequence[str]) -> str:
        return next(cells[place] for place in self._cosine if place < len(cells))

    @staticmethod
    def _add_marks(metrics: Values, npu: Values, golden: Values, reason: str, cosine: str) -> None:
        """What the file says of a pair by other things than a column."""
        mismatches = metrics.get("non_finite_mismatches") or 0
        metrics["first_mismatch_index"] = metrics.get("max_error_index") if mismatches else None
        is_scalar = SCALAR_NOTE in reason
        metrics["is_scalar"] = is_scalar
        metrics["both_zero"] = cosine == "1.0" or (
            is_scalar and all(side.get(name) == 0 for side in (npu, golden) for name in ("minimum", "maximum"))
        )

    def _h5_names(self, cells: Sequence[str]) -> Values:
        """The ops and the tensor of a line about PyTorch dumps."""
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
    """How the cells of a column are read; None for one that says nothing of a row."""
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
    """The metrics, or one side, of a row, and what of it is not there; None if the file has no number of it."""
    known = {name: value for name, value in values.items() if value is not None}
    if known.keys() <= _NO_NUMBERS:
        return None, frozenset()
    missing = _FIELDS[kind].difference(known, _OPTIONAL)
    if not missing:
        return kind(**known), frozenset()
    return kind(**(_REQUIRED[kind] | known)), _paths(part, missing)


@lru_cache(maxsize=256)  # the rows of a file lack the same
def _paths(part: str, names: frozenset[str]) -> frozenset[str]:
    return frozenset(f"{part}.{name}" for name in names)


@lru_cache(maxsize=256)
def _union(*sets: frozenset[str]) -> frozenset[str]:
    return frozenset().union(*sets)


def _take_unlisted(values: Values, name: str) -> int:
    """How many names a list left out; the words that say so are taken from it."""
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
