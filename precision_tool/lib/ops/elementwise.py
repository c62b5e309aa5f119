"""Operations on single elements: comparisons, logic, selection, bits, arithmetic and unary functions, with gradients.

Sources: the prototypes of GE's elewise_calculation_ops.h, selection_ops.h and bitwise_ops.h; tf.math and tf.bitwise.
"""

from __future__ import annotations

from collections.abc import Callable
from math import e, erf, erfc, lgamma

import numpy as np

from precision_tool.lib.ops.base import (
    Call,
    Doubles,
    Function,
    Input,
    Kind,
    NotComputedError,
    Output,
    Outputs,
    needed,
    op,
    summed_of,
)
from precision_tool.lib.ops.op_arguments import (
    ROUNDOFF,
    Array,
    Mask,
    attribute,
    axis_of,
    common_shape,
    flag,
    integer,
    near,
    near_step,
    numbers,
    real,
    single_number,
    typed,
    unbroadcast,
)
from precision_tool.lib.ops.tracked import Tracked, held


def _comparisons() -> None:
    types: dict[str, Callable[[Array, Array], Array]] = {
        "Equal": np.equal,
        "NotEqual": np.not_equal,
        "Less": np.less,
        "LessEqual": np.less_equal,
        "Greater": np.greater,
        "GreaterEqual": np.greater_equal,
    }
    for name, compare in types.items():

        def compute(call: Call, compare: Callable[[Array, Array], Array] = compare) -> Outputs:
            a, b = (typed(call, slot, "biufc" if "Equal" in call.op_type[:8] else "iuf") for slot in (0, 1))
            common_shape(call, a, b)
            types = [needed(call, slot).dtype for slot in (0, 1)]
            doubtful = near(a, b, *types) if a.dtype.kind == "f" and b.dtype.kind == "f" else None
            return [Output(array=np.asarray(compare(a, b)), doubtful=doubtful)]

        op(name, kind=Kind.EXACT, inputs=("x1", "x2"))(compute)


def _logic() -> None:
    types: dict[str, tuple[int, Callable[..., Array]]] = {
        "LogicalAnd": (2, np.logical_and),
        "LogicalOr": (2, np.logical_or),
        "LogicalXor": (2, np.logical_xor),
        "LogicalNot": (1, np.logical_not),
        "BitwiseAnd": (2, np.bitwise_and),
        "BitwiseOr": (2, np.bitwise_or),
        "BitwiseXor": (2, np.bitwise_xor),
        "Invert": (1, np.invert),
        "LeftShift": (2, np.left_shift),
        "RightShift": (2, np.right_shift),
    }
    for name, (count, formula) in types.items():

        def compute(
            call: Call, name: str = name, count: int = count, formula: Callable[..., Array] = formula
        ) -> Outputs:
            arrays = [needed(call, slot).array for slot in range(count)]
            common_shape(call, *arrays)
            if not name.startswith("Logical") and any(array.dtype.kind not in "iu" for array in arrays):
                raise NotComputedError(
                    "data_type",
                    name="inputs",
                    dtype=next(array.dtype.name for array in arrays if array.dtype.kind not in "iu"),
                )
            if name.endswith("Shift"):  # what is shifted out of the type is not defined
                bits = arrays[0].dtype.itemsize * 8
                arrays[1] = np.clip(arrays[1], 0, bits - 1)
            return [Output(array=np.asarray(formula(*arrays)))]

        op(name, kind=Kind.EXACT, inputs=("x1", "x2")[:count])(compute)


_comparisons()
_logic()


@op("ApproximateEqual", kind=Kind.EXACT, inputs=("x1", "x2"))
def approximately_equal(call: Call) -> Outputs:
    """|x1 − x2| below the tolerance."""
    a, b = numbers(call, 0, 1)
    common_shape(call, a, b)
    tolerance = real(call, "tolerance", default=1e-5)
    distance = np.abs(a - b)
    types = [needed(call, slot).dtype for slot in (0, 1)]
    doubtful = near(distance, tolerance, *types) | near(a, b + tolerance, *types) | near(a, b - tolerance, *types)
    return [Output(array=np.asarray(distance < tolerance), doubtful=doubtful)]


