"""The files that keep ops of a network in float32: those of GE (ATC and TensorFlow's adapter), and a module of Python.

`modify_mixlist` and `keep_dtype` name types as GE does, which is not always as TensorFlow does; `customize_dtypes` and
`op_precision_mode` name ops, whose names are lost where GE fuses them.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import getsource
from shlex import quote
from typing import TYPE_CHECKING

from precision_tool.lib.diagnose.opened_step import module_path
from precision_tool.lib.diagnose.plan import dtypes_in_float32
from precision_tool.lib.diagnose.preflight_model import TypeForecast
from precision_tool.lib.messages import text
from precision_tool.lib.ops.base import Kind
from precision_tool.lib.ops.op_table import find
from precision_tool.lib.training import keep_in_float32
from precision_tool.lib.training.given_switches import with_types
from precision_tool.lib.training.mixlist import MIXLIST_NAME
from precision_tool.lib.training.packages import ScriptError
from precision_tool.lib.training.switches import FILE_NAMES, dtype_lines, precision_lines
from precision_tool.lib.view.report_page import asset

if TYPE_CHECKING:
    from precision_tool.lib.model.graph import Op

KEEP_DTYPE_NAME = "keep_dtype.cfg"
MODULE_NAME = "keep_in_float32.py"
#: The precision mode in which GE looks at these files, by the type of all other ops.
MODES = {"float16": "allow_mix_precision_fp16", "bfloat16": "allow_mix_precision_bf16"}
#: The same for `precision_mode_v2`, which ATC takes.
MODES_V2 = {"float16": "mixed_float16", "bfloat16": "mixed_bfloat16"}

#: What GE makes of types of TensorFlow that it calls otherwise, by its plug-ins' `OriginOpType`; where the axes are
#: constant, a reduction ends in D.
_GE_TYPES: Mapping[str, tuple[str, ...]] = {
    "MatMul": ("MatMulV2",), "BatchMatMul": ("BatchMatMul", "BatchMatMulV2"),
    "BatchMatMulV2": ("BatchMatMul", "BatchMatMulV2"), "Softmax": ("SoftmaxV2",), "LogSoftmax": ("LogSoftmaxV2",),
    "Sum": ("ReduceSum", "ReduceSumD"), "Mean": ("ReduceMean", "ReduceMeanD"), "Max": ("ReduceMax", "ReduceMaxD"),
    "Min": ("ReduceMin", "ReduceMinD"), "Prod": ("ReduceProd", "ReduceProdD"), "AddV2": ("Add", "AddV2"),
    "FusedBatchNorm": ("BatchNorm",), "FusedBatchNormV2": ("BatchNorm",), "FusedBatchNormV3": ("BatchNorm",),
    "FusedBatchNormGrad": ("BatchNormGrad",), "FusedBatchNormGradV2": ("BatchNormGrad",),
    "FusedBatchNormGradV3": ("BatchNormGrad",),
    "Conv2DBackpropFilter": ("Conv2DBackpropFilter", "Conv2DBackpropFilterD"),
    "Conv2DBackpropInput": ("Conv2DBackpropInput", "Conv2DBackpropInputD"),
}  # fmt: skip

_IMPORT = "import precision_tool.tf_config as npu_tf_config"

#: Stands for the data types of an op whose name is looked at.
_ANY_TYPE = "OutputDtype:float"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionFile:
    """A file to write.

    Attributes
    ----------
    name : str
        Its name in the folder.
    option : str
        The option of GE that takes it; "" for a module of Python.
    content : str
        What is in it.
    """

    name: str
    option: str
    content: str


def ge_types(types: Iterable[str]) -> tuple[str, ...]:
    """Return types of ops as GE names them, those of TensorFlow by what its plug-ins make of them."""
    return tuple(dict.fromkeys(name for op_type in types for name in _GE_TYPES.get(op_type, (op_type,))))


def precision_files(forecast: TypeForecast, ops: Sequence[Op], framework: str) -> list[PrecisionFile]:
    """Return the files that keep the ops of a forecast in float32.

    Parameters
    ----------
    forecast : TypeForecast
        Which ops these are.
    ops : sequence of Op
        The ops of the graph.
    framework : str
        Whose they are, as `Preflight` has it.

    Returns
    -------
    list of PrecisionFile
        Only those with something in them: of TensorFlow the four of GE, of others one module of Python.
        Those of `unnameable` are left out.
    """
    if framework != "TensorFlow":
        return _module(forecast, framework)
    kept = [op for op in _kept(forecast, ops) if not _problem(op)]
    kept_types = [op_type for op_type in forecast.kept_types if _is_type(op_type)]
    types = set(kept_types)
    by_name = [op for op in kept if op.type not in types]
    files = []
    if types:
        content = with_types(None, list(ge_types(kept_types)))
        files.append(PrecisionFile(name=MIXLIST_NAME, option="modify_mixlist", content=content))
    if types or kept:
        lines = [*(f"OpType::{name}" for name in ge_types(kept_types)), *(op.name for op in by_name)]
        files.append(PrecisionFile(name=KEEP_DTYPE_NAME, option="keep_dtype", content=_lines(lines)))
        dtypes = {op.name: given for op in kept if "float" in (given := dtypes_in_float32(op))}
        if dtypes:
            content = _lines(dtype_lines(dtypes))
            files.append(_by_op("customize_dtypes", content))
        modes = _implementations(kept, by_name, types)
        if modes:
            content = _lines(precision_lines(modes))
            files.append(_by_op("op_precision_mode", content))
    return files


def unnameable(forecast: TypeForecast, ops: Iterable[Op], framework: str) -> list[str]:
    """Return the kept ops that GE's files cannot name: by their names, types, or as many tensors as no line holds."""
    return [op.name for op in _kept(forecast, ops) if _problem(op)] if framework == "TensorFlow" else []


