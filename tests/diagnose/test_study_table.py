"""The table of all rows, and the result files of leaves."""

from __future__ import annotations

import csv
import io
import zipfile
from dataclasses import replace
from math import inf, nan, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from diagnosing import studied as study_of
from small_tree import chain, small_tree

from precision_tool import compare
from precision_tool.lib.compare.result_csv import read_result, write_result
from precision_tool.lib.demo.ranks import RanksTruth, generate_ranks
from precision_tool.lib.diagnose import study_table
from precision_tool.lib.diagnose.study import Study
from precision_tool.lib.diagnose.study_journal import LeafState
from precision_tool.lib.diagnose.study_table import (
    NUMBERS,
    TEXTS,
    WHOLE,
    Columns,
    Maps,
    Texts,
    coded,
    columns_of,
    pack,
    rows_of,
    unpack,
    write_table,
)
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError, OutputError
from precision_tool.lib.model.table import ColumnChoice

Studied = tuple[Path, RanksTruth, Study]


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Studied:
    """A study of two ranks and steps, one rank with a benchmark."""
    root = tmp_path_factory.mktemp("table")
    truth = generate_ranks(root, ranks=2, steps=2, fault="none", benchmark="one")
    return root, truth, study_of(root / "work", *(root / folder for folder in truth.data), csv=True)


def test_the_table_has_every_row_in_the_order_of_step_rank_and_execution(studied: Studied) -> None:
    _, truth, study = studied
    rows = pq.read_table(study.table).to_pylist()
    assert len(rows) == sum(leaf.rows for leaf in study.leaves)
    assert [(row["step"], row["rank"]) for row in rows] == sorted((row["step"], row["rank"]) for row in rows)
    compared = [row for row in rows if row["status"] == "compared"]
    assert {row["rank"] for row in compared} == {0}
    assert all(0.98 <= row["cosine"] <= 1.0 + 1e-9 for row in compared if not row["scalar"])
    assert all(row["cosine"] is None for row in rows if row["rank"] == 1)
    assert {row["op"] for row in rows} >= set(truth.all_reduces)
    assert any(row["own_error"] is not None for row in rows if row["rank"] == 1)


def test_a_result_file_of_a_leaf_has_the_rows_of_the_table(studied: Studied) -> None:
    _, _, study = studied
    assert len(study.csvs) == 4
    rows = [row for row in pq.read_table(study.table).to_pylist() if (row["step"], row["rank"]) == (0, 0)]
    read = list(read_result(study.csvs[0]))
    assert [(row.op_name, row.slot, row.status) for row in read] == [
        (row["op"], row["slot"], row["status"]) for row in rows
    ]
    for one, row in zip(read, rows, strict=True):
        assert (one.cosine is None) == (row["cosine"] is None)
        assert one.cosine is None or one.cosine == pytest.approx(row["cosine"], abs=1e-6)


def test_a_leaf_that_failed_is_a_row_with_its_reason(studied: Studied, tmp_path: Path) -> None:
    _, _, study = studied
    lost = replace(study.leaves[0], failure=Message("text", text="given up"))
    assert write_table(str(tmp_path / "t.parquet"), [lost], lambda _: None) == 1
    (row,) = pq.read_table(tmp_path / "t.parquet").to_pylist()
    assert (row["step"], row["rank"], row["status"], row["reason"]) == (0, 0, "failed", "given up")


def test_a_table_that_cannot_be_written_is_an_error(studied: Studied) -> None:
    root, _, study = studied
    (root / "file").write_text("")
    with pytest.raises(OutputError):
        write_table(str(root / "file" / "t.parquet"), study.leaves, lambda _: None)


def test_texts_of_leaves_that_have_other_ones_are_told_apart(studied: Studied, tmp_path: Path) -> None:
    """Each leaf has texts of its own behind its codes, and a group of rows has those of several leaves."""
    _, _, study = studied
    given = {leaf.leaf.path: [f"op_{number}", "shared", "na\udc80me"] for number, leaf in enumerate(study.leaves)}

    def read(state: LeafState) -> Columns:
        columns: Columns = {name: coded(["", "", ""]) for name in TEXTS}
        columns |= {name: np.zeros(3, np.int64) for name in WHOLE} | {name: np.full(3, np.nan) for name in NUMBERS}
        return columns | {"op": coded(given[state.leaf.path])}

    path = tmp_path / "t.parquet"
    assert write_table(str(path), study.leaves, read) == 3 * len(study.leaves)
    table = pq.read_table(path)
    told = [name.replace("\udc80", "\\udc80") for leaf in study.leaves for name in given[leaf.leaf.path]]
    assert table["op"].to_pylist() == told
    assert {str(table.schema.field(name).type) for name in ("op", "model", "reason")} == {"string"}


# --- the heat maps of a study: of every op its worst output, by step and by rank ---


