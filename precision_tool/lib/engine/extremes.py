"""How near the values of a tensor come to the limits of its type: quick, for whole dump trees.

The codes of floating-point numbers without their signs are ordered as their sizes, so that the largest code of a block
tells that nothing in it is NaN, Inf or saturated; only blocks that hold any are looked at closer. Values are taken as
they lie: padding is zero and changes nothing but a share.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from math import inf, isfinite, isnan, nan, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.engine.blocks import Opens
from precision_tool.lib.engine.opened import OpenTensors
from precision_tool.lib.engine.statistics import figures_of, summary_of_statistics
from precision_tool.lib.engine.workers import check_stopping
from precision_tool.lib.formats.tensor_bytes import open_bytes
from precision_tool.lib.model.comparison import Extremes, Summary
from precision_tool.lib.model.tensor import AnyTensor, Tensor, TensorStatistics
from precision_tool.lib.native.library import Codes, library
from precision_tool.lib.numbers import data_types

_BLOCK_BYTES = 1 << 19


@dataclass(frozen=True, slots=True)
class _Codes:
    """How the numbers of a type are stored: the word, and the code of its largest number, before that of infinity."""

    word: str
    largest: int


#: Complex numbers are looked at as pairs of reals.
_HALF, _SINGLE, _DOUBLE = _Codes("u2", 0x7BFF), _Codes("u4", 0x7F7F_FFFF), _Codes("u8", 0x7FEF_FFFF_FFFF_FFFF)
_CODES = {
    "float16": _HALF, "complex32": _HALF, "bfloat16": _Codes("u2", 0x7F7F), "float32": _SINGLE,
    "complex64": _SINGLE, "float64": _DOUBLE, "complex128": _DOUBLE,
}  # fmt: skip


def merged(one: Extremes, two: Extremes) -> Extremes:
    """The extremes of two parts of one tensor together."""
    return replace(
        one,
        count=one.count + two.count,
        largest=nan if isnan(one.largest + two.largest) else max(one.largest, two.largest),
        saturated=one.saturated + two.saturated,
        nan_count=one.nan_count + two.nan_count,
        positive_inf_count=one.positive_inf_count + two.positive_inf_count,
        negative_inf_count=one.negative_inf_count + two.negative_inf_count,
        statistics_only=one.statistics_only or two.statistics_only,
    )


def limit_of(dtype: str) -> float | None:
    """The largest number of a floating-point type; None for types without such a limit, integers among them."""
    if dtype in _CODES:
        return _value(dtype, _CODES[dtype].largest)
    known = data_types.BY_NAME.get(dtype)
    if known is None or not dtype.startswith(("float", "hifloat")):
        return None
    table = data_types.value_table(known.numpy_name)
    return float(table[np.isfinite(table)].max())


def limit_of_codes(dtype: str) -> float | None:
    """The largest number of a type whose values may be saturated; None for others."""
    return limit_of(dtype) if dtype in _CODES else None


def extremes_by(tensor: Tensor, summary: Summary, saturated: int | None = None) -> Extremes | None:
    """The extremes that a summary of the values tells of, with how many are `saturated` where that is known.

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


def extremes_of(tensor: AnyTensor, opened: OpenTensors | None = None) -> Extremes | None:
    """The extremes of a tensor; None for one whose type has no limit. FormatError for a damaged file.

    Types of 8 bits and fewer count as saturated never: scaling to their limit is how they are used.
    """
    limit = limit_of(tensor.dtype)
    if limit is None:
        return None
    if isinstance(tensor, TensorStatistics):
        return _of_statistics(tensor, limit)
    if tensor.dtype not in _CODES:
        return extremes_by(tensor, figures_of(tensor).summary)
    return _of_codes(tensor, limit, open_bytes if opened is None else opened.open)


def _count(tensor: Tensor) -> int:
    """Elements without padding, as far as the file tells."""
    shape = tensor.origin_shape
    return prod(shape) if shape is not None and 0 < prod(shape) <= tensor.size else tensor.size


def _of_statistics(tensor: TensorStatistics, limit: float) -> Extremes:
    summary = summary_of_statistics(tensor)
    known = [value for value in (tensor.minimum, tensor.maximum) if value is not None]
    sizes = [abs(value) for value in known if isfinite(value)]
    # Some releases put what is not finite into max and min as well as into the counts.
    return Extremes(
        dtype=tensor.dtype,
        count=summary.count,
        limit=limit,
        largest=max(sizes, default=nan) if len(sizes) == len(known) else nan,
        saturated=int(tensor.dtype in _CODES and any(size >= limit for size in sizes)),
        nan_count=max(summary.nan_count, int(any(map(isnan, known)))),
        positive_inf_count=max(summary.positive_inf_count, int(inf in known)),
        negative_inf_count=max(summary.negative_inf_count, int(-inf in known)),
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
            found = _found(raw.view(word), codes.largest)
            largest = max(largest, found.largest)
            saturated += found.saturated
            nans += found.nans
            positive += found.positive_infinities
            negative += found.negative_infinities
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


def _found(stored: npt.NDArray[np.unsignedinteger[Any]], top: int) -> Codes:
    """What the codes of stored numbers tell; `top` is that of the largest number of their type."""
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
    """The number that a code without a sign stands for."""
    if dtype == "bfloat16":
        return float(np.array(code << 16, np.uint32).view(np.float32))
    word = np.dtype(_CODES[dtype].word)
    number: npt.NDArray[np.float64] = np.array(code, word).view(f"f{word.itemsize}").astype(np.float64)
    return float(number)
