"""PyTorch's functions by the names that msprobe records, as calls of formulas.

A name is `Functional.linear`, `Torch.matmul`, `Tensor.__add__`, `NPU.npu_rms_norm` or `Mint.add`; most prefixes are
aliases of one function. The functions below have the argument order, the keyword names and the defaults of PyTorch's
documentation (of torch_npu's for npu_*), so that Python binds what was recorded. What only moves elements is moved at
once, as a view where numpy can, and becomes an Identity of the result. Forms in place (`add_`) are computed like the
others: their inputs were recorded before they ran.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import floor, inf, prod
from typing import Any, TypeVar

import numpy as np

from precision_tool.lib.messages import Message
from precision_tool.lib.ops import op_table
from precision_tool.lib.ops.base import Call, Input, NotComputedError, OutputSpec, check_size, reason_of
from precision_tool.lib.ops.op_arguments import HALF, Array, axis_of

#: Makes the call of a formula from recorded arguments.
Builder = Callable[..., Call]
_APIS: dict[str, Builder] = {}
#: Prefixes of msprobe whose names are those of torch, torch.nn.functional, torch.Tensor, torch_npu or mint.
PREFIXES = frozenset({"Functional", "Torch", "Tensor", "NPU", "Mint", "MintFunctional", "Aten", "VF", "_VF"})
_WHOLE_TYPES = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})
_REAL_TYPES = frozenset({"float16", "bfloat16", "float32", "float64"})
#: Other names of types.
_TYPE_NAMES = {"half": "float16", "float": "float32", "double": "float64", "int": "int32", "long": "int64",
               "short": "int16"}  # fmt: skip


Entry = TypeVar("Entry")


def registrar(table: dict[str, Entry]) -> Callable[..., Callable[[Entry], Entry]]:
    """Return the decorator that adds a function to a table by names; one with a prefix counts for that prefix only."""

    def named(*names: str) -> Callable[[Entry], Entry]:
        def add(entry: Entry) -> Entry:
            for name in names:
                if name in table:
                    raise ValueError(f"{name} is registered twice")
                table[name] = entry
            return entry

        return add

    return named


#: Registers the builder of some functions.
api = registrar(_APIS)


def torch_call(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Return the call of the formula that computes a function of PyTorch.

    Parameters
    ----------
    name : str
        The function as msprobe names it, without count and pass: "Functional.linear", "Tensor.__iadd__".
    args, kwargs
        The recorded arguments: tensors as `Input`, numbers, texts ("torch.float16" for types), None, slices, Ellipsis,
        and lists or tuples of these.

    Returns
    -------
    Call
        Its `outputs` are set only where the formula depends on a type; the outputs of the formula are in the order of
        those of the function, and may be more.

    Raises
    ------
    NotComputedError
        If the function has no formula, or not with these arguments.
    """
    builder = builder_of(name)
    if builder is None:
        raise NotComputedError("no_formula", op_type=name)
    try:
        with np.errstate(all="ignore"):
            return builder(*args, **kwargs)
    except NotComputedError as error:
        if "op_type" in error.reason.fields:
            raise
        raise NotComputedError(Message(error.reason.kind, **error.reason.fields, op_type=name)) from error
    except MemoryError as error:
        raise NotComputedError("out_of_memory") from error
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError, ZeroDivisionError) as error:
        raise NotComputedError(reason_of(error)) from error


def other_call(call: Call) -> Call | None:
    """Return another way in which kernels compute what a call computes; None where there is none.

    PyTorch's kernel of the batch norm for processors holds the statistics in the type of short parameters.
    """
    if call.op_type != "BatchNormV3" or not call.attrs.get("is_training"):
        return None
    types = {tensor.dtype for tensor in call.inputs[:3] if tensor is not None}
    short = types.pop() if len(types) == 1 else ""
    return replace(call, attrs={**call.attrs, "held": short}) if short in HALF else None


def builder_of(name: str) -> Builder | None:
    """Return what makes the call of a function, by its name with the prefix; None where there is no formula."""
    key = key_of(name, _APIS)
    return None if key is None else _APIS[key]


def key_of(name: str, table: Mapping[str, Any]) -> str | None:
    """Return the key that a table by names has for a function, also for a form of it in place; None where it has none.

    A key with the prefix counts before one without.
    """
    prefix, _, function = name.partition(".")
    if prefix not in PREFIXES or not function:
        return None
    names = [function]
    if function.startswith("__i") and function.endswith("__") and function not in table:
        names.append(f"__{function[3:]}")
    elif function.endswith("_") and not function.endswith("__"):
        names.append(function[:-1])
    candidates = (f"{prefix}.{each}" for each in names), iter(names)
    return next((each for every in candidates for each in every if each in table), None)


# --- what builders share ----------------------------------------------------------------------------------------------


def _call(op_type: str, *inputs: Any, outputs: tuple[OutputSpec, ...] = (), **attrs: Any) -> Call:
    """A call whose inputs may be numbers as well, and whose attributes of None are left out."""
    tensors = tuple(None if value is None else _tensor(value) for value in inputs)
    known = {name: value for name, value in attrs.items() if value is not None}
    return Call(op_type=op_type, inputs=tensors, attrs=known, outputs=outputs)


def _tensor(value: Any) -> Input:
    """A tensor, also of a number or a list of numbers."""
    if isinstance(value, Input):
        return value
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        raise NotComputedError("not_number", name="argument", value=repr(value)[:60])
    return Input(array=array, dtype=array.dtype.name)


def _moved(x: Input, array: Array) -> Call:
    """The elements of a tensor, moved."""
    return _call("Identity", replace(x, array=np.asarray(array), layout="ND"))


def _parts(x: Input, arrays: Iterable[Array]) -> Call:
    return _call("IdentityN", *(replace(x, array=array, layout="ND") for array in arrays))


def _number(x: Any) -> Input:
    """A tensor of numbers, of a bool 0 and 1."""
    tensor = _tensor(x)
    return replace(tensor, array=tensor.array.astype(np.int64), dtype="int64") if _is_bool(tensor) else tensor


def _is_bool(x: Any) -> bool:
    return isinstance(x, Input) and x.array.dtype.kind == "b"


def _real(x: Any) -> Input:
    """A tensor in float64 where it was of whole numbers."""
    tensor = _number(x)
    return tensor if tensor.array.dtype.kind in "fc" else replace(tensor, array=tensor.array.astype(np.float64))


def _like(x: Any, other: Any) -> Input:
    """A number in the type of a tensor of its kind, so that whole numbers keep theirs."""
    if not isinstance(x, Input) and isinstance(other, Input):
        kind = other.array.dtype.kind
        if isinstance(x, bool):
            x = int(x)
        if kind in "iu" and isinstance(x, int):
            return _tensor(np.asarray(x, other.array.dtype))
        return Input(array=np.asarray(x, np.complex128 if isinstance(x, complex) else np.float64), dtype="float64")
    return _number(x)


def _flat(values: Sequence[Any]) -> list[Any]:
    """Arguments that may come one by one or as one list."""
    if len(values) == 1 and isinstance(values[0], (list, tuple)):
        return list(values[0])
    return list(values)


def _ints(value: Any, count: int) -> list[int]:
    """A number for each axis of space, from one for all or a list."""
    numbers = list(value) if isinstance(value, (list, tuple)) else [value]
    numbers = numbers * count if len(numbers) == 1 else numbers
    if len(numbers) != count or not all(isinstance(number, (int, np.integer)) for number in numbers):
        raise NotComputedError("not_whole_numbers", name="argument")
    return [int(number) for number in numbers]


def _dims(dim: Any) -> list[int] | None:
    """Axes as a list; None, or an empty list, for all."""
    if dim is None:
        return None
    return [int(each) for each in dim] if isinstance(dim, (list, tuple)) else [int(dim)]


def _all_axes(x: Input, dim: Any) -> list[int]:
    return _dims(dim) or list(range(x.array.ndim))


def _plain(**options: Any) -> None:
    """Raise for an option that has an effect of which there is no formula."""
    for name, value in options.items():
        if value is not None and value is not False:
            raise NotComputedError("no_variant", name=name, value=repr(value)[:60])


def _type_name(dtype: Any) -> str:
    """The name of a type: "torch.float16" is "float16"."""
    name = str(dtype).rsplit(".", 1)[-1]
    return _TYPE_NAMES.get(name, name)


def _typed(x: Input, dtype: Any) -> Input:
    """A tensor as it is computed with once it has this type; rounding to it is left out."""
    if dtype is None:
        return x
    name = _type_name(dtype)
    if name in _REAL_TYPES:
        return replace(_real(x), dtype=name)
    if name in _WHOLE_TYPES and x.array.dtype.kind in "biu":
        return replace(x, array=x.array.astype(name), dtype=name)
    raise NotComputedError("no_conversion", dtype=x.dtype, value=name)


def _image(x: Input, rank: int) -> Input:
    """A batch of images with the channels first; one image gets a batch of its own."""
    array = x.array[None] if x.array.ndim == rank + 1 else x.array
    if array.ndim != rank + 2:
        raise NotComputedError("axis_count", name="input", number=x.array.ndim, limit=rank + 2)
    return replace(x, array=array, layout={1: "NCW", 2: "NCHW", 3: "NCDHW"}[rank])


# --- elements ---------------------------------------------------------------------------------------------------------


def _one(op_type: str, prepared: Callable[[Any], Input], /, input: Any, inplace: bool = False) -> Call:
    return _call(op_type, prepared(input))


