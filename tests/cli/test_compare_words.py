"""`demo`, `vc`, `vcs` and `ac` as a user runs them: words, options, exit codes, files and what they show."""

from __future__ import annotations

import io
import json
import math
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import MODEL, STAMP, write_dump
from command_line import (
    by_tensor,
    cells,
    check_golden,
    fingerprint,
    masked,
    namespace,
    only_result,
    result_files,
    table,
    tool,
)
from small_tree import Node, SmallTree, chain, faulty_chain, small_tree, values

from precision_tool.lib.api import run as run_word
from precision_tool.lib.compare.result_csv import read_result
from precision_tool.lib.demo.device import FAULTS
from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.model.table import Table

#: The header of the vendor's result file (msaccucmp 26.2.0), NPU dump against .npy.
VENDOR_HEADER = [
    "Index", "OpType", "NPUDump", "DataType", "Address", "GroundTruth", "DataType", "TensorIndex", "Shape",
    "CosineSimilarity", "MaxAbsoluteError", "AccumulatedRelativeError", "RelativeEuclideanDistance",
    "KullbackLeiblerDivergence", "StandardDeviation", "MeanAbsoluteError", "RootMeanSquareError", "MaxRelativeError",
    "MeanRelativeError", "CompareFailReason",
]  # fmt: skip


# --- the demo, whose truth is known ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Demo:
    """A demo folder that tests only read, and what is true of it."""

    cwd: Path
    truth: dict[str, Any]

    @property
    def root(self) -> Path:
        return self.cwd / "precision_data"

    @property
    def leaf(self) -> Path:
        return self.root / str(self.truth["dump_dir"])


def make_demo(folder: Path, fault: str = "fused", seed: int = 1) -> Demo:
    generate_demo(folder / "precision_data", fault=fault, seed=seed)
    return Demo(folder, json.loads((folder / "precision_data" / "truth.json").read_text("utf-8")))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """A demo, which is the same at the end as it was at the beginning."""
    made = make_demo(tmp_path_factory.mktemp("demo"))
    before = fingerprint(made.root / "npu"), fingerprint(made.root / "tf")
    yield made
    assert (fingerprint(made.root / "npu"), fingerprint(made.root / "tf")) == before


def check_truth(truth: dict[str, Any], rows: dict[str, dict[str, str]]) -> None:
    """Every tensor of the truth has a row with its cosine to six digits, or a reason where it has no benchmark."""
    assert {name for name in rows if ":" in name} == set(truth["tensors"])
    for name, tensor in truth["tensors"].items():
        printed = rows[name]["CosineSimilarity"]
        if tensor["golden"] is None:
            assert printed == "NaN"
            assert rows[name]["CompareFailReason"]
        elif tensor["cosine"] is None:  # NaN in the NPU's tensor, or a side that is all zero
            assert printed == "nan"
        elif rows[name]["Shape"] == "[1]" and rows[name]["NPUNaN"] == "1":
            assert (tensor["cosine"], printed) == (1.0, "nan")  # the truth calls every scalar 1, NaN too
        else:
            assert float(printed) == pytest.approx(tensor["cosine"], abs=2e-6)
            assert rows[name]["GroundTruthTensor"] == tensor["golden"]


@pytest.mark.parametrize(("fault", "seed"), [("fused", 1), ("fused", 5), ("nan", 2), ("none", 3)])
def test_the_faulty_op_is_named(tmp_path: Path, fault: str, seed: int) -> None:
    assert fault in FAULTS
    truth = make_demo(tmp_path, fault, seed).truth
    run = tool("ac", "-c", "--fail", "--json", cwd=tmp_path, code=0 if fault == "none" else 1)
    (result,) = run.results
    if fault == "none":
        assert truth["culprit"] is None
        assert [finding["kind"] for finding in result["findings"]] == ["all_agree"]
        assert result["overview"]["below"] == 0
    else:
        (finding,) = result["findings"]
        assert finding["kind"] == "first_faulty_op"
        assert finding["grade"] == "fault"
        assert finding["op_name"] == truth["culprit"]
        assert finding["op_type"] == truth["culprit_type"]
        assert finding["pass_name"] == ",".join(truth["culprit_passes"])
        assert finding["original_ops"] == ",".join(truth["culprit_originals"])
    check_truth(truth, by_tensor(only_result(tmp_path / "precision_data" / "temp")))
    assert result["graph"] == str(tmp_path / "precision_data" / truth["graph_path"])
    # The same from the file that was written, for people.
    text = tool("ac", cwd=tmp_path).text
    head = re.search(r"┏━ Verdict ━+┓ ┃ (\S+) (\S+)", text)
    assert head is not None
    assert head[1] == (truth["culprit"] or "No")
    # What the comparison alone says is there on request.
    named = re.search(
        r"First faulty operator ─+╮ (\S+) is the first op whose inputs", tool("ac", "-v", cwd=tmp_path).text
    )
    assert (named[1] if named else None) == truth["culprit"]


def test_the_demo_word(tmp_path: Path) -> None:
    run = tool("demo", cwd=tmp_path)
    root = tmp_path / "demo_data" / "precision_data"
    culprit = json.loads((root / "truth.json").read_text("utf-8"))["culprit"]
    assert run.out.startswith("demo_data/precision_data: 67 dump files, 67 benchmark tensors, 7.1 MB\n")
    assert "$ precision-tool --data demo_data/precision_data ac -c" in run.out
    assert f"┃ {culprit} (Conv2D)" in run.out
    assert run.out.endswith(f"truth of this demo: {culprit} was computed incorrectly\n")
    assert run.err == ""
    check_truth(json.loads((root / "truth.json").read_text("utf-8")), by_tensor(only_result(root / "temp")))
    # The command that it shows does the same.
    again = tool("--data", "demo_data/precision_data", "ac", "-c", cwd=tmp_path)
    assert masked(again.out, tmp_path) in masked(run.out, tmp_path)


