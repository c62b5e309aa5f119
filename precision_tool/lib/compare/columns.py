"""How the cells of a result file are written and read, by the kind of their values (FORMATS.md §5b).

Numbers are `%.6f`; `NaN` stands for no result, `nan` and `inf` for what the data gave.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from math import isfinite
from typing import Any, Literal

from precision_tool.lib.compare.compat import type_name as vendor_type_name
from precision_tool.lib.io import data_types
from precision_tool.lib.messages import Message, render
from precision_tool.lib.messages.errors import FormatError, UsageError, shown
from precision_tool.lib.model.comparison import (
    NO_GRAPH,
    NO_OPS,
    STATISTICS_AGREE,
    STATISTICS_DIFFER,
    Metrics,
    Pair,
    Status,
    Summary,
)
from precision_tool.lib.model.table import ColumnChoice, Row, joined
from precision_tool.lib.model.tensor import AnyTensor, Tensor

NO_RESULT = "NaN"
#: A cell that a spreadsheet would take for a formula starts with one of these.
_FORMULA_START = ("=", "+", "-", "@", "%", "\t", "\r")
_ESCAPED_START = frozenset({*_FORMULA_START, "'"})


#: What the values of a column are: a text, several, positions, a whole number, or any.
Kind = Literal["text", "names", "indices", "whole", "number"]


@dataclass(frozen=True, slots=True)
class Form:
    """The way the values of a column are written and read; `none` is the cell of no value, `kind` their kind.

    `style` is the printf style of numbers: many of a row are written at once.
    """

    write: Callable[[Any], str]
    read: Callable[[str], Any]
    none: str = NO_RESULT
    kind: Kind = "text"
    style: str = ""


def text_cell(value: str) -> str:
    """Return a text cell that no spreadsheet runs as a formula."""
    # Texts that only look escaped are escaped as well, so that they are read back as they were.
    if value[:1] not in _ESCAPED_START:  # hardly any does, and there are very many
        return value
    return f"'{value}" if value.lstrip("'").startswith(_FORMULA_START) else value


def read_text(cell: str) -> str:
    """Return the text of a cell."""
    return cell[1:] if cell.startswith("'") and cell.lstrip("'").startswith(_FORMULA_START) else cell


def read_number(cell: str) -> float | None:
    """Return the number of a cell: `NaN` is no result, `nan` is data. ValueError for what is no number."""
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
    """Return the numbers of a cell like `[8,28]`; None for another."""
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


#: Kinds of reasons that decide something, each with the field that its text ends with: they are read back as such.
_DECIDING = ((NO_GRAPH, ""), (STATISTICS_AGREE, "statistics"), (STATISTICS_DIFFER, "differences"))


@lru_cache(maxsize=1024)  # very many rows have the same
def reason_of_text(text: str) -> Message | None:
    """Return the reason that a file has in English: of one of the kinds that decide something, or a text."""
    for kind, field in _DECIDING:
        beginning = render(Message(kind, **{field: ""}), "en")
        if text == beginning or (field and text.startswith(beginning)):
            return Message(kind, **{field: text[len(beginning) :]} if field else {})
    return Message("text", text=text) if text else None


def _write_reason(reason: Message | None) -> str:
    return "" if reason is None else text_cell(render(reason, "en"))


def _write_names(names: Sequence[str]) -> str:
    return text_cell(joined(names))


TEXT = Form(text_cell, read_text, "")
REASON = Form(_write_reason, lambda cell: reason_of_text(read_text(cell)), "")
KNOWN_TEXT = Form(lambda value: text_cell(value) or NO_RESULT, _read_text_unless_none)
TYPE_NAME = Form(lambda value: value or NO_RESULT, _read_text_unless_none)
#: Of very many names the first. Those of a group that are not written in full before are, see `result_csv`.
NAMES = Form(_write_names, _read_names, "", "names")
ALL_NAMES = Form(lambda names: text_cell(",".join(names)), _read_names, "", "names")
COUNT = Form(str, int, kind="whole")
NUMBER = Form("%.6f".__mod__, read_number, kind="number", style="%.6f")
PRECISE = Form("%.9g".__mod__, read_number, kind="number", style="%.9g")
WHOLE = Form(str, _read_count, kind="whole", style="%s")
INDICES = Form(write_indices, read_indices, kind="indices")
CUSTOM = Form(_write_custom, read_custom)
#: The place of an op in the order of execution.
SEQUENCE = Form(str, _read_sequence)


# --- columns: the field of a row, how it is written and read, where it is shown ---


#: What a column says of a row; None for nothing.
Value = Callable[[Row, ColumnChoice], Any]
#: How the report writes the values of a column: in a few digits, whole where the tensors are of integers, as a share
#: of one, as a count, or as text.
Look = Literal["figure", "exact", "percent", "count", "text"]


#: The remark on a single number in the result files of the vendor, and so in ours.
SCALAR_NOTE = "This tensor is scalar"

_ANY = ColumnChoice()


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: its `name`, its `header` where that is another, and the field of a Row that it holds.

    Fields are named by their place, `pair.index` or `metrics.cosine`. `value` is what is written where it is not just
    the field, `json` the key where programs find it (metrics and summaries are there under the names of their fields),
    `others` other names that files have for the column. A cell of a `strict` column that cannot be read makes the whole
    line unreadable. Of bools against a bool benchmark the metrics `for_bool` are printed. Of a row that `hides` says
    so of, the cell is that of no value. `--compat` has of the metrics the `vendors`.

    `ni` is the heading in `ni`'s table of tensors, `report` the key in the data of the report, which shows it in its
    table of tensors with this `look`: the name of the column where they are None, nowhere where they are empty.
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
    vendors: bool = False
    ni: str | None = None
    report: str | None = None
    look: Look | None = None

    @property
    def part(self) -> str:
        """The part of a row that has the field: metrics, npu, golden or pair; empty for the row itself."""
        return self.field.rpartition(".")[0]

    @property
    def ni_heading(self) -> str:
        """The heading in `ni`'s table of tensors; empty if it is not there."""
        return self.name if self.ni is None else self.ni

    @property
    def report_key(self) -> str:
        """The key in the report's table of tensors; empty if it is not there."""
        return self.name if self.report is None else self.report

    @property
    def report_look(self) -> Look:
        """The way the report writes its values."""
        looks: dict[str, Look] = {"number": "figure", "whole": "count"}
        return self.look or looks.get(self.form.kind, "text")

    def cell(self, row: Row, choice: ColumnChoice) -> str:
        """Return the cell of a row."""
        if self.hides is not None and self.hides(row):
            return self.form.none
        form = self.form
        value = field_of(row, self.field) if self.value is None else self.value(row, choice)
        return form.none if value is None else form.write(value)

    def held(self, row: Row, choice: ColumnChoice = _ANY) -> Any:
        """Return the value of a row; None for none."""
        return field_of(row, self.field) if self.value is None else self.value(row, choice)

    def shown(self, value: Any) -> str:
        """Return a value as `ni` has it: of a number four digits."""
        return f"{value:.4g}" if self.form.kind == "number" else self.text(value)

    def text(self, value: Any) -> str:
        """Return a value as text, empty for none; texts as they are, which is no cell of a file."""
        if value is None:
            return ""
        if self.form.kind == "names":
            return joined(value)
        if isinstance(value, Message):
            return render(value)
        return value if isinstance(value, str) else self.form.write(value)


