"""The threads of the library that multiplies matrices: one in a process that shares its cores with others.

Several processes with as many threads each as there are cores wait for each other most of the time.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache

from precision_tool.lib.io.files import read_text
from precision_tool.lib.messages.errors import PrecisionToolError

#: What OpenBLAS calls it, as numpy's packages and as systems have it.
_NAMES = ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads")


@cache
def multiply_in_one_thread() -> bool:
    """Make numpy multiply matrices in the thread that asks, in this process; return whether that could be set."""
    done = False
    with suppress(OSError, PrecisionToolError):  # no list of libraries, as on other systems
        loaded = {line.split()[-1] for line in read_text("/proc/self/maps").splitlines() if "blas" in line}
        for path in sorted(name for name in loaded if name.startswith("/")):
            try:
                library = ctypes.CDLL(path)
            except OSError:  # not of this process's kind
                continue
            for name in _NAMES:
                function = getattr(library, name, None)
                if function is not None:
                    function(1)
                    done = True
    return done
