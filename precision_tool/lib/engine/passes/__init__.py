"""What is found out about a pair of tensors in one go over both: a pass each, all fed the same blocks.

A round feeds every pass the blocks of the stream. A pass that then knows what it needs (the largest error, the sums of
the whole) asks for a second round with another pass. Tensors that are shared out in parts have a state a part, merged
in the order of the parts. A new measurement is a class here and a line where the passes of a comparison are listed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from precision_tool.lib.engine.scheduler import check_stopping
from precision_tool.lib.engine.stream import Block, PairStream

S = TypeVar("S")
R = TypeVar("R")


class Pass(ABC, Generic[S, R]):
    """One measurement over the blocks of a pair. It goes to other processes, and so does its state."""

    #: False for one that takes the tensor whole: it is never shared out in parts.
    splits = True

    @abstractmethod
    def start(self, stream: PairStream) -> S:
        """The state before the first block."""

    @abstractmethod
    def update(self, state: S, block: Block) -> None:
        """Adds a block. Its arrays are overwritten by the next one."""

    @abstractmethod
    def merge(self, state: S, other: S) -> None:
        """Adds the state of another part of the tensor, which lies behind."""

    def second(self, state: S) -> Pass[Any, Any] | None:
        """The pass of the second round, given the complete state of the first; None if none is needed."""
        return None

    @abstractmethod
    def finish(self, state: S, second: Any, stream: PairStream) -> R:
        """The result, given the finished result of the second round (None without one)."""


#: Called with the items of a block when it is done.
TellItems = Callable[[int], None]


def update_all(
    passes: Sequence[Pass[Any, Any]], states: Sequence[Any], blocks: Iterable[Block], tell: TellItems | None = None
) -> None:
    """One round: feeds blocks to passes."""
    for block in blocks:
        check_stopping()
        for one, state in zip(passes, states, strict=True):
            one.update(state, block)
        if tell is not None:
            tell(block.npu.size)


@dataclass(slots=True)
class Rounds:
    """The states of passes over one pair: after the first round `second`, then `results`."""

    passes: Sequence[Pass[Any, Any]]
    states: list[Any]

    def second(self) -> list[tuple[int, Pass[Any, Any]]]:
        """The passes of the second round, each with the place of the pass that asked for it."""
        found = [(at, one.second(state)) for at, (one, state) in enumerate(zip(self.passes, self.states, strict=True))]
        return [(at, follow) for at, follow in found if follow is not None]

    def results(
        self, stream: PairStream, seconds: Sequence[tuple[int, Pass[Any, Any]]], states: list[Any]
    ) -> list[Any]:
        """What every pass found."""
        more = {at: follow.finish(state, None, stream) for (at, follow), state in zip(seconds, states, strict=True)}
        return [
            one.finish(state, more.get(at), stream)
            for at, (one, state) in enumerate(zip(self.passes, self.states, strict=True))
        ]


#: Boxes `start` to `stop` of a stream: a part of the tensor.
Cut = tuple[int, int]


def run_passes(
    stream: PairStream, passes: Sequence[Pass[Any, Any]], tell: TellItems | None = None, cuts: Sequence[Cut] = ()
) -> list[Any]:
    """Runs passes over a whole stream; a small one is read and decoded once for both rounds.

    `cuts` are the parts that the tensor would be shared out in, all of its boxes: with them the results are those of
    parts that are merged, to the last bit.
    """
    cuts = cuts or [(0, len(stream.boxes))]
    kept: dict[Cut, list[Block]] = {}

    def blocks(cut: Cut) -> Iterable[Block]:
        if not stream.is_kept:
            return stream.blocks(*cut)
        return kept[cut] if cut in kept else _noted(stream.blocks(*cut, keep=True), kept.setdefault(cut, []))

    def one_round(asked: Sequence[Pass[Any, Any]]) -> list[Any]:
        states = [[one.start(stream) for one in asked] for _ in cuts]
        for cut, each in zip(cuts, states, strict=True):
            update_all(asked, each, blocks(cut), tell)
        return merge_all(asked, states)

    rounds = Rounds(passes, one_round(passes))
    seconds = rounds.second()
    states = one_round([follow for _, follow in seconds]) if seconds else []
    return rounds.results(stream, seconds, states)


def _noted(blocks: Iterable[Block], kept: list[Block]) -> Iterable[Block]:
    for block in blocks:
        kept.append(block)
        yield block


def merge_all(passes: Sequence[Pass[Any, Any]], parts: Iterable[list[Any]]) -> list[Any]:
    """The states of a whole tensor from those of its parts, in their order."""
    whole: list[Any] = []
    for states in parts:
        if not whole:
            whole = states
            continue
        for one, state, other in zip(passes, whole, states, strict=True):
            one.merge(state, other)
    return whole
