"""Has a study's tasks done, tries again what failed, gives up what cannot be done, and goes on as new steps arrive."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from precision_tool.lib.compare import scheduler
from precision_tool.lib.compare.cluster import near
from precision_tool.lib.compare.scheduler import WorkersLostError
from precision_tool.lib.diagnose.study_plan import Task
from precision_tool.lib.diagnose.study_task import LeafDone, run_task
from precision_tool.lib.errors import PrecisionToolError
from precision_tool.lib.messages import Message

if TYPE_CHECKING:
    from precision_tool.lib.diagnose.study import Study
    from precision_tool.lib.diagnose.study_plan import Prepared

#: A task that failed so often is given up.
TRIES = 3

#: Opens whoever does the work, again after it broke; None: this thread.
Opens = Callable[[], AbstractContextManager[Executor | None]]


@dataclass(slots=True)
class _Try:
    task: Task
    failed: int = 0
    #: Whether a worker died while it was at work: then it works alone, to tell which task it was.
    alone: bool = False


def run_tasks(
    tasks: Iterator[Task],
    opens: Opens,
    *,
    window: int,
    take: Callable[[Task, list[LeafDone]], None],
    give_up: Callable[[Task, Message], None],
) -> None:
    """Run every task, at most `window` at a time; `tasks` is asked for the next one only when it can begin.

    What a task gives goes to `take`. One that raises, or kills its worker, is tried again, leaf by leaf; what has
    failed three times goes to `give_up` with the reason. KeyboardInterrupt cancels what has not begun; BrokenExecutor
    says that nobody takes a task any more.
    """
    work = _StudyWork(tasks, take, give_up)
    while not work.is_done():
        work.is_taken = False
        try:
            with opens() as executor:
                scheduler.run_tasks(work, executor, limit=window)
        except BrokenExecutor:
            if not work.is_taken:
                raise
            work.recover()


class _StudyWork:
    """Tasks that are tried again, for `scheduler.run_tasks`."""

    def __init__(
        self,
        tasks: Iterator[Task],
        take: Callable[[Task, list[LeafDone]], None],
        give_up: Callable[[Task, Message], None],
    ) -> None:
        self._tasks = tasks
        self._take = take
        self._give_up = give_up
        self._again: deque[_Try] = deque()
        self._running: dict[Future[list[LeafDone]], _Try] = {}
        self._ended = False
        #: Whether the executor of this turn has taken a task.
        self.is_taken = False

    def is_done(self) -> bool:
        """Return whether nothing is left to be done."""
        return self._ended and not self._again

    def next_task(self, running: Collection[_Try]) -> _Try | None:
        """Return the next task; one that has to be alone waits until nothing runs, and the others for it."""
        if any(attempt.alone for attempt in running):
            return None
        if self._again:
            return None if running and self._again[0].alone else self._again.popleft()
        task = None if self._ended else next(self._tasks, None)
        if task is None:
            self._ended = True
            return None
        return _Try(task)

    def submit(self, attempt: _Try, executor: Executor) -> Future[list[LeafDone]]:
        """Hand out a task; one that all workers share is done when this returns."""
        workers = near(executor, attempt.task.leaves[0].leaf.path)
        if attempt.task.shared:
            self.is_taken = True
            future = self._share(attempt, executor, workers)
        else:
            try:
                future = workers.submit(run_task, attempt.task)
            except BaseException:
                self._again.appendleft(attempt)
                raise
            self.is_taken = True
        self._running[future] = attempt
        return future

    def _share(self, attempt: _Try, executor: Executor, workers: Executor) -> Future[list[LeafDone]]:
        """Do a task here and now, its tensors and ops by all workers; one that fails so is done by one worker."""
        future: Future[list[LeafDone]] = Future()
        unshared = replace(attempt.task, shared=False, workers=1)
        try:
            done = run_task(attempt.task, workers)
            executor.submit(int).result()  # what lost a worker meanwhile is not whole, and only tells when it is asked
        except BrokenExecutor:
            self._again.appendleft(_Try(unshared, attempt.failed + 1, alone=True))
            raise
        except WorkersLostError:
            raise
        except Exception as error:
            attempt.task = unshared
            future.set_exception(error)
        else:
            future.set_result(done)
        return future

    def take(self, attempt: _Try, future: Future[list[LeafDone]]) -> None:
        """Take in what a task gave, or try it again."""
        error = future.exception()
        if isinstance(error, (BrokenExecutor, WorkersLostError)):
            raise error
        del self._running[future]
        if error is None:
            self._take(attempt.task, future.result())
        elif isinstance(error, Exception):
            self._failed(attempt, error)
        else:
            raise error

    def recover(self) -> None:
        """Sort out what was at work when a worker died: done, or to be done again, one by one."""
        lost: list[_Try] = []
        for future, attempt in self._running.items():
            done = None
            if future.done() and not future.cancelled():
                with suppress(Exception):
                    done = future.result()
            if done is not None:
                self._take(attempt.task, done)
            else:
                lost.append(attempt)
        self._running.clear()
        for attempt in lost:
            if len(lost) == 1:
                self._failed(attempt, None)
            else:
                self._again.append(_Try(attempt.task, attempt.failed, alone=True))

    def _failed(self, attempt: _Try, error: Exception | None) -> None:
        """Try a task again, leaf by leaf; the third time it is given up."""
        reason = Message("study.worker_died") if error is None else f"{type(error).__name__}: {error}"
        failed = attempt.failed + 1
        if failed >= TRIES and len(attempt.task.leaves) == 1:
            self._give_up(attempt.task, Message("study.given_up", tries=TRIES, reason=reason))
            return
        split = len(attempt.task.leaves) > 1
        for task in attempt.task.alone():
            self._again.append(_Try(task, 0 if split else failed, alone=error is None))


def watch(
    prepare: Callable[[], Prepared],
    study: Callable[[Prepared], Study],
    done: Callable[[Study], None],
    *,
    seconds: float,
    sleep: Callable[[float], None] = time.sleep,
) -> Study:
    """Study what is there, and again whenever there is more, until Ctrl+C; the last study.

    `done` is called with each. A folder that is new, or has changed, is taken when it has stayed as it is from one look
    to the next, `seconds` apart: it may still be written. That the data cannot be listed for a while is waited for.
    """
    prepared = prepare()
    last = study(prepared)
    done(last)
    studied = before = _prints(prepared)
    while True:
        try:
            sleep(seconds)
            prepared = prepare()
        except KeyboardInterrupt:
            return last
        except PrecisionToolError:
            continue  # a server that does not answer now may do so later
        now = _prints(prepared)
        settled = {path: mark for path, mark in now.items() if before.get(path) == mark}
        if any(studied.get(path) != mark for path, mark in settled.items()):
            plans = tuple(plan for plan in prepared.plans if plan.leaf.path in settled)
            last = study(replace(prepared, plans=plans))
            done(last)
            studied = settled
        before = now


def _prints(prepared: Prepared) -> dict[str, str]:
    return {plan.leaf.path: plan.fingerprint for plan in prepared.plans}
