"""For each cause a minimal network, its twin without the fault, and a near miss that must not be accused."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import STAMP, Array
from diagnosing import blame_of, verdict_of
from faults import copied_tail, last_digit, narrowed, negated, stored_transposed, zero_tail
from npu_standins import CustomOp, start_session
from one_cause_each import overwritten
from opdebug_payloads import AIC, core_fields, new_payload, write_status
from tiny_network import (
    Network,
    Part,
    binary,
    cast,
    fused,
    layers,
    matmul,
    numbers,
    scaled_gradients,
    source,
    unary,
)

from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.diagnose.verdict_model import Cause, Proof, Verdict
from precision_tool.lib.io.fusion_passes import ALWAYS_ON
from precision_tool.lib.messages import Message
from precision_tool.lib.view.verdict_messages import evidence, gap, plan_steps, proof, what_is_wrong
from precision_tool.tf_config import update_custom_op


def shifted(array: Array) -> Array:
    return np.roll(array, 1, -1)


def large(network: Network, factor: float) -> Network:
    """The same with a variable so many times as large on both sides."""
    kernel = next(part for part in network.parts if part.name == "two/kernel")
    assert kernel.npu is not None
    return network.with_part("two/kernel", npu=kernel.npu * np.float32(factor))


def test_nothing_wrong(tmp_path: Path) -> None:
    found = verdict_of(layers().write(tmp_path))
    assert (found.culprit, found.cause) == (None, Cause.NONE)
    assert found.tally.wrong == found.tally.doubtful == 0
    assert found.tally.right == found.tally.ops - 1  # all but the random numbers


@pytest.mark.parametrize("wrong", [zero_tail, negated, shifted])
@pytest.mark.parametrize("op", ["one/MatMul", "drop/mul", "two/Tanh"])
def test_kernel(tmp_path: Path, wrong: Callable[[Array], Array], op: str) -> None:
    found = verdict_of(layers().with_part(op, wrong=wrong).write(tmp_path))
    assert (found.culprit, found.cause, found.pass_name) == (op, Cause.KERNEL, None)
    assert found.ranking == (op,)
    assert found.confidence > 0.9


def test_a_kernel_that_rounds_inside(tmp_path: Path) -> None:
    """narrowed inside leaves a cosine above 0.9999; the share of correctly rounded elements tells."""
    found = verdict_of(layers().with_part("one/MatMul", wrong=narrowed).write(tmp_path))
    assert (found.culprit, found.cause) == ("one/MatMul", Cause.KERNEL)
    assert found.facts
    assert all(value > 0.999 for value in [1 - found.suspects[0].fact("own_error") ** 2 / 2])


def lines_of(verdict: Verdict) -> list[str]:
    """The arguments of tf_config's call in the lines that the verdict says to add."""
    steps = plan_steps(verdict.next)
    lines = [step.line for step in steps if step.file == Message("step.file.call")]
    begin = "config = npu_tf_config.session_dump_config(config, "
    assert all(line.startswith(begin) for line in lines)
    return [line.removeprefix(begin).removesuffix(")") for line in lines]


def hf32(array: Array) -> Array:
    """What a matrix unit makes of float32 whose inputs it rounds to HF32: 12 bits less, somewhere in the sum."""
    noise = np.random.default_rng(5).normal(size=array.shape) * 2.0**-13
    return (array * (1 + noise)).astype(array.dtype)


def test_switches_that_may_mend_a_kernel(tmp_path: Path) -> None:
    """In float16 those that compute it more precisely; for a mistake of places only another kernel. GE takes them."""
    rounded = lines_of(verdict_of(layers().with_part("one/MatMul", wrong=narrowed).write(tmp_path / "rounded")))
    moved = lines_of(verdict_of(layers().with_part("one/MatMul", wrong=shifted).write(tmp_path / "moved")))
    types = "customize_dtypes={'one/MatMul': 'InputDtype:float,float,OutputDtype:float'}"
    assert rounded == ["op_precision_mode={'one/MatMul': 'high_precision'}", types]
    assert moved == [types]
    for line in rounded:
        name, _, value = line.partition("=")
        op = CustomOp()
        update_custom_op(op, **{name: ast.literal_eval(value)})
        assert name in start_session(op)


def test_float32_that_is_right_has_no_better_type(tmp_path: Path) -> None:
    found = verdict_of(single_precision().with_part("product", wrong=zero_tail).write(tmp_path))
    assert (found.culprit, lines_of(found)) == ("product", [])


def single_precision() -> Network:
    """One product in float32."""
    a, b = numbers(24, 16), numbers(16, 12, seed=1)
    return Network(parts=(source("a", a), source("b", b), matmul("product", "a", "b", "float32")))


