"""Fused ops judged alone, as the chain of their original ops, against plain loops over the same numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from builders import Array
from fused_op import Files, Fused, recompute, worst
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_tool.lib.present.reasons import reason_words
from precision_tool.lib.verdict.judgement import State

Doubles = npt.NDArray[np.float64]


def plain_conv(
    images: Array, filters: Array, strides: tuple[int, int], dilations: tuple[int, int], pads: tuple[int, int, int, int]
) -> Doubles:
    """Convolution by its definition, NHWC and HWCN, one output number after the other."""
    batch, height, width, _ = images.shape
    reach = [(filters.shape[axis] - 1) * dilations[axis] + 1 for axis in (0, 1)]
    rows = (height + pads[0] + pads[1] - reach[0]) // strides[0] + 1
    columns = (width + pads[2] + pads[3] - reach[1]) // strides[1] + 1
    result = np.zeros((batch, rows, columns, filters.shape[3]))
    for n, row, column in product(range(batch), range(rows), range(columns)):
        for i, j in product(range(filters.shape[0]), range(filters.shape[1])):
            y = row * strides[0] + i * dilations[0] - pads[0]
            x = column * strides[1] + j * dilations[1] - pads[2]
            if 0 <= y < height and 0 <= x < width:
                for channel in range(filters.shape[2]):
                    result[n, row, column] += float(images[n, y, x, channel]) * filters[i, j, channel].astype(
                        np.float64
                    )
    return result


def halves(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float16)


CONV = Fused(op_type="Conv2D", originals=("c/Conv2D", "c/BiasAdd", "c/Relu"), inputs=(), output=(np.zeros(1), "", ""),
             attrs={})  # fmt: skip
small = st.integers(1, 3)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 2), st.integers(5, 8), st.integers(5, 8), small, small, small, small,
       st.tuples(st.integers(1, 2), st.integers(1, 2)), st.tuples(st.integers(1, 2), st.integers(1, 2)),
       st.tuples(*[st.integers(0, 2)] * 4), st.integers(0, 2**30))  # fmt: skip
def test_a_convolution_by_its_definition(
    tmp_path_factory: pytest.TempPathFactory, batch: int, height: int, width: int, channels: int, count: int,
    rows: int, columns: int, strides: tuple[int, int], dilations: tuple[int, int], pads: tuple[int, int, int, int],
    seed: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    images, filters = halves(rng, batch, height, width, channels), halves(rng, rows, columns, channels, count)
    bias = halves(rng, count)
    true = np.maximum(plain_conv(images, filters, strides, dilations, pads) + bias.astype(np.float64), 0)
    fused = replace(
        CONV,
        inputs=[(images, "NC1HWC0", "NHWC"), (filters, "FRACTAL_Z", "HWCN"), (bias, "ND", "ND")],
        output=(true.astype(np.float16), "NC1HWC0", "NHWC"),
        attrs={"data_format": "NHWC", "strides": [1, *strides, 1], "dilations": [1, *dilations, 1], "pads": list(pads)},
    )
    found = recompute(tmp_path_factory.mktemp("conv"), fused)
    stored = true.astype(np.float16).astype(np.float64)
    size = np.linalg.norm(true)
    exact = np.linalg.norm(stored - true) / size if size else 0.0
    assert found.own == pytest.approx(exact, rel=1e-6, abs=1e-12)
    assert found.state is State.RIGHT
    assert found.how == ("Conv2D", "BiasAdd", "Relu")


@pytest.mark.parametrize(("stride", "rows"), [(1, 7), (2, 4), (3, 3)])
def test_padding_by_name(tmp_path: Path, stride: int, rows: int) -> None:
    """SAME pads as much as keeps ceil(size / stride), the odd pixel at the end; VALID does not pad."""
    rng = np.random.default_rng(1)
    images, filters = halves(rng, 1, 7, 7, 2), halves(rng, 3, 3, 2, 3)
    total = max(0, (rows - 1) * stride + 3 - 7)
    pads = (total // 2, total - total // 2, total // 2, total - total // 2)
    true = plain_conv(images, filters, (stride, stride), (1, 1), pads)
    assert true.shape[1] == rows
    same = replace(
        CONV, originals=("c",), inputs=[(images, "NHWC", "NHWC"), (filters, "HWCN", "HWCN")],
        output=(true.astype(np.float32), "NHWC", "NHWC"),
        attrs={"data_format": "NHWC", "strides": [1, stride, stride, 1], "padding": "SAME", "pads": [9, 9, 9, 9]},
    )  # fmt: skip
    assert recompute(tmp_path, same).own < 1e-6
    true = plain_conv(images, filters, (stride, stride), (1, 1), (0, 0, 0, 0))
    valid = replace(same, output=(true.astype(np.float32), "NHWC", "NHWC"), attrs={**same.attrs, "padding": "VALID"})
    assert recompute(tmp_path, valid).own < 1e-6


def test_channels_first(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    images, filters, bias = halves(rng, 2, 6, 5, 3), halves(rng, 3, 2, 3, 4), halves(rng, 4)
    true = np.maximum(plain_conv(images, filters, (2, 1), (1, 1), (0, 0, 0, 0)) + bias.astype(np.float64), 0)
    fused = replace(
        CONV,
        inputs=[(images.transpose(0, 3, 1, 2).copy(), "NCHW", "NCHW"),
                (filters.transpose(3, 2, 0, 1).copy(), "NCHW", "NCHW"), (bias, "ND", "ND")],
        output=(true.transpose(0, 3, 1, 2).astype(np.float16), "NCHW", "NCHW"),
        attrs={"data_format": "NCHW", "strides": [1, 1, 2, 1], "pads": [0, 0, 0, 0]},
    )  # fmt: skip
    found = recompute(tmp_path, fused)
    assert not found.reason
    assert found.own < 5e-4
    assert found.state is State.RIGHT


def matmul(rng: np.random.Generator, wrong: float = 0.0) -> tuple[Fused, Doubles]:
    """A matrix product of 5 × 20 and 20 × 18 with bias and ReLU, the second factor transposed, and its true output."""
    a, b, bias = halves(rng, 5, 20), halves(rng, 18, 20), halves(rng, 18)
    true = np.maximum(a.astype(float) @ b.astype(float).T + bias.astype(float), 0)
    output = true.copy()
    output[:, 16:] *= 1 - wrong
    return (
        Fused(
            op_type="MatMulV2", originals=("fc/MatMul", "fc/BiasAdd", "fc/Relu"),
            inputs=[(a, "FRACTAL_NZ", "ND"), (b, "FRACTAL_NZ", "ND"), (bias, "ND", "ND")],
            output=(output.astype(np.float16), "FRACTAL_NZ", "ND"), attrs={"transpose_x1": False, "transpose_x2": True},
        ),
        true,
    )  # fmt: skip


def test_a_matrix_scoresand_a_fault_in_it(tmp_path: Path) -> None:
    right, true = matmul(np.random.default_rng(3))
    found = recompute(tmp_path, right)
    assert found.state is State.RIGHT
    assert worst(found).rounding < 0.01
    wrong, _ = matmul(np.random.default_rng(3), wrong=1.0)
    found = recompute(tmp_path, wrong)
    assert found.state is State.WRONG
    lost = true.copy()
    lost[:, :16] = 0
    assert found.own == pytest.approx(np.linalg.norm(lost) / np.linalg.norm(true), rel=1e-3)
    got = true - lost
    assert worst(found).cosine == pytest.approx(
        (got * true).sum() / np.linalg.norm(got) / np.linalg.norm(true), abs=1e-5
    )


def test_a_graph_without_fusion_tells_what_is_fed(tmp_path: Path) -> None:
    """The gradient of a ReLU takes the product first and the features second, which the order of inputs tells too; a
    subtraction the other way round only a graph tells.
    """
    rng = np.random.default_rng(4)
    a, b, features = halves(rng, 4, 8), halves(rng, 8, 6), halves(rng, 4, 6)
    true = np.where(features > 0, a.astype(float) @ b.astype(float), 0)
    inputs = [(a, "ND", "ND"), (b, "ND", "ND"), (features, "ND", "ND")]
    fused = Fused(
        op_type="MatMulV2", originals=("g/MatMul", "g/ReluGrad"), inputs=inputs,
        output=(true.astype(np.float16), "ND", "ND"), attrs={},
    )  # fmt: skip
    assert recompute(tmp_path, fused).own < 1e-3
    true = features.astype(float) - a.astype(float) @ b.astype(float)
    turned = replace(
        fused, originals=("g/MatMul", "g/Sub"), output=(true.astype(np.float16), "ND", "ND"),
        unfused=[("g/MatMul", "MatMulV2", [("in0", 0), ("in1", 0)], {}),
                 ("g/Sub", "Sub", [("in2", 0), ("g/MatMul", 0)], {})],
    )  # fmt: skip
    found = recompute(tmp_path, turned)
    assert found.own < 1e-3
    assert (found.how, found.is_guessed) == (("MatMulV2", "Sub"), False)
    # Without it, whichever way round gives what was put out is taken; the wrong way round is never held against the op.
    assert recompute(tmp_path, replace(turned, unfused=())).state is State.RIGHT


@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_type_that_neither_name_nor_benchmark_tells(tmp_path: Path, is_wrong: bool) -> None:
    """The benchmark has the product and not what was multiplied with it: an addition would fit that as well."""
    rng = np.random.default_rng(6)
    a, b, scale = halves(rng, 4, 8), halves(rng, 8, 6), halves(rng, 1)
    scores = a.astype(float) @ b.astype(float)
    true = scores * scale.astype(float)
    fused = Fused(
        op_type="BatchMatMul", originals=("g/scores", "g/scale"),
        inputs=[(a, "ND", "ND"), (b, "ND", "ND"), (scale, "ND", "ND")],
        output=((-true if is_wrong else true).astype(np.float16), "ND", "ND"), attrs={},
    )  # fmt: skip
    feeds = {(f"in{slot}", 0): one.astype(np.float32) for slot, one in enumerate((a, b, scale))}
    part = {**feeds, ("g_scores", 0): scores.astype(np.float32)}
    found = recompute(tmp_path, fused, Files(tmp_path, part))
    assert found.state is not State.WRONG
    assert is_wrong or (found.state, found.how) == (State.RIGHT, ("BatchMatMul", "Mul"))
    whole = {**part, ("g_scale", 0): true.astype(np.float32)}
    found = recompute(tmp_path, fused, Files(tmp_path, whole))
    assert (found.state, found.how) == (State.WRONG if is_wrong else State.RIGHT, ("BatchMatMul", "Mul"))


NORM = {"epsilon": 0.001}
PLAIN: Mapping[str, Any] = {"data_format": "NHWC", "strides": [1, 1, 1, 1], "padding": "VALID"}


def norm(x: Doubles, scale: Array, offset: Array, mean: Array, variance: Array) -> Doubles:
    result: Doubles = (x - mean) / np.sqrt(variance + 0.001) * scale + offset
    return result


def test_a_normalisation_that_was_folded_into_the_filters(tmp_path: Path) -> None:
    """The fused convolution is not fed the parameters; they are taken from the other side, filters and all."""
    rng = np.random.default_rng(5)
    images, filters = halves(rng, 2, 5, 5, 3), halves(rng, 2, 2, 3, 4)
    scale, offset, mean = (rng.standard_normal(4).astype(np.float32) for _ in range(3))
    variance = rng.random(4).astype(np.float32) + np.float32(0.5)
    factor = scale / np.sqrt(variance + 0.001)
    folded, bias = (filters * factor).astype(np.float16), (offset - mean * factor).astype(np.float16)
    true = norm(plain_conv(images, filters, (1, 1), (1, 1), (0, 0, 0, 0)), scale, offset, mean, variance)
    names = ["scale", "offset", "mean", "variance"]
    fused = Fused(
        op_type="Conv2D", originals=("c/Conv2D", "c/BatchNorm"),
        inputs=[(images, "NHWC", "NHWC"), (folded, "HWCN", "HWCN"), (bias, "ND", "ND")],
        output=(true.astype(np.float16), "NHWC", "NHWC"), attrs=PLAIN,
        sources=["Data", "Const", "Const"],
        unfused=[
            ("c/Conv2D", "Conv2D", [("in0", 0), ("in1", 0)], PLAIN),
            ("c/BatchNorm", "BatchNorm", [("c/Conv2D", 0), *((name, 0) for name in names)],
             {**NORM, "is_training": False}),
        ],
    )  # fmt: skip
    arrays = {
        ("in1", 0): filters,
        ("scale", 0): scale,
        ("offset", 0): offset,
        ("mean", 0): mean,
        ("variance", 0): variance,
    }
    found = recompute(tmp_path, fused, Files(tmp_path, arrays))
    assert not found.reason
    assert found.own < 2e-3
    assert found.state is State.RIGHT
    assert found.formula is not None
    assert found.formula.names_lent == ("in1:0", "scale:0", "offset:0", "mean:0", "variance:0")
    wrong = true.copy()
    wrong[..., 1] = 0
    off = replace(fused, output=(wrong.astype(np.float16), "NHWC", "NHWC"))
    assert recompute(tmp_path, off, Files(tmp_path, arrays)).state is State.WRONG
    # Nobody has them: whether it is a convolution with the folded filters is only guessed, and shows where it is.
    assert recompute(tmp_path, fused).state is State.DOUBTFUL
    made = plain_conv(images, folded, (1, 1), (1, 1), (0, 0, 0, 0)) + bias.astype(np.float64)
    assert recompute(tmp_path, replace(fused, output=(made.astype(np.float16), "NHWC", "NHWC"))).state is State.RIGHT
    # What is no parameter is not taken from the other side, where an earlier fault would have left it right.
    with_skip = [
        *fused.unfused,
        ("c/Add", "Add", [("c/BatchNorm", 0), ("skip", 0)], {}),
        ("skip", "Relu", [("in0", 0)], {}),
    ]
    skipping = replace(fused, originals=(*fused.originals, "c/Add"), unfused=with_skip)
    found = recompute(tmp_path, skipping, Files(tmp_path, {**arrays, ("skip", 0): true}))
    assert found.state is not State.WRONG
    assert found.formula is None or not found.formula.names_lent


def test_normalisation_in_training(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    x, scale, offset = (
        rng.standard_normal((3, 4, 5, 6)).astype(np.float32),
        np.ones(6, np.float32),
        np.zeros(6, np.float32),
    )
    wide = x.astype(float)
    true = np.maximum(norm(wide, scale, offset, wide.mean(axis=(0, 1, 2)), wide.var(axis=(0, 1, 2))), 0)
    fused = Fused(
        op_type="BatchNorm", originals=("n/BatchNorm", "n/Relu"),
        inputs=[(x, "NHWC", "NHWC"), (scale, "ND", "ND"), (offset, "ND", "ND")],
        output=(true.astype(np.float32), "NHWC", "NHWC"), attrs={**NORM, "is_training": True},
        unfused=[("n/BatchNorm", "BatchNorm", [("in0", 0), ("in1", 0), ("in2", 0)], {**NORM, "is_training": True}),
                 ("n/Relu", "Relu", [("n/BatchNorm", 0)], {})],
    )  # fmt: skip
    assert recompute(tmp_path, fused).own < 1e-6
    # Where the graph leaves it to the default, that no mean and variance are fed tells it.
    silent = [(name, kind, fed, {key: one for key, one in attrs.items() if key != "is_training"})
              for name, kind, fed, attrs in fused.unfused]  # fmt: skip
    assert recompute(tmp_path, replace(fused, unfused=silent)).own < 1e-6


@pytest.mark.parametrize(
    ("kinds", "formula"),
    [
        (("Add", "Relu6"), lambda x, y: np.clip(x + y, 0, 6)),
        (("Mul", "Sigmoid"), lambda x, y: 1 / (1 + np.exp(-x * y))),
        (("Sub", "Tanh"), lambda x, y: np.tanh(x - y)),
        (("Maximum", "Square"), lambda x, y: np.maximum(x, y) ** 2),
        (("RealDiv", "Abs"), lambda x, y: np.abs(x / y)),
        (("TanhGrad", "Neg"), lambda x, y: -(y * (1 - x * x))),
        (("SigmoidGrad", "Exp"), lambda x, y: np.exp(y * x * (1 - x))),
        (("Minimum", "add"), lambda x, y: np.minimum(x, y) + y),
        (("Relu6Grad", "Softplus"), lambda x, y: np.log1p(np.exp(np.where((y > 0) & (y < 6), x, 0)))),
    ],
)  # fmt: skip
def test_chains_of_elements(tmp_path: Path, kinds: tuple[str, str], formula: Any) -> None:
    rng = np.random.default_rng(7)
    x, y = (rng.uniform(0.5, 2, (3, 7)).astype(np.float32) * sign for sign in (1, -1))
    true = formula(x.astype(float), y.astype(float))
    fused = Fused(
        op_type=kinds[0], originals=tuple(f"e/{kind}_1" for kind in kinds),
        inputs=[(one, "ND", "ND") for one in ([x, y, y] if "add" in kinds else [x, y])],
        output=(true.astype(np.float32), "ND", "ND"), attrs={},
    )  # fmt: skip
    found = recompute(tmp_path, fused)
    assert found.own < 2e-7
    assert found.state is State.RIGHT
    changed = true * np.where(np.arange(7) == 3, 1.5, 1)
    off = recompute(tmp_path, replace(fused, output=(changed.astype(np.float32), "ND", "ND")))
    assert off.state in (State.WRONG, State.DOUBTFUL)


@pytest.mark.parametrize("attrs", [{"negative_slope": 0.1}, {"alpha": 0.1}])
def test_the_slope_of_a_leaky_relu(tmp_path: Path, attrs: Mapping[str, float]) -> None:
    x = np.array([-10, 5], np.float32)
    fused = Fused(op_type="LeakyRelu", originals=("e/LeakyRelu", "e/Square"), inputs=[(x, "ND", "ND")],
                  output=(np.array([1, 25], np.float32), "ND", "ND"), attrs=attrs)  # fmt: skip
    assert recompute(tmp_path, fused).own < 1e-7


def test_rounding_that_the_next_ops_make_larger(tmp_path: Path) -> None:
    """A difference of two nearly equal halves, a thousand times: each op rounds as the type does, which is no fault."""
    x, y = (np.linspace(first, first + 0.25, 64).astype(np.float16) for first in (1.5, 1.0))
    near, z = x * y + np.float16(2**-9), np.full(64, 1000, np.float16)
    names = ("e/Mul", "e/Sub", "e/Mul_1")
    put_out = ((x * y) - near) * z  # numpy rounds after each op
    assert put_out.dtype == np.float16
    fused = Fused(
        op_type="Mul", originals=names, inputs=[(one, "ND", "ND") for one in (x, y, near, z)],
        output=(put_out, "ND", "ND"), attrs={},
        unfused=[(names[0], "Mul", [("in0", 0), ("in1", 0)], {}), (names[1], "Sub", [(names[0], 0), ("in2", 0)], {}),
                 (names[2], "Mul", [(names[1], 0), ("in3", 0)], {})],
    )  # fmt: skip
    true = (x.astype(float) * y - near) * z
    found = recompute(tmp_path, fused)
    assert np.linalg.norm(put_out - true) / np.linalg.norm(true) > 0.01
    assert found.state is State.RIGHT
    assert recompute(tmp_path, replace(fused, output=(put_out * np.float16(3), "ND", "ND"))).state is State.WRONG


def test_an_overflow_inside_the_chain(tmp_path: Path) -> None:
    """300 squared is no half: a kernel that stores the square there puts out infinity and is not to blame."""
    x = np.array([300, 2, 3], np.float16)
    fused = Fused(op_type="Square", originals=("e/Square", "e/Sqrt"), inputs=[(x, "ND", "ND")],
                  output=(np.array([np.inf, 2, 3], np.float16), "ND", "ND"), attrs={})  # fmt: skip
    assert recompute(tmp_path, fused).state is State.RIGHT
    broken = recompute(tmp_path, replace(fused, output=(np.array([np.inf, np.nan, 3], np.float16), "ND", "ND")))
    assert broken.state is not State.RIGHT
    assert worst(broken).not_finite >= 1


def test_a_number_beyond_the_type_does_not_hide_an_error(tmp_path: Path) -> None:
    x = np.array([1, 2, 3e8], np.float32)
    fused = Fused(op_type="Add", originals=("e/Add", "e/Relu"), inputs=[(x, "ND", "ND"), (x, "ND", "ND")],
                  output=(np.array([3, 6, 65504], np.float16), "ND", "ND"), attrs={})  # fmt: skip
    found = recompute(tmp_path, fused)
    assert found.own == pytest.approx(0.5)
    assert worst(found).overflowed == 1


def test_float32_that_the_matrix_unit_rounds(tmp_path: Path) -> None:
    """HF32: the factors have 11 bits. An error of one percent is none that this explains."""
    rng = np.random.default_rng(10)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((16, 64), (64, 16)))
    rounded = [((one.view(np.uint32) + 0x800) & 0xFFFFF000).view(np.float32).astype(float) for one in (a, b)]
    fused = Fused(op_type="MatMul", originals=("m/MatMul",), inputs=[(a, "ND", "ND"), (b, "ND", "ND")], attrs={},
                  output=((rounded[0] @ rounded[1]).astype(np.float32), "ND", "ND"))  # fmt: skip
    found = recompute(tmp_path, fused)
    assert found.own > 1e-5
    assert found.state is State.RIGHT
    off = recompute(tmp_path, replace(fused, output=(fused.output[0] * np.float32(1.01), "ND", "ND")))
    assert off.state is State.WRONG


def test_tensorflow_s_names_of_turned_matrices(tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    a, b = halves(rng, 6, 4), halves(rng, 5, 6)
    true = a.astype(float).T @ b.astype(float).T
    fused = Fused(op_type="MatMul", originals=("m/MatMul",), inputs=[(a, "ND", "ND"), (b, "ND", "ND")],
                  output=(true.astype(np.float16), "ND", "ND"),
                  attrs={"transpose_a": True, "transpose_b": True})  # fmt: skip
    assert recompute(tmp_path, fused).own < 1e-3


def test_the_output_that_the_graph_names(tmp_path: Path) -> None:
    """Output 0 of a fused op may be that of an op in the middle of the chain."""
    x = np.array([-1.0, 2, 3], np.float32)
    fused = Fused(op_type="Relu", originals=("e/Relu", "e/Square"), inputs=[(x, "ND", "ND")],
                  output=(np.maximum(x, 0), "ND", "ND"), attrs={}, origin="e/Relu")  # fmt: skip
    assert recompute(tmp_path, fused).own == 0
    assert recompute(tmp_path, replace(fused, origin=None)).own > 0.5


def test_numbers_that_are_not_finite(tmp_path: Path) -> None:
    """NaN where a number should be is a fault; an overflow that the type explains is none."""
    x = np.array([1, 2, 60000, 3], np.float32)
    fused = Fused(op_type="Add", originals=("e/Add", "e/Relu"), inputs=[(x, "ND", "ND"), (x, "ND", "ND")],
                  output=(np.array([2, 4, 65504, 6], np.float16), "ND", "ND"), attrs={})  # fmt: skip
    assert recompute(tmp_path, fused).own == 0
    infinite = replace(fused, output=(np.array([2, 4, np.inf, 6], np.float16), "ND", "ND"))
    assert recompute(tmp_path, infinite).state is State.RIGHT
    broken = recompute(tmp_path, replace(fused, output=(np.array([2, np.nan, 65504, 6], np.float16), "ND", "ND")))
    assert (worst(broken).not_finite, broken.own, broken.state) == (1, np.inf, State.WRONG)


def test_what_is_not_recomputed(tmp_path: Path) -> None:
    right, _ = matmul(np.random.default_rng(8))
    x = np.ones((2, 3), np.float32)
    cases = {
        "there is no formula for Fft": replace(right, op_type="Fft", originals=("a/Fft",), inputs=[(x, "ND", "ND")]),
        "its recomputation has (2, 3)": replace(right, op_type="Relu", originals=("a/Relu",), inputs=[(x, "ND", "ND")]),
        "the shapes (2, 3), (7,) of Add do not broadcast": replace(right, op_type="Add", originals=("a/Add",),
                                          inputs=[(x, "ND", "ND"), (np.ones(7, np.float32), "ND", "ND")]),
    }  # fmt: skip
    for words, fused in cases.items():
        found = recompute(tmp_path, fused)
        assert found.state is State.NOT_RECOMPUTED
        assert words in reason_words(found.reason)
    for fused in (
        replace(right, inputs=[*right.inputs[:2], (np.ones(7, np.float32), "ND", "ND")]),
        replace(right, attrs={}),
        replace(right, op_type="Relu", originals=("a/Relu", "a/Square"), inputs=[(x, "ND", "ND")] * 2),
    ):
        assert recompute(tmp_path, fused).state is State.NOT_RECOMPUTED


def test_large_ones_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right, _ = matmul(np.random.default_rng(9))
    monkeypatch.setattr("precision_tool.lib.verdict.formulas._MAX_WORK", 1799)
    found = recompute(tmp_path, replace(right, originals=("fc/MatMul",), inputs=right.inputs[:2]))
    assert reason_words(found.reason) == "too large to recompute in full: 1,800 products"
