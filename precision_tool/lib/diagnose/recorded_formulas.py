"""The formula of a recorded call of PyTorch: its function of its own recorded arguments.

Where a formula of GE computes it from the very tensors, that is the formula, and large ops are judged by parts as those
of GE's graphs are. Elsewhere the arguments are bound anew each time, as a stage of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import signature
from math import inf
from typing import Any, TypeVar

import numpy as np

from precision_tool.lib.diagnose.error_shape import ACCUMULATED, UNIT, flat_doubles, norm, rounded_to
from precision_tool.lib.diagnose.formulas import FORMULA_ERRORS, LENT, Formula, Ref, Stage, output_specs_of
from precision_tool.lib.io.msprobe_dump import data_type_of
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.msprobe import (
    Argument,
    DescribedArgument,
    Direction,
    Literal,
    RecordedCall,
    RecordedOp,
    RecordedTensor,
    SliceArgument,
    numbered,
)
from precision_tool.lib.ops import op_table
from precision_tool.lib.ops.base import Call, Input, NotComputedError, OpSpec, Output, Outputs
from precision_tool.lib.ops.op_arguments import HALF
from precision_tool.lib.ops.torch_apis import builder_of, other_call, torch_call
from precision_tool.lib.ops.torch_gradients import has_gradient, recorded_gradients, torch_gradients

T = TypeVar("T")

#: How the types of ops end that put out gradients.
GRADIENTS = (f".{Direction.BACKWARD}", f".{Direction.PARAMETERS_GRAD}")
#: Other values of arguments by name, which kernels may take instead of those they are given. An error that one of them
#: explains is no imprecision.
_EPSILONS = (0.0, 1e-12, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
_SWITCH = (False, True)
_OTHERS: Mapping[str, tuple[Any, ...]] = {
    "eps": _EPSILONS, "epsilon": _EPSILONS, "approximate": ("none", "tanh"), "is_causal": _SWITCH, "scale": (None, 1.0),
    "attn_mask": (None,), "align_corners": _SWITCH, "count_include_pad": _SWITCH, "ceil_mode": _SWITCH,
    "label_smoothing": (0.0,), "bias": (None,), "weight": (None,), "alpha": (1,), "unbiased": _SWITCH,
    "correction": (0, 1), "amsgrad": _SWITCH, "momentum": (0.0,), "rounding_mode": (None, "floor", "trunc"),
    "dim": (-1, 0, 1, 2, 3),
}  # fmt: skip


def api_of(call: RecordedCall) -> str:
    """Return the function that a call is of, as `torch_call` names it."""
    name = call.call
    if name is None:
        return call.name
    return f"{name.prefix}.{name.class_name or name.name}"


def has_formula(op: Op) -> bool:
    """Return whether there is a formula of an op."""
    recorded = op.recorded
    if recorded is None:
        return op_table.find(op.type) is not None
    if _is_forward(recorded):
        return builder_of(api_of(recorded.call)) is not None or api_of(recorded.call) in MODULES
    return recorded.forward is not None and has_gradient(api_of(recorded.forward))


def _is_forward(recorded: RecordedOp) -> bool:
    return recorded.call.call is not None and recorded.call.call.direction is Direction.FORWARD


def recorded_formulas(
    op: Op, recorded: RecordedOp, inputs: Mapping[int, Input], got: Mapping[int, Input]
) -> Iterator[Formula]:
    """Yield the formulas of a recorded op.

    Parameters
    ----------
    op : Op
        The op.
    recorded : RecordedOp
        What was recorded of it.
    inputs : mapping of int to Input
        Its inputs by slot.
    got : mapping of int to Input
        What it put out by slot, where that is needed and known.

    Raises
    ------
    NotComputedError
        Its function has no formula, not with these arguments, or inputs are missing.
    """
    _check_whole(recorded)
    if dropped_share(recorded):
        yield _dropout_formula(op, dropped_share(recorded), got)
    elif not _is_forward(recorded):
        formula = _gradient_formula(op, recorded, inputs, got)
        if recorded.forward is not None and autocast_type(recorded.forward):
            formula = replace(formula, plain=partial(_gradient_formula, op, recorded, inputs, got, is_cast=False))
        yield formula
    elif api_of(recorded.call) in MODULES:
        yield from _module_formulas(op, recorded, inputs)
    else:
        call = _forward_call(op, recorded, inputs)
        formula = _formula(op, recorded, inputs, _forward_call, call)
        if autocast_type(recorded.call):
            uncast = partial(_forward_call, is_cast=False)
            formula = replace(formula, plain=partial(_formula, op, recorded, inputs, uncast))
        yield formula
        if other_call(call) is not None:
            yield replace(_formula(op, recorded, inputs, _other_forward_call), is_certain=False)


def has_variants(recorded: RecordedOp) -> bool:
    """Return whether a call has an argument that a kernel may take another value for."""
    builder = builder_of(api_of(recorded.call)) if _is_forward(recorded) else None
    return builder is not None and not _OTHERS.keys().isdisjoint(signature(builder).parameters)


def recorded_variants(
    op: Op, recorded: RecordedOp, inputs: Mapping[int, Input]
) -> Iterator[tuple[tuple[str, str, str], Formula]]:
    """Yield formulas of a call with another value of one argument, with its name and both values.

    Parameters, without `got`, and errors as of `recorded_formulas`.
    """
    builder = builder_of(api_of(recorded.call)) if _is_forward(recorded) else None
    if builder is None:
        return
    args, kwargs = bound(recorded.call, inputs)
    try:
        arguments = signature(builder).bind(*args, **kwargs)
    except TypeError:
        return
    arguments.apply_defaults()
    for name, value in list(arguments.arguments.items()):
        for other in _OTHERS.get(name, ()):
            if _is_same(value, other) or (name == "dim" and not isinstance(value, int)):
                continue

            def changed(
                op: Op, recorded: RecordedOp, inputs: Mapping[int, Input], name: str = name, other: Any = other
            ) -> Call:
                return _forward_call(op, recorded, inputs, {name: other})

            with suppress(NotComputedError):
                yield (name, _shown(value), _shown(other)), _formula(op, recorded, inputs, changed)


def _is_same(value: Any, other: Any) -> bool:
    if isinstance(value, Input) or isinstance(other, Input):
        return value is other
    return value is other or (value == other and type(value) is type(other))


def _shown(value: Any) -> str:
    return "tensor" if isinstance(value, Input) else str(value)


def _check_whole(recorded: RecordedOp) -> None:
    """Raise NotComputedError where a tensor is one rank's part of another: a call of parts may give parts of a sum."""
    for tensor in (*recorded.inputs, *recorded.outputs):
        if "placements" in tensor.more or "device_mesh" in tensor.more or "DTensor" in tensor.type:
            raise NotComputedError("sharded", name=tensor.type)


