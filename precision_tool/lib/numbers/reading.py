"""In which order a single tensor is read: its values as the network sees them, or as they lie where nothing tells."""

from __future__ import annotations

from dataclasses import dataclass

from precision_tool.lib.model.tensor import Plan, Tensor
from precision_tool.lib.numbers import layouts
from precision_tool.lib.numbers.layouts import LayoutError


@dataclass(frozen=True, slots=True)
class Reading:
    """A plan, the shape and the plain layout it gives, and what the user should know of it.

    `layout` is empty where the values come in storage order. `stored` is set for a blocked target: the plan that
    reads the result back, and the result's shape.
    """

    plan: Plan
    shape: tuple[int, ...]
    layout: str
    note: str = ""
    stored: tuple[Plan, tuple[int, ...]] | None = None


def as_stored(tensor: Tensor, note: str = "") -> Reading:
    """The values as they lie, padding included."""
    layout = tensor.layout if layouts.is_plain(tensor.layout) else ""
    if tensor.plan is not None:
        return Reading(tensor.plan, tensor.shape, layout, note)
    return Reading(layouts.plain_plan(tensor.shape, tensor.fortran_order), tensor.shape, layout, note)


def reading_of(
    tensor: Tensor, origin_layout: str | None = None, origin_shape: tuple[int, ...] | None = None
) -> Reading:
    """The values in logical order, without padding, where the original shape is known, else as they lie.

    `origin_layout` and `origin_shape` are the graph's; the shape in the dump's own header wins.
    """
    if layouts.is_plain(tensor.layout):
        return as_stored(tensor)
    if not layouts.is_known(tensor.layout):
        return as_stored(tensor, f"layout {tensor.layout} is not known: in storage order")
    shape = tensor.origin_shape if tensor.origin_shape is not None else origin_shape
    if shape is None:
        return as_stored(tensor, "in storage order, padding included: the file does not tell the original shape")
    named = (str(origin_layout),) if layouts.is_named(origin_layout) else ()
    fitting: list[Reading] = []
    reason = "no layout fits its original shape"
    candidates = dict.fromkeys((*named, *(layouts.candidate_targets(tensor.layout) or ("ND",))))
    for target in candidates:
        try:
            plan = layouts.plan(tensor.layout, tensor.shape, target, shape)
        except LayoutError as error:
            reason = str(error) if not fitting else reason
            continue
        fitting.append(Reading(plan, shape, "ND" if tensor.layout == "FRACTAL_NZ" else target))
    if not fitting:
        return as_stored(tensor, f"in storage order, padding included: {reason}")
    first, *others = fitting
    if others and first.layout not in named:
        also = " or ".join(other.layout for other in others)
        note = f"read as {first.layout}; by its shape it could be {also} as well"
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
        return Reading(layouts.plain_plan(tensor.shape, tensor.fortran_order), tensor.shape, target)
    if tensor.layout == "ND" and layouts.is_named(origin_layout) and len(str(origin_layout)) == len(tensor.shape):
        plain = Reading(layouts.plain_plan(tensor.shape, tensor.fortran_order), tensor.shape, str(origin_layout))
    else:
        plain = reading_of(tensor, origin_layout, origin_shape)
        if not plain.layout:
            plain = _with_padding(tensor, plain.note)
    if target in ("ND", plain.layout):
        return Reading(plain.plan, plain.shape, target, plain.note)
    if plain.layout == "ND":
        if tensor.layout == "FRACTAL_NZ" and layouts.is_named(target) and len(target) == len(plain.shape):
            return Reading(plain.plan, plain.shape, target, f"its original shape is taken to be {target}")
        raise LayoutError(f"stored as {tensor.layout}: its axes have no names to bring them to {target}")
    if layouts.is_plain(target):
        shape = layouts.permuted_shape(plain.shape, plain.layout, target)
        if shape is None:
            raise LayoutError(f"{plain.layout} {list(plain.shape)} has not the axes of {target}")
        return Reading(layouts.plan(tensor.layout, tensor.shape, target, shape), shape, target, plain.note)
    if not layouts.is_plain(tensor.layout):
        raise LayoutError(f"{tensor.layout} is not converted to {target}: convert it to a plain layout first")
    stored = layouts.blocked_plan(plain.layout, plain.shape, target)
    return Reading(plain.plan, plain.shape, target, plain.note, stored)


def _with_padding(tensor: Tensor, why: str) -> Reading:
    padded = layouts.padded_shape(tensor.layout, tensor.shape)
    if padded is None:
        raise LayoutError(f"{tensor.layout} {list(tensor.shape)} cannot be brought to a plain layout: {why}")
    layout, shape = padded
    note = "its padding is kept: the file does not tell the original shape"
    return Reading(layouts.plan(tensor.layout, tensor.shape, layout, shape), shape, layout, note)
