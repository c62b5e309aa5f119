"""What one step of a rank was dumped as, where the dump keeps statistics: numbers by tensor, as arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, nan, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.errors import FormatError, PrecisionToolError
from precision_tool.lib.model.run import DumpLeaf
from precision_tool.lib.model.tensor import TensorStatistics
from precision_tool.lib.numbers import data_types
from precision_tool.lib.sources.dumps import DumpIndex, Found
from precision_tool.lib.study.packed import Columns, coded, pack, unpack
from precision_tool.lib.study.votes import role_of

Doubles = npt.NDArray[np.float64]
Wholes = npt.NDArray[np.int64]
#: What there is of each leaf takes 25 bytes a tensor: a study may hold 30 million.
Floats = npt.NDArray[np.float32]
Digests = npt.NDArray[np.uint32]

#: Tensors with fewer elements tell nothing of norms, and little of what they are.
ELEMENTS = 32
#: The digest of a tensor that a leaf lacks.
UNKNOWN = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNames:
    """The tensors of a network in the order of execution: the same for every leaf in which the same was dumped.

    `op_of`, `is_output`, `slots`, `counts` (elements), `limits` (the largest number of a floating-point type, inf for
    others) and `nbytes` (of the tensor, were it dumped) are by tensor; `ops` and `types` by op, `names` as files spell.
    """

    ops: tuple[str, ...]
    types: tuple[str, ...]
    op_of: Wholes
    is_output: npt.NDArray[np.bool_]
    slots: Wholes
    counts: Wholes
    limits: Doubles
    nbytes: Wholes

    def tensor(self, number: int) -> str:
        """A tensor's name, `op:output:0`."""
        side = "output" if self.is_output[number] else "input"
        return f"{self.ops[self.op_of[number]]}:{side}:{self.slots[number]}"

    def must_agree(self) -> npt.NDArray[np.bool_]:
        """Which tensors replicas have alike: what collectives and updates of variables put out."""
        shared = np.array([role_of(op_type) is not None for op_type in self.types], bool)
        agree: npt.NDArray[np.bool_] = shared[self.op_of] & self.is_output
        return agree


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafStatistics:
    """The statistics of one step of a rank, by tensor of `names`.

    `sizes` are norms (‖x‖, NaN where unknown), where the dump tells none bounds of them by the largest element;
    `means` and `largest` (absolute) are NaN where unknown. `nans` and `infs` count; `digests` are of all numbers that
    the dump has of a tensor.
    """

    step: int
    rank: int
    names: TensorNames
    sizes: Floats
    means: Floats
    largest: Floats
    nans: Floats
    infs: Floats
    digests: Digests
    is_constant: npt.NDArray[np.bool_]
    #: Files that cannot be read, with the reason.
    unread: tuple[str, ...] = ()


def aligned(one: LeafStatistics, names: TensorNames, *, of_one_size: bool = True) -> LeafStatistics:
    """The statistics in the order of `names`; NaN for tensors that it lacks.

    So are, with `of_one_size`, tensors with another number of elements; a benchmark's have no padding.
    """
    if one.names is names:
        return one
    if _is_alike(one.names, names):
        return replace(one, names=names)
    places = {key: number for number, key in enumerate(_keys(one.names))}
    found = np.array([places.get(key, -1) for key in _keys(names)], np.int64)
    known = found >= 0
    if of_one_size:
        known[known] = one.names.counts[found[known]] == names.counts[known]
    at = found[known]

    def spread(values: Any, fill: Any) -> Any:
        result = np.full(len(found), fill, values.dtype)
        result[known] = values[at]
        return result

    return replace(
        one, names=names, sizes=spread(one.sizes, nan), means=spread(one.means, nan), largest=spread(one.largest, nan),
        nans=spread(one.nans, 0), infs=spread(one.infs, 0), digests=spread(one.digests, UNKNOWN),
        is_constant=spread(one.is_constant, False),
    )  # fmt: skip


def _is_alike(one: TensorNames, other: TensorNames) -> bool:
    """Whether two networks have the same tensors in the same order."""
    fields = ("op_of", "is_output", "slots", "counts")
    return one.ops == other.ops and all(np.array_equal(getattr(one, each), getattr(other, each)) for each in fields)


