"""The campaign behind `scripts/crash_study`: studies that are killed go on, and come to the same table to the bit.

A study of a small training is begun and killed (SIGKILL) again and again, its client or one of its workers, each time
at a random moment. When it is let go on to its end, its table and its answer are those of an undisturbed study, its
journal is sound, and nothing temporary is left behind. With --cluster the workers are those of a Dask cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts/benchmarks"))
from benchmark_cluster import Processes, cluster

from precision_tool.lib.compare.cluster import open_cluster
from precision_tool.lib.compare.scheduler import Resources
from precision_tool.lib.demo.ranks import generate_ranks
from precision_tool.lib.diagnose.study import run_study
from precision_tool.lib.diagnose.study_plan import StudyOptions
from precision_tool.lib.io.writing import TEMPORARY

#: Seconds after which a study that nobody disturbs hangs; times that one study is killed at most before it may end.
_HANG, _MOST_KILLS = 300.0, 8


@dataclass
class Tally:
    """What was done, and what was found to be wrong."""

    kills: int = 0
    workers: int = 0
    ended_before: int = 0
    studies: int = 0


def main() -> int:
    """Runs the campaign; the exit code is 1 if anything was not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kills", nargs="?", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--cluster", action="store_true", help="on a Dask cluster of this machine")
    args = parser.parse_args()
    chance = random.Random(args.seed)
    crew = cluster(2) if args.cluster else nullcontext(("", _children))
    with tempfile.TemporaryDirectory(prefix="crash_study_") as root, crew as (address, workers):
        if address:
            import distributed  # noqa: F401  # once, for all that are forked from here

        data = Path(root) / "demo"
        truth = generate_ranks(data, ranks=args.ranks, steps=args.steps, fault_step=1)
        folders = [str(data / folder) for folder in truth.data]
        expected = _ended(Path(root) / "undisturbed", folders, address)
        start = time.monotonic()  # the first one also warms the cluster
        _ended(Path(root) / "again", folders, address)
        seconds = time.monotonic() - start
        tally = Tally()
        while tally.kills < args.kills:
            work = Path(root) / "work"
            _disturb(work, folders, address, workers, seconds, chance, tally, args.kills)
            wrong = _compared(_ended(work, folders, address), expected, work)
            if wrong:
                print(f"after {tally.kills} kills (seed {args.seed}): {wrong}")
                return 1
            tally.studies += 1
            shutil.rmtree(work)
    print(
        f"{tally.kills} kills, {tally.workers} of them of workers, {tally.ended_before} too late: "
        f"{tally.studies} studies went on to the same table"
    )
    return 0


def _study(work: Path, folders: list[str], address: str) -> None:
    """A study, by two processes or the cluster at an address, which ends this process."""
    code = 1
    try:
        work.mkdir(parents=True, exist_ok=True)
        with open_cluster(address) if address else nullcontext() as executor:
            study = run_study(StudyOptions(folders=folders), str(work), Resources(workers=2, executor=executor))
        document = study.to_dict()
        document.pop("table")
        (work / "answer.json").write_text(json.dumps(document, sort_keys=True), encoding="utf-8")
        code = 0
    finally:
        os._exit(code)


def _begin(work: Path, folders: list[str], address: str) -> int:
    """Forks: nothing has to be imported again. The number of the process."""
    process = os.fork()
    if not process:
        _study(work, folders, address)
    return process


def _ended(work: Path, folders: list[str], address: str) -> tuple[bytes, bytes]:
    """The table and the answer of a study that is let go on to its end."""
    process = _begin(work, folders, address)
    if _wait(process, _HANG) != 0:
        raise SystemExit(f"{work}: a study that nobody disturbed did not end well")
    return (work / "study.parquet").read_bytes(), (work / "answer.json").read_bytes()


def _wait(process: int, seconds: float) -> int | None:
    """The exit code of a process; None for one that was killed, now or before."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else None
        time.sleep(0.005)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


def _disturb(
    work: Path,
    folders: list[str],
    address: str,
    workers_of: Processes,
    seconds: float,
    chance: random.Random,
    tally: Tally,
    most: int,
) -> None:
    for _ in range(chance.randint(1, _MOST_KILLS)):
        if tally.kills >= most:
            return
        process = _begin(work, folders, address)
        time.sleep(chance.uniform(0, 1.1 * seconds))
        workers = workers_of(process)
        if workers and chance.random() < 0.4:
            with suppress(ProcessLookupError):
                os.kill(chance.choice(workers), signal.SIGKILL)
            tally.workers += 1
            time.sleep(chance.uniform(0, 0.3 * seconds))
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        tally.ended_before += _wait(process, 10.0) is not None
        tally.kills += 1


def _children(process: int) -> list[int]:
    try:
        text = Path(f"/proc/{process}/task/{process}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in text.split()]


def _compared(found: tuple[bytes, bytes], expected: tuple[bytes, bytes], work: Path) -> str:
    """What is not as it should be; "" where all is."""
    if found[0] != expected[0]:
        return "the table is another one"
    if found[1].replace(bytes(work), b"") != expected[1].replace(bytes(work.with_name("undisturbed")), b""):
        return "the answer is another one"
    left = [path.name for path in work.rglob("*") if path.name.startswith(TEMPORARY)]
    if left:
        return f"left behind: {left[0]}"
    with closing(sqlite3.connect(work / "journal.sqlite")) as journal:
        (sound,) = journal.execute("PRAGMA integrity_check").fetchone()
    return "" if sound == "ok" else f"the journal is damaged: {sound}"


if __name__ == "__main__":
    sys.exit(main())
