"""Tensors that no recorded call put out, as functions of what calls did put out: views, parts and sums of these.

msprobe does not record calls that only make views. The graph names what such a tensor was probably made of; here the
numbers decide, so that a change goes on through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from math import factorial
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: Axes that are tried in every order.
_MAX_AXES = 5
#: Combinations of gradients that are tried as a sum, and how near a sum in float32 must come.
_MAX_SUMS, _NEAR = 64, 1e-6
#: Share of a tensor's elements that may have the value of another one.
_BY_CHANCE = 0.01


@dataclass(frozen=True)
class View:
    """A tensor made of others: `sources` are the places of these among the candidates."""

    sources: tuple[int, ...]
    make: Callable[[Sequence[Array]], Array]


def view_of(tensor: Array, candidates: Sequence[tuple[int, Array]]) -> View | None:
    """Return how a tensor is made of candidates; None where it is not.

    Parameters
    ----------
    tensor : ndarray
        The tensor as recorded.
    candidates : sequence of (int, ndarray)
        Results of calls, each with the number of its call: a sum takes a result of each call.
    """
    for place, (_, source) in enumerate(candidates):
        if source.size >= tensor.size > 0:
            make = _same_elements(tensor, source) if source.size == tensor.size else _part(tensor, source)
            if make is not None:
                return View((place,), make)
    return _sum(tensor, candidates)


def _same_elements(tensor: Array, source: Array) -> Callable[[Sequence[Array]], Array] | None:
    shape, axes = tensor.shape, source.ndim
    for order in permutations(range(axes)) if factorial(axes) <= factorial(_MAX_AXES) else [tuple(range(axes))]:
        if np.array_equal(source.transpose(order).reshape(shape), tensor):
            return lambda arrays, order=order: arrays[0].transpose(order).reshape(shape)  # type: ignore[misc]
    return _part(tensor, source)


def _part(tensor: Array, source: Array) -> Callable[[Sequence[Array]], Array] | None:
    """Find each element by its value, where hardly a value comes twice: by chance, not zeros behind a ReLU."""
    flat = source.reshape(-1)
    order = np.argsort(flat, kind="stable")
    values = flat[order]
    if not np.count_nonzero(values[1:] > values[:-1]) >= (1 - _BY_CHANCE) * (values.size - 1):
        return None
    at = np.minimum(np.searchsorted(values, tensor.reshape(-1)), values.size - 1)
    if not np.array_equal(values[at], tensor.reshape(-1)):
        return None
    places = order[at].reshape(tensor.shape)
    return lambda arrays: arrays[0].reshape(-1)[places]


def _sum(tensor: Array, candidates: Sequence[tuple[int, Array]]) -> View | None:
    shape = tensor.shape
    by_call: dict[int, list[int]] = {}
    for place, (call, source) in enumerate(candidates):
        if source.size == tensor.size:
            by_call.setdefault(call, []).append(place)
    if len(by_call) < 2:
        return None
    limit = _NEAR * float(np.linalg.norm(tensor.reshape(-1)))
    for number, places in enumerate(_choices(list(by_call.values()))):
        if number >= _MAX_SUMS:
            break
        total = sum(candidates[place][1].reshape(-1) for place in places)
        if float(np.linalg.norm(total - tensor.reshape(-1))) <= limit:
            return View(places, lambda arrays: np.asarray(sum(array.reshape(shape) for array in arrays)))
    return None


def _choices(by_call: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """Yield one or both results of each call: a call may have been given the tensor twice."""
    yield from product(*by_call)
    if sum(map(len, by_call)) > len(by_call):
        yield tuple(place for places in by_call for place in places)
