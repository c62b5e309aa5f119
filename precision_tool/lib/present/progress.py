"""Progress of a command: a bar on a terminal, now and then a plain line otherwise. Never on standard output."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from precision_tool.lib.present.text import byte_size

_REDRAW_SECONDS = 0.1
_LINE_SECONDS = 10.0


class ProgressReport:
    """Call it with (done, total), in bytes; `counting` gives the same for another unit.

    It draws from the caller's thread, so that workers can be forked.
    """

    def __init__(self, console: Console, what: str) -> None:
        self._console = console
        self._what = what
        self._unit = "bytes"
        self._started = self._last = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> ProgressReport:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}%"),
                _SpeedColumn(),
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

    def counting(self, unit: str) -> Callable[[int, int], None]:
        """Return what is called with (done, total) in a unit: "bytes", "ops"."""
        return partial(self, unit=unit)

    def __call__(self, done: int, total: int, unit: str = "bytes") -> None:
        now = time.monotonic()
        is_new = done == 0 or unit != self._unit
        if is_new:
            self._unit, self._started = unit, now
        if self._bar is not None:
            if self._task is None or is_new:
                if self._task is not None:
                    self._bar.remove_task(self._task)
                self._task = self._bar.add_task(self._what, total=max(total, 1), unit=unit)
            if now - self._last >= _REDRAW_SECONDS or done >= total:
                self._bar.update(self._task, completed=done, refresh=True)
                self._last = now
        elif now - self._last >= _LINE_SECONDS and total:
            self._last = now
            rate = done / (now - self._started) if now > self._started else 0.0
            left = f", {(total - done) / rate:.0f} s left" if rate else ""
            self._console.print(
                f"{self._what}: {100 * done // total}% of {_amount(total, unit)}, {_amount(rate, unit)}/s{left}",
                highlight=False,
            )


class _SpeedColumn(ProgressColumn):
    """How much is done in a second, in the unit of the task."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        text = "?" if speed is None else f"{_amount(speed, task.fields['unit'])}/s"
        return Text(text, style="progress.data.speed")


def _amount(count: float, unit: str) -> str:
    """A number of bytes as 1.5 GB, of others as 120 ops or 1.5 ops."""
    if unit == "bytes":
        return byte_size(count)
    return f"{count:.0f} {unit}" if count >= 10 or count == int(count) else f"{count:.1f} {unit}"