def test_the_demo_word_with_options(tmp_path: Path) -> None:
    run = tool("demo", "here", "--fault", "none", "--seed", "7", "--generate-only", cwd=tmp_path)
    assert run.out.count("\n") == 1
    truth = json.loads((tmp_path / "here/precision_data/truth.json").read_text("utf-8"))
    assert (truth["seed"], truth["fault"], truth["culprit"]) == (7, "none", None)
    assert result_files(tmp_path) == []
    bad = tool("demo", "here", "--fault", "gremlins", cwd=tmp_path, code=2)
    assert "error: demo: argument --fault: invalid choice: 'gremlins'" in bad.err
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precision_data").mkdir()
    (tmp_path / "mine" / "precision_data" / "letter").write_text("dear")
    bad = tool("demo", "mine", cwd=tmp_path, code=2)
    assert "mine/precision_data: the folder is not empty and contains no earlier demo" in bad.err
    assert (tmp_path / "mine" / "precision_data" / "letter").read_text() == "dear"


# --- words, options, exit codes -------------------------------------------------------------------------------------


def test_data_and_work(demo: Demo, tmp_path: Path) -> None:
    run = tool("--data", demo.root, "--work", "results", "vc", cwd=tmp_path)
    path = only_result(tmp_path / "results")
    assert path.parent.parent == tmp_path / "results" / "vector_compare"
    assert f"result file: {path.relative_to(tmp_path)}\n" in run.out
    assert result_files(demo.root) == []
    # The other way to say it, and the old names of the words.
    tool("--work", "more", "data", demo.root, "vector_compare", cwd=tmp_path)
    assert len(result_files(tmp_path / "more")) == 1
    # Results are looked up where they were written.
    shown = tool("--data", demo.root, "--work", "results", "vcs", cwd=tmp_path)
    assert f"result file: {path.relative_to(tmp_path)}\n" in shown.out
    assert tool("--data", demo.root, "vcs", cwd=tmp_path, code=2).err.startswith("error: ")


def test_exit_codes(demo: Demo, tmp_path: Path) -> None:
    place = ("--data", demo.root, "--work", "w")
    for word, arguments, code in (
        ("vc", (), 0),
        ("vc", ("--fail",), 1),
        ("vc", ("--fail", "--threshold", "-1"), 0),
        ("ac", ("-c", "--fail"), 1),
        ("ac", ("--fail",), 1),
        ("vcs", (), 0),
        ("vcs", ("--fail",), 1),
        ("vcs", ("--fail", "-c", "-1"), 0),
        ("vcs", ("-c", "2"), 2),
        ("vcs", ("-l", "-1"), 2),
        ("vc", ("--workers", "-1"), 2),
        ("vc", ("--no-such-option",), 2),
        ("vc", ("stray",), 2),
    ):
        run = tool(*place, word, *arguments, cwd=tmp_path, code=code)
        if code == 2:
            assert re.fullmatch(rf"error: {word}: .*\nhint: .*`{word} -h` shows the options\n", run.err)
            assert run.out == ""
        else:
            assert run.err == ""


def test_json_holds_what_the_file_holds(demo: Demo, tmp_path: Path) -> None:
    run = tool("--data", demo.root, "--work", ".", "vc", "--json", cwd=tmp_path)
    assert run.err == ""
    (result,) = run.results
    path = only_result(tmp_path)
    assert Path(result["file"]) == path.relative_to(tmp_path)
    assert result["npu"] == str(demo.leaf)
    assert result["benchmark"] == str(demo.root / "tf" / "dump")
    lines = cells(path)
    assert len(result["rows"]) == len(lines) == result["overview"]["rows"]
    for row, line in zip(result["rows"], lines, strict=True):
        assert (str(row["index"]), row["type"], row["status"], row["reason"]) == (
            line["Index"], line["OpType"], line["Status"], line["CompareFailReason"],
        )  # fmt: skip
        assert (f"{row['op']}:{row['slot']}" if row["slot"] else "NaN") == line["TensorIndex"]
        assert row["benchmark"] == line["GroundTruthTensor"]
        assert ",".join(row["pass"]) == line["PassName"]
        assert ",".join(row["npu_ops"]) == line["NPUDump"]
        assert (row["npu_type"] or "NaN") == line["DataType"]
        if row["metrics"] is None:
            assert line["CosineSimilarity"] == "NaN"
            continue
        for name, column in (
            ("cosine", "CosineSimilarity"),
            ("max_absolute_error", "MaxAbsoluteError"),
            ("accumulated_relative_error", "AccumulatedRelativeError"),
            ("relative_euclidean_distance", "RelativeEuclideanDistance"),
            ("kullback_leibler_divergence", "KullbackLeiblerDivergence"),
            ("mean_absolute_error", "MeanAbsoluteError"),
            ("root_mean_square_error", "RootMeanSquareError"),
            ("max_relative_error", "MaxRelativeError"),
            ("mean_relative_error", "MeanRelativeError"),
        ):
            assert line[column] in (f"{float(row['metrics'][name]):.6f}", "1.0" if row["metrics"]["both_zero"] else "")
        assert math.isclose(float(row["npu"]["mean"]), float(line["NPUMean"]), rel_tol=1e-8, abs_tol=1e-12)
        assert row["golden"]["zero_count"] == int(line["GroundTruthZeros"])
    # What is read back from the file has the same keys and, as far as they are printed, the same values.
    (read,) = tool("vcs", "-f", path, "--json", cwd=tmp_path).results
    assert set(read) == set(result)
    assert read["overview"] == result["overview"]
    assert read["findings"] == result["findings"]
    for again, row in zip(read["rows"], result["rows"], strict=True):
        assert list(again) == list(row)
        for part in ("metrics", "npu", "golden"):
            fresh, found = row.pop(part), again.pop(part)
            assert (fresh is None) == (found is None)
            for name, value in (fresh or {}).items():
                if isinstance(value, float) and found[name] is not None:
                    assert found[name] == pytest.approx(value, rel=1e-8, abs=5.1e-7), name
                elif name != "count" and fresh and (name[-9:] != "max_error" or fresh["max_error_index"]):
                    assert found[name] == value, name  # how many values there are stands in no column
        assert again == row


