"""Ranks that were merged and held against a benchmark: the fault, what was merged how, and what is off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.text import Text

from precision_tool.lib.data.sharding import Placement
from precision_tool.lib.diagnose.sharded import ShardedRow, ShardedRun
from precision_tool.lib.messages import Message, render
from precision_tool.lib.model.wording import spans
from precision_tool.lib.view.tables import NUMBERS, Box, NameTable, Prose
from precision_tool.lib.view.text import LabelledLines, Line, plain, safe, shown

#: Ranks of a tensor that are shown, and further faults.
_RANKS, _FURTHER = 4, 5


def sharded_block(run: ShardedRun, limit: int) -> Iterator[RenderableType]:
    """Yield the first `limit` tensors that are off (0: all), then the earliest fault with what proves it."""
    rows: list[Line] = []
    first, *rest = run.findings or (None,)
    if first is not None:
        head, style = shown(first.message), "bold red"
        if first.own_name != first.tensor:
            rows.append((Message("sharded.label.own"), plain(safe(first.own_name))))
        if first.more:
            rows.append(("", shown(Message("sharded.more", count=first.more))))
        for number, each in enumerate(rest[:_FURTHER]):
            assert each is not None
            rows.append(("" if number else Message("sharded.label.further"), shown(each.message)))
        if len(rest) > _FURTHER:
            rows.append(("", shown(Message("study.more", more=len(rest) - _FURTHER))))
    elif run.off:
        off = Message("sharded.off_unexplained", count=len(run.off), tensor=run.off[0].name)
        head, style = shown(off), "yellow"
    else:
        head, style = shown(Message("sharded.clean")), "green"
    rows += _looked_at(run)
    if run.off:
        yield _table(run.off[: limit or None])
    title = shown(Message("sharded.title"))
    yield Box(Group(Prose(head), LabelledLines(rows)), title=title, style=style, box=box.HEAVY)


def _looked_at(run: ShardedRun) -> Iterator[Line]:
    steps = Message("study.steps", count=len(run.steps), steps=spans(run.steps))
    sides = Message(
        "sharded.sides", npu=spans(run.ranks), golden=spans(run.golden_ranks), npu_parts=run.parts[0],
        golden_parts=run.parts[1], steps=steps,
    )  # fmt: skip
    yield Message("sharded.label.sides"), shown(sides)
    compared = Message("sharded.compared", count=len(run.compared), below=len(run.off), threshold=run.threshold)
    yield Message("sharded.label.compared"), shown(compared)
    kinds: Counter[str] = Counter()
    for row in run.compared:
        if row.fit is not None:
            kinds[_kind(row.fit.npu)] += 1
    placed = Message("sharded.placed", slices=kinds["slices"], sums=kinds["sums"], copies=kinds["copies"])
    yield Message("sharded.label.placed"), shown(placed)
    reasons = Counter(render(row.reason) for row in run.rows if row.reason is not None)
    for number, (reason, count) in enumerate(reasons.most_common(_FURTHER)):
        unplaced = Message("sharded.unplaced", count=count, reason=reason)
        yield "" if number else Message("sharded.label.unplaced"), shown(unplaced)


def _kind(placement: Placement) -> str:
    return "sums" if placement.is_sum else "slices" if placement.splits else "copies"


def _placement(placement: Placement) -> Message:
    if placement.is_sum:
        return Message("sharded.placement.sum", terms=placement.terms)
    if placement.is_flat:
        return Message("sharded.placement.flat", parts=placement.splits[0].parts)
    if placement.is_copy:
        return Message("sharded.placement.copy")
    split = placement.splits[0]
    return Message("sharded.placement.slices", axis=split.axis, parts=split.parts)


def _table(rows: list[ShardedRow]) -> NameTable:
    table = NameTable(box=box.SIMPLE)
    table.add_columns("sharded.column", "tensor", "placement")
    table.add_columns("sharded.column", "cosine", **NUMBERS)
    table.add_columns("sharded.column", "off")
    for row in rows:
        cosine = "" if row.metrics is None else f"{row.metrics.cosine:.6f}"
        worst = sorted(row.ranks, key=lambda each: -each.distance)[:_RANKS]
        parts = [f"{'+'.join(map(str, each.ranks))}: {each.distance:.2g}" for each in worst]
        placement = Text("" if row.fit is None else render(_placement(row.fit.npu)), no_wrap=True)
        table.add_row(plain(safe(row.name)), placement, cosine, Text("  ".join(parts)))
    return table
