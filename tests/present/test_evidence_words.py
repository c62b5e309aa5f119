"""Every piece of evidence has its words, and in `present` alone."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module

import pytest

from precision_tool.lib import checks
from precision_tool.lib.model.finding import Evidence
from precision_tool.lib.present import evidence as words
from precision_tool.lib.present.evidence.told import FAMILIES

TABLES = ("SENTENCES", "FACTS", "LOOKED_AT")


def kinds() -> Iterator[type[Evidence]]:
    """Every kind of evidence of the package."""
    for place in FAMILIES:
        module = import_module(f"precision_tool.lib.{place}")
        mine = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]
        yield from (one for one in mine if issubclass(one, Evidence) and one is not Evidence)


def test_every_check_with_evidence_has_a_family() -> None:
    for one in pkgutil.iter_modules(checks.__path__):
        module = import_module(f"{checks.__name__}.{one.name}")
        mine = [kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == module.__name__]
        assert f"checks.{one.name}" in FAMILIES or not any(issubclass(kind, Evidence) for kind in mine)


@pytest.mark.parametrize("kind", sorted(kinds(), key=str), ids=lambda kind: kind.__name__)
def test_evidence_has_words(kind: type[Evidence]) -> None:
    family = FAMILIES[kind.__module__.removeprefix("precision_tool.lib.")]
    module = import_module(f"{words.__name__}.{family}")
    assert any(kind in getattr(module, table, {}) for table in TABLES)


@pytest.mark.parametrize("family", [one.name for one in pkgutil.iter_modules(words.__path__) if one.name != "told"])
def test_words_are_of_the_evidence_of_their_family(family: str) -> None:
    module = import_module(f"{words.__name__}.{family}")
    told = [kind for table in TABLES for kind in getattr(module, table, {})]
    assert told
    places = {kind.__module__.removeprefix("precision_tool.lib.") for kind in told}
    assert {FAMILIES[place] for place in places} == {family}
