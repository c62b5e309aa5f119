"""Accusations of single leaves that the other leaves of a study refute, and the graph of each rank."""

from __future__ import annotations

import shutil
from pathlib import Path
from statistics import median
from unittest.mock import Mock

import numpy as np
import pytest
from diagnosing import culprit_of, studied

from precision_tool.lib.data import graph_choice
from precision_tool.lib.demo import ranks as demo
from precision_tool.lib.demo.device import Fault
from precision_tool.lib.demo.dump_writer import Array
from precision_tool.lib.demo.ranks import generate_ranks
from precision_tool.lib.diagnose import study_peers
from precision_tool.lib.diagnose.study_conclusion import Reach
from precision_tool.lib.diagnose.study_journal import Accused, Excuse, LeafState
from precision_tool.lib.diagnose.study_leaves import StudyLeaf
from precision_tool.lib.diagnose.study_peers import with_excused
from precision_tool.lib.diagnose.verdict_model import Cause, Proof
from precision_tool.lib.messages import render
from precision_tool.lib.messages.errors import FormatError

_OP = "gradients/loss/SparseSoftmaxCrossEntropyWithLogits_grad/mul"
_RANKS = 3


def leaf(step: int, rank: int, own: float, *, sized: tuple[int, ...] | None = None) -> tuple[LeafState, float]:
    """A judged leaf and the own error of its op, which is accused for these outputs; None: it is not."""
    place = StudyLeaf(
        path=f"{step}/{rank}", data="", step=step, rank=rank, device=rank, model="", files=1, nbytes=1, fingerprint=""
    )
    accused = Accused(
        op="op", type="Exp", cause=Cause.KERNEL, proof=Proof.RECOMPUTED, confidence=0.95, number=1, epoch=0,
        sized=sized or (),
    )  # fmt: skip
    state = LeafState(leaf=place, network="net", has_verdict=True, accused=() if sized is None else (accused,))
    return state, own


def accusing(*leaves: tuple[LeafState, float]) -> list[tuple[int, int]]:
    """Steps and ranks of the leaves that still accuse the op in view of the others."""
    own = {state.leaf.path: {("op", 0): error} for state, error in leaves}
    states = with_excused([state for state, _ in leaves], lambda state, ops: own[state.leaf.path])
    assert all(item.excuse is Excuse.PEERS for state in states for item in state.excused)
    return [(state.leaf.step, state.leaf.rank) for state in states if state.accused]


def test_an_error_that_peers_have_as_well_accuses_nobody_and_one_that_stands_out_does() -> None:
    peers = [leaf(0, rank, 1e-3) for rank in range(1, 8)]
    assert accusing(leaf(0, 0, 1.2e-3, sized=(0,)), *peers) == []
    assert accusing(leaf(0, 0, 5e-3, sized=(0,)), *peers) == [(0, 0)]
    assert accusing(leaf(0, 0, float("nan"), sized=(0,)), *peers) == [(0, 0)]
    assert accusing(leaf(0, 0, 1.2e-3, sized=()), *peers) == [(0, 0)]  # more than its size speaks against it
    assert accusing(leaf(0, 0, 1.2e-3, sized=(0, 1)), *peers) == [(0, 0)]  # of its other output nothing is known
    assert accusing(leaf(0, 0, 1.2e-3, sized=(0,))) == [(0, 0)]
    # A fault of the op on every rank has the same size everywhere, and is a fault.
    wrong = [leaf(1, rank, 0.1, sized=(0,)) for rank in range(7)]
    assert len(accusing(*wrong, leaf(1, 7, 0.1))) == 7
    assert len(accusing(*(leaf(0, rank, 1e-6) for rank in range(7)), *wrong)) == 7
    # What later steps show depends on this one.
    assert accusing(leaf(0, 0, 1.2e-3, sized=(0,)), *(leaf(1, rank, 1e-3) for rank in range(8))) == [(0, 0)]


def test_peers_of_many_leaves_are_looked_at_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    medians = Mock(wraps=median)
    monkeypatch.setattr(study_peers, "median", medians)
    right = [leaf(0, rank, 1e-6) for rank in range(40)]
    assert len(accusing(*right, *(leaf(1, rank, 0.1, sized=(0,)) for rank in range(40)))) == 40
    assert medians.call_count == 1