def _keys(names: TensorNames) -> list[tuple[str, bool, int]]:
    return [
        (names.ops[op], bool(is_output), int(slot))
        for op, is_output, slot in zip(names.op_of, names.is_output, names.slots, strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpStatistics:
    """An op's tensors by slot; what is no statistics is left out."""

    name: str
    type: str
    inputs: Mapping[int, Found]
    outputs: Mapping[int, Found]


def read_leaf(leaf: DumpLeaf, step: int, rank: int) -> LeafStatistics:
    """The statistics of a leaf; files that cannot be read, and tensors that were dumped whole, are left out."""
    dumps = DumpIndex(leaf)
    ops: list[OpStatistics] = []
    unread: list[str] = []
    for name in dumps.names_by_time():
        try:
            dumped = dumps.op(name)
        except PrecisionToolError as error:
            unread.append(error.message)
            continue
        unread += [f"{error.path}: {error.reason}" for error in dumped.errors]
        ops.append(OpStatistics(name=name, type=dumped.op_type, inputs=dumped.inputs, outputs=dumped.outputs))
    return of_ops(ops, step, rank, tuple(unread))


def of_ops(ops: Sequence[OpStatistics], step: int, rank: int, unread: tuple[str, ...] = ()) -> LeafStatistics:
    """The statistics of ops in the order of their execution."""
    tensors: list[tuple[int, bool, int, TensorStatistics]] = []
    for number, op in enumerate(ops):
        for is_output, side in ((False, op.inputs), (True, op.outputs)):
            tensors += [(number, is_output, slot, one) for slot, one in _known(side)]
    return LeafStatistics(
        step=step,
        rank=rank,
        names=TensorNames(
            ops=tuple(op.name for op in ops),
            types=tuple(op.type for op in ops),
            op_of=np.array([op for op, *_ in tensors], np.int64),
            is_output=np.array([is_output for _, is_output, *_ in tensors], bool),
            slots=np.array([slot for *_, slot, _ in tensors], np.int64),
            counts=np.array([_count(one) for *_, one in tensors], np.int64),
            limits=np.array([_limit(one) for *_, one in tensors], np.float64),
            nbytes=np.array([one.nbytes or _nbytes(one) for *_, one in tensors], np.int64),
        ),
        sizes=_numbers(_size(one) for *_, one in tensors),
        means=_numbers(one.mean for *_, one in tensors),
        largest=_numbers(_largest(one) for *_, one in tensors),
        nans=np.array([_nans(one) for *_, one in tensors], np.float32),
        infs=np.array([_infs(one) for *_, one in tensors], np.float32),
        digests=np.array([_digest(one) for *_, one in tensors], np.uint32),
        is_constant=np.array([one.minimum == one.maximum for *_, one in tensors], bool),
        unread=unread,
    )


#: The arrays of a leaf, and of its names.
_OF_LEAF = ("sizes", "means", "largest", "nans", "infs", "digests", "is_constant")
_OF_NAMES = ("op_of", "is_output", "slots", "counts", "limits", "nbytes")


def pack_statistics(leaf: LeafStatistics) -> bytes:
    """The statistics as bytes that a worker hands back and a journal keeps."""
    columns: Columns = {"ops": coded(leaf.names.ops), "types": coded(leaf.names.types), "unread": coded(leaf.unread)}
    columns |= {name: getattr(leaf.names, name) for name in _OF_NAMES}
    return pack(columns | {name: getattr(leaf, name) for name in _OF_LEAF})


def unpack_statistics(path: str, data: bytes, step: int, rank: int) -> LeafStatistics:
    """The statistics of a leaf again. FormatError for bytes, of the file `path`, not of `pack_statistics`."""
    columns: dict[str, Any] = {**unpack(path, data)}
    if set(columns) != {"ops", "types", "unread", *_OF_NAMES, *_OF_LEAF}:
        raise FormatError.of(path, "statistics that the study kept cannot be read", "`ac --all --fresh` begins anew")
    names = TensorNames(
        ops=tuple(columns["ops"]), types=tuple(columns["types"]), **{name: columns[name] for name in _OF_NAMES}
    )
    return LeafStatistics(
        step=step, rank=rank, names=names, unread=tuple(columns["unread"]),
        **{name: columns[name] for name in _OF_LEAF},
    )  # fmt: skip


def _known(side: Mapping[int, Found]) -> list[tuple[int, TensorStatistics]]:
    return [(slot, one) for slot, one in sorted(side.items()) if isinstance(one, TensorStatistics)]


def _numbers(values: Any) -> Floats:
    known = [nan if value is None or not isfinite(value) else value for value in values]
    with np.errstate(over="ignore"):  # of float64, what float32 cannot hold is as good as infinite
        return np.array(known, np.float64).astype(np.float32)


def _count(one: TensorStatistics) -> int:
    return min(one.size if one.count is None else one.count, 2**62)


def _nbytes(one: TensorStatistics) -> int:
    known = data_types.BY_NAME.get(one.dtype)
    return 0 if known is None else min(known.byte_size(one.size), 2**62)


def _limit(one: TensorStatistics) -> float:
    known = data_types.FLOATS.get(one.dtype)
    return float("inf") if known is None else known.largest


def _largest(one: TensorStatistics) -> float | None:
    if one.minimum is None or one.maximum is None:
        return None
    return max(abs(one.minimum), abs(one.maximum))


def _size(one: TensorStatistics) -> float | None:
    """The norm; of a dump without, the largest element stands for it."""
    if one.l2_norm is not None:
        return one.l2_norm
    largest = _largest(one)
    return None if largest is None else largest * sqrt(max(_count(one), 1))


def _nans(one: TensorStatistics) -> int:
    """Some releases put NaN into the minimum and maximum in place of counting it."""
    told = [value for value in (one.minimum, one.maximum, one.mean) if value is not None]
    return one.nan_count or int(any(value != value for value in told))


def _infs(one: TensorStatistics) -> int:
    told = [value for value in (one.minimum, one.maximum) if value is not None]
    counted = (one.positive_inf_count or 0) + (one.negative_inf_count or 0)
    return counted or sum(abs(value) == float("inf") for value in told)


def _digest(one: TensorStatistics) -> int:
    numbers = (one.maximum, one.minimum, one.mean, one.count, one.l2_norm)
    text = repr((*numbers, one.nan_count, one.negative_inf_count, one.positive_inf_count)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little") or 1