def test_hf32_is_told(tmp_path: Path) -> None:
    """It is rounding, and nothing wrong; who wants all bits is told what to switch off, and nobody else."""
    found = verdict_of(single_precision().with_part("product", wrong=hf32).write(tmp_path / "hf32"))
    assert (found.culprit, found.cause) == (None, Cause.NONE)
    assert lines_of(found) == ["allow_hf32=False"]
    assert lines_of(verdict_of(single_precision().write(tmp_path / "float32"))) == []
    assert lines_of(verdict_of(layers().write(tmp_path / "float16"))) == []


def test_a_pass_that_stays_on(tmp_path: Path) -> None:
    """What no file switches off is kept in float32 instead."""
    network = fused().with_part("one/MatMul", wrong=zero_tail, passes=(min(ALWAYS_ON),))
    found = verdict_of(network.write(tmp_path))
    lines = [step.line for step in plan_steps(found.next)]
    assert found.cause is Cause.FUSION
    assert any("\nwith npu_scope.keep_dtype_scope():" in line and "one/MatMul, " in line for line in lines)
    assert not any(line.startswith("fusion off") for line in lines)


@pytest.mark.parametrize("wrong", [zero_tail, negated])
def test_fusion(tmp_path: Path, wrong: Callable[[Array], Array]) -> None:
    assert verdict_of(fused().write(tmp_path / "right")).cause is Cause.NONE
    found = verdict_of(fused().with_part("one/MatMul", wrong=wrong).write(tmp_path / "wrong"))
    assert (found.culprit, found.cause, found.pass_name) == ("one/MatMul", Cause.FUSION, "MatMulReluFusionPass")


def test_layout(tmp_path: Path) -> None:
    data = layers().with_part("one/MatMul", wrong=stored_transposed).write(tmp_path)
    assert blame_of(data) == ("one/MatMul", Cause.LAYOUT)


def test_few_values_are_in_nearly_any_order(tmp_path: Path) -> None:
    """The tail of a mask is not a matter of its layout, though nearly every value is there."""
    mask = np.zeros((20, 40), np.float32)
    mask[numbers(20, 40, seed=3) > 1] = 1
    mask.reshape(-1)[-32:] = [0, 1] * 8 + [1, 0] * 7 + [0, 0]
    network = Network(
        parts=(
            source("IteratorGetNext", mask),
            source("factor", np.array(0.3, np.float32), op_type="Const"),
            binary("mask/Mul", "Mul", "IteratorGetNext", "factor", "float32"),
        )
    )
    data = network.with_part("mask/Mul", wrong=copied_tail).write(tmp_path / "tail")
    assert blame_of(data) == ("mask/Mul", Cause.KERNEL)
    data = network.with_part("mask/Mul", wrong=stored_transposed).write(tmp_path / "order")
    assert blame_of(data) == ("mask/Mul", Cause.LAYOUT)


def test_a_cast_beyond_the_range(tmp_path: Path) -> None:
    assert blame_of(large(layers(), 1e6).write(tmp_path / "wrong")) == ("trans_Cast_3", Cause.CAST)
    # Just within the range nothing is lost.
    kernel = np.abs(numbers(16, 6, seed=3, scale=0.3)).max()
    assert verdict_of(large(layers(), 60000 / float(kernel)).write(tmp_path / "near")).cause is not Cause.CAST


def through_integers(originals: tuple[str, ...]) -> Network:
    return Network(
        parts=(
            source("IteratorGetNext", numbers(6, 5, seed=1, scale=3)),
            cast("trans_Cast_0", "IteratorGetNext", "int32", originals=originals),
            cast("trans_Cast_1", "trans_Cast_0", "float32"),
            unary("square", "Square", "trans_Cast_1", "float32"),
        )
    )


def test_a_cast_through_integers(tmp_path: Path) -> None:
    assert blame_of(through_integers(()).write(tmp_path / "wrong")) == ("trans_Cast_0", Cause.CAST)
    # The script's own cast is what it asked for.
    assert verdict_of(through_integers(("ToInt32",)).write(tmp_path / "near")).cause is Cause.NONE


@pytest.mark.parametrize(
    ("wrong", "cause"), [(np.trunc, Cause.CAST), (np.rint, Cause.CAST), (narrowed, Cause.CAST), (negated, Cause.KERNEL)]
)
def test_a_cast_that_goes_through_a_narrower_type(
    tmp_path: Path, wrong: Callable[[Array], Array], cause: Cause
) -> None:
    """Its values are the right ones as that type holds them; a cast that is off otherwise is a wrong kernel."""
    network = layers()
    kernel = next(part for part in network.parts if part.name == "two/kernel")
    assert kernel.npu is not None
    network = network.with_part("two/kernel", npu=kernel.npu * np.float32(16))
    assert blame_of(network.with_part("trans_Cast_3", wrong=wrong).write(tmp_path)) == ("trans_Cast_3", cause)


