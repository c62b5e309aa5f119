"""Why a model of a run has no graph."""

from __future__ import annotations

from precision_tool.lib.graph.catalog import MissingGraph
from precision_tool.lib.messages import Message


def no_graph(missing: MissingGraph) -> Message:
    """Return why a model of a run has no graph."""
    return Message("check.no_graph", number=missing.number, reason=missing.reason)
