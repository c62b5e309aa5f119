"""What the header of a dump tells of an op that FFTS+ ran in slices: the JSON text of its first attribute.

`threadMode` (1: threads, 0: slices the graph names), `slice_instance_num`, `outputCutList` (for each output how many
pieces each axis is cut into) and `output_tensor_slice` (for each thread and output the range of each axis). As
msaccucmp reads them (dump_parse/dump_data_object.py).
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from math import prod
from typing import Any

from precision_tool.lib.io import data_types
from precision_tool.lib.io.files import open_file
from precision_tool.lib.io.stores import StoredFile
from precision_tool.lib.io.wire import LENGTH, VARINT, WireReader
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError
from precision_tool.lib.model.tensor import OpDump, Slicing, Tensor

#: No op is cut into anywhere near as many slices, nor does their description take as long a text.
_MAX_SLICES = 1 << 16
_MAX_TEXT = 4 << 20


def parse_slicing(text: bytes) -> Slicing | None:
    """The slicing that the attribute of a dump's header describes; None for what is no such text."""
    if len(text) > _MAX_TEXT:
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or "threadMode" not in document:
        return None
    count = document.get("slice_instance_num")
    return Slicing(
        is_threaded=bool(document["threadMode"]),
        count=count if type(count) is int and 0 < count <= _MAX_SLICES else None,
        cuts=tuple(_whole(cut) for cut in _listed(document.get("outputCutList"))),
        shapes=tuple(
            tuple(tuple(map(_length, _listed(axes))) for axes in _listed(outputs))
            for outputs in _listed(document.get("output_tensor_slice"))
        ),
    )


def _listed(value: Any) -> list[Any]:
    return value[:_MAX_SLICES] if isinstance(value, list) else []


def _whole(value: Any) -> tuple[int, ...]:
    """Whole numbers; a cut that is none counts as an axis in one piece."""
    return tuple(item if type(item) is int else 1 for item in _listed(value)[: data_types.MAX_RANK])


def _length(axis: Any) -> int:
    """How far a range of an axis reaches; -1 for what is no range, which no shape has."""
    low, high = (axis.get("lower"), axis.get("higher")) if isinstance(axis, dict) else (None, None)
    return high - low if type(low) is int and type(high) is int else -1


# --- Dump files of GE: v2 (length, `DumpData` header, raw bytes) and v1 (`DumpData` with the bytes inside) ---


#: Field numbers of OpInput and OpOutput where they differ: (data, size, original_shape, address).
_INPUT_FIELDS = {4: "data", 5: "size", 6: "original_shape", 8: "address"}
_OUTPUT_FIELDS = {5: "data", 6: "size", 7: "original_shape", 9: "address"}
_COMMON_FIELDS = {1: "data_type", 2: "format", 3: "shape"}
_NUMBERS = frozenset({"data_type", "format", "size", "address"})
_OUTPUT, _INPUT, _BUFFER, _SPACE, _OP_NAME, _ATTR = 3, 4, 5, 8, 6, 7
_ATTR_VALUE = 2
#: As many bytes as most headers have: one read instead of two.
_USUAL_HEADER = 4096
#: A header describes tensors, it does not hold them; a longer one is damage.
_MAX_HEADER = 64 << 20
_MAX_SLOTS = 1 << 16


@dataclass(slots=True)
class _Slot:
    """One OpInput, OpOutput, OpBuffer or Space entry as read."""

    data_type: int = 0
    format: int = 0
    shape: list[int] = field(default_factory=list)
    original_shape: list[int] | None = None
    size: int = 0
    address: int = 0
    data: tuple[int, int] | None = None


def _read_slot(wire: WireReader, start: int, stop: int, names: dict[int, str]) -> _Slot:
    slot = _Slot()
    for number, kind, value, end, _ in wire.fields(start, stop):
        name = _COMMON_FIELDS.get(number) or names.get(number)
        if name in ("shape", "original_shape") and kind == LENGTH:
            setattr(slot, name, _with_dims(wire, value, end, getattr(slot, name) or []))
        elif name == "data" and kind == LENGTH:
            slot.data = (value, end)
        elif name in _NUMBERS and kind == VARINT:
            setattr(slot, name, value)
    return slot


