"""Errors come back from worker processes as they were raised there."""

from __future__ import annotations

import importlib
import inspect
import pickle
import pkgutil

import pytest

import precision_tool.lib
from precision_tool.lib.errors import PrecisionToolError


def error_classes() -> list[type[PrecisionToolError]]:
    """Every kind of user's error that the package has."""
    for module in pkgutil.walk_packages(precision_tool.lib.__path__, "precision_tool.lib."):
        importlib.import_module(module.name)
    found: list[type[PrecisionToolError]] = [PrecisionToolError]
    for one in found:
        found += [below for below in one.__subclasses__() if below not in found]
    return found


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__name__)
def test_an_error_survives_pickling(kind: type[PrecisionToolError]) -> None:
    parameters = inspect.signature(kind).parameters
    more = {
        name: value
        for name, value in (("rows", [1, 2]), ("results", ["one"]), ("declared", "a tensor"))
        if name in parameters
    }
    code = {"exit_code": 2} if "exit_code" in parameters else {}
    error = kind("what and where", "what next", **more, **code)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (copy.message, copy.hint, copy.exit_code, str(copy)) == (
        error.message,
        error.hint,
        error.exit_code,
        str(error),
    )
    assert {name: getattr(copy, name) for name in more} == more
