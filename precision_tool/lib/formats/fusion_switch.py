"""Fusion switch files: `{"Switch": {"GraphFusion": {PASS: "on" | "off"}, "UBFusion": {…}}}`, or lines `PASS:on|off`.

Read more leniently than GE does, as people write them; what GE makes of the file, and why it would refuse it, is told
(fusion_config_parser.cc of GE and the JSON parser it uses, FORMATS.md §7). What is written is what GE takes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from precision_tool.lib.errors import FormatError, shown, shown_name
from precision_tool.lib.formats.fusion_passes import GRAPH, ON_BY_NAME, SECTIONS, UB
from precision_tool.lib.formats.lenient_json import JsonText, Lenience, Node
from precision_tool.lib.io.files import open_file

#: Stands for every pass of its section that is not named.
ALL = "ALL"
#: The one section of a file in the old line form: its lines are for passes of either kind.
EITHER = ""

_SWITCH, _PRIORITY, _EXCEPTIONS = "Switch", "Priority", "ExceptionalPassOfO1Level"
_OTHERS = (_PRIORITY, _EXCEPTIONS)
_WORDS = {"on": True, "off": False}
#: The levels of `Priority`, and what the numbers of a user's file may be.
_LEVELS = {"Top": range(1000), "Main": range(1000, 2000), "Down": range(2000, 3000)}
#: No switch file is anywhere near as long.
_MAX_BYTES = 4 << 20
_PASSED_OVER = "it begins with null, so that GE passes over the whole file"
_HINT = (
    "correct that line, or write the file anew with `fusion reset`; its form is "
    '{"Switch": {"GraphFusion": {"PASS": "off"}, "UBFusion": {"PASS": "on"}}}'
)


@dataclass(frozen=True, kw_only=True)
class Switches:
    """What a switch file says. `sections` has pass names, and maybe ALL, with True for on, in the file's order.

    `others` are the further members GE allows, kept as they are. `notes` say where GE reads the file otherwise than it
    looks; `refused` says why GE refuses it, empty if it does not.
    """

    sections: Mapping[str, Mapping[str, bool]] = field(default_factory=lambda: MappingProxyType({}))
    others: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    is_old_form: bool = False
    notes: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    def named(self) -> Iterator[tuple[str, str, bool]]:
        """(section, pass, on) of every pass that is named."""
        for section, passes in self.sections.items():
            for name, on in passes.items():
                if name != ALL:
                    yield section, name, on

    def is_on(self, name: str, section: str | None = None) -> bool:
        """Whether GE runs a pass by this file: a named pass beats ALL, a pass of neither is on.

        What GE's own file names beats ALL too. Without its `section` a pass is off if any section names it off, or ALL
        is off in both.
        """
        found = [
            on for where, one, on in self.named() if one == name and (section is None or where in (section, EITHER))
        ]
        if found:
            return all(found)
        if name in ON_BY_NAME and section in (None, ON_BY_NAME[name]):
            return True
        return any(self._all(where) for where in ((section,) if section else SECTIONS))

    def told(self, name: str, section: str | None = None) -> bool | None:
        """As `is_on`, None where that depends on the section, which is unknown."""
        answers = {self.is_on(name, place) for place in ((section,) if section else SECTIONS)}
        return answers.pop() if len(answers) == 1 else None

    def _all(self, section: str) -> bool:
        """Whether a pass of a section that nobody names is on."""
        words = (self.sections.get(where, {}).get(ALL) for where in (section, EITHER))
        return next((on for on in words if on is not None), True)

    def left_on(self) -> tuple[str, ...]:
        """The passes that stay on though ALL is off in their section: GE's own file names them, this one not."""
        named = {name for _, name, _ in self.named()}
        return tuple(name for name, section in ON_BY_NAME.items() if name not in named and not self._all(section))

    def with_pass(self, name: str, on: bool, section: str | None = None) -> Switches:
        """The same with one pass (or ALL) on or off, in its section, and wherever the file names it.

        GE looks for a pass in its own section only, and passes over names it does not know: one whose section is
        unknown is written in both.
        """
        known = [where for where, one, _ in self.named() if one == name]
        places = [EITHER] if self.is_old_form else [*known, *((section,) if section else SECTIONS)]
        sections = {where: dict(passes) for where, passes in self.sections.items()}
        for place in places:
            sections.setdefault(place, {})[name] = on
        return replace(self, sections=sections)

    def all_off(self) -> Switches:
        """Everything off: ALL is, and so is by name what GE's own file names."""
        if self.is_old_form:
            return replace(self, sections={EITHER: {ALL: False, **dict.fromkeys(ON_BY_NAME, False)}})
        return replace(self, sections=_EVERYTHING_OFF)


_EVERYTHING_OFF = {
    place: {ALL: False, **{name: False for name, section in ON_BY_NAME.items() if section == place}}
    for place in SECTIONS
}

#: What the files hold when they are installed.
SHIPPED_OFF = Switches(sections=_EVERYTHING_OFF)
SHIPPED_SWITCH = Switches(
    sections={GRAPH: {"ConvToFullyConnectionFusionPass": True}, UB: {"TbePool2dQuantFusionPass": True}}
)


