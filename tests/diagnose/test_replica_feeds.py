"""What feeds the updates of each rank, ranks that read one batch, and ranks whose steps are others'."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import documents_of, tool
from diagnosing import studied
from msprobe_files import forward, literal, tensor, write_leaf
from rich.console import Console

from precision_tool.lib.demo import ranks as demo
from precision_tool.lib.diagnose.replica_count import Ballot, StepVotes, count_votes
from precision_tool.lib.diagnose.replica_feeds import SameBatch, Shift, feeds_of_step, of_all_steps, shifts_of
from precision_tool.lib.diagnose.replica_votes import BlockMeans, Role, Vote, is_communication
from precision_tool.lib.diagnose.study import Study
from precision_tool.lib.diagnose.study_conclusion import (
    Conclusion,
    Culprit,
    Ground,
    Reach,
    conclude,
    in_own_steps,
    in_their_steps,
)
from precision_tool.lib.diagnose.study_journal import Accused, LeafState
from precision_tool.lib.diagnose.study_leaves import StudyLeaf
from precision_tool.lib.diagnose.update_inputs import Feed, fed_by, summed_by
from precision_tool.lib.diagnose.verdict_model import Cause, Proof
from precision_tool.lib.model.graph import Edge, Op, TensorDesc
from precision_tool.lib.view.study_screen import reach, study_block

RANKS = 4
SLOTS = ("var\tw", "accum\tw/Momentum", "lr\trate", "grad\tdivided", "momentum\tmomentum")


def update(summed_by: str = "reduce", **inputs: str) -> Vote:
    """The update of w by momentum; inputs by name, those that are not given are alike on all ranks."""
    values = tuple(inputs.get(slot.partition("\t")[0], slot) for slot in SLOTS)
    return Vote(
        op="update", type="ApplyMomentum", role=Role.UPDATE, number=9, epoch=1, inputs=values,
        outputs=(f"new {values}", f"moment {values[1]} {values[3]}"), fed_by=SLOTS, summed_by=summed_by,
    )  # fmt: skip


def reduce(put_in: str, came: str = "sum") -> Vote:
    return Vote(
        op="reduce", type="HcomAllReduce", role=Role.COLLECTIVE, number=5, epoch=0, inputs=(put_in,), outputs=(came,)
    )


def given(role: Role, value: str, op: str = "") -> Vote:
    return Vote(op=op or str(role), type="", role=role, number=0, epoch=0, inputs=(), outputs=(value,))


def ballots(votes: Callable[[int], list[Vote]], ranks: int = RANKS) -> list[Ballot]:
    return [(rank, "n", votes(rank)) for rank in range(ranks)]


def differing(votes: Callable[[int], list[Vote]], ranks: int = RANKS) -> list[tuple[Feed, str, tuple[int, ...], bool]]:
    found = feeds_of_step(0, ballots(votes, ranks)).departures
    return [(each.feed, each.name, each.ranks, each.undecided) for each in found]


def state(step: int, rank: int, *accused: Accused) -> LeafState:
    leaf = StudyLeaf(
        path=f"/{step}/{rank}", data="", step=step, rank=rank, device=rank, model="", files=1, nbytes=1, fingerprint=""
    )
    return LeafState(leaf=leaf, network="n", judged=True, has_verdict=True, accused=accused)


def culprit(votes: list[list[Ballot]], *accused: Accused) -> Culprit | None:
    """Whom all steps accuse; a verdict on rank 0 of the first accuses these."""
    feeds = [feeds_of_step(step, of_step) for step, of_step in enumerate(votes)]
    states = [
        state(step, rank, *(accused if not step and not rank else ()))
        for step in range(len(votes))
        for rank in range(4)
    ]
    return conclude(states, [count_votes(*item) for item in enumerate(votes)], feeds=feeds).culprit


@pytest.mark.parametrize(
    ("slot", "feed", "name"),
    [
        ("lr", Feed.LEARNING_RATE, "rate"),
        ("momentum", Feed.SETTING, "momentum"),
        ("var", Feed.VARIABLE, "w"),
        ("accum", Feed.STATE, "w/Momentum"),
        ("grad", Feed.GRADIENT, "divided"),
    ],
)
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_slot_that_a_rank_has_otherwise_is_named(slot: str, feed: Feed, name: str, ranks: int) -> None:
    def votes(rank: int) -> list[Vote]:
        return [reduce(f"own {rank}"), update(**({slot: "other"} if rank == 1 else {}))]

    expected = ((0, 1), True) if ranks == 2 else ((1,), False)
    assert differing(votes, ranks) == [(feed, name, *expected)]
    if ranks == 4:
        found = culprit([ballots(votes), ballots(votes)])
        assert found is not None
        assert (found.step, found.ranks, found.op, found.cause) == (0, (1,), name, str(feed))
        assert (found.ground, found.reach, found.steps) == (Ground.REPLICAS, Reach.ONE_RANK, (0, 1))


def test_gradients_differ_before_they_are_summed() -> None:
    assert not differing(lambda rank: [reduce(f"own {rank}"), update(summed_by="", grad=str(rank == 1))])
    # What a rank was given by communication is told of that.
    assert not differing(lambda rank: [reduce("", str(rank == 1)), update(grad=str(rank == 1))])


@pytest.mark.parametrize("reads", [False, True])
def test_parts_of_one_sum_for_parts_of_a_variable_accuse_nobody(reads: bool) -> None:
    """Each rank has a part of what the optimizer remembers, and updates that part by its part of the sum."""

    def votes(rank: int) -> list[Vote]:
        part = str(rank % 3)
        slots = {"grad": part} if reads else {"grad": part, "var": part, "accum": part}
        return [reduce(f"own {rank}"), update(**slots), *([given(Role.VARIABLE, part, "w")] if reads else [])]

    assert not differing(votes, 2)
    assert not differing(votes, 5)


def test_parts_of_a_model_and_experts_without_work_are_no_replicas() -> None:
    """Ranks 1 to 3 have an expert whose gradient is zero, so that it is still what all began with."""

    def expert(rank: int) -> Vote:
        return replace(update(summed_by="", var=str(rank == 0), grad=str(rank == 0)), op="expert")

    assert not differing(lambda rank: [reduce(str(rank)), update(), expert(rank)])
    halves = [(Feed.VARIABLE, "w", (2,), False)]
    shards = [
        [reduce(str(rank)), update(var=str(rank % 2) if rank != 2 else "other", grad=str(rank % 2))]
        for rank in range(6)
    ]
    assert differing(lambda rank: shards[rank], 6) == halves, "of the ranks with one gradient"


def test_an_input_that_was_dumped_after_the_update_tells_nothing_of_what_was_before() -> None:
    def votes(rank: int) -> list[Vote]:
        vote = update(lr=str(rank == 1))
        return [replace(vote, inputs=(vote.outputs[0], vote.outputs[1], *vote.inputs[2:]))]

    assert [each[0] for each in differing(votes)] == [Feed.LEARNING_RATE]


def test_a_variable_is_named_once_and_what_follows_is_not() -> None:
    """All of a rank's variables are of another checkpoint, and those of the next step follow from that."""

    def votes(rank: int) -> list[Vote]:
        other = {"var": "other", "accum": "other"} if rank == 2 else {}
        return [given(Role.VARIABLE, str(rank == 2), "w"), given(Role.VARIABLE, str(rank == 2), "v"), update(**other)]

    found = culprit([ballots(votes), ballots(lambda rank: [given(Role.VARIABLE, str(rank == 2), "u")])])
    assert found is not None
    assert found.feed is not None
    assert (found.op, found.feed.count, found.feed.is_first) == ("w", 3, True)
    kernel = Accused(op="k", type="T", cause=Cause.KERNEL, proof=Proof.RECOMPUTED, confidence=1, number=1, epoch=0)
    clean, later = [ballots(lambda rank: [update()]), ballots(votes)], replace(kernel, op="later")
    assert culprit(clean, replace(later, op="k")).op == "k"  # type: ignore[union-attr]
    assert culprit([ballots(votes)], kernel).op == "w", "it differed before the step began"  # type: ignore[union-attr]


