"""Names that the `config.py` of the old tool and its manuals have, and what stands for them here.

A few are settings under another name; the others have no effect, and a note names what replaces them, unless they
have the value that the manuals show and so ask for nothing. This module runs on Python 3.7.
"""

import posixpath
from typing import Dict, List, NamedTuple, Optional, Tuple

from precision_tool.lib.messages import Message

#: The data folder below ROOT_DIR.
_DATA_NAME = "precision_data"


class OldName(NamedTuple):
    """An old name without effect: the values that the manuals show, and what replaces it."""

    shown: Tuple[object, ...]
    #: A kind of `note.data.instead`.
    instead: str


class OldSetting(NamedTuple):
    """A line of a settings file that sets an old name."""

    name: str
    value: object
    line: int


_VARIABLE = "variable"
_GRAPH_VALUES = "graph_values"
_WITHOUT_EFFECT: Dict[str, OldName] = {
    "ASCEND_LOG_PATH": OldName((), "device_logs"),
    "NET_TYPE": OldName((), "net_type"),
    "TF_DEBUG_TIMEOUT": OldName((360,), "time_limit"),
    "MS_ACCU_CMP": OldName(
        (r"msaccucmp.py[c]?", "msaccucmp.py", "msaccucmp.pyc"),
        "msaccucmp",
    ),
    "BUILD_JSON_GRAPH_NAME": OldName(
        ("Build", "PreRunAfterBuild"),
        "graph_name",
    ),
    "DUMP_GE_GRAPH_VALUE": OldName((2,), _GRAPH_VALUES),
    "DUMP_GRAPH_LEVEL_VALUE": OldName((2, 3), _GRAPH_VALUES),
    "PRECISION_TOOL_OVERFLOW_FLAG": OldName(("PRECISION_TOOL_OVERFLOW",), _VARIABLE),
    "PRECISION_TOOL_DUMP_FLAG": OldName(("PRECISION_TOOL_DUMP",), _VARIABLE),
}
_ENVIRONMENT = OldName((), "environment")
_PLACE = OldName((), "place")
_OLD_PLACE = OldName((), "old_place")
#: What paths outside the data folder end with in the manuals.
_USUAL_ENDS = {"ASCEND_LOG_PATH": "ascend/log/plog", "ASCEND_SET_ENV": "bin/setenv.bash"}
#: Folders by where the manuals have them below the data folder.
_PLACES = {
    "FUSION_DIR": "fusion", "NPU_DIR": "npu", "DEFAULT_NPU_DIR": "npu/debug_0",
    "DEFAULT_NPU_DUMP_DIR": "npu/debug_0/dump", "DEFAULT_NPU_GRAPH_DIR": "npu/debug_0/graph",
    "DEFAULT_OP_DEBUG_DIR": "npu/debug_0", "OVERFLOW_DIR": "overflow", "NPU_OVERFLOW_DUMP_DIR": "overflow/dump",
    "TF_DIR": "tf", "TF_DEBUG_DUMP_DIR": "tf/tf_debug", "TF_DUMP_DIR": "tf/dump", "TF_GRAPH_DIR": "tf/graph",
    "TF_CKPT_ROOT": "tf/checkpoints", "TF_CKPT_FILE": "tf/checkpoints/ckpt",
    "TF_CKPT_INPUT_DIR": "tf/checkpoints/input", "PT_DIR": "pt", "PT_NPU_DIR": "pt/npu", "PT_GPU_DIR": "pt/gpu",
    "TMP_DIR": "temp", "OP_GRAPH_DIR": "temp/op_graph", "DECODE_DIR": "temp/decode",
    "OVERFLOW_DECODE_DIR": "temp/decode/overflow_decode", "DUMP_DECODE_DIR": "temp/decode/dump_decode",
    "DUMP_CONVERT_DIR": "temp/decode/dump_convert", "VECTOR_COMPARE_PATH": "temp/vector_compare",
    "TF_TENSOR_NAMES": "temp/tf_tensor_names.txt", "TF_TENSOR_DUMP_CMD": "temp/tf_tensor_cmd.txt",
}  # fmt: skip
#: Folders of the first releases, which lay elsewhere.
_OLD_PLACES = (
    "GRAPH_DIR", "GRAPH_DIR_ALL", "GRAPH_DIR_BUILD", "GRAPH_DIR_LAST", "GRAPH_CPU", "DUMP_DIR", "DUMP_FILES_NPU",
    "DUMP_FILES_OVERFLOW", "DUMP_FILES_CPU", "DUMP_FILES_CPU_DEBUG", "DUMP_TMP_DIR", "DUMP_FILES_OVERFLOW_DECODE",
    "DUMP_FILES_CPU_LOG", "DUMP_FILES_CPU_NAMES", "DUMP_FILES_CPU_CMDS", "DUMP_FILES_DECODE", "DUMP_FILES_CONVERT",
)  # fmt: skip
#: Names that set the data folder.
_DATA_NAMES = ("ROOT_DIR", "DATA_ROOT_DIR")

#: All that this module knows.
OLD_NAMES: Tuple[str, ...] = (*_DATA_NAMES, *_WITHOUT_EFFECT, "ASCEND_SET_ENV", *_PLACES, *_OLD_PLACES)

#: Names that Python's logging has for levels, which LOG_LEVEL took, and ours.
LOG_LEVELS = {"notset": "debug", "warn": "warning", "critical": "error", "fatal": "error"}


def as_setting(name: str, value: object) -> Optional[Tuple[str, object]]:
    """The setting, by field name, and its value that an old name stands for; None for one without effect."""
    if name == "ROOT_DIR" and isinstance(value, str):
        return "data", posixpath.join(value, _DATA_NAME)
    return ("data", value) if name in _DATA_NAMES else None


def notes_on(path: str, settings: List[OldSetting]) -> List[Message]:
    """Return the notes on old names of a file that ask for something else than is done, one for each reason."""
    data = _DATA_NAME
    by_advice: Dict[str, List[OldSetting]] = {}
    for old in settings:
        setting = as_setting(old.name, old.value)
        if setting is not None:
            data = str(setting[1])
            continue
        meaning = _of(old.name)
        if not _asks_nothing(old, meaning, data):
            by_advice.setdefault(meaning.instead, []).append(old)
    notes = []
    for instead, some in by_advice.items():
        names = [Message("note.data.old_name", name=old.name, line=old.line) for old in some]
        advice = Message("note.data.instead." + instead)
        notes.append(Message("note.data.old_settings", path=path, count=len(some), names=names, advice=advice))
    return notes


def _of(name: str) -> OldName:
    if name in _PLACES:
        return _PLACE
    if name in _OLD_PLACES:
        return _OLD_PLACE
    return _ENVIRONMENT if name == "ASCEND_SET_ENV" else _WITHOUT_EFFECT[name]


def _asks_nothing(old: OldSetting, meaning: OldName, data: str) -> bool:
    """Return whether the value is the one that the manuals show, so that ignoring it changes nothing."""
    if old.name in _PLACES and isinstance(old.value, str):
        return posixpath.normpath(old.value) == posixpath.normpath(posixpath.join(data, _PLACES[old.name]))
    if old.name in _USUAL_ENDS:
        return str(old.value).rstrip("/").endswith(_USUAL_ENDS[old.name])
    return old.value in meaning.shown