def _unary() -> None:
    same = {
        "abs": "Abs", "neg": "Neg", "negative": "Neg", "sign": "Sign", "square": "Square", "relu": "Relu",
        "relu6": "Relu6", "floor": "Floor", "ceil": "Ceil", "trunc": "Trunc", "fix": "Trunc", "conj": "Conj",
        "__abs__": "Abs", "__neg__": "Neg", "absolute": "Abs",
    }  # fmt: skip
    real = {
        "exp": "Exp", "log": "Log", "log1p": "Log1p", "expm1": "Expm1", "sqrt": "Sqrt", "rsqrt": "Rsqrt",
        "reciprocal": "Reciprocal", "sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin", "arcsin": "Asin",
        "acos": "Acos", "arccos": "Acos", "atan": "Atan", "arctan": "Atan", "sinh": "Sinh", "cosh": "Cosh",
        "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh", "tanh": "Tanh", "sigmoid": "Sigmoid", "erf": "Erf",
        "erfc": "Erfc", "lgamma": "Lgamma", "mish": "Mish", "softsign": "Softsign", "logsigmoid": "LogSigmoid",
        "hardswish": "HardSwish", "selu": "Selu", "npu_mish": "Mish", "npu_fast_gelu": "FastGelu",
        "fast_gelu": "FastGelu", "isnan": "IsNan", "isinf": "IsInf", "isfinite": "IsFinite", "silu": "Swish",
        "swish": "Swish", "npu_silu": "Swish", "special.expit": "Sigmoid",
    }  # fmt: skip
    for names, prepared in ((same, _number), (real, _real)):
        for name, op_type in names.items():
            _APIS[name] = partial(_one, op_type, prepared)


_unary()


@api("log2")
def _log2(input: Any) -> Call:
    return _call("Log", _real(input), base=2.0)


@api("log10")
def _log10(input: Any) -> Call:
    return _call("Log", _real(input), base=10.0)


@api("round")
def _round(input: Any, *, decimals: int = 0) -> Call:
    _plain(decimals=decimals or None)
    return _call("Round", _number(input))


@api("add", "__add__", "__radd__")
def _add(input: Any, other: Any, *, alpha: Any = 1) -> Call:
    if _is_bool(input) and _is_bool(other):
        raise NotComputedError("data_type", name="input", dtype="bool")
    a, b = _like(input, other), _like(other, input)
    return _call("Add", a, b) if alpha == 1 else _added(a, b, alpha)


def _added(a: Input, b: Input, alpha: Any) -> Call:
    """The sum of a tensor and a multiple of another, whose factor kernels hold in the type of short tensors."""
    return _call("torch.axpy" if b.array.dtype.kind == "f" else "AxpyV2", a, b, alpha=float(alpha))


@api("sub", "subtract", "__sub__")
def _sub(input: Any, other: Any, *, alpha: Any = 1) -> Call:
    a, b = _like(input, other), _like(other, input)
    return _call("Sub", a, b) if alpha == 1 else _added(a, b, -float(alpha))


@api("rsub", "__rsub__")
def _rsub(input: Any, other: Any, *, alpha: Any = 1) -> Call:
    return _sub(other, input, alpha=alpha)


def _is_scaled(x: Any, other: Any) -> bool:
    """Return True for a tensor of floating-point numbers and a number."""
    is_number = isinstance(other, (int, float)) and not isinstance(other, bool)
    return is_number and isinstance(x, Input) and x.array.dtype.kind == "f"


@api("mul", "multiply", "__mul__", "__rmul__")
def _mul(input: Any, other: Any) -> Call:
    if _is_scaled(input, other):
        return _call("torch.scaled", input, value=other)
    return _call("Mul", _like(input, other), _like(other, input))


@api("div", "divide", "true_divide", "__truediv__", "__div__")
def _div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Call:
    if rounding_mode == "floor":
        return _floor_divide(input, other)
    _plain(rounding_mode=rounding_mode)
    if other and _is_scaled(input, other):
        return _call("torch.scaled", input, value=other, divided=True)
    return _call("RealDiv", _real(input), _real(other))


@api("__rtruediv__", "__rdiv__")
def _rdiv(input: Any, other: Any) -> Call:
    return _div(other, input)


@api("floor_divide", "__floordiv__")
def _floor_divide(input: Any, other: Any) -> Call:
    return _call("FloorDiv", _like(input, other), _like(other, input))


@api("__rfloordiv__")
def _rfloor_divide(input: Any, other: Any) -> Call:
    return _floor_divide(other, input)


@api("remainder", "__mod__")
def _remainder(input: Any, other: Any) -> Call:
    return _call("FloorMod", _like(input, other), _like(other, input))


@api("fmod")
def _fmod(input: Any, other: Any) -> Call:
    return _call("Mod", _like(input, other), _like(other, input))


@api("pow", "__pow__", "float_power")
def _pow(input: Any, exponent: Any) -> Call:
    return _call("Pow", _like(input, exponent), _like(exponent, input))


@api("__rpow__")
def _rpow(input: Any, other: Any) -> Call:
    return _pow(other, input)


