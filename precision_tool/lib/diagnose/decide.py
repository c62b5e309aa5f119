"""Several ops of which no file was dumped, judged as one: from what is known before them to what is known behind.

What they put out between is not known, so that a wrong result accuses all of them together.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from math import isfinite, nan

import numpy as np

from precision_tool.lib.compare.scheduler import ALL_CORES, Resources
from precision_tool.lib.data.dumped_ops import BenchmarkSide, DumpIndex, GoldenFiles, NoBenchmark
from precision_tool.lib.data.graph_catalog import RunGraph, names_in
from precision_tool.lib.data.inputs import golden_leaf
from precision_tool.lib.data.matching import GraphDumps
from precision_tool.lib.data.origins import originals
from precision_tool.lib.data.settings import DEFAULT_THRESHOLD
from precision_tool.lib.diagnose.causes import Explainer, Findings
from precision_tool.lib.diagnose.divergence import Flow, is_random, known_scales
from precision_tool.lib.diagnose.error_shape import UNIT, misfit
from precision_tool.lib.diagnose.formulas import Formula, Ref, Stage
from precision_tool.lib.diagnose.judge import Judge, largest_of, slot_of
from precision_tool.lib.diagnose.judging_in_parallel import judge_ops
from precision_tool.lib.diagnose.op_values import (
    DATA_TYPES,
    PARAMETER_TYPES,
    Compared,
    NoValueError,
    Root,
    RunValues,
    Slot,
)
from precision_tool.lib.diagnose.overwritten_memory import (
    Departure,
    Overwritten,
    ToldBy,
    departure,
    first_unsteady,
    is_repeated,
    overwritten,
)
from precision_tool.lib.diagnose.plan import plan
from precision_tool.lib.diagnose.sampling import narrowing
from precision_tool.lib.diagnose.verdict_model import (
    Cause,
    Do,
    Fact,
    Flag,
    Gap,
    Lack,
    OpJudgement,
    Proof,
    SlotJudgement,
    State,
    Step,
    Suspect,
    Unseen,
    Verdict,
    WorstCosine,
    is_late,
    tally,
)
from precision_tool.lib.errors import DataNotFoundError, PrecisionToolError
from precision_tool.lib.model.graph import GraphFile, Op
from precision_tool.lib.model.run import DumpLeaf, Run
from precision_tool.lib.model.table import Row
from precision_tool.lib.ops.base import Input, NotComputedError, Output, OutputSpec

#: Ops that are judged as one at most, elements that they are fed together, and multiplications that this may take.
_MOST_OPS, _MOST_ELEMENTS, _MOST_WORK = 6, 1 << 23, 1e9
#: Results between them are rounded to types of their own, whose effect is only estimated: they are wrong from here on,
#: as a relative distance and in units of what rounding explains.
_FAR, _BEYOND = 0.02, 20.0


def gaps(judge: Judge, judged: Sequence[OpJudgement]) -> Iterator[Gap]:
    """Every op that could not be recomputed for want of its inputs, with those before it that make them."""
    computing = {id(op) for op in judge.computing()}
    for one in judged:
        if time.monotonic() > judge.deadline:
            return
        if one.state is not State.NOT_RECOMPUTED or is_random(one.op) or one.is_dumped:
            continue
        try:
            with np.errstate(all="ignore"), judge.values.reading():
                found = _judged(judge, computing, one)
        except (NotComputedError, NoValueError, PrecisionToolError, MemoryError):
            continue
        except (ValueError, IndexError, TypeError, KeyError):
            continue  # a formula that the shapes contradict
        if found is not None:
            yield found


@dataclass(slots=True)
class _Chain:
    """The formulas of several ops, put together."""

    judge: Judge
    computing: set[int]
    stages: list[Stage] = field(default_factory=list)
    inputs: dict[int, Input] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    types: set[str] = field(default_factory=set)
    borrowed: list[Op] = field(default_factory=list)
    elements: int = 0
    _done: dict[int, dict[int, Ref]] = field(default_factory=dict)

    def add(self, op: Op) -> dict[int, Ref]:
        """Puts an op behind those that make what it is fed; its outputs by slot. NotComputedError says why not."""
        known = self._done.get(id(op))
        if known is not None:
            return known
        if len(self.ops) >= _MOST_OPS or id(op) not in self.computing or is_random(op):
            raise NotComputedError("no_formula", op_type=op.type)
        self.ops.append(op)
        self.elements += sum(
            tensor.size
            for root in self.judge.values.producers(op)
            for _, tensor in islice(self.judge.values.copies(root), 1)
        )
        if self.elements > _MOST_ELEMENTS:
            raise NotComputedError("too_many_elements", number=self.elements)
        fed = self.judge.fed(op)
        refs: dict[int, Ref] = {}
        for slot in self.judge.values.input_slots(op):
            if slot.index in fed.inputs:
                number = len(self.inputs)
                self.inputs[number] = fed.inputs[slot.index]
                refs[slot.index] = Ref(number)
            root = self.judge.values.fed_by.get((id(op), slot.graph_index))
            parameter = self.judge.values.parameter_of(root) if root is not None else None
            if parameter is not None and fed.elsewhere.get(slot.index) == "benchmark":
                self.borrowed.append(parameter)
            if slot.index in fed.inputs:
                continue
            if root is None:
                raise NotComputedError("fed_unknown", name=op.name, slot=slot.index)
            refs[slot.index] = self._output(root, slot)
        formula = next(self.judge.ways.known(op, fed), None)
        if formula is None or formula.lent:
            raise NotComputedError("fused_unknown")
        base = len(self.stages)
        for stage in formula.stages:
            args = tuple(ref and (refs[ref.slot] if ref.stage is None else _later(ref, base)) for ref in stage.args)
            self.stages.append(replace(stage, args=args))
        self.types |= {desc.dtype for desc in op.output_descs[:1] if desc.dtype in UNIT}
        self._done[id(op)] = {slot: _later(ref, base) for slot, ref in formula.outputs.items()}
        return self._done[id(op)]

    def _output(self, root: Root, slot: Slot) -> Ref:
        """What a slot is fed, in the shape that its op takes: ops that only give it another one are passed by."""
        made = self.add(root.op)
        if root.index not in made:
            raise NotComputedError("fed_without_formula", op_type=root.op.type)
        ref = made[root.index]
        put_out = root.op.output_descs[root.index].origin_shape if root.index < len(root.op.output_descs) else None
        taken = slot.desc.origin_shape if slot.desc is not None else None
        if taken is None or put_out is None or taken == put_out or min(taken, default=0) < 0:
            return ref
        self.stages.append(Stage(name=slot.name, op_type="Reshape", args=(ref,), wanted=(OutputSpec(shape=taken),)))
        return Ref(0, len(self.stages) - 1)


def _later(ref: Ref, base: int) -> Ref:
    return Ref(ref.slot, (ref.stage or 0) + base)


def _judged(judge: Judge, computing: set[int], one: OpJudgement) -> Gap | None:
    tensors = judge.outputs(one.op)
    if not tensors:
        return None
    chain = _Chain(judge, computing)
    outputs = chain.add(one.op)
    if len(chain.ops) < 2 or not all(isfinite(largest_of(fed)) for fed in chain.inputs.values()):
        return None
    formula = Formula(stages=tuple(chain.stages), outputs={slot: outputs[slot] for slot in tensors if slot in outputs})
    if not formula.outputs or formula.work(chain.inputs) > _MOST_WORK:
        return None
    coarsest = max(chain.types, key=lambda dtype: UNIT[dtype], default="float32")
    true, stored = formula.run(chain.inputs), formula.run(chain.inputs, coarsest)
    slots, is_wrong = [], False
    for slot, out in true.items():
        descs = one.op.output_descs
        have = judge.values.load(tensors[slot], descs[slot] if slot < len(descs) else None)
        found = _slot(slot, have, out, stored[slot], formula, chain.inputs, coarsest)
        if found is None:
            return None
        slots.append(found)
        is_wrong |= bool(found.beyond) and found.own > max(_FAR, _BEYOND * found.rounding)
    ops = sorted(chain.ops, key=lambda op: judge.values.order[id(op)])
    is_right = not any(found.beyond for found in slots)
    state = State.WRONG if is_wrong else State.RIGHT if is_right else State.DOUBTFUL
    return Gap(
        ops=ops,
        judgement=replace(one, state=state, reason=None, how=formula.how, slots=tuple(slots)),
        borrowed=chain.borrowed,
    )


def _slot(
    slot: int, have: Input, out: Output, stored: Output, formula: Formula, inputs: dict[int, Input], coarsest: str
) -> SlotJudgement | None:
    """One output held against the true one; what rounding between makes of it is that of all elements together.

    It is as exact as the `coarsest` type between.
    """
    if have.array.size != out.array.size or have.dtype not in UNIT or have.array.dtype.kind == "c":
        return None
    off = np.asarray(stored.array, np.float64).reshape(-1) - np.asarray(out.array, np.float64).reshape(-1)
    noise = np.full(off.shape, np.sqrt(np.mean(np.square(off))))
    fit = misfit(have.array, out, have.dtype, formula.kind, u_in=narrowing(formula, inputs), noise=noise)
    if not fit.compared.any():
        return None
    return slot_of(slot, replace(have, dtype=coarsest), out, fit, formula.kind)


# --- The steps one after the other: judge each op alone, look at copies and sources, name the causes, rank, plan ---


#: Of the run, how long recomputing may take.
SECONDS = 300.0
#: A cosine above this is that of a tensor rounded once.
_NEAR_ONE = 1 - 1e-6
#: Confidence in a clean verdict of which every op was recomputed.
_CLEAN = 0.97
#: What an op of which only some elements were recomputed takes away from it where no benchmark tells of the others.
_IN_PART = 0.5


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A run to judge: its dump, its graph, the benchmark, and a graph without fusion if there is one.

    `other` is another NPU run of the same script: it tells of random numbers, and of data and weights that differ
    between the two, but is as likely to be wrong as this one.

    `cosines` are the outputs that were compared, by op name and slot ("output:0").
    """

    leaf: DumpLeaf
    file: GraphFile
    benchmark: BenchmarkSide
    unfused: GraphFile | None = None
    other: BenchmarkSide | None = None
    #: The dump's files as far as they were opened.
    dumps: DumpIndex | None = None
    number: int | None = None
    cosines: Mapping[tuple[str, str], float] | None = None
    #: What comparing it with the benchmark showed.
    seen: Compared | None = None
    #: Ops that the comparison alone would suspect, the likeliest first.
    compared: Sequence[str] = ()
    threshold: float = DEFAULT_THRESHOLD
    #: What overflow status files say, by name of the op.
    flagged: Mapping[str, Flag] = field(default_factory=dict)
    #: Whether an earlier step of the same training is judged too.
    is_later: bool = False


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The verdict on one run with every op's judgement behind it: its number, and paths of its dump and its graph.

    `beside` are runs that were judged on the way, and are not to blame.
    """

    verdict: Verdict
    ops: Sequence[OpJudgement] = field(repr=False)
    run: int | None
    npu: str
    graph: str
    beside: Sequence[Judged] = field(default=(), repr=False)
    #: The loss scale by the op that holds it, as far as it shows.
    scales: Mapping[str, float] = field(default_factory=dict)


def judge_run(
    subject: Subject,
    *,
    seconds: float = SECONDS,
    resources: Resources = ALL_CORES,
) -> Judged:
    """Return the verdict on one run. Progress is counted in ops."""
    values = RunValues(subject.leaf, subject.file, subject.benchmark, dumps=subject.dumps, compared=subject.seen)
    judge = Judge(values, subject.unfused, seconds=seconds)
    judged = judge.judge_again(judge_ops(judge, resources))
    sides = values
    if subject.other is not None and isinstance(subject.benchmark, NoBenchmark):
        sides = RunValues(subject.leaf, subject.file, subject.other, dumps=values.dumps)
    again = _JudgedAgain(judge)
    memory = overwritten(values, again.is_right)
    judged = again.by_true_copies(judged, memory)
    together = tuple(gaps(judge, judged))
    right = {id(one.judgement.op): one.judgement for one in together if one.judgement.state is State.RIGHT}
    judged = [right.get(id(one.op), one) for one in judged]
    findings = Findings(
        gaps=together,
        judged=tuple(judged),
        flagged=subject.flagged,
        overwritten=memory,
        unsettled=len(again.unsettled),
        departures=tuple(departures(sides, values)),
        is_later=subject.is_later,
    )
    explainer = Explainer(values, findings)
    suspects = [_with_followers(one, values, explainer, subject) for one in explainer.suspects(subject.compared)]
    scale = next((one for one in suspects if one.cause is Cause.LOSS_SCALE), None)
    return Judged(
        verdict=_verdict(subject, findings, suspects, _worst(subject, values)), ops=tuple(judged),
        run=subject.number, npu=subject.leaf.path, graph=subject.file.path, scales=known_scales(values, scale),
    )  # fmt: skip


class _JudgedAgain:
    """Judges ops that were not dumped by another of the copies that their readers have."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._computing = {id(op) for op in judge.computing()}
        #: Tensors of which recomputing might have told the true copy, had there been time.
        self.unsettled: set[tuple[int, int]] = set()

    def is_right(self, root: Root, copy: Slot) -> bool | None:
        """Whether an op is right if a reader's copy is what it put out; None where it cannot be recomputed."""
        if id(root.op) not in self._computing:
            return None
        self._judge.values.take_for_true(root, copy)
        found = self._judge.judge(root.op)
        self._judge.values.take_for_true(root, None)
        if is_late(found):
            self.unsettled.add(root.key)
        return None if found.state is State.NOT_RECOMPUTED else found.state is State.RIGHT

    def by_true_copies(self, judged: Sequence[OpJudgement], memory: Sequence[Overwritten]) -> list[OpJudgement]:
        """The judgements with those done again whose readers do not all have the same: of the op and of all it feeds.

        Where there is no time for that, the judgement that there is stays.
        """
        disputed = {one.root.key: one for one in memory if one.told_by is not ToldBy.PRODUCER}
        ops = {id(one.producer) for one in disputed.values()}
        for one in disputed.values():
            self._judge.values.take_for_true(one.root, one.true)
            ops |= {id(slot.op) for slot in self._judge.values.readers.get(one.root.key, ())}
        return [self._again(one) if id(one.op) in ops and _is_fed_elsewhere(one) else one for one in judged]

    def _again(self, one: OpJudgement) -> OpJudgement:
        found = self._judge.judge(one.op)
        return one if is_late(found) else found


