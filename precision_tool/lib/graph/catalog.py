"""The graph of every dumped model of a data folder."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, field

from precision_tool.lib.errors import DataNotFoundError, PrecisionToolError, UsageError
from precision_tool.lib.graph.cache import GraphStore
from precision_tool.lib.graph.choice import (
    CHOSEN,
    ENOUGH,
    NAMED,
    GraphChoice,
    GraphChooser,
    choose_graph,
    choose_without_dump,
    find_graph_files,
    is_named_by,
    is_what_ran,
    load_choice,
    load_chosen,
)
from precision_tool.lib.io.files import exists, is_folder, list_folder, real_path
from precision_tool.lib.model.graph import GraphFile
from precision_tool.lib.model.run import DumpLeaf, Run
from precision_tool.lib.model.wording import counted
from precision_tool.lib.sources.walk import nothing_below
from precision_tool.lib.workspace import lies_in


@dataclass(frozen=True, kw_only=True)
class RunGraph:
    """A graph that commands look ops up in, and the dump that belongs to it."""

    #: N of npu/debug_N; None for a graph that was only named.
    number: int | None
    #: The newest dump leaf (first device, lowest step) of this graph's model; None: not dumped.
    leaf: DumpLeaf | None
    file: GraphFile
    #: Why this graph.
    reason: str
    #: All leaves (devices, steps) of this model.
    leaves: tuple[DumpLeaf, ...] = ()
    #: True for a graph that was asked for with -g.
    is_named: bool = False
    #: Dumped ops that the graph names, of how many.
    matched: int = 0
    total: int = 0
    #: The other candidates, each with what spoke against it.
    rejected: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    #: What cannot be read and may fit better; empty as a rule.
    doubt: str = ""


@dataclass(frozen=True, kw_only=True)
class MissingGraph:
    """A dumped model, or a run that was not dumped, whose graph there is not, and why."""

    number: int
    #: Empty for a run without a dump.
    model: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class RunGraphs:
    """The graphs that were found, and what has none."""

    runs: tuple[RunGraph, ...]
    missing: tuple[MissingGraph, ...] = ()

    @property
    def lost(self) -> tuple[str, ...]:
        """What has no graph, and why."""
        several = len({one.model for one in self.missing}) > 1
        return tuple(f"debug_{one.number}{f' ({one.model})' * several}: {one.reason}" for one in self.missing)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of graphs that cannot be used, a sentence each."""
        return (*self.lost, *dict.fromkeys(run.doubt for run in self.runs if run.doubt))


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """One NPU run: its number, its graph folder and what it dumped."""

    number: int
    graph_folder: str
    run: Run | None


def find_run_graphs(
    folders: Sequence[RunFolder], graphs: GraphChooser, *, root: str = "", graph: str | None = None
) -> RunGraphs:
    """The graph of every dumped model of every run of the data folder `root`; of a run without a dump the largest.

    `graph` (a file, or a folder to choose from) overrides what would be found. Raises DataNotFoundError when there is
    no graph at all.
    """
    store, chosen, extra_folders = graphs.store, graphs.chosen, graphs.extra_folders
    if graph is not None:
        return RunGraphs(runs=_named_graphs(folders, store, graph))
    found: list[RunGraph] = []
    missing: list[MissingGraph] = []
    refused: list[PrecisionToolError] = []
    for folder in folders:
        models = _models(folder.run)
        for leaves in models.values():
            try:
                choice = graphs.of(leaves[0], models=models)
            except DataNotFoundError as error:
                refused.append(error)
                missing.append(MissingGraph(number=folder.number, model=leaves[0].model_name, reason=error.message))
                continue
            found.append(_run_graph(folder.number, leaves, choice))
        paths = [] if models else find_graph_files([folder.graph_folder])
        if paths:
            try:
                choice = choose_without_dump(paths, store)
            except DataNotFoundError as error:
                refused.append(error)
                missing.append(MissingGraph(number=folder.number, model="", reason=error.message))
                continue
            found.append(_run_graph(folder.number, (), choice))
    if chosen is not None and not any(_is_same(run.file.path, chosen) for run in found):
        place = _place_without_dump(chosen, folders)
        if place is not None:
            return RunGraphs(runs=_with_chosen(found, place, store, chosen), missing=tuple(missing))
    if not found:
        paths = find_graph_files((), extra_folders)
        if not paths:
            raise refused[0] if refused else _no_graph(root)
        found.append(_run_graph(None, (), choose_without_dump(paths, store)))
    return RunGraphs(runs=tuple(found), missing=tuple(missing))


