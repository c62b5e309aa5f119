"""`ls` and `graphs` as a user types them: what they print, and how they fail."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import graph_op, text_graph, write_dump
from command_line import Finished, check_golden, fingerprint, tool
from small_tree import Node, SmallTree, chain, small_tree, values

from precision_tool.lib.demo.graph_writer import graph_file_name

OTHER_GRAPH = graph_file_name(9, 2)


@pytest.fixture
def tree(tmp_path: Path) -> SmallTree:
    return small_tree(tmp_path / "precision_data", chain())


def ls(tree: SmallTree, *arguments: str, code: int = 0, columns: int = 200) -> Finished:
    return tool("ls", *arguments, cwd=tree.root.parent, code=code, columns=columns)


def graphs(tree: SmallTree, *arguments: str, code: int = 0, columns: int = 200) -> Finished:
    return tool("graphs", *arguments, cwd=tree.root.parent, code=code, columns=columns)


def as_json(run: Finished) -> Any:
    assert run.err == ""
    return run.json


def picture(root: Path) -> SmallTree:
    """A fused op, one that is computed wrong, one that the compiler put in; a second run; graphs of other kinds."""
    source, data, first, second, third = chain(victim=values(*range(1024, 0, -1)))
    cast = Node(name="trans_Cast_0", type="Cast", inputs=(data,), output=values(1, 2, 3), originals=())
    fused = Node(
        name="conv/Conv2Dconv/BiasAddconv/Relu_of_a_network_with_long_names", type="Conv2D", inputs=(cast,),
        output=values(4, 2), golden=values(4, 2), originals=("conv/Conv2D", "conv/BiasAdd"),
        passes=("ConvBiasFusionPass", "TbeConvPass"),
    )  # fmt: skip
    second = replace(second, golden=np.arange(1, 1025, dtype=np.float32))
    small_tree(root, [source, data, first], run="debug_1")
    tree = small_tree(root, [source, data, cast, fused, first, second, third])
    tree.graph.with_name(OTHER_GRAPH).write_text(text_graph([graph_op("a")], name="ge_default_evaluation"))
    tree.graph.with_name(graph_file_name(31, 3)).write_text("graph {\n")
    shutil.copy(tree.graph, tree.graph.with_name("ge_proto_00000001_graph_1_PreRunBegin.txt"))
    return tree


@pytest.mark.parametrize("columns", [80, 120])
def test_what_people_see(tmp_path: Path, columns: int) -> None:
    picture(tmp_path / "precision_data")
    tool("vc", "--json", cwd=tmp_path)
    for name, words in (
        ("ls", ["ls"]),
        ("ls_dump", ["ls", "dump", "-n", "*_*", "-l", "2"]),
        ("graphs", ["graphs"]),
        ("graphs_find", ["graphs", "--find", "conv"]),
    ):
        run = tool(*words, cwd=tmp_path, columns=columns)
        check_golden(f"{name}_{columns}.txt", run, tmp_path)
        lines = [line for line in run.out.splitlines() if "precision_data/" not in line and "long_names" not in line]
        assert max(map(len, lines)) <= columns


# --- ls ---------------------------------------------------------------------------------------------------------------


def test_ls_lists_the_ops_in_execution_order(tree: SmallTree) -> None:
    run = ls(tree)
    assert [line.split()[:5] for line in run.out.splitlines() if re.match(r" *\d+  ", line)] == [
        ["0", "IteratorV2", "-", "-", "IteratorV2"],
        ["1", "GetNext", "-", "yes", "IteratorGetNext"],
        ["2", "Add", "-", "yes", "first/Add"],
        ["3", "Mul", "-", "yes", "middle/Mul"],
        ["4", "Sub", "-", "yes", "last/Sub"],
    ]
    assert run.out.splitlines()[-1] == "5 of 5 ops"
    assert str(tree.graph.relative_to(tree.root.parent)) in run.out
    assert run.err == ""


def test_ls_shows_the_tensors_the_cosine_and_whether_it_was_dumped(tree: SmallTree) -> None:
    before = ls(tree, "middle").out
    assert "float32 ND [1024]" in before
    assert re.search(r" - +yes +middle/Mul", before)
    tool("vc", cwd=tree.root.parent)
    assert re.search(r" 1\.000000 +yes +middle/Mul", ls(tree, "middle").out)


@pytest.mark.parametrize(
    "arguments", [("mid",), ("-n", "DLE_mul"), ("-n", "*/mul"), ("-t", "Mul"), ("-n", "m", "-t", "mul")]
)
def test_ls_filters(tree: SmallTree, arguments: tuple[str, ...]) -> None:
    (graph,) = as_json(ls(tree, *arguments, "--json"))["graphs"]
    assert [op["name"] for op in graph["ops"]] == ["middle/Mul"]
    assert (graph["total"], graph["matching"]) == (5, 1)


def test_two_dashes_are_a_value_where_one_is_expected(tree: SmallTree) -> None:
    assert "'--'" in ls(tree, "--name=--", code=2).err


def test_ls_json_has_the_facts(tree: SmallTree) -> None:
    (graph,) = as_json(ls(tree, "mid", "--json"))["graphs"]
    assert (graph["run"], graph["graph"]) == (0, str(tree.graph))
    (op,) = graph["ops"]
    assert {key: op[key] for key in ("index", "id", "type", "dumped", "cosine", "passes", "outputs")} == {
        "index": 3, "id": 3, "type": "Mul", "dumped": True, "cosine": None, "passes": [],
        "outputs": [{"dtype": "float32", "layout": "ND", "shape": [1024]}],
    }  # fmt: skip


def test_ls_below_a_cosine(tree: SmallTree) -> None:
    assert "no comparison result yet" in ls(tree, "--below", "0.98", code=2).err
    write_dump(tree.dumps["middle/Mul"], "middle/Mul", [values(5, 6, 7)], [values(*range(1024, 0, -1))])
    tool("vc", cwd=tree.root.parent)
    run = ls(tree, "--below", "0.98")
    assert "1 of 5 ops" in run.out
    assert "middle/Mul" in run.out
    assert ls(tree, "--below", "-1").out.splitlines()[-1] == "0 of 5 ops"
    small_tree(tree.root, chain()[:3], run="debug_1")
    tool("vc", "-lt", tree.root / "npu" / "debug_1", cwd=tree.root.parent)
    run = ls(tree, "--below", "0.98")
    assert "debug_0: not compared: the newest result is of another run" in run.err
    assert "not compared: the newest result is of another run\n" in run.out
    shutil.rmtree(tree.root / "npu" / "debug_1")
    nan = values(*[float("nan")] * 1024)
    write_dump(tree.dumps["middle/Mul"], "middle/Mul", [values(5, 6, 7)], [nan])
    tool("vc", cwd=tree.root.parent)
    (graph,) = as_json(ls(tree, "--below", "-1", "--json"))["graphs"]
    assert [(op["name"], op["cosine"]) for op in graph["ops"]] == [("middle/Mul", "nan")]


def test_ls_shows_so_many_and_says_so(tree: SmallTree) -> None:
    ops = [graph_op("first/Add"), *(graph_op(f"op{number}") for number in range(70))]
    tree.graph.write_text(text_graph(ops))
    in_a_terminal = tool("ls", cwd=tree.root.parent, env={"FORCE_COLOR": "1", "NO_COLOR": "1", "TERM": "xterm"})
    assert "; the first 50 are shown, -l N shows more, -l 0 all" in in_a_terminal.out
    assert "op50" not in in_a_terminal.out
    assert ls(tree).out.splitlines()[-1] == "71 of 71 ops"  # for grep
    assert "op69" in ls(tree).out
    assert "the first 3 are shown" in ls(tree, "-l", "3").out
    assert "71 of 71 ops; the first is shown" in ls(tree, "-l", "1").out
    assert ls(tree, "-l", "0").out.splitlines()[-1] == "71 of 71 ops"
    assert len(as_json(ls(tree, "--json"))["graphs"][0]["ops"]) == 71


def test_ls_of_two_runs_is_a_table_each_and_g_chooses(tree: SmallTree) -> None:
    other = small_tree(tree.root, chain()[:3], run="debug_1")
    run = ls(tree, "first")
    assert [line for line in run.out.splitlines() if line.endswith(" ops")] == ["1 of 5 ops", "1 of 3 ops"]
    assert re.search(r"(?m)^debug_0 ", run.out)
    assert re.search(r"(?m)^debug_1 ", run.out)
    (graph,) = as_json(ls(tree, "-g", str(other.graph), "--json"))["graphs"]
    assert (graph["run"], graph["graph"], graph["total"]) == (1, str(other.graph), 3)


@pytest.mark.parametrize("columns", [48, 80, 120, 200])
def test_ls_never_cuts_a_name(tree: SmallTree, columns: int) -> None:
    long = "/".join(f"tower{number}" for number in range(30))
    op = graph_op(long, "Conv2D", pass_names=["AVeryLongNameOfAFusionPassThatDoesNotFitIntoAColumn"])
    tree.graph.write_text(text_graph([op, graph_op("first/Add")]))
    run = ls(tree, "tower", columns=columns)
    assert "…" not in run.out
    assert long in run.out.split()
    assert "AVeryLongNameOfAFusionPassThatDoesNotFitIntoAColumn" in run.out.split()
    # The terminal wraps the name, and nothing else.
    rows = [line for line in run.out.splitlines() if "precision_data" not in line]
    assert max((len(line.replace(long, "").rstrip()) for line in rows if "AVery" not in line), default=0) <= columns


@pytest.mark.parametrize("columns", [40, 100, 160])
def test_no_command_breaks_a_name(tmp_path: Path, columns: int) -> None:
    tower = "/".join(f"tower{number}" for number in range(6))
    originals = (f"{tower}/Conv2D", f"{tower}/BiasAdd", f"{tower}/Relu")
    nodes = chain()
    fused = Node(
        name="".join(originals), type="Conv2D", inputs=(nodes[1],), output=values(4, 2), golden=values(-4, 2),
        originals=originals, passes=("AVeryLongNameOfAFusionPassThatDoesNotFitIntoAColumn",),
    )  # fmt: skip
    small_tree(tmp_path / "precision_data", [*nodes, fused])
    number = len(nodes)
    for words in (
        ("ls",), ("ls", "dump"), ("ls", f"[{number}]"), ("ni", f"[{number}]"), ("ni", f"[{number}]", "-a"),
        ("pt", f"[{number}]"), ("cp", f"[{number}]"), ("graphs", "--find", f"[{number}]"), ("fusion",),
        ("ac", "-c"), ("vcs",), ("vc", "-op", f"[{number}]"), ("fusion", "blame", "--benchmark"),
    ):  # fmt: skip
        run = tool(*words, cwd=tmp_path, columns=columns)
        shown = run.out.replace(fused.name, "").replace(fused.name.replace("/", "_"), "")
        for original in originals:
            shown = shown.replace(original, "").replace(original.replace("/", "_"), "")
        assert "tower" not in shown, (words, shown)
        if words != ("fusion",):
            assert fused.name in run.out or fused.name.replace("/", "_") in run.out, words
        passes = run.out.replace("AVeryLongNameOfAFusionPassThatDoesNotFitIntoAColumn", "")
        assert "AVery" not in passes
        assert "IntoAColumn" not in passes


def test_the_number_of_an_op_is_a_name(tree: SmallTree) -> None:
    (graph,) = as_json(ls(tree, "[3]", "--json"))["graphs"]
    assert [op["name"] for op in graph["ops"]] == ["middle/Mul"]
    (dump,) = as_json(ls(tree, "dump", "[3]", "--json"))["dumps"]
    assert [file["op"] for file in dump["files"]] == ["middle_Mul"]
    cwd = tree.root.parent
    assert re.search(r"name +middle/Mul\n", tool("ni", "[3]", cwd=cwd).out)
    assert "input:0 of debug_0 middle/Mul" in tool("pt", "[3]:input:0", cwd=cwd).out
    assert "middle_Mul" in tool("dc", "[3]", cwd=cwd).out
    assert "middle/Mul" in tool("cp", "[3]", cwd=cwd).err + tool("cp", "[3]", cwd=cwd).out.replace("_", "/")
    assert "middle/Mul" in tool("graphs", "--find", "[3]", cwd=cwd).out
    assert {row["op"] for row in as_json(tool("vc", "-op", "[3]", "--json", cwd=cwd))["results"][0]["rows"]} == {
        "middle/Mul"
    }
    for words in (("ls", "[9]"), ("ni", "[9]"), ("pt", "[9]"), ("vc", "-op", "[9]"), ("ls", "dump", "[9]")):
        assert "no op has the number [9]" in tool(*words, cwd=cwd, code=2).err
        assert "from [0] to [4]" in tool(*words, cwd=cwd, code=2).err


def test_ls_finds_a_fused_op_by_what_it_was_made_of(tree: SmallTree) -> None:
    fused = graph_op("fusion_7", "Conv2D", original_names=["conv/Conv2D", "conv/Relu"], pass_names=["ConvRelu"])
    tree.graph.write_text(text_graph([fused, graph_op("first/Add")]))
    run = ls(tree, "conv/relu")
    assert "fusion_7" in run.out
    assert "(made of conv/Relu)" in run.out
    assert "1 of 2 ops" in ls(tree, "-f", "convrelu").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("midle/Mul",), "no op with the name 'midle/Mul' among 5 ops"),
        (("-t", "Mull"), "no op with the type 'Mull'"),
        (("-f", "Pass"), "no op with the pass 'Pass'"),
        (("-k", "zzz"), "no op with the kernel 'zzz'"),
        (("a", "b"), "more than one name"),
        (("a", "-n", "b"), "more than one name"),
        (("dump", "-k", "x"), "-k is for ops"),
        (("-l", "-1"), "must be a whole number"),
        (("--below", "2"), "a cosine must be a number from -1 to 1"),
        (("-g", "none.txt"), "none.txt: no such graph"),
        (("dump", "midle"), "no dump file of an op with the name 'midle' among 4 files"),
    ],
)
def test_ls_says_what_is_wrong(tree: SmallTree, arguments: tuple[str, ...], said: str) -> None:
    run = ls(tree, *arguments, code=2)
    assert said in run.err
    assert "hint: " in run.err
    assert run.out == ""


@pytest.mark.parametrize(
    "arguments", [("ls", ""), ("ls", "-n", " "), ("ls", "-t", ""), ("ls", "dump", ""), ("graphs", "--find", "")]
)
def test_an_empty_text_names_nothing(tree: SmallTree, arguments: tuple[str, ...]) -> None:
    run = tool(*arguments, cwd=tree.root.parent, code=2)
    assert "an empty text names nothing" in run.err
    assert run.out == ""


def test_ls_names_the_closest(tree: SmallTree) -> None:
    assert "hint: closest: middle/Mul" in ls(tree, "midle/Mul", code=2).err
    assert "hint: closest: Mul" in ls(tree, "-t", "Mull", code=2).err
    assert "middle_Mul" in ls(tree, "dump", "midle_Mul", code=2).err


def test_ls_where_filters_that_fit_alone_do_not_fit_together(tree: SmallTree) -> None:
    assert ls(tree, "middle", "-t", "Add").out.splitlines()[-1] == "0 of 5 ops"


def test_ls_dump(tree: SmallTree) -> None:
    run = ls(tree, "dump")
    rows = [line.split() for line in run.out.splitlines() if re.match(r"(GetNext|Add|Mul|Sub) ", line)]
    assert [row[-1] for row in rows] == ["IteratorGetNext", "first_Add", "middle_Mul", "last_Sub"]
    total = sum(path.stat().st_size for path in tree.dumps.values())
    assert run.out.splitlines()[-1] == f"4 of 4 dump files, {total / 1000:.1f} kB"
    (dump,) = as_json(ls(tree, "dump", "mid", "-t", "M*", "--json"))["dumps"]
    (file,) = dump["files"]
    assert file["file"] == tree.dumps["middle/Mul"].name
    assert (file["op"], file["type"], file["task"], file["size"]) == (
        "middle_Mul", "Mul", 3, tree.dumps["middle/Mul"].stat().st_size,
    )  # fmt: skip
    assert (dump["run"], dump["folder"], dump["total"]) == (0, str(tree.leaf), 4)


def test_ls_dump_tells_of_files_that_are_none_and_of_no_dump(tree: SmallTree) -> None:
    (tree.leaf / "notes.txt").write_text("x")
    assert "1 more file is not a dump file, namely notes.txt" in ls(tree, "dump").out
    (tree.leaf / "more.txt").write_text("x")
    assert "2 more files are not dump files, the first more.txt" in ls(tree, "dump").out
    shutil.rmtree(tree.dump_path)
    assert "no dump file in precision_data/npu/debug_0/dump" in ls(tree, "dump", code=2).err


def test_names_that_hold_control_characters_are_shown_harmless(tree: SmallTree) -> None:
    tree.graph.write_text(text_graph([graph_op("first/Add"), graph_op("evil\x1b[31mop", "T\x07")]))
    run = ls(tree, "evil")
    assert "\x1b" not in run.out
    assert "\x07" not in run.out
    assert r"evil\x1b[31mop" in run.out
    assert "\x1b" not in graphs(tree, "--find", "evil").out


@pytest.mark.parametrize("arguments", [("ls",), ("ls", "dump"), ("ni", "x"), ("graphs",)])
def test_without_data_the_folder_is_named(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    run = tool("--data", "mistyped", *arguments, cwd=tmp_path, code=2)
    assert "mistyped: no such data folder" in run.err
    (tmp_path / "file").write_text("x")
    run = tool("--data", "file", *arguments, cwd=tmp_path, code=2)
    assert "file: a file where the data folder should be" in run.err
    (tmp_path / "empty").mkdir()
    run = tool("--data", "empty", *arguments, cwd=tmp_path, code=2)
    assert "in empty/npu/debug_*/" in run.err
    assert "hint: " in run.err
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tmp", "empty", "file"]


def test_ls_changes_no_data(tree: SmallTree) -> None:
    before = fingerprint(tree.root)
    ls(tree)
    ls(tree, "dump")
    graphs(tree)
    graphs(tree, "--find", "mul")
    assert fingerprint(tree.root) == before


# --- graphs -----------------------------------------------------------------------------------------------------------


def test_graphs_says_which_is_in_use_and_why(tree: SmallTree, tmp_path: Path) -> None:
    tree.graph.with_name(OTHER_GRAPH).write_text(text_graph([graph_op("a")], name="other"))
    (tmp_path / OTHER_GRAPH).write_text("graph {\n")
    shutil.copy(tree.graph, tree.graph.with_name("ge_proto_00000001_graph_1_PreRunBegin.txt"))
    run = graphs(tree)
    assert run.out.startswith("debug_0: in use\n")
    assert "3 graph files, 1 in use, 1 cannot be read" in run.out
    assert "4 of 4 dumped ops (100%)" in run.out
    assert "has another graph name" in run.out
    assert "data source IteratorV2, GetNext" in run.out
    assert "PreRunBegin 1" in run.out
    document = as_json(graphs(tree, "--json"))
    rows = {row["path"]: row for row in document["graphs"]}
    assert [row["in_use"] for row in document["graphs"]].count(True) == 1
    used = rows[str(tree.graph)]
    assert (used["op_count"], used["matched"], used["dumped"], used["size"]) == (5, 4, 4, tree.graph.stat().st_size)
    assert document["unreadable"] == 1
    assert document["other_stages"] == {"PreRunBegin": 1}


def test_graphs_find(tree: SmallTree) -> None:
    run = graphs(tree, "--find", "mul")
    assert "debug_0: 1 of 5 ops (Build)" in run.out
    assert re.search(r"Mul +middle/Mul", run.out)
    assert run.out.splitlines()[-1] == "1 op in 1 of 1 graph file"
    document = as_json(graphs(tree, "--find", "*mul", "--json"))
    assert document["files"][0]["ops"] == [{"name": "middle/Mul", "type": "Mul"}]
    run = graphs(tree, "--find", "midle/Mul", code=2)
    assert "no op 'midle/Mul' in 1 graph file\n" in run.err
    assert "closest: middle/Mul" in run.err


def test_graphs_find_shows_so_many(tree: SmallTree) -> None:
    tree.graph.write_text(text_graph([graph_op(f"op{number}") for number in range(30)]))
    assert "and 10 more; -l N shows more" in graphs(tree, "--find", "op").out
    assert "more" not in graphs(tree, "--find", "op", "-l", "0").out


def test_graphs_use_is_remembered_until_auto(tree: SmallTree) -> None:
    other = tree.graph.with_name(OTHER_GRAPH)
    other.write_text(text_graph([node.op() for node in chain()], name="other"))
    run = graphs(tree, "--use", str(other))
    assert f"In use from now on: {other.relative_to(tree.root.parent)}" in run.out
    assert "it was chosen with graphs --use" in graphs(tree).text
    (listed,) = as_json(ls(tree, "--json"))["graphs"]
    assert (listed["graph"], listed["reason"]) == (str(other), "it was chosen with graphs --use")
    (result,) = tool("vc", "--json", cwd=tree.root.parent).results
    assert result["graph"] == str(other)
    assert "chosen automatically again" in graphs(tree, "--use", "auto").out
    (listed,) = as_json(ls(tree, "--json"))["graphs"]
    assert listed["graph"] == str(tree.graph)


def test_a_chosen_graph_that_is_gone_is_a_note(tree: SmallTree) -> None:
    other = tree.graph.with_name(OTHER_GRAPH)
    other.write_text(text_graph([node.op() for node in chain()], name="other"))
    graphs(tree, "--use", str(other))
    other.unlink()
    run = ls(tree)
    assert "note: the graph chosen with graphs --use is gone" in run.err
    assert str(tree.graph.relative_to(tree.root.parent)) in run.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--use", "none.txt"), "none.txt: no such file"),
        (("--use", "precision_data"), "a folder where a file should be"),
        (("--use", "a", "--find", "b"), "does not go with"),
        (("extra",), "invalid choice"),
    ],
)
def test_graphs_says_what_is_wrong(tree: SmallTree, arguments: tuple[str, ...], said: str) -> None:
    run = graphs(tree, *arguments, code=2)
    assert said in run.err
    assert "hint: " in run.err


def test_graphs_without_any(tmp_path: Path) -> None:
    (tmp_path / "precision_data").mkdir()
    run = tool("graphs", cwd=tmp_path, code=2)
    assert "no graph: no ge_proto_*_Build.txt in precision_data/npu/debug_*/graph, nor in the working folder" in run.err
    assert "DUMP_GE_GRAPH" in run.err


def test_what_is_only_named_like_a_dump_file_does_not_count(tree: SmallTree) -> None:
    """Neither in the list nor in what a graph explains."""
    (tree.leaf / "Add.folder.7.0.1772443800000097").mkdir()
    os.mkfifo(tree.leaf / "Add.pipe.8.0.1772443800000098")
    (tree.leaf / "Add.link.9.0.1772443800000099").symlink_to("nowhere")
    run = ls(tree, "dump")
    assert run.out.count("no file") == 3
    assert re.search(r"(?m)^4 of 4 dump files, .*; named like dump files but not files: 3$", run.out)
    assert "4 of 4 dumped ops (100%)" in graphs(tree).out
    run = tool("vc", cwd=tree.root.parent)
    assert "it names 4 of 4 dumped ops" in run.text
    assert "but a folder, a pipe or a dangling link: 3, the first Add.folder.7" in run.text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a", "b"), "more than one name: a, b"),
        (("dump", "a", "-n", "b"), "more than one name: a, b"),
        (("a", "b", "c"), "unrecognized arguments: c"),
    ],
)
def test_ls_takes_one_name(tree: SmallTree, arguments: tuple[str, ...], said: str) -> None:
    assert said in ls(tree, *arguments, code=2).err
    assert re.search(r"usage: ls .*\[dump\] \[NAME\]\n", ls(tree, "-h").out, re.DOTALL)


def test_a_pass_that_no_op_has_hints_at_its_option(tree: SmallTree) -> None:
    fused = graph_op("first/Add", "Add", pass_names=["qqq"])
    tree.graph.write_text(text_graph([fused]))
    run = ls(tree, "-f", "NOSUCH", code=2)
    assert "no op with the pass 'NOSUCH' among 1 op of debug_0" in run.err
    assert "`ls` without -f lists all ops" in run.err


def test_a_graph_that_cannot_be_read_is_told_of_before_an_error(tree: SmallTree) -> None:
    shutil.copytree(tree.root / "npu" / "debug_0", tree.root / "npu" / "debug_1")
    tree.graph.write_text("graph {\n")
    for words in (("ls",), ("ls", "NOSUCH"), ("ni", "NOSUCH")):
        run = tool(*words, cwd=tree.root.parent, code=2 if "NOSUCH" in words else 0)
        first, *rest = run.err.splitlines()
        assert first.startswith("note: debug_0: no graph can be used: precision_data/npu/debug_0/graph/"), run
        assert not rest or rest[0].startswith("error: no op ")


def test_a_graph_that_no_command_would_use_cannot_be_chosen(tree: SmallTree) -> None:
    other = tree.graph.with_name(OTHER_GRAPH)
    other.write_text(text_graph([graph_op("a")], name="evaluation"))
    run = graphs(tree, "--use", str(other), code=2)
    assert "it does not fit: it names 0 of 4 dumped ops of debug_0" in run.err
    stage = shutil.copy(tree.graph, tree.graph.with_name("ge_proto_00000001_graph_1_PreRunBegin.txt"))
    assert "another compiler stage" in graphs(tree, "--use", str(stage), code=2).err
    assert not (tree.root / "temp").exists()
