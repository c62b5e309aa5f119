"""Whole tensors, or pairs of them, as text: for `pt -c` and `cp -s`. Written in pieces, whatever the size."""

from __future__ import annotations

import csv
import hashlib
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from math import isnan, prod
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from precision_tool.lib.compare import integers
from precision_tool.lib.compare.convert import result_type, write_npy
from precision_tool.lib.compare.element_errors import elements_of
from precision_tool.lib.compare.scheduler import Progress
from precision_tool.lib.compare.stream import tensors_of
from precision_tool.lib.data.dump_names import file_part, flatten
from precision_tool.lib.io import data_types
from precision_tool.lib.io.data_types import Numbers
from precision_tool.lib.io.files import atomic_text, open_binary
from precision_tool.lib.io.layouts import Reading
from precision_tool.lib.io.writing import temporary_path
from precision_tool.lib.model.comparison import ZERO_BELOW, Pair
from precision_tool.lib.model.elements import Detail, Element
from precision_tool.lib.model.tensor import Tensor

#: Items formatted at once.
_BLOCK = 1 << 14
_ELEMENT_COLUMNS = ("Index", "NPUDump", "GroundTruth", "AbsoluteError", "RelativeError")


def write_text(tensor: Tensor, reading: Reading, path: str, progress: Progress | None = None) -> None:
    """Write the values of a tensor as `numpy.loadtxt` reads them: one line a row of the last axis, `#` before the
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
    """Write values with line ends after each `width` of them; the column the last one ended in."""
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
    """Return the values in order, in blocks: through a file, as blocked layouts are read in another order."""
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
    """Write the table of all elements of a pair: index, both values, both errors (`-` relative to zero)."""
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


# --- worst elements ---


#: Bytes of a file name; longer ones keep their start and get a hash.
_MAX_NAME_BYTES = 255
_HASH = 12
_SUFFIXES = ("_summary.txt", "_absolute_error_topn.csv", "_relative_error_topn.csv")


def write_detail(folder: str, detail: Detail, prefix: str = "") -> list[str]:
    """Write the three files and returns their paths. OutputError when they cannot be written."""
    pair = detail.comparison.pair
    digits = _digits(pair)
    stem = _short(file_part(f"{prefix}{flatten(pair.op_name)}_{pair.slot.replace(':', '_')}"))
    paths = [posixpath.join(folder, stem + suffix) for suffix in _SUFFIXES]
    with atomic_text(paths[0]) as file:
        file.write(_summary(detail))
    for path, elements in zip(paths[1:], (detail.worst_absolute, detail.worst_relative), strict=True):
        with atomic_text(path) as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["Index", _axes(detail.shape), "NPUDump", "GroundTruth", "AbsoluteError", "RelativeError"])
            writer.writerows(_line(element, detail.shape, digits) for element in elements)
    return paths


def _short(stem: str) -> str:
    room = _MAX_NAME_BYTES - max(map(len, _SUFFIXES))
    if len(stem.encode("utf-8", "surrogateescape")) <= room:
        return stem
    digest = hashlib.sha256(stem.encode("utf-8", "surrogateescape")).hexdigest()[:_HASH]
    return stem.encode("utf-8", "surrogateescape")[: room - _HASH - 1].decode("utf-8", "ignore") + "_" + digest


def _axes(shape: Sequence[int]) -> str:
    """Return the header of the index: `ID` for a vector as the vendor has it, else the axes in the order compared."""
    return " ".join(f"Dim{axis}" for axis in range(len(shape))) if len(shape) > 1 else "ID"


def _line(element: Element, shape: Sequence[int], digits: int) -> list[str]:
    flat = 0
    for extent, at in zip(shape, element.index, strict=True):
        flat = flat * extent + at
    numbers = (element.npu, element.golden, element.error, element.relative)
    return [
        str(flat), " ".join(map(str, element.index)), *(_number(value, digits) for value in numbers[:3]),
        "-" if isnan(numbers[3]) else _number(numbers[3], digits),
    ]  # fmt: skip


def _number(value: float, digits: int) -> str:
    return str(value) if isinstance(value, int) else f"{value:.{digits}g}"


def _digits(pair: Pair) -> int:
    """Digits that tell the numbers compared from each other."""
    types = [data_types.BY_NAME[side.dtype] for side in (pair.npu, pair.golden) if side is not None]
    return digits_of(data_types.compute_types(types[0], types[-1])[0])


def _summary(detail: Detail) -> str:
    pair = detail.comparison.pair
    metrics = detail.comparison.metrics
    digits = _digits(pair)
    facts = [
        ("TotalCount", str(detail.count)),
        ("NPUDump", " ".join(pair.npu_ops)),
        ("GroundTruth", " ".join(pair.golden_ops)),
        ("Format", _axes(detail.shape)),
        ("Shape", " ".join(map(str, detail.shape))),
        ("EqualCount", str(detail.equal)),
        ("MaxAbsoluteError", "-" if metrics is None else _number(metrics.max_absolute_error, digits)),
        ("MaxRelativeError", "-" if metrics is None else _number(metrics.max_relative_error, digits)),
    ]
    return "".join(f"{name}:{' '.join(value.split())}\n" for name, value in facts)
