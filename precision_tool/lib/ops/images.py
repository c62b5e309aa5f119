"""Resizing of images, bilinear and to the nearest pixel, with gradients; crops, and non-maximum suppression of boxes.

Sources: the prototypes of GE's image_ops.h; tf.raw_ops.ResizeBilinear and ResizeNearestNeighbor with `align_corners`
and `half_pixel_centers`. Both are linear and go axis by axis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from precision_tool.lib.ops.base import Call, Doubles, Kind, NotComputedError, Output, Outputs, check_size, needed, op
from precision_tool.lib.ops.matrix import limited
from precision_tool.lib.ops.op_arguments import (
    ROUNDOFF,
    Array,
    Mask,
    flag,
    image_axes,
    integer,
    numbers,
    real,
    required_numbers,
    scalar,
    single_number,
    text,
    typed,
)
from precision_tool.lib.ops.windows import expected

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
    """Mapping of output pixels to positions in the input."""

    align_corners: bool
    half_pixel_centers: bool

    def places(self, size: int, count: int) -> Doubles:
        """Return the positions in the input of the output's pixels along one axis."""
        out = np.arange(count, dtype=np.float64)
        if self.align_corners and count > 1:
            return out * ((size - 1) / (count - 1))
        scale = size / count
        return (out + 0.5) * scale - 0.5 if self.half_pixel_centers else out * scale

    def bilinear(self, size: int, count: int) -> Between:
        """Return the two input pixels around each output pixel, with their weights."""
        places = self.places(size, count)
        low = np.floor(places)
        ends = [np.clip(low + step, 0, size - 1).astype(np.intp) for step in (0, 1)]
        return Between(ends=(ends[0], ends[1]), parts=(1 - (places - low), places - low), size=size)

    def nearest(self, size: int, count: int) -> Pixels:
        """Return the input pixel that each output pixel copies."""
        places = self.places(size, count)
        if self.half_pixel_centers:
            places = places + 0.5
        chosen = np.floor(places + 0.5) if self.align_corners else np.floor(places + 1e-9)
        return np.clip(chosen, 0, size - 1).astype(np.intp)


def _grid(call: Call) -> Grid:
    align, half = flag(call, "align_corners"), flag(call, "half_pixel_centers")
    if align and half:
        raise NotComputedError("exclusive", name="align_corners", other="half_pixel_centers")
    return Grid(align_corners=align, half_pixel_centers=half)


def _planes(call: Call, slot: int = 0) -> tuple[Array, bool]:
    """Images with channels last, and whether they came first."""
    tensor = needed(call, slot)
    typed(call, slot)
    first = image_axes(call, tensor)[2] == 1
    return (np.moveaxis(tensor.array, 1, 3) if first else tensor.array), first


def _resized(call: Call, name: str = "images") -> tuple[Array, bool, tuple[int, int], Grid]:
    """Images with channels last, whether they came first, the size that they get, and the grid."""
    x, first = _planes(call)
    size = required_numbers(call, "size", slot=1)
    if len(size) != 2 or min(size) < 1:
        raise NotComputedError("not_allowed", name="size", value=str(size))
    check_size([x.shape[0], *size, x.shape[3]])
    if not x.size:
        raise NotComputedError("shape", name=name, shape=x.shape)
    return x, first, (size[0], size[1]), _grid(call)


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
    x, first, (height, width), grid = _resized(call)
    rows, columns = grid.bilinear(x.shape[1], height), grid.bilinear(x.shape[2], width)
    return _weighted(np.asarray(x, np.float64), rows, columns, Between.mixed, first)


@op("ResizeBilinearGrad", "ResizeBilinearV2Grad", kind=Kind.COMPOSITE, inputs=("grads", "original_image"))
def resize_bilinear_gradient(call: Call) -> Outputs:
    """The gradient for the images: each gradient spread over the pixels that it came from."""
    grads, first = _planes(call)
    image, _ = _planes(call, 1)
    if not grads.size or not image.size:
        raise NotComputedError("shape", name="images", shape=image.shape)
    grid = _grid(call)
    rows, columns = (grid.bilinear(image.shape[axis], grads.shape[axis]) for axis in (1, 2))
    return _weighted(np.asarray(grads, np.float64), rows, columns, Between.spread, first)


@op(
    "ResizeNearestNeighbor", "ResizeNearestNeighborV2", "ResizeNearestNeighborV2D",
    kind=Kind.EXACT, inputs=("x", "size"),
)  # fmt: skip
def resize_nearest(call: Call) -> Outputs:
    """Images at another size, every pixel one of the input."""
    x, first, (height, width), grid = _resized(call)
    y = x[:, grid.nearest(x.shape[1], height)][:, :, grid.nearest(x.shape[2], width)]
    return [Output(array=np.moveaxis(y, 3, 1) if first else y)]


