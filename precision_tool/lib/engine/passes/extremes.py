"""How near the NPU's values come to the limit of their type, as a pass.

Most tensors stay below it, which the largest value alone tells; only of the others values are counted, in a second
round.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from precision_tool.lib.engine.compiled import kernel_of_thread
from precision_tool.lib.engine.passes import Pass
from precision_tool.lib.engine.stream import Block, PairStream


@dataclass(slots=True)
class Range:
    """The smallest and the largest finite value so far."""

    low: float = inf
    high: float = -inf


class AtLimitPass(Pass[Range, int]):
    """How many of the NPU's values are the largest number of their type, of either sign."""

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def start(self, stream: PairStream) -> Range:
        return Range()

    def update(self, state: Range, block: Block) -> None:
        low, high = block.npu_range or kernel_of_thread().finite_range(block.npu)
        state.low, state.high = min(state.low, low), max(state.high, high)

    def merge(self, state: Range, other: Range) -> None:
        state.low, state.high = min(state.low, other.low), max(state.high, other.high)

    def second(self, state: Range) -> CountPass | None:
        return CountPass(self.limit) if max(-state.low, state.high) >= self.limit else None

    def finish(self, state: Range, second: int | None, stream: PairStream) -> int:
        return second or 0


class CountPass(Pass[list[int], int]):
    """How many values are of this size."""

    def __init__(self, size: float) -> None:
        self.size = size

    def start(self, stream: PairStream) -> list[int]:
        return [0]

    def update(self, state: list[int], block: Block) -> None:
        state[0] += int(np.count_nonzero(np.abs(block.npu) == self.size))

    def merge(self, state: list[int], other: list[int]) -> None:
        state[0] += other[0]

    def finish(self, state: list[int], second: None, stream: PairStream) -> int:
        return state[0]
