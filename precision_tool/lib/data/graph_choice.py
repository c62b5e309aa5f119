"""Finds the graph that a dump belongs to, and says why it is that one."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path, PurePath

from precision_tool.lib.data import dump_names as names
from precision_tool.lib.data.dump_tree import Stamps, list_folders, nothing_below
from precision_tool.lib.data.graph_cache import GraphStore
from precision_tool.lib.data.kinds import GE, INFER, device_kind
from precision_tool.lib.data.workspace import Workspace, path_below
from precision_tool.lib.io.files import (
    atomic_text,
    content_signature_of,
    could_be_path,
    folder_exists,
    is_folder,
    list_folder,
    read_bytes,
    read_small_json,
    size_of,
    store_of,
)
from precision_tool.lib.io.ge_graph_partial import GraphSkim, peek_graph_name
from precision_tool.lib.io.om_file import is_om, name_in_model
from precision_tool.lib.io.stores import ContentSignature
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, OutputError, PrecisionToolError
from precision_tool.lib.model.graph import GraphFile
from precision_tool.lib.model.run import DumpLeaf

#: A graph that names fewer of the dumped ops than this share is not the graph of the dump.
ENOUGH = 0.5
#: Reasons of graphs that somebody chose.
NAMED = Message("note.data.graph.named", option="-g")
CHOSEN = Message("note.data.graph.chosen")
#: Of the only one that can be: the dump's own.
OF_DUMP = Message("note.data.graph.of_dump")
#: The folder that a process leaves its graphs in: pid_4203_deviceid_3, or pid_4203, which names no device.
_PROCESS = re.compile(r"pid_\d+(?:_deviceid_(?P<device>\d+))?|deviceid_(?P<alone>\d+)", re.ASCII)


class UnreadGraphError(DataNotFoundError):
    """Graphs are there, but none that can be read fits: one that cannot may be the dump's own."""


@dataclass(frozen=True, kw_only=True)
class GraphChoice:
    """The graph in use and why; `rejected` are the other candidates, each with what spoke against it."""

    file: GraphFile
    #: None for ops of two dumps that were matched by name.
    reason: Message | None
    #: Dumped ops that the graph names, of how many; 0 of 0 without a dump.
    matched: int = 0
    total: int = 0
    rejected: tuple[tuple[str, Message], ...] = field(default=(), repr=False)
    #: What cannot be read and may fit better, or whose graph it is in place of the dump's own; None as a rule.
    doubt: Message | None = None
    #: Whether it is, or may be, the graph of another device than the dump: its attributes may differ.
    is_borrowed: bool = False


def find_graph_files(
    folders: Iterable[str],
    flat_folders: Iterable[str] = (),
    *,
    fits: Callable[[str], bool] = names.is_build_graph,
    stamps: Stamps | None = None,
) -> list[str]:
    """Paths of all Build graphs (or those with `fits` names) below `folders` and directly in `flat_folders`.

    `stamps` notes the folders and the files.
    """
    listed = [
        (below, names_in) for folder in folders if is_folder(folder) for below, names_in in list_folders(folder, stamps)
    ]
    for folder in flat_folders:
        if stamps is not None:
            stamps.note(folder)
        with suppress(PrecisionToolError):  # not there, or not to be read
            listed.append((folder, list_folder(folder)))
    paths = list(
        dict.fromkeys(
            posixpath.join(folder, name)
            for folder, file_names in listed
            for name in file_names
            if fits(name) or INFER.is_graph(folder, name)
        )
    )
    if paths:
        store_of(paths[0]).gather((path, 0, 0) for path in paths)
    if stamps is not None:
        for path in paths:
            stamps.note(path)
    return paths


def graph_folders(dump_path: str, stamps: Stamps | None = None) -> list[str]:
    """Where the graphs of a dump folder lie: a `graph` folder beside it or beside a folder above it.

    Those of msquickcmp lie in `model`, beside its `dump_data`. `stamps` notes where they could lie.
    """
    folder = posixpath.abspath(dump_path)
    for _ in range(8):
        for candidate in filter(None, (kind.graph_folder(folder) for kind in (GE, INFER))):
            if stamps is not None:
                stamps.note(candidate)
            if is_folder(candidate):
                return [candidate]
        parent = posixpath.dirname(folder)
        if parent == folder:
            break
        folder = parent
    return []


def dumped_ops(leaf: DumpLeaf) -> set[str]:
    """The flattened names of the ops of which there are dump files; those of slices are of one op."""
    return {names.base_name(dump.name.op_name) for dump in leaf.files if dump.is_file}


