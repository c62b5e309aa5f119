"""Which fusion switch files GE takes, after its fusion_config_parser.cc and the JSON parser it uses (nlohmann::json).

Written from those, apart from the project's own reader, to check that one.
"""

from __future__ import annotations

import json
import re
from typing import Any


class RefusedError(Exception):
    """GE does not take the file."""


def ge_takes(text: str) -> bool:
    """Whether GE goes on with this file as `fusion_switch_file`."""
    try:
        _check(text)
    except RefusedError:
        return False
    return True


def _need(condition: object) -> None:
    if not condition:
        raise RefusedError


def _check(text: str) -> None:
    _need(text.strip(" \t\n\r\v\f"))  # CheckFileEmpty: `ifs >> c`
    try:
        value = _first_value(text)
    except ValueError:
        _old_form(text)
        return
    if value is None:  # `custom_fusion_config_json == nullptr`
        return
    _need(isinstance(value, dict))
    for name, content in value.items():
        if name.strip() == "ExceptionalPassOfO1Level":
            _need(isinstance(content, list))
            _need(name != name.strip() or all(isinstance(one, str) for one in content))
            continue
        _need(name.strip() in ("Switch", "Priority"))
        _need(isinstance(content, dict))
        for section, members in content.items():
            _need(section.strip() in ("GraphFusion", "UBFusion"))
            _need(isinstance(members, dict))
            if name.strip() == "Switch":
                _need(all(isinstance(word, str) and word.strip() in ("on", "off") for word in members.values()))
            else:
                _priority(members)


def _priority(levels: dict[str, Any]) -> None:
    names: set[str] = set()
    for level, passes in levels.items():
        first = {"Top": 0, "Main": 1000, "Down": 2000}.get(level.strip(), -1)
        _need(first >= 0 and isinstance(passes, dict))
        for name, number in passes.items():
            _need(isinstance(number, str) and name.strip() not in names)
            names.add(name.strip())
            _need(re.fullmatch("[0-9]+", number.strip()) and first <= int(number) < first + 1000)


def _first_value(text: str) -> Any:
    """What `stream >> json` reads: one value; of the rest the parser has seen no more than one sign."""
    text = text.lstrip(" \t\n\r")
    number = re.match(r"-?(0|[1-9][0-9]*)", text)
    if number:
        rest = text[number.end() :]
        if re.match(r"\.(?![0-9])", rest) or re.match(r"(\.[0-9]+)?[eE](?![+-]?[0-9])", rest):
            raise ValueError("a number without its digits")
        return 0

    def refuse(name: str) -> None:
        raise ValueError(name)

    return json.JSONDecoder(parse_constant=refuse).raw_decode(text)[0]


def _old_form(text: str) -> None:
    """LoadOldFormatFusionSwitchFile: lines as std::getline gives them."""
    names: set[str] = set()
    for line in text.split("\n"):
        if not line:
            continue
        name, colon, word = line.partition(":")
        _need(colon and word.strip() in ("on", "off"))
        _need(not name.strip() or name.strip() not in names)
        names.add(name.strip())
