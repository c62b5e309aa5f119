"""HDF5 at work for `h5_process`: a process of its own, which may die of a damaged file.

A request comes as JSON on standard input; what it gives goes row by row to standard output, then `{"done": value}` or
why there is none. The length stands before each, in four bytes. Nothing here is sure of what HDF5 says: it is passed
on as plain values, and judged by the parent. h5py is imported in this process only.
"""

from __future__ import annotations

import base64
import gc
import json
import os
import resource
import struct
import time
import traceback
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil, prod
from types import ModuleType
from typing import Any, BinaryIO, NoReturn

#: What stands before every message, and the longest message.
LENGTH, LONGEST = struct.Struct("<I"), 64 << 20
#: What h5py raises, whatever is wrong.
H5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError, NotImplementedError)
CHUNKED, CONTIGUOUS, COMPACT = "chunked", "contiguous", "compact"
#: Attributes are single numbers, but for strides.
_MAX_ATTRIBUTE = 64
#: Files that stay open while chunks are looked up: those of both sides.
_KEPT_FILES = 2
#: Seconds after which rows are sent though they are few.
_SENT_AFTER = 0.5
#: The exit code of a process that is to be followed by another one.
_ONE_MORE = 75


@dataclass(frozen=True, kw_only=True)
class StoredData:
    """A data set as its header tells of it.

    `shape` is None for one without, `offset` (bytes) for one that was never written, `type` numpy's name of the type,
    whose elements take `itemsize` bytes; `is_usual` is false where HDF5 stores them in another way than numpy does.
    """

    layout: str
    shape: list[int] | None
    itemsize: int
    type: str
    type_error: str
    is_usual: bool
    nbytes: int
    offset: int | None
    chunk: list[int]
    filters: list[int]


@dataclass(frozen=True, kw_only=True)
class FoundObject:
    """An object of a file by the parts of its name; `data` is None for what is neither a group nor a data set.

    `written` counts the chunks that are there, `numbers` are those of its attributes.
    """

    parts: list[str]
    data: StoredData | None = None
    written: int = 0
    numbers: dict[str, list[int]] = field(default_factory=dict)


class _RefusedError(Exception):
    """The name of an object, and what it is that is refused."""


class _OpeningError(Exception):
    """Why a file cannot be opened."""


def h5_reason(error: BaseException) -> str:
    """What h5py says, in one line."""
    text = str(error.args[0]) if error.args else ""
    return text.splitlines()[0] if text else type(error).__name__


# --- what is asked for ------------------------------------------------------------------------------------------------


