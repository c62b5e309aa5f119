"""The engine: whatever shares the work, in whatever pieces, every row is what numpy says of the whole arrays."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, isnan, nan, prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from builders import Array, aligned_pair, dumped, write_golden
from command_line import HANG

from precision_tool.lib.compare import tensor_reader
from precision_tool.lib.compare.pairwise import Measures, Worker, compare_bundles, compare_pairs, cost
from precision_tool.lib.compare.passes import SecondPass
from precision_tool.lib.compare.scheduler import (
    THIS_THREAD,
    Resources,
    StopWork,
    WorkStoppedError,
    check_stopping,
    process_pool,
    thread_pool,
)
from precision_tool.lib.compare.stream import Block, PairStream, tensors_of
from precision_tool.lib.compare.tensor_figures import extremes_of, figures_of
from precision_tool.lib.data.axis_alignment import Declared, align
from precision_tool.lib.demo.dump_writer import OutTensor
from precision_tool.lib.io import stores
from precision_tool.lib.io.layouts import plain_plan
from precision_tool.lib.io.local import LocalFile
from precision_tool.lib.io.npy import read_npy
from precision_tool.lib.io.stores import note_unread
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError
from precision_tool.lib.model.comparison import Pair, Status, Summary
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.tensor import WHOLE, Plan, Tensor

#: So small that tensors of some thousand elements run through every path: blocks, boxes, kept or read twice, parts.
TINY = {
    "block": 1 << 11,
    "box": 1 << 12,
    "kept_items": 6000,
    "part_bytes": 1 << 14,
    "split_bytes": 1 << 15,
    "serial_bytes": 0,
}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    use_sizes(monkeypatch, TINY)


def use_sizes(monkeypatch: pytest.MonkeyPatch, sizes: dict[str, int]) -> None:
    """Works with these sizes in place of the real ones."""
    monkeypatch.setattr(tensor_reader, "DEFAULT_BUDGET", replace(tensor_reader.DEFAULT_BUDGET, **sizes))


# --- tensors and what numpy says of them ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Case:
    """Both sides of a pair as they are stored, and their values in the benchmark's order."""

    stored: OutTensor
    golden: Array
    npu: Array
    origin_layout: str = "ND"


def case(npu: Array, golden: Array, layout: str = "ND", origin_layout: str = "ND", fortran: bool = False) -> Case:
    stored = OutTensor.packed(npu, layout, origin_layout)
    return Case(stored, np.asfortranarray(golden) if fortran else golden, npu, origin_layout)


def make_pair(folder: Path, number: int, one: Case, golden_path: Path | None = None) -> Pair:
    """The pair of a case, whose files are written; a `golden_path` is there already."""
    golden = read_npy(str(golden_path or write_golden(folder, f"op{number}", 0, one.golden)))
    npu = dumped(folder, one.stored, f"op{number}")
    pair = aligned_pair(npu, golden, one.origin_layout, one.npu.shape, f"op{number}")
    return replace(pair, index=number, reason=Message("text", text=f"note {number}"))


def check_side(side: Summary | None, a: Array) -> None:
    assert side is not None
    finite = a[np.isfinite(a)]
    counts = (side.count, side.nan_count, side.positive_inf_count, side.negative_inf_count, side.zero_count)
    assert counts == (a.size, np.isnan(a).sum(), np.isposinf(a).sum(), np.isneginf(a).sum(), (a == 0).sum())
    assert (side.minimum, side.maximum) == (finite.min(), finite.max())
    scale = max(abs(side.minimum), abs(side.maximum))
    assert side.mean == pytest.approx(finite.mean(), rel=1e-5, abs=1e-6 * scale)
    assert side.std == pytest.approx(finite.std(), rel=1e-4, abs=1e-6 * scale)


