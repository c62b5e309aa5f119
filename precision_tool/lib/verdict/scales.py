"""A loss scale, told from one run: the variable that gradients start from, and by which they are divided again.

A number that is multiplied in and divided out again elsewhere, tanh(c·x) / c say, is none: what a loss scale is divided
out of updates a variable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, log2, prod

import numpy as np

from precision_tool.lib.checks.headroom import LOSS_SCALE
from precision_tool.lib.model.graph import Op, TensorDesc
from precision_tool.lib.ops.updates import updated_inputs
from precision_tool.lib.verdict.model import Cause, Fact, Proof, Suspect
from precision_tool.lib.verdict.rounding import norm
from precision_tool.lib.verdict.trace import Flow
from precision_tool.lib.verdict.values import DATA_TYPES, VARIABLE_TYPES, Root, RunValues, Slot

#: Ops that divide their first input by their second one, that make the reciprocal, and that multiply.
_DIVIDING = frozenset({"RealDiv", "Div", "DivNoNan", "TruncateDiv"})
_INVERTING = frozenset({"Reciprocal", "Inv"})
_MULTIPLYING = frozenset({"Mul", "Muls"})
#: How near a factor must be to a power of two to be a loss scale.
_POWER = 1e-3
#: How far what gradients were divided by may be off the scale, for rounding.
_ROUNDED = 2.0**-7
#: Ops that change neither which numbers a gradient has nor what it is of.
_REWRITING = frozenset({"Cast", "TransData"})


def is_scale(factor: float) -> bool:
    """Whether a factor is a power of two other than 1."""
    if not (isfinite(factor) and factor > 0):
        return False
    power = log2(factor)
    return abs(power - round(power)) <= _POWER and round(power) != 0


def known_scales(values: RunValues, found: Suspect | None) -> dict[str, float]:
    """The loss scale of a run by its op's name: the one that was found, else scalars that are called so."""
    if found is not None:
        return {found.culprit: found.fact("factor")} if found.fact("factor") is not None else {}
    named = [op for op in values.ops if LOSS_SCALE.search(op.name) and not op.inputs and _is_scalar(op)]
    scales = {op.name: _number(values, Root(op, 0)) for op in named}
    return {name: value for name, value in scales.items() if value is not None and isfinite(value)}


def loss_scale(values: RunValues, flow: Flow) -> Suspect | None:
    """The variable that scales the loss, where a run shows that the gradients are divided by it again."""
    return next(iter(_scales(values, flow)), None)


@dataclass(frozen=True, slots=True)
class _Unscaling:
    """An op that divides a gradient by a scale, or multiplies it by the reciprocal."""

    op: Op
    gradient: Root


def _scales(values: RunValues, flow: Flow) -> Iterator[Suspect]:
    for op in values.ops:
        if op.type not in VARIABLE_TYPES and op.type not in DATA_TYPES:
            continue
        root = Root(op, 0)
        if not _is_scalar(op):
            continue
        found, inverse = _unscaled(values, flow, root)
        found = [one for one in found if _updates(values, flow, one.op)]
        if not found:
            continue
        factor = _factor(values, root, inverse, found)
        if factor is not None and is_scale(factor) and _is_divided_by(values, found, factor):
            facts = (
                Fact(name="factor", value=float(f"{factor:.6g}")), Fact(name="unscaled_by", value=found[0].op.name),
                Fact(name="gradients", value=len(found)),
            )  # fmt: skip
            yield Suspect(
                culprit=op.name, cause=Cause.LOSS_SCALE, proof=Proof.RECOMPUTED, confidence=0.9,
                number=values.order[id(op)], op_type=op.type, facts=facts,
            )  # fmt: skip