@pytest.mark.parametrize("saturates", [True, False])
def test_overflow(tmp_path: Path, saturates: bool) -> None:
    kernel = np.abs(numbers(16, 6, seed=3, scale=0.3)).max()
    network = replace(large(layers(), 60000 / float(kernel)), saturates=saturates)
    assert blame_of(network.write(tmp_path)) == ("two/MatMul", Cause.OVERFLOW)


def with_status(data: Path, op: str) -> Path:
    """The status file that the overflow detection writes beside the dump of an op."""
    (file,) = (data / "npu").rglob(f"*.{op.replace('/', '_')}.*")
    task = int(file.name.split(".")[-3])
    payload = new_payload(AIC, core_fields(task=task, stream=0))
    return write_status(file.parent, payload, timestamp=int(file.name.rsplit(".", 1)[1]) + 1)


def test_a_status_file_beside_an_overflow(tmp_path: Path) -> None:
    """What the device says makes it surer, and stands among the evidence."""
    kernel = np.abs(numbers(16, 6, seed=3, scale=0.3)).max()
    data = large(layers(), 60000 / float(kernel)).write(tmp_path)
    before = verdict_of(data)
    assert before.suspects[0].fact("status_file") is None
    status = with_status(data, "two/MatMul")
    found = verdict_of(data)
    assert (found.culprit, found.cause, found.suspects[0].proof) == ("two/MatMul", Cause.OVERFLOW, Proof.RECOMPUTED)
    assert found.suspects[0].fact("status_file") == str(status)
    assert found.confidence > before.confidence


def unknown(dtype: str) -> Network:
    """The activation of the second layer is an op that nobody has a formula for, and reaches infinity in float16."""
    network = layers().with_part("two/Tanh", type="Secret", compute=lambda x: 60000 * (1 + np.abs(x)), dtype=dtype)
    return network.with_part("trans_Cast_4", compute=lambda x: x)


def test_a_status_file_of_an_op_that_cannot_be_recomputed(tmp_path: Path) -> None:
    """Alone with it the op is named; without one, or where the status is of an op that is right, it is not for this."""
    data = unknown("float16").write(tmp_path / "told", benchmark=False)
    with_status(data, "two/Tanh")
    found = verdict_of(data)
    assert (found.culprit, found.cause, found.suspects[0].proof) == ("two/Tanh", Cause.OVERFLOW, Proof.STATUS)
    assert proof(found.suspects[0]) == Message("verdict.proof.status")
    assert verdict_of(unknown("float16").write(tmp_path / "silent", benchmark=False)).cause is not Cause.OVERFLOW
    right = layers().write(tmp_path / "right")
    with_status(right, "two/MatMul")
    assert verdict_of(right).cause is Cause.NONE


def test_the_end_of_the_time_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = layers().write(tmp_path)
    monkeypatch.setattr(
        "precision_tool.lib.diagnose.recomputer.Recomputer._recompute", lambda self, base: replace(base, reason="x")
    )
    clock = iter(range(0, 10_000_000, 100))
    monkeypatch.setattr("precision_tool.lib.diagnose.recomputer.time.monotonic", lambda: float(next(clock)))
    found = verdict_of(data)
    late = dict(found.tally.reasons)[Message("reason.out_of_time")]
    assert 0 < late < found.tally.ops
    (late_ops,) = map(gap, found.gaps)
    assert isinstance(late_ops, Message)
    assert (late_ops.kind, late_ops.count, late_ops.ops) == ("gap.out_of_time", late, found.tally.ops)


def test_numbers_that_are_infinite_on_purpose(tmp_path: Path) -> None:
    """A mask of minus infinity is no overflow."""
    mask = np.where(np.arange(8 * 16).reshape(8, 16) % 5, 0, -np.inf).astype(np.float32)
    network = layers().with_part("drop/random_uniform/RandomUniform", type="Const", npu=mask, is_dumped=False)
    network = network.with_part("drop/mul", type="Add", compute=np.add)
    found = verdict_of(network.write(tmp_path))
    assert found.culprit is None


@pytest.mark.parametrize(("op", "slot", "producer"), [("one/Relu", 0, "one/MatMul"), ("two/MatMul", 0, "drop/mul")])
def test_stomp(tmp_path: Path, op: str, slot: int, producer: str) -> None:
    found = verdict_of(layers().with_part(op, read={slot: overwritten}).write(tmp_path))
    assert (found.culprit, found.cause) == (op, Cause.STOMP)
    assert producer in found.ranking
    assert found.suspects[0].fact("first_byte") == 32
    assert found.suspects[0].fact("last_byte") == 95


