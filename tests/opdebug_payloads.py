"""Overflow status payloads, byte by byte from the documented layout (FORMATS.md §6)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from builders import TIMESTAMP, write_dump

from precision_tool.lib.demo.dump_writer import OutTensor

MAGIC = b"\x5a\x5a\x5a\x5a"
AIC, AIV, AICPU, SDMA = range(4)


def u64(*values: int) -> bytes:
    """Little-endian words of 64 bits."""
    return b"".join(value.to_bytes(8, "little") for value in values)


def u32(*values: int) -> bytes:
    """Little-endian words of 32 bits."""
    return b"".join(value.to_bytes(4, "little") for value in values)


def old_payload(
    *,
    core: int = 0,
    l2: int = 0,
    dha: int = 0,
    model: int = 1,
    stream: int = 0,
    task: int = 0,
    kernel_code: int = 0x1008_005A_E000,
    block: int = 3,
) -> bytes:
    """128 + 128 + 256 bytes of information, then 256 + 256 + 1024 bytes of statuses."""
    info = u64(model, stream, task, 0, 0x1008_005B_0000, 0x1008_0029_7000)
    parts = [
        info.ljust(128, b"\0"),
        info.ljust(128, b"\0"),
        info.ljust(256, b"\0"),
        u64(dha).ljust(256, b"\0"),
        u64(l2).ljust(256, b"\0"),
        u64(kernel_code, block, core).ljust(1024, b"\0"),
    ]
    return b"".join(parts)


def new_payload(
    kind: int,
    fields: Sequence[int],
    *,
    version: int = 0,
    valid: int = 1,
    data_len: int | None = None,
    size: int = 2048,
) -> bytes:
    """Magic, version, valid, acc_type, rsv, data_len (32 bits each), then the fields (64 bits each)."""
    length = 8 * len(fields) if data_len is None else data_len
    return (MAGIC + u32(version, valid, kind, 0, length) + u64(*fields)).ljust(size, b"\0")


def core_fields(
    status: Sequence[int] = (0x20,), *, task: int = 0, stream: int = 0, model: int = 1, context: int = 65535,
    thread: int = 65535,
) -> list[int]:  # fmt: skip
    """The fields of an AI Core's record."""
    return [model, stream, task, 0, context, thread, 0x1000_1240_8004_1000, 0x1000_1240_8005_0000, 2, 5, *status]


def write_status(
    folder: Path, payload: bytes, *, task: int = 77, stream: int = 9, timestamp: int = TIMESTAMP + 500, ffts: str = ""
) -> Path:
    """A status file; its own task and stream are not those of the op."""
    tensor = OutTensor(data=payload, dtype="uint8", shape=(len(payload),))
    return write_dump(folder / f"Opdebug.Node_OpDebug.{task}.{stream}.{timestamp}{ffts}", "Node_OpDebug", [], [tensor])
