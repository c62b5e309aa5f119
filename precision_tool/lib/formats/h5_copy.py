"""Ops of a `.h5` dump copied into another file, as HDF5's `h5copy -s /op/seq -d /op/seq` does."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from typing import Any

from precision_tool.lib.errors import FormatError, OutputError, PrecisionToolError, UsageError
from precision_tool.lib.formats.h5 import read_h5
from precision_tool.lib.formats.h5_bytes import H5_ERRORS, h5_reason, h5py_module, open_h5
from precision_tool.lib.model.pytorch import H5Op
from precision_tool.lib.storage.files import temporary_file

#: Calls a function with its arguments in a process of its own. BrokenProcessPool if that dies.
Apart = Callable[..., None]


def copy_ops(source: str, target: str, ops: Sequence[H5Op], apart: Apart) -> tuple[str, ...]:
    """Copies ops, with data, attributes and compression, into `target`, to what it holds already.

    `source` was read by `read_h5`, so that nothing in it leads elsewhere. The names of ops that the target had already
    are returned: they are replaced. The target appears, or changes, only when it is complete. OutputError if it cannot
    be written, FormatError for one that is no `.h5` dump, or is damaged so that HDF5 itself, which runs `apart`, dies.
    """
    if os.path.exists(target) and os.path.exists(source) and os.path.samefile(source, target):
        raise UsageError(f"{target}: is the file to copy from", "name another file with -o")
    held = {op.name for op in read_h5(target).ops} if os.path.exists(target) else set()
    replaced = tuple(op.name for op in ops if op.name in held)
    folder = os.path.dirname(target) or "."
    temporary = ""
    try:
        os.makedirs(folder, exist_ok=True)
        handle, temporary = temporary_file(folder)
        os.close(handle)
        if os.path.exists(target):
            shutil.copyfile(target, temporary)
        apart(_copy, source, temporary, "r+" if os.path.exists(target) else "w", [(op.type, op.seq) for op in ops])
        os.replace(temporary, target)
    except BrokenProcessPool as error:
        raise FormatError(
            f"{source}, or {target}: damaged so that HDF5 itself broke down while it copied",
            "copy or dump the files again",
        ) from error
    except H5_ERRORS as error:
        if isinstance(error, PrecisionToolError):
            raise
        if not isinstance(error, OSError):
            raise FormatError(
                f"{source}: cannot be copied into {target}: {h5_reason(error)}", "copy or dump the files again"
            ) from error
        why = error.strerror or h5_reason(error)
        raise OutputError(f"{target}: cannot be written ({why})", "free some space or name another file") from error
    finally:
        if temporary:
            with suppress(OSError):
                os.unlink(temporary)
    return replaced


def _copy(source: str, target: str, mode: str, ops: Sequence[tuple[str, int]]) -> None:
    """Copies ops, given by type and number, into a file that nobody else uses."""
    h5py: Any = h5py_module(source)
    # In the oldest format: what reads it may have been built with an HDF5 of 2020.
    with open_h5(source) as given, h5py.File(target, mode, libver="earliest") as made:
        for op_type, seq in ops:
            name = f"/{op_type}/{seq}"
            if name in made:
                del made[name]
            given.copy(name, made.require_group(f"/{op_type}"), name=str(seq))