#: Makes the call of a formula of a recorded op from its inputs by slot.
_Make = Callable[[Op, RecordedOp, Mapping[int, Input]], Call]


def _forward_call(
    op: Op, recorded: RecordedOp, inputs: Mapping[int, Input], others: Mapping[str, Any] | None = None,
    is_cast: bool = True,
) -> Call:  # fmt: skip
    """The call of a formula; `others` are arguments by name that have other values; `is_cast`: autocast rounds."""
    if is_cast:
        inputs = _as_cast(recorded.call, inputs)
    name = api_of(recorded.call)
    args, kwargs = bound(recorded.call, inputs)
    builder = builder_of(name) if others else None
    if builder is not None:
        arguments = signature(builder).bind(*args, **kwargs)
        arguments.arguments.update(others or {})
        args, kwargs = list(arguments.args), dict(arguments.kwargs)
    return torch_call(name, args, kwargs)


def _other_forward_call(op: Op, recorded: RecordedOp, inputs: Mapping[int, Input]) -> Call:
    call = other_call(_forward_call(op, recorded, inputs))
    if call is None:
        raise NotComputedError("no_formula", op_type=op.type)
    return call


def _formula(
    op: Op, recorded: RecordedOp, inputs: Mapping[int, Input], make: _Make, call: Call | None = None
) -> Formula:
    """The formula of a call; `call` is what `make` makes of these inputs, where that was made already."""
    if call is None:
        call = make(op, recorded, inputs)
    spec = op_table.find(call.op_type)
    if spec is None:
        raise NotComputedError("no_formula", op_type=call.op_type)
    specs = call.outputs or output_specs_of(op.output_descs)
    places = [place for place, number in enumerate(numbered(recorded.call.outputs)) if number is not None]
    outputs = {slot: Ref(place, 0) for slot, place in enumerate(places or [0])}
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


