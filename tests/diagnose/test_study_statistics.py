"""Statistics first: a clean training accuses nobody, and each kind of fault is told by what it leaves in statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from diagnosing import studied
from hypothesis import given, settings
from hypothesis import strategies as st
from training_statistics import trained

from precision_tool.lib.data.dump_tree import find_run
from precision_tool.lib.data.dumped_ops import DumpedOp, DumpIndex
from precision_tool.lib.demo.ranks import generate_ranks
from precision_tool.lib.diagnose import study as running
from precision_tool.lib.diagnose.replica_count import StepVotes, settled
from precision_tool.lib.diagnose.study_statistics import (
    CERTAIN,
    Evidence,
    EvidenceKind,
    LeafStatistics,
    LookedAt,
    StatisticsJudge,
    Suspicion,
    aligned,
    of_ops,
    pack_statistics,
    read_leaf,
    suspicions,
    unpack_statistics,
    voted,
)
from precision_tool.lib.diagnose.study_table import coded, pack
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError
from precision_tool.lib.model.tensor import TensorStatistics

RANKS = 6


def first(evidence: Sequence[Evidence], ranks: int = RANKS) -> Suspicion:
    looked_at = [LookedAt(rank, frozenset(one.op for one in evidence)) for rank in range(ranks)]
    return suspicions(evidence, dict.fromkeys(range(100), looked_at))[0]


def judged(fault: str, fault_step: int, fault_rank: int | None = None, *, large: bool = False) -> Suspicion:
    judge, found = StatisticsJudge(), []
    options: dict[str, Any] = {"seed": 0, "fault_step": fault_step, "fault_rank": fault_rank}
    options["images"] = (8, 16, 16, 3) if large else (4, 8, 8, 3)
    steps = []
    for leaves, _, votes in trained(RANKS, fault_step + 1, fault, **options):
        found += judge.step(leaves)
        steps.append((leaves, votes))
    return first([*found, *of_votes(steps)])


def of_votes(steps: Sequence[tuple[Sequence[LeafStatistics], StepVotes]]) -> list[Evidence]:
    wrong = settled(votes.sums for _, votes in steps).wrong
    return [
        each
        for leaves, votes in steps
        for each in voted(leaves, votes, [item for item in wrong if item.step == votes.step])
    ]


# ---- a clean run ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_a_clean_training_accuses_nobody(seed: int) -> None:
    judge, steps = StatisticsJudge(), []
    for leaves, golden, votes in trained(5, 3, seed=100 + seed):
        assert judge.step(leaves, golden) == []
        steps.append((leaves, votes))
    assert steps[-1][1].sums.right
    assert of_votes(steps) == []


def drawn(seed: int, ranks: int, steps: int, spread: float, drift: float, tails: bool) -> list[list[LeafStatistics]]:
    """A long chain of ops whose norms differ from rank to rank by chance, and drift from step to step."""
    rng = np.random.default_rng(seed)
    count = 400
    spreads = spread * rng.random(count)
    found = []
    for step in range(steps):
        leaves = []
        for rank in range(ranks):
            noise = rng.standard_t(8, count) if tails else rng.standard_normal(count)
            sizes = np.exp(noise * spreads + drift * step)
            ops = [
                DumpedOp(f"op{i}", "MatMulV2", timestamp=0, outputs={0: told(float(sizes[i]))}) for i in range(count)
            ]
            leaves.append(of_ops(ops, step, rank))
        found.append(leaves)
    return found


def told(
    norm: float, mean: float = 0.0, largest: float = 1.0, dtype: str = "float32", nans: int = 0
) -> TensorStatistics:
    return TensorStatistics(
        path="", dtype=dtype, shape=(64,), nbytes=256, count=64, maximum=largest, minimum=-largest, mean=0.0,
        nan_count=nans, positive_inf_count=0, negative_inf_count=0, l2_norm=norm,
    )  # fmt: skip


@given(
    seed=st.integers(0, 10_000),
    ranks=st.integers(1, 12),
    spread=st.sampled_from([1e-6, 0.01, 0.3, 2.0]),
    drift=st.sampled_from([-0.02, 0.0, 0.02]),
)
@settings(max_examples=20, deadline=None)
def test_chance_accuses_nobody(seed: int, ranks: int, spread: float, drift: float) -> None:
    judge = StatisticsJudge()
    for leaves in drawn(seed, ranks, 4, spread, drift, tails=False):
        assert judge.step(leaves) == []


def test_long_tails_accuse_few_and_never_for_certain() -> None:
    """Logarithms whose tails fall with the eighth power only: by Student's t one tensor in a million is beyond."""
    tensors, accused = 0, []
    for seed in range(12):
        judge = StatisticsJudge()
        for leaves in drawn(seed, 9, 4, 0.3, -0.02, tails=True):
            accused += judge.step(leaves)
            tensors += sum(leaf.sizes.size for leaf in leaves)
    assert tensors > 100_000
    assert len(accused) <= tensors * 3e-5
    assert not [one for one in accused if one.kind in CERTAIN]


