"""Who does the work: this process, threads or processes of our own, or any `concurrent.futures` executor."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from math import ceil, inf
from pathlib import Path
from typing import Any, TypeVar

from precision_tool.lib.errors import PrecisionToolError
from precision_tool.lib.io import urls

#: How long workers that were killed are waited for.
_CLOSING_SECONDS = 0.5
#: glibc's mallopt: sizes from which on memory is asked of the system each time, and above which what is free at the
#: end goes back to it, of all processes together. 32 MiB is the most that it takes for the first.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
_REUSED, _FREE_AT_MOST = 32 << 20, 192 << 20
#: How long Ctrl+C waits at most.
_TICK = 0.1
#: Where Linux tells the limits of the group of processes that this one is in.
_CONTROL_GROUP = Path("/sys/fs/cgroup")
_MEMORY = Path("/proc/meminfo")

T = TypeVar("T")
#: Called with (bytes done, bytes in all).
Progress = Callable[[int, int], None]


class WorkStoppedError(PrecisionToolError):
    """The work ended early; `rows` are the rows of the comparison that are done, the others say so."""

    def __init__(self, message: str, hint: str, rows: Sequence[Any] = (), exit_code: int = 130) -> None:
        super().__init__(message, hint)
        self.rows = list(rows)
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.hint, self.rows, self.exit_code), self.place


def cores() -> int:
    """Processor cores this process may use; one where the data lies in the memory of this process."""
    if urls.uses_memory():
        return 1
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, ceil(min(count, _quota())))


def _quota() -> float:
    """How many cores' time a container gives its processes, which see all of the machine's; inf without a limit.

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


def collect(
    futures: Sequence[Future[T]],
    take: Callable[[T], object],
    failed: Callable[[Future[T], BaseException], bool] | None = None,
) -> None:
    """Hands on results as they come; the short timeout lets Ctrl+C through.

    An error is raised, unless `failed` deals with it and says so.
    """
    pending = set(futures)
    while pending:
        finished, pending = wait(pending, timeout=_TICK, return_when=FIRST_COMPLETED)
        for future in finished:
            error = future.exception() if failed is not None else None
            if failed is None or error is None or not failed(future, error):
                take(future.result())


def in_order(futures: Sequence[Future[T]]) -> Iterator[T]:
    """Results in the order in which the tasks were handed out."""
    for future in futures:
        while not future.done():
            wait([future], timeout=_TICK)
        yield future.result()


@contextmanager
def working(workers: int, executor: Executor | None = None) -> Iterator[Executor | None]:
    """Who does the work: `executor`, or `workers` processes; None: this process, which one worker means."""
    if executor is not None or workers == 1:
        yield executor
    else:
        with process_pool(workers) as pool:
            yield pool


class StopWork(BaseException):
    """Ends what a thread is doing: nobody waits for it any more."""


#: In a thread of `thread_pool` its `stopping`: an event that tells it to end.
_local = threading.local()


def check_stopping() -> None:
    """Raises StopWork in a thread whose pool is being left."""
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


class _Pool(ProcessPoolExecutor):
    """A pool whose processes do not hear Ctrl+C from their first moment on: their parent does, and ends them."""

    def submit(self, *arguments: Any, **options: Any) -> Future[Any]:
        """Hands out a task; this may start a process, which inherits what is blocked."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return super().submit(*arguments, **options)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def can_fork() -> bool:
    """Whether processes can be forked: at once, with what this one has in memory; not safe beside other threads."""
    return "fork" in multiprocessing.get_all_start_methods() and threading.active_count() == 1


@contextmanager
def process_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Worker processes that are killed, not waited for, when the block ends with an exception."""
    before = {process.pid for process in multiprocessing.active_children()}
    pool = _Pool(
        workers,
        mp_context=multiprocessing.get_context("fork" if can_fork() else "spawn"),
        initializer=_start_worker,
        initargs=(urls.secrets(), workers),
    )
    try:
        yield pool
    except BaseException:
        for process in multiprocessing.active_children():
            if process.pid not in before:
                process.kill()
        # The pool's own thread must be done before Python exits, which would wake it through a closed pipe; but a
        # pool that lost its workers in the middle of a message may never be done, so not for long.
        closing = threading.Thread(target=pool.shutdown, kwargs={"cancel_futures": True}, daemon=True)
        closing.start()
        closing.join(_CLOSING_SECONDS)
        raise
    pool.shutdown()


def _start_worker(secrets: urls.Secrets, workers: int) -> None:
    urls.take_secrets(secrets)
    # Ctrl+C reaches the whole process group; the parent decides what happens. It has blocked it until here.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for ending in (signal.SIGTERM, signal.SIGHUP):  # what the parent does then is not for us
        signal.signal(ending, signal.SIG_DFL)
    reuse_memory(workers)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def reuse_memory(workers: int = 1) -> bool:
    """Has this process keep freed memory for its next arrays: new pages take longer than much of the arithmetic.

    It is one of so many `workers`, which share what may be kept; each keeps an array at least.

    Only glibc can be told so; elsewhere nothing changes, and it says False.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    kept = max(_REUSED, _FREE_AT_MOST // workers)
    return bool(mallopt(_MMAP_THRESHOLD, _REUSED) and mallopt(_TRIM_THRESHOLD, kept))


def _end_with_parent() -> None:
    # A parent that is killed cannot tell its workers, which would wait for work for ever.
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
