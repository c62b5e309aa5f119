"""What people see of a verdict, and what programs do."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import check_golden, check_golden_text, tool
from faults import narrowed, negated
from one_cause_each import CAUSES, DROPOUT
from tiny_network import Network, layers, scaled_gradients

from precision_tool.lib.diagnose.verdict_model import Cause, Fact, Proof, Suspect, Verdict
from precision_tool.lib.messages import Message, render
from precision_tool.lib.view import verdict_messages as messages
from precision_tool.lib.view.console import ReportConsole
from precision_tool.lib.view.report_document import verdict_document
from precision_tool.lib.view.verdict_screen import verdict_block

NETWORKS: dict[str, Network] = {
    "kernel": layers().with_part("one/MatMul", wrong=negated).with_part("two/Tanh", wrong=np.zeros_like),
    "none": layers(),
    "loss_scale": scaled_gradients(),
}
#: What to do next as it is typed, of each.
READY = {
    "kernel": [
        "precision-tool ni one/MatMul",
        "precision-tool repro one/MatMul",
        (
            "config = npu_tf_config.session_dump_config(config, "
            "customize_dtypes={'one/MatMul': 'InputDtype:float,float,OutputDtype:float'})"
        ),
        "precision-tool whatif one/MatMul",
        "precision-tool ac -c --since",
    ],
    "none": ["npu_tf_config.passport(sess, feed_dict)", "precision-tool ac -c"],
    "loss_scale": [],
}
#: Whom each names, and a figure that proves it.
NAMED = {
    "fusion": ("one/MatMul", "25 %"),
    "layout": ("drop/mul", "axes are permuted"),
    "cast": ("trans_Cast_0", "23.8 %"),
    "overflow": ("two/MatMul", "65,504"),
    "stomp": ("two/MatMul", "bytes 32 to 95 of 256"),
    "random": (DROPOUT, "128 of 128"),
    "input": ("IteratorGetNext", "in a different order"),
    "weights": ("two/kernel", "0.666667"),
}


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("cause", sorted(CAUSES))
def test_every_cause_as_people_see_it(tmp_path: Path, cause: str, columns: int) -> None:
    CAUSES[cause].write(tmp_path / "precision_data")
    shown = tool("ac", "-c", cwd=tmp_path, columns=columns).out
    text = shown[shown.index("┏━ Verdict") :]
    check_golden_text(f"verdict_{cause}_{columns}.txt", text, tmp_path)
    lines = text.splitlines()
    assert max(len(line) for line in lines if not line.startswith(" " * 8)) <= columns
    name, figure = NAMED[cause]
    assert lines[1].lstrip("┃ ").startswith(f"{name} (")
    assert lines[2].lstrip("┃ ").startswith(f"{render(Message(f'cause.{cause}'), 'en')}: ")
    assert " ".join(figure.split()) in " ".join(text.replace("┃", " ").split())


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_what_people_see(tmp_path: Path, name: str, columns: int) -> None:
    NETWORKS[name].write(tmp_path / "precision_data")
    shown = tool("ac", "-c", "-l", "1", cwd=tmp_path, columns=columns)
    check_golden(f"verdict_{name}_{columns}.txt", shown, tmp_path)
    lines = [line for line in shown.out.splitlines() if "precision_data/" not in line]
    ready = [line for line in lines if line.startswith(" " * 8) and not line.startswith(" " * 9)]
    assert max(len(line) for line in lines if line not in ready) <= columns
    # The verdict is last, and what to do next: a line to be copied is never broken.
    end = next(at for at, line in enumerate(lines) if line.startswith("┗"))
    assert [line.strip() for line in lines[end + 1 :] if line in ready] == READY[name]
    assert [line[:6].strip() for line in lines[end + 1 : end + 2]] == ["next"]
    assert shown.out.count("━ Verdict ━") == 1


@pytest.mark.parametrize("columns", [80, 120])
def test_without_a_benchmark(tmp_path: Path, columns: int) -> None:
    NETWORKS["kernel"].write(tmp_path / "precision_data", benchmark=False)
    shown = tool("ac", cwd=tmp_path, columns=columns)
    assert "one/MatMul (MatMulV2)" in shown.text
    assert "a benchmark would show" in shown.text
    assert "then: precision-tool tf_dump" in shown.text
    assert tool("ac", "--fail", cwd=tmp_path, columns=columns, code=1).text == shown.text


def test_the_object_of_json(tmp_path: Path) -> None:
    NETWORKS["kernel"].write(tmp_path / "precision_data")
    (result,) = json.loads(tool("ac", "-c", "--json", cwd=tmp_path).out)["results"]
    verdict = result["verdict"]
    assert verdict["culprit"] == "one/MatMul"
    assert verdict["cause"] == "kernel"
    assert verdict["pass"] is None
    assert verdict["ranking"] == ["one/MatMul", "two/Tanh"]
    assert 0.9 < verdict["confidence"] <= 1
    evidence = verdict["evidence"]
    assert (evidence["wrong_elements"], evidence["elements"]) == (8, 8 * 16)
    assert evidence["own_error"] > 100 * evidence["rounding"]
    assert evidence["factor"] == pytest.approx(-1, abs=1e-3)
    assert (evidence["axis"], evidence["index"]) == (1, 2)
    assert verdict["next"][0]["line"] == "ni one/MatMul"
    # The same from the file that was written.
    again = json.loads(tool("ac", "--json", cwd=tmp_path).out)["results"][0]["verdict"]
    assert again == verdict


def test_fail_goes_by_the_verdict(tmp_path: Path) -> None:
    """A fault at a cosine of 0.99999 is one."""
    layers().with_part("one/MatMul", wrong=narrowed).write(tmp_path / "precision_data")
    run = tool("ac", "-c", "--fail", "--json", cwd=tmp_path, code=1)
    (result,) = run.results
    assert result["overview"]["below"] == 0
    assert result["verdict"]["culprit"] == "one/MatMul"


@pytest.mark.parametrize(
    ("proof", "cause", "facts", "kind"),
    [
        (Proof.STATUS, Cause.OVERFLOW, {"status": "overflow", "status_file": "x"}, "verdict.proof.status"),
        (Proof.RECOMPUTED, Cause.KERNEL, {"benchmark_obeys": True}, "verdict.proof.benchmark"),
        (Proof.RECOMPUTED, Cause.KERNEL, {"another_obeys": True}, "verdict.proof.another"),
        (Proof.RECOMPUTED, Cause.KERNEL, {"inputs_not_dumped": [0]}, "verdict.proof.producers"),
        (
            Proof.RECOMPUTED,
            Cause.KERNEL,
            {"inputs_not_dumped": [0], "benchmark_obeys": True},
            "verdict.proof.producers",
        ),
        (Proof.RECOMPUTED, Cause.KERNEL, {"one_of": ["a", "b"], "benchmark_obeys": True}, "verdict.proof.one_of"),
        (Proof.RECOMPUTED, Cause.KERNEL, {"or_variable": "w", "benchmark_obeys": True}, "verdict.proof.or_variable"),
        (
            Proof.COPIES,
            Cause.STOMP,
            {"told_by": "producer", "producer_is_right": True},
            "verdict.proof.copies_producer",
        ),
        (Proof.COPIES, Cause.STOMP, {"told_by": "producer", "producer_is_right": False}, "verdict.proof.copies"),
        (Proof.SOURCE, Cause.INPUT, {}, "verdict.proof.source"),
    ],
)
def test_terminal_and_report_rest_a_suspicion_on_the_same(
    proof: Proof, cause: Cause, facts: dict[str, object], kind: str
) -> None:
    suspect = Suspect(
        culprit="fc/MatMul", cause=cause, proof=proof, confidence=0.97, number=0,
        facts=tuple(Fact(name=name, value=value) for name, value in facts.items()),
    )  # fmt: skip
    verdict = Verdict(culprit="fc/MatMul", cause=cause, confidence=0.97, suspects=(suspect,))
    message = messages.proof(suspect)
    assert message.kind == kind
    console = ReportConsole(width=300, theme="plain")
    with console.capture() as capture:
        console.print(verdict_block(verdict))
    (accused,) = verdict_document(verdict)["suspects"]
    for name in ("en", "zh"):
        assert accused["confidence_text"][name].endswith(render(message, name))
    assert render(message) in capture.get()
