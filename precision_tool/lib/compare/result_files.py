"""Where result files are, which of them are the newest, what they were made of, and the cosines in them."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isnan
from pathlib import Path, PurePath

from precision_tool.lib.compare.element_errors import write_detail
from precision_tool.lib.compare.folders import CompareOptions, LeafResult
from precision_tool.lib.compare.result_csv import OutputFigures, read_output_figures, write_mapping, write_result
from precision_tool.lib.data.dump_names import flatten
from precision_tool.lib.data.dump_tree import list_folders
from precision_tool.lib.data.graph_catalog import RunGraph, where_of
from precision_tool.lib.data.pair_selection import OpNames
from precision_tool.lib.data.workspace import Workspace, check_data, lies_in, typed_path
from precision_tool.lib.io.cache import CacheFiles
from precision_tool.lib.io.files import (
    atomic_text,
    could_be_path,
    exists,
    is_folder,
    open_text,
    read_small_json,
    real_path,
    signature_of,
)
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, OutputError, PrecisionToolError
from precision_tool.lib.model.run import DumpLeaf
from precision_tool.lib.model.table import Row

#: Characters that a header has at most; one of many custom metrics may be longer, its Address columns stand before.
_MAX_HEADER = 4096

#: What the names of results that do not stand for a whole run begin with: they are not taken for the newest result.
PARTIAL_PREFIX, OPS_PREFIX, PART_PREFIX = "partial_", "single_op_", "part_"
#: The toolkit's result beside ours, of what ours could not read.
TOOLKIT_PREFIX = "toolkit_"
#: What `fusion blame` compared to judge fusion passes.
BLAME_PREFIX = "blame_"
#: The result of a run that is compared beside the one under test: its number follows.
RUN_PREFIX = "debug_"
_SET_APART = (PARTIAL_PREFIX, OPS_PREFIX, PART_PREFIX, TOOLKIT_PREFIX, BLAME_PREFIX, RUN_PREFIX)
#: What is said of such a result when it is read.
_PARTS = {
    PARTIAL_PREFIX: Message("note.compare.part.stopped"),
    OPS_PREFIX: Message("note.compare.part.ops"),
    PART_PREFIX: Message("note.compare.part.selected"),
}


def find_results(folder: str) -> list[str]:
    """Return the result files of the newest comparison below `folder` (`vector_compare`), by name."""
    if not is_folder(folder):
        if not exists(folder):
            raise DataNotFoundError.of(folder, "compare.no_result_file")
        return [folder]
    by_folder: dict[str, list[str]] = {}
    for below, names in list_folders(folder, unread=[]):
        results = [name for name in names if _is_result(name)]
        if results:
            by_folder[below] = sorted(results)
    if not by_folder:
        raise DataNotFoundError.of(folder, "compare.no_result_below")
    newest = max(by_folder, key=lambda below: (max(_result_time(name) for name in by_folder[below]), below))
    return [posixpath.join(newest, name) for name in by_folder[newest]]


def named_result(space: Workspace, name: str) -> str:
    """Return the file or folder of this name: here, else of the newest comparison below `vector_compare`."""
    if posixpath.lexists(name) or posixpath.isabs(name) or ".." in Path(name).parts or "\0" in name:
        return name
    folders = space.compare_dirs()
    endings = ("", ".csv")
    candidates = (
        str(place / (name + ending)) for folder in folders for place in (folder, folder.parent) for ending in endings
    )
    return next((path for path in candidates if exists(path)), name)


def is_of_two_runs(path: str) -> bool:
    """Return whether a result file compares two NPU runs, where both sides have addresses; False for other files."""
    try:
        with open_text(path, "utf-8-sig", "backslashreplace") as file:
            return file.readline(_MAX_HEADER).rstrip("\r\n").split(",").count("Address") > 1
    except PrecisionToolError:
        return False  # whoever reads it says what is wrong


def _is_result(name: str) -> bool:
    """Not so the tables of the worst errors of one op, whose name may be anything."""
    return name.endswith(".csv") and "result_" in name and not name.startswith(".") and not name.endswith("_topn.csv")


def _result_time(name: str) -> str:
    return name.rsplit("result_", 1)[-1]


def newest_results(space: Workspace, *, notes_newer: bool = False) -> list[str]:
    """Return the complete result files of the newest comparison with the benchmark; without one, of two NPU runs.

    `notes_newer`: that a newer one is left out is a note.
    """
    check_data(space.root)
    folders = space.compare_dirs()
    if not folders:
        is_folder(space.root / "temp")  # says so where that cannot be told
        raise DataNotFoundError("compare.no_result_yet", folder=str(space.root))
    newest = next((paths_there for folder in folders if (paths_there := results_in(folder))), [])
    benchmarked = (
        paths_there for folder in folders if (paths_there := results_in(folder)) and not is_of_two_runs(paths_there[0])
    )
    paths = next(benchmarked, newest)
    if notes_newer and paths != newest:
        left_out = typed_path(posixpath.dirname(newest[0]))
        space.notes.append(Message("note.compare.newer_result", folder=left_out))
    if not paths:
        raise DataNotFoundError("compare.no_complete_result", folder=str(folders[0]))
    return paths


def results_in(folder: Path) -> list[str]:
    try:
        return [path for path in find_results(str(folder)) if not posixpath.basename(path).startswith(_SET_APART)]
    except DataNotFoundError:
        return []


def part_of(path: str) -> Message | None:
    """Return what is missing of a result by its name; None for a whole one."""
    name = posixpath.basename(path)
    return next((words for prefix, words in _PARTS.items() if name.startswith(prefix)), None)


# --- sources of result files ---


#: To be raised with every change of what is kept.
_VERSION = 1
#: Folders from the one that the training script was told down to one step.
_MAX_LEVELS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultSource:
    """Absolute paths of what was compared: the folder of the dump files, the other side, and the graph or ""."""

    npu: str
    golden: str
    graph: str = ""


def source_path(result: str) -> str:
    """Return the path of the file that keeps the source of a result file."""
    return f"{posixpath.splitext(result)[0]}.json"


def source_of(result: LeafResult) -> ResultSource:
    """Return the source of a fresh result."""
    graph = posixpath.abspath(result.graph.file.path) if result.graph is not None else ""
    return ResultSource(
        npu=posixpath.abspath(result.leaf.path), golden=posixpath.abspath(result.golden_root), graph=graph
    )


def write_source(result: str, source: ResultSource, root: str) -> None:
    """Keep the source of a result file; where that cannot be done the result does without.

    Of what lies in the data folder `root`, as the result does, the place is kept too as seen from the result: it holds
    wherever the data folder is moved to.
    """
    folder = posixpath.dirname(posixpath.abspath(result))
    places = {name: kept_place(getattr(source, name), folder, root) for name in ResultSource.__slots__}
    document = {"version": _VERSION, **places}
    with suppress(OutputError), atomic_text(source_path(result)) as file:
        file.write(json.dumps(document, indent=1) + "\n")


def kept_place(path: str, folder: str, root: str) -> dict[str, str]:
    """Return the form in which a file in `folder` keeps a path: within the data folder `root` a relative one too."""
    root = posixpath.abspath(root)
    is_inside = path and all(lies_in(place, root) for place in (path, folder))
    return {"path": path, "from_here": posixpath.relpath(path, folder) if is_inside else ""}


def read_source(result: str) -> ResultSource | None:
    """Return the source of a result file; None if nothing, or nothing sound, is known of it."""
    document = read_small_json(source_path(result))
    if not isinstance(document, dict) or document.get("version") != _VERSION:
        return None
    folder = posixpath.dirname(posixpath.abspath(result))
    npu, golden, graph = (placed(document.get(name), folder) for name in ("npu", "golden", "graph"))
    if not npu or not golden or graph is None:
        return None
    return ResultSource(npu=npu, golden=golden, graph=graph)


def newer_than(result: str, source: ResultSource) -> list[str]:
    """Return the parts of a result's source that changed after it was written, by the times of folders alone."""
    folders = [source.npu]
    for folder in list(PurePath(source.npu).parents)[:_MAX_LEVELS]:
        if PurePath(folders[-1]).name == "dump":
            break
        folders.append(str(folder))
    else:
        folders = folders[:1]  # a tree of another form: what lies above the files may be anything
    sides = ((folders[-1], folders), (source.golden, [source.golden]), (source.graph, [source.graph]))
    written = _modified(result)
    if not written:
        return []
    return [side for side, paths in sides if any(_modified(path) > written for path in paths)]