def field_of(row: Row, path: str) -> Any:
    """Return the value of a field, None where the row has no such part or its file lacked it."""
    if path in row.absent:
        return None
    part, name = _split(path)
    holder = getattr(row, part) if part else row
    return None if holder is None else getattr(holder, name)


@cache
def _split(path: str) -> tuple[str, str]:
    part, _, name = path.rpartition(".")
    return part, name


def _type_cell(tensor: AnyTensor | None, choice: ColumnChoice) -> str | None:
    if tensor is None:
        return None
    if choice.compat:
        return vendor_type_name(tensor)
    data_type = data_types.BY_NAME.get(tensor.dtype)
    return (
        data_type.numpy_name or tensor.dtype if data_type is not None and data_type.decode == "numpy" else tensor.dtype
    )


def _npu_type(row: Row, choice: ColumnChoice) -> str | None:
    return row.npu_dtype or _type_cell(row.pair.npu if row.metrics is not None else None, choice)


def _golden_type(row: Row, choice: ColumnChoice) -> str | None:
    return row.golden_dtype or _type_cell(row.pair.golden if row.metrics is not None else None, choice)


def _address(tensor: AnyTensor | None) -> int | None:
    return tensor.address if isinstance(tensor, Tensor) else None


def _at_largest_error(name: str) -> Value:
    """Return a value that only means something where there is an error."""

    def value(row: Row, choice: ColumnChoice) -> float | None:
        return None if row.max_error_index is None else field_of(row, f"metrics.{name}")

    return value


