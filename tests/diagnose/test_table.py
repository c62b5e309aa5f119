"""The table of all rows, and the result files of leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from precision_tool.lib.compare.result_csv import read_result
from precision_tool.lib.compare.scheduler import THIS_THREAD
from precision_tool.lib.demo.ranks import RanksTruth, generate_ranks
from precision_tool.lib.diagnose.statistics_leaves import NUMBERS, TEXTS, WHOLE, Columns, coded
from precision_tool.lib.diagnose.study import Study, run_study
from precision_tool.lib.diagnose.study_journal import LeafState
from precision_tool.lib.diagnose.study_plan import StudyOptions
from precision_tool.lib.diagnose.study_table import write_table
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import OutputError

Studied = tuple[Path, RanksTruth, Study]


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Studied:
    """A study of two ranks and steps, one rank with a benchmark."""
    root = tmp_path_factory.mktemp("table")
    truth = generate_ranks(root, ranks=2, steps=2, fault="none", benchmark="one")
    (root / "work").mkdir()
    options = StudyOptions(folders=[str(root / folder) for folder in truth.data], csv=True)
    return root, truth, run_study(options, str(root / "work"), THIS_THREAD)


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
