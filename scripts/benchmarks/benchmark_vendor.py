"""`scripts/bench --vendor`: the vendor's msaccucmp and ours on one generated tree, side by side.

Both run as a user runs them, one process each with its own workers, in turns; every file is read once before each run,
as the system may drop pages while a run of minutes goes on. Time and memory are of all its processes. Ratios are
printed, never a pass or fail.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from benchmark_flow import measure_flow
from measuring import peak_memory, read_files
from resnet_twin import Twin, generate_twin

from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.io.ge_graph_export import export_graph

#: Names the Python of the environment with mindstudio-probe; scripts/bench makes one.
VARIABLE = "PRECISION_TOOL_MSPROBE"
#: As many as a training step of ResNet-50 dumps, more or less.
_OPS = 1000
_SOURCE = Path(__file__).resolve().parents[2] / "tests" / "parity" / "dump_parser.c"


def vendor_command(folder: Path) -> tuple[list[str], dict[str, str]]:
    """The program and its environment, with the stand-in for its library built in `folder`."""
    python = os.environ[VARIABLE]
    where = "import importlib.util as u; print(u.find_spec('msprobe').submodule_search_locations[0])"
    package = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True).stdout.strip()
    library = folder / "libascend_dump_parser.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE)], check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    return [python, os.path.join(package, "msaccucmp", "msaccucmp.py")], environment


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two: what it is called, its words for an output folder, its environment."""

    name: str
    words: Callable[[Path], Sequence[str]]
    environment: dict[str, str]

    def run(self, folder: Path, files: list[str], result: str, memory: bool = False) -> float:
        """Seconds of a run over these files, or with `memory` the peak megabytes of all its processes."""
        out, log = folder / f"{self.name}_out", folder / "log"
        out.mkdir()
        read_files(files)
        start = time.perf_counter()
        with log.open("wb") as file:
            process = subprocess.Popen(self.words(out), env=self.environment, stdout=file, stderr=subprocess.STDOUT)
            peak = peak_memory(process) if memory else 0
            process.wait()
        taken = time.perf_counter() - start
        # msaccucmp's exit code says nothing: what it wrote does.
        if not any(out.rglob(result)):
            raise SystemExit(f"{self.name} wrote no {result}: {log.read_text()[-2000:]}")
        shutil.rmtree(out)
        return peak / 1e6 if memory else taken


def side_by_side(
    what: str, sides: tuple[Side, Side], folder: Path, files: list[str], repeats: int, result: str, target: float
) -> float:
    """Runs both in turns and prints their figures; `result` is a pattern that a file they write must fit.

    The best of theirs, in seconds.
    """
    vendor, ours = sides
    best = {vendor.name: inf, ours.name: inf}
    for _ in range(repeats):
        for side in sides:
            best[side.name] = min(best[side.name], side.run(folder, files, result))
    peak = {side.name: side.run(folder, files, result, memory=True) for side in sides}
    for side in sides:
        print(f"  {what:8} {side.name:10} {best[side.name]:9.2f} s {peak[side.name]:8.0f} MB")
    ratio, share = best[vendor.name] / best[ours.name], peak[ours.name] / peak[vendor.name]
    print(f"  {what:8} {ratio:.1f} times as fast (wanted: {target:g}), memory {share:.2f} of theirs (wanted: 1)")
    return best[vendor.name]


def bench_vendor(folder: Path, size: int, workers: int, repeats: int, resnet: bool) -> None:
    """compare and convert of a generated tree, or of one as a training step of ResNet-50 leaves it."""
    truth = generate_twin(folder / "data") if resnet else generate_demo(folder / "data", bytes_total=size, ops=_OPS)
    graph = folder / "graph.json"
    graph.write_text("".join(export_graph(str(truth.graph_path))[0]), encoding="utf-8")
    program, environment = vendor_command(folder)
    # As pip installs them: both with their compiled files.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    leaf, golden = str(truth.dump_dir), str(truth.golden_dir)
    files = [str(path) for path in (*truth.dump_dir.iterdir(), *truth.golden_dir.iterdir())]
    nbytes = sum(os.path.getsize(path) for path in files)
    print(f"vendor: {truth.dump_files} dump files, {truth.golden_files} benchmark tensors, {nbytes / 1e9:.2f} GB")
    tool = [sys.executable, "-m", "precision_tool"]
    own = [leaf, "-g", str(truth.graph_path), "--workers", str(workers)]

    def sides(vendor_words: Callable[[Path], list[str]], ours: Callable[[Path], list[str]]) -> tuple[Side, Side]:
        return (
            Side(name="msaccucmp", words=lambda out: [*program, *vendor_words(out)], environment=environment),
            Side(name="ours", words=lambda out: [*tool, "--work", str(out), *ours(out)], environment={**os.environ}),
        )

    compare = sides(
        lambda out: ["compare", "-m", leaf, "-g", golden, "-f", str(graph), "-out", str(out)],
        lambda out: ["vc", "-rt", golden, "-lt", *own],
    )
    vendor_seconds = side_by_side("compare", compare, folder, files, repeats, "result_*.csv", 20)
    print("ours:   where the data lie as they were collected, the graph not told, beside msaccucmp's time above,")
    tensors = truth.tensors if isinstance(truth, Twin) else len(truth.tensors)
    measure_flow(folder / "data", tensors, repeats, vendor_seconds)
    convert = sides(
        lambda out: ["convert", "-d", leaf, "-out", str(out)],
        lambda out: ["dc", "-o", str(out / "npy"), *own],
    )
    side_by_side("convert", convert, folder, files, repeats, "*.npy", 4)
    start = time.perf_counter()
    shutil.copytree(leaf, folder / "copy")
    print(f"  floor    copying the dump, once {time.perf_counter() - start:9.2f} s")


def main() -> None:
    """Makes the tree and measures."""
    parser = argparse.ArgumentParser(prog="scripts/bench --vendor", description="msaccucmp and ours, side by side.")
    parser.add_argument("--bytes", type=int, default=2_200_000_000, help="size of the tree (default %(default)s)")
    parser.add_argument("--resnet", action="store_true", help="a tree as a training step of ResNet-50 leaves it")
    parser.add_argument("--workers", type=int, default=2, help="our processes (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=2, help="runs of which the best counts (default %(default)s)")
    parser.add_argument("--folder", type=Path, help="where the tree is made (default: a temporary folder)")
    args = parser.parse_args()
    if VARIABLE not in os.environ:
        parser.error(f"{VARIABLE} names no Python that has mindstudio-probe; scripts/bench --vendor makes one")
    folder = Path(tempfile.mkdtemp(prefix="precision_tool_bench_", dir=args.folder))
    try:
        bench_vendor(folder, args.bytes, args.workers, args.repeats, args.resnet)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
