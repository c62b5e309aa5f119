"""The votes of replicas, and what they add up to."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import ml_dtypes
import numpy as np
import pytest
from memory_store import MemoryStore

from precision_tool.lib.data.dumped_ops import DumpedOp
from precision_tool.lib.diagnose import replica_count
from precision_tool.lib.diagnose import replica_votes as digests
from precision_tool.lib.diagnose.recorded_collectives import Collective, Exchange
from precision_tool.lib.diagnose.replica_count import WORLD, count_votes
from precision_tool.lib.diagnose.replica_votes import (
    OF_WHOLE,
    BlockMeans,
    Epochs,
    Means,
    Role,
    Vote,
    digest_of,
    pack_votes,
    role_of,
    unpack_votes,
    votes_of,
)
from precision_tool.lib.diagnose.study_conclusion import Conclusion, Ground, Reach, conclude
from precision_tool.lib.diagnose.study_journal import Accused, LeafState
from precision_tool.lib.diagnose.study_leaves import StudyLeaf
from precision_tool.lib.diagnose.study_table import Texts, pack, unpack
from precision_tool.lib.diagnose.verdict_model import Cause, Proof
from precision_tool.lib.io.files import mounted
from precision_tool.lib.io.stores import StoredFile
from precision_tool.lib.messages.errors import FormatError
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.tensor import Tensor
from precision_tool.lib.model.wording import spans


def vote(output: str, fed: str = "same", op: str = "update", number: int = 9, group: str = "") -> Vote:
    role = Role.COLLECTIVE if op.startswith("reduce") else Role.UPDATE
    return Vote(op=op, type="X", role=role, number=number, epoch=1, inputs=(fed,), outputs=(output,), group=group)


def block(value: float) -> BlockMeans:
    return BlockMeans(figures=np.array([[value], [abs(value)]], np.float32), rounding=2**-23)


def state(step: int, rank: int, *accused: Accused, network: str = "n", judged: bool = True) -> LeafState:
    leaf = StudyLeaf(
        path=f"/{step}/{rank}", data="", step=step, rank=rank, device=rank, model="", files=1, nbytes=1, fingerprint=""
    )
    return LeafState(leaf=leaf, network=network, judged=judged, has_verdict=judged, accused=accused)


def accused(op: str, number: int = 5, epoch: int = 0) -> Accused:
    return Accused(
        op=op, type="T", cause=Cause.KERNEL, proof=Proof.RECOMPUTED, confidence=0.9, number=number, epoch=epoch
    )


def test_the_one_that_differs_is_named_and_what_it_was_fed_tells_whether_it_is_to_blame() -> None:
    ballots = [(rank, "n", [vote("wrong" if rank == 2 else "right")]) for rank in range(4)]
    (departure,) = count_votes(7, ballots).departures
    assert (departure.ranks, departure.agreeing, departure.fed_alike) == ((2,), (0, 1, 3), True)
    found = conclude([state(7, rank) for rank in range(4)], [count_votes(7, ballots)]).culprit
    assert found is not None
    assert (found.step, found.rank, found.op, found.cause) == (7, 2, "update", "device")
    assert (found.ground, found.reach) == (Ground.REPLICAS, Reach.ONE_RANK)
    fed = [(rank, "n", [vote(str(rank == 2), fed=str(rank == 2))]) for rank in range(4)]
    assert conclude([state(7, rank) for rank in range(4)], [count_votes(7, fed)]).culprit is None


def test_two_ranks_that_differ_do_not_tell_which_is_right() -> None:
    counted = count_votes(0, [(0, "n", [vote("a")]), (1, "n", [vote("b")])])
    (departure,) = counted.departures
    assert departure.undecided
    found = conclude([state(0, 0), state(0, 1)], [counted]).culprit
    assert found is not None
    assert found.reach is Reach.NOT_TOLD
    assert found.ranks == (0, 1)


def test_ranks_that_agree_on_nothing_are_no_replicas() -> None:
    counted = count_votes(0, [(rank, "n", [vote(str(rank), fed=str(rank))]) for rank in range(4)])
    assert not counted.departures


def test_groups_of_one_name_that_agree_among_themselves_accuse_nobody() -> None:
    whole = [vote("same", op="reduce all")] * 4
    parts = [vote(str(rank // 2), op="reduce part") for rank in range(4)]
    ballots = [(rank, "n", [whole[rank], parts[rank]]) for rank in range(4)]
    counted = count_votes(0, ballots)
    assert (counted.agreed, counted.departures) == (1, ())
    fed = [(rank, "n", [vote(str(rank // 2))]) for rank in range(4)]  # from the same inputs: that is no part of a model
    (departure,) = count_votes(0, fed).departures
    assert departure.undecided


def test_other_networks_and_other_groups_do_not_vote_together() -> None:
    ballots = [(0, "stage 0", [vote("a")]), (1, "stage 1", [vote("b")])]
    assert not count_votes(0, ballots).departures
    ballots = [(rank, "n", [vote(str(rank // 2), op="reduce", group=str(rank // 2))]) for rank in range(4)]
    counted = count_votes(0, ballots)
    assert (counted.agreed, counted.departures) == (2, ())


def test_the_earliest_step_then_what_ran_before_communication_then_rank_and_op() -> None:
    states = [
        state(3, 1, accused("late", 2)), state(1, 0, accused("after", 30, epoch=4)),
        state(1, 6, accused("before", 40, epoch=1)), state(1, 7, accused("before", 40, epoch=1)),
        state(0, 0), state(0, 6),
    ]  # fmt: skip
    found = conclude(states, [])
    assert found.culprit is not None
    assert (found.culprit.step, found.culprit.rank, found.culprit.op) == (1, 6, "before")
    assert (found.culprit.ranks, found.culprit.right) == ((6, 7), (0,))
    assert found.culprit.reach is Reach.SOME_RANKS
    assert [one.op for one in found.further] == ["after", "late"]


def test_how_far_it_reaches_is_asked_of_ranks_with_the_same_network_only() -> None:
    states = [state(0, 0, accused("op")), state(0, 1, accused("op")), state(0, 2, network="other stage")]
    found = conclude(states, []).culprit
    assert found is not None
    assert found.reach is Reach.ALL_RANKS
    alone = conclude([state(0, 0, accused("op")), state(0, 1, judged=False)], []).culprit
    assert alone is not None
    assert (alone.reach, alone.unknown) == (Reach.NOT_TOLD, (1,))


def test_roles_and_epochs_of_ops() -> None:
    assert role_of("HcomAllReduce") is Role.COLLECTIVE
    assert role_of("ResourceApplyAdamD") is Role.UPDATE
    assert role_of("HcomReduceScatter") is None
    assert role_of("AssignSub") is None
    epochs = Epochs([("a", "Add", 0), ("x/r", "HcomAllReduce", 1), ("x/r", "HcomAllReduce", 1), ("b", "Add", 2)])
    assert [epochs.of(name) for name in ("a", "x/r", "b", "nobody")] == [0, 0, 1, 0]


def test_numbers_as_people_write_them() -> None:
    assert spans([3, 0, 1, 2, 7, 9, 10]) == "0-3, 7, 9, 10"
    assert spans([]) == ""


def test_groups_that_no_graph_names_are_no_fault() -> None:
    """Ranks 0 and 1 got the sum of what they put in, 2 and 3 that of theirs; with another sum one of them is wrong."""
    for second, is_named in ((7.0, False), (8.0, True)):
        ballots = []
        for rank in range(4):
            fed = block(rank + 1.0)
            total = 3.0 if rank < 2 else second
            came = block(total)
            one = Vote(op="reduce", type="HcomAllReduce", role=Role.COLLECTIVE, number=4, epoch=0, inputs=(str(rank),),
                       outputs=(str(total),), input_means=(fed,), output_means=(came,))  # fmt: skip
            ballots.append((rank, "n", [one]))
        sums = count_votes(0, ballots).sums
        assert bool(sums.open or sums.wrong) is is_named


def test_what_another_rank_put_in_wrong_is_no_fault_of_the_all_reduce_that_summed_it() -> None:
    """Of its own benchmark, a rank sees its right part and the wrong sum."""
    charges = {0: accused("conv"), 1: accused("reduce", epoch=1), 2: accused("reduce", epoch=1)}
    found = reduced([6.0], charges=charges)
    assert found.culprit is not None
    assert (found.culprit.rank, found.culprit.op, found.further) == (0, "conv", ())
    assert reduced([6.0], charges={1: charges[1]}).culprit is None
    assert reduced([7.0], charges={1: charges[1]}).culprit is None, "another rank may have been in the group"
    wrong = reduced([7.0], charges={1: charges[1]}, world_size=3).culprit
    assert wrong is not None
    assert wrong.op == "reduce", "it is no sum"


def reduced(
    sums: list[float],
    ranks: tuple[int, ...] = (0, 1, 2),
    op: str = "reduce",
    charges: dict[int, Accused] | None = None,
    world_size: int = 0,
) -> Conclusion:
    """One all-reduce a step, of which these come out, of 1, 2, 3, … put in by the ranks."""
    votes = []
    for step, total in enumerate(sums):
        came = block(total)
        ballots = []
        for rank in ranks:
            fed = block(rank + 1.0)
            one = Vote(op=op, type="HcomAllReduce", role=Role.COLLECTIVE, number=4, epoch=0, inputs=(str(rank),),
                       outputs=(str(total),), input_means=(fed,), output_means=(came,),
                       group=WORLD if world_size else "")  # fmt: skip
            ballots.append((rank, "n", [one]))
        votes.append(count_votes(step, ballots, world_size))
    of = charges or {}
    states = [state(step, rank, *([of[rank]] if rank in of else ())) for step in range(len(sums)) for rank in ranks]
    return conclude(states, votes)


def test_the_only_all_reduce_of_a_step_is_no_sum() -> None:
    """Where the same ranks got the sum in another step, none of them was left out of the dump."""
    assert reduced([6, 6]).culprit is None
    found = reduced([6, 9, 6, 9]).culprit
    assert found is not None
    assert (found.step, found.op, found.ground, found.reach) == (1, "reduce", Ground.SUM, Reach.ALL_RANKS)
    assert found.steps == (1, 3)
    assert found.confidence > 0.9
    open_ = reduced([9, 9])
    assert open_.culprit is None, "nothing shows that all ranks were dumped"
    assert [(item.step, item.op, item.ranks) for item in open_.untold] == [
        (0, "reduce", (0, 1, 2)),
        (1, "reduce", (0, 1, 2)),
    ]
    known = reduced([9, 9], world_size=3).culprit
    assert known is not None
    assert (known.step, known.op, known.steps, known.ground) == (0, "reduce", (0, 1), Ground.SUM)
    assert reduced([9, 9], world_size=4).culprit is None
    assert reduced([9], ranks=(0, 1, 3)).culprit is None, "rank 2 was not dumped, and put in something"
    assert reduced([2, 2]).culprit is None, "the mean of all"


def all_reduced(
    came: dict[int, float],
    *,
    op: str = "reduce",
    group: str = "tp",
    size: int = 0,
    puts: dict[int, float] | None = None,
) -> dict[int, Vote]:
    """What came out of an all-reduce on these ranks, each of which put in its number plus 1, or what `puts` says."""
    put_in = {rank: (puts or {}).get(rank, rank + 1.0) for rank in came}
    return {
        rank: Vote(
            op=op, type="HcomAllReduce", role=Role.COLLECTIVE, number=4, epoch=0, inputs=(f"in {rank}",),
            outputs=(str(total),), input_means=(block(put_in[rank]),), output_means=(block(total),), group=group,
            size=size,
        )
        for rank, total in came.items()
    }  # fmt: skip


def concluded(*steps: Sequence[dict[int, Vote]], world_size: int = 0) -> Conclusion:
    """What steps of such votes come to."""
    ranks = sorted({rank for step in steps for votes in step for rank in votes})
    counted = [
        count_votes(step, [(rank, "n", [one[rank] for one in votes if rank in one]) for rank in ranks], world_size)
        for step, votes in enumerate(steps)
    ]
    return conclude([state(step, rank) for step in range(len(steps)) for rank in ranks], counted)


def accuses(*steps: Sequence[dict[int, Vote]], world_size: int = 0) -> tuple[int, str, tuple[int, ...]] | None:
    found = concluded(*steps, world_size=world_size).culprit
    return None if found is None else (found.step, found.op, found.ranks)


RIGHT = {0: 3.0, 1: 3.0, 2: 7.0, 3: 7.0}  # pairs that the graph gives one name


def test_clean_groups_accuse_nobody_whoever_is_missing() -> None:
    whole = all_reduced(dict.fromkeys(range(4), 10.0), group=WORLD)
    without_rank_2 = all_reduced(dict.fromkeys((0, 1, 3), 10.0), op="b", group=WORLD)
    found = concluded([whole, without_rank_2])
    assert found.culprit is None, "its file is not there, or cannot be read"
    assert [(item.op, item.ranks) for item in found.untold] == [("b", (0, 1, 3))]
    pairs = all_reduced(RIGHT)
    assert accuses([whole, pairs]) is None
    assert accuses([all_reduced({0: 3.0, 1: 3.0, 2: 7.0})]) is None, "the other of rank 2 was not dumped"
    assert accuses([all_reduced({0: 3.0, 1: 3.0, 2: 7.0}, size=2)]) is None
    assert accuses([all_reduced({0: 3.0, 2: 7.0}, size=2)]) is None, "one of each pair"
    uneven = {0: 10.0, 1: 10.0, 2: 10.0, 3: 10.0, 4: 11.0, 5: 11.0}
    assert accuses([all_reduced(uneven)]) is None, "most is no group"
    assert accuses([whole, all_reduced({0: 9.0, 2: 9.0}, group="dp")]) is None, "of the group only two were dumped"
    unused = dict.fromkeys(range(4), 0.0)  # a gradient of zeros is the sum over any ranks
    zeros = [all_reduced(unused, op=f"zeros {number}", group=WORLD, puts=unused) for number in range(2)]
    assert accuses([*zeros, all_reduced(dict.fromkeys(range(4), 36.0), group=WORLD)]) is None


def test_what_several_groups_of_one_name_have_alike_does_not_make_them_one() -> None:
    """Ranks 0 and 2, and 1 and 3, average gradients: of the halves of one variable, and of another that all have."""
    halves = all_reduced({0: 4.0, 1: 6.5, 2: 4.0, 3: 6.5}, op="half", group="dp", puts={1: 2.1, 3: 4.4})
    copies = all_reduced(dict.fromkeys(range(4), 3.0), op="copy", group="dp", puts={0: 1.0, 1: 1.0, 2: 2.0, 3: 2.0})
    whole = concluded([halves, copies])
    assert (whole.culprit, whole.untold) == (None, ())
    for votes in (halves, copies):
        del votes[3]
    assert accuses([halves, copies]) is None, "rank 1 is no rank that departs from 0 and 2"
    assert accuses([halves, copies], world_size=3) is None


def test_a_wrong_sum_of_a_complete_group_is_told() -> None:
    assert accuses([all_reduced(RIGHT | {3: 8.0})]) == (0, "reduce", (3,)), "rank 2 got the sum, as 0 and 1 did"
    wrong_pair = all_reduced(RIGHT | {0: 4.0, 1: 4.0})
    assert accuses([all_reduced(RIGHT)], [wrong_pair]) == (1, "reduce", (0, 1))
    same_wrong = {0: 6.0, 1: 7.0, 2: 7.0}
    assert accuses([all_reduced(same_wrong)]) == (0, "reduce", (1, 2)), "a sum counts for more than a majority"
    every = dict.fromkeys(range(3), 9.0)
    assert accuses([all_reduced(every)]) is None
    assert accuses([all_reduced(every, size=3)]) is None, "these may be parts of several groups of three"
    assert accuses([all_reduced(every, size=3, group=WORLD)]) == (0, "reduce", (0, 1, 2))
    assert accuses([all_reduced(every, group="tp_0_1_2")]) == (0, "reduce", (0, 1, 2))
    assert accuses([all_reduced(every, group=WORLD)], world_size=3) == (0, "reduce", (0, 1, 2))
    assert accuses([all_reduced(every, group=WORLD)], world_size=4) is None
    sums = [all_reduced(dict.fromkeys(range(3), 6.0), op=f"op {number}", group=WORLD) for number in range(2)]
    assert accuses([*sums, all_reduced(every, group=WORLD)]) == (0, "reduce", (0, 1, 2)), "others show the group"


def test_what_is_fed_alike_votes_together() -> None:
    """Two halves with parts of their own: one of three in the first has something else from the same inputs."""
    parts = [vote("x" if rank == 1 else str(rank // 3), fed=str(rank // 3)) for rank in range(6)]
    (departure,) = count_votes(0, [(rank, "n", [each]) for rank, each in enumerate(parts)]).departures
    assert (departure.ranks, departure.agreeing, departure.fed_alike) == ((1,), (0, 2), True)


def test_what_feeds_a_collective_is_earlier_than_that_on_any_rank() -> None:
    fed = accused("conv", number=10)
    sums = count_votes(0, [(rank, "n", [each]) for rank, each in all_reduced({0: 6.0, 1: 7.0, 2: 6.0}).items()])
    found = conclude([state(0, 0), state(0, 1), state(0, 2, fed)], [sums])
    assert found.culprit is not None
    assert (found.culprit.op, [item.op for item in found.further]) == ("conv", [])


def test_an_all_reduce_that_was_written_over_tells_nothing() -> None:
    came = block(6.0)
    one = Vote(op="reduce", type="HcomAllReduce", role=Role.COLLECTIVE, number=4, epoch=0, inputs=("a",),
               outputs=("a",), input_means=(came,), output_means=(came,))  # fmt: skip
    votes = count_votes(0, [(rank, "n", [one]) for rank in range(3)])
    assert conclude([state(0, rank) for rank in range(3)], [votes]).culprit is None


@pytest.mark.parametrize("departs_in", [0, 1])
def test_a_rank_that_runs_a_network_as_two_models_votes_with_each(departs_in: int) -> None:
    ballots = [
        (rank, "n", [vote("wrong" if (rank, model) == (2, departs_in) else "right")])
        for rank in range(3)
        for model in range(2)
    ]
    found = count_votes(0, ballots)
    assert found.agreed == 1
    assert [one.ranks for one in found.departures] == [(2,)]


# --- what a vote keeps of a tensor, read once ---


SIZE = 1000


def stored(path: Path, array: np.ndarray, dtype: str, *, behind: bytes = b"", big_endian: bool = False) -> Tensor:
    data = array.tobytes()
    path.write_bytes(b"head" + data + behind)
    return Tensor(
        path=str(path), offset=4, nbytes=len(data) + len(behind), dtype=dtype, shape=(array.size // 10, 10),
        big_endian=big_endian,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "stored_as", "rounding"),
    [
        ("float64", np.dtype("f8"), 2.0**-52),
        ("float32", np.dtype("f4"), 2.0**-23),
        ("float32", np.dtype(">f4"), 2.0**-23),
        ("float16", np.dtype("f2"), 2.0**-10),
        ("bfloat16", np.dtype(ml_dtypes.bfloat16), 2.0**-7),
    ],
)
def test_hash_and_means_of_one_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, stored_as: np.dtype, rounding: float
) -> None:
    monkeypatch.setattr(digests, "_PIECE", 77)
    array = np.random.default_rng(3).standard_normal(SIZE).astype(stored_as)
    tensor = stored(tmp_path / "tensor", array, dtype, big_endian=stored_as.str.startswith(">"))
    found = digest_of(tensor, OF_WHOLE)
    assert found.value == hashlib.sha256(array.tobytes()).hexdigest()[:32]
    assert found.value == digest_of(tensor).value
    assert not digest_of(tensor).means
    (means,) = digest_of(tensor, Means(blocks=3)).means
    parts = [array[start:end].astype(np.float64) for start, end in ((0, 333), (333, 666), (666, 1000))]
    assert means.figures[0] == pytest.approx([part.mean() for part in parts], rel=1e-7)
    assert means.figures[1] == pytest.approx([np.sqrt((part**2).mean()) for part in parts], rel=1e-7)
    assert means.rounding == rounding


def test_what_is_no_number_has_a_hash_alone(tmp_path: Path) -> None:
    numbers = np.arange(SIZE, dtype=np.int32)
    padded = np.ones(SIZE, np.float32)
    for tensor, data in (
        (stored(tmp_path / "whole", numbers, "int32"), numbers.tobytes()),
        (stored(tmp_path / "padded", padded, "float32", behind=b"\1" * 32), padded.tobytes() + b"\1" * 32),
    ):
        found = digest_of(tensor, OF_WHOLE)
        assert found.value == hashlib.sha256(data).hexdigest()[:32]
        assert not found.means


def exchanged(path: Path, op_type: str, sent: list[np.ndarray], came: list[np.ndarray], **attrs: Any) -> Conclusion:
    """What a study concludes of an op of GE's graph that sent and gave each rank these."""
    op = Op(name=op_type, type=op_type, attrs={"group": WORLD, "rank_size": len(sent), **attrs})
    ballots = []
    for rank, arrays in enumerate(zip(sent, came, strict=True)):
        into, out_of = (
            replace(stored(path / f"{rank}.{name}", array, "float32"), shape=array.shape)
            for name, array in zip(("in", "out"), arrays, strict=True)
        )
        dumped = DumpedOp(op_type, op_type, timestamp=0, inputs={0: into}, outputs={0: out_of})
        files = [SimpleNamespace(name=SimpleNamespace(op_name=op_type, op_type=op_type))]
        index: Any = SimpleNamespace(
            leaf=SimpleNamespace(files=files), names_by_time=lambda: [op_type], op={op_type: dumped}.get
        )
        graph: Any = SimpleNamespace(ops=[op])
        packed = pack_votes(votes_of(index, graph, Epochs([(op_type, op_type, 0)])))
        ballots.append((rank, "n", unpack_votes("journal", packed)))
    counted = count_votes(0, ballots)
    assert counted.sums.right or counted.sums.wrong
    return conclude([state(0, rank) for rank in range(len(sent))], [counted])


