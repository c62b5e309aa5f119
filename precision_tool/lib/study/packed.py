"""The rows of a leaf as columns, and these as bytes that the journal keeps and workers hand back."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.errors import FormatError
from precision_tool.lib.model.comparison import Metrics, Pair, Status, Summary
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.tensor import AnyTensor
from precision_tool.lib.results.columns import READABLE, Column, field_of
from precision_tool.lib.results.forms import read_indices, write_indices


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
        """For each row whether its text is wanted; shape (rows,)."""
        return np.array([is_wanted(text) for text in self.texts], np.bool_)[self.codes]


def coded(values: Sequence[str]) -> Texts:
    """Texts as a column."""
    known: dict[str, int] = {}
    codes = np.array([known.setdefault(text, len(known)) for text in values], np.int32)
    return Texts(codes, tuple(known))


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
_KEPT = {_name_of(column): column for column in READABLE.values() if column.field not in _LEFT_OUT}


def _type(tensor: AnyTensor | None) -> str:
    return "" if tensor is None else tensor.dtype


def _written(positions: Sequence[int] | None) -> str:
    return "" if positions is None else write_indices(positions)


def _field(column: Column) -> Callable[[Row], Any]:
    return lambda row: field_of(row, column.field)


def _text(column: Column) -> Callable[[Row], str]:
    """A column as one text; names are joined, and no positions are an empty text."""
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
    **{name: _text(column) for name, column in _KEPT.items() if column.form.kind in ("text", "names", "indices")},
    "npu_type": lambda row: _type(row.pair.npu) or row.npu_dtype,
    "benchmark_type": lambda row: _type(row.pair.golden) or row.golden_dtype,
}
WHOLE: Mapping[str, Callable[[Row], int]] = {
    **{name: _whole(column) for name, column in _KEPT.items() if column.form.kind == "whole"},
    "nan": lambda row: row.npu.nan_count if row.npu else row.extremes.nan_count if row.extremes else 0,
    "inf": lambda row: row.npu.inf_count if row.npu else row.extremes.inf_count if row.extremes else 0,
    "scalar": lambda row: int(row.is_scalar),
    "elements": lambda row: 0 if row.npu is None else row.npu.count,
    "benchmark_inf": lambda row: 0 if row.golden is None else row.golden.inf_count,
    "saturated": lambda row: row.extremes.saturated if row.extremes else 0,
    "benchmark_count": lambda row: row.golden.count if row.golden else 0,
}
NUMBERS: Mapping[str, Callable[[Row], float | None]] = {
    **{name: _field(column) for name, column in _KEPT.items() if column.form.kind == "number"},
    "largest": lambda row: row.extremes.largest if row.extremes else None,
}


def columns_of(rows: Sequence[Row]) -> Columns:
    """The rows as columns, in their order."""
    columns: Columns = {name: coded([get(row) for row in rows]) for name, get in TEXTS.items()}
    columns |= {name: np.array([get(row) for row in rows], np.int64) for name, get in WHOLE.items()}
    for name, number in NUMBERS.items():
        values = (number(row) for row in rows)
        columns[name] = np.array([nan if value is None else value for value in values], np.float64)
    return columns


def pack(columns: Columns) -> bytes:
    """Columns as bytes; each text is kept once."""
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
    """Whether packing saves a fifth, by a sample of it: measured numbers have digits that nothing makes smaller."""
    middle = max(0, (len(array) - _SAMPLE) // 2)
    sample = array[middle : middle + _SAMPLE].tobytes()
    return len(zlib.compress(sample, 1)) < 0.8 * len(sample)


def unpack(path: str, data: bytes, wanted: Sequence[str] | None = None) -> Columns:
    """The columns again, or the `wanted` ones of them. FormatError for bytes, of the file `path`, not of `pack`."""
    columns: Columns = {}
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            for key in arrays.files:
                name, _, part = key.partition(".")
                if part == "texts" or (wanted is not None and name not in wanted):
                    continue
                if part != "codes":
                    columns[name] = arrays[key]
                    continue
                columns[name] = _read_texts(arrays[key], arrays[f"{name}.texts"])
    except (ValueError, KeyError, IndexError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        hint = "`ac --all --fresh` begins anew"
        raise FormatError.of(path, f"rows that the study kept cannot be read ({error})", hint) from error
    return columns


def _read_texts(codes: npt.NDArray[Any], packed: npt.NDArray[Any]) -> Texts:
    """A column of texts again. ValueError for one that is none."""
    texts = json.loads(packed.tobytes())
    if not isinstance(texts, list) or not set(map(type, texts)) <= {str}:
        raise ValueError("texts that are none")
    if codes.ndim != 1 or codes.dtype.kind != "i" or (len(codes) and not 0 <= codes.min() <= codes.max() < len(texts)):
        raise ValueError("a text that is not there")
    return Texts(codes.astype(np.int32, copy=False), tuple(texts))


def rows_of(columns: Columns) -> list[Row]:
    """The rows again, as far as their columns tell: as those that are read back from a result file."""
    values = {name: _listed(columns[name]) for name in (*TEXTS, *WHOLE, *NUMBERS)}
    kept = [
        (*column.field.rpartition(".")[::2], _READ.get(column.form.kind), values[name])
        for name, column in _KEPT.items()
    ]
    found = []
    for at in range(len(values["op"])):
        parts: dict[str, dict[str, Any]] = {"": {}, "pair": {}, "metrics": {}, "npu": {}, "golden": {}}
        for part, field, read, cells in kept:
            parts[part][field] = cells[at] if read is None else read(cells[at])
        row = {name: cells[at] for name, cells in values.items()}
        pair = Pair(op_name=row["op"], slot=row["slot"], reason=row["reason"], **parts["pair"])
        metrics = None
        if row["status"] == Status.COMPARED:
            first_mismatch = _positions(row["first_mismatch_index"])
            metrics = Metrics(**parts["metrics"], is_scalar=bool(row["scalar"]), first_mismatch_index=first_mismatch)
        own = parts[""]
        own_error = None if isnan(own["own_error"]) else own["own_error"]
        npu = _side(parts["npu"], row["elements"], row["nan"], row["inf"])
        golden = _side(parts["golden"], row["benchmark_count"], row["benchmark_nan"], row["benchmark_inf"])
        found.append(Row(pair=pair, metrics=metrics, npu=npu, golden=golden, **(own | {"own_error": own_error})))
    return found


def _side(values: Mapping[str, Any], count: int, nan_count: int, inf_count: int) -> Summary | None:
    """The summary of one side; None where nothing of it is known."""
    if not nan_count and not inf_count and all(isnan(value) for value in values.values() if isinstance(value, float)):
        return None
    told = dict(values)
    if not told["nan_count"] and not told["positive_inf_count"] and not told["negative_inf_count"]:
        # Only the extremes told of it, and not of which sign an Inf is.
        told |= {"nan_count": nan_count, "positive_inf_count": inf_count}
    return Summary(**(told | {"count": count}))


def _listed(values: npt.NDArray[Any] | Texts) -> list[Any]:
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def _positions(text: str) -> tuple[int, ...] | None:
    return read_indices(text) if text else None


#: How texts are read that are not just that.
_READ: Mapping[str, Callable[[str], Any]] = {"names": _names, "indices": _positions}
