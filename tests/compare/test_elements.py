"""Two tensors element by element, against plain numpy in float64 over the whole arrays."""

from __future__ import annotations

import os
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import inf, isnan, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import Array, aligned_pair, dumped
from compiled_kernel import PROCESSORS, compiled_library
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from precision_tool.lib.compare import compiled, element_errors
from precision_tool.lib.compare.element_errors import compare_elements, elements_of
from precision_tool.lib.compare.passes import MetricsPass
from precision_tool.lib.compare.scheduler import THIS_THREAD, Resources, WorkStoppedError
from precision_tool.lib.compare.tensor_reader import Budget
from precision_tool.lib.demo.dump_writer import OutTensor
from precision_tool.lib.io.native.library import ErrorsAsked
from precision_tool.lib.io.npy import read_npy
from precision_tool.lib.model.comparison import Pair
from precision_tool.lib.model.elements import Detail
from precision_tool.lib.model.tensor import Tensor

Doubles = Array
TINY = Budget(block=512, box=1024, kept_items=100, part_bytes=8000, split_bytes=8000)


@pytest.fixture(params=["numpy", "compiled"], autouse=True)
def each_kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test, with both kernels, in all threads."""
    known = compiled_library() if request.param == "compiled" else None
    monkeypatch.setattr(compiled, "library", lambda: known)
    monkeypatch.setattr(compiled, "_local", threading.local())


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that tensors of some thousand elements are read in many boxes and parts, twice."""
    monkeypatch.setattr(element_errors, "_BUDGET", TINY)


def saved_pair(folder: Path, x: Array, y: Array) -> Pair:
    tensors: list[Tensor] = []
    for name, array in (("x", x), ("y", y)):
        path = folder / f"{name}.npy"
        np.save(path, array, allow_pickle=False)
        tensors.append(read_npy(str(path)))
    return aligned_pair(tensors[0], tensors[1])


def compared(pair: Pair, atol: float = 1e-3, rtol: float = 1e-3, shown: int = 5, **options: Any) -> Detail:
    """By one worker; what an executor finds, in parts, is the same but for the order of sums."""
    detail = compare_elements(pair, THIS_THREAD, atol=atol, rtol=rtol, shown=shown, **options)
    with ThreadPoolExecutor(2) as pool:
        shared = compare_elements(pair, Resources(executor=pool), atol=atol, rtol=rtol, shown=shown)
    assert repr(replace(shared, comparison=detail.comparison, axes=detail.axes)) == repr(detail)  # NaN is not NaN
    return detail


@dataclass(frozen=True, eq=False)
class Plain:
    """The same figures by plain formulas."""

    x: Doubles
    y: Doubles

    @property
    def agree(self) -> Array:
        agree: Array = (self.x == self.y) | (np.isnan(self.x) & np.isnan(self.y))
        return agree

    @property
    def error(self) -> Doubles:
        """Infinite where one side only is not finite."""
        with np.errstate(all="ignore"):
            error: Doubles = np.asarray(np.abs(self.x - self.y))
        error[~(np.isfinite(self.x) & np.isfinite(self.y))] = inf
        error[self.agree] = 0
        return error

    @property
    def relative(self) -> Doubles:
        with np.errstate(all="ignore"):
            relative: Doubles = np.asarray(self.error / np.abs(self.y))
        relative[np.abs(self.y) <= 2.2e-16] = 0
        relative[np.isnan(relative) & ~self.agree] = inf
        relative[self.agree] = 0
        return relative


