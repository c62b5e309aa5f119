"""`.h5` dumps of the PyTorch 1.5 dumper: `/{op type}/{seq}/{input|output}/…/{name}` data sets (FORMATS.md §3).

Only headers are read. Files come from other machines: what leads out of the file, in circles, or claims more than the
file can hold is refused, as the dumper writes nothing like it.
"""

from __future__ import annotations

import posixpath
import re
import shutil
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from precision_tool.lib.io import data_types
from precision_tool.lib.io.files import exists, is_same_file, size_of
from precision_tool.lib.io.hdf5_child import CHUNKED, CONTIGUOUS, H5Object
from precision_tool.lib.io.hdf5_process import (
    CPU_SECONDS,
    Hdf5Error,
    check_file,
    hdf5_rows,
)
from precision_tool.lib.io.layouts import strided_plan
from precision_tool.lib.io.tensor_bytes import MAX_CHUNK, MAX_GATHERED
from precision_tool.lib.io.writing import replacing
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError, OutputError, PrecisionToolError, UsageError, shown_name
from precision_tool.lib.model.pytorch import INPUT, OUTPUT, Device, H5Dump, H5Op, H5Value
from precision_tool.lib.model.tensor import INNER, OUTER, WHOLE, Access, Plan, Tensor

#: The most groups and data sets of a file, and parts of a name, that are looked at.
MAX_OBJECTS, MAX_DEPTH = 4_000_000, 32
#: Objects that a file may have in any case, and bytes of it for each further one: dumps have 800 besides the values. A
#: link is an object, which takes 20 bytes in the file and 100 µs to look behind.
_FREE_OBJECTS, _OBJECT_BYTES = 20_000, 512
#: No compression makes data smaller than this many times (deflate: 1032), and chunks are never far below their size.
MAX_RATIO = 1100
_SLACK = 1 << 16
#: Tensors in another order are gathered from this many bytes on: in boxes they would be read in many small pieces.
_GATHERED_FROM = 4 << 20
#: Attributes of the dumper.
_STRIDE = "Stride"
_ATTRIBUTES = ("Type", "DataType", "DeviceType", _STRIDE)
#: numpy's names of types that are read.
_NUMBER = re.compile(r"[<>|=][biufc][0-9]{1,2}")
#: Digits of a sequence number.
_MAX_DIGITS = 18

#: What is copied in a second of CPU time on the slowest machine.
_BYTES_PER_SECOND = 10 << 20


