"""Which tensors agree, which ops therefore are suspects, and what was not compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, isnan, sqrt

from precision_tool.lib.model.comparison import Status
from precision_tool.lib.model.finding import Finding, FindingKind, Grade
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.wording import counted

#: Statuses of ops that no device op stands for, or that only pass on what others made.
_NOT_RUN = frozenset({Status.NO_NPU_DUMP, Status.NO_ORIGINAL_OP, "no result"})
#: Rows that could not be read and are named, of all that are counted.
_SHOWN_UNREAD = 5
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
    """Whether the tensor of a row agrees with its benchmark; None if it was not compared.

    The cosine must reach the threshold. A single number has no direction, so its relative error takes the
    cosine's place: an angle with cosine c is a relative distance of sqrt(2 (1 - c)). With a noise floor a tensor also
    agrees that is off by no more than a few times its own noise.
    """
    if row.cosine is None:
        return None
    if row.mismatches or isnan(row.cosine):
        return False
    if row.is_scalar:
        return distance(row) <= sqrt(2 * (1 - threshold)) or _is_noise(row)
    return row.cosine >= threshold or _is_noise(row)


def _is_noise(row: Row) -> bool:
    """True for an error that two runs of the same script have as well."""
    return row.noise is not None and noise_distance(row) <= _OVER_NOISE * row.noise


def noise_distance(row: Row) -> float:
    """How far off a tensor is in the measure of noise floors, so that the pair that made one is within it."""
    off, relative = distance(row), row.relative_euclidean_distance
    return off if row.is_scalar or relative is None or not isfinite(off) else relative


def is_only_noise(row: Row, threshold: float) -> bool:
    """True for a tensor below the threshold that agrees all the same, by its noise."""
    return row.noise is not None and agrees(row, threshold) is True and not agrees(replace(row, noise=None), threshold)


def distance(row: Row) -> float:
    """How far off a tensor is: the relative distance that its cosine stands for, 0 where nothing was compared."""
    if row.cosine is None:
        return 0.0
    if row.mismatches or isnan(row.cosine):
        return inf
    if row.is_scalar and row.relative_euclidean_distance is not None:
        if not row.relative_euclidean_distance and (row.max_absolute_error or 0.0) >= _PRINTED:
            return inf  # the benchmark is 0, which has no relative error, and the NPU value is not
        return row.relative_euclidean_distance
    return sqrt(2 * max(0.0, 1 - row.cosine))


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """Whether all tensors that were compared agree; None if none was."""
    verdicts = [verdict for row in rows if (verdict := agrees(row, threshold)) is not None]
    return all(verdicts) if verdicts else None


def ops_of(rows: Sequence[Row], threshold: float) -> list[OpAgreement]:
    """The ops of a result in execution order, with their agreement at `threshold`."""
    by_op: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        by_op.setdefault((row.index, row.op_name), []).append(row)
    ops = []
    for (index, name), of_op in sorted(by_op.items(), key=lambda item: item[0][0]):
        inputs = tuple(row for row in of_op if row.slot.startswith("input"))
        outputs = tuple(row for row in of_op if row.slot.startswith("output"))
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
                inputs_agree=all_agree(inputs, threshold),
                outputs_agree=all_agree(outputs, threshold),
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
    """How many tensors were compared and agree; the others by status, most frequent first."""
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


def _worst(rows: Sequence[Row], threshold: float) -> Row:
    wrong = [row for row in rows if agrees(row, threshold) is False]
    return min(wrong, key=lambda row: -2.0 if row.cosine is None or isnan(row.cosine) else row.cosine)


def _cosines(rows: Sequence[Row]) -> str:
    return ", ".join(f"{row.slot.split(':')[-1]}: {_cosine(row)}" for row in rows) or "none"


def _cosine(row: Row) -> str:
    if row.cosine is None:
        return "not compared"
    if row.is_scalar and distance(row):
        return f"{distance(row):.3g} times its size off"
    return f"{row.cosine:.6f}"


def find_first_fault(ops: Sequence[OpAgreement], threshold: float, unread_graph: str = "") -> list[Finding]:
    """The first op in execution order whose inputs agree and whose output does not, and what else must be known.

    Said before it: that some op was fed differing values before any op made an error (other weights, other
    data). Said with it: ops that crossed the threshold earlier by accumulated error alone, or whose true output
    is zero on paper, so that its cosine is noise. They are named only if there is no op with an error of its own.
    Where the run's graph is there and `unread_graph` says why it could not be read, nothing tells which op is fed by
    which: then none is named.
    """
    if all(op.inputs_agree is None and op.outputs_agree is None for op in ops):
        told = _by_statistics(ops, unread_graph)
        if told is not None:
            return [told]
        message = "no tensor could be compared: the notes and the last columns of the result file say why"
        return [Finding(kind=FindingKind.NOTHING_COMPARED, grade=Grade.WARNING, message=message)]
    first_below = next((op for op in ops if op.is_below), None)
    if first_below is None:
        message = f"every compared tensor reaches a cosine of {threshold:.9g}"
        return [Finding(kind=FindingKind.ALL_AGREE, grade=Grade.INFO, message=message)]
    if unread_graph:
        return [_no_op_named(unread_graph, sum(op.is_below for op in ops), threshold)]
    findings: list[Finding] = []
    if first_below.inputs_agree is False:
        before = [op for op in ops if op.index < first_below.index]
        changed = _changed_input(first_below, before, threshold)
        unseen = [op for op in before if op.is_unseen]
        findings.append(changed or _different_input(first_below, unseen, threshold))
    candidates = [op for op in ops if op.is_suspect or op.made_error]
    culprit = next((op for op in candidates if op.made_error and not op.is_cancelled), None)
    culprit = culprit or next((op for op in candidates if not op.is_cancelled), None)
    culprit = culprit or next(iter(candidates), None)
    if culprit is None:
        message = f"every op with a wrong output already has a wrong input; the first is {first_below.op_name}"
        below = Finding(
            kind=FindingKind.BELOW_THRESHOLD,
            grade=Grade.WARNING,
            message=message,
            op_name=first_below.op_name,
            op_type=first_below.op_type,
        )
        return [*findings, below]
    passed_over = candidates[: candidates.index(culprit)]
    return [*findings, _faulty_op(culprit, passed_over, threshold)]


def _by_statistics(ops: Sequence[OpAgreement], unread_graph: str) -> Finding | None:
    """What a dump of statistics alone tells: the first op whose inputs' agree and whose output's do not.

    Less than a comparison: values in another order, or wrong ones of the same size, have the same statistics.
    """
    told = [row.statistics_agree for op in ops for row in op.rows if row.statistics_agree is not None]
    if not told:
        return None
    facts = [("statistics", f"of {counted(len(told), 'tensor')}, {told.count(False)} of which differ")]
    next_step = ("next", "dump the tensors of it and of what feeds it (dump_data='tensor'), and compare again")
    if all(told):
        facts.append(("doubt", "wrong values may have the same statistics; no value was compared"))
        message = "only statistics were dumped, and they agree as far as they tell"
        return Finding(kind=FindingKind.NOTHING_COMPARED, grade=Grade.INFO, message=message, facts=tuple(facts))
    wrong = [op for op in ops if any(row.statistics_agree is False for row in op.rows)]
    suspects = [op for op in wrong if all(row.statistics_agree is not False for row in op.inputs)]
    if unread_graph or not suspects:
        why = f"the run's graph could not be read: {unread_graph}" if unread_graph else "their inputs' differ as well"
        message = f"only statistics were dumped, and those of {counted(len(wrong), 'op')} differ; which is wrong they"
        message += f" do not tell: {why}"
        return Finding(kind=FindingKind.NOTHING_COMPARED, grade=Grade.WARNING, message=message, facts=tuple(facts))
    op = suspects[0]
    facts += [("differs", f"{row.slot}: {row.reason}") for row in op.outputs if row.statistics_agree is False]
    facts += [("doubt", f"{row.slot} was not compared: {row.reason}") for row in op.inputs if not row.statistics_agree]
    before = [one for one in wrong if one.index < op.index]
    if before:
        facts.append(("doubt", f"fed values that differ before it: {before[0].op_name}"))
    if not op.inputs:
        facts.append(("doubt", "it has no input: the runs may have been fed different data or weights"))
    return Finding(
        kind=FindingKind.NOTHING_COMPARED,
        grade=Grade.WARNING,
        message=f"{op.op_name} is the first op whose output has other statistics, though its inputs' do not differ: "
        "evidence of statistics only",
        op_name=op.op_name,
        op_type=op.op_type,
        pass_names=op.pass_names,
        original_ops=op.original_ops,
        facts=(*facts, next_step),
    )


def _no_op_named(unread_graph: str, below: int, threshold: float) -> Finding:
    return Finding(
        kind=FindingKind.UNREADABLE,
        grade=Grade.WARNING,
        message="which op is the first to compute wrong is not known: the run's graph could not be read",
        facts=(
            ("graph", unread_graph),
            ("below", f"{counted(below, 'op')} below {threshold:.9g}, fused ops and inputs not looked at"),
            ("next", "copy the graph files again, or name one with -g, and compare again"),
        ),
    )


def find_unreadable(rows: Sequence[Row]) -> list[Finding]:
    """What could not be read: a check that did not see everything must not pass in silence."""
    bad = [row for row in rows if row.status == Status.UNREADABLE]
    if not bad:
        return []
    message = f"tensors or files that could not be read: {len(bad)}; what they hold was not checked"
    facts = [(f"{row.op_name} {row.slot}".rstrip(), row.reason) for row in bad[:_SHOWN_UNREAD]]
    if len(bad) > _SHOWN_UNREAD:
        more = counted(len(bad) - _SHOWN_UNREAD, "row")
        facts.append(("more", f"{more} of the result with the status {Status.UNREADABLE}"))
    return [
        Finding(
            kind=FindingKind.UNREADABLE,
            grade=Grade.WARNING,
            message=message,
            op_name=bad[0].op_name,
            facts=tuple(
                ("first" if not number else "", f"{where}: {why}") for number, (where, why) in enumerate(facts)
            ),
        )
    ]


def _changed_input(op: OpAgreement, before: Sequence[OpAgreement], threshold: float) -> Finding | None:
    """For an input that one of the ops `before` put out right: something changed it on the way."""
    row = _worst(op.inputs, threshold)
    right = [
        other
        for other in before
        for output in other.outputs
        if row.golden_tensor and output.golden_tensor == row.golden_tensor and agrees(output, threshold)
    ]
    if not right:
        return None
    return Finding(
        kind=FindingKind.DIFFERENT_INPUT,
        grade=Grade.FAULT,
        message=f"{row.slot} of {op.op_name} differs, and {right[-1].op_name} put the same tensor out right: it was "
        "changed in between",
        op_name=op.op_name,
        op_type=op.op_type,
        facts=(
            ("inputs", _cosines(op.inputs)),
            ("next", "`random` shows whether its memory was overwritten, and which op writes there"),
        ),
    )


def _different_input(op: OpAgreement, unseen: Sequence[OpAgreement], threshold: float) -> Finding:
    """`unseen` are earlier ops that ran and could not be compared: one of them may have made the difference."""
    row = _worst(op.inputs, threshold)
    facts = [("inputs", _cosines(op.inputs))]
    if unseen:
        why = (
            "the runs were fed different data or weights, or one of the ops before it that were not compared "
            f"({len(unseen)})"
        )
        facts += [("not compared", other.op_name) for other in unseen[-3:]]
    else:
        why = "the two runs were fed different data or weights"
    return Finding(
        kind=FindingKind.DIFFERENT_INPUT,
        grade=Grade.WARNING if unseen else Grade.FAULT,
        message=f"{row.slot} of {op.op_name} differs before any compared op computed wrong: {why}"
        + (" computed wrong" if unseen else ""),
        op_name=op.op_name,
        op_type=op.op_type,
        facts=tuple(facts),
    )


def _faulty_op(op: OpAgreement, passed_over: Sequence[OpAgreement], threshold: float) -> Finding:
    facts = [("inputs", _cosines(op.inputs)), ("outputs", _cosines(op.outputs))]
    reason = _worst(op.outputs, threshold).reason
    if reason:
        facts.append(("note", reason))
    if op.is_cancelled:
        facts.append(("doubt", "its true output is zero beside its inputs, so this may be rounding alone"))
    elif not op.made_error:
        facts.append(("doubt", "its inputs are nearly as far off: this may be accumulated rounding"))
    facts += [
        ("doubt", f"{row.slot} was not compared, so the error may have come in there: {row.reason}")
        for row in op.unknown_inputs[:3]
    ]
    for other in passed_over[:3]:
        why = "its true output is zero beside its inputs" if other.is_cancelled else "its error is accumulated"
        facts.append(("passed over", f"{other.op_name}: {why}"))
    if len(passed_over) > 3:
        facts.append(("passed over", f"and {counted(len(passed_over) - 3, 'more op')}"))
    if op.inputs_agree is None:
        what = "the first op whose output does not agree; no input of it could be compared"
    elif op.inputs_agree is False:
        what = "the first op whose output is much farther off than its inputs"
    elif passed_over:
        what = "the first op with an error of its own: its inputs agree, its output does not"
    elif op.unknown_inputs:
        what = "the first op whose compared inputs agree and whose output does not"
    else:
        what = "the first op whose inputs agree and whose output does not"
    return Finding(
        kind=FindingKind.FIRST_FAULTY_OP,
        grade=Grade.FAULT,
        message=f"{op.op_name} is {what}",
        op_name=op.op_name,
        op_type=op.op_type,
        pass_names=op.pass_names,
        original_ops=op.original_ops,
        facts=tuple(facts),
    )
