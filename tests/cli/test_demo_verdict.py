"""The demo as a newcomer runs it: what `ac -c` names is what the demo made wrong."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import tool

from precision_tool.lib.demo.generate import generate_demo


def test_the_demos_culprit_is_named(tmp_path: Path) -> None:
    truth = generate_demo(tmp_path / "demo_data" / "precision_data")
    (result, *_) = json.loads(tool("ac", "-c", "--json", cwd=tmp_path / "demo_data").out)["results"]
    named = [finding["op_name"] for finding in result["findings"] if finding["kind"] == "first_faulty_op"]
    assert named == [truth.culprit]
