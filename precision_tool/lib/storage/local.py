"""The disks of this machine as a place of files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress

from precision_tool.lib.errors import DataNotFoundError, OutputError
from precision_tool.lib.storage.files import temporary_file
from precision_tool.lib.storage.kept_open import open_local
from precision_tool.lib.storage.store import Contents, Entry, Kind, NewFile, Stat, Store, StoredFile
from precision_tool.lib.user_files import folder_error


class LocalStore(Store):
    """Files by the paths that the operating system gives them."""

    def open(self, path: str) -> StoredFile:
        return open_local(path)

    def stat(self, path: str) -> Stat | None:
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        except OSError as error:
            raise folder_error(path, error) from error
        kind = Kind.FOLDER if stat.S_ISDIR(found.st_mode) else Kind.FILE if stat.S_ISREG(found.st_mode) else Kind.OTHER
        signature = found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev
        return Stat(kind=kind, size=found.st_size, signature=signature)

    def entries(self, folder: str) -> Sequence[Entry]:
        try:
            with os.scandir(folder) as found:
                return [Entry(name=one.name, kind=_kind(one)) for one in sorted(found, key=lambda one: one.name)]
        except OSError as error:
            raise folder_error(folder, error) from error
        except ValueError as error:  # a zero byte in the name
            raise DataNotFoundError.of(folder, "no such folder", "check the name") from error

    def contents_of(self, folder: str, file_names: Sequence[str]) -> Iterator[Contents]:
        for name in file_names:  # millions of them, so nothing that is not needed
            try:
                found = os.stat(f"{folder}/{name}")
            except OSError:  # gone, or not to be looked at: what reads it says so
                yield 0, 0
            else:
                yield found.st_size, found.st_mtime_ns

    def create(self, path: str, *, place: str = "") -> NewFile:
        return _NewLocalFile(path, place or os.path.dirname(path) or os.curdir)

    def real(self, path: str) -> str:
        return os.path.realpath(path)


def _kind(entry: os.DirEntry[str]) -> Kind | None:
    try:
        if entry.is_dir():
            return Kind.FOLDER
        if entry.is_file():
            return Kind.FILE
        if not entry.is_symlink():
            return Kind.OTHER
        os.stat(entry.path)
    except OSError:  # a link to nothing, or to itself: what opens it says so
        return None
    return Kind.OTHER


class _NewLocalFile(NewFile):
    def __init__(self, path: str, folder: str) -> None:
        self._path = path
        self._temporary = ""
        self._fd = -1
        try:
            os.makedirs(folder, exist_ok=True)
            self._fd, self._temporary = temporary_file(folder)
        except OSError as error:
            raise self._error(error) from error

    def write_at(self, offset: int, *parts: bytes | memoryview) -> None:
        rest = [memoryview(part) for part in parts]
        try:
            while rest:
                count = os.pwritev(self._fd, rest, offset)
                offset += count
                while rest and count >= rest[0].nbytes:
                    count -= rest.pop(0).nbytes
                if count:
                    rest[0] = rest[0][count:]
        except OSError as error:
            raise self._error(error) from error

    def commit(self) -> None:
        try:
            self._close()
            os.replace(self._temporary, self._path)
            self._temporary = ""
        except OSError as error:
            raise self._error(error) from error

    def discard(self) -> None:
        with suppress(OSError):
            self._close()
        if self._temporary:
            with suppress(OSError):
                os.unlink(self._temporary)
            self._temporary = ""

    def _close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _error(self, error: OSError) -> OutputError:
        return OutputError.of(
            self._path, f"cannot be written ({error.strerror or error})", "free some space or name another folder"
        )
