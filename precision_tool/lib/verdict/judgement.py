"""What is known of one op when it is judged alone: values, no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING

from precision_tool.lib.messages import Message
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.judged import JudgedOp
from precision_tool.lib.ops.base import Kind
from precision_tool.lib.verdict.places import Places

if TYPE_CHECKING:
    from precision_tool.lib.verdict.formulas import Formula


class State(StrEnum):
    """What recomputing an op said."""

    RIGHT = "right"
    WRONG = "wrong"
    #: Off by more than rounding, but so little, or on such doubtful ground, that it accuses nobody.
    DOUBTFUL = "doubtful"
    NOT_RECOMPUTED = "not_recomputed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotJudgement:
    """One output, recomputed from the inputs. Distances are relative, ‖x − y‖ / ‖y‖.

    `own` is y_N − f(x_N), `rounding` what rounding makes of it (rms), `worst` the largest error of an element over its
    rms of rounding, `slack` what of that is allowed, `beyond` how many elements exceed it. `overflowed` counts the
    elements whose true result is beyond the type's range, up to `largest`. `fed` is f(x_N) − f(x_B), `benchmark_own`
    y_B − f(x_B) and `amplification` κ (VERDICT.md §1); None where the benchmark does not tell.
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
    places: Places | None = None
    #: Of an output with wrong elements, the cosine to the recomputed one.
    cosine: float | None = None
    fed: float | None = None
    benchmark_own: float | None = None
    amplification: float | None = None
    #: Elements that were recomputed, where the op is too large for all of them.
    sampled: int | None = None
    #: Whether the sums of all rows of such an op are right, over all columns.
    is_summed: bool = False

    @property
    def looked_at(self) -> int:
        """Of how many elements `beyond` counts the wrong ones."""
        return self.size if self.sampled is None else self.sampled


@dataclass(frozen=True, kw_only=True)
class OpJudgement:
    """One op of the run. `number` is its place in the order of execution.

    `how` are the types of the ops that were recomputed; `reason` says why it was not, or why it is doubtful.
    `finite_inputs` is False if an input of an op that is not plainly right has numbers that are not finite.
    `is_confirmed` tells that the benchmark obeys the formula as well (None: not asked, or no benchmark), or, with
    `is_by_another`, that another op of the run that is fused in the same way does; `is_guessed` that how its original
    ops hang together is not known for sure.
    """

    op: Op
    number: int
    state: State
    how: tuple[str, ...] = ()
    reason: Message | None = None
    slots: tuple[SlotJudgement, ...] = ()
    finite_inputs: bool = True
    #: Where inputs are from that its own dump lacks, by slot: "producer", "reader", "benchmark".
    from_elsewhere: tuple[tuple[int, str], ...] = ()
    #: What it was judged by, where that was asked for.
    formula: Formula | None = field(default=None, repr=False)
    is_confirmed: bool | None = None
    is_by_another: bool = False
    is_guessed: bool = False
    is_dumped: bool = True
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return self.op.name

    @property
    def worst_slot(self) -> SlotJudgement | None:
        """The output that is farthest beyond rounding."""
        return max(
            self.slots, key=lambda slot: (slot.beyond > 0, slot.worst / max(slot.slack, 1e-9), slot.own), default=None
        )

    def to_keep(self) -> JudgedOp:
        """What results keep of it."""
        known = JudgedOp(
            name=self.op.name, type=self.op.type, number=self.number, state=str(self.state), reason=self.reason or "",
            how=self.how, passes=self.op.pass_names, output_types=tuple(desc.dtype for desc in self.op.output_descs),
            is_fed_by_others=any(source != "benchmark" for _, source in self.from_elsewhere),
        )  # fmt: skip
        worst = self.worst_slot
        if worst is None:
            return known
        over = self.overflow
        if worst.sampled is not None:
            known = replace(known, looked_at=worst.sampled, size=worst.size, is_summed=worst.is_summed)
        return replace(
            known, slot=worst.slot, own_error=worst.own, rounding=worst.rounding, fed=worst.fed,
            benchmark_own=worst.benchmark_own, worst=worst.worst, slack=worst.slack,
            overflowed=over.overflowed if over is not None else 0, largest=over.largest if over is not None else None,
        )  # fmt: skip

    @property
    def is_sampled(self) -> bool:
        """Whether only some of its elements were recomputed."""
        return any(slot.sampled is not None for slot in self.slots)

    @property
    def is_summed(self) -> bool:
        """Whether the sums of rows tell of all others."""
        return all(slot.is_summed for slot in self.slots if slot.sampled is not None)

    @property
    def own(self) -> float:
        """The relative own error of that output; inf if nothing was recomputed."""
        return self.worst_slot.own if self.worst_slot is not None else inf

    @property
    def overflow(self) -> SlotJudgement | None:
        """The output whose true result is beyond its type."""
        return next((slot for slot in self.slots if slot.overflowed), None)


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Ops that were judged together, as what they put out between is not known, in the order in which they ran.

    `judgement` is that of what the last one put out, `borrowed` are variables whose numbers are the benchmark's.
    """

    ops: Sequence[Op]
    judgement: OpJudgement
    borrowed: Sequence[Op] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How many ops of a run were judged, and how."""

    ops: int
    right: int
    wrong: int
    doubtful: int
    not_recomputed: int
    #: Why some were not recomputed, each with how many were not; in words in JSON, and in verdicts of older releases.
    reasons: tuple[tuple[Message | str, int], ...] = ()
    #: The kinds of reasons in words, with the same numbers.
    kinds: tuple[tuple[str, int], ...] = ()


def is_late(one: OpJudgement) -> bool:
    """Whether an op was not judged as all that were before it had taken as long as was allowed."""
    return one.reason is not None and one.reason.kind == "reason.out_of_time"


def tally(judged: Sequence[OpJudgement]) -> Tally:
    """Counts of judgements, with the reasons of those that were not recomputed, most frequent first."""
    counts: dict[State, int] = dict.fromkeys(State, 0)
    reasons: dict[Message, int] = {}
    for one in judged:
        counts[one.state] += 1
        if one.state is State.NOT_RECOMPUTED and one.reason is not None:
            reasons[one.reason] = reasons.get(one.reason, 0) + 1
    return Tally(
        ops=len(judged),
        right=counts[State.RIGHT],
        wrong=counts[State.WRONG],
        doubtful=counts[State.DOUBTFUL],
        not_recomputed=counts[State.NOT_RECOMPUTED],
        reasons=tuple(sorted(reasons.items(), key=lambda item: (-item[1], repr(item[0])))),
    )
