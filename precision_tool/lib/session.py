"""What a command, or an open prompt, works with: settings, a data folder, and what can be asked of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from precision_tool.lib.data.folder import Kept, Place
from precision_tool.lib.data.names import DataNames
from precision_tool.lib.errors import UsageError
from precision_tool.lib.graph.overview import DataOverview, overview
from precision_tool.lib.results.noise import NoiseFloor
from precision_tool.lib.settings import Settings
from precision_tool.lib.verdict.folder import JudgedFolder
from precision_tool.lib.workspace import open_workspace

# What compares and judges takes long to load; `ls`, `graphs` and the prompt begin without it.
if TYPE_CHECKING:
    from concurrent.futures import Executor

    from precision_tool.lib.checks.analysis import Analysis
    from precision_tool.lib.engine.scheduler import Progress
    from precision_tool.lib.inspect.arrays import TensorProxy
    from precision_tool.lib.pairing.fusion_pair import FusionPair
    from precision_tool.lib.study.study import Study
    from precision_tool.lib.toolkit.finder import Toolkit
    from precision_tool.lib.toolkit.tools import Tools
    from precision_tool.lib.verdict.blamed import Blame


#: In the place of a step or rank: all of them.
ALL = -1


class Session(JudgedFolder):
    """A data folder with its settings. Each method hands what is known to the room that does the work."""

    def __init__(self, settings: Settings, place: Place | None = None) -> None:
        super().__init__(open_workspace(settings.data, settings.work), place)
        self.settings = settings
        self.names = DataNames(self)
        self._toolkit: Toolkit | None = None
        #: The step and the rank that were asked for last, and the data as they have it, by its dump folders.
        self.step: int | None = None
        self.rank: int | None = None
        self._placed: dict[Place, Session] = {}

    def at(self, step: int | None = None, rank: int | None = None) -> Session:
        """The data as one step of one rank has it: of those only that are given, the first of the other.

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
                raise UsageError("which of the data folders?", "say --rank N, or --step N, or name one --data folder")
            return self
        place, data = self.place()
        if place not in self._placed:
            settings = self.settings if not data else replace(self.settings, data=Path(data), more_data=())
            self._placed[place] = Session(settings, place)
        found = self._placed[place]
        found.workspace.notes = self.workspace.notes
        return found

    def place(self) -> tuple[Place, str]:
        """The dump folders and the benchmark of the step and rank that were asked for last, and their data folder."""
        from precision_tool.lib.study.places import find_place

        return find_place([str(self.settings.data), *map(str, self.settings.more_data)], self.step, self.rank)

    def study_rows(self, threshold: float) -> list[Analysis]:
        """The rows that a study has of the step and rank that were asked for last, judged at a threshold.

        DataNotFoundError where no study has any.
        """
        from precision_tool.lib.checks.analysis import analyse
        from precision_tool.lib.study.places import kept_rows

        place, _ = self.place()
        tables = kept_rows([str(folder) for folder in self.workspace.result_dirs()], place, self.workspace.notes)
        return [analyse(path, table, threshold) for path, table in tables]

    def refresh(self, *what: Kept) -> None:
        """Forgets what was read of these kinds; without any everything, the toolkit too."""
        super().refresh(*what)
        self._placed.clear()
        if not what:
            self._toolkit = None

    def overview(self) -> DataOverview:
        """What the data folder holds, by names alone: nothing is opened."""
        return overview(self.workspace, next(iter(self.names.result_paths()), ""))

    # --- tensors as arrays ---

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

    # --- fusion ---

    def fusion_pair(self) -> FusionPair:
        """The run with fusion and the one without, told by their graphs. Errors say what is missing."""
        from precision_tool.lib.pairing.fusion_pair import find_pair

        self.check_data()
        return find_pair(self.run_graphs())

    def blame(self, analysis: Analysis, progress: Progress | None = None) -> Blame:
        """Which fusion pass computes wrong, by a comparison of a run with fusion. UsageError if it names no pass."""
        from precision_tool.lib.verdict.blame import blame_compared

        return blame_compared(analysis, progress)

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

    # --- comparisons ---

    def results(
        self, path: str | None = None, threshold: float | None = None, noise: NoiseFloor | None = None
    ) -> list[Analysis]:
        """The results of a file or folder, by default of the newest comparison, read back and judged.

        The threshold is that of the settings unless another is given.
        """
        from precision_tool.lib.checks.comparing import read_results

        return read_results(self, path, self.settings.threshold if threshold is None else threshold, noise)

    # --- many dumps at once ---

    def study(
        self,
        *,
        npu: str | None = None,
        golden: str | None = None,
        graph: str | None = None,
        steps: str | None = None,
        ranks: str | None = None,
        judge: str = "first",
        threshold: float | None = None,
        workers: int | None = None,
        executor: Executor | None = None,
        progress: Progress | None = None,
        fresh: bool = False,
        table: str = "",
        csv: bool = False,
        watch_seconds: float = 0.0,
        seen: Callable[[Study], None] | None = None,
    ) -> Study:
        """Every step, rank and model of the data folders, compared and judged as one; as `ac --all`.

        Parameters
        ----------
        npu, golden, graph : str, optional
            Folders of dumps and of benchmark tensors, and a graph, in the place of those of the data folders.
        steps, ranks : str, optional
            Which are wanted: ``"3"``, ``"0-7"`` or ``"1,5,8-"``.
        judge : str
            Which dumps are recomputed: those up to the "first" step that computes wrong, "suspects" or "all".
        threshold : float, optional
            Cosine similarity below which a tensor counts as wrong.
        workers : int, optional
            Threads or processes that share the work; 0: one per core.
        executor : concurrent.futures.Executor, optional
            Does the work instead of processes of our own.
        progress : callable, optional
            Called with the bytes that are done and those to do.
        fresh : bool
            Begin anew, whatever an earlier call did: else that is not done again.
        table : str
            The Parquet file of all rows; by default `study/study.parquet` in the folder of results. Needs pyarrow.
        csv : bool
            Write a result file for each step, rank and model as well.
        watch_seconds : float
            Look for new steps every so many seconds, and go on with them until Ctrl+C; 0: once.
        seen : callable, optional
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
        from precision_tool.lib.study.leaves import parse_numbers
        from precision_tool.lib.study.plan import Judging
        from precision_tool.lib.study.preparing import StudyOptions
        from precision_tool.lib.study.study import run_study

        options = StudyOptions(
            folders=[str(folder) for folder in (self.settings.data, *self.settings.more_data)],
            npu=npu, golden=golden, graph=graph,
            steps=None if steps is None else parse_numbers(steps),
            ranks=None if ranks is None else parse_numbers(ranks),
            judging=Judging(judge), table=table, csv=csv, results=str(self.workspace.output_dir("study")),
            threshold=self.settings.threshold if threshold is None else threshold,
        )  # fmt: skip
        disk = self.workspace.on_disk()
        return run_study(
            options, str(disk.output_dir("study")), cache=str(disk.output_dir("cache")),
            workers=self.settings.workers if workers is None else workers, executor=executor, progress=progress,
            fresh=fresh, watch_seconds=watch_seconds, seen=seen,
        )  # fmt: skip
