"""HDF5 at work for `h5_process`: a process of its own, which may die of a damaged file.

A request comes as JSON on standard input; its results go to standard output, each with its kind and length before it:
JSON, or the bytes of a block of a data set. Nothing here trusts what HDF5 says: it is passed on as plain values, and
judged by the parent. h5py is imported in this process only.
"""

from __future__ import annotations

import gc
import itertools
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

#: The kind and length before every message, and the longest message.
HEAD, LONGEST = struct.Struct("<cI"), 64 << 20
JSON, BLOCK = b"J", b"B"
#: What h5py raises, whatever is wrong.
H5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError, NotImplementedError)
CHUNKED, CONTIGUOUS, COMPACT = "chunked", "contiguous", "compact"
#: The numbers of HDF5's filters that do not change the size of a chunk, but for the four bytes of the checksum.
_SHUFFLE, _FLETCHER32 = 2, 3
#: What a compressed chunk may take beyond its size where compressing did not make it smaller.
_CHUNK_SLACK = 1 << 16
#: Attributes are single numbers, but for strides.
_MAX_ATTRIBUTE = 64
#: Files that stay open while blocks are read: those of both sides.
_OPEN_FILES = 2
#: Seconds after which results are sent though they are few.
_SEND_AFTER = 0.5
#: The exit code of a process that is to be followed by another one.
_NEXT_PROCESS = 75


@dataclass(frozen=True, kw_only=True)
class H5Object:
    """An object of a file, by the parts of its name, as its header describes it.

    `layout` is empty for what is neither a group nor a data set. `shape` is None for a data set without one, `offset`
    (bytes) for one that was never written, `type` is numpy's name of the type, whose elements take `itemsize` bytes;
    `is_usual` is false where HDF5 stores them in another way than numpy does. `written_chunks` counts the chunks that
    are there, `unknown_filters` are those that this HDF5 has not; `numbers` are those of its attributes.
    """

    parts: list[str]
    layout: str = ""
    shape: list[int] | None = None
    itemsize: int = 0
    type: str = ""
    type_error: str = ""
    is_usual: bool = False
    nbytes: int = 0
    offset: int | None = None
    chunk: list[int] = field(default_factory=list)
    written_chunks: int = 0
    unknown_filters: list[int] = field(default_factory=list)
    numbers: dict[str, list[int]] = field(default_factory=dict)


class _RefusedError(Exception):
    """The name of an object, why it is refused (a kind below `error.io.h5.refusal`), and the limit or target."""


class _OpeningError(Exception):
    """Why a file cannot be opened."""


def _h5_reason(error: BaseException) -> str:
    """Return what h5py says, in one line."""
    text = str(error.args[0]) if error.args else ""
    return text.splitlines()[0] if text else type(error).__name__