# --- random numbers ---------------------------------------------------------------------------------------------------


#: Functions that put out random numbers, and those that set elements to zero at random.
_RANDOM = frozenset({
    "rand", "randn", "rand_like", "randn_like", "randint", "randint_like", "randperm", "normal", "normal_", "uniform_",
    "bernoulli", "bernoulli_", "multinomial", "poisson", "exponential_", "log_normal_", "cauchy_", "geometric_",
    "random_",
})  # fmt: skip
_DROPPING = frozenset({"dropout", "dropout_", "dropout1d", "dropout2d", "dropout3d", "feature_dropout"})


def is_random_call(recorded: RecordedOp) -> bool:
    """Return whether a call draws random numbers."""
    name = recorded.call.call
    return _is_forward(recorded) and name is not None and (name.name in _RANDOM or dropped_share(recorded) > 0)


def dropped_share(recorded: RecordedOp) -> float:
    """Return the share of elements that a dropout sets to zero; 0 for other calls."""
    call = recorded.call
    if not _is_forward(recorded) or call.call is None or call.call.name not in _DROPPING:
        return 0.0

    def argument(name: str, place: int, otherwise: float) -> float:
        given = call.kwargs.get(name, call.inputs[place] if place < len(call.inputs) else otherwise)
        value = given.value if isinstance(given, Literal) else given
        return float(value) if isinstance(value, (int, float)) else otherwise

    return argument("p", 1, 0.5) if argument("training", 2, 1.0) else 0.0


def _dropout_formula(op: Op, share: float, got: Mapping[int, Input]) -> Formula:
    """What is left of a dropout's input where it put out something; which elements these are is random."""
    if 0 not in got:
        raise NotComputedError("output_without_formula", slot=0)
    kept = np.asarray(got[0].array != 0, np.float64)
    factor = Input(array=kept / (1 - share) if share < 1 else kept, dtype="float32")
    stage = Stage(name=op.name, op_type="Mul", args=(Ref(0), Ref(LENT)), output_specs=output_specs_of(op.output_descs))
    return Formula(stages=(stage,), outputs={0: Ref(0, 0)}, lent={LENT: factor})


# --- modules ----------------------------------------------------------------------------------------------------------


#: The function that modules of a class call with their input and parameters, and the arguments that are not recorded:
#: of these each way is tried.
MODULES: Mapping[str, tuple[str, tuple[Mapping[str, Any], ...]]] = {
    f"{prefix}.{name}": (f"Functional.{function}", options)
    for prefix in ("Module", "Cell")
    for name, function, options in (
        ("Linear", "linear", ({},)), ("Dense", "linear", ({},)), ("Embedding", "embedding", ({},)),
        ("ReLU", "relu", ({},)), ("ReLU6", "relu6", ({},)), ("SiLU", "silu", ({},)), ("Sigmoid", "sigmoid", ({},)),
        ("Tanh", "tanh", ({},)), ("Mish", "mish", ({},)), ("Hardswish", "hardswish", ({},)),
        ("GELU", "gelu", ({"approximate": "none"}, {"approximate": "tanh"})),
        ("LayerNorm", "layer_norm", tuple({"eps": eps} for eps in _EPSILONS)),
        ("RMSNorm", "rms_norm", tuple({"eps": eps} for eps in (None, *_EPSILONS))),
        ("Softmax", "softmax", tuple({"dim": dim} for dim in (-1, 1, 0))),
    )
}  # fmt: skip
_NORMALIZED = ("layer_norm", "rms_norm")


