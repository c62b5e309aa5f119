"""What a training script may ask for: `'dump'`, `'fusion_off|dump'`, … This module runs on Python 3.7."""

import difflib
import inspect
import json
import os
import re
import sys
from pathlib import Path
from typing import Any, Collection, Dict, FrozenSet, List, Mapping, Optional, Tuple, Union

from precision_tool.lib.data.settings import Settings, load_settings, with_settings
from precision_tool.lib.data.workspace import FUSION_OFF, FUSION_SWITCH, Workspace, make_writable
from precision_tool.lib.io.files import read_text
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, OutputError, PrecisionToolError, shown
from precision_tool.lib.training.given_switches import MODES_V2, given_switches, other_lines, own_modes, with_types
from precision_tool.lib.training.mixlist import find_mixlist, result_file, write_whole
from precision_tool.lib.training.packages import (
    ScriptError,
    npu_bridge_class,
    say,
    tensorflow_module,
)
from precision_tool.lib.training.passport import NPU, SWITCHES, begin

ACTIONS = ("dump", "overflow", "fusion_off", "fusion_switch", "prof", "mixlist")

#: Set to `True` by `npu_dump` and `npu_dump --overflow` for the command they run.
DUMP_FLAG = "PRECISION_TOOL_DUMP"
OVERFLOW_FLAG = "PRECISION_TOOL_OVERFLOW"

_CONTRADICTIONS = (
    ("dump", "overflow", "one_run"),
    ("fusion_off", "fusion_switch", "one_file"),
)


def parse_action(action: object, environment: Optional[Mapping[str, str]] = None) -> FrozenSet[str]:
    """The actions in a text like `'fusion_off | dump'`; without a text those that the environment asks for.

    Raises ScriptError (a ValueError) for an unknown action or two that contradict each other.
    """
    if action is None or action == "":
        return _check(
            _flagged(os.environ if environment is None else environment), Message("note.training.action.environment")
        )
    if not isinstance(action, str):
        raise ScriptError("training.action.not_text", action=repr(action), names=ACTIONS)
    words = [word.strip() for word in action.lower().split("|")]
    for word in words:
        if word not in ACTIONS:
            close = difflib.get_close_matches(word, ACTIONS, n=1)
            raise ScriptError(
                "training.action.unknown",
                word=shown(word),
                action=shown(action),
                close=repr(close[0]) if close else "",
                names=ACTIONS,
            )
    return _check(frozenset(words), Message("note.training.action.call", action=shown(action)))


def _flagged(environment: Mapping[str, str]) -> FrozenSet[str]:
    flags = (("dump", DUMP_FLAG), ("overflow", OVERFLOW_FLAG))
    return frozenset(name for name, flag in flags if environment.get(flag, "").lower() in ("true", "1"))


def _check(actions: FrozenSet[str], asks: Message) -> FrozenSet[str]:
    for action, other, why in _CONTRADICTIONS:
        if action in actions and other in actions:
            reason = Message("note.training.action." + why)
            raise ScriptError("training.action.contradiction", origin=asks, first=action, second=other, reason=reason)
    return actions


# --- Switches that fix precision: a mode of the whole network, files that name single ops, HF32, the same sums each
#     time


#: What a call may say of precision, instead of the settings of the same names.
PRECISION_OPTIONS = (
    "precision_mode", "precision_mode_v2", "op_precision_mode", "customize_dtypes", "allow_hf32", "deterministic",
)  # fmt: skip
#: The two ways to say one thing: the adapter takes one of them.
MODES = ("precision_mode", "precision_mode_v2")
#: Only with these does GE look at a `modify_mixlist`.
MIXED = (
    "allow_mix_precision", "allow_mix_precision_fp16", "allow_mix_precision_bf16", "mixed_float16", "mixed_bfloat16",
    "mixed_hif8",
)  # fmt: skip
#: How GE is told of HF32 in TensorFlow 1; TensorFlow 2's adapter takes what TensorFlow has for TF32.
HF32_VARIABLE = "ENABLE_HF32_EXECUTION"

