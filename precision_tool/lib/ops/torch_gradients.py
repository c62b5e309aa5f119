"""Gradients of PyTorch's functions by the names that msprobe records, as calls of formulas.

A builder below has the arguments of its function, after what is recorded of the call beside them (`_Back`), and yields
for each tensor that has a gradient what makes the call of it. Where the function only moves elements, the gradient
is moved back by numbering the elements and moving their numbers.

msprobe's entry of a backward call is that of the last node of autograd's graph only. Where a function is several nodes
(a linear layer of three axes is a product and a view), what is recorded are gradients of something between.
`recorded_gradients` names what each may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from math import log, prod
from typing import Any

import numpy as np

from precision_tool.lib.messages import Message
from precision_tool.lib.ops import op_table
from precision_tool.lib.ops.attention import turned
from precision_tool.lib.ops.base import Call, Input, Kind, NotComputedError, OutputSpec, check_size, needed, reason_of
from precision_tool.lib.ops.op_arguments import Array
from precision_tool.lib.ops.torch_apis import key_of, registrar, torch_call
from precision_tool.lib.ops.torch_formulas import adaptive_spans, taps

Shape = tuple[int, ...]
#: Makes a call when it is asked for.
Maker = Callable[[], Call]
#: For a tensor what makes its gradient; None for one that never has a gradient.
Gradients = Iterator[tuple[Input, Maker | None]]
Builder = Callable[..., Gradients]
_GRADIENTS: dict[str, Builder] = {}
#: Registers the builder of the gradients of some functions.
gradient = registrar(_GRADIENTS)


def has_gradient(name: str) -> bool:
    """Return whether there is a formula of a function's gradients, by its name with the prefix."""
    return key_of(name, _GRADIENTS) is not None


def torch_gradients(
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    outputs: Sequence[Input | None],
    gradients: Sequence[Input | None],
) -> dict[int, Call]:
    """Return the calls of formulas that compute the gradients of a function of PyTorch.

    Parameters
    ----------
    name : str
        The function as msprobe names it, without count and pass: "Functional.linear".
    args, kwargs
        Its recorded arguments, as those of `torch_call`.
    outputs
        Its recorded results, which kernels of gradients may take; those that are missing are computed.
    gradients
        The gradients of its results, None for one that has none.

    Returns
    -------
    dict
        Calls by the number of the tensor among the tensors of the arguments, in their order, then of the keyword
        arguments. Output 0 of each is the gradient for that tensor, of its shape. Tensors without one are left out.

    Raises
    ------
    NotComputedError
        If there is no formula of any gradient.
    """
    back = _Back(name, args, kwargs, outputs, gradients)
    result: dict[int, Call] = {}
    reason: NotComputedError | None = None
    for number, make in _makers(back).items():
        try:
            if make is not None:
                result[number] = _guarded(name, make)
        except NotComputedError as error:
            reason = reason or error
    if not result:
        raise reason or NotComputedError("no_formula", op_type=name)
    return result


def recorded_gradients(
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    outputs: Sequence[Input | None],
    gradients: Sequence[Input | None],
    shapes: Sequence[Shape | None],
) -> dict[int, list[Call]]:
    """Return what the recorded results of a backward call may be.

    A gradient may be that of any tensor of its shape (axes of length 1 aside, which autograd adds), or what the last
    node of the function passes on to the nodes before it: the moved gradient where that is a view, the gradient of a
    transposed weight, one of the factors of a last product. A result is right if any of the calls computes it: which
    node was the last depends on versions and devices. Where the gradient of a tensor of that shape has no formula,
    there are no calls, as it may be that one.

    Parameters
    ----------
    name, args, kwargs, outputs, gradients
        As those of `torch_gradients`.
    shapes
        The shapes of the recorded results, by their position; None where there is none.

    Returns
    -------
    dict
        Calls by position, without the positions for which there are none.
    """
    back = _Back(name, args, kwargs, outputs, gradients)
    if _returns_argument(back, outputs):
        return {}
    makers: dict[int, Maker | None] = {}
    with suppress(NotComputedError):
        makers = _makers(back)
    key = key_of(name, _BETWEEN)
    between: list[tuple[Shape, Maker]] = []
    if key is not None:
        with suppress(NotComputedError):
            between = _bound(name, _BETWEEN[key], back)
    if (name.endswith("_") and not name.endswith("__")) or back.kwargs.get("inplace"):
        with suppress(NotComputedError):
            # Autograd puts a node behind what changes a view, as hooks of modules make of all that they are given.
            between.insert(0, (_g_shape(back), lambda: _passed_on(back)))
    result: dict[int, list[Call]] = {}
    for position, shape in enumerate(shapes):
        if shape is None:
            continue
        with suppress(NotComputedError):
            calls = _of_tensors(back, makers, shape)
            for own, make in [*between, *_views(back, shape, shapes)]:
                if _squeezed(own) == _squeezed(shape):
                    calls.append(_in_shape(_guarded(name, make), own, shape))
            if calls:
                result[position] = calls
    return result


def _of_tensors(back: _Back, makers: Mapping[int, Maker | None], shape: Shape) -> list[Call]:
    """The gradients of all tensors of a shape. NotComputedError where one has no formula: it may be that one."""
    calls = []
    for number, tensor in enumerate(back.tensors):
        own = tensor.array.shape
        if not _is_real(tensor) or _squeezed(own) != _squeezed(shape):
            continue
        if number not in makers:
            raise NotComputedError("no_formula", op_type=back.name)
        make = makers[number]
        if make is not None:
            calls.append(_in_shape(_guarded(back.name, make), own, shape))
    return calls


#: Functions that return their argument where there is nothing to do: autograd's last node is then of the call before.
_NOTHING_TO_DO = frozenset({"to", "float", "half", "bfloat16", "double", "type_as", "contiguous", "dropout"})


def _returns_argument(back: _Back, outputs: Sequence[Input | None]) -> bool:
    if back.name.rpartition(".")[2] not in _NOTHING_TO_DO or not outputs or outputs[0] is None or not back.tensors:
        return False
    x, y = back.tensors[0], outputs[0]
    return x.dtype == y.dtype and np.array_equal(x.array, y.array, equal_nan=x.array.dtype.kind == "f")


def _passed_on(back: _Back) -> Call:
    return _moved(back.g, back.g.array)


def _squeezed(shape: Shape) -> Shape:
    return tuple(size for size in shape if size != 1)


def _in_shape(call: Call, own: Shape, shape: Shape) -> Call:
    """The call of a result in another shape of as many elements in the same order."""
    if own == shape:
        return call
    if call.op_type == "Identity" and call.inputs[0] is not None:
        return _moved(call.inputs[0], call.inputs[0].array.reshape(shape))
    return _result(call, shape=list(shape))


