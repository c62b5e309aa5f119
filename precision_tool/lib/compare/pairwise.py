"""Compares pairs: shares the work out by bytes, keeps memory bounded, and knows how far it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass, replace
from typing import Any

from precision_tool.lib.compare import tensor_reader
from precision_tool.lib.compare.bundles import (
    PLAIN,
    Measures,
    Numbered,
    Part,
    Worker,
    bundle_key,
    compare_bundle,
    compare_bundles,
    cost,
    cuts_of,
    failed_row,
    is_alike,
    looked_at,
    round_of,
    row_of_results,
    same_values,
    uncompared,
    whole_pass,
    worker,
)
from precision_tool.lib.compare.cluster import TASK_BYTES, ClusterExecutor, near
from precision_tool.lib.compare.compared_statistics import has_statistics, with_verdicts
from precision_tool.lib.compare.passes import Pass, Rounds, merge_all
from precision_tool.lib.compare.scheduler import (
    ALL_CORES,
    Meter,
    PoisonedTaskError,
    Progress,
    Resources,
    WorkersLostError,
    keeping_rows,
    map_tasks,
    run_tasks,
)
from precision_tool.lib.compare.tensor_reader import Budget, key_of
from precision_tool.lib.messages import Message
from precision_tool.lib.model.comparison import Pair, Status
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.tensor import Access, Tensor

#: Pairs that are compared together, and the bytes they have.
Weighed = tuple[int, list[Numbered]]


def compare_pairs(
    pairs: Sequence[Pair],
    resources: Resources = ALL_CORES,
    *,
    measures: Measures = PLAIN,
    budget: Budget | None = None,
) -> list[Row]:
    """Compare pairs of tensors.

    Parameters
    ----------
    pairs : sequence of Pair
        What is compared with what.
    resources : Resources
        Who shares the work; workers of our own are threads, or processes where the work is Python's.
    measures : Measures
        What is found out about each pair.
    budget : Budget, optional
        How much is worked on at once.

    Returns
    -------
    list of Row
        One row per pair, in their order.

    Raises
    ------
    WorkStoppedError
        After Ctrl+C, and when workers are lost; it carries the rows that are done.
    """
    workers = resources.count
    budget = (budget or tensor_reader.DEFAULT_BUDGET).among_threads(
        workers + 1
    )  # an executor's may be threads too, beside this one
    run = _Run(pairs, resources.progress, measures, budget)
    is_small = run.total < budget.serial_bytes
    with (
        keeping_rows(run.state, run.rows_so_far),
        resources.open(is_small=is_small, in_threads=not _needs_python(pairs, measures)) as pool,
    ):
        if pool is None:
            run.compare_here()
        else:
            run.spread(pool, workers)
    return with_verdicts([row for row in run.rows if row is not None])


def _needs_python(pairs: Sequence[Pair], measures: Measures) -> bool:
    """Return whether threads would wait for each other: the user's own metrics and chunks of HDF5 are Python's work."""
    sides = (side for pair in pairs for side in (pair.npu, pair.golden) if isinstance(side, Tensor))
    return measures.custom is not None or any(side.access is not Access.BYTES for side in sides)


class _Run:
    """The state of one call of `compare_pairs`."""

    def __init__(self, pairs: Sequence[Pair], progress: Progress | None, measures: Measures, budget: Budget) -> None:
        self._pairs = pairs
        self._measures = measures
        self._budget = budget
        self.rows: list[Row | None] = [None] * len(pairs)
        self._bundles = self._bundled()
        #: Bytes to be read.
        self.total = sum(cost(pair) for bundle in self._bundles for _, pair in bundle)
        self._meter = Meter(progress, self.total)
        self._meter.add(0)

    def _bundled(self) -> list[list[Numbered]]:
        """Return the pairs to be read: by benchmark tensor, and a tensor's second pair beside its first."""
        bundles: dict[object, list[Numbered]] = {}
        places: dict[object, list[Numbered]] = {}
        for number, pair in enumerate(self._pairs):
            is_compared = pair.status == Status.COMPARED or has_statistics(pair)
            if not is_compared and (not self._measures.looks_alone or pair.npu is None):
                self.rows[number] = uncompared(pair)
                continue
            place = key_of(pair.npu) if isinstance(pair.npu, Tensor) else number
            bundle = places.get(place)
            if bundle is None:
                bundle = places[place] = bundles.setdefault(bundle_key(pair) if is_compared else number, [])
            bundle.append((number, pair))
        return list(bundles.values())

    def take(self, results: Sequence[tuple[int, Row]], counted: float = 0) -> None:
        """Keep finished rows, of whose bytes `counted` are counted already."""
        for number, row in results:
            self.rows[number] = row
        self._meter.add(sum(cost(row.pair) for _, row in results) - counted)

    def compare_here(self) -> None:
        """Compare all in this process."""
        with worker(self._budget) as here:
            for bundle in self._bundles:
                before = self._meter.done
                rows = compare_bundle(bundle, here, self._measures, self._meter.add)
                self.take(rows, self._meter.done - before)

    def state(self) -> Message:
        """Return how far the run came."""
        return Message("note.compare.rows_done", done=sum(row is not None for row in self.rows), total=len(self.rows))

    def rows_so_far(self) -> list[Row]:
        """Return all rows; those that were not reached say so."""
        reason = Message("row.compare.not_reached")
        return [
            row or Row(pair=replace(pair, status=Status.UNREADABLE, reason=reason), reason=reason)
            for row, pair in zip(self.rows, self._pairs, strict=True)
        ]

    def spread(self, pool: Executor, workers: int) -> None:
        """Run bundles on `pool`: large tensors in parts one after the other, then the rest, largest first."""
        weights = [(sum(cost(pair) for _, pair in bundle), bundle) for bundle in self._bundles]
        weights.sort(key=lambda item: -item[0])
        small: list[Weighed] = []
        for weight, bundle in weights:
            first = bundle[0][1]
            if workers > 1 and first.status == Status.COMPARED and cost(first) >= self._budget.split_bytes:
                with worker(self._budget) as here:
                    self._compare_split(bundle, near(pool, _path_of(bundle)), here)
            else:
                small.append((weight, bundle))
        total = sum(weight for weight, _ in small)
        if isinstance(pool, ClusterExecutor):
            tasks = _tasks_by_host(pool, small, min(TASK_BYTES, max(1 << 20, total // (pool.workers * 2))))
        else:  # tasks of at least this size, so that sending them costs little, and enough of them to balance
            tasks = _tasks(small, max(1 << 20, total // (workers * 16)))
        run_tasks(_BundleWork(tasks, self._measures, self._budget, self.take), pool)

    def _compare_split(self, bundle: Sequence[Numbered], pool: Executor, here: Worker) -> None:
        twins: dict[int, Row] = {}  # pairs by their places that have the values of one that was compared
        for place, (number, pair) in enumerate(bundle):
            before = self._meter.done
            try:
                if pair.status != Status.COMPARED:
                    self.rows[number] = self._looked_at(here.uncompared(pair, self._measures), pool)
                    self._meter.add(cost(pair))
                    continue
                if place in twins:
                    self.rows[number] = self._looked_at(same_values(twins[place], pair), pool)
                    self._meter.add(cost(pair))
                    continue
                later = [
                    at for at in range(place + 1, len(bundle)) if at not in twins and is_alike(pair, bundle[at][1])
                ]
                row, verdicts = self._row_of_parts(pair, [bundle[at][1] for at in later], pool, here)
                twins.update((at, row) for at, is_twin in zip(later, verdicts, strict=True) if is_twin)
            except (BrokenExecutor, WorkersLostError):
                raise
            except Exception as error:
                self.rows[number] = failed_row(pair, error)
                self._meter.add(before + cost(pair) - self._meter.done)
                continue
            self.rows[number] = row

    def _row_of_parts(
        self, pair: Pair, twin_candidates: Sequence[Pair], pool: Executor, here: Worker
    ) -> tuple[Row, list[bool]]:
        """Return the row of a pair, and which of the pairs beside it have its NPU tensor's values."""
        limit, needed = self._measures.limit, self._measures.passes(pair)
        passes = [each for each in needed if each.splits]
        unsplit = [each for each in needed if not each.splits]
        before = self._meter.done
        whole = Part(pair, limit=limit, twin_candidates=tuple(twin_candidates))
        results, twins = run_in_parts(whole, passes, pool, here, self._meter.add)
        if unsplit:
            (unsplit_results,) = map_tasks(whole_pass, [(pair, unsplit, self._budget, limit)], pool)
            results += unsplit_results
        self._meter.add(cost(pair) - (self._meter.done - before))
        row = row_of_results(pair, [*passes, *unsplit], results)
        return self._looked_at(row, pool), twins

    def _looked_at(self, row: Row, pool: Executor) -> Row:
        """Return the row with what was asked for of the NPU's tensor alone."""
        if not self._measures.looks_alone:
            return row
        (row,) = map_tasks(looked_at, [(row, self._measures, self._budget)], pool)
        return row


@dataclass(frozen=True, slots=True)
class _Task:
    """Bundles that are compared one after the other, and the path of data that who does it reads."""

    bundles: list[list[Numbered]]
    path: str = ""
    #: Whether it is done while nothing else is.
    is_alone: bool = False


class _BundleWork:
    """Bundles shared out in tasks. What of them is poisoned is done when nothing else is, each bundle alone at last."""

    def __init__(
        self,
        tasks: Sequence[_Task],
        measures: Measures,
        budget: Budget,
        take: Callable[[Sequence[tuple[int, Row]]], None],
    ) -> None:
        self._tasks = deque(tasks)
        self._measures, self._budget, self._take = measures, budget, take
        #: Tasks that were poisoned, or shared a worker with one that was: alone they tell which.
        self._suspects: deque[_Task] = deque()

    def next_task(self, running: Collection[_Task]) -> _Task | None:
        if self._tasks:
            return self._tasks.popleft()
        if running or not self._suspects:
            return None
        return replace(self._suspects.popleft(), is_alone=True)

    def submit(self, task: _Task, executor: Executor) -> Future[list[tuple[int, Row]]]:
        return near(executor, task.path).submit(compare_bundles, task.bundles, self._measures, self._budget)

    def take(self, task: _Task, future: Future[list[tuple[int, Row]]]) -> None:
        try:
            rows = future.result()
        except PoisonedTaskError as error:
            if not task.is_alone:
                self._suspects.append(task)
                return
            if len(task.bundles) > 1:
                self._suspects.extendleft(replace(task, bundles=[bundle]) for bundle in reversed(task.bundles))
                return
            rows = [(number, failed_row(pair, error)) for number, pair in task.bundles[0]]
        self._take(rows)


def run_in_parts(
    whole: Part,
    passes: Sequence[Pass[Any, Any]],
    pool: Executor,
    here: Worker,
    done: Callable[[float], None],
) -> tuple[list[Any], list[bool]]:
    """Return the results of passes over a pair, each round shared out in parts, and which twins it has.

    Parameters
    ----------
    whole : Part
        The pair, and the pairs whose NPU tensors may have the very values of its own; it is cut here.
    passes : sequence of Pass
        What is found out.
    pool : Executor
        Who does the parts.
    here : Worker
        The files and buffers of this thread.
    done : callable
        Told of the bytes that are done since the call before.
    """
    pair = whole.pair
    with here.stream(pair, whole.limit) as stream:
        cuts = cuts_of(pair, stream, here.budget) or [(0, len(stream.boxes))]
        parts = [replace(whole, start=start, stop=stop) for start, stop in cuts]
        share = cost(pair) // (2 * len(parts))

        def run_round(
            passes: Sequence[Pass[Any, Any]], twin_candidates: tuple[Pair, ...] = ()
        ) -> tuple[list[Any], list[list[bool]]]:
            """Return the states of a whole tensor, merged in the order of the parts, and the twins of each part."""
            calls = [(replace(part, twin_candidates=twin_candidates), passes, here.budget) for part in parts]
            results = map_tasks(round_of, calls, pool, lambda _: done(share))
            return merge_all(passes, [states for states, _ in results]), [twins for _, twins in results]

        states, twins = run_round(passes, whole.twin_candidates)
        rounds = Rounds(passes, states)
        seconds = rounds.second()
        more, _ = run_round([follow for _, follow in seconds]) if seconds else ([], [])
        return rounds.results(stream, seconds, more), [all(verdicts) for verdicts in zip(*twins, strict=True)]


def _tasks(bundles: Sequence[Weighed], chunk: int) -> list[_Task]:
    """Bundles as tasks of at least `chunk` bytes, so that sending them costs little."""
    tasks: list[_Task] = []
    filled = chunk
    for weight, bundle in bundles:
        if filled >= chunk:
            tasks.append(_Task([], _path_of(bundle)))
            filled = 0
        tasks[-1].bundles.append(bundle)
        filled += weight
    return tasks


def _tasks_by_host(cluster: ClusterExecutor, bundles: Sequence[Weighed], chunk: int) -> list[_Task]:
    """Return bundles as tasks, as `_tasks` does, each of bundles whose data the same workers read."""
    by_host: dict[str, list[Weighed]] = {}
    for weight, bundle in bundles:
        by_host.setdefault(cluster.host_of(_path_of(bundle)), []).append((weight, bundle))
    return [task for weighed in by_host.values() for task in _tasks(weighed, chunk)]


def _path_of(bundle: Sequence[Numbered]) -> str:
    """Return a path of the NPU's data of a bundle, by which its workers are found."""
    return next((pair.npu.path for _, pair in bundle if isinstance(pair.npu, Tensor)), "")