def check_row(row: Row, one: Case) -> None:
    """The row against plain formulas in float64 over whole arrays."""
    x, y = (np.asarray(a).astype(np.float64).reshape(-1) for a in (one.npu, one.golden))
    metrics = row.metrics
    assert metrics is not None, row.reason
    assert row.pair.status is Status.COMPARED
    check_side(row.npu, x)
    check_side(row.golden, y)
    agree = (np.isnan(x) & np.isnan(y)) | (x == y) & np.isinf(x)
    wrong = np.flatnonzero(~(np.isfinite(x) & np.isfinite(y)) & ~agree)
    assert metrics.non_finite_mismatches == wrong.size
    if wrong.size:
        at = tuple(int(i) for i in np.unravel_index(wrong[0], one.golden.shape))
        assert metrics.first_mismatch_index == metrics.max_error_index == at
        assert isnan(metrics.cosine)
        return
    x, y = x[~agree], y[~agree]
    error = np.abs(x - y)
    relative = np.where(np.abs(y) > 2.2e-16, error / np.where(y == 0, 1, np.abs(y)), 0)
    norms = np.linalg.norm(x), np.linalg.norm(y)
    assert metrics.cosine == pytest.approx(x @ y / (norms[0] * norms[1]), abs=5e-7)
    assert metrics.max_absolute_error == pytest.approx(error.max(), rel=1e-6)
    assert metrics.accumulated_relative_error == pytest.approx(relative.sum(), rel=1e-6)
    assert metrics.relative_euclidean_distance == pytest.approx(np.linalg.norm(x - y) / norms[1], rel=1e-6)
    assert metrics.mean_absolute_error == pytest.approx(error.mean(), rel=1e-6)
    assert metrics.root_mean_square_error == pytest.approx(np.sqrt((error**2).mean()), rel=1e-6)
    assert metrics.max_relative_error == pytest.approx(relative.max(), rel=1e-6)
    assert metrics.mean_relative_error == pytest.approx(relative.mean(), rel=1e-6)
    p, q = (np.maximum((a - a.min()) / (a.max() - a.min()), 2.0**-23) for a in (x, y))
    p, q = p / p.sum(), q / q.sum()
    assert metrics.kullback_leibler_divergence == pytest.approx((p * np.log(p / q)).sum(), rel=1e-4, abs=1e-7)
    if agree.any():
        return
    if not error.max():
        assert metrics.max_error_index is None
        return
    at = tuple(int(i) for i in np.unravel_index(error.argmax(), one.golden.shape))
    assert metrics.max_error_index == at
    assert (metrics.npu_at_max_error, metrics.golden_at_max_error) == (x[error.argmax()], y[error.argmax()])


def random_cases(seed: int) -> list[Case]:
    """Tensors of every way of storing, of sizes from one element to many blocks, some with NaN and Inf."""
    rng = np.random.default_rng(seed)

    def sides(shape: tuple[int, ...], npu: Any = np.float16, golden: Any = np.float32) -> tuple[Array, Array]:
        right = rng.standard_normal(shape).astype(golden)
        return (right + 0.01 * rng.standard_normal(shape)).astype(npu), right

    cases = []
    for size in (2, 1023, 1024, 2049, 6000, 6001, 40_000):
        cases += [case(*sides((size,), kind)) for kind in (np.float16, np.float32, np.float64)]
    cases.append(case(*sides((3, 5000), ml_dtypes.bfloat16)))
    cases.append(case(*sides((70, 70, 3), np.float32, np.float64), fortran=True))
    cases.append(case(rng.integers(-9, 9, 5000).astype(np.int32), rng.integers(-9, 9, 5000).astype(np.int64)))
    n, c = int(rng.integers(1, 4)), int(rng.integers(1, 50))
    for h, w in ((1, 3), (7, 5), (24, 24)):
        cases.append(case(*sides((n, h, w, c)), "NC1HWC0", "NHWC"))
        cases.append(case(*sides((n, c, h, w), np.float32), "NC1HWC0", "NCHW", fortran=True))
        cases.append(case(*sides((h, w, c, 10 * n)), "FRACTAL_Z", "HWCN"))
        cases.append(case(*sides((h * 9, w * c)), "FRACTAL_NZ", "ND"))
    cases.append(case(*sides((2, 3, 9, 9, 20)), "NDC1HWC0", "NDHWC"))
    for kind in (np.int64, np.uint64):  # of which one is split
        long = rng.integers(2**40, 2**50, 40_000 if kind is np.int64 else 6000)
        cases.append(case((long + rng.integers(-(2**30), 2**30, long.size)).astype(kind), long))
    for one in list(cases):
        if one.golden.size > 100 and one.npu.dtype.kind == "f" and rng.random() < 0.4:
            npu, golden = one.npu.copy(), one.golden.copy()
            at = rng.choice(golden.size, 5, replace=False)
            for array in (npu, golden):
                flat = array.reshape(-1) if array.flags.c_contiguous else array.T.reshape(-1)
                flat[at] = [nan, inf, -inf, nan, inf]
                assert np.isnan(array).sum() == 2
            if rng.random() < 0.5:
                npu.reshape(-1)[rng.integers(npu.size)] = nan
            order = one.golden.flags.f_contiguous and not one.golden.flags.c_contiguous
            if order:  # the same places on both sides, whatever their order
                golden = np.asfortranarray(np.where(np.isfinite(npu), one.golden, npu).astype(one.golden.dtype))
            cases.append(case(npu, golden, one.stored.layout, one.origin_layout, fortran=order))
    return cases