def test_a_rank_of_one_model_in_parts_that_reads_other_data() -> None:
    def votes(rank: int, split: bool) -> list[Vote]:
        return [given(Role.VARIABLE, str(rank * split)), given(Role.DATA, str(rank == 3))]

    assert differing(lambda rank: votes(rank, split=True)) == [(Feed.DATA, "data", (3,), False)]
    assert not differing(lambda rank: votes(rank, split=False)), "data-parallel ranks have data of their own"


@pytest.mark.parametrize(
    ("sizes", "far"), [((0.5, 150.0, 0.6, 0.55), 1), ((0.5, 0.0, 0.6, 0.55), 1), ((0.5, 150.0, 4.0, 0.6), None),
                       ((0.5, 2.0, 0.6, 0.55), None), ((0.0, 1.0, 0.0, 0.0), None), ((0.5, 150.0), None)],
)  # fmt: skip
def test_data_of_another_size_are_those_of_a_rank_that_did_not_scale_them(
    sizes: tuple[float, ...], far: int | None
) -> None:
    def votes(rank: int) -> list[Vote]:
        means = BlockMeans(figures=np.array([[0], [sizes[rank]]], np.float32), rounding=0)
        return [replace(given(Role.DATA, str(rank)), output_means=(means,))]

    assert [each[2] for each in differing(votes, len(sizes))] == ([] if far is None else [(far,)])
    if far is not None:
        found = culprit([ballots(votes)])
        assert found is not None
        assert (found.cause, found.op, found.right) == ("input", "data", (0, 2, 3))
        assert reach(found, [0]).fields["scale"] == sizes[far]


