"""One scheduler for all parallel work: this thread, threads, processes, any `concurrent.futures` executor, Dask.

`run_tasks` is the one loop that waits for results; Ctrl+C is answered within `TICK` seconds. What is to be done, in
which order and what becomes of a failure is up to the `Work` that it runs.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    InvalidStateError,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import ceil, inf
from pathlib import Path
from typing import Any, Protocol, TypeVar

from precision_tool.lib.data.settings import check_options
from precision_tool.lib.io import urls
from precision_tool.lib.io.files import let_go
from precision_tool.lib.io.local import allow, allowed
from precision_tool.lib.io.stores import note_unread_elsewhere, take_unread
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import PrecisionToolError

#: How long workers that were killed are waited for.
_CLOSING_SECONDS = 0.5
#: glibc's mallopt: sizes from which on memory is asked of the system each time, and above which what is free at the
#: end goes back to it, of all processes together. 32 MiB is the most that it takes for the first.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
_REUSED_BYTES, _MAX_FREE_BYTES = 32 << 20, 192 << 20
#: Threads and processes of a worker process, and of a pool in this one; what both keep open, with room for work.
_TASKS_OF_PROCESS, _TASKS_OF_POOL = 2, 2
_FILES_OF_PROCESS, _FILES_OF_POOL = 6, 16
#: Seconds between two looks at the running tasks: how long Ctrl+C waits at most.
TICK = 0.1
#: Where Linux tells the limits of the group of processes that this one is in.
_CONTROL_GROUP = Path("/sys/fs/cgroup")
_MEMORY = Path("/proc/meminfo")

K = TypeVar("K")
T = TypeVar("T")
#: Called with (done, total): bytes, unless `counting` says otherwise.
Progress = Callable[[int, int], None]


# --- who does the work ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Resources:
    """The workers that share a piece of work, and its progress callback.

    Attributes
    ----------
    workers : int
        Threads or processes of our own; 0: one per core this process may use; 1: this thread alone.
    executor : concurrent.futures.Executor, optional
        Does the work instead, whatever `workers` says: threads, processes, or a Dask cluster.
    progress : callable, optional
        Called with (done, total), in bytes unless the function that takes the resources says otherwise.
    """

    workers: int = 0
    executor: Executor | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        check_options(self, workers="workers")

    @property
    def count(self) -> int:
        """Workers of our own."""
        return self.workers or cores()

    @contextmanager
    def open(self, *, is_small: bool = False, in_threads: bool = False) -> Iterator[Executor | None]:
        """Return the executor that does the work; None: this thread, for one worker or work that `is_small`.

        Workers of our own are processes, or threads for work that leaves the interpreter free (`in_threads`).
        """
        if self.executor is not None or self.count == 1 or is_small:
            yield self.executor
            return
        workers = affordable(self.count, in_threads=in_threads)
        if workers == 1:
            yield None
            return
        with (thread_pool if in_threads else process_pool)(workers) as pool:
            yield pool


#: The resources where none are named: all cores, or this thread alone, without progress.
ALL_CORES, THIS_THREAD = Resources(), Resources(workers=1)


class WorkStoppedError(PrecisionToolError):
    """The work ended early; `rows` are the rows that are done, or all of them, where the others say so."""

    def __init__(
        self, kind: str, hint: str = "", rows: Sequence[Any] = (), exit_code: int = 130, **fields: Any
    ) -> None:
        super().__init__(kind, hint, **fields)
        self.rows = list(rows)
        self.exit_code = exit_code


class PoisonedTaskError(PrecisionToolError):
    """A task that ended the worker, or failed there, in each of its tries."""


class WorkersLostError(PrecisionToolError):
    """The scheduler of a cluster, or the last of its workers, has gone."""


@contextmanager
def keeping_rows(state: Callable[[], Message], rows: Callable[[], Sequence[Any]]) -> Iterator[None]:
    """Raise WorkStoppedError, with the rows so far, when Ctrl+C or the loss of workers ends the block.

    `state` says how far the work came.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise WorkStoppedError("compare.stopped", "", rows(), state=state()) from None
    except WorkersLostError as error:
        raise WorkStoppedError(
            "compare.work_lost", "", rows(), 2, reason=error.reason_message, advice=error.hint_message, state=state()
        ) from error
    except BrokenExecutor as error:
        raise WorkStoppedError("compare.worker_died", "", rows(), 2, state=state()) from error