def read_h5(path: str) -> H5Dump:
    """Read the ops of a `.h5` dump of PyTorch in the order they ran; their values stay undecoded (FORMATS.md §3).

    Parameters
    ----------
    path : str
        A file on a disk of this machine.

    Returns
    -------
    H5Dump
        Its ops; a data set that is no tensor has a reason, one that is no part of the format is in `ignored`.

    Raises
    ------
    FormatError
        It is no HDF5 file, is damaged, or is refused, as it leads elsewhere or claims more than it holds.
    UsageError
        h5py is not installed.
    """
    size = check_file(path)
    contents = _Contents(path, size)
    try:
        most = min(MAX_OBJECTS, _FREE_OBJECTS + size // _OBJECT_BYTES)
        with hdf5_rows("walk", path, most=most, depth=MAX_DEPTH, attributes=_ATTRIBUTES) as rows:
            for row in rows:
                contents.take(H5Object(**row))
    except Hdf5Error as error:
        kind = "io.h5.invalid" if error.opening else "io.h5.damaged"
        raise FormatError.of(path, kind, reason=error.reason) from error
    ops = tuple(
        H5Op(type=op_type, seq=seq, values=tuple(sorted(values, key=_value_order)))
        for (op_type, seq), values in sorted(contents.values.items(), key=lambda item: (item[0][1], item[0][0]))
    )
    return H5Dump(path=path, size=size, ops=ops, ignored=tuple(contents.ignored))


def _value_order(value: H5Value) -> tuple[int, bool, tuple[tuple[int, str], ...]]:
    """Inputs before outputs, tensors before parameters, then by name, numbers as numbers."""
    parts = tuple((int(part), "") if _is_number(part) else (-1, part) for part in value.name.split("/"))
    return (INPUT, OUTPUT).index(value.direction), not value.is_tensor, parts


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def _is_sequence(text: str) -> bool:
    """A number as the dumper writes it: 007 and 7 would be one op of two groups."""
    return _is_number(text) and text == str(int(text))


@dataclass
class _Contents:
    """What is in a file, by op."""

    path: str
    size: int
    values: dict[tuple[str, int], list[H5Value]] = field(default_factory=dict)
    ignored: list[tuple[str, Message]] = field(default_factory=list)

    def take(self, data: H5Object) -> None:
        """Take the next object. FormatError for one for which the whole file is refused."""
        name = "/" + "/".join(data.parts)
        if not data.layout:
            self.ignored.append((name, Message("note.io.h5_neither")))
            return
        self._check(data, name)
        if len(data.parts) < 4 or not _is_sequence(data.parts[1]) or data.parts[2] not in (INPUT, OUTPUT):
            self.ignored.append((name, Message("note.io.h5_layout")))
            return
        op_type, seq, direction, *rest = data.parts
        numbers = {key: value[0] for key, value in data.numbers.items() if len(value) == 1}
        tensor, note, reason = None, None, None
        try:
            tensor, note = self._tensor(data, name, numbers.get("DeviceType"))
        except _NotReadError as error:
            reason = Message("error.place", where=f"{self.path}: {shown_name(name)}", reason=error.reason_message)
        value = H5Value(
            path=name,
            direction=direction,
            name="/".join(rest),
            kind=numbers.get("Type"),
            scalar_type=numbers.get("DataType"),
            device=numbers.get("DeviceType"),
            tensor=tensor,
            reason=reason,
            note=note,
        )
        self.values.setdefault((op_type, int(seq)), []).append(value)

    def _check(self, data: H5Object, name: str) -> None:
        """Refuses sizes that the file cannot hold."""
        claimed = prod(data.shape) * data.itemsize if data.shape is not None else 0
        # What HDF5 tells of the space is what the header claims.
        stored = min(data.nbytes, self.size)
        if data.layout == CONTIGUOUS:
            stored = min(stored, max(self.size - (data.offset or 0), 0))
        most = stored * MAX_RATIO + _SLACK if data.layout == CHUNKED else stored
        if _is_unwritten(data):  # the dumper was stopped before it wrote
            most = self.size + _SLACK
        if claimed > most:
            raise FormatError.of(self.path, "io.h5.claims", name=shown_name(name), claimed=claimed, stored=stored)

    def _tensor(self, data: H5Object, name: str, device: int | None) -> tuple[Tensor, Message | None]:
        """The tensor of a data set, and what is to be said of it. _NotReadError says why there is none."""
        dtype = _dtype_of(data)
        if data.shape is None:
            raise _NotReadError("io.h5.no_shape")
        shape = tuple(data.shape)
        if not data.is_usual:
            raise _NotReadError("io.h5.unusual_type", dtype=str(dtype))
        tensor = Tensor(
            path=self.path,
            offset=0,
            nbytes=prod(shape) * dtype.itemsize,
            dtype=dtype.name,
            shape=shape,
            origin_shape=shape,
            big_endian=dtype.byteorder == ">",
            dataset=name,
        )
        if data.layout == CHUNKED:
            tensor = _chunked(tensor, data, dtype.itemsize)
        elif data.layout == CONTIGUOUS:
            if tensor.size and _is_unwritten(data):
                raise _NotReadError("io.h5.not_written")
            tensor = replace(tensor, offset=data.offset or 0)
        else:  # within the header
            tensor = replace(tensor, access=Access.GATHER)
        is_strided = device in (Device.CPU, Device.GPU) and tensor.size
        strides = data.numbers.get(_STRIDE) if is_strided else None
        return (tensor, None) if strides is None else _strided(tensor, tuple(strides))


def _chunked(tensor: Tensor, data: H5Object, itemsize: int) -> Tensor:
    chunk = tuple(data.chunk)
    if data.unknown_filters:
        raise _NotReadError("io.h5.filter", filter=data.unknown_filters[0])
    if prod(chunk) * itemsize > MAX_CHUNK:
        raise _NotReadError("io.h5.chunk", size=prod(chunk) * itemsize, limit=MAX_CHUNK)
    if not tensor.size:
        return tensor
    grid = tuple(-(-extent // step) for extent, step in zip(tensor.shape, chunk, strict=True))
    if data.written_chunks < prod(grid):
        raise _NotReadError("io.h5.chunks_missing", missing=prod(grid) - data.written_chunks, chunks=prod(grid))
    rank = len(chunk)
    plan = Plan(
        (*grid, *chunk),
        (*((axis, OUTER) for axis in range(rank)), *((axis, INNER) for axis in range(rank))),
        tensor.shape,
        chunk,
    )
    if chunk == tensor.shape:
        plan = Plan(chunk, tuple((axis, WHOLE) for axis in range(rank)), chunk, (1,) * rank)
    return replace(tensor, access=Access.CHUNKS, nbytes=prod(grid) * prod(chunk) * itemsize, plan=plan)


class _NotReadError(FormatError):
    """A data set that is no tensor that can be read."""


def _is_unwritten(data: H5Object) -> bool:
    return data.layout == CONTIGUOUS and data.offset is None


def _dtype_of(data: H5Object) -> np.dtype[Any]:
    if data.type_error:
        raise _NotReadError("io.h5.type", reason=data.type_error)
    dtype = np.dtype(data.type) if _NUMBER.fullmatch(data.type) else None
    if dtype is None or dtype.name not in data_types.BY_NAME:
        shown_type = data.type if dtype is None else dtype
        raise _NotReadError("io.h5.not_numbers", type=str(shown_type))
    return dtype


# --- strides ----------------------------------------------------------------------------------------------------------


def _strided(tensor: Tensor, strides: tuple[int, ...]) -> tuple[Tensor, Message | None]:
    """A tensor of CPU or GPU, whose elements lie in memory order: `strides` (in elements) tell the logical one."""
    shape = tensor.shape
    note = Message("row.io.strides", strides=strides, shape=shape)
    if len(strides) != len(shape) or any(stride < 0 for stride in strides):
        return tensor, note
    reach = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    if reach > tensor.size:
        return tensor, note
    plan = strided_plan(shape, strides)
    if plan is not None and plan.is_flat:
        return tensor, None
    nbytes = tensor.size * data_types.BY_NAME[tensor.dtype].byte_size(1)
    # What is too large to be read at once, or small enough to be cut in memory, is read in boxes.
    if plan is not None and tensor.access is Access.BYTES and not _GATHERED_FROM < nbytes <= MAX_GATHERED:
        return replace(tensor, plan=plan), None
    if nbytes > MAX_GATHERED:
        raise _NotReadError("io.h5.strides", strides=str(list(strides)), nbytes=nbytes)
    return replace(tensor, access=Access.GATHER, offset=0, nbytes=nbytes, strides=strides, plan=None), None


def in_logical_order(tensor: Tensor) -> Tensor | None:
    """The tensor with its bytes in logical order, as a plain array; None for one that is too large for it."""
    if tensor.plan is None or tensor.plan.is_flat:
        return replace(tensor, plan=None)
    nbytes = tensor.size * data_types.BY_NAME[tensor.dtype].byte_size(1)
    if nbytes > MAX_GATHERED:
        return None
    strides: tuple[int, ...] = ()
    if tensor.access is Access.BYTES:
        plan = tensor.plan
        of_axis = {axis: prod(plan.storage_shape[position + 1 :]) for position, (axis, _) in enumerate(plan.axes)}
        strides = tuple(of_axis[axis] for axis in range(len(plan.logical_shape)))
    return replace(tensor, access=Access.GATHER, offset=0, nbytes=nbytes, strides=strides, plan=None)


# --- copying ----------------------------------------------------------------------------------------------------------


def copy_ops(source: str, target: str, ops: Sequence[H5Op]) -> tuple[str, ...]:
    """Copy ops into `target`, to what it holds already, as HDF5's `h5copy -s /op/seq -d /op/seq` does.

    `source` was read by `read_h5`, so that nothing in it leads elsewhere. The names of ops that the target had already
    are returned: they are replaced. The target appears, or changes, only when it is complete. OutputError if it cannot
    be written, FormatError for one that is no `.h5` dump, or is damaged so that HDF5 itself dies.
    """
    if is_same_file(source, target):
        raise UsageError("io.h5.same_file", target=target)
    existing = {op.name for op in read_h5(target).ops} if exists(target) else set()
    replaced = tuple(op.name for op in ops if op.name in existing)
    mode = "r+" if exists(target) else "w"
    try:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as temporary:
            if mode == "r+":
                shutil.copyfile(target, temporary)
            with hdf5_rows(
                "copy",
                source,
                seconds=CPU_SECONDS + (size_of(source) + size_of(temporary)) // _BYTES_PER_SECOND,
                target=posixpath.abspath(temporary),
                mode=mode,
                ops=[(op.type, op.seq) for op in ops],
            ) as rows:
                deque(rows, maxlen=0)
    except Hdf5Error as error:
        if error.died:
            raise FormatError.of(
                source, "io.h5.died_copying", what=f"{source}, or {target}", reason=error.reason
            ) from error
        if not error.is_os_error:
            raise FormatError.of(source, "io.h5.copy", target=target, reason=error.reason) from error
        raise OutputError("io.h5.not_writable", target=target, reason=error.reason) from error
    except OSError as error:
        if isinstance(error, PrecisionToolError):
            raise
        raise OutputError("io.h5.not_writable", target=target, reason=error.strerror) from error
    return replaced
