"""The campaign behind `scripts/crash`: kills commands at random moments, and looks at what is left.

Whatever was finished is whole and the same as of an undisturbed run, no input has changed, nothing keeps running, and
the next run of the command works, gives all that it should and leaves nothing temporary behind.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/trees"), str(ROOT / "tests/campaigns")]

from fuzzing.commands import (  # noqa: E402  # found by the paths above
    Command,
    commands,
    contents,
    files_below,
    fingerprint,
    fresh,
    is_temporary,
    make_data,
)

#: Seconds that a command may take to stop, and to end when nobody disturbs it.
_STOP, _HANG = 20.0, 120.0
#: Signal, whether it goes to all processes of the command as Ctrl+C does, and whether it comes twice.
_KINDS = {
    "KILL": (signal.SIGKILL, False, False),
    "KILL all": (signal.SIGKILL, True, False),
    "INT": (signal.SIGINT, True, False),
    "INT INT": (signal.SIGINT, True, True),
    "TERM": (signal.SIGTERM, False, False),
    "HUP": (signal.SIGHUP, True, False),
}


@dataclass(kw_only=True)
class Known:
    """What a command does when nobody disturbs it: exit code, seconds, contents by name; and names that vary."""

    code: int
    seconds: float
    files: dict[str, set[bytes]]
    before: dict[str, set[bytes]]
    varying: frozenset[str]


@dataclass(kw_only=True)
class Tally:
    """What came of killing one command."""

    kills: int = 0
    ended_before: int = 0
    slowest: float = 0.0
    findings: Counter[str] = field(default_factory=Counter)


def _start(command: Command, folder: Path) -> subprocess.Popen[bytes]:
    temporary = folder.parent / "temporary"
    temporary.mkdir(exist_ok=True)
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "PYTHONPATH") if name in os.environ}
    with open(folder.parent / "stderr", "wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "precision_tool", *command.words],
            cwd=folder,
            env={**environment, "TMPDIR": str(temporary), "COLUMNS": "120"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
            preexec_fn=_hear_signals,  # noqa: PLW1509  # no threads here
        )


def _hear_signals() -> None:
    """Whoever runs this may ignore signals, and children inherit that."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


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


def _undisturbed(command: Command, folder: Path) -> Known:
    """Runs a command twice; what differs between the two is not compared."""
    runs = []
    for _ in range(2):
        fresh(folder, command)
        before = contents(folder)
        start = time.monotonic()
        process = _start(command, folder)
        try:
            code = process.wait(_HANG)
        finally:
            _end_all(process.pid)
        runs.append((code, time.monotonic() - start, contents(folder)))
    (code, first, one), (other_code, second, other) = runs
    if code != other_code or code not in (0, 1):
        errors = (folder.parent / "stderr").read_text("utf-8", "replace")
        raise SystemExit(f"crash: {' '.join(command.words)}: ends with {code} and {other_code}\n{errors}")
    if not one:
        raise SystemExit(f"crash: {' '.join(command.words)}: writes nothing")
    varying = frozenset(name for name in one if one[name] != other.get(name))
    return Known(code=code, seconds=min(first, second), files=one, before=before, varying=varying)


def _end_all(group: int) -> None:
    for pid in _family(group):
        os.kill(pid, signal.SIGKILL)


def _kill(process: subprocess.Popen[bytes], kind: str, delay: float, gap: float) -> tuple[int | None, float, list[str]]:
    """Waits and kills; exit code (None: it does not stop), seconds it took to stop, and what was wrong."""
    number, to_all, twice = _KINDS[kind]
    try:
        process.wait(delay)
        return process.returncode, 0.0, []
    except subprocess.TimeoutExpired:
        pass
    start = time.monotonic()
    for _ in range(2 if twice else 1):
        if to_all:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        if twice:
            time.sleep(gap)
        if process.poll() is not None:
            break
    try:
        code = process.wait(_STOP)
    except subprocess.TimeoutExpired:
        _end_all(process.pid)
        process.wait()
        return None, _STOP, [f"{kind}: it does not stop"]
    took = time.monotonic() - start
    while _family(process.pid):
        if time.monotonic() - start > _STOP:
            _end_all(process.pid)
            return code, took, [f"{kind}: processes keep running"]
        time.sleep(0.01)
    return code, took, []


