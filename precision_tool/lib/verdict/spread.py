"""The ops of a run judged in several processes, or by any executor. What is found does not depend on how many.

Ops that are fused alike learn from each other: how the first of them that fits hangs together is tried first with the
others. So of those that share a key, one after the other is judged until one fits, and the rest side by side.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from secrets import token_hex

from precision_tool.lib.engine.cluster import ClusterLostError, near
from precision_tool.lib.engine.workers import can_fork, cores, free_memory, process_pool
from precision_tool.lib.errors import PrecisionToolError
from precision_tool.lib.messages import Message
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.tensor import Tensor
from precision_tool.lib.verdict.judge import Judge
from precision_tool.lib.verdict.judgement import OpJudgement, State

#: Called with (ops judged, ops in all).
Progress = Callable[[int, int], None]
#: Of smaller dumps, starting processes takes longer than judging.
_SERIAL_ELEMENTS = 1 << 20
#: Processes at most: each holds decoded tensors.
_MOST_WORKERS = 4
#: Bytes that the ops take which are judged at one time, and that an element does: while its op is plainly right, and
#: while it is recomputed in float64.
_AT_ONCE = 320 << 20
_LIGHT, _HEAVY = 10, 80
#: A task is about so many elements, and at most so many ops, so that handing it over costs little.
_TASK_ELEMENTS, _TASK_OPS = 1 << 18, 16
_TICK = 0.1
_DIED = Message("reason.worker_died")

#: What a forked process judges with: the one that its parent had last.
_inherited: list[Judge] = []
#: What a thread of another executor judges with, and the key of what it was made from.
_own = threading.local()


@dataclass(frozen=True, slots=True)
class _Recipe:
    """How an executor's workers, which inherit nothing, come by their judge; `key` is that of the one run."""

    key: str
    make: Callable[[], Judge]

    def judge(self) -> Judge:
        """The judge of this thread."""
        known: tuple[str, Judge] | None = getattr(_own, "judge", None)
        if known is None or known[0] != self.key:
            known = _own.judge = (self.key, self.make())
        return known[1]


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
    """Which ops wait for one of their kind, and which can be judged."""

    ready: list[_Task] = field(default_factory=list)
    waiting: dict[object, deque[int]] = field(default_factory=dict)


def judge_ops(
    judge: Judge, *, workers: int = 0, executor: Executor | None = None, progress: Progress | None = None
) -> list[OpJudgement]:
    """Every op that computes something, in the order in which they ran; `workers` 0: one process a core.

    Without `fork`, or beside other threads, this process does it all. An `executor` does it in any case: of a cluster
    the workers where the dump lies. Ops of a task that no worker can do say so, and so do those that are left when
    the cluster goes away.
    """
    ops = judge.computing()
    sizes = [elements_of(judge, op) for op in ops]
    if executor is not None:
        return _Spread(judge, ops, sizes, progress).run_by(near(executor, judge.values.leaf.path), workers or cores())
    count = min(workers or cores(), _MOST_WORKERS, len(ops))
    if count <= 1 or sum(sizes) < _SERIAL_ELEMENTS or not can_fork():
        judged = []
        for op in ops:
            judged.append(judge.judge(op))
            if progress is not None:
                progress(len(judged), len(ops))
        return judged
    return _Spread(judge, ops, sizes, progress).run(count)


def elements_of(judge: Judge, op: Op) -> int:
    """The elements of an op's inputs and outputs; without a dump twice those of the outputs that others show."""
    dump = judge.values.dumped(op)
    if dump is None:
        return 1 + 2 * sum(one.size for one in judge.outputs(op).values())
    tensors = (*dump.inputs.values(), *dump.outputs.values())
    return 1 + sum(one.size for one in tensors if isinstance(one, Tensor))