def _module_formulas(op: Op, recorded: RecordedOp, inputs: Mapping[int, Input]) -> Iterator[Formula]:
    """Yield formulas of a module whose calls were not recorded; its own arguments are not recorded either."""
    name, choices = MODULES[api_of(recorded.call)]
    for options in choices:

        def make(
            op: Op, recorded: RecordedOp, inputs: Mapping[int, Input], options: Mapping[str, Any] = options
        ) -> Call:
            inputs = _as_cast(recorded.call, inputs)
            args, _ = bound(recorded.call, inputs)
            given = {slot.partition(".")[2]: inputs[number] for number, slot in enumerate(recorded.input_slots)
                     if slot.startswith("parameters.")}  # fmt: skip
            weights = [given[key] for key in ("weight", "bias") if key in given]
            if name.endswith("embedding"):
                return torch_call(name, [args[0], *weights], options)
            shape = [list(weights[0].array.shape)] if name.endswith(_NORMALIZED) and weights else []
            return torch_call(name, [args[0], *shape, *weights], options)

        formula = _formula(op, recorded, inputs, make)
        yield replace(formula, is_certain=False)  # a class of the user's may have the same name


# --- gradients --------------------------------------------------------------------------------------------------------


def _gradient_formula(
    op: Op, recorded: RecordedOp, inputs: Mapping[int, Input], got: Mapping[int, Input], *, is_cast: bool = True
) -> Formula:
    """Return the formula of a backward, or of the gradients of parameters. `is_cast`: as autocast rounds.

    An output may be one of several gradients: it is the one that is nearest to what was put out. Where that is not
    given, the formula is not certain.
    """
    made = _gradients(op, recorded, inputs, is_cast)
    if not made:
        raise NotComputedError("outputs_without_formula", value=api_of(recorded.call))
    slots = sorted(inputs)
    lower = (
        autocast_type(recorded.forward)
        if is_cast and recorded.has_parameters_grad and recorded.forward is not None
        else ""
    )
    last: tuple[tuple[int, ...], Mapping[int, Sequence[Call]]] = ((), {})

    def calls_of(tensors: Mapping[int, Input]) -> Mapping[int, Sequence[Call]]:
        """The same for other values; those of the outputs of one op are asked for one after the other."""
        nonlocal last
        key = tuple(id(tensor.array) for tensor in tensors.values())
        if last[0] != key:
            last = key, _gradients(op, recorded, tensors, is_cast)
        return last[1]

    def make(slot: int, number: int) -> _Make:
        return lambda op, recorded, tensors: calls_of(tensors)[slot][number]

    stages = []
    for slot, calls in made.items():
        number = _nearest(calls, got[slot]) if slot in got and len(calls) > 1 else 0
        spec = op_table.find(calls[number].op_type)
        if spec is None:
            raise NotComputedError("no_formula", op_type=calls[number].op_type)
        stages.append(
            Stage(
                name=op.name, op_type=op.type, args=tuple(map(Ref, slots)),
                own_spec=_rebinding(_stored_as(spec, lower), op, recorded, slots, make(slot, number)),
            )
        )  # fmt: skip
    outputs = {slot: Ref(0, stage) for stage, slot in enumerate(made)}
    is_certain = all(slot in got or len(calls) == 1 for slot, calls in made.items())
    return Formula(stages=tuple(stages), outputs=outputs, is_certain=is_certain)


def _nearest(calls: Sequence[Call], got: Input) -> int:
    """The call whose result is nearest to what was put out."""
    have = flat_doubles(np.asarray(got.array))
    distances = []
    for call in calls:
        spec = op_table.find(call.op_type)
        distance = inf
        with suppress(*FORMULA_ERRORS):
            made = spec.function(replace(call, only_values=True))[0] if spec is not None else None
            if made is not None and made.array.size == have.size:
                off = flat_doubles(made.array) - have
                distance = norm(off[np.isfinite(off)])
        distances.append(distance)
    return distances.index(min(distances))


def _stored_as(spec: OpSpec, dtype: str) -> OpSpec:
    """The formula of a kernel that stores its result in a narrower type, before that is widened again."""
    if not dtype:
        return spec

    def function(call: Call) -> Outputs:
        return [None if made is None else _with_rounding(made, dtype) for made in spec.function(call)]

    return replace(spec, function=function, sampled=None, row_sums=None)


def _with_rounding(output: Output, dtype: str) -> Output:
    rounded = np.abs(np.asarray(output.array, np.float64)) * (UNIT[dtype] / ACCUMULATED)
    return replace(output, summed=np.hypot(output.summed, rounded))


