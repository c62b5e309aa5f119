"""Agreement of tensors and ops with the benchmark, and the first op that does not: what comparing alone says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, isnan, sqrt

from precision_tool.lib.data.graph_catalog import MissingGraph
from precision_tool.lib.messages import Message
from precision_tool.lib.model.comparison import NO_GRAPH, Status
from precision_tool.lib.model.finding import Fact, Finding, FindingKind, Grade
from precision_tool.lib.model.records import record
from precision_tool.lib.model.table import Row


def no_graph(missing: MissingGraph) -> Message:
    """Return why a model of a run has no graph."""
    return Message("check.no_graph", number=missing.number, reason=missing.reason)


# --- agreement of tensors and ops ---


#: Statuses of ops that no device op stands for, or that only pass on what others made.
_NOT_RUN = frozenset({Status.NO_NPU_DUMP, Status.NO_ORIGINAL_OP, "no result"})
#: The smallest error that six digits, all that a result file has, show.
_PRINTED = 5e-7
#: An op made its error itself if its output is this many times as far off as its farthest input.
_OWN_ERROR = 3.0
#: An error up to so many times a tensor's noise is noise.
_OVER_NOISE = 3.0
#: A benchmark output this much smaller than the op's inputs is zero on paper.
_CANCELLED = 1e-5
#: What rounding in half precision can leave of it, beside the size of the inputs; a larger error is an error.
_ROUNDING = 2.0**-6


def agrees(row: Row, threshold: float) -> bool | None:
    """Return whether the tensor of a row agrees with its benchmark; None if it was not compared.

    The cosine must reach the threshold. A single number has no direction, so its relative error takes the
    cosine's place: an angle with cosine c is a relative distance of sqrt(2 (1 - c)). With a noise floor a tensor also
    agrees that is off by no more than a few times its own noise.
    """
    cosine = row.cosine
    if cosine is None:
        return None
    if row.mismatches or isnan(cosine):
        return False
    if row.is_scalar:
        return distance(row) <= sqrt(2 * (1 - threshold)) or _is_noise(row)
    return cosine >= threshold or _is_noise(row)


def _is_noise(row: Row) -> bool:
    """Return True for an error that two runs of the same script have as well."""
    return row.noise is not None and noise_distance(row) <= _OVER_NOISE * row.noise


def noise_distance(row: Row) -> float:
    """Return the distance of a tensor in the measure of noise floors: the pair that made a floor is within it."""
    off, relative = distance(row), row.relative_euclidean_distance
    return off if row.is_scalar or relative is None or not isfinite(off) else relative


def is_only_noise(row: Row, threshold: float) -> bool:
    """Return True for a tensor below the threshold that agrees all the same, by its noise."""
    return row.noise is not None and agrees(row, threshold) is True and not agrees(replace(row, noise=None), threshold)


def distance(row: Row) -> float:
    """Return the relative distance that the cosine of a tensor stands for, 0 where nothing was compared."""
    if row.cosine is None:
        return 0.0
    if row.mismatches or isnan(row.cosine):
        return inf
    if row.is_scalar and row.relative_euclidean_distance is not None:
        if not row.relative_euclidean_distance and (row.max_absolute_error or 0.0) >= _PRINTED:
            return inf  # the benchmark is 0, which has no relative error, and the NPU value is not
        return row.relative_euclidean_distance
    return sqrt(2 * max(0.0, 1 - row.cosine))


@record(frozen=True, slots=True, kw_only=True)
class OpAgreement:
    """The rows of one op, and whether its inputs and outputs agree (None: nothing was compared)."""

    index: int
    op_name: str
    op_type: str
    npu_ops: tuple[str, ...]
    golden_ops: tuple[str, ...]
    pass_names: tuple[str, ...]
    original_ops: tuple[str, ...]
    rows: tuple[Row, ...]
    inputs: tuple[Row, ...]
    outputs: tuple[Row, ...]
    inputs_agree: bool | None
    outputs_agree: bool | None

    @property
    def is_below(self) -> bool:
        """True if any tensor of the op disagrees."""
        return self.inputs_agree is False or self.outputs_agree is False

    @property
    def is_suspect(self) -> bool:
        """True if the op's output disagrees although no input does."""
        return self.outputs_agree is False and self.inputs_agree is not False

    @property
    def made_error(self) -> bool:
        """True if the output is much farther off than the inputs: the error is the op's own, not accumulated."""
        worst_input = max(map(distance, self.inputs), default=0.0)
        worst_output = max(map(distance, self.outputs), default=0.0)
        return self.outputs_agree is False and worst_output > _OWN_ERROR * worst_input

    @property
    def is_cancelled(self) -> bool:
        """True if the benchmark's output is zero on paper (beside the inputs), so that only rounding is compared."""
        outputs = [row.golden_size for row in self.outputs if row.golden_size is not None]
        inputs = [row.golden_size for row in self.inputs if row.golden_size is not None]
        if not outputs or not inputs or any(row.mismatches for row in self.outputs):
            return False
        error = max(row.max_absolute_error or 0.0 for row in self.outputs)
        return max(outputs) < _CANCELLED * max(inputs) and error < _ROUNDING * max(inputs)

    @property
    def is_unseen(self) -> bool:
        """True if the op ran on the device and no output of it was compared."""
        statuses = {row.status for row in (self.rows if not self.outputs else self.outputs)}
        return self.outputs_agree is None and not statuses <= _NOT_RUN

    @property
    def unknown_inputs(self) -> tuple[Row, ...]:
        """Inputs that were dumped and not compared: an error may have come in through them."""
        return tuple(row for row in self.inputs if row.cosine is None)


