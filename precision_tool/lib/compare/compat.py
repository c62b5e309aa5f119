"""`--compat`: the rows that msaccucmp would print, in its order, out of ours, which are more.

Ours has a row with the reason where the vendor gives up an op, passes over it, or does not see it. The figures of the
rows stay ours. Seen by running msaccucmp 26.2.0; tests/parity compares with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from precision_tool.lib.io import data_types
from precision_tool.lib.io.files import open_file
from precision_tool.lib.io.readers import open_op_dump
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.model.comparison import Pair, Status
from precision_tool.lib.model.graph import GraphFile, Op
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.tensor import AnyTensor, Tensor

#: Types that the vendor's table lacks: it says that there is no dump file of such an op.
_UNKNOWN_TYPES = frozenset(
    {"dual_sub_int8", "dual_sub_uint8", "qint8", "qint16", "qint32", "quint8", "quint16", "string", "int4", "int2"}
    | {"uint2", "complex32", "float8_e8m0", "float6_e3m2", "float6_e2m3", "float4_e2m1", "float4_e1m2"}
)
#: What numpy has after the vendor has decoded a type, where that is another.
_DECODED = {
    "bfloat16": "float32", "uint1": "uint8", "hifloat8": "float64", "float8_e5m2": "float64",
    "float8_e4m3fn": "float64",
}  # fmt: skip
_NO_FILE = Message("row.compare.vendor_no_file")


def type_name(tensor: AnyTensor) -> str:
    """Return the DataType cell as the vendor has it."""
    data_type = data_types.BY_NAME.get(tensor.dtype)
    plain = data_type.numpy_name or tensor.dtype if data_type is not None else tensor.dtype
    return _DECODED.get(tensor.dtype, plain)


def vendor_rows(rows: Sequence[Row], file: GraphFile | None) -> list[Row]:
    """Return the rows that msaccucmp would have; `file` is the graph, None for two runs matched by name."""
    if file is None:
        return list(_each_op(rows, _two_dumps))
    ops = {op.name: op for op in file.ops}
    matched_rows = [row for row in rows if not _is_passed_over(row.pair, ops)]
    return list(_each_op(matched_rows, _one_dump))


def _each_op(rows: Iterable[Row], change: Callable[[list[Row]], list[Row]]) -> Iterable[Row]:
    for _, of_op in groupby(rows, key=lambda row: (row.pair.index, row.pair.op_name)):
        yield from change(list(of_op))


def _is_passed_over(pair: Pair, ops: dict[str, Op]) -> bool:
    """Ops that the vendor has no line for: inner ones of a fusion, and those of other graphs."""
    if not pair.slot and pair.status in (Status.INTERMEDIATE, Status.NO_ORIGINAL_OP):
        return True
    op = ops.get(pair.op_name)
    return (
        op is not None
        and op.is_multiop
        and len(pair.npu_ops) > 1
        and not any(desc.dump_origin_name for desc in op.output_descs)
    )


def _one_dump(rows: list[Row]) -> list[Row]:
    """Return the rows of an op against the benchmark: one if the vendor cannot read its file."""
    if all(not row.pair.slot for row in rows):
        return rows[:1]
    names = rows[0].pair.op_name
    lost = (
        any(_is_unreadable(row) and row.pair.declared is None for row in rows)
        or " " in names
        or "\\" in names
        or _is_version_1(rows)
    )
    return [_whole_op(rows[0], Status.NO_NPU_DUMP, _NO_FILE)] if lost else [_as_declared(row) for row in rows]


def _as_declared(row: Row) -> Row:
    """Return the vendor reads the bytes that a tensor has and prints what its header says of it."""
    tensor = row.pair.declared
    return row if tensor is None else replace(row, pair=replace(row.pair, npu=tensor, shape=tensor.shape))


def _is_unreadable(row: Row) -> bool:
    pair = row.pair
    damaged = pair.status is Status.UNREADABLE and pair.npu is None
    return damaged or (pair.npu is not None and pair.npu.dtype in _UNKNOWN_TYPES)


def _is_version_1(rows: Sequence[Row]) -> bool:
    """Return whether the op's file is of the old format, without a length before its header: msaccucmp gave it up."""
    path = next((row.pair.npu.path for row in rows if isinstance(row.pair.npu, Tensor)), None)
    if path is None:
        return False
    try:
        with open_file(path) as file:
            return file.size < 8 or int.from_bytes(file.read_at(0, 8), "little") > file.size - 8
    except PrecisionToolError:  # it was there a moment ago
        return False


def _two_dumps(rows: list[Row]) -> list[Row]:
    """Return the rows of an op of two runs: a side, inputs or outputs, counts only if all its shapes are the same."""
    if all(not row.pair.slot for row in rows):
        return rows[:1]
    if any(_is_unreadable(row) for row in rows):
        return [_whole_op(rows[0], Status.NO_NPU_DUMP, _NO_FILE)]
    sides = [[row for row in rows if row.pair.is_input == is_input] for is_input in (True, False)]
    alike_rows = [row for side in sides if all(map(_is_alike, side)) and _is_all(side) for row in side]
    return alike_rows or [_whole_op(rows[0], Status.SIZE_MISMATCH, Message("row.compare.vendor_shapes"))]


def _is_alike(row: Row) -> bool:
    npu, golden = row.pair.npu, row.pair.golden
    return npu is not None and golden is not None and npu.shape == golden.shape


def _is_all(side: Sequence[Row]) -> bool:
    """Return whether the other run's dump has no more inputs, or outputs, than these."""
    other = next((row.pair.golden for row in side if row.pair.golden is not None), None)
    if other is None:
        return not side
    try:
        dump = open_op_dump(other.path)
    except PrecisionToolError:  # it was there a moment ago
        return True
    return len(dump.inputs if side[0].pair.is_input else dump.outputs) == len(side)


def _whole_op(row: Row, status: Status, message: Message) -> Row:
    """Return a row that stands for the op and has no figures."""
    pair = replace(
        row.pair, slot="", npu=None, golden=None, golden_tensor="", npu_plan=None, golden_plan=None, shape=None,
        status=status, reason=message,
    )  # fmt: skip
    return Row(pair=pair, reason=message)
