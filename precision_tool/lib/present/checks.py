"""What `ac` shows of the checks beside the comparison."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from precision_tool.lib.model.finding import CheckResult, Grade
from precision_tool.lib.present.compare import GRADE_STYLE
from precision_tool.lib.present.evidence.told import tell_check
from precision_tool.lib.present.text import LabelledLines, plain, shown_reason
from precision_tool.lib.present.whole import Box


def check_line(result: CheckResult) -> RenderableType:
    """What was found in one sentence, or why the check was not made."""
    check = tell_check(result)
    if check.finding is None:
        return Text.assemble((f"{check.title}: ", "dim"), plain(f"not made: {shown_reason(check.skipped)}", "dim"))
    style = GRADE_STYLE[check.finding.grade] if check.finding.grade > Grade.INFO else "dim"
    return Text.assemble((f"{check.title}: ", style), plain(check.finding.message, style))


def check_panel(result: CheckResult) -> RenderableType:
    """What was found, what was looked at and the facts; or why the check was not made."""
    check = tell_check(result)
    if check.finding is None:
        body: RenderableType = plain(f"not made: {shown_reason(check.skipped)}", "dim")
        return Box(body, title=Text(check.title), style="dim")
    rows: list[tuple[str, Text]] = [("looked at", plain(check.looked_at, "dim"))]
    last = ""
    for name, value in check.finding.facts:
        rows.append(("" if name == last else name, plain(shown_reason(value))))
        last = name
    style = GRADE_STYLE[check.finding.grade]
    body = Group(plain(check.finding.message, "bold"), LabelledLines(rows))
    return Box(body, title=Text(check.title), style=style)
