"""`--engine cann` with the real msaccucmp behind it: what it writes is what msaccucmp writes when called by hand."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from command_line import only_result, table
from corner_trees import CornerTree, damages
from vendor import Vendor, cann, installed

import precision_tool
from precision_tool.lib.compare.toolkit import Tools, find_toolkit
from precision_tool.lib.demo.generate import generate_demo

# Another program is run again and again: once, with the newest versions of the dependencies, is enough.
pytestmark = pytest.mark.slow


def test_compare(vendor: Vendor, tmp_path: Path) -> None:
    demo = generate_demo(tmp_path / "precision_data", seed=8)
    run = cann(vendor, tmp_path, "ac", "-c", "--json")
    (document,) = run.results
    assert document["findings"][0]["op_name"] == demo.culprit
    graph = tmp_path / "graph.json"
    precision_tool.run("graph2json", str(demo.graph_path), str(graph), work=tmp_path / "w", file=io.StringIO())
    ran = vendor.compare(demo.dump_dir, demo.golden_dir, "-f", graph, output=tmp_path / "by_hand")
    assert table(only_result(tmp_path / "precision_data" / "temp")) == table(ran.result)
    assert "msaccucmp ended with exit code 2, but its result is complete" in run.text


def test_options(vendor: Vendor, tmp_path: Path) -> None:
    generate_demo(tmp_path / "precision_data", seed=8)
    words = ("--range", "5,20,3", "--algorithm", "0", "1", "--max", "50", "--overflow_detection")
    cann(vendor, tmp_path, "vc", *words)
    header, lines = table(only_result(tmp_path / "precision_data" / "temp"))
    assert [name for name in header if name in ("OpSequence", "OverFlow", "MaxAbsoluteError")] == [
        "OpSequence", "OverFlow", "MaxAbsoluteError"
    ]  # fmt: skip
    assert "MeanRelativeError" not in header
    assert lines


@pytest.fixture(scope="module")
def fused_and_unfused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pair") / "precision_data"
    generate_demo(root, seed=8, fault="fusion")
    return root


def by_hand(vendor: Vendor, data: Path, folder: Path) -> list[object]:
    """What msaccucmp prints of the fused run against the unfused one, with both graphs."""
    leaves, graphs = [], []
    for run in ("debug_1", "debug_0"):  # the demo has the fused run second
        (graph,) = (data / "npu" / run / "graph").glob("*_graph_1_Build.txt")
        graphs.append(folder / f"{run}.json")
        precision_tool.run("graph2json", str(graph), str(graphs[-1]), work=folder / "w", file=io.StringIO())
        leaves.append(next(path for path in (data / "npu" / run / "dump").rglob("*") if path.is_file()).parent)
    ran = vendor.compare(*leaves, "-f", graphs[0], "-cf", graphs[1], output=folder / "by_hand")
    found: list[object] = [*table(ran.result)]
    return found


def test_two_runs_by_their_graphs(vendor: Vendor, fused_and_unfused: Path, tmp_path: Path) -> None:
    """With -g, two NPU runs are compared with -f and -cf."""
    npu = fused_and_unfused / "npu"
    (graph,) = (npu / "debug_1" / "graph").glob("*_graph_1_Build.txt")
    sides = ("-lt", npu / "debug_1" / "dump", "-rt", npu / "debug_0" / "dump", "-g", graph)
    cann(vendor, tmp_path, "--work", "w", "vc", *sides)
    assert [*table(only_result(tmp_path / "w"))] == by_hand(vendor, fused_and_unfused, tmp_path)


def test_the_two_runs_that_belong_together(vendor: Vendor, fused_and_unfused: Path, tmp_path: Path) -> None:
    """`vc -cf` finds both runs and both graphs."""
    cann(vendor, tmp_path, "--data", fused_and_unfused, "--work", "w", "vc", "-cf")
    assert [*table(only_result(tmp_path / "w"))] == by_hand(vendor, fused_and_unfused, tmp_path)


def test_odd_places(vendor: Vendor, tmp_path: Path) -> None:
    """msaccucmp refuses spaces and quotes in a path, and no socket has a long one; ours hands it others."""
    cwd = tmp_path / 'it\'s a "place"'
    cwd.mkdir()
    demo = generate_demo(cwd / "precision_data", seed=8)
    long = cwd / ("long" * 20)
    long.mkdir()
    cann(vendor, cwd, "vc", env={"TMPDIR": str(long)})
    result = table(only_result(cwd / "precision_data" / "temp"))
    graph = tmp_path / "graph.json"
    precision_tool.run("graph2json", str(demo.graph_path), str(graph), work=tmp_path / "w", file=io.StringIO())
    plain = tmp_path / "plain"
    generate_demo(plain, seed=8)
    leaf = plain / demo.dump_dir.relative_to(cwd / "precision_data")
    ran = vendor.compare(leaf, plain / "tf" / "dump", "-f", graph, output=tmp_path / "by_hand")
    assert result == table(ran.result)


def test_convert(vendor: Vendor, tmp_path: Path) -> None:
    """Of a folder with damaged files: what it decodes, and that it ended with an error."""
    tree = CornerTree(root=tmp_path / "tree")
    damages(tree)
    tree.finish()
    run = cann(vendor, tmp_path, "dc", tree.leaf, "-o", "decoded", "--json")
    vendor.run("convert", "-d", tree.leaf, output=tmp_path / "by_hand")
    made = {path.name: path.read_bytes() for path in (tmp_path / "decoded").glob("*.npy")}
    wanted = {
        path.name: path.read_bytes() for path in (tmp_path / "by_hand").glob("*.npy") if "Stranger" not in path.name
    }
    assert {name: made.get(name) for name in wanted} == wanted
    assert {Path(path).name for path in json.loads(run.out)["files"]} == set(made)
    assert "tensors were decoded" in run.err


def overflow_leaf(data: Path) -> Path:
    """The folder of the status files of a demo that overflows."""
    generate_demo(data, fault="overflow")
    return next((data / "overflow" / "dump").rglob("Opdebug.*")).parent


def test_overflow(vendor: Vendor, tmp_path: Path) -> None:
    root = Path(installed(vendor, tmp_path / "cann")["PRECISION_TOOL_CMD_ROOT_PATH"])
    logs = tmp_path / "logs"
    logs.mkdir()
    tools = Tools(
        toolkit=find_toolkit(str(root), {}), folder=str(logs), cache=str(tmp_path / "cache"), python=vendor.python
    )
    leaf = overflow_leaf(tmp_path / "precision_data")
    made = tools.overflow(str(leaf), str(tmp_path / "out"), 3)
    (summary,) = (tmp_path / "out").glob("overflow_summary_*.txt")
    assert str(summary) in made.paths
    vendor.run("overflow", "-d", leaf, "-n", "3", output=tmp_path / "by_hand")
    wanted = {path.name: path.read_bytes() for path in (tmp_path / "by_hand").glob("*.json")}
    assert wanted
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.json")} == wanted


def test_the_word_overflow_in_an_odd_place(vendor: Vendor, tmp_path: Path) -> None:
    """msaccucmp resolves links, so it gets copies: the same statuses and values as by hand."""
    data = tmp_path / "it's here" / "overflow"
    leaf = overflow_leaf(tmp_path / "precision_data")
    shutil.copytree(tmp_path / "precision_data" / "overflow", data)
    run = cann(vendor, tmp_path, "--data", data.parent, "--work", "w", "overflow", "--json", "-l", "3")
    (result,) = json.loads(run.out)["results"]
    vendor.run("overflow", "-d", leaf, "-n", "3", output=tmp_path / "by_hand")
    wanted = {path.name: path.read_bytes() for path in (tmp_path / "by_hand").iterdir()}
    made = {Path(path).name: (tmp_path / path).read_bytes() for path in (result["summary"], *result["files"])}
    assert [data for name, data in sorted(made.items())] == [data for name, data in sorted(wanted.items())]
