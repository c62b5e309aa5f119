"""Files of this machine that stay open while a command runs, so that each of its steps finds them open.

Finding tensors reads the head of a file, comparing its data, judging some of that again. Without this each opens the
file anew, and so does every thread and process. Reads name their place, so all of them share one descriptor.
"""

from __future__ import annotations

import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from precision_tool.lib.storage.files import LocalFile, opened_path
from precision_tool.lib.storage.store import StoredFile
from precision_tool.lib.user_files import open_descriptor

#: Files that are kept open at most, and the share of what the system lets a process open: others need some too.
_MOST, _SHARE = 8192, 2


class _Descriptor:
    """An open file, how many use it now, and whether the last of them closes it."""

    __slots__ = ("is_left", "number", "users")

    def __init__(self, number: int) -> None:
        self.number, self.users, self.is_left = number, 0, False


class _Kept:
    """The open files by the paths under which they were opened, those used last at the end."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: OrderedDict[str, _Descriptor] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, path: str) -> StoredFile:
        """A file; one more than may be kept is opened for itself."""
        place = opened_path(path)
        with self._lock:
            known = self._open.get(place)
            if known is None:
                if not self._has_room():
                    return LocalFile(path)
                known = self._open[place] = _Descriptor(open_descriptor(place))
            self._open.move_to_end(place)
            known.users += 1
        return _Shared(path, known, self)

    def _has_room(self) -> bool:
        if len(self._open) < self._most:
            return True
        idle = next((place for place, one in self._open.items() if not one.users), None)
        if idle is None:
            return False
        os.close(self._open.pop(idle).number)
        return True

    def leave(self, one: _Descriptor) -> None:
        """Whoever opened it has done with it."""
        with self._lock:
            one.users -= 1
            if one.is_left and not one.users:
                os.close(one.number)

    def close(self) -> None:
        """Closes all files; those that are in use when their last user closes them."""
        with self._lock:
            while self._open:
                _, one = self._open.popitem()
                one.is_left = True
                if not one.users:
                    os.close(one.number)

    def forget_locks(self) -> None:
        """In a forked process: the threads that had them are not there."""
        self._lock = threading.Lock()


class _Shared(LocalFile):
    """A file whose descriptor others use too."""

    def __init__(self, path: str, one: _Descriptor, kept: _Kept) -> None:
        self.path = path
        self._fd, self._one, self._kept = one.number, one, kept
        self.size = os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            self._fd = -1
            self._kept.leave(self._one)


#: What is kept now, innermost last; of nested blocks the outermost does the work.
_kept: list[_Kept] = []


def _forget_locks() -> None:
    for one in _kept:
        one.forget_locks()


os.register_at_fork(after_in_child=_forget_locks)


@contextmanager
def files_kept_open() -> Iterator[None]:
    """Until the block ends, each local file that is read is opened once, by this process and those forked from it.

    What is written to a file meanwhile is seen, another file under its name is not. So it is for one command.
    """
    if _kept:
        yield
        return
    with _more_descriptors() as limit:
        mine = _Kept(min(_MOST, limit // _SHARE))
        _kept.append(mine)
        try:
            yield
        finally:
            _kept.remove(mine)
            mine.close()


@contextmanager
def _more_descriptors() -> Iterator[int]:
    """Lets this process open as many files as are of use, as far as the system allows; how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST * _SHARE
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        yield wanted
        return
    more = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    try:
        with suppress(ValueError, OSError):  # a system that allows less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
        yield resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    finally:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_local(path: str) -> StoredFile:
    """A local file: a shared one while files are kept open, else one of its own."""
    return _kept[-1].open(path) if _kept else LocalFile(path)
