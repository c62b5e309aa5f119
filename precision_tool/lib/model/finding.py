"""Findings: what a check found, graded, with the values behind it."""

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
    #: What a third party's check found.
    THIRD_PARTY = "third_party"


class Evidence:
    """What a check found out, as values: each kind is a frozen dataclass beside its check, with its words in `present`.

    `checks/casts.py` has the evidence on casts, `present/evidence/casts.py` the sentences: no check writes any.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmade(Evidence):
    """A check could not be made: what the error says that stood in its way."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ThirdParty(Evidence):
    """What a third party's check found, in its own words; `facts` are labels with what stands beside them."""

    message: str
    looked_at: str = ""
    facts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding: what is claimed of which op, and from what (`evidence`).

    `caveats` say what the evidence does not cover, `besides` what else must be known.
    """

    kind: FindingKind
    grade: Grade
    evidence: Evidence
    op_name: str = ""
    op_type: str = ""
    pass_names: tuple[str, ...] = ()
    original_ops: tuple[str, ...] = ()
    caveats: tuple[Evidence, ...] = ()
    besides: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What one check of a run found; without a finding it was not made, and `skipped` says why.

    `details` are the check's own values, for programs.
    """

    name: str
    finding: Finding | None = None
    skipped: Evidence | None = None
    details: tuple[Any, ...] = ()
