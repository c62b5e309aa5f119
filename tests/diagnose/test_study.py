"""Whole studies of small trainings on several ranks, with a fault at a known step, rank and op."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from diagnosing import culprit_of, studied
from executors import AtOnce
from memory_store import MemoryStore
from rich.console import Console

from precision_tool.lib.compare.scheduler import THIS_THREAD, Resources, WorkStoppedError
from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.demo.ranks import RanksTruth, generate_ranks
from precision_tool.lib.diagnose import study as study_module
from precision_tool.lib.diagnose import study_plan as plan_module
from precision_tool.lib.diagnose.study import Runner, Study
from precision_tool.lib.diagnose.study_conclusion import Ground, Reach
from precision_tool.lib.diagnose.study_journal import LeafDone, open_journal
from precision_tool.lib.diagnose.study_plan import Judging, LeafOptions, StudyOptions, Task, made_by, prepare
from precision_tool.lib.diagnose.study_task import run_task
from precision_tool.lib.io.cache import folder_fingerprint
from precision_tool.lib.io.files import mounted
from precision_tool.lib.io.stores import Stat
from precision_tool.lib.messages import Message, render
from precision_tool.lib.messages.errors import DataNotFoundError, UsageError
from precision_tool.lib.view.study_screen import study_block


def place(step: int, rank: int) -> Message:
    return Message("study.place", step=step, rank=rank)


def study_of(root: Path, truth: RanksTruth, work: Path, **options: Any) -> Study:
    """The study of a demo, in this process."""
    return studied(work, *(root / folder for folder in truth.data), **options)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RanksTruth]:
    """An op that computes wrong on all of three ranks from step 1 on."""
    root = tmp_path_factory.mktemp("kernel")
    return root, generate_ranks(root, ranks=3, steps=3, fault_step=1)


def test_a_rank_that_lacks_a_collective_accuses_nobody(tmp_path: Path) -> None:
    """What it put in is in the others' sum."""
    truth = generate_ranks(tmp_path, ranks=3, steps=1, fault="none", benchmark="none")
    name = truth.all_reduces[0]
    (lost,) = (tmp_path / truth.leaves[2].dump_dir).glob(f"HcomAllReduce.{name.replace('/', '_')}.*")
    lost.unlink()
    found = study_of(tmp_path, truth, tmp_path / "w")
    assert found.conclusion.culprit is None
    assert [(item.op, item.ranks) for item in found.conclusion.untold] == [(name, (0, 1))]
    assert [note.kind for note in found.notes].count("study.note.untold_sums") == 1


def test_a_kernel_that_computes_wrong_on_every_rank(kernel: tuple[Path, RanksTruth], tmp_path: Path) -> None:
    root, truth = kernel
    found = study_of(root, truth, tmp_path / "work")
    culprit = culprit_of(found)
    assert (culprit.step, culprit.rank, culprit.op) == (1, 0, truth.culprit)
    assert culprit.reach is Reach.ALL_RANKS
    assert culprit.ranks == (0, 1, 2)
    assert culprit.ground is Ground.VERDICT
    assert found.steps == (0, 1, 2)
    assert {(one.leaf.step, one.judged) for one in found.leaves} == {(0, True), (1, True), (2, False)}
    assert all(one.agreed == len(truth.all_reduces) + len(truth.variables) for one in found.votes)
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("fault", "rank", "ground"),
    [("fused", 2, Ground.VERDICT), ("update", 1, Ground.VERDICT), ("allreduce", 1, Ground.REPLICAS)],
)
def test_a_device_that_computes_wrong_alone(tmp_path: Path, fault: str, rank: int, ground: Ground) -> None:
    truth = generate_ranks(tmp_path, ranks=3, steps=2, fault=fault, fault_step=1, fault_rank=rank, benchmark="none")
    found = study_of(tmp_path, truth, tmp_path / "work")
    culprit = culprit_of(found)
    assert (culprit.step, culprit.rank, culprit.op) == (1, rank, truth.culprit)
    assert culprit.reach is Reach.ONE_RANK
    assert culprit.ground is ground
    assert culprit.right == tuple(one for one in range(3) if one != rank)


