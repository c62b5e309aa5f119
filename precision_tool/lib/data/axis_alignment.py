"""How an NPU tensor and its benchmark tensor are read so that equal positions mean the same element."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from precision_tool.lib.io import data_types, layouts
from precision_tool.lib.io.layouts import LayoutError
from precision_tool.lib.messages import Message
from precision_tool.lib.model.tensor import Plan, Tensor


@dataclass(frozen=True, slots=True)
class Alignment:
    """Both reading plans, over one logical shape, and the shape the result file prints.

    `golden_layout` is the order of the benchmark tensor's axes, where their names are known, else empty.
    """

    npu_plan: Plan
    golden_plan: Plan
    shape: tuple[int, ...]
    note: Message | None = None
    golden_layout: str = ""

    def error_shape(self, golden: Tensor) -> tuple[int, ...]:
        """The shape in which the index of an error is given: the benchmark's, if its order is the one compared in."""
        is_its_order = layouts.is_plain(golden.layout) or self.npu_plan.is_flat
        return golden.shape if is_its_order else self.npu_plan.logical_shape


class SizeMismatchError(LayoutError):
    """The two tensors hold different numbers of elements, padding aside."""


def printed_shape(tensor: Tensor) -> tuple[int, ...]:
    """The shape of a plain tensor as the result file prints it: ND flat, a scalar as [1]."""
    if tensor.size == 1:
        return (1,)
    return (tensor.size,) if tensor.layout == "ND" else tensor.shape


def align(
    npu: Tensor,
    golden: Tensor,
    origin_layout: str | None,
    origin_shape: tuple[int, ...] | None,
    golden_layout: str = "",
) -> Alignment:
    """Return the plans that bring two tensors to one order of elements.

    Parameters
    ----------
    npu, golden : Tensor
        The tensor under test and its benchmark tensor, of any stored layout; only their headers are used.
    origin_layout : str or None
        The layout that the graph declares for the original tensor, such as ``"NHWC"``.
    origin_shape : tuple of int or None
        The shape that the graph declares; the one in the dump's own header wins.
    golden_layout : str, optional
        The order that another copy of the benchmark tensor has shown.

    Returns
    -------
    Alignment
        Two plans over one logical shape.

    Raises
    ------
    SizeMismatchError
        The tensors hold different numbers of elements, padding aside.
    LayoutError
        There is no common order; its text is the reason for the user.
    """
    form = _form(npu), _form(golden), origin_layout, origin_shape, golden_layout
    alignment = _alignments.get(form)
    if alignment is None:
        alignment = _align(npu, golden, origin_layout, origin_shape, golden_layout)
        if npu.fortran_order or golden.fortran_order:
            alignment = _as_they_lie(alignment, npu, golden)
        if len(_alignments) >= _MAX_ALIGNMENTS:
            _alignments.clear()
        _alignments[form] = alignment
    return alignment


#: Alignments by all that they depend on: a network has few shapes, and each many times.
_alignments: dict[object, Alignment] = {}
_MAX_ALIGNMENTS = 4096


def _form(tensor: Tensor) -> tuple[object, ...]:
    """All of a tensor that its alignment depends on."""
    return tensor.dtype, tensor.shape, tensor.layout, tensor.origin_shape, tensor.fortran_order


