"""The graph file that a user chose for a data folder, kept in a small file among the results."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from precision_tool.lib.errors import OutputError
from precision_tool.lib.io.files import atomic_text, could_be_path, read_small_json
from precision_tool.lib.workspace import Workspace, path_below

FILE_NAME = "graph_choice.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The path of the graph file; None: the one that fits is taken."""

    path: str | None


def read(folders: Iterable[Path], root: Path) -> Choice:
    """The choice remembered in the first of `folders` that has one; what cannot be understood is none.

    A path that is not absolute is one below the data folder `root`.
    """
    for folder in folders:
        document = read_small_json(str(folder / FILE_NAME))
        path = document.get("graph") if isinstance(document, dict) else None
        if isinstance(path, str) and path and could_be_path(path):
            return Choice(path=posixpath.normpath(posixpath.join(posixpath.abspath(root), path)))
    return Choice(path=None)


def write(choice: Choice, workspace: Workspace) -> None:
    """Remembers the choice; OutputError if that cannot be."""
    if choice.path is None:
        for folder in workspace.result_dirs():
            _remove(folder / FILE_NAME)
        return
    path = path_below(choice.path, posixpath.abspath(workspace.root))  # holds wherever the data folder is moved to
    file_path = workspace.output_dir() / FILE_NAME
    try:
        with atomic_text(str(file_path)) as file:
            json.dump({"graph": path}, file)
    except OutputError as error:
        raise OutputError.of(
            file_path,
            f"the choice of the graph cannot be remembered ({error.__cause__})",
            "name the graph with -g each time, or another folder with --work",
        ) from error


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError.of(
            path, f"cannot be removed ({error.strerror}), so it still holds the choice", "remove it yourself"
        ) from error
