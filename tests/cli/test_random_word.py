"""`random` and `--noise-floor`, as a user runs them."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import fingerprint, tool
from small_tree import chain, small_tree

from precision_tool.lib.demo.generate import DemoTruth, generate_demo


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, DemoTruth]]:
    """Two runs of which one op differs, which tests only read."""
    cwd = tmp_path_factory.mktemp("random")
    truth = generate_demo(cwd / "precision_data", fault="random")
    before = fingerprint(cwd / "precision_data")
    yield cwd, truth
    assert fingerprint(cwd / "precision_data") == before


def random(cwd: Path, *words: str | Path, work: Path, code: int = 0) -> dict[str, Any]:
    run = tool("--work", work, "random", *words, "--json", cwd=cwd, code=code)
    document: dict[str, Any] = run.json
    return document


def test_the_random_op_is_named(demo: tuple[Path, DemoTruth], tmp_path: Path) -> None:
    cwd, truth = demo
    found = random(cwd, "--fail", work=tmp_path, code=1)
    (pair,) = found["pairs"]
    assert pair["first"] == truth.culprit
    by_kind: dict[str, list[str]] = {}
    for op in pair["ops"]:
        by_kind.setdefault(op["kind"], []).append(op["name"])
    assert by_kind["random"] == [truth.culprit]
    assert by_kind["expected"] == ["dropout/random_mask"]
    assert pair["overwritten"] == []


def test_the_second_run_may_be_the_one_that_is_named(demo: tuple[Path, DemoTruth], tmp_path: Path) -> None:
    cwd, truth = demo
    (pair,) = random(cwd, "-lt", "precision_data/npu/debug_1", work=tmp_path)["pairs"]
    assert pair["first"] == truth.culprit
    assert ["/debug_1/" in pair["run"], "/debug_0/" in pair["other_run"]] == [True, True]


def test_what_it_shows(demo: tuple[Path, DemoTruth], tmp_path: Path) -> None:
    cwd, truth = demo
    run = tool("--work", tmp_path, "random", cwd=cwd, columns=80)
    assert str(truth.culprit) in run.out
    assert "within rounding" in run.text
    assert "random by design: dropout/random_mask (DropOutGenMask)" in run.text
    assert "followers:" in run.text
    lines = run.out.splitlines()
    conclusion = run.out.partition("━ Random errors ")[2]
    assert f"{truth.culprit} (Conv2D) computes differently in the two runs" in " ".join(
        conclusion.replace("┃", " ").split()
    )
    assert (lines[-2], lines[-1].split()[-2:]) == ("next  dump again and check whether it is fixed:", ["ac", "-c"])
    assert all(len(line) <= 80 for line in lines[:-1] if "precision_data" not in line and "noise" not in line)
    assert "\x1b" not in run.out


def test_a_noise_floor_explains_errors(demo: tuple[Path, DemoTruth], tmp_path: Path) -> None:
    cwd, truth = demo
    found = random(cwd, work=tmp_path / "w")
    path = found["noise_floor"]
    with open(path, newline="") as file:
        rows = {(row["Op"], row["Slot"]): float(row["RelativeEuclideanDistance"]) for row in csv.DictReader(file)}
    noise = rows[str(truth.culprit), "output:0"]
    assert 0 < noise < 0.01
    assert rows[str(truth.culprit), "input:0"] == 0
    words = ("--threshold", "0.9999999", "--json")
    plainly = tool("--work", tmp_path / "w", "vc", *words, cwd=cwd).results[0]
    judged = tool("--work", tmp_path / "w", "vc", *words, "--noise-floor", path, cwd=cwd).results[0]
    assert {row["noise"] for row in plainly["rows"]} == {None}
    assert judged["overview"]["below"] < plainly["overview"]["below"]
    (row,) = [one for one in judged["rows"] if (one["op"], one["slot"]) == (truth.culprit, "output:0")]
    assert row["noise"] == pytest.approx(noise)
    shown = tool("--work", tmp_path / "w", "vc", "--threshold", "0.9999999", "--noise-floor", cwd=cwd)
    assert "own noise" in shown.text
    assert "has none" in shown.text


def test_a_noise_floor_that_is_none(demo: tuple[Path, DemoTruth], tmp_path: Path) -> None:
    cwd, _ = demo
    assert "no noise floor yet" in tool("--work", tmp_path, "vc", "--noise-floor", cwd=cwd, code=2).err
    (tmp_path / "x.csv").write_text("a,b\n")
    assert "no noise floor" in tool("--work", tmp_path, "vc", "--noise-floor", tmp_path / "x.csv", cwd=cwd, code=2).err
    assert "no such file" in tool("--work", tmp_path, "vc", "--noise-floor", "nowhere", cwd=cwd, code=2).err


def test_overwritten_memory(tmp_path: Path) -> None:
    truth = generate_demo(tmp_path / "precision_data", fault="stomp")
    run = tool("random", "--fail", cwd=tmp_path, code=1, columns=80)
    assert "Memory overwritten" in run.out
    assert "there is no second run" in run.text
    assert f"{truth.overwriter} (TransData) writes there, and its bytes were read" in run.text
    assert f",{truth.overwriter} in the environment" in run.text  # what to do
    assert all(len(line) <= 80 for line in run.out.splitlines() if "precision_data" not in line)
    (pair,) = random(tmp_path, work=tmp_path / "w")["pairs"]
    first = pair["overwritten"][0]
    assert (first["consumer"], first["suspects"][0]["name"]) == (truth.culprit, truth.overwriter)


def test_the_same_run_twice_is_equal(tmp_path: Path) -> None:
    root = tmp_path / "precision_data"
    generate_demo(root, fault="none")
    shutil.copytree(root / "npu" / "debug_0", root / "npu" / "debug_1")
    run = tool("random", "--fail", cwd=tmp_path)
    assert "No op computes differently" in run.out
    assert "match their producers' outputs" in run.out


def test_runs_of_other_ops_are_no_pair(tmp_path: Path) -> None:
    """They get neither an all-clear nor a noise floor, which would hide errors."""
    generate_demo(tmp_path / "precision_data", fault="fusion")
    found = random(tmp_path, "--fail", work=tmp_path / "w", code=1)
    (pair,) = found["pairs"]
    assert (pair["is_pair"], found["noise_floor"]) == (False, None)
    apart = {*pair["first_run_only"], *pair["other_run_only"]}
    assert {"conv1/Conv2D", "conv1/Conv2Dconv1/BiasAddconv1/Relu"} <= apart
    assert not (tmp_path / "w" / "random").exists()
    shown = tool("--work", tmp_path / "w", "random", cwd=tmp_path).text
    assert "not of one script" in shown
    assert "fusion blame" in shown
    assert "computes differently in the two runs." not in shown


def test_an_op_that_one_run_did_not_dump_takes_the_all_clear(tmp_path: Path) -> None:
    root = tmp_path / "precision_data"
    generate_demo(root, fault="none")
    shutil.copytree(root / "npu" / "debug_0", root / "npu" / "debug_1")
    next((root / "npu" / "debug_1").rglob("MaxPool.pool2_MaxPool.*")).unlink()
    found = random(tmp_path, "--fail", work=tmp_path / "w", code=1)
    assert (found["pairs"][0]["one_run_only"], found["noise_floor"]) == (["pool2/MaxPool"], None)


def test_graphs_that_differ_where_nothing_is_dumped(tmp_path: Path) -> None:
    root = tmp_path / "precision_data"
    generate_demo(root, fault="none")
    shutil.copytree(root / "npu" / "debug_0", root / "npu" / "debug_1")
    for graph in (root / "npu" / "debug_1" / "graph").glob("*_Build.txt"):
        graph.write_text(graph.read_text().replace('"conv2/bias', '"conv2/other'))
    (pair,) = random(tmp_path, "--fail", work=tmp_path / "w", code=1)["pairs"]
    assert (pair["first_run_only"], pair["other_run_only"]) == (["conv2/bias"], ["conv2/other"])


def test_the_pair_that_made_a_noise_floor_is_within_it(demo: tuple[Path, DemoTruth], tmp_path: Path) -> None:
    cwd, _ = demo
    path = random(cwd, work=tmp_path)["noise_floor"]
    words = ("vc", "-lt", "precision_data/npu/debug_0", "-rt", "precision_data/npu/debug_1", "--json")
    for threshold in ("0.9999", "0.99999999", "1"):
        judged = tool("--work", tmp_path, *words, "--noise-floor", path, "-c", threshold, cwd=cwd)
        assert judged.results[0]["overview"]["below"] == 0


def test_numbers_of_ops_and_all_of_them(demo: tuple[Path, DemoTruth], tmp_path: Path) -> None:
    cwd, truth = demo
    listed = tool("--work", tmp_path, "ls", "--json", cwd=cwd).json
    (row,) = [one for one in listed["graphs"][0]["ops"] if one["name"] == truth.culprit]
    assert f"[{row['index']}] {truth.culprit}" in tool("--work", tmp_path, "random", "-l", "0", cwd=cwd).out


def test_runs_that_are_named(tmp_path: Path) -> None:
    """Without graphs, anywhere."""
    for name, value in (("one", 2.0), ("two", 3.0)):
        small_tree(tmp_path / name, chain(np.array([1, value], np.float32)))
    found = random(tmp_path, "-lt", "one/npu/debug_0/dump", "-rt", "two/npu/debug_0/dump", work=tmp_path / "w")
    (pair,) = found["pairs"]
    assert pair["first"] == "middle_Mul"
    graph = next((tmp_path / "one").rglob("*_Build.txt"))
    words = ("-lt", "one/npu/debug_0/dump", "-rt", "two/npu/debug_0/dump", "-g", graph)
    assert random(tmp_path, *words, work=tmp_path / "w")["pairs"][0]["first"] == "middle/Mul"


def test_what_is_not_there(tmp_path: Path) -> None:
    assert "no such data folder" in tool("random", cwd=tmp_path, code=2).err
    tree = small_tree(tmp_path / "precision_data", chain())
    assert "no such folder" in tool("random", "-rt", "nowhere", cwd=tmp_path, code=2).err
    assert "the same dump on both sides" in tool("random", "-rt", tree.dump_path, cwd=tmp_path, code=2).err
    shutil.copytree(tree.leaf, tmp_path / "r" / "20260302093000" / "0" / "m" / "1" / "7")
    tree.copy_leaf("0", "m", "1", "5")
    run = tool("random", "-rt", "r", cwd=tmp_path, code=2)
    assert "in common" in run.err


def test_a_real_networks_memory_was_kept(real_data: Path, tmp_path: Path) -> None:
    run = tool("--data", real_data, "--work", "w", "random", "-lt", real_data / "npu/debug_0/dump", "-rt",
               real_data / "npu/debug_0/dump", cwd=tmp_path, code=2)  # fmt: skip
    assert "the same dump on both sides" in run.err
    shutil.copytree(real_data / "npu" / "debug_0", tmp_path / "precision_data" / "npu" / "debug_0")
    (pair,) = random(tmp_path, work=tmp_path / "w")["pairs"]
    assert pair["memory_checked"] > 60
    assert pair["overwritten"] == []
