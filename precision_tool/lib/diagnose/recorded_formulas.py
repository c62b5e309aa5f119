"""The formula of a recorded call of PyTorch: its function of its own recorded arguments.

Where a formula of GE computes it from the very tensors, that is the formula, and large ops are judged by parts as those
of GE's graphs are. Elsewhere the arguments are bound anew each time, as a stage of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from precision_tool.lib.diagnose.error_shape import UNIT, rounded_to
from precision_tool.lib.diagnose.formulas import LENT, Formula, Ref, Stage, output_specs_of
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.msprobe import (
    RECORDED,
    Argument,
    DescribedArgument,
    Direction,
    Literal,
    RecordedCall,
    RecordedOp,
    RecordedTensor,
    SliceArgument,
)
from precision_tool.lib.ops import op_table
from precision_tool.lib.ops.base import Call, Input, NotComputedError, OpSpec, Outputs
from precision_tool.lib.ops.torch_apis import builder_of, other_call, torch_call

T = TypeVar("T")

#: Of the gradients that an output of a backward may be, as many combinations are tried.
_MAX_COMBINATIONS = 8


def recorded_of(op: Op) -> RecordedOp | None:
    """Return what was recorded of an op; None for an op of a compiler's graph."""
    recorded = op.attrs.get(RECORDED)
    return recorded if isinstance(recorded, RecordedOp) else None


def api_of(call: RecordedCall) -> str:
    """Return the function that a call is of, as `torch_call` names it."""
    name = call.call
    if name is None:
        return call.name
    return f"{name.prefix}.{name.class_name or name.name}"


def has_formula(op: Op) -> bool:
    """Return whether there is a formula of an op."""
    recorded = recorded_of(op)
    if recorded is None:
        return op_table.find(op.type) is not None
    return _is_forward(recorded) and builder_of(api_of(recorded.call)) is not None


def _is_forward(recorded: RecordedOp) -> bool:
    return recorded.call.call is not None and recorded.call.call.direction is Direction.FORWARD


def recorded_formulas(op: Op, recorded: RecordedOp, inputs: Mapping[int, Input]) -> Iterator[Formula]:
    """Yield the formulas of a recorded op.

    Parameters
    ----------
    op : Op
        The op.
    recorded : RecordedOp
        What was recorded of it.
    inputs : mapping of int to Input
        Its inputs by slot.

    Raises
    ------
    NotComputedError
        Its function has no formula, not with these arguments, or inputs are missing.
    """
    yield _formula(op, recorded, inputs, _forward_call)
    if other_call(_forward_call(op, recorded, inputs)) is not None:
        yield replace(_formula(op, recorded, inputs, _other_forward_call), is_certain=False)


#: Makes the call of a formula of a recorded op from its inputs by slot.
_Make = Callable[[Op, RecordedOp, Mapping[int, Input]], Call]


def _forward_call(op: Op, recorded: RecordedOp, inputs: Mapping[int, Input]) -> Call:
    lower = _autocast_type(op, recorded)
    if lower:
        inputs = {slot: _rounded(tensor, lower) for slot, tensor in inputs.items()}
    args, kwargs = bound(recorded.call, inputs)
    return torch_call(api_of(recorded.call), args, kwargs)


def _other_forward_call(op: Op, recorded: RecordedOp, inputs: Mapping[int, Input]) -> Call:
    call = other_call(_forward_call(op, recorded, inputs))
    if call is None:
        raise NotComputedError("no_formula", op_type=op.type)
    return call


def _formula(op: Op, recorded: RecordedOp, inputs: Mapping[int, Input], make: _Make) -> Formula:
    call = make(op, recorded, inputs)
    spec = op_table.find(call.op_type)
    if spec is None:
        raise NotComputedError("no_formula", op_type=call.op_type)
    specs = call.outputs or output_specs_of(op.output_descs)
    outputs = {slot: Ref(slot, 0) for slot in range(max(len(op.output_descs), 1))}
    direct = _direct_args(call, inputs)
    if direct is not None:
        args, lent = direct
        stage = Stage(name=op.name, op_type=call.op_type, args=args, attrs=call.attrs, output_specs=specs)
        return Formula(stages=(stage,), outputs=outputs, lent=lent)
    slots = sorted(inputs)
    stage = Stage(
        name=op.name, op_type=api_of(recorded.call), args=tuple(map(Ref, slots)), output_specs=specs,
        own_spec=_rebinding(spec, op, recorded, slots, make),
    )  # fmt: skip
    return Formula(stages=(stage,), outputs=outputs)


