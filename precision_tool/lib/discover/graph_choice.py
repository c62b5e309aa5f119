"""The graph file that a user chose for a data folder, kept in a small file among the results."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from precision_tool.lib.errors import OutputError, PrecisionToolError
from precision_tool.lib.formats.files import LocalFile, could_be_path, temporary_file
from precision_tool.lib.workspace import Workspace

FILE_NAME = "graph_choice.json"
_MAX_SIZE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The path of the graph file; None: the one that fits is taken."""

    path: str | None


def read(folders: Iterable[Path], root: Path) -> Choice:
    """The choice remembered in the first of `folders` that has one; what cannot be understood is none.

    A path that is not absolute is one below the data folder `root`.
    """
    for folder in folders:
        try:
            with LocalFile(str(folder / FILE_NAME)) as file:
                document = json.loads(file.read_at(0, min(file.size, _MAX_SIZE)))
        except (PrecisionToolError, ValueError, RecursionError):
            continue
        path = document.get("graph") if isinstance(document, dict) else None
        if isinstance(path, str) and path and could_be_path(path):
            return Choice(path=os.path.normpath(os.path.join(os.path.abspath(root), path)))
    return Choice(path=None)


def write(choice: Choice, workspace: Workspace) -> None:
    """Remembers the choice; OutputError if that cannot be."""
    if choice.path is None:
        for folder in workspace.result_dirs():
            _remove(folder / FILE_NAME)
        return
    root, path = os.path.abspath(workspace.root), choice.path
    if os.path.commonpath([root, path]) == root:
        path = os.path.relpath(path, root)  # holds wherever the data folder is moved to
    folder = workspace.output_dir()
    name = ""
    try:
        handle, name = temporary_file(str(folder))
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"graph": path}, file)
        os.replace(name, folder / FILE_NAME)
    except BaseException as error:
        if name:
            with contextlib.suppress(OSError):
                os.unlink(name)
        if not isinstance(error, (OSError, UnicodeEncodeError)):
            raise
        raise OutputError(
            f"{folder / FILE_NAME}: the choice of the graph cannot be remembered ({error})",
            "name the graph with -g each time, or another folder with --work",
        ) from error


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be removed ({error.strerror}), so it still holds the choice", "remove it yourself"
        ) from error
