"""The ten metrics and both summaries as a pass."""

from __future__ import annotations

from dataclasses import dataclass

from precision_tool.lib.engine.compiled import kernel_of_thread
from precision_tool.lib.engine.metrics import finish
from precision_tool.lib.engine.passes import Pass
from precision_tool.lib.engine.stream import Block, PairStream
from precision_tool.lib.engine.sums import KlSums, Sums
from precision_tool.lib.model.comparison import Metrics, Summary


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
        size = 1
        for extent in shape:
            size *= extent
        if size and stream.size == 2 * size:  # complex: the last index tells real from imaginary
            shape = (*shape, 2)
        return MetricsResult(*finish(state, second or KlSums(), shape))


class SecondPass(Pass[KlSums, KlSums]):
    """What can only be added up when the sums of the whole are known: the KL divergence, and extreme values."""

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
