"""The result file: written with the vendor's columns and numbers, read back as it was, never half there."""

from __future__ import annotations

import csv
import os
import re
import stat
from dataclasses import replace
from math import inf, isnan, nan
from pathlib import Path
from typing import Any

import pytest
from command_line import table
from hypothesis import given
from hypothesis import strategies as st

from precision_tool.lib.compare import columns as column_table
from precision_tool.lib.compare.columns import METRIC_COLUMNS, METRICS, columns_of, headers, parse_metrics, row_json
from precision_tool.lib.compare.result_csv import cells_of, read_result, write_mapping, write_own_errors, write_result
from precision_tool.lib.compare.result_files import find_results
from precision_tool.lib.messages import Message, render
from precision_tool.lib.messages.catalogue import printable
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, OutputError, UsageError
from precision_tool.lib.model.comparison import Metrics, Pair, Status, Summary
from precision_tool.lib.model.table import ColumnChoice, Row, joined
from precision_tool.lib.model.tensor import Tensor


def tensor(dtype: str = "float16", address: int = 17) -> Tensor:
    return Tensor(path="file", offset=0, nbytes=8, dtype=dtype, shape=(4,), address=address)


def metrics(cosine: float = 0.75, error: float = 1.25, **more: object) -> Metrics:
    of_metrics = {column.field.rpartition(".")[2] for column in METRICS if column.name != "StandardDeviation"}
    return Metrics(**dict.fromkeys(of_metrics, error) | {"cosine": cosine} | more)  # type: ignore[arg-type]


SIDE = Summary(count=4, minimum=-1.5, maximum=2.5, mean=0.25, std=0.0009999, nan_count=1, zero_count=2)


def row(
    *,
    index: int = 3,
    name: str = "op",
    slot: str = "output:0",
    result: Metrics | None = None,
    status: Status = Status.COMPARED,
    note: str = "",
    dtype: str = "float16",
    golden_dtype: str = "float32",
    op_type: str = "Add",
    golden_names: str = "op",
    passes: tuple[str, ...] = (),
) -> Row:
    """A row, compared if it has a result."""
    golden_ops = tuple(golden_names.split(","))
    pair = Pair(
        index=index, op_name=name, op_type=op_type, npu_ops=(name,), golden_ops=golden_ops, slot=slot,
        npu=tensor(dtype), golden=tensor(golden_dtype, 18), golden_tensor=f"{name}:0", shape=(2, 2), status=status,
        pass_names=passes, original_names=golden_ops,
    )  # fmt: skip
    side = SIDE if result else None
    return Row(pair=pair, metrics=result, npu=side, golden=side, reason=Message("text", text=note) if note else None)


def written(path: Path, *rows: Row, golden_address: bool = False) -> list[dict[str, str]]:
    """The cells of the file with these rows; of two columns of one name the last."""
    write_result(str(path), rows, ColumnChoice(golden_address=golden_address))
    header, lines = table(path)
    return [dict(zip(header, line, strict=True)) for line in lines]


def test_numbers_are_printed_as_the_vendor_does(tmp_path: Path) -> None:
    path = tmp_path / "result_1.csv"
    values = {
        0.75: "0.750000", 1.0: "1.000000", -1e-9: "-0.000000", 1e-7: "0.000000", 5.5e-7: "0.000001", nan: "nan",
        inf: "inf", -inf: "-inf", 123456789.123456789: "123456789.123457", 1e20: "100000000000000000000.000000",
    }  # fmt: skip
    lines = written(path, *(row(result=metrics(cosine=number, error=number)) for number in values))
    for line, text in zip(lines, values.values(), strict=True):
        for column in set(METRIC_COLUMNS) - {"StandardDeviation"}:
            assert line[column] == text
        assert line["StandardDeviation"] == "(0.250;0.000),(0.250;0.000)"  # below 0.001 is 0
        assert line["Shape"] == "[2,2]"
        assert line["TensorIndex"] == "op:output:0"
    (line,) = written(path, row(result=None, status=Status.NO_BENCHMARK, note="why"))
    assert {line[column] for column in METRIC_COLUMNS} == {"NaN"}
    assert (line["DataType"], line["CompareFailReason"], line["Status"]) == ("NaN", "why", "no_benchmark")


