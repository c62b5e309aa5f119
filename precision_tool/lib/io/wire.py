"""Protocol-buffer wire format, bounds-checked, over anything that bytes can be read from.

Lengths are checked against the enclosing message before anything is read, so a claimed size costs no memory.
Source: protobuf encoding documentation. This module runs on Python 3.7.
"""

import struct
from typing import Callable, Iterator, List, Optional, Tuple

from precision_tool.lib.messages.errors import FormatError

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
#: Bytes that are read at once.
WINDOW = 1 << 16
#: Fields that a reader walks, those in messages inside messages included: enough for ten thousand tensors.
MAX_FIELDS = 1 << 17
#: What a file that may have been made to do harm may take in any case: bytes of memory, and of these what a second of
#: reading makes on a slow machine. A file takes more only in the proportion of what others write.
MEMORY, BYTES_PER_SECOND = 500_000_000, 50_000_000
#: Bytes that a field of a graph takes in memory; fields of a graph in any case, and one more for so many bytes: real
#: ones have one for 6 to 8.
FIELD_BYTES, MAX_GRAPH_FIELDS, FIELD_SHARE = 250, 1 << 18, 5
#: Bytes of memory that an op, or what is around the ops, may take, and more in a very large text.
OP_MEMORY = MEMORY // 2
#: Bytes of memory that make as many seconds as an op; ops in any case, and one more for so many bytes: real graphs have
#: one for 300 and more in text, for 150 and more in an offline model.
OP_BYTES, MAX_GRAPH_OPS, TEXT_OP_SHARE, OP_SHARE = 2000, MEMORY // 2000, 250, 100


def out_of_proportion(path: str, size: int, needed: float, limit: float) -> FormatError:
    """Return the error of a file of `size` bytes that would take `needed` bytes of memory."""
    return FormatError.of(
        path, "io.out_of_proportion", size=size, needed=needed, seconds=needed / BYTES_PER_SECOND, limit=limit,
        most_seconds=limit / BYTES_PER_SECOND,
    )  # fmt: skip


