"""Storage layouts against index formulas, element by element.

`PLACE` says where a layout keeps the element of given logical coordinates. The references are made and read with
it in plain loops; nothing of the code under test takes part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from precision_tool.lib.compare import tensor_reader
from precision_tool.lib.compare.tensor_reader import Scratch, TensorReader
from precision_tool.lib.io import layouts
from precision_tool.lib.io.layouts import LayoutError
from precision_tool.lib.model.tensor import Plan, Tensor

Array = npt.NDArray[Any]
Index = tuple[int, ...]
#: Extents of the axes N, C, H, W and D.
Sizes = dict[str, int]

DTYPES = tuple(np.dtype(kind) for kind in ("?", "i1", "u2", "f2", "f4", "f8", "i8", "c8", "c16", ml_dtypes.bfloat16))
PLAIN_4D = ("NCHW", "NHWC", "HWCN")
BLOCKED = ("NC1HWC0", "NDC1HWC0", "FRACTAL_Z")


def convert(array: Array, layout: str, target: str, shape: Index) -> Array:
    """A stored array in another layout. `shape` is its shape in a plain layout: that of `target`, or, when
    `target` is blocked, that of `layout`.

    Every pair of FORMATS.md §2; padding is cut off, or filled with zeros where the target has blocks.
    """
    if layouts.is_plain(target):
        to_plain = layouts.plan(layout, array.shape, target, shape)
        result = np.empty(to_plain.logical_shape, array.dtype)
        layouts.copy_box(to_plain, array.reshape(to_plain.storage_shape), result)
        return result.reshape(shape)
    if math.prod(shape) != array.size:
        raise LayoutError(f"the shape {list(shape)} is not that of {array.size} elements in {layout}")
    to_plain, stored_shape = layouts.blocked_plan(layout, shape, target)
    result = np.zeros(stored_shape, array.dtype)
    layouts.fill_blocks(to_plain, array.reshape(shape), result.reshape(to_plain.storage_shape))
    return result


def place(layout: str, at: Sizes, size: Sizes, c0: int, n0: int = 16) -> Index:
    """Where `layout` stores the element at the logical coordinates `at`."""
    n, c, h, w, d = (at.get(letter, 0) for letter in "NCHWD")
    if layout == "NC1HWC0":
        return n, c // c0, h, w, c % c0
    if layout == "NDC1HWC0":
        return n, d, c // c0, h, w, c % c0
    if layout == "FRACTAL_Z":
        return (c // c0 * size["H"] + h) * size["W"] + w, n // n0, n % n0, c % c0
    return tuple(at[letter] for letter in layout)


def stored_shape(layout: str, size: Sizes, c0: int, n0: int = 16) -> Index:
    n, c, h, w, d = (size.get(letter, 1) for letter in "NCHWD")
    c1, n1 = math.ceil(c / c0), math.ceil(n / n0)
    if layout == "NC1HWC0":
        return n, c1, h, w, c0
    if layout == "NDC1HWC0":
        return n, d, c1, h, w, c0
    if layout == "FRACTAL_Z":
        return c1 * h * w, n1, n0, c0
    return tuple(size[letter] for letter in layout)


def coordinates(size: Sizes) -> Iterator[Sizes]:
    for numbers in product(*(range(extent) for extent in size.values())):
        yield dict(zip(size, numbers, strict=True))


def noise(shape: Index, dtype: np.dtype, seed: int) -> Array:
    """Random bytes as an array: every bit has to arrive, and what is in the padding must not."""
    count = math.prod(shape)
    raw = np.random.default_rng(seed).integers(1, 256, count * dtype.itemsize, np.uint8)
    return (raw % 2 if dtype == np.bool_ else raw).view(dtype).reshape(shape)


def same_bytes(one: Array, two: Array) -> bool:
    return one.shape == two.shape and one.dtype == two.dtype and one.tobytes() == two.tobytes()


@st.composite
def sizes(draw: st.DrawFn, letters: str = "NCHW") -> Sizes:
    """Extents on both sides of a block's border, in little work."""
    extents = {letter: draw(st.integers(1, 4)) for letter in letters}
    for letter in "NC":
        extents[letter] = draw(st.one_of(st.integers(1, 5), st.integers(14, 18), st.integers(31, 34)))
    if extents["N"] * extents["C"] > 300:
        extents |= {"H": min(extents["H"], 2), "W": min(extents["W"], 2)}
    return extents


