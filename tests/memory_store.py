"""A place of files in memory: with it a test shows that nothing but the interface is needed."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from pathlib import Path

from precision_tool.lib.io.stores import Entry, Kind, NewFile, Stat, Store, StoredFile
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError


class MemoryStore(Store):
    """Files by their absolute paths; a folder is there while something is in it."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        #: When each was written, and its number.
        self._written: dict[str, tuple[int, int]] = {}
        self._count = 0
        self._folders: dict[str, int] = {}

    def put(self, path: str, data: bytes) -> None:
        """Writes a file."""
        self._count += 1
        number = self._written.get(path, (0, self._count))[1]
        self.files[path] = data
        self._written[path] = (self._count, number)

    def put_tree(self, folder: Path, at: str) -> None:
        """Copies a folder from the disk."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(posixpath.join(at, *path.relative_to(folder).parts), path.read_bytes())

    def open(self, path: str) -> StoredFile:
        return _MemoryFile(path, self._bytes(path))

    def _bytes(self, path: str) -> bytes:
        found = self.stat(path)
        if found is None:
            raise DataNotFoundError(f"{path}: no such file", "check the name")
        if found.kind is Kind.FOLDER:
            raise FormatError(f"{path}: a folder where a file should be", "name a file inside it")
        return self.files[posixpath.abspath(path)]

    def stat(self, path: str) -> Stat | None:
        path = posixpath.abspath(path)
        if path in self.files:
            time, number = self._written[path]
            size = len(self.files[path])
            return Stat(kind=Kind.FILE, size=size, signature=(size, time, time, number, id(self)))
        inside = sorted(name for name in self.files if name.startswith(posixpath.join(path, "")))
        if not inside:
            return None
        time = max(self._written[name][0] for name in inside)
        number = -1 - self._folders.setdefault(path, len(self._folders))
        return Stat(kind=Kind.FOLDER, size=0, signature=(0, time, time, number, id(self)))

    def entries(self, folder: str) -> Sequence[Entry]:
        found = self.stat(folder)
        if found is None or found.kind is not Kind.FOLDER:
            what = "no such folder" if found is None else "a file where a folder should be"
            raise DataNotFoundError(f"{folder}: {what}", "check the name")
        start = posixpath.join(posixpath.abspath(folder), "")
        names = {name[len(start) :].partition("/")[::2] for name in self.files if name.startswith(start)}
        kinds = {name: Kind.FOLDER if rest else Kind.FILE for name, rest in names}
        return [Entry(name=name, kind=kinds[name]) for name in sorted(kinds)]

    def create(self, path: str, *, place: str = "") -> NewFile:
        return _NewMemoryFile(self, posixpath.abspath(path))


class _MemoryFile(StoredFile):
    def __init__(self, path: str, data: bytes) -> None:
        self.path, self.size, self._data = path, len(data), data

    def read_into(self, offset: int, buffer: memoryview) -> None:
        piece = self._data[offset : offset + len(buffer)]
        if len(piece) < len(buffer):
            raise FormatError(f"{self.path}: ends at byte {offset + len(piece)}", "copy it again")
        buffer[:] = piece

    def close(self) -> None:
        """There is nothing to close."""


class _NewMemoryFile(NewFile):
    def __init__(self, store: MemoryStore, path: str) -> None:
        self._store, self._path, self._data = store, path, bytearray()

    def write_at(self, offset: int, *parts: bytes | memoryview) -> None:
        data = b"".join(parts)
        end = offset + len(data)
        self._data.extend(bytes(max(0, end - len(self._data))))
        self._data[offset:end] = data

    def commit(self) -> None:
        self._store.put(self._path, bytes(self._data))

    def discard(self) -> None:
        self._data = bytearray()
