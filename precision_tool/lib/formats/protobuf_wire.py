"""Protocol-buffer wire format, bounds-checked, over any byte source with `read_at`.

Lengths are checked against the enclosing message before anything is read, so a claimed size costs no memory.
Source: protobuf encoding documentation.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Protocol

from precision_tool.lib.errors import FormatError

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_WINDOW = 1 << 16
#: Fields that a reader walks, those in messages inside messages included: enough for ten thousand tensors.
_MAX_FIELDS = 1 << 17


class ByteSource(Protocol):
    """What a message is read from."""

    path: str
    size: int

    def read_at(self, offset: int, count: int) -> bytes:
        """Exactly `count` bytes from `offset`."""


class WireReader:
    """Walks the fields of messages in `source`. Length-delimited values are given as spans, not read.

    It walks so many fields and no more: bytes that are no message, but look like one, may be a gigabyte.
    """

    def __init__(self, source: ByteSource, max_fields: int = _MAX_FIELDS, end: int | None = None) -> None:
        """Nothing behind `end` is read, by default the end of the source."""
        self._source = source
        self._end = source.size if end is None else end
        self.path = source.path
        self._window = b""
        self._window_start = 0
        self._max_fields = self._fields_left = max_fields

    def _byte(self, position: int) -> int:
        index = position - self._window_start
        if not 0 <= index < len(self._window):
            count = min(_WINDOW, self._end - position)
            if count <= 0:
                raise self._error(position, "the file ends inside a message")
            self._window, self._window_start, index = self._source.read_at(position, count), position, 0
        return self._window[index]

    def bytes_at(self, start: int, stop: int) -> bytes:
        """The bytes of a span that `fields` gave."""
        low, high = start - self._window_start, stop - self._window_start
        if low >= 0 and high <= len(self._window):
            return self._window[low:high]
        return self._source.read_at(start, stop - start)

    def _error(self, position: int, reason: str) -> FormatError:
        return FormatError(
            f"{self._source.path}: {reason} (byte {position})",
            "the file is damaged or no dump file: copy or dump it again",
        )

    def varint(self, position: int, end: int) -> tuple[int, int]:
        """The unsigned number at `position` and the position after it."""
        value = shift = 0
        while True:
            if position >= end:
                raise self._error(position, "a number runs past the end of its message")
            byte = self._byte(position)
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF, position
            shift += 7
            if shift > 63:
                raise self._error(position, "a number is longer than ten bytes")

    def fields(self, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """`(field number, wire type, value or span start, span end)` for each field of the message."""
        position = start
        while position < end:
            tag_at = position
            self._fields_left -= 1
            if self._fields_left < 0:
                raise self._error(tag_at, f"more than {self._max_fields} fields")
            tag, position = self.varint(position, end)
            number, kind = tag >> 3, tag & 7
            if number == 0:
                raise self._error(tag_at, "field number 0")
            if kind == VARINT:
                value, position = self.varint(position, end)
                yield number, kind, value, 0
                continue
            if kind == LENGTH:
                size, position = self.varint(position, end)
            elif kind == FIXED64:
                size = 8
            elif kind == FIXED32:
                size = 4
            else:
                raise self._error(tag_at, f"unknown wire type {kind} of field {number}")
            if size > end - position:
                raise self._error(tag_at, f"field {number} claims {size} bytes, {end - position} are left")
            yield number, kind, position, position + size
            position += size

    def repeated_ints(self, kind: int, value: int, stop: int, limit: int) -> list[int]:
        """The unsigned numbers of one occurrence of a repeated field, packed or not; at most `limit` of them."""
        if kind == VARINT:
            return [value]
        if kind in (FIXED64, FIXED32):
            return [struct.unpack("<Q" if kind == FIXED64 else "<I", self.bytes_at(value, stop))[0]]
        numbers: list[int] = []
        while value < stop and len(numbers) < limit:
            number, value = self.varint(value, stop)
            numbers.append(number)
        return numbers

    def text(self, start: int, stop: int) -> str:
        """A string field; bytes that are not UTF-8 are shown as \\xNN."""
        return self.bytes_at(start, stop).decode("utf-8", "backslashreplace")
