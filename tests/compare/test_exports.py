"""Tensors as text that numpy reads back, tables of elements, and how memory stays bounded."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest
from builders import Array, write_dump

from precision_tool.lib.compare.exports import write_elements, write_text
from precision_tool.lib.compare.named_tensors import pair_up, tensors_of_file
from precision_tool.lib.demo.dump_writer import OutTensor
from precision_tool.lib.io.layouts import reading_of
from precision_tool.lib.io.npy import read_npy
from precision_tool.lib.model.tensor import Tensor


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