class _Spread:
    """One run's ops on their way through the processes."""

    def __init__(self, judge: Judge, ops: Sequence[Op], sizes: Sequence[int], progress: Progress | None) -> None:
        self._judge, self._ops, self._sizes, self._progress = judge, ops, sizes, progress
        self._done: dict[int, OpJudgement] = {}
        self._plan = _Plan()
        #: Bytes that ops may take at one time beyond `_AT_ONCE`; 0 where the workers' memory is not known.
        self._spare = 0
        for number, op in enumerate(ops):
            self._plan.waiting.setdefault(judge.key(op), deque()).append(number)
        for key in self._plan.waiting:
            self._next(key)

    def run(self, workers: int) -> list[OpJudgement]:
        """Every judgement, in the order of the ops."""
        _inherited.append(self._judge)
        self._spare = free_memory() // 2
        try:
            with (
                suppress(BrokenExecutor),  # what was not judged says so
                self._judge.values.sharing(workers),
                process_pool(workers) as pool,
            ):
                self._hand_out(pool, 2 * workers)
        finally:
            _inherited.pop()
        return self._judgements()

    def run_by(self, executor: Executor, workers: int) -> list[OpJudgement]:
        """As `run`, by an executor whose workers read the run for themselves."""
        recipe = _Recipe(token_hex(8), self._judge.for_others())
        reason = _DIED
        try:
            self._hand_out(executor, 2 * workers, recipe)
        except BrokenExecutor:
            pass
        except ClusterLostError as error:
            reason = Message("reason.not_done", detail=error.message)
        return self._judgements(reason)

    def _judgements(self, reason: Message = _DIED) -> list[OpJudgement]:
        return [self._done.get(number) or self._not_judged(number, reason) for number in range(len(self._ops))]

    def _not_judged(self, number: int, reason: Message) -> OpJudgement:
        op = self._ops[number]
        values = self._judge.values
        return OpJudgement(
            op=op, number=values.order[id(op)], state=State.NOT_RECOMPUTED, reason=reason,
            is_dumped=values.dumped(op) is not None,
        )  # fmt: skip

    def _hand_out(self, pool: Executor, most: int, recipe: _Recipe | None = None) -> None:
        running: dict[Future[_Found], _Task] = {}
        ready = self._plan.ready
        while ready or running:
            while ready and len(running) < most:
                task = self._next_beside(running.values())
                if task is None:
                    break
                ready.remove(task)
                fitting = self._judge.fitting.get(task.key)
                arguments = task.numbers, task.key, fitting, task.looks_lightly, recipe, self._judge.seconds_left
                running[pool.submit(_judge_task, *arguments)] = task
            finished, _ = wait(running, timeout=_TICK, return_when=FIRST_COMPLETED)
            lost: ClusterLostError | None = None
            for future in finished:
                task = running.pop(future)
                try:
                    found = future.result()
                except ClusterLostError as error:
                    lost = error
                except PrecisionToolError as error:
                    self._give_up(task, Message("reason.not_done", detail=error.message))
                else:
                    self._take(task, found)
            if lost is not None:  # what others had done by then is taken
                raise lost

    def _next_beside(self, running: Collection[_Task]) -> _Task | None:
        """The task that is handed out next; None where it has to wait for the memory of those that run.

        All that run take `_AT_ONCE` at most, one that takes more runs alone. Where half of the machine's free memory
        has room for it, others go on beside one large task: of those that take more than half of `_AT_ONCE` there is
        one at a time, and the others take half of it together.
        """
        half = _AT_ONCE // 2
        has_large = any(task.nbytes > half for task in running)
        tasks = [task for task in self._plan.ready if not has_large or task.nbytes <= half]
        task = max(tasks, key=self._behind, default=None)
        if task is None or not running:
            return task
        together = (*running, task)
        if sum(min(one.nbytes, half) for one in together) > _AT_ONCE:
            return None
        return task if sum(one.nbytes for one in together) <= max(_AT_ONCE, self._spare) else None

    def _behind(self, task: _Task) -> int:
        """The elements that a task brings nearer to their end: the most first, so that all workers end together."""
        return task.nbytes // _LIGHT + sum(self._sizes[number] for number in self._plan.waiting[task.key])

    def _take(self, task: _Task, found: _Found) -> None:
        judged, fitting, checksums = found
        self._judge.values.checksums.update(checksums)
        if judged is None:
            self._plan.ready.append(replace(task, is_light=False))
            return
        for number, one in zip(task.numbers, judged, strict=True):
            self._done[number] = replace(one, op=self._ops[number])
        if fitting is not None:
            self._judge.fitting.setdefault(task.key, fitting)
        self._next(task.key)
        if self._progress is not None:
            self._progress(len(self._done), len(self._ops))

    def _give_up(self, task: _Task, reason: Message) -> None:
        self._done |= {number: self._not_judged(number, reason) for number in task.numbers}
        self._next(task.key)

    def _next(self, key: object) -> None:
        """Hands out one op of a key, or all that wait once it is known how they hang together."""
        waiting = self._plan.waiting[key]
        if not waiting:
            return
        if key not in self._judge.fitting:
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
_Found = tuple[list[OpJudgement] | None, tuple[object, ...] | None, dict[tuple[str, str, int], int]]
_NO_OP = Op(name="", type="")


def _judge_task(
    numbers: Sequence[int],
    key: object,
    fitting: tuple[object, ...] | None,
    lightly: bool,
    recipe: _Recipe | None,
    seconds_left: float,
) -> _Found:
    """Judges some ops in a forked process, or by `recipe` anywhere; `seconds_left` when they were handed out."""
    judge = _inherited[-1] if recipe is None else recipe.judge()
    judge.seconds_left = seconds_left
    if fitting is not None:
        judge.fitting.setdefault(key, fitting)
    ops = judge.computing()
    judge.values.checksums = {}
    judged = []
    for number in numbers:
        found = judge.judge_lightly(ops[number]) if lightly else judge.judge(ops[number])
        if found is None:
            return None, fitting, judge.values.checksums
        judged.append(replace(found, op=_NO_OP))
    return judged, judge.fitting.get(key), judge.values.checksums
