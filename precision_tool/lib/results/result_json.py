"""Rows as JSON documents, by the table of columns."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from precision_tool.lib.errors import FormatError, shown
from precision_tool.lib.model.comparison import Metrics, Summary
from precision_tool.lib.model.table import ColumnChoice, Row
from precision_tool.lib.results.columns import COSINE, METRICS, READABLE, field_of, metrics_of

#: To be raised when a key changes its meaning or goes; not for a new one.
SCHEMA = 1
#: What the columns of a result file do not have, or not under one name.
_BESIDE = {"op": "op_name", "slot": "slot", "noise": "noise"}
_COLUMNS = {column.json: column for column in READABLE.values() if column.json}
_PARTS = (("metrics", Metrics), ("npu", Summary), ("golden", Summary))


def row_json(row: Row, choice: ColumnChoice, path: str = "") -> dict[str, Any]:
    """A row with all its numbers; None stands for those that were not asked for, or that its file lacks.

    FormatError for a row that was read, of the file `path`, and has a cell which holds no number.
    """
    for name, text in row.damaged:
        reason, where = f"{name} is no number: {shown(text)}", f"line {row.line} of the result file"
        raise FormatError.of(path, reason, "run `vc` or `ac -c` again", line=row.line, what=where)
    document: dict[str, Any] = {key: getattr(row, name) for key, name in _BESIDE.items()}
    for key, column in _COLUMNS.items():
        document[key] = field_of(row, column.field) if column.value is None else column.value(row, choice)
    document["custom"] = dict.fromkeys(choice.custom) | dict(row.custom)
    document["left_out"] = dict(zip(("npu_ops", "benchmark_ops", "original_ops"), row.unlisted, strict=True))
    asked = {column.field for column in metrics_of(choice)} | {COSINE.field}
    hidden = {column.field for column in METRICS} - asked
    for part, kind in _PARTS:
        document[part] = None
        if getattr(row, part) is not None:
            paths = {field.name: f"{part}.{field.name}" for field in fields(kind)}
            document[part] = {name: None if path in hidden else field_of(row, path) for name, path in paths.items()}
    return document
