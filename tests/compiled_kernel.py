"""The kernels that tests try: numpy's, and the compiled one as on each kind of processor."""

from __future__ import annotations

import os

import pytest

from precision_tool.lib.compare.compiled import CompiledKernel
from precision_tool.lib.compare.kernel import Kernel
from precision_tool.lib.io.native.library import Library, library

#: Numbers as pt_use_processor of kernel.c takes them; a processor that is not as good is left at what it can.
PROCESSORS = {"compiled": 0, "compiled-avx2": 2, "compiled-plain": 1}
LESSER_PROCESSORS = ("compiled-avx2", "compiled-plain")
KINDS_OF_KERNEL = ("numpy", *PROCESSORS)


def compiled_library() -> Library:
    """The compiled kernel; a skip where it was not built, a failure with CI=true."""
    known = library()
    if known is None:
        why = "the compiled kernel was not built here: there is no C compiler, or PRECISION_TOOL_KERNEL=numpy"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    return known


def kernel_of(kind: str) -> Kernel:
    """A kernel of this kind. The kind of processor stays chosen until the next call."""
    if kind == "numpy":
        known = library()
        if known is not None:
            known.functions.pt_use_processor(0)
        return Kernel()
    known = compiled_library()
    known.functions.pt_use_processor(PROCESSORS[kind])
    return CompiledKernel(known)
