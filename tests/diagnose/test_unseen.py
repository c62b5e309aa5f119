"""Faults whose every element looks right, or whose inputs prove nothing: each is named, and its near miss is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from builders import Array, graph_op, tensor_desc, write_dump
from diagnosing import verdict_of
from faults import zero_tail
from msprobe_files import forward, literal, tensor, write_leaf
from tiny_network import Network, Part, binary, cast, fused, layers, numbers, source, unary

from precision_tool.lib.data import dump_tree as walk
from precision_tool.lib.data.dumped_ops import NoBenchmark
from precision_tool.lib.demo.dump_writer import OutTensor, dump_file_name
from precision_tool.lib.diagnose.error_shape import UNIT, Mistake, misfit, places_of
from precision_tool.lib.diagnose.op_values import RunValues
from precision_tool.lib.diagnose.recomputer import Recomputer
from precision_tool.lib.diagnose.verdict_model import Action, Cause, OpResult, State, Step, Verdict
from precision_tool.lib.messages import render
from precision_tool.lib.model.graph import Graph, GraphFile
from precision_tool.lib.ops.base import Kind, Output
from precision_tool.lib.view.verdict_messages import evidence, same_fault, what_is_wrong


def words(verdict: Verdict, language: str = "en") -> str:
    """What the verdict says of its first suspect."""
    first = verdict.suspects[0]
    return "\n".join(render(message, language) for message in (what_is_wrong(first), *evidence(first)))


def actions(verdict: Verdict) -> list[Action]:
    """The steps that it says to take."""
    return [step.do for step in verdict.next if isinstance(step, Step)]


# --- rounding ---------------------------------------------------------------------------------------------------------


def truncated(wide: Array, narrow: str = "float16") -> Array:
    """What stands before the bits that a type does not have."""
    near = wide.astype(narrow)
    return np.where(np.abs(near) > np.abs(wide), np.nextafter(near, np.asarray(0, narrow)), near).astype(narrow)


def of(changed: Array, _: Array) -> Array:
    """What was put out instead."""
    return changed


def casts(count: int, size: int = 400, wrong: int = 0) -> Network:
    """Casts of the compiler from float32 to float16; the last `wrong` ones truncate."""
    parts: list[Part] = []
    for number in range(count):
        wide = numbers(size, seed=number + 1)
        made = cast(f"trans_Cast_{number}", f"data{number}")
        if number >= count - wrong:
            made = replace(made, wrong=partial(of, truncated(wide)))
        parts += [source(f"data{number}", wide), made, unary(f"relu{number}", "Relu", f"trans_Cast_{number}")]
    return Network(parts=tuple(parts))


def test_a_cast_that_truncates(tmp_path: Path) -> None:
    """Every element is within a unit of the last place; that all are rounded toward zero is no chance."""
    found = verdict_of(casts(2, wrong=1).write(tmp_path))
    assert (found.culprit, found.cause) == ("trans_Cast_1", Cause.CAST)
    assert found.suspects[0].fact("mistake") == "truncated"
    assert found.suspects[0].fact("others_round") is True
    assert 0.4 < found.suspects[0].fact("wrong_elements") / 400 < 0.6
    assert "the cast truncates instead of rounding" in words(found)
    assert "others round correctly" in words(found)
    assert Action.REPORT_KERNEL in actions(found)
    assert words(found, "zh")


def test_a_device_that_truncates_is_one_fault(tmp_path: Path) -> None:
    found = verdict_of(casts(4, wrong=4).write(tmp_path))
    (suspect,) = found.suspects
    assert (suspect.culprit, suspect.cause) == ("trans_Cast_0", Cause.CAST)
    assert suspect.also == ("trans_Cast_1", "trans_Cast_2", "trans_Cast_3")
    assert "4 ops of type Cast (float32 to float16) truncate" in words(found)
    assert "this is how the device computes them" in words(found)
    ((label, names),) = same_fault(suspect)
    assert (label.kind, tuple(names)) == ("verdict.label.also", suspect.also)


def test_casts_that_round_are_right(tmp_path: Path) -> None:
    assert verdict_of(casts(3).write(tmp_path)).culprit is None


@pytest.mark.parametrize("inexact", [20, 63])
def test_few_elements_do_not_tell_how_a_cast_rounds(tmp_path: Path, inexact: int) -> None:
    """The others are numbers that float16 holds."""
    wide = numbers(400, seed=1).astype(np.float16).astype(np.float32)
    wide[:inexact] = numbers(inexact, seed=2)
    parts = (
        source("data", wide), replace(cast("trans_Cast_0", "data"), wrong=lambda _: truncated(wide)),
        unary("relu", "Relu", "trans_Cast_0"),
    )  # fmt: skip
    assert verdict_of(Network(parts=parts).write(tmp_path)).culprit is None


def test_a_cast_that_rounds_ties_down_is_right(tmp_path: Path) -> None:
    """Between two neighbours there is no nearer one."""
    ties = (1 + (2 * np.arange(400) + 1) * 2.0**-11).astype(np.float32)
    parts = (
        source("data", ties), replace(cast("trans_Cast_0", "data"), wrong=lambda _: truncated(ties)),
        unary("relu", "Relu", "trans_Cast_0"),
    )  # fmt: skip
    assert verdict_of(Network(parts=parts).write(tmp_path)).culprit is None


def test_a_cast_that_rounds_at_random(tmp_path: Path) -> None:
    """It is within a unit of the last place as well, and not what rounding to nearest is."""

    def at_random(_: Array) -> Array:
        low = truncated(wide)
        up = np.nextafter(low, np.where(wide > 0, np.inf, -np.inf).astype(np.float16))
        is_exact = low.astype(np.float32) == wide
        return np.where(is_exact | (np.random.default_rng(3).random(wide.shape) < 0.5), low, up)

    wide = numbers(400, seed=1)
    network = casts(1).with_part("data0", npu=wide).with_part("trans_Cast_0", wrong=at_random)
    found = verdict_of(network.write(tmp_path))
    assert (found.culprit, found.cause) == ("trans_Cast_0", Cause.CAST)
    assert found.suspects[0].fact("mistake") == "misrounded"


@pytest.mark.parametrize("op_type", ["Add", "Mul"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_an_op_that_truncates(tmp_path: Path, op_type: str, dtype: str) -> None:
    """What rounds once is held to it too; the slack of an element alone would let it pass."""
    a, b = numbers(30, 30, seed=1).astype(dtype), numbers(30, 30, seed=2, scale=0.1).astype(dtype)

    def cut(_: Array) -> Array:
        compute = np.add if op_type == "Add" else np.multiply
        return truncated(compute(a.astype(np.float64), b.astype(np.float64)), dtype)

    parts = (source("a", a), source("b", b), binary("op", op_type, "a", "b", dtype), unary("relu", "Relu", "op", dtype))
    network = Network(parts=parts)
    assert verdict_of(network.write(tmp_path / "right")).culprit is None
    found = verdict_of(network.with_part("op", wrong=cut).write(tmp_path / "wrong"))
    assert (found.culprit, found.cause) == ("op", Cause.KERNEL)
    assert found.suspects[0].fact("mistake") == "truncated"


def in_bfloat16(array: Array, added: int) -> Array:
    """float32 numbers cut to bfloat16, after so much was added to the bits that go."""
    return ((array.view(np.uint32) + np.uint32(added)) & np.uint32(0xFFFF0000)).view(np.float32)


@pytest.mark.parametrize(("added", "mistake"), [(0, Mistake.TRUNCATED), (0x8000, None), (0xFFFF, Mistake.MISROUNDED)])
def test_bfloat16(added: int, mistake: Mistake | None) -> None:
    true = numbers(500, seed=4)
    fit = misfit(in_bfloat16(true, added), Output(array=true.astype(np.float64)), "bfloat16", Kind.EXACT)
    assert bool(fit.bad.any()) is (mistake is not None)
    if mistake is not None:
        assert 0.4 < np.count_nonzero(fit.bad) / 500 < 0.6
        assert places_of(fit.got, fit.true, fit.bad, UNIT["bfloat16"]).mistake is mistake


@pytest.mark.parametrize("bits", [11, 12, 13, 14, 16])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_small_bias_is_no_truncation(dtype: str, bits: int) -> None:
    """A constant or a table that is a little too small makes results that are; some of them are rounded up again."""
    true = numbers(5000, seed=4).astype(np.float64)
    unit = UNIT[dtype] * 2.0 ** (11 - bits)
    fit = misfit((true * (1 - unit)).astype(dtype), Output(array=true), dtype, Kind.ROUNDED)
    assert not fit.bad.any()


# --- a constant that was added ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["drop/mul", "two/MatMul", "two/Tanh"])
def test_a_constant_that_was_added(tmp_path: Path, part: str) -> None:
    found = verdict_of(layers().with_part(part, wrong=lambda array: array + 0.299).write(tmp_path))
    assert (found.culprit, found.cause) == (part, Cause.KERNEL)
    assert found.suspects[0].fact("mistake") == "offset"
    assert found.suspects[0].fact("offset") == pytest.approx(0.299, rel=2e-3)
    assert "+0.29" in words(found)
    assert "+0.29" in words(found, "zh")
    assert "everywhere" in words(found)


def test_a_mask_that_was_not_written_had_nothing_added(tmp_path: Path) -> None:
    """Where every element should be 1, -1 is what is missing."""
    mask = np.ones((8, 16), np.float32)
    network = layers().with_part("drop/random_uniform/RandomUniform", npu=mask, golden=mask)
    found = verdict_of(network.with_part("trans_Cast_2", wrong=zero_tail).write(tmp_path))
    assert found.culprit == "trans_Cast_2"
    assert found.suspects[0].fact("mistake") == "tail"


def test_a_constant_in_one_column(tmp_path: Path) -> None:
    def column(array: Array) -> Array:
        changed = array.copy()
        changed[:, 2] -= 0.5
        return changed

    found = verdict_of(layers().with_part("two/MatMul", wrong=column).write(tmp_path))
    assert found.suspects[0].fact("offset") == pytest.approx(-0.5, rel=2e-3)
    assert "-0.5 was added to the wrong elements, only at index 2 of axis 1" in words(found)


# --- NaN --------------------------------------------------------------------------------------------------------------


def overflowing(values: Array) -> Network:
    """The square of an activation in float16, times a mask."""
    mask = (numbers(8, 12, seed=5) > 0).astype(np.float16)
    return Network(
        parts=(
            source("data", values), source("mask", mask), cast("trans_Cast_0", "data"),
            unary("square", "Square", "trans_Cast_0"), binary("masked", "Mul", "square", "mask"),
            unary("relu", "Relu", "masked"),
        )
    )  # fmt: skip


def test_nan_of_an_overflow_in_a_mask(tmp_path: Path) -> None:
    """The overflow is to blame; where NaN comes of it is evidence."""
    found = verdict_of(overflowing(numbers(8, 12, seed=1, scale=200)).write(tmp_path))
    assert (found.culprit, found.cause) == ("square", Cause.OVERFLOW)
    assert found.suspects[0].fact("nan_op") == "masked"
    assert "masked turns these infinities into NaN" in words(found)
    assert "masked" in words(found, "zh")


def reciprocal_in_a_mask(small: float) -> Network:
    """The trap of a selection's gradient: the branch that was not taken divides by zero, and is masked."""
    values = np.abs(numbers(8, 12, seed=1)) + np.float32(0.5)
    values[2:4] = small
    mask = np.ones((8, 12), np.float16)
    mask[2:4] = 0
    return Network(
        parts=(
            source("data", values), source("mask", mask), cast("trans_Cast_0", "data"),
            unary("inverse", "Reciprocal", "trans_Cast_0"), binary("masked", "Mul", "inverse", "mask"),
            binary("sum", "Add", "masked", "mask"),
        )
    )  # fmt: skip


