"""Activations and their gradients.

Sources: the prototypes of GE's nonlinear_fuc_ops.h and activation ops; tf.nn. GE's Gelu is the form with tanh, its
FastGelu the one with the sigmoid of 1.702 x.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt

import numpy as np

from precision_tool.lib.ops.base import (
    Call,
    Doubles,
    Function,
    Kind,
    NotComputedError,
    Output,
    Outputs,
    needed,
    op,
    summed_of,
    typed_misfit,
)
from precision_tool.lib.ops.elementwise import elementwise
from precision_tool.lib.ops.op_arguments import (
    Mask,
    axis_of,
    common_shape,
    integer,
    near,
    numbers,
    real,
    text,
    typed,
    unbroadcast,
)
from precision_tool.lib.ops.tracked import Tracked

_SELU_SCALE = 1.0507009873554805
_SELU_ALPHA = 1.6732632423543772
_GELU_SLOPE = sqrt(2 / pi)
_GELU_CUBE = 0.044715
_FAST_GELU = 1.702


def sigmoid(x: Doubles) -> Doubles:
    """1 / (1 + exp(−x)), without overflow."""
    small = np.exp(-np.abs(x))
    result: Doubles = np.where(x >= 0, 1.0, small) / (1 + small)
    return result


def softplus(x: Doubles) -> Doubles:
    """log(1 + exp(x)), without overflow."""
    result: Doubles = np.logaddexp(x, 0)
    return result


def _gelu_inner(x: Doubles) -> tuple[Doubles, Doubles]:
    """The tanh in GE's Gelu, and the slope of its argument."""
    inner = np.tanh(_GELU_SLOPE * (x + _GELU_CUBE * x**3))
    return inner, _GELU_SLOPE * (1 + 3 * _GELU_CUBE * x * x)


def _gelu(x: Doubles) -> Doubles:
    # x (1 + tanh z) / 2 = x sigmoid(2 z), which keeps its digits for negative x.
    result: Doubles = np.where(np.isneginf(x), 0.0, x * sigmoid(2 * _GELU_SLOPE * (x + _GELU_CUBE * x**3)))
    return result


def _gelu_slope(x: Doubles) -> Doubles:
    inner, slope = _gelu_inner(x)
    result: Doubles = 0.5 * (1 + inner) + 0.5 * x * (1 - inner * inner) * slope
    return result


def _swish_slope(x: Doubles, scale: float) -> Doubles:
    gate = sigmoid(scale * x)
    return gate + scale * x * gate * (1 - gate)


def _mish_slope(x: Doubles) -> Doubles:
    inner: Doubles = np.tanh(softplus(x))
    return inner + x * sigmoid(x) * (1 - inner * inner)


def _plain() -> None:
    """Activations without attributes."""
    exact = {"Relu": lambda x: np.maximum(x, 0), "Relu6": lambda x: np.minimum(np.maximum(x, 0), 6)}
    for name, formula in exact.items():

        def compute(call: Call, formula: Callable[[Doubles], Doubles] = formula) -> Outputs:
            return [Output(array=np.asarray(formula(typed(call, 0))))]

        op(name, kind=Kind.EXACT, inputs=("x",))(compute)
    approximate: dict[str, tuple[Callable[..., Doubles], Callable[..., Doubles]]] = {
        "Sigmoid": (sigmoid, lambda x, y: y * (1 + np.abs(x) * (1 - y))),
        # (1 − e) / (1 + e) loses digits near 0: the error there is one of 1.
        "Tanh": (np.tanh, lambda x, y: np.ones_like(y)),
        "Softplus": (softplus, lambda x, y: y + 1),
        "Softsign": (lambda x: x / (1 + np.abs(x)), lambda x, y: np.abs(y)),
        "LogSigmoid": (lambda x: -softplus(-x), lambda x, y: np.abs(y) + 1),
        "Gelu": (_gelu, lambda x, y: np.abs(x) + np.abs(y)),
        "FastGelu": (lambda x: x * sigmoid(_FAST_GELU * x), lambda x, y: np.abs(y) * (1 + 2 * np.abs(x))),
        "Mish": (lambda x: x * np.tanh(softplus(x)), lambda x, y: np.abs(x) + np.abs(y)),
        "HardSwish": (lambda x: x * np.clip(x + 3, 0, 6) / 6, lambda x, y: 2 * np.abs(y) + np.abs(x)),
        "Selu": (
            lambda x: _SELU_SCALE * np.where(x > 0, x, _SELU_ALPHA * np.expm1(np.minimum(x, 0))),
            lambda x, y: np.where(x > 0, np.abs(y), 2.0),
        ),
    }
    for name, (formula, condition) in approximate.items():
        op(name, kind=Kind.APPROXIMATE, inputs=("x",))(elementwise(1, formula, condition))


