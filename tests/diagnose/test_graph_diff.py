"""The differences of two graphs in groups."""

from __future__ import annotations

from dataclasses import replace

from builders import graph_op

from precision_tool.lib.diagnose.graph_diff import diff_graphs
from precision_tool.lib.io.fusion_passes import GRAPH, UB, Switches
from precision_tool.lib.model.graph import Graph, GraphFile, Op, TensorDesc


def file(*ops: Op) -> GraphFile:
    return GraphFile(path="g", graphs=(Graph(name="g", ops=ops),))


def op(name: str, op_type: str = "Add", *, dtype: str = "float16", layout: str = "ND", shape: tuple[int, ...] = (2,),
       originals: tuple[str, ...] | None = None, passes: tuple[str, ...] = ()) -> Op:  # fmt: skip
    desc = TensorDesc(dtype=dtype, layout=layout, shape=shape)
    return graph_op(
        name, op_type, output_descs=[desc], original_names=(name,) if originals is None else originals,
        pass_names=passes,
    )  # fmt: skip


FUSED = op("c+r", "Conv2D", originals=("c", "r"), passes=("ConvRelu",))
SINGLE = (op("c", "Conv2D"), op("r", "Relu"))
STILL = op("m+b", "MatMul", originals=("m", "b"), passes=("MatMulBias",))
PACK = op("p+q", "Pack", originals=("p", "q"), passes=("PackFusionPass",))


def test_fusion_explains_what_only_one_has() -> None:
    diff = diff_graphs(file(FUSED, STILL, op("x")), file(*SINGLE, STILL, op("y", "Sub"), op("z", "Sub")))
    (group,) = diff.fused
    assert (group.pass_name, group.side, group.ops) == ("ConvRelu", "left", (("c+r", ("c", "r")),))
    assert [(one.what, one.ops) for one in diff.only_left] == [("Add", ("x",))]
    assert [(one.what, one.ops) for one in diff.only_right] == [("Sub", ("y", "z"))]
    assert diff.differences == ()
    assert not diff.is_same


def test_fusion_on_the_right() -> None:
    (group,) = diff_graphs(file(*SINGLE), file(FUSED)).fused
    assert (group.side, group.ops) == ("right", (("c+r", ("c", "r")),))


def test_what_a_fused_op_puts_out_otherwise_than_the_op_it_stands_for() -> None:
    desc = TensorDesc(dtype="float16", layout="NC1HWC0", shape=(1, 1, 2, 2, 16), dump_origin_name="r")
    fused = replace(FUSED, output_descs=(desc,))
    single = (op("c", "Conv2D"), op("r", "Relu", dtype="float32", shape=(2, 2, 3)))
    for graphs, turn in (((fused,), single), 1), ((single, (fused,)), -1):
        diff = diff_graphs(file(*graphs[0]), file(*graphs[1]))
        assert [(one.what, (one.left, one.right)[::turn], one.ops) for one in diff.differences] == [
            ("output dtype", ("float16", "float32"), ("c+r",)),
            ("output layout", ("NC1HWC0", "ND"), ("c+r",)),
        ]
    same = replace(desc, dtype="float32", layout="ND", shape=(2, 2, 3))
    assert diff_graphs(file(replace(FUSED, output_descs=(same,))), file(*single)).differences == ()


def test_whether_a_pass_is_gone() -> None:
    switches = Switches(sections={GRAPH: {"ALL": False}, UB: {"ALL": False}})
    diff = diff_graphs(file(FUSED, STILL, PACK), file(*SINGLE, STILL, PACK), switches)
    found = {one.name: (one.left, one.right, one.is_gone, one.is_off, one.is_switchable) for one in diff.passes}
    assert found == {
        "ConvRelu": (1, 0, True, True, True),
        "MatMulBias": (1, 1, False, True, True),  # off, and still there
        "PackFusionPass": (1, 1, False, True, False),
    }
    assert diff_graphs(file(STILL), file(STILL)).passes[0].is_off is None
    one_section = Switches(sections={GRAPH: {"ALL": False}})  # and nobody knows which the pass is in
    assert diff_graphs(file(STILL), file(STILL), one_section).passes[0].is_off is None


def test_what_differs_is_grouped() -> None:
    """A thousand ops with one type changed are one line; the shape that a layout brings with it is none."""
    names = [f"op{number}" for number in range(1000)]
    left = file(*(op(name) for name in names), op("a"), op("b"), op("t"))
    right = file(
        *(op(name, dtype="float32") for name in names),
        op("a", layout="NC1HWC0", shape=(2, 1)), op("b", shape=(3,)), op("t", "Sub"),
    )  # fmt: skip
    found = [(one.what, one.left, one.right, len(one.ops)) for one in diff_graphs(left, right).differences]
    assert found == [
        ("output dtype", "float16", "float32", 1000), ("output layout", "ND", "NC1HWC0", 1),
        ("output shape", "[2]", "[3]", 1), ("type", "Add", "Sub", 1),
    ]  # fmt: skip


def test_a_graph_does_not_differ_from_itself() -> None:
    diff = diff_graphs(file(FUSED, STILL), file(FUSED, STILL))
    assert diff.is_same
    assert [one.is_gone for one in diff.passes] == [False, False]


def test_constants_of_the_compiler_have_other_names_in_every_graph() -> None:
    """What is fed by one is fed the same, whatever its number."""
    left, right = (
        file(graph_op(name, "Const", original_names=[]), graph_op("a", inputs=[f"{name}:0"], original_names=["a"]))
        for name in ("dynamic_const_16700_0", "dynamic_const_16709_0")
    )
    assert diff_graphs(left, right).is_same
