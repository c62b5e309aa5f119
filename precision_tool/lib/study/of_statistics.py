"""The leaves of a study that were dumped as statistics, judged one step after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from math import hypot, sqrt
from typing import Any

import numpy as np

from precision_tool.lib.model.tensor import TensorStatistics
from precision_tool.lib.sources.names import flatten
from precision_tool.lib.study.evidence import Evidence
from precision_tool.lib.study.exact import edges
from precision_tool.lib.study.leaf_statistics import LeafStatistics, OpStatistics, of_ops
from precision_tool.lib.study.packed import Columns
from precision_tool.lib.study.states import LeafState
from precision_tool.lib.study.statistics import LookedAt, StatisticsJudge, Suspicion, suspicions

#: What of a leaf's rows tells of its benchmark.
NEEDED = ("op", "slot", "benchmark_count", "benchmark_mean", "benchmark_std")
#: Of a study so many suspicions are kept; the first is what counts.
_KEPT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class OpBytes:
    """An op of the network: its place in the order of execution, the bytes of a whole dump of it, and what feeds it."""

    number: int
    name: str
    type: str
    nbytes: int
    producers: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StatisticsFound:
    """What the statistics of a study tell: the suspicions, the earliest first, and the ops that could be dumped whole.

    `ops` are by flattened name. `leaves` and `tensors` count what was looked at, `unread` are files that could not be.
    """

    suspicions: tuple[Suspicion, ...]
    leaves: int
    tensors: int
    ranks: tuple[int, ...]
    ops: Mapping[str, OpBytes] = field(repr=False)
    unread: tuple[str, ...] = field(default=(), repr=False)

    def to_dict(self) -> dict[str, Any]:
        """It as JSON."""
        found = [
            {
                "step": one.step, "op": one.op, "type": one.type, "ranks": list(one.ranks), "right": list(one.right),
                "unknown": list(one.unknown),
                "certain": one.is_certain, "kinds": [str(kind) for kind in one.kinds],
                "evidence": [{**_plain(asdict(each)), "kind": str(each.kind)} for each in one.evidence],
            }
            for one in self.suspicions
        ]  # fmt: skip
        return {"suspicions": found, "leaves": self.leaves, "tensors": self.tensors, "unread": list(self.unread)}


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """NaN, and other numbers that JSON has not, are null."""
    return {
        name: None if isinstance(value, float) and not np.isfinite(value) else value for name, value in values.items()
    }


def judge_statistics(
    states: Sequence[LeafState],
    columns: Callable[[LeafState, Sequence[str]], Columns | None],
    statistics: Callable[[LeafState], LeafStatistics | None],
) -> StatisticsFound | None:
    """The evidence in all leaves, in order, that were dumped as statistics; None if none was.

    `columns` gives a leaf's rows, which tell its benchmark's tensors; only one of its own step and rank counts.
    `statistics` gives what workers read of a leaf; None for one that failed.
    """
    told = [state for state in states if state.leaf.statistics]
    if not told:
        return None
    told.sort(key=lambda state: (state.leaf.step, state.leaf.program, state.leaf.rank))
    judges: dict[str, StatisticsJudge] = {}
    evidence: list[Evidence] = []
    looked_at: dict[int, list[LookedAt]] = {}
    runs: dict[int, frozenset[str]] = {}  # of the names that ranks with one network share
    ops: dict[str, OpBytes] = {}
    unread: list[str] = []
    tensors = 0
    for (step, program), of_step in groupby(told, key=lambda state: (state.leaf.step, state.leaf.program)):
        leaves, golden = [], {}
        judge = judges.setdefault(program, StatisticsJudge())
        for state in of_step:
            found = statistics(state)
            if found is None:
                unread.append(state.failure)
                continue
            leaf = judge.admitted(found)
            leaves.append(leaf)
            tensors += len(leaf.names.op_of)
            unread += leaf.unread
            rows = columns(state, NEEDED) if state.is_own else None
            if rows is not None:
                benchmark = benchmark_of(rows, step, leaf.rank)
                if benchmark.names.ops:
                    golden[leaf.rank] = benchmark
        for leaf in leaves:
            of_names = runs.setdefault(id(leaf.names), frozenset(leaf.names.ops))
            looked_at.setdefault(step, []).append(LookedAt(leaf.rank, of_names, leaf.rank in golden))
            if not set(leaf.names.ops) <= ops.keys():
                ops |= op_bytes(leaf)
        evidence += judge.step(leaves, golden)
    return StatisticsFound(
        suspicions=tuple(suspicions(evidence, looked_at)[:_KEPT]), leaves=len(told), tensors=tensors, ops=ops,
        ranks=tuple(sorted({one.rank for of_step in looked_at.values() for one in of_step})), unread=tuple(unread),
    )  # fmt: skip


def benchmark_of(rows: Columns, step: int, rank: int) -> LeafStatistics:
    """The benchmark's tensors of a leaf's rows, as if they had been dumped as statistics."""
    by_op: dict[str, dict[str, dict[int, TensorStatistics]]] = {}
    means, deviations = (np.asarray(rows[f"benchmark_{name}"], np.float64).tolist() for name in ("mean", "std"))
    counts = np.asarray(rows["benchmark_count"], np.int64).tolist()
    for op, slot, count, mean, std in zip(rows["op"], rows["slot"], counts, means, deviations, strict=True):
        side, _, number = str(slot).partition(":")
        if number.isdigit() and np.isfinite(mean) and np.isfinite(std):
            by_op.setdefault(flatten(str(op)), {}).setdefault(side, {})[int(number)] = TensorStatistics(
                path="", dtype="float32", shape=(count,), count=count, mean=mean, l2_norm=sqrt(count) * hypot(mean, std)
            )
    told = [
        OpStatistics(name=name, type="", inputs=sides.get("input", {}), outputs=sides.get("output", {}))
        for name, sides in by_op.items()
    ]
    return of_ops(told, step, rank)


def op_bytes(leaf: LeafStatistics) -> dict[str, OpBytes]:
    """The ops of a leaf, each with the bytes of its inputs and outputs and the ops that put out what it was fed."""
    names = leaf.names
    totals = np.zeros(len(names.ops), np.int64)
    np.add.at(totals, names.op_of, names.nbytes)
    producers: dict[int, list[str]] = {}
    for fed, put_out in zip(*edges([leaf]), strict=True):
        producers.setdefault(int(names.op_of[fed]), []).append(names.ops[names.op_of[put_out]])
    return {
        name: OpBytes(
            number=number, name=name, type=names.types[number], nbytes=int(totals[number]),
            producers=tuple(dict.fromkeys(producers.get(number, ()))),
        )
        for number, name in enumerate(names.ops)
    }  # fmt: skip
