"""The pairs of single ops, matched as the comparison of all of them does."""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from precision_tool.lib.compare.result_files import (
    Cosines,
    cosines_of_run,
    newest_results,
    result_cosines,
    results_in,
    source_path,
    together,
)
from precision_tool.lib.data import graph_catalog as catalog
from precision_tool.lib.data import graph_choice
from precision_tool.lib.data.dump_names import flatten, op_number
from precision_tool.lib.data.dump_tree import Stamps
from precision_tool.lib.data.dumped_ops import BenchmarkSide, DumpIndex, GoldenDumps, GoldenFiles, NoBenchmark
from precision_tool.lib.data.graph_cache import GraphStore
from precision_tool.lib.data.graph_catalog import FoundOp, MissingGraph, RunFolder, RunGraph, RunGraphs
from precision_tool.lib.data.graph_choice import Choice, GraphChoice, GraphChooser, find_graph_files
from precision_tool.lib.data.graph_survey import FoundIn, GraphSurvey, search, survey
from precision_tool.lib.data.kinds import DataKind, pair_h5_files
from precision_tool.lib.data.matching import Counterpart, GraphMatcher, NameMatcher, same_name
from precision_tool.lib.data.origins import counterparts
from precision_tool.lib.data.pair_listing import find_ops
from precision_tool.lib.data.sides import (
    Inputs,
    benchmark_folder,
    default_golden,
    default_npu,
    find_golden,
    find_inputs,
    find_run,
    golden_leaf,
    has_dump_alone,
    kind_of,
    own_benchmark,
    pytorch_files,
)
from precision_tool.lib.data.workspace import Workspace, check_data, shown_path
from precision_tool.lib.io.cache import CacheFiles
from precision_tool.lib.io.files import exists, signature_of
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, NoBenchmarkError, PrecisionToolError
from precision_tool.lib.model.comparison import Pair
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.run import DumpLeaf, Run

if TYPE_CHECKING:
    from precision_tool.lib.data.pytorch_pairing import H5Data, H5Hit
    from precision_tool.lib.io.fusion_passes import GraphPasses
    from precision_tool.lib.model.pytorch import H5Op


class OpPairs:
    """Pairs single ops of one leaf as `vc` would with all of them."""

    def __init__(
        self,
        run: RunGraph,
        golden: GoldenFiles | Run | None,
        leaves: Sequence[DumpLeaf],
        graphs: Callable[[], Sequence[RunGraph]],
    ) -> None:
        assert run.leaf is not None
        self._of = (run.leaf, run.file, run.is_named, golden)
        self._dumps = DumpIndex(run.leaf)
        self._side: BenchmarkSide = NoBenchmark()
        if isinstance(golden, Run):
            position = next((at for at, leaf in enumerate(leaves) if leaf.path == run.leaf.path), 0)
            with suppress(DataNotFoundError):  # the other run has no such step
                self._side = GoldenDumps(golden_leaf(golden, run.leaf, position, len(leaves)))
        elif golden is not None:
            self._side = own_benchmark(golden, run.leaf, len(leaves))
        self._by_graph: GraphMatcher | None = None
        self._by_name: NameMatcher | None = None
        # Two runs are matched by the names of ops, unless a graph is asked for.
        if isinstance(self._side, GoldenDumps) and not run.is_named:
            counterpart: Counterpart = same_name
            for other in graphs():
                if self._side.root in (leaf.path for leaf in other.leaves):
                    counterpart = counterparts(run.file, other.file)
            self._by_name = NameMatcher(self._dumps, self._side, counterpart)
        else:
            self._by_graph = GraphMatcher(self._dumps, run.file, self._side)

    def is_for(self, run: RunGraph, golden: GoldenFiles | Run | None) -> bool:
        """Return whether nothing of what it was made of was read again since."""
        leaf, file, is_named, side = self._of
        return leaf is run.leaf and file is run.file and is_named == run.is_named and side is golden

    def pairs_of(self, hit: FoundOp, looks_again: bool) -> tuple[Pair, ...]:
        """Return the pairs of one op, of the files as they are now: they may be written anew while a prompt is open."""
        if looks_again:
            self._dumps.forget_changed()
            self._side.forget_changed()
        if self._by_name is not None:
            return self._by_name.pairs_of(flatten(hit.op.name))
        assert self._by_graph is not None
        return self._by_graph.pairs_of(hit.op)


