"""A file that one process has at a time, and that says which."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from precision_tool.lib.errors import OutputError

_threads = threading.Lock()
#: What this process has. The system's lock knows processes alone: a second handle would get it too, and end it.
_held: set[str] = set()


class LockedError(Exception):
    """Another process has the file; the text says which, as far as that is known."""


@contextmanager
def only_process(path: str) -> Iterator[None]:
    """Nobody else has the file meanwhile. LockedError where another has it, OutputError where it cannot be written.

    The lock is this process's: forked workers do not have it, and it ends with the process however that ends. Another
    thread that asks for it is told, as another process is.
    """
    real = os.path.realpath(path)
    with _threads:
        if real in _held:
            raise LockedError(_owner())
        _held.add(real)
    try:
        with _locked(path):
            yield
    finally:
        _held.discard(real)


def _owner() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


@contextmanager
def _locked(path: str) -> Iterator[None]:
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise OutputError.of(
            path, f"cannot be written ({error.strerror or error})", "name another folder with --work DIR"
        ) from error
    try:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise LockedError(os.pread(handle, 200, 0).decode("utf-8", "replace").strip()) from error
        except OSError:  # a file system without locks
            pass
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{_owner()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
