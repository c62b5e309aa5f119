"""Another run's dump asked for tensors of the training script, by that run's own graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import graph_op, write_dump
from command_line import by_tensor, only_result, tool
from small_tree import Node, SmallTree, small_tree, values

from precision_tool.lib.compare.folders import CompareOptions, compare_folders
from precision_tool.lib.compare.scheduler import THIS_THREAD
from precision_tool.lib.data import dump_tree as walk
from precision_tool.lib.data.dumped_ops import Missing
from precision_tool.lib.data.graph_cache import GraphStore
from precision_tool.lib.data.matching import GraphDumps
from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.messages import Message
from precision_tool.lib.model.comparison import Status
from precision_tool.lib.model.graph import Graph, GraphFile
from precision_tool.lib.model.tensor import Tensor

KERNEL = Node(name="fc/kernel", type="Variable")
DATA = Node(name="IteratorGetNext", type="GetNext", output=values(1, 2, 3), originals=("IteratorGetNext",))
CAST = Node(name="trans_Cast_0", type="Cast", inputs=(KERNEL,), output=values(4, 5, 6), originals=())
MATMUL = Node(name="fc/MatMul", type="MatMulV2", inputs=(DATA, CAST), output=values(7, 8, 9), originals=("fc/MatMul",))
RELU = Node(name="fc/Relu", type="Relu", inputs=(MATMUL,), output=values(7, 8, 0), originals=("fc/Relu",))
SHAPE = Node(name="fc/Reshape", type="Reshape", inputs=(RELU,), originals=("fc/Reshape",))
LOSS = Node(name="loss/Sum", type="ReduceSumD", inputs=(RELU,), output=values(15), originals=("loss/Sum",))
UNFUSED = [KERNEL, DATA, CAST, MATMUL, RELU, SHAPE, LOSS]

FUSED_OP = Node(
    name="fc/MatMulfc/Relu", type="MatMulV2", inputs=(DATA, replace(CAST, name="trans_Cast_7")),
    output=values(7, 8, 1), originals=("fc/MatMul", "fc/Relu"), passes=("MatMulReluPass",),
)  # fmt: skip
FUSED = [
    KERNEL,
    DATA,
    replace(CAST, name="trans_Cast_7"),
    FUSED_OP,
    replace(LOSS, inputs=(FUSED_OP,), output=values(16)),
]


def sides(tree: SmallTree) -> GraphDumps:
    return GraphDumps(walk.find_run(str(tree.leaf)).leaves[0], GraphStore().load(str(tree.graph)))


def place(found: object, tree: SmallTree) -> str:
    """Which op's dump a tensor is in."""
    assert isinstance(found, Tensor)
    return next(name for name, path in tree.dumps.items() if str(path) == found.path)


def test_where_a_tensor_is_taken_from(tmp_path: Path) -> None:
    """From the op that made it; else from a copy of it or from what read it."""
    tree = small_tree(tmp_path / "precision_data", UNFUSED)
    side = sides(tree)
    assert place(side.output("fc_MatMul", 0), tree) == "fc/MatMul"
    assert place(side.output("fc_Relu", 0), tree) == "fc/Relu"
    assert place(side.output("fc_kernel", 0), tree) == "trans_Cast_0"
    assert place(side.output("IteratorGetNext", 0), tree) == "IteratorGetNext"
    missing = side.output("fc_Reshape", 0)
    assert isinstance(missing, Missing)
    assert missing.reason == Message("row.data.nowhere_in_other_run", op="fc_Reshape", index=0)
    # Without its own dump, the tensor is the input of the op that read it.
    tree.dumps["fc/Relu"].unlink()
    assert place(sides(tree).output("fc_Relu", 0), tree) == "loss/Sum"


def test_what_is_inside_a_fused_op_is_not_there(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "precision_data", FUSED)
    missing = sides(tree).output("fc_MatMul", 0)
    assert isinstance(missing, Missing)
    assert str(missing.reason) == "in the other run it is inside fc/MatMulfc/Relu, made by MatMulReluPass"
    assert place(sides(tree).output("fc_Relu", 0), tree) == "fc/MatMulfc/Relu"


def test_a_damaged_dump_is_told_from_none(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "precision_data", UNFUSED)
    tree.dumps["fc/MatMul"].write_bytes(b"no dump")
    tree.dumps["fc/Relu"].unlink()
    missing = sides(tree).output("fc_MatMul", 0)
    assert isinstance(missing, Missing)
    assert missing.damaged


@pytest.fixture
def pair(tmp_path: Path) -> tuple[SmallTree, SmallTree]:
    root = tmp_path / "precision_data"
    return small_tree(root, FUSED, run="debug_1"), small_tree(root, UNFUSED, run="debug_0")


