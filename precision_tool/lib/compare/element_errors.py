"""Where the errors of a pair are, how large, and which elements are the worst: as a pass, and of a single pair.

Beside the sums of the metrics, which tell the largest error, a second round does all of it. Memory does not depend on
the size of the tensors.
"""

from __future__ import annotations

import csv
import posixpath
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass, field, replace
from heapq import nlargest
from itertools import pairwise
from math import floor, inf, isnan, log10
from typing import cast

import numpy as np
import numpy.typing as npt

from precision_tool.lib.compare.compiled import kernel_of_thread
from precision_tool.lib.compare.convert import digits_of
from precision_tool.lib.compare.kernel import integer_errors
from precision_tool.lib.compare.pair_sums import KlSums, Sums, ravel, unravel
from precision_tool.lib.compare.pairwise import Part, cost, cuts_of, run_in_parts, worker
from precision_tool.lib.compare.passes import MetricsPass, Pass, SecondPass, run_passes
from precision_tool.lib.compare.scheduler import ALL_CORES, Meter, Progress, Resources, WorkStoppedError
from precision_tool.lib.compare.stream import Block, PairStream, Span, tensors_of
from precision_tool.lib.compare.tensor_reader import Budget, Scratch
from precision_tool.lib.data.dump_names import file_part, flatten, shortened
from precision_tool.lib.io import data_types, decode
from precision_tool.lib.io.decode import Floats, Numbers, as_float64
from precision_tool.lib.io.files import atomic_text
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
#: Items of a piece of a block that is worked on step by step: with its temporaries it stays in the cache.
_PIECE = 1 << 14
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

        def element(flat: int, npu: float, golden: float) -> Element:
            return Element(index=unravel(flat, shape) or (), npu=npu, golden=golden)

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
        return ravel(span.index(item), self._shape)

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
        errors, span = state[1], state[1].span_of(block)
        with np.errstate(all="ignore"):
            if not self._add_counted(errors, span, block.npu, block.golden):
                for start in range(0, block.npu.size, _PIECE):
                    part = slice(start, start + _PIECE)
                    self._add(errors, replace(span, start=span.start + start), block.npu[part], block.golden[part])

    def merge(self, state: tuple[KlSums, ErrorStatistics], other: tuple[KlSums, ErrorStatistics]) -> None:
        self._sums.merge(state[0], other[0])
        state[1].merge(other[1])

    def finish(
        self, state: tuple[KlSums, ErrorStatistics], second: None, stream: PairStream
    ) -> tuple[KlSums, ErrorStatistics]:
        return state

    def _add(self, errors: ErrorStatistics, span: Span, x: Numbers, y: Numbers) -> None:
        """Add a piece of a block step by step, in float64."""
        golden = as_float64(y)
        size = np.abs(golden)
        are_floats = x.dtype.kind == y.dtype.kind == "f"
        error = self._errors(as_float64(x), golden) if are_floats else np.abs(integer_errors(x, y))
        biggest = float(error.max())
        if biggest == 0:
            return

        def place(item: int) -> int:
            return errors.flat_position(span, item)

        infinite = error == inf  # beyond any tolerance, whatever the size of the other side is
        errors.outside += int(np.count_nonzero((error > size * self._rtol + self._atol) | infinite))
        errors.nonzero += int(np.count_nonzero(error))
        errors.absolute.offer(error, x, y, place)
        if self._first.mismatches:
            if biggest == inf:
                errors.add_axes(span, infinite.astype(np.float64))
        elif self._first.max_error < inf:
            errors.add_axes(span, np.square(error / self._first.max_error))
        finite = error[(error > 0) & ~infinite]
        for number, edge in enumerate(errors.edges):
            if edge <= biggest:
                errors.at_least[number] += int(np.count_nonzero(finite >= edge))
        relative = error / size
        np.copyto(relative, inf, where=np.isnan(relative) & (error > 0))
        np.copyto(relative, 0, where=size <= ZERO_BELOW)
        errors.relative.offer(relative, x, y, place)

    def _errors(self, x: Floats, y: Floats) -> Floats:
        """Return |x - y|; 0 where both are the same NaN or Inf, inf where only one is finite."""
        error: Floats = np.abs(x - y)
        if not self._all_finite:
            np.copyto(error, inf, where=~(np.isfinite(x) & np.isfinite(y)))
            np.copyto(error, 0, where=(np.isnan(x) & np.isnan(y)) | (x == y))
        return error

    def _add_counted(self, errors: ErrorStatistics, span: Span, x: Numbers, y: Numbers) -> bool:
        """Add a block without NaN and Inf in one go, where the kernel does that; False where it does not."""
        if not (x.dtype.kind == y.dtype.kind == "f" and self._all_finite and 0 < self._first.max_error < inf):
            return False
        if x.dtype == np.float32 and self._first.max_error > _LARGEST_FLOAT32:  # float64 holds the differences
            x, y = x.astype(np.float64), y.astype(np.float64)
        weights = cast(Floats, _scratch().numbers("weights", x.size, x.dtype))
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
            a, b = x[near].astype(np.float64), y[near].astype(np.float64)
            relative = np.abs(a - b) / np.abs(b)
            np.copyto(relative, 0, where=~(np.abs(b) > ZERO_BELOW))
            errors.relative.offer(relative, a, b, lambda i: errors.flat_position(span, int(near[i])))
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