@pytest.mark.parametrize("ranks", [2, 4])
def test_an_all_reduce_that_is_no_sum_on_any_rank(tmp_path: Path, ranks: int) -> None:
    truth = generate_ranks(tmp_path, ranks=ranks, steps=2, fault="allreduce", fault_step=1, benchmark="none")
    found = study_of(tmp_path, truth, tmp_path / "work")
    culprit = culprit_of(found)
    assert (culprit.step, culprit.op, culprit.cause) == (1, truth.culprit, "communication")
    assert (culprit.ground, culprit.reach, culprit.ranks) == (Ground.SUM, Reach.ALL_RANKS, tuple(range(ranks)))
    out = io.StringIO()
    Console(file=out, width=200).print(study_block(found))
    text = " ".join(out.getvalue().split())
    assert "the result is not the sum, or what else the op makes, of the ranks' contributions" in text
    assert f"ni {truth.culprit} --step 1 --rank 0" in text


def test_nothing_is_accused_where_nothing_computes_wrong(tmp_path: Path) -> None:
    truth = generate_ranks(tmp_path, ranks=2, steps=2, fault="none", benchmark="all")
    found = study_of(tmp_path, truth, tmp_path / "work")
    assert found.conclusion.culprit is None
    assert not found.conclusion.departures
    assert all(one.judged and one.has_verdict and one.compared for one in found.leaves)


def test_ranks_are_counted_over_servers(tmp_path: Path) -> None:
    truth = generate_ranks(tmp_path, ranks=9, steps=1, fault="fused", fault_step=0, fault_rank=8, benchmark="none")
    found = study_of(tmp_path, truth, tmp_path / "work")
    assert found.ranks == tuple(range(9))
    culprit = culprit_of(found)
    assert (culprit.rank, culprit.op) == (8, truth.culprit)
    assert [note.devices for note in found.notes if note.kind == "study.note.counted_ranks"] == [8]  # NPUs of a server


def test_whoever_works_and_however_often_it_is_asked_the_answer_is_the_same(
    kernel: tuple[Path, RanksTruth], tmp_path: Path
) -> None:
    root, truth = kernel
    first = study_of(root, truth, tmp_path / "first")
    folders = [root / folder for folder in truth.data]
    second = studied(tmp_path / "second", *folders, resources=Resources(workers=2, executor=AtOnce()))
    asked: list[tuple[int, int]] = []
    listening = Resources(workers=1, progress=lambda done, total: asked.append((done, total)))
    again = studied(tmp_path / "second", *folders, resources=listening)
    assert len(asked) == 1  # all is known: nothing is done again
    assert asked[0][0] == asked[0][1]

    def told(study: Study) -> tuple[str, bytes]:
        document = study.to_dict()
        return json.dumps({**document, "table": ""}, sort_keys=True), Path(document["table"]).read_bytes()

    assert told(first) == told(second) == told(again)


def test_ctrl_c_keeps_what_is_done_and_the_next_study_goes_on(kernel: tuple[Path, RanksTruth], tmp_path: Path) -> None:
    root, truth = kernel
    told: list[int] = []

    def stop(done: int, _: int) -> None:
        told.append(done)
        if len(told) == 2:
            raise KeyboardInterrupt

    with pytest.raises(WorkStoppedError, match=r"stopped: [1-8] of 9 dump folders done") as caught:
        study_of(root, truth, tmp_path, resources=Resources(workers=1, progress=stop))
    assert caught.value.exit_code == 130
    again: list[int] = []
    listening = Resources(workers=1, progress=lambda done, _: again.append(done))
    found = study_of(root, truth, tmp_path, resources=listening)
    assert again[0] == told[1]  # where it was stopped
    assert found.conclusion.culprit is not None


def test_only_the_steps_and_ranks_that_are_wanted(kernel: tuple[Path, RanksTruth], tmp_path: Path) -> None:
    root, truth = kernel
    found = study_of(root, truth, tmp_path / "work", steps="0", ranks="1-")
    assert (found.steps, found.ranks) == ((0,), (1, 2))
    assert found.conclusion.culprit is None
    with pytest.raises(UsageError, match="available: step 0-2, rank 0-2"):
        study_of(root, truth, tmp_path / "work", steps="7")


