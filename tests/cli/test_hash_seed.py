"""The order of sets reaches no output: the same comparison in processes with different hash seeds."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from command_line import tool

from precision_tool.lib.demo.generate import generate_demo


def test_the_json_does_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    generate_demo(tmp_path / "made")
    shown: list[str] = []
    for seed in ("1", "2"):
        folder = tmp_path / "demo"  # the same paths in both; nothing is left of the run before
        shutil.copytree(tmp_path / "made", folder / "precision_data")
        out = tool("ac", "-c", "--json", cwd=folder, env={"PYTHONHASHSEED": seed}).out
        shutil.rmtree(folder)
        shown.append(
            re.sub(r"\b\d{14}\b|(?<=result_)\d{14}", "MOMENT", out)
        )  # results are named by when they were made
    assert "MOMENT" in shown[0]
    assert shown[0] == shown[1]
