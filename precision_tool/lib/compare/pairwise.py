"""Compares pairs of tensors: shares the work out by bytes, keeps memory bounded, and knows how far it is.

Pairs that share a benchmark tensor (an op's output, the inputs it feeds, its copies behind TransData and Cast) are a
bundle: they are compared one after the other, and a tensor whose bytes, or decoded values, equal one already compared
takes over its row. Bundles are shared out in tasks, and so are the parts of a large tensor.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from precision_tool.lib.compare import tensor_reader
from precision_tool.lib.compare.cluster import TASK_BYTES, ClusterExecutor, near
from precision_tool.lib.compare.compared_statistics import has_statistics, row_of_statistics, with_verdicts
from precision_tool.lib.compare.custom_metrics import CustomMetrics, CustomValues, OwnMetricsPass
from precision_tool.lib.compare.passes import (
    AtLimitPass,
    Cut,
    MetricsPass,
    MetricsResult,
    Pass,
    merge_all,
    run_passes,
    run_rounds,
    update_all,
)
from precision_tool.lib.compare.scheduler import (
    ALL_CORES,
    Meter,
    PoisonedTaskError,
    Progress,
    Resources,
    WorkersLostError,
    check_stopping,
    keeping_rows,
    map_tasks,
    run_tasks,
)
from precision_tool.lib.compare.stream import PairStream, open_stream, tensors_of
from precision_tool.lib.compare.tensor_figures import (
    extremes_by,
    extremes_of,
    figures_of,
    limit_of_codes,
    reaches_limit,
    summary_of_statistics,
)
from precision_tool.lib.compare.tensor_reader import Budget, OpenTensors, Scratch, key_of
from precision_tool.lib.io import layouts, urls
from precision_tool.lib.io.data_types import Numbers
from precision_tool.lib.io.files import store_of
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.messages.limits import is_of_machine
from precision_tool.lib.model.comparison import Pair, Status, Summary
from precision_tool.lib.model.finding import joined
from precision_tool.lib.model.records import changed
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.tensor import Access, AnyTensor, Tensor, TensorStatistics

#: (number of the row, pair)
Numbered = tuple[int, Pair]
#: Pairs that are compared together, and the bytes they have.
Weighed = tuple[int, list[Numbered]]
#: Called with the bytes done since the call before.
Tell = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """The measurements made of each pair.

    Without `divergence` the round that only the KL divergence needs is saved. `limit` compares the first so many
    elements of each tensor, 0 all of them. `overflow` looks for float16 values at the type's limit; `extremes` finds
    how near every NPU tensor comes to the limits of its type, those without a benchmark too. With `figures` these have
    a summary as well, from the same pass.
    """

    divergence: bool = True
    limit: int = 0
    overflow: bool = False
    extremes: bool = False
    figures: bool = False
    custom: CustomMetrics | None = None

    @property
    def looks_alone(self) -> bool:
        """Whether NPU tensors are read that are not compared."""
        return self.overflow or self.extremes or self.figures

    def passes(self, pair: Pair) -> list[Pass[Any, Any]]:
        """Return the passes over a pair, the metrics first."""
        passes: list[Pass[Any, Any]] = [MetricsPass(self.divergence)]
        limit = limit_of_codes(tensors_of(pair)[0].dtype)
        if self.extremes and limit is not None and not self.limit:
            passes.append(AtLimitPass(limit))
        if self.custom is not None:
            passes.append(OwnMetricsPass(self.custom))
        return passes


PLAIN = Measures()


@dataclass
class Worker:
    """The buffers and the open files of one thread."""

    budget: Budget = tensor_reader.DEFAULT_BUDGET
    scratch: Scratch = field(default_factory=Scratch)
    opened: OpenTensors = field(init=False)
    #: The decoded values of the NPU tensor compared last, while they lie in the buffers.
    last_values: Numbers | None = None
    #: The benchmark tensor that statistics were held against last, and its own.
    summarized: tuple[AnyTensor, Summary] | None = None

    def __post_init__(self) -> None:
        self.opened = OpenTensors(self.budget)

    def stream(self, pair: Pair, limit: int = 0) -> Any:
        """Return the stream of a pair, to be used in a `with`."""
        return open_stream(pair, self.opened, self.scratch, self.budget, limit)

    def compare(
        self, pair: Pair, measures: Measures, count_bytes: Tell | None, twin_candidates: Sequence[Pair]
    ) -> tuple[Row, list[bool]]:
        """Return the finished row of one pair. `count_bytes` hears of the bytes of a large one as they are done.

        The NPU tensors of the pairs `twin_candidates` are held against its own while that is read: which of them have
        its very values is returned too.
        """
        self.last_values = None
        with self.stream(pair, measures.limit) as stream:
            stream.watch(twin_candidates)
            passes = measures.passes(pair)
            # Each element of a tensor that is not kept is read, and told of, twice.
            share = cost(pair) / (2 * stream.size) if count_bytes and not stream.is_kept else 0.0
            count_items = (lambda items: count_bytes(int(items * share))) if count_bytes and share else None
            cuts = cuts_of(pair, stream, self.budget)
            parted = [each for each in passes if each.splits or not cuts]
            whole = [each for each in passes if each not in parted]
            results = run_passes(stream, parted, count_items, cuts)
            results += run_passes(stream, whole) if whole else []
            self.last_values = stream.kept_values()
            return row_of_results(pair, [*parted, *whole], results), stream.twins()

    def equals_last(self, pair: Pair) -> bool:
        """Return whether the NPU tensor has the very values of the one compared last, whatever its layout and type."""
        if self.last_values is None:
            return False
        with self.stream(pair) as stream:
            return bool(stream.holds_values(self.last_values))

    def uncompared(self, pair: Pair, measures: Measures) -> Row:
        """Return the row of a pair that cannot be compared, with the statistics of both sides where one is no more.

        FormatError for a damaged benchmark. Of the first so many elements nothing has statistics.
        """
        if measures.limit or not has_statistics(pair):
            return uncompared(pair)
        assert pair.npu is not None
        assert pair.golden is not None
        if self.summarized is None or self.summarized[0] != pair.golden:
            self.summarized = (pair.golden, figures_of(pair.golden).summary)
        return row_of_statistics(pair, figures_of(pair.npu).summary, self.summarized[1])


#: One worker a thread, so that an executor of threads works as well as one of processes.
_local = threading.local()


@contextmanager
def worker(budget: Budget) -> Iterator[Worker]:
    """Return the worker of this thread; its files are closed at the end of the block."""
    own: Worker | None = getattr(_local, "worker", None)
    if own is None or own.budget != budget:
        own = _local.worker = Worker(budget)
    own.summarized = None  # files may have changed since
    with own.opened:
        yield own


# --- rows -------------------------------------------------------------------------------------------------------------


def row_of_results(pair: Pair, passes: Sequence[Pass[Any, Any]], results: Sequence[Any]) -> Row:
    """Return the row that passes over a pair give."""
    row = Row(pair=pair)
    for each, result in zip(passes, results, strict=True):
        if isinstance(result, MetricsResult):
            reason = _reason(pair, result)
            row = changed(row, metrics=result.metrics, npu=result.npu, golden=result.golden, reason=reason)
        elif isinstance(each, AtLimitPass) and row.npu is not None:
            row = changed(row, extremes=extremes_by(tensors_of(pair)[0], row.npu, result))
        elif isinstance(result, CustomValues) and row.metrics is not None:
            failures = [Message("row.compare.custom_metric", name=name, reason=why) for name, why in result.errors]
            reasons = (row.reason, *failures) if row.reason else tuple(failures)
            row = changed(row, custom=result.values, custom_errors=result.errors, reason=joined(reasons))
    return row


def _reason(pair: Pair, result: MetricsResult) -> Message | None:
    """Return a remark on the figures of a pair."""
    metrics = result.metrics
    if metrics is None:
        return Message("row.compare.empty")
    if metrics.non_finite_mismatches:
        return Message(
            "row.compare.one_side_not_finite",
            count=metrics.non_finite_mismatches,
            index=str(list(metrics.first_mismatch_index or ())),
            npu=metrics.npu_at_max_error,
            golden=metrics.golden_at_max_error,
        )
    scalar = Message("row.compare.scalar") if metrics.is_scalar else None
    reason = _nothing_finite(result)
    if reason is None:
        return scalar or pair.reason
    return Message("row.compare.with_remarks", scalar=scalar, remark=pair.reason, reason=reason)


def _nothing_finite(result: MetricsResult) -> Message | None:
    """Return a remark on a tensor without a finite element, whose figures would look as if all were well."""
    npu = result.npu
    if not npu.count or npu.nan_count + npu.inf_count < npu.count:
        return None
    return Message("row.compare.nothing_finite", count=npu.count, nan=npu.nan_count > 0, inf=npu.inf_count > 0)


def failed_row(pair: Pair, error: BaseException) -> Row:
    """Return the row of a pair whose comparison raised `error`."""
    if isinstance(error, PrecisionToolError):
        reason = error.advice_message
    elif isinstance(error, MemoryError):
        reason = Message("row.compare.no_memory")
    else:
        reason = Message("row.compare.internal", error=f"{type(error).__name__}: {error}")
    return Row(pair=changed(pair, status=Status.UNREADABLE, reason=reason), reason=reason)


def uncompared(pair: Pair) -> Row:
    """Return the row of a pair that cannot be compared."""
    summary = summary_of_statistics(pair.npu) if isinstance(pair.npu, TensorStatistics) else None
    return Row(pair=pair, npu=summary, reason=pair.reason)


def take_over(row: Row, pair: Pair) -> Row:
    """Return the result of an equal tensor as the row of `pair`."""
    reason = pair.reason if row.reason == row.pair.reason else row.reason
    return changed(row, pair=pair, reason=reason)


def with_tensor(row: Row, measures: Measures, worker: Worker) -> Row:
    """Return the row with what was asked for of the NPU's tensor alone, as far as it is not there yet."""
    tensor = row.pair.npu
    if tensor is None:
        return row
    if measures.overflow and row.overflow is None:
        row = changed(row, overflow=reaches_limit(tensor, worker.opened))
    if measures.figures and row.npu is None and isinstance(tensor, Tensor):
        with suppress(PrecisionToolError):  # as below
            # In the order without padding, so that they are those of a rank where it is compared.
            plan = layouts.reading_of(tensor).plan
            row = changed(row, npu=figures_of(tensor, plan, opens=worker.opened.open).summary)
    if measures.extremes and row.extremes is None:
        # What a statistics dump lacks is not known from its summary.
        is_whole = row.metrics is not None or isinstance(tensor, Tensor)
        summary = row.npu if is_whole and not measures.limit else None
        with suppress(PrecisionToolError):  # who asks for it is told why
            row = changed(row, extremes=extremes_of(tensor, worker.opened, summary))
    return row


