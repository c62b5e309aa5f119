"""The figures of every tensor of one op: both sides, and how they compare where they can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from precision_tool.lib.engine.pairwise import compare_pairs
from precision_tool.lib.engine.scheduler import Progress, Resources
from precision_tool.lib.engine.tensor_figures import figures_of
from precision_tool.lib.errors import PrecisionToolError
from precision_tool.lib.graph.neighbourhood import described_inputs
from precision_tool.lib.model.comparison import Pair, Summary
from precision_tool.lib.model.graph import Op, TensorDesc
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.tensor import AnyTensor, Tensor
from precision_tool.lib.numbers import data_types
from precision_tool.lib.numbers.reading import reading_of


def compare_op(op: Op, pairs: Sequence[Pair], workers: int = 0, progress: Progress | None = None) -> list[Row]:
    """One row a pair, in order. Tensors without a partner, or one that fits, have their own figures all the same.

    What cannot be read, or only with its padding, is said in the row's reason.
    """
    return [_completed(op, row) for row in compare_pairs(pairs, Resources(workers, progress=progress))]


def _completed(op: Op, row: Row) -> Row:
    notes = [row.reason] if row.reason else []
    npu, golden = row.npu, row.golden
    if npu is None and row.pair.npu is not None:
        npu = _summary(row.pair.npu, _desc(op, row.pair.slot), notes)
    if golden is None and row.pair.golden is not None:
        golden = _summary(row.pair.golden, None, notes)
    return replace(row, npu=npu, golden=golden, reason="; ".join(notes))


def _desc(op: Op, slot: str) -> TensorDesc | None:
    """The graph's description of the input or output that a slot names."""
    kind, _, number = slot.partition(":")
    descs = dict(enumerate(op.output_descs)) if kind == "output" else described_inputs(op)
    return descs.get(int(number)) if number.isdecimal() else None


def _summary(tensor: AnyTensor, desc: TensorDesc | None, notes: list[str]) -> Summary | None:
    plan = None
    try:
        if isinstance(tensor, Tensor):
            if not data_types.BY_NAME[tensor.dtype].is_numeric:
                return None
            layout, shape = (None, None) if desc is None else (desc.origin_layout, desc.origin_shape)
            reading = reading_of(tensor, layout, shape)
            plan = reading.plan
            if reading.note:
                notes.append(f"figures: {reading.note}")
        return figures_of(tensor, plan).summary
    except PrecisionToolError as error:
        if error.advice not in notes:
            notes.append(error.advice)
        return None
