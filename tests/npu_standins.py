"""Stand-ins for the objects that the vendor's adapters have their options in, with the adapters' own rules."""

from __future__ import annotations

import threading
from collections import defaultdict
from types import SimpleNamespace
from typing import Any


class CustomOp:
    """As the protobuf message: a parameter that is asked for is made."""

    def __init__(self, **parameters: object) -> None:
        self.name = "NpuOptimizer"
        self.parameter_map: dict[str, Any] = defaultdict(SimpleNamespace)
        for name, value in parameters.items():
            setattr(self.parameter_map[name], kind_of(value), value)

    @property
    def parameters(self) -> dict[str, object]:
        """Each parameter's kind and value."""
        return {name: vars(value) for name, value in self.parameter_map.items()}


def kind_of(value: object) -> str:
    return {bool: "b", int: "i", bytes: "s"}[type(value)]


class Option:
    """An option as npu_device has it: a default, its choices, and a value that is told as text."""

    def __init__(
        self, default: object, choices: tuple[object, ...] | None = None, *, replacement: str | None = None
    ) -> None:
        self.default, self.choices, self._value = default, choices, default
        self.replacement = replacement

    @property
    def value(self) -> str | None:
        if self._value is None:
            return None
        return {"True": "1", "False": "0"}.get(str(self._value), str(self._value))

    def assign(self, value: object) -> None:
        if self.choices is not None and value not in self.choices:
            wrong_type = self.default is not None and not isinstance(value, type(self.default))
            raise TypeError("another type") if wrong_type else ValueError(f"{value!r} is not in {self.choices}")
        self._value = value


class Options:
    """A group of options as npu_device has it: what is assigned goes into an option, and must be one."""

    def __init__(self, **options: Any) -> None:
        vars(self).update(options)

    def __setattr__(self, name: str, value: object) -> None:
        if name not in vars(self):
            raise ValueError(f"there is no option {name}")
        vars(self)[name].assign(value)

    def as_dict(self) -> dict[str, str]:
        """What npu_device hands on, of all options that have a value; it says which of them are old."""
        found: dict[str, str] = {}
        for name, option in vars(self).items():
            if isinstance(option, Option) and option.replacement and option.value is not None:
                print(f"[warning][tf_adapter] Option '{name}' is deprecated and will be removed in future version.")
            found |= option.as_dict() if isinstance(option, Options) else {name: option.value} if option.value else {}
        return found


_SWITCH = (True, False)
_MODES_OF_2021 = ("allow_fp32_to_fp16", "force_fp16", "must_keep_origin_dtype", "allow_mix_precision")
_MODES = (
    "force_fp32", *_MODES_OF_2021, "cube_fp16in_fp32out", "allow_mix_precision_fp16", "allow_mix_precision_bf16",
    "allow_fp32_to_bf16",
)  # fmt: skip
_MODES_V2 = (
    "fp16", "origin", "cube_fp16in_fp32out", "mixed_float16", "mixed_bfloat16", "cube_hif8", "mixed_hif8",
)  # fmt: skip


def _options_since_2022() -> dict[str, Option]:
    return {
        "debug_dir": Option(None), "quant_dumpable": Option(None, ("0", "1")),
        "precision_mode_v2": Option(None, _MODES_V2), "op_precision_mode": Option(None),
        "customize_dtypes": Option(None), "deterministic": Option(0, (0, 1)),
    }  # fmt: skip


class NpuDevice:
    """A stand-in for the module npu_device with the options, defaults and choices of its newest release, or of 2021."""

    def __init__(self, newest: bool = True) -> None:
        dump = Options(
            enable_dump=Option(False, _SWITCH),
            dump_path=Option(None),
            dump_step=Option(None),
            dump_mode=Option("output", ("input", "output", "all")),
            enable_dump_debug=Option(False, _SWITCH),
            dump_debug_mode=Option(
                *(("all", ("aicore_overflow", "atomic_overflow", "all")) if newest else (None, None))
            ),
            **({"dump_data": Option("tensor", ("tensor", "stats")), "dump_layer": Option(None)} if newest else {}),
        )
        profiling = Options(
            enable_profiling=Option(False, _SWITCH), profiling_options=Option('{"output":"./","task_trace":"on"}')
        )
        self._options: Any = Options(
            dump_config=dump,
            profiling_config=profiling,
            fusion_switch_file=Option(None),
            op_debug_level=Option(
                None if newest else 0, (0, 1, 2, 3, 4), replacement="op_debug_config" if newest else None
            ),
            modify_mixlist=Option(None),
            precision_mode=Option(None, _MODES if newest else _MODES_OF_2021),
            **(_options_since_2022() if newest else {}),
        )
        self._unset = self._options.as_dict()

    def global_options(self) -> Any:
        return self._options

    @property
    def all(self) -> dict[str, str]:
        """Every option that differs from its default, as npu_device hands it on."""
        return {name: value for name, value in self._options.as_dict().items() if self._unset.get(name) != value}


_MIXED = ("allow_mix_precision", "allow_mix_precision_fp16", "allow_mix_precision_bf16")
_MIXED_V2 = ("mixed_float16", "mixed_bfloat16", "mixed_hif8")