def test_both_graphs_by_name_and_by_themselves(tmp_path: Path, pair: tuple[SmallTree, SmallTree]) -> None:
    """Named, found beside the dumps, and found out which is which: the same rows."""
    fused, unfused = pair
    folders = ("-lt", fused.leaf, "-rt", unfused.leaf)
    rows = []
    for number, arguments in enumerate(
        [(*folders, "-g", fused.graph, "-cf", unfused.graph), (*folders, "-cf"), ("-cf",)]
    ):
        run = tool("--work", f"w{number}", "vc", *arguments, cwd=tmp_path)
        assert "its graph" in run.out
        assert run.text.count("it was named with -cf") == (not number)
        rows.append(by_tensor(only_result(tmp_path / f"w{number}")))
    assert rows[0] == rows[1] == rows[2]
    fused_op = rows[0]["fc/MatMulfc/Relu:output:0"]
    assert (fused_op["GroundTruth"], fused_op["GroundTruthTensor"]) == ("fc/MatMul,fc/Relu", "fc/Relu:0")
    x, y = np.array([7, 8, 1.0]), np.array([7, 8, 0.0])
    cosine = x @ y / np.linalg.norm(x) / np.linalg.norm(y)
    assert float(fused_op["CosineSimilarity"]) == pytest.approx(cosine, abs=1e-6)
    # What the compiler put in has another number in each graph, and is compared all the same.
    assert rows[0]["trans_Cast_7:output:0"]["CosineSimilarity"] == "1.000000"
    assert rows[0]["fc/MatMulfc/Relu:input:1"]["GroundTruthTensor"] == "fc/kernel:0"
    assert {row["Status"] for name, row in rows[0].items() if ":" in name} == {"compared"}


def test_the_wrong_way_round_is_told(tmp_path: Path, pair: tuple[SmallTree, SmallTree]) -> None:
    fused, unfused = pair
    run = tool("vc", "-lt", unfused.leaf, "-rt", fused.leaf, "-cf", cwd=tmp_path)
    assert "the other run has more fused ops than this one: name the fused run with -lt and -g" in run.text
    swapped = tool(
        "vc", "-lt", fused.leaf, "-rt", unfused.leaf, "-g", unfused.graph, "-cf", fused.graph, cwd=tmp_path, code=2
    )
    assert "are the two graphs swapped?" in swapped.text


def test_what_a_second_graph_is_no_use_for(tmp_path: Path, pair: tuple[SmallTree, SmallTree]) -> None:
    fused, _ = pair
    golden = tmp_path / "golden"
    golden.mkdir()
    np.save(golden / "fc_Relu.0.1772443800000000.npy", values(7, 8, 0))
    run = tool("vc", "-lt", fused.leaf, "-rt", golden, "-cf", cwd=tmp_path, code=2)
    assert "benchmark tensors, which have no graph for -cf" in run.text
    run = tool("vc", "-cf", "nowhere.txt", cwd=tmp_path, code=2)
    assert "nowhere.txt: no such graph" in run.text
    assert "leave -cf out" in run.text


def test_the_relations_of_the_demos_ops(tmp_path: Path) -> None:
    """One op for several, several for one (an op that a pass cut in two, in both runs), one for one, and none."""
    generate_demo(tmp_path, fault="fusion")
    (result,) = compare_folders(
        str(tmp_path / "npu/debug_1/dump"), str(tmp_path / "npu/debug_0/dump"), resources=THIS_THREAD,
        options=CompareOptions(other_graph=""),
    )  # fmt: skip
    rows = {row.pair.tensor_index: row for row in result.rows}
    fused = rows["fc1/MatMulfc1/BiasAddfc1/Relu:output:0"].pair
    assert (fused.golden_ops, fused.golden_tensor) == (("fc1/MatMul", "fc1/BiasAdd", "fc1/Relu"), "fc1/Relu:0")
    whole, part = rows["loss/Mean:output:0"].pair, rows["loss/Mean_ReduceSumD:output:0"].pair
    assert (whole.status, whole.golden_tensor, whole.npu_ops) == (
        Status.COMPARED, "loss/Mean:0", ("loss/Mean_ReduceSumD", "loss/Mean"),
    )  # fmt: skip
    assert part.status is Status.INTERMEDIATE
    weights = rows["fc1/MatMulfc1/BiasAddfc1/Relu:input:1"]
    assert (weights.pair.golden_tensor, weights.metrics is not None) == ("fc1/kernel/read:0", True)
    assert {row.pair.status for row in result.rows if row.pair.slot} == {
        Status.COMPARED, Status.INTERMEDIATE, Status.NO_ORIGINAL_OP
    }  # fmt: skip
    alone = [name for name, row in rows.items() if row.pair.slot and row.pair.status is Status.NO_ORIGINAL_OP]
    assert len(alone) == 1  # a constant of the compiler


def test_an_op_that_only_the_other_run_has_cut_in_two(tmp_path: Path) -> None:
    """Its result is that of the last part; the first part's is nobody's."""
    data = graph_op("data", "GetNext", original_names=["data"])
    first = graph_op("m_sum", "ReduceSumD", ["data:0"], original_names=["m"])
    last = graph_op("m", "Muls", ["m_sum:0"], original_names=["m"])
    leaf = tmp_path / "dump"
    for number, (name, value) in enumerate((("data", 1), ("m_sum", 8), ("m", 4))):
        write_dump(leaf / f"T.{name}.{number}.0.177244380000000{number}", name, [], [values(value)])
    file = GraphFile(path="g", graphs=(Graph(name="g", ops=(data, first, last)),))
    side = GraphDumps(walk.find_run(str(leaf)).leaves[0], file)
    found = side.output("m", 0)
    assert isinstance(found, Tensor)
    assert ".m." in found.path
    assert isinstance(side.output("m_sum", 0), Missing)


def test_the_threshold_is_not_taken_for_a_graph(tmp_path: Path, pair: tuple[SmallTree, SmallTree]) -> None:
    """`-c` is the beginning of `-cf`, and what vcs calls the threshold."""
    fused, unfused = pair
    run = tool("vc", "-lt", fused.leaf, "-rt", unfused.leaf, "-c", "0.5", "-cf", cwd=tmp_path)
    assert "0 below 0.5" in run.text
