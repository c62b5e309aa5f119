"""Which reader reads a file: a registry of readers, each with a cheap look at the first bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from precision_tool.lib.extensions import Registry
from precision_tool.lib.io.files import open_file
from precision_tool.lib.io.ge_dump import read_dump_file
from precision_tool.lib.io.npy import read_npy_file
from precision_tool.lib.io.statistics_csv import looks_like_statistics, read_statistics
from precision_tool.lib.io.stores import StoredFile
from precision_tool.lib.io.tfdbg_tensor import looks_like_event, read_tensor_event
from precision_tool.lib.messages.errors import FormatError
from precision_tool.lib.model.tensor import OpDump

#: So many bytes at the start of a file tell its format.
HEAD_BYTES = 256


@dataclass(frozen=True, slots=True)
class Reader:
    """A file format: `fits` looks at the first bytes, `read` reads the open file in pieces.

    `read` raises FormatError for a damaged file, and takes no memory that a file merely claims to need.
    """

    fits: Callable[[bytes], bool]
    read: Callable[[StoredFile], OpDump]


def _read_npy_as_op(file: StoredFile) -> OpDump:
    return OpDump(path=file.path, outputs=(read_npy_file(file),))


def _read_event_as_op(file: StoredFile) -> OpDump:
    return OpDump(path=file.path, outputs=(read_tensor_event(file.path),))


def _accept(name: str, reader: Any) -> Reader:
    if not isinstance(reader, Reader):
        raise TypeError(f"a Reader of {__name__} is needed")
    return reader


#: Formats with a mark at the start of the file, in the order in which they are asked.
READERS = Registry(
    "readers",
    {
        "npy": Reader(lambda head: head.startswith(b"\x93NUMPY"), _read_npy_as_op),
        "statistics": Reader(looks_like_statistics, lambda file: read_statistics(file.path)),
        "tfdbg": Reader(looks_like_event, _read_event_as_op),
    },
    _accept,
)


def open_op_dump(path: str) -> OpDump:
    """Return the tensors of a dump, statistics or `.npy` file, or of a third party's format, whatever its name says.

    GE's dump files have no mark: what is none of the others is read as one, and asked of third parties if it is none.
    """
    with open_file(path) as file:
        head = file.read_at(0, min(HEAD_BYTES, file.size))
        for reader in READERS.built_in.values():
            if reader.fits(head):
                return reader.read(file)
        try:
            return read_dump_file(file)
        except FormatError:
            for reader in READERS.third_party().values():
                if reader.fits(head):
                    return reader.read(file)
            raise
