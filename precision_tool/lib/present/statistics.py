"""What statistics tell of a study, and what to dump whole next, on the terminal."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.text import Text

from precision_tool.lib.messages import text
from precision_tool.lib.present.text import LabelledLines, byte_size, counted, plain, safe
from precision_tool.lib.present.whole import Box, Prose
from precision_tool.lib.study.evidence import Evidence
from precision_tool.lib.study.leaves import spans
from precision_tool.lib.study.of_statistics import StatisticsFound
from precision_tool.lib.study.redump import Redump
from precision_tool.lib.study.statistics import Suspicion
from precision_tool.lib.workspace import shown_path

_FURTHER = 4


def statistics_block(found: StatisticsFound, redump: Redump | None, written: str = "") -> RenderableType:
    """The earliest op that statistics speak against, what does, and the dump that would prove it."""
    rows: list[tuple[str, Text]] = []
    if not found.suspicions:
        head, style = Text("the statistics speak against no op, as far as they tell"), "green"
    else:
        first = found.suspicions[0]
        style = "bold red" if first.is_certain else "bold yellow"
        head = Text.assemble((f"step {first.step}, {_ranks(first)}: ", "bold"), (safe(first.op), style))
        head.append(f" ({safe(first.type)})" if first.type else "")
        for number, one in enumerate({one.kind: one for one in reversed(first.evidence)}.values()):
            rows.append(("evidence" if not number else "", plain(evidence_line(one))))
        if first.unknown:
            rows.append(("not known", plain(f"of {counted(len(first.unknown), 'other rank')}: without a benchmark")))
        rows.append(("holds", plain(_holds(first))))
        for number, later in enumerate(found.suspicions[1 : 1 + _FURTHER]):
            kinds = ", ".join(map(str, later.kinds))
            line = f"step {later.step}, {_ranks(later)}: {later.op}: {kinds}"
            rows.append(("after it" if not number else "", plain(line, "dim")))
        if len(found.suspicions) > 1 + _FURTHER:
            rows.append(("", plain(f"and {len(found.suspicions) - 1 - _FURTHER} more", "dim")))
    looked = f"{counted(found.tensors, 'tensor')} in {counted(found.leaves, 'dump folder')}, ranks {spans(found.ranks)}"
    rows.append(("looked at", plain(looked, "dim")))
    if found.unread:
        rows.append(
            ("cannot read", plain(f"{counted(len(found.unread), 'file')}, the first {found.unread[0]}", "yellow"))
        )
    if redump is not None:
        rows += _next(redump, written)
    return Box(Group(Prose(head), LabelledLines(rows)), title=Text("Statistics"), style=style, box=box.HEAVY)


def _ranks(one: Suspicion) -> str:
    if len(one.ranks) == 1:
        return f"rank {one.ranks[0]}" + (" alone" if one.right else "")
    return f"ranks {spans(one.ranks)}" if one.right or one.unknown else f"all {len(one.ranks)} ranks"


def _holds(one: Suspicion) -> str:
    if one.is_certain:
        return "by itself: no benchmark, and no recomputing, is needed to say that this is wrong"
    return "as a suspicion only: a whole dump tells"


def evidence_line(one: Evidence) -> str:
    """A piece of evidence as a sentence."""
    side = one.tensor.removeprefix(f"{one.op}:")
    return text(f"study.suspicion.{one.kind}", side=side, value=one.value, expected=one.expected)


def _next(redump: Redump, written: str) -> list[tuple[str, Text]]:
    if not redump.layers:
        return [("next", plain(f"a dump of {redump.without[0]} takes more than {byte_size(redump.budget)}", "yellow"))]
    steps, ranks = ("s" if len(each) > 1 else "" for each in (redump.steps, redump.ranks))
    what = f"{counted(len(redump.layers), 'op')} of step{steps} {spans(redump.steps)} on rank{ranks} "
    rows = [("next", plain(f"dump {what}{spans(redump.ranks)} whole: {byte_size(redump.nbytes)}"))]
    if redump.without:
        rows.append(("", plain(f"left out by the budget: {counted(len(redump.without), 'op')}", "dim")))
    if written:
        rows.append(
            ("settings", plain(f"{shown_path(written)}: put it beside the training script as precision_config.py"))
        )
    return rows
