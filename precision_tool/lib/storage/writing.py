"""Where on the disks of this machine something can be written, and files that change only as a whole."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from precision_tool.lib.errors import OutputError
from precision_tool.lib.storage.files import PART, own_prefix, temporary_path


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
