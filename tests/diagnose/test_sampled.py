"""Large ops of which some elements are recomputed: the benchmark finds a fault of few others, or a gap is told."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from builders import Array
from diagnosing import blame_of, judged_alone, verdict_of
from fused_op import Files, Fused, recompute, worst
from rich.console import Console
from tiny_network import Network, matmul, numbers, source, unary

from precision_tool.lib.compare.scheduler import THIS_THREAD
from precision_tool.lib.data.settings import load_settings
from precision_tool.lib.diagnose import recomputer
from precision_tool.lib.diagnose import sampling as in_blocks
from precision_tool.lib.diagnose import sampling as row_sums
from precision_tool.lib.diagnose.verdict_model import Cause, OpResult, State
from precision_tool.lib.messages import Message
from precision_tool.lib.session import Session
from precision_tool.lib.view.op_screen import verdict_lines
from precision_tool.lib.view.verdict_messages import gap


@pytest.fixture(autouse=True)
def _small_ops_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_blocks, "MAX_WHOLE_WORK", 1e5)
    monkeypatch.setattr(in_blocks, "MAX_WIDE_WORK", 1e5)
    monkeypatch.setattr(recomputer, "_SAMPLED_FROM", 1e5)
    monkeypatch.setattr(recomputer, "_SAMPLES", 64)


def one_column(got: Array) -> Array:
    got[:, 37] *= np.float32(1.5)
    return got


def one_row(got: Array) -> Array:
    got[61] = 0
    return got


def one_element(got: Array) -> Array:
    got[61, 37] += np.float32(1)
    return got


def one_nan(got: Array) -> Array:
    got[61, 37] = np.nan
    return got


FAULTS = [one_column, one_row, one_element, one_nan]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_between_the_places_is_found_by_the_benchmark(tmp_path: Path, fault: Callable[[Array], Array]) -> None:
    a, b = numbers(120, 50, seed=1), numbers(50, 90, seed=2)
    true = (a.astype(np.float64) @ b).astype(np.float32)
    fed = [(a, "ND", "ND"), (b, "ND", "ND")]
    benchmark = Files(tmp_path, {("in0", 0): a, ("in1", 0): b, ("one", 0): true})

    def found(output: Array, side: Files | None) -> State:
        fused = Fused(op_type="MatMulV2", originals=("one",), inputs=fed, output=(output, "ND", "ND"), attrs={})
        return recompute(tmp_path, fused, side).state

    assert found(true, benchmark) is State.RIGHT
    assert found(fault(true.copy()), benchmark) is State.WRONG


def network() -> Network:
    return Network(
        parts=(
            source("IteratorGetNext", numbers(120, 50, seed=1)),
            source("w", numbers(50, 90, seed=2), op_type="Variable"),
            matmul("one/MatMul", "IteratorGetNext", "w", "float32"),
            unary("one/Relu", "Relu", "one/MatMul", "float32"),
        )
    )


def test_the_verdict_names_the_op_that_few_elements_accuse(tmp_path: Path) -> None:
    assert blame_of(network().with_part("one/MatMul", wrong=one_column).write(tmp_path)) == ("one/MatMul", Cause.KERNEL)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_without_a_benchmark_the_sums_of_rows_tell(tmp_path: Path, fault: Callable[[Array], Array]) -> None:
    wrong = network().with_part("one/MatMul", wrong=lambda array: fault(array.copy()))
    assert blame_of(wrong.write(tmp_path, benchmark=False)) == ("one/MatMul", Cause.KERNEL)


def over_the_range(tmp_path: Path, rows: int, fault: Callable[[Array], Array] | None = None) -> OpResult:
    """A product of which some rows go over float32's range, as they have to; a fault is in one of the others."""
    a, b = numbers(120, 50, seed=1), numbers(50, 90, seed=2)
    a[:rows] = np.sign(a[:rows]) * np.float32(2e38)
    with np.errstate(over="ignore"):
        output = (a.astype(np.float64) @ b).astype(np.float32)
        assert (~np.isfinite(output)).any(1).sum() == rows
        if fault is not None:
            output = fault(output)
    fed = [(a, "ND", "ND"), (b, "ND", "ND")]
    output_of = output, "ND", "ND"
    return recompute(tmp_path, Fused(op_type="MatMulV2", originals=("one",), inputs=fed, output=output_of, attrs={}))


