"""The folder of benchmark tensors, replaced as a whole: the old set stays until the new one is complete.

A new set grows in a hidden folder beside the old one (`.dump.{pid}.{time}.part`) and takes its place by renaming; the
old one (`.dump.….old`) is then removed. What an earlier process left behind when it was killed is put right first. A
process at work holds a lock on its hidden folder; where locks do not work (NFS) its number and the age of what is in
the folder tell.
This module runs on Python 3.7.
"""

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
import time
from dataclasses import dataclass
from types import TracebackType
from typing import List, Optional, Tuple, Type

from precision_tool.lib.io.tfdbg_files import unwritable
from precision_tool.lib.io.tfdbg_runs import is_npy_name
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import OutputError, UsageError

_NEW, _OLD = ".part", ".old"
#: What `_try_lock` says when another process has the lock, and where locks do not work.
_BUSY, _UNKNOWN = -1, -2
#: Without locks: seconds without a change after which a new set was left by a process that was killed.
_LEFT_BEHIND = 3600


@dataclass(frozen=True)
class Replaced:
    """What was in the folder: how many tensors that are gone now, and the names of other files, which were kept."""

    tensors: int = 0
    others: Tuple[str, ...] = ()


class NpySet:
    """A new set of tensors for `folder`: write it below `new_folder`, then `commit`. Without that nothing changes."""

    def __init__(self, folder: str) -> None:
        #: Where the set is in the end; a link to a folder stays one.
        self.folder = os.path.realpath(folder)
        self._given = folder
        self.new_folder = ""
        #: What the user should be told, each a line.
        self.notes: List[Message] = []
        self._parent, self._name = os.path.split(self.folder)
        self._lock = -1

    def __enter__(self) -> "NpySet":
        if os.path.exists(self.folder) and not os.path.isdir(self.folder):
            raise UsageError("training.folder_is_file", folder=self.folder)
        try:
            os.makedirs(self._parent, exist_ok=True)
            self._put_right()
        except OSError as error:
            raise self._unwritable_parent(error) from error
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if self.new_folder:
            shutil.rmtree(self.new_folder, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def names(self) -> List[str]:
        """The names of the tensors that are there now."""
        return [name for name in self._listed() if is_npy_name(name)]

    def others(self) -> Tuple[str, ...]:
        """The names of other files and folders there."""
        return tuple(name for name in self._listed() if not is_npy_name(name))

    def free(self) -> int:
        """Bytes that are free where the new set goes."""
        try:
            return shutil.disk_usage(self._parent).free
        except OSError as error:
            raise unwritable(self._parent, error) from error

    def start(self, nbytes: int) -> str:
        """Makes the folder for a new set of so many bytes and returns its path."""
        if _is_mount_point(self.folder):
            raise OutputError.of(self.folder, "training.mount_point", inside=self._inside())
        try:
            free = self.free()
            if free < nbytes:
                raise OutputError("training.no_space", folder=self._parent, needed=nbytes, free=free)
            self.new_folder = self._sibling(_NEW)
            os.mkdir(self.new_folder)
            if os.path.isdir(self.folder):
                os.chmod(self.new_folder, stat.S_IMODE(os.stat(self.folder).st_mode) | stat.S_IRWXU)
            self._lock = _try_lock(self.new_folder)
        except OSError as error:
            raise self._unwritable_parent(error) from error
        return self.new_folder

    def commit(self) -> Replaced:
        """Puts the new set in the place of the old one."""
        try:
            before = self._listed()
            others = self.others()
            if not before:
                os.rename(self.new_folder, self.folder)
            else:
                self._swap()
        except OSError as error:
            raise unwritable(self.folder, error) from error
        return Replaced(len(before) - len(others), others)

    def _swap(self) -> None:
        old = self._sibling(_OLD)
        lock = _try_lock(self.folder)  # moves with the folder: nobody else puts it right meanwhile
        try:
            os.rename(self.folder, old)
            try:
                os.rename(self.new_folder, self.folder)
            except BaseException:
                os.rename(old, self.folder)
                raise
            self._clear(old)
        finally:
            if lock >= 0:
                os.close(lock)

    def _listed(self) -> List[str]:
        try:
            return sorted(os.listdir(self.folder))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise unwritable(self.folder, error) from error

    def _sibling(self, ending: str) -> str:
        return os.path.join(self._parent, f".{self._name}.{os.getpid()}.{time.time_ns()}{ending}")

    def _put_right(self) -> None:
        """Finishes or takes back what a killed process left; what another one is at is left alone."""
        pattern = re.compile(rf"\.{re.escape(self._name)}\.([0-9]+)\.[0-9]+(?:{_NEW}|{_OLD})\Z")
        for match in filter(None, map(pattern.match, sorted(os.listdir(self._parent)))):
            name, path = match.group(), os.path.join(self._parent, match.group())
            try:
                lock = _try_lock(path)
            except FileNotFoundError:  # the process that had it is done
                continue
            try:
                if lock == _BUSY:
                    self.notes.append(Message("note.training.folder.busy", path=path))
                elif name.endswith(_NEW):
                    if lock == _UNKNOWN and _may_be_in_use(int(match.group(1)), path):
                        self.notes.append(Message("note.training.folder.maybe_busy", path=path))
                    else:
                        shutil.rmtree(path, ignore_errors=True)
                # Whoever renamed the old set, the only thing left to do is this, and two may do it at once.
                elif os.path.isdir(self.folder):
                    self._clear(path)
                else:
                    os.rename(path, self.folder)
            finally:
                if lock >= 0:
                    os.close(lock)

    def _clear(self, old: str) -> None:
        """Removes the tensors of an old set; other files go where they were, or beside what has their name by now."""
        with contextlib.suppress(FileNotFoundError):  # another process is at the same
            for name in os.listdir(old):
                path, current = os.path.join(old, name), os.path.join(self.folder, name)
                if is_npy_name(name) and not os.path.isdir(path):
                    os.unlink(path)
                    continue
                if os.path.lexists(current):
                    current = _free_name(current)
                    self.notes.append(Message("note.training.folder.renamed", path=current))
                os.rename(path, current)
            os.rmdir(old)

    def _unwritable_parent(self, error: OSError) -> OutputError:
        """The user's error for the folder above, in which the new set is made; the folder itself may do."""
        plain = unwritable(self._parent, error)
        forbidden = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        if forbidden and os.path.isdir(self.folder) and os.access(self.folder, os.W_OK | os.X_OK):
            return OutputError("training.parent_not_writable", reason=plain.full_message, inside=self._inside())
        return plain

    def _inside(self) -> str:
        """A folder below it, where comparisons look too."""
        return os.path.join(self._given, "tensors")


def _try_lock(folder: str) -> int:
    """A descriptor that holds the lock of a folder; _BUSY if another process does, _UNKNOWN where locks do not work."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return _BUSY
    except OSError:
        os.close(fd)
        return _UNKNOWN
    return fd


def _may_be_in_use(pid: int, folder: str) -> bool:
    """Whether a process may be writing to a folder: it lives here, or, on another machine, wrote not long ago."""
    if pid != os.getpid():
        try:
            os.kill(pid, 0)
        except PermissionError:  # it lives, as another user's
            return True
        except (OSError, OverflowError):
            pass
        else:
            return True
    try:
        with os.scandir(folder) as entries:
            newest = max([os.stat(folder).st_mtime, *(entry.stat(follow_symlinks=False).st_mtime for entry in entries)])
    except OSError:
        return True
    return time.time() - newest < _LEFT_BEHIND


def _free_name(path: str) -> str:
    """A path that nothing has, which is not taken for a tensor's."""
    number = 1
    while os.path.lexists(f"{path}.kept{number}"):
        number += 1
    return f"{path}.kept{number}"


def _is_mount_point(folder: str) -> bool:
    """Whether something is mounted there, a part of the same disk too, which `os.path.ismount` does not see."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            points = [line.split(" ")[4] for line in file]
    except (OSError, IndexError):
        return os.path.ismount(folder)
    return folder in (re.sub(r"\\([0-7]{3})", lambda code: chr(int(code.group(1), 8)), point) for point in points)
