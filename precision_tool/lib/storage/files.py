"""The small file interface that readers use, so that the place of the bytes can change without them."""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
import secrets
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TextIO

from precision_tool.lib import urls
from precision_tool.lib.errors import FormatError, OutputError, PrecisionToolError
from precision_tool.lib.storage.store import StoredFile
from precision_tool.lib.user_files import elsewhere, open_descriptor, user_error

#: A run of reads returns in pieces no larger than this, so that Ctrl+C is answered quickly.
_PIECE = 64 << 20

#: What the names of files that are not complete yet begin and end with.
TEMPORARY, PART = ".precision_tool-", ".part"
#: Seconds after which such a file, which grows while somebody writes it, was left by a process that was killed.
_LEFT_BEHIND = 3600
#: Seconds that a change of a small file may take, and between two looks whether it is done.
_LONGEST_EDIT, _POLL = 10.0, 0.01
#: Bytes of a path, with a zero byte at its end (Linux).
_LONGEST_PATH = 4096
#: Bytes of a small JSON file that are read at most.
_MAX_JSON = 1 << 16
#: Folders that were tidied by this process.
_tidied: set[str] = set()

#: Where relative paths begin for a worker on another machine; "": at the working folder.
_reading_from: ContextVar[str] = ContextVar("reading_from", default="")

#: A change this soon (ns) after another may leave the time of a file as it is.
_TICK = 50_000_000
#: As much where times are kept in seconds, or in two of them.
_COARSE_TICK = 2_000_000_000


@contextmanager
def reading_from(folder: str) -> Iterator[None]:
    """Local files with relative paths are opened below an absolute `folder` by this thread, until the block ends."""
    before = _reading_from.set(folder)
    try:
        yield
    finally:
        _reading_from.reset(before)


def opened_path(path: str) -> str:
    """The path under which a local file is opened."""
    return os.path.join(_reading_from.get(), path)


def may_change_unseen(*times: int) -> bool:
    """Whether a change now may leave these times (ns since 1970) of a file or folder as they are.

    Times of whole seconds are taken for those of a file system that knows no better ones.
    """
    now = time.time_ns()
    return any(abs(now - moment) < (_TICK if moment % 1_000_000_000 else _COARSE_TICK) for moment in times)


def could_be_path(text: str) -> bool:
    """Whether the operating system takes a text that a file gave for a path."""
    try:
        path = os.fsencode(text)
        return b"\0" not in path and len(path) < _LONGEST_PATH
    except UnicodeEncodeError:
        return False


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
    """What the name of a process's temporary file tells: a folder may be shared by machines."""
    return f"{zlib.crc32(os.uname().nodename.encode('utf-8', 'surrogateescape')):08x}-{process}"


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


def remove_leftovers(folder: str) -> None:
    """Removes temporary files of ours, and folders of them, whose process has ended or that nobody has written to for
    an hour."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(TEMPORARY) and entry.name.endswith(PART):
                with suppress(OSError):
                    age = time.time() - entry.stat(follow_symlinks=False).st_mtime
                    if age <= _LEFT_BEHIND and not _is_of_the_dead(entry.name):
                        continue
                    if not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.path)
                        continue
                    remove_leftovers(entry.path)
                    os.rmdir(entry.path)  # fails while a file in it still grows


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


@contextmanager
def atomic_text(path: str) -> Iterator[TextIO]:
    """A text file that appears under its name when it is complete; OutputError if not."""
    if urls.is_remote(path):
        text = io.StringIO(newline="")
        yield text
        elsewhere().write_bytes(path, text.getvalue().encode("utf-8", "backslashreplace"))
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
    """What a small JSON file of ours holds; None if there is none, or what is there is no such file."""
    try:
        if urls.is_remote(path):
            document: object = json.loads(elsewhere().read_bytes(path, _MAX_JSON))
            return document
        with LocalFile(path) as file:
            document = json.loads(file.read_at(0, min(file.size, _MAX_JSON)))
    except (PrecisionToolError, ValueError, RecursionError):
        return None
    return document


class LocalFile(StoredFile):
    """A file on a disk, opened for reading at any offset."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = open_descriptor(opened_path(path))
        self.size = os.fstat(self._fd).st_size

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fills `buffer` (bytes, contiguous) from `offset`; FormatError when the file ends before."""
        done, wanted = 0, len(buffer)
        while done < wanted:
            try:
                got = os.preadv(self._fd, [buffer[done : min(wanted, done + _PIECE)]], offset + done)
            except OSError as error:
                raise user_error(self.path, error) from error
            if not got:
                raise FormatError.of(
                    self.path,
                    f"ends at byte {offset + done} where data up to byte {offset + wanted} should be",
                    "the file is cut off: copy or dump it again",
                    offset=offset + done,
                )
            done += got

    def close(self) -> None:
        """Closes the file; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
