"""Every data type of FORMATS.md §2 against plain formulas: bytes in, numbers out."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_tool.lib.compare import tensor_figures
from precision_tool.lib.compare.tensor_reader import Scratch, TensorReader
from precision_tool.lib.io import data_types, layouts
from precision_tool.lib.io.npy import read_npy
from precision_tool.lib.model.tensor import Tensor

FLOAT32 = np.dtype(np.float32)
FLOAT64 = np.dtype(np.float64)

#: code → (name, bits of an element), typed from FORMATS.md.
TABLE = {
    0: ("undefined", 8), 1: ("float32", 32), 2: ("float16", 16), 3: ("int8", 8), 4: ("uint8", 8), 5: ("int16", 16),
    6: ("uint16", 16), 7: ("int32", 32), 8: ("int64", 64), 9: ("uint32", 32), 10: ("uint64", 64), 11: ("bool", 8),
    12: ("float64", 64), 13: ("string", 0), 16: ("complex64", 64), 17: ("complex128", 128), 18: ("qint8", 8),
    19: ("qint16", 16), 20: ("qint32", 32), 21: ("quint8", 8), 22: ("quint16", 16), 23: ("resource", 0),
    27: ("bfloat16", 16), 28: ("int4", 4), 29: ("uint1", 1), 30: ("int2", 2), 31: ("uint2", 2), 32: ("complex32", 32),
    33: ("hifloat8", 8), 34: ("float8_e5m2", 8), 35: ("float8_e4m3fn", 8), 36: ("float8_e8m0", 8),
    37: ("float6_e3m2", 6), 38: ("float6_e2m3", 6), 39: ("float4_e2m1", 4), 40: ("float4_e1m2", 4),
}  # fmt: skip

#: Types that `struct` reads: name → its format character.
STRUCT = {
    "undefined": "b", "float32": "f", "float16": "e", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H",
    "int32": "i", "int64": "q", "uint32": "I", "uint64": "Q", "bool": "B", "float64": "d", "qint8": "b",
    "qint16": "h", "qint32": "i", "quint8": "B", "quint16": "H",
}  # fmt: skip
#: The real numbers that complex types are made of.
PAIRS = {"complex32": "e", "complex64": "f", "complex128": "d"}
#: Those that float32 cannot hold.
WIDE = {"float64", "int32", "uint32", "int64", "uint64", "qint32", "complex128"}


def decoded(
    name: str, raw: bytes, count: int, out_type: np.dtype, *, packed: bool = False, big_endian: bool = False
) -> npt.NDArray[Any]:
    """`count` real numbers, decoded into a buffer that held something else before."""
    out = np.full(count, -77.25, out_type)
    data_types.decoder(data_types.BY_NAME[name], packed=packed, big_endian=big_endian)(
        np.frombuffer(raw, np.uint8), out
    )
    return out


def assert_same(found: npt.NDArray[Any], expected: list[float]) -> None:
    """Equal numbers, signs of zero and places of NaN; nothing is rounded."""
    want = np.array(expected, np.float64)
    assert found.shape == want.shape
    with np.errstate(invalid="ignore"):  # NaNs that are not quiet
        widened = found.astype(np.float64)
    assert np.array_equal(widened, want, equal_nan=True)
    numbers = ~np.isnan(want)
    assert np.array_equal(np.signbit(found)[numbers], np.signbit(want)[numbers])


def minifloat(code: int, exponent_bits: int, mantissa_bits: int, specials: str) -> float:
    """A small float by the textbook: sign, exponent with bias 2^(e-1)-1, mantissa; `specials` of the top codes."""
    bias = (1 << (exponent_bits - 1)) - 1 if exponent_bits > 1 else 1
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) & 1 else 1.0
    exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1)
    mantissa = code & ((1 << mantissa_bits) - 1)
    top = (1 << exponent_bits) - 1
    if specials == "ieee" and exponent == top:
        return math.nan if mantissa else sign * math.inf
    if specials == "fn" and exponent == top and mantissa == (1 << mantissa_bits) - 1:
        return math.nan
    if exponent == 0:
        return sign * math.ldexp(mantissa, 1 - bias - mantissa_bits)
    return sign * math.ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits)


def hifloat8(code: int) -> float:
    """HiFloat8 read as a string of bits: sign, a prefix that says how many exponent bits follow, exponent, mantissa."""
    bits = f"{code:08b}"
    sign = -1.0 if bits[0] == "1" else 1.0
    rest = bits[1:]
    if rest == "0000000":
        return 0.0 if sign > 0 else math.nan
    if rest == "1101111":
        return sign * math.inf
    if rest.startswith("0000"):
        return sign * 2.0 ** (int(rest[4:], 2) - 23)
    prefix, width = next(
        (prefix, width)
        for prefix, width in (("11", 4), ("10", 3), ("01", 2), ("001", 1), ("0001", 0))
        if rest.startswith(prefix)
    )
    exponent_field = rest[len(prefix) : len(prefix) + width]
    mantissa = rest[len(prefix) + width :]
    exponent = 0
    if width:
        exponent = int("1" + exponent_field[1:], 2)
        if exponent_field[0] == "1":
            exponent = -exponent
    return sign * math.ldexp(1 + int(mantissa, 2) / 2 ** len(mantissa), exponent)


def twos_complement(code: int, bits: int) -> float:
    return float(code - (1 << bits) if code >> (bits - 1) else code)


def mirrored(raw: bytes) -> bytes:
    """Bytes with their bits in reverse: single bits begin with the highest one."""
    return bytes(int(f"{byte:08b}"[::-1], 2) for byte in raw)


#: Types below eight bits: name → (bits, value of a code).
PACKED: dict[str, tuple[int, Callable[[int], float]]] = {
    "int4": (4, lambda code: twos_complement(code, 4)),
    "uint1": (1, float),
    "int2": (2, lambda code: twos_complement(code, 2)),
    "uint2": (2, float),
    "float6_e3m2": (6, lambda code: minifloat(code, 3, 2, "")),
    "float6_e2m3": (6, lambda code: minifloat(code, 2, 3, "")),
    "float4_e2m1": (4, lambda code: minifloat(code, 2, 1, "")),
    "float4_e1m2": (4, lambda code: minifloat(code, 1, 2, "")),
}
BYTE_FLOATS: dict[str, Callable[[int], float]] = {
    "hifloat8": hifloat8,
    "float8_e5m2": lambda code: minifloat(code, 5, 2, "ieee"),
    "float8_e4m3fn": lambda code: minifloat(code, 4, 3, "fn"),
    "float8_e8m0": lambda code: math.nan if code == 255 else 2.0 ** (code - 127),
}


# ---- the table


@pytest.mark.parametrize("code", TABLE)
def test_the_table_is_the_documented_one(code: int) -> None:
    row = data_types.BY_CODE[code]
    assert (row.name, row.bits) == TABLE[code]
    assert data_types.BY_NAME[row.name] is row
    assert data_types.BY_GE_NAME[row.ge_name] is row
    assert row.is_numeric == (row.name not in ("string", "resource"))
    assert row.is_complex == (row.name in PAIRS)


def test_every_type_has_a_reference_here() -> None:
    tested = {*STRUCT, *PAIRS, *PACKED, *BYTE_FLOATS, "bfloat16"}
    # The two DUAL_SUB types are not in FORMATS.md; they are bytes with and without a sign.
    assert {row.name for row in data_types.BY_CODE.values() if row.is_numeric} == tested | {
        "dual_sub_int8",
        "dual_sub_uint8",
    }


@pytest.mark.parametrize(
    ("name", "count", "expected"),
    [
        ("float32", 3, 12),
        ("complex128", 2, 32),
        ("uint1", 1, 1),
        ("uint1", 9, 2),
        ("int2", 5, 2),
        ("int4", 3, 2),
        ("float6_e3m2", 4, 3),
        ("float6_e2m3", 5, 4),
        ("float4_e2m1", 0, 0),
        ("hifloat8", 7, 7),
    ],
)
def test_bytes_of_elements(name: str, count: int, expected: int) -> None:
    assert data_types.BY_NAME[name].byte_size(count) == expected


@pytest.mark.parametrize("name", ["string", "resource"])
def test_types_without_numbers_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        data_types.decoder(data_types.BY_NAME[name])


# ---- what the comparison computes in


def test_float32_only_where_it_holds_every_value() -> None:
    for row in data_types.BY_CODE.values():
        if row.is_numeric:
            expected = FLOAT64 if row.name in WIDE else FLOAT32
            assert data_types.compute_type(row) == expected, row.name
            assert data_types.compute_type(row, data_types.BY_NAME["float16"]) == expected, row.name
            assert data_types.compute_type(data_types.BY_NAME["float16"], row) == expected, row.name


# ---- types that struct reads


@settings(max_examples=30, deadline=None)
@given(st.data())
@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("name", [*STRUCT, *PAIRS])
def test_whatever_the_bytes(name: str, big_endian: bool, data: st.DataObject) -> None:
    kind = STRUCT.get(name) or PAIRS[name]
    width = struct.calcsize(kind)
    raw = data.draw(st.integers(0, 40).flatmap(lambda count: st.binary(min_size=count * width, max_size=count * width)))
    expected = [float(value) for (value,) in struct.iter_unpack((">" if big_endian else "<") + kind, raw)]
    assert_same(decoded(name, raw, len(expected), FLOAT64, big_endian=big_endian), expected)
    if name not in WIDE:
        assert_same(decoded(name, raw, len(expected), FLOAT32, big_endian=big_endian), expected)


@pytest.mark.parametrize("name", ["float16", "float32", "int16", "float64", "bfloat16", "complex64"])
def test_bytes_that_start_at_an_odd_address(name: str) -> None:
    raw = bytes(range(1, 50))
    array = np.frombuffer(b"\0" + raw[:48], np.uint8)[1:]
    reals = 48 * 8 // data_types.BY_NAME[name].bits * data_types.reals_per_element(data_types.BY_NAME[name])
    out = np.empty(reals, FLOAT64)
    data_types.decoder(data_types.BY_NAME[name])(array, out)
    assert np.array_equal(out, decoded(name, raw[:48], reals, FLOAT64))


# ---- 16-bit floats, every code


def float16_value(code: int) -> float:
    return minifloat(code, 5, 10, "ieee")


FINITE = [code for code in range(1 << 16) if code & 0x7C00 != 0x7C00]


@pytest.mark.parametrize("out_type", [FLOAT32, FLOAT64])
@pytest.mark.parametrize(
    "codes",
    [  # Blocks without Inf and NaN are decoded another way than blocks with them.
        pytest.param(list(range(1 << 16)), id="all"),
        pytest.param(FINITE, id="finite"),
        pytest.param([*FINITE, 0x7C00], id="one Inf"),
        pytest.param([0xFC00, *FINITE], id="one -Inf"),
        pytest.param([*FINITE, 0x7C01], id="one NaN"),
        pytest.param([*FINITE, 0xFFFF], id="one negative NaN"),
        pytest.param([code for code in FINITE if code & 0x8000], id="negative"),
        pytest.param([*range(0x400), *range(0x8000, 0x8400)], id="subnormal"),
        pytest.param([], id="none"),
    ],
)
def test_every_float16(codes: list[int], out_type: np.dtype) -> None:
    raw = struct.pack(f"<{len(codes)}H", *codes)
    assert_same(decoded("float16", raw, len(codes), out_type), [float16_value(code) for code in codes])


@pytest.mark.parametrize("out_type", [FLOAT32, FLOAT64])
def test_every_bfloat16(out_type: np.dtype) -> None:
    raw = struct.pack("<65536H", *range(1 << 16))
    expected = [struct.unpack("<f", struct.pack("<I", code << 16))[0] for code in range(1 << 16)]
    assert_same(decoded("bfloat16", raw, 1 << 16, out_type), expected)


# ---- 8-bit floats, every code


@pytest.mark.parametrize("out_type", [FLOAT32, FLOAT64])
@pytest.mark.parametrize("name", BYTE_FLOATS)
def test_every_byte(name: str, out_type: np.dtype) -> None:
    assert_same(decoded(name, bytes(range(256)), 256, out_type), [BYTE_FLOATS[name](code) for code in range(256)])


@pytest.mark.parametrize(
    ("code", "value"),
    [
        (0x00, 0.0), (0x80, math.nan), (0x6F, math.inf), (0xEF, -math.inf),
        (0x01, 2.0**-22), (0x07, 2.0**-16), (0x87, -(2.0**-16)),  # denormal: powers of two
        (0x08, 1.0), (0x0F, 1.875), (0x88, -1.0),  # no exponent bits
        (0x10, 2.0), (0x17, 3.75), (0x18, 0.5), (0x1F, 0.9375),  # one
        (0x20, 4.0), (0x2F, 15.0), (0x30, 0.25), (0x3F, 0.234375),  # two
        (0x40, 16.0), (0x43, 28.0), (0x4F, 224.0), (0x50, 0.0625), (0x5F, 1.75 / 128),  # three
        (0x60, 256.0), (0x61, 384.0), (0x6E, 32768.0), (0xEE, -32768.0), (0x70, 2.0**-8), (0x7F, 1.5 * 2.0**-15),
    ],
)  # fmt: skip
def test_hifloat8_by_hand(code: int, value: float) -> None:
    assert_same(decoded("hifloat8", bytes([code]), 1, FLOAT32), [value])


# ---- types below eight bits


@settings(max_examples=30, deadline=None)
@given(st.data())
@pytest.mark.parametrize("out_type", [FLOAT32, FLOAT64])
@pytest.mark.parametrize("name", PACKED)
def test_packed_elements_start_in_the_lowest_bits(name: str, out_type: np.dtype, data: st.DataObject) -> None:
    bits, value_of = PACKED[name]
    count = data.draw(st.integers(0, 50))
    size = (count * bits + 7) // 8
    raw = data.draw(st.binary(min_size=size, max_size=size))
    number = int.from_bytes(mirrored(raw) if bits == 1 else raw, "little")
    codes = [number >> (position * bits) & ((1 << bits) - 1) for position in range(count)]
    assert_same(decoded(name, raw, count, out_type, packed=True), [value_of(code) for code in codes])


@pytest.mark.parametrize("name", PACKED)
def test_a_byte_for_each_element(name: str) -> None:
    bits, value_of = PACKED[name]
    raw = bytes(range(256))
    assert_same(decoded(name, raw, 256, FLOAT32), [value_of(code & ((1 << bits) - 1)) for code in raw])


@pytest.mark.parametrize(
    ("name", "raw", "values"),
    [
        ("int4", b"\x21\x8f", [1, 2, -1, -8]),
        ("uint1", b"\x05", [0, 0, 0, 0, 0, 1, 0, 1]),
        ("int2", b"\xe4", [0, 1, -2, -1]),
        ("uint2", b"\xe4", [0, 1, 2, 3]),
        ("float4_e2m1", b"\x72\xf1", [1.0, 6.0, 0.5, -6.0]),
        ("float4_e1m2", b"\x71\xfc", [0.25, 1.75, -1.0, -1.75]),
        # 0b011111, 0b000001, 0b111111, 0b001100: largest, smallest, lowest, one
        ("float6_e3m2", bytes([0b01_011111, 0b1111_0000, 0b001100_11]), [28.0, 0.0625, -28.0, 1.0]),
        ("float6_e2m3", bytes([0b01_011111, 0b1111_0000, 0b001000_11]), [7.5, 0.125, -7.5, 1.0]),
    ],
)
def test_packed_by_hand(name: str, raw: bytes, values: list[float]) -> None:
    assert_same(decoded(name, raw, len(values), FLOAT32, packed=True), values)


# ---- files


def read_all(path: Path) -> npt.NDArray[Any]:
    """Every number of a `.npy` file, in C order, as the comparison would see it."""
    tensor = read_npy(str(path))
    plan = layouts.plain_plan(tensor.shape, tensor.fortran_order)
    dtype = data_types.compute_type(data_types.BY_NAME[tensor.dtype])
    reader = TensorReader(tensor, plan, dtype, Scratch(), "npu")
    try:
        out = np.empty(math.prod(reader.logical_shape), dtype)
        for box in layouts.split_boxes(reader.logical_shape, reader.granules, 1 << 30):
            reader.read_box(box, out)
    finally:
        reader.close()
    return out.reshape(reader.logical_shape)


@pytest.mark.parametrize("fortran", [False, True])
@pytest.mark.parametrize(
    "kind", [">f2", ">f4", ">f8", ">i2", ">u2", ">i4", ">u4", ">i8", ">u8", ">c8", ">c16", "<f2", "<c8", "|b1", "|u1"]
)
def test_npy_of_either_byte_order(tmp_path: Path, kind: str, fortran: bool) -> None:
    values = [1, 2, 3, 0, 100, 7]
    array = np.array(values, np.dtype(kind)).reshape(2, 3)
    path = tmp_path / "a.npy"
    np.save(path, np.asfortranarray(array) if fortran else array)
    expected = [bool(value) for value in values] if kind == "|b1" else values
    found = read_all(path)
    if "c" in kind:
        assert not found[..., 1].any()
        found = found[..., 0]
    assert np.array_equal(found, np.array(expected, np.float64).reshape(2, 3))


def test_complex_numbers_keep_their_parts_apart(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.array([[1 + 2j, 3 - 4j], [-5j, 6.5]], ">c8"))
    assert np.array_equal(read_all(path), [[[1.0, 2.0], [3.0, -4.0]], [[0.0, -5.0], [6.5, 0.0]]])


def test_bfloat16_npy(tmp_path: Path) -> None:
    import ml_dtypes

    path = tmp_path / "a.npy"
    np.save(path, np.array([1.5, -2.0, 3.0], ml_dtypes.bfloat16))
    assert np.array_equal(read_all(path), [1.5, -2.0, 3.0])


def test_a_bool_that_is_neither_0_nor_1_stays_visible() -> None:
    assert_same(decoded("bool", b"\x00\x01\x02\xff", 4, FLOAT32), [0, 1, 2, 255])


# ---- types below eight bits: packed, or a byte an element


def read_stored(folder: Path, name: str, count: int, stored: bytes) -> npt.NDArray[Any]:
    """The tensor of `count` elements whose bytes in a dump, padding included, are `stored`."""
    path = folder / "stored"
    path.write_bytes(stored)
    tensor = Tensor(path=str(path), offset=0, nbytes=len(stored), dtype=name, shape=(count,))
    reader = TensorReader(tensor, layouts.flat_plan(count), FLOAT32, Scratch(), "npu")
    try:
        out = np.empty(count, np.float32)
        reader.read_flat(0, count, out)
    finally:
        reader.close()
    return out


def packed_bytes(codes: list[int], bits: int) -> bytes:
    """Codes one after the other, each from the lowest bit on."""
    whole = sum(code << (bits * place) for place, code in enumerate(codes))
    return whole.to_bytes((len(codes) * bits + 7) // 8, "little")


@pytest.mark.parametrize("count", [1, 2, 5, 16, 32, 40, 64, 70_000])
@pytest.mark.parametrize("name", PACKED)
def test_packed_types_in_any_size_of_buffer(tmp_path: Path, name: str, count: int) -> None:
    """Dumps round sizes up, also to just the number of elements; what is behind the elements is padding."""
    bits, value = PACKED[name]
    codes = [int(code) for code in np.random.default_rng(count).integers(0, 1 << bits, min(count, 64))]
    codes = (codes * (count // len(codes) + 1))[:count]
    expected = [value(code) for code in codes]
    stored = packed_bytes(codes[:64], bits) * (count // 64 + 1) if count > 64 else packed_bytes(codes, bits)
    stored = stored[: (count * bits + 7) // 8]
    stored = mirrored(stored) if bits == 1 else stored
    for size in {len(stored), -(-len(stored) // 32) * 32, max(count, len(stored)), -(-count // 32) * 32 + 32}:
        if size >= len(stored):
            assert_same(read_stored(tmp_path, name, count, stored.ljust(size, b"\0")), expected)


@pytest.mark.parametrize("count", [5, 16, 32, 40, 70_000])
@pytest.mark.parametrize("name", PACKED)
def test_a_byte_an_element_in_any_size_of_buffer(tmp_path: Path, name: str, count: int) -> None:
    bits, value = PACKED[name]
    codes = np.random.default_rng(count).integers(0, 1 << bits, count)
    codes[-1] = 1  # not all zero behind what would be packed
    expected = [value(int(code)) for code in codes]
    signed = [int(value(int(code))) & 0xFF for code in codes] if name in ("int4", "int2") else [int(c) for c in codes]
    for stored in (bytes(codes.tolist()), bytes(signed)):
        for size in (count, -(-count // 32) * 32):
            assert_same(read_stored(tmp_path, name, count, stored.ljust(size, b"\0")), expected)


def test_the_rest_of_the_buffer_may_be_anything_where_the_bytes_are_no_codes(tmp_path: Path) -> None:
    stored = b"\x21\x43" + b"\xa5" * 30
    assert_same(read_stored(tmp_path, "int4", 4, stored), [1, 2, 3, 4])


@pytest.mark.parametrize("name", data_types.FLOATS)
def test_limits_are_those_of_the_types(name: str) -> None:
    limits = data_types.FLOATS[name]
    if name == "hifloat8":
        table = data_types.value_table(name)
        assert limits.largest == table[np.isfinite(table)].max()
        return
    known = ml_dtypes.finfo(np.dtype(getattr(ml_dtypes, name, name)))  # type: ignore[no-untyped-call]
    assert (limits.largest, limits.digits) == (float(known.max), known.nmant)
    assert tensor_figures.limit_of(name) == limits.largest
