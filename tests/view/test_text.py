"""Words in what is shown."""

from __future__ import annotations

import re

from precision_tool.lib.messages.catalogue import catalogue


def test_hints_start_with_a_small_letter_and_end_without_a_stop() -> None:
    """They go on after `hint: `; names as GE or NAME may stand first."""
    hints = {
        kind: text for kind, text in catalogue("en").items() if kind.startswith("error.") and kind.endswith(".hint")
    }
    assert len(hints) > 100
    assert {kind for kind, text in hints.items() if re.match("[A-Z][a-z]", text) or text.endswith(".")} == set()
