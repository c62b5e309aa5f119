"""Tensors as the files describe them: everything about the bytes except the bytes themselves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import prod

from precision_tool.lib.messages import Message


class Access(StrEnum):
    """How the bytes of a tensor are had: as they lie, in chunks one after the other, gathered with strides, or joined
    of parts in several files."""

    BYTES = "bytes"
    CHUNKS = "chunks"
    GATHER = "gather"
    JOINED = "joined"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor in a file. Its bytes stay there until `formats.blocks` is asked for them.

    `shape` is the shape in storage order and `layout` names what its dimensions mean (`NC1HWC0`, `ND`, …);
    `origin_shape` is the shape before the device's storage layout, `()` for a scalar, None when unknown.

    A tensor of an HDF5 or safetensors file has the name of its `dataset` there, and where its bytes do not just lie at
    `offset`, `access` says how they are had (see `formats.tensor_bytes`). `plan` is the order the file itself says they
    are in.

    A tensor that is joined of `parts` along `joined_axis` has the path of the first, and an offset that no part has.
    """

    path: str
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    layout: str = "ND"
    origin_shape: tuple[int, ...] | None = None
    fortran_order: bool = False
    big_endian: bool = False
    address: int = 0
    dataset: str = ""
    access: Access = Access.BYTES
    strides: tuple[int, ...] = ()
    plan: Plan | None = None
    parts: tuple[Tensor, ...] = ()
    joined_axis: int = 0

    @property
    def size(self) -> int:
        """Number of elements as stored, padding included."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorStatistics:
    """A tensor of which the dump kept only statistics. None stands for a value the file gives as `NA`."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    layout: str = "ND"
    nbytes: int = 0
    maximum: float | None = None
    minimum: float | None = None
    mean: float | None = None
    count: int | None = None
    nan_count: int | None = None
    negative_inf_count: int | None = None
    positive_inf_count: int | None = None
    l2_norm: float | None = None

    @property
    def size(self) -> int:
        """Number of elements as stored."""
        return prod(self.shape)


#: What a storage axis holds of its logical axis: all of it, the number of the block, the place in the block.
WHOLE, OUTER, INNER = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Plan:
    """How a stored array becomes a logical one.

    `axes[i]` is `(logical axis, WHOLE | OUTER | INNER)` of storage axis i; `blocks[j]` the block of logical
    axis j, 1 where it is stored whole.
    """

    storage_shape: tuple[int, ...]
    axes: tuple[tuple[int, int], ...]
    logical_shape: tuple[int, ...]
    blocks: tuple[int, ...]

    @property
    def is_flat(self) -> bool:
        """True if stored and logical order are the same, without padding."""
        return self.storage_shape == self.logical_shape and all(
            axis == position for position, (axis, _) in enumerate(self.axes)
        )

    def with_trailing(self, count: int) -> Plan:
        """The plan with one more, innermost axis (the two reals of a complex number)."""
        rank = len(self.logical_shape)
        return Plan(
            (*self.storage_shape, count),
            (*self.axes, (rank, WHOLE)),
            (*self.logical_shape, count),
            (*self.blocks, 1),
        )


AnyTensor = Tensor | TensorStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class Slicing:
    """What the dump of an FFTS+ op tells of the slices it ran in.

    `count` is how many there are, None where it is not said. `cuts` has for each output how many pieces each axis is
    cut into; `shapes` the shape of each output in each slice, where threads run them (`is_threaded`).
    """

    is_threaded: bool
    count: int | None = None
    cuts: tuple[tuple[int, ...], ...] = ()
    shapes: tuple[tuple[tuple[int, ...], ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpDump:
    """What one dump file holds: the tensors of one run of one op.

    Slots of `inputs` and `outputs` may be None where a statistics file skips an index.
    """

    path: str
    op_name: str = ""
    inputs: tuple[AnyTensor | None, ...] = ()
    outputs: tuple[AnyTensor | None, ...] = ()
    #: Slots of this op that could not be read, as "input:0" -> why. The others are good.
    bad_slots: tuple[tuple[str, Message], ...] = ()
    #: Those of them that have fewer bytes than their shape needs, as they are declared. Never to be read.
    declared: tuple[tuple[str, Tensor], ...] = ()
    slicing: Slicing | None = None
