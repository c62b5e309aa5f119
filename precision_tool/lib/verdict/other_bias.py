"""Whether an op that adds a bias is off as by another bias, which its kernel does not make of the one that it has."""

from __future__ import annotations

import numpy as np

from precision_tool.lib.errors import PrecisionToolError
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.tensor import Tensor
from precision_tool.lib.ops.base import Input
from precision_tool.lib.verdict.places import Doubles
from precision_tool.lib.verdict.rounding import UNIT
from precision_tool.lib.verdict.values import NoValueError, Root, RunValues

#: Ops that add a bias to each channel.
_ADDING = ("BiasAdd", "Add", "AddV2")
#: Fewer channels, or elements in each, prove nothing.
_FEW_CHANNELS, _FEW_ELEMENTS = 4, 4
#: How far what was added may be from one number a channel, in units of the last place of what was added up.
_UNITS = 4.0
#: How near it must be to what a kernel would make of the benchmark's bias to be put down to the kernel.
_NEAR = 0.02


def is_another_bias(values: RunValues, op: Op, bias: Root) -> bool:
    """Whether what an op added is one number in each channel, and neither a multiple nor another order of its bias.

    `bias` is the variable, whose numbers are the benchmark's. False where that is not known.
    """
    if op.type not in _ADDING:
        return False
    known = values.load_benchmark(bias)
    fed = _other_input(values, op, bias)
    output = values.found(values.output_slot(Root(op, 0)))
    if known is None or fed is None or not isinstance(output, Tensor) or {fed.dtype, output.dtype} - UNIT.keys():
        return False
    try:
        got = values.load(output, op.output_descs[0] if op.output_descs else None)
    except (NoValueError, PrecisionToolError):
        return False
    x, y = np.asarray(fed.array, np.float64), np.asarray(got.array, np.float64)
    true = np.asarray(known.input.array, np.float64).reshape(-1)
    if x.shape != y.shape or true.size < _FEW_CHANNELS:
        return False
    unit = max(UNIT[fed.dtype], UNIT[got.dtype])
    for axis in (axis for axis, size in enumerate(x.shape) if size == true.size):
        added = _one_a_channel(x, y, axis, unit)
        if added is not None:
            return not _is_made_of(true, added)
    return False


def _other_input(values: RunValues, op: Op, bias: Root) -> Input | None:
    """What the bias is added to."""
    for slot in values.input_slots(op):
        root = values.fed_by.get((id(op), slot.graph_index))
        if root is None or values.parameter_of(root) is bias.op:
            continue
        own = values.found(slot)
        try:
            if isinstance(own, Tensor):
                return values.load(own, slot.desc)
            loaded = values.load_root(root)
        except (NoValueError, PrecisionToolError):
            return None
        return loaded.input if loaded is not None else None
    return None


def _one_a_channel(x: Doubles, y: Doubles, axis: int, unit: float) -> Doubles | None:
    """What was added to each channel; None if it is not the same for all its elements."""
    with np.errstate(all="ignore"):
        added = np.moveaxis(y - x, axis, -1).reshape(-1, x.shape[axis])
        slack = _UNITS * unit * np.moveaxis(np.abs(x) + np.abs(y), axis, -1).reshape(added.shape)
        middle = np.median(added, axis=0)
        is_one = bool((np.abs(added - middle) <= slack).all())
    return middle if is_one and len(added) >= _FEW_ELEMENTS else None


def _is_made_of(true: Doubles, added: Doubles) -> bool:
    """Whether a kernel with a fault may have added this for the bias: a multiple of it, or it in another order."""
    size = float(np.linalg.norm(added))
    square = float(true @ true)
    multiple = true * (float(added @ true) / square) if square else np.zeros_like(true)
    others = (multiple, np.sort(true) - np.sort(added) + added)
    return any(float(np.linalg.norm(added - other)) <= _NEAR * size for other in others)
