"""Words that every room needs for its messages."""

from __future__ import annotations


def counted(number: int, what: str, many: str = "") -> str:
    """A number of things, of which there may be one: `1 file`, `3,000 files`, `2 boxes` (`many`: boxes)."""
    return f"{number:,} {what if number == 1 else many or what + 's'}"
