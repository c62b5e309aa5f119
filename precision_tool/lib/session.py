"""What a command, or an open prompt, works with: settings, a data folder, and what was computed from both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_tool.lib.compare.data_folder import CacheKind, DataFolder, DataNames, Place
from precision_tool.lib.data.overview import DataOverview, overview
from precision_tool.lib.data.settings import Settings, with_settings
from precision_tool.lib.data.workspace import open_workspace, shown_path
from precision_tool.lib.messages.errors import NoBenchmarkError, UsageError

# What compares and judges takes long to load; `ls`, `graphs` and the prompt begin without it.
if TYPE_CHECKING:
    from precision_tool.lib.compare.arrays import Side, TensorProxy
    from precision_tool.lib.compare.folders import CompareOptions
    from precision_tool.lib.compare.scheduler import Progress, Resources
    from precision_tool.lib.compare.toolkit import Toolkit, Tools
    from precision_tool.lib.data.graph_catalog import FoundOp, RunGraph
    from precision_tool.lib.diagnose.opened_step import OpenedStep
    from precision_tool.lib.diagnose.overflow import OverflowReport
    from precision_tool.lib.diagnose.passports import PassportPair
    from precision_tool.lib.diagnose.preflight_model import Preflight
    from precision_tool.lib.diagnose.random_errors import RandomReport
    from precision_tool.lib.diagnose.study import Study
    from precision_tool.lib.diagnose.study_plan import StudyOptions
    from precision_tool.lib.diagnose.whatif import WhatIf
    from precision_tool.lib.model.comparison import Pair
    from precision_tool.lib.model.graph import Op
    from precision_tool.lib.view.comparison_result import CompareResults
    from precision_tool.lib.view.diagnosis_result import DiagnosisResult
    from precision_tool.lib.view.op_report import OpView


#: In the place of a step or rank: all of them.
ALL = -1


class Session:
    """An open data folder: its settings, what was read of it, and the step and rank that are looked at.

    Attributes
    ----------
    settings : Settings
        Where the data lies, and the defaults of all commands.
    data : DataFolder
        What the data folder holds; read when it is asked for, and again only where it changed.
    workspace : Workspace
        Its folders, and the notes that are to be shown.
    names : DataNames
        Names of ops, results and so on, for completion.
    step, rank : int or None
        Those that were asked for last.
    """

    def __init__(self, settings: Settings, place: Place | None = None) -> None:
        self.settings = settings
        self.workspace = open_workspace(settings.data, settings.work, "" if place is None else place.results)
        self.data = DataFolder(self.workspace, place)
        self.names = DataNames(self.data)
        self.step: int | None = None
        self.rank: int | None = None
        self._toolkit: Toolkit | None = None
        self._placed: dict[Place, Session] = {}

    def __repr__(self) -> str:
        at = "".join(
            f", {name} {number}" for name, number in (("step", self.step), ("rank", self.rank)) if number is not None
        )
        return f"<Session of {shown_path(str(self.workspace.root))}{at}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        from precision_tool.lib.view.console import contents
        from precision_tool.lib.view.html import text_of

        printer.text(repr(self) if cycle else text_of(contents(self.overview())))

    def _repr_html_(self) -> str:
        """Return what a notebook shows: what the data folder holds."""
        from precision_tool.lib.view.console import contents
        from precision_tool.lib.view.html import html_of

        return html_of(contents(self.overview()))

    def at(self, step: int | None = None, rank: int | None = None) -> Session:
        """Return the session of one step and rank; of a number alone the first of the other.

        Parameters
        ----------
        step, rank : int, optional
            Which are meant from now on; by default those of the call before, `ALL` (-1) for no one in particular.

        Returns
        -------
        Session
            This one where no step or rank was ever asked for; else one with their dump and their benchmark alone.

        Raises
        ------
        DataNotFoundError
            That step of that rank was not dumped.
        UsageError
            There are several data folders, and neither is given.
        """
        self.step = self.step if step is None else None if step == ALL else step
        self.rank = self.rank if rank is None else None if rank == ALL else rank
        if self.step is None and self.rank is None:
            if self.settings.more_data:
                raise UsageError("cli.which_data_folder")
            return self
        place, data = self.place()
        if place not in self._placed:
            settings = self.settings if not data else replace(self.settings, data=Path(data), more_data=())
            self._placed[place] = Session(settings, place)
        placed = self._placed[place]
        placed.workspace.notes = self.workspace.notes
        return placed

    def place(self) -> tuple[Place, str]:
        """Return the dump folders and the benchmark of the step and rank in use, and their data folder."""
        from precision_tool.lib.diagnose.study import find_place

        return find_place([str(self.settings.data), *map(str, self.settings.more_data)], self.step, self.rank)

    def refresh(self, *what: CacheKind) -> None:
        """Forget what was read of these kinds; without any everything, the toolkit too."""
        self.data.refresh(*what)
        self._placed.clear()
        if not what:
            self._toolkit = None

    # --- what was dumped ---

    def overview(self) -> DataOverview:
        """Return what the data folder holds, by names alone: nothing is opened."""
        return overview(self.workspace, next(iter(self.names.result_paths()), ""))

    def tensors(
        self, name: str, graph: str | None = None, *, slot: str = "", side: Side = "npu", run: int | None = None
    ) -> tuple[TensorProxy, ...]:
        """Return the tensors of an op or of a file, as arrays that are read when their values are used.

        Parameters
        ----------
        name : str
            An op, as for `find_ops`; a dump file or `.npy`; either with a slot behind it, ``"conv1:output:0"``; or an
            op or data set of PyTorch's dumps, ``"/Addmm/4/output/result"``.
        graph : str, optional
            A graph file to look the op up in; by default those of the runs.
        slot : str
            The slot, if `name` has none behind it: ``"input:1"``, ``"output:0"``.
        side : {"npu", "benchmark"}
            The side. Tensors without a benchmark are left out of the benchmark's side.
        run : int, optional
            The NPU run of an op: 0 for debug_0; by default all that have it.

        Returns
        -------
        tuple of TensorProxy
            Inputs, then outputs. Those of an op have their `benchmark`, where there is one. `numpy.asarray` of one
            is the array: of the type in the file, or of a wider one where numpy has none (``bfloat16``).

        Raises
        ------
        DataNotFoundError
            Nothing is called so, or it was not dumped.
        FormatError
            The file is damaged, or holds statistics only.
        UsageError
            There is no such side.
        """
        from precision_tool.lib.compare.arrays import on_side, open_tensors

        name = f"{_given(name)}:{slot}" if slot else _given(name)
        return on_side(open_tensors(self.data, name, graph, run), side, name)

    def tensor(
        self, name: str, graph: str | None = None, *, slot: str = "", side: Side = "npu", run: int | None = None
    ) -> TensorProxy:
        """Return the single tensor of a name, as `tensors` takes it; of several runs that of the first.

        UsageError if there are several.
        """
        from precision_tool.lib.compare.arrays import on_side, one_tensor

        name = f"{_given(name)}:{slot}" if slot else _given(name)
        (tensor,) = on_side((one_tensor(self.data, name, graph, run),), side, name)
        return tensor

    def ops(self, op_type: str | None = None) -> tuple[Op, ...]:
        """Return the ops of the first NPU run's graph, in its order.

        Parameters
        ----------
        op_type : str, optional
            Only ops of this type, as ``"Conv2D"``.

        Raises
        ------
        DataNotFoundError
            There is no graph.
        """
        (run, *_) = self.run_graphs()
        return tuple(op for op in run.file.ops if op_type in (None, op.type))

    def op(self, name: str, graph: str | None = None) -> OpView:
        """Return everything about one op: a notebook shows what `ni` does.

        Parameters
        ----------
        name : str
            The op, as for `find_ops`.
        graph : str, optional
            A graph file to look it up in; by default those of the runs.

        Returns
        -------
        OpView
            `tensors` are arrays, `rows` their comparison with the benchmark, `verdict` what recomputing it showed.

        Raises
        ------
        DataNotFoundError
            No op is called so.
        UsageError
            Several ops' names have this part.
        """
        from precision_tool.lib.compare.arrays import open_tensors
        from precision_tool.lib.view.notebook import progress
        from precision_tool.lib.view.op_report import OpView, report_of

        hits = self.find_ops(_given(name), graph)
        with progress("reading") as shown:
            reports = [report_of(self.data, hit, name, self.settings.workers, shown) for hit in hits]
        is_dumped = any(row.pair.npu is not None and row.pair.slot for row in reports[0].rows)
        tensors = open_tensors(self.data, reports[0].op.name, graph, reports[0].run.number) if is_dumped else ()
        return OpView(tuple(reports), self.settings.threshold, tensors)

    def run_graphs(self, graph: str | None = None) -> tuple[RunGraph, ...]:
        """Return the graph of every dumped model of every NPU run (see `DataFolder.run_graphs`)."""
        return self.data.run_graphs(graph)

    def find_ops(self, name: str, graph: str | None = None) -> tuple[FoundOp, ...]:
        """Return the op of this name, part of a name or number, as `[17]`, in every graph.

        UsageError for a part of the names of several ops, with these.
        """
        return self.data.find_ops(name, graph)

    def pairs_of(self, op: FoundOp) -> tuple[Pair, ...]:
        """Return every input and output of an op's dump with its benchmark tensor."""
        return self.data.pairs_of(op)

    def cosines(self, run: RunGraph | None = None) -> Mapping[str, float]:
        """Return the lowest cosine of each op's outputs in the newest result (see `DataFolder.cosines`)."""
        return self.data.cosines(run)

    # --- the vendor's toolkit ---

    def toolkit(self) -> Toolkit:
        """Return what was found of the vendor's toolkit; it is looked for once."""
        from precision_tool.lib.compare.toolkit import find_toolkit

        if self._toolkit is None:
            self._toolkit = find_toolkit(str(self.settings.cmd_root_path), memories=self.workspace.cache_dirs())
        return self._toolkit

    def tools(self) -> Tools:
        """Return its programs, ready to run, with the output folder as the place of logs."""
        from precision_tool.lib.compare.toolkit import Tools

        return Tools(
            toolkit=self.toolkit(),
            folder=str(self.workspace.output_dir("toolkit")),
            cache=str(self.workspace.output_dir("op_graph")),
            python=self.settings.python,
            time_limit=self.settings.toolkit_seconds,
        )

    # --- comparisons and checks ---

    def compare(
        self,
        npu: str | None = None,
        golden: str | None = None,
        *,
        options: CompareOptions | None = None,
        resources: Resources | None = None,
    ) -> CompareResults:
        """Compare two folders, by default those of the data folder, and write the result files.

        Parameters
        ----------
        npu, golden : str, optional
            The NPU's dump and what it is compared with.
        options : CompareOptions, optional
            Those of `vc`: the graph, the threshold, a selection of ops; by default the threshold of the settings.
        resources : Resources, optional
            Who shares the work; by default as many workers as the settings say.

        Returns
        -------
        CompareResults
            A list of `CompareResult`, one for each folder of dump files; `results` gives the same objects, read back.

        Raises
        ------
        DataNotFoundError
            There is nothing to compare.
        ComparisonStoppedError
            The work ended early; what is done was written.
        """
        from precision_tool.lib.diagnose.comparing import compare
        from precision_tool.lib.view.comparison_result import CompareResult, CompareResults

        options = options or self.default_options()
        with self._working("comparing", resources) as shared:
            analyses = compare(self.data, npu, golden, options, shared)
        return CompareResults(CompareResult(analysis, data=self.data) for analysis in analyses)

    def diagnose(
        self,
        npu: str | None = None,
        golden: str | None = None,
        *,
        options: CompareOptions | None = None,
        resources: Resources | None = None,
        prove: bool = False,
    ) -> DiagnosisResult:
        """Compare, check everything and name the op that computes wrong, as `ac -c`; results are written as there.

        Parameters
        ----------
        npu, golden : str, optional
            The NPU's dump and what it is compared with; by default those of the data folder. Without a benchmark the
            dump is judged alone.
        options : CompareOptions, optional
            The graph, the threshold, a selection of ops; by default the threshold of the settings.
        resources : Resources, optional
            Who shares the work; by default as many workers as the settings say.
        prove : bool
            Whether to mend each culprit and recompute what is behind it, as `ac --prove`: the `evidence` says how much
            of the deviation it explains.

        Returns
        -------
        DiagnosisResult
            `culprits`, `causes` and `confidence`, the sentences of its `evidence`, what to do `next`. A notebook shows
            it as a card.

        Raises
        ------
        DataNotFoundError
            There is nothing to compare, and nothing to judge alone.
        ComparisonStoppedError, WorkStoppedError
            The work ended early.
        """
        from precision_tool.lib.diagnose.casts import cast_pairs
        from precision_tool.lib.diagnose.comparing import compare, forget_second_run
        from precision_tool.lib.diagnose.judging import judge, with_checks
        from precision_tool.lib.diagnose.run_checks import Analysis, all_checks, check_benchmark_fits
        from precision_tool.lib.view.diagnosis_result import diagnosis_result

        options = replace(options or self.default_options(), extremes=True, extra_pairs=cast_pairs)
        analyses: list[Analysis] | None = None
        try:
            with self._working("comparing", resources) as shared:
                analyses = compare(self.data, npu, golden, options, shared)
            check_benchmark_fits(analyses)
        except NoBenchmarkError:
            if not self.data.kind().has_graph:
                raise
            analyses = None
        graph = options.graph
        checks = all_checks(self.data, analyses or (), options.threshold, npu=npu, graph=graph)
        with self._working("recomputing", resources) as shared:
            judged = judge(self.data, analyses, options.threshold, shared, npu=npu, graph=graph, prove=prove)
        diagnoses, checks = with_checks(judged, checks)
        if any(diagnosis.verdict is not None and diagnosis.verdict.run for diagnosis in diagnoses):
            forget_second_run(self.workspace)
        return diagnosis_result(self.data, diagnoses, checks, npu, golden)

    def what_if(self, *names: str, graph: str | None = None) -> tuple[WhatIf, ...]:
        """Mend ops, recompute what is behind them, and return what is left of the deviation from the benchmark.

        Parameters
        ----------
        *names : str
            Ops, as for `find_ops`; data and variables too.
        graph : str, optional
            A graph file to look the ops up in.

        Returns
        -------
        tuple of WhatIf
            One for each op, and of several a last one with all of them mended: `effect`, `loss`, `outputs`, and
            `explained`, the share of the deviation that goes away.

        Raises
        ------
        DataNotFoundError, UsageError
            There is no such op, it was not dumped, or nothing tells its right value.
        """
        from precision_tool.lib.diagnose.whatif import replay_of_ops

        replay, ops = replay_of_ops(self.data, [_given(name) for name in names], graph)
        alone = [replay.without([op]) for op in ops]
        return (*alone, replay.without(ops)) if len(ops) > 1 else tuple(alone)

    @contextmanager
    def _working(self, what: str, resources: Resources | None) -> Iterator[Resources]:
        """Give the workers of the settings, with a bar in a notebook, unless others were given."""
        from precision_tool.lib.view.notebook import progress

        resources = resources or self.resources()
        if resources.progress is not None:
            yield resources
            return
        with progress(what) as shown:
            yield replace(resources, progress=shown)

    def results(self, path: str | None = None, threshold: float | None = None) -> CompareResults:
        """Read back the results of a file or folder, by default of the newest comparison.

        The threshold is that of the settings unless another is given.
        """
        from precision_tool.lib.diagnose.comparing import read_results
        from precision_tool.lib.view.comparison_result import CompareResult, CompareResults

        threshold = with_settings(self.settings, {"threshold": threshold}).threshold
        analyses = read_results(self.data, path, threshold)
        return CompareResults(CompareResult(analysis, data=self.data) for analysis in analyses)

    def default_options(self) -> CompareOptions:
        """Return the options of a comparison with the threshold of the settings."""
        from precision_tool.lib.compare.folders import CompareOptions

        return CompareOptions(threshold=self.settings.threshold)

    def resources(self) -> Resources:
        """Return as many workers as the settings say."""
        from precision_tool.lib.compare.scheduler import Resources

        return Resources(self.settings.workers)

    def passports(self, npu: str | None = None, golden: str | None = None) -> PassportPair | None:
        """Return what the runs were, as the training helper wrote it or msprobe recorded it, and what differs.

        None without two passports, or two dumps of msprobe.

        By default of npu/debug_0 and the benchmark, or without that npu/debug_1; else of the runs that two folders
        belong to. A passport that is damaged is a note of the workspace, and counts as none.
        """
        from precision_tool.lib.diagnose.recorded_sides import find_differences

        return find_differences(self.workspace, npu, golden)

    def overflow(
        self,
        folder: str | None = None,
        graph: str | None = None,
        limit: int = 3,
        resources: Resources | None = None,
    ) -> tuple[OverflowReport, str]:
        """Return the overflow in a folder, or in the data folder, and where status files were looked for.

        The first `limit` ops have figures. DataNotFoundError where there is neither a status file nor a dump.
        """
        from precision_tool.lib.compare.scheduler import THIS_THREAD
        from precision_tool.lib.diagnose.overflow import find_overflow

        return find_overflow(self.data, folder, graph, limit, resources or THIS_THREAD)

    def preflight(
        self,
        benchmark: str | OpenedStep | None = None,
        graph: str | None = None,
        *,
        types: Sequence[str] = ("float16", "bfloat16"),
        progress: Progress | None = None,
        **options: float,
    ) -> Preflight:
        """Tell what 16 bits will do to a step of the benchmark, and which ops to keep in float32, as `preflight`.

        Parameters
        ----------
        benchmark : str or OpenedStep, optional
            The benchmark's step: a data folder, a dump of msprobe at any level, a folder of `.npy` files, or what
            `open_step` returned; by default the benchmark of the data folder, at the session's step and rank.
        graph : str, optional
            TensorFlow's graph; by default the one saved with the step.
        types : sequence of str
            "float16", "bfloat16".
        progress : callable, optional
            Called with (done, total).
        **options : float
            `bound_loss` and `bound_gradients`, the largest relative errors that are allowed, and `seconds` for the
            search.

        Returns
        -------
        Preflight
            For each type ranges, loss scale, sensitivities, and the ops to keep in float32 with the errors before and
            after.

        Raises
        ------
        DataNotFoundError
            There is no benchmark, no graph of it, or none of that step and rank.
        UsageError
            There are several steps or ranks, statistics only, or no float32 benchmark.
        """
        from precision_tool.lib.diagnose.opened_step import described, open_step
        from precision_tool.lib.diagnose.preflight import preflight

        opened = (
            open_step(self.workspace, benchmark, graph, step=self.step, rank=self.rank)
            if benchmark is None or isinstance(benchmark, str)
            else benchmark
        )
        self.workspace.notes += opened.notes
        result = preflight(opened.emulator, tuple(types), progress=progress, **options)
        return described(result, opened)

    def random_errors(
        self,
        left: str | None = None,
        right: str | None = None,
        graph: str | None = None,
        resources: Resources | None = None,
    ) -> list[RandomReport]:
        """Return what differs in two runs of the same script (npu/debug_0 and debug_1), a report a device, model, step.

        Of one run alone only the memory is checked. DataNotFoundError where there is no dump.
        """
        from precision_tool.lib.diagnose.random_errors import find_random

        return find_random(self.data, left, right, graph, resources or self.resources())

    def study(
        self,
        options: StudyOptions | None = None,
        resources: Resources | None = None,
        *,
        fresh: bool = False,
        watch_seconds: float = 0.0,
        on_study: Callable[[Study], None] | None = None,
    ) -> Study:
        """Compare and diagnose every step, rank and model of the data folders, as `ac --all`.

        Parameters
        ----------
        options : StudyOptions, optional
            What is studied and how; folders that it does not name are those of the session.
        resources : Resources, optional
            Who shares the work; progress is counted in bytes.
        fresh : bool
            Begin anew, whatever an earlier call did: else that is not done again.
        watch_seconds : float
            Look for new steps every so many seconds, and go on with them until Ctrl+C; 0: once.
        on_study : callable, optional
            Called with each study while it is watched.

        Returns
        -------
        Study
            Its `conclusion` names the earliest step, rank and op, and on which ranks it computes wrong.

        Raises
        ------
        DataNotFoundError
            There is no dump, or what was named is not there.
        UsageError
            Another study is at work with the same folder of results.
        WorkStoppedError
            After Ctrl+C; the same call goes on from there.
        """
        from precision_tool.lib.diagnose.study import run_study
        from precision_tool.lib.diagnose.study_plan import StudyOptions

        options = options or StudyOptions(threshold=self.settings.threshold)
        resources = resources or self.resources()
        if not options.folders:
            options = replace(options, folders=[*map(str, (self.settings.data, *self.settings.more_data))])
        options = replace(options, results=options.results or str(self.workspace.output_dir("study")))
        disk = self.workspace.on_disk()
        options = replace(options, fresh=fresh, watch_seconds=watch_seconds)
        folder, cache = str(disk.output_dir("study")), str(disk.output_dir("cache"))
        return run_study(options, folder, resources, cache=cache, on_study=on_study)


def _given(name: str | None) -> str:
    """Return a name that was given; UsageError for None, as the culprit of a run without a fault is."""
    if not name:
        raise UsageError("data.empty_op_name")
    return name
