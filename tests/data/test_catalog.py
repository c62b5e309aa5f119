"""What a session knows of a data folder: graphs of runs, ops by name, what lies there; and when it looks again."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import MODEL, STAMP, graph_op, text_graph, write_dump, write_golden
from small_tree import SmallTree, chain, small_tree, values

from precision_tool.lib.compare.data_folder import search_graphs, survey_graphs
from precision_tool.lib.compare.folders import CompareOptions
from precision_tool.lib.data import graph_catalog as catalog
from precision_tool.lib.data.dump_names import pattern
from precision_tool.lib.data.graph_catalog import closest_names
from precision_tool.lib.data.graph_choice import CHOSEN, NAMED
from precision_tool.lib.data.overview import DumpOverview, RunOverview
from precision_tool.lib.data.pair_listing import OpFilter, list_dumps, list_ops
from precision_tool.lib.data.settings import Settings
from precision_tool.lib.demo.graph_writer import graph_file_name
from precision_tool.lib.diagnose.comparing import compare
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, OutputError, UsageError
from precision_tool.lib.model.graph import Op
from precision_tool.lib.session import Session


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallTree:
    """The chain of five ops as debug_0; the working folder is the one above the data."""
    monkeypatch.chdir(tmp_path)
    return small_tree(tmp_path / "data", chain())


def session_of(root: Path) -> Session:
    return Session(Settings(data=root, workers=1))


def write_graph(path: Path, ops: Sequence[Op], name: str = MODEL) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text_graph(ops, name=name), encoding="ascii")
    return path


def ops_named(*names: str) -> list[Op]:
    return [graph_op(name) for name in names]


OTHER_GRAPH = graph_file_name(9, 2)


# --- graphs of runs ---------------------------------------------------------------------------------------------------


def test_the_graph_of_a_dump(tree: SmallTree) -> None:
    (run,) = session_of(tree.root).run_graphs()
    assert (run.number, run.file.path) == (0, str(tree.graph))
    assert run.leaf is not None
    assert run.leaf.path == str(tree.leaf)
    assert (run.matched, run.total) == (4, 4)
    assert run.reason is not None
    assert run.reason.model == MODEL


def test_a_graph_that_no_op_names_is_of_the_same_model(tree: SmallTree) -> None:
    """A text file is of one model: all its graphs count, and its dumped ops are no strangers."""
    aside = text_graph([replace(node.op(), name=f"aside/{node.name}") for node in chain()[2:3]], name="aside")
    tree.graph.write_text(tree.graph.read_text("ascii") + aside, "ascii")
    dump = tree.leaf / tree.dumps["first/Add"].name.replace("first_Add", "aside_first_Add")
    shutil.copyfile(tree.dumps["first/Add"], dump)
    (run,) = session_of(tree.root).run_graphs()
    assert [graph.name for graph in run.file.graphs] == [MODEL, "aside"]
    assert (run.matched, run.total) == (5, 5)


def test_all_devices_and_steps_of_a_model_are_one_graph(tree: SmallTree) -> None:
    tree.copy_leaf("1", MODEL, "1", "0")
    tree.copy_leaf("0", MODEL, "1", "3")
    (run,) = session_of(tree.root).run_graphs()
    assert [(leaf.device, leaf.step) for leaf in run.leaves] == [("0", "0"), ("0", "3"), ("1", "0")]
    assert run.leaf == run.leaves[0]


def test_every_model_has_its_graph(tree: SmallTree) -> None:
    tree.copy_leaf("0", "ge_default_other", "2", "0")
    other = write_graph(tree.graph.with_name(OTHER_GRAPH), [node.op() for node in chain()], name="ge_default_other")
    runs = session_of(tree.root).run_graphs()
    assert [(run.leaf and run.leaf.model_name, run.file.path) for run in runs] == [
        (MODEL, str(tree.graph)),
        ("ge_default_other", str(other)),
    ]


def test_the_newest_dump_counts(tree: SmallTree) -> None:
    newer = tree.copy_leaf("0", MODEL, "1", "0", time="20270101000000")
    (run,) = session_of(tree.root).run_graphs()
    assert run.leaf is not None
    assert run.leaf.path == str(newer)


def test_without_a_dump_the_graph_with_a_data_source_and_most_ops(tree: SmallTree) -> None:
    shutil.rmtree(tree.dump_path)
    many = [f"op{number}" for number in range(9)]
    write_graph(tree.graph.with_name(OTHER_GRAPH), ops_named(*many), name="larger, no data source")
    write_graph(tree.graph.with_name(graph_file_name(11, 3)), [graph_op("it", "IteratorV2")], name="smaller")
    (run,) = session_of(tree.root).run_graphs()
    assert (run.number, run.leaf, run.file.path) == (0, None, str(tree.graph))
    assert dict(run.rejected) == {
        str(tree.graph.with_name(OTHER_GRAPH)): Message("note.data.graph.no_source"),
        str(tree.graph.with_name(graph_file_name(11, 3))): Message("note.data.graph.fewer_ops", ops=1),
    }


def test_graphs_in_the_working_folder_belong_to_the_dump(tree: SmallTree, tmp_path: Path) -> None:
    here = tmp_path / tree.graph.name
    tree.graph.rename(here)
    (run,) = session_of(tree.root).run_graphs()
    assert (run.number, os.path.abspath(run.file.path)) == (0, str(here))


def test_graphs_in_the_working_folder_alone(tree: SmallTree, tmp_path: Path) -> None:
    here = tmp_path / tree.graph.name
    tree.graph.rename(here)
    (run,) = session_of(tmp_path / "nothing").run_graphs()
    assert (run.number, run.leaf, os.path.abspath(run.file.path)) == (None, None, str(here))


def test_no_graph_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataNotFoundError, match="no graph"):
        session_of(tmp_path).run_graphs()


def test_a_dump_whose_graph_is_damaged_says_so(tree: SmallTree) -> None:
    tree.graph.write_text("graph {\n")
    with pytest.raises(DataNotFoundError, match="no graph can be used"):
        session_of(tree.root).run_graphs()


def test_a_graph_that_was_named_goes_with_the_dump_it_lies_beside(tree: SmallTree) -> None:
    other = small_tree(tree.root, chain(), run="debug_1")
    (run,) = session_of(tree.root).run_graphs(str(other.graph))
    assert (run.number, run.file.path, run.reason) == (1, str(other.graph), NAMED)
    assert run.is_named
    assert run.leaf is not None
    assert run.leaf.path == str(other.leaf)


def test_a_graph_from_elsewhere_goes_with_every_dump_it_fits(tree: SmallTree, tmp_path: Path) -> None:
    small_tree(tree.root, chain(), run="debug_1")
    copy = tmp_path / "elsewhere" / "graph.txt"
    copy.parent.mkdir()
    shutil.copy(tree.graph, copy)
    assert [run.number for run in session_of(tree.root).run_graphs(str(copy))] == [0, 1]
    stranger = write_graph(tmp_path / "stranger.txt", ops_named("a", "b"), name="stranger")
    (run,) = session_of(tree.root).run_graphs(str(stranger))
    assert (run.number, run.leaf) == (None, None)


def test_a_folder_of_graphs_that_was_named(tree: SmallTree, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(tree.graph, folder)
    (run,) = session_of(tree.root).run_graphs(str(folder))
    assert (run.number, run.file.path) == (0, str(folder / tree.graph.name))
    with pytest.raises(DataNotFoundError, match="no ge_proto"):
        session_of(tree.root).run_graphs(str(tree.leaf))


def test_a_named_graph_that_is_not_there_or_damaged(tree: SmallTree, tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError, match="no such graph"):
        session_of(tree.root).run_graphs(str(tmp_path / "none.txt"))
    bad = tmp_path / "bad.txt"
    bad.write_text("graph {\n")
    with pytest.raises(FormatError, match=r"bad\.txt"):
        session_of(tree.root).run_graphs(str(bad))


# --- ops by name ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["middle/Mul", "middle_Mul", "mid", "dle/mu", "MIDDLE_M"])
def test_an_op_by_its_name_or_a_part(tree: SmallTree, name: str) -> None:
    (found,) = session_of(tree.root).find_ops(name)
    assert found.op.name == "middle/Mul"
    assert found.op in found.graph.ops
    assert found.graph in found.run.file.graphs


def test_a_whole_name_wins_over_a_part_of_others(tree: SmallTree) -> None:
    write_graph(tree.graph, ops_named("a/b", "a/b/c", "x_a_b", "IteratorGetNext", "first/Add"))
    assert [hit.op.name for hit in session_of(tree.root).find_ops("a_b")] == ["a/b"]


def test_the_exact_spelling_wins_over_one_spelled_alike(tree: SmallTree) -> None:
    write_graph(tree.graph, ops_named("a/b", "a_b", "first/Add"))
    for name in ("a/b", "a_b"):
        assert [hit.op.name for hit in session_of(tree.root).find_ops(name)] == [name]
    assert [hit.op.name for hit in session_of(tree.root).find_ops("a.b")] == ["a/b", "a_b"]


def test_an_op_of_the_script_finds_the_fused_op_and_in_the_other_run_itself(tree: SmallTree) -> None:
    fused = graph_op("conv/Conv2Dconv/Relu", "Conv2D", original_names=["conv/Conv2D", "conv/Relu"])
    write_graph(tree.graph, [fused, *ops_named("first/Add")])
    other = small_tree(tree.root, chain(), run="debug_1")
    write_graph(other.graph, ops_named("conv/Conv2D", "conv/Relu", "first/Add"))
    found = session_of(tree.root).find_ops("conv_Relu")
    assert [(hit.run.number, hit.op.name) for hit in found] == [(0, "conv/Conv2Dconv/Relu"), (1, "conv/Relu")]


def test_of_several_ops_an_original_became_the_one_with_its_output(tree: SmallTree) -> None:
    end = graph_op("bn_update", original_names=["bn"])
    end = replace(end, output_descs=(replace(end.output_descs[0], dump_origin_name="bn", dump_origin_index=0),))
    write_graph(tree.graph, [graph_op("bn_reduce", original_names=["bn"]), end, *ops_named("first/Add")])
    assert [hit.op.name for hit in session_of(tree.root).find_ops("bn")] == ["bn_update"]


def test_the_same_op_in_every_run(tree: SmallTree) -> None:
    small_tree(tree.root, chain(), run="debug_1")
    session = session_of(tree.root)
    assert [hit.run.number for hit in session.find_ops("middle/Mul")] == [0, 1]
    assert [hit.run.number for hit in session.find_ops("middle")] == [0, 1]
    assert [hit.run.number for hit in session.find_ops("middle", str(tree.graph))] == [0]


def test_a_part_of_several_names_lists_ten(tree: SmallTree) -> None:
    write_graph(tree.graph, ops_named("first/Add", *(f"block/{number}" for number in range(14))))
    with pytest.raises(UsageError) as error:
        session_of(tree.root).find_ops("block")
    assert error.value.message.startswith("'block' fits 14 ops: block/0, block/1, ")
    assert error.value.message.endswith("block/9 and 4 more")


def test_an_unknown_name_lists_the_closest(tree: SmallTree) -> None:
    with pytest.raises(DataNotFoundError) as error:
        session_of(tree.root).find_ops("midle/Mul")
    assert "no op 'midle/Mul' among 5 ops" in error.value.message
    assert "closest: middle/Mul" in error.value.hint
    with pytest.raises(UsageError, match="empty"):
        session_of(tree.root).find_ops("  ")


def test_closest_names_of_many_are_those_of_a_full_search() -> None:
    known = [f"layer{number}/conv{number % 7}/Conv2D" for number in range(3000)] + ["decoder/attention/softmax"]
    assert closest_names("decodr/atention/softmax", known)[0] == "decoder/attention/softmax"
    assert closest_names("layer1234/conv2/Conv2", known)[0] == "layer1234/conv2/Conv2D"
    assert closest_names("zzz", known) == []


def test_only_what_is_alike_is_offered() -> None:
    known = ["NetOutput", "flatten/Reshape", "trans_Cast_9", "pool1/MaxPool", "conv2/Conv2Dconv2/BiasAddconv2/Relu"]
    assert closest_names("nosuchop", known) == []
    assert closest_names("MaxPol", known) == ["pool1/MaxPool"]
    assert closest_names("pool1/MaxPol", known) == ["pool1/MaxPool"]


def test_an_op_of_the_script_is_offered_where_it_was_fused(tmp_path: Path) -> None:
    fused = graph_op("conv2/Conv2Dconv2/BiasAdd", "Conv2D", original_names=["conv2/Conv2D", "conv2/BiasAdd"])
    graph = tmp_path / "ge_proto_00001_Build.txt"
    graph.write_text(text_graph([fused]))
    with pytest.raises(DataNotFoundError, match="among 1 op of") as error:
        session_of(tmp_path).find_ops("conv2/BiasAd2", str(graph))
    assert error.value.hint.startswith("closest: conv2/BiasAdd")


# --- patterns, filters ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "fits"),
    [
        ("conv1", "a/Conv1/b", True),
        ("a_conv", "a/Conv1/b", True),
        ("conv*", "a/Conv1/b", False),
        ("*conv*", "a/Conv1/b", True),
        ("a/conv?/b", "a_conv1_b", True),
        ("a/conv[12]/b", "a/conv1/b", True),
        ("a/conv[!12]/b", "a/conv1/b", False),
        ("a[", "a[0]", False),
        ("", "anything", True),
    ],
)
def test_patterns(text: str, name: str, fits: bool) -> None:
    assert pattern(text)(name) is fits


def names_of(session: Session, **wanted: str | float | None) -> list[str]:
    listings = list_ops(session.run_graphs(), OpFilter(**wanted), session.cosines)  # type: ignore[arg-type]
    return [row.op.name for listing in listings for row in listing.rows]


def test_filters_combine(tree: SmallTree) -> None:
    fused = replace(graph_op("a/fused", "Conv2D", pass_names=["ConvReluPass"]), kernel_name="te_conv")
    write_graph(tree.graph, [fused, graph_op("a/plain", "Conv2D"), graph_op("b", "Relu"), graph_op("first/Add")])
    session = session_of(tree.root)
    assert names_of(session, name="a", op_type="conv") == [
        "a/fused",
        "a/plain",
    ]
    assert names_of(session, op_type="conv", pass_name="relu") == ["a/fused"]
    assert names_of(session, op_type="relu") == ["b"]
    assert names_of(session, name="b", op_type="Conv2D") == []
    for wrong in ({"name": "zzz"}, {"op_type": "Pool"}, {"pass_name": "zzz"}, {"kernel": "zzz"}):
        with pytest.raises(DataNotFoundError, match="no op with the"):
            names_of(session, **wrong)


def test_numbers_in_execution_order_are_those_of_results(tree: SmallTree) -> None:
    session = session_of(tree.root)
    (analysis,) = compare(session.data)
    in_result = {row.op_name: row.index for row in analysis.rows}
    (listing,) = list_ops(session.run_graphs(), OpFilter(), session.cosines)
    assert {row.op.name: row.index for row in listing.rows} == in_result
    assert [row.dumped for row in listing.rows] == [False, True, True, True, True]
    assert {row.op.name for row in listing.rows if row.cosine is not None} == {
        "IteratorGetNext", "first/Add", "middle/Mul", "last/Sub",
    }  # fmt: skip


def test_dump_files_that_fit(tree: SmallTree) -> None:
    session = session_of(tree.root)
    (listing,) = list_dumps(session.data.run_folders(), "mid", None)
    (row,) = listing.rows
    assert row.file.path == str(tree.dumps["middle/Mul"])
    assert row.size == tree.dumps["middle/Mul"].stat().st_size
    assert listing.total == 4
    assert [len(one.rows) for one in list_dumps(session.data.run_folders(), None, "A*")] == [1]
    with pytest.raises(DataNotFoundError, match="no dump file of an op with the type 'Conv'"):
        list_dumps(session.data.run_folders(), None, "Conv")


# --- cosines ----------------------------------------------------------------------------------------------------------


def test_the_lowest_output_cosine_of_the_newest_result(tree: SmallTree) -> None:
    session = session_of(tree.root)
    assert session.cosines() == {}
    session.compare()
    assert session.cosines()["middle/Mul"] == 1.0
    write_dump(tree.dumps["middle/Mul"], "middle/Mul", [values(5, 6, 7)], [values(*range(1024, 0, -1))])
    session.compare()
    # sum(i (1025 - i)) / sum(i²) for i = 1 … 1024
    up = sum(i * (1025 - i) for i in range(1, 1025)) / sum(i * i for i in range(1, 1025))
    assert session.cosines()["middle_Mul"] == pytest.approx(up, abs=1e-6)


def test_a_result_that_cannot_be_read_gives_no_cosines(tree: SmallTree) -> None:
    folder = tree.root / "temp" / "vector_compare" / "20260101000000"
    folder.mkdir(parents=True)
    (folder / "result_20260101000000.csv").write_text("no result\n")
    assert session_of(tree.root).cosines() == {}


def shown_cosines(session: Session) -> list[int]:
    """How many ops of each run have a cosine."""
    listings = list_ops(session.run_graphs(), OpFilter(), session.cosines)
    return [sum(row.cosine is not None for row in listing.rows) for listing in listings]


def source_file(session: Session) -> Path:
    """What says of what the only result is."""
    (path,) = session.workspace.root.rglob("result_*.json")
    return path


@pytest.mark.parametrize("compared", [0, 1])
def test_cosines_are_shown_for_the_run_they_are_of(tree: SmallTree, compared: int) -> None:
    """Both runs have the same ops."""
    small_tree(tree.root, chain(), run="debug_1")
    session = session_of(tree.root)
    session.compare(str(tree.root / "npu" / f"debug_{compared}"), str(tree.root / "tf" / "dump"))
    session.workspace.notes.clear()
    expected = [4, 0] if compared == 0 else [0, 4]
    assert shown_cosines(session) == expected
    moved = tree.root.with_name("moved")
    tree.root.rename(moved)
    assert shown_cosines(session_of(moved)) == expected
    shutil.copytree(moved, tree.root)
    assert shown_cosines(session_of(moved)) == shown_cosines(session_of(tree.root)) == expected
    assert session.workspace.notes == []


def test_of_two_runs_with_its_ops_a_result_without_source_is_of_neither(tree: SmallTree) -> None:
    other = small_tree(tree.root, chain(), run="debug_1")
    session = session_of(tree.root)
    session.compare(None, str(tree.root / "tf" / "dump"))
    source_file(session).unlink()
    assert shown_cosines(session) == [0, 0]
    (note,) = (note for note in session.workspace.notes if "cosines" in str(note))
    assert "does not say what it is of, and its ops are those of debug_0 and debug_1" in str(note)
    assert len(session.cosines()) == 4
    write_graph(other.graph, ops_named("first/Add", "x", "y", "z"))
    assert shown_cosines(session) == [4, 0]


def test_a_result_of_another_dump_is_of_no_run(tree: SmallTree, tmp_path: Path) -> None:
    other = small_tree(tmp_path / "other", chain())
    session = session_of(tree.root)
    session.compare(str(other.leaf), str(other.root / "tf" / "dump"), options=CompareOptions(graph=str(other.graph)))
    assert shown_cosines(session) == [0]
    assert any(f"the newest result is of another dump, {other.leaf}" in str(note) for note in session.workspace.notes)


def test_without_the_dump_a_result_is_of_its_graph(tree: SmallTree) -> None:
    session = session_of(tree.root)
    session.compare()
    shutil.rmtree(tree.dump_path)
    assert shown_cosines(session_of(tree.root)) == [4]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"version": 2}', '{"version": 1}', '{"version": 1, "npu": "x"}', "[" * 30_000,
             '{"version": 1, "npu": {"path": 3, "from_here": ""}, "golden": {}, "graph": {}}',
             '{"version": 1, "npu": {"path": "a\\u0000", "from_here": ""}, "golden": {}, "graph": {}}'],
)  # fmt: skip
def test_an_odd_source_is_none(tree: SmallTree, text: str) -> None:
    session = session_of(tree.root)
    session.compare()
    source_file(session).write_text(text)
    (result,) = session.results(None, 0.98)
    analysis = result.analysis
    assert analysis.source is None
    assert shown_cosines(session) == [4]  # of the only run


# --- looking again ----------------------------------------------------------------------------------------------------


def settled(root: Path) -> None:
    """As if everything had been written long ago, so that nothing is looked at again for being new."""
    for folder, _, names in os.walk(root):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            os.utime(path, (1, 1))


def test_nothing_is_read_again_when_nothing_changed(tree: SmallTree) -> None:
    settled(tree.root.parent)
    session = session_of(tree.root)
    assert session.run_graphs() is session.run_graphs()
    assert session.names.op_names() is session.names.op_names()
    first = session.run_graphs()
    session.refresh()
    assert session.run_graphs() is not first


def test_new_graphs_dumps_and_runs_are_seen(tree: SmallTree) -> None:
    settled(tree.root.parent)
    session = session_of(tree.root)
    assert len(session.names.dump_file_names()) == 4
    assert [run.file.path for run in session.run_graphs()] == [str(tree.graph)]
    # in place, and the folder's time stamp stays
    before = tree.graph.parent.stat()
    write_graph(tree.graph, [*[node.op() for node in chain()], graph_op("fresh")])
    os.utime(tree.graph.parent, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "fresh" in session.names.op_names()
    write_dump(tree.leaf / "Add.fresh.9.0.1772443900000000", "fresh", [], [values(1)])
    assert "Add.fresh.9.0.1772443900000000" in session.names.dump_file_names()
    assert session.run_graphs()[0].total == 5
    small_tree(tree.root, chain(), run="debug_1")
    assert [run.number for run in session.run_graphs()] == [0, 1]
    write_golden(tree.root / "tf" / "dump", "fresh", 0, values(1))
    assert any(name.startswith("fresh.") for name in session.names.golden_file_names())
    shutil.rmtree(tree.root / "npu" / "debug_1")
    assert [run.number for run in session.run_graphs()] == [0]


def test_a_dump_that_appears_where_there_was_none(tree: SmallTree) -> None:
    away = tree.root / "away"
    tree.dump_path.rename(away)
    settled(tree.root.parent)
    session = session_of(tree.root)
    assert session.run_graphs()[0].leaf is None
    away.rename(tree.dump_path)
    assert session.run_graphs()[0].leaf is not None


def test_a_graph_that_changes_while_it_is_read_is_read_again(tree: SmallTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it lies: of a folder beside the dump files nothing is noted before."""
    beside = tree.leaf / "graph"
    tree.graph.parent.rename(beside)
    settled(tree.root.parent)
    graph = beside / tree.graph.name
    find = catalog.find_run_graphs

    def find_and_change(*args: Any, **options: Any) -> Any:
        found = find(*args, **options)
        write_graph(graph, [*[node.op() for node in chain()], graph_op("fresh")])
        os.utime(graph, (2, 2))
        return found

    session = session_of(tree.root)
    monkeypatch.setattr(catalog, "find_run_graphs", find_and_change)
    assert len(session.run_graphs()[0].file.ops) == 5
    monkeypatch.undo()
    monkeypatch.chdir(tree.root.parent)
    assert len(session.run_graphs()[0].file.ops) == 6


