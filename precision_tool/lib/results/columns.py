"""The one table of what a result says of a row: the column, the field, how it is written and read, the JSON key.

A new column is an entry here; a new metric is one as well, and a field of `Metrics` with its formula. The vendor's
columns stand in the vendor's order and number format, then ours. Numbers are `%.6f`; `NaN` stands for no result, `nan`
and `inf` for what the data gave (FORMATS.md §5b).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import groupby
from math import isfinite
from operator import attrgetter
from typing import Any, Literal

from precision_tool.lib.errors import UsageError, shown
from precision_tool.lib.model.comparison import NO_OPS, Status
from precision_tool.lib.model.table import ColumnChoice, Row, joined
from precision_tool.lib.model.tensor import AnyTensor, Tensor
from precision_tool.lib.numbers import data_types
from precision_tool.lib.results.compat import type_name as vendor_type_name

NO_RESULT = "NaN"
#: A cell that a spreadsheet would take for a formula starts with one of these.
_FORMULA_START = ("=", "+", "-", "@", "%", "\t", "\r")
_ESCAPED_START = frozenset({*_FORMULA_START, "'"})
#: What the vendor, and we, say of a single number instead of a failure.
SCALAR_NOTE = "This tensor is scalar"


# --- how values are written and read ----------------------------------------------------------------------------------


#: What the values of a column are: a text, several, positions, a whole number, or any.
Kind = Literal["text", "names", "indices", "whole", "number"]


@dataclass(frozen=True, slots=True)
class Form:
    """How the values of a column are written and read; `none` is the cell of no value, `kind` what they are.

    `style` is the printf style of numbers: many of a row are written at once.
    """

    write: Callable[[Any], str]
    read: Callable[[str], Any]
    none: str = NO_RESULT
    kind: Kind = "text"
    style: str = ""


def text_cell(value: str) -> str:
    """A text cell that no spreadsheet runs as a formula."""
    # Texts that only look escaped are escaped as well, so that they are read back as they were.
    if value[:1] not in _ESCAPED_START:  # hardly any does, and there are very many
        return value
    return f"'{value}" if value.lstrip("'").startswith(_FORMULA_START) else value


def read_text(cell: str) -> str:
    """The text of a cell."""
    return cell[1:] if cell.startswith("'") and cell.lstrip("'").startswith(_FORMULA_START) else cell


def read_number(cell: str) -> float | None:
    """A number cell: `NaN` is no result, `nan` is data. ValueError for what is no number."""
    cell = cell.strip()
    if not cell or cell in (NO_RESULT, "*"):
        return None
    try:
        return float(cell)
    except ValueError:
        raise ValueError(f"{shown(cell)} is no number") from None


def _read_count(cell: str) -> int | None:
    number = read_number(cell)
    return None if number is None or not isfinite(number) else int(number)  # a file that somebody edited


def _read_sequence(cell: str) -> int | None:
    try:
        return int(cell) if cell and cell != NO_RESULT else None
    except ValueError:
        raise ValueError(f"{shown(cell)} is no whole number") from None


@lru_cache(maxsize=1024)  # a result has few shapes, and many rows
def read_indices(cell: str) -> tuple[int, ...] | None:
    """A cell like `[8,28]`."""
    if not re.fullmatch(r"\[(\d+(,\s*\d+)*)?\]", cell, re.ASCII):
        return None
    return tuple(int(part) for part in cell[1:-1].split(",") if part)


def _read_names(cell: str) -> tuple[str, ...]:
    text = read_text(cell)
    return tuple(text.split(",")) if text else ()


def _read_text_unless_none(cell: str) -> str:
    text = read_text(cell)
    return "" if text == NO_RESULT else text


def read_custom(cell: str) -> float | str | None:
    try:
        return read_number(cell)
    except ValueError:
        return read_text(cell.strip())


def _write_custom(value: float | str) -> str:
    if isinstance(value, str):
        return text_cell(value)
    return str(value) if isinstance(value, int) else f"{value:.9g}"


def write_indices(values: Iterable[int]) -> str:
    return f"[{','.join(map(str, values))}]"


def _write_names(names: Sequence[str]) -> str:
    return text_cell(joined(names))


_TEXT = Form(text_cell, read_text, "")
_KNOWN_TEXT = Form(lambda value: text_cell(value) or NO_RESULT, _read_text_unless_none)
_TYPE_NAME = Form(lambda value: value or NO_RESULT, _read_text_unless_none)
#: Of very many names the first. Those of a group that are not written in full before are, see `result_csv`.
NAMES = Form(_write_names, _read_names, "", "names")
ALL_NAMES = Form(lambda names: text_cell(",".join(names)), _read_names, "", "names")
_COUNT = Form(str, int, kind="whole")
_NUMBER = Form("%.6f".__mod__, read_number, kind="number", style="%.6f")
_PRECISE = Form("%.9g".__mod__, read_number, kind="number", style="%.9g")
_WHOLE = Form(str, _read_count, kind="whole", style="%s")
_INDICES = Form(write_indices, read_indices, kind="indices")
_CUSTOM = Form(_write_custom, read_custom)


# --- the columns ------------------------------------------------------------------------------------------------------

#: What a column says of a row; None for nothing.
Value = Callable[[Row, ColumnChoice], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: its `name`, its `header` where that is another, and the field of a Row that it holds.

    Fields are named by their place, `pair.index` or `metrics.cosine`. `value` is what is written where it is not just
    the field, `json` the key where programs find it (metrics and summaries are there under the names of their fields),
    `others` what older releases called the column. A cell of a `strict` column that cannot be read makes the whole
    line unreadable. Of bools against a bool benchmark the metrics `for_bool` are printed. Of a row that `hides` says
    so of, the cell is that of no value.
    """

    name: str
    field: str
    form: Form
    json: str = ""
    header: str = ""
    value: Value | None = None
    others: tuple[str, ...] = ()
    strict: bool = False
    for_bool: bool = False
    hides: Callable[[Row], bool] | None = None

    def cell(self, row: Row, choice: ColumnChoice) -> str:
        """The cell of a row."""
        if self.hides is not None and self.hides(row):
            return self.form.none
        value = field_of(row, self.field) if self.value is None else self.value(row, choice)
        return self.form.none if value is None else self.form.write(value)


