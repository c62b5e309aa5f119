"""Which reader reads a file: an ordered list of readers, each with a cheap look at the first bytes."""

from __future__ import annotations

from collections.abc import Callable

from precision_tool.lib.formats.ge_dump import read_dump_file
from precision_tool.lib.formats.npy import read_npy_file
from precision_tool.lib.formats.statistics_csv import looks_like_statistics, read_statistics
from precision_tool.lib.formats.tfdbg_event import looks_like_event, read_tensor_event
from precision_tool.lib.io.files import open_file
from precision_tool.lib.io.stores import StoredFile
from precision_tool.lib.model.tensor import OpDump


def _read_npy_as_op(file: StoredFile) -> OpDump:
    return OpDump(path=file.path, outputs=(read_npy_file(file),))


def _read_event_as_op(file: StoredFile) -> OpDump:
    return OpDump(path=file.path, outputs=(read_tensor_event(file.path),))


#: (name, does the head of the file fit, reader of the open file), in the order they are asked.
READERS: tuple[tuple[str, Callable[[bytes], bool], Callable[[StoredFile], OpDump]], ...] = (
    ("npy", lambda head: head.startswith(b"\x93NUMPY"), _read_npy_as_op),
    ("statistics", looks_like_statistics, lambda file: read_statistics(file.path)),
    ("tfdbg", looks_like_event, _read_event_as_op),
    ("dump", lambda head: True, read_dump_file),
)


def open_op_dump(path: str) -> OpDump:
    """The tensors of a dump, statistics or `.npy` file, whatever its name says."""
    with open_file(path) as file:
        head = file.read_at(0, min(256, file.size))
        reader = next(read for _, fits, read in READERS if fits(head))
        return reader(file)
