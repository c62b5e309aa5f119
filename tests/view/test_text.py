"""Words in what is shown."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest

import precision_tool
from precision_tool.lib.view.text import counted, off_by


@pytest.mark.parametrize(
    ("number", "expected"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (1234567, "1,234,567 files")]
)
def test_counts_of_things(number: int, expected: str) -> None:
    assert counted(number, "file") == expected
    assert counted(number, "box", "boxes").startswith(f"{expected.split()[0]} box")


def test_hints_start_with_a_small_letter_and_end_without_a_stop() -> None:
    """They go on after `hint: `."""
    odd = []
    for path in Path(precision_tool.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        texts = {
            target.id: node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for call in ast.walk(tree):
            if not (isinstance(call, ast.Call) and len(call.args) > 1 and isinstance(call.func, ast.Name)):
                continue
            if call.func.id not in ("UsageError", "DataNotFoundError", "FormatError", "OutputError"):
                continue
            hint = call.args[1]
            if isinstance(hint, ast.Name):
                hint = texts.get(hint.id, hint)
            if isinstance(hint, ast.JoinedStr):
                hint = hint.values[0]
            if isinstance(hint, ast.Constant) and isinstance(hint.value, str):
                text = hint.value
                if text[:1].isupper() or text.endswith("."):
                    odd.append((path.name, call.lineno, text))
    assert odd == []


def test_a_distance_that_is_not_finite() -> None:
    assert [off_by(value) for value in (0.637, 25.0, math.inf, "inf", None)] == [
        "63.7 % off",
        "25 times off",
        *["infinitely far off"] * 3,
    ]
