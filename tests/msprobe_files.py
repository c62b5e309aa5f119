"""Folders as msprobe writes them, made without torch and msprobe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch_files import torch_bytes


def tensor(array: Any, data_name: str = "", **more: Any) -> dict[str, Any]:
    """What `dump.json` has of a tensor; `bfloat16` and the like are those of ml_dtypes."""
    array = np.asarray(array)
    numbers = array.astype(np.float64)
    is_float = array.dtype.kind not in "biu"
    entry = {
        "type": "torch.Tensor",
        "dtype": f"torch.{array.dtype.name}",
        "shape": list(array.shape),
        "Max": float(numbers.max()) if array.size else None,
        "Min": float(numbers.min()) if array.size else None,
        "Mean": float(numbers.mean()) if array.size and is_float else None,
        "Norm": float(np.linalg.norm(numbers.reshape(-1))) if is_float else None,
        "requires_grad": False,
    }
    return {**entry, **({"data_name": data_name} if data_name else {}), **more}


def literal(value: Any, kind: str = "") -> dict[str, Any]:
    """What it has of a number, a text or None of these."""
    return {"type": kind or type(value).__name__, "value": value}


def forward(*inputs: Any, output: Any = (), **kwargs: Any) -> dict[str, Any]:
    """An entry of a call's forward."""
    return {"input_args": list(inputs), "input_kwargs": kwargs, "output": list(output)}


def dump_text(entries: Mapping[str, Any], **header: Any) -> str:
    """A `dump.json` with these entries."""
    usual = {"task": "tensor", "level": "mix", "framework": "pytorch", "dump_data_dir": "/data/dump_tensor_data"}
    return json.dumps({**usual, **header, "data": dict(entries)}, indent=1)


def write_leaf(
    folder: Path, entries: Mapping[str, Any], tensors: Mapping[str, Any] = {}, **files: Any
) -> Path:  # fmt: skip
    """A folder of one rank: `dump.json`, the tensors by their names, and `stack` and `construct` where given."""
    data = folder / "dump_tensor_data"
    data.mkdir(parents=True)
    (folder / "dump.json").write_text(dump_text(entries))
    for name, array in tensors.items():
        (data / name).write_bytes(torch_bytes(array))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1))
    return folder
