"""The steps one after the other: judge each op alone, look at copies and sources, name the causes, rank, plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from precision_tool.lib.engine.scheduler import ALL_CORES, Resources
from precision_tool.lib.model.graph import GraphFile
from precision_tool.lib.model.run import DumpLeaf
from precision_tool.lib.settings import DEFAULT_THRESHOLD
from precision_tool.lib.sources.dumps import BenchmarkSide, DumpIndex, NoBenchmark
from precision_tool.lib.verdict.causes import Explainer, Findings
from precision_tool.lib.verdict.compared import Compared
from precision_tool.lib.verdict.copies import Departure, departure, first_unsteady
from precision_tool.lib.verdict.departed import is_random
from precision_tool.lib.verdict.gaps import gaps
from precision_tool.lib.verdict.judge import Judge
from precision_tool.lib.verdict.judgement import OpJudgement, State, is_late, tally
from precision_tool.lib.verdict.memory import Overwritten, ToldBy, overwritten
from precision_tool.lib.verdict.model import Cause, Fact, Flag, Lack, Proof, Suspect, Unseen, Verdict, WorstCosine
from precision_tool.lib.verdict.plan import plan
from precision_tool.lib.verdict.scales import known_scales
from precision_tool.lib.verdict.spread import judge_ops
from precision_tool.lib.verdict.trace import Flow
from precision_tool.lib.verdict.values import DATA_TYPES, PARAMETER_TYPES, Root, RunValues, Slot

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
