"""The figures of a tensor against plain numpy over the whole array, for every type, order and layout."""

from __future__ import annotations

import tracemalloc
from math import inf, isnan, nan
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from builders import Array, dumped
from compiled_kernel import kernel_of
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from precision_tool.lib.compare import tensor_figures, tensor_reader
from precision_tool.lib.compare.tensor_figures import TensorFigures, figures_of
from precision_tool.lib.demo.dump_writer import OutTensor, write_statistics
from precision_tool.lib.io import layouts
from precision_tool.lib.io.npy import read_npy
from precision_tool.lib.io.statistics_csv import read_statistics
from precision_tool.lib.messages.errors import FormatError
from precision_tool.lib.model.tensor import Tensor, TensorStatistics

DUMP_NAME = "Add.op.1.0.1772443800000000"


@pytest.fixture(params=["numpy", "compiled"], autouse=True)
def each_kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test, with both kernels."""
    kernel = kernel_of(request.param)
    monkeypatch.setattr(tensor_figures, "kernel_of_thread", lambda: kernel)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that tensors of some hundred elements are read in many blocks, twice."""
    monkeypatch.setattr(tensor_figures, "_BLOCK", 64)
    monkeypatch.setattr(tensor_figures, "_KEEP", 100)
    monkeypatch.setattr(tensor_reader, "_FLAT_ITEMS", 128)
    monkeypatch.setattr(tensor_reader, "_BOX_ITEMS", 256)


def saved(folder: Path, array: Array) -> Tensor:
    path = folder / "a.npy"
    np.save(path, array, allow_pickle=False)
    return read_npy(str(path))


def check(figures: TensorFigures, values: Array, bins: int = 0, first: int = 0) -> None:
    """`values` are those the tensor stands for, whole and in order."""
    flat = values.reshape(-1)
    if flat.dtype.kind == "c":
        parts = np.stack([flat.real, flat.imag], axis=1).reshape(-1).astype(np.float64)
    else:
        parts = flat.astype(np.float64)
    summary = figures.summary
    finite = parts[np.isfinite(parts)]
    assert summary.count == parts.size
    assert summary.nan_count == np.isnan(parts).sum()
    assert summary.positive_inf_count == (parts == inf).sum()
    assert summary.negative_inf_count == (parts == -inf).sum()
    assert summary.zero_count == (parts == 0).sum()
    if finite.size:
        exact = finite.astype(np.longdouble)  # float64 cannot square every float64
        assert summary.minimum == finite.min()
        assert summary.maximum == finite.max()
        size = float(np.abs(finite).max())
        assert summary.mean == pytest.approx(float(exact.mean()), rel=1e-12, abs=1e-15 * size)
        assert summary.std == pytest.approx(float(exact.std()), rel=1e-9, abs=1e-13 * size)
    else:
        assert all(map(isnan, (summary.minimum, summary.maximum, summary.mean, summary.std)))
    if bins:
        assert len(figures.histogram) == bins
        assert sum(figures.histogram) == finite.size
    np.testing.assert_array_equal(np.array(figures.first), flat[:first].astype(flat.dtype))


@pytest.mark.parametrize(
    "dtype",
    ["float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool",
     "complex64", "complex128", ">f4", ">i2", ">c8"],
)  # fmt: skip
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.usefixtures("tiny")
def test_every_numpy_type(tmp_path: Path, dtype: str, order: str) -> None:
    random = np.random.default_rng(7)
    values = (random.normal(size=(7, 9, 11)) * 20).astype(np.int16).astype(dtype)
    array = np.asfortranarray(values) if order == "F" else values
    check(figures_of(saved(tmp_path, array), bins=8, first=25), values, bins=8, first=25)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (1, 1, 1)])
def test_scalars_and_empty_tensors(tmp_path: Path, shape: tuple[int, ...]) -> None:
    values = np.full(shape, 2.5, np.float32)
    figures = figures_of(saved(tmp_path, values), bins=4, first=20)
    check(figures, values, bins=4, first=20)
    assert figures.histogram == (values.size, 0, 0, 0)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2", "float8_e4m3fn", "int4"])
