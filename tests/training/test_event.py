"""Every encoding of a tensor in tfdbg's files, and every kind of damage: against numpy and a second encoder."""

from __future__ import annotations

import io
import os
import random
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tfdbg_files import CODES, FIELDS, content, event, number, shape_proto, sized, tensor_proto, varint

from precision_tool.lib.io.tfdbg_files import TensorEvent, is_same_npy, npy_header, npy_size, read_event, write_npy
from precision_tool.lib.messages.errors import FormatError

NUMERIC = sorted(FIELDS)
#: The numpy type of what is written; quantized integers are plain ones.
PLAIN = {"qint8": "int8", "quint8": "uint8", "qint16": "int16", "quint16": "uint16", "qint32": "int32"}


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(PLAIN.get(name, name))


def example(name: str, shape: tuple[int, ...], seed: int) -> npt.NDArray[Any]:
    """Values whose bytes are random: NaNs, negative and large numbers."""
    dtype, count = dtype_of(name), int(np.prod(shape))
    raw = random.Random(seed).randbytes(count * dtype.itemsize)
    if name == "bool":
        raw = bytes(byte & 1 for byte in raw)
    return np.frombuffer(raw, dtype).reshape(shape)


def single_values(name: str, array: npt.NDArray[Any]) -> list[bytes]:
    """Each value as protobuf encodes it; a complex number is two."""
    flat = array.reshape(-1)
    if flat.dtype.kind == "c":
        flat = flat.view(f"f{flat.dtype.itemsize // 2}")
    if flat.dtype.kind == "f" and name not in ("float16", "bfloat16"):
        return [value.tobytes() for value in flat]
    if name in ("float16", "bfloat16"):
        flat = flat.view(np.uint16)
    return [varint(int(value)) for value in flat]


def wire_type(name: str) -> int:
    return {"float32": 5, "complex64": 5, "float64": 1, "complex128": 1}.get(name, 0)


def packed(name: str, values: list[bytes]) -> bytes:
    return sized(FIELDS[name], b"".join(values))


def unpacked(name: str, values: list[bytes]) -> bytes:
    tag = varint(FIELDS[name] << 3 | wire_type(name))
    return b"".join(tag + value for value in values)


def read_back(folder: Path, tensor: bytes) -> npt.NDArray[Any]:
    """What numpy reads from the `.npy` file that is made of a tensor."""
    source, target = folder / "event", folder / "out.npy"
    source.write_bytes(event(tensor))
    target.unlink(missing_ok=True)
    head = read_event(str(source))
    assert head.skip is None
    write_npy(head, str(target), lambda count: None)
    assert is_same_npy(head, str(target), lambda count: None)
    assert target.stat().st_size == npy_size(head)
    array: npt.NDArray[Any] = np.load(target, allow_pickle=False)
    return array


