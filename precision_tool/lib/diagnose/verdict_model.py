"""Values of the verdict: results of recomputed ops, suspects, facts, steps. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from precision_tool.lib.diagnose.error_shape import Places
from precision_tool.lib.messages import Message
from precision_tool.lib.model.documents import NOT_STORED
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.op_verdict import OpVerdict
from precision_tool.lib.model.records import record
from precision_tool.lib.ops.base import Kind

if TYPE_CHECKING:
    from precision_tool.lib.diagnose.formulas import Formula


class State(StrEnum):
    """Outcome of recomputing an op."""

    RIGHT = "right"
    WRONG = "wrong"
    #: Off by more than rounding, but so little, or on such doubtful ground, that it accuses nobody.
    DOUBTFUL = "doubtful"
    NOT_RECOMPUTED = "not_recomputed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotResult:
    """One output, recomputed from the inputs. Distances are relative, ‖x − y‖ / ‖y‖.

    `own` is y_N − f(x_N), `rounding` what rounding makes of it (rms), `worst` the largest error of an element over its
    rms of rounding, `slack` what of that is allowed, `beyond` how many elements exceed it. `overflowed` counts the
    elements whose true result is beyond the type's range, up to `largest`. `inherited` is f(x_N) − f(x_B),
    `benchmark_own` y_B − f(x_B) and `amplification` κ (VERDICT.md §1); None where the benchmark does not tell.
    """

    slot: int
    dtype: str
    size: int
    kind: Kind
    own: float
    rounding: float
    worst: float
    slack: float
    beyond: int
    exact_share: float
    overflowed: int = 0
    largest: float = 0.0
    #: Elements that were put out as the largest number of the type, or beyond it, whatever the true result.
    at_limit: int = 0
    not_finite: int = 0
    #: Elements that are NaN, whether or not they should be.
    nans: int = 0
    places: Places | None = None
    #: Of an output with wrong elements, the cosine to the recomputed one.
    cosine: float | None = None
    inherited: float | None = None
    benchmark_own: float | None = None
    amplification: float | None = None
    #: Elements that were recomputed, where the op is too large for all of them.
    sampled: int | None = None
    #: Whether the sums of all rows of such an op are right, over all columns.
    is_summed: bool = False
    #: Of long sums with wrong elements, whether these are off by more than any chain of additions in float32.
    is_beyond_chains: bool | None = None
    #: The error beyond rounding, relative to all that goes into an element, of all but one in ten thousand elements.
    imprecision: float = 0.0
    #: Of the elements beyond rounding those that are zero where the result is subnormal, and subnormal elements.
    flushed: int = 0
    subnormal: int = 0
    #: The imprecision of the device that was allowed for.
    tolerance: float = 0.0
    #: Of a function of one input that is off, the relative error by the input's value (`device_profile.curve_of`).
    curve: tuple[tuple[float, float], ...] = ()
    #: The largest error that this does not explain, over what rounding allows.
    excess: float = 0.0

    @property
    def looked_at(self) -> int:
        """Of how many elements `beyond` counts the wrong ones."""
        return self.size if self.sampled is None else self.sampled


@record(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Outcome of recomputing an op, as it can be stored. `number` is the op's place in the order of execution.

    `how` are the types of the ops that were recomputed; `reason` says why it was not, or why it is doubtful.
    `finite_inputs` is False if an input of an op that is not plainly right has numbers that are not finite.
    `is_confirmed` tells that the benchmark obeys the formula as well (None: not asked, or no benchmark), or, with
    `is_by_another`, that another op of the run that is fused in the same way does; `is_guessed` that how its original
    ops hang together is not known for sure. `variant` is the argument with which a wrong op would be right: its name,
    what was recorded, and what fits.
    """

    number: int
    state: State
    how: tuple[str, ...] = ()
    reason: Message | None = None
    slots: tuple[SlotResult, ...] = ()
    finite_inputs: bool = True
    #: Where inputs are from that its own dump lacks, by slot: "producer", "reader", "benchmark".
    from_elsewhere: tuple[tuple[int, str], ...] = ()
    is_confirmed: bool | None = None
    is_by_another: bool = False
    #: Whether it is off by more than rounding, and by no more than the device's imprecision.
    is_imprecise: bool = False
    is_guessed: bool = False
    variant: tuple[str, str, str] | None = None
    is_dumped: bool = True
    seconds: float = 0.0


