"""One step of one rank: what commands show of it, and that the prompt keeps it."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pytest
from command_line import tool

import precision_tool
from precision_tool.lib.cli.prompt import Prompt
from precision_tool.lib.compare.result_csv import read_result
from precision_tool.lib.compare.scheduler import THIS_THREAD
from precision_tool.lib.data.settings import load_settings
from precision_tool.lib.demo.ranks import RanksTruth, generate_ranks
from precision_tool.lib.diagnose.checked_ops import examine_in
from precision_tool.lib.diagnose.study import study_rows
from precision_tool.lib.diagnose.study_plan import StudyOptions
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, UsageError
from precision_tool.lib.session import ALL, Session

Placed = tuple[Path, RanksTruth]


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Placed:
    """Two ranks and steps with a benchmark each; rank 1 alone computes wrong at step 1."""
    root = tmp_path_factory.mktemp("placed")
    truth = generate_ranks(root, ranks=2, steps=2, fault="fused", fault_step=1, fault_rank=1, benchmark="all")
    return root / truth.data[0], truth


def said(data: Path, word: str, *arguments: str) -> str:
    out = io.StringIO()
    precision_tool.run(word, *arguments, data=data, file=out)
    return out.getvalue()


def test_an_op_is_that_of_the_step_and_rank(placed: Placed) -> None:
    data, truth = placed
    assert truth.culprit is not None
    shown = {
        (step, rank): said(data, "ni", truth.culprit, "--step", str(step), "--rank", str(rank))
        for step in range(2)
        for rank in range(2)
    }
    wrong = {place for place, text in shown.items() if "computes incorrectly" in text}
    assert wrong == {(1, 1)}
    for (step, rank), text in shown.items():  # its own dump, and its own benchmark
        assert f"/{rank}/{truth.model_name}/1/{step}/" in text.replace("\n", "")
        assert f"tf/dump/rank_{rank}/step_{step}/" in text.replace("\n", "")


def test_a_place_that_was_not_dumped_is_told_with_those_there_are(placed: Placed) -> None:
    data, _ = placed
    with pytest.raises(DataNotFoundError, match="no dump of step 7; available: step 0, 1, rank 0, 1"):
        said(data, "ls", "--step", "7")


def test_vcs_lists_what_a_study_has_of_a_place(placed: Placed, tmp_path: Path) -> None:
    data, truth = placed
    session = precision_tool.open_data(data, work=tmp_path)
    session.at(1, 1)
    with pytest.raises(DataNotFoundError, match="no study has results"):
        study_rows(session.workspace, session.place()[0], 0.98)
    study = session.study(StudyOptions(csv=True), THIS_THREAD)
    (path,) = (one for one in study.csvs if "step_1_rank_1" in one)
    (analysis,) = study_rows(session.workspace, session.place()[0], 0.98)
    first = next(op for op in analysis.ops if op.is_suspect)
    assert first.op_name == truth.culprit
    read = read_result(path)
    assert [row.op_name for row in analysis.rows] == [row.op_name for row in read]
    found = [op.op_name for op in analysis.ops if op.is_below]
    out = io.StringIO()
    precision_tool.run("vcs", "--rank", "1", "--step", "1", "-l", "0", data=data, work=tmp_path, file=out)
    assert sum(f"Left:    {name}" in out.getvalue() for name in found) > 0


def test_vcs_says_what_has_changed_since_the_study(tmp_path: Path) -> None:
    truth = generate_ranks(tmp_path, ranks=2, steps=1, fault="none", benchmark="all")
    data = tmp_path / truth.data[0]
    session = precision_tool.open_data(data, work=tmp_path / "work")
    session.study(resources=THIS_THREAD)

    def changed() -> list[str]:
        session.workspace.notes.clear()
        session.at(0, 1)
        assert study_rows(session.workspace, session.place()[0], 0.98)
        notes = [note for note in session.workspace.notes if isinstance(note, Message)]
        return [part.kind for note in notes if note.kind == "study.note.changed" for part in note.changed]

    assert changed() == []
    leaf = next(one for one in truth.leaves if one.rank == 1)
    file = next((tmp_path / leaf.dump_dir).iterdir())
    os.utime(file, (7, 7))
    assert changed() == ["study.note.its_dump"]
    assert leaf.golden_dir is not None
    next((tmp_path / leaf.golden_dir).iterdir()).unlink()
    assert changed() == ["study.note.its_dump", "study.note.its_benchmark"]


def test_the_prompt_keeps_the_place(placed: Placed) -> None:
    data, truth = placed
    session = precision_tool.open_data(data)
    prompt = Prompt(session, "")
    assert prompt.prompt == "PrecisionTool > "
    out = io.StringIO()
    prompt.stdout = out
    prompt.onecmd_plus_hooks("ls dump --rank 1 --step 1 -t HcomAllReduce")
    assert prompt.prompt == "PrecisionTool step 1 rank 1 > "
    prompt.onecmd_plus_hooks(f"ni {truth.culprit}")
    assert "computes incorrectly" in out.getvalue()
    prompt.onecmd_plus_hooks("ls dump --rank all --step all -t HcomAllReduce")
    assert prompt.prompt == "PrecisionTool > "


def test_of_several_data_folders_one_rank_has_to_be_said(tmp_path: Path) -> None:
    truth = generate_ranks(tmp_path, ranks=9, steps=1, fault="fused", fault_step=0, fault_rank=8, benchmark="none")
    first, second = (tmp_path / folder for folder in truth.data)
    session = Session(load_settings({"data": first, "more_data": [second]}))
    with pytest.raises(UsageError, match="several data folders"):
        session.at()
    placed = session.at(rank=8)
    assert placed.workspace.root == second
    assert truth.culprit is not None
    (hit,) = placed.find_ops(truth.culprit)
    examined = examine_in(placed.data, hit.run, hit.op)
    assert examined is not None
    assert examined.judged is not None
    assert examined.judged.is_wrong
    assert session.at(rank=0).workspace.root == first
    with pytest.raises(UsageError):
        session.at(rank=ALL)


def test_ac_compares_each_step_and_rank_with_its_own_benchmark(tmp_path: Path) -> None:
    """Step 0 is right on all ranks; of step 1 the benchmark has rank 0 alone, whose numbers are not rank 1's."""
    truth = generate_ranks(tmp_path, ranks=2, steps=2, fault="fused", fault_step=1, fault_rank=0)
    done = tool("--data", truth.data[0], "ac", "-c", "--json", cwd=tmp_path)
    named = {
        tuple(map(int, (PurePath(one["npu"]).parts[-4], PurePath(one["npu"]).name))): one["verdict"]["culprit"]
        for one in json.loads(done.out)["results"]
    }
    assert named == {(0, 0): None, (0, 1): truth.culprit, (1, 0): None, (1, 1): None}


