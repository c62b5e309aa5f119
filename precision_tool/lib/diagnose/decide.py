"""The verdict on a run: ops are recomputed, copies and sources compared, causes named and ranked, next steps planned.

Ops without dump files are recomputed together, from the tensors known before them to those after them: a wrong result
accuses all of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from math import isfinite, nan

import numpy as np

from precision_tool.lib.compare.scheduler import ALL_CORES, Resources
from precision_tool.lib.data.dumped_ops import BenchmarkSide, DumpIndex, GoldenFiles, NoBenchmark
from precision_tool.lib.data.graph_catalog import RunGraph, names_in
from precision_tool.lib.data.matching import GraphDumps
from precision_tool.lib.data.msprobe_ops import CUT_OFF
from precision_tool.lib.data.origins import originals
from precision_tool.lib.data.settings import DEFAULT_THRESHOLD
from precision_tool.lib.data.sides import golden_leaf
from precision_tool.lib.diagnose.causes import Explainer, Findings
from precision_tool.lib.diagnose.device_profile import Device, DeviceProfile, learn, profile_of
from precision_tool.lib.diagnose.divergence import Flow, is_random, known_scales
from precision_tool.lib.diagnose.error_shape import OF_ROUNDING, UNIT, Misfit, flat_doubles, misfit
from precision_tool.lib.diagnose.formulas import FORMULA_ERRORS, Formula, Ref, Stage
from precision_tool.lib.diagnose.judgement_journal import JudgementJournal, KeptJudgements
from precision_tool.lib.diagnose.op_values import (
    DATA_TYPES,
    PARAMETER_TYPES,
    Compared,
    NoValueError,
    OpInputs,
    Root,
    RunValues,
    Slot,
)
from precision_tool.lib.diagnose.overwritten_memory import (
    Divergence,
    Overwritten,
    Witness,
    divergence_of,
    first_unsteady,
    is_repeated,
    overwritten,
)
from precision_tool.lib.diagnose.plan import plan
from precision_tool.lib.diagnose.recomputer import Recomputer, largest_of, recompute_closely, recompute_ops, slot_of
from precision_tool.lib.diagnose.replay import Effect, effect_of
from precision_tool.lib.diagnose.sampling import narrowing
from precision_tool.lib.diagnose.verdict_model import (
    Action,
    Cause,
    Fact,
    Flag,
    Gap,
    NotChecked,
    NotCheckedKind,
    OpResult,
    Proof,
    SlotResult,
    State,
    Step,
    Suspect,
    Verdict,
    WorstCosine,
    is_late,
    tally,
)
from precision_tool.lib.messages.errors import DataNotFoundError, PrecisionToolError
from precision_tool.lib.model.graph import GraphFile, Op
from precision_tool.lib.model.run import DumpLeaf, Run
from precision_tool.lib.model.table import Row
from precision_tool.lib.ops.base import Input, Kind, NotComputedError, Output, OutputSpec

#: Ops that are judged as one at most, elements that they are fed together, and multiplications that this may take.
_MAX_OPS, _MAX_ELEMENTS, _MAX_WORK = 6, 1 << 23, 1e9
#: Results between them are rounded to types of their own, whose effect is only estimated: they are wrong from here on,
#: as a relative distance and in units of what rounding explains.
_FAR, _BEYOND = 0.02, 20.0


def gaps(recomputer: Recomputer, judged: Sequence[OpResult]) -> Iterator[Gap]:
    """Yield every op that could not be recomputed for want of its inputs, with those before it that make them."""
    computing = {id(op) for op in recomputer.computing}
    for result in judged:
        if time.monotonic() > recomputer.deadline:
            return
        if result.state is not State.NOT_RECOMPUTED or result.is_dumped or is_random(result.op):
            continue
        if not recomputer.values.is_shown(result.op):
            continue  # of its outputs nothing is known
        try:
            with np.errstate(all="ignore"), recomputer.values.reading():
                gap = _gap_of(recomputer, computing, result)
        except (NoValueError, PrecisionToolError, MemoryError, *FORMULA_ERRORS):
            continue
        if gap is not None:
            yield gap


@dataclass(slots=True)
class _Chain:
    """The formulas of several ops, put together."""

    recomputer: Recomputer
    computing: set[int]
    stages: list[Stage] = field(default_factory=list)
    inputs: dict[int, Input] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    types: set[str] = field(default_factory=set)
    borrowed: list[Op] = field(default_factory=list)
    elements: int = 0
    _done: dict[int, dict[int, Ref]] = field(default_factory=dict)

    def add(self, op: Op) -> dict[int, Ref]:
        """Add an op after the producers of its inputs; return its outputs by slot. NotComputedError if it cannot."""
        cached = self._done.get(id(op))
        if cached is not None:
            return cached
        if len(self.ops) >= _MAX_OPS or id(op) not in self.computing or is_random(op):
            raise NotComputedError("no_formula", op_type=op.type)
        self.ops.append(op)
        self.elements += sum(
            tensor.size
            for root in self.recomputer.values.producers(op)
            for _, tensor in islice(self.recomputer.values.copies(root), 1)
        )
        if self.elements > _MAX_ELEMENTS:
            raise NotComputedError("too_many_elements", number=self.elements)
        op_inputs = self.recomputer.inputs_of(op)
        refs = self._inputs(op, op_inputs)
        formula = next(self.recomputer.candidates.without_search(op, op_inputs), None)
        if formula is None or formula.lent:
            raise NotComputedError("fused_unknown")
        base = len(self.stages)
        for stage in formula.stages:
            args = tuple(ref and (refs[ref.slot] if ref.stage is None else _later(ref, base)) for ref in stage.args)
            self.stages.append(replace(stage, args=args))
        self.types |= {desc.dtype for desc in op.output_descs[:1] if desc.dtype in UNIT}
        self._done[id(op)] = {slot: _later(ref, base) for slot, ref in formula.outputs.items()}
        return self._done[id(op)]

    def _inputs(self, op: Op, op_inputs: OpInputs) -> dict[int, Ref]:
        """Return the inputs of an op by slot: dumped ones as inputs of the chain, others as outputs of its stages."""
        refs: dict[int, Ref] = {}
        for slot in self.recomputer.values.input_slots(op):
            root = self.recomputer.values.source_of(slot)
            parameter = self.recomputer.values.parameter_of(root) if root is not None else None
            if parameter is not None and op_inputs.elsewhere.get(slot.index) == "benchmark":
                self.borrowed.append(parameter)
            if slot.index in op_inputs.inputs:
                refs[slot.index] = Ref(len(self.inputs))
                self.inputs[len(self.inputs)] = op_inputs.inputs[slot.index]
            elif root is None:
                raise NotComputedError("fed_unknown", name=op.name, slot=slot.index)
            else:
                refs[slot.index] = self._output(root, slot)
        return refs

    def _output(self, root: Root, slot: Slot) -> Ref:
        """Return the input of a slot in the shape that its op takes, through ops that only reshape it."""
        made = self.add(root.op)
        if root.index not in made:
            raise NotComputedError("fed_without_formula", op_type=root.op.type)
        ref = made[root.index]
        desc = root.op.output_desc(root.index)
        put_out = desc.origin_shape if desc is not None else None
        taken = slot.desc.origin_shape if slot.desc is not None else None
        if taken is None or put_out is None or taken == put_out or min(taken, default=0) < 0:
            return ref
        self.stages.append(
            Stage(name=slot.name, op_type="Reshape", args=(ref,), output_specs=(OutputSpec(shape=taken),))
        )
        return Ref(0, len(self.stages) - 1)


def _later(ref: Ref, base: int) -> Ref:
    return Ref(ref.slot, (ref.stage or 0) + base)


def _gap_of(recomputer: Recomputer, computing: set[int], result: OpResult) -> Gap | None:
    tensors = recomputer.outputs(result.op)
    if not tensors:
        return None
    chain = _Chain(recomputer, computing)
    outputs = chain.add(result.op)
    if len(chain.ops) < 2 or not all(isfinite(largest_of(tensor)) for tensor in chain.inputs.values()):
        return None
    formula = Formula(stages=tuple(chain.stages), outputs={slot: outputs[slot] for slot in tensors if slot in outputs})
    if not formula.outputs or formula.work(chain.inputs) > _MAX_WORK:
        return None
    coarsest = max(chain.types, key=lambda dtype: UNIT[dtype], default="float32")
    true, stored = formula.run(chain.inputs), formula.run(chain.inputs, coarsest)
    slots, is_wrong = [], False
    for slot, out in true.items():
        have = recomputer.values.load(tensors[slot], result.op.output_desc(slot))
        fit = _misfit(have, out, stored[slot], formula.kind, narrowing(formula, chain.inputs))
        if fit is None:
            return None
        compared_slot = slot_of(slot, replace(have, dtype=coarsest), out, fit, formula.kind)
        slots.append(compared_slot)
        is_wrong |= bool(compared_slot.beyond) and compared_slot.own > max(_FAR, _BEYOND * compared_slot.rounding)
    ops = sorted(chain.ops, key=recomputer.values.number_of)
    is_right = not any(compared_slot.beyond for compared_slot in slots)
    state = State.WRONG if is_wrong else State.RIGHT if is_right else State.DOUBTFUL
    return Gap(
        ops=ops,
        result=replace(result, state=state, reason=None, how=formula.how, slots=tuple(slots)),
        borrowed=chain.borrowed,
    )


def _misfit(have: Input, out: Output, stored: Output, kind: Kind, u_in: float) -> Misfit | None:
    """Compare an output with the true one, given the mean rounding of all elements between; None if it cannot be."""
    if have.array.size != out.array.size or have.dtype not in UNIT or have.array.dtype.kind == "c":
        return None
    off = flat_doubles(stored.array) - flat_doubles(out.array)
    noise = np.full(off.shape, np.sqrt(np.mean(np.square(off))))
    fit = misfit(have.array, out, have.dtype, kind, u_in=u_in, noise=noise)
    return fit if fit.compared.any() else None


# --- verdict on one run -----------------------------------------------------------------------------------------------


#: Of the run, how long recomputing may take.
SECONDS = 300.0
#: Ops that stand out and are recomputed by the precision of the device: first those that are off by much.
_MAX_AGAIN = 24
#: Wrong ops of which it is computed what their errors do to the end of the run, how long that may take at least, and
#: beside what recomputing them all took.
_MAX_EFFECTS, _EFFECT_SECONDS, _EFFECT_SHARE = 8, 2.0, 0.1
#: The share of the final deviation from which on an op's error accounts for most of it.
_EXPLAINS_MOST = 0.5
#: An error below the second one in every element that changes no last tensor by more than the first is no fault: the
#: rounding of half precision is as large.
_NO_EFFECT, _SMALL = 2.0**-12, 2.0**-7
#: Kinds of ops that add up, with atomic additions on some devices.
_ADDING_UP = (Kind.SUM, Kind.MATRIX, Kind.COMPOSITE)
#: Two results that rounding explains differ by no more than so many times of it.
_TWICE = 2.0
#: A cosine above this is that of a tensor rounded once.
_NEAR_ONE = 1 - 1e-6
#: Confidence in a clean verdict of which every op was recomputed; without a benchmark other data, weights and random
#: numbers go unnoticed (VERDICT.md §11).
_CLEAN, _CLEAN_ALONE = 0.97, 0.6
#: How much less sure that is of a list of calls that is cut off: what is missing may be any share of them.
_CUT_OFF = 0.5
#: What an op of which only some elements were recomputed takes away from it where no benchmark tells of the others.
_IN_PART = 0.5


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A run to judge: its dump and its graph; `decide` adds the benchmark, and a graph without fusion if there is one.

    `other` is another NPU run of the same script: it tells of random numbers, and of data and weights that differ
    between the two, but is as likely to be wrong as this one.

    `cosines` are the outputs that were compared, by op name and slot ("output:0").
    """

    leaf: DumpLeaf
    file: GraphFile
    benchmark: BenchmarkSide = field(default_factory=NoBenchmark)
    unfused: GraphFile | None = None
    other: BenchmarkSide | None = None
    #: The dump's files as far as they were opened.
    dumps: DumpIndex | None = None
    number: int | None = None
    cosines: Mapping[tuple[str, str], float] | None = None
    #: What comparing it with the benchmark showed.
    comparison: Compared | None = None
    #: Ops that the comparison alone would suspect, the likeliest first.
    compared: Sequence[str] = ()
    threshold: float = DEFAULT_THRESHOLD
    #: What overflow status files say, by name of the op.
    flagged: Mapping[str, Flag] = field(default_factory=dict)
    #: Whether an earlier step of the same training is judged too.
    is_later: bool = False
    #: How precise the device is, as other runs of it showed.
    profile: DeviceProfile | None = None

    @cached_property
    def lowest_cosines(self) -> Mapping[str, float]:
        """The lowest cosine of the outputs of each op that was compared; -1 for one that has none."""
        lowest: dict[str, float] = {}
        for (name, slot), cosine in (self.cosines or {}).items():
            if slot.startswith("output"):
                lowest[name] = min(lowest.get(name, 1.0), cosine if cosine == cosine else -1.0)
        return lowest


