"""Sums of products: their rounding, and their values at some places without computing all.

A product here is a matrix product (rows × length) · (length × columns) whose left rows need not all be in memory at
once: the windows of an image, say.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from math import prod

import numpy as np

from precision_tool.lib.ops.base import (
    Call,
    Chained,
    Doubles,
    Kind,
    NotComputedError,
    Output,
    Outputs,
    Places,
    RowSums,
    check_no_inputs_from,
    check_size,
    needed,
    op,
    optional,
    summed_of,
)
from precision_tool.lib.ops.op_arguments import attribute, distinct, floats, integer, numbers, text
from precision_tool.lib.ops.sum_orders import chained, sums_tried
from precision_tool.lib.ops.windows import channels_last, expected, has_channels_first

#: Products of up to so many multiplications get their `terms` exactly (twice the work), larger ones by a sample.
EXACT_TERMS = 1 << 26
#: No op is recomputed whole with more multiplications, or more elements of the result; it may be sampled.
MAX_WORK = 10**11
MAX_RESULT = 1 << 23
#: Doubles held at once while sampling (64 MiB).
_HELD = 1 << 23
_SAMPLED_ROWS = 128
#: Sums that are added up again at most.
_CHAINED = 1 << 10
#: As many times the places that were asked for are computed where that is a plain matrix product: one costs a
#: fraction of a gathered dot product.
_DENSE = 64


@dataclass(frozen=True, slots=True)
class Product:
    """(rows × length) · (length × columns), with some of the rows or columns on demand."""

    rows: int
    length: int
    columns: int
    left: Callable[[Places], Doubles]
    right: Callable[[Places], Doubles]


def limited(work: float, elements: int) -> None:
    """Raise NotComputedError where a product is too large to be computed whole."""
    if elements > MAX_RESULT:
        raise NotComputedError("too_many_elements", number=elements)
    if work > MAX_WORK:
        raise NotComputedError("too_many_products", number=work)


def rounded(result: Doubles, squares: Doubles, count: int, chained: Callable[[], Chained] | None = None) -> Output:
    """The output that sums of `count` products are, given Σ p²; `squares` broadcasts to `result`."""
    return Output(
        array=result,
        summed=summed_of(result, squares - result**2 / max(count, 1), max(count, 1)),
        terms=np.sqrt(squares),
        length=count,
        chained=cache(chained) if chained is not None else None,
    )


def chained_products(product: Product) -> Chained:
    """Add up some of the sums of products in float32, in the order of memory first."""
    count = min(_CHAINED, sums_tried(product.length))
    rows, columns = crossings(product.rows, product.columns, count)
    rows, columns = rows[:count], columns[:count]
    left, right = product.left(rows), product.right(columns).T
    return chained(np.asarray(left, np.float64) * np.asarray(right, np.float64))


def signs_of(columns: int) -> Doubles:
    """+1 or −1 for each column, the same every time."""
    return np.random.default_rng(columns).choice([-1.0, 1.0], columns)


def signed(right: Doubles, signs: Doubles) -> tuple[Doubles, Doubles]:
    """The signed sum of the columns of a right factor, and what their squares are together, or that sum's if larger.

    What a device's rounding of the left factor makes of all columns of a row is one number times their signed sum.
    """
    wide = _doubles(right)
    total = wide @ signs
    return total, np.maximum(np.einsum("...c,...c->...", wide, wide), total**2)


def column_factors(product: Product) -> Doubles:
    """For each column Σ p² by Σ a², measured over some rows spread evenly.

    Σ p² of a row and a column is then about Σ a² of the row times the column's factor.
    """
    rows = distinct(np.linspace(0, product.rows - 1, _SAMPLED_ROWS).astype(np.intp))
    columns = np.arange(product.columns, dtype=np.intp)
    energy, squares = 0.0, np.zeros(product.columns)
    right = _doubles(product.right(columns)) ** 2
    for some in _chunks(rows, product.length):
        left = _doubles(product.left(some)) ** 2
        energy += float(left.sum())
        squares += left.sum(axis=0) @ right
    factors: Doubles = squares / energy if energy else squares
    return factors


def _doubles(array: Doubles) -> Doubles:
    return np.asarray(array, np.float64)


def _chunks(places: Places, length: int) -> list[Places]:
    at_once = max(1, _HELD // max(1, length))
    return [places[start : start + at_once] for start in range(0, len(places), at_once)]


def at_places(product: Product, rows: Places, columns: Places) -> tuple[Doubles, Doubles]:
    """The sums of products at (row, column), place by place, and Σ p² of each."""
    values, squares = np.empty(len(rows)), np.empty(len(rows))
    some_rows, row_of = np.unique(rows, return_inverse=True)
    some_columns, column_of = np.unique(columns, return_inverse=True)
    if len(some_rows) * len(some_columns) > _DENSE * len(rows):
        order = np.argsort(rows, kind="stable")
        for part in _chunks(order, product.length):
            left, right = _doubles(product.left(rows[part])), _doubles(product.right(columns[part])).T
            products = left * right
            values[part], squares[part] = products.sum(axis=1), np.einsum("ij,ij->i", products, products)
        return values, squares
    place = 0
    for few in _chunks(some_columns, product.length):
        right = _doubles(product.right(few))
        squared = right**2
        in_columns = (column_of >= place) & (column_of < place + len(few))
        first = 0
        for some in _chunks(some_rows, product.length):
            left = _doubles(product.left(some))
            here = np.flatnonzero(in_columns & (row_of >= first) & (row_of < first + len(some)))
            at = row_of[here] - first, column_of[here] - place
            values[here], squares[here] = (left @ right)[at], (left**2 @ squared)[at]
            first += len(some)
        place += len(few)
    return values, squares


def crossings(rows: int, columns: int, count: int) -> tuple[Places, Places]:
    """About `count` places where some rows, drawn from all, meet some columns: a small matrix product."""
    if not rows or not columns:
        return np.zeros(0, np.intp), np.zeros(0, np.intp)
    random = np.random.default_rng(0)
    across = min(columns, max(1, round(count**0.5)))
    down = min(rows, max(1, -(-count // across)))
    across = min(columns, max(1, -(-count // down)))
    some_rows = np.sort(random.choice(rows, down, replace=False)) if rows < 1 << 20 else _spread(random, rows, down)
    some_columns = np.sort(random.choice(columns, across, replace=False))
    return np.repeat(some_rows, across), np.tile(some_columns, down)


def _spread(random: np.random.Generator, rows: int, count: int) -> Places:
    """One of each of `count` parts of the rows: drawing without a list of all."""
    edges = np.linspace(0, rows, count + 1).astype(np.intp)
    return random.integers(edges[:-1], edges[1:]).astype(np.intp)


# --- matrix products and BiasAdd --------------------------------------------------------------------------------------


#: Numbers of a left factor that are held as doubles at once.
_MATRIX_HELD = 1 << 22
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
        return self._with_bias(rounded(result, squares, self.a.shape[-1], self._chained), self.bias)

    def _chained(self) -> Chained:
        stack = self.shape[:-2]
        first = (0,) * len(stack)
        a, b = (np.broadcast_to(factor, (*stack, *factor.shape[-2:]))[first] for factor in (self.a, self.b))
        return chained_products(_product(a, b))

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
    def _with_bias(output: Output, bias: Doubles | None) -> Output:
        if bias is None:
            return output
        array = output.array + bias
        return replace(output, array=array, summed=np.hypot(output.summed, array))

    def row_sums(self) -> RowSums | None:
        columns = self.shape[-1]
        if not columns or (self.b.ndim > 2 and self.a.size > _MATRIX_HELD):
            return None
        signs = signs_of(columns)
        right, squared = signed(self.b, signs)
        if self.b.ndim == 2:
            a = self.a.reshape(-1, self.a.shape[-1])
            sums, squares = np.empty(len(a)), np.empty(len(a))
            at_once = max(1, _MATRIX_HELD // max(1, a.shape[-1]))
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
        for matrix in distinct(number):
            here = np.flatnonzero(number == matrix)
            at = np.unravel_index(matrix, stack) if stack else ()
            values[here], squares[here] = at_places(_product(a[at], b[at]), rows[here], columns[here])
        bias = None if self.bias is None else np.broadcast_to(self.bias, self.shape)[(*batch, rows, columns)]
        return self._with_bias(rounded(values, squares, self.a.shape[-1], self._chained), bias)


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
    check_no_inputs_from(call, 3)
    matrices = _Matrices(a, b)
    vector = optional(call, 2)
    if vector is not None:
        if vector.array.size != b.shape[-1] and vector.array.shape != matrices.shape:
            raise NotComputedError(
                "shape_misfit", name="bias", shape=vector.array.shape, other="product", other_shape=matrices.shape
            )
        bias = floats(vector)
        matrices = _Matrices(a, b, bias if bias.shape == matrices.shape else bias.reshape(-1))
    expected(call, 0, matrices.shape)
    return matrices


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
    check_no_inputs_from(call, 3)
    if not 0 < axis < x.ndim:
        raise NotComputedError("out_of_range", name="axis", value=str(axis), limit=x.ndim)
    a = x.reshape(prod(x.shape[:axis]), -1)
    if attribute(call, "transpose"):
        b = weights.reshape(-1, weights.shape[-1])
    else:
        b = weights.reshape(weights.shape[0], -1).T
    if a.shape[1] != b.shape[0] or integer(call, "num_output", default=b.shape[1]) != b.shape[1]:
        raise NotComputedError("shape_misfit", name="w", shape=weights.shape, other="x", other_shape=x.shape)
    bias = None
    vector = optional(call, 2)
    if vector is not None:
        bias = floats(vector).reshape(-1)
        if bias.size != b.shape[1]:
            raise NotComputedError("count_misfit", name="bias", number=bias.size, other="outputs", limit=b.shape[1])
    shape: tuple[int, ...] = (*x.shape[:axis], b.shape[1])
    graph_shape = call.outputs[0].shape if call.outputs else None
    if graph_shape is not None and prod(graph_shape) == prod(shape):
        shape = tuple(graph_shape)  # with axes of length 1 behind
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
    output = matrices.whole()
    return [
        replace(
            output,
            array=output.array.reshape(shape),
            summed=np.asarray(output.summed).reshape(shape),
            terms=np.asarray(output.terms).reshape(shape),
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


# --- Einsum -----------------------------------------------------------------------------------------------------------


def _sizes(call: Call) -> tuple[str, dict[str, int], float]:
    """The equation, the size of each of its axes, and how many products there are in all."""
    equation = text(call, "equation", default="").replace(" ", "")
    shapes = [tensor.array.shape for tensor in call.inputs if tensor is not None]
    terms = equation.partition("->")[0].split(",")
    if not equation or len(terms) != len(shapes) or not re.fullmatch(r"[A-Za-z.,>-]+", equation):
        raise NotComputedError("value_inputs", name="equation", value=repr(equation[:60]), number=len(shapes))
    sizes: dict[str, int] = {}
    rest = 1
    for term, shape in zip(terms, shapes, strict=True):
        left, dots, right = term.partition("...")
        named = len(left) + len(right)
        if len(shape) < named or (not dots and len(shape) != named):
            raise NotComputedError("value_misfit", name="term", value=term, shapes=(shape,))
        middle = shape[len(left) : len(shape) - len(right)]
        rest = max(rest, prod(middle))
        for name, size in zip(left + right, (*shape[: len(left)], *shape[len(shape) - len(right) :]), strict=True):
            if sizes.setdefault(name, size) != size:
                raise NotComputedError("axis_differs", name=name, number=sizes[name], limit=size)
    return equation, sizes, float(rest) * float(prod(sizes.values()))


def _einsum_work(call: Call) -> float:
    return _sizes(call)[2]


@op("Einsum", kind=Kind.MATRIX, inputs=("x",), work=_einsum_work)
def _einsum(call: Call) -> Outputs:
    """One output: for each of its axes' places the sum over all others of the products."""
    equation, _, work = _sizes(call)
    arrays = numbers(call, *range(len(call.inputs)))
    limited(work, 1)
    # The shape is found with strides of 0, before anything is computed.
    made = np.einsum(equation, *(np.broadcast_to(np.int8(0), array.shape) for array in arrays))
    check_size(made.shape)
    result = np.asarray(np.einsum(equation, *arrays, optimize=len(arrays) > 1))
    squares = np.asarray(np.einsum(equation, *(array**2 for array in arrays), optimize=len(arrays) > 1))
    return [rounded(result, squares, max(1, int(work // max(result.size, 1))))]


# --- groups of rows, each with a matrix of its own --------------------------------------------------------------------


def _grouped(call: Call) -> tuple[Doubles, list[_Matrices], list[tuple[int, int]]]:
    """x, the product of each group, and the rows of x that it takes.

    Of GE's dynamic inputs x has one tensor here, the weights one of three axes or one a group, and so the bias.
    """
    (x,) = numbers(call, 0)
    tensors = [tensor for tensor in call.inputs[1:] if tensor is not None and tensor.array.size]
    lists = [tensor for tensor in tensors if tensor.array.dtype.kind in "iu" and tensor.array.ndim == 1]
    if len(lists) != 1 or x.ndim != 2 or attribute(call, "transpose_x") or integer(call, "act_type", default=0):
        raise NotComputedError("input_count", number=len(tensors) + 1)
    numbers_of_rows = [int(number) for number in lists[0].array]
    if integer(call, "group_list_type", default=0) == 0:
        numbers_of_rows = [end - begin for begin, end in zip([0, *numbers_of_rows], numbers_of_rows, strict=False)]
    groups = len(numbers_of_rows)
    parts = [floats(tensor) for tensor in tensors if tensor.array.dtype.kind == "f"]
    if len(parts) not in (1, 2, groups, 2 * groups):
        raise NotComputedError("count_misfit", name="weight", number=len(parts), other="groups", limit=groups)
    single = parts[0].ndim == 3
    weights = list(parts[0]) if single else parts[:groups]
    rest = parts[1:] if single else parts[groups:]
    biases: list[Doubles | None] = [None] * groups
    if rest:
        biases = list(rest[0]) if single else list(rest)
    if len(weights) != groups or len(biases) != groups or min(numbers_of_rows, default=0) < 0:
        raise NotComputedError("count_misfit", name="weight", number=len(weights), other="groups", limit=groups)
    ends = np.cumsum([0, *numbers_of_rows])
    if ends[-1] > len(x):
        raise NotComputedError("out_of_range", name="group_list", value=str(int(ends[-1])), limit=len(x))
    spans = [(int(begin), int(end)) for begin, end in pairwise(ends)]
    products = []
    for (begin, end), weight, bias in zip(spans, weights, biases, strict=True):
        factor = weight.T if attribute(call, "transpose_weight") else weight
        if factor.ndim != 2 or factor.shape[0] != x.shape[1]:
            raise NotComputedError("no_product", shapes=(x.shape, factor.shape))
        products.append(_Matrices(x[begin:end], factor, bias))
    return x, products, spans


def _grouped_work(call: Call) -> float:
    return sum(product.work() for product in _grouped(call)[1])


@op("GroupedMatmul", kind=Kind.MATRIX, inputs=("x", "weight"), work=_grouped_work)
def _grouped_matmul(call: Call) -> Outputs:
    """The rows of x in groups, each times the matrix of its group; rows of no group have no result."""
    x, products, spans = _grouped(call)
    columns = {product.shape[-1] for product in products}
    if len(columns) != 1:
        raise NotComputedError("shapes_differ", shapes=tuple(product.shape for product in products))
    limited(_grouped_work(call), len(x) * next(iter(columns)))
    shape = (len(x), columns.pop())
    expected(call, 0, shape)
    result, summed, terms = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    doubtful = np.ones(shape, np.bool_)
    for product, (begin, end) in zip(products, spans, strict=True):
        output = product.whole()
        for array, values in ((result, output.array), (summed, output.summed), (terms, output.terms)):
            array[begin:end] = values
        doubtful[begin:end] = False
    return [
        Output(
            array=result, summed=summed, terms=terms, length=x.shape[1], doubtful=doubtful if doubtful.any() else None
        )
    ]
