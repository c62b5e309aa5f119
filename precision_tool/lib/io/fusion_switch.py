"""JSON of a file that a person has written: with the line of everything, and read where strict JSON ends.

Comments, a comma before a closing bracket and blanks of other kinds are read and told, so are a name that stands twice
in an object (all its members are kept, in order) and text after the one value of the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from precision_tool.lib.io.files import open_file
from precision_tool.lib.io.fusion_passes import GRAPH, ON_BY_NAME, SECTIONS, UB
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError, shown, shown_name

_MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class Node:
    """A JSON value and its line. An object is a list of its members: (name, line of the name, value)."""

    line: int
    value: Any

    @property
    def members(self) -> list[tuple[str, int, Node]] | None:
        return self.value if isinstance(self.value, list) and not isinstance(self.value, Array) else None

    def plain(self) -> Any:
        """The value as Python has it; of a name that stands twice the last."""
        if isinstance(self.value, Array):
            return [item.plain() for item in self.value]
        if isinstance(self.value, list):
            return {name: node.plain() for name, _, node in self.value}
        return self.value


class Array(list["Node"]):
    """Tells an array from the members of an object."""


@dataclass(frozen=True, slots=True)
class Lenience:
    """What strict JSON does not have, each with the line where it first stands, 0 where it does not."""

    comment: int = 0
    comma: int = 0
    #: A blank that is none to JSON, as web pages have them.
    blank: int = 0
    #: Text after the one value of the file.
    after: int = 0
    #: (name, its line, the line of the one before) of names that stand twice in one object.
    doubled: tuple[tuple[str, int, int], ...] = ()


_TOKEN = re.compile(
    r"""
    (?P<space> [ \t\r\n]+ )
    | (?P<blank> \s )
    | (?P<comment> //[^\n]* | \#[^\n]* | /\*.*?\*/ )
    | (?P<text> "(?:[^"\\\x00-\x1f]|\\.)*" )
    | (?P<sign> [{}\[\]:,] )
    | (?P<word> [-+.\w]+ )
    """,
    re.VERBOSE | re.DOTALL,
)


class JsonText:
    """JSON, read token by token. FormatError with `path` and the line for what cannot be read."""

    def __init__(self, text: str, path: str) -> None:
        self._text, self._path = text, path
        self._at, self._line = 0, 1
        self._comment_line = self._comma_line = self._blank_line = self._after_line = 0
        self._doubled: list[tuple[str, int, int]] = []
        #: The token: a sign, `"` for a text, `w` for a number or literal, `` at the end, `?` for what is no token.
        self.kind, self._value, self._token_line = "", "", 1
        self._next()

    @property
    def lenience(self) -> Lenience:
        """What was read that strict JSON does not have."""
        return Lenience(self._comment_line, self._comma_line, self._blank_line, self._after_line, tuple(self._doubled))

    def _error(self, kind: str, **fields: Any) -> FormatError:
        return FormatError.of(self._path, kind, line=self._token_line, **fields)

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
            elif match.lastgroup == "blank":
                self._blank_line = self._blank_line or self._token_line
            elif match.lastgroup != "space":
                self._value = match[0]
                self.kind = {"text": '"', "word": "w"}.get(match.lastgroup or "", match[0])
                return

    def _shown(self) -> str | Message:
        return shown(self._value) if self.kind else Message("error.io.json.end")

    def document(self) -> Node:
        """The first value of the file; what follows it is not read."""
        node = self._node(0)
        if self.kind:
            self._after_line = self._token_line
        return node

    def _node(self, depth: int) -> Node:
        if depth > _MAX_DEPTH:
            raise self._error("io.json.deep")
        line = self._token_line
        if self.kind == "{":
            return Node(line, self._members(depth))
        if self.kind == "[":
            items = Array()
            self._next()
            while self.kind != "]":
                items.append(self._node(depth + 1))
                self._comma("]")
            self._close(depth)
            return Node(line, items)
        if self.kind == '"':
            return Node(line, self._string())
        if self.kind == "w":
            try:
                value = json.loads(self._value, parse_constant=self._no_constant)
            except (ValueError, RecursionError):
                raise self._error("io.json.no_value", token=self._shown()) from None
            self._next()
            return Node(line, value)
        raise self._error("io.json.value_missing", token=self._shown())

    @staticmethod
    def _no_constant(name: str) -> None:
        raise ValueError(name)

    def _string(self) -> str:
        try:
            value: str = json.loads(self._value)
        except ValueError:
            raise self._error("io.json.escape", token=self._shown()) from None
        if any("\ud800" <= sign <= "\udfff" for sign in value):
            raise self._error("io.json.surrogate")
        self._next()
        return value

    def _members(self, depth: int) -> list[tuple[str, int, Node]]:
        members: list[tuple[str, int, Node]] = []
        first: dict[str, int] = {}
        self._next()
        while self.kind != "}":
            line = self._token_line
            if self.kind != '"':
                raise self._error("io.json.name_missing", token=self._shown())
            name = self._string()
            if name in first:
                self._doubled.append((name, line, first[name]))
            first[name] = line
            if self.kind != ":":
                raise self._error("io.json.colon_missing", name=shown(name))
            self._next()
            members.append((name, line, self._node(depth + 1)))
            self._comma("}")
        self._close(depth)
        return members

    def _close(self, depth: int) -> None:
        """Goes past a closing bracket. What comes after the last one is no part of the document."""
        before = self._comment_line, self._blank_line
        self._next()
        if depth == 0:
            self._comment_line, self._blank_line = before

    def _comma(self, closing: str) -> None:
        if self.kind == closing:
            return
        if self.kind != ",":
            raise self._error("io.json.comma_missing", closing=closing, token=self._shown())
        line = self._token_line
        self._next()
        if self.kind == closing:
            self._comma_line = self._comma_line or line


# --- Fusion switch files: `{"Switch": {"GraphFusion": {PASS: "on" | "off"}, "UBFusion": {…}}}`, or lines
#     `PASS:on|off`


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
_PASSED_OVER = Message("note.io.switch.passed_over")


@dataclass(frozen=True, kw_only=True)
class Switches:
    """What a switch file says. `sections` has pass names, and maybe ALL, with True for on, in the file's order.

    `others` are the further members GE allows, kept as they are. `notes` say where GE reads the file otherwise than it
    looks; `refused` says why GE refuses it, empty if it does not.
    """

    sections: Mapping[str, Mapping[str, bool]] = field(default_factory=lambda: MappingProxyType({}))
    others: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    is_old_form: bool = False
    notes: tuple[Message, ...] = ()
    refused: tuple[Message, ...] = ()

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
        states = [
            on
            for where, pass_name, on in self.named()
            if pass_name == name and (section is None or where in (section, EITHER))
        ]
        if states:
            return all(states)
        if name in ON_BY_NAME and section in (None, ON_BY_NAME[name]):
            return True
        return any(self._all(where) for where in ((section,) if section else SECTIONS))

    def state_of(self, name: str, section: str | None = None) -> bool | None:
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
        named_places = [where for where, pass_name, _ in self.named() if pass_name == name]
        places = [EITHER] if self.is_old_form else [*named_places, *((section,) if section else SECTIONS)]
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
        raise FormatError.of(path, "io.switch.refused", reason=refused[0])
    return text


def _word(on: bool) -> str:
    return "on" if on else "off"


def read_switches(path: str) -> Switches:
    """The switches of a file. FormatError names the line; DataNotFoundError where there is no file."""
    with open_file(path) as file:
        if file.size > _MAX_BYTES:
            raise FormatError.of(path, "io.switch.too_large", size=file.size)
        content = file.read_at(0, file.size)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise FormatError.of(path, "io.switch.not_utf8", line=line) from error
    return parse_switches(text, path)


def parse_switches(text: str, path: str = "the switch file") -> Switches:
    """The switches of a text; `path` is named in the FormatError for one that cannot be read."""
    json_text = JsonText(text, path)
    if json_text.kind in ("{", "[", '"'):
        return _from_document(json_text.document(), path, json_text.lenience)
    if text.strip() == "null":
        return Switches(notes=(_PASSED_OVER,))
    return _from_lines(text, path)


# --- JSON -------------------------------------------------------------------------------------------------------------


def _from_document(node: Node, path: str, lenience: Lenience) -> Switches:
    def members(node: Node, name: str) -> list[tuple[str, int, Node]]:
        if node.members is None:
            raise FormatError.of(path, "io.switch.no_object", line=node.line, name=name)
        return node.members

    sections: dict[str, dict[str, bool]] = {}
    others: dict[str, Any] = {}
    notes: list[Message] = []

    def is_meant(name: str, line: int, names: Iterable[str]) -> bool:
        """Whether GE finds this name, which it takes with blanks around it too, and then does not look for."""
        if name.strip() in names and name != name.strip():
            notes.append(Message("note.io.switch.blanks_around", line=line, name=shown(name)))
            return False
        return True

    def passes_of(node: Node, section: str) -> dict[str, bool]:
        switches = {}
        for name, line, state in members(node, shown(section)):
            word = state.value.strip() if isinstance(state.value, str) else ""
            if word not in _WORDS:
                raise FormatError.of(
                    path, "io.switch.neither_on_nor_off", line=line, name=shown_name(name), word=_shown_value(state)
                )
            is_meant(name, line, (name.strip(),))
            switches[name] = state.value == "on"
            if _WORDS[word] != switches[name]:
                notes.append(
                    Message("note.io.switch.blanks_in", line=line, name=shown_name(name), word=_shown_value(state))
                )
        return switches

    for name, line, value in members(node, "JSON"):
        if name.strip() not in (_SWITCH, *_OTHERS):
            raise FormatError.of(
                path, "io.switch.unknown_member", line=line, name=shown(name), names=(_SWITCH, *_OTHERS)
            )
        is_found = is_meant(name, line, (_SWITCH, *_OTHERS))
        if name.strip() != _SWITCH:
            others[name] = value.plain()
            continue
        of_section: dict[str, dict[str, bool]] = {}
        for section, section_line, passes in members(value, repr(_SWITCH)):
            if section.strip() not in SECTIONS:
                raise FormatError.of(
                    path, "io.switch.unknown_section", line=section_line, name=shown(section), names=SECTIONS
                )
            switches = passes_of(passes, section)
            if is_meant(section, section_line, SECTIONS):
                of_section[section] = switches
        if is_found:
            sections = of_section
    refused = [*_not_json(lenience), *_wrong_others(others)]
    return Switches(
        sections=sections,
        others={name: value for name, value in others.items() if name in _OTHERS},
        notes=(*notes, *_otherwise(lenience, any(name == _SWITCH for name, _, _ in node.members or ()))),
        refused=tuple(refused),
    )


def _not_json(lenience: Lenience) -> Iterator[Message]:
    """What GE's parser stops at."""
    lenient = (
        (lenience.comment, "comment"),
        (lenience.comma, "comma"),
        (lenience.blank, "blank"),
    )
    return (Message(f"note.io.switch.no_json.{what}", line=line) for line, what in lenient if line)


