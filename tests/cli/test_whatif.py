"""`whatif`: a mended op, and what is left of the deviation; beside the same networks without their faults."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import Array
from command_line import fingerprint, tool
from tiny_network import Network, Part, binary, cast, matmul, numbers, source, unary

from precision_tool.lib.data.settings import load_settings
from precision_tool.lib.diagnose.prove import explains_nothing
from precision_tool.lib.diagnose.verdict_model import Suspect
from precision_tool.lib.diagnose.whatif import Effect, Source, Stop, WhatIf
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError
from precision_tool.lib.session import Session


def total(name: str, fed: str) -> Part:
    return Part(
        name=name, type="ReduceSumD", inputs=(fed,), compute=np.sum, originals=(name,),
        attrs={"axes": (int, [0, 1]), "keep_dims": False},
    )  # fmt: skip


def network() -> Network:
    """Two branches that meet in the loss; a third that ends by itself."""
    return Network(
        parts=(
            source("IteratorGetNext", numbers(8, 12, seed=1)),
            source("w", numbers(12, 16, seed=2, scale=0.3), op_type="Variable"),
            source("noise/RandomUniform", numbers(8, 16, seed=4, scale=0.1), op_type="RandomUniform"),
            cast("x16", "IteratorGetNext"), cast("w16", "w"), cast("n16", "noise/RandomUniform"),
            matmul("product", "x16", "w16"), unary("left", "Tanh", "product"), unary("right", "Relu", "product"),
            binary("sum", "Add", "left", "right"), binary("noisy", "Add", "sum", "n16"),
            cast("back", "noisy", "float32"), unary("squares", "Square", "back", "float32"),
            total("loss", "squares"), unary("aside", "Relu", "left"),
        )
    )  # fmt: skip


def larger(array: Array) -> Array:
    return np.asarray(array * np.asarray(1.5, array.dtype))


def stepped(array: Array) -> Array:
    """Some of its bytes are overwritten."""
    changed = array.copy()
    changed[2:5] = 7
    return changed


def loss_of(folder: Path) -> float:
    """Return the loss of a network that was written, as its dump has it."""
    session = Session(load_settings({"data": str(folder), "work": str(folder / "work")}))
    return float(np.asarray(session.tensor("loss", slot="output:0")).reshape(-1)[0])


def what_if(folder: Path, *names: str) -> tuple[WhatIf, ...]:
    return Session(load_settings({"data": str(folder), "work": str(folder / "work")})).what_if(*names)


@pytest.mark.parametrize(
    ("part", "changes", "origin"),
    [
        ("left", {"wrong": larger}, Source.RECOMPUTED),
        ("w", {"npu": numbers(12, 16, seed=5), "golden": numbers(12, 16, seed=2, scale=0.3)}, Source.BENCHMARK),
        ("noise/RandomUniform", {"npu": numbers(8, 16, seed=6), "golden": numbers(8, 16, seed=4, scale=0.1)},
         Source.BENCHMARK),
        ("IteratorGetNext", {"npu": numbers(8, 12, seed=7), "golden": numbers(8, 12, seed=1)}, Source.BENCHMARK),
        ("noisy", {"read": {0: stepped}}, Source.PRODUCER),
        ("x16", {"dtype": "int32", "compute": np.trunc, "attrs": {"dst_type": 3}}, Source.UNCAST),
    ],
)  # fmt: skip
def test_the_mended_step_is_the_clean_one(
    tmp_path: Path, part: str, changes: dict[str, object], origin: Source
) -> None:
    clean = loss_of(network().write(tmp_path / "clean"))
    (result,) = what_if(network().with_part(part, **changes).write(tmp_path / "faulty"), part)
    assert result.sources == (origin,)
    assert result.effect is Effect.EXPLAINS
    assert not result.stopped
    assert result.loss is not None
    assert result.loss.mended == pytest.approx(clean, rel=2e-3)
    assert result.loss.dumped is not None
    assert abs(result.loss.dumped / clean - 1) > 0.01
    assert result.by_loss
    assert result.explained is not None
    assert result.explained > 0.95
    assert result.before is not None
    assert result.after is not None
    assert result.after.cosine > 0.99999


def test_two_faults_are_told_apart_and_an_innocent_op_changes_nothing(tmp_path: Path) -> None:
    made = network().with_part("left", wrong=larger).with_part("right", wrong=larger)
    folder = made.write(tmp_path / "both")
    left, right, innocent, together = what_if(folder, "left", "right", "squares")
    only = {name: loss_of(network().with_part(other, wrong=larger).write(tmp_path / name))
            for name, other in (("left", "right"), ("right", "left"))}  # fmt: skip
    for name, result in (("left", left), ("right", right)):
        assert result.effect is Effect.PARTLY
        assert result.loss is not None
        assert result.loss.mended == pytest.approx(only[name], rel=2e-3)
    assert innocent.effect is Effect.NOTHING
    assert together.effect is Effect.EXPLAINS
    assert together.ops == ("left", "right", "squares")
    # `aside` depends on the left one alone.
    aside = [each.is_changed for result in (left, right) for each in result.outputs if each.name.startswith("aside")]
    assert aside == [True, False]


def test_an_error_downstream_stays_where_the_op_before_it_is_mended(tmp_path: Path) -> None:
    """`squares` keeps what it is off by, a third of what it put out: mending `left` must not mend it too."""
    made = network().with_part("left", wrong=larger).with_part("squares", wrong=larger)
    clean = loss_of(network().write(tmp_path / "clean"))
    dumped = loss_of(made.write(tmp_path / "both"))
    (result,) = what_if(tmp_path / "both", "left")
    assert result.loss is not None
    assert result.loss.mended == pytest.approx(clean + dumped / 3, rel=2e-3)


def test_what_is_beyond_its_type_is_kept_in_float32(tmp_path: Path) -> None:
    large = np.full((4, 4), 300.0, np.float32) + numbers(4, 4)
    parts = (
        source("x", large), cast("x16", "x"), binary("product", "Mul", "x16", "x16"), unary("same", "Relu", "product"),
        cast("back", "same", "float32"), total("loss", "back"),
    )  # fmt: skip
    (result,) = what_if(Network(parts=parts).write(tmp_path), "product")
    assert result.is_wide
    assert result.effect is Effect.EXPLAINS
    assert result.loss is not None
    assert result.loss.mended == pytest.approx(float(np.square(large).sum()), rel=2e-3)


def test_without_a_formula_it_stops_and_says_where(tmp_path: Path) -> None:
    folder = network().with_part("right", wrong=larger).with_part("noisy", type="Mystery").write(tmp_path)
    (result,) = what_if(folder, "right")
    assert result.effect is Effect.STOPPED
    assert result.explained is not None
    (stop,) = result.stopped
    assert (stop.op, stop.behind) == ("noisy", 3)
    assert isinstance(stop.reason, Message)
    assert stop.reason.kind == "reason.no_formula"


def test_without_a_benchmark_it_says_what_changes(tmp_path: Path) -> None:
    folder = network().with_part("left", wrong=larger).write(tmp_path, benchmark=False)
    (result,) = what_if(folder, "left")
    assert result.effect is Effect.CHANGES
    assert result.explained is None
    assert result.before is None
    with pytest.raises(DataNotFoundError):
        what_if(folder, "IteratorGetNext")


def hidden(array: Array) -> Array:
    """Only what a Relu takes away is wrong."""
    return np.asarray(np.where(array < 0, 2 * array, array), array.dtype)


def diagnosed(folder: Path, *, prove: bool) -> dict[str, Suspect]:
    session = Session(load_settings({"data": str(folder), "work": str(folder / "work")}))
    return {suspect.culprit: suspect for suspect in session.diagnose(prove=prove).suspects}


def test_a_proof_tells_two_faults_apart_and_drops_what_explains_nothing(tmp_path: Path) -> None:
    made = network().with_part("right", wrong=larger).with_part("left", wrong=larger)
    both = diagnosed(made.write(tmp_path / "both"), prove=True)
    shares = {name: suspect.fact("mended_share") for name, suspect in both.items()}
    assert set(shares) == {"left", "right"}
    assert all(0.1 < share < 0.9 for share in shares.values())
    assert [suspect.fact("mending") for suspect in both.values()] == ["partly", "partly"]
    assert next(iter(both.values())).fact("mended_together_share") > 0.99

    parts = (*made.parts, unary("negative", "Tanh", "left"), unary("cut", "Relu", "negative"))
    idle = Network(parts=parts).with_part("left", wrong=None).with_part("negative", wrong=hidden)
    assert set(diagnosed(idle.write(tmp_path / "idle"), prove=False)) == {"right", "negative"}
    (only,) = diagnosed(tmp_path / "idle", prove=True).values()
    assert only.culprit == "right"
    assert only.fact("mending") == "explains"
    assert only.fact("explain_nothing") == (("negative", "kernel"),)


def test_a_fault_that_may_explain_something_is_not_dropped() -> None:
    idle = WhatIf(ops=("a",), sources=(Source.RECOMPUTED,), effect=Effect.NOTHING, explained=0.0)
    assert explains_nothing(idle)
    assert not explains_nothing(replace(idle, explained=0.3))
    assert not explains_nothing(replace(idle, stopped=(Stop(op="b", reason="", behind=2),)))
    assert not explains_nothing(replace(idle, effect=Effect.NO_NEARER))


def test_the_proof_is_kept_with_the_verdict(tmp_path: Path) -> None:
    network().with_part("left", wrong=larger).write(tmp_path / "precision_data")
    first = tool("ac", "-c", "--json", cwd=tmp_path).results[0]["verdict"]
    assert "mended" not in first["evidence"]
    assert "whatif left" in {step["line"] for step in first["next"]}
    proven = tool("ac", "--prove", "--json", cwd=tmp_path).results[0]["verdict"]["evidence"]
    assert proven["mending"] == "explains"
    assert "with this op mended, the loss is" in proven["mended"]
    assert tool("ac", "--json", cwd=tmp_path).results[0]["verdict"]["evidence"] == proven
    shown = tool("ac", cwd=tmp_path).text
    assert "with this op mended, the loss is" in shown
    assert "whatif" not in shown, "what is proven is not to be proven again"
    assert "whatif" not in tool("ac", "-c", "--prove", cwd=tmp_path).text


def test_the_command(tmp_path: Path) -> None:
    folder = network().with_part("left", wrong=larger).write(tmp_path / "precision_data")
    before = fingerprint(folder)
    run = tool("whatif", "left", cwd=tmp_path)
    assert "with this op mended, the loss is" in run.text
    assert "benchmark" in run.text
    assert "explains" in run.text
    assert "mending it changes nothing" in tool("whatif", "squares", cwd=tmp_path).text
    document = tool("whatif", "left", "squares", folder, "--json", cwd=tmp_path.parent).json
    assert [each["effect"] for each in (*document["alone"], document["together"])] == [
        "explains",
        "nothing",
        "explains",
    ]
    assert fingerprint(folder) == before
    for words in (["nobody"], ["left", "nobody"], ["e"]):
        tool("whatif", *words, cwd=tmp_path, code=2)
