"""Pooling by maximum and by average, of two and three axes of space, and the gradients.

Sources: GE's prototypes in nn_pooling_ops.h, TensorFlow's MaxPool, AvgPool, MaxPool3D, AvgPool3D and gradients. Padding
never counts as a value of a maximum, and does not count in an average unless the op says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import numpy as np

from precision_tool.lib.ops.base import (
    Call,
    Doubles,
    Kind,
    NotComputedError,
    Output,
    Outputs,
    check_size,
    needed,
    op,
    summed_of,
)
from precision_tool.lib.ops.op_arguments import Mask, attribute, flag, integer, near, required_numbers, text
from precision_tool.lib.ops.windows import (
    BLOCK,
    Windows,
    along_space,
    as_script,
    expected,
    has_channels_first,
    image,
    image_shape,
    is_global,
    script_shape,
    windows_of,
)

_ALL = slice(None)


def _rank(call: Call) -> int:
    return 3 if "3D" in call.op_type else 2


def _windows(call: Call, size: tuple[int, ...], first: bool, whole: bool = False) -> Windows:
    """The windows of a pooling op over images of this size; `whole`: one over everything."""
    rank = len(size)
    if whole or is_global(call):
        return Windows(size, size, (1,) * rank, (1,) * rank, (0,) * rank, (1,) * rank)
    kernel = along_space(call, ("ksize", "window", "kernel_size"), rank, first)
    is_caffe = call.op_type == "Pooling"  # whose 0 means to round up
    ceil = integer(call, "ceil_mode", default=0) == 0 if is_caffe else flag(call, "ceil_mode")
    return windows_of(call, size, kernel, first, ceil=ceil)


def _blocks(batch: int, per_image: int) -> Iterator[slice]:
    at_once = max(1, BLOCK // max(1, per_image))
    for start in range(0, batch, at_once):
        yield slice(start, min(batch, start + at_once))


def _maxima(images: Doubles, windows: Windows) -> Doubles:
    result = np.full((images.shape[0], *windows.count, images.shape[-1]), -np.inf)
    for _, inside, places in windows.taps():
        target = result[(_ALL, *inside)]
        np.maximum(target, images[(_ALL, *places)], out=target)
    return result


def _sums(images: Doubles, windows: Windows) -> Doubles:
    result = np.zeros((images.shape[0], *windows.count, images.shape[-1]))
    for _, inside, places in windows.taps():
        result[(_ALL, *inside)] += images[(_ALL, *places)]
    return result


def _spread(grads: Doubles, windows: Windows) -> Doubles:
    """To each element of the image the sum of the windows that it is in."""
    result = np.zeros((grads.shape[0], *windows.size, grads.shape[-1]))
    for _, inside, places in windows.taps():
        result[(_ALL, *places)] += grads[(_ALL, *inside)]
    return result


def _prepared(call: Call, whole: bool = False) -> tuple[Doubles, bool, Windows]:
    """The image of input 0 with the channels last, whether the script has them first, and the windows."""
    x = needed(call, 0)
    first = has_channels_first(call, x)
    images = image(call, x, _rank(call))
    windows = _windows(call, images.shape[1:-1], first, whole)
    expected(call, 0, script_shape((images.shape[0], *windows.count, images.shape[-1]), first))
    check_size((images.shape[0], *windows.count, images.shape[-1]))
    return images, first, windows


# --- maximum ----------------------------------------------------------------------------------------------------------


def _max_pool(call: Call) -> Output:
    images, first, windows = _prepared(call)
    return Output(array=as_script(_maxima(images, windows), first))


@op("MaxPool", "MaxPoolExt2", "MaxPoolV3", "MaxPool3D", "MaxPool3DD", kind=Kind.EXACT, inputs=("x",))
def _max(call: Call) -> Outputs:
    return [_max_pool(call)]


@op("MaxPoolV2", kind=Kind.EXACT, inputs=("x", "ksize", "strides"))
def _max_with_inputs(call: Call) -> Outputs:
    sizes = {name: required_numbers(call, name, slot=slot) for slot, name in ((1, "ksize"), (2, "strides"))}
    return [_max_pool(replace(call, attrs={**call.attrs, **sizes}))]


@op("MaxPoolWithArgmax", "MaxPoolWithArgmaxV1", kind=Kind.EXACT, inputs=("x",))
def _max_with_argmax(call: Call) -> Outputs:
    return [_max_pool(call), None]  # how the NPU packs the places is not documented


def _max_gradient(call: Call, x_slot: int, grad_slot: int) -> Outputs:
    """The gradient goes to the first maximum of each window.

    Where another element of the window is as large, or would be after rounding, it may as well go there.
    """
    x, gradient = needed(call, x_slot), needed(call, grad_slot)
    first = has_channels_first(call, x)
    rank = _rank(call)
    images, grads = image(call, x, rank), image(call, gradient, rank)
    windows = _windows(call, images.shape[1:-1], first)
    if grads.shape != (images.shape[0], *windows.count, images.shape[-1]):
        raise NotComputedError(
            "shape_expected",
            name="dy",
            shape=grads.shape,
            other_shape=(images.shape[0], *windows.count, images.shape[-1]),
        )
    expected(call, 0, x.array.shape)
    result, sizes = np.zeros(images.shape), np.zeros(images.shape)
    doubtful: Mask = np.zeros(images.shape, np.bool_)
    for some in _blocks(images.shape[0], prod(images.shape[1:])):
        _max_gradient_of(images[some], grads[some], windows, x.dtype, (result[some], sizes[some], doubtful[some]))
    overlaps = any(extent > step for extent, step in zip(windows.reach, windows.strides, strict=True))
    return [
        Output(
            array=as_script(result, first),
            summed=as_script(sizes, first) if overlaps else 0.0,
            doubtful=as_script(doubtful, first),
        )
    ]


def _max_gradient_of(
    images: Doubles, grads: Doubles, windows: Windows, dtype: str, into: tuple[Doubles, Doubles, Mask]
) -> None:
    result, sizes, doubtful = into
    maxima = _maxima(images, windows)
    taps = [((_ALL, *inside), (_ALL, *places)) for _, inside, places in windows.taps()]
    given_away: Mask = np.zeros(maxima.shape, np.bool_)
    candidates = np.zeros(maxima.shape, np.int32)
    for inside, places in taps:
        values = images[places]
        here = (values == maxima[inside]) & ~given_away[inside]
        given_away[inside] |= here
        candidates[inside] += near(values, maxima[inside], dtype)
        part = np.where(here, grads[inside], 0.0)
        result[places] += part
        sizes[places] += np.abs(part)
    several, unknown = candidates > 1, np.isnan(maxima)
    for inside, places in taps:
        doubtful[places] |= several[inside] & near(images[places], maxima[inside], dtype) | unknown[inside]


@op("MaxPoolGrad", "MaxPoolV3Grad", "MaxPool3DGrad", kind=Kind.SUM, inputs=("x1", "x2", "grad"))
def _max_grad(call: Call) -> Outputs:
    return _max_gradient(call, 0, 2)


@op("MaxPoolGradWithArgmax", kind=Kind.SUM, inputs=("x", "grad", "argmax"))
def _max_grad_with_argmax(call: Call) -> Outputs:
    return _max_gradient(call, 0, 1)


# --- average ----------------------------------------------------------------------------------------------------------


def _counts(call: Call, windows: Windows) -> Doubles:
    """Return the divisor of each window, of shape (*count, 1)."""
    divisor = integer(call, "divisor_override", default=0)
    if divisor < 0:
        raise NotComputedError("not_allowed", name="divisor_override", value=str(divisor))
    if divisor:
        return np.full((*windows.count, 1), float(divisor))
    has_kind = text(call, "padding", "padding_mode", default="") in ("SAME", "VALID")
    excludes = attribute(call, "exclusive")
    if excludes is None:
        includes = attribute(call, "count_include_pad")
        excludes = _rank(call) == 2 if includes is None else not includes
    if not excludes and not has_kind:
        return np.full((*windows.count, 1), float(prod(windows.kernel)))
    counts: Doubles = _sums(np.ones((1, *windows.size, 1)), windows)[0]
    return counts


def _average(call: Call, whole: bool = False) -> Outputs:
    images, first, windows = _prepared(call, whole)
    if call.op_type == "Pooling" and any((*windows.low, *windows.high)):
        raise NotComputedError("undocumented", name="padding")
    counts = _counts(call, windows)
    totals = np.empty((images.shape[0], *windows.count, images.shape[-1]))
    squares = np.empty_like(totals)
    for some in _blocks(images.shape[0], prod(images.shape[1:])):
        totals[some], squares[some] = _sums(images[some], windows), _sums(images[some] ** 2, windows)
    longest = prod(windows.kernel)
    return [
        Output(
            array=as_script(totals / counts, first),
            summed=as_script(summed_of(totals, squares - totals**2 / counts, longest) / counts, first),
            terms=as_script(np.sqrt(squares) / counts, first),
        )
    ]


@op("AvgPool", "AvgPoolV2", "AvgPool3D", "AvgPool3DD", kind=Kind.SUM, inputs=("x",))
def _avg(call: Call) -> Outputs:
    return _average(call)


@op("GlobalAveragePool", "GlobalAvgPool", kind=Kind.SUM, inputs=("x",))
def _global_avg(call: Call) -> Outputs:
    return _average(call, whole=True)


@op("Pooling", kind=Kind.SUM, inputs=("x",))
def _pooling(call: Call) -> Outputs:
    """Caffe's: the mode is 0 for the maximum and 1 for the average."""
    mode = integer(call, "mode", default=0)
    if mode not in (0, 1):
        raise NotComputedError("no_variant", name="mode", value=str(mode))
    return _average(call) if mode else [_max_pool(call)]


