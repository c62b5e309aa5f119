"""The rows of leaves as columns: packed for journal and workers, written as one table, and drawn as heat maps."""

from __future__ import annotations

import io
import json
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from math import hypot, isnan, nan, sqrt
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from precision_tool.lib.compare.columns import READABLE, Column, field_of, read_indices, reason_of_text, write_indices
from precision_tool.lib.compare.result_csv import write_result
from precision_tool.lib.diagnose.study_journal import LeafState
from precision_tool.lib.io.files import store_of
from precision_tool.lib.io.stores import NewFile
from precision_tool.lib.messages import render
from precision_tool.lib.messages.errors import FormatError, UsageError, shown_name
from precision_tool.lib.messages.limits import limit_error
from precision_tool.lib.model.comparison import Metrics, Pair, Status, Summary
from precision_tool.lib.model.table import ColumnChoice, Row
from precision_tool.lib.model.tensor import AnyTensor, TensorStatistics

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


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


def _norm(tensor: AnyTensor | None, summary: Summary | None) -> float | None:
    """Return the norm of the finite values; of a statistics dump what it says."""
    if isinstance(tensor, TensorStatistics):
        return tensor.l2_norm
    if summary is None:
        return None
    return sqrt(max(0, summary.count - summary.nan_count - summary.inf_count)) * hypot(summary.mean, summary.std)


def _zero_share(row: Row) -> float | None:
    """Return the share of zeros, which no statistics dump tells."""
    if row.npu is None or not row.npu.count or isinstance(row.pair.npu, TensorStatistics):
        return None
    return row.npu.zero_count / row.npu.count


#: What the graph says a tensor is for the training: its role, and the variable that it is or is the gradient of.
_FROM_GRAPH = ("role", "variable")
#: Texts of a row, and its numbers: whole ones, and doubles that are NaN where there is none.
TEXTS: Mapping[str, Callable[[Row], str]] = {
    "op": lambda row: row.op_name,
    "slot": lambda row: row.slot,
    "first_mismatch_index": lambda row: _written(None if row.metrics is None else row.metrics.first_mismatch_index),
    **{name: _text(column) for name, column in _STORED.items() if column.form.kind in ("text", "names", "indices")},
    "reason": lambda row: "" if row.reason is None else render(row.reason, "en"),
    "npu_type": lambda row: _type(row.pair.npu) or row.npu_dtype,
    "benchmark_type": lambda row: _type(row.pair.golden) or row.golden_dtype,
    **dict.fromkeys(_FROM_GRAPH, lambda row: ""),  # no row has them: `columns_of` is told
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
    "npu_norm": lambda row: _norm(row.pair.npu, row.npu),
    "benchmark_norm": lambda row: _norm(row.pair.golden, row.golden),
    "zero_share": _zero_share,
}


def columns_of(rows: Sequence[Row], roles: Mapping[str, tuple[str, str]] | None = None) -> Columns:
    """Return the rows as columns, in their order. `roles` has role and variable of some by `tensor_index`."""
    columns: Columns = {name: coded([get(row) for row in rows]) for name, get in TEXTS.items()}
    if roles:
        of_row = [roles.get(row.tensor_index, ("", "")) for row in rows]
        columns |= {name: coded([texts[place] for texts in of_row]) for place, name in enumerate(_FROM_GRAPH)}
    columns |= {name: np.array([get(row) for row in rows], np.int64) for name, get in WHOLE.items()}
    for name, number in NUMBERS.items():
        values = (number(row) for row in rows)
        columns[name] = np.array([nan if value is None else value for value in values], np.float64)
    return columns


def pack(columns: Columns) -> bytes:
    """Return columns as bytes, numpy's `.npz`; each text is stored once, signed integers in as few bytes as they need.

    It is that and not Arrow's format: a study works without pyarrow, too.
    """
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, values in columns.items():
        if isinstance(values, np.ndarray):
            arrays[name] = _narrow(values)
            continue
        arrays[f"{name}.codes"] = _narrow(values.codes)
        arrays[f"{name}.texts"] = np.frombuffer(json.dumps(values.texts).encode(), np.uint8)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy")  # of 1980, so that the same columns are the same bytes
            member.compress_type = zipfile.ZIP_DEFLATED if _is_compressible(array) else zipfile.ZIP_STORED
            with archive.open(member, "w") as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    return buffer.getvalue()


