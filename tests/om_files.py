"""Offline models made from text graphs, with google.protobuf and a schema of its own."""

from __future__ import annotations

import importlib.util
import struct
from pathlib import Path
from typing import Any

#: Classes of GE's messages for the benchmark, made from the field numbers of FORMATS.md §4.
_SCHEMA = Path(__file__).resolve().parents[1] / "scripts" / "ge_schema.py"


def model_def(text: str) -> Any:
    """The ModelDef of a text graph, read by google.protobuf."""
    from google.protobuf import text_format

    spec = importlib.util.spec_from_file_location("ge_schema_for_tests", _SCHEMA)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    message = module.model_def_class()()
    text_format.Parse(text, message)
    return message


def om_bytes(
    *models: bytes, name: str = "net", weights: bytes = b"\x01" * 96, is_wide: bool = True, encrypted: bool = False
) -> bytes:
    """An `.om` of these ModelDefs. `is_wide`: the table of today, with 64-bit numbers."""
    body = b""
    for model in models:
        parts = [(0, model), (1, weights)]
        table = struct.pack("<I4x" if is_wide else "<I", len(parts))
        offset = 0
        for kind, data in parts:
            table += struct.pack("<I4xQQ" if is_wide else "<III", kind, offset, len(data))
            offset += len(data)
        body += table + b"".join(data for _, data in parts)
    header = b"IMOD" + struct.pack("<II", 256, 0x10000000) + bytes(64)
    header += struct.pack("<IBBBB", 0 if is_wide else len(body), encrypted, 1, 0, 0)
    header += name.encode().ljust(32, b"\0") + struct.pack("<I", 7) + bytes(32)
    header += struct.pack("<II", 2, len(models) if len(models) > 1 else 0) + b"1.83.T2".ljust(20, b"\0")
    header += bytes(4) + struct.pack("<Q", len(body) if is_wide else 0)
    return header.ljust(256, b"\0") + body