_plain()


@op("ReluV2", kind=Kind.EXACT, inputs=("x",))
def relu_and_mask(call: Call) -> Outputs:
    """Relu; the packing of the mask that comes with it is not documented."""
    return [Output(array=np.asarray(np.maximum(numbers(call, 0)[0], 0))), None]


@op("Relu6D", kind=Kind.EXACT, inputs=("x",))
def scaled_relu6(call: Call) -> Outputs:
    """x between 0 and 6 times a fixed scale."""
    return [Output(array=np.asarray(np.clip(numbers(call, 0)[0], 0, 6 * real(call, "scale", default=1.0))))]


def _output(y: Doubles, summed: Doubles) -> Outputs:
    return [Output(array=np.asarray(y), summed=summed)]


@op("LeakyRelu", kind=Kind.ROUNDED, inputs=("x",))
def leaky_relu(call: Call) -> Outputs:
    """x, below 0 times the slope that GE calls negative_slope and TensorFlow alpha."""
    (x,) = numbers(call, 0)
    y = np.where(x > 0, x, x * real(call, "negative_slope", "alpha"))
    return _output(y, np.abs(y))


@op("Elu", kind=Kind.APPROXIMATE, inputs=("x",))
def elu(call: Call) -> Outputs:
    """scale x, below 0 scale alpha (exp(input_scale x) − 1)."""
    (x,) = numbers(call, 0)
    alpha, scale = real(call, "alpha", default=1.0), real(call, "scale", default=1.0)
    below = scale * alpha * np.expm1(real(call, "input_scale", default=1.0) * np.minimum(x, 0))
    y = np.where(x > 0, scale * x, below)
    return _output(y, np.where(x > 0, np.abs(y), abs(scale * alpha)))


@op("Celu", "CeluV2", kind=Kind.APPROXIMATE, inputs=("x",))
def celu(call: Call) -> Outputs:
    """max(0, x) + min(0, alpha (exp(x / alpha) − 1)), with GE's three alphas."""
    (x,) = numbers(call, 0)
    alpha = real(call, "alpha", default=1.0)
    inside, outside = real(call, "alpha2", default=alpha), real(call, "alpha1", default=alpha)
    if inside == 0:
        raise NotComputedError("not_allowed", name="alpha", value="0")
    y = np.where(x > 0, real(call, "alpha3", default=1.0) * x, outside * np.expm1(np.minimum(x, 0) / inside))
    return _output(y, np.where(x > 0, np.abs(y), abs(outside)))


@op("Swish", kind=Kind.APPROXIMATE, inputs=("x",))
def swish(call: Call) -> Outputs:
    """x sigmoid(scale x)."""
    (x,) = numbers(call, 0)
    scale = real(call, "scale", default=1.0)
    y = x * sigmoid(scale * x)
    return _output(y, np.abs(y) * (1 + np.abs(scale * x)))


@op("SoftplusV2", kind=Kind.APPROXIMATE, inputs=("x",))
def scaled_softplus(call: Call) -> Outputs:
    """log(1 + exp(beta x)) / beta, and x where beta x is above the threshold."""
    (x,) = numbers(call, 0)
    beta, threshold = real(call, "beta", default=1.0), real(call, "threshold", default=20.0)
    if beta == 0:
        raise NotComputedError("not_allowed", name="beta", value="0")
    y = np.where(beta * x > threshold, x, softplus(beta * x) / beta)
    return _output(y, np.abs(y) + abs(1 / beta))


#: Up to here erf(x) is x T(x²) / U(x²), then erfc(x) is exp(−x²) P(x) / Q(x), and from 8 on exp(−x²) R(x) / S(x).
#: Coefficients of S. L. Moshier's Cephes library, highest power first.
_ERF_T = (9.60497373987051638749, 90.0260197203842689217, 2232.00534594684319226, 7003.32514112805075473,
          55592.3013010394962768)  # fmt: skip
_ERF_U = (1.0, 33.5617141647503099647, 521.357949780152679795, 4594.32382970980127987, 22629.0000613890934246,
          49267.3942608635921086)  # fmt: skip
_ERF_P = (2.46196981473530512524e-10, 0.564189564831068821977, 7.46321056442269912687, 48.6371970985681366614,
          196.520832956077098242, 526.445194995477358631, 934.528527171957607540, 1027.55188689515710272,
          557.535335369399327526)  # fmt: skip
