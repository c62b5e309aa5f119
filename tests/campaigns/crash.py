"""The campaign behind `scripts/crash`: disturbs commands at random moments, and looks at what is left.

Signals come to them, one of their workers dies, or no file may become larger than so much, as on a full disk. Whatever
was finished is whole and the same as of an undisturbed run, no input has changed, nothing keeps running, and the next
run of the command works, gives all that it should and leaves nothing temporary behind.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from pathlib import Path

from precision_tool.lib.cli.words import USER_ERROR
from precision_tool.lib.io.cache import SUFFIX

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/trees"), str(ROOT / "tests/campaigns")]

from fuzzing.commands import (  # noqa: E402  # found by the paths above
    Command,
    commands,
    contents,
    files_below,
    fingerprint,
    fresh,
    is_kept,
    is_temporary,
    make_data,
)

#: Seconds that a command may take to stop, and to end when nobody disturbs it.
_STOP, _HANG = 20.0, 120.0
#: The smallest limit of a file's size, and the largest by the command's largest file: some are not reached.
_SMALLEST, _LARGEST = 64, 1.5


class Whom(Enum):
    """Who is disturbed: the command's first process, all of them as by Ctrl+C, one of its workers."""

    FIRST = "first"
    ALL = "all"
    WORKER = "worker"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How a command is disturbed: by a signal, that comes so many times, or a limit of the size of files."""

    number: int = 0
    whom: Whom = Whom.FIRST
    times: int = 1

    @property
    def is_survived(self) -> bool:
        """Whether the command goes on, or ends with an error of its own."""
        return not self.number or self.whom is Whom.WORKER

    @property
    def codes(self) -> tuple[int, ...]:
        """Exit codes beside that of an undisturbed command."""
        return (USER_ERROR,) if self.is_survived else (130, -self.number, 128 + self.number)


_KINDS = {
    "KILL": Kind(number=signal.SIGKILL),
    "KILL all": Kind(number=signal.SIGKILL, whom=Whom.ALL),
    "KILL worker": Kind(number=signal.SIGKILL, whom=Whom.WORKER),
    "INT": Kind(number=signal.SIGINT, whom=Whom.ALL),
    "INT INT": Kind(number=signal.SIGINT, whom=Whom.ALL, times=2),
    "INT INT INT": Kind(number=signal.SIGINT, whom=Whom.ALL, times=3),
    "TERM": Kind(number=signal.SIGTERM),
    "HUP": Kind(number=signal.SIGHUP, whom=Whom.ALL),
    "size": Kind(),
}


@dataclass(kw_only=True)
class Known:
    """What a command does when nobody disturbs it: exit code, seconds, contents by name; and names that vary."""

    code: int
    seconds: float
    has_workers: bool
    files: dict[str, set[bytes]]
    before: dict[str, set[bytes]]
    #: Files that it completes later, as they are at first.
    stages: dict[str, set[bytes]]
    varying: frozenset[str]

    @property
    def kinds(self) -> list[str]:
        """How it can be disturbed."""
        return [name for name, kind in _KINDS.items() if self.has_workers or kind.whom is not Whom.WORKER]

    def limit(self, rng: random.Random) -> int:
        """A limit of the size of files, that many of its own files reach, or few, or none."""
        largest = max(len(content) for held in self.files.values() for content in held)
        return int(_SMALLEST * (1 + _LARGEST * largest / _SMALLEST) ** rng.random())


@dataclass(kw_only=True)
class Tally:
    """What came of killing one command."""

    kills: int = 0
    ended_before: int = 0
    slowest: float = 0.0
    findings: Counter[str] = field(default_factory=Counter)


def _start(command: Command, folder: Path, limit: int = 0) -> subprocess.Popen[bytes]:
    temporary = folder.parent / "temporary"
    temporary.mkdir(exist_ok=True)
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "PYTHONPATH") if name in os.environ}
    return subprocess.Popen(
        [sys.executable, "-m", "precision_tool", *command.words],
        cwd=folder,
        env={**environment, "TMPDIR": str(temporary), "COLUMNS": "120"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,  # a file would have the limit too
        pipesize=1 << 20,
        start_new_session=True,
        preexec_fn=partial(_begin, limit),  # noqa: PLW1509  # no threads here
    )


def _begin(limit: int) -> None:
    """Whoever runs this may ignore signals, and children inherit that; no file gets larger than the limit, if any."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def _said(process: subprocess.Popen[bytes]) -> str:
    """What a command that has ended wrote to standard error."""
    assert process.stderr
    with process.stderr as errors:
        os.set_blocking(errors.fileno(), False)
        return (errors.read() or b"").decode("utf-8", "replace")


