"""A training step of a small network as the PyTorch 1.5 dumper writes it: `.h5` of an NPU and of a GPU.

Both are computed for real: the NPU's with half precision between the ops, the GPU's with float32. The last channels of
the gradient of the convolution's weight are lost on the NPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.io.hdf5_process import h5py_module
from precision_tool.lib.model.pytorch import SCALAR_TYPES, Device

Array = npt.NDArray[Any]

#: Images, their size, channels in and out, and classes.
_BATCH, _SIZE, _IN, _OUT, _CLASSES = 8, 12, 3, 24, 10
#: Channels of which the NPU loses the gradient.
_LOST = 8
_EPSILON = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class PytorchTruth:
    """Contents of a PyTorch demo and the fault in it."""

    npu: Path
    golden: Path
    ops: int
    tensors: int
    culprit: str


@dataclass
class _Recorder:
    """Ops in the order they run, under the names of one device."""

    device: Device
    names: dict[str, str]
    keep: Callable[[Array], Array]
    ops: list[tuple[str, dict[str, Array], dict[str, Any]]] = field(default_factory=list)

    def op(self, name: str, tensors: dict[str, Array], parameters: dict[str, Any] | None = None) -> dict[str, Array]:
        """Notes an op; what it gives is kept in the device's precision."""
        recorded = {key: self.keep(array) for key, array in tensors.items()}
        self.ops.append((self.names.get(name, name), recorded, parameters or {}))
        return recorded

    def write(self, path: Path) -> int:
        """Write the file and return the number of tensors."""
        h5py = h5py_module(str(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        codes = {name: code for code, name in SCALAR_TYPES.items()}
        kinds = {"f2": "Half", "f4": "Float", "i8": "Long", "b1": "Bool", "f8": "Double"}
        count = 0
        with h5py.File(str(path), "w") as file:
            for seq, (op_type, tensors, parameters) in enumerate(self.ops, 1):
                for name, array in tensors.items():
                    logical = np.asarray(array)
                    strides = tuple(step // logical.itemsize for step in logical.strides)
                    # A GPU's tensor is written as it lies in memory; the strides tell the order.
                    memory = np.ravel(logical, order="K").reshape(logical.shape)
                    if self.device is Device.NPU:
                        memory, strides = np.array(logical, order="C"), _dense(logical.shape)
                    dataset = file.create_dataset(f"/{op_type}/{seq}/{name}", data=memory)
                    dataset.attrs["Type"] = 0
                    dataset.attrs["DataType"] = codes[kinds[logical.dtype.str[1:]]]
                    dataset.attrs["DeviceType"] = int(self.device)
                    dataset.attrs["FormatType"] = 2
                    dataset.attrs["Stride"] = np.array(strides, np.int64)
                    count += 1
                for name, value in parameters.items():
                    dataset = file.create_dataset(f"/{op_type}/{seq}/{name}", data=value)
                    dataset.attrs["Type"] = 2 if np.ndim(value) else 5
        return count


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))


def generate_pytorch(root: Path, *, seed: int = 1, fault: bool = True) -> PytorchTruth:
    """Write the dumps of a PyTorch training step, `pt/npu` and `pt/gpu` below a data folder, and return their truth.

    Parameters
    ----------
    root : Path
        The data folder; it is made if missing.
    seed : int
        Seed of all random numbers.
    fault : bool
        Let the NPU compute the gradient of a convolution wrong.
    """
    golden = _Recorder(
        Device.GPU,
        {
            "Convolution": "CudnnConvolution",
            "BatchNorm": "CudnnBatchNorm",
            "BatchNormBackward": "CudnnBatchNormBackward",
            "ConvolutionBackward": "CudnnConvolutionBackward",
        },
        lambda array: array,
    )
    npu = _Recorder(
        Device.NPU,
        {
            "Convolution": "NpuConvolution",
            "BatchNorm": "NativeBatchNorm",
            "BatchNormBackward": "NativeBatchNormBackward",
            "ConvolutionBackward": "NpuConvolutionBackward",
        },
        lambda array: array.astype(np.float16).astype(np.float32) if array.dtype == np.float32 else array,
    )
    for recorder in (golden, npu):
        _train_step(recorder, np.random.default_rng(seed), fault=fault and recorder is npu)
    places = [root / "pt" / folder / "20210615_093000.123456.h5" for folder in ("npu", "gpu")]
    tensors = npu.write(places[0])
    golden.write(places[1])
    culprit = f"/NpuConvolutionBackward/{len(npu.ops)}" if fault else ""
    return PytorchTruth(npu=places[0], golden=places[1], ops=len(npu.ops), tensors=tensors, culprit=culprit)


def _train_step(record: _Recorder, rng: np.random.Generator, *, fault: bool) -> None:
    """Forward and backward of convolution, batch norm, relu, linear and loss."""
    done = _forward(record, rng)
    grad = _loss_backward(record, done)
    _layers_backward(record, done, grad, fault=fault)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forward:
    """Results of the forward pass for the backward pass: `flat` is `relu` as a matrix, `scale` the batch norm's."""

    image: Array
    windows: Array
    weight: Array
    gamma: Array
    conv: Array
    scale: Array
    normal: Array
    relu: Array
    flat: Array
    linear: Array
    logs: Array
    target: Array


def _epsilon(record: _Recorder) -> str:
    """Return the attribute name of a batch norm's epsilon on the device."""
    return "input/epsilon" if record.device is Device.GPU else "input/eps"


def _forward(record: _Recorder, rng: np.random.Generator) -> _Forward:
    image = rng.normal(size=(_BATCH, _IN, _SIZE, _SIZE)).astype(np.float32)
    weight = (rng.normal(size=(_OUT, _IN, 3, 3)) / 5).astype(np.float32)
    place = _SIZE - 2
    linear = (rng.normal(size=(_CLASSES, _OUT * place * place)) / 40).astype(np.float32)
    bias = (rng.normal(size=_CLASSES) / 10).astype(np.float32)
    gamma, beta = np.ones(_OUT, np.float32), np.zeros(_OUT, np.float32)
    target = rng.integers(0, _CLASSES, _BATCH)

    windows = np.lib.stride_tricks.sliding_window_view(record.keep(image), (3, 3), (2, 3))
    done = record.op(
        "Convolution",
        {
            "input/self" if record.device is Device.GPU else "input/input": image,
            "input/weight": weight,
            "output/result": np.einsum("nchwij,ocij->nohw", windows, record.keep(weight), optimize=True),
        },
        {"input/padding": np.zeros(2, np.int64), "input/stride": np.ones(2, np.int64)},
    )
    conv, weight_kept = done["output/result"], done["input/weight"]
    mean, variance = conv.mean((0, 2, 3), keepdims=True), conv.var((0, 2, 3), keepdims=True)
    scale = 1 / np.sqrt(variance + _EPSILON)
    normal = (conv - mean) * scale
    normal = record.op(
        "BatchNorm",
        {"input/input": conv, "input/weight": gamma, "input/bias": beta, "output/result0": normal},
        {_epsilon(record): _EPSILON},
    )["output/result0"]
    relu = record.op("Relu", {"input/self": normal, "output/result": np.maximum(normal, 0)})["output/result"]
    flat = relu.reshape(_BATCH, -1)
    done = record.op(
        "Addmm",
        {"input/self": bias, "input/mat1": flat, "input/mat2": linear.T, "output/result": flat @ linear.T + bias},
        {"input/beta": 1.0, "input/alpha": 1.0},
    )
    score = done["output/result"]
    shifted = score - score.max(1, keepdims=True)
    logs = record.op(
        "LogSoftmax",
        {"input/self": score, "output/result": shifted - np.log(np.exp(shifted).sum(1, keepdims=True))},
        {"input/dim": 1.0},
    )["output/result"]
    loss = np.float32(-logs[np.arange(_BATCH), target].mean())
    record.op("NllLoss", {"input/self": logs, "input/target": target, "output/output": np.asarray(loss, np.float32)})

    return _Forward(
        image=image, windows=windows, weight=weight_kept, gamma=gamma, conv=conv, scale=scale, normal=normal, relu=relu,
        flat=flat, linear=linear, logs=logs, target=target,
    )  # fmt: skip


def _loss_backward(record: _Recorder, done: _Forward) -> Array:
    """The gradient of the loss by the output of the relu."""
    logs, flat, linear = done.logs, done.flat, done.linear
    grad = np.zeros_like(logs)
    grad[np.arange(_BATCH), done.target] = -1 / _BATCH
    grad = record.op("NllLossBackward", {"input/grads/0": np.ones((), np.float32), "output/grad_inputs/0": grad})[
        "output/grad_inputs/0"
    ]
    grad = record.op(
        "LogSoftmaxBackward",
        {
            "input/grads/0": grad,
            "input/result": logs,
            "output/grad_inputs/0": grad - np.exp(logs) * grad.sum(1, keepdims=True),
        },
    )["output/grad_inputs/0"]
    grad = record.op(
        "AddmmBackward",
        {
            "input/grads/0": grad,
            "input/mat1": flat,
            "input/mat2": linear.T,
            "output/grad_inputs/0": grad.sum(0),
            "output/grad_inputs/1": grad @ linear,
            "output/grad_inputs/2": (grad.T @ flat).T,
        },
    )["output/grad_inputs/1"]
    return grad.reshape(done.relu.shape)


def _layers_backward(record: _Recorder, done: _Forward, grad: Array, *, fault: bool) -> None:
    """The gradients of relu, batch norm and convolution."""
    relu, normal, scale = done.relu, done.normal, done.scale
    grad = record.op(
        "ReluBackward0", {"input/grads/0": grad, "input/result": relu, "output/grad_inputs/0": grad * (relu > 0)}
    )["output/grad_inputs/0"]
    sums, products = grad.mean((0, 2, 3), keepdims=True), (grad * normal).mean((0, 2, 3), keepdims=True)
    grad = record.op(
        "BatchNormBackward",
        {
            "input/grads/0": grad,
            "input/input": done.conv,
            "input/weight": done.gamma,
            "output/grad_inputs/0": scale * (grad - sums - normal * products),
            "output/grad_inputs/1": (grad * normal).sum((0, 2, 3)),
            "output/grad_inputs/2": grad.sum((0, 2, 3)),
        },
        {_epsilon(record): _EPSILON},
    )["output/grad_inputs/0"]
    weight_grad = np.einsum("nohw,nchwij->ocij", grad, done.windows, optimize=True)
    if fault:
        weight_grad[-_LOST:] = 0
    padded = np.pad(grad, ((0, 0), (0, 0), (2, 2), (2, 2)))
    back = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    record.op(
        "ConvolutionBackward",
        {
            "input/grads/0": grad,
            "input/self" if record.device is Device.GPU else "input/input": done.image,
            "input/weight": done.weight,
            "output/grad_inputs/0": np.einsum("nohwij,ocij->nchw", back, done.weight[:, :, ::-1, ::-1], optimize=True),
            "output/grad_inputs/1": weight_grad,
        },
    )
