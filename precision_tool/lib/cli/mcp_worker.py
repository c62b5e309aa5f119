"""The process that does the work of the MCP server: one call after the other, and never more than it is allowed.

The server waits for messages of assistants in threads, beside which no workers can be forked; this process has none, so
a diagnosis takes as long as on the command line. Ctrl+C, which cancels a call, ends it as it ends a command.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

from precision_tool.lib.cli.mcp_tools import Desk, Permission, run_tool
from precision_tool.lib.compare.scheduler import WorkStoppedError
from precision_tool.lib.data.settings import Settings
from precision_tool.lib.io import urls
from precision_tool.lib.io.local import reading_only
from precision_tool.lib.logs import start_log
from precision_tool.lib.messages import text
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.messages.language import choose_language
from precision_tool.lib.messages.limits import limit_error

#: What a message to the server says.
PROGRESS, DONE, FAILED, CANCELLED = "progress", "done", "failed", "cancelled"
#: This package, which studies read to know their own version.
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
#: Seconds between two messages of progress.
_BETWEEN = 0.2


class _Reporter:
    """Sends progress, now and then, as a number that only grows."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._last = time.monotonic()
        self._what = ("", "")
        self._phases = -1

    def __call__(self, what: str, done: int, total: int, unit: str) -> None:
        if (what, unit) != self._what:
            self._what, self._phases = (what, unit), self._phases + 1
        elif time.monotonic() - self._last < _BETWEEN:
            return
        self._last = time.monotonic()
        share = min(done / total, 1.0) if total else 1.0
        self._pipe.send((PROGRESS, (self._phases + share, f"{what}: {share:.0%}")))


class _Interruption:
    """Whether Ctrl+C ends what runs now: outside of a call it does nothing."""

    def __init__(self) -> None:
        self.is_working = False
        signal.signal(signal.SIGINT, self._hear)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.is_working:
            self.is_working = False
            raise KeyboardInterrupt


def work(pipe: Connection, settings: Settings, permission: Permission, command: str, secrets: urls.Secrets) -> None:
    """Answer calls, each a tool and its arguments, until the server closes the pipe."""
    interruption = _Interruption()
    urls.take_secrets(secrets)
    choose_language(settings.language)
    os.chdir(permission.scratch)  # files in the working folder, or that this variable names, were not given
    os.environ.pop("ASCEND_WORK_PATH", None)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    desk = Desk(settings=settings, permission=permission, command=command)
    start_log(settings.log_level, desk.session(permission.folders[0]).workspace.output_dir)
    work = [str(settings.work)] if permission.may_write and settings.work is not None else []
    local = [path for path in (*permission.folders, *work) if not urls.is_remote(path)]
    hosts = [urls.place_of(path) for path in permission.folders if urls.is_remote(path)]
    with (
        reading_only([*local, *permission.readable, permission.scratch, _PACKAGE], hosts),
        suppress(EOFError, BrokenPipeError),
    ):  # the server is gone
        while True:
            name, arguments = pipe.recv()
            pipe.send(_answer(desk, name, arguments, pipe, interruption))


def _answer(
    desk: Desk, name: str, arguments: Mapping[str, Any], pipe: Connection, interruption: _Interruption
) -> tuple[str, Any]:
    desk.on_progress = _Reporter(pipe)
    try:
        interruption.is_working = True
        try:
            return DONE, run_tool(desk, name, arguments)
        finally:
            interruption.is_working = False
    except KeyboardInterrupt:
        return CANCELLED, None
    except WorkStoppedError as error:
        return (CANCELLED, None) if error.exit_code == signal.SIGINT + 128 else _failure(error)
    except PrecisionToolError as error:
        return _failure(error)
    except BrokenPipeError:
        raise
    except Exception as error:
        limit = limit_error(error)
        if limit is not None:
            return _failure(limit)
        traceback.print_exc()  # on standard error, which clients keep as the log of a server
        summary = urls.scrubbed(f"{type(error).__name__}: {error}")
        return FAILED, text("screen.cli.internal_error", error=summary, log="")


def _failure(error: PrecisionToolError) -> tuple[str, str]:
    """Return what is wrong, where and why, and what to do next."""
    hint = [text("screen.cli.hint", text=error.hint)] if error.hint else []
    return FAILED, urls.shown("\n".join([error.message, *hint]))