def _modified(path: str) -> int:
    """When a folder or file was changed (ns); 0 for what is not there."""
    signature = signature_of(path) if path else None
    return 0 if signature is None else signature[1]


def placed(place: object, folder: str) -> str | None:
    """Return the path of a place as seen from `folder`, if it is there, else as it was; None for what is no place."""
    if not isinstance(place, dict):
        return None
    path, from_here = place.get("path"), place.get("from_here")
    if not isinstance(path, str) or not isinstance(from_here, str) or not could_be_path(path + from_here):
        return None
    moved = posixpath.normpath(posixpath.join(folder, from_here)) if from_here else ""
    return moved if moved and exists(moved) else path


# --- cosines of the newest result ---


#: To be raised with every change of what is kept.
_FIGURES_VERSION = 2
#: A run with fewer of the ops of a result than this share is not what the result is of.
_MIN_SHARED_OPS_FRACTION = 0.5


class Cosines(Mapping[str, float]):
    """Op name → the lowest cosine of its outputs, NaN lowest of all; of one result file, or of several together.

    A name is also found where one side spells it with `/` and the other with `_`.

    Attributes
    ----------
    scalars : dict
        The values of both sides of ops that put out single numbers, by flattened name.
    source : ResultSource or None
        What the file is of, if it says so.
    """

    def __init__(
        self,
        values: Iterable[tuple[str, float]] = (),
        scalars: Iterable[tuple[str, tuple[float, float]]] = (),
        source: ResultSource | None = None,
    ) -> None:
        self._values: dict[str, float] = {}
        for name, cosine in values:
            previous = self._values.get(name, cosine)
            self._values[name] = previous if isnan(previous) or previous <= cosine else cosine
        self._flat = {flatten(name): value for name, value in self._values.items()}
        self.scalars = {flatten(name): pair for name, pair in scalars}
        self.source = source

    def __getitem__(self, name: str) -> float:
        cosine = self._values.get(name)
        return self._flat[flatten(name)] if cosine is None else cosine

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def together(files: Sequence[Cosines]) -> Cosines:
    """Return the cosines of some result files as one."""
    if len(files) == 1:
        return files[0]
    values = (item for file in files for item in file.items())
    scalars = (item for file in files for item in file.scalars.items())
    return Cosines(values, scalars)


