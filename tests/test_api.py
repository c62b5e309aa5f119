"""The public Python interface on the demo, whose truth is known."""

from __future__ import annotations

import io
import re
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from command_line import tool
from small_tree import faulty_chain, small_tree

import precision_tool
from precision_tool.lib.api import CompareOptions, Resources, Session
from precision_tool.lib.compare.result_csv import read_result
from precision_tool.lib.compare.scheduler import THIS_THREAD
from precision_tool.lib.data.settings import Settings
from precision_tool.lib.data.sides import find_golden
from precision_tool.lib.demo.generate import DemoTruth, generate_demo
from precision_tool.lib.demo.msprobe_demo import generate_msprobe
from precision_tool.lib.demo.ranks import generate_ranks
from precision_tool.lib.diagnose.pipeline import Diagnosis, Leaf, diagnose_leaf
from precision_tool.lib.diagnose.study_plan import StudyOptions
from precision_tool.lib.messages.errors import DataNotFoundError, PrecisionToolError, UsageError
from precision_tool.lib.messages.language import language, use_language
from precision_tool.lib.view import notebook
from precision_tool.lib.view.compare_screen import leaf_title


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
    assert "middle/Mul" in before
    assert result.verdict is not None
    assert len(result._repr_html_()) > len(before)


def test_a_notebook_shows_the_verdict_that_ac_stored(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "precision_data", faulty_chain())
    tool("ac", "-c", cwd=tmp_path)
    (result,) = precision_tool.open_data(tree.root).results()
    shown = result._repr_html_()
    assert "verdict" not in vars(result), "nothing is recomputed for it"
    assert result.verdict is not None
    assert result._repr_html_() == shown


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


def test_a_diagnosis_names_the_culprit_and_shows_it(demo: DemoTruth, capfd: pytest.CaptureFixture[str]) -> None:
    root = demo.fusion_path.parents[1]
    data = precision_tool.open_data(root)
    diagnosis = data.diagnose(resources=THIS_THREAD)
    assert (diagnosis.culprit, diagnosis.culprits) == (demo.culprit, (demo.culprit,))
    assert (diagnosis.cause, diagnosis.causes) == ("fusion", ("fusion",))
    assert 0.9 < diagnosis.confidence <= 1
    assert diagnosis.evidence
    assert [op.name for op in diagnosis.ops if op.is_wrong] == [demo.culprit]
    assert any(step.line.endswith(f"--data {root} ni {demo.culprit}") for step in diagnosis.next)
    html = diagnosis._repr_html_()
    assert html.index(str(demo.culprit)) < html.index(diagnosis.evidence[0]) < html.index(diagnosis.next[0].line)
    assert str(demo.culprit) in str(diagnosis)
    (result,) = diagnosis.results
    (read,) = data.results()
    assert read.path == result.path, "as `ac -c` it is written"
    assert read._known_verdict() is not None
    op = data.op(str(demo.culprit))
    assert (op.name, op.type, op.pass_names) == (demo.culprit, demo.culprit_type, demo.culprit_passes)
    assert [tensor.slot for tensor in op.tensors] == ["input:0", "input:1", "input:2", "output:0"]
    assert op.verdict is not None
    assert op.verdict.is_wrong
    shown = op._repr_html_()
    assert capfd.readouterr() == ("", "")
    printed = io.StringIO()
    precision_tool.run("ac", data=root, file=printed)
    assert str(demo.culprit) in printed.getvalue().partition("Verdict")[2]
    precision_tool.run("ni", op.name, data=root, file=(screen := io.StringIO()))
    text = re.sub("<[^>]*>", " ", shown)
    assert {word for word in screen.getvalue().split() if word.isalpha()} <= set(re.findall(r"\w+", text))


def test_a_diagnosis_of_a_correct_run_names_nobody(tmp_path: Path) -> None:
    generate_demo(tmp_path / "precision_data", fault="none")
    diagnosis = precision_tool.open_data(tmp_path).diagnose(resources=THIS_THREAD)
    assert (diagnosis.culprits, diagnosis.causes, diagnosis.culprit, diagnosis.cause) == ((), (), None, "none")
    assert diagnosis.confidence > 0.5
    assert diagnosis.evidence == ()


