"""Runs the user's check with one set of changes after the other, and can be interrupted and taken up again.

Every try writes the fusion switch file and what else its changes say, runs the command with its output in a log of its
own, and notes the answer at once.
The user's switch file is put back at the end, however that comes; after a kill that left no time, by the next start.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from precision_tool.lib.cli.command import Output, show_note, tell_notes
from precision_tool.lib.cli.switch_files import SwitchFile
from precision_tool.lib.compare.toolkit import run_command, shell, uninterrupted
from precision_tool.lib.diagnose.bisect import Answer, Bisection, Search, Try
from precision_tool.lib.io.files import could_be_path, read_text
from precision_tool.lib.io.fusion_passes import Switches, parse_switches, text_to_write
from precision_tool.lib.io.writing import lock_folder, only_writer, rewrite_text
from precision_tool.lib.messages import Message, text
from precision_tool.lib.messages.errors import OutputError, PrecisionToolError, UsageError
from precision_tool.lib.model.documents import from_document, to_document
from precision_tool.lib.session import Session
from precision_tool.lib.training.switches import FILE_VARIABLE
from precision_tool.lib.view.bisect_screen import start_line, try_line
from precision_tool.lib.view.text import plain

_STATE = "state.json"
#: Seconds that no try takes: a century.
_MAX_SECONDS = 3.2e9
_VERSION = 4
#: Seconds that an edit of a switch file, which locks the folder as well, takes at most, and between two attempts.
_EDIT_TAKES, _POLL = 1.0, 0.02
#: Exit codes of a shell that could not run the command.
_NOT_EXECUTABLE, _NO_COMMAND = 126, 127


@dataclass(frozen=True, kw_only=True)
class _State:
    """What a bisection keeps on the disk; `base` are the user's switches other than the passes that are searched."""

    version: int
    check: str
    names: tuple[str, ...]
    file: str
    base: str
    running: bool
    original: str | None
    written: tuple[str, ...]
    tries: tuple[Try, ...]


