"""Boxes of detectors.

Source: tf.image.non_max_suppression and the prototypes of GE's image_ops.h.
"""

from __future__ import annotations

import numpy as np

from precision_tool.lib.ops.arguments import ROUNDOFF, Array, integer, numbers, real, scalar, single_number
from precision_tool.lib.ops.base import Call, Doubles, Kind, NotComputedError, Output, Outputs, needed, op
from precision_tool.lib.ops.products import limited
from precision_tool.lib.ops.windows import expected

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
    found = np.array(_chosen(boxes, scores, most, threshold, lowest, unit), np.int64)
    expected(call, 0, found.shape)  # one of a fixed size is filled with what is not documented
    return [Output(array=found)]


def _chosen(boxes: Doubles, scores: Doubles, most: int, threshold: float, lowest: float, unit: float) -> list[int]:
    for name, array in (("boxes", boxes), ("scores", scores)):
        if not np.isfinite(array).all():
            raise NotComputedError("not_finite", name=name)
    order: Array = np.argsort(-scores, kind="stable")
    order = order[scores[order] > lowest]
    found: list[int] = []
    left = order
    while left.size and len(found) < most:
        best, left = int(left[0]), left[1:]
        if left.size and scores[left[0]] == scores[best]:
            raise NotComputedError("tied", name="scores")
        found.append(best)
        overlap = _overlaps(boxes[best], boxes[left])
        if (np.abs(overlap - threshold) <= _MOVE * unit).any():
            raise NotComputedError("at_threshold", name="overlap")
        left = left[overlap <= threshold]
    return found
