"""The verdict: who, why, how sure, and what to do. Values that the report shows and programs read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from math import isfinite
from typing import Any

from precision_tool.lib.messages import Message
from precision_tool.lib.model.reason import read_reason
from precision_tool.lib.verdict.judgement import OpJudgement, Tally


class Cause(StrEnum):
    """Why a run differs."""

    KERNEL = "kernel"
    FUSION = "fusion"
    LAYOUT = "layout"
    CAST = "cast"
    OVERFLOW = "overflow"
    STOMP = "stomp"
    RANDOM = "random"
    INPUT = "input"
    WEIGHTS = "weights"
    LOSS_SCALE = "loss_scale"
    NONE = "none"


class Proof(StrEnum):
    """What a suspicion rests on, the strongest first."""

    #: Two copies of one tensor that differ.
    COPIES = "copies"
    #: The op was recomputed from its own inputs.
    RECOMPUTED = "recomputed"
    #: What nothing computes differs from the benchmark's.
    SOURCE = "source"
    #: It computes differently in two runs, from the same inputs.
    RUNS = "runs"
    #: An overflow status file of the device names it; it cannot be recomputed.
    STATUS = "status"
    #: Its output is much farther off than its inputs; it cannot be recomputed.
    COMPARED = "compared"


#: The name of the fact that says why an op was not recomputed.
NOT_RECOMPUTED = "not_recomputed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One figure of the evidence: a name and a number, a word, or a list of these; of `NOT_RECOMPUTED` a reason."""

    name: str
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """What an overflow status file of the device says of an op. It may be of another op if it `is_doubtful`."""

    path: str
    words: str
    is_doubtful: bool = False

    @property
    def facts(self) -> tuple[Fact, ...]:
        """It as evidence."""
        return Fact(name="status_file", value=self.path), Fact(name="status", value=self.words)


