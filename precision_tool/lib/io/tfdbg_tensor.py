"""Tensor files of TensorFlow's debugger, read where they lie: their values are those of a `.npy` file, undecoded."""

from __future__ import annotations

import atexit
import shutil
import struct
import tempfile
import threading
from functools import cache
from pathlib import Path

import numpy as np

from precision_tool.lib.io.files import may_change_unseen, open_file, signature_of, store_of
from precision_tool.lib.io.local import LOCAL
from precision_tool.lib.io.npy import our_name, read_npy
from precision_tool.lib.io.stores import Signature
from precision_tool.lib.io.tfdbg_files import TensorEvent, read_event, read_event_at, write_npy
from precision_tool.lib.messages.errors import FormatError
from precision_tool.lib.model.tensor import Tensor

#: `Event.wall_time` (field 1, a double), then `Event.summary` (field 5, a message).
_HEAD = struct.Struct("<BdB")
_WALL_TIME, _SUMMARY = 0x09, 0x2A
#: Seconds or microseconds since 1970.
_EARLIEST, _LATEST = 1e8, 1e17
#: Tensors up to this size are decoded into a temporary file if they have to be, and up to this size in all: a small
#: file may claim to be a large tensor, whose last value stands for the rest.
_MAX_DECODED, _MAX_DECODED_IN_ALL = 64 << 20, 256 << 20
#: The temporary file of each that was decoded, and what the file was then.
_decoded_files: dict[str, tuple[Signature, str]] = {}
_decoded_lock = threading.Lock()


class NoNumbersError(FormatError):
    """A sound file of a tensor that has no numbers: texts, resources, a variable before it is initialized."""


def looks_like_event(head: bytes) -> bool:
    """Whether a file that starts like this is an `Event` with a summary, as tfdbg writes it for each tensor."""
    if len(head) < _HEAD.size:
        return False
    first, wall_time, second = _HEAD.unpack_from(head)
    return (first, second) == (_WALL_TIME, _SUMMARY) and _EARLIEST < wall_time < _LATEST


def read_tensor_event(path: str) -> Tensor:
    """The tensor of a file, undecoded; NoNumbersError for what has none, FormatError for what is damaged."""
    event = _event(path)
    if event.skip:
        raise NoNumbersError.of(path, "io.tfdbg.no_numbers", reason=event.skip)
    if event.plain is None:
        return _decoded(event)
    name = our_name(np.dtype(event.type.descr))
    if name is None:
        raise FormatError.of(path, "io.tfdbg.not_numbers", type=event.type.name)
    return Tensor(
        path=path,
        offset=event.plain.start,
        nbytes=event.nbytes,
        dtype=name,
        shape=event.shape,
        origin_shape=event.shape,
    )


def _event(path: str) -> TensorEvent:
    if store_of(path) is LOCAL:
        return read_event(path)
    with open_file(path) as file:
        return read_event_at(path, file.size, file.read_at)


def _decoded(event: TensorEvent) -> Tensor:
    """A tensor whose values are encoded one by one, which tfdbg itself does not do, from a file of this process."""
    if store_of(event.path) is not LOCAL:
        raise FormatError.of(event.path, "io.tfdbg.encoded_remote")
    if event.nbytes > _MAX_DECODED:
        raise FormatError.of(event.path, "io.tfdbg.encoded_large", nbytes=event.nbytes)
    with _decoded_lock:
        signature = signature_of(event.path)
        cached = _decoded_files.get(event.path)
        if cached is not None and cached[0] == signature and not may_change_unseen(*signature[1:3]):
            return read_npy(cached[1])
        folder = _decoded_folder()
        held = sum(file.stat().st_size for file in Path(folder).iterdir())
        if held + event.nbytes > _MAX_DECODED_IN_ALL:
            raise FormatError.of(event.path, "io.tfdbg.encoded_in_all", limit=_MAX_DECODED_IN_ALL)
        with tempfile.NamedTemporaryFile(suffix=".npy", dir=folder, delete=False) as file:
            path = file.name
        Path(path).unlink()  # a name nobody else has
        write_npy(event, path, lambda count: None)
        if signature is not None:
            _decoded_files[event.path] = signature, path
        return read_npy(path)


@cache
def _decoded_folder() -> str:
    folder = tempfile.mkdtemp(prefix="precision_tool_tfdbg_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
