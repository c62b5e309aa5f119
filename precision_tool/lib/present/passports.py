"""What `ac` and `random` show of the passports of two runs, and its JSON."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType

from precision_tool.lib.checks.passports import PassportPair
from precision_tool.lib.messages import render, text
from precision_tool.lib.present.text import LabelledLines, plain


def passport_lines(pair: PassportPair) -> RenderableType:
    """Return what differs between the settings and data of two runs, a line each."""
    label = text("finding.label.differs").ljust(len("benchmark"))  # as wide as those of the lines below
    lines = [plain(render(difference.message)) for difference in pair.differences]
    return LabelledLines([("" if number else label, line) for number, line in enumerate(lines)])


def pair_json(pair: PassportPair) -> dict[str, Any]:
    """Return the object of JSON."""
    return {
        "npu": pair.npu.path,
        "benchmark": pair.other.path,
        "differences": [
            {
                "topic": difference.topic,
                "names": list(difference.names),
                "npu": difference.npu,
                "benchmark": difference.benchmark,
                "text": render(difference.message),
            }
            for difference in pair.differences
        ],
    }
