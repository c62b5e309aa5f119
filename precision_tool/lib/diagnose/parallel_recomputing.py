"""Recompute the ops of a run in several processes, or by any executor. The results do not depend on how many.

Ops that are fused alike learn from each other: how the first of them that fits hangs together is tried first with the
others. So of those that share a key, one after the other is judged until one fits, and the rest side by side.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from secrets import token_hex

from precision_tool.lib.compare.cluster import near
from precision_tool.lib.compare.scheduler import (
    ALL_CORES,
    Meter,
    Resources,
    WorkersLostError,
    can_fork,
    counting,
    free_memory,
    process_pool,
    run_tasks,
)
from precision_tool.lib.diagnose.recomputer import Recomputer
from precision_tool.lib.diagnose.verdict_model import OpResult, State
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.tensor import Tensor

#: Of smaller dumps, starting processes takes longer than judging.
_SERIAL_ELEMENTS = 1 << 20
#: Processes at most: each holds decoded tensors.
_MAX_WORKERS = 4
#: Bytes that the ops take which are judged at one time, and that an element does: while its op is plainly right, and
#: while it is recomputed in float64.
_AT_ONCE = 320 << 20
_LIGHT, _HEAVY = 10, 80
#: A task is about so many elements, and at most so many ops, so that handing it over costs little.
_TASK_ELEMENTS, _TASK_OPS = 1 << 18, 16
_DIED = Message("reason.worker_died")

#: What a forked process judges with: the one that its parent had last.
_inherited: list[Recomputer] = []
#: What a thread of another executor judges with, and the key of what it was made from.
_own = threading.local()


@dataclass(frozen=True, slots=True)
class _Recipe:
    """Recipe for the recomputer of an executor's workers, which inherit nothing; `key` names its run."""

    key: str
    make: Callable[[], Recomputer]

    def recomputer(self) -> Recomputer:
        """Return the recomputer of this thread."""
        own: tuple[str, Recomputer] | None = getattr(_own, "recomputer", None)
        if own is None or own[0] != self.key:
            own = _own.recomputer = (self.key, self.make())
        return own[1]


@dataclass(slots=True)
class _Task:
    key: object
    numbers: list[int]
    elements: int
    #: A large op is looked at lightly first: most are right.
    is_light: bool = True

    @property
    def nbytes(self) -> int:
        return self.elements * (_LIGHT if self.looks_lightly else _HEAVY)

    @property
    def looks_lightly(self) -> bool:
        return self.is_light and self.elements > _TASK_ELEMENTS


@dataclass(slots=True)
class _Plan:
    """Ops that wait for one of their kind, and tasks that are ready."""

    ready: list[_Task] = field(default_factory=list)
    waiting: dict[object, deque[int]] = field(default_factory=dict)


def recompute_ops(recomputer: Recomputer, resources: Resources = ALL_CORES) -> list[OpResult]:
    """Judge every op that computes something, in the order in which they ran; progress is counted in ops.

    Workers of our own are processes. Without `fork`, or beside other threads, this thread does it all. An executor
    does it in any case: of a cluster the workers where the dump lies. Ops of a task that no worker can do say so, and
    so do those that are left when the cluster goes away.
    """
    ops = recomputer.computing()
    sizes = [elements_of(recomputer, op) for op in ops]
    meter = Meter(counting(resources.progress, "ops"), len(ops))
    if resources.executor is not None:
        executor = near(resources.executor, recomputer.values.leaf.path)
        return _Spread(recomputer, ops, sizes, meter).run_by(executor, resources.count)
    count = min(resources.count, _MAX_WORKERS, len(ops))
    if count <= 1 or sum(sizes) < _SERIAL_ELEMENTS or not can_fork():
        judged = []
        for op in ops:
            judged.append(recomputer.recompute(op))
            meter.add(1)
        return judged
    return _Spread(recomputer, ops, sizes, meter).run(count)


def elements_of(recomputer: Recomputer, op: Op) -> int:
    """Return the elements of an op's inputs and outputs; without a dump twice those of the outputs that others show."""
    dump = recomputer.values.dumped(op)
    if dump is None:
        return 1 + 2 * sum(tensor.size for tensor in recomputer.outputs(op).values())
    tensors = (*dump.inputs.values(), *dump.outputs.values())
    return 1 + sum(tensor.size for tensor in tensors if isinstance(tensor, Tensor))


