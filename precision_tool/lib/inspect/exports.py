"""Whole tensors, or pairs of them, as text: for `pt -c` and `cp -s`. Written in pieces, whatever the size."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from precision_tool.lib.engine import integers
from precision_tool.lib.engine.element_errors import elements_of
from precision_tool.lib.engine.scheduler import Progress
from precision_tool.lib.engine.stream import tensors_of
from precision_tool.lib.inspect.decoded_npy import result_type, write_npy
from precision_tool.lib.io.files import atomic_text, open_binary
from precision_tool.lib.io.writing import temporary_path
from precision_tool.lib.model.comparison import ZERO_BELOW, Pair
from precision_tool.lib.model.tensor import Tensor
from precision_tool.lib.numbers import data_types
from precision_tool.lib.numbers.decode import Numbers
from precision_tool.lib.numbers.reading import Reading

#: Items formatted at once.
_BLOCK = 1 << 14
_ELEMENT_COLUMNS = ("Index", "NPUDump", "GroundTruth", "AbsoluteError", "RelativeError")


def write_text(tensor: Tensor, reading: Reading, path: str, progress: Progress | None = None) -> None:
    """Writes the values of a tensor as `numpy.loadtxt` reads them: one line a row of the last axis, `#` before the
    header. OutputError when that cannot be done."""
    dtype = result_type(data_types.BY_NAME[tensor.dtype])
    with atomic_text(path) as file:
        shape = ", ".join(map(str, reading.shape))
        layout = reading.layout or f"{tensor.layout} as stored"
        file.write(f"# shape ({shape}) {tensor.dtype} {layout}\n# {tensor.path!a}\n")
        if not prod(reading.shape):
            return
        width = reading.shape[-1] if reading.shape else 1
        column = done = 0
        for text in _texts(_values(tensor, reading, dtype, posixpath.dirname(path))):
            column = _write_row_parts(file, text, column, width)
            done += len(text) * dtype.itemsize
            if progress is not None:
                progress(done, prod(reading.shape) * dtype.itemsize)


def _write_row_parts(file: TextIO, texts: list[str], column: int, width: int) -> int:
    """Writes values with line ends after each `width` of them; the column the last one ended in."""
    start = 0
    while start < len(texts):
        part = texts[start : start + width - column]
        start += len(part)
        column += len(part)
        file.write(" ".join(part))
        file.write("\n" if column == width else " ")
        column %= width
    return column


def _values(tensor: Tensor, reading: Reading, dtype: np.dtype[Any], folder: str) -> Iterator[npt.NDArray[Any]]:
    """The values in order, in blocks: through a file, as blocked layouts are read in another order."""
    path = temporary_path(folder)
    try:
        write_npy(tensor, reading, path)
        file = open_binary(path)  # it is read when its name is gone
    finally:
        Path(path).unlink()
    with file:
        version = np.lib.format.read_magic(file)
        assert version == (1, 0)
        np.lib.format.read_array_header_1_0(file)
        while (block := np.fromfile(file, dtype, _BLOCK)).size:
            yield block


def _texts(blocks: Iterable[npt.NDArray[Any]]) -> Iterator[list[str]]:
    for block in blocks:
        kind = block.dtype.kind
        if kind in "iu":
            yield list(map(str, block.tolist()))
        elif kind == "b":
            yield ["1" if value else "0" for value in block.tolist()]
        elif kind == "c":
            digits = digits_of(block.dtype)
            yield [f"({value.real:.{digits}g}{value.imag:+.{digits}g}j)" for value in block.tolist()]
        else:
            digits = digits_of(block.dtype)
            yield [f"{value:.{digits}g}" for value in block.tolist()]


def digits_of(dtype: np.dtype[Any]) -> int:
    """Digits from which a number, or each part of a complex one, is read back as it was."""
    parts = 2 if dtype.kind == "c" else 1
    return 17 if dtype.itemsize // parts == 8 else 9


def write_elements(pair: Pair, path: str, progress: Progress | None = None) -> None:
    """Writes the table of all elements of a pair: index, both values, both errors (`-` relative to zero)."""
    with atomic_text(path) as file:
        file.write(",".join(_ELEMENT_COLUMNS) + "\n")
        done = 0
        total = sum(tensor.nbytes for tensor in tensors_of(pair))
        for span, x, y, size in elements_of(pair):
            error, relative = _errors(x, y)
            digits = f".{digits_of(x.dtype)}g"
            number = "" if x.dtype.kind in "iu" else digits
            rows = zip(span.texts(x.size), x.tolist(), y.tolist(), error.tolist(), relative.tolist(), strict=True)
            file.writelines(
                f"{place},{npu:{number}},{golden:{number}},{absolute:{digits}},"
                + (f"{share:{digits}}\n" if share == share else "-\n")
                for place, npu, golden, absolute, share in rows
            )
            done += x.size
            if progress is not None:
                progress(total * done // size, total)


def _errors(x: Numbers, y: Numbers) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """As those of `Element`: |x - y|, and that relative to |y|, nan where y counts as zero."""
    golden = y.astype(np.float64)
    with np.errstate(all="ignore"):
        if x.dtype.kind in "iu":
            error = np.abs(integers.errors(x, y))
        else:
            npu = x.astype(np.float64)
            error = np.abs(npu - golden)
            np.copyto(error, 0, where=(npu == golden) | (np.isnan(npu) & np.isnan(golden)))
        relative = error / np.abs(golden)
        np.copyto(relative, np.nan, where=~(np.abs(golden) > ZERO_BELOW))
    return error, relative
