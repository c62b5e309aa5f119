"""What a comparison is asked for beside its metrics: a limit, overflow, own metrics, a pass that can be saved."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import Array, dumped, written_pair

from precision_tool.lib.compare import custom_metrics, tensor_reader
from precision_tool.lib.compare.custom_metrics import load_metrics
from precision_tool.lib.compare.kernel import Kernel
from precision_tool.lib.compare.pairwise import Measures, compare_pairs
from precision_tool.lib.compare.scheduler import THIS_THREAD, Resources
from precision_tool.lib.compare.tensor_figures import reaches_limit
from precision_tool.lib.messages import Message
from precision_tool.lib.model.comparison import Pair, Status
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.tensor import Tensor, TensorStatistics

#: Small enough for tensors of some thousand elements to be split into boxes and parts; and the real sizes.
SIZES = {
    "real": {},
    "boxes": {"block": 1 << 8, "box": 1 << 9, "kept_items": 1 << 10},
    "parts": {"block": 1 << 8, "box": 1 << 9, "kept_items": 1 << 10, "part_bytes": 1 << 11, "split_bytes": 1 << 12,
              "serial_bytes": 0},
}  # fmt: skip


@pytest.fixture(params=list(SIZES))
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(tensor_reader, "DEFAULT_BUDGET", replace(tensor_reader.DEFAULT_BUDGET, **SIZES[request.param]))
    return str(request.param)


def only_row(pair: Pair, measures: Measures, sizes: str = "real") -> Row:
    if sizes != "parts":
        (row,) = compare_pairs([pair], THIS_THREAD, measures=measures)
    else:
        with ThreadPoolExecutor(3) as pool:
            (row,) = compare_pairs([pair], Resources(workers=3, executor=pool), measures=measures)
    return row


def noisy(shape: tuple[int, ...], seed: int = 3) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    golden = np.asarray(rng.standard_normal(shape), np.float32)
    return np.asarray(golden + 0.1 * rng.standard_normal(shape), np.float32), golden


# --- the first N elements -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "layout"),
    [((3, 7, 61), "ND"), ((2, 9, 5, 35), "NC1HWC0"), ((2, 3, 700, 2), "NC1HWC0"), ((40, 50), "FRACTAL_NZ")],
)
@pytest.mark.parametrize("limit", [1, 2, 255, 1000, 10**6])
def test_a_limit_compares_the_first_elements(
    tmp_path: Path, shape: tuple[int, ...], layout: str, limit: int, sizes: str
) -> None:
    """In the order of the benchmark, whatever the layout and however the tensor is cut."""
    npu, golden = noisy(shape)
    row = only_row(written_pair(tmp_path, npu, golden, layout), Measures(limit=limit), sizes)
    x, y = (side.reshape(-1)[:limit].astype(np.float64) for side in (npu, golden))
    metrics = row.metrics
    assert metrics is not None, row.reason
    assert row.npu is not None
    assert row.npu.count == x.size
    assert (row.npu.minimum, row.npu.maximum) == (x.min(), x.max())
    worst = int(np.abs(x - y).argmax())
    assert metrics.max_absolute_error == pytest.approx(abs(x - y)[worst], rel=1e-6)
    assert metrics.max_error_index == tuple(map(int, np.unravel_index(worst, shape)))
    assert metrics.mean_absolute_error == pytest.approx(np.abs(x - y).mean(), rel=1e-5)
    if limit > 1:
        assert metrics.cosine == pytest.approx(x @ y / np.sqrt((x @ x) * (y @ y)), abs=1e-6)


def test_a_limit_counts_complex_elements(tmp_path: Path) -> None:
    npu = np.array([1 + 2j, 3 + 4j, 5 + 6j], np.complex64)
    row = only_row(written_pair(tmp_path, npu, npu + 1j), Measures(limit=2))
    assert row.metrics is not None
    assert row.npu is not None
    assert (row.npu.count, row.npu.maximum) == (4, 4.0)  # two elements are four numbers


def test_equal_tensors_under_a_limit_are_told_apart(tmp_path: Path) -> None:
    """A tensor that is equal up to the limit, or has the same first values behind another layout, is its own."""
    npu, golden = noisy((4, 6, 5, 32))
    other = npu.copy()
    other[0, 0, 0, 3] += 1
    pairs = [written_pair(tmp_path, one, golden, layout, f"op{number}")
             for number, (one, layout) in enumerate([(npu, "ND"), (npu, "NC1HWC0"), (other, "ND")])]  # fmt: skip
    same_golden = [replace(pair, golden=pairs[0].golden) for pair in pairs]
    rows = compare_pairs(same_golden, THIS_THREAD, measures=Measures(limit=100))
    errors = [row.metrics.max_absolute_error for row in rows if row.metrics is not None]
    x, y = npu.reshape(-1)[:100].astype(float), golden.reshape(-1)[:100].astype(float)
    assert errors[:2] == pytest.approx([np.abs(x - y).max()] * 2)
    assert errors[2] == pytest.approx(np.abs(other.reshape(-1)[:100].astype(float) - y).max())


# --- the pass that only the KL divergence needs ---------------------------------------------------------------------


def count_second(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []
    original: Callable[..., None] = Kernel.add_second

    def add_second(self: Kernel, *arguments: Any) -> None:
        calls.append(1)
        original(self, *arguments)

    monkeypatch.setattr(Kernel, "add_second", add_second)
    return calls


@pytest.mark.parametrize("times", [1.0, 1e200])
def test_the_second_pass_is_made_where_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: float, sizes: str
) -> None:
    """Without the KL divergence it is saved, unless squares leave float64's range."""
    calls = count_second(monkeypatch)
    npu, golden = ((side.astype(np.float64) + 1e4) * times for side in noisy((900,)))
    pair = written_pair(tmp_path, npu, golden)
    full = only_row(pair, Measures(), sizes)
    assert calls
    calls.clear()
    short = only_row(pair, Measures(divergence=False), sizes)
    assert bool(calls) == (times > 1)
    assert full.metrics is not None
    assert short.metrics is not None
    assert np.isfinite(full.metrics.kullback_leibler_divergence)
    assert short.npu is not None
    assert full.npu is not None
    # Parts of huge values are added up in the order they come in.
    assert replace(short.npu, mean=0, std=0) == replace(full.npu, mean=0, std=0)
    assert short.npu.mean == pytest.approx(full.npu.mean, rel=1e-12)
    assert short.npu.std == pytest.approx((npu / times).std() * times, rel=1e-9)
    for name in ("cosine", "max_absolute_error", "mean_relative_error", "root_mean_square_error"):
        assert getattr(short.metrics, name) == pytest.approx(getattr(full.metrics, name), rel=1e-12)


