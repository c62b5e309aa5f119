"""Why an op was not recomputed, or not judged: messages of the kinds `reason.*` of the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precision_tool.lib.messages import Message

_PREFIX = "reason."


class ReasonError(Exception):
    """An error with a reason for the user.

    Parameters
    ----------
    reason : str or Message
        A kind below `reason` in the catalogue, or such a message.
    **fields
        What the text of the kind names.
    """

    def __init__(self, reason: str | Message, **fields: Any) -> None:
        self.reason = reason if isinstance(reason, Message) else Message(_PREFIX + reason, **fields)
        super().__init__(self.reason)


def joined(reasons: tuple[Message, ...]) -> Message | None:
    """Return several reasons for the same thing as one; None for none."""
    if len(reasons) > 1:
        return Message("reason.several", reasons=reasons)
    return reasons[0] if reasons else None


def reason_kind(reason: Message | str | None) -> str | None:
    """Return the kind as JSON has it, of several reasons that of the first; None for none."""
    if not isinstance(reason, Message):
        return None
    first: Message = reason.reasons[0] if reason.kind == "reason.several" else reason
    return first.kind[len(_PREFIX) :]


def read_reason(document: object) -> Message | str:
    """Return a reason that a file holds; of an older release its text. KeyError, TypeError or ValueError for none."""
    return Message.from_dict(document) if isinstance(document, Mapping) else str(document or "")
