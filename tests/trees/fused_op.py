"""One fused op with its dump, its graphs and a benchmark, judged by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from builders import Array, graph_op, out_tensor, tensor_desc, write_dump

from precision_tool.lib.data import dump_tree as walk
from precision_tool.lib.data.dumped_ops import BenchmarkSide, Found, Missing, NoBenchmark
from precision_tool.lib.demo.dump_writer import OutTensor, dump_file_name
from precision_tool.lib.diagnose.op_values import Compared, RunValues
from precision_tool.lib.diagnose.recomputer import Recomputer
from precision_tool.lib.diagnose.verdict_model import OpResult, SlotResult
from precision_tool.lib.io.npy import read_npy
from precision_tool.lib.messages import Message
from precision_tool.lib.model.graph import Graph, GraphFile


@dataclass(frozen=True)
class Files(BenchmarkSide):
    """A benchmark of `.npy` files by (flattened op name, index)."""

    folder: Path
    arrays: Mapping[tuple[str, int], Array]

    def output(self, op_name: str, index: int) -> Found:
        array = self.arrays.get((op_name, index))
        if array is None:
            return Missing(Message("text", text="not there"))
        path = self.folder / f"{op_name}.{index}.npy"
        np.save(path, array)
        return read_npy(str(path))


@dataclass(frozen=True, kw_only=True)
class Fused:
    """A fused op: (array, layout it is stored in, layout of its axes) of each tensor, and what it is made from."""

    op_type: str
    originals: tuple[str, ...]
    inputs: Sequence[tuple[Array, str, str]]
    output: tuple[Array, str, str]
    attrs: Mapping[str, Any]
    #: (name, type, inputs as (name, index), attributes) of the ops without fusion, if a graph tells them.
    unfused: Sequence[tuple[str, str, Sequence[tuple[str, int]], Mapping[str, Any]]] = ()
    #: Types of the ops that make the inputs.
    sources: Sequence[str] = ()
    origin: str | None = None


def packed(tensor: tuple[Array, str, str]) -> OutTensor:
    array, stored, axes = tensor
    return OutTensor.packed(array, stored, axes) if stored != axes else replace(out_tensor(array), layout=stored)


def recompute(
    tmp_path: Path, fused: Fused, benchmark: BenchmarkSide | None = None, compared: Compared | None = None
) -> OpResult:
    """Writes the dump of a fused op and its graphs, and judges it."""
    folder = tmp_path / f"dump_{len(list(tmp_path.iterdir()))}"
    inputs, output = [packed(one) for one in fused.inputs], packed(fused.output)
    write_dump(
        folder / dump_file_name(fused.op_type, "fused", 1, 1_700_000_000_000_000, stream_id=0),
        "fused",
        inputs,
        [output],
    )
    kinds = [*fused.sources, *["Data"] * len(inputs)][: len(inputs)]
    names = [f"in{number}" for number in range(len(inputs))]
    axes = [layout for _, _, layout in fused.inputs]
    feeds = [
        graph_op(name, kind, output_descs=[tensor_desc(tensor, name, origin_layout=layout)], original_names=[name])
        for name, tensor, layout, kind in zip(names, inputs, axes, kinds, strict=True)
    ]
    op = graph_op(
        "fused", fused.op_type, [f"{name}:0" for name in names],
        input_descs=[tensor_desc(tensor, origin_layout=layout) for tensor, layout in zip(inputs, axes, strict=True)],
        output_descs=[tensor_desc(output, fused.origin or fused.originals[-1], origin_layout=fused.output[2])],
        original_names=fused.originals, attrs=fused.attrs,
    )  # fmt: skip
    unfused = None
    if fused.unfused:
        sources = dict.fromkeys(source for _, _, fed, _ in fused.unfused for source, _ in fed)
        made = {name for name, *_ in fused.unfused}
        kind_of = dict(zip(names, kinds, strict=True))
        ops = [
            graph_op(name, kind_of.get(name, "Const"), original_names=[name]) for name in sources if name not in made
        ]
        ops += [
            graph_op(name, kind, [f"{source}:{index}" for source, index in fed], original_names=[name], attrs=attrs)
            for name, kind, fed, attrs in fused.unfused
        ]
        unfused = GraphFile(path="unfused", graphs=(Graph(name="u", ops=tuple(ops)),))
    file = GraphFile(path="fused", graphs=(Graph(name="f", ops=(*feeds, op)),))
    leaf = walk.find_run(str(folder)).leaves[0]
    return Recomputer(RunValues(leaf, file, benchmark or NoBenchmark(), compared=compared), unfused).examine(op)


def worst(found: OpResult) -> SlotResult:
    assert found.worst_slot is not None, found.reason
    return found.worst_slot