#: Every conversion of FORMATS.md §2 with four axes. FRACTAL_NZ and five axes have tests of their own.
PAIRS = (
    *((one, two) for one in PLAIN_4D for two in PLAIN_4D if one != two),
    *(("NC1HWC0", target) for target in PLAIN_4D),
    *(("FRACTAL_Z", target) for target in PLAIN_4D),
    *((source, "FRACTAL_Z") for source in PLAIN_4D),
    *((source, "NC1HWC0") for source in PLAIN_4D),
)


@settings(max_examples=25, deadline=None)
@given(size=sizes(), dtype=st.sampled_from(DTYPES), c0=st.sampled_from([4, 8, 16, 32]), seed=st.integers(0, 99))
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_every_pair(source: str, target: str, size: Sizes, dtype: np.dtype, c0: int, seed: int) -> None:
    if target in BLOCKED:
        c0 = 16  # what the tool stores in
    stored = noise(stored_shape(source, size, c0), dtype, seed)
    expected = np.zeros(stored_shape(target, size, c0), dtype)
    for at in coordinates(size):
        expected[place(target, at, size, c0)] = stored[place(source, at, size, c0)]
    plain = source if target in BLOCKED else target
    found = convert(stored, source, target, stored_shape(plain, size, c0))
    assert same_bytes(found, expected)


@settings(max_examples=25, deadline=None)
@given(size=sizes("NCDHW"), dtype=st.sampled_from(DTYPES), c0=st.sampled_from([4, 16]), seed=st.integers(0, 99))
@pytest.mark.parametrize(
    ("source", "target", "order"),
    [
        ("NDC1HWC0", "NCDHW", "NCDHW"),
        ("NDC1HWC0", "NDHWC", "NDHWC"),
        ("NDC1HWC0", "DHWCN", "DHWCN"),
        ("NDC1HWC0", "ND", "NCDHW"),
        ("NCDHW", "NDHWC", "NDHWC"),
        ("NDHWC", "NCDHW", "NCDHW"),
        ("NDHWC", "NDC1HWC0", "NDC1HWC0"),
        ("NCDHW", "NDC1HWC0", "NDC1HWC0"),
    ],
)
def test_five_axes(source: str, target: str, order: str, size: Sizes, dtype: np.dtype, c0: int, seed: int) -> None:
    if target in BLOCKED:
        c0 = 16
    stored = noise(stored_shape(source, size, c0), dtype, seed)
    expected = np.zeros(stored_shape(order, size, c0), dtype)
    for at in coordinates(size):
        expected[place(order, at, size, c0)] = stored[place(source, at, size, c0)]
    shape = stored_shape(source if target in BLOCKED else order, size, c0)
    assert same_bytes(convert(stored, source, target, shape), expected)


def test_an_axis_of_one_that_the_blocked_layout_does_not_have() -> None:
    array = np.arange(2 * 3 * 4 * 5, dtype=np.int16).reshape(2, 1, 3, 4, 5)
    found = convert(array, "NDHWC", "NC1HWC0", array.shape)
    assert found.shape == (2, 1, 3, 4, 16)
    for n, h, w, c in product(range(2), range(3), range(4), range(5)):
        assert found[n, 0, h, w, c] == array[n, 0, h, w, c]
    with pytest.raises(LayoutError, match="no axis D"):
        convert(array.reshape(1, 2, 3, 4, 5), "NDHWC", "NC1HWC0", (1, 2, 3, 4, 5))


def test_nd_of_nc1hwc0_is_nchw() -> None:
    stored = np.arange(1 * 1 * 2 * 3 * 16, dtype=np.float32).reshape(1, 1, 2, 3, 16)
    found = convert(stored, "NC1HWC0", "ND", (1, 5, 2, 3))
    for c, h, w in product(range(5), range(2), range(3)):
        assert found[0, c, h, w] == (h * 3 + w) * 16 + c


