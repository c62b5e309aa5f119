"""Storage layouts as tables of axes, and plans that bring a stored tensor to another order of axes.

A layout is a list of storage axes. Each is a whole logical axis (`N`), or the outer (`C1`) or inner (`C0`)
part of one that the device stores in blocks: index = outer * block + inner, the last block padded.
Source: FORMATS.md §2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.io.native.library import library
from precision_tool.lib.messages import Message
from precision_tool.lib.model.finding import ReasonError
from precision_tool.lib.model.tensor import INNER, OUTER, WHOLE, Plan, Tensor

#: Layouts by their storage axes. FRACTAL_Z and FRACTAL_Z_3D are stored with their first axes merged.
_AXES: dict[str, tuple[tuple[str, int], ...]] = {
    "NC1HWC0": (("N", WHOLE), ("C", OUTER), ("H", WHOLE), ("W", WHOLE), ("C", INNER)),
    "NC1HWC0_C04": (("N", WHOLE), ("C", OUTER), ("H", WHOLE), ("W", WHOLE), ("C", INNER)),
    "NHWC1C0": (("N", WHOLE), ("H", WHOLE), ("W", WHOLE), ("C", OUTER), ("C", INNER)),
    "C1HWNC0": (("C", OUTER), ("H", WHOLE), ("W", WHOLE), ("N", WHOLE), ("C", INNER)),
    "NDC1HWC0": (("N", WHOLE), ("D", WHOLE), ("C", OUTER), ("H", WHOLE), ("W", WHOLE), ("C", INNER)),
    "FRACTAL_Z": (("C", OUTER), ("H", WHOLE), ("W", WHOLE), ("N", OUTER), ("N", INNER), ("C", INNER)),
    "FRACTAL_Z_3D": (
        ("D", WHOLE), ("C", OUTER), ("H", WHOLE), ("W", WHOLE), ("N", OUTER), ("N", INNER), ("C", INNER),
    ),
}  # fmt: skip
_MERGED = {"FRACTAL_Z": "CHW", "FRACTAL_Z_3D": "DCHW"}
_PLAIN = ("NCHW", "NHWC", "HWCN", "CHWN", "NDHWC", "NCDHW", "DHWCN", "DHWNC", "NC", "CN", "NCL")
for _name in _PLAIN:
    _AXES[_name] = tuple((letter, WHOLE) for letter in _name)
#: Items from which on the compiled kernel copies between orders of axes: fewer are done before it is called.
_COMPILED = 1 << 14
#: What the last axis of a blocked layout holds when the target is padded anew (float16's cube unit).
_BLOCK = 16


class LayoutError(ReasonError):
    """A tensor cannot be brought to the layout asked for."""


def flat_plan(count: int) -> Plan:
    """The plan of a tensor that is read as it lies."""
    return Plan((count,), ((0, WHOLE),), (count,), (1,))


def plain_plan(shape: tuple[int, ...], fortran_order: bool = False) -> Plan:
    """The plan of an unblocked array; a Fortran-ordered one is stored with its axes reversed."""
    rank = len(shape)
    order = tuple(reversed(range(rank))) if fortran_order else tuple(range(rank))
    return Plan(tuple(shape[axis] for axis in order), tuple((axis, WHOLE) for axis in order), shape, (1,) * rank)


def strided_plan(shape: tuple[int, ...], strides: tuple[int, ...]) -> Plan | None:
    """The plan of an array whose axes have these strides, in elements; None where these leave gaps or overlap."""
    axes = [axis for axis, extent in enumerate(shape) if extent > 1]
    by_stride = sorted(axes, key=lambda axis: -strides[axis])
    for position, axis in enumerate(by_stride):
        if strides[axis] != prod(shape[inner] for inner in by_stride[position + 1 :]):
            return None
    if by_stride == axes:
        return plain_plan(shape)
    order = (*(axis for axis, extent in enumerate(shape) if extent <= 1), *by_stride)
    return Plan(tuple(shape[axis] for axis in order), tuple((axis, WHOLE) for axis in order), shape, (1,) * len(shape))


def squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without the axes that hold one item, which are in nobody's way."""
    return tuple(extent for extent in shape if extent != 1)