def test_threshold_and_limit(tmp_path: Path) -> None:
    nodes = chain()
    for i, cosine in enumerate((0.99, 0.97, 0.9, 0.5)):  # against the first axis
        turned = values(cosine, math.sqrt(1 - cosine**2))
        nodes.append(Node(name=f"turned{i}", type="Add", output=turned, golden=values(1, 0)))
    small_tree(tmp_path / "precision_data", nodes)
    tool("vc", cwd=tmp_path)
    for threshold, shown in (("0.98", 3), ("0.995", 4), ("0.95", 2), ("0.2", 0)):
        run = tool("vcs", "-c", threshold, "-l", "9", cwd=tmp_path)
        assert re.findall(r"\[(\d+)\] turned(\d) \(Add\)", run.out) == [
            (str(5 + i), str(i)) for i in range(4 - shown, 4)
        ]
        assert (f"No op is below a cosine of {threshold}." in run.out) is (shown == 0)
    run = tool("vcs", "-l", "1", cwd=tmp_path)
    assert re.findall(r"\] (turned\d)", run.out) == ["turned1"]
    assert "1 of 3 ops below 0.98 shown, in execution order; -l N shows more, -l 0 all" in run.out
    run = tool("vcs", "-l", "0", cwd=tmp_path)
    assert re.findall(r"\] (turned\d)", run.out) == ["turned1", "turned2", "turned3"]
    assert "shown, in execution order" not in run.out
    run = tool("ac", cwd=tmp_path, env={"PRECISION_TOOL_LIMIT": "0"})  # the culprit stands first, though it agrees
    assert re.findall(r"\] (turned\d)", run.out) == ["turned0", "turned1", "turned2", "turned3"]
    # The environment and the user's file set the same.
    run = tool("vcs", cwd=tmp_path, env={"PRECISION_TOOL_THRESHOLD": "0.6", "PRECISION_TOOL_LIMIT": "9"})
    assert re.findall(r"\] (turned\d)", run.out) == ["turned3"]
    (tmp_path / "precision_config.py").write_text("THRESHOLD = 0.95\nLIMIT = 1\n")
    run = tool("vcs", cwd=tmp_path)
    assert "1 of 2 ops below 0.95 shown" in run.out


def test_newest_result_is_shown(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "precision_data", chain())
    tool("vc", cwd=tmp_path)
    np.save(tree.goldens["last/Sub"], values(-8, -9))
    tool("vc", cwd=tmp_path)  # within the same second, most likely
    older, newer = result_files(tree.root)
    assert older.parent != newer.parent
    assert "No op is below" not in tool("vcs", cwd=tmp_path).out
    assert f"result file: {newer.relative_to(tmp_path)}" in tool("vcs", cwd=tmp_path).out
    assert "No op is below" in tool("vcs", "-f", older, cwd=tmp_path).out
    # A folder stands for the newest comparison in it; half a comparison is none.
    assert str(newer.relative_to(tmp_path)) in tool("vcs", "-f", tree.root, cwd=tmp_path).out
    newer.rename(newer.with_name(f"partial_{newer.name}"))
    assert f"result file: {older.relative_to(tmp_path)}" in tool("vcs", cwd=tmp_path).out


# --- several devices, models and steps ------------------------------------------------------------------------------

OTHER_MODEL = f"ge_default_{STAMP}_2"


@pytest.fixture
def several(tmp_path: Path) -> SmallTree:
    """Two devices; on the second two models of two graphs; of the second two steps, the later of which is wrong."""
    tree = small_tree(tmp_path / "precision_data", chain())
    other = tree.graph.read_text("ascii").replace(MODEL, OTHER_MODEL)
    tree.graph.with_name("ge_proto_00000006_graph_2_Build.txt").write_text(other)
    tree.copy_leaf("1", MODEL, "1", "0")
    tree.copy_leaf("1", OTHER_MODEL, "2", "3")
    wrong = tree.copy_leaf("1", OTHER_MODEL, "2", "10")
    write_dump(wrong / tree.dumps["last/Sub"].name, "last/Sub", [chain()[3].output], [values(9, -8)])  # type: ignore[list-item]
    return tree


LEAVES = [f"0_{MODEL}_0", f"1_{MODEL}_0", f"1_{OTHER_MODEL}_3", f"1_{OTHER_MODEL}_10"]


def test_every_leaf_has_its_own_result(several: SmallTree) -> None:
    cwd = several.root.parent
    run = tool("ac", "-c", "--fail", cwd=cwd, code=1)
    paths = result_files(several.root)
    (time,) = {path.parent.name for path in paths}
    assert {path.name for path in paths} == {f"{leaf}_result_{time}.csv" for leaf in LEAVES}
    for leaf in LEAVES:
        rows = by_tensor(next(path for path in paths if path.name.startswith(leaf)))
        compared = [row for row in rows.values() if row["Status"] == "compared"]
        assert len(compared) == 7
        below = [name for name, row in rows.items() if row["CosineSimilarity"] not in ("1.000000", "NaN")]
        assert below == (["last/Sub:output:0"] if leaf == LEAVES[3] else [])
    # Shown in the order of devices, models and steps (as numbers), each with its graph.
    rules = re.findall(r"^(device \d \S+ step \d+) ─", run.out, re.MULTILINE)
    assert rules == [re.sub(r"(\d)_(.+)_(\d+)", r"device \1 \2 step \3", leaf) for leaf in LEAVES]
    assert re.findall(r"graph/ge_proto_0000000(\d)_graph", run.out) == ["5", "5", "6", "6"]
    assert run.out.count("┏━ Verdict ━") == 1  # of the others nothing can be recomputed
    assert run.out.count("┃ last/Sub (Sub)") == 1
    # `vcs` and `ac` read all of them back.
    assert tool("vcs", cwd=cwd).out.count("result file: ") == 4
    results = tool("ac", "--json", "--fail", cwd=cwd, code=1).results
    assert len(results) == 4
    assert [r["overview"]["below"] for r in results if OTHER_MODEL in r["file"] and "_10_" in r["file"]] == [1]


