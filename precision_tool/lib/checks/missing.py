"""Why a check of the graphs of a run could not be made."""

from __future__ import annotations

from dataclasses import dataclass

from precision_tool.lib.graph.catalog import MissingGraph
from precision_tool.lib.model.finding import Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class NoGraphs(Evidence):
    """The models of the run that was asked for have no graph."""

    missing: tuple[MissingGraph, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoGraphNamed(Evidence):
    """The two sides were compared without a graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotOneGraphEach(Evidence):
    """Two runs with a graph each are needed; `only` is the number of the one that has one, None for neither."""

    only: int | None
    missing: tuple[MissingGraph, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRunOfTheFolder(Evidence):
    """The dump that was named is no run of the data folder, whose two runs would be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPasses(Evidence):
    """No fusion pass is known: `nameless` fused ops of which the graph names none, and no report.

    `missing` are models without a graph.
    """

    nameless: int
    missing: tuple[MissingGraph, ...] = ()
