"""The plan of a study: which leaf is compared with what, and how the work is cut into tasks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import cache
from itertools import groupby, zip_longest
from pathlib import Path

from precision_tool.lib.io.files import read_bytes
from precision_tool.lib.native.library import description
from precision_tool.lib.settings import DEFAULT_THRESHOLD
from precision_tool.lib.study.beside import NOTHING, Beside
from precision_tool.lib.study.leaves import StudyLeaf

#: Bytes of a task: large enough that handing it over costs nothing, small enough that losing one does not hurt.
TASK_BYTES = 256 << 20
#: Leaves of a task at most.
_TASK_LEAVES = 64


@cache
def made_by() -> str:
    """What changes when leaves may be judged in another way, so that what a journal keeps is done again.

    That is this package's code, and the kernel, whose sums differ in the last digits.
    """
    package = Path(__file__).parents[1]
    digest = hashlib.sha256(description().encode())
    for path in sorted(package.rglob("*.py")):
        digest.update(read_bytes(str(path)))
    return digest.hexdigest()


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

    threshold: float = DEFAULT_THRESHOLD
    graph: str | None = None
    #: Recompute only where the comparison shows something.
    only_suspects: bool = False

    @property
    def digest(self) -> str:
        """What tells these options from others in a journal."""
        return hashlib.sha256(json.dumps([made_by(), asdict(self)], sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafPlan:
    """A leaf, the folder that it is compared with ("": none), and what is beside it.

    `fingerprint` changes when anything does that the result depends on, `benchmark_print` when the benchmark does.
    """

    leaf: StudyLeaf
    benchmark: str = ""
    benchmark_print: str = ""
    fingerprint: str = ""
    beside: Beside = NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Leaves for one worker. It carries paths and plans only. `judges`: whether they are recomputed too.

    `cache` is a folder in which parsed graphs are kept, "" for none. `workers` share the work of each leaf,
    where there are fewer leaves than workers. The tensors and ops of a leaf that is `shared` go to all workers: it is
    so large that the others would wait for the one that had it.
    """

    leaves: tuple[LeafPlan, ...]
    options: LeafOptions = field(default_factory=LeafOptions)
    judges: bool = True
    cache: str = ""
    workers: int = 1
    shared: bool = False

    @property
    def nbytes(self) -> int:
        """About how many bytes are read."""
        return sum(one.leaf.nbytes for one in self.leaves)

    def alone(self) -> Iterator[Task]:
        """One task for each leaf."""
        for one in self.leaves:
            yield replace(self, leaves=(one,))


def batches(
    plans: Iterable[LeafPlan], task_bytes: int = TASK_BYTES, host_of: Callable[[str], str] = lambda path: ""
) -> Iterator[tuple[LeafPlan, ...]]:
    """Leaves in order of steps, of one step and one host each batch, of about `task_bytes`.

    `host_of` says whose workers read a leaf's path. Hosts take turns, so that all have something to do.
    """
    for _, of_step in groupby(plans, key=lambda one: one.leaf.step):
        by_host: dict[str, list[LeafPlan]] = {}
        for one in of_step:
            by_host.setdefault(host_of(one.leaf.path), []).append(one)
        for turn in zip_longest(*(_cut(of_host, task_bytes) for of_host in by_host.values())):
            yield from filter(None, turn)


def _cut(plans: Iterable[LeafPlan], task_bytes: int) -> Iterator[tuple[LeafPlan, ...]]:
    batch: list[LeafPlan] = []
    nbytes = 0
    for one in plans:
        if batch and (nbytes + one.leaf.nbytes > task_bytes or len(batch) >= _TASK_LEAVES):
            yield tuple(batch)
            batch, nbytes = [], 0
        batch.append(one)
        nbytes += one.leaf.nbytes
    if batch:
        yield tuple(batch)


def digest_of(parts: Iterable[str]) -> str:
    """One text for several."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()
