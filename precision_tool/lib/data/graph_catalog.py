"""The graph of every dumped model of a data folder."""

from __future__ import annotations

import difflib
import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from precision_tool.lib.data.dump_names import flatten
from precision_tool.lib.data.dump_tree import nothing_below
from precision_tool.lib.data.graph_cache import GraphStore
from precision_tool.lib.data.graph_choice import (
    CHOSEN,
    ENOUGH,
    NAMED,
    GraphChoice,
    GraphChooser,
    choose_by_device,
    choose_without_dump,
    find_graph_files,
    is_named_by,
    is_what_ran,
    load_choice,
    load_chosen,
)
from precision_tool.lib.data.kinds import first_dump
from precision_tool.lib.data.workspace import lies_in
from precision_tool.lib.io.files import exists, is_folder, list_folder, real_path
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, PrecisionToolError, UsageError
from precision_tool.lib.model.graph import Graph, GraphFile, Op
from precision_tool.lib.model.run import DumpLeaf, Run


@dataclass(frozen=True, kw_only=True)
class RunGraph(GraphChoice):
    """A graph that commands look ops up in, why it was chosen, and the dump that belongs to it."""

    #: N of npu/debug_N; None for a graph that was only named.
    number: int | None
    #: The newest dump leaf (first device, lowest step) of this graph's model; None: not dumped.
    leaf: DumpLeaf | None
    #: All leaves (devices, steps) of this model.
    leaves: tuple[DumpLeaf, ...] = ()
    #: True for a graph that was asked for with -g.
    is_named: bool = False


@dataclass(frozen=True, kw_only=True)
class MissingGraph:
    """A dumped model, or a run that was not dumped, whose graph there is not, and why."""

    number: int
    #: Empty for a run without a dump.
    model: str
    reason: Message


@dataclass(frozen=True, kw_only=True)
class RunGraphs:
    """The graphs that were found, and what has none."""

    runs: tuple[RunGraph, ...]
    missing: tuple[MissingGraph, ...] = ()

    @property
    def lost(self) -> tuple[Message, ...]:
        """The models and runs without a graph, and why."""
        several = len({run.model for run in self.missing}) > 1
        return tuple(
            Message("note.data.lost_graph", number=run.number, model=run.model if several else None, reason=run.reason)
            for run in self.missing
        )

    @property
    def notes(self) -> tuple[Message, ...]:
        """Notes for the user on graphs that cannot be used."""
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
    runs: list[RunGraph] = []
    missing: list[MissingGraph] = []
    refused: list[PrecisionToolError] = []
    for folder in folders:
        models = _models(folder.run)
        paths = [] if models else find_graph_files([folder.graph_folder])
        for leaves in (*models.values(), *([()] if paths else ())):
            try:
                choice = graphs.of(leaves[0], models=models) if leaves else choose_without_dump(paths, store)
            except DataNotFoundError as error:
                refused.append(error)
                model = leaves[0].model_name if leaves else ""
                missing.append(MissingGraph(number=folder.number, model=model, reason=error.full_message))
            else:
                runs.append(_run_graph(folder.number, leaves, choice))
    is_in_use = chosen is not None and any(real_path(run.file.path) == real_path(chosen) for run in runs)
    if chosen is not None and not is_in_use and _has_no_dump(chosen, folders):
        return RunGraphs(runs=_with_chosen(runs, chosen, folders, store), missing=tuple(missing))
    if not runs:
        paths = find_graph_files((), extra_folders)
        if not paths:
            raise refused[0] if refused else _no_graph(root)
        runs.append(_run_graph(None, (), choose_without_dump(paths, store)))
    return RunGraphs(runs=tuple(runs), missing=tuple(missing))


def _no_graph(root: str) -> PrecisionToolError:
    runs = posixpath.join(root, "npu")
    nothing = DataNotFoundError("data.no_graph", folder=posixpath.join(runs, "debug_*", "graph"))
    there = list_folder(runs) if is_folder(runs) else []
    return nothing_below(nothing, *(posixpath.join(runs, name, "graph") for name in there))