def all_agree(rows: Iterable[Row], threshold: float) -> bool | None:
    """Return whether all tensors that were compared agree; None if none was."""
    verdicts = [verdict for row in rows if (verdict := agrees(row, threshold)) is not None]
    return all(verdicts) if verdicts else None


def ops_of(rows: Sequence[Row], threshold: float) -> list[OpAgreement]:
    """Return the ops of a result in execution order, with their agreement at `threshold`."""
    by_op: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        by_op.setdefault((row.index, row.op_name), []).append(row)
    ops = []
    for (index, name), of_op in sorted(by_op.items(), key=lambda item: item[0][0]):
        # Of a large graph most ops have one row, which says that they were not dumped.
        slotted = of_op if len(of_op) > 1 or of_op[0].slot else ()
        inputs = tuple(row for row in slotted if row.slot.startswith("input"))
        outputs = tuple(row for row in slotted if row.slot.startswith("output"))
        first = of_op[0]
        ops.append(
            OpAgreement(
                index=index,
                op_name=name,
                op_type=first.op_type,
                npu_ops=first.npu_ops,
                golden_ops=first.golden_ops,
                pass_names=first.pass_names,
                original_ops=first.original_ops or first.golden_ops,
                rows=tuple(of_op),
                inputs=inputs,
                outputs=outputs,
                inputs_agree=all_agree(inputs, threshold) if inputs else None,
                outputs_agree=all_agree(outputs, threshold) if outputs else None,
            )
        )
    return ops


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Counts over one result."""

    rows: int
    compared: int
    below: int
    not_compared: tuple[tuple[str, int], ...]
    ops: int
    ops_below: int


def overview(rows: Sequence[Row], ops: Sequence[OpAgreement], threshold: float) -> Overview:
    """Return how many tensors were compared and agree; the others by status, most frequent first."""
    compared = [row for row in rows if row.cosine is not None]
    reasons = Counter(row.status or "no result" for row in rows if row.cosine is None)
    return Overview(
        rows=len(rows),
        compared=len(compared),
        below=sum(agrees(row, threshold) is False for row in compared),
        not_compared=tuple(reasons.most_common()),
        ops=len(ops),
        ops_below=sum(op.is_below for op in ops),
    )


# --- the first op that computes wrong, and what was not compared ------------------------------------------------------


#: Rows that could not be read, and inputs and ops, that a finding names.
_MAX_UNREAD, _MAX_LISTED = 5, 3


def _worst(rows: Sequence[Row], threshold: float) -> Row:
    wrong = [row for row in rows if agrees(row, threshold) is False]
    return min(wrong, key=lambda row: -2.0 if row.cosine is None or isnan(row.cosine) else row.cosine)


def _cosines(rows: Sequence[Row]) -> Message:
    return Message("finding.fact.list", items=tuple(map(_cosine, rows))) if rows else Message("finding.none")


def _cosine(row: Row) -> Message:
    slot = row.slot.rpartition(":")[2]
    off = (distance(row) or None) if row.is_scalar else None
    if row.cosine is None:
        return Message("finding.fact.slot_not_compared", slot=slot)
    if off is not None:
        return Message("finding.fact.slot_error", slot=slot, error=off)
    return Message("finding.fact.slot_cosine", slot=slot, cosine=row.cosine)


def _fact(label: str, value: Message | str) -> Fact:
    return Fact(Message("finding.label." + label), value)


def _graph_again() -> Fact:
    return _fact("next", Message("finding.fact.graph_again"))


def _of(op: OpAgreement, kind: FindingKind, grade: Grade, message: Message, facts: Iterable[Fact] = ()) -> Finding:
    """Return a finding on an op, with all that the result has of it."""
    return Finding(
        kind=kind,
        grade=grade,
        message=message,
        facts=tuple(facts),
        op_name=op.op_name,
        op_type=op.op_type,
        pass_names=op.pass_names,
        original_ops=op.original_ops,
    )


def find_first_fault(
    ops: Sequence[OpAgreement], threshold: float, unread_graph: Message | None = None
) -> list[Finding]:
    """Return the first op in execution order whose inputs agree and whose output does not, and related findings.

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
        facts = (
            _fact("graph", unread_graph),
            _fact("below", Message("finding.fact.below", ops=below, threshold=threshold)),
            _graph_again(),
        )
        message = Message("finding.order_unknown")
        return [Finding(kind=FindingKind.UNREADABLE, grade=Grade.WARNING, message=message, facts=facts)]
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
            message=Message("finding.all_inherited", first_op=first_below.op_name),
            op_name=first_below.op_name,
            op_type=first_below.op_type,
        )
        return [*findings, below_threshold]
    passed_over = candidates[: candidates.index(culprit)]
    return [*findings, _faulty_op(culprit, passed_over, threshold)]