def assert_same(read: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> None:
    assert read.shape == wanted.shape
    assert read.dtype == ("V2" if wanted.dtype == ml_dtypes.bfloat16 else wanted.dtype)
    assert read.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("name", NUMERIC)
@pytest.mark.parametrize("shape", [(), (1,), (3, 4), (2, 0, 5), (0,)])
def test_content(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    array = example(name, shape, 1)
    assert_same(read_back(tmp_path, tensor_proto(name, shape, content(array.tobytes()))), array)


@pytest.mark.parametrize("name", NUMERIC)
@pytest.mark.parametrize("pack", [packed, unpacked])
def test_typed_values(tmp_path: Path, name: str, pack: Any) -> None:
    array = example(name, (5, 7), 2)
    assert_same(read_back(tmp_path, tensor_proto(name, (5, 7), pack(name, single_values(name, array)))), array)


@pytest.mark.parametrize("name", NUMERIC)
@pytest.mark.parametrize("pack", [packed, unpacked])
@pytest.mark.parametrize("given_values", [1, 4])
def test_the_last_value_stands_for_the_rest(tmp_path: Path, name: str, pack: Any, given_values: int) -> None:
    array = example(name, (given_values,), 3)
    wanted = np.concatenate([array, np.repeat(array[-1:], 30 - given_values)]).reshape(5, 6)
    assert_same(read_back(tmp_path, tensor_proto(name, (5, 6), pack(name, single_values(name, array)))), wanted)


@given(
    name=st.sampled_from(NUMERIC),
    shape=st.lists(st.integers(0, 4), max_size=4),
    cuts=st.lists(st.tuples(st.integers(0, 300), st.booleans()), max_size=4),
    seed=st.integers(0, 1 << 32),
)
def test_values_in_any_pieces(
    tmp_path_factory: pytest.TempPathFactory, name: str, shape: list[int], cuts: list[tuple[int, bool]], seed: int
) -> None:
    """Packed and single values in turn, as protobuf allows; fields of other numbers and types between them."""
    array = example(name, tuple(shape), seed)
    if not array.size:
        return
    values, fields, start = single_values(name, array), [], 0
    for cut, as_packed in [*sorted(cuts), (len(values), True)]:
        stop = max(start, min(cut, len(values)))
        fields.append((packed if as_packed else unpacked)(name, values[start:stop]))
        fields.append(number(99, seed))
        start = stop
    assert_same(read_back(tmp_path_factory.getbasetemp(), tensor_proto(name, shape, *fields)), array)


def test_values_over_many_blocks(tmp_path: Path) -> None:
    """Numbers of one to ten bytes, cut by the ends of the blocks that are read."""
    array = np.random.default_rng(4).integers(-(1 << 62), 1 << 62, 200_000) >> np.arange(200_000) % 62
    values = single_values("int64", array)
    assert_same(
        read_back(tmp_path, tensor_proto("int64", (400, 500), packed("int64", values))), array.reshape(400, 500)
    )
    assert_same(read_back(tmp_path, tensor_proto("int64", (200_000,), unpacked("int64", values))), array)
    filled = np.full((1000, 1000), 2.5)
    assert_same(
        read_back(tmp_path, tensor_proto("float64", (1000, 1000), packed("float64", [struct.pack("<d", 2.5)]))), filled
    )


def test_fields_in_any_order_and_a_reference_type(tmp_path: Path) -> None:
    shape = sized(2, shape_proto((2,)))
    tensor = content(struct.pack("<2f", 1.0, 2.0)) + number(3, 0) + shape + number(1, 100 + CODES["float32"])
    assert_same(read_back(tmp_path, tensor), np.array([1, 2], np.float32))


def test_headers_are_spelled_as_numpy_does() -> None:
    for shape in ((), (1,), (4, 112, 112, 64), (3, 0), tuple(range(1, 20))):
        file = io.BytesIO()
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        ours = npy_header("<f4", shape)
        assert len(ours) % 64 == 0
        # Newer releases of numpy leave more room behind.
        assert ours[10:].rstrip() == file.getvalue()[10:].rstrip()


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (tensor_proto("string", (2,), sized(8, b"a"), sized(8, b"b")), "string"),
        (tensor_proto("resource", (), sized(4, b"l\n,handle")), "resource"),
        (tensor_proto("variant", (), sized(15, b"list")), "object (variant)"),
        (tensor_proto("float32", ()), "not initialized"),
        (tensor_proto("float32", (3, 2)), "not initialized"),
        (tensor_proto("float32", (3,), packed("float32", [])), "not initialized"),
        (tensor_proto("float32", (3,), packed("int32", [varint(1)])), "not initialized"),
        (number(1, 24) + sized(2, b"") + content(b"\x3c"), "data type 24 of TensorFlow, which is not known here"),
    ],
)
def test_what_has_no_numbers_says_why(tmp_path: Path, tensor: bytes, reason: str) -> None:
    path = tmp_path / "event"
    path.write_bytes(event(tensor))
    head = read_event(str(path))
    assert str(head.skip) == reason
    assert head.is_unknown == ("24" in reason)


