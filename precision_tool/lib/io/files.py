"""The one way to open, list, check and write files, on the disks of this machine or elsewhere.

A path belongs to a store (`store_of`): the one mounted above it, else for a path that stands for a URL (`urls`) that of
the URL's scheme, else the disks:

    with mounted("/run", store):
        compare("/run/npu", "/run/tf")

Processes that are forked while it is mounted read from it too; others have to mount it themselves. A URL has its store
in every process. This module runs on Python 3.7, where there are the disks alone.
"""

from __future__ import annotations

import errno
import io
import json
import os
import posixpath
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, TextIO, Union

from precision_tool.lib.io import urls
from precision_tool.lib.io.local import (
    LOCAL,
    check_reachable,
    check_readable,
    folder_error,
    open_descriptor,
    user_error,
)
from precision_tool.lib.io.stores import (
    IO_THREAD,
    ContentSignature,
    Entry,
    Kind,
    NewFile,
    Signature,
    Stat,
    Store,
    StoredFile,
)
from precision_tool.lib.io.writing import replacing_text
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import (
    DataNotFoundError,
    FormatError,
    OutputError,
    PrecisionToolError,
    UsageError,
)

PathLike = Union[str, "os.PathLike[str]"]

#: A text file of this many bytes is no text that a person or a tool of the field wrote by itself.
MAX_TEXT = 64 << 20
_PIECE = 1 << 16
#: Bytes of a path, with a zero byte at its end (Linux).
_MAX_PATH = 4096
#: Bytes of a small JSON file that are read at most.
_MAX_JSON = 1 << 16
#: A change this soon (ns) after another may leave the time of a file as it is.
_TICK = 50_000_000
#: As much where times are kept in seconds, or in two of them.
_COARSE_TICK = 2_000_000_000
#: Those of URLs, by process (a connection is of no use to a child), `scheme:/host` and who asks: user and password.
_remote: dict[tuple[int, str, str], Store] = {}
#: In the place of a process, of stores that have no connection.
_NO_PROCESS = 0
#: Paths at which other stores are mounted, each with `/` at its end.
_mounts: dict[str, Store] = {}


class _Nowhere(Store):
    """What lies above the places that URLs name: nothing."""

    def open(self, path: str) -> StoredFile:
        raise DataNotFoundError.of(path, "io.no_file")

    def stat(self, path: str) -> None:
        return None

    def entries(self, folder: str) -> Sequence[Entry]:
        raise DataNotFoundError.of(folder, "io.no_folder", content="files")

    def create(self, path: str, *, place: str = "") -> NewFile:
        raise OutputError.of(path, "io.no_place")


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
    """Return the store of a URL. UsageError where its packages are missing, FormatError if it cannot be reached."""
    if not urls.is_named(path):
        return _NOWHERE
    check_reachable(urls.place_of(path))
    key = os.getpid(), urls.place_of(path), urls.secret_of(path).user
    store = _remote.get(key)
    if store is None:
        idle = (_NO_PROCESS, *key[1:])
        store = _remote[key] = _remote.pop(idle) if idle in _remote else _connected(path)
    return store


def let_go() -> None:
    """End connections to servers, whose threads keep this process from being forked; its children know what it does.

    Where there are other threads, which may be using them, nothing happens.
    """
    others = (thread for thread in threading.enumerate() if thread is not threading.current_thread())
    if not all(thread.name.startswith((IO_THREAD, "asyncio_")) for thread in others):
        return
    for (process, *rest), store in list(_remote.items()):
        if process == os.getpid() and store.let_go():
            _remote[(_NO_PROCESS, *rest)] = store  # type: ignore[index]  # place and user, as they were


def _connected(path: str) -> Store:
    if sys.version_info < (3, 11):
        raise _not_local(path)
    from precision_tool.lib.extensions import Registry

    stores: Registry[Callable[[str], Store]] = Registry("stores", {}, _store_maker)
    make_store = stores.get(urls.place_of(path).partition(":")[0])
    if make_store is not None:
        return make_store(path)
    from precision_tool.lib.io.remote import RemoteStore  # only URLs need it

    return RemoteStore(path)


def _store_maker(scheme: str, loaded: Any) -> Callable[[str], Store]:
    if not callable(loaded):
        raise TypeError(f"what serves {scheme}:// is no function from a path to a store")
    return loaded  # type: ignore[no-any-return]  # what it returns is its author's promise


def check_local(path: PathLike) -> None:
    """Raise UsageError for a path that stands for a URL."""
    if urls.is_remote(path):
        raise _not_local(str(path))


def _not_local(path: str) -> UsageError:
    return UsageError("io.local_only", url=urls.url_of(path))


def open_file(path: str) -> StoredFile:
    """A regular file for reading at any offset. DataNotFoundError if it is missing, FormatError for all else."""
    return store_of(path).open(path)


def local_file(path: str) -> str:
    """A path that other programs can open; FormatError for a file of another store."""
    if store_of(path) is not LOCAL:
        raise FormatError.of(path, "io.not_on_disk")
    check_readable(path)
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


def content_signature_of(path: str) -> ContentSignature:
    """Return what changes when the bytes of a file do; () of one that cannot be looked at."""
    stat = stat_of(path)
    return () if stat is None else store_of(path).content_signature(stat)