def field_of(row: Row, path: str) -> Any:
    """The value of a field, None where the row has no such part or its file lacked it."""
    if path in row.absent:
        return None
    value: Any = row
    for name in _steps(path):
        if value is None:
            return None
        value = getattr(value, name)
    return value


@cache
def _steps(path: str) -> tuple[str, ...]:
    return tuple(path.split("."))


def _type_cell(tensor: AnyTensor | None, choice: ColumnChoice) -> str | None:
    if tensor is None:
        return None
    if choice.compat:
        return vendor_type_name(tensor)
    known = data_types.BY_NAME.get(tensor.dtype)
    return known.numpy_name or tensor.dtype if known is not None and known.decode == "numpy" else tensor.dtype


def _npu_type(row: Row, choice: ColumnChoice) -> str | None:
    return row.npu_dtype or _type_cell(row.pair.npu if row.metrics is not None else None, choice)


def _golden_type(row: Row, choice: ColumnChoice) -> str | None:
    return row.golden_dtype or _type_cell(row.pair.golden if row.metrics is not None else None, choice)


def _address(tensor: AnyTensor | None) -> int | None:
    return tensor.address if isinstance(tensor, Tensor) else None


def _at_largest_error(name: str) -> Value:
    """A value that only means something where there is an error."""

    def value(row: Row, choice: ColumnChoice) -> float | None:
        return None if row.max_error_index is None else field_of(row, f"metrics.{name}")

    return value


def _cosine(row: Row, choice: ColumnChoice) -> str | None:
    """As the vendor prints it: `1.0` for two tensors that are all zero."""
    if row.metrics is None or row.cosine is None:
        return None
    return "1.0" if row.metrics.both_zero and not row.is_scalar else _NUMBER.write(row.cosine)


def _deviation(row: Row, choice: ColumnChoice) -> str | None:
    """Mean and standard deviation of both sides; what is below 0.001 prints as 0."""
    if row.metrics is None or row.npu is None or row.golden is None:
        return None
    numbers = (row.npu.mean, row.npu.std, row.golden.mean, row.golden.std)
    return "({};{}),({};{})".format(*(f"{0.0 if abs(number) < 0.001 else number:.3f}" for number in numbers))


def _overflow(cell: str) -> bool | None:
    return {"YES": True, "NO": False}.get(cell)


def _metric(name: str, field: str, **more: Any) -> Column:
    return Column(name=name, field=f"metrics.{field}", form=_NUMBER, **more)