def test_ranks_that_read_the_same_batch() -> None:
    def batches(*steps: Callable[[int], list[Vote]]) -> list[tuple[tuple[int, ...], bool, bool]]:
        feeds = [feeds_of_step(step, ballots(votes)) for step, votes in enumerate(steps)]
        return [(each.ranks, each.is_all, each.is_sure) for each in of_all_steps(feeds)[1]]

    def rank_with(data: str, gradient: str, variable: str = "w", came: str = "sum") -> list[Vote]:
        return [given(Role.DATA, data), given(Role.VARIABLE, variable), reduce(gradient, came)]

    same = [((0, 1, 2, 3), True, True)]
    assert batches(lambda rank: rank_with("x", "g")) == same
    assert batches(lambda rank: [given(Role.DATA, "x"), replace(reduce("g"), type="Distributed.all_reduce")]) == same
    assert batches(lambda rank: rank_with("x", "sum")) == [((0, 1, 2, 3), True, False)], "written over"
    assert batches(lambda rank: rank_with(str(rank // 2), str(rank // 2))) == [
        ((0, 1), False, True),
        ((2, 3), False, True),
    ]
    assert not batches(lambda rank: rank_with("mask", str(rank))), "equal data of another kind"
    assert not batches(lambda rank: rank_with("x", "g", variable=str(rank))), "parts of one model"
    assert not batches(lambda rank: [given(Role.DATA, "x"), given(Role.VARIABLE, "w")]), "nothing is summed"
    part = [given(Role.DATA, "x"), reduce("g")]
    assert batches(lambda rank: [*part, given(Role.VARIABLE, str(rank), "w"), update()]) == same, "parts of a variable"
    tensor_parallel = update(summed_by="")
    assert not batches(lambda rank: [*part, given(Role.VARIABLE, str(rank), "w"), tensor_parallel])
    lacking = [((0, 1, 2), False, True)]
    assert batches(lambda rank: rank_with("x", "g")[rank == 3 :]) == lacking, "of rank 3 that is not known"
    assert not batches(lambda rank: rank_with("x", "g"), lambda rank: rank_with(str(rank), str(rank)))


@pytest.mark.parametrize("is_sure", [False, True])
def test_ranks_that_surely_read_the_same_batch_fail_a_gate(is_sure: bool) -> None:
    batch = SameBatch(ranks=(0, 1), is_all=True, is_sure=is_sure)
    conclusion = Conclusion(culprit=None, same_batch=(batch,))
    study = Study(conclusion=conclusion, leaves=(), votes=(StepVotes(step=0, agreed=1),), maps=())
    assert study.has_findings == is_sure


def test_a_learning_rate_that_is_no_number_is_a_text_in_json() -> None:
    vote = replace(update(), fed_by=(*SLOTS[:2], "lr", *SLOTS[3:]))

    def votes(rank: int) -> list[Vote]:
        rate = "nan" if rank == 1 else "0.1"
        return [replace(vote, inputs=(*vote.inputs[:2], rate, *vote.inputs[3:]))]

    found = culprit([ballots(votes)])
    assert found is not None
    assert found.to_dict()["feed"]["value"] == "nan"
    assert '"usual": 0.1' in json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize(("ranks", "late"), [(4, 2), (2, 1)])
@pytest.mark.parametrize("offset", [1, -1, 2])
def test_a_rank_whose_steps_are_others(ranks: int, late: int, offset: int) -> None:
    def votes(rank: int, step: int) -> list[Vote]:
        of = step - offset if rank == late else step
        # A variable of its own says nothing, and what never changes fits any step.
        own = given(Role.VARIABLE, f"{rank} {of}", "own")
        return [reduce(f"{rank} {of}", f"sum {of}"), given(Role.VARIABLE, str(of)), given(Role.VARIABLE, "c", "c"), own]

    def found(one: Callable[[int, int], list[Vote]]) -> list[tuple[tuple[int, ...], int]]:
        steps = [(step, [(rank, "n", one(rank, step)) for rank in range(ranks)]) for step in range(4)]
        return [(shift.ranks, shift.offset) for shift in shifts_of(steps)]

    assert found(votes) == [((late,), offset)]

    def stale(rank: int, step: int) -> list[Vote]:
        """A rank that was given the sum of the step before, but is in this one."""
        return [votes(rank, step)[0], given(Role.VARIABLE, str(step))]

    assert not found(stale)
    extra = [(step, [(rank, "n", [given(Role.VARIABLE, "c")]) for rank in range(1, ranks + 1) if step < 3 or rank == 1])
             for step in range(4)]  # fmt: skip
    assert not shifts_of(extra), "a step that one rank has alone, and variables that never change"


def test_nan_of_a_shifted_rank_is_told_in_the_step_that_its_dump_has() -> None:
    shift = Shift(ranks=(2,), offset=1, steps=(1, 2), own=1, theirs=0)
    states = [state(step, rank) for step in range(3) for rank in range(4)]
    states = [replace(each, bad=1, first_bad="x:output:0") if each.leaf.key[:2] == (2, 2) else each for each in states]
    moved = conclude(in_their_steps(states, [shift]), [])
    assert moved.not_finite == (1, 2, "x:output:0")
    assert in_own_steps(moved, states, [shift]).not_finite == (2, 2, "x:output:0")


def op(name: str, op_type: str, *inputs: str, scalars: tuple[int, ...] = (), **attrs: Any) -> Op:
    shapes = [TensorDesc(shape=() if slot in scalars else (4, 3)) for slot in range(len(inputs))]
    edges = tuple(Edge(producer=each, index=0) for each in inputs)
    return Op(name=name, type=op_type, inputs=edges, input_descs=tuple(shapes), attrs=attrs)


@pytest.mark.parametrize(
    ("between", "summed"),
    [
        ([op("g", "RealDiv", "reduce", "count", scalars=(1,))], "reduce"),
        ([op("cast", "Cast", "reduce"), op("g", "Mul", "cast", "scale", scalars=(1,))], "reduce"),
        ([op("g", "MatMul", "reduce", "x")], ""),  # a part of a layer, which sums what goes between the parts
        ([op("g", "Mul", "own", "norm", scalars=(1,)), op("norm", "Sqrt", "reduce", scalars=(0,))], ""),
    ],
)
def test_what_an_update_is_given(between: list[Op], summed: str) -> None:
    ops = [op("reduce", "HcomAllReduce", "own"), op("own", "MatMul", "x"), op("w", "Variable"), *between]
    descent = op("update", "ApplyGradientDescent", "w", "rate", "g", scalars=(1,))
    by_name = {each.name: each for each in ops}
    assert summed_by(descent, by_name, is_communication) == summed
    assert fed_by(descent.type, descent, 3) == ("var\tw", "alpha\trate", "delta\tg")
    # What is an attribute is no input; what an input of a part of an optimizer is, its name does not say.
    of_momentum = op("u", "ApplyMomentumD", "w", "m", "rate", "g", momentum=0.9)
    assert fed_by(of_momentum.type, of_momentum, 4) == ("var\tw", "accum\tm", "lr\trate", "grad\tg")
    assert not fed_by("LambApplyWeightAssign", op("u", "LambApplyWeightAssign", "a", "b", "c", "d", "w"), 5)
    assert not fed_by("UnknownApply", op("u", "UnknownApply", "w"), 1)


# --- whole studies ---


def said(study: Study) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(study_block(study))
    return " ".join(captured.get().split())


def test_what_feeds_the_ranks_of_a_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 has another learning rate, rank 2 another variable, and all read one batch."""
    machine, rate = demo.Training._machine, demo._RATE

    def odd(self: demo.Training, rank: int, step: int, fault: Any = None, **more: Any) -> Any:
        monkeypatch.setattr(demo, "_RATE", rate * (1.5 if rank == 1 else 1))
        variables = more.pop("variables", None)
        if rank == 2 and variables:
            variables = {**variables, "fc1/kernel": tuple(1.5 * side for side in variables["fc1/kernel"])}
        return machine(self, 0, step, fault, variables=variables, **more)

    monkeypatch.setattr(demo.Training, "_machine", odd)
    truth = demo.generate_ranks(tmp_path, ranks=3, steps=1, fault="none", benchmark="none")
    study = studied(tmp_path / "work", tmp_path / truth.data[0])
    found = [study.conclusion.culprit, *study.conclusion.further]
    assert [(each.ranks, each.right, each.op, each.cause) for each in found if each is not None] == [
        ((1,), (0, 2), "GradientDescent/learning_rate", "learning_rate"),
        ((2,), (0, 1), "fc1/kernel", "weights"),
    ]
    text = said(study)
    assert "use the same learning rate on every rank" in text
    assert "dataset.shard(rank_size, rank_id)" in text
    assert [(each.ranks, each.is_sure) for each in study.conclusion.same_batch] == [((0, 1), True)]
    assert study.to_dict()["culprit"]["feed"]["update"].endswith("ApplyGradientDescent")


def recorded(
    folder: Path, rank: int, step: int = 0, rate: float = 0.1, gradient: float = 1.0, tensors: bool = True
) -> None:
    """A step of PyTorch's plain descent, whose learning rate is a number among the arguments."""
    draw = np.random.default_rng([1, step]).standard_normal
    weight, change = draw((3, 6)).astype(np.float32), (gradient * draw((3, 6))).astype(np.float32)
    x = np.random.default_rng([2, rank]).standard_normal((4, 6)).astype(np.float32)
    arrays = {"x": x, "w": weight, "y": x @ weight.T, "g": change, "new": weight - np.float32(rate) * change}
    described = {name: tensor(array, f"{name}.pt" if tensors else "") for name, array in arrays.items()}
    described["w"]["requires_grad"] = True
    entries = {
        "Functional.linear.0.forward": forward(described["x"], described["w"], output=[described["y"]]),
        "Tensor.sub_.0.forward": forward(
            described["w"], described["g"], output=[described["new"]], alpha=literal(rate)
        ),
    }
    write_leaf(folder, entries, {f"{name}.pt": array for name, array in arrays.items()} if tensors else {})


@pytest.mark.parametrize("tensors", [True, False])
def test_a_learning_rate_among_the_arguments_of_a_recorded_call(tmp_path: Path, tensors: bool) -> None:
    for rank in range(3):
        recorded(tmp_path / f"d/step0/rank{rank}", rank, rate=0.2 if rank == 1 else 0.1, tensors=tensors)
    found = studied(tmp_path / "work", tmp_path / "d").conclusion.culprit
    assert found is not None
    assert (found.ranks, found.op, found.cause) == ((1,), "Tensor.sub_.0.forward", "optimizer_setting")
    assert found.feed is not None
    assert (found.feed.value, found.feed.usual) == (0.2, 0.1)


def test_gradients_of_recorded_ranks_that_nothing_sums_accuse_nobody(tmp_path: Path) -> None:
    for rank in range(3):
        recorded(tmp_path / f"d/step0/rank{rank}", rank, gradient=2.0 if rank == 1 else 1.0)
    assert studied(tmp_path / "work", tmp_path / "d").conclusion.culprit is None


def test_a_rank_behind_the_others_accuses_no_op(tmp_path: Path) -> None:
    """Its own benchmark is of the right step, and shows other weights."""
    for rank in range(3):
        for step in range(2):
            recorded(tmp_path / f"d/gpu/step{step}/rank{rank}", rank, step)
            recorded(tmp_path / f"d/npu/step{step + (rank == 2)}/rank{rank}", rank, step)
    study = studied(tmp_path / "work", tmp_path / "d")
    found = study.conclusion.culprit
    assert found is not None
    assert (found.step, found.ranks, found.right, found.op, found.cause) == (1, (2,), (0, 1), "", "shifted")
    assert found.shift is not None
    assert (found.shift.offset, found.shift.own, found.shift.theirs) == (1, 1, 0)
    assert not study.conclusion.further
    assert [(vote.step, vote.agreed, len(vote.departures)) for vote in study.votes] == [(0, 1, 0), (1, 1, 0)]
    text = said(study)
    assert "step 1, rank 2 ┃ ┃ rank 2 is 1 step behind the others: step 1 there equals step 0 of the others" in text
    (document,) = documents_of(tool("--data", tmp_path / "d", "ac", "--all", "--json", cwd=tmp_path).out)
    assert document["culprit"]["shift"]["offset"] == 1
