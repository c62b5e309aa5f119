"""Formulas of PyTorch's functions that are no op type of GE; their types begin with "torch.".

Sources: PyTorch's documentation of torch, torch.nn.functional and torch.linalg. `torch_apis` says which function is
computed by which type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from precision_tool.lib.ops import convolution, pooling
from precision_tool.lib.ops.base import (
    Call,
    Doubles,
    Kind,
    NotComputedError,
    OpSpec,
    Output,
    Outputs,
    Places,
    check_size,
    needed,
    op,
    optional,
    registered,
)
from precision_tool.lib.ops.losses import optional_numbers, reduced_loss
from precision_tool.lib.ops.matrix import limited
from precision_tool.lib.ops.op_arguments import (
    HALF,
    ROUNDOFF,
    Mask,
    attribute,
    axes_of,
    axis_of,
    common_shape,
    flag,
    integer,
    numbers,
    real,
    required_numbers,
    same_shape,
    text,
    whole_numbers,
)
from precision_tool.lib.ops.reductions import top_k
from precision_tool.lib.ops.tracked import Tracked, held, maximum, where

# --- one formula for another's result ---------------------------------------------------------------------------------


#: Families whose formulas are used below by their type.
_NEEDED = (convolution, pooling)


def _formula(op_type: str) -> OpSpec:
    return registered()[op_type]


def _inner(call: Call, op_type: str) -> Call:
    return replace(call, op_type=op_type, outputs=())


def _of_layouts(call: Call, op_type: str) -> Call:
    """The call of the other op, whose outputs have their layouts but other shapes."""
    return replace(call, op_type=op_type, outputs=tuple(replace(spec, shape=None) for spec in call.outputs))


def _with_other_axes(op_type: str) -> None:
    """Register an op whose first output is that of another in the shape of the attribute `shape`.

    Flat places stay the same, so that it is sampled alike.
    """
    inner = _formula(op_type)

    def function(call: Call) -> Outputs:
        shape = required_numbers(call, "shape")
        first = inner.function(_of_layouts(call, op_type))[0]
        assert first is not None
        array = first.array.reshape(shape)

        def shaped(values: Doubles | float) -> Doubles | float:
            if not np.shape(values):
                return values
            result: Doubles = np.broadcast_to(values, first.array.shape).reshape(shape)
            return result

        doubtful = None if first.doubtful is None else first.doubtful.reshape(shape)
        return [replace(first, array=array, summed=shaped(first.summed), terms=shaped(first.terms), doubtful=doubtful)]

    def sampled(call: Call, places: Places) -> Output:
        assert inner.sampled is not None
        return inner.sampled(_of_layouts(call, op_type), places)

    def work(call: Call) -> float:
        assert inner.work is not None
        return inner.work(_of_layouts(call, op_type))

    op(
        f"torch.{op_type}", kind=inner.kind, inputs=inner.inputs,
        sampled=sampled if inner.sampled else None, work=work if inner.work else None,
    )(function)  # fmt: skip


for _type in ("Conv2D", "Conv2DTranspose", "MatMulV2", "MaxPool", "AvgPool"):
    _with_other_axes(_type)
for _type in ("Conv3D", "Conv3DTranspose", "MaxPool3D", "AvgPool3D"):
    _with_other_axes(_type)
for _type in ("Conv2DBackpropInputD", "Conv2DBackpropFilterD", "Conv3DBackpropInputD", "Conv3DBackpropFilterD"):
    _with_other_axes(_type)


def _each(kind: Kind) -> None:
    """Register an op that does several, of one kind, one after the other: the attribute `calls`."""

    def function(call: Call) -> Outputs:
        calls: Sequence[Call] = attribute(call, "calls") or ()
        if not isinstance(calls, (list, tuple)) or not all(isinstance(each, Call) for each in calls):
            raise NotComputedError("not_given", name="calls")
        return [output for each in calls for output in _formula(each.op_type).function(each)[:1]]

    op(f"torch.each.{kind.value}", kind=kind)(function)


for _kind in Kind:
    _each(_kind)


# --- matrices ---------------------------------------------------------------------------------------------------------


def _products_work(call: Call) -> float:
    return float(needed(call, 1).array.size * needed(call, 2).array.shape[-1])


@op("torch.addmm", kind=Kind.MATRIX, inputs=("input", "mat1", "mat2"), work=_products_work)
def add_product_of_matrices(call: Call) -> Outputs:
    """beta input + alpha mat1 mat2; with beta 0 the input does not count, not even its NaN."""
    (addend,) = numbers(call, 0)
    product = _formula("BatchMatMulV2").function(replace(_inner(call, "BatchMatMulV2"), inputs=call.inputs[1:3]))[0]
    assert product is not None
    beta, alpha = real(call, "beta", default=1.0), real(call, "alpha", default=1.0)
    common_shape(call, addend, product.array)
    y = alpha * product.array + (beta * addend if beta else 0.0)
    summed = np.hypot(np.hypot(alpha * product.summed, y), alpha * product.array if alpha != 1 else 0.0)
    return [replace(product, array=y, summed=summed, terms=abs(alpha) * product.terms, chained=None)]


# --- activations ------------------------------------------------------------------------------------------------------


@op("torch.glu", kind=Kind.COMPOSITE, inputs=("input",))
def gated(call: Call) -> Outputs:
    """a sigmoid(b), of the halves a and b of x along an axis."""
    (x,) = numbers(call, 0)
    axis = axis_of(call, integer(call, "dim", default=-1), x.ndim)
    if x.shape[axis] % 2:
        raise NotComputedError("no_multiple", name="elements", number=x.shape[axis], limit=2)
    a, b = np.split(x, 2, axis)
    return [(Tracked(b).sigmoid() * a).output()]


# --- reductions -------------------------------------------------------------------------------------------------------


def _axes(call: Call, rank: int) -> tuple[int, ...]:
    axes = whole_numbers(call, "dim")
    return axes_of(call, axes, rank) if axes else tuple(range(rank))


def _moments(call: Call) -> tuple[Tracked, Tracked]:
    (x,) = numbers(call, 0)
    axes, keep = _axes(call, x.ndim), flag(call, "keepdim")
    count = prod(x.shape[axis] for axis in axes)
    divisor = count - real(call, "correction", default=1.0)
    if divisor <= 0 or not x.size:
        raise NotComputedError("empty")
    mean = Tracked(x).total(axes) * (1 / count)
    centred = x - mean
    variance = (centred * centred).total(axes, keep=keep) * (1 / divisor)
    return variance, mean if keep else mean.reshape(*variance.value.shape)


def _register_moments() -> None:
    def root(variance: Tracked) -> Tracked:
        return variance.sqrt()

    results: dict[str, Callable[[Tracked, Tracked], list[Tracked]]] = {
        "torch.var": lambda variance, mean: [variance],
        "torch.std": lambda variance, mean: [root(variance)],
        "torch.var_mean": lambda variance, mean: [variance, mean],
        "torch.std_mean": lambda variance, mean: [root(variance), mean],
    }
    for name, chosen in results.items():

        def compute(call: Call, chosen: Callable[[Tracked, Tracked], list[Tracked]] = chosen) -> Outputs:
            return [tracked.output() for tracked in chosen(*_moments(call))]

        op(name, kind=Kind.COMPOSITE, inputs=("input",))(compute)


_register_moments()


def _extremes() -> None:
    """Values and places along an axis, and the places alone."""
    for name, inner in (("max", "ArgMaxWithValue"), ("min", "ArgMinWithValue")):

        def both(call: Call, inner: str = inner) -> Outputs:
            attrs = {"dimension": integer(call, "dim"), "keep_dims": flag(call, "keepdim")}
            places, values = _formula(inner).function(replace(_inner(call, inner), attrs=attrs))
            return [values, places]

        def place(call: Call, both: Callable[[Call], Outputs] = both) -> Outputs:
            return [both(call)[1]]

        op(f"torch.{name}", kind=Kind.EXACT, inputs=("input",))(both)
        op(f"torch.arg{name}", kind=Kind.EXACT, inputs=("input",))(place)


_extremes()


@op("torch.argsort", kind=Kind.EXACT, inputs=("input",))
def places_in_order(call: Call) -> Outputs:
    """The second output of a sort."""
    return [top_k(call)[1]]


@op("torch.normalize", kind=Kind.COMPOSITE, inputs=("input",))
def normalized(call: Call) -> Outputs:
    """x by the larger of its norm along an axis and epsilon."""
    (x,) = numbers(call, 0)
    power = real(call, "p", default=2.0)
    axes = axes_of(call, required_numbers(call, "dim"), x.ndim)
    if power == 2:
        norm = (Tracked(x) * x).total(axes).sqrt()
    elif power == 1:
        norm = Tracked(np.abs(x)).total(axes)
    else:
        raise NotComputedError("no_variant", name="p", value=str(power))
    return [(x / maximum(norm, real(call, "eps", default=1e-12))).output()]


@op("torch.cosine_similarity", kind=Kind.COMPOSITE, inputs=("x1", "x2"))
def cosine(call: Call) -> Outputs:
    """Σ a b by the product of both norms, each at least epsilon."""
    a, b = numbers(call, 0, 1)
    shape = common_shape(call, a, b)
    a, b = np.broadcast_to(a, shape), np.broadcast_to(b, shape)
    axis = axis_of(call, integer(call, "dim", default=1), len(shape))
    eps = real(call, "eps", default=1e-8)
    units = [x / maximum((Tracked(x) * x).total(axis).sqrt(), eps) for x in (a, b)]
    return [(units[0] * units[1]).total(axis, keep=False).output()]


# --- pooling ----------------------------------------------------------------------------------------------------------


def adaptive_spans(size: int, count: int) -> list[tuple[int, int]]:
    """Where each of so many adaptive windows begins and ends."""
    return [(place * size // count, -(-(place + 1) * size // count)) for place in range(count)]


def _adaptive(call: Call) -> tuple[Doubles, list[int]]:
    """x, and the number of windows along each of the last axes; None in `output_size` keeps an axis."""
    (x,) = numbers(call, 0)
    sizes = required_numbers(call, "output_size")
    if len(sizes) > x.ndim or not x.size or min(sizes, default=1) < 1:
        raise NotComputedError("shape", name="input", shape=x.shape)
    check_size([*x.shape[: x.ndim - len(sizes)], *sizes])
    return x, sizes


@op("torch.adaptive_avg_pool", kind=Kind.SUM, inputs=("input",))
def adaptive_average(call: Call) -> Outputs:
    """Means over windows that cover the last axes evenly."""
    x, sizes = _adaptive(call)
    total, squares, count = x, x * x, np.ones([1] * x.ndim)
    for axis, windows in enumerate(sizes, x.ndim - len(sizes)):
        spans = adaptive_spans(x.shape[axis], windows)
        total, squares = (
            np.stack([np.sum(np.take(array, range(*span), axis), axis) for span in spans], axis)
            for array in (total, squares)
        )
        lengths = np.array([end - begin for begin, end in spans], np.float64)
        count = count * lengths.reshape([-1 if each == axis else 1 for each in range(x.ndim)])
    spread = np.maximum(squares - total**2 / count, 0)
    summed = np.where(count > 1, np.sqrt(count * total**2 / 3 + count * spread / 6), 0.0) / count
    y = total / count
    return [Output(array=y, summed=np.hypot(summed, y), terms=np.sqrt(squares) / count)]


@op("torch.adaptive_max_pool", kind=Kind.EXACT, inputs=("input",))
def adaptive_maximum(call: Call) -> Outputs:
    """The largest of windows that cover the last axes evenly; their places have no formula."""
    x, sizes = _adaptive(call)
    for axis, windows in enumerate(sizes, x.ndim - len(sizes)):
        spans = adaptive_spans(x.shape[axis], windows)
        x = np.stack([np.max(np.take(x, range(*span), axis), axis) for span in spans], axis)
    return [Output(array=x), None]


# --- images at another size -------------------------------------------------------------------------------------------


def _positions(size: int, count: int, align: bool, scale: float | None) -> Doubles:
    """The positions in the input of the output's pixels along one axis."""
    out = np.arange(count, dtype=np.float64)
    if align:
        return out * ((size - 1) / (count - 1) if count > 1 else 0.0)
    return (out + 0.5) * (size / count if scale is None else 1 / scale) - 0.5


