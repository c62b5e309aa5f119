"""Runs the user's check with one set of passes off after the other, and can be interrupted and taken up again.

Every try writes the switch file, runs the command with its output in a log of its own, and notes the answer at once.
The user's switch file is put back at the end, however that comes; after a kill that left no time, by the next start.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from precision_tool.lib.checks.fusion_bisect import FlakyCheckError
from precision_tool.lib.errors import OutputError, UsageError
from precision_tool.lib.formats.fusion_switch import Switches, parse_switches, render
from precision_tool.lib.model.wording import counted
from precision_tool.lib.shell.switch_files import SwitchFile, write_text

_STATE = "state.json"
_VERSION = 1
#: The path of the switch file, for checks that do not use the training helper.
FILE_VARIABLE = "PRECISION_TOOL_FUSION_SWITCH_FILE"
#: Exit codes of a shell that could not run the command.
_NOT_RUN = {126: "it cannot be executed", 127: "there is no such command"}
#: Seconds a command has to end in after it was asked to.
_GRACE = 5.0


@dataclass(frozen=True, kw_only=True)
class Try:
    """One run of the check: the passes that were off, whether it succeeded, its exit code (None: out of time)."""

    off: tuple[str, ...]
    succeeded: bool
    code: int | None
    seconds: float
    log: str


@dataclass(kw_only=True)
class BisectRun:
    """A bisection on the disk: what is searched, the tries so far, the user's own switch file."""

    folder: Path
    check: str
    passes: tuple[str, ...]
    file: SwitchFile
    timeout: float | None = None
    repeat: int = 1
    tries: list[Try] = field(default_factory=list)
    #: The text of the user's switch file, None if there was none.
    original: str | None = None
    #: What the last try wrote into it.
    written: str | None = None
    tell: Callable[[Try, int], None] = lambda one, number: None
    #: Whether earlier tries were found.
    is_resumed: bool = False

    @property
    def known(self) -> dict[frozenset[str], bool]:
        """The answers so far; a set that was answered both ways is left to be asked again."""
        answers: dict[frozenset[str], set[bool]] = {}
        for one in self.tries:
            answers.setdefault(frozenset(one.off), set()).add(one.succeeded)
        return {off: found.pop() for off, found in answers.items() if len(found) == 1}

    # --- on the disk ---

    @property
    def _state_path(self) -> str:
        return str(self.folder / _STATE)

    def open(self, fresh: bool) -> list[str]:
        """Takes up an earlier attempt at the same; puts back a switch file that a killed one left. What to tell."""
        notes = []
        state = _read_state(self._state_path)
        if state.get("running") and state.get("file") == os.path.abspath(self.file.target):
            notes += self._put_back(state)
        same = state.get("check") == self.check and set(state.get("passes", ())) == set(self.passes)
        if same and not fresh:
            self.tries = [_try_of(one) for one in state.get("tries", ())]
            self.is_resumed = bool(self.tries)
            if self.is_resumed:
                notes.append(
                    f"{counted(len(self.tries), 'try', 'tries')} of an earlier attempt are used; --fresh begins anew"
                )
        if not self.is_resumed:
            for log in self.folder.glob("try_*.log"):
                log.unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            self.original = Path(self.file.path).read_text("utf-8")
        return notes

    def _put_back(self, state: dict[str, Any]) -> list[str]:
        target = self.file.target
        try:
            now = Path(target).read_text("utf-8")
        except OSError:
            now = None
        if now != state.get("written"):
            return [f"an earlier attempt was killed; {target} was changed since and stays as it is"]
        _restore(target, state.get("original"))
        return [f"an earlier attempt was killed: {target} is put back as it was before it"]

    def _save(self, running: bool) -> None:
        state = {
            "version": _VERSION,
            "check": self.check,
            "passes": list(self.passes),
            "file": os.path.abspath(self.file.target),
            "running": running,
            "original": self.original if self.file.path == self.file.target else None,
            "written": self.written,
            "tries": [asdict(one) for one in self.tries],
        }
        write_text(self._state_path, json.dumps(state, indent=1) + "\n")

    def close(self) -> None:
        """Puts the user's switch file back."""
        if self.written is not None:
            _restore(self.file.target, self.original if self.file.path == self.file.target else None)
        self._save(running=False)

    # --- one try ---

    def ask(self, off: frozenset[str]) -> bool:
        """Whether the check succeeds with just these of the passes off. UsageError if it cannot be run at all."""
        answers = {self._once(off) for _ in range(self.repeat)}
        if len(answers) > 1:
            raise FlakyCheckError(off)
        return answers.pop()

    def _once(self, off: frozenset[str]) -> bool:
        base = self.file.shipped if self.original is None else parse_switches(self.original, self.file.path)
        self.written = render(switched(base, self.passes, off))
        self._save(running=True)  # before the file is changed: a killed attempt can be mended
        write_text(self.file.target, self.written)
        number = len(self.tries) + 1
        log = str(self.folder / f"try_{number:03}.log")
        started = time.monotonic()
        code = self._run(log)
        if code in _NOT_RUN:
            raise UsageError(
                f"--check: the command ended with {code}: {_NOT_RUN[code]}; its output is in {log}",
                "try the command by itself first; one that fails has to end with another exit code",
            )
        one = Try(
            off=tuple(name for name in self.passes if name in off),
            succeeded=code == 0,
            code=code,
            seconds=round(time.monotonic() - started, 3),
            log=log,
        )
        self.tries.append(one)
        self._save(running=True)
        self.tell(one, number)
        return one.succeeded

    def _run(self, log: str) -> int | None:
        """The exit code of the command, None if it ran out of time. What it started ends with it."""
        shell = os.environ.get("SHELL") or "/bin/sh"
        environment = {**os.environ, FILE_VARIABLE: os.path.abspath(self.file.target)}
        try:
            with (
                open(log, "wb") as file,
                subprocess.Popen(
                    [shell, "-c", self.check],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                ) as process,
            ):
                try:
                    return process.wait(self.timeout)
                except subprocess.TimeoutExpired:
                    return None
                finally:
                    _end(process)
        except OSError as error:
            raise OutputError(f"{log}: cannot be written, or {shell} not be run ({error.strerror})", "") from error


def switched(base: Switches, passes: Sequence[str], off: frozenset[str]) -> Switches:
    """The user's switches with these passes on or off."""
    for name in passes:
        base = base.with_pass(name, name not in off)
    return base


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a command, and what it started, that is still there."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
            if number == signal.SIGTERM and process.returncode is not None:
                return


def _restore(path: str, text: str | None) -> None:
    if text is None:
        with suppress(FileNotFoundError):
            os.unlink(path)
    else:
        write_text(path, text)


def _read_state(path: str) -> dict[str, Any]:
    """The state of an earlier attempt; {} where there is none that can be used."""
    try:
        state = json.loads(Path(path).read_text("utf-8"))
        for one in state["tries"]:
            _try_of(one)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return state if state.get("version") == _VERSION else {}


def _try_of(values: dict[str, Any]) -> Try:
    return Try(
        off=tuple(map(str, values["off"])),
        succeeded=bool(values["succeeded"]),
        code=values["code"],
        seconds=float(values["seconds"]),
        log=str(values["log"]),
    )
