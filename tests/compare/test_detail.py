"""The files about the worst elements of one tensor, against numpy over the whole tensor."""

from __future__ import annotations

import csv
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import Array, one_op_tree

from precision_tool.lib.compare import folders
from precision_tool.lib.compare.exports import write_detail
from precision_tool.lib.compare.folders import CompareOptions, ComparisonStoppedError, LeafResult, compare_folders
from precision_tool.lib.compare.scheduler import WorkStoppedError
from precision_tool.lib.data.pair_selection import OpNames
from precision_tool.lib.messages.errors import OutputError


def compared(root: Path, npu: Array, golden: Array, layout: str = "ND") -> LeafResult:
    origin = "NHWC" if npu.ndim == 4 else "ND"
    tree = one_op_tree(root, output=npu, golden=golden, layout=layout, origin_layout=origin)
    options = CompareOptions(selection=OpNames(names=("block/add",)), worst=5)
    (result,) = compare_folders(str(tree.root / "npu/debug_0"), str(tree.golden_dir), options=options)
    return result


def rows_of(path: str) -> tuple[list[str], list[list[str]]]:
    with Path(path).open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    return header, rows


@pytest.mark.parametrize("layout", ["NHWC", "NC1HWC0"])
def test_the_worst_elements(tmp_path: Path, layout: str) -> None:
    rng = np.random.default_rng(4)
    golden = rng.standard_normal((2, 3, 5, 20)).astype(np.float32)
    npu = (golden + rng.standard_normal(golden.shape)).astype(np.float32)
    (detail,) = compared(tmp_path, npu, golden, layout=layout).details
    out = tmp_path / "out"
    summary, absolute, relative = write_detail(str(out), detail)
    assert [os.path.basename(path) for path in (summary, absolute, relative)] == [
        "block_add_output_0_summary.txt", "block_add_output_0_absolute_error_topn.csv",
        "block_add_output_0_relative_error_topn.csv",
    ]  # fmt: skip
    assert sorted(entry.name for entry in out.iterdir()) == sorted(map(os.path.basename, (summary, absolute, relative)))
    x, y = npu.astype(float).reshape(-1), golden.astype(float).reshape(-1)
    error = np.abs(x - y)
    for path, keys in ((absolute, error), (relative, error / np.abs(y))):
        header, rows = rows_of(path)
        assert header == ["Index", "Dim0 Dim1 Dim2 Dim3", "NPUDump", "GroundTruth", "AbsoluteError", "RelativeError"]
        expected = np.argsort(-keys)[:5]
        assert [int(row[0]) for row in rows] == expected.tolist()
        assert [row[1] for row in rows] == [
            " ".join(map(str, index)) for index in np.transpose(np.unravel_index(expected, golden.shape))
        ]
        for column, values in zip(range(2, 6), (x, y, error, error / np.abs(y)), strict=True):
            assert [float(row[column]) for row in rows] == pytest.approx(values[expected].tolist(), rel=1e-6)
    facts = dict(line.split(":", 1) for line in Path(summary).read_text("utf-8").splitlines())
    assert facts["TotalCount"] == "600"
    assert (facts["NPUDump"], facts["GroundTruth"]) == ("block/add", "block/add")
    assert facts["Shape"] == "2 3 5 20"
    assert float(facts["MaxAbsoluteError"]) == pytest.approx(error.max(), rel=1e-6)


def test_values_that_are_no_numbers_and_zeros(tmp_path: Path) -> None:
    """What is NaN or Inf on one side only is the worst; a benchmark of 0 has no relative error."""
    npu = np.array([1, np.nan, np.nan, np.inf, 0.5, 3], np.float32)
    golden = np.array([1, np.nan, 2, np.inf, 0, 4], np.float32)
    (detail,) = compared(tmp_path, npu, golden).details
    _, absolute, relative = write_detail(str(tmp_path), detail)
    header, rows = rows_of(absolute)
    assert header[1] == "ID"
    assert [(row[0], row[2], row[3]) for row in rows] == [("2", "nan", "2"), ("5", "3", "4"), ("4", "0.5", "0")]
    assert rows[2][5] == "-"
    assert [row[0] for row in rows_of(relative)[1]] == ["2", "5"]


def test_equal_tensors_have_no_worst_elements(tmp_path: Path) -> None:
    same = np.arange(6, dtype=np.float32)
    (detail,) = compared(tmp_path, same, same).details
    summary, absolute, _ = write_detail(str(tmp_path), detail, "0_model_")
    assert os.path.basename(summary) == "0_model_block_add_output_0_summary.txt"
    assert rows_of(absolute)[1] == []
    assert "EqualCount:6\n" in Path(summary).read_text("utf-8")


def test_long_names_are_cut_and_stay_different(tmp_path: Path) -> None:
    same = np.arange(3, dtype=np.float32)
    (detail,) = compared(tmp_path, same, same + 1).details
    names = set()
    for last in "ab":
        pair = replace(detail.comparison.pair, op_name="卷" * 120 + last)
        paths = write_detail(str(tmp_path), replace(detail, comparison=replace(detail.comparison, pair=pair)))
        assert all(len(os.fsencode(os.path.basename(path))) <= 255 for path in paths)
        names |= set(paths)
    assert len(names) == 6


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (detail,) = compared(tmp_path, np.ones(2, np.float32), np.ones(2, np.float32)).details
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        write_detail(str(tmp_path / "file"), detail)


@pytest.mark.parametrize(
    ("stop", "message", "code"),
    [
        (KeyboardInterrupt(), "stopped: the tensors are compared, but their worst elements are not listed", 130),
        (WorkStoppedError("a worker process died", "fewer", (), exit_code=2), "a worker process died: the tensors", 2),
    ],
)
def test_the_comparison_survives_a_stop_of_the_detail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: BaseException, message: str, code: int
) -> None:
    def stopped(*arguments: object, **options: object) -> None:
        raise stop

    monkeypatch.setattr(folders, "compare_elements", stopped)
    with pytest.raises(ComparisonStoppedError, match=message) as caught:
        compared(tmp_path, np.ones(2, np.float32), np.ones(2, np.float32))
    assert caught.value.exit_code == code
    ((row,),) = (result.rows for result in caught.value.results)
    assert row.metrics is not None