@api("addcmul")
def _addcmul(input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Call:
    return _call("Addcmul", _number(input), _number(tensor1), _number(tensor2), value=float(value))


@api("addcdiv")
def _addcdiv(input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Call:
    return _call("Addcdiv", _real(input), _real(tensor1), _real(tensor2), value=float(value))


@api("lerp")
def _lerp(input: Any, end: Any, weight: Any) -> Call:
    return _call("torch.lerp", input, end, _like(weight, input))


@api("where")
def _where(condition: Any, input: Any = None, other: Any = None) -> Call:
    if input is None:
        return _parts(Input(array=np.zeros(0, np.int64), dtype="int64"), np.nonzero(np.atleast_1d(condition.array)))
    return _call("SelectV2", condition, _like(input, other), _like(other, input))


@api("Tensor.where")
def _tensor_where(input: Any, condition: Any, other: Any) -> Call:
    return _where(condition, input, other)


@api("masked_fill")
def _masked_fill(input: Any, mask: Any, value: Any) -> Call:
    return _call("MaskedFill", input, mask, value if isinstance(value, Input) else np.asarray(value, input.array.dtype))


@api("clamp", "clip", "clamp_min", "clamp_max")
def _clamp(input: Any, min: Any = None, max: Any = None) -> Call:
    if min is None and max is None:
        raise NotComputedError("not_given", name="min")
    low, high = (None if limit is None else _like(limit, input) for limit in (min, max))
    if low is None:
        return _call("Minimum", input, high)
    return _call("Maximum", input, low) if high is None else _call("ClipByValueV2", input, low, high)


_APIS["clamp_max"] = lambda input, max: _clamp(input, max=max)


@api("maximum", "fmax")
def _maximum(input: Any, other: Any) -> Call:
    return _call("Maximum", _like(input, other), _like(other, input))


@api("minimum", "fmin")
def _minimum(input: Any, other: Any) -> Call:
    return _call("Minimum", _like(input, other), _like(other, input))


def _compared(op_type: str, /, input: Any, other: Any) -> Call:
    return _call(op_type, _like(input, other), _like(other, input))


def _bitwise(word: str, /, input: Any, other: Any) -> Call:
    if _is_bool(input) and (_is_bool(other) or isinstance(other, bool)):
        return _logical(word, input, other)
    return _compared(f"Bitwise{word}", input, other)


def _two() -> None:
    compared = {
        "Equal": ("eq", "__eq__"), "NotEqual": ("ne", "not_equal", "__ne__"), "Less": ("lt", "less", "__lt__"),
        "LessEqual": ("le", "less_equal", "__le__"), "Greater": ("gt", "greater", "__gt__"),
        "GreaterEqual": ("ge", "greater_equal", "__ge__"),
    }  # fmt: skip
    _APIS.update({name: partial(_compared, op_type) for op_type, names in compared.items() for name in names})
    bits = {
        "And": ("__and__", "__rand__", "bitwise_and"), "Or": ("__or__", "__ror__", "bitwise_or"),
        "Xor": ("__xor__", "__rxor__", "bitwise_xor"),
    }  # fmt: skip
    for word, names in bits.items():
        _APIS.update({name: partial(_bitwise, word) for name in names})
        _APIS[f"logical_{word.lower()}"] = partial(_logical, word)


def _logical(word: str, /, input: Any, other: Any) -> Call:
    a, b = (replace(_tensor(x), array=_tensor(x).array != 0, dtype="bool") for x in (input, other))
    return _call(f"Logical{word}", a, b)


_two()


@api("logical_not")
def _logical_not(input: Any) -> Call:
    return _call("LogicalNot", replace(input, array=input.array != 0, dtype="bool"))


@api("bitwise_not", "__invert__")
def _invert(input: Any) -> Call:
    return _call("LogicalNot" if _is_bool(input) else "Invert", input)


#: The largest finite numbers.
_LARGEST = {
    "float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38,
    "float64": 1.7976931348623157e308,
}  # fmt: skip


@api("nan_to_num")
def _nan_to_num(input: Any, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Call:
    name = _type_name(input.dtype)
    largest = _LARGEST.get(name, inf)
    if largest == inf and None in (posinf, neginf):
        raise NotComputedError("data_type", name="input", dtype=name)
    x = input.array
    y = np.where(np.isnan(x), 0.0 if nan is None else nan, x)
    y = np.where(x == inf, largest if posinf is None else posinf, y)
    return _moved(input, np.where(x == -inf, -largest if neginf is None else neginf, y))


# --- activations ------------------------------------------------------------------------------------------------------


@api("gelu", "npu_gelu")
def _gelu(input: Any, approximate: str = "none") -> Call:
    return _call("GeluV2", input, approximate=approximate)


@api("leaky_relu")
def _leaky_relu(input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Call:
    return _call("LeakyRelu", input, negative_slope=float(negative_slope))


@api("elu")
def _elu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Call:
    return _call("Elu", input, alpha=float(alpha))


@api("Aten.elu")
def _aten_elu(input: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Call:
    return _call("Elu", input, alpha=float(alpha), scale=float(scale), input_scale=float(input_scale))


@api("celu")
def _celu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Call:
    return _call("CeluV2", input, alpha=float(alpha))


@api("prelu")
def _prelu(input: Any, weight: Any) -> Call:
    layout = "NCHW" if input.array.ndim > 1 else "ND"
    return _call("PRelu", replace(input, layout=layout), weight)


@api("softplus")
def _softplus(input: Any, beta: float = 1.0, threshold: float = 20.0) -> Call:
    return _call("SoftplusV2", input, beta=float(beta), threshold=float(threshold))


@api("hardsigmoid")
def _hardsigmoid(input: Any, inplace: bool = False) -> Call:
    return _call("HardSigmoid", input)


@api("hardtanh")
def _hardtanh(input: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Call:
    return _clamp(input, min_val, max_val)


@api("threshold")
def _threshold(input: Any, threshold: float, value: float, inplace: bool = False) -> Call:
    mask = Input(array=input.array > threshold, dtype="bool")
    return _call("SelectV2", mask, input, np.asarray(value, input.array.dtype))


@api("glu")
def _glu(input: Any, dim: int = -1) -> Call:
    return _call("torch.glu", input, dim=dim)


@api("softmax", "_softmax")
def _softmax(input: Any, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Call:
    return _call("SoftmaxV2", _typed(input, dtype), axes=[_softmax_dim(input, dim)])


@api("log_softmax", "_log_softmax")
def _log_softmax(input: Any, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Call:
    return _call("LogSoftmaxV2", _typed(input, dtype), axes=[_softmax_dim(input, dim)])


for _prefix in ("Torch", "Tensor"):
    _APIS[f"{_prefix}.softmax"] = lambda input, dim, dtype=None: _softmax(input, dim, dtype=dtype)
    _APIS[f"{_prefix}.log_softmax"] = lambda input, dim, dtype=None: _log_softmax(input, dim, dtype=dtype)


@api("softmin")
def _softmin(input: Any, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Call:
    return _softmax(replace(input, array=-input.array), dim, dtype=dtype)


def _softmax_dim(input: Input, dim: int | None) -> int:
    """The axis that torch takes by default: the second, of one or three axes the first."""
    return (0 if input.array.ndim in (0, 1, 3) else 1) if dim is None else dim


@api("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout")
def _dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Call:
    if training and p:
        raise NotComputedError("no_variant", name="p", value=str(p))
    return _moved(input, input.array)


# --- matrices ---------------------------------------------------------------------------------------------------------


def _product(a: Input, b: Input, bias: Input | None = None, turned: bool = False) -> Call:
    """The matrix product as torch.matmul has it: a vector is a row on the left, a column on the right."""
    for tensor in (a, b):
        if not tensor.array.ndim:
            raise NotComputedError("shape", name="matrices", shape=())
    left = a.array[None] if a.array.ndim == 1 else a.array
    right = b.array[:, None] if b.array.ndim == 1 and not turned else b.array
    if right.ndim == 1:  # a linear layer with one result
        right = right[None]
    if left is a.array and right is b.array:
        return _call("MatMulV2", a, b, bias, transpose_x2=turned or None)
    rows, columns = left.shape[-2], right.shape[-2 if turned else -1]
    shape = [*np.broadcast_shapes(left.shape[:-2], right.shape[:-2])]
    shape += [] if a.array.ndim == 1 else [rows]
    shape += [] if b.array.ndim == 1 else [columns]
    inputs = replace(a, array=left), replace(b, array=right)
    return _call("torch.MatMulV2", *inputs, bias, transpose_x2=turned or None, shape=shape)


@api("linear", "npu_linear")
def _linear(input: Any, weight: Any, bias: Any = None) -> Call:
    vector = bias if bias is None or bias.array.ndim else replace(bias, array=bias.array.reshape(1))
    return _product(input, weight, vector, turned=True)


@api("matmul", "__matmul__", "mm", "bmm", "mv", "dot", "vdot", "npu_bmmV2")
def _matmul(input: Any, other: Any = None, *, mat2: Any = None, vec: Any = None, tensor: Any = None) -> Call:
    given = [x for x in (other, mat2, vec, tensor) if x is not None]
    return _product(input, given[0])


@api("inner")
def _inner(input: Any, other: Any) -> Call:
    turned = input.array.ndim == other.array.ndim == 2
    return _product(input, replace(other, array=other.array.T) if turned else other)


_APIS["__rmatmul__"] = lambda input, other: _product(other, input)


@api("addmm", "baddbmm")
def _addmm(input: Any, mat1: Any = None, mat2: Any = None, *, beta: Any = 1, alpha: Any = 1, batch1: Any = None,
           batch2: Any = None) -> Call:  # fmt: skip
    a, b = mat1 if batch1 is None else batch1, mat2 if batch2 is None else batch2
    addend = input.array
    if beta == alpha == 1 and addend.ndim == 1 and addend.size == b.array.shape[-1]:
        return _call("MatMulV2", a, b, input)
    return _call("torch.addmm", input, a, b, beta=float(beta), alpha=float(alpha))


@api("einsum")
def _einsum(equation: str, *operands: Any) -> Call:
    equation = equation.replace(" ", "")
    return _call("Einsum", *_flat(operands), equation=equation)


@api("outer", "ger")
def _outer(input: Any, vec2: Any) -> Call:
    return _call("Mul", replace(input, array=input.array[:, None]), replace(vec2, array=vec2.array[None]))


# --- convolution ------------------------------------------------------------------------------------------------------


def _pads(padding: Any, rank: int, kernel: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """The padding before and after each axis of space."""
    if padding == "valid":
        return [0] * (2 * rank)
    if padding == "same":
        totals = [step * (size - 1) for size, step in zip(kernel, dilation, strict=True)]
        return [side for total in totals for side in (total // 2, total - total // 2)]
    return [side for pad in _ints(padding, rank) for side in (pad, pad)]


def _planes(x: Input, rank: int) -> tuple[Input, int]:
    """A batch of images of at least two axes of space: one axis gets a second one of length 1 before it."""
    batch = _image(x, rank)
    if rank > 1:
        return batch, rank
    return replace(batch, array=batch.array[:, :, None], layout="NCHW"), 2


def _shaped(x: Input, rank: int, call: Call, shape: Sequence[int]) -> Call:
    """A call whose result gets the axes of space that the images had; `shape` is (batch, channels, *space)."""
    if x.array.ndim == rank + 2 and rank > 1:
        return call
    of = list(shape) if x.array.ndim == rank + 2 else list(shape[1:])
    return replace(call, op_type=f"torch.{call.op_type}", attrs={**call.attrs, "shape": of})


def _count(size: int, kernel: int, stride: int, dilation: int, pads: int, ceil: bool = False) -> int:
    room = size + pads - dilation * (kernel - 1) - 1
    return (-(-room // stride) if ceil else room // stride) + 1


def _convolution(rank: int) -> None:
    def conv(
        input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
        groups: int = 1,
    ) -> Call:  # fmt: skip
        strides, dilations = _ints(stride, rank), _ints(dilation, rank)
        kernel = weight.array.shape[2:]
        pads = _pads(padding, rank, kernel, dilations)
        space = _image(input, rank).array.shape
        counts = [
            _count(size, kernel[axis], strides[axis], dilations[axis], pads[2 * axis] + pads[2 * axis + 1])
            for axis, size in enumerate(space[2:])
        ]
        images, many = _planes(input, rank)
        filters, _ = _planes(weight, rank)
        extra = many - rank
        call = _call(
            f"Conv{many}D", images, filters, bias, strides=[1] * extra + strides, dilations=[1] * extra + dilations,
            pads=[0] * (2 * extra) + pads, groups=int(groups),
        )  # fmt: skip
        return _shaped(input, rank, call, (space[0], weight.array.shape[0], *counts))

    def transposed(
        input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
        groups: int = 1, dilation: Any = 1,
    ) -> Call:  # fmt: skip
        strides, dilations = _ints(stride, rank), _ints(dilation, rank)
        pads, beyond = _ints(padding, rank), _ints(output_padding, rank)
        kernel = weight.array.shape[2:]
        shape = _image(input, rank).array.shape
        space = [
            (size - 1) * strides[axis] - 2 * pads[axis] + dilations[axis] * (kernel[axis] - 1) + beyond[axis] + 1
            for axis, size in enumerate(shape[2:])
        ]
        images, many = _planes(input, rank)
        filters, _ = _planes(weight, rank)
        extra = many - rank
        channels = weight.array.shape[1] * groups
        call = _call(
            f"Conv{many}DTranspose", images, filters, bias, strides=[1] * extra + strides,
            dilations=[1] * extra + dilations, pads=[0] * (2 * extra) + [side for pad in pads for side in (pad, pad)],
            groups=int(groups), input_size=[shape[0], channels, *[1] * extra, *space],
        )  # fmt: skip
        return _shaped(input, rank, call, (shape[0], channels, *space))

    _APIS[f"conv{rank}d"] = conv
    _APIS[f"conv_transpose{rank}d"] = transposed


for _rank in (1, 2, 3):
    _convolution(_rank)


# --- pooling ----------------------------------------------------------------------------------------------------------


def _pooling(rank: int) -> None:
    def maximum(
        input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False, return_indices: bool = False,
    ) -> Call:  # fmt: skip
        return _pooled(input, rank, kernel_size, stride, padding, dilation, ceil_mode, None)

    def average(
        input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: Any = None,
    ) -> Call:  # fmt: skip
        return _pooled(input, rank, kernel_size, stride, padding, 1, ceil_mode, count_include_pad, divisor_override)

    _APIS[f"max_pool{rank}d"] = _APIS[f"max_pool{rank}d_with_indices"] = maximum
    _APIS[f"avg_pool{rank}d"] = average
    _APIS[f"adaptive_avg_pool{rank}d"] = partial(_adaptive, rank)
    _APIS[f"adaptive_max_pool{rank}d"] = partial(_adaptive_maximum, rank)
    _APIS[f"adaptive_max_pool{rank}d_with_indices"] = partial(_adaptive_maximum, rank)


def _adaptive(rank: int, /, input: Any, output_size: Any) -> Call:
    space = _image(input, rank).array.shape[2:]
    sizes = list(output_size) if isinstance(output_size, (list, tuple)) else [output_size] * rank
    whole = [own if size is None else size for own, size in zip(space, sizes, strict=True)]
    return _call("torch.adaptive_avg_pool", input, output_size=_ints(whole, rank))


def _adaptive_maximum(rank: int, /, input: Any, output_size: Any, return_indices: bool = False) -> Call:
    return replace(_adaptive(rank, input, output_size), op_type="torch.adaptive_max_pool")


def _pooled(
    x: Input, rank: int, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil: bool,
    include: bool | None, divisor: int | None = None,
) -> Call:  # fmt: skip
    """Pooling by maximum where `include` is None, else by average; it says whether padding counts."""
    kernel = _ints(kernel_size, rank)
    strides = kernel if stride is None or stride == [] else _ints(stride, rank)
    pads, dilations = _ints(padding, rank), _ints(dilation, rank)
    space = _image(x, rank).array.shape
    counts = []
    for axis, size in enumerate(space[2:]):
        if not 0 <= 2 * pads[axis] <= kernel[axis] <= size + 2 * pads[axis]:
            raise NotComputedError("window", number=kernel[axis], limit=size + 2 * pads[axis])
        count = _count(size, kernel[axis], strides[axis], dilations[axis], 2 * pads[axis], ceil)
        if ceil and (count - 1) * strides[axis] >= size + pads[axis]:
            count -= 1
        beyond = (count - 1) * strides[axis] + kernel[axis] - size - 2 * pads[axis]
        if include and ceil and beyond > 0:  # windows are cut where the padding ends
            raise NotComputedError("no_variant", name="ceil_mode", value="True")
        counts.append(count)
    images, many = _planes(x, rank)
    extra = many - rank
    attrs: dict[str, Any] = {
        "ksize": [1] * extra + kernel, "strides": [1] * extra + strides, "dilations": [1] * extra + dilations,
        "pads": [0] * (2 * extra) + [side for pad in pads for side in (pad, pad)], "ceil_mode": bool(ceil),
    }  # fmt: skip
    if include is not None:
        attrs |= {"exclusive": not include, "divisor_override": divisor}
    op_type = ("MaxPool" if include is None else "AvgPool") + ("3D" if many == 3 else "")
    return _shaped(x, rank, _call(op_type, images, **attrs), (*space[:2], *counts))


for _rank in (1, 2, 3):
    _pooling(_rank)


# --- images -----------------------------------------------------------------------------------------------------------


@api("interpolate", "upsample", "upsample_nearest", "upsample_bilinear")
def _interpolate(
    input: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None, antialias: bool = False,
) -> Call:  # fmt: skip
    _plain(antialias=antialias)
    x = input.array
    rank = x.ndim - 2
    if rank not in (1, 2, 3):
        raise NotComputedError("shape", name="input", shape=x.shape)
    scales: list[float | None] = [None] * rank
    if size is not None:
        sizes = _ints(size, rank)
    else:
        factors = list(scale_factor) if isinstance(scale_factor, (list, tuple)) else [scale_factor] * rank
        sizes = [floor(own * factor) for own, factor in zip(x.shape[2:], factors, strict=True)]
        if not recompute_scale_factor:
            scales = [float(factor) for factor in factors]
    check_size([*x.shape[:2], *sizes])
    if mode in ("nearest", "nearest-exact"):
        shift = 0.5 if mode == "nearest-exact" else 0.0
        for axis, (count, scale) in enumerate(zip(sizes, scales, strict=True), 2):
            step = x.shape[axis] / count if scale is None else 1 / scale
            places = np.floor((np.arange(count) + shift) * step + 1e-9).astype(np.intp)
            x = np.take(x, np.minimum(places, x.shape[axis] - 1), axis)
        return _moved(input, x)
    if mode == "area":
        return _call("torch.adaptive_avg_pool", input, output_size=sizes)
    kind = {"linear": "linear", "bilinear": "linear", "trilinear": "linear", "bicubic": "cubic"}.get(mode)
    if kind is None:
        raise NotComputedError("no_variant", name="mode", value=mode)
    return _call(
        "torch.interpolate", input, size=sizes, mode=kind, align_corners=bool(align_corners), scale_factor=scales
    )


@api("pad", "constant_pad_nd")
def _pad(input: Any, pad: Sequence[int], mode: Any = "constant", value: Any = None) -> Call:
    if not isinstance(mode, str):  # constant_pad_nd has the value here
        mode, value = "constant", mode
    x = input.array
    numbers = [int(number) for number in pad]
    pairs = [(0, 0)] * (x.ndim - len(numbers) // 2) + list(zip(numbers[::2], numbers[1::2], strict=True))[::-1]
    if len(pairs) != x.ndim:
        raise NotComputedError("value_misfit", name="pad", value=str(numbers), shapes=(x.shape,))
    cut = tuple(slice(max(0, -low), size + min(0, high)) for size, (low, high) in zip(x.shape, pairs, strict=True))
    borders = [(max(0, low), max(0, high)) for low, high in pairs]
    x = x[cut]
    check_size([size + low + high for size, (low, high) in zip(x.shape, borders, strict=True)])
    modes = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    if mode == "constant":
        return _moved(input, np.pad(x, borders, constant_values=x.dtype.type(value or 0)))
    if mode not in modes:
        raise NotComputedError("no_variant", name="mode", value=mode)
    return _moved(input, np.pad(x, borders, mode=modes[mode]))  # type: ignore[call-overload]


@api("pixel_shuffle")
def _pixel_shuffle(input: Any, upscale_factor: int) -> Call:
    x, r = input.array, upscale_factor
    *lead, channels, height, width = x.shape
    y = x.reshape(*lead, channels // (r * r), r, r, height, width)
    axes = [*range(len(lead)), *(len(lead) + at for at in (0, 3, 1, 4, 2))]
    return _moved(input, y.transpose(axes).reshape(*lead, channels // (r * r), height * r, width * r))


@api("pixel_unshuffle")
def _pixel_unshuffle(input: Any, downscale_factor: int) -> Call:
    x, r = input.array, downscale_factor
    *lead, channels, height, width = x.shape
    y = x.reshape(*lead, channels, height // r, r, width // r, r)
    axes = [*range(len(lead)), *(len(lead) + at for at in (0, 2, 4, 1, 3))]
    return _moved(input, y.transpose(axes).reshape(*lead, channels * r * r, height // r, width // r))


# --- norms ------------------------------------------------------------------------------------------------------------


@api("layer_norm", "npu_layer_norm_eval")
def _layer_norm(
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Call:  # fmt: skip
    shape = _flat([normalized_shape])
    return _call("LayerNormV4", input, None, weight, bias, normalized_shape=shape, epsilon=float(eps))


_APIS["native_layer_norm"] = _layer_norm


@api("rms_norm")
def _rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Call:
    if eps is None:
        eps = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float64": 2.0**-52}.get(input.dtype, 2.0**-23)
    shape = tuple(_flat([normalized_shape]))
    gamma = replace(input, array=np.ones(shape)) if weight is None else weight
    if gamma.array.shape != shape:
        raise NotComputedError("shape_expected", name="weight", shape=gamma.array.shape, other_shape=shape)
    return _call("RmsNorm", input, gamma, epsilon=float(eps))


@api("npu_rms_norm")
def _npu_rms_norm(self: Any, gamma: Any, epsilon: float = 1e-6) -> Call:
    return _call("RmsNorm", self, gamma, epsilon=float(epsilon))


@api("npu_add_rms_norm")
def _npu_add_rms_norm(x1: Any, x2: Any, gamma: Any, epsilon: float = 1e-6) -> Call:
    return _call("AddRmsNorm", x1, x2, gamma, epsilon=float(epsilon))


@api("batch_norm")
def _batch_norm(
    input: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    training: bool = False, momentum: float | None = 0.1, eps: float = 1e-5,
) -> Call:  # fmt: skip
    x = replace(input, layout={3: "NCW", 4: "NCHW", 5: "NCDHW"}.get(input.array.ndim, "ND"))
    return _call(
        "BatchNormV3", x, weight, bias, running_mean, running_var, is_training=bool(training),
        epsilon=float(eps), momentum=None if momentum is None else float(momentum),
    )  # fmt: skip


@api("Torch.batch_norm", "Aten.batch_norm")
def _torch_batch_norm(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, momentum: float,
    eps: float, cudnn_enabled: bool = True,
) -> Call:  # fmt: skip
    return _batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


@api("instance_norm")
def _instance_norm(
    input: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Call:  # fmt: skip
    if not use_input_stats:
        return _batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    return _call("InstanceNorm", replace(input, layout="NCHW"), weight, bias, epsilon=float(eps))


_APIS["Torch.instance_norm"] = _APIS["Aten.instance_norm"] = (
    lambda input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, cudnn_enabled=True:
    _instance_norm(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
)  # fmt: skip


@api("group_norm")
def _group_norm(
    input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn_enabled: bool = True
) -> Call:
    return _call("GroupNorm", replace(input, layout="NCHW"), weight, bias, num_groups=int(num_groups), eps=float(eps))


@api("normalize")
def _normalize(input: Any, p: float = 2.0, dim: Any = 1, eps: float = 1e-12, out: Any = None) -> Call:
    return _call("torch.normalize", input, p=float(p), dim=_dims(dim), eps=float(eps))


@api("cosine_similarity")
def _cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Call:
    return _call("torch.cosine_similarity", x1, x2, dim=int(dim), eps=float(eps))


# --- attention and embedding ------------------------------------------------------------------------------------------


@api("scaled_dot_product_attention")
def _attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Call:  # fmt: skip
    return _call(
        "torch.scaled_dot_product_attention", query, key, value, attn_mask, dropout_p=float(dropout_p),
        is_causal=bool(is_causal), scale=None if scale is None else float(scale), enable_gqa=bool(enable_gqa),
    )  # fmt: skip


@api("embedding")
def _embedding(
    input: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Call:  # fmt: skip
    _plain(max_norm=max_norm)
    return _call("GatherV2", weight, input, axis=0)


_APIS["Torch.embedding"] = _APIS["Aten.embedding"] = lambda weight, indices, *rest, **options: _embedding(
    indices, weight
)


@api("one_hot")
def _one_hot(tensor: Any, num_classes: int = -1) -> Call:
    count = int(tensor.array.max()) + 1 if num_classes == -1 else num_classes
    check_size([*tensor.array.shape, count])
    return _moved(tensor, (tensor.array[..., None] == np.arange(count)).astype(np.int64))


@api("npu_rotary_mul")
def _npu_rotary_mul(input: Any, r1: Any, r2: Any, rotary_mode: str = "half") -> Call:
    if rotary_mode not in ("half", "interleave"):
        raise NotComputedError("no_variant", name="rotary_mode", value=rotary_mode)
    return _call("RotaryMul", input, r1, r2, mode=int(rotary_mode == "interleave"))


@api("npu_swiglu")
def _npu_swiglu(self: Any, dim: int = -1) -> Call:
    return _call("SwiGlu", self, dim=int(dim))


@api("npu_fusion_attention", "npu_fusion_attention_v2")
def _npu_fusion_attention(
    query: Any, key: Any, value: Any, head_num: int, input_layout: str, *, pse: Any = None, padding_mask: Any = None,
    atten_mask: Any = None, scale: float = 1.0, keep_prob: float = 1.0, pre_tockens: int = 2147483647,
    next_tockens: int = 2147483647, inner_precise: int = 0, prefix: Any = None, actual_seq_qlen: Any = None,
    actual_seq_kvlen: Any = None, sparse_mode: int = 0, gen_mask_parallel: bool = True, sync: bool = False,
    pse_type: int = 1, q_start_idx: Any = None, kv_start_idx: Any = None, softmax_layout: str = "",
    sink: Any = None, **others: Any,
) -> Call:  # fmt: skip
    _plain(prefix=prefix, actual_seq_qlen=actual_seq_qlen or None, actual_seq_kvlen=actual_seq_kvlen or None, sink=sink)
    return _call(
        "torch.npu_fusion_attention", query, key, value, pse, None, padding_mask, atten_mask, head_num=int(head_num),
        input_layout=input_layout, scale_value=float(scale), keep_prob=float(keep_prob), pre_tockens=int(pre_tockens),
        next_tockens=int(next_tockens), sparse_mode=int(sparse_mode), pse_type=int(pse_type),
    )  # fmt: skip


@api("npu_grouped_matmul")
def _npu_grouped_matmul(
    x: Any, weight: Any, *, bias: Any = None, scale: Any = None, offset: Any = None, antiquant_scale: Any = None,
    antiquant_offset: Any = None, per_token_scale: Any = None, group_list: Any = None, activation_input: Any = None,
    activation_quant_scale: Any = None, activation_quant_offset: Any = None, split_item: Any = 0,
    group_type: Any = None, group_list_type: Any = 0, act_type: Any = 0, output_dtype: Any = None, **others: Any,
) -> Call:  # fmt: skip
    _plain(scale=scale or None, antiquant_scale=antiquant_scale or None, per_token_scale=per_token_scale or None,
           act_type=act_type or None)  # fmt: skip
    biases = bias or []
    if group_list is None:
        if len(x) != len(weight):
            raise NotComputedError("count_misfit", name="weight", number=len(weight), other="inputs", limit=len(x))
        return _each([_product(*pair, *biases[at : at + 1]) for at, pair in enumerate(zip(x, weight, strict=True))])
    ends = group_list if isinstance(group_list, Input) else _tensor(np.asarray(group_list, np.int64))
    if len(x) != 1 or (group_type not in (None, 0)):
        raise NotComputedError("no_variant", name="group_type", value=str(group_type))
    return _call("GroupedMatmul", x[0], *weight, *biases, ends, group_list_type=int(group_list_type or 0))


@api("npu_dynamic_quant")
def _npu_dynamic_quant(x: Any, *, smooth_scales: Any = None, group_index: Any = None, dst_type: Any = None) -> Call:
    name = "int8" if dst_type is None else _type_name(dst_type)
    specs = (OutputSpec(dtype=name), OutputSpec())
    return _call("DynamicQuant", x, smooth_scales, group_index, outputs=specs)


@api("npu_moe_gating_top_k_softmax")
def _npu_moe_gating_top_k_softmax(x: Any, finished: Any = None, k: int = 1) -> Call:
    return _call("torch.npu_moe_gating_top_k_softmax", x, finished, k=int(k))


@api("npu_apply_adam_w")
def _npu_apply_adam_w(
    beta1_power: float, beta2_power: float, lr: float, weight_decay: float, beta1: float, beta2: float,
    epsilon: float, grad: Any, max_grad_norm: Any, amsgrad: bool, maximize: bool, *, out: Any,
) -> Call:  # fmt: skip
    _plain(amsgrad=amsgrad)
    numbers = beta1_power, beta2_power, lr, weight_decay, beta1, beta2, epsilon
    return _call("ApplyAdamW", *out, *(float(number) for number in numbers), grad, maximize=bool(maximize))


# --- losses -----------------------------------------------------------------------------------------------------------


@api("cross_entropy")
def _cross_entropy(
    input: Any, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Call:  # fmt: skip
    _plain(size_average=size_average, reduce=reduce)
    return _call(
        "CrossEntropyLoss", input, target, weight, reduction=reduction, ignore_index=int(ignore_index),
        label_smoothing=float(label_smoothing),
    )  # fmt: skip


@api("nll_loss")
def _nll_loss(
    input: Any, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean",
) -> Call:  # fmt: skip
    _plain(size_average=size_average, reduce=reduce)
    return _call("torch.nll_loss", input, target, weight, reduction=reduction, ignore_index=int(ignore_index))


@api("binary_cross_entropy")
def _binary_cross_entropy(
    input: Any, target: Any, weight: Any = None, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
) -> Call:
    _plain(size_average=size_average, reduce=reduce)
    return _call("torch.binary_cross_entropy", input, target, weight, reduction=reduction)


@api("binary_cross_entropy_with_logits")
def _logits_loss(
    input: Any, target: Any, weight: Any = None, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean", pos_weight: Any = None,
) -> Call:  # fmt: skip
    _plain(size_average=size_average, reduce=reduce)
    return _call("SigmoidCrossEntropyWithLogitsV2", input, target, weight, pos_weight, reduction=reduction)


def _difference_loss(
    op_type: str, /, input: Any, target: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean",
    weight: Any = None,
) -> Call:  # fmt: skip
    _plain(size_average=size_average, reduce=reduce, weight=weight)
    return _call(op_type, *_broadcast(input, target), reduction=reduction)


_APIS["mse_loss"] = partial(_difference_loss, "MseLoss")
_APIS["l1_loss"] = partial(_difference_loss, "LpLoss")


def _broadcast(*tensors: Input) -> list[Input]:
    arrays = np.broadcast_arrays(*(tensor.array for tensor in tensors))
    return [replace(tensor, array=array) for tensor, array in zip(tensors, arrays, strict=True)]


@api("smooth_l1_loss")
def _smooth_l1_loss(
    input: Any, target: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean", beta: float = 1.0
) -> Call:
    _plain(size_average=size_average, reduce=reduce)
    return _call("SmoothL1LossV2", *_broadcast(input, target), reduction=reduction, beta=float(beta))


@api("huber_loss")
def _huber_loss(input: Any, target: Any, reduction: str = "mean", delta: float = 1.0, weight: Any = None) -> Call:
    _plain(weight=weight)
    return _call("torch.huber_loss", *_broadcast(input, target), reduction=reduction, delta=float(delta))


@api("kl_div")
def _kl_div(
    input: Any, target: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean",
    log_target: bool = False,
) -> Call:  # fmt: skip
    _plain(size_average=size_average, reduce=reduce)
    return _call("KLDiv", *_broadcast(input, target), reduction=reduction, log_target=bool(log_target) or None)


# --- reductions -------------------------------------------------------------------------------------------------------


@api("sum")
def _sum(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Call:
    x = _typed(input, dtype)
    if x.array.dtype.kind in "biu":
        x = replace(x, array=x.array.astype(np.int64), dtype="int64")
    return _call("ReduceSumD", x, axes=_all_axes(x, dim), keep_dims=bool(keepdim))


@api("mean")
def _mean(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Call:
    x = _typed(input, dtype)
    return _call("ReduceMeanD", x, axes=_all_axes(x, dim), keep_dims=bool(keepdim))


@api("prod")
def _prod(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Call:
    x = _number(_typed(input, dtype))
    return _call("ReduceProdD", x, axes=_all_axes(x, dim), keep_dims=bool(keepdim))


def _deviation(
    op_type: str, /, input: Any, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *,
    correction: float | None = None,
) -> Call:  # fmt: skip
    if isinstance(dim, bool):  # the second argument may be `unbiased`
        dim, unbiased = None, dim
    if correction is None:
        correction = 1.0 if unbiased is None or unbiased else 0.0
    return _call(op_type, input, dim=_all_axes(input, dim), keepdim=bool(keepdim), correction=float(correction))


for _name in ("var", "std", "var_mean", "std_mean"):
    _APIS[_name] = partial(_deviation, f"torch.{_name}")


@api("vector_norm", "linalg_vector_norm")
def _vector_norm(input: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Call:
    x = _typed(input, dtype)
    axes = _all_axes(x, dim)
    if ord == 2:
        return _call("EuclideanNormD", x, axes=axes, keep_dims=bool(keepdim))
    power = "inf" if ord in (inf, "inf") else "-inf" if ord in (-inf, "-inf") else float(ord)
    return _call("LpNorm", x, axes=axes, keep_dims=bool(keepdim), p=power, epsilon=0.0)


@api("norm")
def _norm(
    input: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, out: Any = None, dtype: Any = None
) -> Call:
    if p == "nuc":
        raise NotComputedError("no_variant", name="p", value="nuc")
    return _vector_norm(input, 2 if p in ("fro", None) else p, dim, keepdim, dtype=dtype)


@api("Torch.norm")
def _norm_or_linalg_norm(
    input: Any, p: Any = None, dim: Any = None, keepdim: bool = False, out: Any = None, dtype: Any = None,
    *, ord: Any = None,
) -> Call:  # fmt: skip
    """torch.norm or torch.linalg.norm: msprobe leaves `linalg.` out of names.

    They differ for matrices: numbers are powers of the elements in the first, norms of matrices in the second, where
    only the one of Frobenius is computed.
    """
    power = ord if p is None else p
    if power not in ("fro", None) and len(_all_axes(input, dim)) == 2:
        raise NotComputedError("no_variant", name="ord", value=str(power))
    return _norm(input, power, dim, keepdim, dtype=dtype)


def _extreme(word: str, /, input: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Call:
    second = dim if isinstance(dim, Input) else other
    if second is not None:
        return _call(f"{word}imum", _like(input, second), _like(second, input))
    if dim is None:
        return _call(f"Reduce{word}D", input, axes=_all_axes(input, None))
    if not input.array.ndim:
        raise NotComputedError("shape", name="input", shape=())
    return _call(f"torch.{word.lower()}", input, dim=int(dim), keepdim=bool(keepdim))


def _extreme_along(word: str, /, input: Any, dim: Any = None, keepdim: bool = False) -> Call:
    return _call(f"Reduce{word}D", input, axes=_all_axes(input, dim), keep_dims=bool(keepdim))


def _place_of_extreme(word: str, /, input: Any, dim: int | None = None, keepdim: bool = False) -> Call:
    op_type = f"torch.arg{word.lower()}"
    if dim is None:
        _plain(keepdim=keepdim)
        return _call(op_type, replace(input, array=input.array.reshape(-1)), dim=0)
    return _call(op_type, input, dim=int(dim), keepdim=bool(keepdim))


for _word in ("Max", "Min"):
    _APIS[_word.lower()] = partial(_extreme, _word)
    _APIS[f"a{_word.lower()}"] = partial(_extreme_along, _word)
    _APIS[f"arg{_word.lower()}"] = partial(_place_of_extreme, _word)


@api("all")
def _all(input: Any, dim: Any = None, keepdim: bool = False) -> Call:
    x = replace(input, array=input.array != 0, dtype="bool")
    return _call("ReduceAllD", x, axes=_all_axes(input, dim), keep_dims=bool(keepdim))


@api("any")
def _any(input: Any, dim: Any = None, keepdim: bool = False) -> Call:
    x = replace(input, array=input.array != 0, dtype="bool")
    return _call("ReduceAnyD", x, axes=_all_axes(input, dim), keep_dims=bool(keepdim))


@api("logsumexp")
def _logsumexp(input: Any, dim: Any, keepdim: bool = False) -> Call:
    return _call("LogSumExp", input, axes=_all_axes(input, dim), keep_dims=bool(keepdim))


@api("cumsum")
def _cumsum(input: Any, dim: int, *, dtype: Any = None) -> Call:
    x = _typed(input, dtype)
    if x.array.dtype.kind in "biu":
        x = replace(x, array=x.array.astype(np.int64), dtype="int64")
    return _call("CumsumD", x, axis=int(dim))


@api("cumprod")
def _cumprod(input: Any, dim: int, *, dtype: Any = None) -> Call:
    return _call("CumprodD", _number(_typed(input, dtype)), axis=int(dim))


@api("topk")
def _topk(input: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Call:
    return _call("TopKV2", input, k=int(k), dim=int(dim), largest=bool(largest), sorted=bool(sorted))


@api("sort", "msort")
def _sort(input: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Call:
    axis = axis_of(_call("TopKV2"), int(dim), input.array.ndim)
    return _call("TopKV2", input, k=input.array.shape[axis], dim=axis, largest=bool(descending))


@api("argsort")
def _argsort(input: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Call:
    return replace(_sort(input, dim, descending), op_type="torch.argsort")


@api("count_nonzero")
def _count_nonzero(input: Any, dim: Any = None) -> Call:
    return _sum(replace(input, array=input.array != 0, dtype="bool"), dim)


@api("nonzero")
def _nonzero(input: Any, *, as_tuple: bool = False) -> Call:
    return _where(input) if as_tuple else _call("Where", input)


# --- shapes and moves -------------------------------------------------------------------------------------------------


@api("reshape", "view", "_unsafe_view", "_reshape_alias")
def _reshape(input: Any, *shape: Any, **named: Any) -> Call:
    shape = shape or tuple(named.values())
    first = shape[0] if len(shape) == 1 else None
    if isinstance(first, str) or (first is None and not shape):
        raise NotComputedError("no_variant", name="shape", value=str(first))
    return _moved(input, input.array.reshape([int(size) for size in _flat(shape)]))


@api("reshape_as", "view_as")
def _reshape_as(input: Any, other: Any) -> Call:
    return _moved(input, input.array.reshape(other.array.shape))


@api("flatten")
def _flatten(input: Any, start_dim: int = 0, end_dim: int = -1) -> Call:
    x = input.array.reshape(1) if not input.array.ndim else input.array
    first, last = start_dim % x.ndim, end_dim % x.ndim
    return _moved(input, x.reshape(*x.shape[:first], prod(x.shape[first : last + 1]), *x.shape[last + 1 :]))


@api("unflatten")
def _unflatten(input: Any, dim: int, sizes: Sequence[int]) -> Call:
    x = input.array
    axis = dim % x.ndim
    part = np.zeros(x.shape[axis], np.bool_).reshape(*sizes).shape
    return _moved(input, x.reshape(*x.shape[:axis], *part, *x.shape[axis + 1 :]))


@api("squeeze")
def _squeeze(input: Any, dim: Any = None) -> Call:
    x = input.array
    axes = [axis % max(1, x.ndim) for axis in (_dims(dim) or range(x.ndim))]
    return _moved(input, x.reshape([size for axis, size in enumerate(x.shape) if size != 1 or axis not in axes]))


@api("unsqueeze")
def _unsqueeze(input: Any, dim: int) -> Call:
    return _moved(input, np.expand_dims(input.array, int(dim)))


@api("permute")
def _permute(input: Any, *dims: Any, **named: Any) -> Call:
    return _moved(input, input.array.transpose([int(axis) for axis in _flat(dims or tuple(named.values()))]))


@api("transpose", "swapaxes", "swapdims")
def _transpose(input: Any, dim0: int, dim1: int) -> Call:
    return _moved(input, np.swapaxes(input.array, int(dim0), int(dim1)))


@api("t", "T")
def _t(input: Any) -> Call:
    return _moved(input, input.array.T)


@api("movedim", "moveaxis")
def _movedim(input: Any, source: Any, destination: Any) -> Call:
    return _moved(input, np.moveaxis(input.array, source, destination))


@api("expand", "broadcast_to")
def _expand(input: Any, *size: Any, **named: Any) -> Call:
    x = input.array
    sizes = [int(each) for each in _flat(size or tuple(named.values()))]
    aligned = [1] * (len(sizes) - x.ndim) + list(x.shape)
    shape = [own if each == -1 else each for own, each in zip(aligned, sizes, strict=True)]
    check_size(shape)
    return _moved(input, np.broadcast_to(x, shape))


@api("expand_as")
def _expand_as(input: Any, other: Any) -> Call:
    return _moved(input, np.broadcast_to(input.array, other.array.shape))


@api("repeat", "tile")
def _repeat(input: Any, *repeats: Any, **named: Any) -> Call:
    times = [int(each) for each in _flat(repeats or tuple(named.values()))]
    x = input.array.reshape([1] * (len(times) - input.array.ndim) + list(input.array.shape))
    times = [1] * (x.ndim - len(times)) + times  # what only `tile` may leave out
    check_size([size * many for size, many in zip(x.shape, times, strict=True)])
    return _moved(input, np.tile(x, times))


@api("repeat_interleave")
def _repeat_interleave(input: Any, repeats: Any = None, dim: int | None = None, *, output_size: Any = None) -> Call:
    many = repeats.array if isinstance(repeats, Input) else repeats
    axis = None if dim is None else int(dim)
    total = int(np.max(many, initial=0)) * input.array.size
    check_size([total])
    return _moved(input, np.repeat(input.array, many, axis))


@api("cat", "concat", "concatenate")
def _cat(tensors: Any, dim: int = 0, *, axis: int | None = None) -> Call:
    parts = [tensor for tensor in tensors if tensor.array.shape != (0,)] or list(tensors[:1])
    kinds = [parts[0], *(part for part in parts if part.array.dtype.kind == "f")]
    array = np.concatenate([part.array for part in parts], int(dim if axis is None else axis))
    return _moved(kinds[-1], array)


@api("stack")
def _stack(tensors: Any, dim: int = 0) -> Call:
    return _moved(tensors[0], np.stack([tensor.array for tensor in tensors], int(dim)))


def _cut(x: Input, ends: Sequence[int], axis: int) -> Call:
    return _parts(x, np.split(x.array, ends, axis))


@api("split", "split_with_sizes")
def _split(tensor: Any, split_size_or_sections: Any = None, dim: int = 0, *, split_size: Any = None) -> Call:
    sizes = split_size_or_sections if split_size is None else split_size
    length = tensor.array.shape[dim]
    if isinstance(sizes, (list, tuple)):
        if sum(sizes) != length:
            raise NotComputedError("value_misfit", name="split_size", value=str(sizes), shapes=(tensor.array.shape,))
        return _cut(tensor, np.cumsum(sizes)[:-1].tolist(), dim)
    return _cut(tensor, list(range(int(sizes), length, int(sizes))), dim)


_APIS["unsafe_split"] = _split


@api("chunk", "unsafe_chunk")
def _chunk(input: Any, chunks: int, dim: int = 0) -> Call:
    size = max(1, -(-input.array.shape[dim] // int(chunks)))
    return _split(input, size, dim)


@api("tensor_split")
def _tensor_split(input: Any, indices_or_sections: Any, dim: int = 0) -> Call:
    return _parts(input, np.array_split(input.array, indices_or_sections, dim))


@api("unbind")
def _unbind(input: Any, dim: int = 0) -> Call:
    return _parts(input, np.moveaxis(input.array, int(dim), 0))


@api("narrow")
def _narrow(input: Any, dim: int, start: int, length: int) -> Call:
    index = [slice(None)] * input.array.ndim
    begin = int(start) % max(1, input.array.shape[dim]) if start < 0 else int(start)
    index[dim] = slice(begin, begin + int(length))
    return _moved(input, input.array[tuple(index)])


@api("select")
def _select(input: Any, dim: int, index: int) -> Call:
    return _moved(input, np.take(input.array, int(index), int(dim)))


@api("flip")
def _flip(input: Any, *dims: Any, **named: Any) -> Call:
    return _moved(input, np.flip(input.array, tuple(int(axis) for axis in _flat(dims or tuple(named.values())))))


@api("roll")
def _roll(input: Any, shifts: Any, dims: Any = None) -> Call:
    return _moved(input, np.roll(input.array, shifts, None if dims in (None, [], ()) else dims))


@api("rot90")
def _rot90(input: Any, k: int = 1, dims: Sequence[int] = (0, 1)) -> Call:
    return _moved(input, np.rot90(input.array, k, (int(dims[0]), int(dims[1]))))


def _matrices(x: Input) -> Array:
    if x.array.ndim < 2:
        raise NotComputedError("shape", name="input", shape=x.array.shape)
    return x.array


@api("tril")
def _tril(input: Any, diagonal: int = 0) -> Call:
    return _moved(input, np.tril(_matrices(input), int(diagonal)))


@api("triu")
def _triu(input: Any, diagonal: int = 0) -> Call:
    return _moved(input, np.triu(_matrices(input), int(diagonal)))


@api("diagonal")
def _diagonal(input: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Call:
    return _moved(input, np.diagonal(input.array, offset, dim1, dim2))


@api("Torch.diagonal")
def _diagonal_or_linalg_diagonal(
    input: Any, *args: Any, offset: int = 0, dim1: int | None = None, dim2: int | None = None
) -> Call:
    """torch.linalg.diagonal takes the last two axes where none are given, and these by name only."""
    axes = {name: axis for name, axis in (("dim1", dim1), ("dim2", dim2)) if axis is not None}
    if args:
        return _diagonal(input, *args, **axes)
    if input.array.ndim != 2 and len(axes) < 2:
        raise NotComputedError("no_variant", name="dim1", value=str(dim1))
    return _diagonal(input, offset, **axes)


@api("diag")
def _diag(input: Any, diagonal: int = 0) -> Call:
    size = input.array.size + abs(diagonal) if input.array.ndim == 1 else 1
    check_size([size, size])
    return _moved(input, np.diag(input.array, int(diagonal)))


@api("contiguous", "clone", "detach", "cpu", "npu", "cuda", "alias", "npu_format_cast", "positive", "requires_grad_",
     "checkpoint", "identity")  # fmt: skip
def _same(input: Any, *args: Any, **kwargs: Any) -> Call:
    return _moved(input, input.array)


@api("copy_", "fill_")
def _copy(input: Any, src: Any = None, non_blocking: bool = False, *, value: Any = None) -> Call:
    source = value if src is None else src
    array = source.array if isinstance(source, Input) else np.asarray(source)
    return _cast(replace(_tensor(source), array=np.broadcast_to(array, input.array.shape)), input.dtype)


@api("zero_", "zeros_like")
def _zeros(input: Any, **options: Any) -> Call:
    return _moved(input, np.zeros_like(input.array))


@api("ones_like")
def _ones(input: Any, **options: Any) -> Call:
    return _moved(input, np.ones_like(input.array))


@api("full_like")
def _full_like(input: Any, fill_value: Any, *, dtype: Any = None, **options: Any) -> Call:
    return _cast(_tensor(np.full(input.array.shape, fill_value)), input.dtype if dtype is None else dtype)


# --- types ------------------------------------------------------------------------------------------------------------


def _cast(x: Input, dtype: Any) -> Call:
    name = _type_name(dtype)
    if name not in _WHOLE_TYPES | _REAL_TYPES | {"bool"}:
        raise NotComputedError("no_conversion", dtype=x.dtype, value=name)
    return _call("Cast", x, outputs=(OutputSpec(dtype=name),))


#: What `to` is told of the memory, which does not move elements.
_FORMATS = frozenset(
    f"torch.{name}" for name in ("preserve_format", "contiguous_format", "channels_last", "channels_last_3d")
)


@api("to", "type", "npu_dtype_cast", "_npu_dtype_cast")
def _to(input: Any, *args: Any, dtype: Any = None, **options: Any) -> Call:
    for value in args:
        if isinstance(value, Input):
            dtype = value.dtype
        elif isinstance(value, str) and value.startswith("torch.") and value not in _FORMATS:
            dtype = value
    if isinstance(options.get("other"), Input):
        dtype = options["other"].dtype
    return _moved(input, input.array) if dtype is None else _cast(input, dtype)


@api("type_as")
def _type_as(input: Any, other: Any) -> Call:
    return _cast(input, other.dtype)


def _to_type(dtype: str, /, input: Any, *args: Any, **options: Any) -> Call:
    return _cast(input, dtype)


for _name in ("half", "bfloat16", "float", "double", "int", "long", "short", "bool"):
    _APIS[_name] = partial(_to_type, _name)


# --- elements by their indices ----------------------------------------------------------------------------------------


def _index_of(index: Any) -> Any:
    """An index as numpy takes it; msprobe records an Ellipsis as "..."."""
    if isinstance(index, str) and index == "...":
        return Ellipsis
    if isinstance(index, Input):
        return index.array if index.array.ndim or index.array.dtype.kind == "b" else int(index.array)
    if isinstance(index, (list, tuple)):
        if any(isinstance(part, (slice, str, Input, list, tuple)) or part in (None, Ellipsis) for part in index):
            return tuple(_index_of(part) for part in index)
        return list(index)
    return index


@api("__getitem__")
def _getitem(input: Any, index: Any) -> Call:
    places = tuple(_index_of(part) for part in index) if isinstance(index, tuple) else _index_of(index)
    if isinstance(places, list):  # a tuple of numbers is recorded as a list
        places = tuple(places)
    if not isinstance(places, tuple):
        return _moved(input, input.array[places])
    # Unlike numpy, PyTorch takes single numbers out before it indexes by tensors.
    parts = [np.asarray(part) if isinstance(part, (list, tuple)) else part for part in places]
    plain: list[Any] = []
    rest: list[Any] = []
    for part in parts:
        is_array = isinstance(part, np.ndarray)
        plain += [slice(None)] * (part.ndim if part.dtype.kind == "b" else 1) if is_array else [part]
        if is_array or not isinstance(part, int):
            rest.append(part if is_array or part is Ellipsis else slice(None))
    x = input.array[tuple(plain)]
    return _moved(input, x[tuple(rest)] if any(isinstance(part, np.ndarray) for part in parts) else x)


@api("index_select")
def _index_select(input: Any, dim: int, index: Any) -> Call:
    places = index if index.array.ndim else replace(index, array=index.array.reshape(1))
    return _call("GatherV2", input, places, axis=int(dim))


@api("gather")
def _gather(input: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Call:
    return _call("GatherElements", input, index, dim=int(dim))


@api("take_along_dim")
def _take_along_dim(input: Any, indices: Any, dim: int | None = None) -> Call:
    if dim is None:
        return _moved(input, input.array.reshape(-1)[indices.array.reshape(-1)])
    return _moved(input, np.take_along_axis(input.array, indices.array, int(dim)))


@api("take")
def _take(input: Any, index: Any) -> Call:
    return _moved(input, input.array.reshape(-1)[index.array])


@api("masked_select")
def _masked_select(input: Any, mask: Any) -> Call:
    x, chosen = np.broadcast_arrays(input.array, mask.array)
    return _moved(input, x[chosen])


@api("index")
def _index(input: Any, indices: Any) -> Call:
    return _moved(input, input.array[tuple(slice(None) if each is None else each.array for each in indices)])


def _places_along(shape: Sequence[int], index: Array, axis: int) -> Array:
    """The places of elements whose index along an axis is told, as the last axis; checked against the shape."""
    check_size([*index.shape, len(shape)])
    grid: list[Array] = list(np.indices(index.shape))
    grid[axis] = np.where(index < 0, index + shape[axis], index)
    return np.stack(grid, -1).astype(np.int64)


_REDUCED = {"sum": "Add", "amax": "Max", "amin": "Min", "add": "Add"}


def _scattered(input: Input, dim: int, index: Input, updates: Any, how: str) -> Call:
    x = input.array
    axis = dim % max(1, x.ndim)
    source = updates.array if isinstance(updates, Input) else np.full(index.array.shape, updates, x.dtype)
    if source.ndim != index.array.ndim or index.array.ndim != x.ndim:
        raise NotComputedError(
            "shape_misfit", name="index", shape=index.array.shape, other="input", other_shape=x.shape
        )
    some = source[tuple(slice(size) for size in index.array.shape)]
    places = _tensor(_places_along(x.shape, index.array, axis))
    return _call(f"TensorScatter{how}", input, places, replace(input, array=some))


@api("scatter")
def _scatter(
    input: Any, dim: int, index: Any, src: Any = None, *, value: Any = None, reduce: str | None = None
) -> Call:
    if reduce not in (None, "add"):
        raise NotComputedError("no_variant", name="reduce", value=str(reduce))
    return _scattered(input, int(dim), index, value if src is None else src, "Add" if reduce else "Update")


@api("scatter_add")
def _scatter_add(input: Any, dim: int, index: Any, src: Any) -> Call:
    return _scattered(input, int(dim), index, src, "Add")


@api("scatter_reduce")
def _scatter_reduce(input: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True) -> Call:
    if reduce not in _REDUCED or not include_self:
        raise NotComputedError("no_variant", name="reduce", value=str(reduce))
    return _scattered(input, int(dim), index, src, _REDUCED[reduce])


def _rows(input: Input, dim: int, index: Input, source: Any, how: str) -> Call:
    """Rows along an axis, at the places that a vector has; other axes than the first need the place of each number."""
    axis = dim % max(1, input.array.ndim)
    rows = index.array.reshape(-1)
    if isinstance(source, Input) and source.array.ndim:
        shape = source.array.shape
    else:
        value = source.array if isinstance(source, Input) else source
        shape = tuple(len(rows) if at == axis else size for at, size in enumerate(input.array.shape))
        source = replace(input, array=np.full(shape, value, input.array.dtype))
    whole = np.broadcast_to(rows.reshape([-1 if at == axis else 1 for at in range(len(shape))]), shape)
    return _scattered(input, axis, replace(index, array=whole), source, how)


@api("index_add")
def _index_add(input: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Call:
    if alpha != 1:
        raise NotComputedError("no_variant", name="alpha", value=str(alpha))
    return _rows(input, int(dim), index, source, "Add")


@api("index_copy")
def _index_copy(input: Any, dim: int, index: Any, source: Any) -> Call:
    return _rows(input, int(dim), index, source, "Update")


@api("index_fill")
def _index_fill(input: Any, dim: int, index: Any, value: Any) -> Call:
    return _rows(input, int(dim), index, value, "Update")


@api("index_put")
def _index_put(input: Any, indices: Any, values: Any, accumulate: bool = False) -> Call:
    if any(each is None or each.array.dtype.kind == "b" for each in indices):
        if accumulate:
            raise NotComputedError("no_variant", name="accumulate", value="True")
        y = input.array.copy()
        y[tuple(slice(None) if each is None else each.array for each in indices)] = values.array
        return _moved(input, y)
    arrays = np.broadcast_arrays(*(each.array for each in indices))
    places = np.stack(
        [np.where(each < 0, each + size, each) for each, size in zip(arrays, input.array.shape, strict=False)], -1
    )
    return _call(f"TensorScatter{'Add' if accumulate else 'Update'}", input, _tensor(places), values)


@api("masked_scatter")
def _masked_scatter(input: Any, mask: Any, source: Any) -> Call:
    chosen = np.broadcast_to(mask.array, input.array.shape)
    y = input.array.copy()
    y[chosen] = source.array.reshape(-1)[: int(chosen.sum())]
    return _moved(input, y)


# --- more of torch ----------------------------------------------------------------------------------------------------


def _moved_by(move: Callable[[Array], Array], /, input: Any) -> Call:
    return _moved(input, move(input.array))


def _joined_by(join: Callable[[list[Array]], Array], /, tensors: Any) -> Call:
    return _moved(tensors[0], join([tensor.array for tensor in tensors]))


def _more() -> None:
    moves: dict[str, Callable[[Array], Array]] = {
        "ravel": lambda x: x.reshape(-1),
        "fliplr": np.fliplr,
        "flipud": np.flipud,
        "adjoint": lambda x: np.conj(np.swapaxes(x, -1, -2)),
        "argwhere": np.argwhere,
        "isposinf": np.isposinf,
        "isneginf": np.isneginf,
        "signbit": np.signbit,
        "view_as_complex": lambda x: x[..., 0] + 1j * x[..., 1],
        "view_as_real": lambda x: np.stack([np.real(x), np.imag(x)], -1),
        "real": np.real,
        "imag": np.imag,
        "atleast_1d": np.atleast_1d,
    }
    _APIS.update({name: partial(_moved_by, move) for name, move in moves.items()})
    joins: dict[str, Callable[[list[Array]], Array]] = {
        "hstack": np.hstack,
        "vstack": np.vstack,
        "row_stack": np.vstack,
        "dstack": np.dstack,
        "column_stack": np.column_stack,
    }
    _APIS.update({name: partial(_joined_by, join) for name, join in joins.items()})


_more()


@api("arctan2", "atan2")
def _atan2(input: Any, other: Any) -> Call:
    return _call("Atan2", _real(input), _real(other))


@api("xlogy", "special.xlogy")
def _xlogy(input: Any, other: Any) -> Call:
    return _call("Xlogy", _real(input), _real(other))


@api("exp2")
def _exp2(input: Any) -> Call:
    return _call("Exp", _real(input), base=2.0)


@api("addmv")
def _addmv(input: Any, mat: Any, vec: Any, *, beta: Any = 1, alpha: Any = 1) -> Call:
    _plain(beta=None if beta == 1 else beta, alpha=None if alpha == 1 else alpha)
    column = replace(vec, array=vec.array[:, None])
    shape = np.broadcast_to(input.array, mat.array.shape[:1])
    addend = replace(input, array=shape[:, None])
    return _call("torch.MatMulV2", mat, column, addend, shape=list(shape.shape))


@api("broadcast_tensors")
def _broadcast_tensors(*tensors: Any) -> Call:
    every = _flat(tensors)
    arrays = np.broadcast_arrays(*(tensor.array for tensor in every))
    check_size(arrays[0].shape)
    return _parts(every[0], arrays)


@api("meshgrid")
def _meshgrid(*tensors: Any, indexing: str = "ij") -> Call:
    every = _flat(tensors)
    check_size([tensor.array.size for tensor in every])
    return _parts(
        every[0], np.meshgrid(*(tensor.array for tensor in every), indexing="xy" if indexing == "xy" else "ij")
    )


@api("polar")
def _polar(abs: Any, angle: Any) -> Call:
    return _call("torch.polar", abs, angle)


@api("channel_shuffle")
def _channel_shuffle(input: Any, groups: int) -> Call:
    x = input.array
    y = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    return _moved(input, np.swapaxes(y, 1, 2).reshape(x.shape))


@api("unfold")
def _unfold(input: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Call:
    """The windows of images as columns; only the function of torch.nn.functional."""
    x = input.array
    if x.ndim != 4:
        raise NotComputedError("axis_count", name="input", number=x.ndim, limit=4)
    kernel, steps, pads, strides = (_ints(value, 2) for value in (kernel_size, dilation, padding, stride))
    x = np.pad(x, [(0, 0), (0, 0), *((pad, pad) for pad in pads)])
    reach = [step * (size - 1) + 1 for size, step in zip(kernel, steps, strict=True)]
    check_size([*x.shape, *kernel])
    windows = np.lib.stride_tricks.sliding_window_view(x, reach, (2, 3))
    windows = windows[:, :, :: strides[0], :: strides[1], :: steps[0], :: steps[1]]
    columns = windows.transpose(0, 1, 4, 5, 2, 3)
    return _moved(input, columns.reshape(x.shape[0], x.shape[1] * prod(kernel), -1))


@api("Tensor.unfold", "Aten.unfold", "Torch.unfold")
def _tensor_unfold(input: Any, dimension: int, size: int, step: int) -> Call:
    axis = axis_of(_call("Identity"), int(dimension), input.array.ndim)
    windows = np.lib.stride_tricks.sliding_window_view(input.array, int(size), axis)
    index = tuple(slice(None, None, int(step)) if at == axis else slice(None) for at in range(windows.ndim))
    return _moved(input, windows[index])


@api("local_response_norm")
def _local_response_norm(input: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Call:
    return _call("torch.local_response_norm", input, size=int(size), alpha=float(alpha), beta=float(beta), k=float(k))


@api("pairwise_distance")
def _pairwise_distance(x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Call:
    return _call("torch.pairwise_distance", x1, x2, p=float(p), eps=float(eps), keepdim=bool(keepdim))


@api("npu_scaled_masked_softmax")
def _npu_scaled_masked_softmax(x: Any, mask: Any, scale: Any = 1, fixed_triu_mask: bool = False) -> Call:
    masked = np.triu(np.ones(x.array.shape[-2:], np.bool_), 1) if fixed_triu_mask else mask.array != 0
    return _call("SoftmaxV2", replace(x, array=np.where(masked, -10000.0, x.array * scale)), axes=[-1])


@api("npu_confusion_transpose")
def _npu_confusion_transpose(self: Any, perm: Sequence[int], shape: Sequence[int], transpose_first: bool) -> Call:
    x = self.array
    y = x.transpose(perm).reshape(shape) if transpose_first else x.reshape(shape).transpose(perm)
    return _moved(self, y)


@api("npu_transpose")
def _npu_transpose(self: Any, perm: Sequence[int], require_contiguous: bool = True) -> Call:
    return _moved(self, self.array.transpose(perm))


def _recurrent(
    op_type: str, /, input: Any, hx: Any, params: Any, has_biases: bool, num_layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool,
) -> Call:  # fmt: skip
    _plain(dropout=dropout if train and dropout and num_layers > 1 else None)
    states = list(hx) if isinstance(hx, (list, tuple)) else [hx]
    return _call(
        op_type, input, *states, *params, has_biases=bool(has_biases), num_layers=int(num_layers),
        bidirectional=bool(bidirectional), batch_first=bool(batch_first),
    )  # fmt: skip


for _name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
    _APIS[_name] = partial(_recurrent, f"torch.{_name}")


# --- lists of tensors -------------------------------------------------------------------------------------------------


def _each(calls: Sequence[Call]) -> Call:
    """Several calls of one kind, one output each."""
    kinds = [spec.kind for call in calls if (spec := op_table.find(call.op_type)) is not None]
    if not kinds or len(kinds) != len(calls):
        raise NotComputedError("input_count", number=len(calls))
    inputs = tuple(tensor for call in calls for tensor in call.inputs)
    return Call(op_type=f"torch.each.{kinds[0].value}", inputs=inputs, attrs={"calls": list(calls)})


def _each_of_one(builder: Builder, /, self: Any) -> Call:
    return _each([builder(tensor) for tensor in self])


def _each_of_two(builder: Builder, /, self: Any, other: Any, *rest: Any, **options: Any) -> Call:
    others = other if isinstance(other, (list, tuple)) else [other] * len(self)
    return _each([builder(a, b, *rest, **options) for a, b in zip(self, others, strict=True)])


def _each_of_three(
    builder: Builder, /, self: Any, tensor1: Any, tensor2: Any, value: Any = 1, *, scalars: Any = None
) -> Call:
    values = value if scalars is None else scalars
    each = values if isinstance(values, (list, tuple)) else [values] * len(self)
    together = zip(self, tensor1, tensor2, each, strict=True)
    return _each([builder(x, a, b, value=number) for x, a, b, number in together])


for _name in ("abs", "neg", "sqrt", "exp", "log", "reciprocal", "sigmoid", "tanh", "sign", "floor", "ceil", "erf"):
    _APIS[f"_foreach_{_name}"] = partial(_each_of_one, _APIS[_name])
for _name in ("add", "sub", "mul", "div", "pow", "maximum", "minimum", "clamp_min", "clamp_max", "copy_"):
    _APIS[f"_foreach_{_name}"] = partial(_each_of_two, _APIS[_name])
for _name in ("addcmul", "addcdiv"):
    _APIS[f"_foreach_{_name}"] = partial(_each_of_three, _APIS[_name])
_APIS["_foreach_zero_"] = partial(_each_of_one, _APIS["zero_"])


@api("_foreach_lerp")
def _foreach_lerp(self: Any, tensors1: Any, weight: Any) -> Call:
    weights = weight if isinstance(weight, (list, tuple)) else [weight] * len(self)
    return _each([_lerp(*parts) for parts in zip(self, tensors1, weights, strict=True)])


@api("_foreach_norm")
def _foreach_norm(self: Any, ord: Any = 2, dtype: Any = None) -> Call:
    return _each([_vector_norm(tensor, ord, dtype=dtype) for tensor in self])


def known_apis() -> frozenset[str]:
    """Return the names, without prefix, of all functions that have a formula."""
    return frozenset(_APIS)


# More of the table, which is made with what stands above.
from precision_tool.lib.ops import torch_rarer_apis as _rarer  # noqa: E402, F401
