"""Large ops judged by some of their rows: the same as by all of them, whether they are right or wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from builders import Array, out_tensor, write_dump
from fused_op import Files, Fused, recompute, worst
from hypothesis import given
from hypothesis import strategies as st

from precision_tool.lib.demo.dump_writer import OutTensor
from precision_tool.lib.diagnose import candidate_formulas as ways
from precision_tool.lib.diagnose import recomputer
from precision_tool.lib.diagnose import sampling as in_blocks
from precision_tool.lib.diagnose.op_values import Rows, read_values, spread
from precision_tool.lib.diagnose.verdict_model import OpResult, State
from precision_tool.lib.io import ge_dump
from precision_tool.lib.model.tensor import Tensor
from precision_tool.lib.ops.op_arguments import distinct

_BATCH = 48


@given(st.integers(1, 500), st.integers(1, 600), st.none() | st.integers(1, 40), st.sampled_from([1, 16]))
def test_rows_are_spread_over_all(count: int, chosen: int, pieces: int | None, block: int) -> None:
    rows = spread(count, chosen, pieces, block)
    numbers = rows.numbers
    assert numbers[0] == 0
    assert numbers[-1] == count - 1 or pieces == 1 or chosen == 1
    assert (np.diff(numbers) > 0).all()
    assert numbers.size == rows.chosen <= count
    assert rows.chosen >= min(chosen, count) / 2
    assert all(before[1] < after[0] for before, after in zip(rows.pieces, rows.pieces[1:], strict=False))
    assert all(start % block == 0 and (stop % block == 0 or stop == count) for start, stop in rows.pieces)


@pytest.mark.parametrize(
    ("shape", "stored", "axes"),
    [
        ((40, 6, 5, 20), "NHWC", "NHWC"), ((40, 6, 5, 20), "NC1HWC0", "NHWC"), ((40, 20, 6, 5), "NC1HWC0", "NCHW"),
        ((40, 33), "ND", "ND"), ((40, 33), "FRACTAL_NZ", "ND"), ((40,), "ND", "ND"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float16", "float32", "int32"])
def test_some_rows_of_a_file_are_those_of_the_whole(
    tmp_path: Path, shape: tuple[int, ...], stored: str, axes: str, dtype: str
) -> None:
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    plain = replace(out_tensor(array), layout=stored)
    tensor = only_output(tmp_path, OutTensor.packed(array, stored, axes) if stored != axes else plain)
    for rows in (spread(40, 5), spread(40, 40), spread(40, 12, 3), spread(40, 1)):
        found, _ = read_values(tensor, axes, shape, rows=rows)
        np.testing.assert_array_equal(found, array[rows.numbers])
    other = spread(39, 5)  # rows that it does not have
    np.testing.assert_array_equal(read_values(tensor, axes, shape, rows=other)[0], array)


def only_output(folder: Path, tensor: OutTensor) -> Tensor:
    path = folder / "Op.op.1.1.1700000000000000"
    write_dump(path, "op", [], [tensor])
    found = ge_dump.read_dump(str(path)).outputs[0]
    assert isinstance(found, Tensor)
    return found


# --- wrong ops of several kinds ---------------------------------------------------------------------------------------


def convolved(seed: int, scale: float = 1.0) -> tuple[list[Array], npt.NDArray[np.float64]]:
    """Images, filters and bias, and their convolution; one image has `scale` times the size of the others."""
    rng = np.random.default_rng(seed)
    images = rng.standard_normal((_BATCH, 18, 20, 16))
    images[_BATCH // 3 + 1] *= scale
    images = images.astype(np.float16)
    filters = (rng.standard_normal((3, 3, 16, 24)) / 30).astype(np.float16)
    bias = (rng.standard_normal(24) / 4).astype(np.float16)
    padded = np.pad(images.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    true = np.zeros((_BATCH, 18, 20, 24)) + bias.astype(np.float64)
    for i, j in product(range(3), range(3)):
        true += padded[:, i : i + 18, j : j + 20] @ filters[i, j].astype(np.float64)
    return [images, filters, bias], true


def put_out(true: npt.NDArray[np.float64]) -> Array:
    """What a sound kernel makes of it, with a Relu at its end."""
    return np.maximum(true, 0).astype(np.float16)


def last_quarter(got: Array) -> Array:
    got[3 * _BATCH // 4 :] += np.float16(1)
    return got


def end_of_rows(got: Array) -> Array:
    got[..., 16:] *= np.float16(1.5)
    got[..., 20:] += np.float16(1)
    return got


def scaled(got: Array) -> Array:
    return got * np.float16(0.5)


def not_written(got: Array) -> Array:
    return np.zeros_like(got)


def turned(got: Array) -> Array:
    return np.ascontiguousarray(got.transpose(0, 2, 1, 3)).reshape(got.shape)


def shifted(got: Array) -> Array:
    return np.roll(got, 1, axis=2)


def one_channel(got: Array) -> Array:
    got[..., 7] = 0.5
    return got


def images_in_another_order(got: Array) -> Array:
    return np.roll(got, 1, axis=0)


def batch_last(got: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(got, 0, -1)).reshape(got.shape)


def one_image(got: Array) -> Array:
    got[-1] = 3
    return got


def noise(got: Array) -> Array:
    return got + np.random.default_rng(3).standard_normal(got.shape).astype(np.float16)


FAULTS: dict[Callable[[Array], Array], bool] = {
    last_quarter: True, end_of_rows: True, scaled: True, not_written: True, turned: True, shifted: True,
    one_channel: False, images_in_another_order: False, batch_last: False, one_image: False, noise: False,
}  # fmt: skip
_ATTRS = {"strides": [1, 1, 1, 1], "pads": [1, 1, 1, 1], "dilations": [1, 1, 1, 1], "data_format": "NHWC"}


def judged(
    tmp_path: Path,
    got: Array,
    given: list[Array],
    originals: tuple[str, ...] = ("c/Conv2D", "c/BiasAdd", "c/Relu"),
    golden: Array | None = None,
) -> OpResult:
    """The op judged by itself; `golden` is what the benchmark has of its output."""
    images, filters, bias = given
    fused = Fused(
        op_type="Conv2D", originals=originals, attrs=_ATTRS, output=(got, "NHWC", "NHWC"),
        inputs=[(images, "NHWC", "NHWC"), (filters, "HWCN", "HWCN"), (bias, "ND", "ND")],
    )  # fmt: skip
    arrays = {(f"in{number}", 0): one.astype(np.float32) for number, one in enumerate(given)}
    if golden is not None:
        arrays[originals[-1].replace("/", "_"), 0] = golden.astype(np.float32)
    return recompute(tmp_path, fused, Files(tmp_path, arrays) if golden is not None else None)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_some_rows_tell_a_mistake_as_all_rows_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[[Array], Array]
) -> None:
    given, true = convolved(1)
    got = put_out(true)
    wrong = fault(got.copy())
    few = judged(tmp_path, wrong, given)
    monkeypatch.setattr(recomputer, "_SAMPLED_FROM", np.inf)
    whole = judged(tmp_path, wrong, given)
    assert few.state is whole.state is State.WRONG
    one, other = worst(few), worst(whole)
    assert other.sampled is None
    assert one.sampled is not None or not FAULTS[fault]
    assert one.places is not None
    assert other.places is not None
    assert one.places.mistake is other.places.mistake
    assert (one.places.axis, one.places.index, one.places.order, one.places.steps) == (
        other.places.axis, other.places.index, other.places.order, other.places.steps,
    )  # fmt: skip
    assert one.size == other.size == got.size
    assert one.beyond / one.looked_at == pytest.approx(other.beyond / other.size, rel=0.1)
    assert one.own == pytest.approx(other.own, rel=0.1)
    assert one.rounding == pytest.approx(other.rounding, rel=0.1)


def test_an_image_between_the_rows_is_found_by_the_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_blocks, "MAX_WHOLE_WORK", 1e5)
    monkeypatch.setattr(recomputer, "_SAMPLED_FROM", 1e6)
    given, true = convolved(1)
    sound = put_out(true)
    wrong = sound.copy()
    wrong[29] *= np.float16(1.5)
    right = judged(tmp_path, sound, given, golden=sound)
    assert right.state is State.RIGHT
    assert worst(right).sampled is not None
    assert judged(tmp_path, wrong, given).state is State.RIGHT
    assert judged(tmp_path, wrong, given, golden=sound).state is State.WRONG


def test_a_sound_op_is_right_by_every_element(tmp_path: Path) -> None:
    given, true = convolved(2)
    found = judged(tmp_path, put_out(true), given)
    assert found.state is State.RIGHT
    assert worst(found).sampled is None
    assert worst(found).size == true.size


def test_what_is_wrong_in_a_row_that_is_not_looked_at_first_is_found(tmp_path: Path) -> None:
    given, true = convolved(4)
    got = put_out(true)
    got[_BATCH // 2 + 1, 5:7] = 2
    found = judged(tmp_path, got, given)
    assert found.state is State.WRONG
    assert worst(found).sampled is None
    assert 0 < worst(found).beyond <= got[0, 5:7].size


@pytest.mark.parametrize("scale", [1.0, 12.0])
def test_a_chain_is_found_on_some_rows_and_where_these_mislead_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: float
) -> None:
    """The last part's name does not tell what it is. Relu and Relu6 differ in one image alone, if in any."""
    monkeypatch.setattr(ways, "_SEARCHED_ELEMENTS", 1 << 14)
    given, true = convolved(0, scale)
    assert np.abs(np.delete(true, _BATCH // 3 + 1, axis=0)).max() < 6
    golden = np.clip(true, 0, 6)
    originals = ("c/Conv2D", "c/BiasAdd", "c/activation")
    found = judged(tmp_path, golden.astype(np.float16), given, originals, golden)
    assert found.state is State.RIGHT
    assert found.how == ("Conv2D", "BiasAdd", "Relu" if scale == 1.0 else "Relu6")
    assert found.slots[0].beyond == 0
    assert found.slots[0].sampled is None


@pytest.mark.parametrize("piece", [(0, 1), (3, 4), (5, 12), (17, 30), (29, 30), (0, 30), (10, 11)])
def test_one_more_piece(piece: tuple[int, int]) -> None:
    """It joins those that it touches."""
    rows = Rows(30, ((0, 3), (10, 12), (20, 30)))
    found = rows.with_piece(*piece)
    np.testing.assert_array_equal(found.numbers, np.union1d(rows.numbers, np.arange(*piece)))
    assert all(end < start for (_, end), (start, _) in pairwise(found.pieces))


@given(st.lists(st.integers(-5, 20), max_size=30))
def test_numbers_each_once(numbers: list[int]) -> None:
    values = np.array(numbers, np.intp)
    np.testing.assert_array_equal(distinct(values), np.unique(values))