def refuse_many_ops(path: str, count: int, done: int, size: int, share: int) -> None:
    """Raise FormatError for a file of `size` bytes with so many ops in the first `done`: more than one for `share`."""
    most = max(MAX_GRAPH_OPS, size // share)
    if count > most:
        raise out_of_proportion(path, size, count * OP_BYTES * size / done, most * OP_BYTES)


def too_many_fields(path: str, count: int, done: int, size: int, first: int, share: int) -> FormatError:
    """Return the error of a file of `size` bytes with so many fields in the first `done`.

    It may have `first` of them, and one for `share` bytes.
    """
    needed = count * FIELD_BYTES * size / max(done, 1)
    return out_of_proportion(path, size, needed, FIELD_BYTES * max(first, size / share))


class WireReader:
    """Walks the fields of messages in a file. Length-delimited values are given as spans, not read.

    It walks so many fields and no more: bytes that are no message, but look like one, may be a gigabyte. With
    `field_share` it walks one more for each so many bytes, and counts two numbers in a row as a field.
    """

    def __init__(
        self,
        path: str,
        size: int,
        read_at: Callable[[int, int], bytes],
        max_fields: int = MAX_FIELDS,
        window: int = WINDOW,
        field_share: int = 0,
    ) -> None:
        """`read_at` gives so many bytes from an offset; nothing from `size` on is read."""
        self.path, self.size = path, size
        self._read_at = read_at
        self._window = b""
        self._window_start, self._most = 0, window
        self._max_fields = self._fields_left = max_fields
        self._first_fields, self._field_share = max_fields, field_share

    @property
    def fields_walked(self) -> int:
        """Fields that were walked up to now."""
        return self._max_fields - self._fields_left

    def byte(self, position: int) -> int:
        """One byte."""
        index = position - self._window_start
        if not 0 <= index < len(self._window):
            count = min(self._most, self.size - position)
            self._window = self._read_at(position, count) if count > 0 else b""
            if not self._window:
                raise FormatError.of(self.path, "io.wire.truncated", offset=position)
            self._window_start, index = position, 0
        return self._window[index]

    def bytes_at(self, start: int, stop: int) -> bytes:
        """The bytes of a span that `fields` gave."""
        low, high = start - self._window_start, stop - self._window_start
        if low >= 0 and high <= len(self._window):
            return self._window[low:high]
        return self._read_at(start, stop - start)

    def varint(self, position: int, end: int) -> Tuple[int, int]:
        """The unsigned number at `position` and the position after it."""
        window, index = self._window, position - self._window_start
        if position < end and 0 <= index < len(window) and window[index] < 0x80:  # as most are: of one byte
            return window[index], position + 1
        value = shift = 0
        while position < end:
            index = position - self._window_start
            byte = self._window[index] if 0 <= index < len(self._window) else self.byte(position)
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF, position
            shift += 7
            if shift > 63:
                raise FormatError.of(self.path, "io.wire.long_number", offset=position)
        raise FormatError.of(self.path, "io.wire.open_number", offset=position)

    def fields(self, start: int, end: int) -> Iterator[Tuple[int, int, int, int, int]]:
        """`(field number, wire type, value or span start, span end, where its tag is)` of each field of a message."""
        position = start
        while position < end:
            tag_at = position
            self._fields_left -= 1
            if self._fields_left < 0:
                self._allow_more(tag_at)
            # As in `varint`, without the call: most tags and lengths are of one byte, and there are many of them.
            window, index = self._window, position - self._window_start
            if 0 <= index < len(window) and window[index] < 0x80:
                tag, position = window[index], position + 1
            else:
                tag, position = self.varint(position, end)
            number, kind = tag >> 3, tag & 7
            if number == 0:
                raise FormatError.of(self.path, "io.wire.field_zero", offset=tag_at)
            if kind in (VARINT, LENGTH):
                window, index = self._window, position - self._window_start
                if position < end and 0 <= index < len(window) and window[index] < 0x80:
                    value, position = window[index], position + 1
                else:
                    value, position = self.varint(position, end)
                if kind == VARINT:
                    yield number, kind, value, position, tag_at
                    continue
                size = value
            elif kind == FIXED64:
                size = 8
            elif kind == FIXED32:
                size = 4
            else:
                raise FormatError.of(self.path, "io.wire.wire_type", offset=tag_at, code=kind, field=number)
            if size > end - position:
                raise FormatError.of(
                    self.path, "io.wire.claims", offset=tag_at, field=number, size=size, left=end - position
                )
            yield number, kind, position, position + size, tag_at
            position += size

    def _allow_more(self, position: int) -> None:
        """Allow fields in proportion to the bytes before `position`; FormatError where there are too many for these."""
        if not self._field_share:
            raise FormatError.of(self.path, "io.wire.fields", offset=position, limit=self._max_fields)
        more = self._first_fields + position // self._field_share - self._max_fields
        if more <= 0:
            raise too_many_fields(
                self.path, self._max_fields, position, self.size, self._first_fields, self._field_share
            )
        self._max_fields += more
        self._fields_left = more - 1

    def message(self, start: int, end: int, field: int) -> Optional[Tuple[int, int]]:
        """Start and end of the first message in field `field` of a message."""
        for number, kind, value, stop, _ in self.fields(start, end):
            if number == field and kind == LENGTH:
                return value, stop
        return None

    def repeated_ints(self, kind: int, value: int, stop: int, limit: int) -> List[int]:
        """The unsigned numbers of one occurrence of a repeated field, packed or not; at most `limit` of them."""
        if kind == VARINT:
            return [value]
        if kind in (FIXED64, FIXED32):
            return [struct.unpack("<Q" if kind == FIXED64 else "<I", self.bytes_at(value, stop))[0]]
        numbers: List[int] = []
        while value < stop and len(numbers) < limit:
            if self._field_share and len(numbers) % 2:
                self._fields_left -= 1
                if self._fields_left < 0:
                    self._allow_more(value)
            number, value = self.varint(value, stop)
            numbers.append(number)
        return numbers

    def text(self, start: int, stop: int) -> str:
        """A string field; bytes that are not UTF-8 are shown as \\xNN."""
        return self.bytes_at(start, stop).decode("utf-8", "backslashreplace")