def _cosine(row: Row, choice: ColumnChoice) -> str | None:
    """As the vendor prints it: `1.0` for two tensors that are all zero."""
    if row.metrics is None or row.cosine is None:
        return None
    return "1.0" if row.metrics.both_zero and not row.is_scalar else NUMBER.write(row.cosine)


def _deviation(row: Row, choice: ColumnChoice) -> str | None:
    """Mean and standard deviation of both sides; what is below 0.001 prints as 0."""
    if row.metrics is None or row.npu is None or row.golden is None:
        return None
    numbers = (row.npu.mean, row.npu.std, row.golden.mean, row.golden.std)
    return "({};{}),({};{})".format(*(f"{0.0 if abs(number) < 0.001 else number:.3f}" for number in numbers))


def _overflow(cell: str) -> bool | None:
    return {"YES": True, "NO": False}.get(cell)


def _metric(name: str, field: str, **more: Any) -> Column:
    return Column(name=name, field=f"metrics.{field}", form=NUMBER, **more)


def _vendors(name: str, field: str, report: str = "", **more: Any) -> Column:
    """One of the vendor's metrics, of which `ni` shows the cosine alone."""
    return _metric(name, field, vendors=True, ni="", report=report, **more)


#: What is shown beside the columns, by words of its own, or not at all.
_NOT_SHOWN: dict[str, Any] = {"ni": "", "report": ""}
#: The cosine has a column of our own, `Cosine`, where the metrics, as asked for, are without it.
COSINE = replace(
    _vendors("CosineSimilarity", "cosine", value=_cosine, others=("Cosine",), strict=True, for_bool=True),
    form=Form(str, read_number, kind="number"),
)
#: The vendor's metrics in its order, which is also that of the numbers its `-alg` takes; those of our own follow.
METRICS = (
    COSINE,
    _vendors("MaxAbsoluteError", "max_absolute_error", "max_absolute_error", strict=True, look="exact"),
    _vendors("AccumulatedRelativeError", "accumulated_relative_error"),
    _vendors(
        "RelativeEuclideanDistance", "relative_euclidean_distance", "relative_distance", strict=True, for_bool=True,
        look="percent",
    ),
    _vendors("KullbackLeiblerDivergence", "kullback_leibler_divergence"),
    Column(
        name="StandardDeviation", field="deviation", form=Form(str, str), value=_deviation, vendors=True, **_NOT_SHOWN
    ),
    _vendors("MeanAbsoluteError", "mean_absolute_error", "mean_absolute_error"),
    _vendors("RootMeanSquareError", "root_mean_square_error"),
    _vendors("MaxRelativeError", "max_relative_error", "max_relative_error"),
    _vendors("MeanRelativeError", "mean_relative_error", "mean_relative_error"),
)  # fmt: skip
#: Of each side: column, field, form, heading in `ni`, key in the report and its look.
_SUMMARY: tuple[tuple[str, str, Form, str, str, Look], ...] = (
    ("Min", "minimum", PRECISE, "min", "min", "exact"), ("Max", "maximum", PRECISE, "max", "max", "exact"),
    ("Mean", "mean", PRECISE, "mean", "mean", "exact"), ("Std", "std", PRECISE, "", "std", "exact"),
    ("NaN", "nan_count", WHOLE, "", "nan", "count"), ("PosInf", "positive_inf_count", WHOLE, "", "pos_inf", "count"),
    ("NegInf", "negative_inf_count", WHOLE, "", "neg_inf", "count"),
    ("Zeros", "zero_count", WHOLE, "", "zeros", "count"),
)  # fmt: skip
#: Of these the size of the benchmark's values is known, which judging needs.
_SIZES = ("GroundTruthMin", "GroundTruthMax")
#: Our columns, after the vendor's.
EXTRA = (
    Column(
        name="Status", field="pair.status", form=TEXT, json="status", value=lambda row, _: str(row.status),
        ni="", report="status",
    ),
    Column(name="PassName", field="pair.pass_names", form=ALL_NAMES, json="pass", **_NOT_SHOWN),
    Column(name="OriginalOps", field="pair.original_names", form=NAMES, json="original_ops", **_NOT_SHOWN),
    Column(
        name="GroundTruthTensor", field="pair.golden_tensor", form=TEXT, json="benchmark", ni="", report="golden_tensor"
    ),
    Column(name="MaxErrorIndex", field="metrics.max_error_index", form=replace(INDICES, none=""), **_NOT_SHOWN),
    Column(
        name="NPUAtMaxError", field="metrics.npu_at_max_error", form=replace(PRECISE, none=""),
        value=_at_largest_error("npu_at_max_error"), **_NOT_SHOWN,
    ),
    Column(
        name="GroundTruthAtMaxError", field="metrics.golden_at_max_error", form=replace(PRECISE, none=""),
        value=_at_largest_error("golden_at_max_error"), **_NOT_SHOWN,
    ),
    Column(
        name="NonFiniteMismatches", field="metrics.non_finite_mismatches", form=replace(WHOLE, none=""), strict=True,
        ni="", report="mismatches",
    ),
    *(
        Column(
            name=f"{side}{name}", field=f"{part}.{field}", form=form, strict=f"{side}{name}" in _SIZES,
            ni=heading, report=f"{part}_{key}", look=look,
        )
        for side, part in (("NPU", "npu"), ("GroundTruth", "golden"))
        for name, field, form, heading, key, look in _SUMMARY
    ),
)  # fmt: skip