@op(
    "ResizeNearestNeighborGrad", "ResizeNearestNeighborV2Grad", "ResizeNearestNeighborV2GradD",
    kind=Kind.SUM, inputs=("grads", "size"),
)  # fmt: skip
def resize_nearest_gradient(call: Call) -> Outputs:
    """Each gradient added to the pixel that it came from."""
    grads, first, target, grid = _resized(call, "gradients")
    chosen = [grid.nearest(size, count) for size, count in zip(target, grads.shape[1:3], strict=True)]
    rows, columns = (
        Between(ends=(places, places), parts=(np.ones(len(places)), np.zeros(len(places))), size=size)
        for size, places in zip(target, chosen, strict=True)
    )
    x = np.asarray(grads, np.float64)
    y, squares, counts = (
        columns.spread(rows.spread(values, 1, 1), 2, 1) for values in (x, np.square(x), np.ones((1, *x.shape[1:3], 1)))
    )
    scattered = np.maximum(squares - y**2 / np.maximum(counts, 1), 0)
    summed = np.where(counts > 1, np.sqrt(counts * y**2 / 3 + counts * scattered / 6), 0.0)
    return _turned(y, summed, np.sqrt(squares), first)


# --- parts of images --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Along one axis, where the pixels of every crop lie in its image; both arrays have the shape [boxes, pixels]."""

    places: Doubles
    #: How far the float32 that kernels compute places in may take them, in units of its roundoff.
    error: Doubles
    size: int

    @staticmethod
    def between(first: Doubles, last: Doubles, size: int, count: int) -> Cut:
        """`count` pixels from `first` to `last`, both in parts of the image, or the one in the middle."""
        start, end = (part[:, None] * (size - 1) for part in (first, last))
        if count > 1:
            way = np.arange(count) * ((end - start) / (count - 1))
            return Cut(places=start + way, error=2 * np.abs(start) + 4 * np.abs(way), size=size)
        return Cut(places=(start + end) / 2, error=2 * (np.abs(start) + np.abs(end)), size=size)

    def outside(self) -> Mask:
        """The pixels that lie in no image; NaN does."""
        return ~((self.places >= 0) & (self.places <= self.size - 1))

    def doubtful(self, nearest: bool) -> Mask:
        """The pixels that rounding may take across an end of the image, or to another nearest pixel."""
        switch = np.where(self.places < self.size / 2, 0, self.size - 1)
        doubtful: Mask = np.abs(self.places - switch) < self.error * ROUNDOFF["float32"]
        if nearest:
            half = np.floor(self.places) + 0.5
            doubtful |= np.abs(self.places - half) < self.error * ROUNDOFF["float32"]
        return doubtful

    def pixels(self, places: Doubles) -> Pixels:
        """Return positions as integers, clipped to the image."""
        return np.clip(np.nan_to_num(places), 0, self.size - 1).astype(np.intp)


def _cuts(call: Call, x: Array) -> tuple[Cut, Cut, Array]:
    boxes, images = np.asarray(typed(call, 1), np.float64), typed(call, 2, "iu")
    if boxes.ndim != 2 or boxes.shape[1] != 4 or images.shape != boxes.shape[:1]:
        raise NotComputedError(
            "shape_misfit", name="boxes", shape=boxes.shape, other="box_index", other_shape=images.shape
        )
    crop = required_numbers(call, "crop_size", slot=3)
    if len(crop) != 2 or min(crop) < 1:
        raise NotComputedError("not_allowed", name="crop_size", value=str(crop))
    if images.size and not 0 <= images.min() <= images.max() < x.shape[0]:
        raise NotComputedError("out_of_range", name="box_index", value=str(images.max()), limit=x.shape[0])
    check_size([len(boxes), *crop, x.shape[3]])
    rows = Cut.between(boxes[:, 0], boxes[:, 2], x.shape[1], crop[0])
    columns = Cut.between(boxes[:, 1], boxes[:, 3], x.shape[2], crop[1])
    return rows, columns, images


@op("CropAndResize", "CropAndResizeD", kind=Kind.COMPOSITE, inputs=("x", "boxes", "box_index", "crop_size"))
def crop_and_resize(call: Call) -> Outputs:
    """A part of an image for each box, resized; `extrapolation_value` where it lies outside."""
    tensor = needed(call, 0)
    height, width, channels = image_axes(call, tensor)
    x = np.asarray(np.transpose(typed(call, 0), (0, height, width, channels)), np.float64)
    if not x.size:
        raise NotComputedError("shape", name="images", shape=x.shape)
    method = text(call, "method", default="bilinear")
    if method not in ("bilinear", "nearest"):
        raise NotComputedError("no_variant", name="method", value=method)
    rows, columns, images = _cuts(call, x)
    outside = (rows.outside()[:, :, None] | columns.outside()[:, None, :])[..., None]
    nearest = method == "nearest"
    unsure = (rows.doubtful(nearest)[:, :, None] | columns.doubtful(nearest)[:, None, :])[..., None]

    def taken(row: Doubles, column: Doubles) -> Doubles:
        result: Doubles = x[images[:, None, None], rows.pixels(row)[:, :, None], columns.pixels(column)[:, None, :]]
        return result

    if nearest:
        y, variance = taken(np.floor(rows.places + 0.5), np.floor(columns.places + 0.5)), np.zeros(())
    else:
        y, variance = _bilinear_parts(rows, columns, taken)
    y = np.where(outside, real(call, "extrapolation_value", default=0.0), y)
    back = np.argsort((0, height, width, channels))
    summed = np.sqrt(np.where(outside, 0.0, np.broadcast_to(variance, y.shape)))
    doubtful = np.broadcast_to(unsure, y.shape)
    return [Output(array=y.transpose(back), summed=summed.transpose(back), doubtful=doubtful.transpose(back))]