def _condition(condition: Input) -> Mask:
    """A condition, which dumps also store as bytes."""
    return np.asarray(condition.array, np.bool_)


@op("Select", kind=Kind.EXACT, inputs=("condition", "x1", "x2"))
def select(call: Call) -> Outputs:
    """x1 where the condition holds, else x2; a condition of one axis chooses along the first."""
    condition = _condition(needed(call, 0))
    first, other = needed(call, 1).array, needed(call, 2).array
    shape = common_shape(call, first, other)
    if condition.ndim == 1 and len(shape) > 1 and condition.shape[0] == shape[0]:
        condition = condition.reshape([-1] + [1] * (len(shape) - 1))
    common_shape(call, condition, first, other)
    return [Output(array=np.where(condition, first, other))]


@op("SelectV2", kind=Kind.EXACT, inputs=("condition", "then", "else"))
def select_v2(call: Call) -> Outputs:
    """x1 where the condition holds, else x2; all broadcast."""
    condition = _condition(needed(call, 0))
    first, other = needed(call, 1).array, needed(call, 2).array
    common_shape(call, condition, first, other)
    return [Output(array=np.where(condition, first, other))]


@op("MaskedFill", kind=Kind.EXACT, inputs=("x", "mask", "value"))
def masked_fill(call: Call) -> Outputs:
    """x, with the value where the mask is set."""
    x, mask, value = needed(call, 0).array, _condition(needed(call, 1)), needed(call, 2).array
    common_shape(call, x, mask, value)
    return [Output(array=np.where(mask, value, x))]


@op("Where", kind=Kind.EXACT, inputs=("x",))
def where(call: Call) -> Outputs:
    """The places of all elements that are not 0, one a row."""
    return [Output(array=np.argwhere(needed(call, 0).array).astype(np.int64))]


# --- arithmetic, unary functions and their gradients ------------------------------------------------------------------


#: An element-wise function, and the size of what is rounded on the way, of the arguments and the result.
Formula = Callable[..., Array]
Condition = Callable[..., Array]


def pair(call: Call) -> tuple[Array, Array]:
    """The first two inputs, which broadcast."""
    a, b = typed(call, 0), typed(call, 1)
    common_shape(call, a, b)
    return a, b


def elementwise(count: int, formula: Formula, condition: Condition | None = None, floating: bool = True) -> Function:
    """A function of an op that computes each element of `count` inputs by `formula`.

    `condition(*inputs, y)` is `Output.summed`, |y| by default. `floating`: whole numbers become float64 first.
    """

    def compute(call: Call) -> Outputs:
        arrays = [typed(call, slot, "iuf" if floating else "iufc") for slot in range(count)]
        if floating:
            arrays = [np.asarray(array, np.float64) for array in arrays]
        common_shape(call, *arrays)
        y = np.asarray(formula(*arrays))
        if y.dtype.kind not in "fc":
            return [Output(array=y)]
        return [Output(array=y, summed=np.abs(y if condition is None else condition(*arrays, y)))]

    return compute


def _divisor(b: Array) -> Array:
    """Return integer divisors with 1 in place of 0, in their own type (numpy 1 would widen it for a bare 1)."""
    return np.where(b == 0, b.dtype.type(1), b)


def _truncated(a: Array, b: Array) -> Array:
    """Division as TensorFlow's Div has it: of whole numbers toward zero."""
    if a.dtype.kind in "fc" or b.dtype.kind in "fc":
        return np.divide(a, b)
    safe = _divisor(b)
    quotient = np.floor_divide(a, safe)
    return np.asarray(quotient + ((quotient < 0) & (quotient * safe != a)))


def _where_nonzero(y: Array, value: Array) -> Array:
    """0 where y is 0, whatever the value there (which may be NaN)."""
    return np.where(y == 0, 0.0, value)


_erf = np.frompyfunc(erf, 1, 1)
_erfc = np.frompyfunc(erfc, 1, 1)


def _lgamma(x: float) -> float:
    try:
        return lgamma(x)
    except ValueError:  # a pole
        return np.inf


