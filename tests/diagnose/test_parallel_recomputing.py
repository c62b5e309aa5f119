"""Judging in several processes finds what judging in one does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from diagnosing import judged_results
from faults import zero_tail
from tiny_network import fused, layers

from precision_tool.cli import main
from precision_tool.lib.compare import scheduler
from precision_tool.lib.compare.scheduler import Resources, WorkersLostError
from precision_tool.lib.data.settings import load_settings
from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.diagnose import recomputer as spread
from precision_tool.lib.diagnose.decide import RunVerdict
from precision_tool.lib.diagnose.error_shape import misfit
from precision_tool.lib.diagnose.recomputer import Recomputer
from precision_tool.lib.diagnose.verdict_model import OpResult, State, is_late
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, PrecisionToolError
from precision_tool.lib.model.graph import Op
from precision_tool.lib.ops.base import Kind, Output
from precision_tool.lib.session import Session


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Even small networks are judged by processes; how many each time."""
    counts: list[int] = []
    pool = scheduler.process_pool

    def counted(count: int) -> Any:
        counts.append(count)
        return pool(count)

    monkeypatch.setattr(spread, "_SERIAL_ELEMENTS", 0)
    monkeypatch.setattr(spread, "process_pool", counted)
    for module in (spread, scheduler):  # also beside the threads of whoever runs the tests
        monkeypatch.setattr(module, "can_fork", lambda: True)
    return counts


def judged_by(count: int, data: Path) -> RunVerdict:
    session = Session(load_settings({"data": str(data), "work": str(data / f"work{count}")}))
    (judged,) = judged_results(session, resources=Resources(count))
    assert judged is not None
    return judged


@pytest.mark.parametrize("kept", [5, 8])
def test_ops_of_which_nothing_is_dumped_are_as_if_they_had_been_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """Of the ops of a dump every fifth one is left, or every eighth."""
    generate_demo(tmp_path, ops=60)
    dumps = sorted(path for path in (tmp_path / "npu" / "debug_0" / "dump").rglob("*") if path.is_file())
    for number, path in enumerate(dumps):
        if number % kept:
            path.unlink()
    passed_over: list[str] = []
    at_once = Recomputer.recompute_undumped

    def noted(recomputer: Recomputer, op: Op) -> OpResult | None:
        result = at_once(recomputer, op)
        if result is not None:
            passed_over.append(op.type)
        return result

    monkeypatch.setattr(Recomputer, "recompute_undumped", noted)
    judged = timeless(judged_by(1, tmp_path))
    assert {"Cast", "Conv2D"} <= set(passed_over)
    monkeypatch.setattr(Recomputer, "recompute_undumped", lambda recomputer, op: None)
    assert timeless(judged_by(1, tmp_path)) == judged


def timeless(judged: RunVerdict) -> list[OpResult]:
    return [replace(one, op=replace(one.op, attrs={}), seconds=0.0) for one in judged.ops]


class AtOnce(Executor):
    """Does everything in this process, when it is handed out."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(function(*arguments, **options))
        return done


def test_what_takes_longest_is_handed_out_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that all workers end together: large ops, before them what many others wait for that are fused alike."""
    large = spread._TASK_ELEMENTS
    sizes = [9, 5 * large, 3, 3 * large, 1, 2 * large, 2 * large]
    keys = ["a", "b", "c", "d", "e", "e", "e"]  # the small one of three of a kind shows how they are fused
    ops = [Op(name=str(number), type="Add", original_names=("a", "b")) for number in range(len(sizes))]
    order: list[tuple[int, bool]] = []

    def judged(
        numbers: Sequence[int], key: object, fitting: object, lightly: bool, recipe: object, seconds_left: float
    ) -> tuple[list[OpResult] | None, tuple[object, ...] | None, dict[Any, int]]:
        order.extend((number, lightly) for number in numbers)
        if lightly and 1 in numbers:
            return None, None, {}
        found = [OpResult(op=ops[number], number=number, state=State.RIGHT) for number in numbers]
        return found, ("shape",), {}

    monkeypatch.setattr(spread, "_recompute_task", judged)
    monkeypatch.setattr(spread, "elements_of", lambda _, op: sizes[int(op.name)])
    values = SimpleNamespace(checksums={}, leaf=SimpleNamespace(path="run"))
    judge: Any = SimpleNamespace(
        computing=ops, key=lambda op: keys[int(op.name)], fitting={}, values=values,
        for_others=lambda: lambda: None, seconds_left=1.0, recompute_undumped=lambda _: None,
    )  # fmt: skip
    found = spread.recompute_ops(judge, Resources(1, AtOnce()))
    assert [one.op for one in found] == ops
    assert order[:4] == [(1, True), (4, False), (1, False), (3, True)]
    assert sorted(order[4:6]) == [(5, True), (6, True)]
    assert order[6:] == [(0, False), (2, False)]


