"""Runs a program of the toolkit: argument list, environment of set_env.sh, log file, time limit, no survivors."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from precision_tool.lib.errors import PrecisionToolError
from precision_tool.lib.io.files import open_binary, open_to_write

#: Lines of the log that an error shows.
_LAST_LINES = 8
_LONGEST_LINE = 300
#: How long a program may take to end when it is told to, and set_env.sh to say what it sets.
_GRACE, _ENVIRONMENT_SECONDS = 3.0, 30.0
#: Prints its environment after sourcing the file it is given. The path is an argument, never part of the text.
_SOURCE = '. "$1" >/dev/null 2>&1; exec env -0'


class ToolkitError(PrecisionToolError):
    """A program of the toolkit that could not be run, or did not do what it was to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRun:
    """A program that has ended. `log` is the file with all it printed."""

    name: str
    code: int
    log: str

    @property
    def last_lines(self) -> str:
        """The end of what it printed, on one line."""
        return last_lines(self.log)

    def failure(self, why: str) -> ToolkitError:
        """The error for a run that did not give what it was to give."""
        ending = f"exit code {self.code}" if self.code >= 0 else f"killed by signal {-self.code}"
        said = self.last_lines
        return ToolkitError(
            f"{self.name}: {why} ({ending})" + (f"; it said: {said}" if said else "; it printed nothing"),
            f"its whole output is in {self.log}; --engine native needs no toolkit",
        )


def last_lines(path: str) -> str:
    """The last lines of a log that say anything, joined."""
    try:
        with open_binary(path) as file:
            file.seek(max(0, os.path.getsize(path) - 64 * 1024))
            lines = file.read().decode("utf-8", "backslashreplace").splitlines()
    except (OSError, PrecisionToolError):
        return ""
    told = [line.strip()[:_LONGEST_LINE] for line in lines if line.strip()]
    return " | ".join(told[-_LAST_LINES:])


@cache
def sourced_environment(path: str) -> Mapping[str, str]:
    """The environment after `set_env.sh`; ours where it cannot be read, hangs or fails."""
    with suppress(OSError, subprocess.SubprocessError):
        run = subprocess.run(
            ["bash", "-c", _SOURCE, "bash", path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_ENVIRONMENT_SECONDS,
            check=True,
        )
        pairs = [entry.partition(b"=") for entry in run.stdout.split(b"\0") if b"=" in entry]
        if pairs:
            return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    return dict(os.environ)


def run_tool(
    name: str,
    arguments: Sequence[str],
    *,
    log: str,
    cwd: str,
    variables: Mapping[str, str] | None = None,
    set_env: str | None = None,
    time_limit: float = 0.0,
) -> ToolRun:
    """Runs a program to its end; all it prints goes to `log`. A `time_limit` of 0 is none.

    Its environment is that after `set_env` (a path), else ours, with `variables` set.

    It runs in a process group of its own, which is ended as a whole when the time is up or the user stops us.
    Raises ToolkitError when it cannot be started or takes too long.
    """
    environment = {**(sourced_environment(set_env) if set_env is not None else os.environ), **(variables or {})}
    # Threads of BLAS in each of its workers only stand in each other's way.
    environment.setdefault("OPENBLAS_NUM_THREADS", "1")
    with open_to_write(log) as file:
        try:
            process = subprocess.Popen(
                list(arguments),
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise ToolkitError(
                f"{arguments[0]}: cannot be run ({error.strerror or error})",
                "`toolkit` shows what was found; the setting PYTHON names the interpreter for msaccucmp",
            ) from None
        try:
            code = process.wait(time_limit or None)
        except subprocess.TimeoutExpired:
            raise ToolkitError(
                f"{name} was stopped after {time_limit:g} s; it said last: {last_lines(log) or 'nothing'}",
                f"its output is in {log}; the setting TOOLKIT_SECONDS is the limit, 0 for none",
            ) from None
        finally:
            end_group(process)
    return ToolRun(name=name, code=code, log=log)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends the whole process group: the program may have ended and left children behind."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sent)
        except (ProcessLookupError, PermissionError):
            break
        deadline = time.monotonic() + _GRACE
        while time.monotonic() < deadline and _is_alive(process):
            time.sleep(0.02)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE)


def _is_alive(process: subprocess.Popen[bytes]) -> bool:
    """Whether anyone of the group still runs."""
    process.poll()  # collects the leader, which would count as long as nobody does
    try:
        os.killpg(process.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