def matched_ops(file: GraphFile, leaf: DumpLeaf) -> int:
    """Return the number of dumped ops that the graph names."""
    graph_ops = {names.base_name(names.flatten(name)) for name in file.column("name")}
    return len(dumped_ops(leaf) & graph_ops)


def is_named_by(graph_names: Iterable[str], model_name: str) -> bool:
    """True if one of the graph names is the dump's model folder (inference appends `_0`)."""
    flat = {names.flatten(name_in_model(name)) for name in graph_names}
    return model_name in flat or (model_name.endswith("_0") and model_name[:-2] in flat)


def of_model(file: GraphFile, leaf: DumpLeaf) -> GraphFile:
    """The graph of the dump's model among several in one file, with the subgraphs it reaches.

    It is the one named like the model folder, else the one that names most of the dumped ops. An offline model may hold
    several models, of which this is one; any other file is of one, to which further graphs belong that name dumped ops
    no other graph names, called by an op or not.
    """
    called = {name for names_below in file.column("subgraph_names") for name in names_below}
    roots = [graph for graph in file.graphs if graph.name not in called]
    if len(roots) < 2:
        return file
    below = {graph.name: graph for graph in file.graphs}
    parts = []
    for root in roots:
        reached = {root.name: root}
        waiting = [root]
        while waiting:
            names_below = [name for below in waiting.pop().column("subgraph_names") for name in below]
            fresh = {name: below[name] for name in names_below if name in below and name not in reached}
            reached.update(fresh)
            waiting += fresh.values()
        parts.append(replace(file, graphs=tuple(reached.values())))
    best = max(parts, key=lambda part: (is_named_by([part.graphs[0].name], leaf.model_name), matched_ops(part, leaf)))
    if is_om(file.path):
        return best
    graphs = list(best.graphs)
    for part in parts:
        more = [graph for graph in part.graphs if all(graph is not included for included in graphs)]
        if matched_ops(replace(file, graphs=(*graphs, *more)), leaf) > matched_ops(
            replace(file, graphs=tuple(graphs)), leaf
        ):
            graphs += more
    return best if len(graphs) == len(best.graphs) else replace(file, graphs=tuple(graphs))


def load_choice(path: str, leaf: DumpLeaf, reason: Message, store: GraphStore) -> GraphChoice:
    """A graph that somebody chose by name, with its share of the dump."""
    file = of_model(store.load(path), leaf)
    total = len(dumped_ops(leaf))
    return GraphChoice(file=file, reason=reason, matched=matched_ops(file, leaf), total=total)


def _skim_likely(
    paths: Iterable[str], model_name: str, rejected: list[tuple[str, Message]], store: GraphStore
) -> list[GraphSkim]:
    """Return an overview of the files whose first bytes show the model's name or do not tell; if none has it, of all.

    The other files are added to `rejected`.
    """
    named: list[str] = []
    others: list[str] = []
    for path in paths:
        try:
            name = peek_graph_name(path)
        except PrecisionToolError:
            name = None  # reading it whole will say why
        (named if name is None or is_named_by([name], model_name) else others).append(path)
    skims = _skim_all(named, rejected, store)
    if any(is_named_by(skim.graph_names, model_name) for skim in skims):
        rejected += [(path, Message("note.data.graph.other_name")) for path in others]  # and need not be read
    else:
        skims += _skim_all(others, rejected, store)
    return skims


def _skim_all(paths: Iterable[str], rejected: list[tuple[str, Message]], store: GraphStore) -> list[GraphSkim]:
    """Return an overview of each file; those that cannot be read are added to `rejected`."""
    skims = []
    listed = list(paths)
    for path in listed:
        try:
            if len(listed) == 1:
                store.load(path)  # it will be needed, and then need not be skimmed
            skims.append(store.skim(path))
        except PrecisionToolError as error:
            rejected.append((path, error.full_message))
    return skims


