"""Compares pairs: reads both sides in blocks, spreads the work over processes by bytes, keeps memory bounded.

Pairs with the same benchmark tensor (an op's output, the inputs it feeds, its copies behind TransData and Cast)
are one bundle: a tensor whose bytes, or decoded values, equal one already compared takes over its result. Tensors
too large for one worker are split into parts whose sums add up.
"""

from __future__ import annotations

import bisect
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from precision_tool.lib.engine.blocks import Scratch, TensorReader
from precision_tool.lib.engine.custom import MAX_BYTES, CustomMetrics, CustomValues, apply_metrics, failed_metrics
from precision_tool.lib.engine.metrics import Kernel, KlSums, Sums, finish, unravel
from precision_tool.lib.engine.statistics import summary_of_statistics
from precision_tool.lib.errors import PrecisionToolError
from precision_tool.lib.formats.h5_bytes import open_bytes
from precision_tool.lib.model.comparison import Comparison, Pair, Status
from precision_tool.lib.model.tensor import AnyTensor, Tensor, TensorStatistics
from precision_tool.lib.numbers import data_types, decode
from precision_tool.lib.numbers.decode import Numbers
from precision_tool.lib.numbers.layouts import Box, split_boxes

#: Items the arithmetic works on at once: few enough to stay in the cache, enough to outweigh the calls.
BLOCK = 1 << 17
#: Items of a box of a tensor in blocked layout, which is read with fewer and longer runs.
_BOX = 1 << 19
#: Tensors up to this many items are kept decoded between the two passes.
_KEEP = 1 << 22
#: Bytes of one part of a split tensor, and from how many bytes on a tensor is split.
_PART_BYTES = 128 << 20
_SPLIT_BYTES = 2 * _PART_BYTES
#: Below this many bytes starting processes takes longer than the comparison.
_SERIAL_BYTES = 64 << 20
#: Bytes compared at once when two tensors may be equal.
_COMPARE_BYTES = 1 << 20
#: How long workers that were killed are waited for.
_CLOSING_SECONDS = 0.5
#: The largest float16, and it and infinity as they are stored, without their signs.
_HALF_LIMIT = 65504.0
_HALF_LIMIT_CODE, _HALF_INF_CODE = 0x7BFF, 0x7C00

T = TypeVar("T")
#: Called with (bytes done, bytes in all).
Progress = Callable[[int, int], None]
#: Called with the bytes done since the call before.
Tell = Callable[[int], None]


class WorkStoppedError(PrecisionToolError):
    """The comparison ended early; `rows` are the rows that are done, the others say so."""

    def __init__(self, message: str, hint: str, rows: Sequence[Comparison], exit_code: int = 130) -> None:
        super().__init__(message, hint)
        self.rows = list(rows)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """What is found out about each pair.

    Without `divergence` the pass that only the KL divergence needs is saved. `limit` compares the first so many
    elements of each tensor, 0 all of them. `overflow` looks for float16 values at the type's limit.
    """

    divergence: bool = True
    limit: int = 0
    overflow: bool = False
    custom: CustomMetrics | None = None


_PLAIN = Measures()

# --- one pair, in a worker ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """Boxes `start` to `stop` of a pair of which every worker makes the same list."""

    pair: Pair
    start: int
    stop: int
    limit: int = 0


