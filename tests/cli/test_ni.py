"""`ni` as a user runs it: what it shows of an op, what it draws, and what it says when it cannot."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import STAMP, graph_op, one_op_tree, text_graph
from command_line import Finished, check_golden, fingerprint, tool
from real_tree import CULPRIT, PASS, tensors_of, unpack
from small_tree import Node, SmallTree, small_tree, values
from tiny_network import layers

from precision_tool.lib.demo.graph_writer import graph_file_name

needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="the dot program is not installed")


def data_nodes() -> tuple[Node, Node, Node]:
    source = Node(name="IteratorV2", type="IteratorV2")
    data = Node(
        name="IteratorGetNext", type="GetNext", inputs=(source,), output=values(1, 2), golden=values(1, 2),
        originals=("IteratorGetNext",),
    )  # fmt: skip
    cast = Node(name="trans_Cast_0", type="Cast", inputs=(data,), output=values(1, 2), originals=())
    return source, data, cast


def fused_nodes() -> list[Node]:
    """A fused op computed wrong: (3, 4) and (4, 3) have the cosine 24/25 = 0.96."""
    source, data, cast = data_nodes()
    conv = Node(
        name="conv/Conv2Dconv/BiasAdd", type="Conv2D", inputs=(cast,), output=values(3, 4), golden=values(4, 3),
        originals=("conv/Conv2D", "conv/BiasAdd"), passes=("ConvBiasFusionPass",),
    )  # fmt: skip
    pool = Node(name="pool", type="MaxPool", inputs=(conv,), output=values(1, np.nan, np.inf, -2, 0))
    return [source, data, cast, conv, pool]


def plain_nodes() -> list[Node]:
    """The same without fusion, computed right."""
    source, data, cast = data_nodes()
    conv = Node(name="conv/Conv2D", type="Conv2D", inputs=(cast,), output=values(2, 2))
    bias = Node(name="conv/BiasAdd", type="BiasAdd", inputs=(conv,), output=values(4, 3), golden=values(4, 3))
    return [source, data, cast, conv, bias]


@pytest.fixture
def tree(tmp_path: Path) -> SmallTree:
    """Two runs: debug_0 with fusion, debug_1 without."""
    small_tree(tmp_path / "precision_data", plain_nodes(), run="debug_1")
    return small_tree(tmp_path / "precision_data", fused_nodes())


def shown_ops(run: Finished) -> list[dict[str, Any]]:
    document: dict[str, list[dict[str, Any]]] = run.json
    return document["ops"]


def pictures(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*"))


# --- what is shown ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [80, 120])
def test_what_people_see(tree: SmallTree, tmp_path: Path, columns: int) -> None:
    run = tool("ni", "conv/BiasAdd", cwd=tmp_path, columns=columns)
    check_golden(f"ni_{columns}.txt", run, tmp_path)
    words = set(run.out.split())
    for path in (tree.graph, tree.dumps["conv/Conv2Dconv/BiasAdd"], tree.goldens["conv/Conv2Dconv/BiasAdd"]):
        assert str(path.relative_to(tmp_path)) in words
    paths = ("precision_data/",)
    assert max(len(line) for line in run.out.splitlines() if not any(path in line for path in paths)) <= columns


def test_a_part_of_a_fused_op_shows_the_fused_op_and_says_so(tree: SmallTree, tmp_path: Path) -> None:
    run = tool("ni", "conv_BiasAdd", cwd=tmp_path)
    note = "debug_0: conv/BiasAdd is now part of conv/Conv2Dconv/BiasAdd by ConvBiasFusionPass"
    assert run.out.splitlines()[0] == note
    assert "is now part of" not in tool("ni", "conv/Conv2Dconv", cwd=tmp_path).out
    assert [op["asked"] for op in shown_ops(tool("ni", "conv_BiasAdd", "--json", cwd=tmp_path))] == [
        "conv/BiasAdd", None,
    ]  # fmt: skip


def test_both_runs_stand_beside_each_other_where_there_is_room(tree: SmallTree, tmp_path: Path) -> None:
    wide = tool("ni", "IteratorGetNext", cwd=tmp_path, columns=120).out.splitlines()
    assert any("debug_0" in line and "debug_1" in line for line in wide)
    narrow = tool("ni", "IteratorGetNext", cwd=tmp_path, columns=80).out.splitlines()
    assert not any("debug_0" in line and "debug_1" in line for line in narrow)
    assert sum(line.startswith("name ") for line in narrow) == 2


@pytest.mark.parametrize("form", [["conv_Conv2Dconv_BiasAdd"], ["-n", "conv/Conv2Dconv/BiasAdd"], ["2Dconv/bias"]])
def test_figures_are_those_of_the_files(tree: SmallTree, tmp_path: Path, form: list[str]) -> None:
    (op,) = shown_ops(tool("ni", *form, "--json", cwd=tmp_path))
    assert (op["name"], op["type"], op["debug"]) == ("conv/Conv2Dconv/BiasAdd", "Conv2D", 0)
    assert op["pass"] == ["ConvBiasFusionPass"]
    assert op["original_ops"] == ["conv/Conv2D", "conv/BiasAdd"]
    assert (tmp_path / op["graph_file"]).samefile(tree.graph)
    fed, made = op["tensors"]
    assert (fed["slot"], made["slot"]) == ("input:0", "output:0")
    assert made["cosine"] == pytest.approx(0.96, abs=1e-12)
    assert (fed["agrees"], made["agrees"]) == (True, False)
    for side, array in (("npu", np.array([3.0, 4.0])), ("benchmark", np.array([4.0, 3.0]))):
        summary = made[side]["summary"]
        assert made[side]["shape"] == [2]
        assert (summary["maximum"], summary["minimum"]) == (array.max(), array.min())
        assert summary["mean"] == pytest.approx(array.mean())
    assert (tmp_path / made["npu"]["path"]).samefile(tree.dumps[op["name"]])
    assert (tmp_path / made["benchmark"]["path"]).samefile(tree.goldens[op["name"]])
    (slot,) = op["inputs"]
    assert (slot["producer"], slot["index"]) == ("trans_Cast_0", 0)
    assert slot["sources"] == [{"op": "IteratorGetNext", "index": 0, "through": ["trans_Cast_0"]}]
    assert op["outputs"][0]["readers"] == [{"op": "pool", "slot": 0, "through": []}]


def test_a_tensor_without_benchmark_has_figures_and_a_reason(tree: SmallTree, tmp_path: Path) -> None:
    """Of (1, NaN, Inf, -2, 0) the finite values are 1, -2 and 0."""
    run = tool("ni", "pool", cwd=tmp_path)
    assert "output:0 the benchmark has no tensor pool:0" in run.text
    assert "NPU: 1 NaN and 1 Inf among 5 values" in run.text
    (op,) = shown_ops(tool("ni", "pool", "--json", cwd=tmp_path))
    output = op["tensors"][1]
    assert output["status"] == "no_benchmark"
    assert (output["cosine"], output["benchmark"]) == (None, None)
    summary = output["npu"]["summary"]
    assert (summary["maximum"], summary["minimum"], summary["mean"]) == (1, -2, pytest.approx(-1 / 3))


def test_an_op_that_was_not_dumped_and_a_graph_without_a_dump(tree: SmallTree, tmp_path: Path) -> None:
    run = tool("ni", "IteratorV2", cwd=tmp_path)
    leaf = tree.leaf.relative_to(tmp_path)
    assert f"not dumped {leaf} has no file of IteratorV2 (IteratorV2)" in run.text
    shutil.rmtree(tmp_path / "precision_data" / "npu" / "debug_0" / "dump")
    run = tool("ni", "conv/Conv2Dconv/BiasAdd", cwd=tmp_path)
    assert "not dumped no dump belongs to this graph" in run.text
    assert "没有与该图对应的 dump" in tool("--lang", "zh", "ni", "conv/Conv2Dconv/BiasAdd", cwd=tmp_path).text


def test_a_damaged_dump_is_a_reason(tree: SmallTree, tmp_path: Path) -> None:
    path = tree.dumps["conv/Conv2Dconv/BiasAdd"]
    path.write_bytes(path.read_bytes()[:-6])
    run = tool("ni", "conv/Conv2Dconv/BiasAdd", cwd=tmp_path)
    assert f"{path.relative_to(tmp_path)}" in run.text
    (op,) = shown_ops(tool("ni", "conv/Conv2Dconv/BiasAdd", "--json", cwd=tmp_path))
    assert any(row["status"] == "unreadable" and row["note"] for row in op["tensors"])


def test_different_sizes_have_both_figures_and_a_reason(tmp_path: Path) -> None:
    one_op_tree(tmp_path / "precision_data", output=values(1, 2), golden=values(1, 2, 6))
    (op,) = shown_ops(tool("ni", "block/add", "--json", cwd=tmp_path))
    (row,) = op["tensors"]
    assert row["status"] == "size_mismatch"
    assert row["note"]
    assert (row["npu"]["summary"]["mean"], row["benchmark"]["summary"]["mean"]) == (1.5, 3)


def test_padding_is_no_value(tmp_path: Path) -> None:
    """Three channels are stored as sixteen; the thirteen zeros are neither minimum nor in the mean."""
    array = np.arange(1, 25, dtype=np.float32).reshape(1, 2, 4, 3)
    one_op_tree(tmp_path / "precision_data", output=array, layout="NC1HWC0", origin_layout="NHWC")
    (op,) = shown_ops(tool("ni", "block/add", "--json", cwd=tmp_path))
    (row,) = op["tensors"]
    assert (row["status"], row["npu"]["shape"]) == ("no_benchmark", [1, 1, 2, 4, 16])
    summary = row["npu"]["summary"]
    assert (summary["count"], summary["minimum"], summary["maximum"], summary["mean"]) == (24, 1, 24, 12.5)


def test_other_devices_and_steps_are_mentioned(tree: SmallTree, tmp_path: Path) -> None:
    model, number, _ = tree.leaf.parts[-3:]
    tree.copy_leaf("0", model, number, "7", STAMP)
    run = tool("ni", "pool", cwd=tmp_path)
    assert "not shown: 1 more dump folder of this graph (devices, steps)" in run.text


def graph_only(tmp_path: Path, *ops: Any) -> Path:
    path = tmp_path / graph_file_name(5, 1)
    path.write_text(text_graph(ops), encoding="ascii")
    return path


def test_all_attributes_are_decoded_long_ones_cut_and_kernels_never_shown(tmp_path: Path) -> None:
    op = graph_op("op", "Add", attrs={"long": "x" * 5000, "whole": 7, "words": "a[bold]\x1b[31m"})
    path = graph_only(tmp_path, op)
    brief = tool("ni", "op", "-g", path, cwd=tmp_path)
    assert "whole" not in brief.out
    run = tool("ni", "op", "-a", "-g", path, cwd=tmp_path)
    lines = dict(line.split(None, 1) for line in run.out.splitlines() if line.count(" ") and not line.startswith(" "))
    assert lines["whole"].strip() == "7"
    assert lines["words"].strip() == r"a[bold]\x1b[31m"
    assert re.fullmatch(r"\d+ bytes", lines["_tbe_kernel_buffer"].strip())
    assert "ELF" not in run.out.replace("RT_DEV_BINARY_MAGIC_ELF", "")
    assert "… (5000 characters)" in run.text
    assert run.text.count("x") < 600
    (shown,) = shown_ops(tool("ni", "op", "-a", "--json", "-g", path, cwd=tmp_path))
    assert shown["attributes"]["_tbe_kernel_buffer"] == lines["_tbe_kernel_buffer"].strip()


def test_long_lists_of_readers_are_cut_and_whole_with_a(tmp_path: Path) -> None:
    path = graph_only(tmp_path, graph_op("op"), *(graph_op(f"reader{i}", inputs=["op:0"]) for i in range(20)))
    run = tool("ni", "-n", "op", "-g", path, cwd=tmp_path)
    assert "and 12 more (-a lists them)" in run.out
    assert "reader19" not in run.out
    run = tool("ni", "-n", "op", "-a", "-g", path, cwd=tmp_path)
    assert all(f"to   reader{i} input 0 (Add)" in run.out for i in range(20))


def test_through_the_borders_of_a_subgraph(tmp_path: Path) -> None:
    call = replace(graph_op("part", "PartitionedCall", ["maker:0"]), subgraph_names=("sub",), control_inputs=("first",))
    root = [graph_op("first"), graph_op("maker"), call, graph_op("reader", inputs=["part:0"])]
    body = [
        replace(graph_op("enter", "Data"), parent_index=0), graph_op("inner", inputs=["enter:0"]),
        graph_op("sub_Node_Output", "NetOutput", ["inner:0"]),
    ]  # fmt: skip
    path = tmp_path / graph_file_name(5, 1)
    path.write_text(text_graph(root, "root") + text_graph(body, "sub"), encoding="ascii")
    run = tool("ni", "inner", "-g", path, "-s", "1", "-o", "drawn", cwd=tmp_path)
    lines = [" ".join(line.split()) for line in run.out.splitlines()]
    assert "called by part (PartitionedCall) in root" in lines
    assert "from maker:0 (Add) through enter" in lines
    assert "to reader input 0 (Add) through sub_Node_Output" in lines
    assert "5 ops within 1 step of inner" in run.text
    run = tool("ni", "part", "-g", path, cwd=tmp_path)
    lines = [" ".join(line.split()) for line in run.out.splitlines()]
    assert "subgraphs sub" in lines
    assert "runs after first" in lines
    assert "to reader input 0 (Add)" in lines
    run = tool("ni", "first", "-g", path, cwd=tmp_path)
    assert "runs before part" in [" ".join(line.split()) for line in run.out.splitlines()]


def test_names_are_text_and_nothing_else(tmp_path: Path) -> None:
    name = "a[bold]b\x1b[31m\nc" + "/long" * 60
    op = replace(graph_op(name, "[red]Type", ["maker:0"]), pass_names=("[/]",), control_inputs=("x\x07",))
    path = graph_only(tmp_path, graph_op("maker"), op)
    for columns in (80, 200):
        run = tool("ni", "a[bold]b", "-g", path, cwd=tmp_path, columns=columns)
        assert not set(run.out + run.err) & {"\x1b", "\x07"}
        assert "[red]Type" in run.out
        folded = "".join(line[12:].strip() for line in run.out.splitlines())
        assert r"a[bold]b\x1b[31m\nc" + "/long" * 60 in folded


# --- words that do not fit --------------------------------------------------------------------------------------------


def test_an_unknown_name_lists_the_closest(tree: SmallTree, tmp_path: Path) -> None:
    run = tool("ni", "conv/BiasAd", "-g", tree.graph, cwd=tmp_path)
    assert run.code == 0  # a part of one op's name
    run = tool("ni", "convv/BiasAdd", cwd=tmp_path, code=2)
    assert "no op 'convv/BiasAdd'" in run.err
    assert "conv/BiasAdd" in run.err.partition("closest: ")[2]


def test_a_part_that_fits_many(tree: SmallTree, tmp_path: Path) -> None:
    run = tool("ni", "conv", cwd=tmp_path, code=2)
    assert "fits 3 ops: conv/Conv2Dconv/BiasAdd, conv/Conv2D, conv/BiasAdd" in run.text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "which op?"),
        (["a", "-n", "b"], "which op?"),
        (["pool", "-o", "x"], "-o says where a drawing goes"),
        (["pool", "-s", "0"], "'0' is no whole number of at least 1"),
        (["pool", "-s", "two"], "'two' is no whole number of at least 1"),
        (["pool", "-s", "101"], "'101' is more than 100 steps"),
        (["pool", "-g", "gone.txt"], "gone.txt: no such graph"),
    ],
)
def test_words_that_do_not_fit(tree: SmallTree, tmp_path: Path, words: list[str], message: str) -> None:
    run = tool("ni", *words, cwd=tmp_path, code=2)
    assert message in run.err
    assert "hint:" in run.err


# --- drawings ---------------------------------------------------------------------------------------------------------


@needs_dot
def test_one_picture_of_every_graph_that_has_the_op(tree: SmallTree, tmp_path: Path) -> None:
    before = fingerprint(tmp_path / "precision_data" / "npu")
    run = tool("ni", "conv/BiasAdd", "-s", "1", cwd=tmp_path)
    folder = tmp_path / "precision_data" / "temp" / "op_graph"
    model = tree.leaf.parts[-3]
    names = [
        f"conv_BiasAdd.debug_1.{model}.depth1.gv", f"conv_BiasAdd.debug_1.{model}.depth1.svg",
        f"conv_Conv2Dconv_BiasAdd.debug_0.{model}.depth1.gv", f"conv_Conv2Dconv_BiasAdd.debug_0.{model}.depth1.svg",
    ]  # fmt: skip
    assert pictures(folder) == names
    for name in names:
        assert str((folder / name).relative_to(tmp_path)) in run.out.split()
    assert "3 ops within 1 step of conv/Conv2Dconv/BiasAdd, debug_0" in run.text
    assert fingerprint(tmp_path / "precision_data" / "npu") == before


@needs_dot
def test_colours_are_those_of_the_run_that_was_compared(tree: SmallTree, tmp_path: Path) -> None:
    tool("vc", "-lt", tree.dump_path, "-rt", tree.root / "tf" / "dump", cwd=tmp_path)
    tool("ni", "conv/BiasAdd", "-s", "1", "-o", "drawn", cwd=tmp_path)
    texts = {name: (tmp_path / "drawn" / name).read_text("utf-8") for name in pictures(tmp_path / "drawn")}
    fused = next(text for name, text in texts.items() if "debug_0" in name and name.endswith(".gv"))
    plain = next(text for name, text in texts.items() if "debug_1" in name and name.endswith(".gv"))
    assert "cosine 0.960000" in fused
    assert "cosine 1.000000" in fused  # the cast
    assert "cosine 1.000000" not in plain
    assert "no comparison result for these ops" in plain


def test_without_dot_the_source_is_written_and_the_way_on_told(tree: SmallTree, tmp_path: Path) -> None:
    nothing = tmp_path / "empty"
    nothing.mkdir()
    run = tool("ni", "pool", "-s", "2", "-o", "new folder", cwd=tmp_path, env={"PATH": str(nothing)})
    (name,) = pictures(tmp_path / "new folder")
    assert name.endswith(".gv")
    assert f"new folder/{name}" in run.out
    assert "apt install graphviz" in run.text
    assert f"dot -Tsvg 'new folder/{name}'" in run.text


def test_where_it_cannot_be_written(tree: SmallTree, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run = tool("ni", "pool", "-s", "1", "-o", "file", cwd=tmp_path, code=2)
    assert "cannot be written" in run.err


@needs_dot
def test_pictures_do_not_go_among_the_dumps(tree: SmallTree, tmp_path: Path) -> None:
    before = fingerprint(tmp_path / "precision_data")
    for folder in (tree.leaf, tree.leaf / "new", tree.root / "tf" / "dump"):
        assert "only read" in tool("ni", "pool", "-s", "1", "-o", folder, cwd=tmp_path, code=2).err
    assert fingerprint(tmp_path / "precision_data") == before


def test_json_names_the_pictures(tree: SmallTree, tmp_path: Path) -> None:
    run = tool("ni", "pool", "-s", "1", "--json", cwd=tmp_path)
    files = run.json["files"]
    assert sorted(os.path.splitext(path)[1] for path in files) == [".gv", ".svg"]
    assert all((tmp_path / path).is_file() for path in files)


def test_of_many_neighbours_the_nearest_are_drawn(tmp_path: Path) -> None:
    path = graph_only(tmp_path, graph_op("op"), *(graph_op(f"reader{i}", inputs=["op:0"]) for i in range(600)))
    run = tool("ni", "-n", "op", "-g", path, "-s", "1", cwd=tmp_path, env={"PATH": str(tmp_path)})
    assert "500 ops within 1 step" in run.text
    assert "101 ops farther away are left out" in run.text


@needs_dot
def test_the_culprit_of_a_real_network(real_data: Path, tmp_path: Path) -> None:
    """The op that computes wrong has its true cosine, its inputs agree."""
    data = ("--data", real_data, "--work", "w")
    tool(*data, "vc", cwd=tmp_path)
    run = tool(*data, "ni", "conv2/Relu", "-s", "1", cwd=tmp_path)
    assert f"conv2/Relu is now part of {CULPRIT} by {PASS}" in run.text
    source = next(path for path in (tmp_path / "w" / "op_graph").glob("*.gv") if "debug_0" in path.name)
    lines = [line for line in source.read_text("utf-8").splitlines() if " -> " not in line]
    cosines = {
        name: [float(line.partition("<b>cosine ")[2][:8]) for line in lines if name in line and "cosine" in line]
        for name in (">Relu<", ">trans_")
    }
    (culprit,) = cosines[">Relu<"]
    unpack(tmp_path / "archive")
    golden = tensors_of(tmp_path / "archive" / "benchmark")["conv2_Relu:0"].astype(np.float64).ravel()
    fed = np.load(tmp_path / "archive" / "device_fed.npy").astype(np.float64).ravel()
    true = fed @ golden / np.linalg.norm(fed) / np.linalg.norm(golden)
    assert culprit == pytest.approx(true, abs=1e-6)
    assert cosines[">trans_"] == [1, 1]  # the filter's TransData and the bias's Cast


# A culprit that nothing computes, a variable: `ni`, `ls --wrong` and `repro` show it beside the benchmark.

NAME = "two/kernel"


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that was compared and judged, of which the benchmark has another variable."""
    cwd = tmp_path_factory.mktemp("given")
    part = next(part for part in layers().parts if part.name == NAME)
    assert part.npu is not None
    golden = np.ascontiguousarray(part.npu[::-1]).astype(np.float32)
    layers().with_part(NAME, golden=golden).write(cwd / "precision_data")
    tool("ac", "-c", cwd=cwd)
    return cwd


