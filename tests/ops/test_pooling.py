"""Pooling and its gradients against TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from opcalls import Array, arrays_of, as_input, call_of, refused, results_of, tensor
from tensorflow_oracle import TensorFlow

_SETTINGS = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


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


def _close(got: Array, true: Array, tolerance: float = 1e-12) -> None:
    assert got.shape == true.shape
    np.testing.assert_allclose(got, true, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("rank", [2, 3])
@given(data=st.data())
@_SETTINGS
def test_maximum(rank: int, data: st.DataObject, tensorflow: TensorFlow) -> None:
    case = data.draw(cases(rank))
    x = tensor(1, case.image).astype(np.float32)
    name = "MaxPool" if rank == 2 else "MaxPool3D"
    (y,) = tensorflow.run(name, {"input": x}, **case.attrs)
    np.testing.assert_array_equal(arrays_of(name, x, **case.attrs)[0], y)
    g = tensor(2, y.shape).astype(np.float32)
    inputs = {"orig_input": x, "orig_output": y, "grad": g}
    (dx,) = tensorflow.run(f"{name}Grad", inputs, **case.attrs)
    (output,) = results_of(call_of(f"{name}Grad", x, y, g, **case.attrs))
    assert output is not None
    _close(output.array, dx, 1e-5)
    assert output.doubtful is not None
    assert not output.doubtful.any()
    first = tuple(np.moveaxis(one, -1, 1) for one in (x, y, g))
    attrs: dict[str, Any] = {"ksize": [1, 1, *case.ksize], "strides": [1, 1, *case.strides], "padding": case.padding}
    layout = "NCHW" if rank == 2 else "NCDHW"
    (turned,) = arrays_of(f"{name}Grad", *(as_input(one, layout) for one in first), data_format=layout, **attrs)
    np.testing.assert_array_equal(np.moveaxis(turned, 1, -1), output.array)


@pytest.mark.parametrize("rank", [2, 3])
@given(data=st.data())
@_SETTINGS
def test_average(rank: int, data: st.DataObject, tensorflow: TensorFlow) -> None:
    case = data.draw(cases(rank))
    dtype, tolerance = (np.float64, 1e-12) if rank == 2 else (np.float32, 1e-5)  # TensorFlow has no other in 3D
    x = tensor(1, case.image).astype(dtype)
    name = "AvgPool" if rank == 2 else "AvgPool3D"
    (y,) = tensorflow.run(name, {"value" if rank == 2 else "input": x}, **case.attrs)
    _close(arrays_of(name, x, **case.attrs)[0], y, tolerance)
    g = tensor(2, y.shape).astype(dtype)
    inputs = {"orig_input_shape": np.array(case.image, np.int32), "grad": g}
    (dx,) = tensorflow.run(f"{name}Grad", inputs, **case.attrs)
    _close(arrays_of(f"{name}Grad", np.array(case.image, np.int32), g, **case.attrs)[0], dx, tolerance)
    _close(arrays_of(f"{name}GradD", g, orig_input_shape=list(case.image), **case.attrs)[0], dx, tolerance)


def test_ties_go_to_the_first_and_are_doubtful(tensorflow: TensorFlow) -> None:
    x = np.array([[3.0, 3.0, 1.0, 2.0], [0.0, 3.0, 2.0 + 2.0**-10, 2.0]], np.float32).reshape(1, 2, 4, 1)
    attrs: dict[str, Any] = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}
    (y,) = arrays_of("MaxPool", x, **attrs)
    g = np.array([5.0, 7.0], np.float32).reshape(y.shape)
    inputs = {"orig_input": x, "orig_output": y.astype(np.float32), "grad": g}
    (true,) = tensorflow.run("MaxPoolGrad", inputs, **attrs)
    (output,) = results_of(call_of("MaxPoolGrad", as_input(x, dtype="float16"), y, g, **attrs))
    assert output is not None
    np.testing.assert_array_equal(output.array, true)
    assert output.doubtful is not None
    doubtful = output.doubtful[0, :, :, 0].tolist()
    assert doubtful == [[True, True, False, True], [False, True, True, True]]
    (exact,) = results_of(call_of("MaxPoolGrad", as_input(x, dtype="float32"), y, g, **attrs))
    assert exact is not None
    assert exact.doubtful is not None
    assert exact.doubtful[0, :, 2:].any() == np.False_


@given(case=cases(), pads=st.tuples(*[st.integers(0, 1)] * 4), exclusive=st.booleans(), ceil=st.booleans())
@_SETTINGS
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
    _close(arrays_of("MaxPoolV3", x, **attrs)[0], maxima)
    _close(arrays_of("AvgPoolV2", x, exclusive=exclusive, **attrs)[0], means)
    caffe: dict[str, Any] = {"window": [kh, kw], "stride": [sh, sw], "pad": list(pads), "ceil_mode": int(not ceil)}
    _close(arrays_of("Pooling", x, mode=0, **caffe)[0], maxima)


def test_the_whole_image_and_sizes_as_inputs() -> None:
    x = tensor(1, (2, 3, 4, 5))
    mean = x.mean(axis=(2, 3), keepdims=True)
    _close(arrays_of("GlobalAveragePool", as_input(x, "NCHW"))[0], mean)
    _close(arrays_of("Pooling", as_input(x, "NCHW"), mode=1, global_pooling=True)[0], mean)
    plain: dict[str, Any] = {"window": [3, 4], "stride": [1, 1], "pad": [0, 0, 0, 0]}
    (y,) = arrays_of("Pooling", as_input(x, "NCHW"), mode=1, **plain)
    _close(y[..., :1, :1], x[:, :, :3, :4].mean(axis=(2, 3), keepdims=True))
    attrs: dict[str, Any] = {"ksize": [1, 2, 2, 1], "strides": [1, 1, 1, 1], "padding": "SAME"}
    sizes = [np.array(attrs[name], np.int32) for name in ("ksize", "strides")]
    (y,) = arrays_of("MaxPool", x, **attrs)
    np.testing.assert_array_equal(arrays_of("MaxPoolV2", x, *sizes, padding="SAME")[0], y)
    with_places = results_of(call_of("MaxPoolWithArgmax", x, **attrs))
    assert with_places[1] is None
    g = tensor(2, y.shape)
    np.testing.assert_array_equal(
        arrays_of("MaxPoolGradWithArgmax", x, g, np.zeros(y.shape, np.uint16), **attrs)[0],
        arrays_of("MaxPoolGrad", x, y, g, **attrs)[0],
    )


def test_a_gradient_is_linear_and_keeps_its_sum() -> None:
    x = tensor(1, (3, 6, 6, 2))
    attrs: dict[str, Any] = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}
    (y,) = arrays_of("MaxPool", x, **attrs)
    g = tensor(2, y.shape)
    for name, inputs in (("MaxPoolGrad", (x, y)), ("AvgPoolGrad", (np.array(x.shape),))):
        (dx,) = arrays_of(name, *inputs, g, **attrs)
        assert dx.sum() == pytest.approx(g.sum())
        np.testing.assert_array_equal(arrays_of(name, *inputs, 4 * g, **attrs)[0], 4 * dx)


def test_rounding_of_averages_is_predicted() -> None:
    x = tensor(1, (4, 24, 24, 8))
    attrs: dict[str, Any] = {"ksize": [1, 6, 6, 1], "strides": [1, 1, 1, 1], "padding": "VALID"}
    (output,) = results_of(call_of("AvgPool", x.astype(np.float32).astype(np.float64), **attrs))
    assert output is not None
    total = np.zeros(output.array.shape, np.float32)
    for i, j in np.ndindex(6, 6):
        total += x.astype(np.float32)[:, i : i + 19, j : j + 19]
    error = total.astype(np.float64) / 36 - output.array
    predicted = 0.425 * 2.0**-24 * np.asarray(output.summed)
    assert 0.5 < np.sqrt(np.mean(error**2) / np.mean(predicted**2)) < 1.6


@pytest.mark.parametrize(
    ("op_type", "shapes", "attrs", "reason"),
    [
        ("MaxPool", [(1, 4, 4, 1)], {"strides": [1, 1, 1, 1], "padding": "SAME"}, "no attribute ksize"),
        ("MaxPool", [(4, 4)], {}, "2 axes"),
        ("MaxPool", [(1, 4, 4, 1)], {"ksize": [1, 9, 9, 1], "strides": [1, 1, 1, 1], "padding": "VALID"}, "reaches"),
        ("MaxPoolGrad", [(1, 4, 4, 1)] * 3, {"ksize": [2], "strides": [2], "padding": "VALID"}, "dy has shape"),
        ("AvgPool", [(1, 4, 4, 1)], {"ksize": [2], "strides": [2], "pads": [0] * 4, "divisor_override": -1}, "divisor"),
        ("Pooling", [(1, 4, 4, 1)], {"mode": 2, "window": [2, 2], "stride": [2, 2]}, "mode 2"),
        (
            "AvgPoolGradD", [(1, 1, 1, 1)],
            {"orig_input_shape": [1, 9**6, 9**6, 1], "ksize": [1], "strides": [9**6], "padding": "VALID"}, "elements",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told(
    op_type: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any], reason: str
) -> None:
    with refused(reason):
        arrays_of(op_type, *(np.ones(shape) for shape in shapes), **attrs)
