"""Ops that the compiler put in are matched in two runs by what they connect, not by their running number."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import cells, only_result, tool
from small_tree import Node, small_tree, values

from precision_tool.lib.data.origins import counterparts
from precision_tool.lib.model.graph import Edge, Graph, GraphFile, Op, TensorDesc


def op(name: str, *inputs: str, layout: str = "ND", originals: tuple[str, ...] | None = None) -> Op:
    """An op; one called trans_TYPE_N was put in by the compiler."""
    is_inserted = name.startswith("trans_")
    return Op(
        name=name,
        type=name.split("_")[1] if is_inserted else "Add",
        inputs=tuple(Edge(producer=one, index=0) for one in inputs),
        output_descs=(TensorDesc(dtype="float16", layout=layout),),
        original_names=() if is_inserted else originals,
    )


def file(*ops: Op) -> GraphFile:
    return GraphFile(path="graph", graphs=(Graph(name="main", ops=ops),))


def test_another_number_of_the_same_cast() -> None:
    one = file(op("a"), op("trans_Cast_0", "a"), op("b", "trans_Cast_0"))
    two = file(
        op("a"),
        op("z"),
        op("trans_Cast_0", "z"),
        op("y", "trans_Cast_0"),
        op("trans_Cast_1", "a"),
        op("b", "trans_Cast_1"),
    )
    counterpart = counterparts(one, two)
    assert counterpart("trans_Cast_0") == "trans_Cast_1"
    assert counterparts(two, one)("trans_Cast_0") is None
    assert counterpart("a") == "a"
    assert counterpart("trans_TransData_7") is None  # in neither graph: its number says nothing


def test_a_chain_of_them_is_told_apart_by_what_lies_between() -> None:
    def chain(first: str, second: str) -> GraphFile:
        return file(op("a"), op(first, "a", layout="NC1HWC0"), op(second, first, layout="NHWC"), op("b", second))

    one = chain("trans_TransData_0", "trans_TransData_1")
    counterpart = counterparts(one, chain("trans_TransData_9", "trans_TransData_3"))
    assert counterpart("trans_TransData_0") == "trans_TransData_9"
    assert counterpart("trans_TransData_1") == "trans_TransData_3"


def test_one_end_is_enough_where_fusion_changed_the_other() -> None:
    one = file(op("a"), op("trans_Cast_0", "a"), op("b", "trans_Cast_0"), op("c", "b"))
    two = file(op("a"), op("trans_Cast_5", "a"), op("bc", "trans_Cast_5", originals=("b", "c")))
    assert counterparts(one, two)("trans_Cast_0") == "trans_Cast_5"
    # Of two that may be meant none is.
    three = file(
        op("a"), op("trans_Cast_5", "a"), op("x", "trans_Cast_5"), op("trans_Cast_6", "a"), op("y", "trans_Cast_6")
    )
    assert counterparts(one, three)("trans_Cast_0") is None


def test_copies_of_each_other_are_matched_in_order() -> None:
    def twice(first: str, second: str) -> GraphFile:
        return file(op("a"), op(first, "a"), op(second, "a"), op("b", first), op("c", second))

    def alike(first: str, second: str) -> GraphFile:
        return file(op("a"), op(first, "a"), op(second, "a"), op("b", first, second))

    counterpart = counterparts(twice("trans_Cast_0", "trans_Cast_1"), twice("trans_Cast_4", "trans_Cast_2"))
    assert [counterpart("trans_Cast_0"), counterpart("trans_Cast_1")] == ["trans_Cast_4", "trans_Cast_2"]
    counterpart = counterparts(alike("trans_Cast_0", "trans_Cast_1"), alike("trans_Cast_4", "trans_Cast_2"))
    assert [counterpart("trans_Cast_0"), counterpart("trans_Cast_1")] == ["trans_Cast_4", "trans_Cast_2"]


def test_ops_that_run_in_a_circle_end() -> None:
    circle = file(op("trans_Cast_0", "trans_Cast_1"), op("trans_Cast_1", "trans_Cast_0"))
    assert counterparts(circle, file(op("a")))("trans_Cast_0") is None


def test_two_runs_are_compared_by_what_their_casts_connect(tmp_path: Path) -> None:
    """The other run has a cast more at the front, so that its numbers are shifted by one."""
    data = Node(name="data", type="GetNext", output=values(1, 2, 3), originals=("data",))
    other = Node(name="other", type="GetNext", output=values(7, 8, 9), originals=("other",))
    root = tmp_path / "precision_data"

    def cast(number: int, source: Node) -> Node:
        return Node(name=f"trans_Cast_{number}", type="Cast", inputs=(source,), output=source.output, originals=())

    mine, extra, theirs = cast(0, data), cast(0, other), cast(1, data)
    small_tree(root, [data, other, mine, Node(name="x/Add", type="Add", inputs=(mine,), output=values(2, 3, 4))])
    reader = Node(name="y/Mul", type="Mul", inputs=(extra,), output=values(0, 0, 1))
    added = Node(name="x/Add", type="Add", inputs=(theirs,), output=values(2, 3, 4))
    small_tree(root, [data, other, extra, reader, theirs, added], run="debug_1")
    tool("vc", cwd=tmp_path)
    rows = cells(only_result(root))
    row = next(row for row in rows if row["TensorIndex"] == "trans_Cast_0:output:0")
    assert (row["GroundTruth"], row["MaxAbsoluteError"]) == ("trans_Cast_1", "0.000000")
    assert "this run has no dump of trans_Cast_0" in "".join(row["CompareFailReason"] for row in rows)
    assert "cos 1.000000" in tool("ni", "trans_Cast_0", cwd=tmp_path).text
    (report,) = json.loads(tool("random", "--json", cwd=tmp_path).out)["pairs"]
    assert report["other_run_only"] == ["trans_Cast_0", "y/Mul"]
    assert report["first_run_only"] == []
