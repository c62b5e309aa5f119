"""Switches that a file gives to a training script from outside, which win over what the script says itself.

`precision-tool bisect` names the file of each try in `PRECISION_TOOL_SWITCHES`, and so may a user who keeps its result.
This module runs on Python 3.7.
"""

import json
import os
from typing import Any, Dict, Iterable, List, Mapping, Optional

from precision_tool.lib.data.settings import PRECISION_MODES
from precision_tool.lib.io.files import read_text
from precision_tool.lib.messages.errors import PrecisionToolError, shown
from precision_tool.lib.training.packages import ScriptError

#: The environment variable that names the file.
VARIABLE = "PRECISION_TOOL_SWITCHES"
HIGH_PRECISION = "high_precision"
#: Modes of the run, and what the other option for the same calls them.
MODES_V2 = {
    "must_keep_origin_dtype": "origin", "force_fp16": "fp16", "allow_mix_precision": "mixed_float16",
    "allow_mix_precision_fp16": "mixed_float16", "allow_mix_precision_bf16": "mixed_bfloat16",
    "cube_fp16in_fp32out": "cube_fp16in_fp32out",
}  # fmt: skip
#: The mode that computes everything in the types of the script.
AS_IN_SCRIPT = "must_keep_origin_dtype"
_ON_OR_OFF = ("on", "off")
#: What may be switched by a word, and the words.
SWITCHES: Mapping[str, Any] = {
    "precision_mode": PRECISION_MODES, "allow_hf32": _ON_OR_OFF, "deterministic": _ON_OR_OFF,
    "op_precision_mode": (HIGH_PRECISION, "high_performance"), "loss_scale": (), "autocast": ("off",),
    "allow_internal_format": _ON_OR_OFF, "jit_compile": _ON_OR_OFF,
}  # fmt: skip
#: What only PyTorch has.
PYTORCH_SWITCHES = ("autocast", "float32_modules", "allow_internal_format", "jit_compile")
_LISTS = ("float32_types", "float32_modules")
_BY_OP = ("customize_dtypes", "op_precision_mode")
_MOST_BYTES = 1 << 24


def given_switches() -> Dict[str, Any]:
    """What the file says; nothing where none is named. Raises ScriptError for what is no such file."""
    path = os.environ.get(VARIABLE, "")
    if not path:
        return {}
    try:
        values = json.loads(read_text(path, _MOST_BYTES))
    except (OSError, ValueError, RecursionError, PrecisionToolError) as error:
        reason = error.full_message if isinstance(error, PrecisionToolError) else str(error)
        raise ScriptError("training.given.unreadable", name=VARIABLE, path=path, reason=reason) from None
    if not isinstance(values, dict):
        raise ScriptError("training.given.no_object", name=VARIABLE, path=path)
    for name, value in values.items():
        if not _is_sound(name, value):
            raise ScriptError("training.given.value", path=path, name=shown(str(name)), value=shown(repr(value)))
    return values


def _is_sound(name: str, value: Any) -> bool:
    if name in _LISTS:
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    if name in _BY_OP:
        return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
    if name == "loss_scale":
        return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
    return (name == "fusion_switch_file" and isinstance(value, str)) or value in SWITCHES.get(name, ())


def loss_scale(value: float) -> float:
    """The loss scale that is given, else `value`."""
    given: float = given_switches().get("loss_scale", value)
    return given


def with_types(path: Optional[str], types: List[str]) -> str:
    """The text of a `modify_mixlist` file with these op types in float32, and what the file of `path` says besides."""
    content: Dict[str, Any] = json.loads(read_text(path, _MOST_BYTES)) if path else {}
    lists = {name: content.setdefault(name, {}) for name in ("black-list", "white-list", "gray-list")}
    for name, changes in lists.items():
        kept = [each for each in changes.get("to-add", []) if each not in types]
        changes["to-add"] = kept + (types if name == "black-list" else [])
        changes["to-remove"] = [each for each in changes.get("to-remove", []) if each not in types]
    return json.dumps(content, indent=2) + "\n"


def other_lines(path: Optional[str], names: Iterable[str]) -> List[str]:
    """The lines of a `customize_dtypes` file of the script's own that speak of other ops than `names`."""
    lines = read_text(path, _MOST_BYTES).split("\n") if path else []
    return [line for line in lines if line and line.partition("::")[0].strip() not in names]


def own_modes(path: Optional[str]) -> Dict[str, str]:
    """What an `op_precision_mode` file of the script's own says, by op, or by type behind `OpType::`."""
    modes: Dict[str, str] = {}
    prefix = ""
    for line in read_text(path, _MOST_BYTES).split("\n") if path else []:
        name, equals, mode = line.partition("=")
        if line.strip() in ("[ByOpType]", "[ByNodeName]"):
            prefix = "OpType::" if "Type" in line else ""
        elif equals and not line.startswith("#"):
            modes[prefix + name.strip()] = mode.strip()
    return modes