@pytest.mark.parametrize("most_work", [0.0, 2e10])
@pytest.mark.parametrize("fault", [one_column, one_row, one_element], ids=lambda fault: fault.__name__)
def test_rows_over_the_range_do_not_hide_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[[Array], Array], most_work: float
) -> None:
    """They have no sum, and there are more of them than are recomputed."""
    monkeypatch.setattr(row_sums, "_SHOWN", 2 * 90)
    monkeypatch.setattr(recomputer, "_WHOLE_UP_TO", most_work)
    assert over_the_range(tmp_path, 20, fault).state is State.WRONG


def test_an_op_is_acquitted_by_sums_only_where_every_row_has_one_or_is_recomputed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_sums, "_SHOWN", 4 * 90)
    few = over_the_range(tmp_path, 4)
    assert (few.state, worst(few).is_summed) == (State.RIGHT, True)
    assert worst(few).sampled is not None
    whole = over_the_range(tmp_path, 20)
    assert (whole.state, worst(whole).sampled) == (State.RIGHT, None)
    monkeypatch.setattr(recomputer, "_WHOLE_UP_TO", 0.0)
    many = over_the_range(tmp_path, 20)
    assert (many.state, worst(many).is_summed) == (State.DOUBTFUL, False)
    assert many.reason == Message("reason.rows_off")
    assert many.overflow is not None


def test_rounding_of_a_row_is_no_fault(tmp_path: Path) -> None:
    """What HF32 makes of a product, 12 bits less, is beyond float32's rounding and no wrong sum."""

    def hf32(array: Array) -> Array:
        return array * (1 + np.random.default_rng(3).normal(size=array.shape) * 2.0**-14).astype(np.float32)

    data = network().with_part("one/MatMul", wrong=hf32).write(tmp_path, benchmark=False)
    assert blame_of(data) == (None, Cause.NONE)


def test_what_was_not_recomputed_is_told(tmp_path: Path) -> None:
    found = verdict_of(network().write(tmp_path, benchmark=False))
    assert found.cause is Cause.NONE
    (sampled,) = map(gap, found.gaps)
    assert isinstance(sampled, Message)
    assert (sampled.kind, sampled.count, sampled.ops) == ("gap.sampled_sums", 1, 2)


def test_what_ni_shows_says_of_how_many_elements_it_tells(tmp_path: Path) -> None:
    data = network().write(tmp_path, benchmark=False)
    session = Session(load_settings({"data": str(data), "work": str(data / "work")}))
    (judged,) = judged_alone(session, THIS_THREAD)
    shown = {}
    for one in judged.ops:
        out = io.StringIO()
        Console(file=out, width=200).print(verdict_lines("", one.verdict(), ()))
        shown[one.name] = out.getvalue()
    assert "of 10,800 elements recomputed, and the sums of all rows" in shown["one/MatMul"]
    assert "elements recomputed" not in shown["one/Relu"]


@pytest.mark.parametrize("fault", [None, one_element])
def test_a_small_result_of_many_products_is_recomputed_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[[Array], Array] | None
) -> None:
    """Every place of it is asked for, so that nothing is left for sums of rows, and no gap is told."""
    monkeypatch.setattr(recomputer, "_SAMPLES", 120 * 90)
    monkeypatch.setattr(recomputer, "odd_rows", lambda *_: pytest.fail("all elements are recomputed"))
    made = network() if fault is None else network().with_part("one/MatMul", wrong=lambda got: fault(got.copy()))
    found = verdict_of(made.write(tmp_path, benchmark=False))
    assert found.gaps == ()
    assert found.culprit == (None if fault is None else "one/MatMul")