#: The form of cubic interpolation that PyTorch has.
_CUBIC = -0.75


def taps(mode: str, size: int, count: int, align: bool, scale: float | None) -> tuple[Places, Doubles]:
    """For each output pixel of an axis the input's pixels that it is mixed of, and their weights."""
    at = _positions(size, count, align, scale)
    if mode == "linear":
        at = np.maximum(at, 0.0)
    low = np.floor(at)
    part = at - low
    if mode == "linear":
        places = np.stack([low, low + 1], -1)
        weights = np.stack([1 - part, part], -1)
    else:
        far = np.stack([part + 1, 2 - part], -1)
        outer = ((_CUBIC * far - 5 * _CUBIC) * far + 8 * _CUBIC) * far - 4 * _CUBIC
        close = np.stack([part, 1 - part], -1)
        inner = ((_CUBIC + 2) * close - (_CUBIC + 3)) * close * close + 1
        places = np.stack([low - 1, low, low + 1, low + 2], -1)
        weights = np.concatenate([outer[:, :1], inner, outer[:, 1:]], -1)
    return np.clip(places, 0, size - 1).astype(np.intp), weights


def _mixed(x: Doubles, axis: int, places: Places, weights: Doubles) -> Doubles:
    shape = [-1 if each == axis else 1 for each in range(x.ndim)]
    total = np.zeros([len(places) if each == axis else size for each, size in enumerate(x.shape)])
    for tap in range(places.shape[1]):
        total += np.take(x, places[:, tap], axis) * weights[:, tap].reshape(shape)
    return total


