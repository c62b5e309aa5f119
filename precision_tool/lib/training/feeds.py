"""The fed inputs of a step: what was fed, into `.npy` files, and back. This module runs on Python 3.7.

`feeds.json` beside the files says which tensor each file is: names alone do not (`a/b:0` and `a_b:0`).
"""

import json
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from precision_tool.lib.errors import FormatError
from precision_tool.lib.training.packages import numpy

MANIFEST_NAME = "feeds.json"


class SavedFeed(NamedTuple):
    """A fed tensor that was saved: `file` lies beside the manifest."""

    tensor: str
    file: str


class SavedFeeds(NamedTuple):
    """All that is known of the feeds of a step; `left_out` has a reason for each tensor that was not saved."""

    folder: Path
    saved: Tuple[SavedFeed, ...]
    left_out: Mapping[str, str]


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
            self.left_out[tensor.name] = reason
            return
        self.left_out.pop(tensor.name, None)
        name, number = file_name(tensor.name), 1
        while any(used == name and other != tensor.name for other, used in self._files.items()):
            number += 1
            name = f"{file_name(tensor.name)[:-4]}.{number}.npy"
        np.save(str(self.folder / name), array, allow_pickle=False)
        self._files[tensor.name] = name

    def finish(self) -> List[str]:
        """Write the manifest; returns the names of the saved tensors."""
        feeds = [{"tensor": tensor, "file": name} for tensor, name in self._files.items()]
        content = {"version": 1, "feeds": feeds, "left_out": self.left_out}
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
    if not path.is_file():
        named = ((tensor, file_name(tensor)) for tensor in tensors)
        return SavedFeeds(folder, tuple(SavedFeed(*pair) for pair in named if (folder / pair[1]).is_file()), {})
    try:
        content = json.loads(path.read_text("utf-8"))
        saved = tuple(SavedFeed(str(each["tensor"]), str(each["file"])) for each in content["feeds"])
        left_out = {str(name): str(reason) for name, reason in content["left_out"].items()}
        if any("/" in each.file for each in saved):
            raise ValueError("a file outside the folder")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{path}: damaged ({error})", "save the step again with PrecisionTfSession") from None
    return SavedFeeds(folder, saved, left_out)


def load_feed(folder: Path, feed: SavedFeed, tensor: Any) -> Any:
    """The array of a saved feed, of the type of the tensor it is for. Raises FormatError."""
    np = numpy()
    path = folder / feed.file
    try:
        array = np.load(str(path), allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise FormatError(f"{path}: cannot be read ({error})", "save the step again with PrecisionTfSession") from None
    wanted = np.dtype(tensor.dtype.as_numpy_dtype)
    if array.dtype.kind == "V" and array.dtype.itemsize == wanted.itemsize:
        return array.view(wanted)  # numpy has no name for bfloat16
    return array
