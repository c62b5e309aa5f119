"""Where result files are, and which of them are the newest."""

from __future__ import annotations

import posixpath
from pathlib import Path

from precision_tool.lib.errors import DataNotFoundError, PrecisionToolError
from precision_tool.lib.io.files import exists, is_folder, open_text
from precision_tool.lib.sources.walk import list_folders
from precision_tool.lib.workspace import Workspace, check_data, typed_path

#: Characters that a header has at most; one of many custom metrics may be longer, its Address columns stand before.
_MAX_HEADER = 4096

#: What the names of results that do not stand for a whole run begin with: they are not taken for the newest result.
PARTIAL_PREFIX, OPS_PREFIX, PART_PREFIX = "partial_", "single_op_", "part_"
#: The toolkit's result beside ours, of what ours could not read.
TOOLKIT_PREFIX = "toolkit_"
#: What `fusion blame` compared to judge fusion passes.
BLAME_PREFIX = "blame_"
#: The result of a run that is compared beside the one under test: its number follows.
RUN_PREFIX = "debug_"
_SET_APART = (PARTIAL_PREFIX, OPS_PREFIX, PART_PREFIX, TOOLKIT_PREFIX, BLAME_PREFIX, RUN_PREFIX)
#: What is said of such a result when it is read.
_PARTS = {
    PARTIAL_PREFIX: "only a part: the comparison was stopped; the rows that it did not reach say so",
    OPS_PREFIX: "only a part: the ops that were asked for with -op",
    PART_PREFIX: "only a part: the ops, or the first elements of each tensor, that were asked for",
}


def find_results(folder: str) -> list[str]:
    """The result files of the newest comparison below `folder` (`vector_compare`), by name."""
    if not is_folder(folder):
        if not exists(folder):
            raise DataNotFoundError.of(
                folder,
                "no such file or folder, here or in temp/vector_compare",
                "without a name the newest result is read",
            )
        return [folder]
    found: dict[str, list[str]] = {}
    for below, names in list_folders(folder, unread=[]):
        results = [name for name in names if _is_result(name)]
        if results:
            found[below] = sorted(results)
    if not found:
        raise DataNotFoundError.of(folder, "no comparison result below this folder", "run `vc` or `ac -c` first")
    newest = max(found, key=lambda below: (max(_result_time(name) for name in found[below]), below))
    return [posixpath.join(newest, name) for name in found[newest]]


def named_result(space: Workspace, name: str) -> str:
    """The file or folder of this name: here, else below the `vector_compare` folders, of the newest comparison."""
    if posixpath.lexists(name) or posixpath.isabs(name) or ".." in Path(name).parts or "\0" in name:
        return name
    folders = space.compare_dirs()
    endings = ("", ".csv")
    found = (str(place / (name + ending)) for one in folders for place in (one, one.parent) for ending in endings)
    return next((path for path in found if exists(path)), name)


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


def newest_results(space: Workspace, *, tells: bool = False) -> list[str]:
    """The complete result files of the newest comparison with the benchmark; without one, of two NPU runs.

    `tells`: that a newer one is left out is a note.
    """
    check_data(space.root)
    folders = space.compare_dirs()
    if not folders:
        is_folder(space.root / "temp")  # says so where that cannot be told
        raise DataNotFoundError(
            f"{space.root}: no comparison result yet",
            "run `vc` or `ac -c` first, or name a file with -f",
        )
    newest = next((found for folder in folders if (found := results_in(folder))), [])
    benchmarked = (found for folder in folders if (found := results_in(folder)) and not is_of_two_runs(found[0]))
    paths = next(benchmarked, newest)
    if tells and paths != newest:
        left_out = typed_path(posixpath.dirname(newest[0]))
        space.notes.append(f"a newer result compares two NPU runs: `vcs -f {left_out}` shows it")
    if not paths:
        raise DataNotFoundError(
            f"{folders[0]}: no complete result file",
            "run `vc` or `ac -c` again; `vcs -f` shows a folder or file with the result of a part",
        )
    return paths


def results_in(folder: Path) -> list[str]:
    try:
        return [path for path in find_results(str(folder)) if not posixpath.basename(path).startswith(_SET_APART)]
    except DataNotFoundError:
        return []


def part_of(path: str) -> str:
    """What is missing of a result by its name, empty for a whole one."""
    name = posixpath.basename(path)
    return next((words for prefix, words in _PARTS.items() if name.startswith(prefix)), "")
