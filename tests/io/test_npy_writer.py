"""The streamed `.npy` writer: any boxes in any order make the file that numpy reads, or none at all."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from precision_tool.lib.io.layouts import split_boxes
from precision_tool.lib.io.npy import NpyWriter
from precision_tool.lib.messages.errors import OutputError


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=hnp.arrays(
        st.sampled_from(["f2", "f4", "i1", "?", "c8"]).map(np.dtype),
        hnp.array_shapes(min_dims=0, min_side=0, max_side=7),
    ),
    limit=st.integers(1, 40),
    seed=st.integers(0, 99),
)
def test_boxes_in_any_order(tmp_path: Path, values: np.ndarray, limit: int, seed: int) -> None:
    boxes = split_boxes(values.shape, (1,) * values.ndim, limit) if values.ndim else [()]
    random.Random(seed).shuffle(boxes)
    path = tmp_path / "a.npy"
    with NpyWriter(str(path), values.dtype, values.shape) as writer:
        for box in boxes:
            writer.write(box, values.shape, values[tuple(slice(*ends) for ends in box)])
        assert values.size == 0 or not any(name == "a.npy" for name in os.listdir(tmp_path))
    found = np.load(path, allow_pickle=False)
    assert (found.shape, found.dtype) == (values.shape, values.dtype)
    np.testing.assert_array_equal(found, values)
    path.unlink()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("dtype", ["i1", "f4", "c16"])
@pytest.mark.parametrize("axes", [1, 30])  # headers of 128 and more bytes
def test_pieces_end_where_pages_do(tmp_path: Path, dtype: str, axes: int) -> None:
    size = (3 << 20) // np.dtype(dtype).itemsize + 5
    values = (np.arange(size) % 97).astype(dtype)
    path = tmp_path / "a.npy"
    with NpyWriter(str(path), values.dtype, (size,) + (1,) * (axes - 1)) as writer:
        pieces = list(writer.pieces(size))
        for start, stop in pieces:
            writer.write(((start, stop),), (size,), values[start:stop])
        assert list(writer.pieces(0)) == []
    np.testing.assert_array_equal(np.load(path).reshape(-1), values)
    header = path.stat().st_size - values.nbytes
    assert [start for start, _ in pieces] == [0, *(stop for _, stop in pieces[:-1])]
    assert pieces[-1][1] == size
    assert all((header + stop * values.itemsize) % (1 << 20) == 0 for _, stop in pieces[:-1])
    assert all((stop - start) * values.itemsize <= 1 << 20 for start, stop in pieces)


def test_boxes_of_another_shape_and_type(tmp_path: Path) -> None:
    values = np.arange(60)
    path = tmp_path / "deep" / "er" / "a.npy"
    with NpyWriter(str(path), np.dtype(np.int8), (3, 20)) as writer:
        writer.write(((30, 60),), (60,), values[30:].astype(np.float32))
        writer.write(((0, 5), (0, 6)), (10, 6), values[:30])
    np.testing.assert_array_equal(np.load(path), values.reshape(3, 20))
    assert np.load(path).dtype == np.int8


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    with pytest.raises(KeyboardInterrupt), NpyWriter(str(path), np.dtype("f4"), (3,)):
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_written_is_the_users_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        NpyWriter(str(tmp_path / "file" / "a.npy"), np.dtype("f4"), (3,))
    (tmp_path / "a.npy").mkdir()
    with pytest.raises(OutputError, match="cannot be written"), NpyWriter(str(tmp_path / "a.npy"), np.dtype("f4"), ()):
        pass
    assert sorted(os.listdir(tmp_path)) == ["a.npy", "file"]