def test_two_zero_tensors_print_one_digit(tmp_path: Path) -> None:
    path = tmp_path / "result_1.csv"
    zero, scalar, equal = (
        metrics(1.0, 0.0, both_zero=True),
        metrics(1.0, 0.0, both_zero=True, is_scalar=True),
        metrics(1.0, 0.0),
    )
    lines = written(path, *(row(result=result) for result in (zero, scalar, equal)))
    assert [line["CosineSimilarity"] for line in lines] == ["1.0", "1.000000", "1.000000"]
    assert [read.cosine for read in read_result(str(path))] == [1.0, 1.0, 1.0]


def test_bools_against_bools_have_a_cosine_and_a_distance_only(tmp_path: Path) -> None:
    (line,) = written(tmp_path / "result_1.csv", row(result=metrics(), dtype="bool", golden_dtype="bool"))
    printed = {name for name in METRIC_COLUMNS if line[name] != "NaN"}
    assert printed == {"CosineSimilarity", "RelativeEuclideanDistance"}


def test_bools_against_numbers_and_of_two_runs_have_every_figure(tmp_path: Path) -> None:
    """As msaccucmp has them."""
    (line,) = written(tmp_path / "result_1.csv", row(result=metrics(), dtype="bool"))
    assert [name for name in METRIC_COLUMNS if line[name] == "NaN"] == []
    of_runs = row(result=metrics(), dtype="bool", golden_dtype="bool")
    (line,) = written(tmp_path / "result_2.csv", of_runs, golden_address=True)
    assert [name for name in METRIC_COLUMNS if line[name] == "NaN"] == []


@pytest.mark.parametrize("golden_address", [False, True])
def test_an_address_column_for_each_side_that_is_a_dump(tmp_path: Path, golden_address: bool) -> None:
    path = tmp_path / "result_1.csv"
    written(path, row(result=metrics()), golden_address=golden_address)
    header, (line,) = table(path)
    start = [*header[2:5], *header[5:8]]
    if golden_address:
        assert start == ["NPUDump", "DataType", "Address", "GroundTruth", "DataType", "Address"]
        assert line[2:8] == ["op", "float16", "17", "op", "float32", "18"]
    else:
        assert start == ["NPUDump", "DataType", "Address", "GroundTruth", "DataType", "TensorIndex"]
        assert line[2:8] == ["op", "float16", "17", "op", "float32", "op:output:0"]
    table_read = read_result(str(path))
    assert table_read.choice.golden_address is golden_address
    assert (table_read[0].npu_dtype, table_read[0].golden_dtype) == ("float16", "float32")


def test_the_umask_says_who_reads_the_file_and_its_lines_end_as_the_vendors(tmp_path: Path) -> None:
    path = tmp_path / "new" / "result_1.csv"
    old = os.umask(0o027)
    try:
        written(path, row(result=metrics()), row(note="two\nlines", result=metrics()))
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [entry.name for entry in path.parent.iterdir()] == ["result_1.csv"]
    assert path.read_bytes().count(b"\r\n") == 3


NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=32)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0:"), min_size=1, max_size=20)


@given(
    st.lists(
        st.builds(
            row,
            index=st.integers(0, 1 << 40),
            name=NAMES,
            slot=st.sampled_from(["", "input:0", "output:12"]),
            result=st.none() | st.builds(metrics, NUMBERS, NUMBERS, non_finite_mismatches=st.integers(0, 9)),
            status=st.sampled_from(Status),
            note=TEXTS,
            op_type=TEXTS,
            golden_names=TEXTS,
            passes=st.tuples(TEXTS),
        ),
        max_size=4,
    ),
    st.booleans(),
)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, rows: list[Row], address: bool) -> None:
    path = tmp_path_factory.getbasetemp() / "result_1.csv"
    write_result(str(path), rows, ColumnChoice(golden_address=address))
    header, lines = table(path)
    text_columns = ("OpType", "NPUDump", "GroundTruth", "TensorIndex", "CompareFailReason", "PassName", "OriginalOps")
    for line in lines:
        for name in text_columns:
            assert not re.match(r"[=+@%\t\r-]", line[header.index(name)])
    read = read_result(str(path))
    assert len(read) == len(rows)
    for found, given_row in zip(read, rows, strict=True):
        expected = given_row
        assert render(found.reason) == render(expected.reason)
        for name in ("index", "status", "mismatches", "op_name", "slot"):
            assert getattr(found, name) == getattr(expected, name), name
        for name in ("npu_ops", "golden_ops", "pass_names", "original_ops"):
            assert ",".join(getattr(found, name)) == ",".join(getattr(expected, name)), name
        assert found.op_type == (expected.op_type or "NaN")
        for name in ("cosine", "max_absolute_error", "relative_euclidean_distance"):
            value, exact = getattr(found, name), getattr(expected, name)
            assert (value is None) == (exact is None)
            if exact is not None:
                assert value == pytest.approx(exact, abs=5.1e-7, nan_ok=True)