#: Behind all others: results of `vc`, which recomputes nothing, are without it.
_OWN_ERROR = Column(name="OwnError", field="own_error", form=replace(PRECISE, none=""), json="own_error", **_NOT_SHOWN)
_INDEX = Column(name="Index", field="pair.index", form=COUNT, json="index", strict=True, **_NOT_SHOWN)
_SEQUENCE = Column(name="OpSequence", field="pair.sequence", form=SEQUENCE, json="sequence", strict=True, **_NOT_SHOWN)
_OP_TYPE = Column(
    name="OpType",
    field="pair.op_type",
    form=Form(lambda value: text_cell(value) or NO_RESULT, read_text),
    json="type",
    **_NOT_SHOWN,
)
_NPU_DUMP = Column(name="NPUDump", field="pair.npu_ops", form=NAMES, json="npu_ops", others=("LeftOp",), **_NOT_SHOWN)
_NPU_TYPE = Column(
    name="DataType", field="npu_dtype", form=TYPE_NAME, json="npu_type", value=_npu_type, ni="", report="npu_type"
)
_NPU_ADDRESS = Column(name="Address", field="", form=COUNT, value=lambda row, _: _address(row.pair.npu))
_GOLDEN = Column(
    name="GroundTruth", field="pair.golden_ops", form=NAMES, json="benchmark_ops", others=("RightOp",), **_NOT_SHOWN
)
_GOLDEN_TYPE = Column(
    name="GroundTruthDataType",
    header="DataType",
    field="golden_dtype",
    form=TYPE_NAME,
    json="benchmark_type",
    value=_golden_type,
    ni="",
    report="golden_type",
)
_GOLDEN_ADDRESS = Column(
    name="GroundTruthAddress", header="Address", field="", form=COUNT, value=lambda row, _: _address(row.pair.golden)
)
_TENSOR_INDEX = Column(name="TensorIndex", field="pair.tensor_index", form=KNOWN_TEXT, **_NOT_SHOWN)
_SHAPE = Column(name="Shape", field="pair.shape", form=INDICES, json="shape", ni="", report="shape")
_OVERFLOW = Column(
    name="OverFlow",
    field="overflow",
    form=Form(lambda value: "YES" if value else "NO", _overflow),
    json="overflow",
    **_NOT_SHOWN,
)
_REASON = Column(name="CompareFailReason", field="reason", form=REASON, json="reason", ni="", report="reason")