class _Reader:
    """Both sides of a pair, in blocks; with `limit` only the first so many elements."""

    def __init__(self, pair: Pair, scratch: Scratch, limit: int = 0) -> None:
        npu, golden = _tensors(pair)
        assert pair.npu_plan is not None
        assert pair.golden_plan is not None
        self._scratch = scratch
        self._dtype, self._golden_dtype = decode.compute_types(
            data_types.BY_NAME[npu.dtype], data_types.BY_NAME[golden.dtype]
        )
        self._npu = TensorReader(npu, pair.npu_plan, self._dtype, scratch, "npu")
        try:
            self._golden = TensorReader(golden, pair.golden_plan, self._golden_dtype, scratch, "golden")
        except PrecisionToolError:
            self._npu.close()
            raise
        self._flat = self._npu.is_flat and self._golden.is_flat
        shape = self._npu.logical_shape
        self._size = prod(shape)
        if self._flat:
            self.boxes: list[Box] = split_boxes((self._size,), (1,), BLOCK)
        else:
            granules = tuple(max(a, b) for a, b in zip(self._npu.granules, self._golden.granules, strict=True))
            self.boxes = split_boxes(shape, granules, _BOX)
        #: Whether the boxes follow each other in the order of the elements; not if an inner axis had to be cut.
        self.is_ordered = self._flat or all(_is_contiguous(box, shape) for box in self.boxes[:1])
        #: What the boxes are boxes of.
        self.shape = (self._size,) if self._flat else shape
        self._end = min(self._size, limit * decode.reals_per_element(data_types.BY_NAME[npu.dtype]) or self._size)
        self.is_limited = self._end < self._size
        if self.is_limited:
            self.boxes = [box for box in self.boxes if self._flat_index(box, 0) < self._end]

    def _flat_index(self, box: Box, position: int) -> int:
        """The position in the whole tensor of item `position` of a box."""
        local = unravel(position, tuple(stop - start for start, stop in box)) or ()
        flat = 0
        for extent, (start, _), at in zip(self.shape, box, local, strict=True):
            flat = flat * extent + start + at
        return flat

    def _wanted(self, box: Box) -> int:
        """How many items of a box lie before the limit; those are its first ones."""
        count = _box_size(box)
        if not self.is_limited:
            return count
        return bisect.bisect_left(range(count), self._end, key=lambda position: self._flat_index(box, position))

    def close(self) -> None:
        self._npu.close()
        self._golden.close()

    @property
    def size(self) -> int:
        """Real numbers on each side."""
        return self._size

    def blocks(self, start: int, stop: int, keep: bool = False) -> Iterator[tuple[Numbers, Numbers, int]]:
        """(NPU, benchmark, position of the first item in box order) of the boxes `start` to `stop`.

        The arrays are overwritten by the next box, unless `keep` gives every box its own place in the buffers.
        """
        position = sum(_box_size(box) for box in self.boxes[:start])
        for box in self.boxes[start:stop]:
            count = _box_size(box)
            place = position if keep else 0
            capacity = self._size if keep else count
            x = self._scratch.numbers("x", capacity, self._dtype)[place : place + count]
            y = self._scratch.numbers("y", capacity, self._golden_dtype)[place : place + count]
            self._read(self._npu, box, x)
            self._read(self._golden, box, y)
            wanted = self._wanted(box)
            for begin in range(0, wanted, BLOCK):
                end = min(wanted, begin + BLOCK)
                yield x[begin:end], y[begin:end], position + begin
            position += count

    def arrays(self) -> tuple[Numbers, Numbers]:
        """Both sides whole, in arrays of their own; of a tensor with a limit the elements before it, flat."""
        sides = []
        for reader, dtype in ((self._npu, self._dtype), (self._golden, self._golden_dtype)):
            array: Numbers = np.empty(self.shape, dtype)
            for box in self.boxes:
                items = self._scratch.numbers("items", _box_size(box), dtype)
                self._read(reader, box, items)
                array[tuple(slice(*limits) for limits in box)] = items.reshape([stop - start for start, stop in box])
            sides.append(array.reshape(-1)[: self._end] if self.is_limited else array)
        return sides[0], sides[1]

    def _read(self, side: TensorReader, box: Box, out: Numbers) -> None:
        if self._flat:
            side.read_flat(*box[0], out)
        else:
            side.read_box(box, out)

    def holds_values(self, values: Numbers) -> bool:
        """True if the NPU tensor, decoded and in order, is bit for bit `values`."""
        if values.dtype != self._dtype or values.size != self._size or not self.is_ordered:
            return False
        words = np.dtype(f"i{self._dtype.itemsize}")
        position = 0
        for box in self.boxes:
            count = _box_size(box)
            x = self._scratch.numbers("candidate", count, self._dtype)
            self._read(self._npu, box, x)
            if not np.array_equal(x.view(words), values[position : position + count].view(words)):
                return False
            position += count
        return True

    def flat_position(self, position: int) -> int:
        """A position in box order as a position in the logical array."""
        if position < 0:
            return position
        for box in self.boxes:
            count = _box_size(box)
            if position < count:
                break
            position -= count
        return self._flat_index(box, position)


def _box_size(box: Box) -> int:
    return prod(stop - start for start, stop in box)


def _is_contiguous(box: Box, shape: tuple[int, ...]) -> bool:
    """True if the elements of a box lie one after the other in an array of `shape`."""
    cut = [axis for axis, (start, stop) in enumerate(box) if stop - start != shape[axis]]
    return not cut or all(stop - start == 1 for start, stop in box[: cut[-1]])