#: Options that are files; a call may give what is in them, by op.
FILE_NAMES = {"op_precision_mode": "op_precision_mode.ini", "customize_dtypes": "customize_dtypes.cfg"}
#: Begins what is said of all ops of a type.
_OF_TYPE = "OpType::"
_OP_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_./\\>+-]*\Z")
#: Ways to compute an op that GE knows; it skips lines with others.
_IMPLEMENTATIONS = (
    "high_performance", "high_precision", "super_performance", "enable_float_32_execution",
    "enable_hi_float_32_execution", "support_out_of_bound_index", "keep_fp16", "norm_class",
)  # fmt: skip
#: Data types as GE's files have them, and what else they are called.
_TYPES = (
    "float", "float16", "bf16", "double", "int4", "int8", "int16", "int32", "int64", "uint1", "uint8", "uint16",
    "uint32", "uint64", "bool", "complex64", "complex128", "hifloat8", "float8_e5m2", "float8_e4m3fn", "undefined",
)  # fmt: skip
_OTHER_WORDS = {"float32": "float", "fp32": "float", "fp16": "float16", "bfloat16": "bf16", "float64": "double"}
_DTYPES = re.compile(r"(?:InputDtype:(?P<inputs>[\w, ]*))?(?:OutputDtype:(?P<outputs>[\w, ]*))?\Z")
#: GE reads no longer lines.
_MOST_CHARACTERS = 1023
_MOST_BYTES = 1 << 24


def written(options: Mapping[str, object], settings: Settings) -> Dict[str, object]:
    """`options` with what a call says of single ops written into files of the data folder. Raises ScriptError."""
    done = dict(options)
    for name, file_name in FILE_NAMES.items():
        value = options.get(name)
        if isinstance(value, Mapping):
            lines = precision_lines(value) if name == "op_precision_mode" else dtype_lines(value)
            path = result_file(settings, file_name)
            write_whole(path, "\n".join(lines) + "\n")
            done[name] = str(path)
    return done


def precision_values(settings: Settings) -> Dict[str, Union[int, str]]:
    """What the settings ask for, by the adapter's names; HF32 is apart. Raises ScriptError."""
    if settings.precision_mode and settings.precision_mode_v2:
        raise ScriptError(
            "training.precision.both_modes",
            first=repr(settings.precision_mode),
            second=repr(settings.precision_mode_v2),
        )
    values: Dict[str, Union[int, str]] = {}
    values.update((name, str(getattr(settings, name))) for name in MODES if getattr(settings, name))
    if settings.deterministic:
        values["deterministic"] = int(settings.deterministic == "on")
    for name in FILE_NAMES:
        if getattr(settings, name):
            values[name] = _checked_file(name, os.path.abspath(os.path.expanduser(str(getattr(settings, name)))))
    return values


#: The files that a call may name, and that are given from outside by what is in them.
_GIVEN_FILES = {**FILE_NAMES, "modify_mixlist": "given_mixlist.json"}


def with_given(values: Dict[str, Any], current: Mapping[str, Optional[Any]], place: "_Place") -> Dict[str, Any]:
    """`values` with what is given from outside (`given_switches`), which wins; "" takes out. Raises ScriptError.

    What the script says of other ops stays: its file, of `values` or `current`, is written anew with what is given.
    """
    given = given_switches()
    if not given:
        return values
    done = dict(values)
    if "precision_mode" in given:
        mode = given["precision_mode"]
        is_v2 = bool(done.pop("precision_mode_v2", None) or current.get("precision_mode_v2")) and mode in MODES_V2
        done.pop("precision_mode", None)
        done["precision_mode_v2" if is_v2 else "precision_mode"] = MODES_V2[mode] if is_v2 else mode
    if "deterministic" in given:
        done["deterministic"] = int(given["deterministic"] == "on")
    if "fusion_switch_file" in given:
        done["fusion_switch_file"] = given["fusion_switch_file"]
        _check_switch_file(given["fusion_switch_file"])
    texts: Dict[str, str] = {}
    own = {name: done.get(name) or current.get(name) for name in (*_GIVEN_FILES, *MODES)}
    if "customize_dtypes" in given:
        lines = dtype_lines(given["customize_dtypes"])
        texts["customize_dtypes"] = "\n".join(lines + other_lines(own["customize_dtypes"], given["customize_dtypes"]))
    if "op_precision_mode" in given:
        modes = {**own_modes(own["op_precision_mode"]), **given["op_precision_mode"]}
        texts["op_precision_mode"] = "\n".join(precision_lines(modes))
    if "float32_types" in given:
        if any(own[name] in MIXED for name in MODES):
            texts["modify_mixlist"] = with_types(own["modify_mixlist"], given["float32_types"])
        else:
            say("switches.given_types", types=given["float32_types"])
    if own["modify_mixlist"] and not any(own[name] in MIXED for name in MODES):
        done["modify_mixlist"] = ""  # the script's is for a mode that is no more, and the adapter refuses both
    for name, text in texts.items():
        path = result_file(place.settings, "given_" + _GIVEN_FILES[name].replace("given_", ""))
        write_whole(path, text.rstrip("\n") + "\n")
        done[name] = str(path)
    return done


