"""The disks of this machine as a store, with the Python standard library alone (3.7).

Only regular files are opened: a FIFO would hang the tool, a link to /dev/zero take all memory; both are refused as a
folder is. Each reason has its own sentence: missing, not permitted, not a regular file, not a folder.

While a command runs its files stay open (`shared_open_files`): finding tensors reads the head of a file, comparing its
data, a check some of that again. Reads name their place, so all threads and processes share one descriptor.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from operator import attrgetter

from precision_tool.lib.io.stores import ContentSignature, Entry, Kind, NewFile, Stat, Store, StoredFile, note_unread
from precision_tool.lib.io.writing import temporary_file
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, OutputError, PrecisionToolError
from precision_tool.lib.messages.limits import is_limit_of_files

#: O_NONBLOCK: opening a FIFO must not wait for its other end. It has no effect on regular files.
_ALWAYS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
#: A run of reads returns in pieces no larger than this, so that Ctrl+C is answered quickly.
_PIECE = 64 << 20
#: What a disk, or a server whose files are mounted, says for want of an answer.
_OF_STORAGE = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO)
#: Files that stay open at most, and the share of what the system lets a process open: others need some too.
MAX_OPEN_FILES, _PROCESS_SHARE = 8192, 2
#: Where relative paths begin for a worker on another machine; "": at the working folder.
_reading_from: ContextVar[str] = ContextVar("reading_from", default="")
#: The folders, without links, that this process may read while it works for others; empty: it may read what its user
#: may.
_readable: list[str] = []
#: The hosts and buckets that it may reach then.
_reachable: list[str] = []


def user_error(path: str, error: OSError) -> PrecisionToolError:
    """The user's error for a file that could not be opened or read; a limit of the machine is no fault of the file."""
    if is_limit_of_files(error):
        raise error
    if isinstance(error, FileNotFoundError):
        return DataNotFoundError.of(path, "io.dangling_link" if os.path.islink(path) else "io.no_file")
    if isinstance(error, IsADirectoryError):
        return FormatError.of(path, "io.folder_not_file")
    if isinstance(error, PermissionError):
        return FormatError.of(path, "io.no_permission")
    if error.errno == errno.ENXIO:  # a socket, or a device that is not there
        return FormatError.of(path, "io.not_regular")
    unreadable = FormatError.of(path, "io.unreadable", reason=error.strerror or str(error))
    if error.errno in _OF_STORAGE:
        note_unread(path, unreadable)
    return unreadable


def folder_error(path: str, error: OSError, what: str = "files") -> PrecisionToolError:
    """The user's error for a folder that could not be looked at; `what` is looked for there."""
    if is_limit_of_files(error):
        raise error
    if isinstance(error, FileNotFoundError):
        return DataNotFoundError.of(path, "io.no_folder", content=what)
    if isinstance(error, NotADirectoryError):
        return DataNotFoundError.of(path, "io.file_not_folder", content=what)
    if isinstance(error, PermissionError):
        return FormatError.of(path, "io.no_folder_permission")
    return FormatError.of(path, "io.unlisted", reason=error.strerror or str(error))


@contextmanager
def reading_only(folders: Sequence[str], hosts: Sequence[str] = ()) -> Iterator[None]:
    """What lies outside of some folders is refused (FormatError), by links too, until the block ends.

    So are hosts and buckets but `hosts`. It holds for worker processes that are started meanwhile, too.
    """
    before = allowed()
    allow((list(map(os.path.realpath, folders)), list(hosts)))
    try:
        yield
    finally:
        allow(before)


def allowed() -> tuple[list[str], list[str]]:
    """Return what may be read, for a worker process to `allow`."""
    return list(_readable), list(_reachable)


def allow(permitted: tuple[list[str], list[str]]) -> None:
    """Restrict what may be read as `allowed` says."""
    _readable[:], _reachable[:] = permitted


def check_reachable(host: str) -> None:
    """Raise FormatError for a host or bucket that is none of those of `reading_only`."""
    if _readable and host not in _reachable:
        raise FormatError.of(host, "io.outside", folders=[*_readable, *_reachable])


def check_readable(path: str) -> None:
    """Raise FormatError for a path outside of the folders of `reading_only`."""
    if not _readable:
        return
    try:
        place = os.path.realpath(path)
    except ValueError:  # a zero byte in the name, which opening it says
        return
    if not any(os.path.commonpath([folder, place]) == folder for folder in _readable):
        raise FormatError.of(path, "io.outside", folders=list(_readable))


