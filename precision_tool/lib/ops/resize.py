"""Resizing of images, bilinear and to the nearest pixel, with their gradients.

Sources: the prototypes of GE's image_ops.h; tf.raw_ops.ResizeBilinear and ResizeNearestNeighbor with `align_corners`
and `half_pixel_centers`. Both are linear and go axis by axis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from precision_tool.lib.ops.arguments import (
    Array,
    flag,
    image_axes,
    required_numbers,
    typed,
)
from precision_tool.lib.ops.base import Call, Doubles, Kind, NotComputedError, Output, Outputs, check_size, needed, op

Pixels = np.ndarray[tuple[int, ...], np.dtype[np.intp]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """Along one axis, of every pixel of the output: its two pixels of the input and their weights."""

    ends: tuple[Pixels, Pixels]
    parts: tuple[Doubles, Doubles]
    size: int

    def _weights(self, axis: int, power: int) -> tuple[Doubles, Doubles]:
        shape = [-1 if each == axis else 1 for each in range(4)]
        first, second = (np.power(part, power).reshape(shape) for part in self.parts)
        return first, second

    def mixed(self, x: Doubles, axis: int, power: int) -> Doubles:
        """The output's pixels; the weights to a power."""
        first, second = self._weights(axis, power)
        result: Doubles = np.take(x, self.ends[0], axis) * first + np.take(x, self.ends[1], axis) * second
        return result

    def spread(self, x: Doubles, axis: int, power: int) -> Doubles:
        """The other way around: the output's pixels summed into the input's."""
        first, second = self._weights(axis, power)
        shape = [self.size if each == axis else length for each, length in enumerate(x.shape)]
        result = np.zeros(shape)
        for places, part in zip(self.ends, (first, second), strict=True):
            np.add.at(np.moveaxis(result, axis, 0), places, np.moveaxis(x * part, axis, 0))
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """How pixels of the output lie between pixels of the input."""

    align_corners: bool
    half_pixel_centers: bool

    def places(self, size: int, wanted: int) -> Doubles:
        """Where along one axis the pixels of the output lie in the input."""
        out = np.arange(wanted, dtype=np.float64)
        if self.align_corners and wanted > 1:
            return out * ((size - 1) / (wanted - 1))
        scale = size / wanted
        return (out + 0.5) * scale - 0.5 if self.half_pixel_centers else out * scale

    def bilinear(self, size: int, wanted: int) -> Between:
        """Between which pixels of the input each pixel of the output lies."""
        places = self.places(size, wanted)
        low = np.floor(places)
        ends = [np.clip(low + step, 0, size - 1).astype(np.intp) for step in (0, 1)]
        return Between(ends=(ends[0], ends[1]), parts=(1 - (places - low), places - low), size=size)

    def nearest(self, size: int, wanted: int) -> Pixels:
        """Which pixel of the input each pixel of the output is."""
        places = self.places(size, wanted)
        if self.half_pixel_centers:
            places = places + 0.5
        chosen = np.floor(places + 0.5) if self.align_corners else np.floor(places + 1e-9)
        return np.clip(chosen, 0, size - 1).astype(np.intp)


def _grid(call: Call) -> Grid:
    align, half = flag(call, "align_corners"), flag(call, "half_pixel_centers")
    if align and half:
        raise NotComputedError("align_corners and half_pixel_centers exclude each other")
    return Grid(align_corners=align, half_pixel_centers=half)


def _planes(call: Call, slot: int = 0) -> tuple[Array, bool]:
    """Images with channels last, and whether they came first."""
    given = needed(call, slot)
    typed(call, slot)
    first = image_axes(call, given)[2] == 1
    return (np.moveaxis(given.array, 1, 3) if first else given.array), first


def _wanted(call: Call) -> tuple[int, int]:
    size = required_numbers(call, "size", slot=1)
    if len(size) != 2 or min(size) < 1:
        raise NotComputedError(f"the size {size} of images")
    return size[0], size[1]


#: `Between.mixed` or `Between.spread`.
Way = Callable[[Between, Doubles, int, int], Doubles]


