"""Tensors that lie in several files, joined along an axis: their bytes as if they lay one after the other."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from math import prod
from types import TracebackType

import numpy as np

from precision_tool.lib.io.files import open_file
from precision_tool.lib.io.stores import StoredFile
from precision_tool.lib.model.tensor import Access, Tensor
from precision_tool.lib.numbers import data_types

#: Bytes that are put together at a time, at most: rows of small pieces are joined by the thousand.
_BLOCK = 1 << 20


def joined(parts: tuple[Tensor, ...], axis: int, number: int) -> Tensor | None:
    """The tensor of parts that are alike but for one axis; None if they are not, or no whole bytes.

    `number` tells it from others of the same files: it becomes its offset, which is negative as no part's is.
    """
    first = parts[0]
    rank = len(first.shape)
    others = [(*one.shape[:axis], *one.shape[axis + 1 :]) for one in parts]
    kinds = {(one.dtype, one.layout, one.big_endian, one.fortran_order, one.access, len(one.shape)) for one in parts}
    if not 0 <= axis < rank or len(kinds) > 1 or any(one != others[0] for one in others):
        return None
    data_type = data_types.BY_NAME.get(first.dtype)
    if first.access is not Access.BYTES or data_type is None or data_type.bits % 8:
        return None
    if any(one.nbytes != one.size * data_type.bits // 8 for one in parts):
        return None
    length = sum(one.shape[axis] for one in parts)
    shape = (*first.shape[:axis], length, *first.shape[axis + 1 :])
    return Tensor(
        path=first.path,
        offset=-1 - number,
        nbytes=sum(one.nbytes for one in parts),
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


class JoinedBytes:
    """The bytes of a joined tensor; every file is opened once."""

    def __init__(self, tensor: Tensor) -> None:
        self._start = tensor.offset
        self._parts = tensor.parts
        rows = max(prod(tensor.shape[: tensor.joined_axis]), 1)
        #: Bytes of each part in a row: what lies before the axis makes rows, of which each part has a piece.
        self._pieces = [one.nbytes // rows for one in tensor.parts]
        self._ends = [*accumulate(self._pieces)]
        self._row = self._ends[-1]
        self._files: list[StoredFile] = []
        try:
            for one in tensor.parts:
                self._files.append(open_file(one.path))
        except BaseException:
            self.close()
            raise

    def read_at(self, offset: int, count: int) -> bytes:
        """Exactly `count` bytes; `offset` counts from that of the tensor."""
        buffer = bytearray(count)
        self.read_into(offset, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fills the buffer with the bytes from `offset` on."""
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
        """Closes the files."""
        for file in self._files:
            file.close()

    def __enter__(self) -> JoinedBytes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
