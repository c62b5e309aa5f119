"""The folder of benchmark tensors, replaced as a whole: the old set stays until the new one is complete.

A new set grows in a hidden folder beside the old one (`.dump.….part`) and takes its place by renaming; the old one
(`.dump.….old`) is then removed. What an earlier process left behind when it was killed is put right first.
This module runs on Python 3.7.
"""

import fcntl
import os
import re
import shutil
import stat
import time
from dataclasses import dataclass
from types import TracebackType
from typing import List, Optional, Tuple, Type

from precision_tool.lib.errors import OutputError, UsageError
from precision_tool.lib.tfdbg.npy_files import unwritable
from precision_tool.lib.tfdbg.runs import is_npy_name

_NEW, _OLD = ".part", ".old"


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
        self.new_folder = ""
        self._parent, self._name = os.path.split(self.folder)
        self._lock = -1

    def __enter__(self) -> "NpySet":
        if os.path.exists(self.folder) and not os.path.isdir(self.folder):
            raise UsageError(f"{self.folder}: a file where a folder should be", "move it away, or use -o DIR")
        try:
            os.makedirs(self._parent, exist_ok=True)
            self._put_right()
        except OSError as error:
            raise unwritable(self._parent, error) from error
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

    def start(self, nbytes: int) -> str:
        """Makes the folder for a new set of so many bytes and returns its path."""
        try:
            free = shutil.disk_usage(self._parent).free
            if free < nbytes:
                needed = f"{nbytes / 1e6:.1f} MB are needed, {free / 1e6:.1f} MB are free"
                raise OutputError(
                    f"{self._parent}: not enough space: {needed}",
                    "free some space, or name a folder with -o DIR",
                )
            self.new_folder = self._beside(_NEW)
            os.mkdir(self.new_folder)
            if os.path.isdir(self.folder):
                os.chmod(self.new_folder, stat.S_IMODE(os.stat(self.folder).st_mode) | stat.S_IRWXU)
            self._lock = _try_lock(self.new_folder)
        except OutputError:
            raise
        except OSError as error:
            raise unwritable(self._parent, error) from error
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
        old = self._beside(_OLD)
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

    def _beside(self, ending: str) -> str:
        return os.path.join(self._parent, f".{self._name}.{os.getpid()}.{time.time_ns()}{ending}")

    def _put_right(self) -> None:
        """Finishes or takes back what a killed process left; what another one is at is left alone."""
        pattern = re.compile(rf"\.{re.escape(self._name)}\.[0-9]+\.[0-9]+(?:{_NEW}|{_OLD})\Z")
        for name in sorted(filter(pattern.match, os.listdir(self._parent))):
            path = os.path.join(self._parent, name)
            lock = _try_lock(path)
            if lock < 0:
                continue
            try:
                if name.endswith(_NEW):
                    shutil.rmtree(path, ignore_errors=True)
                elif os.path.isdir(self.folder):
                    self._clear(path)
                else:
                    os.rename(path, self.folder)
            finally:
                os.close(lock)

    def _clear(self, old: str) -> None:
        """Removes the tensors of an old set; other files go where they were."""
        for name in os.listdir(old):
            path, kept = os.path.join(old, name), os.path.join(self.folder, name)
            if is_npy_name(name) and not os.path.isdir(path):
                os.unlink(path)
            elif not os.path.lexists(kept):
                os.rename(path, kept)
        os.rmdir(old)


def _try_lock(folder: str) -> int:
    """A descriptor that holds the lock of a folder; -1 if another process does, or locks do not work there."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return -1
    return fd