def _bilinear_parts(rows: Cut, columns: Cut, taken: Callable[[Doubles, Doubles], Doubles]) -> tuple[Doubles, Doubles]:
    """The mixture of four pixels, and the variance that rounding of the places and of the sums makes of it."""
    top, left = np.floor(rows.places), np.floor(columns.places)
    down = (rows.places - top)[:, :, None, None]
    right = (columns.places - left)[:, None, :, None]
    upper, lower = ((taken(row, left), taken(row, np.ceil(columns.places))) for row in (top, np.ceil(rows.places)))
    above, below = (ends[0] + (ends[1] - ends[0]) * right for ends in (upper, lower))
    y = above + (below - above) * down
    by_row = (below - above) * rows.error[:, :, None, None]
    by_column = np.maximum(np.abs(upper[1] - upper[0]), np.abs(lower[1] - lower[0])) * columns.error[:, None, :, None]
    sizes = sum(np.square(pixel) for pixel in (*upper, *lower))
    return y, by_row**2 + by_column**2 + sizes


# --- non-maximum suppression ------------------------------------------------------------------------------------------


#: So many units of the last place of the coordinates may an overlap move.
_MOVE = 32.0


def _overlaps(box: Doubles, others: Doubles) -> Doubles:
    """The intersection of a box with others over the union; 0 where one of them is empty."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    both = np.prod(np.maximum(high - low, 0), axis=1)
    own, area = np.prod(box[2:] - box[:2]), np.prod(others[:, 2:] - others[:, :2], axis=1)
    union = own + area - both
    result: Doubles = np.where((own > 0) & (area > 0), both / np.where(union > 0, union, 1.0), 0.0)
    return result


@op(
    "NonMaxSuppression", "NonMaxSuppressionV2", "NonMaxSuppressionV3",
    kind=Kind.EXACT, inputs=("boxes", "scores", "max_output_size", "iou_threshold", "score_threshold"),
)  # fmt: skip
def non_max_suppression(call: Call) -> Outputs:
    """The boxes of the highest scores, in that order, less those that overlap with a better one."""
    boxes, scores = numbers(call, 0, 1)
    if boxes.ndim != 2 or boxes.shape[1] != 4 or scores.shape != boxes.shape[:1]:
        raise NotComputedError(
            "shape_misfit", name="scores", shape=scores.shape, other="boxes", other_shape=boxes.shape
        )
    most = single_number(call, "max_output_size", slot=2)
    limited(16.0 * min(most, len(scores)) * len(scores), len(scores))
    if integer(call, "offset", default=0):
        raise NotComputedError("undocumented", name="offset")
    threshold = scalar(call, 3) if len(call.inputs) > 3 else real(call, "iou_threshold", default=0.5)
    lowest = scalar(call, 4) if len(call.inputs) > 4 else -np.inf
    boxes = np.concatenate([np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])], axis=1)
    unit = max(ROUNDOFF.get(needed(call, slot).dtype, ROUNDOFF["float32"]) for slot in (0, 1))
    chosen = np.array(_chosen(boxes, scores, most, threshold, lowest, unit), np.int64)
    expected(call, 0, chosen.shape)  # one of a fixed size is filled with what is not documented
    return [Output(array=chosen)]


def _chosen(boxes: Doubles, scores: Doubles, most: int, threshold: float, lowest: float, unit: float) -> list[int]:
    for name, array in (("boxes", boxes), ("scores", scores)):
        if not np.isfinite(array).all():
            raise NotComputedError("not_finite", name=name)
    order: Array = np.argsort(-scores, kind="stable")
    order = order[scores[order] > lowest]
    chosen: list[int] = []
    left = order
    while left.size and len(chosen) < most:
        best, left = int(left[0]), left[1:]
        if left.size and scores[left[0]] == scores[best]:
            raise NotComputedError("tied", name="scores")
        chosen.append(best)
        overlap = _overlaps(boxes[best], boxes[left])
        if (np.abs(overlap - threshold) <= _MOVE * unit).any():
            raise NotComputedError("at_threshold", name="overlap")
        left = left[overlap <= threshold]
    return chosen
