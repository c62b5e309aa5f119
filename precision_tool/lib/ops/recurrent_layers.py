"""LSTM layers as TensorFlow has them, and the gradients of LSTM layers through time.

Sources: TensorFlow's BlockLSTM, BlockLSTMV2 and their gradients, GE's prototype of DynamicRNNGrad in rnn.h.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from precision_tool.lib.ops.arguments import flag, numbers, real, single_number, text
from precision_tool.lib.ops.base import Call, Doubles, Kind, NotComputedError, Output, Outputs, needed, op
from precision_tool.lib.ops.products import limited
from precision_tool.lib.ops.recurrent import (
    State,
    check_is,
    check_plain,
    check_without,
    gates_of,
    lstm_step,
    optional_numbers,
    stacked,
    state_of,
    stored_as,
    tracked_product,
    weights_of,
)
from precision_tool.lib.ops.tracked import Tracked

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
    """What the gradients of an LSTM layer are made of; of every step x, the gates, the state, and the states before."""

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
        i, j, f, o = (one[step] for one in (layer.i, layer.j, layer.f, layer.o))
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
            np.concatenate([part.value for part in parts], 1),
            np.concatenate([part.summed**2 for part in parts], 1),
        )
        both = tracked_product(gates, layer.w.T)
        of_x.append(both[:, :inputs])
        dh, dc = stored_as(both[:, inputs:], layer.dtype), d_new * f
        if layer.peephole:
            dc = dc + named["i"] * layer.peephole[0] + named["f"] * layer.peephole[1]
        dc = stored_as(dc, layer.dtype)
        fed = np.concatenate([layer.x[step], layer.h_before[step]], 1)
        turned = Tracked(gates.value.T, np.asarray(gates.variance).T)
        dw = _added(dw, tracked_product(turned, fed))
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


def _added(total: Tracked | None, one: Tracked) -> Tracked:
    return one if total is None else total + one


def _longer(output: Output | None, steps: int, shape: tuple[int, ...]) -> Output:
    """An output of every step; of those that no sequence has nothing is known."""
    known = 0 if output is None else len(output.array)
    rest = np.zeros((steps - known, *shape))
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
    if x.ndim != 3 or len({one.shape for one in (i, c, f, o, j, tanh_c, h, dc, dh)}) > 1 or i.ndim != 3:
        raise NotComputedError("shapes_differ", shapes=tuple(one.shape for one in (i, c, f, o, j, tanh_c, h, dc, dh)))
    steps = _length(call, len(x))
    w = weights_of(call, w, x.shape[2] + i.shape[2])
    layer = _Layer(
        x=x[:steps], w=w, i=i[:steps], j=j[:steps], f=f[:steps], o=o[:steps], c=c[:steps], tanh_c=tanh_c[:steps],
        h_before=np.concatenate([h_first[None], h])[:steps], c_before=np.concatenate([c_first[None], c])[:steps],
        dh=dh[:steps], dc=dc[:steps], order=_ORDERS[call.op_type],
        peephole=numbers(call, 5, 6, 7) if flag(call, "use_peephole") else (), dtype=needed(call, 1).dtype,
    )  # fmt: skip
    found = _through_time(layer, np.zeros(h_first.shape), np.zeros(c_first.shape))
    return [
        _longer(found.dx, len(x), x.shape[1:]), found.dc.output(), found.dh.output(), found.dw, *found.peephole,
        found.db,
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
    if x.ndim != 3 or len({one.shape for one in (h, c, dy, i, j, f, o, tanh_c)}) > 1 or h.ndim != 3:
        raise NotComputedError("shapes_differ", shapes=tuple(one.shape for one in (h, c, dy, i, j, f, o, tanh_c)))
    check_is("cell_type", text(call, "cell_type", default="LSTM"), "LSTM")
    check_plain(call, 16, len(x))
    check_is("use_peephole", flag(call, "use_peephole"), False)
    check_without(call, 17, 18, 19, 20)
    batch, hidden = h.shape[1:]
    zero = np.zeros((batch, hidden))
    given = [optional_numbers(call, slot) for slot in (4, 5, 9, 10)]
    h_first, c_first, dh, dc = (zero if one is None else state_of(call, one, (batch, hidden)) for one in given)
    layer = _Layer(
        x=x, w=weights_of(call, w, x.shape[2] + hidden), i=i, j=j, f=f, o=o, c=c, tanh_c=tanh_c,
        h_before=np.concatenate([h_first[None], h[:-1]]), c_before=np.concatenate([c_first[None], c[:-1]]),
        dh=dy, dc=np.zeros(h.shape), order=text(call, "gate_order", default="ijfo"), peephole=(),
        dtype=needed(call, 0).dtype,
    )  # fmt: skip
    found = _through_time(layer, dh, dc)
    states = [Output(array=one.value[None], summed=one.summed[None]) for one in (found.dh, found.dc)]
    return [found.dw, found.db, found.dx, *states]
