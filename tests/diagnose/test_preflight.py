"""What 16 bits make of a recorded step: against plain numpy, planted ranges, and a search that is right on all sets."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from builders import write_golden
from msprobe_calls import Calls
from msprobe_files import forward, tensor, write_leaf
from tf_graphs import node, parsed

from precision_tool.lib.data.benchmark_step import benchmark_step
from precision_tool.lib.data.dumped_ops import NoBenchmark
from precision_tool.lib.data.msprobe_ops import read_msprobe_graph
from precision_tool.lib.data.sides import find_run
from precision_tool.lib.data.workspace import Workspace
from precision_tool.lib.diagnose.emulation import Rounding, StepEmulator
from precision_tool.lib.diagnose.op_values import RunValues
from precision_tool.lib.diagnose.preflight import _Forecaster, fitting_scale, preflight
from precision_tool.lib.diagnose.preflight_model import Errors, Preflight, Risk, TypeForecast
from precision_tool.lib.diagnose.preflight_search import Bounds, FoundSet, Search, SearchEndedError
from precision_tool.lib.diagnose.recomputer import Recomputer
from precision_tool.lib.diagnose.unrecorded_views import view_of
from precision_tool.lib.messages import render
from precision_tool.lib.model.graph import Op
from precision_tool.lib.view.preflight_screen import conclusion, scale_words

OPS = ("Functional.linear.0", "Torch.square.0", "Functional.linear.1", "Tensor.mean.0")


class Net:
    """mean(linear(square(linear(x)))) in float32, with its gradients: `seed` is the gradient of the loss."""

    def __init__(self, gain: float = 1.0, seed: float = 1.0) -> None:
        random = np.random.default_rng(7)
        self.x = random.normal(size=(6, 8)).astype(np.float32)
        self.w1 = (random.normal(size=(16, 8)) * gain).astype(np.float32)
        self.w2 = random.uniform(0.2, 1, size=(4, 16)).astype(np.float32)
        self.seed = np.float32(seed)

    def compute(self, narrow: Any = None) -> dict[str, Any]:
        """Every tensor; `narrow`: each op takes its inputs rounded to this type, and stores its results in it."""

        def rounded(array: Any) -> Any:
            array = np.asarray(array, np.float32)
            return array if narrow is None else array.astype(narrow).astype(np.float32)

        x, w1, w2, seed = map(rounded, (self.x, self.w1, self.w2, self.seed))
        h = rounded(x @ w1.T)
        s = rounded(h * h)
        y = rounded(s @ w2.T)
        dy = rounded(np.full(y.shape, seed / y.size, np.float32))
        ds = rounded(dy @ w2)
        dh = rounded(2 * h * ds)
        return {
            "h": h, "s": s, "y": y, "loss": rounded(y.mean()),
            "dy": dy, "ds": ds, "dw2": rounded(s.T @ dy), "dh": dh, "dw1": rounded(x.T @ dh), "dx": rounded(dh @ w1),
        }  # fmt: skip

    def emulator(self, folder: Path) -> StepEmulator:
        """The step, dumped."""
        t = self.compute()
        entries: dict[str, Any] = {}
        tensors: dict[str, Any] = {}

        def saved(slot: str, array: Any) -> Any:
            tensors[f"{slot}.pt"] = np.asarray(array)
            return tensor(array, f"{slot}.pt")

        def call(name: str, inputs: list[Any], output: Any) -> None:
            given = [saved(f"{name}.forward.input.{number}", array) for number, array in enumerate(inputs)]
            entries[f"{name}.forward"] = forward(*given, output=[saved(f"{name}.forward.output.0", output)])

        def gradient(name: str, given: Any, outputs: list[Any]) -> None:
            made = [saved(f"{name}.backward.output.{number}", array) for number, array in enumerate(outputs)]
            entries[f"{name}.backward"] = {"input": [saved(f"{name}.backward.input.0", given)], "output": made}

        call(OPS[0], [self.x, self.w1], t["h"])
        call(OPS[1], [t["h"]], t["s"])
        call(OPS[2], [t["s"], self.w2], t["y"])
        call(OPS[3], [t["y"]], t["loss"])
        gradient(OPS[3], self.seed, [t["dy"]])
        gradient(OPS[2], t["dy"], [t["ds"], t["dw2"]])
        gradient(OPS[1], t["ds"], [t["dh"]])
        gradient(OPS[0], t["dh"], [t["dx"], t["dw1"]])
        construct = {f"{OPS[1]}.forward": "Module.act.Squared.forward.0", "Module.act.Squared.forward.0": None}
        return _emulator(write_leaf(folder, entries, tensors, construct=construct))


def _emulator(folder: Path) -> StepEmulator:
    (leaf,) = find_run(str(folder)).leaves
    return StepEmulator(Recomputer(RunValues(leaf, read_msprobe_graph(leaf.graph), NoBenchmark())))


def _in_float16(emulator: StepEmulator, **options: Any) -> tuple[Preflight, TypeForecast]:
    result = preflight(emulator, ("float16",), **options)
    return result, result.types[0]


def test_an_emulated_step_is_what_plain_numpy_makes_of_it(tmp_path: Path) -> None:
    net = Net()
    calls: list[tuple[int, int]] = []
    result, forecast = _in_float16(net.emulator(tmp_path), progress=lambda *numbers: calls.append(numbers))
    true, got = net.compute(), net.compute(np.float16)
    assert result.loss_name == f"{OPS[3]}.forward"
    assert not result.not_emulated
    assert forecast.scale.advised == 1
    assert result.loss == pytest.approx(float(true["loss"]), rel=1e-6)
    error = abs(got["loss"] - true["loss"]) / true["loss"]
    assert forecast.all_narrow.loss == pytest.approx(float(error), abs=3e-7)
    worst = max(np.linalg.norm(got[name] - true[name]) / np.linalg.norm(true[name]) for name in ("dx", "dw1", "dw2"))
    assert forecast.all_narrow.gradients == pytest.approx(float(worst), rel=1e-3)
    assert (forecast.kept, forecast.is_enough, forecast.is_finished) == ((), True, True)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert calls[-1][0] == calls[-1][1]


def test_the_adjoint_tells_how_an_op_moves_the_loss(tmp_path: Path) -> None:
    emulator = Net(seed=16.0).emulator(tmp_path)  # a loss scale is in all gradients of the dump
    _, forecast = _in_float16(emulator)
    loss = emulator.loss
    assert loss is not None
    narrow = Rounding(inputs="float16", output="float16")
    true = float(emulator.run(wanted=[loss]).values[loss.key])
    by_name = {found.name: found for found in forecast.sensitivities}
    for op in emulator.ops[:4]:
        run = emulator.run(lambda other, op=op: narrow if other is op else None, wanted=[loss])  # type: ignore[misc]
        changed = abs(float(run.values[loss.key]) - true) / true
        assert by_name[op.name].by == "adjoint"
        assert by_name[op.name].loss == pytest.approx(changed, rel=0.02, abs=5e-7), op.name
    assert all(by_name[f"{name}.backward"].loss == 0 for name in OPS)


def test_a_square_beyond_the_range_is_kept_with_what_reads_it(tmp_path: Path) -> None:
    _, forecast = _in_float16(Net(gain=60.0).emulator(tmp_path))
    ranges = {found.name: found for found in forecast.ranges}
    square = ranges[f"{OPS[1]}.forward"]
    assert square.largest > 65504
    assert square.headroom == pytest.approx(np.log2(65504 / square.largest))
    assert Risk.OVERFLOW in square.risks
    assert not ranges[f"{OPS[0]}.forward"].risks
    assert not np.isfinite(forecast.all_narrow.loss)
    assert forecast.all_narrow.not_finite
    assert {f"{OPS[1]}.forward", f"{OPS[2]}.forward"} <= set(forecast.kept)
    assert forecast.kept_modules[0].startswith("act")
    assert forecast.smallest == len(forecast.kept)
    assert forecast.is_enough
    assert forecast.with_kept.not_finite == 0
    assert forecast.steps[0].float32 == ()


def test_gradients_that_vanish_come_back_with_the_advised_loss_scale(tmp_path: Path) -> None:
    net = Net(seed=5e-7)
    assert not net.compute(np.float16)["dw1"].any()
    _, forecast = _in_float16(net.emulator(tmp_path))
    ranges = {found.name: found for found in forecast.ranges}
    assert ranges[f"{OPS[3]}.backward"].risks == (Risk.UNDERFLOW,)
    assert ranges[f"{OPS[3]}.backward"].is_gradient
    assert 1 < forecast.scale.lowest <= forecast.scale.advised < forecast.scale.highest
    assert forecast.all_narrow.gradients < 2e-3
    assert not forecast.kept


def test_a_loss_scale_lies_between_what_vanishes_and_what_overflows() -> None:
    small, large = {-30: 1.0}, {3: 1.0}  # elements from 2⁻³¹, and from 4 on
    scale = fitting_scale([small, large], 7.0, "float16")
    assert scale.highest == 2.0**13  # 7 · 2¹³ = 57344
    assert 2.0**-31 * scale.lowest > 2.0**-25
    assert 2.0**-31 * scale.lowest / 2 <= 2.0**-25
    assert scale.lowest <= scale.advised <= scale.highest / 2
    both = fitting_scale([{-60: 1.0}, large], 7.0, "float16")
    assert both.lowest > both.highest > both.advised
    assert fitting_scale([], 0.0, "float16").advised == 1
    infinite = fitting_scale([], np.inf, "float16")
    assert infinite.lowest > infinite.highest
    assert scale_words(infinite).kind.endswith("infinite")


def test_squares_inside_a_norm_are_kept_out_of_the_type(tmp_path: Path) -> None:
    calls = Calls()
    hidden = calls.linear("up", calls.numbers(4, 16) * np.float32(100))
    calls.norm("norm", hidden)
    _, forecast = _in_float16(_emulator(calls.write(tmp_path)))
    norm = next(found for found in forecast.ranges if found.op_type == "Functional.layer_norm")
    assert (norm.inside, norm.risks) == ("square", (Risk.OVERFLOW_INSIDE,))
    centred = hidden - hidden.mean(-1, keepdims=True)
    assert norm.inside_headroom == pytest.approx(np.log2(65504 / np.max(centred**2)), abs=1e-3)
    assert forecast.kept == (norm.name,)
    assert forecast.with_kept.loss < 1e-3  # of the final output, without a loss
    assert np.isnan(forecast.with_kept.gradients)


def test_an_overflow_of_what_an_op_reads_is_no_risk_of_its_own(tmp_path: Path) -> None:
    calls = Calls()
    large = calls.linear("up", calls.numbers(4, 16) * np.float32(1e6))
    calls.norm("norm", large)
    _, forecast = _in_float16(_emulator(calls.write(tmp_path)))
    up, norm = forecast.ranges
    assert Risk.OVERFLOW in up.risks
    assert norm.headroom > 0
    assert norm.risks == (Risk.OVERFLOW_INSIDE,), "its squares are its own"
    assert set(forecast.kept) == {up.name, norm.name}


# --- views that are not recorded ---


def test_a_change_goes_on_through_a_view_that_is_not_recorded(tmp_path: Path) -> None:
    calls = Calls()
    hidden = calls.linear("up", calls.numbers(4, 16))
    calls.relu("act", np.ascontiguousarray(hidden.reshape(4, 2, 8).transpose(1, 0, 2)))
    emulator = _emulator(calls.write(tmp_path))
    first, last = emulator.ops
    assert emulator.values.source_of(emulator.values.input_slots(last)[0]).op.type == "Unrecorded"  # type: ignore[union-attr]
    (end,) = emulator.last_roots
    run = emulator.run(lambda op: Rounding(inputs="float16", output="float16") if op is first else None, wanted=[end])
    weight = emulator.inputs_of(first).inputs[1].array.astype(np.float16).astype(np.float32)
    x = emulator.inputs_of(first).inputs[0].array.astype(np.float16).astype(np.float32)
    expected = np.maximum((x @ weight.T).astype(np.float16).astype(np.float32), 0)
    assert np.allclose(run.values[end.key], expected.reshape(4, 2, 8).transpose(1, 0, 2), atol=2e-3)
    assert not np.array_equal(run.values[end.key], np.maximum(hidden, 0).reshape(4, 2, 8).transpose(1, 0, 2))
    result, forecast = _in_float16(emulator)
    assert result.unconnected == 0
    assert forecast.all_narrow.loss > 1e-5


def test_views_parts_and_sums_are_told_by_their_numbers() -> None:
    random = np.random.default_rng(2)
    a, b = random.normal(size=(2, 6, 4)).astype(np.float32)
    changed = random.normal(size=(6, 4)).astype(np.float32)
    makes: list[Callable[[Any], Any]] = [
        lambda x: x.reshape(4, 6), lambda x: x.T, lambda x: x[:, 1:3], lambda x: x.T.reshape(2, 12),
    ]  # fmt: skip
    for make in makes:
        view = view_of(make(a), [(1, b), (2, a)])
        assert view is not None
        assert view.sources == (1,)
        assert np.array_equal(view.make([changed]), make(changed))
    total = view_of(a + b, [(1, a), (2, b)])
    assert total is not None
    assert np.array_equal(total.make([changed, b]), changed + b)
    assert view_of(np.exp(a), [(1, a), (2, b)]) is None
    assert view_of(np.zeros((3, 4), np.float32), [(1, np.maximum(a, 5))]) is None  # which zeros, nothing tells


# --- the search -------------------------------------------------------------------------------------------------------


def _signed(changes: Any) -> Callable[[frozenset[int]], Errors]:
    """An emulation whose errors have signs and cancel."""

    def emulate(chosen: frozenset[int]) -> Errors:
        left = sum(change for number, change in enumerate(changes) if number not in chosen)
        return Errors(loss=abs(float(left)), gradients=0.0)

    return emulate


def test_the_only_sensitive_op_is_the_set() -> None:
    changes = [1e-5] * 40
    changes[23] = 1.0
    search = Search(_signed(changes), [23, *(n for n in range(40) if n != 23)], (), Bounds(loss=1e-2, gradients=1))
    found = search.run()
    assert (found.chosen, found.is_enough, found.is_finished) == (frozenset({23}), True, True)


@pytest.mark.parametrize("seed", range(8))
def test_the_search_ends_in_the_smallest_of_all_sets_on_small_nets(seed: int) -> None:
    random = np.random.default_rng(seed)
    changes = random.normal(size=8) * random.choice([0.1, 1.0, 5.0], size=8)
    emulate, bounds = _signed(changes), Bounds(loss=0.5, gradients=1.0)
    ranked = sorted(range(8), key=lambda number: -abs(changes[number]))
    found = Search(emulate, ranked, (), bounds).run()
    enough = [
        count for count in range(9)
        if any(bounds.allow(emulate(frozenset(few))) for few in combinations(range(8), count))
    ]  # fmt: skip
    assert found.smallest == len(found.chosen) == enough[0]
    assert bounds.allow(emulate(found.chosen))
    greedy = Search(emulate, ranked, (), bounds).run(exhaustive=False)
    assert bounds.allow(emulate(greedy.chosen))
    assert not any(bounds.allow(emulate(greedy.chosen - {one})) for one in greedy.chosen)


def test_the_best_set_so_far_stands_when_the_time_is_up() -> None:
    emulations: list[frozenset[int]] = []
    plain = _signed([1.0] * 20)

    def emulate(chosen: frozenset[int]) -> Errors:
        if len(emulations) >= 7:
            raise SearchEndedError
        emulations.append(chosen)
        return plain(chosen)

    found = Search(emulate, range(20), (), Bounds(loss=4.5, gradients=1)).run()
    enough = [chosen for chosen in emulations if plain(chosen).loss <= 4.5]
    assert enough
    assert (found.is_enough, found.is_finished, found.smallest) == (True, False, None)
    assert len(found.chosen) == min(map(len, enough))


def test_the_gradient_of_a_constant_is_no_gradient_of_a_weight(tmp_path: Path) -> None:
    """Nobody reads it, and no variable is updated by it."""
    dtype = {"T": "type: DT_FLOAT"}
    parts = [
        ("x", "Placeholder", [], {"dtype": "type: DT_FLOAT"}), ("w", "VariableV2", [], {"dtype": "type: DT_FLOAT"}),
        ("c", "Placeholder", [], {"dtype": "type: DT_FLOAT"}), ("rate", "Placeholder", [], {"dtype": "type: DT_FLOAT"}),
        ("axes", "Placeholder", [], {"dtype": "type: DT_INT32"}), ("y", "MatMul", ["x", "w"], dtype),
        ("z", "Mul", ["y", "c"], dtype), ("loss", "Sum", ["z", "axes"], dtype),
        ("gradients/ones", "OnesLike", ["z"], dtype), ("gradients/z_grad/Mul", "Mul", ["gradients/ones", "c"], dtype),
        ("gradients/z_grad/Mul_1", "Mul", ["y", "gradients/ones"], dtype),
        ("gradients/y_grad/MatMul", "MatMul", ["x", "gradients/z_grad/Mul"], {**dtype, "transpose_a": "b: true"}),
        ("update", "ApplyGradientDescent", ["w", "rate", "gradients/y_grad/MatMul"], dtype),
    ]  # fmt: skip
    x, w = (
        np.random.default_rng(seed).standard_normal(shape).astype("f4") for seed, shape in ((1, (4, 3)), (2, (3, 2)))
    )
    y, ones, c, rate = x @ w, np.ones((4, 2), "f4"), np.full((), 10, "f4"), np.full((), 0.5, "f4")
    values = (x, w, c, rate, np.array([0, 1], "i4"), y, y * c, (y * c).sum(), ones, ones * c, y, x.T @ (ones * c))
    space = Workspace(tmp_path)
    for (name, *_), value in zip(parts, (*values, w - rate * values[-1]), strict=True):
        write_golden(space.tf_dump_dir, name.replace("/", "_"), 0, np.asarray(value))
    space.tf_graph_dir.mkdir(parents=True)
    graph = parsed("GraphDef", "".join(node(*part) for part in parts))
    (space.tf_graph_dir / "session.pb").write_bytes(graph.SerializeToString())
    step = benchmark_step(space)
    result = preflight(StepEmulator(Recomputer(RunValues(step.leaf, step.file, step.side)), is_right=True))
    names = {measured.name for measured in result.types[0].ranges}
    assert "gradients/y_grad/MatMul" in names
    assert "gradients/z_grad/Mul_1" not in names


def test_a_search_that_kept_everything_in_vain_did_end() -> None:
    found = Search(lambda chosen: Errors(loss=1.0, gradients=0.0), range(3), (), Bounds(loss=0.5, gradients=1)).run()
    assert (found.is_enough, found.is_finished) == (False, True)


def test_a_search_without_time_for_one_set_does_not_say_that_all_was_tried(tmp_path: Path) -> None:
    result, forecast = _in_float16(Net(gain=60.0).emulator(tmp_path), seconds=0.0)
    assert forecast.kept, "what overflows inside is kept in any case"
    result, forecast = _in_float16(Net().emulator(tmp_path / "calm"), seconds=0.0, bound_loss=1e-9)
    assert (forecast.kept, forecast.is_enough, forecast.is_finished) == ((), False, False)
    told = render(conclusion(forecast, result))
    assert "the search did not end" in told
    assert "even with" not in told


def test_types_are_completed_only_as_far_as_they_are_enough_together() -> None:
    forecaster: Any = object.__new__(_Forecaster)
    units = [(Op(name=f"{op_type}{number}", type=op_type),) for op_type in "AB" for number in range(4)]
    forecaster._step = SimpleNamespace(units=units)
    forecaster._bounds, forecaster._not_computed, forecaster.is_interrupted = Bounds(loss=1, gradients=1), {}, False
    forecaster.__dict__["_not_rounded"] = []
    errors = {True: Errors(loss=9.0, gradients=0.0), False: Errors(loss=0.5, gradients=0.0)}
    forecaster._emulate = lambda chosen: errors[{3, 7} <= chosen]
    chosen = frozenset({0, 1, 2, 4, 5, 6})
    found = FoundSet(chosen=chosen, errors=Errors(loss=0.1, gradients=0.0), is_enough=True, is_finished=True)
    assert forecaster._kept_types(found) == (("A",), errors[False]), "3 and 7 together are too much"