def _gradients(
    op: Op, recorded: RecordedOp, inputs: Mapping[int, Input], is_cast: bool
) -> Mapping[int, Sequence[Call]]:
    """The calls that each output of a backward may be of."""
    forward = recorded.forward
    if forward is None:
        raise NotComputedError("no_formula", op_type=op.type)
    first = len(recorded.gradients)
    behind = first + sum(not slot.startswith("output") for slot, _ in forward.tensors())
    if is_cast:
        inputs = _as_cast(forward, inputs, range(first, behind))
    args, kwargs = bound(forward, inputs, first)
    gradients = [None if slot is None else inputs.get(slot) for slot in recorded.gradient_slots]
    outputs = [None if number is None else inputs.get(behind + number) for number in numbered(forward.outputs)]
    name = api_of(forward)
    if not recorded.has_parameters_grad:
        return recorded_gradients(name, args, kwargs, outputs, gradients, [tensor.shape for tensor in recorded.outputs])
    whole = torch_gradients(name, args, kwargs, outputs, gradients)
    tensors = [tensor for slot, tensor in forward.tensors() if not slot.startswith("output")]
    calls: dict[int, Sequence[Call]] = {}
    for slot, gradient in enumerate(recorded.outputs):
        fitting = [
            whole[number] for number, tensor in enumerate(tensors)
            if number and number in whole and tensor.shape == gradient.shape
        ]  # fmt: skip
        if fitting:
            calls[slot] = fitting
    return calls


# --- arguments --------------------------------------------------------------------------------------------------------


def bound(call: RecordedCall, inputs: Mapping[int, Input], first: int = 0) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call with its tensors, of slots from `first` on. NotComputedError for one missing."""
    slots = itertools.count(first)
    args = [_value(argument, call, inputs, slots) for argument in call.inputs]
    return args, {name: _value(argument, call, inputs, slots) for name, argument in call.kwargs.items()}


# A function of its own: one that calls itself within `bound` is held by itself, and holds the arrays until the next
# garbage collection.
def _value(argument: Argument, call: RecordedCall, inputs: Mapping[int, Input], slots: Iterator[int]) -> Any:
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
        raise NotComputedError("no_variant", name="argument", value=argument.type, op_type=api_of(call))
    if isinstance(argument, tuple):
        return [_value(item, call, inputs, slots) for item in argument]
    if isinstance(argument, Mapping):
        return {name: _value(item, call, inputs, slots) for name, item in argument.items()}
    return argument


def _literal(argument: Literal) -> Any:
    if argument.type.lower() == "ellipsis":
        return ...
    return list(argument.value) if isinstance(argument.value, tuple) else argument.value


def autocast_type(call: RecordedCall) -> str:
    """The type that autocast cast a call's inputs to, which were recorded before: that of its outputs; "" for none."""
    types = {data_type_of(tensor.dtype) for slot, tensor in call.tensors() if slot.startswith("output")}
    given = {
        data_type_of(tensor.dtype) for slot, tensor in call.tensors() if not slot.startswith("output")
    } & UNIT.keys()
    if "dtype" in call.kwargs or len(types) != 1 or not types <= HALF or types >= given or "float32" not in given:
        return ""
    function = call.call.name if call.call is not None else ""
    return "" if function in _CASTING else next(iter(types))


#: Functions whose purpose is another type.
_CASTING = frozenset({"to", "type", "half", "bfloat16", "type_as", "copy_", "_to_copy", "npu_dtype_cast"})


def _as_cast(call: RecordedCall, inputs: Mapping[int, Input], slots: range | None = None) -> Mapping[int, Input]:
    """The inputs, those of `slots` rounded as autocast does for a call."""
    lower = autocast_type(call)
    if not lower:
        return inputs
    return {
        slot: _rounded(tensor, lower) if slots is None or slot in slots else tensor for slot, tensor in inputs.items()
    }


def _rounded(tensor: Input, dtype: str) -> Input:
    if tensor.dtype != "float32":
        return tensor
    array = rounded_to(np.asarray(tensor.array, np.float64), dtype)
    return replace(tensor, array=array.astype(tensor.array.dtype), dtype=dtype)
