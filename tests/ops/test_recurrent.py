"""Recurrent cells against TensorFlow; GE's layers against the cells, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opcalls import arrays_of, as_input, call_of, output_of, refused, results_of, rounding_ratio
from opvalues import Array, close, close_all, tensor, tries
from tensorflow_oracle import TensorFlow

_SIZES = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 4))


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


@given(sizes=_SIZES, peephole=st.booleans(), clip=st.sampled_from([-1.0, 0.5]))
@tries(12)
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
    close_all(got, true, 1e-5)
    dc, dh = (tensor(seed, (batch, hidden)).astype(np.float32) for seed in (9, 10))
    back = dict(zip(("i", "cs", "f", "o", "ci", "co", "cs_grad", "h_grad"), (*true[:6], dc, dh), strict=True))
    true_back = tensorflow.run("LSTMBlockCellGrad", {**given_to, **back}, use_peephole=peephole)
    got_back = arrays_of("LSTMBlockCellGrad", *given_to.values(), *back.values(), use_peephole=peephole)
    close_all(got_back[:2], true_back[:2], 1e-5)
    if peephole:
        close_all(got_back[2:], true_back[2:], 1e-4)
    if not peephole and clip < 0:
        _check_basic_cell((x, c, h, w, b), true, (dc, dh), true_back)


def _check_basic_cell(
    given_to: tuple[Array, ...], true: list[Array], upstream: tuple[Array, Array], true_back: list[Array]
) -> None:
    """GE's cell and its gradients in three ops are TensorFlow's cell."""
    x, c, h, w, b = given_to
    i, new, f, o, j, tanh_c, hidden = true
    got = arrays_of("BasicLSTMCell", x, h, c, w, b, forget_bias=0.75)
    close_all(got, (new, hidden, i, j, f, o, tanh_c), 1e-5)
    dc, dh = upstream
    gates, before = arrays_of("BasicLSTMCellCStateGrad", c, dh, dc, i, j, f, o, tanh_c)
    close(before, true_back[0], 1e-5)
    close(gates, true_back[1], 1e-5)
    to_x, to_h = arrays_of("BasicLSTMCellInputGrad", gates, w)
    both = gates @ w.T.astype(np.float64)
    close(to_x, both[:, : x.shape[1]])
    close(to_h, both[:, x.shape[1] :])
    to_w, to_b = arrays_of("BasicLSTMCellWeightGrad", x, h, gates)
    close(to_w, np.concatenate([x, h], 1).astype(np.float64).T @ gates)
    close(to_b, gates.sum(0))


@given(sizes=_SIZES)
@tries(12)
def test_gru_cell(sizes: tuple[int, int, int], tensorflow: TensorFlow) -> None:
    batch, inputs, hidden = sizes
    arrays = {
        "x": tensor(1, (batch, inputs)), "h_prev": tensor(2, (batch, hidden)),
        "w_ru": tensor(3, (inputs + hidden, 2 * hidden)), "w_c": tensor(4, (inputs + hidden, hidden)),
        "b_ru": tensor(5, (2 * hidden,)), "b_c": tensor(6, (hidden,)),
    }  # fmt: skip
    given_to = {name: array.astype(np.float32) for name, array in arrays.items()}
    true = tensorflow.run("GRUBlockCell", given_to)
    close_all(arrays_of("GRUBlockCell", *given_to.values()), true, 1e-5)
    dh = tensor(7, (batch, hidden)).astype(np.float32)
    back = dict(zip(("r", "u", "c", "d_h"), (*true[:3], dh), strict=True))
    true_back = tensorflow.run("GRUBlockCellGrad", {**given_to, **back})
    close_all(arrays_of("GRUBlockCellGrad", *given_to.values(), *back.values()), true_back, 2e-5)


@given(steps=st.integers(1, 4), sizes=_SIZES, order=st.sampled_from(["ijfo", "ifjo"]), started=st.booleans())
@tries(12)
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
            close(one[step], other, 1e-4)


@given(steps=st.integers(1, 4), sizes=_SIZES, after=st.booleans())
@tries(12)
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
            close(one[step], other)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rounding_of_a_layer_grows_with_its_steps_as_predicted(dtype: str) -> None:
    """A state that is stored in float16 after every step brings its rounding to all that follow."""
    steps, batch, inputs, hidden = 12, 16, 24, 32
    x = tensor(1, (steps, batch, inputs)).astype(dtype).astype(np.float32)
    w = (0.2 * tensor(2, (inputs + hidden, 4 * hidden))).astype(dtype).astype(np.float32)
    b = np.zeros(4 * hidden, np.float32)
    output = output_of(call_of("DynamicRNN", as_input(x, dtype=dtype), w, b))
    h, c = np.zeros((batch, hidden), np.float32), np.zeros((batch, hidden), np.float32)
    for step in x:
        gates = np.zeros((batch, 4 * hidden), np.float32)
        for column, values in enumerate(np.concatenate([step, h], 1).T):
            gates += values[:, None] * w[column]
        i, j, f, o = np.split(gates, 4, 1)
        c = c * _sigmoid(f) + _sigmoid(i) * np.tanh(j)
        full = np.tanh(c) * _sigmoid(o)
        h, c = full.astype(dtype).astype(np.float32), c.astype(dtype).astype(np.float32)
    assert 0.1 < rounding_ratio(full - output.array[-1], np.asarray(output.summed)[-1]) < 2


_NAMES = ("seq_len_max", "x", "cs_prev", "h_prev", "w", "wci", "wcf", "wco", "b")


def lstm_inputs(steps: int, batch: int, inputs: int, hidden: int, length: int) -> dict[str, Array]:
    shapes = [(steps, batch, inputs), (batch, hidden), (batch, hidden), (inputs + hidden, 4 * hidden), *[(hidden,)] * 3,
              (4 * hidden,)]  # fmt: skip
    arrays = [tensor(seed, shape).astype(np.float32) for seed, shape in enumerate(shapes, 1)]
    return dict(zip(_NAMES, (np.array(length, np.int64), *arrays), strict=True))


@given(
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3)),
    peephole=st.booleans(),
    clip=st.sampled_from([0.0, 0.5, 3.0]),
    is_second=st.booleans(),
    shorter=st.integers(0, 1),
)
@tries(15)
def test_block_lstm(
    sizes: tuple[int, int, int, int], peephole: bool, clip: float, is_second: bool, shorter: int, tensorflow: TensorFlow
) -> None:
    inputs = lstm_inputs(*sizes, length=max(1, sizes[0] - shorter))
    op_type = "BlockLSTMV2" if is_second else "BlockLSTM"
    attrs: dict[str, Any] = {"cell_clip": clip, "use_peephole": peephole}
    if not is_second:
        attrs["forget_bias"] = 0.75
    true = tensorflow.run(op_type, inputs, **attrs)
    length = max(1, sizes[0] - shorter)  # TensorFlow does not write what is behind
    true = [np.concatenate([one[:length], np.zeros_like(one[length:])]) for one in true]
    for result, other in zip(results_of(call_of(op_type, *inputs.values(), **attrs)), true, strict=True):
        assert result is not None
        close(result.array, other, 2e-5)
        assert (result.doubtful is not None) == (length < sizes[0])
        assert result.doubtful is None or result.doubtful[length:].all() > result.doubtful[:length].any()
    names = ("i", "cs", "f", "o", "ci", "co", "h")
    back = dict(zip(names, true, strict=True))
    back |= {name: tensor(seed, true[0].shape).astype(np.float32) for seed, name in ((21, "cs_grad"), (22, "h_grad"))}
    grad = "BlockLSTMGradV2" if is_second else "BlockLSTMGrad"
    true_back = tensorflow.run(grad, {**inputs, **back}, use_peephole=peephole)
    got_back = arrays_of(grad, *inputs.values(), *back.values(), use_peephole=peephole)
    for number, (one, other) in enumerate(zip(got_back, true_back, strict=True)):
        if 4 <= number <= 6 and not peephole:
            continue  # TensorFlow leaves these as they are
        close(one[:length], other[:length], 2e-5) if number == 0 else close(one, other, 2e-5)


@given(sizes=st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3)))
@tries(15)
def test_the_gradient_of_an_lstm_layer(sizes: tuple[int, int, int, int], tensorflow: TensorFlow) -> None:
    """GE has the gradients of the last states apart; TensorFlow has them in those of the last step."""
    steps, batch, _, hidden = sizes
    inputs = lstm_inputs(*sizes, length=steps)
    i, c, f, o, j, tanh_c, h = tensorflow.run("BlockLSTM", inputs, cell_clip=0.0, use_peephole=False, forget_bias=0.0)
    dy = tensor(31, h.shape).astype(np.float32)
    dh, dc = (tensor(seed, (batch, hidden)).astype(np.float32) for seed in (32, 33))
    all_h, all_c = dy.copy(), np.zeros_like(dy)
    all_h[-1] += dh
    all_c[-1] += dc
    back = dict(zip(("i", "cs", "f", "o", "ci", "co", "h"), (i, c, f, o, j, tanh_c, h), strict=True))
    true = tensorflow.run("BlockLSTMGrad", {**inputs, **back, "cs_grad": all_c, "h_grad": all_h}, use_peephole=False)
    dx, dc_first, dh_first, dw, *_, db = true
    got = arrays_of(
        "DynamicRNNGrad", inputs["x"], inputs["w"], inputs["b"], h, inputs["h_prev"][None], inputs["cs_prev"][None],
        h, c, dy, dh, dc, i, j, f, o, tanh_c,
    )  # fmt: skip
    close_all(got, (dw, db, dx, dh_first[None], dc_first[None]), 2e-5)


def test_layers_that_contradict_themselves() -> None:
    inputs = lstm_inputs(3, 2, 4, 2, length=3)
    with refused("seq_len_max 9 out of range .limit 3"):
        arrays_of("BlockLSTM", np.array(9), *list(inputs.values())[1:])
    with refused("weights"):
        arrays_of("BlockLSTM", inputs["seq_len_max"], inputs["x"][..., :1], *list(inputs.values())[2:])
    with refused("the shapes .* differ"):
        arrays_of("DynamicRNNGrad", inputs["x"], inputs["w"], *[np.ones((3, 2, 2))] * 13, np.ones((3, 2, 1)))
