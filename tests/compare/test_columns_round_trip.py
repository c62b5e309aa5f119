"""Every column of a result file holds a field that is there, and what is written of it is read back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from precision_tool.lib.compare import columns as table
from precision_tool.lib.compare.columns import EXTRA, METRICS, NUMBER, READABLE, Column, columns_of, field_of, readable
from precision_tool.lib.compare.result_csv import read_result, write_result
from precision_tool.lib.messages import Message
from precision_tool.lib.model.comparison import Metrics, Pair, Status, Summary
from precision_tool.lib.model.table import ColumnChoice, Row

#: Fields of Metrics that the reader works out from others.
WORKED_OUT = {"first_mismatch_index", "is_scalar", "both_zero"}
CHOICE = ColumnChoice(sequence=True, overflow=True, own_error=True)


def numbers() -> Iterator[float]:
    """Numbers that `%.6f` holds, each another."""
    return (number / 64 for number in range(1, 1000))


def full_row() -> Row:
    """A row with a value of its own in every field that a column holds."""
    value = numbers()

    def part(kind: type[Any], **given: Any) -> Any:
        whole = {field.name: int(64 * next(value)) for field in fields(kind) if field.name.endswith("count")}
        return kind(**{field.name: next(value) for field in fields(kind) if field.type == "float"} | whole | given)

    pair = Pair(
        index=3, op_name="op", op_type="Conv2D", npu_ops=("op",), golden_ops=("a", "b"), slot="output:0", sequence=5,
        status=Status.COMPARED, pass_names=("APass",), original_names=("x", "y"), shape=(2, 3), golden_tensor="a:0",
    )  # fmt: skip
    return Row(
        pair=pair, metrics=part(Metrics, max_error_index=(1, 2), non_finite_mismatches=4), npu=part(Summary),
        golden=part(Summary), reason=Message("text", text="why"), overflow=True, own_error=next(value),
        npu_dtype="float16", golden_dtype="float32",
    )  # fmt: skip


def names_of(columns: dict[str, Column]) -> list[str]:
    return [name for name, column in columns.items() if name == column.name]


@pytest.fixture
def read_back(tmp_path: Path) -> Row:
    write_result(str(tmp_path / "result.csv"), [full_row()], CHOICE)
    (row,) = read_result(str(tmp_path / "result.csv")).rows
    return row


@pytest.mark.parametrize("name", names_of(READABLE))
def test_what_is_written_is_read_back(name: str, read_back: Row) -> None:
    column, row = READABLE[name], full_row()
    if column.field == "deviation":  # mean and deviation of both sides, which have columns of their own
        return
    written = column.held(row, CHOICE)
    assert written not in (None, "", ())
    assert column.held(read_back, CHOICE) == written
    assert field_of(read_back, column.field) == field_of(row, column.field)


def test_every_field_of_the_metrics_has_a_column() -> None:
    held = {column.field for column in (*METRICS, *EXTRA)}
    for part, kind in (("metrics", Metrics), ("npu", Summary), ("golden", Summary)):
        lost = {f"{part}.{field.name}" for field in fields(kind) if field.name not in WORKED_OUT} - held
        assert lost <= {"npu.count", "golden.count"}


def new_metric(**changes: Any) -> Column:
    """What a newcomer writes: a name with spaces, and a field."""
    return replace(Column(name="max ulp error", field="metrics.mean_relative_error", form=NUMBER), **changes)


def test_a_name_with_spaces_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = (*METRICS[:-1], new_metric())
    monkeypatch.setattr(table, "METRICS", metrics)
    monkeypatch.setattr(table, "METRIC_COLUMNS", tuple(column.name for column in metrics))
    monkeypatch.setitem(READABLE, "max ulp error", new_metric())
    assert "max ulp error" in [column.name for column in columns_of(CHOICE)]
    write_result(str(tmp_path / "result.csv"), [full_row()], CHOICE)
    (row,) = read_result(str(tmp_path / "result.csv")).rows
    assert field_of(row, "metrics.mean_relative_error") == field_of(full_row(), "metrics.mean_relative_error")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"field": "metrics.max_ulp_eror"}, "max ulp error: no field metrics.max_ulp_eror"),
        ({"field": "metric.cosine"}, "max ulp error: no field metric.cosine"),
        ({"name": "MaxAbsoluteError"}, "two columns MaxAbsoluteError"),
        ({"others": ("Shape",)}, "two columns Shape"),
        ({"name": "max,ulp error"}, "max,ulp error: a comma"),
    ],
)
def test_a_wrong_name_is_an_error_at_once(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        readable([*dict.fromkeys(READABLE.values()), new_metric(**changes)])