def test_an_op_is_shown_beside_the_benchmark_of_its_step(tmp_path: Path) -> None:
    truth = generate_ranks(tmp_path, ranks=1, steps=2, fault="none")
    for words in (("ni", "conv2/Relu"), ("cp", "conv2/Relu", "-p", "0")):
        done = tool("--data", truth.data[0], *words, cwd=tmp_path, code=0)
        assert "step_0/conv2_Relu.0." in done.out
        assert "step_1" not in done.out
    for words in (("ni", "conv2/Relu"), ("pt", "conv2/Relu"), ("cp", "conv2/Relu", "-p", "0")):
        done = tool("--data", truth.data[0], *words, "--step", "1", "--rank", "0", cwd=tmp_path, code=0)
        assert "/1/1/Conv2D.conv2" in done.out.replace("\n", "")
        assert "step_0" not in done.out
    done = tool("--data", truth.data[0], "dc", "conv2/Relu", "--step", "1", "-o", "npy", cwd=tmp_path, code=0)
    (decoded,) = (tmp_path / "npy").glob("*output*.npy")
    (dumped,) = (tmp_path / truth.data[0]).glob(
        f"npu/debug_0/dump/*/0/*/1/1/{decoded.name.removesuffix('.output.0.npy')}"
    )
    assert dumped.is_file()
    tensor = precision_tool.open_data(tmp_path / truth.data[0]).at(step=1).tensor("conv2/Relu:output:0")
    assert tensor.benchmark is not None
    (of_step,) = (tmp_path / truth.data[0]).glob("tf/dump/**/step_1/conv2_Relu.0.*")
    assert np.array_equal(np.asarray(tensor.benchmark), np.load(of_step))


