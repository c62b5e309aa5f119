"""A graph that is there and cannot be read: nothing tells which op feeds which, so no op is named."""

from __future__ import annotations

import json
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
    assert "which op is the first to compute wrong is not known: the run's graph could not be read" in run.text
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
