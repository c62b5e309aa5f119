"""Ctrl+C and killed workers: the tool stops at once, leaves no process and no broken file, and keeps what is done."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from builders import MODEL, STAMP, TIMESTAMP, write_dump, write_golden
from command_line import (
    HANG,
    INTERRUPTED,
    TOOL,
    by_tensor,
    cells,
    environment,
    hear_signals,
    only_result,
    result_files,
    tool,
)

from precision_tool.lib.demo.dump_writer import dump_file_name, golden_file_name

#: A bound for hangs only: a second is what the user is promised, but tests do not measure time.
SOON = 20.0
OPS = 160
#: Of one tensor. All ops share their files, so that gigabytes of work take little space and come from the cache.
FLOATS = 8 << 20
PAIR = 2 * 4 * FLOATS


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `precision_data` folder with 10 GB to compare, without a graph."""
    root = tmp_path_factory.mktemp("large") / "precision_data"
    rng = np.random.default_rng(0)
    golden = rng.standard_normal(FLOATS, dtype=np.float32)
    leaf = root / "npu" / "debug_0" / "dump" / STAMP / "0" / MODEL / "1" / "0"
    device = golden + np.float32(0.01) * rng.standard_normal(FLOATS, dtype=np.float32)
    dump = write_dump(leaf / dump_file_name("Add", "op000", 0, TIMESTAMP), "op000", [], [device])
    benchmark = write_golden(root / "tf" / "dump", "op000", 0, golden)
    for number in range(1, OPS):
        os.link(dump, leaf / dump_file_name("Add", f"op{number:03}", number, TIMESTAMP + number))
        os.link(benchmark, benchmark.parent / golden_file_name(f"op{number:03}", 0, TIMESTAMP))
    return root


def listing(folder: Path) -> list[tuple[Path, int, int]]:
    """Names, sizes and times of the files below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(path, path.stat().st_size, path.stat().st_mtime_ns) for path in files]


@dataclass(frozen=True)
class Running:
    """The tool at work, in a process group of its own."""

    process: subprocess.Popen[str]

    def family(self) -> list[int]:
        """The processes of the group that still run: the tool first, then its workers."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    state, _, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
                except (FileNotFoundError, ProcessLookupError):
                    continue
                if int(group) == self.process.pid and state != "Z":
                    found.append(int(entry.name))
        return sorted(found, key=lambda pid: (pid != self.process.pid, pid))

    def bytes_read(self) -> int:
        """What the processes have read so far."""
        total = 0
        for pid in self.family():
            try:
                counts = Path(f"/proc/{pid}/io").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            total += int(re.findall(r"rchar: (\d+)", counts)[0])
        return total

    def wait_for(self, reached: Callable[[], bool]) -> None:
        """Until something is true; the tool must not end before."""
        end = time.monotonic() + HANG
        while not reached():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end
            time.sleep(0.01)

    def ended(self) -> tuple[int, str, str, float]:
        """Exit code, both outputs and the seconds it took."""
        start = time.monotonic()
        out, err = self.process.communicate(timeout=HANG)
        return self.process.returncode, out, err, time.monotonic() - start

    def all_gone(self) -> bool:
        """True if no process of the group is left within a moment."""
        end = time.monotonic() + SOON
        while self.family() and time.monotonic() < end:
            time.sleep(0.02)
        return not self.family()


@contextmanager
def running(*arguments: str | Path, cwd: Path) -> Iterator[Running]:
    """The tool, started; whatever happens, nothing of it is left behind."""
    with subprocess.Popen(
        [*TOOL, *map(str, arguments)],
        cwd=cwd,
        env=environment(cwd) | INTERRUPTED,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
        preexec_fn=hear_signals,  # noqa: PLW1509  # no threads here
    ) as process:
        work = Running(process)
        try:
            yield work
        finally:
            for pid in work.family():
                os.kill(pid, signal.SIGKILL)