def check_together(values: Mapping[str, Any], current: Mapping[str, Optional[Any]]) -> None:
    """What `values` must not be set with, where `current` (None: not set) holds already. Raises ScriptError."""
    for name, other in (MODES, MODES[::-1]):
        if name in values and current.get(other):
            raise ScriptError(
                "training.precision.other_mode",
                name=name,
                value=repr(values[name]),
                other=other,
                current=repr(current[other]),
            )
    if not values.get("modify_mixlist"):
        return
    both = {name: values.get(name) or current.get(name) for name in MODES}
    mode = next((both[name] for name in MODES if both[name]), None)
    if mode is None:
        say("switches.mixlist")
    elif mode not in MIXED:
        raise ScriptError(
            "training.precision.mixlist", name=next(name for name in MODES if both[name]), mode=repr(mode)
        )


def set_hf32_variable(settings: Settings) -> None:
    """Switch HF32 on or off for TensorFlow 1, where the settings say so: before GE starts."""
    if settings.allow_hf32:
        flag = "1" if settings.allow_hf32 == "on" else "0"
        old = os.environ.get(HF32_VARIABLE, "")
        if old and old != flag:
            say("switches.hf32", name=HF32_VARIABLE, old=repr(old), value=repr(flag))
        os.environ[HF32_VARIABLE] = flag


def hf32_of_variable() -> Optional[bool]:
    """Whether TensorFlow 1's variable has HF32 on; None where it says nothing."""
    return {"1": True, "0": False}.get(os.environ.get(HF32_VARIABLE, ""))


def precision_lines(modes: Mapping[Any, Any]) -> List[str]:
    """The lines of an `op_precision_mode` file. Raises ScriptError."""
    by_name: List[str] = []
    by_type: List[str] = []
    for key, mode in modes.items():
        name, is_type = _op(key, "op_precision_mode")
        if mode not in _IMPLEMENTATIONS:
            raise ScriptError("training.precision.op_mode", name=name, mode=repr(mode), names=tuple(_IMPLEMENTATIONS))
        (by_type if is_type else by_name).append(f"{name}={mode}")
    lines = ["[ByOpType]", *by_type] if by_type else []
    return _some(lines + (["[ByNodeName]", *by_name] if by_name else []), "op_precision_mode")


def dtype_lines(dtypes: Mapping[Any, Any]) -> List[str]:
    """The lines of a `customize_dtypes` file; GE refuses one with comments or empty lines. Raises ScriptError."""
    lines = []
    for key, value in dtypes.items():
        name, is_type = _op(key, "customize_dtypes")
        match = _DTYPES.match(str(value).strip())
        if match is None or not any(match.groups()):
            raise ScriptError("training.precision.dtypes", name=name, value=shown(str(value)), empty=False)
        parts = []
        for word, kind in (("InputDtype", "inputs"), ("OutputDtype", "outputs")):
            listed = (match.group(kind) or "").strip().rstrip(",")
            if listed:
                types = [_data_type(each.strip(), f"customize_dtypes: {name}") for each in listed.split(",")]
                parts.append(f"{word}:{','.join(types)}")
        if not parts:
            raise ScriptError("training.precision.dtypes", name=name, value=shown(str(value)), empty=True)
        line = f"{_OF_TYPE}{name}:" if is_type else f"{name}::"
        lines.append(line + ",".join(parts))
        if len(lines[-1]) > _MOST_CHARACTERS:
            raise ScriptError("training.precision.long_line", name=name)
    return _some(lines, "customize_dtypes")


def _data_type(word: str, where: str) -> str:
    name = _OTHER_WORDS.get(word.lower(), word.lower())
    if name and name not in _TYPES:
        raise ScriptError("training.precision.type", where=where, word=shown(word))
    return name


def _op(key: object, option: str) -> "tuple[str, bool]":
    """The name of an op, or of a type of ops behind `OpType::`, and which of the two it is."""
    text = key if isinstance(key, str) else ""
    name = text[len(_OF_TYPE) :] if text.startswith(_OF_TYPE) else text
    if not _OP_NAME.match(name):
        raise ScriptError("training.precision.op_name", option=option, key=repr(key))
    return name, name is not text


def _some(lines: List[str], option: str) -> List[str]:
    if not lines:
        raise ScriptError("training.precision.no_op", option=option)
    return lines


