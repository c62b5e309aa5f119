"""The settings of one run: read from files, environment and options into one frozen, validated `Settings`.

Read in this order, later ones win: `lib/config/config.py`, `precision_config.py` in the working folder, environment
variables `PRECISION_TOOL_<NAME>`, options. Files are parsed as literal assignments and never executed.
This module runs on Python 3.7.
"""

import ast
import difflib
import math
import os
import posixpath
import re
import reprlib
import sys
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from shlex import quote
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from precision_tool.lib.io import urls
from precision_tool.lib.io.files import read_bytes
from precision_tool.lib.logs import LEVELS
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import UsageError, shown_name
from precision_tool.lib.messages.language import LANGUAGES

#: How the program is called where it is installed.
PROGRAM = "precision-tool"
#: The data folder where none is named.
DEFAULT_DATA = Path("precision_data")
CONFIG_FILE = Path(__file__).resolve().parents[1] / "config" / "config.py"
#: Looked for in the working folder.
USER_CONFIG_NAME = "precision_config.py"
ENVIRONMENT_PREFIX = "PRECISION_TOOL_"

#: Values of a tensor that can be shown at once: a figure that a typing error easily exceeds, and no screen holds.
MOST_PRINTED = 10_000
#: Ops, rows and bytes that can be asked for: more than there will be, and few enough for every use of a count.
MOST_COUNTED = 10**15
#: Processes and threads that can be asked for.
MOST_WORKERS = 1_000
_MAX_BYTES = 1 << 20  # of a settings file
#: What the TensorFlow adapter takes.
PRECISION_MODES = (
    "force_fp32", "allow_fp32_to_fp16", "force_fp16", "must_keep_origin_dtype", "allow_mix_precision",
    "cube_fp16in_fp32out", "allow_mix_precision_fp16", "allow_mix_precision_bf16", "allow_fp32_to_bf16",
)  # fmt: skip
PRECISION_MODES_V2 = (
    "fp16", "origin", "cube_fp16in_fp32out", "mixed_float16", "mixed_bfloat16", "cube_hif8", "mixed_hif8",
)  # fmt: skip
_MAX_JOINED = 4096  # characters of a path
_MAX_DUMP_STEP_GROUPS = 100  # GE takes no more


def check_dump_step(value: object) -> str:
    """The steps to dump as GE takes them: `0`, `0|5|10-20`, or `""` for every step. Raises ValueError."""
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise ValueError(Message("note.data.must.step_text"))
    text = value.replace(" ", "")
    if not text:
        return ""
    groups = text.split("|")
    if len(groups) > _MAX_DUMP_STEP_GROUPS:
        raise ValueError(Message("note.data.must.step_groups", most=_MAX_DUMP_STEP_GROUPS, groups=len(groups)))
    steps = []
    for group in groups:
        match = re.match(r"([0-9]{1,18})(?:-([0-9]{1,18}))?\Z", group)
        if match is None:
            raise ValueError(Message("note.data.must.steps"))
        first, last = match.group(1), match.group(2)
        if last and int(last) < int(first):
            raise ValueError(Message("note.data.must.rising", range=reprlib.repr(group)))
        steps.append(first if last and int(last) == int(first) else group)  # GE refuses the range 5-5
    return "|".join(steps)