def check_kept(err: str, folder: Path, least: int) -> int:
    """The message says how many rows are done and where they are; the file there has just those. Gives the number."""
    path = only_result(folder)
    assert path.name.startswith("partial_result_")
    told = re.search(r"(\d+) of 160 rows are done; the finished rows are in (\S+\.csv)\n", err)
    assert told, err
    assert folder.parent / told[2] == path
    rows = by_tensor(path)
    assert len(cells(path)) == OPS
    done = [name for name, row in rows.items() if row["Status"] == "compared"]
    assert len(done) == int(told[1]) >= least
    for name, row in rows.items():
        if name in done:
            assert 0.9999 < float(row["CosineSimilarity"]) < 1
        else:
            assert row["CompareFailReason"] == "not compared: the run was stopped before this tensor"
    assert [path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".csv", ".json")] == []
    return len(done)


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("whole_group", [True, False], ids=["Ctrl+C", "kill -INT"])
def test_ctrl_c_during_a_comparison(root: Path, tmp_path: Path, workers: str, whole_group: bool) -> None:
    before = listing(root)
    place = ("--data", root, "--work", "w")
    with running(*place, "vc", "--workers", workers, cwd=tmp_path) as run:
        # A pair is read twice, and workers hand in a few pairs at a time, at most a 32nd of all: some are finished.
        run.wait_for(lambda: run.bytes_read() > 2 * PAIR * (4 + 2 * OPS // 32))
        assert len(run.family()) == 1  # threads share the work
        if whole_group:
            os.killpg(run.process.pid, signal.SIGINT)
        else:
            os.kill(run.process.pid, signal.SIGINT)
        code, out, err, seconds = run.ended()
        assert run.all_gone()
    assert code == 130
    assert seconds < SOON
    assert out == ""
    assert "Traceback" not in err
    assert re.match(r"(error: )?stopped: \d+ of 160 rows are done; the finished rows are in w/", err), err
    done = check_kept(err, tmp_path / "w", least=1)
    assert done < OPS
    assert listing(root) == before
    # Half a result is not taken for a result, unless it is asked for.
    assert "no complete result file" in tool(*place, "vcs", cwd=tmp_path, code=2).err
    shown = tool("vcs", "-f", only_result(tmp_path / "w"), cwd=tmp_path)
    assert f"{done} of 160 tensors of 160 ops, 0 below 0.98" in shown.text
    assert "`ac -f` with that file analyses what was compared" in err
    judged = tool("ac", "-f", only_result(tmp_path / "w"), cwd=tmp_path)
    assert re.search(r"No faulty operator ─.* caveat +only a part: the comparison was stopped", judged.text)


def test_ctrl_c_again_and_again(root: Path, tmp_path: Path) -> None:
    """An impatient user: whenever the signals come, the code is 130 and no file is broken."""
    with running("--data", root, "--work", "w", "vc", "--workers", "2", cwd=tmp_path) as run:
        run.wait_for(lambda: run.bytes_read() > 8 * PAIR)
        for _ in range(20):
            try:
                os.killpg(run.process.pid, signal.SIGINT)
            except ProcessLookupError:
                break
            time.sleep(0.005)
        code, _, err, seconds = run.ended()
        assert run.all_gone()
    assert code in (130, -signal.SIGINT)
    assert seconds < SOON
    for path in result_files(tmp_path / "w"):
        assert len(cells(path)) == OPS
    assert list(tmp_path.rglob("*.part")) == []
    assert "internal error" not in err


def in_processes(root: Path, folder: Path) -> tuple[str | Path, ...]:
    """A comparison that processes share, as functions of the user take part in it."""
    (folder / "mine.py").write_text("def compare_sizes(x, y):\n    return x.size - y.size\n")
    return "--data", root, "--work", "w", "vc", "--workers", "2", "--custom", "mine.py"


def test_a_killed_worker_is_an_error_and_no_hang(root: Path, tmp_path: Path) -> None:
    """What the kernel does when memory runs out."""
    with running(*in_processes(root, tmp_path), cwd=tmp_path) as run:
        run.wait_for(lambda: len(run.family()) == 3 and run.bytes_read() > 8 * PAIR)
        os.kill(run.family()[-1], signal.SIGKILL)
        code, out, err, seconds = run.ended()
        assert run.all_gone()
    assert code == 2
    assert seconds < SOON
    assert out == ""
    assert "Traceback" not in err
    assert err.startswith("error: a worker process died: ")
    assert "hint: was it killed for lack of memory? try fewer workers (--workers 1)\n" in err
    check_kept(err, tmp_path / "w", least=0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP], ids=lambda number: number.name)
def test_workers_do_not_outlive_the_tool(root: Path, tmp_path: Path, number: signal.Signals) -> None:
    """`kill` and `timeout` reach the tool alone, its workers have to notice."""
    with running(*in_processes(root, tmp_path), cwd=tmp_path) as run:
        run.wait_for(lambda: len(run.family()) == 3 and run.bytes_read() > 4 * PAIR)
        os.kill(run.process.pid, number)
        run.process.wait(timeout=HANG)
        assert run.all_gone()
    assert result_files(tmp_path / "w") == []