@pytest.mark.parametrize("name", ["=1+1", "'=1+1", "''=1+1", "'quoted'", "'", "@a", "\tb", "-", "+1", "%d", " =1", ""])
def test_no_text_is_a_formula_and_all_come_back(tmp_path: Path, name: str) -> None:
    path = tmp_path / "result_1.csv"
    (line,) = written(path, row(name=name or "op", note=name, golden_names=name))
    assert not line["CompareFailReason"].startswith(("=", "+", "-", "@", "%", "\t", "\r"))
    (read,) = read_result(str(path))
    assert (read.npu_ops, render(read.reason), ",".join(read.original_ops)) == ((name or "op",), printable(name), name)
    assert ",".join(read.golden_ops) == name
    assert read.op_name == (name or "op")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("NaN", None),
        ("", None),
        ("*", None),
        (" ", None),
        ("1.0", 1.0),
        ("-0.000000", 0.0),
        ("inf", inf),
        ("-inf", -inf),
    ],
)
def test_number_cells(tmp_path: Path, text: str, number: float | None) -> None:
    path = tmp_path / "result_1.csv"
    path.write_text(f"Index,NPUDump,TensorIndex,CosineSimilarity,MaxAbsoluteError\n7,a,a:input:1,{text},nan\n")
    (read,) = read_result(str(path))
    assert read.cosine == number
    assert read.max_absolute_error is not None
    assert isnan(read.max_absolute_error)  # small letters: the data gave it
    assert (read.index, read.op_name, read.slot, read.line) == (7, "a", "input:1", 2)


# --- a place that cannot be written ---------------------------------------------------------------------------------


def test_a_failed_write_leaves_nothing_and_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result_1.csv"
    path.write_text("before")

    def no_space(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OutputError, match=r"result_1\.csv: cannot be written \(No space left on device\)") as caught:
        write_result(str(path), [row(result=metrics())])
    assert "--work" in caught.value.hint
    assert [entry.name for entry in tmp_path.iterdir()] == ["result_1.csv"]
    assert path.read_text() == "before"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ZeroDivisionError()])
def test_what_stops_the_writing_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def stop(*_: object, **__: object) -> list[str]:
        raise error

    monkeypatch.setattr(column_table.Column, "cell", stop)
    with pytest.raises(type(error)):
        write_result(str(tmp_path / "result_1.csv"), [row()])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "result_1.csv", tmp_path):
        with pytest.raises(OutputError, match="cannot be written"):
            write_result(str(path), [])
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


# --- looking for results --------------------------------------------------------------------------------------------


def test_the_newest_comparison_is_found_whatever_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError, match="no comparison result below this folder"):
        find_results(str(tmp_path))
    base = tmp_path / "temp" / "vector_compare"
    names = ("20260101000000/result_20260101000000.csv", "20260301000000/0_m_0_result_20260301000000.csv",
             "20260301000000/1_m_0_result_20260301000000.csv", "20260201000000/result_20260201000000.csv",
             "20260401000000/notes.csv", "20260401000000/.result_20260401000000.csv.part")  # fmt: skip
    for name in names:
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).touch()
    for folder in (tmp_path, base.parent, base, base / "20260301000000"):
        assert find_results(str(folder)) == [str(base / name) for name in names[1:3]]
    assert find_results(str(base / "20260201000000")) == [str(base / names[3])]
    assert find_results(str(base / names[4])) == [str(base / names[4])]  # a file is taken at its word
    with pytest.raises(FormatError, match="no comparison result"):
        read_result(str(base / names[4]))
    with pytest.raises(DataNotFoundError, match=r"result_9\.csv"):
        find_results(str(tmp_path / "result_9.csv"))