@pytest.mark.parametrize("benchmark", [True, False])
def test_nan_of_a_division_by_zero_in_a_mask(tmp_path: Path, benchmark: bool) -> None:
    """float16 makes 0 of 1e-9, and the division Inf of that: no op computes wrong, and 0 · Inf is NaN."""
    found = verdict_of(reciprocal_in_a_mask(1e-9).write(tmp_path, benchmark=benchmark))
    assert (found.culprit, found.cause) == ("masked", Cause.OVERFLOW)
    assert found.ranking == ("masked", "inverse")
    assert found.suspects[0].fact("nan_elements") == 24
    assert "NaN arises from infinities" in words(found)
    assert "24 of 96 elements of the output are NaN; the first infinities come from inverse" in words(found)
    assert words(found, "zh")


@pytest.mark.parametrize("mask", ["masked_fill", "data"])
def test_nan_of_a_mask_of_the_scripts_own(tmp_path: Path, mask: str) -> None:
    """A row of the softmax has nothing but the infinities that the script put there: it may be meant."""
    scores, hidden = numbers(4, 6, seed=1), np.zeros((4, 6), np.bool_)
    hidden[1] = True
    masked = np.where(hidden, np.float32(-np.inf), scores)
    powers = np.exp(masked - scores.max(-1, keepdims=True))
    with np.errstate(invalid="ignore"):
        weights = powers / powers.sum(-1, keepdims=True)
    fill, softmax = "Tensor.masked_fill.0.forward", "Functional.softmax.0.forward"
    files = {f"{softmax}.input.0.pt": masked, f"{softmax}.output.0.pt": weights}
    over = tensor(scores, f"{softmax}.input.0.pt") | {"Min": -np.inf, "Mean": -np.inf, "Norm": np.inf}
    bad = tensor(scores, f"{softmax}.output.0.pt") | dict.fromkeys(("Max", "Min", "Mean", "Norm"), np.nan)
    entries = {}
    if mask == "masked_fill":
        names = [f"{fill}.{slot}.pt" for slot in ("input.0", "input.1", "output.0")]
        files |= dict(zip(names, (scores, hidden, masked), strict=True))
        made = over | {"data_name": names[2]}
        inputs = tensor(scores, names[0]), tensor(hidden, names[1]), literal(-np.inf)
        entries[fill] = forward(*inputs, output=[made])
    entries[softmax] = forward(over, literal(-1), output=[bad])
    write_leaf(tmp_path / "npu" / "step0" / "rank", entries, files)
    (suspect,) = verdict_of(tmp_path).suspects
    assert (suspect.culprit, suspect.cause, suspect.fact("nan_elements")) == (softmax, Cause.OVERFLOW, 6)
    assert suspect.confidence == 0.4


