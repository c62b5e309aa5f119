"""Hooks of mkdocs: the pages of the site are the Markdown files of the repository, which nobody copies."""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
#: The first line of an item of a list, and the blanks below which its further lines stand.
_ITEM = re.compile(r"(?:\d+\.|[-*]) +")


def on_config(config: Any) -> Any:
    """Leave pages out of the navigation that are not written: those in Chinese may be missing; and jieba is quiet."""
    logging.getLogger("jieba").setLevel(logging.WARNING)
    config.nav = _written(config.nav)
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages, and the pictures in them."""
    from mkdocs.structure.files import File, InclusionLevel

    pages = _paths(config.nav)
    pictures = [path.relative_to(REPO).as_posix() for path in sorted((REPO / ".readme").iterdir())]
    for path in (*pages, *pictures):
        file = File.generated(config, path, abs_src_path=str(REPO / path), inclusion=InclusionLevel.INCLUDED)
        file.dest_uri = posixpath.basename(file.dest_uri)  # a server may hide folders like .github
        files.append(file)
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Write lists as Python-Markdown reads them.

    What belongs to an item stands four blanks below it, where GitHub takes two or three; and an empty line precedes
    the first item of a list, and one after an item of several paragraphs.
    """
    lines: list[str] = []
    width, is_loose, is_fenced = 0, False, False  # of the item that a line belongs to; 0 outside of lists
    for line in markdown.split("\n"):
        is_further = not line.strip() or len(line) - len(line.lstrip(" ")) >= width
        item = None if is_fenced or (width and is_further) else _ITEM.match(line)
        if item:
            if lines and lines[-1].strip() and (is_loose or not width):
                lines.append("")
            width, is_loose = item.end(), False
        elif not is_fenced and not is_further:
            width = 0
        is_inner = width and line.strip() and not item
        lines.append(" " * max(0, 4 - width) + line if is_inner else line)
        is_loose |= not line.strip()
        is_fenced ^= line.strip().startswith("```")
    return "\n".join(lines)


def _paths(nav: Any) -> list[str]:
    """Return the paths in a navigation, in order."""
    if isinstance(nav, str):
        return [nav]
    return [path for part in (nav.values() if isinstance(nav, dict) else nav) for path in _paths(part)]


def _written(nav: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kept = []
    for entry in nav:
        ((title, place),) = entry.items()
        if isinstance(place, list):
            place = _written(place)
        if place and (isinstance(place, list) or (REPO / place).exists()):
            kept.append({title: place})
    return kept
