"""Where the errors of a pair are, how large, and which elements are the worst: as a pass, and of a single pair.

Beside the sums of the metrics, which tell the largest error, a second round does all of it. Memory does not depend on
the size of the tensors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import pairwise
from math import floor, inf, log10
from typing import cast

import numpy as np
import numpy.typing as npt

from precision_tool.lib.compare import integers
from precision_tool.lib.compare.bundles import Part, cost, cuts_of, worker
from precision_tool.lib.compare.compiled import kernel_of_thread
from precision_tool.lib.compare.pair_sums import KlSums, Sums
from precision_tool.lib.compare.pairwise import run_in_parts
from precision_tool.lib.compare.passes import MetricsPass, Pass, SecondPass, run_passes
from precision_tool.lib.compare.scheduler import ALL_CORES, Meter, Resources, WorkStoppedError
from precision_tool.lib.compare.stream import Block, PairStream, Span
from precision_tool.lib.compare.tensor_reader import Budget, Scratch
from precision_tool.lib.io.data_types import Floats, Numbers
from precision_tool.lib.io.native.library import ErrorsAsked
from precision_tool.lib.model.comparison import ZERO_BELOW, Pair
from precision_tool.lib.model.elements import AxisShares, Detail, Element, ErrorBin
from precision_tool.lib.model.table import Row

#: Decades of the error's histogram; what is smaller goes into one bin.
_DECADES = 10
#: Longer axes have no shares: their sums would take the memory of a tensor.
_MAX_AXIS = 1 << 20
#: Indices of an axis that are named.
_TOP = 3
#: float32's rounding of an error and of what it may be: closer to each other than this they are computed in float64.
_ROUNDING = 1e-6
_ROUNDING_DOUBLE = 1e-13
#: Places of a block that a kernel tells at once; of more all items are looked at.
_PLACES = 4096
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
#: Temporaries of the arithmetic, one set a thread.
_local = threading.local()


def _scratch() -> Scratch:
    scratch: Scratch | None = getattr(_local, "scratch", None)
    if scratch is None:
        scratch = _local.scratch = Scratch()
    return scratch


class ElementsPass(Pass[Sums, Detail]):
    """The metrics, and each element held against a tolerance; `shown` of the first and the worst are kept."""

    def __init__(self, *, atol: float, rtol: float, shown: int) -> None:
        self.atol, self.rtol, self.shown = atol, rtol, shown
        self._metrics = MetricsPass()

    def start(self, stream: PairStream) -> Sums:
        return self._metrics.start(stream)

    def update(self, state: Sums, block: Block) -> None:
        self._metrics.update(state, block)

    def merge(self, state: Sums, other: Sums) -> None:
        self._metrics.merge(state, other)

    def second(self, state: Sums) -> ElementsSecondPass:
        return ElementsSecondPass(self, state)

    def finish(self, state: Sums, second: tuple[KlSums, ErrorStatistics] | None, stream: PairStream) -> Detail:
        assert second is not None
        sums, elements = second
        result = self._metrics.finish(state, sums, stream)
        pair, shape = stream.pair, stream.index_shape
        span = stream.whole_span

        def element(flat: int, npu: float, golden: float) -> Element:
            return Element(index=span.index(flat), npu=npu, golden=golden)

        return Detail(
            comparison=Row(pair=pair, metrics=result.metrics, npu=result.npu, golden=result.golden, reason=pair.reason),
            shape=shape,
            atol=self.atol,
            rtol=self.rtol,
            count=state.size,
            outside=elements.outside,
            equal=state.size - elements.nonzero,
            first=tuple(element(flat, *both) for flat, both in enumerate(stream.head(self.shown))),
            worst_absolute=tuple(element(-place, x, y) for _, place, x, y in elements.absolute.elements),
            worst_relative=tuple(element(-place, x, y) for _, place, x, y in elements.relative.elements),
            histogram=_bins(elements.edges, elements.at_least, elements.nonzero - state.mismatches),
            axes=tuple(_shares(axis, sums) for axis, sums in enumerate(elements.axes) if sums.any()),
            shares_of_mismatches=state.mismatches > 0,
        )


@dataclass(slots=True)
class Worst:
    """The `limit` elements with the largest keys; of equal keys those that came first."""

    limit: int
    threshold: float = 0.0
    elements: list[tuple[float, int, float, float]] = field(default_factory=list)

    def offer(self, keys: Floats, x: Numbers, y: Numbers, place: Callable[[int], int]) -> None:
        """Take over what is as large as the least of those found; `place` gives the flat position of an item."""
        if not self.limit:
            return
        # Of equal keys too: in a blocked layout an element that comes first may lie in a later box.
        at = np.flatnonzero(keys >= self.threshold if self.threshold else keys > 0)
        if at.size > self.limit:
            values = keys[at]
            least = np.partition(values, at.size - self.limit)[at.size - self.limit]
            above = at[values > least]
            at = np.concatenate([above, at[values == least][: self.limit - above.size]])
        self.elements += [(float(keys[i]), -place(int(i)), x[i].item(), y[i].item()) for i in at]
        self._keep_largest()
        if len(self.elements) == self.limit:
            self.threshold = self.elements[-1][0]

    def merge(self, other: Worst) -> None:
        """Take over what another part of the tensor has found."""
        self.elements += other.elements
        self._keep_largest()

    def _keep_largest(self) -> None:
        self.elements = nlargest(self.limit, self.elements, key=lambda element: element[:2])


class ErrorStatistics:
    """The sums of the second pass, of a part or of all."""

    def __init__(self, shape: tuple[int, ...], max_error: float, shown: int, *, is_flat: bool) -> None:
        self._shape, self._is_flat = shape, is_flat
        self.outside = 0
        self.nonzero = 0
        self.absolute, self.relative = Worst(shown), Worst(shown)
        self.edges = _decade_edges(max_error)
        #: Finite errors of at least each edge, largest edge first.
        self.at_least = [0] * len(self.edges)
        self.axes = [np.zeros(extent if 1 < extent <= _MAX_AXIS else 0, np.float64) for extent in shape]

    def merge(self, other: ErrorStatistics) -> None:
        """Add what was found in another part."""
        self.outside += other.outside
        self.nonzero += other.nonzero
        self.at_least = [count + more for count, more in zip(self.at_least, other.at_least, strict=True)]
        self.axes = [count + more for count, more in zip(self.axes, other.axes, strict=True)]
        self.absolute.merge(other.absolute)
        self.relative.merge(other.relative)

    def span_of(self, block: Block) -> Span:
        """Return the place of a block, in the shape of the indices."""
        return block.span(self._shape if self._is_flat else None)

    def flat_position(self, span: Span, item: int) -> int:
        """Return the position of an item of a span in the array of all."""
        flat = 0
        for extent, at in zip(self._shape, span.index(item), strict=True):
            flat = flat * extent + at
        return flat

    def add_axes(self, span: Span, weights: Floats) -> None:
        """Add the sums of non-negative weights over all axes but one, for each axis.

        From the innermost axis out: the rest of a row, whole rows, the start of a row; their sums go on as the
        weights of the next axis.
        """
        rest, at = weights, span.start
        for axis in range(len(self._shape) - 1, -1, -1):
            extent, low = span.extents[axis], span.lows[axis]
            lead = at % extent
            first = min(rest.size, extent - lead) if lead else 0
            rows = (rest.size - first) // extent
            parts = (rest[:first], rest[first : first + rows * extent], rest[first + rows * extent :])
            table = parts[1].reshape(rows, extent)
            sums = self.axes[axis]
            if sums.size:
                sums[low + lead : low + lead + first] += parts[0]
                if rows:
                    sums[low : low + extent] += (np.ones((1, rows), table.dtype) @ table)[0]
                sums[low : low + parts[2].size] += parts[2]
            if extent > 1:
                ends = [np.sum(part, dtype=np.float64, keepdims=True) if part.size else part for part in parts[::2]]
                whole = _row_sums(table) if rows else parts[1]
                rest = np.concatenate([ends[0], whole, ends[1]], dtype=np.float64)
            at //= extent


class ElementsSecondPass(Pass[tuple[KlSums, ErrorStatistics], tuple[KlSums, ErrorStatistics]]):
    """The second round over the elements, once the largest error of all is known."""

    def __init__(self, elements: ElementsPass, first: Sums) -> None:
        self._atol, self._rtol, self._shown = elements.atol, elements.rtol, elements.shown
        self._first = first
        self._sums = SecondPass(first)
        self._all_finite = first.count == first.size

    def start(self, stream: PairStream) -> tuple[KlSums, ErrorStatistics]:
        errors = ErrorStatistics(stream.index_shape, self._first.max_error, self._shown, is_flat=stream.is_flat)
        return self._sums.start(stream), errors

    def update(self, state: tuple[KlSums, ErrorStatistics], block: Block) -> None:
        self._sums.update(state[0], block)
        with np.errstate(all="ignore"):
            self._add(state[1], state[1].span_of(block), block.npu, block.golden)

    def merge(self, state: tuple[KlSums, ErrorStatistics], other: tuple[KlSums, ErrorStatistics]) -> None:
        self._sums.merge(state[0], other[0])
        state[1].merge(other[1])

    def finish(
        self, state: tuple[KlSums, ErrorStatistics], second: None, stream: PairStream
    ) -> tuple[KlSums, ErrorStatistics]:
        return state

    def _add(self, errors: ErrorStatistics, span: Span, x: Numbers, y: Numbers) -> None:
        if x.dtype == np.float32 and self._first.max_error > _LARGEST_FLOAT32:  # float64 holds the differences
            x, y = x.astype(np.float64), y.astype(np.float64)
        are_floats = x.dtype.kind == y.dtype.kind == "f"
        is_plain = are_floats and self._all_finite and 0 < self._first.max_error < inf
        if is_plain and self._add_counted(errors, span, x, y):
            return
        error = self._errors(x, y, "error")
        biggest = float(error.max())
        if biggest == 0:
            return
        size = self._temporary("size", error)
        np.copyto(size, y, casting="unsafe")
        np.abs(size, out=size)  # not of an integer: its minimum has no positive counterpart
        self._count_outside(errors, error, size, x, y, biggest)

        def place(item: int) -> int:
            return errors.flat_position(span, item)

        if biggest >= errors.absolute.threshold:
            errors.absolute.offer(error, x, y, place)
        if self._first.mismatches:
            if biggest == inf:
                errors.add_axes(span, (error == inf).astype(np.float64))
        elif self._first.max_error < inf:
            squares = self._temporary("other", error)
            np.divide(error, self._first.max_error, out=squares)
            np.multiply(squares, squares, out=squares)
            errors.add_axes(span, squares)
        self._add_decades(errors, error, biggest)
        self._offer_relative(errors, error, size, x, y, place)

    def _add_counted(self, errors: ErrorStatistics, span: Span, x: Numbers, y: Numbers) -> bool:
        """Add a block without NaN and Inf in one go, where the kernel does that; False where it does not."""
        weights = self._temporary("weights", x)
        counted = kernel_of_thread().count_errors(x, y, weights, self._limits(errors, x.dtype))
        if counted is None:
            return False
        counts = counted.errors
        if not counts.largest:
            return True
        is_sure = counts.maybe_outside == counts.surely_outside
        errors.outside += counts.surely_outside if is_sure else self._exactly_outside(x, y)
        errors.nonzero += counts.nonzero
        for number in range(len(errors.edges)):
            errors.at_least[number] += counts.at_least[number]
        errors.add_axes(span, weights)
        if counts.largest >= errors.absolute.threshold:
            at = np.arange(x.size) if counted.worst is None else counted.worst
            errors.absolute.offer(np.abs(x[at] - y[at]), x[at], y[at], lambda i: errors.flat_position(span, int(at[i])))
        near = np.arange(x.size) if counted.worst_relative is None else counted.worst_relative
        if near.size:
            a, b = x[near], y[near]
            self._offer_relative(
                errors, np.abs(a - b), np.abs(b), a, b, lambda i: errors.flat_position(span, int(near[i]))
            )
        return True

    def _limits(self, errors: ErrorStatistics, dtype: np.dtype) -> ErrorsAsked:
        rounding = _ROUNDING if dtype == np.float32 else _ROUNDING_DOUBLE
        relative = min(errors.relative.threshold * (1 - rounding), float(np.finfo(dtype).max))
        limits = ErrorsAsked(
            atol=self._atol, rtol=self._rtol, rounding=rounding, zero=ZERO_BELOW, worst=errors.absolute.threshold,
            worst_relative=relative, largest=self._first.max_error, edge_count=len(errors.edges), room=_PLACES,
        )  # fmt: skip
        limits.edges[: len(errors.edges)] = errors.edges
        return limits

    def _exactly_outside(self, x: Numbers, y: Numbers) -> int:
        """Return how many errors are beyond the tolerance, in float64."""
        x, y = x.astype(np.float64), y.astype(np.float64)
        return int(np.count_nonzero(np.abs(x - y) > np.abs(y) * self._rtol + self._atol))

    def _temporary(self, name: str, like: Numbers) -> Floats:
        return cast(Floats, _scratch().numbers(name, like.size, like.dtype))

    def _errors(self, x: Numbers, y: Numbers, name: str) -> Floats:
        """|x - y|; 0 where both are the same NaN or Inf, inf where only one is finite."""
        if x.dtype.kind != "f" or y.dtype.kind != "f":
            return np.abs(integers.errors(x, y))
        error = self._temporary(name, x)
        np.subtract(x, y, out=error)
        np.abs(error, out=error)
        if not self._all_finite and not np.isfinite(error).all():
            finite = np.isfinite(x) & np.isfinite(y)
            np.copyto(error, inf, where=~finite)
            np.copyto(error, 0, where=(np.isnan(x) & np.isnan(y)) | (x == y))
        return error

    def _count_outside(
        self, errors: ErrorStatistics, error: Floats, size: Floats, x: Numbers, y: Numbers, biggest: float
    ) -> None:
        if biggest <= self._atol * (1 - _ROUNDING):
            return
        if error.dtype == np.float32:
            allowed = self._allowed(error, size, 1 - _ROUNDING)
            most = np.count_nonzero(error > allowed)
            if not most:
                return
            np.multiply(allowed, (1 + _ROUNDING) / (1 - _ROUNDING), out=allowed)
            if most == np.count_nonzero(error > allowed):
                errors.outside += int(most)
                return
            x, y = x.astype(np.float64), y.astype(np.float64)  # too close for float32
            error, size = self._errors(x, y, "exact"), np.abs(y)
        errors.outside += int(np.count_nonzero(error > self._allowed(error, size, 1)))

    def _allowed(self, error: Floats, size: Floats, scale: float) -> Floats:
        allowed = self._temporary("other", error)
        np.multiply(size, self._rtol * scale, out=allowed)
        np.add(allowed, self._atol * scale, out=allowed)
        if self._first.mismatches:  # whatever the size of the other side is
            np.copyto(allowed, 0, where=error == inf)
        return allowed

    def _add_decades(self, errors: ErrorStatistics, error: Floats, biggest: float) -> None:
        nonzero = int(np.count_nonzero(error))
        errors.nonzero += nonzero
        infinite = int(np.count_nonzero(error == inf)) if biggest == inf else 0
        finite = nonzero - infinite
        larger = -infinite  # finite errors that were counted and left out
        for number, edge in enumerate(errors.edges):
            if edge > biggest:
                continue
            count = larger + int(np.count_nonzero(error >= edge))
            errors.at_least[number] += count
            if (finite - count) * 16 < error.size:  # most are done with
                error = error[(error < edge) & (error > 0)]
                larger = count

    def _offer_relative(
        self, errors: ErrorStatistics, error: Floats, size: Floats, x: Numbers, y: Numbers, place: Callable[[int], int]
    ) -> None:
        other = self._temporary("other", error)
        threshold = errors.relative.threshold
        if error.dtype == np.float32:  # a little less, for its rounding; what is larger than it holds, it cannot be
            threshold = min(threshold * (1 - _ROUNDING), _LARGEST_FLOAT32) if threshold < inf else inf
        np.multiply(size, threshold, out=other)
        worse = (error >= other) & (error > 0)
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
        errors.relative.offer(relative, x, y, lambda item: place(int(at[item])))


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


# --- a single pair ----------------------------------------------------------------------------------------------------


#: A single pair: nothing else keeps the workers busy, so that it is shared out in smaller parts than one of many.
_BUDGET = Budget(box=1 << 18, kept_items=1 << 20, part_bytes=64 << 20, split_bytes=128 << 20)


def compare_elements(pair: Pair, resources: Resources = ALL_CORES, *, atol: float, rtol: float, shown: int) -> Detail:
    """Compare both tensors of a pair that has plans, element by element.

    Parameters
    ----------
    pair : Pair
        Two tensors of one size.
    resources : Resources
        Who shares large tensors; workers of our own are processes.
    atol, rtol : float
        Absolute and relative tolerance of an element.
    shown : int
        Elements that are kept of the first and of the worst.

    Raises
    ------
    PrecisionToolError
        For tensors that cannot be read.
    WorkStoppedError
        When a worker process died.
    """
    passes = [ElementsPass(atol=atol, rtol=rtol, shown=shown)]
    meter = Meter(resources.progress, cost(pair))
    try:
        with worker(_BUDGET) as here, resources.open(is_small=meter.total < _BUDGET.split_bytes) as pool:
            if pool is not None:
                (detail,), _ = run_in_parts(Part(pair), passes, pool, here, meter.add)
            else:
                with here.stream(pair) as stream:
                    share = meter.total / (2 * stream.size) if stream.size else 0.0
                    cuts = cuts_of(pair, stream, _BUDGET)
                    (detail,) = run_passes(stream, passes, lambda items: meter.add(items * share), cuts)
    except BrokenExecutor as error:
        raise WorkStoppedError("compare.worker_died", "", (), 2, state=None) from error
    assert isinstance(detail, Detail)
    return detail


def elements_of(pair: Pair) -> Iterator[tuple[Span, Numbers, Numbers, int]]:
    """Yield all elements in runs: the place of a run, the values of both sides, which the next run overwrites, and
    the number of all elements."""
    with worker(_BUDGET) as here, here.stream(pair) as stream:
        for block in stream.blocks():
            yield block.span(stream.index_shape if stream.is_flat else None), block.npu, block.golden, stream.size
