"""A dump file that is cut off: the verdict says that it is, and in one wording what it went by instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import tool

CULPRIT = "conv2/Conv2Dconv2/BiasAddconv2/Relu"


@pytest.mark.parametrize("fault", ["none", "fused"])
def test_the_verdict_tells_of_a_dump_that_is_cut_off(tmp_path: Path, fault: str) -> None:
    tool("demo", "d", "--fault", fault, "--generate-only", cwd=tmp_path)
    (file,) = (tmp_path / "d").rglob("Conv2D.conv2_Conv2D*")
    file.write_bytes(file.read_bytes()[:5000])
    text = tool("ac", "-c", cwd=tmp_path / "d").text
    verdict = text[text.index("━ Verdict") :]
    assert f"not all dumped tensors of {CULPRIT} could be read: dump again" in verdict
    assert "from its own inputs" not in verdict
    if fault == "none":
        assert "no op computes incorrectly" in verdict
        assert "97 %" not in verdict  # what all that could be read would say
    else:
        assert "from its producers' outputs" in verdict
        assert "its inputs were not dumped or cannot be read" in verdict
    examined = tool("ni", CULPRIT, cwd=tmp_path / "d").text
    assert "from its producers' outputs" in examined
    assert "from its own inputs" not in examined
