"""The benchmarks behind `scripts/bench`. Prints ratios of times taken side by side, never a pass or fail.

Both sides read from the page cache: every file is read once before the clock starts, and each figure is the best
of several runs, the sides taking turns.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
from benchmark_flow import bench_flow, bench_growth, bench_opens, bench_profile, bench_resnet, bench_startup
from benchmark_graphs import bench_shapes
from benchmark_kernel import bench_kernels
from measuring import measure_decode, read_files, run_tool, seconds, split_by_bytes

from precision_tool.lib.compare.element_errors import compare_elements
from precision_tool.lib.compare.folders import compare_folders, find_inputs, match_leaf
from precision_tool.lib.compare.named_tensors import pair_up, tensors_of_file
from precision_tool.lib.compare.pair_sums import KL_FLOOR
from precision_tool.lib.compare.scheduler import Resources
from precision_tool.lib.data.graph_cache import GraphStore
from precision_tool.lib.data.graph_choice import GraphChooser
from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.io import data_types, layouts
from precision_tool.lib.io.cache import CacheFiles
from precision_tool.lib.io.ge_graph import load_graph_file
from precision_tool.lib.model.comparison import ZERO_BELOW, Pair, Status
from precision_tool.lib.model.tensor import Plan, Tensor

_READ_BLOCK = 1 << 20
Floats = npt.NDArray[np.float64]


# --- what is measured -----------------------------------------------------------------------------------------------


def load_files(paths: list[str]) -> int:
    """Loads each file whole, one after the other, as a script that then computes on it would."""
    return sum(np.fromfile(path, np.uint8).size for path in paths)


def plain_values(tensor: Tensor, plan: Plan) -> npt.NDArray[np.float32]:
    """A whole tensor as a flat float32 array, the way a plain script would load it."""
    dtype = np.dtype(data_types.BY_NAME[tensor.dtype].numpy_name)
    stored = np.fromfile(tensor.path, dtype, tensor.size, offset=tensor.offset)
    out = np.empty(plan.logical_shape, np.float32)
    layouts.copy_box(plan, stored.reshape(plan.storage_shape), out)
    return out.reshape(-1)


def plain_metrics(pair: Pair) -> list[float]:
    """The ten metrics of FORMATS.md §5 as whole-array numpy expressions."""
    assert isinstance(pair.npu, Tensor)
    assert isinstance(pair.golden, Tensor)
    assert pair.npu_plan is not None
    assert pair.golden_plan is not None
    x = plain_values(pair.npu, pair.npu_plan)
    y = plain_values(pair.golden, pair.golden_plan)
    error = np.abs(x - y)
    relative = np.where(np.abs(y) > ZERO_BELOW, np.abs(x / y - 1), 0)
    p = np.maximum((x - x.min()) / (x.max() - x.min() or 1), KL_FLOOR)
    q = np.maximum((y - y.min()) / (y.max() - y.min() or 1), KL_FLOOR)
    p, q = p / p.sum(), q / q.sum()
    return [
        float(value)
        for value in (
            np.sum(x * y) / (np.sqrt(np.sum(x * x)) * np.sqrt(np.sum(y * y))),
            error.max(),
            relative.sum(),
            np.sqrt(np.sum((x - y) ** 2)) / np.sqrt(np.sum(y * y)),
            np.sum(p * np.log(p / q)),
            x.mean(),
            x.std(),
            y.mean(),
            y.std(),
            error.mean(),
            np.sqrt(np.mean((x - y) ** 2)),
            relative.max(),
            relative.mean(),
        )
    ]


def plain_compare(pairs: list[Pair]) -> int:
    """`plain_metrics` of all pairs."""
    with np.errstate(all="ignore"):
        return sum(len(plain_metrics(pair)) > 0 for pair in pairs)


def pairs_of(data: Path) -> list[Pair]:
    """The compared pairs of a generated tree."""
    inputs = find_inputs(str(data / "npu" / "debug_0"), str(data / "tf" / "dump"))
    pairs: list[Pair] = []
    for position, leaf in enumerate(inputs.run.leaves):
        pairs += match_leaf(leaf, inputs, position, GraphChooser())[0]
    return [pair for pair in pairs if pair.status is Status.COMPARED]


# --- clocks ---------------------------------------------------------------------------------------------------------


def run_vc(data: Path, workers: int, memory: bool = False) -> tuple[float, float]:
    """`run_tool` of `vc` on a data folder."""
    return run_tool(["--data", str(data), "vc", "--workers", str(workers)], memory)


# --- the parts ------------------------------------------------------------------------------------------------------


def bench_compare(folder: Path, nbytes: int, workers: int, repeats: int) -> None:
    """Ours against reading the bytes once and against plain numpy, all with `workers` processes."""
    data = folder / "precision_data"
    truth = generate_demo(data, bytes_total=nbytes)
    pairs = pairs_of(data)
    paths = sorted({tensor.path for pair in pairs for tensor in (pair.npu, pair.golden) if isinstance(tensor, Tensor)})
    total = read_files(paths)
    elements = sum(pair.npu.size for pair in pairs if pair.npu is not None)
    shares: list[list[Pair]] = [[] for _ in range(workers)]
    for position, pair in enumerate(sorted(pairs, key=lambda pair: -pair.npu.size if pair.npu else 0)):
        shares[position % workers].append(pair)
    process, ours, floor, loading, plain = [], [], [], [], []

    def compare() -> object:
        npu, golden = data / "npu" / "debug_0", data / "tf" / "dump"
        return compare_folders(str(npu), str(golden), resources=Resources(workers, pool))

    with ProcessPoolExecutor(workers) as pool:
        list(pool.map(plain_compare, [[pairs[-1]]] * workers))
        for turn in range(repeats):
            process.append(run_vc(data, workers)[0])
            ours.append(seconds(compare))
            floor.append(seconds(lambda: list(pool.map(read_files, split_by_bytes(paths, workers)))))
            loading.append(seconds(lambda: list(pool.map(load_files, split_by_bytes(paths, workers)))))
            if turn == 0:
                plain.append(seconds(lambda: list(pool.map(plain_compare, shares))))
    _, peak = run_vc(data, workers, memory=True)
    best, read, whole = min(ours), min(floor), min(plain)
    print(f"compare: {truth.dump_files} dump files, {truth.golden_files} benchmark tensors, {total / 1e9:.2f} GB,")
    print(f"         {len(pairs)} pairs, {elements / 1e6:.0f} M elements, {workers} workers, page cache warm")
    print(f"  ours, as a process from start to exit (vc)  {min(process):8.2f} s")
    print(f"  ours, from Python with warm workers         {best:8.2f} s")
    print(f"  reading the same bytes once, into 1 MB      {read:8.2f} s   ours / floor  {best / read:6.1f}")
    load = min(loading)
    print(f"  loading the same files whole, once          {load:8.2f} s   ours / loading {best / load:5.1f}")
    print(f"  whole-array numpy, same ten metrics         {whole:8.2f} s   numpy / ours  {whole / best:6.1f}")
    print(f"  peak memory of all our processes            {peak:8.0f} MB")


def bench_verdict(folder: Path, nbytes: int, workers: int, repeats: int) -> None:
    """`ac -c`, which compares and judges, beside `vc`, which compares."""
    data = folder / "precision_data"
    truth = generate_demo(data, bytes_total=nbytes)
    total = read_files([str(path) for path in data.rglob("*") if path.is_file()])
    words = ["--data", str(data), "ac", "-c", "--workers", str(workers)]
    comparing, both = [], []
    for _ in range(repeats):
        comparing.append(run_vc(data, workers)[0])
        both.append(run_tool(words)[0])
    _, peak = run_tool(words, memory=True)
    compared, verdict = min(comparing), min(both) - min(comparing)
    print(f"verdict: {truth.ops} ops, {truth.dump_files} dump files, {total / 1e9:.2f} GB, {workers} workers")
    print(f"  comparing, as a process (vc)                {compared:8.2f} s")
    print(f"  what the verdict adds (ac -c less vc)       {verdict:8.2f} s   ratio {verdict / compared:6.1f}")
    print(f"  peak memory of all our processes            {peak:8.0f} MB")


def bench_giant(folder: Path, nbytes: int, workers: int) -> None:
    """Peak memory with one tensor far larger than that."""
    data = folder / "precision_data"
    generate_demo(data, giant_bytes=nbytes)
    taken, peak = run_vc(data, workers, memory=True)
    print(f"giant:   one tensor of {nbytes / 1e9:.2f} GB and its benchmark, {workers} workers")
    print(f"  ours                                        {taken:8.2f} s   peak memory  {peak:6.0f} MB")


def bench_elements(folder: Path, size: int, workers: int, repeats: int) -> None:
    """`cp` on two float32 tensors against loading both and one dot product."""
    random = np.random.default_rng(1)
    folder.mkdir(parents=True)
    paths = [str(folder / "npu.npy"), str(folder / "benchmark.npy")]
    values = random.standard_normal(size, dtype=np.float32)
    np.save(paths[1], values)
    values += random.standard_normal(size, dtype=np.float32) * np.float32(1e-3)
    np.save(paths[0], values)
    del values
    npu, golden = (tensors_of_file(path)[0] for path in paths)
    pair = pair_up(npu, golden)
    process, ours, floor = [], [], []

    def load_and_dot() -> object:
        npu, golden = (np.load(path) for path in paths)
        return np.dot(npu, golden)

    for _ in range(repeats):
        floor.append(seconds(load_and_dot))
        ours.append(seconds(lambda: compare_elements(pair, Resources(workers=workers), atol=1e-3, rtol=1e-3, shown=20)))
        process.append(run_tool(["cp", *paths, "--workers", str(workers)])[0])
    _, peak = run_tool(["cp", *paths, "--workers", str(workers)], memory=True)
    best, plain = min(ours), min(floor)
    print(f"cp:      two float32 tensors of {size / 1e6:.0f} M elements, {workers} workers, page cache warm")
    print(f"  ours, as a process from start to exit       {min(process):8.2f} s   peak memory  {peak:6.0f} MB")
    print(f"  ours, from Python                           {best:8.2f} s")
    print(f"  np.load of both and np.dot                  {plain:8.2f} s   ours / floor  {best / plain:6.1f}")


def bench_graph(folder: Path, repeats: int) -> None:
    """Loading a text graph against google.protobuf.text_format with a schema of FORMATS.md §4."""
    from ge_schema import model_def_class
    from google.protobuf import text_format

    shared = Path(__file__).resolve().parents[3] / "shared" / "data" / "graphs" / "ge_proto_00000062_Build.txt"
    path = shared if shared.is_file() else generate_demo(folder / "precision_data", ops=1500).graph_path
    text = path.read_text(encoding="utf-8")
    model_class = model_def_class()
    ours, theirs = [], []
    for _ in range(repeats):
        ours.append(seconds(lambda: load_graph_file(str(path))))
        theirs.append(seconds(lambda: text_format.Parse(text, model_class(), allow_unknown_field=True)))
    best, other = min(ours), min(theirs)
    print(f"graph:   {path.name}, {text.count(chr(10))} lines, {len(text) / 1e6:.1f} MB")
    print(f"  ours (file to graph)                        {best:8.3f} s")
    print(f"  google.protobuf.text_format (text to tree)  {other:8.3f} s   theirs / ours {other / best:6.1f}")
    bench_large_graph(folder / "large", text, repeats)


def bench_large_graph(folder: Path, text: str, repeats: int) -> None:
    """A graph of so many copies of another one's ops that it has about 70 MB, read for the first time and again."""
    begin, last = text.index("\n  op {\n") + 1, text.rindex("\n  op {\n")
    end = text.index("\n  }\n", last) + len("\n  }\n")
    ops = text[begin:end]
    path = folder / "ge_proto_00000001_Build.txt"
    cache = folder / "cache"
    cache.mkdir(parents=True)
    copies = -(-70_000_000 // len(ops))
    names = re.compile(r'(\n    (?:name|input): ")(?=[^"])')
    with path.open("w", encoding="utf-8") as file:
        file.write(text[:begin])
        for copy in range(copies):
            file.write(names.sub(rf"\g<1>copy{copy}/", ops))
        file.write(text[end:])
    os.utime(path, (0, 0))  # one that was changed just now is not kept
    size, lines = path.stat().st_size, text.count("\n") * copies
    first, again = [], []
    for _ in range(repeats):
        shutil.rmtree(cache)
        cache.mkdir()
        for times in (first, again):
            times.append(seconds(lambda: GraphStore(CacheFiles(lambda: [cache])).load(str(path))))
    floor = min(seconds(path.read_bytes) for _ in range(repeats))
    print(f"  {copies} copies of its ops: {lines} lines, {size / 1e6:.0f} MB, reading the bytes {floor:.2f} s")
    for title, times in (("for the first time", first), ("again", again)):
        print(f"  read {title:<38} {min(times):8.3f} s   ours / reading {min(times) / floor:5.1f}")


def bench_decode(folder: Path, nbytes: int, workers: int, repeats: int) -> None:
    """`measure_decode` of a generated dump."""
    data = folder / "precision_data"
    generate_demo(data, bytes_total=nbytes)
    measure_decode(folder, data / "npu" / "debug_0" / "dump", workers, repeats)


def bench_catalog(folder: Path, repeats: int) -> None:
    """`ls` on a graph of ten thousand ops as a process: with nothing kept, and with nothing changed since."""
    data = folder / "precision_data"
    truth = generate_demo(data, ops=10_000, size=64)
    words = ["--data", str(data), "ls", "-n", "conv0/Relu"]
    cold, warm = [], []
    for _ in range(repeats):
        shutil.rmtree(data / "temp", ignore_errors=True)
        cold.append(run_tool(words)[0])
        warm.append(run_tool(words)[0])
    size = truth.graph_path.stat().st_size
    print(f"catalog: ls on a graph of {truth.ops} ops, {size / 1e6:.0f} MB, {truth.dump_files} dump files")
    print(f"  as a process, nothing kept                  {min(cold):8.2f} s")
    print(f"  as a process, nothing changed since         {min(warm):8.2f} s")


def bench_tfdbg(folder: Path, repeats: int) -> None:
    """A real training step under tfdbg, where there is a Python with TensorFlow 1.15.5 for it."""
    from benchmark_tfdbg import VARIABLE, bench_tf_dump

    python = os.environ.get(VARIABLE)
    if not python:
        print(f"tf_dump: left out, {VARIABLE} names no Python with TensorFlow 1.15.5 and pexpect")
        return
    folder.mkdir()
    bench_tf_dump(folder, repeats, python)


def _bench_flow_parts(parts: list[str], folder: Path, args: argparse.Namespace) -> None:
    """The parts that are in `benchmark_flow`."""
    work: dict[str, Callable[[Path], None]] = {
        "flow": lambda place: bench_flow(place, args.bytes, args.repeats),
        "growth": lambda place: bench_growth(place, args.repeats),
        "opens": lambda place: bench_opens(place, args.bytes),
        "startup": lambda place: bench_startup(place, args.repeats),
        "profile": lambda place: bench_profile(place, args.bytes),
        "resnet": lambda place: bench_resnet(place, args.workers, args.repeats),
    }
    for part in parts:
        work[part](folder / part)
        shutil.rmtree(folder / part)


def main() -> None:
    """Runs the parts that were asked for."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Prints ratios measured side by side.")
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help="compare, verdict, flow, resnet, growth, opens, startup, profile, giant, cp, dc, kernel, graph, catalog, "
        "shapes, report, tfdbg: all by default",
    )
    parser.add_argument(
        "--bytes", type=int, default=2_200_000_000, help="size of the tree to compare (default %(default)s)"
    )
    parser.add_argument("--giant", type=int, default=4 << 30, help="size of the giant tensor (default %(default)s)")
    parser.add_argument("--elements", type=int, default=100_000_000, help="size of cp's tensors (default %(default)s)")
    parser.add_argument("--ops", type=int, default=100_000, help="ops of the shapes (default %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="processes of either side (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of which the best counts (default %(default)s)")
    parser.add_argument("--folder", type=Path, help="where the trees are made (default: a temporary folder)")
    args = parser.parse_args()
    flow = ("flow", "resnet", "growth", "opens", "startup", "profile")
    parts_there = (
        "compare",
        "verdict",
        *flow,
        "giant",
        "cp",
        "dc",
        "kernel",
        "graph",
        "catalog",
        "shapes",
        "report",
        "tfdbg",
    )
    unknown = set(args.parts) - set(parts_there)
    if unknown:
        parser.error(f"unknown part {', '.join(sorted(unknown))}: choose from {', '.join(parts_there)}")
    chosen = args.parts or parts_there
    folder = Path(tempfile.mkdtemp(prefix="precision_tool_bench_", dir=args.folder))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # modules are compiled once, as those that pip installed are
    try:
        if "compare" in chosen:
            bench_compare(folder / "compare", args.bytes, args.workers, args.repeats)
            shutil.rmtree(folder / "compare")
        if "verdict" in chosen:
            bench_verdict(folder / "verdict", args.bytes, args.workers, args.repeats)
            shutil.rmtree(folder / "verdict")
        _bench_flow_parts([part for part in flow if part in chosen], folder, args)
        if "giant" in chosen:
            bench_giant(folder / "giant", args.giant, args.workers)
            shutil.rmtree(folder / "giant")
        if "cp" in chosen:
            bench_elements(folder / "cp", args.elements, args.workers, args.repeats)
            shutil.rmtree(folder / "cp")
        if "graph" in chosen:
            bench_graph(folder / "graph", args.repeats)
        if "dc" in chosen:
            bench_decode(folder / "dc", args.bytes, args.workers, args.repeats)
            shutil.rmtree(folder / "dc")
        if "kernel" in chosen:
            bench_kernels()
        if "catalog" in chosen:
            bench_catalog(folder / "catalog", args.repeats)
        if "shapes" in chosen:
            bench_shapes(folder / "shapes", args.ops)
        if "report" in chosen:
            from benchmark_report import bench_report  # the one part that needs a browser

            bench_report(folder / "report")
        if "tfdbg" in chosen:
            bench_tfdbg(folder / "tfdbg", args.repeats)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