def test_folders_of_every_level(several: SmallTree, tmp_path: Path) -> None:
    """`-lt` takes the dump path and every folder below it, down to the files, and a folder made by hand."""
    base = Path("precision_data/npu/debug_0/dump")
    levels = {
        "": 4, STAMP: 4, f"{STAMP}/0": 1, f"{STAMP}/1": 3, f"{STAMP}/1/{OTHER_MODEL}": 2,
        f"{STAMP}/1/{OTHER_MODEL}/2": 2, f"{STAMP}/1/{OTHER_MODEL}/2/3": 1,
    }  # fmt: skip
    for level, count in levels.items():
        for folder in (base / level, f"{base / level}/", tmp_path / base / level):
            results = tool("vc", "-lt", folder, "--json", cwd=tmp_path).results
            assert len(results) == count, folder
            assert {r["overview"]["compared"] for r in results} == {7}
            assert {Path(r["npu"]) for r in results} <= {path.parent for path in several.dump_path.rglob("Mul.*")}
    # Files that somebody put together; the graph has to be named.
    hand_made = tmp_path / "flat"
    shutil.copytree(several.leaf, hand_made)
    run = tool("vc", "-lt", "flat", "-rt", "precision_data/tf", cwd=tmp_path)
    assert "note no graph: no ge_proto_*_Build.txt beside flat; ops are matched by name, fused ops stay" in run.text
    assert "4 of 7 tensors of 4 ops" in run.text
    for graph in (several.graph.parent, several.graph):
        run = tool("vc", "-lt", "flat", "-rt", "precision_data/tf", "-g", graph, cwd=tmp_path)
        assert "7 of 7 tensors of 4 ops" in run.text
        assert "note" not in run.text


def test_the_newest_dump_of_a_device_counts(several: SmallTree, tmp_path: Path) -> None:
    older = several.copy_leaf("1", MODEL, "1", "0", time="20250101000000")
    write_dump(older / several.dumps["last/Sub"].name, "last/Sub", [], [values(-1, 1)])
    assert len(tool("vc", "--json", cwd=tmp_path).results) == 4
    run = tool("vc", cwd=tmp_path)
    assert "dump folders of earlier times are left out: 1 (20250101000000)" in run.text
    run = tool("vc", "-lt", older.parents[3], cwd=tmp_path)
    assert "6 of 6 tensors" in run.text
    assert "left out" not in run.text


# --- two runs of the NPU --------------------------------------------------------------------------------------------


def test_two_npu_runs(tmp_path: Path) -> None:
    """Without a benchmark `vc` compares with the second run: by name, inputs too, with both addresses."""
    nodes = chain()
    small_tree(tmp_path / "precision_data", nodes)
    only_here = Node(name="only/Here", type="Add", output=values(1, 2))
    wrong = [*nodes[:4], Node(name="last/Sub", type="Sub", inputs=(nodes[3],), output=values(9, 8)), only_here]
    other = small_tree(tmp_path / "precision_data", wrong, run="debug_1")
    shutil.rmtree(tmp_path / "precision_data" / "tf")
    run = tool("ac", "-c", "--fail", "--threshold", "0.995", cwd=tmp_path, code=1)
    path = only_result(tmp_path)
    header, lines = table(path)
    assert header[: len(VENDOR_HEADER) + 1] == [*VENDOR_HEADER[:7], "Address", *VENDOR_HEADER[7:]]
    rows = by_tensor(path)
    assert list(rows) == [
        "IteratorGetNext:output:0", "first_Add:input:0", "first_Add:output:0", "middle_Mul:input:0",
        "middle_Mul:output:0", "last_Sub:input:0", "last_Sub:output:0", "*",
    ]  # fmt: skip
    assert [row["CosineSimilarity"] for row in rows.values()] == ["1.000000"] * 6 + ["0.993103", "NaN"]
    assert pytest.approx(0.993103, abs=5e-7) == 144 / 145  # (8, 9) and (9, 8)
    assert rows["*"]["GroundTruth"] == "only_Here"
    assert rows["*"]["CompareFailReason"] == "this run has no dump of only_Here, the other has"
    assert all(line[7] == line[4] for line in lines[:-1])
    assert f"other run {other.leaf.relative_to(tmp_path)}" in run.text
    assert "matched by the names of ops, inputs and outputs" in run.text
    assert "ops without a dump file in this run: 1" in run.text
    assert re.search("^graph ", run.out, re.MULTILINE) is None
    assert "benchmark" not in run.text.replace("a benchmark would show", "")
    # With folders, with a graph, and the other way round.
    run = tool("vc", "-rt", "precision_data/npu/debug_1", "-g", "precision_data/npu/debug_0/graph", cwd=tmp_path)
    assert "graph/ge_proto_00000005_graph_1_Build.txt" in run.text
    assert "7 of 7 tensors of 4 ops" in run.text
    run = tool("vc", "-lt", "precision_data/npu/debug_1", "-rt", "precision_data/npu/debug_0", cwd=tmp_path)
    assert "tensors missing in the other run: 1" in run.text
    assert "tensors missing in the other run: 1" in tool("vcs", cwd=tmp_path).text  # the file tells it as well


# --- folders that cannot be written ---------------------------------------------------------------------------------


def read_only(folder: Path) -> tuple[str, ...]:
    """A command prefix to whose command `folder` is mounted read-only; without mounts, its permissions are taken."""
    prefix = namespace()
    if prefix is not None:
        script = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && cd "$PWD" && exec "$@"'
        return (*prefix, "sh", "-c", script, str(folder))
    if os.geteuid() == 0:
        pytest.skip("mounting is not allowed here, and permissions do not stop root")
    return ("sh", "-c", 'chmod a-w "$0"; "$@"; code=$?; chmod u+w "$0"; exit $code', str(folder))


def test_a_read_only_data_folder(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "precision_data", chain())
    before = fingerprint(tree.root)
    prefix = read_only(tree.root)
    run = tool("ac", "-c", cwd=tmp_path, prefix=prefix)
    assert re.fullmatch(
        r"note: precision_data/temp/vector_compare cannot be written \(.+\); results go to precision_work instead\n",
        run.err,
    )
    path = only_result(tmp_path / "precision_work")
    assert f"result file: {path.relative_to(tmp_path)}\n" in run.out
    # Found there again, without another word.
    for word in ("vcs", "ac"):
        shown = tool(word, cwd=tmp_path, prefix=prefix)
        assert (shown.out.splitlines()[0], shown.err) == (f"result file: {path.relative_to(tmp_path)}", "")
    # --work is not second-guessed.
    assert tool("--work", "w", "vc", cwd=tmp_path, prefix=prefix).err == ""
    assert len(result_files(tmp_path / "w")) == 1
    assert len(result_files(tmp_path / "precision_work")) == 1
    assert fingerprint(tree.root) == before
    # JSON stays JSON.
    assert len(tool("vc", "--json", cwd=tmp_path, prefix=prefix).results) == 1


