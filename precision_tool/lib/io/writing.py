"""Results written as a whole or not at all, and who may write them: temporary names, locks, permissions."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from precision_tool.lib.errors import OutputError, PrecisionToolError
from precision_tool.lib.io.files import open_file, store_of
from precision_tool.lib.io.local_files import PART, TEMPORARY, own_prefix, temporary_file, temporary_path
from precision_tool.lib.io.urls import is_remote

#: Seconds that a change of a small file may take, and between two looks whether it is done.
_LONGEST_EDIT, _POLL = 10.0, 0.01
#: Bytes of a small JSON file that are read at most.
_MAX_JSON = 1 << 16

_threads = threading.Lock()
#: Locks of this process. The system's lock knows processes alone: a second handle would get it too, and end it.
_held: set[str] = set()


@contextmanager
def atomic_text(path: str) -> Iterator[TextIO]:
    """A text file that appears under its name when it is complete; OutputError if not."""
    if is_remote(path):
        text = io.StringIO(newline="")
        yield text
        with store_of(path).create(path) as new:
            new.write_at(0, text.getvalue().encode("utf-8", "backslashreplace"))
        return
    folder = os.path.dirname(path) or "."
    name = ""
    try:
        os.makedirs(folder, exist_ok=True)
        handle, name = temporary_file(folder)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except OSError as error:
        _remove(name)
        raise OutputError.of(
            path,
            f"cannot be written ({error.strerror or error})",
            "free some space or name another folder: with -o where the command has it, else with --work",
        ) from error
    except BaseException:
        _remove(name)
        raise


def _remove(path: str) -> None:
    if path and os.path.exists(path):
        os.unlink(path)


def read_small_json(path: str) -> object:
    """Return what a small JSON file of ours holds; None if there is none, or what is there is no such file."""
    try:
        with open_file(path) as file:
            document: object = json.loads(file.read_at(0, min(file.size, _MAX_JSON)))
    except (PrecisionToolError, ValueError, RecursionError):
        return None
    return document


def why_no_file(path: str) -> str:
    """Why no file can be written at a path, in folders that are made if need be, by permissions; "" if one can."""
    above = os.path.dirname(os.path.abspath(path))
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        return f"{above} is no folder"
    return "" if os.access(above, os.W_OK | os.X_OK) else "no permission"


def is_read_only(path: str) -> bool:
    """Whether a file is there that may not be changed; it could be replaced all the same."""
    return os.path.exists(path) and not os.access(path, os.W_OK)


@contextmanager
def replacing(path: str, place: str = "") -> Iterator[str]:
    """The path of an empty file in `place`, or beside `path`, that gets its name when the block is through.

    Nothing is left of it otherwise. OSError where that does not work.
    """
    temporary = temporary_path(place or os.path.dirname(path) or ".")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


@contextmanager
def new_folder(path: str) -> Iterator[str]:
    """The path of an empty folder that becomes `path`, which is not there or empty, when the block is through.

    Nothing is left of it otherwise. OSError where that does not work.
    """
    above = os.path.dirname(os.path.abspath(path))
    os.makedirs(above, exist_ok=True)
    place = os.path.join(above, f"{own_prefix()}{secrets.token_hex(6)}{PART}")
    os.mkdir(place)
    try:
        yield place
        os.replace(place, path)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise


def rewrite_text(path: str, text: str, *, last: str = "") -> None:
    """Writes a small file at once, with the permissions it had; behind a link, which stays one.

    `last` is where the version before is kept. OutputError if it cannot be written.
    """
    real = os.path.realpath(path)
    try:
        os.makedirs(os.path.dirname(real), exist_ok=True)
        mode = 0o644
        if os.path.exists(real):
            if not os.path.isfile(real):  # a device would be replaced by the file, and copied without end
                raise OSError(errno.EINVAL, "there is something that is no file")
            mode = os.stat(real).st_mode & 0o777
            if last:
                shutil.copyfile(real, last)
        with replacing(real) as temporary:
            with open(temporary, "w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, mode)
    except OSError as error:
        raise OutputError.of(
            path, f"cannot be written ({error.strerror or error})", "name another file with --file"
        ) from error


def place_of_worker(folder: str, prefix: str) -> str:
    """A folder inside `folder` for what this thread of this process has not completed.

    Each has its own: the system makes the files of one folder one after the other, so in a common one the workers would
    wait for each other, which takes longer than all their writing.
    """
    return os.path.join(folder, f"{prefix}{os.getpid()}-{threading.get_ident()}{PART}")


def remove_places(folders: Iterable[str], prefix: str) -> None:
    """Removes the folders that `place_of_worker` names, with what killed workers left in them."""
    for folder in folders:
        with suppress(OSError):
            for name in os.listdir(folder):
                if name.startswith(prefix) and name.endswith(PART):
                    shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


# --- locks ---


@contextmanager
def only_writer(path: str) -> Iterator[None]:
    """Nobody else is here for the same path meanwhile: for reading a file, changing and writing it.

    A file beside it is locked, as the file itself is another one after each writing. OutputError where that cannot be
    made, or whoever has it does not end. Where the file system knows no locks nobody is kept out.
    """
    lock = os.path.join(os.path.dirname(path), f"{TEMPORARY}{os.path.basename(path)}.lock{PART}")
    try:
        handle = _locked_file(lock)
    except OSError as error:
        raise OutputError.of(
            path, f"cannot be written ({error.strerror or error})", "name another file, or wait for who writes it"
        ) from error
    try:
        yield
    finally:
        with suppress(OSError):
            os.unlink(lock)  # while it is ours: who waits for it sees that it is gone, and makes another
        os.close(handle)


def _locked_file(lock: str) -> int:
    """A descriptor of a lock file that is ours alone and still has its name."""
    until = time.monotonic() + _LONGEST_EDIT
    while True:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            if time.monotonic() > until:
                raise
            time.sleep(_POLL)
            continue
        except OSError:  # a file system without locks
            return handle
        with suppress(OSError):
            if os.path.samestat(os.fstat(handle), os.stat(lock)):
                return handle
        os.close(handle)


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
            raise LockedError(_this_process())
        _held.add(real)
    try:
        with _locked(path):
            yield
    finally:
        _held.discard(real)


def _this_process() -> str:
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
        os.pwrite(handle, f"{_this_process()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
