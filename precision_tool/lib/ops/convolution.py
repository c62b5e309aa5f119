"""Convolutions of two and three axes of space, depthwise and transposed ones, and their gradients.

Sources: GE's prototypes in nn_calculation_ops.h, TensorFlow's Conv2D, Conv3D, DepthwiseConv2dNative and gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from precision_tool.lib.messages import Message
from precision_tool.lib.ops.base import (
    Call,
    Doubles,
    Input,
    Kind,
    NotComputedError,
    Output,
    Outputs,
    Places,
    RowSums,
    check_no_inputs_from,
    needed,
    op,
    optional,
)
from precision_tool.lib.ops.correlation import Factors, Forward, ToFilter, ToImage
from precision_tool.lib.ops.matrix import crossings, limited, rounded, signs_of
from precision_tool.lib.ops.op_arguments import floats, integer, required_numbers, whole_numbers
from precision_tool.lib.ops.windows import (
    along_space,
    as_script,
    channels_last,
    expected,
    explicit_pads,
    has_channels_first,
    image,
    image_shape,
    script_shape,
    windows_of,
)

#: How a filter's axes stand in the script, by layout: the permutation to (*kernel, channels, kernels).
_FILTER_AXES: dict[int, dict[str, tuple[int, ...]]] = {
    2: {"NCHW": (2, 3, 1, 0), "NHWC": (1, 2, 3, 0), "HWCN": (0, 1, 2, 3)},
    3: {"NCDHW": (2, 3, 4, 1, 0), "NDHWC": (1, 2, 3, 4, 0), "DHWCN": (0, 1, 2, 3, 4)},
}


@dataclass(frozen=True, slots=True)
class _FilterForm:
    """Layout of filters in the script, and in groups.

    `shape` is (*kernel, channels, kernels) of the script's numbers. With `has_multipliers` the last axes are the
    channels and the results of each (depthwise), which in groups is (*kernel, 1, channels · multiplier).
    """

    axes: tuple[int, ...]
    shape: tuple[int, ...]
    has_multipliers: bool = False

    @property
    def grouped(self) -> tuple[int, ...]:
        *kernel, channels, kernels = self.shape
        return (*kernel, 1, channels * kernels) if self.has_multipliers else self.shape

    def in_groups(self, filters: Doubles) -> Doubles:
        return filters.transpose(self.axes).reshape(self.grouped)

    def as_script(self, filters: Doubles) -> Doubles:
        return filters.reshape(self.shape).transpose(np.argsort(self.axes))

    def places(self, places: Places) -> tuple[Places, Places]:
        """Flat places of the script as rows and columns of (kernel · channels, kernels) in groups."""
        script = np.unravel_index(places, [self.shape[axis] for axis in np.argsort(self.axes)])
        flat = np.ravel_multi_index([script[axis] for axis in self.axes], self.shape)
        return np.divmod(flat, self.grouped[-1])

    def flat(self, rows: Places, columns: Places) -> Places:
        """The opposite of `places`."""
        there = np.unravel_index(rows * self.grouped[-1] + columns, self.shape)
        back = np.argsort(self.axes)
        result: Places = np.ravel_multi_index([there[axis] for axis in back], [self.shape[axis] for axis in back])
        return result


@dataclass(frozen=True, slots=True)
class _Task:
    """The factors of a call and how the result stands in the script."""

    factors: Factors
    shape: tuple[int, ...]
    as_script: Callable[[Doubles], Doubles]
    places: Callable[[Places], tuple[Places, Places]]
    flat: Callable[[Places, Places], Places]
    #: The result in the order of the script as rows of `kernels` columns.
    as_rows: Callable[[Doubles], Doubles]
    kernels: int
    bias: Doubles | None = None

    def whole(self, *, only_values: bool = False) -> Output:
        limited(self.factors.work(), prod(self.shape))
        if only_values:
            values = self.factors.values()
            return Output(array=self.as_script(values if self.bias is None else values + self.bias))
        result, squares = self.factors.whole()
        output = rounded(result, squares, self.factors.length())
        array = output.array if self.bias is None else output.array + self.bias
        summed = output.summed if self.bias is None else np.hypot(output.summed, array)
        return Output(
            array=self.as_script(array),
            summed=self.as_script(np.asarray(summed)),
            terms=self.as_script(np.asarray(output.terms)),
        )

    def cheap_places(self, count: int) -> Places:
        return self.flat(*crossings(prod(self.shape) // max(1, self.kernels), self.kernels, count))

    def row_sums(self) -> RowSums | None:
        if self.factors.groups != 1 or not self.kernels:
            return None
        signs = signs_of(self.kernels)
        sums, squares = self.factors.row_sums(signs)
        if self.bias is not None:
            sums = sums + float(np.asarray(self.bias, np.float64) @ signs)
        every = np.arange(self.kernels)
        return RowSums(
            signs=signs, sums=sums, squares=squares, length=self.factors.length(),
            as_rows=lambda got: self.as_rows(got.reshape(self.shape)).reshape(-1, self.kernels),
            places=lambda rows: self.flat(np.repeat(rows, self.kernels), np.tile(every, len(rows))),
        )  # fmt: skip

    def at(self, places: Places) -> Output:
        rows, channels = self.places(places)
        output = rounded(*self.factors.at(rows, channels, self.kernels), self.factors.length())
        if self.bias is None:
            return output
        array = output.array + self.bias[channels]
        return Output(array=array, summed=np.hypot(output.summed, array), terms=output.terms)


# --- reading a call ---------------------------------------------------------------------------------------------------


def _filter_form(
    call: Call, shape: Sequence[int], layout: str, channels: int, kernels: int | None, groups: int | None
) -> tuple[_FilterForm, int]:
    """Return the layout of filters of this shape, and the number of groups; `groups` is None for depthwise ones.

    A filter whose layout does not fit the number of channels is tried as TensorFlow's, and so is first of all one
    that is called by the names of an image's axes with the channels last: some graphs do that.
    """
    layouts = _FILTER_AXES[len(shape) - 2]
    plain = tuple(range(len(shape)))
    named = layouts.get(layout, plain)
    for axes in dict.fromkeys((plain, named) if layout in ("NHWC", "NDHWC") else (named, plain)):
        of = tuple(shape[axis] for axis in axes)
        if groups is None:
            forms = [_FilterForm(axes, of, True), _FilterForm(axes, of)]
            fits = [of[-2] == channels, of[-2] == 1 and channels > 0 and of[-1] % channels == 0]
            for form, fit in zip(forms, fits, strict=True):
                if fit and kernels in (None, form.grouped[-1]):
                    return form, channels
        elif of[-2] * groups == channels and of[-1] % groups == 0 and kernels in (None, of[-1]):
            return _FilterForm(axes, of), groups
    if groups:
        reason = Message("reason.groups_misfit", name="filter", shape=tuple(shape), number=groups, limit=channels)
    else:
        reason = Message("reason.filter_misfit", name="filter", shape=tuple(shape), limit=channels)
    raise NotComputedError(reason)


def _groups(call: Call, is_depthwise: bool) -> int | None:
    groups = integer(call, "groups", "group", default=1)
    if groups < 1:
        raise NotComputedError("not_allowed", name="groups", value=str(groups))
    return None if is_depthwise else groups


def _filters(call: Call, filters: Input, rank: int) -> Doubles:
    if filters.array.ndim != rank + 2:
        raise NotComputedError("axis_count", name="filter", number=filters.array.ndim, limit=rank + 2)
    return floats(filters)


def _bias(call: Call, slot: int, kernels: int) -> Doubles | None:
    bias = optional(call, slot)
    check_no_inputs_from(call, slot + 1)
    if bias is None:
        return None
    if bias.array.size != kernels:
        raise NotComputedError("count_misfit", name="bias", number=bias.array.size, other="channels", limit=kernels)
    return floats(bias).reshape(-1)


def _image_task(
    call: Call, factors: Factors, shape: Sequence[int], first: bool, kernels: int, bias: Doubles | None = None
) -> _Task:
    script = script_shape(shape, first)
    expected(call, 0, script)

    def places(flat: Places) -> tuple[Places, Places]:
        at = np.unravel_index(flat, script)
        batch, *space, channel = (at[0], *at[2:], at[1]) if first else at
        return np.ravel_multi_index((batch, *space), tuple(shape[:-1])), channel

    def flat(rows: Places, channels: Places) -> Places:
        batch, *space = np.unravel_index(rows, tuple(shape[:-1]))
        at = (batch, channels, *space) if first else (batch, *space, channels)
        return np.ravel_multi_index(at, script)

    return _Task(
        factors, script, lambda array: as_script(array, first), places, flat,
        lambda array: channels_last(array, first), kernels, bias,
    )  # fmt: skip


def _forward(call: Call, rank: int, is_depthwise: bool) -> _Task:
    x = needed(call, 0)
    first = has_channels_first(call, x)
    images = image(call, x, rank)
    filters = _filters(call, needed(call, 1), rank)
    groups = _groups(call, is_depthwise)
    form, groups = _filter_form(call, filters.shape, needed(call, 1).layout, images.shape[-1], None, groups)
    windows = windows_of(call, images.shape[1:-1], form.shape[:rank], first)
    kernels = form.grouped[-1]
    factors = Forward(images, form.in_groups(filters), windows, groups)
    return _image_task(
        call, factors, (images.shape[0], *windows.count, kernels), first, kernels, _bias(call, 2, kernels)
    )


def _has_sizes_first(call: Call, slot: int) -> bool:
    """Return True if the sizes come as an input in this slot: a vector of integers, or the tensor that has them."""
    sizes = optional(call, slot)
    return len(call.inputs) >= 3 and sizes is not None and sizes.array.ndim == 1 and sizes.array.dtype.kind in "iu"


def _sizes(call: Call, names: tuple[str, ...], slot: int, rank: int) -> tuple[list[int], int]:
    """Sizes from an attribute or an input, and how many inputs they take."""
    in_slot = _has_sizes_first(call, slot)
    sizes = required_numbers(call, *names, slot=slot if in_slot else None)
    if len(sizes) != rank + 2:
        raise NotComputedError("count_misfit", name=names[0], number=len(sizes), other="axes", limit=rank + 2)
    return sizes, int(in_slot)


def _to_image(call: Call, rank: int, is_depthwise: bool) -> _Task:
    sizes, shift = _sizes(call, ("input_size", "input_sizes"), 0, rank)
    gradient = needed(call, shift + 1)
    first = has_channels_first(call, gradient)
    filters = needed(call, shift)
    check_no_inputs_from(call, shift + 2)
    return _gradient_of_image(call, rank, is_depthwise, image_shape(sizes, first), filters, gradient)


def _gradient_of_image(
    call: Call, rank: int, is_depthwise: bool, shape: tuple[int, ...], filters: Input, gradient: Input
) -> _Task:
    """The gradient of an image of this shape (channels last) for the gradient `gradient` of the result."""
    first = has_channels_first(call, gradient)
    grads = image(call, gradient, rank)
    array = _filters(call, filters, rank)
    form, groups = _filter_form(
        call, array.shape, filters.layout, shape[-1], grads.shape[-1], _groups(call, is_depthwise)
    )
    windows = windows_of(call, shape[1:-1], form.shape[:rank], first)
    _check_grads(call, grads, (shape[0], *windows.count, form.grouped[-1]))
    factors = ToImage(grads, form.in_groups(array), windows, groups)
    return _image_task(call, factors, shape, first, shape[-1])


def _check_grads(call: Call, grads: Doubles, shape: tuple[int, ...]) -> None:
    if grads.shape != shape:
        raise NotComputedError("shape_expected", name="dy", shape=grads.shape, other_shape=shape)


def _to_filter(call: Call, rank: int, is_depthwise: bool) -> _Task:
    sizes, shift = _sizes(call, ("filter_size", "filter_sizes"), 1, rank)
    x, gradient = needed(call, 0), needed(call, shift + 1)
    check_no_inputs_from(call, shift + 2)
    first = has_channels_first(call, x)
    images, grads = image(call, x, rank), image(call, gradient, rank)
    layout = call.outputs[0].layout if call.outputs else "ND"
    form, groups = _filter_form(call, sizes, layout, images.shape[-1], grads.shape[-1], _groups(call, is_depthwise))
    windows = windows_of(call, images.shape[1:-1], form.shape[:rank], first)
    _check_grads(call, grads, (images.shape[0], *windows.count, form.grouped[-1]))
    expected(call, 0, sizes)
    factors = ToFilter(images, grads, windows, groups)
    return _Task(
        factors, tuple(sizes), form.as_script, form.places, form.flat, form.in_groups, form.grouped[-1]
    )  # fmt: skip


def _transposed(call: Call, rank: int) -> _Task:
    """A transposed convolution: the gradient of the image, with a bias."""
    sizes, shift = None, 0
    if _has_sizes_first(call, 0):
        sizes, shift = required_numbers(call, "input_size", slot=0), 1
    else:
        sizes = whole_numbers(call, "input_size")
    x, filters = needed(call, shift), needed(call, shift + 1)
    first = has_channels_first(call, x)
    grads, array = image(call, x, rank), _filters(call, filters, rank)
    groups = _groups(call, False) or 1
    axes = _FILTER_AXES[rank].get(filters.layout, tuple(range(rank + 2)))
    of = [array.shape[axis] for axis in axes]
    if not sizes or min(sizes) < 1:
        space = _space_of(call, grads.shape[1:-1], of[:rank], rank, first)
        shape = (grads.shape[0], *space, of[-2] * groups)
    else:
        if len(sizes) != rank + 2:
            raise NotComputedError("count_misfit", name="input_size", number=len(sizes), other="axes", limit=rank + 2)
        shape = image_shape(sizes, first)
    task = _gradient_of_image(call, rank, False, shape, filters, x)
    bias = _bias(call, shift + 2, task.kernels)
    return replace(task, bias=bias)


def _space_of(call: Call, count: Sequence[int], kernel: Sequence[int], rank: int, first: bool) -> tuple[int, ...]:
    """The size of the image that windows of this count come from, as far as the padding is told in numbers."""
    strides = along_space(call, ("strides", "stride"), rank, first)
    dilations = along_space(call, ("dilations", "dilation"), rank, first, 1)
    pads = explicit_pads(call, rank, first)
    if pads is None:
        raise NotComputedError("no_size")
    more = whole_numbers(call, "output_padding") or [0]
    over = (more[2:] if first else more[1:-1]) if len(more) == rank + 2 else (more * rank)[:rank]
    return tuple(
        (windows - 1) * stride + (extent - 1) * dilation + 1 - low - high + extra
        for windows, stride, extent, dilation, low, high, extra in zip(
            count, strides, kernel, dilations, *pads, over, strict=True
        )
    )


# --- the table --------------------------------------------------------------------------------------------------------


def _register(names: Sequence[str], inputs: Sequence[str], task: Callable[[Call], _Task]) -> None:
    def function(call: Call) -> Outputs:
        return [task(call).whole(only_values=call.only_values)]

    def sampled(call: Call, places: Places) -> Output:
        return task(call).at(places)

    def work(call: Call) -> float:
        return task(call).factors.work()

    def cheap_places(call: Call, count: int) -> Places:
        return task(call).cheap_places(count)

    def row_sums(call: Call) -> RowSums | None:
        return task(call).row_sums()

    op(
        *names, kind=Kind.MATRIX, inputs=inputs, sampled=sampled, work=work, cheap_places=cheap_places,
        row_sums=row_sums,
    )(function)  # fmt: skip


_register(["Conv2D"], ["x", "filter", "bias"], lambda call: _forward(call, 2, False))
_register(["Conv3D"], ["x", "filter", "bias"], lambda call: _forward(call, 3, False))
_register(
    ["DepthwiseConv2D", "DepthwiseConv2DD", "DepthwiseConv2dNative"],
    ["x", "filter", "bias"],
    lambda call: _forward(call, 2, True),
)
#: Without D the sizes are an input before the last two, or an attribute as with D: so no names by slot.
for _rank, _depthwise, _names in (
    (2, False, ("Conv2DBackprop",)),
    (3, False, ("Conv3DBackprop",)),
    (2, True, ("DepthwiseConv2DBackprop", "DepthwiseConv2dNativeBackprop")),
):
    for _name in _names:
        _to_x = partial(_to_image, rank=_rank, is_depthwise=_depthwise)
        _to_w = partial(_to_filter, rank=_rank, is_depthwise=_depthwise)
        _versions = ["", "V2"] if _rank == 3 else [""]
        _register([f"{_name}Input{version}" for version in _versions], (), _to_x)
        _register([f"{_name}Filter{version}" for version in _versions], (), _to_w)
        if not _name.endswith("NativeBackprop"):
            _register([f"{_name}InputD"], ("filter", "out_backprop"), _to_x)
            _register([f"{_name}FilterD"], ("x", "out_backprop"), _to_w)

_register(
    ["Conv2DTranspose", "Conv2DTransposeD", "Deconvolution"],
    ["x", "filter", "bias"],
    lambda call: _transposed(call, 2),
)
_register(["Conv3DTranspose", "Conv3DTransposeD"], ["x", "filter", "bias"], lambda call: _transposed(call, 3))