def _checked_file(option: str, path: str) -> str:
    """`path`, of a file that GE takes. Raises ScriptError with the line that it does not take."""
    try:
        text = read_text(path, _MOST_BYTES)
    except (OSError, PrecisionToolError) as error:
        reason = error.advice if isinstance(error, PrecisionToolError) else str(error)
        raise ScriptError("training.precision.file", option=option, reason=reason) from None
    lines = text.split("\n")
    for number, line in enumerate(lines[:-1] if lines[-1] == "" else lines, start=1):
        where = f"{path} line {number}"
        if option == "customize_dtypes":
            _check_dtype_line(line, where)
        elif "=" in line and not line.startswith("#"):
            mode = line.partition("=")[2].strip()
            if mode not in _IMPLEMENTATIONS:
                say("switches.implementation", where=where, mode=shown(mode), modes=tuple(_IMPLEMENTATIONS))
    return path


def _check_dtype_line(line: str, where: str) -> None:
    """Raises ScriptError for a line for which GE refuses the whole file."""
    rest = line[len(_OF_TYPE) :] if line.startswith(_OF_TYPE) else line
    name, colon, types = rest.strip().partition(":")
    match = _DTYPES.match(types.lstrip(":"))
    named = match is not None and any((group or "").strip(" ,") for group in match.groups())
    if not name or not colon or match is None or not named or len(line) > _MOST_CHARACTERS:
        raise ScriptError("training.precision.line", where=where, line_text=shown(line))
    for group in match.groups():
        for word in (group or "").split(","):
            if word.strip() and word.strip().lower() not in _TYPES:
                better = _OTHER_WORDS.get(word.strip().lower())
                raise ScriptError(
                    "training.precision.unknown_type", where=where, word=shown(word.strip()), better=better or ""
                )


# --- Fusion switch files: those of the data folder, else the installed ones ---


_CONFIG_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "config")

#: The installed files by name. Absolute, so they stay valid whatever the working folder.
INSTALLED = {name: os.path.join(_CONFIG_FOLDER, name) for name in (FUSION_OFF, FUSION_SWITCH)}
#: The environment variable of the setting FUSION_SWITCH_FILE: `fusion bisect` names the file of its tries in it,
#: whatever folder its command runs in.
FILE_VARIABLE = "PRECISION_TOOL_FUSION_SWITCH_FILE"


def switch_file(workspace: Workspace, name: str) -> str:
    """The absolute path of the file of this name that a training script with this data folder uses.

    For single passes that of the setting FUSION_SWITCH_FILE, as a running bisection sets it; that of the data folder
    where there is one; else the installed one. DataNotFoundError if the one of the setting is not there.
    """
    chosen = load_settings().fusion_switch_file if name == FUSION_SWITCH else ""
    if chosen:
        path = os.path.abspath(chosen)
        if not os.path.isfile(path):
            raise DataNotFoundError("training.no_switch_file", path=path)
        return path
    own = os.path.abspath(str(workspace.fusion_switch_file(name)))
    return own if os.path.isfile(own) else INSTALLED[name]


def file_in_use(is_off: bool) -> str:
    """The absolute path of the file that a script here uses: `fusion_off.cfg` or `fusion_switch.cfg`."""
    return switch_file(_Place(None).workspace, FUSION_OFF if is_off else FUSION_SWITCH)


# --- Actions → the parameters of NpuOptimizer (TensorFlow 1), DumpConfig (Estimator) and npu_device (TensorFlow 2) ---


Value = Union[bool, int, str]

OPTIMIZER = "NpuOptimizer"

#: What a call may say of the dump, instead of the settings of the same names.
DUMP_OPTIONS = ("dump_mode", "dump_data", "dump_layer", "quant_dumpable")

#: Exactly one of these may be on.
_DUMP_SWITCHES = ("enable_dump", "enable_dump_debug")
#: A file of the user's own here says something else than the action that was asked for.
_FILES = ("fusion_switch_file", "modify_mixlist")
_FOLDERS = ("dump_path", "debug_dir")
#: What npu_device has in `dump_config`, and a DumpConfig takes.
_IN_DUMP_CONFIG = (
    "enable_dump", "enable_dump_debug", "dump_path", "dump_step", "dump_mode", "dump_debug_mode", "dump_data",
    "dump_layer",
)  # fmt: skip
#: What npu_device has in `profiling_config`, by the names that NpuOptimizer has for it.
_IN_PROFILING_CONFIG = {"profiling_mode": "enable_profiling", "profiling_options": "profiling_options"}
#: Where npu_device lacks these, the dump is as good without.
_NOT_IN_EVERY_RELEASE = ("debug_dir", "op_debug_level")
#: Defaults of npu_device that mean something to a user who has set them.
_SAID_DEFAULTS = ("dump_mode",)
#: What can be in a DumpConfig; the others are arguments of NPURunConfig.
_ESTIMATOR_ADVICE = {
    "fusion_off": "NPURunConfig(fusion_switch_file=tf_config.FUSION_OFF_FILE)",
    "fusion_switch": "NPURunConfig(fusion_switch_file=tf_config.FUSION_SWITCH_FILE)",
    "mixlist": "NPURunConfig(modify_mixlist=tf_config.mixed_precision_list(…))",
    "prof": "NPURunConfig(profiling_config=…)",
}
#: What of a run's parameters NPURunConfig has an argument for, besides the DumpConfig.
_IN_RUN_CONFIG = (
    "op_debug_level", "debug_dir", "quant_dumpable", "fusion_switch_file", "modify_mixlist", *MODES,
    "op_precision_mode", "customize_dtypes", "deterministic",
)  # fmt: skip