# ---- faults --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "op", "kinds"),
    [
        ("nan", "fc1_MatMulfc1_BiasAddfc1_Relu", {EvidenceKind.NAN}),
        ("stomp", "fc1_MatMulfc1_BiasAddfc1_Relu", {EvidenceKind.CHANGED}),
        ("update", "GradientDescent_update_fc1_kernel_ApplyGradientDescent", {EvidenceKind.REPLICAS}),
        (
            "allreduce",
            "NPUDistributedOptimizer_allreduce_conv2_kernel_HcomAllReduce",
            {EvidenceKind.REPLICAS, EvidenceKind.SUM},
        ),
    ],
)
def test_a_device_at_fault(fault: str, op: str, kinds: set[EvidenceKind]) -> None:
    found = judged(fault, 2, 2)
    assert (found.step, found.op, found.ranks, found.right) == (2, op, (2,), (0, 1, 3, 4, 5))
    assert set(found.kinds) == kinds
    assert found.is_certain


@pytest.mark.parametrize(("fault", "kind"), [("nan", EvidenceKind.NAN), ("stomp", EvidenceKind.CHANGED)])
def test_a_kernel_at_fault(fault: str, kind: EvidenceKind) -> None:
    found = judged(fault, 2)
    assert (found.step, found.op, found.kinds) == (2, "fc1_MatMulfc1_BiasAddfc1_Relu", (kind,))
    assert found.ranks == tuple(range(RANKS))


@pytest.mark.parametrize(("rank", "ranks"), [(None, (0, 1, 2, 3, 4, 5)), (2, (2,))])
def test_a_norm_that_jumps(rank: int | None, ranks: tuple[int, ...]) -> None:
    found = judged("fused", 3, rank, large=True)
    assert (found.step, found.op, found.kinds) == (3, "conv2_Conv2Dconv2_BiasAddconv2_Relu", (EvidenceKind.JUMP,))
    assert found.ranks == ranks
    assert not found.is_certain


def test_an_all_reduce_that_leaves_out_a_part_on_all_ranks() -> None:
    found = judged("allreduce", 1, large=True)
    assert found.op == "NPUDistributedOptimizer_allreduce_conv2_kernel_HcomAllReduce"
    assert EvidenceKind.SUM in found.kinds


def test_the_benchmark_tells_of_a_fault_that_was_always_there() -> None:
    judge = StatisticsJudge()
    leaves, golden, _ = next(trained(2, 1, "fused", seed=3, images=(8, 16, 16, 3)))
    assert judge.step(leaves) == []
    found = first(StatisticsJudge().step(leaves, {0: golden[0]}), 2)
    assert (found.op, found.kinds, found.ranks) == (
        "conv2_Conv2Dconv2_BiasAddconv2_Relu", (EvidenceKind.BENCHMARK,), (0,),
    )  # fmt: skip


def against(kind: EvidenceKind, rank: int) -> Evidence:
    return Evidence(
        kind=kind, step=1, rank=rank, op="a", type="Mul", tensor="a:output:0", number=3, value=2.0, expected=1.0
    )


def test_a_rank_is_right_in_what_something_tells_of_it() -> None:
    runs, other = frozenset({"a"}), frozenset({"b"})
    looked_at = {1: [LookedAt(0, runs, True), LookedAt(1, runs, True), LookedAt(2, runs), LookedAt(3, other, True)]}
    (found,) = suspicions([against(EvidenceKind.BENCHMARK, 0)], looked_at)
    assert (found.ranks, found.right, found.unknown) == ((0,), (1,), (2,)), "rank 3 does not run it"
    (found,) = suspicions([against(EvidenceKind.NAN, 0), against(EvidenceKind.BENCHMARK, 1)], looked_at)
    assert (found.ranks, found.right, found.unknown) == ((0, 1), (2,), ()), "NaN needs no benchmark"


def of(
    *ops: tuple[str, str, list[TensorStatistics], list[TensorStatistics]], step: int = 0, rank: int = 0
) -> LeafStatistics:
    return of_ops(
        [
            DumpedOp(name, kind, timestamp=0, inputs=dict(enumerate(fed)), outputs=dict(enumerate(out)))
            for name, kind, fed, out in ops
        ],
        step,
        rank,
    )