def handed_beside(running: list[spread._Task], ready: list[spread._Task], spare: int) -> list[int]:
    """The numbers of what is handed out of `ready` beside what runs, until all has to wait."""
    plan = spread._Plan(sorted(ready, key=lambda task: -task.nbytes))
    one: Any = SimpleNamespace(_plan=plan, _spare=spare)
    handed: list[int] = []
    while (task := spread._Spread.next_task(one, running)) is not None:
        running.append(task)
        handed += task.numbers
    return handed


def test_beside_a_task_for_most_of_the_memory_the_others_go_on() -> None:
    """As far as the memory there is has room for them: what runs is counted with all that it takes."""
    half = spread._AT_ONCE // 2
    waits = [spread._Task("key", [number], half * size // spread._LIGHT, is_light=True)
             for number, size in enumerate((3, 5, 1, 1, 1))]  # fmt: skip
    running: list[spread._Task] = []
    assert handed_beside(running, waits, 6 * half) == [1, 2]  # the other large one waits for the first
    assert handed_beside(running[1:], [waits[0]], 6 * half) == [0]
    for spare in (0, 5 * half):
        assert handed_beside([], waits, spare) == [1]  # alone
        assert handed_beside(running[1:], [waits[0]], min(spare, 3 * half)) == []
    most = spread._Task("key", [0], half * 3 // (2 * spread._LIGHT))
    few = [spread._Task("key", [number], half // (4 * spread._LIGHT)) for number in (1, 2, 3)]
    assert handed_beside([most], few, 0) == [1, 2]  # one that leaves a part of what all may take


@pytest.mark.parametrize("is_fused", [False, True])
def test_the_number_of_processes_does_not_matter(tmp_path: Path, forked: list[int], is_fused: bool) -> None:
    network = fused() if is_fused else layers()
    data = network.with_part("two/Tanh", wrong=zero_tail).write(tmp_path)
    alone, two, three = (judged_by(count, data) for count in (1, 2, 3))
    assert forked == [2, 3]
    assert alone.verdict.culprit == "two/Tanh"
    assert timeless(alone) == timeless(two) == timeless(three)
    assert alone.verdict.to_dict() == two.verdict.to_dict() == three.verdict.to_dict()


@pytest.fixture
def dying(forked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that is to recompute a Tanh dies."""
    recompute = Recomputer.recompute

    def dies(self: Recomputer, op: Any) -> OpResult:
        if op.type == "Tanh":
            os._exit(9)
        return recompute(self, op)

    monkeypatch.setattr(Recomputer, "recompute", dies)


def test_an_op_that_ends_its_process_costs_only_itself(tmp_path: Path, forked: list[int], dying: None) -> None:
    data = layers().write(tmp_path)
    results = judged_by(2, data).ops
    assert forked[0] == 2
    assert set(forked[1:]) == {1}
    missing = {result.name: result.reason for result in results if result.state is State.NOT_RECOMPUTED}
    assert missing.pop("two/Tanh") == Message("reason.worker_died")
    assert missing.keys() == {"drop/random_uniform/RandomUniform"}  # which no formula computes


def test_a_process_that_is_killed_costs_nothing(
    tmp_path: Path, forked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = layers().with_part("two/Tanh", wrong=zero_tail).write(tmp_path)
    whole = judged_by(1, data)
    recompute, killed = Recomputer.recompute, tmp_path / "killed"

    def dies_once(self: Recomputer, op: Any) -> OpResult:
        if op.type == "Tanh" and not killed.exists():
            killed.touch()
            os._exit(9)
        return recompute(self, op)

    monkeypatch.setattr(Recomputer, "recompute", dies_once)
    assert timeless(judged_by(2, data)) == timeless(whole)
    assert forked == [2, 1]


def test_no_profile_is_learnt_without_the_ops_of_a_process_that_died(
    tmp_path: Path, dying: None, capsys: pytest.CaptureFixture[str]
) -> None:
    data, profile = layers().write(tmp_path), tmp_path / "npu.json"
    words = ("--work", str(tmp_path / "work"), "profile", "learn", str(data), "-o", str(profile), "--workers", "2")
    assert main(words) == 2
    assert "a worker process died" in capsys.readouterr().err
    assert not profile.exists()


class Failing(AtOnce):
    """Does the first tasks; of a later one comes `error`: of all that follow, or of that one alone."""

    def __init__(self, error: Exception, *, from_then_on: bool) -> None:
        self._error, self._from_then_on, self._handed = error, from_then_on, 0

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        self._handed += 1
        if self._handed < 4 or (self._handed > 4 and not self._from_then_on):
            return super().submit(function, *arguments, **options)
        failed: Future[Any] = Future()
        failed.set_exception(self._error)
        return failed


@pytest.mark.parametrize(
    ("error", "from_then_on"),
    [
        (WorkersLostError("tcp://x: the cluster has no worker any more"), True),
        (DataNotFoundError.of("a.npy", "no such file"), False),
    ],
)
def test_what_fails_on_a_cluster_costs_only_what_was_not_done(
    tmp_path: Path, error: PrecisionToolError, from_then_on: bool
) -> None:
    data = layers().with_part("two/Tanh", wrong=zero_tail).write(tmp_path)
    whole = judged_by(1, data)
    session = Session(load_settings({"data": str(data), "work": str(data / "other")}))
    executor = Failing(error, from_then_on=from_then_on)
    (judged,) = judged_results(session, resources=Resources(1, executor))
    assert judged is not None
    assert len(judged.ops) == len(whole.ops)
    failed = [one for one in judged.ops if one.reason == Message("reason.not_done", detail=error.full_message)]
    assert all(one.state is State.NOT_RECOMPUTED for one in failed)
    assert 0 < len(failed) < len(whole.ops)
    assert (len(failed) > 2) is from_then_on
    states = {one.op.name: one.state for one in whole.ops}
    assert all(one.state is states[one.op.name] for one in judged.ops if one not in failed)


def test_a_worker_that_begins_late_has_no_time_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A verdict may take so long in all, however many workers make their judges, and whenever they do."""
    judges: list[Recomputer] = []
    for_others = Recomputer.for_others

    def known(self: Recomputer) -> Callable[[], Recomputer]:
        judges.append(self)
        return for_others(self)

    class Late(AtOnce):
        handed = 0

        def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
            self.handed += 1
            found = super().submit(function, *arguments, **options)
            if self.handed == 2:
                judges[0].deadline = time.monotonic() - 1.0
            return found

    monkeypatch.setattr(Recomputer, "for_others", known)
    session = Session(load_settings({"data": str(layers().write(tmp_path)), "work": str(tmp_path / "work")}))
    executor = Late()
    (judged,) = judged_results(session, resources=Resources(1, executor))
    assert judged is not None
    late = [one for one in judged.ops if is_late(one)]
    assert executor.handed > 2
    assert 0 < len(late) < len(judged.ops)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32"])
def test_numbers_that_only_moved_are_judged_as_any_others(dtype: str) -> None:
    """What is short cut where all numbers agree says what the long way says, of float16's subnormal numbers too."""
    values = np.array([0.0, 1.5, -2.0, 2.0**-24, 300.0]) if dtype != "int32" else np.array([0.0, -3, 7])
    short = misfit(values, Output(array=values), dtype, Kind.EXACT)
    long = misfit(values, Output(array=values), dtype, Kind.EXACT, noise=np.zeros(values.shape))
    assert (short.own, short.worst, short.slack, short.exact_share) == (0.0, 0.0, long.slack, 1.0)
    assert (long.own, long.worst, long.exact_share) == (0.0, 0.0, 1.0)
    assert short.rounding == pytest.approx(long.rounding, rel=1e-6)
    assert not short.bad.any()
    assert not short.over.any()


def test_equal_numbers_that_are_not_finite_or_overflow_go_the_long_way() -> None:
    values = np.array([1.0, np.inf, np.nan])
    found = misfit(values, Output(array=values), "float16", Kind.EXACT)
    assert list(found.compared) == [True, False, False]
    beyond = np.array([1.0, 1e6])
    assert list(misfit(beyond, Output(array=beyond), "float16", Kind.EXACT).over) == [False, True]
