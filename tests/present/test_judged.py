"""What an op's judgement says: an error above the rms of rounding is told with what single elements may reach."""

from __future__ import annotations

from dataclasses import replace

import pytest

from precision_tool.lib.model.judged import JudgedOp
from precision_tool.lib.present.judged import judged_words

RIGHT = JudgedOp(
    name="a", type="Conv2D", number=0, state="right", slot=0, own_error=8e-4, rounding=2e-4, worst=7.0, slack=8.0
)


def test_a_right_op_that_is_farther_off_than_the_average_of_rounding_says_what_is_allowed() -> None:
    assert judged_words(RIGHT).endswith("on average, up to 8 times as much in an element; here at most 7 times")


def test_one_element_beyond_its_type_is_one() -> None:
    one = replace(RIGHT, overflowed=1, largest=7e4)
    assert "beyond the range of its type in 1 element, up to 70000" in judged_words(one)
    assert "in 2 elements, up to" in judged_words(replace(one, overflowed=2))


@pytest.mark.parametrize("changes", [{"own_error": 1e-4}, {"state": "wrong"}, {"worst": None}, {"slack": 0.0}])
def test_otherwise_the_two_figures_say_it(changes: dict[str, object]) -> None:
    assert "times" not in judged_words(replace(RIGHT, **changes))  # type: ignore[arg-type]
