"""Attention in one kernel, and rotary position embedding.

Sources: GE's prototypes FlashAttentionScore, RotaryMul and RotaryPositionEmbedding with the documents of their kernels
(ops-transformer); PyTorch's scaled_dot_product_attention.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from precision_tool.lib.ops.base import (
    Call,
    Doubles,
    Kind,
    NotComputedError,
    Output,
    Outputs,
    needed,
    op,
    optional,
)
from precision_tool.lib.ops.matrix import limited
from precision_tool.lib.ops.op_arguments import (
    ROUNDOFF,
    Mask,
    common_shape,
    flag,
    floats,
    integer,
    numbers,
    real,
    text,
)
from precision_tool.lib.ops.tracked import Tracked

# --- rotary position embedding ----------------------------------------------------------------------------------------


def turned(x: Doubles, interleaved: bool) -> Doubles:
    """(−second half, first half) of the last axis, or of neighbours (−second, first)."""
    if interleaved:
        return np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
    half = x.shape[-1] // 2
    return np.concatenate([-x[..., half:], x[..., :half]], -1)


@op("RotaryMul", "RotaryPositionEmbedding", kind=Kind.ROUNDED, inputs=("x", "r1", "r2"))
def rotary(call: Call) -> Outputs:
    """x r1 + turned(x) r2, of cosines r1 and sines r2; mode 0 turns halves, mode 1 neighbours."""
    x, cosines, sines = numbers(call, 0, 1, 2)
    mode = integer(call, "mode", default=0)
    if mode not in (0, 1):
        raise NotComputedError("no_variant", name="mode", value=str(mode))
    if not x.ndim or x.shape[-1] % 2:
        raise NotComputedError("shape", name="x", shape=x.shape)
    if common_shape(call, x, cosines, sines) != x.shape:
        raise NotComputedError("shape_misfit", name="r1", shape=cosines.shape, other="x", other_shape=x.shape)
    return [(Tracked(x) * cosines + Tracked(turned(x, mode == 1)) * sines).output()]


# --- attention --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Attention:
    """Queries, keys and values with the axes (…, heads, rows, numbers), and what is added to the scores or masked."""

    query: Doubles
    key: Doubles
    value: Doubles
    scale: float
    added: Doubles | None
    is_masked: Mask | None
    #: Unit roundoff, by that of float32, of the type in which the kernel holds the weights.
    held: float
    added_first: bool = False

    def work(self) -> float:
        return float(prod(self.query.shape) * self.key.shape[-2] * 2)

    def scores(self) -> Tracked:
        """The scaled and masked products of queries and keys."""
        products = Tracked(self.query).matmul(np.swapaxes(self.key, -1, -2))
        if self.added is not None and self.added_first:
            products = products + self.added
        if self.scale != 1:
            products = products * self.scale
        if self.added is not None and not self.added_first:
            products = products + self.added
        if self.is_masked is None:
            return products
        shape = np.broadcast_shapes(products.value.shape, self.is_masked.shape)
        masked = np.broadcast_to(self.is_masked, shape)
        return Tracked(
            np.where(masked, -np.inf, np.broadcast_to(products.value, shape)),
            np.where(masked, 0.0, np.broadcast_to(products.noise, shape)),
        )

    def powers(self) -> tuple[Tracked, Tracked, Tracked]:
        """The exponentials of the scores less the largest of each row, that largest score, and their sum."""
        limited(self.work(), prod(self.query.shape[:-1]) * max(self.key.shape[-2], self.value.shape[-1]))
        scores = self.scores()
        finite = np.where(np.isfinite(scores.value), scores.value, -np.inf)
        at = finite.argmax(-1)[..., None]
        top = np.take_along_axis(finite, at, -1)
        largest = Tracked(top, np.take_along_axis(scores.noise, at, -1))
        shifted = scores - np.where(np.isfinite(top), top, 0.0)
        is_out = np.isneginf(scores.value)
        shifted = Tracked(np.where(is_out, -np.inf, shifted.value), np.where(is_out, 0.0, shifted.noise))
        powers = Tracked(shifted.value).exp()
        noise = np.where(is_out, 0.0, shifted.noise * powers.value**2)
        own = np.where(is_out, 0.0, powers.value * (1 + np.abs(np.where(is_out, 0.0, shifted.value))))
        powers = Tracked(powers.value, noise + own**2)
        return powers, largest, powers.total(-1)

    def stored(self, x: Tracked) -> Tracked:
        """What the kernel keeps in the type of the tensors."""
        return Tracked(x.value, x.noise + (max(1.0, self.held) * x.value) ** 2)

    def computed(self) -> tuple[Tracked, Tracked, Tracked]:
        """The result, the largest score of each row, and the sum of its exponentials."""
        powers, largest, total = self.powers()
        return self.stored(powers).matmul(self.value) / total, largest, total

    def gradient(self, g: Doubles, slot: int) -> Tracked:
        """The gradient for queries, keys, values or what is added to the scores, of that of the result.

        The kernel holds the weights and the gradients of the scores in the type of the tensors.
        """
        powers, _, total = self.powers()
        weights = powers / total
        held = self.stored(weights)
        if slot == 2:
            return _matrix_turned(held).matmul(g)
        result = self.stored(held.matmul(self.value))
        to_weights = Tracked(g).matmul(np.swapaxes(self.value, -1, -2))
        to_scores = weights * (to_weights - (result * g).total(-1))
        if slot == 3:
            return to_scores
        kept = self.stored(to_scores)
        if slot == 0:
            return kept.matmul(self.key) * self.scale
        return _matrix_turned(kept).matmul(self.query) * self.scale


def _matrix_turned(x: Tracked) -> Tracked:
    return Tracked(np.swapaxes(x.value, -1, -2), np.swapaxes(x.noise, -1, -2))


def _of_groups(x: Tracked, heads: int) -> Tracked:
    """The sum over the queries' heads that share one of keys or values."""
    shape = x.value.shape
    if len(shape) < 3 or shape[-3] == heads:
        return x
    return x.reshape(*shape[:-3], heads, shape[-3] // heads, *shape[-2:]).total(-3, keep=False)


def _grouped(array: Doubles, heads: int) -> Doubles:
    """Each head of keys or values as often as queries share it."""
    own = array.shape[-3] if array.ndim > 2 else 1
    if own == heads:
        return array
    if own < 1 or heads % own:
        raise NotComputedError("no_multiple", name="heads", number=heads, limit=own)
    return np.repeat(array, heads // own, -3)


def _held(call: Call) -> float:
    return ROUNDOFF.get(needed(call, 0).dtype, 0.0) / ROUNDOFF["float32"]


def causal(rows: int, columns: int, shift: int = 0) -> Mask:
    """True for keys later than the query, whose first row sees `shift` keys more than one."""
    return np.arange(columns) > np.arange(rows)[:, None] + shift


@op(
    "torch.scaled_dot_product_attention", kind=Kind.COMPOSITE, inputs=("query", "key", "value", "attn_mask"),
    work=lambda call: 2.0 * needed(call, 0).array.size * needed(call, 1).array.shape[-2],
)  # fmt: skip
def scaled_dot_product_attention(call: Call) -> Outputs:
    """softmax(query keyᵀ scale + mask) value; a mask of bools has True for what takes part."""
    result = _of_torch(call).computed()[0]
    # A row of which everything is masked has no weights; PyTorch's kernels differ in what they make of it.
    nothing = np.isnan(result.value)
    return [Output(array=result.value, summed=result.summed, doubtful=nothing if nothing.any() else None)]


def _of_torch(call: Call) -> _Attention:
    query, key, value = numbers(call, 0, 1, 2)
    if min(query.ndim, key.ndim, value.ndim) < 2 or not query.size:
        raise NotComputedError("shape", name="query", shape=query.shape)
    if real(call, "dropout_p", default=0.0):
        raise NotComputedError("no_variant", name="dropout_p", value=str(real(call, "dropout_p")))
    if flag(call, "enable_gqa") and query.ndim > 2:
        key, value = _grouped(key, query.shape[-3]), _grouped(value, query.shape[-3])
    masked: Mask | None = causal(query.shape[-2], key.shape[-2]) if flag(call, "is_causal") else None
    mask, added = optional(call, 3), None
    if mask is not None and mask.array.dtype.kind == "b":
        masked = ~mask.array if masked is None else masked | ~mask.array
    elif mask is not None:
        added = floats(mask)
    scale = real(call, "scale", default=query.shape[-1] ** -0.5)
    return _Attention(query, key, value, scale, added, masked, _held(call))


def _reduced_to(x: Tracked, shape: tuple[int, ...]) -> Tracked:
    """Sums over the axes that broadcasting from a shape made."""
    extra = x.value.ndim - len(shape)
    axes = (*range(extra), *(extra + at for at, size in enumerate(shape) if size == 1 != x.value.shape[extra + at]))
    return (x.total(axes) if axes else x).reshape(*shape)


@op(
    "torch.scaled_dot_product_attention_grad", kind=Kind.COMPOSITE,
    inputs=("query", "key", "value", "attn_mask", "gradient"),
    work=lambda call: 5.0 * needed(call, 0).array.size * needed(call, 1).array.shape[-2],
)  # fmt: skip
def scaled_dot_product_attention_gradient(call: Call) -> Outputs:
    """The gradient for one of the inputs, whose slot the attribute `slot` is, of that of the result."""
    attention, slot = _of_torch(call), integer(call, "slot")
    (g,) = numbers(call, 4)
    gradient = attention.gradient(g, slot)
    shape = needed(call, slot).array.shape
    if len(shape) > 2 and slot in (1, 2):
        gradient = _of_groups(gradient, shape[-3])
    gradient = _reduced_to(gradient, shape)
    nothing = np.isnan(gradient.value)
    return [Output(array=gradient.value, summed=gradient.summed, doubtful=nothing if nothing.any() else None)]


#: How each layout is brought to (batch, heads, rows, numbers), with the heads in an axis of their own or not.
_LAYOUTS = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3), "BSH": (0, 2, 1, 3), "SBH": (1, 2, 0, 3)}
#: What stands for no limit in pre_tockens and next_tockens.
_NO_LIMIT = 2147483647