def session_dump_config(
    config: Any = None, action: Optional[str] = None, settings: Optional[Settings] = None, **run_options: object
) -> Any:
    """A session config (a new one for None) with NpuOptimizer and what `action` asks for."""
    actions = parse_action(action)
    rewriter_config = tensorflow_module("core.protobuf.rewriter_config_pb2").RewriterConfig
    if config is None:
        config = tensorflow_module("core.protobuf.config_pb2").ConfigProto()
    if not hasattr(config, "graph_options"):
        raise ScriptError(
            "training.not_a_session",
            function="session_dump_config",
            expected="a tf.ConfigProto",
            type=type(config).__name__,
            example="session_dump_config(None)",
        )
    options = config.graph_options.rewrite_options
    custom_op = next((each for each in options.custom_optimizers if each.name == OPTIMIZER), None)
    if custom_op is None:
        custom_op = options.custom_optimizers.add()
        custom_op.name = OPTIMIZER
    parameters = _CustomOpOptions(custom_op)
    if parameters.value("use_off_line", True) is False:
        say("switches.off_line")
    else:
        parameters.set("use_off_line", True)
    _apply(parameters, actions, _with_run_options(settings, run_options))
    if options.remapping not in (rewriter_config.DEFAULT, rewriter_config.OFF):
        say("switches.remapping")
    options.remapping = rewriter_config.OFF
    return config


def update_custom_op(custom_op: Any, action: Optional[str] = None, **run_options: object) -> Any:
    """Set what `action` asks for in the NpuOptimizer that the script has made; returns it."""
    _apply(_CustomOpOptions(custom_op), parse_action(action), _with_run_options(None, run_options))
    return custom_op


def estimator_dump_config(action: Optional[str] = None, **run_options: object) -> Any:
    """A `DumpConfig` for `NPURunConfig(dump_config=…)`."""
    actions = parse_action(action)
    for name in sorted(actions):
        if name in _ESTIMATOR_ADVICE:
            raise ScriptError("training.estimator.no_part", name=name, advice=_ESTIMATOR_ADVICE[name])
    make = npu_bridge_class("DumpConfig")
    place = _Place(_with_run_options(None, run_options))
    values = _parameters(actions, place)
    taken = inspect.signature(make).parameters
    for name in ("dump_data", "dump_layer"):
        if name in values and name not in taken:
            raise ScriptError("training.estimator.old", config="DumpConfig", name=name)
    place.make_folders(values)
    if "debug_dir" in values:
        say("switches.debug_dir", level=values["op_debug_level"], folder=repr(values["debug_dir"]))
    if "quant_dumpable" in values:
        say("switches.quant_dumpable")
    precise = [f"{name}={value!r}" for name, value in values.items() if name in PRECISION_OPTIONS]
    if precise:
        say("switches.precise", options=precise)
    set_hf32_variable(place.settings)
    if "dump" in actions:
        _begin_passport(place, values, None)
    return make(**{name: value for name, value in values.items() if name in _IN_DUMP_CONFIG})


def estimator_run_options(action: Optional[str] = None, **run_options: object) -> Dict[str, Value]:
    """The arguments of `NPURunConfig` for what a DumpConfig has no place for."""
    actions = parse_action(action)
    if "prof" in actions:
        raise ScriptError("training.estimator.prof", advice=_ESTIMATOR_ADVICE["prof"])
    place = _Place(_with_run_options(None, run_options))
    all_values = with_given(_parameters(actions, place), {}, place)
    values = {name: value for name, value in all_values.items() if name in _IN_RUN_CONFIG and value != ""}
    taken = inspect.signature(npu_bridge_class("NPURunConfig")).parameters
    for name in values:
        if name not in taken:
            raise ScriptError("training.estimator.old", config="NPURunConfig", name=name)
    check_together(values, {})
    place.make_folders(values)
    set_hf32_variable(place.settings)
    return values