@op("torch.interpolate", kind=Kind.COMPOSITE, inputs=("input",))
def interpolated(call: Call) -> Outputs:
    """The last axes at another size, linearly or cubically.

    The weights come of positions in float32 and are off by some units of the position.
    """
    (x,) = numbers(call, 0)
    sizes = required_numbers(call, "size")
    mode, align = text(call, "mode", default="linear"), flag(call, "align_corners")
    scales = attribute(call, "scale_factor") or [None] * len(sizes)
    if mode not in ("linear", "cubic") or not x.size or min(sizes, default=0) < 1 or len(scales) != len(sizes):
        raise NotComputedError("no_variant", name="mode", value=mode)
    check_size([*x.shape[: x.ndim - len(sizes)], *sizes])
    y, absolute, squares = x, np.abs(x), x * x
    longest = max(*x.shape[x.ndim - len(sizes) :], *sizes)
    for axis, (count, scale) in enumerate(zip(sizes, scales, strict=True), x.ndim - len(sizes)):
        places, weights = taps(mode, x.shape[axis], count, align, scale)
        y = _mixed(y, axis, places, weights)
        absolute = _mixed(absolute, axis, places, np.abs(weights))
        squares = _mixed(squares, axis, places, weights**2)
    return [Output(array=y, summed=absolute * (2 + longest), terms=np.sqrt(np.maximum(squares, 0)))]


