"""Has a study's tasks done, tries again what failed, gives up what cannot be done, and goes on as new steps arrive."""

from __future__ import annotations

import posixpath
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np

from precision_tool.lib.compare import scheduler
from precision_tool.lib.compare.cluster import ClusterExecutor, near
from precision_tool.lib.compare.data_folder import Place
from precision_tool.lib.compare.scheduler import ALL_CORES, Resources, WorkersLostError, WorkStoppedError
from precision_tool.lib.data.dump_names import flatten
from precision_tool.lib.data.graph_cache import GraphStore
from precision_tool.lib.data.settings import DEFAULT_THRESHOLD
from precision_tool.lib.data.workspace import Workspace
from precision_tool.lib.diagnose import study_table
from precision_tool.lib.diagnose.curves import CURVE_COLUMNS, Curves, LeafRows, curves_of
from precision_tool.lib.diagnose.replica_count import Ballot, StepSums, StepVotes, count_votes
from precision_tool.lib.diagnose.replica_feeds import StepFeeds, feeds_of_step, same_batch_note, shifts_of
from precision_tool.lib.diagnose.replica_votes import Role, Vote, unpack_votes
from precision_tool.lib.diagnose.run_checks import Analysis, analyse
from precision_tool.lib.diagnose.study_conclusion import (
    Conclusion,
    conclude,
    in_own_steps,
    in_their_steps,
    without_later_verdicts,
)
from precision_tool.lib.diagnose.study_journal import (
    JOURNAL,
    Excuse,
    Journal,
    KeptRows,
    LeafDone,
    LeafOutcome,
    LeafState,
    open_journal,
    read_rows,
    state_of,
)
from precision_tool.lib.diagnose.study_leaves import (
    NO_BENCHMARK,
    StudyLeaf,
    list_leaves,
    pair_benchmarks,
    sources_of,
)
from precision_tool.lib.diagnose.study_peers import OwnErrors, with_excused
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
from precision_tool.lib.diagnose.study_statistics import (
    LeafStatistics,
    StatisticsFound,
    judge_statistics,
    unpack_statistics,
)
from precision_tool.lib.diagnose.study_task import run_task
from precision_tool.lib.io.cache import CacheFiles
from precision_tool.lib.io.files import exists
from precision_tool.lib.io.stores import take_unread
from precision_tool.lib.messages import Message, render
from precision_tool.lib.messages.errors import DataNotFoundError, PrecisionToolError
from precision_tool.lib.model.comparison import Status
from precision_tool.lib.model.table import ColumnChoice, Table
from precision_tool.lib.model.wording import spans

#: A task that failed so often is given up.
TRIES = 3

#: Opens whoever does the work, again after it broke; None: this thread.
Opens = Callable[[], AbstractContextManager[Executor | None]]


@dataclass(slots=True)
class _Try:
    task: Task
    failed: int = 0
    #: Whether a worker died while it was at work: then it works alone, to tell which task it was.
    alone: bool = False


def run_tasks(
    tasks: Iterator[Task],
    opens: Opens,
    *,
    window: int,
    take: Callable[[Task, list[LeafDone]], None],
    give_up: Callable[[Task, Message], None],
) -> None:
    """Run every task, at most `window` at a time; `tasks` is asked for the next one only when it can begin.

    What a task gives goes to `take`. One that raises, or kills its worker, is tried again, leaf by leaf; what has
    failed three times goes to `give_up` with the reason. KeyboardInterrupt cancels what has not begun; BrokenExecutor
    says that nobody takes a task any more.
    """
    work = _StudyWork(tasks, take, give_up)
    while not work.is_done():
        work.is_taken = False
        try:
            with opens() as executor:
                scheduler.run_tasks(work, executor, limit=window)
        except BrokenExecutor:
            if not work.is_taken:
                raise
            work.recover()