def test_an_op_that_writes_over_its_input(tmp_path: Path) -> None:
    """Its dump shows the input after it wrote there: nobody else overwrote it."""
    relu = {0: lambda array: np.maximum(array, 0)}
    network = layers().with_part("one/Relu", read=relu, address=4096)
    assert verdict_of(network.write(tmp_path)).cause is Cause.NONE


def test_an_address_alone_does_not_excuse_an_overwritten_input(tmp_path: Path) -> None:
    """It is said to write over its input, and what stands there is not what it put out."""
    network = layers().with_part("one/Relu", read={0: overwritten}, address=4096)
    assert blame_of(network.write(tmp_path)) == ("one/Relu", Cause.STOMP)


# --- near misses: what looks like a fault and is none -----------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["one/MatMul", "two/Tanh", "IteratorGetNext", "drop/random_uniform/RandomUniform", "one/kernel"]
)
def test_rounding_is_no_fault(tmp_path: Path, name: str) -> None:
    """Results that another order of additions gives; data, random numbers and variables that are float16 there."""
    network = layers()
    part = next(part for part in network.parts if part.name == name)
    if part.npu is None:
        network = network.with_part(name, wrong=last_digit)
    else:
        network = network.with_part(name, npu=part.npu.astype(np.float16), golden=part.npu)
    assert blame_of(network.write(tmp_path)) == (None, Cause.NONE)


@pytest.mark.parametrize("stores", [True, False])
def test_a_fused_op_that_is_more_exact_than_its_parts_is_right(tmp_path: Path, stores: bool) -> None:
    """Float32 inside, or every part's result kept in float16: a kernel may do either."""

    def compute(a: Array, b: Array) -> Array:
        product = a @ b
        made: Array = np.maximum(product.astype(np.float16).astype(np.float64) if stores else product, 0)
        return made

    found = verdict_of(fused().with_part("one/MatMul", compute=compute).write(tmp_path))
    assert (found.culprit, found.tally.wrong, found.tally.doubtful) == (None, 0, 0)


def test_a_fused_op_that_leaves_out_a_part_is_wrong(tmp_path: Path) -> None:
    """It does what the op it is named after does, and no more."""
    data = fused().with_part("one/MatMul", compute=np.matmul).write(tmp_path, benchmark=False)
    assert blame_of(data) == ("one/MatMul", Cause.FUSION)


def test_the_edge_of_the_range_is_no_overflow(tmp_path: Path) -> None:
    """65519.9 is beyond float16's largest number and rounds to it; 65520 would round to infinity."""
    near = Part(name="edge", type="Mul", inputs=("IteratorGetNext", "factor"), originals=("edge",), dtype="float16",
                compute=np.multiply)  # fmt: skip
    data = np.array([[1.0, 0.5, -1.0]], np.float32)
    for factor, cause in ((65519.0, Cause.NONE), (66000.0, Cause.OVERFLOW)):
        parts = (
            source("IteratorGetNext", data),
            source("factor", np.array([[factor]], np.float32), op_type="Const"),
            near,
        )
        found = verdict_of(Network(parts=parts).write(tmp_path / str(factor)))
        assert found.cause is cause, factor


def test_a_gradient_off_by_a_factor_that_is_no_loss_scale(tmp_path: Path) -> None:
    """Three times too large, and nothing divides by it again: that is a wrong kernel and no scale."""
    network = layers().with_part("two/MatMul", wrong=lambda array: array * np.float16(3))
    assert blame_of(network.write(tmp_path)) == ("two/MatMul", Cause.KERNEL)


def test_a_culprit_whose_inputs_were_not_dumped_is_less_sure(tmp_path: Path) -> None:
    """What it read may have been overwritten before it read it, which such a dump does not tell."""
    network = layers().with_part("two/MatMul", wrong=negated)
    surer = verdict_of(network.write(tmp_path / "whole"))
    found = verdict_of(network.write(tmp_path / "outputs", inputs=False))
    assert found.culprit == surer.culprit == "two/MatMul"
    assert found.confidence <= 0.92 < surer.confidence
    assert found.suspects[0].fact("inputs_not_dumped") == [0, 1]
    assert proof(found.suspects[0]) == Message("verdict.proof.producers", overwritten=True)
    assert surer.suspects[0].fact("inputs_not_dumped") is None