@record(frozen=True, slots=True, kw_only=True)
class OpResult(Judgement):
    """One op of the run with its judgement."""

    op: Op
    #: What it was judged by, where that was asked for.
    formula: Formula | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return self.op.name

    @property
    def worst_slot(self) -> SlotResult | None:
        """The output that is farthest beyond rounding."""
        return max(
            self.slots, key=lambda slot: (slot.beyond > 0, slot.worst / max(slot.slack, 1e-9), slot.own), default=None
        )

    def verdict(self) -> OpVerdict:
        """Return what results keep of it."""
        verdict = OpVerdict(
            name=self.op.name, type=self.op.type, number=self.number, state=self.state.value, reason=self.reason or "",
            how=self.how, passes=self.op.pass_names, output_types=tuple([desc.dtype for desc in self.op.output_descs]),
            is_fed_by_others=any(source != "benchmark" for _, source in self.from_elsewhere),
        )  # fmt: skip
        worst = self.worst_slot if self.slots else None
        if worst is None:
            return verdict
        over = self.overflow
        if worst.sampled is not None:
            verdict = replace(verdict, looked_at=worst.sampled, size=worst.size, is_summed=worst.is_summed)
        return replace(
            verdict, slot=worst.slot, own_error=worst.own, rounding=worst.rounding, inherited=worst.inherited,
            benchmark_own=worst.benchmark_own, worst=worst.worst, slack=worst.slack,
            overflowed=over.overflowed if over is not None else 0, largest=over.largest if over is not None else None,
        )  # fmt: skip

    @property
    def is_sampled(self) -> bool:
        """True if only some of its elements were recomputed."""
        return any(slot.sampled is not None for slot in self.slots)

    @property
    def is_summed(self) -> bool:
        """True if the sums of rows tell of all others."""
        return all(slot.is_summed for slot in self.slots if slot.sampled is not None)

    @property
    def own(self) -> float:
        """The relative own error of that output; inf if nothing was recomputed."""
        return self.worst_slot.own if self.worst_slot is not None else inf

    @property
    def overflow(self) -> SlotResult | None:
        """The output whose true result is beyond its type."""
        return next((slot for slot in self.slots if slot.overflowed), None)


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Ops that were judged together, as what they put out between is not known, in the order in which they ran.

    `result` is that of what the last one put out, `borrowed` are variables whose numbers are the benchmark's.
    """

    ops: Sequence[Op]
    result: OpResult
    borrowed: Sequence[Op] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Counts of the ops of a run by outcome."""

    ops: int = 0
    right: int = 0
    wrong: int = 0
    doubtful: int = 0
    not_recomputed: int = 0
    #: Of those that are right, how many are off by more than rounding, within the precision of their device.
    imprecise: int = 0
    #: Why some were not recomputed, each with how many were not; in words where they are rendered.
    reasons: tuple[tuple[Message | str, int], ...] = ()
    #: The kinds of reasons in words, with the same numbers.
    kinds: tuple[tuple[str, int], ...] = ()


def is_late(result: OpResult) -> bool:
    """Return whether an op was not judged as all that were before it had taken as long as was allowed."""
    return result.reason is not None and result.reason.kind == "reason.out_of_time"


