"""Recurrent cells and layers, and the gradients of the cells.

Sources: GE's prototypes in rnn.h, TensorFlow's LSTMBlockCell, GRUBlockCell and their gradients. Gates stand in the
order i, j, f, o (input, new, forget, output) in GE's ops and TensorFlow's LSTM.

A state that is stored in float16 between two steps is rounded there, which `summed` counts in units of float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from precision_tool.lib.ops.base import Call, Doubles, Kind, NotComputedError, Output, Outputs, needed, op, optional
from precision_tool.lib.ops.matrix import limited, rounded
from precision_tool.lib.ops.op_arguments import (
    ROUNDOFF,
    flag,
    floats,
    integer,
    numbers,
    real,
    same_shape,
    single_number,
    text,
)
from precision_tool.lib.ops.tracked import Tracked


@dataclass(frozen=True, slots=True)
class State:
    """Gates and states of an LSTM step."""

    i: Tracked
    j: Tracked
    f: Tracked
    o: Tracked
    c: Tracked
    tanh_c: Tracked
    h: Tracked


def tracked_product(a: Tracked | Doubles, b: Doubles) -> Tracked:
    """A matrix product; errors of `a` come through it."""
    if isinstance(a, Tracked):
        result = tracked_product(a.value, b)
        came = np.broadcast_to(np.asarray(a.variance, np.float64), a.value.shape)
        return Tracked(result.value, result.variance + came @ b**2)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise NotComputedError("no_product", shapes=(a.shape, b.shape))
    limited(float(a.shape[0] * a.shape[1] * b.shape[1]), a.shape[0] * b.shape[1])
    output = rounded(a @ b, a**2 @ b**2, a.shape[1])
    return Tracked(output.array, np.asarray(output.summed) ** 2)


def stored_as(value: Tracked, dtype: str) -> Tracked:
    """Return the value as the next step reads it back from memory, rounded to `dtype`."""
    ratio = ROUNDOFF.get(dtype, 0.0) / ROUNDOFF["float32"]
    return value if ratio <= 1 else Tracked(value.value, value.variance + (ratio * value.value) ** 2)


def optional_numbers(call: Call, slot: int) -> Doubles | None:
    tensor = optional(call, slot)
    return None if tensor is None or not tensor.array.size else floats(tensor)


def gates_of(gates: Tracked, order: str, gate_names: str = "ijfo") -> list[Tracked]:
    """The gates by name, of which the last axis holds all."""
    if sorted(order) != sorted(gate_names):
        raise NotComputedError("no_variant", name="gate_order", value=order)
    if gates.value.shape[-1] % len(order):
        raise NotComputedError("no_multiple", name="gates", number=gates.value.shape[-1], limit=len(order))
    size = gates.value.shape[-1] // len(order)
    return [gates[..., order.index(name) * size : (order.index(name) + 1) * size] for name in gate_names]


def _clipped(value: Tracked, limit: float) -> Tracked:
    if limit <= 0:
        return value
    return Tracked(np.clip(value.value, -limit, limit), value.variance)


def lstm_step(
    gates: Sequence[Tracked],
    c: Tracked | Doubles,
    forget_bias: float,
    clip: float = -1.0,
    peephole: Sequence[Doubles] = (),
) -> State:
    """One step from the sums that the gates are made of; `peephole` has what c adds to those of i, f and o."""
    i, j, f, o = gates
    c = c if isinstance(c, Tracked) else Tracked(c)
    if peephole:
        i, f = i + c * peephole[0], f + c * peephole[1]
    i, j, f = i.sigmoid(), j.tanh(), (f + forget_bias).sigmoid()
    new = _clipped(c * f + i * j, clip)
    o = (o + new * peephole[2] if peephole else o).sigmoid()
    tanh_c = new.tanh()
    return State(i, j, f, o, new, tanh_c, tanh_c * o)


def _rows(call: Call, *slots: int) -> list[Doubles]:
    """Inputs as (batch, numbers), whatever axes of length 1 they have before."""
    result = []
    for array in numbers(call, *slots):
        if not array.ndim or not array.size:
            raise NotComputedError("shape", name="inputs", shape=array.shape)
        result.append(array.reshape(-1, array.shape[-1]))
    return result


def state_of(call: Call, state: Doubles, shape: tuple[int, int]) -> Doubles:
    """A state as (batch, hidden), whatever axes of length 1 it has before."""
    if state.size != shape[0] * shape[1]:
        raise NotComputedError("shape_expected", name="state", shape=state.shape, other_shape=shape)
    return state.reshape(shape)


# --- cells ------------------------------------------------------------------------------------------------------------


def weights_of(call: Call, array: Doubles, rows: int) -> Doubles:
    """Weights as a matrix of so many rows, without axes of length 1."""
    if not rows or array.size % rows or (array.ndim == 2 and array.shape[0] != rows):
        raise NotComputedError("shape_rows", name="weights", shape=array.shape, number=rows)
    squeezed = array.reshape([size for size in array.shape if size != 1]) if array.ndim > 2 else array
    if squeezed.ndim != 2 or squeezed.shape[0] != rows:
        raise NotComputedError("shape_rows", name="weights", shape=array.shape, number=rows)
    return squeezed


def check_is(name: str, value: object, plain: object) -> None:
    """Raise NotComputedError unless an attribute has the value that the formula assumes."""
    if value != plain:
        raise NotComputedError("no_variant", name=name, value=str(value))


def check_without(call: Call, *slots: int) -> None:
    """Raise NotComputedError where one of these inputs, which the formula ignores, is connected."""
    for slot in slots:
        if optional_numbers(call, slot) is not None:
            raise NotComputedError("no_variant", name="input", value=str(slot))


@op("BasicLSTMCell", kind=Kind.COMPOSITE, inputs=("x", "h", "c", "w", "b", "mask"))
def _basic_lstm(call: Call) -> Outputs:
    """Outputs c, h, and the gates."""
    (x, h), (c, w, b) = _rows(call, 0, 1), numbers(call, 2, 3, 4)
    check_is("keep_prob", real(call, "keep_prob", default=1.0), 1)
    check_without(call, 5)
    if len(x) != len(h) or b.size != 4 * h.shape[1]:
        raise NotComputedError("shapes_misfit", name="x, h, b", shapes=(x.shape, h.shape, b.shape))
    c = state_of(call, c, (len(h), h.shape[1]))
    both = np.concatenate([x, h], 1)
    gates = tracked_product(both, weights_of(call, w, both.shape[1])) + b.reshape(-1)
    state = lstm_step(gates_of(gates, "ijfo"), c, real(call, "forget_bias", default=1.0))
    shape = needed(call, 2).array.shape
    results = (state.c, state.h, state.i, state.j, state.f, state.o, state.tanh_c)
    return [result.reshape(*shape).output() for result in results]


@op("BasicLSTMCellCStateGrad", kind=Kind.COMPOSITE, inputs=("c", "dht", "dct", "it", "jt", "ft", "ot", "tanhct"))
def _basic_lstm_state_grad(call: Call) -> Outputs:
    """Gradients of the gates' sums, one beside the other, and of the state before."""
    c, dh, dc, i, j, f, o, tanh_c = _rows(call, *range(8))
    same_shape(call, c, dh, dc, i, j, f, o, tanh_c)
    d_new = (1 - Tracked(tanh_c) * tanh_c) * o * dh + dc
    parts = [
        d_new * j * i * (1 - Tracked(i)),
        d_new * i * (1 - Tracked(j) * j),
        d_new * c * f * (1 - Tracked(f)),
        Tracked(dh) * tanh_c * o * (1 - Tracked(o)),
    ]
    gates = Output(
        array=np.concatenate([part.value for part in parts], -1),
        summed=np.concatenate([part.summed for part in parts], -1),
    )
    return [gates, (d_new * f).output()]