def _unscaled(values: RunValues, flow: Flow, root: Root) -> tuple[list[_Unscaling], list[Root]]:
    """What divides by a scalar something that this scalar feeds, and the tensors that are its reciprocal."""
    inverse: list[Root] = []
    dividing: list[Slot] = []
    scaled: list[Op] = []
    for slot in values.readers.get(root.key, ()):
        if slot.op.type in _INVERTING:
            inverse.append(Root(slot.op, 0))
        elif slot.op.type in _DIVIDING and slot.graph_index == 1:
            if _is_scalar(slot.op):
                inverse.append(Root(slot.op, 0))
            else:
                dividing.append(slot)
        else:
            scaled.append(slot.op)
    for one in inverse:
        dividing += [slot for slot in values.readers.get(one.key, ()) if slot.op.type in _MULTIPLYING]
    behind = flow.behind(scaled)
    behind |= {id(op): op for op in scaled}
    found = []
    for slot in dividing:
        others = [fed for fed in values.producers(slot.op) if fed.key not in {root.key, *(one.key for one in inverse)}]
        if len(others) == 1 and id(others[0].op) in behind:
            found.append(_Unscaling(slot.op, others[0]))
    return found, inverse


def _updates(values: RunValues, flow: Flow, op: Op) -> bool:
    """Whether what an op puts out is the gradient of a variable that the run updates.

    An update behind it is of as many elements, or reads it itself: one that merely stands behind it is behind
    everything that the loss is made of.
    """
    count = _count(op.output_descs[0]) if op.output_descs else None
    for update in flow.behind([op]).values():
        if not updated_inputs(update.type):
            continue
        if count is not None and count in map(_count, update.input_descs):
            return True
        if any(_written_by(values, root) is op for root in values.producers(update)):
            return True
    return False


def _count(desc: TensorDesc) -> int | None:
    """Elements of a tensor, without padding; None where the graph does not tell."""
    shape = desc.origin_shape if desc.origin_shape is not None else desc.shape
    return prod(shape) if shape and min(shape) >= 0 else None


def _written_by(values: RunValues, root: Root) -> Op:
    """The op that put out a tensor, before it was cast or stored otherwise."""
    seen: set[int] = set()
    while root.op.type in _REWRITING and id(root.op) not in seen:
        seen.add(id(root.op))
        root = next(values.producers(root.op), root)
    return root.op


def _is_divided_by(values: RunValues, found: Sequence[_Unscaling], factor: float) -> bool:
    """Whether a gradient was divided by the factor, or none is known on both sides."""
    is_known = False
    for one in found:
        quotient = _quotient(values, one)
        if quotient is None:
            continue
        if abs(quotient / factor - 1) <= _ROUNDED:
            return True
        is_known = True
    return not is_known


def _is_scalar(op: Op) -> bool:
    return bool(op.output_descs) and prod(op.output_descs[0].shape) == 1


def _factor(values: RunValues, root: Root, inverse: list[Root], found: list[_Unscaling]) -> float | None:
    """The scale, from its own copies, its reciprocal's, or what a gradient was divided by; None where nothing shows."""
    value = _number(values, root)
    if value is not None:
        return value
    for one in inverse:
        value = _number(values, one)
        if value:
            return 1 / value
    return next((quotient for one in found if (quotient := _quotient(values, one)) is not None), None)


def _quotient(values: RunValues, one: _Unscaling) -> float | None:
    """What a gradient was divided by; None where it is not known before and after, or is not finite, or zero."""
    scaled, back = values.load_root(one.gradient), values.load_root(Root(one.op, 0))
    if scaled is None or back is None or scaled.input.array.size != back.input.array.size:
        return None
    x = np.asarray(scaled.input.array, np.float64).reshape(-1)
    y = np.asarray(back.input.array, np.float64).reshape(-1)
    size = norm(y)
    if not (size and isfinite(size) and isfinite(norm(x))):
        return None
    return float(np.einsum("i,i->", x / size, y / size))


def _number(values: RunValues, root: Root) -> float | None:
    loaded = values.load_root(root)
    if loaded is None or loaded.input.array.size != 1 or loaded.input.array.dtype.kind not in "fiu":
        return None
    return float(np.asarray(loaded.input.array, np.float64).reshape(-1)[0])
