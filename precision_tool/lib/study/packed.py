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

_METRICS = (
    "cosine", "max_absolute_error", "accumulated_relative_error", "relative_euclidean_distance",
    "kullback_leibler_divergence", "mean_absolute_error", "root_mean_square_error", "max_relative_error",
    "mean_relative_error",
)  # fmt: skip
#: So many values tell whether a column can be packed.
_SAMPLE = 1024
_SUMMARY = ("minimum", "maximum", "mean", "std")


def _metric(name: str) -> Callable[[Row], float | None]:
    return lambda row: None if row.metrics is None else getattr(row.metrics, name)


def _summary(side: str, name: str) -> Callable[[Row], float | None]:
    return lambda row: getattr(getattr(row, side), name, None)


def _indices(values: Sequence[int] | None) -> str:
    return "" if values is None else f"[{','.join(map(str, values))}]"


def _type(tensor: AnyTensor | None) -> str:
    return "" if tensor is None else tensor.dtype


#: Texts of a row, and its numbers: whole ones, and doubles that are NaN where there is none.
TEXTS: Mapping[str, Callable[[Row], str]] = {
    "op": lambda row: row.op_name,
    "type": lambda row: row.op_type,
    "slot": lambda row: row.slot,
    "status": lambda row: str(row.status),
    "reason": lambda row: row.reason,
    "benchmark_tensor": lambda row: row.golden_tensor,
    "passes": lambda row: ",".join(row.pass_names),
    "npu_ops": lambda row: ",".join(row.npu_ops),
    "benchmark_ops": lambda row: ",".join(row.golden_ops),
    "script_ops": lambda row: ",".join(row.original_ops),
    "npu_type": lambda row: _type(row.pair.npu) or row.npu_dtype,
    "benchmark_type": lambda row: _type(row.pair.golden) or row.golden_dtype,
    "shape": lambda row: _indices(row.shape),
    "max_error_index": lambda row: _indices(row.max_error_index),
    "first_mismatch_index": lambda row: _indices(None if row.metrics is None else row.metrics.first_mismatch_index),
}
WHOLE: Mapping[str, Callable[[Row], int]] = {
    "number": lambda row: row.index,
    "mismatches": lambda row: row.mismatches,
    "nan": lambda row: row.npu.nan_count if row.npu else row.extremes.nan_count if row.extremes else 0,
    "inf": lambda row: row.npu.inf_count if row.npu else row.extremes.inf_count if row.extremes else 0,
    "scalar": lambda row: int(row.is_scalar),
    "elements": lambda row: 0 if row.npu is None else row.npu.count,
    "benchmark_nan": lambda row: 0 if row.golden is None else row.golden.nan_count,
    "benchmark_inf": lambda row: 0 if row.golden is None else row.golden.inf_count,
    "saturated": lambda row: row.extremes.saturated if row.extremes else 0,
    "benchmark_count": lambda row: row.golden.count if row.golden else 0,
}
NUMBERS: Mapping[str, Callable[[Row], float | None]] = {
    **{name: _metric(name) for name in _METRICS},
    **{f"npu_{name}": _summary("npu", name) for name in _SUMMARY},
    **{f"benchmark_{name}": _summary("golden", name) for name in _SUMMARY},
    "largest": lambda row: row.extremes.largest if row.extremes else None,
    "own_error": lambda row: row.own_error,
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


def unpack(data: bytes, wanted: Sequence[str] | None = None) -> Columns:
    """The columns again, or the `wanted` ones of them. FormatError for bytes that `pack` did not give."""
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
        raise FormatError(f"rows that the study kept cannot be read ({error})", hint) from error
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
    texts = {name: _listed(columns[name]) for name in TEXTS}
    numbers = {name: _listed(columns[name]) for name in (*WHOLE, *NUMBERS)}
    found = []
    for at in range(len(texts["op"])):
        text = {name: values[at] for name, values in texts.items()}
        number = {name: values[at] for name, values in numbers.items()}
        pair = Pair(
            index=number["number"], op_name=text["op"], op_type=text["type"], slot=text["slot"], status=text["status"],
            reason=text["reason"], npu_ops=_names(text["npu_ops"]), golden_ops=_names(text["benchmark_ops"]),
            golden_tensor=text["benchmark_tensor"], pass_names=_names(text["passes"]),
            original_names=_names(text["script_ops"]), shape=_read_indices(text["shape"]),
        )  # fmt: skip
        metrics = None
        if text["status"] == Status.COMPARED:
            metrics = Metrics(
                **{name: number[name] for name in _METRICS}, is_scalar=bool(number["scalar"]),
                non_finite_mismatches=number["mismatches"], max_error_index=_read_indices(text["max_error_index"]),
                first_mismatch_index=_read_indices(text["first_mismatch_index"]),
            )  # fmt: skip
        found.append(
            Row(
                pair=pair, metrics=metrics, reason=text["reason"], npu=_side(number, "npu", "nan", "inf"),
                golden=_side(number, "benchmark", "benchmark_nan", "benchmark_inf"), npu_dtype=text["npu_type"],
                golden_dtype=text["benchmark_type"],
                own_error=None if isnan(number["own_error"]) else number["own_error"],
            )
        )  # fmt: skip
    return found


def _side(number: Mapping[str, Any], side: str, nans: str, infs: str) -> Summary | None:
    """The summary of one side; None where nothing of it is known."""
    values = {name: number[f"{side}_{name}"] for name in _SUMMARY}
    if all(map(isnan, values.values())) and not number[nans] and not number[infs]:
        return None
    # Of which sign an Inf is, no column tells.
    return Summary(**values, count=number["elements"], nan_count=number[nans], positive_inf_count=number[infs])


def _listed(values: npt.NDArray[Any] | Texts) -> list[Any]:
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def _read_indices(text: str) -> tuple[int, ...] | None:
    if not text:
        return None
    return tuple(int(part) for part in text[1:-1].split(",") if part)
