"""A graph that is missing or cannot be read: nothing tells which op feeds which, so no op is named."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command_line import tool
from small_tree import chain, faulty_chain, small_tree

import precision_tool
from precision_tool.lib.model.finding import FindingKind

DAMAGES = {"cut off": b'graph { op { name: "a', "no text": b"\0\1\2", "empty": b"", "no graph": b"a: 1\n"}


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_op_is_named(tmp_path: Path, damage: str) -> None:
    tree = small_tree(tmp_path / "precision_data", faulty_chain())
    assert "┃ middle/Mul (Mul)" in tool("ac", "-c", cwd=tmp_path).text
    tree.graph.write_bytes(DAMAGES[damage])
    run = tool("ac", "-c", cwd=tmp_path)
    assert "is the first op" not in run.text
    assert "┃ middle/Mul" not in run.text
    assert "unknown which op is wrong first: the graph of the run could not be read" in run.text
    assert str(tree.graph.relative_to(tmp_path)) in run.text
    tool("ac", "-c", "--fail", cwd=tmp_path, code=1)
    (result,) = json.loads(tool("ac", "-c", "--json", cwd=tmp_path).out)["results"]
    assert [finding["kind"] for finding in result["findings"]] == ["unreadable"]
    (leaf,) = precision_tool.compare(str(tree.root / "npu"), str(tree.root / "tf"))
    assert [finding.kind for finding in leaf.findings()] == [FindingKind.UNREADABLE]


def test_without_a_graph_ops_are_named_with_the_doubt(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "precision_data", faulty_chain())
    tree.graph.unlink()
    assert "without a graph" in tool("ac", "-c", cwd=tmp_path).text


def test_what_agrees_agrees_without_the_graph_too(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "precision_data", chain())
    tree.graph.write_bytes(b"a {")
    assert "every compared tensor reaches a cosine" in tool("ac", "-c", "--fail", cwd=tmp_path).text


@pytest.mark.parametrize("is_cut", [True, False])
def test_no_op_is_cleared_that_only_the_graph_names(tmp_path: Path, is_cut: bool) -> None:
    tool("demo", "d", "--fault", "none", "--generate-only", cwd=tmp_path)
    for graph in (tmp_path / "d").rglob("ge_proto_*_Build.txt"):
        if is_cut:
            graph.write_bytes(graph.read_bytes()[: graph.stat().st_size // 2])
        else:
            graph.unlink()
    run = tool("ac", "-c", "--fail", cwd=tmp_path / "d", code=1)
    assert "No faulty operator" not in run.text
    assert re.search(
        r"unknown whether an op is wrong: there is no graph, and \d+ of \d+ tensors were not compared", run.text
    )
    assert "copy the graph files again, or name one with -g" in run.text


def test_a_follower_is_not_called_faulty_without_a_graph(tmp_path: Path) -> None:
    tool("demo", "d", "--generate-only", cwd=tmp_path)
    for graph in (tmp_path / "d").rglob("ge_proto_*_Build.txt"):
        graph.unlink()
    run = tool("ac", "-c", "--fail", cwd=tmp_path / "d", code=1)
    assert "First faulty operator" not in run.text
    assert re.search(
        r"First op below the threshold.* an earlier op may be the faulty one next copy the graph", run.text
    )
