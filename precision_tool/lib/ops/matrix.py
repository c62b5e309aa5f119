"""Matrix products and the addition of a bias.

Sources: GE's prototypes in matrix_calculation_ops.h, TensorFlow's MatMul, BatchMatMulV2, BiasAdd.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from precision_tool.lib.ops.arguments import attribute, distinct, floats, integer, numbers, text
from precision_tool.lib.ops.base import (
    Call,
    Doubles,
    Kind,
    NotComputedError,
    Output,
    Outputs,
    Places,
    RowSums,
    needed,
    op,
)
from precision_tool.lib.ops.products import (
    EXACT_TERMS,
    Product,
    at_places,
    column_factors,
    crossings,
    limited,
    rounded,
    signed,
    signs_of,
)
from precision_tool.lib.ops.windows import channels_last, expected, has_channels_first

#: Numbers of a left factor that are held as doubles at once.
_HELD = 1 << 22
_TURNED = ("transpose_x1", "transpose_a", "adj_x1", "adj_x"), ("transpose_x2", "transpose_b", "adj_x2", "adj_y")


@dataclass(frozen=True, slots=True)
class _Matrices:
    """Stacks of matrices (…, m, k) and (…, k, n) of which the leading axes broadcast."""

    a: Doubles
    b: Doubles
    bias: Doubles | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        batch = np.broadcast_shapes(self.a.shape[:-2], self.b.shape[:-2])
        return (*batch, self.a.shape[-2], self.b.shape[-1])

    def work(self) -> float:
        return float(prod(self.shape) * self.a.shape[-1])

    def whole(self, *, only_values: bool = False) -> Output:
        limited(self.work(), prod(self.shape))
        result = self.a @ self.b
        if only_values:
            return Output(array=result if self.bias is None else result + self.bias)
        is_cheap = self.work() <= EXACT_TERMS or self.a.dtype == self.b.dtype == np.float32
        squares = self.a**2 @ self.b**2 if is_cheap else self._squares()
        return self._with_bias(rounded(result, squares, self.a.shape[-1]), self.bias)

    def _squares(self) -> Doubles:
        squares = np.einsum("...mk,...mk->...m", self.a, self.a)[..., None]
        if len(self.shape) == 2:
            return np.asarray(squares * column_factors(_product(self.a, self.b)))
        # The batch is long, or its matrices are large: some rows of each tell.
        step = max(1, self.a.shape[-2] // 16)
        some = (self.a[..., ::step, :] ** 2 @ self.b**2).sum(-2, keepdims=True)
        energy = squares[..., ::step, :].sum(-2, keepdims=True)
        with np.errstate(all="ignore"):
            return np.asarray(squares * np.where(energy > 0, some / energy, 0.0))

    def cheap_places(self, count: int) -> Places:
        rows, columns = crossings(prod(self.shape[:-1]), self.shape[-1], count)
        return rows * self.shape[-1] + columns

    @staticmethod
    def _with_bias(found: Output, bias: Doubles | None) -> Output:
        if bias is None:
            return found
        array = found.array + bias
        return Output(array=array, summed=np.hypot(found.summed, array), terms=found.terms)

    def row_sums(self) -> RowSums | None:
        columns = self.shape[-1]
        if not columns or (self.b.ndim > 2 and self.a.size > _HELD):
            return None
        signs = signs_of(columns)
        right, squared = signed(self.b, signs)
        if self.b.ndim == 2:
            a = self.a.reshape(-1, self.a.shape[-1])
            sums, squares = np.empty(len(a)), np.empty(len(a))
            at_once = max(1, _HELD // max(1, a.shape[-1]))
            for start in range(0, len(a), at_once):
                some = slice(start, start + at_once)
                wide = np.asarray(a[some], np.float64)
                sums[some], squares[some] = wide @ right, wide**2 @ squared
        else:
            wide = np.asarray(self.a, np.float64)
            sums = (wide @ right[..., None]).reshape(-1)
            squares = (wide**2 @ squared[..., None]).reshape(-1)
        if self.bias is not None:
            sums = sums + (np.asarray(self.bias, np.float64) @ signs).reshape(-1)
        every = np.arange(columns)
        return RowSums(
            signs=signs, sums=sums, squares=squares, length=self.a.shape[-1],
            as_rows=lambda got: got.reshape(-1, columns),
            places=lambda rows: (rows[:, None] * columns + every).reshape(-1),
        )  # fmt: skip

    def at(self, places: Places) -> Output:
        *batch, rows, columns = np.unravel_index(places, self.shape)
        values, squares = np.empty(len(places)), np.empty(len(places))
        stack = self.shape[:-2]
        number = np.ravel_multi_index(batch, stack) if batch else np.zeros(len(places), np.intp)
        a, b = (
            np.broadcast_to(self.a, (*stack, *self.a.shape[-2:])),
            np.broadcast_to(self.b, (*stack, *self.b.shape[-2:])),
        )
        for one in distinct(number):
            here = np.flatnonzero(number == one)
            at = np.unravel_index(one, stack) if stack else ()
            values[here], squares[here] = at_places(_product(a[at], b[at]), rows[here], columns[here])
        bias = None if self.bias is None else np.broadcast_to(self.bias, self.shape)[(*batch, rows, columns)]
        return self._with_bias(rounded(values, squares, self.a.shape[-1]), bias)


def _product(a: Doubles, b: Doubles) -> Product:
    return Product(a.shape[0], a.shape[1], b.shape[1], lambda rows: a[rows], lambda columns: b[:, columns])


def _matrices(call: Call) -> _Matrices:
    pair = []
    for array, names in zip(numbers(call, 0, 1), _TURNED, strict=True):
        if array.ndim < 2:
            raise NotComputedError("shape", name="matrices", shape=array.shape)
        pair.append(np.swapaxes(array, -1, -2) if attribute(call, *names) else array)
    a, b = pair
    try:
        np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise NotComputedError("no_broadcast", shapes=(a.shape, b.shape)) from None
    if a.shape[-1] != b.shape[-2]:
        raise NotComputedError("no_product", shapes=(a.shape, b.shape))
    if any(one is not None for one in call.inputs[3:]):
        raise NotComputedError("input_count", number=len(call.inputs))
    found = _Matrices(a, b)
    given = call.inputs[2] if len(call.inputs) > 2 else None
    if given is not None:
        if given.array.size != b.shape[-1] and given.array.shape != found.shape:
            raise NotComputedError(
                "shape_misfit", name="bias", shape=given.array.shape, other="product", other_shape=found.shape
            )
        bias = floats(given)
        found = _Matrices(a, b, bias if bias.shape == found.shape else bias.reshape(-1))
    expected(call, 0, found.shape)
    return found


def _sampled(call: Call, places: Places) -> Output:
    return _matrices(call).at(places)


def _work(call: Call) -> float:
    return _matrices(call).work()


def _cheap_places(call: Call, count: int) -> Places:
    return _matrices(call).cheap_places(count)


@op(
    "MatMul", "MatMulV2", "MatMulV3", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3",
    kind=Kind.MATRIX, inputs=("x1", "x2", "bias"), sampled=_sampled, work=_work,
    cheap_places=_cheap_places, row_sums=lambda call: _matrices(call).row_sums(),
)  # fmt: skip
def _matmul(call: Call) -> Outputs:
    return [_matrices(call).whole(only_values=call.only_values)]


def _connection(call: Call) -> tuple[_Matrices, tuple[int, ...]]:
    """GE's FullyConnection: x, flattened from `axis` on, times the weights (outputs first, unless `transpose`)."""
    x, weights = numbers(call, 0, 1)
    axis = integer(call, "axis", default=1)
    if not x.size or weights.ndim < 2 or not weights.size:
        raise NotComputedError("shape_misfit", name="w", shape=weights.shape, other="x", other_shape=x.shape)
    if not 0 < axis < x.ndim or any(one is not None for one in call.inputs[3:]):
        raise NotComputedError("out_of_range", name="axis", value=str(axis), limit=x.ndim)
    a = x.reshape(prod(x.shape[:axis]), -1)
    if attribute(call, "transpose"):
        b = weights.reshape(-1, weights.shape[-1])
    else:
        b = weights.reshape(weights.shape[0], -1).T
    if a.shape[1] != b.shape[0] or integer(call, "num_output", default=b.shape[1]) != b.shape[1]:
        raise NotComputedError("shape_misfit", name="w", shape=weights.shape, other="x", other_shape=x.shape)
    bias = None
    if len(call.inputs) > 2 and call.inputs[2] is not None:
        bias = floats(call.inputs[2]).reshape(-1)
        if bias.size != b.shape[1]:
            raise NotComputedError("count_misfit", name="bias", number=bias.size, other="outputs", limit=b.shape[1])
    shape: tuple[int, ...] = (*x.shape[:axis], b.shape[1])
    wanted = call.outputs[0].shape if call.outputs else None
    if wanted is not None and prod(wanted) == prod(shape):
        shape = tuple(wanted)  # with axes of length 1 behind
    expected(call, 0, shape)
    return _Matrices(a, b, bias), shape