def test_nan_that_the_script_computes_too(tmp_path: Path) -> None:
    assert verdict_of(reciprocal_in_a_mask(0.0).write(tmp_path)).culprit is None


def test_a_selection_that_multiplies(tmp_path: Path) -> None:
    """It should be 0 where it was not selected, and is 0 · Inf."""
    network = reciprocal_in_a_mask(1e-9)

    def selected(mask: Array, x: Array, zero: Array) -> Array:
        return np.where(mask, x, zero)

    def multiplied(array: Array) -> Array:
        changed = array.copy()
        changed[2:4] = np.nan
        return changed

    parts = [part for part in network.parts if part.name not in ("mask", "masked", "sum")]
    is_taken = np.ones((8, 12), np.bool_)
    is_taken[2:4] = False
    parts += [
        source("mask", is_taken), source("zero", np.zeros((8, 12), np.float16)),
        Part(name="select", type="SelectV2", inputs=("mask", "inverse", "zero"), compute=selected, dtype="float16",
             originals=("select",)),
        unary("relu", "Relu", "select"),
    ]  # fmt: skip
    network = Network(parts=tuple(parts))
    assert verdict_of(network.write(tmp_path / "right")).culprit is None
    found = verdict_of(network.with_part("select", wrong=multiplied).write(tmp_path / "wrong"))
    assert (found.culprit, found.suspects[0].fact("nan_elements")) == ("select", 24)