def own_plan(tensor: Tensor) -> Plan:
    """The order that a tensor itself is stored in, apart from what its layout means."""
    return tensor.plan or plain_plan(tensor.shape, tensor.fortran_order)


def as_it_lies(plan: Plan, own: Plan) -> Plan:
    """The plan of a C-ordered array for one whose axes lie in another order, which its own plan tells.

    LayoutError where the plan takes the axes of that array apart or together.
    """
    shape = own.logical_shape
    if squeezed(plan.storage_shape) != squeezed(shape):
        raise LayoutError("layout.other_order", shape=shape, other_shape=plan.logical_shape)
    single = [place for place, extent in enumerate(plan.storage_shape) if extent == 1]
    places = [place for place, extent in enumerate(plan.storage_shape) if extent != 1]
    of_axis = dict(zip((axis for axis, extent in enumerate(shape) if extent != 1), places, strict=True))
    order = [*single, *(of_axis[axis] for axis, _ in own.axes if axis in of_axis)]
    return replace(
        plan,
        storage_shape=tuple(plan.storage_shape[place] for place in order),
        axes=tuple(plan.axes[place] for place in order),
    )


def is_plain(layout: str) -> bool:
    """True for layouts without blocks and padding, `ND` included."""
    return layout == "ND" or layout in _PLAIN


def is_named(layout: str | None) -> bool:
    """True for plain layouts whose axes have names (`NHWC`, not `ND`)."""
    return layout in _PLAIN


def plain_layouts() -> tuple[str, ...]:
    """All plain layouts with named axes."""
    return _PLAIN


def is_known(layout: str) -> bool:
    """True if tensors of this layout can be read in some order of axes."""
    return layout in _AXES or layout in ("ND", "FRACTAL_NZ")