# --- the data folder ---


T = TypeVar("T")
P = ParamSpec("P")

#: Leaves whose matching is kept.
_OP_PAIRS = 4


class CacheKind(StrEnum):
    """The kinds of things that a data folder caches; each can be forgotten alone."""

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
    #: The folder of results that belong to it alone.
    results: str = ""
    #: Whether an earlier step of this rank was dumped too, after which its variables are trained ones.
    is_later: bool = False
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
        self._cached: dict[tuple[CacheKind, *tuple[object, ...]], tuple[Any, Stamps]] = {}
        self._choices: dict[tuple[object, ...], tuple[DumpLeaf, GraphChoice, Stamps]] = {}
        self._op_pairs: dict[tuple[str, str], OpPairs] = {}
        self._cosines: tuple[object, Sequence[Cosines]] = (None, ())
        #: The graph that `use_graph` chose; None: not looked up yet.
        self._choice: Choice | None = None
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"<DataFolder {shown_path(str(self.workspace.root))}>"

    @alone
    def refresh(self, *what: CacheKind) -> None:
        """Forget what was read of these kinds, of all without any."""
        kinds = set(what or CacheKind)
        self._cached = {key: entry for key, entry in self._cached.items() if key[0] not in kinds}
        if CacheKind.GRAPHS in kinds:
            self.store.forget()
            self._choices.clear()
        if kinds & {CacheKind.RUNS, CacheKind.GRAPHS, CacheKind.BENCHMARK}:
            self._op_pairs.clear()
        if CacheKind.RESULTS in kinds:
            self._cosines = (None, ())
        if CacheKind.CHOICE in kinds:
            self._choice = None

    @property
    def is_part(self) -> bool:
        """Whether only one step of one rank is looked at."""
        return self._place is not None

    @property
    def is_later_step(self) -> bool:
        """Whether that is a step after another one that was dumped."""
        return self._place is not None and self._place.is_later

    def check_data(self) -> None:
        """Raise DataNotFoundError where there is no data folder."""
        check_data(self.workspace.root)

    def default_npu(self) -> str:
        """Return the dump of the NPU run under test."""
        if self._place is None:
            return default_npu(self.workspace)
        first, *others = self._place.leaves
        if others:
            self.workspace.notes.append(Message("note.compare.first_model", path=first, others=len(others)))
        return first

    def default_golden(self, npu: str) -> str:
        """Return the folder that `npu` is compared with. NoBenchmarkError where there is none."""
        if self._place is None:
            return default_golden(self.workspace, npu)
        if not self._place.golden:
            golden = self.workspace.tf_dump_dir
            raise NoBenchmarkError("data.no_benchmark", npu=npu, folder=golden, other=self.workspace.dump_dir(1))
        return self._place.golden

    def pytorch_files(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the `.h5` files of the NPU and of the benchmark, by name only."""
        return pytorch_files(self.workspace)

    def kind(self) -> DataKind:
        """Return the kind of the NPU's data in the folder."""
        return kind_of(self.workspace)

    def has_dump_alone(self) -> bool:
        """Return whether there is an NPU dump, nothing to compare it with, and no earlier result."""
        return has_dump_alone(self.workspace)

    def _keep(self, key: tuple[CacheKind, *tuple[object, ...]], read: Callable[[Stamps], T]) -> T:
        """Return the result of `read`, read again only when a folder or file that it noted has changed."""
        cached = self._cached.get(key)
        if cached is not None and cached[1].are_current():
            value: T = cached[0]
            return value
        stamps = Stamps()
        value = read(stamps)
        self._cached[key] = (value, stamps)
        return value

    def _run(self, number: int) -> Run | None:
        """Return the dump of NPU run `number`; None if there is none."""

        def read(stamps: Stamps) -> Run | None:
            try:
                if self._place is not None and number == 0:
                    runs = [self.run_at(leaf, stamps) for leaf in self._place.leaves]
                    return Run(root=runs[0].root, leaves=tuple(leaf for run in runs for leaf in run.leaves))
                return self.run_at(str(self.workspace.dump_dir(number)), stamps)
            except DataNotFoundError:
                return None  # `vc` says why
            except PrecisionToolError as error:
                self.workspace.notes.append(Message("note.compare.no_dump_of_run", reason=error.full_message))
                return None

        return self._keep((CacheKind.RUNS, number), read)

    def _read_below(self, kind: CacheKind, path: str, find: Callable[[str, Stamps], T], noted_in: Stamps | None) -> T:
        """Return the result of `find` below a folder, or raise its error; cached. `noted_in` gets its stamps."""

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
            noted_in.update(self._cached[key][1])
        if isinstance(value, PrecisionToolError):
            raise value.with_traceback(None)
        return value

    @alone
    def run_at(self, path: str, noted_in: Stamps | None = None) -> Run:
        """Return the NPU run below a folder, as `sides.find_run` finds it."""
        return self._read_below(CacheKind.RUNS, path, find_run, noted_in)

    def leaves_at(self, path: str) -> tuple[DumpLeaf, ...]:
        """Return the dumps of ops below a folder, newest time only; () if there are none, or they cannot be listed."""
        try:
            return self.run_at(path).leaves
        except PrecisionToolError:
            return ()

    @alone
    def golden_at(self, path: str, noted_in: Stamps | None = None) -> GoldenFiles | Run:
        """Return the benchmark tensors, or the other NPU run, below a folder, as `inputs.find_golden` finds them."""
        golden = self._read_below(CacheKind.BENCHMARK, path, find_golden, noted_in)
        if isinstance(golden, GoldenFiles):
            golden.forget_changed()
        return golden

    def inputs(self, npu: str, golden: str) -> Inputs:
        """Return the inputs of a comparison of two folders, not yet opened."""
        return find_inputs(npu, golden, run_at=self.run_at, golden_at=self.golden_at)

    def graph_chooser(self, graph: str | None = None) -> GraphChooser:
        """Return the chooser of a dump's graph, which prefers the user's choice, or uses `graph` instead."""
        chosen = self.chosen_graph() if graph is None else None
        return GraphChooser(store=self.store, extra_folders=(".",), chosen=chosen, choices=self._choices)

    @alone
    def run_folders(self) -> tuple[RunFolder, ...]:
        """Return every NPU run of the data folder."""
        return tuple(
            RunFolder(number=number, graph_folder=str(self.workspace.graph_dir(number)), run=self._run(number))
            for number in self.workspace.debug_numbers()
        )

    def run_graphs(self, graph: str | None = None) -> tuple[RunGraph, ...]:
        """Return the graph of every dumped model of every NPU run, or `graph` (a file or a folder) instead of those.

        Raises DataNotFoundError when there is none, FormatError when the one asked for is damaged.
        """
        return self._graphs(graph).runs

    def missing_graphs(self, graph: str | None = None) -> tuple[MissingGraph, ...]:
        """Return the dumped models that have no graph, with the reason: none, or none that can be read or fits."""
        return self._graphs(graph).missing

    def graph_reasons(self) -> tuple[Message, ...]:
        """Return why dumped models have no graph, for an error: the notes that say so are removed."""
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
                stamps.update(self._cached[CacheKind.RUNS, folder.number][1])
                stamps.note(folder.graph_folder)
            find_graph_files([folder.graph_folder for folder in folders], (".",), stamps=stamps)
            if graph is not None:
                stamps.note(graph)
                find_graph_files([graph], stamps=stamps)
            root = shown_path(str(self.workspace.root))
            try:
                with way_back_from(chosen):
                    graphs = catalog.find_run_graphs(folders, chooser, root=root, graph=graph)
            except DataNotFoundError:
                check_data(self.workspace.root)  # a mistyped folder is the better reason
                if graph is None and not kind_of(self.workspace).has_graph:
                    raise DataNotFoundError("compare.no_pytorch_graph", folder=root) from None
                raise
            for run in graphs.runs:
                signature = self.store.signature(run.file.path)
                if signature is not None:
                    stamps.note_read(run.file.path, signature)
            self.workspace.notes += [note for note in graphs.notes if note not in self.workspace.notes]
            return graphs

        return self._keep((CacheKind.GRAPHS, graph, chosen, tuple(folder.number for folder in folders)), read)

    @alone
    def fusion_reports(self) -> tuple[GraphPasses, ...]:
        """Return the contents of the `fusion_result.json` files; one that cannot be read gives a note."""
        from precision_tool.lib.io.fusion_passes import read_fusion_result

        paths = [str(path) for path in self.workspace.fusion_result_files()]

        def read(stamps: Stamps) -> tuple[GraphPasses, ...]:
            reports: list[GraphPasses] = []
            for path in paths:
                stamps.note(path)
                try:
                    reports += read_fusion_result(path)
                except PrecisionToolError as error:
                    self.workspace.notes.append(error.advice_message)
            return tuple(reports)

        return self._keep((CacheKind.FUSION, *paths), read)

    def find_ops(self, name: str, graph: str | None = None) -> tuple[FoundOp, ...]:
        """Return the op of this name, part of a name or number, as `[17]`, in every graph (see `listing.find_ops`)."""
        return find_ops(self.run_graphs(graph), name)

    @alone
    def pairs_of(self, hit: FoundOp, *, looks_again: bool = True) -> tuple[Pair, ...]:
        """Return every input and output of the op's dump with its benchmark tensor, as `vc` pairs them.

        Only the files of the op, and of its benchmark tensors, are opened. Each call looks at all that were opened
        before whether they changed: for many ops in a row do so (`looks_again`) with the first only.
        """
        run = hit.run
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
        return matcher.pairs_of(hit, looks_again)

    def golden_of(self, number: int | None) -> GoldenFiles | Run | None:
        """Return the other side of run `number`: the benchmark's files, for run 0 else run 1; None if there is none."""
        space = self.workspace
        folders = [str(folder) for folder in (space.tf_dump_dir, space.tf_debug_dir, space.dump_dir(1))]

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

        return self._keep((CacheKind.BENCHMARK, number is None, number == 0), read)

    @alone
    def pytorch(self) -> H5Data | None:
        """Return the PyTorch dumps of the data folder; None if there is none. FormatError if none can be read."""
        npu, golden = pytorch_files(self.workspace)
        if not npu and not golden:
            return None
        from precision_tool.lib.data.pytorch_pairing import load_h5_data

        def read(stamps: Stamps) -> H5Data:
            for path in (*npu, *golden):
                stamps.note(path)
            pairs: tuple[tuple[str, str], ...] = ()
            if npu and golden:
                pairs, _ = pair_h5_files(str(self.workspace.pt_npu_dir), str(self.workspace.pt_gpu_dir))
            return load_h5_data(npu, golden, pairs)

        data = self._keep((CacheKind.PYTORCH, npu, golden), read)
        self.workspace.notes += [problem for problem in data.problems if problem not in self.workspace.notes]
        return data

    def find_h5(self, name: str, *, many: bool = False) -> tuple[H5Hit, ...]:
        """Return the ops and data sets of a name in the PyTorch dumps (see `compare.pytorch`).

        Those of the NPU, each with its counterpart; of the benchmark only if the NPU has none of the name. `FILE.h5`
        and `FILE.h5:/op/seq/…` name the file too.
        """
        from precision_tool.lib.data.pytorch_pairing import find_by_name

        npu, golden = pytorch_files(self.workspace)
        return find_by_name(name, (*npu, *golden), self.pytorch, many=many)

    def is_pytorch_name(self, name: str) -> bool:
        """Return whether a name is of a PyTorch dump: a `.h5` file, or an op where the folder has such dumps."""
        from precision_tool.lib.data.pytorch_pairing import is_own_name, parse_h5_name

        h5_name = parse_h5_name(name)
        if h5_name is not None and h5_name.file:
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
        """Return the graph file that `use_graph` chose, now or in an earlier session; one that is gone gives a note."""
        if self._choice is None:
            self._choice = graph_choice.read(self.workspace.result_dirs(), self.workspace.root)
        path = self._choice.path
        if path is not None and not exists(path):
            self.workspace.notes.append(Message("note.compare.chosen_graph_gone", path=path))
            self._choice = Choice(path=None)
            return None
        return path

    @alone
    def use_graph(self, path: str | None) -> None:
        """Use this graph file from now on where no other is asked for; None: the one that fits, as at first.

        The choice is remembered for the data folder. Raises the reader's errors for a file that is no graph, UsageError
        for one that does not fit the dump, and OutputError where the choice cannot be remembered; it holds for this
        session all the same.
        """
        if path is not None:
            catalog.check_choice(path, self.run_folders(), self.store)
        self._choice = Choice(path=None if path is None else posixpath.abspath(path))
        graph_choice.write(self._choice, self.workspace)

    @alone
    def cosines(self, run: RunGraph | None = None) -> Cosines:
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
            return Cosines()  # `vcs` says what is wrong
        files = self._cosines[1]
        if run is None:
            return together(files)
        cosines, reason = cosines_of_run(files, run, self._others(run))
        if reason and reason not in self.workspace.notes:
            self.workspace.notes.append(reason)
        return cosines

    def scalars(self, run: RunGraph) -> Mapping[str, tuple[float, float]]:
        """Flattened op name → both sides' values, of ops of a run that put out single numbers, in the newest result."""
        return self.cosines(run).scalars

    def _others(self, run: RunGraph) -> list[RunGraph]:
        """Return the graphs in use of other dumps than `run` has; none for a graph that was only named."""
        if run.number is None:
            return []

        def place(graph: RunGraph) -> tuple[int | None, str]:
            return graph.number, graph.leaf.path if graph.leaf is not None else ""

        with suppress(PrecisionToolError):  # -g names one where no other is found
            return [other for other in self.run_graphs() if place(other) != place(run)]
        return []


@contextmanager
def way_back_from(chosen: str | None) -> Iterator[None]:
    """Errors about the graph that was chosen say how to be rid of it."""
    try:
        yield
    except (DataNotFoundError, FormatError) as error:
        if chosen is None or not error.names(chosen):
            raise
        raise type(error)("compare.chosen_graph", reason=error.full_message) from error


# --- graph files ---


def survey_graphs(data: DataFolder) -> GraphSurvey:
    """Return every graph file there is, what it holds, and whether it is in use."""
    problem: PrecisionToolError | None = None
    in_use: tuple[RunGraph, ...] = ()
    try:
        in_use = data.run_graphs()
    except PrecisionToolError as error:
        problem = error
    return survey(data.run_folders(), in_use, data.store, extra_folders=(".",), problem=problem)


def search_graphs(data: DataFolder, word: str) -> tuple[FoundIn, ...]:
    """Return the graph files of every stage with their ops whose names fit a part of a name, a glob or a number.

    DataNotFoundError when none has such an op, with the closest names.
    """
    check_data(data.workspace.root)
    in_use: tuple[RunGraph, ...] = ()
    with suppress(PrecisionToolError):  # files are searched whether or not one can be used
        in_use = data.run_graphs()
    if op_number(word) is not None:  # the number is that of the graph in use
        word = data.find_ops(word)[0].op.name
    return search(data.run_folders(), in_use, word, extra_folders=(".",))


# --- names for completion ---


class DataNames:
    """Names of ops, files and so on, sorted once as long as what they come from is the same."""

    def __init__(self, data: DataFolder) -> None:
        self._data = data
        self._names: dict[str, tuple[tuple[object, ...], tuple[str, ...]]] = {}

    def op_names(self) -> tuple[str, ...]:
        """Return names of the ops of the graphs in use, for completion: () rather than an error, as all below."""
        names = self._of_ops("ops", lambda op: (op.name, catalog.module_path(op)))
        return self._with_h5("ops", names, lambda op: (op.name,))

    def op_types(self) -> tuple[str, ...]:
        """Return types of the ops of the graphs in use."""
        return self._with_h5("types", self._of_ops("types", lambda op: (op.type,)), lambda op: (op.type,))

    def pass_names(self) -> tuple[str, ...]:
        """Return names of the fusion passes that made ops of the graphs in use."""
        return self._of_ops("passes", lambda op: op.pass_names)

    def kernel_names(self) -> tuple[str, ...]:
        """Return names of the kernels, and of the libraries they are in."""
        return self._of_ops("kernels", lambda op: (op.kernel_name, op.kernel_lib))

    def graph_paths(self) -> tuple[str, ...]:
        """Return build graphs of the runs and of the working folder."""
        folders = [str(self._data.workspace.graph_dir(number)) for number in self._data.workspace.debug_numbers()]
        with suppress(PrecisionToolError, OSError):
            return tuple(sorted(map(shown_path, find_graph_files(folders, (".",)))))
        return ()

    def result_paths(self) -> tuple[str, ...]:
        """Return result files, newest comparison first."""
        return tuple(shown_path(path) for folder in self._data.workspace.compare_dirs() for path in results_in(folder))

    def dump_file_names(self) -> tuple[str, ...]:
        """Return names of the dump files of all runs, and of the data sets of PyTorch dumps."""
        runs = [folder.run for folder in self._data.run_folders()]
        files = self._sorted(
            "dumps",
            runs,
            lambda: (
                posixpath.basename(file.path)
                for run in runs
                if run
                for leaf in run.leaves
                for file in leaf.files
                if not file.entries
            ),
        )
        return self._with_h5("values", files, lambda op: (value.path for value in op.values))

    def golden_file_names(self) -> tuple[str, ...]:
        """Return names of the benchmark's files."""
        golden = self._data.golden_of(0)
        if not isinstance(golden, GoldenFiles):
            return ()
        return self._sorted(
            "goldens",
            [golden],
            lambda: (posixpath.basename(file.path) for file in golden.files if file.recorded is None),
        )

    def _of_ops(self, what: str, names_of: Callable[[Op], Iterable[str]]) -> tuple[str, ...]:
        try:
            runs = self._data.run_graphs()
        except PrecisionToolError:
            return ()
        return self._sorted(
            what,
            runs,
            lambda: (name for _, _, op in catalog.every_op(runs) for name in names_of(op) if name),
        )

    def _with_h5(self, what: str, names: tuple[str, ...], names_of: Callable[[H5Op], Iterable[str]]) -> tuple[str, ...]:
        """Return the names, and those of PyTorch dumps; the same object as long as they are the same."""
        try:
            data = self._data.pytorch()
        except PrecisionToolError:
            data = None
        if data is None:
            return names
        ops = [op for side in data.sides for op in side.dump.ops]
        return self._sorted(
            f"h5 {what}", [names, data], lambda: (*names, *(name for op in ops for name in names_of(op)))
        )

    def _sorted(self, what: str, sources: Sequence[object], names: Callable[[], Iterable[str]]) -> tuple[str, ...]:
        """Return the names once each, sorted; worked out again when they come from other objects than before."""
        before, sorted_names = self._names.get(what, ((), ()))
        if len(before) != len(sources) or any(old is not new for old, new in zip(before, sources, strict=True)):
            sorted_names = tuple(sorted(set(names())))
            self._names[what] = (tuple(sources), sorted_names)
        return sorted_names