# --- overflows --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("saturates", [True, False])
def test_an_overflow_of_an_op_without_a_formula(tmp_path: Path, saturates: bool) -> None:
    network = overflowing(numbers(8, 12, seed=1, scale=200)).with_part("square", type="MySquare")
    found = verdict_of(replace(network, saturates=saturates).write(tmp_path))
    assert (found.culprit, found.cause) == ("square", Cause.OVERFLOW)
    assert "beyond the limit of float16" in words(found)


def test_an_op_without_a_formula_that_stays_in_range(tmp_path: Path) -> None:
    network = overflowing(numbers(8, 12, seed=1)).with_part("square", type="MySquare")
    assert verdict_of(network.write(tmp_path)).culprit is None


# --- outputs, judged singly -------------------------------------------------------------------------------------------


def batch_norm(tmp_path: Path, small: int, wrong: Callable[[Array], Array] = lambda array: array) -> OpResult:
    """The judgement of a batch norm whose second output was dumped with so many elements."""
    x = numbers(4, 6, 6, 8, seed=1)
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    y = wrong((x - mean) / np.sqrt(variance + 0.001)).astype(np.float32)
    vectors = [np.ones(8, np.float32), np.zeros(8, np.float32), np.zeros(0, np.float32), np.zeros(0, np.float32)]
    inputs = [OutTensor(data=array, origin_shape=array.shape) for array in (x, *vectors[:2])]
    outputs = [OutTensor(data=array, origin_shape=array.shape) for array in (y, np.resize(mean, small), variance)]
    folder = tmp_path / f"small{small}_{len(list(tmp_path.iterdir()))}"
    name = dump_file_name("FusedBatchNormV3", "bn", 1, 1_700_000_000_000_000, stream_id=0)
    write_dump(folder / name, "bn", inputs, outputs)
    feeds = [graph_op(f"in{n}", "Data", output_descs=[tensor_desc(tensor)]) for n, tensor in enumerate(inputs)]
    op = graph_op(
        "bn", "FusedBatchNormV3", [f"in{n}:0" for n in range(3)], input_descs=[*map(tensor_desc, inputs)],
        output_descs=[*map(tensor_desc, outputs[:2])], attrs={"epsilon": 0.001, "data_format": "NHWC"},
    )  # fmt: skip
    file = GraphFile(path="graph", graphs=(Graph(name="g", ops=(*feeds, op)),))
    return Recomputer(RunValues(walk.find_run(str(folder)).leaves[0], file, NoBenchmark())).examine(op)