def _python(function: Callable[[float], float]) -> Formula:
    """A function of the standard library, element by element."""
    each = np.frompyfunc(function, 1, 1)
    return lambda x: np.asarray(each(x), np.float64)


def _arithmetic() -> None:
    """Operations that hardware rounds correctly."""
    both: Condition = lambda a, b, y: np.abs(y)  # noqa: E731
    rounded: list[tuple[tuple[str, ...], int, Formula, Condition]] = [
        (("Add", "AddV2"), 2, np.add, both),
        (("Sub",), 2, np.subtract, both),
        (("Mul",), 2, np.multiply, both),
        (("MulNoNan",), 2, lambda x, y: _where_nonzero(y, x * y), both),
        (("Square",), 1, np.square, lambda x, y: y),
        (("SquaredDifference",), 2, lambda a, b: np.square(a - b), lambda a, b, y: 2 * y),
        (("FusedMulAdd",), 3, lambda a, b, c: a * b + c, lambda a, b, c, y: np.abs(a * b) + np.abs(y)),
        (("FusedMulAddN",), 3, lambda a, b, c: a * c + b, lambda a, b, c, y: np.abs(a * c) + np.abs(y)),
        (("Lerp",), 3, lambda a, b, w: a + w * (b - a), lambda a, b, w, y: 2 * np.abs(w * (b - a)) + np.abs(y)),
    ]
    for names, count, formula, condition in rounded:
        op(*names, kind=Kind.ROUNDED, inputs=("x1", "x2", "x3")[:count])(
            elementwise(count, formula, condition, floating=False)
        )
    exact: list[tuple[tuple[str, ...], int, Formula, str]] = [
        (("Neg",), 1, np.negative, "iufc"),
        (("Abs", "ComplexAbs"), 1, np.abs, "iufc"),
        (("Sign",), 1, np.sign, "iuf"),
        (("Maximum",), 2, np.maximum, "iuf"),
        (("Minimum",), 2, np.minimum, "iuf"),
        (("IsNan",), 1, np.isnan, "f"),
        (("IsInf",), 1, np.isinf, "f"),
        (("IsFinite",), 1, np.isfinite, "f"),
        (("Real",), 1, np.real, "fc"),
        (("Imag",), 1, np.imag, "fc"),
        (("Conj",), 1, np.conj, "fc"),
        (("ClipByValue", "ClipByValueV2"), 3, lambda x, low, high: np.minimum(np.maximum(x, low), high), "iuf"),
    ]
    for names, count, formula, kinds in exact:

        def compute(call: Call, count: int = count, formula: Formula = formula, kinds: str = kinds) -> Outputs:
            arrays = [typed(call, slot, kinds) for slot in range(count)]
            common_shape(call, *arrays)
            return [Output(array=np.asarray(formula(*arrays)))]

        op(*names, kind=Kind.EXACT, inputs=("x1", "x2", "x3")[:count])(compute)


