"""Extremes of tensors against plain numpy, for every floating-point type, and of statistics."""

from __future__ import annotations

from dataclasses import replace
from math import inf, isnan, log2, nan
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from builders import dumped
from compiled_kernel import compiled_library
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_tool.lib.compare import tensor_figures
from precision_tool.lib.compare.tensor_figures import extremes_of, limit_of
from precision_tool.lib.demo.dump_writer import OutTensor
from precision_tool.lib.io.readers import open_op_dump
from precision_tool.lib.messages.errors import FormatError
from precision_tool.lib.model.comparison import Extremes
from precision_tool.lib.model.tensor import Tensor, TensorStatistics

TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}
#: (2 − 2^-mantissa bits) · 2^largest exponent.
LARGEST = {
    name: (2 - 2.0**-bits) * 2.0**exponent
    for name, bits, exponent in (("float16", 10, 15), ("bfloat16", 7, 127), ("float32", 23, 127), ("float64", 52, 1023))
}


@pytest.fixture(params=["numpy", "compiled"], autouse=True)
def each_kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test, with numpy and with the compiled kernel."""
    known = compiled_library() if request.param == "compiled" else None
    monkeypatch.setattr(tensor_figures, "library", lambda: known)


def extremes(folder: Path, tensor: OutTensor) -> Extremes:
    found = extremes_of(dumped(folder, tensor))
    assert found is not None
    return found


def special(name: str) -> list[float]:
    limit = LARGEST[name]
    return [inf, -inf, nan, limit, -limit, 0.0, -0.0, limit / 2]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(TYPES)))
def test_against_numpy(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, name: str) -> None:
    numbers = st.one_of(st.sampled_from(special(name)), st.floats(-1e4, 1e4, width=16))
    array = np.array(data.draw(st.lists(numbers, min_size=1, max_size=70)), np.float64).astype(TYPES[name])
    found = extremes(tmp_path_factory.mktemp("x"), OutTensor(data=array, dtype=name, shape=array.shape))
    exact = array.astype(np.float64)
    finite = np.abs(exact[np.isfinite(exact)])
    limit = LARGEST[name]
    assert found.limit == limit
    assert found.count == array.size
    assert found.largest == (finite.max() if finite.size else 0)
    assert found.saturated == np.count_nonzero(finite == limit)
    assert found.nan_count == np.count_nonzero(np.isnan(exact))
    assert found.positive_inf_count == np.count_nonzero(exact == inf)
    assert found.negative_inf_count == np.count_nonzero(exact == -inf)
    assert found.is_clean == bool((np.isfinite(exact) & (np.abs(exact) < limit)).all())


def test_headroom() -> None:
    found = Extremes(dtype="float16", count=9, limit=65504.0, largest=5.0)
    assert found.headroom == pytest.approx(log2(65504 / 5))
    assert replace(found, largest=16376.0).headroom == pytest.approx(2.0)
    assert replace(found, largest=0.0).headroom == inf
    assert replace(found, saturated=1).headroom == 0
    assert replace(found, positive_inf_count=1).headroom == 0
    assert replace(found, nan_count=1).headroom == found.headroom
    assert isnan(replace(found, largest=nan).headroom)


@pytest.mark.parametrize(
    ("name", "limit"),
    [("float16", 65504.0), ("bfloat16", 3.3895313892515355e38), ("float8_e4m3fn", 448.0), ("float8_e5m2", 57344.0),
     ("hifloat8", 32768.0), ("complex64", 3.4028234663852886e38), ("int8", None), ("bool", None), ("string", None),
     ("nothing", None)],
)  # fmt: skip
def test_limits(name: str, limit: float | None) -> None:
    assert limit_of(name) == limit


def test_types_of_eight_bits_are_never_saturated(tmp_path: Path) -> None:
    array = np.array([448, -448, np.nan, 1], ml_dtypes.float8_e4m3fn)
    found = extremes(tmp_path, OutTensor(data=array.view(np.uint8), dtype="float8_e4m3fn", shape=(4,)))
    assert (found.saturated, found.nan_count, found.largest) == (0, 1, 448.0)


def test_parts_of_complex_numbers(tmp_path: Path) -> None:
    array = np.array([complex(1, inf), complex(nan, -3)], np.complex64)
    found = extremes(tmp_path, OutTensor(data=array))
    assert (found.positive_inf_count, found.nan_count, found.largest) == (1, 1, 3.0)


def test_big_endian(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([1, -np.inf, 60000], ">f2"))
    (tensor,) = open_op_dump(str(tmp_path / "x.npy")).outputs
    assert tensor is not None
    found = extremes_of(tensor)
    assert found is not None
    assert (found.largest, found.positive_inf_count, found.negative_inf_count) == (60000, 0, 1)


def test_blocks_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_figures, "_BLOCK_BYTES", 64)
    array = np.arange(500, dtype=np.float16)
    array[[3, 77, 499]] = 65504, np.inf, np.nan
    found = extremes(tmp_path, OutTensor(data=array))
    assert (found.saturated, found.positive_inf_count, found.nan_count, found.largest) == (1, 1, 1, 65504)


def test_padding_is_not_counted(tmp_path: Path) -> None:
    array = np.full((1, 2, 2, 20), 65504, np.float16)
    found = extremes(tmp_path, OutTensor.packed(array, "NC1HWC0", "NHWC"))
    assert (found.saturated, found.count) == (80, 80)


def test_a_tensor_that_is_cut_off(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones(100, np.float16))
    (tensor,) = open_op_dump(str(tmp_path / "x.npy")).outputs
    assert isinstance(tensor, Tensor)
    (tmp_path / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-10])
    with pytest.raises(FormatError):
        extremes_of(tensor)


def statistics(**values: Any) -> Extremes:
    found = extremes_of(TensorStatistics(path="x.csv", dtype=values.pop("dtype", "float16"), shape=(4,), **values))
    assert found is not None
    return found


def test_statistics() -> None:
    clean = statistics(maximum=5.0, minimum=-7.0, nan_count=0)
    assert (clean.largest, clean.is_clean, clean.statistics_only) == (7.0, True, True)
    at_limit = statistics(maximum=1.0, minimum=-65504.0)
    assert (at_limit.saturated, at_limit.headroom) == (1, 0)
    assert statistics(maximum=1.0, minimum=0.0, nan_count=3, negative_inf_count=2).bad == 5
    # Inf and NaN in max and min, where a release counts none.
    odd = statistics(maximum=inf, minimum=nan)
    assert (odd.positive_inf_count, odd.nan_count) == (1, 1)
    unknown = statistics()
    assert unknown.is_clean
    assert isnan(unknown.headroom)
    assert extremes_of(TensorStatistics(path="x.csv", dtype="int32", shape=(4,))) is None
