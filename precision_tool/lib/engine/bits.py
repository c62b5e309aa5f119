"""Tensors byte by byte: whether two are the same, and where they differ."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.formats.tensor_bytes import open_bytes
from precision_tool.lib.model.tensor import Tensor
from precision_tool.lib.native.library import address

_BLOCK = 1 << 20
#: C's own: numpy would make an array of the results, and a memoryview go through its items one by one.
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def equal_bytes(one: npt.NDArray[Any], two: npt.NDArray[Any]) -> bool:
    """True if two arrays, each in one piece of memory, have the same bytes."""
    assert one.flags.c_contiguous
    assert two.flags.c_contiguous
    return one.nbytes == two.nbytes and _memcmp(address(one), address(two), one.nbytes) == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first and the last byte that differ, counted from the start of the tensor, and how many there are."""

    first: int
    last: int
    count: int


def is_alike(left: Tensor, right: Tensor) -> bool:
    """True if two tensors can be compared byte by byte: stored in one type, order and shape."""
    return (left.dtype, left.shape, left.layout, left.nbytes, left.big_endian, left.fortran_order) == (
        right.dtype, right.shape, right.layout, right.nbytes, right.big_endian, right.fortran_order
    )  # fmt: skip


def difference(left: Tensor, right: Tensor) -> Difference | None:
    """Where two tensors of one size differ; None if they are equal. FormatError for a damaged file."""
    first = last = -1
    count = 0
    one, two = (np.empty(min(_BLOCK, max(left.nbytes, 1)), np.uint8) for _ in range(2))
    with open_bytes(left) as a, open_bytes(right) as b:
        for start in range(0, left.nbytes, _BLOCK):
            size = min(_BLOCK, left.nbytes - start)
            a.read_into(left.offset + start, one[:size].data)
            b.read_into(right.offset + start, two[:size].data)
            if equal_bytes(one[:size], two[:size]):
                continue
            places = np.flatnonzero(one[:size] != two[:size])
            first = start + int(places[0]) if first < 0 else first
            last = start + int(places[-1])
            count += places.size
    return Difference(first=first, last=last, count=count) if count else None


def same_range(left: Tensor, start: int, right: Tensor, other: int, size: int) -> bool:
    """True if `size` bytes of one tensor from `start` are those of another from `other`."""
    with open_bytes(left) as a, open_bytes(right) as b:
        for done in range(0, size, _BLOCK):
            step = min(_BLOCK, size - done)
            if a.read_at(left.offset + start + done, step) != b.read_at(right.offset + other + done, step):
                return False
    return True
