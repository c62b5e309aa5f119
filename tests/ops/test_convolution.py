"""Convolutions and their gradients against TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from opcalls import (
    arrays_of,
    as_input,
    call_of,
    check_estimated,
    check_sampled,
    output_of,
    refused,
    rounding_ratio,
    spec_of,
    work_of,
)
from opvalues import close, tensor, tries
from tensorflow_oracle import TensorFlow

from precision_tool.lib.ops.base import NotComputedError, OutputSpec


@dataclass(frozen=True)
class Case:
    """A convolution as TensorFlow takes it on a CPU: channels last."""

    image: tuple[int, ...]
    filters: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    padding: str
    explicit: tuple[int, ...] = ()

    @property
    def attrs(self) -> dict[str, Any]:
        one = {"strides": [1, *self.strides, 1], "dilations": [1, *self.dilations, 1], "padding": self.padding}
        if self.padding == "EXPLICIT":
            one["explicit_paddings"] = [0, 0, *self.explicit, 0, 0]
        return one


@st.composite
def cases(draw: st.DrawFn, rank: int = 2, depthwise: bool = False, gradient: bool = False) -> Case:
    small = st.integers(1, 4)
    kernel = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    # TensorFlow's kernels on a CPU: no dilation in gradients and in three axes, equal strides of depthwise ones.
    plain = gradient or rank == 3 or depthwise
    dilations = (1,) * rank if plain else tuple(draw(st.integers(1, 2)) for _ in range(rank))
    stride = draw(st.integers(1, 3))
    strides = (stride,) * rank if depthwise else tuple(draw(st.integers(1, 3)) for _ in range(rank))
    if max(dilations) > 1:
        strides = (1,) * rank
    if (
        rank == 3
    ):  # where windows leave elements out, TensorFlow's kernel on a CPU has them start late, against its docs
        strides = tuple(min(stride, extent) for stride, extent in zip(strides, kernel, strict=True))
    size = tuple(draw(st.integers(1, 8 if rank == 2 else 5)) for _ in range(rank))
    padding = draw(st.sampled_from(["SAME", "VALID"] + (["EXPLICIT"] if rank == 2 and not depthwise else [])))
    explicit = tuple(draw(st.integers(0, 2)) for _ in range(2 * rank)) if padding == "EXPLICIT" else ()
    reach = [(extent - 1) * dilation + 1 for extent, dilation in zip(kernel, dilations, strict=True)]
    pads = explicit or (0,) * (2 * rank)
    if padding != "SAME":
        rooms = [s + pads[2 * axis] + pads[2 * axis + 1] - reach[axis] for axis, s in enumerate(size)]
        assume(min(rooms) >= 0)
    assume(all(p < r for axis, r in enumerate(reach) for p in pads[2 * axis : 2 * axis + 2]) or padding != "EXPLICIT")
    channels, kernels = draw(small), draw(small)
    return Case(
        (draw(st.integers(1, 3)), *size, channels), (*kernel, channels, kernels), strides, dilations, padding, explicit
    )


_OPS = {
    ("Conv2D", 2, False): ("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"),
    ("Conv3D", 3, False): ("Conv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2"),
    ("DepthwiseConv2dNative", 2, True): (
        "DepthwiseConv2dNative",
        "DepthwiseConv2dNativeBackpropInput",
        "DepthwiseConv2dNativeBackpropFilter",
    ),
}


@pytest.mark.parametrize("kind", list(_OPS), ids=lambda kind: kind[0])
@given(data=st.data())
@tries(30)
def test_forward(kind: tuple[str, int, bool], data: st.DataObject, tensorflow: TensorFlow) -> None:
    name, rank, depthwise = kind
    case = data.draw(cases(rank, depthwise))
    x, f = tensor(1, case.image), tensor(2, case.filters)
    (true,) = tensorflow.run(name, {"input": x, "filter": f}, **case.attrs)
    (y,) = arrays_of(name, x, f, **case.attrs)
    close(y, true)
    check_sampled(name, x, f, **case.attrs)


@pytest.mark.parametrize("kind", list(_OPS), ids=lambda kind: kind[0])
@given(data=st.data())
@tries(30)
def test_gradients(kind: tuple[str, int, bool], data: st.DataObject, tensorflow: TensorFlow) -> None:
    name, rank, depthwise = kind
    case = data.draw(cases(rank, depthwise, gradient=True))
    x, f = tensor(1, case.image), tensor(2, case.filters)
    (y,) = arrays_of(name, x, f, **case.attrs)
    dy = tensor(3, y.shape)
    _, to_image, to_filter = _OPS[kind]
    sizes = {"input_sizes": np.array(case.image, np.int32), "filter": f, "out_backprop": dy}
    (dx,) = tensorflow.run(to_image, sizes, **case.attrs)
    close(arrays_of(to_image, np.array(case.image, np.int32), f, dy, **case.attrs)[0], dx)
    close(arrays_of(to_image, f, dy, input_size=list(case.image), **case.attrs)[0], dx)
    check_sampled(to_image, f, dy, input_size=list(case.image), **case.attrs)
    sizes = {"input": x, "filter_sizes": np.array(case.filters, np.int32), "out_backprop": dy}
    (df,) = tensorflow.run(to_filter, sizes, **case.attrs)
    close(arrays_of(to_filter, x, np.array(case.filters, np.int32), dy, **case.attrs)[0], df)
    close(arrays_of(to_filter, x, dy, filter_size=list(case.filters), **case.attrs)[0], df)
    check_sampled(to_filter, x, dy, filter_size=list(case.filters), **case.attrs)


@given(case=cases(), groups=st.integers(2, 3))
@tries(30)
def test_dilated_gradients_and_groups_follow_from_linearity(case: Case, groups: int) -> None:
    """⟨f(x, w), g⟩ = ⟨x, to_image(g, w)⟩ = ⟨w, to_filter(x, g)⟩, for what TensorFlow has no kernel for on a CPU."""
    image = (*case.image[:-1], case.image[-1] * groups)
    filters = (*case.filters[:-1], case.filters[-1] * groups)
    attrs = {**case.attrs, "groups": groups}
    x, f = tensor(1, image), tensor(2, filters)
    (y,) = arrays_of("Conv2D", x, f, **attrs)
    parts = [
        arrays_of("Conv2D", part, one, **case.attrs)[0]
        for part, one in zip(np.split(x, groups, -1), np.split(f, groups, -1), strict=True)
    ]
    close(y, np.concatenate(parts, -1))
    g = tensor(3, y.shape)
    (dx,) = arrays_of("Conv2DBackpropInputD", f, g, input_size=list(image), **attrs)
    (df,) = arrays_of("Conv2DBackpropFilterD", x, g, filter_size=list(filters), **attrs)
    assert np.vdot(y, g) == pytest.approx(np.vdot(x, dx), abs=1e-9)
    assert np.vdot(y, g) == pytest.approx(np.vdot(f, df), abs=1e-9)
    check_sampled("Conv2D", x, f, **attrs)
    check_sampled("Conv2DBackpropInputD", f, g, input_size=list(image), **attrs)
    check_sampled("Conv2DBackpropFilterD", x, g, filter_size=list(filters), **attrs)


@given(case=cases())
@tries(30)
def test_layouts_pads_and_bias(case: Case) -> None:
    """Channels first, filters of GE, pads in numbers and a bias say the same as TensorFlow's form."""
    x, f, b = tensor(1, case.image), tensor(2, case.filters), tensor(3, case.filters[-1:])
    (true,) = arrays_of("Conv2D", x, f, **case.attrs)
    first, oihw = np.moveaxis(x, -1, 1), f.transpose(3, 2, 0, 1)
    attrs: dict[str, Any] = {"strides": [1, 1, *case.strides], "dilations": [1, 1, *case.dilations]}
    attrs["data_format"] = "NCHW"
    if case.padding == "EXPLICIT":
        attrs["pads"] = list(case.explicit)
    else:
        attrs["padding"] = case.padding
    (y,) = arrays_of("Conv2D", as_input(first, "NCHW"), as_input(oihw, "NCHW"), b, **attrs)
    close(np.moveaxis(y, 1, -1), true + b)
    check_sampled("Conv2D", as_input(first, "NCHW"), as_input(oihw, "NCHW"), b, **attrs)
    g = tensor(4, y.shape)
    (dx,) = arrays_of(
        "Conv2DBackpropInput", as_input(oihw, "NCHW"), as_input(g, "NCHW"), input_size=list(first.shape), **attrs
    )
    last = {**case.attrs, "input_size": list(case.image)}
    close(np.moveaxis(dx, 1, -1), arrays_of("Conv2DBackpropInput", f, np.moveaxis(g, 1, -1), **last)[0])
    expected = (OutputSpec(shape=oihw.shape, layout="NCHW"),)
    sizes = {**attrs, "filter_size": list(oihw.shape)}
    (df,) = arrays_of("Conv2DBackpropFilter", as_input(first, "NCHW"), as_input(g, "NCHW"), specs=expected, **sizes)
    last = {**case.attrs, "filter_size": list(case.filters)}
    if case.filters[-2] != case.filters[-1] or case.filters[0] != case.filters[-1]:
        close(df.transpose(2, 3, 1, 0), arrays_of("Conv2DBackpropFilter", x, np.moveaxis(g, 1, -1), **last)[0])