#: The cosine has a column of our own, `Cosine`, where the metrics, as asked for, are without it.
COSINE = replace(
    _metric("CosineSimilarity", "cosine", value=_cosine, others=("Cosine",), strict=True, for_bool=True),
    form=Form(str, read_number, kind="number"),
)
#: The vendor's metrics in its order, which is also that of the numbers its `-alg` takes.
METRICS = (
    COSINE,
    _metric("MaxAbsoluteError", "max_absolute_error", strict=True),
    _metric("AccumulatedRelativeError", "accumulated_relative_error"),
    _metric("RelativeEuclideanDistance", "relative_euclidean_distance", strict=True, for_bool=True),
    _metric("KullbackLeiblerDivergence", "kullback_leibler_divergence"),
    Column(name="StandardDeviation", field="deviation", form=Form(str, str), value=_deviation),
    _metric("MeanAbsoluteError", "mean_absolute_error"),
    _metric("RootMeanSquareError", "root_mean_square_error"),
    _metric("MaxRelativeError", "max_relative_error"),
    _metric("MeanRelativeError", "mean_relative_error"),
)
_SUMMARY = (
    ("Min", "minimum", _PRECISE), ("Max", "maximum", _PRECISE), ("Mean", "mean", _PRECISE), ("Std", "std", _PRECISE),
    ("NaN", "nan_count", _WHOLE), ("PosInf", "positive_inf_count", _WHOLE), ("NegInf", "negative_inf_count", _WHOLE),
    ("Zeros", "zero_count", _WHOLE),
)  # fmt: skip
#: Of these the size of the benchmark's values is known, which judging needs.
_SIZES = ("GroundTruthMin", "GroundTruthMax")
#: Our columns, after the vendor's.
EXTRA = (
    Column(name="Status", field="pair.status", form=_TEXT, json="status", value=lambda row, _: str(row.status)),
    Column(name="PassName", field="pair.pass_names", form=ALL_NAMES, json="pass"),
    Column(name="OriginalOps", field="pair.original_names", form=NAMES, json="original_ops"),
    Column(name="GroundTruthTensor", field="pair.golden_tensor", form=_TEXT, json="benchmark"),
    Column(name="MaxErrorIndex", field="metrics.max_error_index", form=replace(_INDICES, none="")),
    Column(
        name="NPUAtMaxError", field="metrics.npu_at_max_error", form=replace(_PRECISE, none=""),
        value=_at_largest_error("npu_at_max_error"),
    ),
    Column(
        name="GroundTruthAtMaxError", field="metrics.golden_at_max_error", form=replace(_PRECISE, none=""),
        value=_at_largest_error("golden_at_max_error"),
    ),
    Column(
        name="NonFiniteMismatches", field="metrics.non_finite_mismatches", form=replace(_WHOLE, none=""), strict=True
    ),
    *(
        Column(name=f"{side}{name}", field=f"{part}.{field}", form=form, strict=f"{side}{name}" in _SIZES)
        for side, part in (("NPU", "npu"), ("GroundTruth", "golden"))
        for name, field, form in _SUMMARY
    ),
)  # fmt: skip

#: Behind all others: results of older releases, and of `vc`, which recomputes nothing, are without it.
_OWN_ERROR = Column(name="OwnError", field="own_error", form=replace(_PRECISE, none=""), json="own_error")
_INDEX = Column(name="Index", field="pair.index", form=_COUNT, json="index", strict=True)
_SEQUENCE = Column(
    name="OpSequence", field="pair.sequence", form=Form(str, _read_sequence), json="sequence", strict=True
)
_OP_TYPE = Column(
    name="OpType", field="pair.op_type", form=Form(lambda value: text_cell(value) or NO_RESULT, read_text), json="type"
)
_NPU_DUMP = Column(name="NPUDump", field="pair.npu_ops", form=NAMES, json="npu_ops", others=("LeftOp",))
_NPU_TYPE = Column(name="DataType", field="npu_dtype", form=_TYPE_NAME, json="npu_type", value=_npu_type)
_NPU_ADDRESS = Column(name="Address", field="", form=_COUNT, value=lambda row, _: _address(row.pair.npu))
_GOLDEN = Column(name="GroundTruth", field="pair.golden_ops", form=NAMES, json="benchmark_ops", others=("RightOp",))
_GOLDEN_TYPE = Column(
    name="GroundTruthDataType", header="DataType", field="golden_dtype", form=_TYPE_NAME, json="benchmark_type",
    value=_golden_type,
)  # fmt: skip
_GOLDEN_ADDRESS = Column(
    name="GroundTruthAddress", header="Address", field="", form=_COUNT, value=lambda row, _: _address(row.pair.golden)
)
_TENSOR_INDEX = Column(name="TensorIndex", field="pair.tensor_index", form=_KNOWN_TEXT)
_SHAPE = Column(name="Shape", field="pair.shape", form=_INDICES, json="shape")
_OVERFLOW = Column(
    name="OverFlow", field="overflow", form=Form(lambda value: "YES" if value else "NO", _overflow), json="overflow"
)
_REASON = Column(name="CompareFailReason", field="reason", form=_TEXT, json="reason")


