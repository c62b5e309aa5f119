"""Numbers in few bits, and back.

Sources: the prototypes of GE's quantize_ops.h and the formulas of their kernels. Integers are right or wrong; but
kernels may make every step of them in float16, so that what lies near the middle of two is doubtful.
"""

from __future__ import annotations

import numpy as np

from precision_tool.lib.ops.base import Call, Doubles, Kind, NotComputedError, Output, Outputs, needed, op
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
