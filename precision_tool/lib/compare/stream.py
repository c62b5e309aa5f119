"""The one stream of a pair: both tensors in blocks of the same elements, decoded, in logical order."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from precision_tool.lib.compare.pair_sums import ravel, unravel
from precision_tool.lib.compare.tensor_reader import Budget, OpenTensors, Scratch, TensorReader, box_size, equal_bytes
from precision_tool.lib.io import data_types, decode
from precision_tool.lib.io.decode import Numbers
from precision_tool.lib.io.layouts import Box, split_boxes
from precision_tool.lib.io.stores import StoredFile
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.model.comparison import Pair
from precision_tool.lib.model.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Span:
    """The place of a run of elements: item `start` and on of a box with these lowest indices and extents."""

    lows: tuple[int, ...]
    extents: tuple[int, ...]
    start: int = 0

    def index(self, item: int) -> tuple[int, ...]:
        """Return the index of an item of the run."""
        local = unravel(self.start + item, self.extents) or ()
        return tuple(low + at for low, at in zip(self.lows, local, strict=True))

    def texts(self, count: int) -> Iterator[str]:
        """Return the indices of the first `count` items, numbers with spaces between them."""
        if not self.extents:
            yield from [""] * count
            return
        done, extent, low = 0, self.extents[-1], self.lows[-1]
        while done < count:
            at = (self.start + done) % extent
            outer = "".join(f"{number} " for number in self.index(done)[:-1])
            stop = min(extent, at + count - done)
            yield from (f"{outer}{low + number}" for number in range(at, stop))
            done += stop - at


@dataclass(slots=True)
class Block:
    """Items of both sides: `start` and on of a box, `position` and on in the order of the boxes.

    Its arrays are filled anew for the next block, so what a pass finds out for those behind it belongs here.
    """

    npu: Numbers
    golden: Numbers
    position: int
    box: Box
    start: int
    #: The least and the largest of the NPU's values where all are finite, once a pass has found them.
    npu_range: tuple[float, float] | None = None

    def span(self, shape: tuple[int, ...] | None) -> Span:
        """Return the place of the block; `shape` is that of the indices where the boxes are of a flat stream."""
        if shape is not None:
            return Span((0,) * len(shape), shape, self.box[0][0] + self.start)
        return Span(tuple(low for low, _ in self.box), tuple(stop - low for low, stop in self.box), self.start)


def tensors_of(pair: Pair) -> tuple[Tensor, Tensor]:
    """Return both tensors of a pair that can be compared."""
    assert isinstance(pair.npu, Tensor)
    assert isinstance(pair.golden, Tensor)
    return pair.npu, pair.golden


@dataclass(slots=True)
class _Twin:
    """A tensor that may have the very values of the one that is compared.

    Read in the same runs where it is stored alike, else decoded in the same boxes; not at all where it cannot be.
    """

    tensor: Tensor
    file: StoredFile | None = None
    reader: TensorReader | None = None
    is_alike: bool = True


@contextmanager
def _unread(twin: _Twin) -> Iterator[None]:
    """Return whether a pair's tensor is one; one that cannot be read is not: its own row says so later."""
    try:
        yield
    except PrecisionToolError:
        twin.is_alike = False


def stored_alike(pair: Pair, other: Pair) -> bool:
    """Return whether equal bytes of the NPU's tensors are equal values in one order."""
    own, others = tensors_of(pair)[0], tensors_of(other)[0]
    return (own.dtype, own.nbytes, own.big_endian, pair.npu_plan) == (
        others.dtype, others.nbytes, others.big_endian, other.npu_plan
    )  # fmt: skip


