"""The values of a few tensors, looked at closely: histograms of both sides, largest errors, where the error sits."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.compare.element_errors import compare_elements, elements_of
from precision_tool.lib.compare.scheduler import THIS_THREAD
from precision_tool.lib.compare.tensor_figures import figures_of
from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.io import data_types
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.model.comparison import Pair, Status, Summary
from precision_tool.lib.model.elements import Detail
from precision_tool.lib.model.tensor import AnyTensor, Tensor
from precision_tool.lib.view.packed_columns import Number, both, number, sound, whole

#: Bins of a histogram, and pieces that an axis is cut into.
BINS, PIECES = 32, 64
#: Largest errors that are listed.
_WORST = 8
#: Elements of a tensor, and of all together, that are read at most.
_MAX_ELEMENTS, _MAX_TOGETHER = 1 << 20, 1 << 23

Counts = npt.NDArray[np.int64]


class Budget:
    """The number of elements that may still be read."""

    def __init__(self, elements: int = _MAX_TOGETHER) -> None:
        self.left = elements

    def takes(self, elements: int) -> bool:
        """Return whether a tensor of this size may be read, and count it."""
        if elements > min(_MAX_ELEMENTS, self.left):
            return False
        self.left -= elements
        return True


def tensor_details(pair: Pair, budget: Budget) -> dict[str, Any]:
    """Return the values of both tensors of a pair, or of the only one; `note` says why something is missing.

    Histograms count finite values in bins of equal width, the same for both sides. `axes` are the shares of each piece
    of each axis in the sum of squared errors.
    """
    document: dict[str, Any] = {"slot": pair.slot, "npu": _tensor(pair.npu), "golden": _tensor(pair.golden)}
    try:
        document |= _figures(pair, budget)
    except PrecisionToolError as error:
        document["note"] = both(error.advice_message)
    return document


def _tensor(tensor: AnyTensor | None) -> dict[str, Any] | None:
    if tensor is None:
        return None
    layout = tensor.layout if isinstance(tensor, Tensor) else ""
    return {
        "dtype": tensor.dtype,
        "layout": layout,
        "shape": list(tensor.shape),
        "path": sound(shown_path(tensor.path)),
    }


def _figures(pair: Pair, budget: Budget) -> dict[str, Any]:
    sides = [side for side in (pair.npu, pair.golden) if isinstance(side, Tensor)]
    if not sides or not all(data_types.BY_NAME[side.dtype].is_numeric for side in sides):
        return {"note": both(pair.reason or "")}
    if not all(budget.takes(prod(side.shape)) for side in sides):
        return {"note": both(pair.reason or ""), "too_large": True}
    is_comparable = pair.status == Status.COMPARED and len(sides) == 2 and pair.npu_plan is not None
    if not is_comparable or any(data_types.BY_NAME[side.dtype].is_complex for side in sides):
        return {"note": both(pair.reason or ""), **_single_sides(pair)}
    detail = compare_elements(pair, THIS_THREAD, atol=0.0, rtol=0.0, shown=_WORST)
    return {"note": both(pair.reason or ""), **_compared(pair, detail)}


def _single_sides(pair: Pair) -> dict[str, Any]:
    """Return the figures of one side, or of both where they do not fit together."""
    document: dict[str, Any] = {}
    for name, side, plan in (("npu", pair.npu, pair.npu_plan), ("golden", pair.golden, pair.golden_plan)):
        if isinstance(side, Tensor):
            figures = figures_of(side, plan, bins=BINS)
            document[f"{name}_summary"] = summary = _summary(figures.summary, side)
            document[f"{name}_histogram"] = {
                "low": summary["min"], "high": summary["max"],
                "counts": [int(count) for count in figures.histogram],
            }  # fmt: skip
    return document


def _compared(pair: Pair, detail: Detail) -> dict[str, Any]:
    row = detail.comparison
    assert row.npu is not None
    assert row.golden is not None
    ends = [row.npu.minimum, row.npu.maximum, row.golden.minimum, row.golden.maximum]
    finite = [end for end in ends if isfinite(end)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    npu, golden, shares = _pass(pair, detail.shape, low, high)
    are_integers = _has_integers(pair.npu) and _has_integers(pair.golden)
    end = whole if are_integers else number
    between = {"low": end(low), "high": end(high)}

    def value(element: float, tensor: AnyTensor | None) -> Number:
        return whole(element) if _has_integers(tensor) else number(float(element), 9)

    return {
        "shape": list(detail.shape),
        "elements": detail.count,
        "equal": detail.equal,
        "npu_summary": _summary(row.npu, pair.npu),
        "golden_summary": _summary(row.golden, pair.golden),
        "npu_histogram": {**between, "counts": npu.tolist()},
        "golden_histogram": {**between, "counts": golden.tolist()},
        "errors": [
            {"from": number(step.low), "to": number(step.high), "count": step.count} for step in detail.histogram
        ],
        "worst": [
            {
                "index": list(element.index),
                "npu": value(element.npu, pair.npu),
                "golden": value(element.golden, pair.golden),
                "error": whole(element.error) if are_integers else number(float(element.error)),
                "relative": number(element.relative),
            }
            for element in detail.worst_absolute
        ],
        "axes": shares,
    }  # fmt: skip


def _has_integers(tensor: AnyTensor | None) -> bool:
    return tensor is not None and data_types.BY_NAME[tensor.dtype].is_integer


def _summary(summary: Summary, tensor: AnyTensor | None) -> dict[str, Any]:
    end = whole if _has_integers(tensor) else number
    return {
        "count": summary.count, "min": end(summary.minimum), "max": end(summary.maximum), "mean": number(summary.mean),
        "std": number(summary.std), "nan": summary.nan_count, "inf": summary.inf_count,
        "zeros": summary.zero_count,
    }  # fmt: skip


def _pass(pair: Pair, shape: Sequence[int], low: float, high: float) -> tuple[Counts, Counts, list[dict[str, Any]]]:
    """Return histograms of both sides between `low` and `high`, and the share of each axis piece in the error."""
    counts = [np.zeros(BINS, np.int64), np.zeros(BINS, np.int64)]
    axes = [np.zeros(extent if prod(shape) else 0) for extent in shape]  # whatever size an empty tensor claims
    for span, x, y, _ in elements_of(pair):
        sides = (np.asarray(x, np.float64), np.asarray(y, np.float64))
        for side, values in enumerate(sides):
            counts[side] += _histogram(values, low, high)
        with np.errstate(all="ignore"):
            squares = (sides[0] - sides[1]) ** 2
        squares[~np.isfinite(squares)] = 0.0
        if not squares.any() or not axes or len(span.extents) != len(axes):  # a scalar has no axes
            continue
        places = np.unravel_index(np.arange(span.start, span.start + squares.size), span.extents)
        for axis, (place, lowest) in enumerate(zip(places, span.lows, strict=True)):
            axes[axis] += np.bincount(place + lowest, squares, axes[axis].size)
    return counts[0], counts[1], [_axis(axis, sums) for axis, sums in enumerate(axes) if sums.size > 1 and sums.any()]


def _histogram(values: npt.NDArray[np.float64], low: float, high: float) -> Counts:
    finite = values[np.isfinite(values)]
    if not finite.size or low == high:
        counts = np.zeros(BINS, np.int64)
        counts[0] = finite.size
        return counts
    # Halved, as the width of all float64 numbers is none.
    place = (finite / 2 - low / 2) / (high / 2 - low / 2) * BINS
    return np.bincount(np.clip(place, 0, BINS - 1).astype(np.int64), minlength=BINS)


def _axis(axis: int, sums: npt.NDArray[np.float64]) -> dict[str, Any]:
    """Return the shares of an axis, in at most PIECES pieces."""
    extent = sums.size
    starts = np.unique(np.linspace(0, extent, min(PIECES, extent), endpoint=False).astype(np.int64))
    with np.errstate(all="ignore"):
        shares = np.add.reduceat(sums / sums.max(), starts)
    return {"axis": axis, "extent": extent, "shares": [number(float(share), 3) for share in shares / shares.sum()]}
