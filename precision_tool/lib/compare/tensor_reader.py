"""Tensors read in boxes, decoded and in logical order, with a few reused buffers whatever their size.

`Budget` says how much is worked on at once. `OpenTensors` keeps files open, and small tensors in memory, while many
pairs are compared.
"""

from __future__ import annotations

import ctypes
import resource
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.compare.scheduler import check_stopping
from precision_tool.lib.io import data_types
from precision_tool.lib.io.data_types import DataType, Numbers
from precision_tool.lib.io.files import open_file
from precision_tool.lib.io.layouts import Box, copy_box, head_box, split_boxes, storage_slices
from precision_tool.lib.io.native.library import address
from precision_tool.lib.io.stores import StoredFile
from precision_tool.lib.io.tensor_bytes import open_bytes
from precision_tool.lib.messages.errors import FormatError, PrecisionToolError
from precision_tool.lib.model.tensor import Access, Plan, Tensor

#: A blocked tensor up to this many bytes is read once and cut in memory instead of in many small reads.
_WHOLE_READ = 4 << 20
#: Runs in which a piece of rows may lie to be read alone.
_ROW_RUNS = 16
#: Items of a box of a tensor that is read as it lies, and of one that is read in fewer and longer runs.
_FLAT_ITEMS, _BOX_ITEMS = 1 << 17, 1 << 19
#: Bytes looked at, in each of two places, to find out how a type below eight bits is stored.
_PROBE_BYTES = 1 << 16

Bytes = npt.NDArray[np.uint8]
#: What gives the bytes of a tensor.
Opens = Callable[[Tensor], StoredFile]


class Scratch:
    """Buffers that grow to the largest block and are used again."""

    def __init__(self) -> None:
        self._arrays: dict[str, npt.NDArray[np.uint8]] = {}

    def bytes(self, name: str, count: int) -> npt.NDArray[np.uint8]:
        """`count` bytes, their content undefined."""
        array = self._arrays.get(name)
        if array is None or array.size < count:
            array = self._arrays[name] = np.empty(count + 64, np.uint8)
        return array[:count]

    def numbers(self, name: str, count: int, dtype: np.dtype) -> Numbers:
        """`count` items of `dtype`, their content undefined."""
        numbers: Numbers = self.bytes(name, count * dtype.itemsize).view(dtype)
        return numbers


def box_size(box: Box) -> int:
    """Number of items in a box."""
    return prod(stop - start for start, stop in box)


def _is_packed(file: StoredFile, tensor: Tensor, data_type: DataType) -> bool:
    """False where a type below eight bits takes a byte an element, as in some dumps.

    Their length does not tell: sizes are rounded up (to 32 bytes, say), so that packed bytes may be as many as the
    elements or more. A byte an element it is only if each byte is a code of the type, its upper bits copies of the
    sign or zero, and the bytes behind those that would be packed are no padding, which is zero. Packed data of any
    size hardly ever looks like that, so the first bytes of both places decide.
    """
    packed_size = data_type.byte_size(tensor.size)
    if tensor.nbytes < tensor.size or tensor.size <= packed_size:
        return True
    codes, rest = (
        np.frombuffer(file.read_at(tensor.offset + start, min(_PROBE_BYTES, tensor.size - start)), np.uint8)
        for start in (0, packed_size)
    )
    is_code = codes < 1 << data_type.bits
    if data_type.name in ("int4", "int2"):
        is_code |= codes >= 256 - (1 << (data_type.bits - 1))
    return not (is_code.all() and rest.any())