class PairStream:
    """Both sides of a pair, in blocks; with `limit` only the first so many elements."""

    def __init__(self, pair: Pair, opened: OpenTensors, scratch: Scratch, budget: Budget, limit: int = 0) -> None:
        npu, golden = tensors_of(pair)
        assert pair.npu_plan is not None
        assert pair.golden_plan is not None
        self.pair = pair
        self._scratch = scratch
        self._budget = budget
        npu_type = data_types.BY_NAME[npu.dtype]
        self._dtype, self._golden_dtype = decode.compute_types(npu_type, data_types.BY_NAME[golden.dtype])
        self._opened = opened
        self._twins: list[_Twin] = []
        #: Boxes in which these are still to be looked at.
        self._unseen = 0
        #: Bytes that these were held against, and that were needed to be sure.
        self._held = self._needed = 0
        self._reals = decode.reals_per_element(data_types.BY_NAME[npu.dtype])
        self._npu = TensorReader(npu, pair.npu_plan, self._dtype, scratch, "npu", opened.open)
        try:
            self._golden = TensorReader(golden, pair.golden_plan, self._golden_dtype, scratch, "golden", opened.open)
        except PrecisionToolError:
            self._npu.close()
            raise
        self._npu.use_memory()
        self._golden.use_memory()
        #: Whether both sides are read as they lie: the boxes are then runs of elements.
        self.is_flat = self._npu.is_flat and self._golden.is_flat
        shape = self._npu.logical_shape
        #: Real numbers on each side.
        self.size = prod(shape)
        if self.is_flat:
            self.boxes: list[Box] = split_boxes((self.size,), (1,), budget.block)
        else:
            granules = tuple(max(a, b) for a, b in zip(self._npu.granules, self._golden.granules, strict=True))
            self.boxes = split_boxes(shape, granules, budget.box)
        #: Whether the boxes follow each other in the order of the elements; not if an inner axis had to be cut.
        self.is_ordered = self.is_flat or all(_is_contiguous(box, shape) for box in self.boxes[:1])
        #: Whether all blocks are in memory at once, so that a second round reads nothing.
        self.is_kept = self.size <= budget.kept_items
        #: What the boxes are boxes of.
        self.shape = (self.size,) if self.is_flat else shape
        #: What indices of elements are indices of.
        self.index_shape = shape
        if self.is_flat:
            self.index_shape = _shape_of_indices(pair.error_shape, decode.reals_per_element(npu_type), self.size)
        self.end = min(self.size, limit * decode.reals_per_element(npu_type) or self.size)
        self.is_limited = self.end < self.size
        if self.is_limited:
            self.boxes = [box for box in self.boxes if self._flat_index(box, 0) < self.end]

    @property
    def dtypes(self) -> tuple[np.dtype, np.dtype]:
        """The types that both sides are computed with."""
        return self._dtype, self._golden_dtype

    def head(self, count: int) -> list[tuple[float, float]]:
        """Return the first elements of both sides."""
        return list(zip(self._npu.head(count).tolist(), self._golden.head(count).tolist(), strict=True))

    def close(self) -> None:
        """Close all that is open."""
        for side in (self._npu, self._golden, *(twin.reader or twin.file for twin in self._twins)):
            if side is not None:
                side.close()

    def watch(self, pairs: Sequence[Pair]) -> None:
        """Holds the NPU tensors of other pairs of the same benchmark against this one's, when that is read."""
        self._twins = [self._twin(pair) for pair in pairs]
        self._unseen = len(self.boxes)
        self._held = self._needed = 0
        if any(twin.file is not None for twin in self._twins):
            self._npu.watch = self._look_at_run

    def _twin(self, pair: Pair) -> _Twin:
        npu, golden = tensors_of(pair)
        data_type = data_types.BY_NAME[npu.dtype]
        try:
            # Of a type below eight bits what lies behind the elements tells how they are stored.
            if data_type.bits >= 8 and stored_alike(self.pair, pair):
                return _Twin(npu, file=self._opened.open(npu))
            if decode.compute_types(data_type, data_types.BY_NAME[golden.dtype]) == self.dtypes and pair.npu_plan:
                reader = TensorReader(npu, pair.npu_plan, self._dtype, self._scratch, "twin", self._opened.open)
                reader.reads_whole = False
                shape = (reader.size,) if self.is_flat else reader.logical_shape
                if shape == self.shape and (reader.is_flat or not self.is_flat):
                    return _Twin(npu, reader=reader)
                reader.close()
        except PrecisionToolError:
            pass  # it will be told when its own turn comes
        return _Twin(npu, is_alike=False)

    def twins(self) -> list[bool]:
        """Which of the watched tensors had the very values of this one in all boxes that were read."""
        were_told = self._held >= self._needed  # of what lay in memory already nothing was heard
        return [twin.is_alike and (twin.file is None or were_told) for twin in self._twins]

    def blocks(self, start: int = 0, stop: int | None = None, keep: bool = False) -> Iterator[Block]:
        """Return the blocks of the boxes `start` to `stop`.

        The arrays are overwritten by the next box, unless `keep` gives every box its own place in the buffers.
        """
        position = sum(box_size(box) for box in self.boxes[:start])
        for box in self.boxes[start:stop]:
            count = box_size(box)
            place = position if keep else 0
            capacity = self.size if keep else count
            x = self._scratch.numbers("x", capacity, self._dtype)[place : place + count]
            y = self._scratch.numbers("y", capacity, self._golden_dtype)[place : place + count]
            self._read(self._npu, box, x)
            y = self._golden_values(box, y)
            if self._unseen:
                self._look_at_box(box, x)
            block_size = self._block_size(box)
            for begin in range(0, block_size, self._budget.block):
                end = min(block_size, begin + self._budget.block)
                yield Block(x[begin:end], y[begin:end], position + begin, box, begin)
            position += count

    def kept_values(self) -> Numbers | None:
        """Return the NPU's values in order while all blocks lie in the buffers; None where they do not."""
        if not self.is_kept or not self.is_ordered or self.is_limited or not self.boxes:
            return None
        return self._scratch.numbers("x", self.size, self._dtype)

    def holds_values(self, values: Numbers) -> bool:
        """Return whether the NPU tensor, decoded and in order, is bit for bit `values`."""
        if values.dtype != self._dtype or values.size != self.size or not self.is_ordered:
            return False
        position = 0
        for box in self.boxes:
            count = box_size(box)
            x = self._scratch.numbers("candidate", count, self._dtype)
            self._read(self._npu, box, x)
            if not equal_bytes(x, values[position : position + count]):
                return False
            position += count
        return True

    def flat_position(self, position: int) -> int:
        """Return a position in box order as a position in the logical array."""
        if position < 0:
            return position
        for box in self.boxes:
            count = box_size(box)
            if position < count:
                break
            position -= count
        return self._flat_index(box, position)

    def _read(self, side: TensorReader, box: Box, out: Numbers) -> None:
        if self.is_flat:
            side.read_flat(*box[0], out)
        else:
            side.read_box(box, out)

    def _golden_values(self, box: Box, out: Numbers) -> Numbers:
        """Return the benchmark's values of a box: where they lie in memory, else read into `out`."""
        values = self._golden.in_memory(*box[0]) if self.is_flat else None
        if values is not None:
            return values
        self._read(self._golden, box, out)
        return out

    def _look_at_run(self, offset: int, raw: npt.NDArray[np.uint8]) -> None:
        """Holds the bytes that were just read against those of the tensors that are stored alike."""
        self._held += raw.size
        for twin in self._twins:
            if twin.file is not None and twin.is_alike:
                bytes_ = self._scratch.bytes("twin.run", raw.size)
                with _unread(twin):
                    twin.file.read_into(twin.tensor.offset + offset, bytes_.data)
                    twin.is_alike = equal_bytes(raw, bytes_)

    def _look_at_box(self, box: Box, x: Numbers) -> None:
        """Holds a decoded box against those of the tensors that are stored otherwise; after the last one it is over."""
        for twin in self._twins:
            if twin.reader is not None and twin.is_alike and self._unseen:
                values = self._scratch.numbers("twin.values", x.size, x.dtype)
                with _unread(twin):
                    self._read(twin.reader, box, values)
                    twin.is_alike = equal_bytes(x, values)
        self._needed += x.size * data_types.BY_NAME[tensors_of(self.pair)[0].dtype].bits // 8 // self._reals
        self._unseen -= 1
        if not self._unseen:
            self._npu.watch = None

    def _flat_index(self, box: Box, position: int) -> int:
        """Return the position in the whole tensor of item `position` of a box."""
        local = unravel(position, tuple(stop - start for start, stop in box)) or ()
        return ravel((start + at for (start, _), at in zip(box, local, strict=True)), self.shape)

    def _block_size(self, box: Box) -> int:
        """Return how many items of a box lie before the limit; those are its first ones."""
        count = box_size(box)
        if not self.is_limited:
            return count
        return bisect.bisect_left(range(count), self.end, key=lambda position: self._flat_index(box, position))


def _shape_of_indices(shape: tuple[int, ...], reals: int, size: int) -> tuple[int, ...]:
    """Return the shape of errors' indices, if it has the right size; complex numbers have an axis for their parts."""
    shape = shape if prod(shape) * reals == size else ()
    if reals > 1:
        shape = (*(shape or (1,)), reals)
    return shape if prod(shape) == size else (size,)


def _is_contiguous(box: Box, shape: tuple[int, ...]) -> bool:
    """Return whether the elements of a box lie one after the other in an array of `shape`."""
    cut = [axis for axis, (start, stop) in enumerate(box) if stop - start != shape[axis]]
    return not cut or all(stop - start == 1 for start, stop in box[: cut[-1]])


@contextmanager
def open_stream(
    pair: Pair, opened: OpenTensors, scratch: Scratch, budget: Budget, limit: int = 0
) -> Iterator[PairStream]:
    """Return the stream of a pair, closed at the end of the block."""
    stream = PairStream(pair, opened, scratch, budget, limit)
    try:
        yield stream
    finally:
        stream.close()
