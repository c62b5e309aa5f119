"""Tensors of several ranks read as one."""

from __future__ import annotations

import numpy as np
import pytest

from precision_tool.lib.compare.merged import Coordinates, Doubles, Fit, MergedTensor, Values
from precision_tool.lib.data.sharding import Placement, Split
from precision_tool.lib.io.layouts import Box


class _Array(Values):
    def __init__(self, array: Doubles) -> None:
        self.array, self.shape = array, array.shape

    def box(self, box: Box) -> Doubles:
        return self.array[tuple(slice(*limits) for limits in box)]

    def grid(self, coordinates: Coordinates) -> Doubles:
        return self.array[np.ix_(*coordinates)]


@pytest.mark.parametrize(("parts", "lengths"), [(3, (3, 3, 2)), (8, (4, 4))])
def test_slices_of_other_lengths_are_no_candidates(parts: int, lengths: tuple[int, ...]) -> None:
    """The last rank has a shorter slice, or the user's file names more parts than there are ranks: no traceback."""
    whole = np.random.default_rng(0).normal(size=(8, 5))
    own = np.split(whole, np.cumsum(lengths)[:-1])
    merged = object.__new__(MergedTensor)
    merged.ranks, merged._golden_ranks, merged._wholes = tuple(range(len(own))), (0,), {}
    merged._npu = {rank: [_Array(part)] for rank, part in enumerate(own)}
    merged._golden = {0: [_Array(whole)]}
    fit = Fit(npu=Placement(splits=(Split(0, parts),)), golden=Placement())
    for rank in merged.ranks:
        distances = merged.distances(fit, rank)
        assert distances[(rank,)] == 0
        assert all(lengths[position] == lengths[rank] for (position,) in distances)