def tally(judged: Sequence[OpResult]) -> Tally:
    """Return counts of judgements, with the reasons of those that were not recomputed, most frequent first."""
    counts = Counter(result.state for result in judged)
    why = [result.reason for result in judged if result.state is State.NOT_RECOMPUTED and result.reason is not None]
    # Most ops of a large graph share one message, whose hash is not made again for each.
    messages = dict(zip(map(id, why), why, strict=True))
    reasons: dict[Message, int] = {}
    for at, count in Counter(map(id, why)).items():
        reasons[messages[at]] = reasons.get(messages[at], 0) + count
    return Tally(
        ops=len(judged),
        right=counts[State.RIGHT],
        wrong=counts[State.WRONG],
        doubtful=counts[State.DOUBTFUL],
        not_recomputed=counts[State.NOT_RECOMPUTED],
        imprecise=sum(result.is_imprecise for result in judged),
        reasons=tuple(sorted(reasons.items(), key=lambda item: (-item[1], repr(item[0])))),
    )


# --- verdict ----------------------------------------------------------------------------------------------------------


class Cause(StrEnum):
    """Cause of a difference."""

    KERNEL = "kernel"
    FUSION = "fusion"
    LAYOUT = "layout"
    CAST = "cast"
    OVERFLOW = "overflow"
    STOMP = "stomp"
    RANDOM = "random"
    INPUT = "input"
    WEIGHTS = "weights"
    ARGUMENTS = "arguments"
    LOSS_SCALE = "loss_scale"
    NONE = "none"


class Proof(StrEnum):
    """Kinds of proof, the strongest first."""

    #: Two copies of one tensor that differ.
    COPIES = "copies"
    #: The op was recomputed from its own inputs.
    RECOMPUTED = "recomputed"
    #: What nothing computes differs from the benchmark's.
    SOURCE = "source"
    #: The two sides call it with other arguments.
    ARGUMENTS = "arguments"
    #: It computes differently in two runs, from the same inputs.
    RUNS = "runs"
    #: An overflow status file of the device names it; it cannot be recomputed.
    STATUS = "status"
    #: Its output is much farther off than its inputs; it cannot be recomputed.
    COMPARED = "compared"
    #: Statistics or checksums speak against it; its tensors were not saved.
    FIGURES = "figures"


#: The name of the fact that says what statistics show.
FIGURES = "figures"
#: The name of the fact that says why an op was not recomputed.
NOT_RECOMPUTED = "not_recomputed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One figure of the evidence: a name and a number, a word, or a list of these; of `NOT_RECOMPUTED` a reason."""

    name: str
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """Overflow status file of the device that names an op. It may be of another op if it `is_doubtful`."""

    path: str
    words: str
    is_doubtful: bool = False

    @property
    def facts(self) -> tuple[Fact, ...]:
        """It as evidence."""
        return Fact(name="status_file", value=self.path), Fact(name="status", value=self.words)


