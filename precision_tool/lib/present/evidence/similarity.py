"""Words for how alike the graphs of two runs are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from precision_tool.lib.checks.similarity import GraphsCompared
from precision_tool.lib.model.finding import Evidence
from precision_tool.lib.model.wording import counted, first_of

_DEFINITION = "share of ops with one of the same name and type in the other graph, ops put in by the compiler by type"
_SHOWN = 5


def _looked_at(one: GraphsCompared) -> str:
    sizes = "; ".join(f"{counted(graph.left_ops, 'op')} with {graph.right_ops:,}" for graph in one.graphs)
    return f"types, dtypes, layouts, shapes, inputs and passes of the ops of debug_0 and debug_1: {sizes}"


def _facts(one: GraphsCompared) -> Iterator[tuple[str, str]]:
    for graph in one.graphs:
        differing = len({found.op_name for found in graph.differences})
        yield "in both", f"{counted(graph.in_both, 'op')}, different: {differing:,}"
        yield "only debug_0", _named(graph.only_left)
        yield "only debug_1", _named(graph.only_right)
        for name, count in graph.fused_away[:_SHOWN]:
            yield "fused away", f"{name}: {counted(count, 'op')} of debug_1"
        inserted = [f"{name} {left} / {right}" for name, left, right in graph.inserted]
        if inserted:
            yield "put in", f"by the compiler, in debug_0 / debug_1: {', '.join(inserted)}"
        kinds = Counter(found.what for found in graph.differences)
        if kinds:
            yield "differ in", ", ".join(f"{what}: {count}" for what, count in kinds.most_common())
        for found in graph.differences[:_SHOWN]:
            yield "first", f"{found.op_name}: {found.what} {found.left or 'none'} / {found.right or 'none'}"


def _named(names: Sequence[str]) -> str:
    return f"{counted(len(names), 'op')}: {first_of(names, _SHOWN)}" if names else "none"


SENTENCES: dict[type[Evidence], Callable[[Any], str]] = {
    GraphsCompared: lambda one: f"the graphs of debug_0 and debug_1 are alike to {one.share:.1%} ({_DEFINITION})",
}
FACTS: dict[type[Evidence], Callable[[Any], Iterable[tuple[str, str]]]] = {GraphsCompared: _facts}
LOOKED_AT: dict[type[Evidence], Callable[[Any], str]] = {GraphsCompared: _looked_at}
