"""The names of a graph's ops for those of a result, which may be spelled as in the names of dump files."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from precision_tool.lib.model.graph import GraphFile
from precision_tool.lib.sources.names import flatten


def names_in(file: GraphFile | None) -> Callable[[str], str]:
    """Gives the op's name in the graph for a name that two NPU runs were matched by; any other name as it is.

    Of two runs that are matched without a graph, results have the names of dump files, where `/` is `_`.
    """
    return named_by(op.name for op in file.ops) if file is not None else str


def named_by(names: Iterable[str]) -> Callable[[str], str]:
    """As `names_in`, for names of ops. A name that two of them are spelled as stays as it is."""
    known = set(names)
    flat: dict[str, str] = {}

    def name_of(name: str) -> str:
        if name in known:
            return name
        if not flat:  # for the first name that is spelled so
            for one in known:
                key = flatten(one)
                flat[key] = "" if key in flat else one
        return flat.get(name) or name

    return name_of
