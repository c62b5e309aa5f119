"""The inputs that read a tensor, which are looked up from it: the same that lead back to it one by one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from builders import TIMESTAMP, graph_file, graph_op, leaf_folder, tensor_desc, write_dump, write_graph

from precision_tool.lib.data.dump_tree import find_run
from precision_tool.lib.data.dumped_ops import NoBenchmark
from precision_tool.lib.demo.dump_writer import dump_file_name
from precision_tool.lib.diagnose.divergence import Flow
from precision_tool.lib.diagnose.op_values import PASSING, Root, RunValues
from precision_tool.lib.diagnose.recomputer import Recomputer
from precision_tool.lib.io.ge_graph import load_graph_file
from precision_tool.lib.model.graph import Edge, Graph, GraphFile, Op
from precision_tool.lib.model.run import DumpLeaf

TYPES = ("Add", "Relu", *sorted(PASSING)[:3])


def body(random: Random, name: str, inputs: int, calls: list[str]) -> Graph:
    """A graph whose ops read any output of earlier ones, with `Data` ops and an output; some call other graphs."""
    ops = [replace(graph_op(f"{name}/data{at}", "Data"), parent_index=at) for at in range(inputs)]
    for at in range(12):
        edges = [f"{random.choice(ops).name}:{random.randrange(2)}" for _ in range(2)] if ops else []
        if calls and random.random() < 0.3:
            op = replace(graph_op(f"{name}/call{at}", "PartitionedCall", edges), subgraph_names=(calls.pop(),))
        else:
            op = graph_op(f"{name}/op{at}", random.choice(TYPES), edges)
        ops.append(op)
    ends = [f"{op.name}:{random.randrange(2)}" for op in random.sample(ops, 3)]
    return Graph(name=name, ops=(*ops, graph_op(f"{name}_Node_Output", "NetOutput", ends)))


@pytest.mark.parametrize("seed", range(20))
def test_readers_are_those_that_are_fed(seed: int) -> None:
    random = Random(seed)
    calls = ["below", "other", "below"]
    graphs = (body(random, "main", 1, calls), body(random, "below", 2, ["deep"]), body(random, "other", 2, []))
    # Two graphs of one name, of which nobody knows which is called.
    file = GraphFile(path="graph", graphs=(*graphs, body(random, "deep", 2, []), body(random, "other", 2, [])))
    values = RunValues(DumpLeaf(path="dump", files=(), model_name="main"), file, NoBenchmark())
    fed: dict[tuple[int, int], list[tuple[str, int]]] = {}
    roots: dict[tuple[int, int], Root] = {}
    for op in values.ops:
        for slot in values.input_slots(op):
            root = values.source_of(slot)
            if root is not None:
                roots[root.key] = root
                fed.setdefault(root.key, []).append((op.name, slot.graph_index))
    assert len(fed) > 20
    assert {key: places(values, root) for key, root in roots.items()} == fed
    unread = (Root(op, index) for op in values.ops for index in range(3))
    assert all(not places(values, root) for root in unread if root.key not in fed)


def places(values: RunValues, root: Root) -> list[tuple[str, int]]:
    return [(slot.op.name, slot.graph_index) for slot in values.readers(root)]


@pytest.mark.parametrize("seed", range(6))
def test_what_ops_feed_is_counted(seed: int) -> None:
    """Together as one by one, and as the definition has it; in a loop an op feeds itself."""
    random = Random(seed)
    main = body(random, "main", 1, ["below"])
    end = main.ops[-2]
    loop = graph_op("main/loop", "Add", [f"{end.name}:0"])
    ops = [loop, *(replace(op, inputs=(Edge(producer=loop.name, index=0), *op.inputs[1:])) if op is main.ops[3] else op
                   for op in main.ops)]  # fmt: skip
    file = GraphFile(path="graph", graphs=(replace(main, ops=tuple(ops)), body(random, "below", 2, [])))
    values = RunValues(DumpLeaf(path="dump", files=(), model_name="main"), file, NoBenchmark())
    names = [op.name for op in values.ops]
    feeds: dict[str, set[str]] = {name: set() for name in names}
    for op in values.ops:
        for root in values.producers(op):
            feeds[root.op.name].add(op.name)
    sources = [set(random.sample(names, random.randrange(4))) for _ in range(150)]
    low = set(random.sample(names, 10))
    flow = Flow(values)
    counts = list(flow.count_downstream(sources, low))
    for source, count in zip(sources, counts, strict=True):
        fed: set[str] = set()
        while more := {reader for name in source | fed for reader in feeds[name]} - fed:
            fed |= more
        assert sorted(op.name for op in flow.downstream(values.named(source)).values()) == sorted(fed)
        assert count == (len(fed), len(fed & low))
    assert max(counts)[0] > 10


def test_numbers_are_the_places_in_the_order_in_which_ops_run() -> None:
    inner = Graph(name="inner", ops=(graph_op("inner/a"), graph_op("inner/b")))
    call = replace(graph_op("call", "PartitionedCall"), subgraph_names=("inner",))
    main: tuple[Op, ...] = (graph_op("first"), call, graph_op("last"))
    file = GraphFile(path="graph", graphs=(Graph(name="main", ops=main), inner))
    values = RunValues(DumpLeaf(path="dump", files=(), model_name="main"), file, NoBenchmark())
    assert [op.name for op in values.ops] == ["first", "inner/a", "inner/b", "call", "last"]
    assert [values.number_of(op) for op in values.ops] == list(range(5))
    assert [values.index_of(op) for op in values.ops] == list(range(5))
    assert [op.name for op in values.named({"last", "inner/b"})] == ["inner/b", "last"]


def test_why_an_op_is_not_recomputed_hangs_on_no_other_op(tmp_path: Path) -> None:
    """Whichever is asked first: of both one input is not connected, and of one no output was dumped."""
    values = np.ones(4, np.float32)
    descs = [tensor_desc(values)]
    source = graph_op("source", "Data", output_descs=descs)
    ops = [source, *(graph_op(name, "Mul", ["source:0"], output_descs=descs) for name in ("whole", "bare"))]
    write_graph(tmp_path, ops)
    for number, (name, outputs) in enumerate({"whole": [values], "bare": []}.items()):
        path = leaf_folder(tmp_path) / dump_file_name("Mul", name, number, TIMESTAMP + number)
        write_dump(path, name, [values], outputs)
    (leaf,) = find_run(str(tmp_path / "npu" / "debug_0")).leaves
    reasons = []
    for order in (("whole", "bare"), ("bare", "whole")):
        file = load_graph_file(graph_file(tmp_path))
        recomputer = Recomputer(RunValues(leaf, file, NoBenchmark()))
        results = {name: recomputer.recompute(file.graphs[0].by_name[name]) for name in order}
        reasons.append({name: results[name].reason for name in ("whole", "bare")})
    assert reasons[0] == reasons[1]
    assert reasons[0]["whole"] != reasons[0]["bare"]