# --- bundles ----------------------------------------------------------------------------------------------------------


def bundle_key(pair: Pair) -> object:
    """Pair with equal keys are compared one after the other."""
    if has_statistics(pair):
        return "statistics", key_of(pair.golden) if isinstance(pair.golden, Tensor) else pair.tensor_index
    return key_of(tensors_of(pair)[1])


def storage_key(pair: Pair) -> object:
    """Pair with equal keys have equal results if their NPU tensors have equal bytes."""
    npu = tensors_of(pair)[0]
    return bundle_key(pair), npu.dtype, npu.nbytes, npu.big_endian, pair.npu_plan, pair.golden_plan, pair.error_shape


def cost(pair: Pair) -> int:
    """Return the bytes read for a pair; of one that is not compared the NPU's, which may be read alone."""
    if has_statistics(pair):
        return sum(side.nbytes for side in (pair.npu, pair.golden) if isinstance(side, Tensor))
    if pair.status != Status.COMPARED:
        return pair.npu.nbytes if pair.npu is not None else 0
    npu, golden = tensors_of(pair)
    return npu.nbytes + golden.nbytes


def is_alike(other: Pair, pair: Pair) -> bool:
    """Return whether equal values of the NPU give equal results."""
    if other.status != Status.COMPARED or pair.status != Status.COMPARED:
        return False
    return bundle_key(other) == bundle_key(pair) and other.error_shape == pair.error_shape and _same_order(other, pair)