def _tensors(pair: Pair) -> tuple[Tensor, Tensor]:
    assert isinstance(pair.npu, Tensor)
    assert isinstance(pair.golden, Tensor)
    return pair.npu, pair.golden


class Comparer:
    """Compares pairs one after the other with one set of buffers. One per worker."""

    def __init__(self) -> None:
        self._scratch = Scratch()
        self._kernel = Kernel()
        #: The decoded values of the NPU tensor compared last, while they lie in the buffers.
        self._known: Numbers | None = None

    def buffer(self, name: str, count: int) -> npt.NDArray[np.uint8]:
        """`count` bytes that stay allocated; their content is undefined."""
        return self._scratch.bytes(name, count)

    @contextmanager
    def _open(self, pair: Pair, limit: int = 0) -> Iterator[_Reader]:
        reader = _Reader(pair, self._scratch, limit)
        try:
            yield reader
        finally:
            reader.close()

    def compare(self, pair: Pair, tell: Tell | None = None, measures: Measures = _PLAIN) -> Comparison:
        """The finished row of one pair. `tell` hears of the bytes of a large one as they are done."""
        self._known = None
        with self._open(pair, measures.limit) as reader:
            first, second = Sums(), KlSums()
            kept: list[tuple[Numbers, Numbers, int]] = []
            keep = reader.size <= _KEEP
            # Each element of a tensor that is not kept is read, and told of, twice.
            share = _cost(pair) / (2 * reader.size) if tell and not keep else 0.0
            for block in reader.blocks(0, len(reader.boxes), keep):
                self._kernel.add_block(first, *block)
                if keep:
                    kept.append(block)
                elif tell:
                    tell(int(block[0].size * share))
            if _needs_second(first, measures):
                for x, y, _ in kept if keep else reader.blocks(0, len(reader.boxes)):
                    self._kernel.add_second(second, first, x, y)
                    if tell and not keep:
                        tell(int(x.size * share))
            if keep and kept and reader.is_ordered and not reader.is_limited:
                self._known = self._scratch.numbers("x", reader.size, kept[0][0].dtype)
            return _row(pair, reader, first, second)

    def equals_last(self, pair: Pair) -> bool:
        """True if the NPU tensor has the very values of the one compared last, whatever its layout and type."""
        if self._known is None:
            return False
        with self._open(pair) as reader:
            return reader.holds_values(self._known)

    def first_pass(self, part: Part) -> Sums:
        """The first pass over a part."""
        sums = Sums()
        with self._open(part.pair, part.limit) as reader:
            for x, y, position in reader.blocks(part.start, part.stop):
                self._kernel.add_block(sums, x, y, position)
        return sums

    def second_pass(self, part: Part, first: Sums) -> KlSums:
        """The second pass over a part, given the sums of the whole first pass."""
        sums = KlSums()
        with self._open(part.pair, part.limit) as reader:
            for x, y, _ in reader.blocks(part.start, part.stop):
                self._kernel.add_second(sums, first, x, y)
        return sums

    def finish(self, pair: Pair, first: Sums, second: KlSums, limit: int = 0) -> Comparison:
        """The row of a pair whose parts are added up."""
        with self._open(pair, limit) as reader:
            return _row(pair, reader, first, second)

    def arrays(self, pair: Pair, limit: int = 0) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Both sides of a pair as the user's own metrics get them: in the benchmark's shape, complex if they are."""
        is_complex = data_types.BY_NAME[_tensors(pair)[0].dtype].is_complex
        with self._open(pair, limit) as reader:
            sides: list[npt.NDArray[Any]] = []
            for side in reader.arrays():
                array: npt.NDArray[Any] = side.reshape(-1)
                if is_complex:
                    array = array.view(np.complex64 if array.dtype.itemsize == 4 else np.complex128)
                sides.append(array.reshape(pair.error_shape) if array.size == prod(pair.error_shape) else array)
            return sides[0], sides[1]

    def parts(self, pair: Pair, limit: int = 0) -> list[Part]:
        """The parts a large pair is split into."""
        npu, golden = _tensors(pair)
        with self._open(pair, limit) as reader:
            count = max(1, (npu.nbytes + golden.nbytes) // _PART_BYTES)
            step = max(1, -(-len(reader.boxes) // count))
            return [
                Part(pair, start, min(len(reader.boxes), start + step), limit)
                for start in range(0, len(reader.boxes), step)
            ]


def _needs_second(first: Sums, measures: Measures) -> bool:
    """Whether the second pass gives anything that is asked for, or that the first could not add up."""
    return measures.divergence or first.is_extreme


def _row(pair: Pair, reader: _Reader, first: Sums, second: KlSums) -> Comparison:
    for name in ("max_error_at", "first_mismatch"):
        setattr(first, name, reader.flat_position(getattr(first, name)))
    shape = pair.error_shape or (1,)  # places of scalars are told as in their shape in the result
    if prod(shape) and reader.size == 2 * prod(shape):  # complex: the last index tells real from imaginary
        shape = (*shape, 2)
    metrics, npu, golden = finish(first, second, shape)
    note = pair.reason
    if metrics is None:
        note = "This tensor is empty."
    elif metrics.non_finite_mismatches:
        note = (
            f"{metrics.non_finite_mismatches} elements are NaN or Inf on one side only, first at "
            f"{list(metrics.first_mismatch_index or ())}: NPU {metrics.npu_at_max_error:g}, "
            f"benchmark {metrics.golden_at_max_error:g}"
        )
    elif metrics.is_scalar:
        note = "This tensor is scalar."
    return Comparison(pair=pair, metrics=metrics, npu=npu, golden=golden, note=note)


def same_bytes(left: Tensor, right: Tensor) -> bool:
    """True if two tensors of one size have the same bytes."""
    if left.nbytes != right.nbytes:
        return False
    with open_bytes(left) as a, open_bytes(right) as b:
        buffers = _worker_comparer().buffer("compared", 2 * _COMPARE_BYTES).reshape(2, _COMPARE_BYTES)
        for start in range(0, left.nbytes, _COMPARE_BYTES):
            size = min(_COMPARE_BYTES, left.nbytes - start)
            a.read_into(left.offset + start, buffers[0, :size].data)
            b.read_into(right.offset + start, buffers[1, :size].data)
            words = size // 8 * 8  # eight bytes at a time, then the rest
            one, two = buffers[:, :words].view(np.uint64)
            if not np.array_equal(one, two) or not np.array_equal(buffers[0, words:size], buffers[1, words:size]):
                return False
    return True


# --- bundles --------------------------------------------------------------------------------------------------------

#: (number of the row, pair)
Numbered = tuple[int, Pair]


def _golden_key(pair: Pair) -> object:
    golden = _tensors(pair)[1]
    return golden.path, golden.dataset, golden.offset


def _storage_key(pair: Pair) -> object:
    """Pairs with equal keys have equal results if their NPU tensors have equal bytes."""
    npu = _tensors(pair)[0]
    return npu.dtype, npu.nbytes, pair.npu_plan, pair.golden_plan, pair.error_shape


def _take_over(row: Comparison, pair: Pair) -> Comparison:
    """The result of an equal tensor as the row of `pair`."""
    note = pair.reason if row.note == row.pair.reason else row.note
    return replace(row, pair=pair, note=note)


def _uncompared(pair: Pair) -> Comparison:
    """The row of a pair that cannot be compared."""
    summary = summary_of_statistics(pair.npu) if isinstance(pair.npu, TensorStatistics) else None
    return Comparison(pair=pair, npu=summary, note=pair.reason)


def reaches_limit(tensor: AnyTensor) -> bool | None:
    """Whether a float16 tensor, padding included, has a value of at least 65504; None for other types."""
    if tensor.dtype != "float16":
        return None
    if isinstance(tensor, TensorStatistics):
        if tensor.positive_inf_count or tensor.negative_inf_count:
            return True
        sizes = [abs(value) for value in (tensor.minimum, tensor.maximum) if value is not None]
        return max(sizes) >= _HALF_LIMIT if sizes else None
    order = ">u2" if tensor.big_endian else "<u2"
    with open_bytes(tensor) as file:
        for start in range(0, tensor.nbytes, _COMPARE_BYTES):
            size = min(_COMPARE_BYTES, tensor.nbytes - start)
            codes = np.frombuffer(file.read_at(tensor.offset + start, size // 2 * 2), order) & 0x7FFF
            if ((codes >= _HALF_LIMIT_CODE) & (codes <= _HALF_INF_CODE)).any():
                return True
    return False


def _measured(row: Comparison, measures: Measures) -> Comparison:
    """The row with what was asked for beside the metrics, as far as it is not there yet."""
    pair = row.pair
    if measures.overflow and row.overflow is None and pair.npu is not None:
        row = replace(row, overflow=reaches_limit(pair.npu))
    if measures.custom is not None and row.metrics is not None and not row.custom:
        found = _custom_values(measures.custom, pair, measures.limit)
        note = "; ".join([*([row.note] if row.note else []), *(f"{name}: {why}" for name, why in found.errors)])
        row = replace(row, custom=found.values, custom_errors=found.errors, note=note)
    return row


def _custom_values(custom: CustomMetrics, pair: Pair, limit: int) -> CustomValues:
    npu, golden = _tensors(pair)
    types = decode.compute_types(data_types.BY_NAME[npu.dtype], data_types.BY_NAME[golden.dtype])
    needed = sum(dtype.itemsize for dtype in types) * (limit or prod(pair.error_shape))
    if needed > MAX_BYTES:
        why = f"own metrics load whole tensors, and this pair takes {needed >> 20} MiB of {MAX_BYTES >> 20} allowed"
        return failed_metrics(custom, why)
    return apply_metrics(custom, *_worker_comparer().arrays(pair, limit))


#: What is said of a tensor that memory does not suffice for.
NO_MEMORY = "not enough memory for this tensor"


def failed_row(pair: Pair, error: BaseException) -> Comparison:
    """The row of a pair whose comparison raised `error`."""
    if isinstance(error, PrecisionToolError):
        reason = error.advice
    elif isinstance(error, MemoryError):
        reason = NO_MEMORY
    else:
        reason = f"internal error, please report it: {type(error).__name__}: {error}"
    return Comparison(pair=replace(pair, status=Status.UNREADABLE, reason=reason), note=reason)


#: One set of buffers per thread, so that an executor of threads works as well as one of processes.
_local = threading.local()


def _worker_comparer() -> Comparer:
    comparer: Comparer | None = getattr(_local, "comparer", None)
    if comparer is None:
        comparer = _local.comparer = Comparer()
    return comparer


def compare_bundle(
    bundle: list[Numbered], tell: Tell | None = None, measures: Measures = _PLAIN
) -> list[tuple[int, Comparison]]:
    """Rows of pairs that share a benchmark tensor. One pair that fails becomes a row with the reason.

    `tell` hears of the bytes of large tensors as they are done.
    """
    comparer = _worker_comparer()
    done: dict[object, list[Comparison]] = {}
    last: Comparison | None = None
    rows = []
    for number, pair in bundle:
        try:
            if pair.status is not Status.COMPARED:
                rows.append((number, _measured(_uncompared(pair), measures)))
                continue
            same = done.setdefault(_storage_key(pair), [])
            npu = _tensors(pair)[0]
            row = next((_take_over(known, pair) for known in same if same_bytes(_tensors(known.pair)[0], npu)), None)
            if row is None:
                if last is not None and last.pair.error_shape == pair.error_shape and comparer.equals_last(pair):
                    row = _measured(replace(_take_over(last, pair), overflow=None), measures)
                else:
                    last = comparer.compare(pair, tell, measures)
                    row = last = _measured(last, measures)
                same.append(row)
        except Exception as error:
            row, last = failed_row(pair, error), None
        rows.append((number, row))
    return rows


def compare_bundles(bundles: list[list[Numbered]], measures: Measures = _PLAIN) -> list[tuple[int, Comparison]]:
    """Several bundles as one task."""
    return [row for bundle in bundles for row in compare_bundle(bundle, None, measures)]


def _first_pass(part: Part) -> Sums:
    return _worker_comparer().first_pass(part)


def _second_pass(part: Part, first: Sums) -> KlSums:
    return _worker_comparer().second_pass(part, first)


def _same_bytes_range(left: Tensor, right: Tensor, start: int, size: int) -> bool:
    """`same_bytes` for `size` bytes from `start` of both."""
    return same_bytes(
        replace(left, offset=left.offset + start, nbytes=size), replace(right, offset=right.offset + start, nbytes=size)
    )


# --- all pairs ------------------------------------------------------------------------------------------------------


def _cost(pair: Pair) -> int:
    """The bytes that are read for a pair; of one that is not compared the NPU's, which may be looked at alone."""
    if pair.status is not Status.COMPARED:
        return pair.npu.nbytes if pair.npu is not None else 0
    npu, golden = _tensors(pair)
    return npu.nbytes + golden.nbytes


