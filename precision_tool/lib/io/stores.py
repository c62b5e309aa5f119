"""The interface of a store: a place of files from which dumps, graphs and results are read as from a disk.

Third parties add one by a Python entry point of the group `precision_tool.stores`: its name is the scheme of the URLs
(`vault` for `vault://host/run`), its value a `Store` class, which is called with the path of the first URL of a host.
`files.store_of` finds it; fsspec has the schemes that nobody else has. This module runs on Python 3.7.

Paths are absolute and have `/` between their parts, whatever the place is made of. Errors are those of `errors`:
DataNotFoundError for what is not there, FormatError for what is there and cannot be read, OutputError for what cannot
be written.
"""

from __future__ import annotations

import posixpath
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from types import TracebackType
from typing import NamedTuple, Tuple

from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError, PrecisionToolError

#: What changes when a file does: size, modification and change time (ns since 1970), number and place of the file.
Signature = Tuple[int, int, int, int, int]
#: What changes when the bytes of a file do: size, modification time (ns since 1970), and what else its store tells.
ContentSignature = Tuple[int, ...]


#: What threads of a store's connections are called.
IO_THREAD = "precision_tool_io"
#: What could not be read for a reason of its storage, in this process, by path; it may be there all the same.
_unread: dict[str, Message] = {}


@contextmanager
def noting_unread(path: str) -> Iterator[None]:
    """Notes a file or folder that this block, which asks a storage for it, cannot read, unless it is not there."""
    try:
        yield
    except FormatError as error:
        note_unread(path, error)
        raise


def note_unread(path: str, error: PrecisionToolError) -> None:
    """Notes a file or folder that its storage does not give."""
    _unread[path] = error.advice_message


def note_unread_elsewhere(unread: Mapping[str, Message]) -> None:
    """Notes what another process, which works for this one, has taken."""
    _unread.update(unread)


def noted_unread() -> dict[str, Message]:
    """What was noted since it was taken last: the advice of each, by path."""
    return dict(_unread)


def take_unread() -> dict[str, Message]:
    """Return what was noted, and forget it."""
    noted = noted_unread()
    for path in noted:
        _unread.pop(path, None)
    return noted


class Kind(str, Enum):
    """What lies at a path: a file whose bytes can be read, a folder, or something else (a pipe, a device)."""

    FILE = "file"
    FOLDER = "folder"
    OTHER = "other"


class Stat(NamedTuple):
    """What lies at a path, behind links. The last two numbers of `signature` tell it from all others."""

    kind: Kind
    size: int
    signature: Signature


class Entry(NamedTuple):
    """A name in a folder and what is behind it; None for a link to nothing."""

    name: str
    kind: Kind | None


class StoredFile(ABC):
    """A file opened for reading at any offset; reads past the end are errors, never short."""

    path: str
    #: Bytes it had when it was opened.
    size: int

    def read_at(self, offset: int, count: int) -> bytes:
        """Exactly `count` bytes from `offset`."""
        buffer = bytearray(count)
        self.read_into(offset, memoryview(buffer))
        return bytes(buffer)

    @abstractmethod
    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fills `buffer` (bytes, contiguous) from `offset`; FormatError when the file ends before."""

    def expect(self, offset: int, count: int) -> None:  # noqa: B027  # a disk needs no such hint
        """Says that these bytes are likely to be read next, in order."""

    @abstractmethod
    def close(self) -> None:
        """Closes the file; may be called twice."""

    def __enter__(self) -> StoredFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class NewFile(ABC):
    """A file that is being written and has no name yet. OutputError for whatever goes wrong."""

    @abstractmethod
    def write_at(self, offset: int, *parts: bytes | memoryview) -> None:
        """Writes bytes from `offset` on, several runs of them behind one another at once."""

    @abstractmethod
    def commit(self) -> None:
        """Gives the file its name, in the place of one that has it; it is complete from then on."""

    @abstractmethod
    def discard(self) -> None:
        """Leaves nothing behind of a file that was not committed; may be called twice."""

    def __enter__(self) -> NewFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            self.discard()


class Store(ABC):
    """A place of files."""

    #: Whether the size and time of a file are known without a request of its own.
    lists_sizes: bool = True
    #: Whether `gather` makes reads quicker.
    gathers: bool = False

    @abstractmethod
    def open(self, path: str) -> StoredFile:
        """A regular file for reading."""

    @abstractmethod
    def stat(self, path: str) -> Stat | None:
        """What lies at a path; None if nothing does. FormatError where that cannot be told."""

    @abstractmethod
    def entries(self, folder: str) -> Sequence[Entry]:
        """What a folder holds, in the order of the names. DataNotFoundError for what is no folder."""

    def content_signature(self, stat: Stat) -> ContentSignature:
        """Return what changes when the bytes of a file do and is the same from every machine: size, time and tags."""
        return stat.signature[:2]

    def content_signatures(self, folder: str, file_names: Sequence[str]) -> Iterator[ContentSignature]:
        """Return those of files in a folder, the size first; (0, 0) for one that is gone."""
        for name in file_names:
            stat = self.stat(posixpath.join(folder, name))
            yield (0, 0) if stat is None else self.content_signature(stat)

    def let_go(self) -> bool:
        """Ends connections and their threads, which forking must not find; what is known is kept for the children.

        They are made anew when they are needed. False for a store that cannot.
        """
        return False

    def list_together(self, folders: Iterable[str], *, below: bool = False) -> None:  # noqa: B027  # as above
        """Says that these folders are listed next, or all that is `below` them."""

    def look_together(self, paths: Iterable[str]) -> None:  # noqa: B027  # as above
        """Says that `stat` is asked for these paths next."""

    def gather(self, ranges: Iterable[tuple[str, int, int]]) -> None:  # noqa: B027  # a disk needs no such hint
        """Says what is read next, in order: paths of files, of each its head, and offset and length of what else.

        A store where each read takes a while asks for as much as it can keep at once, unless it has the first of them
        already. What cannot be read is no error.
        """

    @abstractmethod
    def create(self, path: str, *, place: str = "") -> NewFile:
        """A new file that will be at `path`, in a folder that is made if need be.

        Until then it lies in the folder `place`, or beside `path`.
        """

    def real(self, path: str) -> str:
        """The path without links."""
        return path