def test_tab_and_a_command_do_not_meet(tree: SmallTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tab completes in a thread: what it reads is not forgotten by `refresh` before it has read it."""
    session = session_of(tree.root)
    find = catalog.find_run_graphs
    reading, forgotten = threading.Event(), threading.Event()
    forgotten_while_reading = []

    def slowly(*args: Any, **options: Any) -> Any:
        reading.set()
        forgotten_while_reading.append(forgotten.wait(0.3))
        return find(*args, **options)

    monkeypatch.setattr(catalog, "find_run_graphs", slowly)
    with ThreadPoolExecutor(1) as tab:
        names = tab.submit(session.names.op_names)
        assert reading.wait(10)
        session.refresh()
        forgotten.set()
        assert len(names.result(10)) == 5
    assert forgotten_while_reading == [False]


def test_many_threads_find_the_same(tree: SmallTree) -> None:
    session = session_of(tree.root)
    with ThreadPoolExecutor(4) as threads:
        names = [threads.submit(session.names.op_names) for _ in range(40)]
        for _ in range(20):
            session.refresh()
            assert len(session.run_graphs()) == 1
        assert {len(one.result(10)) for one in names} == {5}


# --- the graph a user chose -------------------------------------------------------------------------------------------


def test_a_chosen_graph_is_used_everywhere_and_remembered(tree: SmallTree) -> None:
    other = write_graph(tree.graph.with_name(OTHER_GRAPH), [node.op() for node in chain()], name="ge_default_other")
    session = session_of(tree.root)
    session.data.use_graph(str(other))
    for one in (session, session_of(tree.root)):
        (run,) = one.run_graphs()
        assert (run.file.path, run.reason) == (str(other), CHOSEN)
        (result,) = one.compare()
        assert result.graph_path == str(other)
        (named,) = one.run_graphs(str(tree.graph))
        assert named.file.path == str(tree.graph)
    session.data.use_graph(None)
    for one in (session, session_of(tree.root)):
        assert one.run_graphs()[0].file.path == str(tree.graph)
    assert list((tree.root / "temp").glob("*.json")) == []


def test_the_choice_moves_with_the_data_folder(tree: SmallTree) -> None:
    other = write_graph(tree.graph.with_name(OTHER_GRAPH), [node.op() for node in chain()], name="ge_default_other")
    session_of(tree.root).data.use_graph(str(other))
    moved = tree.root.with_name("moved")
    tree.root.rename(moved)
    assert session_of(moved).run_graphs()[0].file.path == str(moved / other.relative_to(tree.root))


def test_a_chosen_graph_that_is_damaged_later_can_be_left(tree: SmallTree) -> None:
    other = write_graph(tree.graph.with_name(OTHER_GRAPH), [node.op() for node in chain()])
    session_of(tree.root).data.use_graph(str(other))
    other.write_text("graph {\n")
    session = session_of(tree.root)
    for use in (session.run_graphs, session.compare):
        with pytest.raises(FormatError) as error:
            use()
        assert str(other) in error.value.message
        assert "`graphs --use auto`" in error.value.hint
    with pytest.raises(FormatError) as error:  # asked for by name, it is not the choice that is in the way
        session.run_graphs(str(other))
    assert "auto" not in error.value.hint
    session.data.use_graph(None)
    assert session.run_graphs()[0].file.path == str(tree.graph)


def test_a_chosen_graph_of_another_run_does_not_take_this_one(tree: SmallTree) -> None:
    other = small_tree(tree.root, chain(), run="debug_1")
    session = session_of(tree.root)
    session.data.use_graph(str(other.graph))
    assert [(run.number, run.file.path) for run in session.run_graphs()] == [
        (0, str(tree.graph)),
        (1, str(other.graph)),
    ]
    (analysis,) = compare(session.data)
    assert analysis.leaf is not None
    assert analysis.leaf.graph is not None
    assert analysis.leaf.graph.file.path == str(tree.graph)
    assert (str(other.graph), Message("note.data.graph.chosen_other_run")) in (analysis.leaf.graph.rejected)


def test_a_chosen_graph_of_one_model_leaves_the_others_theirs(tree: SmallTree) -> None:
    tree.copy_leaf("0", "ge_default_other", "2", "0")
    ops = [node.op() for node in chain()]
    other = write_graph(tree.graph.with_name(OTHER_GRAPH), ops, name="ge_default_other")
    session = session_of(tree.root)
    session.data.use_graph(str(other))
    assert [run.file.path for run in session.run_graphs()] == [str(tree.graph), str(other)]


def test_a_graph_that_does_not_fit_the_dump_cannot_be_chosen(tree: SmallTree, tmp_path: Path) -> None:
    """No command would use it."""
    session = session_of(tree.root)
    for path in (tree.graph.with_name(OTHER_GRAPH), tmp_path / "else.txt"):
        write_graph(path, ops_named("first/Add", "eval/b"), name="eval")
        with pytest.raises(UsageError, match="does not fit: it names 1 of 4 dumped ops of debug_0"):
            session.data.use_graph(str(path))
    stage = tree.graph.with_name(tree.graph.name.replace("Build", "PreRunBegin"))
    shutil.copy(tree.graph, stage)
    with pytest.raises(UsageError, match="another compiler stage, which is not what ran"):
        session.data.use_graph(str(stage))
    assert session.data.chosen_graph() is None
    half = write_graph(tree.graph.with_name(OTHER_GRAPH), ops_named("first/Add", "middle/Mul"), name="eval")
    session.data.use_graph(str(half))
    (run,) = session.run_graphs()
    assert (run.number, run.file.path, run.matched, run.total) == (0, str(half), 2, 4)


def test_without_a_dump_any_graph_that_ran_can_be_chosen(tree: SmallTree, tmp_path: Path) -> None:
    beside = write_graph(tree.graph.with_name(OTHER_GRAPH), ops_named("eval/a"), name="eval")
    elsewhere = write_graph(tmp_path / "else.txt", ops_named("x"), name="else")
    shutil.rmtree(tree.dump_path)
    session = session_of(tree.root)
    assert [run.file.path for run in session.run_graphs()] == [str(tree.graph)]
    session.data.use_graph(str(beside))
    (run,) = session.run_graphs()
    assert (run.number, run.leaf, run.file.path) == (0, None, str(beside))
    session.data.use_graph(str(elsewhere))
    assert [(run.number, run.file.path) for run in session.run_graphs()] == [(None, str(elsewhere))]


def test_a_choice_that_a_later_dump_does_not_fit_is_not_used(tree: SmallTree, tmp_path: Path) -> None:
    """By no command: `ls` and `vc` have the same rule."""
    other = write_graph(tmp_path / "else.txt", ops_named("x"), name="else")
    moved = tree.dump_path.rename(tmp_path / "kept")
    session = session_of(tree.root)
    session.data.use_graph(str(other))
    moved.rename(tree.dump_path)
    (run,) = session.run_graphs()
    assert run.file.path == str(tree.graph)
    assert dict(run.rejected)[str(other)] == Message("note.data.graph.chosen_misfit", matched=0, total=4)
    (analysis,) = compare(session.data)
    assert analysis.leaf is not None
    assert analysis.leaf.graph is not None
    assert analysis.leaf.graph.file.path == str(tree.graph)


def test_a_damaged_graph_of_a_run_is_told_of(tree: SmallTree, tmp_path: Path) -> None:
    """And is not passed over for one of another run, or for a worse one, in silence."""
    shutil.copytree(tree.root / "npu" / "debug_0", tree.root / "npu" / "debug_1")
    tree.graph.write_text("graph {\n")
    session = session_of(tree.root)
    assert [run.number for run in session.run_graphs()] == [1]
    ((number, model, reason),) = ((one.number, one.model, one.reason) for one in session.data.missing_graphs())
    assert (number, model) == (0, MODEL)
    assert str(tree.graph) in str(reason)
    (note,) = session.workspace.notes
    assert note == Message("note.data.lost_graph", number=0, model=None, reason=reason)
    # One that fits is used, with a word on the one that may have fitted better.
    better = write_graph(tree.graph.with_name(OTHER_GRAPH), ops_named("first/Add", "middle/Mul"), name="eval")
    session = session_of(tree.root)
    assert [run.number for run in session.run_graphs()] == [0, 1]
    (note,) = session.workspace.notes
    assert str(note).startswith(f"cannot be read: {tree.graph}")
    assert f"the graph in use, {better}, is only the best of the others" in str(note)
    (analysis,) = compare(session.data)
    assert analysis.leaf is not None
    assert note in analysis.leaf.notes
    # One that does not fit is not taken.
    write_graph(better, ops_named("x"), name="eval")
    session = session_of(tree.root)
    (words,) = (str(one.reason) for one in session.data.missing_graphs())
    assert words.startswith(f"no graph fits the dump: cannot be read: {tree.graph}")
    assert words.endswith("the text is cut off; the best of the others names 0 of 4 dumped ops")


def test_a_chosen_graph_that_is_gone_is_a_note(tree: SmallTree, tmp_path: Path) -> None:
    other = tmp_path / "else.txt"
    shutil.copy(tree.graph, other)
    session_of(tree.root).data.use_graph(str(other))
    other.unlink()
    session = session_of(tree.root)
    for _ in range(2):
        assert session.run_graphs()[0].file.path == str(tree.graph)
    assert [note for note in session.workspace.notes if str(other) in str(note)] == [session.workspace.notes[0]]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"graph": 5}',
        '{"graph": ""}',
        '{"graph": "a\\u0000b"}',
        "[" * 5000,
        "\xff",
        '{"graph": "no/such"}',
    ],
    ids=["empty", "list", "nothing", "number", "no name", "zero byte", "deep", "no utf8", "not there"],
)
def test_a_choice_that_cannot_be_understood_is_none(tree: SmallTree, text: str) -> None:
    (tree.root / "temp").mkdir()
    (tree.root / "temp" / "graph_choice.json").write_text(text, encoding="latin-1")
    assert session_of(tree.root).run_graphs()[0].file.path == str(tree.graph)


def test_what_is_no_graph_cannot_be_chosen(tree: SmallTree) -> None:
    session = session_of(tree.root)
    with pytest.raises(FormatError):
        session.data.use_graph(str(tree.dumps["middle/Mul"]))
    with pytest.raises(DataNotFoundError):
        session.data.use_graph("no/such.txt")
    assert session.data.chosen_graph() is None


def test_a_choice_that_cannot_be_remembered_holds_for_the_session(tree: SmallTree, tmp_path: Path) -> None:
    other = write_graph(tree.graph.with_name(OTHER_GRAPH), [node.op() for node in chain()], name="ge_default_other")
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    session = Session(Settings(data=tree.root, work=blocked))
    with pytest.raises(OutputError):
        session.data.use_graph(str(other))
    assert session.run_graphs()[0].file.path == str(other)


# --- surveys ----------------------------------------------------------------------------------------------------------


def test_a_survey_has_every_graph_file(tree: SmallTree, tmp_path: Path) -> None:
    damaged = tree.graph.with_name(OTHER_GRAPH)
    damaged.write_text("graph {\n")
    stage = tree.graph.with_name(tree.graph.name.replace("Build", "PreRunBegin"))
    shutil.copy(tree.graph, stage)
    here = write_graph(tmp_path / graph_file_name(1, 1), ops_named("first/Add", "stranger"), name="here")
    survey = survey_graphs(session_of(tree.root).data)
    rows = {os.path.abspath(row.path): row for row in survey.rows}
    assert set(rows) == {str(tree.graph), str(damaged), str(here)}
    used = rows[str(tree.graph)]
    assert (used.in_use, used.op_count, used.matched, used.dumped) == (True, 5, 4, 4)
    assert (used.graph_names, used.data_sources) == ((MODEL,), ("IteratorV2", "GetNext"))
    assert used.size == tree.graph.stat().st_size
    assert OTHER_GRAPH in str(rows[str(damaged)].error)
    assert (rows[str(here)].matched, rows[str(here)].dumped, rows[str(here)].in_use) == (1, 4, False)
    assert (survey.unreadable, survey.other_stages, survey.problem) == (1, (("PreRunBegin", 1),), None)


def test_a_survey_without_a_graph_that_fits_says_why(tree: SmallTree) -> None:
    write_graph(tree.graph, ops_named("a", "b"), name="stranger")
    survey = survey_graphs(session_of(tree.root).data)
    assert [row.in_use for row in survey.rows] == [False]
    assert "names 0 of 4 dumped ops" in str(survey.problem)


def test_a_search_looks_into_all_stages(tree: SmallTree) -> None:
    stage = tree.graph.with_name(tree.graph.name.replace("Build", "PreRunBegin"))
    write_graph(stage, ops_named("middle/Mul", "gone/Mul"))
    tree.graph.with_name(OTHER_GRAPH).write_text("{")
    found = {os.path.basename(one.path): one for one in search_graphs(session_of(tree.root).data, "*mul")}
    assert found[tree.graph.name].ops == (("middle/Mul", "Mul"),)
    assert found[stage.name].ops == (("middle/Mul", "Add"), ("gone/Mul", "Add"))
    assert (found[stage.name].stage, found[stage.name].op_count) == ("PreRunBegin", 2)
    assert found[OTHER_GRAPH].error
    with pytest.raises(DataNotFoundError) as error:
        search_graphs(session_of(tree.root).data, "midle/Mul")
    assert "1 of them cannot be read" in error.value.message
    assert "middle/Mul" in error.value.hint


# --- overview and completion ------------------------------------------------------------------------------------------


def test_the_overview_counts_by_name(tree: SmallTree, tmp_path: Path) -> None:
    tree.copy_leaf("1", MODEL, "1", "12")
    tree.copy_leaf("0", MODEL, "1", "3", time="20250101000000")
    (tree.leaf / "Opdebug.Node_OpDebug.1.0.1772443800000099").write_bytes(b"")
    (tree.leaf / "mapping.csv").write_text("")
    (tree.leaf / "123").write_bytes(b"")
    overflow = tree.root / "overflow" / "dump" / STAMP
    overflow.mkdir(parents=True)
    (overflow / "Opdebug.Node_OpDebug.1.0.1772443800000099").write_bytes(b"")
    (overflow / "OpDebug.Node_OpDebug.2.0.1772443800000100").write_bytes(b"")
    (overflow / "Add.a.1.0.1772443800000099").write_bytes(b"")
    shutil.copy(tree.graph, tmp_path)
    view = session_of(tree.root).overview()
    assert view.runs == (
        RunOverview(
            number=0,
            graph_files=1,
            dumps=(
                DumpOverview(time=STAMP, devices=("0", "1"), models=(MODEL,), steps=("0", "12"), files=9),
                DumpOverview(time="20250101000000", devices=("0",), models=(MODEL,), steps=("3",), files=4),
            ),
        ),
    )
    assert view.runs[0].dump_files == 13
    assert (view.exists, view.is_empty, view.graphs_here, view.benchmark_tensors, view.overflow_files) == (
        True, False, 1, len(tree.goldens), 2,
    )  # fmt: skip
    assert view.newest_result == ""
    session = session_of(tree.root)
    session.compare()
    assert session.overview().newest_result == session.names.result_paths()[0]
    assert os.path.isfile(session.overview().newest_result)


def test_the_overview_opens_nothing(tree: SmallTree, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> object:
        raise AssertionError("a file was opened")

    session = session_of(tree.root)
    monkeypatch.setattr("builtins.open", refuse)
    monkeypatch.setattr("os.open", refuse)
    assert session.overview().runs[0].dump_files == 4


def test_no_data_is_a_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    view = session_of(tmp_path / "nothing").overview()
    assert (view.exists, view.is_empty, view.runs) == (False, True, ())
    view = session_of(tmp_path).overview()
    assert (view.exists, view.is_empty) == (True, True)
    names = session_of(tmp_path / "nothing").names
    for listed in (
        names.op_names, names.op_types, names.pass_names, names.kernel_names, names.graph_paths, names.result_paths,
        names.dump_file_names, names.golden_file_names,
    ):  # fmt: skip
        assert listed() == ()
    assert list(tmp_path.iterdir()) == []


def test_names_for_completion(tree: SmallTree) -> None:
    fused = graph_op("a/fused", "Conv2D", pass_names=["SomePass"])
    write_graph(tree.graph, [fused, *[node.op() for node in chain()]])
    session = session_of(tree.root)
    assert session.names.op_names() == tuple(sorted({"a/fused", *(node.name for node in chain())}))
    assert session.names.op_types() == ("Add", "Conv2D", "GetNext", "IteratorV2", "Mul", "Sub")
    assert session.names.pass_names() == ("SomePass",)
    assert [name[:10] for name in session.names.kernel_names() if "conv2d" in name] == ["te_conv2d_"]
    assert session.names.graph_paths() == (str(tree.graph.relative_to(tree.root.parent)),)
    assert session.names.dump_file_names() == tuple(sorted(path.name for path in tree.dumps.values()))
    assert session.names.golden_file_names() == tuple(sorted(path.name for path in tree.goldens.values()))
    session.compare()
    (result,) = session.names.result_paths()
    assert Path(result).is_file()


def test_the_choice_is_a_small_file_of_its_own(tree: SmallTree) -> None:
    session_of(tree.root).data.use_graph(str(tree.graph))
    found = json.loads((tree.root / "temp" / "graph_choice.json").read_text())
    assert found == {"graph": str(tree.graph.relative_to(tree.root))}
    assert sorted(path.name for path in (tree.root / "temp").iterdir()) == ["graph_choice.json"]


def test_a_part_lists_the_names_that_begin_with_it_first(tree: SmallTree) -> None:
    write_graph(tree.graph, ops_named("conv1/Conv2D", "gradients/conv2/Grad", "conv2/BiasAdd", "conv2/bias"))
    with pytest.raises(UsageError) as error:
        session_of(tree.root).find_ops("conv2")
    assert error.value.message.endswith("ops: conv2/BiasAdd, conv2/bias, gradients/conv2/Grad, conv1/Conv2D")
