"""`overflow` and `random` go by the verdict's judgement of the op that they name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from builders import Array
from command_line import tool
from faults import negated
from tiny_network import layers, numbers


def saturated(array: Array) -> Array:
    changed = array.copy()
    changed[0, :3] = 65504
    return changed


def test_an_overflow_whose_true_result_is_beyond_the_type(tmp_path: Path) -> None:
    kernel = numbers(16, 6, seed=3, scale=0.3)
    network = layers().with_part("two/kernel", npu=kernel * np.float32(60000 / np.abs(kernel).max()))
    replace(network, saturates=True).write(tmp_path / "precision_data")
    (leaf,) = json.loads(tool("overflow", "--json", cwd=tmp_path).out)["leaves"]
    first = leaf["ops"][0]
    assert first["name"] == "two/MatMul"
    assert first["judged"]["state"] == "right"
    assert first["judged"]["overflowed"] > 0
    assert first["judged"]["largest"] > 65504
    assert "the correct result exceeds the range of its type in" in tool("overflow", cwd=tmp_path).text
    shown = tool("ni", "two/MatMul", cwd=tmp_path, columns=160).text
    assert "state the correct result exceeds the range of its type" in shown
    judged = tool("ac", "-c", cwd=tmp_path, columns=160).text
    assert "the correct result of 1 op exceeds the range of its type" in judged


def test_a_kernel_that_puts_out_the_limit_where_nothing_reaches_it(tmp_path: Path) -> None:
    """The values alone say that it overflowed; its inputs say that it computes wrong."""
    layers().with_part("one/MatMul", wrong=saturated).write(tmp_path / "precision_data")
    (leaf,) = json.loads(tool("overflow", "--json", cwd=tmp_path).out)["leaves"]
    first = leaf["ops"][0]
    assert (first["name"], first["judged"]["state"], first["judged"]["overflowed"]) == ("one/MatMul", "wrong", 0)
    text = tool("overflow", cwd=tmp_path, columns=160).text
    assert "the correct result fits its type" in text
    assert "no overflow, the op is wrong: " in text
    assert "overflowed itself" not in text
    assert "one/MatMul is wrong, so no wider type and no loss scale helps; `ac -c` shows more" in text
    assert "black list" not in text
    judged = tool("ac", "-c", cwd=tmp_path, columns=160).text
    assert "Overflow: one/MatMul is wrong, and does not overflow" in judged
    assert "overflows first" not in judged


def test_of_two_runs_that_differ_the_wrong_one_is_told(tmp_path: Path) -> None:
    data = tmp_path / "precision_data"
    layers().write(data)
    layers().with_part("one/MatMul", wrong=negated).write(data, run="debug_1")
    (pair,) = json.loads(tool("random", "--json", cwd=tmp_path).out)["pairs"]
    op = next(op for op in pair["ops"] if op["name"] == "one/MatMul")
    assert [one["state"] for one in op["judged"]] == ["right", "wrong"]
    text = tool("random", cwd=tmp_path, columns=160).text
    assert "first run computes correctly" in text
    assert "other run computes incorrectly" in text
    # Without a graph there is nothing to recompute by.
    for graph in data.rglob("ge_proto*"):
        graph.unlink()
    (pair,) = json.loads(tool("random", "--json", cwd=tmp_path).out)["pairs"]
    assert all(not op["judged"] for op in pair["ops"])
