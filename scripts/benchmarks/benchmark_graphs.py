"""Times of the commands on graphs of extreme shapes: a chain, a star and a grid of very many ops, dumped and compared.

A chain is as deep as can be, the last op of a star has as many inputs as can be, and the paths through a grid are
more than can be counted: what is not linear in the ops shows in one of them. Part `shapes` of `scripts/bench`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isqrt
from pathlib import Path

import numpy as np

from precision_tool.lib.demo.dump_writer import OutTensor, dump_file_name, golden_file_name, write_dump, write_golden
from precision_tool.lib.demo.graph_writer import AI_CORE, graph_file_name, write_graph
from precision_tool.lib.model.graph import Edge, Graph, Op, TensorDesc

#: Seconds after which a command is taken for one that does not end.
_LIMIT = 600
_STAMP = "20260302093000"
_MODEL = f"ge_default_{_STAMP}_1"
_TIME = 1_772_443_800_000_000
_VALUES = np.arange(4, dtype=np.float32)
_DESC = TensorDesc(
    dtype="float32",
    layout="ND",
    shape=_VALUES.shape,
    origin_layout="ND",
    origin_shape=_VALUES.shape,
    dump_origin_index=0,
    dump_origin_layout="ND",
)


def chain(number: int, count: int) -> list[int]:
    """The ops whose output op `number` of a chain reads."""
    return [number - 1] if number else []


def star(number: int, count: int) -> list[int]:
    """Of a star: the last reads all others."""
    return list(range(count - 1)) if number == count - 1 else []


def grid(number: int, count: int) -> list[int]:
    """Of a grid of as many rows as columns: the ones above and to the left."""
    side = isqrt(count)
    return [number - step for step, there in ((1, number % side), (side, number >= side)) if there]


SHAPES = {"chain": chain, "star": star, "grid": grid}


def make_tree(root: Path, inputs_of: Callable[[int, int], list[int]], count: int, runs: int = 2) -> Path:
    """A data folder with `count` ops, dumped on the NPU `runs` times and by the benchmark; returns a graph."""
    names = [f"layer{number // 100}/op{number}" for number in range(count)]
    ops = [
        Op(
            name=name,
            type="Add" if inputs_of(number, count) else "Relu",
            id=number,
            inputs=tuple(Edge(producer=names[source], index=0) for source in inputs_of(number, count)),
            output_descs=(replace(_DESC, dump_origin_name=name),),
            pass_names=("SomeFusionPass",) if number % 1000 == 7 else (),
            original_names=(name,),
            kernel_lib=AI_CORE,
        )
        for number, name in enumerate(names)
    ]
    tensor = OutTensor(data=_VALUES, origin_shape=_VALUES.shape)
    wrong = OutTensor(data=-_VALUES, origin_shape=_VALUES.shape)
    for run in range(runs):
        folder = root / "npu" / f"debug_{run}"
        graph = folder / "graph" / graph_file_name(5, 1)
        graph.parent.mkdir(parents=True)
        write_graph(graph, Graph(name=_MODEL, ops=tuple(ops), attrs={"_session_graph_id": "0_1"}), kernel_bytes=32)
        leaf = folder / "dump" / _STAMP / "0" / _MODEL / "1" / "0"
        leaf.mkdir(parents=True)
        for number, op in enumerate(ops):
            inputs = [tensor] * len(op.inputs)
            path = leaf / dump_file_name(op.type, op.name, number, _TIME + number, stream_id=0)
            write_dump(path, op.name, inputs, [wrong if number == count // 2 else tensor], dump_time=_TIME)
    benchmark = root / "tf" / "dump"
    benchmark.mkdir(parents=True)
    for number, name in enumerate(names):
        write_golden(benchmark / golden_file_name(name, 0, _TIME + number), _VALUES)
    return graph


def run_tool(words: Sequence[str]) -> str:
    """The seconds of a command as a process and its peak memory, its exit code where it is not 0."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "precision_tool", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    timer = threading.Timer(_LIMIT, process.kill)
    timer.start()
    _, status, used = os.wait4(process.pid, 0)
    timer.cancel()
    process.returncode = code = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - start
    return f"{seconds:8.2f} ({used.ru_maxrss / 1000:5.0f}){f' exit {code}' if code else ''}"


def bench_shapes(folder: Path, count: int, chosen: Sequence[str] = tuple(SHAPES)) -> None:
    """Prints the seconds and the peak memory of every command on every shape."""
    middle = f"layer{count // 200}/op{count // 2}"
    last = f"layer{(count - 1) // 100}/op{count - 1}"
    commands = (
        "vc", "ac -c", "ac", "vcs", "ls", "ls --json", "ls -t Add", f"ni {middle}", f"ni {last}", f"ni {middle} --json",
        "graphs", "graphs --find op7", "fusion", "fusion blame", "graph diff", "random", "overflow", f"pt {middle}",
        f"cp {middle} {last}",
    )  # fmt: skip
    print(f"shapes:  {count} ops, each command as a process: seconds (peak memory in MB)")
    print(" " * 30 + "".join(f"{name:>18}" for name in chosen))
    rows: dict[str, list[str]] = {words: [] for words in commands}
    for name in chosen:
        root = folder / name
        make_tree(root, SHAPES[name], count)
        for words in commands:
            rows[words].append(run_tool(["--data", str(root), *words.split()]))
    for words, cells in rows.items():
        print(f"  {words:28}" + "".join(f"{cell:>18}" for cell in cells))
