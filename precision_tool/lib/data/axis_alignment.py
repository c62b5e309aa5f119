"""How an NPU tensor and its benchmark tensor are read so that equal positions mean the same element."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import NamedTuple

from precision_tool.lib.io import data_types, layouts
from precision_tool.lib.io.layouts import LayoutError
from precision_tool.lib.messages import Message
from precision_tool.lib.model.comparison import Status
from precision_tool.lib.model.tensor import Plan, Tensor


class Declared(NamedTuple):
    """The layout, such as ``"NHWC"``, and the shape that the graph declares for an original tensor, if it does."""

    layout: str | None = None
    shape: tuple[int, ...] | None = None

    @property
    def named_layout(self) -> str:
        """The layout if it names axes, else empty."""
        return str(self.layout) if layouts.is_named(self.layout) else ""

    def shape_of(self, npu: Tensor) -> tuple[int, ...] | None:
        """The original shape of an NPU tensor: the one in the dump's own header wins."""
        return npu.origin_shape if npu.origin_shape is not None else self.shape


UNDECLARED = Declared()


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


def status_of(error: LayoutError) -> Status:
    """Return the status of a row whose tensors have no common order."""
    return Status.SIZE_MISMATCH if isinstance(error, SizeMismatchError) else Status.LAYOUT


def printed_shape(tensor: Tensor) -> tuple[int, ...]:
    """The shape of a plain tensor as the result file prints it: ND flat, a scalar as [1]."""
    if tensor.size == 1:
        return (1,)
    return (tensor.size,) if tensor.layout == "ND" else tensor.shape


