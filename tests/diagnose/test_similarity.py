"""Two graphs beside each other, and the list of checks that `ac` makes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from builders import graph_op

from precision_tool.lib.compare.scheduler import WorkStoppedError
from precision_tool.lib.data.graph_catalog import MissingGraph, RunGraph
from precision_tool.lib.diagnose.graph_diff import check_similarity, compare_graphs
from precision_tool.lib.diagnose.run_checks import RUN_CHECKS, check_runs, skip_checks
from precision_tool.lib.messages import Message, render
from precision_tool.lib.messages.errors import FormatError
from precision_tool.lib.model.finding import CheckResult, FindingKind, Grade
from precision_tool.lib.model.graph import Graph, GraphFile, Op, TensorDesc
from precision_tool.lib.view.findings import check_title, render_finding


def desc(origin: str = "", **others: object) -> TensorDesc:
    given: dict[str, object] = {"dtype": "float16", "layout": "ND", "shape": (2, 3), **others}
    if origin:
        given |= {"dump_origin_name": origin, "dump_origin_index": 0}
    return TensorDesc(**given)  # type: ignore[arg-type]


def op(name: str, op_type: str, inputs: Sequence[str] = (), *, origin: str = "", passes: Sequence[str] = (),
       originals: Sequence[str] | None = None, **others: object) -> Op:  # fmt: skip
    return graph_op(
        name, op_type, inputs, output_descs=[desc(origin, **others)], pass_names=passes, original_names=originals
    )


def graph(*ops: Op, path: str = "g.txt") -> GraphFile:
    return GraphFile(path=path, graphs=(Graph(name="g", ops=ops),))


def run(number: int | None, file: GraphFile) -> RunGraph:
    return RunGraph(number=number, leaf=None, file=file, reason=None)


#: The same network with and without fusion: conv and relu become one op, and the inserted casts are numbered anew.
FUSED = graph(
    op("data", "Data", origin="data"),
    op("cast_0", "Cast", ["data:0"], originals=()),
    op("conv+relu", "Conv2D", ["cast_0:0"], origin="relu", originals=("conv", "relu"), passes=("ConvReluPass",)),
    op("pool", "MaxPool", ["conv+relu:0"], origin="pool"),
    op("out", "NetOutput", ["pool:0"]),
)
UNFUSED = graph(
    op("data", "Data", origin="data"),
    op("cast_1", "Cast", ["data:0"], originals=()),
    op("conv", "Conv2D", ["cast_1:0"], origin="conv"),
    op("cast_0", "Cast", ["conv:0"], originals=()),
    op("relu", "Relu", ["cast_0:0"], origin="relu"),
    op("pool", "MaxPool", ["relu:0"], origin="pool"),
    op("out", "NetOutput", ["pool:0"]),
    path="h.txt",
)


def test_fusion_is_told_from_other_differences() -> None:
    found = compare_graphs(FUSED, UNFUSED)
    assert (found.left_ops, found.right_ops, found.in_both) == (5, 7, 3)
    assert found.only_left == ("conv+relu",)
    assert found.only_right == ("conv", "relu")
    assert found.fused_away == (("ConvReluPass", 2),)
    assert found.inserted == (("Cast", 1, 2),)
    assert found.differences == ()  # pool is fed relu's result in both
    # data, pool, out and one Cast have a partner: 8 of 12 ops.
    assert found.alike == 4
    assert found.share == pytest.approx(8 / 12)


@pytest.mark.parametrize(
    ("changed", "what", "left", "right"),
    [
        (op("pool", "AvgPool", ["conv+relu:0"], origin="pool"), "type", "MaxPool", "AvgPool"),
        (op("pool", "MaxPool", ["conv+relu:0"], origin="pool", dtype="float32"), "output dtype", "float16", "float32"),
        (op("pool", "MaxPool", ["conv+relu:0"], origin="pool", layout="NHWC"), "output layout", "ND", "NHWC"),
        (op("pool", "MaxPool", ["conv+relu:0"], origin="pool", shape=(6,)), "output shape", "[2, 3]", "[6]"),
        (op("pool", "MaxPool", ["cast_0:0"], origin="pool"), "inputs", "relu:0", "data:0"),
        (op("pool", "MaxPool", ["conv+relu:0"], origin="pool", passes=("P",)), "passes", "", "P"),
    ],
)
def test_what_may_differ_in_an_op(changed: Op, what: str, left: str, right: str) -> None:
    ops = tuple(changed if one.name == "pool" else one for one in FUSED.ops)
    (found,) = compare_graphs(FUSED, graph(*ops)).differences
    assert (found.op_name, found.what, found.left, found.right) == ("pool", what, left, right)


def test_a_graph_is_its_own_twin() -> None:
    found = compare_graphs(FUSED, FUSED)
    assert (found.share, found.only_left, found.only_right, found.differences) == (1.0, (), (), ())
    assert compare_graphs(graph(), graph()).share == 1.0


def test_casts_that_feed_each_other_end() -> None:
    loop = graph(
        op("a", "Cast", ["b:0"], originals=()),
        op("b", "Cast", ["a:0"], originals=()),
        op("c", "Add", ["a:0", "gone:1"]),
    )
    assert compare_graphs(loop, loop).differences == ()


def test_the_check() -> None:
    found = check_similarity([run(0, FUSED), run(1, graph(op("x", "Add"))), run(1, UNFUSED), run(2, FUSED)])
    assert found.finding is not None
    assert (found.finding.kind, found.finding.grade) == (FindingKind.GRAPH_SIMILARITY, Grade.INFO)
    assert found.finding.message.share == pytest.approx(2 / 3)
    assert found.looked_at is not None
    assert found.looked_at.sizes == (Message("check.graph_similarity.sizes", left=5, right=7),)
    assert found.details == (compare_graphs(FUSED, UNFUSED),)
    facts = render_finding(found.finding).facts
    assert ("in both", "3 ops, different: 0") in facts
    assert ("only debug_1", "2 ops: conv, relu") in facts
    assert ("fused away", "ConvReluPass: 2 ops of debug_1") in facts


@pytest.mark.parametrize(
    ("runs", "only"),
    [([run(0, FUSED)], 0), ([run(1, FUSED)], 1), ([run(None, FUSED)], None)],
)
def test_the_check_needs_two_graphs(runs: list[RunGraph], only: int | None) -> None:
    found = check_similarity(runs)
    assert found.finding is None
    assert found.skipped == Message("check.graph_similarity.two_graphs", only=only, missing=None)


def test_a_check_that_cannot_read_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(runs: Sequence[RunGraph], missing: Sequence[MissingGraph], known: object) -> CheckResult:
        raise FormatError("file: damaged", "get another")

    names = [*RUN_CHECKS.all()]
    assert [one.name for one in check_runs([run(0, FUSED)])] == names
    monkeypatch.setattr(RUN_CHECKS, "built_in", {"a": fail, **RUN_CHECKS.built_in})
    first, *others = check_runs([run(0, FUSED)])
    assert (first.name, check_title(first.name)) == ("a", "a")
    assert render(first.skipped) == "file: damaged; get another"
    assert [one.name for one in others] == names
    no_graph = Message("text", text="no graph")
    skipped = {check.name: check.skipped for check in skip_checks(no_graph)}
    assert skipped == dict.fromkeys(("fusion_passes", "a", *names), no_graph)


def test_a_check_that_is_stopped_stops_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(runs: Sequence[RunGraph], missing: Sequence[MissingGraph], known: object) -> CheckResult:
        raise WorkStoppedError("stopped", "", [])

    monkeypatch.setattr(RUN_CHECKS, "built_in", {"a": stop, **RUN_CHECKS.built_in})
    with pytest.raises(WorkStoppedError):
        check_runs([run(0, FUSED)])


def test_a_graph_that_cannot_be_read_is_named() -> None:
    lost = MissingGraph(number=0, model="m", reason=Message("text", text="g.txt: line 5 is cut off"))
    result = check_similarity([run(1, graph(op("a", "Add")))], [lost])
    missing = Message("check.no_graph", number=0, reason=lost.reason)
    assert result.skipped == Message("check.graph_similarity.two_graphs", only=1, missing=missing)
    alone = check_similarity([run(1, graph(op("a", "Add")))])
    assert alone.skipped == Message("check.graph_similarity.two_graphs", only=1, missing=None)