def rows(*given: dict[str, Any]) -> Columns:
    usual: dict[str, Any] = {
        "op": "a",
        "slot": "output:0",
        "number": 0,
        "cosine": nan,
        "own_error": nan,
        "mismatches": 0,
        "nan": 0,
    }
    told = [usual | {"inf": 0} | one for one in given]
    texts: Columns = {name: coded([one[name] for one in told]) for name in ("op", "slot")}
    return texts | {name: np.array([one[name] for one in told]) for name in told[0] if name not in texts}


def test_the_worst_output_of_an_op_counts() -> None:
    maps = Maps()
    maps.take(3, 0, rows(
        {"op": "late", "number": 9, "cosine": 0.5},
        {"op": "late", "number": 9, "slot": "input:0", "cosine": 0.0},
        {"op": "first", "number": 1, "cosine": 1.0},
        {"op": "first", "number": 1, "slot": "output:1", "cosine": 0.98},
    ))  # fmt: skip
    by_step, by_rank = maps.maps()
    assert (by_step.what, by_step.places, by_step.ops) == ("step", (3,), ("first", "late"))
    assert by_rank.places == (0,)
    assert by_step.values[0].tolist() == pytest.approx([sqrt(0.04), 1.0])


@pytest.mark.parametrize(
    ("row", "value"),
    [
        ({}, nan),
        ({"cosine": 1.0000001}, 0.0),
        ({"own_error": 0.25}, 0.25),
        ({"own_error": 0.25, "nan": 3}, 0.25),
        ({"nan": 3}, inf),
        ({"inf": 1}, inf),
        ({"cosine": 1.0, "nan": 3}, 0.0),  # the benchmark has them too
        ({"cosine": 1.0, "mismatches": 1}, inf),
    ],
)
def test_how_far_an_op_is_off(row: dict[str, Any], value: float) -> None:
    maps = Maps()
    maps.take(0, 0, rows(row))
    assert maps.maps()[0].values.tolist() == [[pytest.approx(value, nan_ok=True)]]


def test_leaves_of_one_place_and_ops_that_come_later() -> None:
    maps = Maps()
    maps.take(0, 0, rows({"cosine": 0.5}))
    maps.take(0, 1, rows({"cosine": nan}, {"op": "b", "number": 1, "own_error": 0.5}))
    maps.take(1, 1, rows({"cosine": -1.0}))
    by_step, by_rank = maps.maps()
    np.testing.assert_array_equal(by_step.values, np.array([[1.0, 0.5], [2.0, nan]], np.float32))
    np.testing.assert_array_equal(by_rank.values, np.array([[1.0, nan], [2.0, 0.5]], np.float32))


def test_what_was_not_compared_is_told_from_what_was() -> None:
    maps = Maps()
    maps.take(0, 0, rows({"cosine": 0.5}, {"op": "b", "number": 1, "nan": 1}))
    maps.take(0, 1, rows({"own_error": 0.25}, {"op": "b", "number": 1}))
    maps.take(0, 2, rows({"own_error": 3.0}, {"op": "b", "number": 1, "cosine": 0.0, "mismatches": 1}))
    by_step, by_rank = maps.maps()
    assert by_rank.recomputed is not None
    assert by_rank.recomputed.tolist() == [[False, True], [True, False], [True, False]]
    assert by_step.recomputed is not None
    assert by_step.recomputed.tolist() == [[True, False]]  # the worst of all ranks
    assert by_step.to_dict()["recomputed"] == [[0]]


def test_where_an_op_is_worst() -> None:
    """The rank of the worst of a step, and the step of the worst of a rank; ops may come late, and be recomputed."""
    maps = Maps()
    maps.take(0, 0, rows({"op": "a", "cosine": 0.9}))
    maps.take(0, 1, rows({"op": "a", "cosine": 0.5}, {"op": "b", "number": 1, "cosine": 0.9}))
    maps.take(0, 2, rows({"op": "a", "cosine": 0.8}, {"op": "b", "number": 1, "own_error": 3.0}))
    maps.take(7, 1, rows({"op": "b", "number": 1, "cosine": 0.1}))
    by_step, by_rank = maps.maps()
    assert by_step.worst is not None
    assert by_step.worst[0].tolist() == [1, 2]
    assert by_step.worst[1, 1] == 1
    assert by_rank.worst is not None
    assert by_rank.worst[1].tolist() == [0, 7]
    assert by_rank.worst[0, 0] == by_rank.worst[2, 0] == 0


# --- rows that a study keeps are whole: what a result file says of them is what it says of those that were compared ---


def lines_of(path: Path) -> list[list[tuple[str, str]]]:
    """The cells of a result file with their columns, without addresses, which belong to a file and not to a row."""
    with path.open(encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file)
    return [[(name, cell) for name, cell in zip(header, line, strict=True) if name != "Address"] for line in lines]


