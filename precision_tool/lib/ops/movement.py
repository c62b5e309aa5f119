"""Moves: copies, casts, shapes, joining and cutting; constants and masks; gathers, scatters, segments, assignments.

Sources: the prototypes of GE's array_ops.h, transformation_ops.h, selection_ops.h, split_combination_ops.h,
matrix_calculation_ops.h, math_ops.h and state_ops.h; tf. Padding and blocks are in `windows`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.ops.base import (
    Call,
    Doubles,
    Function,
    Input,
    Kind,
    NotComputedError,
    Output,
    Outputs,
    check_size,
    needed,
    op,
)
from precision_tool.lib.ops.op_arguments import (
    Array,
    attribute,
    axes_of,
    axis_of,
    common_shape,
    flag,
    floats,
    integer,
    near_step,
    real,
    required_numbers,
    reshaped,
    scalar,
    single_number,
    typed,
    whole_numbers,
)


def exact_output(array: Array) -> Outputs:
    """A single output that rounding does not touch."""
    return [Output(array=array)]


@op(
    "Identity", "TransData", "TransDataRNN", "StopGradient", "PreventGradient", "Snapshot", "CheckNumerics",
    "PlaceholderWithDefault", "Data", "ReadVariableOp", "MemcpyAsync", "TensorMove", "EnsureShape",
    kind=Kind.EXACT, inputs=("x",),
)  # fmt: skip
def identity(call: Call) -> Outputs:
    """The input; layouts do not show in the order of the script."""
    return exact_output(needed(call, 0).array)


@op("IdentityN", kind=Kind.EXACT, inputs=("x",))
def identities(call: Call) -> Outputs:
    """All inputs."""
    return [Output(array=needed(call, slot).array) for slot in range(len(call.inputs))]


@op("Switch", "RefSwitch", kind=Kind.EXACT, inputs=("data", "pred"))
def switch(call: Call) -> Outputs:
    """The input as the second output if it is to go that way, else as the first; the other one is not computed."""
    taken = Output(array=needed(call, 0).array)
    return [None, taken] if typed(call, 1, "b").all() else [taken, None]


_WHOLE = {name: np.dtype(name) for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")}


@op("Cast", kind=Kind.EXACT, inputs=("x",))
def cast(call: Call) -> Outputs:
    """The values in another type.

    Rounding to a narrower floating type is that of any output, to the nearest even. To whole numbers the fraction is
    cut off; beyond the type's range the device saturates, and what TensorFlow does is not defined, so such elements
    are doubtful. NaN becomes 0.
    """
    tensor = needed(call, 0)
    x = tensor.array
    target = call.outputs[0].dtype if call.outputs else "float32"
    if target == "bool":
        return exact_output(x != 0)
    if target not in _WHOLE:
        if x.dtype.kind == "f" or (x.dtype.kind == "c" and target.startswith("complex")):
            return exact_output(x)
        return exact_output(np.real(x).astype(np.float64))
    if x.dtype.kind == "c":
        x = np.real(x)
    if x.dtype.kind != "f":
        return exact_output(x.astype(_WHOLE[target]))  # wraps, as in C
    limits = np.iinfo(_WHOLE[target])
    whole = np.trunc(np.where(np.isnan(x), 0, x))
    below, above = whole <= float(limits.min), whole >= float(limits.max)
    y = np.where(below | above, 0, whole).astype(_WHOLE[target])
    y = np.where(below, _WHOLE[target].type(limits.min), np.where(above, _WHOLE[target].type(limits.max), y))
    doubtful = near_step(x, tensor.dtype) | below | above | np.isnan(x)
    return [Output(array=y, doubtful=doubtful)]


@op("Bitcast", kind=Kind.EXACT, inputs=("x",))
def bitcast(call: Call) -> Outputs:
    """The bits in another type of the same width; of whole numbers only, as others are held in float64."""
    x = needed(call, 0).array
    target = _WHOLE.get(call.outputs[0].dtype if call.outputs else "")
    if x.dtype.kind not in "iu" or target is None or target.itemsize != x.dtype.itemsize:
        raise NotComputedError(
            "no_conversion", dtype=x.dtype.name, value=call.outputs[0].dtype if call.outputs else "?"
        )
    return exact_output(x.view(target))


# --- shapes -----------------------------------------------------------------------------------------------------------


def wanted_shape(call: Call) -> tuple[int, ...] | None:
    """Return the first output's shape by the graph; None where it leaves an axis open."""
    shape = call.outputs[0].shape if call.outputs else None
    return None if shape is None or any(size < 0 for size in shape) else shape


@op(
    "Reshape", "ExpandDims", "Squeeze", "SqueezeV2", "SqueezeV3", "Flatten", "FlattenV2", "Unsqueeze", "UnsqueezeV2",
    "UnsqueezeV3",
    kind=Kind.EXACT, inputs=("x", "shape"),
)  # fmt: skip
def reshape(call: Call) -> Outputs:
    """The elements in another shape: the one the graph wants, else the one that the op asks for."""
    x = needed(call, 0).array
    shape: tuple[int, ...] | list[int] | None = wanted_shape(call)
    if shape is None and call.op_type == "Reshape":
        shape = required_numbers(call, "shape", slot=1)
    if shape is None and call.op_type == "ExpandDims":
        axis = axis_of(call, single_number(call, "axis", "dim", slot=1), x.ndim + 1)
        shape = (*x.shape[:axis], 1, *x.shape[axis:])
    if shape is None and call.op_type == "Squeeze":
        axes = whole_numbers(call, "axis", "squeeze_dims") or [a for a, size in enumerate(x.shape) if size == 1]
        dropped = axes_of(call, axes, x.ndim)
        shape = tuple(size for axis, size in enumerate(x.shape) if axis not in dropped)
    if shape is None:
        raise NotComputedError("no_output_shape")
    return exact_output(reshaped(x, shape))


@op("Shape", kind=Kind.EXACT, inputs=("x",))
def shape_of(call: Call) -> Outputs:
    """The shape of the input."""
    return exact_output(np.array(needed(call, 0).array.shape, np.int64))


