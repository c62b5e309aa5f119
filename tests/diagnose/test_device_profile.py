"""How precise a device is, learned from a run: what its ops share is no fault, what stands out from them is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import Array
from diagnosing import verdict_of
from tiny_network import Change, Network, Part, cast, matmul, numbers, source, unary

from precision_tool.lib.diagnose.device_profile import DeviceProfile, learn, merged, profile_of
from precision_tool.lib.diagnose.verdict_model import Cause, OpResult, SlotResult, State
from precision_tool.lib.model.graph import Op
from precision_tool.lib.ops.base import Kind


def by_table(amplitude: float) -> Change:
    """A function that is off by a smooth curve of its value, as a table of few entries makes it."""

    def change(array: Array) -> Array:
        return (array * (1 + amplitude * np.sin(40 * array.astype(np.float64)))).astype(array.dtype)

    return change


def activations(count: int = 5, amplitude: float = 2.0**-11) -> Network:
    """Some Tanh in a row in float32, each by the same table."""
    parts: list[Part] = [source("x", numbers(16, 24))]
    for number in range(count):
        part = unary(f"tanh_{number}", "Tanh", parts[-1].name, "float32")
        parts.append(replace(part, wrong=by_table(amplitude)))
    return Network(parts=(*parts, unary("loss", "Square", parts[-1].name, "float32")))


@pytest.mark.parametrize("count", [1, 5])
def test_what_a_device_approximates_is_no_fault(tmp_path: Path, count: int) -> None:
    verdict = verdict_of(activations(count).write(tmp_path))
    assert (verdict.culprit, verdict.cause) == (None, Cause.NONE)
    assert verdict.tally.imprecise == count
    assert verdict.tally.right == verdict.tally.ops


def test_an_op_that_stands_out_from_its_peers_is_the_culprit(tmp_path: Path) -> None:
    network = activations().with_part("tanh_3", wrong=by_table(2.0**-5))
    verdict = verdict_of(network.write(tmp_path))
    assert (verdict.culprit, verdict.cause) == ("tanh_3", Cause.KERNEL)
    assert verdict.ranking == ("tanh_3",)
    assert verdict.tally.imprecise == 4


def test_a_whole_type_that_is_far_off_is_a_fault(tmp_path: Path) -> None:
    """Peers do not excuse what no device would be accepted with."""
    network = activations()
    for number in range(5):
        network = network.with_part(f"tanh_{number}", wrong=lambda array: array * np.float32(1.04))
    verdict = verdict_of(network.write(tmp_path))
    assert verdict.culprit == "tanh_0"
    assert set(verdict.ranking) == {f"tanh_{number}" for number in range(5)}


def test_an_error_in_places_stands_out_on_an_imprecise_device(tmp_path: Path) -> None:
    """What all elements are off by does not hide where a few are wrong."""

    def zero_tail(array: Array) -> Array:
        changed = by_table(2.0**-11)(array)
        changed.reshape(-1)[-16:] = 0
        return changed

    verdict = verdict_of(activations().with_part("tanh_2", wrong=zero_tail).write(tmp_path))
    assert verdict.culprit == "tanh_2"
    assert verdict.suspects[0].fact("wrong_elements") == 16
    assert verdict.suspects[0].fact("mistake") == "tail"


def test_axes_in_another_order_are_told_on_an_imprecise_device(tmp_path: Path) -> None:
    def transposed(array: Array) -> Array:
        changed = by_table(2.0**-11)(array)
        return np.ascontiguousarray(changed.T).reshape(array.shape)

    verdict = verdict_of(activations().with_part("tanh_2", wrong=transposed).write(tmp_path))
    assert (verdict.culprit, verdict.cause) == ("tanh_2", Cause.LAYOUT)


def half_products(scale: float) -> Network:
    """Products in float16 whose results are subnormal in part."""
    parts = (
        source("x", numbers(16, 12, scale=scale)), source("w", numbers(12, 12, seed=1), op_type="Variable"),
        cast("cast_x", "x"), cast("cast_w", "w"), matmul("one", "cast_x", "cast_w"), matmul("two", "one", "cast_w"),
        cast("cast_y", "two", "float32"),
    )  # fmt: skip
    return Network(parts=parts)


def flushed(array: Array) -> Array:
    """What a device leaves that has no subnormal numbers."""
    return np.where(np.abs(array) < 2.0**-14, 0, array).astype(array.dtype)


def test_flushed_subnormal_numbers_are_the_device(tmp_path: Path) -> None:
    network = half_products(1e-5)
    for name in ("cast_x", "cast_w", "one", "two"):
        network = network.with_part(name, wrong=flushed)
    verdict = verdict_of(network.write(tmp_path / "flushes"))
    assert (verdict.culprit, verdict.cause) == (None, Cause.NONE)
    assert verdict.tally.imprecise >= 1


def test_zeros_beside_subnormal_numbers_are_a_fault(tmp_path: Path) -> None:
    def zero_tail(array: Array) -> Array:
        changed = array.copy()
        changed.reshape(-1)[-32:] = 0
        return changed

    verdict = verdict_of(half_products(1e-5).with_part("one", wrong=zero_tail).write(tmp_path))
    assert verdict.culprit == "one"


def test_hf32_inside_a_fused_op_is_no_fault(tmp_path: Path) -> None:
    """Convolutions of TensorFlow 1.15 use it by default, also where a pass adds the bias in the same kernel."""

    def narrowed(array: Array) -> Array:
        mantissa, exponent = np.frexp(array.astype(np.float64))
        rounded: Array = np.ldexp(np.rint(np.ldexp(mantissa, 12)), exponent - 12)
        return rounded

    parts = (
        source("x", numbers(16, 64)), source("w", numbers(64, 12, seed=1)),
        replace(
            matmul("fc", "x", "w", "float32"), compute=lambda a, b: np.maximum(a @ b, 0),
            originals=("fc/MatMul", "fc/Relu"), passes=("MatMulReluFusionPass",),
        ),
    )  # fmt: skip
    exact = np.maximum(narrowed(parts[0].npu) @ narrowed(parts[1].npu), 0)  # type: ignore[arg-type]
    network = Network(parts=parts).with_part("fc", wrong=lambda array: exact.astype(np.float32))
    verdict = verdict_of(network.write(tmp_path))
    assert (verdict.culprit, verdict.tally.right) == (None, 1)


def test_one_wrong_element_is_no_imprecision(tmp_path: Path) -> None:
    def one_wrong(array: Array) -> Array:
        changed = array.copy()
        changed.reshape(-1)[7] += 1
        return changed

    parts = (source("x", numbers(128, 256)), replace(unary("tanh", "Tanh", "x", "float32"), wrong=one_wrong))
    assert verdict_of(Network(parts=parts).write(tmp_path)).culprit == "tanh"


# --- the profile itself -----------------------------------------------------------------------------------------------


def result(name: str, imprecision: float, state: State = State.WRONG, kind: Kind = Kind.APPROXIMATE) -> OpResult:
    slot = SlotResult(
        slot=0, dtype="float32", size=100, kind=kind, own=imprecision, rounding=1e-6, worst=100.0, slack=16.0, beyond=9,
        exact_share=0.1, imprecision=imprecision,
    )  # fmt: skip
    return OpResult(op=Op(name=name, type="Exp"), number=0, state=state, how=("Exp",), slots=(slot,))


def tolerance(judged: list[OpResult], name: str, kind: Kind = Kind.APPROXIMATE) -> float:
    return learn(judged).tolerance(("Exp",), "float32", kind, name)


def test_an_op_is_no_peer_of_itself() -> None:
    peers = [result(f"exp_{number}", 1e-6) for number in range(4)]
    assert tolerance([*peers, result("odd", 0.5)], "odd") == 2.0**-9  # the least for a function
    coarse = [result(f"exp_{number}", 7e-4) for number in range(4)]
    assert tolerance([*coarse, result("odd", 0.5)], "odd") == pytest.approx(4 * 7e-4)


def test_no_device_is_as_imprecise_as_a_fault() -> None:
    assert tolerance([result(f"exp_{number}", 0.04) for number in range(9)], "exp_3") == 2.0**-8


def test_what_only_moves_numbers_has_no_imprecision() -> None:
    judged = [result(f"exp_{number}", 1e-3, kind=Kind.EXACT) for number in range(9)]
    assert tolerance(judged, "exp_3", Kind.EXACT) == 0


def test_runs_are_merged() -> None:
    def profile(value: float) -> DeviceProfile:
        judged = [result(f"exp_{number}", value * (1 + number), State.RIGHT) for number in range(50)]
        return profile_of(judged, learn(judged))

    both = merged([profile(1e-4), profile(2e-4)])
    (entry,) = both.types
    assert (both.runs, entry.ops, entry.op_type, entry.dtype) == (2, 100, "Exp", "float32")
    assert len(entry.imprecisions) == 64
    assert entry.imprecisions[0] == 1e-4
    assert entry.imprecisions[-1] == pytest.approx(1e-2)
    assert not entry.is_accepted


def test_an_earlier_run_tells_of_a_type_that_has_one_op() -> None:
    earlier = [result(f"exp_{number}", 8e-4, State.RIGHT) for number in range(9)]
    profile = profile_of(earlier, learn(earlier))
    device = learn([result("alone", 3e-3)], profile)
    assert device.tolerance(("Exp",), "float32", Kind.APPROXIMATE, "alone") == pytest.approx(4 * 8e-4)


def test_a_variable_of_which_a_cast_flushed_some_elements_is_the_benchmarks(tmp_path: Path) -> None:
    """Its only copy is what the cast put out, where dump files hold outputs alone."""
    weights = numbers(12, 12, seed=1)
    weights[0, :3] = 1e-6
    network = half_products(1.0).with_part("w", npu=weights, golden=weights).with_part("cast_w", wrong=flushed)
    verdict = verdict_of(network.write(tmp_path, inputs=False))
    assert (verdict.culprit, verdict.cause) == (None, Cause.NONE)


def test_products_of_two_numbers_of_ten_bits_are_no_fault() -> None:
    """A sum of one or two products has the error of a product; long ones, whose errors average out, tell less."""
    x, y = np.random.default_rng(3).uniform(1, 2, (2, 1 << 12))

    def in_ten_bits(values: Array) -> Array:
        return np.asarray(np.rint(values * 2.0**9) / 2.0**9)

    worst = float(np.abs(in_ten_bits(x) * in_ten_bits(y) / (x * y) - 1).max())
    assert 2.0**-10 < worst < learn([]).tolerance(("MatMulV2",), "float32", Kind.MATRIX, "alone")