def test_nowhere_to_write(tmp_path: Path) -> None:
    small_tree(tmp_path / "precision_data", chain())
    (tmp_path / ".tmp").mkdir()
    before = fingerprint(tmp_path)
    run = tool("ac", "-c", cwd=tmp_path, code=2, prefix=read_only(tmp_path))
    first, hint = run.err.splitlines()
    assert re.fullmatch(
        r"error: precision_data/\S+ cannot be written .*; precision_work/\S+ cannot be written .*", first
    )
    assert "--work DIR" in hint
    assert fingerprint(tmp_path) == before


# --- result files ---------------------------------------------------------------------------------------------------


def test_the_result_file_is_like_the_vendors(demo: Demo, tmp_path: Path) -> None:
    tool("--data", demo.root, "--work", ".", "vc", cwd=tmp_path)
    path = only_result(tmp_path)
    assert re.fullmatch(r"vector_compare/(\d{14})/result_\1\.csv", str(path.relative_to(tmp_path)))
    plain = tmp_path / "plain"
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode  # as the umask says
    data = path.read_bytes()
    assert data.isascii()
    assert data.endswith(b"\r\n")
    assert data.count(b"\n") == data.count(b"\r\n") == len(cells(path)) + 1
    header, lines = table(path)
    assert header[: len(VENDOR_HEADER)] == VENDOR_HEADER
    assert len(set(header) - {"DataType"}) == len(header) - 2
    number = re.compile(r"-?\d+\.\d{6}")
    pair = re.compile(r"\((-?\d+\.\d{3};\d+\.\d{3})\),\((-?\d+\.\d{3};\d+\.\d{3})\)")
    indices = []
    for line in lines:
        cell = dict(zip(VENDOR_HEADER, line, strict=False))
        indices.append(int(cell["Index"]))
        assert re.fullmatch(r"NaN|\[(\d+(,\d+)*)?\]", cell["Shape"])
        if line[header.index("Status")] != "compared":
            assert {cell[name] for name in VENDOR_HEADER[9:19]} == {"NaN"}
            assert cell["CompareFailReason"]
            continue
        assert line[3] in ("float16", "float32", "int32", "int64")
        assert line[6] in ("float32", "int32", "int64")
        assert int(line[4]) >= 0x1240_8000_0000
        assert re.fullmatch(r"\S+:(in|out)put:\d+", cell["TensorIndex"])
        assert cell["CosineSimilarity"] in ("1.0", "nan") or number.fullmatch(cell["CosineSimilarity"])
        assert pair.fullmatch(cell["StandardDeviation"])
        for name in set(VENDOR_HEADER[10:19]) - {"StandardDeviation"}:
            assert number.fullmatch(cell[name]), (name, cell)
    assert indices == sorted(indices)


OLDEST = """\
Index,LeftOp,RightOp,TensorIndex,CosineSimilarity,MaxAbsoluteError,AccumulatedRelativeError,RelativeEuclideanDistance,\
KullbackLeiblerDivergence,StandardDeviation
0,conv1,conv1,conv1:output:0,1.000000,0.000000,0.000000,0.000000,0.000000,"(1.000;0.500),(1.000;0.500)"
1,"bn1,relu1","bn,relu",relu1:input:0,0.999000,0.000000,0.000000,0.000000,0.000000,"(1.000;0.500),(1.000;0.500)"
1,"bn1,relu1","bn,relu",relu1:output:0,0.700000,3.000000,9.000000,0.500000,0.100000,"(1.000;0.500),(2.000;0.500)"
2,trans_Cast_1,*,trans_Cast_1:output:0,NaN,NaN,NaN,NaN,NaN,NaN
3,pool,pool,pool:input:0,nan,nan,nan,nan,nan,"(nan;nan),(2.000;0.500)"
"""

#: As msaccucmp 26.2.0 writes two NPU dumps: two columns DataType, two Address.
CURRENT = """\
Index,OpType,NPUDump,DataType,Address,GroundTruth,DataType,Address,TensorIndex,Shape,CosineSimilarity,MaxAbsoluteError,\
AccumulatedRelativeError,RelativeEuclideanDistance,KullbackLeiblerDivergence,StandardDeviation,MeanAbsoluteError,\
RootMeanSquareError,MaxRelativeError,MeanRelativeError,CompareFailReason
0,Variable,w,NaN,NaN,w,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,\
"[w] There is no dump file for my output operator ""w"". The type is Variable."
1,Conv2D,conv1,float16,17,conv1,float32,18,conv1:output:0,"[1,2,2,4]",1.0,0.000000,0.000000,0.000000,0.000000,\
"(0.000;0.000),(0.000;0.000)",0.000000,0.000000,0.000000,0.000000,
2,Relu,relu1,float16,19,relu1,float32,20,relu1:input:0,"[1,2,2,4]",0.990000,0.1,0.1,0.1,0.1,"(0;0),(0;0)",0.1,0.1,0.1,0.1,
2,Relu,relu1,float16,21,relu1,float32,22,relu1:output:0,"[1,2,2,4]",0.700000,3.0,9.0,0.5,0.1,"(0;0),(0;0)",1.0,1.0,3.0,1.0,
3,Mean,loss,float32,23,loss,float32,24,loss:output:0,[1],1.000000,9.0,9.0,9.0,0.0,"(0;0),(0;0)",9.0,9.0,9.0,9.0,\
This tensor is scalar.
"""