def _has_no_dump(path: str, folders: Sequence[RunFolder]) -> bool:
    """Return whether the run of a graph has no dump that it would have to fit."""
    return not any(_models(folder.run) for folder in _owners(path, folders) or folders)


def _owners(path: str, folders: Sequence[RunFolder]) -> list[RunFolder]:
    """The run whose folder a graph lies in."""
    place = real_path(path)
    return [folder for folder in folders if lies_in(place, real_path(posixpath.dirname(folder.graph_folder)))]


def _with_chosen(
    runs: Sequence[RunGraph], chosen: str, folders: Sequence[RunFolder], store: GraphStore
) -> tuple[RunGraph, ...]:
    """The graphs, with one that was chosen, and for which there is no dump, in the place of its run's."""
    number = next((folder.number for folder in _owners(chosen, folders)), None)
    choice = GraphChoice(file=store.load(chosen), reason=CHOSEN)
    others = [] if number is None else [run for run in runs if run.number != number]
    return tuple(sorted((*others, _run_graph(number, (), choice)), key=lambda run: run.number or 0))


def check_choice(path: str, folders: Sequence[RunFolder], store: GraphStore) -> None:
    """Raise UsageError, with figures, for a graph that commands would not use.

    Raises the reader's errors for a file that is no graph.
    """
    store.load(path)
    if not is_what_ran(path):
        raise UsageError.of(path, "data.other_stage")
    if _has_no_dump(path, folders):
        return
    figures = []
    for folder in _owners(path, folders) or folders:
        models = _models(folder.run)
        for leaves in models.values():
            if not isinstance(load_chosen(path, leaves[0], models, store), Message):
                return
            share = load_choice(path, leaves[0], CHOSEN, store)
            figures.append(Message("note.data.share", matched=share.matched, total=share.total, run=folder.number))
    raise UsageError.of(path, "data.chosen_graph_misfit", shares=figures, enough=ENOUGH)


def _models(run: Run | None) -> dict[str, tuple[DumpLeaf, ...]]:
    """The leaves of each dumped model."""
    models: dict[str, tuple[DumpLeaf, ...]] = {}
    for leaf in run.leaves if run is not None else ():
        models[leaf.model_name] = (*models.get(leaf.model_name, ()), leaf)
    return models


def _run_graph(
    number: int | None, leaves: tuple[DumpLeaf, ...], choice: GraphChoice, is_named: bool = False
) -> RunGraph:
    leaf = leaves[0] if leaves else None
    return RunGraph(**vars(choice), number=number, leaf=leaf, leaves=leaves, is_named=is_named)


def _named_graphs(folders: Sequence[RunFolder], store: GraphStore, graph: str) -> tuple[RunGraph, ...]:
    """The graph asked for, with the dump it lies beside, else with every dump it fits."""
    is_one = not is_folder(graph)
    if is_one and not exists(graph):
        raise DataNotFoundError.of(graph, "data.no_such_graph")
    recorded = "" if is_one else first_dump(graph)
    if recorded:
        is_one, graph = True, recorded
    paths = [graph] if is_one else find_graph_files([graph])
    if not paths:
        raise nothing_below(DataNotFoundError("data.no_graph_in", folder=graph), graph)
    if is_one:
        store.load(graph)  # raises what is wrong with it, dump or not
    owners = _owners(graph, folders)
    runs = []
    for folder in owners or folders:
        for leaves in _models(folder.run).values():
            try:
                choice = (
                    load_choice(graph, leaves[0], NAMED, store) if is_one else choose_by_device(paths, leaves[0], store)
                )
            except DataNotFoundError:
                continue  # none of the folder's graphs is of this model
            called = [first.name for first in choice.file.graphs[:1]]
            if choice.matched >= ENOUGH * choice.total or is_named_by(called, leaves[0].model_name):
                runs.append(_run_graph(folder.number, leaves, choice, is_named=True))
    if runs:
        return tuple(runs)
    number = owners[0].number if len(owners) == 1 else None
    if not is_one:
        return (_run_graph(number, (), choose_without_dump(paths, store), is_named=True),)
    choice = GraphChoice(file=store.load(graph), reason=NAMED)
    return (_run_graph(number, (), choice, is_named=True),)


