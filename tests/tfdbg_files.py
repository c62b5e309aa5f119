"""Run folders of tfdbg, written without TensorFlow: an encoder of `Event` files of its own, and of damaged ones."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

DEVICE = "_tfdbg_device_,job_localhost,replica_0,task_0,device_CPU_0"

#: Numbers of TensorFlow's data types (types.proto), and of the fields of TensorProto that hold their values.
CODES = {
    "float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int16": 5, "int8": 6, "string": 7, "complex64": 8,
    "int64": 9, "bool": 10, "qint8": 11, "quint8": 12, "qint32": 13, "bfloat16": 14, "qint16": 15, "quint16": 16,
    "uint16": 17, "complex128": 18, "float16": 19, "resource": 20, "variant": 21, "uint32": 22, "uint64": 23,
}  # fmt: skip
FIELDS = {
    "float32": 5, "float64": 6, "int32": 7, "uint8": 7, "int16": 7, "int8": 7, "qint8": 7, "quint8": 7, "qint32": 7,
    "qint16": 7, "quint16": 7, "uint16": 7, "complex64": 9, "int64": 10, "bool": 11, "complex128": 12,
    "float16": 13, "bfloat16": 13, "uint32": 16, "uint64": 17,
}  # fmt: skip


def varint(number: int) -> bytes:
    """A number; negative ones as 64-bit two's complement, as protobuf has it."""
    number &= (1 << 64) - 1
    parts = bytearray()
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def number(field: int, value: int) -> bytes:
    """A field that holds a number."""
    return varint(field << 3) + varint(value)


def sized(field: int, content: bytes) -> bytes:
    """A field that holds text, bytes, a message or packed values."""
    return varint(field << 3 | 2) + varint(len(content)) + content


def shape_proto(shape: Iterable[int]) -> bytes:
    """A TensorShapeProto; a size of 0 is the default, so it is not written."""
    return b"".join(sized(2, number(1, size) if size else b"") for size in shape)


def tensor_proto(dtype: str, shape: Iterable[int], *values: bytes) -> bytes:
    """A TensorProto with the value fields as they are given."""
    return number(1, CODES[dtype]) + sized(2, shape_proto(shape)) + b"".join(values)


def content(raw: bytes) -> bytes:
    """The field tensor_content."""
    return sized(4, raw)


def event(tensor: bytes, op: str = "op", slot: int = 0) -> bytes:
    """An Event as DebugIdentity writes it."""
    names = sized(1, op.encode()) + sized(7, f"{op}:{slot}:DebugIdentity".encode())
    value = names + sized(8, tensor) + sized(9, sized(1, sized(1, b"debugger")))
    return b"\x09" + struct.pack("<d", 1.8e15) + sized(5, sized(1, value))


def write_tensor(
    run: Path, op: str, slot: int, time: str | int, tensor: bytes, *, device: str = DEVICE, watch: str = "DebugIdentity"
) -> Path:
    """The file of one tensor in a run folder."""
    *scopes, name = op.split("/")
    path = run.joinpath(device, *scopes, f"{name}_{slot}_{watch}_{time}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(event(tensor, op, slot))
    return path