def _kept(forecast: TypeForecast, ops: Iterable[Op]) -> list[Op]:
    names = set(forecast.kept)
    return [op for op in ops if op.name in names]


def _problem(op: Op) -> bool:
    """Return whether a line with an op would make GE misread or refuse a file."""
    try:
        dtype_lines({op.name: given if "float" in (given := dtypes_in_float32(op)) else _ANY_TYPE})
    except ScriptError:
        return True
    return not _is_type(op.type)


def _is_type(op_type: str) -> bool:
    try:
        return bool(dtype_lines({f"OpType::{op_type}": _ANY_TYPE}))
    except ScriptError:
        return False


def _by_op(option: str, content: str) -> PrecisionFile:
    return PrecisionFile(name=FILE_NAMES[option], option=option, content=content)


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _implementations(kept: Sequence[Op], by_name: Sequence[Op], types: set[str]) -> dict[str, str]:
    """Return how kernels of kept ops compute in float32: products not in HF32, functions not by coarse tables."""
    modes: dict[str, str] = {}
    for op in kept:
        if op.type in types and (mode := _implementation(op.type)):
            modes |= {f"OpType::{name}": mode for name in ge_types([op.type])}
    return modes | {op.name: mode for op in by_name if (mode := _implementation(op.type))}


def _implementation(op_type: str) -> str:
    spec = find(op_type)
    if spec is None:
        return ""
    if spec.kind is Kind.MATRIX:
        return "enable_float_32_execution"
    return "high_precision" if spec.kind in (Kind.APPROXIMATE, Kind.COMPOSITE) else ""


# --- how a training script uses them ---


