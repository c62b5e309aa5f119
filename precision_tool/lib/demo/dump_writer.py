"""Writers for dump files, statistics and golden tensors, and the packers for the device's storage layouts.

They share no code with the readers in `formats`, so that each checks the other.
Field numbers: `dump_data.proto` of CANN's runtime.
"""

from __future__ import annotations

import csv
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from precision_tool.lib.io.data_types import BY_NAME, LAYOUT_CODES

Array = npt.NDArray[Any]
#: Data too big for memory: each call starts a new pass over the blocks, in storage order.
Blocks = Callable[[], Iterable[Array]]

BLOCK = 16  # C0 and N0 of float16; the demo uses it for float32 too, as the cube unit does
FFTSPLUS = 4

STATISTICS_COLUMNS = (
    "Input/Output", "Index", "Data Size", "Data Type", "Format", "Shape", "Max Value", "Min Value", "Avg Value",
    "Count", "Nan Count", "Negative Inf Count", "Positive Inf Count", "l2norm",
)  # fmt: skip


# ---- names -------------------------------------------------------------------------------------------------


def flatten_name(name: str) -> str:
    r"""`name` as dump files spell it: `.`, `/`, `\` and space become `_`."""
    return name.translate(str.maketrans("./\\ ", "____"))


def dump_file_name(
    op_type: str,
    op_name: str,
    task_id: int,
    timestamp: int,
    *,
    stream_id: int | None = None,
    ffts: tuple[int, int, int] | None = None,
) -> str:
    """File name of a dump; `ffts` is (context id, thread id, device id) of an FFTS+ task."""
    parts: list[object] = [flatten_name(op_type), flatten_name(op_name), task_id]
    if stream_id is not None:
        parts.append(stream_id)
    parts.append(f"{timestamp:016d}")
    if ffts is not None:
        parts += [FFTSPLUS, *ffts]
    return ".".join(map(str, parts))


def golden_file_name(op_name: str, index: int, timestamp: int) -> str:
    """File name of output `index` of a benchmark op."""
    return f"{op_name.replace('/', '_').replace('.', '_')}.{index}.{timestamp:016d}.npy"


# ---- storage layouts ---------------------------------------------------------------------------------------