@dataclass(frozen=True, kw_only=True)
class RunVerdict:
    """The verdict on one run with every op's judgement behind it: its number, and paths of its dump and its graph.

    `blameless` are runs that were judged on the way, and are not to blame.
    """

    verdict: Verdict
    ops: Sequence[OpResult] = field(repr=False)
    run: int | None
    npu: str
    graph: str
    blameless: Sequence[RunVerdict] = field(default=(), repr=False)
    #: How precise the device computed.
    profile: DeviceProfile = field(default_factory=DeviceProfile, repr=False)
    #: The loss scale by the op that holds it, as far as it shows.
    scales: Mapping[str, float] = field(default_factory=dict)


def decide_run(
    subject: Subject,
    *,
    seconds: float = SECONDS,
    resources: Resources = ALL_CORES,
    kept: KeptJudgements | None = None,
) -> RunVerdict:
    """Return the verdict on one run. Progress is counted in ops; what `kept` has of it is not done again."""
    values = RunValues(subject.leaf, subject.file, subject.benchmark, dumps=subject.dumps, compared=subject.comparison)
    recomputer = Recomputer(values, subject.unfused, seconds=seconds)
    start = time.monotonic()
    journal = kept.open(recomputer) if kept is not None else None
    judged = recompute_ops(recomputer, resources, is_first_look=True, journal=journal)
    judged = recomputer.recompute_guessed(judged)
    device = recomputer.device = learn(judged, subject.profile)
    judged = judged_by_device(recomputer, device, judged, resources, journal)
    judged, effects = _with_effects(
        recomputer, judged, max(_EFFECT_SECONDS, _EFFECT_SHARE * (time.monotonic() - start))
    )
    sides = values
    if subject.other is not None and isinstance(subject.benchmark, NoBenchmark):
        sides = RunValues(subject.leaf, subject.file, subject.other, dumps=values.dumps)
    again = _CopyTrials(recomputer)
    # That recorded calls are connected is known from equal tensors alone: one that differs is another tensor.
    memory = () if subject.file.framework else overwritten(values, again.is_right)
    judged = again.by_true_copies(judged, memory)
    together = tuple(gaps(recomputer, judged))
    right = {id(item.result.op): item.result for item in together if item.result.state is State.RIGHT}
    judged = [right.get(id(item.op), item) for item in judged]
    findings = Findings(
        gaps=together,
        judged=tuple(judged),
        flagged=subject.flagged,
        overwritten=memory,
        unsettled=len(again.unsettled),
        divergences=tuple(divergences(sides, values)),
        is_later=subject.is_later,
        effects=effects,
    )
    explainer = Explainer(values, findings)
    suspects = _with_followers(explainer.suspects(subject.compared), values, explainer.flow, subject)
    scale = next((item for item in suspects if item.cause is Cause.LOSS_SCALE), None)
    return RunVerdict(
        verdict=_verdict(subject, findings, suspects, _worst(subject, values)), ops=tuple(judged),
        run=subject.number, npu=subject.leaf.path, graph=subject.file.path, scales=known_scales(values, scale),
        profile=profile_of(judged, device),
    )  # fmt: skip


