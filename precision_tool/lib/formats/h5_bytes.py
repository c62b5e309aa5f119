"""The bytes of tensors of HDF5 files, with bounded memory whatever the file claims.

What lies in one piece is read as any other file is (`Access.BYTES`). Chunks are read one at a time and decompressed
here: HDF5's own filters give a compressed chunk all the memory that it asks for, and a damaged one can end the process.
h5py is imported when needed.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from contextlib import AbstractContextManager
from math import prod
from types import ModuleType, TracebackType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from precision_tool.lib.errors import FormatError, PrecisionToolError, UsageError, shown_name
from precision_tool.lib.model.tensor import Access, Tensor
from precision_tool.lib.storage.files import LocalFile

#: What HDF5 files of any kind begin with.
SIGNATURE = b"\x89HDF\r\n\x1a\n"
#: The superblock of version 0 or 1 up to the end of the widest address of a driver information block.
_SUPERBLOCK = 28 + 4 * 8
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

#: What h5py raises, whatever is wrong.
H5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError, NotImplementedError)

REFUSED_HINT = "the PyTorch dumper writes no such file: dump again, and do not trust where this one is from"
INSTALL_HINT = "install it: pip install h5py, or pip install 'precision-tool[h5]'"


def h5py_module(path: str) -> ModuleType:
    """h5py. UsageError that says how to install it; `path` is what it is needed for."""
    try:
        import h5py
    except ImportError as error:
        raise UsageError(f"{path}: .h5 files need the package h5py, which is not here", INSTALL_HINT) from error
    module: ModuleType = h5py
    return module


def alone(path: str) -> AbstractContextManager[Any]:
    """h5py's own lock, to be held while it is used: HDF5 is not safe beside threads, and not all of h5py takes it."""
    lock: AbstractContextManager[Any] = h5py_module(path)._objects.phil
    return lock


def h5_reason(error: BaseException) -> str:
    """What h5py says, in one line."""
    text = str(error.args[0]) if error.args else ""
    return text.splitlines()[0] if text else type(error).__name__


def open_h5(path: str) -> Any:
    """The file opened for reading, as h5py gives it. The user's errors say what is wrong with it."""
    with LocalFile(path) as file:  # is it there, a file, readable?
        size = file.size
        _check_superblock(file)
    h5py = h5py_module(path)
    try:
        with alone(path):
            return h5py.File(path, "r", locking=False)
    except H5_ERRORS as error:
        why = "the file is empty" if size == 0 else h5_reason(error)
        raise FormatError(f"{path}: no HDF5 file that can be read: {why}", "copy or dump it again") from error


def _check_superblock(file: LocalFile) -> None:
    """Refuses what HDF5 would take at its word when it opens the file: memory of a size that four bytes claim."""
    head = file.read_at(0, min(file.size, _SUPERBLOCK))
    if not head.startswith(SIGNATURE):
        place = 512
        while place + len(SIGNATURE) <= file.size:  # where HDF5 looks as well
            if file.read_at(place, len(SIGNATURE)) == SIGNATURE:
                raise FormatError(f"{file.path}: refused: its HDF5 data begin at byte {place} only", REFUSED_HINT)
            place *= 2
        return  # HDF5 says what is wrong
    version, width = (head[8], head[13]) if len(head) == _SUPERBLOCK else (2, 0)
    if version > 1:
        return
    place = (24 if version == 0 else 28) + 3 * width
    if head[place : place + width] != b"\xff" * width:
        raise FormatError(
            f"{file.path}: refused: it names a driver information block (byte {place}), as files of several parts have",
            REFUSED_HINT,
        )


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
    return LocalFile(tensor.path)


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


