"""A study on a Dask cluster of this machine beside local processes: time, memory of a worker, and a worker lost.

Both sides are the same command, from start to exit, on the same copies of one leaf; they take turns, and the table of
each run has to be the same to the bit. The cluster runs already, as clusters do; its workers, and the page cache, are
warmed by a run before the clock starts, which also tells the memory. A busy machine tells by processor time alone.

Then one leaf is read from the memory of fsspec and from an HTTP server of this machine: the bytes beside those of a
disk.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import fsspec
from measuring import children, resident

from precision_tool.cli import main as main_of_tool
from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.diagnose.study import MIN_TASKS
from precision_tool.lib.io.local import LocalFile
from precision_tool.lib.io.remote import RemoteStore

sys.path.append(str(Path(__file__).parents[2] / "tests"))
from range_server import serving

#: Eight devices of a server, and as many steps: 64 leaves.
_RANKS, _STEPS = 8, 8
_SAMPLE_SECONDS = 0.05
_SCRIPT = Path(__file__).with_name("local_cluster.py")
Processes = Callable[[int], list[int]]


@dataclass(frozen=True)
class Run:
    """One study: wall and processor time, the memory of the largest worker (0: not looked at) in bytes, the table.

    Processor time is that of the client and of all workers; where one was killed that of the others.
    """

    seconds: float
    cpu: float
    peak: int
    table: bytes


def make_tree(folder: Path, nbytes: int) -> tuple[Path, int]:
    """The data folder with a dump and a benchmark for each rank and step, `nbytes` in all; and the size it has.

    Every leaf is a copy of one: what is right, so that all of them are recomputed. Copies, not links: all bytes count.
    """
    data = folder / "precision_data"
    truth = generate_demo(data, fault="none", bytes_total=nbytes // (_RANKS * _STEPS))
    model, benchmark = truth.dump_dir.parents[1], data / "tf" / "dump"
    first = folder / "first"
    first.mkdir()
    shutil.move(truth.dump_dir, first / "npu")
    shutil.move(benchmark, first / "tf")
    for rank in range(_RANKS):
        for step in range(_STEPS):
            leaf = model.parents[1] / str(rank) / model.name / truth.dump_dir.parent.name / str(step)
            shutil.copytree(first / "npu", leaf)
            shutil.copytree(first / "tf", benchmark / f"rank_{rank}" / f"step_{step}")
    shutil.rmtree(first)
    return data, sum(path.stat().st_size for path in data.rglob("*") if path.is_file())


@contextmanager
def cluster(workers: int) -> Iterator[tuple[str, Processes]]:
    """A cluster's address, and what tells its worker processes."""
    command = [sys.executable, str(_SCRIPT), "--until-eof", "--workers", str(workers)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        try:
            yield address, lambda _: _workers_below(process.pid)
        finally:
            process.stdin.close()


def _workers_below(pid: int) -> list[int]:
    """The workers that a cluster has started; threads of it did, not its first one."""
    workers = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # a thread or a process that has just ended
            for child in map(int, (thread / "children").read_text().split()):
                if b"dask_worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                    workers.append(child)
    return sorted(workers)


def study(
    data: Path,
    work: Path,
    options: list[str],
    workers: Processes | None = None,
    kill_after: float = float("inf"),
    crew: Processes | None = None,
) -> Run:
    """Runs `ac --all`. With `workers` their memory is looked at, and the first is killed after some seconds.

    `crew` are the workers of a cluster, which go on when the study ends.
    """
    command = [sys.executable, "-m", "precision_tool", "--data", str(data), "--work", str(work), "ac", "--all"]
    print(f"  … {' '.join(options)}", file=sys.stderr, flush=True)
    before = {} if crew is None else {pid: cpu_seconds(pid) for pid in crew(0)}
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak, start = 0, time.perf_counter()
    output = work.with_name("said")
    with output.open("wb") as file:
        process = subprocess.Popen([*command, "--fresh", *options], stdout=subprocess.DEVNULL, stderr=file)
    while workers is not None and process.poll() is None:
        pids = workers(process.pid)
        if time.perf_counter() - start > kill_after and pids:
            os.kill(pids[0], signal.SIGKILL)
            kill_after = float("inf")
        peak = max([peak, *map(resident, pids)])
        time.sleep(_SAMPLE_SECONDS)
    code = process.wait()
    seconds = time.perf_counter() - start
    if code:
        raise SystemExit(f"{' '.join(command)}: exit code {code}\n{output.read_text(errors='replace')[-4000:]}")
    if kill_after < float("inf"):
        raise SystemExit("the study had ended before a worker could be killed: name more --bytes")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    cpu += sum(cpu_seconds(pid) - was for pid, was in before.items())
    return Run(seconds, cpu, peak, (work / "study" / "study.parquet").read_bytes())


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far; 0 for one that has ended."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def measure_bytes(folder: Path, nbytes: int) -> None:
    """The bytes that `ac -c` reads of one leaf in memory, and behind HTTP, beside those of a disk."""
    generate_demo(folder, fault="fused", bytes_total=nbytes)
    counts = {"disk": 0, "memory": 0}
    read, fetch = LocalFile.read_into, RemoteStore.fetch

    def counted(self: LocalFile, offset: int, buffer: memoryview) -> None:
        counts["disk"] += len(buffer)
        read(self, offset, buffer)

    def fetched(self: RemoteStore, path: str, start: int, stop: int) -> bytes:
        counts["memory"] += (stop - start) if self.scheme == "memory" else 0
        return fetch(self, path, start, stop)

    memory = fsspec.filesystem("memory")
    memory.put(f"{folder}/", "/bench/", recursive=True)
    with (
        patch.object(LocalFile, "read_into", counted),
        patch.object(RemoteStore, "fetch", fetched),
        serving(folder) as served,
        redirect_stdout(StringIO()),
    ):
        for number, place in enumerate((str(folder), "memory://bench", served.url)):
            work = str(folder.with_name(f"work{number}"))
            if main_of_tool(["--data", place, "--work", work, "ac", "-c", "--workers", "1"]):
                raise SystemExit(f"{place}: not compared")
    for name, count in (("memory://", counts["memory"]), ("HTTP", served.sent)):
        share = count / counts["disk"]
        print(f"  bytes read of a leaf by {name:9}                 {count / 1e6:8.2f} MB   / disk {share:11.2f}")


def main() -> None:
    """Makes the tree and measures."""
    parser = argparse.ArgumentParser(prog="scripts/bench cluster", description=__doc__)
    parser.add_argument("--bytes", type=int, default=2_000_000_000, help="size of the tree (default %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="workers of either side (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=2, help="runs of which the best counts (default %(default)s)")
    parser.add_argument("--folder", type=Path, help="where the tree is made (default: a temporary folder)")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="precision_tool_bench_", dir=args.folder))
    try:
        data, nbytes = make_tree(folder, args.bytes)
        print(f"cluster: a study of {_RANKS * _STEPS} leaves, {nbytes / 1e9:.2f} GB, {args.workers} workers, each")
        print("         leaf compared with its benchmark and recomputed, from start to exit of the command")
        with cluster(args.workers) as (address, workers):
            measure(data, folder / "work", address, workers, args.workers, args.repeats)
        measure_bytes(folder / "one", args.bytes // (_RANKS * _STEPS))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(data: Path, work: Path, address: str, workers: Processes, count: int, repeats: int) -> None:
    """Both sides in turns, and a worker lost halfway; prints the figures."""
    here, there = ["--workers", str(count)], ["--cluster", address]
    local, dask = [study(data, work, here, children)], [study(data, work, there, workers)]
    for _ in range(repeats):
        local.append(study(data, work, here))
        dask.append(study(data, work, there, crew=workers))
    best, other = (min(run.seconds for run in side[1:]) for side in (dask, local))
    cpu, other_cpu = (min(run.cpu for run in side[1:]) for side in (dask, local))
    lost = study(data, work, there, workers, kill_after=best / 2)
    same = len({run.table for run in (*local, *dask, lost)}) == 1
    print(f"  local processes                             {other:8.2f} s   largest   {local[0].peak / 1e6:6.0f} MB")
    print(f"  Dask                                        {best:8.2f} s   largest   {dask[0].peak / 1e6:6.0f} MB")
    print(f"  ratio                                                    Dask / local {best / other:6.2f}")
    print(f"  processor time   local {other_cpu:8.2f} s   Dask {cpu:8.2f} s   Dask / local {cpu / other_cpu:6.2f}")
    late = lost.seconds - best
    print(f"  Dask, a worker killed after {best / 2:6.2f} s        {lost.seconds:8.2f} s   lost {late:9.2f} s")
    print(f"  where a task of a worker takes about        {best / MIN_TASKS:8.2f} s")
    print(f"  the table of all {2 * repeats + 3} runs is {'the same to the bit' if same else 'NOT THE SAME'}")


if __name__ == "__main__":
    main()
