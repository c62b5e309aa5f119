"""The memory of a process and of all processes below it, for the benchmarks."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

_SAMPLE_SECONDS = 0.02


def peak_memory(process: subprocess.Popen[bytes]) -> int:
    """Waits for a process; the peak memory of it and all below it in bytes."""
    peak = 0
    while process.poll() is None:
        peak = max(peak, sum(resident(pid) for pid in _tree_pids(process.pid)))
        time.sleep(_SAMPLE_SECONDS)
    return peak


def children(pid: int) -> list[int]:
    """The processes that a process's first thread has started; none of one that has ended."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _tree_pids(root: int) -> Iterator[int]:
    yield root
    for child in children(root):
        yield from _tree_pids(child)


def resident(pid: int) -> int:
    """Proportional set size in bytes: shared pages are counted once over all processes. 0 if the process has ended."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