# --- what does not change a verdict -----------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [None, negated])
def test_the_order_of_the_batch_does_not_matter(tmp_path: Path, wrong: Callable[[Array], Array] | None) -> None:
    """The same images in another order, and the random numbers with them."""
    order = np.random.default_rng(5).permutation(8)
    network = layers().with_part("one/MatMul", wrong=wrong)
    turned = network
    for name in ("IteratorGetNext", "drop/random_uniform/RandomUniform"):
        part = next(part for part in network.parts if part.name == name)
        assert part.npu is not None
        turned = turned.with_part(name, npu=part.npu[order])
    one, two = verdict_of(network.write(tmp_path / "one")), verdict_of(turned.write(tmp_path / "two"))
    assert (one.culprit, one.cause, one.tally) == (two.culprit, two.cause, two.tally)
    if wrong is not None:
        assert one.suspects[0].fact("own_error") == pytest.approx(two.suspects[0].fact("own_error"), rel=1e-3)


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("IteratorGetNext", Cause.INPUT),
        ("two/kernel", Cause.WEIGHTS),
        ("drop/random_uniform/RandomUniform", Cause.RANDOM),
    ],
)
@pytest.mark.parametrize("change", [lambda x: x[::-1], lambda x: x * np.float32(1.5), lambda x: x + np.float32(0.5)])
def test_what_nothing_computes(tmp_path: Path, name: str, cause: Cause, change: Callable[[Array], Array]) -> None:
    part = next(part for part in layers().parts if part.name == name)
    assert part.npu is not None
    found = verdict_of(layers().with_part(name, golden=np.ascontiguousarray(change(part.npu))).write(tmp_path))
    assert (found.culprit, found.cause) == (name, cause)
    assert found.tally.wrong == 0


def test_a_variable_of_a_later_step_is_what_both_sides_have_trained(tmp_path: Path) -> None:
    """That it differs as the step begins says where to look, and not so surely what is wrong."""
    part = next(part for part in layers().parts if part.name == "two/kernel")
    assert part.npu is not None
    data = layers().with_part("two/kernel", golden=part.npu * np.float32(1.5)).write(tmp_path)
    first = verdict_of(data)
    (step,) = data.glob(f"npu/debug_0/dump/{STAMP}/0/*/*/0")
    step.rename(step.with_name("7"))
    later = verdict_of(data, tmp_path / "later")
    for found in (first, later):
        assert (found.culprit, found.cause) == ("two/kernel", Cause.WEIGHTS)
    assert later.suspects[0].confidence < first.suspects[0].confidence
    assert what_is_wrong(later.suspects[0]) == Message("cause.what.weights_at_step", step=7)
    assert [one.line for one in plan_steps(later.next)][:1] == ["ac --all"]
    assert what_is_wrong(first.suspects[0]) == Message("cause.what.weights")


def test_a_variable_in_float16_is_the_same(tmp_path: Path) -> None:
    part = next(part for part in layers().parts if part.name == "two/kernel")
    assert part.npu is not None
    network = layers().with_part("two/kernel", npu=part.npu.astype(np.float16), golden=part.npu)
    assert verdict_of(network.write(tmp_path)).cause is Cause.NONE


def test_loss_scale(tmp_path: Path) -> None:
    found = verdict_of(scaled_gradients().write(tmp_path / "scaled"))
    assert (found.culprit, found.cause) == (None, Cause.LOSS_SCALE)
    assert found.facts
    same = verdict_of(scaled_gradients(1.0).write(tmp_path / "same"))
    assert (same.culprit, same.cause) == (None, Cause.NONE)
    # Where the gradients stay scaled, or by no power of two, the variable differs.
    for number, network in enumerate((scaled_gradients(unscales=False), scaled_gradients(1000.0))):
        assert blame_of(network.write(tmp_path / str(number))) == ("loss_scale", Cause.WEIGHTS)


def test_a_sum_that_cancels_is_innocent(tmp_path: Path) -> None:
    """In float16 the difference of two products that are nearly the same is far off, and nobody's fault."""
    x = numbers(16, 64, seed=1)
    parts = (
        source("IteratorGetNext", x),
        source("w", numbers(64, 8, seed=2), op_type="Variable"),
        source("v", numbers(64, 8, seed=2) * np.float32(1.0004), op_type="Variable"),
        cast("trans_Cast_0", "IteratorGetNext"),
        cast("trans_Cast_1", "w"),
        cast("trans_Cast_2", "v"),
        matmul("a", "trans_Cast_0", "trans_Cast_1"),
        matmul("b", "trans_Cast_0", "trans_Cast_2"),
        binary("difference", "Sub", "a", "b"),
    )
    found = verdict_of(Network(parts=parts).write(tmp_path))
    assert found.worst is not None
    assert found.worst.cosine < 0.98
    assert (found.culprit, found.cause) == (None, Cause.NONE)
    assert found.worst.op_name == "difference"