@pytest.mark.parametrize("newline", ["\r\n", "\n"])
@pytest.mark.parametrize("start", ["", "\ufeff"], ids=["plain", "byte order mark"])
def test_old_and_new_vendor_files_are_read(tmp_path: Path, newline: str, start: str) -> None:
    oldest, current = tmp_path / "result_20200101000000.csv", tmp_path / "result_20260101000000.csv"
    oldest.write_text(start + OLDEST, "utf-8", newline=newline)
    current.write_text(start + CURRENT, "utf-8", newline=newline)
    run = tool("vcs", "-f", oldest, "--fail", cwd=tmp_path, code=1)
    assert "4 of 5 tensors of 4 ops, 2 below 0.98 in 2 ops" in run.text
    assert "not compared tensors without a result: 1" in run.text
    assert "[1] relu1 () ─" not in run.out
    assert re.search(
        r"\[1\] relu1 .*Left: bn1, relu1 Right: bn, relu Input: \[0\] 0\.999000 Output: \[0\] 0\.700000", run.text
    )
    assert re.search(r"\[3\] pool .*Input: \[0\] nan Output: none", run.text)
    (result,) = tool("vcs", "-f", oldest, "--json", cwd=tmp_path).results
    finding = result["findings"][-1]
    assert (finding["kind"], finding["op_name"], finding["original_ops"]) == ("first_faulty_op", "relu1", "bn,relu")

    run = tool("vcs", "-f", current, "-l", "9", cwd=tmp_path)
    assert "4 of 4 tensors of 3 ops, 2 below 0.98 in 2 ops" in run.text
    assert re.search(r"\[2\] relu1 \(Relu\).*Input: \[0\] 0\.990000 Output: \[0\] 0\.700000", run.text)
    assert re.search(r"\[3\] loss \(Mean\).*Output: \[0\] 1\.000000", run.text)  # a scalar far from its benchmark
    rows = tool("vcs", "-f", current, "--json", cwd=tmp_path).results[0]["rows"]
    assert (rows[1]["npu_type"], rows[1]["benchmark_type"], rows[1]["shape"]) == ("float16", "float32", [1, 2, 2, 4])
    assert rows[0]["metrics"] is rows[0]["npu"] is rows[0]["npu_type"] is None
    assert rows[1]["metrics"]["both_zero"] is True
    assert rows[3]["metrics"] | {"cosine": 0.7, "max_error_index": None, "is_scalar": False} == rows[3]["metrics"]
    assert (rows[3]["npu"]["std"], rows[3]["golden"]["zero_count"]) == (0.0, None)  # of a side only mean and std
    assert rows[4]["metrics"]["is_scalar"] is True
    assert rows[0]["reason"] == '[w] There is no dump file for my output operator "w". The type is Variable.'
    # Of a folder the newest is taken.
    assert f"result file: {current.name}" in tool("vcs", "-f", ".", cwd=tmp_path).out


# --- what people see ------------------------------------------------------------------------------------------------


def picture() -> list[Node]:
    """A network of a few ops with something of everything.

    Cosines by hand: (3, 4) and (4, 3) give 24/25 = 0.96; (1, 1) and (1, 0) give 0.707107.
    """
    source = Node(name="IteratorV2", type="IteratorV2")
    data = Node(name="IteratorGetNext", type="GetNext", inputs=(source,), output=values(1, 2), golden=values(1, 2))
    weight = Node(name="dense/kernel", type="Variable")
    dense = Node(
        name="dense/MatMuldense/Relu", type="MatMulV2", inputs=(data,), output=values(1, 2, 3), golden=values(1, 2, 3),
        originals=("dense/MatMul", "dense/Relu"), passes=("MatMulReluFusionPass",),
    )  # fmt: skip
    cast = Node(name="trans_Cast_0", type="Cast", inputs=(dense,), output=values(1, 2, 3), originals=())
    wrong = Node(
        name="conv/Conv2Dconv/BiasAdd", type="Conv2D", inputs=(cast,), output=values(3, 4), golden=values(4, 3),
        originals=("conv/Conv2D", "conv/BiasAdd"), passes=("ConvBiasFusionPass", "TbeConvPass"),
    )  # fmt: skip
    heir = Node(name="pool", type="MaxPool", inputs=(wrong,), output=values(1, 1), golden=values(1, 0))
    broken = Node(
        name="softmax/exp", type="Exp", inputs=(data,), output=values(1, math.nan, math.inf), golden=values(1, 2, 3)
    )
    zero = Node(name="zeros", type="ZerosLike", inputs=(data,), output=values(0, 0), golden=values(0, 0))
    loss = Node(
        name="loss", type="Mean", inputs=(heir,), output=np.array(2, np.float32), golden=np.array(4, np.float32)
    )
    alone = Node(name="summary", type="Histogram", inputs=(loss,), output=values(1, 2))
    short = Node(name="short", type="Slice", inputs=(loss,), output=values(1, 2), golden=values(1, 2, 3))
    return [source, data, weight, dense, cast, wrong, heir, broken, zero, loss, alone, short]


@pytest.mark.parametrize("columns", [80, 120])
def test_what_people_see(tmp_path: Path, columns: int) -> None:
    tree = small_tree(tmp_path / "precision_data", picture())
    tree.dumps["zeros"].write_bytes(tree.dumps["zeros"].read_bytes()[:-1])
    compared = tool("ac", "-c", cwd=tmp_path, columns=columns)
    check_golden(f"ac_c_{columns}.txt", compared, tmp_path)
    shown = tool("vcs", "-l", "1", "-c", "0.9", cwd=tmp_path, columns=columns)
    check_golden(f"vcs_{columns}.txt", shown, tmp_path)
    # On a terminal of any width nothing is wider than that, but for paths to copy.
    lines = [line for line in compared.out.splitlines() if "precision_data/" not in line]
    assert max(map(len, lines)) <= columns
    words = set(compared.out.split())
    for path in (tree.leaf, tree.root / "tf" / "dump", tree.graph, only_result(tree.root)):
        assert str(path.relative_to(tmp_path)) in words
    assert f"{tree.dumps['zeros'].relative_to(tmp_path)}:" in words