def _guarded(name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a function returns, or NotComputedError, whatever the arguments were."""
    try:
        with np.errstate(all="ignore"):
            return function(*args, **kwargs)
    except NotComputedError as error:
        if "op_type" in error.reason.fields:
            raise
        raise NotComputedError(Message(error.reason.kind, **error.reason.fields, op_type=name)) from error
    except MemoryError as error:
        raise NotComputedError("out_of_memory") from error
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError, ZeroDivisionError) as error:
        raise NotComputedError(reason_of(error)) from error


class _Back:
    """What is recorded of a call and its gradients. Each tensor is an object of its own, by which it is numbered."""

    def __init__(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], outputs: Sequence[Input | None],
        gradients: Sequence[Input | None],
    ) -> None:  # fmt: skip
        self.name = name
        self.tensors: list[Input] = []
        self._numbers: dict[int, int] = {}
        self.args: list[Any] = [self._own(value) for value in args]
        self.kwargs: dict[str, Any] = {key: self._own(value) for key, value in kwargs.items()}
        self.gradients = list(gradients)
        self._outputs = list(outputs)

    def _own(self, value: Any) -> Any:
        if isinstance(value, Input):
            own = replace(value, layout="ND")
            self._numbers[id(own)] = len(self.tensors)
            self.tensors.append(own)
            return own
        if isinstance(value, (list, tuple)):
            return type(value)(self._own(part) for part in value)
        return value

    def number_of(self, tensor: Input) -> int:
        """The number of a tensor."""
        return self._numbers[id(tensor)]

    @cached_property
    def forward(self) -> Call:
        """The call of the function."""
        return torch_call(self.name, self.args, self.kwargs)

    @cached_property
    def g(self) -> Input:
        """The gradient of the first result."""
        first = self.gradients[0] if self.gradients else None
        if first is None:
            raise NotComputedError("not_given", name="gradient")
        return first

    def output(self, slot: int) -> Input:
        """A result, recorded or computed."""
        recorded = self._outputs[slot] if slot < len(self._outputs) else None
        if recorded is not None:
            return recorded
        computed = self._computed[slot]
        if computed is None:
            raise NotComputedError("not_given", name=f"output {slot}")
        return computed

    @cached_property
    def _computed(self) -> list[Input | None]:
        spec = op_table.find(self.forward.op_type)
        if spec is None:
            raise NotComputedError("no_formula", op_type=self.name)
        return [
            None if output is None else Input(array=output.array, dtype=self.g.dtype)
            for output in spec.function(self.forward)
        ]

    @property
    def y(self) -> Input:
        """The first result."""
        return self.output(0)

    def again(self, exchanged: Mapping[int, Input]) -> list[Array]:
        """The results of the same call of other tensors, by the numbers of those that are exchanged."""
        return _results(self.call_again(exchanged))

    def call_again(self, exchanged: Mapping[int, Input]) -> Call:
        """The same call of other tensors."""
        args = self._exchanged(self.args, exchanged)
        return torch_call(
            self.name, args, {key: self._exchanged(value, exchanged) for key, value in self.kwargs.items()}
        )

    def _exchanged(self, value: Any, exchanged: Mapping[int, Input]) -> Any:
        if isinstance(value, Input):
            return exchanged.get(self.number_of(value), value)
        if isinstance(value, (list, tuple)):
            return type(value)(self._exchanged(part, exchanged) for part in value)
        return value


def _results(call: Call) -> list[Array]:
    spec = op_table.find(call.op_type)
    if spec is None:
        raise NotComputedError("no_formula", op_type=call.op_type)
    return [np.zeros(0) if output is None else output.array for output in spec.function(call)]


def _makers(back: _Back) -> dict[int, Maker | None]:
    """What makes the gradients, by the number of the tensor; None of tensors that never have a gradient."""
    key = key_of(back.name, _GRADIENTS)
    if key is None:
        raise NotComputedError("no_formula", op_type=back.name)
    pairs = _bound(back.name, _GRADIENTS[key], back)
    return {back.number_of(tensor): make for tensor, make in pairs if isinstance(tensor, Input) and _is_real(tensor)}


def _bound(name: str, builder: Callable[..., Iterator[Any]], back: _Back) -> list[Any]:
    pairs: list[Any] = _guarded(name, lambda: list(builder(back, *back.args, **back.kwargs)))
    return pairs


# --- what builders share ----------------------------------------------------------------------------------------------


def _is_real(x: Any) -> bool:
    return isinstance(x, Input) and x.array.dtype.kind == "f"


def _tensor(value: Any) -> Input:
    if isinstance(value, Input):
        return value
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise NotComputedError("not_number", name="argument", value=repr(value)[:60])
    is_whole = array.ndim and array.dtype.kind in "iu"
    return Input(array=array, dtype=array.dtype.name) if is_whole else Input(array=array.astype(float), dtype="float64")


def _call(op_type: str, *inputs: Any, outputs: tuple[OutputSpec, ...] = (), **attrs: Any) -> Call:
    """A call whose inputs may be numbers, and whose attributes of None are left out."""
    tensors = tuple(None if value is None else _tensor(value) for value in inputs)
    return Call(
        op_type=op_type, inputs=tensors, attrs={name: value for name, value in attrs.items() if value is not None},
        outputs=outputs,
    )  # fmt: skip


def _moved(x: Input, array: Array) -> Call:
    return _call("Identity", replace(x, array=np.asarray(array), layout="ND"))


def _shape_of(*inputs: Any) -> Shape:
    return np.broadcast_shapes(*(np.shape(x.array) if isinstance(x, Input) else np.shape(x) for x in inputs))


def _result(call: Call, **attrs: Any) -> Call:
    """A result of a call: another slot than the first, another shape, or added up in the stored type (`narrow`)."""
    attrs = {name: value for name, value in attrs.items() if value is not None}
    kind = _kind_of(call.op_type)
    return replace(call, op_type=f"torch.result.{kind.value}", attrs={"of": call.op_type, "attrs": call.attrs, **attrs})


def _slot(slot: int, op_type: str, *inputs: Any, **attrs: Any) -> Call:
    """An output of an op, by its slot."""
    return _result(_call(op_type, *inputs, **attrs), slot=slot)


def _kind_of(op_type: str) -> Kind:
    spec = op_table.find(op_type)
    if spec is None:
        raise NotComputedError("no_formula", op_type=op_type)
    return spec.kind


#: Kinds of results whose sum is no more than that.
_SUMMED = (Kind.EXACT, Kind.ROUNDED, Kind.SUM, Kind.MATRIX)


def _reduced(to: Input, op_type: str, *inputs: Any, of: Shape | None = None, **attrs: Any) -> Call:
    """The call of an op whose result has the shape `of`, summed to that of a tensor that was broadcast."""
    shape, whole = to.array.shape, _shape_of(*inputs) if of is None else of
    call = _call(op_type, *inputs, **attrs)
    if whole == shape:
        return call
    summed = "torch.sum_to" if _kind_of(op_type) in _SUMMED else "torch.sum_to.composite"
    return replace(call, op_type=summed, attrs={"of": op_type, "attrs": call.attrs, "shape": list(shape)})


def _passed(back: _Back, to: Input, factor: Any = 1) -> Call:
    """The gradient itself, times a number, for a tensor that was broadcast."""
    g = back.g
    return _reduced(to, "Identity", g) if factor == 1 else _reduced(to, "torch.scaled", g, value=float(factor))


def _times(back: _Back, to: Input, other: Any) -> Call:
    """The gradient times a tensor or a number, for a tensor that was broadcast."""
    if isinstance(other, Input):
        return _reduced(to, "Mul", back.g, other)
    return _passed(back, to, other)


# --- elements ---------------------------------------------------------------------------------------------------------


def _of_input(
    op_type: str, attrs: Mapping[str, Any], /, back: _Back, input: Any, *args: Any, **kwargs: Any
) -> Gradients:
    """A gradient of that of the result and of the input."""
    yield input, lambda: _call(op_type, back.g, input, **attrs)


def _of_output(
    op_type: str, attrs: Mapping[str, Any], /, back: _Back, input: Any, *args: Any, **kwargs: Any
) -> Gradients:
    yield input, lambda: _call(op_type, back.g, back.y, **attrs)


def _of_output_first(op_type: str, /, back: _Back, input: Any, *args: Any, **kwargs: Any) -> Gradients:
    yield input, lambda: _call(op_type, back.y, back.g)


_SELU_SCALE, _SELU_ALPHA = 1.0507009873554805, 1.6732632423543772


def _unary() -> None:
    of_input: dict[str, tuple[str, dict[str, Any]]] = {
        "log": ("torch.log_grad", {}), "log2": ("torch.log_grad", {"base": 2.0}),
        "log10": ("torch.log_grad", {"base": 10.0}), "log1p": ("torch.log1p_grad", {}),
        "sin": ("torch.sin_grad", {}), "cos": ("torch.cos_grad", {}), "asin": ("torch.asin_grad", {}),
        "arcsin": ("torch.asin_grad", {}), "acos": ("torch.acos_grad", {}), "arccos": ("torch.acos_grad", {}),
        "atan": ("torch.atan_grad", {}), "arctan": ("torch.atan_grad", {}), "sinh": ("torch.sinh_grad", {}),
        "cosh": ("torch.cosh_grad", {}), "asinh": ("torch.asinh_grad", {}), "acosh": ("torch.acosh_grad", {}),
        "atanh": ("torch.atanh_grad", {}), "erf": ("torch.erf_grad", {}), "erfc": ("torch.erfc_grad", {}),
        "relu6": ("Relu6Grad", {}), "silu": ("SwishGrad", {}), "swish": ("SwishGrad", {}),
        "npu_silu": ("SwishGrad", {}), "mish": ("MishGrad", {}), "npu_mish": ("MishGrad", {}),
        "hardswish": ("HardSwishGrad", {}), "hardsigmoid": ("HardSigmoidGrad", {}),
        "logsigmoid": ("LogSigmoidGrad", {}), "softsign": ("torch.softsign_grad", {}),
        "npu_fast_gelu": ("FastGeluGrad", {}), "fast_gelu": ("FastGeluGrad", {}),
        "selu": ("torch.elu_grad", {"scale": _SELU_SCALE, "alpha": _SELU_ALPHA}),
    }  # fmt: skip
    for name, (op_type, attrs) in of_input.items():
        _GRADIENTS[name] = partial(_of_input, op_type, attrs)
    of_output = {
        "exp": "torch.exp_grad", "expm1": "torch.expm1_grad", "sqrt": "torch.sqrt_grad",
        "rsqrt": "torch.rsqrt_grad", "reciprocal": "torch.reciprocal_grad", "tan": "torch.tan_grad",
    }  # fmt: skip
    for name, op_type in of_output.items():
        _GRADIENTS[name] = partial(_of_output, op_type, {})
    for name in ("sigmoid", "special.expit"):
        _GRADIENTS[name] = partial(_of_output_first, "SigmoidGrad")
    _GRADIENTS["tanh"] = partial(_of_output_first, "TanhGrad")


_unary()


@gradient("relu")
def _relu(back: _Back, input: Any, inplace: bool = False) -> Gradients:
    yield input, lambda: _call("torch.between_grad", back.g, back.y, 0.0)


@gradient("abs", "absolute", "__abs__")
def _abs(back: _Back, input: Any) -> Gradients:
    yield input, lambda: _call("Mul", back.g, replace(input, array=np.sign(input.array)))


@gradient("neg", "negative", "__neg__")
def _neg(back: _Back, input: Any) -> Gradients:
    yield input, lambda: _call("Neg", back.g)


@gradient("floor", "ceil", "round", "sign", "trunc", "fix", "zero_", "fill_")
def _flat(back: _Back, input: Any, *args: Any, **kwargs: Any) -> Gradients:
    yield input, lambda: _moved(back.g, np.zeros(input.array.shape))


@gradient("remainder", "fmod", "__mod__")
def _remainder(back: _Back, input: Any, other: Any) -> Gradients:
    yield input, lambda: _passed(back, input)


@gradient("nan_to_num")
def _nan_to_num(back: _Back, input: Any, *args: Any, **kwargs: Any) -> Gradients:
    yield input, lambda: _moved(back.g, np.where(np.isfinite(input.array), back.g.array, 0.0))


@gradient("exp2")
def _exp2(back: _Back, input: Any) -> Gradients:
    yield input, lambda: _call("torch.addcmul_grad", back.g, back.y, value=log(2))


@gradient("add", "__add__", "__radd__")
def _add(back: _Back, input: Any, other: Any, *, alpha: Any = 1) -> Gradients:
    yield input, lambda: _passed(back, input)
    yield other, lambda: _passed(back, other, alpha)


@gradient("sub", "subtract", "__sub__")
def _sub(back: _Back, input: Any, other: Any, *, alpha: Any = 1) -> Gradients:
    yield input, lambda: _passed(back, input)
    yield other, lambda: _passed(back, other, -alpha)


@gradient("rsub", "__rsub__")
def _rsub(back: _Back, input: Any, other: Any, *, alpha: Any = 1) -> Gradients:
    yield from _sub(back, other, input, alpha=alpha)


@gradient("mul", "multiply", "__mul__", "__rmul__")
def _mul(back: _Back, input: Any, other: Any) -> Gradients:
    yield input, lambda: _times(back, input, other)
    yield other, lambda: _times(back, other, input)


@gradient("div", "divide", "true_divide", "__truediv__", "__div__")
def _div(back: _Back, input: Any, other: Any, *, rounding_mode: str | None = None) -> Gradients:
    if rounding_mode is not None:
        raise NotComputedError("no_variant", name="rounding_mode", value=str(rounding_mode))

    def first() -> Call:
        if isinstance(other, Input):
            return _reduced(input, "torch.div_grad", back.g, other)
        return _call("torch.scaled", back.g, value=float(other), divided=True)

    yield input, first
    yield other, lambda: _reduced(other, "torch.divisor_grad", back.g, input, other)


@gradient("__rtruediv__", "__rdiv__")
def _rdiv(back: _Back, input: Any, other: Any) -> Gradients:
    yield input, lambda: _reduced(input, "torch.divisor_grad", back.g, other, input)
    yield other, lambda: _reduced(other, "torch.div_grad", back.g, input)


@gradient("pow", "__pow__", "float_power")
def _pow(back: _Back, input: Any, exponent: Any) -> Gradients:
    yield input, lambda: _reduced(input, "torch.pow_grad", back.g, input, exponent)
    yield exponent, lambda: _reduced(exponent, "torch.exponent_grad", back.g, input, back.y)


@gradient("__rpow__")
def _rpow(back: _Back, input: Any, other: Any) -> Gradients:
    yield input, lambda: _reduced(input, "torch.exponent_grad", back.g, other, back.y)


@gradient("square")
def _square(back: _Back, input: Any) -> Gradients:
    yield from _pow(back, input, 2)


@gradient("addcmul")
def _addcmul(back: _Back, input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Gradients:
    yield input, lambda: _passed(back, input)
    for to, other in ((tensor1, tensor2), (tensor2, tensor1)):
        yield to, partial(_reduced, to, "torch.addcmul_grad", back.g, other, value=float(value))


@gradient("addcdiv")
def _addcdiv(back: _Back, input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Gradients:
    factor = float(value)
    yield input, lambda: _passed(back, input)
    yield tensor1, lambda: _reduced(tensor1, "torch.addcdiv_first_grad", back.g, tensor2, value=factor)
    yield tensor2, lambda: _reduced(tensor2, "torch.addcdiv_second_grad", back.g, tensor1, tensor2, value=factor)


@gradient("lerp")
def _lerp(back: _Back, input: Any, end: Any, weight: Any) -> Gradients:
    yield input, lambda: _reduced(input, "torch.lerp_first_grad", back.g, weight)
    yield end, lambda: _times(back, end, weight)
    yield weight, lambda: _reduced(weight, "torch.lerp_weight_grad", back.g, input, end)


@gradient("atan2", "arctan2")
def _atan2(back: _Back, input: Any, other: Any) -> Gradients:
    yield input, lambda: _reduced(input, "torch.atan2_first_grad", back.g, input, other)
    yield other, lambda: _reduced(other, "torch.atan2_second_grad", back.g, input, other)


@gradient("xlogy", "special.xlogy")
def _xlogy(back: _Back, input: Any, other: Any) -> Gradients:
    yield input, lambda: _reduced(input, "torch.xlogy_first_grad", back.g, input, other)
    yield other, lambda: _reduced(other, "torch.addcdiv_first_grad", _product_of(back.g, input), other, value=1.0)


def _product_of(a: Input, b: Any) -> Input:
    return replace(a, array=a.array * _tensor(b).array)


@gradient("where")
def _where(back: _Back, condition: Any, input: Any = None, other: Any = None) -> Gradients:
    nothing = np.zeros(())
    yield input, lambda: _reduced(input, "SelectV2", condition, back.g, nothing)
    yield other, lambda: _reduced(other, "SelectV2", condition, nothing, back.g)


@gradient("Tensor.where")
def _tensor_where(back: _Back, input: Any, condition: Any, other: Any) -> Gradients:
    yield from _where(back, condition, input, other)


@gradient("masked_fill")
def _masked_fill(back: _Back, input: Any, mask: Any, value: Any) -> Gradients:
    nothing = np.zeros(())
    yield input, lambda: _reduced(input, "SelectV2", mask, nothing, back.g)
    yield value, lambda: _reduced(value, "SelectV2", mask, back.g, nothing)


@gradient("clamp", "clip")
def _clamp(back: _Back, input: Any, min: Any = None, max: Any = None) -> Gradients:
    yield input, lambda: _reduced(input, "torch.between_grad", back.g, input, min, max, of=_g_shape(back), closed=True)


def _g_shape(back: _Back) -> Shape:
    return back.g.array.shape


@gradient("clamp_min")
def _clamp_min(back: _Back, input: Any, min: Any) -> Gradients:
    yield from _clamp(back, input, min)


@gradient("clamp_max")
def _clamp_max(back: _Back, input: Any, max: Any) -> Gradients:
    yield from _clamp(back, input, None, max)


@gradient("hardtanh")
def _hardtanh(back: _Back, input: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Gradients:
    yield input, lambda: _call("torch.between_grad", back.g, input, min_val, max_val)


@gradient("threshold")
def _threshold(back: _Back, input: Any, threshold: float, value: float, inplace: bool = False) -> Gradients:
    yield input, lambda: _call("torch.between_grad", back.g, input, threshold, None)


@gradient("maximum")
def _maximum(back: _Back, input: Any, other: Any) -> Gradients:
    yield from _larger(back, input, other, None)


@gradient("minimum")
def _minimum(back: _Back, input: Any, other: Any) -> Gradients:
    yield from _larger(back, input, other, True)


def _larger(back: _Back, input: Any, other: Any, smaller: bool | None) -> Gradients:
    for to, against in ((input, other), (other, input)):
        yield to, partial(_reduced, to, "torch.larger_grad", back.g, to, against, smaller=smaller)


# --- activations ------------------------------------------------------------------------------------------------------


@gradient("gelu", "npu_gelu")
def _gelu(back: _Back, input: Any, approximate: str = "none") -> Gradients:
    yield input, lambda: _call("GeluGrad" if approximate == "tanh" else "torch.gelu_grad", back.g, input)


@gradient("leaky_relu")
def _leaky_relu(back: _Back, input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Gradients:
    yield input, lambda: _call("LeakyReluGrad", back.g, input, negative_slope=float(negative_slope))


@gradient("elu")
def _elu(back: _Back, input: Any, alpha: float = 1.0, inplace: bool = False) -> Gradients:
    yield input, lambda: _call("torch.elu_grad", back.g, input, alpha=float(alpha))


@gradient("Aten.elu")
def _aten_elu(back: _Back, input: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Gradients:
    yield (
        input,
        lambda: _call(
            "torch.elu_grad", back.g, input, alpha=float(alpha), scale=float(scale), input_scale=float(input_scale)
        ),
    )


@gradient("celu")
def _celu(back: _Back, input: Any, alpha: float = 1.0, inplace: bool = False) -> Gradients:
    yield input, lambda: _call("torch.elu_grad", back.g, input, alpha=float(alpha), input_scale=1 / alpha)


@gradient("prelu")
def _prelu(back: _Back, input: Any, weight: Any) -> Gradients:
    """Channels are the second axis; the products for their weights are stored before they are added up."""
    slopes = replace(weight, array=weight.array.reshape([-1, *[1] * max(0, input.array.ndim - 2)]))
    yield input, lambda: _call("torch.prelu_grad", back.g, input, slopes)

    def to_weight() -> Call:
        call = _reduced(slopes, "torch.prelu_weight_grad", back.g, input)
        return _in_shape(call, slopes.array.shape, weight.array.shape)

    yield weight, to_weight


@gradient("softplus")
def _softplus(back: _Back, input: Any, beta: float = 1.0, threshold: float = 20.0) -> Gradients:
    yield input, lambda: _call("torch.softplus_grad", back.g, input, beta=float(beta), threshold=float(threshold))


@gradient("glu")
def _glu(back: _Back, input: Any, dim: int = -1) -> Gradients:
    yield input, lambda: _call("torch.glu_grad", back.g, input, dim=int(dim))


@gradient("npu_swiglu")
def _npu_swiglu(back: _Back, self: Any, dim: int = -1) -> Gradients:
    yield self, lambda: _call("torch.glu_grad", back.g, self, dim=int(dim), swish=True)


@gradient("softmax", "_softmax", "log_softmax", "_log_softmax", "softmin")
def _softmax(back: _Back, input: Any, *args: Any, **kwargs: Any) -> Gradients:
    axes = list(back.forward.attrs["axes"])
    if back.forward.op_type == "LogSoftmaxV2":
        yield input, lambda: _call("LogSoftmaxGrad", back.g, back.y, axes=axes)
    else:
        g = replace(back.g, array=-back.g.array) if back.name.endswith("softmin") else back.g
        yield input, lambda: _call("SoftmaxGrad", back.y, g, axes=axes)


@gradient("dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout")
def _dropout(back: _Back, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Gradients:
    """What was dropped is where the result is 0; it has to be recorded."""
    if not training or not p:
        yield input, lambda: _passed(back, input)
    else:
        yield input, lambda: _call("torch.dropout_grad", back.g, input, back.y, p=float(p))


# --- matrices ---------------------------------------------------------------------------------------------------------


def _rows(x: Input) -> Input:
    """A tensor as a matrix, whose columns are the last axis."""
    return replace(x, array=x.array.reshape(-1, x.array.shape[-1]))


def _vector_product(matrix: Array, vector: Array, like: Input) -> Call:
    """A matrix times a vector."""
    column = replace(like, array=vector.reshape(-1, 1))
    return _call("torch.MatMulV2", replace(like, array=matrix), column, shape=[matrix.shape[0]])


@gradient("linear", "npu_linear")
def _linear(back: _Back, input: Any, weight: Any, bias: Any = None) -> Gradients:
    if weight.array.ndim == 1:
        yield from _matmul(back, input, weight)
        if bias is not None:
            yield bias, lambda: _passed(back, bias)
        return
    if input.array.ndim == 1:
        yield input, lambda: _vector_product(weight.array.T, back.g.array, back.g)
    else:
        yield input, lambda: _call("MatMulV2", back.g, weight)
    yield weight, lambda: _call("MatMulV2", _rows(back.g), _rows(input), transpose_x1=True)
    if bias is not None:
        yield bias, lambda: _call("ReduceSumD", _rows(back.g), axes=[0])


@gradient("matmul", "__matmul__", "mm", "bmm", "mv", "dot", "vdot", "npu_bmmV2")
def _matmul(
    back: _Back, input: Any, other: Any = None, *, mat2: Any = None, vec: Any = None, tensor: Any = None
) -> Gradients:
    second = next(iter([x for x in (other, mat2, vec, tensor) if x is not None]), input)
    yield input, lambda: _first_factor(back.g, input, second)
    yield second, lambda: _second_factor(back.g, input, second)


def _first_factor(g: Input, a: Input, b: Input) -> Call:
    """The gradient of the first of two factors of a product of matrices or vectors."""
    if b.array.ndim == 1:
        return _reduced(a, "Mul", replace(g, array=g.array[..., None]), b)
    if a.array.ndim == 1:
        matrix = np.moveaxis(b.array, -2, 0).reshape(b.array.shape[-2], -1)
        return _vector_product(matrix, g.array, g)
    if a.array.ndim == 2 and b.array.ndim > 2:  # all matrices in one sum
        left = np.moveaxis(g.array, -2, 0).reshape(a.array.shape[0], -1)
        right = np.moveaxis(b.array, -2, 0).reshape(a.array.shape[1], -1)
        return _call("MatMulV2", replace(g, array=left), replace(b, array=right), transpose_x2=True)
    shape = (*np.broadcast_shapes(a.array.shape[:-2], b.array.shape[:-2]), *a.array.shape[-2:])
    return _reduced(a, "MatMulV2", g, b, of=shape, transpose_x2=True)


def _second_factor(g: Input, a: Input, b: Input) -> Call:
    if a.array.ndim == 1 and b.array.ndim == 1:
        return _reduced(b, "Mul", g, a)
    if a.array.ndim == 1:
        column, row = replace(a, array=a.array[:, None]), replace(g, array=g.array[..., None, :])
        return _reduced(b, "Mul", row, column)
    if b.array.ndim == 1:
        return _vector_product(a.array.reshape(-1, a.array.shape[-1]).T, g.array, g)
    if b.array.ndim == 2:
        return _call("MatMulV2", _rows(a), _rows(g), transpose_x1=True)
    shape = (*np.broadcast_shapes(a.array.shape[:-2], b.array.shape[:-2]), *b.array.shape[-2:])
    return _reduced(b, "MatMulV2", a, g, of=shape, transpose_x1=True)


_GRADIENTS["__rmatmul__"] = lambda back, input, other: _matmul(back, other, input)


@gradient("addmm", "baddbmm")
def _addmm(
    back: _Back, input: Any, mat1: Any = None, mat2: Any = None, *, beta: Any = 1, alpha: Any = 1, batch1: Any = None,
    batch2: Any = None,
) -> Gradients:  # fmt: skip
    a, b = mat1 if batch1 is None else batch1, mat2 if batch2 is None else batch2

    def product(left: Input, right: Input) -> Call:
        if alpha == 1:
            return _call("MatMulV2", left, right)
        return _call("torch.addmm", 0.0, left, right, beta=0.0, alpha=float(alpha))

    yield input, lambda: _passed(back, input, beta)
    yield a, lambda: product(back.g, _turned(b))
    yield b, lambda: product(_turned(a), back.g)


def _turned(x: Input) -> Input:
    return replace(x, array=np.swapaxes(x.array, -1, -2))


@gradient("addmv")
def _addmv(back: _Back, input: Any, mat: Any, vec: Any, *, beta: Any = 1, alpha: Any = 1) -> Gradients:
    if alpha != 1:
        raise NotComputedError("no_variant", name="alpha", value=str(alpha))
    yield input, lambda: _passed(back, input, beta)
    yield mat, lambda: _first_factor(back.g, mat, vec)
    yield vec, lambda: _second_factor(back.g, mat, vec)


@gradient("outer", "ger")
def _outer(back: _Back, input: Any, vec2: Any) -> Gradients:
    def first() -> Call:
        column = replace(input, array=input.array[:, None])
        return _in_shape(_reduced(column, "Mul", back.g, vec2), column.array.shape, input.array.shape)

    yield input, first
    yield vec2, lambda: _reduced(vec2, "Mul", back.g, replace(input, array=input.array[:, None]))


@gradient("inner")
def _inner(back: _Back, input: Any, other: Any) -> Gradients:
    if not input.array.ndim == other.array.ndim <= 2:
        raise NotComputedError("shape", name="input", shape=input.array.shape)
    second = _turned(other) if other.array.ndim == 2 else other
    yield input, lambda: _first_factor(back.g, input, second)
    if other.array.ndim == 2:
        yield other, lambda: _call("MatMulV2", back.g, input, transpose_x1=True)
    else:
        yield other, lambda: _second_factor(back.g, input, other)


@gradient("einsum")
def _einsum(back: _Back, equation: str, *operands: Any) -> Gradients:
    """The sum of products of the gradient and the other operands, where each axis is in one of these."""
    tensors = operands[0] if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else list(operands)
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow:
        letters = left.replace(",", "").replace(".", "")
        right = ("..." if "..." in left else "") + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    for number, tensor in enumerate(tensors):
        others = [at for at in range(len(tensors)) if at != number]
        there = set(right).union(*(terms[at] for at in others))
        own = terms[number]
        if not set(own) <= there or len(set(own.replace("...", ""))) != len(own.replace("...", "")):
            continue
        text = ",".join([right, *(terms[at] for at in others)]) + "->" + own
        yield tensor, partial(_call, "Einsum", back.g, *(tensors[at] for at in others), equation=text)


# --- convolution and pooling ------------------------------------------------------------------------------------------


def _of_images(op_type: str, to: Input, inputs: Sequence[Input], whole: Shape, **attrs: Any) -> Call:
    """A call whose result has a batch and two axes of space or more, in the shape that the tensor has."""
    layout = "NCHW" if len(whole) == 4 else "NCDHW"
    call = _call(op_type, *inputs, outputs=(OutputSpec(layout=layout),), **attrs)
    if to.array.shape == whole:
        return call
    return replace(call, op_type=f"torch.{op_type}", attrs={**call.attrs, "shape": list(to.array.shape)})


def _result_as_images(back: _Back, rank: int, x: Input) -> Input:
    """The gradient with the axes that the images have in the call of the formula."""
    array = back.g.array if x.array.ndim == rank + 2 else back.g.array[None]
    array = array[:, :, None] if rank == 1 else array
    return replace(back.g, array=array, layout="NCHW" if array.ndim == 4 else "NCDHW")


def _convolution(rank: int, transposed: bool, /, back: _Back, input: Any, weight: Any, bias: Any = None,
                 *args: Any, **kwargs: Any) -> Gradients:  # fmt: skip
    call = back.forward
    images, filters = needed(call, 0), needed(call, 1)
    attrs = {name: call.attrs[name] for name in ("strides", "pads", "dilations", "groups")}
    many = max(rank, 2)
    g = _result_as_images(back, rank, input)
    shapes = images.array.shape, filters.array.shape

    def to_input() -> Call:
        if transposed:
            return _of_images(f"Conv{many}D", input, (g, filters), shapes[0], **attrs)
        call = _of_images(
            f"Conv{many}DBackpropInputD", input, (filters, g), shapes[0], input_size=list(shapes[0]), **attrs
        )
        return _in_parts(call, prod(shapes[1][2:]))

    def to_weight() -> Call:
        pair = (g, images) if transposed else (images, g)
        call = _of_images(f"Conv{many}DBackpropFilterD", weight, pair, shapes[1], filter_size=list(shapes[1]), **attrs)
        return _in_parts(call, shapes[0][0])

    def _in_parts(call: Call, parts: int) -> Call:
        """PyTorch's own kernels, which take float16, add up the taps or the images in it."""
        return _result(call, parts=parts) if g.dtype == "float16" else call

    yield input, to_input
    yield weight, to_weight
    if bias is not None:
        axes = [axis for axis in range(g.array.ndim) if axis != 1]
        yield bias, lambda: _in_parts(_call("ReduceSumD", g, axes=axes), shapes[0][0])


def _pooling(rank: int, /, back: _Back, input: Any, *args: Any, **kwargs: Any) -> Gradients:
    call = back.forward
    images = needed(call, 0)
    op_type = call.op_type.removeprefix("torch.")
    attrs = {name: value for name, value in call.attrs.items() if name != "shape"}
    g = _result_as_images(back, rank, input)
    whole = images.array.shape
    if op_type.startswith("Max"):
        # The slot of the values of the result, which the formula does not take.
        yield input, lambda: _pooled_back(f"{op_type}Grad", input, g, images, None, g, **attrs)
    else:
        yield input, lambda: _pooled_back(f"{op_type}Grad", input, g, g, orig_input_shape=list(whole), **attrs)


def _pooled_back(op_type: str, to: Input, g: Input, *inputs: Any, **attrs: Any) -> Call:
    """What windows that overlap pass back is added up in the stored type."""
    return _result(_call(op_type, *inputs, **attrs), shape=list(to.array.shape), narrow=True)


def _matrix_of(places: Array, weights: Array, size: int) -> Array:
    """The matrix (size, count) of what each of the results is mixed of, turned around."""
    matrix = np.zeros((size, len(places)))
    np.add.at(matrix, (places, np.arange(len(places))[:, None]), weights)
    return matrix


def _adaptive(rank: int, /, back: _Back, input: Any, *args: Any, **kwargs: Any) -> Gradients:
    yield input, lambda: _along_adaptive(back, input, back.forward.attrs["output_size"])


def _along_adaptive(back: _Back, input: Input, sizes: Sequence[int]) -> Call:
    matrices = []
    for size, count in zip(input.array.shape[-len(sizes) :], sizes, strict=True):
        check_size([size, count])
        matrix = np.zeros((size, count))
        for at, (begin, end) in enumerate(adaptive_spans(size, count)):
            matrix[begin:end, at] = 1 / (end - begin)
        matrices.append(matrix)
    return _call("torch.along_axes", back.g, *matrices, narrow=True)


def _adaptive_maximum(rank: int, /, back: _Back, input: Any, *args: Any, **kwargs: Any) -> Gradients:
    def make() -> Call:
        x, sizes = input.array, back.forward.attrs["output_size"]
        space = x.shape[-len(sizes) :]
        numbers = np.arange(x.size).reshape(x.shape)
        places = np.empty((*x.shape[: -len(sizes)], *sizes), np.int64)
        spans = [adaptive_spans(size, count) for size, count in zip(space, sizes, strict=True)]
        for at in np.ndindex(*sizes):
            window: tuple[Any, ...] = (..., *(slice(*spans[axis][place]) for axis, place in enumerate(at)))
            flat = (*x.shape[: -len(sizes)], -1)
            chosen = x[window].reshape(flat).argmax(-1)[..., None]
            places[(..., *at)] = np.take_along_axis(numbers[window].reshape(flat), chosen, -1)[..., 0]
        return _by_place(back.g, places, input)

    yield input, make


for _rank in (1, 2, 3):
    _GRADIENTS[f"conv{_rank}d"] = partial(_convolution, _rank, False)
    _GRADIENTS[f"conv_transpose{_rank}d"] = partial(_convolution, _rank, True)
    for _name in (f"max_pool{_rank}d", f"max_pool{_rank}d_with_indices", f"avg_pool{_rank}d"):
        _GRADIENTS[_name] = partial(_pooling, _rank)
    _GRADIENTS[f"adaptive_avg_pool{_rank}d"] = partial(_adaptive, _rank)
    for _name in (f"adaptive_max_pool{_rank}d", f"adaptive_max_pool{_rank}d_with_indices"):
        _GRADIENTS[_name] = partial(_adaptive_maximum, _rank)


@gradient("interpolate", "upsample", "upsample_nearest", "upsample_bilinear")
def _interpolate(back: _Back, input: Any, *args: Any, **kwargs: Any) -> Gradients:
    call = back.forward
    if call.op_type == "Identity":
        yield from _copies(back)
        return
    if call.op_type == "torch.adaptive_avg_pool":
        yield input, lambda: _along_adaptive(back, input, call.attrs["output_size"])
        return

    def make() -> Call:
        sizes = call.attrs["size"]
        space = input.array.shape[-len(sizes) :]
        scales = call.attrs.get("scale_factor") or [None] * len(sizes)
        matrices = []
        for size, count, scale in zip(space, sizes, scales, strict=True):
            check_size([size, count])
            places, weights = taps(call.attrs["mode"], size, count, bool(call.attrs["align_corners"]), scale)
            matrices.append(_matrix_of(places, weights, size))
        return _call("torch.along_axes", back.g, *matrices, off=2.0 + max(*space, *sizes), narrow=True)

    yield input, make


# --- norms ------------------------------------------------------------------------------------------------------------


def _normalised(back: _Back, input: Input, weight: Any, bias: Any, **attrs: Any) -> Gradients:
    """The gradients of a norm for its input, weight and bias; attributes as torch.normalised_grad has them."""
    statistics = attrs.pop("statistics", ())

    def make(of: str, to: Input) -> Call:
        shape = list(to.array.shape) if of != "input" else None
        given = None if weight is None else weight
        return _call("torch.normalised_grad", back.g, input, given, *statistics, of=of, parameter_shape=shape, **attrs)

    for of, to in (("input", input), ("weight", weight), ("bias", bias)):
        if to is not None:
            yield to, partial(make, of, to)


def _size_of_norm(normalized_shape: Any) -> int:
    return prod(normalized_shape) if isinstance(normalized_shape, (list, tuple)) else int(normalized_shape)


@gradient("layer_norm", "npu_layer_norm_eval", "native_layer_norm")
def _layer_norm(
    back: _Back, input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Gradients:  # fmt: skip
    length = _size_of_norm(normalized_shape)
    yield from _normalised(
        back, input, weight, bias, shape=[input.array.size // length, length], axes=[1], weight_shape=[1, length],
        epsilon=float(eps), centred=True, narrow=True,
    )  # fmt: skip


@gradient("rms_norm", "npu_rms_norm")
def _rms_norm(back: _Back, input: Any, *args: Any, **kwargs: Any) -> Gradients:
    call = back.forward
    given = [tensor for tensor in back.tensors if tensor is not input]
    length = needed(call, 1).array.size
    yield from _normalised(
        back, input, given[0] if given else None, None, shape=[input.array.size // length, length], axes=[1],
        weight_shape=[1, length], epsilon=float(call.attrs["epsilon"]), centred=False,
    )  # fmt: skip


_GRADIENTS["npu_rms_norm"] = lambda back, self, gamma, epsilon=1e-6: _rms_norm(back, self, gamma, epsilon)


@gradient("batch_norm")
def _batch_norm(
    back: _Back, input: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    training: bool = False, momentum: float | None = 0.1, eps: float = 1e-5,
) -> Gradients:  # fmt: skip
    batch, channels = input.array.shape[:2]
    statistics = () if training else (running_mean, running_var)
    yield running_mean, None
    yield running_var, None
    yield from _normalised(
        back, input, weight, bias, shape=[batch, channels, prod(input.array.shape[2:])], axes=[0, 2],
        weight_shape=[1, channels, 1], epsilon=float(eps), centred=True, statistics=statistics,
    )  # fmt: skip


@gradient("Torch.batch_norm", "Aten.batch_norm")
def _torch_batch_norm(
    back: _Back, input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool,
    momentum: float, eps: float, cudnn_enabled: bool = True,
) -> Gradients:  # fmt: skip
    yield from _batch_norm(back, input, running_mean, running_var, weight, bias, training, momentum, eps)


@gradient("instance_norm")
def _instance_norm(
    back: _Back, input: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Gradients:  # fmt: skip
    if not use_input_stats:
        yield from _batch_norm(back, input, running_mean, running_var, weight, bias, False, momentum, eps)
        return
    yield running_mean, None
    yield running_var, None
    batch, channels = input.array.shape[:2]
    yield from _normalised(
        back, input, weight, bias, shape=[batch, channels, prod(input.array.shape[2:])], axes=[2],
        weight_shape=[1, channels, 1], epsilon=float(eps), centred=True, apart=True,
    )  # fmt: skip


_GRADIENTS["Torch.instance_norm"] = _GRADIENTS["Aten.instance_norm"] = (
    lambda back, input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, cudnn_enabled=True:
    _instance_norm(back, input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
)  # fmt: skip


@gradient("group_norm")
def _group_norm(
    back: _Back, input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Gradients:  # fmt: skip
    batch, channels = input.array.shape[:2]
    of_group = channels // num_groups
    yield from _normalised(
        back, input, weight, bias, shape=[batch, num_groups, of_group, prod(input.array.shape[2:])], axes=[2, 3],
        weight_shape=[1, num_groups, of_group, 1], epsilon=float(eps), centred=True,
    )  # fmt: skip


@gradient("normalize")
def _normalize(back: _Back, input: Any, p: float = 2.0, dim: Any = 1, eps: float = 1e-12, out: Any = None) -> Gradients:
    yield input, lambda: _unit(back, input, p, dim, eps, "input")


def _unit(back: _Back, input: Input, p: float, dim: Any, eps: float, of: str) -> Call:
    if p != 2:
        raise NotComputedError("no_variant", name="p", value=str(p))
    return _call("torch.normalize_grad", back.g, input, dim=_axes(input, dim), eps=float(eps), of=of)


@gradient("cosine_similarity")
def _cosine_similarity(back: _Back, x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Gradients:
    whole = _shape_of(x1, x2)

    def make(to: Input, other: Input) -> Call:
        pair = _widened(to, whole), _widened(other, whole)
        g = replace(back.g, array=np.expand_dims(back.g.array, dim))
        return _reduced(to, "torch.cosine_grad", g, *pair, of=whole, dim=[int(dim)], eps=float(eps))

    yield x1, partial(make, x1, x2)
    yield x2, partial(make, x2, x1)


@gradient("pairwise_distance")
def _pairwise_distance(
    back: _Back, x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Gradients:
    def make(to: Input, sign: float) -> Call:
        g, y = (x if keepdim else replace(x, array=x.array[..., None]) for x in (back.g, back.y))
        whole = _shape_of(x1, x2)
        return _reduced(to, "torch.distance_grad", g, x1, x2, y, of=whole, p=float(p), eps=float(eps), sign=sign)

    yield x1, partial(make, x1, 1.0)
    yield x2, partial(make, x2, -1.0)


@gradient("npu_add_rms_norm")
def _npu_add_rms_norm(back: _Back, x1: Any, x2: Any, gamma: Any, epsilon: float = 1e-6) -> Gradients:
    """The third result is the sum, whose gradient is added."""
    length = gamma.array.size
    total = replace(x1, array=x1.array + x2.array)
    added = back.gradients[2] if len(back.gradients) > 2 else None
    attrs: dict[str, Any] = {
        "shape": [x1.array.size // max(1, length), length], "axes": [1], "weight_shape": [1, length],
        "epsilon": float(epsilon), "centred": False,
    }  # fmt: skip
    for to in (x1, x2):
        yield to, lambda: _call("torch.normalised_grad", back.g, total, gamma, None, None, added, **attrs)
    shape = list(gamma.array.shape)
    yield (
        gamma,
        lambda: _call("torch.normalised_grad", back.g, total, gamma, of="weight", parameter_shape=shape, **attrs),
    )


# --- attention and embedding ------------------------------------------------------------------------------------------


@gradient("scaled_dot_product_attention")
def _attention(
    back: _Back, query: Any, key: Any, value: Any, attn_mask: Any = None, *args: Any, **kw: Any
) -> Gradients:
    call = back.forward
    for slot, to in enumerate((query, key, value, attn_mask)):
        if to is not None:
            yield to, partial(
                _call, "torch.scaled_dot_product_attention_grad", query, key, value, attn_mask, back.g, slot=slot,
                **call.attrs,
            )  # fmt: skip


@gradient("npu_fusion_attention", "npu_fusion_attention_v2")
def _npu_fusion_attention(
    back: _Back, query: Any, key: Any, value: Any, head_num: int, input_layout: str, *, pse: Any = None, **others: Any
) -> Gradients:
    call = back.forward
    q, k, v, shift, drop, padding, mask, *rest = call.inputs
    inputs = (q, k, v, back.g, shift, drop, padding, mask, None, None, None, None, *rest)
    for slot, to in enumerate((query, key, value, pse)):
        if to is not None:
            yield to, partial(_slot, slot, "FlashAttentionScoreGrad", *inputs, **call.attrs)


@gradient("embedding")
def _embedding(
    back: _Back, input: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Gradients:  # fmt: skip
    count = weight.array.shape[0]
    padding = None if padding_idx is None else int(padding_idx) % count
    attrs = {"num_weights": count, "padding_idx": padding, "scale_grad_by_freq": bool(scale_grad_by_freq)}
    yield weight, lambda: _result(_call("EmbeddingDenseGrad", back.g, input, **attrs), narrow=True)


_GRADIENTS["Torch.embedding"] = _GRADIENTS["Aten.embedding"] = (
    lambda back, weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False:
    _embedding(back, indices, weight, padding_idx if padding_idx >= 0 else None, None, 2.0, scale_grad_by_freq)
)  # fmt: skip


@gradient("npu_rotary_mul")
def _npu_rotary_mul(back: _Back, input: Any, r1: Any, r2: Any, rotary_mode: str = "half") -> Gradients:
    interleaved = rotary_mode == "interleave"
    yield input, lambda: _call("torch.rotary_grad", back.g, r1, r2, interleaved=interleaved)
    yield r1, lambda: _reduced(r1, "Mul", back.g, input)
    yield r2, lambda: _reduced(r2, "Mul", back.g, replace(input, array=turned(input.array, interleaved)))


# --- losses -----------------------------------------------------------------------------------------------------------


def _class_loss(back: _Back, input: Any, target: Any, weight: Any = None, *args: Any, of: str, **kwargs: Any) -> Call:
    return _call("torch.class_loss_grad", back.g, input, target, weight, of=of, **back.forward.attrs)


@gradient("cross_entropy")
def _cross_entropy(back: _Back, input: Any, target: Any, weight: Any = None, *args: Any, **kwargs: Any) -> Gradients:
    yield input, lambda: _class_loss(back, input, target, weight, of="logits")
    yield weight, None


@gradient("nll_loss")
def _nll_loss(back: _Back, input: Any, target: Any, weight: Any = None, *args: Any, **kwargs: Any) -> Gradients:
    yield input, lambda: _class_loss(back, input, target, weight, of="logarithms")
    yield weight, None


def _difference_loss(
    op_type: str, order: str, /, back: _Back, input: Any, target: Any, *args: Any, **kwargs: Any,
) -> Gradients:  # fmt: skip
    """The gradients of a loss of differences; `order` are the inputs of its op: x, the target t, the gradient g."""
    whole = _shape_of(input, target)

    def make(to: Input, other: Input) -> Call:
        of = {"x": _widened(to, whole), "t": _widened(other, whole), "g": back.g}
        return _reduced(to, op_type, *(of[letter] for letter in order), of=whole, **back.forward.attrs)

    yield input, partial(make, input, target)
    yield target, partial(make, target, input)


def _widened(x: Input, shape: Shape) -> Input:
    return x if x.array.shape == shape else replace(x, array=np.broadcast_to(x.array, shape))


_GRADIENTS["mse_loss"] = partial(_difference_loss, "MseLossGrad", "xtg")
_GRADIENTS["l1_loss"] = partial(_difference_loss, "L1LossGrad", "gxt")
_GRADIENTS["smooth_l1_loss"] = partial(_difference_loss, "SmoothL1LossGradV2", "xtg")
_GRADIENTS["huber_loss"] = partial(_difference_loss, "torch.huber_loss_grad", "gxt")


def _binary_loss(
    of_input: str, of_target: str, /, back: _Back, input: Any, target: Any, *args: Any, **kwargs: Any
) -> Gradients:
    more = back.forward.inputs[2:]
    attrs = back.forward.attrs
    yield input, lambda: _call(of_input, input, target, back.g, *more, **attrs)
    yield target, lambda: _call(of_target, back.g, input, *more, **attrs)
    for weight in back.tensors:
        if weight is not input and weight is not target:
            yield weight, None


_GRADIENTS["binary_cross_entropy"] = partial(_binary_loss, "BinaryCrossEntropyGrad", "torch.binary_target_grad")
_GRADIENTS["binary_cross_entropy_with_logits"] = partial(_binary_loss, "torch.logits_grad", "torch.logits_target_grad")


@gradient("kl_div")
def _kl_div(
    back: _Back, input: Any, target: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean",
    log_target: bool = False,
) -> Gradients:  # fmt: skip
    whole = _shape_of(input, target)
    count = {"mean": prod(whole), "batchmean": input.array.shape[0] if input.array.ndim else 1}.get(reduction, 1)
    attrs: dict[str, Any] = {"of": whole, "count": count, "log_target": bool(log_target) or None}
    yield input, lambda: _reduced(input, "torch.kl_div_grad", back.g, target, **attrs)
    yield target, lambda: _reduced(target, "torch.kl_div_grad", back.g, target, input, **attrs)


# --- reductions -------------------------------------------------------------------------------------------------------


def _axes(x: Input, dim: Any) -> list[int]:
    rank = x.array.ndim
    dims = [] if dim is None else list(dim) if isinstance(dim, (list, tuple)) else [dim]
    return [int(axis) % max(1, rank) for axis in dims] or list(range(rank))


def _kept(x: Input, dim: Any, reduced: Input) -> Input:
    """A result of a reduction with the axes that were summed as axes of length 1."""
    axes = _axes(x, dim)
    shape = [1 if axis in axes else size for axis, size in enumerate(x.array.shape)]
    return replace(reduced, array=reduced.array.reshape(shape))


def _spread_out(x: Input, dim: Any, reduced: Input) -> Input:
    kept = _kept(x, dim, reduced)
    return replace(kept, array=np.broadcast_to(kept.array, x.array.shape))


@gradient("sum")
def _sum(back: _Back, input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Gradients:
    yield input, lambda: _call("Identity", _spread_out(input, dim, back.g))


@gradient("mean")
def _mean(back: _Back, input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Gradients:
    yield input, lambda: _shared(_spread_out(input, dim, back.g), input.array.size / max(1, back.g.array.size))


def _shared(g: Input, count: float) -> Call:
    return _call("torch.scaled", g, value=float(count), divided=True)


@gradient("prod")
def _prod(back: _Back, input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Gradients:
    if not input.array.all():
        raise NotComputedError("no_variant", name="input", value="0")
    yield input, lambda: _call("torch.prod_grad", _kept(input, dim, back.g), input, _kept(input, dim, back.y))


def _deviation(
    root: bool, /, back: _Back, input: Any, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *,
    correction: float | None = None,
) -> Gradients:  # fmt: skip
    attrs = back.forward.attrs
    axes = list(attrs["dim"])

    def make() -> Call:
        y = _kept(input, axes, back.y) if root else None
        return _call(
            "torch.var_grad", _kept(input, axes, back.g), input, y, dim=axes, correction=attrs["correction"]
        )  # fmt: skip

    yield input, make


def _deviation_alone(root: bool, /, back: _Back, *args: Any, **kwargs: Any) -> Gradients:
    if back.gradients[1:] != [None]:
        raise NotComputedError("input_count", number=len(back.gradients))
    yield from _deviation(root, back, *args, **kwargs)


for _name, _root in (("var", False), ("std", True)):
    _GRADIENTS[_name] = partial(_deviation, _root)
    _GRADIENTS[f"{_name}_mean"] = partial(_deviation_alone, _root)


@gradient("vector_norm", "linalg_vector_norm", "norm")
def _norm(back: _Back, input: Any, *args: Any, **kwargs: Any) -> Gradients:
    call = back.forward
    axes = list(call.attrs["axes"])

    def make() -> Call:
        g = _kept(input, axes, back.g)
        if call.op_type == "EuclideanNormD":
            return _call("torch.norm_grad", g, input, _kept(input, axes, back.y))
        if call.attrs.get("p") == 1.0:
            return _call("Mul", g, replace(input, array=np.sign(input.array)))
        raise NotComputedError("no_variant", name="p", value=str(call.attrs.get("p")))

    yield input, make


@gradient("logsumexp")
def _logsumexp(back: _Back, input: Any, dim: Any, keepdim: bool = False) -> Gradients:
    yield input, lambda: _call("torch.logsumexp_grad", _kept(input, dim, back.g), input, _kept(input, dim, back.y))


def _ties(back: _Back, input: Any, dim: Any = None, keepdim: bool = False) -> Gradients:
    def make() -> Call:
        g, y = _kept(input, dim, back.g), _kept(input, dim, back.y)
        return _call("torch.ties_grad", g, input, y, dim=_axes(input, dim))

    yield input, make


_GRADIENTS["amax"] = _GRADIENTS["amin"] = _ties


def _extreme(
    smaller: bool | None, /, back: _Back, input: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None,
) -> Gradients:  # fmt: skip
    second = dim if isinstance(dim, Input) else other
    if second is not None:
        yield from _larger(back, input, second, smaller)
    elif dim is None:
        yield from _ties(back, input)
    else:
        yield from _chosen(back, input, dim)


_GRADIENTS["max"] = partial(_extreme, None)
_GRADIENTS["min"] = partial(_extreme, True)


def _chosen(back: _Back, input: Input, dim: int) -> Gradients:
    """The gradient of elements that the second result has the indices of, along an axis."""

    def make() -> Call:
        axis = int(dim) % max(1, input.array.ndim)
        index, g = back.output(1).array, back.g
        if index.ndim != input.array.ndim:
            index, g = np.expand_dims(index, axis), replace(g, array=np.expand_dims(g.array, axis))
        grid: list[Array] = list(np.indices(index.shape))
        grid[axis] = index
        return _by_place(g, np.asarray(np.ravel_multi_index(tuple(grid), input.array.shape)), input)

    yield input, make


@gradient("topk")
def _topk(back: _Back, input: Any, k: int, dim: int = -1, *args: Any, **kwargs: Any) -> Gradients:
    yield from _chosen(back, input, dim)


@gradient("sort", "msort")
def _sort(back: _Back, input: Any, dim: int = -1, *args: Any, **kwargs: Any) -> Gradients:
    yield from _chosen(back, input, dim)


@gradient("cumsum")
def _cumsum(back: _Back, input: Any, dim: int, *, dtype: Any = None) -> Gradients:
    yield input, lambda: _call("CumsumD", back.g, axis=int(dim), reverse=True)


# --- moves ------------------------------------------------------------------------------------------------------------


def _by_place(g: Input, places: Array, to: Input, narrow: bool | None = True) -> Call:
    """The gradients at the flat places of a tensor's elements (−1: of none), summed where several have the same."""
    shape = to.array.shape
    flat = np.asarray(places).reshape(-1)
    used = flat[flat >= 0]
    if used.size <= to.array.size and (not used.size or np.bincount(used, minlength=to.array.size).max() <= 1):
        result = np.zeros(to.array.size, g.array.dtype)
        result[used] = g.array.reshape(-1)[flat >= 0]
        return _moved(g, result.reshape(shape))
    return _call("torch.sum_by_place", g, flat.astype(np.int64), shape=list(shape), narrow=narrow)


#: Functions whose gradient is summed by a reduction, in float32; the others add up one after the other where it goes.
_REDUCED = frozenset({"expand", "expand_as", "broadcast_to", "broadcast_tensors", "meshgrid"})


def _copies(back: _Back, *args: Any, **kwargs: Any) -> Gradients:
    """The gradients of a function each of whose elements is one of its tensors' or a constant.

    The elements are numbered, and the numbers moved; with their signs changed constants show as what keeps its sign.
    """
    sources = [number for number, tensor in enumerate(back.tensors) if _is_real(tensor)]
    starts = np.cumsum([1, *(back.tensors[number].array.size for number in sources)])

    def numbered(sign: float) -> list[Array]:
        return back.again({
            number: Input(
                array=sign * np.arange(start, start + back.tensors[number].array.size, dtype=np.float64).reshape(
                    back.tensors[number].array.shape
                ),
                dtype="float64",
            )
            for number, start in zip(sources, starts, strict=False)
        })  # fmt: skip

    made: list[tuple[Array, Input]] = []

    def moved() -> tuple[Array, Input]:
        if not made:
            numbers = []
            for first, second in zip(numbered(1.0), numbered(-1.0), strict=True):
                numbers.append(np.where(first == -second, first, 0).astype(np.int64))
            values = []
            for at, number in enumerate(numbers):
                g = back.gradients[at] if at < len(back.gradients) else None
                values.append(np.zeros(number.size) if g is None else g.array.reshape(-1))
            given = next((g for g in back.gradients if g is not None), None)
            if given is None or any(value.size != number.size for value, number in zip(values, numbers, strict=True)):
                raise NotComputedError("not_given", name="gradients")
            made.append((
                np.concatenate([number.reshape(-1) for number in numbers]),
                replace(given, array=np.concatenate(values)),
            ))  # fmt: skip
        return made[0]

    narrow = None if key_of(back.name, dict.fromkeys(_REDUCED)) else True

    def make(number: int, start: int) -> Call:
        numbers, g = moved()
        tensor = back.tensors[number]
        own = (numbers >= start) & (numbers < start + tensor.array.size)
        return _by_place(g, np.where(own, numbers - start, -1), tensor, narrow)

    for number, start in zip(sources, starts, strict=False):
        yield back.tensors[number], partial(make, number, int(start))


_MOVES = (
    "expand", "broadcast_to", "expand_as", "repeat", "tile", "repeat_interleave", "hstack", "vstack", "row_stack",
    "dstack", "column_stack", "select", "roll", "tril", "triu", "diagonal", "diag", "index_select", "gather",
    "take_along_dim", "take", "masked_select", "index", "pad", "constant_pad_nd", "pixel_shuffle", "pixel_unshuffle",
    "channel_shuffle", "unfold", "Tensor.unfold", "Aten.unfold", "Torch.unfold", "broadcast_tensors", "meshgrid",
    "adjoint", "masked_scatter", "npu_confusion_transpose", "atleast_1d",
)  # fmt: skip
for _name in _MOVES:
    _GRADIENTS[_name] = _copies


def _viewed(back: _Back, *args: Any, **kwargs: Any) -> Gradients:
    """The gradient of a function that shows each element once, or not: written through the views of an array of 0."""
    tensor = back.tensors[0]

    def make() -> Call:
        given = next((g for g in back.gradients if g is not None), None)
        if given is None:
            raise NotComputedError("not_given", name="gradients")
        result = np.zeros(tensor.array.shape, given.array.dtype)
        call = back.call_again({0: replace(tensor, array=result)})
        views = [view.array for view in call.inputs if view is not None]
        pairs = [(view, g) for view, g in zip(views, back.gradients, strict=False) if g is not None]
        if any(view.shape != g.array.shape for view, g in pairs):
            raise NotComputedError("shapes_differ", shapes=tuple(view.shape for view, _ in pairs))
        if not all(view.flags.writeable and np.may_share_memory(view, result) for view, _ in pairs):
            return next(make for _, make in _copies(back) if make is not None)()
        for view, g in pairs:
            view[...] = g.array
        return _moved(given, result)

    yield tensor, make


_VIEWS = (
    "permute", "transpose", "swapaxes", "swapdims", "t", "T", "movedim", "moveaxis", "split", "split_with_sizes",
    "unsafe_split", "chunk", "unsafe_chunk", "tensor_split", "unbind", "narrow", "flip", "fliplr", "flipud", "rot90",
    "__getitem__", "npu_transpose",
)  # fmt: skip
for _name in _VIEWS:
    _GRADIENTS[_name] = _viewed


@gradient("cat", "concat", "concatenate")
def _cat(back: _Back, tensors: Any, dim: int = 0, *, axis: int | None = None) -> Gradients:
    """The parts of the gradient; what has no elements in one axis is left out."""
    along, start = int(dim if axis is None else axis), 0
    for tensor in tensors:
        if tensor.array.shape == (0,) and len(tensors) > 1:
            continue
        length = tensor.array.shape[along]
        yield tensor, partial(_part, back, tensor, along, start)
        start += length


def _part(back: _Back, to: Input, axis: int, begin: int) -> Call:
    index: list[slice] = [slice(None)] * back.g.array.ndim
    index[axis] = slice(begin, begin + to.array.shape[axis])
    part = back.g.array[tuple(index)]
    if part.shape != to.array.shape:
        raise NotComputedError("shapes_differ", shapes=(part.shape, to.array.shape))
    return _moved(back.g, part)


@gradient("stack")
def _stack(back: _Back, tensors: Any, dim: int = 0) -> Gradients:
    for number, tensor in enumerate(tensors):
        yield tensor, partial(_taken, back, int(dim), number)


def _taken(back: _Back, axis: int, number: int) -> Call:
    return _moved(back.g, np.moveaxis(back.g.array, axis, 0)[number])


def _same_order(back: _Back, input: Any, *args: Any, **kwargs: Any) -> Gradients:
    yield input, lambda: _moved(back.g, back.g.array.reshape(input.array.shape))


_ORDERED = (
    "reshape", "view", "_unsafe_view", "_reshape_alias", "reshape_as", "view_as", "flatten", "unflatten", "squeeze",
    "unsqueeze", "ravel", "contiguous", "clone", "cpu", "npu", "cuda", "alias", "npu_format_cast", "positive", "to",
    "type", "type_as", "npu_dtype_cast", "_npu_dtype_cast", "half", "bfloat16", "float", "double",
)  # fmt: skip
for _name in _ORDERED:
    _GRADIENTS[_name] = _same_order


@gradient("copy_")
def _copy(back: _Back, input: Any, src: Any, non_blocking: bool = False) -> Gradients:
    yield input, lambda: _moved(back.g, np.zeros(input.array.shape))
    yield src, lambda: _passed(back, src)


def _filled(back: _Back, function: str, *args: Any) -> Call:
    """The gradient with zeros where the function put something else."""
    return torch_call(f"Tensor.{function}", [back.g, *args], {})


@gradient("scatter")
def _scatter(
    back: _Back, input: Any, dim: int, index: Any, src: Any = None, *, value: Any = None, reduce: str | None = None
) -> Gradients:
    if reduce is not None:
        raise NotComputedError("no_variant", name="reduce", value=str(reduce))
    yield input, lambda: _filled(back, "scatter", dim, index, 0.0)
    yield src, lambda: _gathered(back, dim, index, src)


def _gathered(back: _Back, dim: int, index: Input, src: Input) -> Call:
    """The gradient at the indices, for a source of their shape."""
    if src.array.shape != index.array.shape:
        raise NotComputedError(
            "shape_misfit", name="src", shape=src.array.shape, other="index", other_shape=index.array.shape
        )
    return _call("GatherElements", back.g, index, dim=int(dim))


@gradient("scatter_add")
def _scatter_add(back: _Back, input: Any, dim: int, index: Any, src: Any) -> Gradients:
    yield input, lambda: _passed(back, input)
    yield src, lambda: _gathered(back, dim, index, src)


@gradient("index_add")
def _index_add(back: _Back, input: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Gradients:
    yield input, lambda: _passed(back, input)
    if alpha == 1:
        yield source, lambda: _call("GatherV2", back.g, index, axis=int(dim))


@gradient("index_copy")
def _index_copy(back: _Back, input: Any, dim: int, index: Any, source: Any) -> Gradients:
    yield input, lambda: _filled(back, "index_fill", dim, index, 0.0)
    yield source, lambda: _call("GatherV2", back.g, index, axis=int(dim))


@gradient("index_fill")
def _index_fill(back: _Back, input: Any, dim: int, index: Any, value: Any) -> Gradients:
    yield input, lambda: _filled(back, "index_fill", dim, index, 0.0)


@gradient("index_put")
def _index_put(back: _Back, input: Any, indices: Any, values: Any, accumulate: bool = False) -> Gradients:
    places = tuple(slice(None) if each is None else each.array for each in indices)

    def to_input() -> Call:
        if accumulate:
            return _passed(back, input)
        g = back.g.array.copy()
        g[places] = 0
        return _moved(back.g, g)

    yield input, to_input
    yield values, lambda: _reduced(values, "Identity", replace(back.g, array=back.g.array[places]))


# --- what the nodes between compute -----------------------------------------------------------------------------------

#: Yields shapes and calls, by the function.
Between = Callable[..., Iterator[tuple[Shape, Maker]]]
_BETWEEN: dict[str, Between] = {}


def _between(*names: str) -> Callable[[Between], Between]:
    """Register what the last node of a function passes on, where that is not the gradient for a tensor."""

    def register(builder: Between) -> Between:
        _BETWEEN.update(dict.fromkeys(names, builder))
        return builder

    return register


#: Functions whose last node may be a view, a copy or another type of what the nodes before it computed.
_VIEWED = frozenset({
    "linear", "matmul", "__matmul__", "__rmatmul__", "einsum", "inner", "instance_norm", "rms_norm",
    "scaled_dot_product_attention", "repeat_interleave", "multi_head_attention_forward", "bilinear", "lstm", "gru",
    "rnn_tanh", "rnn_relu", "softmax", "log_softmax",
})  # fmt: skip


def _views(back: _Back, shape: Shape, shapes: Sequence[Shape | None]) -> list[tuple[Shape, Maker]]:
    """The gradient itself in another shape, where one comes in and one goes out."""
    if (
        len([each for each in shapes if each is not None]) != 1
        or len([g for g in back.gradients if g is not None]) != 1
    ):
        return []
    g = back.gradients[0]
    if g is None or g.array.size != prod(shape):
        return []
    is_viewed = key_of(back.name, dict.fromkeys(_VIEWED)) is not None
    if not is_viewed and (g.array.shape == shape or _squeezed(g.array.shape) != _squeezed(shape)):
        return []
    return [(shape, lambda: _moved(g, g.array.reshape(shape)))]


@_between("linear")
def _of_product(back: _Back, input: Any, weight: Any, bias: Any = None) -> Iterator[tuple[Shape, Maker]]:
    """The product takes the weight turned around; of strided images of three axes or more a bias is added after it."""
    if weight.array.ndim == 2:
        yield weight.array.shape[::-1], lambda: _call("MatMulV2", _rows(input), _rows(back.g), transpose_x1=True)
    if bias is not None and input.array.ndim > 2:
        yield back.g.array.shape, lambda: _moved(back.g, back.g.array)


@_between("matmul", "__matmul__", "__rmatmul__", "einsum", "VF.gru", "VF.lstm", "VF.rnn_tanh", "VF.rnn_relu")
def _of_turned(back: _Back, *args: Any, **kwargs: Any) -> Iterator[tuple[Shape, Maker]]:
    """The last two axes change places, or the first two, those of a recurrent layer with the batch first."""
    for axes in ((-1, -2), (0, 1)):
        if back.g.array.ndim > max(axes):
            turned_around = np.swapaxes(back.g.array, *axes)
            yield turned_around.shape, partial(_moved, back.g, turned_around)


@_between("cross_entropy")
def _of_logarithms(
    back: _Back, input: Any, target: Any, weight: Any = None, *args: Any, **kwargs: Any,
) -> Iterator[tuple[Shape, Maker]]:  # fmt: skip
    """The loss takes the logarithms of the softmax; with smoothing or probabilities it is a sum or a quotient."""
    attrs = back.forward.attrs
    smoothing = attrs["label_smoothing"]
    if target.array.dtype.kind != "f" and not smoothing:
        yield input.array.shape, lambda: _class_loss(back, input, target, weight, of="logarithms")
    elif target.array.dtype.kind != "f":
        yield back.g.array.shape, lambda: _moved(back.g, back.g.array)
    elif attrs["reduction"] == "mean":
        count = input.array.size / (input.array.shape[1] if input.array.ndim > 1 else input.array.size)
        yield back.g.array.shape, lambda: _shared(back.g, count)


@_between("l1_loss", "kl_div")
def _of_reduction(back: _Back, input: Any, target: Any, *args: Any, **kwargs: Any) -> Iterator[tuple[Shape, Maker]]:
    """The mean or the sum of what each element makes; of kl_div's elements the last product or difference."""
    shape = _shape_of(input, target)
    attrs = back.forward.attrs
    if attrs["reduction"] == "none" and attrs.get("log_target"):
        power = replace(target, array=np.exp(target.array))
        yield shape, lambda: _call("Mul", back.g, power)
        yield shape, lambda: _call("torch.lerp_weight_grad", back.g, input, target)
    elif attrs["reduction"] == "none" and back.forward.op_type == "KLDiv":
        yield from ((shape, partial(_passed, back, _widened(input, shape), sign)) for sign in (1, -1))
    elif attrs["reduction"] == "batchmean":
        yield back.g.array.shape, lambda: _shared(back.g, shape[0])
    elif attrs["reduction"] != "none":
        g = replace(back.g, array=np.broadcast_to(back.g.array, shape))
        yield shape, lambda: _shared(g, prod(shape)) if attrs["reduction"] == "mean" else _call("Identity", g)


@_between("smooth_l1_loss")
def _of_no_bend(back: _Back, input: Any, target: Any, *args: Any, **kwargs: Any) -> Iterator[tuple[Shape, Maker]]:
    """Without the part below beta it is an l1_loss."""
    if back.forward.attrs["beta"] <= 0:
        yield from _of_reduction(back, input, target)


@_between("rms_norm")
def _of_scaling(
    back: _Back, input: Any, normalized_shape: Any, weight: Any = None, eps: Any = None,
) -> Iterator[tuple[Shape, Maker]]:  # fmt: skip
    """The last product: by the weight, or without one by the inverse root."""
    length = _size_of_norm(normalized_shape)
    shape = input.array.shape
    if weight is not None:
        yield shape, lambda: _call("Mul", back.g, weight)
        return
    attrs = {"shape": [input.array.size // length, length], "axes": [1], "epsilon": back.forward.attrs["epsilon"]}
    yield shape, lambda: _call("torch.normalised_grad", back.g, input, None, of="quotient", **attrs)
    first = len(shape) - _rank_of(normalized_shape)
    small = tuple(1 if axis >= first else size for axis, size in enumerate(shape))
    whole = Input(array=np.zeros(small), dtype=back.g.dtype)
    yield small, lambda: _reduced(whole, "Mul", back.g, input, of=shape)


def _rank_of(normalized_shape: Any) -> int:
    return len(normalized_shape) if isinstance(normalized_shape, (list, tuple)) else 1


@_between("normalize")
def _of_quotient(
    back: _Back, input: Any, p: float = 2.0, dim: Any = 1, eps: float = 1e-12, out: Any = None,
) -> Iterator[tuple[Shape, Maker]]:  # fmt: skip
    for of in ("quotient", "norm"):
        yield input.array.shape, partial(_unit, back, input, p, dim, eps, of)


@_between("softsign")
def _of_softsign(back: _Back, input: Any) -> Iterator[tuple[Shape, Maker]]:
    divisor = replace(input, array=1 + np.abs(input.array))
    yield input.array.shape, lambda: _call("torch.div_grad", back.g, divisor)
    yield input.array.shape, lambda: _call("torch.divisor_grad", back.g, input, divisor)


@_between("softmin")
def _of_softmin(back: _Back, input: Any, *args: Any, **kwargs: Any) -> Iterator[tuple[Shape, Maker]]:
    axes = list(back.forward.attrs["axes"])
    yield input.array.shape, lambda: _call("SoftmaxGrad", back.y, back.g, axes=axes)


@_between("__rtruediv__", "__rdiv__")
def _of_reciprocal(back: _Back, input: Any, other: Any) -> Iterator[tuple[Shape, Maker]]:
    yield input.array.shape, lambda: _times(back, input, other)


@_between("cosine_similarity")
def _of_products(back: _Back, x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Iterator[tuple[Shape, Maker]]:
    whole = replace(x1, array=np.broadcast_to(x1.array, _shape_of(x1, x2)))
    yield whole.array.shape, lambda: _call("Identity", _spread_out(whole, dim, back.g))


@_between("__getitem__")
def _of_last_index(back: _Back, input: Any, index: Any) -> Iterator[tuple[Shape, Maker]]:
    """Each part of an index is a node of its own: the gradient for what the parts before the last have left.

    Tensors are the last of all, together.
    """
    parts = list(index) if isinstance(index, (list, tuple)) else [index]
    at = [place for place, part in enumerate(parts) if part is Ellipsis or (isinstance(part, str) and part == "...")]
    if at:
        taken = sum(_axes_taken(part) for part in parts)
        parts[at[0] : at[0] + 1] = [slice(None)] * (input.array.ndim - taken)
    arrays = [_array_index(part) for part in parts]
    steps: list[tuple[list[Any], list[Any]]] = []
    if any(isinstance(part, np.ndarray) for part in arrays):
        plain = [slice(None) if isinstance(part, np.ndarray) else part for part in arrays]
        steps = [(plain, [part if isinstance(part, np.ndarray) else slice(None) for part in arrays])]
        steps[0] = plain, [rest for part, rest in zip(plain, steps[0][1], strict=True) if not isinstance(part, int)]
    else:
        for last in range(1, len(arrays)):
            kept = sum(not isinstance(part, int) for part in arrays[:last])
            steps.append((arrays[:last], [slice(None)] * kept + arrays[last:]))
    for before, rest in steps:
        left = input.array[tuple(before)]
        numbers = np.arange(left.size).reshape(left.shape)[tuple(rest)]
        if numbers.size == back.g.array.size:
            yield left.shape, partial(_by_place, back.g, numbers, replace(input, array=left))


def _axes_taken(part: Any) -> int:
    """How many axes a part of an index takes."""
    if part is None or part is Ellipsis or isinstance(part, str):
        return 0
    return part.array.ndim if isinstance(part, Input) and part.array.dtype.kind == "b" else 1


def _array_index(part: Any) -> Any:
    if isinstance(part, Input):
        return part.array
    return np.asarray(part) if isinstance(part, (list, tuple)) else part