def _wrong_end(kind: str, code: int | None, known: Known, errors: str) -> list[str]:
    """What is wrong with the end of a killed command: its exit code, and what it said."""
    number = _KINDS[kind][0]
    found = []
    # Python that is stopped while it starts ends with 1.
    starts = code == 1 and "KeyboardInterrupt" in errors and "precision_tool" not in errors
    if code not in (None, known.code, 130, -number, 128 + number) and not starts:
        found.append(f"{kind}: exit code {code}")
    frames = re.findall(r'precision_tool/(\S+)", line (\d+), in (\S+)', errors)
    # While its modules are read there is nobody yet who could catch a signal.
    if "internal error" in errors or any(where != "<module>" for _, _, where in frames):
        place = "{}:{} {}".format(*frames[-1]) if frames else "?"
        found.append(f"{kind}: says {errors.strip().splitlines()[-1][:150]} ({place})")
    return found


def _wrong_files(folder: Path, command: Command, known: Known) -> list[str]:
    """Finished files that are not what an undisturbed run writes, or left as it was."""
    found = []
    for name, held in contents(folder).items():
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
    missing = [
        name for name in known.before if name not in contents(folder) and name in known.files and not command.mended
    ]
    return [*found, *(f"{name} is gone" for name in missing)]


def _expected(name: str, command: Command, known: Known) -> set[bytes]:
    """What a file may hold: what the command writes, or what was there before."""
    last, of = command.last_of
    names = (name, of) if name == last else (name,)
    return set().union(*(files.get(one, set()) for one in names for files in (known.files, known.before)))


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
    if code != known.code:
        said = (folder.parent / "stderr").read_text("utf-8", "replace").strip().splitlines()
        return [f"the next run ends with {code}: {said[-1][:150] if said else ''}"]
    now = contents(folder)
    found = [f"after the next run {name} is missing" for name in known.files if name not in now]
    for name, held in now.items():
        expected = _expected(name, command, known) if name == command.last_of[0] else known.files.get(name, held)
        if name not in known.varying and expected.isdisjoint(held):
            found.append(f"after the next run {name} is another")
    left = sorted(str(path.relative_to(folder)) for path in files_below(folder) if is_temporary(path, folder))
    return [*found, *(f"after the next run {_kind_of(name)} stays" for name in left[:3])]


def _kind_of(name: str) -> str:
    """The folder of a temporary file: its own name is another each time."""
    return f"{os.path.dirname(name) or '.'}/{os.path.basename(name)[:16]}…"


def _try(command: Command, known: Known, folder: Path, rng: random.Random, tally: Tally, kind: str) -> None:
    """Kills a command once."""
    fresh(folder, command)
    delay = rng.uniform(0.02, known.seconds * 1.1)
    process = _start(command, folder)
    code, took, wrong = _kill(process, kind, delay, rng.uniform(0, 0.3))
    tally.kills += 1
    tally.ended_before += code == known.code and took == 0
    tally.slowest = max(tally.slowest, took)
    errors = (folder.parent / "stderr").read_text("utf-8", "replace")
    wrong += _wrong_end(kind, code, known, errors) + _wrong_files(folder, command, known)
    wrong += _next_run(command, folder, known)
    tally.findings.update(wrong)


def _parsed(names: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/crash", description=__doc__)
    parser.add_argument(
        "kills", type=int, nargs="?", default=100, metavar="N", help="kills in all (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="other moments with another one (default 0)")
    parser.add_argument(
        "--commands", nargs="+", metavar="COMMAND", choices=names, help="only these, of: " + ", ".join(names)
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
                kind = (
                    list(_KINDS)[number // len(chosen) % len(_KINDS)]
                    if args.kills >= len(chosen) * 6
                    else rng.choice(list(_KINDS))
                )
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
