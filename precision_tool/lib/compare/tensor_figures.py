"""The figures of one tensor: its summary, a histogram, the first values, and how near it comes to its type's limits.

Tensors are read in blocks. The limits are quick, for whole dump trees: the codes of floating-point numbers without
their signs are ordered as their sizes, so that the largest code of a block tells that nothing in it is NaN, Inf or
saturated; only blocks that hold any are looked at closer. Values are taken as they lie: padding is zero and changes
nothing but a share.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf, isfinite, isnan, nan, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.compare.compiled import kernel_of_thread
from precision_tool.lib.compare.kernel import deviations
from precision_tool.lib.compare.pair_sums import SideSums, summarize
from precision_tool.lib.compare.scheduler import check_stopping
from precision_tool.lib.compare.tensor_reader import Opens, OpenTensors, Scratch, TensorReader, box_size
from precision_tool.lib.io import data_types, layouts
from precision_tool.lib.io.data_types import Numbers
from precision_tool.lib.io.native.library import Codes, library
from precision_tool.lib.io.tensor_bytes import open_bytes
from precision_tool.lib.messages.errors import FormatError
from precision_tool.lib.model.comparison import Extremes, Summary
from precision_tool.lib.model.tensor import AnyTensor, Plan, Tensor, TensorStatistics

#: Items the arithmetic works on at once: with its temporaries they stay in the cache.
_BLOCK = 1 << 16
#: Tensors up to this many items are kept decoded between the two passes.
_KEEP = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFigures:
    """The figures of a tensor's values.

    The parts of complex numbers count apart, as two real numbers, in `summary` and `histogram`. `histogram` counts
    the finite values in equal bins over [minimum, maximum], the last one closed; a constant is all in the first.
    `first` holds the first values in logical (C) order. Of an integer type they, minimum and maximum are exact ints.
    """

    summary: Summary
    histogram: tuple[int, ...] = ()
    first: tuple[float | complex, ...] = ()


def figures_of(
    tensor: AnyTensor, plan: Plan | None = None, *, bins: int = 0, first: int = 0, opens: Opens = open_bytes
) -> TensorFigures:
    """Return the figures of a tensor. Sums are float64; NaN and Inf are counted and left out of the other figures.

    Parameters
    ----------
    tensor : AnyTensor
        A tensor of a file; of a statistics dump the figures are what its file has.
    plan : Plan, optional
        How its elements are read; by default as its shape says, padding included.
    bins : int
        Bins of the histogram.
    first : int
        Elements that are returned themselves.
    opens : callable
        Opens the file of the tensor.

    Raises
    ------
    FormatError
        For a tensor without numbers, and for a damaged file.
    """
    if isinstance(tensor, TensorStatistics):
        return TensorFigures(summary=summary_of_statistics(tensor))
    with open_reader(tensor, plan, opens=opens) as reader:
        kernel = kernel_of_thread()
        sums = SideSums()
        size = 0
        cached: list[Numbers] = []
        for block in _blocks(reader):
            size += block.size
            kernel.add_side(sums, block)
            if reader.size <= _KEEP:
                cached.append(block.copy())
        counts = np.zeros(bins, np.int64)
        deviation = deviation_squares = 0.0
        if sums.count and (bins or sums.is_extreme):
            for block in cached or _blocks(reader):
                if sums.is_extreme:
                    total, squares = deviations(sums, block[np.isfinite(block)])
                    deviation += total
                    deviation_squares += squares
                if bins:
                    kernel.add_bins(counts, block, sums.minimum, sums.maximum)
        values = first_values(reader, tensor, first)
    summary = summarize(sums, size, deviation, deviation_squares)
    if size and data_types.BY_NAME[tensor.dtype].is_integer:
        values = tuple(map(int, values))  # type: ignore[arg-type]  # no complex numbers
        summary = replace(summary, minimum=int(summary.minimum), maximum=int(summary.maximum))
    return TensorFigures(summary=summary, histogram=tuple(counts.tolist()), first=values)


def _blocks(reader: TensorReader) -> Iterator[Numbers]:
    """Return the values of a tensor in blocks, in no certain order; each is overwritten by the next."""
    scratch = Scratch()
    for box in reader.boxes():
        check_stopping()
        count = box_size(box)
        items = scratch.numbers("items", count, reader.dtype)
        reader.read(box, items)
        for start in range(0, count, _BLOCK):
            yield items[start : start + _BLOCK]


def summary_of_statistics(tensor: TensorStatistics) -> Summary:
    """Return the summary in a statistics dump; nan for what it lacks."""

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
    """Return a reader of the values of a tensor, in `dtype` or else a type that holds each of them exactly."""
    data_type = data_types.BY_NAME[tensor.dtype]
    if not data_type.is_numeric:
        raise FormatError.of(tensor.path, "compare.no_numbers", dtype=tensor.dtype)
    if plan is None:
        plan = layouts.own_plan(tensor)
    if dtype is None:
        dtype, _ = data_types.compute_types(data_type, data_type)
    reader = TensorReader(tensor, plan, dtype, Scratch(), "tensor", opens)
    try:
        yield reader
    finally:
        reader.close()


def first_values(reader: TensorReader, tensor: Tensor, count: int) -> tuple[float | complex, ...]:
    """Return the first `count` elements in logical order."""
    data_type = data_types.BY_NAME[tensor.dtype]
    reals = reader.head(count * data_types.reals_per_element(data_type))
    if data_type.is_complex:
        return tuple(map(complex, reals[::2].tolist(), reals[1::2].tolist()))
    return tuple(reals.tolist())


#: Bytes of stored numbers that are looked at at once.
_BLOCK_BYTES = 1 << 19


@dataclass(frozen=True, slots=True)
class _Codes:
    """The stored form of a type: the word, and the code of its largest number, before that of infinity."""

    word: str
    largest: int


#: Complex numbers are looked at as pairs of reals.
_HALF, _SINGLE, _DOUBLE = _Codes("u2", 0x7BFF), _Codes("u4", 0x7F7F_FFFF), _Codes("u8", 0x7FEF_FFFF_FFFF_FFFF)
_CODES = {
    "float16": _HALF, "complex32": _HALF, "bfloat16": _Codes("u2", 0x7F7F), "float32": _SINGLE,
    "complex64": _SINGLE, "float64": _DOUBLE, "complex128": _DOUBLE,
}  # fmt: skip


def merged(left: Extremes, right: Extremes) -> Extremes:
    """Return the extremes of two parts of one tensor together."""
    return replace(
        left,
        count=left.count + right.count,
        largest=nan if isnan(left.largest + right.largest) else max(left.largest, right.largest),
        saturated=left.saturated + right.saturated,
        nan_count=left.nan_count + right.nan_count,
        positive_inf_count=left.positive_inf_count + right.positive_inf_count,
        negative_inf_count=left.negative_inf_count + right.negative_inf_count,
        statistics_only=left.statistics_only or right.statistics_only,
    )


def limit_of(dtype: str) -> float | None:
    """Return the largest number of a floating-point type; None for types without such a limit, integers among them."""
    if dtype in _CODES:
        return _value(dtype, _CODES[dtype].largest)
    data_type = data_types.BY_NAME.get(dtype)
    if data_type is None or not dtype.startswith(("float", "hifloat")):
        return None
    table = data_types.value_table(data_type.numpy_name)
    return float(table[np.isfinite(table)].max())


def limit_of_codes(dtype: str) -> float | None:
    """Return the largest number of a type whose values may be saturated; None for others."""
    return limit_of(dtype) if dtype in _CODES else None


def extremes_by(tensor: Tensor, summary: Summary, saturated: int | None = None) -> Extremes | None:
    """Return the extremes that a summary of the values tells of, with how many are `saturated` where that is known.

    None for a type without limit, and where the summary leaves it open.
    """
    limit = limit_of(tensor.dtype)
    if limit is None:
        return None
    sizes = [abs(value) for value in (summary.minimum, summary.maximum) if not isnan(value)]
    largest = max(sizes, default=0.0)
    if saturated is None:
        if tensor.dtype in _CODES and largest >= limit:
            return None
        saturated = 0
    return Extremes(
        dtype=tensor.dtype,
        count=_count(tensor),
        limit=limit,
        largest=largest,
        saturated=saturated,
        nan_count=summary.nan_count,
        positive_inf_count=summary.positive_inf_count,
        negative_inf_count=summary.negative_inf_count,
    )


def extremes_of(
    tensor: AnyTensor, opened: OpenTensors | None = None, summary: Summary | None = None
) -> Extremes | None:
    """Return the extremes of a tensor, by its `summary` where one is there that tells them, else by its values.

    None for a tensor whose type has no limit; FormatError for a damaged file. Types of 8 bits and fewer count as
    saturated never: scaling to their limit is how they are used.
    """
    limit = limit_of(tensor.dtype)
    if limit is None:
        return None
    if isinstance(tensor, TensorStatistics):
        return _of_statistics(tensor, limit)
    extremes = None if summary is None else extremes_by(tensor, summary)
    if extremes is not None:
        return extremes
    if tensor.dtype not in _CODES:
        return extremes_by(tensor, figures_of(tensor).summary)
    return _of_codes(tensor, limit, open_bytes if opened is None else opened.open)


def reaches_limit(tensor: AnyTensor, opened: OpenTensors | None = None) -> bool | None:
    """Return whether a float16 tensor, padding included, has a value of at least 65504; None for other types."""
    extremes = extremes_of(tensor, opened) if tensor.dtype == "float16" else None
    if extremes is None:
        return None
    reached = bool(extremes.saturated or extremes.inf_count)
    if isinstance(tensor, TensorStatistics) and tensor.minimum is None and tensor.maximum is None:
        return reached or None
    return reached


def _count(tensor: Tensor) -> int:
    """Elements without padding, as far as the file tells."""
    shape = tensor.origin_shape
    return prod(shape) if shape is not None and 0 < prod(shape) <= tensor.size else tensor.size


def _of_statistics(tensor: TensorStatistics, limit: float) -> Extremes:
    summary = summary_of_statistics(tensor)
    limits = [value for value in (tensor.minimum, tensor.maximum) if value is not None]
    sizes = [abs(value) for value in limits if isfinite(value)]
    # Some releases put what is not finite into max and min as well as into the counts.
    return Extremes(
        dtype=tensor.dtype,
        count=summary.count,
        limit=limit,
        largest=max(sizes, default=nan) if len(sizes) == len(limits) else nan,
        saturated=int(tensor.dtype in _CODES and any(size >= limit for size in sizes)),
        nan_count=max(summary.nan_count, int(any(map(isnan, limits)))),
        positive_inf_count=max(summary.positive_inf_count, int(inf in limits)),
        negative_inf_count=max(summary.negative_inf_count, int(-inf in limits)),
        statistics_only=True,
    )


def _of_codes(tensor: Tensor, limit: float, opens: Opens) -> Extremes:
    codes = _CODES[tensor.dtype]
    word = np.dtype(codes.word).newbyteorder(">" if tensor.big_endian else "<")
    largest = saturated = nans = positive = negative = 0
    buffer = np.empty(min(_BLOCK_BYTES, max(tensor.nbytes, 1)), np.uint8)
    end = tensor.nbytes - tensor.nbytes % word.itemsize
    with opens(tensor) as file:
        for start in range(0, end, _BLOCK_BYTES):
            check_stopping()
            raw = buffer[: min(_BLOCK_BYTES, end - start)]
            file.read_into(tensor.offset + start, raw.data)
            block_codes = _codes_of(raw.view(word), codes.largest)
            largest = max(largest, block_codes.largest)
            saturated += block_codes.saturated
            nans += block_codes.nans
            positive += block_codes.positive_infinities
            negative += block_codes.negative_infinities
    return Extremes(
        dtype=tensor.dtype,
        count=_count(tensor),
        limit=limit,
        largest=_value(tensor.dtype, largest),
        saturated=saturated,
        nan_count=nans,
        positive_inf_count=positive,
        negative_inf_count=negative,
    )


def _codes_of(stored: npt.NDArray[np.unsignedinteger[Any]], top: int) -> Codes:
    """Return the counts of stored numbers by their codes; `top` is that of the largest number of their type."""
    compiled = library()
    if compiled is not None and stored.dtype.isnative:
        codes = Codes()
        function = getattr(compiled.functions, f"pt_codes_{8 * stored.dtype.itemsize}")
        function(stored.ctypes.data, stored.size, top, ctypes.byref(codes))
        return codes
    unsigned = (1 << (8 * stored.dtype.itemsize - 1)) - 1
    sizes = stored & stored.dtype.type(unsigned)
    largest = int(sizes.max())
    if largest < top:
        return Codes(largest=largest)
    signs = stored[sizes == top + 1] > unsigned
    negative = int(np.count_nonzero(signs))
    return Codes(
        largest=int(sizes.max(where=sizes <= top, initial=0)),
        saturated=int(np.count_nonzero(sizes == top)),
        nans=int(np.count_nonzero(sizes > top + 1)),
        positive_infinities=signs.size - negative,
        negative_infinities=negative,
    )


def _value(dtype: str, code: int) -> float:
    """Return the number that a code without a sign stands for."""
    if dtype == "bfloat16":
        return float(np.array(code << 16, np.uint32).view(np.float32))
    word = np.dtype(_CODES[dtype].word)
    number: npt.NDArray[np.float64] = np.array(code, word).view(f"f{word.itemsize}").astype(np.float64)
    return float(number)
