"""Limits of the machine: the same results with fewer workers and files, or exit code 2 that names the limit."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import threading
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from precision_tool.lib.compare import scheduler
from precision_tool.lib.compare.scheduler import Resources, affordable
from precision_tool.lib.io.local import LocalStore, shared_open_files
from precision_tool.lib.messages.errors import DataNotFoundError
from precision_tool.lib.messages.limits import limit_error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), "limit.memory"),
        (OSError(errno.ENOMEM, "x"), "limit.memory"),
        (ImportError("libx.so: failed to map segment from shared object"), "limit.memory"),
        (OSError(errno.EMFILE, "x"), "limit.files"),
        (OSError(errno.ENFILE, "x"), "limit.system_files"),
        (BlockingIOError(errno.EAGAIN, "x"), "limit.processes"),
        (RuntimeError("can't start new thread"), "limit.processes"),
        (BrokenProcessPool("x"), "limit.worker_lost"),
    ],
)
def test_an_exception_of_a_limit_says_which(error: BaseException, kind: str) -> None:
    wrapped = ValueError("other")
    wrapped.__cause__ = error
    for each in (error, wrapped):
        limit = limit_error(each)
        assert limit is not None
        assert limit.kind == kind
        assert limit.hint


@pytest.mark.parametrize("error", [RuntimeError("x"), OSError(errno.ENOENT, "x"), ImportError("x"), None])
def test_other_exceptions_are_none(error: BaseException | None) -> None:
    assert limit_error(error) is None


def test_a_lock_that_another_command_holds_is_no_limit() -> None:
    busy = DataNotFoundError("data.no_op", name="x", ops=1, place="y")
    busy.__cause__ = BlockingIOError(errno.EAGAIN, "x")
    assert limit_error(busy) is None


def _limited(kind: int, limit: int, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "precision_tool", *words],
        preexec_fn=lambda: resource.setrlimit(kind, (limit, limit)),  # no threads here
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_too_little_address_space_for_numpy_is_said_before_it_is_loaded(tmp_path: Path) -> None:
    done = _limited(resource.RLIMIT_AS, 100 << 20, "--data", str(tmp_path), "ls")
    assert done.returncode == 2
    assert "ulimit -v" in done.stderr
    assert "100 MB" in done.stderr


def test_a_pool_takes_the_workers_that_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    left = 7
    start = threading.Thread.start

    def start_some(thread: threading.Thread) -> None:
        nonlocal left
        if not left:
            raise RuntimeError("can't start new thread")
        left -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    assert affordable(4) == 2
    assert affordable(4, in_threads=True) == 1
    with Resources(workers=4).open() as pool:
        assert pool is None


def test_a_pool_takes_the_workers_whose_pipes_can_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_openable", lambda files: min(files, 30))
    assert affordable(4) == 2
    assert affordable(4, in_threads=True) == 4


def test_files_that_nobody_reads_are_closed_where_no_more_can_be_opened(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(40)]
    for path in paths:
        path.write_text(path.name)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with shared_open_files():
        store = LocalStore()
        lowest = os.open(os.devnull, os.O_RDONLY)
        os.close(lowest)
        now = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 4, now[1]))
        try:
            for path in paths:
                buffer = bytearray(len(path.name))
                with store.open(str(path)) as file:
                    file.read_into(0, memoryview(buffer))
                assert buffer.decode() == path.name
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, now)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
