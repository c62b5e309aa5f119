"""Times, memory and plain reading for the benchmarks: a process and all below it, the floor that files set."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

_READ_BLOCK = 1 << 20
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


def read_files(paths: list[str]) -> int:
    """Reads every byte of the files once into one buffer."""
    buffer = bytearray(_READ_BLOCK)
    total = 0
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
    return total


def split_by_bytes(paths: list[str], parts: int) -> list[list[str]]:
    """The files in `parts` lists of about equal size."""
    lists: list[list[str]] = [[] for _ in range(parts)]
    sizes = [0] * parts
    for path in sorted(paths, key=os.path.getsize, reverse=True):
        smallest = sizes.index(min(sizes))
        lists[smallest].append(path)
        sizes[smallest] += os.path.getsize(path)
    return lists


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def run(
    command: Sequence[str], *, memory: bool = False, variables: Mapping[str, str] | None = None
) -> tuple[float, float]:
    """Seconds of a process, which must end well, and with `memory` the peak megabytes of it and all below it.

    `variables` are further variables of its environment.
    """
    environment = {**os.environ, **(variables or {})}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # modules are compiled once, as those that pip installed are
    with tempfile.TemporaryFile() as output:
        start = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        peak = peak_memory(process) if memory else 0
        code = process.wait()
        taken = time.perf_counter() - start
        if code:
            output.seek(0)
            text = output.read()[-2000:].decode("utf-8", "replace")
            raise SystemExit(f"{' '.join(command)}: exit code {code}\n{text}")
    return taken, peak / 1e6


def run_tool(words: Sequence[str], memory: bool = False) -> tuple[float, float]:
    """`run` of a command of ours."""
    return run([sys.executable, "-m", "precision_tool", *words], memory=memory)


def measure_decode(folder: Path, dump: Path, workers: int, repeats: int) -> None:
    """`dc` of a whole dump against copying it: by `cp`, and by Python into as many files as `dc` makes."""
    dumped = [path for path in dump.rglob("*") if path.is_file()]
    total = read_files([str(path) for path in dumped])
    best = {"cp": np.inf, "loop": np.inf, "start": np.inf, "ours": np.inf}
    for _ in range(repeats):
        best["cp"] = min(best["cp"], seconds(lambda: subprocess.run(["cp", "-r", dump, folder / "copy"], check=True)))
        shutil.rmtree(folder / "copy")
        command = ["dc", str(dump), "-o", str(folder / "npy"), "--workers", str(workers)]
        best["ours"] = min(best["ours"], run_tool(command)[0])
        paths = list((folder / "npy").iterdir())
        best["loop"] = min(best["loop"], seconds(partial(_copy_files, paths, folder / "copy")))
        for name in ("npy", "copy"):
            shutil.rmtree(folder / name)
        small = min(dumped, key=lambda path: path.stat().st_size)
        best["start"] = min(best["start"], run_tool(["dc", str(small), "-o", str(folder / "npy")])[0])
        shutil.rmtree(folder / "npy")
    print(f"dc:      {len(dumped)} dump files, {total / 1e9:.2f} GB, to {len(paths)} files, {workers} workers,")
    print("         page cache warm; each side's best, and what it takes over cp -r")
    titles = {
        "cp": "cp -r",
        "loop": "a loop of Python that copies as many files",
        "start": "dc of the smallest file alone",
        "ours": "dc, a process from start to exit",
    }
    for name, title in titles.items():
        print(f"  {title:43} {best[name]:8.2f} s   over cp -r {best[name] / best['cp']:6.2f}")


def _copy_files(paths: list[Path], folder: Path) -> None:
    """Copies files, one after the other, with a buffer that is used again."""
    folder.mkdir()
    block = memoryview(bytearray(_READ_BLOCK))
    for path in paths:
        with open(path, "rb", buffering=0) as source, open(folder / path.name, "wb", buffering=0) as file:
            while count := source.readinto(block):
                file.write(block[:count])
