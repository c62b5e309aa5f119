"""The words that the manuals of the old tool have: long options, names of results, attributes by name."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from builders import graph_op, text_graph
from command_line import tool
from small_tree import Node, SmallTree, small_tree, values

from precision_tool.lib.data.graph_catalog import implementation
from precision_tool.lib.demo.graph_writer import graph_file_name


def make_tree(folder: Path) -> SmallTree:
    """A fused op computed wrong, and one after it."""
    source = Node(name="IteratorV2", type="IteratorV2")
    data = Node(
        name="IteratorGetNext", type="GetNext", inputs=(source,), output=values(1, 2), golden=values(1, 2),
        originals=("IteratorGetNext",),
    )  # fmt: skip
    conv = Node(
        name="conv/Conv2D", type="Conv2D", inputs=(data,), output=values(3, 4), golden=values(4, 3),
        originals=("conv/Conv2D",), passes=("ConvBiasFusionPass",),
    )  # fmt: skip
    relu = Node(name="conv/Relu", type="Relu", inputs=(conv,), output=values(3, 4), golden=values(4, 3))
    return small_tree(folder / "precision_data", [source, data, conv, relu])


@pytest.fixture
def tree(tmp_path: Path) -> SmallTree:
    """One that nothing was done with."""
    return make_tree(tmp_path)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> SmallTree:
    """One with a result."""
    tree = make_tree(tmp_path_factory.mktemp("compared"))
    tool("vc", cwd=tree.root.parent)
    return tree


@pytest.mark.parametrize(
    ("short", "long"),
    [
        (["vcs", "-c", "0.5", "-l", "1"], ["vcs", "--cos_sim", "0.5", "--limit", "1"]),
        (["ac", "-l", "1"], ["ac", "--limit", "1"]),
        (["ls", "-n", "Relu"], ["ls", "--name", "Relu"]),
        (["ls", "-t", "Conv2D"], ["ls", "--type", "Conv2D"]),
        (["ls", "-f", "ConvBias"], ["ls", "--fusion", "ConvBias"]),
        (["ls", "-k", "AIcore"], ["ls", "--kernel_name", "AIcore"]),
        (["ls", "dump", "-n", "Relu", "-t", "Relu"], ["ls", "dump", "--name", "Relu", "--type", "Relu"]),
        (["ni", "-n", "conv/Relu", "-a"], ["ni", "--name", "conv/Relu", "--attr", "--dump"]),
        (["ni", "conv/Relu", "-a"], ["ni", "-a", "conv/Relu"]),
        (["pt", "-n", "conv/Relu", "-c"], ["pt", "--name", "conv/Relu", "--convert"]),
        (
            ["cp", "-n", "conv/Relu", "-p", "1", "-al", "0.1", "-rl", "0.2", "-s"],
            ["cp", "--name", "conv/Relu", "--print", "1", "--atol", "0.1", "--rtol", "0.2", "--save"],
        ),
        (
            ["dc", "-n", "conv/Relu", "-f", "ND", "-o", "out"],
            ["dc", "--name", "conv/Relu", "--format", "ND", "--output", "out"],
        ),
    ],
    ids="_".join,
)
def test_long_options_are_the_short_ones(compared: SmallTree, short: Sequence[str], long: Sequence[str]) -> None:
    cwd = compared.root.parent
    said = [tool(*words, "--json", cwd=cwd).out for words in (short, long)]
    assert said[0] == said[1]
    assert json.loads(said[0])


def test_vc_takes_its_sides_by_their_long_names(tree: SmallTree) -> None:
    cwd = tree.root.parent
    sides = "precision_data/npu/debug_0/dump", "precision_data/tf/dump"
    (graph,) = (tree.root / "npu" / "debug_0" / "graph").iterdir()
    run = tool("vc", "--left", sides[0], "--right", sides[1], "--graph", graph, "--cos_sim", "0.5", cwd=cwd)
    assert "5 of 5 tensors" in run.text
    run = tool("ac", "--vector_compare", "--left", sides[0], "--right", sides[1], cwd=cwd)
    assert "5 of 5 tensors" in run.text


@pytest.mark.parametrize("word", ["vcs", "ac", "ls", "ni", "pt", "cp", "dc", "vc"])
def test_the_help_shows_them(tmp_path: Path, word: str) -> None:
    wanted = {
        "vcs": "--file --cos_sim --limit", "ac": "--vector_compare --limit",
        "ls": "--name --type --fusion --kernel_name",
        "ni": "--name --graph --attr --dump --save", "pt": "--name --convert",
        "cp": "--name --print --atol --rtol --save", "dc": "--name --format --output", "vc": "--left --right --graph",
    }  # fmt: skip
    shown = tool(word, "-h", cwd=tmp_path).out
    assert [option for option in wanted[word].split() if option not in shown] == []


# --- results by name --------------------------------------------------------------------------------------------------


def test_a_result_is_found_by_its_name_alone(compared: SmallTree) -> None:
    cwd, tree = compared.root.parent, compared
    (result,) = (tree.root / "temp" / "vector_compare").glob("*/result_*.csv")
    whole = tool("vcs", "-f", result, "--json", cwd=cwd).results
    place = f"{result.parent.name}/{result.name}"
    for name in (result.name, result.stem, result.parent.name, place):
        for shown, wanted in zip(tool("vcs", "-f", name, "--json", cwd=cwd).results, whole, strict=True):
            assert {**shown, "file": ""} == {**wanted, "file": ""}
            assert os.path.samefile(cwd / shown["file"], wanted["file"])
    run = tool("vcs", "--file", "result_1.csv", cwd=cwd, code=2)
    assert "result_1.csv: no such file or folder, here or in temp/vector_compare" in run.err


def test_of_two_results_of_one_name_the_newest_is_read(tree: SmallTree) -> None:
    cwd = tree.root.parent
    tool("vc", cwd=cwd)
    (result,) = (tree.root / "temp" / "vector_compare").glob("*/result_*.csv")
    older = result.parent.parent / "20200101000000"
    older.mkdir()
    shutil.copy(result, older / result.name)
    shutil.copy(result, older / "result_20200101.csv")
    assert result.parent.name in tool("vcs", "-f", result.name, cwd=cwd).text
    assert older.name in tool("vcs", "-f", "result_20200101.csv", cwd=cwd).text


# --- attributes, and whose code a kernel is ---------------------------------------------------------------------------


def test_an_attribute_by_its_name(compared: SmallTree) -> None:
    cwd = compared.root.parent
    (op,) = tool("ni", "conv/Conv2D", "-a", "pass_name", "--json", cwd=cwd).json["ops"]
    assert op["attributes"] == {"pass_name": "ConvBiasFusionPass"}
    assert "pass_name ConvBiasFusionPass" in tool("ni", "conv/Conv2D", "--attr", "PASS_NAME", cwd=cwd).text
    run = tool("ni", "conv/Conv2D", "-a", "passname", cwd=cwd, code=2)
    assert "conv/Conv2D has no attribute passname" in run.err
    assert "did you mean pass_name?" in run.err
    assert "hint: put --lang before the command" in tool("ls", "--lang", "zh", cwd=cwd, code=2).err


@pytest.mark.parametrize(
    ("attrs", "custom"),
    [
        ({"_fe_imply_type": 2}, True),
        ({"_fe_imply_type": 6}, False),
        ({"_fe_imply_type": 2 | 5 << 32}, True),  # a custom op of the sixth priority
        ({"_fe_imply_type": 6, "_is_custom_op": True}, True),
        ({"_is_custom_op": 0, "_fe_imply_type": 9}, False),
        ({"_op_impl_path": "/usr/local/ascend/opp/op_impl/custom/ai_core/tbe/my_add.py"}, True),
        ({"kernel_path": "/usr/local/ascend/opp/op_impl/built-in/ai_core/tbe/impl/add.py"}, False),
        ({"kernel_bin_path": "/ascend/opp/vendors/customize/op_impl/ai_core/my_add.o"}, True),
        ({"_op_impl_mode_enum": 2}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_whose_code_a_kernel_is(attrs: dict[str, object], custom: bool | None) -> None:
    found = implementation(graph_op("add", "MyAdd", attrs=attrs))
    assert (None if found is None else found.is_custom) == custom


def test_ni_tells_custom_ops_from_built_in_ones(tmp_path: Path) -> None:
    ops = [
        graph_op("data", "Data", kernel=False),
        graph_op("mine", "MyAdd", ["data:0"], attrs={"_fe_imply_type": 2}, kernel=False),
        graph_op("theirs", "Add", ["mine:0"]),
    ]
    folder = tmp_path / "precision_data" / "npu" / "debug_0" / "graph"
    folder.mkdir(parents=True)
    (folder / graph_file_name(1, 1)).write_text(text_graph(ops))
    assert "kernel is custom: your own code" in tool("ni", "mine", cwd=tmp_path).text
    assert "kernel is built-in (TBE: _fe_imply_type 6)" in tool("ni", "theirs", cwd=tmp_path).text
    (op,) = tool("ni", "mine", "--json", cwd=tmp_path).json["ops"]
    assert op["is_custom"] is True


# --- config.py --------------------------------------------------------------------------------------------------------


def test_an_old_config_is_used_and_what_has_no_effect_is_said(tree: SmallTree) -> None:
    cwd = tree.root.parent
    tree.root.rename(cwd / "mine")
    (cwd / "precision_config.py").write_text(
        "import os\nROOT_DIR = ''\nDATA_ROOT_DIR = os.path.join(ROOT_DIR, 'mine')\nNET_TYPE = 'infer'\n"
    )
    run = tool("vc", cwd=cwd)
    assert "5 of 5 tensors" in run.text
    assert "note: precision_config.py: NET_TYPE (line 4) is an old setting without effect: the data show it" in run.err
