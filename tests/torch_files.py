"""`.pt` files as `torch.save` writes them, made byte by byte without torch, and as they should not be."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

#: The storages of torch's types, by the names of numpy and ml_dtypes; the others have a storage of bytes.
STORAGES = {
    "float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16", "uint8": "Byte", "int8": "Char",
    "int16": "Short", "int32": "Int", "int64": "Long", "bool": "Bool", "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
}  # fmt: skip
_HOOKS = b"ccollections\nOrderedDict\n)R"


def text(value: str) -> bytes:
    """BINUNICODE."""
    data = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<L", len(data)) + data


def whole(value: int) -> bytes:
    """A whole number, as short as pickle writes it."""
    if 0 <= value < 256:
        return b"K" + struct.pack("<B", value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<l", value)
    data = value.to_bytes((value.bit_length() >> 3) + 1, "little", signed=True)
    return b"\x8a" + struct.pack("<B", len(data)) + data


def sizes(values: Sequence[int]) -> bytes:
    """A tuple of whole numbers."""
    if not values:
        return b")"
    body = b"".join(map(whole, values))
    return body + (b"\x85", b"\x86", b"\x87")[len(values) - 1] if len(values) <= 3 else b"(" + body + b"t"


def storage(dtype: str, count: int, key: str = "0") -> bytes:
    """A persistent id of a storage."""
    kind = f"torch\n{STORAGES[dtype]}Storage" if dtype in STORAGES else "torch.storage\nUntypedStorage"
    return b"(" + text("storage") + b"c" + kind.encode() + b"\n" + text(key) + text("cpu") + whole(count) + b"tQ"


def tensor_opcodes(
    dtype: str,
    count: int,
    shape: Sequence[int],
    strides: Sequence[int],
    offset: int = 0,
    *,
    function: str = "",
    more: bytes = b"",
) -> bytes:
    """What builds a tensor; `more` is put behind its arguments."""
    if dtype not in STORAGES:
        more = b"ctorch\n" + dtype.encode() + b"\n" + more
    name = function or ("torch._utils\n_rebuild_tensor_v2" if dtype in STORAGES else "torch._utils\n_rebuild_tensor_v3")
    arguments = storage(dtype, count) + whole(offset) + sizes(shape) + sizes(strides) + b"\x89" + _HOOKS + more
    return b"c" + name.encode() + b"\n(" + arguments + b"tR"


def pickled(opcodes: bytes) -> bytes:
    """A pickle of protocol 2."""
    return b"\x80\x02" + opcodes + b"."


def archive(entries: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """A zip archive of these entries."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as made:
        for name, data in entries.items():
            made.writestr(zipfile.ZipInfo(name), data, compression)
    return file.getvalue()


def torch_entries(opcodes: bytes, data: bytes, byteorder: bytes = b"little") -> dict[str, bytes]:
    """The entries of a file with such a pickle and storage."""
    return {
        "name/data.pkl": pickled(opcodes),
        "name/byteorder": byteorder,
        "name/data/0": data,
        "name/version": b"3\n",
    }


def torch_bytes(array: Any, strides: Sequence[int] | None = None, offset: int = 0, shape: Any = None) -> bytes:
    """A file of an array, or of a view of it whose strides and offset are in elements."""
    array = np.asarray(array)
    shape = array.shape if shape is None else shape
    if strides is None:
        strides = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
    count = array.size if array.dtype.name in STORAGES else array.nbytes
    return archive(torch_entries(tensor_opcodes(array.dtype.name, count, shape, strides, offset), array.tobytes()))


def archive_64(entries: Mapping[str, bytes]) -> bytes:
    """The same archive with all its numbers in the fields of 64 bits, as files beyond 4 GB have them."""
    out, directory = io.BytesIO(), b""
    for name, data in entries.items():
        head = struct.pack("<5H3L2H", 45, 0, 0, 0, 0, zlib.crc32(data), len(data), len(data), len(name), 0)
        wide = struct.pack("<2H3Q", 1, 24, len(data), len(data), out.tell())
        none = 0xFFFFFFFF
        directory += b"PK\1\2" + struct.pack("<6H3L", 45, 45, 0, 0, 0, 0, zlib.crc32(data), none, none)
        directory += struct.pack("<5H2L", len(name), len(wide), 0, 0, 0, 0, none) + name.encode() + wide
        out.write(b"PK\3\4" + head + name.encode() + data)
    start = out.tell()
    end = b"PK\6\6" + struct.pack("<Q2H2L4Q", 44, 45, 45, 0, 0, *[len(entries)] * 2, len(directory), start)
    locator = b"PK\6\7" + struct.pack("<LQL", 0, start + len(directory), 1)
    last = b"PK\5\6" + struct.pack("<4H2LH", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return out.getvalue() + directory + end + locator + last