def test_colours_on_a_terminal_only(tmp_path: Path) -> None:
    small_tree(tmp_path / "precision_data", picture())
    plain = tool("ac", "-c", cwd=tmp_path)
    assert "\x1b" not in plain.out + plain.err
    coloured = tool("vcs", cwd=tmp_path, env={"FORCE_COLOR": "1", "NO_COLOR": "", "TERM": "xterm-256color"})
    assert "\x1b[1;31m0.960000\x1b[0m" in coloured.out  # wrong: bold red
    assert "\x1b[32m1.000000\x1b[0m" in coloured.out  # right: green


def test_the_models_name_is_no_markup(several: SmallTree, tmp_path: Path) -> None:
    leaf = several.copy_leaf("1", "[red]graph[bold]", "1", "0")
    run = tool("vc", cwd=tmp_path)
    assert "device 1 [red]graph[bold] step 0 ─" in run.out
    assert str(leaf.relative_to(tmp_path)) in run.out.split()


def test_a_summary_of_several_results(several: SmallTree, tmp_path: Path) -> None:
    run = tool("ac", "-c", cwd=tmp_path)
    *agreeing, wrong, study = run.out.splitlines()[-5:]
    assert "of 2 ranks" in study
    assert "precision-tool ac --all" in study
    assert agreeing == [
        f"device {leaf.replace('_', ' ', 1)[:-2]} step 0: every compared tensor reaches a cosine similarity of 0.98"
        if leaf.endswith("_0")
        else f"device 1 {OTHER_MODEL} step 3: every compared tensor reaches a cosine similarity of 0.98"
        for leaf in LEAVES[:3]
    ]
    assert wrong.startswith(f"device 1 {OTHER_MODEL} step 10: last/Sub: Kernel error: the output does not match")
    names = [path.name for path in result_files(several.root)]
    assert re.findall(r"^(\S+\.csv): ", tool("vcs", cwd=tmp_path).out, re.MULTILINE) == names
    assert "summary" not in tool("vc", "-lt", several.leaf, cwd=tmp_path).out


# --- nothing to compare ---------------------------------------------------------------------------------------------


@pytest.fixture
def unmatched(several: SmallTree) -> SmallTree:
    """A second run that dumped other steps: no folder of the first has a counterpart, until one is added."""
    shutil.rmtree(several.root / "tf")
    for step in ("70", "71"):
        leaf = several.root / "npu" / "debug_1" / "dump" / STAMP / "0" / MODEL / "1" / step
        shutil.copytree(several.leaf, leaf)
    return several


def test_when_no_folder_can_be_compared_that_is_an_error(unmatched: SmallTree, tmp_path: Path) -> None:
    for word in (("vc",), ("ac", "-c"), ("vc", "--json")):
        run = tool(*word, cwd=tmp_path, code=2)
        assert run.out == ""
        first, hint = run.err.splitlines()
        assert re.match(r"error: none of the 4 dump folders could be compared: \S+: no dump of device 0, ", first)
        assert first.endswith("; and 1 more reasons")
        assert hint.startswith("hint: ")
    assert result_files(unmatched.root) == []
    assert not (unmatched.root / "temp").exists()
    assert "no comparison result yet" in tool("ac", cwd=tmp_path, code=2).err


def test_without_a_benchmark_ac_says_what_the_npu_alone_tells(tmp_path: Path) -> None:
    """The checks of one run need no other; what is missing for the comparison is the error."""
    shutil.rmtree(small_tree(tmp_path / "precision_data", faulty_chain()).root / "tf")
    run = tool("ac", "-c", cwd=tmp_path, code=2)
    assert "─ Overflow ─" in run.out
    assert "nothing overflowed" in run.text
    assert run.err.startswith("error: nothing to compare precision_data/npu/debug_0/dump with")
    document = tool("ac", "-c", "--json", cwd=tmp_path, code=2).json
    assert document["results"] == []
    assert [check["name"] for check in document["checks"]].count("overflow") == 1


def test_a_folder_without_rows_gets_a_note_and_no_file(unmatched: SmallTree, tmp_path: Path) -> None:
    other = unmatched.root / "npu" / "debug_1" / "dump" / STAMP / "0" / MODEL / "1"
    (other / "70").rename(other / "3")
    run = tool("ac", "-c", cwd=tmp_path)
    path = only_result(unmatched.root)
    assert path.name.startswith(f"1_{OTHER_MODEL}_3_")
    assert run.out.count("note       not compared: ") == 3
    assert run.out.count("Nothing compared") == 3
    assert run.out.count("result file: ") == 1
    results = tool("vc", "--json", "--fail", cwd=tmp_path, code=1).results
    assert [result["file"] is not None for result in results] == [False, False, True, False]
    assert [result["findings"][0]["kind"] for result in results].count("nothing_compared") == 3
    assert len(tool("ac", "--json", cwd=tmp_path).results) == 1  # the next `ac` reads what was compared


def test_where_nothing_was_compared_nothing_is_green(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "precision_data", chain())
    for path in tree.goldens.values():
        path.write_bytes(b"")
    colour = {"FORCE_COLOR": "1", "NO_COLOR": "", "TERM": "xterm-256color"}
    for word, code in (("vc", 2), ("vcs", 0)):
        run = tool(word, cwd=tmp_path, env=colour, code=code)
        assert "No op is below" not in run.out
        assert "\x1b[33mno tensor could be compared" in run.out
        assert ("error: no tensor could be compared" in run.err) is (code == 2)
    assert tool("vc", "--json", cwd=tmp_path, code=2).results
    run = tool("ac", "--fail", cwd=tmp_path, code=1)
    assert run.out.count("no tensor could be compared") == 1
    assert "─ Nothing compared ─" in run.out
    header_only = tmp_path / "result_1.csv"
    header_only.write_text(",".join(VENDOR_HEADER) + "\n")
    assert "no tensor could be compared" in tool("vcs", "-f", header_only, "--fail", cwd=tmp_path, code=1).out


# --- options, hints, large groups -----------------------------------------------------------------------------------


def test_options_of_a_comparison_imply_it(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "precision_data", chain())
    for options in (("-g", tree.graph), ("--workers", "1"), ("-lt", tree.leaf), ("-rt", tree.root / "tf")):
        before = len(result_files(tree.root))
        tool("ac", *options, cwd=tmp_path)
        assert len(result_files(tree.root)) == before + 1
    tool("ac", cwd=tmp_path)
    assert len(result_files(tree.root)) == 4


