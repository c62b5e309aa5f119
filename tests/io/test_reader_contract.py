"""What every reader promises, run against every file format.

Right files give what was written. Damaged ones give a PrecisionToolError, or fewer tensors, and never another
exception, another tensor or a lot of memory. The files are written byte by byte here.
"""

from __future__ import annotations

import errno
import math
import os
import random
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from safetensors_files import entry as safetensors_entry
from safetensors_files import safetensors_bytes, with_header
from tfdbg_files import number, sized, varint
from torch_files import torch_bytes

from precision_tool.lib.compare.tensor_reader import Scratch, TensorReader
from precision_tool.lib.io import data_types, layouts
from precision_tool.lib.io.ge_dump import read_dump
from precision_tool.lib.io.npy import read_npy
from precision_tool.lib.io.readers import open_op_dump, read_statistics
from precision_tool.lib.io.torch_file import read_torch
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, PrecisionToolError
from precision_tool.lib.model.tensor import AnyTensor, OpDump, Tensor, TensorStatistics

Array = npt.NDArray[Any]


# ---- the messages of dumps, byte by byte


def packed_dims(*dims: int) -> bytes:
    return sized(1, b"".join(map(varint, dims)))


def single_dims(*dims: int) -> bytes:
    return b"".join(number(1, dim) for dim in dims)


def op_input(
    data_type: int, layout: int, dims: Iterable[int], size: int | None, data: bytes | None = None, more: bytes = b""
) -> bytes:
    """An OpInput in the field numbers of FORMATS.md §2: data 4, size 5, original_shape 6, address 8."""
    out = number(1, data_type) + number(2, layout) + sized(3, packed_dims(*dims))
    out += sized(4, data) if data is not None else b""
    out += number(5, size) if size is not None else b""
    return sized(4, out + more)


def op_output(
    data_type: int, layout: int, dims: Iterable[int], size: int | None, data: bytes | None = None, more: bytes = b""
) -> bytes:
    """An OpOutput: data 5, size 6, original_shape 7, address 9."""
    out = number(1, data_type) + number(2, layout) + sized(3, packed_dims(*dims))
    out += sized(5, data) if data is not None else b""
    out += number(6, size) if size is not None else b""
    return sized(3, out + more)


def v2(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


# ---- the same small op in every format

FIRST = np.array([[1.5, -2.0, 3.25], [0.0, 65504.0, -0.125]], np.float16)
SECOND = np.arange(4, dtype=np.int32) * 1000 - 7
RESULT = np.array([[[3.0, -1.0]], [[2.0**-20, 7.5]]], np.float32)


@dataclass(frozen=True)
class Expected:
    """A slot as written: what a reader must say of it, and its bytes (statistics: its numbers)."""

    side: str
    index: int
    dtype: str
    shape: tuple[int, ...]
    layout: str
    values: Array | None = None
    statistics: TensorStatistics | None = None


TENSORS = (
    Expected("input", 0, "float16", (2, 3), "NHWC", FIRST),
    Expected("input", 1, "int32", (4,), "ND", SECOND),
    Expected("output", 0, "float32", (2, 1, 2), "NCHW", RESULT),
)


def v1_bytes() -> bytes:
    return b"".join(
        (
            sized(1, b"1.0"),
            number(2, 1_772_443_800_000_000),
            op_output(1, 0, (2, 1, 2), RESULT.nbytes, RESULT.tobytes()),
            op_input(2, 1, (2, 3), FIRST.nbytes, FIRST.tobytes()),
            op_input(7, 2, (4,), SECOND.nbytes, SECOND.tobytes()),
            sized(6, b"block/add"),
        )
    )


def v2_bytes() -> bytes:
    header = b"".join(
        (
            sized(1, b"2.0"),
            number(2, 1_772_443_800_000_000),
            op_output(1, 0, (2, 1, 2), RESULT.nbytes),
            op_input(2, 1, (2, 3), FIRST.nbytes),
            op_input(7, 2, (4,), SECOND.nbytes),
            sized(5, number(1, 1) + number(3, 5)),  # a buffer of five bytes
            sized(6, b"block/add"),
            sized(8, number(1, 1) + number(3, 3)),  # a space of three
        )
    )
    return v2(header, FIRST.tobytes() + SECOND.tobytes() + RESULT.tobytes() + b"bbbbb" + b"sss")


def npy_bytes() -> bytes:
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1, 2), }"
    head += b" " * (128 - 10 - len(head) - 1) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + RESULT.tobytes()


STATISTICS = (
    "Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value,Min Value,Avg Value,Count,Nan Count,"
    "Negative Inf Count,Positive Inf Count,l2norm\n"
    "Input,0,12,DT_FLOAT16,NHWC,2x3,65504,-2,10917.77,6,0,0,1,65504.25\n"
    "Input,1,16,DT_INT32,ND,4,2993,-7,NA,4,0,0,0,NA\n"
    "Output,0,16,DT_FLOAT,NCHW,2x1x2,7.5,-1,2.375,4,3,2,0,8.139\n"
)


def statistics_bytes() -> bytes:
    return STATISTICS.encode()


def described(**values: Any) -> TensorStatistics:
    return TensorStatistics(path="", **values)


STATISTICS_TENSORS = (
    Expected(
        "input", 0, "float16", (2, 3), "NHWC",
        statistics=described(
            dtype="float16", shape=(2, 3), layout="NHWC", nbytes=12, maximum=65504.0, minimum=-2.0, mean=10917.77,
            count=6, nan_count=0, negative_inf_count=0, positive_inf_count=1, l2_norm=65504.25,
        ),
    ),
    Expected(
        "input", 1, "int32", (4,), "ND",
        statistics=described(
            dtype="int32", shape=(4,), layout="ND", nbytes=16, maximum=2993.0, minimum=-7.0, mean=None, count=4,
            nan_count=0, negative_inf_count=0, positive_inf_count=0, l2_norm=None,
        ),
    ),
    Expected(
        "output", 0, "float32", (2, 1, 2), "NCHW",
        statistics=described(
            dtype="float32", shape=(2, 1, 2), layout="NCHW", nbytes=16, maximum=7.5, minimum=-1.0, mean=2.375, count=4,
            nan_count=3, negative_inf_count=2, positive_inf_count=0, l2_norm=8.139,
        ),
    ),
)  # fmt: skip


