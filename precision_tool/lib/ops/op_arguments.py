"""Reading a call: attributes under several names, numbers from inputs, broadcast shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.ops.base import Call, Doubles, Input, NotComputedError, check_size, needed

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

#: Half the distance of neighbours at 1, and the smallest normal number, by type.
ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
#: The types of half precision.
HALF = frozenset({"float16", "bfloat16"})
_TINY = {"float16": 2.0**-22, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}
#: So many units of the last place may an input move before a switch counts as undoubted.
_MOVE = 4.0


def attribute(call: Call, *names: str) -> Any:
    """Return the first of these attributes that the op has; None where it has none."""
    return next((call.attrs[name] for name in names if call.attrs.get(name) is not None), None)


def integer(call: Call, *names: str, default: int | None = None) -> int:
    """Return an attribute that is a whole number; without a default it must be there."""
    value = attribute(call, *names)
    if value is None:
        value = default
    if value is None:
        raise NotComputedError("no_attribute", name=names[0])
    if isinstance(value, (list, tuple)) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise NotComputedError("not_whole", name=names[0], value=repr(value))
    return int(value)


def real(call: Call, *names: str, default: float | None = None) -> float:
    """Return an attribute that is a number; without a default it must be there."""
    value = attribute(call, *names)
    if value is None:
        value = default
    if value is None:
        raise NotComputedError("no_attribute", name=names[0])
    if not isinstance(value, (Real, np.number)):
        raise NotComputedError("not_number", name=names[0], value=repr(value))
    return float(value)


def flag(call: Call, *names: str, default: bool = False) -> bool:
    """Return an attribute that is true or false."""
    value = attribute(call, *names)
    return default if value is None else bool(value)


def text(call: Call, *names: str, default: str) -> str:
    """Return an attribute that is a text."""
    value = attribute(call, *names)
    return default if value is None else str(value)


def whole_numbers(call: Call, *names: str, slot: int | None = None) -> list[int] | None:
    """Return a list of whole numbers from an attribute, or else from the input at `slot`; None where there is neither.

    A single number counts as a list of one.
    """
    value = attribute(call, *names)
    if value is None and slot is not None and slot < len(call.inputs):
        tensor = call.inputs[slot]
        value = None if tensor is None else tensor.array
    if value is None:
        return None
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        raise NotComputedError("not_whole_numbers", name=names[0]) from None
    if array.size and array.dtype.kind not in "iu":
        raise NotComputedError("not_whole_numbers", name=names[0])
    return [int(number) for number in array.ravel()]


def required_numbers(call: Call, *names: str, slot: int | None = None) -> list[int]:
    """Return `whole_numbers`, which must be there."""
    result = whole_numbers(call, *names, slot=slot)
    if result is None:
        raise NotComputedError("not_given", name=names[0])
    return result


def single_number(call: Call, *names: str, slot: int | None = None) -> int:
    """Return one whole number from an attribute, or else from the input at `slot`."""
    result = required_numbers(call, *names, slot=slot)
    if len(result) != 1:
        raise NotComputedError("not_single", name=names[0], number=len(result))
    return result[0]


def axis_of(call: Call, axis: int, rank: int) -> int:
    """Return an axis counted from the front."""
    if not -rank <= axis < rank:
        raise NotComputedError("out_of_range", name="axis", value=str(axis), limit=rank)
    return axis % rank


def axes_of(call: Call, axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return axes counted from the front, each once."""
    result = tuple(axis_of(call, axis, rank) for axis in axes)
    if len(set(result)) != len(result):
        raise NotComputedError("twice", name="axes", value=str(tuple(axes)))
    return result


