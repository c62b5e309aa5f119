"""What the header of a dump tells of an op that FFTS+ ran in slices: the JSON text of its first attribute.

`threadMode` (1: threads, 0: slices the graph names), `slice_instance_num`, `outputCutList` (for each output how many
pieces each axis is cut into) and `output_tensor_slice` (for each thread and output the range of each axis). As
msaccucmp reads them (dump_parse/dump_data_object.py).
"""

from __future__ import annotations

import json
from typing import Any

from precision_tool.lib.model.tensor import Slicing
from precision_tool.lib.numbers import data_types

#: No op is cut into anywhere near as many slices, nor does their description take as long a text.
_MAX_SLICES = 1 << 16
_MAX_TEXT = 4 << 20


def parse_slicing(text: bytes) -> Slicing | None:
    """The slicing that the attribute of a dump's header describes; None for what is no such text."""
    if len(text) > _MAX_TEXT:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or "threadMode" not in found:
        return None
    count = found.get("slice_instance_num")
    return Slicing(
        is_threaded=bool(found["threadMode"]),
        count=count if type(count) is int and 0 < count <= _MAX_SLICES else None,
        cuts=tuple(_whole(cut) for cut in _listed(found.get("outputCutList"))),
        shapes=tuple(
            tuple(tuple(map(_length, _listed(axes))) for axes in _listed(outputs))
            for outputs in _listed(found.get("output_tensor_slice"))
        ),
    )


def _listed(value: Any) -> list[Any]:
    return value[:_MAX_SLICES] if isinstance(value, list) else []


def _whole(value: Any) -> tuple[int, ...]:
    """Whole numbers; a cut that is none counts as an axis in one piece."""
    return tuple(one if type(one) is int else 1 for one in _listed(value)[: data_types.MAX_RANK])


def _length(axis: Any) -> int:
    """How far a range of an axis reaches; -1 for what is no range, which no shape has."""
    low, high = (axis.get("lower"), axis.get("higher")) if isinstance(axis, dict) else (None, None)
    return high - low if type(low) is int and type(high) is int else -1
