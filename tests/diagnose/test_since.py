"""`ac --since`: what became of the culprit of an earlier verdict, after a fix."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import Array
from command_line import tool
from faults import negated
from one_cause_each import CAUSES
from tiny_network import Network, binary, layers, numbers, scaled_gradients, source

FUSED = {"originals": ("one/MatMul", "one/Relu"), "passes": ("MatMulReluFusionPass",)}


def fused() -> Network:
    """The first layer as one wrong op that a pass made."""
    network = layers()
    parts = [part for part in network.parts if part.name != "one/Relu"]
    parts = [replace(part, inputs=tuple("one/MatMul" if n == "one/Relu" else n for n in part.inputs)) for part in parts]
    made = replace(network, parts=tuple(parts))
    return made.with_part("one/MatMul", compute=lambda a, b: np.maximum(a @ b, 0), wrong=negated, **FUSED)


def collect(network: Network, folder: Path, **how: Any) -> None:
    """The data folder with another run in it; earlier results stay."""
    for name in ("npu", "tf"):
        shutil.rmtree(folder / "precision_data" / name, ignore_errors=True)
    network.write(folder / "precision_data", **how)


def since(folder: Path, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(tool("ac", "-c", "--json", "--since", *arguments, cwd=folder).out)["since"]
    return found


def test_a_mended_op_and_the_next(tmp_path: Path) -> None:
    two = layers().with_part("two/Tanh", wrong=np.zeros_like)
    collect(two.with_part("one/MatMul", wrong=negated), tmp_path)
    tool("ac", "-c", cwd=tmp_path)
    (earlier,) = (tmp_path / "precision_data" / "temp" / "vector_compare").glob("*/verdict_*.json")
    collect(two, tmp_path)
    found = since(tmp_path, str(earlier))
    assert (found["culprit"], found["state"], found["mended"]) == ("one/MatMul", "right", True)
    assert found["own_error_before"] > 100 * found["own_error"]
    assert (found["next_culprit"], found["next_cause"]) == ("two/Tanh", "kernel")
    assert found["file"] == str(earlier)
    shown = tool("ac", "--since", str(earlier), cwd=tmp_path, columns=100)
    assert "one/MatMul: Kernel error computes correctly now" in shown.text
    assert "two/Tanh: Kernel error" in shown.text
    ends = [number for number, line in enumerate(shown.out.splitlines()) if line.startswith("┗")]
    assert shown.out.splitlines()[ends[-1] + 1].startswith("next")  # the verdict stays last, with what to do next
    assert "Since the earlier verdict" not in shown.out[shown.out.index("━ Verdict ━") :]


def test_nothing_changed(tmp_path: Path) -> None:
    network = layers().with_part("one/MatMul", wrong=negated)
    collect(network, tmp_path)
    tool("ac", "-c", cwd=tmp_path)
    collect(network, tmp_path)
    found = since(tmp_path)
    assert (found["state"], found["mended"], found["next_culprit"]) == ("wrong", False, "one/MatMul")
    assert found["same_dump"] is False
    assert found["changes"] == [
        {
            "what": "type",
            "name": "one/MatMul:output:0",
            "before": "float16",
            "now": "float16",
            "changed": False,
            "why": None,
        }
    ]
    shown = tool("ac", "-c", "--since", cwd=tmp_path).text
    assert "still computes incorrectly" in shown
    assert "now the verdict names it again" in shown


def test_a_pass_that_was_switched_off(tmp_path: Path) -> None:
    collect(fused(), tmp_path)
    tool("ac", "-c", cwd=tmp_path)
    collect(layers(), tmp_path)
    found = since(tmp_path)
    assert (found["culprit"], found["cause"], found["mended"]) == ("one/MatMul", "fusion", True)
    gone = {"what": "pass", "name": "MatMulReluFusionPass", "before": "1 op", "now": "0 ops", "changed": True}
    assert {**gone, "why": None} in found["changes"]
    assert found["next_culprit"] is None
    shown = tool("ac", "-c", "--since", cwd=tmp_path)
    assert "MatMulReluFusionPass: 1 op before, 0 ops now" in shown.text
    assert "no op computes incorrectly" in shown.text


@pytest.mark.parametrize(
    ("name", "switches", "why"),
    [
        ("MatMulReluFusionPass", None, "the pass is still on: .* does not turn it off"),
        (
            "MatMulReluFusionPass",
            {"UBFusion": {"MatMulReluFusionPass": "off"}},
            "in section UBFusion, but it belongs to",
        ),
        (
            "MatMulReluFusionPass",
            {"GraphFusion": {"MatMulReluFusionPass": "off"}},
            "the session was not given this file",
        ),
        (
            "MatMulReluFusionPass",
            {"GraphFusion": {"MatMulReluFusionPass": 0}},
            "whether it is switched off is unknown: .*fusion_switch.cfg",
        ),
        ("ZConcatDFusionPass", {"GraphFusion": {"ZConcatDFusionPass": "off"}}, "GE never switches it off"),
    ],
)
def test_a_switch_without_effect(tmp_path: Path, name: str, switches: dict[str, Any] | None, why: str) -> None:
    """It says why: not in the file, in the wrong section, a file that GE does not read, a pass that is always on."""
    network = fused().with_part("one/MatMul", passes=(name,))
    collect(network, tmp_path)
    tool("ac", "-c", cwd=tmp_path)
    collect(network, tmp_path)
    folder = tmp_path / "precision_data" / "fusion"
    folder.mkdir(exist_ok=True)
    if switches is not None:
        (folder / "fusion_switch.cfg").write_text(json.dumps({"Switch": switches}))
    counts = {"effect_times": "1", "match_times": "1"}
    report = {"session_and_graph_id_0_0": {"graph_fusion": {name: counts}}}
    (folder / "fusion_result.json").write_text(json.dumps(report))
    (change, *_) = since(tmp_path)["changes"]
    assert re.search(why, change["why"]), change["why"]
    collect(network, tmp_path)  # of the same dump nothing can have changed
    shown = " ".join(tool("ac", "-c", "--since", cwd=tmp_path).text.split())
    assert f"{name}: still 1 op" in shown
    steps = shown.rpartition("next ")[2]
    assert ("give the session the switch file" in steps) == ("not given" in why)
    assert ("fusion off" in steps) == (name == "MatMulReluFusionPass" and "not given" not in why)


def test_another_type(tmp_path: Path) -> None:
    network = layers()
    collect(network.with_part("one/MatMul", wrong=negated), tmp_path)
    tool("ac", "-c", cwd=tmp_path)
    collect(network.with_part("one/MatMul", dtype="float32"), tmp_path)
    (change,) = since(tmp_path)["changes"]
    assert (change["what"], change["before"], change["now"], change["changed"]) == ("type", "float16", "float32", True)


def test_another_loss_scale(tmp_path: Path) -> None:
    """Also where it is named by nobody, as both sides have the same."""
    for scale in (1024.0, 4096.0):
        network = scaled_gradients(scale).with_part("gradients/Relu", wrong=negated if scale == 1024.0 else None)
        collect(network.with_part("loss_scale", golden=np.array(scale, np.float32)), tmp_path)
        if scale == 1024.0:
            tool("ac", "-c", cwd=tmp_path)
    found = since(tmp_path)
    assert (found["culprit"], found["mended"]) == ("gradients/Relu", True)
    assert [one for one in found["changes"] if one["what"] == "scale"] == [
        {"what": "scale", "name": "loss_scale", "before": "1024", "now": "4096", "changed": True, "why": None}
    ]


#: What is still so of each cause where nothing was mended, and what is said once it is.
STILL = {
    "cast": "still loses precision",
    "overflow": "still overflows",
    "stomp": "is still overwritten",
    "random": "still draws random numbers that differ",
    "input": "the input data still differ",
    "weights": "still differs from the benchmark",
}
MENDED = {"overflow": "fits", "stomp": "whole", "input": "agrees", "weights": "agrees", "random": "agrees"}


@pytest.mark.parametrize("cause", sorted(STILL))
def test_what_still_holds_and_what_is_mended(tmp_path: Path, cause: str) -> None:
    """Of an overflow, overwritten memory and the like its own error says nothing."""
    collect(CAUSES[cause], tmp_path)
    tool("ac", "-c", cwd=tmp_path)
    shown = tool("ac", "-c", "--since", cwd=tmp_path, columns=120).text
    assert STILL[cause] in shown
    assert "computes correctly now" not in shown
    assert "unchanged since then: dump again, then precision-tool ac -c --since" in shown
    if cause != "cast":  # its network without the op is another one
        collect(layers(), tmp_path)
        found = since(tmp_path)
        assert (found["state"], found["mended"]) == (MENDED[cause], True)


@pytest.mark.parametrize("cause", ["weights", "random"])
def test_what_takes_a_benchmark_to_be_seen(tmp_path: Path, cause: str) -> None:
    collect(CAUSES[cause], tmp_path)
    tool("ac", "-c", cwd=tmp_path)
    collect(layers(), tmp_path, benchmark=False)
    found = since(tmp_path)
    assert (found["state"], found["mended"]) == ("unseen", False)
    assert "was not checked this time" in tool("ac", "-c", "--since", cwd=tmp_path).text


def test_overwritten_memory_of_an_op_that_was_not_dumped_again(tmp_path: Path) -> None:
    collect(CAUSES["stomp"], tmp_path)
    tool("ac", "-c", cwd=tmp_path)
    culprit = since(tmp_path)["culprit"]
    collect(layers(), tmp_path, benchmark=False)
    name = culprit.replace("/", "_")
    (file,) = (tmp_path / "precision_data").rglob(f"*.{name}.*")
    file.unlink()
    assert since(tmp_path)["mended"] is False


def test_what_takes_two_runs_to_be_seen(tmp_path: Path) -> None:
    """An op that does not repeat itself: a dump of one run cannot tell that it does now."""

    def gain(**changes: Any) -> Network:
        more = (
            source("gain", numbers(1, 12, seed=11), op_type="Variable"),
            binary("gain/mul", "Mul", "IteratorGetNext", "gain", "float32"),
        )
        whole = replace(layers(), parts=(*layers().parts, *more))
        return whole.with_part("gain/mul", **changes)

    def next_number(array: Array) -> Array:
        return np.nextafter(array, np.float32(np.inf))

    def collect_twice(second: Network) -> None:
        collect(gain(), tmp_path, benchmark=False)
        second.write(tmp_path / "precision_data", run="debug_1", benchmark=False)

    collect_twice(gain(wrong=next_number))
    tool("ac", "-c", cwd=tmp_path)
    collect_twice(gain(wrong=next_number))
    found = since(tmp_path)
    assert (found["culprit"], found["state"], found["mended"]) == ("gain/mul", "unsteady", False)
    assert "still differs between runs" in tool("ac", "-c", "--since", cwd=tmp_path).text
    collect(gain(), tmp_path, benchmark=False)
    found = since(tmp_path)
    assert (found["state"], found["mended"]) == ("one_run", False)
    collect_twice(gain())
    found = since(tmp_path)
    assert (found["state"], found["mended"]) == ("repeats", True)


def test_an_earlier_verdict_is_offered(tmp_path: Path) -> None:
    collect(layers().with_part("one/MatMul", wrong=negated), tmp_path)
    offer = "an earlier verdict named one/MatMul: `precision-tool ac --since precision_data/temp/"
    assert "an earlier verdict" not in tool("ac", "-c", cwd=tmp_path).text
    assert "an earlier verdict" not in tool("ac", "-c", cwd=tmp_path).text  # nothing was collected in between
    collect(layers(), tmp_path)
    assert offer in tool("ac", "-c", cwd=tmp_path).text
    assert "an earlier verdict" not in tool("ac", cwd=tmp_path).text


@pytest.mark.parametrize("name", ["nothing.json", "precision_data/npu", ""])
def test_no_earlier_verdict(tmp_path: Path, name: str) -> None:
    collect(layers(), tmp_path)
    tool("ac", "-c", cwd=tmp_path)
    run = tool("ac", "--since", *([name] if name else []), cwd=tmp_path, code=2)
    assert "error: " in run.err
    assert "hint: " in run.err


def test_the_only_verdict_is_held_against_what_is_compared_anew(tmp_path: Path) -> None:
    collect(layers().with_part("one/MatMul", wrong=negated), tmp_path)
    tool("ac", "-c", cwd=tmp_path)
    run = tool("ac", "--since", cwd=tmp_path, code=2)
    assert "there is no earlier verdict to check: only the newest one names a culprit" in run.text
    assert "hint: `ac -c --since` compares the current dump" in run.text
    collect(layers(), tmp_path)
    assert "computes correctly now" in tool("ac", "-c", "--since", cwd=tmp_path).text


def test_a_damaged_one(tmp_path: Path) -> None:
    collect(layers(), tmp_path)
    damaged = tmp_path / "verdict_x.json"
    damaged.write_text('{"version": 1, "check": 1}')
    assert (
        "verdict_x.json: not a verdict of this version"
        in tool("ac", "-c", "--since", str(damaged), cwd=tmp_path, code=2).text
    )
