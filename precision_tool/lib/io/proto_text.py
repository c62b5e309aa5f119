"""Protobuf text format without a schema: text in, a tree of `dict[str, list[value]]` out.

A value is a nested dict or the raw token of a scalar, exactly as written; `string_of`, `bytes_of`, `int_of`,
`float_of` and `bool_of` decode a token when somebody asks. Tokens hold one character per byte of the file
(latin-1), so that positions are byte offsets and any bytes at all survive until they are decoded.
Format: https://protobuf.dev/reference/protobuf/textformat-spec/
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from precision_tool.lib.io.lazy_nodes import LazyNodes
from precision_tool.lib.io.wire import OP_MEMORY, TEXT_OP_SHARE, out_of_proportion, refuse_many_ops
from precision_tool.lib.messages import Message as CatalogueMessage
from precision_tool.lib.messages.errors import FormatError, shown

Value: TypeAlias = "str | Message"
Message: TypeAlias = dict[str, list[Value]]

#: Blocks in blocks; GE graphs need about 10, and what decodes a value may recurse this deep without harm.
MAX_DEPTH = 200


def any_number_of(pattern: str) -> str:
    """`(?:pattern)*`, atomic. In packs: each repetition takes memory until the group around it is done."""
    return rf"(?>(?:(?>(?:{pattern}){{1,1000}}))*)"


# Everything is possessive (*+) or atomic (?>...): nothing is ever tried twice, so time is linear whatever the text.
# A group is possessive only where nothing in it can fail behind a repeat or a look around: Python before 3.11.5 goes
# on from the place of that failure (CPython's issue 106052). All others are atomic.
_WS = r"[ \t\r\n\f\v]*+(?:#[^\n]*+[ \t\r\n\f\v]*+)*+"
# STRING, WORD and NUMBER also serve those who skim a text without parsing it.
STRING = r"""(?:"[^"\\\n]*+(?:\\[^\n][^"\\\n]*+)*+"|'[^'\\\n]*+(?:\\[^\n][^'\\\n]*+)*+')"""
WORD = r"[A-Za-z_][A-Za-z0-9_]*+"
_NAME = rf"(?:{WORD}|\[[A-Za-z0-9_][A-Za-z0-9_.%/-]*+\])"
NUMBER = r"(?:0[xX][0-9a-fA-F]++|(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)(?>(?:[eE][+-]?[0-9]++)?)[fF]?+)"
_SCALAR = rf"(?:{STRING}{any_number_of(_WS + STRING)}|(?>(?:-{_WS})?)(?:{WORD}|{NUMBER})(?![A-Za-z0-9_.]))"
_MORE_SCALARS = any_number_of(f"{_WS},{_WS}{_SCALAR}")
_SCALAR_LIST = rf"\[{_WS}(?>(?:{_SCALAR}{_MORE_SCALARS}{_WS})?)\]"

# One token is a whole field with a scalar, or the edge of a block. Few groups, as each costs time a token:
#   1 name
#   2 a scalar or a list of scalars; or what opens a block: "{" "<", or a list of blocks: "[{" "[<"
#   3 what closes a block: "}" ">", in a list of blocks also "},{" "}]"; or all the rest of a text that
#     goes on wrongly, so that nothing can be passed over and nothing is matched after an error
# All are empty at the end of the text.
_OPENER = rf"(?>(?:\[{_WS})?)[{{<]"
_TOKEN = re.compile(
    rf"{_WS}(?:({_NAME}){_WS}(?::{_WS}|(?={_OPENER}))({_OPENER}|{_SCALAR}|{_SCALAR_LIST})"
    rf"|([}}>](?>(?:{_WS},{_WS}[{{<]|{_WS}\])?)|.++)|\Z)(?>(?:{_WS}[,;])?)",
    re.DOTALL,
)
_CLOSERS = {"{": "}", "<": ">"}
# What no token can be equal to, as the text has no NUL: lists of blocks go the slow way, and nothing closes
# the root.
_LIST_CLOSERS = {"{": "\0}", "<": "\0>"}
_NEVER = "\0\0"

#: Bytes of memory that a scalar takes, and how many more of them a block takes.
_VALUE_BYTES, _BLOCK_VALUES = 120, 3
#: So many commas in a list may be in its strings.
_FEW_COMMAS = 1000

#: An open block: what it lies in, what closes that, its field name, and where it is opened.
_Frame: TypeAlias = tuple[Message, str, str, int]

_WS_RE, _NAME_RE = re.compile(_WS), re.compile(_NAME)
_LIST_ITEM_RE = re.compile(rf"{_WS},?+{_WS}({_SCALAR})", re.DOTALL)
_SCALAR_RE = re.compile(_SCALAR, re.DOTALL)
_STRING_RE = re.compile(STRING, re.DOTALL)
_NEXT_STRING_RE = re.compile(rf"{_WS}({STRING})", re.DOTALL)
_OPEN_STRING_RE = re.compile(r"""(?:"[^"\\\n]*+(?:\\[^\n][^"\\\n]*+)*+|'[^'\\\n]*+(?:\\[^\n][^'\\\n]*+)*+)\\?+""")
_GLIMPSE_RE = re.compile(r"[A-Za-z0-9_.+-]{1,20}|[^\x00-\x7f]{1,8}|.", re.DOTALL)
_NOT_UTF8_RE = re.compile("[\udc80-\udcff]")
# The escapes of protobuf's C++ tokenizer (io/tokenizer.cc), with which GE reads a text. Python's text_format takes
# any escape, and reads \X41, \?, \777 and surrogates otherwise. Groups: 1 octal, 2 hexadecimal, 3 and 4 a pair of
# surrogates, 5 and 6 a code point, 7 a character; none for a backslash that begins no escape.
_ESCAPE_RE = re.compile(
    r"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|(?:u|U0000)([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})"
    r"|u([0-9a-fA-F]{4})|U(00[01][0-9a-fA-F]{5})|([abfnrtv\\'\"?])|)"
)
_LONGEST_ESCAPE = len("\\U0010ffff")
_PLAIN_ESCAPES = dict(zip("abfnrtv\\'\"?", "\a\b\f\n\r\t\v\\'\"?", strict=True))
_BOOLS = dict.fromkeys(("true", "True", "t", "1"), True) | dict.fromkeys(("false", "False", "f", "0"), False)


@contextmanager
def paused_gc() -> Iterator[None]:
    """Keep the cycle collector off while many objects without cycles are made; it would double the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def parse_proto_text(data: bytes | str, source: str = "<text>", lazy: str = "") -> Message:
    """Return the fields of a whole text; `source` names it in errors.

    Blocks of the name `lazy` in the root and in its blocks are `LazyNodes`: they are parsed again whenever somebody
    asks for them, and a text of which they are the most takes little memory.

    Raises
    ------
    FormatError
        The text is cut off, malformed, binary or nested deeper than `MAX_DEPTH`, with line and byte offset; with
        `lazy`, it takes memory and time out of all proportion.
    """
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    refuse_nul_bytes(raw, source)
    start = 3 if raw.startswith(b"\xef\xbb\xbf") else 0
    with paused_gc():
        parser = _Parser(raw.decode("latin-1"), start, source, lazy)
        root = parser.parse()
    if lazy:
        for node in (root, *(block for blocks in root.values() for block in blocks if isinstance(block, dict))):
            if lazy in node:
                node[lazy] = LazyNodes(node[lazy], parser.block)  # type: ignore[assignment]  # it is read alone
    return root


def refuse_nul_bytes(raw: bytes, source: str) -> None:
    """Raise `FormatError` when there is a NUL byte, which no text file has."""
    nul = raw.find(b"\0")
    if nul >= 0:
        raise FormatError.of(source, "io.proto.nul", offset=nul, row=raw.count(10, 0, nul) + 1)


def not_utf8_notes(raw: bytes) -> tuple[CatalogueMessage, ...]:
    """A note when the bytes are not UTF-8: how many, and where the first is."""
    if raw.isascii():
        return ()
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        count = len(_NOT_UTF8_RE.findall(raw.decode("utf-8", "surrogateescape")))
        return (CatalogueMessage("note.io.not_utf8", count=count, offset=error.start),)
    return ()


@dataclass(slots=True)
class _Parser:
    """One parse: `parse` is the fast path, the rest finds out what is wrong and where."""

    text: str
    start: int
    source: str
    lazy: str = ""

    def parse(self) -> Message:
        root: Message = {}
        node, closer = root, _NEVER
        frames: list[_Frame] = []
        # With lazy blocks so many values are kept, and of such a block while it is open: `end` is the number of the
        # first token that is one too many, `left` says how many more there may be when the block is closed.
        lazy, most = self.lazy, max(OP_MEMORY, 2 * len(self.text)) // _VALUE_BYTES if self.lazy else sys.maxsize
        end, left, content, blocks = most, 0, 0, 0
        for number, match in enumerate(_TOKEN.finditer(self.text, self.start)):
            name, value, mark = match.groups()
            if name:
                opened = value[-1]
                if opened == "]":
                    end -= _commas(value)
                if number >= end:
                    size, kept = len(self.text), most + number - end + 1
                    needed, limit = kept * _VALUE_BYTES * size / match.end(), most * _VALUE_BYTES
                    raise out_of_proportion(self.source, size, needed, limit)
                if opened == "{" or opened == "<":
                    if len(frames) == MAX_DEPTH:
                        raise self._error(match.start(1), "io.proto.deep", limit=MAX_DEPTH)
                    frames.append((node, closer, name, match.start(1)))
                    end -= _BLOCK_VALUES
                    if name == lazy and self._is_lazy(frames):
                        end, left, content = number + most, end - number, match.end()
                    child: Message = {}
                    if name in node:
                        node[name].append(child)
                    else:
                        node[name] = [child]
                    node = child
                    closer = _CLOSERS[value] if len(value) == 1 else _LIST_CLOSERS[opened]
                elif opened == "]":
                    items: list[Value] = list(_pieces(_LIST_ITEM_RE, value, 1))
                    if items:
                        node.setdefault(name, []).extend(items)
                elif name in node:
                    node[name].append(value)
                else:
                    node[name] = [value]
            elif mark:
                # A list of blocks goes on ("}, {") or ends ("}]"); anything else does not close what is open.
                if mark != closer:
                    if mark[0] not in "}>":
                        raise self._unexpected(match.start(3), frames)
                    if closer[0] != "\0" or mark[0] != closer[1] or len(mark) == 1:
                        raise self._wrong_closer(match.start(3), mark, closer, frames)
                parent, parent_closer, name, _ = frames[-1]
                if name == lazy and self._is_lazy(frames):
                    parent[name][-1] = (content, match.start(3))  # type: ignore[call-overload]  # of `LazyNodes`
                    blocks += 1
                    refuse_many_ops(self.source, blocks, match.end(), len(self.text), TEXT_OP_SHARE)
                    end, content = number + (most if mark[-1] in "{<" else left), match.end()
                if mark[-1] in "{<":
                    node = {}
                    parent[name].append(node)
                    closer = _LIST_CLOSERS[mark[-1]]
                else:
                    frames.pop()
                    node, closer = parent, parent_closer
        if frames:
            raise self._cut_off(frames)
        return root

    def _is_lazy(self, frames: list[_Frame]) -> bool:
        """Return whether the innermost block, which has the name, is in the root or in a block of it that is kept."""
        return len(frames) == 1 or (len(frames) == 2 and frames[0][2] != self.lazy)

    def block(self, place: Any) -> Any:
        """A lazy block, of where its content is; or the value that stands for one."""
        return _Parser(self.text[slice(*place)], 0, self.source).parse() if isinstance(place, tuple) else place

    def _line(self, position: int) -> int:
        return self.text.count("\n", 0, position) + 1

    def _error(self, position: int, kind: str, frames: list[_Frame] | None = None, **fields: Any) -> FormatError:
        blocks = self._open_blocks(frames or [])
        return FormatError.of(self.source, kind, offset=position, row=self._line(position), blocks=blocks, **fields)

    def _open_blocks(self, frames: list[_Frame]) -> tuple[CatalogueMessage, ...]:
        """Return the open blocks, inner to outer; of many only the innermost two and the outermost."""
        some = [*frames[:1], *frames[1:][-2:]]
        return tuple(
            CatalogueMessage("error.io.proto.block", name=shown(name), row=self._line(opened))
            for _, _, name, opened in reversed(some)
        )

    def _cut_off(self, frames: list[_Frame], **fields: Any) -> FormatError:
        return self._error(len(self.text), "io.proto.cut_off", frames, **fields)

    def _wrong_closer(self, position: int, mark: str, closer: str, frames: list[_Frame]) -> FormatError:
        """Why `mark` cannot stand at `position`, where `closer` would close the innermost block."""
        if not frames:
            return self._error(position, "io.proto.closes_nothing", mark=repr(mark[0]))
        if mark[0] != closer[-1]:
            return self._error(position, "io.proto.wrong_mark", frames, mark=repr(mark[0]), expected=repr(closer[-1]))
        if closer[0] != "\0":
            return self._error(position, "io.proto.extra_mark", frames, mark=repr(mark[-1]), after=repr(mark[0]))
        if self._skip_space(position + 1) >= len(self.text.rstrip(" \t\r\n\f\v,")):
            return self._cut_off(frames, in_blocks=True)
        return self._error(position, "io.proto.no_separator", frames)

    def _unexpected(self, position: int, frames: list[_Frame]) -> FormatError:
        """Why no field can be read at `position`: walk through the field as far as it is right."""
        text = self.text
        here, expected = position, "field"
        after: dict[str, Any] = {}
        name = _NAME_RE.match(text, position)
        if name:
            here = self._skip_space(name.end())
            expected, after = "colon", {"name": shown(name[0])}
            if text.startswith(":", here):
                here = self._skip_space(here + 1)
                expected, after = "value", {"name": shown(name[0] + ":")}
                if text.startswith("[", here):
                    here, expected = self._skip_list(here + 1)
                    after = {"list": shown(name[0])}
        if here >= len(text):
            return self._cut_off(frames, **after)
        string = _OPEN_STRING_RE.match(text, here)
        if string and string.end() == len(text):
            return self._cut_off(frames, string=here, **after)
        if string:
            return self._error(here, "io.proto.open_string", frames, **after)
        glimpse = _GLIMPSE_RE.match(text, here)
        token = _shown(glimpse[0] if glimpse else text[here])
        return self._error(here, "io.proto.unexpected", frames, token=token, expected=expected, **after)

    def _skip_space(self, position: int) -> int:
        match = _WS_RE.match(self.text, position)
        return match.end() if match else position

    def _skip_list(self, position: int) -> tuple[int, str]:
        """The first place in a list where it stops being a list of scalars, and what should stand there."""
        while True:
            position = self._skip_space(position)
            scalar = _SCALAR_RE.match(self.text, position)
            if scalar is None:
                return position, "value"
            position = self._skip_space(scalar.end())
            if not self.text.startswith(",", position):
                return position, "comma"
            position += 1


def _commas(scalars: str) -> int:
    """Return how many commas separate the scalars of a list; of a short one those in its strings count too."""
    count = scalars.count(",")
    if count > _FEW_COMMAS:
        count -= sum(string[0].count(",") for string in _STRING_RE.finditer(scalars))
    return count


def _pieces(pattern: re.Pattern[str], token: str, position: int = 0) -> Iterator[str]:
    """Group 1 of match after match without a gap, so that comments in between are not taken for content."""
    while match := pattern.match(token, position):
        yield match[1]
        position = match.end()


def _shown(raw: str) -> str:
    """A piece of the text, which has one character per byte, as one prints it."""
    return shown(raw.encode("latin-1").decode("utf-8", "backslashreplace"))


# ---- tokens to values


def string_of(token: Value) -> str:
    """Decode a string token; bytes that are not UTF-8 become `\\xNN`, so that it can always be printed."""
    if isinstance(token, str):
        inner, quote = token[1:-1], token[:1]
        if quote in "\"'" and "\\" not in inner and quote not in inner and inner.isascii():
            return inner
    return bytes_of(token).decode("utf-8", "backslashreplace")


def bytes_of(token: Value) -> bytes:
    """Decode a string token to its bytes; adjacent literals are joined."""
    if not isinstance(token, str) or token[:1] not in ('"', "'"):
        raise _bad_value(token, "text")
    inner = token[1:-1]
    if "\\" not in inner and token[0] not in inner:  # as most are: a single literal without escapes
        return inner.encode("latin-1")
    return b"".join(unescape(part[1:-1], strict=True) for part in _pieces(_NEXT_STRING_RE, token))


_ESCAPES = [f"\\{code:03o}" if code < 32 or code > 126 else chr(code) for code in range(256)]
_ESCAPES[9], _ESCAPES[10], _ESCAPES[13] = "\\t", "\\n", "\\r"
_ESCAPES[34], _ESCAPES[39], _ESCAPES[92] = '\\"', "\\'", "\\\\"


def escape(value: bytes) -> str:
    """C escapes as protobuf's text format writes them."""
    return "".join([_ESCAPES[code] for code in value])


def unescape(escaped: str, *, strict: bool = False) -> bytes:
    """Bytes of a text with C escapes, one character per byte.

    What is no escape is an error if `strict`, as it is in protobuf's text format; else it stays as it is written.
    """
    if "\\" in escaped:
        escaped = _ESCAPE_RE.sub(_strictly_unescaped if strict else lambda match: _unescaped(match[0]), escaped)
    return escaped.encode("latin-1")


def _strictly_unescaped(match: re.Match[str]) -> str:
    if match.lastindex is None:
        start = match.start()
        raise FormatError.within("io.proto.escape", escape=_shown(match.string[start : start + _LONGEST_ESCAPE]))
    return _unescaped(match[0])


@lru_cache(maxsize=4096)  # a kernel is megabytes of the same few hundred
def _unescaped(escape: str) -> str:
    match = _ESCAPE_RE.fullmatch(escape)
    assert match is not None
    octal, hexadecimal, head, trail, short, long, plain = match.groups()
    if octal:
        return chr(int(octal, 8) & 0xFF)
    if hexadecimal:
        return chr(int(hexadecimal, 16))
    if plain:
        return _PLAIN_ESCAPES[plain]
    if head:
        code = 0x10000 + ((int(head, 16) & 0x3FF) << 10 | int(trail, 16) & 0x3FF)
    elif short or long:
        code = int(short or long, 16)
    else:
        return match[0]
    # Code points become UTF-8 bytes like the rest of the text, a lone surrogate too. The tokenizer also takes what is
    # beyond Unicode, and writes its number.
    return f"\\U{code:08x}" if code > sys.maxunicode else chr(code).encode("utf-8", "surrogatepass").decode("latin-1")


def _unsigned(token: str) -> str:
    """The number without its minus sign; spaces and comments may follow the sign."""
    space = _WS_RE.match(token, 1) if token.startswith("-") else None
    return token[space.end() :] if space else token


def int_of_64_bits(value: int) -> int:
    """`value`, or ValueError if no field holds it; longer ones could not even be printed (Python's digit limit)."""
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError("more than 64 bits")
    return value


def int_of(token: Value) -> int:
    """Decode a whole number of at most 64 bits: decimal, 0x hexadecimal or 0 octal."""
    try:
        if isinstance(token, str):
            digits = _unsigned(token)
            base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[:1] == "0" else 10
            value = int(digits, base)
            return int_of_64_bits(-value if token[0] == "-" else value)
    except ValueError:
        pass
    raise _bad_value(token, "integer")


def float_of(token: Value) -> float:
    """Decode a number; inf and nan in any case, a trailing f is allowed."""
    try:
        if isinstance(token, str):
            digits = _unsigned(token)
            if digits[:2] in ("0x", "0X"):
                return float(int_of(token))
            if digits[-1:] in ("f", "F") and digits.lower() != "inf":
                digits = digits[:-1]
            return -float(digits) if token[0] == "-" else float(digits)
    except (ValueError, OverflowError):
        pass
    raise _bad_value(token, "number")


def bool_of(token: Value) -> bool:
    """Decode true/True/t/1 and false/False/f/0."""
    value = _BOOLS.get(token) if isinstance(token, str) else None
    if value is None:
        raise _bad_value(token, "boolean")
    return value


def _bad_value(token: Value, expected: str) -> FormatError:
    value = _shown(token) if isinstance(token, str) else CatalogueMessage("error.io.type.block")
    return FormatError.within("io.proto.wrong_value", value=value, expected=expected)
