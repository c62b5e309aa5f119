"""Reports as files: made by the command line, and read back without its code."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import re
import zlib
from pathlib import Path
from typing import Any

from command_line import tool


def data_of(path: Path) -> dict[str, Any]:
    """The data that a report carries."""
    match = re.search(r'<script type="text/plain" id="data">([A-Za-z0-9+/=]*)</script>', path.read_text("utf-8"))
    assert match is not None

    def refuse(name: str) -> float:
        raise ValueError(f"{name} is no JSON")

    document: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(match[1])), parse_constant=refuse)
    for result in document["results"]:
        result["tensors"] = {name: plain(column) for name, column in result["tensors"].items()}
    return document


def plain(column: Any) -> Any:
    """The values of a column of a report: integers may be one text, and decimal numbers an integer and its places."""
    if isinstance(column, str):
        return [None if sign == "\ue000" else ord(sign) - 0x2800 for sign in column]
    if isinstance(column, list):
        return column
    values = [
        value if sign == "@" else float(f"{value}e{ord('@') - ord(sign)}")
        for value, sign in zip(plain(column["of"]), column["places"], strict=True)
    ]
    for at, value in column["more"]:
        values[at] = value
    return values


def result_of(path: Path) -> dict[str, Any]:
    """The one result of a report."""
    (result,) = data_of(path)["results"]
    assert isinstance(result, dict)
    return result


def names_of(result: dict[str, Any]) -> list[str]:
    """The names of the ops."""
    return [result["texts"][at] for at in result["ops"]["name"]]


def hash_of(text: str) -> str:
    """What a Content-Security-Policy knows a text by."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def compared(folder: Path, *options: str) -> Path:
    """`ac -c --report` on the data in a folder; the report."""
    tool("ac", "-c", *options, "--report", "report.html", cwd=folder, code=None)
    return folder / "report.html"


def shown_without(column: str, folder: Path) -> Path:
    """The report on the result below `folder` as an older release wrote it, without a column."""
    (path,) = (folder / "precision_data" / "temp" / "vector_compare").glob("*/result_*.csv")
    with path.open(encoding="utf-8", newline="") as file:
        rows = [*csv.reader(file)]
    left_out = rows[0].index(column)
    old = folder / "result_20260101000000.csv"
    with old.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([*row[:left_out], *row[left_out + 1 :]] for row in rows)
    tool("report", old, "-o", "old.html", cwd=folder)
    return folder / "old.html"
