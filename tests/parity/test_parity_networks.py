"""Whole networks through both engines: the demo at several seeds, its options, two runs, and LeNet in all its modes."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import tool
from outside_data import LENET, needs_outside_data
from vendor import Vendor
from vendor_cells import ALWAYS, CORNERS, TWO_DUMPS, explain, table

import precision_tool
from precision_tool.lib.api import CompareOptions, CompareResult
from precision_tool.lib.data.pair_selection import parse_ids, parse_range
from precision_tool.lib.demo.generate import DemoTruth, generate_demo
from precision_tool.lib.io.ge_graph_export import export_graph

#: A part result inside the softmax of the demo: the vendor passes over it, ours says what it is.
PART_RESULT = {"loss/Mean_ReduceSumD:input:0", "loss/Mean_ReduceSumD:output:0"}


# Another program is run again and again: once, with the newest versions of the dependencies, is enough.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> DemoTruth:
    """One demo that the options are tried on."""
    return generate_demo(tmp_path_factory.mktemp("demo") / "data", seed=4)


def graph_json(demo: DemoTruth, folder: Path) -> Path:
    """The demo's graph as the vendor reads it."""
    path = folder / "graph.json"
    path.write_text("".join(export_graph(str(demo.graph_path))[0]), encoding="utf-8")
    return path


def ours(demo: DemoTruth, options: CompareOptions | None = None) -> CompareResult:
    (result,) = precision_tool.compare(
        demo.dump_dir, demo.golden_dir, graph=demo.graph_path, workers=1, options=options
    )
    return result


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_demo(vendor: Vendor, tmp_path: Path, seed: int) -> None:
    demo = generate_demo(tmp_path / "data", seed=seed)
    ran = vendor.compare(demo.dump_dir, demo.golden_dir, "-f", graph_json(demo, tmp_path), output=tmp_path / "out")
    found = explain(ran.result, ours(demo), tmp_path, CORNERS)
    assert ran.code == 2  # its variables have no dump
    assert (found.only_theirs, found.only_ours) == (set(), PART_RESULT)
    assert found.beside(*ALWAYS) == {}


def test_compat_of_the_demo(vendor: Vendor, demo: DemoTruth, tmp_path: Path) -> None:
    """The vendor's columns and lines; without the part result that only ours has."""
    ran = vendor.compare(demo.dump_dir, demo.golden_dir, "-f", graph_json(demo, tmp_path), output=tmp_path / "out")
    result = ours(demo, CompareOptions(compat=True))
    found = explain(ran.result, result, tmp_path, CORNERS)
    assert found.only_theirs == found.only_ours == set()
    assert table(ran.result)[0] == table(tmp_path / "ours.csv")[0]


def test_a_demo_with_a_tower(vendor: Vendor, tmp_path: Path) -> None:
    demo = generate_demo(tmp_path / "data", seed=5, ops=150, size=4096)
    ran = vendor.compare(demo.dump_dir, demo.golden_dir, "-f", graph_json(demo, tmp_path), output=tmp_path / "out")
    found = explain(ran.result, ours(demo), tmp_path, CORNERS)
    assert (found.only_theirs, found.only_ours) == (set(), PART_RESULT)
    assert found.beside(*ALWAYS) == {}


