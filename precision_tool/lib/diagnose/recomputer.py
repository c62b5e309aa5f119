"""Recompute the ops of a run in float64 from their own inputs: one by one, in several processes, or by any executor.

Ops that are fused alike learn from each other: how the first of them that fits hangs together is tried first with the
others. So of those that share a key, one after the other is judged until one fits, and the rest side by side.
"""

from __future__ import annotations

import threading
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite
from secrets import token_hex

import numpy as np

from precision_tool.lib.compare.cluster import near
from precision_tool.lib.compare.matrix_threads import multiply_in_one_thread
from precision_tool.lib.compare.scheduler import (
    ALL_CORES,
    Meter,
    Resources,
    WorkersLostError,
    affordable,
    can_fork,
    counting,
    free_memory,
    process_pool,
    run_tasks,
)
from precision_tool.lib.data.dumped_ops import BenchmarkSide
from precision_tool.lib.data.msprobe_ops import UNRECORDED
from precision_tool.lib.diagnose.candidate_formulas import BenchmarkValues, CandidateFormulas, is_obeyed
from precision_tool.lib.diagnose.device_profile import Device, curve_of
from precision_tool.lib.diagnose.error_shape import (
    DOUBT,
    INEXACT,
    LIMIT,
    MIN_ROUNDED_ELEMENTS,
    OF_ROUNDING,
    UNIT,
    Misfit,
    Mistake,
    has_rounding,
    misfit,
    places_of,
    rounded_to,
)
from precision_tool.lib.diagnose.formulas import (
    FORMULA_ERRORS,
    IMPRECISE_INSIDE,
    IMPRECISION,
    Formula,
    is_fused,
    noise_between,
)
from precision_tool.lib.diagnose.judgement_journal import JudgementJournal
from precision_tool.lib.diagnose.op_values import (
    DATA_TYPES,
    PARAMETER_TYPES,
    PASSING,
    Compared,
    NoValueError,
    OpInputs,
    Root,
    Rows,
    RunValues,
    diagnostic_rows,
    missing_reason,
    spread,
)
from precision_tool.lib.diagnose.recorded_formulas import has_formula, has_variants, recorded_variants
from precision_tool.lib.diagnose.sampling import (
    SUMS,
    as_sampled,
    is_looked_at,
    narrowing,
    odd_rows,
    of_some_channels,
    right_by_sample,
    right_in_blocks,
    run_in_blocks,
    type_inside,
)
from precision_tool.lib.diagnose.verdict_model import OpResult, SlotResult, State
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.messages.limits import (
    PRODUCT_BYTES,
    check_address_space,
    has_memory_limit,
    is_of_machine,
    limit_error,
)
from precision_tool.lib.model.finding import joined
from precision_tool.lib.model.graph import GraphFile, Op
from precision_tool.lib.model.run import DumpLeaf
from precision_tool.lib.model.tensor import Tensor, TensorStatistics
from precision_tool.lib.ops.base import Doubles, Input, Kind, NotComputedError, Output, reason_of
from precision_tool.lib.ops.op_arguments import distinct
from precision_tool.lib.ops.optimizers import updated_inputs

#: Elements that stay in the processor's cache.
_IN_CACHE = 1 << 16
#: Elements with one mistake from which on they are no chance.
_MIN_ALIKE = 8
#: Another variable moves nearly every element of what is made of it.
_ALL_OVER = 0.9
#: Mistakes that some rows tell as well as all, unless they are along the rows.
_VISIBLE_IN_ROWS = (
    Mistake.AXES, Mistake.SHIFTED, Mistake.ZERO, Mistake.SCALED, Mistake.OFFSET, Mistake.TAIL, Mistake.NOT_FINITE,
    Mistake.TRUNCATED,
)  # fmt: skip


def is_visible_in_rows(slot: SlotResult) -> bool:
    """Return whether some rows show the mistake of all: not one along the rows, or of an unknown kind."""
    places = slot.places
    if places is None or places.mistake not in _VISIBLE_IN_ROWS or places.axis == 0:
        return False
    return not places.order or places.order[0] == 0


def slot_of(slot: int, have: Input, out: Output, fit: Misfit, kind: Kind, tolerance: float = 0.0) -> SlotResult:
    """Return one output whose elements were held against the true ones."""
    bad = fit.bad
    count = int(np.count_nonzero(bad))
    places = None
    true = np.asarray(out.array)
    if count and true.dtype.kind in "fbiu":
        # Two values are equal up to 16 units: twice what the device may be off by.
        unit = max(UNIT.get(have.dtype, 0.0), tolerance / 8)
        places = places_of(np.asarray(have.array).reshape(true.shape), true, bad, unit)
    over = int(np.count_nonzero(fit.over))
    return SlotResult(
        slot=slot,
        dtype=have.dtype,
        size=int(fit.got.size),
        kind=kind,
        own=fit.own,
        rounding=fit.rounding,
        worst=fit.worst,
        slack=fit.slack,
        beyond=count,
        exact_share=fit.exact_share,
        cosine=fit.cosine if count else None,
        overflowed=over,
        largest=float(np.abs(fit.true[fit.over]).max()) if over else 0.0,
        at_limit=int(np.count_nonzero(~(np.abs(fit.got) < LIMIT[have.dtype]))) if over else 0,
        not_finite=int(np.count_nonzero(bad & ~np.isfinite(fit.got))),
        nans=int(np.count_nonzero(np.isnan(fit.got))),
        places=places,
        is_beyond_chains=fit.is_beyond_chains,
        imprecision=fit.imprecision(kind) if count else 0.0,
        flushed=int(np.count_nonzero(fit.flushed)) if count else 0,
        subnormal=fit.subnormal if count else 0,
        tolerance=tolerance,
        excess=fit.excess,
    )


def state_of(base: OpResult, slots: list[SlotResult]) -> State:
    """Return what an op's outputs say of it."""
    wrong = [slot for slot in slots if slot.beyond]
    if not wrong:
        return State.RIGHT
    for slot in wrong:
        is_inexact = slot.exact_share < INEXACT and slot.size >= MIN_ROUNDED_ELEMENTS and not slot.tolerance
        is_misrounded = slot.places is not None and slot.places.mistake in OF_ROUNDING
        proof = slot.excess > DOUBT or is_inexact if slot.is_beyond_chains is None else slot.is_beyond_chains
        if (proof or is_misrounded or _is_structured(slot)) and base.finite_inputs:
            return State.WRONG
    return State.DOUBTFUL


