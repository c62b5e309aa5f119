"""Gathers, scatters, assignments and resizes against TensorFlow."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from opcalls import FEW, SOME, Array, arrays_of, close, i32, i64, outputs_of, refused, seeds, shapes, values, whole
from tensorflow_oracle import TensorFlow

Shape = tuple[int, ...]
same = np.testing.assert_array_equal
ranked = shapes.filter(len)


@SOME
@given(shape=ranked, places=shapes, seed=seeds, axis=st.integers(0, 3), batch=st.integers(0, 2))
def test_gathers(tensorflow: TensorFlow, shape: Shape, places: Shape, seed: int, axis: int, batch: int) -> None:
    x, axis = values(shape, seed), axis % len(shape)
    batch = min(batch, axis, len(places))
    indices = whole(shape[:batch] + places[batch:], seed, 0, shape[axis])
    given: dict[str, Any] = {"params": x, "indices": indices, "axis": np.int32(axis)}
    (wanted,) = tensorflow.run("GatherV2", given, batch_dims=batch)
    same(arrays_of("GatherV2", *given.values(), batch_dims=batch)[0], wanted)
    same(arrays_of("GatherV2D", x, indices, axis=axis, batch_dims=batch)[0], wanted)


@FEW
@given(shape=ranked, places=ranked, seed=seeds, depth=st.integers(1, 4))
def test_gathers_and_scatters_by_places(
    tensorflow: TensorFlow, shape: Shape, places: Shape, seed: int, depth: int
) -> None:
    x, depth = values(shape, seed), min(depth, len(shape))
    parts = [whole(places, seed + axis, 0, size) for axis, size in enumerate(shape[:depth])]
    indices = np.stack(parts, -1)
    (wanted,) = tensorflow.run("GatherNd", {"params": x, "indices": indices})
    same(arrays_of("GatherNd", x, indices)[0], wanted)
    updates = values(wanted.shape, seed + 9)
    given = {"indices": indices, "updates": updates, "shape": np.array(shape, np.int32)}
    close(arrays_of("ScatterNd", *given.values())[0], tensorflow.run("ScatterNd", given)[0])
    given = {"tensor": x, "indices": indices, "updates": updates}
    for op_type in ("TensorScatterAdd", "TensorScatterSub", "TensorScatterMax", "TensorScatterMin"):
        close(arrays_of(op_type, *given.values())[0], tensorflow.run(op_type, given)[0])
    close(arrays_of("ScatterNdAdd", *given.values())[0], tensorflow.run("TensorScatterAdd", given)[0])


@pytest.mark.parametrize("how", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Update"])
@FEW
@given(shape=ranked, seed=seeds)
def test_scatters_of_rows(tensorflow: TensorFlow, how: str, shape: Shape, seed: int) -> None:
    var, count = values(shape, seed), 1 + seed % 4
    indices = whole((count,), seed, 0, shape[0])
    if how == "Update":
        indices = np.unique(indices)
    updates = values((len(indices), *shape[1:]), seed + 1, "nonzero")
    given = {"resource": var, "indices": indices, "updates": updates}
    wanted = tensorflow.run(f"ResourceScatter{how}", given, variables=["resource"])[0]
    close(arrays_of(f"Scatter{how}", var, indices, updates)[0], wanted)


def test_of_two_updates_of_one_row_either_may_win() -> None:
    (found,) = outputs_of("ScatterUpdate", np.zeros((3, 2)), i32([1, 1]), np.array([[1.0, 2.0], [3.0, 4.0]]))
    assert found.doubtful is not None
    assert found.doubtful.tolist() == [[False] * 2, [True] * 2, [False] * 2]


def test_gather_elements() -> None:
    x, index = values((3, 4), 1), whole((2, 4), 2, 0, 3, "int64")
    (found,) = arrays_of("GatherElements", x, index, dim=0)
    for row, column in np.ndindex(2, 4):
        assert found[row, column] == x[index[row, column], column]


@FEW
@given(shape=shapes, seed=seeds)
def test_assignments(tensorflow: TensorFlow, shape: Shape, seed: int) -> None:
    var, value = values(shape, seed), values(shape, seed + 1)
    for op_type in ("Assign", "AssignAdd", "AssignSub"):
        given = {"resource": var, "value": value}
        wanted = tensorflow.run(f"{op_type}VariableOp", given, variables=["resource"])[0]
        close(arrays_of(op_type, var, value)[0], wanted)


grids = st.sampled_from([(False, False), (True, False), (False, True)])
sizes = st.tuples(st.integers(1, 7), st.integers(1, 7))


@SOME
@given(size=sizes, wanted_size=sizes, seed=seeds, grid=grids)
def test_resizes(tensorflow: TensorFlow, size: Shape, wanted_size: Shape, seed: int, grid: tuple[bool, bool]) -> None:
    image, grads = (values((2, *plane, 3), seed).astype(np.float32) for plane in (size, wanted_size))
    attrs: dict[str, Any] = {"align_corners": grid[0], "half_pixel_centers": grid[1]}
    target = np.array(wanted_size, np.int32)
    loose: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}
    (wanted,) = tensorflow.run("ResizeBilinear", {"images": image, "size": target}, **attrs)
    close(arrays_of("ResizeBilinearV2", image, target, **attrs)[0], wanted, **loose)
    close(arrays_of("ResizeBilinearV2D", image, size=list(wanted_size), **attrs)[0], wanted, **loose)
    first = np.moveaxis(image, 3, 1)
    (found,) = arrays_of("ResizeBilinearV2D", first, layout="NCHW", size=list(wanted_size), **attrs)
    close(np.moveaxis(found, 1, 3), wanted, **loose)
    (wanted,) = tensorflow.run("ResizeBilinearGrad", {"grads": grads, "original_image": image}, **attrs)
    close(arrays_of("ResizeBilinearV2Grad", grads, image, **attrs)[0], wanted, **loose)
    (wanted,) = tensorflow.run("ResizeNearestNeighbor", {"images": image, "size": target}, **attrs)
    same(arrays_of("ResizeNearestNeighborV2", image, target, **attrs)[0], wanted)
    small = np.array(size, np.int32)
    (wanted,) = tensorflow.run("ResizeNearestNeighborGrad", {"grads": grads, "size": small}, **attrs)
    close(arrays_of("ResizeNearestNeighborV2Grad", grads, small, **attrs)[0], wanted, **loose)


@pytest.mark.parametrize(
    ("op_type", "inputs", "attrs", "reason"),
    [
        ("GatherV2D", [np.ones(3), i32([3])], {"axis": 0}, "indices 3 to 3 out of range .limit 3"),
        ("GatherV2D", [np.ones(3), i32([-1])], {"axis": 0}, "indices -1 to -1 out of range .limit 3"),
        ("GatherV2D", [np.broadcast_to(1.0, (1, 2**14)), np.broadcast_to(np.int32(0), 2**14)], {}, "has more than"),
        ("GatherNd", [np.ones(3), i32([[0, 1]])], {}, "indices of shape"),
        ("ScatterAdd", [np.ones(3), i32([0]), np.ones(5)], {}, "updates has shape"),
        ("ScatterNd", [i32([[0]]), np.ones(1), i64([2**40])], {}, "has more than"),
        ("AssignAdd", [np.ones(1), np.ones(3)], {}, "value of shape"),
        ("ResizeBilinearV2D", [np.ones((1, 2, 2, 1))], {"size": [2**20, 2**20]}, "has more than"),
        ("ResizeBilinearV2D", [np.ones((1, 2, 2, 1))], {"size": [0, 2]}, r"size of .* cannot be \[0, 2\]"),
        ("ResizeBilinearV2D", [np.ones((1, 2, 2, 1))], {}, "has no size"),
        (
            "ResizeBilinearV2D", [np.ones((1, 2, 2, 1))],
            {"size": [2, 2], "align_corners": True, "half_pixel_centers": True}, "exclude each other",
        ),
    ],
)  # fmt: skip
def test_refusals(op_type: str, inputs: list[Array], attrs: dict[str, Any], reason: str) -> None:
    with refused(reason):
        arrays_of(op_type, *inputs, **attrs)


def test_an_infinite_pixel_stays_where_it_is() -> None:
    image = np.ones((1, 4, 4, 1))
    image[0, 0, 0, 0] = np.inf
    (found,) = arrays_of("ResizeBilinearV2D", image, size=[8, 8])
    assert np.isfinite(found[0, 2:, 2:]).all()
