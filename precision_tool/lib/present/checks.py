"""What `ac` shows of the checks beside the comparison."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from precision_tool.lib.messages import render, text
from precision_tool.lib.model.finding import CheckResult, Grade
from precision_tool.lib.present.compare import GRADE_STYLE
from precision_tool.lib.present.findings import check_title, render_finding
from precision_tool.lib.present.text import LabelledLines, plain, shown_reason
from precision_tool.lib.present.whole import Box


def check_line(result: CheckResult) -> RenderableType:
    """Return the finding as one line, or why the check was skipped."""
    title = f"{check_title(result.name)}: "
    if result.finding is None:
        return Text.assemble((title, "dim"), plain(_skipped(result), "dim"))
    style = GRADE_STYLE[result.finding.grade] if result.finding.grade > Grade.INFO else "dim"
    return Text.assemble((title, style), plain(render(result.finding.message), style))


def check_panel(result: CheckResult) -> RenderableType:
    """Return the finding, what was looked at and the facts; or why the check was skipped."""
    title = Text(check_title(result.name))
    if result.finding is None:
        return Box(plain(_skipped(result), "dim"), title=title, style="dim")
    finding = render_finding(result.finding)
    rows: list[tuple[str, Text]] = []
    if result.looked_at is not None:
        rows.append((text("check.looked_at"), plain(render(result.looked_at), "dim")))
    last = ""
    for name, value in finding.facts:
        rows.append(("" if name == last else name, plain(shown_reason(value))))
        last = name
    body = Group(plain(finding.message, "bold"), LabelledLines(rows))
    return Box(body, title=title, style=GRADE_STYLE[finding.grade])


def _skipped(result: CheckResult) -> str:
    reason = "" if result.skipped is None else shown_reason(render(result.skipped))
    return text("check.skipped", reason=reason)
