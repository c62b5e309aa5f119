"""Runs the user's check with one set of passes off after the other, and can be interrupted and taken up again.

Every try writes the switch file, runs the command with its output in a log of its own, and notes the answer at once.
The user's switch file is put back at the end, however that comes; after a kill that left no time, by the next start.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from precision_tool.lib.checks.fusion_bisect import FlakyCheckError
from precision_tool.lib.cli.switch_files import SwitchFile
from precision_tool.lib.collect.fusion_files import FILE_VARIABLE
from precision_tool.lib.errors import OutputError, PrecisionToolError, UsageError
from precision_tool.lib.formats.fusion_switch import Switches, parse_switches, text_to_write
from precision_tool.lib.io.files import could_be_path, open_to_write, read_text
from precision_tool.lib.io.writing import lock_folder, only_writer, rewrite_text
from precision_tool.lib.model.wording import counted
from precision_tool.lib.toolkit.runner import end_group

_STATE = "state.json"
#: Seconds that no try takes: a century.
_LONGEST = 3.2e9
_VERSION = 2
#: Exit codes of a shell that could not run the command.
#: Seconds that an edit of a switch file, which holds the folder as well, takes at most, and between two looks.
_EDIT_TAKES, _POLL = 1.0, 0.02
_NOT_RUN = {126: "it cannot be executed", 127: "there is no such command"}


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
    #: The sections of the passes, as far as the data tells.
    sections: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None
    repeat: int = 1
    tries: list[Try] = field(default_factory=list)
    #: The text of the user's switch file, None if there was none.
    original: str | None = None
    #: What the last two tries wrote into it: a kill may come before the newer is in the file.
    written: tuple[str, ...] = ()
    tell: Callable[[Try, int], None] = lambda one, number: None

    @property
    def known(self) -> dict[frozenset[str], bool]:
        """The answers so far; a set that was answered both ways is left to be asked again."""
        answers: dict[frozenset[str], set[bool]] = {}
        for one in self.tries:
            answers.setdefault(frozenset(one.off), set()).add(one.succeeded)
        return {off: found.pop() for off, found in answers.items() if len(found) == 1}

    @property
    def confirmed(self) -> set[frozenset[str]]:
        """The sets that were asked for twice, each time as often as a try is repeated."""
        times = Counter(frozenset(one.off) for one in self.tries)
        return {off for off, count in times.items() if count >= 2 * self.repeat}

    # --- on the disk ---

    @property
    def _state_path(self) -> str:
        return str(self.folder / _STATE)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else bisects here or with this switch file meanwhile. UsageError if somebody does."""
        handles: list[int | None] = []
        folders = {os.path.realpath(self.folder), os.path.dirname(os.path.realpath(self.file.target))}
        try:
            for folder in sorted(folders):
                handles.append(_locked(folder))
            yield
        finally:
            for handle in handles:
                _free(handle)

    def open(self, fresh: bool) -> list[str]:
        """Takes up an earlier attempt at the same; puts back a switch file that a killed one left. What to tell."""
        state = _read_state(self._state_path)
        notes = _put_back(state) if state.get("running") else []
        self.original = _text_of(self.file.path)
        same = state.get("check") == self.check and set(state.get("passes", ())) == set(self.passes)
        if same and not fresh and state.get("tries"):
            if state.get("base") == self._base():
                self.tries = [_try_of(one) for one in state["tries"]]
                tries = counted(len(self.tries), "try", "tries")
                notes.append(f"{tries} of an earlier attempt are used; --fresh begins anew")
            else:
                notes.append("the tries of an earlier attempt were made with other switches, and are not used")
        if not self.tries:
            for log in self.folder.glob("try_*.log"):
                log.unlink(missing_ok=True)
        return notes

    def _base(self) -> dict[str, Any]:
        """What the user's switch file says beside the passes that are searched."""
        switches = self._with_off(frozenset())
        return {
            "sections": {section: dict(passes) for section, passes in switches.sections.items()},
            "others": dict(switches.others),
        }

    def _with_off(self, off: frozenset[str]) -> Switches:
        """The user's switches with just these of the passes off."""
        text = None if self.original is None else self.original.removeprefix("\ufeff")
        base = self.file.shipped if text is None else parse_switches(text, self.file.path)
        for name in self.passes:
            base = base.with_pass(name, name not in off, self.sections.get(name))
        return base

    @property
    def _to_put_back(self) -> str | None:
        """The text of the file that is written before the first try; None where there was none."""
        return self.original if self.file.path == self.file.target else None

    def _save(self, running: bool) -> None:
        state = {
            "version": _VERSION,
            "check": self.check,
            "passes": list(self.passes),
            "file": os.path.abspath(self.file.target),
            "base": self._base(),
            "running": running,
            "original": self._to_put_back,
            "written": self.written,
            "tries": [asdict(one) for one in self.tries],
        }
        rewrite_text(self._state_path, json.dumps(state, indent=1) + "\n")

    def close(self) -> None:
        """Puts the user's switch file back."""
        if self.written:
            _restore(self.file.target, self._to_put_back)
        self._save(running=False)

    # --- one try ---

    def ask(self, off: frozenset[str]) -> bool:
        """Whether the check succeeds with just these of the passes off. UsageError if it cannot be run at all."""
        answers = {self._once(off) for _ in range(self.repeat)}
        if len(answers) > 1:
            raise FlakyCheckError(off)
        return answers.pop()

    def _once(self, off: frozenset[str]) -> bool:
        text = text_to_write(self._with_off(off), self.file.path)
        self.written = (*self.written[-1:], text)
        self._save(running=True)  # before the file is changed: a killed attempt can be mended
        rewrite_text(self.file.target, text)
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
                open_to_write(log) as file,
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
                    end_group(process)
        except OutputError:
            raise
        except OSError as error:
            raise OutputError(f"{shell} cannot be run ({error.strerror})", "set SHELL to one that can") from error


