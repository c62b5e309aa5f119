"""HDF5 in a process of its own: what a damaged file does to HDF5 ends in a reason, not in the death of the tool.

HDF5 trusts what it reads: some files make it crash, others compute for ever or ask for all memory. Everything that
needs it, but for writing the demo's data, is asked of a child process (`h5_child`) under limits of time and memory. One
child serves this process, from the first request on; after its death another one is started.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import util
from types import ModuleType
from typing import Any

from precision_tool.lib.io.files import local_file, open_file
from precision_tool.lib.io.hdf5_child import BLOCK, HEAD, JSON, LONGEST
from precision_tool.lib.io.local import opened_path
from precision_tool.lib.io.stores import StoredFile
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError, OutputError, UsageError, shown_name

#: What HDF5 files of any kind begin with.
SIGNATURE = b"\x89HDF\r\n\x1a\n"
#: The superblock of version 0 or 1 up to the end of the widest address of a driver information block.
_SUPERBLOCK = 28 + 4 * 8
#: CPU seconds and seconds of silence after which the child is ended, memory that it may take.
CPU_SECONDS, WAIT_SECONDS, MEMORY = 30, 600, 1 << 30
#: Bytes of answers to one request: those of the most objects a file may have, with names of the usual length.
MOST_ANSWERED = 1 << 30
#: A file that the child died of so many times is not tried again.
MOST_DEATHS = 3


#: What a pipe holds, at the most that any user may ask for.
_PIPE_BYTES = 1 << 20
_NO_ANSWER = Message("row.io.h5.no_sensible_answer")
#: With the modules that this process finds, and nothing from the working folder that it would not find.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from precision_tool.lib.io.hdf5_child import main; main()"
)


@dataclass(kw_only=True)
class Hdf5Error(Exception):
    """HDF5 could not do it: `reason` in one line.

    `died` says that the process did not survive it, `opening` that it is the file that cannot be opened at all,
    `is_os_error` that the reason is the system's.
    """

    reason: Message | str
    died: bool = False
    opening: bool = False
    is_os_error: bool = False


def missing_h5py(path: str) -> UsageError:
    """The error where h5py is not installed; `path` is what it is needed for."""
    return UsageError("io.h5.no_h5py", path=path)


def h5py_module(path: str) -> ModuleType:
    """h5py in this process, to write files of our own. UsageError where it is not installed."""
    try:
        import h5py
    except ImportError as error:
        raise missing_h5py(path) from error
    module: ModuleType = h5py
    return module


def check_file(path: str) -> int:
    """The size of an HDF5 file; the user's errors for what is none, is not there, may not be read or is refused.

    Refused is what HDF5 would take at its word when it opens the file: memory of a size that four bytes claim.
    """
    with open_file(local_file(path)) as file:
        if not file.size:
            raise FormatError.of(path, "io.h5.empty")
        _check_superblock(file)
        return file.size


def _check_superblock(file: StoredFile) -> None:
    head = file.read_at(0, min(file.size, _SUPERBLOCK))
    if not head.startswith(SIGNATURE):
        place = 512
        while place + len(SIGNATURE) <= file.size:  # where HDF5 looks as well
            if file.read_at(place, len(SIGNATURE)) == SIGNATURE:
                raise FormatError.of(file.path, "io.h5.late_start", offset=place)
            place *= 2
        return  # HDF5 says what is wrong
    version, width = (head[8], head[13]) if len(head) == _SUPERBLOCK else (2, 0)
    if version > 1:
        return
    place = (24 if version == 0 else 28) + 3 * width
    if head[place : place + width] != b"\xff" * width:
        raise FormatError.of(file.path, "io.h5.driver_block", offset=place)


def ask_hdf5(method: str, path: str, *, seconds: int | None = None, **arguments: object) -> list[Any]:
    """Return all rows that a method of `h5_child` yields for a file. `seconds` of CPU time replace the usual ones.

    Hdf5Error for what HDF5 cannot do or died of, FormatError for what is refused, UsageError without h5py.
    """
    return list(_child.rows(method, path, CPU_SECONDS if seconds is None else seconds, arguments))


@contextmanager
def each_from_hdf5(method: str, path: str, **arguments: object) -> Iterator[Iterator[Any]]:
    """The same row by row; nothing else may be asked within the block."""
    with closing(_child.rows(method, path, CPU_SECONDS, arguments)) as rows:
        yield rows


def close_hdf5() -> None:
    """Ends the child of this process, if it has one."""
    with _child.lock:
        _child.close()


class _Child:
    """The child process, or none yet."""

    def __init__(self) -> None:
        #: Held for a whole request: there is one pipe.
        self.lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._read = bytearray()
        self._deaths: Counter[tuple[str, int]] = Counter()

    def rows(self, method: str, path: str, seconds: int, arguments: dict[str, object]) -> Generator[Any, None, None]:
        full = os.path.abspath(opened_path(path))
        with self.lock:
            file = (full, _changed_at(full))
            if self._deaths[file] >= MOST_DEATHS:
                raise Hdf5Error(reason=Message("row.io.h5.died_often"), died=True)
            is_done = False
            try:
                arguments = {"path": full, **arguments}
                self._send({"method": method, "arguments": arguments, "seconds": seconds, "memory": MEMORY})
                for answer in self._answers(seconds):
                    is_done = "row" not in answer and "missing" not in answer  # which it may be no more next time
                    if "row" in answer:
                        yield answer["row"]
                    else:
                        _check(answer, path, full)
                        return
            except Hdf5Error as error:
                if error.died:
                    self._deaths[file] += 1
                raise
            finally:
                if not is_done:  # it is dead, of no use, or in the middle of something that nobody waits for
                    self.close(kill=True)

    # --- the two ends of the pipe

    def _send(self, request: dict[str, object]) -> None:
        if self._process is None:
            self._process = _start()
            self._read.clear()
            util.Finalize(None, close_hdf5, exitpriority=10)  # also where a worker process ends
        assert self._process.stdin is not None
        data = json.dumps(request).encode("ascii")
        message = memoryview(HEAD.pack(JSON, len(data)) + data)
        try:
            while message:
                message = message[self._process.stdin.write(message) :]
        except OSError as error:
            raise self._death() from error

    def _answers(self, seconds: int) -> Iterator[dict[str, Any]]:
        """All answers to a request, one after the other; the last one is no row."""
        total = 0
        answer: dict[str, Any] = {"row": None}
        while "row" in answer:
            kind, length = HEAD.unpack(self._exactly(HEAD.size, seconds))
            total += length
            if kind not in (BLOCK, JSON):
                raise Hdf5Error(reason=_NO_ANSWER, died=True)
            if length > LONGEST or total > MOST_ANSWERED:
                raise Hdf5Error(reason=Message("row.io.h5.too_much"), died=True)
            data = self._exactly(length, seconds)
            try:
                answer = {"row": data} if kind == BLOCK else json.loads(data)
            except (ValueError, RecursionError) as error:
                raise Hdf5Error(reason=_NO_ANSWER, died=True) from error
            yield answer

    def _exactly(self, count: int, seconds: int) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        stdout = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(stdout, select.POLLIN)
        end = time.monotonic() + WAIT_SECONDS
        while len(self._read) < count:
            if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
                raise Hdf5Error(reason=Message("row.io.h5.silent", seconds=WAIT_SECONDS), died=True)
            piece = os.read(stdout, _PIPE_BYTES)
            if not piece:
                raise self._death(seconds)
            self._read += piece
        data = bytes(self._read[:count])
        del self._read[:count]
        return data

    def _death(self, seconds: int = 0) -> Hdf5Error:
        """What the child died of; it has closed its end of the pipe."""
        assert self._process is not None
        try:
            code = self._process.wait(1)
        except subprocess.TimeoutExpired:
            return Hdf5Error(reason=Message("row.io.h5.broke_down"), died=True)
        if code == -signal.SIGXCPU:
            return Hdf5Error(reason=Message("row.io.h5.computed", seconds=seconds), died=True)
        if code < 0:
            with suppress(ValueError):
                name = signal.Signals(-code).name
                return Hdf5Error(reason=Message("row.io.h5.signal", number=-code, name=name), died=True)
        return Hdf5Error(reason=Message("row.io.h5.code", code=code), died=True)

    def close(self, kill: bool = False) -> None:
        """Ends the process and waits for it."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()  # it ends when there is nothing more to read
        try:
            if kill:
                _kill(process)
            process.wait(1)
        except subprocess.TimeoutExpired:
            _kill(process)
            process.wait()
        finally:
            process.stdout.close()

    def forget(self) -> None:
        """In a process that was forked: the child is the parent's."""
        process, self._process = self._process, None
        self.lock = threading.Lock()
        if process is not None:
            process.returncode = 0  # nothing to wait for
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()


def _start() -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", _START, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # the last words of a C library are not for the user
            bufsize=0,
            pipesize=_PIPE_BYTES,
            process_group=0,  # Ctrl+C is for its parent
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "HDF5_PLUGIN_PRELOAD": "::"},
        )
    except OSError as error:
        raise OutputError("io.h5.no_process", reason=error.strerror) from error


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills it and its copy; it leads a group of its own."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _changed_at(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _check(answer: dict[str, Any], path: str, full: str) -> None:
    """Raises what a last answer tells of."""
    if "missing" in answer:
        raise missing_h5py(path)
    if "refused" in answer:
        name, why, *target = answer["refused"]
        reason = Message("error.io.h5.refusal." + why, target=", ".join(map(shown_name, target)))
        raise FormatError.of(path, "io.h5.refused", name=shown_name(name), reason=reason)
    if "fault" in answer:
        raise RuntimeError(answer["fault"])
    if "failed" in answer:
        raise Hdf5Error(
            reason=answer["failed"].replace(full, path),
            opening=answer.get("opening", False),
            is_os_error=answer.get("is_os_error", False),
        )


_child = _Child()
os.register_at_fork(after_in_child=_child.forget)
