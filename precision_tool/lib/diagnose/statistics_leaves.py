"""The rows of a leaf as columns, and these as bytes that the journal keeps and workers hand back."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, isnan, nan, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.compare.columns import (
    READABLE,
    Column,
    field_of,
    read_indices,
    reason_of_text,
    write_indices,
)
from precision_tool.lib.data.dumped_ops import DumpIndex, Found
from precision_tool.lib.diagnose.replica_votes import role_of
from precision_tool.lib.io import data_types
from precision_tool.lib.messages import Message, render
from precision_tool.lib.messages.errors import FormatError, PrecisionToolError
from precision_tool.lib.model.comparison import Metrics, Pair, Status, Summary
from precision_tool.lib.model.run import DumpLeaf
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.tensor import AnyTensor, TensorStatistics


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """A column of texts, each kept once: `codes` has shape (rows,), int32, of places in `texts`."""

    codes: npt.NDArray[np.int32]
    texts: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def __iter__(self) -> Iterator[str]:
        texts = self.texts
        return (texts[code] for code in self.codes.tolist())

    def where(self, is_wanted: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
        """Return for each row whether its text is wanted; shape (rows,)."""
        return np.array([is_wanted(text) for text in self.texts], np.bool_)[self.codes]


def coded(values: Sequence[str]) -> Texts:
    """Return texts as a column."""
    codes_by_text: dict[str, int] = {}
    codes = np.array([codes_by_text.setdefault(text, len(codes_by_text)) for text in values], np.int32)
    return Texts(codes, tuple(codes_by_text))


#: Columns by name: numbers as arrays, and texts.
Columns = dict[str, npt.NDArray[Any] | Texts]

#: Columns of a result file that a study calls otherwise than their field.
_NAMES = {
    "pair.index": "number", "pair.op_type": "type", "pair.golden_tensor": "benchmark_tensor",
    "pair.pass_names": "passes", "pair.golden_ops": "benchmark_ops", "pair.original_names": "script_ops",
    "npu_dtype": "npu_type", "golden_dtype": "benchmark_type", "golden.nan_count": "benchmark_nan",
    "metrics.non_finite_mismatches": "mismatches", "metrics.golden_at_max_error": "benchmark_at_max_error",
}  # fmt: skip
#: Columns that others tell of, or that a study never asks for.
_LEFT_OUT = ("pair.tensor_index", "deviation", "pair.sequence", "overflow")
#: So many values tell whether a column can be packed.
_SAMPLE = 1024
_PREFIXES = {"npu": "npu_", "golden": "benchmark_"}


def _name_of(column: Column) -> str:
    part, _, field = column.field.rpartition(".")
    return _NAMES.get(column.field, f"{_PREFIXES.get(part, '')}{field}")


#: The columns of a result file that are kept, by their names here.
_STORED = {_name_of(column): column for column in READABLE.values() if column.field not in _LEFT_OUT}


def _type(tensor: AnyTensor | None) -> str:
    return "" if tensor is None else tensor.dtype


def _written(positions: Sequence[int] | None) -> str:
    return "" if positions is None else write_indices(positions)


def _field(column: Column) -> Callable[[Row], Any]:
    return lambda row: field_of(row, column.field)


def _text(column: Column) -> Callable[[Row], str]:
    """Return a column as one text; names are joined, and no positions are an empty text."""
    value = _field(column)
    if column.form.kind == "names":
        return lambda row: ",".join(value(row))
    if column.form.kind == "indices":
        return lambda row: _written(value(row))
    return lambda row: str(value(row))


def _whole(column: Column) -> Callable[[Row], int]:
    value = _field(column)
    return lambda row: value(row) or 0


#: Texts of a row, and its numbers: whole ones, and doubles that are NaN where there is none.
TEXTS: Mapping[str, Callable[[Row], str]] = {
    "op": lambda row: row.op_name,
    "slot": lambda row: row.slot,
    "first_mismatch_index": lambda row: _written(None if row.metrics is None else row.metrics.first_mismatch_index),
    **{name: _text(column) for name, column in _STORED.items() if column.form.kind in ("text", "names", "indices")},
    "reason": lambda row: "" if row.reason is None else render(row.reason, "en"),
    "npu_type": lambda row: _type(row.pair.npu) or row.npu_dtype,
    "benchmark_type": lambda row: _type(row.pair.golden) or row.golden_dtype,
}
WHOLE: Mapping[str, Callable[[Row], int]] = {
    **{name: _whole(column) for name, column in _STORED.items() if column.form.kind == "whole"},
    "nan": lambda row: row.npu.nan_count if row.npu else row.extremes.nan_count if row.extremes else 0,
    "inf": lambda row: row.npu.inf_count if row.npu else row.extremes.inf_count if row.extremes else 0,
    "scalar": lambda row: int(row.is_scalar),
    "elements": lambda row: 0 if row.npu is None else row.npu.count,
    "benchmark_inf": lambda row: 0 if row.golden is None else row.golden.inf_count,
    "saturated": lambda row: row.extremes.saturated if row.extremes else 0,
    "benchmark_count": lambda row: row.golden.count if row.golden else 0,
}
NUMBERS: Mapping[str, Callable[[Row], float | None]] = {
    **{name: _field(column) for name, column in _STORED.items() if column.form.kind == "number"},
    "largest": lambda row: row.extremes.largest if row.extremes else None,
}


def columns_of(rows: Sequence[Row]) -> Columns:
    """Return the rows as columns, in their order."""
    columns: Columns = {name: coded([get(row) for row in rows]) for name, get in TEXTS.items()}
    columns |= {name: np.array([get(row) for row in rows], np.int64) for name, get in WHOLE.items()}
    for name, number in NUMBERS.items():
        values = (number(row) for row in rows)
        columns[name] = np.array([nan if value is None else value for value in values], np.float64)
    return columns


def pack(columns: Columns) -> bytes:
    """Return columns as bytes; each text is stored once."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, values in columns.items():
        if isinstance(values, np.ndarray):
            arrays[name] = values
            continue
        arrays[f"{name}.codes"] = values.codes
        arrays[f"{name}.texts"] = np.frombuffer(json.dumps(values.texts).encode(), np.uint8)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy")  # of 1980, so that the same columns are the same bytes
            member.compress_type = zipfile.ZIP_DEFLATED if _is_compressible(array) else zipfile.ZIP_STORED
            with archive.open(member, "w") as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    return buffer.getvalue()