def npu_device_dump_config(npu_device: Any, action: Optional[str] = None, **run_options: object) -> Any:
    """Set what `action` asks for in the global options of npu_device (TensorFlow 2); returns npu_device."""
    actions = parse_action(action)
    if not hasattr(npu_device, "global_options"):
        raise ScriptError(
            "training.not_a_session",
            function="npu_device_dump_config",
            expected="the module npu_device",
            type=type(npu_device).__name__,
            example="import npu_device",
        )
    _apply(_DeviceOptions(npu_device.global_options()), actions, _with_run_options(None, run_options))
    return npu_device


def _begin_passport(place: "_Place", options: Mapping[str, object], hf32: Optional[bool]) -> None:
    """Write what is known by now of an NPU run that dumps. `hf32`: None where the variable of TensorFlow 1 counts."""
    passport = begin(NPU, place.settings)
    passport.set_switches(options)
    passport.set_hf32(hf32_of_variable() if hf32 is None else hf32)
    passport.save()


def _with_run_options(settings: Optional[Settings], options: Mapping[str, object]) -> Settings:
    """The settings with what a call says of the run itself. Raises ScriptError for what is no option of a run."""
    names = (*DUMP_OPTIONS, *PRECISION_OPTIONS)
    for name, value in options.items():
        if name not in names:
            raise ScriptError("training.no_option", name=name, names=names)
        if name == "dump_layer" and isinstance(value, (list, tuple)):
            options = dict(options, dump_layer=" ".join(map(str, value)))
    plain = {name: value for name, value in options.items() if not isinstance(value, Mapping)}
    loaded = load_settings() if settings is None and not plain else with_settings(settings, plain)
    extra = {name: value for name, value in options.items() if name not in plain}
    return with_settings(loaded, written(extra, loaded)) if extra else loaded


class _CustomOpOptions:
    """The parameters of NpuOptimizer."""

    def __init__(self, custom_op: Any) -> None:
        self._parameters = custom_op.parameter_map

    def has(self, name: str) -> bool:
        """Return True: the adapter reads what it knows."""
        return True

    def value(self, name: str, like: Value) -> Optional[Value]:
        """Parameter `name` of the kind of `like`; None when it is not set."""
        if name not in self._parameters:
            return None
        value = getattr(self._parameters[name], self._field(like))
        text: Value = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        return text

    def set(self, name: str, value: Value) -> None:
        """Set a parameter."""
        stored = value.encode() if isinstance(value, str) else value
        setattr(self._parameters[name], self._field(value), stored)

    def remove(self, name: str) -> None:
        """Take a parameter out."""
        del self._parameters[name]

    def set_hf32(self, settings: Settings) -> None:
        """Switch HF32 on or off, where the settings say so."""
        set_hf32_variable(settings)

    def hf32(self) -> Optional[bool]:
        """Return None: the variable tells."""
        return None

    def all(self) -> Dict[str, object]:
        """All parameters, of whichever kind."""
        return {name: self._any(self._parameters[name]) for name in list(self._parameters)}

    @staticmethod
    def _any(value: Any) -> object:
        which = value.WhichOneof("value") if hasattr(value, "WhichOneof") else next(iter(vars(value)), None)
        return getattr(value, which) if which else None

    @staticmethod
    def _field(value: Value) -> str:
        return "b" if isinstance(value, bool) else "i" if isinstance(value, int) else "s"