# --- names and numbers of a row -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "shown"), [(1, 1), (32, 32), (33, 31), (400, 31)])
def test_many_names_are_listed_once_in_a_group_and_lost_nowhere(tmp_path: Path, count: int, shown: int) -> None:
    path = tmp_path / "result_1.csv"
    names = [f"op{number}" for number in range(count)]
    many = row(result=metrics(), golden_names=",".join(names))
    write_result(str(path), [many, many])
    with path.open(encoding="utf-8", newline="") as file:
        line, other = csv.DictReader(file)
    assert line["GroundTruth"].split(",") == line["OriginalOps"].split(",") == names
    rest = [f"… (+{count - shown} more)"] if count > shown else []
    assert other["GroundTruth"].split(",") == other["OriginalOps"].split(",") == [*names[:shown], *rest]
    for read in read_result(str(path)):
        assert read.golden_ops == read.original_ops == tuple(names)
        assert row_json(read, ColumnChoice())["left_out"] == {"npu_ops": 0, "benchmark_ops": 0, "original_ops": 0}
    # A file of an older release gives a part in every row.
    path.write_text(path.read_text("utf-8").replace(",".join(names), other["GroundTruth"]), "utf-8")
    read, _ = read_result(str(path))
    assert joined(read.golden_ops, read.unlisted[1]) == joined(many.golden_ops) == other["GroundTruth"]
    assert read.golden_ops == read.original_ops == tuple(names[:shown])
    left_out = count - shown
    assert row_json(read, ColumnChoice())["left_out"] == {
        "npu_ops": 0, "benchmark_ops": left_out, "original_ops": left_out
    }  # fmt: skip
    assert row_json(many, ColumnChoice())["benchmark_ops"] == tuple(names)
    # The vendor's files list all.
    path.write_text(path.read_text("utf-8").replace(other["GroundTruth"], ",".join(names)), "utf-8")
    assert all(read.golden_ops == tuple(names) for read in read_result(str(path)))


def test_a_part_of_a_list_is_completed_by_that_list_alone(tmp_path: Path) -> None:
    """Not by one of another group, or one that begins alike."""
    lists = [[f"op{number}" for number in range(size)] for size in (40, 41)]
    others = [f"op{number}" for number in range(39)] + ["other"]
    many = [row(result=metrics(), golden_names=",".join(names)) for names in (*lists, others, *lists, others)]
    many[4] = replace(many[4], pair=replace(many[4].pair, index=many[4].index + 1))
    write_result(str(tmp_path / "result_1.csv"), many)
    read = read_result(str(tmp_path / "result_1.csv"))
    assert [one.golden_ops for one in read] == [one.golden_ops for one in many]


def test_the_numbers_of_a_row_come_back_under_the_same_names(tmp_path: Path) -> None:
    path = tmp_path / "result_1.csv"
    rows = [
        row(result=metrics(max_error_index=(1, 0), npu_at_max_error=2.5, golden_at_max_error=-inf)),
        row(result=metrics(nan, inf, max_error_index=(1,), non_finite_mismatches=2, first_mismatch_index=(1,))),
        row(result=None, status=Status.NO_BENCHMARK, note="why"),
        row(result=metrics(1.0, 0.0, both_zero=True)),
        row(result=metrics(1.0, 0.5, is_scalar=True), note="This tensor is scalar."),
    ]
    write_result(str(path), rows)
    for given_row, found in zip(rows, read_result(str(path)), strict=True):
        expected, numbers = row_json(given_row, ColumnChoice()), row_json(found, ColumnChoice())
        assert list(expected) == list(numbers)
        for part in ("metrics", "npu", "golden"):
            exact, read = expected[part], numbers[part]
            assert (exact is None) == (read is None)
            if exact is None:
                continue
            assert list(read) == list(exact)
            for name in exact.keys() - {"count"}:
                if read[name] is None:
                    assert exact[name] is None or exact["max_error_index"] is None
                else:
                    assert read[name] == pytest.approx(exact[name], abs=5.1e-7, nan_ok=True), name
        for name in ("is_scalar", "golden_tensor", "shape", "max_error_index"):
            assert getattr(found, name) == getattr(given_row, name), name
        for name in ("npu_type", "benchmark_type"):
            assert numbers[name] == expected[name], name
    assert [found.is_scalar for found in read_result(str(path))] == [False] * 4 + [True]