def variable() -> np.ndarray:
    part = next(part for part in layers().parts if part.name == NAME)
    assert part.npu is not None
    return np.asarray(part.npu, np.float64)


def test_ni_shows_both_sides(judged: Path) -> None:
    (found,) = tool("ni", NAME, "--json", cwd=judged).json["ops"]
    values, other = variable(), variable()[::-1]
    apart = np.linalg.norm(values - other) / np.linalg.norm(other)
    assert found["source"]["distance"] == pytest.approx(apart, rel=1e-5)
    assert found["source"]["different"] == np.count_nonzero(
        np.abs(values - other) > 2.0**-10 * np.abs(other) + 2.0**-24
    )
    assert found["verdict"] is None
    for one in found["elements"]:
        place = tuple(one["place"])
        assert one["npu"] == pytest.approx(values[place], rel=1e-6)
        assert one["benchmark"] == pytest.approx(other[place], rel=1e-6)
        assert one["recomputed"] is None
    worst = [one for one in found["elements"] if one["is_worst"]]
    assert abs(worst[0]["npu"] - worst[0]["benchmark"]) == pytest.approx(np.abs(values - other).max(), rel=1e-6)
    shown = tool("ni", NAME, cwd=judged).text
    assert "no op of the graph computes it; it differs from the benchmark" in shown
    assert "recomputed" not in shown


