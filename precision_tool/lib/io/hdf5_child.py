"""HDF5 at work for `hdf5_process`: a process of its own, which may die of a damaged file.

Requests and answers are lines of JSON, both on the socket that is standard input. The bytes of data sets are left in
memory that the parent sees too. Nothing here trusts what HDF5 says: it is passed on as plain values, and judged by the
parent. h5py is imported in this process only.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import resource
import time
import traceback
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil, prod
from types import ModuleType
from typing import Any, NoReturn

#: Bytes of a line at most, and of the memory in which blocks are left.
LONGEST, BUFFER = 64 << 20, 64 << 20
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

    def __init__(self, h5py: ModuleType, buffer: mmap.mmap) -> None:
        self._h5py: Any = h5py
        self._buffer = buffer
        #: Open files, and the names of their data sets whose chunks have the sizes that they need.
        self._files: OrderedDict[tuple[str, int, int, int, int], tuple[Any, set[str]]] = OrderedDict()

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
        self, path: str, dataset: str, dtype: str, shape: list[int], block: list[int], numbers: list[int]
    ) -> Iterator[None]:
        """Leave the blocks of a data set from one number up to another in the buffer, and yield when they are there.

        They are counted in C order of the grid that blocks of this shape make. Those at the ends of axes are filled up
        with zeros.
        """
        import numpy as np

        identity = self._dataset(path, dataset).id
        if identity.dtype.str != dtype or list(identity.shape) != shape:
            raise ValueError("the file has changed")
        grid = [-(-extent // step) if step else 1 for extent, step in zip(shape, block, strict=True)]
        start, stop = numbers
        filled = np.ndarray((stop - start, *block), identity.dtype, self._buffer)
        for number, target in zip(range(start, stop), filled, strict=True):
            place = [int(index) * step for index, step in zip(np.unravel_index(number, grid), block, strict=True)]
            part = tuple(min(extent - at, step) for extent, at, step in zip(shape, place, block, strict=True))
            array = target if part == target.shape else np.empty(part, identity.dtype)
            space = memory = self._h5py.h5s.ALL
            if list(part) != shape:
                space, memory = identity.get_space(), self._h5py.h5s.create_simple(part)
                space.select_hyperslab(tuple(place), part)
            try:
                identity.read(memory, space, array)
            except H5_ERRORS as error:
                raise ValueError(f"chunk at {place}: {_h5_reason(error)}") from error
            if array is not target:
                target[...] = 0
                target[tuple(map(slice, part))] = array
        yield None

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
            self._files.popitem()[1][0].close()
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

    def _dataset(self, path: str, name: str) -> Any:
        """A data set of a file, which is opened if it is not or has changed."""
        state = os.stat(path)
        key = (path, state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns)
        if key not in self._files:
            for old in [old for old in self._files if old[0] == path or len(self._files) >= _OPEN_FILES]:
                self._files.pop(old)[0].close()
            self._files[key] = self._open(path), set()
        self._files.move_to_end(key)
        file, checked = self._files[key]
        dataset = file[name]
        if name not in checked and dataset.chunks is not None:
            self._check_chunks(dataset.id)
            checked.add(name)
        return dataset

    def _check_chunks(self, dataset: Any) -> None:
        """Raise ValueError for a chunk whose size HDF5 would believe, copying it into a buffer for that of a chunk."""
        properties = dataset.get_create_plist()
        nbytes = prod(properties.get_chunk()) * dataset.dtype.itemsize
        filters = [properties.get_filter(number)[0] for number in range(properties.get_nfilters())]

        def fault(info: Any) -> str | None:
            applied = [code for number, code in enumerate(filters) if not info.filter_mask >> number & 1]
            exact = nbytes + 4 * applied.count(_FLETCHER32)
            is_compressed = bool(set(applied) - {_SHUFFLE, _FLETCHER32})
            if info.size > 2 * nbytes + _CHUNK_SLACK or (not is_compressed and info.size != exact):
                return f"chunk at {list(info.chunk_offset)}: it claims {info.size} bytes instead of {exact}"
            return None

        reason = dataset.chunk_iter(fault)
        if reason is not None:
            raise ValueError(reason)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


# --- the process ------------------------------------------------------------------------------------------------------


class _Answers:
    """The way back. Results are sent in large pieces, and those of slow work now and then: silence is a hang."""

    def __init__(self, seconds: int) -> None:
        """`seconds` of CPU time may pass between two pieces."""
        self._stream = os.fdopen(os.dup(0), "wb", buffering=1 << 16)
        self._seconds, self._sent = seconds, 0.0
        self.send()

    def put(self, answer: object) -> None:
        line = json.dumps(answer, default=vars, separators=(",", ":")).encode("ascii") + b"\n"
        if len(line) > LONGEST:
            raise ValueError("one object of it has a name or shape of many megabytes")
        self._stream.write(line)
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


def _serve(hdf5: _Hdf5 | None) -> int:
    """Answer requests until there are no more, or one failed; return the exit code."""
    with os.fdopen(0, "rb", closefd=False) as requests:
        for line in requests:  # the parent sends the next one when it has the whole answer
            request = json.loads(line)
            answers = _Answers(request["seconds"])
            answer: dict[str, object] = {"missing" if hdf5 is None else "done": True}
            try:
                if hdf5 is not None:
                    for row in getattr(hdf5, request["method"])(**request["arguments"]):
                        answers.put({"row": row})
            except Exception as error:
                answer = _failure(error)
            answers.put(answer)
            answers.send()
            if "done" not in answer:
                return _NEXT_PROCESS
    return 0


def main(buffer: int, memory: int) -> NoReturn:
    """Answer requests until there are no more. `buffer` is a descriptor of shared memory, `memory` the limit in bytes.

    What fails in the middle leaves memory and open objects behind in HDF5, in the end too many for a whole file.
    So a copy of this process works until something fails; it is made in a moment, starting anew takes longer.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        import h5py
    except ImportError:
        hdf5 = None
    else:
        hdf5 = _Hdf5(h5py, mmap.mmap(buffer, BUFFER))
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    _lower(resource.RLIMIT_AS, used + memory)
    gc.freeze()
    code = _NEXT_PROCESS
    while code == _NEXT_PROCESS:
        process = os.fork()
        if not process:
            code = 1
            try:
                code = _serve(hdf5)
            finally:
                os._exit(code)  # not in the usual way: damaged files make HDF5 die of that too
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)