_ERF_Q = (1.0, 13.2281951154744992508, 86.7072140885989742329, 354.937778887819891062, 975.708501743205489753,
          1823.90916687909736289, 2246.33760818710981792, 1656.66309194161350182, 557.535340817727675546)  # fmt: skip
_ERF_R = (0.564189583547755073984, 1.27536670759978104416, 5.01905042251180477414, 6.16021097993053585195,
          7.40974269950448939160, 2.97886665372100240670)  # fmt: skip
_ERF_S = (1.0, 2.26052863220117276590, 9.39603524938001434673, 12.0489539808096656605, 17.0814450747565897222,
          9.60896809063285878198, 3.36907645100081516050)  # fmt: skip


def normal_share(x: Doubles) -> Doubles:
    """(1 + erf(x / √2)) / 2, to the last digits on either side."""
    z = np.abs(np.asarray(x, np.float64)) * sqrt(0.5)
    square = z * z
    small = np.where(z > 1, 0.0, z)
    inner = small * np.polyval(_ERF_T, small * small) / np.polyval(_ERF_U, small * small)
    middle = np.minimum(z, 8.0)
    far = np.maximum(z, 8.0)
    far = np.where(np.isfinite(far), far, 30.0)
    tail = np.where(
        z < 8,
        np.polyval(_ERF_P, middle) / np.polyval(_ERF_Q, middle),
        np.polyval(_ERF_R, far) / np.polyval(_ERF_S, far),
    )
    beyond = np.where(z <= 1, 1 - inner, np.exp(-square) * tail) / 2  # of |x|
    result: Doubles = np.where(np.isnan(x), np.nan, np.where(x < 0, beyond, 1 - beyond))
    return result


@op("GeluV2", kind=Kind.APPROXIMATE, inputs=("x",))
def gelu_v2(call: Call) -> Outputs:
    """x by the normal distribution's share below it; with `approximate` "tanh" the form of Gelu."""
    (x,) = numbers(call, 0)
    form = text(call, "approximate", default="none")
    if form not in ("none", "tanh"):
        raise NotComputedError("no_variant", name="approximate", value=form)
    y = _gelu(x) if form == "tanh" else np.where(np.isneginf(x), 0.0, x * normal_share(x))
    return _output(y, np.abs(x) + np.abs(y))


@op("SwiGlu", kind=Kind.COMPOSITE, inputs=("x",))
def swiglu(call: Call) -> Outputs:
    """a sigmoid(a) b, of the halves a and b of x along an axis."""
    (x,) = numbers(call, 0)
    axis = axis_of(call, integer(call, "dim", default=-1), x.ndim)
    if x.shape[axis] % 2:
        raise NotComputedError("no_multiple", name="elements", number=x.shape[axis], limit=2)
    a, b = np.split(x, 2, axis)
    return [(Tracked(a).sigmoid() * a * b).output()]


@op("HardSigmoid", kind=Kind.ROUNDED, inputs=("input_x",))
def hard_sigmoid(call: Call) -> Outputs:
    """alpha x + beta between 0 and 1."""
    (x,) = numbers(call, 0)
    slope = real(call, "alpha", default=1 / 6) * x
    y = np.clip(slope + real(call, "beta", default=0.5), 0, 1)
    return _output(y, np.where((y > 0) & (y < 1), np.abs(slope), 0.0) + y)


def _slopes(call: Call, x: Doubles, weight: Doubles) -> Doubles:
    """The slopes of a PRelu so that they broadcast: one for all, one a channel, or one an element.

    Channels are axis 1 where the layout says so, or only that axis fits; else the last.
    """
    if weight.size == 1:
        return weight.reshape(())
    if weight.ndim == 1 and x.ndim > 1:
        first = needed(call, 0).layout in ("NCHW", "NCDHW") or x.shape[-1] != weight.size
        axis = 1 if first else x.ndim - 1
        if x.shape[axis] != weight.size:
            raise NotComputedError(
                "count_misfit", name="weight", number=weight.size, other="channels", limit=x.shape[axis]
            )
        return weight.reshape([-1 if each == axis else 1 for each in range(x.ndim)])
    if weight.ndim == x.ndim - 1:
        weight = weight[None]
    if common_shape(call, x, weight) != x.shape:
        raise NotComputedError("shape_misfit", name="weight", shape=weight.shape, other="x", other_shape=x.shape)
    return weight


