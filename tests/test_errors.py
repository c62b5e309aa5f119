"""Errors come back from worker processes as they were raised there."""

from __future__ import annotations

import ast
import importlib
import inspect
import pickle
import pkgutil
import re
from pathlib import Path

import numpy as np
import pytest

import precision_tool
import precision_tool.lib
from precision_tool.lib.io.ge_graph import load_graph_file
from precision_tool.lib.io.npy import read_npy
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, PrecisionToolError


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
    assert copy.place == {"path": None, "offset": None, "line": None, "reason": "what and where"}
    place = {"path": "a/b.npy", "offset": 7, "line": 2}
    for name, value in place.items():
        setattr(error, name, value)
    assert pickle.loads(pickle.dumps(error)).place == {**place, "reason": "what and where"}


def test_an_error_of_a_file_has_its_place_as_fields() -> None:
    error = FormatError.of(Path("a") / "b.npy", "cut off at byte 7", "copy it again", offset=7)
    assert (str(error), error.hint) == ("a/b.npy: cut off at byte 7", "copy it again")
    assert error.place == {"path": "a/b.npy", "offset": 7, "line": None, "reason": "cut off at byte 7"}
    assert str(DataNotFoundError.of("c.cfg", "no such pass", line=3)) == "c.cfg line 3: no such pass"


def test_files_that_cannot_be_read_say_where_in_fields(tmp_path: Path) -> None:
    """No error of a format joins a path and a reason by itself."""
    joined = re.compile(
        r"(?:FormatError|DataNotFoundError|OutputError)\(\s*f\"\{(?:\w+\.)*_?(?:path|source)\}(?:: | line )"
    )
    lib = Path(precision_tool.lib.__path__[0])
    assert [str(path) for path in lib.rglob("*.py") if joined.search(path.read_text("utf-8"))] == []
    cut = tmp_path / "cut.npy"
    np.save(cut, np.zeros(100))
    cut.write_bytes(cut.read_bytes()[:-8])
    with pytest.raises(FormatError) as caught:
        read_npy(str(cut))
    assert caught.value.path == str(cut)
    assert caught.value.offset == 128
    assert caught.value.message == f"{cut}: {caught.value.reason}"


#: The modules that raise errors of values whose file only their readers know.
WITHIN = {
    "io/data_types.py", "io/ge_dump.py", "io/ge_graph.py", "io/ge_graph_export.py", "io/msprobe_dump.py",
    "io/opdebug.py", "io/proto_text.py", "io/tf_graph.py",
}  # fmt: skip


def test_every_error_of_a_format_has_its_fields() -> None:
    """None is made of a message alone; those that know no file are of the parsers, below the readers."""
    lib = Path(precision_tool.lib.__path__[0])
    bare, within = [], set()
    for path in lib.rglob("*.py"):
        name = path.relative_to(lib).as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called.rpartition(".")[2] == "FormatError":
                bare.append(f"{name}:{node.lineno}")
            if called == "FormatError.within":
                within.add(name)
    assert bare == []
    assert within == WITHIN


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('graph { name: "g" op { name: "a" type { } } }', "a block where a string was expected"),
        ('graph { name: "g" op { name: "a" input: "b:-2" } }', "only -1 (control) may be negative"),
        ('{"graph": [{"name": "g", "op": [{"name": "a", "id": "x"}]}]}', "'x' where a whole number was expected"),
    ],
)
def test_a_wrong_value_in_a_graph_is_of_its_file(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / ("graph.json" if text.startswith("{") else "ge_proto_00000_Build.txt")
    path.write_text(text)
    with pytest.raises(FormatError, match=re.escape(reason)) as caught:
        load_graph_file(str(path))
    assert caught.value.path == str(path)
    assert caught.value.message == f"{path}: {caught.value.reason}"


def test_an_error_of_a_part_names_the_part_and_has_the_file() -> None:
    error = FormatError.of("a/b.npy", "no numbers", "name another", what="conv1:output:0")
    assert str(error) == "conv1:output:0: no numbers"
    assert (error.path, error.reason) == ("a/b.npy", "no numbers")
