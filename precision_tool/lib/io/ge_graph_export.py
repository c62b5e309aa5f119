"""A GE graph as the JSON that `atc --mode=5` makes of it.

The rules are those of GE's converter (`Pb2Json`): keys sorted, enums as names, a map as a list of {key, value},
zeros left out where protobuf does not tell them from absent ones, `bytes` C-escaped unless in a list, weights and
addresses left out, a message of which nothing is left `null`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

from precision_tool.lib.io.ge_graph import Node, Scalars, graph_nodes, graph_tree, is_json, read_graph_bytes
from precision_tool.lib.io.om_file import ENUMS, MESSAGES
from precision_tool.lib.io.proto_messages import Field
from precision_tool.lib.io.proto_text import escape, paused_gc
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


def export_graph(path: str) -> tuple[dict[str, Any], tuple[Message, ...]]:
    """A graph file, text or offline model, as the vendor's JSON, and notes on it. FormatError for others.

    Of an offline model of several models the first, as atc writes it.
    """
    data = read_graph_bytes(path)
    if is_json(data):
        raise FormatError.of(path, "io.graph.json_already")
    root, notes, scalars = graph_tree(data, path, first_model=True)
    graph_nodes(root, path)  # anything else than a GE graph is refused
    with paused_gc():
        return GraphExport(scalars, path).model(root), notes


class GraphExport:
    """Makes the JSON of a tree; `path` is for errors."""

    def __init__(self, scalars: Scalars, path: str) -> None:
        self._scalars = scalars
        self._path = path

    def model(self, root: Node) -> dict[str, Any]:
        """The whole file, whose root is a ModelDef, or a GraphDef on its own."""
        message = "ModelDef" if "graph" in root else "GraphDef"
        try:
            return self._message(root, MESSAGES[message], 0) or {}
        except FormatError as error:
            raise error.at(self._path) from None

    def _message(self, node: Any, fields: Mapping[str, Field], depth: int) -> dict[str, Any] | None:
        if not isinstance(node, dict):
            raise FormatError.within("io.graph.wrong_value", value=Message("error.io.type.value"), expected="block")
        if depth > _MAX_DEPTH:
            return None
        message: dict[str, Any] = {}
        for name, values in node.items():
            if name in LEFT_OUT:
                continue
            field = fields.get(name)
            if field is None:
                message[name] = self._unknown(values)
            elif field.is_repeated:
                message[name] = [self._item(value, field, depth) for value in values]
            elif self._is_there(values[-1], field):
                message[name] = self._single(values[-1], field, depth)
        return message or None

    def _is_there(self, value: Any, field: Field) -> bool:
        """Whether protobuf tells the field from an absent one; a block is there if it takes any bytes."""
        if field.is_message:
            return self._takes_bytes(value, MESSAGES[field.kind])
        return field.is_oneof or not self._is_zero(value, field)

    def _takes_bytes(self, node: Any, fields: Mapping[str, Field]) -> bool:
        if not isinstance(node, dict):
            return True  # an error, which is said where the value is read
        for name, values in node.items():
            field = fields.get(name)
            if field is None or field.is_repeated or field.is_oneof or field.is_message:
                return True
            if not self._is_zero(values[-1], field):
                return True
        return False

    def _is_zero(self, value: Any, field: Field) -> bool:
        if field.kind in ("string", "bytes"):
            return not self._scalars.data(value)
        if field.kind in ENUMS:
            return self._enum(value, field.kind) == ENUMS[field.kind][0]
        return not (self._scalars.boolean if field.kind == "bool" else self._scalars.number)(value)

    def _single(self, value: Any, field: Field, depth: int) -> Any:
        if field.kind == "bytes":
            return escape(self._scalars.data(value))
        if field.kind == "float":
            number = _float32(self._scalars.number(value))
            text = f"{number:g}"
            return text if len(text) <= _MAX_FLOAT_TEXT else number
        return self._item(value, field, depth)

    def _item(self, value: Any, field: Field, depth: int) -> Any:
        if field.is_message:
            fields = MESSAGES[field.kind]
            return self._message(value, fields, depth + 1) if self._takes_bytes(value, fields) else None
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

    def _unknown(self, values: list[Any]) -> Any:
        """A field that a newer release has added; of one value it cannot be told whether it is a list."""
        items = [
            {name: self._unknown(inner) for name, inner in value.items() if name not in LEFT_OUT} or None
            if isinstance(value, dict)
            else self._scalars.guess(value)
            for value in values
        ]
        return items if len(items) > 1 else items[0]


def _float32(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def json_text(value: Any) -> str:
    """The text of the file, laid out as the vendor's."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
