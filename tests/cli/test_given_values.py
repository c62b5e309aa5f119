"""A culprit that nothing computes, a variable: `ni`, `ls --wrong` and `repro` show it beside the benchmark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import tool
from tiny_network import layers

NAME = "two/kernel"


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that was compared and judged, of which the benchmark has another variable."""
    cwd = tmp_path_factory.mktemp("given")
    part = next(part for part in layers().parts if part.name == NAME)
    assert part.npu is not None
    golden = np.ascontiguousarray(part.npu[::-1]).astype(np.float32)
    layers().with_part(NAME, golden=golden).write(cwd / "precision_data")
    tool("ac", "-c", cwd=cwd)
    return cwd


def variable() -> np.ndarray:
    part = next(part for part in layers().parts if part.name == NAME)
    assert part.npu is not None
    return np.asarray(part.npu, np.float64)


def test_ni_shows_both_sides(judged: Path) -> None:
    (found,) = json.loads(tool("ni", NAME, "--json", cwd=judged).out)["ops"]
    values, other = variable(), variable()[::-1]
    apart = np.linalg.norm(values - other) / np.linalg.norm(other)
    assert found["source"]["distance"] == pytest.approx(apart, rel=1e-5)
    assert found["source"]["different"] == np.count_nonzero(
        np.abs(values - other) > 2.0**-10 * np.abs(other) + 2.0**-24
    )
    assert found["verdict"] is None
    for one in found["elements"]:
        place = tuple(one["place"])
        assert one["npu"] == pytest.approx(values[place], rel=1e-6)
        assert one["benchmark"] == pytest.approx(other[place], rel=1e-6)
        assert one["recomputed"] is None
    worst = [one for one in found["elements"] if one["is_worst"]]
    assert abs(worst[0]["npu"] - worst[0]["benchmark"]) == pytest.approx(np.abs(values - other).max(), rel=1e-6)
    shown = tool("ni", NAME, cwd=judged).text
    assert "no op of the graph computes it; it differs from the benchmark" in shown
    assert "recomputed" not in shown


def test_ni_of_what_agrees(judged: Path) -> None:
    shown = tool("ni", "one/kernel", cwd=judged).text
    assert "no op of the graph computes it; it matches the benchmark" in shown
    assert "worst" not in shown


def test_ls_wrong_says_whom_the_verdict_blames(judged: Path) -> None:
    run = tool("ls", "--wrong", cwd=judged)
    assert f"the verdict blames {NAME} (weights), which does not compute wrong by itself" in run.err


def test_the_next_step_looks_at_it(judged: Path) -> None:
    assert f"\n        precision-tool ni {NAME}\n" in tool("ac", cwd=judged).out


def test_a_reproduction_tells_of_the_files_it_has(judged: Path) -> None:
    tool("repro", NAME, "out", cwd=judged)
    told = (judged / "out" / "README.md").read_text("utf-8")
    files = {path.name for path in (judged / "out").iterdir()}
    assert files == {"README.md", "check.py", "op.json", "output_0.npu.npy", "output_0.benchmark.npy"}
    assert "output_*.benchmark.npy" in told
    for word in ("input_", "float64", "rounding", "0 times", "limits"):
        assert word not in told
    script = [sys.executable, "-I", "-W", "error", str(judged / "out" / "check.py")]
    run = subprocess.run(script, cwd="/", capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (2, "")
    values = variable()
    differ = np.count_nonzero(values != values[::-1])
    assert f"{differ} of {values.size} elements differ from the other side's, relative distance" in run.stdout
