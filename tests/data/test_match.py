"""The fusion rules of FORMATS.md §5 on graphs made here, tiny dump files and a benchmark that is a dictionary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from builders import write_dump, write_golden
from ffts_files import write_slices

from precision_tool.lib.data.dump_tree import find_benchmark, find_run
from precision_tool.lib.data.dumped_ops import BenchmarkSide, DumpIndex, GoldenDumps, GoldenFiles, Missing
from precision_tool.lib.data.matching import GraphMatcher, NameMatcher
from precision_tool.lib.demo.dump_writer import OutTensor
from precision_tool.lib.io import layouts
from precision_tool.lib.io.tensor_bytes import open_bytes
from precision_tool.lib.messages import Message
from precision_tool.lib.model.comparison import NO_OPS, Pair, Status
from precision_tool.lib.model.graph import Edge, Graph, GraphFile, Op, TensorDesc
from precision_tool.lib.model.tensor import AnyTensor, Tensor, TensorStatistics

Array = npt.NDArray[Any]
STAMP = 1_772_443_800_000_000
SOFTMAX = ("sm_max", "sm_exp", "sm_div")
PLAIN = TensorDesc(dtype="float32", layout="ND")


def tensor(*shape: int, dtype: str = "float32") -> Tensor:
    """A benchmark tensor that no test opens."""
    count = int(np.prod(shape))
    return Tensor(path="golden", offset=0, nbytes=4 * count, dtype=dtype, shape=shape, origin_shape=shape)


class Side(BenchmarkSide):
    """A benchmark in memory, asked as the matching asks files."""

    def __init__(self, tensors: dict[str, AnyTensor | Missing]) -> None:
        self._tensors = tensors

    def output(self, op_name: str, index: int) -> AnyTensor | Missing:
        return self._tensors.get(f"{op_name}:{index}") or Missing(Message("text", text=f"no golden {op_name}:{index}"))


def desc(origin: str | None = None, **more: Any) -> TensorDesc:
    """A tensor of the graph; `origin` is `op:index` of the original tensor."""
    if origin is not None:
        name, _, index = origin.rpartition(":")
        more |= {"dump_origin_name": name, "dump_origin_index": int(index)}
    return replace(PLAIN, **more)


def op(
    name: str,
    op_type: str = "Add",
    inputs: Sequence[str | None] = (),
    originals: Sequence[str] | None = None,
    outputs: Sequence[TensorDesc] = (PLAIN,),
    **more: Any,
) -> Op:
    """An op; inputs are `producer:index`, None for a slot that is not connected."""
    edges = []
    for text in inputs:
        producer, _, index = (text or "").rpartition(":")
        edges.append(None if text is None else Edge(producer=producer, index=int(index)))
    return Op(
        name=name,
        type=op_type,
        inputs=tuple(edges),
        original_names=None if originals is None else tuple(originals),
        output_descs=tuple(outputs),
        **more,
    )


def trans(name: str, source: str, op_type: str = "TransData") -> Op:
    """An op that the compiler put in: it has no original."""
    return op(name, op_type, [source], originals=())


class World:
    """One leaf of dump files and a benchmark."""

    def __init__(self, folder: Path, *goldens: str) -> None:
        self.folder = folder
        self._count = 0
        self.goldens: dict[str, AnyTensor | Missing] = {name: tensor(2) for name in goldens}

    def dump(
        self,
        op_name: str,
        inputs: int | Sequence[Array | OutTensor] = 0,
        outputs: int | Sequence[Array | OutTensor] = 1,
        op_type: str = "Add",
        time: int | None = None,
    ) -> Path:
        """A dump file of an op; a number of slots stands for so many float32 vectors of two."""
        self._count += 1
        flat = op_name.replace("/", "_").replace(".", "_")
        path = self.folder / f"{op_type}.{flat}.{self._count}.0.{STAMP + self._count if time is None else time}"
        sides = [[np.zeros(2, np.float32)] * side if isinstance(side, int) else side for side in (inputs, outputs)]
        return write_dump(path, op_name, sides[0], sides[1])

    def dumps(self) -> DumpIndex:
        (leaf,) = find_run(str(self.folder)).leaves
        return DumpIndex(leaf)

    def pairs(self, ops: Sequence[Op], *subgraphs: Graph) -> list[Pair]:
        file = GraphFile(path="graph", graphs=(Graph(name="main", ops=tuple(ops)), *subgraphs))
        return list(GraphMatcher(self.dumps(), file, Side(self.goldens)).pairs())


def links(pairs: Sequence[Pair], *ops: str) -> dict[str, str | Status]:
    """Each row's tensor → the benchmark tensor it is compared with, or the status that says why not."""
    found: dict[str, str | Status] = {}
    for pair in pairs:
        if not ops or pair.op_name in ops:
            key = pair.tensor_index or pair.op_name
            assert key not in found
            found[key] = pair.golden_tensor if pair.status is Status.COMPARED else pair.status
            if pair.status is Status.COMPARED:
                assert pair.npu_plan is not None
                assert pair.golden_plan is not None
                assert isinstance(pair.npu, Tensor)
                assert isinstance(pair.golden, Tensor)
            else:
                assert pair.reason
    return found


def one(pairs: Sequence[Pair], tensor_index: str) -> Pair:
    (pair,) = [pair for pair in pairs if tensor_index in (pair.tensor_index, pair.op_name if not pair.slot else None)]
    return pair


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "leaf", "a:0", "a:1", "b:0", "net_add:0", "x:0", "y:0", "z:0")


# ---- one original op


def test_one_to_one(world: World) -> None:
    world.dump("net/add", inputs=2)
    ops = [op("a", "Data"), op("b", "Data"), op("net/add", inputs=["a:1", "b:0"], originals=["net/add"])]
    pairs = world.pairs(ops)
    assert links(pairs) == {
        "a": Status.NO_NPU_DUMP,
        "b": Status.NO_NPU_DUMP,
        "net/add:input:0": "a:1",
        "net/add:input:1": "b:0",
        "net/add:output:0": "net/add:0",
    }
    rows = pairs[2:]
    assert [row.slot for row in rows] == ["input:0", "input:1", "output:0"]
    assert {row.index for row in rows} == {2}
    assert {(row.npu_ops, row.golden_ops, row.op_type) for row in rows} == {(("net/add",), ("net/add",), "Add")}
    assert [row.is_input for row in rows] == [True, True, False]


@pytest.mark.parametrize("originals", [None, [""], ["net/add"]])
def test_an_op_without_a_word_of_its_original_is_its_own(world: World, originals: list[str] | None) -> None:
    world.dump("net/add")
    pairs = world.pairs([op("net/add", originals=originals)])
    assert links(pairs) == {"net/add:output:0": "net/add:0"}
    assert pairs[0].golden_ops == ("net/add",)


