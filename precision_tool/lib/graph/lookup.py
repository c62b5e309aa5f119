"""Ops of the graphs of a data folder, found by any part of their names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from precision_tool.lib.errors import DataNotFoundError, UsageError
from precision_tool.lib.graph.catalog import RunGraph
from precision_tool.lib.model.graph import Graph, Op
from precision_tool.lib.model.wording import counted, first_of
from precision_tool.lib.sources.names import flatten

#: Names that an error lists.
_LISTED = 10
#: Names that share most three-letter pieces with a name are looked at closer: so many of them.
_CANDIDATES = 100
#: How like a name another is that is offered in its place, as `difflib` measures it.
_ALIKE = 0.6
_NO_GLOB = str.maketrans("", "", "*?[]")


@dataclass(frozen=True, kw_only=True)
class FoundOp:
    """An op, and where it was found."""

    run: RunGraph
    op: Op
    #: The (sub)graph of `run.file` the op is in.
    graph: Graph


def find_ops(runs: Sequence[RunGraph], name: str) -> tuple[FoundOp, ...]:
    """The op of this name in every graph that has it, in the order of `runs`.

    `name` is an op's, with `/` or `_`, or that of an op of the training script that went into it, else a part that
    only one op's name has. UsageError lists the ops that a part fits, DataNotFoundError the closest names.
    A script's op that became several ops gives them all.
    """
    if not name.strip():
        raise UsageError("an op's name is empty", "give a name, or part of one")
    found = [hit for run in runs for hit in _by_whole_name(run, name)]
    if found:
        return tuple(found)
    part = flatten(name).lower()
    found = [
        FoundOp(run=run, op=op, graph=graph) for run, graph, op in every_op(runs) if part in flatten(op.name).lower()
    ]
    different = sorted(dict.fromkeys(hit.op.name for hit in found), key=lambda other: _farness(part, other))
    if len(different) == 1:
        return tuple(found)
    if different:
        raise UsageError(f"{name!r} fits {len(different)} ops: {first_of(different, _LISTED)}", "give more of the name")
    known = dict.fromkeys(op.name for _, _, op in every_op(runs))
    originals = dict.fromkeys(one for _, _, op in every_op(runs) for one in op.original_names or ())
    raise DataNotFoundError(
        f"no op {name!r} among {counted(len(known), 'op')} of {where_of(runs)}",
        closest_hint(name, known | originals, "`ls` lists the ops"),
    )


def _farness(part: str, name: str) -> int:
    """0 for a name that begins with this part, 1 where a piece between slashes is the part, 2 for any other."""
    if flatten(name).lower().startswith(part):
        return 0
    return 1 if part in map(str.lower, name.split("/")) else 2


def where_of(runs: Iterable[RunGraph]) -> str:
    """The runs, or files, that ops were looked for in, for a message: `debug_0 and debug_1`."""
    places = dict.fromkeys(run.file.path if run.number is None else f"debug_{run.number}" for run in runs)
    return " and ".join(filter(None, (", ".join([*places][:-1]), *[*places][-1:])))


def every_op(runs: Iterable[RunGraph]) -> Iterable[tuple[RunGraph, Graph, Op]]:
    """All ops of all graphs."""
    return ((run, graph, op) for run in runs for graph in run.file.graphs for op in graph.ops)


def _by_whole_name(run: RunGraph, name: str) -> list[FoundOp]:
    flat = flatten(name)
    ops = [(graph, op) for graph in run.file.graphs for op in graph.ops]
    hits = [(graph, op) for graph, op in ops if op.name == name]
    hits = hits or [(graph, op) for graph, op in ops if flatten(op.name) == flat]
    if not hits:
        made_of = [(graph, op) for graph, op in ops if op.original_names and flat in map(flatten, op.original_names)]
        # Of several ops it became, the one that puts out its result says most.
        ends = [
            (graph, op)
            for graph, op in made_of
            if any(desc.dump_origin_name and flatten(desc.dump_origin_name) == flat for desc in op.output_descs)
        ]
        hits = ends if len(ends) == 1 else made_of
    return [FoundOp(run=run, op=op, graph=graph) for graph, op in hits]


def closest_names(name: str, known: Iterable[str], count: int = 5) -> list[str]:
    """The names among `known` that are spelled much like `name`, which may be a glob; quick for many.

    A name without `/` may also be like a part of one.
    """
    wanted = flatten(name.translate(_NO_GLOB)).lower()
    pieces = _pieces(wanted)
    scored = sorted(known, key=lambda other: -len(pieces & _pieces(flatten(other).lower())))[:_CANDIDATES]
    by_part: dict[str, list[str]] = {}
    for other in scored:
        parts = {other, *other.split("/")} if "/" not in name else {other}
        for part in parts:
            by_part.setdefault(flatten(part).lower(), []).append(other)
    close = difflib.get_close_matches(wanted, by_part, n=count, cutoff=_ALIKE)
    return list(dict.fromkeys(other for part in close for other in by_part[part]))[:count]


def _pieces(text: str) -> set[str]:
    return {text[start : start + 3] for start in range(max(len(text) - 2, 1))}


def closest_hint(name: str, known: Iterable[str], otherwise: str) -> str:
    """What to say of a name that is not known."""
    close = closest_names(name, known)
    return f"closest: {', '.join(close)}" if close else otherwise