def _number(low: float, high: float, kind: str) -> Callable[[object], float]:
    """A check for a number from `low` to `high`; `kind` below `error.data.must` says that in words."""

    def check(value: object) -> float:
        if isinstance(value, str):  # from the environment
            value = _number_from_text(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(Message(f"note.data.must.{kind}"))
        if not low <= value <= min(high, sys.float_info.max):  # NaN fails too
            raise ValueError(Message(f"note.data.must.{kind}"))
        return float(value)

    return check


def _count(low: int, kind: str, high: int = MOST_COUNTED) -> Callable[[object], int]:
    """A check for a whole number from `low` to `high`."""

    def check(value: object) -> int:
        if isinstance(value, str):
            value = _number_from_text(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise ValueError(Message(f"note.data.must.{kind}"))
        if value > high:
            raise ValueError(Message(f"note.data.must.{kind}", most=high))
        return value

    return check


def _print_count(value: object) -> int:
    """A check for the number of values to show."""
    try:
        return _count(1, "whole", MOST_PRINTED)(value)
    except ValueError:
        raise ValueError(Message("note.data.must.printed", largest=MOST_PRINTED)) from None


def _columns(value: object) -> int:
    """A check for the width of the output."""
    number = _count(0, "columns")(value)
    if number and not 40 <= number <= 1000:
        raise ValueError(Message("note.data.must.columns"))
    return number


def _choice(*names: str) -> Callable[[object], str]:
    """A check for one of some words."""

    def check(value: object) -> str:
        if not isinstance(value, str) or value.lower() not in names:
            raise ValueError(Message("note.data.must.choice", names=[repr(name) for name in names]))
        return value.lower()

    return check


def _log_level(value: object) -> str:
    """A check for what the log keeps: our words, or those of Python's logging, as NOTSET."""
    if isinstance(value, str):
        value = LOG_LEVELS.get(value.lower(), value)
    return _choice(*LEVELS)(value)


def _switch(value: object) -> str:
    """A check for 'on' or 'off'."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return _choice("on", "off")(value)


def _optional(check: Callable[[object], Any], nothing: Optional[str] = "") -> Callable[[object], Any]:
    """The same check, which also takes None and '': both mean `nothing`."""
    return lambda value: nothing if value is None or value == "" else check(value)


def _layers(value: object) -> str:
    """A check for names of ops between spaces."""
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(Message("note.data.must.layers"))
    return " ".join(value.split())


def _path_or_none(kind: str) -> Callable[[object], str]:
    """A check for the path of a file, or "" for none; `kind` says in words what it must be."""

    def check(value: object) -> str:
        if not isinstance(value, (str, os.PathLike)) or "\0" in str(value):
            raise ValueError(Message(f"note.data.must.{kind}"))
        return os.path.expanduser(str(value))

    return check


def _number_from_text(text: str) -> object:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _folder(value: object) -> Path:
    if not isinstance(value, (str, os.PathLike)) or not str(value).strip():
        raise ValueError(Message("note.data.must.folder"))
    if "\0" in str(value):
        raise ValueError(Message("note.data.must.folder_zero_byte"))
    return Path(urls.path_of(str(value))).expanduser()


def _folders(value: object) -> Tuple[Path, ...]:
    if not isinstance(value, (list, tuple)):
        raise ValueError(Message("note.data.must.folders"))
    return tuple(map(_folder, value))


def _setting(default: Any, check: Callable[[object], Any]) -> Any:
    """Return the field of a setting with its default and the check that every value passes."""
    return field(default=default, metadata={"check": check})


#: Cosine similarity below which a tensor counts as wrong.
DEFAULT_THRESHOLD = 0.98


@dataclass(frozen=True)
class Settings:
    """All settings, checked; a wrong value raises UsageError. `config/config.py` says what each means."""

    data: Path = _setting(DEFAULT_DATA, _folder)  # noqa: RUF009  # it is a field
    #: Further data folders of a study: options only.
    more_data: Tuple[Path, ...] = field(default=(), metadata={"check": _folders, "is_option": True})
    work: Optional[Path] = _setting(None, _optional(_folder, None))  # noqa: RUF009
    threshold: float = _setting(DEFAULT_THRESHOLD, _number(-1, 1, "cosine"))
    limit: int = _setting(3, _count(0, "limit"))
    atol: float = _setting(0.001, _number(0, math.inf, "tolerance"))
    rtol: float = _setting(0.001, _number(0, math.inf, "tolerance"))
    print_count: int = _setting(20, _print_count)
    workers: int = _setting(0, _count(0, "workers", MOST_WORKERS))
    width: int = _setting(0, _columns)
    #: "" for that of the locale.
    language: str = _setting("", _optional(_choice(*LANGUAGES)))
    theme: str = _setting("dark", _choice("dark", "light", "plain"))
    log_level: str = _setting("warning", _log_level)
    #: Documented: where the setting is not there, every step is dumped.
    tf_dump_step: str = _setting("", check_dump_step)
    dump_mode: str = _setting("all", _choice("input", "output", "all"))
    dump_data: str = _setting("tensor", _choice("tensor", "stats"))
    dump_layer: str = _setting("", _layers)
    op_debug_level: int = _setting(4, _count(0, "debug_level", 4))
    dump_seed: int = _setting(0, _count(0, "whole", 2**32 - 1))
    fusion_switch_file: str = _setting("", _path_or_none("file"))
    quant_dumpable: str = _setting("off", _switch)
    precision_mode: str = _setting("", _optional(_choice(*PRECISION_MODES)))
    precision_mode_v2: str = _setting("", _optional(_choice(*PRECISION_MODES_V2)))
    op_precision_mode: str = _setting("", _path_or_none("file"))
    customize_dtypes: str = _setting("", _path_or_none("file"))
    allow_hf32: str = _setting("", _optional(_switch))
    deterministic: str = _setting("", _optional(_switch))
    cmd_root_path: Path = _setting(Path("/usr/local/Ascend"), _folder)  # noqa: RUF009
    engine: str = _setting("native", _choice("native", "cann", "auto"))
    python: str = _setting("", _path_or_none("program"))
    toolkit_seconds: float = _setting(3600.0, _number(0, math.inf, "seconds"))

    def __post_init__(self) -> None:
        for each in fields(self):
            value = _checked(
                each.name, getattr(self, each.name), Message("note.data.place.setting", name=each.name.upper())
            )
            object.__setattr__(self, each.name, value)


SETTING_NAMES: Tuple[str, ...] = tuple(
    each.name.upper() for each in fields(Settings) if not each.metadata.get("is_option")
)
_CHECKS: Dict[str, Callable[[object], Any]] = {each.name: each.metadata["check"] for each in fields(Settings)}


def _checked(name: str, value: object, place: Union[Message, str]) -> Any:
    """Return `value` as setting `name` keeps it, or raise a UsageError that starts with `place`."""
    try:
        return _CHECKS[name](value)
    except UsageError as error:  # of a URL, which may hold a password
        raise UsageError("data.bad_url", place=place, reason=error.full_message, advice=error.hint_message) from None
    except ValueError as error:
        raise UsageError(
            "data.bad_setting", place=place, problem=error.args[0], value=_shown(value), file=str(CONFIG_FILE)
        ) from None


def check_options(options: Any, **settings: str) -> None:
    """Check fields of a frozen dataclass, in its `__post_init__`, as the settings that the arguments name.

    UsageError for a value that is not allowed; a number in a text is kept as a number.
    """
    for name, setting in settings.items():
        object.__setattr__(options, name, _checked(setting, getattr(options, name), name))


def with_settings(settings: Optional[Settings], options: Mapping[str, object]) -> Settings:
    """`settings` (those in force for None) with some values of its fields replaced; None is not given."""
    settings = load_settings() if settings is None else settings
    checked = {name: _checked(name, value, name) for name, value in options.items() if value is not None}
    return replace(settings, **checked)


def _shown(value: object) -> Union[str, Message]:
    """A value as it is quoted: short, and for numbers of more digits than Python writes, how long they are."""
    try:
        return reprlib.repr(value)
    except ValueError:
        return Message("note.data.long_number", bits=value.bit_length() if isinstance(value, int) else None)


def read_settings_file(path: Path, notes: Optional[List[Message]] = None) -> Dict[str, Any]:
    """The checked settings of a file by field name. Raises UsageError with file and line,
    FormatError for what is no small regular file.

    Names that only the old tool had are taken too; what has no effect any more is added to `notes`.
    """
    source = read_bytes(str(path), _MAX_BYTES)
    values: Dict[str, Any] = {}
    old: List[OldSetting] = []
    for name, value, line in _assignments(path, source):
        place = Message("note.data.place.line", path=path, line=line, name=shown_name(name))
        if name in OLD_NAMES:
            old.append(OldSetting(name, value, line))
            setting = as_setting(name, value)
            if setting is not None:
                values[setting[0]] = _checked(*setting, place)
            continue
        if name not in SETTING_NAMES:
            close = difflib.get_close_matches(name.upper(), SETTING_NAMES, n=1)
            raise UsageError.of(
                path, "data.unknown_setting", line=line, name=shown_name(name), close=close, names=SETTING_NAMES
            )
        values[name.lower()] = _checked(name.lower(), value, place)
    if notes is not None:
        notes += notes_on(str(path), old)
    return values


def _assignments(path: Path, source: bytes) -> List[Tuple[str, Any, int]]:
    """Name, value and line of every `NAME = value` line of Python source, which is not executed.

    A value is a literal, a name of a line before, or `os.path.join` of such.
    """
    try:
        body = ast.parse(source, str(path)).body
    except SyntaxError as error:
        raise UsageError.of(path, "data.settings_syntax", line=error.lineno or None, error=error.msg) from None
    except (ValueError, RecursionError, MemoryError) as error:  # zero bytes, absurd nesting
        raise UsageError.of(path, "data.settings_unreadable", error=str(error)) from None
    assignments = []
    variables: Dict[str, object] = {}
    for node in body:
        if isinstance(node, ast.Import) and [(alias.name, alias.asname) for alias in node.names] == [("os", None)]:
            continue  # for os.path.join
        if isinstance(node, ast.Expr) and isinstance(_literal(node.value), str):
            continue  # a docstring
        if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
            raise UsageError.of(path, "data.settings_line", line=node.lineno)
        try:
            value = _value(node.value, variables)
        except RecursionError:
            value = _NO_LITERAL
        if value is _NO_LITERAL:
            name = shown_name(node.targets[0].id)
            raise UsageError.of(path, "data.settings_value", line=node.lineno, name=name)
        variables[node.targets[0].id] = value
        assignments.append((node.targets[0].id, value, node.lineno))
    return assignments


_NO_LITERAL = object()


def _value(node: ast.expr, variables: Mapping[str, object]) -> object:
    """The value of a literal, of a name of `variables`, or of `os.path.join` of such; else `_NO_LITERAL`."""
    if isinstance(node, ast.Name):
        return variables.get(node.id, _NO_LITERAL)
    if not isinstance(node, ast.Call):
        return _literal(node)
    called = node.func
    is_join = (
        isinstance(called, ast.Attribute) and called.attr == "join"
        and isinstance(called.value, ast.Attribute) and called.value.attr == "path"
        and isinstance(called.value.value, ast.Name) and called.value.value.id == "os"
    )  # fmt: skip
    if not is_join or node.keywords or not node.args:
        return _NO_LITERAL
    parts = [_value(part, variables) for part in node.args]
    texts = [part for part in parts if isinstance(part, str)]
    joined = os.path.join(*texts) if len(texts) == len(parts) and sum(map(len, texts)) <= _MAX_JOINED else None
    return _NO_LITERAL if joined is None else joined


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return _NO_LITERAL


def load_settings(
    options: Optional[Mapping[str, Any]] = None,
    folder: Optional[Path] = None,
    environment: Optional[Mapping[str, str]] = None,
    notes: Optional[List[Message]] = None,
) -> Settings:
    """Return the settings in force: files, then environment, then options.

    Parameters
    ----------
    options : mapping, optional
        Values by field name; None stands for an option that was not given.
    folder : Path, optional
        The working folder, whose `precision_config.py` is read where there is one; by default the current one.
    environment : mapping, optional
        By default `os.environ`; variables ``PRECISION_TOOL_<NAME>`` count.
    notes : list of Message, optional
        Gets the notes on lines of the files that have no effect any more.

    Raises
    ------
    UsageError
        An unknown name or a wrong value; the error has the file and line where it is from a file.
    """
    environment = os.environ if environment is None else environment
    values: Dict[str, Any] = {}
    for path in (CONFIG_FILE, Path(folder or ".") / USER_CONFIG_NAME):
        if path.exists():
            values.update(read_settings_file(path, notes))
    for name in SETTING_NAMES:
        variable = ENVIRONMENT_PREFIX + name
        if variable in environment:
            place = Message("note.data.place.variable", name=variable)
            values[name.lower()] = _checked(name.lower(), environment[variable], place)
    for name, value in (options or {}).items():
        if value is not None:
            option = "lang" if name == "language" else name.replace("_", "-")
            values[name] = _checked(name, value, Message("note.data.place.option", name=option))
    return Settings(**values)


# --- names that the `config.py` of the old tool and its manuals have ---
# A few are settings under another name; the others have no effect, and a note names what replaces them, unless they
# have the value that the manuals show and so ask for nothing.


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

#: All names that the old tool had.
OLD_NAMES: Tuple[str, ...] = (*_DATA_NAMES, *_WITHOUT_EFFECT, "ASCEND_SET_ENV", *_PLACES, *_OLD_PLACES)

#: Names that Python's logging has for levels, which LOG_LEVEL took, and ours.
LOG_LEVELS = {"notset": "debug", "warn": "warning", "critical": "error", "fatal": "error"}


def as_setting(name: str, value: object) -> Optional[Tuple[str, object]]:
    """The setting, by field name, and its value that an old name stands for; None for one without effect."""
    if name == "ROOT_DIR" and isinstance(value, str):
        return "data", posixpath.join(value, DEFAULT_DATA.name)
    return ("data", value) if name in _DATA_NAMES else None


def notes_on(path: str, settings: List[OldSetting]) -> List[Message]:
    """Return the notes on old names of a file that ask for something else than is done, one for each reason."""
    data = DEFAULT_DATA.name
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


def start_of_line(program: str, folders: Sequence[Path], work: Optional[Path]) -> str:
    """Return the start of a command line for data folders and a work folder, which it names if not the usual ones."""
    places = [("--data", folder) for folder in folders] if list(folders) != [DEFAULT_DATA] else []
    if work is not None:
        places.append(("--work", work))
    return " ".join([program, *(f"{option} {quote(str(place))}" for option, place in places)])
