"""Numbers in few bits, and back.

Sources: the prototypes of GE's quantize_ops.h and the formulas of their kernels. Integers are right or wrong; but
kernels may make every step of them in float16, so that what lies near the middle of two is doubtful.
"""

from __future__ import annotations

import numpy as np

from precision_tool.lib.ops.base import Call, Doubles, Kind, NotComputedError, Output, Outputs, needed, op, optional
from precision_tool.lib.ops.movement import indices_of
from precision_tool.lib.ops.op_arguments import ROUNDOFF, axis_of, common_shape, flag, floats, numbers, real, text
from precision_tool.lib.ops.tracked import Tracked, maximum
from precision_tool.lib.ops.windows import has_channels_first

_ROUND = {"Round": np.rint, "Floor": np.floor, "Ceil": np.ceil, "Ceiling": np.ceil, "Trunc": np.trunc}
_ROUND |= {"Truncate": np.trunc}
_LIMITS = {"int4": (-8, 7), "int8": (-128, 127), "uint8": (0, 255), "int32": (-(2**31), 2**31 - 1)}


def _quantized(call: Call, exact: Doubles, size: Doubles) -> Outputs:
    """The nearest whole numbers, saturated; `size` is that of all that was rounded on the way."""
    dtype = call.outputs[0].dtype if call.outputs else "int8"
    mode = text(call, "round_mode", default="Round")
    if dtype not in _LIMITS:
        raise NotComputedError("data_type", name="y", dtype=dtype)
    if mode not in _ROUND:
        raise NotComputedError("no_variant", name="round_mode", value=mode)
    low, high = _LIMITS[dtype]
    off = ROUNDOFF["float16"] * size
    ends = [np.clip(_ROUND[mode](exact + shift), low, high) for shift in (-off, 0.0, off)]
    doubtful = (ends[0] != ends[2]) | ~np.isfinite(exact)
    return [Output(array=np.where(np.isfinite(exact), ends[1], 0).astype(np.int64), doubtful=doubtful)]


@op("AscendQuant", kind=Kind.EXACT, inputs=("x",))
def quantized(call: Call) -> Outputs:
    """x scale + offset, with the scale squared where it is kept as its root."""
    (x,) = numbers(call, 0)
    scale, offset = real(call, "scale"), real(call, "offset")
    product = x * scale
    size = np.abs(product)
    if flag(call, "sqrt_mode"):
        product = product * scale
        size = size * abs(scale) + np.abs(product)
    return _quantized(call, product + offset, size + np.abs(product + offset))


@op("Quantize", kind=Kind.EXACT, inputs=("x", "scales", "zero_points"))
def quantized_by_channel(call: Call) -> Outputs:
    """x / scales + zero_points, each one number or one for each place along an axis."""
    x, scales, zeros = numbers(call, 0, 1, 2)
    vectors = [np.asarray(_along(call, x, vector)) for vector in (scales, zeros)]
    product = x / vectors[0]
    return _quantized(call, product + vectors[1], np.abs(product) + np.abs(product + vectors[1]))


def _along(call: Call, x: Doubles, vector: Doubles) -> Doubles:
    if vector.size == 1:
        return vector.reshape(())
    axis = axis_of(call, int(real(call, "axis", default=1.0)), x.ndim)
    if vector.size != x.shape[axis]:
        raise NotComputedError("count_misfit", name="scale", number=vector.size, other="elements", limit=x.shape[axis])
    shape = [1] * x.ndim
    shape[axis] = vector.size
    return vector.reshape(shape)


@op("AscendAntiQuant", kind=Kind.ROUNDED, inputs=("x",))
def from_quantized(call: Call) -> Outputs:
    """(x + offset) scale, with the scale squared where it is kept as its root; in float16 if the output is."""
    (x,) = numbers(call, 0)
    scale = real(call, "scale")
    y = Tracked(x) + real(call, "offset")
    for _ in range(2 if flag(call, "sqrt_mode") else 1):
        y = y * scale
    return [_in_steps(call, y)]


@op("AscendDequant", kind=Kind.ROUNDED, inputs=("x", "deq_scale"))
def from_sums(call: Call) -> Outputs:
    """x times a scale for each channel; as uint64 its low half holds the bits of a float32."""
    x, scale_input = floats(needed(call, 0)), needed(call, 1)
    scale = floats(scale_input)
    if scale_input.dtype == "uint64":
        bits = np.asarray(scale_input.array, np.uint64) & np.uint64(0xFFFFFFFF)
        scale = bits.astype(np.uint32).view(np.float32).astype(np.float64)
    if scale.ndim == 1 and scale.size > 1 and x.ndim > 2 and has_channels_first(call, needed(call, 0)):
        scale = scale.reshape(-1, *[1] * (x.ndim - 2))
    if common_shape(call, x, scale) != x.shape:
        raise NotComputedError("shape_misfit", name="scale", shape=scale.shape, other="x", other_shape=x.shape)
    y = Tracked(x) * scale
    if flag(call, "sqrt_mode"):
        y = y * scale
    if flag(call, "relu_flag"):
        y = maximum(y, 0.0)
    return [_in_steps(call, y)]


def _in_steps(call: Call, y: Tracked) -> Output:
    """An output whose steps the kernel may round to the type of the output."""
    dtype = call.outputs[0].dtype if call.outputs else "float32"
    output = y.output()
    factor = max(1.0, ROUNDOFF.get(dtype, 0.0) / ROUNDOFF["float32"])
    return Output(array=output.array, summed=output.summed * factor)


@op("DynamicQuant", kind=Kind.EXACT, inputs=("x", "smooth_scales", "group_index"))
def quantized_by_row(call: Call) -> Outputs:
    """x, each row (along the last axis) divided by its scale: its largest absolute value by that of the type.

    Before, x is multiplied by smooth scales, of which there is one row, or one for each group of rows; the groups end
    where `group_index` says. Kernels compute in float32.
    """
    (x,) = numbers(call, 0)
    if not x.ndim:
        raise NotComputedError("shape", name="x", shape=())
    dtype = call.outputs[0].dtype if call.outputs else "int8"
    if dtype not in ("int8", "int4"):
        raise NotComputedError("data_type", name="y", dtype=dtype)
    smooth, groups = optional(call, 1), optional(call, 2)
    values = Tracked(x)
    if smooth is not None:
        factors = floats(smooth)
        if groups is not None:
            ends = indices_of(groups)
            number = np.searchsorted(ends.reshape(-1), np.arange(x.size // max(1, x.shape[-1])), side="right")
            factors = factors[np.minimum(number, len(factors) - 1)].reshape(x.shape)
        common_shape(call, x, factors)
        values = values * factors
    low, high = _LIMITS[dtype]
    at = np.abs(values.value).argmax(-1)[..., None] if x.shape[-1] else np.zeros((*x.shape[:-1], 0), np.intp)
    if not at.size:
        raise NotComputedError("empty")
    largest = Tracked(np.take_along_axis(values.value, at, -1), np.take_along_axis(values.noise, at, -1)).abs()
    scale = largest * (1 / high)
    exact = values / scale
    off = 2 * ROUNDOFF["float32"] * exact.summed  # each rounding is off by a unit at most; its rms is less than half
    ends_of = [np.clip(np.rint(exact.value + shift), low, high) for shift in (-off, 0.0, off)]
    doubtful = (ends_of[0] != ends_of[2]) | ~np.isfinite(exact.value)
    whole = np.where(np.isfinite(exact.value), ends_of[1], 0).astype(np.int64)
    scales = scale[..., 0].output()
    return [Output(array=whole, doubtful=doubtful), scales]