def check(detail: Detail, x: Array, y: Array, rel: float = 1e-6) -> None:
    """`x` and `y` are the values compared, in one order."""
    if x.dtype.kind == "c":
        x, y = (np.stack([side.real, side.imag], axis=-1) for side in (x, y))
    plain = Plain(x.astype(np.float64), y.astype(np.float64))
    atol, rtol, shown = detail.atol, detail.rtol, min(5, x.size)
    assert detail.shape == x.shape
    assert detail.count == x.size
    close = np.isclose(plain.x, plain.y, rtol=rtol, atol=atol, equal_nan=True)
    assert detail.outside == np.count_nonzero(~close)
    assert detail.all_close is bool(close.all())
    assert detail.outside_share == pytest.approx(np.count_nonzero(~close) / x.size)
    assert detail.equal == np.count_nonzero(plain.agree)
    error, relative = plain.error, plain.relative
    for found, keys in ((detail.worst_absolute, error), (detail.worst_relative, relative)):
        wanted = np.sort(keys.reshape(-1))[::-1][:shown]
        wanted = wanted[wanted > 0]
        np.testing.assert_allclose([keys[one.index] for one in found], wanted, rtol=rel)
        assert len({one.index for one in found}) == len(found)
        for one in found:
            np.testing.assert_array_equal([one.npu, one.golden], [plain.x[one.index], plain.y[one.index]])
    for number, one in enumerate(detail.first):
        assert one.index == tuple(int(at) for at in np.unravel_index(number, x.shape))
        np.testing.assert_array_equal([one.npu, one.golden], [plain.x[one.index], plain.y[one.index]])
    assert len(detail.first) == shown
    mismatches = error == inf
    finite = error[~mismatches & (error > 0)]
    assert sum(one.count for one in detail.histogram) == (finite.size if finite.size else 0)
    for each in detail.histogram:  # borders in float32's rounding
        low, high = each.low * (1 + 1e-6), each.high * (1 - 1e-6)
        sure = np.count_nonzero((finite >= low) & (finite < high))
        most = np.count_nonzero((finite >= each.low * (1 - 1e-6)) & (finite < each.high * (1 + 1e-6)))
        assert sure <= each.count <= most
    assert detail.shares_of_mismatches is bool(mismatches.any())
    weights = mismatches.astype(np.float64)
    if not mismatches.any():
        weights = np.square(error / (error.max() or 1))
    if not weights.any():
        assert detail.axes == ()
        return
    assert [one.axis for one in detail.axes] == [axis for axis, extent in enumerate(x.shape) if extent > 1]
    for axis in detail.axes:
        others = tuple(at for at in range(x.ndim) if at != axis.axis)
        shares = weights.sum(axis=others) / weights.sum()
        assert axis.extent == x.shape[axis.axis]
        np.testing.assert_allclose([share for _, share in axis.top], np.sort(shares)[::-1][: len(axis.top)], rtol=1e-4)
        np.testing.assert_allclose([shares[at] for at, _ in axis.top], [share for _, share in axis.top], rtol=1e-4)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3000,), (5, 700), (2, 3, 4, 150), (1, 60, 1, 60), (700, 5)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.usefixtures("tiny")
def test_figures_are_numpys(tmp_path: Path, shape: tuple[int, ...], dtype: str) -> None:
    random = np.random.default_rng(3)
    y = np.asarray(random.normal(size=shape)).astype(dtype)
    x = np.asarray(y + random.normal(size=shape) * 0.01).astype(dtype)
    check(compared(saved_pair(tmp_path, x, y)), x, y)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64", "int64", "bool", "complex64", "complex128"])
@pytest.mark.usefixtures("tiny")
def test_other_types(tmp_path: Path, dtype: str) -> None:
    random = np.random.default_rng(5)
    y = random.integers(0, 100, (40, 60)).astype(dtype)
    x = y.copy()
    x[3, ::7] = y[3, ::7] + y.dtype.type(1)
    if dtype.startswith("complex"):
        x[5] += 2j
    detail = compared(saved_pair(tmp_path, x, y), atol=0.5, rtol=0)
    check(detail, x, y)


def test_errors_of_long_integers_are_exact(tmp_path: Path) -> None:
    y = np.array([2**62, 2**53, -(2**60)])
    x = y + np.array([1, 3, 0])
    detail = compared(saved_pair(tmp_path, x, y), atol=2, rtol=0)
    assert (detail.outside, detail.equal) == (1, 1)
    assert [(one.index, one.error) for one in detail.worst_absolute] == [((1,), 3), ((0,), 1)]


