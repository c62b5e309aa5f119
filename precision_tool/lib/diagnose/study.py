"""One step of one rank: where its dump and its benchmark lie, and what a study has of it."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from precision_tool.lib.compare.cluster import ClusterExecutor
from precision_tool.lib.compare.data_folder import Place
from precision_tool.lib.compare.scheduler import Progress, Resources, WorkStoppedError, cores
from precision_tool.lib.data.dump_names import flatten
from precision_tool.lib.data.graph_cache import GraphStore
from precision_tool.lib.data.settings import DEFAULT_THRESHOLD
from precision_tool.lib.data.workspace import Workspace
from precision_tool.lib.diagnose.heat_maps import NEEDED, HeatMap, Maps
from precision_tool.lib.diagnose.replica_votes import StepVotes, count_votes
from precision_tool.lib.diagnose.run_checks import Analysis, analyse
from precision_tool.lib.diagnose.statistics_leaves import (
    Columns,
    LeafStatistics,
    Texts,
    rows_of,
    unpack,
    unpack_statistics,
)
from precision_tool.lib.diagnose.statistics_rules import StatisticsFound, judge_statistics
from precision_tool.lib.diagnose.study_conclusion import Conclusion, conclude, without_later_verdicts
from precision_tool.lib.diagnose.study_journal import (
    JOURNAL,
    Journal,
    KeptRows,
    LeafState,
    open_journal,
    read_rows,
    state_of,
)
from precision_tool.lib.diagnose.study_leaves import (
    BenchmarkFolder,
    StudyLeaf,
    list_leaves,
    pair_benchmarks,
    sources_of,
    spans,
)
from precision_tool.lib.diagnose.study_outcome import LeafOutcome
from precision_tool.lib.diagnose.study_plan import (
    TASK_BYTES,
    Judging,
    LeafOptions,
    LeafPlan,
    Prepared,
    StudyOptions,
    Task,
    batches,
    from_anywhere,
    prepare,
)
from precision_tool.lib.diagnose.study_running import run_tasks, watch
from precision_tool.lib.diagnose.study_table import TABLE, has_parquet, write_csvs, write_table
from precision_tool.lib.diagnose.study_task import LeafDone
from precision_tool.lib.errors import DataNotFoundError, PrecisionToolError
from precision_tool.lib.io.cache import CacheFiles
from precision_tool.lib.io.files import exists
from precision_tool.lib.messages import Message, render
from precision_tool.lib.model.comparison import Status
from precision_tool.lib.model.table import ColumnChoice, Table


def find_place(folders: Sequence[str], step: int | None, rank: int | None) -> tuple[Place, str]:
    """The dump folders (one a model) and benchmark of a step of a rank, by default of the first, and their data folder.

    DataNotFoundError where that was not dumped.
    """
    listing = list_leaves(sources_of(folders))
    fitting = [
        leaf for leaf in listing.leaves if (step is None or leaf.step == step) and (rank is None or leaf.rank == rank)
    ]
    if not fitting:
        steps, ranks = spans(listing.steps), spans(listing.ranks)
        raise DataNotFoundError("diagnose.study_place", step=step, rank=rank, steps=steps, ranks=ranks)
    first = fitting[0]
    leaves = [leaf for leaf in fitting if (leaf.step, leaf.rank) == (first.step, first.rank)]
    benchmarks = pair_benchmarks(listing.leaves).folders
    prints = {leaf.path: (leaf.fingerprint, _print_of(benchmarks.get(leaf.path))) for leaf in leaves}
    golden = benchmarks[first.path].path if first.path in benchmarks else ""
    return Place(leaves=tuple(leaf.path for leaf in leaves), golden=golden, prints=prints), first.data


def _print_of(folder: BenchmarkFolder | None) -> str:
    return "" if folder is None else folder.fingerprint


def study_rows(space: Workspace, place: Place, threshold: float) -> list[Analysis]:
    """Return the rows that a study has of a place, checked at a threshold; DataNotFoundError where none has any."""
    tables = kept_rows([str(folder) for folder in space.result_dirs()], place, space.notes)
    return [analyse(path, table, threshold) for path, table in tables]


def kept_rows(results: Sequence[str], place: Place, notes: list[str | Message]) -> list[tuple[str, Table]]:
    """Return the rows that studies in these folders of results have of a place: journal and table of each model.

    What has changed since is appended to `notes`. DataNotFoundError where none has any rows.
    """
    journals = [posixpath.join(folder, "study", JOURNAL) for folder in results]
    found = []
    for path in place.leaves:
        for journal in filter(exists, journals):
            kept = read_rows(journal, path)
            if kept is not None:
                found.append((journal, Table(tuple(rows_of(unpack(journal, kept.rows))), ColumnChoice(own_error=True))))
                notes += _changed(path, kept, place)
                break
    if not found:
        raise DataNotFoundError.of(place.leaves[0], "diagnose.study_no_rows")
    return found


def _changed(path: str, kept: KeptRows, place: Place) -> list[Message]:
    """Return a note on what has changed since a study had a leaf; another benchmark than the place's is not checked."""
    dump, benchmark = place.prints.get(path, (kept.dump, kept.benchmark_print))
    changed = [Message("study.note.its_dump")] if dump != kept.dump else []
    if kept.benchmark == place.golden and benchmark != kept.benchmark_print:
        changed.append(Message("study.note.its_benchmark"))
    return [Message("study.note.changed", path=path, changed=changed)] if changed else []


