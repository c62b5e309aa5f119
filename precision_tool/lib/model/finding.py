"""Findings: what a check found, graded, as values that the report shows and programs read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding. `message` is a sentence; `facts` are the name and value pairs behind it."""

    kind: FindingKind
    grade: Grade
    message: str
    op_name: str = ""
    op_type: str = ""
    pass_names: tuple[str, ...] = ()
    original_ops: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What one check of a run looked at and found; without a finding it was not made, and `skipped` says why.

    `details` are the check's own values, for programs.
    """

    name: str
    title: str
    looked_at: str = ""
    finding: Finding | None = None
    skipped: str = ""
    details: tuple[Any, ...] = ()
