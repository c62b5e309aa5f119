"""The bytes of tensors of HDF5 files, with bounded memory whatever the file claims.

What lies in one piece is read as any other file is (`Access.BYTES`). Chunks are read one at a time and decompressed
here: HDF5's own filters give a compressed chunk all the memory that it asks for, and a damaged one can end the process.
Where chunks lie is asked of HDF5 in a process of its own (`h5_process`).
"""

from __future__ import annotations

import base64
import re
import zlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from math import prod
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from precision_tool.lib.errors import FormatError, shown_name
from precision_tool.lib.formats.h5_child import CHUNKED, COMPACT, StoredData, chunk_place, h5_reason
from precision_tool.lib.formats.h5_process import Hdf5Error, ask_hdf5, check_file
from precision_tool.lib.formats.joined import JoinedBytes
from precision_tool.lib.io.files import open_file
from precision_tool.lib.model.tensor import Access, Tensor

#: numpy's names of types that are read.
_NUMBERS = re.compile(r"[<>|=][biufc]\d{1,2}")
#: The numbers of HDF5's filters.
DEFLATE, SHUFFLE, FLETCHER32, LZF = 1, 2, 3, 32000
#: Those that are undone here.
FILTERS = frozenset({DEFLATE, SHUFFLE, FLETCHER32, LZF})
#: The largest chunk.
MAX_CHUNK = 64 << 20
#: The largest tensor that is gathered, which needs all of it at once.
MAX_GATHERED = 64 << 20
#: Bytes of decoded chunks that are kept.
_KEPT = 64 << 20
#: What a chunk may take beyond its size where compressing did not make it smaller.
_SLACK = 1 << 16
#: Chunks whose places are looked up at once, and how many such lots are kept.
_LOOKED_UP, _KEPT_LOTS = 1024, 8


class TensorBytes(Protocol):
    """The file interface of a tensor's bytes: `offset` counts from the tensor's own file or chunks."""

    def read_at(self, offset: int, count: int) -> bytes:
        """Exactly `count` bytes."""

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fills `buffer`."""

    def close(self) -> None:
        """Closes the file."""

    def __enter__(self) -> TensorBytes: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_bytes(tensor: Tensor) -> TensorBytes:
    """The bytes of a tensor, to be read from `tensor.offset` on."""
    if tensor.access is Access.CHUNKS:
        return _Chunks(tensor)
    if tensor.access is Access.GATHER:
        return _Gathered(tensor)
    if tensor.access is Access.JOINED:
        return JoinedBytes(tensor)
    return open_file(tensor.path)


class _Reader(ABC):
    """What both kinds share."""

    def read_at(self, offset: int, count: int) -> bytes:
        buffer = bytearray(count)
        self.read_into(offset, memoryview(buffer))
        return bytes(buffer)

    @abstractmethod
    def read_into(self, offset: int, buffer: memoryview) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> _Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _header(tensor: Tensor) -> StoredData:
    """What the header of a tensor's data set tells now."""
    check_file(tensor.path)
    try:
        (header,) = ask_hdf5("header", tensor.path, dataset=tensor.dataset)
    except Hdf5Error as error:
        raise _damaged(tensor, error.reason) from error
    return StoredData(**header)


def dtype_of(header: StoredData) -> np.dtype[Any] | None:
    """numpy's type of the elements; None for what is no number."""
    return np.dtype(header.type) if _NUMBERS.fullmatch(header.type) else None


def _damaged(tensor: Tensor, why: str) -> FormatError:
    reason = f"{shown_name(tensor.dataset)}: cannot be read: {why}"
    return FormatError.of(tensor.path, reason, "the file is damaged: copy or dump it again")


