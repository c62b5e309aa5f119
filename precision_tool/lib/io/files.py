"""The one way to open, list and check what the user has, wherever it lies.

All is on the disks of this machine but what lies below a path where another store was mounted:

    with mounted("/run", store):
        compare("/run/npu", "/run/tf")

Processes that are forked while it is mounted read from it too; others have to mount it themselves. A path that stands
for a URL (`urls`) belongs to the store of that URL, in every process. This module runs on Python 3.7; stores of URLs
need 3.11.
"""

from __future__ import annotations

import errno
import io
import os
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, BinaryIO, TextIO, Union

from precision_tool.lib.errors import DataNotFoundError, FormatError, OutputError, PrecisionToolError, UsageError
from precision_tool.lib.io import urls
from precision_tool.lib.io.local_files import LocalStore, folder_error, open_descriptor, too_large, user_error
from precision_tool.lib.io.store import Contents, Entry, Kind, NewFile, Signature, Stat, Store, StoredFile

PathLike = Union[str, "os.PathLike[str]"]

#: A text file of this many bytes is no text that a person or a tool of the field wrote by itself.
MAX_TEXT = 64 << 20
_PIECE = 1 << 16
#: The store of URLs, loaded with the first of them: the class takes the path.
_REMOTE = "precision_tool.lib.io.remote", "RemoteStore"

LOCAL: Store = LocalStore()
#: Stores of URLs, by process (a connection is of no use to a child), `scheme:/host` and who asks: user and password.
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
    """Return the store of a URL, of a third party's where one serves its scheme (entry points `precision_tool.stores`).

    UsageError where what it needs is not installed, FormatError if it cannot be reached.
    """
    if not urls.is_named(path):
        return _NOWHERE
    key = os.getpid(), urls.place_of(path), urls.secret_of(path).user
    if key not in _remote:
        _remote[key] = _store_class(path[1:].partition(":")[0])(path)
    return _remote[key]


def _store_class(scheme: str) -> Any:
    try:
        registry = import_module("precision_tool.lib.extensions").Registry("stores", {}, _checked_store)
    except (ImportError, SyntaxError):  # Python 3.7, the training side
        raise UsageError(f"{scheme}:// needs Python 3.11", "name a folder of this machine") from None
    module, name = _REMOTE
    return registry.get(scheme) or getattr(import_module(module), name)


def _checked_store(name: str, loaded: Any) -> Any:
    if not (isinstance(loaded, type) and issubclass(loaded, Store)):
        raise TypeError(f"{loaded!r} is no subclass of precision_tool.lib.io.store.Store")
    return loaded


def check_on_disk(path: PathLike) -> None:
    """Raise UsageError for a path that stands for a URL."""
    if urls.is_remote(path):
        message = f"{urls.url_of(str(path))}: this command works with a folder of this machine only"
        raise UsageError(message, "name a folder")


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
    stat = stat_of(path)
    return None if stat is None else stat.kind


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
    stat = stat_of(path)
    return None if stat is None else stat.signature


def contents_of(path: str) -> Contents:
    """What changes when the bytes of a file do; nothing of one that cannot be looked at."""
    stat = stat_of(path)
    return () if stat is None else store_of(path).of_contents(stat)


def is_same_file(path: PathLike, other: PathLike) -> bool:
    """Whether two paths are those of one file that is there, by links too."""
    places = [stat.signature[-2:] for stat in (stat_of(path), stat_of(other)) if stat is not None]
    return len(places) == 2 and places[0] == places[1] and store_of(path) is store_of(other)


def size_of(path: str) -> int:
    """The bytes of a file; 0 if it cannot be looked at."""
    stat = stat_of(path)
    return 0 if stat is None else stat.size


def real_path(path: PathLike) -> str:
    """The absolute path without links."""
    return store_of(path).real(str(path))


def is_folder(path: PathLike) -> bool:
    """Whether a folder is there. FormatError where that cannot be told, for want of permission in one above it."""
    stat = store_of(path).stat(str(path))
    return stat is not None and stat.kind is Kind.FOLDER


def check_folder(path: str, what: str = "files") -> None:
    """Raises the error for what is no folder: missing, a file, not permitted; `what` is looked for there."""
    if is_folder(path):
        return
    if urls.is_remote(path):
        entries(path)  # which says why there is none
    there = os.path.lexists(path) if store_of(path) is LOCAL else exists(path)
    error = errno.ENOTDIR if there else errno.ENOENT
    raise folder_error(path, OSError(error, os.strerror(error)), what)


def entries(folder: str) -> Sequence[Entry]:
    """What a folder holds, in the order of the names; DataNotFoundError for what is no folder."""
    return store_of(folder).entries(folder)


def list_folder(path: str, what: str = "files") -> list[str]:
    """The names in a folder, sorted. DataNotFoundError if it is missing or a file, FormatError if it may not be read.

    `what` says in the hint what is looked for. An empty folder has no names and is no error.
    """
    if store_of(path) is LOCAL:
        try:
            return sorted(os.listdir(path))
        except OSError as error:
            raise folder_error(path, error, what) from error
        except ValueError as error:  # a zero byte in the name
            raise DataNotFoundError.of(path, "no such folder", "check the name") from error
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
        return os.fdopen(open_descriptor(path), "rb")
    return io.BufferedReader(_Stream(open_file(path)))


def open_text(path: str, encoding: str = "utf-8", errors: str = "strict", newline: str | None = None) -> TextIO:
    """A regular file opened for reading text; errors as of `open_file`, later UnicodeDecodeError."""
    return io.TextIOWrapper(open_binary(path), encoding, errors, newline)


def read_bytes(path: str, limit: int = MAX_TEXT) -> bytes:
    """A whole regular file of at most `limit` bytes. FormatError for a larger one; else as `open_file`."""
    if store_of(path) is not LOCAL:
        with open_file(path) as stored:
            if stored.size > limit:
                raise too_large(path, limit)
            return stored.read_at(0, stored.size)
    data = bytearray()
    with open_binary(path) as file:
        try:
            # Not by its size, which may grow, and is 0 below /proc; and not at once, which takes memory for the limit.
            while len(data) <= limit:
                piece = file.read(_PIECE)
                if not piece:
                    return bytes(data)
                data += piece
        except OSError as error:
            raise user_error(path, error) from error
    raise too_large(path, limit)


def read_text(path: str, limit: int = MAX_TEXT, errors: str = "strict", newline: str | None = None) -> str:
    """A whole regular UTF-8 file of at most `limit` bytes; its line ends become `\\n` unless `newline` is "".

    FormatError for one that is larger or no UTF-8; else as `open_file`.
    """
    return decoded(path, read_bytes(path, limit), errors, newline)


def decoded(path: str, data: bytes, errors: str = "strict", newline: str | None = None) -> str:
    """The UTF-8 text of a file; FormatError if it is none."""
    try:
        return io.TextIOWrapper(io.BytesIO(data), "utf-8", errors, newline).read()
    except UnicodeDecodeError as error:
        raise FormatError.of(
            path, f"no text: byte {error.start} is not UTF-8", "check the name, and what wrote it", offset=error.start
        ) from None
