"""Compares pairs: spreads the work over threads by bytes, keeps memory bounded, and knows how far it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from precision_tool.lib.engine import budget as sizes
from precision_tool.lib.engine.budget import Budget
from precision_tool.lib.engine.bundles import (
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
from precision_tool.lib.engine.cluster import TASK_BYTES, ClusterExecutor, ClusterLostError, PoisonedTaskError
from precision_tool.lib.engine.compared_statistics import has_statistics, judged
from precision_tool.lib.engine.opened import key_of
from precision_tool.lib.engine.passes import Pass, Rounds, merge_all
from precision_tool.lib.engine.scheduler import Progress, WorkStoppedError, collect, cores, process_pool, thread_pool
from precision_tool.lib.model.comparison import Pair, Status
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.tensor import Access, Tensor

__all__ = ["Measures", "compare_pairs"]

T = TypeVar("T")
#: Pairs that are compared together, and the bytes they have.
Weighed = tuple[int, list[Numbered]]


def compare_pairs(
    pairs: Sequence[Pair],
    *,
    workers: int = 0,
    executor: Executor | None = None,
    progress: Progress | None = None,
    measures: Measures = PLAIN,
    budget: Budget | None = None,
) -> list[Row]:
    """One row per pair, in order.

    `workers` threads (0: one per core this process may use; 1: none), or any `executor`, share the work; processes
    where it is Python's. Ctrl+C and a dying worker raise WorkStoppedError, which carries the rows that are done.
    """
    workers = workers or cores()
    budget = (budget or sizes.DEFAULT).among_threads(workers + 1)  # an executor's may be threads too, beside this one
    run = _Run(pairs, progress, measures, budget)
    try:
        if executor is not None:
            run.spread(executor, workers)
        elif workers == 1 or run.total < budget.serial_bytes:
            run.compare_here()
        else:
            with (process_pool if _needs_python(pairs, measures) else thread_pool)(workers) as pool:
                run.spread(pool, workers)
    except KeyboardInterrupt:
        raise WorkStoppedError(f"stopped: {run.state()}", "", run.rows_so_far()) from None
    except ClusterLostError as error:
        raise WorkStoppedError(f"{error.message}: {run.state()}", error.hint, run.rows_so_far(), exit_code=2) from error
    except BrokenProcessPool as error:
        raise WorkStoppedError(
            f"a worker process died: {run.state()}",
            "was it killed for its memory? try fewer workers (--workers 1)",
            run.rows_so_far(),
            exit_code=2,
        ) from error
    return judged([row for row in run.rows if row is not None])


def _needs_python(pairs: Sequence[Pair], measures: Measures) -> bool:
    """Whether threads would wait for each other: the user's own metrics and chunks of HDF5 are Python's work."""
    sides = (side for pair in pairs for side in (pair.npu, pair.golden) if isinstance(side, Tensor))
    return measures.custom is not None or any(side.access is not Access.BYTES for side in sides)


class _Run:
    """The state of one call of `compare_pairs`."""

    def __init__(self, pairs: Sequence[Pair], progress: Progress | None, measures: Measures, budget: Budget) -> None:
        self._pairs = pairs
        self._progress = progress
        self._measures = measures
        self._budget = budget
        self.rows: list[Row | None] = [None] * len(pairs)
        self._bundles = self._bundled()
        #: Bytes to be read.
        self.total = sum(cost(pair) for bundle in self._bundles for _, pair in bundle)
        self._done = 0
        self._tell(0)

    def _bundled(self) -> list[list[Numbered]]:
        """The pairs to be read: by benchmark tensor, and a tensor's second pair beside its first."""
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

    def _tell(self, nbytes: int) -> None:
        self._done += nbytes
        if self._progress is not None:
            self._progress(min(self._done, self.total), self.total)

    def _take(self, results: Sequence[tuple[int, Row]], told: int = 0) -> None:
        """Keeps finished rows, of whose bytes `told` are counted already."""
        for number, row in results:
            self.rows[number] = row
        self._tell(sum(cost(row.pair) for _, row in results) - told)

    def compare_here(self) -> None:
        """Compares all in this process."""
        with worker(self._budget) as here:
            for bundle in self._bundles:
                before = self._done
                self._take(compare_bundle(bundle, here, self._measures, self._tell), self._done - before)

    def state(self) -> str:
        """How far the run came, in words."""
        done = sum(row is not None for row in self.rows)
        return f"{done} of {len(self.rows)} rows are done"

    def rows_so_far(self) -> list[Row]:
        """All rows; those that were not reached say so."""
        reason = "not compared: the run was stopped before this tensor"
        return [
            row or Row(pair=replace(pair, status=Status.UNREADABLE, reason=reason), reason=reason)
            for row, pair in zip(self.rows, self._pairs, strict=True)
        ]

    def spread(self, pool: Executor, workers: int) -> None:
        """Runs bundles on `pool`: large tensors in parts one after the other, then the rest, largest first."""
        weights = [(sum(cost(pair) for _, pair in bundle), bundle) for bundle in self._bundles]
        weights.sort(key=lambda item: -item[0])
        small: list[Weighed] = []
        for weight, bundle in weights:
            first = bundle[0][1]
            if workers > 1 and first.status == Status.COMPARED and cost(first) >= self._budget.split_bytes:
                crew = pool.at(_host_of(pool, bundle)) if isinstance(pool, ClusterExecutor) else pool
                with worker(self._budget) as here:
                    self._compare_split(bundle, crew, here)
            else:
                small.append((weight, bundle))
        if isinstance(pool, ClusterExecutor):
            self._spread_over(pool, small)
            return
        # Tasks of at least this size, so that sending them costs little, and enough of them to balance.
        chunk = max(1 << 20, sum(weight for weight, _ in small) // (workers * 16))
        tasks = _tasks(small, chunk)
        collect([pool.submit(compare_bundles, task, self._measures, self._budget) for task in tasks], self._take)

    def _spread_over(self, cluster: ClusterExecutor, small: Sequence[Weighed]) -> None:
        """Runs bundles where their data lies; of a poisoned task each bundle is tried alone."""
        by_host: dict[str, list[Weighed]] = {}
        for weight, bundle in small:
            by_host.setdefault(_host_of(cluster, bundle), []).append((weight, bundle))
        total = sum(weight for weight, _ in small)
        chunk = min(TASK_BYTES, max(1 << 20, total // (cluster.workers * 2)))
        tasks = [(host, task) for host, mine in by_host.items() for task in _tasks(mine, chunk)]
        given = {self._hand_to(cluster, host, task): (host, task) for host, task in tasks}
        poisoned: list[tuple[str, list[list[Numbered]]]] = []

        def failed(future: Future[Any], error: BaseException) -> bool:
            if isinstance(error, PoisonedTaskError):
                poisoned.append(given[future])
            return isinstance(error, PoisonedTaskError)

        collect([*given], self._take, failed)
        for host, task in poisoned:  # or only one that shared a worker with it: one at a time tells
            self._try_alone(cluster, host, task)

    def _hand_to(self, cluster: ClusterExecutor, host: str, task: list[list[Numbered]]) -> Future[Any]:
        return cluster.at(host).submit(compare_bundles, task, self._measures, self._budget)

    def _try_alone(self, cluster: ClusterExecutor, host: str, task: list[list[Numbered]]) -> None:
        """Does a task while no other is done, then, if it is poisoned, each of its bundles."""
        try:
            collect([self._hand_to(cluster, host, task)], self._take)
        except PoisonedTaskError as error:
            if len(task) == 1:
                self._take([(number, failed_row(pair, error)) for number, pair in task[0]])
            else:
                for bundle in task:
                    self._try_alone(cluster, host, [bundle])

    def _compare_split(self, bundle: Sequence[Numbered], pool: Executor, here: Worker) -> None:
        twins: dict[int, Row] = {}  # pairs by their places that have the values of one that was compared
        for place, (number, pair) in enumerate(bundle):
            before = self._done
            try:
                if pair.status != Status.COMPARED:
                    self.rows[number] = self._looked_at(here.uncompared(pair, self._measures), pool)
                    self._tell(cost(pair))
                    continue
                if place in twins:
                    self.rows[number] = self._looked_at(same_values(twins[place], pair), pool)
                    self._tell(cost(pair))
                    continue
                later = [
                    at for at in range(place + 1, len(bundle)) if at not in twins and is_alike(pair, bundle[at][1])
                ]
                row, verdicts = self._row_of_parts(pair, [bundle[at][1] for at in later], pool, here)
                twins.update((at, row) for at, is_twin in zip(later, verdicts, strict=True) if is_twin)
            except (BrokenProcessPool, ClusterLostError):
                raise
            except Exception as error:
                self.rows[number] = failed_row(pair, error)
                self._tell(before + cost(pair) - self._done)
                continue
            self.rows[number] = row

    def _row_of_parts(self, pair: Pair, beside: Sequence[Pair], pool: Executor, here: Worker) -> tuple[Row, list[bool]]:
        """The row of a pair, and which of the pairs beside it have its NPU tensor's values."""
        limit, asked = self._measures.limit, self._measures.passes(pair)
        passes = [one for one in asked if one.splits]
        whole = [one for one in asked if not one.splits]
        told = self._done
        results, twins = run_in_parts(pair, passes, pool, here, limit=limit, tell=self._tell, beside=beside)
        if whole:
            (found,) = _all([pool.submit(whole_pass, pair, whole, self._budget, limit)])
            results += found
        self._tell(cost(pair) - (self._done - told))
        row = row_of_results(pair, [*passes, *whole], results)
        return self._looked_at(row, pool), twins

    def _looked_at(self, row: Row, pool: Executor) -> Row:
        """The row with what was asked for of the NPU's tensor alone."""
        if not self._measures.looks_alone:
            return row
        (found,) = _all([pool.submit(looked_at, row, self._measures, self._budget)])
        return found


def run_in_parts(
    pair: Pair,
    passes: Sequence[Pass[Any, Any]],
    pool: Executor,
    here: Worker,
    *,
    limit: int = 0,
    tell: Callable[[int], None] | None = None,
    beside: Sequence[Pair] = (),
) -> tuple[list[Any], list[bool]]:
    """What passes over a pair find, each round shared out in parts; `tell` hears of the bytes that are done.

    And which of the pairs `beside` have the very values of its NPU tensor.
    """
    with here.stream(pair, limit) as stream:
        cuts = cuts_of(pair, stream, here.budget) or [(0, len(stream.boxes))]
        parts = [Part(pair, *cut, limit) for cut in cuts]
        share = cost(pair) // (2 * len(parts))

        def one_round(
            asked: Sequence[Pass[Any, Any]], beside: Sequence[Pair] = ()
        ) -> tuple[list[Any], list[list[bool]]]:
            """The states of a whole tensor, merged in the order of the parts, and what each says of its twins."""
            given = [replace(part, beside=tuple(beside)) for part in parts]
            futures = [pool.submit(partial(round_of, passes=asked, budget=here.budget), part) for part in given]
            collect(futures, lambda _: tell(share) if tell is not None else None)
            found = [future.result() for future in futures]
            return merge_all(asked, [states for states, _ in found]), [twins for _, twins in found]

        states, twins = one_round(passes, beside)
        rounds = Rounds(passes, states)
        seconds = rounds.second()
        more, _ = one_round([follow for _, follow in seconds]) if seconds else ([], [])
        return rounds.results(stream, seconds, more), [all(said) for said in zip(*twins, strict=True)]


def _tasks(bundles: Sequence[Weighed], chunk: int) -> list[list[list[Numbered]]]:
    """Bundles as tasks of at least `chunk` bytes, so that sending them costs little."""
    tasks: list[list[list[Numbered]]] = []
    filled = chunk
    for weight, bundle in bundles:
        if filled >= chunk:
            tasks.append([])
            filled = 0
        tasks[-1].append(bundle)
        filled += weight
    return tasks


def _host_of(cluster: ClusterExecutor, bundle: Sequence[Numbered]) -> str:
    """Whose workers read the NPU's data of a bundle."""
    tensors = (pair.npu for _, pair in bundle)
    return next((cluster.host_of(tensor.path) for tensor in tensors if isinstance(tensor, Tensor)), "")


def _all(futures: Sequence[Future[T]]) -> list[T]:
    found: list[T] = []
    collect(futures, found.append)
    return found