@op("ShapeN", kind=Kind.EXACT, inputs=("x",))
def shapes_of(call: Call) -> Outputs:
    """The shapes of all inputs."""
    return [Output(array=np.array(needed(call, slot).array.shape, np.int64)) for slot in range(len(call.inputs))]


@op("Size", kind=Kind.EXACT, inputs=("x",))
def size_of(call: Call) -> Outputs:
    """The number of elements."""
    return exact_output(np.array(needed(call, 0).array.size, np.int64))


@op("Rank", kind=Kind.EXACT, inputs=("x",))
def rank_of(call: Call) -> Outputs:
    """The number of axes."""
    return exact_output(np.array(needed(call, 0).array.ndim, np.int64))


@op("BroadcastGradientArgs", kind=Kind.EXACT, inputs=("s0", "s1"))
def axes_of_broadcasting(call: Call) -> Outputs:
    """The axes over which each of two gradients is summed, from the shapes of what was broadcast."""
    shapes = [required_numbers(call, f"s{slot}", slot=slot) for slot in (0, 1)]
    rank = max(map(len, shapes))
    if shapes[0] == shapes[1]:
        return [Output(array=np.zeros(0, np.int64))] * 2
    longer = [[1] * (rank - len(shape)) + shape for shape in shapes]
    return [Output(array=np.array([axis for axis in range(rank) if shape[axis] == 1], np.int64)) for shape in longer]


@op("InvertPermutation", kind=Kind.EXACT, inputs=("x",))
def inverse_permutation(call: Call) -> Outputs:
    """The order that takes back what an order of axes makes."""
    return exact_output(np.argsort(np.array(required_numbers(call, "x", slot=0), np.int64), kind="stable"))


@op("ConcatOffset", kind=Kind.EXACT, inputs=("concat_dim", "x"))
def offsets_in_concatenation(call: Call) -> Outputs:
    """Where each of several tensors begins in all of them behind one another, from their shapes."""
    shapes = [required_numbers(call, f"x{slot}", slot=slot) for slot in range(1, len(call.inputs))]
    axis = axis_of(call, single_number(call, "concat_dim", slot=0), len(shapes[0]))
    offsets = np.zeros((len(shapes), len(shapes[0])), np.int64)
    offsets[1:, axis] = np.cumsum([shape[axis] for shape in shapes[:-1]])
    return [Output(array=row) for row in offsets]


@op("DynamicStitch", "ParallelDynamicStitch", kind=Kind.EXACT, inputs=("indices", "x"))
def stitched(call: Call) -> Outputs:
    """Rows of several tensors at the places that as many lists say; of two at one place the later counts."""
    count = len(call.inputs) // 2
    places = [typed(call, slot, "iu") for slot in range(count)]
    rows = [needed(call, slot).array for slot in range(count, 2 * count)]
    shape = rows[0].shape[places[0].ndim :]
    number = max((int(each.max()) + 1 for each in places if each.size), default=0)
    check_size((number, *shape))
    y = np.zeros((number, *shape), rows[0].dtype)
    for each, part in zip(places, rows, strict=True):
        y[each.reshape(-1)] = part.reshape(-1, *shape)
    return exact_output(y)