@given(case=cases(depthwise=True))
@tries(30)
def test_depthwise_is_a_convolution_in_groups(case: Case) -> None:
    x, f = tensor(1, case.image), tensor(2, case.filters)
    (true,) = arrays_of("DepthwiseConv2D", x, f, **case.attrs)
    *kernel, channels, several = case.filters
    grouped = f.reshape(*kernel, 1, channels * several)
    close(arrays_of("Conv2D", x, grouped, groups=channels, **case.attrs)[0], true)
    close(arrays_of("DepthwiseConv2D", x, as_input(grouped.transpose(3, 2, 0, 1), "NCHW"), **case.attrs)[0], true)


@given(case=cases(gradient=True), with_bias=st.booleans())
@tries(30)
def test_transposed(case: Case, with_bias: bool, tensorflow: TensorFlow) -> None:
    x, f = tensor(1, case.image), tensor(2, case.filters)
    g = tensor(3, arrays_of("Conv2D", x, f, **case.attrs)[0].shape)
    sizes = {"input_sizes": np.array(case.image, np.int32), "filter": f, "out_backprop": g}
    (true,) = tensorflow.run("Conv2DBackpropInput", sizes, **case.attrs)
    bias = tensor(4, case.image[-1:]) if with_bias else None
    expected = true if bias is None else true + bias
    close(arrays_of("Conv2DTransposeD", g, f, bias, input_size=list(case.image), **case.attrs)[0], expected)
    close(arrays_of("Conv2DTranspose", np.array(case.image), g, f, bias, **case.attrs)[0], expected)
    if case.padding == "EXPLICIT":
        attrs: dict[str, Any] = {"strides": list(case.strides), "pads": list(case.explicit)}
        (y,) = arrays_of("Deconvolution", g, f, bias, **attrs)  # windows that end before the image leave its rest out
        close(y, expected[:, : y.shape[1], : y.shape[2]])