def test_an_op_that_was_renamed(world: World) -> None:
    world.dump("net/add_1")
    pairs = world.pairs([op("net/add_1", originals=["net/add"])])
    assert links(pairs) == {"net/add_1:output:0": "net/add:0"}
    assert (pairs[0].npu_ops, pairs[0].golden_ops) == (("net/add_1",), ("net/add",))


def test_the_origin_of_each_output_counts_more_than_its_number(world: World) -> None:
    world.dump("split", outputs=3)
    ops = [op("split", originals=["s"], outputs=[desc("x:0"), desc("a:1"), desc("gone:4")])]
    assert links(world.pairs(ops)) == {
        "split:output:0": "x:0",
        "split:output:1": "a:1",
        "split:output:2": Status.NO_BENCHMARK,
    }


def test_an_output_the_graph_does_not_describe_falls_back_to_the_first(world: World) -> None:
    world.dump("split", outputs=3)
    pairs = world.pairs([op("split", originals=["s"], outputs=[desc("x:0"), desc("y:0")])])
    assert links(pairs) == {"split:output:0": "x:0", "split:output:1": "y:0", "split:output:2": "x:0"}


def test_an_output_of_an_op_without_descriptions(world: World) -> None:
    world.dump("a", outputs=2)
    assert links(world.pairs([op("a", outputs=[])])) == {"a:output:0": "a:0", "a:output:1": "a:1"}


# ---- many originals


def test_fused_ops_by_the_origin_of_their_output(world: World) -> None:
    """Many to one."""
    world.dump("conv_relu", inputs=1)
    world.dump("next", inputs=1)
    ops = [
        op("a", "Data"),
        op("conv_relu", "Conv2D", ["a:0"], ["conv", "bn", "x"], [desc("x:0")], pass_names=("ConvBnFusion",)),
        op("next", inputs=["conv_relu:0"], originals=["y"]),
    ]
    pairs = world.pairs(ops)
    assert links(pairs, "conv_relu", "next") == {
        "conv_relu:input:0": "a:0",
        "conv_relu:output:0": "x:0",
        "next:input:0": "x:0",
        "next:output:0": "y:0",
    }
    fused = one(pairs, "conv_relu:output:0")
    assert fused.golden_ops == ("conv", "bn", "x")
    assert fused.original_names == ("conv", "bn", "x")
    assert fused.pass_names == ("ConvBnFusion",)


def test_a_fused_op_of_whose_output_the_graph_says_nothing(world: World) -> None:
    world.dump("conv_relu")
    world.dump("next", inputs=1)
    ops = [
        op("conv_relu", "Conv2D", originals=["x", "y"]),
        op("next", inputs=["conv_relu:0"], originals=["z"]),
    ]
    pairs = world.pairs(ops)
    assert links(pairs) == {
        "conv_relu:output:0": Status.INTERMEDIATE,
        "next:input:0": Status.INTERMEDIATE,
        "next:output:0": "z:0",
    }
    assert "fused from 2 ops" in str(pairs[0].reason)
    assert pairs[0].npu is not None  # its own values can be shown


def one_to_many() -> list[Op]:
    """Softmax in three: the last makes what the original made."""
    return [
        op("a", "Data"),
        op("sm_max", "ReduceMax", ["a:0"], ["x"]),
        op("sm_exp", "Exp", ["a:0", "sm_max:0"], ["x"]),
        op("sm_div", "Div", ["sm_exp:0"], ["x"]),
        op("next", inputs=["sm_div:0"], originals=["y"]),
    ]


def test_one_to_many(world: World) -> None:
    world.dump("sm_max", inputs=1)
    world.dump("sm_exp", inputs=2)
    world.dump("sm_div", inputs=1)
    world.dump("next", inputs=1)
    pairs = world.pairs(one_to_many())
    assert links(pairs, "sm_max", "sm_exp", "sm_div", "next") == {
        "sm_max:input:0": "a:0",
        "sm_max:output:0": Status.INTERMEDIATE,
        "sm_exp:input:0": "a:0",
        "sm_exp:input:1": Status.INTERMEDIATE,
        "sm_exp:output:0": Status.INTERMEDIATE,
        "sm_div:input:0": Status.INTERMEDIATE,
        "sm_div:output:0": "x:0",
        "next:input:0": "x:0",
        "next:output:0": "y:0",
    }
    group = [pair for pair in pairs if pair.op_name.startswith("sm_")]
    assert {(pair.index, pair.npu_ops, pair.golden_ops) for pair in group} == {(1, SOFTMAX, ("x",))}
    assert one(pairs, "next:output:0").index == 2
    assert "part result" in str(one(pairs, "sm_max:output:0").reason)


def test_members_of_a_group_without_a_dump_give_no_row(world: World) -> None:
    world.dump("sm_div", inputs=1)
    pairs = world.pairs(one_to_many())
    assert links(pairs) == {
        "a": Status.NO_NPU_DUMP,
        "sm_div:input:0": Status.INTERMEDIATE,
        "sm_div:output:0": "x:0",
        "next": Status.NO_NPU_DUMP,
    }
    assert one(pairs, "sm_div:output:0").npu_ops == SOFTMAX


def test_a_group_of_which_nothing_was_dumped_is_one_row(world: World) -> None:
    world.dump("next", inputs=1)
    pairs = world.pairs(one_to_many())
    row = one(pairs, "sm_max")
    assert (row.index, row.status, row.npu_ops) == (1, Status.NO_NPU_DUMP, SOFTMAX)
    for name, op_type in (("sm_max", "ReduceMax"), ("sm_exp", "Exp"), ("sm_div", "Div")):
        assert f"{name} ({op_type})" in str(row.reason)
    assert links(pairs, "next") == {"next:input:0": "x:0", "next:output:0": "y:0"}


def test_a_part_result_that_the_graph_names_an_original_for(world: World) -> None:
    world.dump("first")
    world.dump("second", inputs=1)
    ops = [
        op("first", originals=["x"], outputs=[desc("z:0")]),
        op("second", inputs=["first:0"], originals=["x"], outputs=[desc("x:0")]),
    ]
    assert links(world.pairs(ops)) == {"first:output:0": "z:0", "second:input:0": "z:0", "second:output:0": "x:0"}