@lru_cache(maxsize=1 << 12)  # tensors of a network have few different shapes
def _build(
    axes: tuple[tuple[str, int], ...], storage_shape: tuple[int, ...], letters: str, shape: tuple[int, ...]
) -> Plan:
    """A plan from lettered storage axes to logical axes `letters`; checks every extent."""
    missing = sorted({letter for letter, _ in axes} - set(letters))
    # Axes the target does not have must be 1 (ND of lower rank, NCHW of a 5-D tensor with one depth).
    rank = len(letters)
    all_letters = letters + "".join(missing)
    logical = [*shape, *([1] * len(missing))]
    blocks = [1] * len(all_letters)
    for (letter, role), extent in zip(axes, storage_shape, strict=True):
        axis = all_letters.index(letter)
        if role == INNER:
            blocks[axis] = extent
    for (letter, role), extent in zip(axes, storage_shape, strict=True):
        axis = all_letters.index(letter)
        want = logical[axis]
        if role == WHOLE and extent != want:
            raise LayoutError("layout.axis", axis=letter, stored=extent, extent=want, shape=shape)
        if role == OUTER and (blocks[axis] == 0 or extent != -(-want // blocks[axis])):
            raise LayoutError("layout.blocks", axis=letter, count=extent, size=blocks[axis], extent=want, shape=shape)
    for letter in letters:
        if letter not in {name for name, _ in axes} and logical[letters.index(letter)] != 1:
            raise LayoutError("layout.no_axis", axis=letter, shape=shape)
    used = [(all_letters.index(letter), role) for letter, role in axes]
    # An axis only the target has is stored as one more outermost axis of 1.
    absent = [axis for axis in range(rank) if axis not in {axis for axis, _ in used}]
    return Plan(
        (*([1] * len(absent)), *storage_shape),
        (*((axis, WHOLE) for axis in absent), *used),
        tuple(logical),
        tuple(blocks),
    )


def _nz_plan(storage_shape: tuple[int, ...], shape: tuple[int, ...]) -> Plan:
    """FRACTAL_NZ (…, C1, N1, N0, C0) to (…, N, C); a 1-D target is a single row or column of blocks."""
    if len(storage_shape) < 4:
        raise LayoutError("layout.nz_axes", count=len(storage_shape))
    if len(shape) == 1:
        rows = shape[0] if storage_shape[-4] == 1 and storage_shape[-3] > 1 else 1
        shape = (rows, shape[0] // max(rows, 1))
    if len(shape) < 2:
        shape = (1, prod(shape))
    batch = shape[:-2]
    stored_batch = storage_shape[:-4]
    if stored_batch != batch:
        if prod(stored_batch) != prod(batch):
            raise LayoutError("layout.nz_batch", batch=stored_batch, shape=shape)
        storage_shape = (*batch, *storage_shape[-4:])
    names = "".join(chr(ord("a") + position) for position in range(len(batch)))
    axes = (
        *((letter, WHOLE) for letter in names),
        ("C", OUTER), ("N", OUTER), ("N", INNER), ("C", INNER),
    )  # fmt: skip
    return _build(axes, storage_shape, names + "NC", shape)


def plan(layout: str, storage_shape: tuple[int, ...], target: str, shape: tuple[int, ...]) -> Plan:
    """Plan how a stored tensor is read in another order of axes (FORMATS.md §2).

    Parameters
    ----------
    layout, storage_shape
        How the tensor is stored, and the extents of its storage axes.
    target : str
        A plain layout. "ND" takes the named axes in the order of the layout (NC1HWC0 → NCHW, NDC1HWC0 → NCDHW);
        FRACTAL_NZ has no names and takes any target.
    shape : tuple of int
        The extents in the order of `target`, without padding.

    Raises
    ------
    LayoutError
        An axis does not fit; the message says which.
    """
    if layout == "FRACTAL_NZ":
        return _nz_plan(storage_shape, shape)
    if layout == "ND" or (layout in _PLAIN and target in ("ND", layout)) or (layout in _PLAIN and not is_named(target)):
        if prod(storage_shape) != prod(shape):
            raise LayoutError("layout.other_size", shape=storage_shape, other_shape=shape)
        return plain_plan(shape)
    if layout not in _AXES:
        raise LayoutError("layout.not_converted", layout=layout)
    axes = _AXES[layout]
    letters = target if target in _PLAIN else {"NDC1HWC0": "NCDHW", "FRACTAL_Z_3D": "DHWCN"}.get(layout, "NCHW")
    if target != "ND" and target not in _PLAIN:
        raise LayoutError("layout.not_to", layout=layout, target=target)
    if len(letters) != len(shape):
        raise LayoutError("layout.shape_axes", shape=shape, layout=letters)
    if layout in _MERGED:
        storage_shape = _split_merged(layout, storage_shape, dict(zip(letters, shape, strict=True)))
    if len(storage_shape) != len(axes):
        raise LayoutError("layout.stored_axes", layout=layout, count=len(axes), shape=storage_shape)
    return _build(axes, storage_shape, letters, shape)


def _split_merged(layout: str, storage_shape: tuple[int, ...], extents: dict[str, int]) -> tuple[int, ...]:
    """FRACTAL_Z's first axis C1*H*W taken apart by the target's H and W (and D)."""
    if len(storage_shape) != 4:
        raise LayoutError("layout.stored_axes", layout=layout, count=4, shape=storage_shape)
    first, rest = storage_shape[0], storage_shape[1:]
    split = [extents.get(letter, 1) for letter in _MERGED[layout]]
    c_position = _MERGED[layout].index("C")
    others = prod(split[:c_position] + split[c_position + 1 :])
    if others == 0 or first % others:
        raise LayoutError("layout.no_multiple", layout=layout, extent=first, factor=others)
    split[c_position] = first // others
    return (*split, *rest)


def permuted_shape(shape: tuple[int, ...], layout: str, target: str) -> tuple[int, ...] | None:
    """A shape in `layout` as one in `target`; None if they have not the same named axes."""
    if len(shape) != len(layout) or sorted(layout) != sorted(target):
        return None
    extents = dict(zip(layout, shape, strict=True))
    return tuple(extents[letter] for letter in target)


def padded_shape(layout: str, storage_shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]] | None:
    """A plain layout of a blocked tensor and its shape in it, padding included; None where that cannot be told."""
    if layout == "FRACTAL_NZ" and len(storage_shape) >= 4:
        *batch, c1, n1, n0, c0 = storage_shape
        return "ND", (*batch, n1 * n0, c1 * c0)
    axes = _AXES.get(layout, ())
    targets = candidate_targets(layout)
    if layout in _MERGED or len(axes) != len(storage_shape) or not targets:
        return None
    extents: dict[str, int] = {}
    for (letter, _), extent in zip(axes, storage_shape, strict=True):
        extents[letter] = extents.get(letter, 1) * extent
    return targets[0], tuple(extents[letter] for letter in targets[0])


def known_layouts() -> tuple[str, ...]:
    """All layouts that tensors can be read in or brought to."""
    return ("ND", *_AXES, "FRACTAL_NZ")


def blocked_plan(layout: str, shape: tuple[int, ...], target: str) -> tuple[Plan, tuple[int, ...]]:
    """How a plain `layout` of this shape is stored as a blocked `target`: the plan to read that back, and its shape."""
    axes = _AXES.get(target)
    if axes is None or not is_named(layout) or not {letter for letter, _ in axes} <= set(layout):
        raise LayoutError("layout.not_to", layout=layout, target=target)
    if len(layout) != len(shape):
        raise LayoutError("layout.shape_axes", shape=shape, layout=layout)
    extents = dict(zip(layout, shape, strict=True))
    blocked = {letter for letter, role in axes if role == INNER}
    block = {letter: 4 if target.endswith("_C04") and letter == "C" else _BLOCK for letter in blocked}
    stored_shape = tuple(
        extents[letter] if role == WHOLE else block[letter] if role == INNER else -(-extents[letter] // block[letter])
        for letter, role in axes
    )
    merged = len(_MERGED.get(target, ""))
    shown = (prod(stored_shape[:merged]), *stored_shape[merged:]) if merged else stored_shape
    return _build(axes, stored_shape, layout, shape), shown


def candidate_targets(layout: str) -> tuple[str, ...]:
    """Plain layouts a blocked one is usually read as, likeliest first (TensorFlow's before PyTorch's)."""
    return {
        "NC1HWC0": ("NHWC", "NCHW", "HWCN"),
        "NC1HWC0_C04": ("NHWC", "NCHW", "HWCN"),
        "NHWC1C0": ("NHWC", "NCHW"),
        "C1HWNC0": ("HWCN", "NCHW", "NHWC"),
        "FRACTAL_Z": ("HWCN", "NCHW", "NHWC"),
        "NDC1HWC0": ("NDHWC", "NCDHW"),
        "FRACTAL_Z_3D": ("DHWCN", "NCDHW", "NDHWC"),
    }.get(layout, ())


# --- boxes: parts of a tensor that are read at once ---------------------------------------------------------------

Box = tuple[tuple[int, int], ...]


def split_boxes(shape: tuple[int, ...], granules: tuple[int, ...], limit: int) -> list[Box]:
    """Cuts a logical shape into boxes of about `limit` elements, outer axes first, on block borders."""
    if not shape or prod(shape) == 0:
        return [tuple((0, extent) for extent in shape)] if prod(shape) else []
    steps = list(shape)
    for axis, extent in enumerate(shape):
        excess = prod(steps) / limit
        if excess <= 1:
            break
        granule = granules[axis]
        steps[axis] = min(extent, max(granule, int(extent / excess) // granule * granule))
    boxes: list[Box] = [()]
    for extent, step in zip(shape, steps, strict=True):
        boxes = [(*box, (start, min(extent, start + step))) for box in boxes for start in range(0, extent, step)]
    return boxes


def head_box(shape: tuple[int, ...], count: int) -> Box:
    """The smallest box whose first `count` elements are those of an array of `shape`."""
    box: list[tuple[int, int]] = []
    for extent in reversed(shape):
        box.append((0, min(extent, count)))
        count = -(-count // extent) if extent else 0
    return tuple(reversed(box))


def storage_slices(plan: Plan, box: Box) -> tuple[slice, ...]:
    """The part of the stored array that holds `box`, which starts on block borders."""
    slices = []
    for axis, role in plan.axes:
        start, stop = box[axis]
        block = plan.blocks[axis]
        if role == WHOLE:
            slices.append(slice(start, stop))
        elif role == OUTER:
            slices.append(slice(start // block, -(-stop // block)))
        else:
            slices.append(slice(0, block))
    return tuple(slices)


def _pieces(extent: int, block: int) -> list[tuple[slice, slice, slice]]:
    """(outer, inner, logical) slices of a blocked axis: its whole blocks, and the rest of the last one."""
    full, rest = divmod(extent, block)
    pieces = []
    if full:
        pieces.append((slice(0, full), slice(0, block), slice(0, full * block)))
    if rest:
        pieces.append((slice(full, full + 1), slice(0, rest), slice(full * block, extent)))
    return pieces


def _copy_runs(source: npt.NDArray[Any], target: npt.NDArray[Any]) -> None:
    """Copies; where the innermost axis is contiguous on both sides each run of it as one item, twice as fast."""
    itemsize, run = source.itemsize, source.shape[-1] if source.shape else 1
    if run > 1 and source.strides[-1] == target.strides[-1] == itemsize:
        item = np.dtype((np.void, run * itemsize))
        source, target = source.view(item), target.view(item)
    elif source.size >= _COMPILED and source.flags.aligned and target.flags.aligned and _copied(source, target):
        return
    np.copyto(target, source)


def _copied(source: npt.NDArray[Any], target: npt.NDArray[Any]) -> bool:
    """Copies by the compiled kernel; False where it does not."""
    compiled = library()
    if compiled is None:
        return False
    shape, *steps = (np.array(extents, np.int64) for extents in (source.shape, source.strides, target.strides))
    done: int = compiled.functions.pt_copy_axes(
        source.itemsize, source.ndim, shape.ctypes.data, steps[0].ctypes.data, steps[1].ctypes.data,
        source.ctypes.data, target.ctypes.data,
    )  # fmt: skip
    return done == 0


def copy_box(plan: Plan, stored: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    """Copies the stored part of a box (of `storage_slices`) into `out`, the box in logical order; cuts padding.

    Whole blocks and the rest of each blocked axis are copied apart, so that no padded temporary is needed.
    """
    position = {part: index for index, part in enumerate(plan.axes)}
    blocked = [(axis, OUTER) in position for axis in range(len(plan.logical_shape))]
    options = [
        _pieces(extent, plan.blocks[axis]) if blocked[axis] else [(slice(None), slice(None), slice(0, extent))]
        for axis, extent in enumerate(out.shape)
    ]
    for choice in product(*options):
        source: list[slice] = [slice(None)] * len(plan.axes)
        order: list[int] = []
        shape: list[int] = []
        for axis, (outer, inner, logical) in enumerate(choice):
            extent = logical.stop - logical.start
            if not blocked[axis]:
                order.append(position[axis, WHOLE])
                shape.append(extent)
                continue
            source[position[axis, OUTER]] = outer
            source[position[axis, INNER]] = inner
            order += [position[axis, OUTER], position[axis, INNER]]
            shape += [outer.stop - outer.start, inner.stop]
        # With the dots a scalar is a view as well; splitting axes of a view never copies: this writes into `out`.
        taken: tuple[Any, ...] = (*source, ...)
        target: tuple[Any, ...] = (*(logical for _, _, logical in choice), ...)
        _copy_runs(stored[taken].transpose(order), out[target].reshape(shape))


def fill_blocks(plan_to_plain: Plan, array: npt.NDArray[Any], stored: npt.NDArray[Any]) -> None:
    """The reverse of `copy_box`: fills the blocks of `stored`, element by index arithmetic on whole axes."""
    index: list[npt.NDArray[Any]] = []
    rank = array.ndim
    for axis, role in plan_to_plain.axes:
        positions = np.arange(array.shape[axis])
        block = plan_to_plain.blocks[axis]
        if role != WHOLE:
            positions = positions // block if role == OUTER else positions % block
        index.append(positions.reshape([-1 if other == axis else 1 for other in range(rank)]))
    stored[tuple(index)] = array


# --- In which order a single tensor is read: its values as the network sees them, or as they lie where nothing
#     tells


@dataclass(frozen=True, slots=True)
class Reading:
    """A plan, the shape and the plain layout it gives, and what the user should know of it.

    `layout` is empty where the values come in storage order. `stored` is set for a blocked target: the plan that
    reads the result back, and the result's shape.
    """

    plan: Plan
    shape: tuple[int, ...]
    layout: str
    note: Message | None = None
    stored: tuple[Plan, tuple[int, ...]] | None = None


def as_stored(tensor: Tensor, note: Message | None = None) -> Reading:
    """The values as they lie, padding included."""
    layout = tensor.layout if is_plain(tensor.layout) else ""
    return Reading(own_plan(tensor), tensor.shape, layout, note)


def reading_of(
    tensor: Tensor, origin_layout: str | None = None, origin_shape: tuple[int, ...] | None = None
) -> Reading:
    """Choose the order in which a single tensor is read: logical, without padding, where that can be told.

    Parameters
    ----------
    tensor : Tensor
        As it is stored; the shape in the dump's own header wins over `origin_shape`.
    origin_layout, origin_shape : optional
        Those of the graph.

    Returns
    -------
    Reading
        Plan, shape and plain layout; with a note and in storage order where the original shape is unknown.
    """
    if is_plain(tensor.layout):
        return as_stored(tensor)
    if not is_known(tensor.layout):
        return as_stored(tensor, Message("reason.layout.unknown", layout=tensor.layout))
    shape = tensor.origin_shape if tensor.origin_shape is not None else origin_shape
    if shape is None:
        return as_stored(tensor, Message("reason.layout.as_stored", reason=Message("reason.layout.no_original_shape")))
    named = (str(origin_layout),) if is_named(origin_layout) else ()
    fitting: list[Reading] = []
    reason = Message("reason.layout.none_fits")
    candidates = dict.fromkeys((*named, *(candidate_targets(tensor.layout) or ("ND",))))
    for target in candidates:
        try:
            fitting_plan = plan(tensor.layout, tensor.shape, target, shape)
        except LayoutError as error:
            reason = error.reason if not fitting else reason
            continue
        fitting.append(Reading(fitting_plan, shape, "ND" if tensor.layout == "FRACTAL_NZ" else target))
    if not fitting:
        return as_stored(tensor, Message("reason.layout.as_stored", reason=reason))
    first, *others = fitting
    if others and first.layout not in named:
        layouts = tuple(other.layout for other in others)
        note = Message("reason.layout.ambiguous", layout=first.layout, others=layouts)
        return Reading(first.plan, first.shape, first.layout, note)
    return first


def reading_as(
    tensor: Tensor,
    target: str,
    origin_layout: str | None = None,
    origin_shape: tuple[int, ...] | None = None,
) -> Reading:
    """The values in the layout `target`, plain or blocked. LayoutError says why they cannot be brought to it."""
    if tensor.layout == target:
        return Reading(own_plan(tensor), tensor.shape, target)
    if tensor.layout == "ND" and is_named(origin_layout) and len(str(origin_layout)) == len(tensor.shape):
        plain = Reading(own_plan(tensor), tensor.shape, str(origin_layout))
    else:
        plain = reading_of(tensor, origin_layout, origin_shape)
        if not plain.layout:
            plain = _with_padding(tensor, plain.note)
    if target in ("ND", plain.layout):
        return Reading(plain.plan, plain.shape, target, plain.note)
    if plain.layout == "ND":
        if tensor.layout == "FRACTAL_NZ" and is_named(target) and len(target) == len(plain.shape):
            return Reading(plain.plan, plain.shape, target, Message("reason.layout.taken_as", layout=target))
        raise LayoutError("layout.no_names", layout=tensor.layout, target=target)
    if is_plain(target):
        shape = permuted_shape(plain.shape, plain.layout, target)
        if shape is None:
            raise LayoutError("layout.other_axes", layout=plain.layout, shape=plain.shape, target=target)
        return Reading(plan(tensor.layout, tensor.shape, target, shape), shape, target, plain.note)
    if not is_plain(tensor.layout):
        raise LayoutError("layout.via_plain", layout=tensor.layout, target=target)
    stored = blocked_plan(plain.layout, plain.shape, target)
    return Reading(plain.plan, plain.shape, target, plain.note, stored)


def _with_padding(tensor: Tensor, why: Message | None) -> Reading:
    padded = padded_shape(tensor.layout, tensor.shape)
    if padded is None:
        raise LayoutError("layout.not_plain", layout=tensor.layout, shape=tensor.shape, reason=why)
    layout, shape = padded
    note = Message("reason.layout.padding_kept")
    return Reading(plan(tensor.layout, tensor.shape, layout, shape), shape, layout, note)