def choose_graph(paths: Iterable[str], leaf: DumpLeaf, store: GraphStore) -> GraphChoice:
    """Return the graph that fits a dump: named like its model folder, with a data source, naming most of its ops.

    Parameters
    ----------
    paths : iterable of str
        The candidates, graph files of any run.
    leaf : DumpLeaf
        The dump files of one device, model and step.
    store : GraphStore
        Reads the files, each once.

    Raises
    ------
    UnreadGraphError
        No readable candidate fits, but one that cannot be read might.
    DataNotFoundError
        No candidate fits.
    """
    rejected: list[tuple[str, Message]] = []
    skims = _skim_likely(paths, leaf.model_name, rejected, store)
    if not skims:
        error = UnreadGraphError if rejected else DataNotFoundError
        raise error("data.no_usable_graph", reasons=[message for _, message in rejected[:3]])
    by_name = [skim for skim in skims if is_named_by(skim.graph_names, leaf.model_name)]
    # Any file that cannot be read may have been the dump's own graph, as long as no other has its name.
    unread = [] if by_name else list(rejected)
    pool = by_name or skims
    candidates = [skim for skim in pool if skim.data_source_types] or pool
    best = _naming_most(candidates, leaf, store, rejected, unread)
    total = len(dumped_ops(leaf))
    if best is None:
        raise UnreadGraphError("data.damaged_graph", reason=unread[-1][1])
    matched, skim, file = best
    for other in skims:
        if other not in candidates:
            is_named_otherwise = by_name and other not in by_name
            kind = "note.data.graph.other_name" if is_named_otherwise else "note.data.graph.no_source"
            rejected.append((other.path, Message(kind)))
    if matched < ENOUGH * total and not by_name:
        if unread:
            raise UnreadGraphError("data.no_readable_graph_fits", damage=_damage(unread), matched=matched, total=total)
        several = len(skims) if len(skims) > 1 else None
        raise DataNotFoundError("data.no_graph_fits", graphs=several, path=skim.path, matched=matched, total=total)
    model = leaf.model_name if by_name else None
    reason = Message("note.data.graph.fits", model=model, sources=skim.data_source_types, matched=matched, total=total)
    return GraphChoice(
        file=file,
        reason=reason,
        matched=matched,
        total=total,
        rejected=tuple(rejected),
        doubt=_doubt(unread, skim.path),
    )


def choose_by_device(paths: Sequence[str], leaf: DumpLeaf, store: GraphStore) -> GraphChoice:
    """Return the graph that fits a dump among those of its own device; else one of no device, else of another device.

    Every rank is compiled by itself: a graph of another rank may fit as well, and say other attributes of an op.
    The errors are those of `choose_graph`.
    """
    owners = {path: _owner(path) for path in paths}
    own = [path for path in paths if leaf.device and owners[path] == leaf.device]
    shared = [path for path in paths if owners[path] == ""]
    others = [path for path in paths if path not in own and path not in shared]
    for group in (own, shared):
        if group and others:
            with suppress(DataNotFoundError):
                choice = choose_graph(group, leaf, store)
                left_out = tuple((path, Message("note.data.graph.of_device", device=owners[path])) for path in others)
                return _unless_disputed(replace(choice, rejected=(*choice.rejected, *left_out)), group)
    choice = choose_graph(paths, leaf, store)
    owner = owners[choice.file.path]
    if not leaf.device or owner in ("", leaf.device):
        return _unless_disputed(choice, shared)
    borrowed = Message("note.data.graph.borrowed", device=leaf.device, other=owner, path=choice.file.path)
    return replace(choice, is_borrowed=True, doubt=choice.doubt or borrowed)


def _owner(path: str) -> str:
    """Return the device whose process left a graph, by the folders above it; "" where they do not name one."""
    for name in reversed(path.split("/")[:-1]):
        match = _PROCESS.fullmatch(name)
        if match is not None:
            return match["device"] or match["alone"] or ""
    return ""


def _unless_disputed(choice: GraphChoice, paths: Sequence[str]) -> GraphChoice:
    """Return a choice; as borrowed where another process left another graph of the same name, and none a device's."""
    folder, name = posixpath.split(choice.file.path)
    if _owner(choice.file.path) or not _PROCESS.fullmatch(posixpath.basename(folder)):
        return choice
    twins = [path for path in paths if posixpath.basename(path) == name and posixpath.dirname(path) != folder]
    other = next((path for path in twins if not _has_same_bytes(path, choice.file.path)), None)
    if other is None:
        return choice
    disputed = Message("note.data.graph.disputed", path=choice.file.path, other=other)
    return replace(choice, is_borrowed=True, doubt=choice.doubt or disputed)


def _has_same_bytes(path: str, other: str) -> bool:
    if size_of(path) != size_of(other):
        return False
    own, its = (_digest(each, content_signature_of(each)) for each in (path, other))
    return bool(own) and own == its


@lru_cache(maxsize=1 << 16)
def _digest(path: str, _signature: ContentSignature) -> bytes:
    """Return the hash of a file, b"" of one that cannot be read; read once, as every leaf asks for those of all."""
    with suppress(PrecisionToolError):
        return sha256(read_bytes(path)).digest()
    return b""


