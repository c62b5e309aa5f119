"""Statistics of one side against the tensor, or the statistics, of the other; what rounding explains is no fault."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import Array, out_tensor, write_golden

from precision_tool.lib.compare.pairwise import Measures, compare_pairs
from precision_tool.lib.compare.scheduler import THIS_THREAD, Resources
from precision_tool.lib.demo.dump_writer import OutTensor, write_statistics
from precision_tool.lib.io.npy import read_npy
from precision_tool.lib.io.statistics_csv import read_statistics
from precision_tool.lib.messages import Message
from precision_tool.lib.model.comparison import Pair, Status
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.tensor import AnyTensor, TensorStatistics

NOT_COMPARED = Message("row.data.statistics_only", is_npu=True)


def values(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(0.3, 1.0, shape).astype(np.float32)


def statistics_of(folder: Path, stored: OutTensor | Array, name: str = "op") -> TensorStatistics:
    path = folder / f"{name}.csv"
    write_statistics(path, [], [out_tensor(stored)])
    (tensor,) = read_statistics(str(path)).outputs
    assert isinstance(tensor, TensorStatistics)
    return tensor


def pair_of(npu: AnyTensor, golden: AnyTensor, *, index: int = 0, op_type: str = "Add", name: str = "op") -> Pair:
    return Pair(
        index=index, op_name=name, op_type=op_type, npu_ops=(name,), golden_ops=(name,), slot="output:0", npu=npu,
        golden=golden, status=Status.STATISTICS_ONLY, reason=NOT_COMPARED,
    )  # fmt: skip


def row_of(folder: Path, npu: OutTensor | Array, golden: Array, *, index: int = 0, op_type: str = "Add") -> Row:
    benchmark = read_npy(str(write_golden(folder, "op", 0, golden)))
    (row,) = compare_pairs([pair_of(statistics_of(folder, npu), benchmark, index=index, op_type=op_type)], THIS_THREAD)
    assert row.status == Status.STATISTICS_ONLY
    assert row.metrics is None
    return row


def test_both_sides_have_their_statistics(tmp_path: Path) -> None:
    golden = values(40, 50)
    row = row_of(tmp_path, golden.astype(np.float16), golden)
    assert row.statistics_agree is True
    assert str(row.reason).endswith("NaN, +Inf, -Inf, min, max, mean, norm")
    assert row.golden is not None
    assert row.golden.minimum == golden.min()
    assert row.golden.mean == pytest.approx(golden.astype(np.float64).mean(), rel=1e-12)
    assert row.npu is not None
    assert row.npu.maximum == golden.astype(np.float16).max()
    assert {"npu.std", "npu.zero_count"} <= row.absent


def test_a_difference_is_named_with_both_numbers(tmp_path: Path) -> None:
    golden = values(40, 50)
    npu = (golden * 1.01).astype(np.float16)
    row = row_of(tmp_path, npu, golden)
    assert row.statistics_agree is False
    assert "mean" in str(row.reason)
    assert f"norm {np.linalg.norm(npu.astype(np.float64)):.6g} on the NPU" in str(row.reason)
    assert f"{np.linalg.norm(golden.astype(np.float64)):.6g} in the benchmark" in str(row.reason)


@pytest.mark.parametrize(("dtype", "off", "agrees"), [
    ("float16", 2.0**-11, True), ("float16", 2.0**-8, False), ("float32", 2.0**-24, True), ("float32", 2.0**-11, False),
])  # fmt: skip
def test_how_far_rounding_goes_is_a_matter_of_the_type(tmp_path: Path, dtype: str, off: float, agrees: bool) -> None:
    golden = values(200)
    npu = replace(statistics_of(tmp_path, golden), dtype=dtype)
    assert npu.maximum is not None
    npu = replace(npu, maximum=npu.maximum * (1 + off))
    benchmark = read_npy(str(write_golden(tmp_path, "op", 0, golden)))
    (row,) = compare_pairs([pair_of(npu, benchmark)], THIS_THREAD)
    assert row.statistics_agree is agrees


def test_what_was_float16_before_is_no_more_exact_in_float32(tmp_path: Path) -> None:
    golden = values(300)
    benchmark = read_npy(str(write_golden(tmp_path, "op", 0, golden)))
    rounded = golden.astype(np.float16)
    half = pair_of(statistics_of(tmp_path, rounded, "half"), benchmark)
    single = pair_of(statistics_of(tmp_path, rounded.astype(np.float32), "single"), benchmark, index=1)
    assert [row.statistics_agree for row in compare_pairs([half, single], THIS_THREAD)] == [True, True]
    (alone,) = compare_pairs([single], THIS_THREAD)
    assert alone.statistics_agree is False
    (product,) = compare_pairs([replace(single, op_type="MatMulV2")], THIS_THREAD)
    assert product.statistics_agree is True  # its factors may be in HF32


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_counts_of_what_is_not_finite(tmp_path: Path, bad: float) -> None:
    golden = values(100)
    npu = golden.copy()
    npu[7] = bad
    row = row_of(tmp_path, npu, golden)
    assert row.statistics_agree is False
    assert "1 on the NPU, 0 in the benchmark" in str(row.reason)
    assert row_of(tmp_path, npu, npu).statistics_agree is True


def test_without_counts_the_limits_tell(tmp_path: Path) -> None:
    golden = values(100)
    benchmark = read_npy(str(write_golden(tmp_path, "op", 0, golden)))
    known = statistics_of(tmp_path, golden)
    known = replace(known, nan_count=None, positive_inf_count=None, negative_inf_count=None)
    rows = compare_pairs([pair_of(known, benchmark), pair_of(replace(known, maximum=np.inf), benchmark)], THIS_THREAD)
    assert [row.statistics_agree for row in rows] == [True, False]
    assert "on the NPU only" in str(rows[1].reason)


def test_padding_of_a_layout_is_zeros(tmp_path: Path) -> None:
    golden = values(2, 3, 4, 5) + 9  # without zeros of its own
    stored = OutTensor.packed(golden, "NC1HWC0", "NHWC")
    assert np.prod(stored.storage_shape) > golden.size
    assert row_of(tmp_path, stored, golden).statistics_agree is True
    assert row_of(tmp_path, OutTensor.packed(golden * 2, "NC1HWC0", "NHWC"), golden).statistics_agree is False


def test_other_sizes_are_not_compared(tmp_path: Path) -> None:
    row = row_of(tmp_path, values(100), values(101))
    assert row.statistics_agree is None
    assert "100 values on the NPU and 101 of the benchmark" in str(row.reason)


def test_whole_numbers_are_right_or_wrong(tmp_path: Path) -> None:
    golden = np.arange(100, dtype=np.int32)
    assert row_of(tmp_path, golden, golden).statistics_agree is True
    assert row_of(tmp_path, np.append(golden[:-1], np.int32(100)), golden).statistics_agree is False
    float_before = pair_of(
        statistics_of(tmp_path, values(9), "f"), read_npy(str(write_golden(tmp_path, "f", 0, values(9))))
    )
    index = pair_of(
        statistics_of(tmp_path, golden + 1, "i"), read_npy(str(write_golden(tmp_path, "i", 0, golden))), index=1
    )
    assert [row.statistics_agree for row in compare_pairs([float_before, index], THIS_THREAD)] == [True, None]


def test_digits_that_were_not_printed_are_no_difference(tmp_path: Path) -> None:
    golden = values(500) * np.float32(1e-4)
    full = statistics_of(tmp_path, golden)
    assert full.maximum is not None
    assert full.minimum is not None
    assert full.mean is not None
    assert full.l2_norm is not None
    benchmark = read_npy(str(write_golden(tmp_path, "op", 0, golden)))

    def printed(form: str) -> TensorStatistics:
        known = [getattr(full, name) for name in ("maximum", "minimum", "mean", "l2_norm")]
        maximum, minimum, mean, norm = (float(form % number) for number in known)
        return replace(full, maximum=maximum, minimum=minimum, mean=mean, l2_norm=norm)

    pairs = [pair_of(printed(form), benchmark) for form in ("%.6f", "%.6g", "%.17g")]
    assert [row.statistics_agree for row in compare_pairs(pairs, THIS_THREAD)] == [True, True, True]
    off = replace(printed("%.6f"), maximum=round(full.maximum + 3e-6, 6))
    (row,) = compare_pairs([pair_of(off, benchmark)], THIS_THREAD)
    assert row.statistics_agree is False


def test_two_sides_of_statistics(tmp_path: Path) -> None:
    one, two = statistics_of(tmp_path, values(60)), statistics_of(tmp_path, values(60, seed=1), "other")
    rows = compare_pairs([pair_of(one, replace(one, path="b")), pair_of(one, two)], THIS_THREAD)
    assert [row.statistics_agree for row in rows] == [True, False]


def test_a_dump_without_numbers_and_a_part_of_a_tensor_are_not_compared(tmp_path: Path) -> None:
    golden = values(60)
    benchmark = read_npy(str(write_golden(tmp_path, "op", 0, golden)))
    nothing = TensorStatistics(path="x.csv", dtype="float32", shape=(60,))
    (row,) = compare_pairs([pair_of(nothing, benchmark)], THIS_THREAD)
    assert row.statistics_agree is None
    pair = pair_of(statistics_of(tmp_path, golden * 2), benchmark)
    (row,) = compare_pairs([pair], THIS_THREAD, measures=Measures(limit=5))
    assert (row.golden, row.statistics_agree, row.reason) == (None, None, NOT_COMPARED)


def test_a_damaged_benchmark_is_a_row_with_the_reason(tmp_path: Path) -> None:
    golden = values(60)
    path = write_golden(tmp_path, "op", 0, golden)
    benchmark = read_npy(str(path))
    path.write_bytes(path.read_bytes()[:-40])
    good = read_npy(str(write_golden(tmp_path, "good", 0, golden)))
    known = statistics_of(tmp_path, golden)
    rows = compare_pairs([pair_of(known, benchmark), pair_of(known, good)], THIS_THREAD)
    assert [row.status for row in rows] == [Status.UNREADABLE, Status.STATISTICS_ONLY]
    assert str(path) in str(rows[0].reason)


def test_workers_give_the_same_rows(tmp_path: Path) -> None:
    pairs = []
    for number in range(6):
        golden = values(2000, seed=number)
        benchmark = read_npy(str(write_golden(tmp_path, f"op{number}", 0, golden)))
        known = statistics_of(tmp_path, (golden * (1 + number % 2)).astype(np.float16), f"op{number}")
        pairs.append(pair_of(known, benchmark, index=number, name=f"op{number}"))
    here = compare_pairs(pairs, THIS_THREAD)
    with ThreadPoolExecutor(2) as pool:
        assert compare_pairs(pairs, Resources(workers=2, executor=pool)) == here
    assert [row.statistics_agree for row in here] == [True, False] * 3
