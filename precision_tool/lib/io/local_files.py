"""Files on the disks of this machine: only regular files are opened, and each refusal has its own reason.

A FIFO would hang the tool, a link to /dev/zero take all memory; both are refused as a folder is. Files that are read
stay open while a command runs, so that each of its steps, threads and processes finds them open. New files have a
temporary name until they are complete. This module runs on Python 3.7; `io.files` is what other rooms ask.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import resource
import secrets
import stat
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import BinaryIO

from precision_tool.lib.errors import DataNotFoundError, FormatError, OutputError, PrecisionToolError
from precision_tool.lib.io.store import Contents, Entry, Kind, NewFile, Stat, Store, StoredFile

#: O_NONBLOCK: opening a FIFO must not wait for its other end. It has no effect on regular files.
_ALWAYS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
#: A run of reads returns in pieces no larger than this, so that Ctrl+C is answered quickly.
_MAX_READ = 64 << 20
#: What the names of files that are not complete yet begin and end with.
TEMPORARY, PART = ".precision_tool-", ".part"
#: Seconds after which such a file, which grows while somebody writes it, was left by a process that was killed.
_ABANDONED_SECONDS = 3600
#: Bytes of a path, with a zero byte at its end (Linux).
_MAX_PATH = 4096
#: Files that are held open at most, and the part of what the system lets a process open: others need some too.
_MAX_OPEN, _SHARE = 8192, 2
#: A change this soon (ns) after another may leave the time of a file as it is.
_TICK = 50_000_000
#: As much where times are kept in seconds, or in two of them.
_COARSE_TICK = 2_000_000_000

#: Where relative paths begin for a worker on another machine; "": at the working folder.
_reading_from: ContextVar[str] = ContextVar("reading_from", default="")
#: Folders that were tidied by this process.
_tidied: set[str] = set()


# --- errors and paths ---


def user_error(path: str, error: OSError) -> PrecisionToolError:
    """The user's error for a file that could not be opened or read."""
    if isinstance(error, FileNotFoundError):
        return DataNotFoundError.of(path, "no such file", "check the name and the folder above it")
    if isinstance(error, IsADirectoryError):
        return FormatError.of(path, "a folder where a file should be", "name a file inside it")
    if isinstance(error, PermissionError):
        hint = "ask its owner, or copy it where you may read it"
        return FormatError.of(path, "no permission to read it", hint)
    if error.errno == errno.ENXIO:  # a socket, or a device that is not there
        return _not_regular(path, "not a regular file")
    reason = error.strerror or error
    return FormatError.of(path, f"cannot be read ({reason})", "check the disk or the network mount")


def folder_error(path: str, error: OSError, what: str = "files") -> PrecisionToolError:
    """The user's error for a folder that could not be looked at; `what` is looked for there."""
    hint = f"name the folder of the {what}"
    if isinstance(error, FileNotFoundError):
        return DataNotFoundError.of(path, "no such folder", hint)
    if isinstance(error, NotADirectoryError):
        return DataNotFoundError.of(path, "a file where a folder should be", hint)
    if isinstance(error, PermissionError):
        hint = "ask its owner, or copy it where you may read it"
        return FormatError.of(path, "no permission to read this folder", hint)
    reason = error.strerror or error
    return FormatError.of(path, f"cannot be listed ({reason})", "check the disk or the network mount")


def _not_regular(path: str, kind: str) -> FormatError:
    return FormatError.of(path, f"{kind} where a file should be", "move it away or name another folder")


def too_large(path: str, limit: int) -> FormatError:
    """The error for a file of more than `limit` bytes."""
    hint = "check what wrote it"
    return FormatError.of(path, f"too large: more than {limit} bytes where a small file should be", hint)


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
        return b"\0" not in path and len(path) < _MAX_PATH
    except UnicodeEncodeError:
        return False


# --- reading ---