@op(
    "AvgPoolGradD", "AvgPoolV2GradD", "AvgPool3DGradD",
    kind=Kind.SUM, inputs=("grad", "mean_matrix", "kernel_matrix"),
)  # fmt: skip
@op("AvgPoolGrad", "AvgPoolV2Grad", "AvgPool3DGrad", kind=Kind.SUM, inputs=("orig_input_shape", "grad"))
def _avg_grad(call: Call) -> Outputs:
    """GE's ops with D have matrices for their kernel behind the gradient; they follow from the attributes."""
    rank = _rank(call)
    in_slot = attribute(call, "orig_input_shape") is None
    sizes = required_numbers(call, "orig_input_shape", slot=0)
    gradient = needed(call, int(in_slot))
    first = has_channels_first(call, gradient)
    grads = image(call, gradient, rank)
    if len(sizes) != rank + 2:
        raise NotComputedError("count_misfit", name="orig_input_shape", number=len(sizes), other="axes", limit=rank + 2)
    shape = image_shape(sizes, first)
    windows = _windows(call, shape[1:-1], first)
    if grads.shape != (shape[0], *windows.count, shape[-1]):
        raise NotComputedError(
            "shape_expected", name="dy", shape=grads.shape, other_shape=(shape[0], *windows.count, shape[-1])
        )
    expected(call, 0, sizes)
    check_size(sizes)
    parts = grads / _counts(call, windows)
    squares = _spread(parts**2, windows)
    return [
        Output(
            array=as_script(_spread(parts, windows), first),
            summed=as_script(_spread(np.abs(parts), windows), first),
            terms=as_script(np.sqrt(squares), first),
        )
    ]
