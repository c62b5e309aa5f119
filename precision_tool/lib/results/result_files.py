"""Where result files are, and which of them are the newest."""

from __future__ import annotations

import os

from precision_tool.lib.errors import DataNotFoundError, PrecisionToolError
from precision_tool.lib.user_files import is_folder, open_text

#: Characters that a header has at most; one of many custom metrics may be longer, its Address columns stand before.
_MAX_HEADER = 4096


def find_results(folder: str) -> list[str]:
    """The result files of the newest comparison below `folder` (`vector_compare`), by name."""
    if not is_folder(folder):
        if not os.path.exists(folder):
            raise DataNotFoundError(f"{folder}: no such file or folder", "`vcs` without -f reads the newest result")
        return [folder]
    found: dict[str, list[str]] = {}
    for below, _, names in os.walk(folder):
        results = [name for name in names if _is_result(name)]
        if results:
            found[below] = sorted(results)
    if not found:
        raise DataNotFoundError(f"{folder}: no comparison result below this folder", "run `vc` or `ac -c` first")
    newest = max(found, key=lambda below: (max(_result_time(name) for name in found[below]), below))
    return [os.path.join(newest, name) for name in found[newest]]


def is_of_two_runs(path: str) -> bool:
    """Whether a result file compares two NPU runs: both sides have addresses then. False for what is no result file."""
    try:
        with open_text(path, "utf-8-sig", "backslashreplace") as file:
            return file.readline(_MAX_HEADER).rstrip("\r\n").split(",").count("Address") > 1
    except PrecisionToolError:
        return False  # whoever reads it says what is wrong


def _is_result(name: str) -> bool:
    """Not so the tables of the worst errors of one op, whose name may be anything."""
    return name.endswith(".csv") and "result_" in name and not name.startswith(".") and not name.endswith("_topn.csv")


def _result_time(name: str) -> str:
    return name.rsplit("result_", 1)[-1]
