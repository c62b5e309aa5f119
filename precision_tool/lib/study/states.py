"""What a study remembers of every leaf: little, as there may be a hundred thousand."""

from __future__ import annotations

from dataclasses import dataclass

from precision_tool.lib.study.leaves import StudyLeaf
from precision_tool.lib.study.outcome import FirstOp, LeafCounts, LeafOutcome
from precision_tool.lib.verdict.model import Cause, Proof


@dataclass(frozen=True, slots=True, kw_only=True)
class Accused:
    """An op that the verdict on a leaf accuses. `epoch` counts the communication ops before it."""

    op: str
    type: str
    cause: Cause
    proof: Proof
    confidence: float
    number: int
    epoch: int
    pass_name: str = ""
    #: N of npu/debug_N in which it computes wrong, where that is another run than the one under test.
    run: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafState(LeafCounts):
    """A leaf and what came out. `is_own` tells that its benchmark is of just this step and rank."""

    leaf: StudyLeaf
    #: Whether a verdict could be made, and of how many ops it says that they compute right.
    has_verdict: bool = False
    right: int = 0
    accused: tuple[Accused, ...] = ()
    first: FirstOp | None = None
    is_own: bool = True


#: What differs from a benchmark that is of another step or rank differs for good reasons.
_OF_THE_DATA = (Cause.INPUT, Cause.WEIGHTS)
_BY_BENCHMARK = (Proof.COMPARED, Proof.SOURCE)


def state_of(leaf: StudyLeaf, outcome: LeafOutcome, *, is_own: bool = True, is_start: bool = True) -> LeafState:
    """What is remembered of an outcome.

    Held against a benchmark that is not its own, a leaf may have other data: what only the comparison says is left out.
    After the first step that a rank has (`is_start`), its variables are what both sides have trained meanwhile: that
    they differ accuses nobody.
    """
    verdict = outcome.verdict
    epochs = outcome.epochs or {}
    run = None if verdict is None or verdict.run == outcome.run else verdict.run
    suspects = () if verdict is None or verdict.culprit is None else verdict.suspects
    accused = tuple(
        Accused(
            op=one.culprit, type=one.op_type, cause=one.cause, proof=one.proof, confidence=one.confidence,
            number=one.number, epoch=epochs.get(one.culprit, 0), pass_name=one.pass_name, run=run,
        )
        for one in suspects
        if one.cause is not Cause.LOSS_SCALE
        and (is_own or (one.cause not in _OF_THE_DATA and one.proof not in _BY_BENCHMARK))
        and (is_start or one.cause is not Cause.WEIGHTS)
    )  # fmt: skip
    return LeafState(
        leaf=leaf, **outcome.counts(), has_verdict=verdict is not None and not verdict.is_empty,
        right=0 if verdict is None else verdict.tally.right, accused=accused,
        first=outcome.first if is_own else None, is_own=is_own,
    )  # fmt: skip
