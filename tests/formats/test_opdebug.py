"""Overflow status files by their bytes."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from builders import write_dump

from precision_tool.lib.demo.dump_writer import OutTensor
from precision_tool.lib.errors import FormatError
from precision_tool.lib.formats.opdebug import decode_opdebug, read_opdebug


def test_the_new_kind() -> None:
    words = (1, 0, 12, 0, 65535, 65535, 0x1000124080041000, 0x1000124080050000, 0, 3, 0x20)
    data = struct.pack("<6I11Q", 0x5A5A5A5A, 0, 1, 0, 0, 88, *words)
    assert decode_opdebug(data) == {
        "magic": "0x5a5a5a5a",
        "version": 0,
        "acc_list": {
            "valid": 1, "acc_type": "AIC", "rsv": 0, "data_len": 88,
            "data": {
                "model_id": 1, "stream_id": 0, "task_id": 12, "task_type": 0, "context_id": 65535, "thread_id": 65535,
                "pc_start": "0x1000124080041000", "para_base": "0x1000124080050000", "core_id": 0, "block_id": 3,
                "status": 32,
            },
        },
    }  # fmt: skip


def test_a_list_of_states() -> None:
    data = struct.pack("<6I14Q", 0x5A5A5A5A, 1, 1, 1, 0, 112, *range(14))
    found = decode_opdebug(data)["acc_list"]
    assert found["acc_type"] == "AIV"
    assert found["data"]["status"] == [10, 11, 12, 13]


def test_the_old_kind() -> None:
    data = bytearray(2048)
    for at, first in ((0, 100), (128, 200), (256, 300)):
        struct.pack_into("<6Q", data, at, *range(first, first + 6))
    struct.pack_into("<Q", data, 512, 9)
    struct.pack_into("<Q", data, 768, 8)
    struct.pack_into("<3Q", data, 1024, 255, 6, 0x100)
    found = decode_opdebug(bytes(data))
    assert list(found) == ["DHA Atomic Add", "L2 Atomic Add", "AI Core"]
    assert [record["status"] for record in found.values()] == [9, 8, 256]
    assert found["AI Core"] == {
        "model_id": 300, "stream_id": 301, "task_id": 302, "task_type": 303, "pc_start": "0x130", "para_base": "0x131",
        "kernel_code": "0xff", "block_idx": 6, "status": 256,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (bytes(100), "100 bytes that do not begin with the number 0x5a5a5a5a"),
        (struct.pack("<6I", 0x5A5A5A5A, 0, 1, 9, 0, 88) + bytes(88), "the unit 9 is not known"),
        (struct.pack("<6I", 0x5A5A5A5A, 0, 1, 0, 0, 88) + bytes(80), "104 bytes are too few for a status of AIC"),
    ],
)
def test_damage(tmp_path: Path, data: bytes, said: str) -> None:
    tensor = OutTensor(data=data, dtype="uint8", shape=(len(data),))
    path = write_dump(tmp_path / "Opdebug.Node_OpDebug.1.0.1772443800000000", "Node_OpDebug", [], [tensor])
    with pytest.raises(FormatError) as caught:
        read_opdebug(str(path))
    assert said in caught.value.message
    assert "output 0" in caught.value.message
