"""Dump files of GE: v2 (length, `DumpData` header, raw bytes) and v1 (`DumpData` with the bytes inside).

Field numbers and order are those of FORMATS.md §2. Only the header is read; tensors are described by where
their bytes lie. A tensor whose description or bytes are damaged costs itself only, the others of the file stay.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from math import prod

from precision_tool.lib.collect.wire import LENGTH, VARINT, WireReader
from precision_tool.lib.errors import FormatError
from precision_tool.lib.formats.ffts import parse_slicing
from precision_tool.lib.io.files import open_file
from precision_tool.lib.io.stores import StoredFile
from precision_tool.lib.model.tensor import OpDump, Slicing, Tensor
from precision_tool.lib.numbers import data_types

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
    known = _shapes.get(stored) if stored is not None else None
    if known is not None:
        return [*known]
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
            fields = {one: (begin, stop) for one, how, begin, stop, _ in wire.fields(value, end) if how == LENGTH}
            begin, stop = fields.get(_ATTR_VALUE, (0, 0))
            header.slicing = parse_slicing(wire.bytes_at(begin, stop)) if begin < stop else None
        if len(header.inputs) + len(header.outputs) > _MAX_SLOTS:
            raise FormatError.of(wire.path, f"more than {_MAX_SLOTS} inputs and outputs", "dump this op again")
    return header


def _origin_shape(slot: _Slot) -> tuple[int, ...] | None:
    """The shape before the storage layout; None where the header gives none or one with unknown dimensions."""
    dims = slot.original_shape
    if dims is None or len(dims) > data_types.MAX_RANK or max(dims, default=0) >= 1 << 63:
        return None
    return None if data_types.is_impossible(dims) else tuple(dims)


class _ShortError(FormatError):
    """The header gives a tensor fewer bytes than its shape needs; all of them are there."""

    def __init__(self, message: str, hint: str, declared: Tensor) -> None:
        super().__init__(message, hint)
        self.declared = declared


def _tensor(path: str, slot: _Slot, offset: int, nbytes: int, file_size: int) -> Tensor:
    """The tensor of a slot whose bytes start at `offset`; FormatError says what about it is wrong."""
    hint = "dump this op again"
    if len(slot.shape) > data_types.MAX_RANK:
        raise FormatError.within(f"a shape of more than {data_types.MAX_RANK} dimensions", hint)
    if max(slot.shape, default=0) >= 1 << 63:
        raise FormatError.within(f"shape {slot.shape[:8]} has a negative or unknown dimension", hint)
    data_types.refuse_impossible(slot.shape)
    layout = data_types.LAYOUTS.get(slot.format)
    if layout is None:
        # GE packs the sub-format and C0 into the upper bytes of the layout number.
        layout = data_types.LAYOUTS.get(slot.format & 0xFF) if slot.format > 0xFF else None
    data_type = data_types.BY_CODE.get(slot.data_type)
    if data_type is None:
        raise FormatError.within(f"unknown data type {slot.data_type}", "a newer CANN wrote it: tell us the release")
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
        message = f"shape {slot.shape} of {data_type.name} needs {needed} bytes, the header gives {nbytes}"
        raise FormatError.within(message, hint) if offset + nbytes > file_size else _ShortError(message, hint, tensor)
    if offset + nbytes > file_size:
        raise FormatError.within(
            f"its bytes {offset} to {offset + nbytes} lie past the end of the file ({file_size} bytes): "
            "the file is cut off or its header is damaged",
            hint,
        )
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
        raise FormatError.of(path, "the file is empty", "the dump was interrupted or the disk was full: dump again")
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
        reason = f"the header length at byte 0 is {claimed}, the file has {file.size} bytes"
    elif length is None:
        reason = f"the file has only {file.size} bytes"
    else:
        reason = f"the {length} bytes from byte 8 are no dump header"
    return FormatError.of(path, f"not a dump file, or damaged: {reason}", "copy it or dump it again")


def _assemble(path: str, header: _Header, file_size: int, data_start: int | None) -> OpDump:
    """Places the slots: one after the other from `data_start` (v2), or where their `data` field lies (v1)."""
    sides: dict[str, list[Tensor | None]] = {"input": [], "output": []}
    bad: list[tuple[str, str]] = []
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
                bad.append((f"{side}:{index}", error.advice))
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