@pytest.mark.usefixtures("tiny")
def test_nan_and_inf(tmp_path: Path) -> None:
    random = np.random.default_rng(9)
    y = random.normal(size=(8, 500)).astype(np.float32)
    x = y + np.float32(0.01) * random.normal(size=y.shape).astype(np.float32)
    x[0, :3] = y[0, :3] = nan, inf, -inf  # agree
    x[2, 100], y[2, 101], x[2, 102], y[2, 102] = nan, nan, inf, -inf  # do not
    x[6, 7] = inf
    detail = compared(saved_pair(tmp_path, x, y), shown=10)
    assert detail.comparison.metrics is not None
    assert detail.comparison.metrics.non_finite_mismatches == 4
    assert {one.index for one in detail.worst_absolute[:4]} == {(2, 100), (2, 101), (2, 102), (6, 7)}
    assert detail.shares_of_mismatches
    assert detail.axes[0].top == ((2, 0.75), (6, 0.25))
    check(replace(detail, first=detail.first[:5], worst_absolute=detail.worst_absolute[:5],
                  worst_relative=detail.worst_relative[:5]), x, y)  # fmt: skip


@pytest.mark.usefixtures("tiny")
def test_the_channel_with_the_error_is_named(tmp_path: Path) -> None:
    y = np.random.default_rng(1).normal(size=(2, 16, 30, 30)).astype(np.float32)
    x = y + np.float32(1e-4)
    x[:, 3] += np.float32(0.5)
    detail = compared(saved_pair(tmp_path, x, y))
    channel = detail.axes[1]
    assert (channel.axis, channel.extent, channel.top[0][0]) == (1, 16, 3)
    assert channel.top[0][1] == pytest.approx(1, abs=1e-5)
    check(detail, x, y)


@pytest.mark.parametrize(
    ("layout", "origin", "shape"),
    [("NC1HWC0", "NCHW", (2, 19, 15, 13)), ("NC1HWC0", "NHWC", (2, 15, 13, 19)), ("FRACTAL_NZ", "ND", (70, 45)),
     ("FRACTAL_Z", "HWCN", (3, 2, 33, 18))],
)  # fmt: skip
@pytest.mark.usefixtures("tiny")
def test_blocked_layouts(tmp_path: Path, layout: str, origin: str, shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(11)
    y = random.normal(size=shape).astype(np.float32)
    x = y + (random.normal(size=shape) * 0.01).astype(np.float32)
    np.save(tmp_path / "y.npy", y)
    npu = dumped(tmp_path, OutTensor.packed(x, layout, origin))
    pair = aligned_pair(npu, read_npy(str(tmp_path / "y.npy")), origin)
    check(compared(pair), x, y)
    seen = np.full(shape, nan)
    for span, values, _, size in elements_of(pair):
        assert size == x.size
        for text, value in zip(span.texts(values.size), values, strict=True):
            seen[tuple(map(int, text.split()))] = value
    np.testing.assert_array_equal(seen, x)


@pytest.mark.usefixtures("tiny")
def test_packed_types_whose_rows_share_bytes(tmp_path: Path) -> None:
    values = (np.arange(33 * 41) % 16 - 8).astype(np.int8).reshape(33, 41)
    codes = np.append(values.reshape(-1).view(np.uint8) & 15, np.uint8(0))
    packed = OutTensor(data=(codes[::2] | codes[1::2] << 4).tobytes(), dtype="int4", shape=(33, 41))
    golden = values.copy()
    golden[20, 3] += 1
    np.save(tmp_path / "y.npy", golden)
    check(compared(aligned_pair(dumped(tmp_path, packed), read_npy(str(tmp_path / "y.npy")))), values, golden)


@pytest.mark.usefixtures("tiny")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.data(),
    shape=hnp.array_shapes(max_dims=3, min_side=1, max_side=14),
    dtype=st.sampled_from(["f2", "f4", "f8"]),
)
def test_any_values(tmp_path: Path, data: st.DataObject, shape: tuple[int, ...], dtype: str) -> None:
    kind = np.dtype(dtype)
    some = st.one_of(
        st.sampled_from([0.0, -0.0, nan, inf, -inf, 1.0, 1.001953125, 1.0009765625]),
        st.floats(-1000, 1000, width=16),
    )
    x, y = (data.draw(hnp.arrays(kind, shape, elements=some)) for _ in range(2))
    check(compared(saved_pair(tmp_path, x, y)), x, y)