def slots(dump: OpDump) -> dict[tuple[str, int], AnyTensor]:
    return {
        (side, index): tensor
        for side, tensors in (("input", dump.inputs), ("output", dump.outputs))
        for index, tensor in enumerate(tensors)
        if tensor is not None
    }


def read_values(tensor: Tensor) -> Array:
    """The numbers, decoded as the comparison would, in storage order."""
    dtype = data_types.compute_type(data_types.BY_NAME[tensor.dtype])
    plan = layouts.flat_plan(tensor.size)
    reader = TensorReader(tensor, plan, dtype, Scratch(), "npu")
    try:
        out = np.empty(math.prod(reader.logical_shape), dtype)
        for box in layouts.split_boxes(reader.logical_shape, reader.granules, 1 << 16):
            reader.read_box(box, out)
    finally:
        reader.close()
    return out


def stored_bytes(tensor: Tensor) -> bytes:
    return Path(tensor.path).read_bytes()[tensor.offset : tensor.offset + tensor.nbytes]


def never_wrong(dump: OpDump, expected: tuple[Expected, ...]) -> int:
    """Every tensor of a cut-off file is one of the original's, with its bytes; the number of them."""
    originals = {(slot.side, slot.index): slot for slot in expected}
    found = slots(dump)
    for key, tensor in found.items():
        slot = originals[key]
        assert (tensor.dtype, tensor.shape, tensor.layout) == (slot.dtype, slot.shape, slot.layout)
        if isinstance(tensor, TensorStatistics):
            assert slot.statistics is not None
            for item in fields(TensorStatistics):
                value = getattr(tensor, item.name)
                assert item.name == "path" or value in (getattr(slot.statistics, item.name), None)
        else:
            assert slot.values is not None
            assert stored_bytes(tensor) == slot.values.tobytes()
    return len(found)