def test_an_op_called_scalar_is_none(tmp_path: Path) -> None:
    path = tmp_path / "result_1.csv"
    written(path, row(result=metrics(), name="scalar_add", note="scalar_add: first of 3"))
    assert not read_result(str(path))[0].is_scalar


def test_a_file_of_the_vendor_tells_mean_and_deviation_in_one_cell(tmp_path: Path) -> None:
    path = tmp_path / "result_20261122120000.csv"
    path.write_text(
        "Index,NPUDump,GroundTruth,TensorIndex,CosineSimilarity,StandardDeviation,CompareFailReason\n"
        '3,conv,conv,conv:output:0,0.5,"(0.502;0.290),(-1.250;2.000)",\n'
        '4,relu,relu,relu:output:0,0.5,"(0.502;0.290),(many;2.000)",\n'
        "5,add\n"
    )
    with pytest.raises(FormatError, match=r"line 4 cannot be read: it ends before the CosineSimilarity column"):
        read_result(str(path))
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    conv, relu = read_result(str(path)).rows
    assert conv.npu is not None and conv.golden is not None  # noqa: PT018 - for mypy
    assert (conv.npu.mean, conv.npu.std, conv.golden.mean, conv.golden.std) == (0.502, 0.29, -1.25, 2.0)
    assert "npu.minimum" in conv.absent
    assert "npu.mean" not in conv.absent
    assert relu.damaged == (("StandardDeviation", "many"),)
    assert relu.golden is not None
    assert "golden.mean" in relu.absent
    assert relu.golden.std == 2.0


def test_a_cell_that_is_no_number_is_named(tmp_path: Path) -> None:
    path = tmp_path / "result_1.csv"
    path.write_text("Index,NPUDump,TensorIndex,Shape,CosineSimilarity,MeanRelativeError\n7,a,a:input:1,[x],1.0,much\n")
    (read,) = read_result(str(path))
    assert read.shape is None
    with pytest.raises(
        FormatError, match="line 2 of the result file: MeanRelativeError is no number: 'much'"
    ) as caught:
        row_json(read, ColumnChoice(), str(path))
    assert caught.value.place == {
        "path": str(path), "offset": None, "line": 2, "reason": "MeanRelativeError is no number: 'much'"
    }  # fmt: skip


# --- columns that options choose ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CosineSimilarity", ("CosineSimilarity",)),
        ("1, 0", ("MaxAbsoluteError", "CosineSimilarity")),  # in the order asked for, as the vendor's
        ("meanrelativeerror,9,9", ("MeanRelativeError",)),
        ("all", METRIC_COLUMNS),
        ("9,all", ("MeanRelativeError", *(name for name in METRIC_COLUMNS if name != "MeanRelativeError"))),
    ],
)
def test_metrics_are_named_or_numbered(text: str, expected: tuple[str, ...]) -> None:
    assert parse_metrics(text) == expected


@pytest.mark.parametrize("text", [str(len(METRIC_COLUMNS)), "-1", "Cosine", "0;1", "", " , "])
def test_metrics_that_are_not_known(text: str) -> None:
    with pytest.raises(UsageError, match="--algorithm") as caught:
        parse_metrics(text)
    assert "CosineSimilarity" in caught.value.hint


def test_chosen_columns_stand_where_the_vendors_do() -> None:
    choice = ColumnChoice(
        sequence=True, overflow=True, metrics=("CosineSimilarity", "MaxRelativeError"), custom=("own",)
    )
    header, plain = headers(columns_of(choice)), headers(columns_of(ColumnChoice()))
    assert header[:2] == ["Index", "OpSequence"]
    assert header[2:10] == plain[1:9]
    assert header[10:15] == ["OverFlow", "CosineSimilarity", "MaxRelativeError", "own", "CompareFailReason"]
    assert header[15:] == plain[plain.index("CompareFailReason") + 1 :]


