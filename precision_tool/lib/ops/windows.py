"""Windows that move over images: what convolution and pooling share.

Arrays here have the batch first, then the axes of space (two or three), then the channels. Padding and attributes are
those of TensorFlow (`padding`, `strides` of all axes) and of GE (`pads` before and after each axis of space).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from precision_tool.lib.ops.base import (
    Call,
    Doubles,
    Input,
    Kind,
    NotComputedError,
    Output,
    Outputs,
    Places,
    check_size,
    needed,
    op,
    optional,
)
from precision_tool.lib.ops.movement import exact_output
from precision_tool.lib.ops.op_arguments import (
    Array,
    Mask,
    attribute,
    axes_of,
    axis_of,
    flag,
    floats,
    image_axes,
    integer,
    near,
    real,
    required_numbers,
    text,
    whole_numbers,
)

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
        """Return True if each window is one element and all elements have one."""
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


def has_channels_first(call: Call, tensor: Input) -> bool:
    """Return True if the channels of an image come before its axes of space.

    Some graphs call the axes of images by the names of a filter's (HWCN); their order is that of NHWC all the same.
    """
    if tensor.layout in _FIRST:
        return True
    return tensor.layout not in _LAST and text(call, "data_format", default="NHWC") in _FIRST


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


def image(call: Call, tensor: Input, rank: int = 2) -> Doubles:
    """An image of so many axes of space, the channels last."""
    if tensor.array.ndim != rank + 2:
        raise NotComputedError("axis_count", name="x", number=tensor.array.ndim, limit=rank + 2)
    if tensor.array.dtype.kind == "c":
        raise NotComputedError("data_type", name="x", dtype=tensor.dtype)
    return floats(replace(tensor, array=channels_last(tensor.array, has_channels_first(call, tensor))))


def along_space(
    call: Call, names: Sequence[str], rank: int, first: bool, default: int | None = None
) -> tuple[int, ...]:
    """Numbers for each axis of space, from a list for all axes, for those of space, or one number for all."""
    values = whole_numbers(call, *names)
    if not values:
        if default is None:
            raise NotComputedError("no_attribute", name=names[0])
        return (default,) * rank
    if len(values) == 1:
        numbers = values * rank
    elif len(values) == rank:
        numbers = values
    elif len(values) == rank + 2:
        is_first = text(call, "data_format", default="NCHW" if first else "NHWC") in _FIRST
        numbers = values[2:] if is_first else values[1:-1]
        rest = values[:2] if is_first else [values[0], values[-1]]
        if rest != [1, 1]:
            raise NotComputedError("over_channels", name=names[0], value=str(values))
    else:
        raise NotComputedError("axes_of_space", name=names[0], value=str(values), number=rank)
    if min(numbers) < 1:
        raise NotComputedError("not_allowed", name=names[0], value=str(values))
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
    """Raise NotComputedError where the graph gives output `slot` another shape."""
    shape_of_graph = call.outputs[slot].shape if slot < len(call.outputs) else None
    if shape_of_graph is not None and tuple(shape_of_graph) != tuple(shape):
        raise NotComputedError("other_than_graph", slot=slot, shape=tuple(shape), other_shape=tuple(shape_of_graph))


def is_global(call: Call) -> bool:
    """Return True if one window covers the image."""
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
        where = (window[:, None] * windows.strides[axis] + taps).reshape(_broadcast_shape(len(places), axis, rank))
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
        window, rest = (indices.reshape(_broadcast_shape(len(places), axis, rank)) for indices in (window, rest))
        valid = valid & (rest == 0) & (window >= 0) & (window < windows.count[axis])
        index.append(np.clip(window, 0, windows.count[axis] - 1))
    return np.where(valid[..., None], np.asarray(grads[tuple(index)], np.float64), 0.0)


def _broadcast_shape(count: int, axis: int, rank: int) -> tuple[int, ...]:
    return (count, *(-1 if at == axis else 1 for at in range(rank)))


# --- padding ----------------------------------------------------------------------------------------------------------


def _paddings(call: Call, rank: int) -> list[tuple[int, int]]:
    flat = whole_numbers(call, "paddings", slot=1)
    if flat is None:
        raise NotComputedError("not_given", name="paddings")
    if len(flat) != 2 * rank:
        raise NotComputedError("count_misfit", name="paddings", number=len(flat), other="axes", limit=rank)
    pairs = list(zip(flat[::2], flat[1::2], strict=True))
    if call.op_type.startswith("PadV3") and not flag(call, "paddings_contiguous", default=True):
        pairs = list(zip(flat[:rank], flat[rank:], strict=True))
    if min(flat, default=0) < 0:
        raise NotComputedError("not_allowed", name="paddings", value=str(flat))
    return pairs


@op("Pad", "PadD", "PadV2", "PadV2D", "PadV3", "PadV3D", "MirrorPad", kind=Kind.EXACT, inputs=("x", "paddings"))
def pad(call: Call) -> Outputs:
    """The input with a border: of a constant, or mirrored."""
    x = needed(call, 0).array
    pairs = _paddings(call, x.ndim)
    check_size([size + before + after for size, (before, after) in zip(x.shape, pairs, strict=True)])
    if not pairs:
        return exact_output(x)
    mode = text(call, "mode", default="constant").lower()
    if mode in ("constant", ""):
        value = real(call, "constant_values", default=0.0)
        if call.op_type.startswith("PadV") and attribute(call, "constant_values") is None:
            slot = 2 if attribute(call, "paddings") is None else 1
            tensor = optional(call, slot)
            value = 0.0 if tensor is None else tensor.array.reshape(-1)[0]
        return exact_output(np.pad(x, pairs, constant_values=value))
    room = 1 if mode == "reflect" else 0
    if mode not in ("reflect", "symmetric", "edge"):
        raise NotComputedError("no_variant", name="padding", value=mode)
    if mode != "edge" and any(max(pair) > size - room for pair, size in zip(pairs, x.shape, strict=True)):
        raise NotComputedError("out_of_shape", name="paddings", value=str(pairs), shape=x.shape)
    return exact_output(np.pad(x, pairs, mode={"reflect": "reflect", "symmetric": "symmetric", "edge": "edge"}[mode]))  # type: ignore[call-overload]


# --- blocks -----------------------------------------------------------------------------------------------------------


def _blocks(call: Call) -> tuple[Array, int, bool]:
    """Images with channels last, the block size, and whether channels came first."""
    tensor = needed(call, 0)
    size = integer(call, "block_size")
    if size < 1:
        raise NotComputedError("not_allowed", name="block_size", value=str(size))
    first = image_axes(call, tensor)[2] == 1
    return (np.moveaxis(tensor.array, 1, 3) if first else tensor.array), size, first


@op("DepthToSpace", kind=Kind.EXACT, inputs=("x",))
def depth_to_space(call: Call) -> Outputs:
    """Channels into blocks of the plane; the block's place is the outer part of the channel, or (CRD) the inner."""
    x, size, first = _blocks(call)
    n, height, width, channels = x.shape
    if channels % size**2:
        raise NotComputedError("no_multiple", name="channels", number=channels, limit=size**2)
    if text(call, "mode", default="DCR") == "CRD":
        parts = x.reshape(n, height, width, channels // size**2, size, size).transpose(0, 1, 4, 2, 5, 3)
    else:
        parts = x.reshape(n, height, width, size, size, channels // size**2).transpose(0, 1, 3, 2, 4, 5)
    y = parts.reshape(n, height * size, width * size, channels // size**2)
    return exact_output(np.moveaxis(y, 3, 1) if first else y)


@op("SpaceToDepth", kind=Kind.EXACT, inputs=("x",))
def space_to_depth(call: Call) -> Outputs:
    """Blocks of the plane into channels."""
    x, size, first = _blocks(call)
    n, height, width, channels = x.shape
    if height % size or width % size:
        raise NotComputedError("value_misfit", name="block_size", value=str(size), shapes=((height, width),))
    parts = x.reshape(n, height // size, size, width // size, size, channels).transpose(0, 1, 3, 2, 4, 5)
    y = parts.reshape(n, height // size, width // size, channels * size**2)
    return exact_output(np.moveaxis(y, 3, 1) if first else y)


def _block_shape(call: Call, *margins: str) -> tuple[Array, list[int], list[tuple[int, int]]]:
    """The input, the block's shape and the crops or paddings, of the ND forms and of those with one block_size."""
    x = needed(call, 0).array
    if call.op_type in ("BatchToSpace", "SpaceToBatch", "BatchToSpaceD", "SpaceToBatchD"):
        block = [integer(call, "block_size")] * 2
        flat = required_numbers(call, *margins, slot=1)
    else:
        block = required_numbers(call, "block_shape", slot=1)
        flat = required_numbers(call, *margins, slot=2 if attribute(call, "block_shape") is None else 1)
    if len(flat) != 2 * len(block) or x.ndim <= len(block) or min(block, default=1) < 1 or min(flat, default=0) < 0:
        raise NotComputedError(
            "value_misfit", name=f"block_shape, {margins[0]}", value=f"{block}, {flat}", shapes=(x.shape,)
        )
    return x, block, list(zip(flat[::2], flat[1::2], strict=True))


@op("SpaceToBatch", "SpaceToBatchD", "SpaceToBatchND", "SpaceToBatchNDD", kind=Kind.EXACT, inputs=("x", "paddings"))
def space_to_batch(call: Call) -> Outputs:
    """Blocks of the plane into the batch, after padding with 0."""
    x, block, margins = _block_shape(call, "paddings")
    count = len(block)
    pairs = [(0, 0), *margins, *[(0, 0)] * (x.ndim - count - 1)]
    check_size([size + before + after for size, (before, after) in zip(x.shape, pairs, strict=True)])
    x = np.pad(x, pairs)
    if any(size % step for size, step in zip(x.shape[1:], block, strict=False)):
        raise NotComputedError("value_misfit", name="block_shape", value=str(block), shapes=(x.shape[1 : count + 1],))
    inner = [part for size, step in zip(x.shape[1:], block, strict=False) for part in (size // step, step)]
    y = x.reshape(x.shape[0], *inner, *x.shape[count + 1 :])
    places = [2 * axis + 2 for axis in range(count)], [2 * axis + 1 for axis in range(count)]
    y = y.transpose(*places[0], 0, *places[1], *range(2 * count + 1, y.ndim))
    shape = [x.shape[0] * prod(block), *[size // step for size, step in zip(x.shape[1:], block, strict=False)]]
    return exact_output(y.reshape(*shape, *x.shape[count + 1 :]))


@op("BatchToSpace", "BatchToSpaceD", "BatchToSpaceND", "BatchToSpaceNDD", kind=Kind.EXACT, inputs=("x", "crops"))
def batch_to_space(call: Call) -> Outputs:
    """The batch into blocks of the plane, which is cropped then."""
    x, block, crops = _block_shape(call, "crops")
    count = len(block)
    if x.shape[0] % prod(block):
        raise NotComputedError("no_multiple", name="images", number=x.shape[0], limit=prod(block))
    batch = x.shape[0] // prod(block)
    y = x.reshape(*block, batch, *x.shape[1:])
    order = [place for axis in range(count) for place in (count + 1 + axis, axis)]
    y = y.transpose(count, *order, *range(2 * count + 1, y.ndim))
    y = y.reshape(batch, *[size * step for size, step in zip(x.shape[1:], block, strict=False)], *x.shape[count + 1 :])
    box = [slice(before, y.shape[axis + 1] - after) for axis, (before, after) in enumerate(crops)]
    return exact_output(y[(slice(None), *box)])


# --- the order of elements --------------------------------------------------------------------------------------------


@op("ReverseV2", "ReverseV2D", kind=Kind.EXACT, inputs=("x", "axis"))
def reverse(call: Call) -> Outputs:
    """The elements in opposite order along axes."""
    x = needed(call, 0).array
    return exact_output(np.flip(x, axes_of(call, required_numbers(call, "axis", slot=1), x.ndim)))


@op("ReverseSequence", kind=Kind.EXACT, inputs=("x", "seq_lengths"))
def reverse_sequence(call: Call) -> Outputs:
    """The first elements of each sequence in opposite order."""
    x, lengths = needed(call, 0).array, needed(call, 1).array
    along = axis_of(call, integer(call, "seq_dim"), x.ndim)
    batch = axis_of(call, integer(call, "batch_dim", default=0), x.ndim)
    moved = np.moveaxis(x, (batch, along), (0, 1))
    if lengths.shape != (moved.shape[0],) or (lengths < 0).any() or (lengths > moved.shape[1]).any():
        raise NotComputedError("shape_misfit", name="seq_lengths", shape=lengths.shape, other="x", other_shape=x.shape)
    y = moved.copy()
    for row, length in enumerate(lengths.tolist()):
        y[row, :length] = moved[row, :length][::-1]
    return exact_output(np.moveaxis(y, (0, 1), (batch, along)))


# --- dilation ---------------------------------------------------------------------------------------------------------


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
    x, filter_input = needed(call, 0), needed(call, 1)
    first = has_channels_first(call, x)
    images, filters = image(call, x), floats(filter_input)
    if filters.ndim == 3 and first and filter_input.layout != "ND":
        filters = np.moveaxis(filters, 0, -1)
    if filters.ndim != 3 or filters.shape[-1] != images.shape[-1]:
        raise NotComputedError(
            "shape_misfit", name="filter", shape=filter_input.array.shape, other="x", other_shape=x.array.shape
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
    dilation = _dilation(call)
    size = np.zeros(dilation.maxima.shape)
    for tap, inside, places in dilation.windows.taps():
        target = size[(_ALL, *inside)]
        np.maximum(target, np.abs(dilation.images[(_ALL, *places)]) + np.abs(dilation.filters[tap]), out=target)
    expected(call, 0, script_shape(dilation.maxima.shape, dilation.first))
    return [Output(array=as_script(dilation.maxima, dilation.first), summed=as_script(size, dilation.first))]


def _gradient(call: Call) -> tuple[_Dilation, Output, Output]:
    """The gradients of the images and of the filters: each goes to the first largest sum of its window.

    Where another sum of the window is as large, or would be after rounding, it may as well go there.
    """
    dilation = _dilation(call)
    grads = image(call, needed(call, 2))
    if grads.shape != dilation.maxima.shape:
        raise NotComputedError("shape_expected", name="dy", shape=grads.shape, other_shape=dilation.maxima.shape)
    dtype = needed(call, 0).dtype
    taps = [(tap, (_ALL, *inside), (_ALL, *places)) for tap, inside, places in dilation.windows.taps()]
    to_images, sizes = np.zeros(dilation.images.shape), np.zeros(dilation.images.shape)
    to_filters, filter_sizes = np.zeros(dilation.filters.shape), np.zeros(dilation.filters.shape)
    doubtful: Mask = np.zeros(dilation.images.shape, np.bool_)
    filter_doubtful: Mask = np.zeros(dilation.filters.shape, np.bool_)
    given_away: Mask = np.zeros(grads.shape, np.bool_)
    candidates = np.zeros(grads.shape, np.int32)
    for tap, inside, places in taps:
        values = dilation.images[places] + dilation.filters[tap]
        here = (values == dilation.maxima[inside]) & ~given_away[inside]
        given_away[inside] |= here
        candidates[inside] += near(values, dilation.maxima[inside], dtype)
        part = np.where(here, grads[inside], 0.0)
        to_images[places] += part
        sizes[places] += np.abs(part)
        to_filters[tap] += part.sum(axis=(0, 1, 2))
        filter_sizes[tap] += np.abs(part).sum(axis=(0, 1, 2))
    for tap, inside, places in taps:
        values = dilation.images[places] + dilation.filters[tap]
        open_ = (candidates[inside] > 1) & near(values, dilation.maxima[inside], dtype)
        doubtful[places] |= open_
        filter_doubtful[tap] |= open_.any(axis=(0, 1, 2))
    first = dilation.first
    return (
        dilation,
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
