"""One tensor file of tfdbg: a serialized `Event` whose summary holds a `TensorProto`. Only its head is read.

Lengths are checked against the message around them and the file before anything is read, so that a claimed size
costs no memory. Sources: event.proto, summary.proto, tensor.proto, tensor_shape.proto and types.proto of TensorFlow,
encoding documentation of protobuf. This module runs on Python 3.7.
"""

import os
from dataclasses import dataclass
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from precision_tool.lib.collect.wire import FIXED32, FIXED64, LENGTH, VARINT, WireReader
from precision_tool.lib.errors import DataNotFoundError, FormatError
from precision_tool.lib.io.local import open_descriptor

# Field numbers.
_EVENT_SUMMARY = 5
_SUMMARY_VALUE = 1
_VALUE_TENSOR = 8
_TENSOR_DTYPE, _TENSOR_SHAPE, _TENSOR_CONTENT = 1, 2, 4
_SHAPE_DIM, _SHAPE_UNKNOWN_RANK = 2, 3
_DIM_SIZE = 1

_WINDOW = 4096
_HINT = "the file is damaged or no tensor of tfdbg: copy it again, or run the training step again"
#: Runs of values and dimensions that are kept in memory, at most.
_MAX_SPANS = 1 << 12
#: Axes that the analysis can read: numpy's arrays have 32, and the two parts of complex numbers are one there.
_MAX_RANK = 31
_MAX_ELEMENTS = 1 << 62
#: Bytes of a tensor of which the file only gives the first values, the last of them standing for the rest.
_MAX_FILLED = 1 << 28
_REFERENCE = 100  # DT_FLOAT_REF is DT_FLOAT + 100


class TensorType(NamedTuple):
    """A type of TensorFlow: `descr` is how `.npy` names it, `field` the field of TensorProto that its values are in.

    `kind` is the wire type of a value; a complex number is two values.
    """

    name: str
    descr: str
    item_size: int
    field: int
    kind: int


#: By the number TensorFlow gives them. bfloat16 is what numpy makes of TensorFlow's own: two bytes without a meaning.
#: Quantized types are the integers they consist of.
TYPES: Dict[int, TensorType] = {
    1: TensorType("float32", "<f4", 4, 5, FIXED32),
    2: TensorType("float64", "<f8", 8, 6, FIXED64),
    3: TensorType("int32", "<i4", 4, 7, VARINT),
    4: TensorType("uint8", "|u1", 1, 7, VARINT),
    5: TensorType("int16", "<i2", 2, 7, VARINT),
    6: TensorType("int8", "|i1", 1, 7, VARINT),
    8: TensorType("complex64", "<c8", 8, 9, FIXED32),
    9: TensorType("int64", "<i8", 8, 10, VARINT),
    10: TensorType("bool", "|b1", 1, 11, VARINT),
    11: TensorType("qint8", "|i1", 1, 7, VARINT),
    12: TensorType("quint8", "|u1", 1, 7, VARINT),
    13: TensorType("qint32", "<i4", 4, 7, VARINT),
    14: TensorType("bfloat16", "<V2", 2, 13, VARINT),
    15: TensorType("qint16", "<i2", 2, 7, VARINT),
    16: TensorType("quint16", "<u2", 2, 7, VARINT),
    17: TensorType("uint16", "<u2", 2, 7, VARINT),
    18: TensorType("complex128", "<c16", 16, 12, FIXED64),
    19: TensorType("float16", "<f2", 2, 13, VARINT),
    22: TensorType("uint32", "<u4", 4, 16, VARINT),
    23: TensorType("uint64", "<u8", 8, 17, VARINT),
}
_WITHOUT_NUMBERS = {7: "string", 20: "resource", 21: "object (variant)"}
_VALUE_KINDS = {each.field: each.kind for each in TYPES.values()}


class Span(NamedTuple):
    """Bytes of the file: a packed run of values, or values each behind its tag of `tag_size` bytes (0: packed)."""

    start: int
    stop: int
    tag_size: int = 0


@dataclass(frozen=True)
class TensorEvent:
    """What the head of a tensor file says. `skip` is why it has no numbers, "" if it has; with `is_unknown` it may
    have some, of a type that only TensorFlow knows.

    The values are the bytes of `content`, little endian in C order, or else those in `spans`, as they are encoded.
    """

    path: str
    type: TensorType
    shape: Tuple[int, ...]
    count: int
    content: Optional[Span] = None
    spans: Tuple[Span, ...] = ()
    skip: str = ""
    is_unknown: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in memory and in a `.npy` file."""
        return self.count * self.type.item_size

    @property
    def is_mostly_claimed(self) -> bool:
        """Whether the file holds too few values for its size: the last one stands for most of them."""
        # A number takes a byte in the file at least, and eight as an element at most.
        return self.content is None and self.nbytes > 8 * sum(span.stop - span.start for span in self.spans)

    @property
    def plain(self) -> Optional[Span]:
        """Where the values lie as they are, little endian in C order; None where they have to be decoded."""
        if self.content is not None or not self.count:
            return self.content or Span(0, 0)
        if len(self.spans) != 1 or self.type.kind == VARINT:
            return None
        (span,) = self.spans
        return span if not span.tag_size and span.stop - span.start == self.nbytes else None


def damaged(path: str, position: int, reason: str) -> FormatError:
    """The user's error for bytes that are not what they should be."""
    return FormatError.of(path, f"{reason} (byte {position})", _HINT, offset=position)


