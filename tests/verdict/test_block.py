"""What people see of a verdict, and what programs do."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from builders import Array
from command_line import check_golden, tool
from tiny_network import Network, layers, scaled_gradients


def negated(array: Array) -> Array:
    changed = array.copy()
    changed[..., 2] *= -1
    return changed


NETWORKS: dict[str, Network] = {
    "kernel": layers().with_part("one/MatMul", wrong=negated).with_part("two/Tanh", wrong=np.zeros_like),
    "none": layers(),
    "loss_scale": scaled_gradients(),
}


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_what_people_see(tmp_path: Path, name: str, columns: int) -> None:
    NETWORKS[name].write(tmp_path / "precision_data")
    shown = tool("ac", "-c", "-l", "1", cwd=tmp_path, columns=columns)
    check_golden(f"verdict_{name}_{columns}.txt", shown, tmp_path)
    lines = [line for line in shown.out.splitlines() if "precision_data/" not in line]
    assert max(map(len, lines)) <= columns
    assert lines[-1].startswith("┗")  # the verdict is last
    assert shown.out.count("━ Verdict ━") == 1


@pytest.mark.parametrize("columns", [80, 120])
def test_without_a_benchmark(tmp_path: Path, columns: int) -> None:
    NETWORKS["kernel"].write(tmp_path / "precision_data", benchmark=False)
    shown = tool("ac", cwd=tmp_path, columns=columns)
    assert "one/MatMul (MatMulV2)" in shown.text
    assert "a benchmark would tell" in shown.text
    assert "then: tf_dump" in shown.text
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

    def narrowed(array: Array) -> Array:
        bits = array.astype(np.float32).view(np.uint32)
        return ((bits + 0x8000) & np.uint32(0xFFFF0000)).view(np.float32)

    layers().with_part("one/MatMul", wrong=narrowed).write(tmp_path / "precision_data")
    run = tool("ac", "-c", "--fail", "--json", cwd=tmp_path, code=1)
    (result,) = run.results
    assert result["overview"]["below"] == 0
    assert result["verdict"]["culprit"] == "one/MatMul"