@pytest.mark.parametrize("op_type", ["HcomAllGather", "HcomReduceScatter", "HcomAllToAll"])
@pytest.mark.parametrize("wrong", [None, 2])
def test_what_ge_s_collectives_cut_is_followed(tmp_path: Path, op_type: str, wrong: int | None) -> None:
    rng = np.random.default_rng(5)
    sent = [rng.standard_normal((6, 4)).astype(np.float32) for _ in range(3)]
    pieces = np.array([np.split(array, 3) for array in sent])
    came = {
        "HcomAllGather": [np.concatenate(sent)] * 3,
        "HcomReduceScatter": [*pieces.sum(axis=0)],
        "HcomAllToAll": [np.concatenate(pieces[:, rank]) for rank in range(3)],
    }[op_type]
    if wrong is not None:
        came[wrong] = came[wrong].copy()
        came[wrong][-1] += 0.5
    found = exchanged(tmp_path, op_type, sent, came, reduction="sum").culprit
    assert (None if found is None else found.ranks) == (None if wrong is None else (wrong,))


def test_names_and_hashes_that_ranks_have_alike_are_kept_once() -> None:
    packed = pack_votes([replace(vote("0123 4567"), fed_by=("var\tw 1",))])
    first, second = (unpack_votes("journal", packed)[0] for _ in range(2))
    assert first.outputs[0] is second.outputs[0]
    assert first.fed_by[0] is second.fed_by[0]


