"""The public functions say in numpydoc's sections what they take, give and raise, of every parameter they have."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

import precision_tool
from precision_tool import tf_config
from precision_tool.lib.api import CompareResult
from precision_tool.lib.session import Session

PUBLIC: list[Callable[..., Any]] = [
    *filter(inspect.isfunction, (getattr(precision_tool, name) for name in precision_tool.__all__)),
    CompareResult.findings,
    CompareResult.to_numpy,
    CompareResult.write_csv,
    Session.tensors,
    *(member for _, member in inspect.getmembers(tf_config, inspect.isfunction) if not member.__name__.startswith("_")),
]
#: What only happens at import.
NOT_FOR_SCRIPTS = {"seed_at_import"}


def sections(text: str) -> dict[str, str]:
    """The text below each underlined heading."""
    parts = re.split(r"(?m)^ *(\w+)\n *-{3,}\n", inspect.cleandoc(text))
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("function", PUBLIC, ids=lambda function: function.__qualname__)
def test_a_public_function_documents_all_it_takes_and_gives(function: Callable[..., Any]) -> None:
    if function.__name__ in NOT_FOR_SCRIPTS:
        return
    found = sections(function.__doc__ or "")
    signature = inspect.signature(function)
    taken = {name.lstrip("*") for line in re.findall(r"(?m)^([*\w, ]+?)(?: : |$)", found.get("Parameters", ""))
             for name in line.split(", ")}  # fmt: skip
    assert taken == {name for name in signature.parameters if name != "self"}
    gives = signature.return_annotation not in (None, "None")
    assert ("Returns" in found) == gives
    assert set(found) <= {"Parameters", "Returns", "Raises"}


def test_they_are_all_there() -> None:
    assert {"compare", "load_graph_file", "open_data", "run", "session_dump_config", "sess_dump"} <= {
        function.__name__ for function in PUBLIC
    }