def test_damaged_files_and_graphs_are_told_and_the_rest_is_done(tmp_path: Path) -> None:
    truth = generate_ranks(tmp_path, ranks=2, steps=2, fault="fused", fault_step=1, benchmark="none")
    root = tmp_path / truth.data[0]
    leaf = next(path for path in (root / "npu" / "debug_0" / "dump").glob("*/1/*/*/0"))
    for file in sorted(leaf.iterdir())[:5]:
        file.unlink()  # files are links to one another
        file.write_bytes(b"")
    found = study_of(tmp_path, truth, tmp_path / "work")
    assert (culprit_of(found).step, culprit_of(found).op) == (1, truth.culprit)
    assert [note.place for note in found.notes if note.kind == "study.note.unreadable"] == [place(0, 1)]
    shutil.rmtree(root / "npu" / "debug_0" / "graph")
    (tmp_path / "elsewhere").mkdir()
    found = study_of(tmp_path, truth, tmp_path / "elsewhere")
    assert [(note.count, note.all) for note in found.notes if note.kind == "study.note.no_graph"] == [(4, 4)]
    assert found.conclusion.culprit is None


def test_ranks_that_run_other_graphs_are_held_against_those_of_their_own(tmp_path: Path) -> None:
    """As the stages of a pipeline do: what one computes wrong says nothing of the others."""
    stage = generate_ranks(tmp_path / "first", ranks=2, steps=1, fault="none", benchmark="none")
    other = generate_demo(tmp_path / "second", fault="fused", ops=30)
    shutil.rmtree(tmp_path / "second" / "tf")
    stages = [tmp_path / "first" / folder for folder in stage.data]
    found = studied(tmp_path / "work", *stages, tmp_path / "second")
    assert [note.count for note in found.notes if note.kind == "study.note.other_graphs"] == [2]
    culprit = culprit_of(found)
    assert (culprit.op, culprit.path) == (other.culprit, str(other.dump_dir))
    assert culprit.reach is Reach.NOT_TOLD
    assert culprit.right == ()


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    truth = generate_ranks(tmp_path, ranks=2, steps=2, fault="none", benchmark="all")
    root = tmp_path / truth.data[0]
    shutil.rmtree(next((root / "npu" / "debug_0" / "dump").glob("*/1/*/*/1")))
    shutil.rmtree(root / "tf" / "dump" / "rank_0" / "step_0")
    device = next((root / "npu" / "debug_0" / "dump").glob("*/1"))
    other = device.parent.with_name("20260303000000")
    other.mkdir()
    device.rename(other / "1")
    found = study_of(tmp_path, truth, tmp_path / "work", judging=Judging.SUSPECTS)
    assert Message("study.note.lacks_steps", rank=1, count=1, steps="1") in found.notes
    assert Message("study.note.some_without_benchmark", count=1, all=3, place=place(0, 0)) in found.notes
    assert "study.note.clocks" in [note.kind for note in found.notes]
    with pytest.raises(DataNotFoundError, match="no such data folder"):
        studied(tmp_path / "work", tmp_path / "nowhere")


def test_a_data_folder_that_is_not_there_is_left_out_of_several(
    kernel: tuple[Path, RanksTruth], tmp_path: Path
) -> None:
    root, truth = kernel
    found = studied(tmp_path, root / truth.data[0], tmp_path / "gone", tmp_path)
    assert found.conclusion.culprit is not None
    (skipped,) = [note for note in found.notes if note.kind == "study.note.skipped"]
    assert "gone: no such data folder" in str(skipped.reason)
    assert Message("study.note.no_dump_below", folder=str(tmp_path)) in found.notes


def test_a_folder_that_goes_away_meanwhile_is_a_leaf_with_its_reason(tmp_path: Path) -> None:
    truth = generate_ranks(tmp_path, ranks=2, steps=2, fault="fused", fault_step=1, fault_rank=0, benchmark="none")
    options = StudyOptions(folders=[str(tmp_path / truth.data[0])])
    prepared = prepare(options)
    lost = prepared.plans[-1].leaf
    shutil.rmtree(lost.path)
    (tmp_path / "work").mkdir()
    with open_journal(str(tmp_path / "work")) as journal:
        runner = Runner(prepared, options, journal)
        runner.run(THIS_THREAD)
        found = runner.result()
    (failure,) = found.failures
    assert failure.leaf == lost
    assert lost.path in render(failure.failure)
    culprit = culprit_of(found)
    assert (culprit.op, culprit.ranks, culprit.unknown) == (truth.culprit, (0,), (1,))


