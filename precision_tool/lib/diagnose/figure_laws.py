"""What Max, Min, Mean and Norm of a right kernel's output are, given those of its inputs: bounds, function by function.

A law is a function of a call's arguments that yields the ranges of figures of an output. They are computed as if
nothing was rounded and then widened: by the unit roundoff of the coarsest type that the call has, as kernels round
what they take to it (autocast), twice, or by the relative error of 10⁻⁴ that the vendor's acceptance of float32 kernels
allows, whichever is more. A broken law proves that the kernel is wrong, or that something else wrote into what it took
or put out; that none is broken proves nothing: most faults keep within such bounds.

Of a backward entry the inputs are the gradients of the outputs. A function of several nodes records the last of them
only, so laws of gradients are those of functions that have one node, or hold for views too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import ceil, erf, exp, expm1, inf, isfinite, log, log1p, prod, sqrt, tanh
from typing import Any, TypeAlias

from precision_tool.lib.diagnose.recorded_statistics import (
    MAX,
    MEAN,
    MIN,
    NORM,
    Range,
    Statistics,
    coarsest,
    largest_of,
    statistics_of,
    statistics_of_any,
)
from precision_tool.lib.model.msprobe import (
    Argument,
    Direction,
    Literal,
    RecordedCall,
    RecordedTensor,
)
from precision_tool.lib.ops.torch_apis import PREFIXES

#: The relative error that the vendor's acceptance of float32 kernels allows.
_ACCEPTED = 1e-4
#: How far the tanh form of GELU is from the exact one, at most (Hendrycks and Gimpel, 2016: 5·10⁻⁴).
_GELU_FORMS = 5e-4


@dataclass(frozen=True, slots=True)
class Bound:
    """The range of a figure of an output, by a law of that name (`figures.law.NAME`)."""

    law: str
    figure: str
    range: Range
    output: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenBound:
    """A figure that no right kernel puts out: recorded is `value`, possible is what lies from `low` to `high`."""

    law: str
    slot: str
    figure: str
    value: float
    low: float
    high: float
    #: How far it is beyond the bound, over how wide rounding makes the bound; for the order of suspects.
    excess: float


class _NoLawError(Exception):
    """A law does not hold for these arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arguments:
    """The arguments of a call as laws take them, and its outputs, None where there are no figures."""

    inputs: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: tuple[Statistics | None, ...]
    #: The forward entry of a gradient.
    forward: _Arguments | None = None

    def of(self, index: int, name: str, default: Any = None) -> Any:
        """An argument by its place or name."""
        if index < len(self.inputs):
            return self.inputs[index]
        return self.kwargs.get(name, default)

    def tensor(self, index: int, name: str = "input") -> Statistics:
        """An argument that has figures."""
        value = self.of(index, name)
        if not isinstance(value, Statistics):
            raise _NoLawError
        return value

    def optional(self, index: int, name: str) -> Statistics | None:
        """A tensor that may be None."""
        return None if self.of(index, name) is None else self.tensor(index, name)

    def number(self, index: int, name: str, default: float | None = None) -> float:
        """An argument that is a number, or a tensor of equal numbers."""
        value = self.of(index, name, default)
        if isinstance(value, Statistics) and value.is_constant:
            return value.maximum
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
            raise _NoLawError
        return float(value)

    def flag(self, index: int, name: str, default: bool) -> bool:
        """An argument that is a bool."""
        value = self.of(index, name, default)
        if not isinstance(value, bool):
            raise _NoLawError
        return value

    @property
    def output(self) -> Statistics:
        """The first output."""
        if not self.outputs or self.outputs[0] is None:
            raise _NoLawError
        return self.outputs[0]

    @property
    def statistics(self) -> Iterator[Statistics]:
        """All tensors with figures."""
        for value in (*self.inputs, *self.kwargs.values(), *self.outputs):
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, Statistics):
                    yield item

    @property
    def is_explained(self) -> bool:
        """Whether outputs that are not finite come from inputs of which all are."""
        if all(output is None or output.is_finite for output in self.outputs):
            return True
        values = [*self.inputs, *self.kwargs.values()]
        return not any(
            isinstance(item, RecordedTensor) for value in values
            for item in (value if isinstance(value, tuple) else (value,))
        )  # fmt: skip

    @property
    def slack(self) -> float:
        """The relative error of an element."""
        return max(_ACCEPTED, 2 * coarsest(self.statistics))


#: Yields the bounds of a call's outputs.
Law: TypeAlias = Callable[[_Arguments], Iterator[Bound]]
_LAWS: dict[str, Law] = {}
_GRADIENT_LAWS: dict[str, Law] = {}


def _law(*names: str, of: dict[str, Law] = _LAWS) -> Callable[[Law], Law]:
    def register(law: Law) -> Law:
        of.update(dict.fromkeys(names, law))
        return law

    return register


