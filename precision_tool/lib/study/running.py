"""Hands a study's tasks to whoever works, tries again what failed, and gives up what cannot be done."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace

from precision_tool.lib.engine.cluster import ClusterLostError, near
from precision_tool.lib.study.plan import Task
from precision_tool.lib.study.task import LeafDone, run_task

#: A task that failed so often is given up.
TRIES = 3
#: How long Ctrl+C waits at most.
_TICK = 0.1

#: Opens whoever does the work, again after it broke; None: this process.
Opened = Callable[[], AbstractContextManager[Executor | None]]


@dataclass(slots=True)
class _Try:
    task: Task
    failed: int = 0
    #: Whether a worker died while it was at work: then it works alone, to tell which task it was.
    alone: bool = False


def run_tasks(
    tasks: Iterator[Task],
    opened: Opened,
    *,
    window: int,
    take: Callable[[Task, list[LeafDone]], None],
    give_up: Callable[[Task, str], None],
) -> None:
    """Runs every task, at most `window` at a time; `tasks` is asked for the next one only when it can begin.

    What a task gives goes to `take`. One that raises, or kills its worker, is tried again, leaf by leaf; what has
    failed three times goes to `give_up` with the reason. KeyboardInterrupt cancels what has not begun.
    """
    crew = _Crew(tasks, window, take, give_up)
    while not crew.is_done():
        with suppress(BrokenExecutor), opened() as executor:
            crew.work(executor)


class _Crew:
    def __init__(
        self,
        tasks: Iterator[Task],
        window: int,
        take: Callable[[Task, list[LeafDone]], None],
        give_up: Callable[[Task, str], None],
    ) -> None:
        self._tasks = tasks
        self._window = window
        self._take = take
        self._give_up = give_up
        self._again: deque[_Try] = deque()
        self._ended = False

    def is_done(self) -> bool:
        """Whether nothing is left to be done."""
        return self._ended and not self._again

    def _next(self) -> _Try | None:
        if self._again:
            return self._again.popleft()
        task = None if self._ended else next(self._tasks, None)
        if task is None:
            self._ended = True
            return None
        return _Try(task)

    def work(self, executor: Executor | None) -> None:
        """Works until nothing is left; BrokenExecutor when the executor has to be opened again."""
        if executor is None:
            while (one := self._next()) is not None:
                try:
                    done = run_task(one.task)
                except Exception as error:
                    self._failed(one, error)
                    continue
                self._take(one.task, done)
            return
        flying: dict[Future[list[LeafDone]], _Try] = {}
        try:
            self._fly(executor, flying)
        except BaseException as error:
            for future in flying:
                future.cancel()
            if isinstance(error, BrokenExecutor):
                self._survived(flying)
            raise

    def _fly(self, executor: Executor, flying: dict[Future[list[LeafDone]], _Try]) -> None:
        while True:
            while len(flying) < self._window and not any(one.alone for one in flying.values()):
                one = self._next()
                if one is None:
                    break
                if one.alone and flying:
                    self._again.appendleft(one)
                    break
                if one.task.shared:
                    self._share(executor, one)
                    continue
                try:
                    flying[near(executor, one.task.leaves[0].leaf.path).submit(run_task, one.task)] = one
                except BaseException:
                    self._again.appendleft(one)
                    raise
            if not flying:
                return
            finished, _ = wait(flying, timeout=_TICK, return_when=FIRST_COMPLETED)
            for future in finished:
                error = future.exception()
                if isinstance(error, (BrokenExecutor, ClusterLostError)):
                    raise error
                one = flying.pop(future)
                if error is None:
                    self._take(one.task, future.result())
                elif isinstance(error, Exception):
                    self._failed(one, error)
                else:
                    raise error

    def _share(self, executor: Executor, one: _Try) -> None:
        """Does a task here and now, its tensors and ops by all workers; one that fails so is done by one worker."""
        alone = replace(one.task, shared=False, workers=1)
        try:
            done = run_task(one.task, near(executor, one.task.leaves[0].leaf.path))
            executor.submit(int).result()  # what lost a worker meanwhile is not whole, and only tells when it is asked
        except BrokenExecutor:
            self._again.appendleft(_Try(alone, one.failed + 1, alone=True))
            raise
        except ClusterLostError:
            raise
        except Exception as error:
            self._failed(_Try(alone, one.failed), error)
        else:
            self._take(one.task, done)

    def _survived(self, flying: dict[Future[list[LeafDone]], _Try]) -> None:
        """What was at work when a worker died: done, or to be done again, one by one."""
        lost: list[_Try] = []
        for future, one in flying.items():
            done = None
            if future.done() and not future.cancelled():
                with suppress(Exception):
                    done = future.result()
            if done is not None:
                self._take(one.task, done)
            else:
                lost.append(one)
        for one in lost:
            if len(lost) == 1:
                self._failed(one, None)
            else:
                self._again.append(_Try(one.task, one.failed, alone=True))

    def _failed(self, one: _Try, error: Exception | None) -> None:
        """Tries a task again, leaf by leaf; the third time it is given up."""
        reason = "its worker process died" if error is None else f"{type(error).__name__}: {error}"
        failed = one.failed + 1
        if failed >= TRIES and len(one.task.leaves) == 1:
            self._give_up(one.task, f"given up after {TRIES} tries: {reason}")
            return
        split = len(one.task.leaves) > 1
        for task in one.task.alone():
            self._again.append(_Try(task, 0 if split else failed, alone=error is None))
