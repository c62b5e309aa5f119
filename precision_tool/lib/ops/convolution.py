"""Convolutions of two and three axes of space, depthwise and transposed ones, and their gradients.

Sources: GE's prototypes in nn_calculation_ops.h, TensorFlow's Conv2D, Conv3D, DepthwiseConv2dNative and gradients.

The first part has their three sums of products: forward, to the image and to the filters.

Arrays have the channels last: images (batch, *size, channels), filters (*kernel, channels, kernels), gradients and
results of the forward one (batch, *count, kernels). Groups split the last axis of both factors and of the result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from precision_tool.lib.messages import Message
from precision_tool.lib.ops.base import (
    Call,
    Chained,
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
from precision_tool.lib.ops.matrix import (
    EXACT_TERMS,
    Product,
    at_places,
    chained_products,
    column_factors,
    crossings,
    limited,
    rounded,
    signed,
    signs_of,
)
from precision_tool.lib.ops.op_arguments import distinct, floats, integer, required_numbers, whole_numbers
from precision_tool.lib.ops.windows import (
    BLOCK,
    Windows,
    along_space,
    as_script,
    channels_last,
    expected,
    explicit_pads,
    has_channels_first,
    image,
    image_shape,
    script_shape,
    unrolled,
    windows_at,
    windows_of,
    windows_over,
)

#: Of a large gradient of filters every so many products are squared to tell `terms`.
_EVERY = 7
#: Products of a long sum that are added up in the type of the factors.
_PIECE = 512


@dataclass(frozen=True, slots=True)
class Factors(ABC):
    """Two factors `a` and `b`, split in `groups` along their last axes, and the windows of one over the other."""

    a: Doubles
    b: Doubles
    windows: Windows
    groups: int = 1

    @abstractmethod
    def length(self) -> int:
        """Products in each sum, where no window reaches over an edge."""

    @abstractmethod
    def work(self) -> float:
        """Multiplications, with those at the edges."""

    @abstractmethod
    def _whole(self) -> Doubles:
        """The result of one group."""

    @abstractmethod
    def _squares(self) -> Doubles:
        """About Σ p² of each sum of one group, for much less work than the sums."""

    @abstractmethod
    def _each_alone(self) -> tuple[Doubles, Doubles]:
        """Result and Σ p² where every group has one channel."""

    @abstractmethod
    def product(self) -> Product:
        """The sums of one group as a matrix product."""

    @abstractmethod
    def row_sums(self, signs: Doubles) -> tuple[Doubles, Doubles]:
        """Of one group: the sum over the columns of each row, each column with its sign, and Σ p² over them."""

    @property
    def dtype(self) -> np.dtype[np.float64]:
        """The data type of the result."""
        return np.result_type(self.a, self.b)

    @property
    def per_group(self) -> int:
        """Channels of the image in a group."""
        return int(self.a.shape[-1] // self.groups)

    def squared(self) -> Factors:
        """The factors of the squares of the products."""
        return type(self)(self.a**2, self.b**2, self.windows, self.groups)

    def split(self) -> Iterator[Factors]:
        """The groups one by one."""
        a, b = self.a.shape[-1] // self.groups, self.b.shape[-1] // self.groups
        for group in range(self.groups):
            yield type(self)(
                self.a[..., group * a : (group + 1) * a], self.b[..., group * b : (group + 1) * b], self.windows
            )

    def whole(self) -> tuple[Doubles, Doubles]:
        """The result, and Σ p² of each of its sums."""
        if self.groups > 1 and self.per_group == 1:
            return self._each_alone()
        if self.groups > 1:
            parts = [part.whole() for part in self.split()]
            return np.concatenate([part[0] for part in parts], -1), np.concatenate([part[1] for part in parts], -1)
        return self._whole(), self.squared()._whole() if self.work() <= EXACT_TERMS else self._squares()

    def values(self) -> Doubles:
        """The result alone."""
        if self.groups == 1:
            return self._whole()
        if self.per_group == 1:
            return self._each_alone()[0]
        return np.concatenate([part.values() for part in self.split()], -1)

    def at(self, rows: Places, channels: Places, total: int) -> tuple[Doubles, Doubles]:
        """Result and Σ p² at (row, channel); `total` is the number of channels of the result."""
        if self.groups == 1:
            return at_places(self.product(), rows, channels)
        if self.per_group == 1:
            return self._alone_at(rows, channels)
        values, squares = np.empty(len(rows)), np.empty(len(rows))
        per = total // self.groups
        for number, part in enumerate(self.split()):
            here = np.flatnonzero(channels // per == number)
            if len(here):
                values[here], squares[here] = part.at(rows[here], channels[here] - number * per, per)
        return values, squares

    def _alone_at(self, rows: Places, channels: Places) -> tuple[Doubles, Doubles]:
        wide = type(self)(np.asarray(self.a, np.float64), np.asarray(self.b, np.float64), self.windows, self.groups)
        result, squares = wide._each_alone()
        at = rows, channels
        return result.reshape(-1, result.shape[-1])[at], squares.reshape(-1, squares.shape[-1])[at]


def _ones(windows: Windows) -> Doubles:
    return np.ones((*windows.kernel, 1, 1))


def _blocks(array: Doubles) -> Iterator[tuple[slice, Doubles]]:
    """Yield parts of a batch as doubles."""
    at_once = max(1, BLOCK // max(1, array[:1].size))
    for start in range(0, len(array), at_once):
        some = slice(start, start + at_once)
        yield some, np.asarray(array[some], np.float64)


def _energy(array: Doubles) -> Doubles:
    """Σ over the last axis of the squares, that axis kept."""
    result: Doubles = np.einsum("...c,...c->...", array, array)[..., None]
    return result


class Forward(Factors):
    """`a` are images, `b` filters."""

    def length(self) -> int:
        return int(prod(self.windows.kernel) * self.b.shape[-2])

    def work(self) -> float:
        return float(self.a.shape[0] * prod(self.windows.count) * self.length() * self.b.shape[-1])

    def _whole(self) -> Doubles:
        result = np.empty((self.a.shape[0], *self.windows.count, self.b.shape[-1]), self.dtype)
        matrix = np.ascontiguousarray(self.b).reshape(-1, self.b.shape[-1])
        for images, lines, rows in unrolled(self.a, self.windows):
            result[images, lines] = (rows @ matrix).reshape(result[images, lines].shape)
        return result

    def _squares(self) -> Doubles:
        return Forward(_energy(self.a), _ones(self.windows), self.windows)._whole() * column_factors(self.product())

    def row_sums(self, signs: Doubles) -> tuple[Doubles, Doubles]:
        taps = [tap.reshape(-1, self.a.shape[-1]).T for tap in signed(self.b, signs)]
        shape = (self.a.shape[0], *self.windows.count)
        sums, squares = np.zeros(shape), np.zeros(shape)
        for some, block in _blocks(self.a):
            by_tap = np.moveaxis(block @ taps[0], -1, 0), np.moveaxis(block**2 @ taps[1], -1, 0)
            for number, (_, windows, places) in enumerate(self.windows.taps()):
                sums[(some, *windows)] += by_tap[0][number][(slice(None), *places)]
                squares[(some, *windows)] += by_tap[1][number][(slice(None), *places)]
        return sums.reshape(-1), squares.reshape(-1)

    def _each_alone(self) -> tuple[Doubles, Doubles]:
        groups = self.a.shape[-1]
        shape = (self.a.shape[0], *self.windows.count, groups, self.b.shape[-1] // groups)
        result, squares = np.zeros(shape), np.zeros(shape)
        for tap, windows, places in self.windows.taps():
            part = self.a[(slice(None), *places)][..., None] * self.b[tap].reshape(shape[-2:])
            result[(slice(None), *windows)] += part
            squares[(slice(None), *windows)] += part * part
        flat = (*shape[:-2], self.b.shape[-1])
        return result.reshape(flat), squares.reshape(flat)

    def product(self) -> Product:
        matrix = self.b.reshape(-1, self.b.shape[-1])
        return Product(
            rows=self.a.shape[0] * prod(self.windows.count),
            length=self.length(),
            columns=self.b.shape[-1],
            left=lambda rows: windows_at(self.a, self.windows, rows).reshape(len(rows), -1),
            right=lambda columns: matrix[:, columns],
        )

    def _alone_at(self, rows: Places, channels: Places) -> tuple[Doubles, Doubles]:
        values, squares = np.empty(len(rows)), np.empty(len(rows))
        group = channels // (self.b.shape[-1] // self.groups)
        taps = self.b.reshape(-1, self.b.shape[-1])
        at_once = max(1, BLOCK // max(1, len(taps) * self.a.shape[-1]))
        for start in range(0, len(rows), at_once):
            part = slice(start, start + at_once)
            patches = windows_at(self.a, self.windows, rows[part]).reshape(-1, len(taps), self.a.shape[-1])
            products = np.take_along_axis(patches, group[part, None, None], 2)[..., 0] * taps[:, channels[part]].T
            values[part], squares[part] = products.sum(1), (products**2).sum(1)
        return values, squares


class ToImage(Factors):
    """`a` are gradients of the forward's result, `b` filters: the gradient of the image."""

    def length(self) -> int:
        return int(prod(self.windows.kernel) * self.b.shape[-1] // self.groups)

    def work(self) -> float:
        return float(self.a.size * prod(self.windows.kernel) * self.b.shape[-2])

    @property
    def per_group(self) -> int:
        return int(self.b.shape[-2])

    def _whole(self) -> Doubles:
        batch, channels, kernels = self.a.shape[0], self.b.shape[-2], self.b.shape[-1]
        result = np.zeros((batch, *self.windows.size, channels), self.dtype)
        per_image = max(prod(self.windows.size) * channels, prod(self.windows.count) * max(channels, kernels))
        at_once = max(1, BLOCK // max(1, per_image))
        for start in range(0, batch, at_once):
            some = slice(start, start + at_once)
            block = np.ascontiguousarray(self.a[some])
            rows = block.reshape(-1, kernels)
            for tap, windows, places in self.windows.taps():
                part = (rows @ self.b[tap].T).reshape(*block.shape[:-1], channels)
                result[(some, *places)] += part[(slice(None), *windows)]
        return result

    def _squares(self) -> Doubles:
        return ToImage(_energy(self.a), _ones(self.windows), self.windows)._whole() * column_factors(self.product())

    def row_sums(self, signs: Doubles) -> tuple[Doubles, Doubles]:
        taps = [tap.reshape(-1, self.a.shape[-1]).T for tap in signed(np.moveaxis(self.b, -2, -1), signs)]
        shape = (self.a.shape[0], *self.windows.size)
        sums, squares = np.zeros(shape), np.zeros(shape)
        for some, block in _blocks(self.a):
            by_tap = np.moveaxis(block @ taps[0], -1, 0), np.moveaxis(block**2 @ taps[1], -1, 0)
            for number, (_, windows, places) in enumerate(self.windows.taps()):
                sums[(some, *places)] += by_tap[0][number][(slice(None), *windows)]
                squares[(some, *places)] += by_tap[1][number][(slice(None), *windows)]
        return sums.reshape(-1), squares.reshape(-1)

    def _each_alone(self) -> tuple[Doubles, Doubles]:
        batch, groups = self.a.shape[0], self.groups
        result = np.zeros((batch, *self.windows.size, groups))
        squares = np.zeros_like(result)
        grads = self.a.reshape(*self.a.shape[:-1], groups, -1)
        for tap, windows, places in self.windows.taps():
            part = grads[(slice(None), *windows)] * self.b[tap].reshape(groups, -1)
            result[(slice(None), *places)] += part.sum(-1)
            squares[(slice(None), *places)] += (part * part).sum(-1)
        return result, squares

    def product(self) -> Product:
        matrix = np.moveaxis(self.b, -1, -2).reshape(-1, self.b.shape[-2])
        return Product(
            rows=self.a.shape[0] * prod(self.windows.size),
            length=self.length(),
            columns=self.b.shape[-2],
            left=lambda rows: windows_over(self.a, self.windows, rows).reshape(len(rows), -1),
            right=lambda columns: matrix[:, columns],
        )

    def _alone_at(self, rows: Places, channels: Places) -> tuple[Doubles, Doubles]:
        values, squares = np.empty(len(rows)), np.empty(len(rows))
        several = self.b.shape[-1] // self.groups
        taps = self.b.reshape(-1, self.groups, several)
        at_once = max(1, BLOCK // max(1, len(taps) * self.a.shape[-1]))
        for start in range(0, len(rows), at_once):
            part = slice(start, start + at_once)
            patches = windows_over(self.a, self.windows, rows[part]).reshape(-1, len(taps), self.groups, several)
            picked = np.take_along_axis(patches, channels[part, None, None, None], 2)[:, :, 0]
            products = (picked * taps[:, channels[part]].transpose(1, 0, 2)).reshape(len(picked), -1)
            values[part], squares[part] = products.sum(1), (products**2).sum(1)
        return values, squares


class ToFilter(Factors):
    """`a` are images, `b` gradients of the forward's result: the gradient of the filters."""

    def length(self) -> int:
        return int(self.a.shape[0] * prod(self.windows.count))

    def work(self) -> float:
        return float(self.b.size) * prod(self.windows.kernel) * self.per_group

    def _shape(self) -> tuple[int, ...]:
        return (*self.windows.kernel, self.per_group, self.b.shape[-1])

    def _whole(self) -> Doubles:
        result = np.zeros((prod(self._shape()[:-1]), self.b.shape[-1]))
        for images, lines, rows in unrolled(self.a, self.windows):
            result += rows.T @ self.b[images, lines].reshape(len(rows), -1)
        return result.reshape(self._shape())

    def _squares(self) -> Doubles:
        result = np.zeros((prod(self._shape()[:-1]), self.b.shape[-1]))
        taken = 0
        for images, lines, rows in unrolled(self.a, self.windows):
            some = rows[::_EVERY]
            result += (some**2).T @ self.b[images, lines].reshape(len(rows), -1)[::_EVERY] ** 2
            taken += len(some)
        return result.reshape(self._shape()) * (self.length() / max(taken, 1))

    def at(self, rows: Places, channels: Places, total: int) -> tuple[Doubles, Doubles]:
        if self.groups > 1 or 2 * len(rows) < prod(self._shape()):
            return super().at(rows, channels, total)
        # Most of a small result: all of it.
        values, squares = self._in_pieces(self.dtype)
        if not (np.isfinite(squares) & ((squares > 0) | (values == 0))).all():  # float32 may be too narrow for squares
            values, squares = self._in_pieces(np.dtype(np.float64))
        return values[rows, channels], squares[rows, channels]

    def _in_pieces(self, dtype: np.dtype[Any]) -> tuple[Doubles, Doubles]:
        """The result as a matrix, and Σ p²: pieces of the long sums in `dtype`, and these added up in float64.

        A kernel that sums in float32 all the way is off by several times as much as short pieces in float32 are.
        """
        values, squares = np.zeros((2, prod(self._shape()[:-1]), self.b.shape[-1]))
        for images, lines, windows in unrolled(self.a, self.windows):
            grads = self.b[images, lines].reshape(len(windows), -1)
            for start in range(0, len(windows), _PIECE):
                left = windows[start : start + _PIECE].astype(dtype, copy=False).T
                right = grads[start : start + _PIECE].astype(dtype, copy=False)
                values += left @ right
                squares += left**2 @ right**2
        return values, squares

    def row_sums(self, signs: Doubles) -> tuple[Doubles, Doubles]:
        sums = np.zeros((prod(self.windows.kernel), self.per_group))
        squares = np.zeros_like(sums)
        for some, block in _blocks(self.a):
            grads, squared = signed(self.b[some], signs)
            for into, pixels, factor in ((sums, block, grads), (squares, block**2, squared)):
                for number, (_, windows, places) in enumerate(self.windows.taps()):
                    patch = factor[(slice(None), *windows)]
                    into[number] += np.tensordot(patch, pixels[(slice(None), *places)], patch.ndim)
        return sums.reshape(-1), squares.reshape(-1)

    def _each_alone(self) -> tuple[Doubles, Doubles]:
        groups = self.a.shape[-1]
        grads = self.b.reshape(*self.b.shape[:-1], groups, -1)
        result, squares = np.zeros(self._shape()), np.zeros(self._shape())
        for tap, windows, places in self.windows.taps():
            part = self.a[(slice(None), *places)][..., None] * grads[(slice(None), *windows)]
            part = part.reshape(-1, self.b.shape[-1])
            result[tap] = part.sum(0)
            squares[tap] = np.einsum("ij,ij->j", part, part)
        return result, squares

    def product(self) -> Product:
        matrix = self.b.reshape(-1, self.b.shape[-1])
        return Product(
            rows=prod(self.windows.kernel) * self.per_group,
            length=self.length(),
            columns=self.b.shape[-1],
            left=self._rows_at,
            right=lambda columns: matrix[:, columns],
        )

    def _rows_at(self, rows: Places) -> Doubles:
        result = np.zeros((self.a.shape[0], *self.windows.count, len(rows)))
        taps, channels = np.divmod(rows, self.per_group)
        everywhere = slice(None)
        for tap in distinct(taps):
            here = np.flatnonzero(taps == tap)
            at = [
                self.windows.inside(axis, int(offset))
                for axis, offset in enumerate(np.unravel_index(tap, self.windows.kernel))
            ]
            patch = self.a[(everywhere, *(pair[1] for pair in at))][..., channels[here]]
            target = result[(everywhere, *(pair[0] for pair in at))]
            target[..., here] = patch
        return result.reshape(-1, len(rows)).T


# --- layouts and ops --------------------------------------------------------------------------------------------------


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
        output = rounded(result, squares, self.factors.length(), self._chained)
        array = output.array if self.bias is None else output.array + self.bias
        summed = output.summed if self.bias is None else np.hypot(output.summed, array)
        return replace(
            output,
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
        sums = self.factors.at(rows, channels, self.kernels)
        output = rounded(*sums, self.factors.length(), self._chained)
        if self.bias is None:
            return output
        array = output.array + self.bias[channels]
        return replace(output, array=array, summed=np.hypot(output.summed, array))

    def _chained(self) -> Chained:
        group = self.factors if self.factors.groups == 1 else next(self.factors.split())
        return chained_products(group.product())


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
    ["Conv2DTranspose", "Conv2DTransposeD", "Deconvolution"], ["x", "filter", "bias"], lambda call: _transposed(call, 2)
)
_register(["Conv3DTranspose", "Conv3DTransposeD"], ["x", "filter", "bias"], lambda call: _transposed(call, 3))