class _DeviceOptions:
    """The options of npu_device, by the names that TensorFlow 1 has for them.

    As npu_device's own classes have it: an option keeps its default beside its value and tells both as text,
    True as "1" and False as "0"; what is assigned must be of the option's choices.
    """

    def __init__(self, options: Any) -> None:
        self._options = options

    def _holder(self, name: str) -> Tuple[Any, str]:
        """The group of options and the name in it."""
        if name in _IN_PROFILING_CONFIG:
            return getattr(self._options, "profiling_config", None), _IN_PROFILING_CONFIG[name]
        return (getattr(self._options, "dump_config", None) if name in _IN_DUMP_CONFIG else self._options), name

    def _option(self, name: str) -> Any:
        holder, inner = self._holder(name)
        return getattr(holder, inner, None)

    def has(self, name: str) -> bool:
        """Whether this release has the option."""
        return self._option(name) is not None

    def _default(self, name: str) -> Optional[str]:
        """The value that nobody has set, as text; None where there is none."""
        value = getattr(self._option(name), "default", None)
        return None if value is None else _device_text(value)

    def value(self, name: str, like: Value) -> Optional[Value]:
        """What is set, of the kind of `like`; None for what is not set, or is the default (whoever has set that)."""
        text = getattr(self._option(name), "value", None)
        if text is None or _device_text(text) == self._default(name):
            return None
        text = _device_text(text)
        if isinstance(like, bool):
            return text == "1"
        return int(text) if isinstance(like, int) and text.isdigit() else text

    def all(self) -> Dict[str, object]:
        """What a passport has, as text; npu_device's own way to ask for all prints lines of its own."""
        values = ((name, getattr(self._option(name), "value", None)) for name in SWITCHES)
        return {name: _device_text(value) for name, value in values if value is not None}

    def set(self, name: str, value: Value) -> None:
        """Set an option. Raises ScriptError where npu_device refuses the value."""
        holder, inner = self._holder(name)
        default = self._default(name)
        try:
            setattr(holder, inner, value)
        except (TypeError, ValueError) as error:
            raise ScriptError("training.device.refused", name=name, value=repr(value), reason=str(error)) from None
        if name in _SAID_DEFAULTS and default not in (None, str(value)):
            say("switches.default", name=name, old=repr(default), value=repr(value))

    def remove(self, name: str) -> None:
        """Take an option out: npu_device hands on what is not None."""
        holder, inner = self._holder(name)
        setattr(holder, inner, None)

    def set_hf32(self, settings: Settings) -> None:
        """Switch HF32 on or off: npu_device hands on what TensorFlow has for TF32. Raises ScriptError."""
        if not settings.allow_hf32:
            return
        switch = getattr(_tensorflow_switches(), "enable_tensor_float_32_execution", None)
        if switch is None:
            raise ScriptError("training.precision.hf32")
        switch(settings.allow_hf32 == "on")

    def hf32(self) -> Optional[bool]:
        """Whether TensorFlow has TF32, and with it the NPU HF32, on; None where it cannot be told."""
        is_enabled = getattr(_tensorflow_switches(), "tensor_float_32_execution_enabled", None)
        return None if is_enabled is None else bool(is_enabled())


def _tensorflow_switches() -> Any:
    return getattr(getattr(sys.modules.get("tensorflow"), "config", None), "experimental", None)


def _device_text(value: object) -> str:
    return {"True": "1", "False": "0"}.get(str(value), str(value))


class _Place:
    """Where a run's files go: absolute paths of the data folder."""

    def __init__(self, settings: Optional[Settings]) -> None:
        hf32 = given_switches().get("allow_hf32")
        self.settings = with_settings(settings, {"allow_hf32": hf32})
        self.workspace = Workspace(os.path.abspath(str(self.settings.data)))

    def make_folders(self, values: Dict[str, Value]) -> None:
        """Make the folders that are about to be set: the device makes none. Raises OutputError."""
        for name in _FOLDERS:
            if name in values:
                make_writable(Path(str(values[name])))
        if "profiling_options" in values:
            make_writable(self.workspace.prof_dir())
        if "dump_path" in values or any(name in values for name in _DUMP_SWITCHES):
            self._dump_graphs()

    def _dump_graphs(self) -> None:
        """Make GE write its graphs: op names, fusion and layouts of a dump are only in them."""
        folder = make_writable(self.workspace.graph_dir())
        variables = {
            "DUMP_GE_GRAPH": "2",  # without weights
            "DUMP_GRAPH_LEVEL": "3",  # the Build graphs only
            "DUMP_GRAPH_PATH": str(folder),
            "NPU_DUMP_GRAPH": "true",
        }
        for name, value in variables.items():
            if os.environ.setdefault(name, value) != value:
                say("switches.variable", name=name, value=repr(os.environ[name]))


def _parameters(actions: FrozenSet[str], place: _Place) -> Dict[str, Value]:
    """All that `actions` ask for, by the vendor's names."""
    values: Dict[str, Value] = {}
    workspace = place.workspace
    if "dump" in actions:
        settings = place.settings
        values = {"enable_dump": True, "dump_path": str(workspace.dump_dir()), "dump_mode": settings.dump_mode}
        optional = {
            "dump_step": settings.tf_dump_step,  # without it every step is dumped
            "dump_data": "" if settings.dump_data == "tensor" else settings.dump_data,
            "dump_layer": settings.dump_layer,
            "quant_dumpable": "1" if settings.quant_dumpable == "on" else "",
        }
        values.update((name, value) for name, value in optional.items() if value)
    if "overflow" in actions:
        values = {
            "enable_dump_debug": True,
            "dump_path": str(workspace.overflow_dump_dir),
            "dump_debug_mode": "all",
        }
    if values:
        values["op_debug_level"] = place.settings.op_debug_level
        values["debug_dir"] = str(workspace.debug_dir())
    if "prof" in actions:
        values["profiling_mode"] = True
        values["profiling_options"] = json.dumps(
            {
                "output": str(workspace.prof_dir()),
                "training_trace": "on",
                "task_trace": "on",
                "aicpu": "on",
                "fp_point": "",
                "bp_point": "",
                "aic_metrics": "PipeUtilization",
            }
        )
    if "fusion_off" in actions:
        values["fusion_switch_file"] = switch_file(workspace, FUSION_OFF)
    if "fusion_switch" in actions:
        path = switch_file(workspace, FUSION_SWITCH)
        _check_switch_file(path)
        values["fusion_switch_file"] = path
    if "mixlist" in actions:
        values["modify_mixlist"] = find_mixlist(place.settings)
    values.update(precision_values(place.settings))
    return values


