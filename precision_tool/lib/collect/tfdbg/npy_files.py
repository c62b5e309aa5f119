"""One tensor file of tfdbg → one `.npy` file, copied inside the operating system where that works.

This module runs on Python 3.7.
"""

import errno
import os
from typing import Callable

from precision_tool.lib.collect.tfdbg.event import Span, TensorEvent, open_for_reading
from precision_tool.lib.collect.tfdbg.values import npy_pieces, read_at
from precision_tool.lib.errors import FormatError, OutputError, PrecisionToolError
from precision_tool.lib.io.files import open_binary

#: Bytes copied before the caller is told: Ctrl+C is heard and progress shown this often.
_PIECE = 16 << 20
_COMPARED = 1 << 20
#: What writing fails with for want of space.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

#: Told of bytes that are done; raises to stop.
Told = Callable[[int], None]


def write_npy(event: TensorEvent, path: str, told: Told) -> None:
    """Writes the tensor to the new file `path`. FormatError for the source, OutputError for what is written."""
    source = open_for_reading(event.path)
    try:
        try:
            target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise unwritable(path, error) from error
        try:
            for piece in npy_pieces(event, source):
                if isinstance(piece, Span):
                    _copy(event.path, source, piece, path, target, told)
                else:
                    _write(path, target, piece)
                    told(len(piece))
        finally:
            os.close(target)
    except FormatError:
        os.unlink(path)
        raise
    finally:
        os.close(source)


def is_same_npy(event: TensorEvent, path: str, told: Told) -> bool:
    """Whether the file `path` is just what `write_npy` would write."""
    source = open_for_reading(event.path)
    try:
        with open_binary(path) as file:
            for piece in npy_pieces(event, source):
                if not isinstance(piece, Span):
                    if file.read(len(piece)) != piece:
                        return False
                    told(len(piece))
                    continue
                for start in range(piece.start, piece.stop, _COMPARED):
                    part = read_at(event.path, source, start, min(_COMPARED, piece.stop - start))
                    if file.read(len(part)) != part:
                        return False
                    told(len(part))
            return not file.read(1)
    except (OSError, PrecisionToolError):
        return False
    finally:
        os.close(source)


def unwritable(path: str, error: OSError) -> OutputError:
    """The user's error for a file or folder that cannot be written."""
    return OutputError.of(
        path,
        f"cannot be written ({error.strerror or error})",
        "free some space, or name a folder with -o DIR",
    )


def _copy(source_path: str, source: int, span: Span, path: str, target: int, told: Told) -> None:
    start, left = span.start, span.stop - span.start
    in_kernel = True
    while left:
        count = min(_PIECE, left)
        if in_kernel:
            try:
                done = os.sendfile(target, source, start, count)
            except OSError as error:
                if error.errno in _NO_ROOM:
                    raise unwritable(path, error) from error
                in_kernel = False  # not on this file system
                continue
            if not done:
                reason = f"ends at byte {start} while it is copied"
                raise FormatError.of(source_path, reason, "copy the file again", offset=start)
        else:
            part = read_at(source_path, source, start, min(count, _COMPARED))
            _write(path, target, part)
            done = len(part)
        start, left = start + done, left - done
        told(done)


def _write(path: str, target: int, data: bytes) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(target, view) :]
    except OSError as error:
        raise unwritable(path, error) from error
