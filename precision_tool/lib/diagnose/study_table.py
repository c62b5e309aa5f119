"""The table of a study: every row of every leaf with its step, rank and model, as one Parquet file."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from precision_tool.lib.compare.result_csv import write_result
from precision_tool.lib.diagnose.statistics_leaves import NUMBERS, TEXTS, WHOLE, Columns, Texts, coded, rows_of
from precision_tool.lib.diagnose.study_journal import LeafState
from precision_tool.lib.io.files import store_of
from precision_tool.lib.io.stores import NewFile
from precision_tool.lib.messages import render
from precision_tool.lib.messages.errors import UsageError
from precision_tool.lib.model.table import ColumnChoice

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

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
    """Return whether the package that writes tables is installed."""
    try:
        import pyarrow.parquet  # noqa: F401  # its parts are what is asked for
    except ImportError:
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
    ):
        waiting: list[pa.RecordBatch] = []
        for state in states:
            waiting.append(_batch(state, read(state), schema))
            count += waiting[-1].num_rows
            if sum(batch.num_rows for batch in waiting) >= _GROUP:
                _write_group(writer, waiting, schema)
                waiting = []
        if waiting:
            _write_group(writer, waiting, schema)
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

    return [field.name for field in schema if not pa.types.is_floating(field.type)]


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
    for field in schema:
        name = field.name
        if name in columns:
            values = columns[name]
            if isinstance(values, Texts):
                arrays.append(_dictionary(values))
            else:  # NaN stands for no number
                arrays.append(pa.array(values, field.type, from_pandas=pa.types.is_floating(field.type)))
        elif name in _WHERE:
            arrays.append(_dictionary(Texts(np.zeros(count, np.int32), (getattr(state.leaf, name),))))
        else:
            value = state.judged if name == "judged" else getattr(state.leaf, name)
            arrays.append(pa.repeat(pa.scalar(value, field.type), count))
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
