"""One data folder as it is read: what was found is kept, and read again only where it changed."""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from precision_tool.lib.compare.cosines import Cosines, ResultCosines, result_cosines
from precision_tool.lib.compare.result_source import source_path
from precision_tool.lib.data.op_pairs import OpPairs
from precision_tool.lib.data.sides import (
    benchmark_folder,
    default_npu,
    has_dump_alone,
    kind_of,
    pytorch_files,
)
from precision_tool.lib.errors import DataNotFoundError, FormatError, PrecisionToolError
from precision_tool.lib.graph import catalog
from precision_tool.lib.graph import chosen as graph_choice
from precision_tool.lib.graph.cache import GraphStore
from precision_tool.lib.graph.catalog import MissingGraph, RunFolder, RunGraph, RunGraphs
from precision_tool.lib.graph.choice import GraphChoice, GraphChooser, find_graph_files
from precision_tool.lib.graph.chosen import Choice
from precision_tool.lib.graph.lookup import FoundOp
from precision_tool.lib.io.cache import CacheFiles
from precision_tool.lib.io.files import exists, signature_of
from precision_tool.lib.model.comparison import Pair
from precision_tool.lib.model.run import DumpLeaf, Run
from precision_tool.lib.pairing.listing import find_ops
from precision_tool.lib.results.result_files import newest_results
from precision_tool.lib.sources import walk
from precision_tool.lib.sources.dumps import GoldenFiles
from precision_tool.lib.sources.h5_files import pair_h5_files
from precision_tool.lib.sources.inputs import Inputs, find_golden, find_inputs
from precision_tool.lib.sources.kind import DataKind
from precision_tool.lib.sources.walk import Stamps
from precision_tool.lib.workspace import Workspace, check_data, shown_path

if TYPE_CHECKING:  # `ls`, `graphs` and the prompt begin without them
    from precision_tool.lib.formats.fusion_result import GraphPasses
    from precision_tool.lib.pairing.pytorch_ops import H5Data, H5Hit

T = TypeVar("T")
P = ParamSpec("P")

#: Leaves whose matching is kept.
_OP_PAIRS = 4


class Kept(StrEnum):
    """What a data folder keeps; each can be forgotten alone."""

    RUNS = "run"
    GRAPHS = "graphs"
    FUSION = "fusion reports"
    BENCHMARK = "golden"
    PYTORCH = "pytorch"
    CHOICE = "choice"
    RESULTS = "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The one step of one rank that a data folder is looked at for: its dump folders, and its benchmark ("": none)."""

    leaves: tuple[str, ...]
    golden: str = ""
    #: Of each leaf what changes when its dump, and its benchmark, do; of the same place these may change.
    prints: Mapping[str, tuple[str, str]] = field(default_factory=dict, compare=False)


def alone(method: Callable[Concatenate[DataFolder, P], T]) -> Callable[Concatenate[DataFolder, P], T]:
    """One thread at a time in these methods: Tab completes in a thread of its own, while a command may begin."""

    @wraps(method)
    def alone(self: DataFolder, /, *args: P.args, **options: P.kwargs) -> T:
        with self._lock:
            return method(self, *args, **options)

    return alone


