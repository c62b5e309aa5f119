"""Sums of products: their rounding, and their values at some places without computing all.

A product here is a matrix product (rows × length) · (length × columns) whose left rows need not all be in memory at
once: the windows of an image, say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from precision_tool.lib.ops.arguments import distinct
from precision_tool.lib.ops.base import Doubles, NotComputedError, Output, Places, summed_of

#: Products of up to so many multiplications get their `terms` exactly (twice the work), larger ones by a sample.
EXACT_TERMS = 1 << 26
#: No op is recomputed whole with more multiplications, or more elements of the result; it may be sampled.
MAX_WORK = 10**11
MAX_RESULT = 1 << 23
#: Doubles held at once while sampling (64 MiB).
_HELD = 1 << 23
_SAMPLED_ROWS = 128
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
    """Raises where a product is too large to be computed whole."""
    if elements > MAX_RESULT:
        raise NotComputedError("too_many_elements", number=elements)
    if work > MAX_WORK:
        raise NotComputedError("too_many_products", number=work)


def rounded(result: Doubles, squares: Doubles, count: int) -> Output:
    """The output that sums of `count` products are, given Σ p²; `squares` broadcasts to `result`."""
    return Output(
        array=result,
        summed=summed_of(result, squares - result**2 / max(count, 1), max(count, 1)),
        terms=np.sqrt(squares),
    )


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