class _StudyWork:
    """Tasks that are tried again, for `scheduler.run_tasks`."""

    def __init__(
        self,
        tasks: Iterator[Task],
        take: Callable[[Task, list[LeafDone]], None],
        give_up: Callable[[Task, Message], None],
    ) -> None:
        self._tasks = tasks
        self._take = take
        self._give_up = give_up
        self._again: deque[_Try] = deque()
        self._running: dict[Future[list[LeafDone]], _Try] = {}
        self._ended = False
        #: Whether the executor of this turn has taken a task.
        self.is_taken = False

    def is_done(self) -> bool:
        """Return whether nothing is left to be done."""
        return self._ended and not self._again

    def next_task(self, running: Collection[_Try]) -> _Try | None:
        """Return the next task; one that has to be alone waits until nothing runs, and the others for it."""
        if any(attempt.alone for attempt in running):
            return None
        if self._again:
            return None if running and self._again[0].alone else self._again.popleft()
        task = None if self._ended else next(self._tasks, None)
        if task is None:
            self._ended = True
            return None
        return _Try(task)

    def submit(self, attempt: _Try, executor: Executor) -> Future[list[LeafDone]]:
        """Hand out a task; one that all workers share is done when this returns."""
        workers = near(executor, attempt.task.leaves[0].leaf.path)
        if attempt.task.shared:
            self.is_taken = True
            future = self._share(attempt, executor, workers)
        else:
            try:
                future = workers.submit(run_task, attempt.task)
            except BaseException:
                self._again.appendleft(attempt)
                raise
            self.is_taken = True
        self._running[future] = attempt
        return future

    def _share(self, attempt: _Try, executor: Executor, workers: Executor) -> Future[list[LeafDone]]:
        """Do a task here and now, its tensors and ops by all workers; one that fails so is done by one worker."""
        future: Future[list[LeafDone]] = Future()
        unshared = replace(attempt.task, shared=False, workers=1)
        try:
            done = run_task(attempt.task, workers)
            executor.submit(int).result()  # what lost a worker meanwhile is not whole, and only tells when it is asked
        except BrokenExecutor:
            self._again.appendleft(_Try(unshared, attempt.failed + 1, alone=True))
            raise
        except WorkersLostError:
            raise
        except Exception as error:
            attempt.task = unshared
            future.set_exception(error)
        else:
            future.set_result(done)
        return future

    def take(self, attempt: _Try, future: Future[list[LeafDone]]) -> None:
        """Take in what a task gave, or try it again."""
        error = future.exception()
        if isinstance(error, (BrokenExecutor, WorkersLostError)):
            raise error
        del self._running[future]
        if error is None:
            self._take(attempt.task, future.result())
        elif isinstance(error, Exception):
            self._failed(attempt, error)
        else:
            raise error

    def recover(self) -> None:
        """Sort out what was at work when a worker died: done, or to be done again, one by one."""
        lost: list[_Try] = []
        for future, attempt in self._running.items():
            done = None
            if future.done() and not future.cancelled():
                with suppress(Exception):
                    done = future.result()
            if done is not None:
                self._take(attempt.task, done)
            else:
                lost.append(attempt)
        self._running.clear()
        for attempt in lost:
            if len(lost) == 1:
                self._failed(attempt, None)
            else:
                self._again.append(_Try(attempt.task, attempt.failed, alone=True))

    def _failed(self, attempt: _Try, error: Exception | None) -> None:
        """Try a task again, leaf by leaf; the third time it is given up."""
        reason = Message("study.worker_died") if error is None else f"{type(error).__name__}: {error}"
        failed = attempt.failed + 1
        if failed >= TRIES and len(attempt.task.leaves) == 1:
            self._give_up(attempt.task, Message("study.given_up", tries=TRIES, reason=reason))
            return
        split = len(attempt.task.leaves) > 1
        for task in attempt.task.alone():
            self._again.append(_Try(task, 0 if split else failed, alone=error is None))


def watch(
    prepare: Callable[[], Prepared],
    study: Callable[[Prepared], Study],
    done: Callable[[Study], None],
    *,
    seconds: float,
    sleep: Callable[[float], None] = time.sleep,
) -> Study:
    """Study what is there, and again whenever there is more, until Ctrl+C; the last study.

    `done` is called with each. A folder that is new, or has changed, is taken when it has stayed as it is from one look
    to the next, `seconds` apart: it may still be written. That the data cannot be listed for a while is waited for.
    """
    prepared = prepare()
    last = study(prepared)
    done(last)
    studied = before = _prints(prepared)
    while True:
        try:
            sleep(seconds)
            prepared = prepare()
        except KeyboardInterrupt:
            return last
        except PrecisionToolError:
            continue  # a server that does not answer now may do so later
        now = _prints(prepared)
        settled = {path: mark for path, mark in now.items() if before.get(path) == mark}
        if any(studied.get(path) != mark for path, mark in settled.items()):
            plans = tuple(plan for plan in prepared.plans if plan.leaf.path in settled)
            last = study(replace(prepared, plans=plans))
            done(last)
            studied = settled
        before = now


