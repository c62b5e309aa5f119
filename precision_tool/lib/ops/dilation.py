"""Grey-scale dilation and its gradients.

Sources: GE's prototypes of Dilation and Dilation2D in nn_pooling_ops.h and image_ops.h, TensorFlow's Dilation2D,
Dilation2DBackpropInput and Dilation2DBackpropFilter. Padding never counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from precision_tool.lib.ops.arguments import Mask, floats, near, required_numbers
from precision_tool.lib.ops.base import Call, Doubles, Kind, NotComputedError, Output, Outputs, check_size, needed, op
from precision_tool.lib.ops.windows import (
    Windows,
    as_script,
    expected,
    has_channels_first,
    image,
    script_shape,
    windows_of,
)

_ALL = slice(None)


@dataclass(frozen=True, slots=True)
class _Dilation:
    """Images with the channels last, filters (rows, columns, channels), and the windows that are looked at."""

    images: Doubles
    filters: Doubles
    windows: Windows
    first: bool
    maxima: Doubles


def _dilation(call: Call) -> _Dilation:
    x, given = needed(call, 0), needed(call, 1)
    first = has_channels_first(call, x)
    images, filters = image(call, x), floats(given)
    if filters.ndim == 3 and first and given.layout != "ND":
        filters = np.moveaxis(filters, 0, -1)
    if filters.ndim != 3 or filters.shape[-1] != images.shape[-1]:
        raise NotComputedError(
            "shape_misfit", name="filter", shape=given.array.shape, other="x", other_shape=x.array.shape
        )
    rates = required_numbers(call, "rates", "dilations")
    spaced = replace(call, attrs={**call.attrs, "dilations": rates})
    windows = windows_of(spaced, images.shape[1:-1], filters.shape[:2], first)
    check_size((images.shape[0], *windows.count, images.shape[-1]))
    maxima = np.full((images.shape[0], *windows.count, images.shape[-1]), -np.inf)
    for tap, inside, places in windows.taps():
        target = maxima[(_ALL, *inside)]
        np.maximum(target, images[(_ALL, *places)] + filters[tap], out=target)
    return _Dilation(images, filters, windows, first, maxima)


@op("Dilation2D", "Dilation", kind=Kind.ROUNDED, inputs=("x", "filter"))
def _forwards(call: Call) -> Outputs:
    """The largest sum of an element of the window and of the filter."""
    found = _dilation(call)
    size = np.zeros(found.maxima.shape)
    for tap, inside, places in found.windows.taps():
        target = size[(_ALL, *inside)]
        np.maximum(target, np.abs(found.images[(_ALL, *places)]) + np.abs(found.filters[tap]), out=target)
    expected(call, 0, script_shape(found.maxima.shape, found.first))
    return [Output(array=as_script(found.maxima, found.first), summed=as_script(size, found.first))]


def _gradient(call: Call) -> tuple[_Dilation, Output, Output]:
    """The gradients of the images and of the filters: each goes to the first largest sum of its window.

    Where another sum of the window is as large, or would be after rounding, it may as well go there.
    """
    found = _dilation(call)
    grads = image(call, needed(call, 2))
    if grads.shape != found.maxima.shape:
        raise NotComputedError("shape_expected", name="dy", shape=grads.shape, other_shape=found.maxima.shape)
    dtype = needed(call, 0).dtype
    taps = [(tap, (_ALL, *inside), (_ALL, *places)) for tap, inside, places in found.windows.taps()]
    to_images, sizes = np.zeros(found.images.shape), np.zeros(found.images.shape)
    to_filters, filter_sizes = np.zeros(found.filters.shape), np.zeros(found.filters.shape)
    doubtful: Mask = np.zeros(found.images.shape, np.bool_)
    filter_doubtful: Mask = np.zeros(found.filters.shape, np.bool_)
    given_away: Mask = np.zeros(grads.shape, np.bool_)
    candidates = np.zeros(grads.shape, np.int32)
    for tap, inside, places in taps:
        seen = found.images[places] + found.filters[tap]
        here = (seen == found.maxima[inside]) & ~given_away[inside]
        given_away[inside] |= here
        candidates[inside] += near(seen, found.maxima[inside], dtype)
        part = np.where(here, grads[inside], 0.0)
        to_images[places] += part
        sizes[places] += np.abs(part)
        to_filters[tap] += part.sum(axis=(0, 1, 2))
        filter_sizes[tap] += np.abs(part).sum(axis=(0, 1, 2))
    for tap, inside, places in taps:
        open_ = (candidates[inside] > 1) & near(found.images[places] + found.filters[tap], found.maxima[inside], dtype)
        doubtful[places] |= open_
        filter_doubtful[tap] |= open_.any(axis=(0, 1, 2))
    first = found.first
    return (
        found,
        Output(array=as_script(to_images, first), summed=as_script(sizes, first), doubtful=as_script(doubtful, first)),
        Output(array=to_filters, summed=filter_sizes, doubtful=filter_doubtful),
    )


@op("Dilation2DBackpropInput", kind=Kind.SUM, inputs=("x", "filter", "out_backprop"))
def _backwards_input(call: Call) -> Outputs:
    """The gradient of the images."""
    return [_gradient(call)[1]]


@op("Dilation2DBackpropFilter", kind=Kind.SUM, inputs=("x", "filter", "out_backprop"))
def _backwards_filter(call: Call) -> Outputs:
    """The gradient of the filters."""
    return [_gradient(call)[2]]
