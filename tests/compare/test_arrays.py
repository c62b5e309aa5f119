"""Tensors as arrays: their values against numpy's own reading, and that no more is read than what is asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from builders import write_dump
from h5_files import write_h5
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tree import chain, small_tree, values

import precision_tool
from precision_tool.lib.compare.arrays import TensorProxy
from precision_tool.lib.demo.dump_writer import OutTensor
from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, UsageError
from precision_tool.lib.session import Session

IMAGES = np.arange(2 * 3 * 5 * 20, dtype=np.float16).reshape(2, 3, 5, 20)


@pytest.fixture
def data(tmp_path: Path) -> Session:
    return precision_tool.open_data(tmp_path)


def dumped(folder: Path, *outputs: npt.NDArray[Any] | OutTensor) -> Path:
    return write_dump(folder / "Add.op.1.0.1772443800000000", "op", [], outputs)


def test_a_blocked_tensor_is_read_without_its_padding(tmp_path: Path, data: Session) -> None:
    path = dumped(tmp_path, OutTensor.packed(IMAGES, "NC1HWC0", "NHWC"))
    proxy = data.tensor(f"{path}:output:0")
    assert (proxy.shape, proxy.ndim, proxy.size, len(proxy)) == ((2, 3, 5, 20), 4, 600, 2)
    assert (proxy.dtype, proxy.stored_type) == (np.dtype(np.float16), "float16")
    assert (proxy.layout, proxy.stored_layout, proxy.stored_shape) == ("NHWC", "NC1HWC0", (2, 2, 3, 5, 16))
    np.testing.assert_array_equal(np.asarray(proxy), IMAGES)
    assert np.asarray(proxy, dtype=np.float64).dtype == np.float64
    assert np.array(proxy).sum(dtype=np.float64) == IMAGES.sum(dtype=np.float64)
    assert np.shares_memory(np.asarray(proxy), np.asarray(proxy)) is False
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":  # before, `copy=False` only asked for it
        with pytest.raises(ValueError, match="without a copy"):
            np.array(proxy, copy=False)


_slices = st.slices(7) | st.integers(-9, 9)


@given(index=st.lists(_slices | st.just(...), max_size=5).map(tuple))
@settings(max_examples=300, deadline=None)
def test_indices_give_what_numpy_gives(index: tuple[Any, ...], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("x")
    array = np.arange(4 * 7 * 20, dtype=np.float32).reshape(1, 4, 7, 20)
    path = dumped(folder, array, OutTensor.packed(array, "NC1HWC0", "NHWC"))
    for proxy in precision_tool.open_data(folder).tensors(str(path)):
        assert proxy.shape == array.shape
        try:
            expected = array[index]
        except IndexError:
            with pytest.raises(IndexError):
                proxy[index]
        else:
            np.testing.assert_array_equal(proxy[index], expected)


@pytest.mark.parametrize("index", [True, [0, 1], np.array([0]), "a", 1.0, None, (0, [1])])
def test_other_indices_are_refused(tmp_path: Path, data: Session, index: Any) -> None:
    dumped(tmp_path, IMAGES)
    with pytest.raises(IndexError):
        data.tensor(f"{tmp_path}/Add.op.1.0.1772443800000000:output:0")[index]


def test_a_part_of_a_large_tensor_reads_a_part_of_the_file(tmp_path: Path, data: Session) -> None:
    path = tmp_path / "big.npy"
    shape = (1 << 16, 1 << 12)  # a gigabyte, sparse on the disk
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
    array[40000, 17] = 5
    array.flush()
    del array
    proxy = data.tensor(str(path))
    assert proxy[40000, 17] == 5
    assert proxy[39999:40001, ::1024].tolist() == [[0] * 4] * 2
    assert proxy[..., :0].shape == (1 << 16, 0)


def test_types_that_numpy_lacks_get_a_wider_one(tmp_path: Path, data: Session) -> None:
    bits = np.array([0x3F80, 0xC000, 0x7FC0], np.uint16)
    nibbles = OutTensor(data=bytes([0x21, 0xF3]), dtype="int4", shape=(4,))
    path = dumped(tmp_path, OutTensor(data=bits.tobytes(), dtype="bfloat16", shape=(3,)), nibbles,
                  np.array([1 + 2j, 3 - 4j], np.complex64), np.array([True, False]), np.array(7, np.int64))  # fmt: skip
    one, two, three, four, five = data.tensors(str(path))
    assert (one.dtype, one.stored_type) == (np.dtype(np.float32), "bfloat16")
    assert np.asarray(one)[:2].tolist() == [1, -2]
    assert np.isnan(one[2])
    assert (two.dtype, two[1:].tolist()) == (np.dtype(np.int8), [2, 3, -1])
    assert (three.dtype, three[1]) == (np.dtype(np.complex64), 3 - 4j)
    assert four[...].tolist() == [True, False]
    assert (np.asarray(five).tolist(), five.dtype) == ([7] if five.shape else 7, np.dtype(np.int64))


def test_an_op_has_its_tensors_with_the_benchmarks_in_the_same_order(tmp_path: Path) -> None:
    truth = generate_demo(tmp_path)
    data = precision_tool.open_data(tmp_path)
    found = {one.slot: one for one in data.tensors(truth.culprit or "")}
    assert list(found) == ["input:0", "input:1", "input:2", "output:0"]
    output = data.tensor(f"{truth.culprit}:output:0")
    assert output.benchmark is not None
    assert output.shape == output.benchmark.shape == (8, 8, 8, 28)
    golden = np.load(output.benchmark.path)
    np.testing.assert_array_equal(np.asarray(output.benchmark), golden)
    x, y = np.asarray(output, np.float64).ravel(), np.asarray(output.benchmark, np.float64).ravel()
    row = next(row for row in data.compare()[0].rows
               if row.tensor_index == f"{truth.culprit}:output:0")  # fmt: skip
    # The comparison sums short rows in float32.
    assert row.cosine == pytest.approx(x @ y / np.linalg.norm(x) / np.linalg.norm(y), abs=1e-6)
    assert "float16" in repr(output)
    assert np.asarray(data.tensor("[17]:output:0")).shape == (8, 8, 8, 28)
    for slot in ("input:0", "input:1", "input:2"):
        mine, its = found[slot], found[slot].benchmark
        assert its is not None
        np.testing.assert_allclose(np.asarray(mine, np.float64), np.asarray(its, np.float64), rtol=2e-3, atol=2e-3)


def test_of_pytorch_dumps(tmp_path: Path) -> None:
    folder = tmp_path / "pt" / "npu"
    folder.mkdir(parents=True)
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    write_h5(folder / "a.h5", {"/Addmm/4/output/result": array})
    data = precision_tool.open_data(tmp_path)
    np.testing.assert_array_equal(np.asarray(data.tensor("/Addmm/4")), array)
    assert data.tensor(f"{folder / 'a.h5'}:/Addmm/4/output/result")[1, 2] == 5


def test_what_cannot_be_had_is_said(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "precision_data", chain())
    data = precision_tool.open_data(tree.root)
    with pytest.raises(UsageError, match=r"middle/Mul: 2 tensors: middle/Mul:input:0, middle/Mul:output:0"):
        data.tensor("middle/Mul")
    with pytest.raises(DataNotFoundError, match="no op 'nothing'"):
        data.tensors("nothing")
    with pytest.raises(DataNotFoundError, match="no output:7"):
        data.tensor("middle/Mul:output:7")
    proxy = data.tensor("middle/Mul:output:0")
    np.testing.assert_array_equal(proxy[:3], values(*range(1, 1025))[:3])
    os.truncate(proxy.path, os.path.getsize(proxy.path) - 8)
    with pytest.raises(FormatError, match=r"cut off|past the end|ends"):
        np.asarray(proxy)
    os.unlink(proxy.path)
    with pytest.raises(DataNotFoundError):
        proxy[0]


def test_a_proxy_is_a_public_type() -> None:
    assert isinstance(TensorProxy.__doc__, str)
    for word in ("shape", "benchmark", "stored_layout", "layout"):
        assert word in TensorProxy.__doc__