def _no_graph(root: str) -> PrecisionToolError:
    runs = posixpath.join(root, "npu")
    nothing = DataNotFoundError(
        f"no graph: no ge_proto_*_Build.txt in {posixpath.join(runs, 'debug_*', 'graph')}, nor in the working folder",
        "set DUMP_GE_GRAPH=2 for the NPU run and copy its ge_proto_*_Build.txt to npu/debug_0/graph",
    )
    there = list_folder(runs) if is_folder(runs) else []
    return nothing_below(nothing, *(posixpath.join(runs, name, "graph") for name in there))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a graph stands without a dump: the run it lies beside, None for one that lies elsewhere."""

    number: int | None


def _place_without_dump(path: str, folders: Sequence[RunFolder]) -> _Place | None:
    """The place of a graph whose run has no dump that it would have to fit; None if there is such a dump."""
    beside = _beside(path, folders)
    if any(_models(folder.run) for folder in beside or folders):
        return None
    return _Place(beside[0].number if beside else None)


def _beside(path: str, folders: Sequence[RunFolder]) -> list[RunFolder]:
    """The run whose folder a graph lies in."""
    place = real_path(path)
    return [folder for folder in folders if lies_in(place, real_path(posixpath.dirname(folder.graph_folder)))]


def _with_chosen(found: Sequence[RunGraph], place: _Place, store: GraphStore, chosen: str) -> tuple[RunGraph, ...]:
    """The graphs, with one that was chosen, and for which there is no dump, in the place of its run's."""
    choice = GraphChoice(file=store.load(chosen), reason=CHOSEN, matched=0, total=0)
    others = [] if place.number is None else [run for run in found if run.number != place.number]
    return tuple(sorted((*others, _run_graph(place.number, (), choice)), key=lambda run: run.number or 0))


def check_choice(path: str, folders: Sequence[RunFolder], store: GraphStore) -> None:
    """Whether a graph can be chosen: UsageError with figures for one that commands would not use.

    Raises the reader's errors for a file that is no graph.
    """
    store.load(path)
    if not is_what_ran(path):
        raise UsageError(
            f"{path}: a graph of another stage of the compiler, which is not what ran",
            "choose one whose name ends with _Build.txt: `graphs` lists them; `ls -g FILE` looks into any",
        )
    if _place_without_dump(path, folders) is not None:
        return
    figures = []
    for folder in _beside(path, folders) or folders:
        models = _models(folder.run)
        for leaves in models.values():
            if not isinstance(load_chosen(path, leaves[0], models, store), str):
                return
            share = load_choice(path, leaves[0], CHOSEN, store)
            figures.append(f"{share.matched} of {counted(share.total, 'dumped op')} of debug_{folder.number}")
    raise UsageError(
        f"{path}: it does not fit: it names {', '.join(dict.fromkeys(figures))}",
        f"choose one that names at least {ENOUGH:.0%} of them, as `graphs` shows; `ls -g FILE` looks into any",
    )


def _is_same(path: str, other: str) -> bool:
    return real_path(path) == real_path(other)


def _models(run: Run | None) -> dict[str, tuple[DumpLeaf, ...]]:
    """The leaves of each dumped model."""
    models: dict[str, tuple[DumpLeaf, ...]] = {}
    for leaf in run.leaves if run is not None else ():
        models[leaf.model_name] = (*models.get(leaf.model_name, ()), leaf)
    return models


def _run_graph(
    number: int | None, leaves: tuple[DumpLeaf, ...], choice: GraphChoice, is_named: bool = False
) -> RunGraph:
    return RunGraph(
        number=number,
        leaf=leaves[0] if leaves else None,
        file=choice.file,
        reason=choice.reason,
        leaves=leaves,
        is_named=is_named,
        matched=choice.matched,
        total=choice.total,
        rejected=choice.rejected,
        doubt=choice.doubt,
    )


def _named_graphs(folders: Sequence[RunFolder], store: GraphStore, graph: str) -> tuple[RunGraph, ...]:
    """The graph asked for, with the dump it lies beside, else with every dump it fits."""
    is_one = not is_folder(graph)
    if is_one and not exists(graph):
        raise DataNotFoundError(f"{graph}: no such graph", "name a ge_proto_*_Build.txt or its JSON, or leave -g out")
    paths = [graph] if is_one else find_graph_files([graph])
    if not paths:
        nothing = f"no graph: no ge_proto_*_Build.txt in {graph}"
        raise nothing_below(DataNotFoundError(nothing, "name another folder, or a file"), graph)
    if is_one:
        store.load(graph)  # whatever is wrong with it is said, dump or not
    beside = _beside(graph, folders)
    found = []
    for folder in beside or folders:
        for leaves in _models(folder.run).values():
            try:
                choice = (
                    load_choice(graph, leaves[0], NAMED, store) if is_one else choose_graph(paths, leaves[0], store)
                )
            except DataNotFoundError:
                continue  # none of the folder's graphs is of this model
            called = [one.name for one in choice.file.graphs[:1]]
            if choice.matched >= ENOUGH * choice.total or is_named_by(called, leaves[0].model_name):
                found.append(_run_graph(folder.number, leaves, choice, is_named=True))
    if found:
        return tuple(found)
    number = beside[0].number if len(beside) == 1 else None
    if not is_one:
        return (_run_graph(number, (), choose_without_dump(paths, store), is_named=True),)
    choice = GraphChoice(file=store.load(graph), reason=NAMED, matched=0, total=0)
    return (_run_graph(number, (), choice, is_named=True),)