# --- overflow -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2, 65504], True), ([1, -65504], True), ([65472, -65472], False), ([np.inf], True), ([0, -np.inf], True),
        ([np.nan, 5], False), ([np.nan, 65504], True), ([], False), ([0.0, -0.0], False),
    ],
)  # fmt: skip
def test_overflow_of_float16(tmp_path: Path, values: list[float], expected: bool) -> None:
    assert reaches_limit(dumped(tmp_path, np.array(values, np.float16))) is expected


def test_overflow_is_asked_of_float16_only(tmp_path: Path) -> None:
    assert reaches_limit(dumped(tmp_path, np.array([1e9, np.inf], np.float32))) is None


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ({"maximum": 65504.0, "minimum": 0.0}, True), ({"maximum": 3.0, "minimum": -70000.0}, True),
        ({"maximum": 3.0, "minimum": 0.0}, False), ({"positive_inf_count": 1, "maximum": 1.0}, True), ({}, None),
    ],
)  # fmt: skip
def test_overflow_in_statistics(figures: dict[str, Any], expected: bool | None) -> None:
    assert reaches_limit(TensorStatistics(path="x", dtype="float16", shape=(2,), **figures)) is expected


def test_overflow_of_every_tensor_compared_or_not(tmp_path: Path, sizes: str) -> None:
    """Also of one that has nothing to be compared with, of one that cannot be read, and of equal values in float32."""
    big = np.array([[1.0, 65504.0]] * 400, np.float16)
    half = written_pair(tmp_path, big, big.astype(np.float32), name="half")
    single = written_pair(tmp_path, big.astype(np.float32), big.astype(np.float32), name="single")
    single = replace(single, golden=half.golden)
    alone = replace(half, golden=None, status=Status.NO_BENCHMARK, reason=Message("text", text="none"))
    gone = replace(alone, npu=Tensor(path=str(tmp_path / "gone"), offset=0, nbytes=8, dtype="float16", shape=(4,)))
    nothing = replace(alone, npu=None, status=Status.NO_NPU_DUMP, reason=Message("text", text="no dump"))
    pairs = [half, single, alone, gone, nothing]
    with ThreadPoolExecutor(2) as pool:
        resources = Resources(workers=3, executor=pool) if sizes == "parts" else THIS_THREAD
        rows = compare_pairs(pairs, resources, measures=Measures(overflow=True))
    assert [row.overflow for row in rows] == [True, None, True, None, None]
    assert [row.pair.status for row in rows][2:] == [Status.NO_BENCHMARK, Status.UNREADABLE, Status.NO_NPU_DUMP]
    assert "gone" in str(rows[3].reason)
    assert all(row.overflow is None for row in compare_pairs(pairs, THIS_THREAD))


