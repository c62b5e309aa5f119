"""`ac --since`: what became of the culprit of an earlier verdict, after a fix."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import tool
from faults import negated
from tiny_network import Network, layers, scaled_gradients

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
    assert "one/MatMul: kernel computes right now" in shown.text
    assert "two/Tanh: kernel" in shown.text
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
    assert found["changes"] == [
        {"what": "type", "name": "one/MatMul:output:0", "before": "float16", "now": "float16", "changed": False}
    ]
    assert "still computes wrong" in tool("ac", "-c", "--since", cwd=tmp_path).text


def test_a_pass_that_was_switched_off(tmp_path: Path) -> None:
    collect(fused(), tmp_path)
    tool("ac", "-c", cwd=tmp_path)
    collect(layers(), tmp_path)
    found = since(tmp_path)
    assert (found["culprit"], found["cause"], found["mended"]) == ("one/MatMul", "fusion", True)
    gone = {"what": "pass", "name": "MatMulReluFusionPass", "before": "1 op", "now": "0 ops", "changed": True}
    assert gone in found["changes"]
    assert found["next_culprit"] is None
    shown = tool("ac", "-c", "--since", cwd=tmp_path)
    assert "MatMulReluFusionPass: 1 op before, 0 ops now" in shown.text
    assert "nobody else computes wrong" in shown.text


def test_a_switch_without_effect(tmp_path: Path) -> None:
    collect(fused(), tmp_path)
    tool("ac", "-c", cwd=tmp_path)
    collect(fused(), tmp_path)
    assert "MatMulReluFusionPass: still 1 op" in tool("ac", "-c", "--since", cwd=tmp_path).text


def test_another_type(tmp_path: Path) -> None:
    network = layers()
    collect(network.with_part("one/MatMul", wrong=negated), tmp_path)
    tool("ac", "-c", cwd=tmp_path)
    collect(network.with_part("one/MatMul", dtype="float32"), tmp_path)
    (change,) = since(tmp_path)["changes"]
    assert (change["what"], change["before"], change["now"], change["changed"]) == ("type", "float16", "float32", True)


def test_another_loss_scale(tmp_path: Path) -> None:
    for scale in (1024.0, 4096.0):
        network = scaled_gradients(scale).with_part("gradients/Relu", wrong=negated if scale == 1024.0 else None)
        collect(network, tmp_path)
        if scale == 1024.0:
            tool("ac", "-c", cwd=tmp_path)
    assert since(tmp_path)["culprit"] == "gradients/Relu"


def test_an_earlier_verdict_is_offered(tmp_path: Path) -> None:
    collect(layers().with_part("one/MatMul", wrong=negated), tmp_path)
    first = tool("ac", "-c", cwd=tmp_path)
    assert "--since" not in first.text
    second = tool("ac", "-c", cwd=tmp_path)
    assert "an earlier verdict named one/MatMul: `ac --since precision_data/temp/" in second.text
    assert "--since" not in tool("ac", cwd=tmp_path).text


@pytest.mark.parametrize("name", ["nothing.json", "precision_data/npu", ""])
def test_no_earlier_verdict(tmp_path: Path, name: str) -> None:
    collect(layers(), tmp_path)
    tool("ac", "-c", cwd=tmp_path)
    run = tool("ac", "--since", *([name] if name else []), cwd=tmp_path, code=2)
    assert "error: " in run.err
    assert "hint: " in run.err


def test_a_damaged_one(tmp_path: Path) -> None:
    collect(layers(), tmp_path)
    damaged = tmp_path / "verdict_x.json"
    damaged.write_text('{"version": 1, "check": 1}')
    assert (
        "verdict_x.json: no verdict of this version"
        in tool("ac", "-c", "--since", str(damaged), cwd=tmp_path, code=2).text
    )
