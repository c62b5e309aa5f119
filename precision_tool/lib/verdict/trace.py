"""How an error flows: which ops stand behind which, and how far each tensor of the run is from the benchmark."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from precision_tool.lib.model.graph import Op
from precision_tool.lib.verdict.rounding import norm
from precision_tool.lib.verdict.values import Root, RunValues


class Flow:
    """The ops before and behind an op, by the tensors that run between them."""

    def __init__(self, values: RunValues) -> None:
        self._values = values
        self._next: dict[int, list[Op]] = {}
        for op in values.ops:
            for root in values.producers(op):
                self._next.setdefault(id(root.op), []).append(op)

    def behind(self, ops: Iterable[Op]) -> dict[int, Op]:
        """Every op that is fed, directly or not, by one of `ops`, by id."""
        return _reached(ops, lambda op: self._next.get(id(op), ()))

    def before(self, op: Op) -> dict[int, Op]:
        """Every op that feeds `op`, directly or not, by id."""
        return _reached([op], lambda one: [root.op for root in self._values.producers(one)])


def _reached(ops: Iterable[Op], next_of: Callable[[Op], Iterable[Op]]) -> dict[int, Op]:
    """Every op that one way leads to from `ops`, which are among them only if it leads back."""
    found: dict[int, Op] = {}
    waiting = [one for op in ops for one in next_of(op)]
    while waiting:
        op = waiting.pop()
        if id(op) not in found:
            found[id(op)] = op
            waiting += next_of(op)
    return found


@dataclass(frozen=True, slots=True)
class Distance:
    """A tensor against the benchmark's: relative distance, cosine, and their uniform factor with its residual."""

    relative: float
    cosine: float
    factor: float
    residual: float
    largest: float


def distance(values: RunValues, root: Root) -> Distance | None:
    """How far a tensor is from the benchmark's; None where one of the two is not there."""
    golden = values.load_benchmark(root)
    mine = values.load_root(root) if golden is not None else None
    if golden is None or mine is None or golden.input.array.size != mine.input.array.size:
        return None
    if golden.input.array.dtype.kind == "c" or mine.input.array.dtype.kind == "c":
        return None
    x = np.asarray(mine.input.array, np.float64).reshape(-1)
    y = np.asarray(golden.input.array, np.float64).reshape(-1)
    both = np.isfinite(x) & np.isfinite(y)
    x, y = x[both], y[both]
    sizes = norm(x), norm(y)
    if not sizes[1]:
        return Distance(0.0 if not sizes[0] else np.inf, float(not sizes[0]), 1.0, 0.0, 0.0)
    with np.errstate(all="ignore"):
        dot = float(x @ y)
        factor = dot / sizes[1] ** 2
        residual = norm(x - factor * y) / sizes[0] if sizes[0] else 1.0
        relative = norm(x - y) / sizes[1]
        cosine = dot / (sizes[0] * sizes[1]) if sizes[0] else 0.0
    return Distance(relative, cosine, factor, residual, float(np.abs(y).max(initial=0.0)))