# --- who shares the work --------------------------------------------------------------------------------------------


@contextmanager
def nobody() -> Iterator[Executor | None]:
    yield None


@contextmanager
def threads() -> Iterator[Executor | None]:
    with ThreadPoolExecutor(3) as pool:
        yield pool


@pytest.mark.parametrize("seed", range(3))
def test_every_way_to_share_the_work_gives_the_same_rows(tmp_path: Path, tiny: None, seed: int) -> None:
    cases = random_cases(seed)
    pairs = [make_pair(tmp_path, number, one) for number, one in enumerate(cases)]
    serial = compare_pairs(pairs, THIS_THREAD)
    for row, one in zip(serial, cases, strict=True):
        check_row(row, one)
    told: list[tuple[int, int]] = []
    threads_before = threading.active_count()
    in_threads = compare_pairs(pairs, Resources(workers=3, progress=lambda done, total: told.append((done, total))))
    assert threading.active_count() == threads_before
    with process_pool(2) as pool:
        in_processes = compare_pairs(pairs, Resources(workers=2, executor=pool))
    total = sum(pair.npu.nbytes + pair.golden.nbytes for pair in pairs if pair.npu and pair.golden)
    assert told[0] == (0, total)
    assert told == sorted(told)
    assert told[-1] == (total, total)
    split = 0
    for number, row in enumerate(serial):
        check_row(in_processes[number], cases[number])
        check_row(in_threads[number], cases[number])
        assert repr(in_processes[number]) == repr(in_threads[number]) == repr(row)  # to the last bit
        split += cost(pairs[number]) >= TINY["split_bytes"]
    assert 5 < split < len(cases) - 5


def not_read(path: str, *, is_raised: bool) -> str:
    error = FormatError.of(path, "io.unreadable", reason="Input/output error")
    note_unread(path, error)
    if is_raised:
        raise error
    return path


def test_what_workers_could_not_read_is_known_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_unread", {"before": Message("text", text="noted before they were forked")})
    with process_pool(1) as pool:
        given, raised = (pool.submit(not_read, f"/{each}", is_raised=each) for each in (False, True))
        assert given.result(HANG) == "/False"
        assert isinstance(raised.exception(HANG), FormatError)
    assert list(stores.take_unread()) == ["before", "/False", "/True"]


def test_a_pool_ends_though_a_worker_does_not() -> None:
    """A stopped one stands for one that waits for a lock that another took with it when it was killed."""
    with process_pool(2) as pool:
        os.kill(pool.submit(os.getpid).result(HANG), signal.SIGSTOP)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("seed", range(3))