FOUR = content(struct.pack("<4f", 1, 2, 3, 4))
DAMAGED = {
    "empty": (b"", "the file is empty"),
    "text": (b"<html>not found</html>", "unknown wire type"),
    "no summary": (b"\x09" + bytes(8) + sized(4, b"graph"), "no tensor"),
    "no tensor": (sized(5, sized(1, sized(1, b"op"))), "no tensor"),
    "no type": (event(sized(2, shape_proto((4,))) + FOUR), "without a data type"),
    "too few bytes": (event(tensor_proto("float32", (5,), FOUR)), "needs 20 bytes, the tensor has 16"),
    "too many bytes": (event(tensor_proto("float32", (3,), FOUR)), "needs 12 bytes, the tensor has 16"),
    "unknown rank": (event(number(1, 1) + sized(2, number(3, 1)) + FOUR), "unknown shape"),
    "unknown size": (event(tensor_proto("float32", (-1,), FOUR)), "unknown size"),
    "absurd shape": (event(tensor_proto("float32", (1 << 40, 1 << 40), FOUR)), "no array can have the shape"),
    "absurd filling": (
        event(tensor_proto("float32", (1 << 40,), packed("float32", [bytes(4)]))),
        "cannot have the shape",
    ),
    "many dimensions": (event(tensor_proto("float32", (1,) * 33, FOUR)), "more than 31 dimensions"),
    "endless number": (b"\x28" + b"\xff" * 20, "longer than ten bytes"),
    "field 0": (b"\x00\x00", "field number 0"),
    "claimed length": (b"\x2a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "claims"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_named_with_its_byte(tmp_path: Path, case: str) -> None:
    data, reason = DAMAGED[case]
    path = tmp_path / "event"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"\(byte \d+\)") as error:
        read_event(str(path))
    assert reason in error.value.message
    assert str(path) in error.value.message


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (tensor_proto("int32", (3,), packed("int32", [varint(1)] * 4)), "more values than the 3 elements"),
        (tensor_proto("float32", (3,), sized(5, bytes(6))), "the last value is incomplete"),
        (tensor_proto("complex64", (3,), packed("complex64", [bytes(4)] * 3)), "the last value is incomplete"),
        (tensor_proto("int32", (3,), sized(7, b"\x01\xff")), "runs past the end"),
        (tensor_proto("int32", (3,), sized(7, b"\xff" * 40)), "longer than ten bytes"),
        (tensor_proto("int32", (3,), sized(7, b"\xff" * 11 + b"\x01")), "longer than ten bytes"),
    ],
)
def test_damaged_values_leave_no_file(tmp_path: Path, tensor: bytes, reason: str) -> None:
    source, target = tmp_path / "event", tmp_path / "out.npy"
    source.write_bytes(event(tensor))
    with pytest.raises(FormatError, match=reason):
        write_npy(read_event(str(source)), str(target), lambda count: None)
    assert not target.exists()


def test_every_truncation_is_an_error_or_has_no_values(tmp_path: Path) -> None:
    whole = event(tensor_proto("float32", (4,), FOUR), "scope/op")
    path = tmp_path / "event"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError, match=r"\(byte \d+\)"):
            read_event(str(path))


@given(data=st.binary(max_size=200), at=st.integers(0, 80), flip=st.integers(1, 255))
def test_garbage_never_crashes(tmp_path_factory: pytest.TempPathFactory, data: bytes, at: int, flip: int) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage"
    flipped = bytearray(event(tensor_proto("int32", (4,), packed("int32", [varint(7)] * 4))))
    flipped[at % len(flipped)] ^= flip
    for content_of_file in (data, bytes(flipped)):
        path.write_bytes(content_of_file)
        target = path.with_suffix(".npy")
        target.unlink(missing_ok=True)
        try:
            head = read_event(str(path))
            if not head.skip:
                write_npy(head, str(target), lambda count: None)
                np.load(target, allow_pickle=False)
        except FormatError:
            assert not target.exists()


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", "missing", "."):
        with pytest.raises(FormatError):
            read_event(str(tmp_path / name))


def test_a_file_that_shrinks_after_its_head_was_read(tmp_path: Path) -> None:
    source, target = tmp_path / "event", tmp_path / "out.npy"
    source.write_bytes(event(tensor_proto("float32", (4,), FOUR)))
    head = read_event(str(source))
    source.write_bytes(source.read_bytes()[:60])
    with pytest.raises(FormatError, match="ends at byte"):
        write_npy(head, str(target), lambda count: None)
    assert not target.exists()


def test_copying_works_where_the_system_cannot_do_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> int:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "sendfile", refuse)
    array = example("float32", (700, 800), 5)
    assert_same(read_back(tmp_path, tensor_proto("float32", (700, 800), content(array.tobytes()))), array)


def test_a_head_is_a_plain_value(tmp_path: Path) -> None:
    path = tmp_path / "event"
    path.write_bytes(event(tensor_proto("float32", (4,), FOUR)))
    head = read_event(str(path))
    assert isinstance(head, TensorEvent)
    assert (head.shape, head.count, head.nbytes, head.type.name) == ((4,), 4, 16, "float32")
    assert head.content is not None
    assert path.read_bytes()[head.content.start : head.content.stop] == struct.pack("<4f", 1, 2, 3, 4)
