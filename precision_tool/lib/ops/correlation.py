"""The three sums of products of a convolution: forward, to the image and to the filters.

Arrays have the channels last: images (batch, *size, channels), filters (*kernel, channels, kernels), gradients and
results of the forward one (batch, *count, kernels). Groups split the last axis of both factors and of the result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from precision_tool.lib.ops.base import Doubles, Places
from precision_tool.lib.ops.matrix import EXACT_TERMS, Product, at_places, column_factors, signed
from precision_tool.lib.ops.op_arguments import distinct
from precision_tool.lib.ops.windows import BLOCK, Windows, unrolled, windows_at, windows_over

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
    def _product(self) -> Product:
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
            return at_places(self._product(), rows, channels)
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
        return Forward(_energy(self.a), _ones(self.windows), self.windows)._whole() * column_factors(self._product())

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

    def _product(self) -> Product:
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
        return ToImage(_energy(self.a), _ones(self.windows), self.windows)._whole() * column_factors(self._product())

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

    def _product(self) -> Product:
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
            for into, image, factor in ((sums, block, grads), (squares, block**2, squared)):
                for number, (_, windows, places) in enumerate(self.windows.taps()):
                    patch = factor[(slice(None), *windows)]
                    into[number] += np.tensordot(patch, image[(slice(None), *places)], patch.ndim)
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

    def _product(self) -> Product:
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