class _Hdf5:
    """What this process does, each method for the requests of its name."""

    def __init__(self, h5py: ModuleType) -> None:
        self._h5py: Any = h5py
        self._files: OrderedDict[tuple[str, int, int, int, int], Any] = OrderedDict()

    def walk(self, path: str, most: int, depth: int, attributes: list[str]) -> Iterator[FoundObject]:
        """Every object below the root that is no group. Links that lead out of the file or in circles are refused."""
        h5o, h5l = self._h5py.h5o, self._h5py.h5l
        with self._opened(path) as file:
            groups = {h5o.get_info(file.id).addr}
            stack: list[tuple[Any, list[str]]] = [(file.id, [])]
            seen = 0
            while stack:
                group, above = stack.pop()
                if len(above) >= depth:
                    raise _RefusedError("/" + "/".join(above), f"is nested more than {depth} levels deep")
                seen += group.get_num_objs()
                if seen > most:
                    raise _RefusedError("it", f"holds more than {most:,} groups and data sets")
                names: list[bytes] = []
                group.links.iterate(names.append)
                for raw in names:
                    parts = [*above, _text(raw)]
                    name = "/" + "/".join(parts)
                    kind = group.links.get_info(raw).type
                    if kind == h5l.TYPE_EXTERNAL:
                        raise _RefusedError(name, "is a link to another file", _text(group.links.get_val(raw)[0]))
                    if kind != h5l.TYPE_HARD:
                        raise _RefusedError(name, "is a symbolic link")
                    info = h5o.get_info(group, raw)
                    if info.type == h5o.TYPE_GROUP:
                        if info.addr in groups:
                            raise _RefusedError(name, "is a group that is in the file more than once: a cycle")
                        groups.add(info.addr)
                        stack.append((h5o.open(group, raw), parts))
                    elif info.type == h5o.TYPE_DATASET:
                        yield self._found(h5o.open(group, raw), name, parts, attributes)
                    else:
                        yield FoundObject(parts=parts)

    def _found(self, dataset: Any, name: str, parts: list[str], attributes: list[str]) -> FoundObject:
        properties = dataset.get_create_plist()
        if properties.get_layout() == self._h5py.h5d.VIRTUAL:
            raise _RefusedError(name, "is a virtual data set: its data lies in other files")
        if properties.get_external_count():
            raise _RefusedError(name, "keeps its data in another file", _text(properties.get_external(0)[0]))
        data = self._stored(dataset)
        numbers = {one: value for one in attributes if (value := self._numbers(dataset, one.encode())) is not None}
        is_chunked = data.layout == CHUNKED and data.shape is not None and prod(data.shape) > 0
        return FoundObject(
            parts=parts, data=data, written=dataset.get_num_chunks() if is_chunked else 0, numbers=numbers
        )

    def _numbers(self, dataset: Any, name: bytes) -> list[int] | None:
        """The whole numbers of an attribute; None for one that is not there or holds something else."""
        import numpy as np

        try:
            attribute = self._h5py.h5a.open(dataset, name)
            shape = attribute.shape
            if attribute.get_type().get_class() != self._h5py.h5t.INTEGER or prod(shape) > _MAX_ATTRIBUTE:
                return None
            array = np.empty(shape, np.int64)
            attribute.read(array)
        except H5_ERRORS:
            return None
        numbers: list[int] = array.reshape(-1).tolist()
        return numbers

    def _stored(self, dataset: Any) -> StoredData:
        h5d = self._h5py.h5d
        properties = dataset.get_create_plist()
        layout = {h5d.CHUNKED: CHUNKED, h5d.CONTIGUOUS: CONTIGUOUS}.get(properties.get_layout(), COMPACT)
        stored, shown, why, is_usual = dataset.get_type(), "", "", False
        try:
            dtype = dataset.dtype
            shown = dtype.str if dtype.kind in "biufc" else str(dtype)[:100]
        except H5_ERRORS as error:
            why = h5_reason(error)
        else:
            if dtype.kind in "biufc":
                is_usual = self._h5py.h5t.py_create(dtype, logical=True).equal(stored)
        return StoredData(
            layout=layout,
            shape=None if dataset.shape is None else [int(extent) for extent in dataset.shape],
            itemsize=stored.get_size(),
            type=shown,
            type_error=why,
            is_usual=is_usual,
            nbytes=dataset.get_storage_size(),
            offset=dataset.get_offset() if layout == CONTIGUOUS else None,
            chunk=[int(extent) for extent in properties.get_chunk()] if layout == CHUNKED else [],
            filters=[properties.get_filter(number)[0] for number in range(properties.get_nfilters())],
        )

    def header(self, path: str, dataset: str) -> Iterator[StoredData]:
        """What the header of one data set tells."""
        yield self._stored(self._kept(path)[dataset].id)

    def places(self, path: str, dataset: str, start: int, stop: int) -> Iterator[list[int | None] | str]:
        """Where chunks lie: byte offset (None: never written), size and filter mask; for one that is not found, why."""
        identity = self._kept(path)[dataset].id
        shape, chunk = identity.shape, identity.get_create_plist().get_chunk()
        grid = [-(-extent // step) for extent, step in zip(shape, chunk, strict=True)]
        for number in range(start, min(stop, prod(grid))):
            try:
                info = identity.get_chunk_info_by_coord(chunk_place(number, grid, chunk))
                yield [info.byte_offset, info.size, info.filter_mask]
            except H5_ERRORS as error:
                yield h5_reason(error)

    def compact(self, path: str, dataset: str, most: int) -> Iterator[str]:
        """The data of a data set that has it in its header, as base64."""
        import numpy as np

        identity = self._kept(path)[dataset].id
        array = np.empty(identity.shape, identity.dtype)
        if array.nbytes > most:
            raise ValueError("the file has changed")
        space = identity.get_space()
        identity.read(space, space, array, mtype=identity.get_type())
        yield base64.b64encode(array.tobytes()).decode("ascii")

    def copy(self, path: str, target: str, mode: str, ops: list[list[Any]]) -> Iterator[None]:
        """Copies ops, given by type and number, into a file that nobody else uses."""
        # In the oldest format: what reads it may have been built with an HDF5 of 2020.
        with self._opened(path) as given, self._h5py.File(target, mode, libver="earliest") as made:
            for op_type, seq in ops:
                name = f"/{op_type}/{seq}"
                if name in made:
                    del made[name]
                given.copy(name, made.require_group(f"/{op_type}"), name=str(seq))
                yield None

    # --- files

    @contextmanager
    def _opened(self, path: str) -> Iterator[Any]:
        # HDF5 would take what it knows of a file that is open still, though another one is written over it.
        while self._files:
            self._files.popitem()[1].close()
        file = self._open(path)
        try:
            yield file
        finally:
            file.close()

    def _open(self, path: str) -> Any:
        try:
            return self._h5py.File(path, "r", locking=False)
        except H5_ERRORS as error:
            raise _OpeningError(h5_reason(error)) from error

    def _kept(self, path: str) -> Any:
        """The file, opened if it is not or has changed."""
        state = os.stat(path)
        key = (path, state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns)
        if key not in self._files:
            for known in [one for one in self._files if one[0] == path or len(self._files) >= _KEPT_FILES]:
                self._files.pop(known).close()
            self._files[key] = self._open(path)
        self._files.move_to_end(key)
        return self._files[key]


def chunk_place(number: int, grid: list[int], chunk: tuple[int, ...] | list[int]) -> tuple[int, ...]:
    """The index of the first element of a chunk, of a grid of so many chunks along each axis."""
    place = []
    for count, step in zip(reversed(grid), reversed(chunk), strict=True):
        number, at = divmod(number, count)
        place.append(at * step)
    return tuple(reversed(place))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


# --- the process ------------------------------------------------------------------------------------------------------


class _Answers:
    """The way back. Rows are sent in large pieces, and those of slow work now and then: silence is a hang."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._seconds, self._sent, self._is_limited = 0, 0.0, False

    def begin(self, seconds: int, memory: int) -> None:
        """The next request is given so many seconds of CPU time between two pieces, all requests so much memory."""
        self._seconds = seconds
        if not self._is_limited:
            _limit_memory(memory)
            self._is_limited = True
        self.send()

    def tell(self, answer: object) -> None:
        data = json.dumps(answer, default=vars, separators=(",", ":")).encode("ascii")
        if len(data) > LONGEST:
            raise ValueError("one object of it has a name or shape of many megabytes")
        self._stream.write(LENGTH.pack(len(data)) + data)
        if time.monotonic() - self._sent > _SENT_AFTER:
            self.send()

    def send(self) -> None:
        self._stream.flush()
        self._sent = time.monotonic()
        _limit_time(self._seconds)


def _limit_time(seconds: int) -> None:
    """Ends the process, by a signal, after so many seconds of CPU time from now on."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _lower(resource.RLIMIT_CPU, ceil(used.ru_utime + used.ru_stime) + seconds)


def _limit_memory(nbytes: int) -> None:
    """Refuses memory beyond so many bytes more than there are now."""
    with open("/proc/self/statm", encoding="ascii") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    _lower(resource.RLIMIT_AS, held + nbytes)


def _lower(kind: int, limit: int) -> None:
    _, most = resource.getrlimit(kind)
    resource.setrlimit(kind, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))


def _failure(error: Exception) -> dict[str, object]:
    """Why a request failed, for the parent."""
    if isinstance(error, _RefusedError):
        return {"refused": list(error.args)}
    if isinstance(error, MemoryError):
        return {"failed": "it takes more memory than such a file may"}
    if isinstance(error, (_OpeningError, *H5_ERRORS)):
        is_output = isinstance(error, OSError)
        why = (error.strerror or h5_reason(error)) if isinstance(error, OSError) else h5_reason(error)
        return {"failed": why, "opening": isinstance(error, _OpeningError), "is_os_error": is_output}
    return {"fault": traceback.format_exc()}


def _serve(hdf5: _Hdf5 | None, answers: _Answers) -> int:
    """Answers requests until there are no more, or one failed; the exit code."""
    while head := os.read(0, LENGTH.size):
        asked = json.loads(_exactly(*LENGTH.unpack(head + _exactly(LENGTH.size - len(head)))))
        if hdf5 is None:
            answers.tell({"missing": True})
            answers.send()
            continue
        answers.begin(asked["seconds"], asked["memory"])
        try:
            for row in getattr(hdf5, asked["method"])(**asked["given"]):
                answers.tell({"row": row})
        except Exception as error:
            answers.tell(_failure(error))
            answers.send()
            return _ONE_MORE
        answers.tell({"done": True})
        answers.send()
    return 0


def _exactly(count: int) -> bytes:
    """What the parent sends. Nothing of the next request is read with it, which may be for the next process."""
    data = b""
    while len(data) < count and (piece := os.read(0, count - len(data))):
        data += piece
    return data


def main() -> NoReturn:
    """Answers requests until there are no more.

    What fails in the middle leaves memory and open objects behind in HDF5, in the end too many for a whole file.
    So a copy of this process works until something fails; it is made in a moment, starting anew takes longer.
    """
    answers = _Answers(os.fdopen(os.dup(1), "wb", buffering=1 << 16))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # whatever a library prints is no answer
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        import h5py
    except ImportError:
        hdf5 = None
    else:
        hdf5 = _Hdf5(h5py)
    gc.freeze()
    code = _ONE_MORE
    while code == _ONE_MORE:
        process = os.fork()
        if not process:
            code = 1
            try:
                code = _serve(hdf5, answers)
            finally:
                os._exit(code)  # not in the usual way: damaged files make HDF5 die of that too
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)