def _is_fed_elsewhere(one: OpJudgement) -> bool:
    """Whether an op was judged by what others have of what it read or put out."""
    return not one.is_dumped or any(source == "reader" for _, source in one.from_elsewhere)


def unsteady(subject: Subject, other: Subject, clean: Judged) -> Judged | None:
    """The verdict where no run computes wrong, and an op computes differently in two; None if there is none."""
    values = RunValues(subject.leaf, subject.file, subject.benchmark, dumps=subject.dumps)
    found = first_unsteady(values, RunValues(other.leaf, other.file, other.benchmark, dumps=other.dumps))
    if found is None:
        return None
    facts = (
        Fact(name="distance", value=float(f"{found.distance:.6g}")), Fact(name="output", value=found.output),
        Fact(name="different_elements", value=found.different), Fact(name="elements", value=found.size),
        Fact(name="same_inputs", value=True),
    )  # fmt: skip
    suspect = Suspect(
        culprit=found.op.name, cause=Cause.RANDOM, proof=Proof.RUNS, confidence=0.7,
        number=values.order[id(found.op)], op_type=found.op.type, facts=facts,
    )  # fmt: skip
    behind = Flow(values).behind([found.op])
    suspect = replace(suspect, followers=len(behind), index=values.indices[id(found.op)])
    verdict = replace(
        clean.verdict, culprit=suspect.culprit, cause=suspect.cause, confidence=suspect.confidence,
        ranking=(suspect.culprit,), suspects=(suspect,), facts=facts,
        next=plan(suspect, (suspect,), clean.verdict.has_benchmark),
    )  # fmt: skip
    return replace(clean, verdict=verdict)