def _with_dims(wire: WireReader, start: int, stop: int, dims: list[int]) -> list[int]:
    """`dims`, and behind them those of a Shape message."""
    stored = wire.bytes_at(start, stop) if not dims and stop - start <= _USUAL_SHAPE else None
    cached = _shapes.get(stored) if stored is not None else None
    if cached is not None:
        return [*cached]
    for number, kind, value, end, _ in wire.fields(start, stop):
        if number == 1 and len(dims) <= data_types.MAX_RANK:
            dims += wire.repeated_ints(kind, value, end, limit=data_types.MAX_RANK + 1)
    if stored is not None:
        if len(_shapes) >= _MOST_SHAPES:
            _shapes.clear()
        _shapes[stored] = tuple(dims)
    return dims


#: Short Shape messages that were read: a network has few shapes, and each many times.
_shapes: dict[bytes, tuple[int, ...]] = {}
_USUAL_SHAPE, _MOST_SHAPES = 64, 4096


@dataclass(slots=True)
class _Header:
    op_name: str = ""
    slicing: Slicing | None = None
    has_attr: bool = False
    inputs: list[_Slot] = field(default_factory=list)
    outputs: list[_Slot] = field(default_factory=list)
    has_blobs: bool = False
    known_fields: int = 0


def _read_header(wire: WireReader, start: int, stop: int) -> _Header:
    header = _Header()
    for number, kind, value, end, _ in wire.fields(start, stop):
        header.known_fields += number <= 9
        if kind != LENGTH:
            continue
        if number == _INPUT:
            header.inputs.append(_read_slot(wire, value, end, _INPUT_FIELDS))
        elif number == _OUTPUT:
            header.outputs.append(_read_slot(wire, value, end, _OUTPUT_FIELDS))
        elif number in (_BUFFER, _SPACE):
            header.has_blobs = True  # they lie behind all tensors, so their sizes move nothing
        elif number == _OP_NAME:
            header.op_name = wire.text(value, end)
        elif number == _ATTR and not header.has_attr:  # msaccucmp reads the first
            header.has_attr = True
            fields = {
                field_number: (begin, stop)
                for field_number, how, begin, stop, _ in wire.fields(value, end)
                if how == LENGTH
            }
            begin, stop = fields.get(_ATTR_VALUE, (0, 0))
            header.slicing = parse_slicing(wire.bytes_at(begin, stop)) if begin < stop else None
        if len(header.inputs) + len(header.outputs) > _MAX_SLOTS:
            raise FormatError.of(wire.path, "io.dump.slots", limit=_MAX_SLOTS)
    return header


def _origin_shape(slot: _Slot) -> tuple[int, ...] | None:
    """The shape before the storage layout; None where the header gives none or one with unknown dimensions."""
    dims = slot.original_shape
    if dims is None or len(dims) > data_types.MAX_RANK or max(dims, default=0) >= 1 << 63:
        return None
    return None if data_types.is_impossible(dims) else tuple(dims)


class _ShortError(FormatError):
    """The header gives a tensor fewer bytes than its shape needs; all of them are there."""

    declared: Tensor


def _tensor(path: str, slot: _Slot, offset: int, nbytes: int, file_size: int) -> Tensor:
    """The tensor of a slot whose bytes start at `offset`; FormatError says what about it is wrong."""
    if len(slot.shape) > data_types.MAX_RANK:
        raise FormatError.within("io.dump.rank", limit=data_types.MAX_RANK)
    if max(slot.shape, default=0) >= 1 << 63:
        raise FormatError.within("io.dump.dimension", shape=slot.shape[:8])
    data_types.refuse_impossible(slot.shape)
    layout = data_types.LAYOUTS.get(slot.format)
    if layout is None:
        # GE packs the sub-format and C0 into the upper bytes of the layout number.
        layout = data_types.LAYOUTS.get(slot.format & 0xFF) if slot.format > 0xFF else None
    data_type = data_types.BY_CODE.get(slot.data_type)
    if data_type is None:
        raise FormatError.within("io.dump.type", code=slot.data_type)
    count = prod(slot.shape)
    needed = data_type.byte_size(count)
    tensor = Tensor(
        path=path,
        offset=offset,
        nbytes=nbytes,
        dtype=data_type.name,
        shape=tuple(slot.shape),
        layout=layout or f"format {slot.format}",
        origin_shape=_origin_shape(slot),
        address=slot.address,
    )
    if data_type.is_numeric and nbytes < needed and not (data_type.bits < 8 and nbytes >= count):
        fields: dict[str, Any] = {"shape": tensor.shape, "dtype": data_type.name, "needed": needed, "nbytes": nbytes}
        if offset + nbytes > file_size:
            raise FormatError.within("io.dump.short", **fields)
        error = _ShortError.within("io.dump.short", **fields)
        error.declared = tensor
        raise error
    if offset + nbytes > file_size:
        raise FormatError.within("io.dump.past_end", start=offset, stop=offset + nbytes, size=file_size)
    return tensor