@op("BasicLSTMCellInputGrad", kind=Kind.MATRIX, inputs=("dgate", "w", "dropout_mask"))
def _basic_lstm_input_grad(call: Call) -> Outputs:
    """Gradients of x and of h."""
    (gates,), (w,) = _rows(call, 0), numbers(call, 1)
    check_is("keep_prob", real(call, "keep_prob", default=1.0), 1)
    check_without(call, 2)
    w = weights_of(call, w, w.size // max(1, gates.shape[1]))
    both = tracked_product(gates, w.T)
    inputs = w.shape[0] - gates.shape[1] // 4
    if inputs < 0:
        raise NotComputedError("shape_misfit", name="w", shape=w.shape, other="dgate", other_shape=gates.shape)
    return [both[:, :inputs].output(), both[:, inputs:].output()]


@op("BasicLSTMCellWeightGrad", kind=Kind.MATRIX, inputs=("x", "h", "dgate"))
def _basic_lstm_weight_grad(call: Call) -> Outputs:
    """Gradients of the weights and of the bias."""
    x, h, gates = _rows(call, 0, 1, 2)
    if not len(x) == len(h) == len(gates):
        raise NotComputedError("shapes_misfit", name="x, h, dgate", shapes=(x.shape, h.shape, gates.shape))
    result = tracked_product(np.concatenate([x, h], 1).T, gates)
    return [result.output(), Tracked(gates).total(0, keep=False).output()]


@op("LSTMBlockCell", kind=Kind.COMPOSITE, inputs=("x", "cs_prev", "h_prev", "w", "wci", "wcf", "wco", "b"))
def _lstm_block(call: Call) -> Outputs:
    """TensorFlow's: outputs i, cs, f, o, ci, co, h."""
    (x, h), (c, w, b) = _rows(call, 0, 2), numbers(call, 1, 3, 7)
    if len(x) != len(h) or b.size != 4 * h.shape[1]:
        raise NotComputedError("shapes_misfit", name="x, h, b", shapes=(x.shape, h.shape, b.shape))
    c = state_of(call, c, (len(h), h.shape[-1]))
    gates = tracked_product(np.concatenate([x, h], 1), w) + b
    peephole = numbers(call, 4, 5, 6) if flag(call, "use_peephole") else ()
    forget_bias, clip = real(call, "forget_bias", default=1.0), real(call, "cell_clip", default=3.0)
    state = lstm_step(gates_of(gates, "ijfo"), c, forget_bias, clip, peephole)
    return [result.output() for result in (state.i, state.c, state.f, state.o, state.j, state.tanh_c, state.h)]


@op(
    "LSTMBlockCellGrad",
    kind=Kind.COMPOSITE,
    inputs=(
        "x", "cs_prev", "h_prev", "w", "wci", "wcf", "wco", "b", "i", "cs", "f", "o", "ci", "co", "cs_grad", "h_grad",
    ),
)  # fmt: skip
def _lstm_block_grad(call: Call) -> Outputs:
    """Gradients of the state before, of the gates' sums, and of the peephole weights."""
    before, i, c, f, o, j, tanh_c, dc, dh = numbers(call, 1, 8, 9, 10, 11, 12, 13, 14, 15)
    if len({array.shape for array in (before, i, c, f, o, j, tanh_c, dc, dh)}) > 1 or before.ndim != 2:
        raise NotComputedError(
            "shapes_differ", shapes=tuple(array.shape for array in (before, i, c, f, o, j, tanh_c, dc, dh))
        )
    peephole = numbers(call, 4, 5, 6) if flag(call, "use_peephole") else []
    d_o = Tracked(dh) * tanh_c * o * (1 - Tracked(o))
    d_new = (1 - Tracked(tanh_c) * tanh_c) * dh * o + dc
    if peephole:
        d_new = d_new + d_o * peephole[2]
    d_j = d_new * i * (1 - Tracked(j) * j)
    d_i = d_new * j * i * (1 - Tracked(i))
    d_f = d_new * before * f * (1 - Tracked(f))
    d_before = d_new * f
    if peephole:
        d_before = d_before + d_i * peephole[0] + d_f * peephole[1]
    parts = (d_i, d_j, d_f, d_o)
    gates = Output(
        array=np.concatenate([part.value for part in parts], 1),
        summed=np.concatenate([part.summed for part in parts], 1),
    )
    sums: list[Output] = []
    for part, state, slot in ((d_i, before, 4), (d_f, before, 5), (d_o, c, 6)):
        total = (part * state).total(0, keep=False).output()
        sums.append(total if peephole else Output(array=np.zeros(needed(call, slot).array.shape)))
    return [d_before.output(), gates, *sums]


@op("GRUBlockCell", kind=Kind.COMPOSITE, inputs=("x", "h_prev", "w_ru", "w_c", "b_ru", "b_c"))
def _gru_block(call: Call) -> Outputs:
    """TensorFlow's: outputs r, u, c, h."""
    x, h, w_ru, w_c, b_ru, b_c = numbers(call, 0, 1, 2, 3, 4, 5)
    if x.ndim != 2 or h.ndim != 2 or len(x) != len(h):
        raise NotComputedError("shapes_misfit", name="x, h_prev", shapes=(x.shape, h.shape))
    r, u = gates_of((tracked_product(np.concatenate([x, h], 1), w_ru) + b_ru).sigmoid(), "ru", "ru")
    reset = r * h
    both = Tracked(np.concatenate([x, reset.value], 1), np.concatenate([np.zeros(x.shape), reset.summed**2], 1))
    c = (tracked_product(both, w_c) + b_c).tanh()
    return [result.output() for result in (r, u, c, u * h + (1 - u) * c)]


@op("GRUBlockCellGrad", kind=Kind.COMPOSITE, inputs=("x", "h_prev", "w_ru", "w_c", "b_ru", "b_c", "r", "u", "c", "d_h"))
def _gru_block_grad(call: Call) -> Outputs:
    """Gradients of x, of h before, and of the sums of c and of r and u."""
    x, h, w_ru, w_c, r, u, c, dh = numbers(call, 0, 1, 2, 3, 6, 7, 8, 9)
    if len({array.shape for array in (h, r, u, c, dh)}) > 1 or h.ndim != 2 or x.ndim != 2:
        raise NotComputedError("shapes_differ", shapes=tuple(array.shape for array in (x, h, r, u, c, dh)))
    d_c = Tracked(dh) * (1 - Tracked(u)) * (1 - Tracked(c) * c)
    d_u = Tracked(dh) * (Tracked(h) - c) * u * (1 - Tracked(u))
    to_c = tracked_product(d_c, w_c.T)
    inputs = x.shape[1]
    reset = to_c[:, inputs:]
    d_r = reset * h * r * (1 - Tracked(r))
    gates = Tracked(np.concatenate([d_r.value, d_u.value], 1), np.concatenate([d_r.summed**2, d_u.summed**2], 1))
    to_ru = tracked_product(gates, w_ru.T)
    d_h = reset * r + to_ru[:, inputs:] + Tracked(dh) * u
    return [(to_c[:, :inputs] + to_ru[:, :inputs]).output(), d_h.output(), d_c.output(), gates.output()]


# --- layers -----------------------------------------------------------------------------------------------------------


def check_plain(call: Call, seq_slot: int, steps: int) -> None:
    """Raise NotComputedError for variants that the prototypes leave open."""
    lengths = optional(call, seq_slot)
    if lengths is not None and lengths.array.size and bool((lengths.array != steps).any()):
        raise NotComputedError("no_variant", name="seq_length", value=str(lengths.array.min()))
    check_is("direction", text(call, "direction", default="UNIDIRECTIONAL"), "UNIDIRECTIONAL")
    check_is("activation", text(call, "activation", default="tanh"), "tanh")
    check_is("num_proj", integer(call, "num_proj", default=0), 0)
    check_is("cell_depth", integer(call, "cell_depth", default=1), 1)
    check_is("keep_prob", real(call, "keep_prob", default=1.0), 1)
    check_is("time_major", flag(call, "time_major", default=True), True)


def stacked(steps: Sequence[Tracked]) -> Output:
    return Output(array=np.stack([step.value for step in steps]), summed=np.stack([step.summed for step in steps]))


@op(
    "DynamicRNN", "DynamicLSTM",
    kind=Kind.COMPOSITE,
    inputs=("x", "w", "b", "seq_length", "init_h", "init_c", "wci", "wcf", "wco", "mask"),
)  # fmt: skip
def _dynamic_rnn(call: Call) -> Outputs:
    """An LSTM over the first axis of x; outputs y, h, c, and the gates i, j, f, o and tanh(c) of every step."""
    x, w, b = numbers(call, 0, 1, 2)
    if x.ndim != 3:
        raise NotComputedError("axis_count", name="x", number=x.ndim, limit=3)
    check_is("cell_type", text(call, "cell_type", default="LSTM"), "LSTM")
    check_plain(call, 3, len(x))
    check_is("use_peephole", flag(call, "use_peephole"), False)
    check_without(call, 6, 7, 8, 9)
    b = b.reshape(-1)
    hidden = b.size // 4
    limited(float(len(x)) * x.shape[1] * (x.shape[2] + hidden) * b.size, x.shape[0] * x.shape[1] * hidden)
    w = weights_of(call, w, x.shape[2] + hidden)
    start = [optional_numbers(call, slot) for slot in (4, 5)]
    zero = np.zeros((x.shape[1], hidden))
    h, c = (Tracked(zero if initial is None else state_of(call, initial, (len(zero), hidden))) for initial in start)
    forget_bias, clip = real(call, "forget_bias", default=0.0), real(call, "cell_clip", default=-1.0)
    order = text(call, "gate_order", default="ijfo")
    dtype = call.outputs[0].dtype if call.outputs else needed(call, 0).dtype
    states: list[State] = []
    for step in x:
        gates = tracked_product(step, w[: x.shape[2]]) + tracked_product(h, w[x.shape[2] :]) + b
        state = lstm_step(gates_of(gates, order), c, forget_bias, clip)
        states.append(state)
        h, c = stored_as(state.h, dtype), stored_as(state.c, dtype)
    y = stacked([state.h for state in states])
    others = ([getattr(state, name) for state in states] for name in ("c", "i", "j", "f", "o", "tanh_c"))
    return [y, y, *map(stacked, others)]


@op(
    "DynamicGRUV2",
    kind=Kind.COMPOSITE,
    inputs=("x", "weight_input", "weight_hidden", "bias_input", "bias_hidden", "seq_length", "init_h"),
)
def _dynamic_gru(call: Call) -> Outputs:
    """A GRU over the first axis of x; outputs y, h, update, reset, new, and what h adds to the new one."""
    x, w, r = numbers(call, 0, 1, 2)
    if x.ndim != 3:
        raise NotComputedError("axis_count", name="x", number=x.ndim, limit=3)
    check_plain(call, 5, len(x))
    r = r.reshape(-1, r.shape[-1])
    hidden = r.shape[1] // 3
    limited(float(len(x)) * x.shape[1] * (x.shape[2] + hidden) * r.shape[1], x.shape[0] * x.shape[1] * hidden)
    w = weights_of(call, w, x.shape[2])
    if w.shape[1] != 3 * hidden or r.shape != (hidden, 3 * hidden):
        raise NotComputedError("shapes_misfit", name="weights", shapes=(w.shape, r.shape))
    biases = [optional_numbers(call, slot) for slot in (3, 4)]
    b, d = (np.zeros(3 * hidden) if bias is None else bias.reshape(-1) for bias in biases)
    start = optional_numbers(call, 6)
    zero = np.zeros((x.shape[1], hidden))
    h = Tracked(zero if start is None else state_of(call, start, (len(zero), hidden)))
    order, after = text(call, "gate_order", default="zrh"), flag(call, "reset_after", default=True)
    dtype = call.outputs[0].dtype if call.outputs else needed(call, 0).dtype
    whole: list[tuple[Tracked, ...]] = []
    for step in x:
        from_x = gates_of(tracked_product(step, w) + b, order, "zrh")
        from_h = gates_of(tracked_product(h, r) + d, order, "zrh")
        z, reset = (from_x[0] + from_h[0]).sigmoid(), (from_x[1] + from_h[1]).sigmoid()
        if after:
            inner = from_h[2]
            new = (from_x[2] + reset * inner).tanh()
        else:
            place = order.index("h") * hidden
            inner = tracked_product(reset * h, r[:, place : place + hidden]) + d[place : place + hidden]
            new = (from_x[2] + inner).tanh()
        following = (1 - z) * new + z * h
        whole.append((following, z, reset, new, inner))
        h = stored_as(following, dtype)
    columns = [stacked(column) for column in zip(*whole, strict=True)]
    return [columns[0], *columns]


# --- LSTM layers and backpropagation through time ---------------------------------------------------------------------


#: The order of the gates in the weights: of GE's ops and BlockLSTM, and of BlockLSTMV2.
_ORDERS = {"BlockLSTM": "ijfo", "BlockLSTMGrad": "ijfo", "BlockLSTMV2": "ifjo", "BlockLSTMGradV2": "ifjo"}


def _length(call: Call, steps: int) -> int:
    """Of how many steps the longest sequence is; what stands behind these nobody has written."""
    length = single_number(call, "seq_len_max", slot=0)
    if not 0 <= length <= steps:
        raise NotComputedError("out_of_range", name="seq_len_max", value=str(length), limit=steps)
    return length


@op(
    "BlockLSTM", "BlockLSTMV2",
    kind=Kind.COMPOSITE,
    inputs=("seq_len_max", "x", "cs_prev", "h_prev", "w", "wci", "wcf", "wco", "b"),
)  # fmt: skip
def _block_lstm(call: Call) -> Outputs:
    """Outputs i, cs, f, o, ci, co, h of every step."""
    x, c, h, w, b = numbers(call, 1, 2, 3, 4, 8)
    if x.ndim != 3 or h.ndim != 2 or b.size != 4 * h.shape[1] or len(h) != x.shape[1]:
        raise NotComputedError("shapes_misfit", name="x, h, b", shapes=(x.shape, h.shape, b.shape))
    steps, hidden = _length(call, len(x)), h.shape[1]
    limited(float(steps) * x.shape[1] * (x.shape[2] + hidden) * b.size, x.shape[0] * x.shape[1] * hidden)
    w = weights_of(call, w, x.shape[2] + hidden)
    peephole = numbers(call, 5, 6, 7) if flag(call, "use_peephole") else ()
    is_second = call.op_type == "BlockLSTMV2"
    forget_bias = 0.0 if is_second else real(call, "forget_bias", default=1.0)
    clip = real(call, "cell_clip", default=0.0 if is_second else 3.0)
    dtype = call.outputs[0].dtype if call.outputs else needed(call, 1).dtype
    before, out = Tracked(state_of(call, c, (len(h), hidden))), Tracked(h)
    states: list[State] = []
    for step in x[:steps]:
        gates = tracked_product(step, w[: x.shape[2]]) + tracked_product(out, w[x.shape[2] :]) + b
        state = lstm_step(gates_of(gates, _ORDERS[call.op_type]), before, forget_bias, clip, peephole)
        states.append(state)
        before, out = stored_as(state.c, dtype), stored_as(state.h, dtype)
    columns = ([getattr(state, name) for state in states] for name in ("i", "c", "f", "o", "j", "tanh_c", "h"))
    shape = (len(h), hidden)
    return [_longer(stacked(column) if column else None, len(x), shape) for column in columns]


# --- gradients --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Layer:
    """Inputs of an LSTM layer's gradients: x, gates, states and previous states of every step."""

    x: Doubles
    w: Doubles
    h_before: Doubles
    c_before: Doubles
    i: Doubles
    j: Doubles
    f: Doubles
    o: Doubles
    c: Doubles
    tanh_c: Doubles
    dh: Doubles
    dc: Doubles
    order: str
    peephole: Sequence[Doubles]
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gradients:
    dx: Output
    dh: Tracked
    dc: Tracked
    dw: Output
    db: Output
    peephole: Sequence[Output]


def _through_time(layer: _Layer, last_h: Doubles, last_c: Doubles) -> _Gradients:
    """The gradients, from the last step to the first."""
    steps, batch, inputs = layer.x.shape
    hidden = layer.i.shape[-1]
    limited(2.0 * steps * batch * layer.w.size, layer.w.size + layer.x.size)
    dh, dc = Tracked(last_h), Tracked(last_c)
    of_x: list[Tracked] = []
    dw: Tracked | None = None
    db: Tracked | None = None
    sums: list[Tracked | None] = [None, None, None]
    for step in reversed(range(steps)):
        i, j, f, o = (gate[step] for gate in (layer.i, layer.j, layer.f, layer.o))
        tanh_c, before = layer.tanh_c[step], layer.c_before[step]
        dh = dh + layer.dh[step]
        d_o = dh * tanh_c * o * (1 - Tracked(o))
        d_new = (1 - Tracked(tanh_c) * tanh_c) * o * dh + (dc + layer.dc[step])
        if layer.peephole:
            d_new = d_new + d_o * layer.peephole[2]
        named = {
            "i": d_new * j * i * (1 - Tracked(i)), "j": d_new * i * (1 - Tracked(j) * j),
            "f": d_new * before * f * (1 - Tracked(f)), "o": d_o,
        }  # fmt: skip
        parts = [named[name] for name in layer.order]
        gates = Tracked(
            np.concatenate([part.value for part in parts], 1), np.concatenate([part.summed**2 for part in parts], 1)
        )
        both = tracked_product(gates, layer.w.T)
        of_x.append(both[:, :inputs])
        dh, dc = stored_as(both[:, inputs:], layer.dtype), d_new * f
        if layer.peephole:
            dc = dc + named["i"] * layer.peephole[0] + named["f"] * layer.peephole[1]
        dc = stored_as(dc, layer.dtype)
        x_and_h = np.concatenate([layer.x[step], layer.h_before[step]], 1)
        turned = Tracked(gates.value.T, np.asarray(gates.variance).T)
        dw = _added(dw, tracked_product(turned, x_and_h))
        db = _added(db, gates.total(0, keep=False))
        states = (("i", before), ("f", before), ("o", layer.c[step]))
        sums = [
            _added(total, (named[name] * state).total(0, keep=False))
            for total, (name, state) in zip(sums, states, strict=True)
        ]
    zeros = Tracked(np.zeros((4 * hidden, inputs + hidden)))
    weights = dw if dw is not None else zeros
    nothing = Tracked(np.zeros(hidden))
    return _Gradients(
        dx=stacked(of_x[::-1]) if of_x else Output(array=np.zeros(layer.x.shape)),
        dh=dh,
        dc=dc,
        dw=Output(array=weights.value.T, summed=weights.summed.T),
        db=(db if db is not None else Tracked(np.zeros(4 * hidden))).output(),
        peephole=[(total if total is not None and layer.peephole else nothing).output() for total in sums],
    )


def _added(total: Tracked | None, part: Tracked) -> Tracked:
    return part if total is None else total + part


def _longer(output: Output | None, steps: int, shape: tuple[int, ...]) -> Output:
    """An output of every step; of those that no sequence has nothing is known."""
    length = 0 if output is None else len(output.array)
    rest = np.zeros((steps - length, *shape))
    if output is None or not len(rest):
        return output or Output(array=rest, doubtful=np.ones(rest.shape, np.bool_))
    return Output(
        array=np.concatenate([output.array, rest]),
        summed=np.concatenate([np.asarray(output.summed), rest]),
        doubtful=np.concatenate([np.zeros(output.array.shape, np.bool_), np.ones(rest.shape, np.bool_)]),
    )


@op(
    "BlockLSTMGrad", "BlockLSTMGradV2",
    kind=Kind.COMPOSITE,
    inputs=(
        "seq_len_max", "x", "cs_prev", "h_prev", "w", "wci", "wcf", "wco", "b", "i", "cs", "f", "o", "ci", "co", "h",
        "cs_grad", "h_grad",
    ),
)  # fmt: skip
def _block_lstm_grad(call: Call) -> Outputs:
    """Gradients of x, of the states before, of the weights, of the peephole weights and of the bias."""
    x, c_first, h_first, w = numbers(call, 1, 2, 3, 4)
    i, c, f, o, j, tanh_c, h, dc, dh = numbers(call, *range(9, 18))
    if x.ndim != 3 or len({array.shape for array in (i, c, f, o, j, tanh_c, h, dc, dh)}) > 1 or i.ndim != 3:
        raise NotComputedError(
            "shapes_differ", shapes=tuple(array.shape for array in (i, c, f, o, j, tanh_c, h, dc, dh))
        )
    steps = _length(call, len(x))
    w = weights_of(call, w, x.shape[2] + i.shape[2])
    layer = _Layer(
        x=x[:steps], w=w, i=i[:steps], j=j[:steps], f=f[:steps], o=o[:steps], c=c[:steps], tanh_c=tanh_c[:steps],
        h_before=np.concatenate([h_first[None], h])[:steps], c_before=np.concatenate([c_first[None], c])[:steps],
        dh=dh[:steps], dc=dc[:steps], order=_ORDERS[call.op_type],
        peephole=numbers(call, 5, 6, 7) if flag(call, "use_peephole") else (), dtype=needed(call, 1).dtype,
    )  # fmt: skip
    gradients = _through_time(layer, np.zeros(h_first.shape), np.zeros(c_first.shape))
    return [
        _longer(gradients.dx, len(x), x.shape[1:]), gradients.dc.output(), gradients.dh.output(), gradients.dw,
        *gradients.peephole, gradients.db,
    ]  # fmt: skip


@op(
    "DynamicRNNGrad",
    kind=Kind.COMPOSITE,
    inputs=(
        "x", "w", "b", "y", "init_h", "init_c", "h", "c", "dy", "dh", "dc", "i", "j", "f", "o", "tanct", "seq_length",
        "mask", "wci", "wcf", "wco",
    ),
)  # fmt: skip
def _dynamic_rnn_grad(call: Call) -> Outputs:
    """Gradients of the weights, of the bias, of x, and of the states before, from those of y and of the last states."""
    x, w = numbers(call, 0, 1)
    h, c, dy, i, j, f, o, tanh_c = numbers(call, 6, 7, 8, 11, 12, 13, 14, 15)
    if x.ndim != 3 or len({array.shape for array in (h, c, dy, i, j, f, o, tanh_c)}) > 1 or h.ndim != 3:
        raise NotComputedError("shapes_differ", shapes=tuple(array.shape for array in (h, c, dy, i, j, f, o, tanh_c)))
    check_is("cell_type", text(call, "cell_type", default="LSTM"), "LSTM")
    check_plain(call, 16, len(x))
    check_is("use_peephole", flag(call, "use_peephole"), False)
    check_without(call, 17, 18, 19, 20)
    batch, hidden = h.shape[1:]
    zero = np.zeros((batch, hidden))
    states = [optional_numbers(call, slot) for slot in (4, 5, 9, 10)]
    h_first, c_first, dh, dc = (zero if array is None else state_of(call, array, (batch, hidden)) for array in states)
    layer = _Layer(
        x=x, w=weights_of(call, w, x.shape[2] + hidden), i=i, j=j, f=f, o=o, c=c, tanh_c=tanh_c,
        h_before=np.concatenate([h_first[None], h[:-1]]), c_before=np.concatenate([c_first[None], c[:-1]]),
        dh=dy, dc=np.zeros(h.shape), order=text(call, "gate_order", default="ijfo"), peephole=(),
        dtype=needed(call, 0).dtype,
    )  # fmt: skip
    gradients = _through_time(layer, dh, dc)
    initial = [Output(array=array.value[None], summed=array.summed[None]) for array in (gradients.dh, gradients.dc)]
    return [gradients.dw, gradients.db, gradients.dx, *initial]
