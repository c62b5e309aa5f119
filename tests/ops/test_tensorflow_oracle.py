"""The oracle itself: what it hands over and what it tells."""

from __future__ import annotations

import numpy as np
import pytest
from opvalues import same
from tensorflow_oracle import OracleError, TensorFlow


@pytest.mark.parametrize("version", ["tensorflow", "tensorflow_115"])
def test_ops_lists_variables_gradients_and_refusals(version: str, request: pytest.FixtureRequest) -> None:
    oracle: TensorFlow = request.getfixturevalue(version)
    a, b = np.arange(6.0).reshape(2, 3), np.ones((2, 3), np.float32)
    (total,) = oracle.run("AddV2", {"x": a, "y": a})
    assert total.dtype == np.float64
    same(total, 2 * a)
    (joined,) = oracle.run("ConcatV2", {"values": [b, b], "axis": np.int32(1)})
    assert joined.shape == (2, 6)
    (cast,) = oracle.run("Cast", {"x": a}, DstT="float16")
    assert cast.dtype == np.float16
    (var,) = oracle.run(
        "ResourceApplyGradientDescent", {"var": a, "alpha": np.float64(0.5), "delta": a}, variables=["var"]
    )
    same(var, a / 2)
    (slope,) = oracle.run("Square", {"x": a}, gradient=(["x"], np.ones_like(a)))
    same(slope, 2 * a)
    assert len(oracle.run("Unpack", {"value": a}, num=2, axis=0)) == 2
    with pytest.raises(OracleError, match="AddV2"):
        oracle.run("AddV2", {"x": a, "y": np.ones((4, 5))})
