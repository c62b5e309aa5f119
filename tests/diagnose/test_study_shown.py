"""What `ac --all` says: where it was wrong and what that tells, what to type next, and what its heat maps claim."""

from __future__ import annotations

import io
import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import tool
from diagnosing import studied as study_of

import precision_tool
from precision_tool.lib.demo.ranks import RanksTruth, generate_ranks
from precision_tool.lib.diagnose.replica_count import Departure
from precision_tool.lib.diagnose.replica_votes import Role
from precision_tool.lib.diagnose.study import Study
from precision_tool.lib.diagnose.study_conclusion import Conclusion, Culprit, Ground, Reach
from precision_tool.lib.diagnose.study_journal import FirstOp
from precision_tool.lib.diagnose.study_plan import StudyOptions, prepare
from precision_tool.lib.messages import Message
from precision_tool.lib.view.console import ReportConsole
from precision_tool.lib.view.study_screen import HeatMapView, reach, study_block, without_culprit

Studied = tuple[Path, RanksTruth, Study]


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Studied:
    """Three ranks, of which rank 2 alone puts out NaN at step 1; only rank 0 has a benchmark."""
    root = tmp_path_factory.mktemp("shown")
    truth = generate_ranks(root, ranks=3, steps=2, fault="nan", fault_step=1, fault_rank=2)
    data = root / truth.data[0]
    return data, truth, study_of(root / "work", data)


def shown(what: object, width: int = 100) -> str:
    out = io.StringIO()
    ReportConsole(file=out, width=width, theme="plain").print(what)
    return out.getvalue()


def test_a_rank_that_was_fed_as_the_others_has_no_data_of_its_own_to_blame(tmp_path: Path) -> None:
    generate_ranks(tmp_path, ranks=3, steps=1, fault="update", fault_step=0, fault_rank=1, benchmark="none")
    text = " ".join(tool("ac", "--all", cwd=tmp_path).text.split())
    assert "rank 1 alone, in step 0; correct on 2 other ranks: its device" in text
    assert "or its data" not in text
    assert "take that device out" in text
    assert "its data are at fault" not in text


def test_the_next_commands_can_be_typed(studied: Studied) -> None:
    data, truth, study = studied
    text = shown(study_block(study, f"precision-tool --data {shlex.quote(str(data))}"), width=60)
    lines = [shlex.split(line) for line in text.splitlines() if line.strip().startswith("precision-tool ")]
    assert [line[3] for line in lines] == ["ni", "repro", "ac"]  # nothing of it was compared, so no `vcs`
    assert lines[-1][3:] == ["ac", "--all"]
    for program, option, folder, *command in lines:
        assert (program, option, folder) == ("precision-tool", "--data", str(data))
        out = io.StringIO()
        if command[0] == "ni":  # what the study found is not in the data folder here
            precision_tool.run(*command, data=data, file=out)
            assert f"/2/{truth.model_name}/1/1/" in out.getvalue().replace("\n", "")
    assert study.conclusion.culprit is not None
    of_first = replace(study.conclusion.culprit, rank=0, path=study.leaves[0].leaf.path)
    compared = replace(study, conclusion=replace(study.conclusion, culprit=of_first))
    assert f"precision-tool vcs --step {of_first.step} --rank 0\n" in shown(study_block(compared))
    named = shown(study_block(study, "precision-tool", ["-rt", "a b"]), width=60)
    assert f"ac -c -lt {study.conclusion.culprit.path} -rt 'a b'\n" in named


def test_a_device_alone_is_to_be_left_for_another(studied: Studied) -> None:
    text = " ".join(shown(study_block(studied[2]), width=200).split())
    assert "run from step 1 again with rank 2 on another device" in text
    assert "replicas same result of" in text


def test_where_no_op_computes_wrong_the_first_off_the_benchmark_is_shown(studied: Studied) -> None:
    _, _, study = studied
    clean = tuple(replace(one, first=None, below=0) for one in study.leaves)
    conclusion = replace(study.conclusion, culprit=None, further=(), not_finite=None)
    nothing = replace(study, conclusion=conclusion, leaves=clean)
    assert without_culprit(nothing) == Message("study.without_culprit.clean")
    first = FirstOp(op="conv/op", type="Conv2D", kind="first_faulty_op", number=7, epoch=0)
    off = replace(nothing, leaves=(replace(clean[0], first=first, below=3), *clean[1:]))
    text = shown(study_block(off), width=200)
    assert without_culprit(off) == Message("study.without_culprit.off_benchmark")
    assert f"first in step {study.leaves[0].leaf.step}, rank 0: conv/op" in text
    assert f"precision-tool ni conv/op --step {study.leaves[0].leaf.step} --rank 0" in text


def test_nan_that_came_by_communication_is_not_the_first(studied: Studied) -> None:
    _, truth, study = studied
    assert study.conclusion.not_finite == (1, 2, f"{truth.culprit}:output:0")
    assert "2 other ranks received it by communication" in " ".join(shown(study_block(study)).split())