@contextmanager
def ctrl_c_ignored() -> Iterator[None]:
    """Ignore Ctrl+C in this block; only the main thread can, and needs to."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# --- progress ---------------------------------------------------------------------------------------------------------


def counting(progress: Progress | None, unit: str) -> Progress | None:
    """`progress` for work that is counted in `unit` ("ops") instead of bytes; a plain function stays as it is."""
    switch: Callable[[str], Progress] | None = getattr(progress, "counting", None)
    return progress if switch is None else switch(unit)


class Meter:
    """Counts what is done, and tells `progress` of it, never more than the total."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self.total = total
        self.done = 0.0

    def add(self, amount: float) -> None:
        """Count some more."""
        self.done += amount
        if self._progress is not None:
            self._progress(min(round(self.done), self.total), self.total)


# --- the loop ---------------------------------------------------------------------------------------------------------


class Work(Protocol[K, T]):
    """Tasks (K), and what becomes of their results (T)."""

    def next_task(self, running: Collection[K]) -> K | None:
        """Return the task to begin beside those that run; None: none for now, or none at all where nothing runs."""

    def submit(self, task: K, executor: Executor) -> Future[T]:
        """Hand a task to an executor."""

    def take(self, task: K, future: Future[T]) -> None:
        """Take in what a task gave. An exception from here ends the work."""


def run_tasks(work: Work[K, T], executor: Executor | None, *, limit: int = 0) -> None:
    """Do all tasks of `work`, at most `limit` at a time (0: all), by an executor, or in this thread.

    Of tasks that end together those with a result are taken first, as an error may end the work. Then, as after
    Ctrl+C, the tasks that have not begun are cancelled.
    """
    if executor is None:
        executor, limit = _ThisThread(), 1
    running: dict[Future[T], K] = {}
    try:
        while True:
            while not limit or len(running) < limit:
                task = work.next_task(running.values())
                if task is None:
                    break
                running[work.submit(task, executor)] = task
            if not running:
                return
            finished, _ = wait(running, timeout=TICK, return_when=FIRST_COMPLETED)
            for future in sorted(finished, key=_has_failed):
                work.take(running.pop(future), future)
    except BaseException:
        if not isinstance(executor, ProcessPoolExecutor):  # of a pool that is killed, its own thread ends the futures
            for future in running:
                future.cancel()
        raise


def _has_failed(future: Future[Any]) -> bool:
    return future.cancelled() or future.exception() is not None


class _ThisThread(Executor):
    """Does each task as it is handed out."""

    def submit(self, task: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(task(*arguments, **options))
        except Exception as error:
            future.set_exception(error)
        return future


class _Calls(Work[int, T]):
    """Calls of one function, by their numbers."""

    def __init__(
        self, function: Callable[..., T], calls: Sequence[tuple[Any, ...]], done: Callable[[T], object]
    ) -> None:
        self._function, self._calls, self._done = function, calls, done
        self._numbers = iter(range(len(calls)))
        self.results: dict[int, T] = {}

    def next_task(self, running: Collection[int]) -> int | None:
        return next(self._numbers, None)

    def submit(self, task: int, executor: Executor) -> Future[T]:
        return executor.submit(self._function, *self._calls[task])

    def take(self, task: int, future: Future[T]) -> None:
        self.results[task] = future.result()
        self._done(self.results[task])


def map_tasks(
    function: Callable[..., T],
    calls: Sequence[tuple[Any, ...]],
    executor: Executor | None,
    done: Callable[[T], object] = lambda _: None,
) -> list[T]:
    """Call a function with each of some tuples of arguments, as tasks.

    Parameters
    ----------
    function : callable
        Goes to the workers, so a function of a module.
    calls : sequence of tuple
        Its arguments.
    executor : Executor or None
        Who does the tasks; None: this thread.
    done : callable
        Called with each result as it comes.

    Returns
    -------
    list
        The results in the order of the calls. The first error is raised.
    """
    work = _Calls(function, calls, done)
    run_tasks(work, executor)
    return [work.results[number] for number in range(len(calls))]


# --- cores and memory -------------------------------------------------------------------------------------------------


def cores() -> int:
    """Processor cores this process may use; one where the data lies in the memory of this process."""
    if urls.uses_memory():
        return 1
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, ceil(min(count, _quota())))