_ELEMENT_COLUMNS = ("Index", "NPUDump", "GroundTruth", "AbsoluteError", "RelativeError")


def write_elements(pair: Pair, path: str, progress: Progress | None = None) -> None:
    """Write the table of all elements of a pair: index, both values, both errors (`-` relative to zero)."""
    with atomic_text(path) as file:
        file.write(",".join(_ELEMENT_COLUMNS) + "\n")
        done = 0
        total = sum(tensor.nbytes for tensor in tensors_of(pair))
        for span, x, y, size in elements_of(pair):
            error, relative = _errors(x, y)
            digits = f".{digits_of(x.dtype)}g"
            number = "" if x.dtype.kind in "iu" else digits
            rows = zip(span.texts(x.size), x.tolist(), y.tolist(), error.tolist(), relative.tolist(), strict=True)
            file.writelines(
                f"{place},{npu:{number}},{golden:{number}},{absolute:{digits}},"
                + (f"{share:{digits}}\n" if share == share else "-\n")
                for place, npu, golden, absolute, share in rows
            )
            done += x.size
            if progress is not None:
                progress(total * done // size, total)


def _errors(x: Numbers, y: Numbers) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """As those of `Element`: |x - y|, and that relative to |y|, nan where y counts as zero."""
    golden = y.astype(np.float64)
    with np.errstate(all="ignore"):
        if x.dtype.kind in "iu":
            error = np.abs(integer_errors(x, y))
        else:
            npu = x.astype(np.float64)
            error = np.abs(npu - golden)
            np.copyto(error, 0, where=(npu == golden) | (np.isnan(npu) & np.isnan(golden)))
        relative = error / np.abs(golden)
        np.copyto(relative, np.nan, where=~(np.abs(golden) > ZERO_BELOW))
    return error, relative


# --- files of the worst elements ---


_MAX_NAME_BYTES = 255
_SUFFIXES = ("_summary.txt", "_absolute_error_topn.csv", "_relative_error_topn.csv")


def write_detail(folder: str, detail: Detail, prefix: str = "") -> list[str]:
    """Write the three files and returns their paths. OutputError when they cannot be written."""
    pair = detail.comparison.pair
    digits = _digits(pair)
    stem = file_part(f"{prefix}{flatten(pair.op_name)}_{pair.slot.replace(':', '_')}")
    stem = shortened(stem, _MAX_NAME_BYTES - max(map(len, _SUFFIXES)))
    paths = [posixpath.join(folder, stem + suffix) for suffix in _SUFFIXES]
    with atomic_text(paths[0]) as file:
        file.write(_summary(detail))
    for path, elements in zip(paths[1:], (detail.worst_absolute, detail.worst_relative), strict=True):
        with atomic_text(path) as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["Index", _axes(detail.shape), "NPUDump", "GroundTruth", "AbsoluteError", "RelativeError"])
            writer.writerows(_line(element, detail.shape, digits) for element in elements)
    return paths


def _axes(shape: Sequence[int]) -> str:
    """Return the header of the index: `ID` for a vector as the vendor has it, else the axes in the order compared."""
    return " ".join(f"Dim{axis}" for axis in range(len(shape))) if len(shape) > 1 else "ID"


def _line(element: Element, shape: tuple[int, ...], digits: int) -> list[str]:
    npu, golden, error = (_number(value, digits) for value in (element.npu, element.golden, element.error))
    relative = "-" if isnan(element.relative) else _number(element.relative, digits)
    place = ravel(element.index, shape)
    return [str(place), " ".join(map(str, element.index)), npu, golden, error, relative]


def _number(value: float, digits: int) -> str:
    return str(value) if isinstance(value, int) else f"{value:.{digits}g}"


def _digits(pair: Pair) -> int:
    """Digits that tell the numbers compared from each other."""
    types = [data_types.BY_NAME[side.dtype] for side in (pair.npu, pair.golden) if side is not None]
    return digits_of(decode.compute_types(types[0], types[-1])[0])


def _summary(detail: Detail) -> str:
    pair = detail.comparison.pair
    metrics = detail.comparison.metrics
    digits = _digits(pair)
    facts = [
        ("TotalCount", str(detail.count)),
        ("NPUDump", " ".join(pair.npu_ops)),
        ("GroundTruth", " ".join(pair.golden_ops)),
        ("Format", _axes(detail.shape)),
        ("Shape", " ".join(map(str, detail.shape))),
        ("EqualCount", str(detail.equal)),
        ("MaxAbsoluteError", "-" if metrics is None else _number(metrics.max_absolute_error, digits)),
        ("MaxRelativeError", "-" if metrics is None else _number(metrics.max_relative_error, digits)),
    ]
    return "".join(f"{name}:{' '.join(value.split())}\n" for name, value in facts)