def _functions() -> None:
    """Functions that kernels approximate; the condition says how the error of their steps comes through."""
    unary: list[tuple[tuple[str, ...], Formula, Condition | None]] = [
        (("Sqrt",), np.sqrt, None),
        (("Rsqrt",), lambda x: 1 / np.sqrt(x), None),
        (("Reciprocal", "Inv"), lambda x: 1 / x, None),
        (("Expm1",), np.expm1, lambda x, y: np.abs(y) * (1 + np.abs(x)) + 1),
        (("Log1p",), np.log1p, lambda x, y: np.abs(y) + 1),
        (("Sin",), np.sin, lambda x, y: np.abs(y) + np.abs(x)),
        (("Cos",), np.cos, lambda x, y: np.abs(y) + np.abs(x)),
        (("Tan",), np.tan, lambda x, y: np.abs(y) + np.abs(x) * (1 + y * y)),
        (("Asin",), np.arcsin, lambda x, y: np.abs(y) + 1),
        (("Acos",), np.arccos, lambda x, y: np.abs(y) + 1),
        (("Atan",), np.arctan, lambda x, y: np.abs(y) + 1),
        (("Sinh",), np.sinh, lambda x, y: np.abs(y) * (1 + np.abs(x)) + 1),
        (("Cosh",), np.cosh, lambda x, y: np.abs(y) * (1 + np.abs(x))),
        (("Asinh",), np.arcsinh, lambda x, y: np.abs(y) + 1),
        (("Acosh",), np.arccosh, lambda x, y: np.abs(y) + 1),
        (("Atanh",), np.arctanh, lambda x, y: np.abs(y) + 1),
        (("Erf",), _python(erf), lambda x, y: np.abs(y) + 1),
        (("Erfc",), _python(erfc), lambda x, y: np.abs(y) + 1),
        (("Lgamma",), _python(_lgamma), lambda x, y: np.abs(y) + np.abs(x) + 1),
    ]
    for names, formula, condition in unary:
        op(*names, kind=Kind.APPROXIMATE, inputs=("x",))(elementwise(1, formula, condition))
    two: list[tuple[tuple[str, ...], tuple[str, str], Formula, Condition | None]] = [
        (("RealDiv", "Div", "TruncateDiv"), ("x1", "x2"), _truncated, None),
        (("DivNoNan",), ("x1", "x2"), lambda a, b: _where_nonzero(b, a / b), None),
        (("Xdivy",), ("x1", "x2"), lambda a, b: _where_nonzero(a, a / b), None),
        (("Xlogy",), ("x1", "x2"), lambda a, b: _where_nonzero(a, a * np.log(b)), lambda a, b, y: abs(y) + abs(a)),
        (("Atan2",), ("x1", "x2"), np.arctan2, lambda a, b, y: np.abs(y) + 1),
        (("SqrtGrad",), ("y", "dy"), lambda y, dy: 0.5 * dy / y, None),
        (("RsqrtGrad",), ("y", "dy"), lambda y, dy: -0.5 * dy * y**3, lambda y, dy, z: 2 * np.abs(z)),
        (("ReciprocalGrad", "InvGrad"), ("y", "dy"), lambda y, dy: -dy * y * y, None),
        (("AbsGrad",), ("y", "dy"), lambda y, dy: dy * np.sign(y), None),
    ]
    for names, inputs, formula, condition in two:
        whole = names[0] == "RealDiv"
        op(*names, kind=Kind.APPROXIMATE, inputs=inputs)(elementwise(2, formula, condition, floating=not whole))


_arithmetic()
_functions()


@op("Pow", kind=Kind.APPROXIMATE, inputs=("x1", "x2"))
def power(call: Call) -> Outputs:
    """x1 to the power of x2; whole numbers only to powers from 0 up."""
    a, b = pair(call)
    if a.dtype.kind in "iu" and b.dtype.kind in "iu":
        if (b < 0).any():
            raise NotComputedError("negative_power")
        return [Output(array=np.power(a, b))]
    y = np.asarray(np.power(a, b))
    logarithm = np.log(np.abs(np.where(a == 0, 1, a)))
    return [Output(array=y, summed=np.abs(y) * (1 + np.abs(b * logarithm)))]


@op("Power", kind=Kind.APPROXIMATE, inputs=("x",))
def scaled_power(call: Call) -> Outputs:
    """(shift + scale x) to a fixed power."""
    (x,) = numbers(call, 0)
    inner = real(call, "shift", default=0.0) + real(call, "scale", default=1.0) * x
    exponent = real(call, "power", default=1.0)
    y = np.asarray(np.power(inner, exponent))
    logarithm = np.log(np.abs(np.where(inner == 0, 1, inner)))
    return [Output(array=y, summed=np.abs(y) * (1 + np.abs(exponent * logarithm) + abs(exponent)))]


def _base(call: Call) -> float:
    """The base of GE's Exp and Log, of which −1 stands for e."""
    base = real(call, "base", default=-1.0)
    if base == -1:
        return e
    if base <= 0:
        raise NotComputedError("not_allowed", name="base", value=str(base))
    return base


