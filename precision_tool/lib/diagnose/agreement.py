"""Why a model of a run has no graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, isnan, sqrt

from precision_tool.lib.data.graph_catalog import MissingGraph
from precision_tool.lib.messages import Message
from precision_tool.lib.model.comparison import Status
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
