"""Windows that move over images: what convolution and pooling share.

Arrays here have the batch first, then the axes of space (two or three), then the channels. Padding and attributes are
those of TensorFlow (`padding`, `strides` of all axes) and of GE (`pads` before and after each axis of space).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from precision_tool.lib.ops.arguments import Array, Mask, flag, floats, text, whole_numbers
from precision_tool.lib.ops.base import Call, Doubles, Input, NotComputedError, Places

#: Elements of the blocks in which windows are unrolled (32 MiB).
BLOCK = 1 << 22
_FIRST = ("NCHW", "NCDHW", "NCW")
_LAST = ("NHWC", "NDHWC", "HWCN", "DHWCN")


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows along each axis of space: `count` of them with `kernel` elements, the first `low` before the image."""

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[int, ...]
    count: tuple[int, ...]

    @property
    def reach(self) -> tuple[int, ...]:
        """From the first to the last element of a window, both counted."""
        return _reach(self.kernel, self.dilations)

    @property
    def high(self) -> tuple[int, ...]:
        """Elements beyond the image's end that the last windows see; none where they end before."""
        ends = zip(self.count, self.strides, self.reach, self.size, self.low, strict=True)
        return tuple(max(0, (count - 1) * stride + reach - size - low) for count, stride, reach, size, low in ends)

    @property
    def is_plain(self) -> bool:
        """Whether each window is one element and all elements have one."""
        return prod(self.kernel) == 1 and self.count == self.size and not any(self.low)

    def inside(self, axis: int, tap: int) -> tuple[slice, slice]:
        """The windows whose element `tap` lies in the image, and where in the image it lies."""
        stride, at = self.strides[axis], tap * self.dilations[axis] - self.low[axis]
        first = max(0, -(at // stride))
        last = min(self.count[axis], (self.size[axis] - 1 - at) // stride + 1)
        last = max(first, last)
        start = first * stride + at
        return slice(first, last), slice(start, start + (last - first) * stride, stride)

    def taps(self) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...], tuple[slice, ...]]]:
        """Each element of a window: its place there, the windows that have it in the image, and where it lies."""
        for tap in np.ndindex(*self.kernel):
            pairs = [self.inside(axis, at) for axis, at in enumerate(tap)]
            yield tap, tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)


def _reach(kernel: Sequence[int], dilations: Sequence[int]) -> tuple[int, ...]:
    return tuple((extent - 1) * step + 1 for extent, step in zip(kernel, dilations, strict=True))


# --- attributes -------------------------------------------------------------------------------------------------------


def has_channels_first(call: Call, given: Input) -> bool:
    """Whether the channels of an image come before its axes of space.

    Some graphs call the axes of images by the names of a filter's (HWCN); their order is that of NHWC all the same.
    """
    if given.layout in _FIRST:
        return True
    return given.layout not in _LAST and text(call, "data_format", default="NHWC") in _FIRST


def channels_last(array: Array, first: bool) -> Array:
    """A view with the channels last."""
    return np.moveaxis(array, 1, -1) if first else array


def as_script(array: Array, first: bool) -> Array:
    """The array in the order of the script again."""
    return np.moveaxis(array, -1, 1) if first else array


def image_shape(shape: Sequence[int], first: bool) -> tuple[int, ...]:
    """A shape of the script with the channels last."""
    return (shape[0], *shape[2:], shape[1]) if first else tuple(shape)


def script_shape(shape: Sequence[int], first: bool) -> tuple[int, ...]:
    """A shape with the channels last in the order of the script."""
    return (shape[0], shape[-1], *shape[1:-1]) if first else tuple(shape)


def image(call: Call, given: Input, rank: int = 2) -> Doubles:
    """An image of so many axes of space, the channels last."""
    if given.array.ndim != rank + 2:
        raise NotComputedError("axis_count", name="x", number=given.array.ndim, limit=rank + 2)
    if given.array.dtype.kind == "c":
        raise NotComputedError("data_type", name="x", dtype=given.dtype)
    return floats(replace(given, array=channels_last(given.array, has_channels_first(call, given))))


