"""`.safetensors` files, made byte by byte."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

#: The types of the format by the names of numpy and ml_dtypes.
TYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "complex64": "C64", "float8_e5m2": "F8_E5M2", "float8_e4m3fn": "F8_E4M3", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip


def with_header(header: Any, data: bytes = b"") -> bytes:
    """A file with such a header: an object, or the text of one."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str, shape: list[Any], begin: int, end: int) -> dict[str, Any]:
    """What a header has of a tensor."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors_bytes(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """A file of these arrays, in their order."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    data = b""
    for name, value in tensors.items():
        array = np.asarray(value)
        header[name] = entry(TYPES[array.dtype.name], list(array.shape), len(data), len(data) + array.nbytes)
        data += array.tobytes()
    return with_header(header, data)
