"""Stored bytes to float32 or float64 (64-bit integers also as they are), into the caller's buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.io import data_types
from precision_tool.lib.io.data_types import DataType
from precision_tool.lib.io.native.library import Library, address, library

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]
#: Integers that float64 cannot hold.
LongIntegers = npt.NDArray[np.int64] | npt.NDArray[np.uint64]
Numbers = Floats | LongIntegers
Decode = Callable[[Bytes, Numbers], None]

#: Types whose every value is a float32; the others are compared in float64.
_EXACT_IN_FLOAT32 = frozenset({"float32", "float16", "int8", "uint8", "int16", "uint16", "bool", "complex64"})


def compute_type(*types: DataType) -> np.dtype:
    """float32 when it holds every value of all `types`, else float64."""
    small = all(t.decode != "numpy" or t.numpy_name in _EXACT_IN_FLOAT32 for t in types)
    return np.dtype(np.float32 if small else np.float64)


def compute_types(npu: DataType, golden: DataType) -> tuple[np.dtype, np.dtype]:
    """What both sides of a comparison are read as: `compute_type`, but two 64-bit integers as they are.

    As float64 they would be rounded beyond 2**53, and small errors with them.
    """
    if {npu.numpy_name, golden.numpy_name} <= {"int64", "uint64"}:
        return np.dtype(npu.numpy_name), np.dtype(golden.numpy_name)
    dtype = compute_type(npu, golden)
    return dtype, dtype


def reals_per_element(data_type: DataType) -> int:
    """2 for complex types, which are compared as real and imaginary parts, else 1."""
    return 2 if data_type.is_complex else 1


def _cast(stored: npt.NDArray[Any], out: Numbers) -> None:
    with np.errstate(all="ignore"):  # numpy warns of NaNs whose quiet bit is not set, which random bytes can be
        np.copyto(out, stored, casting="unsafe")


def as_float64(numbers: Numbers) -> npt.NDArray[np.float64]:
    """A float64 copy, without numpy's warning of a NaN whose quiet bit is not set."""
    copy = np.empty(numbers.shape, np.float64)
    _cast(numbers, copy)
    return copy


def _compiled(stored: npt.NDArray[Any], out: Numbers) -> Library | None:
    """The compiled kernel, if there is one and it takes these: as many stored numbers as float32 are wanted."""
    fits = stored.size == out.size and stored.flags.c_contiguous and out.flags.c_contiguous and out.dtype == np.float32
    return library() if fits else None


def _decode_float16(raw: Bytes, out: Numbers) -> None:
    """Shifts exponent and mantissa into place and rescales: six times as fast as numpy's own cast.

    The sign-extended shift puts the 15 value bits at 13..27; the multiplication corrects the exponent bias and
    is exact, subnormals included. Only Inf and NaN come out wrong, so blocks with any are cast the slow way.
    """
    half = raw.view(np.int16)
    compiled = _compiled(half, out)
    if compiled is not None:
        compiled.functions.pt_decode_float16(address(half), address(out), out.size)
        return
    unsigned = raw.view(np.uint16)
    if half.size and (half.max() >= 0x7C00 or unsigned.max() >= 0xFC00):
        _cast(raw.view(np.float16), out)
        return
    bits = out.view(np.int32)
    np.left_shift(half, 13, out=bits, dtype=np.int32)
    np.bitwise_and(bits, np.int32(0x8FFFE000 - (1 << 32)), out=bits)
    np.multiply(out, np.float32(2.0**112), out=out)


def _decode_bfloat16(raw: Bytes, out: Numbers) -> None:
    compiled = _compiled(raw.view(np.uint16), out)
    if compiled is not None:
        compiled.functions.pt_decode_bfloat16(address(raw), address(out), out.size)
    elif out.dtype == np.float32:
        np.left_shift(raw.view(np.uint16), 16, out=out.view(np.uint32), dtype=np.uint32)
    else:
        widened = np.empty(out.size, np.float32)
        _decode_bfloat16(raw, widened)
        _cast(widened, out)


def _table_decoder(numpy_name: str) -> Decode:
    table = data_types.value_table(numpy_name)

    def decode(raw: Bytes, out: Numbers) -> None:
        compiled = _compiled(raw, out)
        if compiled is not None:
            compiled.functions.pt_decode_byte(address(raw), address(table), address(out), out.size)
        elif out.dtype == np.float32:
            np.take(table, raw, out=out, mode="clip")
        else:
            np.copyto(out, table[raw])

    return decode


def _packed_decoder(data_type: DataType) -> Decode:
    """Several elements a byte, the first in the lowest bits; six-bit types run across byte borders.

    Single bits begin with the highest one, as the vendor's tool reads them.
    """
    table = data_types.value_table(data_type.numpy_name)
    bits = data_type.bits

    def decode(raw: Bytes, out: Numbers) -> None:
        if 8 % bits == 0:
            shifts = np.arange(0, 8, bits, dtype=np.uint8)[:: -1 if bits == 1 else 1]
            codes = (raw[:, None] >> shifts).reshape(-1)
        else:
            stream = np.unpackbits(raw, bitorder="little")
            flags = stream[: stream.size // bits * bits].reshape(-1, bits)
            codes = np.packbits(flags, axis=1, bitorder="little").reshape(-1)
        np.copyto(out, table[codes[: out.size]])

    return decode


def decoder(data_type: DataType, *, packed: bool = False, big_endian: bool = False) -> Decode:
    """A function that decodes a block of bytes into `out` (float32 or float64, one item a real number).

    `packed` says that a type below eight bits really has several elements a byte (some dumps use a byte each).
    """
    if data_type.decode == "none":
        raise ValueError(f"{data_type.name} has no numbers")
    if data_type.decode == "bfloat16":
        return _decode_bfloat16
    if data_type.decode == "packed" and packed:
        return _packed_decoder(data_type)
    if data_type.decode in ("table8", "packed"):
        return _table_decoder(data_type.numpy_name)
    dtype = np.dtype(data_type.numpy_name)
    if dtype == np.float16 and not big_endian:
        return lambda raw, out: (
            _decode_float16(raw, out) if out.dtype == np.float32 else _cast(raw.view(np.float16), out)
        )
    if dtype.kind == "c":  # as pairs of reals
        dtype = np.dtype(f"f{dtype.itemsize // 2}")
    if dtype.kind == "b":
        dtype = np.dtype(np.uint8)  # a byte that is neither 0 nor 1 stays visible
    stored = dtype.newbyteorder(">" if big_endian else "<")

    def decode(raw: Bytes, out: Numbers) -> None:
        _cast(raw.view(stored), out)

    return decode
