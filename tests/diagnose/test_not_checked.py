"""What no judgement is known for is neither called wrong nor right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from builders import one_op_tree
from command_line import tool
from tiny_network import layers

_COMPLEX = ((np.arange(6) + 1j * np.arange(6)) * (0.1 + 0.3j)).astype(np.complex64)
_FLOATS = np.array([1.1, 2.3, -3.7, 0.3], np.float32)
_SMALL = _FLOATS.astype(ml_dtypes.float8_e4m3fn)

CASES: dict[str, tuple[str, list[Any], Any, Any]] = {
    # op type, inputs, NPU, benchmark
    "complex64": ("Mul", [_COMPLEX, _COMPLEX], _COMPLEX * _COMPLEX, _COMPLEX * _COMPLEX),
    "float8_e4m3fn": ("Cast", [_FLOATS], _SMALL, _SMALL.astype(np.float32)),
    "its correct output contains no finite value": (
        "Exp", [np.array([1000, 2000], np.float32)], np.array([5, 7], np.float32), np.array([5, 7], np.float32),
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", CASES)
def test_it_says_why(tmp_path: Path, why: str) -> None:
    op_type, inputs, npu, golden = CASES[why]
    one_op_tree(tmp_path / "precision_data", output=npu, golden=golden, inputs=inputs, op_type=op_type)
    (found,) = json.loads(tool("ac", "-c", "--json", cwd=tmp_path).out)["results"]
    assert (found.get("verdict") or {"culprit": None})["culprit"] is None
    assert why in tool("ni", "block/add", cwd=tmp_path).text


def test_a_benchmark_of_another_network_is_asked_about_and_not_used(tmp_path: Path) -> None:
    """A benchmark of few ops of the same network is used; one of which few tensors match is not."""
    layers().write(tmp_path / "precision_data")
    files = sorted((tmp_path / "precision_data" / "tf" / "dump").iterdir())
    for file in files[1:]:
        file.rename(file.with_name(f"other_{file.name}"))
    run = tool("ac", "-c", cwd=tmp_path)
    assert "a benchmark of the same network? Only" in " ".join(run.err.split())
    assert "below 0.98" not in run.out
    verdict = json.loads(tool("ac", "-c", "--json", cwd=tmp_path).out)["verdict"]
    assert (verdict["culprit"], verdict["benchmark"]) == (None, False)
    again = tool("ac", cwd=tmp_path)  # the result that was just written
    assert "a benchmark of the same network? Only" in " ".join(again.err.split())
    assert "below 0.98" not in again.out
    assert "a benchmark of the same network? Only" in tool("ac", "--all", cwd=tmp_path, code=2).text
    for file in files[1:]:
        file.with_name(f"other_{file.name}").unlink()
    verdict = json.loads(tool("ac", "-c", "--json", cwd=tmp_path).out)["results"][0]["verdict"]
    assert verdict["benchmark"] is True
