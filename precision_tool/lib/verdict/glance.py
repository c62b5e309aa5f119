"""A first look at some rows of a large op, and only these read, where the comparison showed nothing new at the op.

What is not plainly right there is looked at whole. The place of an output's largest error is among what is looked at:
behind a large fault everything is far off, and a second one as large would else hide between the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np

from precision_tool.lib.model.graph import Op, TensorDesc
from precision_tool.lib.model.tensor import Tensor
from precision_tool.lib.numbers import data_types, layouts
from precision_tool.lib.numbers.reading import reading_of
from precision_tool.lib.ops.base import Input, NotComputedError
from precision_tool.lib.verdict.formulas import Formula
from precision_tool.lib.verdict.in_blocks import narrowing, parts_of, right_in_blocks
from precision_tool.lib.verdict.judgement import OpJudgement, State
from precision_tool.lib.verdict.rounding import is_judged
from precision_tool.lib.verdict.rows import Rows, spread
from precision_tool.lib.verdict.values import Fed, NoValueError, RunValues
from precision_tool.lib.verdict.ways import Ways

#: Elements of the inputs and outputs of an op from which on some are looked at: this share of the rows, at least so
#: many rows and elements of the output.
_GLANCED_FROM = 1 << 20
_SHARE, _FEWEST_ROWS, _FEWEST = 8, 6, 1 << 15
#: In how many pieces, and about how large ones: many small reads take longer than few.
_FEWEST_PIECES, _MOST_PIECES, _PIECE = 8, 64, 1 << 14
#: Rows that blocks of a matrix hold.
_BLOCK = 16
#: Rows that elements are counted in at least, where an op treats each alone.
_MANY = 512

_Found = dict[int, tuple[Tensor, TensorDesc | None]]


def right_at_a_glance(values: RunValues, ways: Ways, base: OpJudgement) -> OpJudgement | None:
    """The judgement of an op whose chosen rows are right; None for any other, of which nothing is told."""
    op = base.op
    found = _own_tensors(values, op)
    if found is None:
        return None
    inputs, outputs = found
    is_blocked = not all(layouts.is_plain(one.layout) for one, _ in (*inputs.values(), *outputs.values()))
    try:
        fed = Fed(inputs={slot: _unread(*one) for slot, one in inputs.items()})
        got = {slot: _unread(*one) for slot, one in outputs.items()}
        for formula in ways.known(op, fed):
            slots = None
            rows_cut = _rows(formula, fed.inputs, got, is_blocked) if not formula.lent else None
            if rows_cut is not None:
                rows, cut = rows_cut
                rows = _with_the_worst(rows, got, values.compared.places, op.name, is_blocked)
                few = {slot: values.load(*one, stored=True, rows=rows if slot in cut else None)
                       for slot, one in inputs.items()}  # fmt: skip
                some = {slot: values.load(*one, stored=True, rows=rows) for slot, one in outputs.items()}
                part = formula.unshaped()
                slots = right_in_blocks(part, few, some, narrowing(part, few))
            if slots:
                told = tuple(replace(one, size=got[one.slot].array.size, sampled=one.size) for one in slots)
                ways.fitting.setdefault(ways.key(op), formula.shape)
                return replace(base, how=formula.how, formula=formula, slots=told, state=State.RIGHT)
    except (NotComputedError, NoValueError, ValueError, IndexError, TypeError, KeyError):
        pass  # the whole says why
    return None


def _own_tensors(values: RunValues, op: Op) -> tuple[_Found, _Found] | None:
    """Inputs and outputs as the op's own dump has all of them; None if it lacks one, or they are few."""
    dump = values.dumped(op)
    if dump is None or dump.merged:
        return None
    inputs, outputs = {}, {}
    for slot in values.input_slots(op):
        tensor = values.found(slot)
        if not isinstance(tensor, Tensor):
            return None
        inputs[slot.index] = tensor, slot.desc
    for index, tensor in dump.outputs.items():
        if not isinstance(tensor, Tensor):
            return None
        outputs[index] = tensor, op.output_descs[index] if index < len(op.output_descs) else None
    tensors = [one for one, _ in (*inputs.values(), *outputs.values())]
    if sum(one.size for one in tensors) < _GLANCED_FROM or len(outputs) < max(len(op.output_descs), 1):
        return None
    return (inputs, outputs) if inputs and all(is_judged(one.dtype) for one in tensors) else None


def _unread(tensor: Tensor, desc: TensorDesc | None) -> Input:
    """A tensor's type and shape in the order of the script, of numbers that take no memory."""
    named = desc.origin_layout if desc is not None else None
    declared = desc.origin_shape if desc is not None else None
    reading = reading_of(tensor, named, declared)
    if not reading.layout:
        raise NoValueError("axes_unknown")
    shape = reading.shape
    if declared is not None and prod(declared) == prod(shape) and min(declared, default=0) >= 0:
        shape = declared
    known = data_types.BY_NAME[tensor.dtype]
    kind = np.int8 if known.is_integer else np.bool_ if known.name == "bool" else np.float32
    return Input(array=np.broadcast_to(np.zeros((), kind), shape), dtype=tensor.dtype)


def _rows(
    formula: Formula, inputs: Mapping[int, Input], got: Mapping[int, Input], is_blocked: bool
) -> tuple[Rows, frozenset[int]] | None:
    """Which rows are looked at, and of which inputs; None where an op cannot be cut, or has few rows.

    Of tensors that lie in blocks those along the first axis are the ones that can be read alone.
    """
    parts = parts_of(formula, inputs, got)
    if parts is None:
        return None
    size = max(one.array.size for one in got.values())
    shapes = {one.array.shape for one in got.values()} | {inputs[slot].array.shape for slot in parts.cut}
    count, is_flat = parts.rows, False
    if parts.is_flat:
        if len(shapes) != 1:
            return None
        (shape,) = shapes
        is_flat = True
        several = [prod(shape[:axis]) for axis in range(1, len(shape))]
        count = next((rows for rows in several if rows >= _MANY and not is_blocked), shape[0])
    chosen = max(_FEWEST_ROWS, -(-count // _SHARE), -(-count * _FEWEST // size))
    if chosen * 2 > count:
        return None
    pieces = min(_MOST_PIECES, max(_FEWEST_PIECES, chosen * (size // count) // _PIECE))
    block = _BLOCK if is_blocked and chosen >= _FEWEST_PIECES * _BLOCK else 1
    return replace(spread(count, chosen, pieces, block), is_flat=is_flat), parts.cut


def _with_the_worst(
    rows: Rows, got: Mapping[int, Input], places: Mapping[tuple[str, str], tuple[int, int]], name: str, is_blocked: bool
) -> Rows:
    """These rows, and those in which the comparison found the largest errors of the outputs."""
    block = _BLOCK if is_blocked else 1
    for slot, output in got.items():
        place, size = places.get((name, f"output:{slot}"), (0, 0))
        if place < size == output.array.size:
            first = place * rows.count // size // block * block
            rows = rows.with_piece(first, min(first + block, rows.count))
    return rows