def _by_head(call: Call, slot: int, layout: str, heads: int) -> Doubles:
    (x,) = numbers(call, slot)
    if layout in ("BSH", "SBH"):
        if x.ndim != 3 or heads < 1 or x.shape[-1] % heads:
            raise NotComputedError("shape", name=f"input {slot}", shape=x.shape)
        x = x.reshape(*x.shape[:2], heads, -1)
    if x.ndim != 4:
        raise NotComputedError("axis_count", name=f"input {slot}", number=x.ndim, limit=4)
    return np.transpose(x, _LAYOUTS[layout])


def _from_heads(array: Doubles, layout: str) -> Doubles:
    y = np.transpose(array, np.argsort(_LAYOUTS[layout]))
    return y.reshape(*y.shape[:2], -1) if layout in ("BSH", "SBH") else y


def _flash_mask(call: Call, rows: int, columns: int) -> Mask | None:
    """True for what is masked; by the sparse modes whose mask is documented."""
    mask = optional(call, 6)
    mode = integer(call, "sparse_mode", default=0)
    if mask is None:  # then sparse mode and tokens have no effect
        return None
    if mode in (0, 1):
        masked: Mask = mask.array != 0
        return masked.reshape((1,) * max(0, 4 - masked.ndim) + masked.shape)
    if mode == 2:
        return causal(rows, columns)
    if mode == 3:
        return causal(rows, columns, columns - rows)
    if mode == 4:
        before, after = (integer(call, name, default=_NO_LIMIT) for name in ("pre_tockens", "next_tockens"))
        distance = np.arange(columns) - np.arange(rows)[:, None] - (columns - rows)
        return np.asarray((distance > after) | (distance < -before))
    raise NotComputedError("no_variant", name="sparse_mode", value=str(mode))


