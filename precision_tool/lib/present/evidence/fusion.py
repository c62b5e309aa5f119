"""Words for the fusion passes in effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from math import isnan
from typing import Any

from precision_tool.lib.checks.fusion import PassesFound, PassRow
from precision_tool.lib.model.finding import Evidence
from precision_tool.lib.model.wording import counted

#: Passes of a graph that the panel of `ac` names.
_SHOWN = 8


def _found(one: PassesFound) -> str:
    made = Counter({graph.run: len({op for row in graph.rows for op in row.ops}) for graph in one.graphs})
    names = {row.name for graph in one.graphs for row in graph.rows}
    return f"{counted(len(names), 'fusion pass', 'fusion passes')} made {counted(made.total(), 'op')}"


def _looked_at(one: PassesFound) -> str:
    sources = list(dict.fromkeys(graph.source for graph in one.graphs if graph.source))
    return f"pass_name of the ops, and {', '.join(sources) or 'no fusion_result.json, as there is none'}"


def _facts(one: PassesFound) -> Iterator[tuple[str, str]]:
    for graph in one.graphs:
        label = f"debug_{graph.run}" if graph.run is not None else f"graph {graph.graph_id or '?'}"
        rows = sorted(
            graph.rows, key=lambda row: 2.0 if row.cosine is None else -2.0 if isnan(row.cosine) else row.cosine
        )
        for row in rows[:_SHOWN]:
            yield label, _pass(row, one.threshold)
        if len(rows) > _SHOWN:
            yield label, f"and {len(rows) - _SHOWN} more passes: `fusion` lists them"


def _pass(row: PassRow, threshold: float) -> str:
    parts = [row.name, counted(len(row.ops), "op")]
    if row.matched is not None:
        parts.append(f"matched {row.matched}, in effect {row.effective}")
    if row.cosine is not None:
        below = isnan(row.cosine) or row.cosine < threshold
        parts.append(f"worst cosine {row.cosine:.6f}" + (f" ({row.worst_op})" if below else ""))
    if not row.is_switchable:
        parts.append("never switched off")
    return ", ".join(parts)


SENTENCES: dict[type[Evidence], Callable[[Any], str]] = {PassesFound: _found}
FACTS: dict[type[Evidence], Callable[[Any], Iterable[tuple[str, str]]]] = {PassesFound: _facts}
LOOKED_AT: dict[type[Evidence], Callable[[Any], str]] = {PassesFound: _looked_at}
