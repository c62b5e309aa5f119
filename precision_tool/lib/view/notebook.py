"""What differs in a notebook: progress that leaves nothing behind, and lines that run in a cell."""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from html import escape
from shlex import quote
from types import TracebackType
from typing import TYPE_CHECKING, Any

from precision_tool.lib.data.settings import PROGRAM, start_of_line
from precision_tool.lib.data.workspace import Workspace
from precision_tool.lib.messages import Message, render

if TYPE_CHECKING:
    from precision_tool.lib.compare.scheduler import Progress

#: Work that takes no longer shows no progress.
_DELAY_SECONDS = 1.0
_REDRAW_SECONDS = 0.2


def shell() -> Any | None:
    """Return IPython's shell that runs this code; None in a script. IPython is not imported for it."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def in_notebook() -> bool:
    """Return whether a kernel runs this code: not IPython in a terminal."""
    return getattr(shell(), "kernel", None) is not None


def program() -> str:
    """Return how this program is called; in IPython by a line that runs in a cell.

    Kernels often do not have the folder of this program in their path: then it is called by their Python.
    """
    name = PROGRAM if shutil.which(PROGRAM) else f"{quote(sys.executable)} -m precision_tool"
    return name if shell() is None else f"!{name}"


def command_for(space: Workspace) -> str:
    """Return the start of a command line for a data folder."""
    return start_of_line(program(), [space.root], space.work)


def progress(what: str) -> AbstractContextManager[Progress | None]:
    """Return the progress of long work in a notebook; outside of one nothing is shown.

    Parameters
    ----------
    what : str
        What is done: a kind below `screen.view.notebook`.
    """
    return NotebookProgress(render(Message(f"screen.view.notebook.{what}"))) if in_notebook() else nullcontext()


class NotebookProgress:
    """A bar below the cell, drawn in one place and taken away at the end. Call it with (done, total)."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._started = self._last = time.monotonic()
        self._display: Any = None

    def __enter__(self) -> NotebookProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._display is not None:
            self._display.update({"text/plain": ""}, raw=True)

    def counting(self, unit: str) -> Progress:
        """Return what is called with (done, total) in a unit: a bar shows neither."""
        return partial(self)

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._started < _DELAY_SECONDS or now - self._last < _REDRAW_SECONDS or not total:
            return
        self._last = now
        percent = 100 * done // total
        bar = f'<progress max="100" value="{percent}"></progress> {escape(self._what)} {percent} %'
        shown = {"text/plain": f"{self._what} {percent} %", "text/html": bar}
        if self._display is None:
            from IPython.display import display

            self._display = display(shown, raw=True, display_id=True)
        else:
            self._display.update(shown, raw=True)
