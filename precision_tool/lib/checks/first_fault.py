"""The first op that computes wrong, of those a comparison has, and what was not compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isnan

from precision_tool.lib.checks.agreement import OpAgreement, agrees, distance
from precision_tool.lib.model.comparison import NO_GRAPH, Status
from precision_tool.lib.model.finding import Evidence, Finding, FindingKind, Grade
from precision_tool.lib.model.table import Row

#: Rows that could not be read and are kept, of all that are counted.
_KEPT_UNREAD = 5


class FaultSign(StrEnum):
    """What marks an op as the first that computes wrong."""

    NO_INPUT_COMPARED = "no_input_compared"
    MUCH_FARTHER_OFF = "much_farther_off"
    OWN_ERROR = "own_error"
    COMPARED_INPUTS_AGREE = "compared_inputs_agree"
    INPUTS_AGREE = "inputs_agree"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotCosine:
    """How a tensor agrees: its cosine, None if it was not compared, or how far a single number is off (relative)."""

    slot: str
    cosine: float | None
    off: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotReason:
    """A tensor and why it was not compared, or what the comparison says of it."""

    slot: str
    reason: str
    op_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedOver:
    """An op that may have crossed the threshold without a fault: a true output of zero, or an accumulated error."""

    op_name: str
    is_cancelled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AllAgree(Evidence):
    """Every compared tensor reaches the threshold."""

    threshold: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreePartly(Evidence):
    """Every compared tensor reaches the threshold, and without a graph the outputs of some ops were not compared.

    `not_compared` of `tensors` tensors were not; `unread_graph` is why the graph could not be read, empty if none is
    there.
    """

    threshold: float
    not_compared: int
    tensors: int
    unread_graph: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingCompared(Evidence):
    """No tensor could be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlyStatistics(Evidence):
    """Only statistics were compared: of `tensors`, of which `differing` differ, in `ops` ops. None is named.

    `unread_graph` is why the graph could not be read that would tell the order of the ops.
    """

    tensors: int
    differing: int
    ops: int
    unread_graph: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherStatistics(Evidence):
    """The first op whose output has other statistics though its inputs' do not differ.

    `fed_before` names an earlier op with differing ones.
    """

    op_name: str
    tensors: int
    differing: int
    outputs: tuple[SlotReason, ...]
    not_compared: tuple[SlotReason, ...]
    fed_before: str
    has_inputs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderUnknown(Evidence):
    """Some ops are below the threshold, and without a graph nothing tells which of them is fed by which."""

    unread_graph: str
    below: int
    threshold: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRead(Evidence):
    """Rows that could not be read: how many in all, and the first of them."""

    count: int
    first: tuple[SlotReason, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllInherited(Evidence):
    """Every op with a wrong output has a wrong input."""

    first_op: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferentInput(Evidence):
    """An input that differs before any compared op computed wrong.

    `put_out_by` is the op that put the same tensor out right, if there is one; else `unseen` are the earlier ops that
    ran and could not be compared.
    """

    op_name: str
    slot: str
    inputs: tuple[SlotCosine, ...]
    put_out_by: str = ""
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyOp(Evidence):
    """The first op whose output does not agree though its inputs do; `note` is what the comparison says of it."""

    op_name: str
    sign: FaultSign
    inputs: tuple[SlotCosine, ...]
    outputs: tuple[SlotCosine, ...]
    note: str
    is_cancelled: bool
    made_error: bool
    has_graph: bool
    unknown_inputs: tuple[SlotReason, ...]
    passed_over: tuple[PassedOver, ...]


def _worst(rows: Sequence[Row], threshold: float) -> Row:
    wrong = [row for row in rows if agrees(row, threshold) is False]
    return min(wrong, key=lambda row: -2.0 if row.cosine is None or isnan(row.cosine) else row.cosine)


def _cosines(rows: Sequence[Row]) -> tuple[SlotCosine, ...]:
    return tuple(
        SlotCosine(slot=row.slot, cosine=row.cosine, off=(distance(row) or None) if row.is_scalar else None)
        for row in rows
    )


def _reasons(rows: Iterable[Row]) -> tuple[SlotReason, ...]:
    return tuple(SlotReason(op_name=row.op_name, slot=row.slot, reason=row.reason) for row in rows)


def _of(op: OpAgreement, kind: FindingKind, grade: Grade, evidence: Evidence) -> Finding:
    """A finding on an op, with all that the result has of it."""
    return Finding(
        kind=kind,
        grade=grade,
        evidence=evidence,
        op_name=op.op_name,
        op_type=op.op_type,
        pass_names=op.pass_names,
        original_ops=op.original_ops,
    )


def find_first_fault(ops: Sequence[OpAgreement], threshold: float, unread_graph: str = "") -> list[Finding]:
    """The first op in execution order whose inputs agree and whose output does not, and what else must be known.

    Said before it: that some op was fed differing values before any op made an error (other weights, other
    data). Said with it: ops that crossed the threshold earlier by accumulated error alone, or whose true output
    is zero on paper, so that its cosine is noise. They are named only if there is no op with an error of its own.
    Where the run's graph is there and `unread_graph` says why it could not be read, nothing tells which op is fed by
    which: then none is named.
    """
    if all(op.inputs_agree is None and op.outputs_agree is None for op in ops):
        return [_by_statistics(ops, unread_graph)]
    first_below = next((op for op in ops if op.is_below), None)
    if first_below is None:
        return [_all_agree(ops, threshold, unread_graph)]
    if unread_graph:
        below = sum(op.is_below for op in ops)
        unknown = OrderUnknown(unread_graph=unread_graph, below=below, threshold=threshold)
        return [Finding(kind=FindingKind.UNREADABLE, grade=Grade.WARNING, evidence=unknown)]
    findings: list[Finding] = []
    if first_below.inputs_agree is False:
        before = [op for op in ops if op.index < first_below.index]
        findings.append(_different_input(first_below, before, threshold))
    candidates = [op for op in ops if op.is_suspect or op.made_error]
    culprit = next((op for op in candidates if op.made_error and not op.is_cancelled), None)
    culprit = culprit or next((op for op in candidates if not op.is_cancelled), None)
    culprit = culprit or next(iter(candidates), None)
    if culprit is None:
        below_threshold = Finding(
            kind=FindingKind.BELOW_THRESHOLD,
            grade=Grade.WARNING,
            evidence=AllInherited(first_op=first_below.op_name),
            op_name=first_below.op_name,
            op_type=first_below.op_type,
        )
        return [*findings, below_threshold]
    passed_over = candidates[: candidates.index(culprit)]
    return [*findings, _faulty_op(culprit, passed_over, threshold)]


def _all_agree(ops: Sequence[OpAgreement], threshold: float, unread_graph: str) -> Finding:
    """No faulty op; or that none is known, where no graph says what the outputs of some ops are to be held against."""
    if not any(op.is_unseen for op in ops) or not (unread_graph or _without_graph(ops)):
        return Finding(kind=FindingKind.ALL_AGREE, grade=Grade.INFO, evidence=AllAgree(threshold=threshold))
    tensors = [row for op in ops for row in op.rows if row.slot]
    partly = AgreePartly(
        threshold=threshold,
        not_compared=sum(row.cosine is None for row in tensors),
        tensors=len(tensors),
        unread_graph=unread_graph,
    )
    return Finding(kind=FindingKind.UNREADABLE, grade=Grade.WARNING, evidence=partly)


def _without_graph(ops: Iterable[OpAgreement]) -> bool:
    return any(row.reason == NO_GRAPH for op in ops for row in op.inputs)


def _by_statistics(ops: Sequence[OpAgreement], unread_graph: str) -> Finding:
    """What a dump of statistics alone tells: the first op whose inputs' agree and whose output's do not.

    Less than a comparison: values in another order, or wrong ones of the same size, have the same statistics.
    """
    kind = FindingKind.NOTHING_COMPARED
    told = [row.statistics_agree for op in ops for row in op.rows if row.statistics_agree is not None]
    if not told:
        return Finding(kind=kind, grade=Grade.WARNING, evidence=NothingCompared())
    wrong = [op for op in ops if any(row.statistics_agree is False for row in op.rows)]
    suspects = [op for op in wrong if all(row.statistics_agree is not False for row in op.inputs)]
    tensors, differing = len(told), told.count(False)
    if unread_graph or not suspects:
        only = OnlyStatistics(tensors=tensors, differing=differing, ops=len(wrong), unread_graph=unread_graph)
        return Finding(kind=kind, grade=Grade.WARNING if wrong else Grade.INFO, evidence=only)
    op = suspects[0]
    evidence = OtherStatistics(
        op_name=op.op_name,
        tensors=tensors,
        differing=differing,
        outputs=_reasons(row for row in op.outputs if row.statistics_agree is False),
        not_compared=_reasons(row for row in op.inputs if not row.statistics_agree),
        fed_before=next((one.op_name for one in wrong if one.index < op.index), ""),
        has_inputs=bool(op.inputs),
    )
    return _of(op, kind, Grade.WARNING, evidence)


def find_unreadable(rows: Sequence[Row]) -> list[Finding]:
    """What could not be read: a check that did not see everything must not pass in silence."""
    bad = [row for row in rows if row.status == Status.UNREADABLE]
    if not bad:
        return []
    evidence = NotRead(count=len(bad), first=_reasons(bad[:_KEPT_UNREAD]))
    unread = Finding(kind=FindingKind.UNREADABLE, grade=Grade.WARNING, evidence=evidence, op_name=bad[0].op_name)
    return [unread]


def _different_input(op: OpAgreement, before: Sequence[OpAgreement], threshold: float) -> Finding:
    """An input that differs although no op `before` was seen to compute wrong.

    If one of them put the same tensor out right, something changed it on the way; else one that ran and could not be
    compared may have made the difference.
    """
    row = _worst(op.inputs, threshold)
    right = [
        other.op_name
        for other in before
        for output in other.outputs
        if row.golden_tensor and output.golden_tensor == row.golden_tensor and agrees(output, threshold)
    ]
    unseen = [] if right else [other.op_name for other in before if other.is_unseen]
    return Finding(
        kind=FindingKind.DIFFERENT_INPUT,
        grade=Grade.WARNING if unseen else Grade.FAULT,
        evidence=DifferentInput(
            op_name=op.op_name,
            slot=row.slot,
            inputs=_cosines(op.inputs),
            put_out_by=right[-1] if right else "",
            unseen=tuple(unseen),
        ),
        op_name=op.op_name,
        op_type=op.op_type,
    )


def _faulty_op(op: OpAgreement, passed_over: Sequence[OpAgreement], threshold: float) -> Finding:
    if op.inputs_agree is None:
        sign = FaultSign.NO_INPUT_COMPARED
    elif op.inputs_agree is False:
        sign = FaultSign.MUCH_FARTHER_OFF
    elif passed_over:
        sign = FaultSign.OWN_ERROR
    elif op.unknown_inputs:
        sign = FaultSign.COMPARED_INPUTS_AGREE
    else:
        sign = FaultSign.INPUTS_AGREE
    evidence = FaultyOp(
        op_name=op.op_name,
        sign=sign,
        inputs=_cosines(op.inputs),
        outputs=_cosines(op.outputs),
        note=_worst(op.outputs, threshold).reason,
        is_cancelled=op.is_cancelled,
        made_error=op.made_error,
        has_graph=not _without_graph([op]),
        unknown_inputs=_reasons(op.unknown_inputs),
        passed_over=tuple(PassedOver(op_name=one.op_name, is_cancelled=one.is_cancelled) for one in passed_over),
    )
    return _of(op, FindingKind.FIRST_FAULTY_OP, Grade.FAULT, evidence)
