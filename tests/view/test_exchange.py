"""The graph in model-explorer's format: every field of the kind that its documentation gives it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import tool
from report_files import names_of, result_of


def load(path: Path) -> Any:
    def refuse(name: str) -> float:
        raise ValueError(f"{name} is no JSON")

    return json.loads(path.read_text("utf-8"), parse_constant=refuse)


def test_the_demo(demo_report: Path) -> None:
    folder = demo_report.parent
    run = tool("report", "--model-explorer", "graph.json", cwd=folder)
    assert run.out.count("model-explorer: ") == 3
    result = result_of(demo_report)
    names = names_of(result)
    collection = load(folder / "graph.json")
    assert set(collection) == {"label", "graphs"}
    (graph,) = collection["graphs"]
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert len(nodes) == len(graph["nodes"]) == len(names)
    for node in graph["nodes"]:
        assert all(isinstance(node[key], str) for key in ("id", "label", "namespace"))
        assert all(set(one) == {"key", "value"} and isinstance(one["value"], str) for one in node["attrs"])
        for edge in node["incomingEdges"]:
            assert set(edge) == {"sourceNodeId", "sourceNodeOutputId", "targetNodeInputId"}
            assert edge["sourceNodeId"] in nodes
    by_name = {node["attrs"][0]["value"]: node for node in graph["nodes"]}
    culprit = by_name[result["verdict"]["culprit"]]
    assert culprit["namespace"] == "conv2"
    assert culprit["label"] == "Conv2D"
    (overlays,) = graph["tasksData"]["edgeOverlaysDataListLeftPane"]
    assert overlays["overlays"][0]["edges"][0]["sourceNodeId"] == culprit["id"]
    own = load(folder / "graph_own_error.json")[graph["id"]]
    assert max(own["results"], key=lambda node: own["results"][node]["value"]) == culprit["id"]
    values = [one["value"] for one in own["thresholds"]]
    assert values == sorted(values)
    cosines = load(folder / "graph_one_minus_cosine.json")[graph["id"]]
    at = names.index(result["verdict"]["culprit"])
    assert cosines["results"][culprit["id"]]["value"] == pytest.approx(1 - result["ops"]["cosine"][at], abs=1e-6)


def test_without_a_graph(h5_report: Path) -> None:
    run = tool("report", "--model-explorer", "graph.json", cwd=h5_report.parent, code=2)
    assert "has no graph" in run.text


def test_bad_places(demo_report: Path) -> None:
    folder = demo_report.parent
    for target, what in (("/proc/x/graph.json", "cannot be written"), (str(folder), "a folder")):
        assert what in tool("report", "--model-explorer", target, cwd=folder, code=2).text
    both = tool("report", "--model-explorer", "x.json", "-o", "y.html", cwd=folder, code=2)
    assert "does not go with --model-explorer" in both.text