def _otherwise(lenience: Lenience, has_switch: bool) -> Iterator[Message]:
    """What GE takes, and reads in its own way."""
    for name, line, before in lenience.doubled:
        yield Message("note.io.switch.doubled", line=line, name=shown(name), before=before)
    if lenience.after:
        yield Message("note.io.switch.after_brace", line=lenience.after)
    if not has_switch:
        yield Message("note.io.switch.no_switch", name=repr(_SWITCH))


def _wrong_others(others: Mapping[str, Any]) -> Iterator[Message]:
    """Why GE refuses the further members of a file."""
    for name, value in others.items():
        if name.strip() == _PRIORITY:
            yield from _wrong_priority(value)
        elif not isinstance(value, list):
            yield Message("note.io.switch.no_list", name=_EXCEPTIONS)
        elif name == _EXCEPTIONS and not all(isinstance(item, str) for item in value):
            yield Message("note.io.switch.no_name", name=_EXCEPTIONS)


def _wrong_priority(sections: Any) -> Iterator[Message]:
    if not isinstance(sections, dict):
        yield Message("note.io.switch.no_object", name=_PRIORITY)
        return
    for section, levels in sections.items():
        where = f"{_PRIORITY}, {shown_name(section)}"
        if section.strip() not in SECTIONS:
            yield Message("note.io.switch.unknown_section", where=where, names=SECTIONS)
        elif not isinstance(levels, dict):
            yield Message("note.io.switch.no_object", name=where)
        else:
            yield from _wrong_levels(where, levels)