class Action(StrEnum):
    """Kinds of steps; the text is `step.<value>`."""

    LOOK_AT_OP = "look_at_op"
    LOOK_AT_FUSED_OP = "look_at_fused_op"
    LOOK_AT_CAST = "look_at_cast"
    LOOK_AT_VALUES = "look_at_values"
    REPORT_KERNEL = "report_kernel"
    REPORT_LAYOUT = "report_layout"
    NO_HF32 = "no_hf32"
    #: The same for all products of a run, of which `number` are in HF32.
    NO_HF32_ANYWHERE = "no_hf32_anywhere"
    HIGH_PRECISION = "high_precision"
    FLOAT32_KERNEL = "float32_kernel"
    SWITCH_PASS_OFF = "switch_pass_off"
    #: A pass is off in a file that the session does not use.
    GIVE_SWITCH_FILE = "give_switch_file"
    KEEP_FUSED_TYPE = "keep_fused_type"
    KEEP_TYPE = "keep_type"
    SCALE_INPUTS = "scale_inputs"
    LOWER_LOSS_SCALE = "lower_loss_scale"
    #: The same by a factor of `number` at least.
    DIVIDE_LOSS_SCALE = "divide_loss_scale"
    SAME_LOSS_SCALE = "same_loss_scale"
    FIND_WRITER = "find_writer"
    DETERMINISTIC = "deterministic"
    SAME_SEEDS = "same_seeds"
    NO_DROPOUT = "no_dropout"
    RUN_AGAIN = "run_again"
    SAME_BATCH = "same_batch"
    SAME_CHECKPOINT = "same_checkpoint"
    SAME_ARGUMENTS = "same_arguments"
    EARLIER_STEP = "earlier_step"
    MAKE_BENCHMARK = "make_benchmark"
    COMPARE_RUN = "compare_run"
    MAKE_PASSPORTS = "make_passports"
    MEND_PASSPORTS = "mend_passports"
    OTHER_STEP = "other_step"
    #: What is left of the deviation once the culprit is mended.
    WHAT_IF = "what_if"
    COLLECT_TENSORS = "collect_tensors"
    CHECK = "check"
    # Of recorded calls:
    #: The call, or its module, in float32, whatever autocast says.
    COMPUTE_IN_FLOAT32 = "compute_in_float32"
    OTHER_KERNEL = "other_kernel"
    PLAIN_FORMATS = "plain_formats"
    MAKE_BENCHMARK_DUMP = "make_benchmark_dump"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Step to take: with a `command` of this tool, as its words, with Python `code` for a script, or neither.

    `ops` are the ops of the script whose lines the code is for. `where` says what the code is for, where that is not
    the same for all steps of its kind: `step.file.<where>`, with the line `place`.
    """

    do: Action
    command: tuple[str, ...] = ()
    code: str = ""
    ops: tuple[str, ...] = ()
    number: int | None = None
    where: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepText:
    """A step with its text. `line` is a command, or lines for `file`."""

    why: Message | str
    line: str = ""
    file: Message | str = ""


class NotCheckedKind(StrEnum):
    """Kinds of gaps in a verdict; the text is `gap.<value>`."""

    NOT_READ = "not_read"
    NOT_DUMPED = "not_dumped"
    #: The file that lists the calls ends before they do.
    CUT_OFF = "cut_off"
    OUT_OF_TIME = "out_of_time"
    #: Tensors whose true copy the time did not suffice to tell.
    UNSETTLED = "unsettled"
    #: Ops of which only some elements were recomputed: without a benchmark, ...
    SAMPLED = "sampled"
    #: ... with the sums of all rows, ...
    SAMPLED_SUMS = "sampled_sums"
    #: ... or with those elements that are farthest from the benchmark.
    SAMPLED_FARTHEST = "sampled_farthest"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotChecked:
    """Gap in a verdict: `count` ops (or tensors) of `ops`, of which `unknown` are not checked, or one `op`."""

    lack: NotCheckedKind
    count: int
    ops: int = 0
    unknown: int = 0
    op: str = ""


def _check_confidence(confidence: float) -> None:
    """ValueError for what no verdict has: it may come from a file."""
    if not 0 <= confidence <= 1:
        raise ValueError(f"a confidence of {confidence}")


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """One independent fault. `culprit` is an op, or the variable at the root; `number` its place in execution order.

    `index` is its number in lists, results and `ni '[17]'`, which ops made from the same originals share.
    `also` are further culprits of the same fault: the other ops of a pass, the producer of overwritten memory.
    """

    culprit: str
    cause: Cause
    proof: Proof
    confidence: float
    number: int
    op_type: str = ""
    pass_name: str = ""
    also: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    result: OpResult | None = field(default=None, metadata=NOT_STORED)
    #: What it spoils downstream: ops that follow, and those of them that are below the threshold.
    followers: int = 0
    below: int = 0
    index: int = 0
    #: Of a recorded call the module and the line of the script that made it; of a tensor those of its first reader.
    module: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        _check_confidence(self.confidence)

    def fact(self, name: str) -> Any:
        """Return the value of a fact, None if it has none of this name."""
        return next((fact.value for fact in self.facts if fact.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstCosine:
    """The worst cosine of a run and its op."""

    op_name: str
    slot: str
    cosine: float
    #: Ops that are below the threshold, all of them by rounding where the verdict is a clean one.
    below: int = 0
    #: The op from which the distance grows, going back along the worst inputs.
    grows_from: str = ""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Verdict on one run. `culprit` is None where nothing computes wrong.

    `ranking` are all suspects, best first, `run` the number of the run that is meant (None: the folder named).
    """

    culprit: str | None
    cause: Cause
    confidence: float
    pass_name: str | None = None
    ranking: tuple[str, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    facts: tuple[Fact, ...] = ()
    next: tuple[Step | StepText, ...] = ()
    tally: Tally = field(default_factory=Tally)
    run: int | None = None
    has_benchmark: bool = True
    worst: WorstCosine | None = None
    #: What it did not see; in words where they are rendered.
    gaps: tuple[NotChecked | str, ...] = ()

    def __post_init__(self) -> None:
        _check_confidence(self.confidence)

    @property
    def first(self) -> Suspect | None:
        """The suspect that the verdict names."""
        return self.suspects[0] if self.culprit is not None and self.suspects else None

    @property
    def is_empty(self) -> bool:
        """True if nothing could be judged, so that it says nothing."""
        return self.culprit is None and self.cause is Cause.NONE and not self.tally.right and self.by_figures is None

    @property
    def by_figures(self) -> Message | None:
        """What statistics alone say of a run that accuses nobody; None where tensors were recomputed."""
        return next((fact.value for fact in self.facts if fact.name == FIGURES and self.culprit is None), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the object `verdict` of JSON. Reasons, steps and gaps must be in words (`view.rendered_verdict`)."""
        return {
            "culprit": self.culprit,
            "cause": str(self.cause),
            "pass": self.pass_name,
            "confidence": round(self.confidence, 3),
            "ranking": list(self.ranking),
            "module": self.first.module if self.first is not None else "",
            "source": self.first.source if self.first is not None else "",
            "evidence": _facts_to_json(self.facts),
            "next": [asdict(step) for step in self.next],
            "suspects": [_suspect(suspect) for suspect in self.suspects],
            "ops": {
                "judged": self.tally.ops, "right": self.tally.right, "wrong": self.tally.wrong,
                "imprecise": self.tally.imprecise,
                "doubtful": self.tally.doubtful, "not_recomputed": self.tally.not_recomputed,
                "reasons": dict(self.tally.reasons), "reason_kinds": dict(self.tally.kinds),
            },
            "worst_cosine": None if self.worst is None else {
                "op": self.worst.op_name, "slot": self.worst.slot, "cosine": self.worst.cosine,
                "below": self.worst.below, "grows_from": self.worst.grows_from,
            },
            "run": self.run,
            "benchmark": self.has_benchmark,
            "gaps": list(self.gaps),
        }  # fmt: skip


def _suspect(suspect: Suspect) -> dict[str, Any]:
    return {
        "culprit": suspect.culprit, "type": suspect.op_type, "number": suspect.index, "order": suspect.number,
        "cause": str(suspect.cause), "pass": suspect.pass_name or None, "proof": str(suspect.proof),
        "confidence": round(suspect.confidence, 3), "also": list(suspect.also), "followers": suspect.followers,
        "below": suspect.below, "module": suspect.module, "source": suspect.source,
        "evidence": _facts_to_json(suspect.facts),
    }  # fmt: skip


def _facts_to_json(facts: Iterable[Fact]) -> dict[str, Any]:
    return {fact.name: fact.value for fact in facts}


def number_of(value: float) -> float | str:
    """Return a number as facts hold it: six digits, and NaN and Inf as words."""
    return float(f"{value:.6g}") if isfinite(value) else str(value)
