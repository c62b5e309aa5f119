"""The fed inputs of a step: what was fed, into `.npy` files, and back. This module runs on Python 3.7.

`feeds.json` beside the files says which tensor each file is: names alone do not (`a/b:0` and `a_b:0`).
"""

import io
import json
import os
from pathlib import Path
from typing import Any, BinaryIO, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from precision_tool.lib.collect.packages import numpy, reason_of
from precision_tool.lib.errors import FormatError, PrecisionToolError
from precision_tool.lib.io.files import open_binary, read_text

MANIFEST_NAME = "feeds.json"

_MAX_MANIFEST = 1 << 24
#: numpy's parser of headers takes time with the square of their length; what it writes itself is far shorter.
_MAX_HEADER = 1 << 10
_HINT = "save the step again with PrecisionTfSession"


class SavedFeed(NamedTuple):
    """A fed tensor that was saved: `file` lies beside the manifest."""

    tensor: str
    file: str


class SavedFeeds(NamedTuple):
    """All that is known of the feeds of a step; `left_out` has a reason for each tensor that was not saved.

    `train_ops` are the training ops that the saved run reached; empty where that is not known.
    """

    folder: Path
    saved: Tuple[SavedFeed, ...]
    left_out: Mapping[str, str]
    train_ops: Tuple[str, ...] = ()


def file_name(tensor: str) -> str:
    """The documented name of the file of a fed tensor."""
    return tensor.replace("/", "_").replace(":", "_") + ".npy"


class FeedWriter:
    """Saves feeds into a folder. A tensor fed again replaces what was saved of it before."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: Dict[str, str] = {}
        self.left_out: Dict[str, str] = {}

    def save(self, tensor: Any, value: Any) -> None:
        """Save what is fed to `tensor`; what `.npy` cannot hold is left out with a reason. Raises OSError."""
        np = numpy()
        array, reason = _as_array(tensor, value)
        if array is None:
            self.leave_out(tensor, reason)
            return
        self.left_out.pop(tensor.name, None)
        name, number = file_name(tensor.name), 1
        while any(used == name and other != tensor.name for other, used in self._files.items()):
            number += 1
            name = f"{file_name(tensor.name)[:-4]}.{number}.npy"
        np.save(str(self.folder / name), array, allow_pickle=False)
        self._files[tensor.name] = name

    def leave_out(self, tensor: Any, reason: str) -> None:
        """What is fed to `tensor` is not saved; the manifest says why."""
        self.left_out[tensor.name] = reason

    def finish(self, train_ops: Sequence[str] = ()) -> List[str]:
        """Write the manifest; returns the names of the saved tensors."""
        feeds = [{"tensor": tensor, "file": name} for tensor, name in self._files.items()]
        content = {"version": 1, "feeds": feeds, "left_out": self.left_out, "train_ops": list(train_ops)}
        (self.folder / MANIFEST_NAME).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        return list(self._files)


def _as_array(tensor: Any, value: Any) -> Tuple[Optional[Any], str]:
    np = numpy()
    if tensor.dtype.name == "string":
        array = np.asarray(value, dtype=object)
        flat = [item.encode("utf-8") if isinstance(item, str) else item for item in array.ravel().tolist()]
        if not all(isinstance(item, bytes) for item in flat):
            return None, "not a text"
        if any(item.endswith(b"\0") for item in flat):
            return None, "text that ends with a zero byte"  # numpy cuts it off
        return np.array(flat, dtype=bytes).reshape(array.shape), ""
    try:
        array = np.asarray(value, dtype=tensor.dtype.as_numpy_dtype)
    except (TypeError, ValueError) as error:
        return None, f"no array of {tensor.dtype.name} ({error})"
    if array.dtype.hasobject:
        return None, f"no array of numbers ({tensor.dtype.name})"
    return array, ""


def read_feeds(folder: Path, tensors: List[str]) -> SavedFeeds:
    """What was saved in `folder`. Without a manifest, files are found by the documented names of `tensors`."""
    path = folder / MANIFEST_NAME
    if not os.path.lexists(str(path)):
        named = ((tensor, file_name(tensor)) for tensor in tensors)
        return SavedFeeds(folder, tuple(SavedFeed(*pair) for pair in named if (folder / pair[1]).is_file()), {})
    try:
        content = json.loads(read_text(str(path), _MAX_MANIFEST))
        saved = tuple(SavedFeed(str(each["tensor"]), str(each["file"])) for each in content["feeds"])
        left_out = {str(name): str(reason) for name, reason in content["left_out"].items()}
        train_ops = tuple(str(name) for name in content.get("train_ops", ()))
        if any("/" in each.file for each in saved):
            raise ValueError("a file outside the folder")
    except PrecisionToolError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError) as error:
        raise FormatError.of(path, f"damaged ({reason_of(error)})", _HINT) from None
    return SavedFeeds(folder, saved, left_out, train_ops)


def load_feed(folder: Path, feed: SavedFeed, tensor: Any) -> Any:
    """The array of a saved feed, of the type of the tensor it is for. Raises FormatError."""
    np = numpy()
    path = folder / feed.file
    try:
        with open_binary(str(path)) as file:
            array = _read_array(file)
    except PrecisionToolError:
        raise
    except Exception as error:  # numpy's reading of a header raises whatever Python makes of a damaged literal
        raise FormatError.of(path, f"cannot be read ({reason_of(error)})", _HINT) from None
    wanted = np.dtype(tensor.dtype.as_numpy_dtype)
    if array.dtype.kind == "V" and array.dtype.itemsize == wanted.itemsize:
        return array.view(wanted)  # numpy has no name for bfloat16
    return array


def _read_array(file: BinaryIO) -> Any:
    """The array of a `.npy` file, whose header must agree with the file's size before anything is made for it."""
    np = numpy()
    formats = np.lib.format
    head = io.BytesIO(file.read(_MAX_HEADER))
    readers = {(1, 0): formats.read_array_header_1_0, (2, 0): formats.read_array_header_2_0}
    version = formats.read_magic(head)  # a .npz archive has another one
    if version not in readers:
        raise ValueError(f"version {version[0]}.{version[1]} of .npy")
    shape, fortran_order, dtype = readers[version](head)
    if dtype.hasobject:
        raise ValueError("an array of Python objects, which would have to be unpickled")
    count = 1
    for size in shape:
        if size < 0:
            raise ValueError(f"shape {shape} has a negative dimension")
        count *= int(size)
    needed, there = count * dtype.itemsize, os.fstat(file.fileno()).st_size - head.tell()
    if needed > there:
        raise ValueError(f"shape {list(shape)} of {dtype} needs {needed} bytes, and {there} are there")
    file.seek(head.tell())
    array = np.fromfile(file, dtype=dtype, count=count)
    return array.reshape(shape, order="F" if fortran_order else "C")
