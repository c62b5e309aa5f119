"""The steps of LAMB that GE fuses, softmax's gradient in part, sparse segments, parts of images and more."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from opcalls import FEW, Array, arrays_of, close, i32, outputs_of, refused, seeds, shapes, values, whole
from tensorflow_oracle import TensorFlow

Shape = tuple[int, ...]
same = np.testing.assert_array_equal


@FEW
@given(shape=shapes, seed=seeds)
def test_fused_moments_of_lamb(shape: Shape, seed: int) -> None:
    grad, m, var = (values(shape, seed + place) for place in range(3))
    v = values(shape, seed + 3, "positive")
    new_v, new_m = 0.999 * v + 0.001 * grad**2, 0.9 * m + 0.1 * grad
    mean, variance = new_m / (1 - 0.9**4), new_v / (1 - 0.999**4)
    # An epsilon that tells beside and below the root apart.
    given: list[Any] = [grad**2, v, 1 - 0.999**4, grad, m, 1 - 0.9**4, var, 0.9, 0.1, 0.999, 0.001, 0.01, 0.3]
    wanted = [
        0.01 * var + mean / np.sqrt(variance + 0.3), new_m, new_v, 0.01 * var + mean / (np.sqrt(variance) + 0.3)
    ]  # fmt: skip
    for one, other in zip(arrays_of("LambNextMVWithDecay", *given), wanted, strict=True):
        close(one, other)
    right: list[Any] = [grad, v, 0.999, 0.001, 1 / (1 - 0.999**4), 0.3]
    for one, other in zip(arrays_of("LambNextRight", *right), [new_v, np.sqrt(variance) + 0.3], strict=True):
        close(one, other)


@pytest.mark.parametrize(
    ("norms", "ratio"),
    [
        ((1.0, 3.0, 2.0), 1.5),
        ((1.0, 90.0, 2.0), 10.0),  # not above the upper end
        ((0.0, 3.0, 2.0), 1.0),  # the first decides whether there is a ratio at all
        ((1.0, 0.0, 2.0), 1.0),
        ((1.0, 0.0, 0.0), 1.0),
        ((1.0, 3.0, -2.0), 0.0),  # not below the lower end
    ],
)
def test_a_step_of_lamb_between_two_ends(norms: tuple[float, ...], ratio: float) -> None:
    step, var = values((3, 4), 1), values((3, 4), 2)
    (found,) = arrays_of("LambUpdateWithLr", *norms, 0.1, step, var, 0.0, 1.0, 10.0)
    close(found, var - ratio * 0.1 * step)


@pytest.mark.parametrize(
    ("norms", "ratio"), [((3.0, 2.0), 1.5), ((90.0, 2.0), 45.0), ((0.0, 2.0), 1.0), ((3.0, 0.0), 1.0)]
)
def test_a_step_of_lamb(norms: tuple[float, ...], ratio: float) -> None:
    step, var = values((3, 4), 1), values((3, 4), 2)
    (found,) = arrays_of("LambUpdateWithLrV2", *norms, 0.1, step, var, 0.0, 1.0)
    close(found, var - ratio * 0.1 * step)


ranked = shapes.filter(len)


@FEW
@given(shape=ranked, seed=seeds)
def test_softmax_gradient_without_its_last_factor(tensorflow: TensorFlow, shape: Shape, seed: int) -> None:
    logits, slope = values(shape, seed), values(shape, seed + 1)
    (softmax,) = tensorflow.run("Softmax", {"logits": logits})
    (wanted,) = tensorflow.run("Softmax", {"logits": logits}, gradient=(["logits"], slope))
    (found,) = arrays_of("ConfusionSoftmaxGrad", slope, softmax)
    close(found * softmax, wanted, atol=1e-11)


def test_products_in_float16_may_round_more() -> None:
    random = np.random.default_rng(4)
    slope, softmax = random.normal(size=(40, 64)), random.dirichlet(np.ones(64), 40)
    half, other = slope.astype(np.float16), softmax.astype(np.float16)
    (found,) = outputs_of("ConfusionSoftmaxGrad", half, other)
    sums = (half * other).astype(np.float32).sum(-1, keepdims=True).astype(np.float16)
    kernel = (half - sums).astype(np.float64)
    size = np.sqrt((2.0**-24 * found.summed) ** 2 + (2.0**-11 * found.array) ** 2)
    error = np.abs(kernel - found.array)
    assert (error <= 3 * size).all()
    assert np.sqrt(np.mean((error / size) ** 2)) > 0.05  # and not so loosely that anything passes
    (single,) = outputs_of("ConfusionSoftmaxGrad", slope.astype(np.float32), softmax.astype(np.float32))
    assert (np.asarray(single.summed) < np.asarray(found.summed) / 100).all()


@pytest.mark.parametrize("op_type", ["SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN"])
@FEW
@given(shape=ranked, seed=seeds, count=st.integers(1, 9))
def test_sparse_segments(tensorflow: TensorFlow, op_type: str, shape: Shape, seed: int, count: int) -> None:
    x = values(shape, seed)
    indices, ids = whole((count,), seed, 0, shape[0]), np.sort(whole((count,), seed + 1, 0, 5))
    (wanted,) = tensorflow.run(op_type, {"data": x, "indices": indices, "segment_ids": ids})
    close(arrays_of(op_type, x, indices, ids)[0], wanted)


@FEW
@given(shape=shapes.filter(lambda shape: len(shape) > 1), seed=seeds)
def test_diagonals_of_matrices(tensorflow: TensorFlow, shape: Shape, seed: int) -> None:
    x = values(shape, seed)
    same(arrays_of("MatrixDiag", x)[0], tensorflow.run("MatrixDiag", {"diagonal": x})[0])
    (diagonals,) = tensorflow.run("MatrixDiagPart", {"input": x})
    same(arrays_of("MatrixDiagPart", x)[0], diagonals)
    other = values(diagonals.shape, seed + 1)
    (wanted,) = tensorflow.run("MatrixSetDiag", {"input": x, "diagonal": other})
    same(arrays_of("MatrixSetDiag", x, other)[0], wanted)
    # The forms with D bring the ones of the diagonal as a further input.
    ones = np.zeros(shape)
    ones[..., np.arange(other.shape[-1]), np.arange(other.shape[-1])] = 1
    same(arrays_of("MatrixSetDiagD", x, other, ones)[0], wanted)
    same(arrays_of("MatrixDiagPartD", x, ones)[0], diagonals)


@FEW
@given(seed=seeds, count=st.integers(1, 20))
def test_numbers_between_two_ends(tensorflow: TensorFlow, seed: int, count: int) -> None:
    start, stop = values((2,), seed)
    (wanted,) = tensorflow.run("LinSpace", {"start": start, "stop": stop, "num": np.int32(count)})
    close(arrays_of("LinSpace", start, stop, np.int32(count))[0], wanted, atol=1e-11)


@pytest.mark.parametrize("method", ["bilinear", "nearest"])
@FEW
@given(seed=seeds, size=st.tuples(*[st.integers(1, 7)] * 2), crop=st.tuples(*[st.integers(1, 6)] * 2))
def test_parts_of_images(tensorflow: TensorFlow, method: str, seed: int, size: Shape, crop: Shape) -> None:
    x = values((2, *size, 3), seed)
    random = np.random.default_rng(seed)
    boxes = random.uniform(-0.3, 1.3, (4, 4)).astype(np.float32)  # turned round and beyond the image too
    given: dict[str, Any] = {"image": x, "boxes": boxes, "box_ind": i32([0, 1, 1, 0]), "crop_size": i32(crop)}
    attrs: dict[str, Any] = {"method": method, "extrapolation_value": 7.0}
    (wanted,) = tensorflow.run("CropAndResize", given, **attrs)
    (found,) = outputs_of("CropAndResize", *given.values(), **attrs)
    assert found.array.shape == wanted.shape
    assert found.doubtful is not None
    sure = ~found.doubtful
    if min(size) > 1:
        assert sure.all()  # random boxes meet no end, and no middle between pixels
    error = np.abs(found.array - wanted)
    bound = 2.0**-24 * (4 * np.abs(found.array) + 4 * np.asarray(found.summed))
    assert (error <= bound)[sure].all()
    turned = x.transpose(0, 3, 1, 2)
    (other,) = arrays_of("CropAndResizeD", turned, *list(given.values())[1:3], layout="NCHW", crop_size=crop, **attrs)
    same(other, found.array.transpose(0, 3, 1, 2))


def test_the_far_ends_of_an_image_are_doubtful() -> None:
    x, whole_image = values((1, 4, 5, 2), 3), np.array([[0, 0, 1, 1]], np.float32)
    (found,) = outputs_of("CropAndResize", x, whole_image, i32([0]), i32([4, 5]))
    close(found.array, x)
    assert found.doubtful is not None
    assert found.doubtful[0, -1].all()
    assert not found.doubtful[0, :3, :4].any()


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
    np.testing.assert_array_equal((slope * other).astype(np.float64), product.array.astype(np.float16))


@pytest.mark.parametrize("maximize", [False, True])
@FEW
@given(shape=shapes, seed=seeds, before=st.integers(0, 5))
def test_adam_with_decay(maximize: bool, shape: Shape, seed: int, before: int) -> None:
    var, m, grad = (values(shape, seed + place) for place in range(3))
    v = values(shape, seed + 3, "positive")
    slope = -grad if maximize else grad
    new_m, new_v = 0.9 * m + 0.1 * slope, 0.99 * v + 0.01 * slope**2
    mean, variance = new_m / (1 - 0.9 ** (before + 1)), new_v / (1 - 0.99 ** (before + 1))
    wanted = [var - 0.1 * 0.02 * var - 0.1 * mean / (np.sqrt(variance) + 1e-3), new_m, new_v]
    given: list[Any] = [var, m, v, 0.9**before, 0.99**before, 0.1, 0.02, 0.9, 0.99, 1e-3, grad]
    for one, other in zip(arrays_of("ApplyAdamW", *given, maximize=maximize), wanted, strict=True):
        close(one, other)


def test_adam_with_the_largest_moment_is_refused() -> None:
    with refused("amsgrad"):
        arrays_of("ApplyAdamW", *[np.ones(3)] * 3, *[0.1] * 7, np.ones(3), amsgrad=True)


@pytest.mark.parametrize(
    ("op_type", "inputs", "reason"),
    [
        ("LambNextRight", [np.ones(3), np.ones(4), *[1.0] * 4], "do not broadcast"),
        ("LambUpdateWithLrV2", [np.ones(3)] * 6, "input 6 of LambUpdateWithLrV2 is not connected"),
        ("ConfusionSoftmaxGrad", [np.ones(()), np.ones(())], "x of shape \\(\\)"),
        ("SparseSegmentSum", [np.ones((3, 2)), i32([0, 1]), i32([0])], "segment_ids of shape"),
        (
            "SparseSegmentMean",
            [np.ones((3, 2)), i32([0, 1]), i32([1, 0])],
            "segment_ids of SparseSegmentMean are not sorted",
        ),
        ("SparseSegmentMean", [i32([[3, 4]]), i32([0]), i32([0])], "with x of type int32"),
        ("MatrixDiag", [np.ones(2**14)], "has more than"),
        ("MatrixDiagPart", [np.ones(3)], "does not accept x of shape"),
        ("MatrixSetDiag", [np.ones((2, 3)), np.ones(3)], "diagonal of shape"),
        ("LinSpace", [0.0, 1.0, np.int64(2**40)], "has more than"),
        (
            "CropAndResize",
            [np.ones((1, 4, 4, 1)), np.ones((2, 4)), i32([0, 1]), i32([2, 2])],
            "box_index 1 out of range .limit 1",
        ),
        ("CropAndResize", [np.ones((1, 4, 4, 1)), np.ones((2, 3)), i32([0, 0]), i32([2, 2])], "boxes of shape"),
        (
            "CropAndResize",
            [np.ones((1, 4, 4, 1)), np.ones((1, 4)), i32([0]), i32([2, 0])],
            "crop_size of CropAndResize cannot be",
        ),
        ("LinSpace", [0.0, 1.0, np.int64(0)], "num of LinSpace cannot be 0"),
    ],
)
def test_refusals(op_type: str, inputs: list[Array], reason: str) -> None:
    with refused(reason):
        arrays_of(op_type, *inputs)