def test_of_several_ranks_and_steps_the_culprit_comes_first(tmp_path: Path) -> None:
    generate_ranks(tmp_path, ranks=1, steps=2, fault_step=1)
    diagnosis = precision_tool.open_data(tmp_path).diagnose(resources=THIS_THREAD)
    assert len(diagnosis.results) == 2
    assert [verdict.culprit is None for verdict in diagnosis.verdicts] == [True, False]
    assert diagnosis.culprit == diagnosis.verdicts[1].culprit
    first, second = (leaf_title(result.analysis) for result in diagnosis.results)
    shown = str(diagnosis)
    assert shown.index(second) < shown.index(str(diagnosis.culprit)) < shown.index(first)


def test_a_dump_without_a_benchmark_is_diagnosed_alone(demo: DemoTruth, tmp_path: Path) -> None:
    shutil.copytree(demo.fusion_path.parents[1] / "npu", tmp_path / "npu")
    diagnosis = precision_tool.open_data(tmp_path).diagnose(resources=THIS_THREAD)
    assert diagnosis.culprit == demo.culprit
    assert diagnosis.results == []
    assert str(demo.culprit) in diagnosis._repr_html_()


def test_two_dumps_of_msprobe_are_diagnosed_where_they_lie(tmp_path: Path) -> None:
    truth = generate_msprobe(tmp_path / "made")
    npu, golden = (str((tmp_path / "made" / side).rename(tmp_path / f"{side}_dump")) for side in ("npu", "gpu"))
    data = precision_tool.open_data(npu, work=tmp_path / "work")
    diagnosis = data.diagnose(golden=golden, resources=THIS_THREAD)
    assert diagnosis.culprit == truth.culprit
    again = next(step.line for step in diagnosis.next if " ac " in step.line)
    assert f"-rt {golden}" in again
    (tensor,) = (tensor for tensor in data.tensors(truth.culprit) if tensor.slot == "output:0")
    assert np.asarray(tensor).shape == tensor.shape


def test_tables_of_pandas(demo: DemoTruth) -> None:
    pytest.importorskip("pandas")
    diagnosis = precision_tool.open_data(demo.fusion_path.parents[1]).diagnose(resources=THIS_THREAD)
    ops = diagnosis.to_pandas()
    assert list(ops.name[ops.state == "wrong"]) == [demo.culprit]
    rows = diagnosis.results.to_pandas()
    assert len(rows) == len(diagnosis.results.rows)
    assert "leaf" not in ops.columns
    twice = type(diagnosis.results)([*diagnosis.results, *diagnosis.results]).to_pandas()
    assert twice.columns[0] == "leaf"
    assert len(twice) == 2 * len(rows)
    both = replace(diagnosis, _diagnoses=(*diagnosis._diagnoses, *diagnosis._diagnoses)).to_pandas()
    assert both.columns[0] == "leaf"
    assert len(both) == 2 * len(ops)
    assert set(both.leaf) == set(twice.leaf)


def test_the_worst_outputs_come_first(demo: DemoTruth) -> None:
    (result,) = precision_tool.compare(demo.dump_dir, demo.golden_dir)
    cosines = [row.cosine for row in result.worst_rows(20) if not row.is_scalar and row.cosine is not None]
    assert len(cosines) > 10
    assert cosines == sorted(cosines)
    assert not any(row.pair.is_input for row in result.worst_rows(0))