def broken_bounds(call: RecordedCall, forward: RecordedCall | None = None) -> list[BrokenBound] | None:
    """Return the figures of a call that break a law; None where no law applies.

    Parameters
    ----------
    call : RecordedCall
        The entry.
    forward : RecordedCall, optional
        Of a backward entry, that of its forward.
    """
    law = _law_of(call)
    if law is None:
        return None
    try:
        arguments = _arguments(call, None if forward is None else _arguments(forward))
        if not arguments.is_explained:
            return None
        bounds = list(law(arguments))
    except (_NoLawError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # odd arguments
        return None
    broken = []
    for bound in bounds:
        if bound.output >= len(arguments.outputs):
            continue
        output = arguments.outputs[bound.output]
        recorded = None if output is None else output.range_of(bound.figure)
        if output is None or recorded is None:
            continue
        if _may_overflow(bound.range, output):
            continue
        size = max(abs(value) for value in (bound.range.low, bound.range.high, recorded.low) if isfinite(value))
        possible = bound.range.wider(output.tiny * (sqrt(output.count) if bound.figure == NORM else 1.0))
        if not recorded.meets(possible):
            gap = max(possible.low - recorded.high, recorded.low - possible.high)
            excess = gap / (arguments.slack * size + output.tiny) if output.is_finite else inf
            broken.append(
                BrokenBound(
                    law=bound.law, slot=f"output.{bound.output}", figure=bound.figure,
                    value=(recorded.low + recorded.high) / 2, low=bound.range.low, high=bound.range.high, excess=excess,
                )
            )  # fmt: skip
    return broken


def _may_overflow(bound: Range, output: Statistics) -> bool:
    """Return whether what is beyond the type's largest number explains an output: it is Inf, or that number."""
    largest = largest_of(output.dtype)
    if output.is_finite and output.largest < largest:
        return False
    ends = [abs(value) for value in (bound.low, bound.high) if isfinite(value)]
    return not ends or 2 * max(ends) > largest


def _law_of(call: RecordedCall) -> Law | None:
    name = call.call
    if name is None:
        return None
    if name.is_module:
        return _MODULE_LAWS.get(name.class_name) if name.direction is Direction.FORWARD else None
    if name.prefix not in PREFIXES:
        return None
    laws = _LAWS if name.direction is Direction.FORWARD else _GRADIENT_LAWS
    return laws.get(_plain(name.name))


def _plain(name: str) -> str:
    """A function's name without what says that it is in place or an operator."""
    name = name.rpartition(".")[2]
    if name.startswith("__") and name.endswith("__"):
        name = _OPERATORS.get(name[2:-2], name[2:-2])
    return name.removesuffix("_")


#: Operators by the functions that they call; those with the operands exchanged have names of their own here.
_OPERATORS = {"iadd": "add", "radd": "add", "isub": "sub", "imul": "mul", "rmul": "mul", "truediv": "div",
              "itruediv": "div", "rtruediv": "rdiv", "rsub": "rsub"}  # fmt: skip


def _arguments(call: RecordedCall, forward: _Arguments | None = None) -> _Arguments:
    return _Arguments(
        inputs=tuple(map(_value, call.inputs)),
        kwargs={name: _value(value) for name, value in (*call.kwargs.items(), *call.parameters.items())},
        outputs=tuple(statistics_of_any(item) if isinstance(item, RecordedTensor) else None for item in call.outputs),
        forward=forward,
    )


def _value(argument: Argument) -> Any:
    """An argument as laws take it: a tensor without figures is not a number of any kind."""
    if isinstance(argument, RecordedTensor):
        return statistics_of(argument) or argument
    if isinstance(argument, Literal):
        return argument.value
    if isinstance(argument, tuple):
        return tuple(map(_value, argument))
    return argument


# --- what laws are made of --------------------------------------------------------------------------------------------


def _within(law: str, low: float, high: float, slack: float, output: int = 0) -> Iterator[Bound]:
    """All elements lie between two numbers, and so do their mean and, with the number of them, the norm."""
    size = max(abs(value) for value in (low, high) if isfinite(value))
    limits = Range(low, high).wider(slack * size)
    yield Bound(law, MAX, limits, output)
    yield Bound(law, MIN, limits, output)
    yield Bound(law, MEAN, limits, output)


def _at(law: str, figure: str, value: float, slack: float) -> Bound:
    return Bound(law, figure, Range(value, value).wider(slack))


def _at_most(law: str, figure: str, value: float, slack: float) -> Bound:
    return Bound(law, figure, Range(-inf, value + slack))


def _same_numbers(law: str, x: Statistics, y: Statistics, slack: float, output: int = 0) -> Iterator[Bound]:
    """The output has the same numbers in another order, shape or type."""
    if x.count != y.count:
        raise _NoLawError
    amount = slack * x.largest
    yield Bound(law, MAX, Range(x.maximum, x.maximum).wider(amount), output)
    yield Bound(law, MIN, Range(x.minimum, x.minimum).wider(amount), output)
    if x.mean:
        yield Bound(law, MEAN, x.mean.wider(slack * x.rms + y.tiny), output)
    if x.norm:
        yield Bound(law, NORM, x.norm.wider(slack * x.norm_high + y.tiny * sqrt(y.count)), output)


def _moved(x: Statistics, y: Statistics) -> float:
    """The relative error of what is moved, or converted on the way."""
    return 0.0 if x.dtype == y.dtype else max(x.unit, y.unit)


def _fitting(x: Statistics, y: Statistics) -> float:
    """How often a tensor is repeated to have the other's shape."""
    if not x.count or y.count % x.count:
        raise _NoLawError
    return y.count / x.count


def _floats(*tensors: Statistics) -> None:
    if not all(tensor.unit for tensor in tensors):
        raise _NoLawError


def _numbers(value: Any) -> tuple[int, ...]:
    items = value if isinstance(value, tuple) else (value,)
    if not items or not all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        raise _NoLawError
    return items


# --- what moves elements ----------------------------------------------------------------------------------------------


@_law(
    "reshape", "view", "transpose", "permute", "contiguous", "clone", "flatten", "squeeze", "unsqueeze", "swapaxes",
    "swapdims", "movedim", "moveaxis", "flip", "roll", "t", "detach", "unflatten", "ravel", "view_as", "reshape_as",
    "to", "float", "half", "bfloat16", "double", "type", "type_as", "npu_dtype_cast", "rot90", "pixel_shuffle",
    "pixel_unshuffle", "channel_shuffle",
)  # fmt: skip
def _moves(a: _Arguments) -> Iterator[Bound]:
    x, y = a.tensor(0), a.output
    _floats(x, y)
    if x.dtype == y.dtype or x.largest <= largest_of(y.dtype):
        yield from _same_numbers("same_numbers", x, y, _moved(x, y))


@_law(
    "getitem", "narrow", "select", "index_select", "gather", "masked_select", "take", "expand",
    "expand_as", "repeat", "repeat_interleave", "tile", "take_along_dim", "max_pool1d", "max_pool2d", "max_pool3d",
    "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "cummax", "cummin", "sort", "topk", "kthvalue",
    "median", "diagonal", "unfold_copy", "broadcast_to",
)  # fmt: skip
def _picks(a: _Arguments) -> Iterator[Bound]:
    """Each element of the output is one of the input's."""
    x, y = a.tensor(0), a.output
    _floats(x, y)
    yield from _within("one_of", x.minimum, x.maximum, _moved(x, y))


@_law("embedding")
def _embedding(a: _Arguments) -> Iterator[Bound]:
    if a.of(3, "max_norm") is not None:  # it writes into the weight first
        raise _NoLawError
    weight, y = a.tensor(1, "weight"), a.output
    _floats(weight, y)
    yield from _within("one_of", weight.minimum, weight.maximum, _moved(weight, y))


@_law("split", "chunk", "unbind", "tensor_split", "split_with_sizes", "hsplit", "vsplit")
def _split(a: _Arguments) -> Iterator[Bound]:
    x = a.tensor(0)
    _floats(x)
    for number, y in enumerate(a.outputs):
        if y is not None:
            yield from _within("one_of", x.minimum, x.maximum, 0.0, number)
            if x.norm:
                yield Bound("part_norm", NORM, Range(0.0, x.norm.high), number)


@_law("cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack")
def _cat(a: _Arguments) -> Iterator[Bound]:
    parts, y = a.of(0, "tensors"), a.output
    if not isinstance(parts, tuple) or not all(isinstance(part, Statistics) and part.unit for part in parts):
        raise _NoLawError
    if not parts or sum(part.count for part in parts) != y.count:
        raise _NoLawError
    slack = max(_moved(part, y) for part in parts) * max(part.largest for part in parts)
    yield _at("joined", MAX, max(part.maximum for part in parts), slack)
    yield _at("joined", MIN, min(part.minimum for part in parts), slack)
    if all(part.mean for part in parts):
        low = sum(part.mean_range.low * part.count for part in parts) / y.count
        high = sum(part.mean_range.high * part.count for part in parts) / y.count
        yield Bound("joined", MEAN, Range(low, high).wider(slack))
    if all(part.norm for part in parts):
        low = sqrt(sum(part.norm.low**2 for part in parts if part.norm))
        high = sqrt(sum(part.norm.high**2 for part in parts if part.norm))
        yield Bound("joined", NORM, Range(low, high).wider(slack * sqrt(y.count)))


@_law("where")
def _where(a: _Arguments) -> Iterator[Bound]:
    first = a.of(0, "input")  # its figures may be infinite: no Statistics
    if isinstance(first, (Statistics, RecordedTensor)) and not first.dtype.endswith("bool"):  # Tensor.where
        sides = [a.of(0, "input"), a.of(2, "other")]
    else:
        sides = [a.of(1, "input"), a.of(2, "other")]
    yield from _one_of_several(sides, a.output)


@_law("masked_fill")
def _masked_fill(a: _Arguments) -> Iterator[Bound]:
    yield from _one_of_several([a.tensor(0), a.of(2, "value")], a.output)


@_law("pad")
def _pad(a: _Arguments) -> Iterator[Bound]:
    value = a.of(3, "value") or 0.0
    sides = [a.tensor(0)] + ([value] if a.of(2, "mode", "constant") == "constant" else [])
    yield from _one_of_several(sides, a.output)


def _one_of_several(sides: list[Any], y: Statistics) -> Iterator[Bound]:
    lows, highs, slack = [], [], 0.0
    _floats(y)
    for side in sides:
        if isinstance(side, Statistics):
            lows.append(side.minimum)
            highs.append(side.maximum)
            slack = max(slack, _moved(side, y))
        elif isinstance(side, (int, float)) and not isinstance(side, bool) and isfinite(side):
            lows.append(side)
            highs.append(side)
            slack = max(slack, y.unit)
        else:
            raise _NoLawError
    yield from _within("one_of", min(lows), max(highs), slack)


def _clamp_to(a: _Arguments, low: Any, high: Any) -> Iterator[Bound]:
    x, y = a.tensor(0), a.output
    _floats(x, y)
    if not all(side is None or (isinstance(side, (int, float)) and isfinite(side)) for side in (low, high)):
        raise _NoLawError
    low, high = -inf if low is None else low, inf if high is None else high
    for figure, value in ((MAX, x.maximum), (MIN, x.minimum)):
        kept = min(max(value, low), high)
        yield _at("clamped", figure, kept, max(_moved(x, y), y.unit) * abs(kept))


_LAWS["clamp"] = _LAWS["clip"] = lambda a: _clamp_to(a, a.of(1, "min"), a.of(2, "max"))
_LAWS["hardtanh"] = lambda a: _clamp_to(a, a.of(1, "min_val", -1.0), a.of(2, "max_val", 1.0))
_LAWS["relu6"] = lambda a: _clamp_to(a, 0.0, 6.0)


@_law("interpolate", "upsample")
def _interpolate(a: _Arguments) -> Iterator[Bound]:
    if a.of(3, "mode", "nearest") == "bicubic":
        raise _NoLawError
    x = a.tensor(0)
    _floats(x, a.output)
    yield from _within("average", x.minimum, x.maximum, a.slack)


@_law("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _average_pool(a: _Arguments) -> Iterator[Bound]:
    x = a.tensor(0)
    _floats(x, a.output)
    if a.of(6, "divisor_override") is not None:
        raise _NoLawError
    # Padding has zeros.
    yield from _within("average", min(x.minimum, 0.0), max(x.maximum, 0.0), a.slack)


@_law("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def _adaptive_pool(a: _Arguments) -> Iterator[Bound]:
    x, y = a.tensor(0), a.output
    _floats(x, y)
    yield from _within("average", x.minimum, x.maximum, a.slack)
    if x.mean and len(x.shape) == len(y.shape) and all(n % m == 0 for n, m in zip(x.shape, y.shape, strict=True)):
        yield Bound("same_mean", MEAN, x.mean.wider(a.slack * x.rms))


# --- functions of one element -----------------------------------------------------------------------------------------


@_law("relu")
def _relu(a: _Arguments) -> Iterator[Bound]:
    x, y = a.tensor(0), a.output
    _floats(x, y)
    slack = _moved(x, y)
    yield _at("relu", MAX, max(x.maximum, 0.0), slack * x.largest)
    yield _at("relu", MIN, max(x.minimum, 0.0), slack * x.largest)
    if x.mean and x.norm:
        # relu(x) = (x + |x|) / 2, and the mean of |x| is at most the root mean square.
        low, high = max(x.mean.low, 0.0), (x.mean.high + x.rms) / 2
        yield Bound("relu_mean", MEAN, Range(low, high).wider(slack * x.rms))
        yield _at_most("shrinks", NORM, x.norm.high, slack * x.norm_high)


@_law("leaky_relu")
def _leaky_relu(a: _Arguments) -> Iterator[Bound]:
    slope = a.number(1, "negative_slope", 0.01)
    if not 0 <= slope <= 1:
        raise _NoLawError
    yield from _increasing("increasing", lambda x: max(x, slope * x), a)
    x = a.tensor(0)
    if x.norm:
        yield _at_most("shrinks", NORM, x.norm.high, a.slack * x.norm_high)


def _increasing(law: str, function: Callable[[float], float], a: _Arguments, absolute: float = 0.0) -> Iterator[Bound]:
    """Max and Min are the function's of the input's."""
    x = a.tensor(0)
    _floats(x, a.output)
    unit = coarsest(a.statistics)
    for figure, value in ((MAX, x.maximum), (MIN, x.minimum)):
        # The argument was rounded too, where types differ.
        near = [function(value * (1 + sign * unit)) for sign in (-1, 0, 1)]
        limits = Range(min(near), max(near))
        yield Bound(law, figure, limits.wider(a.slack * limits.size + absolute))


def _sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x)) if x >= 0 else exp(x) / (1 + exp(x))


def _softplus(x: float) -> float:
    return max(x, 0.0) + log1p(exp(-abs(x)))


_LAWS["sigmoid"] = partial(_increasing, "increasing", _sigmoid, absolute=_ACCEPTED)
_LAWS["tanh"] = partial(_increasing, "increasing", tanh, absolute=_ACCEPTED)
_LAWS["exp"] = partial(_increasing, "increasing", exp)
_LAWS["sqrt"] = partial(_increasing, "increasing", sqrt, absolute=2.0**-63)  # ValueError of negative numbers
_LAWS["logsigmoid"] = partial(_increasing, "increasing", lambda x: -_softplus(-x), absolute=_ACCEPTED)


@_law("softplus")
def _softplus_law(a: _Arguments) -> Iterator[Bound]:
    if a.number(1, "beta", 1.0) != 1.0:
        raise _NoLawError
    yield from _increasing("increasing", _softplus, a, absolute=_ACCEPTED)


@_law("elu")
def _elu(a: _Arguments) -> Iterator[Bound]:
    alpha = a.number(1, "alpha", 1.0)
    yield from _increasing("increasing", lambda x: x if x > 0 else alpha * expm1(x), a, absolute=_ACCEPTED)


@dataclass(frozen=True, slots=True)
class _Gate:
    """A function x·g(x) whose g goes from 0 to 1 as a distribution does: x/2 and an even part of x.

    It falls down to `lowest` and rises after that. The even part is a concave function of x², so that its mean is at
    most that of the root mean square, and at least that of the chord to the largest x (Jensen).
    """

    gate: Callable[[float], float]
    lowest: float
    absolute: float

    def of(self, x: float) -> float:
        """The function."""
        return x * self.gate(x)

    def even(self, x: float) -> float:
        """Its even part."""
        return x * (self.gate(x) - 0.5)

    def bounds(self, a: _Arguments) -> Iterator[Bound]:
        """The law."""
        x, y = a.tensor(0), a.output
        _floats(x, y)
        slack, bottom = a.slack, self.of(self.lowest)
        amount = self.absolute + slack * max(abs(bottom), _ACCEPTED)
        top, low = self.of(x.maximum), self.of(x.minimum)
        if x.maximum >= 0:
            yield _at("gate_max", MAX, top, slack * abs(top) + self.absolute)
        else:
            yield _at_most("gate_max", MAX, 0.0, 0.0)
        if x.minimum >= self.lowest:
            yield _at("gate_min", MIN, low, slack * abs(low) + self.absolute)
        else:
            yield Bound("gate_min", MIN, Range(bottom, low).wider(amount))
        if x.mean and x.norm and x.largest:
            high = self.even(x.rms)
            least = (x.norm.low / sqrt(x.count) / x.largest) ** 2 * self.even(x.largest)
            yield Bound(
                "gate_mean", MEAN, (x.mean.times(0.5) + Range(least, high)).wider(slack * x.rms + self.absolute)
            )  # fmt: skip
            yield _at_most("shrinks", NORM, x.norm.high, slack * x.norm_high + self.absolute * sqrt(x.count))


_GELU = _Gate(lambda x: 0.5 * (1 + erf(x / sqrt(2))), -0.7517915246935645, _GELU_FORMS)
_SILU = _Gate(_sigmoid, -1.2784645427610738, _ACCEPTED)
_LAWS["gelu"] = _LAWS["npu_gelu"] = _GELU.bounds
_LAWS["silu"] = _LAWS["npu_silu"] = _LAWS["swish"] = _SILU.bounds


@_law("neg", "negative")
def _neg(a: _Arguments) -> Iterator[Bound]:
    yield from _scaled(a.tensor(0), -1.0, a, "scaled")


@_law("abs", "absolute")
def _abs(a: _Arguments) -> Iterator[Bound]:
    x, y = a.tensor(0), a.output
    _floats(x, y)
    yield _at("absolute", MAX, x.largest, 0.0)
    yield Bound("absolute", MIN, Range(max(x.minimum, -x.maximum, 0.0), x.largest))
    if x.norm:
        yield Bound("same_norm", NORM, x.norm)


@_law("sin", "cos")
def _circle(a: _Arguments) -> Iterator[Bound]:
    _floats(a.output)
    yield from _within("from_to", -1.0, 1.0, a.slack)


@_law("square")
def _square(a: _Arguments) -> Iterator[Bound]:
    x = a.tensor(0)
    _floats(x, a.output)
    top = x.largest**2
    yield _at("square", MAX, top, 2 * a.slack * top)
    if x.norm:
        low, high = x.norm.low**2 / x.count, x.norm.high**2 / x.count
        yield Bound("square", MEAN, Range(low, high).wider(2 * a.slack * high))


@_law("pow", "__pow__")
def _pow(a: _Arguments) -> Iterator[Bound]:
    if a.number(1, "exponent") != 2:
        raise _NoLawError
    yield from _square(a)


@_law("dropout", "alpha_free_dropout", "dropout1d", "dropout2d", "dropout3d", "native_dropout")
def _dropout(a: _Arguments) -> Iterator[Bound]:
    x, y = a.tensor(0), a.output
    _floats(x, y)
    share = a.number(1, "p", 0.5)
    if not a.flag(2, "training", True) or not share:
        yield from _same_numbers("same_numbers", x, y, _moved(x, y))
    elif share < 1:
        scale, slack = 1 / (1 - share), a.slack
        yield from _within("dropout", min(x.minimum * scale, 0.0), max(x.maximum * scale, 0.0), slack)
        if x.norm:
            yield _at_most("dropout", NORM, x.norm.high * scale, slack * x.norm_high * scale)


# --- sums and products of tensors -------------------------------------------------------------------------------------


def _scaled(x: Statistics, factor: float, a: _Arguments, law: str) -> Iterator[Bound]:
    """The output is the input times a number."""
    y = a.output
    _floats(x, y)
    if x.count != y.count:
        raise _NoLawError
    slack = a.slack * abs(factor)
    high, low = max(x.maximum * factor, x.minimum * factor), min(x.maximum * factor, x.minimum * factor)
    yield _at(law, MAX, high, slack * x.largest)
    yield _at(law, MIN, low, slack * x.largest)
    if x.mean:
        yield Bound(law, MEAN, x.mean.times(factor).wider(slack * x.rms))
    if x.norm:
        yield Bound(law, NORM, x.norm.times(abs(factor)).wider(slack * x.norm_high + y.tiny * sqrt(y.count)))


@_law("add")
def _add(a: _Arguments) -> Iterator[Bound]:
    yield from _sum(a, a.of(0, "input"), a.of(1, "other"), 1.0, a.number(2, "alpha", 1.0))


@_law("sub", "subtract")
def _sub(a: _Arguments) -> Iterator[Bound]:
    yield from _sum(a, a.of(0, "input"), a.of(1, "other"), 1.0, -a.number(2, "alpha", 1.0))


@_law("rsub")
def _rsub(a: _Arguments) -> Iterator[Bound]:
    yield from _sum(a, a.of(0, "input"), a.of(1, "other"), -a.number(2, "alpha", 1.0), 1.0)


def _sum(a: _Arguments, left: Any, right: Any, left_factor: float, right_factor: float) -> Iterator[Bound]:
    y = a.output
    _floats(y)
    low = high = size = norm_size = 0.0
    lows, highs, means, norms = [], [], Range(0.0, 0.0), []
    for side, factor in ((left, left_factor), (right, right_factor)):
        if isinstance(side, Statistics):
            ends = Range(side.minimum, side.maximum).times(factor)
            repeats = sqrt(_fitting(side, y))
            norm = side.norm or Range(0.0, side.norm_high)
            means += side.mean_range.times(factor)
            norms.append(norm.times(abs(factor) * repeats))
            norm_size += side.norm_high * abs(factor) * repeats
        elif isinstance(side, (int, float)) and not isinstance(side, bool) and isfinite(side):
            ends = Range(side * factor, side * factor)
            means += ends
            norms.append(Range(1.0, 1.0).times(abs(side * factor) * sqrt(y.count)))
            norm_size += abs(side * factor) * sqrt(y.count)
        else:
            raise _NoLawError
        low, high, size = low + ends.low, high + ends.high, size + ends.size
        lows.append(ends.low)
        highs.append(ends.high)
    slack = a.slack
    # Each element of the smaller tensor meets one of the other at least: the largest has no less than the smallest.
    yield Bound("sum", MAX, Range(max(highs[0] + lows[1], highs[1] + lows[0]), high).wider(slack * size))
    yield Bound("sum", MIN, Range(low, min(lows[0] + highs[1], lows[1] + highs[0])).wider(slack * size))
    yield Bound("sum_mean", MEAN, means.wider(slack * norm_size / sqrt(y.count)))
    least = max(norms[0].low - norms[1].high, norms[1].low - norms[0].high, 0.0)
    yield Bound("sum_norm", NORM, Range(least, norms[0].high + norms[1].high).wider(slack * norm_size))


@_law("mul", "multiply")
def _mul(a: _Arguments) -> Iterator[Bound]:
    left, right = a.of(0, "input"), a.of(1, "other")
    for x, factor in ((left, right), (right, left)):
        if isinstance(factor, Statistics) and factor.is_constant and isinstance(x, Statistics):
            if x.count == a.output.count:
                yield from _scaled(x, factor.maximum, a, "scaled")
                return
        elif isinstance(factor, (int, float)) and not isinstance(factor, bool) and isfinite(factor):
            if not isinstance(x, Statistics):
                raise _NoLawError
            yield from _scaled(x, float(factor), a, "scaled")
            return
    x, z, y, slack = a.tensor(0), a.tensor(1, "other"), a.output, a.slack
    _floats(y)
    corners = [p * q for p in (x.minimum, x.maximum) for q in (z.minimum, z.maximum)]
    yield Bound("product", MAX, Range(min(corners), max(corners)).wider(slack * x.largest * z.largest))
    yield Bound("product", MIN, Range(min(corners), max(corners)).wider(slack * x.largest * z.largest))
    x_norm, z_norm = x.norm_high * sqrt(_fitting(x, y)), z.norm_high * sqrt(_fitting(z, y))
    most = min(x.largest * z_norm, z.largest * x_norm)
    yield _at_most("product", NORM, most, slack * most)
    limit = x_norm * z_norm / y.count
    yield Bound("product", MEAN, Range(-limit, limit).wider(slack * limit))


@_law("div", "divide", "true_divide")
def _div(a: _Arguments) -> Iterator[Bound]:
    if a.of(2, "rounding_mode") is not None:
        raise _NoLawError
    divisor = a.of(1, "other")
    if not isinstance(divisor, Statistics) or divisor.is_constant:
        number = a.number(1, "other")
        if not number:
            raise _NoLawError
        yield from _scaled(a.tensor(0), 1 / number, a, "scaled")
        return
    x, y = a.tensor(0), a.output
    if divisor.minimum <= 0 <= divisor.maximum:
        raise _NoLawError
    _floats(x, y)
    corners = [p / q for p in (x.minimum, x.maximum) for q in (divisor.minimum, divisor.maximum)]
    slack = 2 * a.slack * max(map(abs, corners))
    yield Bound("product", MAX, Range(min(corners), max(corners)).wider(slack))
    yield Bound("product", MIN, Range(min(corners), max(corners)).wider(slack))


@_law("maximum", "minimum")
def _one_of_two(a: _Arguments) -> Iterator[Bound]:
    yield from _one_of_several([a.tensor(0), a.tensor(1, "other")], a.output)


@_law("lerp")
def _lerp(a: _Arguments) -> Iterator[Bound]:
    x, end, y = a.tensor(0), a.tensor(1, "end"), a.output
    _floats(x, end, y)
    weight = a.number(2, "weight")
    if not 0 <= weight <= 1 or not x.count == end.count == y.count:
        raise _NoLawError
    yield from _within("average", min(x.minimum, end.minimum), max(x.maximum, end.maximum), a.slack)
    rest = a.slack * (x.rms + end.rms)
    yield Bound("sum_mean", MEAN, (x.mean_range.times(1 - weight) + end.mean_range.times(weight)).wider(rest))


# --- matrices and convolutions ----------------------------------------------------------------------------------------


def _product_bounds(
    a: _Arguments, x: Statistics, w: Statistics, terms: int, reuse: float = 1.0, added: Statistics | None = None
) -> Iterator[Bound]:
    """‖W x‖ ≤ ‖W‖ ‖x‖, each element of x being in `reuse` sums at most, of `terms` products each."""
    y = a.output
    _floats(x, w, y)
    repeated = added.norm_high * sqrt(_fitting(added, y)) if added is not None else 0.0
    most = x.norm_high * w.norm_high * sqrt(reuse)
    yield _at_most("matrix_norm", NORM, (most + repeated) * (1 + a.slack), 0.0)
    largest = min(x.norm_high, sqrt(terms) * x.largest) * min(w.norm_high, sqrt(terms) * w.largest)
    offset = 0.0 if added is None else added.largest
    yield Bound("matrix_element", MAX, Range(-inf, (largest + offset) * (1 + a.slack)))
    yield Bound("matrix_element", MIN, Range(-(largest + offset) * (1 + a.slack), inf))


@_law("linear")
def _linear(a: _Arguments) -> Iterator[Bound]:
    x, w = a.tensor(0), a.tensor(1, "weight")
    yield from _product_bounds(a, x, w, w.shape[-1] if w.shape else 1, added=a.optional(2, "bias"))


@_law("matmul", "bmm", "mm", "mv", "dot")
def _matmul(a: _Arguments) -> Iterator[Bound]:
    x, w = a.tensor(0), a.tensor(1, "mat2" if "mat2" in a.kwargs else "other")
    yield from _product_bounds(a, x, w, x.shape[-1] if x.shape else 1)


@_law("addmm", "baddbmm", "addmv")
def _addmm(a: _Arguments) -> Iterator[Bound]:
    if a.number(3, "beta", 1.0) != 1.0 or a.number(4, "alpha", 1.0) != 1.0 or len(a.inputs) < 3:
        raise _NoLawError
    x, w = a.tensor(1), a.tensor(2)
    yield from _product_bounds(a, x, w, x.shape[-1], added=a.tensor(0))


def _conv(a: _Arguments, is_transposed: bool = False) -> Iterator[Bound]:
    x, w = a.tensor(0), a.tensor(1, "weight")
    kernel = w.shape[2:]
    if not kernel:
        raise _NoLawError
    strides = _numbers(a.of(3, "stride", 1))
    strides = strides * len(kernel) if len(strides) == 1 else strides
    if len(strides) != len(kernel) or min(strides) < 1:
        raise _NoLawError
    reuse = prod(ceil(size / stride) for size, stride in zip(kernel, strides, strict=True))
    # A transposed one adds up as many products at a place as an element has places, for each of its channels.
    terms = w.shape[0] * reuse if is_transposed else prod(w.shape[1:])
    yield from _product_bounds(a, x, w, terms, reuse, a.optional(2, "bias"))


for _axes in "123":
    _LAWS[f"conv{_axes}d"] = _conv
    _LAWS[f"conv_transpose{_axes}d"] = partial(_conv, is_transposed=True)


@_law("scaled_dot_product_attention")
def _attention(a: _Arguments) -> Iterator[Bound]:
    if a.number(4, "dropout_p", 0.0) or not a.output.is_finite:  # NaN where a mask leaves no key
        raise _NoLawError
    value = a.tensor(2, "value")
    _floats(value, a.output)
    # Zero where all keys are masked.
    yield from _within("average", min(value.minimum, 0.0), max(value.maximum, 0.0), 2 * a.slack)


# --- softmax, norms, reductions, losses -------------------------------------------------------------------------------


def _axis(a: _Arguments, shape: tuple[int, ...]) -> int | None:
    axis = a.of(1, "dim")
    if isinstance(axis, bool) or not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
        return None
    return shape[axis]


@_law("softmax")
def _softmax(a: _Arguments) -> Iterator[Bound]:
    y, slack = a.output, a.slack
    _floats(y)
    yield Bound("softmax_range", MAX, Range(0.0, 1 + slack))
    yield Bound("softmax_range", MIN, Range(0.0, 1 + slack))
    count = _axis(a, y.shape)
    if count:
        yield Bound("softmax_mean", MEAN, Range(1 / count, 1 / count).wider(slack / count + y.tiny))
        rows = y.count / count
        yield Bound("softmax_norm", NORM, Range(sqrt(rows / count) * (1 - slack), sqrt(rows) * (1 + slack)))


@_law("log_softmax")
def _log_softmax(a: _Arguments) -> Iterator[Bound]:
    y, slack = a.output, a.slack
    _floats(y)
    # Max is rounded from 0 up, by what goes into the difference.
    x = a.tensor(0)
    yield _at_most("log_softmax", MAX, 0.0, slack * max(x.largest, 1.0))
    count = _axis(a, y.shape)
    if count:
        # The logarithm is concave.
        yield _at_most("log_softmax_mean", MEAN, -log(count), slack * max(x.largest, log(count), 1.0))


def _normalized(
    a: _Arguments, x: Statistics, rows: int, power: float, weight: Statistics | None, bias: Statistics | None,
    eps: float, is_centred: bool = True,
) -> Iterator[Bound]:  # fmt: skip
    """Rows whose mean square is v/(v+eps), by Jensen at most that of all together, times a weight, plus a bias."""
    y = a.output
    _floats(x, y)
    scale = 1.0 if weight is None else weight.largest
    size = rows and y.count // rows
    if not size:
        raise _NoLawError
    # What the mean's and the variance's rounding leaves of rows that are nearly constant.
    slack = a.slack + (x.largest * 2.0**-20 / sqrt(power + eps) if power + eps > 0 else inf)
    if slack > 1:
        raise _NoLawError
    share = sqrt(min(1.0, power / (power + eps)) if power + eps > 0 else 1.0)
    added = 0.0 if bias is None else bias.norm_high * sqrt(_fitting(bias, y))
    yield _at_most("normalized_norm", NORM, scale * sqrt(y.count) * share * (1 + slack) + added * (1 + slack), 0.0)
    offset = 0.0 if bias is None else bias.largest
    limit = (scale * sqrt(max(size - 1, 0) if is_centred else size) + offset) * (1 + slack)
    yield Bound("normalized_element", MAX, Range(-inf, limit))
    yield Bound("normalized_element", MIN, Range(-limit, inf))
    if is_centred and (weight is None or weight.is_constant):
        mean = Range(0.0, 0.0) if bias is None else bias.mean_range
        yield Bound("normalized_mean", MEAN, mean.wider(slack * (scale + offset)))


def _variance(x: Statistics) -> float:
    """The variance of all elements, at most."""
    square = x.rms**2
    nearest = 0.0 if x.mean is None or x.mean.low <= 0 <= x.mean.high else min(abs(x.mean.low), abs(x.mean.high))
    return float(max(square - nearest**2, 0.0))


@_law("layer_norm")
def _layer_norm(a: _Arguments) -> Iterator[Bound]:
    x = a.tensor(0)
    size = prod(_numbers(a.of(1, "normalized_shape")))
    weight, bias = a.optional(2, "weight"), a.optional(3, "bias")
    if not size or x.count % size:
        raise _NoLawError
    yield from _normalized(a, x, x.count // size, _variance(x), weight, bias, a.number(4, "eps", 1e-5))


@_law("group_norm")
def _group_norm(a: _Arguments) -> Iterator[Bound]:
    x, (groups,) = a.tensor(0), _numbers(a.of(1, "num_groups"))
    if len(x.shape) < 2 or groups < 1:
        raise _NoLawError
    weight, bias = a.optional(2, "weight"), a.optional(3, "bias")
    yield from _normalized(a, x, x.shape[0] * groups, _variance(x), weight, bias, a.number(4, "eps", 1e-5))


@_law("batch_norm")
def _batch_norm(a: _Arguments) -> Iterator[Bound]:
    x = a.tensor(0)
    if not a.flag(5, "training", False) or len(x.shape) < 2:
        raise _NoLawError
    weight, bias = a.optional(3, "weight"), a.optional(4, "bias")
    yield from _normalized(a, x, x.shape[1], _variance(x), weight, bias, a.number(7, "eps", 1e-5))


@_law("rms_norm")
def _rms_norm(a: _Arguments) -> Iterator[Bound]:
    x = a.tensor(0)
    size = prod(_numbers(a.of(1, "normalized_shape")))
    if not size or x.count % size:
        raise _NoLawError
    eps = a.of(3, "eps")
    number = eps if isinstance(eps, float) else 0.0
    yield from _normalized(
        a, x, x.count // size, x.rms**2, a.optional(2, "weight"), None, number, is_centred=False
    )  # fmt: skip


@_law("npu_rms_norm")
def _npu_rms_norm(a: _Arguments) -> Iterator[Bound]:
    x, weight = a.tensor(0, "self"), a.tensor(1, "gamma")
    if not weight.count or x.count % weight.count:
        raise _NoLawError
    eps = a.number(2, "epsilon", 1e-6)
    yield from _normalized(a, x, x.count // weight.count, x.rms**2, weight, None, eps, is_centred=False)


@_law("normalize")
def _normalize(a: _Arguments) -> Iterator[Bound]:
    if a.number(1, "p", 2.0) != 2.0:
        raise _NoLawError
    _floats(a.output)
    yield from _within("from_to", -1.0, 1.0, a.slack)


def _reduced(a: _Arguments, is_mean: bool) -> Iterator[Bound]:
    x, y, slack = a.tensor(0), a.output, a.slack
    _floats(x, y)
    terms = _fitting(y, x)
    factor = 1.0 if is_mean else terms
    if x.mean:
        yield Bound("reduced_mean", MEAN, x.mean.times(factor).wider(slack * x.rms * factor))
    for figure in (MAX, MIN):
        limits = Range(x.minimum, x.maximum).times(factor)
        yield Bound("average" if is_mean else "reduced", figure, limits.wider(slack * x.largest * factor))
    if x.norm:
        most = x.norm.high * factor / sqrt(terms)
        yield _at_most("reduced_norm", NORM, most, slack * most)


_LAWS["sum"] = partial(_reduced, is_mean=False)
_LAWS["mean"] = partial(_reduced, is_mean=True)


@_law("max", "amax")
def _max(a: _Arguments) -> Iterator[Bound]:
    x = a.tensor(0)
    if isinstance(a.of(1, "other"), (Statistics, RecordedTensor)):
        yield from _one_of_two(a)
        return
    yield _at("one_of", MAX, x.maximum, 0.0)
    yield Bound("one_of", MIN, Range(x.minimum, x.maximum))


@_law("min", "amin")
def _min(a: _Arguments) -> Iterator[Bound]:
    x = a.tensor(0)
    if isinstance(a.of(1, "other"), (Statistics, RecordedTensor)):
        yield from _one_of_two(a)
        return
    yield _at("one_of", MIN, x.minimum, 0.0)
    yield Bound("one_of", MAX, Range(x.minimum, x.maximum))


@_law("cross_entropy", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
      "binary_cross_entropy_with_logits")  # fmt: skip
def _loss(a: _Arguments) -> Iterator[Bound]:
    x, target = a.tensor(0), a.of(1, "target")
    if not isinstance(target, Statistics) or a.kwargs.get("weight") is not None or a.kwargs.get("pos_weight"):
        raise _NoLawError
    if target.unit and (target.minimum < 0 or target.maximum > 1):
        raise _NoLawError
    _floats(x, a.output)
    if not a.output.is_finite:  # the mean of no element, where all are ignored
        raise _NoLawError
    yield Bound("not_negative", MIN, Range(-a.slack * max(x.largest, 1.0), inf))


# --- gradients --------------------------------------------------------------------------------------------------------


def _times_slope(low: float, high: float, a: _Arguments) -> Iterator[Bound]:
    """The gradient is that of the output, each element times a slope between two numbers."""
    dy, dx = a.tensor(0), a.output
    if dy.shape != dx.shape:
        raise _NoLawError
    _floats(dy, dx)
    slack, steepest = a.slack, max(abs(low), abs(high))
    corners = [p * q for p in (dy.minimum, dy.maximum) for q in (low, high)]
    limits = Range(min(corners), max(corners)).wider(slack * steepest * dy.largest)
    yield Bound("slope", MAX, limits)
    yield Bound("slope", MIN, limits)
    if dy.norm:
        yield _at_most("slope", NORM, steepest * dy.norm.high, slack * steepest * dy.norm_high)


# The slopes of GELU (both forms) and SiLU lie in these ranges; their extremes are at ±√2 and ±2.3994.
for _name, _low, _high in (
    ("relu", 0.0, 1.0), ("gelu", -0.1300, 1.1300), ("silu", -0.0999, 1.0999), ("sigmoid", 0.0, 0.25),
    ("tanh", 0.0, 1.0), ("softplus", 0.0, 1.0), ("relu6", 0.0, 1.0), ("hardtanh", 0.0, 1.0), ("neg", -1.0, -1.0),
    ("sin", -1.0, 1.0), ("cos", -1.0, 1.0),
):  # fmt: skip
    _GRADIENT_LAWS[_name] = partial(_times_slope, _low, _high)


@_law("softmax", of=_GRADIENT_LAWS)
def _softmax_gradient(a: _Arguments) -> Iterator[Bound]:
    """Each row's gradient adds up to zero, and is at most half the output's (Gershgorin)."""
    dy, dx = a.tensor(0), a.output
    if dy.shape != dx.shape:
        raise _NoLawError
    _floats(dy, dx)
    limit = a.slack * dy.rms
    yield Bound("gradient_sum", MEAN, Range(-limit, limit))
    yield _at_most("softmax_gradient", NORM, dy.norm_high / 2, a.slack * dy.norm_high)


@_law("add", of=_GRADIENT_LAWS)
def _add_gradient(a: _Arguments) -> Iterator[Bound]:
    """A summand's gradient is the output's, where it was not repeated."""
    dy = a.tensor(0)
    _floats(dy)
    for number, dx in enumerate(a.outputs):
        if dx is not None and dx.unit and dx.shape == dy.shape:
            if a.forward is None or a.forward.number(2, "alpha", 1.0) != 1.0:
                raise _NoLawError
            yield from _same_numbers("same_numbers", dy, dx, _moved(dy, dx), number)


def _scaling_gradient(a: _Arguments, is_division: bool) -> Iterator[Bound]:
    """The gradient of what was multiplied by a number is the output's, multiplied by it."""
    if a.forward is None or isinstance(a.forward.of(1, "other"), (Statistics, RecordedTensor)):
        raise _NoLawError
    if a.forward.kwargs.get("rounding_mode") is not None:  # steps have a gradient of zeros
        raise _NoLawError
    number = a.forward.number(1, "other")
    if not isinstance(a.forward.of(0, "input"), Statistics) or not number or len(a.forward.inputs) != 2:
        raise _NoLawError
    yield from _scaled(a.tensor(0), 1 / number if is_division else number, a, "scaled")


_GRADIENT_LAWS["mul"] = partial(_scaling_gradient, is_division=False)
_GRADIENT_LAWS["div"] = partial(_scaling_gradient, is_division=True)

#: Modules whose class says what they compute; their parameters are arguments by name.
_MODULE_LAWS: dict[str, Law] = {
    "ReLU": _LAWS["relu"], "GELU": _LAWS["gelu"], "SiLU": _LAWS["silu"], "Sigmoid": _LAWS["sigmoid"],
    "Tanh": _LAWS["tanh"], "Linear": _LAWS["linear"], "Softmax": _LAWS["softmax"], "Flatten": _LAWS["flatten"],
}  # fmt: skip
