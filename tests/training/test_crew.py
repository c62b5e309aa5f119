"""The threads that copy: order, the first error, and stopping."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from precision_tool.lib.training.tfdbg_copy import Crew

#: A hang is a failure, slowness is not.
HANG = 60.0


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_results_are_in_the_order_of_the_items(workers: int) -> None:
    seen: list[tuple[int, int]] = []

    def work(item: int, told: Callable[[int], None]) -> int:
        told(item)
        return item * item

    results = Crew(work, workers).run(range(50), 1225, lambda done, total: seen.append((done, total)))
    assert results == [item * item for item in range(50)]
    assert seen[-1] == (1225, 1225)


def test_nothing_to_do() -> None:
    assert Crew(lambda item, told: item).run([], 0) == []


def test_the_first_error_ends_the_work_of_all() -> None:
    """The other thread is ended with the next bytes it tells of, and no further item is begun."""
    begun: list[int] = []
    failing = threading.Event()

    def work(item: int, told: Callable[[int], None]) -> None:
        begun.append(item)
        if item == 0:
            failing.set()
            raise ValueError("the disk is gone")
        assert failing.wait(HANG)
        while True:
            told(1)

    with pytest.raises(ValueError, match="the disk is gone"):
        Crew(work, 2).run(range(10), 10)
    assert set(begun) <= {0, 1}


def test_ctrl_c_ends_the_work() -> None:
    ended = threading.Event()

    def work(item: int, told: Callable[[int], None]) -> None:
        try:
            while True:
                told(1)
        finally:
            ended.set()

    def progress(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Crew(work, 1).run([0], 1, progress)
    assert ended.is_set()


@pytest.mark.parametrize("started", [0, 1])
def test_where_no_thread_can_be_started(started: int, monkeypatch: pytest.MonkeyPatch) -> None:
    start, left = threading.Thread.start, started

    def refuse(thread: threading.Thread) -> None:
        nonlocal left
        if not left:
            raise RuntimeError("can't start new thread")
        left -= 1
        start(thread)

    def work(item: int, told: Callable[[int], None]) -> int:
        told(item)
        return item * item

    monkeypatch.setattr(threading.Thread, "start", refuse)
    seen: list[tuple[int, int]] = []
    results = Crew(work, 4).run(range(50), 1225, lambda done, total: seen.append((done, total)))
    assert results == [item * item for item in range(50)]
    assert seen[-1] == (1225, 1225)