def compare_pairs(
    pairs: Sequence[Pair],
    *,
    workers: int = 0,
    executor: Executor | None = None,
    progress: Progress | None = None,
    measures: Measures = _PLAIN,
) -> list[Comparison]:
    """One row per pair, in order.

    `workers` processes (0: one per core this process may use; 1: none), or any `executor`, share the work.
    Ctrl+C and a dying worker raise WorkStoppedError, which carries the rows that are done.
    """
    rows: list[Comparison | None] = [None] * len(pairs)
    bundles: dict[object, list[Numbered]] = {}
    for number, pair in enumerate(pairs):
        if pair.status is Status.COMPARED:
            bundles.setdefault(_golden_key(pair), []).append((number, pair))
        elif measures.overflow and pair.npu is not None:
            bundles[number] = [(number, pair)]
        else:
            rows[number] = _uncompared(pair)
    total = sum(_cost(pair) for bundle in bundles.values() for _, pair in bundle)
    run = _Run(rows, total, progress, measures)
    workers = workers or cores()
    try:
        if executor is not None:
            run.spread(list(bundles.values()), executor, workers)
        elif workers == 1 or total < _SERIAL_BYTES:
            for bundle in bundles.values():
                run.compare_here(bundle)
        else:
            with process_pool(workers) as pool:
                run.spread(list(bundles.values()), pool, workers)
    except KeyboardInterrupt:
        raise WorkStoppedError(f"stopped: {run.state()}", "", run.rows_so_far(pairs)) from None
    except BrokenProcessPool as error:
        raise WorkStoppedError(
            f"a worker process died: {run.state()}",
            "was it killed for its memory? try fewer workers (--workers 1)",
            run.rows_so_far(pairs),
            exit_code=2,
        ) from error
    return [row for row in rows if row is not None]


