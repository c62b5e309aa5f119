"""Threads that work through a list of files. Copying lets other threads run, so processes would gain nothing.

This module runs on Python 3.7.
"""

import os
import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Callable, Dict, Generic, Iterator, List, Optional, Sequence, Tuple, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Called with (bytes done, bytes in all), from the thread that waits.
Progress = Callable[[int, int], None]

_TICK = 0.25


class _StoppedError(Exception):
    """Ends the work of a thread."""


class Crew(Generic[Item, Result]):
    """Runs `work(item, told)` for each item; `told` counts bytes and ends the work when another thread failed."""

    def __init__(self, work: Callable[[Item, Callable[[int], None]], Result], workers: int = 0) -> None:
        self._work = work
        self._workers = workers or len(os.sched_getaffinity(0))
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._done = 0

    def run(self, items: Sequence[Item], total: int, progress: Optional[Progress] = None) -> List[Result]:
        """The results in the order of the items. The first error ends it all, Ctrl+C too."""
        results: Dict[int, Result] = {}
        todo = iter(enumerate(items))

        def loop() -> None:
            while True:
                with self._lock:
                    number, item = next(todo, (-1, None))
                if item is None or self._stop.is_set():
                    return
                results[number] = self._work(item, self._advance)

        with ThreadPoolExecutor(self._workers) as pool:
            try:
                running = set()
                for _ in range(min(self._workers, len(items))):
                    try:
                        running.add(pool.submit(loop))
                    except RuntimeError:  # no more threads can be started
                        break
                if not running:
                    self._run_here(todo, results, total, progress)
                while running:
                    ended, running = wait(running, timeout=_TICK, return_when=FIRST_EXCEPTION)
                    for thread in ended:
                        thread.result()
                    if progress is not None:
                        progress(self._done, total)
            finally:
                self._stop.set()
        return [results[number] for number in range(len(items))]

    def _run_here(
        self,
        todo: Iterator[Tuple[int, Item]],
        results: Dict[int, Result],
        total: int,
        progress: Optional[Progress],
    ) -> None:
        """The work where not one thread can be started: one item after the other, by the thread that waits."""
        for number, item in todo:
            results[number] = self._work(item, self._advance)
            if progress is not None:
                progress(self._done, total)

    def _advance(self, count: int) -> None:
        with self._lock:
            self._done += count
        if self._stop.is_set():
            raise _StoppedError
