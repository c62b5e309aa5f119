"""Statistics dumps: one CSV per op with max, min, mean and counts instead of the tensors (FORMATS.md §2)."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from itertools import chain, count
from typing import TypeVar

from precision_tool.lib.io import data_types
from precision_tool.lib.io.files import open_file
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError, shown
from precision_tool.lib.model.tensor import OpDump, TensorStatistics

#: Digits of a whole number of 64 bits, with its sign and some room.
_MAX_DIGITS = 24
_MAX_BYTES = 64 << 20
_REQUIRED = ("input/output", "index", "data type", "shape")
#: Columns without which a row says nothing for sure: a row that ends before them was cut off.
_DESCRIPTION = (*_REQUIRED, "data size", "format")
T = TypeVar("T")


def looks_like_statistics(head: bytes) -> bool:
    """True if the first bytes are the header line of a statistics CSV."""
    line = head.split(b"\n", 1)[0].lower()
    return all(name.encode("ascii") in line for name in _REQUIRED)


def _value(text: str, kind: Callable[[str], T]) -> T | None:
    text = text.strip()
    if not text or text.upper() in ("NA", "N/A"):
        return None
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{shown(text)} is no number") from None


def _shape(text: str) -> tuple[int, ...]:
    text = text.strip().strip("[]()")
    if not text or text.upper() == "NA":
        return ()
    shape = tuple(_whole(part) for part in text.lower().replace(",", "x").split("x") if part.strip())
    data_types.refuse_impossible(shape)
    return shape


def _whole(text: str) -> int:
    try:
        if len(text) <= _MAX_DIGITS:
            return int(text)
    except ValueError:
        pass
    raise ValueError(f"{shown(text)} is no whole number of 64 bits")


def _type_name(text: str) -> str:
    text = text.strip()
    data_type = data_types.BY_GE_NAME.get(text) or data_types.BY_GE_NAME.get(f"DT_{text.upper()}")
    return data_type.name if data_type else text.lower()


def read_statistics(path: str) -> OpDump:
    """The statistics of one op. Rows that cannot be read are named in `bad_slots`."""
    with open_file(path) as file:
        if file.size > _MAX_BYTES:
            raise FormatError.of(path, "io.statistics.too_large", size=file.size)
        text = file.read_at(0, file.size).decode("utf-8-sig", "backslashreplace")
    # Every writer ends its lines. What follows the last end is a line that was cut off, in its last cell at best.
    end = max(text.rfind("\n"), text.rfind("\r")) + 1
    rows = chain(
        csv.reader(io.StringIO(text[:end], newline="")), (row[:-1] for row in csv.reader(io.StringIO(text[end:])))
    )
    try:
        header = [name.strip().lower() for name in next(rows)]
    except (StopIteration, csv.Error):
        header = []
    missing = [name for name in _REQUIRED if name not in header]
    if missing:
        raise FormatError.of(path, "io.statistics.no_column", column=missing[0])
    column = {name: position for position, name in enumerate(header)}
    width = 1 + max(column.get(name, 0) for name in _DESCRIPTION)
    sides: dict[str, dict[int, TensorStatistics]] = {"input": {}, "output": {}}
    bad: list[tuple[str, Message]] = []
    for number, row in _numbered(rows, bad):
        if not any(cell.strip() for cell in row):
            continue

        def cell(name: str, row: list[str] = row) -> str:
            position = column.get(name, len(row))
            return row[position] if position < len(row) else ""

        side = cell("input/output").strip().lower()
        try:
            index = _whole(cell("index"))
            if side not in sides or not 0 <= index < 1 << 16:
                raise ValueError(f"slot {shown(cell('input/output'))}:{index}")
            if len(row) < width:
                raise ValueError("it is cut off")
            sides[side][index] = TensorStatistics(
                path=path,
                dtype=_type_name(cell("data type")),
                layout=cell("format").strip() or "ND",
                shape=_shape(cell("shape")),
                nbytes=_value(cell("data size"), _whole) or 0,
                maximum=_value(cell("max value"), float),
                minimum=_value(cell("min value"), float),
                mean=_value(cell("avg value"), float),
                count=_value(cell("count"), _whole),
                nan_count=_value(cell("nan count"), _whole),
                negative_inf_count=_value(cell("negative inf count"), _whole),
                positive_inf_count=_value(cell("positive inf count"), _whole),
                l2_norm=_value(cell("l2norm"), float),
            )
        except ValueError as error:
            slot = f"{side or 'row'}:{cell('index').strip()}"
            bad.append((slot, Message("row.io.statistics_line", line=number, reason=str(error))))
    return OpDump(
        path=path,
        inputs=_slots(sides["input"]),
        outputs=_slots(sides["output"]),
        bad_slots=tuple(bad),
    )


def _numbered(rows: Iterator[list[str]], bad: list[tuple[str, Message]]) -> Iterator[tuple[int, list[str]]]:
    """The rows behind the header with their line numbers; those that are no CSV are added to `bad`."""
    for number in count(2):
        try:
            yield number, next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            bad.append(("row", Message("row.io.statistics_line", line=number, reason=str(error))))


def _slots(by_index: dict[int, TensorStatistics]) -> tuple[TensorStatistics | None, ...]:
    return tuple(by_index.get(index) for index in range(max(by_index, default=-1) + 1))