def cosines_of_run(
    files: Sequence[Cosines], run: RunGraph, others: Sequence[RunGraph]
) -> tuple[Cosines, Message | None]:
    """Return the cosines of a run's dump, and, where no run has any, why. `others` are the other runs there are.

    Files that do not say what they are of, as the vendor's, count for the only run that has their ops.
    """
    runs = (run, *others)
    owners = [_owners(file, runs) for file in files]
    own = [file for file, owning in zip(files, owners, strict=True) if owning == [0]]
    if own:
        return together(own), None
    if any(len(owning) == 1 for owning in owners):  # it is of another run, which shows it
        return Cosines(), None
    return Cosines(), _why_nobodys(files, [[runs[at] for at in owning] for owning in owners])


def _owners(file: Cosines, runs: Sequence[RunGraph]) -> list[int]:
    """Return the places of the runs that a result file may be of."""
    if file.source is not None:
        return [at for at, run in enumerate(runs) if _is_of(file.source, run)][:1]
    if len(runs) == 1:
        return [0]
    names = set(map(flatten, file))
    shares = [len(names & {flatten(op.name) for op in run.file.ops}) for run in runs]
    return [at for at, share in enumerate(shares) if share and share >= _MIN_SHARED_OPS_FRACTION * len(names)]


def _is_of(source: ResultSource, run: RunGraph) -> bool:
    """Return whether the dump of the run was compared; without a dump, whether its graph was used."""
    paths = [leaf.path for leaf in run.leaves] or [run.file.path]
    compared = source.npu if run.leaves else source.graph
    return compared in paths or real_path(compared) in map(real_path, paths)