@pytest.mark.usefixtures("tiny")
@settings(max_examples=60, deadline=None)
@given(
    size=st.sampled_from([1, 15, 255, 257, 1025, 9000]),
    shift=st.integers(0, 3),
    dtype=st.sampled_from(["float32", "float64"]),
    kind=st.sampled_from(["near", "equal", "far", "huge", "tiny"]),
    seed=st.integers(0, 999),
    room=st.sampled_from([0, 3, 4096]),
    processor=st.sampled_from(sorted(PROCESSORS)),
)
def test_counts_of_errors(size: int, shift: int, dtype: str, kind: str, seed: int, room: int, processor: str) -> None:
    """Of what the compiled kernel counts, on each kind of processor, against numpy."""
    known = compiled_library()
    rng = np.random.default_rng(seed)
    y = rng.normal(0, {"huge": 1e30, "tiny": 1e-40}.get(kind, 1), size + shift).astype(dtype)[shift:]
    y[rng.random(size) < 0.2] = 0
    x = y.copy() if kind == "equal" else (y * (1 + rng.normal(0, 1 if kind == "far" else 1e-4, size))).astype(dtype)
    x[rng.integers(0, size)] += y.dtype.type(np.abs(y).max() + 1e-3)
    error = np.abs(x - y)
    edges = [10.0**power for power in range(3, -9, -1)]
    asked = ErrorsAsked(
        atol=1e-3, rtol=1e-4, rounding=1e-6, zero=2.2e-16, worst=float(np.sort(error)[-min(size, 3)]),
        worst_relative=1e-3, largest=float(error.max()), edge_count=len(edges), room=room,
    )  # fmt: skip
    asked.edges[: len(edges)] = edges
    weights = np.empty_like(x)
    known.functions.pt_use_processor(PROCESSORS[processor])
    counted = compiled.CompiledKernel(known).count_errors(x, y, weights, asked)
    known.functions.pt_use_processor(0)
    assert counted is not None
    found, real = counted.errors, y.dtype.type
    assert found.largest == error.max()
    assert found.nonzero == np.count_nonzero(error)
    assert list(found.at_least[: len(edges)]) == [np.count_nonzero(error >= real(edge)) for edge in edges]
    size_of = np.abs(y)
    wanted = [np.count_nonzero(error.astype(np.longdouble) > s * (1e-4 * size_of.astype(np.longdouble) + 1e-3))
              for s in (1 + 2e-6, 1 + 1e-7, 1 - 1e-7, 1 - 2e-6)]  # fmt: skip
    assert wanted[0] <= found.surely_outside <= wanted[1] <= wanted[2] <= found.maybe_outside <= wanted[3]
    np.testing.assert_array_equal(weights, (error / real(asked.largest)) ** 2)
    worst = np.flatnonzero((error >= real(asked.worst)) & (error > 0))
    relative = np.flatnonzero((error >= real(1e-3) * size_of) & (error > 0) & (size_of > real(2.2e-16)))
    for places, items, number in (
        (counted.worst, worst, found.worst), (counted.worst_relative, relative, found.worst_relative)
    ):  # fmt: skip
        if items.size > room:
            assert places is None
            assert number > room
        else:
            assert places is not None
            np.testing.assert_array_equal(places, items)