@dataclass(kw_only=True)
class BisectRun:
    """A bisection on the disk: what is searched, the tries so far, the user's own switch file."""

    folder: Path
    check: str
    #: The changes that are searched, and the passes that some of them switch off in `file`.
    names: tuple[str, ...]
    passes: Mapping[str, str]
    file: SwitchFile
    #: The sections of the passes, as far as the data tells.
    sections: Mapping[str, str] = field(default_factory=dict)
    #: Writes what else the changes of a try say; the variables that tell the command.
    write: Callable[[frozenset[str]], Mapping[str, str]] = lambda changes: {}
    timeout: float | None = None
    tries: list[Try] = field(default_factory=list)
    #: The text of the user's switch file, None if there was none.
    original: str | None = None
    #: What the last two tries wrote into it: a kill may come before the newer is in the file.
    written: tuple[str, ...] = ()
    on_try: Callable[[Try, int], None] = lambda attempt, number: None

    @property
    def answers(self) -> list[Answer]:
        """The answers so far, in their order."""
        return [(frozenset(attempt.changes), attempt.succeeded) for attempt in self.tries]

    def search(self, search: Search) -> Bisection:
        """Search what is not known yet. UsageError if the check cannot be run."""
        try:
            return search.run(self.once, self.answers)
        finally:
            with uninterrupted():
                self.close()

    # --- on the disk ---

    @property
    def _state_path(self) -> str:
        return str(self.folder / _STATE)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the folder and the switch file against other bisections. UsageError if one is running."""
        handles: list[int | None] = []
        folders = {os.path.realpath(self.folder), os.path.dirname(os.path.realpath(self.file.target))}
        try:
            for folder in sorted(folders):
                handles.append(_locked(folder))
            yield
        finally:
            for handle in handles:
                _free(handle)

    def open(self, fresh: bool) -> list[Message]:
        """Continue an earlier search for the same, restore a switch file that a killed one left, and return notes."""
        state = _read_state(self._state_path)
        notes = _put_back(state) if state is not None and state.running else []
        self.original = _text_of(self.file.path)
        is_same = state is not None and (state.check, set(state.names)) == (self.check, set(self.names))
        if state is not None and is_same and not fresh and state.tries:
            if state.base == self._base():
                self.tries = list(state.tries)
                notes.append(Message("note.cli.bisect_continued", tries=len(self.tries)))
            else:
                notes.append(Message("note.cli.bisect_other_switches"))
        if not self.tries:
            for log in self.folder.glob("try_*.log"):
                log.unlink(missing_ok=True)
        return notes

    def _base(self) -> str:
        """Return the user's switches other than the passes that are searched."""
        switches = self.switches_with(frozenset())
        sections = {section: dict(passes) for section, passes in switches.sections.items()}
        return json.dumps({"sections": sections, "others": dict(switches.others)}, sort_keys=True)

    def switches_with(self, off: frozenset[str]) -> Switches:
        """Return the user's switches with exactly the passes of these changes off."""
        text = None if self.original is None else self.original.removeprefix("\ufeff")
        base = self.file.shipped if text is None else parse_switches(text, self.file.path)
        for change, name in self.passes.items():
            base = base.with_pass(name, change not in off, self.sections.get(name))
        return base

    @property
    def _to_put_back(self) -> str | None:
        """The text of the file that is written before the first try; None where there was none."""
        return self.original if self.file.path == self.file.target else None

    def _save(self, running: bool) -> None:
        state = _State(
            version=_VERSION, check=self.check, names=self.names, file=os.path.abspath(self.file.target),
            base=self._base(), running=running, original=self._to_put_back, written=self.written,
            tries=tuple(self.tries),
        )  # fmt: skip
        rewrite_text(self._state_path, json.dumps(to_document(state), indent=1) + "\n")

    def close(self) -> None:
        """Restore the user's switch file."""
        if self.written:
            _restore(self.file.target, self._to_put_back)
        self._save(running=False)

    # --- one try ---

    def once(self, changes: frozenset[str]) -> bool:
        """Return whether the check succeeds with exactly these changes. UsageError if it cannot be run."""
        switches = text_to_write(self.switches_with(changes), self.file.path)
        self.written = (*self.written[-1:], switches)
        self._save(running=True)  # before the file is changed: a killed attempt can be mended
        rewrite_text(self.file.target, switches)
        variables = self.write(changes)
        number = len(self.tries) + 1
        log = str(self.folder / f"try_{number:03}.log")
        started = time.monotonic()
        code = self._run(log, variables)
        if code in (_NOT_EXECUTABLE, _NO_COMMAND):
            raise UsageError("cli.check_not_run", code=code, is_missing=code == _NO_COMMAND, log=log)
        attempt = Try(
            changes=tuple(name for name in self.names if name in changes),
            succeeded=code == 0,
            code=code,
            seconds=round(time.monotonic() - started, 3),
            log=log,
        )
        self.tries.append(attempt)
        self._save(running=True)
        self.on_try(attempt, number)
        return attempt.succeeded

    def _run(self, log: str, variables: Mapping[str, str]) -> int | None:
        """Return the exit code of the command, None if it ran out of time. What it started ends with it."""
        environment = {**os.environ, FILE_VARIABLE: os.path.abspath(self.file.target), **variables}
        try:
            return run_command(self.check, log=log, environment=environment, time_limit=self.timeout)
        except OutputError:
            raise
        except OSError as error:
            raise OutputError("cli.shell_not_run", shell=shell(), reason=error.strerror) from error