def departures(values: RunValues, judged: RunValues) -> list[Departure]:
    """Data, variables, constants and random numbers that differ from the benchmark's; of the ops of `judged`."""
    if isinstance(values.benchmark, NoBenchmark):
        return []
    found = []
    for op in values.ops:
        if op.type not in DATA_TYPES and op.type not in PARAMETER_TYPES and not is_random(op):
            continue
        for index in range(max(len(op.output_descs), 1)):
            one = departure(values, Root(op, index))
            if one is not None:
                found.append(replace(one, root=Root(judged.ops[values.order[id(op)]], index)))
    return found


def _with_followers(one: Suspect, values: RunValues, explainer: Explainer, subject: Subject) -> Suspect:
    names = {one.culprit, *one.also} - {one.fact("producer")}
    behind = explainer.flow.behind(op for op in values.ops if op.name in names)
    cosines = subject.cosines or {}
    low: dict[str, float] = {}
    for (name, slot), cosine in cosines.items():
        if slot.startswith("output"):
            low[name] = min(low.get(name, 1.0), cosine if cosine == cosine else -1.0)
    below = sum(low.get(op.name, 1.0) < subject.threshold for op in behind.values())
    index = values.indices[id(values.ops[one.number])]
    return replace(one, followers=len(behind), below=below, index=index)