def _wrong_levels(where: str, levels: Mapping[str, Any]) -> Iterator[Message]:
    prioritized: set[str] = set()
    for level, passes in levels.items():
        at = f"{where}, {shown_name(level)}"
        if level.strip() not in _LEVELS:
            yield Message("note.io.switch.unknown_level", where=at, names=tuple(_LEVELS))
        elif not isinstance(passes, dict):
            yield Message("note.io.switch.no_object", name=at)
        else:
            for name, number in passes.items():
                reason = _wrong_number(number, _LEVELS[level.strip()])
                if reason:
                    yield Message("error.place", where=f"{at}, {shown_name(name)}", reason=reason)
                elif name.strip() in prioritized:
                    yield Message("note.io.switch.twice", where=at, name=shown_name(name))
                prioritized.add(name.strip())


def _wrong_number(number: Any, allowed: range) -> Message | None:
    if not isinstance(number, str):
        return Message("note.io.switch.no_number_text", value=json.dumps(number)[:40])
    if re.fullmatch(r"\s*[0-9]{1,9}\s*", number, re.ASCII) is None:
        return Message("note.io.switch.no_whole_number", value=shown(number))
    if int(number) not in allowed:
        return Message("note.io.switch.out_of_range", value=shown(number), first=allowed[0], last=allowed[-1])
    return None