def test_many_to_many(world: World) -> None:
    """Two ops made from the same two, named in one order, are one group."""
    world.dump("m1", inputs=1)
    world.dump("m2", inputs=1, outputs=2)
    ops = [
        op("a", "Data"),
        op("m1", inputs=["a:0"], originals=["x", "y"]),
        op("between", inputs=["a:0"], originals=["b"]),
        op("m2", inputs=["m1:0"], originals=["x", "y"], outputs=[desc("x:0"), desc("y:0")]),
    ]
    pairs = world.pairs(ops)
    assert links(pairs, "m1", "m2") == {
        "m1:input:0": "a:0",
        "m1:output:0": Status.INTERMEDIATE,
        "m2:input:0": Status.INTERMEDIATE,
        "m2:output:0": "x:0",
        "m2:output:1": "y:0",
    }
    members = {pair.index for pair in pairs if pair.op_name in ("m1", "m2")}
    assert members == {1}  # where the group first appears
    assert one(pairs, "m2:output:0").golden_ops == ("x", "y")
    assert one(pairs, "between").index == 2


def test_originals_in_another_order_make_another_group(world: World) -> None:
    """As the vendor's tool has it."""
    world.dump("m1", inputs=1)
    world.dump("m2", inputs=1)
    ops = [op("a", "Data"), op("m1", inputs=["a:0"], originals=["x", "y"], outputs=[desc("x:0")])]
    ops.append(op("m2", inputs=["m1:0"], originals=["y", "x"], outputs=[desc("x:0")]))
    pairs = world.pairs(ops)
    assert [one(pairs, f"{name}:output:0").index for name in ("m1", "m2")] == [1, 2]
    assert one(pairs, "m2:output:0").golden_ops == ("y", "x")


def test_l1_fusion_keeps_the_first_and_the_last_in_time(world: World) -> None:
    ops = [
        op(name, originals=[original], outputs=[desc(f"{original}:0")], l1_fusion_group="7")
        for name, original in (("p", "x"), ("q", "y"), ("r", "z"), ("s", "b"))
    ]
    for name, time in (("p", 3), ("q", 1), ("r", 4), ("s", 2)):
        world.dump(name, time=STAMP + time)
    pairs = world.pairs(ops)
    assert links(pairs) == {
        "p": Status.INTERMEDIATE,
        "q:output:0": "y:0",
        "r:output:0": "z:0",
        "s": Status.INTERMEDIATE,
    }
    assert {(pair.index, pair.npu_ops, pair.golden_ops) for pair in pairs} == {(0, tuple("pqrs"), tuple("xyzb"))}


def test_groups_of_l1_fusion_are_apart(world: World) -> None:
    for name in ("p", "q"):
        world.dump(name)
    ops = [op("p", originals=["x"], l1_fusion_group="1"), op("q", originals=["y"], l1_fusion_group="2")]
    pairs = world.pairs(ops)
    assert links(pairs) == {"p:output:0": "x:0", "q:output:0": "y:0"}
    assert [pair.index for pair in pairs] == [0, 1]


# ---- ops that the compiler put in


def test_inputs_behind_casts_and_transdata(world: World) -> None:
    world.dump("next", inputs=2)
    ops = [
        op("fused", originals=["p", "x"], outputs=[desc("x:0"), desc("y:0")]),
        trans("trans_1", "fused:1"),
        trans("cast_1", "trans_1:0", "Cast"),
        trans("trans_2", "cast_1:0"),
        trans("cast_2", "fused:0", "Cast"),
        op("next", inputs=["trans_2:0", "cast_2:0"], originals=["z"]),
    ]
    assert links(world.pairs(ops), "next") == {
        "next:input:0": "y:0",
        "next:input:1": "x:0",
        "next:output:0": "z:0",
    }


def test_a_dumped_transdata_stands_for_what_it_passes_on(world: World) -> None:
    world.dump("trans_1", inputs=1, op_type="TransData")
    pairs = world.pairs([op("x", "Data"), trans("trans_1", "x:0")])
    assert links(pairs, "trans_1") == {"trans_1:input:0": "x:0", "trans_1:output:0": "x:0"}
    assert {(pair.golden_ops, pair.original_names) for pair in pairs[1:]} == {(NO_OPS, ())}


def test_transdata_of_a_graph_that_does_not_say_it_was_put_in(world: World) -> None:
    world.dump("trans_1", inputs=1, op_type="TransData")
    ops = [op("x", "Data"), replace(trans("trans_1", "x:0"), original_names=None)]
    assert links(world.pairs(ops), "trans_1") == {"trans_1:input:0": "x:0", "trans_1:output:0": "x:0"}


def test_an_op_without_original_that_is_no_cast(world: World) -> None:
    world.dump("clean", inputs=1, op_type="MemSet")
    world.dump("next", inputs=1)
    ops = [
        op("x", "Data"),
        op("clean", "MemSet", ["x:0"], originals=()),
        op("next", inputs=["clean:0"], originals=["y"]),
    ]
    pairs = world.pairs(ops)
    assert links(pairs, "clean", "next") == {
        "clean:input:0": "x:0",
        "clean:output:0": Status.NO_ORIGINAL_OP,
        "next:input:0": Status.NO_ORIGINAL_OP,
        "next:output:0": "y:0",
    }
    assert one(pairs, "clean:output:0").golden_ops == NO_OPS
    assert "inserted by the graph compiler" in str(one(pairs, "next:input:0").reason)


def test_two_ops_without_original_are_no_group(world: World) -> None:
    world.dump("t1")
    world.dump("t2")
    pairs = world.pairs([trans("t1", "x:0"), trans("t2", "x:0")])
    assert [(pair.index, pair.npu_ops) for pair in pairs] == [(0, ("t1",)), (1, ("t2",))]


def test_a_cast_of_the_user_is_an_op_like_others(world: World) -> None:
    world.dump("cast", inputs=1, op_type="Cast")
    world.dump("next", inputs=1)
    ops = [
        op("x", "Data"),
        op("cast", "Cast", ["x:0"], ["y"]),
        op("next", inputs=["cast:0"], originals=["z"]),
    ]
    assert links(world.pairs(ops), "cast", "next") == {
        "cast:input:0": "x:0",
        "cast:output:0": "y:0",
        "next:input:0": "y:0",
        "next:output:0": "z:0",
    }


def test_a_cast_of_the_user_behind_one_of_the_compiler(world: World) -> None:
    world.dump("next", inputs=1)
    ops = [
        op("x", "Data"),
        op("cast", "Cast", ["x:0"], ["y"]),
        trans("trans", "cast:0", "Cast"),
        op("next", inputs=["trans:0"], originals=["z"]),
    ]
    assert links(world.pairs(ops), "next")["next:input:0"] == "y:0"


