"""Puts it together: one word of the command line → its command → an exit code."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence

from precision_tool.lib.settings import Settings

#: Where each word's `Command` lives; a command imports only what it needs.
_COMMANDS = {
    "ac": ("compare", "AC"),
    "vc": ("compare", "VC"),
    "vcs": ("compare", "VCS"),
    "demo": ("demo", "DEMO"),
}


def run(word: str, argv: Sequence[str], settings: Settings) -> int:
    """Runs one command and returns its exit code; the user's errors are raised."""
    # Before numpy loads: its BLAS threads would only compete with our worker processes.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that has no 卷积 shows \\u5377\\u79ef
            stream.reconfigure(errors="backslashreplace")
    from precision_tool.lib.report.console import ReportConsole
    from precision_tool.lib.session import Session
    from precision_tool.lib.shell.commands.base import Output

    module, name = _COMMANDS[word]
    command = getattr(importlib.import_module(f"precision_tool.lib.shell.commands.{module}"), name)
    code: int = command(Session(settings), argv, Output(ReportConsole(), ReportConsole(stderr=True)))
    return code
