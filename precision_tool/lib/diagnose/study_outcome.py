"""What a worker says of one leaf, as values that a journal keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from precision_tool.lib.diagnose.verdict_model import Verdict
from precision_tool.lib.messages import Message


class Role(StrEnum):
    """Why replicas must agree on a tensor."""

    #: It was put out by a communication op that gives every rank the same.
    COLLECTIVE = "collective"
    #: It is a variable that an optimizer has updated, or what it was updated by.
    UPDATE = "update"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMeans:
    """Means, and roots of the mean squares, of consecutive parts of a tensor; `rounding` is that of its type."""

    means: tuple[float, ...]
    sizes: tuple[float, ...]
    rounding: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """Hashes of the tensors, by slot, that one rank has of an op whose results must be the same on all replicas.

    `number` is the op's place in the order of execution, `epoch` how many communication ops ran before it. `group` is
    the communication group, "" where the graph does not tell. `fed` and `came` are, by slot, what an all-reduce
    added up and what came out.
    """

    op: str
    type: str
    role: Role
    number: int
    epoch: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    group: str = ""
    input_means: tuple[BlockMeans, ...] = ()
    output_means: tuple[BlockMeans, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstOp:
    """The op that the comparison alone names: `kind` is that of the finding."""

    op: str
    type: str
    kind: str
    number: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafCounts:
    """A leaf in numbers; one that could not be worked on has a `failure` and nothing else.

    `rows`, `compared`, `unreadable` and `below` count tensors; `bad` those with NaN or Inf. `lack` says why there is no
    graph, without which nothing is recomputed. `network` tells graphs apart: replicas have the same.
    """

    failure: Message | None = None
    rows: int = 0
    compared: int = 0
    unreadable: int = 0
    below: int = 0
    bad: int = 0
    first_bad: str = ""
    network: str = ""
    lack: Message | None = None
    #: Whether its ops were recomputed, or would have been if that had been possible.
    judged: bool = False

    def counts(self) -> dict[str, Any]:
        """Return the fields of this class by name."""
        return {name: getattr(self, name) for name in COUNTS}


COUNTS = tuple(item.name for item in fields(LeafCounts))


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafOutcome(LeafCounts):
    """Outcome of one leaf.

    `epochs` has, by suspect of the verdict, how many communication ops ran before it.
    """

    graph: str = ""
    #: N of npu/debug_N that it is of; None where it is of none.
    run: int | None = None
    first: FirstOp | None = None
    verdict: Verdict | None = None
    epochs: Mapping[str, int] | None = None
    votes: tuple[Vote, ...] = ()