def _verdict(subject: Subject, findings: Findings, suspects: Sequence[Suspect], worst: WorstCosine | None) -> Verdict:
    counts = tally(findings.judged)
    has_benchmark = not isinstance(subject.benchmark, NoBenchmark)
    partly = _right_in_part(subject, findings.judged)
    base = Verdict(
        culprit=None, cause=Cause.NONE, confidence=0.0, suspects=tuple(suspects), tally=counts, run=subject.number,
        has_benchmark=has_benchmark, worst=worst,
        gaps=(
            *_unread(subject), *_gaps(findings.judged), *_late(findings.judged), *_unsettled(findings.unsettled),
            *_sampled(partly, findings.judged, has_benchmark),
        ),
    )  # fmt: skip
    guilty = [one for one in suspects if one.cause is not Cause.LOSS_SCALE]
    if not guilty:
        unseen = 0.0 if has_benchmark else _IN_PART * sum(not one.is_summed for one in partly)
        unseen += len(_unread_ops(subject))
        seen = max(counts.right - unseen, 0.0) / counts.ops if counts.ops else 0.0
        cause = suspects[0].cause if suspects else Cause.NONE
        facts = suspects[0].facts if suspects else (Fact(name="recomputed", value=counts.right),)
        return replace(
            base, cause=cause, confidence=_CLEAN * seen, facts=facts,
            next=plan(None, suspects, has_benchmark, findings.judged),
        )  # fmt: skip
    first = guilty[0]
    names = dict.fromkeys(name for one in guilty for name in (one.culprit,))
    names |= dict.fromkeys(name for one in guilty for name in one.also)
    return replace(
        base,
        culprit=first.culprit,
        cause=first.cause,
        confidence=first.confidence,
        pass_name=first.pass_name or None,
        ranking=tuple(names),
        suspects=tuple(guilty),
        facts=first.facts,
        next=plan(first, suspects, has_benchmark),
    )