def open_descriptor(path: str, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """A descriptor of a regular file. DataNotFoundError if it is missing, FormatError for all else."""
    check_readable(path)
    try:
        handle = os.open(path, flags | _ALWAYS, mode)
    except OSError as error:
        raise user_error(path, error) from error
    except ValueError as error:  # a zero byte in the name
        raise DataNotFoundError.of(path, "io.no_file") from error
    kind = os.fstat(handle).st_mode
    if stat.S_ISREG(kind):
        return handle
    os.close(handle)
    raise FormatError.of(path, "io.folder_not_file" if stat.S_ISDIR(kind) else "io.not_regular")


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


class LocalFile(StoredFile):
    """A file on a disk, opened for reading at any offset."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = open_descriptor(opened_path(path))
        self.size = os.fstat(self._fd).st_size

    def read_into(self, offset: int, buffer: memoryview) -> None:
        done, size = 0, len(buffer)
        while done < size:
            try:
                count = os.preadv(self._fd, [buffer[done : min(size, done + _PIECE)]], offset + done)
            except OSError as error:
                raise user_error(self.path, error) from error
            if not count:
                raise FormatError.of(
                    self.path, "io.cut_off", offset=offset + done, end=offset + done, stop=offset + size
                )
            done += count

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class _Descriptor:
    """An open file, how many use it now, and whether the last of them closes it."""

    __slots__ = ("is_orphaned", "number", "users")

    def __init__(self, number: int) -> None:
        self.number, self.users, self.is_orphaned = number, 0, False


class _OpenFiles:
    """The open files by the paths under which they were opened, those used last at the end."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
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
                descriptor = self._open[place] = _Descriptor(self._opened(place))
            self._open.move_to_end(place)
            descriptor.users += 1
        return _Shared(path, descriptor, self)

    def _opened(self, place: str) -> int:
        """Return a new descriptor, for which idle ones are closed where the process may have no more."""
        while True:
            try:
                return open_descriptor(place)
            except OSError as error:
                if not is_limit_of_files(error) or not self._close_idle():
                    raise

    def _has_room(self) -> bool:
        return len(self._open) < self._limit or self._close_idle()

    def _close_idle(self) -> bool:
        idle = next((place for place, descriptor in self._open.items() if not descriptor.users), None)
        if idle is None:
            return False
        os.close(self._open.pop(idle).number)
        return True

    def release(self, descriptor: _Descriptor) -> None:
        """Whoever opened it has done with it."""
        with self._lock:
            descriptor.users -= 1
            if descriptor.is_orphaned and not descriptor.users:
                os.close(descriptor.number)

    def close(self) -> None:
        """Closes all files; those that are in use when their last user closes them."""
        with self._lock:
            while self._open:
                _, descriptor = self._open.popitem()
                descriptor.is_orphaned = True
                if not descriptor.users:
                    os.close(descriptor.number)

    def forget_locks(self) -> None:
        """In a forked process: the threads that had them are not there."""
        self._lock = threading.Lock()


class _Shared(LocalFile):
    """A file whose descriptor others use too."""

    def __init__(self, path: str, descriptor: _Descriptor, files: _OpenFiles) -> None:
        self.path = path
        self._fd, self._descriptor, self._files = descriptor.number, descriptor, files
        self.size = os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            self._fd = -1
            self._files.release(self._descriptor)


#: Those of the blocks that run now, innermost last; of nested blocks the outermost does the work.
_open_files: list[_OpenFiles] = []


def _forget_locks() -> None:
    for files in _open_files:
        files.forget_locks()


os.register_at_fork(after_in_child=_forget_locks)


@contextmanager
def shared_open_files() -> Iterator[None]:
    """Until the block ends, each local file that is read is opened once, by this process and those forked from it.

    What is written to a file meanwhile is seen, another file under its name is not. So it is for one command.
    """
    if _open_files:
        yield
        return
    with _more_descriptors() as limit:
        files = _OpenFiles(min(MAX_OPEN_FILES, limit // _PROCESS_SHARE))
        _open_files.append(files)
        try:
            yield
        finally:
            _open_files.remove(files)
            files.close()


@contextmanager
def _more_descriptors() -> Iterator[int]:
    """Lets this process open as many files as are of use, as far as the system allows; how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    useful = MAX_OPEN_FILES * _PROCESS_SHARE
    if soft == resource.RLIM_INFINITY or soft >= useful:
        yield useful
        return
    more = useful if hard == resource.RLIM_INFINITY else min(hard, useful)
    try:
        with suppress(ValueError, OSError):  # a system that allows less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
        yield resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    finally:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class LocalStore(Store):
    """Files by the paths that the operating system gives them."""

    def open(self, path: str) -> StoredFile:
        return _open_files[-1].open(path) if _open_files else LocalFile(path)

    def stat(self, path: str) -> Stat | None:
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        except OSError as error:
            raise folder_error(path, error) from error
        mode = status.st_mode
        kind = Kind.FOLDER if stat.S_ISDIR(mode) else Kind.FILE if stat.S_ISREG(mode) else Kind.OTHER
        signature = status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev
        return Stat(kind=kind, size=status.st_size, signature=signature)

    def entries(self, folder: str) -> Sequence[Entry]:
        check_readable(folder)
        try:
            with os.scandir(folder) as listing:
                return [Entry(name=entry.name, kind=_kind(entry)) for entry in sorted(listing, key=attrgetter("name"))]
        except OSError as error:
            raise folder_error(folder, error) from error
        except ValueError as error:  # a zero byte in the name
            raise DataNotFoundError.of(folder, "io.no_folder", content="files") from error

    def content_signatures(self, folder: str, file_names: Sequence[str]) -> Iterator[ContentSignature]:
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
        try:
            return os.path.realpath(path)
        except ValueError:  # a zero byte or a surrogate, of which no file has a name: opening it says so
            return os.path.abspath(path)


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
        return OutputError.of(self._path, "io.not_writable", reason=error.strerror or str(error))


LOCAL: Store = LocalStore()