def _connection_sampled(call: Call, places: Places) -> Output:
    return _connection(call)[0].at(places)


def _connection_work(call: Call) -> float:
    return _connection(call)[0].work()


def _connection_places(call: Call, count: int) -> Places:
    return _connection(call)[0].cheap_places(count)


@op(
    "FullyConnection",
    kind=Kind.MATRIX,
    inputs=("x", "w", "b"),
    sampled=_connection_sampled,
    work=_connection_work,
    cheap_places=_connection_places,
)
def _fully_connection(call: Call) -> Outputs:
    matrices, shape = _connection(call)
    found = matrices.whole()
    return [
        Output(
            array=found.array.reshape(shape),
            summed=np.asarray(found.summed).reshape(shape),
            terms=np.asarray(found.terms).reshape(shape),
        )
    ]


@op("BiasAdd", "BiasAddV1", kind=Kind.ROUNDED, inputs=("x", "bias"))
def _bias_add(call: Call) -> Outputs:
    x, bias = numbers(call, 0, 1)
    first = x.ndim > 2 and has_channels_first(call, needed(call, 0))
    if text(call, "data_format", default="") in ("NHWC", "NDHWC"):
        first = first and needed(call, 0).layout in ("NCHW", "NCDHW")
    if x.ndim < 2 or bias.ndim != 1 or channels_last(x, first).shape[-1] != bias.size:
        raise NotComputedError("shape_misfit", name="bias", shape=bias.shape, other="x", other_shape=x.shape)
    expected(call, 0, x.shape)
    shaped = bias.reshape(-1, *[1] * (x.ndim - 2)) if first else bias
    return [Output(array=x + shaped)]