def judged_by_device(
    recomputer: Recomputer,
    device: Device,
    judged: Sequence[OpResult],
    resources: Resources = ALL_CORES,
    journal: JudgementJournal | None = None,
) -> list[OpResult]:
    """Return the results with what the device's imprecision explains taken for right.

    What stands out is recomputed, as far as it may be named: what is off beyond that imprecision shows the mistake.
    """
    results = list(judged)
    apart: list[int] = []
    for number, result in enumerate(judged):
        off = [slot for slot in result.slots if slot.beyond]
        if result.state is State.RIGHT and result.finite_inputs and not result.is_guessed:
            if any(device.is_outlier(slot, result.how, result.name) for slot in result.slots):
                again_result = recomputer.recompute_outlier(result.op)
                results[number] = result if is_late(again_result) else again_result
            continue
        if not off or result.state not in (State.WRONG, State.DOUBTFUL):
            continue
        if result.variant is not None:
            continue  # an argument, and no imprecision, explains it
        if all(device.explains(slot, result.how, result.name) for slot in off):
            variant = recomputer.variant_of(result.op)
            if variant is None:
                results[number] = replace(result, state=State.RIGHT, is_imprecise=True, reason=None)
            else:
                results[number] = replace(result, state=State.WRONG, variant=variant)
        else:
            apart.append(number)
    apart = sorted(sorted(apart, key=lambda number: (_is_inexact(judged[number]), number))[:_MAX_AGAIN])
    ops = [judged[number].op for number in apart]
    again = recompute_closely(recomputer, ops, resources, journal) if ops else []
    for number, result in zip(apart, again, strict=True):
        first = judged[number]
        off = [slot for slot in first.slots if slot.beyond]
        is_hidden = result.state is State.RIGHT and any(
            device.is_structured(slot, first.how, first.name) for slot in off
        )
        results[number] = first if is_late(result) or is_hidden else result
    return results


