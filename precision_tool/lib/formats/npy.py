"""`.npy` files: headers read without unpickling anything, arrays written in pieces (numpy's documentation, NEP 1)."""

from __future__ import annotations

import io
import os
import struct
import warnings
from itertools import product
from math import prod
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.errors import FormatError, OutputError
from precision_tool.lib.model.tensor import Tensor
from precision_tool.lib.numbers import data_types
from precision_tool.lib.numbers.layouts import Box
from precision_tool.lib.storage.files import LocalFile, temporary_file

_MAX_HEADER = 1 << 16
#: As many bytes most headers have.
_USUAL_HEADER = 128
_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_HINT = "write it again with numpy.save(path, array, allow_pickle=False)"


def our_name(dtype: np.dtype) -> str | None:
    """What a type of numpy is called here; None for one that is no number."""
    if dtype.kind in "biufc" and dtype.name in data_types.BY_NAME:
        return dtype.name
    if dtype.kind == "V" and dtype.names is None and dtype.subdtype is None and dtype.itemsize == 2:
        return "bfloat16"  # how numpy writes ml_dtypes' and TensorFlow's bfloat16
    return None


def read_npy(path: str) -> Tensor:
    """The tensor of a `.npy` file, undecoded; FormatError for what has no numbers or is damaged."""
    with LocalFile(path) as file:
        return read_npy_file(file)


def read_npy_file(file: LocalFile) -> Tensor:
    """As `read_npy`, of a file that is open."""
    path = file.path
    if file.size == 0:
        raise FormatError(f"{path}: the file is empty", _HINT)
    head = io.BytesIO(_head(file))
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
        raise FormatError(f"{path}: an array of Python objects: it would have to be unpickled, which is refused", _HINT)
    name = our_name(dtype)
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


def _head(file: LocalFile) -> bytes:
    """The start of the file up to the end of its header, as far as it is there, and hardly more."""
    head = file.read_at(0, min(_USUAL_HEADER, file.size))
    size = struct.unpack_from("<H" if head[6:7] == b"\x01" else "<I", head.ljust(12, b"\0"), 8)[0] + 12
    wanted = min(size, _MAX_HEADER, file.size)
    return head if wanted <= len(head) else head + file.read_at(len(head), wanted - len(head))


class NpyWriter:
    """A `.npy` file written in boxes of its array, in any order. It appears under its name when it is complete.

    Everything that goes wrong with the file is an OutputError.
    """

    def __init__(self, path: str, dtype: np.dtype[Any], shape: tuple[int, ...], *, place: str = "") -> None:
        """`place` is the folder, made if need be, of the file until it is complete; else it lies beside `path`."""
        self._path, self._dtype = path, dtype
        self._temporary = ""
        self._fd = -1
        header = io.BytesIO()
        description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(header, description)
        self._start = len(header.getvalue())
        try:
            folder = place or os.path.dirname(path) or "."
            os.makedirs(folder, exist_ok=True)
            self._fd, self._temporary = temporary_file(folder)
            os.pwrite(self._fd, header.getvalue(), 0)
        except OSError as error:
            self._drop()
            raise self._error(error) from error
        except BaseException:  # Ctrl+C, or a signal that ends the process
            self._drop()
            raise

    def write(self, box: Box, within: tuple[int, ...], items: npt.NDArray[Any]) -> None:
        """Writes the items of a box of the array, which for this may be taken to be of the shape `within`."""
        items = np.ascontiguousarray(items, self._dtype).reshape(-1)
        if not items.size:
            return
        inner = len(box)
        while inner > 0 and box[inner - 1] == (0, within[inner - 1]):
            inner -= 1
        outer, rest = box[: max(inner - 1, 0)], box[max(inner - 1, 0) :]
        strides = [prod(within[axis + 1 :]) for axis in range(len(within))]
        run = prod(stop - start for start, stop in rest)
        first = rest[0][0] * strides[len(outer)] if rest else 0
        raw = items.view(np.uint8).data
        size = run * self._dtype.itemsize
        try:
            for number, index in enumerate(product(*(range(*extent) for extent in outer))):
                at = first + sum(i * stride for i, stride in zip(index, strides, strict=False))
                self._write_at(self._start + at * self._dtype.itemsize, raw[number * size : (number + 1) * size])
        except OSError as error:
            raise self._error(error) from error

    def _write_at(self, offset: int, data: memoryview) -> None:
        while data:
            count = os.pwrite(self._fd, data, offset)
            data, offset = data[count:], offset + count

    def _error(self, error: OSError) -> OutputError:
        return OutputError(
            f"{self._path}: cannot be written ({error.strerror or error})", "free some space or name another folder"
        )

    def _drop(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._temporary and os.path.exists(self._temporary):
            os.unlink(self._temporary)

    def __enter__(self) -> NpyWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                os.close(self._fd)
                self._fd = -1
                os.replace(self._temporary, self._path)
        except OSError as failure:
            raise self._error(failure) from failure
        finally:
            self._drop()
