"""Moves against TensorFlow: every element where it belongs."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from opcalls import arrays_of, doubtful_of, outputs_of, refused
from opvalues import FEW, SOME, Shape, close, i32, ranked, same, same_all, seeds, shapes, values, whole
from tensorflow_oracle import OracleError, TensorFlow

from precision_tool.lib.ops.base import NotComputedError, OutputSpec


@pytest.mark.parametrize("target", ["float32", "int32", "int8", "uint8", "bool", "float16"])
@FEW
@given(shape=shapes, seed=seeds)
def test_casts(tensorflow: TensorFlow, target: str, shape: Shape, seed: int) -> None:
    for x in (np.abs(values(shape, seed)), whole(shape, seed, 0, 100)):
        (result,) = arrays_of("Cast", x, specs=(OutputSpec(dtype=target),))
        expected = tensorflow.run("Cast", {"x": x}, DstT=target)[0]
        same(result.astype(expected.dtype), expected)


def test_a_cast_to_whole_numbers_saturates_in_doubt() -> None:
    x = np.array([1e20, -1e20, np.nan, 2.5, 3.0, 100.0], np.float32)
    (result,) = outputs_of("Cast", x, specs=(OutputSpec(dtype="int32"),))
    same(result.array, [2**31 - 1, -(2**31), 0, 2, 3, 100])
    assert doubtful_of(result).tolist() == [True, True, True, False, True, True]


@FEW
@given(shape=shapes, seed=seeds, order=st.randoms(use_true_random=False))
def test_transposes(tensorflow: TensorFlow, shape: Shape, seed: int, order: Any) -> None:
    x, perm = values(shape, seed), list(range(len(shape)))
    order.shuffle(perm)
    (expected,) = tensorflow.run("Transpose", {"x": x, "perm": np.array(perm, np.int32)})
    same(arrays_of("TransposeD", x, perm=perm)[0], expected)
    same(arrays_of("Transpose", x, np.array(perm, np.int32))[0], expected)


def test_a_transpose_and_a_reshape_in_one() -> None:
    x = values((2, 6, 4), 1)
    attrs: dict[str, Any] = {"perm": [0, 2, 1, 3], "shape": [2, 6, 2, 2], "transpose_first": False}
    (heads,) = arrays_of("ConfusionTransposeD", x, **attrs)
    for n, token, head, place in np.ndindex(2, 6, 2, 2):
        assert heads[n, head, token, place] == x[n, token, 2 * head + place]
    attrs = {"perm": [0, 2, 1, 3], "shape": [2, 6, 4], "transpose_first": True}
    same(arrays_of("ConfusionTransposeD", heads, **attrs)[0], x)
    with refused("has no attribute transpose_first"):
        arrays_of("ConfusionTransposeD", x, perm=[0, 1, 2], shape=[2, 24])


@FEW
@given(seed=seeds, ranks=st.tuples(st.integers(0, 4), st.integers(0, 4)))
def test_what_gradients_ask_of_shapes(tensorflow: TensorFlow, seed: int, ranks: tuple[int, int]) -> None:
    random = np.random.default_rng(seed)
    full = random.integers(1, 4, 4)
    shapes = [i32(np.where(random.random(rank) < 0.4, 1, full[4 - rank :])) for rank in ranks]
    named = dict(zip(("s0", "s1"), shapes, strict=True))
    same_all(arrays_of("BroadcastGradientArgs", *shapes), tensorflow.run("BroadcastGradientArgs", named))
    order = i32(random.permutation(ranks[0] + 1))
    same_all(arrays_of("InvertPermutation", order), tensorflow.run("InvertPermutation", {"x": order}))
    axis = np.int32(seed % 3)
    several = [i32(np.where(np.arange(3) == axis, random.integers(1, 5), 2)) for _ in range(3)]
    offsets = tensorflow.run("ConcatOffset", {"concat_dim": axis, "shape": several})
    same_all(arrays_of("ConcatOffset", axis, *several), offsets)
    repeated = i32(random.integers(0, 5, seed % 9))
    same_all(arrays_of("Unique", repeated), tensorflow.run("Unique", {"x": repeated}, out_idx="int32"))
    places = [i32(random.permutation(6)[:3]), i32([[5, 0]])]
    rows = [values((3, 2), seed), values((1, 2, 2), seed + 1)]
    (stitched,) = tensorflow.run("DynamicStitch", {"indices": places, "data": rows})
    present = np.isin(np.arange(6), np.concatenate([each.reshape(-1) for each in places]))
    (ours,) = arrays_of("DynamicStitch", *places, *rows)
    same(ours[present], stitched[present])  # TensorFlow leaves the others as the memory was


@FEW
@given(shape=ranked, seed=seeds, axis=st.integers(0, 4))
def test_shapes(tensorflow: TensorFlow, shape: Shape, seed: int, axis: int) -> None:
    x, axis = values(shape, seed), axis % (len(shape) + 1)
    (expected,) = tensorflow.run("ExpandDims", {"input": x, "axis": np.int32(axis)})
    for result in (
        arrays_of("ExpandDims", x, np.int32(axis)),
        arrays_of("ExpandDims", x, specs=(OutputSpec(shape=expected.shape),)),
    ):
        same(result[0], expected)
    same(arrays_of("Squeeze", expected, axis=[axis])[0], x)
    same(arrays_of("Squeeze", x)[0], tensorflow.run("Squeeze", {"input": x})[0])
    same(arrays_of("Reshape", x, i32([-1, shape[-1]]))[0], x.reshape(-1, shape[-1]))
    same(arrays_of("Flatten", x, specs=(OutputSpec(shape=(x.size,)),))[0], x.ravel())
    same(arrays_of("Shape", x)[0], shape)
    same(arrays_of("BroadcastTo", x, i32([2, *shape]))[0], np.stack([x, x]))


@FEW
@given(shape=shapes, seed=seeds, times=st.lists(st.integers(0, 3), min_size=4, max_size=4))
def test_tiles(tensorflow: TensorFlow, shape: Shape, seed: int, times: list[int]) -> None:
    x, multiples = values(shape, seed), times[: len(shape)]
    (expected,) = tensorflow.run("Tile", {"input": x, "multiples": np.array(multiples, np.int32)})
    same(arrays_of("TileD", x, multiples=multiples)[0], expected)
    same(arrays_of("Tile", x, np.array(multiples, np.int32))[0], expected)


@FEW
@given(shape=ranked, seed=seeds, axis=st.integers(-4, 3), lengths=st.lists(st.integers(1, 3), min_size=1, max_size=3))
def test_joining_and_splitting(tensorflow: TensorFlow, shape: Shape, seed: int, axis: int, lengths: list[int]) -> None:
    axis = axis % len(shape)
    parts = [values((*shape[:axis], length, *shape[axis + 1 :]), seed + place) for place, length in enumerate(lengths)]
    (expected,) = tensorflow.run("ConcatV2", {"values": parts, "axis": np.int32(axis)}) if len(parts) > 1 else parts
    same(arrays_of("ConcatV2D", *parts, concat_dim=axis - len(shape))[0], expected)
    same(arrays_of("ConcatV2", *parts, np.int32(axis))[0], expected)
    same(arrays_of("Concat", np.int32(axis), *parts)[0], expected)
    sizes = [*lengths[:-1], -1]
    splits: dict[str, Any] = {"value": expected, "size_splits": np.array(sizes, np.int32), "axis": np.int32(axis)}
    for result in (
        arrays_of("SplitVD", expected, size_splits=sizes, split_dim=axis, num_split=len(sizes)),
        arrays_of("SplitV", expected, np.array(sizes, np.int32), np.int32(axis), num_split=len(sizes)),
        tensorflow.run("SplitV", splits, num_split=len(sizes)) if len(sizes) > 1 else parts,
    ):
        same_all(result, parts)


@FEW
@given(shape=ranked, seed=seeds, axis=st.integers(0, 3), count=st.integers(1, 3))
def test_equal_parts_and_packs(tensorflow: TensorFlow, shape: Shape, seed: int, axis: int, count: int) -> None:
    axis = axis % len(shape)
    x = values((*shape[:axis], shape[axis] * count, *shape[axis + 1 :]), seed)
    expected = tensorflow.run("Split", {"axis": np.int32(axis), "value": x}, num_split=count)
    for result in (
        arrays_of("SplitD", x, split_dim=axis, num_split=count),
        arrays_of("Split", np.int32(axis), x, num_split=count),
    ):
        same_all(result, expected)
    (packed,) = tensorflow.run("Pack", {"values": expected}, axis=axis)
    same(arrays_of("Pack", *expected, axis=axis)[0], packed)
    same_all(arrays_of("Unpack", packed, axis=axis, num=count), expected)


@SOME
@given(data=st.data(), shape=ranked, seed=seeds)
def test_slices(tensorflow: TensorFlow, data: st.DataObject, shape: Shape, seed: int) -> None:
    x = values(shape, seed)
    offsets = [data.draw(st.integers(0, size)) for size in shape]
    rooms = [size - start for size, start in zip(shape, offsets, strict=True)]
    sizes = [data.draw(st.sampled_from([-1, *range(room + 1)])) for room in rooms]
    box = {"begin": np.array(offsets, np.int32), "size": np.array(sizes, np.int32)}
    (expected,) = tensorflow.run("Slice", {"input": x, **box})
    same(arrays_of("SliceD", x, offsets=offsets, size=sizes)[0], expected)
    same(arrays_of("Slice", x, *box.values())[0], expected)


masks = st.integers(0, 15)


@SOME
@given(data=st.data(), shape=ranked, seed=seeds)
def test_strided_slices_and_their_gradients(
    tensorflow: TensorFlow, data: st.DataObject, shape: Shape, seed: int
) -> None:
    x, count = values(shape, seed), data.draw(st.integers(1, len(shape)))
    cut: dict[str, Any] = {
        "begin": [data.draw(st.integers(-6, 6)) for _ in range(count)],
        "end": [data.draw(st.integers(-6, 6)) for _ in range(count)],
        "strides": [data.draw(st.sampled_from([1, 1, 2, 3, -1, -2])) for _ in range(count)],
    }
    attrs: dict[str, Any] = {name: data.draw(masks) for name in ("begin_mask", "end_mask")}
    attrs["shrink_axis_mask"] = data.draw(st.sampled_from([0, 0, 1, 2, 3]))
    attrs["new_axis_mask"] = data.draw(st.sampled_from([0, 0, 0, 1, 2]))
    attrs["ellipsis_mask"] = data.draw(st.sampled_from([0, 0, 0, 1, 2]))
    inputs = {name: np.array(value, np.int32) for name, value in cut.items()}
    try:
        (expected,) = tensorflow.run("StridedSlice", {"input": x, **inputs}, **attrs)
    except OracleError:
        with pytest.raises(NotComputedError):
            arrays_of("StridedSliceD", x, **cut, **attrs)
        return
    same(arrays_of("StridedSliceD", x, **cut, **attrs)[0], expected)
    same(arrays_of("StridedSlice", x, *inputs.values(), **attrs)[0], expected)
    dy = values(expected.shape, seed + 1)
    (expected,) = tensorflow.run("StridedSliceGrad", {"shape": np.array(shape, np.int32), **inputs, "dy": dy}, **attrs)
    same(arrays_of("StridedSliceGradD", dy, shape=list(shape), **cut, **attrs)[0], expected)
    same(arrays_of("StridedSliceGrad", np.array(shape, np.int32), *inputs.values(), dy, **attrs)[0], expected)


@FEW
@given(shape=shapes, seed=seeds, margins=st.lists(st.integers(0, 2), min_size=8, max_size=8))
def test_pads(tensorflow: TensorFlow, shape: Shape, seed: int, margins: list[int]) -> None:
    x = values(shape, seed)
    pairs = [margins[2 * axis : 2 * axis + 2] for axis in range(len(shape))]
    paddings = np.array(pairs, np.int32).reshape(-1, 2)
    (expected,) = tensorflow.run("Pad", {"input": x, "paddings": paddings})
    same(arrays_of("PadD", x, paddings=pairs)[0], expected)
    same(arrays_of("Pad", x, paddings)[0], expected)
    (expected,) = tensorflow.run("PadV2", {"input": x, "paddings": paddings, "constant_values": np.float64(7)})
    same(arrays_of("PadV2", x, paddings, np.float64(7))[0], expected)
    same(arrays_of("PadV3D", x, paddings=pairs, constant_values=7, mode="constant")[0], expected)
    for mode in ("REFLECT", "SYMMETRIC"):
        try:
            (expected,) = tensorflow.run("MirrorPad", {"input": x, "paddings": paddings}, mode=mode)
        except OracleError:
            with refused("outside the shape"):
                arrays_of("MirrorPad", x, paddings, mode=mode)
        else:
            same(arrays_of("MirrorPad", x, paddings, mode=mode)[0], expected)


@FEW
@given(seed=seeds, block=st.integers(2, 3), sizes=st.tuples(*[st.integers(1, 3)] * 4))
def test_blocks_of_the_plane(tensorflow: TensorFlow, seed: int, block: int, sizes: Shape) -> None:
    n, height, width, channels = sizes
    wide = values((n, height, width, channels * block**2), seed)
    (plane,) = tensorflow.run("DepthToSpace", {"input": wide}, block_size=block, data_format="NHWC")
    same(arrays_of("DepthToSpace", wide, block_size=block, data_format="NHWC")[0], plane)
    same(arrays_of("SpaceToDepth", plane, block_size=block)[0], wide)
    first = np.moveaxis(wide, 3, 1)
    same(arrays_of("DepthToSpace", first, block_size=block, data_format="NCHW")[0], np.moveaxis(plane, 3, 1))
    same(arrays_of("SpaceToDepth", np.moveaxis(plane, 3, 1), layout="NCHW", block_size=block)[0], first)
    margins = i32([[0, 1], [1, 0]])
    inputs = {"input": values((n, block * 3 - 1, block * 2 - 1, channels), seed), "paddings": margins}
    (batch,) = tensorflow.run("SpaceToBatch", inputs, block_size=block)
    same(arrays_of("SpaceToBatch", inputs["input"], margins, block_size=block)[0], batch)
    same(arrays_of("BatchToSpace", batch, margins, block_size=block)[0], inputs["input"])


def test_the_other_order_of_depth_to_space() -> None:
    x = np.arange(2 * 8.0).reshape(1, 1, 2, 8)
    (y,) = arrays_of("DepthToSpace", x, block_size=2, data_format="NHWC", mode="CRD")
    for row, column, channel in np.ndindex(2, 4, 2):
        assert y[0, row, column, channel] == x[0, 0, column // 2, channel * 4 + row * 2 + column % 2]


@FEW
@given(seed=seeds, block=st.lists(st.integers(1, 3), min_size=1, max_size=2))
def test_blocks_of_the_batch(tensorflow: TensorFlow, seed: int, block: list[int]) -> None:
    margins = np.array([[1, step - 1] for step in block], np.int32)
    x = values((2, *(step * 2 for step in block), 3), seed)
    inputs = {"input": x, "block_shape": np.array(block, np.int32), "paddings": margins}
    (batch,) = tensorflow.run("SpaceToBatchND", inputs)
    same(arrays_of("SpaceToBatchND", x, inputs["block_shape"], margins)[0], batch)
    same(arrays_of("SpaceToBatchNDD", x, block_shape=block, paddings=margins.tolist())[0], batch)
    same(arrays_of("BatchToSpaceND", batch, inputs["block_shape"], margins)[0], x)


@FEW
@given(shape=shapes.filter(lambda shape: len(shape) >= 2), seed=seeds, axis=st.integers(0, 3))
def test_reversals(tensorflow: TensorFlow, shape: Shape, seed: int, axis: int) -> None:
    x, axis = values(shape, seed), axis % len(shape)
    (expected,) = tensorflow.run("ReverseV2", {"tensor": x, "axis": i32([axis])})
    same(arrays_of("ReverseV2", x, i32([axis]))[0], expected)
    lengths = whole(shape[:1], seed, 0, shape[1] + 1)
    (expected,) = tensorflow.run("ReverseSequence", {"input": x, "seq_lengths": lengths}, seq_dim=1, batch_dim=0)
    same(arrays_of("ReverseSequence", x, lengths, seq_dim=1, batch_dim=0)[0], expected)


@FEW
@given(shape=shapes, seed=seeds, depth=st.integers(1, 5), axis=st.integers(-1, 4))
def test_one_hot(tensorflow: TensorFlow, shape: Shape, seed: int, depth: int, axis: int) -> None:
    axis = min(axis, len(shape))
    indices, on, off = whole(shape, seed, -1, 6), np.float64(2), np.float64(-1)
    inputs: dict[str, Any] = {"indices": indices, "depth": np.int32(depth), "on_value": on, "off_value": off}
    (expected,) = tensorflow.run("OneHot", inputs, axis=axis)
    same(arrays_of("OneHot", *inputs.values(), axis=axis)[0], expected)
    same(arrays_of("OneHotD", indices, on, off, depth=depth, axis=axis)[0], expected)
    if axis == -1:
        (result,) = arrays_of(
            "OneHotD", indices, np.float64(1), np.float64(0), specs=(OutputSpec(shape=expected.shape),)
        )
        same(result, expected == 2)


@FEW
@given(seed=seeds, start=st.integers(-5, 5), limit=st.integers(-5, 5), step=st.sampled_from([1, 2, 3, -1, -2]))
def test_constants(tensorflow: TensorFlow, seed: int, start: int, limit: int, step: int) -> None:
    ends = {"start": np.float64(start), "limit": np.float64(limit + 0.5), "delta": np.float64(step)}
    try:
        (expected,) = tensorflow.run("Range", ends)
    except OracleError:  # a step to the other side
        expected = np.zeros(0)
    same(arrays_of("Range", *ends.values())[0], expected)
    same(arrays_of("Fill", i32([2, 3]), np.float64(start))[0], np.full((2, 3), float(start)))
    same(arrays_of("FillD", np.float64(start), dims=[2, 3])[0], np.full((2, 3), float(start)))
    x = values((2, 4, 3), seed)
    inputs: dict[str, Any] = {"input": x, "num_lower": np.int32(start), "num_upper": np.int32(abs(limit))}
    if start <= 4 and abs(limit) <= 3:
        same(arrays_of("MatrixBandPart", *inputs.values())[0], tensorflow.run("MatrixBandPart", inputs)[0])
    same(arrays_of("Diag", x[0])[0], tensorflow.run("Diag", {"diagonal": x[0]})[0])
    same(arrays_of("DiagPart", arrays_of("Diag", x[0])[0])[0], x[0])


@FEW
@given(shape=shapes.filter(lambda shape: len(shape) > 1), seed=seeds)
def test_diagonals_of_matrices(tensorflow: TensorFlow, shape: Shape, seed: int) -> None:
    x = values(shape, seed)
    same(arrays_of("MatrixDiag", x)[0], tensorflow.run("MatrixDiag", {"diagonal": x})[0])
    (diagonals,) = tensorflow.run("MatrixDiagPart", {"input": x})
    same(arrays_of("MatrixDiagPart", x)[0], diagonals)
    other = values(diagonals.shape, seed + 1)
    (expected,) = tensorflow.run("MatrixSetDiag", {"input": x, "diagonal": other})
    same(arrays_of("MatrixSetDiag", x, other)[0], expected)
    # The forms with D bring the ones of the diagonal as a further input.
    ones = np.zeros(shape)
    ones[..., np.arange(other.shape[-1]), np.arange(other.shape[-1])] = 1
    same(arrays_of("MatrixSetDiagD", x, other, ones)[0], expected)
    same(arrays_of("MatrixDiagPartD", x, ones)[0], diagonals)


@FEW
@given(seed=seeds, count=st.integers(1, 20))
def test_numbers_between_two_ends(tensorflow: TensorFlow, seed: int, count: int) -> None:
    start, stop = values((2,), seed)
    (expected,) = tensorflow.run("LinSpace", {"start": start, "stop": stop, "num": np.int32(count)})
    close(arrays_of("LinSpace", start, stop, np.int32(count))[0], expected, atol=1e-11)