def read_event(path: str) -> TensorEvent:
    """The head of a tensor file. Raises FormatError, with the byte, for what is damaged or holds no tensor."""
    fd = open_for_reading(path)
    try:
        return read_event_at(path, os.fstat(fd).st_size, lambda offset, count: os.pread(fd, count, offset))
    except OSError as error:
        raise unreadable(path, error) from error
    finally:
        os.close(fd)


def read_event_at(path: str, size: int, read_at: Callable[[int, int], bytes]) -> TensorEvent:
    """Like `read_event`, of a file of `size` bytes that is open: `read_at` gives so many bytes from an offset."""
    return _read(WireReader(path, size, read_at, max_fields=size, window=_WINDOW, hint=_HINT))


def open_for_reading(path: str) -> int:
    """A descriptor of a regular file; FormatError for all else, also for a link to nothing, which was listed."""
    try:
        return open_descriptor(path)
    except DataNotFoundError as error:
        raise FormatError.of(path, error.reason, error.hint) from error


def unreadable(path: str, error: OSError) -> FormatError:
    """The user's error for a file that cannot be opened or read."""
    return FormatError.of(path, f"cannot be read ({error.strerror})", "check its permissions and the disk")


def _read(reader: WireReader) -> TensorEvent:
    if reader.size == 0:
        raise reader.error(0, "the file is empty")
    place: Optional[Tuple[int, int]] = (0, reader.size)
    for field in (_EVENT_SUMMARY, _SUMMARY_VALUE, _VALUE_TENSOR):
        if place is not None:
            place = reader.message(place[0], place[1], field)
    if place is None:
        raise reader.error(0, "no tensor in this file")
    return _read_tensor(reader, *place)


def _read_tensor(reader: WireReader, start: int, end: int) -> TensorEvent:
    code = 0
    shape: Optional[Tuple[int, ...]] = ()
    content: Optional[Span] = None
    spans: Dict[int, List[Span]] = {}
    for number, kind, value, stop, tag_at in reader.fields(start, end):
        if number == _TENSOR_DTYPE and kind == VARINT:
            code = value
        elif number == _TENSOR_SHAPE and kind == LENGTH:
            shape = _read_shape(reader, value, stop)
        elif number == _TENSOR_CONTENT and kind == LENGTH:
            content = Span(value, stop) if stop > value else None
        elif number in _VALUE_KINDS and kind in (LENGTH, _VALUE_KINDS[number]) and (stop > value or kind != LENGTH):
            _add_span(reader, spans.setdefault(number, []), kind, value, stop, tag_at)
    if code > _REFERENCE:
        code -= _REFERENCE
    stored_type = TYPES.get(code)
    if stored_type is None:
        if code == 0:
            raise reader.error(start, "a tensor without a data type")
        unknown = code not in _WITHOUT_NUMBERS
        reason = f"data type {code} of TensorFlow, which is not known here" if unknown else _WITHOUT_NUMBERS[code]
        return TensorEvent(reader.path, TensorType("", "", 0, 0, 0), shape or (), 0, skip=reason, is_unknown=unknown)
    if shape is None:
        raise reader.error(start, "a tensor of unknown shape")
    count = _count(reader, start, shape)
    pieces = tuple(spans.get(stored_type.field, ()))
    event = TensorEvent(reader.path, stored_type, shape, count, content, () if content else pieces)
    if content is not None:
        held = content.stop - content.start
        if held != event.nbytes:
            claim = f"shape {list(shape)} of {stored_type.name} needs {event.nbytes} bytes, the tensor has {held}"
            raise reader.error(content.start, claim)
    elif count and not pieces:
        return TensorEvent(reader.path, stored_type, shape, count, skip="not initialized")
    elif event.nbytes > max(_MAX_FILLED, 8 * reader.size):
        raise reader.error(start, f"shape {list(shape)} is absurd for a file of {reader.size} bytes")
    return event


def _read_shape(reader: WireReader, start: int, end: int) -> Optional[Tuple[int, ...]]:
    """The dimensions; None if even their number is unknown. A dimension of 0 is an empty message."""
    shape: List[int] = []
    for number, kind, value, stop, tag_at in reader.fields(start, end):
        if number == _SHAPE_UNKNOWN_RANK and kind == VARINT and value:
            return None
        if number == _SHAPE_DIM and kind == LENGTH:
            size = 0
            for inner, inner_kind, inner_value, _, _ in reader.fields(value, stop):
                if inner == _DIM_SIZE and inner_kind == VARINT:
                    size = inner_value
            if size >= 1 << 63:
                raise reader.error(tag_at, "a dimension of unknown size")
            shape.append(size)
            if len(shape) > _MAX_RANK:
                raise reader.error(tag_at, f"more than {_MAX_RANK} dimensions")
    return tuple(shape)


def _count(reader: WireReader, start: int, shape: Tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    if count > _MAX_ELEMENTS:
        raise reader.error(start, f"shape {list(shape)} is absurd")
    return count


def _add_span(reader: WireReader, spans: List[Span], kind: int, value: int, stop: int, tag_at: int) -> None:
    """Adds the values of one field to those before; values without packing become one span as long as they touch."""
    if kind == LENGTH:
        span = Span(value, stop)
    else:
        tag_size = _varint_size(reader, tag_at)
        span = Span(tag_at, stop, tag_size)
        if spans and spans[-1].stop == tag_at and spans[-1].tag_size == tag_size:
            spans[-1] = Span(spans[-1].start, stop, tag_size)
            return
    if len(spans) >= _MAX_SPANS:
        raise reader.error(tag_at, f"the values are in more than {_MAX_SPANS} pieces")
    spans.append(span)


def _varint_size(reader: WireReader, position: int) -> int:
    start = position
    while reader.byte(position) >= 0x80:
        position += 1
    return position + 1 - start