# --- losses -----------------------------------------------------------------------------------------------------------

#: What PyTorch keeps the logarithms of a binary cross entropy from falling under.
_LEAST_LOG = -100.0


@op("torch.binary_cross_entropy", kind=Kind.COMPOSITE, inputs=("input", "target", "weight"))
def binary_cross_entropy(call: Call) -> Outputs:
    """−w (t log x + (1 − t) log(1 − x)), with logarithms of at least −100."""
    x, target = numbers(call, 0, 1)
    same_shape(call, x, target)
    weight = optional_numbers(call, 2, 1.0)
    common_shape(call, x, weight)
    ones = _bounded_log(Tracked(x))
    others = _bounded_log(1 - Tracked(x))
    each = -(ones * target + others * (1 - target))
    return reduced_loss(call, each if weight.size == 1 and weight.item() == 1 else each * weight)


def _bounded_log(x: Tracked) -> Tracked:
    logarithm = Tracked(np.where(x.value > 0, x.value, 1.0), x.variance).log()
    is_low: Mask = (x.value <= 0) | (logarithm.value < _LEAST_LOG)
    return where(is_low, _LEAST_LOG, logarithm)


@op("torch.huber_loss", kind=Kind.COMPOSITE, inputs=("input", "target", "weight"))
def huber(call: Call) -> Outputs:
    """d² / 2 where |d| is below delta, else delta (|d| − delta / 2)."""
    x, target = numbers(call, 0, 1)
    same_shape(call, x, target)
    delta = real(call, "delta", default=1.0)
    difference = Tracked(x) - target
    inside = np.abs(difference.value) < delta
    each = where(inside, difference * difference * 0.5, (difference.abs() - 0.5 * delta) * delta)
    return reduced_loss(call, each)


# --- elements of tensors ----------------------------------------------------------------------------------------------


@op("torch.scaled", kind=Kind.ROUNDED, inputs=("input",))
def scaled(call: Call) -> Outputs:
    """The input times a number, or divided by it, which kernels may do with its reciprocal."""
    (x,) = numbers(call, 0)
    value = real(call, "value")
    if flag(call, "divided"):
        if not value:
            raise NotComputedError("not_allowed", name="value", value="0")
        return [Output(array=x / value, summed=(held(value, reciprocal=True) * x).summed)]
    return [(held(value) * x).output()]


