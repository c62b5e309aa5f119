"""The limits of the machine as errors of the user's: which one, its value, what was needed, what to do next.

This module runs on Python 3.7.
"""

import errno
import mmap
import os
import resource
from contextlib import suppress
from typing import Iterator, Optional

from precision_tool.lib.messages.errors import PrecisionToolError

#: Address space kept for telling of its end; and what loading numpy and the first workers takes.
_RESERVE, _START_BYTES = 16 << 20, 128 << 20
#: Address space that products of matrices take for their buffers.
PRODUCT_BYTES = 96 << 20
#: Work on less is not too large by itself where memory is short.
_LITTLE_BYTES = 32 << 20


class LimitError(PrecisionToolError):
    """A limit of the machine, the container or the shell: memory, open files, processes."""


class Reserve:
    """Address space that is given back to tell of its end; nothing where it has no limit."""

    def __init__(self) -> None:
        self._held: Optional[mmap.mmap] = None
        if limit_of(resource.RLIMIT_AS):
            with suppress(OSError, ValueError):  # then there is nothing to keep
                self._held = mmap.mmap(-1, _RESERVE)

    def release(self) -> None:
        """Give it back."""
        if self._held is not None:
            self._held.close()


def limit_of(kind: int) -> Optional[int]:
    """Return a limit of this process; None: it has none."""
    limit = resource.getrlimit(kind)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def check_address_space(nbytes: int = _START_BYTES) -> None:
    """Raise LimitError where so much is not left: OpenBLAS ends the process, or waits for ever.

    Without `nbytes` it is what loading the libraries takes.
    """
    limit = limit_of(resource.RLIMIT_AS)
    if limit is None:
        return
    try:
        mmap.mmap(-1, nbytes).close()
    except (OSError, ValueError):
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        raise LimitError("limit.memory", limit=limit >> 20, needed=(used + nbytes >> 20) + 1) from None


def limit_error(error: Optional[BaseException]) -> Optional[LimitError]:
    """Return the limit that an exception, or what it was raised for, is due to; None: it is something else."""
    is_ours = False
    for cause in _causes(error):
        if isinstance(cause, LimitError):
            return cause
        kind = _kind(cause)
        # Behind an error of ours it is a lock that somebody else holds, say, which that error tells of.
        if kind and not (is_ours and isinstance(cause, BlockingIOError)):
            return _limit(kind)
        is_ours = is_ours or isinstance(cause, PrecisionToolError)
    return None


def is_limit_of_files(error: OSError) -> bool:
    """Return whether it is a limit of the machine, no fault of the file, that a file cannot be opened or read."""
    return _kind(error) in ("files", "system_files", "memory")


def has_memory_limit() -> bool:
    """Return whether the address space of this process has a limit."""
    return limit_of(resource.RLIMIT_AS) is not None


def is_of_machine(error: BaseException, nbytes: int) -> bool:
    """Return whether an error in work on so many bytes would come of any other too.

    So it is where too many files are open, no process can be started, or the address space is too small for little.
    """
    kinds = set(map(_kind, _causes(error)))
    is_little = nbytes < _LITTLE_BYTES and has_memory_limit()
    return bool(kinds - {"", "memory"}) or ("memory" in kinds and is_little)


def _causes(error: Optional[BaseException]) -> Iterator[BaseException]:
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _kind(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "memory"
    if isinstance(error, OSError):
        return {
            errno.ENOMEM: "memory",
            errno.EMFILE: "files",
            errno.ENFILE: "system_files",
            errno.EAGAIN: "processes" if error.filename is None else "",
        }.get(error.errno or 0, "")
    if isinstance(error, ImportError):
        text = str(error)
        return "memory" if "failed to map segment" in text or os.strerror(errno.ENOMEM) in text else ""
    if isinstance(error, RuntimeError):
        if "can't start new thread" in str(error):
            return "processes"
        # Of concurrent.futures, which is not loaded for this.
        if any(base.__name__ == "BrokenExecutor" for base in type(error).__mro__):
            return "worker_lost"
    return ""


def _limit(kind: str) -> LimitError:
    space = limit_of(resource.RLIMIT_AS)
    memory = None if space is None else space >> 20
    if kind == "memory":
        return LimitError("limit.memory", limit=memory, needed=None)
    if kind == "files":
        return LimitError("limit.files", limit=limit_of(resource.RLIMIT_NOFILE))
    if kind == "processes":
        return LimitError("limit.processes", limit=limit_of(resource.RLIMIT_NPROC), memory=memory)
    return LimitError("limit." + kind, memory=memory)
