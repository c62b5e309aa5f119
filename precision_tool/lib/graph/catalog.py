"""What a data folder holds: the graph of every dumped model, and the ops in it, found by any part of their names."""

from __future__ import annotations

import difflib
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePath

from precision_tool.lib.collect.tfdbg import runs as tfdbg
from precision_tool.lib.errors import DataNotFoundError, FormatError, PrecisionToolError, UsageError
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
from precision_tool.lib.model.graph import Graph, GraphFile, Op
from precision_tool.lib.model.run import DumpLeaf, Run
from precision_tool.lib.model.wording import counted, first_of
from precision_tool.lib.sources import names
from precision_tool.lib.sources.h5_files import PYTORCH
from precision_tool.lib.sources.kinds import DEVICE_KINDS
from precision_tool.lib.sources.names import flatten
from precision_tool.lib.sources.walk import STATUS_OP_TYPE, list_folders, nothing_below
from precision_tool.lib.storage.stores import exists, folder_exists, is_folder, list_folder, real_path
from precision_tool.lib.workspace import Workspace, lies_in

#: Names that an error lists.
_LISTED = 10
#: Names that share most three-letter pieces with a name are looked at closer: so many of them.
_CANDIDATES = 100
#: How like a name another is that is offered in its place, as `difflib` measures it.
_ALIKE = 0.6
_NO_GLOB = str.maketrans("", "", "*?[]")


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
class FoundOp:
    """An op, and where it was found."""

    run: RunGraph
    op: Op
    #: The (sub)graph of `run.file` the op is in.
    graph: Graph


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """One NPU run: its number, its graph folder and what it dumped."""

    number: int
    graph_folder: str
    run: Run | None


# --- the graph of every dumped model ----------------------------------------------------------------------------------


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


# --- one op by its name -----------------------------------------------------------------------------------------------


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
    different = list(dict.fromkeys(hit.op.name for hit in found))
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


# --- what there is, by name only --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpOverview:
    """One dump of one run: all devices, models and steps of one time (empty where the tree is hand-made)."""

    time: str
    devices: tuple[str, ...]
    models: tuple[str, ...]
    steps: tuple[str, ...]
    #: Number of dump files.
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOverview:
    """One NPU run: its dumps, newest first, and how many Build graphs it has."""

    number: int
    dumps: tuple[DumpOverview, ...]
    graph_files: int

    @property
    def dump_files(self) -> int:
        """Number of dump files of all times."""
        return sum(dump.files for dump in self.dumps)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOverview:
    """What a data folder holds, by the names in it."""

    root: str
    #: False for a folder that is not there.
    exists: bool
    runs: tuple[RunOverview, ...] = ()
    #: Build graphs that lie in the working folder, where GE leaves them.
    graphs_here: int = 0
    benchmark_tensors: int = 0
    #: The runs of tfdbg that hold these tensors, if there are no files of them.
    benchmark_runs: int = 0
    #: Overflow status files (Opdebug) below overflow/dump.
    overflow_files: int = 0
    #: PyTorch dumps of the NPU, and of the benchmark.
    pytorch_files: tuple[int, int] = (0, 0)
    #: The newest result file, empty if there is none.
    newest_result: str = ""

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to work with."""
        return (
            not any(run.dumps or run.graph_files for run in self.runs)
            and not (self.graphs_here or self.benchmark_tensors or self.overflow_files or self.newest_result)
            and not any(self.pytorch_files)
        )


def overview(space: Workspace, newest_result: str = "") -> DataOverview:
    """Counts what lies in the data folder. Nothing is opened; what cannot be listed counts as nothing."""
    golden = _names_below(str(space.tf_dump_dir))
    tensors = sum(name.endswith(".npy") and names.parse_golden_name(name) is not None for name in golden)
    runs = [] if tensors else [tfdbg.files_of_run(run) for run in tfdbg.find_runs(str(space.tf_debug_dir))]
    return DataOverview(
        root=str(space.root),
        exists=folder_exists(space.root),
        runs=tuple(
            RunOverview(
                number=number,
                dumps=_dumps_below(str(space.dump_dir(number))),
                graph_files=sum(
                    any(kind.is_graph(folder, name) for kind in DEVICE_KINDS)
                    for folder, file_names in _folders_below(str(space.graph_dir(number)))
                    for name in file_names
                ),
            )
            for number in _numbers(space)
        ),
        graphs_here=sum(map(names.is_build_graph, _names_here())),
        benchmark_tensors=tensors or len({(dump.op, dump.slot) for run in runs for dump in run.tensors}),
        benchmark_runs=len(runs),
        overflow_files=sum(
            name.startswith(f"{STATUS_OP_TYPE}.") for name in _names_below(str(space.overflow_dump_dir))
        ),
        pytorch_files=(len(PYTORCH.files(str(space.pt_npu_dir))), len(PYTORCH.files(str(space.pt_gpu_dir)))),
        newest_result=newest_result,
    )


def _numbers(space: Workspace) -> list[int]:
    with suppress(FormatError):
        return space.debug_numbers()
    return []


def _names_here() -> list[str]:
    try:
        return list_folder(".")
    except PrecisionToolError:  # the working folder is gone
        return []


def _folders_below(root: str) -> Iterator[tuple[str, list[str]]]:
    try:
        yield from list_folders(root)
    except PrecisionToolError:
        return  # missing, or not to be read


def _names_below(root: str) -> Iterator[str]:
    return (name for _, file_names in _folders_below(root) for name in file_names)


def _dumps_below(root: str) -> tuple[DumpOverview, ...]:
    leaves: dict[str, list[tuple[names.LeafName, int]]] = {}
    for folder, file_names in _folders_below(root):
        count = sum(_looks_dumped(name) for name in file_names)
        if count:
            where = names.parse_leaf_path(PurePath(folder).parts)
            leaves.setdefault(where.time, []).append((where, count))

    def parts(found: list[tuple[names.LeafName, int]], part: str) -> tuple[str, ...]:
        values = {getattr(where, part) for where, _ in found} - {""}
        return tuple(sorted(values, key=lambda text: (len(text), text) if names.is_number(text) else (0, text)))

    return tuple(
        DumpOverview(
            time=time,
            devices=parts(found, "device"),
            models=parts(found, "model_name"),
            steps=parts(found, "step"),
            files=sum(count for _, count in found),
        )
        for time, found in sorted(leaves.items(), reverse=True)
    )


def _looks_dumped(name: str) -> bool:
    """True for a dump file, also one whose real name only mapping.csv tells."""
    if names.is_number(name.removesuffix(".csv")):
        return True
    return not name.startswith(f"{STATUS_OP_TYPE}.") and names.is_dump_file(name)