def _align(
    npu: Tensor, golden: Tensor, origin_layout: str | None, origin_shape: tuple[int, ...] | None, golden_layout: str
) -> Alignment:
    """The plans of arrays that both lie in C order."""
    npu_complex, golden_complex = (data_types.BY_NAME[t.dtype].is_complex for t in (npu, golden))
    if npu_complex != golden_complex:
        raise LayoutError("layout.one_complex", npu=npu.dtype, golden=golden.dtype)
    if not layouts.is_known(npu.layout) and npu.size != golden.size:
        raise LayoutError("layout.unknown_padding", layout=npu.layout)
    if layouts.is_plain(golden.layout):
        if layouts.is_plain(npu.layout) or not layouts.is_known(npu.layout):
            return _align_plain(npu, golden, origin_layout)
        # A dump as benchmark knows its own layout.
        layout = golden.layout if layouts.is_named(golden.layout) else origin_layout
        return _align_blocked(npu, golden, layout, origin_shape, golden_layout)
    if (npu.layout, npu.shape) == (golden.layout, golden.shape):
        return _align_stored_alike(npu, golden, origin_layout, origin_shape)
    if layouts.is_plain(npu.layout):
        return _align_plain_with_blocked(npu, golden, origin_layout, origin_shape)
    return _align_two_blocked(npu, golden, origin_layout, origin_shape)


def _as_they_lie(alignment: Alignment, npu: Tensor, golden: Tensor) -> Alignment:
    """An alignment of C-ordered arrays for the order that each really lies in."""
    plans = alignment.npu_plan, alignment.golden_plan
    if all(plan.is_flat for plan in plans):  # read in C order, so any shape will do that keeps the axes
        shape = npu.shape if npu.fortran_order else golden.shape
        plans = layouts.plain_plan(shape), layouts.plain_plan(shape)
    npu_plan, golden_plan = (
        layouts.reversed_plan(plan, tensor.shape) if tensor.fortran_order else plan
        for plan, tensor in zip(plans, (npu, golden), strict=True)
    )
    return replace(alignment, npu_plan=npu_plan, golden_plan=golden_plan)


def _check_sizes(npu: Tensor, golden: Tensor) -> None:
    if npu.size != golden.size:
        raise SizeMismatchError(
            "layout.different_sizes", npu=size_of(npu.shape, npu.layout), golden=size_of(golden.shape)
        )


def size_of(shape: tuple[int, ...], layout: str = "", stored: tuple[int, ...] = ()) -> Message:
    """Return a shape, its number of elements, and how the tensor is stored."""
    return Message("reason.layout.size", shape=shape, count=prod(shape), layout=layout, stored=stored)


def _align_plain(npu: Tensor, golden: Tensor, origin_layout: str | None) -> Alignment:
    _check_sizes(npu, golden)
    target = golden.layout if layouts.is_named(golden.layout) else origin_layout
    converted = _align_permuted(npu, golden, target)
    if converted is not None:
        return converted
    note = None
    if layouts.squeezed(npu.shape) != layouts.squeezed(golden.shape):
        note = Message("row.data.in_storage_order", npu=npu.shape, golden=golden.shape)
    # What a dump calls its axes counts for less than what the graph declares.
    lies_alike = npu.shape == golden.shape and layouts.is_named(npu.layout) and target in (None, "ND", npu.layout)
    return Alignment(
        layouts.flat_plan(npu.size),
        layouts.flat_plan(golden.size),
        printed_shape(npu),
        note,
        npu.layout if lies_alike else "",
    )


def _align_permuted(npu: Tensor, golden: Tensor, target: str | None) -> Alignment | None:
    """Named axes in another order: the declared one, else the one that the benchmark's own shape shows."""
    if not layouts.is_named(npu.layout):
        return None
    orders = [str(target)] if layouts.is_named(target) else []
    orders += [layout for layout in layouts.plain_layouts() if layout not in orders]
    for layout in orders:
        shape = layouts.permuted_shape(npu.shape, npu.layout, layout)
        if shape != golden.shape or (layout == npu.layout and layout == target):
            continue
        if layout == npu.layout or (layout != target and npu.shape == golden.shape):
            return None  # it lies as it is
        plan = layouts.plan(npu.layout, npu.shape, layout, shape)
        note = None if layout == target else Message("row.data.other_layout", layout=layout, declared=target)
        return Alignment(plan, layouts.plain_plan(shape), shape, note, layout)
    if npu.shape != golden.shape and sorted(npu.shape) == sorted(golden.shape):
        raise LayoutError("layout.axes_unknown", npu=npu.shape, layout=npu.layout, golden=golden.shape)
    return None