# --- A study from its folders to its conclusion: list, pair, plan, work, count votes, conclude ---


#: Tasks that are handed out at one time, for each worker.
_WINDOW = 2
#: Tasks for each worker, at least, where there is enough to do, and bytes of a task at least.
TASKS, _LEAST_BYTES = 8, 1 << 20
#: A leaf of fewer bytes is not shared by all workers: one has done it soon enough.
_SHARED_BYTES = 1 << 30
#: Groups of ranks that a note names.
_MAX_GROUPS = 4
#: What is said of rows without a tensor that could be read.
_NOT_THERE = (Status.NO_NPU_DUMP, Status.UNREADABLE)


@dataclass(frozen=True, kw_only=True)
class Study:
    """What a study found.

    Attributes
    ----------
    conclusion : Conclusion
        The earliest step, rank and op that computes wrong, on which ranks, and what replicas do not agree on.
    leaves : tuple of LeafState
        Every dump folder, by step, rank and model, with its counts and what its verdict accuses.
    votes : tuple of StepVotes
        On how many tensors replicas agree, by step.
    maps : tuple of HeatMap
        How far off each op is: step × op and rank × op.
    notes : tuple of Message
        Remarks on the data: what was left out, what could not be read, how ranks were counted.
    """

    conclusion: Conclusion
    leaves: tuple[LeafState, ...]
    votes: tuple[StepVotes, ...]
    maps: tuple[HeatMap, ...] = field(repr=False)
    notes: tuple[Message, ...] = ()
    judging: Judging = Judging.FIRST
    threshold: float = DEFAULT_THRESHOLD
    journal: str = ""
    table: str = ""
    #: What the leaves tell that were dumped as statistics; None without any.
    statistics: StatisticsFound | None = None
    #: Names of ops in the graph by those in file names, of the first leaf with statistics.
    names: Mapping[str, str] = field(default_factory=dict, repr=False)
    csvs: tuple[str, ...] = ()

    @property
    def steps(self) -> tuple[int, ...]:
        """Every step."""
        return tuple(sorted({one.leaf.step for one in self.leaves}))

    @property
    def ranks(self) -> tuple[int, ...]:
        """Every rank."""
        return tuple(sorted({one.leaf.rank for one in self.leaves}))

    @property
    def failures(self) -> tuple[LeafState, ...]:
        """The dump folders that nothing could be made of; each has its reason."""
        return tuple(one for one in self.leaves if one.failure)

    @property
    def is_recomputed(self) -> bool:
        """Whether ops of any dump folder were recomputed, which alone tells that they compute right."""
        return any(one.has_verdict for one in self.leaves)

    @property
    def tells(self) -> bool:
        """Whether anything speaks for or against the ops: what was recomputed or compared, or replicas."""
        voted = any(one.agreed or one.departures for one in self.votes)
        return voted or self.is_recomputed or any(one.compared for one in self.leaves)

    def to_dict(self) -> dict[str, Any]:
        """It as JSON."""
        culprit = self.conclusion.culprit
        place = self.conclusion.not_finite
        return {
            "culprit": None if culprit is None else culprit.to_dict(),
            "further": [one.to_dict() for one in self.conclusion.further],
            "not_finite": None if place is None else {"step": place[0], "rank": place[1], "tensor": place[2]},
            "steps": list(self.steps),
            "ranks": list(self.ranks),
            "judging": str(self.judging),
            "tells": self.tells,
            "is_recomputed": self.is_recomputed,
            "threshold": self.threshold,
            "leaves": [_leaf(one) for one in self.leaves],
            "votes": [
                {"step": one.step, "agreed": one.agreed, "departures": [_departure(each) for each in one.departures]}
                for one in self.votes
            ],
            "maps": [one.to_dict() for one in self.maps],
            "table": self.table or None,
            "statistics": None if self.statistics is None else self.statistics.to_dict(),
            "notes": list(map(render, self.notes)),
        }