def script_lines(dtype: str, paths: Mapping[str, str], is_in_place: bool) -> list[str]:
    """Return the lines of a TensorFlow script that use the files.

    Parameters
    ----------
    dtype : str
        The type of all other ops.
    paths : mapping of str to str
        The files, by their option.
    is_in_place : bool
        Whether the action `mixlist` of the helper finds its file by itself.
    """
    given = [f"precision_mode={MODES[dtype]!r}"]
    given += [f"{name}={paths[name]!r}" for name in ("customize_dtypes", "op_precision_mode") if name in paths]
    action = ["action='mixlist'"] if "modify_mixlist" in paths and is_in_place else []
    arguments = ", ".join([*action, *given])
    lines = [
        _IMPORT,
        f"config = npu_tf_config.session_dump_config(config, {arguments})  # session",
        f"npu_tf_config.npu_device_dump_config(npu_device, {arguments})  # TensorFlow 2",
    ]
    if "modify_mixlist" in paths and not is_in_place:
        path = paths["modify_mixlist"]
        lines += [
            f"custom_op.parameter_map['modify_mixlist'].s = tf.compat.as_bytes({path!r})  # session",
            f"npu_device.global_options().modify_mixlist = {path!r}  # TensorFlow 2",
        ]
    estimator = [*given, *(f"{name}={paths[name]!r}" for name in ("modify_mixlist",) if name in paths)]
    lines.append(f"npu_config = NPURunConfig({', '.join(estimator)})  # Estimator")
    return lines


def atc_lines(dtype: str, paths: Mapping[str, str]) -> list[str]:
    """Return the call of ATC that uses the files, without `customize_dtypes`, which would win over `keep_dtype`."""
    named = ("keep_dtype", "modify_mixlist", "op_precision_mode")
    options = [
        f"--precision_mode_v2={MODES_V2[dtype]}",
        *(f"--{name}={quote(paths[name])}" for name in named if name in paths),
    ]
    return [f"atc {' '.join(options)} ...  # ATC"]


# --- PyTorch and MindSpore ---


def outside_modules(forecast: TypeForecast, ops: Iterable[Op]) -> list[Op]:
    """Return the calls to keep in float32 that no module which is kept makes: the script has to be changed there."""
    paths = [f"{module_path(module)}." for module in forecast.kept_modules]
    kept = set(forecast.kept)
    calls = [op for op in ops if op.is_recorded and op.name in kept]
    return [op for op in calls if not any(f"{module_path(op.module)}.".startswith(path) for path in paths)]


def _module(forecast: TypeForecast, framework: str) -> list[PrecisionFile]:
    modules = tuple(dict.fromkeys(filter(None, map(module_path, forecast.kept_modules))))
    if not modules:
        return []
    listed = "(\n" + "".join(f"    {name!r},\n" for name in modules) + ")"
    what = text("screen.view.preflight.in_module", dtype=forecast.dtype)
    source = asset("keep_in_float32.mindspore.txt") if framework == "MindSpore" else getsource(keep_in_float32)
    content = f"{source}\n\n#: {what}\nMODULES = {listed}\n"
    return [PrecisionFile(name=MODULE_NAME, option="", content=content)]


def module_lines(framework: str, path: str) -> list[str]:
    """Return the lines of a script that use the module, which lies at `path`."""
    name = "net" if framework == "MindSpore" else "model"
    return [
        f"import sys; sys.path.insert(0, {posixpath.dirname(path)!r})",
        "from keep_in_float32 import MODULES, keep_in_float32",
        f"{name} = keep_in_float32({name}, MODULES)",
    ]


# --- the loss scale ---


def scale_lines(framework: str, scale: float, *, is_alone: bool) -> list[str]:
    """Return the lines of a script that set the loss scale with which the step was emulated; none for 1.

    `is_alone`: no other lines import the helper.
    """
    if scale == 1:
        return []
    if framework == "PyTorch":
        return [f"scaler = GradScaler(init_scale={scale!r})"]
    if framework == "MindSpore":
        return [f"manager = mindspore.FixedLossScaleManager({scale!r})  # Model(..., loss_scale_manager=manager)"]
    given = f"npu_tf_config.loss_scale({scale!r})"
    arguments = f"optimizer, dynamic=False, initial_scale={given}"
    return [
        *([_IMPORT] if is_alone else []),
        f"manager = FixedLossScaleManager(loss_scale={given})  # session, Estimator",
        "optimizer = NPULossScaleOptimizer(optimizer, manager)  # session, Estimator",
        f"optimizer = npu_device.train.optimizer.NpuLossScaleOptimizer({arguments})  # TensorFlow 2",
    ]