def test_values_at_the_limit_that_were_not_there_before() -> None:
    below = of(("a", "Mul", [told(1.0)], [told(9.0, largest=9.0, dtype="float16")]))
    above = of(("a", "Mul", [told(1.0)], [told(9.0, largest=65504.0, dtype="float16")]), step=1)
    judge = StatisticsJudge()
    assert judge.step([below]) == []
    (found,) = [one for one in judge.step([above]) if one.kind is EvidenceKind.AT_LIMIT]
    assert (found.op, found.value, found.expected) == ("a", 65504.0, 65504.0)
    # A mask that is always at the limit is meant.
    judge = StatisticsJudge()
    assert judge.step([above]) == []
    assert judge.step([replace(above, step=2)]) == []


def test_nan_that_an_op_was_fed_is_not_its_own() -> None:
    bad = told(nan, nans=3)
    leaf = of(("a", "Mul", [told(1.0)], [bad]), ("b", "Mul", [bad], [bad]), ("r", "HcomAllReduce", [bad], [bad]))
    assert [one.op for one in StatisticsJudge().step([leaf])] == ["a"]
    fine = told(1.0)
    other = of(
        ("a", "Mul", [fine], [fine]), ("b", "Mul", [fine], [fine]), ("r", "HcomAllReduce", [fine], [bad]), rank=1
    )
    assert [(one.rank, one.op) for one in StatisticsJudge().step([leaf, other])] == [(0, "a")]


def test_stages_of_a_pipeline_are_not_held_against_each_other() -> None:
    one = [of(*((f"x{i}", "Mul", [], [told(1.0)]) for i in range(9)), rank=rank) for rank in range(4)]
    two = [of(*((f"y{i}", "Mul", [], [told(99.0)]) for i in range(9)), rank=4 + rank) for rank in range(4)]
    assert StatisticsJudge().step([*one, *two]) == []


def test_another_order_of_execution_is_the_same_network() -> None:
    a, b = ("a", "Mul", [told(1.0)], [told(2.0)]), ("b", "Add", [told(3.0)], [told(4.0)])
    one, two = of(a, b), of(b, a, rank=1)
    again = aligned(two, one.names)
    assert again.sizes.tolist() == one.sizes.tolist() == [1.0, 2.0, 3.0, 4.0]
    without = aligned(of(b), one.names)
    assert np.isnan(without.sizes[:2]).all()


def test_what_a_worker_reads_is_kept_as_it_was(tmp_path: Path) -> None:
    generate_ranks(tmp_path / "x", ranks=2, steps=1, fault="none", statistics=True, benchmark="none")
    run = find_run(str(tmp_path / "x" / "precision_data" / "npu"))
    first, second = (read_leaf(leaf, 3, int(leaf.device)) for leaf in run.leaves)
    assert len(first.names.op_of) > 100
    unread = (Message("error.place", where="a", reason="cut off"), Message("row.compare.no_memory"))
    again = unpack_statistics("j.sqlite", pack_statistics(replace(first, unread=unread)), 3, 0)
    assert again.unread == unread
    assert (again.names.ops, again.names.types) == (first.names.ops, first.names.types)
    assert repr(replace(again, unread=())) == repr(first)
    assert aligned(second, first.names).names is first.names
    assert repr(aligned(second, first.names)) == repr(second)
    with pytest.raises(FormatError, match="cannot be read"):
        unpack_statistics("j.sqlite", pack({"ops": coded(["a"])}), 3, 0)


def test_the_statistics_of_a_study_are_read_by_its_workers_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = generate_ranks(
        tmp_path, ranks=3, steps=2, fault="nan", fault_rank=1, fault_step=1, statistics=True, benchmark="none"
    )
    folders = [tmp_path / folder for folder in truth.data]
    before = studied(tmp_path / "work", *folders).statistics
    assert before is not None
    assert before.suspicions[0].ranks == (1,)
    monkeypatch.setattr(running, "run_task", _no_work)
    monkeypatch.setattr(DumpIndex, "op", _no_work)
    after = studied(tmp_path / "work", *folders).statistics
    assert after is not None
    assert after.to_dict() == before.to_dict()


def _no_work(*_: object) -> None:
    raise AssertionError("the journal knows it")


def test_the_files_of_a_dump_of_statistics(tmp_path: Path) -> None:
    truth = generate_ranks(
        tmp_path, ranks=3, steps=3, fault="update", fault_rank=1, fault_step=2, statistics=True, benchmark="none"
    )
    found = studied(tmp_path / "work", *(tmp_path / folder for folder in truth.data)).statistics
    assert found is not None
    told_of = found.suspicions[0]
    assert (told_of.step, told_of.ranks) == (truth.fault_step, (truth.fault_rank,))
    assert told_of.op == str(truth.culprit).replace("/", "_")
    assert {kind for each in found.suspicions for kind in each.kinds} == {EvidenceKind.REPLICAS}
