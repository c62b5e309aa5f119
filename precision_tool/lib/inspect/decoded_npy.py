"""One tensor of a dump decoded into a `.npy` file, as stored or in another layout, in blocks whatever its size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.engine.blocks import Scratch, TensorReader, box_size
from precision_tool.lib.engine.workers import check_stopping
from precision_tool.lib.errors import OutputError
from precision_tool.lib.formats.npy import NpyWriter
from precision_tool.lib.io.files import open_binary
from precision_tool.lib.io.writing import replacing
from precision_tool.lib.model.tensor import INNER, OUTER, WHOLE, Plan, Tensor
from precision_tool.lib.numbers import data_types, layouts
from precision_tool.lib.numbers.data_types import DataType
from precision_tool.lib.numbers.layouts import Box, split_boxes
from precision_tool.lib.numbers.reading import Reading

#: Items of a box of a blocked result.
_BOX = 1 << 18
#: Values of a text that are written at once.
_LINES = 1 << 14

#: A box, the shape it is a part of, and its items.
_Piece = tuple[Box, tuple[int, ...], npt.NDArray[Any]]


def result_type(data_type: DataType) -> np.dtype[Any]:
    """The numpy type that holds every value of a type: its own, or for one that numpy lacks a wider one."""
    if data_type.decode == "numpy":
        return np.dtype(data_type.numpy_name)
    if data_type.name == "complex32":
        return np.dtype(np.complex64)
    if data_type.name in ("int4", "int2"):
        return np.dtype(np.int8)
    if data_type.name in ("uint1", "uint2"):
        return np.dtype(np.uint8)
    return np.dtype(np.float32)


def write_npy(
    tensor: Tensor, reading: Reading, path: str, *, place: str = "", scratch: Scratch | None = None
) -> np.dtype[Any]:
    """Decodes a tensor into a `.npy` file and returns its type; memory is bounded whatever its size.

    `place` is a folder for the file until it is complete; else it lies beside `path`. `scratch`: buffers to use again.
    """
    scratch = scratch or Scratch()
    data_type = data_types.BY_NAME[tensor.dtype]
    dtype = result_type(data_type)
    real = np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype
    if data_type.decode == "packed":  # they are looked up as floats
        real = np.dtype(np.float32)
    reader = TensorReader(tensor, reading.plan, real, scratch, "tensor")
    try:
        shape = reading.shape if reading.stored is None else reading.stored[1]
        with NpyWriter(path, dtype, shape, place=place) as writer:
            if reading.stored is not None:
                pieces = _blocked_pieces(reader, reading.stored[0])
            elif reader.is_flat:
                pieces = _flat_pieces(reader, writer, dtype, scratch)
            else:
                pieces = _plain_pieces(reader, dtype, scratch)
            for box, within, items in pieces:
                check_stopping()
                writer.write(box, within, items)
    finally:
        reader.close()
    return dtype


def write_lines(path: str, target: str, *, place: str = "") -> None:
    """Writes the values of a `.npy` file that `write_npy` wrote as text, one per line, as `numpy.savetxt` does.

    In blocks, whatever the size. OutputError if that cannot be done.
    """
    try:
        with replacing(target, place) as temporary, open(temporary, "wb") as file, open_binary(path) as stored:
            np.lib.format.read_magic(stored)
            _, _, dtype = np.lib.format.read_array_header_1_0(stored)
            while (block := np.fromfile(stored, dtype, _LINES)).size:
                np.savetxt(file, block)
    except OSError as error:
        raise OutputError(
            f"{target}: cannot be written ({error.strerror or error})", "free some space or name another folder"
        ) from error


def _flat_pieces(reader: TensorReader, writer: NpyWriter, dtype: np.dtype[Any], scratch: Scratch) -> Iterator[_Piece]:
    """The result as it lies in the dump, in the pieces that the writer likes best."""
    parts = 2 if dtype.kind == "c" else 1
    size = reader.size // parts
    for start, stop in writer.pieces(size):
        items = scratch.numbers("items", (stop - start) * parts, reader.dtype)
        reader.read_flat(start * parts, stop * parts, items)
        yield ((start, stop),), (size,), items if parts == 1 else items.view(dtype)


def _plain_pieces(reader: TensorReader, dtype: np.dtype[Any], scratch: Scratch) -> Iterator[_Piece]:
    """The result as it is read; pairs of reals become complex numbers."""
    shape = reader.logical_shape
    for box in reader.boxes():
        items: npt.NDArray[Any] = scratch.numbers("items", box_size(box), reader.dtype)
        reader.read(box, items)
        if dtype.kind != "c":
            yield box, shape, items
        else:
            yield box[:-1], shape[:-1], items.view(dtype)


def _blocked_pieces(reader: TensorReader, plan: Plan) -> Iterator[_Piece]:
    """The result in boxes of its blocked storage, zero where it is padding. `plan` reads it back."""
    shape = plan.storage_shape
    granules = tuple(extent if role == INNER else 1 for extent, (_, role) in zip(shape, plan.axes, strict=True))
    for box in split_boxes(shape, granules, _BOX):
        logical = list(zip((0,) * len(plan.logical_shape), plan.logical_shape, strict=True))
        for (start, stop), (axis, role) in zip(box, plan.axes, strict=True):
            if role == WHOLE:
                logical[axis] = (start, stop)
            elif role == OUTER:
                block = plan.blocks[axis]
                logical[axis] = (start * block, min(stop * block, plan.logical_shape[axis]))
        items = np.empty(box_size(tuple(logical)), reader.dtype)
        reader.read_box(tuple(logical), items)
        stored = np.zeros([stop - start for start, stop in box], reader.dtype)
        layouts.fill_blocks(plan, items.reshape([stop - start for start, stop in logical]), stored)
        yield box, shape, stored