def is_same_file(path: PathLike, other: PathLike) -> bool:
    """Return whether two paths are those of one file that is there, by links too."""
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
    """Raise the error for what is no folder: missing, a file, not permitted; `what` is looked for there."""
    if is_folder(path):
        return
    if urls.is_remote(path):
        entries(path)  # which says why there is none
    exists_there = os.path.lexists(path) if store_of(path) is LOCAL else exists(path)
    error = errno.ENOTDIR if exists_there else errno.ENOENT
    raise folder_error(path, OSError(error, os.strerror(error)), what)


def entries(folder: str) -> Sequence[Entry]:
    """What a folder holds, in the order of the names; DataNotFoundError for what is no folder."""
    return store_of(folder).entries(folder)


def list_folder(path: str, what: str = "files") -> list[str]:
    """Return the names in a folder, sorted.

    DataNotFoundError if it is missing or a file, FormatError if it may not be read; `what` says in the hint what is
    looked for. An empty folder has no names and is no error.
    """
    if store_of(path) is not LOCAL:
        return [entry.name for entry in entries(path)]
    check_readable(path)
    try:
        return sorted(os.listdir(path))
    except OSError as error:
        raise folder_error(path, error, what) from error
    except ValueError as error:  # a zero byte in the name
        raise DataNotFoundError.of(path, "io.no_folder", content="files") from error


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
    """Return a regular file opened for reading bytes; errors as of `open_file`."""
    if store_of(path) is LOCAL:
        return os.fdopen(open_descriptor(path), "rb")
    return io.BufferedReader(_Stream(open_file(path)))


def open_text(path: str, encoding: str = "utf-8", errors: str = "strict", newline: str | None = None) -> TextIO:
    """Return a regular file opened for reading text; errors as of `open_file`, later UnicodeDecodeError."""
    return io.TextIOWrapper(open_binary(path), encoding, errors, newline)


def read_bytes(path: str, limit: int = MAX_TEXT) -> bytes:
    """Return a whole regular file of at most `limit` bytes. FormatError for a larger one; else as `open_file`."""
    if store_of(path) is not LOCAL:
        with open_file(path) as stored:
            if stored.size > limit:
                raise _too_large(path, limit)
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
    raise _too_large(path, limit)


def _too_large(path: str, limit: int) -> FormatError:
    return FormatError.of(path, "io.too_large", limit=limit)


def read_text(path: str, limit: int = MAX_TEXT, errors: str = "strict", newline: str | None = None) -> str:
    """Return a whole regular UTF-8 file of at most `limit` bytes; its line ends become `\\n` unless `newline` is "".

    FormatError for one that is larger or no UTF-8; else as `open_file`.
    """
    try:
        return io.TextIOWrapper(io.BytesIO(read_bytes(path, limit)), "utf-8", errors, newline).read()
    except UnicodeDecodeError as error:
        raise FormatError.of(path, "io.not_text", offset=error.start) from None


def read_small_json(path: str) -> object:
    """Return what a small JSON file of ours holds; None if there is none, or what is there is no such file."""
    try:
        document: object = json.loads(read_bytes(path, _MAX_JSON))
    except (PrecisionToolError, ValueError, RecursionError):
        return None
    return document


@contextmanager
def atomic_text(path: str) -> Iterator[TextIO]:
    """A text file that appears under its name when it is complete; OutputError if not."""
    store = store_of(path)
    if store is not LOCAL:
        text = io.StringIO(newline="")
        yield text
        with store.create(path) as new:
            new.write_at(0, text.getvalue().encode("utf-8", "backslashreplace"))
        return
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with replacing_text(path) as file:
            yield file
    except OSError as error:
        raise OutputError.of(path, "io.not_writable", reason=error.strerror or str(error)) from error


def open_to_write(path: str) -> BinaryIO:
    """A new or emptied regular file, for what somebody else's program writes as it goes; OutputError if that fails.

    Results of our own are written with `atomic_text` instead.
    """
    try:
        return os.fdopen(open_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb")
    except PrecisionToolError as error:
        cause = error.__cause__
        reason = cause.strerror if isinstance(cause, OSError) else Message("note.io.no_file_there")
        raise OutputError.of(path, "io.not_writable", reason=reason) from error


def may_change_unseen(*times: int) -> bool:
    """Whether a change now may leave these times (ns since 1970) of a file or folder as they are.

    Times of whole seconds are taken for those of a file system that knows no better ones.
    """
    now = time.time_ns()
    return any(abs(now - moment) < (_TICK if moment % 1_000_000_000 else _COARSE_TICK) for moment in times)


def could_be_path(text: str) -> bool:
    """Whether the operating system takes a text that a file gave for a path."""
    try:
        path = os.fsencode(text)
        return b"\0" not in path and len(path) < _MAX_PATH
    except UnicodeEncodeError:
        return False


def environment(name: str) -> str:
    """A variable of the environment that is no setting of ours; "" where it is not set."""
    return os.environ.get(name, "")


def history_file() -> str:
    """Where the history is kept between sessions: the user's own folder, never the data folder; "" without a home."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    folder = os.path.join(base, "precision_tool")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError:
        return ""
    return os.path.join(folder, "history.dat") if os.access(folder, os.W_OK) else ""
