"""Pairs that share a benchmark tensor: an op's output, the inputs it feeds, its copies behind TransData and Cast.

A tensor whose bytes, or decoded values, equal one already compared takes over its row.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from precision_tool.lib.compare.compared_statistics import has_statistics, row_of_statistics
from precision_tool.lib.compare.custom_metrics import CustomMetrics, CustomValues, OwnMetricsPass
from precision_tool.lib.compare.integers import equal_bytes
from precision_tool.lib.compare.passes import AtLimitPass, Cut, MetricsPass, MetricsResult, Pass, run_passes, update_all
from precision_tool.lib.compare.scheduler import check_stopping
from precision_tool.lib.compare.stream import PairStream, open_stream, tensors_of
from precision_tool.lib.compare.tensor_figures import (
    extremes_by,
    extremes_of,
    figures_of,
    limit_of_codes,
    summary_of_statistics,
)
from precision_tool.lib.compare.tensor_reader import (
    DEFAULT_BUDGET,
    Budget,
    Opens,
    OpenTensors,
    Scratch,
    key_of,
)
from precision_tool.lib.io.decode import Numbers
from precision_tool.lib.io.tensor_bytes import open_bytes
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.model.comparison import Extremes, Pair, Status, Summary
from precision_tool.lib.model.finding import joined
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.tensor import AnyTensor, Tensor, TensorStatistics
from precision_tool.lib.model.wording import changed

#: The largest float16, and it and infinity as they are stored, without their signs.
_HALF_LIMIT = 65504.0
_HALF_LIMIT_CODE, _HALF_INF_CODE = 0x7BFF, 0x7C00

#: (number of the row, pair)
Numbered = tuple[int, Pair]
#: Called with the bytes done since the call before.
Tell = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """The measurements made of each pair.

    Without `divergence` the round that only the KL divergence needs is saved. `limit` compares the first so many
    elements of each tensor, 0 all of them. `overflow` looks for float16 values at the type's limit; `extremes` finds
    how near every NPU tensor comes to the limits of its type, those without a benchmark too.
    """

    divergence: bool = True
    limit: int = 0
    overflow: bool = False
    extremes: bool = False
    custom: CustomMetrics | None = None

    @property
    def looks_alone(self) -> bool:
        """Whether NPU tensors are read that are not compared."""
        return self.overflow or self.extremes

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

    budget: Budget = DEFAULT_BUDGET
    scratch: Scratch = field(default_factory=Scratch)
    opened: OpenTensors = field(init=False)
    #: The decoded values of the NPU tensor compared last, while they lie in the buffers.
    last_values: Numbers | None = None
    #: Which of the tensors that were watched beside it have its very values.
    twins: list[bool] = field(default_factory=list)
    #: The benchmark tensor that statistics were held against last, and its own.
    summarized: tuple[AnyTensor, Summary] | None = None

    def __post_init__(self) -> None:
        self.opened = OpenTensors(self.budget)

    def stream(self, pair: Pair, limit: int = 0) -> Any:
        """Return the stream of a pair, to be used in a `with`."""
        return open_stream(pair, self.opened, self.scratch, self.budget, limit)

    def compare(
        self,
        pair: Pair,
        count_bytes: Tell | None = None,
        measures: Measures = PLAIN,
        twin_candidates: Sequence[Pair] = (),
    ) -> Row:
        """Return the finished row of one pair. `count_bytes` hears of the bytes of a large one as they are done.

        The NPU tensors of the pairs `twin_candidates` are held against its own while that is read (`twins`).
        """
        self.last_values, self.twins = None, []
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
            self.last_values, self.twins = stream.kept_values(), stream.twins()
            return row_of_results(pair, [*parted, *whole], results)

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

    def same_bytes(self, left: Tensor, right: Tensor) -> bool:
        """Return whether two tensors of one size have the same bytes."""
        if left.nbytes != right.nbytes:
            return False
        left_bytes, right_bytes = self.opened.stored(left), self.opened.stored(right)
        if left_bytes is not None and right_bytes is not None:
            return equal_bytes(left_bytes, right_bytes)
        size = self.budget.compare_bytes
        buffers = self.scratch.bytes("compared", 2 * size).reshape(2, size)
        with self.opened.open(left) as a, self.opened.open(right) as b:
            for start in range(0, left.nbytes, size):
                check_stopping()
                count = min(size, left.nbytes - start)
                a.read_into(left.offset + start, buffers[0, :count].data)
                b.read_into(right.offset + start, buffers[1, :count].data)
                if not equal_bytes(buffers[0, :count], buffers[1, :count]):
                    return False
        return True


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
            row = changed(
                row,
                metrics=result.metrics,
                npu=result.npu,
                golden=result.golden,
                reason=_reason(pair, result),
            )
        elif isinstance(each, AtLimitPass) and row.npu is not None:
            row = changed(row, extremes=extremes_by(tensors_of(pair)[0], row.npu, result))
        elif isinstance(result, CustomValues) and row.metrics is not None:
            assert isinstance(each, OwnMetricsPass)
            failures = [Message("row.compare.custom_metric", name=name, reason=why) for name, why in result.errors]
            reasons = (row.reason, *failures) if row.reason else tuple(failures)
            values = dict(zip(each.custom.names, result.values, strict=True))
            row = changed(row, custom=values, custom_errors=result.errors, reason=joined(reasons))
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
        row = changed(row, overflow=reaches_limit(tensor, worker.opened.open, worker.budget.compare_bytes))
    if measures.extremes and row.extremes is None:
        row = changed(row, extremes=_extremes(row, measures, worker))
    return row


def _extremes(row: Row, measures: Measures, worker: Worker) -> Extremes | None:
    tensor = row.pair.npu
    if isinstance(tensor, Tensor) and row.metrics is not None and row.npu is not None and not measures.limit:
        extremes = extremes_by(tensor, row.npu)
        if extremes is not None:
            return extremes
    try:
        return None if tensor is None else extremes_of(tensor, worker.opened)
    except PrecisionToolError:
        return None  # who asks for it is told why


def reaches_limit(
    tensor: AnyTensor, opens: Opens = open_bytes, step: int = DEFAULT_BUDGET.compare_bytes
) -> bool | None:
    """Return whether a float16 tensor, padding included, has a value of at least 65504; None for other types."""
    if tensor.dtype != "float16":
        return None
    if isinstance(tensor, TensorStatistics):
        if tensor.positive_inf_count or tensor.negative_inf_count:
            return True
        sizes = [abs(value) for value in (tensor.minimum, tensor.maximum) if value is not None]
        return max(sizes) >= _HALF_LIMIT if sizes else None
    order = ">u2" if tensor.big_endian else "<u2"
    with opens(tensor) as file:
        for start in range(0, tensor.nbytes, step):
            check_stopping()
            size = min(step, tensor.nbytes - start)
            codes = np.frombuffer(file.read_at(tensor.offset + start, size // 2 * 2), order) & 0x7FFF
            if ((codes >= _HALF_LIMIT_CODE) & (codes <= _HALF_INF_CODE)).any():
                return True
    return False


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


def compare_bundle(
    bundle: Sequence[Numbered], worker: Worker, measures: Measures, count_bytes: Tell | None = None
) -> list[tuple[int, Row]]:
    """Rows of pairs that share a benchmark tensor. One pair that fails becomes a row with the reason.

    `count_bytes` hears of the bytes of large tensors as they are done.
    """
    state = _Bundle([pair for _, pair in bundle], worker, measures, count_bytes)
    rows = []
    for place, (number, pair) in enumerate(bundle):
        check_stopping()
        try:
            row = state.row(place)
        except Exception as error:
            row = failed_row(pair, error)
            state.last = None
        rows.append((number, row))
    return rows


class _Bundle:
    """Pairs that share a benchmark tensor, while they are compared one after the other."""

    def __init__(self, pairs: Sequence[Pair], worker: Worker, measures: Measures, count_bytes: Tell | None) -> None:
        self._pairs, self._worker, self._measures, self._tell = pairs, worker, measures, count_bytes
        #: The place and the row of the pair that was really compared last.
        self.last: tuple[int, Row] | None = None
        #: Places of pairs that were compared, by what tells which may have the same bytes, with their rows.
        self._done: dict[object, list[tuple[int, Row]]] = {}
        #: Of which pair, by their places, another was seen to have the very values; and which were held against which.
        self._twins: dict[int, Row] = {}
        self._held: set[tuple[int, int]] = set()

    def row(self, place: int) -> Row:
        """Return the row of the pair at a place."""
        pair, worker = self._pairs[place], self._worker
        if place in self._twins:
            return with_tensor(same_values(self._twins[place], pair), self._measures, worker)
        if len(self._pairs) > 1:
            for tensor in (pair.golden, pair.npu):
                if isinstance(tensor, Tensor):
                    worker.opened.keep(tensor)
        if pair.status != Status.COMPARED:
            return with_tensor(worker.uncompared(pair, self._measures), self._measures, worker)
        return self._row_of_equal(place) or self._compared(place)

    def _row_of_equal(self, place: int) -> Row | None:
        """Return the row of a pair whose tensor is one that was compared; None of another."""
        pair, worker = self._pairs[place], self._worker
        npu = tensors_of(pair)[0]
        for other, equal_row in self._done.get(storage_key(pair), []):
            if (other, place) not in self._held and worker.same_bytes(tensors_of(equal_row.pair)[0], npu):
                return take_over(equal_row, pair)
        if self.last is None:
            return None
        last, equal_row = self.last
        if (last, place) in self._held or not is_alike(equal_row.pair, pair) or not worker.equals_last(pair):
            return None
        row = with_tensor(same_values(equal_row, pair), self._measures, worker)
        self._done.setdefault(storage_key(pair), []).append((place, row))
        return row

    def _compared(self, place: int) -> Row:
        pair, worker = self._pairs[place], self._worker
        candidates = [other for other in range(place + 1, len(self._pairs)) if self._is_watched(place, other)]
        row = worker.compare(pair, self._tell, self._measures, [self._pairs[other] for other in candidates])
        row = with_tensor(row, self._measures, worker)
        self.last = place, row
        self._done.setdefault(storage_key(pair), []).append((place, row))
        self._held.update((place, other) for other in candidates)
        self._twins.update((other, row) for other, is_twin in zip(candidates, worker.twins, strict=True) if is_twin)
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


def compare_bundles(bundles: Sequence[Sequence[Numbered]], measures: Measures, budget: Budget) -> list[tuple[int, Row]]:
    """Return several bundles as one task."""
    with worker(budget) as own:
        return [row for bundle in bundles for row in compare_bundle(bundle, own, measures)]


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
