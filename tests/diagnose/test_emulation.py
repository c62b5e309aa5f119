"""The emulation of a recorded step, beside the same step computed here with plain numpy."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from typing import cast as cast_type

import ml_dtypes
import numpy as np
import pytest
from builders import Array
from tiny_network import Network, Part, binary, cast, matmul, numbers, source, unary

from precision_tool.lib.data.dumped_ops import NoBenchmark
from precision_tool.lib.data.settings import load_settings
from precision_tool.lib.diagnose.emulation import MENDED, Computed, Rounding, StepEmulator
from precision_tool.lib.diagnose.op_values import Root, RunValues
from precision_tool.lib.diagnose.pipeline import leaves_alone
from precision_tool.lib.diagnose.recomputer import Recomputer
from precision_tool.lib.model.graph import Op, TensorDesc
from precision_tool.lib.session import Session

X, W, V = numbers(8, 12, seed=1), numbers(12, 16, seed=2, scale=0.3), numbers(16, 4, seed=3, scale=0.3)


def total(name: str, fed: str) -> Part:
    """All of it added up."""
    return Part(
        name=name, type="ReduceSumD", inputs=(fed,), compute=np.sum, originals=(name,),
        attrs={"axes": (int, [0, 1]), "keep_dims": False},
    )  # fmt: skip


def network() -> Network:
    """Two layers in float16 between float32; a second output beside the loss."""
    return Network(
        parts=(
            source("IteratorGetNext", X), source("w", W), source("v", V), cast("x16", "IteratorGetNext"),
            cast("w16", "w"), cast("v16", "v"), matmul("one", "x16", "w16"), unary("relu", "Relu", "one"),
            matmul("two", "relu", "v16"), cast("back", "two", "float32"),
            unary("squares", "Square", "back", "float32"), total("loss", "squares"),
            unary("beside", "Tanh", "relu"),
        )
    )  # fmt: skip


def step(x: Array, dtype: type[Any] = np.float16) -> tuple[float, Array]:
    """Return the loss and the output beside it, each result rounded to a type."""

    def stored(array: Array) -> Array:
        return np.asarray(array.astype(np.float32).astype(dtype).astype(np.float64))

    relu = np.maximum(stored(stored(x) @ stored(W)), 0)
    back = stored(relu @ stored(V))
    return float(np.square(back).sum()), stored(np.tanh(relu))


def emulator_of(made: Network, folder: Path) -> StepEmulator:
    session = Session(load_settings({"data": str(made.write(folder)), "work": str(folder / "work")}))
    (leaf,) = leaves_alone(session.data)
    assert leaf.dump is not None
    assert leaf.file is not None
    return StepEmulator(Recomputer(RunValues(leaf.dump, leaf.file, NoBenchmark())))


def root(emulator: StepEmulator, name: str) -> Root:
    return Root(next(op for op in emulator.values.ops if op.name == name), 0)


def test_a_changed_tensor_goes_through_the_step_as_numpy_says(tmp_path: Path) -> None:
    emulator = emulator_of(network(), tmp_path)
    assert emulator.loss is not None
    assert emulator.loss.op.name == "loss"
    assert {last.op.name for last in emulator.last_roots} == {"loss", "beside"}
    x, seen = numbers(8, 12, seed=9), []

    def look(computed: Computed) -> None:
        seen.append(computed.op.name)

    wanted = [emulator.loss, root(emulator, "beside")]
    result = emulator.run(replaced={root(emulator, "IteratorGetNext").key: x}, wanted=wanted, on_op=look)
    loss, beside = step(x)
    assert float(result.values[emulator.loss.key].reshape(-1)[0]) == pytest.approx(loss, rel=1e-3)
    np.testing.assert_allclose(result.values[wanted[1].key], beside, atol=1e-3)
    # What the change does not reach is not computed.
    assert "w16" not in seen
    assert "v16" not in seen
    assert result.ops == len(seen) == 8
    assert not result.stopped


def test_every_op_in_another_type(tmp_path: Path) -> None:
    emulator = emulator_of(network(), tmp_path)
    assert emulator.loss is not None
    coarse = Rounding(inputs="bfloat16", output="bfloat16")
    result = emulator.run(lambda op: coarse if op.name != "loss" else Rounding(), wanted=[emulator.loss])
    loss, _ = step(X, ml_dtypes.bfloat16)
    got = float(result.values[emulator.loss.key].reshape(-1)[0])
    assert got == pytest.approx(loss, rel=2e-2)
    assert abs(got - step(X)[0]) > 0


def larger(array: Array) -> Array:
    return np.asarray(array * np.asarray(1.5, array.dtype))


def test_an_op_keeps_its_error_unless_it_is_mended(tmp_path: Path) -> None:
    emulator = emulator_of(network().with_part("relu", wrong=larger), tmp_path)
    relu, wanted = root(emulator, "relu"), root(emulator, "one")
    with emulator.values.reading():
        assert emulator.check(relu.op) is None
    assert emulator.unlike
    recorded = emulator.recorded(relu)
    assert recorded is not None
    x = X + np.float32(0.25) * numbers(8, 12, seed=7)
    given = {root(emulator, "IteratorGetNext").key: x}
    kept = emulator.run(replaced=given, wanted=[relu, wanted]).values
    moved = np.maximum(kept[wanted.key], 0) - np.maximum(step_one(X), 0)
    np.testing.assert_allclose(kept[relu.key], recorded.array + moved, atol=4e-3)
    mended = emulator.run(lambda op: MENDED if op is relu.op else None, replaced=given, wanted=[relu]).values
    np.testing.assert_allclose(mended[relu.key], np.maximum(kept[wanted.key], 0), atol=1e-3)


def step_one(x: Array) -> Array:
    half = np.float16
    product = x.astype(half).astype(np.float64) @ W.astype(half).astype(np.float64)
    return np.asarray(product.astype(half).astype(np.float64))


def test_where_there_is_no_formula_recorded_results_stand(tmp_path: Path) -> None:
    emulator = emulator_of(network().with_part("relu", type="Mystery"), tmp_path)
    assert emulator.loss is not None
    stopped: list[str] = []
    result = emulator.run(
        replaced={root(emulator, "IteratorGetNext").key: numbers(8, 12, seed=9)}, wanted=[emulator.loss],
        on_stop=lambda op, reason: stopped.append(f"{op.name} {reason.kind}"),
    )  # fmt: skip
    assert stopped == ["relu reason.no_formula"]
    assert set(result.stopped) == {"relu"}
    assert float(result.values[emulator.loss.key].reshape(-1)[0]) == pytest.approx(step(X)[0], rel=1e-3)


@pytest.mark.parametrize("saturates", [False, True])
def test_what_a_type_cannot_hold_becomes_what_the_run_made_of_it(tmp_path: Path, saturates: bool) -> None:
    """The same overflow, from changed inputs: Inf, or the largest number; a mended op keeps it in float32."""
    large = np.full((4, 4), 300.0, np.float32)
    parts = (source("x", large), cast("x16", "x"), binary("product", "Mul", "x16", "x16"))
    emulator = emulator_of(Network(parts=parts, saturates=saturates), tmp_path)
    product, given = root(emulator, "product"), {root(emulator, "x").key: large + 8}
    values = emulator.run(replaced=given, wanted=[product]).values[product.key]
    assert (values == (65504 if saturates else np.inf)).all()
    wide = emulator.run(lambda op: MENDED if op is product.op else None, replaced=given, wanted=[product])
    np.testing.assert_array_equal(wide.values[product.key], (large + 8) ** 2)


def test_the_loss_of_many_ops_takes_little_memory() -> None:
    described = (TensorDesc(dtype="float32", shape=(), origin_shape=()),)
    ops = [Op(name=f"op{number}", type="Relu", output_descs=described) for number in range(4000)]
    before = {id(op): [Root(other, 0)] for other, op in pairwise(ops)}
    values = SimpleNamespace(producers=lambda op: before.get(id(op), []), copies=lambda root: [])
    emulator = StepEmulator(cast_type(Recomputer, SimpleNamespace(values=values, computing=ops)))
    tracemalloc.start()
    loss = emulator.loss
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert loss == Root(ops[-1], 0)
    assert peak < 8 << 20
