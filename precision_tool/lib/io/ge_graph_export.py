"""A GE graph as the JSON that `atc --mode=5` makes of it.

The rules are those of GE's converter (`Pb2Json`): keys sorted, enums as names, a map as a list of {key, value},
zeros left out where protobuf does not tell them from absent ones, `bytes` C-escaped unless in a list, weights and
addresses left out, a message of which nothing is left `null`.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from precision_tool.lib.io.ge_graph import (
    Node,
    Scalars,
    TextScalars,
    graph_nodes,
    graph_tree,
    is_json,
    read_graph_bytes,
)
from precision_tool.lib.io.ge_graph_partial import lines_of
from precision_tool.lib.io.om_file import ENUMS, MESSAGES, Notes
from precision_tool.lib.io.proto_messages import Field
from precision_tool.lib.io.proto_text import WORD, any_number_of, escape, not_utf8_notes
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError

#: Fields that the vendor leaves out of the JSON, in whatever message: data, and where it lies.
LEFT_OUT = frozenset(
    {"output", "data_offset", "data", "workspace", "workspace_bytes", "memory_size", "weight_size", "size", "bt"}
    | {"quantize_factor"}
)
#: Longer `%g` texts of a float do not fit the vendor's buffer; it then writes a number.
_MAX_FLOAT_TEXT = 9
#: Messages in messages; deeper ones become null.
_MAX_DEPTH = 20
_STEP = "  "
#: Where the graphs of a model are; those in attributes are deeper, and parts of an op.
_GRAPH_DEPTH = 1
#: So many layouts of ops are kept, of blocks that are not longer than this.
_LAYOUTS, _LONGEST = 1_000, 1 << 14
#: A scalar that is not zero whatever field it is of, and what stands for one in a layout; no text has it.
_MORE = any_number_of(r'\\.[^"\\\n]*+')
_NOT_ZERO = re.compile(rf': ("(?!")[^"\\\n]*+{_MORE}"|[1-9][0-9]*+)(?=\n|\Z)')
_SLOT = "\0"


def export_graph(path: str) -> tuple[Iterator[str], Notes]:
    """The vendor's JSON of a graph file, text or offline model, in pieces, and notes on the file.

    Text as GE writes it is read op by op. Of an offline model of several models the first, as atc writes it.

    Parameters
    ----------
    path : str
        `ge_proto_*.txt` or an `.om`.

    Returns
    -------
    pieces : iterator of str
        The JSON, laid out as the vendor's; making them raises FormatError for a value that is none of its field.
    notes : callable
        Gives what is to be known of the file when it was read.

    Raises
    ------
    FormatError
        The file is damaged, no graph, or JSON already.
    """
    data = read_graph_bytes(path)
    if is_json(data):
        raise FormatError.of(path, "io.graph.json_already")
    text = lines_of(data)
    if text is None:
        root, notes, scalars = graph_tree(data, path, first_model=True)
    else:
        root, notes, scalars = _opened(_Block(text, 0, len(text), 0)), lambda: not_utf8_notes(data), TextScalars()
        root["graph"] = [_opened(node) if isinstance(node, _Block) else node for node in root["graph"]]
    graph_nodes(root, path)  # anything else than a GE graph is refused
    return GraphExport(scalars, path).pieces(root), notes


@dataclass(frozen=True, slots=True)
class _Block:
    """A block of a text that is written line by line: its lines, which are not looked at yet, at a depth."""

    text: str
    start: int
    end: int
    depth: int


def _is_short(value: Any) -> bool:
    return isinstance(value, _Block) and value.end - value.start <= _LONGEST


@lru_cache
def _head(depth: int) -> re.Pattern[str]:
    """What a field at a depth begins with, and the value of a scalar."""
    return re.compile(rf"\n{_STEP * depth}({WORD})(?:: ([^\n]*+)| \{{)")


def _opened(value: Any) -> Node:
    """The fields of a message; what is in the blocks in a block of a text is not looked at."""
    if isinstance(value, dict):
        return value
    if not isinstance(value, _Block):
        raise FormatError.within("io.graph.wrong_value", value=Message("error.io.type.value"), expected="block")
    text, depth = value.text, value.depth
    closer = f"\n{_STEP * depth}}}"
    node: Node = {}
    for match in _head(depth).finditer(text, value.start, value.end):
        name, scalar = match.groups()
        start = match.end()
        node.setdefault(name, []).append(
            _Block(text, start, text.index(closer, start), depth + 1) if scalar is None else scalar
        )
    return node


@dataclass(frozen=True, slots=True)
class _Layout:
    """The JSON of all blocks that are alike but for scalars: what stands before, between and behind these."""

    texts: Sequence[str]
    #: The number of each scalar in the block, and its field, None for one that is not known.
    slots: Sequence[tuple[int, Field | None]]


class GraphExport:
    """Makes the JSON of a tree, in which blocks of a text may stand for messages; `path` is for errors."""

    def __init__(self, scalars: Scalars, path: str) -> None:
        self._scalars = scalars
        self._path = path
        self._layouts: dict[tuple[str, ...], _Layout] = {}
        #: The slots of the layout that is being made.
        self._slots: list[tuple[int, Field | None]] = []

    def pieces(self, root: Node) -> Iterator[str]:
        """The JSON of the whole file, whose root is a ModelDef, or a GraphDef on its own."""
        try:
            yield from self._message(root, MESSAGES["ModelDef" if "graph" in root else "GraphDef"], 0, 0)
        except FormatError as error:
            raise error.at(self._path) from None

    def _message(self, node: Node, fields: Mapping[str, Field], depth: int, indent: int) -> Iterator[str]:
        """The JSON of a message, whose first line is indented so many steps."""
        line = "\n" + _STEP * (indent + 1)
        before = "{"
        for name in sorted(node.keys() - LEFT_OUT) if depth <= _MAX_DEPTH else ():
            field, values = fields.get(name), node[name]
            start = f"{before}{line}{_json(name)}: "
            if field is None:
                yield start
                yield from self._unknown(values, indent + 1)
            elif field.is_repeated:
                yield start
                yield from self._list(values, field, depth, indent + 1)
            elif field.is_message:
                text = self._block(values[-1], field, depth + 1, indent + 1)
                if text is None:  # as one that is not there
                    continue
                yield start + text
            elif field.is_oneof or not self._is_zero(values[-1], field):
                yield start + self._scalar(values[-1], field)
            else:
                continue
            before = ","
        yield "null" if before == "{" else f"\n{_STEP * indent}}}"

    def _list(self, values: Sequence[Any], field: Field, depth: int, indent: int) -> Iterator[str]:
        line = "\n" + _STEP * (indent + 1)
        before = "["
        for value in values:
            yield before + line
            if not field.is_message:
                yield self._scalar(value, field)
            elif field.kind == "OpDef" and depth == _GRAPH_DEPTH and _is_short(value):
                yield self._op(value, field, depth + 1, indent + 1)
            elif field.kind == "GraphDef":
                yield from self._message(_opened(value), MESSAGES[field.kind], depth + 1, indent + 1)
            else:
                yield self._block(value, field, depth + 1, indent + 1) or "null"
            before = ","
        yield f"\n{_STEP * indent}]"

    def _unknown(self, values: Sequence[Any], indent: int) -> Iterator[str]:
        """A field that a newer release has added; of one value it cannot be told whether it is a list."""
        is_list = len(values) > 1
        line = "\n" + _STEP * (indent + 1)
        before = "["
        for value in values:
            if is_list:
                yield before + line
                before = ","
            if isinstance(value, (dict, _Block)):
                yield from self._message(_opened(value), {}, 0, indent + is_list)
            else:
                yield self._scalar(value, None)
        if is_list:
            yield f"\n{_STEP * indent}]"

    def _op(self, block: _Block, field: Field, depth: int, indent: int) -> str:
        """The JSON of an op by the layout of those that are written alike."""
        parts = _NOT_ZERO.split(block.text[block.start : block.end])
        shape, tokens = tuple(parts[::2]), parts[1::2]
        layout = self._layouts.get(shape)
        if layout is None:
            if len(self._layouts) >= _LAYOUTS:
                self._layouts.clear()
            parts[1::2] = [f": {_SLOT}{number}" for number in range(len(tokens))]
            text = "".join(parts)
            self._slots = []
            made = self._block(_Block(text, 0, len(text), block.depth), field, depth, indent) or "null"
            layout = self._layouts[shape] = _Layout(made.split(_SLOT), self._slots)
        pieces = [layout.texts[0]]
        for (number, scalar_field), text in zip(layout.slots, layout.texts[1:], strict=True):
            pieces += self._value(tokens[number], scalar_field), text
        return "".join(pieces)

    def _block(self, value: Any, field: Field, depth: int, indent: int) -> str | None:
        """The JSON of a message; None if it takes no bytes."""
        node, fields = _opened(value), MESSAGES[field.kind]
        return "".join(self._message(node, fields, depth, indent)) if self._takes_bytes(node, fields) else None

    def _takes_bytes(self, node: Node, fields: Mapping[str, Field]) -> bool:
        for name, values in node.items():
            field = fields.get(name)
            if field is None or field.is_repeated or field.is_oneof or field.is_message:
                return True
            if not self._is_zero(values[-1], field):
                return True
        return False

    def _is_zero(self, value: Any, field: Field) -> bool:
        if _is_slot(value):
            return False
        if field.kind in ("string", "bytes"):
            return not self._scalars.data(value)
        if field.kind in ENUMS:
            return self._enum(value, field.kind) == ENUMS[field.kind][0]
        return not (self._scalars.boolean if field.kind == "bool" else self._scalars.number)(value)

    def _scalar(self, value: Any, field: Field | None) -> str:
        """The JSON of a scalar, or what stands for it in a layout."""
        if not _is_slot(value):
            return self._value(value, field)
        self._slots.append((int(value[1:]), field))
        return _SLOT

    def _value(self, value: Any, field: Field | None) -> str:
        if field is None:
            return _json(self._scalars.guess(value))
        return _json(self._item(value, field) if field.is_repeated else self._single(value, field))

    def _single(self, value: Any, field: Field) -> Any:
        if field.kind == "bytes":
            return escape(self._scalars.data(value))
        if field.kind == "float":
            number = _float32(self._scalars.number(value))
            text = f"{number:g}"
            return text if len(text) <= _MAX_FLOAT_TEXT else number
        return self._item(value, field)

    def _item(self, value: Any, field: Field) -> Any:
        if field.kind in ("string", "bytes"):
            return self._scalars.data(value).decode("utf-8", "ignore")
        if field.kind in ENUMS:
            return self._enum(value, field.kind)
        if field.kind == "bool":
            return self._scalars.boolean(value)
        if field.kind == "float":
            number = _float32(self._scalars.number(value))
            return number if number - number == 0 else None  # JSON has no NaN and no infinity
        return self._scalars.integer(value)

    def _enum(self, value: Any, kind: str) -> str:
        word = self._scalars.word(value)
        return ENUMS[kind].get(self._scalars.integer(word), word) if word.isascii() and word.isdecimal() else word


def _float32(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _is_slot(value: Any) -> bool:
    return isinstance(value, str) and value[:1] == _SLOT


_ENCODER = json.JSONEncoder(ensure_ascii=False)


def _json(scalar: Any) -> str:
    return str(scalar) if type(scalar) is int else _ENCODER.encode(scalar)