def test_types_numpy_lacks(tmp_path: Path, name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    values = (np.arange(60) % 13 - 6).astype(np.float32).astype(dtype)
    data = values.tobytes()
    if name == "int4":  # two a byte, the first in the lower half
        codes = values.astype(np.int8).view(np.uint8) & 15
        data = (codes[::2] | codes[1::2] << 4).tobytes()
    tensor = dumped(tmp_path, OutTensor(data=data, dtype=name, shape=(5, 12)))
    check(figures_of(tensor, first=17), values.astype(np.float32), first=17)


@pytest.mark.parametrize(
    ("layout", "origin", "shape"),
    [("NC1HWC0", "NHWC", (2, 5, 3, 19)), ("NC1HWC0", "NCHW", (2, 19, 5, 3)), ("FRACTAL_NZ", "ND", (3, 21, 18)),
     ("FRACTAL_Z", "HWCN", (3, 2, 17, 5))],
)  # fmt: skip
@pytest.mark.usefixtures("tiny")
def test_blocked_layouts_are_read_in_logical_order_without_padding(
    tmp_path: Path, layout: str, origin: str, shape: tuple[int, ...]
) -> None:
    values = np.random.default_rng(3).normal(size=shape).astype(np.float32) + 5  # no value is zero, all padding is
    tensor = dumped(tmp_path, OutTensor.packed(values, layout, origin))
    plan = layouts.plan(layout, tensor.shape, origin, shape)
    for first in (0, 1, 7, 20, 75, values.size + 3):
        figures = figures_of(tensor, plan, bins=10, first=first)
        check(figures, values, bins=10, first=first)
    assert figures.histogram == tuple(np.histogram(values.astype(np.float64), 10)[0])
    stored = figures_of(tensor).summary  # as it lies, padding counts
    assert (stored.count, stored.zero_count) == (tensor.size, tensor.size - values.size)


@pytest.mark.usefixtures("tiny")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=hnp.arrays(
        st.sampled_from(["f2", "f4", "f8"]).map(np.dtype),
        hnp.array_shapes(max_dims=3, min_side=0, max_side=12),
        elements={"allow_subnormal": False},
    ),
    bins=st.integers(1, 9),
)
@example(values=np.array([6e307, 0]), bins=3)  # their product would overflow
def test_any_floats(tmp_path: Path, values: Array, bins: int) -> None:
    with np.errstate(all="ignore"):
        check(figures_of(saved(tmp_path, values), bins=bins, first=5), values, bins=bins, first=5)


@pytest.mark.usefixtures("tiny")
def test_bins_are_numpys(tmp_path: Path) -> None:
    values = np.random.default_rng(5).normal(size=3000)
    values[::7] = nan
    values[1::7] = inf
    figures = figures_of(saved(tmp_path, values), bins=13)
    assert figures.histogram == tuple(np.histogram(values[np.isfinite(values)], 13)[0])
    edges = np.array([-1e308, 1e308, 0.0, 4e307])  # wider than float64's range
    assert figures_of(saved(tmp_path, edges), bins=4).histogram == (1, 0, 2, 1)


@pytest.mark.usefixtures("tiny")
def test_small_spread_beside_a_large_mean(tmp_path: Path) -> None:
    values = (1e7 + np.arange(1000) % 3).astype(np.float32)
    assert figures_of(saved(tmp_path, values)).summary.std == pytest.approx(float(values.astype("f8").std()), rel=1e-9)


def test_long_integers_are_exact(tmp_path: Path) -> None:
    values = np.array([2**62 + 1, -(2**53) - 1, 3])
    figures = figures_of(saved(tmp_path, values), first=3)
    assert figures.first == tuple(values.tolist())
    assert (figures.summary.minimum, figures.summary.maximum) == (-(2**53) - 1, 2**62 + 1)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_integers_are_ints(tmp_path: Path, dtype: str) -> None:
    ends = np.iinfo(dtype)
    figures = figures_of(saved(tmp_path, np.array([7, ends.min, ends.max], dtype)), bins=3, first=3)
    found = (figures.summary.minimum, figures.summary.maximum, *figures.first)
    assert found == (ends.min, ends.max, 7, ends.min, ends.max)
    assert all(type(one) is int for one in found)
    assert isnan(figures_of(saved(tmp_path, np.zeros(0, dtype))).summary.minimum)


def test_statistics_dump_gives_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / f"{DUMP_NAME}.csv"
    values = np.array([[1.0, -4.0, 2.5]], np.float32)
    write_statistics(path, [], [OutTensor(data=values, origin_shape=values.shape)])
    (tensor,) = read_statistics(str(path)).outputs
    assert isinstance(tensor, TensorStatistics)
    figures = figures_of(tensor, bins=4, first=3)
    assert (figures.histogram, figures.first) == ((), ())
    assert (figures.summary.count, figures.summary.minimum, figures.summary.maximum) == (3, -4.0, 2.5)
    assert figures.summary.mean == pytest.approx(-0.5 / 3)
    assert isnan(figures.summary.std)
    assert figures.summary.nan_count == 0


def test_what_has_no_numbers_is_the_users_error(tmp_path: Path) -> None:
    tensor = dumped(tmp_path, OutTensor(data=b"abcdefgh", dtype="string", shape=(1,)))
    with pytest.raises(FormatError, match="no numbers"):
        figures_of(tensor)


def test_memory_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "big.npy"
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f2", "fortran_order": False, "shape": (8 << 20,)})
        file.truncate(file.tell() + (16 << 20))
    tracemalloc.start()
    try:
        assert figures_of(read_npy(str(path)), bins=20, first=5).summary.zero_count == 8 << 20
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("word", "kind"), [("<u4", "<f4"), (">u4", ">f4"), ("<u2", "<f2"), ("<u8", "<c8")])
def test_nans_without_the_quiet_bit_are_counted_without_a_warning(tmp_path: Path, word: str, kind: str) -> None:
    bits = {2: 0x7C01, 4: 0x7F80_0001, 8: 0x7F80_0001_3F80_0000}[np.dtype(kind).itemsize]
    values = np.array([bits] * 5, word).view(kind)
    summary = figures_of(saved(tmp_path, values), bins=3, first=2).summary
    assert summary.nan_count == 5