def test_tolerance_at_the_border(tmp_path: Path) -> None:
    """Errors equal to what is allowed but for float32's rounding are judged in float64."""
    y = np.full(2000, 0.5, np.float32)
    x = y + np.float32(0.25)
    x[::2] = np.nextafter(x[::2], np.float32(1))
    assert compared(saved_pair(tmp_path, x, y), atol=0.25, rtol=0).outside == 1000
    assert compared(saved_pair(tmp_path, x, y), atol=0, rtol=0.5).outside == 1000


@pytest.mark.usefixtures("tiny")
def test_equal_errors_are_told_in_order(tmp_path: Path) -> None:
    y = np.zeros(5000, np.float32)
    detail = compared(saved_pair(tmp_path, y + 1, y))
    assert [one.index for one in detail.worst_absolute] == [(0,), (1,), (2,), (3,), (4,)]
    assert detail.worst_relative == ()  # the benchmark is zero


def test_equal_errors_are_told_in_order_in_a_blocked_layout_too(tmp_path: Path, tiny: None) -> None:
    """Its boxes are not in the order of the elements, and parts of it are not either."""
    golden = np.zeros((70, 4000), np.float16)
    npu = golden.copy()
    for place in ((1, 3999), (3, 3500), (5, 2), (20, 3900)):
        npu[place] = 1
    np.save(tmp_path / "golden.npy", golden)
    pair = aligned_pair(
        dumped(tmp_path, OutTensor.packed(npu, "FRACTAL_NZ", "ND")), read_npy(str(tmp_path / "golden.npy")), "ND"
    )
    with ThreadPoolExecutor(2) as executor:
        for found in (
            compare_elements(pair, THIS_THREAD, atol=1e-3, rtol=1e-3, shown=2),
            compare_elements(pair, Resources(executor=executor), atol=1e-3, rtol=1e-3, shown=2),
        ):
            assert [one.index for one in found.worst_absolute] == [(1, 3999), (3, 3500)]


@pytest.mark.parametrize("value", [1e-42, 1e-30, 3e38])
def test_extreme_values(tmp_path: Path, value: float) -> None:
    y = np.linspace(-1, 1, 400, dtype=np.float32) * np.float32(value)
    x = -y
    detail = compared(saved_pair(tmp_path, x, y), atol=0, rtol=0.5)
    exact = np.abs(x.astype(np.float64) - y.astype(np.float64))
    assert detail.worst_absolute[0].error == exact.max()
    assert detail.outside == np.count_nonzero(exact > 0.5 * np.abs(y.astype(np.float64)))
    assert detail.axes[0].top[0][1] == pytest.approx(exact.max() ** 2 / (exact**2).sum(), rel=1e-4)


def test_shares_beside_an_error_that_float32_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(element_errors, "_BUDGET", Budget(block=64))
    y = np.zeros((2, 64), np.float32)
    x = y.copy()
    x[0, 3], y[0, 3] = 3e38, -3e38
    x[1, 7] = 3e38  # a quarter of the square of the other, in a block of its own
    rows, columns = compared(saved_pair(tmp_path, x, y)).axes
    for axis, places in ((rows, (0, 1)), (columns, (3, 7))):
        assert tuple(at for at, _ in axis.top) == places
        assert [share for _, share in axis.top] == pytest.approx([0.8, 0.2])


def test_processes_find_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(element_errors, "_BUDGET", replace(TINY, part_bytes=1 << 20))
    random = np.random.default_rng(2)
    y = random.normal(size=(30, 40, 500)).astype(np.float32)
    x = y + (random.normal(size=y.shape) * 0.01).astype(np.float32)
    pair = saved_pair(tmp_path, x, y)
    told: list[tuple[int, int]] = []
    alone = compared(pair)
    shared = compare_elements(
        pair,
        Resources(workers=2, progress=lambda done, total: told.append((done, total))),
        atol=1e-3,
        rtol=1e-3,
        shown=5,
    )
    check(shared, x, y)
    assert (alone.outside, alone.histogram, alone.worst_absolute) == (
        shared.outside, shared.histogram, shared.worst_absolute
    )  # fmt: skip
    assert told[-1][0] == told[-1][1] == 2 * x.nbytes
    assert told == sorted(told)