def _is_inexact(result: OpResult) -> bool:
    """Return whether an op is off by so little that its precision may be all that is wrong."""
    return max(result.own, *(slot.imprecision for slot in result.slots)) < _SMALL


def _with_effects(
    recomputer: Recomputer, judged: Sequence[OpResult], seconds: float
) -> tuple[list[OpResult], dict[str, Effect]]:
    """Return the results, and by name what the own errors of the first wrong ops do to the end of the run.

    A small error that changes nothing there is an imprecision, and no fault; one beyond the device's imprecision that
    accounts for most of the final deviation is a fault, even where it is too small to be told from rounding by itself.
    """
    results, effects = list(judged), {}
    deadline = time.monotonic() + seconds
    wrong = [
        number for number, result in enumerate(results)
        if (result.state is State.WRONG and result.slots) or _is_beyond_device(result)
    ]  # fmt: skip
    for number in wrong[:_MAX_EFFECTS]:
        result = results[number]
        effect = effect_of(recomputer, result, deadline)
        if effect is None:
            continue
        imprecision = max(slot.imprecision for slot in result.slots)
        is_small = max(result.own, imprecision) < _SMALL and not any(map(_is_no_imprecision, result.slots))
        explains_most = effect.explained is not None and effect.explained >= _EXPLAINS_MOST
        if effect.is_whole and effect.change < _NO_EFFECT and is_small and not explains_most:
            results[number] = replace(result, state=State.RIGHT, is_imprecise=True)
        elif result.state is State.WRONG:
            effects[result.name] = effect
        elif explains_most:
            results[number] = replace(result, state=State.WRONG)
            effects[result.name] = effect
    return results, effects


def _is_no_imprecision(slot: SlotResult) -> bool:
    """Return whether an output is not rounded as it should be, or was to be moved only: a fault, however little."""
    is_misrounded = slot.places is not None and slot.places.mistake in OF_ROUNDING
    return is_misrounded or (slot.kind is Kind.EXACT and slot.beyond > 0)


def _is_beyond_device(result: OpResult) -> bool:
    """Return whether an op is in doubt for nothing but the size of its error, which the device does not explain."""
    if result.state is not State.DOUBTFUL or not result.finite_inputs or result.reason is not None:
        return False
    return any(slot.imprecision > slot.tolerance > 0 for slot in result.slots)