def test_chosen_columns_are_read_back(tmp_path: Path) -> None:
    """Whatever was asked for; the cosine is there even if it was not."""
    path = tmp_path / "result_1.csv"
    choice = ColumnChoice(
        sequence=True, overflow=True, metrics=("MaxAbsoluteError", "StandardDeviation"), custom=("one", "two")
    )
    rows = [
        replace(row(result=metrics()), overflow=True, custom={"one": -0.5, "two": "=1+1"}),
        replace(row(result=metrics(0.123456789, 2.0)), overflow=False, custom={"one": nan, "two": None}),
        replace(row(result=metrics(), dtype="float32"), custom={"one": 7, "two": "-"}),
        row(result=None, status=Status.NO_BENCHMARK, note="why"),
    ]
    rows = [replace(one, pair=replace(one.pair, sequence=40 + at)) for at, one in enumerate(rows)]
    write_result(str(path), rows, choice)
    header, lines = table(path)
    assert "MeanAbsoluteError" not in header
    assert header[-1] == "Cosine"
    assert [line[header.index("OverFlow")] for line in lines] == ["YES", "NO", "NaN", "NaN"]
    assert [line[header.index("one")] for line in lines] == ["-0.5", "nan", "7", "NaN"]
    assert [line[header.index("two")] for line in lines] == ["'=1+1", "NaN", "'-", "NaN"]
    read = read_result(str(path))
    for found, given_row in zip(read, rows, strict=True):
        fresh = row_json(given_row, choice)
        assert (found.pair.sequence, found.overflow) == (fresh["sequence"], fresh["overflow"])
        assert list(found.custom) == ["one", "two"]
        for name, value in fresh["custom"].items():
            assert found.custom[name] == (pytest.approx(value, nan_ok=True) if isinstance(value, float) else value)
        known, numbers = fresh["metrics"], row_json(found, read.choice)["metrics"]
        assert (known is None) == (numbers is None)
        if known is not None and numbers is not None:
            assert numbers["cosine"] == pytest.approx(known["cosine"], abs=5.1e-7)
            assert {name for name, value in known.items() if value is not None} >= {"cosine", "max_absolute_error"}
            for name in ("mean_relative_error", "kullback_leibler_divergence", "relative_euclidean_distance"):
                assert known[name] is numbers[name] is None
    assert [found.cosine for found in read] == [0.75, 0.123457, 0.75, None]


def test_a_table_of_worst_elements_is_no_result(tmp_path: Path) -> None:
    """Though the op may be called so."""
    for name in ("result_op_output_0_absolute_error_topn.csv", "mapping_20260101000000.csv"):
        (tmp_path / name).write_text("x")
    with pytest.raises(DataNotFoundError):
        find_results(str(tmp_path))


def several_rows() -> list[Row]:
    many = ",".join(f"scope/{number}" for number in range(300))
    names = ["op", 'say "hi", twice', "two\nlines", "-1+1", "卷积"]
    rows = [row(index=number, name=name, result=metrics(0.5 + number)) for number, name in enumerate(names)]
    return [*rows, row(index=9, golden_names=many, result=metrics()), row(index=10, note="why, so", dtype="int8")]


@pytest.mark.parametrize("address", [False, True])
def test_own_errors_are_added_to_what_was_written(tmp_path: Path, address: bool) -> None:
    """The file is to the byte what writing all of it gives."""
    before = several_rows()
    after = [replace(one, own_error=None if number % 3 else 0.1 * number) for number, one in enumerate(before)]
    paths = [tmp_path / "result_1.csv", tmp_path / "result_2.csv"]
    write_result(str(paths[0]), before, ColumnChoice(golden_address=address))
    choice = ColumnChoice(golden_address=address, own_error=True)
    write_own_errors(str(paths[0]), after, choice)
    write_result(str(paths[1]), after, choice)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert "0.6" in paths[0].read_text("utf-8")
    assert [one.own_error for one in read_result(str(paths[0])).rows][3] == pytest.approx(0.3)


@pytest.mark.parametrize("found", ["", "Index,OpType\r\n1,Add\r\n", "short", "longer", "sorted", "\xff"])
def test_own_errors_of_a_file_that_is_another(tmp_path: Path, found: str) -> None:
    """It is made anew."""
    rows = [replace(one, own_error=0.25) for one in several_rows()]
    path, other = tmp_path / "result_1.csv", tmp_path / "result_2.csv"
    if found in ("short", "longer"):
        write_result(str(path), rows[:-1] if found == "short" else [*rows, rows[0]], ColumnChoice())
    elif found == "sorted":
        write_result(str(path), rows[::-1], ColumnChoice())
    elif found:
        path.write_bytes(found.encode("latin-1"))
    write_own_errors(str(path), rows, ColumnChoice(own_error=True))
    write_result(str(other), rows, ColumnChoice(own_error=True))
    assert path.read_bytes() == other.read_bytes()


