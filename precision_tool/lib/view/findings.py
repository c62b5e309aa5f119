"""Passports, findings and checks as `ac` and `random` show them, and their JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import RenderableType

from precision_tool.lib.diagnose.passports import PassportPair
from precision_tool.lib.messages import render, text
from precision_tool.lib.messages.catalogue import has_text
from precision_tool.lib.model.finding import CheckResult, Finding, FindingKind, Grade
from precision_tool.lib.model.table import joined
from precision_tool.lib.view.text import LabelledLines, labelled, plain


def passport_lines(pair: PassportPair) -> RenderableType:
    """Return what differs between the settings and data of two runs, a line each."""
    label = text("finding.label.differs").ljust(len("benchmark"))  # as wide as those of the lines below
    return LabelledLines(labelled(label, (plain(render(difference.message)) for difference in pair.differences)))


def pair_json(pair: PassportPair) -> dict[str, Any]:
    return {
        "npu": pair.npu.path,
        "benchmark": pair.other.path,
        "differences": [
            {
                "topic": difference.topic,
                "names": list(difference.names),
                "npu": difference.npu,
                "benchmark": difference.benchmark,
                "text": difference.message,
            }
            for difference in pair.differences
        ],
    }


# --- Findings and checks, rendered for the terminal, JSON, the report and Python's users ---


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedFinding:
    """A finding as text: `message` is a sentence; `facts` are the name and value pairs behind it.

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


def render_finding(finding: Finding, label_language: str | None = None) -> RenderedFinding:
    """Return a finding as text in the language in use; labels of facts may be in another."""
    return RenderedFinding(
        kind=finding.kind,
        grade=finding.grade,
        message=render(finding.message),
        op_name=finding.op_name,
        op_type=finding.op_type,
        pass_names=finding.pass_names,
        original_ops=finding.original_ops,
        facts=tuple((render(fact.label, label_language), render(fact.value)) for fact in finding.facts),
    )


def finding_json(finding: Finding) -> dict[str, Any]:
    """Return the object of JSON, where the labels of facts are keys and stay English."""
    rendered = render_finding(finding, label_language="en")
    facts = [{"name": name, "value": value} for name, value in rendered.facts]
    names = {"pass_name": ",".join(finding.pass_names), "original_ops": joined(finding.original_ops)}
    document = asdict(rendered) | {"grade": finding.grade.name.lower(), **names, "facts": facts}
    del document["pass_names"]
    return document


def check_title(name: str) -> str:
    """Return what a check is called on the screen."""
    kind = f"check.{name}.title"
    return text(kind) if has_text(kind) else name


def check_json(result: CheckResult) -> dict[str, Any]:
    return {
        "name": result.name,
        "looked_at": result.looked_at or "",
        "skipped": result.skipped or "",
        "finding": None if result.finding is None else finding_json(result.finding),
        "details": [asdict(detail) for detail in result.details],
    }