@op("torch.axpy", kind=Kind.ROUNDED, inputs=("input", "other"))
def added_multiple(call: Call) -> Outputs:
    """a + alpha b; in a short type kernels hold alpha in it, and alpha b as well."""
    a, b = numbers(call, 0, 1)
    alpha = real(call, "alpha")
    dtype = needed(call, 1).dtype
    short = ROUNDOFF[dtype] / ROUNDOFF["float32"] if dtype in HALF else 1.0
    product = held(alpha) * b
    return [(Tracked(product.value, product.noise + 2 * (short * product.value) ** 2) + a).output()]


@op("torch.lerp", kind=Kind.ROUNDED, inputs=("input", "end", "weight"))
def between(call: Call) -> Outputs:
    """a + w (b − a), or from the other end where w is at least a half, as PyTorch has it."""
    a, b, weight = numbers(call, 0, 1, 2)
    common_shape(call, a, b, weight)
    difference = Tracked(b) - a
    near_first = np.abs(weight) < 0.5
    first, last = difference * weight + a, b - difference * (Tracked(np.asarray(1.0)) - weight)
    return [where(near_first, first, last).output()]


@op("torch.polar", kind=Kind.APPROXIMATE, inputs=("abs", "angle"))
def polar(call: Call) -> Outputs:
    """Complex numbers of their absolute values and angles."""
    size, angle = numbers(call, 0, 1)
    common_shape(call, size, angle)
    return [Output(array=size * np.exp(1j * angle), summed=np.abs(size) * (1 + np.abs(angle)))]


