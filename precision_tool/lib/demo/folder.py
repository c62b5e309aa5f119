"""The folder that a demo owns: it is moved into its place whole, and replaced only if it is unchanged."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from precision_tool.lib.errors import OutputError, PrecisionToolError, UsageError
from precision_tool.lib.io.files import read_text

MARKER = ".precision_tool_demo.json"
TRUTH = "truth.json"
WORK = ".precision_tool_demo.tmp"
#: What a demo owns below its folder. The truth comes last: where it is, the demo is complete.
_PARTS = ("npu/debug_0", "npu/debug_1", "tf/dump", "overflow/dump", "fusion/fusion_result.json", TRUTH)


def check_folder(root: Path) -> None:
    """Raise UsageError unless `root` is new, empty or just what an earlier demo wrote."""
    if not root.exists():
        return
    if not root.is_dir():
        raise UsageError(f"{root} is not a folder", "name a folder for the demo")
    hint = "choose a new or empty folder, or remove this one yourself"
    if {entry.name for entry in root.iterdir()} <= {WORK}:
        return
    marker = root / MARKER
    if not marker.is_file():
        raise UsageError(f"{root} is not empty and holds no earlier demo", hint)
    try:
        recorded = json.loads(read_text(str(marker)))["files"]
    except (PrecisionToolError, ValueError, KeyError, TypeError, RecursionError):
        recorded = None
    known = dict.fromkeys(_PARTS, 0) | recorded if isinstance(recorded, dict) else None
    if known != _file_counts(root):
        raise UsageError(f"{root} holds an earlier demo, but its files were changed since", hint)


def _file_counts(root: Path) -> dict[str, int]:
    """Number of files in each part of a demo."""
    counts = {}
    for part in _PARTS:
        path = root / part
        counts[part] = sum(file.is_file() for file in path.rglob("*")) if path.is_dir() else int(path.exists())
    return counts


def move_in(work: Path, root: Path) -> None:
    """Put the finished parts in their places; what an earlier demo had there goes away with the work folder."""
    (work / MARKER).write_text(json.dumps({"files": _file_counts(work)}) + "\n", encoding="utf-8")
    (root / TRUTH).unlink(missing_ok=True)
    old = work / "old"
    for number, part in enumerate((MARKER, *_PARTS)):
        target = root / part
        if target.exists():
            old.mkdir(exist_ok=True)
            target.rename(old / str(number))
        if (work / part).exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            (work / part).rename(target)


def check_space(root: Path, needed: int) -> None:
    free = shutil.disk_usage(root).free
    if needed > free:
        raise OutputError(
            f"the demo needs {needed / 1e9:.1f} GB, {root} has {free / 1e9:.1f} GB left",
            "make room, choose another folder or a smaller demo",
        )


@contextmanager
def write_errors(root: Path) -> Iterator[None]:
    """Turn what the system says about the folder into the user's error."""
    try:
        yield
    except PrecisionToolError:
        raise
    except OSError as error:
        where = error.filename or root
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutputError(
                f"no space left to write the demo to {root}", "make room or choose another folder"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise OutputError(f"no permission to write {where}", "choose a folder you may write to") from error
        raise OutputError(f"cannot write {where}: {error.strerror or error}", "choose another folder") from error
