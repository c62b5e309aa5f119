"""Writes what msprobe 26.2 records of a step of PyTorch: dump.json, stack.json, construct.json and the tensors.

The calls are told in the order in which they run. A tensor's file is as `torch.save` writes it, made without torch.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: Storages of torch by the names that numpy and ml_dtypes have for their elements.
_STORAGES = {"float32": "FloatStorage", "bfloat16": "BFloat16Storage", "int64": "LongStorage"}
#: The folder beside dump.json in which the tensors lie, and the end of their names.
_TENSORS, _SUFFIX = "dump_tensor_data", ".pt"


# --- `.pt` files ------------------------------------------------------------------------------------------------------


def torch_bytes(array: Array, name: str) -> bytes:
    """Return the bytes of a `.pt` file with a tensor on the CPU.

    Parameters
    ----------
    array : Array
        Values as float32, bfloat16 or int64.
    name : str
        The name of the folder in the archive; torch takes that of the file, without its suffix.
    """
    strides = [int(np.prod(array.shape[axis + 1 :])) for axis in range(array.ndim)]
    storage = b"(" + _text("storage") + b"ctorch\n" + _STORAGES[array.dtype.name].encode() + b"\n"
    storage += _text("0") + _text("cpu") + _whole(array.size) + b"tQ"
    hooks = b"ccollections\nOrderedDict\n)R"
    arguments = storage + _whole(0) + _tuple(array.shape) + _tuple(strides) + b"\x89" + hooks
    pickled = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" + arguments + b"tR."
    entries = {"data.pkl": pickled, "byteorder": b"little", "data/0": array.tobytes(), "version": b"3\n"}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for entry, data in entries.items():
            archive.writestr(zipfile.ZipInfo(f"{name}/{entry}"), data)
    return file.getvalue()


def _text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<L", len(data)) + data


def _whole(value: int) -> bytes:
    return b"K" + struct.pack("<B", value) if value < 256 else b"J" + struct.pack("<l", value)


def _tuple(values: Sequence[int]) -> bytes:
    return b"(" + b"".join(map(_whole, values)) + b"t"


# --- the trace --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Traced:
    """A tensor among the arguments or results of a call."""

    array: Array
    requires_grad: bool = False


def learned(array: Array) -> Traced:
    """Return a tensor that autograd follows."""
    return Traced(array, requires_grad=True)


Frames = tuple[str, ...]


class Trace:
    """What is recorded of one step on one rank. Tensors are written at once, the JSON files by `close`."""

    def __init__(self, folder: Path) -> None:
        """`folder` is `stepN/rankN`; it must not be there yet."""
        self._folder = folder
        (folder / _TENSORS).mkdir(parents=True)
        self.tensors = 0
        self._entries: dict[str, Any] = {}
        self._parents: dict[str, str | None] = {}
        self._stacks: dict[Frames, list[str]] = {}
        self._counts: Counter[str] = Counter()
        #: The modules that run, from the outermost.
        self._modules: list[str] = []

    @property
    def calls(self) -> int:
        """The number of entries."""
        return len(self._entries)

    def enter(self, name: str, frames: Frames = ()) -> None:
        """Begin the call of a module, `Module.{path}.{class}.{direction}.0`; the backward has no source lines."""
        self._modules.append(name)
        self._note_frames(name, frames)

    def leave(self, **entry: Any) -> None:
        """End the call of the module that was entered last, with the members of its entry."""
        self._note_modules()
        self._record(self._modules.pop(), entry)

    def run_optimizer(self) -> None:
        """Begin the optimizer's step, which stands in the place of a module until the end."""
        self._modules.append("optimizer")
        self._note_modules()

    def forward(self, api: str, frames: Frames, arguments: Sequence[Any], output: Traced, **kwargs: Any) -> str:
        """Record the call of an API (`Functional.gelu`) and return its name without the direction."""
        call = self.moved(api)
        name = f"{call}.forward"
        self._note_frames(name, frames)
        self._record(name, {"input_args": list(arguments), "input_kwargs": kwargs, "output": [output]})
        return call

    def moved(self, api: str) -> str:
        """Count the call of an API that only moves elements, of which no entry is written, and return its name."""
        call = f"{api}.{self._counts[api]}"
        self._counts[api] += 1
        self._note(f"{call}.forward")
        return call

    def backward(self, call: str, gradient: Array, outputs: Sequence[Array | None]) -> None:
        """Record the backward of a call: the gradient of its output, and those of its inputs."""
        name = f"{call}.backward"
        self._note(name)
        self._record(name, {"input": [Traced(gradient)], "output": [_gradient(array) for array in outputs]})

    def moved_back(self, call: str) -> None:
        """Note the backward of a call without an entry."""
        self._note(f"{call}.backward")

    def parameters_grad(self, module: str, gradients: Mapping[str, Array]) -> None:
        """Record the gradients of a module's parameters; `module` is `Module.{path}.{class}`."""
        name = f"{module}.parameters_grad.0"
        self._entries[name] = {
            parameter: [self._tensor(Traced(array), f"{name}.{parameter}")] for parameter, array in gradients.items()
        }

    def close(self, data_dir: str) -> None:
        """Write the JSON files; `data_dir` is where the tensors lay on the machine that collected them."""
        header = {"task": "tensor", "level": "mix", "framework": "pytorch", "dump_data_dir": f"{data_dir}/{_TENSORS}"}
        stacks = {str(number): [names, list(frames)] for number, (frames, names) in enumerate(self._stacks.items())}
        files = {"dump": {**header, "data": self._entries}, "stack": stacks, "construct": self._parents}
        for name, content in files.items():
            (self._folder / f"{name}.json").write_text(json.dumps(content, indent=1), encoding="utf-8")

    def _note(self, name: str) -> None:
        """Note in which module an API runs, and behind it the modules themselves, as msprobe's lines come."""
        self._parents[name] = self._modules[-1] if self._modules else None
        self._note_modules()

    def _note_modules(self) -> None:
        for outer, name in zip([None, *self._modules], self._modules, strict=False):
            self._parents.setdefault(name, outer)

    def _note_frames(self, name: str, frames: Frames) -> None:
        if frames:
            self._stacks.setdefault(frames, []).append(name)

    def _record(self, name: str, entry: Mapping[str, Any]) -> None:
        slots = {"input_args": "input", "input_kwargs": "kwargs"}
        self._entries[name] = {key: self._form(value, f"{name}.{slots.get(key, key)}") for key, value in entry.items()}

    def _form(self, value: Any, slot: str) -> Any:
        """An argument as dump.json has it; the file of a tensor is written."""
        if isinstance(value, Traced):
            return self._tensor(value, slot)
        if isinstance(value, (list, tuple)):
            return [self._form(item, f"{slot}.{number}") for number, item in enumerate(value)]
        if isinstance(value, Mapping):
            return {key: self._form(item, f"{slot}.{key}") for key, item in value.items()}
        return None if value is None else {"type": type(value).__name__, "value": value}

    def _tensor(self, tensor: Traced, slot: str) -> dict[str, Any]:
        array = tensor.array
        (self._folder / _TENSORS / (slot + _SUFFIX)).write_bytes(torch_bytes(array, slot))
        self.tensors += 1
        return {
            "type": "torch.Tensor",
            "dtype": f"torch.{array.dtype.name}",
            "shape": list(array.shape),
            **_statistics(array),
            "requires_grad": tensor.requires_grad,
            "data_name": slot + _SUFFIX,
        }


def _gradient(array: Array | None) -> Traced | None:
    return None if array is None else Traced(array)


def _statistics(array: Array) -> dict[str, float | None]:
    """Maximum, minimum, mean and norm in the type of the tensor, as its framework returns them."""
    if array.dtype.kind == "i":
        return {"Max": int(array.max()), "Min": int(array.min()), "Mean": None, "Norm": None}
    numbers = array.astype(np.float64)
    if not array.shape:
        return dict.fromkeys(("Max", "Min", "Mean", "Norm"), float(numbers))
    figures = {"Max": numbers.max(), "Min": numbers.min(), "Mean": numbers.mean(), "Norm": np.sqrt((numbers**2).sum())}
    return {name: float(np.float32(figure).astype(array.dtype)) for name, figure in figures.items()}
