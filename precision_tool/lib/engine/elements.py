"""One pair of tensors element by element: where the errors are, how large, and which values are the worst.

Two passes over both files, as `engine` makes them; the second, which knows the largest error, adds what is told here.
Memory does not depend on the size of the tensors.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from heapq import nlargest
from itertools import accumulate, pairwise
from math import floor, inf, isnan, log10, prod
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt

from precision_tool.lib.engine.blocks import Scratch, TensorReader, box_size
from precision_tool.lib.engine.budget import DEFAULT
from precision_tool.lib.engine.metrics import ZERO_BELOW, Kernel, KlSums, Sums, finish, integer_errors, unravel
from precision_tool.lib.engine.statistics import open_reader
from precision_tool.lib.engine.workers import Progress, WorkStoppedError, cores, process_pool
from precision_tool.lib.model.comparison import Pair
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.tensor import Tensor
from precision_tool.lib.numbers import data_types, decode
from precision_tool.lib.numbers.decode import Floats, Numbers
from precision_tool.lib.numbers.layouts import Box, split_boxes

_BLOCK = DEFAULT.block  # as in every pass
#: Items of a box of a tensor in a blocked layout.
_BOX = 1 << 18
#: Tensors up to this many items are kept decoded between the two passes.
_KEEP = 1 << 20
#: Items of one part of a tensor that processes share.
_PART = 1 << 23
#: How long Ctrl+C waits at most.
_TICK = 0.1
#: Decades of the error's histogram; what is smaller goes into one bin.
_DECADES = 10
#: Longer axes have no shares: their sums would take the memory of a tensor.
_LONGEST_AXIS = 1 << 20
#: Indices of an axis that are named.
_TOP = 3
#: float32's rounding of an error and of what it may be: closer to each other than this they are computed in float64.
_ROUNDING = 1e-6
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """One element of both tensors. Of complex numbers the last index tells the real from the imaginary part.

    `relative` is nan where the benchmark counts as zero.
    """

    index: tuple[int, ...]
    npu: float
    golden: float

    @property
    def error(self) -> float:
        """|NPU - benchmark|; 0 for the same NaN or Inf."""
        if self.npu == self.golden or (isnan(self.npu) and isnan(self.golden)):
            return 0.0
        return abs(self.npu - self.golden)

    @property
    def relative(self) -> float:
        """The error relative to the benchmark's size, nan where that counts as zero."""
        size = abs(self.golden)
        return self.error / size if size > ZERO_BELOW else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBin:
    """How many elements have an error of at least `low` and below `high`."""

    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisShares:
    """The indices of one axis that hold most of the error, with their share of it (0 to 1)."""

    axis: int
    extent: int
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """A pair compared element by element. `shape` is that of the indices.

    `outside` counts elements with |NPU - benchmark| > atol + rtol * |benchmark|; the same NaN or Inf on both sides
    agrees. `histogram` counts the finite errors above zero, `equal` the elements without error. The shares are of the
    sum of squared errors, or, where elements are NaN or Inf on one side only (`shares_of_mismatches`), of these.
    """

    comparison: Row
    shape: tuple[int, ...]
    atol: float
    rtol: float
    count: int = 0
    outside: int = 0
    equal: int = 0
    first: tuple[Element, ...] = ()
    worst_absolute: tuple[Element, ...] = ()
    worst_relative: tuple[Element, ...] = ()
    histogram: tuple[ErrorBin, ...] = ()
    axes: tuple[AxisShares, ...] = ()
    shares_of_mismatches: bool = False

    @property
    def all_close(self) -> bool:
        """True if no element is outside the tolerance."""
        return self.outside == 0

    @property
    def outside_share(self) -> float:
        """The share of elements outside the tolerance, 0 to 1."""
        return self.outside / self.count if self.count else 0.0