def test_a_cast_of_the_user_that_the_benchmark_did_not_dump(world: World) -> None:
    world.dump("next", inputs=1)
    ops = [
        op("x", "Data"),
        op("cast", "Cast", ["x:0"], ["not_dumped"]),
        op("next", inputs=["cast:0"], originals=["z"]),
    ]
    assert links(world.pairs(ops), "next")["next:input:0"] == "x:0"


def test_nothing_on_the_way_back_is_in_the_benchmark(world: World) -> None:
    """The nearest original is named: it is the one to collect."""
    world.dump("next", inputs=1)
    ops = [
        op("p", originals=["far"]),
        op("cast", "Cast", ["p:0"], ["near"]),
        trans("trans", "cast:0"),
        op("next", inputs=["trans:0"], originals=["z"]),
    ]
    row = one(world.pairs(ops), "next:input:0")
    assert (row.status, row.golden_tensor) == (Status.NO_BENCHMARK, "near:0")
    assert "near:0" in str(row.reason)


# ---- subgraphs


def test_an_input_that_comes_into_a_subgraph(world: World) -> None:
    world.dump("inner", inputs=2)
    main = [
        op("a", "Data"),
        op("p", originals=["x"]),
        op("call", "PartitionedCall", ["a:1", "p:0"], subgraph_names=("sub",), originals=["call"]),
    ]
    sub = Graph(
        name="sub",
        ops=(
            op("arg_0", "Data", parent_index=0),
            op("arg_1", "Data", parent_index=1),
            trans("sub_trans", "arg_1:0"),
            op("inner", inputs=["sub_trans:0", "arg_0:0"], originals=["y"]),
            op("sub_Node_Output", "NetOutput", ["inner:0"], outputs=()),
        ),
    )
    assert links(world.pairs(main, sub), "inner") == {
        "inner:input:0": "x:0",
        "inner:input:1": "a:1",
        "inner:output:0": "y:0",
    }


@pytest.mark.parametrize("output_name", ["sub_Node_Output", "another_name"])
def test_an_output_that_comes_out_of_a_subgraph(world: World, output_name: str) -> None:
    world.dump("next", inputs=2)
    main = [
        op("a", "Data"),
        op("call", "PartitionedCall", ["a:0"], subgraph_names=("sub",), originals=["call"], outputs=[PLAIN, PLAIN]),
        trans("trans", "call:1"),
        op("next", inputs=["trans:0", "call:0"], originals=["z"]),
    ]
    sub = Graph(
        name="sub",
        ops=(
            op("arg_0", "Data", parent_index=0),
            op("one", inputs=["arg_0:0"], originals=["x"]),
            op("two", inputs=["arg_0:0"], originals=["p", "y"], outputs=[desc("p:0"), desc("y:0")]),
            op(output_name, "NetOutput", ["one:0", "two:1"], outputs=()),
        ),
    )
    assert links(world.pairs(main, sub), "next") == {
        "next:input:0": "y:0",
        "next:input:1": "x:0",
        "next:output:0": "z:0",
    }


def test_through_two_borders(world: World) -> None:
    """Out of one subgraph, into another one inside a third."""
    world.dump("deep", inputs=1)
    main = [
        op("first", "PartitionedCall", subgraph_names=("one",), originals=["first"]),
        op("second", "StatefulPartitionedCall", ["first:0"], subgraph_names=("two",), originals=["second"]),
    ]
    one_graph = Graph(
        name="one", ops=(op("made", originals=["x"]), op("one_Node_Output", "NetOutput", ["made:0"], outputs=()))
    )
    two = Graph(
        name="two",
        ops=(
            op("two_arg", "Data", parent_index=0),
            op("third", "PartitionedCall", ["two_arg:0"], subgraph_names=("three",), originals=["third"]),
        ),
    )
    three = Graph(
        name="three", ops=(op("three_arg", "Data", parent_index=0), op("deep", inputs=["three_arg:0"], originals=["y"]))
    )
    pairs = world.pairs(main, one_graph, two, three)
    assert links(pairs, "deep") == {"deep:input:0": "x:0", "deep:output:0": "y:0"}


def test_a_data_op_of_the_main_graph_is_an_original_itself(world: World) -> None:
    world.dump("next", inputs=1)
    ops = [op("a", "Data", parent_index=0), op("next", inputs=["a:0"], originals=["x"])]
    assert links(world.pairs(ops), "next")["next:input:0"] == "a:0"


def test_a_call_whose_subgraph_is_not_in_the_file(world: World) -> None:
    world.dump("next", inputs=1)
    ops = [
        op("call", "PartitionedCall", subgraph_names=("gone",), originals=["call"]),
        op("next", inputs=["call:0"], originals=["z"]),
    ]
    row = one(world.pairs(ops), "next:input:0")
    assert (row.status, row.golden_tensor) == (Status.NO_BENCHMARK, "call:0")


# ---- damaged graphs


def test_casts_in_a_circle_end(world: World) -> None:
    world.dump("next", inputs=2)
    world.dump("t1", inputs=1, op_type="TransData")
    ops = [
        trans("t1", "t2:0"),
        trans("t2", "t1:0", "Cast"),
        trans("own", "own:0"),
        op("next", inputs=["t1:0", "own:0"], originals=["z"]),
    ]
    assert links(world.pairs(ops), "next", "t1") == {
        "t1:input:0": Status.NO_ORIGINAL_OP,
        "t1:output:0": Status.NO_ORIGINAL_OP,
        "next:input:0": Status.NO_ORIGINAL_OP,
        "next:input:1": Status.NO_ORIGINAL_OP,
        "next:output:0": "z:0",
    }


def test_calls_in_a_circle_end(world: World) -> None:
    """A subgraph that returns its argument, which is the call's own result."""
    world.dump("next", inputs=1)
    main = [
        op("call", "PartitionedCall", ["call:0"], subgraph_names=("sub",), originals=()),
        op("next", inputs=["call:0"], originals=["z"]),
    ]
    sub = Graph(
        name="sub",
        ops=(
            op("arg", "Data", parent_index=0, originals=()),
            op("sub_Node_Output", "NetOutput", ["arg:0"], outputs=()),
        ),
    )
    assert links(world.pairs(main, sub), "next")["next:input:0"] is Status.NO_ORIGINAL_OP


def test_producers_that_the_graph_does_not_have(world: World) -> None:
    world.dump("next", inputs=2)
    ops = [trans("trans", "lost:0"), op("next", inputs=["gone:0", "trans:0"], originals=["z"])]
    pairs = world.pairs(ops)
    assert links(pairs, "next") == {
        "next:input:0": Status.NO_BENCHMARK,
        "next:input:1": Status.NO_BENCHMARK,
        "next:output:0": "z:0",
    }
    assert "no op gone" in str(one(pairs, "next:input:0").reason)
    assert "no op lost" in str(one(pairs, "next:input:1").reason)