def test_a_rank_whose_dump_ends_before_the_culprit_is_not_right_in_it(tmp_path: Path) -> None:
    truth = generate_ranks(tmp_path, ranks=3, steps=1, fault="fused", fault_step=0, benchmark="none")
    for leaf in (tmp_path / truth.data[0] / "npu" / "debug_0" / "dump").glob("*/[01]/*/*/0"):
        files = sorted(leaf.iterdir(), key=lambda file: file.name.rpartition(".")[2])  # in the order of execution
        for file in files[8:]:
            file.unlink()
    found = study_of(tmp_path, truth, tmp_path / "work")
    culprit = culprit_of(found)
    assert (culprit.op, culprit.ranks, culprit.right, culprit.unknown) == (truth.culprit, (2,), (), (0, 1))
    assert culprit.reach is Reach.NOT_TOLD


def test_folders_above_that_are_called_as_ranks_with_several_devices_are_servers(tmp_path: Path) -> None:
    home = tmp_path / "worker1"
    truth = generate_ranks(home, ranks=3, steps=2, fault="fused", fault_step=1, fault_rank=2)
    found = study_of(home, truth, tmp_path / "work")
    assert (found.steps, found.ranks) == ((0, 1), (0, 1, 2))
    assert len(found.leaves) == 6
    assert any(one.compared for one in found.leaves)
    assert (culprit_of(found).rank, culprit_of(found).op) == (2, truth.culprit)
    shutil.copytree(home, tmp_path / "worker2")
    listed = prepare(StudyOptions(folders=[str(tmp_path / name / truth.data[0]) for name in ("worker1", "worker2")]))
    assert [plan.leaf.rank for plan in listed.plans] == [*range(6), *range(6)]
    assert any("worker2/precision_data from rank 3 on" in render(note) for note in listed.notes)
    together = prepare(StudyOptions(folders=[str(tmp_path)], npu=str(tmp_path)))
    assert [plan.leaf.rank for plan in together.plans] == [*range(6), *range(6)]
    assert any(f"{tmp_path / 'worker2'} from rank 3 on" in render(note) for note in together.notes)


def test_a_benchmark_of_one_rank_is_not_that_of_a_device_of_another_server(tmp_path: Path) -> None:
    truth = generate_ranks(tmp_path, ranks=9, steps=1, fault="none", benchmark="one")
    folders = [str(tmp_path / folder) for folder in truth.data]
    compared = [plan.leaf.rank for plan in prepare(StudyOptions(folders=folders)).plans if plan.benchmark]
    assert compared == [0]  # rank 8 is device 0, too
    named = StudyOptions(folders=folders, golden=str(Path(folders[0]) / "tf" / "dump"))
    assert [plan.leaf.rank for plan in prepare(named).plans if plan.benchmark] == [0]
    own = Path(folders[1]) / "tf" / "dump"
    shutil.copytree(Path(folders[0]) / "tf" / "dump" / "rank_0", own / "rank_0")  # of its own folder it is the device's
    assert [plan.leaf.rank for plan in prepare(StudyOptions(folders=folders)).plans if plan.benchmark] == [0, 8]


def test_a_change_of_any_file_is_noticed(tmp_path: Path) -> None:
    names = [f"MatMul.op_{number}.{number}.0.{number}" for number in range(700)]
    for name in names:
        (tmp_path / name).write_bytes(b"1234")
    before = folder_fingerprint(str(tmp_path), names)
    assert before == folder_fingerprint(str(tmp_path), names)
    assert before[0] == 4 * len(names)
    (tmp_path / names[331]).write_bytes(b"12345")
    longer = folder_fingerprint(str(tmp_path), names)
    assert longer[0] == before[0] + 1
    (tmp_path / names[332]).write_bytes(b"4321")
    os.utime(tmp_path / names[332], (7, 7))
    (tmp_path / names[333]).unlink()
    told = {
        before[1],
        longer[1],
        folder_fingerprint(str(tmp_path), names)[1],
        folder_fingerprint(str(tmp_path), names[:-1])[1],
    }
    assert len(told) == 4


