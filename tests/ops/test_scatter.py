"""Gathers, scatters and assignments by indices against TensorFlow."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from opcalls import arrays_of, doubtful_of, outputs_of
from opvalues import FEW, SOME, Shape, close, i32, ranked, same, seeds, shapes, values, whole
from tensorflow_oracle import TensorFlow


@pytest.mark.parametrize("by_frequency", [False, True])
@FEW
@given(seed=seeds)
def test_gradients_of_words(by_frequency: bool, seed: int) -> None:
    grad, words = values((3, 4, 5), seed), whole((3, 4), seed + 1, 0, 6)
    expected = np.zeros((7, 5))
    for place in np.ndindex(3, 4):
        word = words[place]
        if word != 2:
            expected[word] += grad[place] / ((words == word).sum() if by_frequency else 1)
    attrs: dict[str, Any] = {"num_weights": 7, "padding_idx": 2, "scale_grad_by_freq": by_frequency}
    (result,) = outputs_of("EmbeddingDenseGrad", grad, words, **attrs)
    close(result.array, expected)
    counts = np.bincount(words.reshape(-1), minlength=7)
    assert (np.asarray(result.summed)[counts == 0] == 0).all()
    assert (np.asarray(result.summed)[(counts > 1) & (np.arange(7) != 2)] > 0).all()


@SOME
@given(shape=ranked, places=shapes, seed=seeds, axis=st.integers(0, 3), batch=st.integers(0, 2))
def test_gathers(tensorflow: TensorFlow, shape: Shape, places: Shape, seed: int, axis: int, batch: int) -> None:
    x, axis = values(shape, seed), axis % len(shape)
    batch = min(batch, axis, len(places))
    indices = whole(shape[:batch] + places[batch:], seed, 0, shape[axis])
    inputs: dict[str, Any] = {"params": x, "indices": indices, "axis": np.int32(axis)}
    (expected,) = tensorflow.run("GatherV2", inputs, batch_dims=batch)
    same(arrays_of("GatherV2", *inputs.values(), batch_dims=batch)[0], expected)
    same(arrays_of("GatherV2D", x, indices, axis=axis, batch_dims=batch)[0], expected)


@FEW
@given(shape=ranked, places=ranked, seed=seeds, depth=st.integers(1, 4))
def test_gathers_and_scatters_by_places(
    tensorflow: TensorFlow, shape: Shape, places: Shape, seed: int, depth: int
) -> None:
    x, depth = values(shape, seed), min(depth, len(shape))
    parts = [whole(places, seed + axis, 0, size) for axis, size in enumerate(shape[:depth])]
    indices = np.stack(parts, -1)
    (expected,) = tensorflow.run("GatherNd", {"params": x, "indices": indices})
    same(arrays_of("GatherNd", x, indices)[0], expected)
    updates = values(expected.shape, seed + 9)
    inputs = {"indices": indices, "updates": updates, "shape": np.array(shape, np.int32)}
    close(arrays_of("ScatterNd", *inputs.values())[0], tensorflow.run("ScatterNd", inputs)[0])
    inputs = {"tensor": x, "indices": indices, "updates": updates}
    for op_type in ("TensorScatterAdd", "TensorScatterSub", "TensorScatterMax", "TensorScatterMin"):
        close(arrays_of(op_type, *inputs.values())[0], tensorflow.run(op_type, inputs)[0])
    close(arrays_of("ScatterNdAdd", *inputs.values())[0], tensorflow.run("TensorScatterAdd", inputs)[0])


@pytest.mark.parametrize("how", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Update"])
@FEW
@given(shape=ranked, seed=seeds)
def test_scatters_of_rows(tensorflow: TensorFlow, how: str, shape: Shape, seed: int) -> None:
    var, count = values(shape, seed), 1 + seed % 4
    indices = whole((count,), seed, 0, shape[0])
    if how == "Update":
        indices = np.unique(indices)
    updates = values((len(indices), *shape[1:]), seed + 1, "nonzero")
    inputs = {"resource": var, "indices": indices, "updates": updates}
    expected = tensorflow.run(f"ResourceScatter{how}", inputs, variables=["resource"])[0]
    close(arrays_of(f"Scatter{how}", var, indices, updates)[0], expected)


def test_of_two_updates_of_one_row_either_may_win() -> None:
    (result,) = outputs_of("ScatterUpdate", np.zeros((3, 2)), i32([1, 1]), np.array([[1.0, 2.0], [3.0, 4.0]]))
    assert doubtful_of(result).tolist() == [[False] * 2, [True] * 2, [False] * 2]


def test_gather_elements() -> None:
    x, index = values((3, 4), 1), whole((2, 4), 2, 0, 3, "int64")
    (result,) = arrays_of("GatherElements", x, index, dim=0)
    for row, column in np.ndindex(2, 4):
        assert result[row, column] == x[index[row, column], column]


@FEW
@given(shape=shapes, seed=seeds)
def test_assignments(tensorflow: TensorFlow, shape: Shape, seed: int) -> None:
    var, value = values(shape, seed), values(shape, seed + 1)
    for op_type in ("Assign", "AssignAdd", "AssignSub"):
        inputs = {"resource": var, "value": value}
        expected = tensorflow.run(f"{op_type}VariableOp", inputs, variables=["resource"])[0]
        close(arrays_of(op_type, var, value)[0], expected)