# --- PyTorch dumps, whose ops the vendor names otherwise --------------------------------------------------------------


def _named(names: Sequence[str], shown: str) -> str | None:
    """Return the name of an op as it is shown, `NaN` for none."""
    return None if tuple(names) == NO_OPS else shown


def _h5_path(row: Row, choice: ColumnChoice) -> str:
    """Return the place of a tensor, or of an op as a whole, in the NPU's file."""
    pair = row.pair
    path = pair.npu.dataset if isinstance(pair.npu, Tensor) else ""
    if not path and pair.npu_ops != NO_OPS and pair.status != Status.NO_NPU_DUMP:
        path = f"{pair.op_name}/{pair.slot.replace(':', '/', 1)}".rstrip("/")
    return path


_H5_DUMP = replace(_NPU_DUMP, form=Form(text_cell, read_text), value=lambda row, _: _named(row.npu_ops, row.op_type))
_H5_NPU_PATH = Column(name="NPUDumpPath", field="", form=KNOWN_TEXT, value=_h5_path)
_H5_GOLDEN_PATH = Column(name="GroundTruthPath", field="", form=KNOWN_TEXT, value=lambda row, _: row.golden_tensor)
_H5_GOLDEN = replace(
    _GOLDEN, form=Form(text_cell, read_text), value=lambda row, _: _named(row.golden_ops, joined(row.golden_ops))
)
_H5_GOLDEN_TYPE = replace(_GOLDEN_TYPE, header="")

#: The parts of a row that have fields of their own, and what they are; the row's have no part.
PARTS: dict[str, type[Any]] = {"": Row, "pair": Pair, "metrics": Metrics, "npu": Summary, "golden": Summary}
#: The one field that no row has: the reader makes means and deviations of both sides of it.
_DEVIATION = "deviation"


def readable(columns: Iterable[Column]) -> dict[str, Column]:
    """Return the columns by all their names.

    Raises ValueError for a column of a field that no row has, or of a name that another column has or nobody could
    ask for: what was written of it would be lost when it is read back.
    """
    by_name: dict[str, Column] = {}
    for column in columns:
        part, _, field = column.field.rpartition(".")
        if column.field != _DEVIATION and not hasattr(PARTS.get(part), field):
            raise ValueError(f"column {column.name}: no field {column.field} in a row")
        if "," in column.name:
            raise ValueError(f"column {column.name}: a comma stands between the names of --algorithm")
        for name in (*column.others, column.name):
            if name in by_name:
                raise ValueError(f"two columns {name}")
            by_name[name] = column
    return by_name


#: Every column that holds a field, by all its names: what a reader looks for.
READABLE = readable((
    _INDEX, _SEQUENCE, _OP_TYPE, _NPU_DUMP, _NPU_TYPE, _GOLDEN, _GOLDEN_TYPE, _TENSOR_INDEX, _SHAPE, _OVERFLOW,
    *METRICS, _REASON, *EXTRA, _OWN_ERROR,
))  # fmt: skip
#: The metrics of one number: the field of `Metrics`, and the column.
METRIC_FIELDS = {
    field: column.name for column in METRICS for part, _, field in [column.field.partition(".")] if part == "metrics"
}
METRIC_COLUMNS = tuple(column.name for column in METRICS)
#: Each column once, as `ni` and the report show them.
_ALL = tuple(dict.fromkeys(READABLE.values()))
IN_NI = tuple(column for column in _ALL if column.ni_heading)
IN_REPORT = tuple(column for column in _ALL if column.report_key)


def _custom_column(name: str) -> Column:
    return Column(name=name, field="", form=CUSTOM, value=lambda row, _: row.custom.get(name))


def metrics_of(choice: ColumnChoice) -> list[Column]:
    """Return the columns of the metrics that were asked for, in that order."""
    if choice.metrics is None or choice.metrics == METRIC_COLUMNS:
        return [column for column in METRICS if column.vendors or not choice.compat]
    by_name = {column.name: column for column in METRICS}
    return [by_name[name] for name in choice.metrics]


