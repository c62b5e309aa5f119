"""Overflow status files (`Opdebug.Node_OpDebug.*`): dump files whose output is a record of the status registers.

Two payloads are known (FORMATS.md §6): the old one, 2048 bytes with a section for each unit, and the new one, which
begins with a magic number and holds one unit. Both are decoded to the document that the vendor's tool writes as JSON,
under the same names; files that were decoded already are read back. All numbers are little-endian and unsigned.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from precision_tool.lib.io.files import open_file
from precision_tool.lib.io.ge_dump import read_dump
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError, shown_name
from precision_tool.lib.model.tensor import Tensor

MAGIC = 0x5A5A5A5A
OLD_SIZE = 2048
#: A context or thread of this number stands for none.
NO_THREAD = 65535
#: A payload has a few hundred bytes, its JSON a few thousand characters; what is longer is none.
_MAX_BYTES = 1 << 20

AI_CORE, L2, DHA = "AI Core", "L2 Atomic Add", "DHA Atomic Add"

#: The old payload: where the information and the status of each unit begin.
_OLD_INFO = {DHA: 0, L2: 128, AI_CORE: 256}
_OLD_STATUS = {DHA: 512, L2: 768, AI_CORE: 1024}
_OLD_FIELDS = ("model_id", "stream_id", "task_id", "task_type", "pc_start", "para_base")

#: The new payload: units by number, and the 64-bit fields of each.
_UNITS = {0: "AIC", 1: "AIV", 2: "AICPU", 3: "SDMA"}
_TASK = ("model_id", "stream_id", "task_id", "task_type", "context_id")
_CORE = (*_TASK, "thread_id", "pc_start", "para_base", "core_id", "block_id", "status")
_NEW_FIELDS = {
    "AIC": _CORE,
    "AIV": _CORE,
    "AICPU": (*_TASK, "cpu_id", "thread_id", "status"),
    "SDMA": (*_TASK, "thread_id", "src_addr", "dst_addr", "channel_id", "status"),
}
_NEW_HEADER = struct.Struct("<6I")
#: In version 1 the status of these is a list of so many words.
_LISTED, _STATUS_WORDS = ("AIC", "AIV"), 4
_HEXADECIMAL = frozenset({"pc_start", "para_base", "src_addr", "dst_addr", "kernel_code"})

#: The bits of an AI Core's status: kinds below `check.status` in the catalogue.
_CORE_BITS = {
    0x8: "negation",
    0x10: "integer",
    0x20: "floating_point",
    0x80: "negative_to_unsigned",
    0x100: "to_float16",
    0x400: "cube",
}
#: The field in the status of an atomic add: its lowest bit, its mask, and the kinds of its values.
_ATOMIC = {
    L2: (16, 0x7, {1: "overflow", 2: "underflow", 3: "source_nan", 4: "destination_nan", 5: "both_nan"}),
    DHA: (8, 0xFF, {0x9: "overflow", 0xA: "underflow", 0xB: "source_nan", 0xC: "destination_nan", 0xD: "both_nan"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitStatus:
    """What one unit of the chip recorded. The op is the one with this stream and task, not the file's own task.

    `context_id` and `thread_id` are those of an FFTS+ task, None for others. `status` has one word, or several.
    """

    unit: str
    model_id: int
    stream_id: int
    task_id: int
    task_type: int
    context_id: int | None = None
    thread_id: int | None = None
    status: tuple[int, ...] = ()

    @property
    def is_set(self) -> bool:
        """True if any bit of the status is."""
        return any(self.status)

    @property
    def bits(self) -> tuple[Message, ...]:
        """The meaning of every bit that is set."""
        return tuple(bit for number, word in enumerate(self.status) for bit in self._bits(number, word))

    def _bits(self, number: int, word: int) -> Iterator[Message]:
        place = number if len(self.status) > 1 else None
        documented = 0
        if self.unit in _ATOMIC:
            shift, mask, meanings = _ATOMIC[self.unit]
            value = word >> shift & mask
            if value in meanings:
                documented = mask << shift
                yield Message("check.status." + meanings[value], word=place)
        elif self.unit in (AI_CORE, *_LISTED):
            documented = sum(_CORE_BITS)
            yield from core_overflows(word, place)
        if word & ~documented:
            yield Message("check.status.undocumented", status=hex(word & ~documented), word=place)


def core_overflows(status: int, word: int | None = None) -> tuple[Message, ...]:
    """Return the meaning of the bits of an AI Core's status, or of one of its words."""
    return tuple(Message("check.status." + meaning, word=word) for bit, meaning in _CORE_BITS.items() if status & bit)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverflowStatus:
    """The status in one output of a file. `document` is what the vendor's tool writes of it as JSON.

    `notes` say what in it is not as documented.
    """

    path: str
    output: int
    document: Mapping[str, Any]
    units: tuple[UnitStatus, ...]
    notes: tuple[Message, ...] = ()