def test_a_dying_worker_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(element_errors, "_BUDGET", TINY)
    monkeypatch.setattr(MetricsPass, "update", die)
    pair = saved_pair(tmp_path, np.zeros((400, 500)), np.zeros((400, 500)))
    with pytest.raises(WorkStoppedError, match="worker process died"):
        compare_elements(pair, Resources(workers=2), atol=0, rtol=0, shown=1)


def die(*args: object, **options: object) -> None:
    os._exit(1)


def test_empty_tensors(tmp_path: Path) -> None:
    detail = compared(saved_pair(tmp_path, np.zeros((0, 3), "f4"), np.zeros((0, 3), "f4")))
    assert (detail.count, detail.outside, detail.all_close, detail.first) == (0, 0, True, ())
    assert detail.comparison.metrics is None


def test_nothing_shown(tmp_path: Path) -> None:
    x = np.arange(5.0)
    detail = compared(saved_pair(tmp_path, x + 1, x), shown=0)
    assert (detail.first, detail.worst_absolute, detail.worst_relative) == ((), (), ())
    assert detail.outside == 5


def test_metrics_are_those_of_the_engine(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    y = random.normal(size=4000)
    x = y + random.normal(size=4000) * 0.1
    metrics = compared(saved_pair(tmp_path, x, y)).comparison.metrics
    assert metrics is not None
    assert metrics.cosine == pytest.approx(x @ y / np.sqrt((x @ x) * (y @ y)), rel=1e-12)
    assert metrics.max_absolute_error == np.abs(x - y).max()
    assert metrics.root_mean_square_error == pytest.approx(np.sqrt(np.square(x - y).mean()), rel=1e-12)
    assert not isnan(metrics.kullback_leibler_divergence)


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(element_errors, "_BUDGET", Budget(block=1 << 15, kept_items=1 << 20))
    for name in ("x", "y"):
        with (tmp_path / f"{name}.npy").open("wb") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": (2 << 20, 2)}
            np.lib.format.write_array_header_1_0(file, header)
            file.truncate(file.tell() + (16 << 20))
            file.seek(-4, 2)
            file.write(np.float32(len(name) if name == "x" else 3).tobytes())
    pair = aligned_pair(read_npy(str(tmp_path / "x.npy")), read_npy(str(tmp_path / "y.npy")))
    tracemalloc.start()
    try:
        assert compared(pair).outside == 1
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_the_smallest_integer_is_within_its_tolerance(tmp_path: Path, dtype: str) -> None:
    least = np.iinfo(dtype).min
    golden = np.array([least, least, 5], dtype)
    npu = np.array([least, least + 1, 5], dtype)  # off by far less than a tenth
    detail = compare_elements(saved_pair(tmp_path, npu, golden), atol=0.0, rtol=0.1, shown=3)
    assert (detail.outside, detail.equal) == (0, 2)
    assert [one.index for one in detail.worst_relative] == [(1,)]


def test_the_worst_relative_error_is_not_lost_to_rounding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(element_errors, "_BUDGET", Budget(block=8))
    random = np.random.default_rng(3)
    golden = random.uniform(1, 2, 4000).astype(np.float32)
    npu = (golden.astype(np.float64) * (1 + 0.1)).astype(np.float32)  # of all the errors are almost the same
    detail = compare_elements(saved_pair(tmp_path, npu, golden), atol=0.0, rtol=0.0, shown=7)
    x, y = npu.astype(np.float64), golden.astype(np.float64)
    relative = np.abs(x - y) / y
    wanted = np.sort(relative)[:-8:-1]
    assert [relative[one.index] for one in detail.worst_relative] == wanted.tolist()