class _Hdf5:
    """The work of this process, each public method for the requests of its name."""

    def __init__(self, h5py: ModuleType) -> None:
        self._h5py: Any = h5py
        self._files: OrderedDict[tuple[str, int, int, int, int], Any] = OrderedDict()

    def walk(self, path: str, most: int, depth: int, attributes: list[str]) -> Iterator[H5Object]:
        """Every object below the root that is no group. Links that lead out of the file or in circles are refused."""
        h5o, h5l = self._h5py.h5o, self._h5py.h5l
        with self._opened(path) as file:
            groups = {h5o.get_info(file.id).addr}
            stack: list[tuple[Any, list[str]]] = [(file.id, [])]
            count = 0
            while stack:
                group, above = stack.pop()
                if len(above) >= depth:
                    raise _RefusedError("/" + "/".join(above), "nested", str(depth))
                count += group.get_num_objs()
                if count > most:
                    raise _RefusedError("it", "objects", f"{most:,}")
                names: list[bytes] = []
                group.links.iterate(names.append)
                for raw in names:
                    parts = [*above, _text(raw)]
                    name = "/" + "/".join(parts)
                    kind = group.links.get_info(raw).type
                    if kind == h5l.TYPE_EXTERNAL:
                        raise _RefusedError(name, "external_link", _text(group.links.get_val(raw)[0]))
                    if kind != h5l.TYPE_HARD:
                        raise _RefusedError(name, "symbolic_link")
                    info = h5o.get_info(group, raw)
                    if info.type == h5o.TYPE_GROUP:
                        if info.addr in groups:
                            raise _RefusedError(name, "cycle")
                        groups.add(info.addr)
                        stack.append((h5o.open(group, raw), parts))
                    elif info.type == h5o.TYPE_DATASET:
                        yield self._described(h5o.open(group, raw), name, parts, attributes)
                    else:
                        yield H5Object(parts=parts)

    def _described(self, dataset: Any, name: str, parts: list[str], attributes: list[str]) -> H5Object:
        h5d, properties = self._h5py.h5d, dataset.get_create_plist()
        if properties.get_layout() == h5d.VIRTUAL:
            raise _RefusedError(name, "virtual")
        if properties.get_external_count():
            raise _RefusedError(name, "external", _text(properties.get_external(0)[0]))
        layout = {h5d.CHUNKED: CHUNKED, h5d.CONTIGUOUS: CONTIGUOUS}.get(properties.get_layout(), COMPACT)
        stored, type_name, type_error, is_usual = dataset.get_type(), "", "", False
        try:
            dtype = dataset.dtype
            type_name = dtype.str if dtype.kind in "biufc" else str(dtype)[:100]
        except H5_ERRORS as error:
            type_error = _h5_reason(error)
        else:
            if dtype.kind in "biufc":
                is_usual = self._h5py.h5t.py_create(dtype, logical=True).equal(stored)
        filters = [properties.get_filter(number)[0] for number in range(properties.get_nfilters())]
        numbers = {key: value for key in attributes if (value := self._numbers(dataset, key.encode())) is not None}
        return H5Object(
            parts=parts,
            layout=layout,
            shape=None if dataset.shape is None else [int(extent) for extent in dataset.shape],
            itemsize=stored.get_size(),
            type=type_name,
            type_error=type_error,
            is_usual=is_usual,
            nbytes=dataset.get_storage_size(),
            offset=dataset.get_offset() if layout == CONTIGUOUS else None,
            chunk=[int(extent) for extent in properties.get_chunk()] if layout == CHUNKED else [],
            written_chunks=dataset.get_num_chunks() if layout == CHUNKED and prod(dataset.shape or (0,)) else 0,
            unknown_filters=[code for code in filters if not self._h5py.h5z.filter_avail(code)],
            numbers=numbers,
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

    def blocks(
        self, path: str, dataset: str, type: str, nbytes: int, block: list[int] | None, start: int, stop: int
    ) -> Iterator[bytes]:
        """Yield the blocks of a data set from one number up to another, each of `nbytes`.

        They are counted in C order of the grid that blocks of this shape make (None: the whole is one block). Those at
        the ends of axes are filled up with zeros.
        """
        import numpy as np

        identity = self._cached_file(path)[dataset].id
        shape = identity.shape
        block = list(shape) if block is None else block
        if identity.dtype.str != type or len(block) != len(shape) or prod(block) * identity.dtype.itemsize != nbytes:
            raise ValueError("the file has changed")
        grid = [-(-extent // step) if step else 1 for extent, step in zip(shape, block, strict=True)]
        properties, chunk, filters = identity.get_create_plist(), (), []
        if properties.get_layout() == self._h5py.h5d.CHUNKED:
            chunk = properties.get_chunk()
            filters = [properties.get_filter(number)[0] for number in range(properties.get_nfilters())]
        for number in range(start, min(stop, prod(grid))):
            place = _block_place(number, grid, block)
            part = tuple(min(extent - at, step) for extent, at, step in zip(shape, place, block, strict=True))
            if chunk:
                axes = zip(place, part, chunk, strict=True)
                for corner in itertools.product(*(range(at, at + extent, step) for at, extent, step in axes)):
                    _check_chunk(identity, corner, prod(chunk) * identity.dtype.itemsize, filters)
            array = np.empty(part, identity.dtype)
            space = memory = self._h5py.h5s.ALL
            if part != shape:
                space, memory = identity.get_space(), self._h5py.h5s.create_simple(part)
                space.select_hyperslab(place, part)
            try:
                identity.read(memory, space, array)
            except H5_ERRORS as error:
                raise ValueError(f"chunk at {list(place)}: {_h5_reason(error)}") from error
            if part != tuple(block):
                array = np.pad(array, [(0, step - extent) for step, extent in zip(block, part, strict=True)])
            yield array.tobytes()

    def copy(self, path: str, target: str, mode: str, ops: list[list[Any]]) -> Iterator[None]:
        """Copy ops, given by type and number, into a file that nobody else uses."""
        # In the oldest format: what reads it may have been built with an HDF5 of 2020.
        with self._opened(path) as source, self._h5py.File(target, mode, libver="earliest") as copied:
            for op_type, seq in ops:
                name = f"/{op_type}/{seq}"
                if name in copied:
                    del copied[name]
                source.copy(name, copied.require_group(f"/{op_type}"), name=str(seq))
                yield None

    @contextmanager
    def _opened(self, path: str) -> Iterator[Any]:
        # HDF5 would take what it remembers of a file that is still open, though another one is written over it.
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
            raise _OpeningError(_h5_reason(error)) from error

    def _cached_file(self, path: str) -> Any:
        """The file, opened if it is not or has changed."""
        state = os.stat(path)
        key = (path, state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns)
        if key not in self._files:
            for old in [old for old in self._files if old[0] == path or len(self._files) >= _OPEN_FILES]:
                self._files.pop(old).close()
            self._files[key] = self._open(path)
        self._files.move_to_end(key)
        return self._files[key]


def _check_chunk(dataset: Any, corner: tuple[int, ...], nbytes: int, filters: list[int]) -> None:
    """Raise ValueError for a chunk whose size HDF5 would believe, copying it into a buffer for `nbytes`."""
    info = dataset.get_chunk_info_by_coord(corner)
    if info.byte_offset is None:
        raise ValueError(f"chunk at {list(corner)}: it was never written")
    applied = [code for number, code in enumerate(filters) if not info.filter_mask >> number & 1]
    exact = nbytes + 4 * applied.count(_FLETCHER32)
    is_compressed = bool(set(applied) - {_SHUFFLE, _FLETCHER32})
    if info.size > 2 * nbytes + _CHUNK_SLACK or (not is_compressed and info.size != exact):
        raise ValueError(f"chunk at {list(corner)}: it claims {info.size} bytes instead of {exact}")


def _block_place(number: int, grid: list[int], block: list[int]) -> tuple[int, ...]:
    """Return the index of the first element of a block, of a grid of so many blocks along each axis."""
    place = []
    for count, step in zip(reversed(grid), reversed(block), strict=True):
        number, at = divmod(number, count)
        place.append(at * step)
    return tuple(reversed(place))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


# --- the process ------------------------------------------------------------------------------------------------------


class _Answers:
    """The way back. Results are sent in large pieces, and those of slow work now and then: silence is a hang."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._seconds, self._sent, self._is_limited = 0, 0.0, False

    def begin(self, seconds: int, memory: int) -> None:
        """Limit the CPU seconds of the next request between two pieces, and the memory of all requests."""
        self._seconds = seconds
        if not self._is_limited:
            with open("/proc/self/statm", encoding="ascii") as file:
                used = int(file.read().split()[0]) * resource.getpagesize()
            _lower(resource.RLIMIT_AS, used + memory)
            self._is_limited = True
        self.send()

    def put(self, answer: object) -> None:
        kind, data = BLOCK, answer
        if not isinstance(data, bytes):
            kind, data = JSON, json.dumps(answer, default=vars, separators=(",", ":")).encode("ascii")
        if len(data) > LONGEST:
            raise ValueError("one object of it has a name or shape of many megabytes")
        self._stream.write(HEAD.pack(kind, len(data)))
        self._stream.write(data)
        if time.monotonic() - self._sent > _SEND_AFTER:
            self.send()

    def send(self) -> None:
        self._stream.flush()
        self._sent = time.monotonic()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        _lower(resource.RLIMIT_CPU, ceil(usage.ru_utime + usage.ru_stime) + self._seconds)


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
        is_os_error = isinstance(error, OSError)
        reason = (error.strerror if isinstance(error, OSError) else "") or _h5_reason(error)
        return {"failed": reason, "opening": isinstance(error, _OpeningError), "is_os_error": is_os_error}
    return {"fault": traceback.format_exc()}


def _serve(hdf5: _Hdf5 | None, answers: _Answers) -> int:
    """Answer requests until there are no more, or one failed; return the exit code."""
    while head := _exactly(HEAD.size):
        request = json.loads(_exactly(HEAD.unpack(head)[1]))
        if hdf5 is None:
            answers.put({"missing": True})
            answers.send()
            continue
        answers.begin(request["seconds"], request["memory"])
        try:
            for row in getattr(hdf5, request["method"])(**request["arguments"]):
                answers.put(row if isinstance(row, bytes) else {"row": row})
        except Exception as error:
            answers.put(_failure(error))
            answers.send()
            return _NEXT_PROCESS
        answers.put({"done": True})
        answers.send()
    return 0


def _exactly(count: int) -> bytes:
    """Read from the parent. Nothing of the next request is read with it, which may be for the next process."""
    data = b""
    while len(data) < count and (piece := os.read(0, count - len(data))):
        data += piece
    return data


def main() -> NoReturn:
    """Answer requests until there are no more.

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
    code = _NEXT_PROCESS
    while code == _NEXT_PROCESS:
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
