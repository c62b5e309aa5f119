"""What to do next: lines that can be pasted, and the remedy that fits first."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from precision_tool import tf_config
from precision_tool.lib.diagnose.plan import CONTRADICTING, plan, with_passports_known, with_switch_file_known
from precision_tool.lib.diagnose.verdict_model import (
    Action,
    Cause,
    Fact,
    NotChecked,
    NotCheckedKind,
    OpResult,
    Proof,
    SlotResult,
    State,
    Step,
    StepText,
    Suspect,
    Verdict,
)
from precision_tool.lib.io.fusion_passes import ALWAYS_ON
from precision_tool.lib.messages import Message, render
from precision_tool.lib.model.graph import Op
from precision_tool.lib.ops.base import Kind
from precision_tool.lib.view.verdict_messages import plan_step, plan_steps
from precision_tool.lib.view.verdict_screen import verdict_json


def steps_for(
    cause: Cause, proof: Proof = Proof.RECOMPUTED, culprit: str = "fc/MatMul", **facts: object
) -> list[StepText]:
    told = tuple(Fact(name=name, value=value) for name, value in facts.items())
    one = Suspect(culprit=culprit, cause=cause, proof=proof, confidence=0.9, number=0, facts=told)
    return list(plan_steps(plan(one, (one,), True)))


def test_the_lines_that_keep_a_type_can_be_pasted() -> None:
    """They are Python that keeps a type, not a call that only prints; a name cannot leave its comment."""
    for name in ("fc/MatMul", "fc\nimport os"):
        (line,) = [step.line for step in steps_for(Cause.CAST, script_ops=[name]) if step.file]
        (_, block) = ast.parse(line).body
        assert isinstance(block, ast.With)
        assert ast.unparse(block.items[0].context_expr) == "npu_scope.keep_dtype_scope()"
        assert "MatMul" in line or "import os" in line


@pytest.mark.parametrize(("cause", "proof"), [(Cause.RANDOM, Proof.SOURCE), (Cause.RANDOM, Proof.RUNS)])
def test_lines_of_tf_config_are_told_with_it(cause: Cause, proof: Proof) -> None:
    """A function by its name in a script, an argument with the call that takes it."""
    step = next(step for step in steps_for(cause, proof) if step.file)
    (name,) = re.findall(r"npu_tf_config\.(\w+)\(", step.line)
    assert callable(getattr(tf_config, name))
    assert (step.file == Message("step.file.call")) == (name == "session_dump_config")


@pytest.mark.parametrize(
    ("largest", "kind", "factor"),
    [
        (65504.0 * 3, "step.divide_loss_scale", 8),  # 2 bits too large, and one to spare
        (65505.0, "step.divide_loss_scale", 4),
        ("inf", "step.lower_loss_scale", None),
    ],
)
def test_a_gradient_that_overflows_needs_another_loss_scale(largest: object, kind: str, factor: int | None) -> None:
    """No line of a script makes it, so no scope keeps its type."""
    name = "gradients/conv2/BiasAdd_grad/BiasAddGrad"
    steps = steps_for(Cause.OVERFLOW, culprit=name, script_ops=[name], largest=largest, limit=65504.0)
    assert steps[0].why == Message(kind, number=factor)
    assert [step.line for step in steps].count("overflow") == 1
    assert not any("keep_dtype" in step.line for step in steps)


def test_an_op_of_the_forward_pass_keeps_its_type_first() -> None:
    steps = steps_for(Cause.OVERFLOW, script_ops=["fc/MatMul"], largest=1e5, limit=65504.0)
    assert "keep_dtype_scope" in steps[0].line
    assert not any("loss_scale" in repr(step.why) for step in steps)


def test_who_overwrote_memory_is_not_said_before_it_is_known() -> None:
    """`random` may find that no op that was dumped wrote there."""
    step = steps_for(Cause.STOMP)[0]
    assert (step.why, step.line) == (Message("step.find_writer", number=None), "random")


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause not in (Cause.NONE, Cause.LOSS_SCALE)])
def test_what_is_to_be_mended_ends_with_what_tells_whether_it_is(cause: Cause) -> None:
    steps = steps_for(cause)
    assert [step.line for step in steps if "--since" in step.line] == ["ac -c --since"]
    assert steps[-1].line == "ac -c --since"
    one = Suspect(culprit="x", cause=cause, proof=Proof.RECOMPUTED, confidence=0.9, number=0)
    assert plan_steps(plan(one, (one,), False))[-1].line == "ac -c --since"


@pytest.mark.parametrize("cause", [Cause.KERNEL, Cause.FUSION])
def test_whoever_writes_the_kernel_gets_a_package(cause: Cause) -> None:
    assert "repro 'fc 1/MatMul'" in [step.line for step in steps_for(cause, culprit="fc 1/MatMul")]


def test_a_clean_verdict_says_where_to_look_instead() -> None:
    steps = plan(None, (), True)
    assert [step.line for step in plan_steps(steps)] == ["npu_tf_config.passport(sess, feed_dict)", "ac -c"]
    assert callable(tf_config.passport)
    known = with_passports_known(steps, differ=False)
    assert [step.line for step in plan_steps(known)] == ["ac -c"]
    assert with_passports_known(steps, differ=True)[0] == Step(do=Action.MEND_PASSPORTS)
    assert [step.line for step in plan_steps(plan(None, (), False))] == ["tf_dump"]


@pytest.mark.parametrize("do", Action)
def test_every_step_has_its_words(do: Action) -> None:
    told = plan_step(Step(do=do, number=3))
    assert re.fullmatch(r"[^{}]+[^{}.:]", render(told.why, "en"))
    assert plan_step(Step(do=do, command=("ni", "fc 1"), number=3)).line == "ni 'fc 1'"
    assert plan_step(Step(do=do, code="x=1", number=3)).file


def test_one_op_in_hf32_is_one() -> None:
    steps = [plan_step(Step(do=Action.NO_HF32_ANYWHERE, number=number)) for number in (1, 2345)]
    why = [render(step.why, "en").partition(" float32")[0] for step in steps]
    assert why == ["1 op multiplies", "2,345 ops multiply"]


def test_steps_are_rendered_in_json() -> None:
    steps = (
        Step(do=Action.KEEP_TYPE, code="with a:", ops=("fc/MatMul",)),
        Step(do=Action.DIVIDE_LOSS_SCALE, command=("overflow",), number=8),
    )
    verdict = Verdict(culprit=None, cause=Cause.NONE, confidence=1.0, next=steps)
    assert [[*step] for step in verdict_json(verdict)["next"]] == [["why", "line", "file"]] * 2
    assert verdict_json(verdict)["next"][1]["line"] == "overflow"


@pytest.mark.parametrize("lack", NotCheckedKind)
def test_what_was_not_checked_is_rendered_in_json(lack: NotCheckedKind) -> None:
    gap = NotChecked(lack=lack, count=2, ops=5, unknown=1, op="fc/MatMul")
    (line,) = verdict_json(Verdict(culprit=None, cause=Cause.NONE, confidence=1.0, gaps=(gap,)))["gaps"]
    assert line.count(" ") > 5


# --- remedies that contradict each other ------------------------------------------------------------------------------


def suspects_of(cause: Cause) -> Iterator[Suspect]:
    """Suspects of a cause with all that decides on the steps."""
    culprits = ("fc/MatMul", "gradients/fc/MatMul_grad/MatMul")
    passes = ("", "MatMulReluFusionPass", min(ALWAYS_ON))
    script_ops = ((), ("fc/MatMul",), ("gradients/x",), ("fc/MatMul", "gradients/x"))
    facts: list[dict[str, object]] = [
        {}, {"largest": 1e5, "limit": 65504.0}, {"largest": "inf", "limit": 65504.0}, {"repeats": True},
        {"repeats": False}, {"step": 3}, {"own_error": 0.1}, {"parts_right": False}, {"nan_op": culprits[0]},
    ]  # fmt: skip
    for culprit, name, ops, more in product(culprits, passes, script_ops, facts):
        for proof, (dtype, kind, own) in product(Proof, ERRORS):
            op = Op(name=culprit, type="MatMul", original_names=ops, pass_names=(name,) if name else ())
            slot = SlotResult(
                slot=0, dtype=dtype, size=100, kind=kind, own=own, rounding=1e-4, worst=100.0, slack=8.0, beyond=9,
                exact_share=0.1,
            )  # fmt: skip
            yield Suspect(
                culprit=culprit, cause=cause, proof=proof, confidence=0.9, number=0, pass_name=name,
                facts=tuple(Fact(name=key, value=value) for key, value in ({"script_ops": list(ops)} | more).items()),
                result=OpResult(op=op, number=0, state=State.WRONG, slots=(slot,)),
            )  # fmt: skip


#: Types, kinds and own errors that decide on the switches for a kernel.
ERRORS = (("float16", Kind.MATRIX, 2.0**-8), ("float16", Kind.SUM, 0.5), ("float32", Kind.MATRIX, 2.0**-12))


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause not in (Cause.NONE, Cause.LOSS_SCALE)])
def test_no_two_steps_contradict_each_other(cause: Cause) -> None:
    """Whatever is known of a suspect, and whether or not the two sides scale the loss differently."""
    scale = Suspect(culprit="scale", cause=Cause.LOSS_SCALE, proof=Proof.SOURCE, confidence=0.9, number=0)
    for suspect, has_benchmark in product(suspects_of(cause), (True, False)):
        steps = plan(suspect, (suspect, scale), has_benchmark)
        done = [step.do for step in steps]
        assert not [pair for pair in CONTRADICTING if len(pair & set(done)) > 1], (suspect, done)
        assert len(done) == len(set(done))
        assert len(done) > 1


def test_only_passes_that_are_off_already_need_their_file_used() -> None:
    steps = [Step(do=Action.SWITCH_PASS_OFF, command=("fusion", "off", name)) for name in ("A", "B", "C")]
    given = with_switch_file_known(steps, {"A", "C"}, ["line"])
    assert given == (Step(do=Action.GIVE_SWITCH_FILE, code="line", where="script"), steps[1])


@pytest.mark.parametrize("is_scaled", [True, False])
def test_no_two_steps_of_a_clean_verdict_contradict_each_other(is_scaled: bool) -> None:
    scale = Suspect(culprit="scale", cause=Cause.LOSS_SCALE, proof=Proof.SOURCE, confidence=0.9, number=0)
    judged = [replace(suspect.result, state=State.RIGHT) for suspect in suspects_of(Cause.KERNEL) if suspect.result]
    steps = plan(None, (scale,) if is_scaled else (), True, judged)
    done = {step.do for step in steps}
    assert not [pair for pair in CONTRADICTING if len(pair & done) > 1]
    assert (Action.SAME_LOSS_SCALE in done) is is_scaled


def test_a_gradient_in_a_fused_op_of_the_forward_pass_too_has_one_remedy() -> None:
    """A smaller loss scale does nothing for the forward pass, and no line of the script makes a gradient."""
    names = ["fc/MatMul", "gradients/fc/MatMul_grad/MatMul"]
    steps = steps_for(Cause.OVERFLOW, culprit=names[1], script_ops=names, largest=1e6, limit=65504.0)
    assert [step.line for step in steps] == ["overflow", f"whatif {names[1]}", "ac -c --since"]


def test_nan_of_infinities_is_no_matter_of_the_loss_scale() -> None:
    name = "gradients/x/mul"
    steps = steps_for(Cause.OVERFLOW, culprit=name, script_ops=[name], nan_op=name)
    assert [step.line for step in steps] == [f"ni {name}", f"whatif {name}", "ac -c --since"]
