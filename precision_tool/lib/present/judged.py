"""What recomputing said of an op, in one line."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from precision_tool.lib.model.judged import JudgedOp
from precision_tool.lib.model.reason import reason_kind
from precision_tool.lib.model.wording import counted
from precision_tool.lib.present.reasons import reason_words
from precision_tool.lib.present.text import off_by, percent


def judged_words(judged: JudgedOp) -> str:
    """Whether the op computes right by itself, and whether its true result fits its type."""
    if judged.own_error is None or judged.state == "not_recomputed":
        return f"not recomputed: {reason_words(judged.reason)}"
    figures = f"{off_by(judged.own_error)} what its inputs say, where rounding explains {percent(judged.rounding)}"
    if judged.overflowed:
        at = "its true result" if judged.state != "wrong" else "it is also wrong; its true result"
        where = f"in {counted(judged.overflowed, 'element')}, up to {judged.largest:.6g}"
        words = f"{at} is beyond the range of its type {where}"
        return words if judged.state != "wrong" else f"{words}; the others are {figures}"
    if judged.state == "right":
        return f"it computes right what it is fed: {figures}{allowed_words(judged)}"
    if judged.state == "wrong":
        return f"it computes wrong by itself, its true result fits its type: {figures}"
    return f"in doubt: {figures}" + (f" ({reason_words(judged.reason)})" if judged.reason else "")


def judged_json(judged: JudgedOp) -> dict[str, Any]:
    """The object of JSON: the reason in words, and its kind."""
    return asdict(judged) | {"reason": reason_words(judged.reason), "reason_kind": reason_kind(judged.reason)}


def allowed_words(judged: JudgedOp) -> str:
    """Why an op is right although its error is more than the rms of rounding: how far single elements may be off."""
    if judged.state != "right" or judged.worst is None or not judged.slack:
        return ""
    if (judged.own_error or 0.0) <= (judged.rounding or 0.0):
        return ""
    return f" on average, up to {judged.slack:.3g} times as much in an element; here at most {judged.worst:.3g} times"