# --- own metrics ----------------------------------------------------------------------------------------------------

MINE = """
import numpy as np
METRICS = ["shape", "worst", "sign"]
def shape(x, y): return f"{x.shape} {x.dtype}" if x.shape == y.shape else "differ"
def worst(x, y): return float(np.abs(x - y).max())
def sign(x, y): return int((np.sign(x.real) != np.sign(y.real)).sum())
"""


def own(folder: Path, text: str = MINE) -> Measures:
    path = folder / "mine.py"
    path.write_text(text, "utf-8")
    return Measures(custom=load_metrics(str(path)))


@pytest.mark.parametrize(
    ("shape", "layout"), [((3, 7, 61), "ND"), ((2, 9, 5, 35), "NC1HWC0"), ((2, 3, 700, 2), "NC1HWC0"), ((), "ND")]
)
def test_own_metrics_get_whole_arrays_in_the_benchmarks_order(
    tmp_path: Path, shape: tuple[int, ...], layout: str, sizes: str
) -> None:
    npu, golden = noisy(shape)
    row = only_row(written_pair(tmp_path, npu, golden, layout), own(tmp_path), sizes)
    expected = (f"{shape} float32", float(np.abs(npu - golden).max()), int((np.sign(npu) != np.sign(golden)).sum()))
    assert tuple(row.custom.values()) == expected
    assert row.custom_errors == ()
    assert row.metrics is not None


def test_own_metrics_of_complex_numbers_and_of_64_bits(tmp_path: Path) -> None:
    z = np.array([[1 + 2j, -3 + 4j]], np.complex64)
    found = only_row(written_pair(tmp_path, z, z.conj(), name="z"), own(tmp_path)).custom
    assert tuple(found.values()) == ("(1, 2) complex64", 8.0, 0)
    wide = np.array([1.0, 2.0])
    found = only_row(written_pair(tmp_path, wide, wide - 3, name="w"), own(tmp_path)).custom
    assert tuple(found.values()) == ("(2,) float64", 3.0, 2)


def test_own_metrics_under_a_limit_get_the_first_elements(tmp_path: Path, sizes: str) -> None:
    npu, golden = noisy((2, 9, 5, 35))
    measures = Measures(limit=77, custom=own(tmp_path).custom)
    row = only_row(written_pair(tmp_path, npu, golden, "NC1HWC0"), measures, sizes)
    assert tuple(row.custom.values())[:2] == ("(77,) float32", float(np.abs(npu - golden).reshape(-1)[:77].max()))


def test_a_metric_that_fails_leaves_the_row_its_metrics(tmp_path: Path, sizes: str) -> None:
    npu, golden = noisy((2000,))
    measures = own(tmp_path, "def compare_a(x, y): return x.no\ndef compare_b(x, y): return 1\n")
    row = only_row(written_pair(tmp_path, npu, golden), measures, sizes)
    assert row.metrics is not None
    assert row.pair.status is Status.COMPARED
    assert row.custom == {"compare_a": None, "compare_b": 1}
    assert str(row.reason) == "compare_a: AttributeError: 'numpy.ndarray' object has no attribute 'no'"


def test_a_pair_that_is_too_large_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npu, golden = noisy((1 << 18,))
    monkeypatch.setattr(custom_metrics, "MAX_BYTES", (2 << 20) - 1)
    monkeypatch.setattr(custom_metrics, "apply_metrics", None)
    row = only_row(written_pair(tmp_path, npu, golden), own(tmp_path))
    assert tuple(row.custom.values()) == (None, None, None)
    assert "own metrics load whole tensors, and this pair takes 2 MiB of 1 allowed" in str(row.reason)
    assert row.metrics is not None


def test_own_metrics_in_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_reader, "DEFAULT_BUDGET", replace(tensor_reader.DEFAULT_BUDGET, serial_bytes=0))
    sides = [noisy((50, 60), seed) for seed in range(4)]
    pairs = [written_pair(tmp_path, *one, name=f"op{number}") for number, one in enumerate(sides)]
    rows = compare_pairs(pairs, Resources(workers=2), measures=own(tmp_path))
    assert [list(row.custom.values())[1] for row in rows] == [
        float(np.abs(npu - golden).max()) for npu, golden in sides
    ]