def test_what_had_no_benchmark_is_not_drawn_as_compared(studied: Studied) -> None:
    _, _, study = studied
    by_rank = study.maps[1]
    lines = shown(HeatMapView(by_rank)).splitlines()
    cells = {int(line.split()[0]): set(line[7:]) - {" "} for line in lines[1:4]}
    assert cells[0] & set("·░▒▓█")
    assert not (cells[1] | cells[2]) & set("·░▒▓█")
    assert cells[1] <= set("':;%@")
    assert "against the benchmark" in lines[4]
    assert "own error, NaN or Inf" in lines[5]
    alone = by_rank.to_dict()["recomputed"]
    assert [len(one) > len(by_rank.ops) // 2 for one in alone] == [False, True, True]
    compared = replace(by_rank, recomputed=None)
    assert "own error" not in shown(HeatMapView(compared))


def test_one_step_is_not_steps(studied: Studied) -> None:
    _, _, study = studied
    of_one = replace(study, leaves=tuple(one for one in study.leaves if (one.leaf.step, one.leaf.rank) == (1, 2)))
    assert "1 dump folder: step 1, rank 2\n" in shown(study_block(of_one))
    assert "6 dump folders: steps 0, 1, ranks 0-2" in shown(study_block(study))


def culprit(reach: Reach, cause: str, departure: Departure | None = None) -> Culprit:
    ranks = (3,) if reach is Reach.ONE_RANK else (0, 1, 2, 3)
    return Culprit(
        step=1, rank=ranks[0], op="update", type="T", cause=cause, ground=Ground.VERDICT, reach=reach, confidence=0.9,
        number=1, ranks=ranks, right=(0, 1, 2) if reach is Reach.ONE_RANK else (), departure=departure,
    )  # fmt: skip


def test_what_reaches_how_far_is_blamed_on_no_more_than_that_tells() -> None:
    fed_alike = Departure(
        step=1, op="update", type="T", role=Role.UPDATE, number=1, epoch=0, ranks=(3,), agreeing=(0, 1, 2),
        fed_alike=True,
    )  # fmt: skip
    one = Reach.ONE_RANK
    alone = reach(culprit(one, "kernel", fed_alike), (1,))
    assert (alone.kind, alone.right, alone.blame) == ("study.reach.one_rank", 3, Message("study.blame.device"))
    assert reach(culprit(one, "kernel"), (1,)).blame == Message("study.blame.device_or_data")
    assert reach(culprit(one, "input"), (1,)).blame == Message("study.blame.one_input")
    everywhere = reach(culprit(Reach.ALL_RANKS, "weights"), (1,))
    assert (everywhere.count, everywhere.blame) == (4, Message("study.blame.all_weights"))
    assert everywhere.since == Message("study.since.only", step=1, unjudged=False)
    shared = reach(culprit(Reach.ALL_RANKS, "fusion"), (1,)).blame
    assert shared == Message("study.blame.shared", cause=Message("cause.fusion"))


def test_statistics_are_not_said_to_be_recomputed_and_tell_who_made_nan(tmp_path: Path) -> None:
    truth = generate_ranks(tmp_path, ranks=3, steps=1, fault="nan", fault_step=0, fault_rank=1, statistics=True)
    study = study_of(tmp_path / "work", tmp_path / truth.data[0])
    text = " ".join(shown(study_block(study), width=200).split())
    assert "recomputed 0 of 3 folders: 3 cannot be recomputed" in text
    assert study.conclusion.not_finite == (0, 1, f"{truth.culprit}:output:0")
    assert "2 other ranks received it by communication" in text


def test_servers_that_a_pattern_names_hold_their_data_folders(tmp_path: Path) -> None:
    truth = generate_ranks(tmp_path, ranks=9, steps=1, fault="none", benchmark="none", statistics=True)
    assert len(truth.data) == 2
    done = tool("--data", "server_*", "ac", "--all", "--json", cwd=tmp_path)
    assert json.loads(done.out)["ranks"] == list(range(9))
    found = tool("--data", "server_*", "ls", "--step", "0", "--rank", "8", cwd=tmp_path)
    assert "server_1/precision_data" in "".join((found.out + found.err).split())


def test_what_nothing_tells_of_is_not_acquitted(tmp_path: Path) -> None:
    """Statistics without a benchmark and without replicas: no figure speaks for an op, and none against one."""
    generate_ranks(tmp_path, ranks=1, steps=1, fault="none", benchmark="none", statistics=True)
    done = tool("--data", "precision_data", "ac", "--all", "--fail", cwd=tmp_path, code=1)
    assert "Unknown: statistics cannot be recomputed" in done.out


def test_what_is_off_and_was_not_recomputed_is_not_acquitted(studied: Studied) -> None:
    _, _, study = studied
    blind = tuple(replace(one, has_verdict=False, first=None, accused=()) for one in study.leaves)
    bare = replace(study, leaves=blind, conclusion=Conclusion(culprit=None))
    assert without_culprit(bare) == Message("study.without_culprit.off_unknown")
    gone = Message("text", text="gone")
    failed = replace(bare, leaves=tuple(replace(one, failure=gone, compared=0, below=0) for one in blind), votes=())
    assert without_culprit(failed) == Message("study.without_culprit.unknown")


def test_where_later_steps_were_not_recomputed_the_fault_is_not_of_one_step_alone() -> None:
    one = culprit(Reach.ALL_RANKS, "kernel")
    assert reach(one, (0, 1, 2), {0, 1}).since == Message("study.since.only", step=1, unjudged=True)
    assert reach(one, (0, 1, 2), {0, 1, 2}).since == Message("study.since.only", step=1, unjudged=False)
    assert reach(one, (0, 1), {0, 1}).since == Message("study.since.only", step=1, unjudged=False)
    assert reach(replace(one, steps=(1, 2)), (0, 1, 2), {0, 1}).since == Message("study.since.on", step=1)


def test_a_data_folder_that_is_named_twice_is_one(tmp_path: Path) -> None:
    truth = generate_ranks(tmp_path, ranks=2, steps=1, fault="none", benchmark="none")
    folder = str(tmp_path / truth.data[0])
    found = prepare(StudyOptions(folders=[folder, f"{folder}/../{Path(folder).name}"]))
    assert [plan.leaf.rank for plan in found.plans] == [0, 1]
    assert "study.note.named_twice" in [note.kind for note in found.notes]
