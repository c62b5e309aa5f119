"""Comparisons, logic, selections and bits against TensorFlow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from opcalls import FEW, arrays_of, close, i32, outputs_of, pairs, refused, seeds, shapes, values, whole
from tensorflow_oracle import TensorFlow

Shape = tuple[int, ...]

COMPARISONS = ("Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual")


@pytest.mark.parametrize("op_type", COMPARISONS)
@FEW
@given(both=pairs(), seed=seeds)
def test_comparisons(tensorflow: TensorFlow, op_type: str, both: tuple[Shape, ...], seed: int) -> None:
    a, b = (values(shape, seed + place) for place, shape in enumerate(both))
    for one, other in ((a, b), (a, a), (whole(both[0], seed), whole(both[1], seed))):
        (y,) = arrays_of(op_type, one, other)
        assert y.dtype == np.bool_
        np.testing.assert_array_equal(y, tensorflow.run(op_type, {"x": one, "y": other})[0])


def test_nan_equals_nothing(tensorflow: TensorFlow) -> None:
    x, y = np.array([np.nan, np.inf, 1.0]), np.array([np.nan, np.inf, np.nan])
    for op_type in COMPARISONS:
        np.testing.assert_array_equal(arrays_of(op_type, x, y)[0], tensorflow.run(op_type, {"x": x, "y": y})[0])


def test_only_near_ties_are_doubtful() -> None:
    a, b = np.array([1.0, 1.0, 0.0, 0.0], np.float16), np.array([1.001, 1.1, 0.0, 0.5], np.float16)
    (less,) = outputs_of("Less", a, b)
    assert less.doubtful is not None
    assert less.doubtful.tolist() == [True, False, True, False]
    assert outputs_of("Less", i32([1, 2]), i32([2, 2]))[0].doubtful is None


@pytest.mark.parametrize("op_type", ["LogicalAnd", "LogicalOr", "BitwiseAnd", "BitwiseOr", "BitwiseXor"])
@FEW
@given(both=pairs(), seed=seeds)
def test_logic_and_bits(tensorflow: TensorFlow, op_type: str, both: tuple[Shape, ...], seed: int) -> None:
    a, b = (whole(shape, seed + place) for place, shape in enumerate(both))
    if op_type.startswith("Logical"):
        a, b = a > 0, b > 0
    np.testing.assert_array_equal(arrays_of(op_type, a, b)[0], tensorflow.run(op_type, {"x": a, "y": b})[0])


@FEW
@given(shape=shapes, seed=seeds)
def test_shifts_and_negations(tensorflow: TensorFlow, shape: Shape, seed: int) -> None:
    a, b = whole(shape, seed), whole(shape, seed + 1, 0, 8)
    for op_type in ("LeftShift", "RightShift"):
        np.testing.assert_array_equal(arrays_of(op_type, a, b)[0], tensorflow.run(op_type, {"x": a, "y": b})[0])
    np.testing.assert_array_equal(arrays_of("Invert", a)[0], tensorflow.run("Invert", {"x": a})[0])
    np.testing.assert_array_equal(arrays_of("LogicalNot", a > 0)[0], tensorflow.run("LogicalNot", {"x": a > 0})[0])


@FEW
@given(three=pairs(3), seed=seeds)
def test_selections(tensorflow: TensorFlow, three: tuple[Shape, ...], seed: int) -> None:
    condition = whole(three[0], seed) > 0
    a, b = values(three[1], seed + 1), values(three[2], seed + 2)
    wanted = tensorflow.run("SelectV2", {"condition": condition, "t": a, "e": b})[0]
    close(arrays_of("SelectV2", condition, a, b)[0], wanted)
    close(arrays_of("SelectV2", condition.astype(np.uint8), a, b)[0], wanted)


@FEW
@given(shape=shapes.filter(len), seed=seeds)
def test_the_first_select_chooses_rows(tensorflow: TensorFlow, shape: Shape, seed: int) -> None:
    a, b = values(shape, seed), values(shape, seed + 1)
    for condition in (whole(shape, seed) > 0, whole(shape[:1], seed) > 0):
        wanted = tensorflow.run("Select", {"condition": condition, "x": a, "y": b})[0]
        close(arrays_of("Select", condition, a, b)[0], wanted)


@FEW
@given(shape=shapes.filter(len), seed=seeds)
def test_places_of_what_is_not_zero(tensorflow: TensorFlow, shape: Shape, seed: int) -> None:
    x = whole(shape, seed, -1, 2)
    np.testing.assert_array_equal(arrays_of("Where", x)[0], tensorflow.run("Where", {"condition": x})[0])


def test_masks_and_tolerances() -> None:
    x, mask = np.array([1.0, 2.0, 3.0]), np.array([True, False, True])
    np.testing.assert_array_equal(arrays_of("MaskedFill", x, mask, np.array(9.0))[0], [9, 2, 9])
    y = np.array([1.05, 2.2, 3.1])
    (equal,) = outputs_of("ApproximateEqual", x, y, tolerance=0.1)
    assert equal.array.tolist() == [True, False, False]


def test_refusals() -> None:
    with refused("BitwiseAnd with inputs of type float64"):
        arrays_of("BitwiseAnd", np.ones(3), np.ones(3))
    with refused("do not broadcast"):
        arrays_of("Select", np.array([True, False]), np.ones((3, 2)), np.ones((4, 2)))