def test_hints_name_what_is_there(tmp_path: Path) -> None:
    small_tree(tmp_path / "precision_data", chain())
    shutil.rmtree(tmp_path / "precision_data" / "tf")
    errors = [tool("vc", cwd=tmp_path, code=2).err]
    shutil.rmtree(tmp_path / "precision_data" / "npu")
    errors.append(tool("vc", cwd=tmp_path, code=2).err)
    assert "op.output.timestamp.npy" in errors[0]
    assert "Collect" in errors[1]
    assert "### 1. Collect" in (Path(__file__).resolve().parents[2] / "README.md").read_text("utf-8")
    for text in errors:
        assert not re.search(r"tf_dump|action=|`ls`", text)


def test_every_passed_over_op_is_in_the_json(tmp_path: Path) -> None:
    """Facts may share a name."""
    nodes = chain()
    for number, y in enumerate((0.21, 0.22, 5)):  # against the first axis: errors that grow slowly, then a real one
        nodes.append(
            Node(name=f"op{number}", type="Add", inputs=(nodes[-1],), output=values(1, y), golden=values(1, 0))
        )
    nodes[5] = Node(name="op0", type="Add", output=values(1, 0.19), golden=values(1, 0))
    small_tree(tmp_path / "precision_data", nodes)
    (result,) = tool("ac", "-c", "--json", cwd=tmp_path).results
    for finding in result["findings"]:
        assert all(list(fact) == ["name", "value"] for fact in finding["facts"])
    assert {"inputs", "outputs"} <= {fact["name"] for fact in result["findings"][-1]["facts"]}


def test_a_group_of_hundreds_of_ops_is_not_named_in_every_row(tmp_path: Path) -> None:
    originals = tuple(f"block/part_{number}" for number in range(400))
    nodes = chain()
    nodes.append(
        Node(
            name="fused", type="Add", inputs=(nodes[4],), output=values(1, 2), golden=values(2, -1), originals=originals
        )
    )
    small_tree(tmp_path / "precision_data", nodes)
    run = tool("ac", "-c", "--json", cwd=tmp_path)
    lines = by_tensor(only_result(tmp_path))
    whole, line = lines["fused:input:0"], lines["fused:output:0"]
    assert whole["GroundTruth"] == whole["OriginalOps"] == ",".join(originals)
    for names in (line["GroundTruth"], line["OriginalOps"], run.results[0]["findings"][0]["original_ops"]):
        assert names.startswith("block/part_0,block/part_1,")
        assert names.endswith(",block/part_30,… (+369 more)")
    row = next(row for row in run.results[0]["rows"] if row["op"] == "fused")
    assert row["original_ops"] == list(originals)  # programs get all of them
    assert "block/part_31" not in tool("ac", "-c", cwd=tmp_path).out + tool("ac", cwd=tmp_path).out
    (read,) = tool("ac", "--json", cwd=tmp_path).results
    row = next(row for row in read["rows"] if row["op"] == "fused")
    assert (row["original_ops"], row["left_out"]["original_ops"]) == (list(originals), 0)


def test_what_changed_after_the_comparison_is_told(tmp_path: Path) -> None:
    made = small_tree(tmp_path / "precision_data", faulty_chain())
    tool("vc", cwd=tmp_path)
    assert tool("ac", cwd=tmp_path).err == ""
    later = time.time() + 60
    for place, shown in (
        (made.root / "tf" / "dump", "precision_data/tf/dump"),
        (made.dump_path, "precision_data/npu/debug_0/dump"),
        (made.leaf, "precision_data/npu/debug_0/dump"),
    ):
        stat = place.stat()
        os.utime(place, (later, later))
        assert tool("ac", cwd=tmp_path).err == f"note: {shown} is newer than this result: `ac -c` compares again\n"
        assert f"{shown} is newer than this result: `vc` compares again" in tool("vcs", "--json", cwd=tmp_path).err
        os.utime(place, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert tool("ac", cwd=tmp_path).err == ""


@pytest.mark.parametrize("length", [20, 60, 65, 71, 90, 200])
def test_names_in_titles_are_never_cut(tmp_path: Path, length: int) -> None:
    """Where a title is too long, the type, or both, stand within the box; a box that is too narrow has no sides."""
    source, data, *_ = chain()
    name = "".join(f"x{number}" for number in range(length))[:length]
    op_type = "TypeOfALongName"
    node = Node(name=name, type=op_type, inputs=(data,), output=values(1, 0), golden=values(0, 1))
    small_tree(tmp_path / "precision_data", [source, data, node])
    out = tool("vc", cwd=tmp_path, columns=80).out
    assert name in out
    shown = out[out.index("[2] ") :]
    assert "…" not in shown
    if length <= 65:
        panel = out[out.index("╭") :].splitlines()
        assert all(len(line) == 80 for line in panel if line[0] in "╭│╰")
    else:
        assert "╭─ [2]" not in out
        assert f"Left:    {name}\n" in shown
        assert shown.count(name) == 2  # on either side; a name too long for the title is not said for the title as well
    if length == 20:
        assert shown.startswith(f"[2] {name} ({op_type}) ─")
    elif length <= 65:
        assert shown.startswith(f"[2] {name} ─")
        assert f"│ Type:    {op_type} " in shown
    else:
        assert shown.startswith("[2] ─")
        assert f"Type:    {op_type}\n" in shown


def test_what_a_command_compared_is_not_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of the comparison is at hand: the file it was written to is for others."""
    small_tree(tmp_path / "precision_data", faulty_chain())
    read: list[str] = []

    def noted(path: str) -> Table:
        read.append(path)
        return read_result(path)

    monkeypatch.setattr("precision_tool.lib.diagnose.comparing.read_result", noted)
    assert run_word("ac", "-c", data=tmp_path / "precision_data", file=io.StringIO()) == 0
    assert read == []
    assert run_word("ac", data=tmp_path / "precision_data", file=io.StringIO()) == 0
    assert [Path(path).name.partition("_2")[0] for path in read] == ["result"]