def test_ac_of_one_step_points_to_the_study_of_it(placed: Placed) -> None:
    data, _ = placed
    with pytest.raises(UsageError) as told:
        said(data, "ac", "--step", "1")
    assert "`ac --all --step 1`" in str(told.value.hint)
    assert "-lt" in str(told.value.hint)


def test_commands_take_a_step_and_rank_after_a_study(placed: Placed, tmp_path: Path) -> None:
    data, truth = placed
    precision_tool.open_data(data, work=tmp_path).study(resources=THIS_THREAD)
    place = ("--step", "1", "--rank", "1")

    def json_of(word: str, *arguments: str) -> dict[str, Any]:
        out = io.StringIO()
        precision_tool.run(word, *arguments, "--json", data=data, work=tmp_path, file=out)
        document: dict[str, Any] = json.loads(out.getvalue())
        return document

    def wrong(step: str, rank: str) -> list[str]:
        (graph,) = json_of("ls", "--wrong", "--step", step, "--rank", rank)["graphs"]
        return [op["name"] for op in graph["ops"]]

    assert (wrong("1", "1"), wrong("1", "0")) == ([truth.culprit], [])
    (result,) = json_of("vc", *place)["results"]
    own = tmp_path / "study" / "step_1_rank_1"
    assert Path(result["file"]).is_relative_to(own)
    (leaf,) = json_of("overflow", *place)["leaves"]
    assert (leaf["device"], leaf["step"]) == ("1", "1")
    (pair,) = json_of("random", *place)["pairs"]
    assert pair["run"] == leaf["path"]
    page = tmp_path / "page.html"
    precision_tool.run("report", *place, "-o", str(page), data=data, work=tmp_path, file=io.StringIO())
    assert str(truth.culprit).encode() in page.read_bytes()
    # What one rank has does not hide what the others have.
    assert not (tmp_path / "vector_compare").exists()
    assert wrong("1", "0") == []


def test_ls_wrong_of_a_step_tells_nothing_of_the_others(tmp_path: Path) -> None:
    truth = generate_ranks(tmp_path, ranks=1, steps=2, fault="stomp", fault_step=1)
    data = tmp_path / truth.data[0]
    tool("--data", str(data), "ac", "-c", cwd=tmp_path)
    at_fault = tool("--data", str(data), "ls", "--wrong", "--step", "1", cwd=tmp_path)
    before = tool("--data", str(data), "ls", "--wrong", "--step", "0", cwd=tmp_path)
    assert "the verdict blames" in at_fault.out + at_fault.err
    assert "the verdict blames" not in before.out + before.err


def test_what_was_trained_since_an_earlier_step_accuses_no_variable(tmp_path: Path) -> None:
    """Variables of step 1 differ a little on the two sides: both trained them in step 0, which is right."""
    truth = generate_ranks(tmp_path, ranks=1, steps=2, fault="none")
    done = tool("--data", truth.data[0], "ac", "-c", "--json", cwd=tmp_path)
    assert [one["verdict"]["culprit"] for one in json.loads(done.out)["results"]] == [None, None]
