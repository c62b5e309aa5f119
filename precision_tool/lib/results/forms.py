"""How the cells of a result file are written and read, by the kind of their values (FORMATS.md §5b).

Numbers are `%.6f`; `NaN` stands for no result, `nan` and `inf` for what the data gave.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import Any, Literal

from precision_tool.lib.errors import shown
from precision_tool.lib.model.table import joined

NO_RESULT = "NaN"
#: A cell that a spreadsheet would take for a formula starts with one of these.
_FORMULA_START = ("=", "+", "-", "@", "%", "\t", "\r")
_ESCAPED_START = frozenset({*_FORMULA_START, "'"})


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


TEXT = Form(text_cell, read_text, "")
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