def conduct(
    session: Session, output: Output, run: BisectRun, search: Search, *, fresh: bool, notes: Sequence[Message] = (),
    suspected: Sequence[str] = (),
) -> Bisection:  # fmt: skip
    """Search from the user's terminal: say before it starts how many runs it takes, and after each how many are left.

    Parameters
    ----------
    session, output
        Of the command.
    run : BisectRun
        The bisection on the disk; earlier tries of it are used unless it is to begin `fresh`.
    search : Search
        What is searched.
    notes : sequence of Message
        What to say before it starts.
    suspected : sequence of str
        The changes that are searched first.

    Returns
    -------
    Bisection
        What the search came to. UsageError if the check cannot be run; an interrupted one is kept.
    """

    def show_try(attempt: Try, number: int) -> None:
        again = any(before.changes == attempt.changes for before in run.tries[: number - 1])
        remaining = search.remaining(run.answers)
        seconds = sum(before.seconds for before in run.tries) / number * (remaining or 0)
        total = len(searched_so_far(run, search))
        output.err.print(try_line(number, attempt, total, again, remaining, seconds), soft_wrap=True)

    run.on_try = show_try
    with run.alone():
        session.workspace.notes += [*run.open(fresh), *notes]
        tell_notes(session, output)
        before = len(run.tries)
        remaining = search.remaining(run.answers)
        if remaining != 0:
            most = None if search.most is None else max(search.most - before, 0)
            output.err.print(start_line(len(search.names), remaining, most, suspected), soft_wrap=True)
        interrupted = True
        try:
            result = run.search(search)
            interrupted = False
        finally:
            if interrupted:
                kept = text("screen.cli.bisect_kept", tries=len(run.tries))
                output.err.print(plain(kept, "yellow"), soft_wrap=True)
    if len(run.tries) == before:
        show_note(output, Message("note.cli.bisect_finished"))
    return result


def searched_so_far(run: BisectRun, search: Search) -> tuple[str, ...]:
    """Return the changes, with the reserve if the search reached it."""
    names = tuple(search.names)
    return names if all({*attempt.changes} <= {*names} for attempt in run.tries) else run.names


def is_bisected(folder: Path, path: str) -> bool:
    """Return whether a switch file holds the switches of an attempt of a bisection in `folder`."""
    state = _read_state(str(folder / _STATE))
    is_its_file = state is not None and state.running and os.path.realpath(state.file) == os.path.realpath(path)
    return state is not None and is_its_file and _is_left_over(state)


def check_edit(folders: Sequence[Path], path: str) -> None:
    """Raise UsageError for a switch file that a bisection uses or left in these folders: an edit would be lost."""
    for folder in folders:
        if is_bisected(folder, path):
            raise UsageError("cli.switch_file_in_use", path=path, state=folder / _STATE)
    place = os.path.dirname(os.path.realpath(path))
    if os.path.isdir(place):
        _free(_locked(place, fcntl.LOCK_SH))  # other edits are no matter


@contextmanager
def edit_alone(folders: Sequence[Path], path: str) -> Iterator[None]:
    """Keep a switch file from being changed, or used by a bisection, between its reading and its writing.

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
    """Lock a folder against other bisections until the handle is closed or the process ends."""
    until = time.monotonic() + (_EDIT_TAKES if kind == fcntl.LOCK_EX else 0)
    while True:
        try:
            os.makedirs(folder, exist_ok=True)
            return lock_folder(folder, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < until:
                time.sleep(_POLL)
                continue
            raise UsageError("cli.bisect_is_running", folder=folder) from None
        except OSError as error:
            raise OutputError.of(folder, "cli.folder_not_used", reason=error.strerror) from error


def _free(handle: int | None) -> None:
    if handle is not None:
        os.close(handle)


def _text_of(path: str) -> str | None:
    """Return the exact text of a file, line ends included; None if there is none."""
    with suppress(PrecisionToolError):
        return read_text(path, newline="")
    return None


def _put_back(state: _State) -> list[Message]:
    """Restore the switch file of an attempt that was killed, and return notes."""
    if _is_left_over(state):
        _restore(state.file, state.original)
        return [Message("note.cli.bisect_restored", path=state.file)]
    if _text_of(state.file) == state.original:
        return []
    return [Message("note.cli.bisect_changed", path=state.file)]


def _is_left_over(state: _State) -> bool:
    """Return whether the switch file of a killed search still is as one of its attempts wrote it."""
    now = _text_of(state.file)
    return now != state.original and now in state.written


def _restore(path: str, text: str | None) -> None:
    if text is None:
        with suppress(FileNotFoundError):
            os.unlink(path)
    else:
        rewrite_text(path, text)


def _read_state(path: str) -> _State | None:
    """Return the state of an earlier attempt; None where there is none, or none that this version writes."""
    try:
        state = from_document(_State, json.loads(read_text(path)))
    except (PrecisionToolError, ValueError, RecursionError):
        return None
    is_sound = could_be_path(state.file) and all(0 <= attempt.seconds < _MAX_SECONDS for attempt in state.tries)
    return state if is_sound and state.version == _VERSION else None