def _targets(
    npu: Tensor, golden_shape: tuple[int, ...], origin_layout: str | None, origin_shape: tuple[int, ...] | None
) -> Iterator[tuple[str, tuple[int, ...], Message | None]]:
    """(plain layout, shape, note) to try, likeliest first. All have as many elements as the benchmark."""
    size = prod(golden_shape)
    declared = npu.origin_shape if npu.origin_shape is not None else origin_shape
    if declared is not None and prod(declared) != size:
        declared = None
    candidates = layouts.candidate_targets(npu.layout)
    if npu.layout == "FRACTAL_NZ":
        for shape in (declared, golden_shape):
            if shape is not None:
                yield "ND", shape, None
        return
    swapped = declared is not None and declared != golden_shape and sorted(declared) == sorted(golden_shape)
    if swapped:
        # The benchmark's own shape shows its real order when it differs from what the graph declares.
        for layout in candidates:
            if layout != origin_layout and len(layout) == len(golden_shape):
                yield layout, golden_shape, Message("row.data.other_layout", layout=layout, declared=origin_layout)
    if layouts.is_named(origin_layout) and declared is not None:
        yield str(origin_layout), declared, None
    if layouts.is_named(origin_layout) and len(golden_shape) == len(str(origin_layout)):
        yield str(origin_layout), golden_shape, None
    declared_layout = origin_layout if layouts.is_named(origin_layout) else None
    for layout in candidates:
        note = None if layout == origin_layout else Message("row.data.read_as", layout=layout, declared=declared_layout)
        if len(layout) == len(golden_shape):
            yield layout, golden_shape, note
        elif len(golden_shape) < len(layout):
            # A vector per channel, or a matrix as a 1x1 filter.
            yield layout, (*([1] * (len(layout) - len(golden_shape))), *golden_shape), note
            if layout == "NCHW" and len(golden_shape) == 2:
                yield layout, (*golden_shape, 1, 1), note
            if layout == "NCHW" and len(golden_shape) == 1:
                yield layout, (1, *golden_shape, 1, 1), note


def _align_blocked(
    npu: Tensor,
    golden: Tensor,
    origin_layout: str | None,
    origin_shape: tuple[int, ...] | None,
    golden_layout: str = "",
) -> Alignment:
    reasons: list[Message] = []
    targets = list(_targets(npu, golden.shape, origin_layout, origin_shape))
    if layouts.is_named(golden_layout) and len(golden_layout) == len(golden.shape):
        is_declared = golden_layout == origin_layout
        repaired = Message("row.data.other_layout", layout=golden_layout, declared=origin_layout)
        targets.insert(0, (golden_layout, golden.shape, None if is_declared else repaired))
    for layout, shape, note in targets:
        try:
            plan = layouts.plan(npu.layout, npu.shape, layout, shape)
        except LayoutError as error:
            reasons.append(error.reason)
            continue
        if golden.fortran_order and layouts.squeezed(shape) != layouts.squeezed(golden.shape):
            reasons.append(Message("reason.layout.fortran", shape=golden.shape, other_shape=shape))
            continue
        golden_plan = layouts.plain_plan(plan.logical_shape)
        differ = layouts.squeezed(shape) != layouts.squeezed(golden.shape)
        by_element = Message("row.data.by_element", npu=shape, golden=golden.shape) if differ else None
        return Alignment(plan, golden_plan, (1,) if prod(shape) == 1 else shape, note or by_element, layout)
    declared = npu.origin_shape if npu.origin_shape is not None else origin_shape
    if declared is not None and prod(declared) != golden.size:
        raise SizeMismatchError(
            "layout.different_sizes", npu=size_of(declared, npu.layout, npu.shape), golden=size_of(golden.shape)
        )
    why = reasons[0] if reasons else None
    raise LayoutError("layout.unlike_benchmark", layout=npu.layout, shape=npu.shape, golden=golden.shape, reason=why)