@op("torch.local_response_norm", kind=Kind.COMPOSITE, inputs=("input",))
def local_response_norm(call: Call) -> Outputs:
    """x / (k + alpha · mean x² of neighbouring channels)^beta; what lies beyond the ends counts as 0."""
    (x,) = numbers(call, 0)
    size = integer(call, "size")
    if x.ndim < 3 or size < 1:
        raise NotComputedError("shape", name="input", shape=x.shape)
    padded = np.pad(x * x, [(0, 0), (size // 2, (size - 1) // 2), *[(0, 0)] * (x.ndim - 2)])
    windows = np.moveaxis(np.lib.stride_tricks.sliding_window_view(padded, size, 1), -1, 0)
    mean = Tracked(windows, windows**2).total(0)[0] * (1 / size)
    base = mean * real(call, "alpha", default=1e-4) + real(call, "k", default=1.0)
    return [(x / base.power(real(call, "beta", default=0.75))).output()]


@op("torch.pairwise_distance", kind=Kind.COMPOSITE, inputs=("x1", "x2"))
def pairwise_distance(call: Call) -> Outputs:
    """The norm along the last axis of the difference plus epsilon, for a power of 1 or 2."""
    a, b = numbers(call, 0, 1)
    common_shape(call, a, b)
    power, keep = real(call, "p", default=2.0), flag(call, "keepdim")
    difference = Tracked(a) - b + real(call, "eps", default=1e-6)
    if power == 2:
        return [(difference * difference).total(-1, keep=keep).sqrt().output()]
    if power == 1:
        return [difference.abs().total(-1, keep=keep).output()]
    raise NotComputedError("no_variant", name="p", value=str(power))


# --- recurrent layers -------------------------------------------------------------------------------------------------

#: Rows of a gate's weights for each number of the state.
_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def _affine(x: Tracked, weight: Doubles, bias: Doubles | None) -> Tracked:
    y = x.matmul(weight.T)
    return y if bias is None else y + bias


def _step(
    mode: str, x: Tracked, state: list[Tracked], weights: Sequence[Doubles], biases: Sequence[Doubles | None]
) -> list[Tracked]:
    """The state after a step: the output, and of an LSTM the cell."""
    given, before = _affine(x, weights[0], biases[0]), _affine(state[0], weights[1], biases[1])
    width = state[0].value.shape[-1]

    def gate(of: Tracked, number: int) -> Tracked:
        return of[..., number * width : (number + 1) * width]

    if mode == "gru":
        reset, update = ((gate(given, number) + gate(before, number)).sigmoid() for number in (0, 1))
        new = (gate(given, 2) + reset * gate(before, 2)).tanh()
        return [(1.0 - update) * new + update * state[0]]
    total = given + before
    if mode != "lstm":
        return [total.tanh() if mode == "rnn_tanh" else maximum(total, 0.0)]
    cell = gate(total, 1).sigmoid() * state[1] + gate(total, 0).sigmoid() * gate(total, 2).tanh()
    return [gate(total, 3).sigmoid() * cell.tanh(), cell]


def _stacked(parts: Sequence[Tracked], axis: int) -> Tracked:
    return Tracked(np.stack([part.value for part in parts], axis), np.stack([part.noise for part in parts], axis))


def _joined(parts: Sequence[Tracked]) -> Tracked:
    return Tracked(
        np.concatenate([part.value for part in parts], -1), np.concatenate([part.noise for part in parts], -1)
    )


def _layers(call: Call, mode: str) -> Outputs:
    """The output of all steps, and the last state of each layer and direction; of an LSTM its cell as well."""
    count = 2 if mode == "lstm" else 1
    arrays = numbers(call, *range(len(call.inputs)))
    x, states, rest = arrays[0], arrays[1 : 1 + count], arrays[1 + count :]
    ways, layers = 1 + flag(call, "bidirectional"), integer(call, "num_layers", default=1)
    is_biased = flag(call, "has_biases", default=True)
    per_layer = 4 if is_biased else 2
    if x.ndim != 3 or len(rest) != per_layer * ways * layers or any(state.ndim != 3 for state in states):
        raise NotComputedError("input_count", number=len(arrays))
    steps = np.swapaxes(x, 0, 1) if flag(call, "batch_first") else x
    limited(float(len(steps)) * sum(weight.size for weight in rest) * steps.shape[1], x.size)
    sequence = [Tracked(step) for step in steps]
    last: list[list[Tracked]] = []
    for layer in range(layers):
        outputs: list[list[Tracked]] = []
        for way in range(ways):
            number = layer * ways + way
            own = rest[per_layer * number : per_layer * (number + 1)]
            biases: Sequence[Doubles | None] = own[2:] if is_biased else (None, None)
            state = [Tracked(initial[number]) for initial in states]
            made = []
            for step in reversed(sequence) if way else sequence:
                state = _step(mode, step, state, own[:2], biases)
                made.append(state[0])
            last.append(state)
            outputs.append(made[::-1] if way else made)
        sequence = [_joined(parts) for parts in zip(*outputs, strict=True)]
    y = _stacked(sequence, 1 if flag(call, "batch_first") else 0)
    return [y.output(), *(_stacked([state[at] for state in last], 0).output() for at in range(count))]


for _mode in _GATES:

    def _layers_of(call: Call, mode: str = _mode) -> Outputs:
        return _layers(call, mode)

    op(f"torch.{_mode}", kind=Kind.COMPOSITE, inputs=("input", "hx"))(_layers_of)


# --- torch_npu --------------------------------------------------------------------------------------------------------


@op("torch.npu_fusion_attention", kind=Kind.COMPOSITE, inputs=("query", "key", "value", "pse"))
def npu_fusion_attention(call: Call) -> Outputs:
    """FlashAttentionScore's outputs in the order of torch_npu: the attention first, and no state of the dropout."""
    largest, total, softmax, result = _formula("FlashAttentionScore").function(_inner(call, "FlashAttentionScore"))
    return [result, largest, total, softmax, None, None, None]


@op("torch.npu_moe_gating_top_k_softmax", kind=Kind.COMPOSITE, inputs=("x",))
def npu_moe_gating_top_k_softmax(call: Call) -> Outputs:
    """The k largest of each row's softmax, and their experts; the third output counts the places by columns."""
    (x,) = numbers(call, 0)
    if x.ndim < 2 or optional(call, 1) is not None:
        raise NotComputedError("shape", name="x", shape=x.shape)
    k = integer(call, "k", default=1)
    softmax = _formula("SoftmaxV2").function(Call(op_type="SoftmaxV2", inputs=call.inputs[:1]))[0]
    assert softmax is not None
    order = top_k(Call(op_type="TopKV2", inputs=call.inputs[:1], attrs={"k": k}))
    places = order[1]
    assert places is not None
    rows = prod(x.shape[:-1])
    number = np.arange(rows)[:, None] + rows * np.arange(k)
    chosen = Output(
        array=np.take_along_axis(softmax.array, places.array, -1),
        summed=np.take_along_axis(np.asarray(softmax.summed), places.array, -1),
    )
    return [chosen, places, Output(array=number.reshape(*x.shape[:-1], k).astype(np.int32))]