def _prints(prepared: Prepared) -> dict[str, str]:
    return {plan.leaf.path: plan.fingerprint for plan in prepared.plans}


# --- One step of one rank: where its dump and its benchmark lie, and what a study has of it ---


def find_place(folders: Sequence[str], step: int | None, rank: int | None) -> tuple[Place, str]:
    """Return the dump folders (one a model) and benchmark of a step and rank, by default of the first, and their data.

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
    prints = {leaf.path: (leaf.fingerprint, benchmarks.get(leaf.path, NO_BENCHMARK).fingerprint) for leaf in leaves}
    golden = benchmarks.get(first.path, NO_BENCHMARK).path
    results = posixpath.join("study", f"step_{first.step}_rank_{first.rank}")
    paths = tuple(leaf.path for leaf in leaves)
    is_later = any(
        (leaf.rank, leaf.program) == (first.rank, first.program) and leaf.step < first.step for leaf in listing.leaves
    )
    return Place(leaves=paths, golden=golden, results=results, is_later=is_later, prints=prints), first.data


def study_rows(space: Workspace, place: Place, threshold: float) -> list[Analysis]:
    """Return the rows that a study has of a place, checked at a threshold; DataNotFoundError where none has any."""
    tables = kept_rows([str(folder) for folder in space.result_dirs()], place, space.notes)
    return [analyse(path, table, threshold) for path, table in tables]


def kept_rows(results: Sequence[str], place: Place, notes: list[str | Message]) -> list[tuple[str, Table]]:
    """Return the rows that studies in these folders of results have of a place: journal and table of each model.

    What has changed since is appended to `notes`. DataNotFoundError where none has any rows.
    """
    journals = [posixpath.join(folder, "study", JOURNAL) for folder in results]
    tables = []
    for path in place.leaves:
        for journal in filter(exists, journals):
            stored = read_rows(journal, path)
            if stored is not None:
                tables.append(
                    (
                        journal,
                        Table(
                            tuple(study_table.rows_of(study_table.unpack(journal, stored.rows))),
                            ColumnChoice(own_error=True),
                        ),
                    )
                )
                notes += _changed(path, stored, place)
                break
    if not tables:
        raise DataNotFoundError.of(place.leaves[0], "diagnose.study_no_rows")
    return tables


def _changed(path: str, stored: KeptRows, place: Place) -> list[Message]:
    """Return a note on what has changed since a study had a leaf; another benchmark than the place's is not checked."""
    dump, benchmark = place.prints.get(path, (stored.dump, stored.benchmark_print))
    changed = [Message("study.note.its_dump")] if dump != stored.dump else []
    if stored.benchmark == place.golden and benchmark != stored.benchmark_print:
        changed.append(Message("study.note.its_benchmark"))
    return [Message("study.note.changed", path=path, changed=changed)] if changed else []


# --- the study ---


#: Tasks that are handed out at one time, for each worker.
_TASKS_IN_FLIGHT = 2
#: Tasks for each worker, at least, where there is enough to do, and bytes of a task at least.
MIN_TASKS, _MIN_TASK_BYTES = 8, 1 << 20
#: A leaf of fewer bytes is not shared by all workers: one has done it soon enough.
_SHARED_BYTES = 1 << 30
#: Groups of ranks that a note names.
_MAX_GROUPS = 4
#: What is said of rows without a tensor that could be read.
_NOT_THERE = (Status.NO_NPU_DUMP, Status.UNREADABLE)


