"""What must hold of an op whatever it computes: a batch in another order, a linear op of scaled inputs, of a sum.

Inputs are small whole numbers, so that float64 is exact and equality means equality.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from opcalls import arrays_of, as_input, outputs_of
from opvalues import Array, same, same_all

from precision_tool.lib.ops.base import Input, Output, OutputSpec

PLAIN: dict[str, Any] = {"strides": [1, 1, 1, 1], "pads": [1, 1, 1, 1], "dilations": [1, 1, 1, 1],
                         "data_format": "NHWC"}  # fmt: skip
POOL: dict[str, Any] = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID", "data_format": "NHWC"}


def whole(*shape: int, seed: int = 0) -> Array:
    """Whole numbers from -8 to 8 as float64."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float64)


def images(array: Array) -> Input:
    return as_input(array, "NHWC")


def filters(array: Array) -> Input:
    return as_input(array, "HWCN")


FILTER = filters(whole(3, 3, 3, 4, seed=1))
IMAGE = (5, 6, 6, 3)
SHAPED = (OutputSpec(shape=IMAGE, layout="NHWC"),)
#: Of each op: its first input's shape and axes, the inputs after it, attributes, outputs as a graph tells them.
Case = tuple[str, tuple[int, ...], str, tuple[Any, ...], dict[str, Any], tuple[OutputSpec, ...]]
LINEAR: list[Case] = [
    ("MatMulV2", (5, 7), "ND", (whole(7, 4, seed=2),), {}, ()),
    ("BatchMatMul", (5, 2, 3), "ND", (whole(5, 3, 4, seed=2),), {}, ()),
    ("Conv2D", IMAGE, "NHWC", (FILTER,), PLAIN, ()),
    ("DepthwiseConv2D", IMAGE, "NHWC", (filters(whole(3, 3, 3, 2, seed=1)),), PLAIN, ()),
    ("Conv2DBackpropInputD", (5, 6, 6, 4), "NHWC", (), {**PLAIN, "input_size": list(IMAGE)}, SHAPED),
    ("AvgPool", IMAGE, "NHWC", (), POOL, ()),
    ("ReduceSumD", (5, 4, 3), "ND", (), {"axes": [1, 2], "keep_dims": False}, ()),
    ("ReduceMeanD", (5, 4, 3), "ND", (), {"axes": [1], "keep_dims": True}, ()),
    ("BiasAddGrad", (5, 4), "ND", (), {"data_format": "NHWC"}, ()),
    ("Neg", (5, 4), "ND", (), {}, ()),
    ("Transpose", (5, 4, 3), "ND", (np.array([0, 2, 1]),), {}, ()),
    ("CumsumD", (5, 4), "ND", (), {"axis": 1}, ()),
    ("SpaceToDepth", (5, 4, 6, 2), "ND", (), {"block_size": 2}, ()),
    ("ResizeBilinearV2D", (5, 4, 6, 2), "ND", (), {"size": [5, 7]}, ()),
    ("ResizeNearestNeighborV2Grad", (5, 4, 6, 2), "ND", (), {"size": [2, 3]}, ()),
    ("SliceD", (5, 3, 4), "ND", (), {"offsets": [0, 1, 0], "size": [-1, 1, 2]}, ()),
    ("PadD", (5, 3, 4), "ND", (), {"paddings": [[0, 0], [1, 0], [0, 2]]}, ()),
    ("TileD", (5, 3, 4), "ND", (), {"multiples": [1, 2, 1]}, ()),
]
#: These work on every row of the batch alone.
BY_ROW: list[Case] = [
    *(case for case in LINEAR if case[0] not in ("BatchMatMul", "BiasAddGrad")),
    ("BiasAdd", (5, 4), "ND", (whole(4, seed=3),), {"data_format": "NHWC"}, ()),
    ("Relu", (5, 4), "ND", (), {}, ()),
    ("ReduceMaxD", (5, 3, 4), "ND", (), {"axes": [2], "keep_dims": True}, ()),
    ("Tanh", (5, 4), "ND", (), {}, ()),
    ("MaxPool", IMAGE, "NHWC", (), POOL, ()),
    ("SoftmaxV2", (5, 4), "ND", (), {"axes": [-1]}, ()),
    ("ArgMaxD", (5, 4), "ND", (), {"dimension": 1}, ()),
    ("TopKD", (5, 4), "ND", (), {"k": 2, "sorted": True}, ()),
    ("LayerNorm", (5, 6), "ND", (whole(6, seed=4), whole(6, seed=5)),
     {"begin_norm_axis": 1, "begin_params_axis": 1, "epsilon": 1e-5}, ()),
]  # fmt: skip


def run(case: Case, first: Array) -> list[Output]:
    """Every output of the op for a first input of these numbers."""
    op_type, _, layout, others, attrs, expected = case
    inputs = (as_input(first, layout), *others)
    if op_type == "Conv2DBackpropInputD":  # its filter comes first
        inputs = (FILTER, images(first))
    return outputs_of(op_type, *inputs, specs=expected, **attrs)


@pytest.mark.parametrize("case", BY_ROW, ids=lambda case: case[0])
def test_a_batch_in_another_order(case: Case) -> None:
    x = whole(*case[1], seed=7)
    order = np.array([3, 0, 4, 1, 2])
    plain, turned = run(case, x), run(case, x[order])
    assert plain[0].array.shape[0] == 5
    same_all([output.array[order] for output in plain], [output.array for output in turned])


@pytest.mark.parametrize("case", LINEAR, ids=lambda case: case[0])
def test_a_linear_op_of_a_scaled_input(case: Case) -> None:
    """By a power of two, which changes no digit."""
    x = whole(*case[1], seed=8)
    plain = run(case, x)
    for factor in (-4.0, 2.0**-20, 0.0):
        for one, other in zip(plain, run(case, factor * x), strict=True):
            same(factor * one.array, other.array)
            np.testing.assert_allclose(other.summed, abs(factor) * np.asarray(one.summed), rtol=1e-12)
            np.testing.assert_allclose(other.terms, abs(factor) * np.asarray(one.terms), rtol=1e-12)


@pytest.mark.parametrize("case", LINEAR, ids=lambda case: case[0])
def test_a_linear_op_of_a_sum(case: Case) -> None:
    x, y = whole(*case[1], seed=9), whole(*case[1], seed=10)
    for both, one, other in zip(run(case, x + y), run(case, x), run(case, y), strict=True):
        np.testing.assert_allclose(both.array, one.array + other.array, rtol=1e-14, atol=1e-13)


@pytest.mark.parametrize(("op_type", "axis"), [("ReduceSumD", 0), ("ReduceSumD", 1), ("MatMulV2", 1)])
def test_a_sum_in_two_parts(op_type: str, axis: int) -> None:
    """The sum over a whole axis is that of its halves."""
    x, y = whole(8, 6, seed=11), whole(6, 4, seed=12)
    if op_type == "MatMulV2":
        (both,) = arrays_of(op_type, x, y)
        (one,), (other,) = arrays_of(op_type, x[:, :2], y[:2]), arrays_of(op_type, x[:, 2:], y[2:])
    else:
        halves = np.split(x, [2], axis)
        attrs: dict[str, Any] = {"axes": [axis], "keep_dims": False}
        (both,) = arrays_of(op_type, x, **attrs)
        (one,), (other,) = (arrays_of(op_type, part, **attrs) for part in halves)
    same(both, np.asarray(one) + np.asarray(other))
