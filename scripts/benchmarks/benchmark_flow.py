"""A comparison end to end, for `scripts/bench`: over the read floor, as it grows, what it opens, how it starts."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from math import inf
from pathlib import Path

from measuring import measure_decode, read_files, run, split_by_bytes
from resnet_twin import generate_twin

from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.io.native.library import VARIABLE

#: As many as a training step of ResNet-50 dumps, more or less.
_OPS = 1000
_ALONE = str(Path(__file__).with_name("compare_alone.py"))
_TOOL = [sys.executable, "-m", "precision_tool"]
_GIGABYTE = 1_000_000_000


def _words(data: Path, word: str, workers: int) -> list[str]:
    """`vc`, or `ac -c` up to its verdict, as a process."""
    program = [sys.executable, _ALONE, "plain"] if word == "ac" else _TOOL
    return [*program, "--data", str(data), word, *(["-c"] if word == "ac" else []), "--workers", str(workers)]


def _files(data: Path) -> list[str]:
    """The dump files and the benchmark's."""
    return [
        str(path) for side in ("npu/debug_0/dump", "tf/dump") for path in (data / side).rglob("*") if path.is_file()
    ]


def _floor(pool: ProcessPoolExecutor, paths: list[str], workers: int) -> float:
    """Seconds in which as many processes read all bytes once."""
    lists = split_by_bytes(paths, workers)
    start = time.perf_counter()
    list(pool.map(read_files, lists))
    return time.perf_counter() - start


def bench_flow(folder: Path, nbytes: int, repeats: int) -> None:
    """`measure_flow` of a generated tree."""
    data = folder / "precision_data"
    truth = generate_demo(data, bytes_total=nbytes, ops=_OPS)
    print(f"flow:    {truth.dump_files} dump files, {truth.golden_files} benchmark tensors,")
    measure_flow(data, len(truth.tensors), repeats)


def bench_resnet(folder: Path, workers: int, repeats: int) -> None:
    """`measure_flow` and `dc` of a tree as one training step of ResNet-50 leaves it."""
    data = folder / "precision_data"
    twin = generate_twin(data)
    print(f"resnet:  {twin.dump_files} dump files, {twin.npu_bytes / 1e9:.2f} GB,")
    print(f"         {twin.golden_files} benchmark tensors, {twin.golden_bytes / 1e9:.2f} GB,")
    measure_flow(data, twin.tensors, repeats)
    shutil.rmtree(twin.golden_dir)
    measure_decode(folder, twin.dump_dir, workers, repeats)


def measure_flow(data: Path, tensors: int, repeats: int, vendor: float = 0.0) -> None:
    """`vc`, and `ac -c` without its verdict, over the read floor: 1 and 2 workers, with and without compiled kernel.

    Also how many times as fast as msaccucmp, if it is told in how many seconds that compares the same files. At last
    how often files are opened, and how many of their bytes are read.
    """
    paths = _files(data)
    total = read_files(paths)
    print(f"         {total / 1e9:.2f} GB in all, {tensors} NPU tensors; processes from start to exit, files in the")
    print("         page cache, each figure the best of its runs; peak memory of all our processes in another run")
    for workers in (1, 2):
        floor = inf
        best = {(word, kernel): inf for word in ("vc", "ac") for kernel in ("compiled", "numpy")}
        with ProcessPoolExecutor(workers) as pool:
            for _ in range(repeats):
                floor = min(floor, _floor(pool, paths, workers))
                for word, kernel in best:
                    taken, _ = run(_words(data, word, workers), variables={VARIABLE: kernel})
                    best[word, kernel] = min(best[word, kernel], taken)
        print(f"  workers {workers}: reading all files once          {floor:8.2f} s")
        for (word, kernel), taken in best.items():
            _, peak = run(_words(data, word, workers), memory=True, variables={VARIABLE: kernel})
            name = "ac -c, no verdict" if word == "ac" else "vc"
            ratio = f"   msaccucmp / ours {vendor / taken:6.1f}" if vendor else ""
            print(f"    {name:18} {kernel:9} {taken:8.2f} s   over floor {taken / floor:6.1f}{ratio}   {peak:6.0f} MB")
    print("  ac -c, no verdict, one worker:")
    _print_opens(data)


def bench_opens(folder: Path, nbytes: int) -> None:
    """How often files are opened, and how often their bytes are read: of many small tensors, and of few large ones."""
    for ops, size in ((_OPS, "many"), (_OPS // 5, "few")):
        data = folder / size / "precision_data"
        generate_demo(data, bytes_total=nbytes, ops=ops)
        print(f"opens:   ac -c without its verdict, {nbytes / 1e9:.1f} GB in {size} tensors")
        _print_opens(data)


def _print_opens(data: Path) -> None:
    command = [sys.executable, _ALONE, "count", "--data", str(data), "ac", "-c", "--workers", "1"]
    print(*(line for line in _output(command).splitlines() if line.startswith("  ")), sep="\n")


def bench_profile(folder: Path, nbytes: int) -> None:
    """Where the processor's time of `ac -c` without its verdict goes."""
    data = folder / "precision_data"
    generate_demo(data, bytes_total=nbytes, ops=_OPS)
    read_files(_files(data))
    print("profile: ac -c without its verdict, one worker")
    print(_output([sys.executable, _ALONE, "profile", "--data", str(data), "ac", "-c", "--workers", "1"]))


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout


def bench_growth(folder: Path, repeats: int) -> None:
    """`vc` of 1, 2, 4 and 8 GB over the read floor."""
    with ProcessPoolExecutor(2) as pool:
        print("growth:  vc as a process, 2 workers, page cache warm")
        for gigabytes in (1, 2, 4, 8):
            data = folder / str(gigabytes) / "precision_data"
            generate_demo(data, bytes_total=gigabytes * _GIGABYTE, ops=_OPS)
            paths = _files(data)
            read_files(paths)
            ours = floor = inf
            for _ in range(repeats):
                floor = min(floor, _floor(pool, paths, 2))
                ours = min(ours, run(_words(data, "vc", 2))[0])
            _, peak = run(_words(data, "vc", 2), memory=True)
            shown = f"{ours:8.2f} s   over floor {ours / floor:5.1f}   {ours / gigabytes:5.2f} s a GB   {peak:5.0f} MB"
            print(f"  {gigabytes} GB {shown}")


def bench_startup(folder: Path, repeats: int) -> None:
    """Start to exit of `--help`, `ls` and the prompt, over an interpreter that does nothing."""
    data = folder / "precision_data"
    generate_demo(data)
    best = dict.fromkeys(("python -c pass", "--help", "ls", "the prompt"), inf)
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "--help": [*_TOOL, "--help"],
        "ls": [*_TOOL, "--data", str(data), "ls"],
        "the prompt": [*_TOOL, "--data", str(data)],  # which ends with its input
    }
    for _ in range(3 * repeats):
        for name, command in commands.items():
            best[name] = min(best[name], run(command)[0])
    print("startup: processes from start to exit")
    for name, taken in best.items():
        print(f"  {name:16} {taken:8.3f} s   over an empty Python {taken / best['python -c pass']:6.1f}")