def read_opdebug(path: str) -> tuple[OverflowStatus, ...]:
    """The status in each output of a status file, or of the JSON it was decoded to. FormatError for what is neither."""
    with open_file(path) as file:
        head = file.read_at(0, min(64, file.size))
        is_text = head.lstrip()[:1] == b"{" and b"\0" not in head
        if is_text:
            if file.size > _MAX_BYTES:
                raise FormatError.of(path, "io.opdebug.too_large", size=file.size)
            return (_read_json(path, file.read_at(0, file.size)),)
    dump = read_dump(path)
    bad = dict(dump.bad_slots)
    statuses = []
    for number, tensor in enumerate(dump.outputs):
        if not isinstance(tensor, Tensor):
            raise FormatError.of(path, "io.opdebug.output", number=number, reason=bad.get(f"output:{number}", "-"))
        if tensor.nbytes > _MAX_BYTES:
            raise FormatError.of(path, "io.opdebug.output_size", number=number, nbytes=tensor.nbytes)
        with open_file(path) as file:
            data = file.read_at(tensor.offset, tensor.nbytes)
        with _named(path, number):
            document, notes = decode_status(data)
            units = _units(document)
        statuses.append(OverflowStatus(path=path, output=number, document=document, units=units, notes=notes))
    if not statuses:
        raise FormatError.of(path, "io.opdebug.no_outputs")
    return tuple(statuses)


@contextmanager
def _named(path: str, output: int | None = None) -> Iterator[None]:
    """Raise what is wrong with a status as an error of its file, or of one output in it."""
    try:
        yield
    except FormatError as error:
        raise FormatError.of(path, "io.opdebug.part", output=output, reason=error.reason_message) from None


def document_text(document: Mapping[str, Any]) -> str:
    """A decoded status just as the vendor's tool writes it."""
    return json.dumps(document, indent=4)


# --- payloads ---------------------------------------------------------------------------------------------------------


def decode_status(data: bytes) -> tuple[dict[str, Any], tuple[Message, ...]]:
    """The document that a payload stands for, and what in it is not as documented; FormatError says what is wrong."""
    if len(data) >= 4 and int.from_bytes(data[:4], "little") == MAGIC:
        return _decode_new(data)
    if len(data) != OLD_SIZE:
        raise FormatError.within("io.opdebug.size", size=len(data), magic=MAGIC, expected=OLD_SIZE)
    return _decode_old(data), ()


def _numbers(names: tuple[str, ...], data: bytes, start: int) -> dict[str, Any]:
    values = struct.unpack_from(f"<{len(names)}Q", data, start)
    return {name: hex(value) if name in _HEXADECIMAL else value for name, value in zip(names, values, strict=True)}


def _decode_old(data: bytes) -> dict[str, Any]:
    document = {}
    for unit, start in _OLD_INFO.items():
        names = ("kernel_code", "block_idx", "status") if unit == AI_CORE else ("status",)
        document[unit] = _numbers(_OLD_FIELDS, data, start) | _numbers(names, data, _OLD_STATUS[unit])
    return document


