"""What is found out about a pair of tensors in one go over both: a pass each, all given the same blocks.

A round gives every pass the blocks of the stream. A pass that then knows what it needs (the largest error, the sums of
the whole) asks for a second round with another pass. Tensors that are shared out in parts have a state a part, merged
in the order of the parts. A new measurement is a class here and a line where the passes of a comparison are listed.

Here are the passes of the ten metrics and both summaries, and of how near the NPU's values come to the limit of their
type: most tensors stay below it, which the largest value alone tells; only of the others values are counted, in a
second round.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Any, Generic, TypeVar

import numpy as np

from precision_tool.lib.compare.compiled import kernel_of_thread
from precision_tool.lib.compare.pair_sums import KlSums, Sums, finish
from precision_tool.lib.compare.scheduler import check_stopping
from precision_tool.lib.compare.stream import Block, PairStream
from precision_tool.lib.model.comparison import Metrics, Summary

S = TypeVar("S")
R = TypeVar("R")


class Pass(ABC, Generic[S, R]):
    """One measurement over the blocks of a pair. It goes to other processes, and so does its state."""

    #: False for one that takes the tensor whole: it is never shared out in parts.
    splits = True

    @abstractmethod
    def start(self, stream: PairStream) -> S:
        """Return the state before the first block."""

    @abstractmethod
    def update(self, state: S, block: Block) -> None:
        """Add a block. Its arrays are overwritten by the next one."""

    @abstractmethod
    def merge(self, state: S, other: S) -> None:
        """Add the state of another part of the tensor, which lies behind."""

    def second(self, state: S) -> Pass[Any, Any] | None:
        """Return the pass of the second round, given the complete state of the first; None if none is needed."""
        return None

    @abstractmethod
    def finish(self, state: S, second: Any, stream: PairStream) -> R:
        """Return the result, given the finished result of the second round (None without one)."""


#: Called with the items of a block when it is done.
TellItems = Callable[[int], None]


def update_all(
    passes: Sequence[Pass[Any, Any]],
    states: Sequence[Any],
    blocks: Iterable[Block],
    count_items: TellItems | None = None,
) -> None:
    """One round: feeds blocks to passes."""
    for block in blocks:
        check_stopping()
        for each, state in zip(passes, states, strict=True):
            each.update(state, block)
        if count_items is not None:
            count_items(block.npu.size)


def run_rounds(
    passes: Sequence[Pass[Any, Any]], stream: PairStream, run_round: Callable[[Sequence[Pass[Any, Any]]], list[Any]]
) -> list[Any]:
    """Return the result of every pass; `run_round` gives all blocks to some passes and returns their states.

    A second round has those that passes of the first one ask for.
    """
    states = run_round(passes)
    asked_for = ((at, each.second(state)) for at, (each, state) in enumerate(zip(passes, states, strict=True)))
    seconds = {at: second for at, second in asked_for if second is not None}
    second_states = run_round([*seconds.values()]) if seconds else []
    finished = {
        at: second.finish(state, None, stream)
        for (at, second), state in zip(seconds.items(), second_states, strict=True)
    }
    return [
        each.finish(state, finished.get(at), stream)
        for at, (each, state) in enumerate(zip(passes, states, strict=True))
    ]


#: Boxes `start` to `stop` of a stream: a part of the tensor.
Cut = tuple[int, int]


def run_passes(
    stream: PairStream, passes: Sequence[Pass[Any, Any]], count_items: TellItems | None = None, cuts: Sequence[Cut] = ()
) -> list[Any]:
    """Run passes over a whole stream; a small one is read and decoded once for both rounds.

    `cuts` are the parts that the tensor would be shared out in, all of its boxes: with them the results are those of
    parts that are merged, to the last bit.
    """
    cuts = cuts or [(0, len(stream.boxes))]
    stored: dict[Cut, list[Block]] = {}

    def blocks(cut: Cut) -> Iterable[Block]:
        if not stream.is_kept:
            return stream.blocks(*cut)
        return stored[cut] if cut in stored else _noted(stream.blocks(*cut, keep=True), stored.setdefault(cut, []))

    def run_round(needed: Sequence[Pass[Any, Any]]) -> list[Any]:
        states = [[each_pass.start(stream) for each_pass in needed] for _ in cuts]
        for cut, each in zip(cuts, states, strict=True):
            update_all(needed, each, blocks(cut), count_items)
        return merge_all(needed, states)

    return run_rounds(passes, stream, run_round)


def _noted(blocks: Iterable[Block], stored: list[Block]) -> Iterable[Block]:
    for block in blocks:
        stored.append(block)
        yield block


def merge_all(passes: Sequence[Pass[Any, Any]], parts: Iterable[list[Any]]) -> list[Any]:
    """Return the states of a whole tensor from those of its parts, in their order."""
    whole: list[Any] = []
    for states in parts:
        if not whole:
            whole = states
            continue
        for each, state, other in zip(passes, whole, states, strict=True):
            each.merge(state, other)
    return whole


# --- the metrics ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MetricsResult:
    """The metrics, None of empty tensors, and the summaries of both sides."""

    metrics: Metrics | None
    npu: Summary
    golden: Summary


class MetricsPass(Pass[Sums, MetricsResult]):
    """Sums over both sides; without `divergence` the round that only the KL divergence needs is left out."""

    def __init__(self, divergence: bool = True) -> None:
        self.divergence = divergence

    def start(self, stream: PairStream) -> Sums:
        return Sums()

    def update(self, state: Sums, block: Block) -> None:
        block.npu_range = kernel_of_thread().add_block(state, block.npu, block.golden, block.position)

    def merge(self, state: Sums, other: Sums) -> None:
        state.add(other)

    def second(self, state: Sums) -> SecondPass | None:
        needed = (self.divergence and not state.mismatches) or state.is_extreme
        return SecondPass(state) if needed else None

    def finish(self, state: Sums, second: KlSums | None, stream: PairStream) -> MetricsResult:
        for name in ("max_error_at", "first_mismatch"):
            setattr(state, name, stream.flat_position(getattr(state, name)))
        shape = stream.pair.error_shape or (1,)  # places of scalars are told as in their shape in the result
        if stream.size == 2 * prod(shape) > 0:  # complex: the last index tells real from imaginary
            shape = (*shape, 2)
        return MetricsResult(*finish(state, second or KlSums(), shape))


class SecondPass(Pass[KlSums, KlSums]):
    """The sums that need the sums of the whole: the KL divergence, and extreme values."""

    def __init__(self, first: Sums) -> None:
        self.first = first

    def start(self, stream: PairStream) -> KlSums:
        return KlSums()

    def update(self, state: KlSums, block: Block) -> None:
        kernel_of_thread().add_second(state, self.first, block.npu, block.golden)

    def merge(self, state: KlSums, other: KlSums) -> None:
        state.add(other)

    def finish(self, state: KlSums, second: None, stream: PairStream) -> KlSums:
        return state


# --- the limit of the NPU's type --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Range:
    """The smallest and the largest finite value so far."""

    low: float = inf
    high: float = -inf


class AtLimitPass(Pass[Range, int]):
    """The number of the NPU's values that are the largest number of their type, of either sign."""

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
    """The number of values of one size."""

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