def _leaf(one: LeafState) -> dict[str, Any]:
    return {
        "step": one.leaf.step, "rank": one.leaf.rank, "device": one.leaf.device, "model": one.leaf.model,
        "path": one.leaf.path, "tensors": one.rows, "compared": one.compared, "below": one.below,
        "not_finite": one.bad, "judged": one.judged, "right": one.right, "network": one.network,
        "accused": [{"op": each.op, "type": each.type, "cause": str(each.cause)} for each in one.accused],
        "failure": render(one.failure) if one.failure else None,
    }  # fmt: skip


def _departure(one: Any) -> dict[str, Any]:
    return {
        "op": one.op, "type": one.type, "role": str(one.role), "ranks": list(one.ranks),
        "agreeing": list(one.agreeing), "undecided": one.undecided, "fed_alike": one.fed_alike,
    }  # fmt: skip


class Runner:
    """Works a prepared study off, with a journal."""

    def __init__(
        self,
        prepared: Prepared,
        options: StudyOptions,
        journal: Journal,
        cache: str = "",
        host_of: Callable[[str], str] = lambda path: "",
    ) -> None:
        """`host_of` says whose workers read a path: the leaves of a task lie on one host."""
        self._prepared = prepared
        self._options = options
        self._journal = journal
        self._cache = cache
        self._host_of = host_of
        self._leaf_options = LeafOptions(
            threshold=options.threshold, graph=options.graph, only_suspects=options.judging is Judging.SUSPECTS
        )
        self._key = self._leaf_options.digest
        self.states: dict[str, LeafState] = {}
        self._first_wrong: int | None = None
        #: The result files of leaves that were written.
        self.csvs: tuple[str, ...] = ()
        self._total = prepared.nbytes
        self._done = 0

    def run(
        self,
        resources: Resources,
    ) -> None:
        """Does what the journal does not know. WorkStoppedError after Ctrl+C; what is done is kept."""
        progress = resources.progress or (lambda done, total: None)
        for plan, outcome in self._journal.known(self._prepared.plans, self._key):
            self._remember(plan, outcome)
        left = [plan for plan in self._prepared.plans if not self._is_done(plan)]
        self._done = self._total - sum(plan.leaf.nbytes for plan in left)
        progress(self._done, self._total)

        def take(task: Task, done: list[LeafDone], given_up: bool = False) -> None:
            by_path = {plan.leaf.path: plan for plan in task.leaves}
            self._journal.keep([(by_path[one.path], one) for one in done], self._key, given_up=given_up)
            for one in done:
                self._remember(by_path[one.path], one.outcome)
            self._done += task.nbytes
            progress(min(self._done, self._total), self._total)

        def give_up(task: Task, reason: Message) -> None:
            lost = LeafOutcome(failure=reason, judged=task.judges)
            take(task, [LeafDone(path=plan.leaf.path, outcome=lost) for plan in task.leaves], True)

        try:
            run_tasks(
                self._tasks(left, resources.count), resources.open, window=_WINDOW * resources.count,
                take=take, give_up=give_up,
            )  # fmt: skip
        except KeyboardInterrupt:
            raise self._stopped("study_stopped") from None
        except BrokenExecutor as error:
            raise self._stopped("study_executor_lost", exit_code=2) from error

    def _stopped(self, kind: str, exit_code: int = 130) -> WorkStoppedError:
        count = len({plan.leaf.path for plan in self._prepared.plans})
        text = render(Message(f"error.diagnose.{kind}.text", done=len(self.states), count=count))
        return WorkStoppedError(text, render(Message(f"error.diagnose.{kind}.hint")), exit_code=exit_code)

    def _remember(self, plan: LeafPlan, outcome: LeafOutcome) -> None:
        path = plan.leaf.path
        is_own, is_start = path in self._prepared.own, path in self._prepared.starts
        state = self.states[path] = state_of(plan.leaf, outcome, is_own=is_own, is_start=is_start)
        if state.accused and (self._first_wrong is None or plan.leaf.step < self._first_wrong):
            self._first_wrong = plan.leaf.step

    def _judges(self, step: int) -> bool:
        """Whether the leaves of a step are to be recomputed, by what is known now."""
        if self._options.judging is not Judging.FIRST:
            return True
        return self._first_wrong is None or step <= self._first_wrong

    def _is_done(self, plan: LeafPlan) -> bool:
        state = self.states.get(plan.leaf.path)
        return state is not None and (state.judged or not self._judges(plan.leaf.step) or self._is_settled(state))

    def _is_settled(self, state: LeafState) -> bool:
        """Whether a leaf was left without a verdict as nothing in it asked for one."""
        return self._leaf_options.only_suspects and not state.failure

    def _tasks(self, left: Sequence[LeafPlan], workers: int) -> Iterator[Task]:
        """The tasks in order, small enough that every worker has some."""
        total = sum(plan.leaf.nbytes for plan in left)
        share = total // (workers * TASKS)
        for batch in batches(left, max(_LEAST_BYTES, min(TASK_BYTES, share)), self._host_of):
            largest = max(plan.leaf.nbytes for plan in batch)
            is_shared = workers > 1 and len(batch) == 1 and largest >= max(_SHARED_BYTES, total / workers)
            yield Task(
                leaves=batch, options=self._leaf_options, judges=self._judges(batch[0].leaf.step), cache=self._cache,
                workers=workers if is_shared else max(1, workers // len(left)), shared=is_shared,
            )  # fmt: skip

    def outcome(self, leaf: StudyLeaf) -> LeafOutcome | None:
        """What was found in a leaf, whole but for its votes."""
        return self._journal.outcome(leaf.path, self._key)

    def columns(self, state: LeafState, wanted: Sequence[str] | None = None) -> Columns | None:
        """The rows of a leaf; None if there are none. Own errors are those of a leaf that counts as judged only."""
        rows = self._journal.rows(state.leaf.path, self._key)
        columns = unpack(self._journal.path, rows, wanted) if rows else None
        if columns is not None and not state.judged and "own_error" in columns:
            columns["own_error"] = np.full(len(columns["own_error"]), np.nan)
        return columns

    def _statistics(self, state: LeafState) -> LeafStatistics | None:
        """What a worker read of a leaf that was dumped as statistics; None if it could not."""
        kept = self._journal.statistics(state.leaf.path, self._key)
        return unpack_statistics(self._journal.path, kept, state.leaf.step, state.leaf.rank) if kept else None

    def _telling(self, state: LeafState, ops: Collection[str]) -> Mapping[str, int]:
        """Which of the ops a leaf tells of: 2 where one was recomputed or compared, 1 where it was only dumped."""
        columns = self.columns(state, ("op", "status", "own_error", "cosine"))
        if columns is None:
            return {}
        ops_of, statuses = columns["op"], columns["status"]
        assert isinstance(ops_of, Texts)
        assert isinstance(statuses, Texts)
        is_asked = ops_of.where(lambda name: name in ops)
        is_known = ~np.isnan(np.asarray(columns["own_error"]))
        if state.is_own:
            is_known |= ~np.isnan(np.asarray(columns["cosine"]))
        levels = np.where(is_known, 2, statuses.where(lambda status: status not in _NOT_THERE))
        best = np.zeros(len(ops_of.texts), np.int64)
        np.maximum.at(best, ops_of.codes[is_asked], levels[is_asked])
        return {ops_of.texts[code]: int(best[code]) for code in np.unique(ops_of.codes[is_asked]).tolist()}

    def final_states(self) -> list[LeafState]:
        """Every leaf in order, as if it had been worked on alone, one after the other."""
        ordered = sorted(self.states.values(), key=lambda state: state.leaf.key)
        return without_later_verdicts(ordered) if self._options.judging is Judging.FIRST else ordered

    def votes(self, states: Sequence[LeafState]) -> list[StepVotes]:
        """The votes of every step; those of one step are in memory at one time."""
        found = []
        for step, of_step in groupby(states, key=lambda state: state.leaf.step):
            ballots = [
                (state.leaf.rank, state.network, self._journal.votes(state.leaf.path, self._key)) for state in of_step
            ]
            found.append(count_votes(step, ballots))
        return found

    def _names(self, states: Sequence[LeafState]) -> dict[str, str]:
        """Names of ops by how files spell them, by the graph of the first leaf that was dumped as statistics."""
        for state in states:
            outcome = self.outcome(state.leaf) if state.leaf.statistics and not state.failure else None
            if outcome is not None and outcome.graph:
                with suppress(PrecisionToolError):
                    return {flatten(op.name): op.name for op in GraphStore(CacheFiles(list)).load(outcome.graph).ops}
        return {}

    def result(self) -> Study:
        """What the study comes to."""
        states = self.final_states()
        votes = self.votes(states)
        maps = Maps()
        for state in states:
            columns = self.columns(state, NEEDED)
            if columns is not None:
                maps.take(state.leaf.step, state.leaf.rank, columns)
        table = self._written(states)
        return Study(
            conclusion=conclude(states, votes, self._telling), leaves=tuple(states), votes=tuple(votes),
            maps=maps.maps(), notes=(*self._prepared.notes, *_network_notes(states), *_lacking_notes(states)),
            judging=self._options.judging, threshold=self._options.threshold, journal=self._journal.path,
            statistics=judge_statistics(states, self.columns, self._statistics), names=self._names(states),
            table=table, csvs=self.csvs,
        )  # fmt: skip

    def _written(self, states: Sequence[LeafState]) -> str:
        """The table of all rows, and the result files that were asked for; "" where nothing can write the table."""
        folder = self._options.results or posixpath.dirname(self._journal.path)
        if self._options.csv:
            self.csvs = tuple(write_csvs(posixpath.join(folder, "results"), states, self.columns))
        path = self._options.table
        if not path and not has_parquet():
            return ""
        path = path or posixpath.join(folder, TABLE)
        write_table(path, states, self.columns)
        return path


def _network_notes(states: Sequence[LeafState]) -> list[Message]:
    """Return a note where ranks run different graphs, as the stages of a pipeline do."""
    ranks: dict[str, set[int]] = {}
    for state in states:
        if state.network:
            ranks.setdefault(state.network, set()).add(state.leaf.rank)
    if len(ranks) < 2:
        return []
    groups = sorted(ranks.values(), key=min)[:_MAX_GROUPS]
    shown = [Message("study.ranks", count=len(group), ranks=spans(group, 3)) for group in groups]
    return [Message("study.note.other_graphs", count=len(ranks), groups=shown)]


def _lacking_notes(states: Sequence[LeafState]) -> list[Message]:
    """Return notes on dumps without a graph, and on tensors that cannot be read."""
    notes = []
    lacking = [state for state in states if state.lack]
    if lacking:
        notes.append(Message("study.note.no_graph", count=len(lacking), all=len(states), reason=lacking[0].lack))
    unread = [state for state in states if state.unreadable]
    if unread:
        place = Message("study.place", step=unread[0].leaf.step, rank=unread[0].leaf.rank)
        count = sum(state.unreadable for state in unread)
        notes.append(Message("study.note.unreadable", count=count, place=place))
    return notes


def run_study(
    options: StudyOptions,
    folder: str,
    *,
    cache: str = "",
    workers: int = 0,
    executor: Executor | None = None,
    progress: Progress | None = None,
    fresh: bool = False,
    watch_seconds: float = 0.0,
    seen: Callable[[Study], None] | None = None,
) -> Study:
    """Studies what `options` name; `folder`, which is there, keeps the journal, `cache` parsed graphs.

    `workers` processes (0: one per core), or any `executor`, share the work. What the journal knows is not done again;
    with `fresh` all is. With `watch_seconds` it goes on as new steps arrive, until Ctrl+C; `seen` is called with each
    study. UsageError while another study is at work in `folder`; WorkStoppedError after Ctrl+C during work.
    """
    workers = workers or cores()
    if isinstance(executor, ClusterExecutor):
        workers, options = executor.workers, from_anywhere(options)
    with open_journal(folder, fresh=fresh) as journal:

        def study(prepared: Prepared) -> Study:
            on_hosts = {"host_of": executor.host_of} if isinstance(executor, ClusterExecutor) else {}
            runner = Runner(prepared, options, journal, cache, **on_hosts)
            runner.run(Resources(workers, executor, progress))
            return runner.result()

        if not watch_seconds:
            return study(prepare(options))
        return watch(lambda: prepare(options), study, seen or (lambda _: None), seconds=watch_seconds)