class ReaderContract:
    """What holds for every format; subclasses say how a file of it is made."""

    name: str
    content: Callable[[], bytes]
    read: Callable[[str], Any]
    expected: tuple[Expected, ...]

    def write(self, folder: Path, content: bytes) -> str:
        path = folder / self.name
        path.write_bytes(content)
        return str(path)

    def open(self, path: str) -> OpDump:
        """With the format's own reader; a lone tensor as an op."""
        found = type(self).read(path)
        return found if isinstance(found, OpDump) else OpDump(path=path, outputs=(found,))

    def both(self, path: str) -> Iterable[Callable[[], OpDump]]:
        """The format's own reader, and the registry that looks at the first bytes."""
        return (lambda: self.open(path), lambda: open_op_dump(path))

    def test_shape_type_and_values(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, type(self).content())
        for open_it in self.both(path):
            dump = open_it()
            assert dump.path == path
            assert dump.bad_slots == ()
            found = slots(dump)
            assert found.keys() == {(slot.side, slot.index) for slot in self.expected}
            for slot in self.expected:
                tensor = found[slot.side, slot.index]
                assert (tensor.path, tensor.dtype, tensor.shape) == (path, slot.dtype, slot.shape)
                assert tensor.layout == slot.layout
                assert tensor.size == math.prod(slot.shape)
                if isinstance(tensor, TensorStatistics):
                    assert slot.statistics is not None
                    for item in fields(TensorStatistics):
                        if item.name != "path":
                            assert getattr(tensor, item.name) == getattr(slot.statistics, item.name), item.name
                else:
                    assert slot.values is not None
                    assert np.array_equal(read_values(tensor), slot.values.reshape(-1).astype(np.float64))

    def refused(self, path: str, error: type[PrecisionToolError], *words: str) -> None:
        for open_it in self.both(path):
            with pytest.raises(error) as caught:
                open_it()
            assert caught.value.message.startswith(path)
            assert caught.value.hint
            for word in words:
                assert word in caught.value.message

    def test_missing(self, tmp_path: Path) -> None:
        self.refused(str(tmp_path / "nowhere"), DataNotFoundError, "no such file")

    def test_folder(self, tmp_path: Path) -> None:
        self.refused(str(tmp_path), FormatError, "folder")

    def test_empty(self, tmp_path: Path) -> None:
        self.refused(self.write(tmp_path, b""), FormatError)

    def test_pipe_that_nobody_writes_to(self, tmp_path: Path) -> None:
        path = tmp_path / self.name
        os.mkfifo(path)
        self.refused(str(path), FormatError, "not a regular file")

    def test_no_permission(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # Tests may run as root, whom no file mode stops.
        path = self.write(tmp_path, type(self).content())

        def denied(*_: object, **__: object) -> int:
            raise PermissionError(errno.EACCES, "Permission denied", path)

        monkeypatch.setattr(os, "open", denied)
        self.refused(path, FormatError, "permission")

    def test_disk_that_fails(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = self.write(tmp_path, type(self).content())

        def broken(*_: object) -> int:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(os, "preadv", broken)
        self.refused(path, FormatError, "Input/output error")

    def test_cut_off_anywhere(self, tmp_path: Path) -> None:
        content = type(self).content()
        counts = []
        for size in range(len(content)):
            path = self.write(tmp_path, content[:size])
            for open_it in self.both(path):
                try:
                    dump = open_it()
                except PrecisionToolError as error:
                    assert error.message.startswith(path)  # noqa: PT017
                    counts.append(0)
                else:
                    counts.append(never_wrong(dump, self.expected))
        assert min(counts) == 0


class TestV2(ReaderContract):
    name = "v2"
    content = staticmethod(v2_bytes)
    read = staticmethod(read_dump)
    expected = TENSORS


class TestV1(ReaderContract):
    name = "v1"
    content = staticmethod(v1_bytes)
    read = staticmethod(read_dump)
    expected = TENSORS


class TestNpy(ReaderContract):
    name = "tensor.npy"
    content = staticmethod(npy_bytes)
    read = staticmethod(read_npy)
    expected = (Expected("output", 0, "float32", (2, 1, 2), "ND", RESULT),)


class TestTorch(ReaderContract):
    name = "tensor.pt"
    content = staticmethod(lambda: torch_bytes(RESULT))
    read = staticmethod(read_torch)
    expected = (Expected("output", 0, "float32", (2, 1, 2), "ND", RESULT),)


class TestSafetensors(ReaderContract):
    name = "model.safetensors"
    content = staticmethod(lambda: safetensors_bytes({"first": FIRST, "second": SECOND, "result": RESULT}))
    read = staticmethod(open_op_dump)
    expected = (
        Expected("output", 0, "float16", (2, 3), "ND", FIRST),
        Expected("output", 1, "int32", (4,), "ND", SECOND),
        Expected("output", 2, "float32", (2, 1, 2), "ND", RESULT),
    )


class TestStatistics(ReaderContract):
    name = "statistics.csv"
    content = staticmethod(statistics_bytes)
    read = staticmethod(read_statistics)
    expected = STATISTICS_TENSORS


# ---- damage of any kind, for every format

FORMATS: tuple[type[ReaderContract], ...] = (TestV2, TestV1, TestNpy, TestTorch, TestSafetensors, TestStatistics)
EVERY_FORMAT = pytest.mark.parametrize("kind", FORMATS, ids=[kind.name for kind in FORMATS])


@pytest.mark.parametrize("kind", [TestV2, TestNpy])  # the others are read up to their end
def test_bytes_behind_the_end_change_nothing(tmp_path: Path, kind: type[ReaderContract]) -> None:
    contract = kind()
    path = contract.write(tmp_path, kind.content() + b"\xff" * 40)
    assert never_wrong(contract.open(path), kind.expected) == len(kind.expected)


def survives(kind: type[ReaderContract], folder: Path, content: bytes) -> None:
    """A result whose tensors lie in the file and can be read, or the user's error."""
    contract = kind()
    path = contract.write(folder, content)
    for open_it in contract.both(path):
        try:
            dump = open_it()
            for tensor in slots(dump).values():
                assert isinstance(tensor.shape, tuple)
                if isinstance(tensor, Tensor):
                    assert tensor.offset + tensor.nbytes <= len(content)
                    if data_types.BY_NAME[tensor.dtype].is_numeric:
                        assert read_values(tensor).size in (tensor.size, 2 * tensor.size)
        except PrecisionToolError as error:
            assert error.message  # noqa: PT017


@EVERY_FORMAT
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(seed=st.integers(0, 1 << 32), changes=st.integers(1, 6))
def test_damaged_anyhow(tmp_path: Path, kind: type[ReaderContract], seed: int, changes: int) -> None:
    chance = random.Random(seed)
    content = bytearray(kind.content())
    for _ in range(changes):
        at = chance.randrange(len(content))
        how = chance.randrange(4)
        if how == 0:
            content[at] = chance.choice((0, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        elif how == 1:
            content[at] ^= 1 << chance.randrange(8)
        elif how == 2:
            content[at:at] = chance.randbytes(chance.randrange(1, 12))
        else:
            del content[at : at + chance.randrange(1, 12)]
        content = content or bytearray(1)
    survives(kind, tmp_path, bytes(content))


@EVERY_FORMAT
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(content=st.binary(max_size=200))
@example(b"\x93NUMPY")
@example(b"\x93NUMPY\x01\x00\x02\x00()")
def test_anything_at_all(tmp_path: Path, kind: type[ReaderContract], content: bytes) -> None:
    survives(kind, tmp_path, content)
    survives(kind, tmp_path, kind.content()[:24] + content)


# ---- claims that no file keeps


def peak_of(call: Callable[[], object]) -> int:
    """Most bytes allocated at once while `call` runs, whether it fails or not."""
    tracemalloc.start()
    try:
        call()
    except PrecisionToolError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


def npy_head(head: str) -> bytes:
    text = head.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


TERA = 1 << 40
MANY = 300_000
CLAIMS = {
    "v2 shape": v2(op_output(1, 2, (TERA,), 4 * TERA), b"1234"),
    "v2 shape that overflows": v2(op_output(1, 2, (1 << 62, 1 << 62, 1 << 62), 1 << 63), b"1234"),
    "v2 shape with a zero": v2(op_output(1, 2, (1 << 62, 0), 0), b"1234"),
    "v2 size": v2(op_output(1, 2, (2,), 1 << 63), b"1234"),
    "v2 header length": struct.pack("<Q", TERA) + b"1234",
    "v2 largest header length": b"\xff" * 8 + b"1234",
    "v2 name length": v2(varint(6 << 3 | 2) + varint(TERA) + b"name"),
    "v2 ten thousand dims": v2(op_output(1, 2, (1,) * 10_000, 4), b"1234"),
    "v2 many dims": v2(op_output(1, 2, (1,) * MANY, 4), b"1234"),
    "v2 many dims one by one": v2(sized(3, number(1, 1) + sized(3, number(1, 1) * MANY)), b"1234"),
    "v2 many dims of the original": v2(op_output(1, 2, (1,), 4, more=sized(7, packed_dims(*(1,) * MANY)))),
    "v2 many outputs": v2(b"\x1a\x00" * MANY),
    "v2 many spaces": v2(b"\x42\x00" * MANY),
    "v1 data": sized(6, b"add") + varint(3 << 3 | 2) + varint(TERA) + b"1234",
    "npy shape": npy_head(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({TERA}, {TERA}), }}"),
    "npy largest shape": npy_head(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({10**400},), }}"),
    "npy item": npy_head("{'descr': '|V2000000000', 'fortran_order': False, 'shape': (1,), }"),
    "npy text": npy_head("{'descr': '<U500000000', 'fortran_order': False, 'shape': (1,), }"),
    "npy header": b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
    "safetensors shape": with_header({"a": safetensors_entry("F32", [TERA], 0, 4 * TERA)}, b"1234"),
    "safetensors header": struct.pack("<Q", 1 << 31) + b"{",
    "safetensors many dims": with_header({"a": safetensors_entry("I8", [1] * 20_000, 0, 1)}, b"1"),
    "statistics index": STATISTICS.replace("Output,0", "Output,65535").encode(),
    "statistics largest index": STATISTICS.replace("Output,0", "Output,99999999999999").encode(),
    "statistics shape": STATISTICS.replace("2x1x2", "x".join(["9" * 30] * 1000)).encode(),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_claimed_sizes_cost_no_memory(tmp_path: Path, name: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(CLAIMS[name])
    # Of that many slots the first 65,536 are kept until there are too many.
    limit = 48 << 20 if name == "v2 many outputs" else 3 << 19
    assert peak_of(lambda: open_op_dump(str(path))) < limit


@pytest.mark.parametrize("name", [name for name in CLAIMS if name not in ("v2 shape with a zero", "v2 many spaces")])
def test_claims_are_refused(tmp_path: Path, name: str) -> None:
    """As a whole, or the one tensor."""
    path = tmp_path / "file"
    path.write_bytes(CLAIMS[name])
    try:
        dump = open_op_dump(str(path))
    except PrecisionToolError as error:
        assert error.hint  # noqa: PT017
        return
    found = slots(dump)
    if name == "v2 many dims of the original":
        assert dump.bad_slots or found["output", 0].origin_shape is None  # type: ignore[union-attr]
    elif name.startswith("statistics"):
        assert "input" in {side for side, _ in found}  # the rows before are good
    else:
        assert not found
        assert dump.bad_slots


def test_a_header_length_larger_than_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(struct.pack("<Q", 5000) + v2_bytes()[8:])
    with pytest.raises(FormatError, match="header length at byte 0 is 5000"):
        read_dump(str(path))


# ---- the dump's header


def output_of(tmp_path: Path, header: bytes, data: bytes = b"\0" * 64) -> OpDump:
    path = tmp_path / "dump"
    path.write_bytes(v2(header, data))
    return read_dump(str(path))


def only_output(dump: OpDump) -> Tensor:
    assert dump.bad_slots == ()
    (tensor,) = dump.outputs
    assert isinstance(tensor, Tensor)
    return tensor


UNKNOWN = {
    "varint": number(600, 1 << 63),
    "fixed64": varint(601 << 3 | 1) + b"\xff" * 8,
    "bytes": sized(602, b"\xff" * 300),
    "empty bytes": sized(603, b""),
    "fixed32": varint(604 << 3 | 5) + b"\xff" * 4,
    "largest field number": varint(((1 << 29) - 1) << 3) + b"\x01",
}


@pytest.mark.parametrize("extra", UNKNOWN.values(), ids=[*UNKNOWN])
def test_unknown_fields_are_skipped_everywhere(tmp_path: Path, extra: bytes) -> None:
    shape = sized(3, extra + packed_dims(2) + extra + packed_dims(3) + extra)
    output = sized(3, extra + number(1, 1) + extra + number(2, 1) + shape + extra + number(6, 24) + extra)
    data = np.arange(6, dtype=np.float32)
    dump = output_of(tmp_path, extra + output + extra + sized(6, b"op") + extra, data.tobytes())
    tensor = only_output(dump)
    assert (dump.op_name, tensor.shape, tensor.layout) == ("op", (2, 3), "NHWC")
    assert np.array_equal(read_values(tensor), data)


@pytest.mark.parametrize(
    "dims",
    [
        packed_dims(2, 300, 1),
        single_dims(2, 300, 1),
        single_dims(2) + packed_dims(300, 1),
        sized(1, b"") * 3 + single_dims(2, 300, 1),
    ],
    ids=["packed", "one by one", "mixed", "empty runs before"],
)
def test_dims_packed_or_not(tmp_path: Path, dims: bytes) -> None:
    header = sized(3, number(1, 4) + sized(3, dims) + sized(7, dims) + number(6, 600))
    tensor = only_output(output_of(tmp_path, header, bytes(600)))
    assert tensor.shape == (2, 300, 1)
    assert tensor.origin_shape == (2, 300, 1)


def test_no_shape_is_a_scalar(tmp_path: Path) -> None:
    tensor = only_output(output_of(tmp_path, sized(3, number(1, 1) + number(6, 4)), struct.pack("<f", 2.5)))
    assert tensor.shape == ()
    assert tensor.origin_shape is None
    assert read_values(tensor).tolist() == [2.5]


def test_an_original_shape_without_dims_is_a_scalar(tmp_path: Path) -> None:
    assert only_output(output_of(tmp_path, sized(3, number(1, 1) + number(6, 4) + sized(7, b"")))).origin_shape == ()


def test_an_original_shape_with_an_unknown_dim_says_nothing(tmp_path: Path) -> None:
    header = op_output(1, 2, (2,), 8, more=sized(7, packed_dims(-1, 3)))
    assert only_output(output_of(tmp_path, header)).origin_shape is None


@pytest.mark.parametrize("code", [24, 25, 26, 41, 99, 1 << 40, -1])
def test_an_unknown_data_type_costs_one_slot(tmp_path: Path, code: int) -> None:
    header = op_output(code, 2, (2,), 8) + op_output(1, 2, (2,), 8)
    dump = output_of(tmp_path, header, bytes(8) + struct.pack("<2f", 1, 2))
    assert dump.outputs[0] is None
    assert [slot for slot, _ in dump.bad_slots] == ["output:0"]
    assert f"data type {code & (1 << 64) - 1}" in str(dump.bad_slots[0][1])
    assert isinstance(dump.outputs[1], Tensor)
    assert read_values(dump.outputs[1]).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("code", "layout"),
    [
        (0, "NCHW"), (1, "NHWC"), (2, "ND"), (3, "NC1HWC0"), (4, "FRACTAL_Z"), (5, "NC1C0HWPAD"), (6, "NHWC1C0"),
        (7, "FSR_NCHW"), (8, "FRACTAL_DECONV"), (9, "C1HWNC0"), (12, "NC1HWC0_C04"), (13, "FRACTAL_Z_C04"),
        (14, "CHWN"), (16, "HWCN"), (27, "NDHWC"), (28, "FRACTAL_ZZ"), (29, "FRACTAL_NZ"), (30, "NCDHW"),
        (31, "DHWCN"), (32, "NDC1HWC0"), (33, "FRACTAL_Z_3D"), (34, "CN"), (35, "NC"), (36, "DHWNC"),
        (40, "RESERVED"), (41, "ALL"), (42, "NULL"), (47, "NCL"), (255, "MAX"),
        (29 | 1 << 8, "FRACTAL_NZ"), (4 | 32 << 8, "FRACTAL_Z"), (3 | 5 << 24, "NC1HWC0"),
        (4 | 0x4000_2000, "FRACTAL_Z"), (200, "format 200"), (200 | 1 << 8, "format 456"),
    ],
)  # fmt: skip
def test_layout_codes(tmp_path: Path, code: int, layout: str) -> None:
    """The upper bytes hold the sub-format and C0; an unknown layout is told apart from a known one."""
    assert only_output(output_of(tmp_path, op_output(1, code, (2,), 8))).layout == layout


def test_no_layout_is_nchw_as_the_enum_has_it(tmp_path: Path) -> None:
    """proto3 leaves zeros out: no data type is code 0 (undefined), no format is code 0 (NCHW)."""
    tensor = only_output(output_of(tmp_path, sized(3, sized(3, packed_dims(1, 2)) + number(6, 2)), b"\x01\xff"))
    assert (tensor.dtype, tensor.layout) == ("undefined", "NCHW")
    assert read_values(tensor).tolist() == [1, -1]


def test_of_repeated_numbers_the_last_counts_and_messages_merge(tmp_path: Path) -> None:
    """What the protobuf documentation asks of every parser."""
    output = number(1, 7) + number(1, 1) + number(2, 3) + number(2, 1) + number(6, 999) + number(6, 24)
    output += sized(3, packed_dims(2)) + sized(3, packed_dims(3))
    data = np.arange(6, dtype=np.float32)
    dump = output_of(tmp_path, sized(6, b"first") + sized(3, output) + sized(6, b"last"), data.tobytes())
    tensor = only_output(dump)
    assert (dump.op_name, tensor.dtype, tensor.layout, tensor.shape) == ("last", "float32", "NHWC", (2, 3))
    assert np.array_equal(read_values(tensor), data)


@pytest.mark.parametrize("field", [1, 2, 3, 5, 6, 7, 9])
@pytest.mark.parametrize("wrong", [b"\x00", None], ids=["as a number", "as bytes"])
def test_a_known_field_of_another_kind_is_an_unknown_field(tmp_path: Path, field: int, wrong: bytes | None) -> None:
    extra = varint(field << 3) + b"\x05" if wrong is not None else sized(field, b"\xff\xff")
    if field in (3, 5, 7) and wrong is None:
        return  # these are bytes and messages: that is their kind
    header = op_output(1, 1, (2, 2), 16, more=sized(7, packed_dims(4)) + extra)
    if field in (1, 2, 6, 9) and wrong is not None:
        return  # these are numbers
    tensor = only_output(output_of(tmp_path, header))
    assert (tensor.shape, tensor.layout, tensor.origin_shape, tensor.nbytes) == ((2, 2), "NHWC", (4,), 16)
    assert tensor.address == 0


def test_bytes_lie_in_the_order_inputs_outputs_whatever_the_order_of_the_header(tmp_path: Path) -> None:
    header = op_output(4, 2, (2,), 2) + op_input(4, 2, (3,), 3) + op_output(4, 2, (1,), 1) + op_input(4, 2, (1,), 1)
    dump = output_of(tmp_path, header, b"abcdefg")
    assert [stored_bytes(t) for t in dump.inputs if isinstance(t, Tensor)] == [b"abc", b"d"]
    assert [stored_bytes(t) for t in dump.outputs if isinstance(t, Tensor)] == [b"ef", b"g"]


def test_a_damaged_slot_costs_only_itself(tmp_path: Path) -> None:
    header = op_input(1, 2, (5,), 8) + op_input(4, 2, (3,), 3) + op_output(4, 2, (2,), 2) + op_output(4, 2, (99,), 99)
    dump = output_of(tmp_path, header, b"12345678" + b"abc" + b"de")
    assert [slot for slot, _ in dump.bad_slots] == ["input:0", "output:1"]
    assert "needs 20 bytes" in str(dump.bad_slots[0][1])
    assert "past the end" in str(dump.bad_slots[1][1])
    assert dump.inputs[0] is None
    assert isinstance(dump.inputs[1], Tensor)
    assert stored_bytes(dump.inputs[1]) == b"abc"
    assert isinstance(dump.outputs[0], Tensor)
    assert stored_bytes(dump.outputs[0]) == b"de"


@pytest.mark.parametrize("excess", [1, 2, 1 << 40])
def test_a_field_that_claims_more_than_its_message_has(tmp_path: Path, excess: int) -> None:
    """Even where the file goes on behind it."""
    shape = varint(3 << 3 | 2) + varint(2 + excess) + b"\x08\x02"
    header = sized(3, number(1, 1) + number(6, 8) + shape) + op_output(1, 2, (2,), 8)
    with pytest.raises(FormatError, match="not a dump header"):
        output_of(tmp_path, header)


def test_strings_have_any_size(tmp_path: Path) -> None:
    tensor = only_output(output_of(tmp_path, op_output(13, 2, (1000,), 5), b"hello"))
    assert (tensor.dtype, tensor.nbytes) == ("string", 5)


@pytest.mark.parametrize(("code", "nbytes"), [(28, 3), (28, 5), (28, 32), (29, 1), (37, 4), (39, 5)])
def test_small_types_packed_padded_or_a_byte_each(tmp_path: Path, code: int, nbytes: int) -> None:
    tensor = only_output(output_of(tmp_path, op_output(code, 2, (5,), nbytes), b"\x11" * nbytes))
    one = {28: 1, 29: None, 37: None, 39: 0.5}[code]
    found = read_values(tensor)
    assert found.size == 5
    if code == 29:  # 0x11: the bits 0, 0, 0, 1, 0
        assert found.tolist() == [0, 0, 0, 1, 0]
    elif code == 37:  # 0x11 0x11 0x11 0x11: the six-bit codes 0x11, 0x04, 0x11, 0x04, 0x11
        assert found.tolist() == [2.5, 0.25, 2.5, 0.25, 2.5]
    else:
        assert found.tolist() == [one] * 5


@pytest.mark.parametrize(("code", "nbytes"), [(28, 2), (37, 3), (1, 19), (16, 39)])
def test_fewer_bytes_than_the_shape_needs(tmp_path: Path, code: int, nbytes: int) -> None:
    dump = output_of(tmp_path, op_output(code, 2, (5,), nbytes))
    assert dump.outputs == (None,)
    assert "needs" in str(dump.bad_slots[0][1])


# ---- against protobuf's own parser


def dump_data_class() -> Any:
    """DumpData as FORMATS.md lists it, made into a class by Google's library."""
    proto = descriptor_pb2.FileDescriptorProto(name="dump_data_test.proto", package="t", syntax="proto3")
    types = descriptor_pb2.FieldDescriptorProto
    kinds = {"u64": types.TYPE_UINT64, "i32": types.TYPE_INT32, "str": types.TYPE_STRING, "bytes": types.TYPE_BYTES}

    def message(name: str, /, **entries: tuple[int, str, bool]) -> None:
        item = proto.message_type.add(name=name)
        for field_name, (field_number, kind, repeated) in entries.items():
            label = types.LABEL_REPEATED if repeated else types.LABEL_OPTIONAL
            field = item.field.add(name=field_name, number=field_number, label=label)
            if kind in kinds:
                field.type = kinds[kind]
            else:
                field.type, field.type_name = types.TYPE_MESSAGE, f".t.{kind}"

    message("Shape", dim=(1, "u64", True))
    original = {"name": (1, "str", False), "output_index": (2, "u64", False)}
    message("Original", **original, data_type=(3, "i32", False), format=(4, "i32", False))
    common = {"data_type": (1, "i32", False), "format": (2, "i32", False), "shape": (3, "Shape", False)}
    message(
        "OpOutput", **common, original_op=(4, "Original", False), data=(5, "bytes", False), size=(6, "u64", False),
        original_shape=(7, "Shape", False), sub_format=(8, "i32", False), address=(9, "u64", False),
        offset=(11, "u64", False),
    )  # fmt: skip
    message(
        "OpInput", **common, data=(4, "bytes", False), size=(5, "u64", False), original_shape=(6, "Shape", False),
        sub_format=(7, "i32", False), address=(8, "u64", False), offset=(9, "u64", False),
        arg_index=(10, "u64", False), input_type=(11, "i32", False),
    )  # fmt: skip
    message("OpBuffer", buffer_type=(1, "i32", False), data=(2, "bytes", False), size=(3, "u64", False))
    message(
        "DumpData", version=(1, "str", False), dump_time=(2, "u64", False), output=(3, "OpOutput", True),
        input=(4, "OpInput", True), buffer=(5, "OpBuffer", True), op_name=(6, "str", False),
        dfx_message=(9, "bytes", False),
    )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(proto)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.DumpData"))


DumpData = dump_data_class()
CODES = [code for code in data_types.BY_CODE if code not in (14, 15)]


@st.composite
def slot_values(draw: st.DrawFn) -> dict[str, Any]:
    code = draw(st.sampled_from(CODES))
    dims = draw(st.lists(st.integers(0, 5), max_size=4))
    data_type = data_types.BY_CODE[code]
    bits = {13: 8, 23: 8}.get(code, data_type.bits)
    content = draw(st.binary(min_size=0, max_size=3)) + bytes((math.prod(dims) * bits + 7) // 8)
    return {
        "data_type": code,
        "format": draw(st.sampled_from([0, 1, 2, 3, 29, 29 | 7 << 8])),
        "dims": dims,
        "origin": draw(st.none() | st.lists(st.integers(0, 5), max_size=4)),
        "content": content,
        "address": draw(st.integers(0, (1 << 64) - 1)),
        "sub_format": draw(st.integers(-1, 9)),
        "arg_index": draw(st.integers(0, 99)),
    }


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    inputs=st.lists(slot_values(), max_size=3),
    outputs=st.lists(slot_values(), max_size=3),
    name=st.text(max_size=20).filter(lambda text: text.isprintable()),
    version=st.sampled_from([1, 2]),
)
def test_what_protobuf_writes_is_read(
    tmp_path: Path, inputs: list[dict[str, Any]], outputs: list[dict[str, Any]], name: str, version: int
) -> None:
    assume(name or inputs or outputs)  # a v1 file that names nothing cannot be told from garbage
    message = DumpData(version="2.0", dump_time=123, op_name=name, dfx_message=b"\x00\xff")
    for target, values_of in ((message.input, inputs), (message.output, outputs)):
        for values in values_of:
            slot = target.add(
                data_type=values["data_type"], format=values["format"], size=len(values["content"]),
                address=values["address"], sub_format=values["sub_format"],
            )  # fmt: skip
            slot.shape.dim.extend(values["dims"])
            if values["origin"] is not None:
                slot.original_shape.SetInParent()
                slot.original_shape.dim.extend(values["origin"])
            if version == 1:
                slot.data = values["content"]
            if target is message.input:
                slot.arg_index = values["arg_index"]
    header = message.SerializeToString()
    data = b"".join(values["content"] for values in (*inputs, *outputs))
    path = tmp_path / "dump"
    path.write_bytes(header if version == 1 else v2(header, data))
    dump = read_dump(str(path))
    assert dump.bad_slots == ()
    assert dump.op_name == name
    for found, values_of in ((dump.inputs, inputs), (dump.outputs, outputs)):
        assert len(found) == len(values_of)
        for tensor, values in zip(found, values_of, strict=True):
            assert isinstance(tensor, Tensor)
            assert data_types.BY_NAME[tensor.dtype].code == values["data_type"]
            assert tensor.layout == {0: "NCHW", 1: "NHWC", 2: "ND", 3: "NC1HWC0"}.get(values["format"], "FRACTAL_NZ")
            assert tensor.shape == tuple(values["dims"])
            assert tensor.origin_shape == (None if values["origin"] is None else tuple(values["origin"]))
            assert tensor.address == values["address"]
            assert stored_bytes(tensor) == values["content"]


# ---- .npy


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", "unpickled"),
        ("{'descr': '<U4', 'fortran_order': False, 'shape': (1,), }", "not numbers"),
        ("{'descr': '|S4', 'fortran_order': False, 'shape': (1,), }", "not numbers"),
        ("{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (1,), }", "not numbers"),
        ("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", "not numbers"),
        ("{'descr': ('<f4', (2,)), 'fortran_order': False, 'shape': (1,), }", "not numbers"),
        ("{'descr': '|V1', 'fortran_order': False, 'shape': (1,), }", "not numbers"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", "negative"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (9,), }", "the file ends"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': 4, }", "damaged"),
        ("{'descr': '<f4', 'fortran_order': 7, 'shape': (1,), }", "damaged"),
        ("{'descr': '<f4', 'shape': (1,), }", "damaged"),
        ("{'descr': '<q9', 'fortran_order': False, 'shape': (1,), }", "damaged"),
        ("{'descr': 7, 'fortran_order': False, 'shape': (1,), }", "damaged"),
        ("{'descr': '<f4,<i4', 'fortran_order': False, 'shape': (1,), }", "not numbers"),
        ("__import__('os').getcwd()", "damaged"),
        ("('", "damaged"),
        ("(((((", "damaged"),
        ("{'descr': '''", "damaged"),
        ("  {\n 3", "damaged"),
        ("if x:\n  3\n 4", "damaged"),
        ("1_0L", "damaged"),
        ("{'a\\q': 0777, 1if 2else 3: 1}", "damaged"),
        ("[" * 3000, "damaged"),
        ("\0", "damaged"),
        ("", "damaged"),
    ],
)
def test_npy_headers_that_are_refused(tmp_path: Path, head: str, words: str) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(npy_head(head) + bytes(16))
    with pytest.raises(FormatError, match=words) as caught:
        read_npy(str(path))
    assert caught.value.hint
    assert "\n" not in caught.value.message
    if caught.value.kind == "io.npy.header":  # why is a message too, which Chinese users read in Chinese
        assert isinstance(caught.value.fields["reason"], Message)


@pytest.mark.parametrize(
    "piece",
    ["(", "[", "{", "-", "~", "1,", "-1,", "1L,", "'a' ", "'descr':", "\\\n", " \n", "\n ", "\f", "#", "not ", "f(",
     "1if 1else ", "lambda:", "a."],
)  # fmt: skip
@pytest.mark.parametrize("start", ["", "{", "{'descr': '<f4', 'fortran_order': False, 'shape': (", "{'descr': '"])
def test_npy_headers_of_any_length_take_no_time(tmp_path: Path, start: str, piece: str) -> None:
    """numpy's parser took about an hour for some of 60 KB."""
    path = tmp_path / "a.npy"
    path.write_bytes(npy_head(start + piece * (60_000 // len(piece))) + bytes(16))
    began = time.process_time()
    with pytest.raises(FormatError) as caught:
        read_npy(str(path))
    assert time.process_time() - began < 1
    assert len(caught.value.message) < 300 + len(str(path))


@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    head=st.lists(
        st.sampled_from(
            ["{", "}", "(", ")", "[", "]", "'", '"', ",", ":", "descr", "fortran_order", "shape", "<f4", "True", "0",
             "1", "-", "L", "\n", " ", "\\", "#", "e", "_", ".", "\t", "0x", "if", "é", "None", "*", "\f", "lambda"]
        ),
        max_size=25,
    ).map("".join)
)  # fmt: skip
def test_npy_headers_of_any_text(tmp_path: Path, head: str) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(npy_head(head) + bytes(16))
    with pytest.raises(FormatError):
        read_npy(str(path))


def test_npy_of_python_2(tmp_path: Path) -> None:
    """Python 2 wrote long shapes as 2L; TensorFlow 1.x ran on it."""
    path = tmp_path / "a.npy"
    path.write_bytes(
        npy_head("{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 1L), }") + struct.pack("<2f", 1, 2)
    )
    assert read_npy(str(path)).shape == (2, 1)
    assert read_values(read_npy(str(path))).tolist() == [1, 2]


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_npy_versions(tmp_path: Path, version: tuple[int, int]) -> None:
    path = tmp_path / "a.npy"
    with path.open("wb") as stream:
        np.lib.format.write_array(stream, RESULT, version=version)
    assert np.array_equal(read_values(read_npy(str(path))), RESULT.reshape(-1))


def test_npy_of_a_version_to_come(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(npy_bytes().replace(b"NUMPY\x01\x00", b"NUMPY\x04\x00"))
    with pytest.raises(FormatError, match=r"version 4\.0"):
        read_npy(str(path))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (0,), (2, 0, 3), (1, 1, 1, 1, 1, 1, 2)])
def test_npy_shapes(tmp_path: Path, shape: tuple[int, ...], order: str) -> None:
    path = tmp_path / "a.npy"
    array = np.arange(math.prod(shape), dtype="<f8").reshape(shape)
    np.save(path, np.asarray(array, order="F" if order == "F" else "C"))
    tensor = read_npy(str(path))
    assert (tensor.shape, tensor.origin_shape, tensor.dtype, tensor.nbytes) == (shape, shape, "float64", array.nbytes)
    assert stored_bytes(tensor) == array.tobytes("F" if tensor.fortran_order else "C")
    assert tensor.fortran_order == (np.load(path).flags.fnc)


# ---- statistics


def statistics_of(tmp_path: Path, text: str) -> OpDump:
    path = tmp_path / "a.csv"
    path.write_text(text, encoding="utf-8")
    return read_statistics(str(path))


def test_statistics_columns_in_any_order(tmp_path: Path) -> None:
    header, *rows = [line.split(",") for line in STATISTICS.splitlines()]
    order = list(range(len(header)))
    for seed in range(5):
        random.Random(seed).shuffle(order)
        text = "\r\n".join(",".join(row[i] for i in order) for row in (header, *rows)) + "\r\n"
        assert never_wrong(statistics_of(tmp_path, text), STATISTICS_TENSORS) == 3
        found = slots(statistics_of(tmp_path, text))["input", 0]
        assert isinstance(found, TensorStatistics)
        assert found.l2_norm == 65504.25


def test_statistics_with_a_byte_order_mark_and_without_l2norm(tmp_path: Path) -> None:
    text = "\ufeff" + "".join(line.rpartition(",")[0] + "\n" for line in STATISTICS.splitlines())
    dump = statistics_of(tmp_path, text)
    assert never_wrong(dump, STATISTICS_TENSORS) == 3
    assert slots(open_op_dump(dump.path)) == slots(dump)
    assert {tensor.l2_norm for tensor in slots(dump).values() if isinstance(tensor, TensorStatistics)} == {None}


def test_a_file_whose_last_line_has_no_end(tmp_path: Path) -> None:
    """The last number may be cut off, so it is not known; the rest is."""
    found = slots(statistics_of(tmp_path, STATISTICS[:-1]))["output", 0]
    assert isinstance(found, TensorStatistics)
    assert (found.mean, found.count, found.l2_norm) == (2.375, 4, None)


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ("Input,x,16,DT_FLOAT,ND,2,1,1,1,1,0,0,0,1", "x"),
        ("Input,-1,16,DT_FLOAT,ND,2,1,1,1,1,0,0,0,1", "-1"),
        ("Inout,0,16,DT_FLOAT,ND,2,1,1,1,1,0,0,0,1", "Inout"),
        ("Input,0,16,DT_FLOAT,ND,2xx,one,1,1,1,0,0,0,1", "one"),
        ("Input,0,16,DT_FLOAT,ND,2y3,1,1,1,1,0,0,0,1", "2y3"),
        ("Input,0,16,DT_FLOAT,ND,2,1,1,1,1.5,0,0,0,1", "1.5"),
        ("Input,0,16,DT_FLOAT,ND," + "2" * 200_000 + ",1,1,1,1,0,0,0,1", ""),
    ],
)
def test_statistics_rows_that_cannot_be_read(tmp_path: Path, cells: str, why: str) -> None:
    head, good = STATISTICS.splitlines()[0], STATISTICS.splitlines()[3]
    dump = statistics_of(tmp_path, f"{head}\n{good}\n{cells}\n")
    assert list(slots(dump)) == [("output", 0)]
    ((_, reason),) = dump.bad_slots
    assert reason.line == 3
    assert why in reason.reason


def test_statistics_of_skipped_slots(tmp_path: Path) -> None:
    dump = statistics_of(tmp_path, STATISTICS.replace("Input,1", "Input,3"))
    assert [tensor is not None for tensor in dump.inputs] == [True, False, False, True]
    assert dump.bad_slots == ()


@pytest.mark.parametrize("text", ["", "\n", "a,b,c\n1,2,3\n", "Input/Output,Index\n", "\x00\x01\x02", '"' * 300_000])
def test_no_statistics_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(FormatError, match="not a statistics file"):
        statistics_of(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "shape"), [("2x3", (2, 3)), ("4", (4,)), ("", ()), ("NA", ()), ("[2,3]", (2, 3)), ("0x5", (0, 5))]
)
def test_statistics_shapes(tmp_path: Path, text: str, shape: tuple[int, ...]) -> None:
    quoted = f'"{text}"'
    found = slots(statistics_of(tmp_path, STATISTICS.replace("2x1x2", quoted)))["output", 0]
    assert found.shape == shape


