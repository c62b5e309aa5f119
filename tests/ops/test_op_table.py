"""The table of ops: what the README says of it, and which names belong together."""

from __future__ import annotations

import re
from pathlib import Path

from precision_tool.lib.ops.op_table import all_types, find

README = Path(__file__).parents[2] / "README.md"
#: Ops whose results nothing tells.
NOT_COMPUTED = {"RandomUniform", "DropOutGenMask"}
#: Names of the README for several types of GE.
SHORT = {"Scatter": "ScatterNd"}


def rows() -> list[tuple[list[str], str]]:
    """Op types and what is said of them, of the README's table of ops."""
    text = README.read_text(encoding="utf-8")
    table = text[text.index("| ops | |") :].split("\n\n", 1)[0].splitlines()[2:]
    cells = [line.strip("|").split("|") for line in table]
    return [(re.findall(r"`(\w+)`", ops), words.strip()) for ops, words in cells]


def test_the_readme_says_which_ops_are_recomputed() -> None:
    result = rows()
    assert len(result) > 8
    for names, words in result:
        for name in names:
            is_known = find(SHORT.get(name, name)) is not None
            assert is_known == words.startswith("recomputed"), name
    assert {name for names, words in result if words.startswith("compared") for name in names} >= NOT_COMPUTED


def test_optimizers_have_tensorflows_names_as_well() -> None:
    """Those of GE alone end in D."""
    names = set(all_types())
    of_ge = {name for name in names if name.startswith(("Apply", "SparseApply"))} - {"ApplyAdamW", "ApplyAdamWV2"}
    assert {f"Resource{name}" for name in of_ge if not name.endswith("D")} <= names
    assert not {name for name in names if name.startswith("Resource") and name.endswith("D")}
