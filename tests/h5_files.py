"""`.h5` files as the PyTorch 1.5 dumper writes them, for tests: made with h5py, from dictionaries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

NPU, GPU, CPU = 10, 1, 0
Array = npt.NDArray[Any]

_SCALAR_TYPES = {"f4": 1, "u1": 2, "i1": 3, "i2": 5, "i4": 6, "i8": 7, "b1": 9, "f2": 10, "f8": 11}


def write_h5(path: Path, values: Mapping[str, Array], device: int = NPU, **options: Any) -> Path:
    """A dump with these data sets; `options` are h5py's, as chunks and compression."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, array in values.items():
            add_tensor(file, name, array, device, **options)
    return path


def add_tensor(
    file: h5py.File,
    name: str,
    array: Array,
    device: int = NPU,
    *,
    kind: int = 0,
    stride: tuple[int, ...] | None = None,
    scalar_type: int | None = None,
    **options: Any,
) -> h5py.Dataset:
    """A data set with the dumper's attributes. `stride` counts elements; by default it is that of C order."""
    array = np.asarray(array)
    dataset = file.create_dataset(name, data=array, **options)
    if stride is None:
        stride = tuple(step // max(array.itemsize, 1) for step in np.empty(array.shape, array.dtype).strides)
    dataset.attrs["Type"] = kind
    dataset.attrs["DataType"] = _SCALAR_TYPES[array.dtype.str[1:]] if scalar_type is None else scalar_type
    dataset.attrs["DeviceType"] = device
    dataset.attrs["FormatType"] = 2
    dataset.attrs["Stride"] = np.array(stride, np.int64)
    return dataset