# ---- junk that looks like a message


@pytest.mark.parametrize(
    "content",
    [b"\x40\x01" * (2 << 20), v2(b"\x40\x01" * (2 << 20)), sized(3, b"\x40\x01" * (1 << 20)) * 2],
    ids=["v1", "v2", "one slot"],
)
def test_junk_that_looks_like_fields_is_given_up_soon(tmp_path: Path, content: bytes) -> None:
    """Walked to its end, a gigabyte of it would take minutes."""
    path = tmp_path / "junk"
    path.write_bytes(content)
    started = time.process_time()
    with pytest.raises(FormatError, match="not a dump file, or damaged"):
        read_dump(str(path))
    assert time.process_time() - started < 1


def test_thousands_of_tensors_are_read(tmp_path: Path) -> None:
    header = b"".join(op_input(1, 2, (1,), 4, more=sized(6, single_dims(1))) for _ in range(5000))
    path = tmp_path / "dump"
    path.write_bytes(v2(header, bytes(4 * 5000)))
    assert len(read_dump(str(path)).inputs) == 5000


def test_a_shape_in_pieces_is_read_as_one_however_often(tmp_path: Path) -> None:
    def output(*pieces: tuple[int, ...]) -> bytes:
        shape = b"".join(sized(3, packed_dims(*dims)) for dims in pieces)
        size = 4 * math.prod(extent for dims in pieces for extent in dims)
        return sized(3, number(1, data_types.BY_NAME["float32"].code) + number(2, 2) + shape + number(6, size))

    outputs = [output((2,), (3,)), output((2,)), output((3,)), output((2,), (3,), (2,)), output((2,), (3,))]
    header = b"".join(outputs)
    path = tmp_path / "dump"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4 * (6 + 2 + 3 + 12 + 6)))
    wanted = [(2, 3), (2,), (3,), (2, 3, 2), (2, 3)]
    for _ in range(2):
        assert [tensor and tensor.shape for tensor in read_dump(str(path)).outputs] == wanted
