"""How ranks' tensors lie in the benchmark's: what a dump claims bounds the work."""

from __future__ import annotations

from typing import Any, cast

import pytest

from precision_tool.lib.data.sharding import Place, RankCalls, _divisors, find_offsets, masked, renumbered


@pytest.mark.parametrize("number", [0, 1, 2, 12, 36, 97, 5040])
def test_divisors_are_in_order(number: int) -> None:
    assert _divisors(number) == [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def test_divisors_of_a_large_number_take_its_root() -> None:
    assert len(_divisors(10**12)) == 169


def calls(rank: int, *modules: str) -> RankCalls:
    side = RankCalls(leaf=cast("Any", None), rank=rank)
    side.bases = {Place(module, ""): [f"{module}.forward.0"] for module in modules}
    return side


def test_a_layer_of_any_number_is_one_of_those_there_are() -> None:
    stages = [calls(0, "layers.0", "layers.1"), calls(1, "layers.0", "layers.1")]
    whole = calls(0, *(f"layers.{number}" for number in (0, 1, 2, 3)))
    assert [find_offsets(side, [whole], stages).get("layers", 0) for side in stages] == [0, 2]
    hostile = calls(0, "layers.0", "layers.1", "layers.999999999")
    assert find_offsets(stages[1], [hostile], stages).get("layers", 0) in (0, 1, 999999999)


def test_numbers_that_no_layer_has_are_names() -> None:
    for part in ("9" * 5000, "٣"):
        assert masked(f"layers.{part}.up") == f"layers.{part}.up"
        assert renumbered(f"layers.{part}.up", {"layers": 2}) == f"layers.{part}.up"
    assert masked("layers.3.up") == "layers.#.up"
