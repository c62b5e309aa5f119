"""What recomputing said of one op, as results keep it and lists show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from precision_tool.lib.messages import Message
from precision_tool.lib.model.records import record


@record(frozen=True, slots=True, kw_only=True)
class OpVerdict:
    """One op of a run that was judged alone. `number` is its place in the order of execution.

    `state` is "right", "wrong", "doubtful" or "not_recomputed", with the `reason` of the last two, "" for none. The
    errors are relative distances of the output `slot`, the farthest beyond rounding: `own_error` of what its inputs do
    not explain, `rounding` of what rounding makes of it, `inherited` of what came with its inputs, `benchmark_own` the
    benchmark's own; None where that is not known. `worst` is the largest error of an element over its rounding, of
    which `slack` is allowed. `overflowed` elements of it have a true result beyond the type's range, up to `largest`.
    `output_types` are those of the graph.
    """

    name: str
    type: str
    number: int
    state: str
    reason: Message | str = ""
    slot: int | None = None
    own_error: float | None = None
    rounding: float | None = None
    inherited: float | None = None
    benchmark_own: float | None = None
    worst: float | None = None
    slack: float | None = None
    overflowed: int = 0
    largest: float | None = None
    how: Sequence[str] = ()
    passes: Sequence[str] = ()
    output_types: Sequence[str] = ()
    #: Where only some elements of the output were recomputed: how many, of how many, and whether all rows were summed.
    looked_at: int | None = None
    size: int | None = None
    is_summed: bool = False
    #: Whether its own dump lacks inputs, so that what others have of them was taken.
    is_fed_by_others: bool = False

    @property
    def is_wrong(self) -> bool:
        """Whether it computes wrong by itself."""
        return self.state == "wrong"

    @property
    def is_decided(self) -> bool:
        """Whether recomputing it said that it is right, or wrong."""
        return self.state in ("right", "wrong")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A tensor that nothing in the graph computes, data or a variable, beside the other side's.

    `different` of its `size` elements are farther off than the rounding of their type, all of it by the relative
    `distance`. `seen_in` is the op whose dump has it.
    """

    different: int
    size: int
    distance: float = 0.0
    seen_in: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """One element of an output, in the order of the script: of the NPU, of the benchmark, and as the op's inputs say.

    `benchmark` is None where it has none, `recomputed` where nothing computes it. `is_worst` tells that it was chosen
    as one of the farthest off, not of the first.
    """

    place: tuple[int, ...]
    npu: float | str
    recomputed: float | str | None = None
    benchmark: float | str | None = None
    is_worst: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """An op that was judged by itself, with some elements of the output that is farthest off.

    `judged` is None of one that computes nothing, which has a `source`.
    """

    judged: OpVerdict | None = None
    source: Source | None = None
    elements: Sequence[Element] = ()
