"""Tasks that fail, or whose worker dies: tried again, and given up after three tries; the rest is done."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from diagnosing import culprit_of

from precision_tool.lib.compare.scheduler import THIS_THREAD
from precision_tool.lib.demo.ranks import generate_ranks
from precision_tool.lib.diagnose import study as running
from precision_tool.lib.diagnose.study import TRIES, Runner, Study, run_tasks, watch
from precision_tool.lib.diagnose.study_journal import LeafDone, LeafOutcome, open_journal
from precision_tool.lib.diagnose.study_leaves import StudyLeaf
from precision_tool.lib.diagnose.study_plan import LeafPlan, Prepared, StudyOptions, Task, batches, prepare
from precision_tool.lib.messages import Message


def plan(name: str, step: int = 0, nbytes: int = 1) -> LeafPlan:
    leaf = StudyLeaf(
        path=name, data="", step=step, rank=0, device=0, model="", files=1, nbytes=nbytes, fingerprint=name
    )
    return LeafPlan(leaf=leaf)


def tasks(*names: str) -> list[Task]:
    return [Task(leaves=tuple(plan(one) for one in name.split("+"))) for name in names]


class Crew:
    """What is done, how often it was tried, and what kills its worker, or raises."""

    def __init__(self, kills: str = "", raises: str = "") -> None:
        self.kills, self.raises = kills, raises
        self.tried: list[str] = []
        self.done: list[str] = []
        self.lost: list[tuple[str, Message]] = []
        self.opened = 0

    def work(self, task: Task) -> list[LeafDone]:
        names = [one.leaf.path for one in task.leaves]
        self.tried.append("+".join(names))
        if self.kills and self.kills in names:
            raise BrokenProcessPool("a worker died")
        if self.raises and self.raises in names:
            raise ValueError("odd")
        return [LeafDone(outcome=LeafOutcome(network=name)) for name in names]

    def take(self, _: Task, done: list[LeafDone]) -> None:
        self.done += [one.outcome.network for one in done]

    def give_up(self, task: Task, reason: Message) -> None:
        self.lost.append((task.leaves[0].leaf.path, reason))

    @contextmanager
    def pool(self) -> Iterator[Executor | None]:
        self.opened += 1
        yield _Pool()

    @contextmanager
    def here(self) -> Iterator[Executor | None]:
        self.opened += 1
        yield None


class _Pool(Executor):
    """Does tasks at once; once a worker has died nothing works any more, as with processes."""

    def __init__(self) -> None:
        self._broken: BaseException | None = None

    def submit(self, task: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if self._broken is not None:
            raise self._broken
        try:
            future.set_result(task(*arguments, **options))
        except BrokenProcessPool as error:
            self._broken = error
            future.set_exception(error)
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.mark.parametrize("where", ["pool", "here"])
def test_a_task_that_raises_is_tried_leaf_by_leaf_and_given_up(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    crew = Crew(raises="b")
    monkeypatch.setattr(running, "run_task", crew.work)
    run_tasks(iter(tasks("a+b", "c")), getattr(crew, where), window=2, take=crew.take, give_up=crew.give_up)
    assert sorted(crew.done) == ["a", "c"]
    assert crew.lost == [("b", Message("study.given_up", tries=TRIES, reason="ValueError: odd"))]
    assert crew.tried.count("b") == TRIES


@pytest.mark.parametrize("window", [1, 2, 5])
def test_a_task_that_kills_its_worker_is_found_among_its_neighbours(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew = Crew(kills="c")
    monkeypatch.setattr(running, "run_task", crew.work)
    run_tasks(iter(tasks("a", "b", "c", "d", "e")), crew.pool, window=window, take=crew.take, give_up=crew.give_up)
    assert sorted(crew.done) == ["a", "b", "d", "e"]
    assert crew.lost == [("c", Message("study.given_up", tries=TRIES, reason=Message("study.worker_died")))]
    assert crew.tried.count("c") in (TRIES, TRIES + 1)  # once among others, which tells nothing
    assert crew.opened >= TRIES


def test_batches_are_of_one_step_and_about_one_size() -> None:
    plans = [plan("a", 0, 6), plan("b", 0, 6), plan("c", 0, 1), plan("d", 1, 1), plan("e", 1, 100)]
    found = [[one.leaf.path for one in batch] for batch in batches(plans, 10)]
    assert found == [["a"], ["b", "c"], ["d"], ["e"]]


def test_a_batch_lies_on_one_host_and_hosts_take_turns() -> None:
    plans = [plan("a/0"), plan("b/0"), plan("a/1"), plan("b/1"), plan("a/2"), plan("a/3", 1), plan("b/3", 1)]
    found = [[one.leaf.path for one in batch] for batch in batches(plans, 2, lambda path: path[0])]
    assert found == [["a/0", "a/1"], ["b/0", "b/1"], ["a/2"], ["a/3"], ["b/3"]]


def test_an_executor_that_takes_no_task_any_more_ends_the_work() -> None:
    """A pool of the user's own that has broken: it stays so."""

    class Broken(Executor):
        def submit(self, task: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
            raise BrokenProcessPool("a worker died")

    @contextmanager
    def pool() -> Iterator[Executor | None]:
        yield Broken()

    crew = Crew()
    with pytest.raises(BrokenProcessPool):
        run_tasks(iter(tasks("a", "b")), pool, window=2, take=crew.take, give_up=crew.give_up)


# --- a study that is watched goes on with what has arrived whole, until Ctrl+C ---


def test_new_steps_are_taken_when_they_are_whole(tmp_path: Path) -> None:
    truth = generate_ranks(tmp_path, ranks=1, steps=2, fault="fused", fault_step=1, benchmark="none")
    (leaf,) = (tmp_path / truth.data[0]).glob("npu/debug_0/dump/*/0/*/*/1")
    away = tmp_path / "away"
    shutil.move(leaf, away)
    files = sorted(away.iterdir())
    options = StudyOptions(folders=[str(tmp_path / truth.data[0])])
    looks: list[str] = []
    seen: list[Study] = []

    def sleep(_: float) -> None:
        """What arrives between two looks: nothing, some of the files, the others, nothing; then Ctrl+C."""
        looks.append(f"{len(seen)}")
        if len(looks) == 2:
            leaf.mkdir()
        arrived = {2: files[:10], 3: files[10:]}.get(len(looks), [])
        for file in arrived:
            shutil.move(file, leaf / file.name)
        if len(looks) == 6:
            raise KeyboardInterrupt

    (tmp_path / "work").mkdir()
    with open_journal(str(tmp_path / "work")) as journal:

        def study(prepared: Prepared) -> Study:
            runner = Runner(prepared, options, journal)
            runner.run(THIS_THREAD)
            return runner.result()

        last = watch(lambda: prepare(options), study, seen.append, seconds=1, sleep=sleep)
    assert [study.steps for study in seen] == [(0,), (0, 1)]
    assert looks == ["1", "1", "1", "1", "2", "2"]  # while the files arrive, nothing is studied
    assert last is seen[-1]
    assert seen[0].conclusion.culprit is None
    culprit = culprit_of(last)
    assert (culprit.step, culprit.op) == (1, truth.culprit)