@settings(max_examples=25, deadline=None)
@given(size=sizes("NCHWD"), seed=st.integers(0, 9), target=st.sampled_from(["NCDHW", "DHWCN", "NDHWC"]))
def test_fractal_z_3d(size: Sizes, seed: int, target: str) -> None:
    n, c, h, w, d = (size[letter] for letter in "NCHWD")
    c1, n1 = math.ceil(c / 16), math.ceil(n / 16)
    stored = noise((d * c1 * h * w, n1, 16, 16), np.dtype(np.float32), seed)
    expected = np.zeros(stored_shape(target, size, 16), np.float32)
    for at in coordinates(size):
        first = ((at["D"] * c1 + at["C"] // 16) * h + at["H"]) * w + at["W"]
        expected[place(target, at, size, 16)] = stored[first, at["N"] // 16, at["N"] % 16, at["C"] % 16]
    assert same_bytes(convert(stored, "FRACTAL_Z_3D", target, expected.shape), expected)


@settings(max_examples=60, deadline=None)
@given(
    batch=st.lists(st.integers(1, 3), max_size=2),
    rows=st.integers(1, 34),
    columns=st.integers(1, 34),
    n0=st.sampled_from([4, 16]),
    c0=st.sampled_from([8, 16]),
    dtype=st.sampled_from(DTYPES),
    target=st.sampled_from(["ND", "NCHW", "NHWC"]),
    seed=st.integers(0, 99),
)
def test_fractal_nz(
    batch: list[int], rows: int, columns: int, n0: int, c0: int, dtype: np.dtype, target: str, seed: int
) -> None:
    shape = (*batch, rows, columns)
    stored = noise((*batch, math.ceil(columns / c0), math.ceil(rows / n0), n0, c0), dtype, seed)
    expected = np.zeros(shape, dtype)
    for index in product(*(range(extent) for extent in shape)):
        row, column = index[-2:]
        expected[index] = stored[(*index[:-2], column // c0, row // n0, row % n0, column % c0)]
    assert same_bytes(convert(stored, "FRACTAL_NZ", target, shape), expected)
    # A batch that the target merges or splits is the same memory.
    merged = (math.prod(batch), rows, columns)
    assert same_bytes(convert(stored, "FRACTAL_NZ", "ND", merged), expected.reshape(merged))


@pytest.mark.parametrize(
    ("shape", "target", "place_of"),
    [
        ((1, 1, 16, 16), (10,), lambda i: (0, 0, 0, i)),  # one row
        ((3, 1, 16, 16), (40,), lambda i: (i // 16, 0, 0, i % 16)),  # a row over several blocks
        ((1, 3, 16, 16), (40,), lambda i: (0, i // 16, i % 16, 0)),  # a column over several blocks
        ((1, 1, 16, 16), (), lambda i: (0, 0, 0, 0)),  # a scalar
    ],
)
def test_fractal_nz_of_a_vector(shape: Index, target: Index, place_of: Callable[[int], Index]) -> None:
    stored = np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
    found = convert(stored, "FRACTAL_NZ", "ND", target)
    assert found.shape == target
    assert found.reshape(-1).tolist() == [stored[place_of(i)] for i in range(math.prod(target))]


@settings(deadline=None)
@given(shape=st.lists(st.integers(0, 4), max_size=5).map(tuple), seed=st.integers(0, 9))
def test_nd_stays_as_it_lies(shape: Index, seed: int) -> None:
    array = noise(shape, np.dtype(np.float32), seed)
    assert same_bytes(convert(array, "ND", "ND", shape), array)
    assert same_bytes(convert(array, "ND", "ND", (array.size,)), array.reshape(-1))


# ---- shapes that do not fit


@pytest.mark.parametrize(
    ("layout", "stored", "target", "shape"),
    [
        ("NC1HWC0", (1, 1, 2, 2, 16), "NHWC", (1, 2, 2, 17)),  # more channels than are stored
        ("NC1HWC0", (1, 2, 2, 2, 16), "NHWC", (1, 2, 2, 16)),  # a block too many
        ("NC1HWC0", (1, 1, 2, 2, 16), "NHWC", (1, 2, 3, 16)),
        ("NC1HWC0", (1, 1, 2, 2, 16), "NHWC", (2, 2, 16)),  # one axis less
        ("NC1HWC0", (1, 1, 2, 2), "NHWC", (1, 2, 2, 16)),  # not five stored axes
        ("NC1HWC0", (1, 1, 2, 2, 0), "NHWC", (1, 2, 2, 16)),
        ("NC1HWC0", (1, 1, 2, 2, 16), "NCDHW", (1, 16, 2, 2, 2)),
        ("NC1HWC0", (1, 1, 2, 2, 16), "FRACTAL_NZ", (1, 2, 2, 16)),
        ("NC1HWC0", (1, 1, 2, 2, 16), "FRACTAL_Z", (1, 2, 2, 16)),
        ("NC1HWC0", (1, 1, 2, 2, 16), "nonsense", (1, 2, 2, 16)),
        ("NDC1HWC0", (1, 2, 1, 2, 2, 16), "NHWC", (1, 2, 2, 16)),  # depth 2 has no place
        ("FRACTAL_Z", (5, 1, 16, 16), "HWCN", (2, 2, 16, 16)),  # 5 is no multiple of 4
        ("FRACTAL_Z", (4, 1, 16, 16), "HWCN", (2, 2, 17, 16)),
        ("FRACTAL_Z", (4, 1, 16, 16), "HWCN", (2, 2, 16, 17)),
        ("FRACTAL_Z", (4, 1, 16, 16), "HWCN", (2, 0, 16, 16)),
        ("FRACTAL_Z", (4, 16, 16), "HWCN", (2, 2, 16, 16)),
        ("FRACTAL_NZ", (1, 16, 16), "ND", (16, 16)),
        ("FRACTAL_NZ", (1, 1, 16, 16), "ND", (17, 16)),
        ("FRACTAL_NZ", (1, 1, 16, 16), "ND", (16, 17)),
        ("FRACTAL_NZ", (2, 1, 1, 16, 16), "ND", (3, 16, 16)),
        ("FRACTAL_NZ", (2, 1, 1, 16, 16), "ND", (16, 16)),
        ("ND", (4, 5), "ND", (3, 7)),
        ("NCHW", (1, 2, 3, 4), "NHWC", (1, 2, 3, 4)),
        ("NCHW", (1, 2, 3), "NHWC", (1, 2, 3, 4)),
        ("BN_WEIGHT", (16,), "ND", (16,)),
        ("ND", (2, 2), "FRACTAL_Z", (2, 2)),  # ND does not say what the axes are
        ("NCHW", (1, 2, 3, 4), "FRACTAL_Z", (1, 2, 3)),
        ("NCHW", (1, 2, 3, 4), "FRACTAL_Z", (1, 2, 3, 5)),
        ("NC", (2, 3), "NC1HWC0", (2, 3)),
        ("NDHWC", (1, 2, 3, 4, 5), "FRACTAL_Z", (1, 2, 3, 4, 5)),
        ("NCHW", (1, 2, 3, 4), "FRACTAL_NZ", (1, 2, 3, 4)),
        ("NCHW", (1, 2, 3, 4), "FRACTAL_ZZ", (1, 2, 3, 4)),
    ],
)
def test_what_does_not_fit_is_a_layout_error(layout: str, stored: Index, target: str, shape: Index) -> None:
    with pytest.raises(LayoutError) as caught:
        convert(np.zeros(stored, np.float32), layout, target, shape)
    assert str(caught.value)


@settings(max_examples=400, deadline=None)
@given(
    layout=st.sampled_from([*PLAIN_4D, *BLOCKED, "ND", "FRACTAL_NZ", "NC", "NDHWC", "NCDHW", "FRACTAL_ZZ"]),
    target=st.sampled_from([*PLAIN_4D, *BLOCKED, "ND", "FRACTAL_NZ", "NC", "NDHWC", "NCDHW"]),
    stored=st.lists(st.sampled_from([0, 1, 2, 3, 4, 16, 17]), max_size=5).map(tuple),
    shape=st.lists(st.sampled_from([0, 1, 2, 3, 4, 16, 17]), max_size=5).map(tuple),
)
def test_any_nonsense_is_a_layout_error_or_a_result_of_that_shape(
    layout: str, target: str, stored: Index, shape: Index
) -> None:
    try:
        found = convert(np.ones(stored, np.int8), layout, target, shape)
    except LayoutError:
        return
    if layouts.is_plain(target):
        assert found.shape == shape
    assert found.sum() == math.prod(shape)  # every element once; padding that the target has is zero


# ---- the same through files, box by box


def read_by_boxes(path: Path, tensor: Tensor, plan: Plan, limit: int) -> Array:
    """The tensor put together from boxes of about `limit` elements; every element must come exactly once."""
    dtype = np.dtype(np.float64 if tensor.dtype in ("float64", "int64", "complex128") else np.float32)
    reader = TensorReader(tensor, plan, dtype, Scratch(), "npu")
    try:
        result = np.zeros(reader.logical_shape, dtype)
        times = np.zeros(reader.logical_shape, np.int64)
        for box in layouts.split_boxes(reader.logical_shape, reader.granules, limit):
            extents = [stop - start for start, stop in box]
            assert math.prod(extents) <= max(limit, math.prod(reader.granules))
            out = np.full(math.prod(extents), np.nan, dtype)
            reader.read_box(box, out)
            where = tuple(slice(start, stop) for start, stop in box)
            result[where] = out.reshape(extents)
            times[where] += 1
        assert (times == 1).all()
    finally:
        reader.close()
    return result


FILE_DTYPES = {"uint8": "u1", "float16": "f2", "float32": "f4", "int64": "i8", "complex64": "c8", "bfloat16": ""}


def numbers(shape: Index, name: str, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    dtype = np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(FILE_DTYPES[name])
    values = rng.integers(0, 120, shape)
    if name == "complex64":
        return (values + 1j * rng.integers(0, 120, shape)).astype(dtype)
    return values.astype(dtype)


def as_reals(array: Array) -> Array:
    if array.dtype.kind == "c":
        return np.stack([array.real, array.imag], axis=-1)
    return array.astype(np.float64)


@pytest.mark.parametrize("whole_read", [True, False], ids=["read once", "read in runs"])
@pytest.mark.parametrize(
    ("layout", "target"),
    [
        *(("NC1HWC0", target) for target in PLAIN_4D),
        *(("FRACTAL_Z", target) for target in PLAIN_4D),
        ("NCHW", "NHWC"),
        ("HWCN", "NCHW"),
        ("NHWC", "NHWC"),
    ],
)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    size=sizes(),
    name=st.sampled_from([*FILE_DTYPES]),
    limit=st.sampled_from([1, 7, 64, 300, 1 << 20]),
    seed=st.integers(0, 99),
)
def test_boxes_of_a_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole_read: bool,
    layout: str,
    target: str,
    size: Sizes,
    name: str,
    limit: int,
    seed: int,
) -> None:
    if not whole_read:
        monkeypatch.setattr(tensor_reader, "_WHOLE_READ", 0)
    stored = numbers(stored_shape(layout, size, 16), name, seed)
    expected = np.zeros(stored_shape(target, size, 16), stored.dtype)
    for at in coordinates(size):
        expected[place(target, at, size, 16)] = stored[place(layout, at, size, 16)]
    path = tmp_path / "tensor"
    path.write_bytes(b"x" * 13 + stored.tobytes())  # behind something else, and at no round address
    tensor = Tensor(path=str(path), offset=13, nbytes=stored.nbytes, dtype=name, shape=stored.shape, layout=layout)
    plan = layouts.plan(layout, stored.shape, target, expected.shape)
    assert np.array_equal(read_by_boxes(path, tensor, plan, limit), as_reals(expected))
    assert same_bytes(convert(stored, layout, target, expected.shape), expected)


@pytest.mark.parametrize("whole_read", [True, False], ids=["read once", "read in runs"])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    batch=st.lists(st.integers(1, 3), max_size=2),
    rows=st.integers(1, 34),
    columns=st.integers(1, 34),
    name=st.sampled_from([*FILE_DTYPES]),
    limit=st.sampled_from([1, 100, 700, 1 << 20]),
)
def test_boxes_of_fractal_nz(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole_read: bool,
    batch: list[int],
    rows: int,
    columns: int,
    name: str,
    limit: int,
) -> None:
    if not whole_read:
        monkeypatch.setattr(tensor_reader, "_WHOLE_READ", 0)
    shape = (*batch, rows, columns)
    stored = numbers((*batch, math.ceil(columns / 16), math.ceil(rows / 16), 16, 16), name, rows)
    expected = np.zeros(shape, stored.dtype)
    for index in product(*(range(extent) for extent in shape)):
        row, column = index[-2:]
        expected[index] = stored[(*index[:-2], column // 16, row // 16, row % 16, column % 16)]
    path = tmp_path / "tensor"
    path.write_bytes(stored.tobytes())
    tensor = Tensor(path=str(path), offset=0, nbytes=stored.nbytes, dtype=name, shape=stored.shape, layout="FRACTAL_NZ")
    plan = layouts.plan("FRACTAL_NZ", stored.shape, "ND", shape)
    assert np.array_equal(read_by_boxes(path, tensor, plan, limit), as_reals(expected))


@pytest.mark.parametrize("whole_read", [True, False], ids=["read once", "read in runs"])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    shape=st.lists(st.integers(0, 6), max_size=4).map(tuple),
    name=st.sampled_from([*FILE_DTYPES]),
    limit=st.sampled_from([1, 5, 24, 1 << 20]),
    fortran=st.booleans(),
)
def test_boxes_of_either_order(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole_read: bool,
    shape: Index,
    name: str,
    limit: int,
    fortran: bool,
) -> None:
    if not whole_read:
        monkeypatch.setattr(tensor_reader, "_WHOLE_READ", 0)
    array = numbers(shape, name, 3)
    path = tmp_path / "tensor"
    path.write_bytes(array.tobytes("F" if fortran else "C"))
    tensor = Tensor(path=str(path), offset=0, nbytes=array.nbytes, dtype=name, shape=array.shape, fortran_order=fortran)
    plan = layouts.plain_plan(shape, fortran)
    assert plan.is_flat == (not fortran or len(shape) < 2)
    assert np.array_equal(read_by_boxes(path, tensor, plan, limit), as_reals(array))


@pytest.mark.parametrize(("name", "per_byte"), [("int4", 2), ("uint2", 4), ("uint1", 8)])
def test_packed_elements_in_boxes(tmp_path: Path, name: str, per_byte: int) -> None:
    """A box must start on a byte; one that would not is an error, never a shifted tensor."""
    raw = bytes(range(7, 7 + 24))
    bits = 8 // per_byte
    codes = [byte >> (i * bits) & ((1 << bits) - 1) for byte in raw for i in range(per_byte)]
    if name == "int4":
        codes = [code - 16 if code > 7 else code for code in codes]
    if name == "uint1":  # single bits begin with the highest one
        codes = [byte >> (7 - i) & 1 for byte in raw for i in range(8)]
    path = tmp_path / "tensor"
    path.write_bytes(raw)
    tensor = Tensor(path=str(path), offset=0, nbytes=24, dtype=name, shape=(2, 12 * per_byte))
    plan = layouts.plain_plan(tensor.shape)
    assert read_by_boxes(path, tensor, plan, 8).reshape(-1).tolist() == codes
    reader = TensorReader(tensor, plan, np.dtype(np.float32), Scratch(), "npu")
    with pytest.raises(ValueError, match="do not start on a byte"):
        reader.read_flat(1, 3, np.empty(2, np.float32))
    reader.close()


@pytest.mark.parametrize("name", ["int4", "uint1", "float6_e3m2"])
def test_small_types_that_take_a_byte_each(tmp_path: Path, name: str) -> None:
    path = tmp_path / "tensor"
    path.write_bytes(bytes([0, 1, 1, 0, 1]))
    tensor = Tensor(path=str(path), offset=0, nbytes=5, dtype=name, shape=(5,))
    one = 0.0625 if name == "float6_e3m2" else 1
    assert read_by_boxes(path, tensor, layouts.plain_plan((5,)), 2).tolist() == [0, one, one, 0, one]
