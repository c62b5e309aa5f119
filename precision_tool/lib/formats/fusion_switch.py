"""Fusion switch files: `{"Switch": {"GraphFusion": {PASS: "on" | "off"}, "UBFusion": {…}}}`, or lines `PASS:on|off`.

What is read more leniently than GE does (comments, a comma after the last member) is noted. What GE takes for an
error is one here, with its line. What is written is strict.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from precision_tool.lib.errors import FormatError, shown, shown_name
from precision_tool.lib.formats.fusion_passes import GRAPH, SECTIONS, UB, section_of
from precision_tool.lib.storage.files import LocalFile

#: Stands for every pass of its section that is not named.
ALL = "ALL"
#: The one section of a file in the old line form: its lines are for passes of either kind.
EITHER = ""

_SWITCH, _OTHERS = "Switch", ("Priority", "ExceptionalPassOfO1Level")
_WORDS = {"on": True, "off": False}
#: No switch file is anywhere near as long.
_MAX_BYTES = 4 << 20
_MAX_DEPTH = 64
_HINT = (
    "correct that line, or write the file anew with `fusion reset`; its form is "
    '{"Switch": {"GraphFusion": {"PASS": "off"}, "UBFusion": {"PASS": "on"}}}'
)


@dataclass(frozen=True, kw_only=True)
class Switches:
    """What a switch file says. `sections` has pass names, and maybe ALL, with True for on, in the file's order.

    `others` are the further members GE allows, kept as they are. `notes` say what GE would not have understood.
    """

    sections: Mapping[str, Mapping[str, bool]] = field(default_factory=lambda: MappingProxyType({}))
    others: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    is_old_form: bool = False
    notes: tuple[str, ...] = ()

    def named(self) -> Iterator[tuple[str, str, bool]]:
        """(section, pass, on) of every pass that is named."""
        for section, passes in self.sections.items():
            for name, on in passes.items():
                if name != ALL:
                    yield section, name, on

    def is_on(self, name: str, section: str | None = None) -> bool:
        """Whether the file leaves a pass on: a named pass beats ALL, a pass of neither is on.

        Without its `section` a pass is off if any section names it off, and ALL counts where its name belongs.
        """
        found = [on for where, one, on in self.named() if one == name and section in (None, where)]
        found += [on for where, one, on in self.named() if one == name and where == EITHER and section is not None]
        if found:
            return all(found)
        for where in (section or section_of(name), EITHER):
            on = self.sections.get(where, {}).get(ALL)
            if on is not None:
                return on
        return True

    def with_pass(self, name: str, on: bool, section: str | None = None) -> Switches:
        """The same with one pass (or ALL) on or off, in the section that names it already, else in `section`."""
        known = [where for where, one, _ in self.named() if one == name]
        places = [EITHER] if self.is_old_form else known or [section or section_of(name)]
        sections = {where: dict(passes) for where, passes in self.sections.items()}
        for place in places:
            sections.setdefault(place, {})[name] = on
        return replace(self, sections=sections)

    def all_off(self) -> Switches:
        """Everything off: ALL is, and no pass is named, as that would beat it."""
        places = (EITHER,) if self.is_old_form else SECTIONS
        return replace(self, sections={place: {ALL: False} for place in places})


#: What the files hold when they are installed.
SHIPPED_OFF = Switches(sections={GRAPH: {ALL: False}, UB: {ALL: False}})
SHIPPED_SWITCH = Switches(
    sections={GRAPH: {"ConvToFullyConnectionFusionPass": True}, UB: {"TbePool2dQuantFusionPass": True}}
)


def render(switches: Switches) -> str:
    """The text of a switch file, as GE takes it, in the form the file had."""
    if switches.is_old_form:
        return "".join(f"{name}:{_word(on)}\n" for passes in switches.sections.values() for name, on in passes.items())
    sections = {
        section: {name: _word(on) for name, on in switches.sections.get(section, {}).items()} for section in SECTIONS
    }
    return json.dumps({_SWITCH: sections, **switches.others}, indent=2) + "\n"


def _word(on: bool) -> str:
    return "on" if on else "off"


def read_switches(path: str) -> Switches:
    """The switches of a file. FormatError names the line; DataNotFoundError where there is no file."""
    with LocalFile(path) as file:
        if file.size > _MAX_BYTES:
            raise FormatError(f"{path}: {file.size:,} bytes are too many for a switch file", "name another file")
        content = file.read_at(0, file.size)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise FormatError(f"{path} line {line}: no UTF-8 text", _HINT) from error
    return parse_switches(text, path)


def parse_switches(text: str, path: str = "the switch file") -> Switches:
    """The switches of a text; `path` is named in the FormatError for one that is not valid."""
    tokens = _Tokens(text, path)
    if tokens.kind in ("{", "[", '"'):
        return _from_document(tokens.document(), path, tokens.notes)
    return _from_lines(text, path)


# --- JSON -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Node:
    """A JSON value and its line. An object is a list of its members: (name, line of the name, value)."""

    line: int
    value: Any

    @property
    def members(self) -> list[tuple[str, int, _Node]] | None:
        return self.value if isinstance(self.value, list) and not isinstance(self.value, _Array) else None

    def plain(self) -> Any:
        """The value as Python has it."""
        if isinstance(self.value, _Array):
            return [item.plain() for item in self.value]
        if isinstance(self.value, list):
            return {name: node.plain() for name, _, node in self.value}
        return self.value


class _Array(list["_Node"]):
    """Tells an array from the members of an object."""


_TOKEN = re.compile(
    r"""
    (?P<space> \s+ )
    | (?P<comment> //[^\n]* | \#[^\n]* | /\*.*?\*/ )
    | (?P<text> "(?:[^"\\\x00-\x1f]|\\.)*" )
    | (?P<sign> [{}\[\]:,] )
    | (?P<word> [-+.\w]+ )
    """,
    re.VERBOSE | re.DOTALL,
)


class _Tokens:
    """Reads JSON token by token, with comments and commas before a closing bracket."""

    def __init__(self, text: str, path: str) -> None:
        self._text, self._path = text, path
        self._at, self._line = 0, 1
        self._comment_line = self._comma_line = 0
        #: The token: a sign, `"` for a text, `w` for a number or literal, `` at the end, `?` for what is no token.
        self.kind, self._value, self._token_line = "", "", 1
        self._next()

    @property
    def notes(self) -> tuple[str, ...]:
        """What GE would not have read."""
        found = ((self._comment_line, "a comment"), (self._comma_line, "a comma after the last member"))
        return tuple(f"line {line}: {what}, which GE does not understand" for line, what in found if line)

    def _error(self, why: str) -> FormatError:
        return FormatError(f"{self._path} line {self._token_line}: {why}", _HINT)

    def _next(self) -> None:
        while True:
            match = _TOKEN.match(self._text, self._at)
            self._token_line = self._line
            if match is None:
                rest = self._text[self._at : self._at + 1]
                self.kind, self._value = ("?", rest) if rest else ("", "")
                return
            self._at = match.end()
            self._line += match[0].count("\n")
            if match.lastgroup == "comment":
                self._comment_line = self._comment_line or self._token_line
            elif match.lastgroup != "space":
                self._value = match[0]
                self.kind = {"text": '"', "word": "w"}.get(match.lastgroup or "", match[0])
                return

    def _shown(self) -> str:
        return shown(self._value) if self.kind else "the end of the file"

    def document(self) -> _Node:
        """The one value of the file."""
        node = self._node(0)
        if self.kind:
            raise self._error(f"{self._shown()} after the end of the document")
        return node

    def _node(self, depth: int) -> _Node:
        if depth > _MAX_DEPTH:
            raise self._error("nested too deeply")
        line = self._token_line
        if self.kind == "{":
            return _Node(line, self._members(depth))
        if self.kind == "[":
            items = _Array()
            self._next()
            while self.kind != "]":
                items.append(self._node(depth + 1))
                self._comma("]")
            self._next()
            return _Node(line, items)
        if self.kind == '"':
            return _Node(line, self._string())
        if self.kind == "w":
            try:
                value = json.loads(self._value, parse_constant=self._no_constant)
            except (ValueError, RecursionError):
                raise self._error(f"{self._shown()} is no JSON value; texts stand in double quotes") from None
            self._next()
            return _Node(line, value)
        raise self._error(f"a value is missing before {self._shown()}")

    @staticmethod
    def _no_constant(name: str) -> None:
        raise ValueError(name)

    def _string(self) -> str:
        try:
            value: str = json.loads(self._value)
        except ValueError:
            raise self._error(f"{self._shown()}: an unknown escape in a text") from None
        self._next()
        return value

    def _members(self, depth: int) -> list[tuple[str, int, _Node]]:
        members: list[tuple[str, int, _Node]] = []
        first: dict[str, int] = {}
        self._next()
        while self.kind != "}":
            line = self._token_line
            if self.kind != '"':
                raise self._error(f"a name in double quotes is missing before {self._shown()}")
            name = self._string()
            if name in first:
                raise FormatError(f"{self._path} line {line}: {shown(name)} stands in line {first[name]} too", _HINT)
            first[name] = line
            if self.kind != ":":
                raise self._error(f"a colon is missing after {shown(name)}")
            self._next()
            members.append((name, line, self._node(depth + 1)))
            self._comma("}")
        self._next()
        return members

    def _comma(self, closing: str) -> None:
        if self.kind == closing:
            return
        if self.kind != ",":
            raise self._error(f"a comma or {closing} is missing before {self._shown()}")
        line = self._token_line
        self._next()
        if self.kind == closing:
            self._comma_line = self._comma_line or line


def _from_document(node: _Node, path: str, notes: tuple[str, ...]) -> Switches:
    def error(line: int, why: str) -> FormatError:
        return FormatError(f"{path} line {line}: {why}", _HINT)

    def members(node: _Node, what: str) -> list[tuple[str, int, _Node]]:
        if node.members is None:
            raise error(node.line, f"{what} is no object")
        return node.members

    sections: dict[str, dict[str, bool]] = {}
    others: dict[str, Any] = {}
    names = [name for name, _, _ in members(node, "the file")]
    for name, line, value in members(node, "the file"):
        if name in _OTHERS:
            others[name] = value.plain()
            continue
        if name != _SWITCH:
            raise error(line, f"unknown member {shown(name)}; known are {', '.join((_SWITCH, *_OTHERS))}")
        for section, section_line, passes in members(value, repr(_SWITCH)):
            if section not in SECTIONS:
                raise error(section_line, f"unknown section {shown(section)}; known are {' and '.join(SECTIONS)}")
            switches = sections[section] = {}
            for one, one_line, state in members(passes, shown(section)):
                if not isinstance(state.value, str) or state.value not in _WORDS:
                    raise error(one_line, f'{shown_name(one)}: {_shown_value(state)} is neither "on" nor "off"')
                switches[one] = _WORDS[state.value]
    if _SWITCH not in names:
        raise error(node.line, f"there is no member {_SWITCH!r}")
    return Switches(sections=sections, others=others, notes=notes)


def _shown_value(node: _Node) -> str:
    return json.dumps(node.plain())[:40]


# --- the old form -----------------------------------------------------------------------------------------------------


def _from_lines(text: str, path: str) -> Switches:
    switches: dict[str, bool] = {}
    lines: dict[str, int] = {}
    comments: list[int] = []
    for number, line in enumerate(text.split("\n"), start=1):
        content = re.split(r"//|#", line, maxsplit=1)
        if len(content) > 1:
            comments.append(number)
        entry = content[0].strip()
        if not entry:
            continue
        name, colon, word = (part.strip() for part in entry.partition(":"))
        if not colon or not name or re.search(r"[\s\"{}\[\],]", name):
            why = f"{shown(entry)} is neither JSON nor a line PASS:on or PASS:off"
            raise FormatError(f"{path} line {number}: {why}", _HINT)
        if word not in _WORDS:
            raise FormatError(f"{path} line {number}: {shown_name(name)}: {shown(word)} is neither on nor off", _HINT)
        if name in lines:
            raise FormatError(f"{path} line {number}: {shown(name)} stands in line {lines[name]} too", _HINT)
        switches[name], lines[name] = _WORDS[word], number
    notes = tuple(f"line {number}: a comment, which GE does not understand" for number in comments[:1])
    return Switches(sections={EITHER: switches}, is_old_form=True, notes=notes)