def test_dumped_ops_of_another_graph(world: World) -> None:
    world.dump("stranger_2", time=STAMP + 9)
    world.dump("stranger_1", time=STAMP + 8, op_type="Relu")
    pairs = world.pairs([op("x", "Data")])
    assert [(p.index, p.op_name, p.op_type, p.golden_ops, p.status) for p in pairs[1:]] == [
        (1, "stranger_1", "Relu", NO_OPS, Status.NO_ORIGINAL_OP),
        (2, "stranger_2", "Add", NO_OPS, Status.NO_ORIGINAL_OP),
    ]


# ---- optional inputs that are not connected


EMPTY = OutTensor(data=b"", dtype="undefined", shape=())
THREE = op(
    "bn",
    "BatchNorm",
    ["a:0", None, "b:0"],
    ["x"],
    input_descs=(desc(origin_layout="NHWC"), desc(origin_layout="NHWC"), desc(origin_layout="NCHW")),
)


def vector() -> Array:
    return np.zeros(2, np.float32)


def test_optional_input_dumped_as_an_empty_slot(world: World) -> None:
    world.dump("bn", inputs=[vector(), EMPTY, vector()])
    pairs = world.pairs([op("a", "Data"), op("b", "Data"), THREE])
    assert links(pairs, "bn") == {
        "bn:input:0": "a:0",
        "bn:input:1": Status.NO_BENCHMARK,
        "bn:input:2": "b:0",
        "bn:output:0": "x:0",
    }
    assert "connects nothing to input 1" in str(one(pairs, "bn:input:1").reason)


def test_optional_input_left_out_of_the_dump(world: World) -> None:
    world.dump("bn", inputs=[vector(), vector()])
    pairs = world.pairs([op("a", "Data"), op("b", "Data"), THREE])
    assert links(pairs, "bn") == {"bn:input:0": "a:0", "bn:input:1": "b:0", "bn:output:0": "x:0"}


def test_optional_input_left_out_keeps_each_inputs_own_layout(world: World) -> None:
    """The second input dumped is the third of the graph: an NCHW tensor, which its shape alone does not tell."""
    stored = OutTensor(data=np.zeros((1, 1, 4, 4, 16), np.float32), layout="NC1HWC0", origin_shape=(1, 4, 4, 4))
    world.dump("bn", inputs=[vector(), stored])
    world.goldens["b:0"] = tensor(1, 4, 4, 4)
    only_connected = replace(THREE, input_descs=(THREE.input_descs[0], THREE.input_descs[2]))
    for bn in (THREE, only_connected):
        pairs = world.pairs([op("a", "Data"), op("b", "Data"), bn])
        plan = one(pairs, "bn:input:1").npu_plan
        assert plan is not None
        # storage axes N C1 H W C0 of the logical N C H W
        assert [axis for axis, _ in plan.axes] == [0, 1, 2, 3, 1]


def test_optional_input_that_statistics_skip(world: World) -> None:
    world.folder.mkdir()
    rows = ["Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value", "Input,0,8,DT_FLOAT,ND,2,1"]
    rows += ["Input,2,8,DT_FLOAT,ND,2,1", "Output,0,8,DT_FLOAT,ND,2,1"]
    (world.folder / f"BatchNorm.bn.1.0.{STAMP}.csv").write_text("\n".join(rows) + "\n")
    pairs = world.pairs([op("a", "Data"), op("b", "Data"), THREE])
    assert links(pairs, "bn") == dict.fromkeys(("bn:input:0", "bn:input:2", "bn:output:0"), Status.STATISTICS_ONLY)
    assert one(pairs, "bn:input:2").golden_tensor == "b:0"


# ---- why a pair is not compared


def test_reasons_that_lie_in_the_tensors(world: World) -> None:
    text = OutTensor(data=b"hello", dtype="string", shape=(1,))
    world.dump("net/add", inputs=[vector(), text, vector(), vector()], outputs=[np.zeros(3, np.float32)])
    world.goldens |= {
        "a:1": Missing(Message("text", text="broken.npy: damaged"), damaged=True),
        "b:0": TensorStatistics(path="s", dtype="float32", shape=(2,)),
        "x:0": tensor(2),
        "y:0": tensor(2, dtype="string"),
    }
    ops = [op(name, "Data", outputs=[PLAIN, PLAIN]) for name in ("a", "b", "x", "y")]
    ops.append(op("net/add", inputs=["a:1", "x:0", "b:0", "y:0"]))
    pairs = world.pairs(ops)
    assert links(pairs, "net/add") == {
        "net/add:input:0": Status.UNREADABLE,
        "net/add:input:1": Status.NOT_NUMERIC,
        "net/add:input:2": Status.STATISTICS_ONLY,
        "net/add:input:3": Status.NOT_NUMERIC,
        "net/add:output:0": Status.SIZE_MISMATCH,
    }
    assert str(one(pairs, "net/add:input:0").reason) == "broken.npy: damaged"
    assert "3 elements" in str(one(pairs, "net/add:output:0").reason)


def test_damaged_files_and_slots(world: World) -> None:
    cut = world.dump("a", outputs=[np.zeros(2, np.float32), np.zeros(900, np.float32)])
    cut.write_bytes(cut.read_bytes()[:-1])
    world.dump("b").write_bytes(b"no dump at all")
    world.dump("x", outputs=0)
    pairs = world.pairs([op("a", outputs=[PLAIN, PLAIN]), op("b"), op("x")])
    assert links(pairs) == {
        "a:output:0": "a:0",
        "a:output:1": Status.UNREADABLE,
        "b": Status.UNREADABLE,
        "x": Status.UNREADABLE,
    }
    assert "past the end" in str(one(pairs, "a:output:1").reason)
    assert "not a dump file" in str(one(pairs, "b").reason)
    assert "no input and no output" in str(one(pairs, "x").reason)


# ---- several files of an op


def test_of_repeated_dumps_the_newest_counts(world: World) -> None:
    world.dump("x", outputs=[np.zeros(3, np.float32)], time=STAMP + 1)
    newest = world.dump("x", outputs=[vector()], time=STAMP + 9)
    world.dump("x", outputs=[np.zeros(5, np.float32)], time=STAMP + 5)
    (pair,) = world.pairs([op("x")])
    assert pair.status is Status.COMPARED
    assert isinstance(pair.npu, Tensor)
    assert pair.npu.path == str(newest)


