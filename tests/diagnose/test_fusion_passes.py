"""The passes in effect: from graphs, from reports, and which report belongs to which run."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import pytest
from builders import graph_op

from precision_tool.lib.data.graph_catalog import MissingGraph, RunGraph
from precision_tool.lib.diagnose.fusion_effect import GraphFusion, check_fusion, passes_in_effect
from precision_tool.lib.io.fusion_passes import GRAPH, UB, GraphPasses, PassCount
from precision_tool.lib.io.fusion_switch import Switches
from precision_tool.lib.messages import Message
from precision_tool.lib.model.finding import Grade
from precision_tool.lib.model.graph import Graph, GraphFile, Op
from precision_tool.lib.view.findings import render_finding


def run(number: int, *ops: Op, graph_id: str = "0_1") -> RunGraph:
    graph = Graph(name="g", ops=ops, attrs={"_session_graph_id": graph_id} if graph_id else {})
    return RunGraph(number=number, leaf=None, file=GraphFile(path=f"{number}.txt", graphs=(graph,)), reason=None)


def report(graph: str, path: str = "r.json", **effects: int) -> GraphPasses:
    passes = [PassCount(name=name, section=UB, matched=times + 1, effective=times) for name, times in effects.items()]
    return GraphPasses(path=path, graph=graph, passes=tuple(passes))


CONV = graph_op("c1r1", original_names=["c1", "r1"], pass_names=["ConvRelu"])
CONV2 = graph_op("c2r2", original_names=["c2", "r2"], pass_names=["ConvRelu", "Second"])
PACK = graph_op("pq", original_names=["p", "q"], pass_names=["PackFusionPass"])
NAMELESS = graph_op("mn", original_names=["m", "n"])
FUSED = run(1, CONV, CONV2, PACK, NAMELESS)
UNFUSED = run(0, *(graph_op(name, original_names=[name]) for name in ("c1", "r1", "c2", "r2")))


def rows(graph: GraphFusion) -> dict[str, tuple[object, ...]]:
    return {row.name: (row.section, row.matched, row.effective, len(row.ops)) for row in graph.rows}


def test_graph_and_report_together() -> None:
    """Both runs have the graph's id; the report is of the run whose ops its passes made."""
    unfused, fused = passes_in_effect([UNFUSED, FUSED], [report("0_1", ConvRelu=2, Unused=0)], {})
    assert (unfused.rows, unfused.source, unfused.fused) == ((), "", 0)
    assert rows(fused) == {
        "ConvRelu": (UB, 3, 2, 2), "PackFusionPass": (None, None, None, 1), "Second": (None, None, None, 1),
        "Unused": (UB, 1, 0, 0),
    }  # fmt: skip
    assert (fused.source, fused.fused, fused.nameless, fused.graph_id) == ("r.json", 4, 1, "0_1")
    assert [row.is_switchable for row in fused.rows] == [True, False, True, True]


@pytest.mark.parametrize(("graph", "own"), [("0_1", True), ("1", True), ("", True), ("0_2", False), ("2", False)])
def test_the_report_of_another_graph_stands_alone(graph: str, own: bool) -> None:
    found = passes_in_effect([FUSED], [report(graph, ConvRelu=2)], {})
    assert [one.run for one in found] == ([1] if own else [1, None])
    assert rows(found[-1])["ConvRelu"] == (UB, 3, 2, 2 if own else 0)


def test_reports_of_one_graph_add_up_within_a_file_and_not_beyond() -> None:
    records = [report("0_1", ConvRelu=2), report("0_1", ConvRelu=1), report("0_1", "older.json", ConvRelu=7)]
    (found,) = passes_in_effect([FUSED], records, {})
    assert rows(found)["ConvRelu"] == (UB, 5, 3, 2)


def test_reports_without_any_graph() -> None:
    first, second = passes_in_effect([], [report("0_1", A=2), report("0_2"), report("0_3", B=0)], {})
    assert (first.run, first.path, first.graph_id, list(rows(first))) == (None, "", "0_1", ["A"])
    assert list(rows(second)) == ["B"]  # matched, though never in effect


def test_worst_cosines_and_switches() -> None:
    switches = Switches(sections={GRAPH: {"ALL": False}, UB: {"ConvRelu": False}})
    cosines = {"c1r1": 0.5, "c2r2": nan, "pq": 0.999}
    (found,) = passes_in_effect([FUSED], [report("0_1", ConvRelu=2)], cosines, switches)
    conv, pack, second = found.rows
    assert (conv.worst_op, conv.compared) == ("c2r2", 2)  # NaN is worst
    assert conv.cosine != conv.cosine
    assert (conv.switch, second.switch, pack.switch) == (False, None, None)  # GE looks for these who knows where
    switches = Switches(sections={GRAPH: {"ALL": False}, UB: {"ALL": False}})
    (all_off,) = passes_in_effect([FUSED], [], {}, switches)
    assert [row.switch for row in all_off.rows] == [False, False, False]
    assert (pack.cosine, pack.worst_op) == (0.999, "pq")


def test_cosines_are_of_the_run_that_was_compared() -> None:
    found = passes_in_effect([UNFUSED, FUSED], [], {"c1r1": 0.5, "c2r2": 0.6})
    assert [row.cosine for row in found[1].rows if row.name == "ConvRelu"] == [0.5]


def test_the_panel() -> None:
    found = check_fusion(passes_in_effect([FUSED], [report("0_1", ConvRelu=2)], {"c1r1": 0.5}), 0.98)
    assert found.finding is not None
    assert (found.finding.grade, found.finding.message) == (
        Grade.INFO,
        Message("finding.fusion_passes", passes=3, ops=3),
    )
    assert found.looked_at == Message("check.fusion_passes.looked_at", sources=("r.json",))
    facts = [value for _, value in render_finding(found.finding).facts]
    assert facts == [
        "ConvRelu, 2 ops, matched 3, in effect 2, worst cosine 0.500000 (c1r1)",
        "PackFusionPass, 1 op, cannot be switched off",
        "Second, 1 op",
    ]


def test_the_panel_names_some_of_many() -> None:
    many = run(0, *(graph_op(f"o{number}", pass_names=[f"Pass{number:02}"]) for number in range(30)))
    found = check_fusion(passes_in_effect([many], [], {}), 0.98)
    assert found.finding is not None
    assert len(found.finding.facts) == 9
    assert render_finding(found.finding).facts[-1] == ("debug_0", "and 22 more passes: `fusion` lists them")


def test_the_panel_without_any_pass() -> None:
    found = check_fusion(passes_in_effect([replace(FUSED, file=UNFUSED.file)], [], {}), 0.98)
    assert found.finding is None
    assert found.skipped == Message("check.fusion_passes.no_passes", nameless=None, missing=None)
    missing = [MissingGraph(number=1, model="", reason=Message("text", text="no graph: nothing there"))]
    found = check_fusion(passes_in_effect([run(0, NAMELESS)], [], {}), 0.98, missing)
    lost = Message("check.no_graph", number=1, reason=missing[0].reason)
    assert found.skipped == Message("check.fusion_passes.no_passes", nameless=1, missing=lost)