class Do(StrEnum):
    """What a step of the plan is; its text is `step.<value>`."""

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
    EARLIER_STEP = "earlier_step"
    MAKE_BENCHMARK = "make_benchmark"
    COMPARE_RUN = "compare_run"
    MAKE_PASSPORTS = "make_passports"
    MEND_PASSPORTS = "mend_passports"
    OTHER_STEP = "other_step"
    CHECK = "check"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What to do: with a `command` of this tool, as its words, with Python `code` for a script, or with neither.

    `ops` are the ops of the script whose lines the code is for.
    """

    do: Do
    command: tuple[str, ...] = ()
    code: str = ""
    ops: tuple[str, ...] = ()
    number: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """It as verdicts keep it."""
        return {
            "do": str(self.do), "command": list(self.command), "code": self.code, "ops": list(self.ops),
            "number": self.number,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldStep:
    """A step with its text. `line` is a command, or lines for `file`."""

    why: Message | str
    line: str = ""
    file: Message | str = ""


class Lack(StrEnum):
    """What a verdict did not see; its text is `gap.<value>`."""

    NOT_READ = "not_read"
    NOT_DUMPED = "not_dumped"
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
class Unseen:
    """What a verdict did not see: `count` ops (or tensors) of `ops`, of which `unknown` are not judged, or one `op`."""

    lack: Lack
    count: int
    ops: int = 0
    unknown: int = 0
    op: str = ""

    def to_dict(self) -> dict[str, Any]:
        """It as verdicts keep it."""
        return {**asdict(self), "lack": str(self.lack)}


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
    judgement: OpJudgement | None = None
    #: What it spoils downstream: ops that follow, and those of them that are below the threshold.
    followers: int = 0
    below: int = 0
    index: int = 0

    def fact(self, name: str) -> Any:
        """The value of a fact, None if it has none of this name."""
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
    """What is to blame for one run. `culprit` is None where nothing computes wrong.

    `ranking` are all suspects, best first, `run` the number of the run that is meant (None: the folder named).
    """

    culprit: str | None
    cause: Cause
    confidence: float
    pass_name: str | None = None
    ranking: tuple[str, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    facts: tuple[Fact, ...] = ()
    next: tuple[Step | ToldStep, ...] = ()
    tally: Tally = field(default_factory=lambda: Tally(ops=0, right=0, wrong=0, doubtful=0, not_recomputed=0))
    run: int | None = None
    has_benchmark: bool = True
    worst: WorstCosine | None = None
    #: What it did not see; in words in JSON, and in verdicts of older releases.
    gaps: tuple[Unseen | str, ...] = ()

    @property
    def first(self) -> Suspect | None:
        """The suspect that the verdict names."""
        return self.suspects[0] if self.culprit is not None and self.suspects else None

    @property
    def is_empty(self) -> bool:
        """Whether nothing could be judged, so that it says nothing."""
        return self.culprit is None and self.cause is Cause.NONE and not self.tally.right

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Verdict:
        """The verdict of what was kept. KeyError, TypeError or ValueError for what is none."""
        suspects = tuple(map(_read_suspect, document["suspects"]))
        ops, worst = document["ops"], document["worst_cosine"]
        return cls(
            culprit=document["culprit"], cause=Cause(document["cause"]), confidence=float(document["confidence"]),
            pass_name=document["pass"], ranking=tuple(document["ranking"]), suspects=suspects,
            facts=_read_facts(document["evidence"]), next=tuple(map(_read_step, document["next"])),
            tally=Tally(
                ops=ops["judged"], right=ops["right"], wrong=ops["wrong"], doubtful=ops["doubtful"],
                not_recomputed=ops["not_recomputed"], reasons=_read_reasons(ops["reasons"]),
                kinds=tuple(ops.get("reason_kinds", {}).items()),
            ),
            run=document["run"], has_benchmark=document["benchmark"], gaps=tuple(map(_read_gap, document["gaps"])),
            worst=None if worst is None else WorstCosine(
                op_name=worst["op"], slot=worst["slot"], cosine=float(worst["cosine"]), below=worst["below"],
                grows_from=worst["grows_from"],
            ),
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """It as it is kept beside results; `present.verdict_json` makes the object `verdict` of JSON of it."""
        return {
            "culprit": self.culprit,
            "cause": str(self.cause),
            "pass": self.pass_name,
            "confidence": round(self.confidence, 3),
            "ranking": list(self.ranking),
            "evidence": _kept_facts(self.facts),
            "next": [asdict(step) if isinstance(step, ToldStep) else step.to_dict() for step in self.next],
            "suspects": [_suspect(one) for one in self.suspects],
            "ops": {
                "judged": self.tally.ops, "right": self.tally.right, "wrong": self.tally.wrong,
                "doubtful": self.tally.doubtful, "not_recomputed": self.tally.not_recomputed,
                **_kept_reasons(self.tally),
            },
            "worst_cosine": None if self.worst is None else {
                "op": self.worst.op_name, "slot": self.worst.slot, "cosine": self.worst.cosine,
                "below": self.worst.below, "grows_from": self.worst.grows_from,
            },
            "run": self.run,
            "benchmark": self.has_benchmark,
            "gaps": [gap if isinstance(gap, str) else gap.to_dict() for gap in self.gaps],
        }  # fmt: skip


def _suspect(one: Suspect) -> dict[str, Any]:
    return {
        "culprit": one.culprit, "type": one.op_type, "number": one.index, "order": one.number, "cause": str(one.cause),
        "pass": one.pass_name or None, "proof": str(one.proof),
        "confidence": round(one.confidence, 3), "also": list(one.also), "followers": one.followers, "below": one.below,
        "evidence": _kept_facts(one.facts),
    }  # fmt: skip


def _read_suspect(one: Mapping[str, Any]) -> Suspect:
    return Suspect(
        culprit=one["culprit"], op_type=one["type"], cause=Cause(one["cause"]),
        number=one.get("order", one["number"]), index=one["number"],
        pass_name=one["pass"] or "", proof=Proof(one["proof"]), confidence=float(one["confidence"]),
        also=tuple(one["also"]), followers=one["followers"], below=one["below"], facts=_read_facts(one["evidence"]),
    )  # fmt: skip


def _read_step(one: Mapping[str, Any]) -> Step | ToldStep:
    if "do" not in one:
        return ToldStep(**one)
    return Step(
        do=Do(one["do"]), command=tuple(one["command"]), code=one["code"], ops=tuple(one["ops"]), number=one["number"]
    )


def _read_gap(one: Mapping[str, Any] | str) -> Unseen | str:
    return one if isinstance(one, str) else Unseen(**{**one, "lack": Lack(one["lack"])})


def _read_facts(evidence: Mapping[str, Any]) -> tuple[Fact, ...]:
    return tuple(
        Fact(name=name, value=read_reason(value) if name == NOT_RECOMPUTED else value)
        for name, value in evidence.items()
    )


def _kept_facts(facts: Iterable[Fact]) -> dict[str, Any]:
    return {fact.name: _kept(fact.value) for fact in facts}


def _kept_reasons(tally: Tally) -> dict[str, Any]:
    """Reasons in words by these, others as a list, each with its number of ops."""
    if all(isinstance(reason, str) for reason, _ in tally.reasons):
        return {"reasons": dict(tally.reasons), "reason_kinds": dict(tally.kinds)}
    return {"reasons": [[_kept(reason), count] for reason, count in tally.reasons]}


def _kept(value: Any) -> Any:
    return value.to_dict() if isinstance(value, Message) else value


def _read_reasons(kept: Mapping[str, int] | Iterable[Any]) -> tuple[tuple[Message | str, int], ...]:
    pairs: Iterable[Any] = kept.items() if isinstance(kept, Mapping) else kept
    return tuple((read_reason(reason), int(count)) for reason, count in pairs)


def number_of(value: float) -> float | str:
    """A number as facts hold it: six digits, and NaN and Inf as words."""
    return float(f"{value:.6g}") if isfinite(value) else str(value)