def test_damaged_votes_are_told_as_such() -> None:
    means = (block(1.0),)
    kept: dict[str, Any] = dict(
        unpack("journal", pack_votes([replace(vote("x"), input_means=means, output_means=means)]))
    )
    deep = Texts(kept["texts"].codes, tuple("[" * 100_000 if "{" in each else each for each in kept["texts"].texts))
    for damage in ({"roundings": kept["roundings"][:1]}, {"texts": deep}):
        with pytest.raises(FormatError):
            unpack_votes("journal", pack({**kept, **damage}))


def test_what_many_ranks_gather_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, looked_at = 40, Mock(wraps=replica_count._is_off)
    monkeypatch.setattr(replica_count, "_is_off", looked_at)
    gathers = Collective(exchange=Exchange.ALL_GATHER)

    def gathered(rank: int) -> Vote:
        pieces = tuple(block(1.0 + other + (rank == 7)) for other in range(ranks))
        return Vote(
            op="gather", type="HcomAllGather", role=Role.COLLECTIVE, number=1, epoch=0, inputs=(str(rank),),
            outputs=(f"all {rank == 7}",), group=WORLD, size=ranks, collective=gathers,
            input_means=(block(1.0 + rank),), output_means=pieces,
        )  # fmt: skip

    found = count_votes(0, [(rank, "n", [gathered(rank)]) for rank in range(ranks)])
    assert [wrong.ranks for wrong in found.sums.wrong] == [(7,)]
    assert looked_at.call_count == 2 * ranks


class _Counting(StoredFile):
    """Counts the bytes that are read of a file."""

    read = 0

    def __init__(self, file: StoredFile) -> None:
        self.path, self.size, self._file = file.path, file.size, file

    def read_into(self, offset: int, buffer: memoryview) -> None:
        _Counting.read += len(buffer)
        self._file.read_into(offset, buffer)

    def close(self) -> None:
        self._file.close()


class _CountingStore(MemoryStore):
    def open(self, path: str) -> StoredFile:
        return _Counting(super().open(path))


def test_bytes_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Counting, "read", 0)
    store = _CountingStore()
    array = np.ones(SIZE, np.float32)
    tensor = stored(tmp_path / "tensor", array, "float32")
    store.put(tensor.path, (tmp_path / "tensor").read_bytes())
    with mounted(str(tmp_path), store):
        assert digest_of(tensor, OF_WHOLE).means
    assert _Counting.read == array.nbytes