def _to_set(
    values: Dict[str, Value], current: Dict[str, Optional[Value]], place: _Place, given: Collection[str]
) -> Dict[str, Value]:
    """What of `values` is to be set where `current` (None: not set) holds already; makes the folders that needs.

    What is `given` from outside replaces what is set.
    """
    for name, other in (_DUMP_SWITCHES, _DUMP_SWITCHES[::-1]):
        if name in values and current.get(other):
            raise ScriptError("training.exclusive", name=name, other=other)
    check_together(values, current)
    changes: Dict[str, Value] = {}
    changed: List[Tuple[str, Dict[str, Any]]] = []
    for name, value in values.items():
        old = current.get(name)
        if old is None or isinstance(value, bool) or name in PRECISION_OPTIONS or name in given:
            changes[name] = value
            if old is not None and old != value:
                by_action = name not in PRECISION_OPTIONS and name not in given
                fields = {"name": name, "old": repr(old), "value": repr(value), "action": by_action}
                changed.append(("switches.changed", fields))
        elif old != value and name in _FILES:
            raise ScriptError("training.already", name=name, old=repr(old), value=repr(value))
        elif old != value:
            changed.append(("switches.stays", {"name": name, "old": repr(old)}))
    for name in _FOLDERS:
        if name in values and name not in changes:
            _make_own_folder(name, str(current[name]))
    place.make_folders(changes)
    for kind, fields in changed:
        say(kind, **fields)
    return changes


def _make_own_folder(name: str, folder: str) -> None:
    """Make a folder that the script has named itself, as those are made that are set here. Raises OutputError."""
    try:
        make_writable(Path(folder))
    except OutputError as error:
        raise OutputError("training.named_by_script", reason=error.full_message, name=name) from None


def _apply(options: Union[_CustomOpOptions, _DeviceOptions], actions: FrozenSet[str], settings: Settings) -> None:
    """Set what `actions` and the settings ask for in the options of an adapter. Nothing is set if there is an error."""
    place = _Place(settings)
    own = _parameters(actions, place)
    names = (*own, *MODES, *_FILES, *FILE_NAMES)
    like: Dict[str, Value] = {**dict.fromkeys(names, ""), **dict.fromkeys(_DUMP_SWITCHES, False), **own}
    current = {name: options.value(name, value) for name, value in like.items()}
    values = with_given(own, current, place)
    given = [name for name, value in values.items() if own.get(name) != value]
    for name in [name for name in values if not options.has(name)]:
        if name in given:
            say("switches.given_old", name=name)
        elif name not in _NOT_IN_EVERY_RELEASE:
            raise ScriptError("training.device.old", name=name)
        del values[name]
    like.update(values)
    current = {name: options.value(name, value) for name, value in like.items()}
    changes = _to_set(values, current, place, given)
    options.set_hf32(place.settings)
    for name, value in changes.items():
        if value != "":
            options.set(name, value)
        elif current.get(name):
            options.remove(name)
    if "dump" in actions:
        _begin_passport(place, options.all(), options.hf32())


def _check_switch_file(path: str) -> None:
    """Say what the device would only tell in its own log."""
    try:
        text = read_text(path)
    except (OSError, PrecisionToolError) as error:
        raise ScriptError("training.switch_file.unreadable", path=str(path), reason=str(error)) from None
    text = text.strip()
    if not text:
        raise ScriptError("training.switch_file.empty", path=str(path))
    if not text.startswith("{"):
        return  # the old form, lines Pass:on
    try:
        json.JSONDecoder().raw_decode(text)  # what follows the brace is not read there
    except ValueError as error:
        raise ScriptError("training.switch_file.not_json", path=str(path), reason=str(error)) from None