def test_an_image_that_a_graph_calls_by_the_names_of_a_filter_is_read_as_nhwc() -> None:
    x, f = tensor(1, (2, 5, 4, 3)), tensor(2, (3, 3, 3, 2))
    (true,) = arrays_of("Conv2D", x, f, strides=[1, 1, 1, 1], padding="SAME")
    (y,) = arrays_of(
        "Conv2D", as_input(x, "HWCN"), as_input(f, "HWCN"), strides=[1, 1, 1, 1], padding="SAME", data_format="NHWC",
        specs=(OutputSpec(shape=true.shape, layout="HWCN"),),
    )  # fmt: skip
    close(y, true)


@pytest.mark.parametrize(
    ("op_type", "image", "filters"),
    [("Conv2D", (4, 40, 40, 32), (3, 3, 32, 64)), ("Conv2D", (2, 60, 60, 64), (1, 1, 64, 320))],
)
def test_large_ones_estimate_terms_and_agree_with_sampling(
    op_type: str, image: tuple[int, ...], filters: tuple[int, ...]
) -> None:
    """Where Σ p² is estimated, it is within a factor of what the sampled places have exactly."""
    x, f = tensor(1, image, "positive"), tensor(2, filters)
    attrs: dict[str, Any] = {"strides": [1, 1, 1, 1], "padding": "SAME"}
    calls = [call_of(op_type, x, f, **attrs)]
    (y,) = arrays_of(op_type, x, f, **attrs)
    g = tensor(3, y.shape, "wide")
    calls.append(call_of("Conv2DBackpropInputD", f, g, input_size=list(image), **attrs))
    calls.append(call_of("Conv2DBackpropFilterD", x, g, filter_size=list(filters), **attrs))
    for call in calls:
        assert work_of(call) == prod(y.shape) * prod(filters[:3]) > 1 << 26
        whole = output_of(call)
        cheap = spec_of(call.op_type).cheap_places
        assert cheap is not None
        assert np.unique(cheap(call, 500)).size == cheap(call, 500).size > 250
        places = np.concatenate([cheap(call, 500), np.random.default_rng(0).integers(0, whole.array.size, 2000)])
        check_estimated(call, whole, places, 2)


