"""A data folder of a real network: what TensorFlow 1.15 computed in one training step, and an NPU run made of it.

tests/data/real_step.tar.xz has the step twice, from the same weights: in float32, which is the benchmark, and in
float16 with variables in float32, where an output of conv2 is what a faulty kernel might give: scripts/real_step.py.
The NPU run has the values of the second, as GE would have compiled it: convolutions with bias and activation fused,
images in NC1HWC0, filters in FRACTAL_Z, casts and layout changes as ops of the compiler.
"""

from __future__ import annotations

import json
import re
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from builders import TIMESTAMP, graph_op, leaf_folder, write_dump, write_graph

from precision_tool.lib.compare.arrays import TensorProxy
from precision_tool.lib.data.dump_names import flatten
from precision_tool.lib.data.dump_tree import find_benchmark
from precision_tool.lib.demo.dump_writer import OutTensor, dump_file_name
from precision_tool.lib.io.layouts import as_stored
from precision_tool.lib.io.readers import read_tensor_event
from precision_tool.lib.model.graph import Op, TensorDesc

ARCHIVE = Path(__file__).parents[1] / "data" / "real_step.tar.xz"
#: The op of the script that computes wrong, and the fused op that does its work.
FAULTY_ORIGINAL = "conv2/Relu"
FUSED = {"conv1/Relu": "conv1", "conv2/Relu": "conv2"}
CULPRIT = "conv2/Conv2Dconv2/BiasAddconv2/Relu"
PASS = "TbeConvDequantVaddReluQuantFusionPass"

_GE_TYPES = {"VariableV2": "Variable", "Placeholder": "Data"}
#: What GE removes: the reader gets what these are given.
_PASSED_ON = {"Identity", "PreventGradient"}
_NOT_DUMPED = {"Variable", "Const", "Data"}
_BLOCKED = {"HWCN": "FRACTAL_Z", "NHWC": "NC1HWC0"}
Array = npt.NDArray[Any]


