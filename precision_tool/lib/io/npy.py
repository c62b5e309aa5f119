"""`.npy` files: headers read without unpickling anything, arrays written in pieces (numpy's documentation, NEP 1)."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from math import prod
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.io import data_types
from precision_tool.lib.io.files import open_file, store_of
from precision_tool.lib.io.layouts import Box
from precision_tool.lib.io.stores import StoredFile
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError, shown
from precision_tool.lib.model.tensor import Tensor

#: Bytes of the width of the header's length, and of the longest header, by version. numpy.save writes 118 for 32 axes.
_LENGTH_BYTES = {(1, 0): 2, (2, 0): 4}
_MAX_HEADER = 1 << 16
MAGIC = b"\x93NUMPY"
#: The most digits of an extent that any file could hold.
_MAX_DIGITS = 20
# One entry of the header's dict: 1 quote, 2 key; then 3 a truth, 5 a string, 6 what is in a tuple of whole numbers, or
# 7 the beginning of a description of fields; 8 what ends it. Possessive throughout: the time is linear.
_ENTRY = re.compile(
    r"""\s*+(['"])([a-z_]{1,16})\1\s*+:\s*+"""
    r"""(?:(True|False)|(['"])([^'"\\]{0,64}+)\4|\(([-0-9L,\s]*+)\)|([\[(]))"""
    r"""(?:(?<=[\[(])|\s*+(,\s*+\}|,|\}))"""
)
_EXTENT = re.compile(rf"-?[0-9]{{1,{_MAX_DIGITS}}}L?")  # Python 2 wrote 2L
#: As many bytes most headers have.
_USUAL_HEADER = 128
#: Bytes in which an array is written at once: they fit the processor's cache beside those that are read.
_PIECE = 1 << 20


@lru_cache(maxsize=256)
def our_name(dtype: np.dtype) -> str | None:
    """What a type of numpy is called here; None for one that is no number."""
    if dtype.kind in "biufc" and dtype.name in data_types.BY_NAME:
        return dtype.name
    if dtype.kind == "V" and dtype.names is None and dtype.subdtype is None and dtype.itemsize == 2:
        return "bfloat16"  # how numpy writes ml_dtypes' and TensorFlow's bfloat16
    return None


def read_npy(path: str) -> Tensor:
    """The tensor of a `.npy` file, undecoded; FormatError for what has no numbers or is damaged."""
    with open_file(path) as file:
        return read_npy_file(file)


def read_npy_file(file: StoredFile) -> Tensor:
    """As `read_npy`, of a file that is open."""
    path = file.path
    if file.size == 0:
        raise FormatError.of(path, "io.empty")
    text, offset = _header(file)
    try:
        shape, fortran_order, dtype = (_parsed_before if len(text) <= _USUAL_HEADER else _parsed)(text)
    except ValueError as error:
        raise FormatError.of(path, "io.npy.header", reason=error.args[0]) from error
    if any(dim < 0 for dim in shape):
        raise FormatError.of(path, "io.npy.negative", shape=shape)
    data_types.refuse_impossible(shape, path)
    if dtype.hasobject:
        raise FormatError.of(path, "io.npy.objects")
    name = our_name(dtype)
    if name is None:
        raise FormatError.of(path, "io.npy.not_numbers", type=str(dtype))
    nbytes = prod(shape) * dtype.itemsize
    tensor = Tensor(
        path=path,
        offset=offset,
        nbytes=nbytes,
        dtype=name,
        shape=shape,
        origin_shape=shape,
        fortran_order=fortran_order and len(shape) > 1,
        big_endian=dtype.byteorder == ">",
    )
    if tensor.offset + nbytes > file.size:
        raise FormatError.of(
            path,
            "io.npy.cut_off",
            offset=tensor.offset,
            shape=shape,
            dtype=str(dtype),
            nbytes=nbytes,
            start=tensor.offset,
            size=file.size,
        )
    return tensor


def _header(file: StoredFile) -> tuple[str, int]:
    """The text of the header and where the data begin."""
    start = file.read_at(0, min(_USUAL_HEADER, file.size))
    if not start.startswith(MAGIC) or len(start) < 10:
        raise FormatError.of(file.path, "io.npy.magic")
    version = start[6], start[7]
    width = _LENGTH_BYTES.get(version)
    if width is None:
        raise FormatError.of(file.path, "io.npy.version", major=version[0], minor=version[1])
    length, begin = int.from_bytes(start[8 : 8 + width], "little"), 8 + width
    if length > min(_MAX_HEADER, file.size - begin):
        raise FormatError.of(file.path, "io.npy.claims", length=length, size=max(file.size - begin, 0))
    more = max(begin + length - len(start), 0)
    text = (start + (file.read_at(len(start), more) if more else b""))[begin : begin + length]
    return text.decode("latin-1"), begin + length


def _parsed(text: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and type of a header as numpy writes it; ValueError, with a Message, for others.

    Not numpy's parser, which is one of Python and takes time with the square of the text's length.
    """
    entries: dict[str, re.Match[str]] = {}
    body = text.strip()
    end = "" if body[:1] == "{" else "not a dict"
    place = 1
    while not end:
        entry = _ENTRY.match(body, place)
        if entry is None or entry[2] in entries:
            raise ValueError(Message("row.io.npy.unexpected", offset=place, text=shown(body[place:])))
        entries[entry[2]] = entry
        place, end = entry.end(), (entry[8] or "fields").strip(", \t\r\n\f\v")
    if end != "fields" and (end != "}" or place != len(body) or set(entries) != {"descr", "fortran_order", "shape"}):
        raise ValueError(Message("row.io.npy.keys", text=shown(body)))
    descr = entries.get("descr")
    if descr is not None and descr[7]:
        return (), False, np.dtype(np.void)  # fields, whatever they are
    if end == "fields" or descr is None or descr[5] is None:
        raise ValueError(Message("row.io.npy.descr", text=shown(body)))
    truth, extents = entries["fortran_order"][3], entries["shape"][6]
    if truth is None or extents is None:
        raise ValueError(Message("row.io.npy.order_or_shape", text=shown(body)))
    return _shape(extents), truth == "True", _dtype(descr[5])


#: Of a network's tensors many have one type and shape.
_parsed_before = lru_cache(maxsize=1024)(_parsed)


def _shape(text: str) -> tuple[int, ...]:
    extents = [extent.strip() for extent in text.split(",")]
    if extents[-1] == "":  # behind a last comma, or in ()
        extents.pop()
        if not extents and text.strip():
            raise ValueError(Message("row.io.npy.shape", text=f"({shown(text)})"))
    elif len(extents) == 1:
        raise ValueError(Message("row.io.npy.shape", text=shown(text)))
    if len(extents) > data_types.MAX_RANK:
        raise ValueError(Message("row.io.npy.axes", count=len(extents)))
    for extent in extents:
        if _EXTENT.fullmatch(extent) is None:
            raise ValueError(Message("row.io.npy.shape", text=shown(extent)))
    return tuple(int(extent.rstrip("L")) for extent in extents)


def _dtype(text: str) -> np.dtype[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of old names of types
        try:
            return np.dtype(text)
        except (TypeError, ValueError, SyntaxError) as error:
            raise ValueError(Message("row.io.npy.descr", text=shown(text))) from error


class NpyWriter:
    """A `.npy` file written in boxes of its array, in any order. It appears under its name when it is complete.

    Everything that goes wrong with the file is an OutputError.
    """

    def __init__(self, path: str, dtype: np.dtype[Any], shape: tuple[int, ...], *, place: str = "") -> None:
        """`place` is the folder, made if need be, of the file until it is complete; else it lies beside `path`."""
        self._dtype = dtype
        header = io.BytesIO()
        description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(header, description)
        #: Written with the first items, if those are written first.
        self._header = header.getvalue()
        self._start = len(self._header)
        self._file = store_of(path).create(path, place=place)

    def pieces(self, items: int) -> Iterator[tuple[int, int]]:
        """First item and the one behind the last of pieces of a file of so many items.

        They end where pages of the system do, which so takes each piece in few large pages, without a look at those
        before it.
        """
        start = 0
        while start < items:
            end = (self._start + start * self._dtype.itemsize) // _PIECE * _PIECE + _PIECE
            stop = min((end - self._start) // self._dtype.itemsize, items)
            yield start, stop
            start = stop

    def write(self, box: Box, within: tuple[int, ...], items: npt.NDArray[Any]) -> None:
        """Writes the items of a box of the array, which for this may be taken to be of the shape `within`."""
        items = np.ascontiguousarray(items, self._dtype).reshape(-1)
        if not items.size:
            return
        inner = len(box)
        while inner > 0 and box[inner - 1] == (0, within[inner - 1]):
            inner -= 1
        outer, rest = box[: max(inner - 1, 0)], box[max(inner - 1, 0) :]
        strides = [prod(within[axis + 1 :]) for axis in range(len(within))]
        run = prod(stop - start for start, stop in rest)
        first = rest[0][0] * strides[len(outer)] if rest else 0
        raw = items.view(np.uint8).data
        size = run * self._dtype.itemsize
        for number, index in enumerate(product(*(range(*extent) for extent in outer))):
            at = first + sum(i * stride for i, stride in zip(index, strides, strict=False))
            self._write(at * self._dtype.itemsize, raw[number * size : (number + 1) * size])

    def _write(self, offset: int, data: memoryview) -> None:
        """Writes data behind the header."""
        header, self._header = self._header, b""
        if header and offset == 0:
            self._file.write_at(0, header, data)
            return
        if header:
            self._file.write_at(0, header)
        self._file.write_at(self._start + offset, data)

    def __enter__(self) -> NpyWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._header:
                self._file.write_at(0, self._header)
        except BaseException:
            self._file.discard()
            raise
        self._file.__exit__(kind, error, trace)
