"""Messages of protocol buffers described as data, and read from the wire into the tree that the text parser makes."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from precision_tool.lib.io.wire import FIXED32, FIXED64, LENGTH, VARINT, WireReader
from precision_tool.lib.messages.errors import FormatError

#: Kinds of fields that are numbers on the wire, besides the enums of a schema.
_INTEGERS = ("int", "uint", "bool")
#: Kinds of floating-point numbers: struct's letter, size and wire type.
_FLOATS = {"float": ("f", 4, FIXED32), "double": ("d", 8, FIXED64)}
#: The kind of a message that is not read: its first byte and the one behind its last are the value.
SPAN = "span"
_MAX_DEPTH = 100


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message. `kind` is a scalar's, an enum's or the name of a message.

    Fields of a oneof are there even when they are zero; others are not.
    """

    name: str
    number: int
    kind: str
    is_repeated: bool
    is_oneof: bool
    #: True if its values are blocks.
    is_message: bool


class Schema:
    """The messages of a format.

    `lines` are by message "name number kind" of its fields, with `/` between them, `*` before a repeated kind and `?`
    before one of a oneof; `enums` the names of values by number. `deep` and `field` are the kinds of the errors for
    messages in too many messages, and for a field of another wire type.
    """

    def __init__(self, lines: Mapping[str, str], enums: Mapping[str, dict[int, str]], deep: str, field: str) -> None:
        #: message → its fields by name, and by number.
        self.messages = {name: self._fields(text, lines) for name, text in lines.items()}
        self.by_number = {
            name: {each.number: each for each in fields.values()} for name, fields in self.messages.items()
        }
        self.enums = enums
        self._deep, self._field = deep, field

    @staticmethod
    def _fields(text: str, lines: Mapping[str, str]) -> dict[str, Field]:
        fields = {}
        for line in text.split("/"):
            name, number, kind = line.split()
            plain = kind.lstrip("*?")
            fields[name] = Field(name, int(number), plain, kind[0] == "*", kind[0] == "?", plain in lines)
        return fields

    def read(self, wire: WireReader, start: int, stop: int, message: str, depth: int = 0) -> dict[str, list[Any]]:
        """Return a message as a tree: field name → values. Fields that are not known are passed over.

        Raises
        ------
        FormatError
            Its bytes are no such message.
        """
        if depth > _MAX_DEPTH:
            raise FormatError.of(wire.path, self._deep, limit=_MAX_DEPTH)
        node: dict[str, list[Any]] = {}
        fields = self.by_number[message]
        for number, kind, value, end, _ in wire.fields(start, stop):
            field = fields.get(number)
            values = [] if field is None else [*self._values(wire, field, kind, value, end, depth)]
            if field is not None and values:  # an empty block of numbers is as none
                node.setdefault(field.name, []).extend(values)
        return node

    def _values(self, wire: WireReader, field: Field, kind: int, value: int, end: int, depth: int) -> Iterator[Any]:
        if field.is_message or field.kind in ("string", "bytes", SPAN):
            if kind != LENGTH:
                raise FormatError.of(wire.path, self._field, name=field.name, expected="block")
            if field.kind == SPAN:
                yield value, end
            elif field.is_message:
                yield self.read(wire, value, end, field.kind, depth + 1)
            else:
                yield wire.bytes_at(value, end)
        elif field.kind in _INTEGERS or field.kind in self.enums:
            if kind == VARINT:
                yield self._integer(value, field)
            else:
                yield from (self._integer(item, field) for item in wire.repeated_ints(kind, value, end, end - value))
        else:
            letter, size, alone = _FLOATS[field.kind]
            if kind not in (LENGTH, alone) or (end - value) % size:
                raise FormatError.of(wire.path, self._field, name=field.name, expected="floats")
            yield from struct.unpack(f"<{(end - value) // size}{letter}", wire.bytes_at(value, end))

    def _integer(self, value: int, field: Field) -> int | str | bool:
        if field.kind == "bool":
            return bool(value)
        if field.kind in self.enums:
            return self.enums[field.kind].get(value, str(value))
        return value - (1 << 64) if field.kind == "int" and value >> 63 else value