def _is_structured(slot: SlotResult) -> bool:
    """Return whether long sums are off in a way that rounding them cannot be: by a factor, an amount, or at the end."""
    places = slot.places
    if slot.is_beyond_chains is None or places is None:
        return False
    return places.mistake in (Mistake.SCALED, Mistake.OFFSET, Mistake.TAIL) and places.wrong >= _MIN_ALIKE


#: What another variable may look like.
_OF_ANOTHER = (Mistake.UNKNOWN, Mistake.SCALED, Mistake.OFFSET)


def is_off_all_over(result: OpResult) -> bool:
    """Return whether nearly all of an op's output is off by more than a narrower type explains.

    A kernel that computes wrong moves values, or spoils some of them.
    """
    slot = result.worst_slot
    if slot is None or slot.places is None or slot.places.mistake not in _OF_ANOTHER:
        return False
    return slot.own > UNIT["bfloat16"] and slot.beyond >= _ALL_OVER * slot.looked_at


def largest_of(tensor: Input) -> float:
    """Return the largest absolute value of floating numbers, NaN if any of them is; 0 for others."""
    flat = tensor.array.reshape(-1)
    if flat.dtype.kind not in "fc" or not flat.size:
        return 0.0
    if flat.dtype.kind == "c":
        return float(np.abs(flat).max())
    extremes = [0.0]
    for start in range(0, flat.size, _IN_CACHE):
        part = flat[start : start + _IN_CACHE]
        extremes += [float(part.max()), -float(part.min())]
    return float(np.max(extremes))


# --- recomputing single ops -------------------------------------------------------------------------------------------


#: Ops that compute nothing, or nothing that a formula could tell.
NOT_COMPUTING = PARAMETER_TYPES | DATA_TYPES | PASSING | {
    UNRECORDED,
    "NetOutput", "NoOp", "IteratorV2", "Iterator", "MakeIterator", "PartitionedCall", "StatefulPartitionedCall",
    "StreamActive", "StreamSwitch", "StreamMerge", "Send", "Recv", "Label", "If", "While", "Case", "Memcpy",
    "MemcpyAsync",
    "End", "TensorDataset", "DeviceQueueDataset", "OutfeedEnqueueOp", "OutfeedEnqueueOpV2", "AtomicAddrClean", "MemSet",
}  # fmt: skip
#: Products and sums from which on an op is judged by a part of its elements, by about how many, and up to which it is
#: recomputed whole where these are wrong.
_SAMPLED_FROM, _SAMPLES, _WHOLE_UP_TO = 2e7, 1 << 12, 2e10
#: Elements of an output from which on a product that is off is looked at in part first, however little it multiplies.
_LARGE_OUTPUT = 1 << 20


#: An argument fits that brings a result so many times nearer: imprecision is not a matter of arguments.
_NEARER = 8.0
#: Terms that are long sums at least.
_MANY = 16


_NOT_DUMPED = Message("reason.not_dumped")


class _NotLightError(Exception):
    """An op is not plainly right."""