def test_the_more_leaves_are_judged_the_more_an_error_must_stand_out() -> None:
    wrong = leaf(0, 0, 5e-3, sized=(0,))
    assert accusing(wrong, *(leaf(0, rank, 1e-3) for rank in range(1, 2_000))) == [(0, 0)]
    assert accusing(wrong, *(leaf(0, rank, 1e-3) for rank in range(1, 3_000))) == []


def test_a_study_goes_on_where_other_ranks_are_off_by_as_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks are imprecise, and one element near zero is far off on rank 1 of step 0; rank 2 is wrong in step 1."""
    calls = 0

    def spoil(result: Array, rng: np.random.Generator) -> Array:
        nonlocal calls
        step, rank = calls // (2 * _RANKS), calls % _RANKS
        calls += 1
        made: Array = result * (1 + np.float32(5e-5) * rng.choice([-1, 1], result.shape)).astype(result.dtype)
        if (step, rank) == (0, 1):
            made.reshape(-1)[np.argmin(np.abs(made))] += 1e-4 * np.linalg.norm(made)
        if (step, rank) == (1, 2):
            made[-1] = 0
        return made

    fault = Fault(name="imprecise", summary="", target="mul", apply=spoil)
    monkeypatch.setitem(demo.RANK_FAULTS, "imprecise", fault)
    monkeypatch.setitem(demo._TARGETS, "mul", _OP)
    truth = generate_ranks(tmp_path, ranks=_RANKS, steps=2, fault="imprecise", fault_step=0, benchmark="none")
    study = studied(tmp_path / "work", tmp_path / truth.data[0])
    culprit = culprit_of(study)
    assert (culprit.step, culprit.ranks, culprit.op, culprit.reach) == (1, (2,), _OP, Reach.ONE_RANK)
    (noted,) = (note for note in study.notes if note.kind == "study.note.excused.peers")
    assert (noted.count, noted.op) == (1, _OP)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three ranks without a fault; the graph of the first says another factor of the mean loss."""
    root = tmp_path_factory.mktemp("clean")
    data = root / generate_ranks(root, ranks=3, steps=1, fault="none", benchmark="none").data[0]
    for file in (data / "npu/debug_0/graph/pid_4200_deviceid_0").glob("*_Build.txt"):
        text = file.read_text()
        file.unlink()  # all devices' are links to one file
        file.write_text(text.replace("f: 0.25\n", "f: 0.75\n"))
    return data


def test_each_rank_is_judged_by_the_graph_of_its_device(clean: Path, tmp_path: Path) -> None:
    study = studied(tmp_path / "work", clean)
    culprit = culprit_of(study)
    assert (culprit.op, culprit.ranks, culprit.right) == ("loss/Mean", (0,), (1, 2))
    assert not [note for note in study.notes if note.kind == "study.note.borrowed_graph"]


@pytest.mark.parametrize("named", [True, False])
def test_another_ranks_graph_accuses_nobody_by_its_attributes(clean: Path, tmp_path: Path, named: bool) -> None:
    """A folder of a process that names no device may be any rank's."""
    data = shutil.copytree(clean, tmp_path / "data")
    graphs = data / "npu" / "debug_0" / "graph"
    shutil.rmtree(graphs / "pid_4201_deviceid_1")
    if named:
        shutil.rmtree(graphs / "pid_4202_deviceid_2")
    else:
        (graphs / "pid_4200_deviceid_0").rename(graphs / "pid_4200")
        (graphs / "pid_4202_deviceid_2").rename(graphs / "pid_4202")
    study = studied(tmp_path / "work", data, ranks="1-2")
    assert study.conclusion.culprit is None
    notes = {note.kind: note for note in study.notes}
    assert notes["study.note.borrowed_graph"].count == notes["study.note.excused.graph"].count == 2
    assert notes["study.note.excused.graph"].op == "loss/Mean"
    assert ("there is no graph of device 1" in render(notes["study.note.borrowed_graph"])) is named


def test_graphs_of_other_processes_are_read_once_and_may_be_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: str) -> bytes:
        if path.endswith("locked"):
            raise FormatError("not readable")
        return Path(path).read_bytes()

    reads = Mock(wraps=read)
    monkeypatch.setattr("precision_tool.lib.data.graph_choice.read_bytes", reads)
    own, like, locked, other = (str(tmp_path / name) for name in ("own", "like", "locked", "other"))
    for path in (own, like, locked, other):
        Path(path).write_bytes(b"other" if path == other else b"graph")
    for _ in range(2):
        assert [graph_choice._has_same_bytes(path, own) for path in (like, locked, other)] == [True, False, False]
    assert reads.call_count == 4
