"""Statistics of the demo's training on many ranks, in memory: as its dump of statistics has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from precision_tool.lib.data.dump_names import flatten
from precision_tool.lib.data.dumped_ops import DumpedOp
from precision_tool.lib.demo.device import Step, Value
from precision_tool.lib.demo.ranks import Training, fault_of_ranks
from precision_tool.lib.diagnose.replica_count import StepVotes, count_votes
from precision_tool.lib.diagnose.replica_votes import Epochs, Vote, votes_of
from precision_tool.lib.diagnose.study_statistics import LeafStatistics, of_ops
from precision_tool.lib.model.tensor import TensorStatistics


def statistics_of(array: Any) -> TensorStatistics:
    """What a dump tells of an array."""
    wide = np.asarray(array, np.float64)
    finite = np.isfinite(wide).all()
    return TensorStatistics(
        path="", dtype=str(array.dtype), shape=array.shape, nbytes=array.nbytes, count=array.size,
        maximum=float(wide.max()), minimum=float(wide.min()), mean=float(wide.mean()) if finite else None,
        nan_count=int(np.isnan(wide).sum()), positive_inf_count=int(np.isposinf(wide).sum()),
        negative_inf_count=int(np.isneginf(wide).sum()),
        l2_norm=float(np.sqrt(np.square(wide).sum())) if finite else None,
    )  # fmt: skip


def device(value: Value) -> Any:
    return value.stored


def benchmark(value: Value) -> Any:
    return np.asarray(value.reference)


def dumped(ops: Sequence[Step], side: Any = device) -> list[DumpedOp]:
    """What a rank's step has dumped."""
    return [
        DumpedOp(
            name=flatten(one.op.name),
            op_type=one.op.type,
            timestamp=0,
            inputs={slot: statistics_of(side(value)) for slot, value in enumerate(one.inputs)},
            outputs={slot: statistics_of(side(value)) for slot, value in enumerate(one.outputs)},
        )
        for one in ops
        if one.dumped
    ]


def votes_on(steps: Sequence[Step], ops: Sequence[DumpedOp]) -> list[Vote]:
    """The votes of a rank's step."""
    by_name = {op.name: op for op in ops}
    files = [SimpleNamespace(name=SimpleNamespace(op_name=op.name, op_type=op.op_type)) for op in ops]
    index: Any = SimpleNamespace(leaf=SimpleNamespace(files=files), names_by_time=lambda: [*by_name], op=by_name.get)
    graph: Any = SimpleNamespace(ops=[step.op for step in steps])
    return votes_of(index, graph, Epochs([(op.name, op.op_type, number) for number, op in enumerate(ops)]))


def trained(
    ranks: int,
    steps: int,
    fault: str = "none",
    *,
    seed: int,
    fault_step: int = 0,
    fault_rank: int | None = None,
    **options: Any,
) -> Iterator[tuple[list[LeafStatistics], dict[int, LeafStatistics], StepVotes]]:
    """The statistics of all ranks by step, those that a benchmark of all ranks would have, and the votes."""
    training = Training(
        ranks=ranks,
        steps=steps,
        seed=seed,
        fault=fault_of_ranks(fault),
        fault_step=fault_step,
        fault_rank=fault_rank,
        **options,
    )
    taken: defaultdict[int, list[Step]] = defaultdict(list)
    for step, _ in training.run(lambda rank, _, done: taken[rank].append(done)):
        ops = [dumped(taken[rank]) for rank in range(ranks)]
        leaves = [of_ops(ops[rank], step, rank) for rank in range(ranks)]
        golden = {rank: of_ops(dumped(taken[rank], benchmark), step, rank) for rank in range(ranks)}
        votes = count_votes(step, [(rank, "n", votes_on(taken[rank], ops[rank])) for rank in range(ranks)])
        taken.clear()
        yield leaves, golden, votes
