"""Tiny dumps, graphs and benchmark tensors in code, for corner cases of any test.

    tree = one_op_tree(tmp_path, output=device_values, golden=benchmark_values, layout="NC1HWC0", origin_layout="NHWC")

The writers are those of the demo; they share no code with the readers under test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.data.axis_alignment import Declared, align
from precision_tool.lib.demo import dump_writer
from precision_tool.lib.demo.dump_writer import OutTensor, dump_file_name, golden_file_name
from precision_tool.lib.demo.graph_writer import AI_CORE, GE_LOCAL, graph_file_name, graph_text
from precision_tool.lib.io.ge_dump import read_dump
from precision_tool.lib.io.npy import read_npy
from precision_tool.lib.model.comparison import Pair
from precision_tool.lib.model.graph import Edge, Graph, Op, TensorDesc
from precision_tool.lib.model.tensor import Tensor

Array = npt.NDArray[Any]

STAMP = "20260302093000"
MODEL = f"ge_default_{STAMP}_1"
TIMESTAMP = 1_772_443_800_000_000


def out_tensor(tensor: OutTensor | Array) -> OutTensor:
    """The tensor, or the array as a plain ND tensor."""
    return tensor if isinstance(tensor, OutTensor) else OutTensor(data=tensor, origin_shape=tensor.shape)


def write_dump(
    path: Path,
    op_name: str,
    inputs: Sequence[OutTensor | Array] = (),
    outputs: Sequence[OutTensor | Array] = (),
    version: int = 2,
) -> Path:
    """Write a dump file, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    dump_writer.write_dump(
        path, op_name, [*map(out_tensor, inputs)], [*map(out_tensor, outputs)], version=version, dump_time=TIMESTAMP
    )
    return path


def write_golden(folder: Path, op: str, index: int, array: Array, timestamp: int = TIMESTAMP) -> Path:
    """Write a benchmark tensor under its documented name, making its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / golden_file_name(op, index, timestamp)
    dump_writer.write_golden(path, np.asarray(array))
    return path


def dumped(folder: Path, stored: OutTensor | Array, name: str = "op") -> Tensor:
    """The only output of an op, dumped into `folder` and read back."""
    path = write_dump(folder / f"Add.{name}.1.0.{TIMESTAMP}", name, [], [stored])
    (tensor,) = read_dump(str(path)).outputs
    assert isinstance(tensor, Tensor)
    return tensor


def aligned_pair(
    npu: Tensor, golden: Tensor, layout: str | None = None, shape: tuple[int, ...] | None = None, name: str = "op"
) -> Pair:
    """An op's output and its benchmark tensor; `layout` and `shape` are what the graph tells of it."""
    aligned = align(npu, golden, Declared(layout, shape))
    return Pair(
        index=0, op_name=name, op_type="Add", npu_ops=(name,), golden_ops=(name,), slot="output:0", npu=npu,
        golden=golden, npu_plan=aligned.npu_plan, golden_plan=aligned.golden_plan, shape=aligned.shape,
        error_shape=golden.shape,
    )  # fmt: skip


def written_pair(folder: Path, npu: Array, golden: Array, layout: str = "ND", name: str = "op") -> Pair:
    """A pair whose files are written; its NPU side, of the same shape as the benchmark's, is stored in `layout`."""
    origin = "NHWC" if npu.ndim == 4 else "ND"
    benchmark = read_npy(str(write_golden(folder, name, 0, golden)))
    return aligned_pair(dumped(folder, OutTensor.packed(npu, layout, origin), name), benchmark, origin, npu.shape, name)


def edge(text: str) -> Edge:
    """`"producer:index"` as an edge."""
    producer, _, index = text.rpartition(":")
    return Edge(producer=producer, index=int(index))


def graph_op(
    name: str,
    op_type: str = "Add",
    inputs: Sequence[str] = (),
    *,
    input_descs: Sequence[TensorDesc] = (),
    output_descs: Sequence[TensorDesc] = (TensorDesc(dtype="float32", layout="ND"),),
    original_names: Sequence[str] | None = None,
    pass_names: Sequence[str] = (),
    id: int | None = None,
    attrs: Mapping[str, Any] | None = None,
    is_multiop: bool = False,
    kernel: bool = True,
) -> Op:
    """An op for `text_graph`; `inputs` are `"producer:index"`."""
    return Op(
        name=name,
        type=op_type,
        id=id,
        inputs=tuple(map(edge, inputs)),
        input_descs=tuple(input_descs),
        output_descs=tuple(output_descs),
        pass_names=tuple(pass_names),
        original_names=None if original_names is None else tuple(original_names),
        kernel_lib=AI_CORE if kernel else GE_LOCAL,
        is_multiop=is_multiop,
        attrs=dict(attrs or {}),
    )


def text_graph(ops: Sequence[Op], name: str = MODEL, attrs: Mapping[str, Any] | None = None) -> str:
    """The text of a graph file; ops without an id are numbered."""
    numbered = [op if op.id is not None else replace(op, id=number) for number, op in enumerate(ops)]
    return "".join(graph_text(Graph(name=name, ops=tuple(numbered), attrs=dict(attrs or {})), kernel_bytes=32))


