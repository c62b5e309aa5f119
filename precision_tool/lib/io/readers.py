"""Which reader reads a dump: a registry, each with a cheap look at the first bytes; and those of the small formats.

Statistics dumps are one CSV per op with max, min, mean and counts instead of the tensors (FORMATS.md §2). Tensor files
of TensorFlow's debugger are read where they lie: their values are those of a `.npy` file, undecoded.
"""

from __future__ import annotations

import atexit
import csv
import io
import shutil
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain, count
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from precision_tool.lib.extensions import Registry
from precision_tool.lib.io import data_types
from precision_tool.lib.io.files import may_change_unseen, open_file, signature_of, store_of
from precision_tool.lib.io.ge_dump import read_dump_file
from precision_tool.lib.io.local import LOCAL
from precision_tool.lib.io.npy import MAGIC, our_name, read_npy, read_npy_file
from precision_tool.lib.io.safetensors_file import looks_like_safetensors, read_safetensors_file
from precision_tool.lib.io.stores import Signature, StoredFile
from precision_tool.lib.io.tfdbg_files import TensorEvent, read_event, read_event_at, write_npy
from precision_tool.lib.io.torch_file import MAGIC as TORCH_MAGIC
from precision_tool.lib.io.torch_file import read_torch_file
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError, shown
from precision_tool.lib.model.tensor import OpDump, Tensor, TensorStatistics

#: Digits of a whole number of 64 bits, with its sign and some room.
_MAX_DIGITS = 24
_MAX_BYTES = 64 << 20
_REQUIRED = ("input/output", "index", "data type", "shape")
#: Columns without which a row says nothing for sure: a row that ends before them was cut off.
_DESCRIPTION = (*_REQUIRED, "data size", "format")
T = TypeVar("T")


def looks_like_statistics(head: bytes) -> bool:
    """True if the first bytes are the header line of a statistics CSV."""
    line = head.split(b"\n", 1)[0].lower()
    return all(name.encode("ascii") in line for name in _REQUIRED)


def _value(text: str, kind: Callable[[str], T]) -> T | None:
    text = text.strip()
    if not text or text.upper() in ("NA", "N/A"):
        return None
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{shown(text)} is no number") from None


def _shape(text: str) -> tuple[int, ...]:
    text = text.strip().strip("[]()")
    if not text or text.upper() == "NA":
        return ()
    shape = tuple(_whole(part) for part in text.lower().replace(",", "x").split("x") if part.strip())
    data_types.refuse_impossible(shape)
    return shape


def _whole(text: str) -> int:
    try:
        if len(text) <= _MAX_DIGITS:
            return int(text)
    except ValueError:
        pass
    raise ValueError(f"{shown(text)} is no whole number of 64 bits")


def _type_name(text: str) -> str:
    text = text.strip()
    data_type = data_types.BY_GE_NAME.get(text) or data_types.BY_GE_NAME.get(f"DT_{text.upper()}")
    return data_type.name if data_type else text.lower()