@op(
    "FlashAttentionScore", kind=Kind.COMPOSITE,
    inputs=(
        "query", "key", "value", "real_shift", "drop_mask", "padding_mask", "atten_mask", "prefix", "actual_seq_qlen",
        "actual_seq_kvlen", "q_start_idx", "kv_start_idx",
    ),
    work=lambda call: 2.0 * needed(call, 0).array.size * needed(call, 1).array.shape[-2],
)  # fmt: skip
def flash_attention(call: Call) -> Outputs:
    """The largest score and the sum of exponentials of each row, eight times, no softmax, and the attention."""
    attention, layout = _of_flash(call)
    result, largest, total = attention.computed()
    repeated = [
        Output(array=np.repeat(row.value, 8, -1), summed=np.repeat(row.summed, 8, -1)) for row in (largest, total)
    ]
    output = Output(array=_from_heads(result.value, layout), summed=_from_heads(result.summed, layout))
    return [*repeated, None, output]


def _of_flash(call: Call) -> tuple[_Attention, str]:
    """The attention, and the layout of its tensors."""
    layout = text(call, "input_layout", default="BSH")
    if layout not in _LAYOUTS:
        raise NotComputedError("no_variant", name="input_layout", value=layout)
    if real(call, "keep_prob", default=1.0) != 1:
        raise NotComputedError("no_variant", name="keep_prob", value=str(real(call, "keep_prob")))
    if any(optional(call, slot) is not None for slot in (4, 5, 7, 8, 9, 10, 11)):
        raise NotComputedError("input_count", number=sum(tensor is not None for tensor in call.inputs))
    heads = integer(call, "head_num")
    query = _by_head(call, 0, layout, heads)
    if not query.size or not query.shape[-1]:
        raise NotComputedError("shape", name="query", shape=query.shape)
    own = heads if layout in ("BNSD", "BSND") else max(1, needed(call, 1).array.shape[-1] // query.shape[-1])
    key, value = (_grouped(_by_head(call, slot, layout, own), heads) for slot in (1, 2))
    shift = optional(call, 3)
    attention = _Attention(
        query, key, value, real(call, "scale_value", default=1.0),
        None if shift is None else floats(shift),
        _flash_mask(call, query.shape[-2], key.shape[-2]), _held(call),
        added_first=integer(call, "pse_type", default=1) == 1,
    )  # fmt: skip
    return attention, layout


@op(
    "FlashAttentionScoreGrad", kind=Kind.COMPOSITE,
    inputs=(
        "query", "key", "value", "dy", "pse_shift", "drop_mask", "padding_mask", "atten_mask", "softmax_max",
        "softmax_sum", "softmax_in", "attention_in", "prefix", "actual_seq_qlen", "actual_seq_kvlen", "q_start_idx",
        "kv_start_idx",
    ),
    work=lambda call: 5.0 * needed(call, 0).array.size * needed(call, 1).array.shape[-2],
)  # fmt: skip
def flash_attention_gradient(call: Call) -> Outputs:
    """The gradients for queries, keys, values and what was added to the scores, of that of the result.

    They are computed of the forward's inputs; its largest scores, sums and result, which the op is given, are not used.
    """
    of_forward = (*call.inputs[:3], *call.inputs[4:8], *call.inputs[12:])
    attention, layout = _of_flash(replace(call, inputs=of_forward))
    heads = attention.query.shape[-3]
    g = _by_head(call, 3, layout, heads)
    outputs: list[Output | None] = []
    for slot in range(3):
        shape = needed(call, slot).array.shape
        own = shape[_LAYOUTS[layout][1]] if len(shape) == 4 else shape[-1] // attention.query.shape[-1]
        gradient = _of_groups(attention.gradient(g, slot), own)
        array, summed = (_from_heads(part, layout) for part in (gradient.value, gradient.summed))
        outputs.append(Output(array=array, summed=summed))
    shift = optional(call, 4)
    added = None if shift is None else _reduced_to(attention.gradient(g, 3), shift.array.shape).output()
    return [*outputs, added]
