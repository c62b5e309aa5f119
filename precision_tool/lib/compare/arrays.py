"""Tensors of files as array proxies: shape and type are known at once, values are read when they are asked for."""

from __future__ import annotations

import operator
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

from precision_tool.lib.compare.convert import result_type
from precision_tool.lib.compare.data_folder import DataFolder
from precision_tool.lib.compare.named_tensors import (
    NamedTensor,
    named_value,
    split_slot,
    tensors_of_file,
    tensors_of_pair,
)
from precision_tool.lib.compare.tensor_reader import Scratch, TensorReader, box_size
from precision_tool.lib.data.graph_catalog import FoundOp
from precision_tool.lib.io import data_types
from precision_tool.lib.io.files import exists
from precision_tool.lib.io.layouts import Box, Reading
from precision_tool.lib.messages import Message, render
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, UsageError
from precision_tool.lib.model.comparison import Pair, Status
from precision_tool.lib.model.tensor import Plan, Tensor

#: The side of a tensor: what the NPU dumped, or what it is compared with.
Side = Literal["npu", "benchmark"]


@dataclass(frozen=True, eq=False)
class TensorProxy(NDArrayOperatorsMixin):
    """A tensor in a file that behaves as a numpy array and is read when its values are asked for.

    `proxy[2:4, ..., 0]` reads only what these indices need; operators, numpy's functions and the methods of an array
    (`proxy.max()`) read all of it, each time, as `numpy.asarray(proxy)` does: nothing is kept. Values
    come in the order of the axes of the training script, without the padding of the device's layout, where the graph
    or the file tells these.

    Attributes
    ----------
    name : str
        The op it belongs to; empty for a tensor of a file that names none.
    slot : str
        ``"input:0"`` or ``"output:0"``, empty for a file that is one tensor. Of a benchmark tensor its own name.
    path : str
        The file that holds it.
    stored_type, stored_layout : str
        The type and layout in the file (``"bfloat16"``, ``"NC1HWC0"``), which numpy may not have.
    stored_shape : tuple of int
        The shape in the file, padding included.
    layout : str
        What the axes mean here (``"NHWC"``, ``"ND"``); empty where the values come as they are stored.
    note : str
        What is odd about the order in which it is read; empty if nothing is.
    benchmark : TensorProxy or None
        The benchmark tensor it is compared with, in the same order and shape; None without one.
    """

    name: str
    slot: str
    tensor: Tensor
    reading: Reading
    benchmark: TensorProxy | None = None

    @property
    def path(self) -> str:
        """The file that holds it."""
        return self.tensor.path

    @property
    def stored_type(self) -> str:
        """The type in the file."""
        return self.tensor.dtype

    @property
    def stored_layout(self) -> str:
        """The layout in the file."""
        return self.tensor.layout

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape in the file, padding included."""
        return self.tensor.shape

    @property
    def layout(self) -> str:
        """The meaning of the axes."""
        return self.reading.layout

    @property
    def note(self) -> str:
        """A remark on the order in which it is read."""
        return render(self.reading.note)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.reading.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the array: numpy's own for the stored type, or a wider one where numpy has none."""
        return result_type(data_types.BY_NAME[self.tensor.dtype])

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without axes")
        return self.shape[0]

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return all values.

        Raises
        ------
        ValueError
            For ``copy=False``: the values lie in a file.
        FormatError, DataNotFoundError
            If the file is damaged, or gone.
        """
        if copy is False:
            raise ValueError("the values of a tensor in a file cannot be had without a copy")
        values = self._read(tuple((0, extent) for extent in self.shape))
        return values if dtype is None else values.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if any(isinstance(out, TensorProxy) for out in options.get("out", ())):
            raise TypeError("a tensor of a dump cannot be written to: take numpy.asarray(tensor)")
        arrays = [np.asarray(value) if isinstance(value, TensorProxy) else value for value in inputs]
        return getattr(ufunc, method)(*arrays, **options)

    def __getattr__(self, name: str) -> Any:
        """Return the attribute or method of an array, whose values are read."""
        if name.startswith("_") or not hasattr(np.ndarray, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(np.asarray(self), name)

    def __bool__(self) -> bool:
        return bool(np.asarray(self))

    def __float__(self) -> float:
        return float(np.asarray(self))

    def __int__(self) -> int:
        return int(np.asarray(self))

    def __getitem__(self, index: Any) -> Any:
        """Return the values at integers, slices and ``...``, of which only these are read from the file.

        Raises
        ------
        IndexError
            For an index out of range, too many of them, or of another kind: take ``numpy.asarray(proxy)[index]``.
        """
        box, rest = _box_of(index, self.shape)
        return self._read(box)[rest]

    def _read(self, box: Box) -> npt.NDArray[Any]:
        plan = self.reading.plan
        extents = tuple(stop - start for start, stop in box)
        if not all(extents):
            return np.empty(extents, self.dtype)
        is_whole_bytes = data_types.BY_NAME[self.tensor.dtype].bits >= 8
        if plan.logical_shape == self.shape and is_whole_bytes:
            return self._values(plan, box).reshape(extents)
        # The shape has axes of one item more or less than the plan, or elements that begin within a byte.
        whole = self._values(plan, tuple((0, extent) for extent in plan.logical_shape)).reshape(self.shape)
        return whole[tuple(slice(start, stop) for start, stop in box)]

    def _values(self, plan: Plan, box: Box) -> npt.NDArray[Any]:
        data_type = data_types.BY_NAME[self.tensor.dtype]
        real = np.dtype(f"f{self.dtype.itemsize // 2}") if self.dtype.kind == "c" else self.dtype
        if data_type.decode == "packed":  # they are looked up as floats
            real = np.dtype(np.float32)
        if self.dtype.kind == "c":
            box = (*box, (0, 2))
        reader = TensorReader(self.tensor, plan, real, Scratch(), "tensor")
        try:
            items = np.empty(box_size(box), real)
            reader.read_box(box, items)
        except MemoryError:
            raise FormatError.of(self.path, "compare.no_memory") from None
        finally:
            reader.close()
        return items.view(self.dtype) if self.dtype.kind == "c" else items.astype(self.dtype, copy=False)

    def __repr__(self) -> str:
        where = f"{self.name} {self.slot}".strip() or posixpath.basename(self.path)
        stored = f"{self.stored_type} {self.stored_layout} {list(self.stored_shape)}"
        return f"<TensorProxy {where}: {self.dtype} {list(self.shape)}, stored as {stored}>"


def _box_of(index: Any, shape: tuple[int, ...]) -> tuple[Box, tuple[int | slice, ...]]:
    """Return the box that an index needs of an array, and the index into this box."""
    parts = index if isinstance(index, tuple) else (index,)
    if sum(part is Ellipsis for part in parts) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    missing = len(shape) - sum(part is not Ellipsis for part in parts)
    if missing < 0:
        raise IndexError(f"too many indices: the tensor has {len(shape)} axes")
    at = next((number for number, part in enumerate(parts) if part is Ellipsis), len(parts))
    full = (*parts[:at], *[slice(None)] * missing, *parts[at + 1 :])
    box, rest = [], []
    for axis, (part, extent) in enumerate(zip(full, shape, strict=True)):
        span, inner = _span(part, extent, axis)
        box.append(span)
        rest.append(inner)
    return tuple(box), tuple(rest)


def _span(part: Any, extent: int, axis: int) -> tuple[tuple[int, int], int | slice]:
    """Return the part of an axis that an index needs, and the index into that part."""
    if isinstance(part, slice):
        places = range(*part.indices(extent))
        if not places:
            return (0, 0), slice(None)
        low, high = min(places[0], places[-1]), max(places[0], places[-1]) + 1
        return (low, high), slice(None, None, part.step)
    if isinstance(part, (bool, np.bool_)):
        raise IndexError("only integers, slices and ... are read from a file: take numpy.asarray of the tensor")
    try:
        number = operator.index(part)
    except TypeError:
        raise IndexError(
            "only integers, slices and ... are read from a file: take numpy.asarray of the tensor"
        ) from None
    if not -extent <= number < extent:
        raise IndexError(f"index {number} is out of bounds for axis {axis} with size {extent}")
    number %= extent
    return (number, number + 1), 0


# --- by name ----------------------------------------------------------------------------------------------------------


def open_tensors(
    data: DataFolder, name: str, graph: str | None = None, run: int | None = None
) -> tuple[TensorProxy, ...]:
    """Return the tensors of an op or a file, or the one in a slot of it (see `Session.tensors`)."""
    base, slot = split_slot(name)
    if data.is_pytorch_name(base):
        hits = data.find_h5(base, many=True)
        tensors = [
            named_value(hit.side.dump.path, hit.op, value) for hit in hits for value in hit.values if value.is_tensor
        ]
    elif exists(base):
        tensors = tensors_of_file(base, slot)
    else:
        return tuple(proxy for _, proxy in _of_ops(data, base, slot, graph, run))
    return tuple(_proxy(named) for named in tensors)


def one_tensor(data: DataFolder, name: str, graph: str | None = None, run: int | None = None) -> TensorProxy:
    """Return the one tensor of a name (see `Session.tensor`)."""
    tensors = open_tensors(data, name, graph, run)
    if len({tensor.path for tensor in tensors}) > 1 and run is None:  # another run has it too
        base, slot = split_slot(name)
        of_ops = () if exists(base) or data.is_pytorch_name(base) else _of_ops(data, base, slot, graph, None)
        first = min((number for number, _ in of_ops if number is not None), default=None)
        tensors = tuple(proxy for number, proxy in of_ops if number == first) or tensors
    if len(tensors) != 1:
        slots = [f"{tensor.name or tensor.path}:{tensor.slot}" for tensor in tensors]
        raise UsageError("compare.many_tensors", name=name, count=len(tensors), slots=slots)
    return tensors[0]


def on_side(tensors: Sequence[TensorProxy], side: Side, name: str) -> tuple[TensorProxy, ...]:
    """Return tensors, or their benchmark tensors; DataNotFoundError without any, UsageError for another side."""
    if side not in get_args(Side):
        raise UsageError("compare.no_such_side", side=repr(side), sides=get_args(Side))
    if side == "npu":
        return tuple(tensors)
    benchmarks = tuple(tensor.benchmark for tensor in tensors if tensor.benchmark is not None)
    if not benchmarks:
        raise DataNotFoundError("compare.no_benchmark_tensor", name=name)
    return benchmarks


def _of_ops(
    data: DataFolder, name: str, slot: str, graph: str | None, run: int | None
) -> list[tuple[int | None, TensorProxy]]:
    """Return the tensors of an op, each with the number of its run; of all runs, or of one."""
    proxies: list[tuple[int | None, TensorProxy]] = []
    slots: list[str] = []
    for hit in data.find_ops(name, graph):
        if run not in (None, hit.run.number):
            continue
        for pair in data.pairs_of(hit):
            slots += [pair.slot] if pair.slot else []
            if slot in ("", pair.slot) and pair.slot:
                proxies += ((hit.run.number, proxy) for proxy in _of_pair(hit, pair))
    if not proxies:
        raise DataNotFoundError("compare.no_dumped_tensor", name=name, slot=slot, slots=slots)
    return proxies


def _of_pair(hit: FoundOp, pair: Pair) -> Iterator[TensorProxy]:
    npu, golden = pair.npu, pair.golden
    if not isinstance(npu, Tensor):
        return
    if pair.status is Status.COMPARED and isinstance(golden, Tensor) and pair.npu_plan and pair.golden_plan:
        shape = pair.error_shape if prod(pair.error_shape) == prod(pair.npu_plan.logical_shape) else None
        order = Reading(pair.npu_plan, shape or pair.npu_plan.logical_shape, "", pair.reason)
        other = TensorProxy("", pair.golden_tensor, golden, replace(order, plan=pair.golden_plan))
        yield TensorProxy(pair.op_name, pair.slot, npu, order, other)
        return
    descs = hit.op.input_descs if pair.is_input else hit.op.output_descs
    number = int(pair.slot.rpartition(":")[2])
    desc = descs[number] if number < len(descs) else None
    origin = (None, None) if desc is None else (desc.dump_origin_layout or desc.origin_layout, desc.origin_shape)
    named, _ = tensors_of_pair(pair, "", *origin)
    if named.reading is not None:
        yield TensorProxy(pair.op_name, pair.slot, npu, named.reading)


def _proxy(named: NamedTensor) -> TensorProxy:
    if not isinstance(named.tensor, Tensor) or named.reading is None:
        reason = named.reason or Message("error.compare.statistics_only.text")
        raise FormatError.of(named.path, "compare.no_values", slot=named.slot, reason=reason)
    return TensorProxy(named.op_name, named.slot, named.tensor, named.reading)
