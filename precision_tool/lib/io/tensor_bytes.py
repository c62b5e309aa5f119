"""The bytes of tensors, with bounded memory whatever a file claims: as they lie, joined of several files, from HDF5.

What HDF5 keeps in one piece is read as any other file is; its chunks are read by HDF5 in a process of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from itertools import accumulate
from math import prod

import numpy as np

from precision_tool.lib.io import data_types
from precision_tool.lib.io.files import open_file
from precision_tool.lib.io.hdf5_child import BUFFER
from precision_tool.lib.io.hdf5_process import Hdf5Error, check_file, hdf5_blocks
from precision_tool.lib.io.stores import StoredFile
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError, shown_name
from precision_tool.lib.model.tensor import Access, Tensor

#: The largest chunk of HDF5, and the largest tensor that is gathered, which needs all of it at once.
MAX_CHUNK = MAX_GATHERED = BUFFER
#: Bytes of blocks of HDF5 that are cached, and that are read at once where they are small.
_CACHED_BYTES, _READ_AHEAD = 64 << 20, 1 << 20
#: Bytes that are put together at a time, at most: rows of small pieces are joined by the thousand.
_BLOCK = 1 << 20


def joined(parts: tuple[Tensor, ...], axis: int, number: int) -> Tensor | None:
    """The tensor of parts that are alike but for one axis; None if they are not, or no whole bytes.

    `number` tells it from others of the same files: it becomes its offset, which is negative as no part's is.
    """
    first = parts[0]
    rank = len(first.shape)
    others = [(*part.shape[:axis], *part.shape[axis + 1 :]) for part in parts]
    kinds = {
        (part.dtype, part.layout, part.big_endian, part.fortran_order, part.access, len(part.shape)) for part in parts
    }
    if not 0 <= axis < rank or len(kinds) > 1 or any(part != others[0] for part in others):
        return None
    data_type = data_types.BY_NAME.get(first.dtype)
    if first.access is not Access.BYTES or data_type is None or data_type.bits % 8:
        return None
    if any(part.nbytes != part.size * data_type.bits // 8 for part in parts):
        return None
    length = sum(part.shape[axis] for part in parts)
    shape = (*first.shape[:axis], length, *first.shape[axis + 1 :])
    return Tensor(
        path=first.path,
        offset=-1 - number,
        nbytes=sum(part.nbytes for part in parts),
        dtype=first.dtype,
        shape=shape,
        layout=first.layout,
        # The parts may have that of the whole, or their own, of which only a plain one tells the whole.
        origin_shape=shape if first.origin_shape == first.shape else None,
        address=first.address,
        access=Access.JOINED,
        parts=parts,
        joined_axis=axis,
    )


def open_bytes(tensor: Tensor) -> StoredFile:
    """Open the bytes of a tensor, to be read from `tensor.offset` on, which counts in its own file or chunks."""
    if tensor.access is Access.GATHER and not tensor.dataset:
        return _StridedBytes(tensor)
    if tensor.access in (Access.CHUNKS, Access.GATHER):
        return _Hdf5Bytes(tensor)
    if tensor.access is Access.JOINED:
        return _JoinedBytes(tensor)
    return open_file(tensor.path)


class _Hdf5Bytes(StoredFile):
    """A tensor of an HDF5 file: its chunks as if they lay one after the other, or a small one in logical order."""

    def __init__(self, tensor: Tensor) -> None:
        check_file(tensor.path)
        self.path, self.size = tensor.path, tensor.nbytes
        self._tensor = tensor
        self._block = tensor.shape
        if tensor.access is Access.CHUNKS:
            assert tensor.plan is not None
            self._block = tensor.plan.storage_shape[-len(tensor.shape) :]
        self._nbytes = data_types.BY_NAME[tensor.dtype].byte_size(prod(self._block))
        self._count = tensor.nbytes // self._nbytes if self._nbytes else 1
        #: The blocks that were read last.
        self._cached: OrderedDict[int, memoryview] = OrderedDict()
        self._read_blocks(0)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        done = 0
        while done < len(buffer):
            number, start = divmod(offset + done, self._nbytes)
            if number not in self._cached:
                self._read_blocks(number)
            self._cached.move_to_end(number)
            part = self._cached[number][start : start + len(buffer) - done]
            buffer[done : done + len(part)] = part
            done += len(part)

    def _read_blocks(self, number: int) -> None:
        """Read a block, and the next ones where they are small."""
        tensor = self._tensor
        stop = min(number + max(_READ_AHEAD // max(self._nbytes, 1), 1), self._count)
        dtype = np.dtype(tensor.dtype).newbyteorder(">" if tensor.big_endian else "<")
        while self._cached and (len(self._cached) + stop - number) * self._nbytes > _CACHED_BYTES:
            self._cached.popitem(last=False)
        try:
            data = hdf5_blocks(
                tensor.path, (stop - number) * self._nbytes, dataset=tensor.dataset, dtype=dtype.str,
                shape=tensor.shape, block=self._block, numbers=(number, stop),
            )  # fmt: skip
        except Hdf5Error as error:
            raise self._damaged(error.reason) from error
        if tensor.strides:
            data = _in_order(data, dtype, tensor)
        blocks, size = memoryview(data), self._nbytes
        self._cached.update((number + index, blocks[index * size :][:size]) for index in range(stop - number))

    def _damaged(self, why: Message | str) -> FormatError:
        return FormatError.of(self._tensor.path, "io.h5.blocks", name=shown_name(self._tensor.dataset), reason=why)

    def close(self) -> None:
        self._cached.clear()


def _in_order(data: bytes, dtype: np.dtype, tensor: Tensor) -> bytes:
    """Elements that lie with strides, in logical order."""
    # The stride of a single element says nothing, and may be any number.
    steps = zip(tensor.strides, tensor.shape, strict=True)
    strides = [stride * dtype.itemsize if extent > 1 else 0 for stride, extent in steps]
    elements = np.frombuffer(data, dtype)
    return np.lib.stride_tricks.as_strided(elements, tensor.shape, strides, writeable=False).tobytes()


class _StridedBytes(StoredFile):
    """A tensor whose elements lie with strides from its offset on, in logical order; its reader limits its size."""

    def __init__(self, tensor: Tensor) -> None:
        self.path, self.size = tensor.path, tensor.offset + tensor.nbytes
        self._start = tensor.offset
        reach = 1 + sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.strides, strict=True))
        itemsize = data_types.BY_NAME[tensor.dtype].byte_size(1)
        with open_file(tensor.path) as file:
            data = file.read_at(tensor.offset, reach * itemsize)
        self._data = memoryview(_in_order(data, np.dtype((np.void, itemsize)), tensor))

    def read_into(self, offset: int, buffer: memoryview) -> None:
        place = offset - self._start
        buffer[:] = self._data[place : place + len(buffer)]

    def close(self) -> None:
        self._data = memoryview(b"")


class _JoinedBytes(StoredFile):
    """The bytes of a joined tensor; every file is opened once."""

    def __init__(self, tensor: Tensor) -> None:
        self.path, self.size = tensor.path, tensor.offset + tensor.nbytes
        self._start = tensor.offset
        self._parts = tensor.parts
        rows = max(prod(tensor.shape[: tensor.joined_axis]), 1)
        #: Bytes of each part in a row: what lies before the axis makes rows, of which each part has a piece.
        self._pieces = [part.nbytes // rows for part in tensor.parts]
        self._ends = [*accumulate(self._pieces)]
        self._row = self._ends[-1]
        self._files: list[StoredFile] = []
        try:
            for part in tensor.parts:
                self._files.append(open_file(part.path))
        except BaseException:
            self.close()
            raise

    def read_into(self, offset: int, buffer: memoryview) -> None:
        out = np.frombuffer(buffer, np.uint8)
        position, done = offset - self._start, 0
        while done < out.size:
            row, column = divmod(position + done, self._row)
            rows = min((out.size - done) // self._row, max(_BLOCK // self._row, 1))
            if column == 0 and rows and len(self._pieces) > 1:
                size = rows * self._row
                self._read_rows(row, out[done : done + size].reshape(rows, self._row))
            else:
                part = bisect_right(self._ends, column)
                inside = column - (self._ends[part] - self._pieces[part])
                size = min(self._ends[part] - column, out.size - done)
                start = self._parts[part].offset + row * self._pieces[part] + inside
                self._files[part].read_into(start, out[done : done + size].data)
            done += size

    def _read_rows(self, row: int, out: np.ndarray) -> None:
        """Whole rows, each of a piece of every part."""
        end = 0
        for file, part, piece in zip(self._files, self._parts, self._pieces, strict=True):
            taken = np.empty(len(out) * piece, np.uint8)
            file.read_into(part.offset + row * piece, taken.data)
            out[:, end : end + piece] = taken.reshape(len(out), piece)
            end += piece

    def close(self) -> None:
        for file in self._files:
            file.close()