def _weighted(x: Doubles, rows: Between, columns: Between, way: Way, first: bool) -> Outputs:
    """Both axes, with the sizes of what is summed.

    The weights come of positions in float32 and are off by some units of the position.
    """
    y, sizes, squares = (
        way(columns, way(rows, values, 1, power), 2, power)
        for values, power in ((x, 1), (np.abs(x), 1), (np.square(x), 2))
    )
    longest = max(rows.size, columns.size, len(rows.ends[0]), len(columns.ends[0]))
    return _turned(y, sizes * (2 + longest), np.sqrt(squares), first)


def _turned(y: Doubles, summed: Doubles, terms: Doubles, first: bool) -> Outputs:
    """An output whose channels come first again where they did."""
    y, summed, terms = (np.moveaxis(array, 3, 1) if first else array for array in (y, summed, terms))
    return [Output(array=y, summed=summed, terms=terms)]


@op("ResizeBilinear", "ResizeBilinearV2", "ResizeBilinearV2D", kind=Kind.COMPOSITE, inputs=("x", "size"))
def resize_bilinear(call: Call) -> Outputs:
    """Images at another size, interpolated."""
    x, first = _planes(call)
    height, width = _wanted(call)
    check_size([x.shape[0], height, width, x.shape[3]])
    if not x.size:
        raise NotComputedError(f"images of the shape {x.shape}")
    grid = _grid(call)
    rows, columns = grid.bilinear(x.shape[1], height), grid.bilinear(x.shape[2], width)
    return _weighted(np.asarray(x, np.float64), rows, columns, Between.mixed, first)


@op("ResizeBilinearGrad", "ResizeBilinearV2Grad", kind=Kind.COMPOSITE, inputs=("grads", "original_image"))
def resize_bilinear_gradient(call: Call) -> Outputs:
    """The gradient for the images: each gradient spread over the pixels that it came from."""
    grads, first = _planes(call)
    image, _ = _planes(call, 1)
    if not grads.size or not image.size:
        raise NotComputedError(f"images of the shape {image.shape}")
    grid = _grid(call)
    rows, columns = (grid.bilinear(image.shape[axis], grads.shape[axis]) for axis in (1, 2))
    return _weighted(np.asarray(grads, np.float64), rows, columns, Between.spread, first)


@op(
    "ResizeNearestNeighbor", "ResizeNearestNeighborV2", "ResizeNearestNeighborV2D",
    kind=Kind.EXACT, inputs=("x", "size"),
)  # fmt: skip
def resize_nearest(call: Call) -> Outputs:
    """Images at another size, every pixel one of the input."""
    x, first = _planes(call)
    height, width = _wanted(call)
    check_size([x.shape[0], height, width, x.shape[3]])
    if not x.size:
        raise NotComputedError(f"images of the shape {x.shape}")
    grid = _grid(call)
    y = x[:, grid.nearest(x.shape[1], height)][:, :, grid.nearest(x.shape[2], width)]
    return [Output(array=np.moveaxis(y, 3, 1) if first else y)]


@op(
    "ResizeNearestNeighborGrad", "ResizeNearestNeighborV2Grad", "ResizeNearestNeighborV2GradD",
    kind=Kind.SUM, inputs=("grads", "size"),
)  # fmt: skip
def resize_nearest_gradient(call: Call) -> Outputs:
    """Each gradient added to the pixel that it came from."""
    grads, first = _planes(call)
    height, width = _wanted(call)
    check_size([grads.shape[0], height, width, grads.shape[3]])
    if not grads.size:
        raise NotComputedError(f"gradients of the shape {grads.shape}")
    grid = _grid(call)
    rows, columns = (
        Between(ends=(places, places), parts=(np.ones(len(places)), np.zeros(len(places))), size=size)
        for size, places in (
            (height, grid.nearest(height, grads.shape[1])),
            (width, grid.nearest(width, grads.shape[2])),
        )
    )
    x = np.asarray(grads, np.float64)
    y, squares, counts = (
        columns.spread(rows.spread(values, 1, 1), 2, 1) for values in (x, np.square(x), np.ones((1, *x.shape[1:3], 1)))
    )
    scattered = np.maximum(squares - y**2 / np.maximum(counts, 1), 0)
    summed = np.where(counts > 1, np.sqrt(counts * y**2 / 3 + counts * scattered / 6), 0.0)
    return _turned(y, summed, np.sqrt(squares), first)
