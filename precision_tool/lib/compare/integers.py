"""Tensors byte by byte: whether two are the same, and where they differ."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.compare.pair_sums import SideSums
from precision_tool.lib.io.data_types import Numbers
from precision_tool.lib.io.native.library import address
from precision_tool.lib.io.tensor_bytes import open_bytes
from precision_tool.lib.model.tensor import Tensor

_BLOCK = 1 << 20
#: C's own: numpy would make an array of the results, and a memoryview go through its items one by one.
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def equal_bytes(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> bool:
    """Return whether two arrays, each in one piece of memory, have the same bytes."""
    assert left.flags.c_contiguous
    assert right.flags.c_contiguous
    return left.nbytes == right.nbytes and _memcmp(address(left), address(right), left.nbytes) == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first and the last byte that differ, counted from the start of the tensor, and how many there are."""

    first: int
    last: int
    count: int


def is_alike(left: Tensor, right: Tensor) -> bool:
    """Return whether two tensors can be compared byte by byte: stored in one type, order and shape."""
    return (left.dtype, left.shape, left.layout, left.nbytes, left.big_endian, left.fortran_order) == (
        right.dtype, right.shape, right.layout, right.nbytes, right.big_endian, right.fortran_order
    )  # fmt: skip


def difference(left: Tensor, right: Tensor) -> Difference | None:
    """Return where two tensors of one size differ; None if they are equal. FormatError for a damaged file."""
    first = last = -1
    count = 0
    left_block, right_block = (np.empty(min(_BLOCK, max(left.nbytes, 1)), np.uint8) for _ in range(2))
    with open_bytes(left) as a, open_bytes(right) as b:
        for start in range(0, left.nbytes, _BLOCK):
            size = min(_BLOCK, left.nbytes - start)
            a.read_into(left.offset + start, left_block[:size].data)
            b.read_into(right.offset + start, right_block[:size].data)
            if equal_bytes(left_block[:size], right_block[:size]):
                continue
            places = np.flatnonzero(left_block[:size] != right_block[:size])
            first = start + int(places[0]) if first < 0 else first
            last = start + int(places[-1])
            count += places.size
    return Difference(first=first, last=last, count=count) if count else None


def same_range(left: Tensor, start: int, right: Tensor, other: int, size: int) -> bool:
    """Return whether `size` bytes of one tensor from `start` are those of another from `other`."""
    with open_bytes(left) as a, open_bytes(right) as b:
        for done in range(0, size, _BLOCK):
            step = min(_BLOCK, size - done)
            if a.read_at(left.offset + start + done, step) != b.read_at(right.offset + other + done, step):
                return False
    return True


# --- arithmetic of 64-bit integers ---


_BITS = 32
_HALF = 2.0**_BITS


Doubles = npt.NDArray[np.float64]


def _halves(a: Numbers) -> tuple[Doubles, Doubles]:
    """Return the upper 32 bits of integers, with their sign, and the lower ones."""
    kind = a.dtype.type
    upper, lower = a >> kind(_BITS), a & kind(2**_BITS - 1)  # type: ignore[operator]  # never floats
    return upper.astype(np.float64), lower.astype(np.float64)


def _together(upper: Doubles, lower: Doubles) -> Doubles:
    upper *= _HALF
    upper += lower
    return upper


def errors(x: Numbers, y: Numbers) -> Doubles:
    """x - y of 64-bit integers, signed or not, each rounded once."""
    (x_upper, x_lower), (y_upper, y_lower) = _halves(x), _halves(y)
    return _together(x_upper - y_upper, x_lower - y_lower)


def offsets(a: Numbers, base: int) -> Doubles:
    """Return how far 64-bit integers are from `base`, each rounded once."""
    upper, lower = _halves(a)
    return _together(upper - float(base >> _BITS), lower - float(base % 2**_BITS))


def mean_of(total: int, count: int) -> tuple[int, float]:
    """Return the integer next to the mean, and what the mean is above it: at most a half, so that nothing cancels where
    squares of deviations from that integer become those from the mean."""
    nearest = (2 * total + count) // (2 * count)
    return nearest, (total - nearest * count) / count


def add_side(side: SideSums, a: Numbers) -> None:
    """Add integers, at most 2**21 whose halves float64 adds up exactly, to the sums of one side."""
    upper, lower = _halves(a)
    total = (int(upper.sum()) << _BITS) + int(lower.sum())
    nearest, rest = mean_of(total, a.size)
    upper -= float(nearest >> _BITS)
    lower -= float(nearest % 2**_BITS)
    apart = _together(upper, lower)
    squares = max(float(np.dot(apart, apart)) - a.size * rest * rest, 0.0)
    side.add_values(a.size, total, squares, int(a.min()), int(a.max()), a.size - int(np.count_nonzero(a)))
