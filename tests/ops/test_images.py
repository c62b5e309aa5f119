"""Resizes, crops and boxes against TensorFlow."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from opcalls import arrays_of, doubtful_of, outputs_of, refused
from opvalues import FEW, SOME, Shape, close, i32, same, seeds, values
from tensorflow_oracle import TensorFlow

from precision_tool.lib.ops.base import OutputSpec


@pytest.mark.parametrize("lowest", [-1.0, 0.4])
@SOME
@given(seed=seeds)
def test_boxes_that_stay(tensorflow: TensorFlow, lowest: float, seed: int) -> None:
    """Corners in any order, empty boxes among them."""
    random = np.random.default_rng(seed)
    boxes = random.random((30, 4)).astype(np.float32)
    boxes[::7, 2] = boxes[::7, 0]
    scores = (random.permutation(30) / 30).astype(np.float32)
    limits: list[Any] = [i32(8), np.float32(0.3), np.float32(lowest)]
    names = ("max_output_size", "iou_threshold", "score_threshold")
    given_inputs = {"boxes": boxes, "scores": scores, **dict(zip(names, limits, strict=True))}
    (expected,) = tensorflow.run("NonMaxSuppressionV3", given_inputs)
    (result,) = arrays_of("NonMaxSuppressionV3", boxes, scores, *limits)
    same(result, expected)


def test_the_threshold_of_boxes_as_an_attribute() -> None:
    """An overlap of 0.6; a box farther away comes third."""
    boxes, scores = np.array([[0, 0, 1, 1], [0, 0, 1, 0.6], [2, 2, 3, 3]]), np.array([0.9, 0.8, 0.7])
    for threshold, expected in ((0.7, [0, 1]), (0.5, [0, 2])):
        (result,) = arrays_of("NonMaxSuppression", boxes, scores, i32(2), iou_threshold=threshold)
        assert result.tolist() == expected
    assert arrays_of("NonMaxSuppression", boxes, scores, i32(2))[0].tolist() == [0, 2]
    with refused("offset"):
        arrays_of("NonMaxSuppressionV3", boxes, scores, i32(2), 0.5, 0.0, offset=1)


def test_boxes_that_hang_on_rounding_are_refused() -> None:
    boxes = np.array([[0, 0, 1, 1], [0, 0, 1, 0.5], [2, 2, 3, 3]])
    with refused("at the threshold"):
        arrays_of("NonMaxSuppressionV3", boxes, np.array([0.9, 0.8, 0.7]), i32(3), 0.5, 0.0)
    with refused("two scores"):
        arrays_of("NonMaxSuppressionV3", boxes, np.array([0.9, 0.9, 0.7]), i32(3), 0.4, 0.0)
    fixed = (OutputSpec(shape=(3,), dtype="int32"),)
    with refused("by the graph"):
        arrays_of("NonMaxSuppressionV3", boxes, np.array([0.9, 0.8, 0.7]), i32(3), 0.4, 0.0, specs=fixed)


@pytest.mark.parametrize("method", ["bilinear", "nearest"])
@FEW
@given(seed=seeds, size=st.tuples(*[st.integers(1, 7)] * 2), crop=st.tuples(*[st.integers(1, 6)] * 2))
def test_parts_of_images(tensorflow: TensorFlow, method: str, seed: int, size: Shape, crop: Shape) -> None:
    x = values((2, *size, 3), seed)
    random = np.random.default_rng(seed)
    boxes = random.uniform(-0.3, 1.3, (4, 4)).astype(np.float32)  # turned round and beyond the image too
    inputs: dict[str, Any] = {"image": x, "boxes": boxes, "box_ind": i32([0, 1, 1, 0]), "crop_size": i32(crop)}
    attrs: dict[str, Any] = {"method": method, "extrapolation_value": 7.0}
    (expected,) = tensorflow.run("CropAndResize", inputs, **attrs)
    (result,) = outputs_of("CropAndResize", *inputs.values(), **attrs)
    assert result.array.shape == expected.shape
    sure = ~doubtful_of(result)
    if min(size) > 1:
        assert sure.all()  # random boxes meet no end, and no middle between pixels
    error = np.abs(result.array - expected)
    bound = 2.0**-24 * (4 * np.abs(result.array) + 4 * np.asarray(result.summed))
    assert (error <= bound)[sure].all()
    turned = x.transpose(0, 3, 1, 2)
    (other,) = arrays_of("CropAndResizeD", turned, *list(inputs.values())[1:3], layout="NCHW", crop_size=crop, **attrs)
    same(other, result.array.transpose(0, 3, 1, 2))


def test_the_far_ends_of_an_image_are_doubtful() -> None:
    x, whole_image = values((1, 4, 5, 2), 3), np.array([[0, 0, 1, 1]], np.float32)
    (result,) = outputs_of("CropAndResize", x, whole_image, i32([0]), i32([4, 5]))
    close(result.array, x)
    assert doubtful_of(result)[0, -1].all()
    assert not doubtful_of(result)[0, :3, :4].any()


grids = st.sampled_from([(False, False), (True, False), (False, True)])


sizes = st.tuples(st.integers(1, 7), st.integers(1, 7))


@SOME
@given(size=sizes, target_size=sizes, seed=seeds, grid=grids)
def test_resizes(tensorflow: TensorFlow, size: Shape, target_size: Shape, seed: int, grid: tuple[bool, bool]) -> None:
    image, grads = (values((2, *plane, 3), seed).astype(np.float32) for plane in (size, target_size))
    attrs: dict[str, Any] = {"align_corners": grid[0], "half_pixel_centers": grid[1]}
    target = np.array(target_size, np.int32)
    loose: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}
    (expected,) = tensorflow.run("ResizeBilinear", {"images": image, "size": target}, **attrs)
    close(arrays_of("ResizeBilinearV2", image, target, **attrs)[0], expected, **loose)
    close(arrays_of("ResizeBilinearV2D", image, size=list(target_size), **attrs)[0], expected, **loose)
    first = np.moveaxis(image, 3, 1)
    (result,) = arrays_of("ResizeBilinearV2D", first, layout="NCHW", size=list(target_size), **attrs)
    close(np.moveaxis(result, 1, 3), expected, **loose)
    (expected,) = tensorflow.run("ResizeBilinearGrad", {"grads": grads, "original_image": image}, **attrs)
    close(arrays_of("ResizeBilinearV2Grad", grads, image, **attrs)[0], expected, **loose)
    (expected,) = tensorflow.run("ResizeNearestNeighbor", {"images": image, "size": target}, **attrs)
    same(arrays_of("ResizeNearestNeighborV2", image, target, **attrs)[0], expected)
    small = np.array(size, np.int32)
    (expected,) = tensorflow.run("ResizeNearestNeighborGrad", {"grads": grads, "size": small}, **attrs)
    close(arrays_of("ResizeNearestNeighborV2Grad", grads, small, **attrs)[0], expected, **loose)


def test_an_infinite_pixel_stays_where_it_is() -> None:
    image = np.ones((1, 4, 4, 1))
    image[0, 0, 0, 0] = np.inf
    (result,) = arrays_of("ResizeBilinearV2D", image, size=[8, 8])
    assert np.isfinite(result[0, 2:, 2:]).all()
