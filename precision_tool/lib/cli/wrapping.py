"""Lines of text as wide as a terminal, in Chinese too. Loads nothing heavy; this module runs on Python 3.7."""

# ruff: noqa: RUF001  # Chinese punctuation

import re
import textwrap
from typing import Iterator, List
from unicodedata import east_asian_width

#: What begins no line, and what ends none.
_NOT_FIRST, _NOT_LAST = "，。；：、！？）》」』”’%", "（《「『“‘"


def cells(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return len(text) if text.isascii() else sum(1 + (east_asian_width(sign) in "WF") for sign in text)


def wrapped(text: str, width: int) -> List[str]:
    """Return a text in lines of at most `width` columns; Chinese breaks between any two characters."""
    if cells(text) == len(text):
        return textwrap.wrap(text, width)
    lines = [""]
    for unit in _units(" ".join(text.split())):
        if lines[-1] and cells(lines[-1] + unit.rstrip()) > width:
            lines[-1] = lines[-1].rstrip()
            lines.append("")
        lines[-1] += unit
    return [line.rstrip() for line in lines]


def _units(text: str) -> Iterator[str]:
    """Split a text into what no line break may part: words with the blank behind them, and Chinese characters."""
    unit = ""
    for piece in re.findall(r"[^\s\u2e80-\u9fff\uff00-\uffef]+\s*|[\u2e80-\u9fff\uff00-\uffef]\s*|\s+", text):
        if unit and not (piece[0] in _NOT_FIRST or unit[-1] in _NOT_LAST):
            yield unit
            unit = ""
        unit += piece
    yield unit