def _shown_value(node: Node) -> str:
    return json.dumps(node.plain())[:40]


# --- the old form -----------------------------------------------------------------------------------------------------


def _from_lines(text: str, path: str) -> Switches:
    switches: dict[str, bool] = {}
    lines: dict[str, int] = {}
    notes: list[Message] = []
    refused: list[Message] = []
    for number, line in enumerate(text.split("\n"), start=1):
        entry, *comment = re.split(r"//|#", line, maxsplit=1)
        if comment:
            _, colon, word = line.partition(":")
            taken = colon and word.strip() in _WORDS
            if taken:
                notes.append(Message("note.io.switch.comment_as_pass", line=number))
            else:
                refused.append(Message("note.io.switch.no_json.comment", line=number))
        entry = entry.strip()
        if not entry:
            if line and not comment:
                refused.append(Message("note.io.switch.only_blanks", line=number))
            continue
        name, colon, word = (part.strip() for part in entry.partition(":"))
        if not colon or not name or re.search(r"[\s\"{}\[\],]", name):
            raise FormatError.of(path, "io.switch.no_line", line=number, entry=shown(entry))
        if word not in _WORDS:
            raise FormatError.of(
                path, "io.switch.neither_on_nor_off", line=number, name=shown_name(name), word=shown(word)
            )
        if name in lines:
            raise FormatError.of(path, "io.switch.twice", line=number, name=shown(name), first=lines[name])
        switches[name], lines[name] = _WORDS[word], number
    if not text.strip():
        refused = [Message("note.io.switch.empty")]
    elif (value := _value_at_start(text)) == "null":
        notes, refused = [_PASSED_OVER], []
    elif value:
        refused.append(Message("note.io.switch.begins_like_json", value=value))
    return Switches(sections={EITHER: switches}, is_old_form=True, notes=tuple(notes), refused=tuple(refused))


#: A number that is complete, not one that ends before its digits behind the point or in the exponent.
_NUMBER = re.compile(r"(?>-?(?:0|[1-9][0-9]*))(?!\.(?![0-9])|(?:\.[0-9]+)?[eE](?![+-]?[0-9]))")


def _value_at_start(text: str) -> Message | str:
    """The JSON value that a text in the old form begins with, of which GE's parser then makes the whole file."""
    text = text.lstrip(" \t\r\n")
    if _NUMBER.match(text):
        return Message("note.io.switch.number")
    return next((word for word in ("true", "false", "null") if text.startswith(word)), "")