def _narrow(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return signed integers in the smallest type that holds all of them: most counts are zeros."""
    if array.dtype.kind != "i" or not array.size:
        return array
    low, high = array.min(), array.max()
    fits = (
        dtype for dtype in (np.int8, np.int16, np.int32) if np.iinfo(dtype).min <= low <= high <= np.iinfo(dtype).max
    )
    return array.astype(next(fits, array.dtype))


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
                    columns[name] = array = arrays[key]
                    if array.dtype.kind == "i":
                        columns[name] = array.astype(np.int64, copy=False)
                    continue
                columns[name] = _read_texts(arrays[key], arrays[f"{name}.texts"])
    except (
        ValueError, KeyError, IndexError, EOFError, OSError, MemoryError, zipfile.BadZipFile, zlib.error,
        NotImplementedError, AttributeError, TypeError, RuntimeError,  # what is no array, or encrypted
        tokenize.TokenError, SyntaxError,  # which numpy lets pass of a header that is no Python
    ) as error:  # fmt: skip
        raise FormatError.of(path, "diagnose.rows_damaged", reason=shown_name(str(error))) from error
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
        for part, name, read, cells in fields:
            parts[part][name] = cells[at] if read is None else read(cells[at])
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


# --- the table of a study: every row of every leaf, as one Parquet file ---


#: The name of the table in the folder of a study.
TABLE = "study.parquet"
#: Rows of a row group: what is in memory at one time, beside those of one leaf.
_GROUP = 1 << 17
#: Whole numbers of each leaf, and texts, before the columns of its rows.
_PLACE = ("step", "rank", "device")
_WHERE = ("model", "data")

#: Gives the rows of a leaf; None for one without.
Read = Callable[[LeafState], Columns | None]


def has_parquet() -> bool:
    """Return whether the package that writes tables is installed; one that a limit keeps from loading raises."""
    try:
        import pyarrow.parquet  # noqa: F401  # its parts are what is asked for
    except ImportError as error:
        if limit_error(error) is not None:
            raise
        return False
    return True


def write_table(path: str, states: Sequence[LeafState], read: Read) -> int:
    """Write the rows of all leaves in order, a leaf that failed as one row with its reason; return their number.

    The file appears under its name when it is whole. UsageError without pyarrow, OutputError if it cannot be written.
    """
    if not has_parquet():
        raise UsageError("diagnose.no_pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema()
    count = 0
    with (
        store_of(path).create(path) as new,
        pa.PythonFile(_Sink(new), mode="w") as sink,
        pq.ParquetWriter(sink, schema, compression="zstd", store_schema=False, use_dictionary=_texts(schema)) as writer,
        ThreadPoolExecutor(1) as thread,
    ):
        waiting: list[pa.RecordBatch] = []
        writing: Future[None] | None = None
        for number, state in enumerate(states, 1):
            waiting.append(_batch(state, read(state), schema))
            count += waiting[-1].num_rows
            if number == len(states) or sum(batch.num_rows for batch in waiting) >= _GROUP:
                if writing is not None:
                    writing.result()
                # While a group is written, the rows of the next one are read: either takes as long as the other.
                writing = thread.submit(_write_group, writer, waiting, schema)
                waiting = []
        if writing is not None:
            writing.result()
    return count


def _write_group(writer: pq.ParquetWriter, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> None:
    import pyarrow as pa

    # Texts of one column chunk with one dictionary are written as they are, those with several one by one.
    writer.write_table(pa.Table.from_batches(batches, schema).unify_dictionaries())


def _schema() -> pa.Schema:
    """Return the columns. Texts have a dictionary while they are written; readers of the file see plain ones."""
    import pyarrow as pa

    text = pa.dictionary(pa.int32(), pa.string())
    fields = [(name, pa.int64()) for name in _PLACE]
    fields += [(name, text) for name in _WHERE]
    fields += [("judged", pa.bool_())]
    fields += [(name, text) for name in TEXTS]
    fields += [(name, pa.int64()) for name in WHOLE]
    fields += [(name, pa.float64()) for name in NUMBERS]
    return pa.schema(fields)


def _texts(schema: pa.Schema) -> list[str]:
    """Return the columns whose values are few: of measured numbers a dictionary is only ever given up."""
    import pyarrow as pa

    return [column.name for column in schema if not pa.types.is_floating(column.type)]


def _batch(state: LeafState, columns: Columns | None, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of a leaf; of one without any a row that says why."""
    import pyarrow as pa

    if columns is None:
        columns = {name: coded([""]) for name in TEXTS}
        columns |= {name: np.zeros(1, np.int64) for name in WHOLE}
        columns |= {name: np.full(1, np.nan) for name in NUMBERS}
        columns |= {"status": coded(["failed"]), "reason": coded([render(state.failure, "en")])}
    count = len(columns["op"])
    arrays: list[Any] = []
    for column in schema:
        name = column.name
        if name in columns:
            values = columns[name]
            if isinstance(values, Texts):
                arrays.append(_dictionary(values))
            else:  # NaN stands for no number
                arrays.append(pa.array(values, column.type, from_pandas=pa.types.is_floating(column.type)))
        elif name in _WHERE:
            arrays.append(_dictionary(Texts(np.zeros(count, np.int32), (getattr(state.leaf, name),))))
        else:
            value = state.judged if name == "judged" else getattr(state.leaf, name)
            arrays.append(pa.repeat(pa.scalar(value, column.type), count))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _dictionary(values: Texts) -> pa.DictionaryArray:
    import pyarrow as pa

    # Names of files may be no UTF-8.
    texts = [text.encode("utf-8", "backslashreplace").decode() for text in values.texts]
    return pa.DictionaryArray.from_arrays(pa.array(values.codes), pa.array(texts, pa.string()))


class _Sink(io.RawIOBase):
    """A new file of any store as one that is written from its start on."""

    def __init__(self, new: NewFile) -> None:
        self._new, self._at = new, 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._new.write_at(self._at, view)
        self._at += len(view)
        return len(view)


def write_csvs(folder: str, states: Sequence[LeafState], read: Read) -> Iterator[str]:
    """Write one result file per leaf, as `vc` does; return their paths. OutputError where one cannot be written."""
    for state in states:
        columns = read(state)
        if columns is None:
            continue
        leaf = state.leaf
        model = "".join(char if char.isalnum() or char in "_-" else "_" for char in leaf.model) or "model"
        path = f"{folder}/result_step_{leaf.step}_rank_{leaf.rank}_{model}.csv"
        write_result(path, rows_of(columns), ColumnChoice(own_error=state.judged))
        yield path


# --- heat maps: how far off each op is, by step and by rank; they grow with steps, ranks and ops, not with tensors ---


@dataclass(frozen=True, kw_only=True)
class HeatMap:
    """One number for each place and op: the farthest any output is off, as a relative distance (NaN: not compared).

    `places` are steps or ranks, `values` has shape (places, ops); Inf stands for NaN or Inf in the data.
    """

    what: str
    places: tuple[int, ...]
    ops: tuple[str, ...]
    values: npt.NDArray[np.float32] = field(repr=False)
    #: Of the same shape: which values are not of a comparison, but of an op recomputed from its inputs. None: none.
    recomputed: npt.NDArray[np.bool_] | None = field(default=None, repr=False)
    #: Of the same shape: the rank of a value by step, the step of one by rank. None: not known.
    worst: npt.NDArray[np.int32] | None = field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON, with null where nothing was compared and "inf" for what is not finite."""
        rows = [[_number(value) for value in row] for row in self.values.tolist()]
        alone = [] if self.recomputed is None else [np.flatnonzero(row).tolist() for row in self.recomputed]
        return {
            "what": self.what, "places": list(self.places), "ops": list(self.ops), "values": rows,
            "recomputed": alone,
        }  # fmt: skip


def _number(value: float) -> float | str | None:
    if isnan(value):
        return None
    return "inf" if value == float("inf") else float(f"{value:.4g}")


class Maps:
    """Takes leaf after leaf; of all with the same place the worst counts."""

    def __init__(self) -> None:
        self._ops: dict[str, int] = {}
        self._order: dict[str, int] = {}
        #: Of each op the worst that was compared, the worst of what was not, and the worst error of its own.
        self._by: dict[str, dict[int, npt.NDArray[np.float32]]] = {"step": {}, "rank": {}}
        #: Of the same shapes: the rank, or the step, that each is of.
        self._worst: dict[str, dict[int, npt.NDArray[np.int32]]] = {"step": {}, "rank": {}}

    def take(self, step: int, rank: int, columns: Columns) -> None:
        """Add the rows of a leaf."""
        ops, slots = columns["op"], columns["slot"]
        assert isinstance(ops, Texts)
        assert isinstance(slots, Texts)
        outputs = np.flatnonzero(slots.where(lambda slot: slot.startswith("output")))
        present, first, of_op = np.unique(ops.codes[outputs], return_index=True, return_inverse=True)
        numbers = np.asarray(columns["number"])[outputs][first].tolist()
        names = [ops.texts[code] for code in present.tolist()]
        for name, number in zip(names, numbers, strict=True):
            self._order.setdefault(name, number)
        places = np.array([self._ops.setdefault(name, len(self._ops)) for name in names], np.intp)[of_op]
        distances, is_compared, own = (values[outputs] for values in _distances(columns))
        kinds = np.where(is_compared, 0, 1)
        for what, place, other in (("step", step, rank), ("rank", rank, step)):
            row = self._by[what][place] = _widened(self._by[what].get(place), len(self._ops), np.float32(np.nan))
            worst = self._worst[what][place] = _widened(self._worst[what].get(place), len(self._ops), np.int32(other))
            before = row.copy()
            np.fmax.at(row, (kinds, places), distances)
            np.fmax.at(row[_OWN], places, own)
            worst[(row > before) | (np.isnan(before) & ~np.isnan(row))] = other

    def maps(self) -> tuple[HeatMap, HeatMap]:
        """Return step × op and rank × op, ops in the order of execution.

        Where some ranks have no benchmark, ranks are held against each other by the errors of their ops alone.
        """
        names = sorted(self._ops, key=lambda name: (self._order[name], name))
        columns = np.array([self._ops[name] for name in names], np.intp)
        maps = []
        for what, rows in self._by.items():
            places = sorted(rows)
            values = np.full((len(places), len(names)), np.nan, np.float32)
            recomputed = np.zeros(values.shape, np.bool_)
            worst = np.zeros(values.shape, np.int32)
            by_own = what == "rank" and _lack_comparisons(rows.values())
            for number, place in enumerate(places):
                compared, alone, own = _widened(rows[place], len(names), np.float32(np.nan))[:, columns]
                of_compared, of_alone, of_own = _widened(self._worst[what][place], len(names), np.int32(0))[:, columns]
                if by_own:
                    compared, alone, of_alone = np.full_like(own, np.nan), own, of_own
                values[number] = np.fmax(compared, alone)
                recomputed[number] = ~np.isnan(alone) & ~(alone <= compared)
                worst[number] = np.where(recomputed[number], of_alone, of_compared)
            maps.append(
                HeatMap(
                    what=what, places=tuple(places), ops=tuple(names), values=values, recomputed=recomputed,
                    worst=worst,
                )
            )  # fmt: skip
        return maps[0], maps[1]


#: The row of a map with the ops' own errors.
_OWN = 2


def _lack_comparisons(rows: Iterable[npt.NDArray[np.float32]]) -> bool:
    """Return whether some places were compared with a benchmark and others not, and ops of both were recomputed."""
    filled = [(not np.isnan(row[0]).all(), not np.isnan(row[_OWN]).all()) for row in rows]
    compared = [is_compared for is_compared, _ in filled]
    return any(compared) and not all(compared) and all(is_recomputed for _, is_recomputed in filled)


_Number = TypeVar("_Number", np.float32, np.int32)


def _widened(row: npt.NDArray[_Number] | None, ops: int, empty: _Number) -> npt.NDArray[_Number]:
    """Return a row of all kinds with a place for each op; where it had none, `empty`."""
    if row is not None and row.shape[1] == ops:
        return row
    wider = np.full((_OWN + 1, ops), empty, empty.dtype)
    if row is not None:
        wider[:, : row.shape[1]] = row
    return wider


#: The columns that a map needs.
HEAT_MAP_COLUMNS = (
    "op",
    "slot",
    "number",
    "cosine",
    "mismatches",
    "nan",
    "inf",
    "own_error",
    "relative_euclidean_distance",
)


def _distances(columns: Columns) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_], npt.NDArray[np.float32]]:
    """Return the error of each tensor, against the benchmark or else recomputed, whether by the benchmark, and its own.

    A tensor with NaN or Inf that was not recomputed is Inf off by itself.
    """
    cosines, own = (np.asarray(columns[name], np.float64) for name in ("cosine", "own_error"))
    mismatches, nans, infs = (np.asarray(columns[name], np.int64) for name in ("mismatches", "nan", "inf"))
    alone = np.where(np.isnan(own) & ((nans > 0) | (infs > 0)), np.inf, own)
    compared = np.sqrt(2 * np.maximum(0.0, 1 - cosines))
    distances = np.where(np.isnan(cosines), alone, compared)
    is_compared = ~np.isnan(cosines) | (mismatches > 0)
    return np.where(mismatches > 0, np.inf, distances).astype(np.float32), is_compared, alone.astype(np.float32)
