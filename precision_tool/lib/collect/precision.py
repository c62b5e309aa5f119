"""Switches that fix precision: a mode of the whole network, files that name single ops, HF32, the same sums each time.

What may be set, and what GE makes of the files, follow the vendor's own sources: the TensorFlow adapter
(`npu_attrs.cc`, `npu_config.py`) and GE's parsers of these files. This module runs on Python 3.7.
"""

import os
import re
import sys
from typing import Any, Dict, List, Mapping, Optional, Union

from precision_tool.lib.collect.mixlist import result_file, write_whole
from precision_tool.lib.collect.packages import ScriptError, say
from precision_tool.lib.errors import PrecisionToolError, shown
from precision_tool.lib.io.files import read_text
from precision_tool.lib.settings import Settings

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
_FILE_NAMES = {"op_precision_mode": "op_precision_mode.ini", "customize_dtypes": "customize_dtypes.cfg"}
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
    for name, file_name in _FILE_NAMES.items():
        given = options.get(name)
        if isinstance(given, Mapping):
            lines = _precision_lines(given) if name == "op_precision_mode" else _dtype_lines(given)
            path = result_file(settings, file_name)
            write_whole(path, "\n".join(lines) + "\n")
            done[name] = str(path)
    return done


def precision_values(settings: Settings) -> Dict[str, Union[int, str]]:
    """What the settings ask for, by the adapter's names; HF32 is apart. Raises ScriptError."""
    if settings.precision_mode and settings.precision_mode_v2:
        raise ScriptError(
            f"precision_mode={settings.precision_mode!r} and precision_mode_v2={settings.precision_mode_v2!r} "
            "cannot both be set: the adapter takes one of them",
            "take out one of the two",
        )
    values: Dict[str, Union[int, str]] = {}
    values.update((name, str(getattr(settings, name))) for name in MODES if getattr(settings, name))
    if settings.deterministic:
        values["deterministic"] = int(settings.deterministic == "on")
    for name in _FILE_NAMES:
        if getattr(settings, name):
            values[name] = _checked_file(name, os.path.abspath(os.path.expanduser(str(getattr(settings, name)))))
    return values


def check_together(values: Mapping[str, Any], current: Mapping[str, Optional[Any]]) -> None:
    """What `values` must not be set with, where `current` (None: not set) holds already. Raises ScriptError."""
    for name, other in (MODES, MODES[::-1]):
        if name in values and current.get(other):
            raise ScriptError(
                f"{name}={values[name]!r} cannot be set: {other} is {current[other]!r}, and the adapter takes one",
                f"take {other} out of the script",
            )
    if "modify_mixlist" not in values:
        return
    both = {name: values.get(name) or current.get(name) for name in MODES}
    mode = next((both[name] for name in MODES if both[name]), None)
    if mode is None:
        say(
            "modify_mixlist has no effect without mixed precision: Atlas A2 and A3 keep the script's types by default "
            "(must_keep_origin_dtype), and newer adapters refuse it; give precision_mode='allow_mix_precision' too"
        )
    elif mode not in MIXED:
        raise ScriptError(
            f"modify_mixlist has no effect with {next(name for name in MODES if both[name])}={mode!r}: "
            "it is for mixed precision",
            "precision_mode='allow_mix_precision', or precision_mode_v2='mixed_float16'",
        )


def set_hf32_variable(settings: Settings) -> None:
    """Switch HF32 on or off for TensorFlow 1, where the settings say so: before GE starts."""
    if settings.allow_hf32:
        wanted = "1" if settings.allow_hf32 == "on" else "0"
        old = os.environ.get(HF32_VARIABLE, "")
        if old and old != wanted:
            say(f"environment variable {HF32_VARIABLE} was {old!r} and is now {wanted!r}: asked for")
        os.environ[HF32_VARIABLE] = wanted


def hf32_of_variable() -> Optional[bool]:
    """Whether TensorFlow 1's variable has HF32 on; None where it says nothing."""
    return {"1": True, "0": False}.get(os.environ.get(HF32_VARIABLE, ""))


def tf32_of_tensorflow2() -> Optional[bool]:
    """Whether TensorFlow has TF32, and with it the NPU HF32, on; None where it cannot be told."""
    asked = getattr(_tensorflow_switches(), "tensor_float_32_execution_enabled", None)
    return None if asked is None else bool(asked())


def _tensorflow_switches() -> Any:
    return getattr(getattr(sys.modules.get("tensorflow"), "config", None), "experimental", None)


def set_hf32_of_tensorflow2(settings: Settings) -> None:
    """Switch HF32 on or off for npu_device, which hands on what TensorFlow has for TF32. Raises ScriptError."""
    if not settings.allow_hf32:
        return
    switch = getattr(_tensorflow_switches(), "enable_tensor_float_32_execution", None)
    if switch is None:
        raise ScriptError("allow_hf32: TensorFlow 2.4 or newer is needed, and imported first", "import tensorflow")
    switch(settings.allow_hf32 == "on")


