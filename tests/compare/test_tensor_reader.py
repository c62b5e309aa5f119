"""Small tensors that stay in memory for the next pairs: always right, and quick however many there are."""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from precision_tool.lib.compare.tensor_figures import open_reader
from precision_tool.lib.compare.tensor_reader import Budget, OpenTensors
from precision_tool.lib.io.layouts import reading_of
from precision_tool.lib.model.tensor import Tensor


class Ordered(OrderedDict[object, object]):
    """What must not be gone through for each tensor."""

    def items(self) -> NoReturn:
        raise AssertionError("all tensors in memory are looked at")


def test_what_is_in_memory_is_the_tensor_however_often_it_was_filled(tmp_path: Path) -> None:
    content = random.Random(1).randbytes(4000)
    path = tmp_path / "file"
    path.write_bytes(content)
    opened = OpenTensors(replace(Budget(), stored_bytes=256, stored_tensor=100))
    opened._places = Ordered()  # type: ignore[assignment]
    choice = random.Random(2)
    found = 0
    for _ in range(3000):
        start, size = choice.choice([0, 40, 120, 400, 1200, 2400]), choice.randint(1, 110)
        tensor = Tensor(path=str(path), offset=start, nbytes=size, dtype="uint8", shape=(size,))
        opened.keep(tensor)
        stored = opened.stored(tensor)
        assert (stored is None) == (size > 100)
        other = replace(tensor, offset=choice.choice([0, 40, 120, 400, 1200, 2400]))
        for one in (tensor, other):
            stored = opened.stored(one)
            if stored is not None:
                found += one is other
                assert bytes(stored)[: one.nbytes] == content[one.offset : one.offset + one.nbytes]
    assert found > 100


@pytest.mark.parametrize("is_big_endian", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int16", "float32", "float64", "int8", "complex64"])
@pytest.mark.parametrize(
    ("layout", "shape", "origin", "origin_layout"),
    [
        ("NHWC", (3, 5, 7, 20), (3, 5, 7, 20), "NHWC"),
        ("NCHW", (3, 20, 5, 7), (3, 5, 7, 20), "NHWC"),
        ("NC1HWC0", (3, 2, 5, 7, 16), (3, 5, 7, 20), "NHWC"),
        ("NC1HWC0", (3, 2, 5, 7, 16), (3, 20, 5, 7), "NCHW"),
        ("FRACTAL_NZ", (2, 3, 16, 16), (40, 20), "ND"),
    ],
)
def test_a_tensor_in_memory_is_read_as_from_its_file(
    tmp_path: Path,
    layout: str,
    shape: tuple[int, ...],
    origin: tuple[int, ...],
    origin_layout: str,
    dtype: str,
    is_big_endian: bool,
) -> None:
    """Whole, in boxes and in rows; another tensor lies before it in the file and in memory."""
    size = {"int8": 1, "float32": 4, "float64": 8, "complex64": 8}.get(dtype, 2) * int(np.prod(shape))
    path = tmp_path / "file"
    path.write_bytes(random.Random(3).randbytes(12 + size))
    before = Tensor(path=str(path), offset=0, nbytes=12, dtype="int8", shape=(12,))
    tensor = Tensor(
        path=str(path), offset=12, nbytes=size, dtype=dtype, shape=shape, layout=layout, big_endian=is_big_endian,
        origin_shape=origin,
    )  # fmt: skip
    plan = reading_of(tensor, origin_layout, origin).plan
    with open_reader(tensor, plan) as reader, np.errstate(invalid="ignore"):
        apart = np.empty(reader.size, reader.dtype)
        reader.read_box(tuple((0, extent) for extent in reader.logical_shape), apart)
        some = reader.rows([(0, 1), (2, 3)], 3, reader.dtype) if len(shape) > 4 or layout == "NHWC" else None
    with OpenTensors(Budget()) as opened:
        opened.keep(before)
        opened.keep(tensor)
        path.write_bytes(bytes(12 + size))  # what is in memory is not read again
        with open_reader(tensor, plan, opens=opened.open) as reader, np.errstate(invalid="ignore"):
            whole = reader.whole()
            wide = None if reader.dtype.kind != "f" else reader.whole(np.float64)
    assert apart.view(np.uint8).any()
    assert whole.tobytes() == apart.tobytes()
    with np.errstate(invalid="ignore"):
        assert wide is None or np.array_equal(wide.reshape(-1), apart.astype(np.float64), equal_nan=True)
    if some is not None:
        assert some.tobytes() == whole.reshape(3, -1)[[0, 2]].tobytes()
