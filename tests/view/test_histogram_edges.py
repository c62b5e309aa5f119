"""Borders of bins: whatever the range, none is beyond the next, and the ends are the range's own."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_tool.lib.view.tensors_screen import edges

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(one=FINITE, other=FINITE, bins=st.integers(1, 40))
def test_edges_are_in_order(one: float, other: float, bins: int) -> None:
    low, high = sorted((one, other))
    found = edges(low, high, bins)
    assert (len(found), found[0], found[-1]) == (bins + 1, low, high)
    assert all(left <= right for left, right in pairwise(found))


@pytest.mark.parametrize("value", [0.1, 1e300, -3.3, 5e-324, 0.0])
def test_edges_of_a_constant_are_it(value: float) -> None:
    assert edges(value, value, 12) == [value] * 13
