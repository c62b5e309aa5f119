"""The result file: the vendor's columns in the vendor's order and number format, then ours; and its reader.

Numbers are `%.6f`; `NaN` stands for no result, `nan` and `inf` for what the data gave (formats.md §5b).
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from math import isnan

from precision_tool.lib.errors import DataNotFoundError, FormatError, UsageError
from precision_tool.lib.model.comparison import Comparison, Metrics, Pair, Status, Summary
from precision_tool.lib.model.tensor import AnyTensor, Tensor
from precision_tool.lib.model.wording import first_names
from precision_tool.lib.numbers import data_types
from precision_tool.lib.results.compat import type_name as vendor_type_name
from precision_tool.lib.storage.files import atomic_text, user_error

NO_RESULT = "NaN"
#: The vendor's metrics in its order, which is also that of the numbers its `-alg` takes.
METRIC_COLUMNS = (
    "CosineSimilarity", "MaxAbsoluteError", "AccumulatedRelativeError", "RelativeEuclideanDistance",
    "KullbackLeiblerDivergence", "StandardDeviation", "MeanAbsoluteError", "RootMeanSquareError",
    "MaxRelativeError", "MeanRelativeError",
)  # fmt: skip
#: The fields of `Metrics` and their columns. StandardDeviation holds parts of the summaries.
_METRIC_FIELDS = {
    "cosine": "CosineSimilarity",
    "max_absolute_error": "MaxAbsoluteError",
    "accumulated_relative_error": "AccumulatedRelativeError",
    "relative_euclidean_distance": "RelativeEuclideanDistance",
    "kullback_leibler_divergence": "KullbackLeiblerDivergence",
    "mean_absolute_error": "MeanAbsoluteError",
    "root_mean_square_error": "RootMeanSquareError",
    "max_relative_error": "MaxRelativeError",
    "mean_relative_error": "MeanRelativeError",
    "npu_at_max_error": "NPUAtMaxError",
    "golden_at_max_error": "GroundTruthAtMaxError",
}
#: The fields of `Summary` and their columns, which begin with the side.
_SUMMARY_FIELDS = {
    "minimum": "Min", "maximum": "Max", "mean": "Mean", "std": "Std",
    "nan_count": "NaN", "positive_inf_count": "PosInf", "negative_inf_count": "NegInf", "zero_count": "Zeros",
}  # fmt: skip
_COSINE = "CosineSimilarity"
#: The cosine of a result whose metrics, as asked for, are without it.
_OWN_COSINE = "Cosine"
#: Our columns, after the vendor's.
EXTRA_COLUMNS = (
    "Status", "PassName", "OriginalOps", "GroundTruthTensor", "MaxErrorIndex", "NPUAtMaxError",
    "GroundTruthAtMaxError", "NonFiniteMismatches",
    *(f"{side}{name}" for side in ("NPU", "GroundTruth") for name in _SUMMARY_FIELDS.values()),
)  # fmt: skip
#: Columns that name the ops of a group, with commas between them.
_NAME_COLUMNS = {"NPUDump", "LeftOp", "GroundTruth", "RightOp", "OriginalOps"}
#: A cell that a spreadsheet would take for a formula starts with one of these.
_FORMULA_START = ("=", "+", "-", "@", "%", "\t", "\r")
_MAX_CELL = 1 << 20
#: Names longer than this are cut in the first row of a group too: no reader takes a larger cell.
_MAX_NAMES_LENGTH = _MAX_CELL // 2
#: What the vendor, and we, say of a single number instead of a failure.
_SCALAR_NOTE = "This tensor is scalar"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChoice:
    """Which of the columns that depend on options a result file has.

    `metrics` are those of the vendor's that were asked for, in that order; without CosineSimilarity, which everything
    else needs, our columns end with it. `custom` names the user's own metrics, which follow the vendor's. With `h5`
    the columns are those that the vendor has for PyTorch dumps.
    """

    h5: bool = False
    sequence: bool = False
    overflow: bool = False
    metrics: tuple[str, ...] = METRIC_COLUMNS
    custom: tuple[str, ...] = ()
    #: The vendor's columns and nothing else.
    compat: bool = False

    @property
    def has_cosine(self) -> bool:
        """Whether the cosine is among the metrics asked for."""
        return _COSINE in self.metrics


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
            raise UsageError(f"--algorithm: there is no metric {word!r}", f"known are {known}, and all")
    if not found:
        raise UsageError("--algorithm: no metric is named", "for example --algorithm CosineSimilarity,MaxAbsoluteError")
    return tuple(dict.fromkeys(found))


def columns(*, npu_address: bool, golden_address: bool, choice: ColumnChoice | None = None) -> list[str]:
    """The header line; an Address column follows a DataType only for a side that is an NPU dump."""
    choice = choice or ColumnChoice()
    own = [] if choice.compat else [*EXTRA_COLUMNS, *([] if choice.has_cosine else [_OWN_COSINE])]
    if choice.h5:
        return [
            "Index", "NPUDump", "NPUDumpPath", "GroundTruthPath", "DataType", "Shape",
            *(["OverFlow"] if choice.overflow else []), *choice.metrics, *choice.custom, "CompareFailReason",
            *([] if choice.compat else ["GroundTruth", "GroundTruthDataType"]), *own,
        ]  # fmt: skip
    return [
        "Index", *(["OpSequence"] if choice.sequence else []),
        "OpType", "NPUDump", "DataType", *(["Address"] if npu_address else []),
        "GroundTruth", "DataType", *(["Address"] if golden_address else []),
        "TensorIndex", "Shape", *(["OverFlow"] if choice.overflow else []),
        *choice.metrics, *choice.custom, "CompareFailReason", *own,
    ]  # fmt: skip


def _number(value: float) -> str:
    return f"{value:.6f}"


def _text(value: str) -> str:
    """A text cell that no spreadsheet runs as a formula."""
    # Texts that only look escaped are escaped as well, so that they are read back as they were.
    return f"'{value}" if value.lstrip("'").startswith(_FORMULA_START) else value


def _names(names: str, whole: bool) -> str:
    """Names joined with commas: all in the first row of a group, as groups may have hundreds, the first few below."""
    return names if whole and len(names) <= _MAX_NAMES_LENGTH else first_names(names)


def _small(value: float) -> str:
    """Mean and std of the StandardDeviation cell: below 0.001 they print as 0."""
    return f"{0.0 if abs(value) < 0.001 else value:.3f}"


def _type_cell(tensor: AnyTensor | None) -> str:
    if tensor is None:
        return NO_RESULT
    known = data_types.BY_NAME.get(tensor.dtype)
    return known.numpy_name or tensor.dtype if known is not None and known.decode == "numpy" else tensor.dtype


def _vendor_type_cell(tensor: AnyTensor | None) -> str:
    return NO_RESULT if tensor is None else vendor_type_name(tensor)


def _list(values: Iterable[int]) -> str:
    return f"[{','.join(str(value) for value in values)}]"


def _metric_cells(row: Comparison) -> dict[str, str]:
    metrics, npu, golden = row.metrics, row.npu, row.golden
    if metrics is None or npu is None or golden is None:
        return dict.fromkeys(METRIC_COLUMNS, NO_RESULT)
    deviation = f"({_small(npu.mean)};{_small(npu.std)}),({_small(golden.mean)};{_small(golden.std)})"
    cells = [
        "1.0" if metrics.both_zero and not metrics.is_scalar else _number(metrics.cosine),
        _number(metrics.max_absolute_error),
        _number(metrics.accumulated_relative_error),
        _number(metrics.relative_euclidean_distance),
        _number(metrics.kullback_leibler_divergence),
        deviation,
        _number(metrics.mean_absolute_error),
        _number(metrics.root_mean_square_error),
        _number(metrics.max_relative_error),
        _number(metrics.mean_relative_error),
    ]
    is_bool = row.pair.npu is not None and row.pair.npu.dtype == "bool"
    return {
        name: cell if not is_bool or name in (_COSINE, "RelativeEuclideanDistance") else NO_RESULT
        for name, cell in zip(METRIC_COLUMNS, cells, strict=True)
    }


def _overflow_cell(overflow: bool | None) -> str:
    if overflow is None:
        return NO_RESULT
    return "YES" if overflow else "NO"


def _custom_cells(row: Comparison, count: int) -> list[str]:
    return [_custom_cell(value) for value in row.custom or (None,) * count]


def _custom_cell(value: float | str | None) -> str:
    if value is None:
        return NO_RESULT
    if isinstance(value, str):
        return _text(value)
    return str(value) if isinstance(value, int) else f"{value:.9g}"


def _summary_cells(summary: Summary | None) -> list[str]:
    if summary is None:
        return [NO_RESULT] * 8
    values = (summary.minimum, summary.maximum, summary.mean, summary.std)
    counts = (summary.nan_count, summary.positive_inf_count, summary.negative_inf_count, summary.zero_count)
    return [*(f"{value:.9g}" for value in values), *map(str, counts)]


def cells(
    row: Comparison,
    *,
    npu_address: bool,
    golden_address: bool,
    choice: ColumnChoice | None = None,
    whole_names: bool = True,
) -> list[str]:
    """One line of the result file; without `whole_names` of many ops the first few."""
    pair, metrics = row.pair, row.metrics
    choice = choice or ColumnChoice()
    metric_cells = _metric_cells(row)

    def address(tensor: AnyTensor | None) -> str:
        return str(tensor.address) if isinstance(tensor, Tensor) else NO_RESULT

    compared = metrics is not None
    type_cell = _vendor_type_cell if choice.compat else _type_cell
    head = [
        str(pair.index),
        *([NO_RESULT if pair.sequence is None else str(pair.sequence)] if choice.sequence else []),
        _text(pair.op_type) or NO_RESULT,
        _text(_names(pair.npu_names, whole_names)),
        type_cell(pair.npu if compared else None),
        *([address(pair.npu)] if npu_address else []),
        _text(_names(pair.golden_names, whole_names)),
        type_cell(pair.golden if compared else None),
        *([address(pair.golden)] if golden_address else []),
        _text(pair.tensor_index) or NO_RESULT,
    ]
    own: list[str] = []
    if choice.h5:
        head = [
            str(pair.index),
            _named(pair.npu_names, pair.op_type),
            *_h5_paths(pair),
            type_cell(pair.npu if compared else None),
        ]
        own = [_named(pair.golden_names, pair.golden_names), type_cell(pair.golden if compared else None)]
    line = [
        *head,
        NO_RESULT if pair.shape is None else _list(pair.shape),
        *([_overflow_cell(row.overflow)] if choice.overflow else []),
        *(metric_cells[name] for name in choice.metrics),
        *_custom_cells(row, len(choice.custom)),
        _text(row.note),
    ]
    if choice.compat:
        return line
    return [
        *line,
        *own,
        str(pair.status),
        _text(",".join(pair.pass_names)),
        _text(_names(",".join(pair.original_names), whole_names)),
        _text(pair.golden_tensor),
        _list(metrics.max_error_index) if metrics and metrics.max_error_index is not None else "",
        f"{metrics.npu_at_max_error:.9g}" if metrics and metrics.max_error_index is not None else "",
        f"{metrics.golden_at_max_error:.9g}" if metrics and metrics.max_error_index is not None else "",
        str(metrics.non_finite_mismatches) if metrics else "",
        *_summary_cells(row.npu),
        *_summary_cells(row.golden),
        *([] if choice.has_cosine else [metric_cells[_COSINE]]),
    ]


def _named(names: str, shown: str) -> str:
    """What is shown of an op, or `NaN` for none, as the vendor has it for PyTorch dumps."""
    return NO_RESULT if names == "*" else _text(shown)


def _h5_paths(pair: Pair) -> tuple[str, str]:
    """Where a tensor, or an op as a whole, is in either `.h5` file."""
    npu = pair.npu.dataset if isinstance(pair.npu, Tensor) else ""
    if not npu and pair.npu_names != "*" and pair.status is not Status.NO_NPU_DUMP:
        npu = f"{pair.op_name}/{pair.slot.replace(':', '/', 1)}".rstrip("/")
    return _text(npu) or NO_RESULT, _text(pair.golden_tensor) or NO_RESULT


def write_result(
    path: str, rows: Sequence[Comparison], *, golden_address: bool = False, choice: ColumnChoice | None = None
) -> None:
    """Writes the result file (CRLF, mode 0600, as the vendor's). OutputError when it cannot be written."""
    with atomic_text(path) as file:
        writer = csv.writer(file, lineterminator="\r\n")
        writer.writerow(columns(npu_address=True, golden_address=golden_address, choice=choice))
        told: set[int] = set()
        for row in rows:
            whole = row.pair.index not in told
            told.add(row.pair.index)
            writer.writerow(
                cells(row, npu_address=True, golden_address=golden_address, choice=choice, whole_names=whole)
            )


def write_mapping(path: str, pairs: Sequence[Pair], *, sequence: bool = False) -> None:
    """Writes the vendor's mapping table: of every tensor the ops and the files of both sides, `NaN` for none."""
    with atomic_text(path) as file:
        writer = csv.writer(file, lineterminator="\r\n")
        head = ["Index", *(["OpSequence"] if sequence else []), "OpType", "NPUDump", "GroundTruth", "TensorIndex"]
        writer.writerow([*head, "NPUDumpPath", "GroundTruthPath"])
        told: set[int] = set()
        for pair in pairs:
            whole = pair.index not in told
            told.add(pair.index)
            writer.writerow(
                [
                    str(pair.index),
                    *([NO_RESULT if pair.sequence is None else str(pair.sequence)] if sequence else []),
                    _text(pair.op_type) or NO_RESULT,
                    _text(_names(pair.npu_names, whole)),
                    _text(_names(pair.golden_names, whole)),
                    _text(pair.tensor_index) or NO_RESULT,
                    NO_RESULT if pair.npu is None else _text(_place(pair.npu)),
                    NO_RESULT if pair.golden is None else _text(_place(pair.golden)),
                ]
            )


def _place(tensor: AnyTensor) -> str:
    """The file of a tensor, and where it is in it if it is one of many."""
    dataset = tensor.dataset if isinstance(tensor, Tensor) else ""
    return f"{tensor.path}:{dataset}" if dataset else tensor.path


# --- reading --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """One line of a result file of ours or the vendor's, any release. Numbers that are not there are None."""

    index: int
    op_type: str
    npu_names: str
    golden_names: str
    tensor_index: str
    cosine: float | None
    max_absolute_error: float | None = None
    relative_euclidean_distance: float | None = None
    reason: str = ""
    status: str = ""
    pass_name: str = ""
    original_ops: str = ""
    mismatches: int = 0
    #: The tensor is a single number, of which a cosine says nothing.
    is_scalar: bool = False
    #: Largest finite |value| of the benchmark tensor.
    golden_size: float | None = None
    golden_tensor: str = ""
    shape: tuple[int, ...] | None = None
    max_error_index: tuple[int, ...] | None = None
    npu_dtype: str = ""
    golden_dtype: str = ""
    #: The op's id in the graph, where ops were selected by it.
    sequence: int | None = None
    #: Whether a float16 tensor reaches the type's limit, where that was looked at.
    overflow: bool | None = None
    #: The user's own metrics by column; None where there is no result.
    custom: dict[str, float | str | None] = field(default_factory=dict)
    #: How far this tensor is off in two runs of the same script, where a noise floor was given and has it.
    noise: float | None = None
    line: int = 0
    cells: dict[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def op_name(self) -> str:
        """The op of the tensor, or the NPU names of a row without one."""
        return self.tensor_index.rsplit(":", 2)[0] if self.tensor_index.count(":") >= 2 else self.npu_names

    @property
    def slot(self) -> str:
        """`input:0` or `output:0`, empty for a row of a whole op."""
        return ":".join(self.tensor_index.rsplit(":", 2)[1:]) if self.tensor_index.count(":") >= 2 else ""


def _as_number(text: str) -> float | None:
    """A number cell: `NaN` is no result, `nan` is data."""
    text = text.strip()
    if not text or text == NO_RESULT or text == "*":
        return None
    return float(text)


def _as_count(text: str) -> int | None:
    return int(text) if text and text != NO_RESULT else None


def _as_indices(text: str) -> tuple[int, ...] | None:
    """A cell like `[8,28]`."""
    if not re.fullmatch(r"\[(\d+(,\s*\d+)*)?\]", text, re.ASCII):
        return None
    return tuple(int(part) for part in text[1:-1].split(",") if part)


def _size_of(low: float | None, high: float | None) -> float | None:
    if low is None or high is None or isnan(low) or isnan(high):
        return None
    return max(abs(low), abs(high))


def _known(text: str) -> str:
    return "" if text == NO_RESULT else text


def _untext(text: str) -> str:
    return text[1:] if text.startswith("'") and text.lstrip("'").startswith(_FORMULA_START) else text


_NO_RESULT_HINT = "name a result_*.csv that vc, ac -c or msaccucmp wrote"


def read_result(path: str) -> list[ResultRow]:
    """The rows of a result CSV, columns found by header name (current, `NPUDump`, and oldest, `LeftOp`).

    FormatError names the file and line of what is no result file.
    """
    rows: list[ResultRow] = []
    with _csv_lines(path) as (header, lines):
        custom = _custom_columns(header)
        groups: dict[tuple[str, str], str] = {}
        for line, values in lines:
            try:
                cell = dict(zip(header, values, strict=False))
                _complete_names(cell, groups)
                rows.append(_result_row(cell, line, custom))
            except ValueError as error:
                raise FormatError(f"{path}: line {line} cannot be read: {error}", _NO_RESULT_HINT) from error
    return rows


def _complete_names(cell: dict[str, str], groups: dict[tuple[str, str], str]) -> None:
    """Names that the first row of a group has in full, also where a later one has only the first few."""
    for column in _NAME_COLUMNS & cell.keys():
        names = cell[column]
        if "," in names:
            known = groups.setdefault((cell.get("Index", ""), column), names)
            # Equal texts become one: hundreds of rows may name hundreds of ops.
            cell[column] = known if names in (known, first_names(known)) else names


def read_output_cosines(path: str) -> dict[str, float]:
    """Op name → the lowest cosine of its outputs in a result file, NaN lowest of all; quicker than all rows."""
    lowest: dict[str, float] = {}
    with _csv_lines(path) as (header, lines):
        cosine_at = header.index(_COSINE if _COSINE in header else _OWN_COSINE)
        is_h5 = "NPUDumpPath" in header
        column = "NPUDumpPath" if is_h5 else "TensorIndex"
        name_at = header.index(column) if column in header else len(header)
        for line, values in lines:
            if max(cosine_at, name_at) >= len(values):
                continue
            where = _untext(values[name_at])
            name, is_output, _ = where.partition("/output/") if is_h5 else where.rpartition(":output:")
            try:
                cosine = _as_number(values[cosine_at]) if is_output else None
            except ValueError as error:
                raise FormatError(f"{path}: line {line} cannot be read: {error}", _NO_RESULT_HINT) from error
            if cosine is not None:
                known = lowest.get(name, cosine)
                lowest[name] = known if isnan(known) or known <= cosine else cosine
    return lowest


@contextmanager
def _csv_lines(path: str) -> Iterator[tuple[list[str], Iterator[tuple[int, list[str]]]]]:
    """The header of a result file, its columns under names of their own, and its lines with their numbers."""
    usual_limit = csv.field_size_limit(_MAX_CELL)  # of the whole process, so it is put back
    try:
        if os.path.isdir(path):
            raise IsADirectoryError
        with open(path, encoding="utf-8-sig", errors="backslashreplace", newline="") as file:
            reader = csv.reader(file)
            header = _unique(next(reader, []))
            column = _absent_column(header)
            if column:
                raise FormatError(
                    f"{path}: no comparison result: the first line has no {column} column", _NO_RESULT_HINT
                )
            yield header, ((reader.line_num, values) for values in reader if values)
    except OSError as error:
        raise user_error(path, error) from error
    except csv.Error as error:
        raise FormatError(f"{path}: no valid CSV: {error}", _NO_RESULT_HINT) from error
    finally:
        csv.field_size_limit(usual_limit)


def _absent_column(header: Sequence[str]) -> str:
    """The column without which a file is no result, empty if none is missing."""
    for names in ((_COSINE, _OWN_COSINE), ("Index",), ("NPUDump", "LeftOp")):
        if not set(names) & set(header):
            return names[0]
    return ""


def _custom_columns(names: Sequence[str]) -> list[str]:
    """The columns of the user's own metrics: those behind the shape that are not known."""
    start = names.index("Shape") + 1 if "Shape" in names else len(names)
    stop = names.index("CompareFailReason") if "CompareFailReason" in names else len(names)
    return [name for name in names[start:stop] if name not in METRIC_COLUMNS and name != "OverFlow"]


def _custom_value(text: str) -> float | str | None:
    text = text.strip()
    try:
        return _as_number(text)
    except ValueError:
        return _untext(text)


def _cosine_cell(cell: Mapping[str, str]) -> str:
    return cell.get(_COSINE, cell.get(_OWN_COSINE, ""))


def _unique(header: Sequence[str]) -> list[str]:
    """The columns under names of their own: of two DataType, or Address, the second is the benchmark's."""
    first = {name: position for position, name in reversed(list(enumerate(header)))}
    return [name if first[name] == position else f"GroundTruth{name}" for position, name in enumerate(header)]


def _result_row(cell: dict[str, str], line: int, custom: Sequence[str]) -> ResultRow:
    def text(*names: str) -> str:
        return next((_untext(cell[name]) for name in names if name in cell), "")

    if not {_COSINE, _OWN_COSINE} & set(cell):
        raise ValueError(f"it ends before the {_COSINE} column")
    tensor_index, reason = text("TensorIndex"), text("CompareFailReason")
    npu_names, golden_names = text("NPUDump", "LeftOp"), text("GroundTruth", "RightOp")
    op_type = text("OpType")
    if "NPUDumpPath" in cell:  # of PyTorch dumps
        op_type, npu_names, golden_names, tensor_index = _h5_names(cell["Index"], text)
    return ResultRow(
        index=int(cell["Index"]),
        op_type=op_type,
        npu_names=npu_names,
        golden_names=golden_names,
        tensor_index=_known(tensor_index),
        cosine=_as_number(_cosine_cell(cell)),
        max_absolute_error=_as_number(cell.get("MaxAbsoluteError", "")),
        relative_euclidean_distance=_as_number(cell.get("RelativeEuclideanDistance", "")),
        reason=reason,
        status=text("Status"),
        pass_name=text("PassName"),
        original_ops=text("OriginalOps"),
        mismatches=int(cell.get("NonFiniteMismatches") or 0),
        is_scalar=_SCALAR_NOTE in reason,
        golden_size=_size_of(_as_number(cell.get("GroundTruthMin", "")), _as_number(cell.get("GroundTruthMax", ""))),
        golden_tensor=text("GroundTruthTensor"),
        shape=_as_indices(cell.get("Shape", "")),
        max_error_index=_as_indices(cell.get("MaxErrorIndex", "")),
        npu_dtype=_known(cell.get("DataType", "")),
        golden_dtype=_known(cell.get("GroundTruthDataType", "")),
        sequence=_as_count(cell.get("OpSequence", "")),
        overflow={"YES": True, "NO": False}.get(cell.get("OverFlow", "")),
        custom={name: _custom_value(cell.get(name, "")) for name in custom},
        line=line,
        cells=cell,
    )


def _h5_names(index: str, text: Callable[..., str]) -> tuple[str, str, str, str]:
    """Op type, the ops of both sides, and the tensor of a row about PyTorch dumps; it is empty of a row about an op."""
    op_type, npu, golden = text("NPUDump"), text("NPUDumpPath"), text("GroundTruthPath")
    npu_parts, golden_parts = npu.split("/", 4), golden.split("/", 4)
    golden_op = "*" if golden == NO_RESULT else "/".join(golden_parts[:3])
    if op_type == NO_RESULT:
        return golden_op.split("/")[1] if golden_op.count("/") > 1 else "", "*", golden_op, ""
    # The vendor's index is the op's number in the dump, also where the path is NaN.
    npu_op = f"/{op_type}/{index}" if npu == NO_RESULT else "/".join(npu_parts[:3])
    parts = golden_parts if npu == NO_RESULT else npu_parts
    tensor = f"{npu_op}:{parts[3]}:{parts[4].replace(':', '_')}" if len(parts) == 5 else ""
    return op_type, npu_op, golden_op, tensor


def row_of(row: Comparison, choice: ColumnChoice | None = None) -> ResultRow:
    """A fresh comparison as its line in the result file would be read back, without rounding."""
    metrics: Metrics | None = row.metrics
    custom = choice.custom if choice is not None else ()
    return ResultRow(
        index=row.pair.index,
        op_type=row.pair.op_type,
        npu_names=row.pair.npu_names,
        golden_names=row.pair.golden_names,
        tensor_index=row.pair.tensor_index,
        cosine=None if metrics is None else metrics.cosine,
        max_absolute_error=None if metrics is None else metrics.max_absolute_error,
        relative_euclidean_distance=None if metrics is None else metrics.relative_euclidean_distance,
        reason=row.note,
        status=str(row.pair.status),
        pass_name=",".join(row.pair.pass_names),
        original_ops=",".join(row.pair.original_names),
        mismatches=0 if metrics is None else metrics.non_finite_mismatches,
        is_scalar=metrics is not None and metrics.is_scalar,
        golden_size=None if row.golden is None else _size_of(row.golden.minimum, row.golden.maximum),
        golden_tensor=row.pair.golden_tensor,
        shape=row.pair.shape,
        max_error_index=None if metrics is None else metrics.max_error_index,
        npu_dtype="" if metrics is None else _type_cell(row.pair.npu),
        golden_dtype="" if metrics is None else _type_cell(row.pair.golden),
        sequence=row.pair.sequence,
        overflow=row.overflow,
        custom=dict(zip(custom, row.custom or (None,) * len(custom), strict=True)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowNumbers:
    """The fields of `Metrics` and of both sides' `Summary` by name; None where the file has none."""

    metrics: dict[str, object] | None
    npu: dict[str, object] | None
    golden: dict[str, object] | None


def numbers_of(row: Comparison, choice: ColumnChoice | None = None) -> RowNumbers:
    """The numbers of a fresh comparison; metrics that were not asked for are None, as they are when it is read."""
    metrics, npu, golden = (None if part is None else asdict(part) for part in (row.metrics, row.npu, row.golden))
    if metrics is not None and choice is not None:
        for name, column in _METRIC_FIELDS.items():
            if column in METRIC_COLUMNS and column not in choice.metrics and column != _COSINE:
                metrics[name] = None
    return RowNumbers(metrics=metrics, npu=npu, golden=golden)


def read_numbers(row: ResultRow) -> RowNumbers:
    """The numbers of a row that was read, as far as the file has them. FormatError names a cell that holds none."""
    npu, golden = _read_summary(row, "NPU"), _read_summary(row, "GroundTruth")
    means = re.fullmatch(r"\((.*);(.*)\),\((.*);(.*)\)", row.cells.get("StandardDeviation", ""))
    if means is not None:  # all that the vendor's files tell of the two sides
        places = ((npu, "mean"), (npu, "std"), (golden, "mean"), (golden, "std"))
        for (side, name), text in zip(places, means.groups(), strict=True):
            if side[name] is None:
                side[name] = _cell_number(row, "StandardDeviation", text)
    return RowNumbers(metrics=_read_metrics(row, npu, golden), npu=_none_if_empty(npu), golden=_none_if_empty(golden))


def _cell_number(row: ResultRow, column: str, text: str) -> float | None:
    try:
        return _as_number(text)
    except ValueError as error:
        raise FormatError(
            f"line {row.line} of the result file: {column} is no number: {text[:40]!r}", "run `vc` or `ac -c` again"
        ) from error


def _read_summary(row: ResultRow, side: str) -> dict[str, object]:
    values: dict[str, object] = dict.fromkeys(one.name for one in fields(Summary))
    for name, column in _SUMMARY_FIELDS.items():
        value = _cell_number(row, side + column, row.cells.get(side + column, ""))
        values[name] = int(value) if value is not None and name.endswith("_count") else value
    return values


def _read_metrics(row: ResultRow, npu: dict[str, object], golden: dict[str, object]) -> dict[str, object] | None:
    values: dict[str, object] = dict.fromkeys(one.name for one in fields(Metrics))
    for name, column in _METRIC_FIELDS.items():
        text = _cosine_cell(row.cells) if column == _COSINE else row.cells.get(column, "")
        values[name] = _cell_number(row, column, text)
    if _none_if_empty(values) is None:
        return None
    zero_scalar = row.is_scalar and all(side[name] == 0 for side in (npu, golden) for name in ("minimum", "maximum"))
    return values | {
        "max_error_index": row.max_error_index,
        "first_mismatch_index": row.max_error_index if row.mismatches else None,
        "non_finite_mismatches": row.mismatches if "NonFiniteMismatches" in row.cells else None,
        "is_scalar": row.is_scalar,
        "both_zero": zero_scalar or _cosine_cell(row.cells) == "1.0",
    }


def _none_if_empty(values: dict[str, object]) -> dict[str, object] | None:
    return None if all(value is None for value in values.values()) else values


def find_results(folder: str) -> list[str]:
    """The result files of the newest comparison below `folder` (`vector_compare`), by name."""
    if os.path.isfile(folder):
        return [folder]
    if not os.path.exists(folder):
        raise DataNotFoundError(f"{folder}: no such file or folder", "`vcs` without -f reads the newest result")
    found: dict[str, list[str]] = {}
    for below, _, names in os.walk(folder):
        results = [name for name in names if _is_result(name)]
        if results:
            found[below] = sorted(results)
    if not found:
        raise DataNotFoundError(f"{folder}: no comparison result below this folder", "run `vc` or `ac -c` first")
    newest = max(found, key=lambda below: (max(_result_time(name) for name in found[below]), below))
    return [os.path.join(newest, name) for name in found[newest]]


def _is_result(name: str) -> bool:
    """Not so the tables of the worst errors of one op, whose name may be anything."""
    return name.endswith(".csv") and "result_" in name and not name.startswith(".") and not name.endswith("_topn.csv")


def _result_time(name: str) -> str:
    return name.rsplit("result_", 1)[-1]
