"""The one way to open and list what the user has: only regular files are opened, and a folder tells why it has nothing.

A FIFO would hang the tool, a link to /dev/zero take all memory; both are refused as a folder is. Each reason has its
own sentence: missing, not permitted, not a regular file, not a folder. This module runs on Python 3.7.
"""

import errno
import fcntl
import io
import os
import stat
from typing import BinaryIO, List, Optional, TextIO, Union

from precision_tool.lib import urls
from precision_tool.lib.errors import DataNotFoundError, FormatError, OutputError, PrecisionToolError, UsageError

PathLike = Union[str, "os.PathLike[str]"]

#: O_NONBLOCK: opening a FIFO must not wait for its other end. It has no effect on regular files.
_ALWAYS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
#: A text file of this many bytes is no text that a person or a tool of the field wrote by itself.
MAX_TEXT = 64 << 20
_PIECE = 1 << 16


class Elsewhere:
    """Places that are no disk of this machine. Who can read them says so with `reach_elsewhere`; this one cannot."""

    def is_folder(self, path: str) -> bool:
        """As `is_folder`."""
        raise _on_no_disk(path)

    def list_folder(self, path: str, what: str) -> List[str]:
        """As `list_folder`."""
        raise _on_no_disk(path)

    def read_bytes(self, path: str, limit: int) -> bytes:
        """As `read_bytes`."""
        raise _on_no_disk(path)

    def write_bytes(self, path: str, data: bytes) -> None:
        """A new file that is there as a whole or not at all. OutputError."""
        raise _on_no_disk(path)


_elsewhere = [Elsewhere()]


def reach_elsewhere(places: Elsewhere) -> None:
    """From now on `places` are asked of paths that stand for URLs."""
    _elsewhere[0] = places


def elsewhere() -> Elsewhere:
    """Whom to ask of paths that stand for URLs."""
    return _elsewhere[0]


def check_on_disk(path: PathLike) -> None:
    """Raises UsageError for a path that stands for a URL."""
    if urls.is_remote(path):
        raise _on_no_disk(str(path))


def _on_no_disk(path: str) -> UsageError:
    return UsageError(f"{urls.url_of(path)}: this command works with a folder of this machine only", "name a folder")


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


def open_binary(path: str) -> BinaryIO:
    """A regular file opened for reading bytes; errors as of `open_descriptor`."""
    return os.fdopen(open_descriptor(path), "rb")


def open_text(path: str, encoding: str = "utf-8", errors: str = "strict", newline: Optional[str] = None) -> TextIO:
    """A regular file opened for reading text; errors as of `open_descriptor`, later UnicodeDecodeError."""
    return io.TextIOWrapper(open_binary(path), encoding, errors, newline)


def read_bytes(path: str, limit: int = MAX_TEXT) -> bytes:
    """A whole regular file of at most `limit` bytes. FormatError for a larger one; else as `open_descriptor`."""
    if urls.is_remote(path):
        return elsewhere().read_bytes(path, limit)
    data = bytearray()
    with open_binary(path) as file:
        try:
            # Not by its size, which may grow, and is 0 below /proc; and not at once, which takes memory for the limit.
            while len(data) <= limit:
                piece = file.read(_PIECE)
                if not piece:
                    return bytes(data)
                data += piece
        except OSError as error:
            raise user_error(path, error) from error
    raise too_large(path, limit)


def too_large(path: str, limit: int) -> FormatError:
    """The error for a file of more than `limit` bytes."""
    hint = "check what wrote it"
    return FormatError.of(path, f"too large: more than {limit} bytes where a small file should be", hint)


def read_text(path: str, limit: int = MAX_TEXT, errors: str = "strict", newline: Optional[str] = None) -> str:
    """A whole regular UTF-8 file of at most `limit` bytes; its line ends become `\\n` unless `newline` is "".

    FormatError for one that is larger or no UTF-8; else as `open_descriptor`.
    """
    return decoded(path, read_bytes(path, limit), errors, newline)


def decoded(path: str, data: bytes, errors: str = "strict", newline: Optional[str] = None) -> str:
    """The UTF-8 text of a file; FormatError if it is none."""
    try:
        return io.TextIOWrapper(io.BytesIO(data), "utf-8", errors, newline).read()
    except UnicodeDecodeError as error:
        raise FormatError.of(
            path, f"no text: byte {error.start} is not UTF-8", "check the name, and what wrote it", offset=error.start
        ) from None


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


def list_folder(path: str, what: str = "files") -> List[str]:
    """The names in a folder, sorted. DataNotFoundError if it is missing or a file, FormatError if it may not be read.

    `what` says in the hint what is looked for. An empty folder has no names and is no error.
    """
    if urls.is_remote(path):
        return elsewhere().list_folder(path, what)
    try:
        return sorted(os.listdir(path))
    except OSError as error:
        raise folder_error(path, error, what) from error
    except ValueError as error:  # a zero byte in the name
        raise DataNotFoundError.of(path, "no such folder", "check the name") from error


def is_folder(path: PathLike) -> bool:
    """Whether a folder is there. FormatError where that cannot be told, for want of permission in one above it."""
    if urls.is_remote(path):
        return elsewhere().is_folder(str(path))
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError as error:
        raise folder_error(str(path), error) from error


def check_folder(path: str, what: str = "files") -> None:
    """Raises the error for what is no folder: missing, a file, not permitted; `what` is looked for there."""
    if not is_folder(path):
        error = errno.ENOTDIR if os.path.lexists(path) else errno.ENOENT
        raise folder_error(path, OSError(error, os.strerror(error)), what)


def lock_folder(path: str, kind: int) -> Optional[int]:
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
