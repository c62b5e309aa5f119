"""Offline models made from text graphs, with google.protobuf and a schema of its own."""

from __future__ import annotations

import importlib.util
import struct
from pathlib import Path
from typing import Any

#: Classes of GE's messages for the benchmark, made from the field numbers of FORMATS.md §4.
_SCHEMA = Path(__file__).resolve().parents[1] / "scripts" / "benchmarks" / "ge_schema.py"


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


def compressed(model: Any) -> Any:
    """The ModelDef with the attributes of its ops and tensors as GE's ModelCompressManager writes them."""
    names: list[str] = []
    is_text: list[bool] = []
    texts: list[bytes] = []

    def number(value: bytes) -> int:
        if value not in texts:
            texts.append(value)
        return texts.index(value)

    for graph in model.graph:
        for op in graph.op:
            for holder in (op, *op.input_desc, *op.output_desc):
                for entry in holder.attr:
                    kind = entry.value.WhichOneof("value") if entry.value.DESCRIPTOR.oneofs else _kind(entry.value)
                    strings = entry.value.list.s if kind == "list" else []
                    if entry.key not in names:
                        names.append(entry.key)
                        is_text.append(kind == "s" or bool(strings))
                    entry.key = _encoded(names.index(entry.key))
                    if kind == "s":
                        count = number(_raw(entry.value.s))
                        entry.value.Clear()
                        entry.value.i = count
                    elif strings:
                        counts = [number(_raw(text)) for text in strings]
                        kept = entry.value.list.val_type
                        entry.value.list.Clear()
                        if kept:  # VT_LIST_INT
                            entry.value.list.val_type = "VT_LIST_INT" if isinstance(kept, str) else 2
                        entry.value.list.i.extend(counts)
    for key, field, values in (("attr_name_enum", "s", names), ("attr_value_enum", "s", texts),
                               ("attrs_use_string_value", "b", is_text)):  # fmt: skip
        entry = model.attr.add(key=key)
        getattr(entry.value.list, field).extend(
            [value.decode("latin-1") if isinstance(value, bytes) else value for value in values]
        )
    model.attr.add(key="om_compress_version").value.i = 1
    return model


def _kind(value: Any) -> str:
    return str(next((field.name for field, _ in value.ListFields()), ""))


def _raw(text: str | bytes) -> bytes:
    return text.encode("latin-1") if isinstance(text, str) else text


def _encoded(number: int) -> str:
    """EnumAttrUtils::Encode."""
    text = "\0"
    while True:
        number, digit = divmod(number, 127)
        text += chr(digit + 1)
        if not number:
            return text


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