def along_space(
    call: Call, names: Sequence[str], rank: int, first: bool, default: int | None = None
) -> tuple[int, ...]:
    """Numbers for each axis of space, from a list for all axes, for those of space, or one number for all."""
    found = whole_numbers(call, *names)
    if not found:
        if default is None:
            raise NotComputedError("no_attribute", name=names[0])
        return (default,) * rank
    if len(found) == 1:
        numbers = found * rank
    elif len(found) == rank:
        numbers = found
    elif len(found) == rank + 2:
        is_first = text(call, "data_format", default="NCHW" if first else "NHWC") in _FIRST
        numbers = found[2:] if is_first else found[1:-1]
        rest = found[:2] if is_first else [found[0], found[-1]]
        if rest != [1, 1]:
            raise NotComputedError("over_channels", name=names[0], value=str(found))
    else:
        raise NotComputedError("axes_of_space", name=names[0], value=str(found), number=rank)
    if min(numbers) < 1:
        raise NotComputedError("not_allowed", name=names[0], value=str(found))
    return tuple(numbers)


def _same(
    size: Sequence[int], strides: Sequence[int], reach: Sequence[int], upper: bool
) -> tuple[list[int], list[int]]:
    totals = [
        max(0, (-(-extent // stride) - 1) * stride + far - extent)
        for extent, stride, far in zip(size, strides, reach, strict=True)
    ]
    less, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return (less, more) if upper else (more, less)


def explicit_pads(call: Call, rank: int, first: bool) -> tuple[list[int], list[int]] | None:
    """`pads` or `explicit_paddings` before and after each axis of space; None where there are none, or all are −1."""
    pads = whole_numbers(call, "pads", "pad") or whole_numbers(call, "explicit_paddings")
    if not pads or all(pad == -1 for pad in pads):
        return None
    if len(pads) == 1:
        pads = pads * (2 * rank)
    if len(pads) == 2 * rank + 4:
        is_first = text(call, "data_format", default="NCHW" if first else "NHWC") in _FIRST
        pads = pads[4:] if is_first else pads[2:-2]
    if len(pads) != 2 * rank or min(pads) < 0:
        raise NotComputedError("axes_of_space", name="pads", value=str(pads), number=rank)
    return pads[::2], pads[1::2]


def windows_of(
    call: Call,
    size: Sequence[int],
    kernel: Sequence[int],
    first: bool,
    *,
    strides: tuple[int, ...] | None = None,
    ceil: bool = False,
) -> Windows:
    """The windows of a call over images of this size, from its strides, dilations and padding."""
    rank = len(size)
    if strides is None:
        strides = along_space(call, ("strides", "stride"), rank, first)
    dilations = along_space(call, ("dilations", "dilation"), rank, first, 1)
    reach = _reach(kernel, dilations)
    low, high = _padding(call, size, strides, reach, first)
    count = []
    for extent, far, stride, before, after in zip(size, reach, strides, low, high, strict=True):
        room = extent + before + after - far
        windows = (-(-room // stride) if ceil else room // stride) + 1
        if ceil and (windows - 1) * stride >= extent + before:
            windows -= 1  # the last window starts within the image
        if room < 0 or windows < 1 or extent < 1:
            raise NotComputedError("window", number=far, limit=extent)
        count.append(windows)
    return Windows(tuple(size), tuple(kernel), strides, dilations, tuple(low), tuple(count))


def _padding(
    call: Call, size: Sequence[int], strides: Sequence[int], reach: Sequence[int], first: bool
) -> tuple[list[int], list[int]]:
    rank = len(size)
    kind = text(call, "padding", "padding_mode", "auto_pad", default="").upper()
    if kind in ("SAME", "SAME_UPPER", "SAME_LOWER"):
        return _same(size, strides, reach, kind != "SAME_LOWER")
    if kind == "VALID":
        return [0] * rank, [0] * rank
    if kind not in ("", "EXPLICIT", "CALCULATED", "NOTSET"):
        raise NotComputedError("no_variant", name="padding", value=kind)
    pads = whole_numbers(call, "pads", "pad", "explicit_paddings")
    if not pads:
        raise NotComputedError("no_attribute", name="padding, pads")
    explicit = explicit_pads(call, rank, first)
    return _same(size, strides, reach, True) if explicit is None else explicit


def expected(call: Call, slot: int, shape: Sequence[int]) -> None:
    """Raises where the graph gives output `slot` another shape."""
    wanted = call.outputs[slot].shape if slot < len(call.outputs) else None
    if wanted is not None and tuple(wanted) != tuple(shape):
        raise NotComputedError("other_than_graph", slot=slot, shape=tuple(shape), other_shape=tuple(wanted))


def is_global(call: Call) -> bool:
    """Whether one window covers the image."""
    return flag(call, "global_pooling")


# --- unrolling --------------------------------------------------------------------------------------------------------


def padded(images: Doubles, windows: Windows, fill: float = 0.0) -> Doubles:
    """Images with all that their windows see beyond their edges."""
    borders = list(zip(windows.low, windows.high, strict=True))
    if not any(low or high for low, high in borders):
        return images
    return np.pad(images, [(0, 0), *borders, (0, 0)], constant_values=fill)


def unrolled(images: Doubles, windows: Windows) -> Iterator[tuple[slice, slice, Doubles]]:
    """Block by block: which images, which windows along the first axis of space, and one row for each window.

    A row has the elements of the window one after the other, each with all its channels.
    """
    batch, channels = images.shape[0], images.shape[-1]
    length = prod(windows.kernel) * channels
    per_image = prod(windows.count) * length
    images_at_once = max(1, BLOCK // max(1, per_image))
    rows_at_once = max(1, BLOCK // max(1, per_image // windows.count[0])) if images_at_once == 1 else windows.count[0]
    for start in range(0, batch, images_at_once):
        some = slice(start, min(batch, start + images_at_once))
        block = np.ascontiguousarray(images[some])
        if windows.is_plain:
            view = block
        else:
            block = padded(block, windows)
            steps = block.strides
            view = np.lib.stride_tricks.as_strided(
                block,
                (block.shape[0], *windows.count, *windows.kernel, channels),
                (
                    steps[0],
                    *(step * stride for step, stride in zip(steps[1:-1], windows.strides, strict=True)),
                    *(step * dilation for step, dilation in zip(steps[1:-1], windows.dilations, strict=True)),
                    steps[-1],
                ),
                writeable=False,
            )
        for row in range(0, windows.count[0], rows_at_once):
            lines = slice(row, min(windows.count[0], row + rows_at_once))
            yield some, lines, view[:, lines].reshape(-1, length)


def windows_at(images: Doubles, windows: Windows, places: Places) -> Doubles:
    """The windows at flat places of (batch, *count), all channels of each element: (places, *kernel, channels)."""
    batch, *at = np.unravel_index(places, (images.shape[0], *windows.count))
    rank = len(windows.size)
    index: list[Array] = [batch.reshape(-1, *[1] * rank)]
    valid: Mask = np.ones([1] * (rank + 1), np.bool_)
    for axis, window in enumerate(at):
        taps = np.arange(windows.kernel[axis]) * windows.dilations[axis] - windows.low[axis]
        where = (window[:, None] * windows.strides[axis] + taps).reshape(_beside(len(places), axis, rank))
        valid = valid & (where >= 0) & (where < windows.size[axis])
        index.append(np.clip(where, 0, windows.size[axis] - 1))
    return np.where(valid[..., None], np.asarray(images[tuple(index)], np.float64), 0.0)


def windows_over(grads: Doubles, windows: Windows, places: Places) -> Doubles:
    """For flat places of (batch, *size): `grads` of the window whose element `tap` it is, or 0.

    Shape (places, *kernel, channels of `grads`).
    """
    batch, *at = np.unravel_index(places, (grads.shape[0], *windows.size))
    rank = len(windows.size)
    index: list[Array] = [batch.reshape(-1, *[1] * rank)]
    valid: Mask = np.ones([1] * (rank + 1), np.bool_)
    for axis, where in enumerate(at):
        taps = np.arange(windows.kernel[axis]) * windows.dilations[axis] - windows.low[axis]
        window, rest = np.divmod(where[:, None] - taps, windows.strides[axis])
        window, rest = (one.reshape(_beside(len(places), axis, rank)) for one in (window, rest))
        valid = valid & (rest == 0) & (window >= 0) & (window < windows.count[axis])
        index.append(np.clip(window, 0, windows.count[axis] - 1))
    return np.where(valid[..., None], np.asarray(grads[tuple(index)], np.float64), 0.0)


def _beside(count: int, axis: int, rank: int) -> tuple[int, ...]:
    return (count, *(-1 if at == axis else 1 for at in range(rank)))
