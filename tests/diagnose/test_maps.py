"""The heat maps of a study: of every op its worst output, by step and by rank."""

from __future__ import annotations

from math import inf, nan, sqrt
from typing import Any

import numpy as np
import pytest

from precision_tool.lib.diagnose.study_table import Columns, Maps, coded


def rows(*given: dict[str, Any]) -> Columns:
    usual: dict[str, Any] = {
        "op": "a",
        "slot": "output:0",
        "number": 0,
        "cosine": nan,
        "own_error": nan,
        "mismatches": 0,
        "nan": 0,
    }
    told = [usual | {"inf": 0} | one for one in given]
    texts: Columns = {name: coded([one[name] for one in told]) for name in ("op", "slot")}
    return texts | {name: np.array([one[name] for one in told]) for name in told[0] if name not in texts}


def test_the_worst_output_of_an_op_counts() -> None:
    maps = Maps()
    maps.take(3, 0, rows(
        {"op": "late", "number": 9, "cosine": 0.5},
        {"op": "late", "number": 9, "slot": "input:0", "cosine": 0.0},
        {"op": "first", "number": 1, "cosine": 1.0},
        {"op": "first", "number": 1, "slot": "output:1", "cosine": 0.98},
    ))  # fmt: skip
    by_step, by_rank = maps.maps()
    assert (by_step.what, by_step.places, by_step.ops) == ("step", (3,), ("first", "late"))
    assert by_rank.places == (0,)
    assert by_step.values[0].tolist() == pytest.approx([sqrt(0.04), 1.0])


@pytest.mark.parametrize(
    ("row", "value"),
    [
        ({}, nan),
        ({"cosine": 1.0000001}, 0.0),
        ({"own_error": 0.25}, 0.25),
        ({"own_error": 0.25, "nan": 3}, 0.25),
        ({"nan": 3}, inf),
        ({"inf": 1}, inf),
        ({"cosine": 1.0, "nan": 3}, 0.0),  # the benchmark has them too
        ({"cosine": 1.0, "mismatches": 1}, inf),
    ],
)
def test_how_far_an_op_is_off(row: dict[str, Any], value: float) -> None:
    maps = Maps()
    maps.take(0, 0, rows(row))
    assert maps.maps()[0].values.tolist() == [[pytest.approx(value, nan_ok=True)]]


def test_leaves_of_one_place_and_ops_that_come_later() -> None:
    maps = Maps()
    maps.take(0, 0, rows({"cosine": 0.5}))
    maps.take(0, 1, rows({"cosine": nan}, {"op": "b", "number": 1, "own_error": 0.5}))
    maps.take(1, 1, rows({"cosine": -1.0}))
    by_step, by_rank = maps.maps()
    np.testing.assert_array_equal(by_step.values, np.array([[1.0, 0.5], [2.0, nan]], np.float32))
    np.testing.assert_array_equal(by_rank.values, np.array([[1.0, nan], [2.0, 0.5]], np.float32))


def test_what_was_not_compared_is_told_from_what_was() -> None:
    maps = Maps()
    maps.take(0, 0, rows({"cosine": 0.5}, {"op": "b", "number": 1, "nan": 1}))
    maps.take(0, 1, rows({"own_error": 0.25}, {"op": "b", "number": 1}))
    maps.take(0, 2, rows({"own_error": 3.0}, {"op": "b", "number": 1, "cosine": 0.0, "mismatches": 1}))
    by_step, by_rank = maps.maps()
    assert by_rank.recomputed is not None
    assert by_rank.recomputed.tolist() == [[False, True], [True, False], [True, False]]
    assert by_step.recomputed is not None
    assert by_step.recomputed.tolist() == [[True, False]]  # the worst of all ranks
    assert by_step.to_dict()["recomputed"] == [[0]]


def test_where_an_op_is_worst() -> None:
    """The rank of the worst of a step, and the step of the worst of a rank; ops may come late, and be recomputed."""
    maps = Maps()
    maps.take(0, 0, rows({"op": "a", "cosine": 0.9}))
    maps.take(0, 1, rows({"op": "a", "cosine": 0.5}, {"op": "b", "number": 1, "cosine": 0.9}))
    maps.take(0, 2, rows({"op": "a", "cosine": 0.8}, {"op": "b", "number": 1, "own_error": 3.0}))
    maps.take(7, 1, rows({"op": "b", "number": 1, "cosine": 0.1}))
    by_step, by_rank = maps.maps()
    assert by_step.worst is not None
    assert by_step.worst[0].tolist() == [1, 2]
    assert by_step.worst[1, 1] == 1
    assert by_rank.worst is not None
    assert by_rank.worst[1].tolist() == [0, 7]
    assert by_rank.worst[0, 0] == by_rank.worst[2, 0] == 0