@op("PRelu", kind=Kind.ROUNDED, inputs=("x", "weight"))
def prelu(call: Call) -> Outputs:
    """x, below 0 times the slope of its channel."""
    x, weight = numbers(call, 0, 1)
    y = np.where(x > 0, x, x * _slopes(call, x, weight))
    return _output(y, np.abs(y))


@op("PReluGrad", kind=Kind.SUM, inputs=("grads", "features", "weights"))
def prelu_gradient(call: Call) -> Outputs:
    """The gradients for x and for the slopes."""
    grads, x, weight = numbers(call, 0, 1, 2)
    if grads.shape != x.shape:
        raise NotComputedError("shape_misfit", name="gradients", shape=grads.shape, other="x", other_shape=x.shape)
    slopes = _slopes(call, x, weight)
    doubtful = near(x, 0.0, needed(call, 1).dtype) & (x != 0)
    dx = np.where(x > 0, grads, grads * slopes)
    parts = np.where(x > 0, 0.0, grads * x)
    total, squares = unbroadcast(parts, slopes.shape), unbroadcast(parts * parts, slopes.shape)
    count = max(1, parts.size // max(1, total.size))
    summed = summed_of(total, squares - total**2 / count, count)
    shaped = [array.reshape(weight.shape) for array in (total, summed, np.sqrt(squares))]
    return [
        Output(array=dx, summed=np.abs(dx), doubtful=doubtful),
        Output(array=shaped[0], summed=shaped[1], terms=shaped[2]),
    ]


# --- gradients of one gradient and one other input --------------------------------------------------------------------

#: The slope for the other input, of the call: with `Output.summed` for a gradient of 1, and the switch.
Slope = Callable[[Call, Doubles], tuple[Doubles, Doubles, Mask | None]]


def _gradient(grad_slot: int, slope: Slope) -> Function:
    """gradient × slope(other input); the other input is at the other of the first two slots."""

    def compute(call: Call) -> Outputs:
        grad, other = numbers(call, grad_slot, 1 - grad_slot)
        common_shape(call, grad, other)
        factor, summed, doubtful = slope(call, other)
        y = grad * factor
        if doubtful is not None:
            doubtful = np.broadcast_to(doubtful, y.shape)
        return [Output(array=np.asarray(y), summed=np.abs(grad) * summed, doubtful=doubtful)]

    return compute


def _switch(positions: tuple[float, ...], slot: int, formula: Callable[[Call, Doubles], Doubles]) -> Slope:
    """A slope that jumps where the other input, at `slot`, passes one of these values.

    What stands at a value exactly, as what a Relu cut off does, is on the side that the definition says.
    """

    def slope(call: Call, x: Doubles) -> tuple[Doubles, Doubles, Mask | None]:
        factor = formula(call, x)
        dtype = needed(call, slot).dtype
        first, *others = [near(x, position, dtype) & (x != position) for position in positions]
        for other in others:
            first |= other
        return factor, np.abs(factor), first

    return slope


def _smooth(formula: Callable[[Doubles], Doubles], summed: Callable[[Doubles, Doubles], Doubles]) -> Slope:
    def slope(call: Call, x: Doubles) -> tuple[Doubles, Doubles, Mask | None]:
        factor = formula(x)
        return factor, summed(x, factor), None

    return slope


def _size(x: Doubles, factor: Doubles) -> Doubles:
    """Return the magnitude that is rounded where nothing cancels."""
    result: Doubles = np.abs(factor)
    return result


def _leak(call: Call, x: Doubles) -> Doubles:
    return np.where(x > 0, 1.0, real(call, "negative_slope", "alpha"))


def _gradients() -> None:
    switches: dict[str, tuple[tuple[float, ...], Callable[[Call, Doubles], Doubles]]] = {
        "ReluGrad": ((0.0,), lambda call, x: (x > 0).astype(x.dtype)),
        "Relu6Grad": ((0.0, 6.0), lambda call, x: np.where((x > 0) & (x < 6), 1.0, 0.0)),
        "LeakyReluGrad": ((0.0,), _leak),
    }
    for name, (positions, formula) in switches.items():
        op(name, kind=Kind.ROUNDED, inputs=("gradients", "features"))(_gradient(0, _switch(positions, 1, formula)))
    smooth: dict[str, tuple[tuple[str, ...], int, Slope]] = {
        "SigmoidGrad": (("y", "dy"), 1, _smooth(lambda y: y * (1 - y), lambda y, f: np.abs(y) * (1 + np.abs(y)))),
        "TanhGrad": (("y", "dy"), 1, _smooth(lambda y: 1 - y * y, lambda y, f: 1 + y * y)),
        "SoftplusGrad": (("gradients", "features"), 0, _smooth(sigmoid, lambda x, f: f * (1 + np.abs(x) * (1 - f)))),
        "SoftsignGrad": (("gradients", "features"), 0, _smooth(lambda x: 1 / np.square(1 + np.abs(x)), _size)),
        "LogSigmoidGrad": (("grads", "features"), 0, _smooth(lambda x: sigmoid(-x), lambda x, f: f * (1 + np.abs(x)))),
        "EluGrad": (
            ("grads", "activations"),
            0,
            _smooth(lambda y: np.where(y < 0, y + 1, 1.0), lambda y, f: np.where(y < 0, 1 + np.abs(y), 0.0)),
        ),
        "SeluGrad": (
            ("gradients", "outputs"),
            0,
            _smooth(
                lambda y: np.where(y < 0, y + _SELU_SCALE * _SELU_ALPHA, _SELU_SCALE),
                lambda y, f: np.where(y < 0, np.abs(y) + 2.0, f),
            ),
        ),
        "GeluGrad": (("dy", "x", "y"), 0, _smooth(_gelu_slope, lambda x, f: 1 + np.abs(f) + np.abs(x))),
        "FastGeluGrad": (
            ("dy", "x"),
            0,
            _smooth(lambda x: _swish_slope(x, _FAST_GELU), lambda x, f: 1 + np.abs(f) + np.abs(x)),
        ),
        "MishGrad": (("grad", "x", "tanhx"), 0, _smooth(_mish_slope, lambda x, f: 1 + np.abs(f) + np.abs(x))),
    }
    for name, (inputs, grad_slot, slope) in smooth.items():
        op(name, kind=Kind.APPROXIMATE, inputs=inputs)(_gradient(grad_slot, slope))


_gradients()


@op("ReluGradV2", kind=Kind.EXACT, inputs=("gradients", "mask"))
def relu_gradient_of_mask(call: Call) -> Outputs:
    """The gradients where the mask is set: one number an element, or eight elements a byte, the lowest bit first."""
    gradients, mask = typed(call, 0), needed(call, 1)
    if mask.array.shape == gradients.shape:
        is_set = mask.array != 0
    elif mask.array.dtype == np.uint8 and mask.array.shape == (*gradients.shape[:-1], gradients.shape[-1] // 8):
        is_set = np.unpackbits(mask.array, axis=-1, bitorder="little").astype(np.bool_)
    else:  # by blocks of channels, whose padding has bits too
        raise typed_misfit("mask", mask.dtype, mask.array.shape, "gradients", gradients.shape)
    return [Output(array=np.where(is_set, gradients, np.zeros_like(gradients)))]


def _elu_v2_slope(call: Call, y: Doubles) -> tuple[Doubles, Doubles, Mask | None]:
    alpha = real(call, "alpha", default=1.0)
    return np.where(y < 0, y + alpha, 1.0), np.where(y < 0, np.abs(y) + abs(alpha), 0.0), None


def _swish_grad_slope(call: Call, x: Doubles) -> tuple[Doubles, Doubles, Mask | None]:
    scale = real(call, "scale", default=1.0)
    factor = _swish_slope(x, scale)
    return factor, 1 + np.abs(factor) + np.abs(scale * x), None


def _hard_swish_slope(call: Call, x: Doubles) -> Doubles:
    return np.where(x <= -3, 0.0, np.where(x >= 3, 1.0, x / 3 + 0.5))


def _hard_sigmoid_slope(call: Call, x: Doubles) -> tuple[Doubles, Doubles, Mask | None]:
    alpha, beta = real(call, "alpha", default=1 / 6), real(call, "beta", default=0.5)
    line = alpha * x + beta
    factor = np.where((line > 0) & (line < 1), alpha, 0.0)
    kind = needed(call, 1).dtype
    doubtful = near(alpha * x, -beta, kind) | near(alpha * x, 1 - beta, kind)
    return factor, np.abs(factor), doubtful


op("EluGradV2", kind=Kind.ROUNDED, inputs=("grads", "activations"))(_gradient(0, _elu_v2_slope))
op("SwishGrad", kind=Kind.APPROXIMATE, inputs=("grad", "x", "y"))(_gradient(0, _swish_grad_slope))
op("HardSwishGrad", kind=Kind.ROUNDED, inputs=("grad", "x"))(_gradient(0, _switch((-3.0, 3.0), 1, _hard_swish_slope)))
op("HardSigmoidGrad", kind=Kind.ROUNDED, inputs=("grads", "input_x"))(_gradient(0, _hard_sigmoid_slope))
