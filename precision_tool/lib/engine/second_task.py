"""What the second pass has to know of the sums of the first: ranges, scales and floors of both sides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from precision_tool.lib.engine.sums import Sums

#: Lower clamp of the scaled values in the KL divergence: float32's epsilon.
KL_FLOOR = float(np.finfo(np.float32).eps)
#: Spans of both sides between which their quotients, down to the floor, are in float32's range.
_SMALLEST_SPAN, _LARGEST_SPAN = 1e-15, 1e15

#: The least and the largest of some values.
Extent = tuple[float, float]
#: Those of the NPU side and of the benchmark.
Ranges = tuple[Extent, Extent]


@dataclass(frozen=True, slots=True)
class SecondTask:
    """What the second pass has to know of the first one's sums, the same for all blocks.

    The blocks are taken as they are where it `is_plain`, in float64 where the spans are wide or small (`is_wide`).
    """

    first: Sums
    are_floats: bool
    ranges: Ranges
    floors: tuple[float, float]
    is_plain: bool
    is_wide: bool


def second_task(first: Sums, are_floats: bool) -> SecondTask:
    ranges = first.pair_npu_range, first.pair_golden_range
    if not are_floats:
        (x_low, x_high), (y_low, y_high) = ranges
        ranges = (0.0, float(x_high - x_low)), (0.0, float(y_high - y_low))
    is_extreme = first.is_extreme
    if is_extreme:
        ranges = _scaled_ranges(first)
    spans = [high - low for low, high in ranges if high > low]
    is_wide = bool(spans) and not _SMALLEST_SPAN < min(spans) <= max(spans) < _LARGEST_SPAN
    return SecondTask(
        first=first,
        are_floats=are_floats,
        ranges=ranges,
        floors=_floors(first, ranges),
        is_plain=not is_extreme and not is_wide and first.count == first.size,
        is_wide=is_wide,
    )


def _scaled_ranges(first: Sums) -> Ranges:
    """The ranges of the pairs' values, scaled as the second pass sees them."""
    npu, golden = first.npu.scale, first.golden.scale
    (x_low, x_high), (y_low, y_high) = first.pair_npu_range, first.pair_golden_range
    return (x_low * npu, x_high * npu), (y_low * golden, y_high * golden)


def _floors(first: Sums, ranges: Ranges) -> tuple[float, float]:
    """Lower clamps of both sides' values, less their minimum, in the KL divergence.

    A constant tensor is all floor. Any floor will do for it; the mean of the other side keeps the logarithms of the
    quotients small, which then lose nothing.
    """
    spans = [high - low for low, high in ranges]
    floors = [KL_FLOOR * span for span in spans]
    for side, other in ((0, 1), (1, 0)):
        if not spans[side] > 0:
            values = (first.npu, first.golden)[other]
            # Of extreme values inf or nan: then the span or the floor will do.
            mean = (values.mean - values.minimum) * values.scale
            floors[side] = min(max(floors[other], mean), spans[other]) if spans[other] > 0 else 1.0
    return floors[0], floors[1]