class _CopyTrials:
    """Judges ops that were not dumped by another of the copies that their readers have."""

    def __init__(self, recomputer: Recomputer) -> None:
        self._recomputer = recomputer
        self._computing = {id(op) for op in recomputer.computing}
        #: Tensors of which recomputing might have told the true copy, had there been time.
        self.unsettled: set[tuple[int, int]] = set()

    def is_right(self, root: Root, copy: Slot) -> bool | None:
        """Return whether an op is right if a reader's copy is what it put out; None where it cannot be recomputed."""
        if id(root.op) not in self._computing:
            return None
        self._recomputer.values.take_for_true(root, copy)
        result = self._recomputer.recompute(root.op)
        self._recomputer.values.take_for_true(root, None)
        if is_late(result):
            self.unsettled.add(root.key)
        return None if result.state is State.NOT_RECOMPUTED else result.state is State.RIGHT

    def by_true_copies(self, judged: Sequence[OpResult], memory: Sequence[Overwritten]) -> list[OpResult]:
        """Return the results, recomputing ops whose readers disagree on a tensor, and the ops that it feeds.

        Where there is no time for that, the judgement that there is stays.
        """
        disputed = {item.root.key: item for item in memory if item.witness is not Witness.PRODUCER}
        ops = {id(item.producer) for item in disputed.values()}
        for item in disputed.values():
            self._recomputer.values.take_for_true(item.root, item.true)
            ops |= {id(slot.op) for slot in self._recomputer.values.readers(item.root)}
        return [self._again(item) if id(item.op) in ops and _is_fed_elsewhere(item) else item for item in judged]

    def _again(self, result: OpResult) -> OpResult:
        again = self._recomputer.recompute(result.op)
        return result if is_late(again) else again


def _is_fed_elsewhere(result: OpResult) -> bool:
    """Return whether an op was judged by what others have of what it read or put out."""
    return not result.is_dumped or any(source == "reader" for _, source in result.from_elsewhere)


def unsteady(subject: Subject, other: Subject, clean: RunVerdict, others: RunVerdict) -> RunVerdict | None:
    """Return the verdict where no run computes wrong, and an op computes differently in two; None if there is none.

    Not an op that adds up, is right in both, `clean` and `others`, and differs by rounding: the order of its sums may
    be another every time. Nor one that draws random numbers, which the benchmark tells of.
    """
    values = RunValues(subject.leaf, subject.file, subject.benchmark, dumps=subject.dumps)
    again = _rounding_of_sums(others)
    allowed = {key: _TWICE * max(size, again[key]) for key, size in _rounding_of_sums(clean).items() if key in again}
    ignored = {op.name for op in values.ops if is_random(op)}
    their_values = RunValues(other.leaf, other.file, other.benchmark, dumps=other.dumps)
    difference = first_unsteady(values, their_values, allowed, ignored)
    if difference is None:
        return None
    facts = (
        Fact(name="distance", value=float(f"{difference.distance:.6g}")), Fact(name="output", value=difference.output),
        Fact(name="different_elements", value=difference.different), Fact(name="elements", value=difference.size),
        Fact(name="same_inputs", value=True),
    )  # fmt: skip
    suspect = Suspect(
        culprit=difference.op.name, cause=Cause.RANDOM, proof=Proof.RUNS, confidence=0.7,
        number=values.number_of(difference.op), op_type=difference.op.type, facts=facts,
    )  # fmt: skip
    followers = Flow(values).downstream([difference.op])
    suspect = replace(suspect, followers=len(followers), index=values.index_of(difference.op))
    suspect = _placed(suspect, difference.op, values)
    verdict = replace(
        clean.verdict, culprit=suspect.culprit, cause=suspect.cause, confidence=suspect.confidence,
        ranking=(suspect.culprit,), suspects=(suspect,), facts=facts,
        next=plan(suspect, (suspect,), clean.verdict.has_benchmark, framework=subject.file.framework),
    )  # fmt: skip
    return replace(clean, verdict=verdict)


def _rounding_of_sums(run: RunVerdict) -> dict[tuple[str, int], float]:
    """Return what rounding makes of the outputs of ops that are right and add up, by name and slot."""
    return {
        (item.name, slot.slot): slot.rounding for item in run.ops for slot in item.slots
        if item.state is State.RIGHT and slot.kind in _ADDING_UP
    }  # fmt: skip


def divergences(values: RunValues, judged: RunValues) -> list[Divergence]:
    """Return the data, variables, constants and random numbers that differ from the benchmark's."""
    if isinstance(values.benchmark, NoBenchmark):
        return []
    divergences = []
    for op in values.ops:
        if op.type not in DATA_TYPES and op.type not in PARAMETER_TYPES and not is_random(op):
            continue
        for index in range(max(len(op.output_descs), 1)):
            root = Root(op, index)
            divergence = divergence_of(values, root) if not values.is_the_benchmarks(root) else None
            if divergence is not None:
                divergences.append(replace(divergence, root=Root(judged.ops[values.number_of(op)], index)))
    return divergences


