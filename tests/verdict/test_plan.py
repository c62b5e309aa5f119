"""What to do next: lines that can be pasted, and the remedy that fits first."""

from __future__ import annotations

import ast

import pytest

from precision_tool import tf_config
from precision_tool.lib.verdict.model import Cause, Fact, Proof, Step, Suspect
from precision_tool.lib.verdict.plan import plan, with_passports_known


def steps_for(cause: Cause, proof: Proof = Proof.RECOMPUTED, culprit: str = "fc/MatMul", **facts: object) -> list[Step]:
    told = tuple(Fact(name=name, value=value) for name, value in facts.items())
    one = Suspect(culprit=culprit, cause=cause, proof=proof, confidence=0.9, number=0, facts=told)
    return list(plan(one, (one,), True))


def test_the_lines_that_keep_a_type_can_be_pasted() -> None:
    """They are Python that keeps a type, not a call that only prints; a name cannot leave its comment."""
    for name in ("fc/MatMul", "fc\nimport os"):
        (line,) = [step.line for step in steps_for(Cause.CAST, script_ops=[name]) if step.file]
        (block,) = ast.parse(line).body
        assert isinstance(block, ast.With)
        assert ast.unparse(block.items[0].context_expr) == "npu_scope.keep_dtype_scope()"
        assert "MatMul" in line or "import os" in line


@pytest.mark.parametrize(("cause", "proof"), [(Cause.RANDOM, Proof.SOURCE), (Cause.RANDOM, Proof.RUNS)])
def test_lines_of_tf_config_are_told_with_it(cause: Cause, proof: Proof) -> None:
    """A function by its name in a script, an argument with the call that takes it."""
    step = next(step for step in steps_for(cause, proof) if step.file)
    module, _, call = step.line.partition(".")
    if call:
        assert module == "npu_tf_config"
        assert callable(getattr(tf_config, call.partition("(")[0]))
    else:
        assert "arguments of the npu_tf_config call" in step.file


@pytest.mark.parametrize(
    ("largest", "words"),
    [
        (65504.0 * 3, "divide the loss scale by at least 8 first"),  # 2 bits too large, and one to spare
        (65505.0, "divide the loss scale by at least 4 first"),
        ("inf", "lower the loss scale first"),
    ],
)
def test_a_gradient_that_overflows_needs_another_loss_scale(largest: object, words: str) -> None:
    """No line of a script makes it, so no scope keeps its type."""
    name = "gradients/conv2/BiasAdd_grad/BiasAddGrad"
    steps = steps_for(Cause.OVERFLOW, culprit=name, script_ops=[name], largest=largest, limit=65504.0)
    assert steps[0].why.startswith(words)
    assert [step.line for step in steps].count("overflow") == 1
    assert not any("keep_dtype" in step.line for step in steps)


def test_an_op_of_the_forward_pass_keeps_its_type_first() -> None:
    steps = steps_for(Cause.OVERFLOW, script_ops=["fc/MatMul"], largest=1e5, limit=65504.0)
    assert "keep_dtype_scope" in steps[0].line
    assert not any("loss scale" in step.why for step in steps)


def test_who_overwrote_memory_is_not_said_before_it_is_known() -> None:
    """`random` may find that no op that was dumped wrote there."""
    step = steps_for(Cause.STOMP)[0]
    assert (step.why, step.line) == ("it was overwritten; who did it", "random")


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause not in (Cause.NONE, Cause.LOSS_SCALE)])
def test_what_is_to_be_mended_ends_with_what_tells_whether_it_is(cause: Cause) -> None:
    steps = steps_for(cause)
    assert [step.line for step in steps if "--since" in step.line] == ["ac -c --since"]
    assert steps[-1].line == "ac -c --since"
    one = Suspect(culprit="x", cause=cause, proof=Proof.RECOMPUTED, confidence=0.9, number=0)
    assert plan(one, (one,), False)[-1].line == "ac -c --since"


@pytest.mark.parametrize("cause", [Cause.KERNEL, Cause.FUSION])
def test_whoever_writes_the_kernel_gets_a_package(cause: Cause) -> None:
    assert "repro 'fc 1/MatMul'" in [step.line for step in steps_for(cause, culprit="fc 1/MatMul")]


def test_a_clean_verdict_says_where_to_look_instead() -> None:
    steps = plan(None, (), True)
    assert [step.line for step in steps] == ["npu_tf_config.passport(sess, feed_dict)", "ac -c"]
    assert callable(tf_config.passport)
    known = with_passports_known(steps, differ=False)
    assert [step.line for step in known] == ["ac -c"]
    assert with_passports_known(steps, differ=True)[0].why.startswith("give both sides the same")
    assert [step.line for step in plan(None, (), False)] == ["tf_dump"]
