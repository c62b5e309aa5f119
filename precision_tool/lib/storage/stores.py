"""Which place of files a path belongs to, and what readers ask of it.

All is on the disks of this machine but what lies below a path where another store was mounted:

    with mounted("/run", store):
        compare("/run/npu", "/run/tf")

Processes that are forked while it is mounted read from it too; others have to mount it themselves. A path that stands
for a URL (`urls`) belongs to the store of that URL, in every process.
"""

from __future__ import annotations

import io
import os
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO, TextIO

from precision_tool.lib import urls, user_files
from precision_tool.lib.errors import DataNotFoundError, FormatError, OutputError, PrecisionToolError
from precision_tool.lib.storage.local import LocalStore
from precision_tool.lib.storage.store import Contents, Entry, Kind, NewFile, Signature, Stat, Store, StoredFile
from precision_tool.lib.user_files import MAX_TEXT, PathLike
from precision_tool.lib.user_files import read_bytes as read_local_bytes

LOCAL: Store = LocalStore()
#: Those of URLs, by process (a connection is of no use to a child), `scheme:/host` and who asks: user and password.
_remote: dict[tuple[int, str, str], Store] = {}
#: Paths at which other stores are mounted, each with `/` at its end.
_mounts: dict[str, Store] = {}


class _Nowhere(Store):
    """What lies above the places that URLs name: nothing."""

    def open(self, path: str) -> StoredFile:
        raise DataNotFoundError.of(path, "no such file", "check the name")

    def stat(self, path: str) -> None:
        return None

    def entries(self, folder: str) -> Sequence[Entry]:
        raise DataNotFoundError.of(folder, "no such folder", "check the name")

    def create(self, path: str, *, place: str = "") -> NewFile:
        raise OutputError.of(path, "cannot be written (no such place)", "name another folder")


_NOWHERE = _Nowhere()


@contextmanager
def mounted(path: str, store: Store) -> Iterator[None]:
    """What lies below an absolute path is that store's, under the same path, until the block ends."""
    place = posixpath.join(posixpath.normpath(path), "")
    if not place.startswith("/") or place == "/" or place in _mounts:
        raise ValueError(f"{path}: no absolute path, or one that is mounted already")
    _mounts[place] = store
    try:
        yield
    finally:
        del _mounts[place]


def store_of(path: PathLike) -> Store:
    """The store that a path belongs to."""
    if _mounts:
        full = posixpath.join(posixpath.abspath(path), "")
        place = max((place for place in _mounts if full.startswith(place)), key=len, default="")
        if place:  # of mounts in one another the inner one
            return _mounts[place]
    return remote_store(str(path)) if urls.is_remote(path) else LOCAL


def remote_store(path: str) -> Store:
    """The store of a URL. UsageError where what it needs is not installed, FormatError if it cannot be reached."""
    if not urls.is_named(path):
        return _NOWHERE
    key = os.getpid(), urls.place_of(path), urls.secret_of(path).user
    known = _remote.get(key)
    if known is None:
        from precision_tool.lib.storage.remote import RemoteStore  # only URLs need it

        known = _remote[key] = RemoteStore(path)
    return known


def open_file(path: str) -> StoredFile:
    """A regular file for reading at any offset. DataNotFoundError if it is missing, FormatError for all else."""
    return store_of(path).open(path)


def local_file(path: str) -> str:
    """A path that other programs can open; FormatError for a file of another store."""
    if store_of(path) is not LOCAL:
        raise FormatError.of(path, "is on no disk of this machine, where it has to be read", "copy it to a disk")
    return path


def stat_of(path: PathLike) -> Stat | None:
    """What lies at a path; None if nothing does, or it may not be looked at."""
    try:
        return store_of(path).stat(str(path))
    except PrecisionToolError:
        if urls.is_remote(path):  # a server that does not answer, or wants other credentials
            raise
        return None


def kind_of(path: PathLike) -> Kind | None:
    """What kind of thing lies at a path; None as for `stat_of`."""
    found = stat_of(path)
    return None if found is None else found.kind


def exists(path: PathLike) -> bool:
    """Whether anything lies at a path that may be looked at."""
    return stat_of(path) is not None


def is_file(path: PathLike) -> bool:
    """Whether a regular file lies at a path."""
    return kind_of(path) is Kind.FILE


def folder_exists(path: PathLike) -> bool:
    """Whether a folder is there that may be looked at."""
    return kind_of(path) is Kind.FOLDER


