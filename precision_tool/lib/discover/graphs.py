"""Finds the graph that a dump belongs to, and says why it is that one."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace

from precision_tool.lib.discover import names
from precision_tool.lib.discover.walk import list_folders
from precision_tool.lib.errors import DataNotFoundError, PrecisionToolError
from precision_tool.lib.formats.ge_graph import GraphSkim, load_graph_file, peek_graph_name, skim_graph_file
from precision_tool.lib.model.graph import GraphFile
from precision_tool.lib.model.run import DumpLeaf

#: A graph that names fewer of the dumped ops than this share is not the graph of the dump.
ENOUGH = 0.5


@dataclass(frozen=True, kw_only=True)
class GraphChoice:
    """The graph in use and why; `rejected` are the other candidates, each with what spoke against it."""

    file: GraphFile
    reason: str
    matched: int
    total: int
    rejected: tuple[tuple[str, str], ...] = ()


def find_graph_files(folders: Iterable[str], flat_folders: Iterable[str] = ()) -> list[str]:
    """Paths of all Build graphs below `folders`, and directly in `flat_folders`, each once."""
    listed = [
        (below, names_in) for folder in folders if os.path.isdir(folder) for below, names_in in list_folders(folder)
    ]
    listed += [(folder, sorted(os.listdir(folder))) for folder in flat_folders if os.path.isdir(folder)]
    found = {
        os.path.join(folder, name): None
        for folder, file_names in listed
        for name in file_names
        if names.is_build_graph(name)
    }
    return list(found)


def graph_folders(dump_path: str) -> list[str]:
    """Where the graphs of a dump folder lie: a `graph` folder beside it or beside a folder above it."""
    folder = os.path.abspath(dump_path)
    for _ in range(8):
        candidate = os.path.join(folder, "graph")
        if os.path.isdir(candidate):
            return [candidate]
        parent = os.path.dirname(folder)
        if parent == folder:
            break
        folder = parent
    return []


def matched_ops(file: GraphFile, leaf: DumpLeaf) -> int:
    """How many of the dumped ops the graph names."""
    known = {names.flatten(op.name) for op in file.ops}
    return sum(op_name in known for op_name in {dump.name.op_name for dump in leaf.files})


def is_named_by(graph_names: Iterable[str], model_name: str) -> bool:
    """True if one of the graph names is the dump's model folder (inference appends `_0`)."""
    flat = {names.flatten(name) for name in graph_names}
    return model_name in flat or (model_name.endswith("_0") and model_name[:-2] in flat)


def of_model(file: GraphFile, leaf: DumpLeaf) -> GraphFile:
    """The graph of the dump's model among several in one file, with the subgraphs it reaches.

    It is the one named like the model folder, else the one that names most of the dumped ops.
    """
    called = {name for op in file.ops for name in op.subgraph_names}
    roots = [graph for graph in file.graphs if graph.name not in called]
    if len(roots) < 2:
        return file
    below = {graph.name: graph for graph in file.graphs}
    parts = []
    for root in roots:
        reached = {root.name: root}
        waiting = [root]
        while waiting:
            names_below = [name for op in waiting.pop().ops for name in op.subgraph_names]
            fresh = {name: below[name] for name in names_below if name in below and name not in reached}
            reached.update(fresh)
            waiting += fresh.values()
        parts.append(replace(file, graphs=tuple(reached.values())))
    return max(parts, key=lambda part: (is_named_by([part.graphs[0].name], leaf.model_name), matched_ops(part, leaf)))


def load_choice(path: str, leaf: DumpLeaf, reason: str) -> GraphChoice:
    """A graph that somebody chose by name, with its share of the dump."""
    file = of_model(load_graph_file(path), leaf)
    total = len({dump.name.op_name for dump in leaf.files})
    return GraphChoice(file=file, reason=reason, matched=matched_ops(file, leaf), total=total)


def _by_head(paths: Iterable[str], model_name: str) -> tuple[list[str], list[str]]:
    """The files whose first bytes show the name of the dump's model, or do not tell, and those of another name."""
    named: list[str] = []
    others: list[str] = []
    for path in paths:
        try:
            name = peek_graph_name(path)
        except PrecisionToolError:
            name = None  # reading it whole will say why
        (named if name is None or is_named_by([name], model_name) else others).append(path)
    return named, others


def _skim_all(paths: Iterable[str], rejected: list[tuple[str, str]]) -> list[GraphSkim]:
    """What the files hold; those that cannot be read are added to `rejected`."""
    skims = []
    for path in paths:
        try:
            skims.append(skim_graph_file(path))
        except PrecisionToolError as error:
            rejected.append((path, error.message))
    return skims


def choose_graph(paths: Iterable[str], leaf: DumpLeaf) -> GraphChoice:
    """The candidate that fits the dump: named like its model folder, with a data source, naming most of its ops.

    DataNotFoundError says what was found when no candidate can be read or none fits.
    """
    rejected: list[tuple[str, str]] = []
    named, others = _by_head(paths, leaf.model_name)
    skims = _skim_all(named, rejected)
    if any(is_named_by(skim.graph_names, leaf.model_name) for skim in skims):
        rejected += [(path, "has another graph name") for path in others]  # and need not be read
    else:
        skims += _skim_all(others, rejected)
    if not skims:
        why = "; ".join(message for _, message in rejected[:3]) or "there is no ge_proto_*_Build.txt"
        raise DataNotFoundError(
            f"no graph can be used: {why}", "copy the graph files beside the dump, or name one with -g"
        )
    by_name = [skim for skim in skims if is_named_by(skim.graph_names, leaf.model_name)]
    pool = by_name or skims
    with_source = [skim for skim in pool if skim.data_source_types]
    candidates = with_source or pool
    best: tuple[int, GraphSkim, GraphFile] | None = None
    for skim in sorted(candidates, key=lambda skim: -skim.op_count):
        if best is not None and best[0] >= skim.op_count:
            rejected.append((skim.path, f"has only {skim.op_count} ops"))
            continue
        try:
            file = of_model(load_graph_file(skim.path), leaf)
        except PrecisionToolError as error:
            rejected.append((skim.path, error.message))
            continue
        count = matched_ops(file, leaf)
        if best is None or count > best[0]:
            if best is not None:
                rejected.append((best[1].path, f"names only {best[0]} of the dumped ops"))
            best = (count, skim, file)
        else:
            rejected.append((skim.path, f"names only {count} of the dumped ops"))
    total = len({dump.name.op_name for dump in leaf.files})
    if best is None:
        raise DataNotFoundError(
            f"no graph can be used: {rejected[0][1]}", "copy the graph files again, or name one with -g"
        )
    matched, skim, file = best
    for other in skims:
        if other not in candidates:
            why = "has another graph name" if by_name and other not in by_name else "has no data-source op"
            rejected.append((other.path, why))
    if matched < ENOUGH * total and not by_name:
        raise DataNotFoundError(
            f"none of {len(skims)} graphs fits the dump: the best, {skim.path}, names {matched} of {total} dumped ops",
            "the graphs and the dump are of different runs: collect both in one run, or name a graph with -g",
        )
    reasons = []
    if by_name:
        reasons.append(f"its name is the dump's model folder {leaf.model_name}")
    if skim.data_source_types:
        reasons.append(f"it holds the data source {', '.join(skim.data_source_types)}")
    reasons.append(f"it names {matched} of {total} dumped ops")
    return GraphChoice(file=file, reason=", ".join(reasons), matched=matched, total=total, rejected=tuple(rejected))
