"""Which tensors agree, which ops therefore are suspects, and what was not compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isnan, sqrt

from precision_tool.lib.compare.result_csv import ResultRow
from precision_tool.lib.model.finding import Finding, FindingKind, Grade

_SCALAR = "scalar"


def agrees(row: ResultRow, threshold: float) -> bool | None:
    """Whether the tensor of a row agrees with its benchmark; None if it was not compared.

    The cosine must reach the threshold. A single number has no direction, so its relative error takes the
    cosine's place: an angle with cosine c is a relative distance of sqrt(2 (1 - c)).
    """
    if row.cosine is None:
        return None
    if row.mismatches or isnan(row.cosine):
        return False
    if _SCALAR in row.reason and row.relative_euclidean_distance is not None:
        return row.relative_euclidean_distance <= sqrt(2 * (1 - threshold))
    return row.cosine >= threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class OpAgreement:
    """The rows of one op, and whether its inputs and outputs agree (None: nothing was compared)."""

    index: int
    op_name: str
    op_type: str
    npu_names: str
    golden_names: str
    pass_name: str
    original_ops: str
    inputs: tuple[ResultRow, ...]
    outputs: tuple[ResultRow, ...]
    inputs_agree: bool | None
    outputs_agree: bool | None

    @property
    def is_below(self) -> bool:
        """True if any tensor of the op disagrees."""
        return self.inputs_agree is False or self.outputs_agree is False

    @property
    def is_suspect(self) -> bool:
        """True if the op's output disagrees although no input does: it made the error itself."""
        return self.outputs_agree is False and self.inputs_agree is not False


def _all_agree(rows: Iterable[ResultRow], threshold: float) -> bool | None:
    verdicts = [verdict for row in rows if (verdict := agrees(row, threshold)) is not None]
    return all(verdicts) if verdicts else None


def ops_of(rows: Sequence[ResultRow], threshold: float) -> list[OpAgreement]:
    """The ops of a result in execution order, with their agreement at `threshold`."""
    by_op: dict[tuple[int, str], list[ResultRow]] = {}
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
                npu_names=first.npu_names,
                golden_names=first.golden_names,
                pass_name=first.pass_name,
                original_ops=first.original_ops or first.golden_names,
                inputs=inputs,
                outputs=outputs,
                inputs_agree=_all_agree(inputs, threshold),
                outputs_agree=_all_agree(outputs, threshold),
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


def overview(rows: Sequence[ResultRow], ops: Sequence[OpAgreement], threshold: float) -> Overview:
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


def _worst(rows: Sequence[ResultRow], threshold: float) -> ResultRow:
    wrong = [row for row in rows if agrees(row, threshold) is False]
    return min(wrong, key=lambda row: -2.0 if row.cosine is None or isnan(row.cosine) else row.cosine)


def _cosines(rows: Sequence[ResultRow]) -> str:
    texts = [f"{row.slot.split(':')[-1]}: {row.cosine:.6f}" if row.cosine is not None else "" for row in rows]
    return ", ".join(text for text in texts if text) or "not compared"


def find_first_fault(ops: Sequence[OpAgreement], threshold: float) -> list[Finding]:
    """The first op in execution order whose inputs agree and whose output does not, and what came before it.

    If some op was fed differing values before any op made an error (other weights, other data), that is a
    finding of its own and comes first.
    """
    if all(op.inputs_agree is None and op.outputs_agree is None for op in ops):
        return [
            Finding(
                kind=FindingKind.NOTHING_COMPARED,
                grade=Grade.WARNING,
                message="no tensor could be compared: the reasons stand in the last columns of the result file",
            )
        ]
    findings: list[Finding] = []
    first_below = next((op for op in ops if op.is_below), None)
    if first_below is None:
        message = f"every compared tensor reaches a cosine of {threshold:g}"
        return [Finding(kind=FindingKind.ALL_AGREE, grade=Grade.INFO, message=message)]
    if first_below.inputs_agree is False:
        row = _worst(first_below.inputs, threshold)
        findings.append(
            Finding(
                kind=FindingKind.DIFFERENT_INPUT,
                grade=Grade.FAULT,
                message=(
                    f"{row.slot} of {first_below.op_name} differs before any op computed wrong: "
                    "the two runs were fed different data or weights"
                ),
                op_name=first_below.op_name,
                op_type=first_below.op_type,
                facts=(("inputs", _cosines(first_below.inputs)),),
            )
        )
    suspect = next((op for op in ops if op.is_suspect), None)
    if suspect is not None:
        row = _worst(suspect.outputs, threshold)
        unknown = "" if suspect.inputs_agree else " (no input of it could be compared)"
        findings.append(
            Finding(
                kind=FindingKind.FIRST_FAULTY_OP,
                grade=Grade.FAULT,
                message=f"{suspect.op_name} is the first op whose inputs agree and whose output does not{unknown}",
                op_name=suspect.op_name,
                op_type=suspect.op_type,
                pass_name=suspect.pass_name,
                original_ops=suspect.original_ops,
                facts=(
                    ("inputs", _cosines(suspect.inputs)),
                    ("outputs", _cosines(suspect.outputs)),
                    *((("note", row.reason),) if row.reason else ()),
                ),
            )
        )
    else:
        findings.append(
            Finding(
                kind=FindingKind.BELOW_THRESHOLD,
                grade=Grade.WARNING,
                message=f"every op with a wrong output already has a wrong input; the first is {first_below.op_name}",
                op_name=first_below.op_name,
                op_type=first_below.op_type,
            )
        )
    return findings