class Recomputer:
    """Judges the ops of one run, or only some of them (`ops`).

    `unfused` is a graph that has the original ops of its fused ones.
    """

    def __init__(
        self,
        values: RunValues,
        unfused: GraphFile | None = None,
        *,
        seconds: float = 600.0,
        ops: Iterable[Op] | None = None,
    ) -> None:
        check_address_space(PRODUCT_BYTES)
        self.values = values
        self._benchmark = BenchmarkValues(values)
        self.candidates = CandidateFormulas(values, self._benchmark, unfused)
        self.seconds_left = seconds
        #: The device, whose imprecision is allowed for; None: it computes in float32.
        self.device: Device | None = None
        #: The op that is looked at as one that is off all over.
        self._outlier: Op | None = None
        #: Whether a large op that is wrong on a sample is judged by that alone: what stands out beside the others is
        #: recomputed whole afterwards.
        self.is_first_look = False
        #: The op that was sampled last, by which formula, and what that gave.
        self._tried: tuple[Op | None, Formula | None, OpResult | None] = (None, None, None)
        #: Every op that computes something, in the order in which they ran.
        self.computing = [op for op in (values.ops if ops is None else ops) if op.type not in NOT_COMPUTING]
        #: What ops that are fused alike share, and by that how such ops are fused, as the benchmark or a dump showed.
        self.key, self.fitting = self.candidates.key, self.candidates.fitting

    def for_others(self) -> Callable[[], Recomputer]:
        """Return what makes this recomputer again, of all ops of the run, in a thread, process or machine of its own.

        Its time is not known there: it has `seconds_left` from when it is asked.
        """
        values = self.values
        quiet = Compared(quiet=values.compared.quiet, places=values.compared.places)
        return partial(_recomputer_of, values.leaf, values.file, values.benchmark, quiet, self.candidates.unfused)

    @property
    def seconds_left(self) -> float:
        """Until when ops are judged, from now; a clock of another machine may be another."""
        return self.deadline - time.monotonic()

    @seconds_left.setter
    def seconds_left(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds

    def recompute_guessed(self, judged: Sequence[OpResult]) -> list[OpResult]:
        """Return the same, with those done again whose way of being fused other ops have shown since."""
        return [
            self.recompute(result.op) if result.is_guessed and self.key(result.op) in self.fitting else result
            for result in judged
        ]

    def recompute(self, op: Op) -> OpResult:
        """Return one op. Whatever goes wrong in it is a reason, never an exception."""
        return replace(self._recompute_safely(op), formula=None)

    def recompute_undumped(self, op: Op) -> OpResult | None:
        """Return an op of which no dump has an output; None for all others. Of a graph these may be nearly all.

        None also for a cast whose input is known, as that tells whether its type can hold it.
        """
        values = self.values
        if values.is_shown(op):
            return None
        if op.type == "Cast" and any(
            values.is_shown(root.op) or values.parameter_of(root) is not None for root in values.producers(op)
        ):
            return None
        has_any_formula = is_fused(op) or has_formula(op)
        reason = _NOT_DUMPED if has_any_formula else Message("reason.no_formula", op_type=op.type)
        return OpResult(op=op, number=values.number_of(op), state=State.NOT_RECOMPUTED, reason=reason, is_dumped=False)

    def recompute_lightly(self, op: Op) -> OpResult | None:
        """Return the same for little memory.

        None for an op that is not plainly right, which takes several times as much.
        """
        try:
            return replace(self._recompute_safely(op, lightly=True), formula=None)
        except _NotLightError:
            return None

    def recompute_outlier(self, op: Op) -> OpResult:
        """Return an op that is farther off than its peers: what is off by more than one rms of rounding is wrong."""
        self._outlier = op
        result = self.recompute(op)
        self._outlier = None
        return replace(result, state=State.WRONG) if any(slot.beyond for slot in result.slots) else result

    def variant_of(self, op: Op) -> tuple[str, str, str] | None:
        """Return the argument that a recorded call was computed with in place of its own; None if none is."""
        recorded = op.recorded
        if recorded is None or not has_variants(recorded):
            return None
        # Whatever the device may be off by: an argument explains what its imprecision would.
        settings = self.device, self.is_first_look
        self.device, self.is_first_look = None, False
        result = self.recompute(op)
        self.device, self.is_first_look = settings
        return result.variant

    def examine(self, op: Op) -> OpResult:
        """Return the same with the formula that it was judged by, and beside the benchmark however right the op is."""
        result = self._recompute_safely(op)
        worst = result.worst_slot
        if result.formula is None or worst is None or worst.benchmark_own is not None:
            return result
        return self._benchmark.split(result, result.formula, self.inputs_of(op).inputs) or result

    def _recompute_safely(self, op: Op, *, lightly: bool = False) -> OpResult:
        base = OpResult(
            op=op, number=self.values.number_of(op), state=State.NOT_RECOMPUTED,
            is_dumped=self.values.dumped(op) is not None,
        )  # fmt: skip
        start = time.monotonic()
        if start > self.deadline:
            return replace(base, reason=Message("reason.out_of_time"))
        self.values.gather(op)
        try:
            with np.errstate(all="ignore"), self.values.reading():
                result = self._recompute(base, lightly)
        except _NotLightError:
            raise
        except (NotComputedError, NoValueError) as error:
            self._check_machine(op, error)
            result = replace(base, reason=error.reason)
        except PrecisionToolError as error:
            result = replace(base, reason=Message("reason.unreadable", detail=error.full_message))
        except MemoryError as error:
            self._check_machine(op, error)
            result = replace(base, reason=Message("reason.out_of_memory"))
        except Exception as error:  # a bug in one op's function is a row with a reason, no lost run
            self._check_machine(op, error)
            failed = Message("reason.formula_failed", op_type=op.type, detail=f"{type(error).__name__}: {error}")
            result = replace(base, reason=failed)
        return replace(result, seconds=time.monotonic() - start)

    def _check_machine(self, op: Op, error: Exception) -> None:
        """Raise LimitError for an error that every other op has too."""
        limit = limit_error(error)
        if limit is not None and is_of_machine(error, 8 * elements_of(self, op)):
            raise limit from error

    # --- what it was fed, and what it put out ---

    def outputs(self, op: Op) -> dict[int, Tensor]:
        """Return the outputs by slot: its own, or as those that read them have them."""
        outputs: dict[int, Tensor] = {}
        dump = self.values.dumped(op)
        count = max(len(op.output_descs), max(dump.outputs, default=-1) + 1 if dump is not None else 0)
        for slot in range(count):
            own = dump.outputs.get(slot) if dump is not None else None
            if isinstance(own, Tensor):
                outputs[slot] = own
                continue
            copy = next(iter(self.values.copies(Root(op, slot))), None)
            if copy is not None:
                outputs[slot] = copy[1]
        return outputs

    def inputs_of(self, op: Op, *, stored: bool = False) -> OpInputs:
        """Return the inputs, from the op's own dump or where else the run has them; variables from the benchmark too.

        `stored`: as `RunValues.load` has them.
        """
        op_inputs = OpInputs()
        values = self.values
        for slot in values.input_slots(op):
            own = values.tensor_at(slot)
            if isinstance(own, Tensor):
                op_inputs.inputs[slot.index] = values.load(own, slot.desc, stored=stored)
                continue
            root = values.source_of(slot)
            loaded = None
            if root is not None:
                loaded = values.load_root(root, stored=stored)
                if loaded is None and values.parameter_of(root) is not None:
                    loaded = values.load_benchmark(root)
            if loaded is None:
                op_inputs.missing[slot.index] = missing_reason(own, slot.index)
                continue
            array = loaded.input.array
            shape = slot.desc.origin_shape if slot.desc is not None else None
            if shape is not None and array.shape != shape and int(np.prod(shape)) == array.size:
                array = array.reshape(shape)
            dtype = loaded.input.dtype
            if loaded.source == "benchmark" and slot.desc is not None and slot.desc.dtype in UNIT:
                dtype = slot.desc.dtype
                array = rounded_to(np.asarray(array, np.float64), dtype)
            layout = loaded.input.layout
            if slot.desc is not None and slot.desc.origin_layout and len(slot.desc.origin_layout) == array.ndim:
                layout = slot.desc.origin_layout
            op_inputs.inputs[slot.index] = Input(
                array=array, dtype=dtype, layout=layout if len(layout) == array.ndim else "ND"
            )
            op_inputs.elsewhere[slot.index] = loaded.source
        return op_inputs

    def _got(self, op: Op, outputs: Mapping[int, Tensor]) -> dict[int, Input]:
        """Return what an op put out, without outputs that cannot be read as numbers or whose rounding is not known.

        They say nothing of the others. What keeps the only one from being read is raised.
        """
        got: dict[int, Input] = {}
        errors: list[NoValueError] = []
        for slot, tensor in outputs.items():
            try:
                got[slot] = self.values.load(tensor, op.output_desc(slot), stored=True)
            except NoValueError as error:
                errors.append(error)
        if not got and errors:
            raise errors[0]
        return {slot: value for slot, value in got.items() if has_rounding(value.dtype)} or got

    # --- one op ---

    def _right(self, base: OpResult, op_inputs: OpInputs, got: Mapping[int, Input]) -> OpResult | None:
        """Return the judgement of an op that is plainly right.

        None for any other, which has to be looked at closely.
        """
        for formula in self.candidates.formulas(base.op, op_inputs, got, no_search=True):
            try:
                slots = right_in_blocks(formula, op_inputs.inputs, got, narrowing(formula, op_inputs.inputs))
                result = self._right_where_sampled(base, formula, op_inputs.inputs, got) if not slots else None
            except FORMULA_ERRORS:
                continue
            if slots:
                result = replace(base, how=formula.how, formula=formula, slots=slots, state=State.RIGHT)
            if result is not None:
                self.fitting.setdefault(self.key(base.op), formula.shape)
                return result
        return None

    def _right_where_sampled(
        self, base: OpResult, formula: Formula, inputs: Mapping[int, Input], got: Mapping[int, Input]
    ) -> OpResult | None:
        """Return the judgement of a large op by a part of its elements, if they are right."""
        work = formula.work(inputs) if formula.is_certain and not formula.lent else 0.0
        if work <= _SAMPLED_FROM or is_looked_at(formula, inputs, got):
            return None
        sampled = self._sampled(_with_finite_inputs(base, inputs), formula, inputs, got, work)
        self._tried = (base.op, formula, sampled)
        return sampled if sampled is not None and sampled.state is State.RIGHT else None

    def _some_channels(self, base: OpResult, op_inputs: OpInputs, got: Mapping[int, Input]) -> OpResult | None:
        """Return the judgement of quiet sums by some of the channels, if these are right; None for any other op."""
        formula = next(self.candidates.without_search(base.op, op_inputs), None)
        place, size = self.values.compared.places.get((base.op.name, "output:0"), (0, 0))
        is_compared = 0 in got and place < size == got[0].array.size
        part = of_some_channels(formula, op_inputs.inputs, got, place) if formula is not None and is_compared else None
        if formula is None or part is None:
            return None
        try:
            judged = self._whole(_with_finite_inputs(base, part[0]), formula.unshaped(), *part)
        except FORMULA_ERRORS:
            return None
        return replace(judged, slots=as_sampled(judged.slots, got)) if judged.state is State.RIGHT else None

    def _off_at_places(self, base: OpResult, op_inputs: OpInputs, got: Mapping[int, Input]) -> OpResult | None:
        """Return the judgement of a large product that is off in a sample of its elements; None for any other op.

        What is held beside the benchmark, and shows the mistake, is what stands out: by a look at all of it.
        """
        op = base.op
        if is_fused(op):
            return None
        inputs = op_inputs.inputs
        formula = next(self.candidates.without_search(op, op_inputs), None)
        if formula is None or not formula.is_certain or formula.lent:
            return None
        try:
            work = formula.work(inputs)
            if work <= _SAMPLED_FROM and max(tensor.array.size for tensor in got.values()) < _LARGE_OUTPUT:
                return None
            of, other, part = self._tried
            if of is not op or other is None or not other.is_same(formula):
                part = self._sampled(_with_finite_inputs(base, inputs), formula, inputs, got, work)
        except FORMULA_ERRORS:
            return None
        if part is None or not part.is_sampled or not part.finite_inputs:
            return None
        is_finite = not any(slot.nans or slot.not_finite or slot.overflowed for slot in part.slots)
        return part if is_finite and any(slot.beyond for slot in part.slots) else None

    def _recompute(self, base: OpResult, lightly: bool) -> OpResult:
        op = base.op
        if not is_fused(op) and not has_formula(op):
            return replace(base, reason=Message("reason.no_formula", op_type=op.type))
        if op.name in self.values.compared.quiet:
            closer = partial(self._few_rows, base) if self.is_first_look else None
            right = right_by_sample(self.values, self.candidates, base, closer)
            if right is not None:
                return right
        outputs = self.outputs(op)
        if not outputs and op.type != "Cast":
            dump = self.values.dumped(op)
            kept = () if dump is None else dump.outputs.values()
            is_statistics = any(isinstance(tensor, TensorStatistics) for tensor in kept)
            return replace(base, reason=Message("reason.statistics_only" if is_statistics else "reason.not_dumped"))
        op_inputs = self.inputs_of(op, stored=True)
        if not outputs:
            return self._undumped_cast(base, op_inputs)
        if op.type in ("Cast", "TransData") and "benchmark" in op_inputs.elsewhere.values():
            # Whether the op or what it is fed differs from the benchmark cannot be told apart here.
            slot = next(slot for slot, source in op_inputs.elsewhere.items() if source == "benchmark")
            return replace(self._undumped_cast(base, op_inputs), reason=Message("reason.input_not_dumped", slot=slot))
        got = self._got(op, outputs)
        if not op_inputs.inputs and op_inputs.missing:
            return replace(base, reason=next(iter(op_inputs.missing.values())))
        unknown = next(
            (value.dtype for value in (*op_inputs.inputs.values(), *got.values()) if not has_rounding(value.dtype)), ""
        )
        if unknown:
            return replace(base, reason=Message("reason.rounding_unknown", dtype=unknown))
        base = replace(base, from_elsewhere=tuple(sorted(op_inputs.elsewhere.items())))
        # Long sums are judged closely at once, which takes no more than summing up: chains of additions are tried.
        is_sum = op.type in SUMS and not is_fused(op) and _adds_many(op_inputs.inputs, got)
        is_close = is_sum or op is self._outlier
        right = self._right(base, op_inputs, got) if not is_close else None
        if right is not None:
            return right
        off = self._off_at_places(base, op_inputs, got) if self.is_first_look else None
        if off is not None:
            return off
        if lightly and not is_sum:
            raise _NotLightError
        if is_sum and self.is_first_look and op.name in self.values.compared.quiet:
            part = self._some_channels(base, op_inputs, got)
            if part is not None:
                return part
        base = _with_finite_inputs(base, op_inputs.inputs)
        if not is_sum:
            op_inputs.widen()
        got = {slot: value.in_doubles() for slot, value in got.items()}
        return self._by_formulas(base, op_inputs, got)

    def _by_formulas(self, base: OpResult, op_inputs: OpInputs, got: Mapping[int, Input]) -> OpResult:
        """Recompute by the first formula that fits, by that of the op's twins, or by the one `_confirmed` chooses."""
        op = base.op
        chosen: OpResult | None = None
        key = self.key(op)
        reason = joined(tuple(op_inputs.missing.values()))
        tried: list[tuple[Formula, OpResult]] = []
        for formula in self.candidates.formulas(op, op_inputs, got):
            if any(formula.is_same(other) for other, _ in tried):
                continue
            try:
                result = self._by(base, formula, op_inputs.inputs, got)
            except FORMULA_ERRORS as error:
                reason = reason or reason_of(error)
                if not is_fused(op):
                    raise NotComputedError(reason) from error
                continue
            if result.state is State.RIGHT:
                self.fitting.setdefault(key, formula.shape)
                return result
            tried.append((formula, result))
        fitting_shape = self.fitting.get(key)
        for formula, result in tried:
            if fitting_shape is not None and formula.shape == fitting_shape:
                split = self._split(result, formula, op_inputs.inputs, got)
                obeys = split is not None and is_obeyed(split)
                chosen = replace(split if split is not None and obeys else result, is_confirmed=True)
                chosen = replace(chosen, is_by_another=not obeys)
                break
        if chosen is None and tried:
            chosen = self._confirmed(tried, key, op_inputs, got)
        if chosen is None and not tried:
            return replace(base, reason=reason or Message("reason.fused_unknown"))
        assert chosen is not None
        variant = self._variant(base, chosen, op_inputs.inputs, got)
        return chosen if variant is None else replace(chosen, state=State.WRONG, variant=variant)

    def _variant(
        self, base: OpResult, result: OpResult, inputs: Mapping[int, Input], got: Mapping[int, Input]
    ) -> tuple[str, str, str] | None:
        """Return the argument with which a recorded call is right, or far nearer, and that the kernel took."""
        recorded = base.op.recorded
        if recorded is None or result.formula is None or result.reason is not None:
            return None
        for variant, formula in recorded_variants(base.op, recorded, inputs):
            try:
                other = self._by(base, formula, inputs, got)
            except FORMULA_ERRORS:
                continue
            if other.slots and other.own * _NEARER < result.own:
                return variant
        return None

    def _confirmed(
        self, tried: list[tuple[Formula, OpResult]], key: object, op_inputs: OpInputs, got: Mapping[int, Input]
    ) -> OpResult:
        """Return the judgement by the formula that the benchmark obeys, or by the certain one."""
        best: OpResult | None = None
        for formula, result in tried:
            split = self._split(result, formula, op_inputs.inputs, got)
            if split is None:
                continue
            if is_obeyed(split):
                self.fitting.setdefault(key, formula.shape)
                return replace(split, is_confirmed=True)
            if formula.is_certain and best is None:
                best = split
        if best is not None:
            reason = Message("reason.benchmark_disobeys")
            return replace(best, state=State.DOUBTFUL, reason=reason, is_confirmed=False)
        for formula, result in tried:
            if formula.is_certain:
                return result
        refuted = [trial for trial in tried if trial[0].is_refuted]
        if refuted and all(result.state is State.WRONG for _, result in refuted):
            reason = Message("reason.fused_none_fits")
            return replace(min(refuted, key=lambda trial: trial[1].own)[1], is_guessed=True, reason=reason)
        formula, result = min(tried, key=lambda trial: trial[1].own)
        return replace(result, state=State.DOUBTFUL, is_guessed=True, reason=Message("reason.fused_guessed"))

    def _by(self, base: OpResult, formula: Formula, inputs: Mapping[int, Input], got: Mapping[int, Input]) -> OpResult:
        """Return the op judged by one formula.

        A large one by a part of its elements, and whole if these do not tell.
        """
        work = formula.work(inputs)
        if work > _SAMPLED_FROM:
            rows = diagnostic_rows(formula.batch_of(inputs), got)
            part = self._rows(base, formula, inputs, got, rows) if rows is not None else None
            if part is not None and part.state is State.WRONG:
                if work > _WHOLE_UP_TO or self.is_first_look or all(map(is_visible_in_rows, part.slots)):
                    return part
                return self._whole(base, formula, inputs, got)
            if self.is_first_look and is_looked_at(formula, inputs, got):
                part = self._sampled(base, formula, inputs, got, work)
                if part is not None and part.state is State.WRONG:
                    return part
            if is_looked_at(formula, inputs, got):  # at every element: a part of them must not acquit the others
                slots = right_in_blocks(formula, inputs, got, narrowing(formula, inputs))
                if slots:
                    return replace(base, how=formula.how, formula=formula, slots=slots, state=State.RIGHT)
                return self._whole(base, formula, inputs, got)
            op, other, tried = self._tried
            is_tried = self.is_first_look and op is base.op and other is not None and other.is_same(formula)
            part = tried if is_tried else self._sampled(base, formula, inputs, got, work)
            is_off = part is not None and any(slot.beyond for slot in part.slots)
            if part is not None and (
                part.state is State.RIGHT or work > _WHOLE_UP_TO or (self.is_first_look and is_off)
            ):
                return part
        return self._whole(base, formula, inputs, got)

    def _sampled(
        self, base: OpResult, formula: Formula, inputs: Mapping[int, Input], got: Mapping[int, Input], work: float
    ) -> OpResult | None:
        """Return the op judged by some places of its output, or by some rows of its batch.

        None where neither can be.
        """
        u_in = narrowing(formula, inputs)
        is_all = 0 in got and got[0].array.size <= _SAMPLES
        farthest, odd = self._benchmark.farthest(base.op, got), None if is_all else odd_rows(formula, inputs, got, u_in)
        farthest = farthest if odd is None else distinct(np.append(farthest, odd.places))
        sample = formula.sample(inputs, _SAMPLES, farthest)
        if sample is not None and 0 in got:
            places, out = sample
            have = replace(got[0], array=np.asarray(got[0].array).reshape(-1)[places], layout="ND")
            tolerance, flushes = self._allowed(base.op, formula, have.dtype)
            fit = misfit(
                have.array, out, have.dtype, formula.kind, u_in=u_in, tolerance=tolerance, flushes=flushes
            )  # fmt: skip
            slot = slot_of(0, have, out, fit, formula.kind, tolerance)
            if places.size < got[0].array.size:
                is_summed = odd is not None and not odd.left
                slot = replace(slot, size=got[0].array.size, sampled=int(places.size), is_summed=is_summed)
            judged = replace(base, how=formula.how, formula=formula, slots=(slot,), state=state_of(base, [slot]))
            if odd is not None and odd.left and judged.state is State.RIGHT:
                return replace(judged, state=State.DOUBTFUL, reason=Message("reason.rows_off"))
            return judged
        batch = formula.batch_of(inputs)
        if batch is None or len(got) != 1 or not formula.outputs:
            return None
        count = batch.rows
        chosen = max(1, int(count * _SAMPLED_FROM / work))
        if chosen >= count or any(tensor.array.shape[0] != count for tensor in got.values()):
            return None
        size = max(tensor.array.size for tensor in got.values())
        rows = spread(count, chosen + 1, inputs=batch.inputs).and_also(farthest // max(1, size // count))
        return self._rows(base, formula, inputs, got, rows)

    def _rows(
        self, base: OpResult, formula: Formula, inputs: Mapping[int, Input], got: Mapping[int, Input], rows: Rows
    ) -> OpResult:
        """Return the op judged by some rows of its batch."""
        judged = self._whole(base, formula.unshaped(), rows.of_inputs(inputs), rows.of_outputs(got))
        slots = [replace(slot, size=got[slot.slot].array.size, sampled=slot.size) for slot in judged.slots]
        return replace(judged, slots=tuple(slots))

    def _few_rows(
        self, base: OpResult, part: Formula, inputs: Mapping[int, Input], got: Mapping[int, Input]
    ) -> OpResult | None:
        """Return the judgement of a quiet op that is not plainly right by some rows; None if it is more than inexact.

        How far it is off shows in them, and whether that is the device's imprecision is told when all are judged.
        """
        wide = {slot: tensor.in_doubles() for slot, tensor in inputs.items()}
        judged = self._whole(
            _with_finite_inputs(base, wide), part, wide, {slot: tensor.in_doubles() for slot, tensor in got.items()}
        )
        is_finite = not any(slot.nans or slot.not_finite or slot.overflowed for slot in judged.slots)
        return judged if judged.finite_inputs and is_finite else None

    def _split(
        self, result: OpResult, formula: Formula, inputs: Mapping[int, Input], got: Mapping[int, Input]
    ) -> OpResult | None:
        """Return the judgement beside the benchmark; of an op that was judged by some rows these rows."""
        rows = diagnostic_rows(formula.batch_of(inputs), got) if result.is_sampled else None
        if rows is None and result.is_sampled and self.is_first_look:
            split = self._benchmark.split_at_places(result, formula, inputs, _SAMPLES)
            if split is not None:
                return split
        return self._benchmark.split(result, formula, inputs, rows)

    def _whole(
        self, base: OpResult, formula: Formula, inputs: Mapping[int, Input], got: Mapping[int, Input]
    ) -> OpResult:
        """Return the op judged by every element."""
        true = run_in_blocks(formula, inputs, got)
        kind = formula.kind
        u_in = narrowing(formula, inputs)
        is_chain = len(formula.stages) > 1
        is_update = not is_chain and bool(updated_inputs(formula.stages[0].op_type))
        inside = type_inside(formula, inputs)
        noise = noise_between(true, run_in_blocks(formula, inputs, got, inside)) if is_chain else {}
        inner: dict[int, Doubles] = {}
        stored: dict[str, dict[int, Output]] = {}
        slots = []
        is_told, largest = False, max((tensor.array.size for tensor in got.values()), default=0)
        other_size: NotComputedError | None = None
        for slot, out in true.items():
            if slot not in got:
                continue
            have = got[slot]
            if have.array.size != np.asarray(out.array).size:
                shapes = have.array.shape, out.array.shape
                error = NotComputedError("other_than_dumped", slot=slot, shape=shapes[0], other_shape=shapes[1])
                if have.array.size == largest:
                    raise error
                other_size = other_size or error
                continue  # a small output says nothing of a large one
            fit = misfit(have.array, out, have.dtype, kind, u_in=u_in, noise=noise.get(slot), is_update=is_update)
            if fit.bad.any() and is_chain and not inner:
                inner = noise_between(true, run_in_blocks(formula, inputs, got, IMPRECISE_INSIDE))
                inner = {number: size / IMPRECISION for number, size in inner.items()}
            tolerance, flushes = self._allowed(base.op, formula, have.dtype)
            if fit.bad.any() and (is_chain or self.device is not None):
                fit = misfit(
                    have.array, out, have.dtype, kind, u_in=u_in, noise=noise.get(slot), inner=inner.get(slot),
                    tolerance=tolerance, flushes=flushes, is_update=is_update,
                )  # fmt: skip
            if fit.bad.any() and is_chain and have.dtype in UNIT:
                # A kernel that stores every stage's result is right as well.
                if have.dtype not in stored:
                    stored[have.dtype] = run_in_blocks(formula, inputs, got, have.dtype)
                other = misfit(
                    have.array, stored[have.dtype][slot], have.dtype, kind, u_in=u_in, noise=noise.get(slot),
                    inner=inner.get(slot), tolerance=tolerance, flushes=flushes,
                )  # fmt: skip
                if other.excess < fit.excess and other.excess <= DOUBT:
                    fit = other
            if base.op is self._outlier:
                fit = replace(fit, bad=fit.bad | (fit.ratio > 1))
            is_told |= not fit.got.size or bool(fit.compared.any() or fit.over.any())
            made = slot_of(slot, have, out, fit, kind, tolerance)
            slots.append(replace(made, curve=curve_of(formula, inputs, fit)) if made.beyond else made)
        if not slots:
            raise other_size or NotComputedError("no_dumped_output")
        if not is_told:
            raise NotComputedError("nowhere_finite")
        return replace(base, how=formula.how, formula=formula, slots=tuple(slots), state=state_of(base, slots))

    def _allowed(self, op: Op, formula: Formula, dtype: str) -> tuple[float, bool]:
        """Return the imprecision of the device for an op, and whether it flushes subnormal numbers of the type."""
        if self.device is None:
            return 0.0, False
        return self.device.tolerance(formula.how, dtype, formula.kind, op.name), dtype in self.device.flushes

    def _undumped_cast(self, base: OpResult, op_inputs: OpInputs) -> OpResult:
        """Return a cast of known numbers whose output is not: whether its type can hold them shows all the same."""
        op = base.op
        base = replace(base, reason=Message("reason.not_dumped"))
        dtype = op.output_descs[0].dtype if op.output_descs else ""
        if not op_inputs.inputs or dtype not in LIMIT:
            return base
        array = np.asarray(next(iter(op_inputs.inputs.values())).array)
        if array.dtype.kind != "f":
            return base
        fit = misfit(array, Output(array=array), dtype, Kind.EXACT)
        over = int(np.count_nonzero(fit.over))
        if not over:
            return base
        have = Input(array=array, dtype=dtype)
        slot = replace(slot_of(0, have, Output(array=array), fit, Kind.EXACT), beyond=0, places=None)
        elsewhere = tuple(sorted(op_inputs.elsewhere.items()))
        return replace(base, slots=(slot,), finite_inputs=bool(np.isfinite(array).all()), from_elsewhere=elsewhere)


def _adds_many(inputs: Mapping[int, Input], got: Mapping[int, Input]) -> bool:
    """Return whether an op's results are few beside what it adds up."""
    sizes = [sum(tensor.array.size for tensor in tensors.values()) for tensors in (inputs, got)]
    return sizes[0] >= _MANY * sizes[1]


def _with_finite_inputs(base: OpResult, inputs: Mapping[int, Input]) -> OpResult:
    return replace(base, finite_inputs=all(isfinite(largest_of(tensor)) for tensor in inputs.values()))


def _recomputer_of(
    leaf: DumpLeaf, file: GraphFile, benchmark: BenchmarkSide, compared: Compared, unfused: GraphFile | None
) -> Recomputer:
    recomputer = Recomputer(RunValues(leaf, file, benchmark, compared=compared), unfused)
    recomputer.is_first_look = True
    return recomputer


# --- several processes: the results do not depend on how many ---------------------------------------------------------


#: Of smaller dumps, starting processes takes longer than judging.
_SERIAL_ELEMENTS = 1 << 20
#: Processes at most: each holds decoded tensors.
_MAX_WORKERS = 4
#: Bytes that the ops take which are judged at one time, and that an element does: while its op is plainly right, and
#: while it is recomputed in float64.
_AT_ONCE = 240 << 20
_LIGHT, _HEAVY = 10, 80
#: A task is about so many elements, and at most so many ops, so that handing it over costs little; ops of so many
#: elements are looked at lightly first.
_TASK_ELEMENTS, _TASK_OPS, _LARGE = 1 << 20, 16, 1 << 18
_DIED = Message("reason.worker_died")
#: How often a process of our own may die, and nothing show during which task, before the rest is given up.
_MOST_IN_VAIN = 4

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


@dataclass(slots=True, eq=False)
class _Task:
    key: object
    numbers: list[int]
    elements: int
    #: A large op is looked at lightly first: most are right.
    is_light: bool = True
    #: Elements that it completes or unblocks.
    ahead: int = 0
    #: Processes that died while they did it alone.
    deaths: int = 0

    @property
    def nbytes(self) -> int:
        return self.elements * (_LIGHT if self.looks_lightly else _HEAVY)

    @property
    def looks_lightly(self) -> bool:
        return self.is_light and self.elements > _LARGE


@dataclass(slots=True)
class _Plan:
    """Ops that wait for one of their kind, and tasks that are ready, the largest first."""

    ready: list[_Task] = field(default_factory=list)
    waiting: dict[object, deque[int]] = field(default_factory=dict)
    #: The elements of those that wait.
    elements: dict[object, int] = field(default_factory=dict)


def recompute_ops(
    recomputer: Recomputer,
    resources: Resources = ALL_CORES,
    *,
    is_first_look: bool = False,
    journal: JudgementJournal | None = None,
) -> list[OpResult]:
    """Judge every op that computes something, in the order in which they ran; progress is counted in ops.

    `is_first_look`: of a large op a sample tells, also that it is wrong. What the `journal` has of a run that was
    interrupted is taken from there, and each new judgement kept in it.

    Workers of our own are processes. Without `fork`, or beside other threads, this thread does it all. An executor
    does it in any case: of a cluster the workers where the dump lies. Ops of a task that no worker can do say so, and
    so do those that are left when the cluster goes away.
    """
    recomputer.is_first_look = is_first_look
    try:
        return _recompute_ops(recomputer, resources, journal)
    finally:
        recomputer.is_first_look = False


def recompute_closely(
    recomputer: Recomputer,
    ops: Sequence[Op],
    resources: Resources = ALL_CORES,
    journal: JudgementJournal | None = None,
) -> list[OpResult]:
    """Judge some ops that are known not to be plainly right, by processes of our own or this thread; no progress."""
    computing = recomputer.computing
    recomputer.computing = list(ops)
    try:
        own = Resources(1 if resources.executor else resources.workers)
        return _recompute_ops(recomputer, own, journal, lightly=False)
    finally:
        recomputer.computing = computing


def _recompute_ops(
    recomputer: Recomputer, resources: Resources, journal: JudgementJournal | None, *, lightly: bool = True
) -> list[OpResult]:
    ops = recomputer.computing
    earlier = {} if journal is None else {number: journal.judged(op) for number, op in enumerate(ops)}
    done = {number: result for number, result in earlier.items() if result is not None}
    for number, op in enumerate(ops):
        undumped = recomputer.recompute_undumped(op)
        if undumped is not None:
            done[number] = undumped
    sizes = [1 if number in done else elements_of(recomputer, op) for number, op in enumerate(ops)]
    meter = Meter(counting(resources.progress, "ops"), len(ops))
    if done:
        meter.add(len(done))
    spread_ops = _Spread(recomputer, ops, sizes, meter, lightly=lightly, journal=journal, done=done)
    if resources.executor is not None:
        executor = near(resources.executor, recomputer.values.leaf.path)
        return spread_ops.run_by(executor, resources.count)
    left = [number for number in range(len(ops)) if number not in done]
    count = min(resources.count, _MAX_WORKERS, len(left))
    if count > 1 and sum(sizes[number] for number in left) >= _SERIAL_ELEMENTS and can_fork():
        count = affordable(count)
        if count > 1:
            return spread_ops.run(count)
    for number in left:
        done[number] = recomputer.recompute(ops[number])
        if journal is not None:
            journal.keep(done[number])
        meter.add(1)
    return [done[number] for number in range(len(ops))]


def elements_of(recomputer: Recomputer, op: Op) -> int:
    """Return the elements of an op's inputs and outputs; without a dump twice those of the outputs that others show."""
    dump = recomputer.values.dumped(op)
    if dump is None:
        return 1 + 2 * sum(tensor.size for tensor in recomputer.outputs(op).values())
    tensors = (*dump.inputs.values(), *dump.outputs.values())
    return 1 + sum(tensor.size for tensor in tensors if isinstance(tensor, Tensor))


class _Spread:
    """One run's ops on their way through the processes."""

    def __init__(
        self,
        recomputer: Recomputer,
        ops: Sequence[Op],
        sizes: Sequence[int],
        meter: Meter,
        *,
        lightly: bool = True,
        journal: JudgementJournal | None = None,
        done: Mapping[int, OpResult] | None = None,
    ) -> None:
        self._recomputer, self._ops, self._sizes, self._meter = recomputer, ops, sizes, meter
        self._lightly = lightly
        self._journal = journal
        self._done = dict(done or {})
        self._plan = _Plan()
        self._running: list[_Task] = []
        #: How often a process died and nothing shows during which task.
        self._in_vain = 0
        #: How an executor's workers make their recomputer; None: they are forked, and inherit it.
        self._recipe: _Recipe | None = None
        #: Bytes that ops may take at one time beyond `_AT_ONCE`; 0 where the workers' memory is not known.
        self._spare = 0
        for number, op in enumerate(ops):
            if number in self._done:
                continue
            key = recomputer.key(op)
            self._plan.waiting.setdefault(key, deque()).append(number)
            self._plan.elements[key] = self._plan.elements.get(key, 0) + sizes[number]
        for key in self._plan.waiting:
            self._next(key)

    def run(self, workers: int) -> list[OpResult]:
        """Return every judgement, in the order of the ops."""
        _inherited.append(self._recomputer)
        self._spare = free_memory() // 2
        try:
            with self._recomputer.values.sharing(workers):
                # The threads of a pool whose workers died may not have ended, and keep others from being forked.
                while not self._is_done_by(workers) and self._in_vain < _MOST_IN_VAIN and can_fork():
                    workers = 1  # for want of memory perhaps, and which task it is shows if there is no other
        finally:
            _inherited.pop()
        return self._results()

    def _is_done_by(self, workers: int) -> bool:
        """Do what is left in processes of our own. Return whether that is all of it: no process died.

        An op during which, running alone, two processes died is given up; all others are queued again.
        """
        try:
            with process_pool(workers) as pool:
                run_tasks(self, pool, limit=2 * workers if workers > 1 else 1)
            return True
        except BrokenExecutor as error:
            if has_memory_limit():  # OpenBLAS ends the process: most ops would not be judged
                raise limit_error(error) or error from error
        running, self._running = self._running, []
        is_alone = len(running) == 1
        self._in_vain += not is_alone
        for task in running:
            if is_alone and len(task.numbers) == 1:
                task.deaths += 1
                if task.deaths > 1:
                    self._give_up(task, _DIED)
                    continue
            numbers = [[number] for number in task.numbers] if is_alone else [task.numbers]
            for part in numbers:
                self._queue(replace(task, numbers=part, elements=sum(self._sizes[number] for number in part)))
        return False

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
            op=op, number=values.number_of(op), state=State.NOT_RECOMPUTED, reason=reason,
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
        task = next((task for task in self._plan.ready if not has_large or task.nbytes <= half), None)
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
        try:
            future = executor.submit(
                _recompute_task,
                task.numbers,
                task.key,
                fitting,
                task.looks_lightly,
                self._recipe,
                self._recomputer.seconds_left,
            )
        except BrokenExecutor:
            self._queue(task)
            raise
        self._running.append(task)
        return future

    def take(self, task: _Task, future: Future[_Answer]) -> None:
        """Keep what a task found; the user's error is that of its ops alone."""
        try:
            judged, fitting, checksums = future.result()
        except WorkersLostError:
            raise
        except PrecisionToolError as error:
            self._running.remove(task)
            self._give_up(task, Message("reason.not_done", detail=error.full_message))
            return
        self._running.remove(task)
        self._recomputer.values.checksums.update(checksums)
        if judged is None:
            self._queue(replace(task, is_light=False))
            return
        if fitting is not None:
            self._recomputer.fitting.setdefault(task.key, fitting)
        for number, result in zip(task.numbers, judged, strict=True):
            self._done[number] = replace(result, op=self._ops[number])
            if self._journal is not None:
                self._journal.keep(self._done[number])
        self._end(task)

    def _give_up(self, task: _Task, reason: Message) -> None:
        self._done |= {number: self._not_recomputed(number, reason) for number in task.numbers}
        self._end(task)

    def _end(self, task: _Task) -> None:
        self._next(task.key)
        self._meter.add(len(task.numbers))

    def _queue(self, task: _Task) -> None:
        """Queue a task by the elements that it completes or unblocks: the most first, so that workers end together."""
        task.ahead = task.nbytes // _LIGHT + self._plan.elements[task.key]
        insort(self._plan.ready, task, key=lambda ready: -ready.ahead)

    def _take(self, key: object) -> int:
        """Take the op of a key that has waited longest."""
        number = self._plan.waiting[key].popleft()
        self._plan.elements[key] -= self._sizes[number]
        return number

    def _next(self, key: object) -> None:
        """Queue one op of a key, or all that wait once their formula is known, as that of ops that are not fused is."""
        waiting = self._plan.waiting[key]
        if not waiting:
            return
        if key not in self._recomputer.fitting and is_fused(self._ops[waiting[0]]):
            number = self._take(key)
            self._queue(_Task(key, [number], self._sizes[number], self._lightly))
            return
        task = _Task(key, [], 0, self._lightly)
        while waiting:
            number = self._take(key)
            if task.numbers and (
                task.elements + self._sizes[number] > _TASK_ELEMENTS or len(task.numbers) >= _TASK_OPS
            ):
                self._queue(task)
                task = _Task(key, [], 0, self._lightly)
            task.numbers.append(number)
            task.elements += self._sizes[number]
        self._queue(task)


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
    if recipe is None:
        multiply_in_one_thread()  # a process of our own, one of as many as there are cores
    recomputer = _inherited[-1] if recipe is None else recipe.recomputer()
    recomputer.seconds_left = seconds_left
    if fitting is not None:
        recomputer.fitting.setdefault(key, fitting)
    ops = recomputer.computing
    recomputer.values.checksums = {}
    judged = []
    for number in numbers:
        result = recomputer.recompute_lightly(ops[number]) if lightly else recomputer.recompute(ops[number])
        if result is None:
            return None, fitting, recomputer.values.checksums
        judged.append(replace(result, op=_NO_OP))
    return judged, recomputer.fitting.get(key), recomputer.values.checksums
