"""`ac -c` of two runs that differ in fusion, as the guide to fusion faults lays them out: without in debug_0."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import tool
from small_tree import chain, small_tree

from precision_tool.lib.demo.generate import generate_demo


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder, and the culprit: a fused op computes wrong in debug_1; debug_0 is right."""
    root = tmp_path_factory.mktemp("demo")
    return root, str(generate_demo(root / "precision_data", fault="fusion").culprit)


def test_both_runs_are_compared_and_the_guilty_one_is_named(demo: tuple[Path, str]) -> None:
    cwd, culprit = demo
    run = tool("ac", "-c", cwd=cwd, columns=120)
    assert "0 below 0.98" in run.text
    assert "debug_1 with fusion, against the same benchmark: " in run.text
    assert f"{culprit} (Conv2D) of debug_1" in run.text
    assert "exists too" not in run.text
    (other,) = (cwd / "precision_data" / "temp" / "vector_compare").glob("*/debug_1_result_*.csv")
    (listed,) = tool("vcs", "-f", other.name, "--json", cwd=cwd).results
    assert listed["overview"]["below"] > 0
    # The newest result is still that of the run under test.
    assert "0 below 0.98" in tool("vcs", cwd=cwd).text


def test_json_has_both(demo: tuple[Path, str]) -> None:
    cwd, culprit = demo
    document = json.loads(tool("--work", "work", "ac", "-c", "--json", cwd=cwd).out)
    (result,), (other,) = document["results"], document["other_run"]["results"]
    assert (result["overview"]["below"], other["overview"]["below"] > 0) == (0, True)
    assert document["other_run"]["is_fused"] is True
    assert result["verdict"]["culprit"] == culprit


def test_two_runs_of_the_same_graph_are_not_compared_twice(tmp_path: Path) -> None:
    for run in ("debug_0", "debug_1"):
        tree = small_tree(tmp_path / "precision_data", chain(), run=run)
    said = tool("ac", "-c", cwd=tmp_path)
    assert "debug_1 exists too" in said.text
    assert list((tree.root / "temp" / "vector_compare").glob("*/debug_*")) == []


def test_a_pass_that_the_data_does_not_know_is_remarked(demo: tuple[Path, str]) -> None:
    """GE ignores unknown names: a misspelt one would switch nothing."""
    cwd, _ = demo
    file = ("--file", "mine.cfg")
    run = tool("fusion", "off", "TbeConvDequantVaddReluQuantFussionPass", *file, cwd=cwd)
    assert "no op of the data was made by a pass of this name; did you mean TbeConvDequantVaddReluQuant" in run.text
    known = tool("fusion", "off", "TbeConvDequantVaddReluQuantFusionPass", *file, cwd=cwd)
    assert "no op of the data" not in known.text
