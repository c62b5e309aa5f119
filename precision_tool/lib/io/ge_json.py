"""GE graphs as `atc --mode=5` writes them in JSON, brought into the shape of the text parser's tree.

Every field becomes a list of values and an emptied message (`null`) an empty dict; a field with an empty list is as
one that is not there, as in protobuf. So one builder serves both. The whole text is checked first; its ops, which are
nearly all of it, are parsed one by one whenever somebody asks for them, as their trees take many times its memory.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Mapping
from json import JSONDecodeError
from typing import Any

from precision_tool.lib.io.lazy_nodes import LazyNodes
from precision_tool.lib.io.proto_text import paused_gc, refuse_nul_bytes
from precision_tool.lib.io.wire import OP_MEMORY, TEXT_OP_SHARE, out_of_proportion, refuse_many_ops
from precision_tool.lib.messages.errors import FormatError

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_BOM = b"\xef\xbb\xbf"
_SPACE = re.compile(rb"[ \t\n\r]*+")
_BRACKET = re.compile(rb"[\[\]{}]")
#: A string, or what a piece has of it.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_DECODER = json.JSONDecoder(strict=False)
#: Bytes that a scalar is looked for in at first, and a list or an object if the last took less; then in twice as many.
_PIECE = 1 << 7
#: An error, or the end of a number, so near to the end of a piece of a text that goes on may be one of the piece, which
#: cuts off a word or an escape. The longest are `-Infinity` and a pair of surrogates.
_LONGEST_TOKEN = 12
#: Bytes that what a character begins takes in memory.
JSON_COSTS = {b"{": 300, b"[": 80, b":": 200, b",": 40}


def parse_graph_json(data: bytes, source: str) -> dict[str, list[Any]]:
    """Return the tree of a JSON text.

    Values are dicts like the root or JSON scalars; the ops of its graphs are `LazyNodes`.

    Raises
    ------
    FormatError
        It is cut off or malformed, with line and byte offset; it is no JSON object; or a single value of it takes too
        much memory.
    """
    refuse_nul_bytes(data, source)
    text = _JsonText(data, source)
    with paused_gc():
        try:
            frame = text.frame()
            root = _parsed(frame)
        except JSONDecodeError as error:
            raise FormatError.of(
                source, "io.graph.json", offset=error.pos, row=data.count(b"\n", 0, error.pos) + 1, reason=error.msg,
                cut_off=not data[error.pos :].strip() or error.msg.startswith("Unterminated string"),
            ) from None  # fmt: skip
        except FormatError:
            raise
        except ValueError:
            # Python converts no number of more than some thousand digits.
            raise FormatError.of(source, "io.graph.long_number") from None
        except RecursionError:
            raise FormatError.of(source, "io.graph.deep_json") from None
    if not isinstance(root, dict):
        raise FormatError.of(source, "io.graph.not_object", type=type(root).__name__)
    for node in (root, *root.get("graph", ())):
        if isinstance(node, dict) and "op" in node:
            node["op"] = LazyNodes(array("q", node["op"]), text.op)
    return root


class _JsonText:
    """A JSON text of a GE graph, and where its ops are.

    Whatever the encoding of its strings, the bytes that are not of ASCII are in strings alone, or errors: it is walked
    with a character a byte.
    """

    def __init__(self, data: bytes, source: str) -> None:
        self._data, self._source = data, source
        self._starts, self._ends = array("q"), array("q")
        #: Ops and values around them, and the bytes that the last list or object was found in.
        self._values, self._last_size = 0, _PIECE

    def frame(self) -> bytes:
        """Check the text, and return it with the number of an op in place of each.

        Raises JSONDecodeError, whose `pos` counts bytes.
        """
        at = self._after_space(len(_BOM) if self._data.startswith(_BOM) else 0)
        end = self._object(at, {"graph": self._graphs, "op": self._ops})
        end = self._after_space(end)
        if end < len(self._data):
            raise JSONDecodeError("Extra data", "", end)
        pieces: list[bytes] = []
        done = at
        for number, start in enumerate(self._starts):
            pieces += self._data[done:start], b"%d" % number
            done = self._ends[number]
        frame = b"".join([*pieces, self._data[done:]])
        self._refuse_large(frame)
        return frame

    def op(self, number: int) -> Any:
        """The op of a number."""
        try:
            op = _parsed(self._data[self._starts[number] : self._ends[number]])
        except RecursionError:
            raise FormatError.of(self._source, "io.graph.deep_json") from None
        return {} if op is None else op

    # Each of the following takes where a value starts, and gives where it ends.

    def _graphs(self, at: int) -> int:
        return self._items(at, lambda start: self._object(start, {"op": self._ops}))

    def _ops(self, at: int) -> int:
        return self._items(at, self._span)

    def _span(self, at: int) -> int:
        end = self._value(at)
        self._starts.append(at)
        self._ends.append(end)
        return end

    def _items(self, at: int, item: Callable[[int], int]) -> int:
        """A list of items, or one of them alone."""
        return self._parts(at, b"]", item) if self._data[at : at + 1] == b"[" else item(at)

    def _object(self, at: int, readers: Mapping[str, Callable[[int], int]]) -> int:
        """An object, whose members of these names are left to readers; or another value."""
        if self._data[at : at + 1] != b"{":
            return self._value(at)
        return self._parts(at, b"}", lambda start: self._member(start, readers))

    def _member(self, at: int, readers: Mapping[str, Callable[[int], int]]) -> int:
        if self._data[at : at + 1] != b'"':
            raise JSONDecodeError("Expecting property name enclosed in double quotes", "", at)
        name, at = self._decoded(at)
        at = self._after_space(at)
        if self._data[at : at + 1] != b":":
            raise JSONDecodeError("Expecting ':' delimiter", "", at)
        return readers.get(name, self._value)(self._after_space(at + 1))

    def _parts(self, at: int, closer: bytes, part: Callable[[int], int]) -> int:
        """What stands in brackets: nothing, or parts with commas between them."""
        at = self._after_space(at + 1)
        if self._data[at : at + 1] == closer:
            return at + 1
        while True:
            at = self._after_space(part(at))
            mark = self._data[at : at + 1]
            if mark == closer:
                return at + 1
            if mark != b",":
                raise JSONDecodeError("Expecting ',' delimiter", "", at)
            at = self._after_space(at + 1)

    def _value(self, at: int) -> int:
        return self._decoded(at)[1]

    def _decoded(self, at: int) -> tuple[Any, int]:
        """A value, with a character a byte, and where it ends."""
        self._values += 1
        refuse_many_ops(self._source, self._values, at, len(self._data), TEXT_OP_SHARE)
        is_scalar = self._data[at : at + 1] not in (b"{", b"[")
        size = _PIECE if is_scalar else self._last_size
        while True:
            piece = self._data[at : at + size]
            is_last = at + len(piece) == len(self._data)
            self._refuse_large(piece)
            try:
                value, length = _DECODER.raw_decode(piece.decode("latin-1"))
                if is_last or length + _LONGEST_TOKEN <= len(piece):
                    if not is_scalar:
                        self._last_size = max(_PIECE, length + length // 4)
                    return value, at + length
            except JSONDecodeError as error:
                is_cut = error.msg.startswith("Unterminated string") or error.pos + _LONGEST_TOKEN > len(piece)
                if is_last or not is_cut:
                    raise JSONDecodeError(error.msg, "", at + error.pos) from None
            size *= 2

    def _refuse_large(self, piece: bytes) -> None:
        """Raise FormatError if the tree of the value that begins a piece takes more memory than an op may.

        In a very large text it may take twice that of the text.
        """
        limit = max(OP_MEMORY, 2 * len(self._data))
        if len(piece) * max(JSON_COSTS.values()) > limit and cost_of(piece, JSON_COSTS) > limit:
            needed = cost_of(_first_value(_STRING.sub(b"", piece)), JSON_COSTS)
            if needed > limit:
                raise out_of_proportion(self._source, len(self._data), needed, limit)

    def _after_space(self, at: int) -> int:
        match = _SPACE.match(self._data, at)
        return match.end() if match else at


def _first_value(bare: bytes) -> bytes:
    """The list or object that begins a text without strings, or all of the text where it does not end in it."""
    depth = 0
    for match in _BRACKET.finditer(bare):
        depth += 1 if match[0] in b"{[" else -1
        if depth <= 0:
            return bare[: match.end()]
    return bare


def cost_of(text: bytes, costs: Mapping[bytes, int]) -> int:
    """Return about how many bytes of memory the tree of a text takes.

    It counts quickly the characters that begin a part of the tree; in strings they are rare.
    """
    return sum(cost * text.count(character) for character, cost in costs.items())


def _parsed(raw: bytes) -> Any:
    text = raw.decode("utf-8", "surrogateescape")
    if not text.isascii():
        # A byte that is not UTF-8 is shown as \xNN, which is also the C escape that bytes fields hold.
        text = _LONE_SURROGATE.sub(lambda match: rf"\\x{ord(match[0]) - 0xDC00:02x}", text)
    return json.loads(text, object_hook=_as_fields, strict=False)


def _as_fields(fields: dict[str, Any]) -> dict[str, list[Any]]:
    return {
        key: [{} if item is None else item for item in value]
        if type(value) is list
        else [{} if value is None else value]
        for key, value in fields.items()
        if value != []
    }