# --- op names of results, spelled as in file names ---


def names_in(file: GraphFile | None) -> Callable[[str], str]:
    """Return a function from a name that two NPU runs were matched by to the op's name in the graph.

    Of two runs that are matched without a graph, results have the names of dump files, where `/` is `_`.
    """
    return named_by(file.column("name")) if file is not None else str


def named_by(names: Iterable[str]) -> Callable[[str], str]:
    """Return the function of `names_in` for names of ops; a spelling that two of them share stays as it is."""
    op_names = set(names)
    flat: dict[str, str] = {}

    def name_of(name: str) -> str:
        if name in op_names:
            return name
        if not flat:  # for the first name that is spelled so
            for op_name in op_names:
                key = flatten(op_name)
                flat[key] = "" if key in flat else op_name
        return flat.get(name) or name

    return name_of


# --- looking up ops by name ---


#: Names that share most three-letter pieces with a name are looked at closer: so many of them.
_CANDIDATES = 100
#: How like a name another is that is offered in its place, as `difflib` measures it.
_MIN_SIMILARITY = 0.6
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
        raise UsageError("data.empty_op_name")
    hits = [hit for run in runs for hit in _by_whole_name(run, name)]
    hits = hits or [hit for run in runs for hit in _by_module(run, name)]
    if len({hit.op.name for hit in hits}) > 1 and hits[0].op.module:
        ops = list(dict.fromkeys(hit.op.name for hit in hits))
        raise UsageError("data.several_ops", name=repr(name), count=len(ops), ops=ops)
    if hits:
        return tuple(hits)
    part = flatten(name).lower()
    hits = [
        _of(run, run.file.ops[number])
        for run in runs
        for number, other in enumerate(run.file.column("name"))
        if part in flatten(other).lower()
    ]
    different = sorted(dict.fromkeys(hit.op.name for hit in hits), key=lambda other: _farness(part, other))
    if len(different) == 1:
        return tuple(hits)
    if different:
        raise UsageError("data.several_ops", name=repr(name), count=len(different), ops=different)
    op_names = dict.fromkeys(name for run in runs for name in run.file.column("name"))
    originals = dict.fromkeys(
        original for run in runs for names in run.file.column("original_names") for original in names or ()
    )
    raise DataNotFoundError(
        "data.no_op",
        name=repr(name),
        ops=len(op_names),
        place=where_of(runs),
        advice=closest_hint(name, op_names | originals, Message("note.data.use_ls.ops")),
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


def _of(run: RunGraph, op: Op) -> FoundOp:
    return FoundOp(run=run, op=op, graph=run.file.graph_of(op))


def _by_whole_name(run: RunGraph, name: str) -> list[FoundOp]:
    flat = flatten(name)
    names = run.file.column("name")
    hits = [number for number, other in enumerate(names) if other == name]
    hits = hits or [number for number, other in enumerate(names) if flatten(other) == flat]
    ops = [run.file.ops[number] for number in hits]
    if not hits:
        originals = enumerate(run.file.column("original_names"))
        made_of = [run.file.ops[number] for number, made in originals if made and flat in map(flatten, made)]
        # Of several ops it became, the one that puts out its result says most.
        ends = [
            op
            for op in made_of
            if any(desc.dump_origin_name and flatten(desc.dump_origin_name) == flat for desc in op.output_descs)
        ]
        ops = ends if len(ends) == 1 else made_of
    return [_of(run, op) for op in ops]


def module_path(op: Op) -> str:
    """Return the path of the module that made a recorded call: `blocks.1.act`."""
    return op.module.partition(" (")[0]


def _by_module(run: RunGraph, name: str) -> list[FoundOp]:
    """The calls that a module of this path made itself."""
    recorded = enumerate(run.file.column("is_recorded"))
    ops = (run.file.ops[number] for number, is_recorded in recorded if is_recorded)
    return [_of(run, op) for op in ops if module_path(op) == name]


def closest_names(name: str, candidates: Iterable[str], count: int = 5) -> list[str]:
    """The names among `candidates` that are spelled much like `name`, which may be a glob; quick for many.

    A name without `/` may also be like a part of one.
    """
    flat = flatten(name.translate(_NO_GLOB)).lower()
    pieces = _pieces(flat)
    scored = sorted(candidates, key=lambda other: -len(pieces & _pieces(flatten(other).lower())))[:_CANDIDATES]
    by_part: dict[str, list[str]] = {}
    for other in scored:
        parts = {other, *other.split("/")} if "/" not in name else {other}
        for part in parts:
            by_part.setdefault(flatten(part).lower(), []).append(other)
    close = difflib.get_close_matches(flat, by_part, n=count, cutoff=_MIN_SIMILARITY)
    return list(dict.fromkeys(other for part in close for other in by_part[part]))[:count]


def _pieces(text: str) -> set[str]:
    return {text[start : start + 3] for start in range(max(len(text) - 2, 1))}


def closest_hint(name: str, candidates: Iterable[str], otherwise: Message) -> Message:
    """Return the names that are spelled much like one that does not exist, or `otherwise` where there are none."""
    close = closest_names(name, candidates)
    return Message("note.data.closest", names=close) if close else otherwise


# --- built-in and custom kernels ---


_KIND, _IS_CUSTOM = "_fe_imply_type", "_is_custom_op"
#: Kinds of OpImplType by number.
_CUSTOM = {0: "CCE", 1: "TIK", 2: "TBE", 10: "TBE, vector core", 11: "TBE, not persistent"}
_BUILT_IN = {
    3: "CCE constant", 4: "CCE", 5: "TIK", 6: "TBE", 7: "runtime", 8: "TBE plug-in", 9: "TBE, vector core", 12: "DSA"
}  # fmt: skip
#: Parts of the paths of kernels and of their sources, below `opp` of an installation.
_CUSTOM_PLACES = ("op_impl/custom", "op_impl/vendors", "opp/vendors/", "/vendors/customize", "libcust_aicpu")
_BUILT_IN_PLACES = ("op_impl/built-in", "opp/built-in/")
#: Kernel libraries that only CANN itself can be: the runtime, the graph engine and communication.
_OWN_LIBRARIES = ("DNN_VM_RTS_OP_STORE", "DNN_VM_RTS_FFTS_PLUS_OP_STORE", "DNN_VM_GE_LOCAL_OP_STORE",
                  "DNN_VM_HOST_CPU_OP_STORE", "ops_kernel_info_hccl")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Implementation:
    """The origin of a kernel, custom or built-in, and the entry of the graph that says so."""

    is_custom: bool
    why: str


def implementation(op: Op) -> Implementation | None:
    """Built-in or custom; None where the graph does not tell."""
    is_custom = _attribute(op, _IS_CUSTOM)
    if is_custom is True or (is_custom == 1 and isinstance(is_custom, int)):
        return Implementation(True, _IS_CUSTOM)
    number = _attribute(op, _KIND)
    if isinstance(number, int) and not isinstance(number, bool):
        kind = number & 0xFFFFFFFF
        for table, custom in ((_CUSTOM, True), (_BUILT_IN, False)):
            if kind in table:
                return Implementation(custom, f"{table[kind]}: {_KIND} {number}")
    for name, path in _paths(op):
        for places, custom in ((_CUSTOM_PLACES, True), (_BUILT_IN_PLACES, False)):
            if any(place in path for place in places):
                return Implementation(custom, f"{name} {path}")
    if op.kernel_lib == "CUSTAICPUKernel":
        return Implementation(True, f"kernel library {op.kernel_lib}")
    if op.kernel_lib in _OWN_LIBRARIES:
        return Implementation(False, f"kernel library {op.kernel_lib}")
    return None


def _attribute(op: Op, name: str) -> object:
    try:
        return op.attrs.get(name)
    except FormatError:  # a damaged attribute says nothing; -a shows what is wrong with it
        return None


def _paths(op: Op) -> Iterator[tuple[str, str]]:
    """Attributes that are paths, by name: releases differ in what they call that of a kernel."""
    for name in sorted(op.attrs):
        if "path" in name or "impl" in name or "kernelSo" in name:
            value = _attribute(op, name)
            if isinstance(value, str):
                yield name, value