class DataFolder:
    """A data folder. Nothing is read before it is asked for."""

    def __init__(self, workspace: Workspace, place: Place | None = None) -> None:
        self.workspace = workspace
        self._place = place
        self._cache = CacheFiles(workspace.cache_dirs)
        self.store = GraphStore(self._cache)
        self._kept: dict[tuple[Kept, *tuple[object, ...]], tuple[Any, Stamps]] = {}
        self._choices: dict[tuple[object, ...], tuple[DumpLeaf, GraphChoice, Stamps]] = {}
        self._op_pairs: dict[tuple[str, str], OpPairs] = {}
        self._cosines: tuple[object, ResultCosines] = (None, ResultCosines(()))
        #: The graph that `use_graph` chose; None: not looked up yet.
        self._choice: Choice | None = None
        self._lock = threading.RLock()

    @alone
    def refresh(self, *what: Kept) -> None:
        """Forgets what was read of these kinds, of all without any."""
        kinds = set(what or Kept)
        self._kept = {key: kept for key, kept in self._kept.items() if key[0] not in kinds}
        if Kept.GRAPHS in kinds:
            self.store.forget()
            self._choices.clear()
        if kinds & {Kept.RUNS, Kept.GRAPHS, Kept.BENCHMARK}:
            self._op_pairs.clear()
        if Kept.RESULTS in kinds:
            self._cosines = (None, ResultCosines(()))
        if Kept.CHOICE in kinds:
            self._choice = None

    def check_data(self) -> None:
        """Raises DataNotFoundError where there is no data folder."""
        check_data(self.workspace.root)

    def default_npu(self) -> str:
        """The dump of the NPU run under test."""
        return default_npu(self.workspace)

    def pytorch_files(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The `.h5` files of the NPU and of the benchmark, by name only."""
        return pytorch_files(self.workspace)

    def kind(self) -> DataKind:
        """What kind of data the folder holds of the NPU."""
        return kind_of(self.workspace)

    def has_dump_alone(self) -> bool:
        """Whether there is an NPU dump, nothing to compare it with, and no earlier result."""
        return has_dump_alone(self.workspace)

    def _keep(self, key: tuple[Kept, *tuple[object, ...]], read: Callable[[Stamps], T]) -> T:
        """What `read` gives, read again only when a folder or file that it noted has changed."""
        known = self._kept.get(key)
        if known is not None and known[1].are_current():
            value: T = known[0]
            return value
        stamps = Stamps()
        value = read(stamps)
        self._kept[key] = (value, stamps)
        return value

    def _run(self, number: int) -> Run | None:
        """What NPU run `number` dumped; None if nothing."""

        def read(stamps: Stamps) -> Run | None:
            try:
                if self._place is not None and number == 0:
                    runs = [self.run_at(leaf, stamps) for leaf in self._place.leaves]
                    return Run(root=runs[0].root, leaves=tuple(leaf for run in runs for leaf in run.leaves))
                return self.run_at(str(self.workspace.dump_dir(number)), stamps)
            except DataNotFoundError:
                return None  # `vc` says why
            except PrecisionToolError as error:
                self.workspace.notes.append(f"{error.message}; the run is taken for one without a dump")
                return None

        return self._keep((Kept.RUNS, number), read)

    def _found(self, kind: Kept, path: str, find: Callable[[str, Stamps], T], noted_in: Stamps | None) -> T:
        """What `find` finds below a folder, or its error; found once. `noted_in` notes what that depends on."""

        def read(stamps: Stamps) -> T | PrecisionToolError:
            stamps.note(path)
            try:
                return find(path, stamps)
            except PrecisionToolError as error:
                return error

        key = (kind, posixpath.abspath(path))
        value = self._keep(key, read)
        if isinstance(value, PrecisionToolError) and path not in value.message:  # it was spelled in another way
            return find(path, Stamps())
        if noted_in is not None:
            noted_in.update(self._kept[key][1])
        if isinstance(value, PrecisionToolError):
            raise value.with_traceback(None)
        return value

    @alone
    def run_at(self, path: str, noted_in: Stamps | None = None) -> Run:
        """The NPU run below a folder, as `walk.find_run` finds it."""
        return self._found(Kept.RUNS, path, walk.find_run, noted_in)

    def leaves_at(self, path: str) -> tuple[DumpLeaf, ...]:
        """The dumps of ops below a folder, newest time only; () if there are none, or they cannot be listed."""
        try:
            return self.run_at(path).leaves
        except PrecisionToolError:
            return ()

    @alone
    def golden_at(self, path: str, noted_in: Stamps | None = None) -> GoldenFiles | Run:
        """The benchmark tensors, or the other NPU run, below a folder, as `inputs.find_golden` finds them."""
        found = self._found(Kept.BENCHMARK, path, find_golden, noted_in)
        if isinstance(found, GoldenFiles):
            found.forget_changed()
        return found

    def inputs(self, npu: str, golden: str) -> Inputs:
        """What a comparison of two folders reads, found but not opened."""
        return find_inputs(npu, golden, run_at=self.run_at, golden_at=self.golden_at)

    def graph_chooser(self, graph: str | None = None) -> GraphChooser:
        """What chooses the graph of a dump, the one that the user chose first; `graph` was asked for instead."""
        chosen = self.chosen_graph() if graph is None else None
        return GraphChooser(store=self.store, extra_folders=(".",), chosen=chosen, kept=self._choices)

    @alone
    def run_folders(self) -> tuple[RunFolder, ...]:
        """Every NPU run of the data folder."""
        return tuple(
            RunFolder(number=number, graph_folder=str(self.workspace.graph_dir(number)), run=self._run(number))
            for number in self.workspace.debug_numbers()
        )

    def run_graphs(self, graph: str | None = None) -> tuple[RunGraph, ...]:
        """The graph of every dumped model of every NPU run; `graph` (a file or a folder) is used instead of those.

        Raises DataNotFoundError when there is none, FormatError when the one asked for is damaged.
        """
        return self._graphs(graph).runs

    def missing_graphs(self, graph: str | None = None) -> tuple[MissingGraph, ...]:
        """The dumped models that have no graph, with the reason: none, or none that can be read or fits."""
        return self._graphs(graph).missing

    def graph_reasons(self) -> tuple[str, ...]:
        """Why dumped models have no graph, for an error: the notes that say so are taken back."""
        reasons = self._graphs(None).lost
        self.workspace.notes[:] = [note for note in self.workspace.notes if note not in reasons]
        return reasons

    @alone
    def _graphs(self, graph: str | None) -> RunGraphs:
        folders = self.run_folders()
        chooser = self.graph_chooser(graph)
        chosen = chooser.chosen

        def read(stamps: Stamps) -> RunGraphs:
            for folder in folders:
                stamps.update(self._kept[Kept.RUNS, folder.number][1])
                stamps.note(folder.graph_folder)
            find_graph_files([folder.graph_folder for folder in folders], (".",), stamps=stamps)
            if graph is not None:
                stamps.note(graph)
                find_graph_files([graph], stamps=stamps)
            root = shown_path(str(self.workspace.root))
            try:
                with way_back_from(chosen):
                    found = catalog.find_run_graphs(folders, chooser, root=root, graph=graph)
            except DataNotFoundError:
                check_data(self.workspace.root)  # a mistyped folder is the better reason
                if graph is None and not kind_of(self.workspace).has_graph:
                    raise DataNotFoundError(
                        f"{root}: no graph: its dumps are PyTorch's, which have none",
                        "ls, ni, pt, cp, vc and ac work without one",
                    ) from None
                raise
            for run in found.runs:
                signature = self.store.signature(run.file.path)
                if signature is not None:
                    stamps.note_read(run.file.path, signature)
            self.workspace.notes += [note for note in found.notes if note not in self.workspace.notes]
            return found

        return self._keep((Kept.GRAPHS, graph, chosen, tuple(folder.number for folder in folders)), read)

    @alone
    def fusion_reports(self) -> tuple[GraphPasses, ...]:
        """What the `fusion_result.json` files say; one that cannot be read gives a note."""
        from precision_tool.lib.formats.fusion_result import read_fusion_result

        paths = [str(path) for path in self.workspace.fusion_result_files()]

        def read(stamps: Stamps) -> tuple[GraphPasses, ...]:
            found: list[GraphPasses] = []
            for path in paths:
                stamps.note(path)
                try:
                    found += read_fusion_result(path)
                except PrecisionToolError as error:
                    self.workspace.notes.append(error.advice)
            return tuple(found)

        return self._keep((Kept.FUSION, *paths), read)

    def find_ops(self, name: str, graph: str | None = None) -> tuple[FoundOp, ...]:
        """The op of this name, part of a name or number, as `[17]`, in every graph (see `listing.find_ops`)."""
        return find_ops(self.run_graphs(graph), name)

    @alone
    def pairs_of(self, found: FoundOp, *, looks_again: bool = True) -> tuple[Pair, ...]:
        """Every input and output of the op's dump with its benchmark tensor, as `vc` pairs them; () without a dump.

        Only the files of the op, and of its benchmark tensors, are opened. Each call looks at all that were opened
        before whether they changed: for many ops in a row do so (`looks_again`) with the first only.
        """
        run = found.run
        if run.leaf is None:
            return ()
        golden = self.golden_of(run.number)
        key = (run.leaf.path, run.file.path)
        matcher = self._op_pairs.get(key)
        if matcher is None or not matcher.is_for(run, golden):
            while len(self._op_pairs) >= _OP_PAIRS:
                del self._op_pairs[next(iter(self._op_pairs))]
            all_of_run = self._run(run.number) if run.number is not None else None
            matcher = self._op_pairs[key] = OpPairs(
                run, golden, all_of_run.leaves if all_of_run else run.leaves, self.run_graphs
            )
        return matcher.pairs_of(found, looks_again)

    def golden_of(self, number: int | None) -> GoldenFiles | Run | None:
        """What run `number` is compared with: the benchmark's files, for run 0 else run 1; None if there is nothing."""
        folders = [str(self.workspace.tf_dump_dir), str(self.workspace.tf_debug_dir), str(self.workspace.dump_dir(1))]

        def read(stamps: Stamps) -> GoldenFiles | Run | None:
            for folder in folders:
                stamps.note(folder)
            if number is None:
                return None
            if self._place is not None and number == 0:
                return self.golden_at(self._place.golden, stamps) if self._place.golden else None
            benchmark = benchmark_folder(self.workspace, stamps)
            if benchmark is None and number != 0:
                return None
            with suppress(PrecisionToolError):  # `vc` says what is wrong with it
                return self.golden_at(str(benchmark or folders[-1]), stamps)
            return None

        return self._keep((Kept.BENCHMARK, number is None, number == 0), read)

    @alone
    def pytorch(self) -> H5Data | None:
        """The PyTorch dumps of the data folder; None if there is none. FormatError if none can be read."""
        npu, golden = pytorch_files(self.workspace)
        if not npu and not golden:
            return None
        from precision_tool.lib.pairing.pytorch_ops import load_h5_data

        def read(stamps: Stamps) -> H5Data:
            for path in (*npu, *golden):
                stamps.note(path)
            pairs: tuple[tuple[str, str], ...] = ()
            if npu and golden:
                found, _ = pair_h5_files(str(self.workspace.pt_npu_dir), str(self.workspace.pt_gpu_dir))
                pairs = tuple((one.npu, one.golden) for one in found)
            return load_h5_data(npu, golden, pairs)

        data = self._keep((Kept.PYTORCH, npu, golden), read)
        self.workspace.notes += [problem for problem in data.problems if problem not in self.workspace.notes]
        return data

    def find_h5(self, name: str, *, many: bool = False) -> tuple[H5Hit, ...]:
        """The ops and data sets of a name in the PyTorch dumps (see `compare.pytorch`).

        Those of the NPU, each with its counterpart; of the benchmark only if the NPU has none of the name. `FILE.h5`
        and `FILE.h5:/op/seq/…` name the file too.
        """
        from precision_tool.lib.pairing.pytorch_ops import find_by_name

        npu, golden = pytorch_files(self.workspace)
        return find_by_name(name, (*npu, *golden), self.pytorch, many=many)

    def is_pytorch_name(self, name: str) -> bool:
        """Whether a name is one of a PyTorch dump: of a `.h5` file, or of an op where the folder has such dumps."""
        from precision_tool.lib.pairing.pytorch_ops import is_own_name, parse_h5_name

        asked = parse_h5_name(name)
        if asked is not None and asked.file:
            return True
        if exists(name) or not any(self.pytorch_files()):
            return False
        if not self.kind().has_graph:
            return True
        try:
            return is_own_name(name) and bool(self.find_h5(name, many=True))
        except PrecisionToolError:
            return False

    @alone
    def chosen_graph(self) -> str | None:
        """The graph file that `use_graph` chose, now or in an earlier session; one that is gone is told of once."""
        if self._choice is None:
            self._choice = graph_choice.read(self.workspace.result_dirs(), self.workspace.root)
        path = self._choice.path
        if path is not None and not exists(path):
            self.workspace.notes.append(
                f"the graph chosen with graphs --use is gone, so one is chosen automatically: {path}"
            )
            self._choice = Choice(path=None)
            return None
        return path

    @alone
    def use_graph(self, path: str | None) -> None:
        """Uses this graph file from now on where no other is asked for; None: the one that fits, as at first.

        The choice is remembered for the data folder. Raises the reader's errors for a file that is no graph, UsageError
        for one that does not fit the dump, and OutputError where the choice cannot be remembered; it holds for this
        session all the same.
        """
        if path is not None:
            catalog.check_choice(path, self.run_folders(), self.store)
        self._choice = Choice(path=None if path is None else posixpath.abspath(path))
        graph_choice.write(self._choice, self.workspace)

    @alone
    def cosines(self, run: RunGraph | None = None) -> Mapping[str, float]:
        """Op name → the lowest cosine of its outputs in the newest result, NaN lowest of all; {} without a result.

        Names are found with `/` and with `_`. With `run` only what is of its dump; why there is nothing of any run is
        a note.
        """
        try:
            paths = newest_results(self.workspace)
            key = tuple((path, signature_of(path), signature_of(source_path(path))) for path in paths)
            if self._cosines[0] != key:
                self._cosines = (key, result_cosines(paths, self._cache))
        except PrecisionToolError:
            return {}  # `vcs` says what is wrong
        found = self._cosines[1]
        if run is None:
            return found.whole
        cosines, reason = found.of_run(run, self._others(run))
        if reason and reason not in self.workspace.notes:
            self.workspace.notes.append(reason)
        return cosines

    def scalars(self, run: RunGraph) -> Mapping[str, tuple[float, float]]:
        """Flattened op name → both sides' values, of ops of a run that put out single numbers, in the newest result."""
        found = self.cosines(run)
        return found.scalars if isinstance(found, Cosines) else {}

    def _others(self, run: RunGraph) -> list[RunGraph]:
        """The graphs in use of other dumps than `run` has; none for a graph that was only named."""
        if run.number is None:
            return []

        def place(one: RunGraph) -> tuple[int | None, str]:
            return one.number, one.leaf.path if one.leaf is not None else ""

        with suppress(PrecisionToolError):  # -g names one where no other is found
            return [other for other in self.run_graphs() if place(other) != place(run)]
        return []


@contextmanager
def way_back_from(chosen: str | None) -> Iterator[None]:
    """Errors about the graph that was chosen say how to be rid of it."""
    try:
        yield
    except (DataNotFoundError, FormatError) as error:
        if chosen is None or chosen not in error.message:
            raise
        raise type(error)(
            error.message, "it was chosen with graphs --use: `graphs --use auto` chooses automatically again"
        ) from error