def _align_stored_alike(
    npu: Tensor, golden: Tensor, origin_layout: str | None, origin_shape: tuple[int, ...] | None
) -> Alignment:
    """Two NPU dumps stored the same way: as they lie, but padding is no data and is left out where it is known."""
    shape = npu.origin_shape or golden.origin_shape or origin_shape
    if shape and prod(shape) < npu.size:
        named = (str(origin_layout),) if layouts.is_named(origin_layout) else ()
        for layout in (*named, *(layouts.candidate_targets(npu.layout) or ("ND",))):
            try:
                plan = layouts.plan(npu.layout, npu.shape, layout, shape)
            except LayoutError:
                continue
            return Alignment(plan, plan, npu.shape)
    return Alignment(layouts.flat_plan(npu.size), layouts.flat_plan(golden.size), npu.shape)


def _align_plain_with_blocked(
    npu: Tensor, golden: Tensor, origin_layout: str | None, origin_shape: tuple[int, ...] | None
) -> Alignment:
    """An NPU dump in a plain layout with one in a blocked layout: as the other way round."""
    declared = golden.origin_shape
    if declared is not None and prod(declared) != npu.size:
        raise SizeMismatchError(
            "layout.different_sizes",
            npu=size_of(npu.shape, npu.layout),
            golden=size_of(declared, golden.layout, golden.shape),
        )
    layout = npu.layout if layouts.is_named(npu.layout) else origin_layout
    turned = _align_blocked(golden, npu, layout, origin_shape)
    return Alignment(turned.golden_plan, turned.npu_plan, turned.shape, turned.note)


def _align_two_blocked(
    npu: Tensor, golden: Tensor, origin_layout: str | None, origin_shape: tuple[int, ...] | None
) -> Alignment:
    """Two NPU dumps stored differently: both are read in the first plain layout and shape that fit both."""
    shapes = [shape for shape in (npu.origin_shape, golden.origin_shape, origin_shape) if shape]
    if not shapes:
        raise LayoutError("layout.no_shape_of_two", npu=npu.layout, golden=golden.layout)
    targets = [layout for layout in (origin_layout, npu.layout) if layout is not None and layouts.is_named(layout)]
    targets += [*layouts.candidate_targets(golden.layout), *layouts.candidate_targets(npu.layout), "ND"]
    reasons: list[Message] = []
    for target, shape in product(dict.fromkeys(targets), dict.fromkeys(shapes)):
        try:
            npu_plan, golden_plan = (
                layouts.plan(tensor.layout, tensor.shape, target, shape) for tensor in (npu, golden)
            )
        except LayoutError as error:
            reasons.append(error.reason)
            continue
        if npu_plan.logical_shape == golden_plan.logical_shape:
            return Alignment(npu_plan, golden_plan, shape)
    for shape in dict.fromkeys(shapes):
        # Two graphs may call the axes of one tensor by different names.
        npu_reading, golden_reading = (_first_fitting(tensor, targets, shape) for tensor in (npu, golden))
        if npu_reading is not None and golden_reading is not None:
            npu_plan, golden_plan = npu_reading[1], golden_reading[1]
            note = Message(
                "row.data.graphs_disagree", npu=npu.layout, npu_as=npu_reading[0],
                golden=golden.layout, golden_as=golden_reading[0],
            )  # fmt: skip
            return Alignment(npu_plan, golden_plan, shape, note)
    why = reasons[0] if reasons else None
    raise LayoutError("layout.two_shapes", npu=npu.layout, golden=golden.layout, reason=why)


def _first_fitting(tensor: Tensor, targets: Sequence[str], shape: tuple[int, ...]) -> tuple[str, Plan] | None:
    for target in dict.fromkeys(targets):
        with suppress(LayoutError):
            return target, layouts.plan(tensor.layout, tensor.shape, target, shape)
    return None
