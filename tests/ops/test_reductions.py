"""Reductions against TensorFlow."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from opcalls import arrays_of, doubtful_of, outputs_of
from opvalues import FEW, Shape, close, i32, ranked, same, seeds, shapes, values, whole
from tensorflow_oracle import OracleError, TensorFlow

subsets = st.lists(st.integers(0, 3), max_size=4, unique=True)
REDUCTIONS = {
    "ReduceSum": "Sum", "ReduceMean": "Mean", "ReduceMax": "Max", "ReduceMin": "Min", "ReduceProd": "Prod",
    "EuclideanNorm": "EuclideanNorm",
}  # fmt: skip


@pytest.mark.parametrize("op_type", REDUCTIONS)
@FEW
@given(shape=shapes, seed=seeds, chosen=subsets, keep=st.booleans())
def test_reductions(
    tensorflow: TensorFlow, op_type: str, shape: Shape, seed: int, chosen: list[int], keep: bool
) -> None:
    x = values(shape, seed)
    axes = [axis - len(shape) if axis % 2 else axis for axis in chosen if axis < len(shape)]
    expected = tensorflow.run(REDUCTIONS[op_type], {"input": x, "axis": np.array(axes, np.int32)}, keep_dims=keep)[0]
    close(arrays_of(f"{op_type}D", x, axes=axes, keep_dims=keep)[0], expected)
    close(arrays_of(op_type, x, np.array(axes, np.int64), keep_dims=keep)[0], expected)


@FEW
@given(shape=shapes, seed=seeds, chosen=subsets)
def test_reductions_of_other_types(tensorflow: TensorFlow, shape: Shape, seed: int, chosen: list[int]) -> None:
    x, axes = whole(shape, seed), np.array([axis for axis in chosen if axis < len(shape)], np.int32)
    for op_type in ("Sum", "Max", "Prod"):
        expected = tensorflow.run(op_type, {"input": x, "axis": axes})[0]
        same(arrays_of(op_type, x, axes)[0], expected)
    for op_type in ("All", "Any"):
        expected = tensorflow.run(op_type, {"input": x > 0, "axis": axes})[0]
        same(arrays_of(f"Reduce{op_type}", x > 0, axes)[0], expected)


@FEW
@given(shape=shapes, seed=seeds, axis=st.integers(0, 3), keep=st.booleans())
def test_log_of_sum_of_exponentials(tensorflow: TensorFlow, shape: Shape, seed: int, axis: int, keep: bool) -> None:
    x = values(shape, seed) * 300
    axes = [axis] if axis < len(shape) else []
    expected = tensorflow.run("math.reduce_logsumexp", {"input_tensor": x}, axis=axes, keepdims=keep)[0]
    close(arrays_of("ReduceLogSumExp", x, np.array(axes, np.int32), keep_dims=keep)[0], expected)


@FEW
@given(shape=shapes, seed=seeds)
def test_l2_loss(tensorflow: TensorFlow, shape: Shape, seed: int) -> None:
    x = values(shape, seed)
    close(arrays_of("L2Loss", x)[0], tensorflow.run("L2Loss", {"t": x})[0])


@pytest.mark.parametrize("form", ["NHWC", "NCHW"])
@FEW
@given(shape=shapes.filter(lambda shape: len(shape) >= 2), seed=seeds)
def test_bias_gradient(tensorflow: TensorFlow, form: str, shape: Shape, seed: int) -> None:
    x = values(shape, seed)
    if form == "NCHW" and len(shape) == 2:
        form = "NHWC"
    expected = tensorflow.run("BiasAddGrad", {"out_backprop": x}, data_format=form)[0]
    close(arrays_of("BiasAddGrad", x, data_format=form)[0], expected)


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
@FEW
@given(shape=ranked, seed=seeds, axis=st.integers(-4, 3))
def test_places_of_extremes(tensorflow: TensorFlow, op_type: str, shape: Shape, seed: int, axis: int) -> None:
    x, axis = values(shape, seed), axis % len(shape)
    expected = tensorflow.run(op_type, {"input": x, "dimension": np.int32(axis)})[0]
    same(arrays_of(op_type, x, np.int32(axis))[0], expected)
    same(arrays_of(f"{op_type}D", x, dimension=axis)[0], expected)
    places, best = arrays_of(f"{op_type}WithValue", x, dimension=axis, keep_dims=True)
    same(np.squeeze(places, axis), expected)
    same(np.squeeze(best, axis), x.max(axis) if op_type == "ArgMax" else x.min(axis))


@FEW
@given(shape=ranked, seed=seeds, k=st.integers(0, 5))
def test_the_k_largest(tensorflow: TensorFlow, shape: Shape, seed: int, k: int) -> None:
    x, k = values(shape, seed), min(k, shape[-1])
    expected = tensorflow.run("TopKV2", {"input": x, "k": np.int32(k)})
    for result in (arrays_of("TopKV2", x, np.int32(k)), arrays_of("TopKD", x, k=k)):
        close(result[0], expected[0])
        same(result[1], expected[1])


@FEW
@given(rows=st.integers(1, 5), classes=st.integers(1, 6), k=st.integers(1, 7), seed=seeds)
def test_in_the_k_largest(tensorflow: TensorFlow, rows: int, classes: int, k: int, seed: int) -> None:
    x, targets = values((rows, classes), seed).astype(np.float32), whole((rows,), seed, 0, classes)
    expected = tensorflow.run("InTopKV2", {"predictions": x, "targets": targets, "k": np.int32(k)})[0]
    same(arrays_of("InTopKD", x, targets, k=k)[0], expected)


SORTED = ("SegmentSum", "SegmentMean", "SegmentMax", "SegmentMin", "SegmentProd")
UNSORTED = ("UnsortedSegmentSum", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd")


@pytest.mark.parametrize("op_type", SORTED)
@FEW
@given(shape=ranked, seed=seeds)
def test_sorted_segments(tensorflow: TensorFlow, op_type: str, shape: Shape, seed: int) -> None:
    x, ids = values(shape, seed), np.sort(whole(shape[:1], seed, 0, 4))
    close(arrays_of(op_type, x, ids)[0], tensorflow.run(op_type, {"data": x, "segment_ids": ids})[0])


@pytest.mark.parametrize("op_type", UNSORTED)
@FEW
@given(shape=ranked, seed=seeds, taken=st.integers(1, 4))
def test_unsorted_segments(tensorflow: TensorFlow, op_type: str, shape: Shape, seed: int, taken: int) -> None:
    x, ids = values(shape, seed).astype(np.float32), whole(shape[:taken], seed, -1, 4)
    inputs: dict[str, Any] = {"data": x, "segment_ids": ids, "num_segments": np.int32(5)}
    expected = tensorflow.run(op_type, inputs)[0]
    for result in (arrays_of(op_type, x, ids, np.int32(5)), arrays_of(f"{op_type}D", x, ids, num_segments=5)):
        close(result[0], expected, rtol=1e-5, atol=1e-6)


# --- of GE alone ------------------------------------------------------------------------------------------------------


@FEW
@given(shape=shapes, seed=seeds)
def test_sums_of_squares(shape: Shape, seed: int) -> None:
    x, y = values(shape, seed), values(shape, seed + 1)
    total, other = (sum(float(one) ** 2 for one in array.flat) for array in (x, y))
    result = arrays_of("SquareSumAll", x, y)
    np.testing.assert_allclose([one.item() for one in result], [total, other])
    close(arrays_of("SquareSumV1", x, axis=list(range(x.ndim)), keep_dims=False)[0], np.array(total))
    decayed, loss = arrays_of("FusedMulAddNL2loss", x, y, np.array([0.5]))
    close(decayed, np.reshape([0.5 * float(a) + float(b) for a, b in zip(x.flat, y.flat, strict=True)], shape))
    close(loss, np.array(total / 2))


@pytest.mark.parametrize(("p", "formula"), [
    (2, lambda row: sum(a * a for a in row) ** 0.5), (1, lambda row: sum(abs(a) for a in row)),
    (3, lambda row: sum(abs(a) ** 3 for a in row) ** (1 / 3)), ("inf", lambda row: max(abs(a) for a in row)),
    (0, lambda row: sum(a != 0 for a in row)),
])  # fmt: skip
def test_norms(p: int | str, formula: object) -> None:
    x = values((3, 5), 3)
    assert callable(formula)
    expected = [formula([float(a) for a in row]) for row in x]
    np.testing.assert_allclose(arrays_of("LpNorm", x, p=p, axes=[1])[0], expected)


def test_norm_to_clip_by() -> None:
    x = np.array([0.0, 4.0, 0.25])
    same(arrays_of("ClipByNormNoDivSum", x, 0.0, 1.0, 1.0)[0], [1, 2, 1])


# --- switches and refusals --------------------------------------------------------------------------------------------


def test_ties_are_doubtful() -> None:
    x = np.array([[1.0, 2.0, 2.0], [1.0, 2.0, 3.0], [5.0, 5.0005, 1.0]], np.float16)
    (result,) = outputs_of("ArgMaxD", x, dimension=1)
    assert doubtful_of(result).tolist() == [True, False, True]
    values_, places = outputs_of("TopKD", np.array([3.0, 2.0, 2.0, 1.0, 0.5], np.float32), k=2)
    assert values_.doubtful is None
    assert doubtful_of(places).tolist() == [False, True]


def test_the_oracle_refuses_an_axis_that_comes_twice(tensorflow: TensorFlow) -> None:
    with pytest.raises(OracleError):
        tensorflow.run("Sum", {"input": np.ones((2, 3)), "axis": i32([0, -2])})


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("axes", [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [1], [3], [1, 2], []])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_of_many_rows_are_those_of_all_at_once(axes: list[int], keep: bool, dtype: type[np.floating[Any]]) -> None:
    """Sums and what bounds their rounding, over the first axes and others, of more than a block."""
    x = np.random.default_rng(5).normal(size=(7, 60, 50, 9)).astype(dtype)
    x[1, 2, 3, 4] = np.inf
    (result,) = outputs_of("ReduceSumD", x, axes=axes, keep_dims=keep)
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        assert result.array.shape == wide.sum(axis=tuple(axes), keepdims=keep).shape
        np.testing.assert_allclose(result.array, wide.sum(axis=tuple(axes), keepdims=keep), rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(result.terms**2, (wide**2).sum(axis=tuple(axes), keepdims=keep), rtol=1e-6)


@pytest.mark.parametrize("op_type", ["SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN"])
@FEW
@given(shape=ranked, seed=seeds, count=st.integers(1, 9))
def test_sparse_segments(tensorflow: TensorFlow, op_type: str, shape: Shape, seed: int, count: int) -> None:
    x = values(shape, seed)
    indices, ids = whole((count,), seed, 0, shape[0]), np.sort(whole((count,), seed + 1, 0, 5))
    (expected,) = tensorflow.run(op_type, {"data": x, "indices": indices, "segment_ids": ids})
    close(arrays_of(op_type, x, indices, ids)[0], expected)


@FEW
@given(shape=ranked, seed=seeds, keep=st.booleans())
def test_sums_of_squares_with_the_squares(shape: Shape, seed: int, keep: bool) -> None:
    x = values(shape, seed)
    sums, squares = arrays_of("SquareSumV2", x, axis=[-1], keep_dims=keep)
    close(sums, np.asarray((x**2).sum(-1, keepdims=keep)))
    close(squares, x**2)


@FEW
@given(shape=ranked, seed=seeds, keep=st.booleans())
def test_gradients_of_a_product(shape: Shape, seed: int, keep: bool) -> None:
    slope, factor = values(shape, seed), values(shape, seed + 1)
    for other in (values(shape, seed + 2), values(shape[-1:], seed + 2)):
        product, total = arrays_of("ConfusionMulGrad", slope, other, factor, axes=[0], keep_dims=keep)
        close(product, slope * other)
        close(total, np.asarray((other * factor).sum(0, keepdims=keep)), atol=1e-11)


def test_products_in_float16_of_a_sum_that_cancels_may_round_more() -> None:
    random = np.random.default_rng(8)
    slope, other, factor = (random.normal(size=(400, 30)).astype(np.float16) for _ in range(3))
    product, total = outputs_of("ConfusionMulGrad", slope, other, factor, axes=[0])
    kernel = (other * factor).astype(np.float32).sum(0).astype(np.float64)
    error, size = np.abs(kernel - total.array), 2.0**-24 * np.asarray(total.summed)
    assert (error <= 3 * size).all()
    assert np.sqrt(np.mean((error / size) ** 2)) > 0.05
    same((slope * other).astype(np.float64), product.array.astype(np.float16))
