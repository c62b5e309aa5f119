"""Studies of msprobe's dumps: steps, ranks and processes, and the votes of recorded collectives."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from msprobe_files import forward, literal, tensor, write_leaf

from precision_tool.lib.compare.scheduler import Resources
from precision_tool.lib.diagnose.study import Study, run_study
from precision_tool.lib.diagnose.study_conclusion import Ground, Reach
from precision_tool.lib.diagnose.study_leaves import Listing, StudyLeaf, list_leaves, pair_benchmarks, sources_of
from precision_tool.lib.diagnose.study_plan import StudyOptions
from precision_tool.lib.messages import Message
from precision_tool.lib.view.study_screen import reach

Array = npt.NDArray[Any]
RANKS = 4
RELU = "Functional.relu.0.forward"


class Step:
    """The calls of one rank in one step."""

    def __init__(self, statistics: bool = False) -> None:
        self.entries: dict[str, Any] = {}
        self.tensors: dict[str, Array] = {}
        self._statistics = statistics

    def call(self, name: str, *inputs: Any, output: Any, **kwargs: Any) -> None:
        """Record a call; arrays and lists of arrays are saved, with the outputs."""
        self.entries[name] = forward(
            *(self._of(f"{name}.input.{number}", value) for number, value in enumerate(inputs)),
            output=[self._of(f"{name}.output.{number}", value) for number, value in enumerate(output)],
            **kwargs,
        )

    def _of(self, slot: str, value: Any) -> Any:
        if isinstance(value, list):
            return [self._of(f"{slot}.{number}", item) for number, item in enumerate(value)]
        if not isinstance(value, np.ndarray):
            return value
        if self._statistics:
            return tensor(value)
        self.tensors[f"{slot}.pt"] = value
        return tensor(value, f"{slot}.pt")

    def relu(self, x: Array, wrong: bool = False) -> None:
        """Record a relu."""
        self.call(RELU, x, output=[np.where(x > 1, 0, np.maximum(x, 0)) if wrong else np.maximum(x, 0)])

    def write(self, folder: Path) -> Path:
        """Write the folder of a rank."""
        return write_leaf(folder, self.entries, self.tensors)


def values(*seed: int, size: int = 96) -> Array:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def total_of(arrays: Sequence[Array]) -> Array:
    return np.asarray(np.sum(arrays, axis=0, dtype=np.float32))


def group(*ranks: int) -> dict[str, Any]:
    return {"type": "torch.ProcessGroup", "group_ranks": list(ranks), "group_id": "0"}


def operation(name: str) -> dict[str, Any]:
    return literal(f"RedOpType.{name}", "torch.distributed.ReduceOp")


def study(root: Path, **options: Any) -> Study:
    kept = root.parent / f"{root.name}_kept"
    kept.mkdir(exist_ok=True)
    return run_study(StudyOptions(folders=[str(root)], **options), str(kept), Resources(1))


def leaves(root: Path) -> Listing:
    return list_leaves(sources_of([str(root)]))


def places(found: Listing) -> list[tuple[int, int]]:
    return [(leaf.step, leaf.rank) for leaf in found.leaves]


def relu_run(folder: Path, names: list[str], wrong: str = "", factor: float = 1.0) -> Path:
    """A run whose steps and ranks, `step0/rank1`, compute one relu each."""
    for name in names:
        step = Step()
        step.relu(factor * values(*map(ord, name)), wrong=name == wrong)
        step.write(folder / name)
    return folder


# --- leaves ---


def test_steps_and_ranks_and_their_benchmarks(tmp_path: Path) -> None:
    names = [f"step{step}/rank{rank}" for step in (0, 10) for rank in (0, 1)]
    relu_run(tmp_path / "d/npu/run", names)
    relu_run(tmp_path / "d/gpu", ["step0/rank0", "step10/rank0"])
    found = leaves(tmp_path / "d")
    assert places(found) == [(0, 0), (0, 1), (10, 0), (10, 1)]
    assert all(leaf.files == 2 for leaf in found.leaves)
    paired = pair_benchmarks(found.leaves).folders
    # The data of a rank are its own: another rank's benchmark does not stand for it.
    assert {Path(path).parts[-2:]: Path(side.path).parts[-2:] for path, side in paired.items()} == {
        ("step0", "rank0"): ("step0", "rank0"),
        ("step10", "rank0"): ("step10", "rank0"),
    }


@pytest.mark.parametrize("level", ["", "step1", "step1/rank1"])
def test_any_level_of_a_dump_is_a_data_folder(tmp_path: Path, level: str) -> None:
    root = relu_run(tmp_path / "dump", ["step0/rank0", "step0/rank1", "step1/rank0", "step1/rank1"])
    every = [(0, 0), (0, 1), (1, 0), (1, 1)]
    expected = {"": every, "step1": every[2:], "step1/rank1": every[3:]}[level]
    assert places(leaves(root / level)) == expected


def test_the_dumps_of_a_folder_for_pytorch_are_the_npus(tmp_path: Path) -> None:
    relu_run(tmp_path / "d/pt/npu", ["step0/rank0"])
    relu_run(tmp_path / "d/pt/gpu", ["step0/rank0"])
    found = leaves(tmp_path / "d")
    assert [Path(leaf.path).parts[-4:-2] for leaf in found.leaves] == [("pt", "npu")]
    assert len(pair_benchmarks(found.leaves).folders) == 1


def test_processes_are_matched_whatever_their_numbers(tmp_path: Path) -> None:
    relu_run(tmp_path / "d/npu", ["step0/proc7", "step1/proc7"])
    relu_run(tmp_path / "d/gpu", ["step0/proc4321", "step1/proc4321"])
    found = leaves(tmp_path / "d")
    assert places(found) == [(0, 0), (1, 0)]
    sides = [Path(side.path).parts[-2:] for side in pair_benchmarks(found.leaves).folders.values()]
    assert sides == [("step0", "proc4321"), ("step1", "proc4321")]


def test_of_two_processes_in_a_step_the_later_one_is_the_dump_made_anew(tmp_path: Path) -> None:
    root = relu_run(tmp_path / "d/npu", ["step0/proc9", "step0/proc12"])
    os.utime(root / "step0/proc12/dump.json", (1.6e9, 1.6e9))
    found = leaves(tmp_path / "d")
    assert [Path(leaf.path).name for leaf in found.leaves] == ["proc9"]
    assert [note.kind for note in found.notes] == ["study.note.older"]


def test_a_leaf_changes_when_a_tensor_does(tmp_path: Path) -> None:
    root = relu_run(tmp_path / "d/npu", ["step0/rank0"])

    def leaf() -> StudyLeaf:
        return leaves(tmp_path / "d").leaves[0]

    before = leaf()
    file = next((root / "step0/rank0/dump_tensor_data").iterdir())
    file.write_bytes(file.read_bytes() + b"\0")
    assert leaf().fingerprint != before.fingerprint
    assert leaf().nbytes == before.nbytes + 1


# --- verdicts ---


def test_the_step_and_rank_of_a_wrong_call_is_named(tmp_path: Path) -> None:
    names = [f"step{step}/rank{rank}" for step in (0, 1) for rank in (0, 1)]
    relu_run(tmp_path / "d/npu", names, wrong="step0/rank1")
    relu_run(tmp_path / "d/gpu", names)
    found = study(tmp_path / "d").conclusion.culprit
    assert found is not None
    assert (found.step, found.rank, found.op, found.ground) == (0, 1, RELU, Ground.VERDICT)
    assert (found.reach, found.right) == (Reach.ONE_RANK, (0,))


def test_a_study_goes_on_where_it_ended_and_workers_find_the_same(tmp_path: Path) -> None:
    names = [f"step{step}/rank{rank}" for step in (0, 1) for rank in (0, 1)]
    relu_run(tmp_path / "d/npu", names, wrong="step1/rank0")
    first, second, by_workers = tmp_path / "kept", tmp_path / "d_kept", tmp_path / "other"
    for folder in (first, by_workers):
        folder.mkdir()
    whole = study(tmp_path / "d", steps="1")
    options = StudyOptions(folders=[str(tmp_path / "d")])
    again = run_study(options, str(second), Resources(1))
    with ProcessPoolExecutor(2) as pool:
        shared = run_study(options, str(by_workers), Resources(2, pool))
    assert whole.conclusion.culprit is not None
    assert again.conclusion.culprit == shared.conclusion.culprit
    assert again.conclusion.culprit is not None
    assert (again.conclusion.culprit.step, again.conclusion.culprit.rank) == (1, 0)
    assert len(again.leaves) == len(shared.leaves) == 4


@pytest.mark.parametrize(("number", "accused"), [(0, True), (5, False)])
def test_weights_of_a_later_step_were_trained_on_both_sides(tmp_path: Path, number: int, accused: bool) -> None:
    for side, factor in (("npu", 1.1), ("gpu", 1.0)):
        step = Step()
        x, weight = values(1, size=24).reshape(4, 6), np.float32(factor) * values(2, size=18).reshape(3, 6)
        step.call("Functional.linear.0.forward", x, weight, output=[x @ weight.T])
        module = "Module.head.Linear.forward.0"
        step.call(module, x, output=[x @ weight.T])
        step.entries[module]["parameters"] = {"weight": step.entries["Functional.linear.0.forward"]["input_args"][1]}
        folder = tmp_path / "d" / side / f"step{number}/rank0"
        write_leaf(folder, step.entries, step.tensors, construct={"Functional.linear.0.forward": module, module: None})
    found = study(tmp_path / "d").conclusion.culprit
    assert (found is not None and found.cause == "weights") == accused


def test_another_tensor_with_the_same_figures_was_not_overwritten(tmp_path: Path) -> None:
    """As biases that a first step of Adam has moved by its rate: what differs is their order."""
    step = Step()
    x = np.repeat(np.array([0.5, -0.5], np.float32), 16)
    step.call("Functional.relu.0.forward", x, output=[np.maximum(x, 0)])
    y = np.roll(np.maximum(x, 0), 5)
    step.call("Functional.relu.1.forward", y, output=[y])
    step.write(tmp_path / "d/step0/rank0")
    assert study(tmp_path / "d").conclusion.culprit is None


# --- collectives ---


def parts(rank: int, seed: int) -> list[Array]:
    return [values(seed, rank, piece) for piece in range(RANKS)]


def spoiled(array: Array) -> Array:
    wrong = array.copy()
    wrong[:6] += 0.5
    return wrong


def exchanges(step: Step, rank: int, wrong: str = "", seed: int = 0) -> None:
    """Record every kind of collective; that named `wrong` gives this rank something else."""
    every = [values(seed, other) for other in range(RANKS)]
    mine = every[rank]
    total, pieces = total_of(every), [parts(other, seed) for other in range(RANKS)]
    scattered = total_of([pieces[other][rank] for other in range(RANKS)])
    received = [pieces[other][rank] for other in range(RANKS)]
    pair = (0, 1) if rank < 2 else (2, 3)

    def came(name: str, array: Array) -> Array:
        return spoiled(array) if name == wrong else array

    def call(name: str, *inputs: Any, output: Any, **kwargs: Any) -> None:
        step.call(f"Distributed.{name}.forward", *inputs, output=output, **kwargs)

    call("all_reduce.0", mine, output=[came("all_reduce.0", total)])
    call("all_reduce.1", mine, output=[came("all_reduce.1", np.array(np.max(every, axis=0)))], op=operation("MAX"))
    call("all_reduce.2", mine, operation("MIN"), output=[came("all_reduce.2", np.array(np.min(every, axis=0)))])
    call("all_reduce.3", mine, output=[came("all_reduce.3", total / RANKS)], op=operation("AVG"))
    of_pair = every[pair[0]] + every[pair[1]]
    call("all_reduce.4", mine, output=[came("all_reduce.4", of_pair)], group=group(*pair))
    call("reduce.0", mine, literal(2), output=[came("reduce.0", total if rank == 2 else mine)])
    call("broadcast.0", mine, output=[came("broadcast.0", every[1])], src=literal(1))
    gathered = [came("all_gather.0", array) if at == 3 else array for at, array in enumerate(every)]
    call("all_gather.0", None, mine, output=[gathered, mine])
    whole = np.concatenate(every)
    call("all_gather_into_tensor.0", None, mine, output=[came("all_gather_into_tensor.0", whole), mine])
    call("reduce_scatter.0", None, pieces[rank], output=[came("reduce_scatter.0", scattered), pieces[rank]])
    sent = np.concatenate(pieces[rank])
    call("reduce_scatter_tensor.0", None, sent, output=[came("reduce_scatter_tensor.0", scattered), sent])
    last = [*received[:-1], came("all_to_all.0", received[-1])]
    call("all_to_all.0", None, pieces[rank], output=[last, pieces[rank]])
    single = came("all_to_all_single.0", np.concatenate(received))
    call("all_to_all_single.0", None, sent, output=[single, sent], group=group(*range(RANKS)))


NAMES = (
    "all_reduce.0", "all_reduce.1", "all_reduce.2", "all_reduce.3", "all_reduce.4", "reduce.0", "broadcast.0",
    "all_gather.0", "all_gather_into_tensor.0", "reduce_scatter.0", "reduce_scatter_tensor.0", "all_to_all.0",
    "all_to_all_single.0",
)  # fmt: skip


def trained_together(root: Path, wrong: str = "", bad: tuple[int, ...] = (2,), ranks: int = RANKS) -> Path:
    for rank in range(ranks):
        step = Step()
        step.relu(values(9, rank))
        exchanges(step, rank, wrong if rank in bad else "")
        step.write(root / f"step0/rank{rank}")
    return root


def test_right_collectives_accuse_nobody(tmp_path: Path) -> None:
    found = study(trained_together(tmp_path / "d"))
    assert found.conclusion.culprit is None
    (votes,) = found.votes
    checked = {op for op, _ in votes.sums.right}
    assert checked == {f"Distributed.{name}.forward" for name in NAMES}
    assert not votes.departures


@pytest.mark.parametrize("name", NAMES)
def test_the_rank_that_a_collective_gave_something_else_is_named(tmp_path: Path, name: str) -> None:
    found = study(trained_together(tmp_path / "d", wrong=name)).conclusion.culprit
    assert found is not None
    assert (found.op, found.cause) == (f"Distributed.{name}.forward", "communication")
    assert (found.step, found.ranks) == (0, (2,))
    if found.reach is Reach.ONE_RANK:  # by votes or by what was put in, never by what the rank was fed
        assert reach(found, [0]).fields["blame"] == Message("study.blame.link")


def test_a_sum_that_is_wrong_on_all_ranks_is_told_by_what_they_put_in(tmp_path: Path) -> None:
    found = study(trained_together(tmp_path / "d", wrong="all_reduce.0", bad=(0, 1, 2, 3))).conclusion.culprit
    assert found is not None
    assert (found.op, found.ground) == ("Distributed.all_reduce.0.forward", Ground.SUM)
    assert found.ranks == (0, 1, 2, 3)


def test_a_group_of_which_ranks_were_not_dumped_tells_nothing(tmp_path: Path) -> None:
    # Of three of four ranks nothing that all put in is known; what a rank alone sends is.
    found = study(trained_together(tmp_path / "d", ranks=3))
    (votes,) = found.votes
    assert found.conclusion.culprit is None
    assert "Distributed.all_to_all_single.0.forward" not in {op for op, _ in votes.sums.right}
    assert ("Distributed.all_reduce.4.forward", (0, 1)) in votes.sums.right


def test_statistics_alone_tell_a_wrong_sum(tmp_path: Path) -> None:
    for rank in range(3):
        step = Step(statistics=True)
        for number in range(3):
            inputs = [values(number, other) + 1 for other in range(3)]
            total = total_of(inputs) * np.float32(1.2 if number == 1 else 1)
            step.call(f"Distributed.all_reduce.{number}.forward", inputs[rank], output=[total])
        step.write(tmp_path / f"d/step0/rank{rank}")
    found = study(tmp_path / "d").conclusion.culprit
    assert found is not None
    assert (found.op, found.ground) == ("Distributed.all_reduce.1.forward", Ground.SUM)


def test_what_was_recorded_before_it_had_come_is_no_result(tmp_path: Path) -> None:
    for rank in range(2):
        step = Step()
        step.relu(values(9, rank))
        every = [values(1, other) for other in range(2)]
        for number in range(3):
            result = every[rank] if number == 1 else every[0] + every[1]
            name = f"Distributed.all_reduce.{number}.forward"
            step.call(name, every[rank], output=[result], async_op=literal(True))
        step.write(tmp_path / f"d/step0/rank{rank}")
    assert study(tmp_path / "d").conclusion.culprit is None


def test_ranks_count_the_collectives_of_each_group_by_themselves(tmp_path: Path) -> None:
    """Rank 2 alone took part in a group of its own before: the numbers in its names are other ones."""
    for rank in range(3):
        step = Step()
        number = 0
        if rank == 2:
            step.call("Distributed.all_reduce.0.forward", values(7), output=[values(7)], group=group(2))
            number = 1
        for each in range(3):
            every = [values(each, other) for other in range(3)]
            total = total_of(every)
            result = spoiled(total) if (rank, each) == (2, 1) else total
            step.call(f"Distributed.all_reduce.{number + each}.forward", every[rank], output=[result])
        step.write(tmp_path / f"d/step0/rank{rank}")
    found = study(tmp_path / "d")
    assert found.conclusion.culprit is not None
    assert found.conclusion.culprit.ranks == (2,)
    assert len(found.votes[0].sums.right) == 2


def test_a_parameter_that_is_updated_otherwise_shows_the_device(tmp_path: Path) -> None:
    weight, gradient = values(1, size=18).reshape(3, 6), values(2, size=18).reshape(3, 6)
    for rank in range(3):
        step = Step()
        x = values(3, rank, size=24).reshape(4, 6)
        step.call("Functional.linear.0.forward", x, weight, output=[x @ weight.T])
        for call in step.entries.values():
            call["input_args"][1]["requires_grad"] = True
        updated = weight - gradient
        # An API that is not recomputed: only the other ranks tell.
        step.call("Tensor.own_step_.0.forward", weight, gradient, output=[spoiled(updated) if rank == 1 else updated])
        step.write(tmp_path / f"d/step0/rank{rank}")
    found = study(tmp_path / "d").conclusion.culprit
    assert found is not None
    assert (found.op, found.cause, found.ranks) == ("Tensor.own_step_.0.forward", "device", (1,))
    assert found.is_fed_alike


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_parameter_that_replicas_do_not_share_is_named_once(tmp_path: Path, ranks: int) -> None:
    """The gradient is the same on all, as that of replicas is: parts of a parameter have their own."""
    weight, gradient = values(1, size=18).reshape(3, 6), values(2, size=18).reshape(3, 6)
    for number in (0, 1):
        for rank in range(ranks):
            step = Step()
            own = weight * np.float32(1.5) if rank == 1 else weight
            x = values(3, rank, size=24).reshape(4, 6)
            step.call("Functional.linear.0.forward", x, own, output=[x @ own.T])
            step.entries["Functional.linear.0.forward"]["input_args"][1]["requires_grad"] = True
            decayed = own * np.float32(0.5)
            step.call("Tensor.own_decay_.0.forward", own, output=[decayed])
            step.call("Tensor.own_step_.0.forward", decayed, gradient, output=[decayed - gradient])
            step.call("Distributed.all_reduce.0.forward", gradient, output=[ranks * gradient])
            step.write(tmp_path / f"d/step{number}/rank{rank}")
    conclusion = study(tmp_path / "d").conclusion
    found = conclusion.culprit
    assert found is not None
    assert (found.step, found.op, found.cause) == (0, "Functional.linear.0.forward.input.1", "weights")
    assert found.ground is Ground.REPLICAS
    assert found.ranks == ((1,) if ranks == 3 else (0, 1))
    assert not conclusion.further


def test_parts_of_a_parameter_are_no_replicas(tmp_path: Path) -> None:
    for rank in range(2):
        step = Step()
        own, x = values(1, rank, size=18).reshape(3, 6), values(3, size=24).reshape(4, 6)
        step.call("Functional.linear.0.forward", x, own, output=[x @ own.T])
        step.entries["Functional.linear.0.forward"]["input_args"][1]["requires_grad"] = True
        gradient = values(2, rank, size=18).reshape(3, 6)
        step.call("Tensor.own_step_.0.forward", own, gradient, output=[own - gradient])
        total = total_of([values(5, 0), values(5, 1)])
        step.call("Distributed.all_reduce.0.forward", values(5, rank), output=[total])
        step.write(tmp_path / f"d/step0/rank{rank}")
    assert study(tmp_path / "d").conclusion.culprit is None


def test_ranks_with_the_same_modules_are_of_one_network(tmp_path: Path) -> None:
    """One rank makes another call outside of them, and its tensors happen to be connected otherwise."""
    for rank in range(2):
        step = Step()
        x = np.zeros(96, np.float32) if rank else values(4)
        step.relu(x, wrong=not rank)
        if rank:
            step.call("Tensor.sum.0.forward", x, output=[x.sum(keepdims=True)])
        module = "Module.act.ReLU.forward.0"
        step.call(module, x, output=[np.maximum(x, 0)])
        folder = tmp_path / f"d/step0/rank{rank}"
        write_leaf(folder, step.entries, step.tensors, construct={RELU: module, module: None})
    found = study(tmp_path / "d")
    assert len({state.network for state in found.leaves}) == 1
    assert found.conclusion.culprit is not None
    assert found.conclusion.culprit.right == (1,)