def test_ni_of_what_agrees(judged: Path) -> None:
    shown = tool("ni", "one/kernel", cwd=judged).text
    assert "no op of the graph computes it; it matches the benchmark" in shown
    assert "worst" not in shown


def test_ls_wrong_says_whom_the_verdict_blames(judged: Path) -> None:
    run = tool("ls", "--wrong", cwd=judged)
    assert f"the verdict blames {NAME} (weights), which does not compute wrong by itself" in run.err


def test_the_next_step_looks_at_it(judged: Path) -> None:
    assert f"\n        precision-tool ni {NAME}\n" in tool("ac", cwd=judged).out


def test_a_reproduction_tells_of_the_files_it_has(judged: Path) -> None:
    tool("repro", NAME, "out", cwd=judged)
    told = (judged / "out" / "README.md").read_text("utf-8")
    files = {path.name for path in (judged / "out").iterdir()}
    assert files == {"README.md", "check.py", "op.json", "output_0.npu.npy", "output_0.benchmark.npy"}
    assert "output_*.benchmark.npy" in told
    for word in ("input_", "float64", "rounding", "0 times", "limits"):
        assert word not in told
    script = [sys.executable, "-I", "-W", "error", str(judged / "out" / "check.py")]
    run = subprocess.run(script, cwd="/", capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (2, "")
    values = variable()
    differ = np.count_nonzero(values != values[::-1])
    assert f"{differ} of {values.size} elements differ from the other side's, relative distance" in run.stdout