def test_the_mapping_table(tmp_path: Path) -> None:
    path = tmp_path / "mapping_1.csv"
    pairs = [
        row().pair,
        replace(row(slot="", name="-gone", golden_names="a,b").pair, npu=None, golden=None, sequence=5),
    ]
    write_mapping(str(path), pairs)
    header, lines = table(path)
    assert header == ["Index", "OpType", "NPUDump", "GroundTruth", "TensorIndex", "NPUDumpPath", "GroundTruthPath"]
    assert lines == [
        ["3", "Add", "op", "op", "op:output:0", "file", "file"],
        ["3", "Add", "'-gone", "a,b", "NaN", "NaN", "NaN"],
    ]
    write_mapping(str(path), pairs, sequence=True)
    header, lines = table(path)
    assert header[:3] == ["Index", "OpSequence", "OpType"]
    assert [line[1] for line in lines] == ["NaN", "5"]


def without_tensors() -> list[Row]:
    """Rows of ops without a dump, one after the other; and such rows with one thing more."""
    rows = []
    statuses = (Status.NO_BENCHMARK, Status.NO_BENCHMARK, Status.NO_NPU_DUMP)
    for number, (name, status) in enumerate(zip(("/Relu/1", "/Tanh/2", "scope/Add"), statuses, strict=True)):
        pair = Pair(
            index=number, op_name=name, op_type=f"Type{number}", npu_ops=(name,), golden_ops=(f"{name}_there",),
            status=status, pass_names=("APass",) * number, original_names=(name,) * number, sequence=number,
        )  # fmt: skip
        rows.append(Row(pair=pair, reason=Message("text", text=name)))
    more: list[dict[str, Any]] = [
        {"golden_tensor": f"{name}:0"} for name in ("/Sin/1", "/Cos/2")
    ] + [{"shape": (2, 3)}, {"npu_ops": ("*",), "golden_tensor": "/Cos/3"}]  # fmt: skip
    rows += [replace(rows[0], pair=replace(rows[0].pair, **fields)) for fields in more]
    more = [{"npu_dtype": "int8"}, {"golden_dtype": "bool"}, {"overflow": True}, {"own_error": 0.5}, {"line": 7}]
    return [*rows, *(replace(rows[1], **fields) for fields in more), rows[2]]


@pytest.mark.parametrize("golden_address", [False, True])
@pytest.mark.parametrize("own_error", [False, True])
@pytest.mark.parametrize("h5", [False, True])
def test_cells_of_a_row_are_those_of_its_columns(golden_address: bool, own_error: bool, h5: bool) -> None:
    choice = ColumnChoice(
        golden_address=golden_address, own_error=own_error, overflow=True, sequence=True, custom=("mine",), h5=h5
    )
    full = row(result=metrics(1 / 3, 1e20, max_error_index=(1, 0), npu_at_max_error=-nan, golden_at_max_error=-1e-9))
    exact = replace(SIDE, minimum=-(2**63), maximum=2**63 + 1, mean=inf, std=nan)
    rows = [
        full,
        replace(full, npu=exact, golden=exact, own_error=1.5),
        replace(full, absent=frozenset({"metrics.max_absolute_error", "npu.minimum", "pair.status"})),
        replace(full, npu=None, golden=None, custom={"mine": "=1"}, overflow=True),
        replace(full, reason=Message("text", text="'=1+1"), custom={"mine": 2}),
        row(result=metrics(), dtype="bool", golden_dtype="bool"),
        row(status=Status.NO_BENCHMARK, note="+no", name="-op"),
        *without_tensors(),
    ]
    columns = columns_of(choice)
    cells = cells_of(columns, choice)
    for one in rows:
        assert cells(one) == [column.cell(one, choice) for column in columns]
    if h5:
        return
    side = columns.index(next(column for column in columns if column.name == "NPUMin"))
    assert cells(rows[1])[side : side + 4] == ["-9.22337204e+18", "9.22337204e+18", "inf", "nan"]