def _inner(call: Call) -> Array:
    """scale x + shift, which are 1 and 0 in TensorFlow."""
    x = typed(call, 0)
    scale, shift = real(call, "scale", default=1.0), real(call, "shift", default=0.0)
    return x * 1.0 if (scale, shift) == (1.0, 0.0) else scale * x + shift


@op("Exp", kind=Kind.APPROXIMATE, inputs=("x",))
def exponential(call: Call) -> Outputs:
    """base^(scale x + shift)."""
    inner = _inner(call)
    y = np.exp(inner) if _base(call) == e else np.exp(inner * np.log(_base(call)))
    return [Output(array=np.asarray(y), summed=np.abs(y) * (1 + np.abs(inner)))]


@op("Log", kind=Kind.APPROXIMATE, inputs=("x",))
def logarithm(call: Call) -> Outputs:
    """The logarithm of scale x + shift. Near 1 a kernel's error is absolute, not relative."""
    y = np.log(_inner(call)) / np.log(_base(call))
    return [Output(array=np.asarray(y), summed=np.abs(y) + 1)]


# --- steps ------------------------------------------------------------------------------------------------------------


def _stepping(formula: Formula, shift: float) -> Function:
    def compute(call: Call) -> Outputs:
        x = typed(call, 0)
        y = np.asarray(formula(x)) if x.dtype.kind == "f" else x
        return [Output(array=y, doubtful=near_step(np.asarray(x, np.float64), needed(call, 0).dtype, shift))]

    return compute


op("Floor", kind=Kind.EXACT, inputs=("x",))(_stepping(np.floor, 0.0))
op("Ceil", kind=Kind.EXACT, inputs=("x",))(_stepping(np.ceil, 0.0))
op("Trunc", kind=Kind.EXACT, inputs=("x",))(_stepping(np.trunc, 0.0))
op("Round", "Rint", kind=Kind.EXACT, inputs=("x",))(_stepping(np.rint, 0.5))


def _quotient_step(call: Call, a: Array, b: Array) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]] | None:
    """Return a mask of quotients so close to an integer that an approximate division may cross it."""
    types = [operand.dtype for operand in call.inputs[:2] if operand is not None and operand.dtype in ROUNDOFF]
    if not types:
        return None
    return near_step(np.asarray(a / b), max(types, key=lambda name: ROUNDOFF[name]))


@op("FloorDiv", kind=Kind.EXACT, inputs=("x1", "x2"))
def floor_division(call: Call) -> Outputs:
    """The quotient, rounded down."""
    a, b = pair(call)
    y = np.floor(a / b) if a.dtype.kind == "f" else np.floor_divide(a, _divisor(b))
    return [Output(array=np.asarray(y), doubtful=_quotient_step(call, a, b))]


@op("FloorMod", kind=Kind.ROUNDED, inputs=("x1", "x2"))
def floor_remainder(call: Call) -> Outputs:
    """Remainder of x1 / x2 with the sign of x2."""
    a, b = pair(call)
    y = np.asarray(np.mod(a, b if b.dtype.kind == "f" else _divisor(b)))
    return [Output(array=y, summed=_size(a, y), doubtful=_quotient_step(call, a, b))]


@op("Mod", "TruncateMod", kind=Kind.ROUNDED, inputs=("x1", "x2"))
def remainder(call: Call) -> Outputs:
    """Remainder of x1 / x2 with the sign of x1."""
    a, b = pair(call)
    y = np.asarray(np.fmod(a, b if b.dtype.kind == "f" else _divisor(b)))
    return [Output(array=y, summed=_size(a, y), doubtful=_quotient_step(call, a, b))]


def _size(a: Array, y: Array) -> Doubles | float:
    """|a| in the shape of y, of whole numbers 0."""
    return np.broadcast_to(np.abs(a), y.shape) if y.dtype.kind == "f" else 0.0


# --- with attributes or many inputs -----------------------------------------------------------------------------------


