"""How many share the work."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from precision_tool.lib.compare import scheduler


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({}, 64),
        ({"cpu.max": "max 100000\n"}, 64),
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "5000 100000\n"}, 1),
        ({"cpu.max": "9900000 100000\n"}, 64),
        ({"cpu.max": "0 0\n"}, 64),
        ({"cpu.max": "\xe4\n"}, 64),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 64),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "300000\n"}, 64),
    ],
)
def test_a_container_gives_fewer_cores_than_the_machine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], count: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(scheduler, "_CONTROL_GROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert scheduler.cores() == count


def test_glibc_takes_what_it_is_told_of_freed_memory() -> None:
    """In a process of its own, which keeps to it."""
    code = "from precision_tool.lib.compare.scheduler import reuse_memory; print(reuse_memory())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert told == str(platform.libc_ver()[0] == "glibc")


def test_a_system_that_cannot_be_told_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nothing:
        def __init__(self, name: object) -> None:
            pass

    monkeypatch.setattr(ctypes, "CDLL", Nothing)
    assert not scheduler.reuse_memory()


def test_workers_share_what_may_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []

    class Library:
        def __init__(self, name: object) -> None:
            pass

        def mallopt(self, option: int, value: int) -> int:
            told.append(value)
            return 1

    monkeypatch.setattr(ctypes, "CDLL", Library)
    assert all(scheduler.reuse_memory(count) for count in (1, 3, 1000))
    assert told[1::2] == [192 << 20, 64 << 20, 32 << 20]


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 0),
        ({"meminfo": "MemTotal: 900 kB\nMemAvailable:     500 kB\n"}, 500 << 10),
        ({"meminfo": "MemAvailable: 500 kB\n", "memory.max": "max\n", "memory.current": "7\n"}, 500 << 10),
        ({"meminfo": "MemAvailable: 500 kB\n", "memory.max": "9000\n", "memory.current": "7000\n"}, 2000),
        ({"memory/memory.limit_in_bytes": "5000\n", "memory/memory.usage_in_bytes": "6000\n"}, 0),
        ({"meminfo": "MemTotal: 900 kB\n"}, 0),
    ],
)
def test_free_memory_is_that_of_the_machine_or_of_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], free: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(scheduler, "_CONTROL_GROUP", tmp_path)
    monkeypatch.setattr(scheduler, "_MEMORY", tmp_path / "meminfo")
    assert scheduler.free_memory() == free