def distinct(values: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Return whole numbers in ascending order, each once: np.unique without numpy's masked arrays, which it imports."""
    ordered: npt.NDArray[np.intp] = np.sort(values, axis=None)
    is_first = np.append(np.ones(min(1, ordered.size), np.bool_), ordered[1:] != ordered[:-1])
    result: npt.NDArray[np.intp] = ordered[is_first]
    return result


def typed(call: Call, slot: int, kinds: str = "iuf") -> Array:
    """Return an input whose values are of one of numpy's kinds; of whole and floating numbers by default."""
    array = needed(call, slot).array
    if array.dtype.kind not in kinds:
        raise NotComputedError("data_type", name=f"input {slot}", dtype=needed(call, slot).dtype)
    return array


def floats(tensor: Input) -> Doubles:
    """Return an input's values in float64, of whatever real type; float32 unchanged, for a first pass in float32."""
    if tensor.array.dtype.kind == "c":
        raise NotComputedError("data_type", name="inputs", dtype=tensor.dtype)
    return tensor.array if tensor.array.dtype == np.float32 else np.asarray(tensor.array, np.float64)


def numbers(call: Call, *slots: int) -> list[Doubles]:
    """Return the inputs at these slots in float64."""
    return [floats(needed(call, slot)) for slot in slots]


def scalar(call: Call, slot: int) -> float:
    """Return the value of an input of one element."""
    values = floats(needed(call, slot))
    if values.size != 1:
        raise NotComputedError("shape", name=f"input {slot}", shape=values.shape)
    return float(values.ravel()[0])


def common_shape(call: Call, *arrays: Array) -> tuple[int, ...]:
    """Return the shape that these broadcast to."""
    try:
        shape = np.broadcast_shapes(*(array.shape for array in arrays))
    except ValueError:
        raise NotComputedError("no_broadcast", shapes=tuple(array.shape for array in arrays)) from None
    check_size(shape)
    return shape


def same_shape(call: Call, *arrays: Array) -> None:
    """Raise NotComputedError unless all arrays have one shape."""
    if len({array.shape for array in arrays}) > 1:
        raise NotComputedError("shapes_differ", shapes=tuple(array.shape for array in arrays))


def reshaped(array: Array, shape: Sequence[int]) -> Array:
    """Return the array in another shape, of which one axis may be −1."""
    check_size([max(size, 1) for size in shape])
    size_of_others = prod(size for size in shape if size != -1)
    unknown = sum(size == -1 for size in shape)
    if unknown > 1 or any(size < -1 for size in shape):
        raise NotComputedError("no_shape", shape=tuple(shape))
    if size_of_others != array.size if not unknown else size_of_others == 0 or array.size % size_of_others:
        raise NotComputedError("not_held", shape=tuple(shape), number=array.size)
    return array.reshape(tuple(shape))


def unbroadcast(values: Doubles, shape: tuple[int, ...]) -> Doubles:
    """Sum over the axes that broadcasting from `shape` made."""
    extra = values.ndim - len(shape)
    axes = tuple(range(extra)) + tuple(
        extra + axis for axis, size in enumerate(shape) if size == 1 and values.shape[extra + axis] != 1
    )
    result: Doubles = np.sum(values, axis=axes, keepdims=True) if axes else values
    return result.reshape(shape)


def near(a: Array, b: Array | float, *dtypes: str) -> Mask:
    """Return a mask of where rounding in these types could swap a and b; False for whole numbers."""
    units = [ROUNDOFF[dtype] for dtype in dtypes if dtype in ROUNDOFF]
    if not units:
        return np.zeros(np.broadcast_shapes(np.shape(a), np.shape(b)), np.bool_)
    tiny = max(_TINY[dtype] for dtype in dtypes if dtype in ROUNDOFF)
    with np.errstate(all="ignore"):
        if isinstance(b, float) and b == 0:  # |a| <= 8 u |a| + tiny, in one step
            size = np.abs(a)
            return np.asarray((size <= tiny / (1 - 2 * _MOVE * max(units))), np.bool_)
        size = np.maximum(np.abs(a), np.abs(b))
        close = np.abs(np.subtract(a, b)) <= 2 * _MOVE * max(units) * size + tiny
    return np.asarray(close, np.bool_) & np.isfinite(size)


def near_step(x: Doubles, dtype: str, shift: float = 0.0) -> Mask:
    """Return a mask of where x is so close to a whole number plus `shift` that rounding could take it across."""
    if dtype not in ROUNDOFF:
        return np.zeros(x.shape, np.bool_)
    return near(x, np.rint(x - shift) + shift, dtype)


def image_axes(call: Call, tensor: Input, *names: str) -> tuple[int, int, int]:
    """Return the axes of height, width and channels of an image tensor of four axes.

    `data_format` counts where the op has it, else the layout that the input carries, else channels come last.
    """
    rank = tensor.array.ndim
    if rank != 4:
        raise NotComputedError("axis_count", name="images", number=rank, limit=4)
    form = text(call, *(names or ("data_format",)), default=tensor.layout)
    return (2, 3, 1) if form == "NCHW" else (1, 2, 3)


Unary = Callable[[Doubles], Doubles]
