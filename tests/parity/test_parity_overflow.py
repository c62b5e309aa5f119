"""Overflow status files: decoded as msaccucmp decodes them."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from builders import TIMESTAMP, write_dump
from vendor import Vendor

from precision_tool.lib.demo.dump_writer import OutTensor
from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.io.opdebug import document_text, read_opdebug

# Another program is run again and again: once, with the newest versions of the dependencies, is enough.
pytestmark = pytest.mark.slow


def new_status(version: int, unit: int, words: int) -> bytes:
    data = struct.pack("<6I", 0x5A5A5A5A, version, 1, unit, 0, 8 * words)
    return (data + struct.pack(f"<{words}Q", *(3 + 1000 * number for number in range(words)))).ljust(2048, b"\0")


PAYLOADS = {
    "old": np.random.default_rng(1).integers(0, 256, 2048, np.uint8).tobytes(),
    "aic": new_status(0, 0, 11),
    "aiv": new_status(0, 1, 11),
    "aicpu": new_status(0, 2, 8),
    "sdma": new_status(0, 3, 10),
    "aic_v1": new_status(1, 0, 14),
    "aiv_v1": new_status(1, 1, 14),
    "aicpu_v1": new_status(1, 2, 8),
}


def test_every_kind(vendor: Vendor, tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    for number, data in enumerate(PAYLOADS.values()):
        tensor = OutTensor(data=data, dtype="uint8", shape=(len(data),))
        write_dump(folder / f"Opdebug.Node_OpDebug.{number}.0.{TIMESTAMP}", "Node_OpDebug", [], [tensor])
    vendor.run("convert", "-d", folder, output=tmp_path / "out")
    for path in sorted(folder.iterdir()):
        text = (tmp_path / "out" / f"{path.name}.output.0.json").read_text("utf-8")
        (mine,) = read_opdebug(str(path))
        assert document_text(mine.document) == text


def test_of_a_network(vendor: Vendor, tmp_path: Path) -> None:
    generate_demo(tmp_path / "data", fault="overflow")
    files = sorted((tmp_path / "data" / "overflow" / "dump").rglob("Opdebug.*"))
    assert files
    for path in files:
        vendor.run("convert", "-d", path, output=tmp_path / "out")
        told = (tmp_path / "out" / f"{path.name}.output.0.json").read_text("utf-8")
        assert [document_text(one.document) for one in read_opdebug(str(path))] == [told]
