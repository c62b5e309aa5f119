"""Words in what is shown."""

from __future__ import annotations

import re

import pytest

from precision_tool.lib.messages.catalogue import catalogue
from precision_tool.lib.model.wording import counted


@pytest.mark.parametrize(
    ("number", "expected"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (1234567, "1,234,567 files")]
)
def test_counts_of_things(number: int, expected: str) -> None:
    assert counted(number, "file") == expected
    assert counted(number, "box", "boxes").startswith(f"{expected.split()[0]} box")


def test_hints_start_with_a_small_letter_and_end_without_a_stop() -> None:
    """They go on after `hint: `; names as GE or NAME may stand first."""
    hints = {
        kind: text for kind, text in catalogue("en").items() if kind.startswith("error.") and kind.endswith(".hint")
    }
    assert len(hints) > 100
    assert {kind for kind, text in hints.items() if re.match("[A-Z][a-z]", text) or text.endswith(".")} == set()
