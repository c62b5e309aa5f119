"""The re-dump list: the right ops, ranks and steps, within the budget, in the form that the collecting side takes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import tool
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_tool.lib.data.settings import load_settings
from precision_tool.lib.demo.ranks import generate_ranks
from precision_tool.lib.diagnose.redump import Redump, parse_bytes, plan_redump
from precision_tool.lib.diagnose.study_statistics import EvidenceKind, OpBytes, StatisticsFound, Suspicion
from precision_tool.lib.messages.errors import UsageError

#: What a dump file takes beside its tensors, as the plan reckons.
HEADER = 512


def suspicion(op: str, number: int, kind: EvidenceKind, ranks: tuple[int, ...], right: tuple[int, ...]) -> Suspicion:
    return Suspicion(
        step=7, op=op, type="MatMul", number=number, kinds=(kind,), ranks=ranks, right=right, evidence=()
    )  # fmt: skip


def found(
    sizes: list[int], suspects: dict[int, EvidenceKind], ranks: tuple[int, ...] = (2,), right: tuple[int, ...] = (0, 1)
) -> StatisticsFound:
    """A chain of ops, each fed by the one before."""
    ops = {
        f"op_{i}": OpBytes(
            number=i, name=f"op_{i}", type="MatMul", nbytes=size, producers=(f"op_{i - 1}",) if i else ()
        )
        for i, size in enumerate(sizes)
    }
    told = tuple(suspicion(f"op_{i}", i, kind, ranks, right) for i, kind in sorted(suspects.items()))
    return StatisticsFound(suspicions=told, leaves=1, tensors=1, ranks=(*right, *ranks), ops=ops)


def planned(told: StatisticsFound, budget: int, names: dict[str, str] | None = None) -> Redump:
    plan = plan_redump(told, budget, names)
    assert plan is not None
    return plan


def test_the_suspect_what_feeds_it_and_a_rank_to_hold_against_it() -> None:
    told = found([10_000] * 6, {4: EvidenceKind.NAN})
    plan = planned(told, 2 * 2 * (10_000 + HEADER), {"op_4": "a/op.4"})
    assert (plan.steps, plan.ranks, plan.layers) == ((7,), (2, 0), ("op_3", "a/op.4"))
    assert plan.nbytes == 4 * (10_000 + HEADER)
    assert plan.without == ("op_2", "op_1", "op_0")


def test_what_communication_put_out_is_dumped_on_all_its_ranks_as_far_as_the_budget_goes() -> None:
    told = found([1000, 1000], {1: EvidenceKind.BENCHMARK}, ranks=(2,), right=(0,))
    (first,) = told.suspicions
    told = replace(told, suspicions=(replace(first, type="HcomAllReduce", unknown=(1, 3)),))
    for budget, ranks, layers in (
        (8 * (1000 + HEADER), (2, 0, 1, 3), ("op_0", "op_1")),
        (3 * (1000 + HEADER), (2, 0, 1), ("op_1",)),
        (1000 + HEADER, (2,), ("op_1",)),
        (100, (2,), ()),
    ):
        plan = planned(told, budget)
        assert (plan.ranks, plan.layers) == (ranks, layers)
        assert plan.nbytes <= budget


def test_all_ranks_are_suspect() -> None:
    plan = planned(found([100, 100], {1: EvidenceKind.JUMP}, ranks=(0, 1, 2), right=()), 10**6)
    assert plan.ranks == (0,)


def test_a_huge_suspect_comes_before_small_ones() -> None:
    told = found([100, 10**6, 100], {1: EvidenceKind.JUMP, 2: EvidenceKind.NAN})
    plan = planned(told, 10**6 + HEADER)
    assert (plan.ranks, plan.layers, plan.nbytes) == ((2,), ("op_1",), 10**6 + HEADER)
    none = planned(found([10**6], {0: EvidenceKind.NAN}), 1000)
    assert (none.layers, none.without) == ((), ("op_0",))


def test_a_later_step_with_another_suspect_is_dumped_too_where_there_is_room() -> None:
    """GE dumps each op at each step, on each rank that is told to."""
    told = found([1000] * 3, {1: EvidenceKind.NAN})
    first = told.suspicions[0]
    again = replace(first, step=8)
    other = replace(first, step=9, op="op_2", number=2, ranks=(1,), right=(0, 2))
    told = replace(told, suspicions=(first, again, other))
    plan = planned(told, 10**6)
    assert (plan.steps, plan.ranks, plan.layers) == ((7, 9), (2, 0, 1), ("op_0", "op_1", "op_2"))
    assert plan.nbytes == 2 * 3 * 3 * (1000 + HEADER)
    assert plan.settings()["TF_DUMP_STEP"] == "7|9"
    assert plan_redump(told, plan.nbytes) == replace(plan, budget=plan.nbytes)
    tight = planned(told, plan.nbytes - 1)
    assert (tight.steps, tight.ranks) == ((7,), (2, 0))


def test_nothing_is_suspected() -> None:
    assert plan_redump(found([100], {}), 1000) is None


@given(
    sizes=st.lists(st.integers(0, 10**6), min_size=1, max_size=30),
    suspects=st.lists(st.integers(0, 29), min_size=1, max_size=5),
    budget=st.integers(1, 10**8),
)
@settings(deadline=None)
def test_the_budget_is_kept(sizes: list[int], suspects: list[int], budget: int) -> None:
    told = found(sizes, dict.fromkeys((number % len(sizes) for number in suspects), EvidenceKind.JUMP))
    plan = planned(told, budget)
    real = len(plan.ranks) * sum(told.ops[name].nbytes + HEADER for name in plan.layers)
    assert plan.nbytes == real <= budget
    assert not set(plan.layers) & set(plan.without)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("50GB", 50 * 10**9),
        ("800 MB", 800 * 10**6),
        ("1.5tb", 1_500_000_000_000),
        ("7", 7),
        ("2GiB", 2**31),
        ("3k", 3000),
    ],
)
def test_budgets(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "x", "-3GB", "0", "nan", "inf", "1e99GB", "5XB"])
def test_no_budgets(text: str) -> None:
    with pytest.raises(UsageError):
        parse_bytes(text)


def test_the_command(tmp_path: Path) -> None:
    truth = generate_ranks(
        tmp_path / "x", ranks=3, steps=2, fault="nan", fault_rank=1, fault_step=1, statistics=True, benchmark="none"
    )
    where = tmp_path / "x"
    run = tool("ac", "--all", "--fail", cwd=where, code=1)
    assert "step 1, rank 1 alone: fc1_MatMulfc1_BiasAddfc1_Relu" in run.text
    told = json.loads(tool("ac", "--all", "--json", cwd=where).out)
    first = told["statistics"]["suspicions"][0]
    assert (first["step"], first["ranks"], first["kinds"]) == (1, [1], ["nan"])
    plan = told["redump"]
    assert plan["ranks"] == [1, 0]
    assert truth.culprit in plan["layers"], "as the graph names it"
    # What was written is what the collecting side reads.
    config = where / "precision_config.py"
    config.write_text((where / plan["path"]).read_text())
    read = load_settings(folder=where, environment={})
    assert read.dump_layer.split() == plan["layers"]
    assert (read.tf_dump_step, read.dump_mode, read.dump_data) == ("1", "all", "tensor")
    config.unlink()
    tight = json.loads(tool("ac", "--all", "--json", "--budget", "100KB", cwd=where).out)["redump"]
    assert tight["nbytes"] <= 100_000
    assert truth.culprit in tight["layers"]
    assert "goes with --all only" in tool("ac", "--budget", "1GB", cwd=where, code=2).err
    assert "not a number of bytes" in tool("ac", "--all", "--budget", "much", cwd=where, code=2).err


def test_a_benchmark_of_one_rank_tells_nothing_of_the_others(tmp_path: Path) -> None:
    generate_ranks(tmp_path / "x", ranks=3, steps=1, fault="fused", fault_step=0, statistics=True, benchmark="one")
    told = json.loads(tool("ac", "--all", "--json", cwd=tmp_path / "x").out)
    first = told["statistics"]["suspicions"][0]
    assert (first["ranks"], first["right"], first["unknown"]) == ([0], [], [1, 2])
    shown = tool("ac", "--all", cwd=tmp_path / "x").text
    assert "step 0, rank 0: conv2" in shown
    assert "unknown 2 other ranks: without a benchmark" in shown


def test_a_clean_run_asks_for_nothing(tmp_path: Path) -> None:
    generate_ranks(tmp_path / "x", ranks=3, steps=3, fault="none", statistics=True, benchmark="all")
    told = json.loads(tool("ac", "--all", "--json", "--fail", cwd=tmp_path / "x").out)
    assert told["statistics"]["suspicions"] == []
    assert told["redump"] is None