def _same_order(other: Pair, pair: Pair) -> bool:
    """Return whether the benchmark's elements come in one order."""
    left, right = other.golden_plan, pair.golden_plan
    return left == right or (left is not None and right is not None and left.is_flat and right.is_flat)


def same_values(row: Row, pair: Pair) -> Row:
    """Return the result of a tensor with equal values, without what padding or another type changes."""
    same_type = tensors_of(row.pair)[0].dtype == tensors_of(pair)[0].dtype
    return changed(take_over(row, pair), overflow=None, extremes=row.extremes if same_type else None)


class _Bundle:
    """Pairs that share a benchmark tensor, while they are compared one after the other."""

    def __init__(
        self, numbered: Sequence[Numbered], worker: Worker, measures: Measures, count_bytes: Tell | None = None
    ) -> None:
        self._numbered = numbered
        self._pairs = [pair for _, pair in numbered]
        self._worker, self._measures, self._count_bytes = worker, measures, count_bytes
        #: The place and the row of the pair that was really compared last.
        self._last: tuple[int, Row] | None = None
        #: Places of pairs that were compared, by what tells which may have the same bytes, with their rows.
        self._done: dict[object, list[tuple[int, Row]]] = {}
        #: Of which pair, by their places, another was seen to have the very values; and which were held against which.
        self._twins: dict[int, Row] = {}
        self._held: set[tuple[int, int]] = set()

    def rows(self) -> Iterator[tuple[int, Row]]:
        """Return the rows one after the other. One pair that fails becomes a row with the reason."""
        for place, (number, pair) in enumerate(self._numbered):
            check_stopping()
            try:
                row = self._row(place)
            except (BrokenExecutor, WorkersLostError):
                raise
            except Exception as error:
                if is_of_machine(error, cost(pair)):
                    raise
                row = failed_row(pair, error)
                self._last = None
            yield number, row

    def compare(self, pair: Pair, twin_candidates: Sequence[Pair]) -> tuple[Row, list[bool]]:
        """Return the row of a pair, and which of other pairs have its NPU tensor's values."""
        return self._worker.compare(pair, self._measures, self._count_bytes, twin_candidates)

    def completed(self, row: Row) -> Row:
        """Return the row with what was asked for of the NPU's tensor alone."""
        return with_tensor(row, self._measures, self._worker)

    def _row(self, place: int) -> Row:
        pair, worker = self._pairs[place], self._worker
        if place in self._twins:
            return self.completed(same_values(self._twins[place], pair))
        if len(self._pairs) > 1:
            for tensor in (pair.golden, pair.npu):
                if isinstance(tensor, Tensor):
                    worker.opened.keep(tensor)
        if pair.status != Status.COMPARED:
            return self.completed(worker.uncompared(pair, self._measures))
        return self._row_of_equal(place) or self._compared(place)

    def _row_of_equal(self, place: int) -> Row | None:
        """Return the row of a pair whose tensor is one that was compared; None of another."""
        pair, worker = self._pairs[place], self._worker
        npu = tensors_of(pair)[0]
        for other, equal_row in self._done.get(storage_key(pair), []):
            if (other, place) not in self._held and worker.opened.same_bytes(tensors_of(equal_row.pair)[0], npu):
                return take_over(equal_row, pair)
        if self._last is None:
            return None
        last, equal_row = self._last
        if (last, place) in self._held or not is_alike(equal_row.pair, pair) or not worker.equals_last(pair):
            return None
        row = self.completed(same_values(equal_row, pair))
        self._done.setdefault(storage_key(pair), []).append((place, row))
        return row

    def _compared(self, place: int) -> Row:
        pair = self._pairs[place]
        candidates = [other for other in range(place + 1, len(self._pairs)) if self._is_watched(place, other)]
        row, are_twins = self.compare(pair, [self._pairs[other] for other in candidates])
        row = self.completed(row)
        self._last = place, row
        self._done.setdefault(storage_key(pair), []).append((place, row))
        self._held.update((place, other) for other in candidates)
        self._twins.update((other, row) for other, is_twin in zip(candidates, are_twins, strict=True) if is_twin)
        return row

    def _is_watched(self, place: int, other: int) -> bool:
        """Return whether another tensor is read beside this one, as it will not stay in memory until its own turn."""
        npu = self._pairs[other].npu
        return (
            npu is not None
            and npu.nbytes > self._worker.budget.stored_tensor
            and other not in self._twins
            and is_alike(self._pairs[place], self._pairs[other])
        )


