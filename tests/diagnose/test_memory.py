"""Which reader of a tensor read something else than was put out, also where the op that put it out was not dumped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import Array
from diagnosing import verdict_of
from one_cause_each import overwritten
from tiny_network import Network, Part, layers, numbers, source

from precision_tool.lib.compare.folders import CompareOptions
from precision_tool.lib.diagnose.recomputer import Recomputer
from precision_tool.lib.diagnose.verdict_model import Cause, NotChecked, NotCheckedKind, OpResult
from precision_tool.lib.ops.optimizers import updated_inputs
from precision_tool.lib.view.verdict_messages import proof, same_fault

PRODUCER = "drop/mul"


def end_overwritten(array: Array) -> Array:
    flat = array.copy().reshape(-1)
    flat[-16:] = numbers(16, seed=10).astype(array.dtype)
    return flat.reshape(array.shape)


def read_by(*readers: str, wrong: dict[str, Callable[[Array], Array]] | None = None, secret: bool = False) -> Network:
    """The layers, with more ops that read what drop/mul puts out, of which some read it overwritten.

    `secret`: nobody has a formula for drop/mul.
    """
    wrong = wrong or {}
    network = layers()
    if secret:
        network = network.with_part(PRODUCER, type="Secret")
    if "two/MatMul" in wrong:
        network = network.with_part("two/MatMul", read={0: wrong["two/MatMul"]})
    more = [
        Part(name=name, type="Neg", inputs=(PRODUCER,), compute=np.negative, dtype="float16",
             read={0: wrong[name]} if name in wrong else {})
        for name in readers
    ]  # fmt: skip
    return replace(network, parts=(*network.parts, *more))


@pytest.mark.parametrize("benchmark", [True, False])
@pytest.mark.parametrize("reader", ["two/MatMul", "a/Neg"])
def test_recomputing_the_op_tells_which_copy_is_its(tmp_path: Path, reader: str, benchmark: bool) -> None:
    """Of two that read different numbers, be it the first or the last, the one is named that read others."""
    network = read_by("a/Neg", wrong={reader: overwritten})
    found = verdict_of(network.write(tmp_path, leave_out=[PRODUCER], benchmark=benchmark))
    assert (found.culprit, found.cause) == (reader, Cause.STOMP)
    assert found.ranking == (reader, PRODUCER)
    assert found.suspects[0].fact("told_by") == "recomputed"
    assert found.tally.wrong == 0
    assert found.confidence > 0.9
    assert proof(found.suspects[0]).kind == "verdict.proof.copies_recomputed"


def test_what_was_judged_stays_when_the_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The op whose readers differ keeps its judgement, and the verdict says why it does not tell which is right."""

    def too_late(judge: Recomputer, judged: Sequence[OpResult]) -> list[OpResult]:
        judge.deadline = -1.0
        return list(judged)

    monkeypatch.setattr(Recomputer, "recompute_guessed", too_late)
    network = read_by("a/Neg", wrong={"a/Neg": overwritten})
    found = verdict_of(network.write(tmp_path, leave_out=[PRODUCER], benchmark=False))
    assert found.suspects[0].fact("told_by") == "nobody"
    assert (found.tally.right, found.tally.not_recomputed) == (found.tally.ops - 1, 1)  # the random numbers alone
    unsettled = [each for each in found.gaps if isinstance(each, NotChecked) and each.lack is NotCheckedKind.UNSETTLED]
    assert [each.count for each in unsettled] == [1]


@pytest.mark.parametrize("benchmark", [True, False])
def test_what_readers_were_fed_is_the_true_copy(tmp_path: Path, benchmark: bool) -> None:
    """An op without inputs of its own in the dump is not judged by a copy that another op overwrote."""
    network = read_by("a/Neg", "b/Neg", wrong={"two/MatMul": overwritten})
    data = network.write(tmp_path, leave_out=[PRODUCER], without_inputs=["b/Neg"], benchmark=benchmark)
    found = verdict_of(data)
    assert [one.culprit for one in found.suspects] == ["two/MatMul"]
    assert found.tally.wrong == 0


@pytest.mark.parametrize("reader", ["two/MatMul", "b/Neg"])
def test_most_readers_are_right(tmp_path: Path, reader: str) -> None:
    """Nothing tells what the op puts out."""
    network = read_by("a/Neg", "b/Neg", wrong={reader: overwritten}, secret=True)
    found = verdict_of(network.write(tmp_path, leave_out=[PRODUCER], benchmark=False))
    assert (found.culprit, found.cause) == (reader, Cause.STOMP)
    assert found.suspects[0].fact("told_by") == "readers"
    assert found.confidence < 0.9
    assert proof(found.suspects[0]).kind == "verdict.proof.copies_readers"


@pytest.mark.parametrize("reader", ["two/MatMul", "a/Neg"])
def test_the_benchmark_tells(tmp_path: Path, reader: str) -> None:
    network = read_by("a/Neg", wrong={reader: overwritten}, secret=True)
    found = verdict_of(network.write(tmp_path, leave_out=[PRODUCER]))
    assert (found.culprit, found.cause) == (reader, Cause.STOMP)
    assert found.suspects[0].fact("told_by") == "benchmark"
    assert proof(found.suspects[0]).kind == "verdict.proof.copies_benchmark"