def test_inputs_and_outputs_in_files_of_their_own(world: World) -> None:
    inputs = world.dump("net/add", inputs=2, outputs=0, time=STAMP + 1)
    outputs = world.dump("net/add", inputs=0, outputs=1, time=STAMP + 2)
    pairs = world.pairs([op("a", "Data"), op("b", "Data"), op("net/add", inputs=["a:0", "b:0"])])
    paths = {pair.slot: pair.npu.path for pair in pairs if isinstance(pair.npu, Tensor)}
    assert paths == {"input:0": str(inputs), "input:1": str(inputs), "output:0": str(outputs)}


# ---- without a graph


def test_by_name_against_golden_files(tmp_path: Path) -> None:
    world = World(tmp_path / "npu")
    world.dump("net/b", inputs=1, time=STAMP + 1)
    world.dump("net/a", outputs=2, time=STAMP + 2)
    world.dump("alone", time=STAMP + 3)
    for name, index in (("net/a", 0), ("net/b", 0)):
        write_golden(tmp_path / "golden", name, index, vector())
    pairs = list(NameMatcher(world.dumps(), GoldenFiles(find_benchmark(str(tmp_path / "golden")))).pairs())
    assert links(pairs) == {
        "net_b:input:0": Status.NO_BENCHMARK,
        "net_b:output:0": "net_b:0",
        "net_a:output:0": "net_a:0",
        "net_a:output:1": Status.NO_BENCHMARK,
        "alone:output:0": Status.NO_BENCHMARK,
    }
    assert [pair.index for pair in pairs] == [0, 0, 1, 1, 2]


def test_an_order_that_an_input_shows_holds_for_the_output(tmp_path: Path) -> None:
    """The benchmark's weight is [64,3,3,3], which may be NCHW as well as NHWC: both copies are read in one order."""
    weight = np.arange(64 * 27, dtype=np.float32).reshape(3, 3, 3, 64)
    world = World(tmp_path)
    world.goldens["w:0"] = tensor(64, 3, 3, 3)
    stored = OutTensor(data=weight, layout="HWCN", origin_shape=weight.shape)
    world.dump("trans_TransData_56", [stored], [OutTensor.packed(weight, "FRACTAL_Z", "HWCN")], op_type="TransData")
    for declared in ("NHWC", "NCHW"):
        described = replace(PLAIN, origin_layout=declared)
        variable = op("w", "Variable", originals=["w"], outputs=[described])
        copy = op("trans_TransData_56", "TransData", ["w:0"], [], [described], input_descs=(described,))
        before, after = world.pairs([variable, copy])[1:]
        assert (before.status, after.status) == (Status.COMPARED, Status.COMPARED)
        assert (before.reason, after.reason) == (None, None)
        assert after.npu_plan == layouts.plan("FRACTAL_Z", (9, 4, 16, 16), declared, (64, 3, 3, 3))
        assert before.npu_plan == layouts.plan("HWCN", (3, 3, 3, 64), declared, (64, 3, 3, 3))


def by_name(npu: World, other: World) -> list[Pair]:
    (leaf,) = find_run(str(other.folder)).leaves
    return list(NameMatcher(npu.dumps(), GoldenDumps(leaf)).pairs())


def test_by_name_npu_against_npu(tmp_path: Path) -> None:
    npu, other = World(tmp_path / "npu"), World(tmp_path / "other")
    for side, base in ((npu, STAMP), (other, STAMP + 1000)):
        side.dump("late", inputs=2, outputs=2, time=base + 9)
        side.dump("early", time=base + 1, op_type="Conv2D")
    npu.dump("only_npu", time=STAMP + 5)
    other.dump("z_only_other", time=STAMP + 1)
    other.dump("a_only_other", time=STAMP + 2, op_type="Relu")
    pairs = by_name(npu, other)
    assert links(pairs) == {
        "early:output:0": "early:0",
        "only_npu": Status.NO_BENCHMARK,
        "late:input:0": "",
        "late:input:1": "",
        "late:output:0": "late:0",
        "late:output:1": "late:1",
        "z_only_other": Status.NO_NPU_DUMP,
        "a_only_other": Status.NO_NPU_DUMP,
    }
    rows = {
        pair.op_name: (pair.index, pair.op_type, *pair.npu_ops, *pair.golden_ops)
        for pair in sorted(pairs, key=lambda pair: pair.index)
    }
    assert rows == {
        "early": (0, "Conv2D", "early", "early"),
        "only_npu": (1, "Add", "only_npu", "*"),
        "late": (2, "Add", "late", "late"),
        "z_only_other": (3, "Add", "*", "z_only_other"),
        "a_only_other": (4, "Relu", "*", "a_only_other"),
    }
    for pair in pairs:
        if pair.status is Status.COMPARED:
            assert isinstance(pair.npu, Tensor)
            assert isinstance(pair.golden, Tensor)
            assert Path(pair.npu.path).parent == npu.folder
            assert Path(pair.golden.path).parent == other.folder


def test_by_name_slots_and_files_of_one_side_only(tmp_path: Path) -> None:
    npu, other = World(tmp_path / "npu"), World(tmp_path / "other")
    npu.dump("op", inputs=2, outputs=2)
    other.dump("op", inputs=1, outputs=1)
    npu.dump("damaged_here").write_bytes(b"garbage, not a dump")
    other.dump("damaged_here")
    npu.dump("damaged_there")
    other.dump("damaged_there").write_bytes(b"garbage, not a dump")
    assert links(by_name(npu, other)) == {
        "op:input:0": "",
        "op:input:1": Status.NO_BENCHMARK,
        "op:output:0": "op:0",
        "op:output:1": Status.NO_BENCHMARK,
        "damaged_here": Status.UNREADABLE,
        "damaged_there:output:0": Status.UNREADABLE,
    }


NC1HWC0 = OutTensor(data=np.zeros((2, 1, 4, 5, 16), np.float32), layout="NC1HWC0", origin_shape=(2, 3, 4, 5))
C0_OF_32 = OutTensor(data=np.zeros((2, 1, 4, 5, 32), np.float32), layout="NC1HWC0", origin_shape=(2, 3, 4, 5))
NHWC_SHAPE = OutTensor(data=np.zeros((2, 1, 4, 5, 32), np.float32), layout="NC1HWC0", origin_shape=(2, 4, 5, 3))
NCHW = OutTensor(data=np.zeros((2, 3, 4, 5), np.float32), layout="NCHW", origin_shape=(2, 3, 4, 5))
NHWC = OutTensor(data=np.zeros((2, 4, 5, 3), np.float32), layout="NHWC", origin_shape=(2, 4, 5, 3))

