"""The campaign behind `scripts/limits`: runs commands under limits of the machine, as `ulimit` sets them.

A command ends as it does without the limit, with the same files, or with exit code 2 and a message that names the
limit; it neither hangs nor shows a traceback.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/trees"), str(ROOT / "tests/campaigns")]

from fuzzing.commands import Command, commands, contents, fresh, make_data  # noqa: E402  # found by the paths above

#: Seconds that a command may take.
_HANG = 90.0
#: The grid: a resource, its unit, the limits, and how a message names one.
_MIB = 1 << 20
_GRID = {
    "v": (resource.RLIMIT_AS, _MIB, (120, 150, 180, 200, 240, 300, 400, 600), ("ulimit -v",)),
    "n": (resource.RLIMIT_NOFILE, 1, (8, 12, 16, 24, 32, 48, 64), ("ulimit -n",)),
    "u": (resource.RLIMIT_NPROC, 1, (1, 2, 3, 4, 6, 8), ("ulimit -u",)),
}
#: Root has no limit on processes; these users have no processes but ours, one for each run.
_FIRST_USER = 61_000


def _as_user(kind: int, user: int) -> list[str]:
    """What comes before the command: root becomes a user who may still read everything."""
    if kind != resource.RLIMIT_NPROC or os.getuid() != 0:
        return []
    rights = "-all,+dac_override,+dac_read_search,+fowner"
    ids = [f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    return ["setpriv", *ids, f"--inh-caps={rights}", f"--ambient-caps={rights}"]


def _run(
    command: Command, folder: Path, before: Sequence[str] = (), limiting: Callable[[], None] | None = None
) -> tuple[int | None, str]:
    """Exit code (None: it hangs), and what it said."""
    fresh(folder, command)
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder.parent), "COLUMNS": "120"}
    process = subprocess.Popen(
        [*before, sys.executable, "-m", "precision_tool", *command.words],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=limiting,  # noqa: PLW1509  # no threads here
    )
    try:
        _, errors = process.communicate(timeout=_HANG)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        _, errors = process.communicate()
        return None, errors.decode("utf-8", "replace")
    return process.returncode, errors.decode("utf-8", "replace")


def _finding(code: int | None, errors: str, names: tuple[str, ...], expected: int) -> str:
    last = (errors.strip().splitlines() or [""])[-1][:150]
    if code is None:
        return f"hangs: {last}"
    if "Traceback" in errors or "internal error" in errors:
        return f"exit code {code}: {last}"
    if code == expected:
        return ""
    return "" if code == 2 and any(name in errors for name in names) else f"exit code {code}: {last}"


def main() -> int:
    """Runs the campaign; 1 where there are findings."""
    findings = runs = refused = 0
    with tempfile.TemporaryDirectory(prefix="limits") as temporary:
        folder = Path(temporary) / "run" / "folder"
        folder.parent.mkdir()
        data = make_data(Path(temporary) / "data")
        all_commands = {
            **commands(data),
            "vc --workers 2": Command(words=("--data", str(data.folder), "--work", "work", "vc", "--workers", "2")),
        }
        parser = argparse.ArgumentParser(prog="scripts/limits", description=__doc__)
        parser.add_argument("--commands", nargs="+", choices=list(all_commands), default=list(all_commands))
        parser.add_argument("--limits", nargs="+", choices=list(_GRID), default=list(_GRID))
        args = parser.parse_args()
        for name in args.commands:
            command = all_commands[name]
            whole = []
            for _ in range(2):
                code, _ = _run(command, folder)
                whole.append(contents(folder))
            assert code in (0, 1), name
            same = {path: held for path, held in whole[0].items() if whole[1].get(path) == held}
            for letter in args.limits:
                kind, unit, limits, names = _GRID[letter]
                for limit in limits:
                    runs += 1
                    limiting = partial(resource.setrlimit, kind, (limit * unit, limit * unit))
                    ended, errors = _run(command, folder, _as_user(kind, _FIRST_USER + runs), limiting)
                    refused += ended == 2
                    finding = _finding(ended, errors, names, code)
                    written = contents(folder)
                    if not finding and ended == code:
                        others = [path for path, held in same.items() if written.get(path) != held]
                        finding = f"other results: {', '.join(others[:3])}" if others else ""
                    if finding:
                        findings += 1
                        print(f"{name}, ulimit -{letter} {limit}: {finding}", flush=True)
    print(f"{runs} runs, {refused} refused, {findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