def test_sizes_of_pieces_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The real sizes of blocks, where each of these tensors is one block."""
    cases = random_cases(seed + 10)
    pairs = [make_pair(tmp_path, number, one) for number, one in enumerate(cases)]
    large = compare_pairs(pairs, THIS_THREAD)
    use_sizes(monkeypatch, TINY)
    small = compare_pairs(pairs, THIS_THREAD)
    for number, one in enumerate(cases):
        check_row(large[number], one)
        check_row(small[number], one)


def test_rows_come_in_the_order_of_the_pairs(tmp_path: Path, tiny: None) -> None:
    """Also those that are not compared, which keep their reason."""
    cases = random_cases(20)[:12]
    pairs: list[Pair] = []
    for number, one in enumerate(cases):
        pairs.append(make_pair(tmp_path, number, one))
        pairs.append(
            Pair(
                index=number, op_name=f"none{number}", op_type="Variable", npu_ops=(), golden_ops=(),
                status=Status.NO_NPU_DUMP, reason=Message("text", text=f"reason {number}"),
            )
        )  # fmt: skip
    for rows in (compare_pairs(pairs, THIS_THREAD), compare_pairs(pairs, Resources(workers=2))):
        assert [row.pair for row in rows] == pairs
        assert [str(row.reason) for row in rows[1::2]] == [f"reason {number}" for number in range(12)]
        assert all(row.metrics is None for row in rows[1::2])
        for row, one in zip(rows[::2], cases, strict=True):
            check_row(row, one)
    assert compare_pairs([], Resources(workers=2)) == []
    assert [str(row.reason) for row in compare_pairs(pairs[1::2], Resources(workers=2))] == [
        f"reason {number}" for number in range(12)
    ]


@pytest.mark.parametrize("victim", [1, -1], ids=["small", "split"])
@pytest.mark.parametrize("side", ["npu", "golden"])
@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_file_that_is_lost_meanwhile_costs_its_own_row(
    tmp_path: Path, tiny: None, victim: int, side: str, damage: str
) -> None:
    rng = np.random.default_rng(5)
    cases = [case(a, a) for size in (10, 20, 3000, 30_000) for a in [rng.standard_normal(size).astype(np.float32)]]
    pairs = [make_pair(tmp_path, number, one) for number, one in enumerate(cases)]
    tensor = getattr(pairs[victim], side)
    if damage == "gone":
        Path(tensor.path).unlink()
    else:
        Path(tensor.path).write_bytes(Path(tensor.path).read_bytes()[:-1])
    for workers in (1, 2):
        rows = compare_pairs(pairs, Resources(workers=workers))
        lost = rows.pop(victim)
        assert lost.metrics is None
        assert lost.pair.status is Status.UNREADABLE
        assert lost.reason == lost.pair.reason
        assert tensor.path in str(lost.reason)
        assert ("no such file" if damage == "gone" else "cut off") in str(lost.reason)
        assert {row.metrics.cosine for row in rows if row.metrics} == {1.0}
        assert len(rows) == 3


# --- tensors that are equal -----------------------------------------------------------------------------------------


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ops whose tensors were really compared, not taken over, in this process."""
    names: list[str] = []

    def compare(self: Worker, pair: Pair, *others: Any) -> tuple[Row, list[bool]]:
        names.append(pair.op_name)
        return original(self, pair, *others)

    original: Callable[..., tuple[Row, list[bool]]] = Worker.compare
    monkeypatch.setattr(Worker, "compare", compare)
    return names


def changed(a: Array, at: int) -> Array:
    """A copy that differs in one element."""
    copy = a.copy()
    copy.reshape(-1)[at] += 1
    return copy


#: Not a multiple of eight bytes, in float16 and in float32.
SHAPE = (3, 5, 3, 41)
COUNT = prod(SHAPE)


def copies() -> tuple[Array, dict[str, Case]]:
    """A benchmark tensor and copies of one NPU tensor, by how they are stored; all float16 values."""
    rng = np.random.default_rng(3)
    golden = rng.standard_normal(SHAPE).astype(np.float32)
    npu = (golden + 0.01 * rng.standard_normal(SHAPE)).astype(np.float16)
    stored = {
        "as it is": case(npu, golden),
        "the same bytes": case(npu, golden),
        "float32": case(npu.astype(np.float32), golden),
        "float64": case(npu.astype(np.float64), golden),
        "NC1HWC0": case(npu, golden, "NC1HWC0", "NHWC"),
        "NC1HWC0 again": case(npu, golden, "NC1HWC0", "NHWC"),
        "NC1HWC0 float32": case(npu.astype(np.float32), golden, "NC1HWC0", "NHWC"),
    }
    return golden, stored


