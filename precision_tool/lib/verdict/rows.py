"""Some rows of large tensors: which ones, and how they are cut out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.ops.arguments import distinct
from precision_tool.lib.ops.base import Input

#: Rows and elements of a wrong large op at least that its mistake is told from, and the share of all that they are.
_TELLING_ROWS, _TELLING_ELEMENTS, _TELLING_SHARE = 6, 1 << 16, 4
#: In how many pieces these rows lie at most.
_TELLING_PIECES = 64


@dataclass(frozen=True, slots=True)
class Rows:
    """Some of the `count` rows along a tensor's first axis: pieces of rows that follow one another, in order.

    `is_flat`: the tensor falls into so many rows whatever its axes are, and only its elements count.
    """

    count: int
    pieces: tuple[tuple[int, int], ...]
    is_flat: bool = False

    @property
    def chosen(self) -> int:
        """How many rows that are."""
        return sum(stop - start for start, stop in self.pieces)

    @property
    def numbers(self) -> npt.NDArray[np.intp]:
        """The rows' numbers."""
        return np.concatenate([np.arange(start, stop, dtype=np.intp) for start, stop in self.pieces])

    def are_in(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of this shape has as many rows."""
        return prod(shape) % self.count == 0 if self.is_flat else shape[:1] == (self.count,)

    def of(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """These rows of an array of as many rows; any other array as it is."""
        if self.is_flat:
            return array.reshape(self.count, -1)[self.numbers].reshape(-1)
        return array[self.numbers] if array.shape[:1] == (self.count,) else array

    def and_also(self, numbers: npt.NDArray[np.intp]) -> Rows:
        """These rows, and those of such numbers."""
        found = distinct(np.append(self.numbers, numbers))
        runs = np.split(found, np.flatnonzero(np.diff(found) > 1) + 1)
        return replace(self, pieces=tuple((int(run[0]), int(run[-1]) + 1) for run in runs))

    def with_piece(self, first: int, stop: int) -> Rows:
        """These rows, and those from `first` to `stop`."""
        found: list[tuple[int, int]] = []
        for start, end in sorted((*self.pieces, (first, stop))):
            if found and start <= found[-1][1]:
                found[-1] = found[-1][0], max(end, found[-1][1])
            else:
                found.append((start, end))
        return replace(self, pieces=tuple(found))

    def cut(self, tensors: Mapping[int, Input], slots: frozenset[int]) -> dict[int, Input]:
        """The tensors, those of `slots` cut to these rows."""
        return {slot: replace(one, array=self.of(one.array)) if slot in slots else one for slot, one in tensors.items()}


def spread(count: int, chosen: int, pieces: int | None = None, block: int = 1) -> Rows:
    """About `chosen` of `count` rows, spread evenly over all; the first and the last are among them.

    They are in so many `pieces` (None: each row alone), which begin and end on borders of a `block` of rows.
    """
    chosen = max(1, min(chosen, count))
    many = min(chosen, pieces or chosen)
    length = -(-chosen // many // block) * block
    last = max(0, count - length)
    starts = distinct(np.linspace(0, last, many).astype(np.intp) // block * block)
    found: list[tuple[int, int]] = []
    for start in map(int, starts):
        stop = count if start == last // block * block else start + length
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], stop
        else:
            found.append((start, stop))
    return Rows(count, tuple(found))


def telling_rows(
    batch: tuple[int, frozenset[int]] | None, got: Mapping[int, Input]
) -> tuple[Rows, frozenset[int]] | None:
    """So many rows of an op's batch that they may tell a mistake, and the inputs that have them.

    `batch`: its rows, and the inputs that have them (see `Formula.batch_of`). None where there is no batch, or that
    would be most of it.
    """
    if batch is None or len(got) != 1:
        return None
    count, cut = batch
    size = max(one.array.size for one in got.values())
    rows = spread(count, max(_TELLING_ROWS, -(-count * _TELLING_ELEMENTS // size)), _TELLING_PIECES)
    if rows.chosen * _TELLING_SHARE > count or any(one.array.shape[0] != count for one in got.values()):
        return None
    return rows, cut
