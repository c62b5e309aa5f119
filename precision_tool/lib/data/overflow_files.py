"""Where overflow status files lie, and the dumps of the ops they tell of."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass

from precision_tool.lib.data import dump_names as names
from precision_tool.lib.data.dump_tree import Stamps, find_run, is_status, list_folders
from precision_tool.lib.io.files import is_folder
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.model.run import DumpFile, DumpLeaf, DumpName

_DECODED = ".json"
#: Where, below a folder for results, decoded status files go.
DECODED_FOLDER = ("decode", "overflow_decode")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusFile:
    """A status file, as the device wrote it or decoded to JSON. `name` is what its own name says."""

    path: str
    name: DumpName
    decoded: bool = False

    @property
    def folder(self) -> str:
        """The folder it lies in."""
        return posixpath.dirname(self.path)


def find_status_files(root: str, stamps: Stamps | None = None) -> tuple[StatusFile, ...]:
    """Every status file below a folder, earliest first; () where there is no such folder.

    A file that was decoded beside itself is named once.
    """
    if not is_folder(root):
        return ()
    files: dict[tuple[str, DumpName], StatusFile] = {}
    for folder, file_names in list_folders(root, stamps):
        for file_name in file_names:
            parsed = parse_status_name(file_name)
            if parsed is None:
                continue
            name, decoded = parsed
            listed = files.get((folder, name))
            if listed is None or listed.decoded:
                path = posixpath.join(folder, file_name)
                files[folder, name] = StatusFile(path=path, name=name, decoded=decoded)
    return tuple(sorted(files.values(), key=lambda file: (file.name.timestamp, file.path)))


def parse_status_name(file_name: str) -> tuple[DumpName, bool] | None:
    """The parts of a status file's name and whether it was decoded; None if it is no such name."""
    decoded = file_name.endswith(_DECODED)
    if decoded:  # Opdebug.Node_OpDebug.….output.0.json
        file_name = file_name.removesuffix(_DECODED).rpartition(".output.")[0]
    parsed = names.parse_dump_name(file_name)
    if parsed is None or parsed[1] or not is_status(parsed[0]):
        return None
    return parsed[0], decoded


def leaves_below(folder: str) -> tuple[DumpLeaf, ...]:
    """The dumps of ops below a folder, newest time only; () if there are none, or they cannot be listed."""
    try:
        return find_run(folder).leaves
    except PrecisionToolError:
        return ()


def files_of_task(
    files: Iterable[DumpFile], stream: int, context: int | None = None, thread: int | None = None
) -> tuple[DumpFile, ...]:
    """Of the dump files with a task's number those of the op that ran as it, earliest first.

    Names without a stream (old releases), context or thread fit any.
    """

    def fits(name: DumpName) -> bool:
        numbers = ((name.stream_id, stream), (name.context_id, context), (name.thread_id, thread))
        return all(value is None or number in (None, value) for value, number in numbers)

    return tuple(sorted((file for file in files if fits(file.name)), key=lambda file: (file.name.timestamp, file.path)))