def _direct_args(call: Call, inputs: Mapping[int, Input]) -> tuple[tuple[Ref | None, ...], dict[int, Input]] | None:
    """The inputs of a call as those of the op; numbers are lent. None where a tensor was changed before."""
    slots = {id(tensor.array): slot for slot, tensor in inputs.items()}
    args: list[Ref | None] = []
    lent: dict[int, Input] = {}
    for number, tensor in enumerate(call.inputs):
        slot = None if tensor is None else slots.get(id(tensor.array))
        if tensor is None:
            args.append(None)
        elif slot is not None and tensor == inputs[slot]:
            args.append(Ref(slot))
        elif tensor.array.ndim == 0 and not slots.keys() & {id(tensor.array), id(tensor.array.base)}:
            lent[LENT + number] = tensor
            args.append(Ref(LENT + number))
        else:
            return None
    return tuple(args), lent


def _rebinding(spec: OpSpec, op: Op, recorded: RecordedOp, slots: Sequence[int], make: _Make) -> OpSpec:
    """The formula as one of the op's inputs in the order of their slots."""

    def inner(call: Call) -> Call:
        inputs = {slot: tensor for slot, tensor in zip(slots, call.inputs, strict=True) if tensor is not None}
        made = make(op, recorded, inputs)
        return replace(made, outputs=made.outputs or call.outputs, only_values=call.only_values)

    def of_inner(function: Callable[..., T] | None) -> Callable[..., T] | None:
        return None if function is None else lambda call, *more: function(inner(call), *more)

    def whole(call: Call) -> Outputs:
        return spec.function(inner(call))

    return replace(
        spec, function=whole, sampled=of_inner(spec.sampled), work=of_inner(spec.work),
        cheap_places=of_inner(spec.cheap_places), row_sums=of_inner(spec.row_sums), inputs=(),
    )  # fmt: skip


# --- arguments --------------------------------------------------------------------------------------------------------


def bound(call: RecordedCall, inputs: Mapping[int, Input], first: int = 0) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call with its tensors, of slots from `first` on. NotComputedError for one missing."""
    slots = iter(range(first, 1 << 62))

    def value(argument: Argument) -> Any:
        if isinstance(argument, RecordedTensor):
            slot = next(slots)
            if slot not in inputs:
                raise NotComputedError("fed_unknown", name=call.name, slot=slot)
            return inputs[slot]
        if isinstance(argument, Literal):
            return _literal(argument)
        if isinstance(argument, SliceArgument):
            return slice(argument.start, argument.stop, argument.step)
        if isinstance(argument, DescribedArgument):
            raise NotComputedError("no_variant", name=argument.type, value="")
        if isinstance(argument, tuple):
            return [value(item) for item in argument]
        if isinstance(argument, Mapping):
            return {name: value(item) for name, item in argument.items()}
        return argument

    args = [value(argument) for argument in call.inputs]
    return args, {name: value(argument) for name, argument in call.kwargs.items()}


def _literal(argument: Literal) -> Any:
    if argument.type.lower() == "ellipsis":
        return ...
    return list(argument.value) if isinstance(argument.value, tuple) else argument.value


#: Types that autocast casts to.
_LOWER = frozenset({"float16", "bfloat16"})


def _autocast_type(op: Op, recorded: RecordedOp) -> str:
    """The type that autocast cast a call's inputs to, which were recorded before: that of its outputs; "" for none."""
    names = [argument for name, argument in recorded.call.kwargs.items() if name == "dtype"]
    types = {desc.dtype for desc in op.output_descs}
    given = {desc.dtype for desc in op.input_descs if desc.dtype in UNIT}
    if names or len(types) != 1 or not types <= _LOWER or types >= given or "float32" not in given:
        return ""
    function = recorded.call.call.name if recorded.call.call is not None else ""
    return "" if function in _CASTING else next(iter(types))


#: Functions whose purpose is another type.
_CASTING = frozenset({"to", "type", "half", "bfloat16", "type_as", "copy_", "_to_copy", "npu_dtype_cast"})


def _rounded(tensor: Input, dtype: str) -> Input:
    if tensor.dtype != "float32":
        return tensor
    array = rounded_to(np.asarray(tensor.array, np.float64), dtype)
    return replace(tensor, array=array.astype(tensor.array.dtype), dtype=dtype)