def _why_nobodys(files: Sequence[Cosines], owners: Sequence[Sequence[RunGraph]]) -> Message | None:
    for file, owning in zip(files, owners, strict=True):
        if file.source is not None:
            return Message("note.compare.no_cosines.other_dump", path=file.source.npu)
        if owning:
            runs = where_of(sorted(owning, key=lambda run: run.number or 0))
            return Message("note.compare.no_cosines.unnamed", runs=runs)
    return Message("note.compare.no_cosines.other_ops") if files else None


def cosines_of(tables: Iterable[Iterable[Row]]) -> Cosines:
    """Return the lowest cosine of the outputs of each op in some tables, rounded as result files have them."""
    return Cosines(
        (row.op_name, round(row.cosine, 6))
        for table in tables
        for row in table
        if row.slot.startswith("output") and row.cosine is not None
    )


def result_cosines(paths: Sequence[str], cache: CacheFiles) -> list[Cosines]:
    """Return the lowest cosine of the outputs of each op in each of some result files."""
    files = []
    for path in paths:
        figures = _of_file(path, cache)
        files.append(Cosines(figures.cosines.items(), figures.scalars.items(), read_source(path)))
    return files


def _of_file(path: str, cache: CacheFiles) -> OutputFigures:
    signature = signature_of(path)
    if signature is None:
        return read_output_figures(path)  # which says what is wrong
    payload = cache.read(path, signature, _FIGURES_VERSION)
    figures = None if payload is None else _decoded(payload)
    if figures is None:
        figures = read_output_figures(path)
        cache.write(path, signature, _FIGURES_VERSION, json.dumps(figures).encode())
    return figures


def _decoded(payload: bytes) -> OutputFigures | None:
    try:
        values, pairs = json.loads(payload)
    except (ValueError, TypeError, RecursionError):
        return None
    if not isinstance(values, dict) or any(type(value) is not float for value in values.values()):
        return None
    if not isinstance(pairs, dict):
        return None
    scalars = {name: tuple(pair) for name, pair in pairs.items() if isinstance(pair, list)}
    if len(scalars) < len(pairs) or any([*map(type, pair)] != [float, float] for pair in scalars.values()):
        return None
    return OutputFigures(values, scalars)


# --- writing ---


def write_results(
    space: Workspace, folder: Path, results: Sequence[LeafResult], prefix: str = "", pairs_only: bool = False
) -> list[str]:
    """Write the results; return the path of each one's file, empty for a result without rows, which gets none."""
    paths: list[str] = []
    kind = "mapping" if pairs_only else "result"
    try:
        for result in results:
            if not result.rows:
                paths.append("")
                continue
            name = stem = leaf_prefix(result.leaf, len(results))
            path = folder / f"{prefix}{name}{kind}_{folder.name}.csv"
            number = 1
            while str(path) in paths:  # the same model under two ids
                number += 1
                name = f"{stem}{number}_"
                path = folder / f"{prefix}{name}{kind}_{folder.name}.csv"
            if pairs_only:
                write_mapping(str(path), [row.pair for row in result.rows], sequence=result.choice.sequence)
            else:
                write_result(str(path), result.rows, result.choice)
                write_source(str(path), source_of(result), str(space.root))
            for detail in result.details:
                write_detail(str(folder), detail, name)
            paths.append(str(path))
    except OutputError:
        space.remove_empty(folder)
        raise
    return paths


def leaf_prefix(leaf: DumpLeaf, count: int) -> str:
    """Return what tells the result of a leaf from those of the others, of `count` in all, in its name."""
    parts = "_".join(filter(None, (leaf.device, leaf.model_name, leaf.step)))
    return f"{parts or 'dump'}_" if count > 1 else ""


def prefix_of(options: CompareOptions) -> str:
    """Return what the name of a result begins with: nothing where it is of every op, whole."""
    if options.prefix:
        return options.prefix
    if isinstance(options.selection, OpNames):
        return OPS_PREFIX
    return PART_PREFIX if options.selection is not None or options.limit else ""
