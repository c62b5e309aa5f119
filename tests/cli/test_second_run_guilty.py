"""The culprit sits in debug_1: what is said of it is of that run, with a benchmark and of two NPU runs alone."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest
from command_line import tool
from report_files import names_of, result_of
from small_tree import chain, small_tree

from precision_tool.lib.demo.generate import generate_demo


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a data folder of a right run and one of a run with a culprit, and the culprit."""
    root = tmp_path_factory.mktemp("runs")
    generate_demo(root / "right", fault="none")
    return root, str(generate_demo(root / "wrong").culprit)


def data_of(runs: Path, cwd: Path, first: str, second: str, *, benchmark: bool) -> Path:
    """A data folder of two runs, and of the benchmark they both have."""
    data = cwd / "precision_data"
    for number, name in enumerate((first, second)):
        shutil.copytree(runs / name / "npu" / "debug_0", data / "npu" / f"debug_{number}")
    if benchmark:
        shutil.copytree(runs / "right" / "tf", data / "tf")
    return data


@pytest.fixture(scope="module")
def alone(runs: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Two NPU runs, of which debug_1 is wrong, and nothing else."""
    cwd = tmp_path_factory.mktemp("alone")
    data_of(runs[0], cwd, "right", "wrong", benchmark=False)
    return cwd, runs[1]


@pytest.fixture(scope="module")
def beside(runs: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The same with a benchmark."""
    cwd = tmp_path_factory.mktemp("beside")
    data_of(runs[0], cwd, "right", "wrong", benchmark=True)
    return cwd, runs[1]


def test_two_npu_runs_have_their_counts_own_errors_and_a_report(alone: tuple[Path, str]) -> None:
    cwd, culprit = alone
    run = tool("ac", "-c", "--json", "--report", "report.html", cwd=cwd)
    assert "exists too" not in run.err
    verdict = run.results[0]["verdict"]
    assert (verdict["culprit"], verdict["run"]) == (culprit, 1)
    assert verdict["suspects"][0]["below"] > 10
    assert verdict["worst_cosine"]["below"] > 10
    (file,) = (cwd / "precision_data" / "temp" / "vector_compare").glob("*/result_*.csv")
    with file.open() as lines:
        own = [row["OwnError"] for row in csv.DictReader(lines) if ":output:" in row["TensorIndex"]]
    assert sum(one not in ("", "*", "NaN") for one in own) > 50
    report = result_of(cwd / "report.html")
    at = names_of(report).index(culprit)
    assert len(report["ops"]["name"]) == report["counts"]["ops"] == 83  # no op stands beside the map
    assert report["ops"]["cosine"][at] < 0.98
    assert report["ops"]["own"][at] == pytest.approx(verdict["evidence"]["own_error"], rel=1e-3)
    assert any("verdict is on debug_1" in note["en"] for note in report["notes"])
    assert report["details"][str(at)]
    assert len(report["error_path"]) > 1


def test_without_a_benchmark_none_is_said_to_obey(alone: tuple[Path, str]) -> None:
    cwd, _ = alone
    shown = " ".join(tool("ac", "-c", cwd=cwd, columns=300).text.split())
    assert "recomputed from its own inputs; another op of the same kind passes the same check" in shown
    assert "the benchmark obeys" not in shown


def test_the_next_step_compares_the_guilty_run(beside: tuple[Path, str]) -> None:
    cwd, culprit = beside
    first = tool("ac", "-c", "--report", "report.html", cwd=cwd)
    assert "\n        precision-tool ac -c -lt debug_1\n" in first.out
    assert "exists too" not in first.text
    report = result_of(cwd / "report.html")
    at = names_of(report).index(culprit)
    assert {one["npu"]["path"].split("/")[2] for one in report["details"][str(at)]} == {"debug_1"}
    assert report["ops"]["own"][at] > 0.1
    # The data folder's runs are found whatever the working folder is.
    then = tool("--data", str(cwd / "precision_data"), "ac", "-c", "-lt", "debug_1", "--json", cwd=cwd.parent)
    (result,) = then.results
    assert "/npu/debug_1/" in result["npu"]
    assert result["overview"]["below"] > 0
    assert result["verdict"]["suspects"][0]["below"] > 10
    (similar,) = (one for one in then.json["checks"] if one["name"] == "graph_similarity")
    assert "are 100.0% similar" in similar["finding"]["message"]


def test_a_run_that_was_not_judged_is_not_shown_as_without_a_fault(runs: tuple[Path, str], tmp_path: Path) -> None:
    data_of(runs[0], tmp_path, "wrong", "right", benchmark=True)
    tool("ac", "-c", cwd=tmp_path)
    shown = tool("ls", "--wrong", cwd=tmp_path).out
    assert "1 of 83 ops" in shown
    assert "0 of 83" not in shown
    assert shown.rstrip().endswith("not checked: the newest verdict is on another run")


def test_a_wrong_folder_gets_the_right_one_told(beside: tuple[Path, str]) -> None:
    cwd, _ = beside
    data = cwd / "precision_data"
    inner = ("precision_data/npu", "precision_data/npu/debug_0")
    for name, where, near in (
        (cwd.name, cwd.parent, f"{cwd.name}/precision_data"),
        *((name, cwd, "precision_data") for name in inner),
    ):
        said = tool("--data", name, "ac", "-c", cwd=where, code=2).err
        assert f"error: {name}: no data folder" in said
        assert f"hint: this looks like one: --data {near}\n" in said
    assert "this looks like one: --data .\n" in tool("ls", cwd=data, code=2).err
    assert f"this looks like one: --data {data}\n" in tool("ls", cwd=data / "npu" / "debug_0", code=2).err


def test_ni_says_once_what_both_graphs_say(beside: tuple[Path, str]) -> None:
    cwd, culprit = beside
    shown = tool("ni", culprit, cwd=cwd).out
    assert "debug_0 and debug_1  ge_default" in shown
    assert shown.count("\nkernel lib ") == 1
    assert shown.count("verdict on the op, debug_") == 2


def test_the_ops_below_have_their_own_errors(beside: tuple[Path, str]) -> None:
    cwd, culprit = beside
    data = ("--data", str(cwd / "precision_data"), "--work", "elsewhere")
    tool(*data, "ac", "-c", "-lt", "debug_1", cwd=cwd)
    shown = tool(*data, "vcs", "-l", "2", cwd=cwd).out
    panels = shown.split("╭─ ")[1:]
    assert culprit in panels[0]
    assert "│ Own:     [0] 63.7 % " in panels[0]
    own = [line.split("] ")[1].split(" %")[0] for line in panels[1].splitlines() if line.startswith("│ Own:")]
    assert [float(one) < 0.1 for one in own] == [True]  # it computes right what it is fed


# `ac -c` of two runs that differ in fusion, as the guide to fusion faults lays them out: without in debug_0.


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
    document = tool("--work", "work", "ac", "-c", "--json", cwd=cwd).json
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
