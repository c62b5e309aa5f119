"""Pooling and its gradients against TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from opcalls import arrays_of, as_input, call_of, doubtful_of, output_of, results_of, rounding_ratio
from opvalues import close, same, tensor, tries
from tensorflow_oracle import TensorFlow


@dataclass(frozen=True)
class Case:
    """Pooling as TensorFlow takes it on a CPU: channels last."""

    image: tuple[int, ...]
    ksize: tuple[int, ...]
    strides: tuple[int, ...]
    padding: str

    @property
    def attrs(self) -> dict[str, Any]:
        return {"ksize": [1, *self.ksize, 1], "strides": [1, *self.strides, 1], "padding": self.padding}


@st.composite
def cases(draw: st.DrawFn, rank: int = 2) -> Case:
    size, ksize, strides = (
        tuple(draw(st.integers(1, most)) for _ in range(rank)) for most in (8 if rank == 2 else 5, 3, 3)
    )
    padding = draw(st.sampled_from(["SAME", "VALID"]))
    assume(padding == "SAME" or all(k <= s for k, s in zip(ksize, size, strict=True)))
    return Case((draw(st.integers(1, 3)), *size, draw(st.integers(1, 3))), ksize, strides, padding)


@pytest.mark.parametrize("rank", [2, 3])
@given(data=st.data())
@tries(30)
def test_maximum(rank: int, data: st.DataObject, tensorflow: TensorFlow) -> None:
    case = data.draw(cases(rank))
    x = tensor(1, case.image).astype(np.float32)
    name = "MaxPool" if rank == 2 else "MaxPool3D"
    (y,) = tensorflow.run(name, {"input": x}, **case.attrs)
    same(arrays_of(name, x, **case.attrs)[0], y)
    g = tensor(2, y.shape).astype(np.float32)
    inputs = {"orig_input": x, "orig_output": y, "grad": g}
    (dx,) = tensorflow.run(f"{name}Grad", inputs, **case.attrs)
    output = output_of(call_of(f"{name}Grad", x, y, g, **case.attrs))
    close(output.array, dx, 1e-5)
    assert not doubtful_of(output).any()
    first = tuple(np.moveaxis(one, -1, 1) for one in (x, y, g))
    attrs: dict[str, Any] = {"ksize": [1, 1, *case.ksize], "strides": [1, 1, *case.strides], "padding": case.padding}
    layout = "NCHW" if rank == 2 else "NCDHW"
    (turned,) = arrays_of(f"{name}Grad", *(as_input(one, layout) for one in first), data_format=layout, **attrs)
    same(np.moveaxis(turned, 1, -1), output.array)


@pytest.mark.parametrize("rank", [2, 3])
@given(data=st.data())
@tries(30)
def test_average(rank: int, data: st.DataObject, tensorflow: TensorFlow) -> None:
    case = data.draw(cases(rank))
    dtype, tolerance = (np.float64, 1e-12) if rank == 2 else (np.float32, 1e-5)  # TensorFlow has no other in 3D
    x = tensor(1, case.image).astype(dtype)
    name = "AvgPool" if rank == 2 else "AvgPool3D"
    (y,) = tensorflow.run(name, {"value" if rank == 2 else "input": x}, **case.attrs)
    close(arrays_of(name, x, **case.attrs)[0], y, tolerance)
    g = tensor(2, y.shape).astype(dtype)
    inputs = {"orig_input_shape": np.array(case.image, np.int32), "grad": g}
    (dx,) = tensorflow.run(f"{name}Grad", inputs, **case.attrs)
    close(arrays_of(f"{name}Grad", np.array(case.image, np.int32), g, **case.attrs)[0], dx, tolerance)
    close(arrays_of(f"{name}GradD", g, orig_input_shape=list(case.image), **case.attrs)[0], dx, tolerance)


def test_ties_go_to_the_first_and_are_doubtful(tensorflow: TensorFlow) -> None:
    x = np.array([[3.0, 3.0, 1.0, 2.0], [0.0, 3.0, 2.0 + 2.0**-10, 2.0]], np.float32).reshape(1, 2, 4, 1)
    attrs: dict[str, Any] = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}
    (y,) = arrays_of("MaxPool", x, **attrs)
    g = np.array([5.0, 7.0], np.float32).reshape(y.shape)
    inputs = {"orig_input": x, "orig_output": y.astype(np.float32), "grad": g}
    (true,) = tensorflow.run("MaxPoolGrad", inputs, **attrs)
    output = output_of(call_of("MaxPoolGrad", as_input(x, dtype="float16"), y, g, **attrs))
    same(output.array, true)
    doubtful = doubtful_of(output)[0, :, :, 0].tolist()
    assert doubtful == [[True, True, False, True], [False, True, True, True]]
    exact = output_of(call_of("MaxPoolGrad", as_input(x, dtype="float32"), y, g, **attrs))
    assert doubtful_of(exact)[0, :, 2:].any() == np.False_


@given(case=cases(), pads=st.tuples(*[st.integers(0, 1)] * 4), exclusive=st.booleans(), ceil=st.booleans())
@tries(30)
def test_pads_in_numbers(case: Case, pads: tuple[int, ...], exclusive: bool, ceil: bool) -> None:
    """AvgPoolV2 and MaxPoolV3 against windows gone through one by one."""
    top, bottom, left, right = pads
    batch, height, width, channels = case.image
    (kh, kw), (sh, sw) = case.ksize, case.strides
    assume(kh > max(top, bottom) and kw > max(left, right))
    assume(height + top + bottom >= kh and width + left + right >= kw)
    x = tensor(1, case.image)
    rows, columns = (
        int((np.ceil if ceil else np.floor)((extent + before + after - k) / s)) + 1
        for extent, before, after, k, s in ((height, top, bottom, kh, sh), (width, left, right, kw, sw))
    )
    rows -= ceil and (rows - 1) * sh >= height + top
    columns -= ceil and (columns - 1) * sw >= width + left
    maxima, means = np.empty((batch, rows, columns, channels)), np.empty((batch, rows, columns, channels))
    for i, j in np.ndindex(rows, columns):
        y, z = i * sh - top, j * sw - left
        seen = x[:, max(0, y) : max(0, y + kh), max(0, z) : max(0, z + kw)]
        assume(seen.size > 0)
        maxima[:, i, j] = seen.max(axis=(1, 2))
        means[:, i, j] = seen.sum(axis=(1, 2)) / (seen.shape[1] * seen.shape[2] if exclusive else kh * kw)
    attrs: dict[str, Any] = {"ksize": [1, kh, kw, 1], "strides": [1, sh, sw, 1], "padding_mode": "CALCULATED"}
    attrs.update(pads=list(pads), ceil_mode=ceil)
    close(arrays_of("MaxPoolV3", x, **attrs)[0], maxima)
    close(arrays_of("AvgPoolV2", x, exclusive=exclusive, **attrs)[0], means)
    caffe: dict[str, Any] = {"window": [kh, kw], "stride": [sh, sw], "pad": list(pads), "ceil_mode": int(not ceil)}
    close(arrays_of("Pooling", x, mode=0, **caffe)[0], maxima)


def test_the_whole_image_and_sizes_as_inputs() -> None:
    x = tensor(1, (2, 3, 4, 5))
    mean = x.mean(axis=(2, 3), keepdims=True)
    close(arrays_of("GlobalAveragePool", as_input(x, "NCHW"))[0], mean)
    close(arrays_of("Pooling", as_input(x, "NCHW"), mode=1, global_pooling=True)[0], mean)
    plain: dict[str, Any] = {"window": [3, 4], "stride": [1, 1], "pad": [0, 0, 0, 0]}
    (y,) = arrays_of("Pooling", as_input(x, "NCHW"), mode=1, **plain)
    close(y[..., :1, :1], x[:, :, :3, :4].mean(axis=(2, 3), keepdims=True))
    attrs: dict[str, Any] = {"ksize": [1, 2, 2, 1], "strides": [1, 1, 1, 1], "padding": "SAME"}
    sizes = [np.array(attrs[name], np.int32) for name in ("ksize", "strides")]
    (y,) = arrays_of("MaxPool", x, **attrs)
    same(arrays_of("MaxPoolV2", x, *sizes, padding="SAME")[0], y)
    with_places = results_of(call_of("MaxPoolWithArgmax", x, **attrs))
    assert with_places[1] is None
    g = tensor(2, y.shape)
    same(
        arrays_of("MaxPoolGradWithArgmax", x, g, np.zeros(y.shape, np.uint16), **attrs)[0],
        arrays_of("MaxPoolGrad", x, y, g, **attrs)[0],
    )


def test_rounding_of_averages_is_predicted() -> None:
    x = tensor(1, (4, 24, 24, 8))
    attrs: dict[str, Any] = {"ksize": [1, 6, 6, 1], "strides": [1, 1, 1, 1], "padding": "VALID"}
    output = output_of(call_of("AvgPool", x.astype(np.float32).astype(np.float64), **attrs))
    total = np.zeros(output.array.shape, np.float32)
    for i, j in np.ndindex(6, 6):
        total += x.astype(np.float32)[:, i : i + 19, j : j + 19]
    error = total.astype(np.float64) / 36 - output.array
    assert 0.5 < rounding_ratio(error, output.summed) < 1.6


@given(
    size=st.tuples(st.integers(1, 2), st.integers(4, 7), st.integers(4, 7), st.integers(1, 3)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    strides=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    rates=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    padding=st.sampled_from(["SAME", "VALID"]),
)
@tries(15)
def test_dilation(
    size: tuple[int, int, int, int], kernel: tuple[int, int], strides: tuple[int, int], rates: tuple[int, int],
    padding: str, tensorflow: TensorFlow,
) -> None:  # fmt: skip
    if padding == "VALID" and any((k - 1) * r + 1 > s for k, r, s in zip(kernel, rates, size[1:3], strict=True)):
        return
    x, filters = tensor(1, size), tensor(2, (*kernel, size[3]))
    attrs: dict[str, Any] = {"strides": [1, *strides, 1], "rates": [1, *rates, 1], "padding": padding}
    (true,) = tensorflow.run("Dilation2D", {"input": x, "filter": filters}, **attrs)
    image = as_input(x, "NHWC")
    (y,) = arrays_of("Dilation2D", image, filters, **attrs)
    np.testing.assert_allclose(y, true, rtol=1e-14)
    named = {"strides": attrs["strides"], "rates": attrs["rates"], "padding_mode": padding, "data_format": "NHWC"}
    same(arrays_of("Dilation", image, filters, **named)[0], y)
    dy = tensor(3, true.shape)
    inputs = {"input": x, "filter": filters, "out_backprop": dy}
    for op_type in ("Dilation2DBackpropInput", "Dilation2DBackpropFilter"):
        (true_grad,) = tensorflow.run(op_type, inputs, **attrs)
        (grad,) = arrays_of(op_type, image, filters, as_input(dy, "NHWC"), **attrs)
        np.testing.assert_allclose(grad, true_grad, rtol=1e-12, atol=1e-12)


def test_two_sums_that_are_as_large() -> None:
    """The gradient may go to either, so that neither element accuses."""
    x = np.array([[1.0, 1.0, 0.0]]).reshape(1, 1, 3, 1)
    attrs: dict[str, Any] = {"strides": [1, 1, 1, 1], "rates": [1, 1, 1, 1], "padding": "VALID"}
    given_to = (as_input(x, "NHWC"), np.zeros((1, 3, 1)), as_input(np.ones((1, 1, 1, 1)), "NHWC"))
    result = output_of(call_of("Dilation2DBackpropInput", *given_to, **attrs))
    assert doubtful_of(result).reshape(-1).tolist() == [True, True, False]
