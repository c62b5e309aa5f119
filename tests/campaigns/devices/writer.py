"""Writes simulated runs as `precision_data` folders: dump files, the compiled graph and the benchmark's tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from builders import TIMESTAMP, graph_op, leaf_folder, tensor_desc, write_dump, write_golden, write_graph

from devices.compiler import Kernel
from devices.numerics import Array
from devices.script import VIEWS, Ref
from devices.simulation import Run
from precision_tool.lib.demo.dump_writer import OutTensor, dump_file_name
from precision_tool.lib.model.graph import Op


@dataclass(frozen=True, kw_only=True)
class Left:
    """What is left of a dump: without inputs, without some ops' files, without a benchmark."""

    inputs: bool = True
    benchmark: bool = True
    without: Collection[str] = ()


def write_tree(
    root: Path,
    kernels: Mapping[str, Kernel],
    run: Run,
    golden: Mapping[Ref, Array],
    left: Left = Left(),
    name: str = "debug_0",
) -> int:
    """Write a run and its benchmark below `root`/precision_data and return the number of dump files."""
    data = root / "precision_data"
    if left.benchmark:
        for (op, index), array in golden.items():
            write_golden(data / "tf" / "dump", op, index, array)
    axes = _axes(kernels, run)
    ops = [graph_op("IteratorV2", "IteratorV2", kernel=False)]
    count = 0
    for number, kernel in enumerate(kernels.values()):
        fed = [_stored(kernels, axes, ref, run.inputs[kernel.name, slot]) for slot, ref in enumerate(kernel.inputs)]
        refs = [(kernel.name, index) for index in range(len(kernel.dtypes))]
        made = [_stored(kernels, axes, ref, run.outputs[ref]) for ref in refs]
        ops.append(_graph_op(kernel, fed, made))
        if kernel.is_dumped and kernel.name not in left.without:
            file = dump_file_name(kernel.type, kernel.name, number, TIMESTAMP + 97 * number, stream_id=number % 3)
            write_dump(leaf_folder(data, name) / file, kernel.name, fed if left.inputs else [], made)
            count += 1
    last = list(kernels)[-1]
    ops.append(graph_op("NetOutput", "NetOutput", [f"{last}:0"], output_descs=(), kernel=False))
    write_graph(data, ops, name)
    return count


def _axes(kernels: Mapping[str, Kernel], run: Run) -> dict[Ref, str]:
    """The layout of each tensor's axes: filters, images, and all else."""
    axes: dict[Ref, str] = {}
    for kernel in kernels.values():
        for index in range(len(kernel.dtypes)):
            ref = kernel.name, index
            inserted = kernel.originals == ()
            if inserted:
                axes[ref] = axes[kernel.inputs[0]]
            elif run.outputs[ref].ndim != 4:
                axes[ref] = "ND"
            else:
                is_filter = kernel.type in ("Variable", "Conv2DBackpropFilter") or kernel.type.startswith("Apply")
                axes[ref] = "HWCN" if is_filter else "NHWC" if kernel.layouts or _is_image(kernels, kernel) else "ND"
    for kernel in kernels.values():  # the update's arithmetic on a filter's gradient
        if kernel.name.startswith("unscale/mul") and kernel.inputs:
            axes[kernel.name, 0] = axes[kernel.inputs[0]]
    return axes


def _is_image(kernels: Mapping[str, Kernel], kernel: Kernel) -> bool:
    return any(k.type == "Conv2D" for k in kernels.values()) and kernel.type not in ("UnsortedSegmentSumD",)


def _stored(kernels: Mapping[str, Kernel], axes: Mapping[Ref, str], ref: Ref, array: Array) -> OutTensor:
    layout = kernels[ref[0]].layouts.get(ref[1])
    # Every tensor has memory of its own.
    address = 0x1000_0000 + 0x10_0000 * (list(kernels).index(ref[0]) * 8 + ref[1])
    if layout:
        return OutTensor.packed(array, layout, axes[ref], address=address)
    plain = axes[ref]
    return OutTensor(data=array, layout=plain, origin_shape=array.shape, origin_layout=plain, address=address)


def _graph_op(kernel: Kernel, fed: list[OutTensor], made: list[OutTensor]) -> Op:
    edges = [f"{name}:{index}" for name, index in kernel.inputs]
    if kernel.type == "GetNext":
        edges = ["IteratorV2:0"]
    descs = [tensor_desc(tensor, *(origin or (None, 0))) for tensor, origin in zip(made, kernel.origins, strict=True)]
    attrs = {key: _attr(value) for key, value in kernel.attrs.items() if kernel.type not in VIEWS}
    return graph_op(
        kernel.name, kernel.type, edges, input_descs=[tensor_desc(tensor) for tensor in fed], output_descs=descs,
        original_names=kernel.originals, pass_names=kernel.passes, attrs=attrs,
        kernel=bool(kernel.stages) and kernel.type not in VIEWS,
    )  # fmt: skip


def _attr(value: object) -> object:
    """A value as the graph writer takes it: lists with the type of their elements."""
    if isinstance(value, list):
        if value and isinstance(value[0], list):  # paddings: the writer of graphs has no lists of lists
            return int, tuple(number for row in value for number in row)
        return int, tuple(int(number) for number in value)
    return value