def start_session(op: CustomOp) -> dict[str, str]:
    """The precision options that TensorFlow 1's adapter hands on (`npu_attrs.cc`, SetNpuOptimizerAttr); its errors."""
    given = {name: vars(value)["s"].decode() for name, value in op.parameter_map.items() if "s" in vars(value)}
    for name, known in (("precision_mode", _MODES), ("precision_mode_v2", _MODES_V2)):
        if name in given and given[name] not in known:
            raise RuntimeError(f"{name} must be in {known}")
    if "modify_mixlist" in given:
        mixed = (
            given["precision_mode"] in _MIXED
            if "precision_mode" in given
            else given.get("precision_mode_v2") in _MIXED_V2
        )
        if not mixed:
            raise RuntimeError("modify_mixlist is assigned, please ensure precision_mode …")
    if "precision_mode" in given and "precision_mode_v2" in given:
        raise RuntimeError("'precision_mode' and 'precision_mode_v2' can not be assigned at the same time.")
    names = ("precision_mode", "precision_mode_v2", "modify_mixlist", "op_precision_mode", "customize_dtypes")
    return {name: given[name] for name in names if name in given}


#: What may be said of one op type in a `modify_mixlist` (GE's kPrecisionReduceUpdateTemplate).
_TOGETHER = (
    {"-black"}, {"-white"}, {"+gray"}, {"+gray", "-black"}, {"+gray", "-white"}, {"+white"}, {"+white", "-gray"},
    {"+white", "-black"}, {"+black"}, {"+black", "-gray"}, {"+black", "-white"},
)  # fmt: skip


def policy_of(mixlist: dict[str, dict[str, list[str]]], op_type: str, built_in: str) -> str:
    """The list that GE has an op type in, which by itself is in `built_in` (ModifyMixlistConfigParser)."""
    said = {
        {"to-add": "+", "to-remove": "-"}[way] + name.removesuffix("-list")
        for name, ways in mixlist.items()
        for way, types in ways.items()
        if op_type in types
    }
    if said and said not in _TOGETHER:
        raise RuntimeError(f"Operation {said} for op {op_type} is invalid")
    if "+black" in said or "+white" in said:
        return "black" if "+black" in said else "white"
    return "gray" if "-" + built_in in said else built_in


#: GE's names of data types, as its `kStringTodataTypeMap` has them without `DT_`.
_GE_TYPES = ("UNDEFINED", "FLOAT", "FLOAT16", "INT8", "INT16", "INT32", "INT64", "BF16", "BOOL", "DOUBLE")


def customized_types(text: str) -> dict[tuple[str, bool], tuple[list[str], list[str]]]:
    """What GE reads of a `customize_dtypes` file, by op and whether it is a type (OpCustDtypesConfigParser)."""
    found = {}
    for line in text.split("\n")[:-1]:
        is_type = line.startswith("OpType::")
        rest = line.removeprefix("OpType::").strip()
        name, colon, _ = rest.partition(":")
        at_input, at_output = rest.find("InputDtype"), rest.find("OutputDtype")
        if not name or not colon or (at_input < 0 and at_output < 0):
            raise RuntimeError("The content format of the customization file is incorrect")
        inputs = rest[at_input + 11 : at_output if at_output >= 0 else None] if at_input >= 0 else ""
        outputs = rest[at_output + 12 :] if at_output >= 0 else ""
        types = tuple([word.strip().upper() for word in part.split(",") if word.strip()] for part in (inputs, outputs))
        if any(word not in _GE_TYPES for part in types for word in part):
            raise RuntimeError("is an invalid dtype")
        found[name, is_type] = (types[0], types[1])
    return found


def implementations(text: str) -> dict[tuple[str, bool], str]:
    """What GE reads of an `op_precision_mode` file, by op and whether it is a type (OpImplModeConfigParser)."""
    found: dict[tuple[str, bool], str] = {}
    is_type = True
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        name, equal, mode = line.partition("=")
        if not equal:
            is_type = {"[ByNodeName]": False, "[ByOpType]": True}.get(line.strip(), is_type)
        elif mode.strip() in (
            "high_performance", "enable_float_32_execution", "enable_hi_float_32_execution", "high_precision",
            "support_out_of_bound_index", "super_performance", "norm_class", "keep_fp16",
        ):  # fmt: skip
            found.setdefault((name.strip(), is_type), mode.strip())
    return found


def trace_as_npu_device(function_class: Any) -> None:
    """What `npu_device.open().as_default()` does to `Function.__call__` (`npu_device.py`): the outermost function is
    traced, one that it calls is plain Python, and a call again where that fails."""
    call, running = function_class.__call__, threading.local()

    def never_nested(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(running, "entrance", None) is not None:
            try:
                return self._python_function(*args, **kwargs)
            except BaseException:  # npu_device's own `except:`
                return call(self, *args, **kwargs)
        running.entrance = self._python_function.__name__
        try:
            return call(self, *args, **kwargs)
        finally:
            running.entrance = None

    function_class.__call__ = never_nested
