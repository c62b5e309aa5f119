"""A look at some rows where the comparison showed nothing new says what a look at all rows says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest
from builders import Array
from diagnosing import verdict_of
from faults import narrowed
from fused_op import Fused, recompute, worst
from tiny_network import layers

from precision_tool.lib.diagnose import sampling as glance
from precision_tool.lib.diagnose.op_values import Compared, RunValues
from precision_tool.lib.diagnose.verdict_model import Cause, State
from precision_tool.lib.model.comparison import Metrics, Pair, Summary
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.tensor import Tensor

_QUIET = Compared(quiet=frozenset({"fused"}))


@pytest.fixture(autouse=True)
def _smaller_ops_are_glanced_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glance, "_SAMPLE_FROM_ELEMENTS", 1 << 15)
    monkeypatch.setattr(glance, "_MIN_SAMPLE_ELEMENTS", 1 << 9)


def halves(seed: int, *shape: int, scale: float = 1.0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float16)


def one_op(kind: str) -> Fused:
    """An op of a kind with what a sound kernel puts out."""
    images, others = halves(1, 48, 12, 10, 20), halves(2, 48, 12, 10, 20)
    rows, more = halves(3, 6000, 24), halves(4, 6000, 24)
    matrix, bias = halves(5, 24, 18, scale=0.2), halves(6, 18)
    match kind:
        case "Add":
            return _made("Add", [(rows, "ND", "ND"), (more, "ND", "ND")], rows.astype(np.float64) + more, "ND")
        case "Mul":
            factor = np.array(0.3, np.float32)
            return _made("Mul", [(rows, "ND", "ND"), (factor, "ND", "ND")], rows.astype(np.float64) * factor, "ND")
        case "Sub in blocks":
            fed = [(images, "NC1HWC0", "NHWC"), (others, "NC1HWC0", "NHWC")]
            return _made("Sub", fed, images.astype(np.float64) - others, "NC1HWC0", "NHWC")
        case "TransData":
            return _made("TransData", [(images, "NHWC", "NHWC")], images, "NC1HWC0", "NHWC")
        case "ReluGrad in blocks":
            fed = [(rows, "FRACTAL_NZ", "ND"), (more, "FRACTAL_NZ", "ND")]
            return _made("ReluGrad", fed, np.where(more > 0, rows, 0), "FRACTAL_NZ", "ND")
        case _:
            fed = [(rows, "ND", "ND"), (matrix, "ND", "ND"), (bias, "ND", "ND")]
            return _made("MatMulV2", fed, rows.astype(np.float64) @ matrix.astype(np.float64) + bias, "ND")


def _made(op_type: str, fed: list[tuple[Array, str, str]], true: Array, stored: str, axes: str = "ND") -> Fused:
    output = np.asarray(true).astype(np.float16), stored, axes
    return Fused(op_type=op_type, originals=("one",), inputs=fed, output=output, attrs={})


KINDS = ["Add", "Mul", "Sub in blocks", "TransData", "ReluGrad in blocks", "MatMulV2"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_op_is_right_whichever_rows_are_looked_at(tmp_path: Path, kind: str) -> None:
    fused = one_op(kind)
    few, whole = recompute(tmp_path, fused, compared=_QUIET), recompute(tmp_path, fused)
    assert few.state is whole.state is State.RIGHT
    assert few.how == whole.how
    one, other = worst(few), worst(whole)
    assert other.sampled is None
    assert one.sampled is not None
    assert 0 < one.sampled < one.size / 4
    assert (one.size, one.slack, one.kind, one.dtype) == (other.size, other.slack, other.kind, other.dtype)
    assert one.own == pytest.approx(other.own, rel=0.1)
    assert one.rounding == pytest.approx(other.rounding, rel=0.1)
    assert one.exact_share == pytest.approx(other.exact_share, abs=0.01)


def tail(got: Array) -> Array:
    flat = got.reshape(-1)
    flat[-got.size // 50 :] += np.float16(1)
    return got


def ends_of_rows(got: Array) -> Array:
    got[..., -2:] *= np.float16(1.5)
    return got


def in_bfloat16(got: Array) -> Array:
    return narrowed(got).astype(np.float16)


def rows_in_another_order(got: Array) -> Array:
    return np.roll(got, 1, 0)


def turned(got: Array) -> Array:
    return np.ascontiguousarray(got.T).reshape(got.shape)


def a_run_in_the_middle(got: Array) -> Array:
    flat = got.reshape(-1)
    flat[got.size // 2 : got.size // 2 + got.size // 5] = 0.25
    return got


@pytest.mark.parametrize(
    "fault", [tail, ends_of_rows, in_bfloat16, rows_in_another_order, turned, a_run_in_the_middle],
    ids=lambda fault: fault.__name__,
)  # fmt: skip
@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_op_is_judged_whole(tmp_path: Path, kind: str, fault: Callable[[Array], Array]) -> None:
    fused = one_op(kind)
    array, stored, axes = fused.output
    wrong = replace(fused, output=(fault(array.copy()), stored, axes))
    few, whole = recompute(tmp_path, wrong, compared=_QUIET), recompute(tmp_path, wrong)
    assert few.state is whole.state is State.WRONG
    assert few.slots == whole.slots
    assert worst(few).sampled is None


def between_the_pieces(got: Array) -> Array:
    """A fault that no row of the glance has."""
    size = len(got)
    first = size // 7 // 2 + size // 14 - size // 50
    got[first : first + max(1, size // 100)] += np.float16(1)
    return got


@pytest.mark.parametrize("kind", ["Add", "MatMulV2", "ReluGrad in blocks"])
def test_the_place_of_the_largest_error_is_looked_at(tmp_path: Path, kind: str) -> None:
    """Behind a large fault nothing else tells of a second one."""
    fused = one_op(kind)
    array, stored, axes = fused.output
    wrong = replace(fused, output=(between_the_pieces(array.copy()), stored, axes))
    (place, *_) = np.flatnonzero(wrong.output[0] != array)
    assert recompute(tmp_path, wrong, compared=_QUIET).state is State.RIGHT
    told = replace(_QUIET, places={("fused", "output:0"): (int(place), array.size)})
    found = recompute(tmp_path, wrong, compared=told)
    assert found.state is State.WRONG
    assert found.slots == recompute(tmp_path, wrong).slots
    # The place in a tensor of another size tells nothing, and in a sound op it does no harm.
    other = replace(_QUIET, places={("fused", "output:0"): (int(place), array.size + 1)})
    assert recompute(tmp_path, wrong, compared=other).state is State.RIGHT
    sound = recompute(tmp_path, fused, compared=told)
    assert sound.state is State.RIGHT
    assert worst(sound).sampled is not None


def test_a_small_op_is_looked_at_whole(tmp_path: Path) -> None:
    rows, more = halves(3, 400, 24), halves(4, 400, 24)
    true = rows.astype(np.float64) + more
    found = recompute(tmp_path, _made("Add", [(rows, "ND", "ND"), (more, "ND", "ND")], true, "ND"), compared=_QUIET)
    assert found.state is State.RIGHT
    assert worst(found).sampled is None


# --- what the comparison showed ---------------------------------------------------------------------------------------


def row(slot: str, error: float, **changes: object) -> Row:
    """A compared tensor whose benchmark has an rms of 2, and whose largest error is `error`."""
    tensor = Tensor(path=f"/{slot}", offset=0, nbytes=200, dtype="float16", shape=(100,), layout="ND")
    pair = Pair(index=0, op_name="op", op_type="Add", npu_ops=("op",), golden_ops=("op",), slot=slot, npu=tensor,
                golden_tensor="op.0", shape=(100,))  # fmt: skip
    metrics = Metrics(cosine=0.999, max_absolute_error=error, accumulated_relative_error=0.01,
                      relative_euclidean_distance=0.01, kullback_leibler_divergence=nan, mean_absolute_error=0.01,
                      root_mean_square_error=0.01, max_relative_error=0.1, mean_relative_error=0.1)  # fmt: skip
    summary = Summary(count=100, minimum=-5, maximum=5, mean=0.0, std=2.0)
    return replace(Row(pair=pair, metrics=metrics, npu=summary, golden=summary), **changes)  # type: ignore[arg-type]


def test_an_op_is_quiet_if_its_outputs_are_no_farther_off_than_its_inputs() -> None:
    def is_quiet(*rows: Row) -> bool:
        return Compared.of(rows).quiet == {"op"}

    assert is_quiet(row("output:0", 0.02))
    assert not is_quiet(row("output:0", 0.1))
    assert is_quiet(row("input:0", 0.1), row("output:0", 0.1))
    assert is_quiet(row("input:0", 0.0, metrics=None), row("output:0", 0.02))
    assert not is_quiet(row("input:0", 0.0, metrics=None), row("output:0", 0.1))
    assert not is_quiet(row("input:0", 0.1), row("output:0", 1.0))
    assert not is_quiet(row("input:0", 0.1), row("output:0", 0.1), row("output:1", 1.0))
    assert not is_quiet(row("input:0", 0.1))
    assert not is_quiet(row("input:0", inf), row("output:0", 3.0))
    assert not is_quiet(row("output:0", nan))
    assert not is_quiet(row("output:0", 0.0, metrics=None))
    assert not is_quiet(row("output:0", 0.0, golden=None))
    assert not is_quiet(row("output:0", 0.0, absent=frozenset({"golden.std"})))
    first = Summary(count=8, minimum=-5, maximum=5, mean=0.0, std=2.0)
    assert not is_quiet(row("output:0", 0.0, npu=first, golden=first))
    assert not is_quiet(row("input:0", 0.0), row("output:0", 0.0, npu=first, golden=first))
    whole = row("output:0", 0.0).metrics
    assert whole is not None
    assert not is_quiet(row("output:0", 0.0, metrics=replace(whole, non_finite_mismatches=1)))


def test_the_largest_errors_of_quiet_outputs_have_a_place() -> None:
    metrics = row("output:0", 0.0).metrics
    assert metrics is not None
    shaped = replace(row("output:0", 0.02).pair, shape=(20, 5))
    found = row("output:0", 0.02, pair=shaped, metrics=replace(metrics, max_error_index=(3, 2)))
    assert Compared.of([found]).places == {("op", "output:0"): (17, 100)}
    loud = replace(found, metrics=replace(metrics, max_error_index=(3, 2), max_absolute_error=9.0))
    assert not Compared.of([loud]).places
    fed = replace(found, pair=replace(shaped, slot="input:0"))
    assert not Compared.of([fed, row("output:0", 0.02)]).places


def test_tensors_are_the_same_if_every_figure_is() -> None:
    one, other = row("output:0", 0.5), row("input:0", 0.5)
    assert one.metrics is not None
    keys = ("op", "output:0"), ("op", "input:0")

    def same(changed: Row) -> bool:
        return Compared.of([one, changed]).is_same(*keys)

    assert same(other)
    assert not same(replace(other, metrics=replace(one.metrics, mean_absolute_error=np.nextafter(0.01, 1))))
    assert not same(replace(other, pair=replace(other.pair, golden_tensor="another.0")))
    assert not same(replace(other, npu=Summary(count=100, minimum=-5, maximum=5, mean=0.0, std=2.0, zero_count=1)))
    assert not same(replace(other, metrics=None))
    infinite = Summary(count=100, minimum=-5, maximum=5, mean=0.0, std=2.0, positive_inf_count=1)
    assert not Compared.of([replace(one, npu=infinite), replace(other, npu=infinite)]).is_same(*keys)
    first = Summary(count=8, minimum=-5, maximum=5, mean=0.0, std=2.0)
    assert not Compared.of([replace(one, npu=first), replace(other, npu=first)]).is_same(*keys)
    assert not Compared().is_same(*keys)


# --- whole runs -------------------------------------------------------------------------------------------------------


def overwritten(array: Array) -> Array:
    flat = array.copy().reshape(-1)
    flat[16:48] = 0.125
    return flat.reshape(array.shape)


@pytest.mark.parametrize(
    ("op", "changes", "cause"),
    [
        ("one/Relu", {"read": {0: overwritten}}, Cause.STOMP),
        ("two/Tanh", {"wrong": lambda array: np.roll(array, 1, -1)}, Cause.KERNEL),
        ("one/MatMul", {"wrong": lambda array: -array}, Cause.KERNEL),
    ],
)
def test_the_verdict_on_a_fault_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, op: str, changes: dict[str, object], cause: Cause
) -> None:
    data = layers().with_part(op, **changes).write(tmp_path)
    before = verdict_of(data)
    monkeypatch.setattr(glance, "_SAMPLE_FROM_ELEMENTS", 0)
    monkeypatch.setattr(glance, "_MIN_SAMPLE_ELEMENTS", 1)
    monkeypatch.setattr(glance, "_MIN_SAMPLE_ROWS", 2)
    looked_at: list[bool] = []
    monkeypatch.setattr(RunValues, "compared_alike", _noting(RunValues.compared_alike, looked_at))
    after = verdict_of(data)
    assert (after.culprit, after.cause) == (before.culprit, before.cause) == (op, cause)
    assert after.tally == before.tally
    assert any(looked_at)


def _noting(function: Callable[..., bool], seen: list[bool]) -> Callable[..., bool]:
    def noted(*arguments: object) -> bool:
        seen.append(function(*arguments))
        return seen[-1]

    return noted


def test_what_was_compared_element_by_element_need_not_be_read_again() -> None:
    told = Compared.of([row("input:0", 0.0), row("output:0", 0.5)])
    assert told.distances["op", "input:0"] == 0.0
    assert told.distances["op", "output:0"] == 0.01
    assert told.largest["op", "output:0"] == 5
    # An error so small that its distance was rounded to zero is no equality, and a part tells nothing of the rest.
    tiny = row("output:0", 1e-300)
    assert tiny.metrics is not None
    tiny = replace(tiny, metrics=replace(tiny.metrics, relative_euclidean_distance=0.0))
    assert Compared.of([tiny]).distances["op", "output:0"] != 0.0
    assert tiny.npu is not None
    assert not Compared.of([replace(tiny, npu=replace(tiny.npu, count=50))]).distances
