"""Every graph file there is: what it holds, how much of the dump it explains, whether it is in use and why."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from precision_tool.lib.data import dump_names as names
from precision_tool.lib.data.graph_cache import GraphStore, ops_in
from precision_tool.lib.data.graph_catalog import RunFolder, RunGraph, closest_hint
from precision_tool.lib.data.graph_choice import dumped_ops, find_graph_files
from precision_tool.lib.io.files import real_path, size_of
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, PrecisionToolError


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRow:
    """One graph file. `error` says why it cannot be read; the other facts are then empty."""

    path: str
    #: N of npu/debug_N; None for a file that lies elsewhere.
    run: int | None
    size: int
    #: The compiler's stage after which it was written; empty where the name does not tell.
    stage: str
    graph_names: tuple[str, ...] = ()
    op_count: int = 0
    data_sources: tuple[str, ...] = ()
    #: Dumped ops that the graph names, of how many there are; 0 of 0 without a dump.
    matched: int = 0
    dumped: int = 0
    in_use: bool = False
    #: Why it is in use, or is not.
    reason: Message | None = None
    error: Message | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSurvey:
    """The graph files as they ran on the device, and how many there are of each other stage."""

    rows: tuple[GraphRow, ...]
    other_stages: tuple[tuple[str, int], ...]
    #: The folders that were looked in.
    folders: tuple[str, ...]
    #: Why no graph can be used at all; empty if one is in use.
    problem: PrecisionToolError | None = None

    @property
    def unreadable(self) -> int:
        """Number of files that cannot be read."""
        return sum(bool(row.error) for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundIn:
    """The ops of a file that a search found: names and types, and how many it looked at. `error`: not read."""

    path: str
    run: int | None
    stage: str
    ops: tuple[tuple[str, str], ...] = ()
    op_count: int = 0
    error: Message | None = None


def survey(
    folders: Sequence[RunFolder],
    in_use: Sequence[RunGraph],
    store: GraphStore,
    *,
    extra_folders: Sequence[str] = (),
    problem: PrecisionToolError | None = None,
) -> GraphSurvey:
    """All graph files of the runs, of `extra_folders` and in use. `problem` says why none is in use."""
    all_files = _graph_files(folders, in_use, extra_folders)
    used = {real_path(run.file.path): run for run in reversed(in_use)}
    rejected: dict[str, Message] = {}
    for path, why in (rejection for run in in_use for rejection in run.rejected):
        rejected.setdefault(real_path(path), why)
    rows = []
    for path, number in all_files:
        real = real_path(path)
        if real in used or names.is_build_graph(posixpath.basename(path)):
            rows.append(_row(path, number, used.get(real), rejected.get(real), folders, store))
    stages = Counter(_stage(path) for path, _ in all_files if not names.is_build_graph(posixpath.basename(path)))
    looked_in = [folder.graph_folder for folder in folders] + [posixpath.abspath(folder) for folder in extra_folders]
    return GraphSurvey(
        rows=tuple(rows),
        other_stages=tuple(sorted((stage, count) for stage, count in stages.items() if stage)),
        folders=tuple(dict.fromkeys(looked_in)),
        problem=problem,
    )


def search(
    folders: Sequence[RunFolder],
    in_use: Sequence[RunGraph],
    word: str,
    extra_folders: Sequence[str] = (),
) -> tuple[FoundIn, ...]:
    """The ops whose names fit a part or a glob, of every graph file of every stage, read in pieces.

    DataNotFoundError with the closest names when no file has one.
    """
    fits = names.pattern(word)
    searched = []
    op_names: dict[str, None] = {}
    for path, number in _graph_files(folders, in_use, extra_folders):
        ops: list[tuple[str, str]] = []
        count = 0
        try:
            for name, op_type in ops_in(path):
                count += 1
                op_names[name] = None
                if fits(name):
                    ops.append((name, op_type))
        except PrecisionToolError as error:
            searched.append(FoundIn(path=path, run=number, stage=_stage(path), error=error.full_message))
            continue
        searched.append(FoundIn(path=path, run=number, stage=_stage(path), ops=tuple(ops), op_count=count))
    if not any(file.ops for file in searched):
        unread = [file for file in searched if file.error]
        raise DataNotFoundError(
            "data.no_op_in_graphs",
            name=repr(word),
            files=len(searched),
            unreadable=len(unread),
            error=unread[0].error if unread else None,
            advice=closest_hint(word, op_names, Message("note.data.use_ls.graphs")),
        )
    return tuple(searched)


def _graph_files(
    folders: Sequence[RunFolder], in_use: Iterable[RunGraph], extra_folders: Sequence[str]
) -> list[tuple[str, int | None]]:
    """All graph files, of any stage, each once, with the run they lie beside."""
    listed: list[tuple[str, int | None]] = [
        (path, folder.number)
        for folder in folders
        for path in find_graph_files([folder.graph_folder], fits=names.is_graph_file)
    ]
    listed += [(path, None) for path in find_graph_files((), extra_folders, fits=names.is_graph_file)]
    listed += [(run.file.path, run.number) for run in in_use]
    once: dict[str, tuple[str, int | None]] = {}
    for path, number in listed:
        once.setdefault(real_path(path), (posixpath.abspath(path), number))
    return list(once.values())


def _stage(path: str) -> str:
    """The compiler's stage that the name of a graph file ends with."""
    name = posixpath.basename(path)
    return name.removesuffix(".txt").rpartition("_")[2] if names.is_graph_file(name) else ""


def _row(
    path: str,
    number: int | None,
    used: RunGraph | None,
    why_not: Message | None,
    folders: Sequence[RunFolder],
    store: GraphStore,
) -> GraphRow:
    row = GraphRow(path=path, run=number, size=size_of(path), stage=_stage(path))
    try:
        skim = store.skim(path)
        matched, dumped = _share(path, number, used, folders)
    except PrecisionToolError as error:
        return replace(row, error=error.full_message)
    return replace(
        row,
        graph_names=skim.graph_names,
        op_count=skim.op_count,
        data_sources=skim.data_source_types,
        matched=matched,
        dumped=dumped,
        in_use=used is not None,
        reason=used.reason if used is not None else why_not,
    )


def _share(path: str, number: int | None, used: RunGraph | None, folders: Sequence[RunFolder]) -> tuple[int, int]:
    """Return how many dumped ops of its run (of its model where it is in use) a graph names, and of how many."""
    if used is not None and used.leaf is not None:
        leaves = used.leaves[:1]
    else:
        leaves = tuple(
            leaf
            for folder in folders
            if folder.run is not None and number in (folder.number, None)
            for leaf in folder.run.leaves
        )
    dumped = {name for leaf in leaves for name in dumped_ops(leaf)}
    if not dumped:
        return 0, 0
    graph_ops = {names.base_name(names.flatten(name)) for name, _ in ops_in(path)}
    return len(dumped & graph_ops), len(dumped)