def leaf_folder(root: Path, run: str = "debug_0") -> Path:
    """Return the folder of a run's dump files, as GE makes it."""
    return root / "npu" / run / "dump" / STAMP / "0" / MODEL / "1" / "0"


def graph_file(root: Path, run: str = "debug_0") -> Path:
    """Return the path of a run's compiled graph."""
    return root / "npu" / run / "graph" / graph_file_name(5, 1)


def write_graph(root: Path, ops: Sequence[Op], run: str = "debug_0") -> Path:
    """Write a run's compiled graph, making its folder."""
    path = graph_file(root, run)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text_graph(ops, attrs={"_session_graph_id": "0_1"}), encoding="ascii")
    return path


def tensor_desc(
    tensor: OutTensor | Array,
    origin: str | None = None,
    index: int = 0,
    *,
    origin_layout: str = "ND",
    origin_shape: tuple[int, ...] | None = None,
) -> TensorDesc:
    """Return a tensor as the graph describes it; `origin` is the op of the script whose output `index` it is."""
    stored = out_tensor(tensor)
    layout = stored.origin_layout or origin_layout
    return TensorDesc(
        dtype=stored.dtype_name, layout=stored.layout, shape=stored.storage_shape, origin_layout=layout,
        origin_shape=stored.origin_shape if origin_shape is None else origin_shape, dump_origin_name=origin,
        dump_origin_index=index if origin else None, dump_origin_layout=layout if origin else None,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OneOpTree:
    """Paths of a `precision_data` folder with one dumped op. `golden_path` is None if it was left out."""

    root: Path
    dump_dir: Path
    dump_path: Path
    graph_path: Path
    golden_dir: Path
    golden_path: Path | None


def one_op_tree(
    root: Path,
    *,
    output: OutTensor | Array,
    golden: Array | None = None,
    inputs: Sequence[OutTensor | Array] = (),
    input_goldens: Sequence[Array | None] = (),
    op_type: str = "Add",
    op_name: str = "block/add",
    layout: str = "ND",
    origin_layout: str = "ND",
    origin_shape: tuple[int, ...] | None = None,
    original_names: Sequence[str] | None = None,
    golden_name: str | None = None,
    golden_index: int = 0,
    pass_names: Sequence[str] = (),
    version: int = 2,
    run: str = "debug_0",
) -> OneOpTree:
    """A tree whose graph is a data source, one op and `NetOutput`, and in which only the op is dumped.

    `output` is the op's output in `origin_layout`, stored in `layout`; an `OutTensor` is stored as it is, and
    `origin_shape` then is the shape the graph tells. The op stands for `original_names` (itself, unless given) and its
    output for `golden_name:golden_index` (the last of them). Input i is output i of `IteratorGetNext`.
    """
    originals = (op_name,) if original_names is None else tuple(original_names)
    origin = golden_name or (originals[-1] if originals else None)
    reference = (origin, golden_index) if origin else None
    if isinstance(output, OutTensor):
        stored, shape = output, origin_shape or output.origin_shape
    else:
        stored = OutTensor.packed(output, layout, origin_layout, address=0x1240_8000_0000, original_op=reference)
        shape = origin_shape or output.shape
    feeds = [*map(out_tensor, inputs)]
    source_descs = [tensor_desc(feed, "IteratorGetNext", i) for i, feed in enumerate(feeds)]
    desc = tensor_desc(stored, origin, golden_index, origin_layout=origin_layout, origin_shape=shape)
    ops = [
        graph_op("IteratorV2", "IteratorV2", kernel=False),
        graph_op(
            "IteratorGetNext", "GetNext", ["IteratorV2:0"], output_descs=source_descs,
            original_names=["IteratorGetNext"], kernel=False,
        ),
        graph_op(
            op_name, op_type, [f"IteratorGetNext:{i}" for i in range(len(feeds))],
            input_descs=[*map(tensor_desc, feeds)], output_descs=[desc], original_names=originals,
            pass_names=pass_names,
        ),
        graph_op("NetOutput", "NetOutput", [f"{op_name}:0"], output_descs=(), kernel=False),
    ]  # fmt: skip
    dump_dir = leaf_folder(root, run)
    name = dump_file_name(op_type, op_name, 3, TIMESTAMP, stream_id=0)
    golden_dir = root / "tf" / "dump"
    golden_dir.mkdir(parents=True, exist_ok=True)
    for index, array in enumerate(input_goldens):
        if array is not None:
            write_golden(golden_dir, "IteratorGetNext", index, array)
    golden_path = None
    if golden is not None and origin is not None:
        golden_path = write_golden(golden_dir, origin, golden_index, golden)
    return OneOpTree(
        root=root,
        dump_dir=dump_dir,
        dump_path=write_dump(dump_dir / name, op_name, feeds, [stored], version),
        graph_path=write_graph(root, ops, run),
        golden_dir=golden_dir,
        golden_path=golden_path,
    )
