"""Findings in words, as the terminal, JSON, the report and Python's users have them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from precision_tool.lib.model.finding import CheckResult, Evidence, Finding, FindingKind, Grade

#: The module of words for the evidence of each module; loaded when it is asked for.
FAMILIES = {
    "model.finding": "missing",
    "checks.analysis": "first_fault",
    "checks.casts": "casts",
    "checks.first_fault": "first_fault",
    "checks.fusion": "fusion",
    "checks.headroom": "overflow_advice",
    "checks.memory": "random_errors",
    "checks.missing": "missing",
    "checks.overflow": "overflow",
    "checks.overflow_advice": "overflow_advice",
    "checks.overflow_check": "overflow",
    "checks.overflow_status": "overflow",
    "checks.passports": "passports",
    "checks.random_evidence": "random_errors",
    "checks.similarity": "similarity",
    "verdict.blamed": "blame",
}
#: What the checks of a run are called.
_TITLES = {
    "dangerous_casts": "Dangerous casts",
    "fusion_passes": "Fusion passes in effect",
    "graph_similarity": "Graph similarity",
    "overflow": "Overflow",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldFinding:
    """A finding in words: `message` is a sentence; `facts` are the name and value pairs behind it.

    `pass_names` and `original_ops` are those of the op, `kind` and `grade` those of the finding.
    """

    kind: FindingKind
    grade: Grade
    message: str
    op_name: str = ""
    op_type: str = ""
    pass_names: tuple[str, ...] = ()
    original_ops: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldCheck:
    """The result of a check in words: what it looked at and found, or why it was not made (`skipped`)."""

    name: str
    title: str
    looked_at: str
    finding: ToldFinding | None
    skipped: str
    details: tuple[dict[str, Any], ...]


def sentence(evidence: Evidence) -> str:
    """What a piece of evidence says."""
    text: str = _words(evidence).SENTENCES[type(evidence)](evidence)
    return text


def facts(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """The figures behind it, each with a label; often none."""
    tell = getattr(_words(evidence), "FACTS", {}).get(type(evidence))
    yield from () if tell is None else tell(evidence)


def tell(finding: Finding) -> ToldFinding:
    """A finding in words."""
    behind = (*finding.caveats, finding.evidence, *finding.besides)
    return ToldFinding(
        kind=finding.kind,
        grade=finding.grade,
        message=sentence(finding.evidence),
        op_name=finding.op_name,
        op_type=finding.op_type,
        pass_names=finding.pass_names,
        original_ops=finding.original_ops,
        facts=tuple(fact for one in behind for fact in facts(one)),
    )


def tell_check(check: CheckResult) -> ToldCheck:
    """The result of a check in words."""
    finding = check.finding
    looked_at = "" if finding is None else _words(finding.evidence).LOOKED_AT[type(finding.evidence)](finding.evidence)
    return ToldCheck(
        name=check.name,
        title=_TITLES.get(check.name, check.name),
        looked_at=looked_at,
        finding=None if finding is None else tell(finding),
        skipped="" if check.skipped is None else sentence(check.skipped),
        details=() if finding is None else tuple(_detail(finding.evidence, one) for one in check.details),
    )


def _words(evidence: Evidence) -> ModuleType:
    """The words for a piece of evidence, and for all others of its family."""
    module = type(evidence).__module__.removeprefix("precision_tool.lib.")
    return import_module(f"precision_tool.lib.present.evidence.{FAMILIES[module]}")


def _detail(evidence: Evidence, detail: Any) -> dict[str, Any]:
    tell_detail = getattr(_words(evidence), "DETAILS", {}).get(type(detail), asdict)
    document: dict[str, Any] = tell_detail(detail)
    return document