def render(switches: Switches) -> str:
    """The text of a switch file, in the form the file had; one that GE would refuse in the old form is JSON."""
    if switches.is_old_form:
        text = "".join(f"{name}:{_word(on)}\n" for passes in switches.sections.values() for name, on in passes.items())
        if text and not _value_at_start(text):
            return text
    sections = {
        section: {
            name: _word(on) for where in (EITHER, section) for name, on in switches.sections.get(where, {}).items()
        }
        for section in SECTIONS
    }
    return json.dumps({_SWITCH: sections, **switches.others}, indent=2) + "\n"


def text_to_write(switches: Switches, path: str) -> str:
    """`render`, for the file `path`. FormatError for what GE would refuse: that is never written."""
    text = render(switches)
    refused = parse_switches(text, path).refused
    if refused:
        raise FormatError.of(
            path,
            f"GE would refuse this file: {refused[0]}",
            "correct that by hand, or write the file anew with `fusion reset`",
        )
    return text


def _word(on: bool) -> str:
    return "on" if on else "off"


def read_switches(path: str) -> Switches:
    """The switches of a file. FormatError names the line; DataNotFoundError where there is no file."""
    with open_file(path) as file:
        if file.size > _MAX_BYTES:
            raise FormatError.of(path, f"{file.size:,} bytes are too many for a switch file", "name another file")
        content = file.read_at(0, file.size)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise FormatError.of(path, "no UTF-8 text", _HINT, line=line) from error
    return parse_switches(text, path)


def parse_switches(text: str, path: str = "the switch file") -> Switches:
    """The switches of a text; `path` is named in the FormatError for one that cannot be read."""
    json_text = JsonText(text, path, _HINT)
    if json_text.kind in ("{", "[", '"'):
        return _from_document(json_text.document(), path, json_text.lenience)
    if text.strip() == "null":
        return Switches(notes=(_PASSED_OVER,))
    return _from_lines(text, path)


# --- JSON -------------------------------------------------------------------------------------------------------------


def _from_document(node: Node, path: str, lenience: Lenience) -> Switches:
    def error(line: int, why: str) -> FormatError:
        return FormatError.of(path, f"{why}", _HINT, line=line)

    def members(node: Node, what: str) -> list[tuple[str, int, Node]]:
        if node.members is None:
            raise error(node.line, f"{what} is no object")
        return node.members

    sections: dict[str, dict[str, bool]] = {}
    others: dict[str, Any] = {}
    notes: list[str] = []

    def is_meant(name: str, line: int, known: Iterable[str]) -> bool:
        """Whether GE finds this name, which it takes with blanks around it too, and then does not look for."""
        if name.strip() in known and name != name.strip():
            notes.append(f"line {line}: {shown(name)}: GE passes over it for the blanks around the name")
            return False
        return True

    def passes_of(node: Node, section: str) -> dict[str, bool]:
        switches = {}
        for name, line, state in members(node, shown(section)):
            word = state.value.strip() if isinstance(state.value, str) else ""
            if word not in _WORDS:
                raise error(line, f'{shown_name(name)}: {_shown_value(state)} is neither "on" nor "off"')
            is_meant(name, line, (name.strip(),))
            switches[name] = state.value == "on"
            if _WORDS[word] != switches[name]:
                notes.append(
                    f"line {line}: {shown_name(name)}: {_shown_value(state)} is off to GE, for the blanks in it"
                )
        return switches

    for name, line, value in members(node, "the file"):
        if name.strip() not in (_SWITCH, *_OTHERS):
            raise error(line, f"unknown member {shown(name)}; known are {', '.join((_SWITCH, *_OTHERS))}")
        is_found = is_meant(name, line, (_SWITCH, *_OTHERS))
        if name.strip() != _SWITCH:
            others[name] = value.plain()
            continue
        found: dict[str, dict[str, bool]] = {}
        for section, section_line, passes in members(value, repr(_SWITCH)):
            if section.strip() not in SECTIONS:
                raise error(section_line, f"unknown section {shown(section)}; known are {' and '.join(SECTIONS)}")
            switches = passes_of(passes, section)
            if is_meant(section, section_line, SECTIONS):
                found[section] = switches
        if is_found:
            sections = found
    refused = [*_not_json(lenience), *_wrong_others(others)]
    return Switches(
        sections=sections,
        others={name: value for name, value in others.items() if name in _OTHERS},
        notes=(*notes, *_otherwise(lenience, any(name == _SWITCH for name, _, _ in node.members or ()))),
        refused=tuple(refused),
    )


def _not_json(lenience: Lenience) -> Iterator[str]:
    """What GE's parser stops at."""
    found = (
        (lenience.comment, "a comment"),
        (lenience.comma, "a comma after the last member"),
        (lenience.blank, "a blank that is none to JSON"),
    )
    return (f"line {line}: {what}, which GE does not understand" for line, what in found if line)


