"""Arithmetic and functions of single elements against TensorFlow."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from opcalls import arrays_of, doubtful_of, outputs_of
from opvalues import FEW, Array, Shape, close, close_all, i32, pairs, ranked, same, seeds, shapes, values, whole
from tensorflow_oracle import TensorFlow

UNARY = {
    "Neg": "real", "Abs": "real", "Sign": "real", "Square": "real", "Sqrt": "positive", "Rsqrt": "positive",
    "Reciprocal": "nonzero", "Inv": "nonzero", "Exp": "real", "Expm1": "real", "Log": "positive", "Log1p": "positive",
    "Sin": "real", "Cos": "real", "Tan": "unit", "Asin": "unit", "Acos": "unit", "Atan": "real", "Sinh": "real",
    "Cosh": "real", "Asinh": "real", "Acosh": "above1", "Atanh": "unit", "Erf": "real", "Erfc": "real",
    "Lgamma": "positive", "Floor": "real", "Ceil": "real", "Round": "real", "Rint": "real", "IsNan": "real",
    "IsInf": "real", "IsFinite": "real",
}  # fmt: skip


@pytest.mark.parametrize("op_type", UNARY)
@FEW
@given(shape=shapes, seed=seeds)
def test_functions_of_one(tensorflow: TensorFlow, op_type: str, shape: tuple[int, ...], seed: int) -> None:
    x = values(shape, seed, UNARY[op_type])
    (y,) = arrays_of(op_type, x)
    close(y, tensorflow.run(op_type, {"x": x})[0])


BINARY = {
    "AddV2": "real", "Add": "real", "Sub": "real", "Mul": "real", "MulNoNan": "real", "RealDiv": "nonzero",
    "Div": "nonzero", "DivNoNan": "real", "Xdivy": "nonzero", "Xlogy": "positive", "FloorDiv": "nonzero",
    "FloorMod": "nonzero", "TruncateMod": "nonzero", "Mod": "nonzero", "Maximum": "real", "Minimum": "real",
    "SquaredDifference": "real", "Atan2": "nonzero", "Pow": "positive",
}  # fmt: skip


@pytest.mark.parametrize("op_type", BINARY)
@FEW
@given(both=pairs(), seed=seeds)
def test_functions_of_two(tensorflow: TensorFlow, op_type: str, both: tuple[tuple[int, ...], ...], seed: int) -> None:
    a, b = (values(shape, seed + place, BINARY[op_type]) for place, shape in enumerate(both))
    (y,) = arrays_of(op_type, a, b)
    names = ("y", "x") if op_type == "Atan2" else ("x", "y")
    close(y, tensorflow.run(op_type, dict(zip(names, (a, b), strict=True)))[0])


WHOLE = ("AddV2", "Sub", "Mul", "Div", "TruncateDiv", "FloorDiv", "FloorMod", "TruncateMod", "Maximum", "Minimum")


@pytest.mark.parametrize("op_type", WHOLE)
@FEW
@given(both=pairs(), seed=seeds)
def test_whole_numbers(tensorflow: TensorFlow, op_type: str, both: tuple[tuple[int, ...], ...], seed: int) -> None:
    a, b = (whole(shape, seed + place) for place, shape in enumerate(both))
    b = np.where(b == 0, np.int32(3), b)
    (y,) = arrays_of(op_type, a, b)
    same(y, tensorflow.run(op_type, {"x": a, "y": b})[0])
    assert y.dtype == np.int32


def test_whole_numbers_wrap(tensorflow: TensorFlow) -> None:
    big = np.array([2**31 - 1, -(2**31)], np.int32)
    same(arrays_of("Add", big, big)[0], tensorflow.run("AddV2", {"x": big, "y": big})[0])


def test_zeros_and_what_is_not_finite(tensorflow: TensorFlow) -> None:
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 1e300])
    y = np.array([0.0, 1.0, np.inf, 0.0, 2.0, np.nan, 1e-300])
    for op_type in ("AddV2", "Mul", "RealDiv", "DivNoNan", "MulNoNan", "Xdivy", "Xlogy", "Pow"):
        close(arrays_of(op_type, x, y)[0], tensorflow.run(op_type, {"x": x, "y": y})[0])
    for op_type in ("Exp", "Log", "Sqrt", "Rsqrt", "Reciprocal", "Sign", "IsNan", "IsInf", "IsFinite", "Floor"):
        close(arrays_of(op_type, x)[0], tensorflow.run(op_type, {"x": x})[0])


GRADIENTS = ("SqrtGrad", "RsqrtGrad", "ReciprocalGrad", "InvGrad")


@pytest.mark.parametrize("op_type", GRADIENTS)
@FEW
@given(shape=shapes, seed=seeds)
def test_gradients(tensorflow: TensorFlow, op_type: str, shape: tuple[int, ...], seed: int) -> None:
    y, dy = values(shape, seed, "positive"), values(shape, seed + 1)
    close(arrays_of(op_type, y, dy)[0], tensorflow.run(op_type, {"y": y, "dy": dy})[0])


@FEW
@given(shape=shapes, seed=seeds)
def test_gradient_of_the_absolute(tensorflow: TensorFlow, shape: tuple[int, ...], seed: int) -> None:
    x, dy = values(shape, seed), values(shape, seed + 1)
    close(arrays_of("AbsGrad", x, dy)[0], tensorflow.run("Abs", {"x": x}, gradient=(["x"], dy))[0])


@pytest.mark.parametrize("op_type", ["Maximum", "Minimum"])
@FEW
@given(both=pairs(), seed=seeds)
def test_gradients_of_extremes(
    tensorflow: TensorFlow, op_type: str, both: tuple[tuple[int, ...], ...], seed: int
) -> None:
    a, b = (values(shape, seed + place) for place, shape in enumerate(both))
    dy = values(np.broadcast_shapes(*both), seed + 2)
    result = arrays_of(f"{op_type}Grad", dy, a, b)
    close_all(result, tensorflow.run(op_type, {"x": a, "y": b}, gradient=(["x", "y"], dy)))
    assert len(arrays_of(f"{op_type}Grad", dy, a, b, grad_x=False)) == 1


@FEW
@given(shape=shapes, seed=seeds, count=st.integers(1, 4))
def test_sums_of_many(tensorflow: TensorFlow, shape: tuple[int, ...], seed: int, count: int) -> None:
    arrays: list[Array] = [values(shape, seed + place) for place in range(count)]
    close(arrays_of("AddN", *arrays)[0], tensorflow.run("AddN", {"inputs": arrays})[0])


@FEW
@given(shape=shapes, seed=seeds)
def test_clip_by_value(tensorflow: TensorFlow, shape: tuple[int, ...], seed: int) -> None:
    x, low, high = values(shape, seed), np.array(-1.0), np.array(2.0)
    expected = tensorflow.run("ClipByValue", {"t": x, "clip_value_min": low, "clip_value_max": high})[0]
    close(arrays_of("ClipByValue", x, low, high)[0], expected)


@pytest.mark.parametrize("op_type", ["Cumsum", "Cumprod", "CumulativeLogsumexp"])
@FEW
@given(shape=ranked, seed=seeds, exclusive=st.booleans(), reverse=st.booleans(), axis=st.integers(-4, 3))
def test_running(
    tensorflow: TensorFlow, op_type: str, shape: tuple[int, ...], seed: int, exclusive: bool, reverse: bool, axis: int
) -> None:
    axis = axis % len(shape)
    x = values(shape, seed)
    expected = tensorflow.run(op_type, {"x": x, "axis": np.int32(axis)}, exclusive=exclusive, reverse=reverse)[0]
    if op_type == "CumulativeLogsumexp":  # TensorFlow starts from the lowest number, not from −inf
        expected = np.where(expected < -1e300, -np.inf, expected)
    close(arrays_of(op_type, x, axis=axis, exclusive=exclusive, reverse=reverse)[0], expected)
    close(arrays_of(op_type, x, np.int32(axis - len(shape)), exclusive=exclusive, reverse=reverse)[0], expected)


# --- ops that only GE has, against their definition -------------------------------------------------------------------


@FEW
@given(shape=shapes, seed=seeds)
def test_fused_arithmetic(shape: tuple[int, ...], seed: int) -> None:
    a, b, c = (values(shape, seed + place) for place in range(3))
    each = [(float(x), float(y), float(z)) for x, y, z in zip(a.flat, b.flat, c.flat, strict=True)]

    def same(result: Array, expected: list[float]) -> None:
        close(result, np.reshape(expected, shape))

    same(arrays_of("FusedMulAdd", a, b, c)[0], [x * y + z for x, y, z in each])
    same(arrays_of("FusedMulAddN", a, b, np.array([1.5]).reshape(()))[0], [x * 1.5 + y for x, y, _ in each])
    same(arrays_of("Lerp", a, b, c)[0], [x + z * (y - x) for x, y, z in each])
    same(arrays_of("Axpy", a, b, alpha=0.25)[0], [x + 0.25 * y for x, y, _ in each])
    same(arrays_of("Muls", a, value=3.0)[0], [3 * x for x, _, _ in each])
    same(arrays_of("Adds", a, value=3.0)[0], [3 + x for x, _, _ in each])
    same(
        arrays_of("Power", np.abs(a), power=2.0, scale=0.5, shift=1.0)[0], [(1 + 0.5 * abs(x)) ** 2 for x, _, _ in each]
    )
    same(arrays_of("Exp", a, base=2.0, scale=0.5, shift=1.0)[0], [2 ** (0.5 * x + 1) for x, _, _ in each])
    same(arrays_of("Log", np.abs(a), base=2.0, shift=1.0)[0], [math.log2(abs(x) + 1) for x, _, _ in each])


def test_nan_to_number() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 2.0], np.float16)
    same(arrays_of("NanToNum", x)[0], [0, 65504, -65504, 2])
    same(arrays_of("NanToNum", x, nan=1.0, posinf=5.0, neginf=-5.0)[0], [1, 5, -5, 2])


# --- what rounding makes of it, and refusals --------------------------------------------------------------------------


def test_only_what_rounding_can_flip_is_doubtful() -> None:
    x = np.array([1.5, 3.0, 2.9999998, -0.25], np.float32)
    (floor,) = outputs_of("Floor", x)
    assert doubtful_of(floor).tolist() == [False, True, True, False]
    (rounded,) = outputs_of("Rint", x)
    assert doubtful_of(rounded).tolist() == [True, False, False, False]
    (quotient,) = outputs_of("FloorDiv", np.array([7.0, 6.0], np.float32), np.array([2.0, 3.0], np.float32))
    assert doubtful_of(quotient).tolist() == [False, True]
    assert outputs_of("FloorDiv", i32([6]), i32([3]))[0].doubtful is None


COMPARISONS = ("Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual")


@pytest.mark.parametrize("op_type", COMPARISONS)
@FEW
@given(both=pairs(), seed=seeds)
def test_comparisons(tensorflow: TensorFlow, op_type: str, both: tuple[Shape, ...], seed: int) -> None:
    a, b = (values(shape, seed + place) for place, shape in enumerate(both))
    for one, other in ((a, b), (a, a), (whole(both[0], seed), whole(both[1], seed))):
        (y,) = arrays_of(op_type, one, other)
        assert y.dtype == np.bool_
        same(y, tensorflow.run(op_type, {"x": one, "y": other})[0])


def test_nan_equals_nothing(tensorflow: TensorFlow) -> None:
    x, y = np.array([np.nan, np.inf, 1.0]), np.array([np.nan, np.inf, np.nan])
    for op_type in COMPARISONS:
        same(arrays_of(op_type, x, y)[0], tensorflow.run(op_type, {"x": x, "y": y})[0])


def test_only_near_ties_are_doubtful() -> None:
    a, b = np.array([1.0, 1.0, 0.0, 0.0], np.float16), np.array([1.001, 1.1, 0.0, 0.5], np.float16)
    (less,) = outputs_of("Less", a, b)
    assert doubtful_of(less).tolist() == [True, False, True, False]
    assert outputs_of("Less", i32([1, 2]), i32([2, 2]))[0].doubtful is None


@pytest.mark.parametrize("op_type", ["LogicalAnd", "LogicalOr", "BitwiseAnd", "BitwiseOr", "BitwiseXor"])
@FEW
@given(both=pairs(), seed=seeds)
def test_logic_and_bits(tensorflow: TensorFlow, op_type: str, both: tuple[Shape, ...], seed: int) -> None:
    a, b = (whole(shape, seed + place) for place, shape in enumerate(both))
    if op_type.startswith("Logical"):
        a, b = a > 0, b > 0
    same(arrays_of(op_type, a, b)[0], tensorflow.run(op_type, {"x": a, "y": b})[0])


@FEW
@given(shape=shapes, seed=seeds)
def test_shifts_and_negations(tensorflow: TensorFlow, shape: Shape, seed: int) -> None:
    a, b = whole(shape, seed), whole(shape, seed + 1, 0, 8)
    for op_type in ("LeftShift", "RightShift"):
        same(arrays_of(op_type, a, b)[0], tensorflow.run(op_type, {"x": a, "y": b})[0])
    same(arrays_of("Invert", a)[0], tensorflow.run("Invert", {"x": a})[0])
    same(arrays_of("LogicalNot", a > 0)[0], tensorflow.run("LogicalNot", {"x": a > 0})[0])


@FEW
@given(three=pairs(3), seed=seeds)
def test_selections(tensorflow: TensorFlow, three: tuple[Shape, ...], seed: int) -> None:
    condition = whole(three[0], seed) > 0
    a, b = values(three[1], seed + 1), values(three[2], seed + 2)
    expected = tensorflow.run("SelectV2", {"condition": condition, "t": a, "e": b})[0]
    close(arrays_of("SelectV2", condition, a, b)[0], expected)
    close(arrays_of("SelectV2", condition.astype(np.uint8), a, b)[0], expected)


@FEW
@given(shape=ranked, seed=seeds)
def test_the_first_select_chooses_rows(tensorflow: TensorFlow, shape: Shape, seed: int) -> None:
    a, b = values(shape, seed), values(shape, seed + 1)
    for condition in (whole(shape, seed) > 0, whole(shape[:1], seed) > 0):
        expected = tensorflow.run("Select", {"condition": condition, "x": a, "y": b})[0]
        close(arrays_of("Select", condition, a, b)[0], expected)


@FEW
@given(shape=ranked, seed=seeds)
def test_places_of_what_is_not_zero(tensorflow: TensorFlow, shape: Shape, seed: int) -> None:
    x = whole(shape, seed, -1, 2)
    same(arrays_of("Where", x)[0], tensorflow.run("Where", {"condition": x})[0])


def test_masks_and_tolerances() -> None:
    x, mask = np.array([1.0, 2.0, 3.0]), np.array([True, False, True])
    same(arrays_of("MaskedFill", x, mask, np.array(9.0))[0], [9, 2, 9])
    y = np.array([1.05, 2.2, 3.1])
    (equal,) = outputs_of("ApproximateEqual", x, y, tolerance=0.1)
    assert equal.array.tolist() == [True, False, False]
