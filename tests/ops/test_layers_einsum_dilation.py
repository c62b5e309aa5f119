"""Einsum, dilation, LSTM layers and their gradients against TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opcalls import Array, arrays_of, as_input, call_of, refused, results_of, tensor, work_of
from tensorflow_oracle import TensorFlow

from precision_tool.lib.ops.base import NotComputedError

_SETTINGS = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


# --- Einsum -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("BTNH,BSNH->BNTS", [(2, 3, 2, 4), (2, 5, 2, 4)]),
        ("BNTS,BSNH->BTNH", [(2, 2, 3, 5), (2, 5, 2, 4)]),
        ("abc,cde->abde", [(2, 3, 4), (4, 5, 2)]),
        ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)]),
        ("ij->ji", [(3, 4)]),
        ("ij->i", [(3, 4)]),
        ("ii->i", [(4, 4)]),
        ("i,j->ij", [(3,), (4,)]),
        ("ij,ij->", [(3, 4), (3, 4)]),
        ("ijk->", [(2, 3, 4)]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]], tensorflow: TensorFlow) -> None:
    arrays = [tensor(seed, shape) for seed, shape in enumerate(shapes, 1)]
    (true,) = tensorflow.run("Einsum", {"inputs": arrays}, equation=equation)
    (found,) = results_of(call_of("Einsum", *arrays, equation=equation))
    assert found is not None
    assert found.array.shape == true.shape
    np.testing.assert_allclose(found.array, true, rtol=1e-12, atol=1e-12)


def test_the_rounding_of_einsum_is_that_of_a_product() -> None:
    a, b = tensor(1, (6, 9)), tensor(2, (9, 4))
    (one,), (other,) = results_of(call_of("Einsum", a, b, equation="ij,jk->ik")), results_of(call_of("MatMulV2", a, b))
    assert one is not None
    assert other is not None
    np.testing.assert_allclose(one.terms, other.terms, rtol=1e-12)
    np.testing.assert_allclose(one.summed, other.summed, rtol=1e-12)
    assert work_of(call_of("Einsum", a, b, equation="ij,jk->ik")) == 6 * 9 * 4


@pytest.mark.parametrize("equation", ["", "ij", "ij,kl,m->i", "ij,ik->ik", "i(j,jk->ik", "ijl,jk->ik", "ij,jk->iz"])
def test_an_equation_that_is_not_of_its_inputs(equation: str) -> None:
    with pytest.raises(NotComputedError):
        arrays_of("Einsum", np.ones((3, 4)), np.ones((4, 5)), equation=equation)


# --- dilation ---------------------------------------------------------------------------------------------------------


@given(
    size=st.tuples(st.integers(1, 2), st.integers(4, 7), st.integers(4, 7), st.integers(1, 3)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    strides=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    rates=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    padding=st.sampled_from(["SAME", "VALID"]),
)
@_SETTINGS
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
    np.testing.assert_array_equal(arrays_of("Dilation", image, filters, **named)[0], y)
    dy = tensor(3, true.shape)
    fed = {"input": x, "filter": filters, "out_backprop": dy}
    for op_type in ("Dilation2DBackpropInput", "Dilation2DBackpropFilter"):
        (true_grad,) = tensorflow.run(op_type, fed, **attrs)
        (grad,) = arrays_of(op_type, image, filters, as_input(dy, "NHWC"), **attrs)
        np.testing.assert_allclose(grad, true_grad, rtol=1e-12, atol=1e-12)


def test_two_sums_that_are_as_large() -> None:
    """The gradient may go to either, so that neither element accuses."""
    x = np.array([[1.0, 1.0, 0.0]]).reshape(1, 1, 3, 1)
    attrs: dict[str, Any] = {"strides": [1, 1, 1, 1], "rates": [1, 1, 1, 1], "padding": "VALID"}
    given_to = (as_input(x, "NHWC"), np.zeros((1, 3, 1)), as_input(np.ones((1, 1, 1, 1)), "NHWC"))
    (found,) = results_of(call_of("Dilation2DBackpropInput", *given_to, **attrs))
    assert found is not None
    assert found.doubtful is not None
    assert found.doubtful.reshape(-1).tolist() == [True, True, False]


# --- LSTM layers ------------------------------------------------------------------------------------------------------

_NAMES = ("seq_len_max", "x", "cs_prev", "h_prev", "w", "wci", "wcf", "wco", "b")


def lstm_inputs(steps: int, batch: int, inputs: int, hidden: int, length: int) -> dict[str, Array]:
    shapes = [(steps, batch, inputs), (batch, hidden), (batch, hidden), (inputs + hidden, 4 * hidden), *[(hidden,)] * 3,
              (4 * hidden,)]  # fmt: skip
    arrays = [tensor(seed, shape).astype(np.float32) for seed, shape in enumerate(shapes, 1)]
    return dict(zip(_NAMES, (np.array(length, np.int64), *arrays), strict=True))


def close(got: Array, true: Array) -> None:
    assert got.shape == true.shape
    np.testing.assert_allclose(got, true, rtol=2e-5, atol=2e-5)


@given(
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3)),
    peephole=st.booleans(),
    clip=st.sampled_from([0.0, 0.5, 3.0]),
    is_second=st.booleans(),
    shorter=st.integers(0, 1),
)
@_SETTINGS
def test_block_lstm(
    sizes: tuple[int, int, int, int], peephole: bool, clip: float, is_second: bool, shorter: int, tensorflow: TensorFlow
) -> None:
    fed = lstm_inputs(*sizes, length=max(1, sizes[0] - shorter))
    op_type = "BlockLSTMV2" if is_second else "BlockLSTM"
    attrs: dict[str, Any] = {"cell_clip": clip, "use_peephole": peephole}
    if not is_second:
        attrs["forget_bias"] = 0.75
    true = tensorflow.run(op_type, fed, **attrs)
    length = max(1, sizes[0] - shorter)  # TensorFlow does not write what is behind
    true = [np.concatenate([one[:length], np.zeros_like(one[length:])]) for one in true]
    for found, other in zip(results_of(call_of(op_type, *fed.values(), **attrs)), true, strict=True):
        assert found is not None
        close(found.array, other)
        assert (found.doubtful is not None) == (length < sizes[0])
        assert found.doubtful is None or found.doubtful[length:].all() > found.doubtful[:length].any()
    names = ("i", "cs", "f", "o", "ci", "co", "h")
    back = dict(zip(names, true, strict=True))
    back |= {name: tensor(seed, true[0].shape).astype(np.float32) for seed, name in ((21, "cs_grad"), (22, "h_grad"))}
    grad = "BlockLSTMGradV2" if is_second else "BlockLSTMGrad"
    true_back = tensorflow.run(grad, {**fed, **back}, use_peephole=peephole)
    got_back = arrays_of(grad, *fed.values(), *back.values(), use_peephole=peephole)
    for number, (one, other) in enumerate(zip(got_back, true_back, strict=True)):
        if 4 <= number <= 6 and not peephole:
            continue  # TensorFlow leaves these as they are
        close(one[:length], other[:length]) if number == 0 else close(one, other)


@given(sizes=st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3)))
@_SETTINGS
def test_the_gradient_of_an_lstm_layer(sizes: tuple[int, int, int, int], tensorflow: TensorFlow) -> None:
    """GE has the gradients of the last states apart; TensorFlow has them in those of the last step."""
    steps, batch, _, hidden = sizes
    fed = lstm_inputs(*sizes, length=steps)
    i, c, f, o, j, tanh_c, h = tensorflow.run("BlockLSTM", fed, cell_clip=0.0, use_peephole=False, forget_bias=0.0)
    dy = tensor(31, h.shape).astype(np.float32)
    dh, dc = (tensor(seed, (batch, hidden)).astype(np.float32) for seed in (32, 33))
    all_h, all_c = dy.copy(), np.zeros_like(dy)
    all_h[-1] += dh
    all_c[-1] += dc
    back = dict(zip(("i", "cs", "f", "o", "ci", "co", "h"), (i, c, f, o, j, tanh_c, h), strict=True))
    true = tensorflow.run("BlockLSTMGrad", {**fed, **back, "cs_grad": all_c, "h_grad": all_h}, use_peephole=False)
    dx, dc_first, dh_first, dw, *_, db = true
    got = arrays_of(
        "DynamicRNNGrad", fed["x"], fed["w"], fed["b"], h, fed["h_prev"][None], fed["cs_prev"][None], h, c, dy, dh, dc,
        i, j, f, o, tanh_c,
    )  # fmt: skip
    for one, other in zip(got, (dw, db, dx, dh_first[None], dc_first[None]), strict=True):
        close(one, other)


def test_layers_that_contradict_themselves() -> None:
    fed = lstm_inputs(3, 2, 4, 2, length=3)
    with refused("seq_len_max 9 out of range .limit 3"):
        arrays_of("BlockLSTM", np.array(9), *list(fed.values())[1:])
    with refused("weights"):
        arrays_of("BlockLSTM", fed["seq_len_max"], fed["x"][..., :1], *list(fed.values())[2:])
    with refused("the shapes .* differ"):
        arrays_of("DynamicRNNGrad", fed["x"], fed["w"], *[np.ones((3, 2, 2))] * 13, np.ones((3, 2, 1)))
