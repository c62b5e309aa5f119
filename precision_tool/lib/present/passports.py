"""What `ac` and `random` show of the passports of two runs."""

from __future__ import annotations

from rich.console import RenderableType

from precision_tool.lib.checks.passports import PassportPair
from precision_tool.lib.present.evidence.passports import difference_words
from precision_tool.lib.present.text import LabelledLines, plain


def passport_lines(pair: PassportPair) -> RenderableType:
    """What differs between the two runs besides what they computed, a line each."""
    label = "differs".ljust(len("benchmark"))  # as wide as those of the lines below
    lines = [plain(difference_words(pair, one)) for one in pair.differences]
    return LabelledLines([("" if number else label, line) for number, line in enumerate(lines)])