FULL = OutTensor(data=np.zeros((2, 1, 4, 5, 16), np.float32), layout="NC1HWC0", origin_shape=(2, 16, 4, 5))
SQUARE = OutTensor(data=np.zeros((2, 1, 4, 4, 16), np.float32), layout="NC1HWC0", origin_shape=(2, 4, 4, 4))
SQUARE_NCHW = OutTensor(data=np.zeros((2, 4, 4, 4), np.float32), layout="NCHW", origin_shape=(2, 4, 4, 4))
SQUARE_NHWC = OutTensor(data=np.zeros((2, 4, 4, 4), np.float32), layout="NHWC", origin_shape=(2, 4, 4, 4))


@pytest.mark.parametrize(
    ("here", "there", "axes_here", "axes_there"),
    [
        # without padding as they lie, else as logical axes N C H W
        (FULL, FULL, "flat", "flat"),
        (NC1HWC0, NC1HWC0, [0, 1, 2, 3, 1], [0, 1, 2, 3, 1]),
        (NC1HWC0, C0_OF_32, [0, 1, 2, 3, 1], [0, 1, 2, 3, 1]),
        (NCHW, NC1HWC0, [0, 1, 2, 3], [0, 1, 2, 3, 1]),
        (NC1HWC0, NCHW, [0, 1, 2, 3, 1], [0, 1, 2, 3]),
        # whose shape alone would not tell
        (SQUARE, SQUARE_NCHW, [0, 1, 2, 3, 1], [0, 1, 2, 3]),
        (SQUARE_NCHW, SQUARE, [0, 1, 2, 3], [0, 1, 2, 3, 1]),
        (SQUARE, SQUARE_NHWC, [0, 3, 1, 2, 3], [0, 1, 2, 3]),
        (SQUARE_NHWC, SQUARE, [0, 1, 2, 3], [0, 3, 1, 2, 3]),
        # as N H W C
        (NHWC, NHWC_SHAPE, [0, 1, 2, 3], [0, 3, 1, 2, 3]),
        (NHWC_SHAPE, NHWC, [0, 3, 1, 2, 3], [0, 1, 2, 3]),
    ],
)
def test_by_name_of_two_layouts(
    tmp_path: Path, here: OutTensor, there: OutTensor, axes_here: Any, axes_there: Any
) -> None:
    """A tensor stored differently in the two runs is read in one order."""
    npu, other = World(tmp_path / "npu"), World(tmp_path / "other")
    npu.dump("op", outputs=[here])
    other.dump("op", outputs=[there])
    (pair,) = by_name(npu, other)
    assert pair.status is Status.COMPARED, pair.reason
    assert pair.npu_plan is not None
    assert pair.golden_plan is not None
    assert pair.npu_plan.logical_shape == pair.golden_plan.logical_shape
    for plan, axes in ((pair.npu_plan, axes_here), (pair.golden_plan, axes_there)):
        assert ("flat" if plan.is_flat and axes == "flat" else [axis for axis, _ in plan.axes]) == axes


# ---- what must not be taken for something else


def test_a_part_result_behind_a_cast_is_still_one(world: World) -> None:
    world.goldens = {"bn:0": tensor(2), "x:0": tensor(2)}
    ops = [
        op("x"),
        op("bn/reduce", inputs=["x:0"], originals=["bn"]),
        trans("cast", "bn/reduce:0", "Cast"),
        op("bn/update", inputs=["cast:0"], originals=["bn"], outputs=[desc("bn:0")]),
    ]
    world.dump("bn/reduce", 1)
    world.dump("bn/update", 1)
    pairs = world.pairs(ops)
    assert one(pairs, "bn/reduce:output:0").status is Status.INTERMEDIATE
    assert one(pairs, "bn/update:input:0").status is Status.INTERMEDIATE
    assert one(pairs, "bn/update:output:0").golden_tensor == "bn:0"


def test_ops_of_a_subgraph_run_before_the_op_that_calls_it(world: World) -> None:
    sub = Graph(
        name="sub",
        ops=(
            op("in", "Data", parent_index=0),
            op("inner", inputs=["in:0"]),
            op("sub_Node_Output", "NetOutput", ["inner:0"]),
        ),
    )
    ops = [op("a"), op("call", "PartitionedCall", ["a:0"], subgraph_names=("sub",)), op("after", inputs=["call:0"])]
    for name in ("a", "inner", "after"):
        world.goldens[f"{name}:0"] = tensor(2)
        world.dump(name, 0 if name == "a" else 1)
    order = {pair.op_name: pair.index for pair in world.pairs(ops, sub)}
    assert order["a"] < order["inner"] < order["after"]


@pytest.mark.parametrize(("op_type", "compared"), [("PartitionedCall", True), ("While", False), ("If", False)])
def test_only_calls_hand_their_inputs_on_unchanged(world: World, op_type: str, compared: bool) -> None:
    body = Graph(name="body", ops=(op("arg", "Data", parent_index=0), op("step", inputs=["arg:0"])))
    ops = [op("start"), op("loop", op_type, ["start:0"], subgraph_names=("body",))]
    world.goldens = {"start:0": tensor(2), "step:0": tensor(2)}
    world.dump("step", 1)
    row = one(world.pairs(ops, body), "step:input:0")
    assert (row.status is Status.COMPARED) is compared
    if not compared:
        assert op_type in str(row.reason)


def test_edges_stay_in_their_own_graph(world: World) -> None:
    """Two graphs of one file may use the same op names."""
    sub = Graph(name="sub", ops=(op("z", outputs=[desc("right:0")]), op("reader", inputs=["z:0"])))
    ops = [op("z", outputs=[desc("wrong:0")]), op("call", "PartitionedCall", subgraph_names=("sub",))]
    world.goldens = {"right:0": tensor(2), "wrong:0": tensor(2)}
    world.dump("reader", 1)
    assert one(world.pairs(ops, sub), "reader:input:0").golden_tensor == "right:0"


def test_ops_spelled_alike_are_told_apart_by_the_header(world: World) -> None:
    ops = [op("a/b", outputs=[desc("first:0")]), op("a_b", "Mul", outputs=[desc("second:0")])]
    world.goldens = {"first:0": tensor(2), "second:0": tensor(2)}
    paths = {name: world.dump(name, op_type=kind) for name, kind in (("a/b", "Add"), ("a_b", "Mul"))}
    pairs = world.pairs(ops)
    for name, path in paths.items():
        npu = one(pairs, f"{name}:output:0").npu
        assert npu is not None
        assert npu.path == str(path)


def test_benchmark_names_spelled_alike_are_not_guessed(world: World) -> None:
    world.goldens = {"a_b:0": tensor(2)}
    world.dump("x", 1)
    pairs = world.pairs([op("a/b"), op("a_b"), op("x", inputs=["a/b:0"])])
    row = one(pairs, "x:input:0")
    assert row.status is Status.NO_BENCHMARK
    assert "like another op" in str(row.reason)