def test_two_faults_are_both_named(tmp_path: Path) -> None:
    network = layers().with_part("one/MatMul", wrong=negated).with_part("two/Tanh", wrong=zero_tail)
    found = verdict_of(network.write(tmp_path))
    assert found.ranking == ("one/MatMul", "two/Tanh")
    assert [one.cause for one in found.suspects] == [Cause.KERNEL, Cause.KERNEL]


# --- less than everything ---------------------------------------------------------------------------------------------


CASES: list[tuple[dict[str, Any], str, Cause]] = [
    ({"wrong": zero_tail}, "one/MatMul", Cause.KERNEL),
    ({"wrong": stored_transposed}, "drop/mul", Cause.LAYOUT),
    ({"wrong": negated}, "two/MatMul", Cause.KERNEL),
]


@pytest.mark.parametrize(("change", "op", "cause"), CASES)
@pytest.mark.parametrize(
    "less",
    [
        {"benchmark": False},
        {"inputs": False},
        {"benchmark": False, "inputs": False},
        {"leave_out": ["trans_Cast_0", "one/Relu", "trans_Cast_2"]},
    ],
)
def test_with_less(tmp_path: Path, change: dict[str, Any], op: str, cause: Cause, less: dict[str, Any]) -> None:
    assert blame_of(layers().with_part(op, **change).write(tmp_path / "wrong", **less)) == (op, cause)
    assert verdict_of(layers().write(tmp_path / "right", **less)).cause is Cause.NONE


def one_element(array: Array) -> Array:
    changed = array.copy()
    changed[3, 5] += np.abs(array).max()
    return changed


def some_elements(array: Array) -> Array:
    changed = array.copy()
    changed.reshape(-1)[32:64] = numbers(32, seed=9).astype(array.dtype)
    return changed


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [(one_element, Cause.KERNEL), (narrowed, Cause.KERNEL), (some_elements, Cause.STOMP)],
)
def test_what_can_have_been_overwritten(tmp_path: Path, wrong: Callable[[Array], Array], cause: Cause) -> None:
    """Memory is overwritten by blocks of 32 bytes, with other numbers: without inputs in the dump that tells."""
    last = Part(name="last", type="Neg", inputs=("drop/mul",), compute=np.negative, originals=("last",))
    network = layers().with_part("drop/mul", wrong=wrong, dtype="float32", compute=lambda a, b: a * b + 0.0)
    network = replace(network, parts=(*network.parts, last))
    assert blame_of(network.write(tmp_path, inputs=False)) == ("drop/mul", cause)


def test_a_sum_of_what_was_overwritten(tmp_path: Path) -> None:
    """Two sums are off, which are less than a block; what they add is more."""
    summed = Part(
        name="sum", type="ReduceSumD", inputs=("drop/mul",), originals=("sum",), compute=lambda x: x.sum(1),
        attrs={"axes": (int, [1]), "keep_dims": False}, read={0: overwritten},
    )  # fmt: skip
    network = layers()
    data = replace(network, parts=(*network.parts, summed)).write(tmp_path, inputs=False)
    assert blame_of(data) == ("sum", Cause.STOMP)


def forked(wrong: Callable[[Array], Array] | None = None) -> Network:
    """Three products and their sum as one op, of which the names do not tell how they hang together."""
    return Network(
        parts=(
            source("IteratorGetNext", numbers(6, 8, seed=1)),
            source("factor", np.array(0.3, np.float32), op_type="Const"),
            unary("a", "Tanh", "IteratorGetNext", "float32"),
            Part(
                name="g/Mulg/Mul_1sum/AddN", type="Mul", inputs=("IteratorGetNext", "factor", "a", "a"),
                compute=lambda x, f, a, b: x * f * a + x * f + b, dtype="float16", wrong=wrong,
                originals=("g/Mul", "g/Mul_1", "sum/AddN"), passes=("TbeEltwiseFusionPass",),
            ),
        )
    )  # fmt: skip


def test_no_way_to_hang_together(tmp_path: Path) -> None:
    """Without a benchmark, an op is wrong if whatever its parts may be fed does not give what it put out."""
    assert verdict_of(forked().write(tmp_path / "right", benchmark=False)).cause is Cause.NONE
    found = verdict_of(forked(shifted).write(tmp_path / "wrong", benchmark=False))
    assert (found.culprit, found.cause) == ("g/Mulg/Mul_1sum/AddN", Cause.FUSION)
    assert found.confidence < 0.8


def test_the_culprit_has_no_dump(tmp_path: Path) -> None:
    """What it put out is what the next op read."""
    network = layers().with_part("drop/mul", wrong=negated)
    assert blame_of(network.write(tmp_path, leave_out=["drop/mul"])) == ("drop/mul", Cause.KERNEL)


