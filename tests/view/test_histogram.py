"""Bars are as long as their share, small counts stay seen, labels are the borders, none of which is beyond the next."""

from __future__ import annotations

import io
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from precision_tool.lib.view.tensors_screen import edges, histogram, is_logarithmic


def drawn(counts: list[int], width: int, encoding: str = "utf-8") -> list[str]:
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding), width=width, color_system=None)
    borders = [f"{edge:g}" for edge in edges(0, len(counts), len(counts))]
    console.print(histogram(list(pairwise(borders)), counts, "title"))
    console.file.flush()
    return raw.getvalue().decode(encoding).splitlines()


def test_bars_are_as_long_as_their_share() -> None:
    title, *lines = drawn([100, 50, 25, 0], 60)
    assert title.strip() == "title"
    lengths = [line.count("█") for line in lines]
    assert lengths[0] == pytest.approx(2 * lengths[1], abs=1)
    assert lengths[0] == pytest.approx(4 * lengths[2], abs=3)
    assert lengths[3] == 0
    assert [line.split()[:3] for line in lines] == [[str(n), "to", str(n + 1)] for n in range(4)]
    assert [line.split()[-1] for line in lines] == ["100", "50", "25", "0"]
    assert all(len(line) <= 60 for line in lines)


def test_terminals_without_blocks_get_signs() -> None:
    lines = drawn([100, 50, 1, 0], 60, "latin-1")[1:]
    assert lines[0].count("#") == pytest.approx(2 * lines[1].count("#"), abs=1)
    assert [line.count("#") > 0 for line in lines] == [True, True, True, False]


def test_counts_far_apart_are_drawn_as_logarithms() -> None:
    assert not is_logarithmic([0, 10, 1000])
    assert is_logarithmic([0, 1, 1000])
    title, *lines = drawn([100000, 1, 0], 80)
    assert "logarithms" in title
    assert [line.count("█") > 0 for line in lines] == [True, True, False]


def test_edges_do_not_overflow() -> None:
    assert edges(-1.5e308, 1.5e308, 3) == pytest.approx([-1.5e308, -0.5e308, 0.5e308, 1.5e308])


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
