"""JSON of a file that a person has written: with the line of everything, and read where strict JSON ends.

Comments, a comma before a closing bracket and blanks of other kinds are read and told, so are a name that stands twice
in an object (all its members are kept, in order) and text after the one value of the file.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from precision_tool.lib.errors import FormatError, shown

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
    """Reads JSON token by token. FormatError with `path`, the line and `hint` for what cannot be read."""

    def __init__(self, text: str, path: str, hint: str) -> None:
        self._text, self._path, self._hint = text, path, hint
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

    def _error(self, why: str) -> FormatError:
        return FormatError.of(self._path, f"{why}", self._hint, line=self._token_line)

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

    def _shown(self) -> str:
        return shown(self._value) if self.kind else "the end of the file"

    def document(self) -> Node:
        """The first value of the file; what follows it is not read."""
        node = self._node(0)
        if self.kind:
            self._after_line = self._token_line
        return node

    def _node(self, depth: int) -> Node:
        if depth > _MAX_DEPTH:
            raise self._error("nested too deeply")
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
                raise self._error(f"{self._shown()} is no JSON value; texts stand in double quotes") from None
            self._next()
            return Node(line, value)
        raise self._error(f"a value is missing before {self._shown()}")

    @staticmethod
    def _no_constant(name: str) -> None:
        raise ValueError(name)

    def _string(self) -> str:
        try:
            value: str = json.loads(self._value)
        except ValueError:
            raise self._error(f"{self._shown()}: an unknown escape in a text") from None
        if any("\ud800" <= sign <= "\udfff" for sign in value):
            raise self._error("half of a surrogate pair in a text")
        self._next()
        return value

    def _members(self, depth: int) -> list[tuple[str, int, Node]]:
        members: list[tuple[str, int, Node]] = []
        first: dict[str, int] = {}
        self._next()
        while self.kind != "}":
            line = self._token_line
            if self.kind != '"':
                raise self._error(f"a name in double quotes is missing before {self._shown()}")
            name = self._string()
            if name in first:
                self._doubled.append((name, line, first[name]))
            first[name] = line
            if self.kind != ":":
                raise self._error(f"a colon is missing after {shown(name)}")
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
            raise self._error(f"a comma or {closing} is missing before {self._shown()}")
        line = self._token_line
        self._next()
        if self.kind == closing:
            self._comma_line = self._comma_line or line
