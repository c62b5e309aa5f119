"""The verdict as a block of text: who, why, how sure, what it affects, what to do next."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from precision_tool.lib.messages import Message
from precision_tool.lib.present import verdict_messages as messages
from precision_tool.lib.present.text import LabelledLines, Line, marked_pass, plain, safe, shown, whole_path
from precision_tool.lib.present.whole import Box, Prose
from precision_tool.lib.verdict.model import Cause, Suspect, ToldStep, Verdict
from precision_tool.lib.verdict.since import Since

#: Columns before a line to be copied.
_STEP_INDENT = 8

#: The checks that a cause makes worth reading whole.
_BELONGS = {
    Cause.FUSION: "fusion_passes",
    Cause.CAST: "dangerous_casts",
    Cause.OVERFLOW: "overflow",
}


def belongs_to(verdict: Verdict, check: str) -> bool:
    """Whether a check of this name supports or contradicts a verdict, so that it is shown whole."""
    return any(_BELONGS.get(one.cause) == check for one in verdict.suspects) and verdict.culprit is not None


def verdict_line(verdict: Verdict) -> Text:
    """The verdict in one line, where several are listed."""
    first = verdict.first
    if first is None:
        return _clean_head(verdict)
    return Text.assemble((safe(first.culprit), "bold red"), ": ", shown(messages.fault(first)))


def verdict_block(verdict: Verdict, part: str = "", command: str = "precision-tool") -> RenderableType:
    """The heaviest thing on the screen; what is missing of its comparison (`part`) comes first.

    Below it stands what to do next; `command` begins the lines that are commands of this tool.
    """
    first = verdict.first
    rows: list[Line] = []
    if first is None:
        head, style = _clean_head(verdict), "green" if messages.is_whole(verdict) else "yellow"
        if (rounding := messages.rounding(verdict)) is not None:
            rows.append((Message("verdict.label.rounding"), shown(rounding)))
        rows.append((Message("verdict.label.confidence"), shown(messages.confidence(verdict.confidence))))
    else:
        head, style = _head(first, verdict), "bold red" if verdict.confidence >= messages.LIKELY else "bold yellow"
        rows += _rows(first, verdict)
    rows += _others(verdict)
    rows.append((Message("verdict.label.checked"), shown(messages.checked(verdict), "dim")))
    gaps = [shown(messages.gap(gap), "dim") for gap in verdict.gaps]
    rows += labelled("verdict.label.not_checked", gaps)
    if part:
        head = Text.assemble((safe(part), "bold yellow"), "\n", head)
    title = shown(Message("verdict.label.title"))
    block = Box(Group(Prose(head), LabelledLines(rows)), title=title, style=style, box=box.HEAVY)
    return Group(block, NextSteps(messages.plan_steps(verdict.next), command)) if verdict.next else block


def since_block(since: Since, command: str = "precision-tool") -> RenderableType:
    """What became of the culprit of an earlier verdict; `command` begins what is typed next."""
    head = Message("since.head", op=since.culprit, cause=messages.cause_name(since.cause))
    text = Text.assemble(shown(head, fields={"op": "bold"}), "\n")
    text.append_text(shown(messages.since_state(since), "bold green" if since.is_mended else "bold red"))
    rows: list[Line] = [(Message("since.label.before"), whole_path(since.file))]
    if since.is_same_dump and not since.is_mended:
        again = Message("since.same_dump", command=f"{command} ac -c --since".lstrip())
        rows.append((Message("since.label.dump"), shown(again, fields={"command": "bold cyan"})))
    if since.own_error_before is not None and since.own_error is not None:
        errors = Message("since.own_error", before=since.own_error_before, now=since.own_error)
        rows.append((Message("since.label.own_error"), shown(errors)))
    rows += [(Message(f"since.label.{each.what}"), shown(messages.change(each))) for each in since.changes]
    rows.append((Message("since.label.now"), shown(messages.since_verdict(since))))
    return Box(
        Group(Prose(text), LabelledLines(rows)),
        title=shown(Message("since.title")),
        style="green" if since.is_mended else "yellow",
    )


def labelled(label: str, lines: Sequence[Text]) -> list[Line]:
    """Lines of which the first has a label."""
    return [(Message(label) if not number else "", line) for number, line in enumerate(lines)]


def _head(first: Suspect, verdict: Verdict) -> Text:
    text = shown(messages.culprit(first, verdict.run), fields={"op": "bold red"})
    return text.append("\n").append_text(shown(messages.fault(first), fields={"cause": "bold"}))


def _rows(first: Suspect, verdict: Verdict) -> list[Line]:
    rows: list[Line] = []
    if first.pass_name:
        rows.append((Message("verdict.label.pass"), plain(marked_pass(first.pass_name))))
    rows += labelled("verdict.label.why", [shown(message) for message in messages.evidence(first)])
    for label, names in messages.same_fault(first):
        if names:
            rows.append((label, shown(Message("verdict.names", names=tuple(names)))))
    rows.append((Message("verdict.label.confidence"), shown(messages.confidence(verdict.confidence, first))))
    rows.append((Message("verdict.label.affects"), shown(messages.affects(first))))
    return rows


def _clean_head(verdict: Verdict) -> Text:
    return shown(messages.no_fault(verdict), fields={"head": "bold"})


def _others(verdict: Verdict) -> list[Line]:
    """Faults that do not follow from the first."""
    others = verdict.suspects[1:] if verdict.culprit is not None else ()
    lines = [shown(messages.other_fault(one), fields={"op": "bold"}) for one in others[: messages.MAX_SHOWN]]
    if len(others) > messages.MAX_SHOWN:
        lines.append(shown(Message("verdict.more_others", more=len(others) - messages.MAX_SHOWN), "dim"))
    return labelled("verdict.label.others", lines)


class NextSteps:
    """What to do next, below the box: what can be typed stands alone on a line, unbroken, to be copied."""

    def __init__(self, steps: Sequence[ToldStep], command: str) -> None:
        self._steps = steps
        self._command = command

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for number, step in enumerate(self._steps):
            text = Message("step.line", why=step.why, file=step.file if step.line else "", line=step.line)
            yield LabelledLines([("    " if number else Message("verdict.label.next"), shown(text))])
            if step.line:
                line = step.line if step.file else f"{self._command} {step.line}".lstrip()
                for part in line.split("\n"):
                    yield Text.assemble(" " * _STEP_INDENT, (safe(part), "bold cyan"), no_wrap=True, overflow="ignore")