def gathered(bundles: Sequence[Sequence[Numbered]]) -> Iterator[Sequence[Numbered]]:
    """Yield bundles; where each read takes a while, what is read of the next ones is read together."""
    if not urls.any_named():
        yield from bundles
        return
    pairs = [pair for bundle in bundles for _, pair in bundle]
    stores = [
        {store_of(side.path) for side in sides if isinstance(side, Tensor)}
        for sides in ([pair.npu for pair in pairs], [pair.golden for pair in pairs])
    ]
    far = [number for number, of_side in enumerate(stores) if len(of_side) == 1 and next(iter(of_side)).gathers]
    place = 0
    for bundle in bundles:
        for number in far:
            sides = ((pair.npu, pair.golden)[number] for pair in pairs[place:])
            tensors = (side for side in sides if isinstance(side, Tensor) and side.access is Access.BYTES)
            (store,) = stores[number]
            store.gather((tensor.path, tensor.offset, tensor.nbytes) for tensor in tensors)
        place += len(bundle)
        yield bundle


def compare_bundles(bundles: Sequence[Sequence[Numbered]], measures: Measures, budget: Budget) -> list[tuple[int, Row]]:
    """Return the rows of several bundles, as one task."""
    with worker(budget) as own:
        return [row for bundle in gathered(bundles) for row in _Bundle(bundle, own, measures).rows()]


