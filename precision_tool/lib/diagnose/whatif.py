"""What is left of a deviation once an op is mended: its right output in its place, and all behind it computed again.

Two emulations are held against each other, which differ in nothing but the op: one goes on from its right output, one
from what it put out. How far the latter is from what was recorded tells how true the emulation is (VERDICT.md §8).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf, isfinite, sqrt

import numpy as np

from precision_tool.lib.compare.data_folder import DataFolder
from precision_tool.lib.data.dumped_ops import BenchmarkSide, NoBenchmark
from precision_tool.lib.data.graph_catalog import FoundOp, RunGraph
from precision_tool.lib.data.msprobe_ops import UNRECORDED
from precision_tool.lib.diagnose.checked_ops import references_of
from precision_tool.lib.diagnose.divergence import is_random
from precision_tool.lib.diagnose.emulation import MENDED, Array, Computed, Key, Rounding, StepEmulator, is_beyond
from precision_tool.lib.diagnose.error_shape import UNIT, flat_doubles, norm
from precision_tool.lib.diagnose.formulas import is_fused
from precision_tool.lib.diagnose.op_values import NoValueError, Root, RunValues
from precision_tool.lib.diagnose.recomputer import Recomputer
from precision_tool.lib.diagnose.stored_verdict import op_verdicts
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, UsageError
from precision_tool.lib.model.graph import GraphFile, Op
from precision_tool.lib.model.run import DumpLeaf
from precision_tool.lib.model.tensor import Tensor
from precision_tool.lib.ops.base import NotComputedError

#: Times the rounding of the types behind an op, and times the emulation's own error, that a change is more than.
_ROUNDINGS, _NOISES = 8.0, 4.0
#: The largest relative distance that counts: what is farther off, or not finite, is wholly wrong.
_WHOLLY = 2.0
#: Shares of a deviation from which on a mended op explains all of it, and some.
_ALL, _SOME = 0.9, 0.02
#: Ops that add up, and the share of what they add up below which nothing but its rounding is left.
_SUMS, _CANCELLED = ("ReduceSum", "Sum", "BiasAddGrad"), 2.0**-8
#: How long mending ops may take.
SECONDS = 600.0
#: Computes an op behind one whose right value its type cannot hold.
_WIDE = Rounding(is_wide=True)


class Effect(StrEnum):
    """What mending does; the text is `screen.view.whatif.effect.<value>`."""

    #: The deviation from the benchmark goes away.
    EXPLAINS = "explains"
    #: Some of it does.
    PARTLY = "partly"
    #: Something changes, and the benchmark is no nearer.
    NO_NEARER = "no_nearer"
    #: Something changes, and there is no benchmark to hold it against.
    CHANGES = "changes"
    #: Nothing changes but rounding.
    NOTHING = "nothing"
    #: The change was lost at an op without a formula before it reached the loss or a tensor in which the step ends.
    STOPPED = "stopped"


class Source(StrEnum):
    """Where the right value of an op is from; the text is `screen.view.whatif.source.<value>`."""

    RECOMPUTED = "recomputed"
    BENCHMARK = "benchmark"
    #: What was put out, of which the op read something else.
    PRODUCER = "producer"
    #: What a cast was given.
    UNCAST = "uncast"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """An op that has no formula, so that its recorded result stands; `behind` ops depend on it."""

    op: str
    reason: Message | str
    behind: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The loss, or a tensor in which the step ends. Distances are relative, ‖x − y‖ / ‖y‖, at most 2.

    Attributes
    ----------
    name : str
        The tensor.
    dumped, mended, benchmark : float or None
        Its value, where it is a single number.
    deviation, left : float or None
        The distance of the dumped and of the mended tensor from the benchmark's; None without one.
    change : float
        The distance of the mended tensor from what the emulation makes of the op's recorded output.
    noise : float
        The distance of that from the dumped one: the error of the emulation.
    is_reached : bool
        Whether it depends on the op.
    is_changed : bool
        Whether it changes by more than rounding and the error of the emulation.
    """

    name: str
    dumped: float | None = None
    mended: float | None = None
    benchmark: float | None = None
    deviation: float | None = None
    left: float | None = None
    change: float = 0.0
    noise: float = 0.0
    is_reached: bool = True
    is_changed: bool = False

    @property
    def explained(self) -> float | None:
        """The share of the deviation that goes away."""
        if self.deviation is None or self.left is None or not self.deviation:
            return None
        return 1.0 - self.left / self.deviation


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowest:
    """The tensor behind an op with the lowest cosine to the benchmark's (without one, to the dumped one)."""

    tensor: str
    cosine: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What became of a step with some of its ops mended.

    Attributes
    ----------
    ops : tuple of str
        The mended ops.
    sources : tuple of str
        Where their right values are from, in the same order.
    effect : Effect
        What mending them does.
    loss : Target or None
        The loss; None for a step without one.
    outputs : tuple of Target
        The tensors in which the step ends.
    explained : float or None
        The share of the loss' deviation from the benchmark that goes away; of that of the final tensors, where the loss
        does not depend on the ops or does not change. None without a benchmark, or without a deviation.
    by_loss : bool
        Whether `explained` is of the loss.
    before, after : Lowest or None
        The lowest cosine of the tensors behind the ops, as dumped and mended.
    computed, behind : int
        Ops behind them that were computed again, of how many.
    stopped : tuple of Stop
        Where a change was lost.
    is_wide : bool
        Whether a right value is beyond its type, and was kept in float32.
    seconds : float
        How long it took.
    """

    ops: tuple[str, ...]
    sources: tuple[Source, ...]
    effect: Effect
    loss: Target | None = None
    outputs: tuple[Target, ...] = ()
    explained: float | None = None
    by_loss: bool = False
    before: Lowest | None = None
    after: Lowest | None = None
    computed: int = 0
    behind: int = 0
    stopped: tuple[Stop, ...] = ()
    is_wide: bool = False
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class _Mend:
    """How an op is mended: tensors that are given in place of others, and whether it is computed anew."""

    op: Op
    source: Source
    given: Mapping[Key, Array] = field(default_factory=dict)
    is_computed: bool = False


class Replay:
    """A run of which ops can be mended.

    Parameters
    ----------
    leaf, file, benchmark, unfused
        The run's dump and graph, what it is held against, and a graph that has the original ops of its fused ones.
    wrong : collection of str
        Names of ops that compute wrong, as far as a verdict tells: they keep their error unless they are mended.
    """

    def __init__(
        self,
        leaf: DumpLeaf,
        file: GraphFile,
        benchmark: BenchmarkSide,
        unfused: GraphFile | None = None,
        wrong: Collection[str] = (),
    ) -> None:
        self.values = RunValues(leaf, file, benchmark)
        self._recomputer = Recomputer(self.values, unfused)
        self.emulator = StepEmulator(self._recomputer)
        self._wrong = frozenset(wrong)
        self._computing = {id(op) for op in self.emulator.ops}
        self._mends: dict[int, _Mend] = {}
        self.has_benchmark = not isinstance(benchmark, NoBenchmark)

    # --- how an op is mended ---

    def _mend(self, op: Op) -> _Mend:
        """Return how an op is mended. NoValueError where there is no right value of it."""
        if id(op) not in self._mends:
            with np.errstate(all="ignore"), self.values.reading():
                self._mends[id(op)] = self._find_mend(op)
        return self._mends[id(op)]

    def _find_mend(self, op: Op) -> _Mend:
        if id(op) not in self._computing or is_random(op):
            return self._of_benchmark(op, Message("reason.not_mended"))
        spoiled = self._spoiled_inputs(op)
        if spoiled:
            reason = self._trust(op)
            return _Mend(op=op, source=Source.PRODUCER, given=spoiled, is_computed=reason is None)
        uncast = self._uncast(op)
        if uncast:
            return _Mend(op=op, source=Source.UNCAST, given=uncast)
        reason = self._trust(op)
        if reason is None:
            return _Mend(op=op, source=Source.RECOMPUTED, is_computed=True)
        return self._of_benchmark(op, reason)

    def _of_benchmark(self, op: Op, reason: Message) -> _Mend:
        given = {}
        for index in range(max(len(op.output_descs), 1)):
            root = Root(op, index)
            golden = self.values.load_benchmark(root)
            if golden is None:
                continue
            given[root.key] = golden.input.array.astype(np.float32, copy=False) if (
                golden.input.array.dtype == np.float64 and golden.input.dtype != "float64"
            ) else golden.input.array  # fmt: skip
        if not given:
            raise NoValueError(reason.kind.partition(".")[2], **dict(reason.fields))
        return _Mend(op=op, source=Source.BENCHMARK, given=given)

    def _trust(self, op: Op) -> Message | None:
        """Choose the formula that tells the right value of an op; return why there is none."""
        if is_fused(op):  # how such ops hang together others may show that compute right
            key = self._recomputer.key(op)
            for other in self.emulator.ops:
                if other is not op and is_fused(other) and self._recomputer.key(other) == key:
                    self._recomputer.recompute(other)
        judged = self._recomputer.examine(op)
        if judged.formula is None:
            return self.emulator.check(op)
        try:
            self.emulator.trust(op, judged.formula)
        except NotComputedError:
            return self.emulator.check(op)
        return None

    def _spoiled_inputs(self, op: Op) -> dict[Key, Array]:
        """Return what was put out of the tensors of which an op read something else."""
        if op.is_recorded:
            return {}
        given: dict[Key, Array] = {}
        for slot in self.values.input_slots(op):
            root, own = self.values.source_of(slot), self.values.tensor_at(slot)
            if root is None or not isinstance(own, Tensor):
                continue
            made = self.values.tensor_at(self.values.output_slot(root))
            if not isinstance(made, Tensor) or made.size != own.size or made.dtype != own.dtype:
                continue
            try:
                put_out = self.values.load(made, root.op.output_desc(root.index), stored=True).array
                read = self.values.load(own, slot.desc, stored=True).array
            except NoValueError:
                continue
            if put_out.dtype.kind == "f" and not np.array_equal(put_out.reshape(-1), read.reshape(-1), equal_nan=True):
                given[root.key] = put_out
        return given

    def _uncast(self, op: Op) -> dict[Key, Array]:
        """Return what a cast to whole numbers was given, where it cut something off."""
        if op.type != "Cast":
            return {}
        op_inputs = self.emulator.inputs_of(op)
        taken = next(iter(op_inputs.inputs.values()), None)
        made = self.emulator.recorded(Root(op, 0))
        if taken is None or made is None or taken.array.dtype.kind != "f":
            return {}
        if made.array.size != taken.array.size or made.array.dtype.kind not in "iu":
            return {}
        return {(id(op), 0): taken.array.reshape(made.array.shape)}

    # --- what becomes of it ---

    def without(
        self, ops: Sequence[Op], *, deadline: float = inf, progress: Callable[[int, int], None] | None = None
    ) -> WhatIf:
        """Return what is left of the run's deviation with these ops mended.

        Parameters
        ----------
        ops : sequence of Op
            The ops, mended together.
        deadline : float
            Of the monotonic clock: when to give up.
        progress : callable, optional
            Called with the ops that were computed, and how many there are.

        Raises
        ------
        DataNotFoundError
            There is no right value of an op, or no time left.
        """
        try:
            return self._without(ops, deadline, progress)
        except NoValueError as error:
            name = ", ".join(op.name for op in ops)
            raise DataNotFoundError.of(name, "cli.whatif_no_value", reason=error.reason) from error

    def _without(self, ops: Sequence[Op], deadline: float, progress: Callable[[int, int], None] | None) -> WhatIf:
        start = time.monotonic()
        mends = [self._mend(op) for op in ops]
        behind = self._behind(ops, mends)
        for op in behind:
            if op.name in self._wrong and self._trust(op) is None:
                self.emulator.unlike.setdefault(id(op), inf)
        control = self._run(ops, mends, _Watch(self, len(behind), 0, deadline, progress), is_mended=False)
        watch = _Watch(self, len(behind), 1, deadline, progress)
        mended = self._run(ops, mends, watch, is_mended=True)
        unit = max((UNIT.get(self.emulator.dtype_of(root), 0.0) for root in self.outputs([*ops, *behind])), default=0.0)
        reached = {id(op) for op in (*ops, *behind)}
        targets = {
            root.key: self._target(root, control[root.key], mended[root.key], unit, is_reached=id(root.op) in reached)
            for root in self.wanted() if root.key in mended and root.key in control
        }  # fmt: skip
        loss = targets.get(self.emulator.loss.key) if self.emulator.loss is not None else None
        outputs = tuple(targets[root.key] for root in self.emulator.last_roots if root.key in targets)
        explained, by_loss = _explained(loss, outputs)
        stops = self._stops(watch, behind)
        return WhatIf(
            ops=tuple(op.name for op in ops), sources=tuple(mend.source for mend in mends),
            effect=_effect(loss, outputs, explained, is_stopped=bool(stops)), loss=loss, outputs=outputs,
            explained=explained, by_loss=by_loss, before=watch.before, after=watch.after,
            computed=watch.computed, behind=sum(id(op) in self._computing for op in behind),
            stopped=stops, is_wide=watch.is_wide, seconds=time.monotonic() - start,
        )  # fmt: skip

    def _stops(self, watch: _Watch, behind: Sequence[Op]) -> tuple[Stop, ...]:
        """Return where changes are lost: at ops without a formula, and where calls were not recorded."""
        stops, lost = [], set()
        unrecorded = [(op, Message("reason.unrecorded")) for op in behind if op.type == UNRECORDED]
        for op, reason in (*watch.stopped, *unrecorded):
            if id(op) in lost:
                continue
            after = self._behind([op], [])
            lost |= {id(other) for other in after if other.type == UNRECORDED}
            count = sum(id(other) in self._computing for other in after)
            stops.append(Stop(op=op.name, reason=reason, behind=count))
        return tuple(stops)

    def wanted(self) -> list[Root]:
        """Return the loss, and the tensors in which the step ends."""
        loss = self.emulator.loss
        return [*([] if loss is None else [loss]), *self.emulator.last_roots]

    def _run(self, ops: Sequence[Op], mends: Sequence[_Mend], watch: _Watch, *, is_mended: bool) -> Mapping[Key, Array]:
        """Return the tensors in which the step ends, from the right outputs of ops or from the recorded ones."""
        given: dict[Key, Array] = {}
        computed = set()
        if is_mended:
            for mend in mends:
                given |= mend.given
                computed |= {id(mend.op)} if mend.is_computed else set()
        else:
            for root in self.outputs(ops):
                recorded = self.emulator.recorded(root)
                if recorded is not None:
                    given[root.key] = recorded.array
        watch.mended = {id(op) for op in ops}
        behind = {id(op) for op in self._behind(ops, mends)} if is_mended else set()

        def rounding_of(op: Op) -> Rounding | None:
            if id(op) in computed:
                return MENDED
            # What a type cannot hold does not fit those behind it either: they are kept in float32 with it.
            return _WIDE if watch.is_wide and id(op) in behind else None

        return self.emulator.run(
            rounding_of, replaced=given, wanted=self.wanted(), on_op=watch.on_op, on_stop=watch.on_stop
        ).values

    def outputs(self, ops: Iterable[Op]) -> list[Root]:
        """Return the tensors that ops put out."""
        return [Root(op, index) for op in ops for index in range(max(len(op.output_descs), 1))]

    def _behind(self, ops: Sequence[Op], mends: Sequence[_Mend]) -> list[Op]:
        """Return the ops that depend on what changes, in order."""
        keys = {root.key for root in self.outputs(ops)} | {key for mend in mends for key in mend.given}
        own, behind = {id(op) for op in ops}, []
        for op in self.values.ops:
            is_read = id(op) in self._computing or op.type == UNRECORDED
            if is_read and any(root.key in keys for root in self.values.producers(op)):
                keys |= {root.key for root in self.outputs([op])}
                if id(op) not in own:
                    behind.append(op)
        return behind

    def _target(self, root: Root, control: Array, mended: Array, unit: float, *, is_reached: bool) -> Target:
        recorded = self.emulator.recorded(root)
        have = mended if recorded is None else recorded.array
        golden = self.values.load_benchmark(root)
        reference = None if golden is None or golden.input.array.size != mended.size else golden.input.array
        change, noise = distance(mended, control), distance(control, have)
        return Target(
            name=root.name, dumped=_number(have), mended=_number(mended), benchmark=_number(reference),
            deviation=None if reference is None else distance(have, reference),
            left=None if reference is None else distance(mended, reference),
            change=change, noise=noise, is_reached=is_reached,
            is_changed=is_reached and change > max(_ROUNDINGS * unit, _NOISES * noise),
        )  # fmt: skip


class _Watch:
    """Looks at each op as it is computed: the lowest cosine, where a change is lost, and how much is done."""

    def __init__(
        self,
        replay: Replay,
        behind: int,
        number: int,
        deadline: float,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._replay, self._deadline, self._progress = replay, deadline, progress
        self._behind, self._number = max(behind, 1), number
        self.before: Lowest | None = None
        self.after: Lowest | None = None
        self.computed, self.is_wide = 0, False
        self.stopped: list[tuple[Op, Message]] = []
        self.mended: set[int] = set()

    def on_stop(self, op: Op, reason: Message) -> None:
        self.stopped.append((op, reason))

    def on_op(self, computed: Computed) -> None:
        if time.monotonic() > self._deadline:
            raise NoValueError("out_of_time")
        emulator = self._replay.emulator
        if id(computed.op) in self.mended:
            self.is_wide |= any(
                is_beyond(array, emulator.dtype_of(Root(computed.op, slot)))
                for slot, array in computed.outputs.items()
            )  # fmt: skip
            return
        self.computed += 1
        if self._progress is not None:
            done = min(self._number * self._behind + self.computed, 2 * self._behind)
            self._progress(done, 2 * self._behind)
        if not self._number or _cancels(computed):
            return
        for slot, array in computed.outputs.items():
            root = Root(computed.op, slot)
            recorded = emulator.recorded(root)
            if recorded is None or array.dtype.kind != "f" or array.size < 2 or recorded.array.size != array.size:
                continue
            golden = self._replay.values.load_benchmark(root)
            if golden is not None and golden.input.array.size == array.size:
                self.before = _lower(self.before, root, cosine(recorded.array, golden.input.array))
                self.after = _lower(self.after, root, cosine(array, golden.input.array))
            elif not self._replay.has_benchmark:
                self.after = _lower(self.after, root, cosine(array, recorded.array))


def _cancels(computed: Computed) -> bool:
    """Return whether an op adds up numbers that nearly cancel, so that its result is the rounding of what it takes."""
    if not computed.op.type.startswith(_SUMS) or not computed.inputs:
        return False
    taken = max(norm(flat_doubles(each.array)) for each in computed.inputs.values())
    return all(norm(flat_doubles(array)) <= _CANCELLED * taken for array in computed.outputs.values())


def _lower(lowest: Lowest | None, root: Root, value: float) -> Lowest:
    if lowest is None or value < lowest.cosine:
        return Lowest(tensor=root.name, cosine=value)
    return lowest


def cosine(x: Array, y: Array) -> float:
    """Return the cosine of two tensors; -1 where numbers of one alone are not finite, 1 of two that are zero."""
    left, right = flat_doubles(x), flat_doubles(y)
    finite = np.isfinite(left) & np.isfinite(right)
    if not finite.all():
        is_alike = np.array_equal(np.isfinite(left), np.isfinite(right))
        return cosine(left[finite], right[finite]) if is_alike else -1.0
    sizes = norm(left), norm(right)
    if not sizes[0] or not sizes[1]:
        return 1.0 if sizes[0] == sizes[1] else 0.0
    return float(np.clip(np.einsum("i,i->", left / sizes[0], right / sizes[1]), -1.0, 1.0))


def distance(x: Array, y: Array) -> float:
    """Return the relative distance of a tensor from another, at most 2, as for numbers that are not finite."""
    left, right = flat_doubles(x), flat_doubles(y)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    if same.all():
        return 0.0
    off = norm(left[~same] - right[~same])
    size = norm(right[np.isfinite(right)])
    if not isfinite(off) or not size:
        return _WHOLLY
    return min(off / size, _WHOLLY)


def _number(array: Array | None) -> float | None:
    return float(np.asarray(array).reshape(-1)[0]) if array is not None and array.size == 1 else None


def _together(distances: Iterable[float]) -> float:
    return sqrt(sum(value * value for value in distances))


def _explained(loss: Target | None, outputs: Sequence[Target]) -> tuple[float | None, bool]:
    """Return the share of the deviation that goes away, and whether that is of the loss."""
    if loss is not None and loss.is_changed:
        return loss.explained, True
    known = [(each.deviation, each.left) for each in outputs if each.deviation is not None and each.left is not None]
    before = _together(deviation for deviation, _ in known)
    return (1.0 - _together(left for _, left in known) / before if before else None), False


def _effect(loss: Target | None, outputs: Sequence[Target], explained: float | None, *, is_stopped: bool) -> Effect:
    is_changed = any(target.is_changed for target in (*outputs, *([] if loss is None else [loss])))
    if not is_changed:
        return Effect.STOPPED if is_stopped else Effect.NOTHING
    if explained is None:
        return Effect.CHANGES
    if explained >= _ALL:
        return Effect.EXPLAINS
    if explained > _SOME:
        return Effect.PARTLY
    return Effect.STOPPED if is_stopped else Effect.NO_NEARER  # what is behind a stop might tell otherwise


def conclusion(result: WhatIf) -> Message:
    """Return what mending does, in one sentence."""
    target = _told(result)
    if target is None:
        return Message(f"screen.view.whatif.effect.{result.effect}", count=len(result.ops))
    share = result.explained if result.effect is not Effect.CHANGES else None
    if target.dumped is not None:
        value = Message(
            "screen.view.whatif.number", loss=target is result.loss, tensor=target.name, mended=target.mended,
            benchmark=target.benchmark, dumped=target.dumped,
        )  # fmt: skip
    elif target.deviation is None:
        value = Message("screen.view.whatif.changed", tensor=target.name, change=target.change)
    else:
        value = Message("screen.view.whatif.distance", tensor=target.name, left=target.left, dumped=target.deviation)
    return Message(f"screen.view.whatif.effect.{result.effect}", count=len(result.ops), value=value, explained=share)


def _told(result: WhatIf) -> Target | None:
    """Return the tensor that tells what mending does: the loss where it changes, else the one that changes most."""
    if result.effect in (Effect.NOTHING, Effect.STOPPED):
        return None
    if result.loss is not None and result.loss.is_changed:
        return result.loss
    changed = [target for target in result.outputs if target.is_changed]
    return max(changed, key=lambda target: target.change, default=None)


def replay_of(data: DataFolder, run: RunGraph) -> Replay:
    """Return a run of a data folder whose ops can be mended; what the newest verdict says of them is believed.

    DataNotFoundError for a run without a dump.
    """
    if run.leaf is None:
        raise DataNotFoundError.of(run.file.path, "diagnose.no_dump_to_mend")
    judged = op_verdicts(data.workspace, run)
    wrong = [name for name, op in judged.items() if op.state == "wrong"]
    return Replay(run.leaf, run.file, *references_of(data, run), wrong=wrong)


def replay_of_ops(data: DataFolder, names: Sequence[str], graph: str | None = None) -> tuple[Replay, list[Op]]:
    """Return the first run that was dumped and has the first op, and its ops of these names.

    Parameters
    ----------
    data : DataFolder
        Where the ops are looked for.
    names : sequence of str
        Names of ops, parts of names or numbers, as for `ni`.
    graph : str, optional
        The graph to look in.

    Raises
    ------
    DataNotFoundError, UsageError
        There is no such op, or several, or none that was dumped; another op is not of the same run.
    """
    found = [_found(data.find_ops(name, graph), name) for name in names]
    run = found[0][0].run
    replay = replay_of(data, run)
    ops: dict[int, Op] = {}
    for name, hits in zip(names, found, strict=True):
        in_run = {hit.op.name for hit in hits if hit.run.number == run.number}
        op = next((op for op in replay.values.ops if op.name in in_run), None)
        if op is None:
            raise UsageError("cli.whatif_other_run", name=name, other=names[0])
        ops[id(op)] = op
    return replay, list(ops.values())


def _found(hits: Sequence[FoundOp], name: str) -> list[FoundOp]:
    if len({hit.op.name for hit in hits}) > 1:
        raise UsageError("cli.several_ops", name=name)
    return [hit for hit in hits if hit.run.leaf is not None] or list(hits)