@op("Unique", kind=Kind.EXACT, inputs=("x",))
def distinct_values(call: Call) -> Outputs:
    """The values in the order in which they first come, and which of these each element is."""
    x = needed(call, 0).array
    if x.ndim != 1:
        raise NotComputedError("axis_count", name="x", number=x.ndim, limit=1)
    _, first, place = np.unique(x, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    return [Output(array=x[first[order]]), Output(array=np.argsort(order, kind="stable")[place.reshape(-1)])]


def _transposed(call: Call, x: Array, perm: list[int]) -> Array:
    if sorted(axis % max(x.ndim, 1) for axis in perm) != list(range(x.ndim)):
        raise NotComputedError("value_misfit", name="perm", value=str(perm), shapes=(x.shape,))
    return np.transpose(x, [axis % x.ndim for axis in perm])


@op("Transpose", "TransposeD", kind=Kind.EXACT, inputs=("x", "perm"))
def transpose(call: Call) -> Outputs:
    """The axes in another order; without `perm` in the opposite one."""
    x = needed(call, 0).array
    perm = whole_numbers(call, "perm", slot=1)
    return exact_output(_transposed(call, x, list(range(x.ndim))[::-1] if perm is None else perm))


@op("ConfusionTranspose", "ConfusionTransposeD", kind=Kind.EXACT, inputs=("x", "shape"))
def transpose_and_reshape(call: Call) -> Outputs:
    """A Transpose and a Reshape in one, in the order that `transpose_first` says."""
    x = needed(call, 0).array
    perm, shape = required_numbers(call, "perm"), required_numbers(call, "shape", slot=1)
    if attribute(call, "transpose_first") is None:
        raise NotComputedError("no_attribute", name="transpose_first")
    if flag(call, "transpose_first"):
        return exact_output(reshaped(_transposed(call, x, perm), shape))
    return exact_output(_transposed(call, reshaped(x, shape), perm))


@op("BroadcastTo", "BroadcastToD", "Expand", "ExpandD", kind=Kind.EXACT, inputs=("x", "shape"))
def broadcast_to(call: Call) -> Outputs:
    """The input repeated along axes of one."""
    x = needed(call, 0).array
    shape = required_numbers(call, "shape", slot=1)
    check_size([max(size, 1) for size in shape])
    if len(shape) < x.ndim:
        raise NotComputedError("no_broadcast", shapes=(x.shape, tuple(shape)))
    aligned = [1] * (len(shape) - x.ndim) + list(x.shape)
    shape = [own if size == -1 else size for own, size in zip(aligned, shape, strict=True)]
    check_size(shape)
    if common_shape(call, x, np.broadcast_to(0, shape)) != tuple(shape):
        raise NotComputedError("no_broadcast", shapes=(x.shape, tuple(shape)))
    return exact_output(np.broadcast_to(x, shape))


@op("Tile", "TileD", kind=Kind.EXACT, inputs=("x", "multiples"))
def tile(call: Call) -> Outputs:
    """The input so many times along each axis."""
    x = needed(call, 0).array
    multiples = required_numbers(call, "multiples", slot=1)
    if len(multiples) != x.ndim:
        raise NotComputedError("count_misfit", name="multiples", number=len(multiples), other="axes", limit=x.ndim)
    check_size([size * times for size, times in zip(x.shape, multiples, strict=True)])
    return exact_output(np.tile(x, multiples))


# --- joining and cutting ----------------------------------------------------------------------------------------------


def _joined(call: Call, parts: list[Array], axis: int) -> Outputs:
    parts = [part for part in parts if part.shape != (0,)] or parts[:1]
    axis = axis_of(call, axis, parts[0].ndim)
    shapes = {part.shape[:axis] + part.shape[axis + 1 :] for part in parts}
    if len(shapes) != 1 or len({part.ndim for part in parts}) != 1:
        raise NotComputedError("shapes_differ", shapes=tuple(part.shape for part in parts))
    return exact_output(np.concatenate(parts, axis))


@op("ConcatD", "ConcatV2D", "ConcatV2", "Concat", kind=Kind.EXACT, inputs=("x",))
def concatenate(call: Call) -> Outputs:
    """The inputs behind each other; the axis is an attribute, or the last input (of Concat the first)."""
    arrays = [needed(call, slot).array for slot in range(len(call.inputs))]
    if attribute(call, "concat_dim", "axis") is not None:
        axis = single_number(call, "concat_dim", "axis")
        if len(arrays) > 1 and arrays[-1].ndim == 0 and arrays[-1].dtype.kind in "iu":
            arrays.pop()
    else:
        place = 0 if call.op_type == "Concat" else len(arrays) - 1
        if len(arrays) < 2 or arrays[place].ndim:
            raise NotComputedError("not_given", name="concat_dim")
        axis = single_number(call, "concat_dim", slot=place)
        arrays.pop(place)
    if not arrays:
        raise NotComputedError("input_count", number=0)
    return _joined(call, arrays, axis)


@op("Pack", "Stack", kind=Kind.EXACT, inputs=("x",))
def pack(call: Call) -> Outputs:
    """The inputs along a new axis."""
    arrays = [needed(call, slot).array for slot in range(len(call.inputs))]
    if not arrays or len({array.shape for array in arrays}) != 1:
        raise NotComputedError("shapes_differ", shapes=tuple(array.shape for array in arrays))
    axis = axis_of(call, integer(call, "axis", default=0), arrays[0].ndim + 1)
    return exact_output(np.stack(arrays, axis))


@op("Unpack", "Unstack", kind=Kind.EXACT, inputs=("x",))
def unpack(call: Call) -> Outputs:
    """The slices along an axis, one an output."""
    x = needed(call, 0).array
    axis = axis_of(call, integer(call, "axis", default=0), x.ndim)
    if integer(call, "num", default=x.shape[axis]) != x.shape[axis]:
        raise NotComputedError(
            "count_misfit", name="outputs", number=integer(call, "num"), other="slices", limit=x.shape[axis]
        )
    return [Output(array=part) for part in np.moveaxis(x, axis, 0)]


def _dynamic(call: Call, *names: str, axis_first: bool) -> tuple[Array, int]:
    """Return the array that a Split splits, and its axis: an attribute, or the first or last input."""
    numbers = whole_numbers(call, *names)
    if numbers is not None:
        floating = next((slot for slot in (0, 1) if slot < len(call.inputs) and _is_data(call, slot)), 0)
        return needed(call, floating if axis_first else 0).array, single_number(call, *names)
    axis = single_number(call, *names, slot=0 if axis_first else 2)
    return needed(call, 1 if axis_first else 0).array, axis


def _is_data(call: Call, slot: int) -> bool:
    tensor = call.inputs[slot]
    return tensor is not None and tensor.array.ndim > 0


@op("SplitD", "Split", kind=Kind.EXACT, inputs=("split_dim", "x"))
def split(call: Call) -> Outputs:
    """Equal parts along an axis."""
    x, dim = _dynamic(call, "split_dim", axis_first=True)
    axis, count = axis_of(call, dim, x.ndim), integer(call, "num_split")
    if count < 1 or x.shape[axis] % count:
        raise NotComputedError("no_multiple", name="elements", number=x.shape[axis], limit=count)
    return [Output(array=part) for part in np.split(x, count, axis)]


@op("SplitVD", "SplitV", kind=Kind.EXACT, inputs=("x", "size_splits", "split_dim"))
def split_by_sizes(call: Call) -> Outputs:
    """Parts of given sizes along an axis; one size may be −1, the rest."""
    x, dim = _dynamic(call, "split_dim", axis_first=False)
    sizes = required_numbers(call, "size_splits", slot=1)
    axis = axis_of(call, dim, x.ndim)
    rest = x.shape[axis] - sum(size for size in sizes if size != -1)
    sizes = [rest if size == -1 else size for size in sizes]
    if sum(sizes) != x.shape[axis] or min(sizes, default=0) < 0:
        raise NotComputedError("value_misfit", name="size_splits", value=str(sizes), shapes=(x.shape,))
    ends = list(accumulate(sizes))[:-1]
    return [Output(array=part) for part in np.split(x, ends, axis)]


@op("SliceD", "Slice", kind=Kind.EXACT, inputs=("x", "offsets", "size"))
def slice_out(call: Call) -> Outputs:
    """A box of the input; a size of −1 goes to the end."""
    x = needed(call, 0).array
    offsets = required_numbers(call, "offsets", "begin", slot=1)
    sizes = required_numbers(call, "size", slot=2)
    if len(offsets) != x.ndim or len(sizes) != x.ndim:
        raise NotComputedError("value_misfit", name="offsets, size", value=f"{offsets}, {sizes}", shapes=(x.shape,))
    box = []
    for offset, size, length in zip(offsets, sizes, x.shape, strict=True):
        end = length if size == -1 else offset + size
        if not 0 <= offset <= end <= length:
            raise NotComputedError("out_of_shape", name="offsets, size", value=f"{offsets}, {sizes}", shape=x.shape)
        box.append(slice(offset, end))
    return exact_output(x[tuple(box)])


def _bits(call: Call, name: str, place: int) -> bool:
    return bool(integer(call, name, default=0) >> place & 1)


Part = slice | int | None


def strided(call: Call, rank: int, first_slot: int) -> tuple[Part, ...]:
    """numpy's index of a strided slice: its begin, end and strides from attributes or inputs, and its five masks."""
    begin = required_numbers(call, "begin", slot=first_slot)
    end = required_numbers(call, "end", slot=first_slot + 1)
    steps = whole_numbers(call, "strides", slot=first_slot + 2) or [1] * len(begin)
    if not len(begin) == len(end) == len(steps):
        raise NotComputedError(
            "shapes_misfit", name="begin, end, strides", shapes=((len(begin),), (len(end),), (len(steps),))
        )
    if 0 in steps:
        raise NotComputedError("not_allowed", name="strides", value=str(steps))
    ellipses = [place for place in range(len(begin)) if _bits(call, "ellipsis_mask", place)]
    if len(ellipses) > 1:
        raise NotComputedError("twice", name="ellipsis_mask", value=str(integer(call, "ellipsis_mask", default=0)))
    index: list[Part] = []
    taken = sum(place not in ellipses and not _bits(call, "new_axis_mask", place) for place in range(len(begin)))
    if taken > rank:
        raise NotComputedError("count_misfit", name="begin", number=taken, other="axes", limit=rank)
    for place, (first, last, step) in enumerate(zip(begin, end, steps, strict=True)):
        if place in ellipses:
            index += [slice(None)] * (rank - taken)
        elif _bits(call, "new_axis_mask", place):
            index.append(None)
        elif _bits(call, "shrink_axis_mask", place):
            if step < 0:
                raise NotComputedError("exclusive", name=f"strides {step}", other="shrink_axis_mask")
            index.append(first)
        else:
            start = None if _bits(call, "begin_mask", place) else first
            stop = None if _bits(call, "end_mask", place) else last
            index.append(slice(start, stop, step))
    return tuple(index)


def sliced(call: Call, x: Array, index: tuple[Part, ...]) -> Array:
    """The part of x, a view."""
    try:
        return np.asarray(x[index])
    except IndexError:
        raise NotComputedError("cuts_outside", shape=x.shape) from None


@op("StridedSliceD", "StridedSlice", "StridedSliceV2", kind=Kind.EXACT, inputs=("x", "begin", "end", "strides"))
def strided_slice(call: Call) -> Outputs:
    """A part of the input with steps."""
    x = needed(call, 0).array
    return exact_output(sliced(call, x, strided(call, x.ndim, 1)))


@op("StridedSliceGradD", "StridedSliceGrad", kind=Kind.EXACT, inputs=("shape", "begin", "end", "strides", "dy"))
def strided_slice_gradient(call: Call) -> Outputs:
    """The gradient at the places that the slice took, 0 elsewhere."""
    attributes = attribute(call, "begin") is not None
    shape = required_numbers(call, "shape", slot=None if attributes else 0)
    check_size(shape)
    dy = needed(call, len(call.inputs) - 1 if not attributes else 0).array
    result = np.zeros(shape, dy.dtype)
    part = sliced(call, result, strided(call, len(shape), 1))
    if part.size != dy.size:
        raise NotComputedError("shape_misfit", name="dy", shape=dy.shape, other="slice", other_shape=part.shape)
    index = strided(call, len(shape), 1)
    result[index] = dy.reshape(part.shape)
    return exact_output(result)


# --- constants and masks ----------------------------------------------------------------------------------------------


@op("Fill", "FillD", "FillV2D", kind=Kind.EXACT, inputs=("dims", "value"))
def fill(call: Call) -> Outputs:
    """One value everywhere."""
    dims = whole_numbers(call, "dims")
    shape = required_numbers(call, "dims", slot=0)
    check_size(shape)
    if dims is None or attribute(call, "value") is None:
        return exact_output(np.full(shape, _one_value(call, 1 if dims is None else 0)))
    return exact_output(np.full(shape, real(call, "value")))


@op("ZerosLike", kind=Kind.EXACT, inputs=("x",))
def zeros_like(call: Call) -> Outputs:
    """0 everywhere."""
    return exact_output(np.zeros_like(needed(call, 0).array))


@op("OnesLike", kind=Kind.EXACT, inputs=("x",))
def ones_like(call: Call) -> Outputs:
    """1 everywhere."""
    return exact_output(np.ones_like(needed(call, 0).array))


@op("Range", "RangeD", kind=Kind.ROUNDED, inputs=("start", "limit", "delta"))
def number_range(call: Call) -> Outputs:
    """start, start + delta and so on, up to the limit."""
    if attribute(call, "start") is not None:
        ends = [np.float64(real(call, name)) for name in ("start", "limit", "delta")]
        whole = False
    else:
        inputs = [typed(call, slot) for slot in range(3)]
        for name, array in zip(("start", "limit", "delta"), inputs, strict=True):
            if array.size != 1:
                raise NotComputedError("shape", name=name, shape=array.shape)
        ends = [np.float64(array.reshape(())) for array in inputs]
        whole = all(array.dtype.kind in "iu" for array in inputs)
    start, limit, delta = ends
    if delta == 0 or not np.isfinite(ends).all():
        raise NotComputedError("not_allowed", name="start, limit, delta", value=f"{start}, {limit}, {delta}")
    count = max(0, int(np.ceil(abs((limit - start) / delta)))) if (limit - start) / delta > 0 else 0
    check_size([count])
    y = start + delta * np.arange(count)
    return exact_output(y.astype(np.int64)) if whole else [Output(array=y, summed=np.abs(y) + np.abs(start))]


def _one_value(call: Call, slot: int) -> Array:
    value = typed(call, slot, "iufb")
    if value.size != 1:
        raise NotComputedError("shape", name="value", shape=value.shape)
    return value.reshape(())


@op("OneHot", "OneHotD", kind=Kind.EXACT, inputs=("x", "depth", "on_value", "off_value"))
def one_hot(call: Call) -> Outputs:
    """on_value at the places that the indices name along a new axis, off_value elsewhere.

    Which inputs are there is told by their number: OneHotD has the depth as an attribute. Both values are inputs; a
    graph that lacks them has them folded away, and they may have been any.
    """
    indices = needed(call, 0).array
    if indices.dtype.kind not in "iu":
        raise NotComputedError("data_type", name="indices", dtype=indices.dtype.name)
    rest = [slot for slot in range(1, len(call.inputs)) if call.inputs[slot] is not None]
    axis = integer(call, "axis", default=-1)
    axis = indices.ndim if axis == -1 else axis_of(call, axis, indices.ndim + 1)
    graph_shape = wanted_shape(call)
    if attribute(call, "depth") is not None:
        depth = single_number(call, "depth")
    elif call.op_type == "OneHot" and rest:
        depth = single_number(call, "depth", slot=rest.pop(0))
    elif graph_shape is not None and len(graph_shape) == indices.ndim + 1:
        depth = graph_shape[axis]
    else:
        raise NotComputedError("not_given", name="depth")
    if len(rest) < 2:
        raise NotComputedError("no_attribute", name="on_value, off_value")
    on, off = (_one_value(call, slot) for slot in rest[:2])
    check_size([*indices.shape, depth])
    hot = np.expand_dims(indices, axis) == np.arange(depth).reshape([-1] + [1] * (indices.ndim - axis))
    return exact_output(np.where(hot, on, off))


@op("Diag", "DiagD", kind=Kind.EXACT, inputs=("x",))
def diagonal(call: Call) -> Outputs:
    """The elements on the diagonal of a tensor with twice the axes."""
    x = needed(call, 0).array
    check_size([x.size, x.size])
    return exact_output(np.diag(x.ravel()).reshape(x.shape + x.shape))


@op("DiagPart", "DiagPartD", kind=Kind.EXACT, inputs=("x",))
def diagonal_part(call: Call) -> Outputs:
    """The diagonal of a tensor whose two halves of axes are alike."""
    x = needed(call, 0).array
    half = x.shape[: x.ndim // 2]
    if half + half != x.shape:
        raise NotComputedError("shape", name="x", shape=x.shape)
    return exact_output(np.diagonal(x.reshape(prod(half), prod(half))).reshape(half))


@op("MatrixDiag", "MatrixDiagD", kind=Kind.EXACT, inputs=("x",))
def matrices_of_diagonals(call: Call) -> Outputs:
    """The last axis on the diagonals of matrices."""
    x = needed(call, 0).array
    if not x.ndim:
        raise NotComputedError("shape", name="x", shape=x.shape)
    size = x.shape[-1]
    check_size([*x.shape, size])
    y = np.zeros((*x.shape, size), x.dtype)
    y[..., np.arange(size), np.arange(size)] = x
    return exact_output(y)


@op("MatrixDiagPart", "MatrixDiagPartD", kind=Kind.EXACT, inputs=("x",))
def diagonals_of_matrices(call: Call) -> Outputs:
    """The diagonals of the matrices in the last two axes."""
    x = needed(call, 0).array
    if x.ndim < 2:
        raise NotComputedError("shape", name="x", shape=x.shape)
    return exact_output(np.diagonal(x, axis1=-2, axis2=-1).copy())


@op("MatrixSetDiag", "MatrixSetDiagD", kind=Kind.EXACT, inputs=("x", "diagonal"))
def matrices_with_diagonals(call: Call) -> Outputs:
    """Matrices with other diagonals."""
    x, diagonals = needed(call, 0).array, needed(call, 1).array
    size = min(x.shape[-2:]) if x.ndim > 1 else -1
    if diagonals.shape != (*x.shape[:-2], size):
        raise NotComputedError("shape_misfit", name="diagonal", shape=diagonals.shape, other="x", other_shape=x.shape)
    y = x.copy()
    y[..., np.arange(size), np.arange(size)] = diagonals
    return exact_output(y)


@op("LinSpace", "LinSpaceD", kind=Kind.ROUNDED, inputs=("start", "stop", "num"))
def between_two_ends(call: Call) -> Outputs:
    """Numbers at equal distances, both ends among them."""
    start, stop = scalar(call, 0), scalar(call, 1)
    count = single_number(call, "num", slot=2)
    if count < 1:
        raise NotComputedError("not_allowed", name="num", value=str(count))
    check_size([count])
    way = np.arange(count) * ((stop - start) / max(1, count - 1))
    return [Output(array=start + way, summed=np.abs(start + way) + 2 * np.abs(way))]


@op("MatrixBandPart", kind=Kind.EXACT, inputs=("x", "num_lower", "num_upper"))
def band(call: Call) -> Outputs:
    """The diagonals near the main one; a negative number keeps all of that side."""
    x = needed(call, 0).array
    if x.ndim < 2:
        raise NotComputedError("shape", name="x", shape=x.shape)
    lower, upper = (single_number(call, name, slot=slot) for slot, name in ((1, "num_lower"), (2, "num_upper")))
    rows, columns = np.ogrid[: x.shape[-2], : x.shape[-1]]
    in_band = ((lower < 0) | (rows - columns <= lower)) & ((upper < 0) | (columns - rows <= upper))
    return exact_output(np.where(in_band, x, np.zeros((), x.dtype)))


# --- elements by their indices ----------------------------------------------------------------------------------------


Indices = npt.NDArray[np.int64]


def indices_of(tensor: Input, limit: int | None = None) -> Indices:
    """An input of whole numbers, each at least 0 and below the limit."""
    if tensor.array.dtype.kind not in "iu":
        raise NotComputedError("data_type", name="indices", dtype=tensor.array.dtype.name)
    indices = tensor.array.astype(np.int64)
    if limit is not None and indices.size and not (indices.min() >= 0 and indices.max() < limit):
        raise NotComputedError("out_of_range", name="indices", value=f"{indices.min()} to {indices.max()}", limit=limit)
    return indices


# --- gathers ----------------------------------------------------------------------------------------------------------


@op("Gather", "GatherV2", "GatherV2D", "ResourceGather", kind=Kind.EXACT, inputs=("x", "indices", "axis"))
def gather(call: Call) -> Outputs:
    """Slices of x along an axis, in the order of the indices; leading batch axes are taken one by one."""
    x = needed(call, 0).array
    axes = whole_numbers(call, "axis", slot=2) or [0]
    axis = axis_of(call, axes[0], x.ndim)
    indices = indices_of(needed(call, 1), x.shape[axis])
    batch = integer(call, "batch_dims", default=0)
    batch += indices.ndim if batch < 0 else 0
    if not 0 <= batch <= min(axis, indices.ndim) or x.shape[:batch] != indices.shape[:batch]:
        raise NotComputedError("value_misfit", name="batch_dims", value=str(batch), shapes=(x.shape, indices.shape))
    check_size([*x.shape[:axis], *indices.shape[batch:], *x.shape[axis + 1 :]])
    if not batch:
        return exact_output(np.take(x, indices, axis))
    count = prod(x.shape[:batch])
    rows = x.reshape(count, *x.shape[batch:])
    rows_by_batch = indices.reshape(count, *indices.shape[batch:])
    taken = [np.take(row, places, axis - batch) for row, places in zip(rows, rows_by_batch, strict=True)]
    shape = (*x.shape[:axis], *indices.shape[batch:], *x.shape[axis + 1 :])
    return exact_output(np.stack(taken).reshape(shape) if count else np.zeros(shape, x.dtype))


@op("GatherNd", kind=Kind.EXACT, inputs=("x", "indices"))
def gather_nd(call: Call) -> Outputs:
    """Elements or slices of x that the last axis of the indices points to."""
    x = needed(call, 0).array
    places = _places(needed(call, 1), x.shape)
    check_size([*needed(call, 1).array.shape[:-1], *x.shape[len(places) :]])
    return exact_output(x[places] if places else np.broadcast_to(x, (*needed(call, 1).array.shape[:-1], *x.shape)))


@op("GatherElements", kind=Kind.EXACT, inputs=("x", "index"))
def gather_elements(call: Call) -> Outputs:
    """One element of x along an axis for each index."""
    x = needed(call, 0).array
    axis = axis_of(call, integer(call, "dim", default=0), x.ndim)
    index = indices_of(needed(call, 1), x.shape[axis])
    if index.ndim != x.ndim or any(size > x.shape[other] for other, size in enumerate(index.shape) if other != axis):
        raise NotComputedError("shape_misfit", name="indices", shape=index.shape, other="x", other_shape=x.shape)
    box = tuple(slice(None) if other == axis else slice(size) for other, size in enumerate(index.shape))
    return exact_output(np.take_along_axis(x[box], index, axis))


@op("Index", kind=Kind.EXACT, inputs=("x", "indexed_sizes", "indexed_strides", "indices"))
def index(call: Call) -> Outputs:
    """Elements or slices of x at the indices of the axes that `indexed_sizes` has a 1 for; they broadcast."""
    x = needed(call, 0).array
    is_indexed = required_numbers(call, "indexed_sizes", slot=1)
    tensors = [tensor for tensor in call.inputs[3:] if tensor is not None]
    if len(is_indexed) > x.ndim or sum(map(bool, is_indexed)) != len(tensors):
        raise NotComputedError("count_misfit", name="indices", number=len(tensors), other="axes", limit=x.ndim)
    rest = iter(tensors)
    parts: list[Array | slice] = []
    for size, chosen in zip(x.shape, is_indexed, strict=False):
        if not chosen:
            parts.append(slice(None))
            continue
        places = next(rest).array
        if places.dtype.kind not in "iu":
            raise NotComputedError("data_type", name="indices", dtype=places.dtype.name)
        if places.size and not (places.min() >= -size and places.max() < size):
            raise NotComputedError("out_of_range", name="indices", value=str(int(places.max())), limit=size)
        parts.append(places.astype(np.int64))
    common_shape(call, *(part for part in parts if not isinstance(part, slice)))
    return exact_output(x[tuple(parts)])


def _places(tensor: Input, shape: tuple[int, ...]) -> tuple[Indices, ...]:
    """The indices of each axis that the last axis of an input points into."""
    indices = indices_of(tensor)
    if indices.ndim < 1 or indices.shape[-1] > len(shape):
        raise NotComputedError("shape_misfit", name="indices", shape=indices.shape, other="x", other_shape=shape)
    places = tuple(indices[..., axis] for axis in range(indices.shape[-1]))
    for each, size in zip(places, shape, strict=False):
        if each.size and not (each.min() >= 0 and each.max() < size):
            raise NotComputedError("out_of_range", name="indices", value=f"{each.min()} to {each.max()}", limit=size)
    return places


# --- scatters ---------------------------------------------------------------------------------------------------------

_UPDATES: dict[str, Callable[[Array, tuple[Indices, ...], Array], None]] = {
    "Add": np.add.at,
    "Sub": np.subtract.at,
    "Mul": np.multiply.at,
    "Div": np.divide.at,
    "Max": np.maximum.at,
    "Min": np.minimum.at,
}


def _scattered(var: Array, places: tuple[Indices, ...], updates: Array, how: str) -> Output:
    """`var` with the updates worked in; for a sum with what is rounded on the way."""
    rest = var.shape[len(places) :]
    count = places[0].shape if places else ()
    try:
        updates = np.broadcast_to(updates, (*count, *rest))
    except ValueError:
        raise NotComputedError(
            "shape_expected", name="updates", shape=updates.shape, other_shape=(*count, *rest)
        ) from None
    result = var.copy()
    if how == "Update":
        return _overwritten(result, places, updates)
    _UPDATES[how](result, places, updates)
    if result.dtype.kind != "f" or how in ("Max", "Min"):
        return Output(array=result)
    if how in ("Mul", "Div"):
        return Output(array=result, summed=2 * np.abs(result))
    squares, counts = np.square(var), np.ones(var.shape)
    np.add.at(squares, places, np.square(updates))
    np.add.at(counts, places, 1.0)
    summed = np.where(counts > 1, _spread(result, squares, counts), 0.0)
    return Output(array=result, summed=summed, terms=np.sqrt(squares))


def _overwritten(result: Array, places: tuple[Indices, ...], updates: Array) -> Output:
    """Of two updates at one place either may win."""
    counts = np.zeros(result.shape[: len(places)], np.int64)
    np.add.at(counts, places, 1)
    result[places] = updates
    twice = (counts > 1).reshape(counts.shape + (1,) * (result.ndim - counts.ndim))
    return Output(array=result, doubtful=np.broadcast_to(twice, result.shape) if twice.any() else None)


def _spread(total: Doubles, squares: Doubles, counts: Doubles) -> Doubles:
    """`summed_of` where every element has its own number of terms."""
    spread = squares - total**2 / np.maximum(counts, 1)
    result: Doubles = np.sqrt(counts * total**2 / 3 + counts * np.maximum(spread, 0) / 6)
    return result


def _like(var: Array, value: Array) -> tuple[Array, Array]:
    """Both, where both are whole numbers or both are floating."""
    if (var.dtype.kind == "f") != (value.dtype.kind == "f"):
        raise NotComputedError("types_differ", name="value", dtype=value.dtype.name, value=var.dtype.name)
    return var, value.astype(var.dtype)


def _row_scatter(how: str) -> Function:
    def compute(call: Call) -> Outputs:
        var, updates = _like(typed(call, 0), typed(call, 2))
        if var.ndim < 1:
            raise NotComputedError("shape", name="var", shape=var.shape)
        return [_scattered(var, (indices_of(needed(call, 1), var.shape[0]),), updates, how)]

    return compute


def _nd_scatter(how: str) -> Function:
    def compute(call: Call) -> Outputs:
        var, updates = _like(typed(call, 0), typed(call, 2))
        return [_scattered(var, _places(needed(call, 1), var.shape), updates, how)]

    return compute


for _how in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Update"):
    _kind = Kind.SUM if _how in ("Add", "Sub") else Kind.ROUNDED if _how in ("Mul", "Div") else Kind.EXACT
    _names = ("var", "indices", "updates")
    op(f"Scatter{_how}", f"ResourceScatter{_how}", kind=_kind, inputs=_names)(_row_scatter(_how))
    _tensor = (f"TensorScatter{_how}",) if _how not in ("Mul", "Div") else ()
    op(f"ScatterNd{_how}", *_tensor, kind=_kind, inputs=_names)(_nd_scatter(_how))


@op("ScatterNd", "ScatterNdD", kind=Kind.SUM, inputs=("indices", "x", "shape"))
def scatter_nd(call: Call) -> Outputs:
    """Updates summed into zeros at the places that the last axis of the indices points to."""
    shape = required_numbers(call, "shape", slot=2)
    check_size(shape)
    updates = typed(call, 1)
    zeros = np.zeros(shape, updates.dtype)
    return [_scattered(zeros, _places(needed(call, 0), zeros.shape), updates, "Add")]


# --- segments ---------------------------------------------------------------------------------------------------------


def _segments(call: Call) -> tuple[Array, Indices, int]:
    """Rows, the segment of each and the number of segments; rows of negative segments are dropped."""
    x, segment_ids = typed(call, 0), needed(call, 1)
    ids = indices_of(segment_ids)
    if ids.shape != x.shape[: ids.ndim] or not ids.ndim:
        raise NotComputedError("shape_misfit", name="segment_ids", shape=ids.shape, other="x", other_shape=x.shape)
    if call.op_type.startswith("Unsorted"):
        count = single_number(call, "num_segments", slot=2)
    else:
        if (np.diff(ids) < 0).any():
            raise NotComputedError("unsorted", name="segment_ids")
        count = int(ids.max()) + 1 if ids.size else 0
    rows = x.reshape(ids.size, *x.shape[ids.ndim :])
    flat = ids.ravel()
    check_size([count, *rows.shape[1:]])
    if flat.size and flat.max() >= count:
        raise NotComputedError("out_of_range", name="segment_ids", value=str(flat.max()), limit=count)
    in_range = flat >= 0
    return rows[in_range], flat[in_range], count


@op(
    "UnsortedSegmentSum", "UnsortedSegmentSumD", "SegmentSum", "SegmentSumD", "SegmentMean", "SegmentMeanD",
    kind=Kind.SUM, inputs=("x", "segment_ids", "num_segments"),
)  # fmt: skip
def segment_sum(call: Call) -> Outputs:
    """Sums, or means, of the rows of each segment; 0 for one without rows."""
    return _segment_sums(call)


@op(
    "SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN",
    kind=Kind.SUM, inputs=("x", "indices", "segment_ids"),
)  # fmt: skip
def sparse_segment_sum(call: Call) -> Outputs:
    """Sums or means of the indexed rows of each segment, or sums over the square roots of the numbers of rows."""
    x, ids = needed(call, 0), needed(call, 2)
    if not x.array.ndim:
        raise NotComputedError("shape", name="x", shape=x.array.shape)
    rows = indices_of(needed(call, 1), x.array.shape[0])
    if rows.ndim != 1 or rows.shape != ids.array.shape:
        raise NotComputedError(
            "shape_misfit", name="segment_ids", shape=ids.array.shape, other="indices", other_shape=rows.shape
        )
    check_size([rows.size, *x.array.shape[1:]])
    return _segment_sums(replace(call, inputs=(replace(x, array=x.array[rows]), ids)))


def _segment_sums(call: Call) -> Outputs:
    rows, ids, count = _segments(call)
    total = np.zeros((count, *rows.shape[1:]), rows.dtype)
    np.add.at(total, ids, rows)
    divided = "Mean" in call.op_type or "SqrtN" in call.op_type
    if total.dtype.kind != "f":
        if divided:
            raise NotComputedError("data_type", name="x", dtype=total.dtype.name)
        return [Output(array=total)]
    squares = np.zeros(total.shape)
    np.add.at(squares, ids, np.square(rows))
    counts = np.bincount(ids, minlength=count).astype(np.float64)
    counts = counts.reshape([-1] + [1] * (total.ndim - 1))
    divisor = np.maximum(counts, 1) if divided else np.ones(counts.shape)
    if "SqrtN" in call.op_type:
        divisor = np.sqrt(divisor)
    summed = np.where(counts > 1, _spread(total, squares, counts), 0.0) / divisor
    return [Output(array=total / divisor, summed=summed, terms=np.sqrt(squares) / divisor)]


@op("EmbeddingDenseGrad", kind=Kind.SUM, inputs=("grad", "indices"))
def embedding_gradient(call: Call) -> Outputs:
    """Sums of the gradients of each word, or means where they are scaled by frequency; 0 for the word that pads."""
    grad, ids = floats(needed(call, 0)), needed(call, 1)
    count = integer(call, "num_weights")
    if ids.array.shape != grad.shape[:-1] or not grad.ndim:
        raise NotComputedError(
            "shape_misfit", name="gradients", shape=grad.shape, other="indices", other_shape=ids.array.shape
        )
    check_size([count, grad.shape[-1]])
    padding = integer(call, "padding_idx", default=-1)
    words = indices_of(replace(ids, array=np.where(ids.array == padding, 0, ids.array)), count).reshape(-1)
    rows = np.where((ids.array == padding).reshape(-1, 1), 0.0, grad.reshape(words.size, -1))
    total, squares = np.zeros((count, grad.shape[-1])), np.zeros((count, grad.shape[-1]))
    np.add.at(total, words, rows)
    np.add.at(squares, words, np.square(rows))
    counts = np.bincount(ids.array[ids.array != padding].reshape(-1), minlength=count).reshape(-1, 1).astype(float)
    divisor = np.maximum(counts, 1) if flag(call, "scale_grad_by_freq") else np.ones(counts.shape)
    summed = np.where(counts > 1, _spread(total, squares, counts), 0.0) / divisor
    # The kernel may scale each gradient before it adds them up.
    scaled = np.sqrt(squares) / divisor * (divisor > 1)
    return [Output(array=total / divisor, summed=np.hypot(summed, scaled), terms=np.sqrt(squares) / divisor)]


def _lowest(call: Call, kind: np.dtype[Any], sign: int) -> float:
    """Return the maximum (sign −1) or minimum of no rows."""
    if not call.op_type.startswith("Unsorted"):
        return 0
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        return int(limits.min if sign < 0 else limits.max)
    largest = {"float16": 65504.0, "bfloat16": 2.0**128 - 2.0**120}
    return sign * largest.get(needed(call, 0).dtype, 2.0**128 - 2.0**104)


def _segment_extreme(work: Callable[[Array, Indices, Array], None], sign: int) -> Function:
    def compute(call: Call) -> Outputs:
        rows, ids, count = _segments(call)
        start = -np.inf * -sign if rows.dtype.kind == "f" else _lowest(call, rows.dtype, sign)
        if rows.dtype.kind in "iu" and not call.op_type.startswith("Unsorted"):
            limits = np.iinfo(rows.dtype)
            start = limits.min if sign < 0 else limits.max
        result = np.full((count, *rows.shape[1:]), start, rows.dtype)
        work(result, ids, rows)
        result[np.bincount(ids, minlength=count) == 0] = _lowest(call, rows.dtype, sign)
        return exact_output(result)

    return compute


op("UnsortedSegmentMax", "UnsortedSegmentMaxD", "SegmentMax", "SegmentMaxD", kind=Kind.EXACT)(
    _segment_extreme(np.maximum.at, -1)
)
op("UnsortedSegmentMin", "UnsortedSegmentMinD", "SegmentMin", "SegmentMinD", kind=Kind.EXACT)(
    _segment_extreme(np.minimum.at, 1)
)


@op("UnsortedSegmentProd", "UnsortedSegmentProdD", "SegmentProd", "SegmentProdD", kind=Kind.SUM)
def segment_product(call: Call) -> Outputs:
    """Products of the rows of each segment; 1 for one without rows."""
    rows, ids, count = _segments(call)
    result = np.ones((count, *rows.shape[1:]), rows.dtype)
    np.multiply.at(result, ids, rows)
    if result.dtype.kind != "f":
        return exact_output(result)
    counts = np.bincount(ids, minlength=count).reshape([-1] + [1] * (result.ndim - 1))
    return [Output(array=result, summed=np.abs(result) * np.sqrt(counts))]


# --- assignments ------------------------------------------------------------------------------------------------------


@op("Assign", "AssignVariableOp", kind=Kind.EXACT, inputs=("ref", "value"))
def assign(call: Call) -> Outputs:
    """The value, in the variable's place."""
    return exact_output(needed(call, 1).array)


@op("AssignAdd", "AssignAddVariableOp", kind=Kind.ROUNDED, inputs=("ref", "value"))
def assign_add(call: Call) -> Outputs:
    """The variable plus the value."""
    return _assigned(call, np.add)


@op("AssignSub", "AssignSubVariableOp", kind=Kind.ROUNDED, inputs=("ref", "value"))
def assign_sub(call: Call) -> Outputs:
    """The variable minus the value."""
    return _assigned(call, np.subtract)


def _assigned(call: Call, formula: Callable[[Array, Array], Array]) -> Outputs:
    var, value = _like(typed(call, 0), typed(call, 1))
    if common_shape(call, var, value) != var.shape:
        raise NotComputedError("shape_misfit", name="value", shape=value.shape, other="var", other_shape=var.shape)
    y = np.asarray(formula(var, value))
    return [Output(array=y, summed=np.abs(y) if y.dtype.kind == "f" else 0.0)]
