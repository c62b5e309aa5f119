"""The runs of tfdbg, wherever they lie: on a disk as the training side lists them, else as their store does."""

from __future__ import annotations

import posixpath

from precision_tool.lib.io import tfdbg_runs as runs
from precision_tool.lib.io.files import entries, stat_of, store_of
from precision_tool.lib.io.local import LOCAL
from precision_tool.lib.io.stores import Kind
from precision_tool.lib.io.tfdbg_runs import ON_DISK, Folders, RunFiles, RunFolder, UnlistedError, Visit
from precision_tool.lib.messages.errors import DataNotFoundError, PrecisionToolError


class _StoredFolders(Folders):
    """Run folders of a store that is no disk; it has no links."""

    is_remote = True

    def entries(self, folder: str) -> list[tuple[str, bool | str]]:
        try:
            return [(entry.name, entry.kind is Kind.FOLDER) for entry in entries(folder)]
        except PrecisionToolError as error:
            raise UnlistedError(error.message, isinstance(error, DataNotFoundError)) from error

    def identity(self, folder: str) -> object:
        return posixpath.abspath(folder)

    def size(self, path: str) -> int:
        entry = stat_of(path)
        if entry is None:
            raise UnlistedError("no such file", is_gone=True)
        return entry.size


_STORED = _StoredFolders()


def _folders_at(path: str) -> Folders:
    return ON_DISK if store_of(path) is LOCAL else _STORED


def find_runs(folder: str, visit: Visit | None = None) -> list[RunFolder]:
    """The run folders below `folder`, or `folder` itself, oldest first; [] if there is none.

    One that is named as such and cannot be listed counts: what reads it says why. FormatError where `folder` itself
    cannot, or a server does not tell what a folder holds.
    """
    return runs.find_runs(folder, visit, _folders_at(folder))


def files_of_run(run: RunFolder, visit: Visit | None = None) -> RunFiles:
    """Every tensor file of a run."""
    return runs.files_of_run(run, visit, _folders_at(run.path))