def test_a_result_file_of_rows_that_were_kept_is_that_of_the_comparison(tmp_path: Path) -> None:
    source, data, first, second, last = chain()
    assert second.output is not None
    assert first.golden is not None
    values = second.output.copy()
    values[[3, 5, 7, 9]] = np.nan, np.inf, -np.inf, 0
    wrong = replace(second, output=values)
    off = replace(first, output=first.golden + np.float32(0.25))
    tree = small_tree(tmp_path, [source, data, off, replace(wrong, inputs=(off,)), replace(last, inputs=(wrong,))])
    (result,) = compare(tree.root / "npu", tree.root / "tf" / "dump", graph=tree.graph)
    write_result(str(tmp_path / "compared.csv"), result.rows, ColumnChoice())
    kept = rows_of(unpack("j.sqlite", pack(columns_of(result.rows))))
    write_result(str(tmp_path / "kept.csv"), kept, ColumnChoice())
    compared = lines_of(tmp_path / "compared.csv")
    assert lines_of(tmp_path / "kept.csv") == compared
    cells = [dict(line) for line in compared]
    (mul,) = [line for line in cells if line["TensorIndex"] == "middle/Mul:output:0"]
    assert [mul[f"NPU{name}"] for name in ("NaN", "PosInf", "NegInf", "Zeros")] == ["1", "1", "1", "1"]
    (add,) = [line for line in cells if line["TensorIndex"] == "first/Add:output:0"]
    assert (add["NPUAtMaxError"], add["GroundTruthAtMaxError"]) == ("5.25", "5")


# --- columns ---


def test_columns_survive_as_they_are() -> None:
    columns: Columns = {
        "op": coded(["a", "b", "a", "\udc80é"]),
        "cosine": np.array([1.0, np.nan, np.inf, -0.0]),
        "number": np.arange(4),
    }
    found = unpack("j.sqlite", pack(columns))
    assert list(found["op"]) == ["a", "b", "a", "\udc80é"]
    assert np.array(found["cosine"]).tobytes() == np.array(columns["cosine"]).tobytes()
    assert set(unpack("j.sqlite", pack(columns), ["op"])) == {"op"}
    with pytest.raises(FormatError):
        unpack("j.sqlite", b"PK\x03\x04 no archive")


@pytest.mark.parametrize(
    "columns",
    [
        {"op": Texts(np.array([0, 1], np.int32), ("a",))},
        {"op": Texts(np.array([-1], np.int32), ("a",))},
        {"op": Texts(np.array([[0]], np.int32), ("a",))},
        {"op": Texts(np.array([0.5]), ("a",))},
        {"op": Texts(np.array([0], np.int32), (7,))},  # type: ignore[arg-type]
    ],
)
def test_texts_that_are_not_there_are_refused(columns: Columns) -> None:
    with pytest.raises(FormatError, match="cannot be read"):
        unpack("j.sqlite", pack(columns))


def test_whole_numbers_take_as_few_bytes_as_they_need_and_come_back_as_they_were() -> None:
    for largest in (100, -100, 300, 70_000, -(2**62), 2**62):
        values = np.random.default_rng(0).permutation(np.linspace(0, largest, 1000, dtype=np.int64))
        packed = pack({"number": values})
        found = unpack("j.sqlite", packed)["number"]
        assert isinstance(found, np.ndarray)
        assert found.dtype == np.int64
        assert np.array_equal(found, values)
        assert len(packed) < 1000 * ((abs(largest) * 2).bit_length() / 8 + 2)


def test_a_claimed_size_is_an_error() -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 50,)})
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("cosine.npy", header.getvalue())
    with pytest.raises(FormatError, match="cannot be read"):
        unpack("j.sqlite", data.getvalue())


def test_a_group_of_rows_that_cannot_be_written_is_an_error(studied: Studied, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups are written by a thread: what fails there fails here, and leaves no file behind."""
    root, _, study = studied
    monkeypatch.setattr(study_table, "_GROUP", 0)
    calls: list[int] = []

    def write(*_: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise OSError("disk full")

    monkeypatch.setattr(study_table, "_write_group", write)
    with pytest.raises((OSError, OutputError), match="disk full"):
        write_table(str(root / "full.parquet"), study.leaves, lambda _: columns_of([]))
    assert len(calls) == 2
    assert not list(root.glob("full*"))


def test_digits_that_nothing_makes_smaller_are_kept_as_they_are() -> None:
    digits, zeros = np.random.default_rng(0).normal(size=20_000), np.zeros(20_000)
    packed = pack({"cosine": digits, "own_error": zeros})
    assert digits.nbytes < len(packed) < 1.01 * digits.nbytes + 5000
    assert np.array_equal(np.asarray(unpack("j.sqlite", packed)["cosine"]), digits)
    assert packed == pack({"cosine": digits, "own_error": zeros})