def test_a_small_output_of_another_size_says_nothing_of_a_large_one(tmp_path: Path) -> None:
    """Its statistics were padded to 16 elements."""
    for small in (8, 16):
        right, wrong = batch_norm(tmp_path, small), batch_norm(tmp_path, small, zero_tail)
        assert (right.state, wrong.state) == (State.RIGHT, State.WRONG), (small, right.reason)
        assert [slot.slot for slot in wrong.slots if slot.beyond] == [0]


# --- fusion -----------------------------------------------------------------------------------------------------------


def innocent(tmp_path: Path, wrong: Callable[[Array], Array]) -> Verdict:
    fused().with_part("one/MatMul", wrong=wrong).write(tmp_path)
    layers().with_part("one/MatMul", wrong=wrong).write(tmp_path, run="debug_1")
    return verdict_of(tmp_path)


def test_an_unfused_run_with_the_fault_acquits_the_pass(tmp_path: Path) -> None:
    found = innocent(tmp_path, zero_tail)
    assert (found.culprit, found.cause, found.pass_name) == ("one/MatMul", Cause.KERNEL, None)
    first = found.suspects[0]
    assert (first.fact("parts_right"), first.fact("wrong_part"), first.pass_name) == (False, "one/MatMul", "")
    assert Action.SWITCH_PASS_OFF not in actions(found)
    assert Action.REPORT_KERNEL in actions(found)
    assert "the fusion is innocent: one/MatMul is wrong in debug_1 too" in words(found)
    assert "one/MatMul" in words(found, "zh")


def test_a_part_that_is_a_little_off_does_not_acquit_the_pass(tmp_path: Path) -> None:
    """The end of the fused op is zero; the part is a hundredth off, as one of an inexact device may be."""
    fused().with_part("one/MatMul", wrong=zero_tail).write(tmp_path)
    layers().with_part("one/MatMul", wrong=lambda array: array * 1.01).write(tmp_path, run="debug_1")
    found = verdict_of(tmp_path)
    assert (found.culprit, found.cause) == ("one/MatMul", Cause.FUSION)


def test_an_unfused_run_without_it_does_not(tmp_path: Path) -> None:
    fused().with_part("one/MatMul", wrong=zero_tail).write(tmp_path)
    layers().write(tmp_path, run="debug_1")
    found = verdict_of(tmp_path)
    assert (found.cause, found.suspects[0].fact("parts_right")) == (Cause.FUSION, True)
    assert Action.SWITCH_PASS_OFF in actions(found)


# --- order ------------------------------------------------------------------------------------------------------------


def test_a_small_error_does_not_outrank_a_large_one(tmp_path: Path) -> None:
    """An op whose result is seven thousandths off runs before one that overwrites memory."""

    def a_little(array: Array) -> Array:
        return (array.astype(np.float32) * 1.007).astype(array.dtype)

    def overwritten(array: Array) -> Array:
        flat = array.copy().reshape(-1)
        flat[16:48] = numbers(32, seed=9).astype(array.dtype)
        return flat.reshape(array.shape)

    network = layers().with_part("one/MatMul", wrong=a_little).with_part("two/MatMul", read={0: overwritten})
    found = verdict_of(network.write(tmp_path / "both"))
    assert (found.culprit, found.cause) == ("two/MatMul", Cause.STOMP)
    assert [suspect.culprit for suspect in found.suspects] == ["two/MatMul", "one/MatMul"]
    alone = layers().with_part("one/MatMul", wrong=a_little).with_part("two/MatMul", wrong=a_little)
    assert verdict_of(alone.write(tmp_path / "small")).ranking == ("one/MatMul", "two/MatMul")
