"""Tensors as text that numpy reads back, tables of elements and of the worst ones."""

from __future__ import annotations

import csv
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import Array, one_op_tree, write_dump

from precision_tool.lib.compare import folders
from precision_tool.lib.compare.convert import write_text
from precision_tool.lib.compare.element_errors import write_detail, write_elements
from precision_tool.lib.compare.folders import CompareOptions, ComparisonStoppedError, LeafResult, compare_folders
from precision_tool.lib.compare.named_tensors import pair_up, tensors_of_file
from precision_tool.lib.compare.scheduler import WorkStoppedError
from precision_tool.lib.data.pair_selection import OpNames
from precision_tool.lib.demo.dump_writer import OutTensor
from precision_tool.lib.io.layouts import reading_of
from precision_tool.lib.io.npy import read_npy
from precision_tool.lib.messages.errors import OutputError
from precision_tool.lib.model.tensor import Tensor

# --- whole tensors ---


def text_of(folder: Path, tensor: Tensor) -> Path:
    path = folder / "text" / "a.txt"
    write_text(tensor, reading_of(tensor), str(path))
    assert os.listdir(folder / "text") == ["a.txt"]
    return path


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "uint64", "bool", "complex64", ">f4"])
@pytest.mark.parametrize("shape", [(6, 50), (3, 4, 30), (40000,), (20000, 2)])
def test_text_is_read_back_by_numpy(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    values = (np.random.default_rng(1).normal(size=shape) * 50).astype(np.int16).astype(dtype)
    if values.dtype.kind == "f":
        values = (values / 7).astype(dtype)
    np.save(tmp_path / "a.npy", values)
    path = text_of(tmp_path, read_npy(str(tmp_path / "a.npy")))
    kind = np.dtype("complex64") if dtype == "complex64" else np.dtype(dtype if dtype != "bool" else "i1")
    if len(shape) == 1:  # one line: numpy takes it for a row as well
        found = np.array(path.read_text().splitlines()[2].split(), kind.newbyteorder("="))
    else:
        found = np.loadtxt(path, dtype=kind.newbyteorder("="), ndmin=2)
        assert found.shape[-1] == shape[-1]
    np.testing.assert_array_equal(found.reshape(shape), values.astype(kind))


def test_text_of_a_blocked_tensor_is_in_logical_order(tmp_path: Path) -> None:
    values = np.random.default_rng(1).normal(size=(2, 33, 40, 19)).astype(np.float32)
    packed = OutTensor.packed(values, "NC1HWC0", "NHWC")
    dump = write_dump(tmp_path / "Add.op.1.0.1772443800000000", "op", [], [packed])
    (named,) = tensors_of_file(str(dump))
    assert isinstance(named.tensor, Tensor)
    path = text_of(tmp_path, named.tensor)
    np.testing.assert_array_equal(np.loadtxt(path, dtype=np.float32).reshape(values.shape), values)
    assert path.read_text().startswith("# shape (2, 33, 40, 19) float32 NHWC\n# '")


@pytest.mark.parametrize("values", [np.float32(2.5), np.zeros((0, 3)), np.array([np.nan, np.inf, -np.inf])])
def test_text_of_small_tensors(tmp_path: Path, values: Array) -> None:
    np.save(tmp_path / "a.npy", values)
    lines = text_of(tmp_path, read_npy(str(tmp_path / "a.npy"))).read_text().splitlines()
    np.testing.assert_array_equal(np.array(" ".join(lines[2:]).split(), float), np.asarray(values).reshape(-1))


def test_table_of_elements(tmp_path: Path) -> None:
    golden = np.arange(12, dtype=np.float32).reshape(3, 4) - 5
    npu = golden.copy()
    npu[1, 2], npu[2, 3], npu[0, 0], golden[0, 1] = 3, np.nan, -5.25, 0
    for name, array in (("x", npu), ("y", golden)):
        np.save(tmp_path / f"{name}.npy", array)
    (x,), (y,) = (tensors_of_file(str(tmp_path / f"{name}.npy")) for name in "xy")
    write_elements(pair_up(x, y), str(tmp_path / "all.csv"))
    with (tmp_path / "all.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["Index", "NPUDump", "GroundTruth", "AbsoluteError", "RelativeError"]
    assert [row[0] for row in rows] == [f"{i} {j}" for i in range(3) for j in range(4)]
    np.testing.assert_array_equal([float(row[1]) for row in rows], npu.reshape(-1))
    np.testing.assert_array_equal([float(row[2]) for row in rows], golden.reshape(-1))
    np.testing.assert_array_equal([float(row[3]) for row in rows], np.abs(npu - golden).reshape(-1))
    with np.errstate(all="ignore"):
        relative = (np.abs(npu - golden) / np.abs(golden)).reshape(-1)
    for row, one in zip(rows, relative, strict=True):
        assert row[4] == "-" if not np.isfinite(one) else float(row[4]) == pytest.approx(one)


@pytest.mark.parametrize(("dtype", "other"), [("float64", "float64"), ("float32", "float64"), ("int64", "int64")])
def test_every_digit_of_eight_bytes_is_in_the_table(tmp_path: Path, dtype: str, other: str) -> None:
    values = np.array([1 / 3, 2 / 7, 1e300, -0.1]) if dtype != "int64" else np.array([2**62 + 1, -(2**62) - 1, 7, 0])
    with np.errstate(over="ignore"):  # 1e300 is Inf in float32
        npu = values.astype(dtype)
    golden = np.roll(values, 1).astype(other)
    np.save(tmp_path / "x.npy", npu)
    np.save(tmp_path / "y.npy", golden)
    (x,), (y,) = (tensors_of_file(str(tmp_path / f"{name}.npy")) for name in "xy")
    write_elements(pair_up(x, y), str(tmp_path / "all.csv"))
    rows = [line.split(",") for line in (tmp_path / "all.csv").read_text().splitlines()[1:]]
    for column, expected in ((1, npu), (2, golden)):
        np.testing.assert_array_equal(np.array([row[column] for row in rows], expected.dtype), expected)
    if dtype == "float64":
        assert [float(row[3]) for row in rows] == np.abs(npu - golden).tolist()


def test_text_of_complex128_has_every_digit(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([1 / 3 - 2j / 7]))
    line = text_of(tmp_path, read_npy(str(tmp_path / "a.npy"))).read_text().splitlines()[-1]
    assert complex(line) == 1 / 3 - 2j / 7


# --- the worst elements ---


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
