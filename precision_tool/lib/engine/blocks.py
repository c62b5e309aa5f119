"""Tensors read in boxes, decoded and in logical order, with a few reused buffers whatever their size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.errors import FormatError, PrecisionToolError
from precision_tool.lib.formats.tensor_bytes import TensorBytes, open_bytes
from precision_tool.lib.model.tensor import Plan, Tensor
from precision_tool.lib.numbers import data_types, decode
from precision_tool.lib.numbers.data_types import DataType
from precision_tool.lib.numbers.decode import Numbers
from precision_tool.lib.numbers.layouts import Box, copy_box, head_box, split_boxes, storage_slices

#: A blocked tensor up to this many bytes is read once and cut in memory instead of in many small reads.
_WHOLE_READ = 4 << 20
#: Runs in which a piece of rows may lie to be read alone.
_ROW_RUNS = 16
#: Items of a box of a tensor that is read as it lies, and of one that is read in fewer and longer runs.
_FLAT_ITEMS, _BOX_ITEMS = 1 << 17, 1 << 19
#: What is said of a tensor that memory does not suffice for.
NO_MEMORY = "not enough memory for this tensor"
#: Bytes looked at, in each of two places, to find out how a type below eight bits is stored.
_PROBE_BYTES = 1 << 16


#: What gives the bytes of a tensor.
Opens = Callable[[Tensor], TensorBytes]


class HeldBytes(ABC):
    """Bytes that may be in memory. No protocol: whether an object has its methods takes long to find out."""

    @abstractmethod
    def held(self) -> npt.NDArray[np.uint8] | None:
        """All bytes of the tensor, until the next one is read; None if they are not in memory."""


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


def _is_packed(file: TensorBytes, tensor: Tensor, data_type: DataType) -> bool:
    """False where a type below eight bits takes a byte an element, as in some dumps.

    Their length does not tell: sizes are rounded up (to 32 bytes, say), so that packed bytes may be as many as the
    elements or more. A byte an element it is only if each byte is a code of the type, its upper bits copies of the
    sign or zero, and the bytes behind those that would be packed are no padding, which is zero. Packed data of any
    size hardly ever looks like that, so the first bytes of both places decide.
    """
    packed_size = data_type.byte_size(tensor.size)
    if tensor.nbytes < tensor.size or tensor.size <= packed_size:
        return True
    codes, behind = (
        np.frombuffer(file.read_at(tensor.offset + start, min(_PROBE_BYTES, tensor.size - start)), np.uint8)
        for start in (0, packed_size)
    )
    is_code = codes < 1 << data_type.bits
    if data_type.name in ("int4", "int2"):
        is_code |= codes >= 256 - (1 << (data_type.bits - 1))
    return not (is_code.all() and behind.any())


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
        stored: npt.NDArray[np.uint8] | None = None,
        *,
        reads_whole: bool = True,
    ) -> None:
        """`stored` are its bytes where they are in memory already; without `reads_whole` they never are all at once."""
        self._tensor = tensor
        self._type = data_types.BY_NAME[tensor.dtype]
        self._reals = decode.reals_per_element(self._type)
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
        self._decode = decode.decoder(self._type, packed=packed, big_endian=tensor.big_endian)
        # Stored just as it is computed with: read straight into the caller's buffer.
        self._is_direct = (
            self._type.decode == "numpy" and np.dtype(self._type.numpy_name) == dtype and not tensor.big_endian
        )
        #: What stored items are moved as before they are decoded: what is decoded is then in order, and half as long.
        self._item = np.dtype(f"u{self._bits // 8}") if self._is_direct or self._bits == 16 else None
        self._raw = stored
        self._reads_whole = reads_whole
        #: Told of bytes as they are read from the file: where they lie in the tensor, and the bytes.
        self.watch: Callable[[int, npt.NDArray[np.uint8]], None] | None = None
        self.is_flat = self._plan.is_flat

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _read_run(self, start: int, count: int, out: Numbers) -> None:
        """`count` stored items from item `start`, decoded."""
        if start * self._bits % 8:
            raise FormatError.of(
                self._tensor.path,
                f"elements of {self._type.name} do not start on a byte in this layout",
                "dump the op in a plain layout",
            )
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
        """The tensor in parts of bounded size for `read`, outer axes cut first; in flat order if `is_flat`."""
        if self.is_flat:
            return split_boxes((self.size,), (1,), _FLAT_ITEMS)
        return split_boxes(self.logical_shape, self.granules, _BOX_ITEMS)

    def read(self, box: Box, out: Numbers) -> None:
        """The items of one of the `boxes`."""
        if self.is_flat:
            self.read_flat(*box[0], out)
        else:
            self.read_box(box, out)

    def whole(self, dtype: np.dtype[Any] | type[np.generic] | None = None) -> npt.NDArray[Any]:
        """All items in logical order and shape, in an array of their own, of the reader's type or `dtype`."""
        array = np.empty(self.logical_shape, self.dtype if dtype is None else dtype)
        if self._raw is None and isinstance(self._file, HeldBytes):
            self._raw = self._file.held()  # nothing else is read meanwhile
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
        """The rows from `start` to `stop` of each piece, flat, of the `count` rows that the items fall into.

        Only these are read of a tensor that lies in that order, or whose rows lie in a few runs.
        """
        per_row = self.size // count
        total = sum(stop - start for start, stop in pieces)
        found = np.empty(total * per_row, dtype)
        is_direct = found.dtype == self.dtype
        if not self.is_flat and not self._rows_are_runs(count):
            whole = self.whole(dtype).reshape(count, -1)
            return np.concatenate([whole[start:stop] for start, stop in pieces]).reshape(-1)
        place = 0
        for start, stop in pieces:
            size = (stop - start) * per_row
            part = found[place : place + size]
            items = part if is_direct else self._scratch.numbers(f"{self._name}.items", size, self.dtype)
            if self.is_flat:
                self.read_flat(start * per_row, stop * per_row, items)
            else:
                self.read_box(((start, stop), *((0, extent) for extent in self.logical_shape[1:])), items)
            if not is_direct:
                part[...] = items
            place += size
        return found

    def _rows_are_runs(self, count: int) -> bool:
        """Whether rows that follow one another along the first axis, which has `count` of them, lie in a few runs."""
        before = next((at for at, (axis, _) in enumerate(self._plan.axes) if axis == 0), None)
        if before is None or self.logical_shape[:1] != (count,):
            return False
        return prod(self._plan.storage_shape[:before]) <= _ROW_RUNS

    def head(self, count: int) -> Numbers:
        """The first `count` items in logical order (all, if there are fewer), in an array of their own."""
        count = min(count, self.size)
        box = ((0, count),) if self.is_flat else head_box(self.logical_shape, count)
        items = np.empty(box_size(box) if count else 0, self.dtype)
        if count:
            self.read(box, items)
        return items[:count]

    def read_flat(self, start: int, stop: int, out: Numbers) -> None:
        """The items `start` to `stop` of a tensor that is read as it lies (`is_flat`)."""
        self._read_run(start, stop - start, out)

    def in_memory(self, start: int, stop: int) -> Numbers | None:
        """The items `start` to `stop` as they lie in memory; None where they would have to be read or decoded."""
        if self._raw is None or not self._is_direct:
            return None
        items: Numbers = self._raw[start * self.dtype.itemsize : stop * self.dtype.itemsize].view(self.dtype)
        return items

    def read_box(self, box: Box, out: Numbers) -> None:
        """The items of `box` in logical order into `out` (flat, as long as the box)."""
        plan = self._plan
        if any(start % granule for (start, _), granule in zip(box, self.granules, strict=True)):
            self._read_unaligned(box, out)
            return
        slices = storage_slices(plan, box)
        shape = tuple(part.stop - part.start for part in slices)
        extents = [stop - start for start, stop in box]
        if self._raw is None and self._reads_whole and self._tensor.nbytes <= _WHOLE_READ:
            whole = self._scratch.bytes(f"{self._name}.whole", self._tensor.nbytes)
            self._read_bytes(0, whole)
            self._raw = whole
        if self._item is None:
            stored = self._scratch.numbers(f"{self._name}.stored", prod(shape), self.dtype)
            self._read_runs(slices, shape, stored)
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
        """A part of the stored array as its items lie, not decoded."""
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

    def _read_runs(self, slices: Sequence[slice], shape: tuple[int, ...], out: Numbers) -> None:
        """A part of the stored array, decoded."""
        for place, start, count in self._runs(slices, shape):
            self._read_run(start, count, out[place : place + count])

    def _runs(self, slices: Sequence[slice], shape: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
        """The runs that a part of the stored array lies in: (place in the part, first stored item, items)."""
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
        """A box that does not begin on borders of blocks: cut out of the one that does and holds it."""
        around = tuple(
            (start // granule * granule, stop) for (start, stop), granule in zip(box, self.granules, strict=True)
        )
        items = self._scratch.numbers(f"{self._name}.around", box_size(around), self.dtype)
        self.read_box(around, items)
        whole = items.reshape([stop - start for start, stop in around])
        cut = tuple(slice(start - first, None) for (start, _), (first, _) in zip(box, around, strict=True))
        out.reshape([stop - start for start, stop in box])[...] = whole[cut]