def test_files_of_a_server_that_lists_no_sizes_are_asked_for_in_part() -> None:
    class Server(MemoryStore):
        lists_sizes = False
        asked = 0

        def stat(self, path: str) -> Stat | None:
            self.asked += 1
            return super().stat(path)

    store = Server()
    names = [f"{number:04}" for number in range(1000)]
    for name in names:
        store.put(f"/server/x/{name}", b"123")
    with mounted("/server", store):
        assert folder_fingerprint("/server/x", names)[0] == 3000
    assert 200 < store.asked <= 256


class Dying(AtOnce):
    """Loses its worker at the fifth task, and does nothing from then on, as a pool of processes."""

    def __init__(self) -> None:
        self.tasks = 0

    def submit(self, task: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        self.tasks += 1
        if self.tasks < 5:
            return super().submit(task, *arguments, **options)
        raise BrokenProcessPool("a worker died")


@pytest.mark.parametrize("dies", [False, True])
def test_a_leaf_that_all_workers_would_wait_for_is_shared_by_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    data = tmp_path / "precision_data"
    truth = generate_demo(data, fault="fused")
    expected = studied(tmp_path / "alone", data)
    monkeypatch.setattr(study_module, "_SHARED_BYTES", 1)
    shared: list[Executor | None] = []
    work = run_task

    def noted(task: Task, executor: Executor | None = None) -> list[LeafDone]:
        shared.append(executor)
        return work(task, executor)

    monkeypatch.setattr(study_module, "run_task", noted)
    crews = [Dying(), AtOnce()] if dies else [AtOnce()]
    run_whole = study_module.run_tasks

    def run_by_crews(tasks: Iterator[Task], _: object, **options: Any) -> None:
        run_whole(tasks, lambda: nullcontext(crews[0] if len(crews) == 1 else crews.pop(0)), **options)

    monkeypatch.setattr(study_module, "run_tasks", run_by_crews)
    found = studied(tmp_path / "shared", data, resources=Resources(workers=3))
    assert isinstance(shared[0], Dying if dies else AtOnce)
    assert shared[1:] == ([None] if dies else [])  # after that one worker does it
    assert culprit_of(found).op == truth.culprit
    assert {**found.to_dict(), "table": ""} == {**expected.to_dict(), "table": ""}
    assert Path(found.table).read_bytes() == Path(expected.table).read_bytes()


def test_what_a_later_run_dumped_again_is_what_counts(tmp_path: Path) -> None:
    """The mended training is dumped beside the faulty one; GE puts the time of its build into the model's name."""
    generate_ranks(tmp_path / "faulty", ranks=2, steps=1, fault_step=0)
    generate_ranks(tmp_path / "mended", ranks=2, steps=1, fault="none")
    data, mended = (tmp_path / name / "precision_data" for name in ("faulty", "mended"))
    (old,) = (mended / "npu/debug_0/dump").iterdir()
    newer = data / "npu/debug_0/dump" / str(int(old.name) + 1_000_000)
    shutil.copytree(old, newer)
    for model in list(newer.glob("*/ge_default_*")):
        model.rename(model.with_name(model.name.replace(old.name, newer.name)))
    found = studied(tmp_path, data)
    assert {one.leaf.time for one in found.leaves} == {newer.name}
    assert found.conclusion.culprit is None
    assert Message("study.note.older", count=2, first=old.name, last=None) in found.notes


def test_another_network_of_the_step_is_no_older_dump(tmp_path: Path) -> None:
    """Training and evaluation, each with a time of its own."""
    truth = generate_ranks(tmp_path, ranks=1, steps=1, fault="none")
    (leaf,) = prepare(StudyOptions(folders=[str(tmp_path / truth.data[0])])).plans
    folder = Path(leaf.leaf.path)
    other = Path(str(folder).replace("20260302093000", "20260302093100"))
    assert other != folder
    other.mkdir(parents=True)
    (other / "Relu.evaluation_Relu.1.0.1772443802000000").write_bytes(b"")
    plans = prepare(StudyOptions(folders=[str(tmp_path / truth.data[0])])).plans
    assert sorted(plan.leaf.path for plan in plans) == sorted(map(str, (folder, other)))


def test_what_another_kernel_found_is_not_taken_as_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = LeafOptions().digest
    made_by.cache_clear()
    monkeypatch.setattr(plan_module, "description", lambda: "another kernel")
    assert LeafOptions().digest != before
    made_by.cache_clear()
