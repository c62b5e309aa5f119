"""What 16 bits will do to a step, from one float32 dump of it: ranges, sensitivities, and what to keep in float32.

An op in a 16-bit type takes its inputs rounded to it, adds up in float32 and stores its results rounded. What kernels
store in 16 bits on their way is in `intermediates`. Gradients are stored times the advised loss scale. Updates of
variables, and what else a script does with finished gradients of recorded calls, stay in float32, as master weights do.

A step stays within its bounds by default if the loss moves by at most 0.1 %, far less than from one batch to the next,
and no weight's gradient by more than 10 %: the noise of a gradient of one batch is about as large as the gradient, and
what has a tenth of its size adds 1 % to its square.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from math import floor, inf, isfinite, isnan, log2, nan, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.compare.scheduler import Progress
from precision_tool.lib.data.msprobe_ops import UNRECORDED
from precision_tool.lib.diagnose.adjoints import Adjoints
from precision_tool.lib.diagnose.emulation import (
    Computed,
    Key,
    Rounding,
    StepEmulator,
    is_gradient,
    stored_in,
)
from precision_tool.lib.diagnose.error_shape import LIMIT, SMALLEST, UNIT, flat_doubles, norm
from precision_tool.lib.diagnose.headroom import MARGIN
from precision_tool.lib.diagnose.intermediates import intermediates
from precision_tool.lib.diagnose.op_values import PASSING, Root
from precision_tool.lib.diagnose.preflight_model import (
    Errors,
    LossScale,
    OpRange,
    Preflight,
    Risk,
    SearchStep,
    Sensitivity,
    TypeForecast,
)
from precision_tool.lib.diagnose.preflight_search import Bounds, Chosen, FoundSet, Search, SearchEndedError, rank
from precision_tool.lib.messages import Message
from precision_tool.lib.model.graph import Op
from precision_tool.lib.ops.optimizers import updated_inputs

Array = npt.NDArray[Any]

#: The default bounds.
BOUND_LOSS, BOUND_GRADIENTS = 1e-3, 1e-1
#: How long all searches may take by default.
SECONDS = 60.0
#: Share of an op's results that become 0 from which on it is at risk.
_MANY = 0.01
#: Relative change of results from which on nothing is left of them.
_LOST = 0.5
#: Part of a gradient, as a ratio of norms, that may vanish: as much as rounding to float16 takes.
_VANISHED = 2.0**-11
#: A gradient within so many roundings of what it is the sum of is noise already in float32: 0 on paper.
_NOISE = 64.0
#: Elements that are computed at most to emulate ops one by one where no gradient tells their sensitivity: so many
#: elements has the step, times its ops.
_CHEAP = 2.0**24
#: Emulations that a search takes as a rule, to tell how much is left.
_USUAL = 24
#: Share of a type's ops that has to be kept before it is tried to keep all, and how many at least.
_NEARLY_ALL, _SEVERAL = 0.75, 3

FLOAT32 = Rounding(inputs="float32", output="float32")


def preflight(
    emulator: StepEmulator,
    dtypes: Sequence[str] = ("float16", "bfloat16"),
    *,
    bound_loss: float = BOUND_LOSS,
    bound_gradients: float = BOUND_GRADIENTS,
    progress: Progress | None = None,
    seconds: float = SECONDS,
) -> Preflight:
    """Tell what 16-bit types make of a step, and which ops to keep in float32.

    Parameters
    ----------
    emulator : StepEmulator
        The step, as float32 computed it.
    dtypes : sequence of str
        "float16", "bfloat16".
    bound_loss, bound_gradients : float
        Largest relative errors that are allowed: of the loss, and of a weight's gradient as a ratio of norms.
    progress : callable, optional
        Called with (done, total), in ops that are computed.
    seconds : float
        How long the searches may take; the best set that was emulated so far is returned then.

    Returns
    -------
    Preflight
        The forecast of each type. `source`, `graph` and `framework` are left empty.
    """
    started = time.monotonic()
    step = _Step(emulator, tuple(dtypes), _Reported(progress))
    step.measure()
    bounds = Bounds(loss=bound_loss, gradients=bound_gradients)
    types, is_interrupted = [], False
    for number, dtype in enumerate(dtypes):
        left = max(0.0, seconds - (time.monotonic() - started)) / (len(dtypes) - number)
        forecaster = _Forecaster(step, dtype, bounds, time.monotonic() + left)
        types.append(forecaster.forecast())
        if forecaster.is_interrupted:  # Ctrl+C ends all searches: the other types are told without
            seconds, is_interrupted = 0.0, True
    step.reported.finish()
    return Preflight(
        source="",
        graph="",
        framework="",
        ops=len(step.ops),
        loss_name="" if emulator.loss is None else emulator.loss.op.name,
        loss=step.loss_value,
        bound_loss=bound_loss,
        bound_gradients=bound_gradients,
        types=tuple(types),
        not_emulated=step.stopped,
        emulated=sum(id(op) in step.computed for op in step.ops),
        between=tuple(step.between),
        unconnected=step.unconnected,
        is_interrupted=is_interrupted,
        seconds=time.monotonic() - started,
    )


# --- the step in float32 ----------------------------------------------------------------------------------------------


class _Reported:
    """Counts ops for `progress`; `total` grows where the guess was too low."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress, self.done, self.total = progress, 0, 1

    def expect(self, ops: int) -> None:
        self.total = self.done + ops

    def one(self) -> None:
        self.done += 1
        self.total = max(self.total, self.done + 1)
        if self._progress is not None:
            self._progress(self.done, self.total)

    def finish(self) -> None:
        if self._progress is not None:
            self._progress(self.total, self.total)


