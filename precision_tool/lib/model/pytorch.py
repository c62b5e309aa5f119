"""What the PyTorch 1.5 dumper writes into one `.h5` file: ops in the order they ran, and what went in and out."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from precision_tool.lib.messages import Message
from precision_tool.lib.model.tensor import Tensor

INPUT, OUTPUT = "input", "output"


class Device(IntEnum):
    """Attribute `DeviceType`."""

    CPU = 0
    GPU = 1
    NPU = 10


#: Attribute `DataType`: the types of PyTorch, by the dumper's numbers.
SCALAR_TYPES = {
    1: "Float",
    2: "Byte",
    3: "Char",
    5: "Short",
    6: "Int",
    7: "Long",
    9: "Bool",
    10: "Half",
    11: "Double",
}
#: Types that both sides of a comparison may have without a remark (the vendor's table).
ALIKE_TYPES = (frozenset({"Int", "Long"}), frozenset({"Float", "Half"}))

#: Attribute `Type`: what a data set is. Only tensors are compared.
TENSOR = 0
KINDS = {
    0: "tensor",
    1: "tensors",
    2: "int64s",
    3: "int64",
    4: "bool",
    5: "double",
    6: "scalar",
    7: "type and sizes",
    8: "optional int64",
    9: "optional scalar",
    10: "int64s of int64s",
    11: "geometry",
    12: "size",
    13: "scalar type",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class H5Value:
    """A data set of an op: `/{op type}/{seq}/{input|output}/{name}`, where a name may have several parts.

    Without a `tensor`, `reason` says why it cannot be read. Attributes that the file does not have are None.
    """

    path: str
    direction: str
    name: str
    kind: int | None = None
    scalar_type: int | None = None
    device: int | None = None
    tensor: Tensor | None = None
    reason: Message | None = None
    #: What the user should know of it all the same.
    note: Message | None = None

    @property
    def is_tensor(self) -> bool:
        """False for the parameters of an op: flags, sizes, scalars. A data set without attributes counts as one."""
        return self.kind in (None, TENSOR)

    @property
    def slot(self) -> str:
        """`input:mat1`, `output:tensors/0`."""
        return f"{self.direction}:{self.name.replace(':', '_')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class H5Op:
    """One run of one op. `seq` counts all ops of the dump in the order they ran."""

    type: str
    seq: int
    values: tuple[H5Value, ...] = field(repr=False)

    @property
    def name(self) -> str:
        """`/Addmm/4`, as in the file."""
        return f"/{self.type}/{self.seq}"

    @property
    def tensors(self) -> tuple[H5Value, ...]:
        """What is compared, inputs first."""
        return tuple(value for value in self.values if value.is_tensor)

    def of(self, direction: str) -> tuple[H5Value, ...]:
        """The values of one direction."""
        return tuple(value for value in self.values if value.direction == direction)


@dataclass(frozen=True, slots=True, kw_only=True)
class H5Dump:
    """One `.h5` file. `ops` are in the order they ran; `ignored` are names in it that are no part of the layout."""

    path: str
    size: int
    ops: tuple[H5Op, ...] = field(repr=False)
    ignored: tuple[tuple[str, Message], ...] = field(default=(), repr=False)

    @property
    def device(self) -> str:
        """The device of its tensors: NPU or GPU where any is there (CPU tensors are among theirs), `?` if not told."""
        devices = {value.device for op in self.ops for value in op.values if value.device is not None}
        return next((device.name for device in (Device.NPU, Device.GPU, Device.CPU) if device in devices), "?")

    @property
    def has_inputs(self) -> bool:
        """False for what was dumped while the inputs were loaded from another dump: then it has outputs only."""
        return any(value.direction == INPUT and value.is_tensor for op in self.ops for value in op.values)