def align(npu: Tensor, golden: Tensor, declared: Declared = UNDECLARED, golden_layout: str = "") -> Alignment:
    """Return the plans that bring two tensors to one order of elements.

    Parameters
    ----------
    npu, golden : Tensor
        The tensor under test and its benchmark tensor, of any stored layout; only their headers are used.
    declared : Declared, optional
        What the graph says of the original tensor.
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
    form = _form(npu), _form(golden), declared, golden_layout
    alignment = _alignments.get(form)
    if alignment is None:
        alignment = _align(npu, golden, declared, golden_layout)
        if not (_is_in_c_order(npu) and _is_in_c_order(golden)):
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
    return tensor.dtype, tensor.shape, tensor.layout, tensor.origin_shape, tensor.fortran_order, tensor.plan


def _is_in_c_order(tensor: Tensor) -> bool:
    return tensor.plan is None and not tensor.fortran_order


def _align(npu: Tensor, golden: Tensor, declared: Declared, golden_layout: str) -> Alignment:
    """The plans of arrays that both lie in C order."""
    npu_complex, golden_complex = (data_types.BY_NAME[t.dtype].is_complex for t in (npu, golden))
    if npu_complex != golden_complex:
        raise LayoutError("layout.one_complex", npu=npu.dtype, golden=golden.dtype)
    if not layouts.is_known(npu.layout) and npu.size != golden.size:
        raise LayoutError("layout.unknown_padding", layout=npu.layout)
    if layouts.is_plain(golden.layout):
        if layouts.is_named(golden.layout):  # a dump as benchmark knows its own layout
            declared = declared._replace(layout=golden.layout)
        if layouts.is_plain(npu.layout) or not layouts.is_known(npu.layout):
            return _align_plain(npu, golden, declared.layout)
        return _align_blocked(npu, golden, declared, golden_layout)
    if (npu.layout, npu.shape) == (golden.layout, golden.shape):
        return _align_stored_alike(npu, golden, declared)
    if layouts.is_plain(npu.layout):
        return _align_plain_with_blocked(npu, golden, declared)
    return _align_two_blocked(npu, golden, declared)


def _as_they_lie(alignment: Alignment, npu: Tensor, golden: Tensor) -> Alignment:
    """An alignment of C-ordered arrays for the order that each really lies in."""
    plans = alignment.npu_plan, alignment.golden_plan
    if all(plan.is_flat for plan in plans):  # read in C order, so any shape will do that keeps the axes
        shape = golden.shape if _is_in_c_order(npu) else npu.shape
        plans = layouts.plain_plan(shape), layouts.plain_plan(shape)
    npu_plan, golden_plan = (
        plan if _is_in_c_order(tensor) else layouts.as_it_lies(plan, layouts.own_plan(tensor))
        for plan, tensor in zip(plans, (npu, golden), strict=True)
    )
    return replace(alignment, npu_plan=npu_plan, golden_plan=golden_plan)


def size_of(shape: tuple[int, ...], layout: str = "", stored: tuple[int, ...] = ()) -> Message:
    """Return a shape, its number of elements, and how the tensor is stored."""
    return Message("reason.layout.size", shape=shape, count=prod(shape), layout=layout, stored=stored)


def _align_plain(npu: Tensor, golden: Tensor, target: str | None) -> Alignment:
    if npu.size != golden.size:
        raise SizeMismatchError(
            "layout.different_sizes", npu=size_of(npu.shape, npu.layout), golden=size_of(golden.shape)
        )
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
    likeliest = [str(target)] if layouts.is_named(target) else []
    for layout in dict.fromkeys((*likeliest, *layouts.plain_layouts())):
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
    npu: Tensor, golden_shape: tuple[int, ...], declared: Declared
) -> Iterator[tuple[str, tuple[int, ...], Message | None]]:
    """(plain layout, shape, note) to try, likeliest first. All have as many elements as the benchmark."""
    shape = declared.shape_of(npu)
    if shape is not None and prod(shape) != prod(golden_shape):
        shape = None
    if npu.layout == "FRACTAL_NZ":
        yield from (("ND", each, None) for each in (shape, golden_shape) if each is not None)
        return
    candidates = layouts.candidate_targets(npu.layout)
    if shape is not None and shape != golden_shape and sorted(shape) == sorted(golden_shape):
        # The benchmark's own shape shows its real order when it differs from what the graph declares.
        for layout in candidates:
            if layout != declared.layout and len(layout) == len(golden_shape):
                yield layout, golden_shape, _other_layout(layout, declared)
    if declared.named_layout and shape is not None:
        yield declared.named_layout, shape, None
    if len(declared.named_layout) == len(golden_shape) > 0:
        yield declared.named_layout, golden_shape, None
    for layout in candidates:
        note = Message("row.data.read_as", layout=layout, declared=declared.named_layout or None)
        for fitting in _as_rank_of(layout, golden_shape):
            yield layout, fitting, None if layout == declared.layout else note


def _other_layout(layout: str, declared: Declared) -> Message | None:
    """The note on a benchmark tensor that is not in the layout that the graph declares."""
    if layout == declared.layout:
        return None
    return Message("row.data.other_layout", layout=layout, declared=declared.layout)


def _as_rank_of(layout: str, shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """A shape with the axes of a layout: a smaller one is a vector per channel, or a matrix as a 1x1 filter."""
    if len(shape) <= len(layout):
        yield (*([1] * (len(layout) - len(shape))), *shape)
    if layout == "NCHW" and len(shape) == 2:
        yield (*shape, 1, 1)
    if layout == "NCHW" and len(shape) == 1:
        yield (1, *shape, 1, 1)


def _align_blocked(npu: Tensor, golden: Tensor, declared: Declared, golden_layout: str = "") -> Alignment:
    reasons: list[Message] = []
    targets = list(_targets(npu, golden.shape, declared))
    if layouts.is_named(golden_layout) and len(golden_layout) == len(golden.shape):
        targets.insert(0, (golden_layout, golden.shape, _other_layout(golden_layout, declared)))
    for layout, shape, note in targets:
        try:
            plan = layouts.plan(npu.layout, npu.shape, layout, shape)
        except LayoutError as error:
            reasons.append(error.reason)
            continue
        differ = layouts.squeezed(shape) != layouts.squeezed(golden.shape)
        if differ and not _is_in_c_order(golden):
            reasons.append(Message("reason.layout.other_order", shape=golden.shape, other_shape=shape))
            continue
        golden_plan = layouts.plain_plan(plan.logical_shape)
        by_element = Message("row.data.by_element", npu=shape, golden=golden.shape) if differ else None
        return Alignment(plan, golden_plan, (1,) if prod(shape) == 1 else shape, note or by_element, layout)
    whole = declared.shape_of(npu)
    if whole is not None and prod(whole) != golden.size:
        raise SizeMismatchError(
            "layout.different_sizes", npu=size_of(whole, npu.layout, npu.shape), golden=size_of(golden.shape)
        )
    why = reasons[0] if reasons else None
    raise LayoutError("layout.unlike_benchmark", layout=npu.layout, shape=npu.shape, golden=golden.shape, reason=why)


def _align_stored_alike(npu: Tensor, golden: Tensor, declared: Declared) -> Alignment:
    """Two NPU dumps stored the same way: as they lie, but padding is no data and is left out where it is known."""
    shape = npu.origin_shape or golden.origin_shape or declared.shape
    if shape and prod(shape) < npu.size:
        candidates = layouts.candidate_targets(npu.layout) or ("ND",)
        reading = _first_fitting(npu, [*filter(None, [declared.named_layout]), *candidates], shape)
        if reading is not None:
            return Alignment(reading[1], reading[1], npu.shape)
    return Alignment(layouts.flat_plan(npu.size), layouts.flat_plan(golden.size), npu.shape)


def _align_plain_with_blocked(npu: Tensor, golden: Tensor, declared: Declared) -> Alignment:
    """An NPU dump in a plain layout with one in a blocked layout: as the other way round."""
    whole = golden.origin_shape
    if whole is not None and prod(whole) != npu.size:
        raise SizeMismatchError(
            "layout.different_sizes",
            npu=size_of(npu.shape, npu.layout),
            golden=size_of(whole, golden.layout, golden.shape),
        )
    if layouts.is_named(npu.layout):
        declared = declared._replace(layout=npu.layout)
    turned = _align_blocked(golden, npu, declared)
    return Alignment(turned.golden_plan, turned.npu_plan, turned.shape, turned.note)


def _align_two_blocked(npu: Tensor, golden: Tensor, declared: Declared) -> Alignment:
    """Two NPU dumps stored differently: both are read in the first plain layout and shape that fit both."""
    shapes = [shape for shape in (npu.origin_shape, golden.origin_shape, declared.shape) if shape]
    if not shapes:
        raise LayoutError("layout.no_shape_of_two", npu=npu.layout, golden=golden.layout)
    targets = [layout for layout in (declared.layout, npu.layout) if layout is not None and layouts.is_named(layout)]
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
