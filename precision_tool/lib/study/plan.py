"""The plan of a study: which leaf is compared with what, and how the work is cut into tasks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum

from precision_tool.lib.study.leaves import StudyLeaf

#: What changes when leaves are judged in another way, so that what a journal keeps is done again.
METHOD = 2
#: Bytes of a task: large enough that handing it over costs nothing, small enough that losing one does not hurt.
TASK_BYTES = 256 << 20
#: Leaves of a task at most.
_TASK_LEAVES = 64


class Judging(StrEnum):
    """Which leaves are recomputed, op by op, beside being compared."""

    #: Those of every step up to the first in which something computes wrong.
    FIRST = "first"
    #: Those with a tensor that is off, or not finite; without a benchmark all.
    SUSPECTS = "suspects"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafOptions:
    """How each leaf is compared and judged."""

    threshold: float = 0.98
    graph: str | None = None
    #: Recompute only where the comparison shows something.
    only_suspects: bool = False

    @property
    def digest(self) -> str:
        """What tells these options from others in a journal."""
        return hashlib.sha256(json.dumps([METHOD, asdict(self)], sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafPlan:
    """A leaf and the folder that it is compared with ("": none).

    `fingerprint` changes when anything does that the result depends on, `benchmark_print` when the benchmark does.
    """

    leaf: StudyLeaf
    benchmark: str = ""
    benchmark_print: str = ""
    fingerprint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Leaves for one worker. It carries paths and plans only. `judges`: whether they are recomputed too.

    `cache` is a folder in which parsed graphs are kept, "" for none. `workers` share the work of each leaf,
    where there are fewer leaves than workers.
    """

    leaves: tuple[LeafPlan, ...]
    options: LeafOptions = field(default_factory=LeafOptions)
    judges: bool = True
    cache: str = ""
    workers: int = 1

    @property
    def nbytes(self) -> int:
        """About how many bytes are read."""
        return sum(one.leaf.nbytes for one in self.leaves)

    def alone(self) -> Iterator[Task]:
        """One task for each leaf."""
        for one in self.leaves:
            yield replace(self, leaves=(one,))


def batches(plans: Sequence[LeafPlan], task_bytes: int = TASK_BYTES) -> Iterator[tuple[LeafPlan, ...]]:
    """Leaves in order, of one step each batch, of about `task_bytes`."""
    batch: list[LeafPlan] = []
    for one in plans:
        full = sum(each.leaf.nbytes for each in batch) + one.leaf.nbytes > task_bytes or len(batch) >= _TASK_LEAVES
        if batch and (full or batch[-1].leaf.step != one.leaf.step):
            yield tuple(batch)
            batch = []
        batch.append(one)
    if batch:
        yield tuple(batch)


def digest_of(parts: Iterable[str]) -> str:
    """One text for several."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()