def _with_followers(suspects: Sequence[Suspect], values: RunValues, flow: Flow, subject: Subject) -> list[Suspect]:
    """Return the suspects with how many ops they feed, how many of these differ, and their places."""
    names = [{suspect.culprit, *suspect.also} - {suspect.fact("producer")} for suspect in suspects]
    low = {name for name, cosine in subject.lowest_cosines.items() if cosine < subject.threshold}
    with_followers = []
    for suspect, (followers, below) in zip(suspects, flow.count_downstream(names, low), strict=True):
        op = values.ops[suspect.number]
        counted = replace(suspect, followers=followers, below=below, index=values.index_of(op))
        with_followers.append(_placed(counted, op, values))
    return with_followers


def _placed(suspect: Suspect, op: Op, values: RunValues) -> Suspect:
    """Return a suspect with its place in the script; a tensor that no call put out has that of its first reader."""
    if not op.is_recorded and values.file.framework:
        readers = (other for other in values.ops if any(edge and edge.producer == op.name for edge in other.inputs))
        op = next((reader for reader in readers if reader.is_recorded), op)
    return replace(suspect, module=op.module, source=op.source)


def _verdict(subject: Subject, findings: Findings, suspects: Sequence[Suspect], worst: WorstCosine | None) -> Verdict:
    counts = tally(findings.judged)
    has_benchmark = not isinstance(subject.benchmark, NoBenchmark)
    partly = _right_in_part(subject, findings.judged)
    base = Verdict(
        culprit=None, cause=Cause.NONE, confidence=0.0, suspects=tuple(suspects), tally=counts, run=subject.number,
        has_benchmark=has_benchmark, worst=worst,
        gaps=tuple(_not_checked(subject, findings, partly, has_benchmark)),
    )  # fmt: skip
    guilty = [item for item in suspects if item.cause is not Cause.LOSS_SCALE]
    if not guilty:
        unseen = 0.0 if has_benchmark else _IN_PART * sum(not item.is_summed for item in partly)
        unseen += len(_unread_ops(subject))
        checked_fraction = max(counts.right - unseen, 0.0) / counts.ops if counts.ops else 0.0
        cause = suspects[0].cause if suspects else Cause.NONE
        facts = suspects[0].facts if suspects else (Fact(name="recomputed", value=counts.right),)
        return replace(
            base, cause=cause, confidence=_clean(subject, has_benchmark) * checked_fraction, facts=facts,
            next=plan(None, suspects, has_benchmark, findings.judged, framework=subject.file.framework),
        )  # fmt: skip
    first = guilty[0]
    names = dict.fromkeys(name for item in guilty for name in (item.culprit,))
    names |= dict.fromkeys(name for item in guilty for name in item.also)
    return replace(
        base,
        culprit=first.culprit,
        cause=first.cause,
        confidence=first.confidence,
        pass_name=first.pass_name or None,
        ranking=tuple(names),
        suspects=tuple(guilty),
        facts=first.facts,
        next=plan(first, suspects, has_benchmark, framework=subject.file.framework),
    )


def _unread_ops(subject: Subject) -> Sequence[str]:
    """Return ops of which something was dumped that cannot be read."""
    return subject.comparison.unread if subject.comparison is not None else ()


def _clean(subject: Subject, has_benchmark: bool) -> float:
    """Return how sure it is that nothing is wrong where all that was dumped is right."""
    share = _CUT_OFF if _is_cut_off(subject.file) else 1.0
    return share * (_CLEAN if has_benchmark else _CLEAN_ALONE)


def _is_cut_off(file: GraphFile) -> bool:
    """Return whether calls are missing at the end of the file that lists them."""
    return any(note.kind == CUT_OFF for note in file.notes)


def _not_checked(
    subject: Subject, findings: Findings, partly: Sequence[OpResult], has_benchmark: bool
) -> Iterator[NotChecked]:
    """Yield what the verdict could not go by. `partly` are ops that were checked on a sample."""
    judged = findings.judged
    unread = _unread_ops(subject)
    if unread:  # it goes by what other ops have of them
        yield NotChecked(lack=NotCheckedKind.NOT_READ, count=len(unread), op=unread[0])
    if _is_cut_off(subject.file):
        yield NotChecked(lack=NotCheckedKind.CUT_OFF, count=len(judged))
    missing = [result for result in judged if not result.is_dumped]
    if missing:  # a dump of everything would have told
        unknown = sum(result.state is State.NOT_RECOMPUTED for result in missing)
        yield NotChecked(lack=NotCheckedKind.NOT_DUMPED, count=len(missing), ops=len(judged), unknown=unknown)
    late = sum(map(is_late, judged))
    if late:
        yield NotChecked(lack=NotCheckedKind.OUT_OF_TIME, count=late, ops=len(judged))
    if findings.unsettled:
        yield NotChecked(lack=NotCheckedKind.UNSETTLED, count=findings.unsettled)
    if partly:  # a fault of few elements may not show
        by_sums = NotCheckedKind.SAMPLED_SUMS if all(item.is_summed for item in partly) else NotCheckedKind.SAMPLED
        lack = NotCheckedKind.SAMPLED_FARTHEST if has_benchmark else by_sums
        yield NotChecked(lack=lack, count=len(partly), ops=len(judged))


