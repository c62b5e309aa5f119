"""What a command, or an open prompt, works with: settings, workspace, and what was compared."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from precision_tool.lib.collect.tfdbg import runs as tfdbg
from precision_tool.lib.compare.cosines import ResultCosines, result_cosines
from precision_tool.lib.compare.result_source import read_source, source_of, source_path, write_source
from precision_tool.lib.errors import (
    DataNotFoundError,
    FormatError,
    NoBenchmarkError,
    OutputError,
    PrecisionToolError,
    UsageError,
)
from precision_tool.lib.graph import catalog
from precision_tool.lib.graph import chosen as graph_choice
from precision_tool.lib.graph.cache import GraphStore
from precision_tool.lib.graph.catalog import (
    DataOverview,
    FoundOp,
    MissingGraph,
    RunFolder,
    RunGraph,
    RunGraphs,
    overview,
)
from precision_tool.lib.graph.choice import find_graph_files
from precision_tool.lib.graph.chosen import Choice
from precision_tool.lib.graph.survey import FoundIn, GraphSurvey, search, survey
from precision_tool.lib.model.comparison import Pair
from precision_tool.lib.model.finding import FindingKind
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.run import DumpLeaf, Run
from precision_tool.lib.model.table import Table
from precision_tool.lib.pairing.inserted import counterparts
from precision_tool.lib.pairing.listing import find_ops
from precision_tool.lib.pairing.match import Counterpart, GraphMatcher, match_name, same_name
from precision_tool.lib.pairing.selection import OpNames
from precision_tool.lib.present.text import shown_path
from precision_tool.lib.results.noise import NoiseFloor, with_noise
from precision_tool.lib.results.result_csv import read_result, write_mapping, write_result
from precision_tool.lib.results.result_files import find_results, is_of_two_runs
from precision_tool.lib.settings import Settings
from precision_tool.lib.sources import walk
from precision_tool.lib.sources.dumps import BenchmarkSide, DumpIndex, GoldenDumps, GoldenFiles, NoBenchmark
from precision_tool.lib.sources.h5_files import find_h5_files, is_h5_side, pair_h5_files
from precision_tool.lib.sources.names import flatten, op_number
from precision_tool.lib.sources.overflow_files import StatusFile
from precision_tool.lib.sources.walk import Stamps
from precision_tool.lib.storage.cache_files import CacheFiles
from precision_tool.lib.storage.files import signature_of
from precision_tool.lib.user_files import check_folder, is_folder, list_folder
from precision_tool.lib.workspace import check_data, open_workspace

# What compares and judges takes long to load; `ls`, `graphs` and the prompt begin without it.
if TYPE_CHECKING:
    from precision_tool.lib.checks.analysis import Analysis
    from precision_tool.lib.checks.fusion import GraphFusion
    from precision_tool.lib.checks.fusion_blame import Blame
    from precision_tool.lib.checks.overflow import OverflowReport
    from precision_tool.lib.checks.random_errors import RandomReport
    from precision_tool.lib.compare.folders import CompareOptions, LeafResult
    from precision_tool.lib.compare.known import KnownValues
    from precision_tool.lib.engine.workers import Progress
    from precision_tool.lib.formats.fusion_result import GraphPasses
    from precision_tool.lib.formats.fusion_switch import Switches
    from precision_tool.lib.inspect.arrays import TensorProxy
    from precision_tool.lib.model.pytorch import H5Op
    from precision_tool.lib.pairing.fusion_pair import FusionPair
    from precision_tool.lib.pairing.pytorch_ops import H5Data, H5Hit
    from precision_tool.lib.toolkit.finder import Toolkit
    from precision_tool.lib.toolkit.tools import Tools
    from precision_tool.lib.verdict.decide import Judged

T = TypeVar("T")
P = ParamSpec("P")

#: Leaves whose matching is kept.
_MATCHERS = 4
#: Of many dump folders that cannot be compared, as many reasons are told.
_SHOWN_REASONS = 3
#: What the names of results that do not stand for a whole run begin with: they are not taken for the newest result.
_PARTIAL_PREFIX, _OP_PREFIX, _PART_PREFIX = "partial_", "single_op_", "part_"
#: The toolkit's result beside ours, of what ours could not read.
TOOLKIT_PREFIX = "toolkit_"
#: What `fusion blame` compared to judge fusion passes.
BLAME_PREFIX = "blame_"
_SET_APART = (_PARTIAL_PREFIX, _OP_PREFIX, _PART_PREFIX, TOOLKIT_PREFIX, BLAME_PREFIX)
#: What is said of such a result when it is read.
_PARTS = {
    _PARTIAL_PREFIX: "only a part: the comparison was stopped; the rows that it did not reach say so",
    _OP_PREFIX: "only a part: the ops that were asked for with -op",
    _PART_PREFIX: "only a part: the ops, or the first elements of each tensor, that were asked for",
}


def _alone(method: Callable[Concatenate[Session, P], T]) -> Callable[Concatenate[Session, P], T]:
    """One thread at a time in these methods: Tab completes in a thread of its own, while a command may begin."""

    @wraps(method)
    def alone(self: Session, /, *args: P.args, **options: P.kwargs) -> T:
        with self._lock:
            return method(self, *args, **options)

    return alone


class Session:
    """The state behind the commands. Nothing is read before a command asks for it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.workspace = open_workspace(settings.data, settings.work)
        self._cache = CacheFiles(self.workspace.cache_dirs)
        self._store = GraphStore(self._cache)
        self._kept: dict[Hashable, tuple[Any, Stamps]] = {}
        self._matchers: dict[tuple[str, str], _Matcher] = {}
        self._cosines: tuple[Hashable, ResultCosines] = (None, ResultCosines(()))
        self._names: dict[str, tuple[tuple[object, ...], tuple[str, ...]]] = {}
        self._toolkit: Toolkit | None = None
        #: The graph that `use_graph` chose; None: not looked up yet.
        self._choice: Choice | None = None
        self._lock = threading.RLock()

    # --- what was read, and whether it still is so ---

    @_alone
    def refresh(self) -> None:
        """Forgets everything that was read: graphs, dumps, results."""
        self._store.forget()
        self._kept.clear()
        self._matchers.clear()
        self._cosines = (None, ResultCosines(()))
        self._names.clear()
        self._choice = None
        self._toolkit = None

    def _keep(self, key: Hashable, read: Callable[[Stamps], T]) -> T:
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
            folder = str(self.workspace.dump_dir(number))
            stamps.note(folder)
            try:
                return walk.find_run(folder, stamps)
            except DataNotFoundError:
                return None  # `vc` says why
            except PrecisionToolError as error:
                self.workspace.notes.append(f"{error.message}; the run is taken for one without a dump")
                return None

        return self._keep(("run", number), read)

    @_alone
    def run_folders(self) -> tuple[RunFolder, ...]:
        """Every NPU run of the data folder."""
        return tuple(
            RunFolder(number=number, graph_folder=str(self.workspace.graph_dir(number)), run=self._run(number))
            for number in self.workspace.debug_numbers()
        )

    # --- graphs and ops ---

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

    @_alone
    def _graphs(self, graph: str | None) -> RunGraphs:
        folders = self.run_folders()
        chosen = self.chosen_graph() if graph is None else None

        def read(stamps: Stamps) -> RunGraphs:
            for folder in folders:
                stamps.update(self._kept["run", folder.number][1])
                stamps.note(folder.graph_folder)
            find_graph_files([folder.graph_folder for folder in folders], (os.curdir,), stamps=stamps)
            if graph is not None:
                stamps.note(graph)
                find_graph_files([graph], stamps=stamps)
            root = shown_path(str(self.workspace.root))
            try:
                with _way_back_from(chosen):
                    found = catalog.find_run_graphs(
                        folders, self._store, root=root, graph=graph, chosen=chosen, extra_folders=(os.curdir,)
                    )
            except DataNotFoundError:
                self.check_data()  # a mistyped folder is the better reason
                if graph is None and self.has_pytorch_only():
                    raise DataNotFoundError(
                        f"{root}: no graph: its dumps are PyTorch's, which have none",
                        "ls, ni, pt, cp, vc and ac work without one",
                    ) from None
                raise
            for run in found.runs:
                signature = self._store.signature(run.file.path)
                if signature is not None:
                    stamps.note_read(run.file.path, signature)
            self.workspace.notes += [note for note in found.notes if note not in self.workspace.notes]
            return found

        return self._keep(("graphs", graph, chosen, tuple(folder.number for folder in folders)), read)

    # --- fusion ---

    @_alone
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

        return self._keep(("fusion reports", *paths), read)

    def fusion_graphs(
        self,
        graph: str | None = None,
        switches: Switches | None = None,
        cosines: Mapping[str, float] | None = None,
    ) -> tuple[GraphFusion, ...]:
        """The fusion passes of every graph; without a graph those that the reports alone tell of.

        `cosines` are those of the ops' outputs where a result is at hand: else the newest is read.

        Raises what `run_graphs` does where there is neither.
        """
        from precision_tool.lib.checks.fusion import passes_in_effect

        reports = self.fusion_reports()
        runs: tuple[RunGraph, ...] = ()
        try:
            runs = self.run_graphs(graph)
        except PrecisionToolError:
            if not reports or graph is not None:
                raise
        return passes_in_effect(runs, reports, self.cosines() if cosines is None else cosines, switches)

    def fusion_pair(self) -> FusionPair:
        """The run with fusion and the one without, told by their graphs. Errors say what is missing."""
        from precision_tool.lib.pairing.fusion_pair import find_pair

        self.check_data()
        return find_pair(self.run_graphs())

    def blame(self, analysis: Analysis, progress: Progress | None = None) -> Blame:
        """Which fusion pass computes wrong, by a comparison of a run with fusion. UsageError if it names no pass."""
        from precision_tool.lib.checks.fusion_blame import blame
        from precision_tool.lib.compare.folders import find_golden
        from precision_tool.lib.pairing.unfused import GraphDumps

        leaf = analysis.leaf
        if leaf is None:
            raise UsageError(f"{analysis.path}: a result file does not tell what fusion did", "compare again")
        golden = find_golden(leaf.golden_root)
        if not isinstance(golden, Run):
            return blame(analysis, golden, progress=progress)
        if leaf.other_graph is None:
            raise UsageError("two runs that were matched by name do not tell what fusion did", "name a graph with -cf")
        unfused = leaf.other_graph.file
        return blame(analysis, GraphDumps(golden.leaves[0], unfused), unfused, progress)

    def survey_graphs(self) -> GraphSurvey:
        """Every graph file there is, what it holds, and whether it is in use."""
        problem: PrecisionToolError | None = None
        in_use: tuple[RunGraph, ...] = ()
        try:
            in_use = self.run_graphs()
        except PrecisionToolError as error:
            problem = error
        return survey(self.run_folders(), in_use, self._store, extra_folders=(os.curdir,), problem=problem)

    def search_graphs(self, word: str) -> tuple[FoundIn, ...]:
        """The graph files of every stage with their ops whose names fit a part of a name, a glob or a number.

        DataNotFoundError when none has such an op, with the closest names.
        """
        self.check_data()
        in_use: tuple[RunGraph, ...] = ()
        with suppress(PrecisionToolError):  # files are searched whether or not one can be used
            in_use = self.run_graphs()
        if op_number(word) is not None:  # the number is that of the graph in use
            word = self.find_ops(word)[0].op.name
        return search(self.run_folders(), in_use, word, extra_folders=(os.curdir,))

    def find_ops(self, name: str, graph: str | None = None) -> tuple[FoundOp, ...]:
        """The op of this name, part of a name or number, as `[17]`, in every graph (see `listing.find_ops`)."""
        return find_ops(self.run_graphs(graph), name)

    @_alone
    def pairs_of(self, found: FoundOp, *, looks_again: bool = True) -> tuple[Pair, ...]:
        """Every input and output of the op's dump with its benchmark tensor, as `vc` pairs them; () without a dump.

        Only the files of the op, and of its benchmark tensors, are opened. Each call looks at all that were opened
        before whether they changed: for many ops in a row do so (`looks_again`) with the first only.
        """
        run = found.run
        if run.leaf is None:
            return ()
        golden = self._golden_of(run.number)
        key = (run.leaf.path, run.file.path)
        matcher = self._matchers.get(key)
        if matcher is None or not matcher.is_for(run, golden):
            while len(self._matchers) >= _MATCHERS:
                del self._matchers[next(iter(self._matchers))]
            all_of_run = self._run(run.number) if run.number is not None else None
            leaves = all_of_run.leaves if all_of_run else run.leaves
            matcher = self._matchers[key] = _Matcher(run, golden, leaves, self.run_graphs)
        return matcher.pairs_of(found, looks_again)

    def tensors(self, name: str, graph: str | None = None) -> tuple[TensorProxy, ...]:
        """The tensors of an op or of a file, as arrays that are read when their values are asked for.

        Parameters
        ----------
        name : str
            An op, as for `find_ops`; a dump file or `.npy`; either with a slot behind it, ``"conv1:output:0"``; or an
            op or data set of PyTorch's dumps, ``"/Addmm/4/output/result"``.
        graph : str, optional
            A graph file to look the op up in; by default those of the runs.

        Returns
        -------
        tuple of TensorProxy
            Inputs, then outputs. Those of an op have their `benchmark`, where there is one.

        Raises
        ------
        DataNotFoundError
            Nothing is called so, or it was not dumped.
        FormatError
            The file is damaged, or holds statistics only.
        """
        from precision_tool.lib.inspect.arrays import open_tensors

        return open_tensors(self, name, graph)

    def tensor(self, name: str, graph: str | None = None) -> TensorProxy:
        """The one tensor of a name, as `tensors` takes it; UsageError where there are several."""
        from precision_tool.lib.inspect.arrays import one_tensor

        return one_tensor(self, name, graph)

    def _golden_of(self, number: int | None) -> GoldenFiles | Run | None:
        """What run `number` is compared with: the benchmark's files, for run 0 else run 1; None if there is nothing."""
        folders = [str(self.workspace.tf_dump_dir), str(self.workspace.tf_debug_dir), str(self.workspace.dump_dir(1))]
        from precision_tool.lib.compare.folders import find_golden

        def read(stamps: Stamps) -> GoldenFiles | Run | None:
            for folder in folders:
                stamps.note(folder)
            if number is None:
                return None
            benchmark = self._benchmark_folder(stamps)
            if benchmark is None and number != 0:
                return None
            with suppress(PrecisionToolError):  # `vc` says what is wrong with it
                return find_golden(str(benchmark or folders[-1]), stamps)
            return None

        return self._keep(("golden", number is None, number == 0), read)

    # --- PyTorch ---

    def pytorch_files(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The `.h5` files of the NPU and of the benchmark, by name only."""
        space = self.workspace
        npu, golden = (tuple(find_h5_files(str(folder))) for folder in (space.pt_npu_dir, space.pt_gpu_dir))
        return npu, golden

    def has_pytorch_only(self) -> bool:
        """True if the data folder holds PyTorch dumps and no NPU run of another kind."""
        return not self.workspace.debug_numbers() and any(self.pytorch_files())

    @_alone
    def pytorch(self) -> H5Data | None:
        """The PyTorch dumps of the data folder; None if there is none. FormatError if none can be read."""
        npu, golden = self.pytorch_files()
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

        data = self._keep(("pytorch", npu, golden), read)
        self.workspace.notes += [problem for problem in data.problems if problem not in self.workspace.notes]
        return data

    def find_h5(self, name: str, *, many: bool = False) -> tuple[H5Hit, ...]:
        """The ops and data sets of a name in the PyTorch dumps (see `compare.pytorch`).

        Those of the NPU, each with its counterpart; of the benchmark only if the NPU has none of the name. `FILE.h5`
        and `FILE.h5:/op/seq/…` name the file too.
        """
        from precision_tool.lib.pairing.pytorch_ops import find_by_name

        npu, golden = self.pytorch_files()
        return find_by_name(name, (*npu, *golden), self.pytorch, many=many)

    # --- the graph a user chose ---

    @_alone
    def chosen_graph(self) -> str | None:
        """The graph file that `use_graph` chose, now or in an earlier session; one that is gone is told of once."""
        if self._choice is None:
            self._choice = graph_choice.read(self.workspace.result_dirs(), self.workspace.root)
        path = self._choice.path
        if path is not None and not os.path.exists(path):
            self.workspace.notes.append(
                f"the graph chosen with graphs --use is gone, so one is chosen automatically: {path}"
            )
            self._choice = Choice(path=None)
            return None
        return path

    @_alone
    def use_graph(self, path: str | None) -> None:
        """Uses this graph file from now on where no other is asked for; None: the one that fits, as at first.

        The choice is remembered for the data folder. Raises the reader's errors for a file that is no graph, UsageError
        for one that does not fit the dump, and OutputError where the choice cannot be remembered; it holds for this
        session all the same.
        """
        if path is not None:
            catalog.check_choice(path, self.run_folders(), self._store)
        self._choice = Choice(path=None if path is None else os.path.abspath(path))
        graph_choice.write(self._choice, self.workspace)

    # --- the vendor's toolkit ---

    def toolkit(self) -> Toolkit:
        """What was found of it; looked for once."""
        from precision_tool.lib.toolkit.finder import find_toolkit

        if self._toolkit is None:
            self._toolkit = find_toolkit(str(self.settings.cmd_root_path), memories=self.workspace.cache_dirs())
        return self._toolkit

    def tools(self) -> Tools:
        """Its programs, ready to run; logs and what is kept of its work go to the folder of results."""
        from precision_tool.lib.toolkit.tools import Tools

        return Tools(
            toolkit=self.toolkit(),
            folder=str(self.workspace.output_dir("toolkit")),
            cache=str(self.workspace.output_dir("op_graph")),
            python=self.settings.python,
            time_limit=self.settings.toolkit_seconds,
        )

    # --- results ---

    @_alone
    def cosines(self, run: RunGraph | None = None) -> Mapping[str, float]:
        """Op name → the lowest cosine of its outputs in the newest result, NaN lowest of all; {} without a result.

        Names are found with `/` and with `_`. With `run` only what is of its dump; why there is nothing of any run is
        a note.
        """
        try:
            paths = self._newest_results()
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

    def _others(self, run: RunGraph) -> list[RunGraph]:
        """The graphs in use of other dumps than `run` has; none for a graph that was only named."""
        if run.number is None:
            return []

        def place(one: RunGraph) -> tuple[int | None, str]:
            return one.number, one.leaf.path if one.leaf is not None else ""

        with suppress(PrecisionToolError):  # -g names one where no other is found
            return [other for other in self.run_graphs() if place(other) != place(run)]
        return []

    # --- what there is, by name only ---

    def overview(self) -> DataOverview:
        """What the data folder holds, by names alone: nothing is opened."""
        return overview(self.workspace, next(iter(self.result_paths()), ""))

    def op_names(self) -> tuple[str, ...]:
        """Names of the ops of the graphs in use, for completion: () rather than an error, as all below."""
        return self._with_h5("ops", self._of_ops("ops", lambda op: (op.name,)), lambda op: (op.name,))

    def op_types(self) -> tuple[str, ...]:
        """Types of the ops of the graphs in use."""
        return self._with_h5("types", self._of_ops("types", lambda op: (op.type,)), lambda op: (op.type,))

    def pass_names(self) -> tuple[str, ...]:
        """Names of the fusion passes that made ops of the graphs in use."""
        return self._of_ops("passes", lambda op: op.pass_names)

    def kernel_names(self) -> tuple[str, ...]:
        """Names of the kernels, and of the libraries they are in."""
        return self._of_ops("kernels", lambda op: (op.kernel_name, op.kernel_lib))

    def graph_paths(self) -> tuple[str, ...]:
        """Build graphs of the runs and of the working folder."""
        folders = [str(self.workspace.graph_dir(number)) for number in self.workspace.debug_numbers()]
        with suppress(PrecisionToolError, OSError):
            return tuple(sorted(map(shown_path, find_graph_files(folders, (os.curdir,)))))
        return ()

    def result_paths(self) -> tuple[str, ...]:
        """Result files, newest comparison first."""
        return tuple(shown_path(path) for folder in self.workspace.compare_dirs() for path in _results_in(folder))

    @_alone
    def dump_file_names(self) -> tuple[str, ...]:
        """Names of the dump files of all runs, and of the data sets of PyTorch dumps."""
        runs = [folder.run for folder in self.run_folders()]
        files = self._sorted(
            "dumps",
            runs,
            lambda: (os.path.basename(file.path) for run in runs if run for leaf in run.leaves for file in leaf.files),
        )
        return self._with_h5("values", files, lambda op: (value.path for value in op.values))

    @_alone
    def golden_file_names(self) -> tuple[str, ...]:
        """Names of the benchmark's files."""
        golden = self._golden_of(0)
        if not isinstance(golden, GoldenFiles):
            return ()
        return self._sorted("goldens", [golden], lambda: (os.path.basename(file.path) for file in golden.files))

    @_alone
    def _of_ops(self, what: str, names_of: Callable[[Op], Iterable[str]]) -> tuple[str, ...]:
        try:
            runs = self.run_graphs()
        except PrecisionToolError:
            return ()
        return self._sorted(
            what,
            runs,
            lambda: (name for _, _, op in catalog.every_op(runs) for name in names_of(op) if name),
        )

    @_alone
    def _with_h5(self, what: str, names: tuple[str, ...], names_of: Callable[[H5Op], Iterable[str]]) -> tuple[str, ...]:
        """The names, and those of PyTorch dumps; the same object as long as they are the same."""
        try:
            data = self.pytorch()
        except PrecisionToolError:
            data = None
        if data is None:
            return names
        ops = [op for side in data.sides for op in side.dump.ops]
        return self._sorted(
            f"h5 {what}", [names, data], lambda: (*names, *(name for op in ops for name in names_of(op)))
        )

    def _sorted(self, what: str, sources: Sequence[object], names: Callable[[], Iterable[str]]) -> tuple[str, ...]:
        """The names once each, sorted; worked out again when they come from other objects than before."""
        before, known = self._names.get(what, ((), ()))
        if len(before) != len(sources) or any(old is not new for old, new in zip(before, sources, strict=True)):
            known = tuple(sorted(set(names())))
            self._names[what] = (tuple(sources), known)
        return known

    # --- comparisons ---

    def check_data(self) -> None:
        """Raises DataNotFoundError where there is no data folder."""
        check_data(self.workspace.root)

    def default_npu(self) -> str:
        """The dump of the NPU run under test."""
        self.check_data()
        folder = self.workspace.dump_dir(0)
        if not is_folder(folder) and find_h5_files(str(self.workspace.pt_npu_dir)):
            return str(self.workspace.pt_npu_dir)
        if self.has_pytorch_only():
            raise DataNotFoundError(
                f"{self.workspace.pt_npu_dir}: no .h5 dump of the NPU", "put it there, or name it with -lt"
            )
        if not is_folder(folder):
            raise DataNotFoundError(
                f"{folder}: no NPU dump",
                "put the NPU run's dump_path there, as the README says under Collect, or name its folder with -lt",
            )
        return str(folder)

    def default_golden(self, npu: str) -> str:
        """What `npu` is compared with.

        Of PyTorch's dumps pt/gpu; of others tf/dump, else the runs in tf/tf_debug, else the second NPU run's dump.
        """
        if is_h5_side(npu):
            if find_h5_files(str(self.workspace.pt_gpu_dir)):
                return str(self.workspace.pt_gpu_dir)
            raise NoBenchmarkError(
                f"nothing to compare {npu} with: no .h5 file in {self.workspace.pt_gpu_dir}",
                "put the GPU's or CPU's dump there, or name it with -rt",
            )
        benchmark, other = self._benchmark_folder(), self.workspace.dump_dir(1)
        if benchmark is None and not _has_entries(other):
            if _has_entries(self.workspace.tf_dump_dir):
                return str(self.workspace.tf_dump_dir)  # what is wrong with it is told when it is read
            raise NoBenchmarkError(
                f"nothing to compare {npu} with: neither {self.workspace.tf_dump_dir} nor {other} holds data",
                "put benchmark tensors (op.output.timestamp.npy) into the first or the dump of another NPU run into "
                "the second, or name a folder with -rt",
            )
        return str(benchmark or other)

    def _benchmark_folder(self, stamps: Stamps | None = None) -> Path | None:
        """Where the benchmark's tensors are: tf/dump, or tf/tf_debug if only that has some; `stamps` notes folders."""
        space = self.workspace
        if walk.has_tensors(str(space.tf_dump_dir), stamps):
            return space.tf_dump_dir
        visit = None if stamps is None else stamps.note
        return space.tf_debug_dir if tfdbg.find_runs(str(space.tf_debug_dir), visit) else None

    def _newer_run(self) -> str | None:
        """What there is to say of a run of tfdbg that is newer than the tensors in tf/dump, which are compared."""
        runs = tfdbg.find_runs(str(self.workspace.tf_debug_dir))
        newest = walk.newest_golden(str(self.workspace.tf_dump_dir)) if runs else None
        if newest is None or runs[-1].time <= newest:
            return None
        return (
            f"{shown_path(runs[-1].path)} is newer than the tensors in {self.workspace.tf_dump_dir}, which are "
            "compared: tf_dump takes the new ones, -rt compares with the run itself"
        )

    def compare(
        self,
        npu: str | None,
        golden: str | None,
        graph: str | None,
        threshold: float,
        workers: int,
        progress: Progress | None = None,
        options: CompareOptions | None = None,
        noise: NoiseFloor | None = None,
        prefix: str = "",
    ) -> list[Analysis]:
        """Compares two folders, writes the result files, judges the rows, by their own noise where it is given.

        Leaves that could not be compared at all are without rows, file and path; DataNotFoundError if all are.
        When the comparison is stopped the rows that are done are written as `partial_result_*.csv` and the
        error says where.
        """
        from precision_tool.lib.checks.analysis import analyse
        from precision_tool.lib.compare.folders import DEFAULT_OPTIONS, ComparisonStoppedError, compare_folders
        from precision_tool.lib.compare.pytorch import are_h5, compare_h5

        options = options or DEFAULT_OPTIONS
        is_default = npu is None and golden is None
        if is_default and is_folder(self.workspace.dump_dir(1)) and self._benchmark_folder() is not None:
            other = self.workspace.debug_dir(1)
            self.workspace.notes.append(f"{other} is there too: name it with -lt to compare it, or with -rt")
        npu = npu or self.default_npu()
        if golden is None:
            golden = self.default_golden(npu)
            newer = self._newer_run() if golden == str(self.workspace.tf_dump_dir) else None
            if newer is not None:
                self.workspace.notes.append(newer)
        is_h5 = are_h5(npu, golden, graph, options.other_graph)
        if not is_h5 and is_default and any(self.pytorch_files()):
            place = self.workspace.pt_npu_dir.parent
            self.workspace.notes.append(f"{place} holds PyTorch dumps too: name them with -lt and -rt")
        chosen = self.chosen_graph() if graph is None else None
        folder = self.workspace.new_compare_dir()
        try:
            with _way_back_from(chosen):
                if is_h5:
                    results = compare_h5(npu, golden, workers=workers, progress=progress, options=options)
                else:
                    results = compare_folders(
                        npu,
                        golden,
                        graph=graph,
                        graph_folders=(os.curdir,),
                        chosen=chosen,
                        store=self._store,
                        workers=workers,
                        progress=progress,
                        options=options,
                    )
                _check_any_rows(results)
        except ComparisonStoppedError as stop:
            with _ctrl_c_ignored():  # once was enough: what is done is being saved
                paths = self._write(folder, stop.results, _PARTIAL_PREFIX)
            kept = f"; the finished rows are in {', '.join(filter(None, paths))}" if any(paths) else ""
            raise ComparisonStoppedError(stop.message + kept, stop.hint, stop.results, stop.exit_code) from stop
        except BaseException:
            self.workspace.remove_empty(folder)
            raise
        paths = self._write(folder, results, prefix or _prefix_of(options), options.pairs_only)
        return [
            analyse(path, with_noise(result.table, noise), threshold, result)
            for path, result in zip(paths, results, strict=True)
        ]

    def compare_by_toolkit(
        self,
        npu: str | None,
        golden: str | None,
        graph: str | None,
        threshold: float,
        options: CompareOptions | None = None,
        prefix: str = "",
        noise: NoiseFloor | None = None,
    ) -> list[Analysis]:
        """As `compare`, done by the vendor's msaccucmp. Analyses of a mapping have no rows."""
        from precision_tool.lib.checks.analysis import analyse
        from precision_tool.lib.compare.folders import DEFAULT_OPTIONS
        from precision_tool.lib.compare.toolkit_engine import compare_by_toolkit

        options = options or DEFAULT_OPTIONS
        npu = npu or self.default_npu()
        golden = golden or self.default_golden(npu)
        tools = self.tools()
        tools.toolkit.need("msaccucmp")
        folder = self.workspace.new_compare_dir()
        try:
            results = compare_by_toolkit(
                npu,
                golden,
                str(folder),
                tools,
                graph=graph,
                graph_folders=(os.curdir,),
                chosen=self.chosen_graph() if graph is None else None,
                store=self._store,
                options=options,
                prefix=prefix or _prefix_of(options),
            )
        except BaseException:
            self.workspace.remove_empty(folder)
            raise
        notes = dict.fromkeys(note for result in results for note in result.notes)
        self.workspace.notes += [note for note in notes if note not in self.workspace.notes]
        return [
            analyse(
                result.path,
                Table(()) if options.pairs_only else with_noise(read_result(result.path), noise),
                threshold,
            )
            for result in results
        ]

    def _write(
        self, folder: Path, results: Sequence[LeafResult], prefix: str = "", pairs_only: bool = False
    ) -> list[str]:
        """The paths of the files written, one a result; empty for a result without rows, which gets no file."""
        from precision_tool.lib.inspect.detail import write_detail

        paths: list[str] = []
        kind = "mapping" if pairs_only else "result"
        try:
            for result in results:
                if not result.rows:
                    paths.append("")
                    continue
                leaf = result.leaf
                parts = "_".join(part for part in (leaf.device, leaf.model_name, leaf.step) if part)
                name = stem = f"{parts or 'dump'}_" if len(results) > 1 else ""
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
                    write_source(str(path), source_of(result), str(self.workspace.root))
                for detail in result.details:
                    write_detail(str(folder), detail, name)
                paths.append(str(path))
        except OutputError:
            self.workspace.remove_empty(folder)
            raise
        return paths

    def results(
        self, path: str | None = None, threshold: float | None = None, noise: NoiseFloor | None = None
    ) -> list[Analysis]:
        """The results of a file or folder, by default of the newest comparison, read back and judged.

        The threshold is that of the settings unless another is given.
        """
        from precision_tool.lib.checks.analysis import analyse

        threshold = self.settings.threshold if threshold is None else threshold
        paths = self._newest_results(tells=True) if path is None else find_results(path)
        return [
            analyse(one, with_noise(read_result(one), noise), threshold, source=read_source(one), part=_part_of(one))
            for one in paths
        ]

    # --- the verdict ---

    def verdicts(
        self,
        analyses: Sequence[Analysis],
        npu: str | None = None,
        graph: str | None = None,
        progress: Progress | None = None,
    ) -> list[Judged | None]:
        """Who is to blame in each result; None for one that cannot be judged (no graph, PyTorch, its dump is gone)."""
        from precision_tool.lib.verdict.runs import Asked, judge

        runs = self._runs_to_judge(graph)
        found: list[Judged | None] = []
        for analysis in analyses:
            leaf, source = analysis.leaf, analysis.source
            asked: Asked | None = None
            if analysis.is_pytorch or analysis.part:
                pass
            elif leaf is not None:
                mine = next((run for run in runs if any(one.path == leaf.leaf.path for one in run.leaves)), None)
                file = leaf.graph.file if leaf.graph is not None else mine.file if mine is not None else None
                if file is not None:
                    asked = Asked(leaf=leaf.leaf, file=file, golden_root=leaf.golden_root)
            elif source is not None and source.graph:
                with suppress(PrecisionToolError):
                    at = walk.find_run(source.npu).leaves[0]
                    asked = Asked(leaf=at, file=self._store.load(source.graph), golden_root=source.golden)
            if asked is None:
                found.append(None)
                continue
            compared = [one.op_name for one in analysis.findings if one.kind == FindingKind.FIRST_FAULTY_OP]
            asked = replace(asked, rows=analysis.rows, compared=compared, threshold=analysis.threshold)
            found.append(judge(asked, runs, progress=progress))
        return found

    def verdicts_alone(
        self, npu: str | None = None, graph: str | None = None, progress: Progress | None = None
    ) -> list[Judged]:
        """Who is to blame in an NPU run without a benchmark, one verdict a model."""
        from precision_tool.lib.graph.choice import find_graph
        from precision_tool.lib.verdict.runs import Asked, judge

        runs = self._runs_to_judge(graph)
        if npu is not None:
            leaf = walk.find_run(npu).leaves[0]
            file = find_graph(leaf, graph, (os.curdir,), store=self._store).file
            return [judge(Asked(leaf=leaf, file=file), runs, progress=progress)]
        mine = [run for run in runs if run.leaf is not None]
        number = min((run.number or 0 for run in mine), default=0)
        return [
            judge(Asked(leaf=run.leaf, file=run.file), runs, progress=progress)
            for run in mine
            if run.leaf is not None and (run.number or 0) == number
        ]

    def has_dump_alone(self) -> bool:
        """Whether there is an NPU dump, nothing to compare it with, and no earlier result."""
        if self.workspace.compare_dirs() or not self.workspace.dump_dir(0).is_dir():
            return False
        return self._benchmark_folder() is None and not _has_entries(self.workspace.dump_dir(1))

    def _runs_to_judge(self, graph: str | None) -> tuple[RunGraph, ...]:
        try:
            return self.run_graphs(graph)
        except PrecisionToolError:
            return ()

    # --- causes ---

    def overflow(
        self,
        folder: str | None = None,
        graph: str | None = None,
        limit: int = 3,
        progress: Progress | None = None,
        max_bytes: int | None = None,
        known: Mapping[str, KnownValues] | None = None,
    ) -> tuple[OverflowReport, str]:
        """The overflow in a folder, or in the data folder, and where status files were looked for.

        The first `limit` ops have figures. `max_bytes` of values are read at most, and none that a
        comparison made `known`. DataNotFoundError where there is neither a status file nor a dump.
        """
        from precision_tool.lib.checks.overflow_search import find_overflow

        return find_overflow(self, folder, graph, limit, progress, max_bytes, known)

    def overflow_statuses(self, folder: str | None = None) -> tuple[tuple[StatusFile, ...], str]:
        """The overflow status files in a folder, or of the data folder, and where they were looked for."""
        from precision_tool.lib.checks.overflow_search import find_statuses

        if folder is None:
            self.check_data()
        else:
            check_folder(folder, "dumps")
        return find_statuses(self, folder)

    def random_errors(
        self,
        left: str | None = None,
        right: str | None = None,
        graph: str | None = None,
        workers: int = 0,
        progress: Progress | None = None,
    ) -> list[RandomReport]:
        """What differs in two runs of the same script (npu/debug_0 and debug_1), one report a device, model and step.

        Of one run alone only the memory is checked. DataNotFoundError where there is no dump.
        """
        from precision_tool.lib.checks.random_search import find_random

        return find_random(self, left, right, graph, workers, progress)

    def _newest_results(self, *, tells: bool = False) -> list[str]:
        """The complete result files of the newest comparison with the benchmark; without one, of two NPU runs.

        `tells`: that a newer one is left out is a note.
        """
        self.check_data()
        folders = self.workspace.compare_dirs()
        if not folders:
            is_folder(self.workspace.root / "temp")  # says so where that cannot be told
            raise DataNotFoundError(
                f"{self.workspace.root}: no comparison result yet",
                "run `vc` or `ac -c` first, or name a file with -f",
            )
        newest = next((found for folder in folders if (found := _results_in(folder))), [])
        benchmarked = (found for folder in folders if (found := _results_in(folder)) and not is_of_two_runs(found[0]))
        paths = next(benchmarked, newest)
        if tells and paths != newest:
            kept = shown_path(os.path.dirname(newest[0]))
            self.workspace.notes.append(f"a newer result compares two NPU runs: `vcs -f {kept}` shows it")
        if not paths:
            raise DataNotFoundError(
                f"{folders[0]}: no complete result file",
                "run `vc` or `ac -c` again; `vcs -f` shows a folder or file with the result of a part",
            )
        return paths


class _Matcher:
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
        self._other: GoldenDumps | None = None
        side: BenchmarkSide = NoBenchmark()
        if isinstance(golden, Run):
            from precision_tool.lib.compare.folders import golden_leaf

            position = next((at for at, leaf in enumerate(leaves) if leaf.path == run.leaf.path), 0)
            with suppress(DataNotFoundError):  # the other run has no such step
                side = self._other = GoldenDumps(golden_leaf(golden, run.leaf, position, len(leaves)))
        elif golden is not None:
            side = golden
        self._side = side
        # Two runs are matched by the names of ops, unless a graph is asked for.
        by_name = self._other is not None and not run.is_named
        self._counterpart: Counterpart = same_name
        if by_name and self._other is not None:
            path = self._other.root
            for one in graphs():
                if path in (leaf.path for leaf in one.leaves):
                    self._counterpart = counterparts(run.file, one.file).of
        self._by_graph = None if by_name else GraphMatcher(self._dumps, run.file, side)

    def is_for(self, run: RunGraph, golden: GoldenFiles | Run | None) -> bool:
        """True if nothing of what it was made of was read again since."""
        leaf, file, is_named, side = self._of
        return leaf is run.leaf and file is run.file and is_named == run.is_named and side is golden

    def pairs_of(self, found: FoundOp, looks_again: bool) -> tuple[Pair, ...]:
        """The pairs of one op, of the files as they are now: they may be written anew while a prompt is open."""
        if looks_again:
            self._dumps.forget_changed()
            self._side.forget_changed()
        if self._by_graph is not None:
            return self._by_graph.pairs_of(found.op)
        other = None if self._other is None else self._other.index
        return match_name(flatten(found.op.name), self._dumps, self._side, other, self._counterpart)


@contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    """Ctrl+C does nothing in this block. Only the main thread may, and need, say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _way_back_from(chosen: str | None) -> Iterator[None]:
    """Errors about the graph that was chosen say how to be rid of it."""
    try:
        yield
    except (DataNotFoundError, FormatError) as error:
        if chosen is None or chosen not in error.message:
            raise
        raise type(error)(
            error.message, "it was chosen with graphs --use: `graphs --use auto` chooses automatically again"
        ) from error


def _check_any_rows(results: Sequence[LeafResult]) -> None:
    if any(result.rows for result in results):
        return
    reasons = list(dict.fromkeys(note.removeprefix("not compared: ") for result in results for note in result.notes))
    shown = "; ".join(reasons[:_SHOWN_REASONS])
    more = len(reasons) - _SHOWN_REASONS
    raise DataNotFoundError(
        f"none of {len(results)} dump folders could be compared: {shown or 'they hold no tensors'}"
        + (f"; and {more} more reasons" if more > 0 else ""),
        "name two folders that belong together with -lt and -rt, and their graph with -g",
    )


def _prefix_of(options: CompareOptions) -> str:
    """What the name of a result begins with that is not of every op, whole."""
    if isinstance(options.selection, OpNames):
        return _OP_PREFIX
    return _PART_PREFIX if options.selection is not None or options.limit else ""


def _part_of(path: str) -> str:
    """What is missing of a result by its name, empty for a whole one."""
    name = os.path.basename(path)
    return next((words for prefix, words in _PARTS.items() if name.startswith(prefix)), "")


def _has_entries(folder: Path) -> bool:
    return is_folder(folder) and bool(list_folder(str(folder)))


def _results_in(folder: Path) -> list[str]:
    try:
        return [path for path in find_results(str(folder)) if not os.path.basename(path).startswith(_SET_APART)]
    except DataNotFoundError:
        return []
