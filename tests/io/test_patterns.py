"""Every pattern matches alike on all Pythons from 3.11 on.

Before 3.11.5 a possessive group, `(?:...)*+`, goes on from wherever its last, failed repetition came to (CPython issue
106052). Nothing can go wrong where that repetition fails at its first characters.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import re._constants as sre  # type: ignore[import-not-found]
import re._parser as sre_parser  # type: ignore[import-not-found]
from collections.abc import Iterator
from typing import Any

import pytest

import precision_tool.lib

ONE_CHARACTER = (sre.LITERAL, sre.NOT_LITERAL, sre.IN, sre.ANY)


def patterns() -> Iterator[tuple[str, re.Pattern[Any]]]:
    for module in pkgutil.walk_packages(precision_tool.lib.__path__, "precision_tool.lib."):
        if not module.name.startswith("precision_tool.lib.training.tfdbg"):  # made for TensorFlow's own Python
            for name, value in vars(importlib.import_module(module.name)).items():
                if isinstance(value, re.Pattern):
                    yield f"{module.name}.{name}", value


def inner(arguments: Any) -> Iterator[Any]:
    """The patterns within what an operation is given, however nested."""
    if isinstance(arguments, sre_parser.SubPattern):
        yield arguments
    elif isinstance(arguments, (list, tuple)):
        for one in arguments:
            yield from inner(one)


def fails_late(body: Any) -> bool:
    """True if a repetition may fail behind something of variable length, or in what is looked for around it."""
    variable = False
    for operation, arguments in body:
        if operation is sre.POSSESSIVE_REPEAT:
            least, _, one = arguments
            if len(one) != 1 or one[0][0] not in ONE_CHARACTER or (variable and least):
                return True
            variable = True
        elif operation not in ONE_CHARACTER or variable:
            return True
    return False


def wrong_groups(tree: Any) -> Iterator[Any]:
    for operation, arguments in tree:
        if operation is sre.POSSESSIVE_REPEAT and fails_late(arguments[2]):
            yield arguments[2]
        for one in inner(arguments):
            yield from wrong_groups(one)


@pytest.mark.parametrize("pattern", [r"(?:ab?c)*+", r"(?:a*+b)?+", r"x(?:(?<=x)a)*+", r"(?:(?:a)*+b)++"])
def test_the_check_finds_what_goes_wrong(pattern: str) -> None:
    assert [*wrong_groups(sre_parser.parse(pattern))]


def test_no_possessive_group_can_fail_late() -> None:
    found = dict(patterns())
    assert len(found) > 30
    wrong = [
        name for name, pattern in found.items() if [*wrong_groups(sre_parser.parse(pattern.pattern, pattern.flags))]
    ]
    assert not wrong