class _Chunks(_Reader):
    """Chunks as if they lay one after the other, in the order of their places."""

    def __init__(self, tensor: Tensor) -> None:
        self._name = f"{tensor.path}: {shown_name(tensor.dataset)}"
        self._raw = LocalFile(tensor.path)
        self._file: Any = None
        try:
            self._file = open_h5(tensor.path)
            self._alone = alone(tensor.path)
            try:
                with self._alone:
                    self._open(tensor.dataset)
            except H5_ERRORS as error:
                raise self._damaged(h5_reason(error)) from error
            self._nbytes = prod(self._chunk) * self._dtype.itemsize
            if self._nbytes > MAX_CHUNK:  # it was not, when the header was read
                raise self._damaged("the file has changed")
        except PrecisionToolError:
            self.close()
            raise
        self._grid = tuple(-(-extent // chunk) for extent, chunk in zip(self._shape, self._chunk, strict=True))
        self._kept: OrderedDict[int, memoryview] = OrderedDict()

    def _open(self, dataset: str) -> None:
        self._id = self._file[dataset].id
        properties = self._id.get_create_plist()
        self._chunk = tuple(properties.get_chunk())
        self._filters = [properties.get_filter(number)[0] for number in range(properties.get_nfilters())]
        self._shape, self._dtype = tuple(self._id.shape), self._id.dtype

    def _damaged(self, why: str) -> FormatError:
        return FormatError(f"{self._name}: cannot be read: {why}", "the file is damaged: copy or dump it again")

    def close(self) -> None:
        self._raw.close()
        if self._file is not None:
            with self._alone:
                self._file.close()

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
        place = self.place(number)
        try:
            decoded = self._decoded(place)
        except (*H5_ERRORS, zlib.error) as error:
            raise self._damaged(f"chunk at {list(place)}: {h5_reason(error)}") from error
        if len(decoded) != self._nbytes:
            raise self._damaged(f"chunk at {list(place)} holds {len(decoded)} bytes instead of {self._nbytes}")
        known = self._kept[number] = memoryview(decoded).cast("B")
        return known

    def place(self, number: int) -> tuple[int, ...]:
        """The index of the first element of a chunk."""
        place = []
        for count, chunk in zip(reversed(self._grid), reversed(self._chunk), strict=True):
            number, at = divmod(number, count)
            place.append(at * chunk)
        return tuple(reversed(place))

    def _decoded(self, place: tuple[int, ...]) -> bytes:
        mask, data = self._stored(place)
        for number in reversed(range(len(self._filters))):
            if not mask >> number & 1:
                data = self._undo(self._filters[number], data)
        raw: bytes = data
        return raw

    def _stored(self, place: tuple[int, ...]) -> tuple[int, bytes]:
        """A chunk as it lies in the file, and the filters that were left out (bits).

        Not read by HDF5, which copies as many bytes as the index claims into a buffer of a chunk's size.
        """
        with self._alone:
            info = self._id.get_chunk_info_by_coord(place)
            if info.byte_offset is None:
                raise ValueError("it was never written")
        applied = [number for number in range(len(self._filters)) if not info.filter_mask >> number & 1]
        if info.size > 2 * self._nbytes + _SLACK or (not applied and info.size != self._nbytes):
            raise ValueError(f"it claims {info.size} bytes instead of {self._nbytes}")
        return info.filter_mask, self._raw.read_at(info.byte_offset, info.size)

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
            at = self.place(number)
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
    where = f"{tensor.path}: {shown_name(tensor.dataset)}"
    with open_h5(tensor.path) as file, alone(tensor.path):
        try:
            dataset = file[tensor.dataset].id
            is_chunked = dataset.get_create_plist().get_layout() == h5py_module(tensor.path).h5d.CHUNKED
            if prod(dataset.shape) != tensor.size or tensor.size * dataset.dtype.itemsize > MAX_GATHERED:
                raise ValueError("the file has changed")
            array = np.empty(dataset.shape, dataset.dtype)
            if not is_chunked:
                space = dataset.get_space()
                dataset.read(space, space, array, mtype=dataset.get_type())
                return array
        except H5_ERRORS as error:
            hint = "the file is damaged: copy or dump it again"
            raise FormatError(f"{where}: cannot be read: {h5_reason(error)}", hint) from error
    with _Chunks(tensor) as chunks:
        assert isinstance(chunks, _Chunks)
        return chunks.whole()