def bisected(folder: Path, path: str) -> str:
    """What to say of a switch file that is as a try of a bisection in `folder` wanted it; "" of any other."""
    state = _read_state(str(folder / _STATE))
    is_of_it = state.get("running") and os.path.realpath(state["file"]) == os.path.realpath(path)
    if not is_of_it or not _is_left_over(state):
        return ""
    return f"{path} holds the switches of a try of `fusion bisect`, which runs, or was killed"


def check_edit(folders: Sequence[Path], path: str) -> None:
    """UsageError for a switch file that a bisection uses, or one in these folders left: an edit would be lost."""
    for folder in folders:
        reason = bisected(folder, path)
        if reason:
            raise UsageError(
                reason,
                "wait for it; of one that was killed, a search with the same --work puts your file back when it "
                f"begins. To keep the file as it is, remove {folder / _STATE}",
            )
    place = os.path.dirname(os.path.realpath(path))
    if os.path.isdir(place):
        _free(_locked(place, fcntl.LOCK_SH))  # other edits are no matter


@contextmanager
def edit_alone(folders: Sequence[Path], path: str) -> Iterator[None]:
    """Nobody else changes a switch file between its reading and its writing, and no bisection begins meanwhile.

    Errors as of `check_edit`; OutputError where another edit does not end, or its folder cannot be used.
    """
    real = os.path.realpath(path)
    folder = _locked(os.path.dirname(real), fcntl.LOCK_SH)
    try:
        check_edit(folders, path)
        with only_writer(real):
            yield
    finally:
        _free(folder)


def _locked(folder: str, kind: int = fcntl.LOCK_EX) -> int | None:
    """A folder that no other bisection has, until it is freed or the process is gone."""
    until = time.monotonic() + (_EDIT_TAKES if kind == fcntl.LOCK_EX else 0)
    while True:
        try:
            os.makedirs(folder, exist_ok=True)
            return lock_folder(folder, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < until:
                time.sleep(_POLL)
                continue
            raise UsageError(
                f"fusion bisect is running, with its results or its switch file in {folder}",
                "wait for it, or name another switch file with --file and another folder with --work",
            ) from None
        except OSError as error:
            raise OutputError.of(
                folder, f"cannot be used ({error.strerror})", "name another file with --file"
            ) from error


def _free(handle: int | None) -> None:
    if handle is not None:
        os.close(handle)


def _text_of(path: str) -> str | None:
    """The text of a file to the letter, its line ends as well; None if there is none."""
    with suppress(PrecisionToolError):
        return read_text(path, newline="")
    return None


def _put_back(state: dict[str, Any]) -> list[str]:
    """Puts back the switch file of an attempt that was killed, whichever file it was."""
    path, original = str(state["file"]), state.get("original")
    if _is_left_over(state):
        _restore(path, original)
        return [f"a bisection was killed: {path} is put back as it was before it"]
    if _text_of(path) == original:
        return []
    return [f"a bisection was killed; {path} was changed since and stays as it is"]


def _is_left_over(state: dict[str, Any]) -> bool:
    """Whether the switch file of an attempt is as a try of it wanted it."""
    now = _text_of(str(state["file"]))
    return now != state.get("original") and now in state["written"]


def _restore(path: str, text: str | None) -> None:
    if text is None:
        with suppress(FileNotFoundError):
            os.unlink(path)
    else:
        rewrite_text(path, text)


def _read_state(path: str) -> dict[str, Any]:
    """The state of an earlier attempt; {} where there is none, or none of the shape that `_save` writes."""
    try:
        state = json.loads(read_text(path))
    except (PrecisionToolError, ValueError, RecursionError):
        return {}
    return state if isinstance(state, dict) and _is_state(state) else {}


def _is_state(state: dict[str, Any]) -> bool:
    """Whether each member is of the kind that `_save` writes: the file may be of another version, or of anybody."""

    def is_texts(value: object) -> bool:
        return isinstance(value, list) and all(isinstance(text, str) for text in value)

    def is_try(value: object) -> bool:
        return (
            isinstance(value, dict)
            and is_texts(value.get("off"))
            and isinstance(value.get("succeeded"), bool)
            and ("code" in value and (value["code"] is None or type(value["code"]) is int))
            and type(value.get("seconds")) in (int, float)
            and 0 <= value["seconds"] < _LONGEST
            and isinstance(value.get("log"), str)
        )

    file, tries = state.get("file"), state.get("tries")
    return (
        state.get("version") == _VERSION
        and isinstance(state.get("check"), str)
        and is_texts(state.get("passes"))
        and isinstance(file, str)
        and could_be_path(file)
        and isinstance(state.get("base"), dict)
        and isinstance(state.get("running"), bool)
        and isinstance(state.get("original", 0), (str, type(None)))
        and is_texts(state.get("written"))
        and isinstance(tries, list)
        and all(map(is_try, tries))
    )


def _try_of(values: dict[str, Any]) -> Try:
    return Try(
        off=tuple(values["off"]),
        succeeded=values["succeeded"],
        code=values["code"],
        seconds=float(values["seconds"]),
        log=values["log"],
    )
