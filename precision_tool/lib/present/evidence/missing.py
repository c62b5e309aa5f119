"""Words for why a check could not be made, and those that a third party's check brings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from precision_tool.lib.checks.missing import NoGraphNamed, NoGraphs, NoPasses, NoRunOfTheFolder, NotOneGraphEach
from precision_tool.lib.graph.catalog import MissingGraph
from precision_tool.lib.model.finding import Evidence, ThirdParty, Unmade
from precision_tool.lib.model.wording import counted
from precision_tool.lib.pairing.fusion_pair import COLLECT_PASSES


def no_graph(one: MissingGraph) -> str:
    """Why a model of a run has no graph."""
    return f"debug_{one.number} has no graph: {one.reason}"


def _not_one_graph_each(one: NotOneGraphEach) -> str:
    if one.missing:
        reason = "; ".join(map(no_graph, one.missing))
    elif one.only is not None:
        reason = f"only debug_{one.only} has a graph"
    else:
        reason = "neither debug_0 nor debug_1 has a graph that was looked at"
    return f"{reason}; it takes the graphs of two NPU runs"


def _no_passes(one: NoPasses) -> str:
    why = "no op names a pass"
    if one.nameless:
        why = f"{counted(one.nameless, 'fused op')} whose pass the graph does not name"
    return "; ".join(
        [*map(no_graph, one.missing), f"{why}, and there is no fusion_result.json: {COLLECT_PASSES}"],
    )


SENTENCES: dict[type[Evidence], Callable[[Any], str]] = {
    NoGraphNamed: lambda one: "the two sides were compared without a graph; name one with -g",
    NoGraphs: lambda one: "; ".join(map(no_graph, one.missing)),
    NoPasses: _no_passes,
    NoRunOfTheFolder: lambda one: (
        "the dump that was named is no run of the data folder; `graph diff LEFT RIGHT` compares any two graphs"
    ),
    NotOneGraphEach: _not_one_graph_each,
    Unmade: lambda one: str(one.reason),
    ThirdParty: lambda one: str(one.message),
}
FACTS: dict[type[Evidence], Callable[[Any], Iterable[tuple[str, str]]]] = {ThirdParty: lambda one: one.facts}
LOOKED_AT: dict[type[Evidence], Callable[[Any], str]] = {ThirdParty: lambda one: str(one.looked_at)}
