"""The standing campaign with a small budget, that it finds what it looks for, and what it found before.

By hand, with more: scripts/fuzz --inputs 1000000, scripts/crash 1000, scripts/crash_study 200.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from command_line import HANG
from fuzzing import worker
from fuzzing.commands import Data, commands
from fuzzing.inputs import Inputs
from fuzzing.readers import READERS, Reader
from fuzzing.worker import try_inputs

from precision_tool.lib.cli.words import WORDS, find_word
from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.messages.errors import FormatError

CAMPAIGNS = Path(__file__).resolve().parent
#: Inputs that a reader once did not stand, in a folder of the reader's name.
HOSTILE = CAMPAIGNS.parent / "data" / "hostile"

#: The words that `scripts/crash` does not run, each with the reason.
NOT_KILLED = {
    "vcs": "only reads; what it keeps to be quicker is the cache that `ls` writes too",
    "npu_overflow": "the old word of npu_dump --overflow",
    "train": "needs TensorFlow",
    "toolkit": "only reads",
    "data": "another way to name the data folder of a word",
    "infer": "another way to name the data folder of a word",
    "run": "a command of the operating system writes, if anything",
    "completion": "only prints",
    "mcp": "needs a client; what it writes is that of report and repro",
    "guide": "only prints",
    "schema": "only prints",
}


def campaign(script: str, *arguments: str) -> None:
    run = subprocess.run(
        [sys.executable, CAMPAIGNS / script, *arguments],
        capture_output=True,
        encoding="utf-8",
        timeout=5 * HANG,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_every_reader_stands_damaged_files() -> None:
    campaign("fuzz.py", "--inputs", "60", "--seed", "11")


@pytest.mark.slow
def test_commands_can_be_killed() -> None:
    campaign("crash.py", "6", "--seed", "11", "--commands", "fusion off", "h5copy into", "dc h5")


def test_every_word_can_be_killed_or_writes_nothing(tmp_path: Path) -> None:
    truth = generate_demo(tmp_path / "demo", fault="overflow")
    lines = [command.words for command in commands(Data(root=tmp_path, overflow=truth, large=truth)).values()]
    killed = {next(word.name for word in map(find_word, line) if word) for line in lines}
    assert killed | set(NOT_KILLED) == {word.name for word in WORDS}
    assert not killed & set(NOT_KILLED)


@pytest.mark.slow
def test_studies_can_be_killed_and_come_to_the_same_table() -> None:
    campaign("crash_study.py", "6", "--seed", "11", "--steps", "2")


@pytest.mark.parametrize("name", sorted(path.name for path in HOSTILE.iterdir()))
def test_what_was_found_stays_mended(name: str) -> None:
    paths = sorted((HOSTILE / name).iterdir())
    assert all(path.stat().st_size < 4096 for path in paths)
    tally = try_inputs(READERS[name], lambda number: paths[number].read_bytes(), range(len(paths)))
    assert not tally.findings, [(paths[finding.number].name, finding) for finding in tally.findings]
    assert tally.inputs == len(paths) > 0


def test_an_input_is_the_same_again() -> None:
    for name in ("om", "graph_json", "npy", "result"):
        first, second, third = (Inputs(name, READERS[name], seed) for seed in (1, 1, 2))
        made = [first.make(number) for number in range(60)]
        assert made == [second.make(number) for number in reversed(range(60))][::-1]
        assert made != [third.make(number) for number in range(60)]
        assert len(set(made)) > 40


# ---- it finds what it looks for


def no_reasons(read: Callable[[str], None]) -> Callable[[str], Iterable[str]]:
    def reasons(path: str) -> Iterable[str]:
        if Path(path).read_bytes() == b"3":
            read(path)
        return ()

    return reasons


def refuses(message: str, hint: str = "") -> Callable[[str], None]:
    def read(path: str) -> None:
        raise FormatError(f"{path}: {message}", hint)

    return read


class UnescapedError(FormatError):
    """An error whose message is not rendered: rendering escapes what cannot be printed."""

    @property
    def message(self) -> str:
        return str(self.fields["text"])


def refuses_unescaped(path: str) -> None:
    raise UnescapedError(f"{path}: \x1b[2J")


def fails(path: str) -> None:
    raise KeyError(path)


def takes_memory(path: str) -> None:
    bytearray(400 << 20)


def takes_all_memory(path: str) -> None:
    bytearray(8 << 30)


def computes(path: str) -> None:
    while True:
        pass


def takes_long(path: str) -> None:
    end = time.process_time() + 1.1
    while time.process_time() < end:
        pass


@pytest.mark.parametrize(
    ("read", "kind"),
    [
        (fails, "KeyError"),
        (refuses("no" * 500), "long message"),
        (refuses("no", "no" * 500), "long message"),
        (refuses_unescaped, "message that cannot be printed"),
        (takes_memory, "memory"),
        (takes_all_memory, "MemoryError"),
        (computes, "hang"),
        (takes_long, "slow"),
        (lambda path: time.sleep(99), "hang: waits"),
        (lambda path: os.kill(os.getpid(), signal.SIGKILL), "dies: SIGKILL"),
        (lambda path: os._exit(0), "stops"),
        (lambda path: os.write(1, b"x"), "prints something"),
        (lambda path: warnings.warn("x", RuntimeWarning, stacklevel=1), "RuntimeWarning"),
    ],
)
def test_it_finds(read: Callable[[str], None], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a slow machine making so much memory takes more than a second of its own, and any input waits for its turn.
    monkeypatch.setattr(worker, "HANG", 2.0 if kind == "hang" else 60.0)
    monkeypatch.setattr(worker, "SLOW", 1.0 if kind == "slow" else 60.0)
    monkeypatch.setattr(worker, "WAIT", 6.0 if kind == "hang: waits" else 120.0)
    reader = Reader(read=no_reasons(read), files=lambda folder: [], mutations=())
    tally = try_inputs(reader, lambda number: b"%d" % number, range(6))
    (finding,) = tally.findings
    assert (finding.number, tally.inputs, tally.found) == (3, 6, 1)
    assert finding.kind.startswith(kind)


def test_a_user_s_error_is_no_finding() -> None:
    reader = Reader(
        read=no_reasons(refuses("damaged at byte 3", "copy it again")), files=lambda folder: [], mutations=()
    )
    tally = try_inputs(reader, lambda number: b"%d" % number, range(6))
    assert (tally.inputs, tally.accepted, tally.refused, tally.findings) == (6, 5, 1, [])


def test_a_reason_of_a_part_is_looked_at() -> None:
    reader = Reader(read=lambda path: ["fine", "x" * (worker.LONGEST + 1)], files=lambda folder: [], mutations=())
    tally = try_inputs(reader, lambda number: b"", range(1))
    assert [finding.kind for finding in tally.findings] == ["long message, reason of a part"]