def _unread_ops(subject: Subject) -> Sequence[str]:
    """Ops of which something was dumped that cannot be read."""
    return subject.seen.unread if subject.seen is not None else ()


def _unread(subject: Subject) -> tuple[Unseen, ...]:
    """That files could not be read, of which the verdict goes by what other ops have of them."""
    unread = _unread_ops(subject)
    return (Unseen(lack=Lack.NOT_READ, count=len(unread), op=unread[0]),) if unread else ()


def _gaps(judged: Sequence[OpJudgement]) -> tuple[Unseen, ...]:
    """What a dump of everything would have told."""
    missing = [one for one in judged if not one.is_dumped]
    if not missing:
        return ()
    unknown = sum(one.state is State.NOT_RECOMPUTED for one in missing)
    return (Unseen(lack=Lack.NOT_DUMPED, count=len(missing), ops=len(judged), unknown=unknown),)


def _late(judged: Sequence[OpJudgement]) -> tuple[Unseen, ...]:
    """That the time was over before every op was recomputed."""
    late = [one for one in judged if is_late(one)]
    return (Unseen(lack=Lack.OUT_OF_TIME, count=len(late), ops=len(judged)),) if late else ()


def _unsettled(tensors: int) -> tuple[Unseen, ...]:
    """That the time was over before recomputing could tell which copies of a tensor are the true ones."""
    return (Unseen(lack=Lack.UNSETTLED, count=tensors),) if tensors else ()


def _right_in_part(subject: Subject, judged: Sequence[OpJudgement]) -> list[OpJudgement]:
    """The ops of which only some elements were recomputed, without those whose others the comparison shows to be right.

    These are right where they were looked at.
    """
    quiet = subject.seen.quiet if subject.seen is not None else frozenset()
    return [one for one in judged if one.state is State.RIGHT and one.is_sampled and one.name not in quiet]


def _sampled(partly: Sequence[OpJudgement], judged: Sequence[OpJudgement], has_benchmark: bool) -> tuple[Unseen, ...]:
    """That some ops were recomputed in part only, where a fault of few elements may not show."""
    if not partly:
        return ()
    by_sums = Lack.SAMPLED_SUMS if all(one.is_summed for one in partly) else Lack.SAMPLED
    lack = Lack.SAMPLED_FARTHEST if has_benchmark else by_sums
    return (Unseen(lack=lack, count=len(partly), ops=len(judged)),)


