"""HDF5 in a process of its own: what a damaged file does to HDF5 ends in a reason, not in the death of the tool.

HDF5 trusts what it reads: some files make it crash, others compute for ever or ask for all memory. Everything that
needs it, but for writing the demo's data, is asked of a child process (`hdf5_child`) under limits of time and memory.
One child serves this process, from the first request on; after its death another one is started.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import util
from types import ModuleType
from typing import Any

from precision_tool.lib.io.files import local_file, open_file
from precision_tool.lib.io.hdf5_child import BUFFER, LONGEST
from precision_tool.lib.io.local import opened_path
from precision_tool.lib.io.stores import StoredFile
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError, OutputError, UsageError, shown_name

#: What HDF5 files of any kind begin with.
SIGNATURE = b"\x89HDF\r\n\x1a\n"
#: The superblock of version 0 or 1 up to the end of the widest address of a driver information block.
_SUPERBLOCK = 28 + 4 * 8
#: CPU seconds and seconds of silence after which the child is ended, memory that it may take.
CPU_SECONDS, WAIT_SECONDS, MEMORY = 10, 600, 450 << 20
#: Bytes of answers to one request: those of the most objects a file may have, with names of the usual length.
MOST_ANSWERED = 1 << 30
#: A file that the child died of so many times is not tried again.
MOST_DEATHS = 3
#: What an answer has: a row, or what the request ended with.
_ANSWERS = {"row", "done", "missing", "refused", "fault", "failed"}
#: With the modules that this process finds, and nothing from the working folder that it would not find.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from precision_tool.lib.io.hdf5_child import main; main(*map(int, sys.argv[2:]))"
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


@contextmanager
def hdf5_rows(method: str, path: str, *, seconds: int | None = None, **arguments: object) -> Iterator[Iterator[Any]]:
    """The rows that a method of `hdf5_child` yields for a file; nothing else may be asked within the block.

    `seconds` of CPU time replace the usual ones. Hdf5Error for what HDF5 cannot do or died of, FormatError for what is
    refused, UsageError without h5py.
    """
    with closing(_child.rows(method, path, CPU_SECONDS if seconds is None else seconds, arguments)) as rows:
        yield rows


def hdf5_blocks(path: str, nbytes: int, **arguments: Any) -> bytes:
    """Return so many bytes of blocks of a data set; errors as of `hdf5_rows`."""
    with hdf5_rows("blocks", path, **arguments) as rows:
        data = b""
        for _ in rows:
            data = os.pread(_child.buffer, nbytes, 0)
        return data


def close_hdf5() -> None:
    """Ends the child of this process, if it has one."""
    with _child.lock:
        _child.close()


class _Child:
    """The child process, or none yet."""

    def __init__(self) -> None:
        #: Held for a whole request: there is one socket.
        self.lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket
        #: What is no whole line yet. A buffered reader has a lock, for which a forked process might wait for ever.
        self._received = bytearray()
        #: The memory in which it leaves blocks.
        self.buffer = -1
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
                self._send({"method": method, "arguments": arguments, "seconds": seconds})
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

    # --- the socket

    def _send(self, request: dict[str, object]) -> None:
        if self._process is None:
            self._start()
            util.Finalize(None, close_hdf5, exitpriority=10)  # also where a worker process ends
        try:
            self._socket.sendall(json.dumps(request).encode("ascii") + b"\n")
        except OSError as error:
            raise self._death() from error

    def _answers(self, seconds: int) -> Iterator[dict[str, Any]]:
        """All answers to a request, one after the other; the last one is no row."""
        total = 0
        answer: dict[str, Any] = {"row": None}
        while "row" in answer:
            try:
                line = self._next_line()
            except TimeoutError as error:
                raise Hdf5Error(reason=Message("row.io.h5.silent", seconds=WAIT_SECONDS), died=True) from error
            except OSError as error:
                raise self._death(seconds) from error
            total += len(line)
            if len(line) >= LONGEST or total > MOST_ANSWERED:
                raise Hdf5Error(reason=Message("row.io.h5.too_much"), died=True)
            if not line.endswith(b"\n"):
                raise self._death(seconds)
            answer = _parsed(line)
            yield answer

    def _next_line(self) -> bytes:
        """Return the next line, without its end where it is too long or the child has closed the socket."""
        searched = 0
        while (end := self._received.find(b"\n", searched)) < 0 and len(self._received) < LONGEST:
            searched = len(self._received)
            block = self._socket.recv(1 << 16)
            if not block:
                break
            self._received += block
        length = end + 1 or len(self._received)
        line = bytes(self._received[:length])
        del self._received[:length]
        return line

    def _death(self, seconds: int = 0) -> Hdf5Error:
        """What the child died of; it has closed its end of the socket."""
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

    def _start(self) -> None:
        with ExitStack() as opened:
            try:
                ours, theirs = map(opened.enter_context, socket.socketpair())
                ours.settimeout(WAIT_SECONDS)
                buffer = os.memfd_create("hdf5")
                opened.callback(os.close, buffer)
                os.truncate(buffer, BUFFER)
                environment = {"OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "HDF5_PLUGIN_PRELOAD": "::"}
                process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _START, json.dumps(sys.path), str(buffer), str(MEMORY)],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,  # the last words of a C library are not for the user
                    pass_fds=(buffer,),
                    process_group=0,  # Ctrl+C is for its parent
                    env=os.environ | environment,
                )
                theirs.close()
            except OSError as error:
                raise OutputError("io.h5.no_process", reason=error.strerror) from error
            opened.pop_all()
        # All at once: after Ctrl+C before this there is no process, and what has been started ends without its socket.
        self._socket, self._received, self.buffer, self._process = ours, bytearray(), buffer, process

    def close(self, kill: bool = False) -> None:
        """Ends the process and waits for it."""
        process = self._process
        self._disconnect()  # it ends when there is nothing more to read
        if process is None:
            return
        try:
            if kill:
                _kill(process)
            process.wait(1)
        except subprocess.TimeoutExpired:
            _kill(process)
            process.wait()

    def _disconnect(self) -> None:
        if self._process is not None:
            self._process = None
            self._socket.close()
            os.close(self.buffer)

    def forget(self) -> None:
        """In a process that was forked: the child is the parent's."""
        self.lock = threading.Lock()
        if self._process is not None:
            self._process.returncode = 0  # nothing to wait for
        self._disconnect()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills it and its copy; it leads a group of its own."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _changed_at(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _parsed(line: bytes) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        answer = json.loads(line)
        if isinstance(answer, dict) and answer.keys() & _ANSWERS:
            return answer
    raise Hdf5Error(reason=Message("row.io.h5.no_sensible_answer"), died=True)


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
