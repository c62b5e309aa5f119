"""Screens of a bisection: each try as it ends, the table of all, what they come to; and JSON."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import RenderableType
from rich.text import Text

from precision_tool.lib.diagnose.bisect import Bisection, Outcome, Try
from precision_tool.lib.messages import Message, text
from precision_tool.lib.view.tables import NUMBERS, NameTable
from precision_tool.lib.view.text import json_text, plain, safe, shown, whole_path

_COLUMN = "screen.view.bisect.column"
#: Changes of a try that are named, and of those that are suspected.
_SHOWN = 3


def start_line(total: int, remaining: int | None, most: int | None, suspected: Sequence[str]) -> Text:
    """What is searched, and how many runs that takes, as far as that is known."""
    names = safe(", ".join(suspected[:_SHOWN]))
    message = Message("screen.view.bisect.start", total=total, remaining=remaining, most=most, names=names)
    return shown(message, "bold")


def try_line(number: int, attempt: Try, total: int, again: bool, remaining: int | None, seconds: float) -> Text:
    """One try, as it ends; `again`: of a set that was tried before. `remaining` are the runs that are probably left."""
    message = Message(
        "screen.view.bisect.try", number=number, made=len(attempt.changes), total=total, again=again,
        result=_outcome(attempt), seconds=attempt.seconds, remaining=remaining, left=seconds,
    )  # fmt: skip
    return shown(message, fields={"result": "green" if attempt.succeeded else "red"})


def _outcome(attempt: Try) -> Message:
    if attempt.succeeded:
        return Message("screen.view.bisect.succeeds")
    if attempt.code is None:
        return Message("screen.view.bisect.out_of_time")
    return Message("screen.view.bisect.fails", code=attempt.code)


def bisect_lines(
    result: Bisection, tries: Sequence[Try], total: int, to_do: Sequence[Message], of_last: Sequence[Message] = ()
) -> list[RenderableType]:
    """The table of all tries, and what they come to; `to_do` is what is left where no change helps.

    `of_last` is what the last of that consists of.
    """
    table = NameTable(box=None, padding=(0, 2, 0, 0), show_edge=False)
    table.add_columns(_COLUMN, "try", "made", **NUMBERS)
    table.add_columns(_COLUMN, "check")
    table.add_columns(_COLUMN, "seconds", **NUMBERS)
    table.add_columns(_COLUMN, "changes")
    first: dict[tuple[str, ...], int] = {}
    for number, attempt in enumerate(tries, start=1):
        made = attempt.changes
        named = ", ".join(made) if len(made) < _SHOWN else "…"
        if not made or len(made) == total:
            named = text("screen.view.bisect.all") if made else text("screen.view.none")
        if first.setdefault(made, number) != number:  # what the result rests on is tried twice
            named = text("screen.view.bisect.again", changes=named, number=first[made])
        check = shown(_outcome(attempt), "green" if attempt.succeeded else "red")
        table.add_row(str(number), str(len(made)), check, f"{attempt.seconds:.1f}", plain(named))
    lines: list[RenderableType] = [table]
    if tries:
        lines.append(whole_path(f"{posixpath.dirname(tries[0].log)}/try_*.log"))
    failed = [attempt for attempt in tries if not attempt.succeeded]
    if failed and all(attempt.code is None for attempt in failed):
        lines.append(shown(Message("screen.view.bisect.all_out_of_time"), "yellow"))
    lines.append(_verdict(result))
    if result.outcome is Outcome.NOT_FIXED:
        lines.append(shown(Message("screen.view.bisect.left")))
        lines += [shown(Message("screen.view.blame.item", item=item)) for item in to_do]
        lines += [shown(Message("screen.view.blame.subitem", item=item)) for item in of_last]
    if result.interact:
        lines.append(shown(Message("screen.view.bisect.interact"), "yellow"))
    if result.confidence is not None:
        message = Message(
            "screen.view.bisect.confidence", confidence=result.confidence, rate=result.rate, outvoted=result.outvoted,
            tries=len(tries),
        )  # fmt: skip
        lines.append(shown(message, "yellow"))
    return lines


def _verdict(result: Bisection) -> Text:
    changes = safe(", ".join(sorted(result.changes)))
    if result.outcome in (Outcome.FOUND, Outcome.OUT_OF_RUNS):
        message = Message(f"screen.view.bisect.{result.outcome}", count=len(result.changes), changes=changes)
        return shown(message, "bold", fields={"changes": "bold red"})
    if result.outcome is Outcome.NOT_NEEDED:
        return shown(Message("screen.view.bisect.not_needed"), "bold green")
    if result.outcome is Outcome.NOT_FIXED:
        return shown(Message("screen.view.bisect.not_fixed"), "bold yellow")
    return shown(Message("screen.view.bisect.flaky", changes=changes or Message("screen.view.none")), "bold red")


def bisect_json(
    result: Bisection, tries: Sequence[Try], searched: Sequence[str], switches: dict[str, object], keep: Sequence[str]
) -> str:
    """The object of `bisect --json`."""
    return json_text({
        "outcome": result.outcome, "changes": sorted(result.changes), "interact": result.interact,
        "sets": result.tries, "confidence": result.confidence, "rate": result.rate, "outvoted": result.outvoted,
        "searched": searched, "switches": switches, "keep": keep, "tries": [asdict(attempt) for attempt in tries],
    })  # fmt: skip


#: What `fusion bisect --json` calls an outcome.
NOT_FUSION = "not_fusion"


def fusion_bisect_json(result: Bisection, tries: Sequence[Try], passes: Sequence[str]) -> str:
    """The object of `fusion bisect --json`, in which the changes are passes that are off."""
    off = [asdict(attempt) for attempt in tries]
    return json_text({
        "outcome": NOT_FUSION if result.outcome is Outcome.NOT_FIXED else result.outcome,
        "off": sorted(result.changes), "interact": result.interact, "sets": result.tries, "passes": passes,
        "tries": [{"off": attempt.pop("changes"), **attempt} for attempt in off],
    })  # fmt: skip