def _worst(subject: Subject, values: RunValues) -> WorstCosine | None:
    """The worst cosine of an output, and where the distance behind it begins."""
    outputs = {key: value for key, value in (subject.cosines or {}).items() if key[1].startswith("output")}
    if not outputs:
        return None
    (name, slot), cosine = min(outputs.items(), key=lambda item: item[1] if item[1] == item[1] else -2.0)
    below = len({key[0] for key, value in outputs.items() if not value >= subject.threshold})
    by_name = {op.name: op for op in values.ops}
    op, seen = by_name.get(name), set()
    begin = name
    while op is not None and id(op) not in seen:
        seen.add(id(op))
        begin = op.name
        fed = [(outputs.get((root.op.name, f"output:{root.index}"), 1.0), root.op) for root in values.producers(op)]
        lowest = min(fed, key=lambda one: one[0], default=(1.0, None))
        if not lowest[0] < _NEAR_ONE:
            break
        op = lowest[1]
    return WorstCosine(op_name=name, slot=slot, cosine=cosine, below=below, grows_from=begin if begin != name else "")


# --- The verdicts on the runs of a data folder: which runs there are to judge, and which of two is to blame ---


#: Of the runs beside the one that is asked about, how many are judged.
_OTHERS = 2


@dataclass(frozen=True, kw_only=True)
class Request:
    """A dump to judge, and what is known of it."""

    leaf: DumpLeaf
    file: GraphFile
    golden: GoldenFiles | Run | None = None
    #: The dump's files as far as they were opened.
    dumps: DumpIndex | None = None
    rows: Sequence[Row] = ()
    #: Ops that the comparison alone would suspect, the likeliest first.
    compared: Sequence[str] = ()
    threshold: float = DEFAULT_THRESHOLD
    #: What overflow status files of the run say, by name of the op.
    flagged: Mapping[str, Flag] = field(default_factory=dict)
    #: Whether an earlier step of the same training is judged too.
    is_later: bool = False


def judge(
    request: Request,
    runs: Sequence[RunGraph],
    *,
    seconds: float = SECONDS,
    resources: Resources = ALL_CORES,
) -> Judged:
    """The verdict on a dump; where nothing in it computes wrong, and in another run of `runs` something does, on that.

    `runs` are the graphs of the data folder's runs.
    """
    mine = next((run for run in runs if any(leaf.path == request.leaf.path for leaf in run.leaves)), None)
    number = mine.number if mine is not None else None
    others = [run for run in runs if run.leaf is not None and run is not mine and run.number != number]
    others = [run for run in others if mine is not None]
    benchmark, other_run = _benchmark(request, others)
    subject = Subject(
        leaf=request.leaf, file=request.file, benchmark=benchmark, unfused=others[0].file if others else None,
        dumps=request.dumps, other=other_run, number=number, cosines=_cosines(request.rows, request.file),
        compared=request.compared, threshold=request.threshold, flagged=request.flagged, is_later=request.is_later,
        seen=Compared.of(request.rows) if isinstance(benchmark, GoldenFiles) else None,
    )  # fmt: skip
    first = judge_run(subject, seconds=seconds, resources=resources)
    if first.verdict.culprit is not None:
        return _with_parts(_with_repetition(first, subject, others), subject, others)
    beside: list[Judged] = []
    for run in others[:_OTHERS]:
        assert run.leaf is not None
        other = Subject(
            leaf=run.leaf, file=run.file, benchmark=benchmark, unfused=request.file, number=run.number,
            cosines=_cosines_of_other(request, run), threshold=request.threshold,
        )  # fmt: skip
        found = judge_run(other, seconds=seconds, resources=resources)
        if found.verdict.culprit is not None:
            found = _with_parts(found, other, [one for one in runs if one is not run])
            return replace(_with_comparison(found), beside=(first, *beside))
        beside.append(found)
        differs = unsteady(subject, other, first)
        if differs is not None:
            return replace(differs, beside=beside)
    return replace(first, beside=beside)