def _precision_lines(given: Mapping[Any, Any]) -> List[str]:
    """The lines of an `op_precision_mode` file."""
    by_name: List[str] = []
    by_type: List[str] = []
    for key, mode in given.items():
        name, is_type = _op(key, "op_precision_mode")
        if mode not in _IMPLEMENTATIONS:
            raise ScriptError(f"op_precision_mode: {name} has {mode!r}", "known are " + ", ".join(_IMPLEMENTATIONS))
        (by_type if is_type else by_name).append(f"{name}={mode}")
    lines = ["[ByOpType]", *by_type] if by_type else []
    return _some(lines + (["[ByNodeName]", *by_name] if by_name else []), "op_precision_mode")


def _dtype_lines(given: Mapping[Any, Any]) -> List[str]:
    """The lines of a `customize_dtypes` file; GE refuses one with comments or empty lines."""
    lines = []
    for key, value in given.items():
        name, is_type = _op(key, "customize_dtypes")
        match = _DTYPES.match(str(value).strip())
        if match is None or not any(match.groups()):
            raise ScriptError(
                f"customize_dtypes: {name} has {shown(str(value))}", "say 'InputDtype:float,float,OutputDtype:float'"
            )
        parts = []
        for word, kind in (("InputDtype", "inputs"), ("OutputDtype", "outputs")):
            listed = (match.group(kind) or "").strip().rstrip(",")
            if listed:
                types = [_data_type(each.strip(), f"customize_dtypes: {name}") for each in listed.split(",")]
                parts.append(f"{word}:{','.join(types)}")
        if not parts:
            raise ScriptError(
                f"customize_dtypes: {name} has {shown(str(value))}, which names no type",
                "say 'InputDtype:float,float,OutputDtype:float'",
            )
        line = f"{_OF_TYPE}{name}:" if is_type else f"{name}::"
        lines.append(line + ",".join(parts))
        if len(lines[-1]) > _MOST_CHARACTERS:
            raise ScriptError(f"customize_dtypes: the line of {name} is too long for GE", "at most 1,023 characters")
    return _some(lines, "customize_dtypes")


def _data_type(word: str, where: str) -> str:
    name = _OTHER_WORDS.get(word.lower(), word.lower())
    if name and name not in _TYPES:
        raise ScriptError(f"{where} has the type {shown(word)}", "known are float, float16, bf16, int32, …")
    return name


def _op(key: object, option: str) -> "tuple[str, bool]":
    """The name of an op, or of a type of ops behind `OpType::`, and which of the two it is."""
    text = key if isinstance(key, str) else ""
    name = text[len(_OF_TYPE) :] if text.startswith(_OF_TYPE) else text
    if not _OP_NAME.match(name):
        raise ScriptError(f"{option}: {key!r} is no name of an op", "'fc1/MatMul', or 'OpType::MatMulV2' for a type")
    return name, name is not text


def _some(lines: List[str], option: str) -> List[str]:
    if not lines:
        raise ScriptError(f"{option}: no op given", "leave the option out")
    return lines


def _checked_file(option: str, path: str) -> str:
    """`path`, of a file that GE takes. Raises ScriptError with the line that it does not take."""
    try:
        text = read_text(path, _MOST_BYTES)
    except (OSError, PrecisionToolError) as error:
        reason = error.advice if isinstance(error, PrecisionToolError) else str(error)
        raise ScriptError(f"{option}: {reason}", "GE stops where the file cannot be read") from None
    lines = text.split("\n")
    for number, line in enumerate(lines[:-1] if lines[-1] == "" else lines, start=1):
        where = f"{path} line {number}"
        if option == "customize_dtypes":
            _check_dtype_line(line, where)
        elif "=" in line and not line.startswith("#"):
            mode = line.partition("=")[2].strip()
            if mode not in _IMPLEMENTATIONS:
                say(f"{where}: GE skips it, for it knows no {shown(mode)}; known are {', '.join(_IMPLEMENTATIONS)}")
    return path


def _check_dtype_line(line: str, where: str) -> None:
    """Raises ScriptError for a line for which GE refuses the whole file."""
    rest = line[len(_OF_TYPE) :] if line.startswith(_OF_TYPE) else line
    name, colon, types = rest.strip().partition(":")
    match = _DTYPES.match(types.lstrip(":"))
    named = match is not None and any((group or "").strip(" ,") for group in match.groups())
    if not name or not colon or match is None or not named or len(line) > _MOST_CHARACTERS:
        raise ScriptError(
            f"{where}: {shown(line)} is no line of customize_dtypes, and GE refuses the whole file for it",
            "NAME::InputDtype:float,OutputDtype:float or OpType::TYPE:InputDtype:…; no empty lines, no comments",
        )
    for group in match.groups():
        for word in (group or "").split(","):
            if word.strip() and word.strip().lower() not in _TYPES:
                better = _OTHER_WORDS.get(word.strip().lower())
                raise ScriptError(
                    f"{where}: GE knows no data type {shown(word.strip())}, and refuses the whole file for it",
                    f"it is called {better}" if better else "float, float16, bf16, int32, …",
                )