def _ceil_div(value: int, by: int) -> int:
    return -(-value // by)


def _split_last(array: Array, axis: int, width: int) -> Array:
    """Split the last axis into blocks of `width`, zero padded, with the block number as new axis `axis`."""
    count = array.shape[-1]
    blocks = _ceil_div(count, width)
    lead = array.shape[:-1]
    out = np.zeros((*lead[:axis], blocks, *lead[axis:], width), array.dtype)
    for block in range(blocks):
        part = array[..., block * width : (block + 1) * width]
        out[(slice(None),) * axis + (block,)][..., : part.shape[-1]] = part
    return out


def pack_nc1hwc0(array: Array, origin_layout: str = "NHWC", c0: int = BLOCK) -> Array:
    """NHWC or NCHW → (N, C1, H, W, C0)."""
    if origin_layout == "NCHW":
        array = array.transpose(0, 2, 3, 1)
    elif origin_layout != "NHWC":
        raise ValueError(f"NC1HWC0 is made from NHWC or NCHW, not {origin_layout}")
    return _split_last(array, 1, c0)


def pack_ndc1hwc0(array: Array, origin_layout: str = "NDHWC", c0: int = BLOCK) -> Array:
    """NDHWC or NCDHW → (N, D, C1, H, W, C0)."""
    if origin_layout == "NCDHW":
        array = array.transpose(0, 2, 3, 4, 1)
    elif origin_layout != "NDHWC":
        raise ValueError(f"NDC1HWC0 is made from NDHWC or NCDHW, not {origin_layout}")
    return _split_last(array, 2, c0)


def pack_fractal_nz(array: Array, n0: int = BLOCK, c0: int = BLOCK) -> Array:
    """ND of rank 2 or more, (…, rows, columns) → (…, C1, N1, N0, C0)."""
    rows, columns = array.shape[-2:]
    lead = array.shape[:-2]
    n1, c1 = _ceil_div(rows, n0), _ceil_div(columns, c0)
    if rows % n0:
        padded = np.zeros((*lead, n1 * n0, columns), array.dtype)
        padded[..., :rows, :] = array
        array = padded
    split = _split_last(array, len(lead), c0)
    return split.reshape(*lead, c1, n1, n0, c0)


def pack_fractal_z(array: Array, origin_layout: str = "HWCN", n0: int = BLOCK, c0: int = BLOCK) -> Array:
    """A filter in HWCN, NCHW or NHWC → (C1·H·W, N1, N0, C0)."""
    orders = {"HWCN": (0, 1, 2, 3), "NCHW": (2, 3, 1, 0), "NHWC": (1, 2, 3, 0)}
    if origin_layout not in orders:
        raise ValueError(f"FRACTAL_Z is made from {', '.join(orders)}, not {origin_layout}")
    height, width, channels, count = (hwcn := array.transpose(orders[origin_layout])).shape
    c1, n1 = _ceil_div(channels, c0), _ceil_div(count, n0)
    padded = np.zeros((height, width, c1 * c0, n1 * n0), array.dtype)
    padded[:, :, :channels, :count] = hwcn
    tiles = padded.reshape(height, width, c1, c0, n1, n0).transpose(2, 0, 1, 4, 5, 3)
    return np.ascontiguousarray(tiles).reshape(c1 * height * width, n1, n0, c0)


def pack(array: Array, layout: str, origin_layout: str) -> Array:
    """Return a tensor as the device stores it, in blocks of 16 padded with zeros; plain layouts stay as they are.

    Parameters
    ----------
    array : array
        In `origin_layout`, with as many axes as its name has letters; of any rank for FRACTAL_NZ.
    layout, origin_layout : str
        NC1HWC0 is made from NHWC or NCHW, NDC1HWC0 from NDHWC or NCDHW, FRACTAL_Z from HWCN, NCHW or NHWC.

    Raises
    ------
    ValueError
        There is no way from one layout to the other.
    """
    if layout == "NC1HWC0":
        return pack_nc1hwc0(array, origin_layout)
    if layout == "NDC1HWC0":
        return pack_ndc1hwc0(array, origin_layout)
    if layout == "FRACTAL_NZ":
        return pack_fractal_nz(array)
    if layout == "FRACTAL_Z":
        return pack_fractal_z(array, origin_layout)
    if layout not in (origin_layout, "ND"):
        raise ValueError(f"no packer from {origin_layout} to {layout}")
    # ascontiguousarray would turn a scalar into one dimension
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


# ---- protobuf, just enough of it ---------------------------------------------------------------------------


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    """A varint field; zero is left out, as proto3 does."""
    return _varint(field << 3) + _varint(value & 0xFFFFFFFFFFFFFFFF) if value else b""


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _shape(field: int, dims: Sequence[int]) -> bytes:
    packed = b"".join(_varint(dim & 0xFFFFFFFFFFFFFFFF) for dim in dims)
    return _bytes(field, _bytes(1, packed) if dims else b"")


# ---- dump files --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class OutTensor:
    """A tensor to write, already in storage order.

    `data` is an array, raw bytes or `Blocks`; `shape` is taken from an array unless given, and `dtype` (a name of
    `formats.data_types`) from its numpy type. `original_op` is (name, output index), for outputs.
    """

    data: Array | bytes | Blocks
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    layout: str = "ND"
    origin_shape: tuple[int, ...] | None = None
    origin_layout: str | None = None
    address: int = 0
    original_op: tuple[str, int] | None = None

    @classmethod
    def packed(
        cls,
        array: Array,
        layout: str = "ND",
        origin_layout: str = "ND",
        *,
        address: int = 0,
        original_op: tuple[str, int] | None = None,
    ) -> OutTensor:
        """A tensor from its logical values in `origin_layout`."""
        return cls(
            data=pack(array, layout, origin_layout),
            layout=layout,
            origin_shape=array.shape,
            origin_layout=origin_layout,
            address=address,
            original_op=original_op,
        )

    @property
    def dtype_name(self) -> str:
        """The type's name in `formats.data_types`."""
        if self.dtype:
            return self.dtype
        if isinstance(self.data, np.ndarray):
            return self.data.dtype.name
        raise ValueError("bytes and blocks need a dtype")

    @property
    def storage_shape(self) -> tuple[int, ...]:
        """Dimensions in storage order."""
        if self.shape is not None:
            return self.shape
        if isinstance(self.data, np.ndarray):
            return self.data.shape
        raise ValueError("bytes and blocks need a shape")

    @property
    def nbytes(self) -> int:
        """Bytes of the data."""
        if isinstance(self.data, np.ndarray):
            return self.data.nbytes
        if isinstance(self.data, bytes):
            return len(self.data)
        return BY_NAME[self.dtype_name].byte_size(math.prod(self.storage_shape))

    def blocks(self) -> Iterator[bytes | Array]:
        """The data piece by piece."""
        if isinstance(self.data, (np.ndarray, bytes)):
            yield self.data
        else:
            yield from self.data()


def _input_fields(tensor: OutTensor, index: int, data: bytes | None) -> bytes:
    """An `OpInput` message."""
    return b"".join(
        (
            _number(1, BY_NAME[tensor.dtype_name].code),
            _number(2, LAYOUT_CODES[tensor.layout]),
            _shape(3, tensor.storage_shape),
            _bytes(4, data) if data is not None else b"",
            _number(5, tensor.nbytes),
            _shape(6, tensor.origin_shape) if tensor.origin_shape is not None else b"",
            _number(8, tensor.address),
            _number(10, index),
        )
    )


def _output_fields(tensor: OutTensor, data: bytes | None) -> bytes:
    """An `OpOutput` message."""
    code = BY_NAME[tensor.dtype_name].code
    original = b""
    if tensor.original_op is not None:
        name, index = tensor.original_op
        layout = LAYOUT_CODES[tensor.origin_layout or tensor.layout]
        original = _bytes(4, _bytes(1, name.encode()) + _number(2, index) + _number(3, code) + _number(4, layout))
    return b"".join(
        (
            _number(1, code),
            _number(2, LAYOUT_CODES[tensor.layout]),
            _shape(3, tensor.storage_shape),
            original,
            _bytes(5, data) if data is not None else b"",
            _number(6, tensor.nbytes),
            _shape(7, tensor.origin_shape) if tensor.origin_shape is not None else b"",
            _number(9, tensor.address),
        )
    )


def encode_header(
    op_name: str,
    inputs: Sequence[OutTensor],
    outputs: Sequence[OutTensor],
    *,
    dump_time: int = 0,
    with_data: bool = False,
) -> bytes:
    """A `DumpData` message; `with_data` puts the tensors into it, as version 1 files have them."""

    def content(tensor: OutTensor) -> bytes | None:
        return b"".join(map(_raw, tensor.blocks())) if with_data else None

    fields = [_bytes(1, b"1.0" if with_data else b"2.0"), _number(2, dump_time)]
    fields += [_bytes(3, _output_fields(tensor, content(tensor))) for tensor in outputs]
    fields += [_bytes(4, _input_fields(tensor, i, content(tensor))) for i, tensor in enumerate(inputs)]
    fields.append(_bytes(6, op_name.encode()))
    return b"".join(fields)


def _raw(piece: bytes | Array) -> bytes | memoryview:
    """The bytes of a piece. Through uint8, as types from ml_dtypes have no buffer format of their own."""
    if isinstance(piece, bytes):
        return piece
    return np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data


def _write_tensor(stream: BinaryIO, tensor: OutTensor) -> None:
    written = 0
    for piece in tensor.blocks():
        written += stream.write(_raw(piece))
    if written != tensor.nbytes:
        raise ValueError(f"{written} bytes came, {tensor.nbytes} were announced")


def write_dump(
    path: Path,
    op_name: str,
    inputs: Sequence[OutTensor] = (),
    outputs: Sequence[OutTensor] = (),
    *,
    version: int = 2,
    dump_time: int = 0,
) -> int:
    """Write the dump file of one op and return its size in bytes.

    Parameters
    ----------
    path : Path
        The file; `dump_file_name` gives the name that a device would.
    op_name : str
        The op, as the graph has it.
    inputs, outputs : sequence of OutTensor
        Its tensors by slot. In the data of version 2 inputs come before outputs.
    version : int
        1 has the data within the message, 2 behind the header.
    dump_time : int
        Microseconds since 1970.
    """
    with path.open("wb") as stream:
        if version == 1:
            stream.write(encode_header(op_name, inputs, outputs, dump_time=dump_time, with_data=True))
        else:
            header = encode_header(op_name, inputs, outputs, dump_time=dump_time)
            stream.write(len(header).to_bytes(8, "little") + header)
            for tensor in (*inputs, *outputs):
                _write_tensor(stream, tensor)
        return stream.tell()


def write_golden(path: Path, data: Array | Blocks, shape: tuple[int, ...] = (), dtype: str = "float32") -> int:
    """Write one `.npy`, an array or blocks of the given shape and type, and return its size."""
    with path.open("wb") as stream:
        if isinstance(data, np.ndarray):
            np.lib.format.write_array(stream, data, allow_pickle=False)
        else:
            descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
            head = {"descr": descr, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(stream, head)
            for block in data():
                stream.write(_raw(block))
        return stream.tell()


# ---- overflow statuses ---------------------------------------------------------------------------------------


def status_payload(task: int, stream: int, status: int = 0x20, model: int = 1) -> bytes:
    """The status of an AI Core in the new payload: a floating-point overflow, unless told otherwise."""
    none = 65535  # neither context nor thread
    head = struct.pack("<6I", 0x5A5A5A5A, 0, 1, 0, 0, 88)
    fields = (model, stream, task, 0, none, none, 0x1240_8004_1000, 0x1240_8005_0000, 0, 0, status)
    return (head + struct.pack("<11Q", *fields)).ljust(2048, b"\0")


# ---- statistics --------------------------------------------------------------------------------------------


def _statistics_row(side: str, index: int, tensor: OutTensor) -> dict[str, object]:
    row: dict[str, object] = {
        "Input/Output": side,
        "Index": index,
        "Data Size": tensor.nbytes,
        "Data Type": BY_NAME[tensor.dtype_name].ge_name,
        "Format": tensor.layout,
        "Shape": "x".join(map(str, tensor.storage_shape)),
        "Count": math.prod(tensor.storage_shape),
    }
    if isinstance(tensor.data, np.ndarray) and tensor.data.dtype.kind in "fiub" and tensor.data.size:
        values = tensor.data.astype(np.float64)
        with np.errstate(invalid="ignore"):
            row |= {
                "Max Value": values.max(),
                "Min Value": values.min(),
                "Avg Value": values.mean(),
                "Nan Count": int(np.isnan(values).sum()),
                "Negative Inf Count": int(np.isneginf(values).sum()),
                "Positive Inf Count": int(np.isposinf(values).sum()),
                "l2norm": float(np.sqrt((values * values).sum())),
            }
    return row


def write_statistics(
    path: Path, inputs: Sequence[OutTensor], outputs: Sequence[OutTensor], columns: Sequence[str] = STATISTICS_COLUMNS
) -> None:
    """Write a statistics dump; what cannot be computed is `NA`."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns, restval="NA", extrasaction="ignore")
        writer.writeheader()
        for side, tensors in (("Input", inputs), ("Output", outputs)):
            for index, tensor in enumerate(tensors):
                writer.writerow(_statistics_row(side, index, tensor))