def _naming_most(
    candidates: Iterable[GraphSkim],
    leaf: DumpLeaf,
    store: GraphStore,
    rejected: list[tuple[str, Message]],
    unread: list[tuple[str, Message]],
) -> tuple[int, GraphSkim, GraphFile] | None:
    """The graph that names most of the dumped ops, and how many; the others are added to those `rejected`."""
    best: tuple[int, GraphSkim, GraphFile] | None = None
    for skim in sorted(candidates, key=lambda skim: -skim.op_count):
        if best is not None and best[0] >= skim.op_count:
            rejected.append((skim.path, Message("note.data.graph.fewer_ops", ops=skim.op_count)))
            continue
        try:
            file = of_model(store.load(skim.path), leaf)
        except PrecisionToolError as error:
            unread.append((skim.path, error.full_message))
            rejected.append(unread[-1])
            continue
        count = matched_ops(file, leaf)
        if best is None or count > best[0]:
            if best is not None:
                rejected.append((best[1].path, Message("note.data.graph.names_fewer", matched=best[0])))
            best = (count, skim, file)
        else:
            rejected.append((skim.path, Message("note.data.graph.names_fewer", matched=count)))
    return best


def _damage(unread: Sequence[tuple[str, Message]]) -> Message:
    """Return which files cannot be read and why; `graphs` shows the whole errors."""
    return Message("note.data.graph.unread", reason=_in_short(unread[0][1]), more=len(unread) - 1 or None)


def _in_short(reason: Message) -> Message:
    """Return what is wrong with a graph without the blocks that were open there."""
    fields = {
        name: _in_short(value) if isinstance(value, Message) else value
        for name, value in reason.fields.items()
        if name != "blocks"
    }
    return Message(reason.kind, **fields)


def _doubt(unread: Sequence[tuple[str, Message]], used: str) -> Message | None:
    return Message("note.data.graph.doubt", damage=_damage(unread), path=used) if unread else None


def choose_without_dump(paths: Iterable[str], store: GraphStore) -> GraphChoice:
    """The candidate with a data source and most ops, where no dump tells more.

    DataNotFoundError says why when none can be read.
    """
    rejected: list[tuple[str, Message]] = []
    skims = _skim_all(paths, rejected, store)
    unread = list(rejected)
    skims.sort(key=lambda skim: (not skim.data_source_types, -skim.op_count))
    for position, skim in enumerate(skims):
        try:
            file = store.load(skim.path)
        except PrecisionToolError as error:
            rejected.append((skim.path, error.full_message))
            continue
        for other in skims[position + 1 :]:
            smaller = Message("note.data.graph.fewer_ops", ops=other.op_count)
            without = skim.data_source_types and not other.data_source_types
            rejected.append((other.path, Message("note.data.graph.no_source") if without else smaller))
        reason = Message("note.data.graph.most_ops", sources=skim.data_source_types, ops=skim.op_count)
        return GraphChoice(file=file, reason=reason, rejected=tuple(rejected), doubt=_doubt(unread, skim.path))
    raise DataNotFoundError("data.no_usable_graph_of_run", reasons=[message for _, message in rejected[:3]])


def _is_of_other_run(path: str, leaf: DumpLeaf) -> bool:
    """True for a graph that lies in the `graph` folder beside the dumps of another run."""
    own = graph_folders(leaf.path)
    for folder in PurePath(posixpath.abspath(path)).parents:
        if folder.name == "graph" and folder_exists(folder.parent / "dump"):
            return str(folder) not in own
    return False


def is_what_ran(path: str) -> bool:
    """False for a graph whose name says that it is of an earlier stage of the compiler."""
    name = posixpath.basename(path)
    return names.is_build_graph(name) or not names.is_graph_file(name)


def load_chosen(path: str, leaf: DumpLeaf, models: Collection[str], store: GraphStore) -> GraphChoice | Message:
    """The graph a user prefers, as the graph of a leaf of one of the run's `models`, or why it is not one."""
    if not is_what_ran(path):
        return Message("note.data.graph.chosen_other_stage")
    if _is_of_other_run(path, leaf):
        return Message("note.data.graph.chosen_other_run")
    choice = load_choice(path, leaf, CHOSEN, store)
    called = [graph.name for graph in choice.file.graphs[:1]]
    if not is_named_by(called, leaf.model_name) and any(is_named_by(called, model) for model in models):
        return Message("note.data.graph.chosen_other_model")
    if choice.matched < ENOUGH * choice.total:
        return Message("note.data.graph.chosen_misfit", matched=choice.matched, total=choice.total)
    return choice


