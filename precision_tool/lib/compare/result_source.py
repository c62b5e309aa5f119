"""What a result file is of: the dump, the benchmark and the graph, in a small JSON file beside it.

The file is read as if somebody had made it up: what is odd about it makes it worthless and no more.
"""

from __future__ import annotations

import json
import posixpath
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from precision_tool.lib.errors import OutputError
from precision_tool.lib.io.files import atomic_text, could_be_path, exists, read_small_json, signature_of
from precision_tool.lib.workspace import lies_in

if TYPE_CHECKING:  # reading, all that most commands do, is quicker without
    from precision_tool.lib.compare.folders import LeafResult

#: To be raised with every change of what is kept.
_VERSION = 1
#: Folders from the one that the training script was told down to one step.
_MAX_LEVELS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultSource:
    """Absolute paths of what was compared: the folder of the dump files, the other side, and the graph or ""."""

    npu: str
    golden: str
    graph: str = ""


def source_path(result: str) -> str:
    """Where the source of a result file is kept."""
    return f"{posixpath.splitext(result)[0]}.json"


def source_of(result: LeafResult) -> ResultSource:
    """The source of a fresh result."""
    graph = posixpath.abspath(result.graph.file.path) if result.graph is not None else ""
    return ResultSource(
        npu=posixpath.abspath(result.leaf.path), golden=posixpath.abspath(result.golden_root), graph=graph
    )


def write_source(result: str, source: ResultSource, root: str) -> None:
    """Keeps the source of a result file; where that cannot be done the result does without.

    Of what lies in the data folder `root`, as the result does, the place is kept too as seen from the result: it holds
    wherever the data folder is moved to.
    """
    folder = posixpath.dirname(posixpath.abspath(result))
    places = {name: kept_place(getattr(source, name), folder, root) for name in ResultSource.__slots__}
    document = {"version": _VERSION, **places}
    with suppress(OutputError), atomic_text(source_path(result)) as file:
        file.write(json.dumps(document, indent=1) + "\n")


def kept_place(path: str, folder: str, root: str) -> dict[str, str]:
    """How a file in `folder` keeps an absolute path: within the data folder `root` also as seen from there."""
    root = posixpath.abspath(root)
    is_inside = path and all(lies_in(one, root) for one in (path, folder))
    return {"path": path, "from_here": posixpath.relpath(path, folder) if is_inside else ""}


def read_source(result: str) -> ResultSource | None:
    """The source of a result file; None if nothing, or nothing sound, is known of it."""
    document = read_small_json(source_path(result))
    if not isinstance(document, dict) or document.get("version") != _VERSION:
        return None
    folder = posixpath.dirname(posixpath.abspath(result))
    npu, golden, graph = (placed(document.get(name), folder) for name in ("npu", "golden", "graph"))
    if not npu or not golden or graph is None:
        return None
    return ResultSource(npu=npu, golden=golden, graph=graph)


def newer_than(result: str, source: ResultSource) -> list[str]:
    """What of the source of a result file changed after it was written, by the times of folders alone."""
    folders = [source.npu]
    for folder in list(PurePath(source.npu).parents)[:_MAX_LEVELS]:
        if PurePath(folders[-1]).name == "dump":
            break
        folders.append(str(folder))
    else:
        folders = folders[:1]  # a tree of another form: what lies above the files may be anything
    sides = ((folders[-1], folders), (source.golden, [source.golden]), (source.graph, [source.graph]))
    written = _modified(result)
    if not written:
        return []
    return [side for side, paths in sides if any(_modified(path) > written for path in paths)]


def _modified(path: str) -> int:
    """When a folder or file was changed (ns); 0 for what is not there."""
    signature = signature_of(path) if path else None
    return 0 if signature is None else signature[1]


def placed(place: object, folder: str) -> str | None:
    """The path of a place as seen from `folder`, if it is there, else as it was; None for what is no place."""
    if not isinstance(place, dict):
        return None
    path, from_here = place.get("path"), place.get("from_here")
    if not isinstance(path, str) or not isinstance(from_here, str) or not could_be_path(path + from_here):
        return None
    moved = posixpath.normpath(posixpath.join(folder, from_here)) if from_here else ""
    return moved if moved and exists(moved) else path
