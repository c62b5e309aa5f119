"""The one wait loop, whoever does the work, and how many share it: order, bounds, errors, cancellation, memory."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from executors import WORKERS

from precision_tool.lib.compare import scheduler
from precision_tool.lib.compare.scheduler import (
    THIS_THREAD,
    Meter,
    Resources,
    WorkersLostError,
    WorkStoppedError,
    counting,
    keeping_rows,
    map_tasks,
    run_tasks,
)
from precision_tool.lib.messages import Message

# --- the loop ---


def square(number: int) -> int:
    return number * number


def raises(number: int) -> int:
    if number == 3:
        raise ValueError("odd")
    return number


@pytest.mark.parametrize("who", WORKERS, ids=lambda who: who.__name__)
class TestExecutor:
    """What holds for every executor."""

    def test_results_come_in_the_order_of_the_calls(self, who: Callable[[], AbstractContextManager[Executor]]) -> None:
        taken: list[int] = []
        with who() as executor:
            results = map_tasks(square, [(number,) for number in range(20)], executor, taken.append)
        assert results == [number * number for number in range(20)]
        assert sorted(taken) == results

    def test_the_first_error_is_raised(self, who: Callable[[], AbstractContextManager[Executor]]) -> None:
        with who() as executor, pytest.raises(ValueError, match="odd"):
            map_tasks(raises, [(number,) for number in range(6)], executor)


def test_without_an_executor_each_result_is_taken_before_the_next_task_begins() -> None:
    events: list[str] = []

    def work(number: int) -> int:
        events.append(f"does {number}")
        return number

    with THIS_THREAD.open() as executor:
        assert map_tasks(work, [(1,), (2,)], executor, lambda number: events.append(f"takes {number}")) == [1, 2]
    assert events == ["does 1", "takes 1", "does 2", "takes 2"]


class Scripted:
    """Work on numbers whose futures the test itself completes."""

    def __init__(self, count: int) -> None:
        self.left = list(range(count))
        self.futures: list[Future[int]] = []
        self.taken: list[int] = []
        self.most = 0

    def next_task(self, running: Collection[int]) -> int | None:
        self.most = max(self.most, len(running))
        return self.left.pop(0) if self.left else None

    def submit(self, task: int, executor: Executor) -> Future[int]:
        self.futures.append(executor.submit(square, task))
        return self.futures[-1]

    def take(self, task: int, future: Future[int]) -> None:
        self.taken.append(future.result())


class Held(Executor):
    """Does nothing until it is let go."""

    def submit(self, task: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        return Future()


def test_no_more_tasks_than_the_limit_run_at_once() -> None:
    work = Scripted(30)
    with ThreadPoolExecutor(3) as executor:
        run_tasks(work, executor, limit=4)
    assert len(work.taken) == 30
    assert work.most < 4


def test_what_is_done_is_taken_before_an_error_that_came_with_it_ends_the_work() -> None:
    class Fails(Scripted):
        def submit(self, task: int, executor: Executor) -> Future[int]:
            future: Future[int] = Future()
            if task == 0:
                future.set_exception(BrokenProcessPool("died"))
            else:
                future.set_result(task)
            return future

    work = Fails(4)
    with pytest.raises(BrokenProcessPool):
        run_tasks(work, Held())
    assert sorted(work.taken) == [1, 2, 3]


def test_ctrl_c_cancels_what_has_not_begun() -> None:
    class Interrupted(Scripted):
        def take(self, task: int, future: Future[int]) -> None:
            raise KeyboardInterrupt

    work = Interrupted(5)
    executor = Held()
    first = threading.Timer(0.05, lambda: work.futures[0].set_result(0))
    first.start()
    with pytest.raises(KeyboardInterrupt):
        run_tasks(work, executor)
    first.join()
    assert [future.cancelled() for future in work.futures] == [False, True, True, True, True]


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        (KeyboardInterrupt(), "stopped: 1 of 3 rows are done", 130),
        (BrokenProcessPool("x"), "a worker process died: 1 of 3 rows are done", 2),
        (WorkersLostError("tcp://x: has gone"), "tcp://x: has gone: 1 of 3 rows are done", 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_work_that_is_stopped_keeps_its_rows(error: BaseException, message: str, code: int) -> None:
    state = Message("note.compare.rows_done", done=1, total=3)
    with pytest.raises(WorkStoppedError) as stopped, keeping_rows(lambda: state, lambda: ["row"]):
        raise error
    assert (stopped.value.message, stopped.value.exit_code, stopped.value.rows) == (message, code, ["row"])


def test_a_meter_never_tells_more_than_the_total() -> None:
    told: list[tuple[int, int]] = []
    meter = Meter(lambda done, total: told.append((done, total)), 10)
    for amount in (0, 4.6, 7):
        meter.add(amount)
    assert told == [(0, 10), (5, 10), (10, 10)]


def test_only_a_progress_that_knows_units_is_told_of_them() -> None:
    class Units:
        def __call__(self, done: int, total: int) -> None:
            raise AssertionError

        def counting(self, unit: str) -> Callable[[int, int], None]:
            return lambda done, total: units.append(unit)

    units: list[str] = []
    switched = counting(Units(), "ops")
    assert switched is not None
    switched(1, 2)
    assert units == ["ops"]
    plain = lambda done, total: None  # noqa: E731
    assert counting(plain, "ops") is plain
    assert counting(None, "ops") is None


def test_one_worker_and_small_work_need_no_executor() -> None:
    own = Held()
    for resources, is_small in ((Resources(1), False), (Resources(3), True)):
        with resources.open(is_small=is_small) as executor:
            assert executor is None
    with Resources(1, own).open(is_small=True) as executor:
        assert executor is own


# --- how many share the work ---


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({}, 64),
        ({"cpu.max": "max 100000\n"}, 64),
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "5000 100000\n"}, 1),
        ({"cpu.max": "9900000 100000\n"}, 64),
        ({"cpu.max": "0 0\n"}, 64),
        ({"cpu.max": "\xe4\n"}, 64),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 64),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "300000\n"}, 64),
    ],
)
def test_a_container_gives_fewer_cores_than_the_machine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], count: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(scheduler, "_CONTROL_GROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert scheduler.cores() == count


def test_glibc_takes_what_it_is_told_of_freed_memory() -> None:
    """In a process of its own, which keeps to it."""
    code = "from precision_tool.lib.compare.scheduler import reuse_memory; print(reuse_memory())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert told == str(platform.libc_ver()[0] == "glibc")


def test_a_system_that_cannot_be_told_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nothing:
        def __init__(self, name: object) -> None:
            pass

    monkeypatch.setattr(ctypes, "CDLL", Nothing)
    assert not scheduler.reuse_memory()


def test_workers_share_what_may_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []

    class Library:
        def __init__(self, name: object) -> None:
            pass

        def mallopt(self, option: int, value: int) -> int:
            told.append(value)
            return 1

    monkeypatch.setattr(ctypes, "CDLL", Library)
    assert all(scheduler.reuse_memory(count) for count in (1, 3, 1000))
    assert told[1::2] == [192 << 20, 64 << 20, 32 << 20]


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 0),
        ({"meminfo": "MemTotal: 900 kB\nMemAvailable:     500 kB\n"}, 500 << 10),
        ({"meminfo": "MemAvailable: 500 kB\n", "memory.max": "max\n", "memory.current": "7\n"}, 500 << 10),
        ({"meminfo": "MemAvailable: 500 kB\n", "memory.max": "9000\n", "memory.current": "7000\n"}, 2000),
        ({"memory/memory.limit_in_bytes": "5000\n", "memory/memory.usage_in_bytes": "6000\n"}, 0),
        ({"meminfo": "MemTotal: 900 kB\n"}, 0),
    ],
)
def test_free_memory_is_that_of_the_machine_or_of_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], free: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(scheduler, "_CONTROL_GROUP", tmp_path)
    monkeypatch.setattr(scheduler, "_MEMORY", tmp_path / "meminfo")
    assert scheduler.free_memory() == free