# --- PyTorch dumps, whose ops the vendor names otherwise --------------------------------------------------------------


def _named(names: Sequence[str], shown: str) -> str | None:
    """What is shown of an op, `NaN` for none."""
    return None if tuple(names) == NO_OPS else shown


def _h5_path(row: Row, choice: ColumnChoice) -> str:
    """Where a tensor, or an op as a whole, is in the NPU's file."""
    pair = row.pair
    path = pair.npu.dataset if isinstance(pair.npu, Tensor) else ""
    if not path and pair.npu_ops != NO_OPS and pair.status != Status.NO_NPU_DUMP:
        path = f"{pair.op_name}/{pair.slot.replace(':', '/', 1)}".rstrip("/")
    return path


_H5_DUMP = replace(_NPU_DUMP, form=Form(text_cell, read_text), value=lambda row, _: _named(row.npu_ops, row.op_type))
_H5_NPU_PATH = Column(name="NPUDumpPath", field="", form=_KNOWN_TEXT, value=_h5_path)
_H5_GOLDEN_PATH = Column(name="GroundTruthPath", field="", form=_KNOWN_TEXT, value=lambda row, _: row.golden_tensor)
_H5_GOLDEN = replace(
    _GOLDEN, form=Form(text_cell, read_text), value=lambda row, _: _named(row.golden_ops, joined(row.golden_ops))
)
_H5_GOLDEN_TYPE = replace(_GOLDEN_TYPE, header="")

#: Every column that holds a field, by all its names: what a reader looks for.
READABLE = {
    name: column
    for column in (
        _INDEX, _SEQUENCE, _OP_TYPE, _NPU_DUMP, _NPU_TYPE, _GOLDEN, _GOLDEN_TYPE, _TENSOR_INDEX, _SHAPE, _OVERFLOW,
        *METRICS, _REASON, *EXTRA, _OWN_ERROR,
    )
    for name in (*column.others, column.name)
}  # fmt: skip
#: The metrics of one number: the field of `Metrics`, and the column.
METRIC_FIELDS = {
    field: column.name for column in METRICS for part, _, field in [column.field.partition(".")] if part == "metrics"
}
METRIC_COLUMNS = tuple(column.name for column in METRICS)
EXTRA_COLUMNS = tuple(column.name for column in EXTRA)


def _custom_column(name: str) -> Column:
    return Column(name=name, field="", form=_CUSTOM, value=lambda row, _: row.custom.get(name))


def metrics_of(choice: ColumnChoice) -> list[Column]:
    """The columns of the metrics that were asked for, in that order."""
    by_name = {column.name: column for column in METRICS}
    return [by_name[name] for name in (METRIC_COLUMNS if choice.metrics is None else choice.metrics)]


def _are_bools(row: Row) -> bool:
    """Whether both sides are bools: numpy subtracts none, so the vendor has no figures of those and a benchmark."""
    return all(side is not None and side.dtype == "bool" for side in (row.pair.npu, row.pair.golden))


def _metric_cells(choice: ColumnChoice) -> list[Column]:
    columns = metrics_of(choice)
    if choice.golden_address:
        return columns
    return [column if column.for_bool else replace(column, hides=_are_bools) for column in columns]


def columns_of(choice: ColumnChoice, *, npu_address: bool = True) -> list[Column]:
    """The columns of a result in order; an Address column follows a DataType only for a side that is an NPU dump."""
    metrics = _metric_cells(choice)
    own = [] if any(column.name == COSINE.name for column in metrics) else [replace(COSINE, name="Cosine")]
    overflow = [_OVERFLOW] * choice.overflow
    values = [*overflow, *metrics, *map(_custom_column, choice.custom), _REASON]
    extra = [] if choice.compat else [*EXTRA, *own, *[_OWN_ERROR] * choice.own_error]
    if choice.h5:
        golden = [] if choice.compat else [_H5_GOLDEN, _H5_GOLDEN_TYPE]
        return [_INDEX, _H5_DUMP, _H5_NPU_PATH, _H5_GOLDEN_PATH, _NPU_TYPE, _SHAPE, *values, *golden, *extra]
    return [
        _INDEX, *[_SEQUENCE] * choice.sequence, _OP_TYPE,
        _NPU_DUMP, _NPU_TYPE, *[_NPU_ADDRESS] * npu_address,
        _GOLDEN, _GOLDEN_TYPE, *[_GOLDEN_ADDRESS] * choice.golden_address,
        _TENSOR_INDEX, _SHAPE, *values, *extra,
    ]  # fmt: skip


