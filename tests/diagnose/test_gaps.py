"""Ops that left no file, judged together with those around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import Array
from diagnosing import blame_of, verdict_of
from faults import last_digit, negated, stored_transposed
from tiny_network import Network, Part, binary, layers, numbers

from precision_tool.lib.diagnose import decide as gaps
from precision_tool.lib.diagnose.verdict_model import Cause
from precision_tool.lib.messages import Message
from precision_tool.lib.view.verdict_messages import proof

#: The product and its activation: what is between them is in no file.
LOST = ["two/MatMul", "two/Tanh"]


@pytest.mark.parametrize("benchmark", [True, False])
@pytest.mark.parametrize("op", LOST)
def test_ops_without_files_are_accused_together(tmp_path: Path, op: str, benchmark: bool) -> None:
    """The result behind them is not what they make of what is known before them; which one it is, no file says."""
    network = layers().with_part(op, wrong=negated)
    found = verdict_of(network.write(tmp_path, leave_out=LOST, benchmark=benchmark))
    assert found.cause is Cause.KERNEL
    assert set(found.ranking) >= set(LOST)
    assert len(found.suspects) == 1
    assert found.confidence <= 0.5
    assert proof(found.suspects[0]) == Message("verdict.proof.one_of")


def test_a_layout_is_seen_behind_several_ops(tmp_path: Path) -> None:
    data = layers().with_part("two/Tanh", wrong=stored_transposed).write(tmp_path, leave_out=LOST)
    assert blame_of(data) == ("two/Tanh", Cause.LAYOUT)


@pytest.mark.parametrize("benchmark", [True, False])
@pytest.mark.parametrize("wrong", [None, last_digit])
def test_ops_without_files_that_are_right(tmp_path: Path, wrong: object, benchmark: bool) -> None:
    """Rounding between them is no fault, and what was put out behind them counts as judged."""
    network = layers() if wrong is None else layers().with_part("two/MatMul", wrong=last_digit)
    found = verdict_of(network.write(tmp_path / "less", leave_out=LOST, benchmark=benchmark))
    assert (found.culprit, found.cause, found.tally.wrong) == (None, Cause.NONE, 0)
    # All but the random numbers, and the product of which nothing is known.
    assert found.tally.right == found.tally.ops - 2


@pytest.mark.parametrize("factor", [1.015, 1.019])
def test_a_small_error_of_ops_without_files_is_no_acquittal(tmp_path: Path, factor: float) -> None:
    """More than rounding between them makes of it, and not enough to accuse: it stays open."""

    def scaled(array: Array) -> Array:
        return (array * np.float32(factor)).astype(array.dtype)

    broken = layers().with_part("two/Tanh", wrong=scaled)
    found = verdict_of(broken.write(tmp_path, leave_out=LOST, benchmark=False))
    assert (found.culprit, found.tally.wrong) == (None, 0)
    # The random numbers, the product and its activation are not known to be right.
    assert found.tally.right == found.tally.ops - 3
    assert found.tally.not_recomputed == 3


def test_a_shape_between_them(tmp_path: Path) -> None:
    """What only gives a tensor another shape has no file on a device."""
    network = layers()
    kept = [part for part in network.parts if part.name not in ("two/Tanh", "trans_Cast_4", "loss/Square")]
    more = (
        Part(name="flat", type="Reshape", inputs=("two/MatMul",), compute=lambda x: x.reshape(-1), dtype="float16",
             is_dumped=False, originals=("flat",)),
        Part(name="flat/Tanh", type="Tanh", inputs=("flat",), compute=np.tanh, dtype="float16",
             originals=("flat/Tanh",)),
        binary("end", "Add", "flat/Tanh", "flat/Tanh"),
    )  # fmt: skip
    long = Network(parts=(*kept, *more))
    lost = ["two/MatMul", "flat/Tanh"]
    assert verdict_of(long.write(tmp_path / "right", leave_out=lost)).cause is Cause.NONE
    wrong = long.with_part("two/MatMul", wrong=negated)
    found = verdict_of(wrong.write(tmp_path / "wrong", leave_out=lost))
    assert (found.cause, set(found.ranking)) == (Cause.KERNEL, set(lost))


def shifted_by_a_bias() -> Network:
    network = layers()
    bias = numbers(6, seed=21)
    add = Part(
        name="two/BiasAdd", type="BiasAdd", inputs=("trans_Cast_4", "two/bias"), compute=np.add,
        originals=("two/BiasAdd",), attrs={"data_format": "NHWC"},
    )  # fmt: skip
    variable = Part(name="two/bias", type="Variable", npu=bias, is_dumped=False)
    parts = [replace(part, inputs=("two/BiasAdd",)) if part.name == "loss/Square" else part for part in network.parts]
    return Network(parts=(*parts[:-1], variable, add, parts[-1]))


def test_a_variable_that_one_op_alone_reads(tmp_path: Path) -> None:
    """Nothing has its numbers but the benchmark, by which nearly all that the op puts out is off."""
    network = shifted_by_a_bias()
    golden = numbers(6, seed=22)
    data = network.with_part("two/bias", golden=golden).write(tmp_path / "wrong", inputs=False)
    assert blame_of(data) == ("two/bias", Cause.WEIGHTS)
    assert verdict_of(network.write(tmp_path / "same", inputs=False)).cause is Cause.NONE
    # A fault of some elements is the op's.
    broken = network.with_part("two/BiasAdd", wrong=negated)
    assert blame_of(broken.write(tmp_path / "op", inputs=False)) == ("two/BiasAdd", Cause.KERNEL)


def twice(array: Array) -> Array:
    return (array + numbers(6, seed=21)).astype(array.dtype)


def subtracted(array: Array) -> Array:
    changed: Array = (array - 2 * numbers(6, seed=21)).astype(array.dtype)
    return changed


def in_another_order(array: Array) -> Array:
    bias = numbers(6, seed=21)
    changed: Array = (array - bias + np.roll(bias, 1)).astype(array.dtype)
    return changed


def noisy(array: Array) -> Array:
    noise = np.random.default_rng(1).standard_normal(array.shape)
    changed: Array = (array * (1 + 0.05 * noise)).astype(array.dtype)
    return changed


@pytest.mark.parametrize("wrong", [twice, subtracted, in_another_order, noisy])
def test_an_op_that_is_off_all_over_is_not_acquitted(tmp_path: Path, wrong: Callable[[Array], Array]) -> None:
    """Its one variable is not blamed alone: a kernel makes such errors of the same numbers."""
    broken = shifted_by_a_bias().with_part("two/BiasAdd", wrong=wrong)
    found = verdict_of(broken.write(tmp_path, inputs=False))
    assert (found.culprit, found.cause) == ("two/BiasAdd", Cause.KERNEL)
    assert found.ranking == ("two/BiasAdd", "two/bias")
    assert found.confidence <= 0.5
    assert proof(found.suspects[0]) == Message("verdict.proof.or_variable", variable="two/bias")


def test_a_variable_behind_ops_without_files(tmp_path: Path) -> None:
    network = shifted_by_a_bias().with_part("two/bias", golden=numbers(6, seed=22))
    found = verdict_of(network.write(tmp_path, leave_out=["trans_Cast_4", "two/BiasAdd"]))
    assert (found.culprit, found.cause) == ("two/bias", Cause.WEIGHTS)
    assert set(found.ranking) == {"two/bias", "trans_Cast_4", "two/BiasAdd"}


def test_what_is_too_large_is_not_judged_with_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their inputs are in memory together."""
    monkeypatch.setattr(gaps, "_MAX_ELEMENTS", 64)
    found = verdict_of(layers().with_part("two/MatMul", wrong=negated).write(tmp_path, leave_out=LOST, benchmark=False))
    assert found.culprit is None
    assert found.tally.not_recomputed == 3
