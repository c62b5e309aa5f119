"""The `acl.json` that makes AscendCL dump single ops: written, and checked. This module runs on Python 3.7.

It belongs beside the training script that runs ops of a `.h5` file again with
`torch.utils.dumper(use_load=True, load_with_acl_dump=True)`. Fields and values are those of the documents on single-op
overflow detection with PyTorch 1.5 and of aclInit.
"""

import difflib
import json
import os
import re
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from precision_tool.lib.io.files import read_text
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, UsageError, shown
from precision_tool.lib.training.mixlist import write_whole

FILE_NAME = "acl.json"
DEFAULT_DUMP_PATH = "./output_IR2TBE"
MODES = ("all", "input", "output")
SWITCHES = ("on", "off")
#: Fields of the documents, and the values that each may have; None: checked apart, or any text.
_FIELDS: Mapping[str, Optional[Tuple[str, ...]]] = {
    "dump_list": None,
    "dump_path": None,
    "dump_mode": MODES,
    "dump_op_switch": SWITCHES,
    # Later releases:
    "dump_level": ("op", "kernel", "all"),
    "dump_data": ("tensor", "stats"),
    "dump_step": None,
    "dump_debug": SWITCHES,
    "dump_scene": None,
    "dump_stats": None,
}
#: aclInit reads no deeper file.
_MAX_DEPTH = 10
_MAX_BYTES = 1 << 20
#: A text in JSON, in which braces do not count.
_TEXT = r'"(?:\\.|[^"\\])*"'

#: How alike (`difflib`) an unknown field is to the one that was meant; less so is dump_kernel_data, of a later release.
_MISTYPED = 0.8


class Problem(NamedTuple):
    """What is wrong with a file, or only worth knowing."""

    text: Message
    is_error: bool = True


def acl_config(
    dump_path: str = DEFAULT_DUMP_PATH,
    dump_mode: str = "all",
    dump_op_switch: str = "on",
    dump_list: Sequence[Any] = (),
) -> Dict[str, Any]:
    """The content of an `acl.json`. UsageError for values that AscendCL would refuse, or not dump anything for."""
    dump = {
        "dump_list": list(dump_list),
        "dump_path": dump_path,
        "dump_mode": dump_mode,
        "dump_op_switch": dump_op_switch,
    }
    wrong = [problem.text for problem in _dump_problems(dump) if problem.is_error]
    if wrong:
        raise UsageError("training.acl.values", problems=tuple(wrong))
    return {"dump": dump}


def write_acl_json(path: Union[str, Path], config: Dict[str, Any]) -> Tuple[str, ...]:
    """Write `config` into a file, whose other parts (profiler, say) stay; the names of these are returned.

    UsageError for a file that is there and cannot be read as JSON: it is not overwritten.
    """
    target = Path(os.path.abspath(os.path.expanduser(str(path))))
    others: Dict[str, Any] = {}
    if os.path.exists(str(target)):
        try:
            document = _read(target)
        except FormatError as error:
            raise UsageError("training.acl.kept", reason=error.full_message, next=error.hint_message) from error
        others = {name: value for name, value in document.items() if name not in config}
    merged = dict(config)
    merged.update(others)
    write_whole(target, json.dumps(merged, indent=4) + "\n")
    return tuple(others)


def check_acl_json(path: Union[str, Path]) -> List[Problem]:
    """What is wrong with an `acl.json` for the dump of single ops. FormatError for one that is no JSON object."""
    config = _read(Path(str(path)))
    if "dump" not in config:
        return [Problem(Message("note.training.acl.no_dump"))]
    dump = config["dump"]
    if not isinstance(dump, dict):
        return [Problem(Message("note.training.acl.no_object"))]
    return _dump_problems(dump)


