"""`.npy` headers, without unpickling anything (numpy's format documentation, NEP 1)."""

from __future__ import annotations

import io
import warnings

import numpy as np

from precision_tool.lib.errors import FormatError
from precision_tool.lib.formats import data_types
from precision_tool.lib.formats.files import LocalFile
from precision_tool.lib.model.tensor import Tensor

_MAX_HEADER = 1 << 16
_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_HINT = "write it again with numpy.save(path, array, allow_pickle=False)"


def _our_name(dtype: np.dtype) -> str | None:
    if dtype.kind in "biufc" and dtype.name in data_types.BY_NAME:
        return dtype.name
    if dtype.kind == "V" and dtype.names is None and dtype.subdtype is None and dtype.itemsize == 2:
        return "bfloat16"  # how numpy writes ml_dtypes' and TensorFlow's bfloat16
    return None


def read_npy(path: str) -> Tensor:
    """The tensor of a `.npy` file, undecoded; FormatError for what has no numbers or is damaged."""
    with LocalFile(path) as file:
        if file.size == 0:
            raise FormatError(f"{path}: the file is empty", _HINT)
        head = io.BytesIO(file.read_at(0, min(_MAX_HEADER, file.size)))
        try:
            version = np.lib.format.read_magic(head)
            if version not in _READERS:
                raise FormatError(f"{path}: .npy version {version[0]}.{version[1]} is not read", _HINT)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of Python 2's headers, and of what Python thinks of garbage
                shape, fortran_order, dtype = _READERS[version](head, max_header_size=_MAX_HEADER)
        except FormatError:
            raise
        except Exception as error:  # whatever numpy's reading of Python literals, or its tokenizer, makes of garbage
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise FormatError(f"{path}: damaged .npy header: {reason}", _HINT) from error
        if any(dim < 0 for dim in shape):
            raise FormatError(f"{path}: .npy shape {shape} has a negative dimension", _HINT)
        if dtype.hasobject:
            raise FormatError(
                f"{path}: an array of Python objects: it would have to be unpickled, which is refused", _HINT
            )
        name = _our_name(dtype)
        if name is None:
            raise FormatError(f"{path}: elements of type {dtype} are no numbers that can be compared", _HINT)
        tensor = Tensor(
            path=path,
            offset=head.tell(),
            nbytes=0,
            dtype=name,
            shape=tuple(int(dim) for dim in shape),
            origin_shape=tuple(int(dim) for dim in shape),
            fortran_order=bool(fortran_order) and len(shape) > 1,
            big_endian=dtype.byteorder == ">",
        )
        nbytes = tensor.size * dtype.itemsize
        if tensor.offset + nbytes > file.size:
            raise FormatError(
                f"{path}: shape {list(shape)} of {dtype} needs {nbytes} bytes from byte {tensor.offset}, "
                f"the file ends at byte {file.size}",
                "the file is cut off: copy or dump it again",
            )
        return Tensor(**{name: getattr(tensor, name) for name in tensor.__slots__ if name != "nbytes"}, nbytes=nbytes)
