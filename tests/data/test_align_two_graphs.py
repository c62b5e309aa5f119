"""Two NPU dumps of one tensor whose graphs call its axes by different names (seen in the pair of LeNet)."""

from __future__ import annotations

import numpy as np
import pytest

from precision_tool.lib.data.axis_alignment import Declared, align
from precision_tool.lib.demo.dump_writer import pack
from precision_tool.lib.io.layouts import LayoutError
from precision_tool.lib.model.tensor import Plan, Tensor


def tensor(layout: str, shape: tuple[int, ...], origin: tuple[int, ...]) -> Tensor:
    return Tensor(path="", offset=0, nbytes=0, dtype="float16", shape=shape, layout=layout, origin_shape=origin)


def read(stored: np.ndarray[tuple[int, ...], np.dtype[np.float16]], plan: Plan) -> list[float]:
    """The values in the order of the plan, element by element."""
    stored = stored.reshape(plan.storage_shape)
    values = np.zeros(plan.logical_shape)
    for place in np.ndindex(*stored.shape):
        logical = [0] * len(plan.logical_shape)
        for (axis, part), at in zip(plan.axes, place, strict=True):
            logical[axis] += at * plan.blocks[axis] if part == 1 else at
        if all(at < extent for at, extent in zip(logical, plan.logical_shape, strict=True)):
            values[tuple(logical)] = stored[place]
    return [float(value) for value in values.reshape(-1)]


def test_images_that_one_graph_takes_for_filters() -> None:
    images = np.arange(2 * 3 * 4 * 5, dtype=np.float16).reshape(2, 3, 4, 5)
    as_filter, as_image = pack(images, "FRACTAL_Z", "HWCN"), pack(images, "NC1HWC0", "NHWC")
    found = align(
        tensor("FRACTAL_Z", as_filter.shape, images.shape), tensor("NC1HWC0", as_image.shape, images.shape),
        Declared("HWCN", images.shape),
    )  # fmt: skip
    assert str(found.note) == "FRACTAL_Z read as HWCN, NC1HWC0 as NHWC: the two graphs do not agree"
    assert found.shape == images.shape
    expected = [float(value) for value in images.reshape(-1)]
    assert read(as_filter, found.npu_plan) == expected
    assert read(as_image, found.golden_plan) == expected


def test_what_fits_no_names_at_all() -> None:
    with pytest.raises(LayoutError, match="stored as FRACTAL_Z and NC1HWC0"):
        align(
            tensor("FRACTAL_Z", (2, 1, 16, 16), (2, 3, 4, 5)),
            tensor("NC1HWC0", (2, 1, 3, 4, 16), (2, 3, 4, 5)),
        )