def _decode_new(data: bytes) -> tuple[dict[str, Any], tuple[Message, ...]]:
    if len(data) < _NEW_HEADER.size:
        raise FormatError.within("io.opdebug.cut_off_header", size=len(data))
    magic, version, valid, kind, reserved, length = _NEW_HEADER.unpack_from(data)
    unit = _UNITS.get(kind)
    if unit is None:
        units = tuple(f"{number} {name}" for number, name in _UNITS.items())
        raise FormatError.within("io.opdebug.unit", code=kind, units=units)
    names = _NEW_FIELDS[unit]
    words = 1
    if unit in _LISTED and (version == 1 or (version > 1 and length == 8 * (len(names) - 1 + _STATUS_WORDS))):
        words = _STATUS_WORDS
    size = 8 * (len(names) - 1 + words)
    if len(data) < _NEW_HEADER.size + size:
        raise FormatError.within("io.opdebug.cut_off", size=len(data), unit=unit, needed=_NEW_HEADER.size + size)
    notes = []
    if version > 1:
        notes.append(Message("row.io.status_version", version=version))
    if valid != 1:
        notes.append(Message("row.io.status_invalid", valid=valid))
    if length != size:
        notes.append(Message("row.io.status_length", length=length, unit=unit, size=size))
    fields = _numbers(names[:-1], data, _NEW_HEADER.size)
    status = list(struct.unpack_from(f"<{words}Q", data, _NEW_HEADER.size + 8 * (len(names) - 1)))
    fields["status"] = status if words > 1 else status[0]
    record = {"valid": valid, "acc_type": unit, "rsv": reserved, "data_len": length, "data": fields}
    return {"magic": hex(magic), "version": version, "acc_list": record}, tuple(notes)


# --- decoded files ----------------------------------------------------------------------------------------------------


def _read_json(path: str, text: bytes) -> OverflowStatus:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise FormatError.of(path, "io.opdebug.not_json", reason=reason) from error
    if not isinstance(document, dict):
        raise FormatError.of(path, "io.opdebug.not_object", type=type(document).__name__)
    with _named(path):
        units = _units(document)
    return OverflowStatus(path=path, output=_output_of(path), document=document, units=units)


def _output_of(path: str) -> int:
    """The number in `….output.N.json`."""
    number = path.removesuffix(".json").rpartition(".output.")[2]
    return int(number) if number.isascii() and number.isdecimal() and len(number) < 6 else 0


def _units(document: Mapping[str, Any]) -> tuple[UnitStatus, ...]:
    """The units of a document, in the order in which it has them."""
    records: list[tuple[str, Any]] = []
    if "acc_list" in document:
        listed = document["acc_list"]
        for record in listed if isinstance(listed, list) else [listed]:
            fields = record if isinstance(record, dict) else {}
            records.append((str(fields.get("acc_type")), fields.get("data")))
    else:
        records = [(unit, document[unit]) for unit in _OLD_INFO if unit in document]
    if not records:
        raise FormatError.within("io.opdebug.no_units", unit=AI_CORE)
    return tuple(_unit(name, fields) for name, fields in records)


def _unit(name: str, fields: Any) -> UnitStatus:
    if not isinstance(fields, dict):
        raise FormatError.within("io.opdebug.no_fields", name=shown_name(name))

    def number(key: str) -> int:
        return _number(fields.get(key, 0), key)

    def thread(key: str) -> int | None:
        value = number(key) if key in fields else NO_THREAD
        return None if value == NO_THREAD else value

    status = fields.get("status", 0)
    words = status if isinstance(status, list) else [status]
    return UnitStatus(
        unit=name,
        model_id=number("model_id"),
        stream_id=number("stream_id"),
        task_id=number("task_id"),
        task_type=number("task_type"),
        context_id=thread("context_id"),
        thread_id=thread("thread_id"),
        status=tuple(_number(word, "status") for word in words),
    )


def _number(value: Any, key: str) -> int:
    if isinstance(value, str) and len(value) <= 20:
        try:
            value = int(value, 0)
        except ValueError:
            value = None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 64:
        raise FormatError.within("io.opdebug.not_64_bits", key=key)
    return value
