"""Neighbours of ops in graphs made by hand: what leads where, across the borders of subgraphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from builders import graph_op

from precision_tool.lib.data.neighbourhood import (
    CONTROL,
    Connections,
    Neighbourhood,
    Step,
    Wiring,
    connections,
    neighbourhood,
)
from precision_tool.lib.model.graph import Edge, Graph, GraphFile, Op, TensorDesc


def file_of(*graphs: Graph) -> GraphFile:
    return GraphFile(path="graph.txt", graphs=graphs)


def graph(*ops: Op, name: str = "root") -> Graph:
    return Graph(name=name, ops=ops)


def data(name: str, parent: int | None = None) -> Op:
    return replace(graph_op(name, "Data"), parent_index=parent)


def call(name: str, kind: str, inputs: Sequence[str], *subgraphs: str) -> Op:
    return replace(graph_op(name, kind, inputs), subgraph_names=subgraphs)


def after(op: Op, *names: str) -> Op:
    return replace(op, control_inputs=names)


def hood_of(file: GraphFile, name: str, depth: int = 1, where: str = "root", most: int = 500) -> Neighbourhood:
    (found,) = (one for one in file.graphs if one.name == where)
    return neighbourhood(Wiring(file), where, found.by_name[name], depth, most)


def names(hood: Neighbourhood) -> set[str]:
    return {node.name for node in hood.nodes}


def links(hood: Neighbourhood) -> set[tuple[str, int, str, int]]:
    found = [(link.producer.name, link.index, link.consumer.name, link.slot) for link in hood.links]
    assert len(found) == len(set(found))
    return set(found)


def connected(file: GraphFile, name: str, where: str = "root") -> Connections:
    (found,) = (one for one in file.graphs if one.name == where)
    return connections(Wiring(file), where, found.by_name[name])


def ways(steps: Sequence[Step], forward: bool = False) -> list[tuple[str, int, tuple[str, ...]]]:
    return [
        (step.end.name, step.link.slot if forward else step.link.index, tuple(node.name for node in step.through))
        for step in steps
    ]


CHAIN = file_of(
    graph(
        graph_op("a"), graph_op("b", inputs=["a:0"]), graph_op("c", inputs=["b:1"]), graph_op("d", inputs=["c:0"]),
        graph_op("e", inputs=["d:0"]), graph_op("aside", inputs=["b:0"]), graph_op("stranger"),
    )
)  # fmt: skip


@pytest.mark.parametrize(
    ("depth", "expected"), [(1, {"b", "c", "d"}), (2, {"a", "b", "c", "d", "e"}), (9, {"a", "b", "c", "d", "e"})]
)
def test_as_many_steps_to_both_sides(depth: int, expected: set[str]) -> None:
    assert names(hood_of(CHAIN, "c", depth)) == expected


def test_links_tell_output_and_input_and_what_is_not_drawn_is_counted() -> None:
    hood = hood_of(CHAIN, "c")
    assert links(hood) == {("b", 1, "c", 0), ("c", 0, "d", 0)}
    assert hood.open_ends == {("root", "b"): (1, 1), ("root", "d"): (0, 1)}
    assert hood.focus == {("root", "c")}


def test_all_links_between_the_ops_are_there() -> None:
    file = file_of(graph(graph_op("a"), graph_op("b", inputs=["a:0"]), graph_op("c", inputs=["b:0", "a:0", "a:0"])))
    assert links(hood_of(file, "c")) == {("a", 0, "b", 0), ("b", 0, "c", 0), ("a", 0, "c", 1), ("a", 0, "c", 2)}


def test_control_edges_are_neighbours_without_a_tensor() -> None:
    file = file_of(graph(graph_op("first"), after(graph_op("op"), "first"), after(graph_op("last"), "op")))
    assert links(hood_of(file, "op")) == {("first", CONTROL, "op", CONTROL), ("op", CONTROL, "last", CONTROL)}
    found = connected(file, "op")
    assert [node.name for node in found.waits_for] == ["first"]
    assert [node.name for node in found.awaited_by] == ["last"]
    assert [one.readers for one in found.outputs] == [()]


def test_cycles_end() -> None:
    file = file_of(graph(graph_op("a", inputs=["b:0"]), graph_op("b", inputs=["a:0"])))
    hood = hood_of(file, "a", depth=10**9)
    assert links(hood) == {("a", 0, "b", 0), ("b", 0, "a", 0)}
    own = file_of(graph(graph_op("a", inputs=["a:0"])))
    assert links(hood_of(own, "a", depth=3)) == {("a", 0, "a", 0)}


def test_a_producer_that_the_graph_does_not_have() -> None:
    hood = hood_of(file_of(graph(graph_op("a", inputs=["gone:2"]))), "a")
    (missing,) = (node for node in hood.nodes if node.op is None)
    assert missing.name == "gone"
    assert links(hood) == {("gone", 2, "a", 0)}


def test_of_too_many_the_nearest_are_taken_and_the_rest_counted() -> None:
    readers = [graph_op(f"far{i}", inputs=["near:0"]) for i in range(30)]
    file = file_of(graph(graph_op("op"), graph_op("near", inputs=["op:0"]), *readers))
    hood = hood_of(file, "op", depth=2, most=12)
    assert {"op", "near"} < names(hood)
    assert (len(hood.nodes), hood.left_out) == (12, 20)
    assert hood_of(file, "op", depth=2, most=32).left_out == 0
    assert hood_of(file, "op", depth=1, most=12).left_out == 0


def test_of_two_ways_the_shorter_counts() -> None:
    """`b` follows from `a` in one step and leads to it in three."""
    file = file_of(
        graph(
            graph_op("a", inputs=["d:0"]), graph_op("b", inputs=["a:0"]),
            graph_op("c", inputs=["b:0"]), graph_op("d", inputs=["c:0"]),
        )
    )  # fmt: skip
    assert names(hood_of(file, "a", depth=3, most=3)) == {"a", "b", "d"}


# --- subgraphs --------------------------------------------------------------------------------------------------------


def partitioned() -> GraphFile:
    """`maker:1` → input 1 of a call → `inner` → output 0 of the call → `reader`, and a second output to `other`."""
    return file_of(
        graph(
            graph_op("unused"), graph_op("maker"), call("part", "PartitionedCall", ["unused:0", "maker:1"], "sub"),
            graph_op("reader", inputs=["maker:0", "part:0"]), graph_op("other", inputs=["part:1"]),
        ),
        graph(
            data("enter0", 0), data("enter1", 1), graph_op("inner", inputs=["enter1:0"]), graph_op("side"),
            graph_op("sub_Node_Output", "NetOutput", ["inner:0", "side:3"]), name="sub",
        ),
    )  # fmt: skip


def test_into_a_subgraph_and_out_of_it() -> None:
    """Borders are no step, and each tensor goes its own way through them."""
    inner = hood_of(partitioned(), "inner", where="sub")
    assert names(inner) == {"maker", "enter1", "inner", "sub_Node_Output", "reader"}
    assert links(inner) == {
        ("maker", 1, "enter1", 0), ("enter1", 0, "inner", 0), ("inner", 0, "sub_Node_Output", 0),
        ("sub_Node_Output", 0, "reader", 1), ("maker", 0, "reader", 0),
    }  # fmt: skip
    assert {(link.producer.name, link.consumer.name) for link in inner.links if link.crosses} == {
        ("maker", "enter1"), ("sub_Node_Output", "reader"),
    }  # fmt: skip
    assert names(hood_of(partitioned(), "maker")) == {"maker", "enter1", "inner", "reader"}
    assert names(hood_of(partitioned(), "other")) == {"other", "sub_Node_Output", "side"}


def test_a_calling_op_is_its_borders() -> None:
    hood = hood_of(partitioned(), "part")
    assert "part" not in names(hood)
    assert hood.focus == {
        ("root", "part"), ("sub", "enter0"), ("sub", "enter1"), ("sub", "sub_Node_Output"),
    }  # fmt: skip
    assert names(hood) == {
        "unused", "maker", "enter0", "enter1", "inner", "side", "sub_Node_Output", "reader", "other",
    }  # fmt: skip
    assert hood.calls["sub"][1].name == "part"


def test_a_calling_op_without_its_subgraph_is_an_op_like_others() -> None:
    file = file_of(partitioned().graphs[0])
    assert names(hood_of(file, "part")) == {"unused", "maker", "part", "reader", "other"}
    assert links(hood_of(file, "other")) == {("part", 1, "other", 0)}


def test_sources_and_readers_are_told_with_what_lies_between() -> None:
    inner = connected(partitioned(), "inner", "sub")
    assert ways(inner.inputs[0].sources) == [("maker", 1, ("enter1",))]
    assert ways(inner.outputs[0].readers, forward=True) == [("reader", 1, ("sub_Node_Output",))]
    assert inner.caller is not None
    assert (inner.caller.graph, inner.caller.name) == ("root", "part")
    reader = connected(partitioned(), "reader")
    assert ways(reader.inputs[1].sources) == [("inner", 0, ("sub_Node_Output",))]
    part = connected(partitioned(), "part")
    assert [ways(one.sources) for one in part.inputs] == [[("unused", 0, ())], [("maker", 1, ())]]
    assert {one.index: ways(one.readers, forward=True) for one in part.outputs} == {
        0: [("reader", 1, ())], 1: [("other", 0, ())],
    }  # fmt: skip


def test_both_branches_give_the_output_of_an_if() -> None:
    branches = [
        graph(data(f"{name}_in", 1), graph_op(f"{name}_op", inputs=[f"{name}_in:0"]),
              graph_op(f"{name}_Node_Output", "NetOutput", [f"{name}_op:0"]), name=name)
        for name in ("then", "else")
    ]  # fmt: skip
    root = graph(
        graph_op("flag"), graph_op("value"), call("if", "If", ["flag:0", "value:0"], "then", "else"),
        graph_op("reader", inputs=["if:0"]),
    )  # fmt: skip
    file = file_of(root, *branches)
    found = connected(file, "reader")
    assert ways(found.inputs[0].sources) == [
        ("then_op", 0, ("then_Node_Output",)), ("else_op", 0, ("else_Node_Output",)),
    ]  # fmt: skip
    assert names(hood_of(file, "value")) == {"value", "then_in", "else_in", "then_op", "else_op"}
    # The flag enters no branch: it stays an input of the op itself.
    assert links(hood_of(file, "flag")) == {("flag", 0, "if", 0)}


def test_a_loops_condition_gives_no_output() -> None:
    file = file_of(
        graph(graph_op("start"), call("loop", "While", ["start:0"], "cond", "body"),
              graph_op("end", inputs=["loop:0"])),
        graph(data("c", 0), graph_op("less", inputs=["c:0"]),
              graph_op("cond_out", "NetOutput", ["less:0"]), name="cond"),
        graph(data("b", 0), graph_op("add", inputs=["b:0"]),
              graph_op("body_out", "NetOutput", ["add:0"]), name="body"),
    )  # fmt: skip
    assert ways(connected(file, "end").inputs[0].sources) == [("add", 0, ("body_out",))]
    assert names(hood_of(file, "less", where="cond")) == {"start", "c", "less", "cond_out"}
    assert names(hood_of(file, "start")) == {"start", "c", "less", "b", "add"}


def test_subgraphs_in_subgraphs_and_ones_that_call_themselves() -> None:
    deep = file_of(
        graph(graph_op("top"), call("p1", "PartitionedCall", ["top:0"], "s1")),
        graph(data("d1", 0), call("p2", "PartitionedCall", ["d1:0"], "s2"),
              graph_op("s1_Node_Output", "NetOutput", ["p2:0"]), name="s1"),
        graph(data("d2", 0), graph_op("bottom", inputs=["d2:0"]),
              graph_op("s2_Node_Output", "NetOutput", ["bottom:0"]), name="s2"),
    )  # fmt: skip
    assert ways(connected(deep, "bottom", "s2").inputs[0].sources) == [("top", 0, ("d2", "d1"))]
    assert ways(connected(deep, "top").outputs[0].readers, forward=True) == [("bottom", 0, ("d1", "d2"))]
    ring = file_of(
        graph(data("d", 0), call("p", "PartitionedCall", ["d:0"], "ring"),
              graph_op("ring_Node_Output", "NetOutput", ["p:0"]), name="ring"),
    )  # fmt: skip
    for name in ("d", "p", "ring_Node_Output"):
        assert hood_of(ring, name, depth=50, where="ring").nodes
        connected(ring, name, "ring")


def test_control_edges_of_a_calling_op_end_at_its_borders() -> None:
    root, sub = partitioned().graphs
    ops = [after(op, "first") if op.name == "part" else op for op in root.ops]
    file = file_of(graph(graph_op("first"), *ops, after(graph_op("last"), "part")), sub)
    assert links(hood_of(file, "first")) == {
        ("first", CONTROL, "enter0", CONTROL), ("first", CONTROL, "enter1", CONTROL),
    }  # fmt: skip
    assert links(hood_of(file, "last")) == {("sub_Node_Output", CONTROL, "last", CONTROL)}
    assert [node.name for node in connected(file, "part").awaited_by] == ["last"]


# --- one op's connections ---------------------------------------------------------------------------------------------


def test_casts_and_transdata_are_passed_and_told() -> None:
    file = file_of(
        graph(
            graph_op("maker"), graph_op("cast", "Cast", ["maker:1"]), graph_op("trans", "TransData", ["cast:0"]),
            graph_op("op", inputs=["trans:0"]), graph_op("back", "Cast", ["op:0"]),
            graph_op("end", "NetOutput", ["back:0", "op:0"]),
        )
    )  # fmt: skip
    found = connected(file, "op")
    assert ways(found.inputs[0].sources) == [("maker", 1, ("trans", "cast"))]
    assert ways(found.outputs[0].readers, forward=True) == [("end", 0, ("back",)), ("end", 1, ())]
    # In a drawing they are ops like others.
    assert names(hood_of(file, "op")) == {"trans", "op", "back", "end"}


def test_inputs_that_are_not_connected_keep_their_slots() -> None:
    described = [TensorDesc(dtype="float32"), TensorDesc(dtype="int32")]
    op = graph_op("op", inputs=["a:0", "b:0"], input_descs=described)
    a, b = op.inputs
    optional = replace(op, inputs=(a, None, b))
    found = connected(file_of(graph(graph_op("a"), graph_op("b"), optional)), "op")
    assert [None if one.edge is None else one.edge.producer for one in found.inputs] == ["a", None, "b"]
    assert [None if one.desc is None else one.desc.dtype for one in found.inputs] == ["float32", None, "int32"]
    assert [ways(one.sources) for one in found.inputs] == [[("a", 0, ())], [], [("b", 0, ())]]


def test_an_output_that_is_read_but_not_described() -> None:
    file = file_of(graph(graph_op("op"), graph_op("reader", inputs=[f"op:{2**40}"])))
    assert [(one.index, one.desc is None) for one in connected(file, "op").outputs] == [(0, False), (2**40, True)]


def test_long_chains_and_wide_fans_are_quick() -> None:
    casts = [graph_op("c0", "Cast")] + [graph_op(f"c{i}", "Cast", [f"c{i - 1}:0"]) for i in range(1, 20_000)]
    file = file_of(graph(*casts, graph_op("op", inputs=["c19999:0"])))
    (step,) = connected(file, "op").inputs[0].sources
    assert len(step.through) == 64
    fan = [graph_op(f"r{i}", inputs=["op:0"]) for i in range(20_000)]
    hood = hood_of(file_of(graph(graph_op("op"), *fan)), "op")
    assert (len(hood.nodes), hood.left_out) == (500, 19_501)


class Counted(tuple[Edge | None, ...]):
    """The inputs of an op, which count how often one of them is looked at."""

    looks = 0

    def __iter__(self) -> Iterator[Edge | None]:
        for edge in tuple.__iter__(self):
            Counted.looks += 1
            yield edge


def test_the_work_grows_with_the_inputs_and_outputs_of_an_op_and_no_faster() -> None:
    """An op of very many inputs, and one of very many outputs that are all read."""
    count = 400
    given = [graph_op(f"op{number}") for number in range(count)]
    hub = graph_op("hub", inputs=[f"op{number}:0" for number in range(count)])
    many = graph_op("many", output_descs=[TensorDesc(dtype="float32", layout="ND")] * count)
    readers = [graph_op(f"reader{number}", inputs=[f"many:{number}"]) for number in range(count)]
    hub = replace(hub, inputs=Counted(hub.inputs))
    wiring = Wiring(file_of(graph(*given, hub, many, *readers)))
    Counted.looks = 0
    found = connections(wiring, "root", hub)
    assert [one.sources[0].end.name for one in found.inputs] == [f"op{number}" for number in range(count)]
    assert Counted.looks <= 4 * count
    outputs = connections(wiring, "root", many).outputs
    assert [[step.end.name for step in one.readers] for one in outputs] == [[f"reader{at}"] for at in range(count)]