def cores() -> int:
    """Processor cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Pool(ProcessPoolExecutor):
    """A pool whose processes do not hear Ctrl+C from their first moment on: their parent does, and ends them."""

    def submit(self, *arguments: Any, **options: Any) -> Future[Any]:
        """Hands out a task; this may start a process, which inherits what is blocked."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return super().submit(*arguments, **options)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def process_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Worker processes that are killed, not waited for, when the block ends with an exception."""
    # fork starts at once and needs no importable main module, but is not safe beside other threads.
    can_fork = "fork" in multiprocessing.get_all_start_methods() and threading.active_count() == 1
    before = {process.pid for process in multiprocessing.active_children()}
    pool = _Pool(
        workers, mp_context=multiprocessing.get_context("fork" if can_fork else "spawn"), initializer=_start_worker
    )
    try:
        yield pool
    except BaseException:
        for process in multiprocessing.active_children():
            if process.pid not in before:
                process.kill()
        # The pool's own thread must be done before Python exits, which would wake it through a closed pipe; but a
        # pool that lost its workers in the middle of a message may never be done, so not for long.
        closing = threading.Thread(target=pool.shutdown, kwargs={"cancel_futures": True}, daemon=True)
        closing.start()
        closing.join(_CLOSING_SECONDS)
        raise
    pool.shutdown()