def test_random_numbers_without_a_benchmark(tmp_path: Path) -> None:
    """A second run draws others."""
    layers().write(tmp_path, benchmark=False)
    other = layers().with_part("drop/random_uniform/RandomUniform", npu=numbers(8, 16, seed=77))
    other.write(tmp_path, run="debug_1", benchmark=False)
    assert blame_of(tmp_path) == ("drop/random_uniform/RandomUniform", Cause.RANDOM)


@pytest.mark.parametrize("is_fixed", [False, True])
def test_another_run_tells_whether_a_seed_is_fixed(tmp_path: Path, is_fixed: bool) -> None:
    name = "drop/random_uniform/RandomUniform"
    network = layers().with_part(name, golden=numbers(8, 16, seed=78))
    network.write(tmp_path)
    other = network if is_fixed else network.with_part(name, npu=numbers(8, 16, seed=77))
    other.write(tmp_path, run="debug_1")
    found = verdict_of(tmp_path)
    assert (found.culprit, found.cause) == (name, Cause.RANDOM)
    assert found.suspects[0].fact("repeats") is is_fixed
    assert ("npu_tf_config.seed_everything(1)" in [step.line for step in plan_steps(found.next)]) is not is_fixed
    assert f"ni {name}" in [step.line for step in plan_steps(found.next)]


def test_the_guilty_run_is_named(tmp_path: Path) -> None:
    layers().write(tmp_path)
    layers().with_part("one/MatMul", wrong=zero_tail).write(tmp_path, run="debug_1")
    found = verdict_of(tmp_path)
    assert (found.culprit, found.cause, found.run) == ("one/MatMul", Cause.KERNEL, 1)


def next_number(array: Array) -> Array:
    """Another rounding of the first element."""
    moved = array.copy()
    moved[0, 0] = np.nextafter(moved[0, 0], array.dtype.type(100), dtype=array.dtype)
    return moved


@pytest.mark.parametrize("inputs", [True, False])
@pytest.mark.parametrize("benchmark", [True, False])
def test_a_kernel_that_does_not_repeat_itself(tmp_path: Path, inputs: bool, benchmark: bool) -> None:
    """Two results that rounding explains, from the same inputs: of the op's own file, or as their producers put out."""
    layers().write(tmp_path, inputs=inputs, benchmark=benchmark)
    again = layers().with_part("drop/mul", wrong=next_number)
    again.write(tmp_path, run="debug_1", inputs=inputs, benchmark=benchmark)
    assert blame_of(tmp_path) == ("drop/mul", Cause.RANDOM)


def test_sums_may_be_in_another_order_every_time(tmp_path: Path) -> None:
    """Atomic additions round differently in every run of some devices, which is no fault."""
    layers().write(tmp_path)
    layers().with_part("one/MatMul", wrong=next_number).write(tmp_path, run="debug_1")
    assert blame_of(tmp_path) == (None, Cause.NONE)


def with_gain(gain: Array, kernel: Array, **changes: Any) -> Network:
    """The layers, and an op that reads data and a variable that no file of outputs only has."""
    network = layers().with_part("one/kernel", npu=kernel)
    more = (
        source("gain", gain, op_type="Variable"),
        binary("gain/mul", "Mul", "IteratorGetNext", "gain", "float32"),
    )
    return replace(network, parts=(*network.parts, *more)).with_part("gain/mul", **changes)


def test_variables_that_no_file_has_are_those_of_the_other_run_where_the_rest_is(tmp_path: Path) -> None:
    gain, kernel = numbers(1, 12, seed=11), numbers(12, 16, seed=2, scale=0.3)
    with_gain(gain, kernel).write(tmp_path, inputs=False, benchmark=False)
    again = with_gain(gain, kernel, wrong=next_number)
    again.write(tmp_path, run="debug_1", inputs=False, benchmark=False)
    assert blame_of(tmp_path) == ("gain/mul", Cause.RANDOM)


def test_runs_from_other_variables_are_not_told_to_be_random(tmp_path: Path) -> None:
    """Variables of an earlier step, off by rounding: nothing shows the one that the op reads, another shows."""
    gain, kernel = numbers(1, 12, seed=11), numbers(12, 16, seed=2, scale=0.3)
    with_gain(gain, kernel).write(tmp_path, inputs=False, benchmark=False)
    again = with_gain(next_number(gain), next_number(kernel.astype(np.float16)).astype(np.float32))
    again.write(tmp_path, run="debug_1", inputs=False, benchmark=False)
    assert verdict_of(tmp_path).culprit is None


# --- stability --------------------------------------------------------------------------------------------------------


