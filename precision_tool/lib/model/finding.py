"""Why an op was not recomputed, or not judged: messages of the kinds `reason.*` of the catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

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

    def __init__(self, reason: str | Message, /, **fields: Any) -> None:
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


# --- Findings: what a check found, graded, with the values behind it ---


class Grade(IntEnum):
    """How much a finding matters. From WARNING on, `--fail` turns it into exit code 1."""

    INFO = 10
    WARNING = 20
    FAULT = 30


class FindingKind(StrEnum):
    """What kind of thing was found."""

    FIRST_FAULTY_OP = "first_faulty_op"
    DIFFERENT_INPUT = "different_input"
    BELOW_THRESHOLD = "below_threshold"
    NOTHING_COMPARED = "nothing_compared"
    ALL_AGREE = "all_agree"
    UNREADABLE = "unreadable"
    DANGEROUS_CASTS = "dangerous_casts"
    GRAPH_SIMILARITY = "graph_similarity"
    FUSION_PASSES = "fusion_passes"
    OVERFLOW = "overflow"
    #: The finding of a third party's check; its texts are messages `text`.
    THIRD_PARTY = "third_party"


class Evidence:
    """What a judgement rests on, as values: each kind is a frozen dataclass, with its words in `present`."""

    __slots__ = ()


class Fact(NamedTuple):
    """A figure behind a finding: what it is (a message `finding.label.*`, or a name), and its value."""

    label: Message | str
    value: Message | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A finding: what is claimed of which op, and the facts behind it."""

    kind: FindingKind
    grade: Grade
    message: Message
    facts: tuple[Fact, ...] = ()
    op_name: str = ""
    op_type: str = ""
    pass_names: tuple[str, ...] = ()
    original_ops: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of one check of a run: a finding and what was looked at, or why the check was skipped.

    `details` are the check's own values, for programs.
    """

    name: str
    finding: Finding | None = None
    looked_at: Message | None = None
    skipped: Message | None = None
    details: tuple[Any, ...] = ()
