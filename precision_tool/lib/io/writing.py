"""Files of this machine that change only as a whole, and by one process at a time (Python 3.7).

A file is written under a temporary name, which tells its process, and renamed when it is complete.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import socket
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import OutputError

#: What the names of files that are not complete yet begin and end with.
TEMPORARY, PART = ".precision_tool-", ".part"
#: Seconds after which such a file, which grows while somebody writes it, was left by a process that was killed.
LEFTOVER_SECONDS = 3600
#: Seconds that a change of a small file may take, and between two looks whether it is done.
_LONGEST_EDIT, _POLL = 10.0, 0.01
#: Folders that were tidied by this process.
_tidied: set[str] = set()
_threads = threading.Lock()
#: Locked by this process. The system's lock knows processes alone: a second handle would get it too, and end it.
_locked_paths: set[str] = set()


def temporary_file(folder: str) -> tuple[int, str]:
    """Makes an empty file for what is to be renamed when it is complete: its descriptor and its path.

    Who may read it is as the umask says, as of any file. What killed processes left in the folder is removed. OSError
    if that cannot be done.
    """
    if folder not in _tidied:  # once is enough, however many files are written
        _tidied.add(folder)
        remove_leftovers(folder)
    while True:
        path = os.path.join(folder, f"{own_prefix()}{secrets.token_hex(6)}{PART}")
        with suppress(FileExistsError):
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), path


def temporary_path(folder: str) -> str:
    """The path of an empty file, as of `temporary_file`, for what opens files by their names."""
    handle, path = temporary_file(folder)
    os.close(handle)
    return path


def own_prefix() -> str:
    """What the names of this process's temporary files and folders begin with."""
    return f"{TEMPORARY}{_owner(os.getpid())}-"


def _owner(process: int) -> str:
    """What the name of a process's temporary file tells: a folder may be shared by machines and containers.

    Containers may have one host name, and yet their own numbers of processes.
    """
    numbers = ""
    with suppress(OSError):
        numbers = os.readlink("/proc/self/ns/pid")
    machine = os.uname().nodename + numbers
    return f"{zlib.crc32(machine.encode('utf-8', 'surrogateescape')):08x}-{process}"


def _is_of_the_dead(name: str) -> bool:
    """True for a temporary file of a process of this machine that is not there any more."""
    owner = re.match(re.escape(TEMPORARY) + r"[0-9a-f]{8}-([0-9]{1,9})-", name)
    if owner is None or not name.startswith(f"{TEMPORARY}{_owner(int(owner[1]))}-"):
        return False
    try:
        os.kill(int(owner[1]), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


def remove_leftovers(folder: str) -> bool:
    """Removes temporary files of ours, and folders of them, whose process has ended or that nobody has written to for
    an hour; whether there were any."""
    has_removed = False
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(TEMPORARY) and entry.name.endswith(PART):
                with suppress(OSError):
                    is_dead = _is_of_the_dead(entry.name)
                    age = time.time() - entry.stat(follow_symlinks=False).st_mtime
                    if age <= LEFTOVER_SECONDS and not is_dead:
                        continue
                    if not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.path)
                    elif is_dead:
                        shutil.rmtree(entry.path)
                    else:
                        remove_leftovers(entry.path)
                        os.rmdir(entry.path)  # fails while a file in it still grows
                    has_removed = True
    return has_removed


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
        raise OutputError.of(path, "io.locked", reason=error.strerror or str(error)) from error
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
    thread gets the same error as another process.
    """
    real = os.path.realpath(path)
    with _threads:
        if real in _locked_paths:
            raise LockedError(_owner_text())
        _locked_paths.add(real)
    try:
        with _locked(path):
            yield
    finally:
        _locked_paths.discard(real)


def _owner_text() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


@contextmanager
def _locked(path: str) -> Iterator[None]:
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise OutputError.of(path, "io.not_writable", reason=error.strerror or str(error)) from error
    try:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise LockedError(os.pread(handle, 200, 0).decode("utf-8", "replace").strip()) from error
        except OSError:  # a file system without locks
            pass
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{_owner_text()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def lock_folder(path: str, kind: int) -> int | None:
    """A descriptor of a folder that is locked (`fcntl.LOCK_EX` or `LOCK_SH`, `| LOCK_NB` not to wait).

    Closing it, or the end of the process, frees the folder. None where the file system knows no locks.
    BlockingIOError if others have it; OSError if the folder cannot be opened.
    """
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | getattr(os, "O_CLOEXEC", 0))
    try:
        fcntl.flock(handle, kind)
    except BlockingIOError:
        os.close(handle)
        raise
    except OSError:
        os.close(handle)
        return None
    return handle


def why_no_file(path: str) -> Message | None:
    """Why no file can be written at a path, in folders that are made if need be, by permissions; None if one can."""
    above = os.path.dirname(os.path.abspath(path))
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        return Message("note.io.no_folder", path=above)
    return None if os.access(above, os.W_OK | os.X_OK) else Message("note.io.no_permission")


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
def replacing_text(path: str) -> Iterator[TextIO]:
    """A text file that gets its name when the block is through and it is on the disk; OSError as of `replacing`."""
    with replacing(path) as temporary, open(
        temporary, "w", encoding="utf-8", errors="backslashreplace", newline=""
    ) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def append_bytes(path: str, data: bytes) -> None:
    """Write at the end of a file that is there, and no link, all at once. OSError where that does not work."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(handle, "wb", buffering=0) as file:
        if file.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def new_folder(path: str) -> Iterator[str]:
    """The path of an empty folder that becomes `path`, which is not there or empty, when the block is through.

    Nothing is left of it otherwise, and what killed processes left beside it is removed. OSError where that does not
    work.
    """
    above = os.path.dirname(os.path.abspath(path))
    os.makedirs(above, exist_ok=True)
    remove_leftovers(above)
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
        with replacing_text(real) as file:
            file.write(text)
            os.fchmod(file.fileno(), mode)
    except OSError as error:
        raise OutputError.of(path, "io.file_not_writable", reason=error.strerror or str(error)) from error


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
