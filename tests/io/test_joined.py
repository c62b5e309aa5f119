"""Tensors joined of slices: the same bytes as of the whole, and what cannot be joined."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ffts_files import slicing_text
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_tool.lib.compare.tensor_reader import same_range
from precision_tool.lib.io.ge_dump import parse_slicing
from precision_tool.lib.io.tensor_bytes import joined, open_bytes
from precision_tool.lib.model.tensor import Tensor


def part(folder: Path, number: int, array: np.ndarray, before: int = 3, dtype: str = "") -> Tensor:
    """An array in a file, with some bytes before it."""
    path = folder / f"part{number}.bin"
    path.write_bytes(b"\xff" * before + np.ascontiguousarray(array).tobytes())
    name = dtype or array.dtype.name
    return Tensor(path=str(path), offset=before, nbytes=array.nbytes, dtype=name, shape=array.shape)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_range_of_it_is_that_of_the_whole(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    axis = data.draw(st.integers(0, len(shape) - 1))
    lengths = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=4).filter(any))
    dtype = data.draw(st.sampled_from(["float32", "int8", "float64"]))
    folder = tmp_path_factory.mktemp("parts")
    arrays = []
    for number, length in enumerate(lengths):
        size = (*shape[:axis], length, *shape[axis + 1 :])
        arrays.append((np.arange(np.prod(size)) + 100 * number).astype(dtype).reshape(size))
    whole = np.concatenate(arrays, axis)
    parts = tuple(part(folder, number, array) for number, array in enumerate(arrays))
    tensor = joined(parts, axis, data.draw(st.integers(0, 3)))
    assert tensor is not None
    assert (tensor.shape, tensor.nbytes) == (whole.shape, whole.nbytes)
    assert tensor.offset not in {one.offset for one in parts}
    start = data.draw(st.integers(0, whole.nbytes))
    stop = data.draw(st.integers(start, whole.nbytes))
    with open_bytes(tensor) as file:
        assert file.read_at(tensor.offset + start, stop - start) == whole.tobytes()[start:stop]
        assert file.read_at(tensor.offset, whole.nbytes) == whole.tobytes()


def test_many_rows_of_small_pieces(tmp_path: Path) -> None:
    arrays = [
        np.random.default_rng(number).standard_normal((70000, 2 + number)).astype(np.float32) for number in (0, 1)
    ]
    tensor = joined(tuple(part(tmp_path, number, array) for number, array in enumerate(arrays)), 1, 0)
    assert tensor is not None
    whole = np.concatenate(arrays, 1).tobytes()
    with open_bytes(tensor) as file:
        assert file.read_at(tensor.offset, len(whole)) == whole
        assert file.read_at(tensor.offset + 1234567, 99999) == whole[1234567 : 1234567 + 99999]


def test_a_range_of_two_joined_tensors_is_compared(tmp_path: Path) -> None:
    """As large ones are, part by part: each part is read where it stands, not from the beginning."""
    one, other = np.arange(40, dtype=np.float32).reshape(4, 10), np.arange(40, dtype=np.float32).reshape(4, 10)
    other[3, 9] += 1
    tensors = []
    for name, whole in (("one", one), ("other", other)):
        (tmp_path / name).mkdir()
        parts = (part(tmp_path / name, number, half) for number, half in enumerate(np.split(whole, 2, 1)))
        tensors.append(joined(tuple(parts), 1, 0))
    left, right = tensors
    assert left is not None
    assert right is not None
    assert same_range(left, 0, right, 0, 80)
    assert same_range(left, 80, right, 80, 76)
    assert not same_range(left, 80, right, 80, 80)


def test_what_cannot_be_joined(tmp_path: Path) -> None:
    one, other = np.zeros((2, 3), np.float32), np.zeros((2, 4), np.float32)
    assert joined((part(tmp_path, 0, one), part(tmp_path, 1, other)), 0, 0) is None
    assert joined((part(tmp_path, 0, one), part(tmp_path, 1, one)), 2, 0) is None
    assert joined((part(tmp_path, 0, one), part(tmp_path, 1, one, dtype="int32")), 0, 0) is None
    bits = np.zeros((2, 3), np.uint8)
    assert joined((part(tmp_path, 0, bits, dtype="int4"), part(tmp_path, 1, bits, dtype="int4")), 0, 0) is None


def test_what_the_attribute_says() -> None:
    text = slicing_text(3, [[1, 3], [1]], threaded=True, shapes=[[(2, 5), (4,)]] * 3).encode()
    found = parse_slicing(text)
    assert found is not None
    assert (found.is_threaded, found.count, found.cuts) == (True, 3, ((1, 3), (1,)))
    assert found.shapes == (((2, 5), (4,)),) * 3


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"outputCutList": [[2]]}',
        b"\xff",
        b"[" * 9999,
        b'{"threadMode": 1' + b" " * (5 << 20) + b"}",
    ],
)
def test_what_is_no_such_attribute(text: bytes) -> None:
    assert parse_slicing(text) is None


def test_odd_values_in_it() -> None:
    found = parse_slicing(
        b'{"threadMode": 0, "slice_instance_num": -1, "outputCutList": [["x", 2.5, true, 3], 7], '
        b'"output_tensor_slice": [[[{"lower": 1}]], 5]}'
    )
    assert found is not None
    assert (found.is_threaded, found.count, found.cuts) == (False, None, ((1, 1, 1, 3), ()))
    assert found.shapes == (((-1,),), ())