def _quota() -> float:
    """Return how many cores a container gives its processes, which see all of the machine's; inf without a limit.

    As Linux tells it of control groups: version 2 in one file, version 1 in two.
    """
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with suppress(OSError, ValueError, ZeroDivisionError):
            quota, period = " ".join((_CONTROL_GROUP / name).read_text() for name in names).split()
            if quota not in ("max", "-1"):
                return int(quota) / int(period)
    return inf


def free_memory() -> int:
    """Bytes that this machine has free, or the container that this process is in; 0 where neither is told.

    As Linux tells it: of the machine without what it can give back of its caches, of control groups as `_quota` does.
    """
    free = []
    with suppress(OSError, ValueError, StopIteration):
        lines = _MEMORY.read_text().splitlines()
        free.append(next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")))
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):  # "max" is no number
            free.append(int((_CONTROL_GROUP / limit).read_text()) - int((_CONTROL_GROUP / used).read_text()))
    return max(0, min(free, default=0))


# --- pools ------------------------------------------------------------------------------------------------------------


class StopWork(BaseException):
    """Ends what a thread is doing: nobody waits for it any more."""


#: In a thread of `thread_pool` its `stopping`: an event that tells it to end.
_local = threading.local()


def check_stopping() -> None:
    """Raise StopWork in a thread whose pool is being left."""
    stopping: threading.Event | None = getattr(_local, "stopping", None)
    if stopping is not None and stopping.is_set():
        raise StopWork


@contextmanager
def thread_pool(workers: int) -> Iterator[ThreadPoolExecutor]:
    """Threads of this process, for work that leaves the interpreter free: reading, and arithmetic in C.

    They are gone at the end of the block. When it ends with an exception they stop at their next `check_stopping`.
    """
    stopping = threading.Event()
    pool = ThreadPoolExecutor(workers, initializer=_local.__setattr__, initargs=("stopping", stopping))
    try:
        yield pool
    except BaseException:
        stopping.set()
        pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()


