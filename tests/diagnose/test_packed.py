"""Rows that a study keeps are whole: what a result file says of them is what it says of those that were compared."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
from small_tree import chain, small_tree

from precision_tool import compare
from precision_tool.lib.compare.result_csv import write_result
from precision_tool.lib.diagnose.study_table import columns_of, pack, rows_of, unpack
from precision_tool.lib.model.table import ColumnChoice


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
