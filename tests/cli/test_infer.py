"""`infer`: msquickcmp's output folders in place, and what an offline model holds."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from builders import MODEL
from command_line import HANG, TOOL, environment, fingerprint, only_result, table, tool
from om_files import model_def, om_bytes
from small_tree import SmallTree, faulty_chain, small_tree

from precision_tool.lib.data.settings import Settings
from precision_tool.lib.io.ge_graph_export import export_graph
from precision_tool.lib.session import Session


def msquickcmp_output(folder: Path, tree: SmallTree, benchmark: str = "tf") -> Path:
    """What msquickcmp leaves: the model folder of the dump is the graph's name with `_0`."""
    leaf = folder / "dump_data" / "npu" / "20260302093000" / "0" / f"{MODEL}_0" / "1" / "0"
    shutil.copytree(tree.leaf, leaf)
    shutil.copytree(tree.root / "tf" / "dump", folder / "dump_data" / benchmark)
    (folder / "model").mkdir()
    (folder / "model" / "net.json").write_text("".join(export_graph(str(tree.graph))[0]), encoding="utf-8")
    return folder


@pytest.fixture
def tree(tmp_path: Path) -> SmallTree:
    """A network of which one op is wrong."""
    return small_tree(tmp_path / "source" / "precision_data", faulty_chain())


@pytest.mark.parametrize("benchmark", ["tf", "onnx"])
def test_a_command_on_it(tmp_path: Path, tree: SmallTree, benchmark: str) -> None:
    folder = msquickcmp_output(tmp_path / "out", tree, benchmark)
    before = fingerprint(folder)
    run = tool("--work", "w", "infer", folder, "ac", "-c", cwd=tmp_path)
    assert "┃ middle/Mul (Mul)" in run.text
    assert fingerprint(folder) == before
    # The same as of the data folder that it was made of.
    tool("--work", "v", "--data", tree.root, "ac", "-c", cwd=tmp_path)
    mine, wanted = (table(only_result(tmp_path / name)) for name in ("w", "v"))
    assert mine == wanted


def test_the_newest_below_a_folder(tmp_path: Path, tree: SmallTree) -> None:
    for time in ("20260101000000", "20260202000000"):
        msquickcmp_output(tmp_path / "out" / time, tree)
    shutil.rmtree(tmp_path / "out" / "20260101000000" / "model")
    run = tool("--work", "w", "infer", "out", "graphs", cwd=tmp_path)
    assert "net.json" in run.text
    assert "20260202000000" in run.text


def test_the_dump_of_one_of_several_models_whose_graphs_have_one_name(tmp_path: Path, tree: SmallTree) -> None:
    """The model is the one that names the dumped ops, wherever it stands in the file."""
    text = tree.graph.read_text("ascii")
    other = text.replace("first/", "other_first/").replace("middle/", "other_middle/")
    for number, texts in enumerate(([text, other], [other, text])):
        path = tmp_path / f"net{number}.om"
        path.write_bytes(om_bytes(*(model_def(one).SerializeToString() for one in texts)))
        listed = tool("--data", tree.root, "ls", "-g", path, "--json", cwd=tmp_path).json
        names = [op["name"] for op in listed["graphs"][0]["ops"]]
        assert "middle/Mul" in names
        assert "other_middle/Mul" not in names
        tool("--data", tree.root, "vc", "-g", path, cwd=tmp_path)
        shown = tool("infer", path, cwd=tmp_path).text
        assert "(model 2)" in shown
        run = tool("--work", "w", "graph2json", path, tmp_path / f"{number}.json", cwd=tmp_path)
        assert "an offline model of 2 models, of which this is the first, as with atc" in run.text
        (graph,) = json.loads((tmp_path / f"{number}.json").read_text("utf-8"))["graph"]
        assert ("middle/Mul" in [op["name"] for op in graph["op"]]) == (number == 0)


def test_its_own_result(tmp_path: Path, tree: SmallTree) -> None:
    """`vcs` shows what msquickcmp found as long as there is nothing of ours."""
    folder = msquickcmp_output(tmp_path / "out", tree)
    tool("--work", "w", "--data", tree.root, "vc", cwd=tmp_path)
    shutil.copy(only_result(tmp_path / "w"), folder / "result_20260302093000.csv")
    assert "result_20260302093000.csv" in tool("infer", folder, "vcs", cwd=tmp_path).text


def test_it_starts_the_prompt(tmp_path: Path, tree: SmallTree) -> None:
    folder = msquickcmp_output(tmp_path / "out", tree)
    commands = tmp_path / "commands"
    commands.write_text("ls -n middle\n")
    run = subprocess.run(
        [*TOOL, "--work", "w", "infer", str(folder)],
        cwd=tmp_path,
        env=environment(tmp_path),
        input=commands.read_text(),
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert run.returncode == 0
    assert "middle/Mul" in run.stdout
    (found,) = Session(Settings(data=folder)).overview().runs
    assert found.graph_files == 1


@pytest.mark.parametrize("keeps_folder", [True, False])
def test_without_a_model_its_json_is_asked_for(tmp_path: Path, tree: SmallTree, keeps_folder: bool) -> None:
    folder = msquickcmp_output(tmp_path / "out", tree)
    shutil.rmtree(folder / "model")
    if keeps_folder:
        (folder / "model").mkdir()
    run = tool("--work", "w", "infer", folder, "ls", cwd=tmp_path, code=2)
    assert "no *.json in out/model" in run.text
    assert "ge_proto" not in run.text


def test_an_offline_model(tmp_path: Path, tree: SmallTree) -> None:
    path = tmp_path / "net.om"
    path.write_bytes(om_bytes(model_def(tree.graph.read_text("ascii")).SerializeToString()))
    run = tool("infer", path, cwd=tmp_path)
    for said in ("net", "1.83.T2", "model definition", "weights", f"{MODEL}: 5 ops"):
        assert said in run.text
    assert "middle/Mul" in tool("ls", "-g", path, cwd=tmp_path).text
    tool("graph2json", path, "om.json", cwd=tmp_path)
    document = json.loads((tmp_path / "om.json").read_text("utf-8"))
    assert document["graph"][0]["name"] == MODEL


def test_what_is_neither(tmp_path: Path, tree: SmallTree) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "cut.om").write_bytes(b"IMOD\0")
    cases = {
        ("none",): "no such folder",
        ("empty",): "no dump_data/npu in it",
        ("cut.om",): "header of this offline model is cut off",
        (str(tree.graph), "ls"): "not with an .om",
    }
    for words, said in cases.items():
        assert said in tool("infer", *words, cwd=tmp_path, code=2).text
    folder = msquickcmp_output(tmp_path / "out", tree)
    assert "nonsense is not a command" in tool("infer", folder, "nonsense", cwd=tmp_path, code=2).text