# --- parts of a large pair, as tasks ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """Boxes `start` to `stop` of a pair of which every worker makes the same list."""

    pair: Pair
    start: int = 0
    stop: int = 0
    limit: int = 0
    #: Pairs whose NPU tensors are held against its own.
    twin_candidates: tuple[Pair, ...] = ()


def cuts_of(pair: Pair, stream: PairStream, budget: Budget) -> list[Cut]:
    """Return the parts of a pair that is large enough to be shared out; none of others.

    They go by the sizes of the tensors alone: whoever compares them, the sums begin anew at the same elements.
    """
    size = cost(pair)
    if size < budget.split_bytes:
        return []
    step = max(1, -(-len(stream.boxes) // max(1, size // budget.part_bytes)))
    return [(start, min(len(stream.boxes), start + step)) for start in range(0, len(stream.boxes), step)]


def round_of(part: Part, passes: Sequence[Pass[Any, Any]], budget: Budget) -> tuple[list[Any], list[bool]]:
    """One round of passes over a part: their states, and which of the tensors beside it have its values there."""
    with worker(budget) as own, own.stream(part.pair, part.limit) as stream:
        stream.watch(part.twin_candidates)
        states = [each.start(stream) for each in passes]
        update_all(passes, states, stream.blocks(part.start, part.stop))
        return states, stream.twins()


def looked_at(row: Row, measures: Measures, budget: Budget) -> Row:
    """`with_tensor` as a task."""
    with worker(budget) as own:
        return with_tensor(row, measures, own)


def whole_pass(pair: Pair, passes: Sequence[Pass[Any, Any]], budget: Budget, limit: int) -> list[Any]:
    """Return the results of passes that take a tensor whole."""
    with worker(budget) as own, own.stream(pair, limit) as stream:
        return run_passes(stream, passes)


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
    twins_of_parts: list[list[bool]] = []
    with here.stream(pair, whole.limit) as stream:
        cuts = cuts_of(pair, stream, here.budget) or [(0, len(stream.boxes))]
        parts = [replace(whole, start=start, stop=stop) for start, stop in cuts]
        share = cost(pair) // (2 * len(parts))

        def run_round(needed: Sequence[Pass[Any, Any]]) -> list[Any]:
            """Return the states of a whole tensor, merged in the order of the parts."""
            is_first = not twins_of_parts
            calls = [(part if is_first else replace(part, twin_candidates=()), needed, here.budget) for part in parts]
            results = map_tasks(round_of, calls, pool, lambda _: done(share))
            if is_first:
                twins_of_parts.extend(twins for _, twins in results)
            return merge_all(needed, [states for states, _ in results])

        results = run_rounds(passes, stream, run_round)
        return results, [all(verdicts) for verdicts in zip(*twins_of_parts, strict=True)]


class _SplitBundle(_Bundle):
    """A bundle of large tensors, which a pool compares in parts."""

    def __init__(
        self, numbered: Sequence[Numbered], worker: Worker, measures: Measures, count_bytes: Tell, pool: Executor
    ) -> None:
        super().__init__(numbered, worker, measures)
        self._tell, self._pool = count_bytes, pool

    def compare(self, pair: Pair, twin_candidates: Sequence[Pair]) -> tuple[Row, list[bool]]:
        self._worker.last_values = None  # its buffers hold those of another tensor, if any
        limit, passes = self._measures.limit, self._measures.passes(pair)
        parted = [each for each in passes if each.splits]
        whole = [each for each in passes if not each.splits]
        part = Part(pair, limit=limit, twin_candidates=tuple(twin_candidates))
        results, are_twins = run_in_parts(part, parted, self._pool, self._worker, self._tell)
        if whole:
            (more,) = map_tasks(whole_pass, [(pair, whole, self._worker.budget, limit)], self._pool)
            results += more
        return row_of_results(pair, [*parted, *whole], results), are_twins

    def completed(self, row: Row) -> Row:
        if not self._measures.looks_alone:
            return row
        (row,) = map_tasks(looked_at, [(row, self._measures, self._worker.budget)], self._pool)
        return row


# --- all pairs --------------------------------------------------------------------------------------------------------


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
    # An executor's workers may be threads too, beside this one.
    budget = (budget or tensor_reader.DEFAULT_BUDGET).among_threads(workers + 1)
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
        self._meter.add(sum(cost(self._pairs[number]) for number, _ in results) - counted)

    def _take_all(self, bundle: _Bundle) -> None:
        before = self._meter.done
        for result in bundle.rows():
            self.take([result], self._meter.done - before)
            before = self._meter.done

    def compare_here(self) -> None:
        """Compare all in this process."""
        with worker(self._budget) as here:
            for bundle in gathered(self._bundles):
                self._take_all(_Bundle(bundle, here, self._measures, self._meter.add))

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
                pool_of_host = near(pool, _path_of(bundle))
                with worker(self._budget) as here:
                    self._take_all(_SplitBundle(bundle, here, self._measures, self._meter.add, pool_of_host))
            else:
                small.append((weight, bundle))
        total = sum(weight for weight, _ in small)
        if isinstance(pool, ClusterExecutor):
            tasks = _tasks_by_host(pool, small, min(TASK_BYTES, max(1 << 20, total // (pool.workers * 2))))
        else:  # tasks of at least this size, so that sending them costs little, and enough of them to balance
            tasks = _tasks(small, max(1 << 20, total // (workers * 16)))
        run_tasks(_BundleWork(tasks, self._measures, self._budget, self.take), pool)


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