@op("AddN", "AccumulateNV2", kind=Kind.SUM, inputs=("x",))
def add_many(call: Call) -> Outputs:
    """The sum of all inputs, which have one shape, or broadcast."""
    arrays = [typed(call, slot, "iufc") for slot in range(len(call.inputs))]
    if not arrays:
        raise NotComputedError("input_count", number=0)
    shape = common_shape(call, *arrays)
    total = np.zeros(shape, np.result_type(*arrays))
    for array in arrays:
        total += array
    if total.dtype.kind != "f":
        return [Output(array=total)]
    squares = np.zeros(shape)
    for array in arrays:
        squares += np.square(array)
    count = len(arrays)
    summed = summed_of(total, squares - total**2 / count, count)
    return [Output(array=total, summed=summed, terms=np.sqrt(squares))]


@op("Axpy", "AxpyV2", kind=Kind.ROUNDED, inputs=("x1", "x2", "alpha"))
def axpy(call: Call) -> Outputs:
    """x1 + alpha x2."""
    a, b = numbers(call, 0, 1)
    alpha = np.asarray(real(call, "alpha")) if attribute(call, "alpha") is not None else numbers(call, 2)[0]
    common_shape(call, a, b, alpha)
    y = a + alpha * b
    return [Output(array=np.asarray(y), summed=np.abs(alpha * b) + np.abs(y))]


def _added_to(call: Call, worked_in: Callable[[Tracked, Tracked], Tracked]) -> Outputs:
    """The first input and `value` (an attribute, or the last input) times what becomes of the second and third."""
    x, a, b = numbers(call, 0, 1, 2)
    value = real(call, "value") if attribute(call, "value") is not None else None
    factor = (np.asarray(1.0) if len(call.inputs) < 4 else numbers(call, 3)[0]) if value is None else np.asarray(value)
    common_shape(call, x, a, b, factor)
    part = worked_in(Tracked(a), Tracked(b))
    if factor.size != 1 or factor.item() != 1:
        part = part * (factor if value is None else held(value))
    y = part + x
    if all(needed(call, slot).array.dtype.kind in "iu" for slot in (0, 1, 2)):
        return [Output(array=y.value.astype(needed(call, 0).array.dtype))]
    return [y.output()]


@op("Addcmul", kind=Kind.ROUNDED, inputs=("input_data", "x1", "x2", "value"))
def add_product(call: Call) -> Outputs:
    """x + value x1 x2."""
    return _added_to(call, lambda a, b: a * b)


@op("Addcdiv", kind=Kind.APPROXIMATE, inputs=("input_data", "x1", "x2", "value"))
def add_quotient(call: Call) -> Outputs:
    """x + value x1 / x2."""
    return _added_to(call, lambda a, b: a / b)


@op("Eltwise", kind=Kind.SUM, inputs=("x",))
def each_with_each(call: Call) -> Outputs:
    """All inputs multiplied (mode 0), summed, each times its coefficient (1), or the largest (2)."""
    arrays = numbers(call, *range(len(call.inputs)))
    if not arrays:
        raise NotComputedError("input_count", number=0)
    common_shape(call, *arrays)
    mode = integer(call, "mode", default=1)
    factors = attribute(call, "coeff") or []
    if mode not in (0, 1, 2):
        raise NotComputedError("no_variant", name="mode", value=str(mode))
    if mode == 2:
        return [Output(array=np.max(np.broadcast_arrays(*arrays), axis=0))]
    terms = [Tracked(array) for array in arrays]
    if mode == 1 and factors:
        if len(factors) != len(terms):
            raise NotComputedError("count_misfit", name="coeff", number=len(factors), other="inputs", limit=len(terms))
        terms = [term if factor == 1 else term * float(factor) for term, factor in zip(terms, factors, strict=True)]
    total = terms[0]
    for term in terms[1:]:
        total = total + term if mode else total * term
    return [total.output()]


@op("Muls", kind=Kind.ROUNDED, inputs=("x",))
def times_number(call: Call) -> Outputs:
    """x times a fixed number."""
    y = np.asarray(numbers(call, 0)[0] * real(call, "value"))
    return [Output(array=y, summed=np.abs(y))]


@op("Adds", kind=Kind.ROUNDED, inputs=("x",))
def plus_number(call: Call) -> Outputs:
    """x plus a fixed number."""
    y = np.asarray(numbers(call, 0)[0] + real(call, "value"))
    return [Output(array=y, summed=np.abs(y))]


