"""The data types and storage layouts of GE dumps and graphs, as tables, numbered as in GE's protobuf messages.

`decode` of a type says how its bytes become numbers: `numpy` (a numpy dtype of that name), `bfloat16`,
`table8` (one byte looked up in 256 values), `packed` (several elements a byte) or `none` (no numbers).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.io.native.library import Library, address, library
from precision_tool.lib.messages.errors import FormatError, shown


@dataclass(frozen=True, slots=True)
class DataType:
    """One row of the table. `bits` is the width of one element as stored, packed types below 8."""

    code: int
    name: str
    ge_name: str
    decode: str
    numpy_name: str
    bits: int

    @property
    def is_numeric(self) -> bool:
        """False for strings and resources, which have no numbers to compare."""
        return self.decode != "none"

    @property
    def is_complex(self) -> bool:
        """True for complex types; they are compared as twice as many real numbers."""
        return self.name.startswith("complex")

    @property
    def is_integer(self) -> bool:
        """True for integers of any width; bools are none."""
        return self.numpy_name.startswith(("int", "uint"))

    def byte_size(self, count: int) -> int:
        """Bytes that `count` elements take, packed types rounded up to whole bytes."""
        return (count * self.bits + 7) // 8


def _row(code: int, name: str, ge_name: str, decode: str = "numpy", numpy_name: str = "", bits: int = 0) -> DataType:
    if decode == "numpy":
        numpy_name = numpy_name or name
        bits = np.dtype(numpy_name).itemsize * 8
    return DataType(code, name, ge_name, decode, numpy_name, bits)


_ROWS = (
    _row(0, "undefined", "DT_UNDEFINED", numpy_name="int8"),
    _row(1, "float32", "DT_FLOAT"),
    _row(2, "float16", "DT_FLOAT16"),
    _row(3, "int8", "DT_INT8"),
    _row(4, "uint8", "DT_UINT8"),
    _row(5, "int16", "DT_INT16"),
    _row(6, "uint16", "DT_UINT16"),
    _row(7, "int32", "DT_INT32"),
    _row(8, "int64", "DT_INT64"),
    _row(9, "uint32", "DT_UINT32"),
    _row(10, "uint64", "DT_UINT64"),
    _row(11, "bool", "DT_BOOL"),
    _row(12, "float64", "DT_DOUBLE"),
    _row(13, "string", "DT_STRING", "none"),
    _row(14, "dual_sub_int8", "DT_DUAL_SUB_INT8", numpy_name="int8"),
    _row(15, "dual_sub_uint8", "DT_DUAL_SUB_UINT8", numpy_name="uint8"),
    _row(16, "complex64", "DT_COMPLEX64"),
    _row(17, "complex128", "DT_COMPLEX128"),
    _row(18, "qint8", "DT_QINT8", numpy_name="int8"),
    _row(19, "qint16", "DT_QINT16", numpy_name="int16"),
    _row(20, "qint32", "DT_QINT32", numpy_name="int32"),
    _row(21, "quint8", "DT_QUINT8", numpy_name="uint8"),
    _row(22, "quint16", "DT_QUINT16", numpy_name="uint16"),
    _row(23, "resource", "DT_RESOURCE", "none"),
    _row(27, "bfloat16", "DT_BF16", "bfloat16", "bfloat16", 16),
    _row(28, "int4", "DT_INT4", "packed", "int4", 4),
    _row(29, "uint1", "DT_UINT1", "packed", "uint1", 1),
    _row(30, "int2", "DT_INT2", "packed", "int2", 2),
    _row(31, "uint2", "DT_UINT2", "packed", "uint2", 2),
    _row(32, "complex32", "DT_COMPLEX32", "complex32", "float16", 32),
    _row(33, "hifloat8", "DT_HIFLOAT8", "table8", "hifloat8", 8),
    _row(34, "float8_e5m2", "DT_FLOAT8_E5M2", "table8", "float8_e5m2", 8),
    _row(35, "float8_e4m3fn", "DT_FLOAT8_E4M3FN", "table8", "float8_e4m3fn", 8),
    _row(36, "float8_e8m0", "DT_FLOAT8_E8M0", "table8", "float8_e8m0fnu", 8),
    _row(37, "float6_e3m2", "DT_FLOAT6_E3M2", "packed", "float6_e3m2fn", 6),
    _row(38, "float6_e2m3", "DT_FLOAT6_E2M3", "packed", "float6_e2m3fn", 6),
    _row(39, "float4_e2m1", "DT_FLOAT4_E2M1", "packed", "float4_e2m1fn", 4),
    _row(40, "float4_e1m2", "DT_FLOAT4_E1M2", "packed", "float4_e1m2", 4),
)

_WIDEST = max(row.bits for row in _ROWS)
BY_CODE: dict[int, DataType] = {row.code: row for row in _ROWS}
BY_NAME: dict[str, DataType] = {row.name: row for row in _ROWS}


@dataclass(frozen=True, slots=True)
class FloatLimits:
    """The largest number of a floating-point type, and the bits of its mantissa that are stored."""

    largest: float
    digits: int


#: The floating-point types that values are cast to (IEEE 754; bfloat16: float32 without its lower half; hifloat8:
#: see `_hifloat8_values`; float8: OCP 8-bit floating point specification).
FLOATS = {
    "float64": FloatLimits((2 - 2.0**-52) * 2.0**1023, 52),
    "float32": FloatLimits((2 - 2.0**-23) * 2.0**127, 23),
    "float16": FloatLimits((2 - 2.0**-10) * 2.0**15, 10),
    "bfloat16": FloatLimits((2 - 2.0**-7) * 2.0**127, 7),
    "hifloat8": FloatLimits(2.0**15, 3),
    "float8_e5m2": FloatLimits(1.75 * 2.0**15, 2),
    "float8_e4m3fn": FloatLimits(1.75 * 2.0**8, 3),
}
#: Smallest and largest value of the integer types.
INTEGERS = {
    f"{sign}int{bits}": (0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for sign in ("", "u")
    for bits in (4, 8, 16, 32, 64)
}
BY_GE_NAME: dict[str, DataType] = {row.ge_name: row for row in _ROWS}

#: Storage layouts by the number GE gives them.
LAYOUTS: dict[int, str] = {
    0: "NCHW", 1: "NHWC", 2: "ND", 3: "NC1HWC0", 4: "FRACTAL_Z", 5: "NC1C0HWPAD", 6: "NHWC1C0", 7: "FSR_NCHW",
    8: "FRACTAL_DECONV", 9: "C1HWNC0", 10: "FRACTAL_DECONV_TRANSPOSE", 11: "FRACTAL_DECONV_SP_STRIDE_TRANS",
    12: "NC1HWC0_C04", 13: "FRACTAL_Z_C04", 14: "CHWN", 15: "FRACTAL_DECONV_SP_STRIDE8_TRANS", 16: "HWCN",
    17: "NC1KHKWHWC0", 18: "BN_WEIGHT", 19: "FILTER_HWCK", 20: "HASHTABLE_LOOKUP_LOOKUPS",
    21: "HASHTABLE_LOOKUP_KEYS", 22: "HASHTABLE_LOOKUP_VALUE", 23: "HASHTABLE_LOOKUP_OUTPUT",
    24: "HASHTABLE_LOOKUP_HITS", 25: "C1HWNCoC0", 26: "MD", 27: "NDHWC", 28: "FRACTAL_ZZ", 29: "FRACTAL_NZ",
    30: "NCDHW", 31: "DHWCN", 32: "NDC1HWC0", 33: "FRACTAL_Z_3D", 34: "CN", 35: "NC", 36: "DHWNC",
    40: "RESERVED", 41: "ALL", 42: "NULL", 47: "NCL", 255: "MAX",
}  # fmt: skip
LAYOUT_CODES: dict[str, int] = {name: code for code, name in LAYOUTS.items()}


#: Bits of the largest array that can be addressed, whatever its type.
_MOST_BITS = 1 << 63
#: The most axes of a tensor: arrays of numpy 1.26 have 32, and the two parts of complex numbers are an axis here.
MAX_RANK = 31


def is_impossible(shape: Sequence[int]) -> bool:
    """True for a shape that no array can have, also where one of its extents is 0: the others alone exceed 64 bits."""
    return prod([extent or 1 for extent in shape]) * _WIDEST > _MOST_BITS


def refuse_impossible(shape: Sequence[int], path: str = "") -> None:
    """Raise FormatError for an impossible shape, of the file `path` where that is known."""
    if is_impossible(shape):
        error = FormatError.within("io.impossible_shape", shape=shown(str(list(shape[:8]))))
        raise error.at(path) if path else error


def _hifloat8_values() -> npt.NDArray[np.float32]:
    """The 256 values of HiFloat8 (Luo et al., "Ascend HiFloat8 Format for Deep Learning", 2024).

    Sign, then a prefix code that gives the number of exponent bits (11, 10, 01, 001, 0001 → 4, 3, 2, 1, 0;
    0000 → denormal), a sign-magnitude exponent whose leading 1 is implied, and the mantissa in what is left.
    """
    values = np.empty(256, np.float32)
    for byte in range(256):
        sign = -1.0 if byte & 0x80 else 1.0
        low = byte & 0x7F
        if low >= 0x60:
            width, mantissa_bits = 4, 1
        elif low >= 0x40:
            width, mantissa_bits = 3, 2
        elif low >= 0x20:
            width, mantissa_bits = 2, 3
        elif low >= 0x10:
            width, mantissa_bits = 1, 3
        elif low >= 0x08:
            width, mantissa_bits = 0, 3
        else:  # denormal: a power of two; all zero bits are 0, the sign bit alone is NaN
            values[byte] = sign * 2.0 ** (low - 23) if low else (0.0 if sign > 0 else np.nan)
            continue
        mantissa = 1.0 + (low & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
        exponent = 0
        if width:
            field = (low >> mantissa_bits) & ((1 << width) - 1)
            magnitude = (field & ((1 << (width - 1)) - 1)) | (1 << (width - 1))
            exponent = -magnitude if field >> (width - 1) else magnitude
        values[byte] = sign * mantissa * 2.0**exponent
    values[0x6F], values[0xEF] = np.inf, -np.inf  # the largest code of each sign is infinity
    return values


def _small_float_values(numpy_name: str, count: int) -> npt.NDArray[np.float32]:
    import ml_dtypes

    codes = np.arange(count, dtype=np.uint8)
    values: npt.NDArray[np.float32] = codes.view(np.dtype(getattr(ml_dtypes, numpy_name))).astype(np.float32)
    return values


@cache
def value_table(numpy_name: str) -> npt.NDArray[np.float32]:
    """float32 values of all 256 byte codes of a small type; codes above a narrower type's width are masked off."""
    codes = np.arange(256)
    if numpy_name == "hifloat8":
        return _hifloat8_values()
    if numpy_name in ("int4", "int2"):
        bits = int(numpy_name[3:])
        low = codes & ((1 << bits) - 1)
        return np.where(low >= 1 << (bits - 1), low - (1 << bits), low).astype(np.float32)
    if numpy_name in ("uint1", "uint2"):
        return (codes & ((1 << int(numpy_name[4:])) - 1)).astype(np.float32)
    if numpy_name == "float4_e1m2":  # quarters from 0 to 1.75, sign in bit 3
        quarters = np.where(codes & 8, np.float32(-0.25), np.float32(0.25))
        return quarters * (codes & 7).astype(np.float32)
    bits = {"float6_e3m2fn": 6, "float6_e2m3fn": 6, "float4_e2m1fn": 4}.get(numpy_name, 8)
    values = _small_float_values(numpy_name, 1 << bits)
    return np.tile(values, 256 >> bits)


# --- Stored bytes to float32 or float64 (64-bit integers also as they are), into the caller's buffer ---


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
    table = value_table(numpy_name)

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
    table = value_table(data_type.numpy_name)
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
    """Return a function that decodes a block of bytes into an array of the caller's.

    Parameters
    ----------
    data_type : DataType
        The type of the stored elements.
    packed : bool
        A type below eight bits really has several elements a byte; some dumps use a byte each.
    big_endian : bool
        The order of the bytes of an element.

    Returns
    -------
    callable
        Takes the bytes (uint8) and `out`: float32 or float64, one item a real number, two for a complex one.

    Raises
    ------
    ValueError
        The type has no numbers.
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
