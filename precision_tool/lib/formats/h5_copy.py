"""Ops of a `.h5` dump copied into another file, as HDF5's `h5copy -s /op/seq -d /op/seq` does."""

from __future__ import annotations

import posixpath
import shutil
from collections.abc import Sequence
from pathlib import Path

from precision_tool.lib.errors import FormatError, OutputError, PrecisionToolError, UsageError
from precision_tool.lib.formats.h5 import read_h5
from precision_tool.lib.formats.h5_process import CPU_SECONDS, Hdf5Error, ask_hdf5
from precision_tool.lib.io.files import exists, is_same_file, size_of
from precision_tool.lib.io.writing import replacing
from precision_tool.lib.model.pytorch import H5Op

#: What is copied in a second of CPU time on the slowest machine.
_BYTES_PER_SECOND = 10 << 20
_WRITE_HINT = "free some space or name another file"


def copy_ops(source: str, target: str, ops: Sequence[H5Op]) -> tuple[str, ...]:
    """Copies ops, with data, attributes and compression, into `target`, to what it holds already.

    `source` was read by `read_h5`, so that nothing in it leads elsewhere. The names of ops that the target had already
    are returned: they are replaced. The target appears, or changes, only when it is complete. OutputError if it cannot
    be written, FormatError for one that is no `.h5` dump, or is damaged so that HDF5 itself dies.
    """
    if is_same_file(source, target):
        raise UsageError(f"{target}: is the file to copy from", "name another file with -o")
    held = {op.name for op in read_h5(target).ops} if exists(target) else set()
    replaced = tuple(op.name for op in ops if op.name in held)
    mode = "r+" if exists(target) else "w"
    try:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as temporary:
            if mode == "r+":
                shutil.copyfile(target, temporary)
            ask_hdf5(
                "copy",
                source,
                seconds=CPU_SECONDS + (size_of(source) + size_of(temporary)) // _BYTES_PER_SECOND,
                target=posixpath.abspath(temporary),
                mode=mode,
                ops=[(op.type, op.seq) for op in ops],
            )
    except Hdf5Error as error:
        if error.died:
            raise FormatError.of(
                source, f"damaged so that {error.reason} while it copied", "copy or dump the files again",
                what=f"{source}, or {target}",
            ) from error  # fmt: skip
        if not error.is_os_error:
            raise FormatError.of(
                source, f"cannot be copied into {target}: {error.reason}", "copy or dump the files again"
            ) from error
        raise OutputError(f"{target}: cannot be written ({error.reason})", _WRITE_HINT) from error
    except OSError as error:
        if isinstance(error, PrecisionToolError):
            raise
        raise OutputError(f"{target}: cannot be written ({error.strerror})", _WRITE_HINT) from error
    return replaced
