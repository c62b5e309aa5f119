"""The public Python interface on the demo, whose truth is known."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from small_tree import faulty_chain, small_tree

import precision_tool
from precision_tool.lib.api import CompareOptions, Resources, Session
from precision_tool.lib.compare.result_csv import read_result
from precision_tool.lib.compare.scheduler import THIS_THREAD
from precision_tool.lib.data.settings import Settings
from precision_tool.lib.data.sides import find_golden
from precision_tool.lib.demo.generate import DemoTruth, generate_demo
from precision_tool.lib.diagnose.pipeline import Diagnosis, Leaf, diagnose_leaf
from precision_tool.lib.diagnose.study_plan import StudyOptions
from precision_tool.lib.messages.errors import DataNotFoundError, PrecisionToolError, UsageError


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> DemoTruth:
    """A demo tree with the default fault."""
    return generate_demo(tmp_path_factory.mktemp("api") / "precision_data", seed=4)


def test_compare_gives_every_cosine_and_the_culprit(demo: DemoTruth) -> None:
    (result,) = precision_tool.compare(demo.dump_dir, demo.golden_dir, workers=1)
    assert result.findings()[0].op_name == demo.culprit
    assert result.graph_path == str(demo.graph_path)
    found = {row.pair.tensor_index: row for row in result.rows if row.pair.slot}
    assert set(found) == set(demo.tensors)
    for name, truth in demo.tensors.items():
        metrics = found[name].metrics
        if truth.cosine is None:
            assert metrics is None
        elif found[name].reason != "This tensor is scalar.":
            assert metrics is not None
            assert metrics.cosine == pytest.approx(truth.cosine, abs=1e-6)


def test_the_table_holds_the_rows(demo: DemoTruth) -> None:
    (result,) = precision_tool.compare(demo.dump_dir, demo.golden_dir, graph=demo.graph_path)
    table = result.to_numpy()
    assert len(table) == len(result.rows)
    compared = table[table["status"] == "compared"]
    assert not np.isnan(compared["cosine"]).any()
    assert np.isnan(table[table["status"] != "compared"]["cosine"]).all()
    first = next(row for row in result.rows if row.metrics is not None)
    line = table[(table["op_name"] == first.pair.op_name) & (table["slot"] == first.pair.slot)][0]
    assert first.metrics is not None
    assert line["max_absolute_error"] == first.metrics.max_absolute_error


def test_the_csv_is_the_same_as_the_commands_write(demo: DemoTruth, tmp_path: Path) -> None:
    (result,) = precision_tool.compare(demo.dump_dir, demo.golden_dir)
    result.write_csv(tmp_path / "result.csv")
    rows = read_result(str(tmp_path / "result.csv"))
    assert [row.tensor_index for row in rows] == [row.pair.tensor_index for row in result.rows]


def test_progress_ends_at_all_bytes(demo: DemoTruth) -> None:
    seen: list[tuple[int, int]] = []
    precision_tool.compare(demo.dump_dir, demo.golden_dir, progress=lambda done, total: seen.append((done, total)))
    assert seen[0][0] == 0
    assert seen[-1][0] == seen[-1][1] > 0
    assert seen == sorted(seen)


def test_errors_are_the_users(tmp_path: Path) -> None:
    with pytest.raises(PrecisionToolError, match="no such folder") as caught:
        precision_tool.compare(tmp_path / "none", tmp_path)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("make", "values"),
    [
        (CompareOptions, {"threshold": 9}), (CompareOptions, {"threshold": "x"}), (CompareOptions, {"limit": -1}),
        (CompareOptions, {"worst": 1.5}), (Resources, {"workers": -3}), (StudyOptions, {"threshold": float("nan")}),
    ],
)  # fmt: skip
def test_options_out_of_range_are_errors(make: Callable[..., Any], values: dict[str, Any]) -> None:
    ((name, value),) = values.items()
    with pytest.raises(UsageError, match=f"{name}: must be .* but is {value!r}"):
        make(**values)
    assert CompareOptions(threshold="0.5").threshold == 0.5  # type: ignore[arg-type]  # as a setting is read


def test_results_are_read_with_a_threshold_in_range(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="threshold: must be"):
        Session(Settings(data=tmp_path)).results(threshold=2)


def test_load_graph(demo: DemoTruth) -> None:
    graph = precision_tool.load_graph(str(demo.graph_path))
    assert demo.culprit in graph.graphs[0].by_name


def test_every_command_runs_from_python(tmp_path: Path) -> None:
    small_tree(tmp_path / "precision_data", faulty_chain())
    data = tmp_path / "precision_data"
    printed = {}
    for call in (("vc",), ("vcs", "--fail"), ("ls",), ("ni", "middle/Mul"), ("pt", "middle/Mul"), ("cp", "middle/Mul"),
                 ("graphs",), ("dc", "middle/Mul"), ("ac",)):  # fmt: skip
        file = io.StringIO()
        code = precision_tool.run(*call, data=data, file=file)
        assert code == (1 if "--fail" in call else 0)
        printed[call[0]] = file.getvalue()
    assert "middle/Mul" in printed["ls"]
    assert "Verdict" in printed["ac"]
    with pytest.raises(DataNotFoundError, match="no op"):
        precision_tool.run("ni", "nothing like it", data=data)
    with pytest.raises(UsageError, match="no such command"):
        precision_tool.run("data", "x")


def test_an_open_data_folder_answers_with_values(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "precision_data", faulty_chain())
    session = precision_tool.open_data(tree.root)
    (found,) = session.find_ops("middle_Mul")
    assert (found.op.type, found.run.number) == ("Mul", 0)
    slots = {pair.slot: pair.golden_tensor for pair in session.pairs_of(found)}
    assert slots == {"input:0": "first/Add:0", "output:0": "middle/Mul:0"}
    assert session.cosines() == {}
    with pytest.raises(DataNotFoundError, match="no comparison result yet"):
        session.results()
    (made,) = session.compare()
    (read,) = session.results()
    assert type(made) is type(read)
    assert (read.path, read.graph_path) == (made.path, made.graph_path) == (made.path, str(tree.graph))
    for result in (made, read):
        assert (result.threshold, result.findings()[0].op_name) == (session.settings.threshold, "middle/Mul")
        assert result.verdict is not None
        assert result.verdict.culprit == "middle/Mul"


def test_what_is_shown_of_objects_is_short(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "precision_data", faulty_chain())
    session = precision_tool.open_data(tree.root)
    assert str(tree.root) in repr(session)
    (result,) = session.compare()
    assert repr(result).startswith("<CompareResult ")
    for value in (session, result, result.analysis, result.diagnosis):
        assert len(repr(value)) < 8000
    (run,) = session.run_graphs()
    assert repr(result.rows) == f"<Table: {len(result.rows)} rows>"
    assert repr(run.file.graphs[0]) == f"<Graph {run.file.graphs[0].name}: {len(run.file.ops)} ops>"
    assert repr(session.data) == f"<DataFolder {tree.root}>"


def test_a_data_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError, match="nosuch"):
        precision_tool.open_data(tmp_path / "nosuch")


def test_a_notebook_shows_the_findings_and_then_the_verdict(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "precision_data", faulty_chain())
    (result,) = precision_tool.open_data(tree.root).compare()
    before = result._repr_html_()
    assert before.startswith("<pre")
    assert "middle/Mul" in before
    assert result.verdict is not None
    assert len(result._repr_html_()) > len(before)


def test_to_pandas_has_the_columns_of_the_array(demo: DemoTruth, monkeypatch: pytest.MonkeyPatch) -> None:
    (result,) = precision_tool.compare(demo.dump_dir, demo.golden_dir)
    stand_in = ModuleType("pandas")
    vars(stand_in)["DataFrame"] = dict
    monkeypatch.setitem(sys.modules, "pandas", stand_in)
    frame = result.to_pandas()
    assert tuple(frame) == result.to_numpy().dtype.names
    assert len(frame["op_name"]) == len(result.rows)


def test_to_pandas_without_pandas_says_so(demo: DemoTruth, monkeypatch: pytest.MonkeyPatch) -> None:
    (result,) = precision_tool.compare(demo.dump_dir, demo.golden_dir)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="pandas"):
        result.to_pandas()


def test_a_leaf_is_diagnosed_the_same_in_another_process(demo: DemoTruth) -> None:
    (result,) = precision_tool.compare(demo.dump_dir, demo.golden_dir)
    assert result.leaf is not None
    golden = find_golden(str(demo.golden_dir))
    here = diagnose_leaf(Leaf(dump=result.leaf, golden=golden), resources=THIS_THREAD)
    with ProcessPoolExecutor(1) as pool:
        elsewhere = pool.submit(diagnose_leaf, Leaf(dump=result.leaf, golden=golden), resources=THIS_THREAD).result()
    assert here.verdict is not None
    assert here.plan == here.verdict.next
    assert here.verdict.culprit == demo.culprit
    assert ranking(here) == ranking(elsewhere) == ranking(result.diagnosis)


def ranking(diagnosis: Diagnosis) -> list[tuple[str, str, float]]:
    """What is to blame, why and how sure it is, without how long each op took."""
    assert diagnosis.verdict is not None
    return [(one.culprit, str(one.cause), one.confidence) for one in diagnosis.verdict.suspects]


def test_a_tensor_computes_as_an_array(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "precision_data", faulty_chain())
    tensor = precision_tool.open_data(tree.root).tensor("middle/Mul:output:0")
    array = np.asarray(tensor)
    assert (tensor == array).all()
    np.testing.assert_array_equal(tensor + tensor, array + array)
    np.testing.assert_array_equal(1 - tensor, 1 - array)
    assert (tensor.max(), tensor.sum(), np.abs(tensor).mean()) == (array.max(), array.sum(), np.abs(array).mean())
    np.testing.assert_array_equal(tensor.reshape(-1), array.reshape(-1))
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = tensor.nothing_like_it
    with pytest.raises(TypeError, match="cannot be written to"):
        np.add(array, array, out=tensor)  # type: ignore[call-overload]
