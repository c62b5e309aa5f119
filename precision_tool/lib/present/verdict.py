"""The verdict as a block of text: who, why, how sure, what it spoils, what to do next."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from precision_tool.lib.present.reasons import reason_counts, reason_words
from precision_tool.lib.present.steps import tell_steps
from precision_tool.lib.present.text import (
    LabelledLines,
    counted,
    marked_pass,
    off_by,
    percent,
    plain,
    safe,
    whole_path,
)
from precision_tool.lib.present.unseen import gap_words
from precision_tool.lib.present.whole import Box, Prose
from precision_tool.lib.verdict.model import Cause, Proof, Suspect, ToldStep, Verdict
from precision_tool.lib.verdict.since import Since

#: What each cause means, completing the name of the culprit.
_SENTENCES = {
    Cause.KERNEL: "what it puts out is not what its inputs and attributes say",
    Cause.FUSION: "what it puts out is not what its inputs say, and a fusion pass made it",
    Cause.LAYOUT: "its values are right and stand in the wrong places",
    Cause.CAST: "the narrower type loses what the network needs",
    Cause.OVERFLOW: "its true result is beyond the range of its type",
    Cause.STOMP: "what it reads is not what was put out: the memory was overwritten between",
    Cause.RANDOM: "it draws other random numbers than the other side",
    Cause.INPUT: "the two sides were fed different data",
    Cause.WEIGHTS: "the variable differs between the two sides",
    Cause.LOSS_SCALE: "one side scales its loss and unscales the gradients: no fault",
    Cause.NONE: "nothing computes wrong",
}
_MISTAKES = {
    "axes": "every value is there, with the axes in another order",
    "shifted": "every value is there, some steps further",
    "permuted": "every value is there, in another order",
    "zero": "all of it is 0: nothing was written",
    "scaled": "the wrong ones are the right ones times one factor",
    "narrowed": "the wrong ones are the right ones, rounded to a narrower type or to integers on the way",
    "tail": "only the end of it, or of its rows, is wrong",
    "not_finite": "numbers that are not finite where they should be",
}
#: What says which of two copies of a tensor is the true one, where the op that put it out was not dumped.
_TOLD = {
    "recomputed": ", and the op that put it out, recomputed, is right by the other one",
    "benchmark": ", and the benchmark has the other one",
    "readers": ", and most that read it have the other one",
}
#: Whether a run without the pass computes right what it fuses.
_PARTS = {
    True: "its parts are right in {}, where the pass is off",
    False: "its parts are wrong in {} too, where the pass is off",
}
#: Whether another run of the same script has the same random numbers.
_REPEATS = {
    True: "{} has the same numbers: its seed is fixed, and the two sides draw others from it",
    False: "{} has others again: its seed is not fixed",
}
#: From here on a verdict is called sure, or likely.
_SURE, _LIKELY = 0.9, 0.65
#: Further suspects, and kinds of ops that were not recomputed, that are shown.
_SHOWN = 3


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


def _sentence(one: Suspect) -> str:
    if one.cause is Cause.WEIGHTS and one.fact("step"):
        return f"the variable differs between the two sides already as step {one.fact('step')} begins"
    return _SENTENCES[one.cause]


def verdict_line(verdict: Verdict) -> Text:
    """The verdict in one line, where several are listed."""
    first = verdict.first
    if first is None:
        return _clean_head(verdict)
    return Text.assemble((safe(first.culprit), "bold red"), f": {first.cause}: {_sentence(first)}")


def verdict_block(verdict: Verdict, part: str = "", command: str = "precision-tool") -> RenderableType:
    """The heaviest thing on the screen; what is missing of its comparison (`part`) comes first.

    Below it stands what to do next; `command` begins the lines that are commands of this tool.
    """
    first = verdict.first
    rows: list[tuple[str, Text]] = []
    if first is None:
        head, style = _clean_head(verdict), "green" if _is_whole(verdict) else "yellow"
        rows += _clean_rows(verdict)
    else:
        head, style = _head(first, verdict), "bold red" if verdict.confidence >= _LIKELY else "bold yellow"
        rows += _rows(first, verdict)
    rows += _others(verdict)
    rows.append(("judged", plain(_judged(verdict), "dim")))
    rows += [("gaps" if not number else "", plain(gap_words(gap), "dim")) for number, gap in enumerate(verdict.gaps)]
    if part:
        head = Text.assemble((safe(part), "bold yellow"), "\n", head)
    block = Box(Group(Prose(head), LabelledLines(rows)), title=Text("Verdict"), style=style, box=box.HEAVY)
    return Group(block, NextSteps(tell_steps(verdict.next), command)) if verdict.next else block


_STATES = {
    "right": "computes right now", "wrong": "still computes wrong", "doubtful": "is in doubt now",
    "not_recomputed": "could not be recomputed this time", "gone": "is no longer in the graph",
    "agrees": "agrees with the other side now", "repeats": "repeats itself now", "fits": "overflows no more",
    "whole": "reads what was put out now", "keeps": "loses nothing any more",
    "unseen": "was not looked at this time: its dump or the benchmark is missing",
    "one_run": "may still differ between runs: only one run was judged this time",
}  # fmt: skip
#: What is still so, by how the verdict names it now.
_STILL = {
    "overflows": "still overflows", "overwritten": "is still overwritten", "narrows": "still loses what it is fed",
    "draws": "still draws other random numbers than the other side", "unsteady": "still differs between runs",
}  # fmt: skip
#: The same of what nothing computes.
_STILL_DIFFERS = {"input": "the data still differ", "weights": "still differs from the other side"}


def since_block(held: Since, command: str = "precision-tool") -> RenderableType:
    """What became of the culprit of an earlier verdict; `command` begins what is typed next."""
    again = f"{command} ac -c --since".lstrip()
    text = Text.assemble((safe(held.culprit), "bold"), f": {held.cause}\n")
    text.append(_state(held), style="bold green" if held.is_mended else "bold red")
    rows = [("before", whole_path(held.file))]
    if held.is_same_dump and not held.is_mended:
        rows.append(
            ("dump", Text.assemble(plain("the same files as then: collect again, then "), (again, "bold cyan")))
        )
    if held.own_error_before is not None and held.own_error is not None:
        rows.append(("own error", plain(f"{percent(held.own_error_before)} before, {percent(held.own_error)} now")))
    for one in held.changes:
        words = f"{safe(one.name)}: {safe(one.before)} before, {safe(one.now)} now"
        rows.append((one.what, plain(words if one.is_changed else f"{safe(one.name)}: still {safe(one.now)}")))
    if held.next_culprit is None:
        rows.append(("now", plain("nobody else computes wrong" if held.is_mended else "the verdict names nobody")))
    elif held.next_culprit == held.culprit:
        rows.append(("now", plain("the verdict names it again")))
    else:
        rows.append(("now", plain(f"the verdict names {held.next_culprit}: {held.next_cause}")))
    return Box(
        Group(Prose(text), LabelledLines(rows)),
        title=Text("Since the earlier verdict"),
        style="green" if held.is_mended else "yellow",
    )


def _state(held: Since) -> str:
    if held.state == "differs":
        return _STILL_DIFFERS.get(held.cause, "still differs from the other side")
    return _STILL.get(held.state) or _STATES.get(held.state, held.state)


def _head(first: Suspect, verdict: Verdict) -> Text:
    text = Text.assemble((safe(first.culprit), "bold red"))
    text.append(f" ({safe(first.op_type)})" if first.op_type else "")
    if verdict.run:
        text.append(f" of debug_{verdict.run}")
    text.append("\n")
    text.append(str(first.cause), style="bold")
    sentence = _sentence(first) if first.proof is not Proof.RUNS else "it does not repeat itself"
    text.append(f": {sentence}")
    return text


def _rows(first: Suspect, verdict: Verdict) -> list[tuple[str, Text]]:
    rows: list[tuple[str, Text]] = []
    if first.pass_name:
        rows.append(("pass", plain(marked_pass(first.pass_name))))
    rows += [("why" if not number else "", plain(line)) for number, line in enumerate(_why(first))]
    rows += [(label, plain(_named(names))) for label, names in _also(first) if names]
    rows.append(("sure", plain(f"{_how_sure(verdict.confidence)}: {_proof(first)}")))
    spoils = f"{counted(first.followers, 'op')} {'is' if first.followers == 1 else 'are'} fed by it, directly or not"
    if first.below:
        spoils += f"; {first.below:,} below the threshold follow from it"
    rows.append(("spoils", plain(spoils)))
    return rows


def _also(first: Suspect) -> list[tuple[str, Sequence[str]]]:
    """The further culprits of the same fault, and what they are to it."""
    if first.cause is not Cause.STOMP:
        return [("back by" if first.cause is Cause.CAST else "also", first.also)]
    producer = first.fact("producer")
    return [("put out by", [producer] if producer else []), ("also read by", first.fact("other_readers") or [])]


def _how_sure(confidence: float) -> str:
    """`97%`, `70%, likely`: stands behind the label "sure"."""
    doubt = "" if confidence >= _SURE else ", likely" if confidence >= _LIKELY else ", a guess"
    return f"{confidence:.0%}{doubt}"


def _proof(first: Suspect) -> str:
    if first.proof is Proof.COPIES:
        return f"two copies of one tensor differ{_told(first)}"
    if first.proof is Proof.SOURCE:
        return "nothing in the graph computes it, so nothing in the graph made the difference"
    if first.proof is Proof.RUNS:
        return "two runs differ, each of which its inputs explain"
    if first.proof is Proof.STATUS:
        return "the device's own status says so; it could not be recomputed"
    if first.proof is Proof.COMPARED:
        return "it could not be recomputed, only compared"
    if first.fact("one_of"):
        return "these ops were not dumped, and recomputed as one: which of them is wrong is not known"
    if first.fact("or_variable"):
        return f"recomputed with the benchmark's {first.fact('or_variable')}: it is wrong, or was fed other numbers"
    if first.fact("inputs_not_dumped"):
        doubt = "" if first.cause is Cause.STOMP else ", which may have been overwritten before it read it"
        return f"its inputs were not dumped, or cannot be read: recomputed from what fed it put out{doubt}"
    if first.fact("benchmark_obeys"):
        return "recomputed from its own inputs; the benchmark obeys the same formula"
    if first.fact("another_obeys"):
        return "recomputed from its own inputs; another op that is fused in the same way obeys the same formula"
    return "recomputed from its own inputs"


def _told(first: Suspect) -> str:
    """What says which of two copies is the true one."""
    by = first.fact("told_by")
    if by == "producer" and first.fact("producer_is_right"):
        return ", and the op that put it out is right"
    if by == "nobody":
        return f"; which of them was overwritten is not known: it may be the one that {first.also[0]} read"
    return _TOLD.get(by, "")


def _why(first: Suspect) -> list[str]:
    """The two or three figures behind a suspicion."""
    fact = first.fact
    lines: list[str] = []
    if fact("own_error") is not None:
        how = ", ".join(map(str, fact("recomputed_as") or ()))
        lines.append(
            f"recomputed ({how}) from {_recomputed_from(first)}: {off_by(fact('own_error'))}, "
            f"where rounding explains {percent(fact('rounding'))}"
        )
        where = f"{fact('wrong_elements'):,} of {counted(fact('elements'), 'element')} of output {fact('output')}"
        if fact("elements_in_all") is not None:
            where += f" that were looked at, {fact('elements_in_all'):,} in all"
        mistake = _MISTAKES.get(str(fact("mistake")))
        lines.append(f"wrong in {where}" + (f": {mistake}{_detail(first)}" if mistake else _detail(first)))
    elif fact("overflowed_elements") is not None:
        lines.append(
            f"its true result reaches {_figure(fact('largest'))}, {fact('type')} ends at {_figure(fact('limit'))}: "
            f"{fact('overflowed_elements'):,} of {counted(fact('elements'), 'element')}, from finite inputs"
        )
        if fact("at_limit") is not None and fact("at_limit") != fact("overflowed_elements"):
            lines[-1] += f"; {fact('at_limit'):,} stand there at the limit or beyond"
    elif fact("lost") is not None:
        lines.append(f"{fact('from')} goes through {fact('to')}, which takes {_share(fact('lost'))} of it away")
    elif fact("first_byte") is not None:
        lines.append(
            f"{fact('reader')} differs from {fact('held_against') or fact('tensor')} in bytes "
            f"{fact('first_byte'):,} to "
            f"{fact('last_byte'):,} of {fact('bytes'):,} ({counted(fact('different_elements'), 'element')})"
        )
    elif fact("not_recomputed") is not None:
        if fact("status") is not None:
            pass
        elif fact("distance") is not None:
            lines.append(f"its output is {off_by(fact('distance'))}, its inputs {percent(fact('fed'))}")
        else:
            lines.append("its inputs agree with the other side and its output does not")
        lines.append(f"not recomputed: {reason_words(fact('not_recomputed'))}")
    elif fact("same_inputs"):
        lines.append(
            f"the same inputs gave another output {fact('output')} in the other run: {off_by(fact('distance'))}, "
            f"in {fact('different_elements'):,} of {counted(fact('elements'), 'element')}"
        )
    elif fact("distance") is not None:
        lines.append(_departure(first))
    if fact("repeats") is not None:
        lines.append(_REPEATS[bool(fact("repeats"))].format(f"debug_{fact('other_run')}"))
    if fact("parts_run") is not None:
        lines.append(_PARTS[bool(fact("parts_right"))].format(f"debug_{fact('parts_run')}"))
    if fact("status") is not None:
        lines.append(f"the device's status of it: {fact('status')} ({posixpath.basename(str(fact('status_file')))})")
    return lines


def _recomputed_from(first: Suspect) -> str:
    return "what fed it put out" if first.fact("inputs_not_dumped") else "its own inputs"


def _departure(first: Suspect) -> str:
    fact = first.fact
    line = f"it is {off_by(fact('distance'))} the other side's"
    if fact("elements"):
        line += f", in {fact('different_elements'):,} of {counted(fact('elements'), 'element')}"
    if fact("reordered"):
        line += ": the same values in another order"
    elif fact("factor") is not None:
        line += f": all of it times {_figure(fact('factor'))}"
    return line + ("; the passports' hashes differ too" if fact("passport") else "")


def _detail(first: Suspect) -> str:
    fact = first.fact
    parts = []
    if fact("order"):
        parts.append(", ".join(map(str, fact("order"))))
    if fact("steps"):
        parts.append(f"{fact('steps'):+d} along axis {fact('axis')}")
    elif fact("axis") is not None:
        parts.append(f"only index {fact('index')} of axis {fact('axis')}")
    if fact("factor") is not None:
        parts.append(f"× {_figure(fact('factor'))}")
    return f" ({', '.join(parts)})" if parts else ""


def _clean_head(verdict: Verdict) -> Text:
    worst = verdict.worst
    if verdict.cause is Cause.LOSS_SCALE:
        scale = verdict.suspects[0]
        text = Text.assemble(("no fault", "bold"), f": {safe(scale.culprit)} scales the loss")
        factor = scale.fact("factor")
        against = " against the benchmark's" if verdict.has_benchmark else ""
        return text.append(f" by {_figure(factor)}{against}, and the gradients back" if factor else "")
    text = Text("nothing computes wrong" if _is_whole(verdict) else "nothing that could be recomputed computes wrong")
    text.stylize("bold")
    if worst is not None and worst.cosine < 1 and _is_whole(verdict):
        text.append(f"; the worst cosine, {worst.cosine:.6f} at {safe(worst.op_name)}, is rounding")
    elif worst is not None and not worst.below:
        text.append(f"; every compared tensor reaches the threshold, the worst {worst.cosine:.6g}")
    return text


def _clean_rows(verdict: Verdict) -> list[tuple[str, Text]]:
    rows: list[tuple[str, Text]] = []
    worst = verdict.worst
    if worst is not None and worst.below:
        words = f"{counted(worst.below, 'op')} below the threshold carry it"
        if worst.grows_from:
            words += f"; it grows from {worst.grows_from}"
        rows.append(("rounding", plain(words)))
    rows.append(("sure", plain(_how_sure(verdict.confidence))))
    return rows


def _is_whole(verdict: Verdict) -> bool:
    return bool(verdict.tally.ops) and verdict.tally.right >= 0.8 * verdict.tally.ops


def _others(verdict: Verdict) -> list[tuple[str, Text]]:
    """Faults that do not follow from the first."""
    others = verdict.suspects[1:] if verdict.culprit is not None else ()
    rows: list[tuple[str, Text]] = []
    for number, one in enumerate(others[:_SHOWN]):
        text = Text.assemble((safe(one.culprit), "bold"), f": {one.cause}, {_first(_why(one))}")
        rows.append(("besides" if not number else "", text))
    if len(others) > _SHOWN:
        rows.append(("", plain(f"and {len(others) - _SHOWN} more; --json names all", "dim")))
    return rows


def _first(lines: Sequence[str]) -> str:
    return safe(lines[0]) if lines else ""


def _judged(verdict: Verdict) -> str:
    tally = verdict.tally
    done = tally.right + tally.wrong + tally.doubtful
    line = f"{done:,} of {counted(tally.ops, 'op')} recomputed, {tally.right:,} of them right"
    if tally.doubtful:
        line += f", {tally.doubtful:,} in doubt"
    beyond = sum(_is_beyond(one) for one in verdict.suspects)
    if beyond:
        line += f", and the true result of {beyond:,} is beyond its type"
    reasons = reason_counts(tally)
    if reasons:
        shown = "; ".join(f"{reason} ({count:,})" for reason, count in reasons[:_SHOWN])
        more = len(reasons) - _SHOWN
        line += f"; not recomputed {tally.not_recomputed:,}: {shown}" + (f"; and {more} more" if more > 0 else "")
    return line


def _is_beyond(one: Suspect) -> bool:
    """Whether an op computes right what it is fed, and its type cannot hold it."""
    return one.fact("overflowed_elements") is not None and one.fact("own_error") is None


class NextSteps:
    """What to do next, below the box: what can be typed stands alone on a line, unbroken, to be copied."""

    def __init__(self, steps: Sequence[ToldStep], command: str) -> None:
        self._steps = steps
        self._command = command

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for number, step in enumerate(self._steps):
            where = f", in {step.file}" if step.line and step.file else ""
            text = plain(f"{step.why}{where}" + (":" if step.line else ""))
            yield LabelledLines([("    " if number else "next", text)])
            if step.line:
                line = step.line if step.file else f"{self._command} {step.line}".lstrip()
                for part in line.split("\n"):
                    yield Text.assemble(" " * _STEP_INDENT, (safe(part), "bold cyan"), no_wrap=True, overflow="ignore")


def _named(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _share(value: object) -> str:
    """A part of a whole in percent; `all` where it is as large, or not finite."""
    return percent(value) if isinstance(value, (int, float)) and value < 1 else "all"


def _figure(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, (int, float)) else str(value)
