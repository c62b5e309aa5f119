"""The words on a recomputed op: its figures, and reasons why others were not recomputed, rendered and counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from precision_tool.lib.diagnose.verdict_model import Tally
from precision_tool.lib.messages import Message
from precision_tool.lib.model.finding import joined, reason_kind
from precision_tool.lib.model.op_verdict import OpVerdict
from precision_tool.lib.view.verdict_messages import kind_counts, reason_counts, reason_words
from precision_tool.lib.view.verdict_screen import allowed_error, judged_message


@pytest.mark.parametrize(
    ("reason", "text", "kind"),
    [
        (Message("reason.no_formula", op_type="Foo"), "there is no formula for Foo", "no_formula"),
        (
            Message("reason.no_broadcast", op_type="Add", shapes=((2, 3), (4,), ())),
            "the shapes (2, 3), (4,), () of Add do not broadcast",
            "no_broadcast",
        ),
        (
            joined((Message("reason.input_not_dumped", slot=0), Message("reason.input_statistics", slot=2))),
            "input 0 was not dumped; only statistics of input 2 were dumped",
            "input_not_dumped",
        ),
        ("in words", "in words", None),
        (None, "", None),
    ],
)
def test_text_and_kind(reason: Message | str | None, text: str, kind: str | None) -> None:
    assert reason_words(reason) == text
    assert reason_kind(reason) == kind


def test_reasons_are_counted_by_text_and_kind() -> None:
    """What differs only in fields that the text leaves out is one reason."""
    reasons = (
        (Message("reason.out_of_time"), 2),
        (Message("reason.no_formula", op_type="B"), 1), (Message("reason.no_formula", op_type="A"), 1),
        (Message("reason.fused_unknown", op_type="C"), 2), (Message("reason.fused_unknown"), 1),
        ("as it was said before", 1),
    )  # fmt: skip
    tally = Tally(ops=9, right=1, wrong=0, doubtful=0, not_recomputed=8, reasons=reasons)
    counts = reason_counts(tally)
    assert [count for _, count in counts] == [3, 2, 1, 1, 1]
    assert ("as it was said before", 1) in counts
    assert ("there is no formula for A", 1) in counts
    assert kind_counts(tally) == {"fused_unknown": 3, "no_formula": 2, "out_of_time": 2}


# --- the figures of a recomputed op ---


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