@dataclass(frozen=True, kw_only=True)
class Study:
    """Result of a study.

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
    maps: tuple[study_table.HeatMap, ...] = field(repr=False)
    notes: tuple[Message, ...] = ()
    #: Variables, gradients and the loss over steps and ranks.
    curves: Curves = field(default_factory=Curves, repr=False)
    judging: Judging = Judging.FIRST
    threshold: float = DEFAULT_THRESHOLD
    journal: str = ""
    table: str = ""
    #: What the leaves tell that were dumped as statistics; None without any.
    statistics: StatisticsFound | None = None
    #: Names of ops in the graph by those in file names, of the first leaf with statistics.
    names: Mapping[str, str] = field(default_factory=dict, repr=False)
    csvs: tuple[str, ...] = ()
    #: Files and folders that their storage did not give while the study was prepared, and why not the first.
    unread_before: int = 0
    unread_before_reason: Message | None = None

    @property
    def unread(self) -> int:
        """Files that their storage did not give: what is in them is no part of the conclusion."""
        return self.unread_before + sum(state.unread for state in self.leaves)

    @property
    def unread_reason(self) -> Message | None:
        """Why the first of them was not given."""
        reasons = (self.unread_before_reason, *(state.unread_reason for state in self.leaves))
        return next(filter(None, reasons), None)

    @property
    def steps(self) -> tuple[int, ...]:
        """Every step."""
        return tuple(sorted({state.leaf.step for state in self.leaves}))

    @property
    def ranks(self) -> tuple[int, ...]:
        """Every rank."""
        return tuple(sorted({state.leaf.rank for state in self.leaves}))

    @property
    def failures(self) -> tuple[LeafState, ...]:
        """The dump folders that nothing could be made of; each has its reason."""
        return tuple(state for state in self.leaves if state.failure)

    @property
    def is_recomputed(self) -> bool:
        """True if ops of any dump folder were recomputed, which alone tells that they compute right."""
        return any(state.has_verdict for state in self.leaves)

    @property
    def has_evidence(self) -> bool:
        """True if anything speaks for or against the ops: what was recomputed or compared, or replicas."""
        voted = any(item.agreed or item.departures for item in self.votes)
        return voted or self.is_recomputed or any(item.compared for item in self.leaves)

    @property
    def has_findings(self) -> bool:
        """True if anything was found, or nothing could be looked at: what `--fail` asks."""
        found = self.conclusion.culprit is not None or any(leaf.below or leaf.bad for leaf in self.leaves)
        found |= any(batch.is_sure for batch in self.conclusion.same_batch)
        return found or not self.has_evidence or (self.statistics is not None and bool(self.statistics.suspicions))

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        culprit = self.conclusion.culprit
        place = self.conclusion.not_finite
        return {
            "culprit": None if culprit is None else culprit.to_dict(),
            "further": [item.to_dict() for item in self.conclusion.further],
            "not_finite": None if place is None else {"step": place[0], "rank": place[1], "tensor": place[2]},
            "same_batch": [asdict(item) for item in self.conclusion.same_batch],
            "steps": list(self.steps),
            "ranks": list(self.ranks),
            "judging": str(self.judging),
            "tells": self.has_evidence,
            "is_recomputed": self.is_recomputed,
            "threshold": self.threshold,
            "leaves": [_leaf(item) for item in self.leaves],
            "votes": [
                {"step": item.step, "agreed": item.agreed, "departures": [_departure(each) for each in item.departures]}
                for item in self.votes
            ],
            "maps": [item.to_dict() for item in self.maps],
            "table": self.table or None,
            "statistics": None if self.statistics is None else self.statistics.to_dict(),
            "notes": list(map(render, self.notes)),
            "unread": None if self.unread_reason is None else {
                "files": self.unread, "reason": render(self.unread_reason)
            },
        }  # fmt: skip


def _leaf(state: LeafState) -> dict[str, Any]:
    return {
        "step": state.leaf.step, "rank": state.leaf.rank, "device": state.leaf.device, "model": state.leaf.model,
        "path": state.leaf.path, "tensors": state.rows, "compared": state.compared, "below": state.below,
        "not_finite": state.bad, "judged": state.judged, "right": state.right, "network": state.network,
        "accused": [{"op": each.op, "type": each.type, "cause": str(each.cause)} for each in state.accused],
        "excused": [
            {"op": each.op, "type": each.type, "cause": str(each.cause), "excuse": str(each.excuse)}
            for each in state.excused
        ],
        "failure": render(state.failure) if state.failure else None,
    }  # fmt: skip


def _departure(departure: Any) -> dict[str, Any]:
    return {
        "op": departure.op, "type": departure.type, "role": str(departure.role), "ranks": list(departure.ranks),
        "agreeing": list(departure.agreeing), "undecided": departure.undecided, "fed_alike": departure.fed_alike,
    }  # fmt: skip


def _without_means(ballots: Iterable[Ballot], light: list[Ballot]) -> Iterator[Ballot]:
    """Yield ballots, and add them to `light` without the means of collectives, which take most of the memory."""
    for rank, network, votes in ballots:
        yield rank, network, votes
        light.append((rank, network, [_light(vote) for vote in votes]))


def _light(vote: Vote) -> Vote:
    is_collective = vote.role in (Role.COLLECTIVE, Role.EXCHANGE)
    return replace(vote, input_means=(), output_means=()) if is_collective else vote


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
            threshold=options.threshold,
            graph=options.graph,
            only_suspects=options.judging is Judging.SUSPECTS,
            profile=options.profile,
        )
        self._key = self._leaf_options.digest
        self.states: dict[str, LeafState] = {}
        self._first_wrong: int | None = None
        self._own: dict[tuple[str, str], OwnErrors] = {}

    def run(self, resources: Resources) -> None:
        """Work off what the journal lacks. WorkStoppedError after Ctrl+C; what is done is kept."""
        progress = resources.progress or (lambda done, total: None)
        for plan, outcome in self._journal.stored_outcomes(self._prepared.plans, self._key):
            self._remember(plan, outcome)
        self._first_wrong = self._first_step_wrong()
        left = self._left()
        total = self._prepared.nbytes
        done_bytes = total - sum(plan.leaf.nbytes for plan in left)
        progress(done_bytes, total)

        def take(task: Task, done: list[LeafDone], given_up: bool = False) -> None:
            nonlocal done_bytes
            pairs = list(zip(task.leaves, done, strict=True))
            self._journal.keep(pairs, self._key, given_up=given_up)
            for plan, leaf_done in pairs:
                self._remember(plan, leaf_done.outcome)
            done_bytes += task.nbytes
            progress(min(done_bytes, total), total)

        def give_up(task: Task, reason: Message) -> None:
            lost = LeafDone(outcome=LeafOutcome(failure=reason, judged=task.judges))
            take(task, [lost] * len(task.leaves), True)

        try:
            while left:
                run_tasks(
                    self._tasks(left, resources.count), resources.open, window=_TASKS_IN_FLIGHT * resources.count,
                    take=take, give_up=give_up,
                )  # fmt: skip
                # What the other leaves excuse is no reason to leave the steps after it unjudged.
                self._first_wrong = self._first_step_wrong()
                left = self._left()
                done_bytes = total - sum(plan.leaf.nbytes for plan in left)
        except KeyboardInterrupt:
            raise self._stopped("study_stopped") from None
        except BrokenExecutor as error:
            raise self._stopped("study_executor_lost", exit_code=2) from error
        except WorkersLostError as error:
            raise self._stopped("study_cluster_lost", 2, error.full_message, error.hint_message) from error

    def _left(self) -> list[LeafPlan]:
        """Return the leaves that are to be worked on, by the results so far."""
        return [plan for plan in self._prepared.plans if not self._is_done(plan)]

    def _first_step_wrong(self) -> int | None:
        """Return the first step with an op that computes wrong, in view of all leaves so far."""
        if self._first_wrong is None:
            return None
        return min((state.leaf.step for state in self._states_together() if state.accused), default=None)

    def _states_together(self) -> list[LeafState]:
        """Return every leaf in order, without what the others excuse."""
        return with_excused(sorted(self.states.values(), key=lambda state: state.leaf.key), self._own_errors)

    def _own_errors(self, state: LeafState, ops: Collection[str]) -> OwnErrors:
        """Return the own errors of ops in a leaf, by op and number of the output."""
        key = state.leaf.path, "\0".join(sorted(ops))
        if key not in self._own:
            self._own[key] = self._read_own_errors(state, ops)
        return self._own[key]

    def _read_own_errors(self, state: LeafState, ops: Collection[str]) -> OwnErrors:
        columns = self.columns(state, ("op", "slot", "own_error"))
        if columns is None:
            return {}
        names, slots, errors = columns["op"], columns["slot"], np.asarray(columns["own_error"])
        assert isinstance(names, study_table.Texts)
        assert isinstance(slots, study_table.Texts)
        places = np.flatnonzero(names.where(lambda name: name in ops) & ~np.isnan(errors)).tolist()
        return {
            (names.texts[names.codes[at]], int(slots.texts[slots.codes[at]].rpartition(":")[2])): float(errors[at])
            for at in places
        }

    def _stopped(
        self, kind: str, exit_code: int = 130, reason: Message | None = None, advice: Message | None = None
    ) -> WorkStoppedError:
        count = len({plan.leaf.path for plan in self._prepared.plans})
        return WorkStoppedError(
            f"diagnose.{kind}", exit_code=exit_code, done=len(self.states), count=count, journal=self._journal.path,
            reason=reason, advice=advice,
        )  # fmt: skip

    def _remember(self, plan: LeafPlan, outcome: LeafOutcome) -> None:
        state = self.states[plan.leaf.path] = state_of(plan, outcome)
        if state.accused and (self._first_wrong is None or plan.leaf.step < self._first_wrong):
            self._first_wrong = plan.leaf.step

    def _judges(self, step: int) -> bool:
        """Return whether the leaves of a step are to be recomputed, by the results so far."""
        if self._options.judging is not Judging.FIRST:
            return True
        return self._first_wrong is None or step <= self._first_wrong

    def _is_done(self, plan: LeafPlan) -> bool:
        state = self.states.get(plan.leaf.path)
        return state is not None and (state.judged or not self._judges(plan.leaf.step) or self._is_settled(state))

    def _is_settled(self, state: LeafState) -> bool:
        """Return whether a leaf was left without a verdict as nothing in it asked for one."""
        return self._leaf_options.only_suspects and not state.failure

    def _tasks(self, left: Sequence[LeafPlan], workers: int) -> Iterator[Task]:
        """Return the tasks in order, small enough that every worker has some."""
        total = sum(plan.leaf.nbytes for plan in left)
        share = total // (workers * MIN_TASKS)
        for batch in batches(left, max(_MIN_TASK_BYTES, min(TASK_BYTES, share)), self._host_of):
            largest = max(plan.leaf.nbytes for plan in batch)
            is_shared = workers > 1 and len(batch) == 1 and largest >= max(_SHARED_BYTES, total / workers)
            yield Task(
                leaves=batch, options=self._leaf_options, judges=self._judges(batch[0].leaf.step), cache=self._cache,
                workers=workers if is_shared else max(1, workers // len(left)), shared=is_shared,
            )  # fmt: skip

    def outcome(self, leaf: StudyLeaf) -> LeafOutcome | None:
        """Return the outcome of a leaf."""
        return self._journal.outcome(leaf.path, self._key)

    def columns(self, state: LeafState, names: Sequence[str] | None = None) -> study_table.Columns | None:
        """Return the rows of a leaf; None if there are none. Only leaves that count as judged have own errors."""
        rows = self._journal.rows(state.leaf.path, self._key)
        columns = study_table.unpack(self._journal.path, rows, names) if rows else None
        if columns is not None and not state.judged and "own_error" in columns:
            columns["own_error"] = np.full(len(columns["own_error"]), np.nan)
        return columns

    def _statistics(self, state: LeafState) -> LeafStatistics | None:
        """Return the statistics that a worker read of a leaf; None if it could not."""
        stored = self._journal.statistics(state.leaf.path, self._key)
        return unpack_statistics(self._journal.path, stored, state.leaf.step, state.leaf.rank) if stored else None

    def _telling(self, state: LeafState, ops: Collection[str]) -> Mapping[str, int]:
        """Return how a leaf covers ops: 2 where one was recomputed or compared, 1 where it was only dumped."""
        columns = self.columns(state, ("op", "status", "own_error", "cosine"))
        if columns is None:
            return {}
        ops_of, statuses = columns["op"], columns["status"]
        assert isinstance(ops_of, study_table.Texts)
        assert isinstance(statuses, study_table.Texts)
        is_asked = ops_of.where(lambda name: name in ops)
        is_known = ~np.isnan(np.asarray(columns["own_error"]))
        if state.is_own:
            is_known |= ~np.isnan(np.asarray(columns["cosine"]))
        levels = np.where(is_known, 2, statuses.where(lambda status: status not in _NOT_THERE))
        best = np.zeros(len(ops_of.texts), np.int64)
        np.maximum.at(best, ops_of.codes[is_asked], levels[is_asked])
        return {ops_of.texts[code]: int(best[code]) for code in np.unique(ops_of.codes[is_asked]).tolist()}

    def final_states(self) -> list[LeafState]:
        """Return every leaf in order, as if it had been worked on alone, one after the other."""
        ordered = self._states_together()
        return without_later_verdicts(ordered) if self._options.judging is Judging.FIRST else ordered

    def votes(self, states: Sequence[LeafState]) -> tuple[list[StepVotes], list[StepFeeds]]:
        """Return votes and feeds of every step; the means of one leaf are in memory at one time."""
        votes, feeds = [], []
        for step, ballots in self._ballots(states):
            light: list[Ballot] = []
            votes.append(count_votes(step, _without_means(ballots, light), self._options.world_size))
            feeds.append(feeds_of_step(step, light))
        return votes, feeds

    def _ballots(self, states: Sequence[LeafState]) -> Iterator[tuple[int, Iterator[Ballot]]]:
        """Yield the ballots of each step."""

        def ballot(state: LeafState) -> Ballot:
            stored = self._journal.votes(state.leaf.path, self._key)
            return state.leaf.rank, state.network, unpack_votes(self._journal.path, stored)

        for step, of_step in groupby(states, key=lambda state: state.leaf.step):
            yield step, map(ballot, of_step)

    def _concluded(self, states: Sequence[LeafState]) -> tuple[Conclusion, list[StepVotes], Sequence[LeafState]]:
        """Return the conclusion, the votes of every step, and the states in the steps that they are of."""
        votes, feeds = self.votes(states)
        differs = any(item.departures or not item.agreed for item in votes) or any(item.departures for item in feeds)
        shifts = shifts_of(self._ballots(states)) if differs and len(votes) > 1 else ()
        if not shifts:
            return conclude(states, votes, self._telling, feeds), votes, states
        moved = in_their_steps(states, shifts)
        votes, feeds = self.votes(moved)
        away = {rank for shift in shifts for rank in shift.ranks}
        there = {(state.leaf.step, state.leaf.rank) for state in moved}
        # What a rank put in that is not there in a step is missing from the sums.
        votes = [
            item if all((item.step, rank) in there for rank in away) else replace(item, sums=StepSums())
            for item in votes
        ]
        conclusion = conclude(moved, votes, self._telling, feeds)
        return in_own_steps(conclusion, states, shifts), votes, moved

    def _names(self, states: Sequence[LeafState]) -> dict[str, str]:
        """Return names of ops by how files spell them, by the graph of the first leaf that was dumped as statistics."""
        for state in states:
            outcome = self.outcome(state.leaf) if state.leaf.statistics and not state.failure else None
            if outcome is not None and outcome.graph:
                with suppress(PrecisionToolError):
                    return {flatten(op.name): op.name for op in GraphStore(CacheFiles(list)).load(outcome.graph).ops}
        return {}

    def result(self) -> Study:
        """Return the study."""
        states = self.final_states()
        conclusion, votes, in_step = self._concluded(states)
        unread = {**self._prepared.unread, **take_unread()}
        maps = study_table.Maps()
        curves = curves_of(
            lambda ranks: self._drawn(states, ranks, maps), len({state.leaf.rank for state in states}),
            threshold=self._options.threshold,
        )  # fmt: skip
        notes = (
            *_network_notes(states),
            *_lacking_notes(states),
            *_untold_notes(conclusion, self._options),
            *map(same_batch_note, conclusion.same_batch),
        )
        return Study(
            conclusion=conclusion, leaves=tuple(states), votes=tuple(votes),
            maps=maps.maps(), curves=curves, notes=(*self._prepared.notes, *notes),
            judging=self._options.judging, threshold=self._options.threshold, journal=self._journal.path,
            statistics=judge_statistics(in_step, self.columns, self._statistics, votes), names=self._names(states),
            table=self._write_table(states), csvs=self._write_csvs(states),
            unread_before=len(unread), unread_before_reason=unread[min(unread)] if unread else None,
        )  # fmt: skip

    def _drawn(
        self, states: Sequence[LeafState], ranks: Collection[int] | None, maps: study_table.Maps
    ) -> Iterator[LeafRows]:
        """Yield the rows of leaves for curves; those of all ranks go into the heat maps as well."""
        names = dict.fromkeys((*study_table.HEAT_MAP_COLUMNS, *CURVE_COLUMNS))
        for state in states:
            if ranks is not None and state.leaf.rank not in ranks:
                continue
            columns = self.columns(state, tuple(names))
            if columns is None:
                continue
            if ranks is None:
                maps.take(state.leaf.step, state.leaf.rank, columns)
            yield state.leaf.step, state.leaf.rank, columns, state.is_own

    @property
    def _results(self) -> str:
        """The folder of what is written besides the journal."""
        return self._options.results or posixpath.dirname(self._journal.path)

    def _write_table(self, states: Sequence[LeafState]) -> str:
        """Write the table of all rows; "" where nothing can write it."""
        path = self._options.table
        if not path and not study_table.has_parquet():
            return ""
        path = path or posixpath.join(self._results, study_table.TABLE)
        study_table.write_table(path, states, self.columns)
        return path

    def _write_csvs(self, states: Sequence[LeafState]) -> tuple[str, ...]:
        """Write result files on request."""
        folder = posixpath.join(self._results, "results")
        return tuple(study_table.write_csvs(folder, states, self.columns)) if self._options.csv else ()


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
    """Return notes on dumps without a graph of their own, on accusations that do not count, and on unread tensors."""
    notes = []
    lacking = [state for state in states if state.lack]
    if lacking:
        notes.append(Message("study.note.no_graph", count=len(lacking), all=len(states), reason=lacking[0].lack))
    unread = [state for state in states if state.unreadable]
    borrowed = [state for state in states if state.borrowed]
    if borrowed:
        reason = borrowed[0].borrowed
        notes.append(Message("study.note.borrowed_graph", count=len(borrowed), all=len(states), reason=reason))
    for excuse in Excuse:
        excused = [(state, item) for state in states for item in state.excused if item.excuse is excuse]
        if excused:
            state, item = excused[0]
            place = Message("study.place", step=state.leaf.step, rank=state.leaf.rank)
            notes.append(Message(f"study.note.excused.{excuse}", count=len(excused), op=item.op, place=place))
    if unread:
        place = Message("study.place", step=unread[0].leaf.step, rank=unread[0].leaf.rank)
        count = sum(state.unreadable for state in unread)
        notes.append(Message("study.note.unreadable", count=count, place=place))
    return notes


def _untold_notes(conclusion: Conclusion, options: StudyOptions) -> list[Message]:
    """Return a note on collectives of which nothing shows that every rank was dumped."""
    untold = conclusion.untold
    if not untold:
        return []
    first = min(untold, key=lambda item: (item.step, item.epoch, item.number))
    is_asked = not options.world_size
    return [Message("study.note.untold_sums", count=len(untold), op=first.op, step=first.step, is_asked=is_asked)]


def run_study(
    options: StudyOptions,
    folder: str,
    resources: Resources = ALL_CORES,
    *,
    cache: str = "",
    on_study: Callable[[Study], None] | None = None,
) -> Study:
    """Compare and diagnose every step, rank and model that `options` name.

    Parameters
    ----------
    options : StudyOptions
        What is studied and how. With `watch_seconds` new steps are analysed as they arrive, until Ctrl+C.
    folder : str
        An existing folder for the journal: what it holds is not analysed again, unless the options say `fresh`.
    resources : Resources
        Who shares the work; progress is counted in bytes.
    cache : str
        A folder for parsed graphs; "" for none.
    on_study : callable, optional
        Called with each study while new steps are awaited.

    Raises
    ------
    UsageError
        Another study is running in `folder`.
    WorkStoppedError
        After Ctrl+C; the same call continues from there.
    """
    executor, host_of = resources.executor, None
    if isinstance(executor, ClusterExecutor):
        resources, host_of = replace(resources, workers=executor.workers), executor.host_of
        options = from_anywhere(options)
    with open_journal(folder, fresh=options.fresh) as journal:

        def study(prepared: Prepared) -> Study:
            runner = Runner(prepared, options, journal, cache, host_of or (lambda path: ""))
            runner.run(resources)
            return runner.result()

        if not options.watch_seconds:
            return study(prepare(options))
        return watch(lambda: prepare(options), study, on_study or (lambda _: None), seconds=options.watch_seconds)