class _Spread:
    """One run's ops on their way through the processes."""

    def __init__(self, recomputer: Recomputer, ops: Sequence[Op], sizes: Sequence[int], meter: Meter) -> None:
        self._recomputer, self._ops, self._sizes, self._meter = recomputer, ops, sizes, meter
        self._done: dict[int, OpResult] = {}
        self._plan = _Plan()
        #: How an executor's workers make their recomputer; None: they are forked, and inherit it.
        self._recipe: _Recipe | None = None
        #: Bytes that ops may take at one time beyond `_AT_ONCE`; 0 where the workers' memory is not known.
        self._spare = 0
        for number, op in enumerate(ops):
            self._plan.waiting.setdefault(recomputer.key(op), deque()).append(number)
        for key in self._plan.waiting:
            self._next(key)

    def run(self, workers: int) -> list[OpResult]:
        """Return every judgement, in the order of the ops."""
        _inherited.append(self._recomputer)
        self._spare = free_memory() // 2
        try:
            with (
                suppress(BrokenExecutor),  # what was not judged says so
                self._recomputer.values.sharing(workers),
                process_pool(workers) as pool,
            ):
                run_tasks(self, pool, limit=2 * workers)
        finally:
            _inherited.pop()
        return self._results()

    def run_by(self, executor: Executor, workers: int) -> list[OpResult]:
        """Return as `run`, by an executor whose workers read the run for themselves."""
        self._recipe = _Recipe(token_hex(8), self._recomputer.for_others())
        reason = _DIED
        try:
            run_tasks(self, executor, limit=2 * workers)
        except BrokenExecutor:
            pass
        except WorkersLostError as error:
            reason = Message("reason.not_done", detail=error.full_message)
        return self._results(reason)

    def _results(self, reason: Message = _DIED) -> list[OpResult]:
        return [self._done.get(number) or self._not_recomputed(number, reason) for number in range(len(self._ops))]

    def _not_recomputed(self, number: int, reason: Message) -> OpResult:
        op = self._ops[number]
        values = self._recomputer.values
        return OpResult(
            op=op, number=values.order[id(op)], state=State.NOT_RECOMPUTED, reason=reason,
            is_dumped=values.dumped(op) is not None,
        )  # fmt: skip

    def next_task(self, running: Collection[_Task]) -> _Task | None:
        """Return the task that brings most to its end; None where it has to wait for the memory of those that run.

        All that run take `_AT_ONCE` at most, one that takes more runs alone. Where half of the machine's free memory
        has room for it, others go on beside one large task: of those that take more than half of `_AT_ONCE` there is
        one at a time, and the others take half of it together.
        """
        half = _AT_ONCE // 2
        has_large = any(task.nbytes > half for task in running)
        tasks = [task for task in self._plan.ready if not has_large or task.nbytes <= half]
        task = max(tasks, key=self._elements_ahead, default=None)
        if task is None:
            return None
        if running:
            sizes = [other.nbytes for other in (*running, task)]
            if sum(min(size, half) for size in sizes) > _AT_ONCE or sum(sizes) > max(_AT_ONCE, self._spare):
                return None
        self._plan.ready.remove(task)
        return task

    def submit(self, task: _Task, executor: Executor) -> Future[_Answer]:
        """Hand out a task with what is known by now of the ops of its kind."""
        fitting = self._recomputer.fitting.get(task.key)
        return executor.submit(
            _recompute_task,
            task.numbers,
            task.key,
            fitting,
            task.looks_lightly,
            self._recipe,
            self._recomputer.seconds_left,
        )

    def take(self, task: _Task, future: Future[_Answer]) -> None:
        """Keep what a task found; the user's error is that of its ops alone."""
        try:
            judged, fitting, checksums = future.result()
        except WorkersLostError:
            raise
        except PrecisionToolError as error:
            reason = Message("reason.not_done", detail=error.full_message)
            self._done |= {number: self._not_recomputed(number, reason) for number in task.numbers}
            self._end(task)
            return
        self._recomputer.values.checksums.update(checksums)
        if judged is None:
            self._plan.ready.append(replace(task, is_light=False))
            return
        for number, result in zip(task.numbers, judged, strict=True):
            self._done[number] = replace(result, op=self._ops[number])
        if fitting is not None:
            self._recomputer.fitting.setdefault(task.key, fitting)
        self._end(task)

    def _end(self, task: _Task) -> None:
        self._next(task.key)
        self._meter.add(len(task.numbers))

    def _elements_ahead(self, task: _Task) -> int:
        """Return the elements that a task completes or unblocks: the most first, so that workers end together."""
        return task.nbytes // _LIGHT + sum(self._sizes[number] for number in self._plan.waiting[task.key])

    def _next(self, key: object) -> None:
        """Queue one op of a key, or all that wait once their formula is known."""
        waiting = self._plan.waiting[key]
        if not waiting:
            return
        if key not in self._recomputer.fitting:
            number = waiting.popleft()
            self._plan.ready.append(_Task(key, [number], self._sizes[number]))
            return
        task = _Task(key, [], 0)
        while waiting:
            number = waiting.popleft()
            if task.numbers and (
                task.elements + self._sizes[number] > _TASK_ELEMENTS or len(task.numbers) >= _TASK_OPS
            ):
                self._plan.ready.append(task)
                task = _Task(key, [], 0)
            task.numbers.append(number)
            task.elements += self._sizes[number]
        self._plan.ready.append(task)


#: The judgements of a task, without their ops, how ops of its key hang together (None: not known), and the checksums
#: of what was read. No judgements: a light look does not do.
_Answer = tuple[list[OpResult] | None, tuple[object, ...] | None, dict[tuple[str, str, int], int]]
_NO_OP = Op(name="", type="")


def _recompute_task(
    numbers: Sequence[int],
    key: object,
    fitting: tuple[object, ...] | None,
    lightly: bool,
    recipe: _Recipe | None,
    seconds_left: float,
) -> _Answer:
    """Recompute some ops in a forked process, or by `recipe` anywhere, with the time left when handed out."""
    recomputer = _inherited[-1] if recipe is None else recipe.recomputer()
    recomputer.seconds_left = seconds_left
    if fitting is not None:
        recomputer.fitting.setdefault(key, fitting)
    ops = recomputer.computing()
    recomputer.values.checksums = {}
    judged = []
    for number in numbers:
        result = recomputer.recompute_lightly(ops[number]) if lightly else recomputer.recompute(ops[number])
        if result is None:
            return None, fitting, recomputer.values.checksums
        judged.append(replace(result, op=_NO_OP))
    return judged, recomputer.fitting.get(key), recomputer.values.checksums