def _dump_problems(dump: Dict[str, Any]) -> List[Problem]:
    problems: List[Problem] = []
    for name, value in dump.items():
        if name not in _FIELDS:
            meant = next(iter(difflib.get_close_matches(name, _FIELDS, n=1, cutoff=_MISTYPED)), None)
            unknown = Message("note.training.acl.unknown_field", name=name, meant=meant)
            problems.append(Problem(unknown, is_error=meant is not None))
            continue
        allowed = _FIELDS[name]
        if allowed is not None and value not in allowed:
            problems.append(
                Problem(Message("note.training.acl.wrong_value", name=name, value=shown(str(value)), allowed=allowed))
            )
    problems += _path_problems(dump.get("dump_path"))
    listed = dump.get("dump_list", [])
    if not isinstance(listed, list):
        problems.append(Problem(Message("note.training.acl.list_is_none")))
    elif any(listed):  # newer documents have [{}], which is as empty
        problems.append(Problem(Message("note.training.acl.list_of_models")))
    elif "dump_list" not in dump:
        problems.append(Problem(Message("note.training.acl.no_list")))
    if dump.get("dump_op_switch", "off") == "off":
        problems.append(Problem(Message("note.training.acl.ops_off")))
    if "dump_mode" not in dump:
        problems.append(Problem(Message("note.training.acl.no_mode"), is_error=False))
    if dump.get("dump_debug", "off") == "on":
        problems.append(Problem(Message("note.training.acl.debug_on")))
    return problems


def _path_problems(path: Any) -> List[Problem]:
    if not isinstance(path, str) or not path.strip():
        return [Problem(Message("note.training.acl.no_path"))]
    if "\0" in path or "\n" in path:
        return [Problem(Message("note.training.acl.wrong_path", path=shown(str(path))))]
    if path.startswith("~"):
        return [Problem(Message("note.training.acl.home_path", path=path))]
    return []


_JSON_HINT = "error.training.acl.json_hint."


def _read(path: Path) -> Dict[str, Any]:
    if path.is_dir():
        raise FormatError.of(path, "training.acl.folder", file=str(path / FILE_NAME))
    try:
        text = read_text(str(path), _MAX_BYTES)
    except DataNotFoundError as error:
        raise DataNotFoundError("training.acl.no_file", reason=error.full_message) from None
    if not text.strip():
        raise FormatError.of(path, "training.acl.empty")
    depth = _depth(text)
    if depth > _MAX_DEPTH:
        raise FormatError.of(path, "training.acl.deep", depth=depth, limit=_MAX_DEPTH)
    try:
        config = json.loads(text, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        missing = _missing_at_end(text)
        cause = "other"
        if missing and error.pos >= len(text.rstrip()):
            cause = "cut_off"
        elif "','" in error.msg or "comma" in error.msg:
            cause = "comma"
        elif re.search(r"[}\]\w\"]\s*(#|//)", text):
            cause = "comment"
        raise FormatError.of(
            path, "training.acl.not_json", offset=error.pos,
            row=error.lineno, column=error.colno, reason=error.msg, next=Message(_JSON_HINT + cause, missing=missing),
        ) from None  # fmt: skip
    except ValueError as error:
        raise FormatError.of(path, "training.acl.twice", reason=str(error)) from None
    if not isinstance(config, dict):
        raise FormatError.of(path, "training.acl.no_object")
    return config


def _without_repeats(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    members: Dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise ValueError(f"{name} is in it twice")
        members[name] = value
    return members


def _missing_at_end(text: str) -> str:
    """The braces and brackets that are not closed, as they would have to be."""
    opened: List[str] = []
    for char in re.sub(_TEXT, "", text):
        if char in "{[":
            opened.append("}" if char == "{" else "]")
        elif char in "}]" and opened:
            opened.pop()
    return "".join(reversed(opened))


def _depth(text: str) -> int:
    """How deep braces and brackets are nested, those in texts left out."""
    depth = deepest = 0
    for char in re.sub(_TEXT, "", text):
        if char in "{[":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "}]":
            depth -= 1
    return deepest
