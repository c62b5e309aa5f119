"""A data folder of the size and shape of one training step of ResNet-50: its ops, its tensors, random values.

Forward ops in mixed precision (float16 in NC1HWC0, filters in FRACTAL_Z), gradients and variables in float32,
statistics of batch normalisation as small vectors, an update for each variable. Each benchmark tensor holds its own
part of a pool of random numbers, and the device the same numbers with errors as of its rounding; nothing is computed,
so a verdict on it means nothing. `scripts/bench resnet` measures on it.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.demo.dump_writer import (
    OutTensor,
    dump_file_name,
    golden_file_name,
    pack,
    write_dump,
    write_golden,
)
from precision_tool.lib.demo.graph_writer import GE_LOCAL, graph_file_name, write_graph
from precision_tool.lib.model.graph import Edge, Graph, Op, TensorDesc

#: (convolutions' channels, of the block's output, blocks, stride of the first) of the four stages.
_STAGES = ((64, 256, 3, 1), (128, 512, 4, 2), (256, 1024, 6, 2), (512, 2048, 3, 2))
_IMAGE, _CLASSES = 224, 1000
_STAMP = "20260302093000"
_MODEL = f"ge_default_{_STAMP}_1"
_CLOCK = 1772443800000000
_POOL = 1 << 22
#: What a float32 result of the device is off by, relative: it multiplied in float16.
_ERROR = 2.0**-12


@dataclass(frozen=True, kw_only=True)
class Value:
    """An output of an op: how the device stores it, and which tensor of the training script it is ("" for none)."""

    op: str
    index: int
    shape: tuple[int, ...]
    dtype: str
    layout: str
    origin_layout: str
    golden: str
    golden_index: int
    #: The `key` of the tensor whose values it holds, if they are not its own.
    same_as: str = ""

    @property
    def key(self) -> str:
        """What makes its values its own."""
        own = f"{self.golden}:{self.golden_index}" if self.golden else f"{self.op}:{self.index}:device"
        return self.same_as or own


@dataclass(frozen=True, kw_only=True)
class Twin:
    """What was written."""

    dump_dir: Path
    golden_dir: Path
    graph_path: Path
    dump_files: int
    golden_files: int
    tensors: int
    npu_bytes: int
    golden_bytes: int


@dataclass
class _Step:
    """Takes the ops of the step in execution order and writes their files; without a folder it only counts."""

    folder: Path | None
    dumps: Path = field(init=False)
    goldens: Path = field(init=False)
    ops: list[Op] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    dump_files: int = 0
    tensors: int = 0
    npu_bytes: int = 0
    golden_bytes: int = 0

    def __post_init__(self) -> None:
        root = self.folder or Path()
        self.dumps = root / "npu/debug_0/dump" / _STAMP / "0" / _MODEL / "1/0"
        self.goldens = root / "tf/dump"
        if self.folder is not None:
            self.dumps.mkdir(parents=True)
            self.goldens.mkdir(parents=True)
            (root / "npu/debug_0/graph").mkdir()
            rng = np.random.default_rng(1)
            self.pool = rng.standard_normal(_POOL).astype(np.float32)
            self.errors = (1 + _ERROR * rng.standard_normal(_POOL)).astype(np.float32)

    def op(
        self,
        op_type: str,
        name: str,
        inputs: Sequence[Value],
        outputs: Sequence[tuple[Sequence[int], str, str, str]],
        *,
        golden: str | None = None,
        first: int = 0,
        same_as: str = "",
        dumped: bool = True,
    ) -> list[Value]:
        """An op. Each output: logical shape, type, layout, origin layout. Its golden tensor is `golden`, the output
        of the script's op from index `first` on: that of the same name, if None; "" for none. `same_as`: the key of the
        tensor whose values they hold.
        """
        origin = name if golden is None else golden
        values = [
            Value(
                op=name, index=index, shape=tuple(shape), dtype=dtype, layout=layout, origin_layout=origin_layout,
                golden=origin, golden_index=first + index, same_as=same_as,
            )
            for index, (shape, dtype, layout, origin_layout) in enumerate(outputs)
        ]  # fmt: skip
        self.ops.append(
            Op(
                name=name,
                type=op_type,
                id=len(self.ops),
                inputs=tuple(Edge(producer=value.op, index=value.index) for value in inputs),
                input_descs=tuple(_described(value, is_input=True) for value in inputs),
                output_descs=tuple(_described(value) for value in values),
                original_names=(origin,) if origin else (),
                kernel_lib="AIcoreEngine" if dumped else GE_LOCAL,
            )
        )
        for value in values:
            self._write_golden(value)
        if dumped:
            self._write_dump(op_type, name, inputs, values)
        return values

    def variable(self, name: str, shape: Sequence[int], layout: str = "ND") -> Value:
        """A trained parameter: in the graph, not dumped."""
        return self.op("Variable", name, (), [(shape, "float32", layout, layout)], dumped=False)[0]

    def golden(self, name: str, shape: Sequence[int]) -> None:
        """A tensor of the script that no op of the device has."""
        self._write_golden(
            Value(
                op=name, index=0, shape=tuple(shape), dtype="float32", layout="ND", origin_layout="ND", golden=name,
                golden_index=0,
            )
        )  # fmt: skip

    def _write_golden(self, value: Value) -> None:
        if not value.golden or value.key in self.known:
            return
        self.known.add(value.key)
        self.golden_bytes += 4 * math.prod(value.shape)
        if self.folder is not None:
            name = golden_file_name(value.golden, value.golden_index, _CLOCK + len(self.known))
            write_golden(self.goldens / name, self._values(value))

    def _write_dump(self, op_type: str, name: str, inputs: Sequence[Value], outputs: Sequence[Value]) -> None:
        for value in (*inputs, *outputs):
            self.npu_bytes += math.prod(_stored_shape(value)) * np.dtype(value.dtype).itemsize
        self.tensors += len(inputs) + len(outputs)
        if self.folder is not None:
            clock = _CLOCK + 1000 * self.dump_files
            path = self.dumps / dump_file_name(op_type, name, self.dump_files, clock, stream_id=1)
            write_dump(path, name, [*map(self._stored, inputs)], [*map(self._stored, outputs)], dump_time=clock)
        self.dump_files += 1

    def _values(self, value: Value) -> npt.NDArray[np.float32]:
        start = zlib.crc32(value.key.encode()) % (_POOL // 2)
        return np.resize(self.pool[start:], value.shape)

    def _stored(self, value: Value) -> OutTensor:
        values: npt.NDArray[Any] = self._values(value)
        if value.dtype == "float32":
            values = values * np.resize(self.errors, value.shape)
        stored = pack(np.asarray(values, value.dtype), value.layout, value.origin_layout)
        origin = (value.golden, value.golden_index) if value.golden else None
        return OutTensor(
            data=stored, layout=value.layout, origin_shape=value.shape, origin_layout=value.origin_layout,
            original_op=origin,
        )  # fmt: skip


def _stored_shape(value: Value) -> tuple[int, ...]:
    """The shape that `pack` gives, without any values."""
    blocks = {axis: -(-extent // 16) for axis, extent in enumerate(value.shape)}
    if value.layout == "NC1HWC0":
        n, h, w, _ = value.shape
        return n, blocks[3], h, w, 16
    if value.layout == "FRACTAL_Z":
        h, w, _, _ = value.shape
        return blocks[2] * h * w, blocks[3], 16, 16
    return value.shape


def _described(value: Value, is_input: bool = False) -> TensorDesc:
    """Only outputs say which tensor of the script they are."""
    named = bool(value.golden) and not is_input
    return TensorDesc(
        dtype=value.dtype,
        layout=value.layout,
        shape=_stored_shape(value),
        origin_layout=value.origin_layout,
        origin_shape=value.shape,
        dump_origin_name=value.golden if named else None,
        dump_origin_index=value.golden_index if named else None,
        dump_origin_layout=value.origin_layout if named else None,
    )


def _image(shape: Sequence[int]) -> tuple[Sequence[int], str, str, str]:
    return shape, "float16", "NC1HWC0", "NHWC"


def _gradient(shape: Sequence[int]) -> tuple[Sequence[int], str, str, str]:
    return shape, "float32", "NC1HWC0", "NHWC"


def _vector(size: int) -> tuple[Sequence[int], str, str, str]:
    return (size,), "float32", "ND", "ND"


@dataclass(frozen=True, kw_only=True)
class _Conv:
    """What the way back needs of a convolution with its batch normalisation."""

    name: str
    x: Value
    kernel: Value
    device_kernel: Value
    y: Value
    scale: Value
    offset: Value
    statistics: list[Value]
    normal: Value
    relu: Value | None


class _Network:
    """ResNet-50 forward, back and the updates, on `batch` images."""

    def __init__(self, step: _Step, batch: int) -> None:
        self.step = step
        self.batch = batch

    def run(self) -> None:
        """The whole step."""
        step, batch = self.step, self.batch
        image = step.op("Data", "images", (), [_image((batch, _IMAGE, _IMAGE, 3))], dumped=False)[0]
        stem = self.conv("resnet/conv1", image, 7, 64, 2, relu=True)
        assert stem.relu is not None
        side = _IMAGE // 4
        (x,) = step.op("MaxPool", "resnet/pool1/MaxPool", [stem.relu], [_image((batch, side, side, 64))])
        blocks = []
        for number, (width, out, count, stride) in enumerate(_STAGES, start=2):
            for part in range(count):
                block = self.block(f"resnet/block{number}_{part}", x, width, out, stride if part == 0 else 1, part == 0)
                blocks.append(block)
                x = block[-1]
        gradient = self.head(x)
        for convs, shortcut, added, relu in reversed(blocks):
            gradient = self.block_back(convs, shortcut, added, relu, gradient)
        pooled = stem.relu
        (gradient,) = step.op(
            "MaxPoolGrad", "gradients/pool1_grad/MaxPoolGrad", [pooled, x, gradient], [_gradient(pooled.shape)]
        )
        self.conv_back(stem, gradient, is_first=True)
        step.op("NetOutput", "NetOutput", (), (), golden="", dumped=False)

    def conv(self, name: str, x: Value, size: int, out: int, stride: int, *, relu: bool) -> _Conv:
        """Convolution, batch normalisation and, if asked for, Relu."""
        step = self.step
        n, h, w, channels = x.shape
        shape = (n, -(-h // stride), -(-w // stride), out)
        kernel = step.variable(f"{name}/kernel", (size, size, channels, out), "HWCN")
        step.golden(f"{name}/kernel/read", kernel.shape)
        (half,) = step.op("Cast", f"{name}/Cast", [kernel], [(kernel.shape, "float16", "HWCN", "HWCN")])
        device = step.op(
            "TransData",
            f"{name}/trans_kernel",
            [half],
            [(kernel.shape, "float16", "FRACTAL_Z", "HWCN")],
            golden="",
            same_as=half.key,
        )[0]
        (y,) = step.op("Conv2D", f"{name}/Conv2D", [x, device], [_image(shape)])
        sums = step.op("BNTrainingReduce", f"{name}/bn/reduce", [y], [_vector(out)] * 2, golden="")
        scale, offset, mean, variance = (
            step.variable(f"{name}/bn/{kind}", (out,)) for kind in ("gamma", "beta", "moving_mean", "moving_variance")
        )
        normal, *statistics = step.op(
            "BNTrainingUpdate", f"{name}/bn/FusedBatchNormV3", [y, *sums, scale, offset],
            [_image(shape), *[_vector(out)] * 4],
        )  # fmt: skip
        for value, kind in ((mean, "mean"), (variance, "variance")):
            step.op("AssignSub", f"{name}/bn/Assign_{kind}", [value, statistics[0]], [_vector(out)])
        activation = step.op("Relu", f"{name}/Relu", [normal], [_image(shape)])[0] if relu else None
        return _Conv(
            name=name, x=x, kernel=kernel, device_kernel=device, y=y, scale=scale, offset=offset,
            statistics=statistics[2:], normal=normal, relu=activation,
        )  # fmt: skip

    def block(
        self, name: str, x: Value, width: int, out: int, stride: int, is_first: bool
    ) -> tuple[list[_Conv], _Conv | None, Value, Value]:
        """Three convolutions beside a shortcut."""
        first = self.conv(f"{name}/a", x, 1, width, 1, relu=True)
        assert first.relu is not None
        second = self.conv(f"{name}/b", first.relu, 3, width, stride, relu=True)
        assert second.relu is not None
        third = self.conv(f"{name}/c", second.relu, 1, out, 1, relu=False)
        shortcut = self.conv(f"{name}/shortcut", x, 1, out, stride, relu=False) if is_first else None
        identity = shortcut.normal if shortcut else x
        shape = _image(third.normal.shape)
        (added,) = self.step.op("Add", f"{name}/add", [third.normal, identity], [shape])
        (relu,) = self.step.op("Relu", f"{name}/Relu", [added], [shape])
        return [first, second, third], shortcut, added, relu

    def head(self, x: Value) -> Value:
        """Mean, dense layer and loss; gives the gradient of `x`."""
        step, n, channels = self.step, self.batch, x.shape[-1]
        half, plain = "float16", ("ND", "ND")
        (mean,) = step.op("ReduceMeanD", "resnet/Mean", [x], [((n, channels), half, *plain)])
        weights = step.variable("resnet/fc/kernel", (channels, _CLASSES))
        bias = step.variable("resnet/fc/bias", (_CLASSES,))
        (cast,) = step.op("Cast", "resnet/fc/Cast", [weights], [((channels, _CLASSES), half, *plain)])
        (logits,) = step.op("MatMulV2", "resnet/fc/MatMul", [mean, cast], [((n, _CLASSES), half, *plain)])
        (logits,) = step.op("BiasAdd", "resnet/fc/BiasAdd", [logits, bias], [((n, _CLASSES), half, *plain)])
        labels = step.op("Data", "labels", (), [((n, _CLASSES), "float32", *plain)], dumped=False)[0]
        loss, gradient = step.op(
            "SoftmaxCrossEntropyWithLogits", "cross_entropy", [logits, labels],
            [_vector(n), ((n, _CLASSES), half, *plain)],
        )  # fmt: skip
        step.op("ReduceMeanD", "loss", [loss], [((), "float32", *plain)])
        (of_bias,) = step.op("BiasAddGrad", "gradients/fc/BiasAddGrad", [gradient], [_vector(_CLASSES)])
        (of_weights,) = step.op(
            "MatMulV2", "gradients/fc/MatMul_1", [mean, gradient], [((channels, _CLASSES), "float32", *plain)]
        )
        (of_mean,) = step.op("MatMulV2", "gradients/fc/MatMul", [gradient, cast], [((n, channels), half, *plain)])
        self.update(weights, of_weights)
        self.update(bias, of_bias)
        return step.op("BroadcastToD", "gradients/Mean_grad/BroadcastTo", [of_mean], [_gradient(x.shape)])[0]

    def block_back(
        self, convs: list[_Conv], shortcut: _Conv | None, added: Value, relu: Value, gradient: Value
    ) -> Value:
        """The gradient of a block's input."""
        name = added.op.removesuffix("/add")
        (gradient,) = self.step.op(
            "ReluGrad", f"gradients/{name}/Relu_grad/ReluGrad", [gradient, relu], [_gradient(relu.shape)]
        )
        identity = self.conv_back(shortcut, gradient) if shortcut else gradient
        for conv in reversed(convs):
            gradient = self.conv_back(conv, gradient)
        return self.step.op("AddN", f"gradients/{name}/AddN", [gradient, identity], [_gradient(gradient.shape)])[0]

    def conv_back(self, conv: _Conv, gradient: Value, is_first: bool = False) -> Value:
        """The gradient of a convolution's input, and the updates of its variables."""
        step, name, out = self.step, f"gradients/{conv.name}", conv.y.shape[-1]
        if conv.relu is not None:
            (gradient,) = step.op(
                "ReluGrad", f"{name}/Relu_grad/ReluGrad", [gradient, conv.relu], [_gradient(conv.relu.shape)]
            )
        normal = f"{name}/bn/FusedBatchNormGradV3"
        of_scale, of_offset = step.op(
            "BNTrainingUpdateGrad", f"{name}/bn/update_grad", [gradient, conv.y, *conv.statistics], [_vector(out)] * 2,
            golden=normal, first=1,
        )  # fmt: skip
        (gradient,) = step.op(
            "BNTrainingReduceGrad", normal,
            [gradient, conv.y, of_scale, of_offset, conv.scale, *conv.statistics], [_gradient(conv.y.shape)],
        )  # fmt: skip
        (of_kernel,) = step.op(
            "Conv2DBackpropFilterD", f"{name}/Conv2DBackpropFilter", [conv.x, gradient],
            [(conv.kernel.shape, "float32", "FRACTAL_Z", "HWCN")],
        )  # fmt: skip
        self.update(conv.kernel, of_kernel)
        self.update(conv.scale, of_scale)
        self.update(conv.offset, of_offset)
        if is_first:
            return gradient
        return step.op(
            "Conv2DBackpropInputD", f"{name}/Conv2DBackpropInput", [conv.device_kernel, gradient],
            [_gradient(conv.x.shape)],
        )[0]  # fmt: skip

    def update(self, variable: Value, gradient: Value) -> None:
        """A step of momentum."""
        sum_of = self.step.variable(f"{variable.op}/Momentum", variable.shape, variable.layout)
        self.step.op(
            "ApplyMomentum", f"Momentum/update_{variable.op}/ApplyMomentum",
            [variable, sum_of, gradient],
            [(variable.shape, "float32", variable.layout, variable.origin_layout)],
        )  # fmt: skip


def generate_twin(folder: Path, nbytes: int = 6_350_000_000) -> Twin:
    """Writes the step below a folder that is not there yet, on as many images as come next to so many bytes."""
    single, double = (_counted(batch) for batch in (1, 2))
    batch = max(1, round(1 + (nbytes - single) / (double - single)))
    step = _Step(folder)
    _Network(step, batch).run()
    path = folder / "npu/debug_0/graph" / graph_file_name(7, 1)
    write_graph(path, Graph(name=_MODEL, ops=tuple(step.ops), attrs={"_session_graph_id": "0_1"}))
    return Twin(
        dump_dir=step.dumps, golden_dir=step.goldens, graph_path=path, dump_files=step.dump_files,
        golden_files=len(step.known), tensors=step.tensors, npu_bytes=step.npu_bytes, golden_bytes=step.golden_bytes,
    )  # fmt: skip


def _counted(batch: int) -> int:
    step = _Step(None)
    _Network(step, batch).run()
    return step.npu_bytes + step.golden_bytes