def read_statistics(path: str) -> OpDump:
    """The statistics of one op. Rows that cannot be read are named in `bad_slots`."""
    with open_file(path) as file:
        if file.size > _MAX_BYTES:
            raise FormatError.of(path, "io.statistics.too_large", size=file.size)
        text = file.read_at(0, file.size).decode("utf-8-sig", "backslashreplace")
    # Every writer ends its lines. What follows the last end is a line that was cut off, in its last cell at best.
    end = max(text.rfind("\n"), text.rfind("\r")) + 1
    rows = chain(
        csv.reader(io.StringIO(text[:end], newline="")), (row[:-1] for row in csv.reader(io.StringIO(text[end:])))
    )
    try:
        header = [name.strip().lower() for name in next(rows)]
    except (StopIteration, csv.Error):
        header = []
    missing = [name for name in _REQUIRED if name not in header]
    if missing:
        raise FormatError.of(path, "io.statistics.no_column", column=missing[0])
    column = {name: position for position, name in enumerate(header)}
    width = 1 + max(column.get(name, 0) for name in _DESCRIPTION)
    sides: dict[str, dict[int, TensorStatistics]] = {"input": {}, "output": {}}
    bad: list[tuple[str, Message]] = []
    for number, row in _numbered(rows, bad):
        if not any(cell.strip() for cell in row):
            continue

        def cell(name: str, row: list[str] = row) -> str:
            position = column.get(name, len(row))
            return row[position] if position < len(row) else ""

        side = cell("input/output").strip().lower()
        try:
            index = _whole(cell("index"))
            if side not in sides or not 0 <= index < 1 << 16:
                raise ValueError(f"slot {shown(cell('input/output'))}:{index}")
            if len(row) < width:
                raise ValueError("it is cut off")
            sides[side][index] = TensorStatistics(
                path=path,
                dtype=_type_name(cell("data type")),
                layout=cell("format").strip() or "ND",
                shape=_shape(cell("shape")),
                nbytes=_value(cell("data size"), _whole) or 0,
                maximum=_value(cell("max value"), float),
                minimum=_value(cell("min value"), float),
                mean=_value(cell("avg value"), float),
                count=_value(cell("count"), _whole),
                nan_count=_value(cell("nan count"), _whole),
                negative_inf_count=_value(cell("negative inf count"), _whole),
                positive_inf_count=_value(cell("positive inf count"), _whole),
                l2_norm=_value(cell("l2norm"), float),
            )
        except ValueError as error:
            slot = f"{side or 'row'}:{cell('index').strip()}"
            bad.append((slot, Message("row.io.statistics_line", line=number, reason=str(error))))
    return OpDump(
        path=path,
        inputs=_slots(sides["input"]),
        outputs=_slots(sides["output"]),
        bad_slots=tuple(bad),
    )


def _numbered(rows: Iterator[list[str]], bad: list[tuple[str, Message]]) -> Iterator[tuple[int, list[str]]]:
    """The rows behind the header with their line numbers; those that are no CSV are added to `bad`."""
    for number in count(2):
        try:
            yield number, next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            bad.append(("row", Message("row.io.statistics_line", line=number, reason=str(error))))


def _slots(by_index: dict[int, TensorStatistics]) -> tuple[TensorStatistics | None, ...]:
    return tuple(by_index.get(index) for index in range(max(by_index, default=-1) + 1))


# --- Tensor files of TensorFlow's debugger, read where they lie: their values are those of a `.npy` file, undecoded ---


#: `Event.wall_time` (field 1, a double), then `Event.summary` (field 5, a message).
_HEAD = struct.Struct("<BdB")
_WALL_TIME, _SUMMARY = 0x09, 0x2A
#: Seconds or microseconds since 1970.
_EARLIEST, _LATEST = 1e8, 1e17
#: Tensors up to this size are decoded into a temporary file if they have to be, and up to this size in all: a small
#: file may claim to be a large tensor, whose last value stands for the rest.
_MAX_DECODED, _MAX_DECODED_IN_ALL = 64 << 20, 256 << 20
#: The temporary file of each that was decoded, and what the file was then.
_decoded_files: dict[str, tuple[Signature, str]] = {}
_decoded_lock = threading.Lock()


class NoNumbersError(FormatError):
    """A sound file of a tensor that has no numbers: texts, resources, a variable before it is initialized."""


def looks_like_event(head: bytes) -> bool:
    """Whether a file that starts like this is an `Event` with a summary, as tfdbg writes it for each tensor."""
    if len(head) < _HEAD.size:
        return False
    first, wall_time, second = _HEAD.unpack_from(head)
    return (first, second) == (_WALL_TIME, _SUMMARY) and _EARLIEST < wall_time < _LATEST


def read_tensor_event(path: str) -> Tensor:
    """The tensor of a file, undecoded; NoNumbersError for what has none, FormatError for what is damaged."""
    event = _event(path)
    if event.skip:
        raise NoNumbersError.of(path, "io.tfdbg.no_numbers", reason=event.skip)
    if event.plain is None:
        return _decoded(event)
    name = our_name(np.dtype(event.type.descr))
    if name is None:
        raise FormatError.of(path, "io.tfdbg.not_numbers", type=event.type.name)
    return Tensor(
        path=path,
        offset=event.plain.start,
        nbytes=event.nbytes,
        dtype=name,
        shape=event.shape,
        origin_shape=event.shape,
    )