def unpack(folder: Path) -> None:
    """The archive: the runs `benchmark` and `device`, and the ops of both."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")


def tensors_of(run: Path) -> dict[str, Array]:
    """What a run of tfdbg dumped, by `op:output` with the names of the files, `/` and `.` as `_`."""
    found = {}
    for (name, index), file in find_benchmark(str(run)).files.items():
        tensor = read_tensor_event(file.path)
        fed = re.fullmatch(r"_arg_(\w+?)_\d+_\d+", name)
        key = f"{fed[1]}:0" if fed else f"{name}:{index}"
        found[key] = np.asarray(TensorProxy(name, "", tensor, as_stored(tensor)))
    return found


@dataclass
class _Placed:
    """A tensor on the NPU: the op and output that has it, its values, and what it is stored as."""

    op: str
    index: int
    stored: OutTensor
    desc: TensorDesc


@dataclass
class _Compiler:
    """Makes GE's ops and their dump files of the script's ops, one after the other."""

    leaf: Path
    values: dict[str, Array]
    ops: list[Op] = field(default_factory=list)
    placed: dict[str, _Placed] = field(default_factory=dict)
    copies: dict[tuple[str, str], _Placed] = field(default_factory=dict)
    filters: set[str] = field(default_factory=set)

    def value(self, tensor: str) -> Array:
        """What TensorFlow dumped of `op:output`."""
        return self.values[flatten(tensor)]

    def has(self, tensor: str) -> bool:
        return flatten(tensor) in self.values

    def origin_layout(self, tensor: str, value: Array) -> str:
        """What the axes of a tensor of the script mean."""
        return "ND" if value.ndim != 4 else "HWCN" if tensor in self.filters else "NHWC"

    def make(
        self, name: str, op_type: str, inputs: list[_Placed], outputs: list[tuple[str, Array, str]],
        originals: tuple[str, ...], attributes: dict[str, Any] | None = None,
    ) -> list[_Placed]:  # fmt: skip
        """An op; each output is a tensor of the script, its values and layout."""
        made = []
        for index, (tensor, value, layout) in enumerate(outputs):
            origin = self.origin_layout(tensor, value)
            original, _, slot = tensor.rpartition(":") if originals else (None, "", "0")
            stored = OutTensor.packed(value, layout, origin)
            desc = TensorDesc(
                dtype=value.dtype.name, layout=layout, shape=stored.storage_shape, origin_layout=origin,
                origin_shape=value.shape, dump_origin_name=original,
                dump_origin_index=int(slot), dump_origin_layout=origin,
            )  # fmt: skip
            made.append(_Placed(name, index, stored, desc))
        number = len(self.ops)
        self.ops.append(
            graph_op(
                name,
                op_type,
                [f"{one.op}:{one.index}" for one in inputs],
                input_descs=[one.desc for one in inputs],
                output_descs=[one.desc for one in made],
                original_names=originals,
                pass_names=(PASS,) * (len(originals) > 1),
                id=number,
                attrs=attributes,
            )
        )
        if op_type not in _NOT_DUMPED:
            path = self.leaf / dump_file_name(op_type, name, number, TIMESTAMP + number, stream_id=0)
            write_dump(path, name, [one.stored for one in inputs], [one.stored for one in made])
        return made

    def copy(self, tensor: str, layout: str) -> _Placed:
        """A tensor of the script in a layout; behind a TransData where it is not stored so."""
        found = self.placed[tensor]
        if found.stored.layout == layout:
            return found
        key = (tensor, layout)
        if key not in self.copies:
            number = sum(op.type == "TransData" for op in self.ops)
            output = (tensor, self.value(tensor), layout)
            (self.copies[key],) = self.make(f"trans_TransData_{number}", "TransData", [found], [output], ())
        return self.copies[key]

    def add(
        self, name: str, op_type: str, inputs: list[str], outputs: list[str], originals: tuple[str, ...],
        attributes: dict[str, Any],
    ) -> None:  # fmt: skip
        """An op of the script, one that the compiler put in, or a fused one with the output of its last original."""
        is_plain = op_type in _NOT_DUMPED or op_type in ("Cast", "Reshape", "ApplyMomentum", "BiasAddGrad", "ShapeN")

        def layout(tensor: str) -> str:
            origin = self.origin_layout(tensor, self.value(tensor))
            return origin if is_plain else _BLOCKED.get(origin, origin)

        fed = [self.copy(tensor, layout(tensor)) for tensor in inputs]
        made = [(tensor, self.value(tensor), layout(tensor)) for tensor in outputs]
        placed = self.make(name, op_type, fed, made, originals, attributes)
        self.placed.update(zip(outputs, placed, strict=True))


def _attributes(found: dict[str, Any]) -> dict[str, Any]:
    """The attributes of an op as the writer of graphs takes them."""
    return {name: (int, value) if isinstance(value, list) else value for name, value in found.items()}


def real_tree(root: Path, unpacked: Path) -> None:
    """Makes a data folder; the archive is unpacked into another folder."""
    unpack(unpacked)
    values = tensors_of(unpacked / "device")
    values[f"{flatten(FAULTY_ORIGINAL)}:0"] = np.load(unpacked / "device_fed.npy")
    run = next((unpacked / "benchmark").glob("run_*"))
    (root / "tf" / "tf_debug").mkdir(parents=True)
    run.rename(root / "tf" / "tf_debug" / run.name)
    compiler = _Compiler(leaf_folder(root), values)
    script = {op["name"]: op for op in json.loads((unpacked / "device.json").read_text("ascii"))}
    in_benchmark = {op["name"] for op in json.loads((unpacked / "benchmark.json").read_text("ascii"))}
    inner = {f"{scope}/{part}" for scope in FUSED.values() for part in ("Conv2D", "BiasAdd")}
    compiler.filters = {f"{name}:0" for name in script if "kernel" in name or "BackpropFilter" in name}
    given: dict[str, str] = {}
    for name, op in script.items():
        outputs = [f"{name}:{index}" for index in range(len(op["outputs"]))]
        inputs = [given.get(one, one) for one in op["inputs"]]
        if op["type"] in _PASSED_ON:
            given[outputs[0]] = inputs[0]
        elif name in FUSED:
            conv, bias = (script[f"{FUSED[name]}/{part}"] for part in ("Conv2D", "BiasAdd"))
            inputs = [given.get(one, one) for one in (*conv["inputs"], bias["inputs"][1])]
            originals = (conv["name"], bias["name"], name)
            compiler.add("".join(originals), "Conv2D", inputs, outputs, originals, _attributes(conv["attributes"]))
        elif outputs and name not in inner and all(map(compiler.has, outputs)):
            inserted = op["type"] == "Cast" and name not in in_benchmark
            number = sum(one.type == "Cast" for one in compiler.ops)
            compiler.add(
                f"trans_Cast_{number}" if inserted else name,
                _GE_TYPES.get(op["type"], op["type"]),
                inputs,
                outputs,
                () if inserted else (name,),
                _attributes(op["attributes"]),
            )
    data_source = graph_op("IteratorV2", "IteratorV2", output_descs=[], id=len(compiler.ops), kernel=False)
    write_graph(root, [*compiler.ops, data_source])
