"""Puts it together: one word of the command line → its command → an exit code; no word → the prompt."""

from __future__ import annotations

import atexit
import gc
import io
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from precision_tool.lib.cli.ascii_signs import SIGNS
from precision_tool.lib.data.settings import Settings
from precision_tool.lib.logs import start_log
from precision_tool.lib.messages.limits import check_address_space

if TYPE_CHECKING:
    from precision_tool.lib.session import Session


def run(word: str, argv: Sequence[str], settings: Settings) -> int:
    """Run one command and return its exit code; the user's errors are raised."""
    # The ops and rows of a large run make no cycles: looking for some at every 700 objects takes a fifth of the time.
    gc.set_threshold(100_000, 20, 20)
    session = _open(settings)
    from precision_tool.lib.cli.command import Output, load_command
    from precision_tool.lib.view.console import ReportConsole

    out, err = (ReportConsole(stderr=stderr, width=settings.width, theme=settings.theme) for stderr in (False, True))
    with _ends_cleanly():
        code: int = load_command(word)(session, argv, Output(out, err))
    return code


def start_prompt(settings: Settings) -> int:
    """Run the prompt until the user leaves and return its exit code."""
    session = _open(settings)
    from precision_tool.lib.cli import prompt

    return prompt.start(session)


def show_manual(settings: Settings, usage: str, about: str, options: Mapping[str, str], exit_codes: str) -> int:
    """Show the manual page on a terminal, or write its source, and return the exit code."""
    session = _open(settings)
    from precision_tool.lib.cli.man_page import man_page

    page = man_page(session, usage, about, options, exit_codes)
    if sys.stdout.isatty() and shutil.which("man"):
        return subprocess.run(["man", "-l", "-"], input=page, encoding="utf-8", check=False).returncode
    sys.stdout.write(page)
    return 0


@contextmanager
def _ends_cleanly() -> Iterator[None]:
    """End a command on a closed terminal or a time limit as on Ctrl+C, so that temporary files are removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # else somebody wants it otherwise: nohup
            before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


#: A graph is a hundred thousand objects without cycles, and so are the modules that a command loads: looking for these
#: as often as usual takes a tenth of `ls`.
_GC_THRESHOLDS = (200_000, 20, 50)


def _open(settings: Settings) -> Session:
    gc.set_threshold(*_GC_THRESHOLDS)
    # At its end the interpreter looks for cycles among all objects, which the system takes back anyway.
    atexit.register(gc.freeze)
    # Before numpy loads: its BLAS threads would only compete with our worker processes.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    check_address_space()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that has no 卷积 shows \\u5377\\u79ef, no … three dots
            stream.reconfigure(errors=SIGNS)
    from precision_tool.lib.session import Session

    session = Session(settings)
    start_log(settings.log_level, session.workspace.output_dir)
    return session