@pytest.mark.parametrize("reader", ["two/MatMul", "a/Neg"])
def test_two_copies_of_which_nothing_tells(tmp_path: Path, reader: str) -> None:
    """Both readers are named, and the verdict is no more than a guess."""
    network = read_by("a/Neg", wrong={reader: overwritten}, secret=True)
    found = verdict_of(network.write(tmp_path, leave_out=[PRODUCER], benchmark=False))
    assert found.cause is Cause.STOMP
    assert set(found.ranking) == {"two/MatMul", "a/Neg", PRODUCER}
    assert found.confidence < 0.65
    reason = proof(found.suspects[0])
    assert reason.kind == "verdict.proof.copies_nobody"
    assert {found.culprit, reason.reader} == {"two/MatMul", "a/Neg"}


@pytest.mark.parametrize("limit", [0, 8])
def test_what_is_overwritten_behind_the_elements_that_were_compared(tmp_path: Path, limit: int) -> None:
    """`ac -c --max 8`: figures of the first elements say nothing of the last ones."""
    data = read_by(wrong={"two/MatMul": end_overwritten}).write(tmp_path)
    found = verdict_of(data, options=CompareOptions(limit=limit))
    assert (found.culprit, found.cause) == ("two/MatMul", Cause.STOMP)
    assert found.suspects[0].fact("told_by") == "producer"


def as_singles(array: Array) -> Array:
    return array.astype(np.float32)


def one_less(array: Array) -> Array:
    return array.reshape(-1)[:-1]


@pytest.mark.parametrize("unknown", [as_singles, one_less, None])
@pytest.mark.parametrize("third", ["0/Neg", "b/Neg"])
def test_a_copy_that_cannot_be_held_against_others_has_no_voice(
    tmp_path: Path, third: str, unknown: Callable[[Array], Array] | None
) -> None:
    """Two readers differ and nothing tells which is right: a third that is in another type or cut does not either."""
    readers = sorted(["a/Neg", third])
    wrong = {"two/MatMul": overwritten} | ({third: unknown} if unknown is not None else {})
    data = read_by(*readers, wrong=wrong, secret=True).write(tmp_path, leave_out=[PRODUCER], benchmark=False)
    if unknown is None:
        (path,) = tmp_path.rglob(f"Neg.{third.replace('/', '_')}.*")
        path.write_bytes(path.read_bytes()[:-300])
    found = verdict_of(data)
    assert found.suspects[0].fact("told_by") == "nobody"
    assert set(found.ranking) == {"two/MatMul", "a/Neg", PRODUCER}
    assert found.confidence < 0.65


@pytest.mark.parametrize("leave_out", [[], [PRODUCER]])
def test_all_that_read_one_overwritten_place_are_one_fault(tmp_path: Path, leave_out: list[str]) -> None:
    network = read_by("a/Neg", "b/Neg", wrong={"two/MatMul": overwritten, "b/Neg": overwritten})
    found = verdict_of(network.write(tmp_path, leave_out=leave_out))
    assert (found.culprit, found.cause, len(found.suspects)) == ("two/MatMul", Cause.STOMP, 1)
    assert found.ranking == ("two/MatMul", PRODUCER, "b/Neg")
    assert found.suspects[0].followers == 3  # Tanh, Cast, Square of the first; nothing reads the second
    names = {label.kind: names for label, names in same_fault(found.suspects[0])}
    assert names["verdict.label.other_readers"] == ["b/Neg"]


def test_two_places_that_were_overwritten_are_two_faults(tmp_path: Path) -> None:
    network = read_by("a/Neg", wrong={"two/MatMul": overwritten, "a/Neg": end_overwritten})
    found = verdict_of(network.write(tmp_path))
    assert [one.culprit for one in found.suspects] == ["two/MatMul", "a/Neg"]


@pytest.mark.parametrize("secret", [True, False])
def test_readers_that_agree_accuse_nobody(tmp_path: Path, secret: bool) -> None:
    found = verdict_of(read_by("a/Neg", secret=secret).write(tmp_path, leave_out=[PRODUCER]))
    assert found.cause is Cause.NONE


@pytest.mark.parametrize(
    ("op_type", "is_variable"),
    [
        ("SGD", True),
        ("LambApplyWeightAssign", True),
        ("AdamApplyOneAssign", True),
        ("FusedMulApplyMomentum", True),
        ("ResourceScatterNdUpdate", True),
        ("Sub", False),
    ],
)
def test_an_updated_variable_may_change_again(tmp_path: Path, op_type: str, is_variable: bool) -> None:
    """What an update puts out is the variable, which later updates write: its readers may read other numbers."""
    network = layers()
    more = [
        source("learned", numbers(8, 12, seed=5), op_type="Variable"),
        Part(name="update", type=op_type, inputs=("learned", "IteratorGetNext"), compute=np.subtract),
        Part(name="a/Neg", type="Neg", inputs=("update",), compute=np.negative),
        Part(name="b/Neg", type="Neg", inputs=("update",), compute=np.negative, read={0: overwritten}),
    ]
    found = verdict_of(replace(network, parts=(*network.parts, *more)).write(tmp_path, benchmark=False))
    assert found.cause is (Cause.NONE if is_variable else Cause.STOMP)


def test_which_inputs_an_update_writes() -> None:
    """As the prototypes of the ops say; what no update is writes none."""
    assert updated_inputs("LambApplyWeightAssign") == (4,)
    assert updated_inputs("SGD") == (0, 3, 5)
    assert updated_inputs("ScatterNdAdd") == updated_inputs("ResourceApplyAdam") == (0,)
    assert [updated_inputs(name) for name in ("ScatterNd", "ScatterElements", "LambNextMV", "AdamApplyOne", "Add")] == [
        ()
    ] * 5
