"""Data types in mixed precision: the `modify_mixlist` file, and the snippet for `keep_dtype_scope`.

GE adds to the black and the white list only: an op gets gray by being removed from the list that it is in, and being
removed from another one does nothing (its parser of these files).

This module runs on Python 3.7.
"""

import contextlib
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Dict, Iterable, List, Mapping, Optional, Union

from precision_tool.lib.data.settings import Settings, load_settings
from precision_tool.lib.data.workspace import Workspace
from precision_tool.lib.io.files import read_bytes
from precision_tool.lib.messages import Message, render
from precision_tool.lib.messages.errors import OutputError, PrecisionToolError
from precision_tool.lib.training.packages import ScriptError, is_installed, say, tensorflow_v1

MIXLIST_NAME = "modify_mixlist.json"

Names = Union[str, Iterable[str]]

#: Where CANN says which list an op is in, below its own folder.
_BUILT_IN = "opp/built-in/op_impl/ai_core/tbe/config/*/aic-*-ops-info*.json"
_BUILT_IN_BYTES = 1 << 26
#: What `precision_reduce` of an op there means.
_LISTS = {"true": "white", "false": "black"}


def mixed_precision_list(
    black: Names = (),
    white: Names = (),
    gray: Union[Names, Mapping[str, str]] = (),
    path: Optional[Union[str, Path]] = None,
) -> str:
    """Write a `modify_mixlist` file and return its absolute path, for `NPURunConfig(modify_mixlist=…)` say.

    All are op types (`'MatMul'`), not names of ops. `black` ones are computed in float32, `white` ones in float16,
    `gray` ones as the ops before them; `gray` may say which list each is taken out of (`{'Add': 'black'}`), else CANN
    is asked, and where that is not installed it is the white one. Without `path` the file is the one that action
    `mixlist` takes.
    """
    lists = {
        "black-list": _types("black", black),
        "white-list": _types("white", white),
        "gray-list": _types("gray", gray),
    }
    list_of_type: Dict[str, str] = {}
    for name, types in lists.items():
        for op_type in types:
            if op_type in list_of_type:
                raise ScriptError(
                    "training.mixlist.two_lists", op_type=op_type, first=list_of_type[op_type], second=name
                )
            list_of_type[op_type] = name
    if not list_of_type:
        raise ScriptError("training.mixlist.empty")
    if path is None:
        target = result_file(load_settings(), MIXLIST_NAME)
    else:
        target = Path(os.path.abspath(os.path.expanduser(str(path))))
    content: Dict[str, Dict[str, List[str]]] = {
        name: {"to-add": types, "to-remove": []} for name, types in lists.items()
    }
    for op_type, name in _lists_to_leave(lists["gray-list"], gray).items():
        content[name + "-list"]["to-remove"].append(op_type)
    write_whole(target, json.dumps(content, indent=2) + "\n")
    return str(target)


def find_mixlist(settings: Settings) -> str:
    """The file that `mixed_precision_list` wrote. Raises ScriptError when there is none."""
    for folder in Workspace(settings.data, settings.work).result_dirs():
        path = os.path.abspath(str(folder / MIXLIST_NAME))
        if os.path.isfile(path):
            return path
    raise ScriptError("training.mixlist.none")


def _lists_to_leave(types: List[str], lists_or_types: Union[Names, Mapping[str, str]]) -> Dict[str, str]:
    """The list that each type is taken out of to be gray, black or white. Raises ScriptError."""
    lists = dict(lists_or_types) if isinstance(lists_or_types, Mapping) else {}
    for op_type, name in lists.items():
        if name not in ("black", "white"):
            raise ScriptError("training.mixlist.gray", name=repr(name), op_type=op_type)
    built_in = _built_in_lists(types) if set(types) - set(lists) else {}
    leave = {}
    for op_type in types:
        name = lists.get(op_type) or built_in.get(op_type)
        if name is None:
            say("mixlist_white", op_type=op_type)
        leave[op_type] = name or "white"
    return leave


def _built_in_lists(types: List[str]) -> Dict[str, str]:
    """The list that each type is in by the installed CANN, where all its chips agree; damaged files tell nothing."""
    types_of_list: Dict[str, Dict[str, None]] = {}
    root = load_settings().cmd_root_path
    folders = [root, *(root / name for name in ("ascend-toolkit/latest", "cann", "latest", "ascend-toolkit"))]
    for path in sorted({path for folder in folders for path in folder.glob(_BUILT_IN)}):
        try:
            ops = json.loads(read_bytes(str(path), _BUILT_IN_BYTES).decode("utf-8"))
        except (PrecisionToolError, ValueError, RecursionError):
            continue
        for op_type in types:
            op = ops.get(op_type) if isinstance(ops, dict) else None
            flag = op.get("precision_reduce") if isinstance(op, dict) else None
            if isinstance(flag, dict) and str(flag.get("flag")) in _LISTS:
                types_of_list.setdefault(op_type, {})[_LISTS[str(flag["flag"])]] = None
    return {op_type: next(iter(names)) for op_type, names in types_of_list.items() if len(names) == 1}


def keep_dtype(ops: Names) -> str:
    """Print and return the lines that make `ops` keep their data type in mixed precision, for this TensorFlow."""
    names = _listed(ops)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ScriptError("training.mixlist.keep_dtype")
    major = 0
    if is_installed("tensorflow"):
        tensorflow_v1()
        major = int(sys.modules["tensorflow"].__version__.split(".")[0])
    text = keep_dtype_text(names, major)
    print(text)
    return text


def keep_dtype_text(names: Iterable[object], major: int = 0) -> str:
    """The lines for TensorFlow 1 or 2, for both without a `major`."""
    body = ["    ...  # " + render(Message("step.lines_of", names=list(map(str, names))))]
    scope = ["from npu_bridge.npu_init import *", "with npu_scope.keep_dtype_scope():", *body]
    two = ["import npu_device as npu", "with npu.keep_dtype_scope():", *body]
    if major == 0:
        return "\n".join(["# TensorFlow 1:", *scope, "", "# TensorFlow 2:", *two])
    return "\n".join(scope if major == 1 else two)


def _types(argument: str, names: Names) -> List[str]:
    types: Dict[str, None] = {}
    for name in _listed(names):
        if not isinstance(name, str) or not re.match(r"[A-Za-z][A-Za-z0-9_]*\Z", name):
            raise ScriptError("training.mixlist.not_type", argument=argument, name=repr(name))
        types[name] = None
    return list(types)


def _listed(names: Names) -> List[object]:
    return [names] if isinstance(names, str) else list(names)


def result_file(settings: Settings, name: str) -> Path:
    """The absolute path of a file among the results of the data folder, which is made. Raises OutputError."""
    return Path(os.path.abspath(str(Workspace(settings.data, settings.work).output_dir() / name)))


def write_whole(path: Path, text: str) -> None:
    """Write to a temporary name beside it, then rename: nobody reads half a file. Its folder is made."""
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix="." + path.name, dir=str(path.parent))
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)  # the device's processes read it too
        os.replace(temporary, str(path))
    except OSError as error:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise OutputError("training.not_writable", path=str(path), reason=error.strerror) from None