def test_names_do_not_matter(tmp_path: Path) -> None:
    wrong = layers().with_part("two/Tanh", wrong=zero_tail)
    plain = verdict_of(wrong.write(tmp_path / "plain"))
    renamed = verdict_of(wrong.renamed("tower_0/").write(tmp_path / "renamed"))
    assert renamed.culprit == f"tower_0/{plain.culprit}"
    assert (renamed.cause, renamed.confidence, renamed.tally) == (plain.cause, plain.confidence, plain.tally)


def test_the_order_of_files_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = layers().with_part("two/Tanh", wrong=zero_tail).write(tmp_path)
    first = verdict_of(root, tmp_path / "one")
    import os

    listed = os.scandir

    class Backwards:
        def __init__(self, path: Any) -> None:
            self._entries = sorted(listed(path), key=lambda entry: entry.name, reverse=True)

        def __enter__(self) -> Any:
            return iter(self._entries)

        def __exit__(self, *_: object) -> None:
            pass

        def __iter__(self) -> Any:
            return iter(self._entries)

    monkeypatch.setattr(os, "scandir", Backwards)
    again = verdict_of(root, tmp_path / "two")
    assert again.to_dict() == first.to_dict()


def test_an_op_whose_formula_fails_costs_only_itself(tmp_path: Path) -> None:
    """An attribute that contradicts the shapes is a reason in one row."""
    network = layers().with_part("one/MatMul", attrs={"transpose_x1": True, "transpose_x2": False})
    found = verdict_of(network.write(tmp_path))
    assert found.culprit is None
    assert found.tally.not_recomputed == 2
    assert found.tally.right == found.tally.ops - 2


def test_a_scalar_of_bools(tmp_path: Path) -> None:
    """LAMB and loss scaling decide by one comparison."""
    compared = Part(
        name="norm/Greater", type="Greater", inputs=("norm", "limit"), compute=np.greater, dtype="bool",
        originals=("norm/Greater",),
    )  # fmt: skip
    network = Network(
        parts=(
            source("norm", np.array(0.5, np.float32)),
            source("limit", np.array(0.25, np.float32), op_type="Const"),
            compared,
            Part(
                name="norm/Select", type="Select", inputs=("norm/Greater", "norm", "limit"), originals=("norm/Select",),
                compute=np.where,
            ),
        )
    )  # fmt: skip
    found = verdict_of(network.write(tmp_path))
    assert (found.culprit, found.cause) == (None, Cause.NONE)
    assert found.tally.right == found.tally.ops == 2


def part_of(network: Network, name: str) -> Part:
    return next(part for part in network.parts if part.name == name)


def test_the_end_of_many_near_values_is_no_layout(tmp_path: Path) -> None:
    """Of so many values each is near another one: only the wrong ones tell whether all are there."""
    network = Network(
        parts=(
            source("IteratorGetNext", numbers(40, 61, seed=4)),
            cast("trans_Cast_0", "IteratorGetNext"),
            unary("squash", "Tanh", "trans_Cast_0"),
        )
    )
    assert blame_of(network.with_part("squash", wrong=copied_tail).write(tmp_path / "tail")) == ("squash", Cause.KERNEL)
    data = network.with_part("squash", wrong=stored_transposed).write(tmp_path / "order")
    assert blame_of(data) == ("squash", Cause.LAYOUT)


@pytest.mark.parametrize(("fused", "is_wrong_too"), [(0, False), (0, True), (1, False)])
def test_the_parts_of_a_fused_op_in_the_run_without_the_pass(tmp_path: Path, fused: int, is_wrong_too: bool) -> None:
    truth = generate_demo(tmp_path, fault="fusion")
    runs = tmp_path / "npu"
    if fused == 0:
        for old, new in ((0, 2), (1, 0), (2, 1)):
            (runs / f"debug_{old}").rename(runs / f"debug_{new}")
    if is_wrong_too:
        (part,) = (runs / f"debug_{1 - fused}").rglob("Conv2D.conv2_Conv2D.*")
        whole = part.read_bytes()
        part.write_bytes(whole[:-512] + np.full(256, 2.0, np.float16).tobytes())
    found = verdict_of(tmp_path)
    assert found.first is not None
    assert (found.culprit, found.cause) == (truth.culprit, Cause.KERNEL if is_wrong_too else Cause.FUSION)
    assert (found.first.fact("parts_right"), found.first.fact("parts_run")) == (not is_wrong_too, 1 - fused)
    run = f"debug_{1 - fused}"
    wrong = Message("verdict.why.parts_wrong", run=run, op="conv2/Conv2D")
    assert (wrong if is_wrong_too else Message("verdict.why.parts_right", run=run)) in evidence(found.suspects[0])
