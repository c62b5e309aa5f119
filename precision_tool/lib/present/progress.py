"""Progress of a comparison: a bar on a terminal, now and then a plain line otherwise. Never on standard output."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from precision_tool.lib.present.text import byte_size

_REDRAW_SECONDS = 0.1
_LINE_SECONDS = 10.0


class ProgressReport:
    """Call it with (bytes done, bytes in all). Draws from the caller's thread, so that workers can be forked."""

    def __init__(self, console: Console, what: str) -> None:
        self._console = console
        self._what = what
        self._started = self._last = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> ProgressReport:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}%"),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=self._console,
                auto_refresh=False,
                transient=True,
            )
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._bar is not None:
            if self._task is None or done == 0:
                if self._task is not None:
                    self._bar.remove_task(self._task)
                self._task = self._bar.add_task(self._what, total=max(total, 1))
            if now - self._last >= _REDRAW_SECONDS or done >= total:
                self._bar.update(self._task, completed=done, refresh=True)
                self._last = now
        elif now - self._last >= _LINE_SECONDS and total:
            self._last = now
            rate = done / (now - self._started)
            left = f", {(total - done) / rate:.0f} s left" if rate else ""
            self._console.print(
                f"{self._what}: {100 * done // total}% of {byte_size(total)}, {byte_size(rate)}/s{left}",
                highlight=False,
            )