class _Chunks(_Reader):
    """Chunks as if they lay one after the other, in the order of their places."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        header = _header(tensor)
        dtype = dtype_of(header)
        if dtype is None or header.layout != CHUNKED or len(header.chunk) != len(header.shape or ()):
            raise self._damaged("the file has changed")
        self._dtype = dtype
        self._shape, self._chunk, self._filters = tuple(header.shape or ()), header.chunk, header.filters
        self._nbytes = prod(self._chunk) * self._dtype.itemsize
        if not 0 < self._nbytes <= MAX_CHUNK:  # it was not so when the dump was read
            raise self._damaged("the file has changed")
        self._grid = [-(-extent // chunk) for extent, chunk in zip(self._shape, self._chunk, strict=True)]
        self._kept: OrderedDict[int, memoryview] = OrderedDict()
        self._lots: OrderedDict[int, list[Any]] = OrderedDict()
        self._raw = open_file(tensor.path)

    def _damaged(self, why: str) -> FormatError:
        return _damaged(self._tensor, why)

    def close(self) -> None:
        self._raw.close()

    def read_into(self, offset: int, buffer: memoryview) -> None:
        done = 0
        while done < len(buffer):
            number, start = divmod(offset + done, self._nbytes)
            part = self.chunk(number)[start : start + len(buffer) - done]
            buffer[done : done + len(part)] = part
            done += len(part)

    def chunk(self, number: int) -> memoryview:
        """All bytes of a chunk, decompressed."""
        known = self._kept.get(number)
        if known is not None:
            self._kept.move_to_end(number)
            return known
        while self._kept and (len(self._kept) + 1) * self._nbytes > _KEPT:
            self._kept.popitem(last=False)
        if number >= prod(self._grid):
            raise self._damaged(f"it has no chunk {number}")
        place = chunk_place(number, self._grid, self._chunk)
        try:
            decoded = self._decoded(number)
        except Hdf5Error as error:
            raise self._damaged(f"chunk at {list(place)}: {error.reason}") from error
        except (ValueError, zlib.error) as error:
            raise self._damaged(f"chunk at {list(place)}: {h5_reason(error)}") from error
        if len(decoded) != self._nbytes:
            raise self._damaged(f"chunk at {list(place)} holds {len(decoded)} bytes instead of {self._nbytes}")
        known = self._kept[number] = memoryview(decoded).cast("B")
        return known

    def _decoded(self, number: int) -> bytes:
        mask, data = self._stored(number)
        for at in reversed(range(len(self._filters))):
            if not mask >> at & 1:
                data = self._undo(self._filters[at], data)
        raw: bytes = data
        return raw

    def _place(self, number: int) -> tuple[int, int, int]:
        """Where a chunk lies, the size that is claimed for it, and the filters that were left out (bits)."""
        lot, at = divmod(number, _LOOKED_UP)
        if lot not in self._lots:
            while len(self._lots) >= _KEPT_LOTS:
                self._lots.popitem(last=False)
            start = lot * _LOOKED_UP
            name = self._tensor.dataset
            asked = ask_hdf5("places", self._tensor.path, dataset=name, start=start, stop=start + _LOOKED_UP)
            self._lots[lot] = list(asked)
        if at >= len(self._lots[lot]):
            raise ValueError("the file has changed")
        found = self._lots[lot][at]
        if isinstance(found, str):
            raise ValueError(found)
        offset, size, mask = found
        if offset is None:
            raise ValueError("it was never written")
        return offset, size, mask

    def _stored(self, number: int) -> tuple[int, bytes]:
        """A chunk as it lies in the file, and the filters that were left out (bits).

        Not read by HDF5, which copies as many bytes as the index claims into a buffer of a chunk's size.
        """
        offset, size, mask = self._place(number)
        applied = [number for number in range(len(self._filters)) if not mask >> number & 1]
        if size > 2 * self._nbytes + _SLACK or (not applied and size != self._nbytes):
            raise ValueError(f"it claims {size} bytes instead of {self._nbytes}")
        return mask, self._raw.read_at(offset, size)

    def _undo(self, code: int, data: bytes) -> bytes:
        if code == DEFLATE:
            stream = zlib.decompressobj()
            inflated = stream.decompress(data, self._nbytes + 8)
            if not stream.eof:
                raise ValueError("its compressed data is cut off, or larger than a chunk")
            return inflated
        if code == SHUFFLE:
            width = self._dtype.itemsize
            whole = len(data) // width * width
            planes = np.frombuffer(data, np.uint8, whole).reshape(width, -1)
            items = np.empty((planes.shape[1], width), np.uint8)
            for number, plane in enumerate(planes):  # five times as fast as transposing
                items[:, number] = plane
            return items.tobytes() + data[whole:]
        if code == LZF:
            return unpacked_lzf(data, self._nbytes + 8)
        if code != FLETCHER32:
            raise ValueError(f"it is compressed with the filter {code}")
        body, stored = data[:-4], int.from_bytes(data[-4:], "little")
        sums = fletcher32(body)
        if len(data) < 4 or sums not in (_folded(stored), _folded(_swapped(stored))):
            raise ValueError("its checksum is wrong")
        return body

    def whole(self) -> npt.NDArray[Any]:
        """The whole data set, which is small."""
        array = np.empty(self._shape, self._dtype)
        for number in range(prod(self._grid)):
            at = chunk_place(number, self._grid, self._chunk)
            block = np.frombuffer(self.chunk(number), self._dtype).reshape(self._chunk)
            target = array[tuple(slice(start, start + step) for start, step in zip(at, self._chunk, strict=True))]
            target[...] = block[tuple(slice(0, extent) for extent in target.shape)]
        return array


def unpacked_lzf(data: bytes, most: int) -> bytes:
    """What LibLZF, h5py's own filter, compressed: runs of bytes, and of bytes that were there already."""
    out = bytearray()
    at = 0
    try:
        while at < len(data):
            control = data[at]
            at += 1
            if control < 32:
                out += data[at : at + control + 1]
                at += control + 1
            else:
                length = control >> 5
                if length == 7:
                    length += data[at]
                    at += 1
                start = len(out) - ((control & 31) << 8 | data[at]) - 1
                at += 1
                length += 2
                if start < 0:
                    raise ValueError("its compressed data leads out of it")
                run = out[start : start + length]
                out += (run * (length // len(run) + 1))[:length]  # it may reach into what it makes itself
            if len(out) > most:
                raise ValueError("its compressed data is larger than a chunk")
    except IndexError:
        raise ValueError("its compressed data is cut off") from None
    return bytes(out)


def fletcher32(data: bytes) -> tuple[int, int]:
    """HDF5's checksum of some bytes as its two sums, each modulo 65535."""
    words = np.frombuffer(data + b"\0" * (len(data) % 2), ">u2").astype(np.int64)
    first = second = 0
    for start in range(0, words.size, 1 << 16):
        block = words[start : start + (1 << 16)]
        weights = np.arange(block.size, 0, -1, dtype=np.int64)
        second += first * block.size + int((block * weights).sum())
        first += int(block.sum())
    return first % 65535, second % 65535


def _folded(stored: int) -> tuple[int, int]:
    return (stored & 0xFFFF) % 65535, (stored >> 16) % 65535


def _swapped(stored: int) -> int:
    """As HDF5 before 1.6.3 wrote it on some machines: the bytes of each sum in the other order."""
    return (stored & 0x00FF00FF) << 8 | (stored >> 8) & 0x00FF00FF


class _Gathered(_Reader):
    """A small tensor in logical order, picked out of its stored elements with strides (none: as it is stored)."""

    def __init__(self, tensor: Tensor) -> None:
        stored = _small(tensor).reshape(-1)
        if tensor.strides:
            width = stored.itemsize
            view = np.lib.stride_tricks.as_strided(
                stored, tensor.shape, [stride * width for stride in tensor.strides], writeable=False
            )
            stored = np.ascontiguousarray(view).reshape(-1)
        self._data = stored.view(np.uint8).data

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self._data[offset : offset + len(buffer)]

    def close(self) -> None:
        self._data = memoryview(b"")


def _small(tensor: Tensor) -> npt.NDArray[Any]:
    """The stored elements of a tensor that fits in memory."""
    header = _header(tensor)
    try:
        dtype, shape = dtype_of(header), tuple(header.shape or ())
        if dtype is None or prod(shape) != tensor.size or tensor.size * dtype.itemsize > MAX_GATHERED:
            raise ValueError("the file has changed")
        if header.layout != CHUNKED:
            data = _in_one_piece(tensor, header, tensor.size * dtype.itemsize)
            return np.frombuffer(data, dtype, tensor.size).reshape(shape)
    except (Hdf5Error, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise _damaged(tensor, error.reason if isinstance(error, Hdf5Error) else h5_reason(error)) from error
    with _Chunks(tensor) as chunks:
        assert isinstance(chunks, _Chunks)
        return chunks.whole()


def _in_one_piece(tensor: Tensor, header: StoredData, nbytes: int) -> bytes:
    if header.layout == COMPACT:
        (text,) = ask_hdf5("compact", tensor.path, dataset=tensor.dataset, most=nbytes)
        return base64.b64decode(text)
    if header.offset is None and nbytes:
        raise ValueError("its data was never written")
    with open_file(tensor.path) as file:
        return file.read_at(header.offset or 0, nbytes)