def _all_agree(ops: Sequence[OpAgreement], threshold: float, unread_graph: Message | None) -> Finding:
    """Return the finding that no op is faulty; or that none is known, where a graph is missing."""
    if not any(op.is_unseen for op in ops) or not (unread_graph or is_without_graph(ops)):
        message = Message("finding.all_agree", threshold=threshold)
        return Finding(kind=FindingKind.ALL_AGREE, grade=Grade.INFO, message=message)
    tensors = [row for op in ops for row in op.rows if row.slot]
    message = Message(
        "finding.agree_partly", not_compared=sum(row.cosine is None for row in tensors), tensors=len(tensors)
    )
    facts = (
        _fact("graph", unread_graph or Message("finding.fact.no_graph_file")),
        _fact("compared", Message("finding.fact.all_reach", threshold=threshold)),
        _graph_again(),
    )
    return Finding(kind=FindingKind.UNREADABLE, grade=Grade.WARNING, message=message, facts=facts)


def is_without_graph(ops: Iterable[OpAgreement]) -> bool:
    """Return whether inputs were not compared for want of a graph."""
    return any(row.reason is not None and row.reason.kind == NO_GRAPH for op in ops for row in op.inputs)


def _by_statistics(ops: Sequence[OpAgreement], unread_graph: Message | None) -> Finding:
    """Return the first op of a dump of statistics whose inputs' agree and whose output's do not.

    Less than a comparison: values in another order, or wrong ones of the same size, have the same statistics.
    """
    kind = FindingKind.NOTHING_COMPARED
    agreeing = [row.statistics_agree for op in ops for row in op.rows if row.statistics_agree is not None]
    if not agreeing:
        return Finding(kind=kind, grade=Grade.WARNING, message=Message("finding.nothing_compared"))
    wrong = [op for op in ops if any(row.statistics_agree is False for row in op.rows)]
    suspects = [op for op in wrong if all(row.statistics_agree is not False for row in op.inputs)]
    differing = agreeing.count(False)
    statistics = _fact("statistics", Message("finding.fact.statistics", tensors=len(agreeing), differing=differing))
    if not differing:
        doubt = _fact("doubt", Message("finding.fact.same_statistics"))
        message = Message("finding.statistics.agree")
        return Finding(kind=kind, grade=Grade.INFO, message=message, facts=(statistics, doubt))
    if unread_graph or not suspects:
        message = Message("finding.statistics.differ", ops=len(wrong), unread_graph=unread_graph)
        return Finding(kind=kind, grade=Grade.WARNING, message=message, facts=(statistics,))
    op = suspects[0]
    differ = [row for row in op.outputs if row.statistics_agree is False]
    unseen = [row for row in op.inputs if not row.statistics_agree]
    differing_before = next((other.op_name for other in wrong if other.index < op.index), "")
    facts = [statistics]
    facts += [_fact("differs", Message("finding.fact.slot", slot=row.slot, reason=row.reason)) for row in differ]
    facts += [_not_compared(row) for row in unseen]
    if differing_before:
        facts.append(_fact("doubt", Message("finding.fact.differs_before", op_name=differing_before)))
    if not op.inputs:
        facts.append(_fact("doubt", Message("finding.fact.no_input")))
    facts.append(_fact("next", Message("finding.fact.dump_tensors")))
    return _of(op, kind, Grade.WARNING, Message("finding.statistics.first", op_name=op.op_name), facts)