def _right_in_part(subject: Subject, judged: Sequence[OpResult]) -> list[OpResult]:
    """Return the ops that were checked on a sample and that the comparison does not show to be right.

    These are right where they were looked at.
    """
    quiet = subject.comparison.quiet if subject.comparison is not None else frozenset()
    return [
        result for result in judged if result.state is State.RIGHT and result.is_sampled and result.name not in quiet
    ]


def _worst(subject: Subject, values: RunValues) -> WorstCosine | None:
    """Return the worst cosine of an output, and where the distance behind it begins."""
    outputs = {key: value for key, value in (subject.cosines or {}).items() if key[1].startswith("output")}
    if not outputs:
        return None
    (name, slot), cosine = min(outputs.items(), key=lambda item: item[1] if item[1] == item[1] else -2.0)
    below = len({key[0] for key, value in outputs.items() if not value >= subject.threshold})
    op, visited = next(reversed(values.named({name})), None), set()
    begin = name
    while op is not None and id(op) not in visited:
        visited.add(id(op))
        begin = op.name
        producers = [
            (outputs.get((root.op.name, f"output:{root.index}"), 1.0), root.op) for root in values.producers(op)
        ]
        lowest = min(producers, key=lambda candidate: candidate[0], default=(1.0, None))
        if not lowest[0] < _NEAR_ONE:
            break
        op = lowest[1]
    return WorstCosine(op_name=name, slot=slot, cosine=cosine, below=below, grows_from=begin if begin != name else "")


# --- verdict on several runs ------------------------------------------------------------------------------------------


#: Of the runs beside the one that is asked about, how many are judged.
_OTHERS = 2


def decide(
    subject: Subject,
    golden: GoldenFiles | Run | None = None,
    rows: Sequence[Row] = (),
    runs: Sequence[RunGraph] = (),
    *,
    seconds: float = SECONDS,
    resources: Resources = ALL_CORES,
    kept: KeptJudgements | None = None,
) -> RunVerdict:
    """Return the verdict on a dump; if nothing in it is wrong but in another of `runs` something is, on that.

    Parameters
    ----------
    subject : Subject
        The dump, its graph, and what is known of it.
    golden : GoldenFiles or Run, optional
        The benchmark, or another NPU run.
    rows : sequence of Row
        Its comparison with that.
    runs : sequence of RunGraph
        The graphs of the data folder's runs.
    seconds : float
        How long recomputing a run may take.
    resources : Resources
        Who shares the work; progress is counted in ops.
    kept : KeptJudgements, optional
        Judgements of ops that an interrupted command left, and where new ones are kept.
    """
    own_run = next((run for run in runs if any(leaf.path == subject.leaf.path for leaf in run.leaves)), None)
    number = own_run.number if own_run is not None else None
    others = [run for run in runs if run.leaf is not None and run is not own_run and run.number != number]
    others = [run for run in others if own_run is not None]
    benchmark, other_run = _benchmark(subject.leaf, golden, others)
    subject = replace(
        subject, benchmark=benchmark, unfused=others[0].file if others else None, other=other_run, number=number,
        cosines=_cosines(rows, subject.file),
        comparison=Compared.of(rows) if isinstance(benchmark, GoldenFiles) else None,
    )  # fmt: skip
    first = decide_run(subject, seconds=seconds, resources=resources, kept=kept)
    if first.verdict.culprit is not None:
        return _with_parts(_with_repetition(first, subject, others), subject, others)
    blameless: list[RunVerdict] = []
    for run in others[:_OTHERS]:
        assert run.leaf is not None
        other = Subject(
            leaf=run.leaf, file=run.file, benchmark=benchmark, unfused=subject.file, number=run.number,
            cosines=_cosines_of_other(golden, rows, run), threshold=subject.threshold, profile=subject.profile,
        )  # fmt: skip
        run_verdict = decide_run(other, seconds=seconds, resources=resources, kept=kept)
        if run_verdict.verdict.culprit is not None:
            run_verdict = _with_parts(run_verdict, other, [candidate for candidate in runs if candidate is not run])
            return replace(_with_comparison(run_verdict), blameless=(first, *blameless))
        blameless.append(run_verdict)
        differs = unsteady(subject, other, first, run_verdict)
        if differs is not None:
            return replace(differs, blameless=blameless)
    return replace(first, blameless=blameless)


def _with_repetition(run_verdict: RunVerdict, subject: Subject, others: Sequence[RunGraph]) -> RunVerdict:
    """Add to a verdict that blames random numbers whether another run draws the same ones."""
    first = run_verdict.verdict.first
    other = next((run for run in others if run.leaf is not None), None)
    if (
        first is None
        or other is None
        or other.leaf is None
        or not (first.cause is Cause.RANDOM and first.fact("seen_in"))
    ):
        return run_verdict
    op = next(op for op in subject.file.ops if op.name == first.culprit)
    own_values = RunValues(subject.leaf, subject.file, NoBenchmark(), dumps=subject.dumps)
    again = is_repeated(
        own_values, RunValues(other.leaf, other.file, NoBenchmark()), Root(op, first.fact("output") or 0)
    )
    if again is None:
        return run_verdict
    verdict = _with_facts(
        run_verdict.verdict, Fact(name="repeats", value=again), Fact(name="other_run", value=other.number)
    )
    framework = subject.file.framework
    steps = plan(verdict.suspects[0], verdict.suspects, verdict.has_benchmark, framework=framework)
    return replace(run_verdict, verdict=replace(verdict, next=steps))


