"""Every file and every name that CONTRIBUTING.md sends a contributor to is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
GUIDE = (REPO / ".github" / "CONTRIBUTING.md").read_text("utf-8")
PLACES = sorted(
    set(re.findall(r"(?:precision_tool|tests|scripts)/[\w./]*\w|config\.example\.py|pyproject\.toml", GUIDE))
)


@pytest.mark.parametrize("place", PLACES)
def test_places_exist(place: str) -> None:
    assert (REPO / place).exists()


def test_rooms_are_those_of_the_package() -> None:
    rooms = {name for row in re.findall(r"(?m)^\| (`[^|]+`) \|", GUIDE) for name in re.findall(r"`([\w.]+)`", row)}
    package = REPO / "precision_tool" / "lib"
    assert all((package / name).exists() for name in rooms)
    folders = {path.name for path in package.iterdir() if (path / "__init__.py").exists()}
    # No recipe concerns these: the networks of the demo, the settings file.
    assert folders - rooms == {"demo", "config"}


def test_names_beside_a_place_are_in_it() -> None:
    """`NAME` of, or in, `path.py`."""
    found = re.findall(r"`(?:@)?(\w+)(?:\([^`]*\))?`(?: \([^)]*\))?,? (?:of|in)\s+`([\w/.]+\.py)`", GUIDE)
    assert len(found) >= 12
    for name, place in found:
        assert re.search(rf"\b{name}\b", (REPO / place).read_text("utf-8")), (name, place)