@dataclass(frozen=True, kw_only=True)
class GraphChooser:
    """The graph of each dump folder, chosen once: a choice holds until something that it was made from changes.

    `extra_folders` may hold graphs too, `chosen` is a file to prefer to all others where it is a graph of the dump.
    """

    store: GraphStore = field(default_factory=GraphStore)
    extra_folders: tuple[str, ...] = ()
    chosen: str | None = None
    #: What was chosen, for which leaf, and what the choice was made from.
    choices: dict[tuple[object, ...], tuple[DumpLeaf, GraphChoice, Stamps]] = field(default_factory=dict, repr=False)

    def of(
        self, leaf: DumpLeaf, graph: str | None = None, models: Collection[str] = (), *, prefers_chosen: bool = True
    ) -> GraphChoice:
        """The graph of a leaf: the one asked for (a file, or a folder to choose from), or the one that fits.

        The one that was chosen is not taken where it is of another of the run's `models`. DataNotFoundError where
        there is none.
        """
        chosen = self.chosen if prefers_chosen else None
        key = (leaf.path, graph, chosen, self.extra_folders, frozenset(models))
        cached = self.choices.get(key)
        if cached is not None and cached[0] == leaf and cached[2].are_current():
            return cached[1]
        stamps = Stamps()
        choice = self._find(leaf, graph, chosen, models, stamps)
        signature = self.store.signature(choice.file.path)
        if signature is not None:
            stamps.note_read(choice.file.path, signature)
        self.choices[key] = (leaf, choice, stamps)
        return choice

    def _find(
        self, leaf: DumpLeaf, graph: str | None, chosen: str | None, models: Collection[str], stamps: Stamps
    ) -> GraphChoice:
        """The graph of a leaf; `stamps` notes what there could be one in."""
        for path in filter(None, (graph, chosen)):
            stamps.note(path)
        if graph is not None and not is_folder(graph):
            return load_choice(graph, leaf, NAMED, self.store)
        if leaf.graph:
            return load_choice(leaf.graph, leaf, OF_DUMP, self.store)
        refused: tuple[tuple[str, Message], ...] = ()
        if graph is None and chosen is not None:
            choice = load_chosen(chosen, leaf, models, self.store)
            if not isinstance(choice, Message):
                return choice
            refused = ((chosen, choice),)
        folders = [graph] if graph is not None else graph_folders(leaf.path, stamps)
        # GE leaves graphs in the folder training was started in: only there, not below, lie this run's.
        paths = find_graph_files(folders, stamps=stamps)
        paths = paths or find_graph_files((), () if graph is not None else self.extra_folders, stamps=stamps)
        if not paths:
            kind = GE if graph is not None else device_kind(leaf.path)
            raise nothing_below(kind.no_graph(leaf.path, folders), *folders)
        choice = choose_by_device(paths, leaf, self.store)
        return replace(choice, rejected=(*refused, *choice.rejected))


# --- the graph that a user chose for a data folder ---


FILE_NAME = "graph_choice.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The path of the graph file; None: the one that fits is taken."""

    path: str | None


def read(folders: Iterable[Path], root: Path) -> Choice:
    """The choice remembered in the first of `folders` that has one; what cannot be understood is none.

    A path that is not absolute is one below the data folder `root`.
    """
    for folder in folders:
        document = read_small_json(str(folder / FILE_NAME))
        path = document.get("graph") if isinstance(document, dict) else None
        if isinstance(path, str) and path and could_be_path(path):
            return Choice(path=posixpath.normpath(posixpath.join(posixpath.abspath(root), path)))
    return Choice(path=None)


def write(choice: Choice, workspace: Workspace) -> None:
    """Remembers the choice; OutputError if that cannot be."""
    if choice.path is None:
        for folder in workspace.result_dirs():
            _remove(folder / FILE_NAME)
        return
    path = path_below(choice.path, posixpath.abspath(workspace.root))  # holds wherever the data folder is moved to
    file_path = workspace.output_dir() / FILE_NAME
    try:
        with atomic_text(str(file_path)) as file:
            json.dump({"graph": path}, file)
    except OutputError as error:
        raise OutputError.of(file_path, "data.choice_not_stored", reason=str(error.__cause__)) from error


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError.of(path, "data.choice_not_removed", reason=error.strerror) from error