def _otherwise(lenience: Lenience, has_switch: bool) -> Iterator[str]:
    """What GE takes, and reads in its own way."""
    for name, line, before in lenience.doubled:
        yield f"line {line}: {shown(name)} stands in line {before} too; GE takes the last"
    if lenience.after:
        yield f"line {lenience.after}: GE does not read what stands after the closing brace"
    if not has_switch:
        yield f"there is no member {_SWITCH!r}: GE takes the file, which switches nothing"


def _wrong_others(others: Mapping[str, Any]) -> Iterator[str]:
    """Why GE refuses the further members of a file."""
    for name, value in others.items():
        if name.strip() == _PRIORITY:
            yield from _wrong_priority(value)
        elif not isinstance(value, list):
            yield f"{_EXCEPTIONS} is no list"
        elif name == _EXCEPTIONS and not all(isinstance(one, str) for one in value):
            yield f"{_EXCEPTIONS}: a name of a pass is no text"


def _wrong_priority(sections: Any) -> Iterator[str]:
    if not isinstance(sections, dict):
        yield f"{_PRIORITY} is no object"
        return
    for section, levels in sections.items():
        where = f"{_PRIORITY}, {shown_name(section)}"
        if section.strip() not in SECTIONS:
            yield f"{where}: unknown section; known are {' and '.join(SECTIONS)}"
        elif not isinstance(levels, dict):
            yield f"{where} is no object"
        else:
            yield from _wrong_levels(where, levels)


def _wrong_levels(where: str, levels: Mapping[str, Any]) -> Iterator[str]:
    seen: set[str] = set()
    for level, passes in levels.items():
        at = f"{where}, {shown_name(level)}"
        if level.strip() not in _LEVELS:
            yield f"{at}: unknown level; known are {', '.join(_LEVELS)}"
        elif not isinstance(passes, dict):
            yield f"{at} is no object"
        else:
            for name, number in passes.items():
                reason = _wrong_number(number, _LEVELS[level.strip()])
                if reason:
                    yield f"{at}, {shown_name(name)}: {reason}"
                elif name.strip() in seen:
                    yield f"{at}: {shown_name(name)} has a priority already"
                seen.add(name.strip())


def _wrong_number(number: Any, allowed: range) -> str:
    if not isinstance(number, str):
        return f"{json.dumps(number)[:40]} is no text of a number"
    if re.fullmatch(r"\s*[0-9]{1,9}\s*", number, re.ASCII) is None:
        return f"{shown(number)} is no whole number"
    if int(number) not in allowed:
        return f"{shown(number)} is not between {allowed[0]} and {allowed[-1]}"
    return ""


def _shown_value(node: Node) -> str:
    return json.dumps(node.plain())[:40]


# --- the old form -----------------------------------------------------------------------------------------------------


def _from_lines(text: str, path: str) -> Switches:
    switches: dict[str, bool] = {}
    lines: dict[str, int] = {}
    notes: list[str] = []
    refused: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        entry, *comment = re.split(r"//|#", line, maxsplit=1)
        if comment:
            _, colon, word = line.partition(":")
            taken = colon and word.strip() in _WORDS
            told = "a comment, which GE takes for a pass" if taken else "a comment, which GE does not understand"
            (notes if taken else refused).append(f"line {number}: {told}")
        entry = entry.strip()
        if not entry:
            if line and not comment:
                refused.append(f"line {number}: nothing but blanks, which GE does not understand")
            continue
        name, colon, word = (part.strip() for part in entry.partition(":"))
        if not colon or not name or re.search(r"[\s\"{}\[\],]", name):
            why = f"{shown(entry)} is neither JSON nor a line PASS:on or PASS:off"
            raise FormatError.of(path, f"{why}", _HINT, line=number)
        if word not in _WORDS:
            raise FormatError.of(path, f"{shown_name(name)}: {shown(word)} is neither on nor off", _HINT, line=number)
        if name in lines:
            raise FormatError.of(path, f"{shown(name)} stands in line {lines[name]} too", _HINT, line=number)
        switches[name], lines[name] = _WORDS[word], number
    if not text.strip():
        refused = ["it is empty"]
    elif (value := _value_at_start(text)) == "null":
        notes, refused = [_PASSED_OVER], []
    elif value:
        refused.append(f"it begins with {value}, so that GE takes it for JSON")
    return Switches(sections={EITHER: switches}, is_old_form=True, notes=tuple(notes), refused=tuple(refused))


#: A number that is complete, not one that ends before its digits behind the point or in the exponent.
_NUMBER = re.compile(r"(?>-?(?:0|[1-9][0-9]*))(?!\.(?![0-9])|(?:\.[0-9]+)?[eE](?![+-]?[0-9]))")


def _value_at_start(text: str) -> str:
    """The JSON value that a text in the old form begins with, of which GE's parser then makes the whole file."""
    text = text.lstrip(" \t\r\n")
    if _NUMBER.match(text):
        return "a number"
    return next((word for word in ("true", "false", "null") if text.startswith(word)), "")
