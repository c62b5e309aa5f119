"""The benchmark's step by itself: which graph is taken, which of its ops ran, and what each was fed and put out."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from builders import Array, write_golden
from google.protobuf import text_format
from msprobe_network import dump_network
from tf_graphs import node, parsed

from precision_tool.lib.data.benchmark_step import BenchmarkStep, benchmark_step
from precision_tool.lib.data.dumped_ops import NoBenchmark
from precision_tool.lib.data.workspace import Workspace
from precision_tool.lib.diagnose.emulation import StepEmulator
from precision_tool.lib.diagnose.op_values import Root, RunValues
from precision_tool.lib.diagnose.recomputer import Recomputer
from precision_tool.lib.diagnose.verdict_model import State
from precision_tool.lib.messages import render
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, NoBenchmarkError

_T = {"T": "type: DT_FLOAT"}
_RESOURCE = {"dtype": "type: DT_FLOAT", "shape": "shape { }"}


def const(name: str, value: str) -> str:
    dtype = "DT_INT32" if "int_val" in value else "DT_FLOAT"
    return node(name, "Const", (), {"value": f"tensor {{ dtype: {dtype} {value} }}", "dtype": f"type: {dtype}"})


#: A step that momentum trains, with ops of other runs around it.
GRAPH = (
    node("x", "Placeholder", (), {"dtype": "type: DT_FLOAT"})
    + node("w", "VarHandleOp", (), _RESOURCE)
    + node("w/random", "RandomUniform", [], {"dtype": "type: DT_FLOAT"})
    + node("w/init", "Mul", ["w/random", "w/random"], _T)
    + node("w/Assign", "AssignVariableOp", ["w", "w/init"], {"dtype": "type: DT_FLOAT"})
    + node("w/read", "ReadVariableOp", ["w"], {"dtype": "type: DT_FLOAT"})
    + node("save", "SaveV2", ["w/read"])
    + node("fc/MatMul", "MatMul", ["x", "w/read"], _T)
    + node("fc/flat", "Reshape", ["fc/MatMul", "fc/shape"], _T)
    + const("fc/shape", "tensor_shape { dim { size: 1 } } int_val: -1")
    + node("fc/Relu", "Relu", ["fc/flat"], _T)
    + node("fc/same", "Relu", ["fc/flat"], _T)
    + const("axes", "tensor_shape { dim { size: 1 } } int_val: 0")
    + node("loss", "Sum", ["fc/same", "axes"], _T)
    + node("order", "InvertPermutation", ["axes2"])
    + const("axes2", "tensor_shape { dim { size: 2 } } int_val: 1 int_val: 0")
    + node("turned", "Transpose", ["w/read", "order"], _T)
    + node("accum", "VarHandleOp", (), _RESOURCE)
    + const("rate", "tensor_shape { } float_val: 0.5")
    + node("train", "ResourceApplyMomentum", ["w", "accum", "rate", "grad", "rate"], _T)
    + node("grad", "MatMul", ["x", "fc/MatMul"], {**_T, "transpose_a": "b: true"})
    + node("w/late", "ReadVariableOp", ["w", "^train"], {"dtype": "type: DT_FLOAT"})
    + node("weights", "L2Loss", ["w/late"], _T)
    + node("w/last", "ReadVariableOp", ["w", "^again"], {"dtype": "type: DT_FLOAT"})
    + node("end", "L2Loss", ["w/last"], _T)
    + node("again", "AssignSubVariableOp", ["w", "w/late", "^w/late"], {"dtype": "type: DT_FLOAT"})
    + node("evaluate", "Square", ["fc/MatMul"], _T)
)


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    """The tensors that TensorFlow leaves of the step and of the run that initialised it, and their graph."""
    random = np.random.default_rng(4)
    x, w, accum = (random.standard_normal(shape).astype(np.float32) for shape in ((4, 3), (3, 2), (3, 2)))
    product = x @ w
    grad = x.T @ product
    later = accum * np.float32(0.5) + grad
    trained = w - np.float32(0.5) * later
    relu = np.maximum(product.reshape(-1), 0)
    tensors: dict[str, Array] = {
        "_arg_x_0_0": x, "w_random": w, "w_init": w * w, "w_read": w, "fc_MatMul": product,
        "fc_flat": product.reshape(-1), "fc_Relu": relu, "loss": relu.sum(), "order__7__cf__3": np.array([1, 0], "i4"),
        "turned": w.T, "accum": accum, "grad": grad, "train": trained, "w_late": trained,
        "weights": np.sum(trained**2) / 2, "again": trained * 0,
        "end": np.zeros(()),
    }  # fmt: skip
    space = Workspace(tmp_path / "data")
    for name, array in tensors.items():
        write_golden(space.tf_dump_dir, name, 0, np.asarray(array))
    write_graph(space.tf_graph_dir / "session.pb")
    return space


def write_graph(path: Path, text: str = GRAPH) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    message = parsed("GraphDef", text)
    path.write_bytes(
        message.SerializeToString() if path.suffix == ".pb" else text_format.MessageToString(message).encode()
    )


def recomputed(step: BenchmarkStep) -> dict[str, State]:
    recomputer = Recomputer(RunValues(step.leaf, step.file, step.side))
    return {op.name: recomputer.recompute(op).state for op in recomputer.computing}


def test_the_ops_that_ran(space: Workspace) -> None:
    step = benchmark_step(space)
    names = [op.name for op in step.file.ops]
    assert set(names) == {
        "x", "w", "w/read", "fc/MatMul", "fc/shape", "fc/flat", "fc/Relu", "fc/same", "axes", "loss", "axes2", "order",
        "turned", "accum", "rate", "grad", "train", "w/late", "weights", "again", "w/last", "end",
    }  # fmt: skip
    assert names.index("grad") < names.index("train") < names.index("w/late")
    states = recomputed(step)
    computing = "fc/MatMul fc/Relu fc/same loss order turned grad train weights again end"
    assert set(states) == set(computing.split())
    assert set(states.values()) == {State.RIGHT}
    assert step.notes == ()


def test_changes_go_through_what_only_passes_on(space: Workspace) -> None:
    step = benchmark_step(space)
    values = RunValues(step.leaf, step.file, step.side)
    ops = {op.name: op for op in step.file.ops}
    fed = {name: [root.op.name for root in values.producers(op)] for name, op in ops.items()}
    assert fed["fc/Relu"] == ["fc/MatMul"]
    assert fed["fc/MatMul"] == ["x", "w"]
    assert fed["weights"] == ["train"]  # which is not what the variable was before the step
    assert fed["again"] == ["train", "train"]
    assert ops["fc/Relu"].input_descs[0].origin_shape == (8,)
    before = values.load_root(Root(ops["w"], 0))
    late = values.load_root(Root(ops["train"], 0))
    assert before is not None
    assert late is not None
    assert not np.array_equal(before.input.array, late.input.array)
    axes = values.load_benchmark(Root(ops["axes"], 0))
    assert axes is not None
    assert (axes.input.dtype, axes.input.array.tolist()) == ("int32", [0])


def test_ops_that_tensorflow_removed(space: Workspace) -> None:
    for name in ("fc_Relu.0", "grad.0"):
        (path,) = space.tf_dump_dir.glob(f"{name}.*")
        path.unlink()
    (note,) = benchmark_step(space).notes
    assert (note.kind, note.fields["count"], note.fields["first"]) == ("note.data.optimized_away", 2, "fc/same")


def test_a_branch_that_was_not_taken(space: Workspace) -> None:
    """tfdbg dumps what ran: of a Switch one output, and nothing behind the other."""
    branches = (
        node("train?", "Placeholder", (), {"dtype": "type: DT_BOOL"})
        + node("cond/Switch", "Switch", ["fc/MatMul", "train?"], _T)
        + node("cond/no", "Relu", ["cond/Switch"], _T)
        + node("cond/yes", "Square", ["cond/Switch:1"], _T)
        + node("cond/Merge", "Merge", ["cond/no", "cond/yes"], _T)
        + node("after", "Neg", ["cond/Merge"], _T)
    )
    write_graph(space.tf_graph_dir / "session.pb", GRAPH + branches)
    (product,) = (np.load(path) for path in space.tf_dump_dir.glob("fc_MatMul.*"))
    squares = product**2
    tensors = {"_arg_train?_0_1": np.array(True), "cond_yes": squares, "cond_Merge": squares, "after": -squares}
    for name, array in tensors.items():
        write_golden(space.tf_dump_dir, name, 0, array)
    write_golden(space.tf_dump_dir, "cond_Switch", 1, product)
    step = benchmark_step(space)
    assert "cond/no" not in {op.name for op in step.file.ops}
    states = recomputed(step)
    assert {states[name] for name in ("cond/Switch", "cond/yes", "after")} == {State.RIGHT}
    assert step.notes == ()


def test_the_graph_that_has_the_ops(space: Workspace, tmp_path: Path) -> None:
    write_graph(space.tf_graph_dir / "a_part.pbtxt", GRAPH.split("\n", 1)[0])
    (space.tf_graph_dir / "broken.meta").write_bytes(b"\x0a\x50")
    assert benchmark_step(space).file.path == str(space.tf_graph_dir / "session.pb")
    elsewhere = tmp_path / "mine.pbtxt"
    write_graph(elsewhere, GRAPH)
    (space.tf_graph_dir / "session.pb").rename(space.tf_graph_dir / "session.txt")
    assert benchmark_step(space, graph=str(elsewhere)).file.path == str(elsewhere)
    assert benchmark_step(space, str(space.tf_dump_dir), str(tmp_path)).file.path == str(elsewhere)
    meta = space.tf_checkpoint_dir / "ckpt.meta"
    meta.parent.mkdir()
    meta.write_bytes(parsed("MetaGraphDef", f"graph_def {{ {GRAPH} }}").SerializeToString())
    assert benchmark_step(space).file.path == str(meta)


def test_what_is_missing(space: Workspace, tmp_path: Path) -> None:
    graph = space.tf_graph_dir / "session.pb"
    graph.write_bytes(graph.read_bytes()[:-3])
    with pytest.raises(FormatError, match=r"session\.pb"):
        benchmark_step(space)
    write_graph(graph, node("other/network", "Relu"))
    with pytest.raises(DataNotFoundError, match=r"session\.pb.*another network"):
        benchmark_step(space)
    graph.unlink()
    with pytest.raises(DataNotFoundError, match="no TensorFlow graph"):
        benchmark_step(space)
    with pytest.raises(DataNotFoundError, match="nowhere"):
        benchmark_step(space, graph=str(tmp_path / "nowhere.pb"))
    with pytest.raises(NoBenchmarkError):
        benchmark_step(Workspace(tmp_path / "empty"))


def test_a_dump_of_msprobe_is_a_step(tmp_path: Path) -> None:
    dump_network(tmp_path / "gpu")
    step = benchmark_step(Workspace(tmp_path))
    assert isinstance(step.side, NoBenchmark)
    states = recomputed(step)
    assert "Functional.gelu.0.forward" in states
    assert set(states.values()) == {State.RIGHT}


def test_a_damaged_tensor_is_named(space: Workspace) -> None:
    """That it is damaged, not that there is none."""
    (path,) = space.tf_dump_dir.glob("fc_MatMul.*")
    path.write_bytes(path.read_bytes()[:40])
    step = benchmark_step(space)
    emulator = StepEmulator(Recomputer(RunValues(step.leaf, step.file, step.side)))
    reasons = {op.name: emulator.check(op) for op in emulator.ops}
    assert path.name in render(reasons["fc/Relu"])


def test_a_constant_that_claims_many_elements_takes_no_memory(space: Workspace) -> None:
    shape = f"tensor_shape {{ dim {{ size: {1 << 24} }} }}"
    large = node("large", "Const", (), {"value": f"tensor {{ dtype: DT_COMPLEX128 {shape} }}"})
    write_graph(space.tf_graph_dir / "session.pb", GRAPH + large)
    tracemalloc.start()
    benchmark_step(space)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 24