@op("NanToNum", kind=Kind.EXACT, inputs=("x",))
def nan_to_number(call: Call) -> Outputs:
    """NaN and infinities replaced by numbers, by default 0 and the largest of the type."""
    (x,) = numbers(call, 0)
    largest = {"float16": 65504.0, "bfloat16": 2.0**128 - 2.0**120}.get(needed(call, 0).dtype, 2.0**128 - 2.0**104)
    low, high = real(call, "neginf", default=-largest), real(call, "posinf", default=largest)
    return [Output(array=np.nan_to_num(x, nan=real(call, "nan", default=0.0), posinf=high, neginf=low))]


def _scan(call: Call, x: Array, running: Callable[[Array, int], Array], first: float) -> Array:
    """A running sum or product along the op's axis, with its attributes `exclusive` and `reverse`."""
    axis = axis_of(call, single_number(call, "axis", slot=1), x.ndim)
    x = np.moveaxis(x, axis, 0)
    if flag(call, "reverse"):
        x = x[::-1]
    if flag(call, "exclusive"):
        x = np.concatenate([np.full_like(x[:1], first), x[:-1]])
    y = running(x, 0)
    return np.moveaxis(y[::-1] if flag(call, "reverse") else y, 0, axis)


@op("Cumsum", "CumsumD", kind=Kind.SUM, inputs=("x", "axis"))
def cumulative_sum(call: Call) -> Outputs:
    """Running sums along an axis; every one of them is rounded and goes into the next."""
    x = typed(call, 0)
    y = _scan(call, x, lambda x, axis: np.cumsum(x, axis, dtype=x.dtype), 0)
    if y.dtype.kind != "f":
        return [Output(array=y)]
    summed = np.sqrt(_scan(call, x, lambda x, axis: np.cumsum(np.square(np.cumsum(x, axis)), axis), 0))
    return [Output(array=y, summed=summed, terms=np.sqrt(_scan(call, x * x, np.cumsum, 0)))]


@op("Cumprod", "CumprodD", kind=Kind.SUM, inputs=("x", "axis"))
def cumulative_product(call: Call) -> Outputs:
    """Running products along an axis."""
    x = typed(call, 0)
    y = _scan(call, x, lambda x, axis: np.cumprod(x, axis, dtype=x.dtype), 1)
    if y.dtype.kind != "f":
        return [Output(array=y)]
    length = _scan(call, np.ones_like(x), np.cumsum, 1)
    return [Output(array=y, summed=np.abs(y) * np.sqrt(length))]


def _extreme_gradient(first_wins: Callable[[Array, Array], Array]) -> Function:
    def compute(call: Call) -> Outputs:
        grads, a, b = numbers(call, 0, 1, 2)
        shape = common_shape(call, a, b)
        common_shape(call, grads, np.empty(shape))
        types = [needed(call, slot).dtype for slot in (1, 2)]
        first = first_wins(a, b)
        unsure = near(a, b, *types)
        outputs: list[Output] = []
        for attr, chosen, target in (("grad_x", first, a), ("grad_y", ~first, b)):
            if not flag(call, attr, default=True):
                continue
            grad = np.where(chosen, grads, 0.0)
            y, squares = unbroadcast(grad, target.shape), unbroadcast(grad * grad, target.shape)
            count = max(1, grad.size // max(1, y.size))
            doubtful = unbroadcast(np.broadcast_to(unsure, grad.shape).astype(np.float64), target.shape) > 0
            summed = summed_of(y, squares - y * y / count, count) if count > 1 else 0.0
            outputs.append(Output(array=y, summed=summed, terms=np.sqrt(squares), doubtful=doubtful))
        return outputs

    return compute


op("MaximumGrad", kind=Kind.SUM, inputs=("grads", "x1", "x2"))(_extreme_gradient(np.greater_equal))
op("MinimumGrad", kind=Kind.SUM, inputs=("grads", "x1", "x2"))(_extreme_gradient(np.less_equal))
