"""What Tab offers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from precision_tool.lib.cli.prompt import Names

NAMES = Names(("Conv2D", "conv1/Conv2D", "conv1/bias", "gradients/conv1/BiasAddGrad", "trans_Cast_0"))


def test_what_starts_with_the_text_comes_alone() -> None:
    assert NAMES.offers("conv1/") == ["conv1/Conv2D", "conv1/bias"]


def test_any_part_where_nothing_starts_with_it() -> None:
    assert NAMES.offers("BiasAdd") == ["gradients/conv1/BiasAddGrad"]


def test_slashes_underscores_and_case_do_not_matter() -> None:
    assert NAMES.offers("CONV1_b") == ["conv1/bias"]
    assert NAMES.offers("trans/cast") == ["trans_Cast_0"]


def test_nothing_and_everything() -> None:
    assert NAMES.offers("nothing like it") == []
    assert NAMES.offers("") == list(NAMES.names)


def shared(names: list[str]) -> str:
    """What all names start with."""
    length = min(map(len, names))
    return next((names[0][:size] for size in range(length, 0, -1) if len({name[:size] for name in names}) == 1), "")


@given(st.lists(st.text("ab/_", min_size=1, max_size=6), unique=True), st.text("ab/_", max_size=3), st.integers(2, 5))
def test_too_many_offers_have_in_common_what_all_matches_have(names: list[str], text: str, limit: int) -> None:
    """Otherwise Tab would type a part that only the first ones have."""
    flat = [name.replace("/", "_") for name in names]
    starting = sorted(name for name, plain in zip(names, flat, strict=True) if plain.startswith(text.replace("/", "_")))
    offered = Names(sorted(names)).offers(text, limit)
    assert len(offered) <= limit
    if starting:
        assert shared(offered) == shared(starting)
        assert set(offered) <= set(starting)
        assert len(offered) == min(limit, len(starting))
