"""Padding, blocks between plane, channels and batch, and reversed orders.

Sources: the prototypes of GE's pad_ops.h and transformation_ops.h; tf, tf.nn.
"""

from __future__ import annotations

from math import prod

import numpy as np

from precision_tool.lib.ops.arguments import (
    Array,
    attribute,
    axes_of,
    axis_of,
    flag,
    image_axes,
    integer,
    real,
    required_numbers,
    text,
    whole_numbers,
)
from precision_tool.lib.ops.base import Call, Kind, NotComputedError, Outputs, check_size, needed, op
from precision_tool.lib.ops.movement import one

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
        return one(x)
    mode = text(call, "mode", default="constant").lower()
    if mode in ("constant", ""):
        value = real(call, "constant_values", default=0.0)
        if call.op_type.startswith("PadV") and attribute(call, "constant_values") is None:
            slot = 2 if attribute(call, "paddings") is None else 1
            given = call.inputs[slot] if slot < len(call.inputs) else None
            value = 0.0 if given is None else given.array.reshape(-1)[0]
        return one(np.pad(x, pairs, constant_values=value))
    room = 1 if mode == "reflect" else 0
    if mode not in ("reflect", "symmetric", "edge"):
        raise NotComputedError("no_variant", name="padding", value=mode)
    if mode != "edge" and any(max(pair) > size - room for pair, size in zip(pairs, x.shape, strict=True)):
        raise NotComputedError("out_of_shape", name="paddings", value=str(pairs), shape=x.shape)
    return one(np.pad(x, pairs, mode={"reflect": "reflect", "symmetric": "symmetric", "edge": "edge"}[mode]))  # type: ignore[call-overload]


# --- blocks -----------------------------------------------------------------------------------------------------------


def _blocks(call: Call) -> tuple[Array, int, bool]:
    """Images with channels last, the block size, and whether channels came first."""
    given = needed(call, 0)
    size = integer(call, "block_size")
    if size < 1:
        raise NotComputedError("not_allowed", name="block_size", value=str(size))
    first = image_axes(call, given)[2] == 1
    return (np.moveaxis(given.array, 1, 3) if first else given.array), size, first


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
    return one(np.moveaxis(y, 3, 1) if first else y)


@op("SpaceToDepth", kind=Kind.EXACT, inputs=("x",))
def space_to_depth(call: Call) -> Outputs:
    """Blocks of the plane into channels."""
    x, size, first = _blocks(call)
    n, height, width, channels = x.shape
    if height % size or width % size:
        raise NotComputedError("value_misfit", name="block_size", value=str(size), shapes=((height, width),))
    parts = x.reshape(n, height // size, size, width // size, size, channels).transpose(0, 1, 3, 2, 4, 5)
    y = parts.reshape(n, height // size, width // size, channels * size**2)
    return one(np.moveaxis(y, 3, 1) if first else y)


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
    return one(y.reshape(*shape, *x.shape[count + 1 :]))


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
    return one(y[(slice(None), *box)])


# --- the order of elements --------------------------------------------------------------------------------------------


@op("ReverseV2", "ReverseV2D", kind=Kind.EXACT, inputs=("x", "axis"))
def reverse(call: Call) -> Outputs:
    """The elements in opposite order along axes."""
    x = needed(call, 0).array
    return one(np.flip(x, axes_of(call, required_numbers(call, "axis", slot=1), x.ndim)))


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
    return one(np.moveaxis(y, (0, 1), (batch, along)))