def _not_compared(row: Row) -> Fact:
    return _fact("doubt", Message("finding.fact.input_not_compared", slot=row.slot, reason=row.reason))


def find_unreadable(rows: Sequence[Row]) -> list[Finding]:
    """Return findings on what could not be read: a check that did not see everything must not pass in silence."""
    bad = [row for row in rows if row.status == Status.UNREADABLE]
    if not bad:
        return []
    facts = []
    for number, row in enumerate(bad[:_MAX_UNREAD]):
        value = Message("finding.fact.unreadable_row", op_name=row.op_name, slot=row.slot, reason=row.reason)
        facts.append(Fact("", value) if number else _fact("first", value))
    if len(bad) > _MAX_UNREAD:
        more = Message("finding.fact.more_rows", count=len(bad) - _MAX_UNREAD, status=str(Status.UNREADABLE))
        facts.append(Fact("", more))
    return [
        Finding(
            kind=FindingKind.UNREADABLE,
            grade=Grade.WARNING,
            message=Message("finding.unreadable", count=len(bad)),
            facts=tuple(facts),
            op_name=bad[0].op_name,
        )
    ]


def _different_input(op: OpAgreement, before: Sequence[OpAgreement], threshold: float) -> Finding:
    """Return an input that differs although no op `before` was seen to compute wrong.

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
    facts = [_fact("inputs", _cosines(op.inputs))]
    if right:
        message = Message("finding.different_input.changed", slot=row.slot, op_name=op.op_name, producer=right[-1])
        facts.append(_fact("next", Message("finding.fact.random")))
    else:
        message = Message(
            "finding.different_input.early", slot=row.slot, op_name=op.op_name, unseen=len(unseen) or None
        )
        facts += [_fact("not_compared", name) for name in unseen[-_MAX_LISTED:]]
    return Finding(
        kind=FindingKind.DIFFERENT_INPUT,
        grade=Grade.WARNING if unseen else Grade.FAULT,
        message=message,
        facts=tuple(facts),
        op_name=op.op_name,
        op_type=op.op_type,
    )


def _faulty_op(op: OpAgreement, passed_over: Sequence[OpAgreement], threshold: float) -> Finding:
    return _of(
        op,
        FindingKind.FIRST_FAULTY_OP,
        Grade.FAULT,
        Message(f"finding.first_faulty_op.{_sign(op, passed_over)}", op_name=op.op_name),
        _faulty_op_facts(op, passed_over, threshold),
    )


def _sign(op: OpAgreement, passed_over: Sequence[OpAgreement]) -> str:
    """Return what marks an op as the first that computes wrong."""
    if op.inputs_agree is None:
        return "no_input_compared"
    if op.inputs_agree is False:
        return "larger_error"
    if passed_over:
        return "own_error"
    return "compared_inputs_agree" if op.unknown_inputs else "inputs_agree"


def _faulty_op_facts(op: OpAgreement, passed_over: Sequence[OpAgreement], threshold: float) -> Iterator[Fact]:
    yield _fact("inputs", _cosines(op.inputs))
    yield _fact("outputs", _cosines(op.outputs))
    note = _worst(op.outputs, threshold).reason
    if note:
        yield _fact("note", note)
    if op.is_cancelled:
        yield _fact("doubt", Message("finding.fact.cancelled"))
    elif not op.made_error:
        yield _fact("doubt", Message("finding.fact.accumulated"))
    if is_without_graph([op]):
        yield _fact("doubt", Message("finding.fact.without_graph"))
        yield _graph_again()
    for row in op.unknown_inputs[:_MAX_LISTED]:
        yield _fact("doubt", Message("finding.fact.input_unknown", slot=row.slot, reason=row.reason))
    for other in passed_over[:_MAX_LISTED]:
        kind = "finding.fact.passed_over_cancelled" if other.is_cancelled else "finding.fact.passed_over"
        yield _fact("passed_over", Message(kind, op_name=other.op_name))
    if len(passed_over) > _MAX_LISTED:
        yield _fact("passed_over", Message("finding.fact.more_ops", count=len(passed_over) - _MAX_LISTED))