def _event(path: str) -> TensorEvent:
    if store_of(path) is LOCAL:
        return read_event(path)
    with open_file(path) as file:
        return read_event_at(path, file.size, file.read_at)


def _decoded(event: TensorEvent) -> Tensor:
    """A tensor whose values are encoded one by one, which tfdbg itself does not do, from a file of this process."""
    if store_of(event.path) is not LOCAL:
        raise FormatError.of(event.path, "io.tfdbg.encoded_remote")
    if event.nbytes > _MAX_DECODED:
        raise FormatError.of(event.path, "io.tfdbg.encoded_large", nbytes=event.nbytes)
    with _decoded_lock:
        signature = signature_of(event.path)
        cached = _decoded_files.get(event.path)
        if cached is not None and cached[0] == signature and not may_change_unseen(*signature[1:3]):
            return read_npy(cached[1])
        folder = _decoded_folder()
        held = sum(file.stat().st_size for file in Path(folder).iterdir())
        if held + event.nbytes > _MAX_DECODED_IN_ALL:
            raise FormatError.of(event.path, "io.tfdbg.encoded_in_all", limit=_MAX_DECODED_IN_ALL)
        with tempfile.NamedTemporaryFile(suffix=".npy", dir=folder, delete=False) as file:
            path = file.name
        Path(path).unlink()  # a name nobody else has
        write_npy(event, path, lambda count: None)
        if signature is not None:
            _decoded_files[event.path] = signature, path
        return read_npy(path)


@cache
def _decoded_folder() -> str:
    folder = tempfile.mkdtemp(prefix="precision_tool_tfdbg_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


# --- the registry ---

#: So many bytes at the start of a file tell its format.
HEAD_BYTES = 256


@dataclass(frozen=True, slots=True)
class Reader:
    """A file format: `fits` looks at the first bytes, `read` reads the open file in pieces.

    `read` raises FormatError for a damaged file, and takes no memory that a file merely claims to need.
    """

    fits: Callable[[bytes], bool]
    read: Callable[[StoredFile], OpDump]
    #: Whether its files hold one tensor, without a slot.
    is_single: bool = False


def _of_tensor(fits: Callable[[bytes], bool], read: Callable[[StoredFile], Tensor]) -> Reader:
    """A reader of files of one tensor, as one of ops."""
    return Reader(fits, lambda file: OpDump(path=file.path, outputs=(read(file),)), is_single=True)


def _accept(name: str, reader: Any) -> Reader:
    if not isinstance(reader, Reader):
        raise TypeError(f"a Reader of {__name__} is needed")
    return reader


#: Formats with a mark at the start of the file, in the order in which they are asked.
READERS = Registry(
    "readers",
    {
        "npy": _of_tensor(lambda head: head.startswith(MAGIC), read_npy_file),
        "torch": _of_tensor(lambda head: head.startswith(TORCH_MAGIC), read_torch_file),
        "safetensors": Reader(looks_like_safetensors, read_safetensors_file),
        "statistics": Reader(looks_like_statistics, lambda file: read_statistics(file.path)),
        "tfdbg": _of_tensor(looks_like_event, lambda file: read_tensor_event(file.path)),
    },
    _accept,
)


def has_one_tensor(path: str) -> bool:
    """Return whether a file is of a format whose files hold one tensor and no slots."""
    with open_file(path) as file:
        head = file.read_at(0, min(HEAD_BYTES, file.size))
    return any(reader.is_single for reader in READERS.built_in.values() if reader.fits(head))


def open_op_dump(path: str) -> OpDump:
    """Read the tensors of a file of any format, whatever its name says; their values stay undecoded.

    GE's dump files have no mark: what is none of the others is read as one, and by third parties' readers if it is
    none.

    Parameters
    ----------
    path : str
        A dump of GE, a statistics CSV, a `.npy`, `.pt` or `.safetensors` file, a tensor of tfdbg, or a file of a third
        party's format.

    Returns
    -------
    OpDump
        Inputs and outputs of one op; what alone is damaged is listed in `bad_slots`.

    Raises
    ------
    DataNotFoundError
        The file is not there.
    FormatError
        It is none of these, or damaged as a whole.
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