def _v2_header_length(head: bytes, size: int) -> int | None:
    """The header length of a v2 file of a size, None if the first eight bytes cannot be one."""
    if size < 8:
        return None
    length = int(struct.unpack_from("<Q", head)[0])
    return length if 0 < length <= size - 8 else None


def read_dump(path: str) -> OpDump:
    """The tensors of a v1 or v2 dump file, undecoded.

    Raises FormatError for a file that is no dump file or whose header is damaged, DataNotFoundError when it
    is not there. Tensors that alone are damaged are listed in `bad_slots`.
    """
    with open_file(path) as file:
        return read_dump_file(file)


def read_dump_file(file: StoredFile) -> OpDump:
    """As `read_dump`, of a file that is open."""
    path = file.path
    if file.size == 0:
        raise FormatError.of(path, "io.empty")
    head = file.read_at(0, min(_USUAL_HEADER, file.size))
    length = _v2_header_length(head, file.size)
    header = None

    def read_at(offset: int, count: int) -> bytes:
        return head[offset : offset + count] if offset + count <= len(head) else file.read_at(offset, count)

    if length is not None and length <= _MAX_HEADER:
        try:
            header = _read_header(WireReader(path, 8 + length, read_at), 8, 8 + length)
        except FormatError:
            header = None
    if header is not None and header.known_fields:
        return _assemble(path, header, file.size, data_start=8 + (length or 0))
    try:
        header = _read_header(WireReader(path, file.size, read_at), 0, file.size)
    except FormatError as error:
        raise _not_a_dump(path, file, length) from error
    if not header.known_fields or not (header.inputs or header.outputs or header.has_blobs or header.op_name):
        raise _not_a_dump(path, file, length)
    return _assemble(path, header, file.size, data_start=None)


def _not_a_dump(path: str, file: StoredFile, length: int | None) -> FormatError:
    if length is None and file.size >= 8:
        claimed = struct.unpack("<Q", file.read_at(0, 8))[0]
        return FormatError.of(path, "io.dump.header_length", claimed=claimed, size=file.size)
    if length is None:
        return FormatError.of(path, "io.dump.too_short", size=file.size)
    return FormatError.of(path, "io.dump.header", length=length)


def _assemble(path: str, header: _Header, file_size: int, data_start: int | None) -> OpDump:
    """Places the slots: one after the other from `data_start` (v2), or where their `data` field lies (v1)."""
    sides: dict[str, list[Tensor | None]] = {"input": [], "output": []}
    bad: list[tuple[str, Message]] = []
    declared: list[tuple[str, Tensor]] = []
    position = data_start or 0
    for side, slots in (("input", header.inputs), ("output", header.outputs)):
        for index, slot in enumerate(slots):
            if data_start is None:
                begin, end = slot.data or (0, 0)
            else:
                begin, end = position, position + slot.size
                position = end
            try:
                sides[side].append(_tensor(path, slot, begin, end - begin, file_size))
            except FormatError as error:
                sides[side].append(None)
                bad.append((f"{side}:{index}", error.advice_message))
                if isinstance(error, _ShortError):
                    declared.append((f"{side}:{index}", error.declared))
    return OpDump(
        path=path,
        op_name=header.op_name,
        inputs=tuple(sides["input"]),
        outputs=tuple(sides["output"]),
        bad_slots=tuple(bad),
        declared=tuple(declared),
        slicing=header.slicing,
    )
