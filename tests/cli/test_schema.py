"""The schema of `--json`: of every command that has the option, strict, and right about what commands print.

That it is right is tested wherever a test lets a command print JSON: `tool` of `command_line.py` holds it against it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import tool, validator

from precision_tool.lib.cli.command import load_command
from precision_tool.lib.cli.words import WORDS
from precision_tool.lib.compare.columns import SCHEMA
from precision_tool.lib.data.settings import Settings
from precision_tool.lib.demo.generate import DemoTruth, generate_demo
from precision_tool.lib.session import Session
from precision_tool.lib.view.json_schema import COMMANDS, json_schema

#: Like no value of any document.
ODD = {"Odd key": [[[None]]]}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, DemoTruth]:
    """A demo that overflows, compared: every command below has something to print."""
    cwd = tmp_path_factory.mktemp("schema")
    truth = generate_demo(cwd / "precision_data", fault="overflow")
    return cwd, truth


def test_every_command_with_json_has_one() -> None:
    session = Session(Settings())
    parsers = {word.name: load_command(word.name).parser(session) for word in WORDS if word.name != "data"}
    with_json = {name for name, parser in parsers.items() if "--json" in parser._option_string_actions}
    assert set(COMMANDS) == with_json


def test_it_is_printed_whole_or_of_a_command(tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema_rs")
    whole = tool("schema", cwd=tmp_path).json
    assert whole == json_schema()
    assert whole["version"] == SCHEMA
    jsonschema.meta.validate(whole)
    one = tool("schema", "compare", cwd=tmp_path).json  # an old name of cp
    assert one == json_schema("cp")
    assert one["$defs"].items() <= whole["$defs"].items()
    for name in COMMANDS:
        jsonschema.Draft202012Validator(json_schema(name))  # every reference is resolved
    refused = tool("schema", "guide", cwd=tmp_path, code=2)
    assert "error: schema: 'guide' prints no JSON" in refused.err


def places(document: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every place in a document: its path with `*` for positions, what it is in, and under which key."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in list(items):
        place = f"{path}/{key if isinstance(document, dict) else '*'}"
        yield place, document, key
        if isinstance(value, (dict, list)):
            yield from places(value, place)


def accepted_changes(command: str, document: Any) -> Iterator[tuple[str, str]]:
    """What can be changed in a document of a command so that the schema does not object, and where."""
    seen = set()
    accepts = validator(command).is_valid
    for place, holder, key in places(document):
        if place in seen:
            continue
        seen.add(place)
        kept = dict(holder) if isinstance(holder, dict) else list(holder)
        changes: dict[str, Any] = {"other type": {**kept, key: ODD} if isinstance(kept, dict) else [ODD, *kept]}
        if isinstance(kept, dict):
            without = {name: value for name, value in kept.items() if name != key}
            changes |= {"dropped": without, "renamed": {**without, f"{key}_": kept[key]}}
        for change, changed in changes.items():
            replace_content(holder, changed)
            if accepts(document):
                yield change, place
            replace_content(holder, kept)
    assert accepts(document)


def shortened(document: Any) -> Any:
    """A document with at most three items of each list: of many rows each is like the others."""
    if isinstance(document, dict):
        return {key: shortened(value) for key, value in document.items()}
    return [shortened(item) for item in document[:3]] if isinstance(document, list) else document


def replace_content(holder: Any, content: Any) -> None:
    holder.clear()
    if isinstance(holder, dict):
        holder.update(content)
    else:
        holder.extend(content)


#: Places where the keys are names (of ops, passes, checks' own values), by command: what is below them is open.
OPEN = {
    "ac": ("/evidence/", "/details/", "/reasons/", "/reason_kinds/"),
    "ni": ("/attributes/",),
    "fusion": ("/passes/",),
    "graphs": ("/other_stages/",),
    "profile": ("/mode/",),
}
#: Keys that are not always there.
OPTIONAL = {"ac": {"/checks", "/passports", "/verdict", "/results/*/verdict"}, "ni": {"/ops/*/attributes"}}


@pytest.mark.parametrize("words", [
    ("ac", "-c"), ("ls",), ("ls", "dump"), ("ni", "CULPRIT", "-a"), ("graphs",), ("graphs", "--find", "Conv2D"),
    ("pt", "CULPRIT"), ("cp", "CULPRIT"), ("overflow",), ("fusion",), ("fusion", "show"), ("profile",), ("toolkit",),
], ids=" ".join)  # fmt: skip
def test_whatever_is_changed_is_refused(words: tuple[str, ...], demo: tuple[Path, DemoTruth]) -> None:
    """A key dropped or renamed, or a value of another type, anywhere in a document."""
    pytest.importorskip("jsonschema_rs")
    cwd, truth = demo
    named = [str(truth.culprit) if word == "CULPRIT" else word for word in words]
    document = shortened(tool(*named, "--json", cwd=cwd).json)
    assert json.dumps(document).count(":") > 8
    command = words[0]
    accepted = {
        (change, place)
        for change, place in accepted_changes(command, document)
        if not any(part in place for part in OPEN.get(command, ()))
    }
    assert accepted == {("dropped", place) for place in OPTIONAL.get(command, ()) if ("dropped", place) in accepted}
