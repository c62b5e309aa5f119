"""The figures of one tensor: its summary, a histogram of its values and the first of them, read in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import nan

import numpy as np

from precision_tool.lib.engine.blocks import Opens, Scratch, TensorReader, box_size
from precision_tool.lib.engine.compiled import kernel_of_thread
from precision_tool.lib.engine.kernel import deviations
from precision_tool.lib.engine.metrics import summarize
from precision_tool.lib.engine.sums import SideSums
from precision_tool.lib.engine.workers import check_stopping
from precision_tool.lib.errors import FormatError
from precision_tool.lib.formats.tensor_bytes import open_bytes
from precision_tool.lib.model.comparison import Summary
from precision_tool.lib.model.tensor import AnyTensor, Plan, Tensor, TensorStatistics
from precision_tool.lib.numbers import data_types, decode, layouts
from precision_tool.lib.numbers.decode import Numbers

#: Items the arithmetic works on at once: with its temporaries they stay in the cache.
_BLOCK = 1 << 16
#: Tensors up to this many items are kept decoded between the two passes.
_KEEP = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFigures:
    """What the values of a tensor look like.

    The parts of complex numbers count apart, as two real numbers, in `summary` and `histogram`. `histogram` counts
    the finite values in equal bins over [minimum, maximum], the last one closed; a constant is all in the first.
    `first` holds the first values in logical (C) order. Of an integer type they, minimum and maximum are exact ints.
    """

    summary: Summary
    histogram: tuple[int, ...] = ()
    first: tuple[float | complex, ...] = ()


def figures_of(tensor: AnyTensor, plan: Plan | None = None, *, bins: int = 0, first: int = 0) -> TensorFigures:
    """The figures of a tensor read by `plan`, by default as its shape says, padding included.

    Of a statistics dump they are what its file has, without values. FormatError for a tensor without numbers and for
    a damaged file. Sums are float64; NaN and Inf are counted and left out of minimum, maximum, mean and std.
    """
    if isinstance(tensor, TensorStatistics):
        return TensorFigures(summary=summary_of_statistics(tensor))
    with open_reader(tensor, plan) as reader:
        stream = _Stream(reader, is_integer=data_types.BY_NAME[tensor.dtype].is_integer)
        kernel = kernel_of_thread()
        sums = SideSums()
        size = 0
        for block in stream.blocks():
            size += block.size
            kernel.add_side(sums, block)
        counts = np.zeros(bins, np.int64)
        deviation = deviation_squares = 0.0
        if sums.count and (bins or sums.is_extreme):
            for block in stream.blocks():
                if sums.is_extreme:
                    total, squares = deviations(sums, block[np.isfinite(block)])
                    deviation += total
                    deviation_squares += squares
                if bins:
                    kernel.add_bins(counts, block, sums.minimum, sums.maximum)
        values = first_values(reader, tensor, first)
    summary = summarize(sums, size, deviation, deviation_squares)
    if stream.extremes is not None:
        values = tuple(map(int, values))  # type: ignore[arg-type]  # no complex numbers
        summary = replace(summary, minimum=stream.extremes[0], maximum=stream.extremes[1])
    return TensorFigures(
        summary=summary,
        histogram=tuple(counts.tolist()),
        first=values,
    )


def summary_of_statistics(tensor: TensorStatistics) -> Summary:
    """What a statistics dump tells of a tensor; nan for what it leaves open."""

    def number(value: float | None) -> float:
        return nan if value is None else value

    return Summary(
        count=tensor.count if tensor.count is not None else tensor.size,
        minimum=number(tensor.minimum),
        maximum=number(tensor.maximum),
        mean=number(tensor.mean),
        nan_count=tensor.nan_count or 0,
        positive_inf_count=tensor.positive_inf_count or 0,
        negative_inf_count=tensor.negative_inf_count or 0,
    )


@contextmanager
def open_reader(
    tensor: Tensor, plan: Plan | None = None, dtype: np.dtype | None = None, opens: Opens = open_bytes
) -> Iterator[TensorReader]:
    """A reader of the values of a tensor, in `dtype` or else a type that holds each of them exactly."""
    data_type = data_types.BY_NAME[tensor.dtype]
    if not data_type.is_numeric:
        raise FormatError.of(tensor.path, f"elements of type {tensor.dtype} are no numbers", "look at another tensor")
    if plan is None:
        plan = tensor.plan or layouts.plain_plan(tensor.shape, tensor.fortran_order)
    if dtype is None:
        dtype, _ = decode.compute_types(data_type, data_type)
    reader = TensorReader(tensor, plan, dtype, Scratch(), "tensor", opens)
    try:
        yield reader
    finally:
        reader.close()


def first_values(reader: TensorReader, tensor: Tensor, count: int) -> tuple[float | complex, ...]:
    """The first `count` elements in logical order."""
    data_type = data_types.BY_NAME[tensor.dtype]
    reals = reader.head(count * decode.reals_per_element(data_type))
    if data_type.is_complex:
        return tuple(map(complex, reals[::2].tolist(), reals[1::2].tolist()))
    return tuple(reals.tolist())


@dataclass(slots=True)
class _Stream:
    """The values of a tensor in blocks, as often as asked for; small ones are read and decoded once.

    Blocks are of the reader's type.
    """

    reader: TensorReader
    is_integer: bool
    #: The smallest and the largest integer read so far; float64 would round those of 64 bits.
    extremes: tuple[int, int] | None = None
    _scratch: Scratch = field(default_factory=Scratch)
    _kept: list[Numbers] = field(default_factory=list)

    def blocks(self) -> Iterator[Numbers]:
        """Blocks in no certain order; each is overwritten by the next."""
        if self._kept:
            yield from self._kept
            return
        for numbers in self._numbers():
            if self.is_integer:
                self._widen(int(numbers.min()), int(numbers.max()))
            if self.reader.size <= _KEEP:
                self._kept.append(numbers.copy())
            yield numbers

    def _widen(self, low: int, high: int) -> None:
        known = self.extremes or (low, high)
        self.extremes = min(known[0], low), max(known[1], high)

    def _numbers(self) -> Iterator[Numbers]:
        reader = self.reader
        for box in reader.boxes():
            check_stopping()
            count = box_size(box)
            items = self._scratch.numbers("items", count, reader.dtype)
            reader.read(box, items)
            for start in range(0, count, _BLOCK):
                yield items[start : start + _BLOCK]
