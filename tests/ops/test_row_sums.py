"""Sums over the rows of large products: what they cost less than the product, they must be all the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from opvalues import same

from precision_tool.lib.ops import op_table as table
from precision_tool.lib.ops.base import Call, Input, OutputSpec

_RANDOM = np.random.default_rng(11)


def _given(*shape: int, layout: str = "ND") -> Input:
    return Input(array=_RANDOM.standard_normal(shape), dtype="float32", layout=layout)


CONV = {"strides": [1, 2, 1, 1], "pads": [1, 1, 1, 0], "dilations": [1, 1, 1, 1], "data_format": "NHWC"}
CALLS: dict[str, tuple[str, list[Input | None], dict[str, Any], tuple[int, ...], str]] = {
    "MatMul": ("MatMulV2", [_given(9, 5), _given(7, 5), _given(7)], {"transpose_x2": True}, (9, 7), "ND"),
    "stack": ("BatchMatMulV2", [_given(2, 3, 4, 5), _given(3, 5, 6)], {}, (2, 3, 4, 6), "ND"),
    "stack by one": ("BatchMatMulV2", [_given(2, 3, 4, 5), _given(5, 6)], {}, (2, 3, 4, 6), "ND"),
    "Conv2D": (
        "Conv2D", [_given(2, 7, 6, 3, layout="NHWC"), _given(3, 2, 3, 5, layout="HWCN"), _given(5)], CONV,
        (2, 4, 6, 5), "NHWC",
    ),
    "Conv2D NCHW": (
        "Conv2D", [_given(2, 3, 7, 6, layout="NCHW"), _given(5, 3, 3, 2, layout="NCHW")],
        CONV | {"strides": [1, 1, 2, 1], "data_format": "NCHW"}, (2, 5, 4, 6), "NCHW",
    ),
    "to image": (
        "Conv2DBackpropInputD", [_given(3, 2, 3, 5, layout="HWCN"), _given(2, 4, 6, 5, layout="NHWC")],
        CONV | {"input_size": [2, 7, 6, 3]}, (2, 7, 6, 3), "NHWC",
    ),
    "to filter": (
        "Conv2DBackpropFilterD", [_given(2, 7, 6, 3, layout="NHWC"), _given(2, 4, 6, 5, layout="NHWC")],
        CONV | {"filter_size": [3, 2, 3, 5]}, (3, 2, 3, 5), "HWCN",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CALLS))
def test_the_sums_of_rows_are_those_of_the_result(name: str) -> None:
    op_type, inputs, attrs, shape, layout = CALLS[name]
    spec = table.find(op_type)
    assert spec is not None
    assert spec.row_sums is not None
    call = Call(
        op_type=op_type, inputs=tuple(inputs), attrs=attrs,
        outputs=(OutputSpec(shape=shape, dtype="float32", layout=layout),),
    )  # fmt: skip
    (whole,) = spec.function(call)
    assert whole is not None
    sums = spec.row_sums(call)
    assert sums is not None
    rows = sums.as_rows(whole.array)
    assert rows.shape == (len(sums.sums), len(sums.signs))
    np.testing.assert_allclose(rows @ sums.signs, sums.sums, rtol=1e-10, atol=1e-10)
    # The places of some rows are those of their elements, in the order of the script.
    chosen = np.array([1, 0], np.intp)
    same(whole.array.reshape(-1)[sums.places(chosen)], rows[chosen].reshape(-1))
    # The squares of a row's products are at least those that each of its elements sums.
    terms = np.broadcast_to(np.asarray(whole.terms), whole.array.shape)
    energy = (sums.as_rows(terms) ** 2).sum(1)
    assert (sums.squares >= 0.999 * energy).all()


def test_groups_are_not_summed() -> None:
    """Each group has filters of its own."""
    spec = table.find("Conv2D")
    assert spec is not None
    assert spec.row_sums is not None
    inputs = (_given(2, 5, 5, 4, layout="NHWC"), _given(3, 3, 2, 6, layout="HWCN"))
    attrs = {"strides": [1, 1, 1, 1], "pads": [0, 0, 0, 0], "groups": 2, "data_format": "NHWC"}
    assert spec.row_sums(Call(op_type="Conv2D", inputs=inputs, attrs=attrs, outputs=())) is None