def _with_repetition(found: Judged, subject: Subject, others: Sequence[RunGraph]) -> Judged:
    """A verdict that blames random numbers, with what another run says: whether they are drawn anew each time."""
    first = found.verdict.first
    other = next((run for run in others if run.leaf is not None), None)
    if (
        first is None
        or other is None
        or other.leaf is None
        or not (first.cause is Cause.RANDOM and first.fact("seen_in"))
    ):
        return found
    op = next(op for op in subject.file.ops if op.name == first.culprit)
    mine = RunValues(subject.leaf, subject.file, NoBenchmark(), dumps=subject.dumps, near=op)
    again = is_repeated(mine, RunValues(other.leaf, other.file, NoBenchmark()), Root(op, first.fact("output") or 0))
    if again is None:
        return found
    verdict = _with_facts(found.verdict, Fact(name="repeats", value=again), Fact(name="other_run", value=other.number))
    steps = plan(verdict.suspects[0], verdict.suspects, verdict.has_benchmark)
    return replace(found, verdict=replace(verdict, next=steps))


def _with_parts(found: Judged, subject: Subject, others: Sequence[RunGraph]) -> Judged:
    """A verdict that blames a fusion pass, with what a run without it says: whether the parts compute right there."""
    first = found.verdict.first
    if first is None or first.cause is not Cause.FUSION:
        return found
    op = next(op for op in subject.file.ops if op.name == first.culprit)
    wanted = set(originals(op))
    for run in others:
        parts = [one for one in run.file.ops if originals(one) and wanted.issuperset(originals(one))]
        made = {name for one in parts for name in originals(one)}
        if run.leaf is None or made != wanted or any(first.pass_name in one.pass_names for one in parts):
            continue
        judge = Judge(RunValues(run.leaf, run.file, subject.benchmark), subject.file)
        states = {judge.examine(one).state for one in parts}
        if not states <= {State.RIGHT, State.WRONG}:
            continue
        right = Fact(name="parts_right", value=states == {State.RIGHT})
        verdict = _with_facts(found.verdict, right, Fact(name="parts_run", value=run.number))
        return replace(found, verdict=verdict)
    return found


def _with_facts(verdict: Verdict, *more: Fact) -> Verdict:
    """The verdict with more facts of its first suspect."""
    first = verdict.suspects[0]
    first = replace(first, facts=(*first.facts, *more))
    return replace(verdict, suspects=(first, *verdict.suspects[1:]), facts=first.facts)


def _with_comparison(found: Judged) -> Judged:
    """The verdict on a run that was not compared itself, with the step that compares it with the benchmark."""
    verdict = found.verdict
    if not verdict.has_benchmark or found.run is None:
        return found
    step = Step(do=Do.COMPARE_RUN, command=("ac", "-c", "-lt", f"debug_{found.run}"))
    return replace(found, verdict=replace(verdict, next=(*verdict.next[:-1], step, verdict.next[-1])))


def _benchmark(request: Request, others: Sequence[RunGraph]) -> tuple[BenchmarkSide, BenchmarkSide | None]:
    """What the dump is held against, and another NPU run that tells of random numbers."""
    golden = request.golden
    if isinstance(golden, GoldenFiles):
        return golden, None
    leaf: DumpLeaf | None = None
    if golden is not None:
        with suppress(DataNotFoundError):
            leaf = golden_leaf(golden, request.leaf, 0, 1)
    other = next((run for run in others if leaf is None or any(one.path == leaf.path for one in run.leaves)), None)
    if other is None or other.leaf is None:
        return NoBenchmark(), None
    return NoBenchmark(), GraphDumps(leaf or other.leaf, other.file)


def _cosines(rows: Sequence[Row], file: GraphFile, *, is_other: bool = False) -> Mapping[tuple[str, str], float]:
    """The cosines of a comparison by op and slot, of ops of the other of two NPU runs if `is_other`."""
    name_of = names_in(file)
    return {
        (name_of(row.pair.golden_ops[0] if is_other else row.op_name), row.slot): nan if row.mismatches else row.cosine
        for row in rows
        if row.cosine is not None and not row.is_scalar and (len(row.pair.golden_ops) == 1 or not is_other)
    }


def _cosines_of_other(request: Request, run: RunGraph) -> Mapping[tuple[str, str], float]:
    """The cosines that a run has as the other side of the comparison; none where it was not compared."""
    golden = request.golden
    if not isinstance(golden, Run) or run.leaf is None or run.leaf.path not in {leaf.path for leaf in golden.leaves}:
        return {}
    return _cosines(request.rows, run.file, is_other=True)
