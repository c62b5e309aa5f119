"""Overflow status files, `Opdebug.Node_OpDebug.*`: what the device says of an overflow (formats.md §6).

They are dump files whose outputs hold a structure of little-endian numbers, of one of two kinds, which is given as the
dict that msaccucmp writes as JSON: the same names, addresses as hexadecimal text.
"""

from __future__ import annotations

import struct
from typing import Any

from precision_tool.lib.errors import FormatError
from precision_tool.lib.formats.files import LocalFile
from precision_tool.lib.formats.ge_dump import read_dump
from precision_tool.lib.model.tensor import Tensor

MAGIC = 0x5A5A5A5A
_TASK = ("model_id", "stream_id", "task_id", "task_type")
_CORE = (*_TASK, "context_id", "thread_id", "pc_start", "para_base", "core_id", "block_id", "status")
#: Units by number: name, and the fields of their record.
_UNITS: dict[int, tuple[str, tuple[str, ...]]] = {
    0: ("AIC", _CORE),
    1: ("AIV", _CORE),
    2: ("AICPU", (*_TASK, "context_id", "cpu_id", "thread_id", "status")),
    3: ("SDMA", (*_TASK, "context_id", "thread_id", "src_addr", "dst_addr", "channel_id", "status")),
}
_ADDRESSES = frozenset({"pc_start", "para_base", "src_addr", "dst_addr", "kernel_code"})
#: In version 1 the status of a core is a list.
_STATUS_WORDS = 4
_HEAD = struct.Struct("<6I")
#: The old kind: three records of what ran, then the status of each.
_OLD_SIZE = 2048
_OLD_FIELDS = (*_TASK, "pc_start", "para_base")
_OLD_RECORDS = (("DHA Atomic Add", 0, 512), ("L2 Atomic Add", 128, 768), ("AI Core", 256, 1024))
_HINT = "dump the overflow again, or tell us the CANN release that wrote it"


def read_opdebug(path: str) -> list[dict[str, Any]]:
    """The decoded status of every output of a status file. FormatError says what cannot be decoded."""
    dump = read_dump(path)
    found = []
    with LocalFile(path) as file:
        for index, tensor in enumerate(dump.outputs):
            if not isinstance(tensor, Tensor):
                why = next((why for slot, why in dump.bad_slots if slot == f"output:{index}"), "it is damaged")
                raise FormatError(f"{path}: output {index}: {why}", _HINT)
            try:
                found.append(decode_opdebug(file.read_at(tensor.offset, tensor.nbytes)))
            except FormatError as error:
                raise FormatError(f"{path}: output {index}: {error.message}", error.hint) from None
    if not found:
        raise FormatError(f"{path}: no status in this file: it has no output", _HINT)
    return found


def decode_opdebug(data: bytes) -> dict[str, Any]:
    """The status in the bytes of one output."""
    if len(data) >= _HEAD.size and _HEAD.unpack_from(data)[0] == MAGIC:
        return _new(data)
    if len(data) != _OLD_SIZE:
        raise FormatError(
            f"{len(data)} bytes that do not begin with the number {MAGIC:#x}; the old kind has {_OLD_SIZE}", _HINT
        )
    return {name: _old_record(data, at, status_at) for name, at, status_at in _OLD_RECORDS}


def _new(data: bytes) -> dict[str, Any]:
    magic, version, valid, unit, reserved, length = _HEAD.unpack_from(data)
    if unit not in _UNITS:
        raise FormatError(f"the unit {unit} is not known", _HINT)
    name, fields = _UNITS[unit]
    is_list = version == 1 and name in ("AIC", "AIV")
    count = len(fields) + (_STATUS_WORDS - 1 if is_list else 0)
    if len(data) < _HEAD.size + 8 * count:
        raise FormatError(f"{len(data)} bytes are too few for a status of {name}", _HINT)
    words = struct.unpack_from(f"<{count}Q", data, _HEAD.size)
    record: dict[str, Any] = dict(zip(fields, words, strict=False))
    if is_list:
        record["status"] = list(words[len(fields) - 1 :])
    return {
        "magic": hex(magic),
        "version": version,
        "acc_list": {
            "valid": valid, "acc_type": name, "rsv": reserved, "data_len": length, "data": _with_addresses(record),
        },
    }  # fmt: skip


def _old_record(data: bytes, at: int, status_at: int) -> dict[str, Any]:
    record: dict[str, Any] = dict(zip(_OLD_FIELDS, struct.unpack_from("<6Q", data, at), strict=True))
    names = ("kernel_code", "block_idx", "status") if status_at == 1024 else ("status",)
    record |= zip(names, struct.unpack_from(f"<{len(names)}Q", data, status_at), strict=True)
    return _with_addresses(record)


def _with_addresses(record: dict[str, Any]) -> dict[str, Any]:
    return {name: hex(value) if name in _ADDRESSES else value for name, value in record.items()}
