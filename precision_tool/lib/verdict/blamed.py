"""What `fusion blame` says of ops and passes, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from precision_tool.lib.messages import Message
from precision_tool.lib.model.finding import Evidence


class Verdict(StrEnum):
    """What is known of an op or of a pass."""

    GUILTY = "guilty"
    SUSPICIOUS = "suspicious"
    CLEAN = "clean"
    NOT_JUDGED = "not judged"


#: Worst first.
ORDER = (Verdict.GUILTY, Verdict.SUSPICIOUS, Verdict.NOT_JUDGED, Verdict.CLEAN)


class Sign(StrEnum):
    """From what the verdict on a fused op is known."""

    NOT_DUMPED = "not_dumped"
    # By comparing:
    NOT_COMPARED = "not_compared"
    ONLY_STATISTICS = "only_statistics"
    #: The other run has the op too, made by the same passes.
    IN_BOTH_RUNS = "in_both_runs"
    AGREES = "agrees"
    #: Off, though not below the threshold, and no input could be compared.
    OFF_INPUTS_UNKNOWN = "off_inputs_unknown"
    #: Off more than its inputs, though not below the threshold.
    NOT_BELOW = "not_below"
    #: Its true output is zero beside its inputs.
    CANCELLED = "cancelled"
    #: No input could be compared, and ops before it are off already.
    BEHIND_OTHERS = "behind_others"
    NO_INPUT_COMPARED = "no_input_compared"
    #: Its inputs agree and are nearly as far off.
    AS_FAR_AS_INPUTS = "as_far_as_inputs"
    #: Its compared inputs agree, and one could not be.
    ONE_INPUT_UNKNOWN = "one_input_unknown"
    INPUTS_AGREE = "inputs_agree"
    MORE_THAN_INPUTS = "more_than_inputs"
    MAY_BE_INHERITED = "may_be_inherited"
    # By recomputing:
    #: Off from what the formula says, and so is the other run's, which the same passes made.
    OFF_IN_BOTH_RUNS = "off_in_both_runs"
    NOT_FINITE = "not_finite"
    WRONG = "wrong"
    DOUBTFUL = "doubtful"
    RIGHT = "right"
    #: Right, while the other side's is wrong.
    RIGHT_OTHER_WRONG = "right_other_wrong"
    #: Right; what differs it was fed.
    RIGHT_AS_FED = "right_as_fed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What the verdict on a fused op rests on, beside the op's figures.

    `shared` are the passes that made it in both runs, `slot` is the input that is not known, `reason` what the
    comparison says, `other_error` how far off the other side's output is where that matters.
    """

    sign: Sign
    shared: tuple[str, ...] = ()
    slot: str = ""
    reason: str = ""
    other_error: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotJudged(Evidence):
    """Why the verdict's judge could not recompute it."""

    reason: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class FormulaDistrusted(Evidence):
    """The formula of these ops fits neither side where the two agree."""

    ops: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FedNotFinite(Evidence):
    """The op was fed numbers that are not finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeyondType(Evidence):
    """The true result reaches `largest`, which the type cannot hold, in `elements` of `size` elements.

    `limit` is the type's largest value, None where that is not known; `is_infinite` tells Inf from saturated values.
    """

    is_infinite: bool
    elements: int
    size: int
    largest: float
    dtype: str
    limit: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """The output of a fused op that is farthest off against the recomputed one, both as relative distances.

    `rounding` is what rounding makes of it (rms), `cosine` None where no element is wrong, `benchmark_error` the
    benchmark's own error, None where that does not tell. `mismatches` counts elements that are not finite though they
    should be. `how` names the ops.
    """

    error: float
    rounding: float
    cosine: float | None = None
    benchmark_error: float | None = None
    mismatches: int = 0
    how: str = ""
    #: Inputs that are the benchmark's, as the fused op is not fed them.
    borrowed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpBlame:
    """A fused op. Errors are relative distances; None where nothing was compared or recomputed.

    `error` is the one the verdict rests on: the recomputed one, else that of the comparison.
    """

    op_name: str
    op_type: str
    passes: tuple[str, ...]
    originals: tuple[str, ...]
    index: int
    verdict: Verdict
    ground: Ground
    input_error: float | None = None
    output_error: float | None = None
    cosine: float | None = None
    recomputed: Recomputed | None = None
    #: Why it could not be recomputed; None of one that was, or that was not dumped.
    not_recomputed: Evidence | None = None
    #: Of an op whose true result is beyond its type's range: what became of that.
    beyond_range: BeyondType | None = None

    @property
    def error(self) -> float | None:
        return self.recomputed.error if self.recomputed is not None else self.output_error


@dataclass(frozen=True, slots=True, kw_only=True)
class PassBlame:
    """A pass with the fused ops it made. `worst` and `median` are of the errors of its ops that were judged.

    Its verdict is that of `worst_op`.
    """

    name: str
    verdict: Verdict
    ops: tuple[OpBlame, ...]
    is_switchable: bool
    worst: float | None = None
    median: float | None = None

    @property
    def worst_op(self) -> OpBlame:
        """Of the ops with the pass's verdict the one that is farthest off."""
        return max((op for op in self.ops if op.verdict is self.verdict), key=lambda op: op.error or 0.0)

    def count(self, verdict: Verdict) -> int:
        return sum(op.verdict is verdict for op in self.ops)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """The passes, worst first; the smallest set of switches that avoids every guilty op; what no switch avoids."""

    passes: tuple[PassBlame, ...]
    switch_off: tuple[str, ...]
    #: Guilty ops that only passes made which GE never switches off.
    unavoidable: tuple[OpBlame, ...] = ()
    #: Fused ops of which the graph names no pass.
    nameless: tuple[str, ...] = ()

    @property
    def is_judged(self) -> bool:
        """Whether anything is known of a pass that a switch file turns off; those are what fusion adds to a run."""
        return any(one.is_switchable and one.verdict is not Verdict.NOT_JUDGED for one in self.passes)

    @property
    def ops(self) -> tuple[OpBlame, ...]:
        """Every fused op once, in execution order."""
        found = {op.op_name: op for one in self.passes for op in one.ops}
        return tuple(sorted(found.values(), key=lambda op: op.index))