@dataclass(frozen=True, slots=True)
class Done:
    """What a task gave in another process: a result or the user's error, and what it could not read of its storage."""

    result: Any
    error: PrecisionToolError | None
    unread: Mapping[str, Message]

    @classmethod
    def by(cls, task: Callable[..., Any], arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Done:
        """Do a task."""
        try:
            result, error = task(*arguments, **options), None
        except PrecisionToolError as raised:
            result, error = None, raised
        return cls(result, error, take_unread())

    def hand_on(self, future: Future[Any]) -> None:
        """Give it to whoever waits for the task."""
        note_unread_elsewhere(self.unread)
        if self.error is not None:
            future.set_exception(self.error)
        else:
            future.set_result(self.result)


#: Signals that end a command.
_ENDING = frozenset((signal.SIGINT, signal.SIGTERM, signal.SIGHUP))


class _Pool(ProcessPoolExecutor):
    """A pool whose processes do not hear Ctrl+C from their first moment on: their parent does, and ends them."""

    def submit(self, task: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        """Hand out a task; this may start a process, which inherits what is blocked.

        A signal that ended this in between would leave a process behind that `kill` does not know.
        """
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            inner = super().submit(Done.by, task, arguments, options)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        outer: Future[Any] = Future()
        outer.add_done_callback(lambda future: future.cancelled() and inner.cancel())
        inner.add_done_callback(lambda future: _hand_on(future, outer))
        return outer

    def kill(self) -> None:
        """Kill its processes."""
        # Python 3.14 has kill_workers() for this.
        for process in list((getattr(self, "_processes", None) or {}).values()):
            process.kill()


def _hand_on(inner: Future[Done], outer: Future[Any]) -> None:
    if inner.cancelled():
        outer.cancel()
        outer.set_running_or_notify_cancel()
        return
    with suppress(InvalidStateError):  # nobody waits for it any more
        if (error := inner.exception()) is not None:
            outer.set_exception(error)
        else:
            inner.result().hand_on(outer)


def affordable(workers: int, *, in_threads: bool = False) -> int:
    """Return how many of so many workers the limits on processes, memory and open files allow: 1 means no pool.

    Threads are started and files opened to see, as many as the pool takes: it would wait for ever for what it lacks.
    """
    threads = workers if in_threads else workers * _TASKS_OF_PROCESS + _TASKS_OF_POOL
    started = _startable(threads)
    if started < threads:
        workers = started if in_threads else (started - _TASKS_OF_POOL) // _TASKS_OF_PROCESS
    if not in_threads:
        files = workers * _FILES_OF_PROCESS + _FILES_OF_POOL
        workers = min(workers, (_openable(files) - _FILES_OF_POOL) // _FILES_OF_PROCESS)
    return max(1, workers)


def _startable(threads: int) -> int:
    ready = threading.Event()
    running: list[threading.Thread] = []
    try:
        with suppress(RuntimeError, MemoryError):
            for _ in range(threads):
                thread = threading.Thread(target=ready.wait, daemon=True)
                thread.start()
                running.append(thread)
    finally:
        ready.set()
        for thread in running:
            thread.join()
    return len(running)


def _openable(files: int) -> int:
    opened: list[int] = []
    try:
        with suppress(OSError):
            for _ in range(files):
                opened.append(os.open(os.devnull, os.O_RDONLY))
    finally:
        for handle in opened:
            os.close(handle)
    return len(opened)


def can_fork() -> bool:
    """Return whether processes can be forked: at once, with this one's memory; not safe with other threads."""
    return "fork" in multiprocessing.get_all_start_methods() and threading.active_count() == 1


@contextmanager
def process_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Worker processes that are killed when the block ends: all has been done then, or nobody waits for the rest.

    Of workers that end by themselves, one that is killed meanwhile, as for want of memory, may keep the lock that the
    others wait for, for ever.
    """
    let_go()
    pool = _Pool(
        workers,
        mp_context=multiprocessing.get_context("fork" if can_fork() else "spawn"),
        initializer=_start_worker,
        initargs=(urls.secrets(), allowed(), workers),
    )
    try:
        yield pool
    except BaseException:
        pool.kill()
        # The pool's own thread must be done before Python exits, which would wake it through a closed pipe; but a
        # pool that lost its workers in the middle of a message may never be done, so not for long.
        closing = threading.Thread(target=pool.shutdown, kwargs={"cancel_futures": True}, daemon=True)
        closing.start()
        closing.join(_CLOSING_SECONDS)
        raise
    pool.kill()
    pool.shutdown()


def _start_worker(secrets: urls.Secrets, permitted: tuple[list[str], list[str]], workers: int) -> None:
    urls.take_secrets(secrets)
    allow(permitted)
    take_unread()  # what a forked process inherits is noted in its parent
    # Ctrl+C reaches the whole process group; the parent decides what happens. It has blocked it until here.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for ending in (signal.SIGTERM, signal.SIGHUP):  # what the parent does then is not for us
        signal.signal(ending, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    reuse_memory(workers)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def reuse_memory(workers: int = 1) -> bool:
    """Keep freed memory for the next arrays: new pages take longer than much of the arithmetic.

    It is one of so many `workers`, which share what may be kept; each keeps an array at least.

    Only glibc can be told so; elsewhere nothing changes, and it says False.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    free_at_most = max(_REUSED_BYTES, _MAX_FREE_BYTES // workers)
    return bool(mallopt(_MMAP_THRESHOLD, _REUSED_BYTES) and mallopt(_TRIM_THRESHOLD, free_at_most))


def _end_with_parent() -> None:
    # A parent that is killed cannot tell its workers, which would wait for work for ever.
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