def test_a_damaged_newest_dump_is_said(world: World) -> None:
    world.goldens = {"a:0": tensor(2)}
    world.dump("a", time=STAMP + 1)
    newest = world.dump("a", time=STAMP + 9)
    newest.write_bytes(b"\xff" * 40)
    pairs = world.pairs([op("a")])
    assert [pair.status for pair in pairs] == [Status.UNREADABLE, Status.COMPARED]
    assert str(newest) in str(pairs[0].reason)
    assert "older dump" in str(pairs[1].reason)


def test_a_cut_off_newest_tensor_is_not_replaced_by_an_older_one(world: World) -> None:
    world.goldens = {"a:0": tensor(2)}
    world.dump("a", time=STAMP + 1)
    newest = world.dump("a", time=STAMP + 9)
    newest.write_bytes(newest.read_bytes()[:-1])
    (pair,) = world.pairs([op("a")])
    assert pair.status is Status.UNREADABLE
    assert str(newest) in str(pair.reason)


def test_ops_of_one_name_in_two_subgraphs_are_told_apart_by_their_tasks(world: World) -> None:
    """The newest file of both would accuse the one that ran first."""
    world.goldens = {"one:0": tensor(2), "two:0": tensor(3)}
    # The task that runs first is written last.
    world.dump("same", outputs=[np.zeros(2, np.float32)], time=STAMP + 9)
    world.dump("same", outputs=[np.zeros(3, np.float32)], time=STAMP)
    bodies = [
        Graph(name=f"body{number}", ops=(op("same", originals=[origin], outputs=[desc(f"{origin}:0")]),))
        for number, origin in enumerate(("one", "two"))
    ]
    calls = [op(f"call{number}", "PartitionedCall", subgraph_names=(f"body{number}",)) for number in range(2)]
    first, second = (pair for pair in world.pairs(calls, *bodies) if pair.op_name == "same")
    for pair, size, name in ((first, 2, "one"), (second, 3, "two")):
        assert isinstance(pair.npu, Tensor)
        assert (pair.npu.shape, pair.golden_tensor, pair.status) == ((size,), f"{name}:0", Status.COMPARED)
        assert pair.reason == Message("row.data.by_task_order", count=2)


@pytest.mark.parametrize("count", [1, 3])
def test_it_is_said_where_tasks_do_not_tell_ops_of_one_name_apart(world: World, count: int) -> None:
    world.goldens = {"same:0": tensor(2)}
    for number in range(count):
        world.dump("same", time=STAMP + number)
    bodies = [Graph(name=f"body{number}", ops=(op("same"),)) for number in range(2)]
    calls = [op(f"call{number}", "PartitionedCall", subgraph_names=(f"body{number}",)) for number in range(2)]
    pairs = [pair for pair in world.pairs(calls, *bodies) if pair.op_name == "same"]
    assert [pair.status for pair in pairs] == [Status.UNREADABLE, Status.UNREADABLE]
    for pair in pairs:
        assert f"2 ops of the graph have this name, and {count} of their tasks were dumped" in str(pair.reason)


@pytest.mark.parametrize("threaded", [True, False])
def test_slices_are_joined(world: World, threaded: bool) -> None:
    """Threads, or slices of the graph, cut along an axis: what they put out is compared whole, and what they were fed
    is what the op before put out."""
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    world.goldens = {"conv:0": tensor(24), "next:0": tensor(24)}
    for name, axis, given in (("conv", 0, []), ("next", 1, [whole[:2]])):
        write_slices(world.folder, name, [(whole, axis)], 2, threaded=threaded, fed=given, time=STAMP)
    plain = replace(PLAIN, shape=(4, 6))
    after = op("next", "Add", ["conv:0"], input_descs=(plain,), outputs=[plain])
    first, fed, second = world.pairs([op("conv", "Add", outputs=[plain]), after])
    for pair in (first, fed, second):
        assert isinstance(pair.npu, Tensor)
        assert pair.npu.shape == (4, 6)
        with open_bytes(pair.npu) as file:
            assert file.read_at(pair.npu.offset, pair.npu.nbytes) == whole.tobytes()


def test_a_slice_that_is_missing_is_told(world: World) -> None:
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    world.goldens = {"conv:0": tensor(24)}
    write_slices(world.folder, "conv", [(whole, 0)], 4, left_out=[2], time=STAMP)
    (pair,) = world.pairs([op("conv", "Add", outputs=[replace(PLAIN, shape=(4, 6))])])
    assert pair.status is Status.SIZE_MISMATCH
    assert str(pair.reason) == "conv was run in slices by FFTS+, of which 1 of 4 were not dumped"


def test_slices_that_do_not_fit_together_are_told(world: World) -> None:
    """Of another run, or damaged: neither joined nor taken for the whole."""
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    world.goldens = {"conv:0": tensor(24)}
    paths = write_slices(world.folder, "conv", [(whole, 0)], 2, time=STAMP)
    odd = write_slices(world.folder.with_name("odd"), "conv", [(whole[:, :5], 0)], 2, time=STAMP)
    paths[1].write_bytes(odd[1].read_bytes())
    (pair,) = world.pairs([op("conv", "Add")])
    assert pair.status is Status.UNREADABLE
    assert "its slices (2, 6), (2, 5) cannot be joined along axis 0" in str(pair.reason)


def test_slices_of_which_nothing_tells_how_they_were_cut(world: World) -> None:
    """The newest counts, as with msaccucmp; what does not fit the benchmark is called a slice."""
    world.goldens = {"conv:0": tensor(4)}
    for number in range(2):
        world.dump(f"conv_lxslice{number}", time=STAMP + number)
    (pair,) = world.pairs([op("conv", "Conv2D")])
    assert isinstance(pair.npu, Tensor)
    assert "conv_lxslice1" in pair.npu.path
    assert str(pair.reason) == "conv was dumped in 2 slices by FFTS+, and the dump does not say how they were cut"


@pytest.mark.parametrize(("dtype", "compared"), [("float16", True), ("int32", False), ("bool", False)])
def test_a_users_cast_to_integers_is_not_what_it_was_fed(world: World, dtype: str, compared: bool) -> None:
    world.goldens = {"x:0": tensor(2)}
    cast = op(
        "cast", "Cast", ["x:0"], originals=["cast"],
        input_descs=(PLAIN,), outputs=[replace(PLAIN, dtype=dtype)],
    )  # fmt: skip
    world.dump("y", 1)
    row = one(world.pairs([op("x"), cast, op("y", inputs=["cast:0"])]), "y:input:0")
    assert (row.status is Status.COMPARED) is compared
