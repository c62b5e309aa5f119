"""Recurrent cells against TensorFlow; GE's layers against the cells, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opcalls import Array, arrays_of, as_input, call_of, refused, results_of, tensor
from tensorflow_oracle import TensorFlow

_SETTINGS = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
_SIZES = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 4))


def _close(got: Array, true: Array, tolerance: float = 1e-10) -> None:
    assert got.shape == true.shape
    np.testing.assert_allclose(got, true, rtol=tolerance, atol=tolerance)


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


@given(sizes=_SIZES, peephole=st.booleans(), clip=st.sampled_from([-1.0, 0.5]))
@_SETTINGS
def test_lstm_cell(sizes: tuple[int, int, int], peephole: bool, clip: float, tensorflow: TensorFlow) -> None:
    batch, inputs, hidden = sizes
    x, c, h = tensor(1, (batch, inputs)), tensor(2, (batch, hidden)), tensor(3, (batch, hidden))
    w, b = tensor(4, (inputs + hidden, 4 * hidden)), tensor(5, (4 * hidden,))
    peepholes = [tensor(seed, (hidden,)) for seed in (6, 7, 8)]
    x, c, h, w, b, *peepholes = (one.astype(np.float32) for one in (x, c, h, w, b, *peepholes))
    names = ("x", "cs_prev", "h_prev", "w", "wci", "wcf", "wco", "b")
    given_to = dict(zip(names, (x, c, h, w, *peepholes, b), strict=True))
    attrs: dict[str, Any] = {"forget_bias": 0.75, "cell_clip": clip, "use_peephole": peephole}
    true = tensorflow.run("LSTMBlockCell", given_to, **attrs)
    got = arrays_of("LSTMBlockCell", *given_to.values(), **attrs)
    for one, other in zip(got, true, strict=True):
        _close(one, other, 1e-5)
    dc, dh = (tensor(seed, (batch, hidden)).astype(np.float32) for seed in (9, 10))
    back = dict(zip(("i", "cs", "f", "o", "ci", "co", "cs_grad", "h_grad"), (*true[:6], dc, dh), strict=True))
    true_back = tensorflow.run("LSTMBlockCellGrad", {**given_to, **back}, use_peephole=peephole)
    got_back = arrays_of("LSTMBlockCellGrad", *given_to.values(), *back.values(), use_peephole=peephole)
    for one, other in zip(got_back[:2], true_back[:2], strict=True):
        _close(one, other, 1e-5)
    if peephole:
        for one, other in zip(got_back[2:], true_back[2:], strict=True):
            _close(one, other, 1e-4)
    if not peephole and clip < 0:
        _check_basic_cell((x, c, h, w, b), true, (dc, dh), true_back)


def _check_basic_cell(
    given_to: tuple[Array, ...], true: list[Array], upstream: tuple[Array, Array], true_back: list[Array]
) -> None:
    """GE's cell and its gradients in three ops are TensorFlow's cell."""
    x, c, h, w, b = given_to
    i, new, f, o, j, tanh_c, hidden = true
    got = arrays_of("BasicLSTMCell", x, h, c, w, b, forget_bias=0.75)
    for one, other in zip(got, (new, hidden, i, j, f, o, tanh_c), strict=True):
        _close(one, other, 1e-5)
    dc, dh = upstream
    gates, before = arrays_of("BasicLSTMCellCStateGrad", c, dh, dc, i, j, f, o, tanh_c)
    _close(before, true_back[0], 1e-5)
    _close(gates, true_back[1], 1e-5)
    to_x, to_h = arrays_of("BasicLSTMCellInputGrad", gates, w)
    both = gates @ w.T.astype(np.float64)
    _close(to_x, both[:, : x.shape[1]])
    _close(to_h, both[:, x.shape[1] :])
    to_w, to_b = arrays_of("BasicLSTMCellWeightGrad", x, h, gates)
    _close(to_w, np.concatenate([x, h], 1).astype(np.float64).T @ gates)
    _close(to_b, gates.sum(0))


@given(sizes=_SIZES)
@_SETTINGS
def test_gru_cell(sizes: tuple[int, int, int], tensorflow: TensorFlow) -> None:
    batch, inputs, hidden = sizes
    arrays = {
        "x": tensor(1, (batch, inputs)), "h_prev": tensor(2, (batch, hidden)),
        "w_ru": tensor(3, (inputs + hidden, 2 * hidden)), "w_c": tensor(4, (inputs + hidden, hidden)),
        "b_ru": tensor(5, (2 * hidden,)), "b_c": tensor(6, (hidden,)),
    }  # fmt: skip
    given_to = {name: array.astype(np.float32) for name, array in arrays.items()}
    true = tensorflow.run("GRUBlockCell", given_to)
    for one, other in zip(arrays_of("GRUBlockCell", *given_to.values()), true, strict=True):
        _close(one, other, 1e-5)
    dh = tensor(7, (batch, hidden)).astype(np.float32)
    back = dict(zip(("r", "u", "c", "d_h"), (*true[:3], dh), strict=True))
    true_back = tensorflow.run("GRUBlockCellGrad", {**given_to, **back})
    for one, other in zip(arrays_of("GRUBlockCellGrad", *given_to.values(), *back.values()), true_back, strict=True):
        _close(one, other, 2e-5)


@given(steps=st.integers(1, 4), sizes=_SIZES, order=st.sampled_from(["ijfo", "ifjo"]), started=st.booleans())
@_SETTINGS
def test_a_layer_of_lstm_is_its_cell_step_by_step(
    steps: int, sizes: tuple[int, int, int], order: str, started: bool, tensorflow: TensorFlow
) -> None:
    batch, inputs, hidden = sizes
    x = tensor(1, (steps, batch, inputs)).astype(np.float32)
    w = tensor(2, (inputs + hidden, 4 * hidden)).astype(np.float32)
    b = tensor(3, (4 * hidden,)).astype(np.float32)
    h, c = (tensor(seed, (1, batch, hidden)).astype(np.float32) * started for seed in (4, 5))
    blocks = {name: slice(at * hidden, (at + 1) * hidden) for at, name in enumerate("ijfo")}
    shuffled = np.concatenate([w[:, blocks[name]] for name in order], 1)
    shuffled_bias = np.concatenate([b[blocks[name]] for name in order])
    start = (h, c) if started else (None, None)
    got = arrays_of("DynamicRNN", x, shuffled, shuffled_bias, None, *start, forget_bias=0.5, gate_order=order)
    empty = np.zeros(hidden, np.float32)
    state, memory = h[0], c[0]
    for step in range(steps):
        cell = {"x": x[step], "cs_prev": memory, "h_prev": state, "w": w, "b": b}
        cell.update(wci=empty, wcf=empty, wco=empty)
        true = tensorflow.run("LSTMBlockCell", cell, forget_bias=0.5, cell_clip=-1.0)
        i, memory, f, o, j, tanh_c, state = true
        for one, other in zip(got, (state, state, memory, i, j, f, o, tanh_c), strict=True):
            _close(one[step], other, 1e-4)


@given(steps=st.integers(1, 4), sizes=_SIZES, after=st.booleans())
@_SETTINGS
def test_a_layer_of_gru_written_out(steps: int, sizes: tuple[int, int, int], after: bool) -> None:
    batch, inputs, hidden = sizes
    x = tensor(1, (steps, batch, inputs))
    w, r = tensor(2, (inputs, 3 * hidden)), tensor(3, (hidden, 3 * hidden))
    b, d = tensor(4, (3 * hidden,)), tensor(5, (3 * hidden,))
    h = tensor(6, (batch, hidden))
    got = arrays_of("DynamicGRUV2", x, w, r, b, d, None, h[None], reset_after=after)
    wz, wr, wn = np.split(w, 3, 1)
    rz, rr, rn = np.split(r, 3, 1)
    bz, br, bn, dz, dr, dn = *np.split(b, 3), *np.split(d, 3)
    for step in range(steps):
        z = _sigmoid(x[step] @ wz + bz + h @ rz + dz)
        reset = _sigmoid(x[step] @ wr + br + h @ rr + dr)
        inner = h @ rn + dn if after else (reset * h) @ rn + dn
        new = np.tanh(x[step] @ wn + bn + (reset * inner if after else inner))
        h = (1 - z) * new + z * h
        for one, other in zip(got, (h, h, z, reset, new, inner), strict=True):
            _close(one[step], other)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rounding_of_a_layer_grows_with_its_steps_as_predicted(dtype: str) -> None:
    """A state that is stored in float16 after every step brings its rounding to all that follow."""
    steps, batch, inputs, hidden = 12, 16, 24, 32
    x = tensor(1, (steps, batch, inputs)).astype(dtype).astype(np.float32)
    w = (0.2 * tensor(2, (inputs + hidden, 4 * hidden))).astype(dtype).astype(np.float32)
    b = np.zeros(4 * hidden, np.float32)
    output = results_of(call_of("DynamicRNN", as_input(x, dtype=dtype), w, b))[0]
    assert output is not None
    h, c = np.zeros((batch, hidden), np.float32), np.zeros((batch, hidden), np.float32)
    for step in x:
        gates = np.zeros((batch, 4 * hidden), np.float32)
        for column, values in enumerate(np.concatenate([step, h], 1).T):
            gates += values[:, None] * w[column]
        i, j, f, o = np.split(gates, 4, 1)
        c = c * _sigmoid(f) + _sigmoid(i) * np.tanh(j)
        full = np.tanh(c) * _sigmoid(o)
        h, c = full.astype(dtype).astype(np.float32), c.astype(dtype).astype(np.float32)
    predicted = 0.425 * 2.0**-24 * np.asarray(output.summed)[-1]
    ratio = np.sqrt(np.mean((full - output.array[-1]) ** 2) / np.mean(predicted**2))
    assert 0.1 < ratio < 2


@pytest.mark.parametrize(
    ("op_type", "shapes", "attrs", "reason"),
    [
        ("DynamicRNN", [(2, 3, 4), (9, 20), (20,)], {"direction": "BIDIRECTIONAL"}, "BIDIRECTIONAL"),
        ("DynamicRNN", [(2, 3, 4), (8, 20), (20,)], {}, "weights"),
        ("DynamicRNN", [(2, 3, 4), (9, 20), (20,)], {"keep_prob": 0.5}, "with keep_prob 0.5"),
        ("DynamicRNN", [(2, 3, 4), (9, 20), (20,)], {"gate_order": "abcd"}, "abcd"),
        ("DynamicRNN", [(3, 4), (9, 20), (20,)], {}, "2 axes"),
        ("DynamicGRUV2", [(2, 3, 4), (4, 15), (4, 15)], {}, "weights"),
        (
            "BasicLSTMCell",
            [(3, 4), (3, 5), (3, 5), (9, 20), (16,)],
            {},
            "the shapes .* of x, h, b do not fit each other",
        ),
        ("LSTMBlockCell", [(3, 4), (3, 5), (3, 5), (8, 20), (5,), (5,), (5,), (20,)], {}, "have no matrix product"),
    ],
)
def test_what_does_not_fit_is_told(
    op_type: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any], reason: str
) -> None:
    with refused(reason):
        arrays_of(op_type, *(np.ones(shape) for shape in shapes), **attrs)