class TensorReader:
    """Reads boxes of one tensor as `dtype` (a float, or its own 64-bit integer) in the logical order of `plan`."""

    def __init__(
        self,
        tensor: Tensor,
        plan: Plan,
        dtype: np.dtype,
        scratch: Scratch,
        name: str,
        opens: Opens = open_bytes,
    ) -> None:
        self._tensor = tensor
        self._type = data_types.BY_NAME[tensor.dtype]
        self._reals = data_types.reals_per_element(self._type)
        self._plan = plan.with_trailing(self._reals) if self._reals > 1 else plan
        self.logical_shape = self._plan.logical_shape
        self.granules = self._plan.blocks
        self.dtype = dtype
        self._scratch = scratch
        self._name = name
        self._bits = self._type.bits // self._reals
        self._file = opens(tensor)
        packed = False
        if self._type.bits < 8:
            try:
                packed = _is_packed(self._file, tensor, self._type)
            except PrecisionToolError:
                self._file.close()
                raise
            self._bits = self._bits if packed else 8
        self._decode = data_types.decoder(self._type, packed=packed, big_endian=tensor.big_endian)
        # Stored just as it is computed with: read straight into the caller's buffer.
        self._is_direct = (
            self._type.decode == "numpy" and np.dtype(self._type.numpy_name) == dtype and not tensor.big_endian
        )
        #: What stored items are moved as before they are decoded: what is decoded is then in order, and half as long.
        self._item = np.dtype(f"u{self._bits // 8}") if self._is_direct or self._bits == 16 else None
        #: All bytes of the tensor, where they are in memory.
        self._raw: npt.NDArray[np.uint8] | None = None
        #: Whether a small tensor may be read into memory whole.
        self.reads_whole = True
        #: Told of bytes as they are read from the file: where they lie in the tensor, and the bytes.
        self.watch: Callable[[int, npt.NDArray[np.uint8]], None] | None = None
        self.is_flat = self._plan.is_flat

    def use_memory(self) -> None:
        """Take the bytes from memory where they lie there, as long as no other tensor is kept."""
        if self._raw is None and isinstance(self._file, _Opened):
            self._raw = self._file.held()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _read_run(self, start: int, count: int, out: Numbers) -> None:
        """`count` stored items from item `start`, decoded."""
        if start * self._bits % 8:
            raise FormatError.of(self._tensor.path, "compare.not_on_byte", dtype=self._type.name)
        offset = start * self._bits // 8
        size = (count * self._bits + 7) // 8
        if self._raw is not None:
            self._decode(self._raw[offset : offset + size], out)
        elif self._is_direct:
            self._read_bytes(offset, out.view(np.uint8))
        else:
            raw = self._scratch.bytes(f"{self._name}.raw", size)
            self._read_bytes(offset, raw)
            self._decode(raw, out)

    def _read_bytes(self, offset: int, out: npt.NDArray[np.uint8]) -> None:
        self._file.read_into(self._tensor.offset + offset, out.data)
        if self.watch is not None:
            self.watch(offset, out)

    @property
    def size(self) -> int:
        """Real numbers in the logical tensor."""
        return prod(self.logical_shape)

    def boxes(self) -> list[Box]:
        """Return the tensor in parts of bounded size for `read`, outer axes cut first; in flat order if `is_flat`."""
        if self.is_flat:
            return split_boxes((self.size,), (1,), _FLAT_ITEMS)
        return split_boxes(self.logical_shape, self.granules, _BOX_ITEMS)

    def read(self, box: Box, out: Numbers) -> None:
        """Return the items of one of the `boxes`."""
        if self.is_flat:
            self.read_flat(*box[0], out)
        else:
            self.read_box(box, out)

    def whole(self, dtype: np.dtype[Any] | type[np.generic] | None = None) -> npt.NDArray[Any]:
        """Return all items in logical order and shape, in an array of their own, of the reader's type or `dtype`."""
        array = np.empty(self.logical_shape, self.dtype if dtype is None else dtype)
        self.use_memory()  # nothing else is read meanwhile
        for box in self.boxes():
            part = array.reshape(-1)[slice(*box[0])] if self.is_flat else array[tuple(slice(*limits) for limits in box)]
            if part.dtype == self.dtype and part.flags.c_contiguous:
                self.read(box, part.reshape(-1))
                continue
            items = self._scratch.numbers(f"{self._name}.items", box_size(box), self.dtype)
            self.read(box, items)
            part[...] = items.reshape(part.shape)
        return array

    def rows(self, pieces: Sequence[tuple[int, int]], count: int, dtype: np.dtype[Any] | type[np.generic]) -> Numbers:
        """Return the rows from `start` to `stop` of each piece, flat, of the `count` rows that the items fall into.

        Only these are read of a tensor that lies in that order, or whose rows lie in a few runs, and of one in blocks
        whose rows are the lines of images.
        """
        per_row = self.size // count
        total = sum(stop - start for start, stop in pieces)
        values = np.empty(total * per_row, dtype)
        is_direct = values.dtype == self.dtype
        lines = self.logical_shape[1] if len(self.logical_shape) == 4 else 0
        are_lines = lines > 1 and not self.is_flat and count == self.logical_shape[0] * lines
        if not self.is_flat and not are_lines and not self._rows_are_runs(count):
            whole = self.whole(dtype).reshape(count, -1)
            return np.concatenate([whole[start:stop] for start, stop in pieces]).reshape(-1)
        place = 0
        for start, stop in pieces:
            size = (stop - start) * per_row
            part = values[place : place + size]
            items = part if is_direct else self._scratch.numbers(f"{self._name}.items", size, self.dtype)
            if self.is_flat:
                self.read_flat(start * per_row, stop * per_row, items)
            elif are_lines:
                self._read_lines(start, stop, lines, items)
            else:
                self.read_box(((start, stop), *((0, extent) for extent in self.logical_shape[1:])), items)
            if not is_direct:
                part[...] = items
            place += size
        return values

    def _read_lines(self, start: int, stop: int, lines: int, out: Numbers) -> None:
        """Return lines of images, each of which has so many, that follow one another in logical order into `out`."""
        per_line, place = prod(self.logical_shape[2:]), 0
        while start < stop:
            image, first = divmod(start, lines)
            end = min(lines, first + stop - start)
            size = (end - first) * per_line
            rest = ((0, extent) for extent in self.logical_shape[2:])
            self.read_box(((image, image + 1), (first, end), *rest), out[place : place + size])
            place += size
            start += end - first

    def _rows_are_runs(self, count: int) -> bool:
        """Return whether neighbouring rows along the first axis, which has `count` of them, lie in a few runs."""
        before = next((at for at, (axis, _) in enumerate(self._plan.axes) if axis == 0), None)
        if before is None or self.logical_shape[:1] != (count,):
            return False
        return prod(self._plan.storage_shape[:before]) <= _ROW_RUNS

    def head(self, count: int) -> Numbers:
        """Return the first `count` items in logical order (all, if there are fewer), in an array of their own."""
        count = min(count, self.size)
        box = ((0, count),) if self.is_flat else head_box(self.logical_shape, count)
        items = np.empty(box_size(box) if count else 0, self.dtype)
        if count:
            self.read(box, items)
        return items[:count]

    def read_flat(self, start: int, stop: int, out: Numbers) -> None:
        """Return the items `start` to `stop` of a tensor that is read as it lies (`is_flat`)."""
        self._read_run(start, stop - start, out)

    def in_memory(self, start: int, stop: int) -> Numbers | None:
        """Return the items `start` to `stop` as they lie in memory; None where they must be read or decoded."""
        if self._raw is None or not self._is_direct:
            return None
        items: Numbers = self._raw[start * self.dtype.itemsize : stop * self.dtype.itemsize].view(self.dtype)
        return items

    def read_box(self, box: Box, out: Numbers) -> None:
        """Return the items of `box` in logical order into `out` (flat, as long as the box)."""
        plan = self._plan
        if any(start % granule for (start, _), granule in zip(box, self.granules, strict=True)):
            self._read_unaligned(box, out)
            return
        slices = storage_slices(plan, box)
        shape = tuple(part.stop - part.start for part in slices)
        extents = [stop - start for start, stop in box]
        if self._raw is None and self.reads_whole and self._tensor.nbytes <= _WHOLE_READ:
            whole = self._scratch.bytes(f"{self._name}.whole", self._tensor.nbytes)
            self._read_bytes(0, whole)
            self._raw = whole
        if self._item is None:
            stored = self._scratch.numbers(f"{self._name}.stored", prod(shape), self.dtype)
            for place, start, count in self._runs(slices, shape):
                self._read_run(start, count, stored[place : place + count])
            copy_box(plan, stored.reshape(shape), out.reshape(extents))
            return
        items = self._items(slices, shape, self._item)
        if self._is_direct:
            copy_box(plan, items, out.view(self._item).reshape(extents))
            return
        ordered = self._scratch.numbers(f"{self._name}.ordered", out.size, self._item)
        copy_box(plan, items, ordered.reshape(extents))
        self._decode(ordered.view(np.uint8), out)

    def _items(self, slices: Sequence[slice], shape: tuple[int, ...], item: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return a part of the stored array as its items lie, not decoded."""
        size = prod(self._plan.storage_shape) * item.itemsize
        if self._raw is not None and self._raw.size >= size:
            stored: npt.NDArray[Any] = self._raw[:size].view(item).reshape(self._plan.storage_shape)
            taken: tuple[Any, ...] = (*slices, ...)
            part: npt.NDArray[Any] = stored[taken]
            return part
        raw = self._scratch.bytes(f"{self._name}.raw", prod(shape) * item.itemsize)
        for place, start, count in self._runs(slices, shape):
            run = raw[place * item.itemsize : (place + count) * item.itemsize]
            self._read_bytes(start * item.itemsize, run)
        return raw.view(item).reshape(shape)

    def _runs(self, slices: Sequence[slice], shape: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
        """Return the runs that a part of the stored array lies in: (place in the part, first stored item, items)."""
        storage = self._plan.storage_shape
        # The innermost axes that are taken whole, and the first that is not, lie in one run.
        inner = len(shape)
        while inner > 0 and shape[inner - 1] == storage[inner - 1]:
            inner -= 1
        first = max(inner - 1, 0)
        run = prod(shape[first:])
        strides = [prod(storage[axis + 1 :]) for axis in range(len(shape))]
        place = 0
        for index in product(*(range(part.start, part.stop) for part in slices[:first])):
            start = sum(i * stride for i, stride in zip(index, strides, strict=False))
            if first < len(slices):
                start += slices[first].start * strides[first]
            yield place, start, run
            place += run

    def _read_unaligned(self, box: Box, out: Numbers) -> None:
        """Return a box that does not begin on borders of blocks: cut out of the one that does and holds it."""
        around = tuple(
            (start // granule * granule, stop) for (start, stop), granule in zip(box, self.granules, strict=True)
        )
        items = self._scratch.numbers(f"{self._name}.around", box_size(around), self.dtype)
        self.read_box(around, items)
        whole = items.reshape([stop - start for start, stop in around])
        cut = tuple(slice(start - first, None) for (start, _), (first, _) in zip(box, around, strict=True))
        out.reshape([stop - start for start, stop in box])[...] = whole[cut]


# --- how much at once -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Sizes; none of them changes a result by more than the order of a sum."""

    #: Items the arithmetic works on at once: few enough to stay in the cache, enough to outweigh the calls.
    block: int = 1 << 17
    #: Items of a box of a tensor in blocked layout, which is read with fewer and longer runs.
    box: int = 1 << 19
    #: Tensors up to this many items are kept decoded between the two rounds of passes.
    kept_items: int = 1 << 22
    #: Bytes of one part of a split tensor, and from how many bytes on a tensor is split.
    part_bytes: int = 128 << 20
    split_bytes: int = 256 << 20
    #: Below this many bytes starting processes takes longer than the comparison.
    serial_bytes: int = 64 << 20
    #: Bytes of tensors, as they are stored, that a worker keeps for the next pairs, and of the largest of them.
    stored_bytes: int = 24 << 20
    stored_tensor: int = 8 << 20
    #: Files that a worker keeps open.
    open_files: int = 192

    def among_threads(self, threads: int) -> Budget:
        """That of one of several threads, which together may open as many files as this process: half of them."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit == resource.RLIM_INFINITY:
            return self
        return replace(self, open_files=max(2, min(self.open_files, limit // (2 * threads))))


#: What is used where no other is asked for.
DEFAULT_BUDGET = Budget()


# --- open files -------------------------------------------------------------------------------------------------------


#: The path, data set and offset of a tensor.
TensorKey = tuple[str, str, int]


def key_of(tensor: Tensor) -> TensorKey:
    """Return a key that tells a tensor from all others."""
    return tensor.path, tensor.dataset, tensor.offset


class OpenTensors:
    """Opens tensors for one worker. Close it, or leave its block, when the pairs are done."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._files: OrderedDict[str, StoredFile] = OrderedDict()
        self._memory: Bytes | None = None
        self._next = 0
        #: Where in the memory tensors lie, in the order of their places: (start, tensor).
        self._places: OrderedDict[TensorKey, tuple[int, Tensor]] = OrderedDict()

    def open(self, tensor: Tensor) -> StoredFile:
        """Return the bytes of a tensor. Closing it leaves its file open for the next one."""
        if tensor.access is not Access.BYTES:
            return open_bytes(tensor)
        return _Opened(self, tensor)

    def file(self, path: str) -> StoredFile:
        """Return a file, opened if it is not. It stays open until many others were asked for."""
        file = self._files.get(path)
        if file is None:
            while len(self._files) >= self._budget.open_files:
                self._files.popitem(last=False)[1].close()
            file = self._files[path] = open_file(path)
        self._files.move_to_end(path)
        return file

    def keep(self, tensor: Tensor) -> None:
        """Read a small tensor whole, so that the next ones who want it find it in memory, for a while."""
        if tensor.access is not Access.BYTES or not 0 < tensor.nbytes <= self._budget.stored_tensor:
            return
        if self.stored(tensor) is not None:
            return
        if self._memory is None:
            self._memory = np.empty(self._budget.stored_bytes, np.uint8)
        size = -(-tensor.nbytes // 8) * 8  # tensors are compared eight bytes at a time
        if size > self._memory.size:
            return
        self._places.pop(key_of(tensor), None)  # a part of it
        if self._next + size > self._memory.size:  # what lies behind is the oldest, and is given up
            self._forget(self._next, self._memory.size)
            self._next = 0
        start, stop = self._next, self._next + size
        self._forget(start, stop)
        file = self.file(tensor.path)
        file.expect(tensor.offset, tensor.nbytes)
        file.read_into(tensor.offset, self._memory[start : start + tensor.nbytes].data)
        self._places[key_of(tensor)] = (start, tensor)
        self._next = stop

    def _forget(self, start: int, stop: int) -> None:
        """Forget the tensors in a part of the memory, which is filled in turn: they are the oldest ones."""
        while self._places:
            place, other = next(iter(self._places.values()))
            if not (place < stop and start < place + other.nbytes):
                return
            self._places.popitem(last=False)

    def stored(self, tensor: Tensor) -> Bytes | None:
        """Return the bytes of a tensor that is in memory; the next one that is kept may overwrite them."""
        place = self._places.get(key_of(tensor))
        if place is None or self._memory is None or place[1].nbytes < tensor.nbytes:
            return None
        return self._memory[place[0] : place[0] + tensor.nbytes]

    def same_bytes(self, left: Tensor, right: Tensor) -> bool:
        """Return whether two tensors have the same bytes."""
        if left.nbytes != right.nbytes:
            return False
        left_bytes, right_bytes = self.stored(left), self.stored(right)
        if left_bytes is not None and right_bytes is not None:
            return equal_bytes(left_bytes, right_bytes)
        return same_range(left, 0, right, 0, left.nbytes, self.open)

    def close(self) -> None:
        """Close all files and forgets what was kept."""
        while self._files:
            self._files.popitem()[1].close()
        self._places.clear()
        self._next = 0

    def __enter__(self) -> OpenTensors:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Opened(StoredFile):
    """The bytes of one tensor: from memory where they are there, else from the file."""

    def __init__(self, tensors: OpenTensors, tensor: Tensor) -> None:
        self.path, self.size = tensor.path, tensor.offset + tensor.nbytes
        self._tensors = tensors
        self._tensor = tensor
        if tensors.stored(tensor) is None:
            # What is wrong with the file is said now.
            tensors.file(tensor.path).expect(tensor.offset, tensor.nbytes)

    def held(self) -> Bytes | None:
        """Return all bytes of the tensor if they are in memory; the next tensor that is kept may overwrite them."""
        return self._tensors.stored(self._tensor)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        stored = self._tensors.stored(self._tensor)
        start = offset - self._tensor.offset
        if stored is None or start < 0 or start + len(buffer) > stored.size:
            self._tensors.file(self._tensor.path).read_into(offset, buffer)
        else:
            np.frombuffer(buffer, np.uint8)[...] = stored[start : start + len(buffer)]

    def close(self) -> None:
        """Do nothing: the file stays open."""


# --- tensors byte by byte ---------------------------------------------------------------------------------------------


#: Bytes of both sides that are compared at once.
_COMPARED_BYTES = 1 << 20
#: C's own: numpy would make an array of the results, and a memoryview go through its items one by one.
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first and the last byte that differ, counted from the start of the tensor, and how many there are."""

    first: int
    last: int
    count: int


def equal_bytes(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> bool:
    """Return whether two arrays, each in one piece of memory, have the same bytes."""
    assert left.flags.c_contiguous
    assert right.flags.c_contiguous
    return left.nbytes == right.nbytes and _memcmp(address(left), address(right), left.nbytes) == 0


def is_alike(left: Tensor, right: Tensor) -> bool:
    """Return whether two tensors can be compared byte by byte: stored in one type, order and shape."""
    return (left.dtype, left.shape, left.layout, left.nbytes, left.big_endian, left.fortran_order) == (
        right.dtype, right.shape, right.layout, right.nbytes, right.big_endian, right.fortran_order
    )  # fmt: skip


def _bytes_of_both(
    left: Tensor, start: int, right: Tensor, other: int, size: int, opens: Opens
) -> Iterator[tuple[int, Bytes, Bytes]]:
    """Yield `size` bytes of one tensor from `start` and of another from `other`, in blocks and with their place."""
    buffers = np.empty((2, min(_COMPARED_BYTES, size)), np.uint8)
    with opens(left) as a, opens(right) as b:
        for done in range(0, size, _COMPARED_BYTES):
            check_stopping()
            left_block, right_block = buffers[:, : min(_COMPARED_BYTES, size - done)]
            a.read_into(left.offset + start + done, left_block.data)
            b.read_into(right.offset + other + done, right_block.data)
            yield done, left_block, right_block


def same_range(left: Tensor, start: int, right: Tensor, other: int, size: int, opens: Opens = open_bytes) -> bool:
    """Return whether `size` bytes of one tensor from `start` are those of another from `other`."""
    return all(equal_bytes(a, b) for _, a, b in _bytes_of_both(left, start, right, other, size, opens))


def difference(left: Tensor, right: Tensor) -> Difference | None:
    """Return where two tensors of one size differ; None if they are equal. FormatError for a damaged file."""
    first = last = -1
    count = 0
    for start, a, b in _bytes_of_both(left, 0, right, 0, left.nbytes, open_bytes):
        if equal_bytes(a, b):
            continue
        places = np.flatnonzero(a != b)
        first = start + int(places[0]) if first < 0 else first
        last = start + int(places[-1])
        count += places.size
    return Difference(first=first, last=last, count=count) if count else None