class _LastOpError(Exception):
    """Ends an emulation behind the last op that matters."""


@dataclass(slots=True)
class _Measured:
    """What one type makes of one op alone."""

    op: Op
    largest: float = 0.0
    smallest: float = 0.0
    inside: str = ""
    inside_size: float = 0.0
    underflow: float = 0.0
    rounding: float = 0.0
    overflows: bool = False
    #: Whether an input does not fit into the type: what comes of that is its producer's.
    is_given_overflow: bool = False
    #: Change of the loss by the adjoint; NaN where that is not known.
    moved: float = nan
    #: Norms of what has which exponent, of gradients.
    by_exponent: list[Mapping[int, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The sizes of a tensor's elements: how many are not 0, the extremes of these, and of gradients by exponent."""

    values: Array
    count: int
    largest: float
    smallest: float
    norm: float
    by_exponent: Mapping[int, float]

    @classmethod
    def of(cls, array: Array, *, with_exponents: bool) -> _Sizes:
        with np.errstate(all="ignore"):
            values = np.abs(array.reshape(-1))
            is_held = values > 0
            finite = values if np.isfinite(values).all() else values[np.isfinite(values)]
            return cls(
                values=values,
                count=int(np.count_nonzero(is_held)),
                largest=float(values.max()),
                smallest=float(values.min(initial=inf, where=is_held)),
                norm=norm(finite),
                by_exponent=_by_exponent(finite) if with_exponents else {},
            )

    def smaller_than(self, limit: float) -> int:
        """Return how many are not 0 and no larger than this."""
        if self.smallest > limit:
            return 0
        return int(np.count_nonzero(self.values <= limit)) - (self.values.size - self.count)


class _Step:
    """The step in float32, and what each type makes of each op alone."""

    def __init__(self, emulator: StepEmulator, dtypes: tuple[str, ...], reported: _Reported) -> None:
        self.emulator, self.dtypes, self.reported = emulator, dtypes, reported
        self.values = emulator.values
        self.number = {id(op): number for number, op in enumerate(emulator.ops)}
        self.loss_roots = [emulator.loss] if emulator.loss is not None else self._final_outputs()
        self.gradient_roots = self._weight_gradients()
        #: The ops that loss and gradients depend on, in order; the others need not be computed.
        self.ops = self._needed()
        self.last = self.number[id(self.ops[-1])] if self.ops else -1
        self.stopped: dict[str, Message] = {}
        self.baseline: dict[Key, Array] = {}
        self.not_finite: set[int] = set()
        #: Ops that could be emulated, by id.
        self.computed: set[int] = set()
        #: Ops that could not be, though what they read was: what changes before them ends there.
        self.between: list[str] = []
        #: Whether nothing tells the error of the loss, or that of any gradient.
        self.is_unknown = False
        self.loss_value = nan
        self.measured: dict[str, dict[int, _Measured]] = {dtype: {} for dtype in dtypes}
        self.adjoints = Adjoints(emulator)
        self.elements = 0

    # --- what matters ---

    def _final_outputs(self) -> list[Root]:
        return [root for root in self.emulator.last_roots if not is_gradient(root.op)]

    def _weight_gradients(self) -> list[Root]:
        """Return the gradients in which the backward pass ends: those that update variables, else those nobody reads.

        Where some update variables, others that nobody reads are gradients of constants.
        """
        behind: set[int] = set()
        for op in self.emulator.ops:
            if is_gradient(op) or any(id(root.op) in behind for root in self._sources(op)):
                behind.add(id(op))
        ends, updating = [], []
        for root in self.emulator.roots:
            if id(root.op) not in behind or updated_inputs(root.op.type):
                continue
            readers = [slot.op for slot in self.values.readers(root) if slot.op.type not in PASSING]
            if root.op.recorded is not None:
                if is_gradient(root.op) and not any(is_gradient(reader) for reader in readers):
                    ends.append(root)
            elif any(updated_inputs(reader.type) for reader in readers):
                updating.append(root)
            elif not readers:
                ends.append(root)
        return updating or ends

    def _needed(self) -> list[Op]:
        needed = {id(root.op) for root in (*self.loss_roots, *self.gradient_roots)}
        for op in reversed(self.emulator.ops):
            if id(op) in needed:
                needed |= {id(root.op) for root in self._sources(op)}
        return [op for op in self.emulator.ops if id(op) in needed and not updated_inputs(op.type)]

    def _sources(self, op: Op) -> Iterator[Root]:
        """Yield what an op reads, and what views that no recorded call put out may be made of."""
        for root in self.values.producers(op):
            yield root
            yield from self.emulator.probable_sources(root)

    @cached_property
    def unconnected(self) -> int:
        """Return how many tensors of the step no recorded call put out, nor is it known what they were made of."""
        emulator = self.emulator
        roots = {root.key: root for op in self.ops for root in self.values.producers(op)}
        unrecorded = [root for root in roots.values() if root.op.type == UNRECORDED]
        return sum(_elements(root) > 1 and emulator.view_of(root) is None for root in unrecorded)

    @cached_property
    def _given_gradients(self) -> frozenset[int]:
        """Ops that stand for gradients which no recorded call put out."""
        given: set[int] = set()
        for op in self.ops:
            gradients = 0 if op.recorded is None else len(op.recorded.gradients)
            slots = self.values.input_slots(op)[:gradients] if gradients else []
            sources = (self.values.source_of(slot) for slot in slots if slot.index < gradients)
            given |= {id(root.op) for root in sources if root is not None and root.op.recorded is None}
        return frozenset(given)

    @cached_property
    def units(self) -> list[tuple[Op, ...]]:
        """Return what can be kept in float32 one by one: an op, or a recorded call with its backward.

        Autocast chooses a type for a call of the forward pass, and its backward has the same.
        """
        units: dict[str, list[Op]] = {}
        for op in self.ops:
            if self.emulator.check(op) is not None or not self._has_floats(op):
                continue
            if op.recorded is not None and not is_gradient(op) and self._is_behind(op):
                continue
            units.setdefault(_unit_name(op), []).append(op)
        return [tuple(ops) for ops in units.values()]

    @cached_property
    def _behind_gradients(self) -> frozenset[int]:
        behind: set[int] = set()
        for op in self.emulator.ops:
            if any(is_gradient(root.op) or id(root.op) in behind for root in self._sources(op)):
                behind.add(id(op))
        return frozenset(behind)

    def _is_behind(self, op: Op) -> bool:
        return id(op) in self._behind_gradients

    def _has_floats(self, op: Op) -> bool:
        return any(self.emulator.dtype_of(Root(op, index)) in UNIT for index in range(max(len(op.output_descs), 1)))

    # --- the float32 step ---

    def measure(self) -> None:
        """Compute the step in float32, and each op once more in each type from the same inputs."""
        wanted = {root.key for root in (*self.loss_roots, *self.gradient_roots)}
        self.reported.expect(len(self.ops) * (1 + len(self.dtypes) * (1 + _USUAL)))

        def look(computed: Computed) -> None:
            op = computed.op
            self.computed.add(id(op))
            for slot, array in computed.outputs.items():
                if (id(op), slot) in wanted:
                    self.baseline[id(op), slot] = array
                if array.dtype.kind == "f":
                    self.elements += array.size
                    if not np.isfinite(array).all():
                        self.not_finite.add(id(op))
            sizes = {
                slot: _Sizes.of(array, with_exponents=is_gradient(op))
                for slot, array in computed.outputs.items()
                if array.dtype.kind == "f" and array.size
            }
            for dtype in self.dtypes:
                self.measured[dtype][id(op)] = self._measure(computed, sizes, dtype)

        self.emulate(lambda op: FLOAT32, on_op=look, on_stop=self._note_stopped)
        self._judge_only_what_is_reached()
        loss = self.emulator.loss
        if loss is not None:
            recorded = None if loss.key in self.baseline else self.emulator.recorded(loss)
            value = self.baseline.get(loss.key) if recorded is None else recorded.array
            self.loss_value = nan if value is None else float(value.reshape(-1)[0])

    def _judge_only_what_is_reached(self) -> None:
        """Leave out the ends to which no unbroken path of emulated ops leads: their errors are not known."""
        reached = self._reached()
        losses = [root for root in self.loss_roots if root.key in self.baseline and id(root.op) in reached]
        gradients = [root for root in self.gradient_roots if root.key in self.baseline and id(root.op) in reached]
        self.is_unknown = not losses or (bool(self.gradient_roots) and not gradients)
        self.loss_roots = losses
        self.gradient_roots = [root for root in gradients if self._is_judged(root)]

    def _reached(self) -> set[int]:
        """Return the ops to which an unbroken path of emulated ops leads; note those at which paths break."""
        # Of each op whether it is reached; None for what nothing emulated lies before: a recorded value is right there.
        states: dict[int, bool | None] = {}
        for op in self.ops:
            parents = [self._state(root, states) for root in self.values.producers(op)]
            known = [state for state in parents if state is not None]
            if id(op) in self.computed:
                states[id(op)] = any(known) or not known
            elif known and self._has_floats(op):
                states[id(op)] = False
                self.between.append(op.name)
        return {number for number, state in states.items() if state}

    def _state(self, root: Root, states: Mapping[int, bool | None]) -> bool | None:
        if root.op.type != UNRECORDED:
            return states.get(id(root.op))
        view = self.emulator.view_of(root)
        sources = self.emulator.probable_sources(root) if view is None else view[1]
        known = [state for source in sources if (state := states.get(id(source.op))) is not None]
        if not known or (view is None and _elements(root) <= 1):
            return None
        return view is not None and any(known)

    def _note_stopped(self, op: Op, reason: Message) -> None:
        if id(op) in self._needed_ids:
            self.stopped[op.name] = reason

    @cached_property
    def _needed_ids(self) -> frozenset[int]:
        return frozenset(map(id, self.ops))

    def _is_judged(self, root: Root) -> bool:
        """Return whether a gradient is more than noise: that of a bias in front of a batch norm is 0 on paper."""
        have = self.baseline.get(root.key)
        if have is None or not have.size or not np.isfinite(have).all():
            return False
        if have.ndim > 1:  # sums over everything are biases' alone, and the check costs as much as the op
            return True
        result = self.emulator.results(root.op).get(root.index)
        if result is None:
            return False
        summed = norm(np.broadcast_to(np.abs(result.summed), result.array.shape).reshape(-1))
        return norm(flat_doubles(have)) > _NOISE * UNIT[self.emulator.dtype_of(root)] * summed

    def emulate(
        self,
        rounding_of: Callable[[Op], Rounding | None],
        *,
        scale: float = 1.0,
        on_op: Callable[[Computed], None] = lambda computed: None,
        on_stop: Callable[[Op, Message], None] | None = None,
        last: int | None = None,
    ) -> None:
        """Compute the ops that matter, up to that at the place `last`."""
        end = self.last if last is None else last

        def rounding(op: Op) -> Rounding | None:
            if self.number[id(op)] > end:
                raise _LastOpError
            return rounding_of(op) if id(op) in self._needed_ids else None

        def done(computed: Computed) -> None:
            self.reported.one()
            on_op(computed)

        def scale_of(op: Op) -> float:
            return scale if is_gradient(op) or id(op) in self._given_gradients else 1.0

        with suppress(_LastOpError):
            self.emulator.run(rounding, scale_of=scale_of, on_op=done, on_stop=on_stop)

    def _measure(self, computed: Computed, sizes: Mapping[int, _Sizes], dtype: str) -> _Measured:
        """Return what rounding to a type makes of one op, whose inputs are exact."""
        op = computed.op
        result = _Measured(op)
        for name, size in intermediates(computed):
            if size > result.inside_size:
                result.inside, result.inside_size = name, size
        narrow = self.emulator.again(computed, Rounding(inputs=dtype, output=dtype))
        if not sizes or narrow is None:
            return result
        flushed = sum(found.smaller_than(SMALLEST[dtype]) for found in sizes.values())
        count = sum(found.count for found in sizes.values())
        error = total = 0.0
        moved: float | None = 0.0
        with np.errstate(all="ignore"):
            for slot, found in sizes.items():
                change = narrow.outputs[slot].reshape(-1) - computed.outputs[slot].reshape(-1)
                if not np.isfinite(change).all():
                    y = narrow.outputs[slot].reshape(-1)
                    result.overflows |= not np.isfinite(y[np.isfinite(computed.outputs[slot].reshape(-1))]).all()
                    change = np.where(np.isfinite(change), change, 0.0)
                error, total = error + norm(change) ** 2, total + found.norm**2
                moved = self._moved(Root(op, slot), change, moved)
        result.largest = max(found.largest for found in sizes.values())
        smallest = min(found.smallest for found in sizes.values())
        result.smallest = 0.0 if smallest == inf else smallest
        result.underflow = flushed / count if count else 0.0
        result.rounding = (error / total) ** 0.5 if total > 0 else 0.0
        if result.overflows or result.rounding > _LOST:
            result.is_given_overflow = any(_overflows(given.array, dtype) for given in computed.inputs.values())
        result.moved = inf if result.overflows else nan if moved is None else abs(moved)
        result.by_exponent = [found.by_exponent for found in sizes.values()] if is_gradient(op) else []
        return result

    def _moved(self, root: Root, change: Array, moved: float | None) -> float | None:
        """Add the change of the loss that a change of one result makes; None where that is not known."""
        if moved is None or self.emulator.loss is None:
            return None
        if is_gradient(root.op) or self.number[id(root.op)] > self.number[id(self.emulator.loss.op)]:
            return moved
        gradient = self._gradient_of(root)
        if gradient is not None and gradient.size == change.size:
            return moved + float(gradient.reshape(-1) @ change)
        is_read = any(not is_gradient(slot.op) for slot in self.values.readers(root))
        return None if is_read else moved

    def _gradient_of(self, root: Root) -> Array | None:
        """Return an adjoint, kept for the next type."""
        if self._adjoint is None or self._adjoint[0] != root.key:
            self._adjoint = root.key, self.adjoints.of(root)
        return self._adjoint[1]

    _adjoint: tuple[Key, Array | None] | None = None


def _overflows(array: Array, dtype: str) -> bool:
    """Return whether a type stores a finite number as an infinite one."""
    if array.dtype.kind != "f":
        return False
    return bool((np.isfinite(array) & ~np.isfinite(stored_in(array, dtype))).any())


def _by_exponent(sizes: Array) -> dict[int, float]:
    """Return sums of squares by exponent."""
    exponents = np.frexp(sizes)[1]
    lowest = int(exponents.min(initial=0))
    squares = np.bincount(exponents - lowest, weights=sizes.astype(np.float64) ** 2)
    return {lowest + int(place): float(squares[place]) for place in np.flatnonzero(squares)}


# --- one type ---------------------------------------------------------------------------------------------------------


def fitting_scale(gradients: Sequence[Mapping[int, float]], largest: float, dtype: str) -> LossScale:
    """Return the loss scales that keep gradients in range.

    Parameters
    ----------
    gradients : sequence of mapping
        Of each gradient its sums of squares by the exponents of its elements (`numpy.frexp`).
    largest : float
        The largest element of all; infinite where float32 does not hold them either, so that no scale does.
    dtype : str
        The type in which gradients are stored.
    """
    if not isfinite(largest):
        return LossScale(advised=1.0, lowest=inf, highest=0.0)
    if not largest:
        return LossScale(advised=1.0, lowest=0.0, highest=inf)
    highest = floor(log2(LIMIT[dtype] / largest))
    lowest = -inf
    for by_exponent in gradients:
        allowed = _VANISHED**2 * sum(by_exponent.values())
        lost = 0.0
        for exponent in sorted(by_exponent):
            lost += by_exponent[exponent]
            if lost > allowed:  # elements of this exponent are needed: from 2^(e - 1) on
                lowest = max(lowest, log2(SMALLEST[dtype]) + 1 - exponent + 1)
                break
    best = highest - MARGIN
    if lowest == -inf or (lowest <= 0 <= best):
        exponent = min(0, best)
    elif lowest > best:
        exponent = best
    else:
        exponent = floor((lowest + best) / 2)
    return LossScale(
        advised=2.0**exponent, lowest=0.0 if lowest == -inf else 2.0 ** max(lowest, -1000), highest=2.0**highest
    )


class _Forecaster:
    """What one type makes of the step."""

    def __init__(self, step: _Step, dtype: str, bounds: Bounds, deadline: float) -> None:
        self._step, self._dtype, self._bounds, self._deadline = step, dtype, bounds, deadline
        self._narrow = Rounding(inputs=dtype, output=dtype)
        self._measured = step.measured[dtype]
        self._not_computed = {
            id(op): found for op in step.ops
            if id(op) not in self._measured and (found := self._recorded(op)) is not None
        }  # fmt: skip
        self._steps: list[SearchStep] = []
        self.is_interrupted = False
        gradients = [
            found for found in (*self._measured.values(), *self._not_computed.values()) if is_gradient(found.op)
        ]
        self._scale = fitting_scale(
            [part for found in gradients for part in found.by_exponent if part],
            max((found.largest if isfinite(found.largest) else inf for found in gradients), default=0.0),
            dtype,
        )

    def forecast(self) -> TypeForecast:
        """Return what the type makes of the step, and what to keep in float32."""
        units = self._step.units
        self._step.reported.expect(len(self._step.ops) * (1 + _USUAL))
        all_narrow = self._emulate(frozenset(), in_full=True, is_timed=False)
        sensitivities = self._sensitivities()
        scores = [
            sum(self._score(op, sensitivities) for op in unit) for unit in units
        ]  # fmt: skip
        ranked = rank(scores)
        always = [number for number, unit in enumerate(units) if any(self._is_always_kept(op) for op in unit)]
        search = Search(
            self._judge(all_narrow, frozenset(always)),
            ranked,
            always,
            self._bounds,
            self._guess(units, ranked, sensitivities),
        )
        found = search.run()
        self.is_interrupted = search.is_interrupted
        kept = [number for number in ranked if number in found.chosen]
        kept_types, errors = self._kept_types(found)
        if found.chosen and (isnan(errors.gradients) and self._step.gradient_roots):
            errors = self._emulate(found.chosen, in_full=True, is_timed=False)
        names = tuple(units[number][0].name for number in kept)
        not_rounded = tuple(name for name in dict.fromkeys(map(_unit_name, self._not_rounded)) if name not in names)
        return TypeForecast(
            dtype=self._dtype,
            ranges=tuple(self._ranges()),
            scale=self._scale,
            sensitivities=tuple(self._sorted(sensitivities)),
            all_narrow=all_narrow,
            kept=(*names, *not_rounded),
            kept_types=kept_types,
            kept_modules=self._modules([*(op for number in kept for op in units[number]), *self._not_rounded]),
            kept_not_emulated=not_rounded,
            with_kept=errors,
            is_enough=None if found.is_enough and self._step.is_unknown else found.is_enough,
            steps=tuple(self._steps),
            is_finished=found.is_finished,
            smallest=found.smallest,
        )

    # --- ranges ---

    def _ranges(self) -> Iterator[OpRange]:
        limit = log2(LIMIT[self._dtype])
        for op in self._step.ops:
            found = self._measured.get(id(op)) or self._not_computed.get(id(op))
            if found is None:
                continue
            inside = found.inside if found.inside_size > found.largest else ""
            headroom = limit - log2(found.largest) if found.largest else inf
            inside_headroom = limit - log2(found.inside_size) if inside else None
            risks = [
                (Risk.OVERFLOW, headroom < 0 or (found.overflows and not found.is_given_overflow)),
                (Risk.OVERFLOW_INSIDE, inside_headroom is not None and inside_headroom < 0),
                (Risk.UNDERFLOW, found.underflow > _MANY),
                (Risk.LOST, found.rounding > _LOST and found.underflow <= _LOST and not found.is_given_overflow),
            ]
            yield OpRange(
                name=op.name,
                op_type=op.type,
                module=str(op.attrs.get("module") or ""),
                largest=found.largest,
                smallest=found.smallest,
                headroom=headroom,
                inside=inside,
                inside_headroom=inside_headroom,
                underflow=found.underflow,
                rounding=found.rounding,
                is_gradient=is_gradient(op),
                risks=tuple(risk for risk, is_so in risks if is_so),
            )

    def _recorded(self, op: Op) -> _Measured | None:
        """Return the range of an op that cannot be emulated, from what was recorded."""
        result = _Measured(op)
        sizes = [
            np.abs(flat_doubles(recorded.array))
            for index in range(max(len(op.output_descs), 1))
            if (recorded := self._step.emulator.recorded(Root(op, index))) is not None
            and recorded.array.dtype.kind == "f" and recorded.array.size
        ]  # fmt: skip
        if not sizes:
            return None
        held = np.concatenate([size[size > 0] for size in sizes])
        result.largest = max(float(size.max()) for size in sizes)
        result.smallest = float(held.min()) if held.size else 0.0
        result.underflow = float(np.mean(held <= SMALLEST[self._dtype])) if held.size else 0.0
        result.overflows = _overflows(np.array([result.largest], np.float32), self._dtype)
        result.by_exponent = [_by_exponent(size[np.isfinite(size)]) for size in sizes] if is_gradient(op) else []
        return result

    @cached_property
    def _not_rounded(self) -> list[Op]:
        """Return the ops that emulation does not round, and whose recorded results the type cannot hold."""
        return [
            found.op for found in self._not_computed.values()
            if LIMIT[self._dtype] < found.largest * (self._scale.advised if is_gradient(found.op) else 1.0) < inf
        ]  # fmt: skip

    def _is_always_kept(self, op: Op) -> bool:
        """Return whether an op overflows in a way that the end of an emulated step need not show."""
        found = self._measured.get(id(op))
        if found is None or not isfinite(found.largest):
            return False
        is_hidden = bool(self._step.between or self._step.unconnected) and found.overflows and not is_gradient(op)
        return is_hidden or found.inside_size > LIMIT[self._dtype]

    # --- sensitivities ---

    def _sensitivities(self) -> dict[int, Sensitivity]:
        step = self._step
        candidates = [op for unit in step.units for op in unit]
        is_cheap = step.elements * len(candidates) <= _CHEAP
        found = {}
        size = abs(step.loss_value)
        for op in candidates:
            measured = self._measured.get(id(op))
            if measured is None:
                continue
            by, loss, gradients = "adjoint", measured.moved, nan
            if not isnan(loss) and isfinite(loss):
                loss = loss / size if size else loss
            if is_cheap and time.monotonic() < self._deadline:
                errors = self._alone(op)
                gradients = errors.gradients
                if isnan(loss):
                    by, loss = "emulation", errors.loss
            elif isnan(loss):
                by = "emulation"
            found[id(op)] = Sensitivity(name=op.name, loss=loss, gradients=gradients, by=by)
        return found

    def _alone(self, op: Op) -> Errors:
        """Return the errors with one op rounded, emulated from there."""
        return self._errors(lambda other: self._narrow if other is op else None, in_full=True)

    def _score(self, op: Op, sensitivities: Mapping[int, Sensitivity]) -> float:
        """Return how many times its bound one op exceeds; by its own error where its effect is not known."""
        sensitivity, measured = sensitivities.get(id(op)), self._measured.get(id(op))
        if sensitivity is None or measured is None:
            return 0.0
        if measured.overflows and not is_gradient(op):
            return inf
        own = measured.rounding
        loss = 0.0 if is_gradient(op) else own if isnan(sensitivity.loss) else sensitivity.loss
        gradients = own if isnan(sensitivity.gradients) else sensitivity.gradients
        gradients = gradients if self._step.gradient_roots else 0.0
        return loss / self._bounds.loss + gradients / self._bounds.gradients

    def _guess(self, units: Sequence[Sequence[Op]], ranked: Sequence[int], found: Mapping[int, Sensitivity]) -> int:
        """Return how many units may have to be kept: without them, changes of the loss as if independent are within."""
        left = sum(self._squared(units[number], found) for number in ranked)
        for count, number in enumerate(ranked):
            if not left > self._bounds.loss**2:
                return count
            left -= self._squared(units[number], found)
        return len(ranked)

    def _squared(self, unit: Sequence[Op], found: Mapping[int, Sensitivity]) -> float:
        """Return the square of the change of the loss by one unit; what overflows has no end."""
        changes = (found[id(op)].loss for op in unit if id(op) in found)
        return sum(min(change, 1e6) ** 2 for change in changes if not isnan(change))

    def _sorted(self, sensitivities: Mapping[int, Sensitivity]) -> list[Sensitivity]:
        listed = [(op, found) for op in self._step.ops if (found := sensitivities.get(id(op))) is not None]
        order = rank([self._score(op, sensitivities) for op, _ in listed])
        return [listed[number][1] for number in order]

    # --- the search ---

    def _judge(self, all_narrow: Errors, always: Chosen) -> Callable[[Chosen], Errors]:
        def emulate(chosen: Chosen) -> Errors:
            # There is time for the smallest set in any case: else nothing could be told.
            return self._emulate(chosen, is_timed=chosen != always) if chosen else all_narrow

        return emulate

    def _emulate(self, chosen: Chosen, *, in_full: bool = False, is_timed: bool = True) -> Errors:
        """Emulate the step with these units in float32."""
        if is_timed and time.monotonic() > self._deadline:
            raise SearchEndedError
        started = time.monotonic()
        units = self._step.units
        kept = {id(op) for number in chosen for op in units[number]}
        narrow = {id(op) for unit in units for op in unit} - kept
        errors = self._errors(
            lambda op: self._narrow if id(op) in narrow else FLOAT32, in_full=in_full, is_timed=is_timed
        )
        names = tuple(units[number][0].name for number in sorted(chosen))
        self._steps.append(SearchStep(float32=names, errors=errors, seconds=time.monotonic() - started))
        return errors

    def _errors(
        self, rounding_of: Callable[[Op], Rounding | None], *, in_full: bool = False, is_timed: bool = False
    ) -> Errors:
        """Return the errors of an emulated step; without the backward pass where the loss decides, unless in full."""
        step = self._step
        losses = {root.key for root in step.loss_roots}
        gradients = {root.key for root in step.gradient_roots}
        left = set(losses)
        found = {"loss": 0.0 if losses else nan, "gradients": 0.0 if gradients else nan}
        not_finite = 0
        is_seen = {"loss": False, "gradients": False}
        is_lost = is_broken = False

        def stop(op: Op, reason: Message) -> None:
            nonlocal is_lost, is_broken
            is_lost = True
            is_broken |= id(op) in step.computed  # what float32 could compute: as bad as what is not finite

        def look(computed: Computed) -> None:
            nonlocal not_finite
            op = computed.op
            for slot, array in computed.outputs.items():
                key = id(op), slot
                error = inf if is_broken else nan
                for name, ends in (("loss", losses), ("gradients", gradients)):
                    if key in ends:
                        left.discard(key)
                        is_seen[name] = True
                        error = _relative(array, step.baseline[key]) if isnan(error) else error
                        found[name] = max(found[name], error)
            if id(op) not in step.not_finite and not all(
                array.dtype.kind != "f" or np.isfinite(array).all() for array in computed.outputs.values()
            ):
                not_finite += 1
            if not in_full and not left and found["loss"] > self._bounds.loss:
                found["gradients"] = nan
                raise _LastOpError
            if is_timed and time.monotonic() > self._deadline:
                raise SearchEndedError

        step.emulate(rounding_of, scale=self._scale.advised, on_op=look, on_stop=stop)
        for name, is_there in is_seen.items():
            if not is_there and is_lost and found[name] == 0:
                found[name] = inf if is_broken else nan
        return Errors(loss=found["loss"], gradients=found["gradients"], not_finite=not_finite)

    # --- what is kept ---

    def _kept_types(self, found: FoundSet) -> tuple[tuple[str, ...], Errors]:
        """Return the types of which every op is kept, or nearly every one and keeping all is within the bounds too.

        With the errors of the set with all ops of these types. Types of recorded calls are in no file: of them only
        those are named that are kept as a whole anyway.
        """
        units = self._step.units
        of_type: dict[str, list[int]] = {}
        for number, unit in enumerate(units):
            of_type.setdefault(unit[0].type, []).append(number)
        not_rounded = set(map(id, self._not_rounded))
        others: dict[str, list[bool]] = {}
        for other in self._not_computed.values():
            others.setdefault(other.op.type, []).append(id(other.op) in not_rounded)
        whole, nearly = [], []
        for op_type in dict.fromkeys([*of_type, *others]):
            numbers, of_others = of_type.get(op_type, []), others.get(op_type, [])
            count = sum(number in found.chosen for number in numbers) + sum(of_others)
            if count == len(numbers) + len(of_others):
                whole.append(op_type)
            elif count >= max(_SEVERAL, _NEARLY_ALL * (len(numbers) + len(of_others))):
                nearly.append(op_type)
        chosen, errors = found.chosen, found.errors
        is_written = found.is_enough and not any(unit[0].is_recorded for unit in units)
        for op_type in nearly if is_written else ():
            larger = chosen | frozenset(of_type.get(op_type, ()))
            try:
                made = self._emulate(larger)
            except SearchEndedError:
                break
            except KeyboardInterrupt:
                self.is_interrupted = True
                break
            if self._bounds.allow(made):
                chosen, errors = larger, made
                whole.append(op_type)
        return tuple(whole), errors

    def _modules(self, ops: Sequence[Op]) -> tuple[str, ...]:
        names = (str(op.attrs.get("module") or "") for op in ops)
        return tuple(dict.fromkeys(name for name in names if name))


def _unit_name(op: Op) -> str:
    """Return the name under which an op is kept: of a recorded backward its call's."""
    forward = op.recorded.forward if op.recorded is not None else None
    return op.name if forward is None else forward.name


def _elements(root: Root) -> int:
    """Return how many elements the graph gives a tensor; the gradient of a loss has one."""
    desc = root.op.output_desc(root.index)
    shape = None if desc is None else desc.shape
    return 0 if shape is None else prod(shape)


def _relative(array: Array, true: Array) -> float:
    """Return the relative distance of a result; infinite where it is not finite."""
    x, y = array.reshape(-1), true.reshape(-1)
    if x.size != y.size or not np.isfinite(x).all():
        return inf
    size, off = norm(y), norm(x - y)
    return 0.0 if off == 0 else off / size if size else inf