def _is_compressible(array: npt.NDArray[Any]) -> bool:
    """Return whether packing saves a fifth, by a sample: the digits of measured numbers cannot be compressed."""
    middle = max(0, (len(array) - _SAMPLE) // 2)
    sample = array[middle : middle + _SAMPLE].tobytes()
    return len(zlib.compress(sample, 1)) < 0.8 * len(sample)


def unpack(path: str, data: bytes, names: Sequence[str] | None = None) -> Columns:
    """Return the columns again, or those of `names`. FormatError for bytes, of the file `path`, not of `pack`."""
    columns: Columns = {}
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            for key in arrays.files:
                name, _, part = key.partition(".")
                if part == "texts" or (names is not None and name not in names):
                    continue
                if part != "codes":
                    columns[name] = arrays[key]
                    continue
                columns[name] = _read_texts(arrays[key], arrays[f"{name}.texts"])
    except (ValueError, KeyError, IndexError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise FormatError.of(path, "diagnose.rows_damaged", reason=str(error)) from error
    return columns


def _read_texts(codes: npt.NDArray[Any], packed: npt.NDArray[Any]) -> Texts:
    """Return a column of texts again. ValueError for one that is none."""
    texts = json.loads(packed.tobytes())
    if not isinstance(texts, list) or not set(map(type, texts)) <= {str}:
        raise ValueError("texts that are none")
    if codes.ndim != 1 or codes.dtype.kind != "i" or (len(codes) and not 0 <= codes.min() <= codes.max() < len(texts)):
        raise ValueError("a text that is not there")
    return Texts(codes.astype(np.int32, copy=False), tuple(texts))


def rows_of(columns: Columns) -> list[Row]:
    """Return the rows again, as far as their columns tell: as those that are read back from a result file."""
    values = {name: _listed(columns[name]) for name in (*TEXTS, *WHOLE, *NUMBERS)}
    fields = [
        (*column.field.rpartition(".")[::2], _READ.get(column.form.kind), values[name])
        for name, column in _STORED.items()
    ]
    rows = []
    for at in range(len(values["op"])):
        parts: dict[str, dict[str, Any]] = {"": {}, "pair": {}, "metrics": {}, "npu": {}, "golden": {}}
        for part, field, read, cells in fields:
            parts[part][field] = cells[at] if read is None else read(cells[at])
        row = {name: cells[at] for name, cells in values.items()}
        parts[""]["reason"] = reason = reason_of_text(row["reason"])
        pair = Pair(op_name=row["op"], slot=row["slot"], reason=reason, **parts["pair"])
        metrics = None
        if row["status"] == Status.COMPARED:
            first_mismatch = _positions(row["first_mismatch_index"])
            metrics = Metrics(**parts["metrics"], is_scalar=bool(row["scalar"]), first_mismatch_index=first_mismatch)
        own = parts[""]
        own_error = None if isnan(own["own_error"]) else own["own_error"]
        npu = _side(parts["npu"], row["elements"], row["nan"], row["inf"])
        golden = _side(parts["golden"], row["benchmark_count"], row["benchmark_nan"], row["benchmark_inf"])
        rows.append(Row(pair=pair, metrics=metrics, npu=npu, golden=golden, **(own | {"own_error": own_error})))
    return rows


def _side(values: Mapping[str, Any], count: int, nan_count: int, inf_count: int) -> Summary | None:
    """Return the summary of one side; None where nothing of it is known."""
    if not nan_count and not inf_count and all(isnan(value) for value in values.values() if isinstance(value, float)):
        return None
    figures = dict(values)
    if not figures["nan_count"] and not figures["positive_inf_count"] and not figures["negative_inf_count"]:
        # Only the extremes told of it, and not of which sign an Inf is.
        figures |= {"nan_count": nan_count, "positive_inf_count": inf_count}
    return Summary(**(figures | {"count": count}))


def _listed(values: npt.NDArray[Any] | Texts) -> list[Any]:
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def _positions(text: str) -> tuple[int, ...] | None:
    return read_indices(text) if text else None


#: How texts are read that are not just that.
_READ: Mapping[str, Callable[[str], Any]] = {"names": _names, "indices": _positions}


# --- statistics of a leaf ---


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
        """Return a tensor's name, `op:output:0`."""
        side = "output" if self.is_output[number] else "input"
        return f"{self.ops[self.op_of[number]]}:{side}:{self.slots[number]}"

    def must_agree(self) -> npt.NDArray[np.bool_]:
        """Return which tensors replicas have alike: what collectives and updates of variables put out."""
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
    unread: tuple[Message, ...] = ()


def aligned(leaf: LeafStatistics, names: TensorNames, *, of_one_size: bool = True) -> LeafStatistics:
    """Return the statistics in the order of `names`; NaN for tensors that it lacks.

    So are, with `of_one_size`, tensors with another number of elements; a benchmark's have no padding.
    """
    if leaf.names is names:
        return leaf
    if _is_alike(leaf.names, names):
        return replace(leaf, names=names)
    places = {key: number for number, key in enumerate(_keys(leaf.names))}
    positions = np.array([places.get(key, -1) for key in _keys(names)], np.int64)
    is_there = positions >= 0
    if of_one_size:
        is_there[is_there] = leaf.names.counts[positions[is_there]] == names.counts[is_there]
    at = positions[is_there]

    def spread(values: Any, fill: Any) -> Any:
        result = np.full(len(positions), fill, values.dtype)
        result[is_there] = values[at]
        return result

    return replace(
        leaf, names=names,
        sizes=spread(leaf.sizes, nan), means=spread(leaf.means, nan), largest=spread(leaf.largest, nan),
        nans=spread(leaf.nans, 0), infs=spread(leaf.infs, 0), digests=spread(leaf.digests, UNKNOWN),
        is_constant=spread(leaf.is_constant, False),
    )  # fmt: skip


def _is_alike(names: TensorNames, other: TensorNames) -> bool:
    """Return whether two networks have the same tensors in the same order."""
    fields = ("op_of", "is_output", "slots", "counts")
    return names.ops == other.ops and all(np.array_equal(getattr(names, each), getattr(other, each)) for each in fields)


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
    """Return the statistics of a leaf; files that cannot be read, and tensors that were dumped whole, are left out."""
    dumps = DumpIndex(leaf)
    ops: list[OpStatistics] = []
    unread: list[Message] = []
    for name in dumps.names_by_time():
        try:
            dumped = dumps.op(name)
        except PrecisionToolError as error:
            unread.append(error.full_message)
            continue
        unread += [error.reason for error in dumped.errors]
        ops.append(OpStatistics(name=name, type=dumped.op_type, inputs=dumped.inputs, outputs=dumped.outputs))
    return of_ops(ops, step, rank, tuple(unread))


def of_ops(ops: Sequence[OpStatistics], step: int, rank: int, unread: tuple[Message, ...] = ()) -> LeafStatistics:
    """Return the statistics of ops in the order of their execution."""
    tensors: list[tuple[int, bool, int, TensorStatistics]] = []
    for number, op in enumerate(ops):
        for is_output, side in ((False, op.inputs), (True, op.outputs)):
            tensors += [(number, is_output, slot, tensor) for slot, tensor in _statistics_of(side)]
    return LeafStatistics(
        step=step,
        rank=rank,
        names=TensorNames(
            ops=tuple(op.name for op in ops),
            types=tuple(op.type for op in ops),
            op_of=np.array([op for op, *_ in tensors], np.int64),
            is_output=np.array([is_output for _, is_output, *_ in tensors], bool),
            slots=np.array([slot for *_, slot, _ in tensors], np.int64),
            counts=np.array([_count(tensor) for *_, tensor in tensors], np.int64),
            limits=np.array([_limit(tensor) for *_, tensor in tensors], np.float64),
            nbytes=np.array([tensor.nbytes or _nbytes(tensor) for *_, tensor in tensors], np.int64),
        ),
        sizes=_numbers(_size(tensor) for *_, tensor in tensors),
        means=_numbers(tensor.mean for *_, tensor in tensors),
        largest=_numbers(_largest(tensor) for *_, tensor in tensors),
        nans=np.array([_nans(tensor) for *_, tensor in tensors], np.float32),
        infs=np.array([_infs(tensor) for *_, tensor in tensors], np.float32),
        digests=np.array([_digest(tensor) for *_, tensor in tensors], np.uint32),
        is_constant=np.array([tensor.minimum == tensor.maximum for *_, tensor in tensors], bool),
        unread=unread,
    )


#: The arrays of a leaf, and of its names.
_OF_LEAF = ("sizes", "means", "largest", "nans", "infs", "digests", "is_constant")
_OF_NAMES = ("op_of", "is_output", "slots", "counts", "limits", "nbytes")


def pack_statistics(leaf: LeafStatistics) -> bytes:
    """Return the statistics as bytes that a worker hands back and a journal keeps."""
    unread = coded([json.dumps(reason.to_dict()) for reason in leaf.unread])
    columns: Columns = {"ops": coded(leaf.names.ops), "types": coded(leaf.names.types), "unread": unread}
    columns |= {name: getattr(leaf.names, name) for name in _OF_NAMES}
    return pack(columns | {name: getattr(leaf, name) for name in _OF_LEAF})


def unpack_statistics(path: str, data: bytes, step: int, rank: int) -> LeafStatistics:
    """Return the statistics of a leaf again. FormatError for bytes, of the file `path`, not of `pack_statistics`."""
    columns: dict[str, Any] = {**unpack(path, data)}
    try:
        unread = tuple(Message.from_dict(json.loads(reason)) for reason in columns.get("unread", ()))
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError.of(path, "diagnose.statistics_damaged") from error
    if set(columns) != {"ops", "types", "unread", *_OF_NAMES, *_OF_LEAF}:
        raise FormatError.of(path, "diagnose.statistics_damaged")
    names = TensorNames(
        ops=tuple(columns["ops"]), types=tuple(columns["types"]), **{name: columns[name] for name in _OF_NAMES}
    )
    return LeafStatistics(
        step=step, rank=rank, names=names, unread=unread,
        **{name: columns[name] for name in _OF_LEAF},
    )  # fmt: skip


def _statistics_of(side: Mapping[int, Found]) -> list[tuple[int, TensorStatistics]]:
    return [(slot, tensor) for slot, tensor in sorted(side.items()) if isinstance(tensor, TensorStatistics)]


def _numbers(values: Any) -> Floats:
    finite = [nan if value is None or not isfinite(value) else value for value in values]
    with np.errstate(over="ignore"):  # of float64, what float32 cannot hold is as good as infinite
        return np.array(finite, np.float64).astype(np.float32)


def _count(tensor: TensorStatistics) -> int:
    return min(tensor.size if tensor.count is None else tensor.count, 2**62)


def _nbytes(tensor: TensorStatistics) -> int:
    dtype = data_types.BY_NAME.get(tensor.dtype)
    return 0 if dtype is None else min(dtype.byte_size(tensor.size), 2**62)


def _limit(tensor: TensorStatistics) -> float:
    dtype = data_types.FLOATS.get(tensor.dtype)
    return float("inf") if dtype is None else dtype.largest


def _largest(tensor: TensorStatistics) -> float | None:
    if tensor.minimum is None or tensor.maximum is None:
        return None
    return max(abs(tensor.minimum), abs(tensor.maximum))


def _size(tensor: TensorStatistics) -> float | None:
    """Return the norm; of a dump without, the largest element stands for it."""
    if tensor.l2_norm is not None:
        return tensor.l2_norm
    largest = _largest(tensor)
    return None if largest is None else largest * sqrt(max(_count(tensor), 1))


def _nans(tensor: TensorStatistics) -> int:
    """Return the count of NaN; some releases put NaN into the minimum and maximum in place of counting it."""
    numbers = [value for value in (tensor.minimum, tensor.maximum, tensor.mean) if value is not None]
    return tensor.nan_count or int(any(value != value for value in numbers))


def _infs(tensor: TensorStatistics) -> int:
    numbers = [value for value in (tensor.minimum, tensor.maximum) if value is not None]
    counted = (tensor.positive_inf_count or 0) + (tensor.negative_inf_count or 0)
    return counted or sum(abs(value) == float("inf") for value in numbers)


def _digest(tensor: TensorStatistics) -> int:
    numbers = (tensor.maximum, tensor.minimum, tensor.mean, tensor.count, tensor.l2_norm)
    text = repr((*numbers, tensor.nan_count, tensor.negative_inf_count, tensor.positive_inf_count)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little") or 1