@pytest.mark.parametrize("sizes", ["real", "tiny"])
@pytest.mark.parametrize("first", ["as it is", "NC1HWC0", "float32"])
def test_equal_tensors_are_compared_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compared: list[str], sizes: str, first: str
) -> None:
    golden, stored = copies()
    if sizes == "tiny":
        use_sizes(monkeypatch, TINY | {"kept_items": COUNT, "split_bytes": 1 << 40})
    golden_path = write_golden(tmp_path, "op", 0, golden)
    names = [first, *(name for name in stored if name != first)]
    pairs = [make_pair(tmp_path, number, stored[name], golden_path) for number, name in enumerate(names)]
    rows = compare_pairs(pairs, THIS_THREAD)
    for row, name, number in zip(rows, names, range(99), strict=False):
        check_row(row, stored[name])
        assert row.pair == pairs[number]
        assert str(row.reason) == f"note {number}"  # of its own pair, whoever was compared
    # Float64 is compared in float64, whose values are not looked for among those of float32, and the other way round;
    # of layouts whose boxes cut an inner axis, at tiny sizes, only equal bytes are known to be equal.
    assert len(compared) <= (3 if sizes == "real" else 5), compared
    assert compared[0] == "op0"


@pytest.mark.parametrize("at", [0, 1, COUNT // 2, COUNT - 2, COUNT - 1])
@pytest.mark.parametrize("sizes", ["real", "tiny", "split"])
def test_one_element_makes_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: str, at: int) -> None:
    """Copies of which each second differs in one element, wherever, from the one before, in any way of storing."""
    golden, stored = copies()
    if sizes != "real":
        use_sizes(monkeypatch, TINY | {"split_bytes": 1 << 11 if sizes == "split" else 1 << 40})
    cases = []
    for one in stored.values():
        layout = one.stored.layout
        cases += [one, case(changed(one.npu, at), golden, layout, one.origin_layout), one]
    golden_path = write_golden(tmp_path, "op", 0, golden)
    pairs = [make_pair(tmp_path, number, one, golden_path) for number, one in enumerate(cases)]
    for workers in (1, 2) if sizes == "split" else (1,):
        rows = compare_pairs(pairs, Resources(workers=workers))
        for row, one in zip(rows, cases, strict=True):
            check_row(row, one)
        where = tuple(int(i) for i in np.unravel_index(at, SHAPE))
        assert {row.metrics.max_error_index for row in rows[1::3] if row.metrics} == {where}
        assert where not in {row.metrics.max_error_index for row in rows[::3] if row.metrics}


@pytest.mark.parametrize("how", ["bundle", "parts"])
def test_copies_that_do_not_stay_in_memory_are_read_beside_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Each NPU tensor once in the first round, the one that is compared once more for its divergence."""
    sizes: Counter[str] = Counter()
    usual, lock = LocalFile.read_into, threading.Lock()

    def noted(self: LocalFile, offset: int, buffer: memoryview) -> None:
        with lock:
            sizes[Path(self.path).name] += len(buffer)
        usual(self, offset, buffer)

    monkeypatch.setattr(LocalFile, "read_into", noted)
    rng = np.random.default_rng(5)
    golden = rng.standard_normal((64, 100)).astype(np.float32)
    npu = golden.astype(np.float16)
    other = changed(npu, npu.size - 1)
    budget = replace(
        tensor_reader.DEFAULT_BUDGET, block=1 << 10, kept_items=0, stored_tensor=1 << 10, serial_bytes=0,
        part_bytes=1 << 13, split_bytes=1 << 14 if how == "parts" else 1 << 40,
    )  # fmt: skip
    cases = [case(one, golden) for one in (npu, npu, other, npu.astype(np.float32), other)]
    path = write_golden(tmp_path, "op", 0, golden)
    pairs = [make_pair(tmp_path, number, one, path) for number, one in enumerate(cases)]
    sizes.clear()
    rows = compare_pairs(pairs, Resources(workers=2 if how == "parts" else 1), budget=budget)
    for row, one, number in zip(rows, cases, range(99), strict=False):
        check_row(row, one)
        assert str(row.reason) == f"note {number}"
    nbytes = [tensors_of(pair)[0].nbytes for pair in pairs]
    read = [sizes[Path(tensors_of(pair)[0].path).name] for pair in pairs]
    # The third differs at the end: it is read beside the first, then compared itself.
    assert read == [2 * nbytes[0], nbytes[1], 3 * nbytes[2], nbytes[3], 2 * nbytes[4]]
    assert sizes[path.name] == 4 * golden.nbytes


def test_a_copy_that_cannot_be_read_costs_its_own_row(tmp_path: Path) -> None:
    golden = np.arange(5000, dtype=np.float32)
    path = write_golden(tmp_path, "op", 0, golden)
    pairs = [make_pair(tmp_path, number, case(golden, golden), path) for number in range(3)]
    Path(tensors_of(pairs[1])[0].path).write_bytes(b"")
    budget = replace(tensor_reader.DEFAULT_BUDGET, stored_tensor=0, kept_items=0)
    rows = compare_pairs(pairs, THIS_THREAD, budget=budget)
    assert [row.metrics is None for row in rows] == [False, True, False]
    assert "ends at byte" in str(rows[1].reason)


def test_equal_numbers_in_other_bytes_are_not_taken_for_equal_bytes(tmp_path: Path, compared: list[str]) -> None:
    """-0 and 0 are equal but not the same; the same bytes of another type are other numbers."""
    golden = np.zeros(2048, np.float32)
    plus, minus = np.zeros(2048, np.float32), np.full(2048, -0.0, np.float32)
    as_int = OutTensor(data=np.full(2048, 0x3F800000, np.int32), origin_shape=(2048,))
    one = np.ones(2048, np.float32)
    cases = [
        case(plus, golden),
        case(minus, golden),
        case(one, golden),
        Case(as_int, golden, np.full(2048, 0x3F800000, np.int32)),
    ]
    path = write_golden(tmp_path, "op", 0, golden)
    pairs = [make_pair(tmp_path, number, each, path) for number, each in enumerate(cases)]
    rows = compare_pairs(pairs, THIS_THREAD)
    assert [row.metrics.max_absolute_error for row in rows if row.metrics] == [0, 0, 1, 0x3F800000]
    assert [row.npu.maximum for row in rows if row.npu] == [0, 0, 1, 0x3F800000]
    assert compared[-1] == "op3"


def test_equal_values_of_another_shape_are_compared_anew(tmp_path: Path) -> None:
    """Where the largest error lies is told in the shape of the pair's own row."""
    golden, stored = copies()
    path = write_golden(tmp_path, "op", 0, golden)
    pairs = [make_pair(tmp_path, number, stored[name], path) for number, name in enumerate(("as it is", "float32"))]
    flat = replace(pairs[1], error_shape=(COUNT,))
    rows = compare_pairs([pairs[0], flat], THIS_THREAD)
    check_row(rows[0], stored["as it is"])
    assert rows[0].metrics is not None
    assert rows[1].metrics is not None
    assert rows[1].metrics.max_error_index == (int(np.ravel_multi_index(rows[0].metrics.max_error_index or (), SHAPE)),)


@pytest.mark.parametrize("stored", [0, 1 << 20])
def test_equal_values_beside_a_benchmark_in_another_order_are_compared_anew(tmp_path: Path, stored: int) -> None:
    """A square benchmark that is read turned for one of the pairs."""
    golden = np.random.default_rng(1).standard_normal((20, 20)).astype(np.float32)
    path = write_golden(tmp_path, "op", 0, golden)
    pairs = [make_pair(tmp_path, number, case(golden, golden), path) for number in range(2)]
    turned = Plan((20, 20), ((1, WHOLE), (0, WHOLE)), (20, 20), (1, 1))
    plain = plain_plan((20, 20))
    pairs = [
        replace(pairs[0], npu_plan=plain, golden_plan=plain),
        replace(pairs[1], npu_plan=plain, golden_plan=turned),
    ]
    rows = compare_pairs(pairs, THIS_THREAD, budget=replace(tensor_reader.DEFAULT_BUDGET, stored_tensor=stored))
    values = golden.astype(np.float64)
    assert [row.metrics.max_absolute_error for row in rows if row.metrics] == [0, np.abs(values - values.T).max()]


@pytest.mark.parametrize("stored", [0, 1 << 20])
def test_the_same_bytes_in_another_order_of_bytes_are_compared_anew(tmp_path: Path, stored: int) -> None:
    golden = np.ones(2048, np.float32)
    path = write_golden(tmp_path, "op", 0, golden)
    pairs = [make_pair(tmp_path, number, case(golden, golden), path) for number in range(2)]
    pairs[1] = replace(pairs[1], npu=replace(tensors_of(pairs[1])[0], big_endian=True))
    rows = compare_pairs(pairs, THIS_THREAD, budget=replace(tensor_reader.DEFAULT_BUDGET, stored_tensor=stored))
    turned = float(golden.astype(">f4").view("<f4")[0])
    assert [row.npu.maximum for row in rows if row.npu] == [1, turned]


def test_the_same_bytes_with_another_benchmark_are_compared_anew(tmp_path: Path, compared: list[str]) -> None:
    """Also when the benchmark's bytes are the same but lie in another file, or have another shape."""
    rng = np.random.default_rng(8)
    npu = rng.standard_normal((30, 40)).astype(np.float32)
    goldens = [npu, npu + 1, npu.reshape(40, 30)]
    cases = [case(npu, golden) for golden in goldens]
    pairs = [make_pair(tmp_path, number, one) for number, one in enumerate(cases)]
    rows = compare_pairs(pairs, THIS_THREAD)
    assert compared == ["op0", "op1", "op2"]
    assert [row.metrics.max_absolute_error for row in rows if row.metrics] == pytest.approx([0, 1, 0], abs=1e-6)


def test_memory_does_not_grow_with_the_tensor(tmp_path: Path) -> None:
    """Sparse files of 256 MB a side."""
    count = 1 << 26
    pair = make_pair(tmp_path, 0, case(np.ones(4, np.float32), np.ones(4, np.float32)))
    large: list[Tensor] = []
    for tensor in (pair.npu, pair.golden):
        assert isinstance(tensor, Tensor)
        with Path(tensor.path).open("r+b") as file:
            file.truncate(tensor.offset + 4 * count)
        large.append(replace(tensor, shape=(count,), nbytes=4 * count, origin_shape=(count,)))
    npu, golden = large
    plans = align(npu, golden, Declared("ND"))
    pair = replace(
        pair, npu=npu, golden=golden, npu_plan=plans.npu_plan, golden_plan=plans.golden_plan, error_shape=(count,)
    )
    tracemalloc.start()  # numpy tells it of its arrays
    try:
        (row,) = compare_pairs([pair], THIS_THREAD)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20
    assert row.metrics is not None
    assert (row.metrics.cosine, row.metrics.max_absolute_error) == (1.0, 0.0)
    assert row.npu is not None
    assert (row.npu.count, row.npu.zero_count, row.npu.maximum) == (count, count - 4, 1.0)


# --- 64-bit integers, errors that are nobody's fault, progress ------------------------------------------------------


@pytest.mark.parametrize("kinds", [(np.int64, np.int64), (np.uint64, np.int64)])
@pytest.mark.parametrize("layout", ["ND", "NC1HWC0"])
def test_errors_of_large_integers_are_exact(
    tmp_path: Path, tiny: None, layout: str, kinds: tuple[type[np.generic], type[np.generic]]
) -> None:
    golden = (np.arange(4 * 24 * 24 * 20).reshape(4, 24, 24, 20) + (1 << 60)).astype(kinds[1])
    npu = golden.astype(kinds[0])
    npu[3, 2, 1, 0] += npu.dtype.type(1)
    one = case(npu, golden, layout, "NHWC" if layout != "ND" else "ND")
    pairs = [make_pair(tmp_path, 0, one)]
    for workers in (1, 2):
        (row,) = compare_pairs(pairs, Resources(workers=workers))
        assert row.metrics is not None, row.reason
        assert row.metrics.max_absolute_error == 1
        assert row.metrics.max_error_index == (3, 2, 1, 0)
        assert row.metrics.accumulated_relative_error == pytest.approx(2.0**-60)


def test_an_error_of_our_own_in_a_split_tensor_costs_its_own_row(
    tmp_path: Path, tiny: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = np.arange(30_000, dtype=np.float32)
    pairs = [make_pair(tmp_path, number, case(a + number, a)) for number in range(2)]

    def start(self: SecondPass, stream: PairStream) -> Any:
        if stream.pair.op_name == "op0":
            raise ZeroDivisionError("our mistake")
        return original(self, stream)

    original: Callable[[SecondPass, PairStream], Any] = SecondPass.start
    monkeypatch.setattr(SecondPass, "start", start)
    told: list[tuple[int, int]] = []
    with threads() as pool:
        rows = compare_pairs(pairs, Resources(workers=3, executor=pool, progress=lambda *now: told.append(now)))
    assert rows[0].metrics is None
    assert "ZeroDivisionError: our mistake" in str(rows[0].reason)
    assert rows[1].metrics is not None
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1]


def test_a_worker_that_dies_over_a_split_tensor_ends_the_run(
    tmp_path: Path, tiny: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = np.arange(30_000, dtype=np.float32)

    def update(self: SecondPass, state: object, block: Block) -> None:
        raise BrokenProcessPool("died")

    monkeypatch.setattr(SecondPass, "update", update)
    with threads() as pool, pytest.raises(WorkStoppedError, match="a worker process died"):
        compare_pairs([make_pair(tmp_path, 0, case(a, a))], Resources(workers=3, executor=pool))


def test_ctrl_c_leaves_no_thread_behind(tmp_path: Path, tiny: None) -> None:
    pairs = [make_pair(tmp_path, number, one) for number, one in enumerate(random_cases(30))]

    def interrupted(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    threads_before = threading.active_count()
    with pytest.raises(WorkStoppedError, match="stopped: ") as stop:
        compare_pairs(pairs, Resources(workers=2, progress=interrupted))
    assert [row.pair.op_name for row in stop.value.rows] == [pair.op_name for pair in pairs]
    assert any("the run was stopped before this tensor" in str(row.reason) for row in stop.value.rows)
    assert threading.active_count() == threads_before


def test_threads_that_are_left_stop_in_the_middle_of_a_tensor() -> None:
    begun = threading.Event()

    def for_ever() -> None:
        while True:
            begun.set()
            check_stopping()

    running: list[Future[None]] = []

    def leave() -> None:
        with thread_pool(1) as pool:
            running.append(pool.submit(for_ever))
            begun.wait()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        leave()
    assert isinstance(running[0].exception(), StopWork)
    check_stopping()  # nothing stops who is in no such thread


@pytest.mark.parametrize("work", ["extremes", "figures", "bytes", "bundle"])
def test_threads_that_are_left_stop_where_a_tensor_is_looked_at_alone(tmp_path: Path, work: str) -> None:
    a = np.ones(100, np.float16)
    pair = make_pair(tmp_path, 0, case(a, a))
    npu, golden = tensors_of(pair)
    alone = replace(pair, status=Status.NO_BENCHMARK, golden=None)
    todo: dict[str, Callable[[], object]] = {
        "extremes": lambda: extremes_of(npu),
        "figures": lambda: figures_of(npu),
        "bytes": lambda: Worker().opened.same_bytes(npu, golden),
        "bundle": lambda: compare_bundles([[(0, alone)]], Measures(overflow=True), tensor_reader.DEFAULT_BUDGET),
    }
    todo[work]()  # else all is well
    begun = threading.Event()
    ended: list[Future[object]] = []

    def until_stopped() -> object:
        with suppress(StopWork):
            while True:
                begun.set()
                check_stopping()
        return todo[work]()

    def leave() -> None:
        with thread_pool(1) as pool:
            ended.append(pool.submit(until_stopped))
            begun.wait()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        leave()
    assert isinstance(ended[0].exception(), StopWork)


def test_threads_share_the_files_that_a_process_may_open(tmp_path: Path, tiny: None) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 60 + 3 * max(map(int, os.listdir("/proc/self/fd")))
    values = np.arange(24, dtype=np.float32)
    pairs = [make_pair(tmp_path, number, case(values + number, values)) for number in range(most // 2)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        rows = compare_pairs(
            pairs, Resources(workers=2), budget=replace(tensor_reader.DEFAULT_BUDGET, open_files=2 * most)
        )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert [str(row.reason) for row in rows] == [f"note {number}" for number in range(most // 2)]


def test_progress_within_a_large_tensor_in_one_process(tmp_path: Path, tiny: None) -> None:
    a = np.arange(30_000, dtype=np.float32)
    pairs = [make_pair(tmp_path, number, case(a + number, a)) for number in range(2)]
    told: list[tuple[int, int]] = []
    compare_pairs(pairs, Resources(workers=1, progress=lambda *now: told.append(now)))
    total = 4 * a.nbytes
    assert len(told) > 2 * 2 * a.size // TINY["block"]
    assert told[0] == (0, total)
    assert told == sorted(told)
    assert told[-1] == (total, total)
    assert max(later[0] - sooner[0] for sooner, later in pairwise(told)) < total // 10