def _are_bools(row: Row) -> bool:
    """Return whether both sides are bools: numpy cannot subtract them, so the vendor has no figures of them."""
    return all(side is not None and side.dtype == "bool" for side in (row.pair.npu, row.pair.golden))


def _metric_cells(choice: ColumnChoice) -> list[Column]:
    columns = metrics_of(choice)
    if choice.golden_address:
        return columns
    return [column if column.for_bool else replace(column, hides=_are_bools) for column in columns]


def columns_of(choice: ColumnChoice, *, npu_address: bool = True) -> list[Column]:
    """Return the columns of a result in order; an Address follows a DataType only for a side that is an NPU dump."""
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
    """Return the header line."""
    return [column.header or column.name for column in columns]


def mapping_columns(*, sequence: bool) -> list[Column]:
    """Return the vendor's mapping table: of every tensor the ops and the files of both sides, `NaN` for none."""
    return [
        _INDEX, *[_SEQUENCE] * sequence, _OP_TYPE, _NPU_DUMP, _GOLDEN, _TENSOR_INDEX,
        Column(name="NPUDumpPath", field="", form=TEXT, value=lambda row, _: _place(row.pair.npu)),
        Column(name="GroundTruthPath", field="", form=TEXT, value=lambda row, _: _place(row.pair.golden)),
    ]  # fmt: skip


def _place(tensor: AnyTensor | None) -> str:
    """Return the file of a tensor, and where it is in it if it is one of many."""
    if tensor is None:
        return NO_RESULT
    dataset = tensor.dataset if isinstance(tensor, Tensor) else ""
    return f"{tensor.path}:{dataset}" if dataset else tensor.path


def parse_metrics(text: str) -> tuple[str, ...]:
    """Return the metrics of a list of names or of the vendor's numbers, separated by commas; `all` is each of them."""
    names: list[str] = []
    by_name = {name.lower(): name for name in METRIC_COLUMNS} | {
        str(number): name for number, name in enumerate(METRIC_COLUMNS)
    }
    for word in filter(None, (part.strip().lower() for part in text.split(","))):
        if word == "all":
            names += METRIC_COLUMNS
        elif word in by_name:
            names.append(by_name[word])
        else:
            choices = [f"{number} {name}" for number, name in enumerate(METRIC_COLUMNS)]
            raise UsageError("compare.no_metric", name=shown(word), metrics=choices)
    if not names:
        raise UsageError("compare.no_metric_named")
    return tuple(dict.fromkeys(names))


# --- JSON ---


#: To be raised when a key changes its meaning or goes; not for a new one.
SCHEMA = 1
#: What the columns of a result file do not have, or not under one name.
_BESIDE = {"op": "op_name", "slot": "slot", "noise": "noise"}
JSON_COLUMNS = {column.json: column for column in READABLE.values() if column.json}
JSON_PARTS = (("metrics", Metrics), ("npu", Summary), ("golden", Summary))


def row_json(row: Row, choice: ColumnChoice, path: str = "") -> dict[str, Any]:
    """Return a row with all its numbers; None stands for those that were not asked for, or that its file lacks.

    FormatError for a row that was read, of the file `path`, and has a cell which holds no number.
    """
    for name, text in row.damaged:
        where = Message("note.compare.line_of_result", line=row.line)
        raise FormatError.of(path, "compare.bad_number", line=row.line, what=where, column=name, value=shown(text))
    document: dict[str, Any] = {key: getattr(row, name) for key, name in _BESIDE.items()}
    for key, column in JSON_COLUMNS.items():
        document[key] = field_of(row, column.field) if column.value is None else column.value(row, choice)
    document["reason"] = render(row.reason)
    document["custom"] = dict.fromkeys(choice.custom) | dict(row.custom)
    document["left_out"] = dict(zip(("npu_ops", "benchmark_ops", "original_ops"), row.unlisted, strict=True))
    shown_fields = {column.field for column in metrics_of(choice)} | {COSINE.field}
    hidden = {column.field for column in METRICS} - shown_fields
    for part, kind in JSON_PARTS:
        document[part] = None
        if getattr(row, part) is not None:
            paths = {field.name: f"{part}.{field.name}" for field in fields(kind)}
            document[part] = {name: None if path in hidden else field_of(row, path) for name, path in paths.items()}
    return document