def compare_elements(
    pair: Pair, *, atol: float, rtol: float, shown: int, workers: int = 0, progress: Progress | None = None
) -> Detail:
    """Compares both tensors of a pair that has plans. `shown` elements are kept of the first and the worst.

    Large tensors are shared by `workers` processes (0: one per core).
    """
    with _open(pair) as source, ExitStack() as stack:
        parts = _parts(pair, source)
        workers = min(workers or cores(), len(parts))
        pool = stack.enter_context(process_pool(workers)) if workers > 1 else None
        # A single part is read, and decoded, once for both passes.
        own = source if len(parts) == 1 else None
        done = 0

        def told(results: Iterator[T]) -> Iterator[T]:
            nonlocal done
            for part, result in zip(parts, results, strict=True):
                done += part.items
                if progress is not None and source.size:
                    progress(source.nbytes * done // (2 * source.size), source.nbytes)
                yield result

        first, second = Sums(), KlSums()
        for sums in told(_each(pool, partial(_first_pass, source=own), parts)):
            first.add(sums)
        first.max_error_at = source.flat_position(first.max_error_at)
        first.first_mismatch = source.flat_position(first.first_mismatch)
        found = _Found(source.shape, first.max_error, shown)
        task = partial(_second_pass, source=own, first=first, atol=atol, rtol=rtol, shown=shown)
        for more, one in told(_each(pool, task, parts)):
            second.add(more)
            found.merge(one)
        metrics, npu, golden = finish(first, second, source.shape or (1,))
        comparison = Row(pair=pair, metrics=metrics, npu=npu, golden=golden, reason=pair.reason)
        return Detail(
            comparison=comparison,
            shape=source.shape,
            atol=atol,
            rtol=rtol,
            count=first.size,
            outside=found.outside,
            equal=first.size - found.nonzero,
            first=source.head(shown),
            worst_absolute=source.elements(found.absolute),
            worst_relative=source.elements(found.relative),
            histogram=_bins(found.edges, found.at_least, found.nonzero - first.mismatches),
            axes=tuple(_shares(axis, sums) for axis, sums in enumerate(found.axes) if sums.any()),
            shares_of_mismatches=first.mismatches > 0,
        )


def _each(pool: Executor | None, task: Callable[[_Part], T], parts: Sequence[_Part]) -> Iterator[T]:
    """The results of a task for each part, in order."""
    if pool is None:
        yield from map(task, parts)
        return
    try:
        for future in [pool.submit(task, part) for part in parts]:
            while True:  # the short timeout lets Ctrl+C through
                try:
                    result = future.result(timeout=_TICK)
                except TimeoutError:
                    continue
                break
            yield result
    except BrokenProcessPool as error:
        hint = "was it killed for its memory? try fewer workers (--workers 1)"
        raise WorkStoppedError("a worker process died", hint, (), exit_code=2) from error


def elements_of(pair: Pair) -> Iterator[tuple[Box, Numbers, Numbers, int]]:
    """All elements in boxes of the shape of their indices: the box, the values of both sides, which the next box
    overwrites, and the bytes of all boxes."""
    with _open(pair) as source:
        for box, _, x, y in source.blocks():
            yield box, x, y, source.nbytes


# --- reading both sides ---------------------------------------------------------------------------------------------


class _Source:
    """Both sides in boxes of the shape that their indices have."""

    def __init__(self, npu: TensorReader, golden: TensorReader, shape: tuple[int, ...]) -> None:
        self._npu, self._golden = npu, golden
        self._flat = npu.is_flat and golden.is_flat
        self.shape = shape if self._flat else npu.logical_shape
        self.size = prod(self.shape)
        self.nbytes = self.size * (npu.dtype.itemsize + golden.dtype.itemsize)
        granules = tuple(map(max, npu.granules, golden.granules)) if not self._flat else (1,) * len(self.shape)
        self.boxes: list[Box] = split_boxes(self.shape, granules, _BLOCK if self._flat else _BOX)
        self._starts = list(accumulate(map(box_size, self.boxes), initial=0))
        self._scratch = Scratch()
        self._kept: list[tuple[Numbers, Numbers]] = []

    def blocks(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[Box, int, Numbers, Numbers]]:
        """(box, number of items before it, NPU, benchmark) of boxes `start` to `stop`; small tensors are read once."""
        places = zip(self.boxes[start:stop], self._starts[start:], strict=False)
        if self._kept:
            yield from ((*place, *pair) for place, pair in zip(places, self._kept, strict=True))
            return
        for box, position in places:
            pair = (self._read(self._npu, box, "x"), self._read(self._golden, box, "y"))
            if self.size <= _KEEP:
                pair = (pair[0].copy(), pair[1].copy())
                self._kept.append(pair)
            yield box, position, *pair

    def _read(self, side: TensorReader, box: Box, name: str) -> Numbers:
        count = box_size(box)
        if not self._flat:
            out = self._scratch.numbers(name, count, side.dtype)
            side.read_box(box, out)
            return out
        start = self.flat_index([low for low, _ in box])
        lead = start % 8  # several elements may share a byte
        out = self._scratch.numbers(name, count + lead, side.dtype)
        side.read_flat(start - lead, start + count, out)
        return out[lead:]

    def flat_index(self, index: Sequence[int]) -> int:
        """An index as a flat position."""
        flat = 0
        for extent, at in zip(self.shape, index, strict=True):
            flat = flat * extent + at
        return flat

    def flat_position(self, position: int) -> int:
        """A position in the order of the boxes as a flat position."""
        if position < 0:
            return position
        number = bisect_right(self._starts, position) - 1
        box = self.boxes[number]
        local = unravel(position - self._starts[number], tuple(stop - start for start, stop in box)) or ()
        return self.flat_index([start + at for (start, _), at in zip(box, local, strict=True)])

    def elements(self, worst: _Worst) -> tuple[Element, ...]:
        """The elements found."""
        return tuple(self.element(-place, x, y) for _, place, x, y in worst.found)

    def element(self, flat: int, x: float, y: float) -> Element:
        """The element at a flat position."""
        return Element(index=unravel(flat, self.shape) or (), npu=x, golden=y)

    def head(self, count: int) -> tuple[Element, ...]:
        """The first elements."""
        sides = zip(self._npu.head(count).tolist(), self._golden.head(count).tolist(), strict=True)
        return tuple(self.element(flat, x, y) for flat, (x, y) in enumerate(sides))


@contextmanager
def _open(pair: Pair) -> Iterator[_Source]:
    npu, golden = pair.npu, pair.golden
    assert isinstance(npu, Tensor)
    assert isinstance(golden, Tensor)
    types = data_types.BY_NAME[npu.dtype], data_types.BY_NAME[golden.dtype]
    dtypes = decode.compute_types(*types)
    with ExitStack() as stack:
        one, two = (
            stack.enter_context(open_reader(tensor, plan, dtype))
            for tensor, plan, dtype in zip((npu, golden), (pair.npu_plan, pair.golden_plan), dtypes, strict=True)
        )
        shape = pair.error_shape if prod(pair.error_shape) * decode.reals_per_element(types[0]) == one.size else ()
        if types[0].is_complex:
            shape = (*(shape or (1,)), 2)
        yield _Source(one, two, shape if prod(shape) == one.size else (one.size,))


@dataclass(frozen=True, slots=True)
class _Part:
    """The boxes `start` to `stop` of a pair, of which every worker makes the same list; `items` are in them."""

    pair: Pair
    start: int
    stop: int
    items: int


def _parts(pair: Pair, source: _Source) -> list[_Part]:
    """Parts of about equal size, one if the tensor is small."""
    count = max(1, min(source.size // _PART, len(source.boxes)))
    borders = [len(source.boxes) * number // count for number in range(count + 1)]
    sizes = list(map(box_size, source.boxes))
    return [_Part(pair, start, stop, sum(sizes[start:stop])) for start, stop in pairwise(borders)]


@contextmanager
def _source_of(part: _Part, source: _Source | None) -> Iterator[_Source]:
    """`source` if there is one, else the part's own."""
    if source is not None:
        yield source
    else:
        with _open(part.pair) as own:
            yield own


def _first_pass(part: _Part, source: _Source | None) -> Sums:
    sums, kernel = Sums(), Kernel()
    with _source_of(part, source) as source:
        for _, position, x, y in source.blocks(part.start, part.stop):
            kernel.add_block(sums, x, y, position)
    return sums


def _second_pass(
    part: _Part, source: _Source | None, first: Sums, atol: float, rtol: float, shown: int
) -> tuple[KlSums, _Found]:
    sums, kernel = KlSums(), Kernel()
    with _source_of(part, source) as source:
        details = _Details(source, first, atol, rtol, shown)
        for box, position, x, y in source.blocks(part.start, part.stop):
            kernel.add_second(sums, first, x, y)
            details.add(box, position, x, y)
    return sums, details.found


# --- the second pass ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Worst:
    """The `limit` elements with the largest keys; of equal keys those that came first."""

    limit: int
    threshold: float = 0.0
    found: list[tuple[float, int, float, float]] = field(default_factory=list)

    def offer(self, keys: Floats, x: Numbers, y: Numbers, place: Callable[[int], int]) -> None:
        """Takes over what is larger than the least of those found; `place` gives the flat position of an item."""
        if not self.limit:
            return
        at = np.flatnonzero(keys > self.threshold)
        if at.size > self.limit:
            values = keys[at]
            least = np.partition(values, at.size - self.limit)[at.size - self.limit]
            above = at[values > least]
            at = np.concatenate([above, at[values == least][: self.limit - above.size]])
        self.found += [(float(keys[i]), -place(int(i)), x[i].item(), y[i].item()) for i in at]
        self._keep_largest()
        if len(self.found) == self.limit:
            self.threshold = self.found[-1][0]

    def merge(self, other: _Worst) -> None:
        """Takes over what another part of the tensor has found."""
        self.found += other.found
        self._keep_largest()

    def _keep_largest(self) -> None:
        self.found = nlargest(self.limit, self.found, key=lambda one: one[:2])


class _Found:
    """What the second pass adds up, of a part or of all."""

    def __init__(self, shape: tuple[int, ...], max_error: float, shown: int) -> None:
        self.outside = 0
        self.nonzero = 0
        self.absolute, self.relative = _Worst(shown), _Worst(shown)
        self.edges = _decade_edges(max_error)
        #: Finite errors of at least each edge, largest edge first.
        self.at_least = [0] * len(self.edges)
        self.axes = [np.zeros(extent if 1 < extent <= _LONGEST_AXIS else 0, np.float64) for extent in shape]

    def merge(self, other: _Found) -> None:
        """Adds what was found in another part."""
        self.outside += other.outside
        self.nonzero += other.nonzero
        self.at_least = [one + two for one, two in zip(self.at_least, other.at_least, strict=True)]
        self.axes = [one + two for one, two in zip(self.axes, other.axes, strict=True)]
        self.absolute.merge(other.absolute)
        self.relative.merge(other.relative)


class _Details:
    """Adds blocks to what is found."""

    def __init__(self, source: _Source, first: Sums, atol: float, rtol: float, shown: int) -> None:
        self.found = _Found(source.shape, first.max_error, shown)
        self._source = source
        self._first = first
        self._atol, self._rtol = atol, rtol
        self._all_finite = first.count == first.size
        self._scratch = Scratch()

    def add(self, box: Box, position: int, x: Numbers, y: Numbers) -> None:
        """Adds a box."""
        with np.errstate(all="ignore"):
            error = self._errors(x, y, "error")
            biggest = float(error.max())
            if biggest == inf and error.dtype == np.float32 and self._all_finite:  # float64 holds the differences
                self.add(box, position, x.astype(np.float64), y.astype(np.float64))
                return
            if biggest == 0:
                return
            size = self._temporary("size", error)
            np.copyto(size, y, casting="unsafe")
            np.abs(size, out=size)  # not of an integer: its minimum has no positive counterpart
            self._count_outside(error, size, x, y, biggest)

            def place(item: int) -> int:
                return self._source.flat_position(position + item)

            if biggest > self.found.absolute.threshold:
                self.found.absolute.offer(error, x, y, place)
            if self._first.mismatches:
                if biggest == inf:
                    self._add_axes(box, (error == inf).astype(np.float64))
            elif self._first.max_error < inf:
                self._add_squares(box, error)
            self._add_decades(error, biggest)
            self._offer_relative(error, size, x, y, place)

    def _temporary(self, name: str, like: Numbers) -> Floats:
        return cast(Floats, self._scratch.numbers(name, like.size, like.dtype))

    def _errors(self, x: Numbers, y: Numbers, name: str) -> Floats:
        """|x - y|; 0 where both are the same NaN or Inf, inf where only one is finite."""
        if x.dtype.kind != "f" or y.dtype.kind != "f":
            return np.abs(integer_errors(x, y))
        error = self._temporary(name, x)
        np.subtract(x, y, out=error)
        np.abs(error, out=error)
        if not self._all_finite and not np.isfinite(error).all():
            finite = np.isfinite(x) & np.isfinite(y)
            if error.dtype == np.float32 and np.isinf(error[finite]).any():
                return self._errors(x.astype(np.float64), y.astype(np.float64), name)
            np.copyto(error, inf, where=~finite)
            np.copyto(error, 0, where=(np.isnan(x) & np.isnan(y)) | (x == y))
        return error

    def _count_outside(self, error: Floats, size: Floats, x: Numbers, y: Numbers, biggest: float) -> None:
        if biggest <= self._atol * (1 - _ROUNDING):
            return
        if error.dtype == np.float32:
            allowed = self._allowed(error, size, 1 - _ROUNDING)
            most = np.count_nonzero(error > allowed)
            if not most:
                return
            np.multiply(allowed, (1 + _ROUNDING) / (1 - _ROUNDING), out=allowed)
            if most == np.count_nonzero(error > allowed):
                self.found.outside += int(most)
                return
            x, y = x.astype(np.float64), y.astype(np.float64)  # too close for float32
            error, size = self._errors(x, y, "exact"), np.abs(y)
        self.found.outside += int(np.count_nonzero(error > self._allowed(error, size, 1)))

    def _allowed(self, error: Floats, size: Floats, scale: float) -> Floats:
        allowed = self._temporary("other", error)
        np.multiply(size, self._rtol * scale, out=allowed)
        np.add(allowed, self._atol * scale, out=allowed)
        if self._first.mismatches:  # whatever the size of the other side is
            np.copyto(allowed, 0, where=error == inf)
        return allowed

    def _add_decades(self, error: Floats, biggest: float) -> None:
        nonzero = int(np.count_nonzero(error))
        self.found.nonzero += nonzero
        infinite = int(np.count_nonzero(error == inf)) if biggest == inf else 0
        finite = nonzero - infinite
        larger = -infinite  # finite errors that were counted and left out
        for number, edge in enumerate(self.found.edges):
            if edge > biggest:
                continue
            count = larger + int(np.count_nonzero(error >= edge))
            self.found.at_least[number] += count
            if (finite - count) * 16 < error.size:  # most are done with
                error = error[(error < edge) & (error > 0)]
                larger = count

    def _add_squares(self, box: Box, error: Floats) -> None:
        squares = self._temporary("other", error)
        np.divide(error, self._first.max_error, out=squares)
        np.multiply(squares, squares, out=squares)
        self._add_axes(box, squares)

    def _add_axes(self, box: Box, weights: Floats) -> None:
        """Adds the sums of non-negative weights over all axes but one, for each axis."""
        rest = weights
        for axis in range(len(box) - 1, -1, -1):
            start, stop = box[axis]
            table = rest.reshape(-1, stop - start)
            sums = self.found.axes[axis]
            if sums.size:
                sums[start:stop] += (np.ones((1, len(table)), table.dtype) @ table)[0]
            rest = table[:, 0] if stop - start == 1 else _row_sums(table)

    def _offer_relative(self, error: Floats, size: Floats, x: Numbers, y: Numbers, place: Callable[[int], int]) -> None:
        other = self._temporary("other", error)
        threshold = self.found.relative.threshold
        if error.dtype == np.float32:  # a little less, for its rounding; what is larger than it holds, it cannot be
            threshold = min(threshold * (1 - _ROUNDING), _LARGEST_FLOAT32) if threshold < inf else inf
        np.multiply(size, threshold, out=other)
        worse = error > other
        if self._first.mismatches:
            worse |= (error == inf) & ~np.isfinite(y)
        if not worse.any():
            return
        worse &= ~(size <= ZERO_BELOW)  # NaN is none
        at = np.flatnonzero(worse)
        x, y, error, size = x[at], y[at], error[at], size[at]
        if error.dtype == np.float32:
            x, y = x.astype(np.float64), y.astype(np.float64)
            error, size = self._errors(x, y, "exact"), np.abs(y)
        relative = error / size
        np.copyto(relative, inf, where=np.isnan(relative))
        self.found.relative.offer(relative, x, y, lambda item: place(int(at[item])))


def _row_sums(table: Floats) -> Floats:
    sums: Floats = (table @ np.ones((table.shape[1], 1), table.dtype))[:, 0]
    return sums.astype(np.float64)


def _decade_edges(largest: float) -> list[float]:
    """Powers of ten from above the largest error down; one more than needed, as logarithms are rounded."""
    if not 0 < largest < inf:
        return []
    top = floor(log10(largest)) + 2
    return [float(f"1e{exponent}") for exponent in range(top, max(top - _DECADES, -308) - 2, -1)]


def _bins(edges: Sequence[float], at_least: Sequence[int], nonzero: int) -> tuple[ErrorBin, ...]:
    """From counts of errors above edges to counts between them, smallest errors first, without empty ends."""
    bounds = [*edges, 0.0]
    counts = [*at_least, nonzero]
    bins = [
        ErrorBin(low=low, high=high, count=count - above)
        for (high, low), (above, count) in zip(pairwise(bounds), pairwise(counts), strict=True)
    ]
    while bins and not bins[0].count:
        del bins[0]
    while bins and not bins[-1].count:
        del bins[-1]
    return tuple(reversed(bins))


def _shares(axis: int, sums: npt.NDArray[np.float64]) -> AxisShares:
    order = np.argsort(-sums, kind="stable")[:_TOP]
    total = sums.sum()
    return AxisShares(
        axis=axis, extent=sums.size, top=tuple((int(at), float(sums[at] / total)) for at in order if sums[at])
    )
