"""What a data folder has beside the dump of a leaf: the same step of further NPU runs, and overflow status files."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath

from precision_tool.lib.errors import DataNotFoundError, PrecisionToolError
from precision_tool.lib.io.cache import folder_fingerprint
from precision_tool.lib.io.files import is_folder
from precision_tool.lib.sources import names, walk
from precision_tool.lib.sources.overflow_files import find_status_files
from precision_tool.lib.study.leaves import StudyLeaf
from precision_tool.lib.workspace import Workspace, lies_in, open_workspace

#: Of further runs so many are looked at.
_RUNS = 2
#: Which step of which device a folder is of, and what server or rank the folders above it tell.
_Place = tuple[tuple[str, ...], str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherRun:
    """The dump of the same step and device in `npu/debug_{number}`; one folder a model."""

    number: int
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What there is beside a leaf, which is of run `number` (None: of none). `fingerprint` changes when it does."""

    number: int | None = None
    runs: tuple[OtherRun, ...] = ()
    statuses: tuple[str, ...] = ()
    fingerprint: str = ""


#: Of a leaf that has nothing beside it.
NOTHING = Beside()


def find_beside(leaves: Sequence[StudyLeaf], notes: list[str]) -> dict[str, Beside]:
    """What is beside each leaf, by its path; those without anything are left out. What cannot be listed is a note."""
    by_data: dict[str, list[StudyLeaf]] = {}
    for leaf in leaves:
        if leaf.data:
            by_data.setdefault(leaf.data, []).append(leaf)
    found: dict[str, Beside] = {}
    for data, of_data in by_data.items():
        try:
            found |= _beside(open_workspace(data), of_data)
        except PrecisionToolError as error:
            notes.append(f"{error.message}: verdicts do without the other runs and status files of {data}")
    return found


def _beside(space: Workspace, leaves: Sequence[StudyLeaf]) -> dict[str, Beside]:
    numbers = space.debug_numbers()
    dumps = {number: str(space.dump_dir(number)) for number in numbers}
    own = next((number for number in numbers if lies_in(leaves[0].path, dumps[number])), None)
    others = [number for number in numbers if number != own][:_RUNS] if own is not None else []
    runs = {number: _run(dumps[number]) for number in others}
    overflow = str(space.overflow_dump_dir)
    statuses = _statuses(overflow)
    found: dict[str, Beside] = {}
    for leaf in leaves:
        place = _place(leaf.path, dumps[own]) if own is not None else None
        digest = hashlib.sha256()
        at_place = []
        for number, folders in runs.items():
            paths = []
            for path, _, fingerprint in folders.get(place, ()) if place is not None else ():
                paths.append(path)
                digest.update(f"{path}\0{fingerprint}\0".encode("utf-8", "surrogateescape"))
            if paths:
                at_place.append(OtherRun(number=number, paths=tuple(paths)))
        told = _told(leaf, statuses, is_alone=len(leaves) == 1)
        for folder in sorted({posixpath.dirname(path) for path in told}):
            of_folder = [posixpath.basename(path) for path in told if posixpath.dirname(path) == folder]
            digest.update(folder_fingerprint(folder, of_folder)[1].encode())
        if at_place or told:
            found[leaf.path] = Beside(number=own, runs=tuple(at_place), statuses=told, fingerprint=digest.hexdigest())
    return found


def _run(dump: str) -> Mapping[_Place, list[tuple[str, str, str]]]:
    """The leaves of a run by place: path, time and fingerprint; of what was dumped again the newest."""
    found: dict[_Place, list[tuple[str, str, str]]] = {}
    if not is_folder(dump):
        return found
    with suppress(DataNotFoundError):
        for folder, file_names in walk.list_folders(dump):
            files = [name for name in file_names if names.is_dump_file(name)]
            if not files:
                continue
            time = names.parse_leaf_path(PurePath(folder).parts).time
            found.setdefault(_place(folder, dump), []).append((folder, time, folder_fingerprint(folder, files)[1]))
    newest = {place: max(time for _, time, _ in of_place) for place, of_place in found.items()}
    return {place: [one for one in of_place if one[1] == newest[place]] for place, of_place in found.items()}


def _place(folder: str, dump: str) -> _Place:
    """Where a folder of dump files stands below the dump folder, but for the time and the model's name and number."""
    relative = PurePath(posixpath.relpath(folder, dump)).parts
    where = names.parse_leaf_path(PurePath(folder).parts)
    if not where.step:
        return relative, "", ""
    depth = 3 + bool(where.time) + bool(where.model_name)
    return relative[:-depth], where.device, where.step


def _statuses(folder: str) -> Sequence[str]:
    return [file.path for file in find_status_files(folder) if not file.decoded]


def _told(leaf: StudyLeaf, statuses: Iterable[str], *, is_alone: bool) -> tuple[str, ...]:
    """The status files that are of a leaf: of the overflow detection's dump, else those among its own files."""
    where = names.parse_leaf_path(PurePath(leaf.path).parts)
    found = []
    for path in statuses:
        one = names.parse_leaf_path(PurePath(posixpath.dirname(path)).parts)
        is_same = (one.device, one.step) == (where.device, where.step)
        if is_same if one.step and where.step else is_alone:
            found.append(path)
    return tuple(found or (posixpath.join(leaf.path, name) for name in leaf.statuses))
