"""`.h5` dumps of the PyTorch 1.5 dumper: `/{op type}/{seq}/{input|output}/…/{name}` data sets (FORMATS.md §3).

Only headers are read. Files come from other machines: what leads out of the file, in circles, or claims more than the
file can hold is refused, as the dumper writes nothing like it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from precision_tool.lib.errors import FormatError, shown_name
from precision_tool.lib.formats.h5_bytes import (
    FILTERS,
    H5_ERRORS,
    MAX_CHUNK,
    MAX_GATHERED,
    REFUSED_HINT,
    alone,
    h5_reason,
    h5py_module,
    open_h5,
)
from precision_tool.lib.model.pytorch import INPUT, OUTPUT, Device, H5Dump, H5Op, H5Value
from precision_tool.lib.model.tensor import INNER, OUTER, WHOLE, Access, Plan, Tensor
from precision_tool.lib.numbers import data_types

#: The most groups and data sets of a file, and parts of a name, that are looked at.
MAX_OBJECTS, MAX_DEPTH = 4_000_000, 32
#: No compression makes data smaller than this many times (deflate: 1032), and chunks are never far below their size.
MAX_RATIO = 1100
_SLACK = 1 << 16
#: Tensors in another order are gathered from this many bytes on: in boxes they would be read in many small pieces.
_GATHERED_FROM = 4 << 20
#: Attributes are single numbers, but for strides.
_MAX_ATTRIBUTE = 64
#: Digits of a sequence number.
_MAX_DIGITS = 18

_REPACK_HINT = "h5repack -f GZIP=4 IN.h5 OUT.h5 writes it in a way that is read"


def read_h5(path: str) -> H5Dump:
    """The ops of a `.h5` dump in the order they ran, their tensors undecoded.

    FormatError for what is no HDF5 file, is damaged or is refused; UsageError where h5py is not installed.
    """
    with open_h5(path) as file, alone(path):
        h5py = h5py_module(path)
        size = file.id.get_filesize()
        walk = _Walk(path, h5py, size)
        try:
            walk.enter(file.id)
        except H5_ERRORS as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(f"{path}: damaged HDF5 file: {h5_reason(error)}", "copy or dump it again") from error
    ops = tuple(
        H5Op(type=op_type, seq=seq, values=tuple(sorted(values, key=_value_order)))
        for (op_type, seq), values in sorted(walk.found.items(), key=lambda item: (item[0][1], item[0][0]))
    )
    return H5Dump(path=path, size=size, ops=ops, ignored=tuple(walk.ignored))


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
class _Walk:
    """A walk over all groups of a file."""

    path: str
    h5py: ModuleType
    size: int
    found: dict[tuple[str, int], list[H5Value]] = field(default_factory=dict)
    ignored: list[tuple[str, str]] = field(default_factory=list)
    _groups: set[int] = field(default_factory=set)
    _objects: int = 0

    def refuse(self, name: str, why: str) -> FormatError:
        return FormatError(f"{self.path}: refused: {shown_name(name)} {why}", REFUSED_HINT)

    def enter(self, root: Any) -> None:
        """Looks at every data set below `root`."""
        h5o, h5l = self.h5py.h5o, self.h5py.h5l
        self._groups.add(h5o.get_info(root).addr)
        stack: list[tuple[Any, tuple[str, ...]]] = [(root, ())]
        while stack:
            group, above = stack.pop()
            if len(above) >= MAX_DEPTH:
                raise self.refuse("/" + "/".join(above), f"is nested more than {MAX_DEPTH} levels deep")
            self._objects += group.get_num_objs()
            if self._objects > MAX_OBJECTS:
                raise self.refuse("it", f"holds more than {MAX_OBJECTS:,} groups and data sets")
            names: list[bytes] = []
            group.links.iterate(names.append)
            for raw in names:
                parts = (*above, raw.decode("utf-8", "backslashreplace"))
                name = "/" + "/".join(parts)
                kind = group.links.get_info(raw).type
                if kind == h5l.TYPE_EXTERNAL:
                    target = group.links.get_val(raw)[0].decode("utf-8", "backslashreplace")
                    raise self.refuse(name, f"is a link to another file, {shown_name(target)}")
                if kind != h5l.TYPE_HARD:
                    raise self.refuse(name, "is a symbolic link")
                info = h5o.get_info(group, raw)
                if info.type == h5o.TYPE_GROUP:
                    if info.addr in self._groups:
                        raise self.refuse(name, "is a group that is in the file more than once: a cycle")
                    self._groups.add(info.addr)
                    stack.append((h5o.open(group, raw), parts))
                elif info.type == h5o.TYPE_DATASET:
                    self._take(h5o.open(group, raw), name, parts)
                else:
                    self.ignored.append((name, "neither a group nor a data set"))

    def _take(self, dataset: Any, name: str, parts: tuple[str, ...]) -> None:
        self._check(dataset, name)
        if len(parts) < 4 or not _is_sequence(parts[1]) or parts[2] not in (INPUT, OUTPUT):
            self.ignored.append((name, "not /op/seq/input/… or /op/seq/output/…"))
            return
        op_type, seq, direction, *rest = parts
        device = self._number(dataset, b"DeviceType")
        tensor, note, reason = None, "", ""
        try:
            tensor, note = self._tensor(dataset, name, device)
        except _NotReadError as error:
            reason = f"{self.path}: {shown_name(name)}: {error}"
        value = H5Value(
            path=name,
            direction=direction,
            name="/".join(rest),
            kind=self._number(dataset, b"Type"),
            scalar_type=self._number(dataset, b"DataType"),
            device=device,
            tensor=tensor,
            reason=reason,
            note=note,
        )
        self.found.setdefault((op_type, int(seq)), []).append(value)

    def _number(self, dataset: Any, name: bytes) -> int | None:
        numbers = self._numbers(dataset, name)
        return numbers[0] if numbers is not None and len(numbers) == 1 else None

    def _numbers(self, dataset: Any, name: bytes) -> tuple[int, ...] | None:
        """The whole numbers of an attribute; None for one that is not there or holds something else."""
        try:
            attribute = self.h5py.h5a.open(dataset, name)
            shape = attribute.shape
            if attribute.get_type().get_class() != self.h5py.h5t.INTEGER or prod(shape) > _MAX_ATTRIBUTE:
                return None
            array = np.empty(shape, np.int64)
            attribute.read(array)
        except H5_ERRORS:
            return None
        return tuple(array.reshape(-1).tolist())

    def _check(self, dataset: Any, name: str) -> None:
        """Refuses data that lies in other files, and sizes that the file cannot hold."""
        properties = dataset.get_create_plist()
        layout = properties.get_layout()
        if layout == self.h5py.h5d.VIRTUAL:
            raise self.refuse(name, "is a virtual data set: its data lies in other files")
        if properties.get_external_count():
            target = properties.get_external(0)[0].decode("utf-8", "backslashreplace")
            raise self.refuse(name, f"keeps its data in another file, {shown_name(target)}")
        claimed = prod(dataset.shape) * dataset.get_type().get_size() if dataset.shape is not None else 0
        # What HDF5 tells of the space is what the header claims.
        stored = min(dataset.get_storage_size(), self.size)
        if layout == self.h5py.h5d.CONTIGUOUS:
            stored = min(stored, max(self.size - (dataset.get_offset() or 0), 0))
        most = stored * MAX_RATIO + _SLACK if layout == self.h5py.h5d.CHUNKED else stored
        if _is_unwritten(dataset, layout == self.h5py.h5d.CONTIGUOUS):  # the dumper was stopped before it wrote
            most = self.size + _SLACK
        if claimed > most:
            raise self.refuse(name, f"claims {claimed:,} bytes of data, of which the file holds {stored:,}")

    def _tensor(self, dataset: Any, name: str, device: int | None) -> tuple[Tensor, str]:
        """The tensor of a data set, and what is to be said of it. _NotReadError says why there is none."""
        stored, dtype = dataset.get_type(), _dtype_of(dataset)
        if dataset.shape is None:
            raise _NotReadError("it has no shape")
        shape = tuple(int(extent) for extent in dataset.shape)
        if not self.h5py.h5t.py_create(dtype, logical=True).equal(stored):
            raise _NotReadError(f"its elements are stored as a {dtype} of an unusual kind")
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
        properties, h5d = dataset.get_create_plist(), self.h5py.h5d
        layout = properties.get_layout()
        if layout == h5d.CHUNKED:
            tensor = self._chunked(tensor, dataset, properties)
        elif layout == h5d.CONTIGUOUS:
            if tensor.size and _is_unwritten(dataset, True):
                raise _NotReadError("its data was never written")
            tensor = replace(tensor, offset=dataset.get_offset() or 0)
        else:  # within the header
            tensor = replace(tensor, access=Access.GATHER)
        strides = self._numbers(dataset, b"Stride") if device in (Device.CPU, Device.GPU) and tensor.size else None
        return (tensor, "") if strides is None else _strided(tensor, strides)

    def _chunked(self, tensor: Tensor, dataset: Any, properties: Any) -> Tensor:
        itemsize = dataset.dtype.itemsize
        chunk = tuple(int(extent) for extent in properties.get_chunk())
        filters = [properties.get_filter(number) for number in range(properties.get_nfilters())]
        unknown = [one for one in filters if one[0] not in FILTERS]
        if unknown:
            raise _NotReadError(f"it is compressed with the filter {unknown[0][0]}, which is not read; {_REPACK_HINT}")
        if prod(chunk) * itemsize > MAX_CHUNK:
            told = f"one chunk of it takes {prod(chunk) * itemsize:,} bytes, {MAX_CHUNK:,} are most"
            raise _NotReadError(f"{told}; {_REPACK_HINT}")
        if not tensor.size:
            return tensor
        grid = tuple(-(-extent // step) for extent, step in zip(tensor.shape, chunk, strict=True))
        written = dataset.get_num_chunks()
        if written < prod(grid):
            raise _NotReadError(f"{prod(grid) - written} of its {prod(grid)} chunks were never written")
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


class _NotReadError(Exception):
    """Why a data set is no tensor that can be read."""


def _is_unwritten(dataset: Any, is_contiguous: bool) -> bool:
    return is_contiguous and dataset.get_offset() is None


def _dtype_of(dataset: Any) -> np.dtype[Any]:
    try:
        dtype: np.dtype[Any] = dataset.dtype
    except H5_ERRORS as error:
        raise _NotReadError(f"its type is not read: {h5_reason(error)}") from error
    if dtype.kind not in "biufc" or dtype.name not in data_types.BY_NAME:
        raise _NotReadError(f"elements of type {dtype} are no numbers that can be compared")
    return dtype


# --- strides ----------------------------------------------------------------------------------------------------------


def _strided(tensor: Tensor, strides: tuple[int, ...]) -> tuple[Tensor, str]:
    """A tensor of CPU or GPU, whose elements lie in memory order: `strides` (in elements) tell the logical one."""
    shape = tensor.shape
    told = f"its strides {list(strides)} do not fit its shape {list(shape)}"
    if len(strides) != len(shape) or any(stride < 0 for stride in strides):
        return tensor, f"{told}: read as it is stored"
    reach = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    if reach > tensor.size:
        return tensor, f"{told}: read as it is stored"
    axes = [axis for axis, extent in enumerate(shape) if extent > 1]
    by_stride = sorted(axes, key=lambda axis: -strides[axis])
    dense = all(
        strides[axis] == prod(shape[inner] for inner in by_stride[position + 1 :])
        for position, axis in enumerate(by_stride)
    )
    if dense and by_stride == axes:
        return tensor, ""
    nbytes = tensor.size * data_types.BY_NAME[tensor.dtype].byte_size(1)
    # What is too large to be read at once, or small enough to be cut in memory, is read in boxes.
    if dense and tensor.access is Access.BYTES and not _GATHERED_FROM < nbytes <= MAX_GATHERED:
        order = (*(axis for axis, extent in enumerate(shape) if extent <= 1), *by_stride)
        plan = Plan(
            tuple(shape[axis] for axis in order), tuple((axis, WHOLE) for axis in order), shape, (1,) * len(shape)
        )
        return replace(tensor, plan=plan), ""
    if nbytes > MAX_GATHERED:
        raise _NotReadError(f"its strides {list(strides)} need all of its {nbytes:,} bytes in memory")
    return replace(tensor, access=Access.GATHER, offset=0, nbytes=nbytes, strides=strides, plan=None), ""


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
