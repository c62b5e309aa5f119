"""The user's own metrics as a pass: it gathers both tensors whole, as their functions want them."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.engine.custom import MAX_BYTES, CustomMetrics, CustomValues, apply_metrics, failed_metrics
from precision_tool.lib.engine.passes import Pass
from precision_tool.lib.engine.stream import Block, PairStream, tensors_of
from precision_tool.lib.numbers import data_types
from precision_tool.lib.numbers.decode import Numbers

#: Both sides as far as they are filled, in the shape of the boxes; None where they take too much memory.
Arrays = tuple[Numbers, Numbers] | None


class OwnMetricsPass(Pass[Arrays, CustomValues]):
    """The values of the user's functions of two arrays."""

    splits = False

    def __init__(self, custom: CustomMetrics) -> None:
        self.custom = custom

    def start(self, stream: PairStream) -> Arrays:
        if _bytes(stream) > MAX_BYTES:
            return None
        one, two = (np.empty(stream.shape, dtype) for dtype in stream.dtypes)
        return one, two

    def update(self, state: Arrays, block: Block) -> None:
        if state is None:
            return
        stop = block.start + block.npu.size
        for array, items in zip(state, (block.npu, block.golden), strict=True):
            part = array[tuple(slice(*limits) for limits in block.box)]
            if part.size == items.size:
                part[...] = items.reshape(part.shape)
            else:  # a box in several blocks
                part.flat[block.start : stop] = items

    def merge(self, state: Arrays, other: Arrays) -> None:
        raise NotImplementedError("a pass that takes tensors whole has no parts")

    def finish(self, state: Arrays, second: None, stream: PairStream) -> CustomValues:
        if state is None:
            size, allowed = _bytes(stream) >> 20, MAX_BYTES >> 20
            why = f"own metrics load whole tensors, and this pair takes {size} MiB of {allowed} allowed"
            return failed_metrics(self.custom, why)
        x, y = (_as_given(side, stream) for side in state)
        return apply_metrics(self.custom, x, y)


def _bytes(stream: PairStream) -> int:
    return sum(dtype.itemsize for dtype in stream.dtypes) * stream.end


def _as_given(side: Numbers, stream: PairStream) -> npt.NDArray[Any]:
    """One side as functions get it: in the benchmark's shape, complex if it is; flat if only a part is compared."""
    array: npt.NDArray[Any] = side.reshape(-1)[: stream.end]
    if data_types.BY_NAME[tensors_of(stream.pair)[0].dtype].is_complex:
        array = array.view(np.complex64 if array.dtype.itemsize == 4 else np.complex128)
    shape = stream.pair.error_shape
    return array.reshape(shape) if array.size == prod(shape) else array
