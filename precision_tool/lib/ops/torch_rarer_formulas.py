"""Formulas of PyTorch's rarer functions and of torch_npu's for mixtures of experts; their types begin with "torch.".

Sources: PyTorch's documentation of torch and torch.nn.functional, torch_npu's of npu_moe_* and the fused functions.
`torch_rarer_apis` says which function is computed by which type.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, prod

import numpy as np

from precision_tool.lib.ops.base import (
    Call,
    Doubles,
    Input,
    Kind,
    NotComputedError,
    Output,
    Outputs,
    check_size,
    needed,
    op,
    optional,
    registered,
)
from precision_tool.lib.ops.losses import reduced_loss
from precision_tool.lib.ops.matrix import limited
from precision_tool.lib.ops.movement import indices_of
from precision_tool.lib.ops.op_arguments import (
    ROUNDOFF,
    Mask,
    axis_of,
    common_shape,
    flag,
    floats,
    integer,
    numbers,
    real,
    required_numbers,
    text,
)
from precision_tool.lib.ops.tracked import Tracked, maximum, where

# --- elements ---------------------------------------------------------------------------------------------------------


def _hypot(a: Tracked, b: Tracked) -> Tracked:
    return (a * a + b * b).sqrt()


def _logaddexp(a: Tracked, b: Tracked) -> Tracked:
    """The larger and log(1 + exp(−distance)); of two equal infinities that infinity."""
    larger = maximum(a, b)
    distance = (a - b).abs()
    is_same = a.value == b.value
    distance = Tracked(np.where(is_same, 0.0, distance.value), np.where(is_same, 0.0, distance.noise))
    power = (-distance).exp()
    added = np.log1p(power.value)
    y = larger.value + added
    return Tracked(y, larger.noise + power.noise + added**2 + np.where(np.isfinite(y), y, 0.0) ** 2)


def _logit(x: Tracked, low: Tracked) -> Tracked:
    inside = Tracked(np.where(np.isnan(low.value), x.value, np.clip(x.value, low.value, 1 - low.value)))
    return (inside / (1.0 - inside)).log()


def _elements() -> None:
    """Register functions of the elements of inputs that broadcast."""
    formulas: dict[str, Callable[..., Tracked]] = {
        "hypot": _hypot,
        "logaddexp": _logaddexp,
        "logit": _logit,
        "tanhshrink": lambda x: x - x.tanh(),
    }
    for name, formula in formulas.items():

        def function(call: Call, formula: Callable[..., Tracked] = formula) -> Outputs:
            arrays = numbers(call, *range(len(call.inputs)))
            shape = common_shape(call, *arrays)
            return [formula(*(Tracked(np.broadcast_to(array, shape)) for array in arrays)).output()]

        op(f"torch.{name}", kind=Kind.COMPOSITE, inputs=("input", "other"))(function)


_elements()


@op("torch.steps", kind=Kind.ROUNDED)
def steps(call: Call) -> Outputs:
    """So many numbers from `start` on, each a step after the last; kernels may come to the later ones from the end."""
    start, step, count = real(call, "start"), real(call, "step"), integer(call, "count")
    check_size([count])
    y = start + np.arange(count) * step
    return [Output(array=y, summed=np.abs(np.arange(count) * step) + abs(start) + abs(start + count * step))]


# --- reductions -------------------------------------------------------------------------------------------------------


@op("torch.kth", kind=Kind.EXACT, inputs=("input",))
def kth(call: Call) -> Outputs:
    """The k-th smallest along an axis; which of equal ones it is has no formula."""
    (x,) = numbers(call, 0)
    axis = axis_of(call, integer(call, "dim"), x.ndim)
    if np.isnan(x).any():
        raise NotComputedError("no_variant", name="input", value="NaN")
    y = np.take(np.sort(x, axis), [integer(call, "k") - 1], axis)
    return [Output(array=y if flag(call, "keepdim") else y.squeeze(axis)), None]


@op("torch.running", kind=Kind.EXACT, inputs=("input",))
def running(call: Call) -> Outputs:
    """The largest, or smallest, so far along an axis; which of equal ones it is has no formula."""
    (x,) = numbers(call, 0)
    axis = axis_of(call, integer(call, "dim"), x.ndim)
    return [Output(array=(np.maximum if flag(call, "largest") else np.minimum).accumulate(x, axis)), None]


@op("torch.cross", kind=Kind.COMPOSITE, inputs=("input", "other"))
def cross(call: Call) -> Outputs:
    """The vector product along an axis of three."""
    a, b = numbers(call, 0, 1)
    shape = common_shape(call, a, b)
    axis = axis_of(call, integer(call, "dim", default=-1), len(shape))
    if shape[axis] != 3:
        raise NotComputedError("shape", name="input", shape=shape)
    a, b = (np.broadcast_to(array, shape) for array in (a, b))

    def turned(x: Doubles, by: int) -> Tracked:
        return Tracked(np.roll(x, -by, axis))

    return [(turned(a, 1) * turned(b, 2) - turned(a, 2) * turned(b, 1)).output()]


@op("torch.vecdot", kind=Kind.COMPOSITE, inputs=("x", "y"))
def vecdot(call: Call) -> Outputs:
    """Σ a b along an axis."""
    a, b = numbers(call, 0, 1)
    shape = common_shape(call, a, b)
    a, b = (np.broadcast_to(array, shape) for array in (a, b))
    axis = axis_of(call, integer(call, "dim", default=-1), len(shape))
    return [(Tracked(a) * b).total(axis, keep=False).output()]


@op("torch.cdist", kind=Kind.COMPOSITE, inputs=("x1", "x2"))
def distances(call: Call) -> Outputs:
    """Distances of the rows of two matrices; kernels may take |a|² + |b|² − 2 a·b."""
    a, b = numbers(call, 0, 1)
    if min(a.ndim, b.ndim) < 2 or a.shape[-1] != b.shape[-1] or real(call, "p", default=2.0) != 2:
        raise NotComputedError("shape", name="x1", shape=a.shape)
    limited(2.0 * a.size * b.shape[-2], prod(a.shape[:-1]) * b.shape[-2] * a.shape[-1])
    difference = Tracked(a[..., :, None, :]) - b[..., None, :, :]
    squares = (difference * difference).total(-1, keep=False)
    lengths = np.sum(a * a, -1)[..., :, None] + np.sum(b * b, -1)[..., None, :]
    return [Tracked(squares.value, squares.noise + lengths**2).sqrt().output()]


# --- losses -----------------------------------------------------------------------------------------------------------


def _losses() -> None:
    """Register losses: functions of inputs that broadcast, then reduced."""

    def margin_ranking(call: Call, a: Doubles, b: Doubles, y: Doubles) -> Tracked:
        return maximum((Tracked(a) - b) * -y + real(call, "margin", default=0.0), 0.0)

    def soft_margin(call: Call, x: Doubles, y: Doubles) -> Tracked:
        return _logaddexp(Tracked(-x * y), Tracked(np.zeros_like(x)))

    def hinge_embedding(call: Call, x: Doubles, y: Doubles) -> Tracked:
        return where(y == 1, x, maximum(real(call, "margin", default=1.0) - Tracked(x), 0.0))

    def poisson(call: Call, x: Doubles, y: Doubles) -> Tracked:
        if flag(call, "log_input"):
            return Tracked(x).exp() - Tracked(y) * x
        return Tracked(x) - (Tracked(x) + real(call, "eps", default=1e-8)).log() * y

    def gaussian(call: Call, x: Doubles, y: Doubles, variance: Doubles) -> Tracked:
        held = Tracked(np.maximum(variance, real(call, "eps", default=1e-6)))
        difference = Tracked(x) - y
        return (held.log() + difference * difference / held) * 0.5

    formulas: dict[str, Callable[..., Tracked]] = {
        "margin_ranking_loss": margin_ranking,
        "soft_margin_loss": soft_margin,
        "hinge_embedding_loss": hinge_embedding,
        "poisson_nll_loss": poisson,
        "gaussian_nll_loss": gaussian,
    }
    for name, formula in formulas.items():

        def function(call: Call, formula: Callable[..., Tracked] = formula) -> Outputs:
            arrays = numbers(call, *range(len(call.inputs)))
            shape = common_shape(call, *arrays)
            return reduced_loss(call, formula(call, *(np.broadcast_to(array, shape) for array in arrays)))

        op(f"torch.{name}", kind=Kind.COMPOSITE, inputs=("input", "target"))(function)


_losses()


# --- images -----------------------------------------------------------------------------------------------------------


@op("torch.grid_sample", kind=Kind.COMPOSITE, inputs=("input", "grid"))
def sampled_at(call: Call) -> Outputs:
    """Images at the places of a grid, whose coordinates run from −1 to 1.

    Where a place lies between two pixels hangs on its rounding: an error of the place moves the result by as much as
    the neighbours differ. Kernels compute places in the type of the tensors, be it a short one; where rounding may
    take a place past a pixel other neighbours are taken.
    """
    x, grid = numbers(call, 0, 1)
    unit = max(ROUNDOFF.get(needed(call, slot).dtype, 0.0) for slot in (0, 1)) or ROUNDOFF["float32"]
    mode, padding = text(call, "mode", default="bilinear"), text(call, "padding_mode", default="zeros")
    align = flag(call, "align_corners")
    if x.ndim != 4 or grid.ndim != 4 or mode != "bilinear" or padding not in ("zeros", "border"):
        raise NotComputedError("no_variant", name="mode", value=f"{mode} {padding}")
    sizes = x.shape[3], x.shape[2]
    check_size([*x.shape[:2], *grid.shape[1:3]])
    places, error, unsure = [], np.full(grid.shape[:3], 2.0), np.zeros(grid.shape[:3], np.bool_)
    for at, size in enumerate(sizes):
        place = (grid[..., at] + 1) / 2 * (size - 1) if align else ((grid[..., at] + 1) * size - 1) / 2
        off = np.abs(grid[..., at] + 1) * size + np.abs(place)  # the sum, the product and the difference, in units
        error += off
        unsure |= np.abs(place - np.rint(place)) <= off * unit
        places.append(np.clip(place, 0, size - 1) if padding == "border" else place)
    total = np.zeros((*x.shape[:2], *grid.shape[1:3]))
    absolute, squares = np.zeros_like(total), np.zeros_like(total)
    batch = np.arange(len(x))[:, None, None]
    for right in (0, 1):
        for low in (0, 1):
            column, row = np.floor(places[0]) + right, np.floor(places[1]) + low
            weight = (1 - np.abs(places[0] - column)) * (1 - np.abs(places[1] - row))
            inside = (column >= 0) & (column < sizes[0]) & (row >= 0) & (row < sizes[1])
            row, column = (
                np.clip(place, 0, size - 1).astype(np.intp) for place, size in ((row, sizes[1]), (column, sizes[0]))
            )
            values = np.where(inside[:, None], x[batch, :, row, column].transpose(0, 3, 1, 2), 0.0)
            total += values * weight[:, None]
            absolute += np.abs(values)
            squares += (values * weight[:, None]) ** 2
    summed = absolute * error[:, None] * max(1.0, unit / ROUNDOFF["float32"])
    doubtful = np.broadcast_to(unsure[:, None], total.shape)
    return [Output(array=total, summed=summed, terms=np.sqrt(squares), doubtful=doubtful)]


@op("torch.fold", kind=Kind.SUM, inputs=("input",))
def folded(call: Call) -> Outputs:
    """Windows as columns, added up where they overlap in the image."""
    (x,) = numbers(call, 0)
    size, kernel, steps_, pads, strides = (
        [int(each) for each in required_numbers(call, name)]
        for name in ("output_size", "kernel_size", "dilation", "padding", "stride")
    )
    counts = [(size[at] + 2 * pads[at] - steps_[at] * (kernel[at] - 1) - 1) // strides[at] + 1 for at in (0, 1)]
    channels = x.shape[1] // max(1, prod(kernel))
    whole = [size[at] + 2 * pads[at] for at in (0, 1)]
    check_size([x.shape[0], channels, *whole])
    windows = x.reshape(x.shape[0], channels, *kernel, *counts)
    total = np.zeros((x.shape[0], channels, *whole))
    absolute, squares = np.zeros_like(total), np.zeros_like(total)
    for row in range(kernel[0]):
        for column in range(kernel[1]):
            place = (
                slice(None), slice(None),
                slice(row * steps_[0], row * steps_[0] + strides[0] * counts[0], strides[0]),
                slice(column * steps_[1], column * steps_[1] + strides[1] * counts[1], strides[1]),
            )  # fmt: skip
            total[place] += windows[:, :, row, column]
            absolute[place] += np.abs(windows[:, :, row, column])
            squares[place] += windows[:, :, row, column] ** 2
    inside = (slice(None), slice(None), slice(pads[0], pads[0] + size[0]), slice(pads[1], pads[1] + size[1]))
    count = max(1, prod(kernel))
    summed = np.where(absolute > np.abs(total), np.sqrt(count) * absolute, 0.0)
    return [Output(array=total[inside], summed=summed[inside], terms=np.sqrt(squares[inside]))]


# --- embedding bags ---------------------------------------------------------------------------------------------------


@op("torch.embedding_bag", kind=Kind.SUM, inputs=("input", "weight", "offsets", "per_sample_weights"))
def bags(call: Call) -> Outputs:
    """Rows of a table, added up, averaged or their largest for each bag of indices."""
    index, table = indices_of(needed(call, 0)), floats(needed(call, 1))
    mode = text(call, "mode", default="mean")
    scales = optional(call, 3)
    factors = np.ones(index.shape) if scales is None else floats(scales)
    if index.ndim == 2:
        ends = np.arange(1, len(index) + 1) * index.shape[1]
        starts = ends - index.shape[1]
    else:
        starts = indices_of(needed(call, 2))
        ends = np.append(starts[1:], index.size)
    rows = table[index.reshape(-1)] * factors.reshape(-1, 1)
    outputs, summed = [], []
    for start, end in zip(starts, ends, strict=True):
        part = rows[start:end]
        count = max(1, len(part))
        if mode == "max":
            outputs.append(part.max(0) if len(part) else np.zeros(table.shape[1]))
            summed.append(np.zeros(table.shape[1]))
            continue
        total = part.sum(0) / (count if mode == "mean" else 1)
        outputs.append(total)
        summed.append(np.sqrt(count) * np.abs(part).sum(0) / (count if mode == "mean" else 1))
    return [Output(array=np.stack(outputs), summed=np.stack(summed), terms=np.stack(summed))]


# --- cells ------------------------------------------------------------------------------------------------------------


def _gates(call: Call, x: Doubles, weights: Doubles, bias: Doubles | None) -> Tracked:
    product = Tracked(x).matmul(weights.T)
    return product if bias is None else product + bias


def _cell_inputs(call: Call, states: int) -> tuple[list[Doubles], Tracked, Tracked]:
    """The states, and the products of the input and of the first state with their weights."""
    arrays = numbers(call, *range(states + 3))
    biases = [optional(call, slot) for slot in (states + 3, states + 4)]
    first, second = (None if bias is None else floats(bias) for bias in biases)
    x, *held, w_ih, w_hh = arrays
    return held, _gates(call, x, w_ih, first), _gates(call, held[0], w_hh, second)


@op("torch.lstm_cell", kind=Kind.COMPOSITE, inputs=("input", "h", "c", "w_ih", "w_hh", "b_ih", "b_hh"))
def lstm_cell(call: Call) -> Outputs:
    """One step of an LSTM: the state that is put out, and the one that is kept."""
    (_, c), of_x, of_h = _cell_inputs(call, 2)
    width = c.shape[-1]
    i, f, g, o = ((of_x + of_h)[..., at * width : (at + 1) * width] for at in range(4))
    kept = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return [(o.sigmoid() * kept.tanh()).output(), kept.output()]


@op("torch.gru_cell", kind=Kind.COMPOSITE, inputs=("input", "h", "w_ih", "w_hh", "b_ih", "b_hh"))
def gru_cell(call: Call) -> Outputs:
    """One step of a GRU."""
    (h,), of_x, of_h = _cell_inputs(call, 1)
    width = h.shape[-1]
    parts = [slice(at * width, (at + 1) * width) for at in range(3)]
    r, z = ((of_x[..., part] + of_h[..., part]).sigmoid() for part in parts[:2])
    n = (of_x[..., parts[2]] + r * of_h[..., parts[2]]).tanh()
    return [(n + z * (Tracked(h) - n)).output()]


# --- torch_npu --------------------------------------------------------------------------------------------------------


def _function(op_type: str) -> Callable[[Call], Outputs]:
    return registered()[op_type].function


@op("torch.npu_group_norm_silu", kind=Kind.COMPOSITE, inputs=("input", "weight", "bias"))
def group_norm_silu(call: Call) -> Outputs:
    """x sigmoid(x) of a group norm, and its means and inverse roots for each group of a sample."""
    x = floats(needed(call, 0))
    groups, eps = integer(call, "group"), real(call, "eps", default=1e-5)
    if x.ndim < 2 or groups < 1 or x.shape[1] % groups:
        raise NotComputedError("no_multiple", name="channels", number=x.shape[1] if x.ndim > 1 else 0, limit=groups)
    rows = Tracked(x.reshape(x.shape[0], groups, -1))
    count = max(1, rows.value.shape[-1])
    mean = rows.total(-1) * (1 / count)
    centred = rows - mean
    inverse = 1.0 / ((centred * centred).total(-1) * (1 / count) + eps).sqrt()
    y = (centred * inverse).reshape(*x.shape)
    shape = [1, -1, *[1] * (x.ndim - 2)]
    for slot, is_added in ((1, False), (2, True)):
        parameter = optional(call, slot)
        if parameter is not None:
            values = floats(parameter).reshape(shape)
            y = y + values if is_added else y * values
    statistics = [each.reshape(x.shape[0], groups).output() for each in (mean, inverse)]
    return [(y * y.sigmoid()).output(), *statistics]


@op("torch.npu_geglu", kind=Kind.COMPOSITE, inputs=("input",))
def gated_gelu(call: Call) -> Outputs:
    """One half of x along an axis times the gelu of the other, and that; `first` tells that it is of the first."""
    x = floats(needed(call, 0))
    axis = axis_of(call, integer(call, "dim", default=-1), x.ndim)
    if x.shape[axis] % 2:
        raise NotComputedError("no_multiple", name="elements", number=x.shape[axis], limit=2)
    first, second = np.split(x, 2, axis)
    gated, other = (first, second) if flag(call, "first") else (second, first)
    attrs = {"approximate": text(call, "approximate", default="none")}
    (gelu,) = _function("GeluV2")(Call(op_type="GeluV2", inputs=(Input(array=gated),), attrs=attrs))
    assert gelu is not None
    tracked = Tracked(np.asarray(gelu.array), np.asarray(gelu.summed, np.float64) ** 2)
    return [(tracked * other).output(), gelu]


@op("torch.npu_moe_gating_top_k", kind=Kind.COMPOSITE, inputs=("x", "bias"))
def npu_moe_gating_top_k(call: Call) -> Outputs:
    """The k experts of each row with the largest scores, of the best groups; their scores, and all of them."""
    x, bias = floats(needed(call, 0)), optional(call, 1)
    k, groups, best_groups = (
        integer(call, "k"),
        integer(call, "group_count", default=1),
        integer(call, "k_group", default=1),
    )
    if x.ndim != 2 or groups < 1 or x.shape[1] % groups:
        raise NotComputedError("shape", name="x", shape=x.shape)
    is_sigmoid = integer(call, "norm_type", default=0) == 1
    if is_sigmoid:
        scores = Tracked(x).sigmoid()
    else:
        powers = (Tracked(x) - x.max(-1, keepdims=True)).exp()
        scores = powers / powers.total(-1)
    ranked = scores.value if bias is None else scores.value + floats(bias)
    if groups > 1 and best_groups < groups:
        parts = np.sort(ranked.reshape(len(x), groups, -1), -1)
        of_group = parts[..., -2:].sum(-1) if integer(call, "group_select_mode", default=0) else parts[..., -1]
        chosen_groups = np.argsort(-of_group, -1, kind="stable")[:, :best_groups]
        is_in = np.zeros((len(x), groups), np.bool_)
        np.put_along_axis(is_in, chosen_groups, True, -1)
        ranked = np.where(np.repeat(is_in, x.shape[1] // groups, -1), ranked, -inf)
    experts = np.argsort(-ranked, -1, kind="stable")[:, :k]
    rows = np.arange(len(x))[:, None]
    y = scores[rows, experts]
    if is_sigmoid or integer(call, "renorm", default=0):
        y = y / (y.total(-1) + real(call, "eps", default=1e-20))
    y = y * real(call, "routed_scaling_factor", default=1.0)
    doubtful = _close_ranks(ranked, k)
    chosen = Output(array=np.asarray(y.value), summed=y.summed, doubtful=np.broadcast_to(doubtful, experts.shape))
    places = Output(array=experts.astype(np.int32), doubtful=np.broadcast_to(doubtful, experts.shape))
    return [chosen, places, scores.output()]


def _close_ranks(ranked: Doubles, k: int) -> Mask:
    """Rows whose order rounding decides, as far as the first k and the one behind them go."""
    order = -np.sort(-ranked, -1)[:, : k + 1]
    gaps = order[:, :-1] - order[:, 1:]
    close: Mask = np.asarray((gaps <= 16 * 2.0**-24 * np.abs(order[:, :-1])).any(-1, keepdims=True))
    return close


@op(
    "torch.npu_moe_finalize_routing",
    kind=Kind.SUM,
    inputs=("rows", "skip1", "skip2", "bias", "scales", "places", "experts"),
)
def npu_moe_finalize_routing(call: Call) -> Outputs:
    """What the experts made of each token, times its scale, added up, with the residuals."""
    rows = floats(needed(call, 0))
    skips = [floats(skip) for skip in (optional(call, 1), optional(call, 2)) if skip is not None]
    bias, scales = optional(call, 3), optional(call, 4)
    places = indices_of(needed(call, 5)).reshape(-1)
    count = len(skips[0]) if skips else len(floats(scales)) if scales is not None else len(places)
    k = len(places) // max(1, count)
    order = (
        places.reshape(k, count) if integer(call, "drop_pad_mode", default=0) in (0, 1) else places.reshape(count, k).T
    )
    parts = [Tracked(skip) for skip in skips]
    for at in range(k):
        part = Tracked(rows.reshape(-1, rows.shape[-1])[order[at]])
        if bias is not None:
            part = part + floats(bias)[indices_of(needed(call, 6))[:, at]]
        if scales is not None:
            part = part * floats(scales)[:, at : at + 1]
        parts.append(part)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return [total.output()]


@op("torch.npu_moe_token_unpermute", kind=Kind.SUM, inputs=("tokens", "places", "probs"))
def npu_moe_token_unpermute(call: Call) -> Outputs:
    """The rows of each token, from where they were moved to, times their probabilities, added up."""
    tokens, places = floats(needed(call, 0)), indices_of(needed(call, 1)).reshape(-1)
    probs = optional(call, 2)
    k = 1 if probs is None else floats(probs).shape[-1]
    rows = Tracked(tokens[places].reshape(len(places) // k, k, tokens.shape[-1]))
    if probs is not None:
        rows = rows * floats(probs)[..., None]
    return [rows.total(1, keep=False).output()]