def test_a_tensor_of_either_side(tmp_path: Path) -> None:
    data = precision_tool.open_data(small_tree(tmp_path / "precision_data", faulty_chain()).root)
    npu = data.tensor("middle/Mul", slot="output:0")
    golden = data.tensor("middle/Mul", slot="output:0", side="benchmark")
    assert npu.benchmark is not None
    np.testing.assert_array_equal(golden, npu.benchmark)
    assert [found.name for found in data.ops("Mul")] == ["middle/Mul"]
    assert [tensor.slot for tensor in data.tensors("middle/Mul", side="benchmark")] == ["first/Add:0", "middle/Mul:0"]
    calls: tuple[Callable[..., object], ...] = (data.tensor, data.tensors, data.op)
    for call in calls:  # the culprit of a correct run
        with pytest.raises(UsageError, match="name is empty"):
            call(None)
    with pytest.raises(UsageError, match="side: must be npu, benchmark"):
        data.tensor("middle/Mul", slot="output:0", side="gpu")  # type: ignore[arg-type]


def test_a_notebook_shows_the_data_folder_in_the_language_asked_for(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "precision_data", faulty_chain())
    english = precision_tool.open_data(tmp_path)._repr_html_()  # the folder that it lies in will do
    assert str(tree.root) in english
    with use_language(""):
        data = precision_tool.open_data(tree.root, language="zh")
        assert language() == "zh"
        assert re.search("[\u4e00-\u9fff]", data._repr_html_())
        assert re.search("[\u4e00-\u9fff]", data.diagnose()._repr_html_())


def test_a_notebook_shows_an_error_without_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError) as caught:
        precision_tool.open_data(tmp_path / "nosuch")
    what, *hint = caught.value._render_traceback_()
    assert what == f"DataNotFoundError: {caught.value}"
    assert hint == [caught.value.hint] or not caught.value.hint


def test_a_tensor_of_two_runs_is_that_of_the_first(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "precision_data", faulty_chain())
    shutil.copytree(tree.root / "npu" / "debug_0", tree.root / "npu" / "debug_1")
    data = precision_tool.open_data(tree.root)
    assert len(data.tensors("middle/Mul", slot="output:0")) == 2
    assert "debug_0" in data.tensor("middle/Mul", slot="output:0").path
    assert "debug_1" in data.tensor("middle/Mul", slot="output:0", run=1).path
    assert [tensor.slot for tensor in data.op("middle/Mul").tensors] == ["input:0", "output:0"]
    with pytest.raises(UsageError, match="2 tensors"):
        data.tensor("middle/Mul")


class Display:
    """A stand-in of IPython: what is displayed, and what takes its place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shown: list[dict[str, str]] = []
        shell = type("Shell", (), {"kernel": object()})()
        package, module = ModuleType("IPython"), ModuleType("IPython.display")
        vars(package)["get_ipython"] = lambda: shell
        vars(module)["display"] = self.display
        monkeypatch.setitem(sys.modules, "IPython", package)
        monkeypatch.setitem(sys.modules, "IPython.display", module)

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> Display:
        assert raw
        assert display_id
        return self.update(data, raw=raw)

    def update(self, data: dict[str, str], *, raw: bool) -> Display:
        self.shown.append(data)
        return self


def test_progress_in_a_notebook_is_one_bar_that_goes_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tree = small_tree(tmp_path / "precision_data", faulty_chain())
    display = Display(monkeypatch)
    diagnosis = precision_tool.open_data(tree.root).diagnose(resources=THIS_THREAD)
    assert display.shown == [], "it took no time"
    assert all(step.line.startswith("!") for step in diagnosis.next if not step.file)
    for name in ("_DELAY_SECONDS", "_REDRAW_SECONDS"):
        monkeypatch.setattr(f"precision_tool.lib.view.notebook.{name}", 0.0)
    precision_tool.open_data(tree.root).compare(resources=THIS_THREAD)
    *bars, last = display.shown
    assert bars
    assert all("<progress" in bar["text/html"] for bar in bars)
    assert last == {"text/plain": ""}
    assert capfd.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as a stream of a kernel, which says that it is a terminal
    precision_tool.run("ac", "-c", data=tree.root)
    assert not any("\x1b" in text for text in capfd.readouterr())


def test_a_kernel_without_the_program_in_its_path_calls_it_by_its_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert notebook.program() == f"{sys.executable} -m precision_tool"
    (tmp_path / "precision-tool").touch(mode=0o755)
    assert notebook.program() == "precision-tool"