def signature_of(path: str) -> Signature | None:
    """The signature of a file; None if it cannot be looked at."""
    found = stat_of(path)
    return None if found is None else found.signature


def contents_of(path: str) -> Contents:
    """What changes when the bytes of a file do; nothing of one that cannot be looked at."""
    found = stat_of(path)
    return () if found is None else store_of(path).of_contents(found)


def is_same_file(one: PathLike, other: PathLike) -> bool:
    """Whether two paths are those of one file that is there, by links too."""
    found = stat_of(one), stat_of(other)
    places = [stat.signature[-2:] for stat in found if stat is not None]
    return len(places) == 2 and places[0] == places[1] and store_of(one) is store_of(other)


def size_of(path: str) -> int:
    """The bytes of a file; 0 if it cannot be looked at."""
    found = stat_of(path)
    return 0 if found is None else found.size


def real_path(path: PathLike) -> str:
    """The absolute path without links."""
    return store_of(path).real(str(path))


def is_folder(path: PathLike) -> bool:
    """Whether a folder is there. FormatError where that cannot be told, for want of permission in one above it."""
    found = store_of(path).stat(str(path))
    return found is not None and found.kind is Kind.FOLDER


def check_folder(path: str, what: str = "files") -> None:
    """Raises the error for what is no folder: missing, a file, not permitted; `what` is looked for there."""
    if store_of(path) is LOCAL:
        user_files.check_folder(path, what)
    elif not is_folder(path):
        if urls.is_remote(path):
            entries(path)  # which says why there is none
        kind = "a file where a folder should be" if exists(path) else "no such folder"
        raise DataNotFoundError.of(path, f"{kind}", f"name the folder of the {what}")


def entries(folder: str) -> Sequence[Entry]:
    """What a folder holds, in the order of the names; DataNotFoundError for what is no folder."""
    return store_of(folder).entries(folder)


def list_folder(path: str, what: str = "files") -> list[str]:
    """The names in a folder, sorted. DataNotFoundError if it is missing or a file, FormatError if it may not be read.

    `what` says in the hint what is looked for. An empty folder has no names and is no error.
    """
    if store_of(path) is LOCAL:
        return user_files.list_folder(path, what)
    return [entry.name for entry in entries(path)]


class _Stream(io.RawIOBase):
    """A file of any store as one that is read from its start on."""

    def __init__(self, file: StoredFile) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._file.size)[whence]
        return self._at

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]  # whatever has bytes to be written to
        count = max(0, min(len(view), self._file.size - self._at))
        self._file.read_into(self._at, view[:count])
        self._at += count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def open_binary(path: str) -> BinaryIO:
    """A regular file opened for reading bytes; errors as of `open_file`."""
    if store_of(path) is LOCAL:
        return user_files.open_binary(path)
    return io.BufferedReader(_Stream(open_file(path)))


def open_text(path: str, encoding: str = "utf-8", errors: str = "strict", newline: str | None = None) -> TextIO:
    """A regular file opened for reading text; errors as of `open_file`, later UnicodeDecodeError."""
    return io.TextIOWrapper(open_binary(path), encoding, errors, newline)


def read_bytes(path: str, limit: int = MAX_TEXT) -> bytes:
    """A whole regular file of at most `limit` bytes. FormatError for a larger one; else as `open_file`."""
    if store_of(path) is LOCAL:
        return read_local_bytes(path, limit)
    with open_file(path) as file:
        if file.size > limit:
            raise user_files.too_large(path, limit)
        return file.read_at(0, file.size)


def read_text(path: str, limit: int = MAX_TEXT, errors: str = "strict", newline: str | None = None) -> str:
    """A whole regular UTF-8 file of at most `limit` bytes; its line ends become `\\n` unless `newline` is "".

    FormatError for one that is larger or no UTF-8; else as `open_file`.
    """
    return user_files.decoded(path, read_bytes(path, limit), errors, newline)


class _Elsewhere(user_files.Elsewhere):
    """What lower rooms ask of places that are no disk."""

    def is_folder(self, path: str) -> bool:
        return is_folder(path)

    def list_folder(self, path: str, what: str) -> list[str]:
        return [entry.name for entry in entries(path)]

    def read_bytes(self, path: str, limit: int) -> bytes:
        return read_bytes(path, limit)

    def write_bytes(self, path: str, data: bytes) -> None:
        with store_of(path).create(path) as file:
            file.write_at(0, data)


user_files.reach_elsewhere(_Elsewhere())