def open_descriptor(path: str, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """A descriptor of a regular file. DataNotFoundError if it is missing, FormatError for all else."""
    try:
        handle = os.open(path, flags | _ALWAYS, mode)
    except OSError as error:
        raise user_error(path, error) from error
    except ValueError as error:  # a zero byte in the name
        raise DataNotFoundError.of(path, "no such file", "check the name") from error
    kind = os.fstat(handle).st_mode
    if stat.S_ISREG(kind):
        return handle
    os.close(handle)
    raise _not_regular(path, "a folder" if stat.S_ISDIR(kind) else "not a regular file")


class LocalFile(StoredFile):
    """A file on a disk, opened for reading at any offset."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = open_descriptor(opened_path(path))
        self.size = os.fstat(self._fd).st_size

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fills `buffer` (bytes, contiguous) from `offset`; FormatError when the file ends before."""
        done, count = 0, len(buffer)
        while done < count:
            try:
                got = os.preadv(self._fd, [buffer[done : min(count, done + _MAX_READ)]], offset + done)
            except OSError as error:
                raise user_error(self.path, error) from error
            if not got:
                raise FormatError.of(
                    self.path,
                    f"ends at byte {offset + done} where data up to byte {offset + count} should be",
                    "the file is cut off: copy or dump it again",
                    offset=offset + done,
                )
            done += got

    def close(self) -> None:
        """Closes the file; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class _Descriptor:
    """An open file, how many use it now, and whether the last of them closes it."""

    __slots__ = ("is_orphan", "number", "users")

    def __init__(self, number: int) -> None:
        self.number, self.users, self.is_orphan = number, 0, False


class _OpenFiles:
    """The open files by the paths under which they were opened, those used last at the end."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: OrderedDict[str, _Descriptor] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, path: str) -> StoredFile:
        """A file; one more than may be kept is opened for itself."""
        place = opened_path(path)
        with self._lock:
            descriptor = self._open.get(place)
            if descriptor is None:
                if not self._has_room():
                    return LocalFile(path)
                descriptor = self._open[place] = _Descriptor(open_descriptor(place))
            self._open.move_to_end(place)
            descriptor.users += 1
        return _SharedFile(path, descriptor, self)

    def _has_room(self) -> bool:
        if len(self._open) < self._most:
            return True
        idle = next((place for place, descriptor in self._open.items() if not descriptor.users), None)
        if idle is None:
            return False
        os.close(self._open.pop(idle).number)
        return True

    def release(self, descriptor: _Descriptor) -> None:
        """Close it for one user."""
        with self._lock:
            descriptor.users -= 1
            if descriptor.is_orphan and not descriptor.users:
                os.close(descriptor.number)

    def close(self) -> None:
        """Closes all files; those that are in use when their last user closes them."""
        with self._lock:
            while self._open:
                _, descriptor = self._open.popitem()
                descriptor.is_orphan = True
                if not descriptor.users:
                    os.close(descriptor.number)

    def forget_locks(self) -> None:
        """In a forked process: the threads that had them are not there."""
        self._lock = threading.Lock()


class _SharedFile(LocalFile):
    """A file whose descriptor others use too."""

    def __init__(self, path: str, descriptor: _Descriptor, files: _OpenFiles) -> None:
        self.path = path
        self._fd, self._descriptor, self._files = descriptor.number, descriptor, files
        self.size = os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            self._fd = -1
            self._files.release(self._descriptor)


#: The files that are held open now, innermost block last; of nested blocks the outermost does the work.
_holders: list[_OpenFiles] = []


def _forget_locks() -> None:
    for files in _holders:
        files.forget_locks()


os.register_at_fork(after_in_child=_forget_locks)


@contextmanager
def hold_files_open() -> Iterator[None]:
    """Until the block ends, each local file that is read is opened once, by this process and those forked from it.

    What is written to a file meanwhile is seen, another file under its name is not. So it is for one command.
    """
    if _holders:
        yield
        return
    with _more_descriptors() as limit:
        files = _OpenFiles(min(_MAX_OPEN, limit // _SHARE))
        _holders.append(files)
        try:
            yield
        finally:
            _holders.remove(files)
            files.close()


@contextmanager
def _more_descriptors() -> Iterator[int]:
    """Lets this process open as many files as are of use, as far as the system allows; how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MAX_OPEN * _SHARE
    if soft == resource.RLIM_INFINITY or soft >= limit:
        yield limit
        return
    more = limit if hard == resource.RLIM_INFINITY else min(hard, limit)
    try:
        with suppress(ValueError, OSError):  # a system that allows less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
        yield resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    finally:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_local(path: str) -> StoredFile:
    """A local file: a shared one while files are kept open, else one of its own."""
    return _holders[-1].open(path) if _holders else LocalFile(path)


# --- writing ---


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


def _has_no_process(name: str) -> bool:
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
                    if age <= _ABANDONED_SECONDS and not _has_no_process(entry.name):
                        continue
                    if not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.path)
                        continue
                    remove_leftovers(entry.path)
                    os.rmdir(entry.path)  # fails while a file in it still grows


def open_to_write(path: str) -> BinaryIO:
    """A new or emptied regular file, for what somebody else's program writes as it goes; OutputError if that fails.

    Results of our own are written with `storage.files.atomic_text` instead.
    """
    try:
        return os.fdopen(open_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb")
    except PrecisionToolError as error:
        cause = error.__cause__
        reason = cause.strerror if isinstance(cause, OSError) else "there is something that is no file"
        raise OutputError.of(path, f"cannot be written ({reason})", "name another folder") from error


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


# --- the machine ---


def environment(name: str) -> str:
    """A variable of the environment that is no setting of ours; "" where it is not set."""
    return os.environ.get(name, "")


def history_file() -> str:
    """Where the history is kept between sessions: the user's own folder, never the data folder; "" without a home."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    folder = os.path.join(base, "precision_tool")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError:
        return ""
    return os.path.join(folder, "history.dat") if os.access(folder, os.W_OK) else ""


# --- the store ---


class LocalStore(Store):
    """Files by the paths that the operating system gives them."""

    def open(self, path: str) -> StoredFile:
        return open_local(path)

    def stat(self, path: str) -> Stat | None:
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        except OSError as error:
            raise folder_error(path, error) from error
        kind = (
            Kind.FOLDER if stat.S_ISDIR(status.st_mode) else Kind.FILE if stat.S_ISREG(status.st_mode) else Kind.OTHER
        )
        signature = status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev
        return Stat(kind=kind, size=status.st_size, signature=signature)

    def entries(self, folder: str) -> Sequence[Entry]:
        try:
            with os.scandir(folder) as entries:
                return [Entry(entry.name, _kind(entry)) for entry in sorted(entries, key=lambda entry: entry.name)]
        except OSError as error:
            raise folder_error(folder, error) from error
        except ValueError as error:  # a zero byte in the name
            raise DataNotFoundError.of(folder, "no such folder", "check the name") from error

    def contents_of(self, folder: str, file_names: Sequence[str]) -> Iterator[Contents]:
        for name in file_names:  # millions of them, so nothing that is not needed
            try:
                status = os.stat(f"{folder}/{name}")
            except OSError:  # gone, or not to be looked at: what reads it says so
                yield 0, 0
            else:
                yield status.st_size, status.st_mtime_ns

    def create(self, path: str, *, place: str = "") -> NewFile:
        return _NewLocalFile(path, place or os.path.dirname(path) or os.curdir)

    def real(self, path: str) -> str:
        return os.path.realpath(path)


def _kind(entry: os.DirEntry[str]) -> Kind | None:
    try:
        if entry.is_dir():
            return Kind.FOLDER
        if entry.is_file():
            return Kind.FILE
        if not entry.is_symlink():
            return Kind.OTHER
        os.stat(entry.path)
    except OSError:  # a link to nothing, or to itself: what opens it says so
        return None
    return Kind.OTHER


class _NewLocalFile(NewFile):
    def __init__(self, path: str, folder: str) -> None:
        self._path = path
        self._temporary = ""
        self._fd = -1
        try:
            os.makedirs(folder, exist_ok=True)
            self._fd, self._temporary = temporary_file(folder)
        except OSError as error:
            raise self._error(error) from error

    def write_at(self, offset: int, *parts: bytes | memoryview) -> None:
        rest = [memoryview(part) for part in parts]
        try:
            while rest:
                count = os.pwritev(self._fd, rest, offset)
                offset += count
                while rest and count >= rest[0].nbytes:
                    count -= rest.pop(0).nbytes
                if count:
                    rest[0] = rest[0][count:]
        except OSError as error:
            raise self._error(error) from error

    def commit(self) -> None:
        try:
            self._close()
            os.replace(self._temporary, self._path)
            self._temporary = ""
        except OSError as error:
            raise self._error(error) from error

    def discard(self) -> None:
        with suppress(OSError):
            self._close()
        if self._temporary:
            with suppress(OSError):
                os.unlink(self._temporary)
            self._temporary = ""

    def _close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _error(self, error: OSError) -> OutputError:
        return OutputError.of(
            self._path, f"cannot be written ({error.strerror or error})", "free some space or name another folder"
        )