#: A part of a fused op has its fault if its own error is so large beside the fused op's.
_SAME_SIZE = 0.125


def _with_parts(run_verdict: RunVerdict, subject: Subject, others: Sequence[RunGraph]) -> RunVerdict:
    """Add to a verdict that blames a fusion pass whether the parts compute right in a run without it.

    Where a part is wrong there too, the pass is innocent: that op's kernel is to blame.
    """
    first = run_verdict.verdict.first
    if first is None or first.cause is not Cause.FUSION:
        return run_verdict
    op = next(op for op in subject.file.ops if op.name == first.culprit)
    original_ops = set(originals(op))
    own = first.result.own if first.result is not None else 0.0
    for run in others:
        parts = [part for part in run.file.ops if originals(part) and original_ops.issuperset(originals(part))]
        made = {name for part in parts for name in originals(part)}
        if run.leaf is None or made != original_ops or any(first.pass_name in part.pass_names for part in parts):
            continue
        recomputer = Recomputer(RunValues(run.leaf, run.file, subject.benchmark), subject.file)
        judged = [recomputer.examine(part) for part in parts]
        if not {result.state for result in judged} <= {State.RIGHT, State.WRONG}:
            continue
        wrong = [result.name for result in judged if result.state is State.WRONG and result.own >= _SAME_SIZE * own]
        facts = [Fact(name="parts_right", value=not wrong), Fact(name="parts_run", value=run.number)]
        if not wrong:
            return replace(run_verdict, verdict=_with_facts(run_verdict.verdict, *facts))
        verdict = _with_facts(run_verdict.verdict, *facts, Fact(name="wrong_part", value=wrong[0]))
        return replace(run_verdict, verdict=_without_pass(verdict))
    return run_verdict


def _without_pass(verdict: Verdict) -> Verdict:
    """Return the verdict that blames a kernel for what its first suspect blames a pass for."""
    first = replace(verdict.suspects[0], cause=Cause.KERNEL, pass_name="")
    suspects = (first, *verdict.suspects[1:])
    steps = plan(first, suspects, verdict.has_benchmark)
    return replace(verdict, suspects=suspects, cause=first.cause, pass_name=None, next=steps)


def _with_facts(verdict: Verdict, *more: Fact) -> Verdict:
    """Return the verdict with more facts of its first suspect."""
    first = verdict.suspects[0]
    first = replace(first, facts=(*first.facts, *more))
    return replace(verdict, suspects=(first, *verdict.suspects[1:]), facts=first.facts)


def _with_comparison(run_verdict: RunVerdict) -> RunVerdict:
    """Return the verdict on a run that was not compared itself, with the step that compares it with the benchmark."""
    verdict = run_verdict.verdict
    if not verdict.has_benchmark or run_verdict.run is None:
        return run_verdict
    step = Step(do=Action.COMPARE_RUN, command=("ac", "-c", "-lt", f"debug_{run_verdict.run}"))
    return replace(run_verdict, verdict=replace(verdict, next=(*verdict.next[:-1], step, verdict.next[-1])))


def _benchmark(
    dump: DumpLeaf, golden: GoldenFiles | Run | None, others: Sequence[RunGraph]
) -> tuple[BenchmarkSide, BenchmarkSide | None]:
    """Return what the dump is held against, and another NPU run that tells of random numbers."""
    if isinstance(golden, GoldenFiles):
        return golden, None
    leaf: DumpLeaf | None = None
    if golden is not None:
        with suppress(DataNotFoundError):
            leaf = golden_leaf(golden, dump, 0, 1)
    other = next(
        (run for run in others if leaf is None or any(own_leaf.path == leaf.path for own_leaf in run.leaves)), None
    )
    if other is None or other.leaf is None:
        return NoBenchmark(), None
    return NoBenchmark(), GraphDumps(leaf or other.leaf, other.file)


def _cosines(rows: Sequence[Row], file: GraphFile, *, is_other: bool = False) -> Mapping[tuple[str, str], float]:
    """Return the cosines of a comparison by op and slot, of ops of the other of two NPU runs if `is_other`."""
    name_of = names_in(file)
    return {
        (name_of(row.pair.golden_ops[0] if is_other else row.op_name), row.slot): nan if row.mismatches else row.cosine
        for row in rows
        if row.cosine is not None and not row.is_scalar and (len(row.pair.golden_ops) == 1 or not is_other)
    }


def _cosines_of_other(
    golden: GoldenFiles | Run | None, rows: Sequence[Row], run: RunGraph
) -> Mapping[tuple[str, str], float]:
    """Return the cosines that a run has as the other side of the comparison; none where it was not compared."""
    if not isinstance(golden, Run) or run.leaf is None or run.leaf.path not in {leaf.path for leaf in golden.leaves}:
        return {}
    return _cosines(rows, run.file, is_other=True)
