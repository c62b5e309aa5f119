"""Sums of products of any axes, by an equation.

Sources: GE's prototype of Einsum in math_ops.h, TensorFlow's Einsum.
"""

from __future__ import annotations

import re
from math import prod

import numpy as np

from precision_tool.lib.ops.arguments import numbers, text
from precision_tool.lib.ops.base import Call, Kind, NotComputedError, Outputs, check_size, op
from precision_tool.lib.ops.products import limited, rounded


def _sizes(call: Call) -> tuple[str, dict[str, int], float]:
    """The equation, the size of each of its axes, and how many products there are in all."""
    equation = text(call, "equation", default="").replace(" ", "")
    shapes = [given.array.shape for given in call.inputs if given is not None]
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


def _work(call: Call) -> float:
    return _sizes(call)[2]


@op("Einsum", kind=Kind.MATRIX, inputs=("x",), work=_work)
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
