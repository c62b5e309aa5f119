"""Who may do the work: what every function that takes an `executor` is tried with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from precision_tool.lib.compare.scheduler import process_pool


class AtOnce(Executor):
    """An executor that does each task as it is handed out, in the thread that hands it out."""

    def submit(self, task: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(task(*arguments, **options))
        except Exception as error:
            future.set_exception(error)
        return future


@contextmanager
def threads() -> Iterator[Executor | None]:
    with ThreadPoolExecutor(3) as pool:
        yield pool


@contextmanager
def processes() -> Iterator[Executor | None]:
    with process_pool(2) as pool:
        yield pool


@contextmanager
def at_once() -> Iterator[Executor | None]:
    yield AtOnce()


WORKERS: tuple[Any, ...] = (threads, processes, at_once)