@pytest.mark.parametrize("as_float16", [True, False])
@pytest.mark.parametrize(
    "kinds", [("normal", "normal"), ("positive", "normal"), ("wide", "wide"), ("positive", "balanced")]
)
def test_rounding_is_predicted(kinds: tuple[str, str], as_float16: bool) -> None:
    """float32 sums, and inputs rounded to float16, are off by about what `summed` and `terms` say."""
    shape = (3, 3, 24, 8)
    f = tensor(2, shape, kinds[1] if kinds[1] != "balanced" else "normal")
    if kinds[1] == "balanced":  # sums that nearly cancel
        f -= f.mean(axis=(0, 1, 2))
    x = tensor(1, (3, 12, 12, 24), kinds[0])
    attrs: dict[str, Any] = {"strides": [1, 1, 1, 1], "padding": "VALID"}
    output = output_of(call_of("Conv2D", x, f, **attrs))
    if as_float16:
        rounded = [one.astype(np.float16).astype(np.float64) for one in (x, f)]
        error = arrays_of("Conv2D", *rounded, **attrs)[0] - output.array
        ratio = rounding_ratio(error, np.sqrt(2) * np.asarray(output.terms), 2.0**-11)
    else:
        total = np.zeros(output.array.shape, np.float32)
        x32, f32 = x.astype(np.float32), f.astype(np.float32)
        exact = np.zeros(output.array.shape)
        for i, j, c in np.ndindex(3, 3, 24):
            part = x32[:, i : i + 10, j : j + 10, c, None] * f32[i, j, c]
            total += part
            exact += part.astype(np.float64)
        ratio = rounding_ratio(total - exact, output.summed)
    assert 0.4 < ratio < 1.6


def test_a_claimed_size_costs_no_memory() -> None:
    f, g = np.ones((3, 3, 1, 1)), np.ones((1, 2, 2, 1))
    with pytest.raises(NotComputedError):
        arrays_of("Conv2DBackpropInput", f, g, input_size=[1, 10**9, 10**9, 1], strides=[1, 1, 1, 1], padding="VALID")
    size = 2 * 10**7
    strides = [1, size - 1, size - 1, 1]
    with refused("too large to recompute in full"):
        arrays_of("Conv2DBackpropInput", f, g, input_size=[1, size, size, 1], strides=strides, pads=[1, 1, 1, 1])


def test_a_shape_that_the_graph_contradicts_is_told() -> None:
    with refused("by the graph"):
        arrays_of(
            "Conv2D", np.ones((1, 5, 5, 1)), np.ones((3, 3, 1, 1)), strides=[1, 1, 1, 1], padding="VALID",
            specs=(OutputSpec(shape=(1, 5, 5, 1)),),
        )  # fmt: skip
