"""What an op's judgement says: an error above the rms of rounding is told with what single elements may reach."""

from __future__ import annotations

from dataclasses import replace

import pytest

from precision_tool.lib.messages import Message
from precision_tool.lib.model.op_verdict import OpVerdict
from precision_tool.lib.view.verdict_screen import allowed_error, judged_message

RIGHT = OpVerdict(
    name="a", type="Conv2D", number=0, state="right", slot=0, own_error=8e-4, rounding=2e-4, worst=7.0, slack=8.0
)


def test_a_right_op_that_is_farther_off_than_the_average_of_rounding_says_what_is_allowed() -> None:
    assert allowed_error(RIGHT) == Message("verdict.op.allowed", slack=8.0, worst=7.0)
    assert judged_message(RIGHT).figures.allowed == allowed_error(RIGHT)


def test_a_right_op_whose_result_is_beyond_its_type_says_how_far() -> None:
    message = judged_message(replace(RIGHT, overflowed=1, largest=7e4))
    assert (message.kind, message.wrong, message.count, message.largest) == ("verdict.op.overflow", False, 1, 7e4)
    wrong = judged_message(replace(RIGHT, state="wrong", overflowed=2, largest=7e4))
    assert (wrong.kind, wrong.wrong, wrong.count) == ("verdict.op.overflow", True, 2)


@pytest.mark.parametrize("changes", [{"own_error": 1e-4}, {"state": "wrong"}, {"worst": None}, {"slack": 0.0}])
def test_otherwise_the_two_figures_say_it(changes: dict[str, object]) -> None:
    assert judged_message(replace(RIGHT, **changes)).figures.allowed is None  # type: ignore[arg-type]