def headers(columns: Iterable[Column]) -> list[str]:
    """The header line."""
    return [column.header or column.name for column in columns]


#: The cells of a row, or of some columns of it.
Cells = Callable[[Row], list[str]]


def cells_of(columns: Sequence[Column], choice: ColumnChoice) -> Cells:
    """What makes the cells of a row: as `Column.cell` does, but numbers that stand side by side all at once."""
    parts: list[Cells] = []
    for key, group in groupby(columns, _side_by_side):
        together = list(group)
        parts.append(_numbers(together, choice) if key else _singles(together, choice))

    def cells(row: Row) -> list[str]:
        found: list[str] = []
        for part in parts:
            found += part(row)
        return found

    return cells


def _side_by_side(column: Column) -> tuple[object, ...]:
    """Columns with one key are numbers of one part of a row, hidden together; () of others."""
    part, _, field = column.field.partition(".")
    return (part, column.hides) if field and column.form.style and column.value is None else ()


def _singles(columns: Sequence[Column], choice: ColumnChoice) -> Cells:
    makers = [_maker(column, choice) for column in columns]
    return lambda row: [make(row) for make in makers]


def _maker(column: Column, choice: ColumnChoice) -> Callable[[Row], str]:
    """`Column.cell` of one column, with what is the same for all rows found out before."""
    write, none, value = column.form.write, column.form.none, column.value
    if column.hides is not None or (value is None and not column.field.startswith("pair.")):
        return lambda row: column.cell(row, choice)
    if value is not None:
        said = value

        def from_row(row: Row) -> str:
            held = said(row, choice)
            return none if held is None else write(held)

        return from_row
    found = attrgetter(column.field)

    def from_pair(row: Row) -> str:
        if row.absent:
            return column.cell(row, choice)
        held = found(row)
        return none if held is None else write(held)

    return from_pair


def _numbers(columns: Sequence[Column], choice: ColumnChoice) -> Cells:
    part, hides = columns[0].field.partition(".")[0], columns[0].hides
    fields = [column.field.partition(".")[2] for column in columns]
    style = " ".join(column.form.style for column in columns)
    nothing = [column.form.none for column in columns]

    def cells(row: Row) -> list[str]:
        holder = getattr(row, part)
        if holder is None or (hides is not None and hides(row)):
            return nothing
        values = tuple([getattr(holder, field) for field in fields])
        if row.absent or None in values:
            return [column.cell(row, choice) for column in columns]
        return (style % values).split(" ")

    return cells


def mapping_columns(*, sequence: bool) -> list[Column]:
    """The vendor's mapping table: of every tensor the ops and the files of both sides, `NaN` for none."""
    return [
        _INDEX, *[_SEQUENCE] * sequence, _OP_TYPE, _NPU_DUMP, _GOLDEN, _TENSOR_INDEX,
        Column(name="NPUDumpPath", field="", form=_TEXT, value=lambda row, _: _place(row.pair.npu)),
        Column(name="GroundTruthPath", field="", form=_TEXT, value=lambda row, _: _place(row.pair.golden)),
    ]  # fmt: skip


def _place(tensor: AnyTensor | None) -> str:
    """The file of a tensor, and where it is in it if it is one of many."""
    if tensor is None:
        return NO_RESULT
    dataset = tensor.dataset if isinstance(tensor, Tensor) else ""
    return f"{tensor.path}:{dataset}" if dataset else tensor.path


def parse_metrics(text: str) -> tuple[str, ...]:
    """The metrics that names or the vendor's numbers, with commas between them, stand for; `all` is each of them."""
    found: list[str] = []
    by_name = {name.lower(): name for name in METRIC_COLUMNS} | {
        str(number): name for number, name in enumerate(METRIC_COLUMNS)
    }
    for word in filter(None, (part.strip().lower() for part in text.split(","))):
        if word == "all":
            found += METRIC_COLUMNS
        elif word in by_name:
            found.append(by_name[word])
        else:
            known = ", ".join(f"{number} {name}" for number, name in enumerate(METRIC_COLUMNS))
            raise UsageError(f"--algorithm: there is no metric {shown(word)}", f"known are {known}, and all")
    if not found:
        raise UsageError("--algorithm: no metric is named", "for example --algorithm CosineSimilarity,MaxAbsoluteError")
    return tuple(dict.fromkeys(found))