OPTIONS: dict[str, tuple[list[str], CompareOptions]] = {
    "overflow": (["-overflow_detection"], CompareOptions(overflow=True)),
    "max": (["-max", "100"], CompareOptions(limit=100)),
    "algorithm": (
        ["-alg", "0,3,MaxAbsoluteError"],
        CompareOptions(metrics=("CosineSimilarity", "RelativeEuclideanDistance", "MaxAbsoluteError")),
    ),
    "range": (["-r", "5,40,3"], CompareOptions(selection=parse_range("5,40,3"))),
    "select": (["-s", "5,17,33"], CompareOptions(selection=parse_ids("5,17,33"))),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(vendor: Vendor, demo: DemoTruth, tmp_path: Path, name: str) -> None:
    """Columns, rows and cells are the same with each option."""
    flags, options = OPTIONS[name]
    graph = graph_json(demo, tmp_path)
    ran = vendor.compare(demo.dump_dir, demo.golden_dir, "-f", graph, *flags, output=tmp_path / "out")
    found = explain(ran.result, ours(demo, options), tmp_path, CORNERS, limit=options.limit)
    assert found.only_theirs == set()
    assert found.only_ours <= PART_RESULT
    assert found.beside(*ALWAYS) == {}


def test_the_mapping(vendor: Vendor, demo: DemoTruth, tmp_path: Path) -> None:
    """Which files belong together, line by line."""
    graph = graph_json(demo, tmp_path)
    vendor.compare(demo.dump_dir, demo.golden_dir, "-f", graph, "-map", output=tmp_path / "out")
    (theirs,) = (tmp_path / "out").glob("mapping_*.csv")
    sides = ("-lt", demo.dump_dir, "-rt", demo.golden_dir, "-g", demo.graph_path)
    tool("--work", "w", "vc", "--map", *sides, cwd=tmp_path)
    (mine,) = (tmp_path / "w").rglob("mapping_*.csv")
    pairs = {path: list(mapped(path)) for path in (theirs, mine)}
    only_ours = [line for line in pairs[mine] if line not in pairs[theirs]]
    assert {line[0] for line in only_ours} <= PART_RESULT
    assert [line for line in pairs[mine] if line in pairs[theirs]] == pairs[theirs]


def mapped(path: Path) -> Iterator[tuple[str, str, str]]:
    """Tensor, dump file and benchmark file of the lines that stand for a tensor."""
    with path.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            if line["TensorIndex"] != "NaN":
                yield line["TensorIndex"], line["NPUDumpPath"], line["GroundTruthPath"]


@pytest.mark.parametrize("fault", ["none", "nan"])
def test_two_runs_of_the_demo(vendor: Vendor, demo: DemoTruth, tmp_path: Path, fault: str) -> None:
    """NPU against NPU, without a graph."""
    other = generate_demo(tmp_path / "data", seed=4, fault=fault)
    ran = vendor.compare(demo.dump_dir, other.dump_dir, output=tmp_path / "out")
    (result,) = precision_tool.compare(demo.dump_dir, other.dump_dir, workers=1)
    found = explain(ran.result, result, tmp_path, (*TWO_DUMPS, *CORNERS))
    assert found.only_theirs == found.only_ours == set()
    # Of a tensor with NaN ours has the figures of the other elements, and says so.
    of_nan = {"finite_elements", "own_remark"} if fault == "nan" else set()
    assert set().union(*found.beside(*ALWAYS).values()) <= {each.__name__ for each in TWO_DUMPS} | of_nan


# --- LeNet ------------------------------------------------------------------------------------------------------------


def leaf_of(run: str) -> Path:
    dump = LENET / "precision_data" / "npu" / run / "dump"
    return next(path for path in sorted(dump.rglob("*")) if path.is_file()).parent


@needs_outside_data
@pytest.mark.parametrize("run", ["debug_0", "debug_1"])
def test_graph2json_gives_the_vendors_bytes(run: str) -> None:
    (graph,) = (LENET / "precision_data" / "npu" / run / "graph").glob("*_00000005_graph_1_Build.txt")
    assert "".join(export_graph(str(graph))[0]).encode() == (LENET / "vendor" / f"{run}.graph.json").read_bytes()


MODES = {
    "npu_vs_tf": ("debug_0", "tf", ["-f", "debug_0"]),
    "unfused_vs_tf": ("debug_1", "tf", ["-f", "debug_1"]),
    "npu_vs_npu": ("debug_0", "debug_1", []),
    "fused_vs_unfused": ("debug_0", "debug_1", ["-f", "debug_0", "-cf", "debug_1"]),
    "npu_vs_tf_overflow": ("debug_0", "tf", ["-f", "debug_0", "-overflow_detection"]),
}


@needs_outside_data
@pytest.mark.parametrize("mode", MODES)
def test_the_vendor_prints_what_it_printed(vendor: Vendor, tmp_path: Path, mode: str) -> None:
    """With the stand-in for its library as without: so test_lenet.py, which compares ours with those files, holds."""
    npu, golden, flags = MODES[mode]
    options = [str(LENET / "vendor" / f"{flag}.graph.json") if flag.startswith("debug") else flag for flag in flags]
    benchmark = LENET / "precision_data" / "tf" / "dump" if golden == "tf" else leaf_of(golden)
    ran = vendor.compare(leaf_of(npu), benchmark, *options, output=tmp_path)
    assert table(ran.result) == table(LENET / "vendor" / f"{mode}.csv")
