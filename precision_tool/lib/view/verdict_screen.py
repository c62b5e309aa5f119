"""A verdict with its words, as the object `verdict` of JSON and users of the package have it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from precision_tool.lib.diagnose.stored_verdict import Since
from precision_tool.lib.diagnose.verdict_model import Cause, Fact, Step, StepText, Suspect, Tally, Verdict
from precision_tool.lib.messages import Message, render
from precision_tool.lib.model.finding import reason_kind
from precision_tool.lib.model.op_verdict import OpVerdict
from precision_tool.lib.view import verdict_messages as messages
from precision_tool.lib.view.tables import Box, Prose
from precision_tool.lib.view.text import LabelledLines, Line, labelled, marked_pass, plain, safe, shown, whole_path
from precision_tool.lib.view.verdict_messages import reason_words


def rendered_verdict(verdict: Verdict) -> Verdict:
    """The verdict with its reasons, what to do next, and what it did not see, in words."""
    return replace(
        verdict, next=tuple(map(_rendered_step, verdict.next)),
        gaps=tuple(render(messages.gap(each)) for each in verdict.gaps),
        tally=_rendered_tally(verdict.tally), facts=_rendered_facts(verdict.facts),
        suspects=tuple(replace(suspect, facts=_rendered_facts(suspect.facts)) for suspect in verdict.suspects),
    )  # fmt: skip


def _rendered_step(step: Step | StepText) -> StepText:
    written = messages.plan_step(step)
    return replace(written, why=render(written.why), file=render(written.file))


def _rendered_tally(tally: Tally) -> Tally:
    kinds = messages.kind_counts(tally)
    return replace(tally, reasons=tuple(messages.reason_counts(tally)), kinds=tuple(kinds.items()) or tally.kinds)


def _rendered_facts(facts: Iterable[Fact]) -> tuple[Fact, ...]:
    """Return facts with rendered reasons, and with the kinds of these."""
    rendered: list[Fact] = []
    for fact in facts:
        if not isinstance(fact.value, Message):
            rendered.append(fact)
            continue
        rendered.append(replace(fact, value=reason_words(fact.value)))
        if not fact.name.startswith("mended"):  # whose effect is a fact of its own
            rendered.append(Fact(name=f"{fact.name}_kind", value=reason_kind(fact.value)))
    return tuple(rendered)


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """A verdict as JSON has it everywhere."""
    return rendered_verdict(verdict).to_dict()


# --- What recomputing showed of an op, in one line ---


def judged_words(judged: OpVerdict) -> str:
    """Return whether the op computes correctly by itself, and whether its correct result fits its type."""
    return render(judged_message(judged))


def judged_message(judged: OpVerdict) -> Message:
    if judged.own_error is None or judged.state == "not_recomputed":
        return Message("verdict.op.not_recomputed", reason=reason_words(judged.reason))
    allowed = allowed_error(judged) if judged.state == "right" else None
    figures = Message(
        "verdict.op.figures", error=judged.own_error, rounding=judged.rounding,
        allowed=None if judged.overflowed else allowed,
    )  # fmt: skip
    if judged.overflowed:
        is_wrong = judged.state == "wrong"
        return Message(
            "verdict.op.overflow", wrong=is_wrong, count=judged.overflowed, largest=judged.largest,
            figures=figures if is_wrong else None,
        )  # fmt: skip
    if judged.state in ("right", "wrong"):
        return Message(f"verdict.op.{judged.state}", figures=figures)
    return Message("verdict.op.doubtful", figures=figures, reason=reason_words(judged.reason))


def judged_json(judged: OpVerdict) -> dict[str, Any]:
    document = {"fed" if name == "inherited" else name: value for name, value in asdict(judged).items()}
    return document | {"reason": reason_words(judged.reason), "reason_kind": reason_kind(judged.reason)}


def allowed_error(judged: OpVerdict) -> Message | None:
    """Return why an op is right although its error is more than the rms of rounding: what single elements may have."""
    if judged.state != "right" or judged.worst is None or not judged.slack:
        return None
    if (judged.own_error or 0.0) <= (judged.rounding or 0.0):
        return None
    if is_of_device(judged):
        return Message("verdict.op.of_device")
    return Message("verdict.op.allowed", slack=judged.slack, worst=judged.worst)


def is_of_device(judged: OpVerdict) -> bool:
    """Return whether an op is right by the precision of the device, although rounding does not explain its error."""
    return judged.state == "right" and bool(judged.slack) and (judged.worst or 0.0) > (judged.slack or 0.0)


# --- The verdict as a block of text: who, why, how sure, what it affects, what to do next ---


#: Columns that a line to be copied stands in, below its sentence.
_STEP_INDENT = 2

#: The checks that a cause makes worth reading whole.
_BELONGS = {
    Cause.FUSION: "fusion_passes",
    Cause.CAST: "dangerous_casts",
    Cause.OVERFLOW: "overflow",
}


def belongs_to(verdict: Verdict, check: str) -> bool:
    """Return whether a check supports or contradicts a verdict, so that it is shown whole."""
    return any(_BELONGS.get(suspect.cause) == check for suspect in verdict.suspects) and verdict.culprit is not None


def verdict_line(verdict: Verdict) -> Text:
    """The verdict in one line, where several are listed."""
    first = verdict.first
    if first is None:
        return _clean_head(verdict)
    return Text.assemble((safe(first.culprit), "bold red"), ": ", shown(messages.fault(first)))


def verdict_block(verdict: Verdict, part: Message | None = None, command: str = "precision-tool") -> RenderableType:
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
    gaps = (shown(messages.gap(gap), "dim") for gap in verdict.gaps)
    rows += labelled(Message("verdict.label.not_checked"), gaps)
    if part:
        head = Text.assemble((render(part), "bold yellow"), "\n", head)
    title = shown(Message("verdict.label.title"))
    block = Box(Group(Prose(head), LabelledLines(rows)), title=title, style=style, box=box.HEAVY)
    return Group(block, NextSteps(messages.plan_steps(verdict.next), command)) if verdict.next else block


def since_block(since: Since, command: str = "precision-tool") -> RenderableType:
    """Return what became of the culprit of an earlier verdict; `command` begins what is typed next."""
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
    rows += [(Message("since.label.switch"), shown(each.why)) for each in since.changes if each.why is not None]
    rows.append((Message("since.label.now"), shown(messages.since_verdict(since))))
    return Box(
        Group(Prose(text), LabelledLines(rows)),
        title=shown(Message("since.title")),
        style="green" if since.is_mended else "yellow",
    )


def _head(first: Suspect, verdict: Verdict) -> Text:
    text = shown(messages.culprit(first, verdict.run), fields={"op": "bold red"})
    return text.append("\n").append_text(shown(messages.fault(first), fields={"cause": "bold"}))


def _rows(first: Suspect, verdict: Verdict) -> list[Line]:
    rows: list[Line] = []
    if first.module:
        rows.append((Message("verdict.label.module"), plain(first.module)))
    if first.source:
        rows.append((Message("verdict.label.source"), plain(first.source)))
    if first.pass_name:
        rows.append((Message("verdict.label.pass"), plain(marked_pass(first.pass_name))))
    rows += labelled(Message("verdict.label.why"), map(shown, messages.evidence(first)))
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
    lines = [shown(messages.other_fault(suspect), fields={"op": "bold"}) for suspect in others[: messages.MAX_SHOWN]]
    if len(others) > messages.MAX_SHOWN:
        lines.append(shown(Message("verdict.more_others", more=len(others) - messages.MAX_SHOWN), "dim"))
    return labelled(Message("verdict.label.others"), lines)


class NextSteps:
    """Next steps, below the box: what can be typed stands alone on a line, unbroken, to be copied."""

    def __init__(self, steps: Sequence[StepText], command: str) -> None:
        self._steps = steps
        self._command = command

    def lines(self) -> Iterator[tuple[Text, str]]:
        """Yield each step: its words, and the line to type or lines of code ("": none)."""
        for step in self._steps:
            message = Message("step.line", why=step.why, file=step.file if step.line else "", line=step.line)
            line = step.line if step.file or not step.line else f"{self._command} {step.line}".lstrip()
            yield shown(message), line

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        head = render(Message("verdict.label.next"))
        indent = cell_len(head) + 2 + _STEP_INDENT  # two lie between a label and what it stands for
        for number, (text, line) in enumerate(self.lines()):
            yield LabelledLines([(" " * cell_len(head) if number else head, text)])
            for part in line.split("\n") if line else ():
                yield Text.assemble(" " * indent, (safe(part), "bold cyan"), no_wrap=True, overflow="ignore")