def _start_worker() -> None:
    # Ctrl+C reaches the whole process group; the parent decides what happens. It has blocked it until here.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for ending in (signal.SIGTERM, signal.SIGHUP):  # what the parent does then is not for us
        signal.signal(ending, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # A parent that is killed cannot tell its workers, which would wait for work for ever.
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class _Run:
    """The state of one call of `compare_pairs`."""

    def __init__(
        self, rows: list[Comparison | None], total: int, progress: Progress | None, measures: Measures
    ) -> None:
        self._rows = rows
        self._measures = measures
        self._total = total
        self._done = 0
        self._progress = progress
        self._tell(0)

    def _tell(self, nbytes: int) -> None:
        self._done += nbytes
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)

    def take(self, results: list[tuple[int, Comparison]], told: int = 0) -> None:
        """Keeps finished rows, of whose bytes `told` are counted already."""
        for number, row in results:
            self._rows[number] = row
        self._tell(sum(_cost(row.pair) for _, row in results) - told)

    def compare_here(self, bundle: list[Numbered]) -> None:
        """Compares a bundle in this process."""
        before = self._done
        self.take(compare_bundle(bundle, self._tell, self._measures), self._done - before)

    def state(self) -> str:
        """How far the run came, in words."""
        done = sum(row is not None for row in self._rows)
        return f"{done} of {len(self._rows)} rows are done"

    def rows_so_far(self, pairs: Sequence[Pair]) -> list[Comparison]:
        """All rows; those that were not reached say so."""
        reason = "not compared: the run was stopped before this tensor"
        return [
            row or Comparison(pair=replace(pair, status=Status.UNREADABLE, reason=reason), note=reason)
            for row, pair in zip(self._rows, pairs, strict=True)
        ]

    def spread(self, bundles: list[list[Numbered]], pool: Executor, workers: int) -> None:
        """Runs bundles on `pool`: large tensors in parts one after the other, then the rest, largest first."""
        weights = [(sum(_cost(pair) for _, pair in bundle), bundle) for bundle in bundles]
        weights.sort(key=lambda item: -item[0])
        small: list[tuple[int, list[Numbered]]] = []
        for weight, bundle in weights:
            if workers > 1 and bundle[0][1].status is Status.COMPARED and _cost(bundle[0][1]) >= _SPLIT_BYTES:
                self._compare_split(bundle, pool)
            else:
                small.append((weight, bundle))
        # Tasks of at least this size, so that sending them costs little, and enough of them to balance.
        chunk = max(1 << 20, sum(weight for weight, _ in small) // (workers * 16))
        tasks: list[list[list[Numbered]]] = []
        filled = chunk
        for weight, bundle in small:
            if filled >= chunk:
                tasks.append([])
                filled = 0
            tasks[-1].append(bundle)
            filled += weight
        self._collect([pool.submit(compare_bundles, task, self._measures) for task in tasks], self.take)

    def _collect(self, futures: list[Future[T]], take: Callable[[T], object]) -> None:
        """Hands on results as they come; the short timeout lets Ctrl+C through."""
        open_futures = set(futures)
        while open_futures:
            finished, open_futures = wait(open_futures, timeout=0.2, return_when=FIRST_COMPLETED)
            for future in finished:
                take(future.result())

    def _compare_split(self, bundle: list[Numbered], pool: Executor) -> None:
        comparer = Comparer()
        done: list[Comparison] = []
        for number, pair in bundle:
            same = [known for known in done if _storage_key(known.pair) == _storage_key(pair)]
            before = self._done
            try:
                row = self._equal_row(same, pair, pool) or self._row_of_parts(comparer, pair, pool)
            except BrokenProcessPool:
                raise
            except Exception as error:
                self._rows[number] = failed_row(pair, error)
                self._tell(before + _cost(pair) - self._done)
                continue
            done.append(row)
            self._rows[number] = row

    def _equal_row(self, done: list[Comparison], pair: Pair, pool: Executor) -> Comparison | None:
        npu = _tensors(pair)[0]
        for known in done:
            other = _tensors(known.pair)[0]
            verdicts: list[bool] = []
            futures = [
                pool.submit(_same_bytes_range, other, npu, start, min(_PART_BYTES, npu.nbytes - start))
                for start in range(0, npu.nbytes, _PART_BYTES)
            ]
            self._collect(futures, verdicts.append)
            if all(verdicts):
                self._tell(_cost(pair))
                return _take_over(known, pair)
        return None

    def _row_of_parts(self, comparer: Comparer, pair: Pair, pool: Executor) -> Comparison:
        limit = self._measures.limit
        parts = comparer.parts(pair, limit)
        share = _cost(pair) // (2 * len(parts))
        futures = [pool.submit(_first_pass, part) for part in parts]
        self._collect(futures, lambda sums: self._tell(share))
        first = Sums()
        for future in futures:  # in the order of the parts, which decides between equal largest errors
            first.add(future.result())
        second = KlSums()

        def take(part: KlSums) -> None:
            second.add(part)
            self._tell(share)

        told = share * len(parts)
        if _needs_second(first, self._measures):
            self._collect([pool.submit(_second_pass, part, first) for part in parts], take)
            told *= 2
        self._tell(_cost(pair) - told)
        row = comparer.finish(pair, first, second, limit)
        measured: list[Comparison] = []
        self._collect([pool.submit(_measured, row, self._measures)], measured.append)
        return measured[0]
