"""The screen of `whatif`: what is left of a deviation with an op mended; its JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.console import Group, RenderableType

from precision_tool.lib.diagnose.whatif import Effect, Lowest, WhatIf, conclusion
from precision_tool.lib.messages import Message, render
from precision_tool.lib.view.tables import NUMBERS, Box, NameTable, Prose
from precision_tool.lib.view.text import LabelledLines, Line, json_text, labelled, plain, safe, shown
from precision_tool.lib.view.verdict_messages import reason_words

_COLUMN = "screen.view.whatif.column"
_STYLES = {
    Effect.EXPLAINS: "bold green", Effect.PARTLY: "bold yellow", Effect.NO_NEARER: "bold yellow",
    Effect.CHANGES: "bold", Effect.NOTHING: "bold", Effect.STOPPED: "bold yellow",
}  # fmt: skip
#: Final tensors that are listed.
_MOST = 10


def whatif_block(result: WhatIf) -> RenderableType:
    """What became of the step with some of its ops mended."""
    rows: list[Line] = []
    sources = zip(result.ops, result.sources, strict=True)
    rows += labelled(
        Message("screen.view.whatif.label.mended"),
        (shown(Message(f"screen.view.whatif.source.{source}", op=safe(op))) for op, source in sources),
    )
    if result.is_wide:
        rows.append(("", shown(Message("screen.view.whatif.wide"))))
    rows.append(
        (
            Message("screen.view.whatif.label.behind"),
            shown(Message("screen.view.whatif.behind", done=result.computed, ops=result.behind)),
        )
    )
    rows += labelled(
        Message("screen.view.whatif.label.stopped"),
        (
            shown(
                Message(
                    "screen.view.whatif.stop", op=safe(stop.op), reason=reason_words(stop.reason), behind=stop.behind
                )
            )
            for stop in result.stopped
        ),
    )  # fmt: skip
    if result.after is not None:
        rows.append((Message("screen.view.whatif.label.cosine"), shown(_cosines(result.before, result.after))))
    head = shown(conclusion(result), _STYLES[result.effect])
    parts: list[RenderableType] = [Prose(head), LabelledLines(rows)]
    return Group(Box(Group(*parts), title=shown(Message("screen.view.whatif.title")), style="cyan"), *_table(result))


def _cosines(before: Lowest | None, after: Lowest) -> Message:
    return Message(
        "screen.view.whatif.cosine", before=None if before is None else before.cosine,
        before_tensor=None if before is None else before.tensor, after=after.cosine, after_tensor=after.tensor,
    )  # fmt: skip


def _table(result: WhatIf) -> list[RenderableType]:
    """Return the final tensors that depend on the op and are off, or change, the farthest first."""
    reached = [target for target in result.outputs if target.is_reached and target.deviation is not None]
    reached.sort(key=lambda target: -(target.deviation or 0.0))
    if not reached:
        return []
    table = NameTable(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_columns(_COLUMN, "dumped", "mended", **NUMBERS)
    table.add_columns(_COLUMN, "tensor")
    for target in reached[:_MOST]:
        table.add_row(f"{target.deviation:.3g}", f"{target.left:.3g}", plain(target.name))
    more = len(reached) - _MOST
    return [table, *([shown(Message("screen.view.whatif.more", count=more), "dim")] if more > 0 else [])]


def whatif_json(alone: Sequence[WhatIf], together: WhatIf | None) -> str:
    """Return the JSON document of `whatif`."""
    return json_text(whatif_document(alone, together))


def whatif_document(alone: Sequence[WhatIf], together: WhatIf | None) -> dict[str, Any]:
    """Return it as plain values."""
    return {
        "alone": [one_document(result) for result in alone],
        "together": None if together is None else one_document(together),
    }


def one_document(result: WhatIf) -> dict[str, Any]:
    """Return one result as plain values, with its conclusion in words."""
    stops = tuple(replace(stop, reason=reason_words(stop.reason)) for stop in result.stopped)
    return {**asdict(replace(result, stopped=stops)), "conclusion": render(conclusion(result))}
