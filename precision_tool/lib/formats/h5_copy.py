"""Ops of a `.h5` dump copied into another file, as HDF5's `h5copy -s /op/seq -d /op/seq` does."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from precision_tool.lib.errors import OutputError, UsageError
from precision_tool.lib.formats.h5 import read_h5
from precision_tool.lib.formats.h5_bytes import H5_ERRORS, h5_reason, h5py_module, open_h5
from precision_tool.lib.model.pytorch import H5Op
from precision_tool.lib.storage.files import temporary_file


def copy_ops(source: str, target: str, ops: Sequence[H5Op]) -> tuple[str, ...]:
    """Copies ops, with data, attributes and compression, into `target`, to what it holds already.

    `source` was read by `read_h5`, so that nothing in it leads elsewhere. The names of ops that the target had already
    are returned: they are replaced. The target appears, or changes, only when it is complete. OutputError if it cannot
    be written, FormatError for one that is no `.h5` dump.
    """
    h5py = h5py_module(source)
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
        mode = "r+" if os.path.exists(target) else "w"
        # In the oldest format: what reads it may have been built with an HDF5 of 2020.
        with open_h5(source) as given, h5py.File(temporary, mode, libver="earliest") as made:
            for op in ops:
                _copy(given, made, op)
        os.replace(temporary, target)
    except H5_ERRORS as error:
        if isinstance(error, UsageError):
            raise
        why = (error.strerror if isinstance(error, OSError) else "") or h5_reason(error)
        raise OutputError(f"{target}: cannot be written ({why})", "free some space or name another file") from error
    finally:
        if temporary:
            with suppress(OSError):
                os.unlink(temporary)
    return replaced


def _copy(given: Any, made: Any, op: H5Op) -> None:
    if op.name in made:
        del made[op.name]
    given.copy(op.name, made.require_group(f"/{op.type}"), name=str(op.seq))
