"""What recomputing showed of an op, in one line."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from precision_tool.lib.messages import Message, render
from precision_tool.lib.model.judged import JudgedOp
from precision_tool.lib.model.reason import reason_kind
from precision_tool.lib.present.reasons import reason_words


def judged_words(judged: JudgedOp) -> str:
    """Return whether the op computes correctly by itself, and whether its correct result fits its type."""
    return render(judged_message(judged))


def judged_message(judged: JudgedOp) -> Message:
    """Return it as a message."""
    if judged.own_error is None or judged.state == "not_recomputed":
        return Message("verdict.op.not_recomputed", reason=reason_words(judged.reason))
    allowed = allowed_error(judged) if judged.state == "right" else None
    figures = Message(
        "verdict.op.figures", error=judged.own_error, rounding=judged.rounding,
        allowed=None if judged.overflowed else allowed,
    )  # fmt: skip
    if judged.overflowed:
        is_wrong = judged.state == "wrong"
        return Message(
            "verdict.op.overflow", wrong=is_wrong, count=judged.overflowed, largest=judged.largest,
            figures=figures if is_wrong else None,
        )  # fmt: skip
    if judged.state in ("right", "wrong"):
        return Message(f"verdict.op.{judged.state}", figures=figures)
    return Message("verdict.op.doubtful", figures=figures, reason=reason_words(judged.reason))


def judged_json(judged: JudgedOp) -> dict[str, Any]:
    """The object of JSON: the reason in words, and its kind."""
    return asdict(judged) | {"reason": reason_words(judged.reason), "reason_kind": reason_kind(judged.reason)}


def allowed_error(judged: JudgedOp) -> Message | None:
    """Return why an op is right although its error is more than the rms of rounding: what single elements may have."""
    if judged.state != "right" or judged.worst is None or not judged.slack:
        return None
    if (judged.own_error or 0.0) <= (judged.rounding or 0.0):
        return None
    return Message("verdict.op.allowed", slack=judged.slack, worst=judged.worst)
