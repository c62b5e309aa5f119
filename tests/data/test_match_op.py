"""One op matched alone: the rows that matching everything has for it, and only its files opened."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import graph_op, write_dump
from small_tree import SmallTree, chain, small_tree, values

from precision_tool.lib.data import dumped_ops as dumps
from precision_tool.lib.data import kinds
from precision_tool.lib.data.dump_names import flatten
from precision_tool.lib.data.dump_tree import find_benchmark, find_run
from precision_tool.lib.data.dumped_ops import DumpIndex, GoldenDumps, GoldenFiles, NoBenchmark
from precision_tool.lib.data.matching import GraphMatcher, NameMatcher
from precision_tool.lib.data.settings import Settings
from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.diagnose.comparing import compare
from precision_tool.lib.io.ge_graph import load_graph_file
from precision_tool.lib.model.comparison import Pair, Status
from precision_tool.lib.model.graph import Graph, GraphFile
from precision_tool.lib.model.run import DumpLeaf
from precision_tool.lib.model.tensor import Tensor
from precision_tool.lib.session import Session


def only_leaf(folder: Path) -> DumpLeaf:
    (leaf,) = find_run(str(folder)).leaves
    return leaf


def assert_ops_alone_are_as_in_all(leaf: DumpLeaf, file: GraphFile, golden: Callable[[], Any]) -> int:
    """Each op matched by a matcher of its own equals its rows among all; the number of rows that were compared."""
    everything = list(GraphMatcher(DumpIndex(leaf), file, golden()).pairs())
    for op in file.ops:
        expected = [pair for pair in everything if pair.op_name == op.name and pair.status is not Status.NO_NPU_DUMP]
        assert list(GraphMatcher(DumpIndex(leaf), file, golden()).pairs_of(op)) == expected, op.name
    return sum(pair.status is Status.COMPARED for pair in everything)


def test_every_op_of_the_demo(tmp_path: Path) -> None:
    root = tmp_path / "data"
    truth = generate_demo(root, fault="fused")
    leaf = only_leaf(root / "npu" / "debug_0" / "dump")
    benchmark = find_benchmark(str(root / "tf" / "dump"))
    compared = assert_ops_alone_are_as_in_all(
        leaf, load_graph_file(root / truth.graph_path), lambda: GoldenFiles(benchmark)
    )
    assert compared > 20


def test_every_op_of_a_real_network(real_data: Path) -> None:
    leaf = only_leaf(real_data / "npu" / "debug_0" / "dump")
    benchmark = find_benchmark(str(real_data / "tf" / "tf_debug"))
    graph = real_data / "npu" / "debug_0" / "graph" / "ge_proto_00000005_graph_1_Build.txt"
    assert assert_ops_alone_are_as_in_all(leaf, load_graph_file(graph), lambda: GoldenFiles(benchmark)) > 70


def test_the_ends_and_the_inside_of_an_l1_fusion(tmp_path: Path) -> None:
    names = ("first", "second", "third")
    ops = [replace(graph_op(name, original_names=[name]), l1_fusion_group="7") for name in names]
    for number, name in enumerate(names):
        write_dump(tmp_path / f"Add.{name}.{number}.0.{1_772_443_800_000_000 + number}", name, [], [values(1, 2)])
    file = GraphFile(path="graph", graphs=(Graph(name="main", ops=tuple(ops)),))
    leaf = only_leaf(tmp_path)
    assert_ops_alone_are_as_in_all(leaf, file, NoBenchmark)
    (inside,) = GraphMatcher(DumpIndex(leaf), file, NoBenchmark()).pairs_of(ops[1])
    assert inside.status is Status.INTERMEDIATE
    assert inside.npu_ops == ("first", "second", "third")


def test_ops_spelled_alike_in_file_names(tmp_path: Path) -> None:
    ops = [graph_op("a/b", original_names=["a/b"]), graph_op("a_b", original_names=["a_b"])]
    write_dump(tmp_path / "Add.a_b.1.0.1772443800000001", "a/b", [], [values(1, 2)])
    file = GraphFile(path="graph", graphs=(Graph(name="main", ops=tuple(ops)),))
    leaf = only_leaf(tmp_path)
    assert_ops_alone_are_as_in_all(leaf, file, NoBenchmark)
    matcher = GraphMatcher(DumpIndex(leaf), file, NoBenchmark())
    assert [pair.slot for pair in matcher.pairs_of(ops[0])] == ["output:0"]
    assert matcher.pairs_of(ops[1]) == ()


def test_by_name_between_two_runs(tmp_path: Path) -> None:
    small_tree(tmp_path, chain())
    small_tree(tmp_path, chain()[:-1], run="debug_1")
    leaf, other = (only_leaf(tmp_path / "npu" / run / "dump") for run in ("debug_0", "debug_1"))
    everything = list(NameMatcher(DumpIndex(leaf), GoldenDumps(other)).pairs())
    names = DumpIndex(leaf).names_by_time()
    for name in names:
        alone = NameMatcher(DumpIndex(leaf), GoldenDumps(other)).pairs_of(name)
        assert list(alone) == [pair for pair in everything if pair.op_name == name]
    assert {pair.status for pair in everything} == {Status.COMPARED, Status.NO_BENCHMARK}
    assert NameMatcher(DumpIndex(leaf), GoldenDumps(other)).pairs_of("no_such") == ()


# --- as a session does it ---------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> SmallTree:
    return small_tree(tmp_path / "data", chain())


def session_of(tree: SmallTree) -> Session:
    return Session(Settings(data=tree.root, workers=1))


def in_result(session: Session, op_name: str) -> list[Pair]:
    """The pairs of an op as `vc` compares them."""
    (analysis,) = compare(session.data)
    assert analysis.leaf is not None
    return [row.pair for row in analysis.leaf.rows if flatten(row.pair.op_name) == flatten(op_name)]


@pytest.mark.parametrize("name", ["first/Add", "middle/Mul", "last/Sub", "IteratorGetNext"])
def test_pairs_are_those_of_vc(tree: SmallTree, name: str) -> None:
    session = session_of(tree)
    (found,) = session.find_ops(name)
    assert list(session.pairs_of(found)) == in_result(session, name)


def test_pairs_of_two_runs_are_those_of_vc(tmp_path: Path) -> None:
    nodes = [replace(node, golden=None) for node in chain()]
    tree = small_tree(tmp_path / "data", nodes)
    other = small_tree(tmp_path / "data", [replace(node, name=node.name) for node in nodes], run="debug_1")
    assert not (tree.root / "tf").exists()
    session = session_of(tree)
    found = session.find_ops("middle/Mul")
    assert [hit.run.number for hit in found] == [0, 1]
    pairs = session.pairs_of(found[0])
    assert list(pairs) == in_result(session, "middle/Mul")
    assert [pair.status for pair in pairs] == [Status.COMPARED] * 2
    golden = pairs[-1].golden
    assert golden is not None
    assert golden.path == str(other.dumps["middle/Mul"])
    # The second run has nothing to be compared with.
    assert {pair.status for pair in session.pairs_of(found[1])} == {Status.NO_BENCHMARK}


def test_an_op_without_a_dump_has_no_pairs(tree: SmallTree) -> None:
    session = session_of(tree)
    (found,) = session.find_ops("IteratorV2")
    assert session.pairs_of(found) == ()


def test_only_the_files_of_the_op_are_opened(tree: SmallTree, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def recording(read: Callable[[str], Any]) -> Callable[[str], Any]:
        def call(path: str) -> Any:
            opened.append(path)
            return read(path)

        return call

    for module, name in ((dumps, "open_op_dump"), (kinds, "read_npy")):
        monkeypatch.setattr(module, name, recording(getattr(module, name)))
    for folder, _, _ in os.walk(tree.root):
        os.utime(folder, (1, 1))  # long ago: what changed just now may change again unseen, and is read again
    session = session_of(tree)
    (found,) = session.find_ops("middle/Mul")
    assert session.run_graphs()
    assert opened == []
    assert len(session.pairs_of(found)) == 2
    wanted = [tree.dumps["middle/Mul"], tree.goldens["first/Add"], tree.goldens["middle/Mul"]]
    assert sorted(opened) == sorted(map(str, wanted))
    session.pairs_of(found)
    assert len(opened) == 3


def test_a_damaged_dump_is_a_row_with_the_reason(tree: SmallTree) -> None:
    tree.dumps["middle/Mul"].write_bytes(b"\xff" * 64)
    session = session_of(tree)
    (found,) = session.find_ops("middle/Mul")
    (pair,) = session.pairs_of(found)
    assert pair.status is Status.UNREADABLE
    assert str(tree.dumps["middle/Mul"]) in str(pair.reason)


def test_new_dumps_are_seen(tree: SmallTree) -> None:
    session = session_of(tree)
    (found,) = session.find_ops("middle/Mul")
    assert len(session.pairs_of(found)) == 2
    newer = tree.dumps["middle/Mul"].name.rpartition(".")[0] + ".1772449999000000"
    path = write_dump(tree.leaf / newer, "middle/Mul", [], [np.zeros(1024, np.float32)])
    (found,) = session.find_ops("middle/Mul")
    output = session.pairs_of(found)[-1]
    assert output.npu is not None
    assert output.npu.path == str(path)


def test_files_written_anew_are_read_anew(tree: SmallTree) -> None:
    session = session_of(tree)
    (found,) = session.find_ops("middle/Mul")
    before = session.pairs_of(found)[-1]
    assert isinstance(before.npu, Tensor)
    assert isinstance(before.golden, Tensor)
    golden = np.load(tree.goldens["middle/Mul"]).astype(np.float64)
    np.save(tree.goldens["middle/Mul"], golden)
    pair = session.pairs_of(found)[-1]
    assert pair.golden is not None
    assert pair.golden.dtype == "float64"
    dump = tree.dumps["middle/Mul"]
    write_dump(dump, "middle/Mul", [np.zeros(before.npu.shape, "f4")] * 2, [np.zeros(before.npu.shape, "f8")])
    pair = session.pairs_of(found)[-1]
    assert pair.npu is not None
    assert (before.npu.dtype, pair.npu.dtype) == ("float32", "float64")


def test_the_other_run_is_read_anew(tmp_path: Path) -> None:
    nodes = [replace(node, golden=None) for node in chain()]
    tree = small_tree(tmp_path / "data", nodes)
    other = small_tree(tmp_path / "data", nodes, run="debug_1")
    session = session_of(tree)
    found = session.find_ops("middle/Mul")[0]
    before = session.pairs_of(found)[-1].golden
    assert isinstance(before, Tensor)
    write_dump(other.dumps["middle/Mul"], "middle/Mul", [np.zeros(3, "f4")], [np.zeros(before.shape, "f8")])
    after = session.pairs_of(found)[-1].golden
    assert after is not None
    assert (before.dtype, after.dtype) == ("float32", "float64")