def _family(group: int) -> list[int]:
    """The processes of a group that still run."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path("/proc", entry, "stat").read_text("ascii", "replace").rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(int(entry))
    return found


def _workers(group: int) -> list[int]:
    """The processes that a command forked and that run no other program."""
    lines = {}
    for pid in _family(group):
        with suppress(OSError):
            lines[pid] = Path("/proc", str(pid), "cmdline").read_bytes()
    return [pid for pid, line in lines.items() if pid != group and line == lines.get(group)]


@dataclass(kw_only=True)
class _Run:
    """One run that nobody disturbed."""

    code: int
    seconds: float
    has_workers: bool
    errors: str
    before: dict[str, set[bytes]]
    files: dict[str, set[bytes]]


def _run(command: Command, folder: Path) -> _Run:
    fresh(folder, command)
    before = contents(folder)
    has_workers = False
    start = time.monotonic()
    process = _start(command, folder)
    try:
        while process.poll() is None and time.monotonic() - start < _HANG:
            has_workers = has_workers or bool(_workers(process.pid))
            time.sleep(0.01)
    finally:
        _end_all(process.pid)
    return _Run(
        code=process.wait(),
        seconds=time.monotonic() - start,
        has_workers=has_workers,
        errors=_said(process),
        before=before,
        files=contents(folder),
    )


def _undisturbed(command: Command, folder: Path) -> Known:
    """Runs a command twice; what differs between the two is not compared."""
    one, other = _run(command, folder), _run(command, folder)
    if one.code != other.code or one.code not in (0, 1):
        raise SystemExit(f"crash: {' '.join(command.words)}: ends with {one.code} and {other.code}\n{other.errors}")
    if not one.files:
        raise SystemExit(f"crash: {' '.join(command.words)}: writes nothing")
    return Known(
        code=one.code,
        seconds=min(one.seconds, other.seconds),
        has_workers=one.has_workers or other.has_workers,
        files=one.files,
        before=one.before,
        stages=_run(replace(command, words=command.begins_as), folder).files if command.begins_as else {},
        varying=frozenset(
            name
            for name in one.files
            if one.files[name] != other.files.get(name) or any(fnmatch.fnmatch(name, each) for each in command.varying)
        ),
    )


def _end_all(group: int) -> None:
    for pid in _family(group):
        os.kill(pid, signal.SIGKILL)


def _disturb(
    process: subprocess.Popen[bytes], kind: Kind, delay: float, rng: random.Random
) -> tuple[int | None, float, list[str]]:
    """Waits and disturbs; exit code (None: it does not stop), seconds it took to stop, and what was wrong."""
    took = 0.0
    try:
        code = process.wait(delay)
    except subprocess.TimeoutExpired:
        start = time.monotonic()
        _send(process, kind, rng)
        try:
            code = process.wait(_HANG if kind.is_survived else _STOP)
        except subprocess.TimeoutExpired:
            _end_all(process.pid)
            process.wait()
            return None, _STOP, ["it does not stop"]
        took = time.monotonic() - start
    until = time.monotonic() + _STOP
    while _family(process.pid):
        if time.monotonic() > until:
            _end_all(process.pid)
            return code, took, ["processes keep running"]
        time.sleep(0.01)
    return code, took, []


def _send(process: subprocess.Popen[bytes], kind: Kind, rng: random.Random) -> None:
    """Sends the signals, one soon after the other, until the command has ended."""
    for number in range(kind.times):
        if number:
            time.sleep(rng.uniform(0, 0.3))
        workers: list[int] = []
        while process.poll() is None and kind.whom is Whom.WORKER and not workers:
            time.sleep(0.01)
            workers = _workers(process.pid)
        if process.poll() is not None:
            return
        if kind.whom is Whom.ALL:
            os.killpg(process.pid, kind.number)
        else:
            with suppress(ProcessLookupError):
                os.kill(rng.choice(workers or [process.pid]), kind.number)


def _wrong_end(kind: Kind, code: int | None, known: Known, errors: str) -> list[str]:
    """What is wrong with the end of a disturbed command: its exit code, and what it said."""
    found = []
    # Python that is stopped while it starts ends with 1.
    starts = code == 1 and "KeyboardInterrupt" in errors and "precision_tool" not in errors
    if code not in (None, known.code, *kind.codes) and not starts:
        found.append(f"exit code {code}")
    if code == USER_ERROR and "error: " not in errors:
        found.append("no reason is given")
    frames = re.findall(r'precision_tool/(\S+)", line (\d+), in (\S+)', errors)
    # While its modules are read there is nobody yet who could catch a signal.
    is_caught = kind.is_survived or any(where != "<module>" for _, _, where in frames)
    if "internal error" in errors or ("Traceback" in errors and is_caught):
        place = "{}:{} {}".format(*frames[-1]) if frames else "?"
        found.append(f"says {errors.strip().splitlines()[-1][:150]} ({place})")
    return found


def _wrong_files(folder: Path, command: Command, known: Known) -> list[str]:
    """Finished files that are not what an undisturbed run writes, or left as it was."""
    found = []
    now = contents(folder)
    for name, held in now.items():
        expected = _expected(name, command, known)
        if "partial_" in name:
            found += [f"{name} is cut off" for content in held if not _is_whole_csv(content)]
        elif any(fnmatch.fnmatch(name, pattern) for pattern in command.mended):
            continue
        elif not expected:
            found.append(f"{name} is no file of it")
        elif name not in known.varying and not held <= expected:
            found.append(f"{name} is another")
        elif name in known.varying and b"" in held:
            found.append(f"{name} is empty")
    missing = [name for name in known.before if name not in now and name in known.files and not command.mended]
    return [*found, *(f"{name} is gone" for name in missing)]


def _wrong_survival(folder: Path, known: Known, code: int | None) -> list[str]:
    """What is wrong after a command that went on, or ended with an error: nothing temporary is left, and all is there.

    A cache that cannot be kept is no loss.
    """
    now = contents(folder)
    missing = [name for name in known.files if name not in now and code == known.code and not name.endswith(SUFFIX)]
    return [
        *(f"ends with {code} without {name}" for name in missing),
        *(f"{name} stays" for name in _left(folder, code == known.code)),
    ]


def _expected(name: str, command: Command, known: Known) -> set[bytes]:
    """What a file may hold: what the command writes, first or in the end, or what was there before."""
    last, of = command.last_of
    names = (name, of) if name == last else (name,)
    written = (known.files, known.stages, known.before)
    return set().union(*(files.get(one, set()) for one in names for files in written))


def _is_whole_csv(content: bytes) -> bool:
    lines = content.decode("utf-8").splitlines()
    return content.endswith(b"\n") and len(lines) > 0


def _next_run(command: Command, folder: Path, known: Known) -> list[str]:
    """Runs the command again where it was killed; what is wrong then."""
    process = _start(command, folder)
    try:
        code = process.wait(_HANG)
    except subprocess.TimeoutExpired:
        return ["the next run does not end"]
    finally:
        _end_all(process.pid)
    said = _said(process).strip().splitlines()
    if code != known.code:
        return [f"the next run ends with {code}: {said[-1][:150] if said else ''}"]
    now = contents(folder)
    found = [f"after the next run {name} is missing" for name in known.files if name not in now]
    for name, held in now.items():
        expected = _expected(name, command, known) if name == command.last_of[0] else known.files.get(name, held)
        if name not in known.varying and expected.isdisjoint(held):
            found.append(f"after the next run {name} is another")
    return [*found, *(f"after the next run {name} stays" for name in _left(folder, True))]


def _left(folder: Path, is_done: bool) -> list[str]:
    """Temporary files below a folder, at most three, by their folders: their own names are others each time.

    After a command that `is_done` there is nothing either to go on from.
    """
    paths = (path for path in files_below(folder) if is_temporary(path, folder) or (is_done and is_kept(path)))
    left = sorted(str(path.relative_to(folder)) for path in paths)
    return [f"{os.path.dirname(name) or '.'}/{os.path.basename(name)[:16]}…" for name in left[:3]]


def _try(command: Command, known: Known, folder: Path, rng: random.Random, tally: Tally, name: str) -> None:
    """Disturbs a command once."""
    kind = _KINDS[name]
    fresh(folder, command)
    delay = rng.uniform(0.02, known.seconds * 1.1) if kind.number else _HANG
    process = _start(command, folder, 0 if kind.number else known.limit(rng))
    code, took, wrong = _disturb(process, kind, delay, rng)
    tally.kills += 1
    tally.ended_before += code == known.code and took == 0
    tally.slowest = max(tally.slowest, took)
    wrong += _wrong_end(kind, code, known, _said(process)) + _wrong_files(folder, command, known)
    if kind.is_survived:
        wrong += _wrong_survival(folder, known, code)
    wrong += _next_run(command, folder, known)
    tally.findings.update(f"{name}: {finding}" for finding in wrong)


def _parsed(names: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/crash", description=__doc__)
    parser.add_argument(
        "kills", type=int, nargs="?", default=100, metavar="N", help="kills in all (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="other moments with another one (default 0)")
    parser.add_argument(
        "--commands", nargs="+", metavar="COMMAND", choices=names, help="only these, of: " + ", ".join(names)
    )
    parser.add_argument(
        "--kinds", nargs="+", metavar="KIND", choices=_KINDS, help="only these, of: " + ", ".join(_KINDS)
    )
    return parser.parse_args()


def main() -> int:
    """Runs the campaign; 1 where there are findings."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which jobs in the background are born without
    with tempfile.TemporaryDirectory(prefix="crash") as temporary:
        data = make_data(Path(temporary) / "data")
        all_commands = commands(data)
        args = _parsed(list(all_commands))
        chosen = {name: all_commands[name] for name in args.commands or all_commands}
        folder = Path(temporary) / "run" / "folder"
        folder.parent.mkdir()
        rng = random.Random(args.seed)
        known: dict[str, Known] = {}
        tallies = {name: Tally() for name in chosen}
        inputs = fingerprint(data.root)
        start = time.monotonic()
        with suppress(KeyboardInterrupt):  # what is known by then is shown
            for number in range(args.kills):
                name = list(chosen)[number % len(chosen)]
                if name not in known:
                    known[name] = _undisturbed(chosen[name], folder)
                kinds = [kind for kind in known[name].kinds if kind in (args.kinds or _KINDS)]
                if not kinds:
                    continue
                in_turn = args.kills >= len(chosen) * len(kinds)
                kind = kinds[number // len(chosen) % len(kinds)] if in_turn else rng.choice(kinds)
                _try(chosen[name], known[name], folder, rng, tallies[name], kind)
                if fingerprint(data.root) != inputs:
                    tallies[name].findings["an input has changed"] += 1
                    inputs = fingerprint(data.root)
        return _show(tallies, known, time.monotonic() - start)


def _show(tallies: dict[str, Tally], known: dict[str, Known], seconds: float) -> int:
    """The table; 1 where there are findings."""
    print(f"{'command':<15} {'kills':>6} {'ended before':>12} {'takes s':>8} {'stops in s':>10} {'findings':>8}")
    for name, tally in tallies.items():
        if tally.kills:
            counts = f"{tally.kills:>6} {tally.ended_before:>12} {known[name].seconds:>8.1f} {tally.slowest:>10.2f}"
            print(f"{name:<15} {counts} {tally.findings.total():>8}")
    found = sum(tally.findings.total() for tally in tallies.values())
    print(f"{sum(tally.kills for tally in tallies.values())} kills in {seconds:.0f} s, {found} findings")
    for name, tally in tallies.items():
        for finding, count in tally.findings.most_common():
            print(f"  {name}: {count} × {finding}")
    varying = {name: sorted(one.varying) for name, one in known.items() if one.varying}
    for name, names in varying.items():
        print(f"  {name}: {', '.join(names)} differ from run to run: only looked at")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
